"""Every command that is printed, run as it is printed, in each kind of run and in directories of any name.

A trial makes the state in which a command is printed, copies it as an operator does, pastes it into bash, and looks at
what the sentence promised: an exit code, and points, texts or files that are there then.
"""

import json
import shlex
import shutil
import signal
from functools import partial
from pathlib import Path

import numpy as np

from bench.campaigns.process import aside
from bench.campaigns.shell import LOST, Kinds, Shell, kill, line_of
from bench.campaigns.tally import Campaign
from tests import builders
from tests.edge_bridge import serving
from tests.hub import Hub
from tests.test_worker import POISON, poisoned
from tests.uploads import bridged

QUESTION = "a question"
kind = Kinds()


# A run that stopped.


@kind
def a_file(s: Shell) -> None:
    s.go_on(s.run(*LOST, code=4))


@kind
def models_by_path(s: Shell) -> None:
    for name in ("one", "two"):
        shutil.copytree(s.shared / name, s.home / f"a {name}")
    s.go_on(s.run(*LOST[:-1], "lose:100", roster="./a one,./a two", code=4))


@kind
def the_environment(s: Shell) -> None:
    env = {"INTERLOCK_ROSTER": "two=2,one=1", "INTERLOCK_FUSION": "concat", "INTERLOCK_EXPORT": "parquet,jsonl"}
    s.go_on(s.run(*LOST, roster="", code=4, **env))


@kind
def a_bundle(s: Shell) -> None:
    s.ours("models", "bundle", s.typed(s.home / "my bundle"), "one", "two", "--config", s.typed(s.config))
    flags = ("--models", s.typed(s.home / "my bundle"), "--offline", "--qdrant", s.typed(s.home / "my store"))
    said = s.go_on(s.run(*flags, *LOST, code=4))
    s.paste(s.next_of(said.stderr, "search"), says="  1. ")


@kind
def a_bundle_of_the_environment(s: Shell) -> None:
    s.ours("models", "bundle", "my bundle", "one", "two", "--config", s.typed(s.config))
    s.go_on(s.run(*LOST, code=4, INTERLOCK_MODELS="my bundle", INTERLOCK_OFFLINE="1"))


@kind
def a_cluster(s: Shell) -> None:
    s.slowly()
    said = s.signalled(signal.SIGTERM, "--cluster", "local:2")
    s.go_on(said)


@kind
def a_deadline(s: Shell) -> None:
    s.slowly()
    said = s.run("--deadline", "15s", "--devices", "cpu", roster="slow,one", code=None)
    if said.returncode == 4 and "repeat the command with a later" not in said.stderr:
        s.go_on(said)
    s.report.tried[f"deadline: exit {said.returncode}"] += 1


@kind
def terminated(s: Shell) -> None:
    s.slowly()
    s.go_on(s.signalled(signal.SIGTERM))


@kind
def interrupted(s: Shell) -> None:
    s.slowly()
    s.go_on(s.signalled(signal.SIGINT))


@kind
def killed_and_viewed(s: Shell) -> None:
    s.slowly()
    s.signalled(signal.SIGKILL, event='"run_started"')
    (s.runs / "r" / "summary.json").unlink(missing_ok=True)
    said = s.ours("view", s.typed(s.runs / "r"), code=2).stderr
    s.paste(s.between(said, "finish it with ", ", or watch it"))
    s.whole(s.runs / "r")


@kind
def killed_and_asked_for(s: Shell) -> None:
    s.slowly()
    s.signalled(signal.SIGKILL)
    elsewhere = s.home / "else where"
    elsewhere.mkdir()
    said = s.ours("ctl", s.runs / "r", "status", cwd=elsewhere).stdout
    s.paste(s.between(said, "continue it with ", "\n"), cwd=elsewhere)
    s.whole(s.runs / "r")


@kind
def killed_and_steered(s: Shell) -> None:
    s.slowly()
    s.signalled(signal.SIGKILL)
    said = s.ours("ctl", s.typed(s.runs / "r"), "pause", code=1).stderr
    s.paste(s.between(said, "continue it with ", "\n"))
    s.whole(s.runs / "r")


@kind
def moved(s: Shell) -> None:
    s.run(*LOST, "--qdrant", s.typed(s.home / "my store"), code=4)
    new = s.home.parent / "there now"
    s.home.rename(new)
    s.home, s.runs, s.chunks = new, new / "my runs", new / "my chunks"
    said = s.ours("ctl", s.typed(s.runs / "r"), "status").stdout
    done = s.paste(s.between(said, "continue it with ", "\n"), (0, 4))
    if done.returncode == 4:
        done = s.go_on(done)
    s.whole(s.runs / "r")
    s.paste(s.next_of(done.stderr, "search"), says="  1. ")


@kind
def renamed(s: Shell) -> None:
    s.run(*LOST, code=4)
    (s.runs / "r").rename(s.runs / "-it's of today")
    said = s.ours("ctl", s.typed(s.runs / "-it's of today"), "status").stdout
    s.paste(s.between(said, "continue it with ", "\n"), (0, 4))


@kind
def in_use(s: Shell) -> None:
    s.slowly()
    process = s.begun(event='"batch_committed"')
    try:
        said = s.run("--resume", roster="slow,one", code=2).stderr
        s.paste(s.between(said, r"steer it \(", r"\), or choose"), says="RUN")
        follow = s.between(said, r"follow it \(", r"\), steer")
        s.on_terminal(follow, lambda terminal: (terminal.wait_for("r", 30), terminal.press("q")))
        s.report.tried["pasted: watch"] += 1
    finally:
        kill(process)


@kind
def watched_after_its_end(s: Shell) -> None:
    s.slowly()
    s.signalled(signal.SIGKILL)
    said = s.ours("watch", s.typed(s.runs / "r"), code=2).stderr  # where there is no terminal
    s.paste(s.between(said, r"`", "`"), says="Docs")


# A run that is not whole.


@kind
def parked(s: Shell) -> None:
    bad = aside(partial(poisoned, s.home / "bad")).name
    builders.corpus(s.chunks, {"Docs": {"a_chunks.json": [*s.texts, f"a {POISON}"]}})
    said = s.run(roster=f"./{bad}", code=1)
    line = s.next_of(said.stderr, "--retry-parked")
    s.paste(line, (1,), says="1 parked")
    shutil.rmtree(s.home / "bad")
    shutil.copytree(s.shared / "one", s.home / "bad")


@kind
def refused(s: Shell) -> None:
    (s.chunks / "Docs" / "b_chunks.json").write_text('[{"text": "cut')
    said = s.run(code=1)
    s.paste(s.next_of(said.stderr, "view"), says="Docs")
    flags = ["--reuse", s.typed(s.runs / "r")]  # mend and run again with --reuse
    assert "run again with --reuse, or allow it with --max-refused" in said.stderr, said.stderr
    s.run("--max-refused", "1%,files", *flags, name="again")
    (s.chunks / "Docs" / "b_chunks.json").write_text('[{"text": "mended"}]')
    s.run(*flags, name="mended")


@kind
def a_missing_model(s: Shell) -> None:
    shutil.copytree(s.shared / "two", s.home / "late")
    builders.toml(s.config, {"one": {"source": str(s.shared / "one")}, "two": {"source": str(s.home / "late")}})
    (s.home / "late").rename(s.home / "away")
    said = s.run("--allow-missing", code=1)
    (s.home / "away").rename(s.home / "late")
    told = s.ours("export", s.typed(s.runs / "r"), "--to", "files", code=2).stderr
    done = s.paste(s.between(told, r"\(`", r"`\)") if s.rng.random() < 0.5 else s.next_of(said.stderr, "--resume"))
    s.whole(s.runs / "r")
    s.paste(s.next_of(done.stderr, "view"), says="completed")


@kind
def changed_chunks(s: Shell) -> None:
    s.run()
    builders.corpus(s.chunks, {"Docs": {"a_chunks.json": [*s.texts, "one more"]}})
    exported = s.ours("export", s.typed(s.runs / "r"), "--to", "files", code=2).stderr.partition("run again with ")[2]
    resumed = s.run("--resume", code=2).stderr.partition("start a new run with ")[2]
    for name, told in {"exported": exported, "resumed": resumed}.items():
        s.paste(f"{line_of(s.words(name=name))} {told.partition(' (unchanged')[0].strip()}")
        s.whole(s.runs / name, len(s.texts) + 1)


@kind
def one_that_exists(s: Shell) -> None:
    s.run()
    assert "add --resume to continue it" in s.run(code=2).stderr
    s.run("--resume")


# What was delivered.


@kind
def a_store(s: Shell) -> None:
    builders.corpus(
        s.chunks, {"Docs": {"a_chunks.json": s.texts}, "More": {"b.jsonl": builders.sentences(9, start=500)}}
    )
    said = s.run("--qdrant", s.typed(s.home / "my store"), "--sparse", "words")
    s.paste(s.next_of(said.stderr, "search"), says="  1. ")
    s.paste(s.next_of(said.stderr, "view"), says="completed")


@kind
def a_store_with_stale_points(s: Shell) -> None:
    s.run("--qdrant", s.typed(s.home / "my store"))
    builders.corpus(s.chunks, {"Docs": {"a_chunks.json": s.texts[5:]}})
    said = s.run("--qdrant", s.typed(s.home / "my store"), name="r2").stderr
    found = s.ours("search", s.typed(s.home / "my store"), s.texts[0], "--limit", 60)
    told = found.stderr if s.rng.random() < 0.5 else said
    s.paste(s.between(told, "`", "` removes them"), says="5 of 60 points removed")


@kind
def a_store_that_is_not_finished(s: Shell) -> None:
    s.slowly()
    s.signalled(signal.SIGKILL, "--qdrant", "./my store", event='"lease_released"')
    if not (s.home / "my store" / "docs").exists():
        return
    said = s.ours("search", "./my store", QUESTION, code=None).stderr
    if "no points yet" in said:
        line = s.between(said, "`", "`").replace("RUN_DIR", shlex.quote(s.typed(s.runs / "r")))
        s.paste(line, says="continue it with")


@kind
def an_upload(s: Shell) -> None:
    with bridged(s.home / "bridge") as bridge, serving(bridge) as url:
        said = s.run(*LOST, "--qdrant", url, code=4)
        s.paste(s.between(said.stderr, "upload what there is: ", "\n"), (0, 2))
        line = s.next_of(said.stderr, "--resume")
        for _ in range(6):
            said = s.paste(line, (0, 4))
            if not said.returncode:
                break
            line = s.next_of(said.stderr, "--resume")
        s.whole(s.runs / "r")
        there = len(bridge.collections["docs"].sent) if "docs" in bridge.collections else 0
        if there != len(s.texts):
            s.wrong(f"{there} points of {len(s.texts)} on the server")


# Other commands.


def _judged(s: Shell) -> list[object]:
    """Questions with answers about the chunks."""
    (s.chunks / "Docs" / "a_chunks.json").unlink()
    lines = [json.dumps({"_id": f"q{n}", "text": text}) for n, text in enumerate(s.texts)]
    (s.home / "questions.jsonl").write_text("\n".join(lines))
    builders.corpus(
        s.chunks, {"Docs": {"a.jsonl": [{"text": t, "metadata": {"chunk_id": f"c{n}"}} for n, t in enumerate(s.texts)]}}
    )
    rows = "".join(f"q{n}\tc{n}\t1\n" for n in range(len(s.texts)))
    (s.home / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return ["--queries", s.typed(s.home / "questions.jsonl"), "--qrels", s.typed(s.home / "qrels.tsv")]


@kind
def judged_without_files(s: Shell) -> None:
    given = _judged(s)
    s.run("--export", "npy")
    said = s.ours("eval", s.typed(s.runs / "r"), *given, "--config", s.typed(s.config), code=2).stderr
    s.paste(s.between(said, "`", "`"))
    s.ours("eval", s.typed(s.runs / "r"), *given, "--config", s.typed(s.config))


@kind
def weights_of_a_run(s: Shell) -> None:
    given = _judged(s)
    prompts = {"document_prompt": "the ", "query_prompt": "the "}
    builders.toml(s.config, {n: {"source": str(s.shared / n), **prompts} for n in ("one", "two")})
    s.run("--export", "npy,parquet", roster="one=1,two=9")
    nearest = builders.nearest_others(np.load(s.runs / "r" / "exports" / "Docs" / "one.npy"))  # what `one` alone finds
    rows = "".join(f"q{n}\tc{at}\t1\n" for n, at in enumerate(nearest))
    (s.home / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    said = s.ours("eval", s.typed(s.runs / "r"), *given, "--calibrate", s.typed(s.home / "my weights.toml")).stdout
    before = _vectors(s.runs / "r")
    done = s.paste(s.next_of(said, "--config"), says="DONE")
    new = [each for each in s.runs.iterdir() if each.name != "r"]
    if done.returncode == 0 and not _vectors(new[0]).items() <= before.items():
        s.wrong("a run with the weights has other vectors of its models")


def _vectors(run: Path) -> dict[str, bytes]:
    return {file.parent.name.partition("_")[2]: file.read_bytes() for file in run.glob("passes/*/vectors.npy")}


@kind
def a_model_to_fetch(s: Shell) -> None:
    with Hub("org/tiny", s.shared / "one", "c" * 40).serving() as hub:
        env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(s.home / "hf"), "INTERLOCK_CACHE": str(s.home / "cache")}
        said = s.run("--offline", roster="hf:org/tiny", code=5, **env).stderr
        line = s.between(said, "to fetch it: ", "\n")
        s.paste(line, says="org", **env)
        s.run("--offline", roster="hf:org/tiny", **env)


@kind
def the_demo(s: Shell) -> None:
    said = s.ours("demo", "--scripted", "--speed", 1000, "--no-ui", code=None)
    s.paste(s.next_of(said.stderr, "view"), says="exit")


@kind
def nothing_there(s: Shell) -> None:
    said = s.ours("runs", "--out", "none").stdout
    assert "interlock run CHUNKS starts one; interlock demo tries it out" in said, said
    s.paste(line_of(s.words()))
    s.paste(f"interlock runs --out {shlex.quote(s.typed(s.runs))}", says="DONE")


@kind
def a_setting_that_is_none(s: Shell) -> None:
    s.config.write_text("cieling = 3\n")
    s.paste(s.between(s.run(code=2).stderr, "`", "`"), says="ceiling")


@kind
def a_terminal_of_80_columns(s: Shell) -> None:
    line = line_of(s.words(*LOST))
    said = s.on_terminal(line)
    s.go_on(type(s.do("true"))([], 4, "", said))


@kind
def the_console(s: Shell) -> None:
    words = [word for word in map(str, s.words(*LOST)) if word != "--no-ui"]

    def leave(terminal: object) -> None:
        terminal.wait_for("view", 60)  # type: ignore[attr-defined]
        terminal.press("q")  # type: ignore[attr-defined]

    said = s.on_terminal(line_of(words), leave)
    s.go_on(type(s.do("true"))([], 4, "", said))


CAMPAIGN = Campaign("commands", kind.trial, 4 * len(kind), "printed commands, run as they are printed")
