"""Who computes the same chunks by the same models again is told of the run that has them, before the first batch."""

import os
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

import interlock as product
from interlock.console.sources.again import begun_before
from interlock.engine.record.rundir import RunDirectory
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


def test_the_command_says_it_in_a_line_and_python_warns_and_both_go_on(home, tiny_a, tiny_b):
    said = interlock("run", "in", "--roster", f"{tiny_a}=1,{tiny_b}=3", "--run-id", "two", "--export", "npy", cwd=home)
    lines = said.stderr.splitlines()
    (at,) = (at for at, line in enumerate(lines) if "--reuse" in line)
    assert "run one has these chunks by these models: use --reuse " in lines[at]
    assert at < next(at for at, line in enumerate(lines) if "lease L001" in line)
    settings = product.Settings(roster={tiny_a: 1, tiny_b: 3}, export=["npy"], run_id="three")
    with pytest.warns(RuntimeWarning, match="these chunks by these models: use reuse='") as told:
        product.embed("in", settings, progress="none")
    assert Path(told[0].filename) == Path(__file__)
    again = replace(settings, run_id="four", reuse=home / "runs" / "one")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = product.embed("in", again, progress="none")
    assert RunDirectory(run.path).inputs()["roster"] == RunDirectory(home / "runs" / "one").inputs()["roster"]
