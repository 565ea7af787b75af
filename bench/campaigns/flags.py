"""Every flag that a refusal or a warning names, added to the command that was refused as its reader adds it; and the
examples of each command's help, in a directory as they mean it.

A trial makes the state, copies the flag out of the sentence, runs the command with it, and looks at what is there then:
rows by pyarrow and numpy, points by a search.
"""

import re
import shlex
import sys

import numpy as np

from bench.campaigns.commands import QUESTION
from bench.campaigns.shell import LOST, Kinds, Shell, line_of
from bench.campaigns.tally import Campaign
from tests import builders

kind = Kinds()


def told(s: Shell, said: str, pattern: str) -> str:
    """What a sentence names, by a pattern with a group."""
    found = re.search(pattern, said)
    return found[1] if found else s.none(pattern, said).removeprefix("interlock ")


def mend(s: Shell, pattern: str, *flags: object, code: int = 2, name: str = "r", **given: str) -> None:
    """Run with these flags, which is refused, and again with those that the refusal names: every text has its point."""
    flag = told(s, s.run(*flags, name=name, code=code, **given).stderr, pattern)
    s.paste(f"{line_of(s.words(*flags, name=name, **given))} {flag}")
    s.whole(s.runs / name)


@kind
def devices_that_are_not_there(s: Shell) -> None:
    mend(s, r"use (--devices cpu),", "--devices", "cuda", code=5)
    mend(s, r"rehearse with (--devices sim:\S+)", "--devices", "cuda", code=5, name="sim")


@kind
def faults_without_a_simulated_device(s: Shell) -> None:
    mend(s, r"use (--devices sim:\S+),", "--faults", "oom:2")


@kind
def a_precision_of_the_cpu(s: Shell) -> None:
    mend(s, r"choose (--devices cpu)", "--precision", "bfloat16", "--devices", "sim:T4")


@kind
def the_last_gpu_is_lost(s: Shell) -> None:
    said = s.run(*LOST, code=4).stderr
    flags = told(s, said, r"and (--resume --devices \S+) on the CPU")
    done = s.paste(f"{line_of(s.words())} {flags}", (0, 2))
    if done.returncode:  # rehearsed and real devices do not mix, and it says so
        told(s, done.stderr, "(drop --devices)")
        s.paste(f"{line_of(s.words())} --resume --faults ''", (0,))
    s.whole(s.runs / "r")


@kind
def a_text_by_another_name(s: Shell) -> None:
    rows = [{"body": text, "nr": at} for at, text in enumerate(s.texts)]
    builders.corpus(s.chunks, {"Docs": {"a_chunks.json": rows}})
    mend(s, r"such as (--text-field \w+)")


@kind
def models_in_the_wrong_flag(s: Shell) -> None:
    said = s.run(roster="words", code=2).stderr
    s.paste(f"{line_of(s.words(roster='one'))} {told(s, said, r'name it in (--sparse)')} words")
    said = s.run("--sparse", "two", name="b", code=2).stderr
    s.paste(f"{line_of(s.words(roster='', name='b'))} {told(s, said, r'name it in (--roster)')} two")
    for name in ("r", "b"):
        s.whole(s.runs / name)


@kind
def a_dimension_that_a_file_has_to_allow(s: Shell) -> None:
    said = s.run("--dim", 16, roster="one", code=2).stderr
    row, table = told(s, said, r"set (matryoshka = \[16\]) in"), told(s, said, r"in (\[models\.one\])")
    s.config.write_text(s.config.read_text().replace(table, f"{table}\n{row}"))
    s.paste(line_of(s.words("--dim", 16, roster="one")))
    if (width := np.load(s.runs / "r" / "exports" / "Docs" / "fused.npy").shape[1]) != 16:
        s.wrong(f"{width} dimensions")


@kind
def forms_that_do_not_go_together(s: Shell) -> None:
    said = s.run("--keep", "members", "--project", 8, name="c", code=2).stderr
    flags = told(s, said, r"use (--fusion concat with --keep fused)").replace(" with ", " ")
    s.paste(f"{line_of(s.words('--keep', 'members', '--project', 8, name='c'))} {flags}")
    s.whole(s.runs / "c")


@kind
def a_payload_of_another_form(s: Shell) -> None:
    s.run("--qdrant", "./my store", "--payload", "flat")
    mend(s, r"pass (--payload \w+),", "--qdrant", "./my store", name="b")


@kind
def a_run_that_computes_the_same_again(s: Shell) -> None:
    s.run()
    said = s.run(name="b").stderr
    flags = told(s, said, r": use (--reuse .*?) to take them")
    done = s.paste(f"{line_of(s.words(name='c'))} {flags}", says="reused")
    s.whole(s.runs / "c")
    if "lease L001" in done.stderr:
        s.wrong("what was to be taken was computed")


@kind
def a_run_that_began_the_same(s: Shell) -> None:
    s.run(*LOST, code=4)
    said = s.run("--devices", "sim:1xT4", name="b", code=None).stderr
    if found := re.search(r"continue it with (--run-id .* --resume)", said):
        words = [each for each in s.words() if each not in ("--run-id", "r")]
        s.paste(f"{line_of(words)} --faults '' {found[1]}")
        s.whole(s.runs / "r")


@kind
def models_of_a_file_that_is_not_named_again(s: Shell) -> None:
    s.run(*LOST, code=4)
    there = s.home / "else where"
    there.mkdir()
    words = ["run", s.chunks, "--out", s.runs, "--run-id", "r", "--resume", "--faults", "", "--no-ui"]
    flag = told(s, s.ours(*words, code=2, cwd=there).stderr, r"was started with (--config .*): add it")
    s.paste(f"{line_of(words)} {flag}", cwd=there)
    s.whole(s.runs / "r")


@kind
def another_precision(s: Shell) -> None:
    s.run("--devices", "cpu")
    said = s.run("--devices", "cpu", "--resume", "--precision", "bfloat16", code=2).stderr
    if "--precision was float32, is now bfloat16" not in said or "computes all anew" not in said:
        s.wrong(f"the flag or its price is not named: {said[-300:]}")
    s.run("--resume")


@kind
def a_model_that_cannot_be_had(s: Shell) -> None:
    said = s.ours(*s.words(roster="one,hf:org/none"), "--offline", code=5).stderr
    flag = told(s, said, r"add (--allow-missing) to deliver")
    s.paste(f"{line_of(s.words(roster='one,hf:org/none'))} --offline {flag}", (1,), says="org/none")
    s.whole(s.runs / "r")


@kind
def too_much_that_is_refused(s: Shell) -> None:
    builders.corpus(s.chunks, {"Docs": {"a_chunks.json": [*s.texts, *[{"text": " "}] * 9]}})
    said = s.run(code=1).stderr
    flag = told(s, said, r"allow it with (--max-refused(?: [\w%,]+)?)")
    s.paste(f"{line_of(s.words('--resume'))} {flag if ' ' in flag else f'{flag} 20%'}")
    s.whole(s.runs / "r")


# Stores and other places.


@kind
def a_run_without_a_store(s: Shell) -> None:
    s.run()
    said = s.ours("search", s.typed(s.runs / "r"), QUESTION, "--config", s.typed(s.config), code=2).stderr
    s.paste(s.between(said, "`", "`"))
    s.ours("search", "store", QUESTION, "--config", s.typed(s.config))
    said = s.ours("prune", s.typed(s.runs / "r"), code=2).stderr
    s.paste(s.between(said, "make one: `", "`"))


@kind
def a_store_of_several_collections(s: Shell) -> None:
    builders.corpus(s.chunks, {"More": {"b.jsonl": builders.sentences(9, start=500)}})
    s.run("--qdrant", "./my store")
    ask = ["search", "./my store", s.texts[3], "--limit", 3]
    said = s.ours(*ask, code=2).stderr
    flag, names = told(s, said, r"choose one with (--collection)"), told(s, said, r"--collection \((.*?)\)")
    for name in names.split(", "):
        s.paste(f"{line_of(ask)} {flag} {name}", says="  1. ")
    said = s.ours("search", "./my store/docs", s.texts[3], code=2).stderr
    place, flag = told(s, said, r"name (.*?), with"), told(s, said, r"with (--collection \w+)")
    s.paste(f"interlock search {shlex.quote(place)} {shlex.quote(s.texts[3])} {flag}", says="  1. ")


@kind
def token_vectors_that_a_store_lacks(s: Shell) -> None:
    s.run("--qdrant", "./my store")
    ask = ["search", "./my store", s.texts[3], "--rerank", "maxsim"]
    line = s.between(s.ours(*ask, code=2).stderr, "write a store anew with `", "`")
    flag = line.rpartition(" --")[2].replace("MODEL", "one")
    s.paste(f"{line_of(s.words('--qdrant', './other', name='b'))} --{flag}")
    s.paste(line_of(["search", "./other", s.texts[3], "--rerank", "maxsim"]), says="  1. ")


@kind
def documents(s: Shell) -> None:
    pages = s.home / "my pages"
    pages.mkdir()
    (pages / "a.md").write_text("# A head\n\n" + "some words of a page. " * 60)
    said = s.ours("run", s.typed(pages), "--no-ui", code=2).stderr
    more = f" --config {shlex.quote(s.typed(s.config))} --roster one,two --tokens 32"
    done = s.paste(s.between(said, "`", "`") + more)
    s.paste(s.between(done.stdout, "next: ", "\n") + " --no-ui", says="DONE")
    s.paste("interlock search store 'some words'", says="  1. ")


@kind
def a_bundle_that_is_none(s: Shell) -> None:
    (s.home / "empty").mkdir()
    said = s.run("--models", "empty", code=2).stderr
    line = s.between(f"{said} ", "`", "`")
    s.paste(f"{line} ./b one two --config {shlex.quote(s.typed(s.config))}")
    s.run("--models", "./b", "--offline")


@kind
def a_variable_that_is_no_setting(s: Shell) -> None:
    line = s.between(s.run(code=2, INTERLOCK_CIELING="3GiB").stderr, "`", "`")
    s.paste(line, says="INTERLOCK_CEILING" if "env" in line else "ceiling")


@kind
def the_end_of_an_export(s: Shell) -> None:
    s.run(code=0)
    ours = ["export", s.typed(s.runs / "r")]
    said = s.ours(*ours, code=2).stderr
    for flag, place in ((r"(--to)\b", "./files"), (r"(--to-store)", "./st ore")):
        s.paste(f"{line_of(ours)} {told(s, said, flag)} {shlex.quote(place)}")
    rows = len(np.load(s.home / "files" / "Docs" / "fused.npy"))
    if rows != len(s.texts):
        s.wrong(f"{rows} rows of {len(s.texts)}")
    s.paste(f"interlock search './st ore' {shlex.quote(s.texts[1])}", says="  1. ")


@kind
def examples_of_help(s: Shell) -> None:
    """In a directory that has what they name: chunks, a handbook, a run and a store."""
    run = "20261121-120000"
    for name in ("one", "two"):
        (s.home / name).symlink_to(s.shared / name)
    builders.corpus(s.home / "chunks", {"Handbook": {"a_chunks.json": s.texts}})
    (s.home / "handbook").mkdir()
    (s.home / "handbook" / "a.md").write_text("some words of a page. " * 9)
    (s.home / "questions.txt").write_text("how\nwhat\n")
    (s.home / "chunks.txt").write_text("how\nwhat\n")
    env = {"INTERLOCK_ROSTER": "./one,./two"}
    s.ours("run", "chunks", "--run-id", run, "--qdrant", "store", "--no-ui", **env)
    for command in ("run", "export", "encode", "view", "ctl", "search", "upload", "chunk", "watch"):
        said = s.ours(command, "--help").stdout.replace("\\\n", "")
        for line in re.findall(r"^  (interlock .*)", said, re.M):
            reason = next((why for why, part in SKIPPED.items() if part in line), "")
            s.report.tried[f"help, not tried: {reason}"] += bool(reason)
            if not reason:
                more = " --no-ui" if command == "run" or " run " in line else ""
                line = line.split("  #")[0].partition(" | ")[0] + more
                more = " --tokens 64" if " chunk " in line else ""
                s.paste(line + more, OTHERWISE.get(line.split()[1], (0,)), **env)


SKIPPED = {
    "a server": "http", "a model of the hub": "bge-m3", "a run of another name": "runs/before",
    "a screen": "interlock watch", "a filter of their own": "--filter",
}  # fmt: skip
"""Examples that need what no trial has."""
OTHERWISE = {"ctl": (1,)}
"""Who pauses a run that is over is told so."""


@kind
def python(s: Shell) -> None:
    """What an error names in Python, as its argument."""
    models = {name: {"source": str(s.shared / name)} for name in ("one", "two")}
    head = f"import interlock\nM = {models!r}\n"
    call = (
        "S = interlock.Settings(roster=['one', 'two'], models=M, out={!r}{})\n"
        "run = interlock.embed({!r}, S, progress='none')\n"
    )

    def script(more: str, tail: str = "") -> str:
        return head + call.format(str(s.runs), more, str(s.chunks)) + tail

    def python(text: str, code: int = 0) -> str:
        (s.home / "it.py").write_text(text)
        done = s.do(f"{shlex.quote(sys.executable)} it.py")
        if (done.returncode != 0) != bool(code):
            raise RuntimeError(f"exit {done.returncode}: {done.stderr[-400:]}")
        s.report.tried["pasted: python"] += 1
        return done.stdout + done.stderr

    said = python(script("", "interlock.search(run, 'a question')\n"), 1)
    told(s, said, r"(qdrant)")
    said = python(script(", qdrant='my store'", "print(len(interlock.search(run, 'a question', limit=3)))\n"))
    if said.strip().splitlines()[-1] != "3":
        s.wrong(f"a store that was asked for gives: {said[-200:]}")
    argument = told(s, python(script(", devices='cuda'"), 1), r"use (devices='cpu')")
    python(script(f", {argument}"))


CAMPAIGN = Campaign(
    "flags", kind.trial, 2 * len(kind), "flags that refusals name, and examples of help, as they are printed"
)
