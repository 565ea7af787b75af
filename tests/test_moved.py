"""A run that was stopped, moved with all that belongs to it, and resumed there ends with the same bytes."""

import shutil
from pathlib import Path

import pytest

import interlock
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode
from interlock.engine.flows.run import Run
from interlock.engine.record import events as ev
from interlock.engine.record.inputs import moved
from interlock.engine.settings import load
from tests.builders import corpus, events_of, sentences, tiny_model
from tests.clocks import Clock

CHUNKS = Path("chunks")
ASKED = {"roster": "./models/one,./models/two", "devices": "cpu", "qdrant": "store", "out": "runs", "run_id": "r"}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chunks and models in one directory."""
    place = tmp_path_factory.mktemp("stage")
    tiny_model(place / "models" / "one", seed=1)
    tiny_model(place / "models" / "two", seed=2, kind="mpnet", width=48, layers=1, pooling="cls")
    texts = {"Early": {"a_chunks.json": sentences(30)}, "Late": {"b_chunks.json": sentences(50, 12, start=100)}}
    corpus(place / CHUNKS, texts)
    return place


def session(**flags: str) -> ExitCode:
    return Run(CHUNKS, load(flags, {}), Controls(), Clock().backend).go()


def exports(run: Path) -> dict[str, str]:
    return {each.path: each.sha256 for each in events_of(run, ev.ArtefactWritten)}


@pytest.fixture(scope="module")
def whole(stage: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run in one go, in a copy of the directory."""
    place = tmp_path_factory.mktemp("whole") / "there"
    shutil.copytree(stage, place)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        assert session(**ASKED) == ExitCode.COMPLETED
    return place / "runs" / "r"


@pytest.fixture
def stopped(stage: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run in a copy of the directory, with a deadline after some of its batches."""
    shutil.copytree(stage, tmp_path / "before")
    monkeypatch.chdir(tmp_path / "before")
    batches = events_of(whole, ev.BatchCommitted)
    # Time for the first batch, of which nothing is known, and for no other.
    assert session(**ASKED, deadline=f"{batches[0].seconds + 31:.0f}s") == ExitCode.STOPPED
    assert 0 < len(events_of(tmp_path / "before" / "runs" / "r", ev.BatchCommitted)) < len(batches)
    return tmp_path / "before"


@pytest.mark.parametrize("named", [{}, {"run_id": "r"}], ids=["newest", "named"])
def test_a_run_that_is_moved_with_chunks_models_and_store_is_resumed_there(stopped, whole, named, monkeypatch):
    after = stopped.with_name("after")
    monkeypatch.chdir(stopped.parent)
    stopped.rename(after)
    monkeypatch.chdir(after)
    assert session(out="runs", resume="yes", **named) == ExitCode.COMPLETED
    assert [path.name for path in (after / "runs").iterdir()] == ["r"]
    assert exports(after / "runs" / "r") == exports(whole)
    assert sorted(path.name for path in (after / "store").iterdir()) == ["early", "late"]
    assert not stopped.exists()
    run = interlock.open_run("runs/r")
    assert run.summary.configuration["qdrant"].value == str(after / "store")


def test_a_copy_leaves_the_store_of_what_it_is_a_copy_of_alone(stopped, whole, monkeypatch):
    (stopped / "store").mkdir(exist_ok=True)
    after = stopped.with_name("after")
    shutil.copytree(stopped, after)
    monkeypatch.chdir(after)
    assert session(out="runs", run_id="r", resume="yes") == ExitCode.COMPLETED
    assert exports(after / "runs" / "r") == exports(whole)
    assert list((stopped / "store").iterdir()) == []


def test_a_copy_makes_the_store_that_no_session_has_made_beside_itself(stopped, whole, monkeypatch):
    shutil.rmtree(stopped / "store", ignore_errors=True)
    after = stopped.with_name("after")
    shutil.copytree(stopped, after)
    monkeypatch.chdir(after)
    assert session(out="runs", run_id="r", resume="yes") == ExitCode.COMPLETED
    assert sorted(path.name for path in (after / "store").iterdir()) == ["early", "late"]
    assert not (stopped / "store").exists()


def test_a_run_directory_alone_finds_chunks_and_models_where_they_were(stopped, whole, tmp_path):
    elsewhere = tmp_path / "far" / "off"
    elsewhere.mkdir(parents=True)
    shutil.copytree(stopped / "runs", elsewhere / "runs")
    assert session(out=str(elsewhere / "runs"), run_id="r", resume="yes") == ExitCode.COMPLETED
    assert exports(elsewhere / "runs" / "r") == exports(whole)


def test_chunks_of_other_names_are_another_run(stopped, monkeypatch):
    after = stopped.with_name("after")
    monkeypatch.chdir(stopped.parent)
    stopped.rename(after)
    monkeypatch.chdir(after)
    (after / "chunks" / "Early" / "a_chunks.json").rename(after / "chunks" / "Early" / "c_chunks.json")
    assert session(**{**ASKED, "run_id": ""}, resume="yes") == ExitCode.COMPLETED
    assert len(list((after / "runs").iterdir())) == 2


def test_a_moved_run_is_searched_in_the_store_that_came_along(whole, tmp_path):
    shutil.copytree(whole.parent.parent, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "store" / "late")  # so that it can be told from the other
    run = interlock.open_run(tmp_path / "copy" / "runs" / "r")
    assert interlock.search(run, "text 3", limit=2)  # of the one collection that is there


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("/a/b/store", "/x/y/store"),  # of a place that is gone
        ("/store", "/store"),  # nothing but the root in common
        ("store", "store"),
        (["one", "/a/b/models/one"], ["one", "/x/y/models/one"]),
        (7, 7),
    ],
)
def test_a_path_is_beside_a_run_as_it_was(value, wanted):
    assert moved(value, Path("/a/b/runs/r"), Path("/x/y/runs/r")) == wanted
    assert moved(value, Path("/a/b/runs/r"), Path("/a/b/runs/r")) == value
