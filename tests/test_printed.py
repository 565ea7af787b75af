"""Every command that is printed does what it says when it is pasted into a shell, in each kind of run."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from interlock.engine.record.facts import Setting
from interlock.engine.record.inputs import resume_words
from interlock.engine.record.words import command, drawn, safe
from tests.builders import corpus, environment, interlock, nearest_others, sentences, start, tiny_model, toml
from tests.edge_bridge import serving
from tests.uploads import bridged
from tests.warm import asking

ENDS = ("--devices", "sim:1xT4", "--faults", "lose:60", "--no-ui")
"""The only GPU goes, and the run stops."""


def directory_of(place, script):
    """A directory with the command as a shell finds it: the script as a program of this Python."""
    (place / "script").write_text(script)
    line = shlex.join([sys.executable, "-IS", str(place / "script")]) if script else f"{sys.executable} -m interlock"
    (place / "interlock").write_text(f'#!/bin/sh\nexec {line} "$@"\n')
    (place / "interlock").chmod(0o755)
    return place


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two models, and the file that names them."""
    home = tmp_path_factory.mktemp("models")
    made = {"mean": tiny_model(home / "mean", seed=21), "cls": tiny_model(home / "cls", seed=22, pooling="cls")}
    toml(home / "interlock.toml", {name: {"source": str(path), "batch_tokens": 96} for name, path in made.items()})
    return home


@pytest.fixture
def pasted(tmp_path_factory, tmp_path):
    """What a line came to in a shell; what it begins is a fork, unless it is to be `begun` as a user does it."""

    def paste(line, cwd=tmp_path, begun=False, **more):
        script, connection = ("", 0) if begun else asking()
        bin = directory_of(tmp_path_factory.mktemp("bin"), script)
        env = environment(more) | {"PATH": f"{bin}:{os.environ['PATH']}"}
        how = {"env": env, "capture_output": True, "text": True, "timeout": 120, "pass_fds": [connection]}
        return subprocess.run(["bash", "-c", line], cwd=cwd, **how)

    return paste


@pytest.fixture
def chunks(tmp_path):
    return corpus(tmp_path / "my chunks", {"Docs": {"a_chunks.json": sentences(60)}})


def named(said, word="--resume"):
    """The commands that a text names, whatever stands before them."""
    found = re.findall(r"(?:^|[ `(])(interlock (?:[^`\n]*))", said, re.M)
    return [each for each in found if word in each]


def next_of(said, word="--resume"):
    return next(line.removeprefix("next: ") for line in said.splitlines() if line.startswith("next: ") and word in line)


def test_words_of_any_signs_are_quoted_so_that_a_terminal_and_a_shell_take_them():
    odd = [
        "plain",
        "two words",
        "it's",
        '"',
        "$HOME",
        "a\nb",
        "\x1b[31m",
        "é",
        "日本",
        "-x",
        "",
        "\u202e",
        "'\n\\",
        "🇩🇪",
    ]
    line = command(odd)
    assert safe(line, 9999) == line
    said = subprocess.run(["bash", "-c", f'interlock() {{ printf "%s\\0" "$@"; }}; {line}'], capture_output=True)
    assert said.stdout.decode().split("\0")[:-1] == odd


def test_a_run_whose_models_a_file_names_goes_on_by_the_file(pasted, chunks, models, tmp_path):
    words = ("--config", models / "interlock.toml", "--roster", "mean", *ENDS)
    said = interlock("run", chunks, *words, "--run-id", "r", cwd=tmp_path, check=4)
    done = pasted(next_of(said.stderr), begun=True)
    assert done.returncode in (0, 4), done.stderr
    if done.returncode == 0:
        assert pasted(next_of(done.stderr, "view")).returncode == 0


@pytest.mark.parametrize("name", ["a b", "it's", "ünï-日本", "$HOME", "-dash", "~"])
def test_a_model_a_run_and_a_place_of_any_name_go_on(pasted, tmp_path, name):
    here = tmp_path / name
    chunks = corpus(here / f"{name} chunks", {"Docs": {"a_chunks.json": sentences(60)}})
    model = tiny_model(here / f"{name} model", seed=1)
    place = f"./{name}" if name.startswith("-") else name
    named = model if name == "~" else f"./{place}/{name} model"  # of a model's source `./~` is a home
    said = interlock("run", chunks, "--roster", named, "--out", f"./{place}/runs", *ENDS, cwd=tmp_path, check=4)
    assert model.exists()
    done = pasted(next_of(said.stderr))
    assert done.returncode in (0, 4), done.stderr
    assert pasted(next_of(said.stderr, "view")).returncode == 0


def test_what_a_run_was_begun_with_goes_before_the_file_and_the_environment_and_that_is_told(
    pasted, chunks, models, tmp_path
):
    file = toml(tmp_path / "other.toml", {})
    file.write_text('roster = "all-minilm-l6"\nceiling = "8GiB"\n')
    said = interlock("run", chunks, "--roster", models / "mean", *ENDS, "--config", file, cwd=tmp_path, check=4)
    done = pasted(next_of(said.stderr), INTERLOCK_FUSION="mean", INTERLOCK_ROSTER="bge-m3", INTERLOCK_THREADS="3")
    assert done.returncode in (0, 4), done.stderr
    assert "environment INTERLOCK_ROSTER: roster is not taken" in done.stderr
    assert "ceiling is not taken" not in done.stderr  # it is the run's


def test_a_run_that_was_killed_says_from_anywhere_how_it_goes_on(pasted, chunks, models, tmp_path):
    words = ("--config", "interlock.toml", "--roster", "mean,cls", "--devices", "cpu", "--no-ui")
    shutil.copy(models / "interlock.toml", tmp_path)
    process = start("run", "my chunks", *words, "--run-id", "r", cwd=tmp_path)
    journal = tmp_path / "runs" / "r" / "journal.jsonl"
    while not (journal.exists() and b"run_started" in journal.read_bytes()):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (tmp_path / "runs" / "r" / "summary.json").unlink(missing_ok=True)
    view = pasted("interlock view runs/r")
    (line,) = named(view.stderr)
    again = line.rpartition(", or watch it with ")[0]
    assert view.returncode == 2 and again
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (told,) = named(pasted(f"interlock ctl {journal.parent} status", cwd=elsewhere).stdout)
    done = pasted(told, cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert pasted(again).returncode == 0
    assert pasted(next_of(done.stderr, "view"), cwd=elsewhere).returncode == 0


def test_a_directory_that_was_moved_with_all_that_is_beside_it_goes_on_where_it_is(pasted, models, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new place"
    corpus(old / "chunks", {"Docs": {"a_chunks.json": sentences(60)}})
    shutil.copy(models / "interlock.toml", old)
    words = ("--config", "interlock.toml", "--roster", "mean", "--qdrant", "store", *ENDS)
    interlock("run", "chunks", *words, "--run-id", "r", cwd=old, check=4)
    old.rename(new)
    (new / "runs" / "r").rename(new / "runs" / "r of today")
    shutil.copytree(new / "runs" / "r of today", new / "runs" / "r")
    for name in ("r", "r of today"):
        (told,) = named(pasted(f"interlock ctl {shlex.quote(str(new / 'runs' / name))} status").stdout)
        done = pasted(told)
        assert done.returncode in (0, 4), done.stderr


def test_a_run_from_a_bundle_and_its_store_are_used_with_the_bundle(pasted, chunks, models, tmp_path):
    toml(tmp_path / "one.toml", {"mean": {"source": str(models / "mean")}})
    interlock("models", "bundle", "my bundle", "mean", "--config", "one.toml", cwd=tmp_path)
    words = ("--models", "my bundle", "--config", "one.toml", "--roster", "mean", "--offline", "--qdrant", "store")
    begun = interlock("run", chunks, *words, *ENDS, cwd=tmp_path, check=4)
    line = next_of(begun.stderr)
    assert "--models" in line and "--offline" in line
    done = pasted(line + " --devices sim:1xT4 --faults ''")
    assert done.returncode == 0, done.stderr
    found = pasted(next_of(done.stderr, "search"))
    assert found.returncode == 0 and "1. " in found.stdout, found.stderr


def test_a_run_that_was_to_be_uploaded_goes_on_so(pasted, chunks, models, tmp_path):
    words = ("--config", models / "interlock.toml", "--roster", "mean", *ENDS)
    with bridged(tmp_path / "bridge") as bridge, serving(bridge) as url:
        said = interlock("run", chunks, *words, "--qdrant", url, cwd=tmp_path, check=4)
    assert shlex.split(next_of(said.stderr))[-2:] == ["--qdrant", url]


def test_what_a_session_needs_and_a_run_does_not_keep_is_said_again():
    config = {
        "config": Setting("/a/my file.toml", "flag --config"),
        "models": Setting("/a/bundle", "flag --models"),
        "cluster": Setting("local:2", "flag --cluster"),
        "allow_pickle": Setting(["one", "two"], "flag --allow-pickle"),
        "offline": Setting(True, "file /a/my file.toml"),
        "strict": Setting(False, "default"),
        "warm": Setting(0, "flag --warm"),
        "deadline": Setting("8h30m,export", "environment INTERLOCK_DEADLINE"),
        "out": Setting("/r", "default"),
        "metrics": Setting("9464", "flag --metrics"),
        "notify": Setting("/bin/mail 'me {run}'", "flag --notify"),
    }
    words = resume_words("/c", Path("/r/x"), config)
    wanted = "run /c --config '/a/my file.toml' --models /a/bundle --cluster local:2 --warm 0 --allow-pickle one,two"
    onward = ["--metrics", "9464", "--notify", "/bin/mail 'me {run}'"]
    ended = ["--deadline", "8h30m,export", "--out", "/r", "--run-id", "x", "--resume"]
    assert words == [*shlex.split(wanted), *ended, *onward]
    config["deadline"] = Setting("17:45", "flag --deadline")  # that is another one tomorrow
    assert "--deadline" not in resume_words("/c", Path("/r/x"), config)


@pytest.mark.nightly
def test_a_rehearsal_says_what_goes_on_and_what_shows_it(pasted, tmp_path):
    said = interlock("demo", "--scripted", "--speed", 1000, "--no-ui", cwd=tmp_path, check=None, timeout=300)
    for line in said.stderr.splitlines():
        if line.startswith("next: "):
            assert pasted(line.removeprefix("next: ")).returncode in (0, 1, 3), line


def test_the_commands_of_one_that_is_in_use_name_it(pasted, chunks, models, tmp_path):
    words = ("--config", models / "interlock.toml", "--roster", "mean,cls", "--devices", "cpu", "--run-id", "r")
    where = ("--out", tmp_path / "the runs", "--no-ui")
    process = start("run", chunks, *words, *where, cwd=tmp_path)
    journal = tmp_path / "the runs" / "r" / "journal.jsonl"
    try:
        while not (journal.exists() and journal.stat().st_size):
            time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        said = interlock("run", chunks, *words, *where, "--resume", cwd=tmp_path, check=2)
        line = re.search(r"\((interlock ctl .* status)\)", said.stderr)[1]
        assert pasted(line).returncode == 0
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def between(said, before, after="`"):
    """What stands there in a message."""
    return said.partition(before)[2].partition(after)[0]


def test_points_that_left_the_corpus_are_removed_by_the_command_that_the_run_and_a_search_print(
    pasted, models, tmp_path
):
    words = ("--config", models / "interlock.toml", "--roster", "mean", "--qdrant", "./-my store", "--no-ui")
    for name, texts in {"one": sentences(20), "two": sentences(18)}.items():
        corpus(tmp_path / "in", {"Docs": {"a_chunks.json": texts}})
        said = interlock("run", "in", *words, "--run-id", name, cwd=tmp_path).stderr
    found = interlock("search", "./-my store", sentences(20)[19], "--limit", 20, cwd=tmp_path).stderr
    (line,) = {between(each, "interlock prune ", "` removes") for each in (said, found)}
    assert "2 of 20 points removed" in pasted(f"interlock prune {line}").stdout


def test_weights_of_a_judged_run_are_taken_with_the_models_as_its_own_file_has_them(pasted, models, tmp_path):
    rows = {name: {"source": str(models / model)} for name, model in {"one": "mean", "two": "cls"}.items()}
    prompts = dict.fromkeys(("document_prompt", "query_prompt"), "the \U0001f600\x7f ")
    toml(tmp_path / "own.toml", {"one": {**rows["one"], **prompts}, "two": rows["two"]})
    records = [{"text": text, "metadata": {"chunk_id": f"c{n}"}} for n, text in enumerate(sentences(60))]
    corpus(tmp_path / "in", {"Docs": {"a_chunks.json": records}})
    queries = [json.dumps({"_id": f"q{n}", "text": each["text"]}) for n, each in enumerate(records)]
    (tmp_path / "q.jsonl").write_text("\n".join(queries))
    interlock("run", "in", "--config", "own.toml", "--roster", "two=9,one", "--run-id", "r", "--no-ui", cwd=tmp_path)
    answers = nearest_others(np.load(tmp_path / "runs" / "r" / "exports" / "Docs" / "one.npy"))
    grades = "".join(f"q{n}\tc{answer}\t1\n" for n, answer in enumerate(answers))
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + grades)
    judged = ("--queries", "q.jsonl", "--qrels", "qrels.tsv", "--calibrate", "my weights.toml")
    said = interlock("eval", "runs/r", *judged, cwd=tmp_path).stdout
    assert pasted(next_of(said, "--config")).returncode == 0
    (new,) = {*(tmp_path / "runs").iterdir()} - {tmp_path / "runs" / "r"}
    prompts = [
        {each["model"]: each["document_prompt"] for each in json.loads((run / "run.json").read_text())["roster"]}
        for run in (new, tmp_path / "runs" / "r")
    ]
    assert prompts[0] and prompts[0].items() <= prompts[1].items()


def test_a_run_of_models_of_a_file_that_is_resumed_without_it_names_the_file_from_any_directory(
    pasted, models, tmp_path
):
    toml(tmp_path / "it's mine.toml", {"one": {"source": str(models / "mean")}})
    corpus(tmp_path / "in", {"Docs": {"a_chunks.json": sentences(9)}})
    words = ("--config", "./it's mine.toml", "--roster", "one", "--run-id", "r", "--no-ui")
    interlock("run", "in", *words, cwd=tmp_path)
    resumed = ("run", "../in", "--out", "../runs", "--run-id", "r", "--resume", "--no-ui")
    (tmp_path / "else where").mkdir()
    said = interlock(*resumed, cwd=tmp_path / "else where", check=2).stderr
    flag = between(said, "run r was started with ", ": add it")
    assert pasted(f"cd 'else where' && {command(resumed)} {flag}").returncode == 0


def test_a_run_without_a_model_is_made_whole_by_the_command_that_its_export_prints(pasted, models, tmp_path):
    late = tmp_path / "a model"
    toml(tmp_path / "own.toml", {"one": {"source": str(models / "mean")}, "late": {"source": str(late)}})
    corpus(tmp_path / "in", {"Docs": {"a_chunks.json": sentences(9)}})
    words = ("--config", "own.toml", "--roster", "one,late", "--out", "my runs", "--run-id", "r", "--allow-missing")
    interlock("run", "in", *words, "--no-ui", cwd=tmp_path, check=1)
    said = interlock("export", "my runs/r", "--to", "files", cwd=tmp_path, check=2).stderr
    shutil.copytree(models / "cls", late)
    assert pasted(between(said, "first (`")).returncode == 0
    interlock("export", "my runs/r", "--to", "files", cwd=tmp_path)


def test_chunks_that_changed_are_embedded_by_the_flag_that_is_printed(pasted, chunks, models, tmp_path):
    words = ["run", chunks, "--config", models / "interlock.toml", "--roster", "mean", "--out", "my runs", "--no-ui"]
    interlock(*words, "--run-id", "r", cwd=tmp_path)
    corpus(chunks, {"Docs": {"a_chunks.json": sentences(61)}})
    said = interlock(*words, "--run-id", "r", "--resume", cwd=tmp_path, check=2).stderr
    flag = between(said, "start a new run with ", " (unchanged")
    assert pasted(f"{command([*map(str, words), '--run-id', 'n'])} {flag}").returncode == 0
    journal = (tmp_path / "my runs" / "n" / "journal.jsonl").read_text()
    assert [line for line in journal.splitlines() if '"rows_reused"' in line and '"rows":60' in line]


def test_a_command_with_paths_of_any_length_is_printed_whole(pasted, chunks, models, tmp_path):
    deep = tmp_path.joinpath(*["deep" * 12] * 24)
    deep.mkdir(parents=True)
    words = ("--config", models / "interlock.toml", "--roster", "mean", "--out", deep, "--run-id", "r", *ENDS)
    said = interlock("run", chunks, *words, cwd=tmp_path, check=4)
    told = pasted(f"interlock ctl {deep}/r status").stdout
    assert named(told)[0].strip() == next_of(said.stderr)
    assert pasted(named(told)[0]).returncode in (0, 4)


def test_letters_are_joined_as_their_writers_join_them_and_only_what_steers_is_escaped():
    written = "می\u200cخواهم क्\u200dष soft\u00adhyphen ❤\ufe0f 🇩🇪"
    assert safe(written) == written
    assert safe("a\u202eb\x1b[2J\x07\u2028c\ufeff") == "a\\u202eb\\x1b[2J\\x07\\u2028c\\ufeff"


def test_what_is_drawn_takes_the_same_cells_on_every_terminal():
    from rich.cells import cell_len
    from wcwidth import wcwidth

    from interlock.widgets.text import fit

    for text in (
        "❤\ufe0f love",
        "🇩🇪 flags",
        "👨\u200d👩\u200d👧",
        "1\ufe0f\u20e3",
        "soft\u00adhyphen",
        "می\u200cخواهم",
        "👍🏽",
    ):
        shown = drawn(text)
        assert cell_len(shown) == sum(map(wcwidth, shown)), text
        assert sum(map(wcwidth, fit(text, 30))) == 30
