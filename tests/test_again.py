"""Who computes the same chunks by the same models again is told of the run that has them, before the first batch."""

import json
import os
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import interlock as product
from interlock.console.sources.again import begun_before
from interlock.engine.settings import load
from tests.builders import corpus, interlock, sentences


@pytest.fixture(scope="module")
def original(tmp_path_factory, tiny_a, tiny_b):
    home = tmp_path_factory.mktemp("again")
    corpus(home / "in", {"Docs": {"a.jsonl": sentences(12)}})
    interlock("run", "in", "--roster", f"{tiny_a}=1,{tiny_b}=3", "--run-id", "one", "--export", "npy", cwd=home)
    return home


@pytest.fixture
def home(original, tmp_path, monkeypatch):
    shutil.copytree(original / "runs", tmp_path / "runs")
    shutil.copytree(original / "in", tmp_path / "in")
    inputs = tmp_path / "runs" / "one" / "run.json"
    inputs.write_text(inputs.read_text().replace(str(original / "in"), str(tmp_path / "in")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def cut(run: Path) -> None:
    """Take the end of a run from its journal, as a kill does."""
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run / "journal.jsonl").write_bytes(b"".join(lines[:-1]))


def test_a_complete_run_is_told_before_one_that_is_not_whatever_came_last(home, tiny_a, tiny_b):
    asked = load({"roster": f"{tiny_a}=1,{tiny_b}=3"}, {})
    path = home / "runs" / "one"
    assert f"--reuse {asked.settings.out / 'one'} " in begun_before(home / "in", asked)
    shutil.copytree(path, home / "runs" / "two")
    cut(home / "runs" / "two")
    os.utime(home / "runs" / "two" / "journal.jsonl")
    assert f"--reuse {asked.settings.out / 'one'} " in begun_before(home / "in", asked)
    cut(path)
    os.utime(home / "runs" / "two" / "journal.jsonl", (2e9, 2e9))
    told = begun_before(home / "in", asked)
    assert told.startswith("run two ") and told.endswith("continue it with --run-id two --resume")
    (home / "runs" / "two" / "run.json").write_text("{")
    assert begun_before(home / "in", asked).startswith("run one ")


def test_other_chunks_models_weights_or_fusions_are_no_such_run_and_neither_is_one_that_goes_on(home, tiny_a, tiny_b):
    own = {"roster": f"{tiny_a}=1,{tiny_b}=3"}
    assert begun_before(home / "in", load(own, {}))
    for other in (
        {"roster": f"{tiny_a}=1,{tiny_b}=2"}, {"roster": f"{tiny_b}=3,{tiny_a}=1"}, {"roster": str(tiny_a)},
        {"roster": "nobody"}, {"fusion": "named"}, {"out": "elsewhere"}, {"resume": True}, {"reuse": "runs/one"},
    ):  # fmt: skip
        assert begun_before(home / "in", load(own | other, {})) == "", other
    assert begun_before(home, load(own, {})) == ""


def weights(run):
    return [each["weight"] for each in json.loads((run.path / "run.json").read_text())["roster"]]


def test_vectors_of_a_run_at_other_weights_are_taken_by_one_that_is_given_none(home, tiny_a, tiny_b):
    rows = {"a": {"quality": 50}, "b": {"quality": 60}}
    rows = {name: {"source": str(place)} | rows[name] for name, place in (("a", tiny_a), ("b", tiny_b))}
    first = product.embed("in", product.Settings(roster="a=1,b=1", models=rows, export=["npy"]), progress="none")
    later = product.embed("in", product.Settings(roster="a,b", models=rows, export=["npy"]), progress="none")
    assert weights(first) == [0.5, 0.5]
    assert weights(later) == pytest.approx([0.3, 0.7])
    assert later.id != first.id and not [each for one in later.summary.collections for each in one.leases]


def test_models_without_weights_are_delivered_into_a_store_at_those_that_it_was_written_with(home, tiny_a, tiny_b):
    rows = {
        name: {"source": str(place), "quality": quality}
        for name, place, quality in (("a", tiny_a, 50), ("b", tiny_b, 60))
    }
    settings = product.Settings(models=rows, qdrant="store", export=[], resume=False)
    product.embed("in", replace(settings, roster="a=1,b=1"), progress="none")
    corpus(home / "in", {"Docs": {"b.jsonl": sentences(15)[12:]}})
    run = product.embed("in", replace(settings, roster="a,b"), progress="none")
    assert run.summary.status == "completed" and weights(run) == [0.5, 0.5]
    (manifest,) = (home / "store").glob("*/manifest.json")
    assert [each["weight"] for each in json.loads(manifest.read_text())["models"]] == [0.5, 0.5]
    fresh = product.embed("in", replace(settings, roster="a,b", qdrant="other"), progress="none")
    assert weights(fresh) == pytest.approx([0.3, 0.7])


def test_the_command_says_it_in_a_line_and_computes_anew(home, tiny_a, tiny_b):
    said = interlock("run", "in", "--roster", f"{tiny_a}=1,{tiny_b}=3", "--run-id", "two", "--export", "npy", cwd=home)
    lines = said.stderr.splitlines()
    at, last = (at for at, line in enumerate(lines) if "--reuse" in line)
    assert "run one has these chunks by these models: use --reuse " in lines[at]
    assert at < next(at for at, line in enumerate(lines) if "lease L001" in line) < last
    words = shlex.split(re.search(r"`interlock (.*)`$", lines[last])[1])
    assert not [line for line in interlock(*words, cwd=home).stderr.splitlines() if "lease L001" in line]


def test_it_is_not_said_to_who_is_refused(home, tiny_a, tiny_b):
    words = ("run", "in", "--roster", f"{tiny_a}=1,{tiny_b}=3", "--title-field", "none", "--export", "npy")
    said = interlock(*words, cwd=home, check=2).stderr
    assert "--title-field" in said and "--reuse" not in said and "started" not in said


def test_a_run_that_goes_on_takes_no_vectors_of_another_and_says_so(home):
    said = interlock("run", "in", "--reuse", "runs/one", "--resume", cwd=home, check=2).stderr
    assert "--reuse runs/one is for a run that begins, and --resume continues run one: drop --resume " in said


def test_a_call_that_is_made_again_goes_on_with_its_run_whether_that_was_completed_or_cut(home, tiny_a, tiny_b, capfd):
    shutil.rmtree(home / "runs")
    settings = product.Settings(roster={tiny_a: 1, tiny_b: 3}, export=["npy"])
    first = product.embed("in", settings, progress="none")
    files = {path: path.read_bytes() for path in (first.path / "exports").rglob("*.npy")}
    for began in ("has these chunks", "has these chunks", "has part of these chunks"):
        if "part" in began:
            cut(first.path)
        run, lines = product.embed("in", settings, progress="lines"), capfd.readouterr().err.splitlines()
        told = f"interlock: run {first.id} {began} by these models: going on with it; "
        assert f"{told}Settings(resume=False) computes all anew" in lines
        assert run.id == first.id and run.summary.status == "completed" and not [x for x in lines if "lease L" in x]
    assert files and all(path.read_bytes() == content for path, content in files.items())


def test_a_call_with_other_chunks_or_settings_takes_the_vectors_into_a_run_of_its_own(home, tiny_a, tiny_b, capfd):
    settings = product.Settings(roster={tiny_a: 1, tiny_b: 3}, export=["npy"], threads=1)
    for change in ("threads", "chunks"):
        if change == "chunks":
            corpus(home / "in", {"Docs": {"a.jsonl": [*sentences(12), "one more"]}})
        run, lines = product.embed("in", settings, progress="lines"), capfd.readouterr().err.splitlines()
        assert [line for line in lines if "taking its vectors" in line] and run.id != "one"
        texts = [re.search(r", (\d+) texts? in", line)[1] for line in lines if "lease L" in line and " in " in line]
        assert texts == ["1", "1"] * (change == "chunks"), lines
    assert len([*(home / "runs").iterdir()]) == 3


def test_texts_in_memory_that_changed_take_the_vectors_of_those_that_did_not(tmp_path, tiny_a, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    settings, texts = product.Settings(roster=[tiny_a], export=["npy"]), sentences(12)
    first = product.embed(texts, settings, progress="none", name="News")
    for name, computed in (("News", "1"), ("Else", "12")):
        run = product.embed([*texts[:11], "another"], settings, progress="lines", name=name)
        said = capfd.readouterr().err
        told = f"interlock: run {first.id} has other texts of this name: taking its vectors; "
        assert (told in said) == (name == "News") and run.id != first.id
        assert re.findall(r"lease L.*, (\d+) texts? in", said) == [computed]


def test_a_call_that_is_refused_says_nothing_of_vectors_that_it_would_take(home, tiny_a, tiny_b, capfd):
    settings = product.Settings(roster={tiny_a: 1, tiny_b: 3}, title_field="none")
    with pytest.raises(product.UsageError, match="title_field"):
        product.embed("in", settings, progress="lines")
    assert "taking its vectors" not in capfd.readouterr().err


def test_a_call_that_says_not_to_resume_computes_anew_and_one_that_is_silent_says_nothing(home, tiny_a, tiny_b, capfd):
    settings = product.Settings(roster={tiny_a: 1, tiny_b: 3}, export=["npy"], resume=False)
    product.embed("in", settings, progress="lines")
    said = capfd.readouterr().err
    assert said.count("12 texts in 1 batch") == 2 and "by these models" not in said
    product.embed("in", replace(settings, resume=None), progress="none")
    assert capfd.readouterr().err == ""
