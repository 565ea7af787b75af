"""What a run is continued with, what it refuses to be continued with, and what a new run takes over from an old one."""

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from interlock.engine.record.events import (
    BatchCommitted,
    BatchesLost,
    LeaseReleased,
    PassPlanned,
    RunClosed,
    RunResumed,
    RunStarted,
)
from tests.builders import corpus, entries, events_of, interlock, sentences, start, summary_of, toml
from tests.processes import files_of, wait_for_commits
from tests.warm import Fork

TEXTS = 160
CHANGED = 3


@dataclass(frozen=True)
class World:
    """Chunks, a configuration and run directories; copied for every test that changes them."""

    home: Path

    @property
    def one(self) -> Path:
        return self.home / "runs" / "one"

    @property
    def file(self) -> Path:
        return self.home / "chunks" / "Docs" / "a_chunks.json"

    def command(self, *more: object, roster: str = "a=2,b=1") -> list[object]:
        common = ["run", self.home / "chunks", "--config", self.home / "interlock.toml", "--roster", roster]
        return [*common, "--out", self.home / "runs", "--no-ui", *more]

    def resume(self, *more: object, check: int = 0, roster: str = "a=2,b=1") -> str:
        """Continue run `one`; what was said on stderr."""
        return interlock(*self.command("--run-id", "one", "--resume", *more, roster=roster), check=check).stderr

    def change(self) -> None:
        """Another text in place of each of the first few."""
        records = json.loads(self.file.read_text())
        for number in range(CHANGED):
            records[number]["text"] = f"this text is a changed one, number {number}"
        self.file.write_text(json.dumps(records))

    def copy(self, home: Path) -> "World":
        shutil.copytree(self.home, home)
        return World(home)


def made(home: Path, *models: Path, texts: int = TEXTS) -> World:
    corpus(home / "chunks", {"Docs": {"a_chunks.json": sentences(texts)}})
    rows = {name: {"source": str(model), "batch_tokens": 16} for name, model in zip("ab", models, strict=True)}
    toml(home / "interlock.toml", rows)
    return World(home)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_a: Path, tiny_b: Path) -> World:
    """A world whose run `one` is completed; not to be changed."""
    world = made(tmp_path_factory.mktemp("resume") / "finished", tiny_a, tiny_b)
    interlock(*world.command("--run-id", "one"))
    return world


@pytest.fixture
def world(finished: World, tmp_path: Path) -> World:
    """A world of one's own whose run `one` is completed."""
    return finished.copy(tmp_path / "world")


@pytest.fixture
def fresh(tmp_path: Path, tiny_a: Path, tiny_b: Path) -> World:
    """The same world before any run."""
    return made(tmp_path / "fresh", tiny_a, tiny_b)


@pytest.fixture
def running(tmp_path: Path, tiny_a: Path, tiny_b: Path) -> Iterator[tuple[World, Fork]]:
    """A world whose run `one` is in the middle of its first pass, and has work for seconds."""
    world = made(tmp_path / "long", tiny_a, tiny_b, texts=300)
    process = start(*world.command("--run-id", "one", "--quiet"))
    try:
        wait_for_commits(process, world.one, 1)
        yield world, process
    finally:
        process.kill()
        process.wait()


def test_a_changed_file_is_named_and_the_run_stays_untouched(world):
    before = files_of(world.one)
    world.change()
    said = world.resume(check=2)
    assert "files.Docs/a_chunks.json was" in said
    assert f"--reuse {world.one}" in said
    assert files_of(world.one) == before


def test_a_new_file_is_named(world):
    (world.file.parent / "b_chunks.json").write_text('[{"text": "one more"}]')
    assert "files.Docs/b_chunks.json is new" in world.resume(check=2)


def test_other_collections_than_the_run_has_are_named_as_the_flag_that_asks_for_them(world):
    shutil.copytree(world.file.parent, world.file.parent.parent / "More")
    said = world.resume("--collections", "More", check=2)
    assert "its inputs changed\ninterlock:   --collections was not given, is now More\n" in said
    assert "files.Docs/a_chunks.json is missing" in said
    assert "Docs" in world.resume("--collections", "Docs")


@pytest.mark.parametrize(
    ("options", "roster", "told"),
    [
        (["--fusion", "named"], "a=2,b=1", '--fusion was "concat", is now "named"'),
        ([], "a=3,b=1", "roster was a=0.667, b=0.333, is now a=0.75, b=0.25"),
        ([], "b=1,a=2", "roster was a=0.667, b=0.333, is now b=0.333, a=0.667"),
        ([], "a=2", "roster was a=0.667, b=0.333, is now a=1"),
    ],
)
def test_another_configuration_is_refused_with_the_difference(finished, options, roster, told):
    before = files_of(finished.one)
    said = finished.resume(*options, roster=roster, check=2)
    assert told in said
    assert files_of(finished.one) == before


def test_what_a_run_is_tied_to_says_of_a_dense_model_no_more_than_older_versions_wrote(finished):
    (entry, *_) = json.loads((finished.one / "run.json").read_text())["roster"]
    texts = {"model", "fingerprint", "dtype", "document_prompt", "query_prompt"}
    assert entry.keys() == texts | {"weight", "dim", "max_tokens", "batch_tokens"}


def test_resuming_a_completed_run_computes_nothing_and_exports_the_same(world):
    exports = files_of(world.one / "exports")
    commits = len(events_of(world.one, BatchCommitted))
    world.resume()
    assert len(events_of(world.one, BatchCommitted)) == commits
    assert files_of(world.one / "exports") == exports
    assert summary_of(world.one)["sessions"] == 2


def test_a_torn_last_line_is_cut_off(world):
    journal = world.one / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole.splitlines()[-1][:40])
    world.resume()
    assert journal.read_bytes().startswith(whole)
    assert [entry.seq for entry in entries(world.one)] == list(range(journal.read_bytes().count(b"\n")))


def test_a_line_damaged_in_the_middle_is_named_and_kept(world):
    journal = world.one / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[4] = lines[4].replace(b'"seq":4', b'"seq":5')
    journal.write_bytes(b"".join(lines))
    said = world.resume(check=1)
    assert "line 5 is damaged" in said and "start a new run" in said
    assert journal.read_bytes() == b"".join(lines)


def test_only_the_batches_of_damaged_vectors_are_redone_to_the_same_bytes(world):
    exports = files_of(world.one / "exports")
    vectors = world.one / "passes" / "0_a" / "vectors.npy"
    array = np.load(vectors, mmap_mode="r+")
    array.view(np.uint32)[[7, 90], 3] ^= 1
    array.flush()
    del array
    world.resume()
    (lost,) = events_of(world.one, BatchesLost)
    again = [entry.body for entry in entries(world.one) if entry.session == 1]
    redone = [(each.model_pass, each.batch_index) for each in again if isinstance(each, BatchCommitted)]
    assert lost.model_pass == 0
    assert 1 <= len(lost.batches) <= 2
    assert redone == [(0, index) for index in sorted(lost.batches)]
    assert files_of(world.one / "exports") == exports
    assert summary_of(world.one)["batches_lost"] == len(lost.batches)


def test_a_pass_whose_vectors_are_lost_is_redone_to_the_same_bytes(world):
    exports = files_of(world.one / "exports")
    (world.one / "passes" / "1_b" / "vectors.npy").unlink()
    world.resume()
    batches = {each.batch_index for each in events_of(world.one, BatchCommitted) if each.model_pass == 1}
    assert [(each.model_pass, set(each.batches)) for each in events_of(world.one, BatchesLost)] == [(1, batches)]
    assert files_of(world.one / "exports") == exports


def test_a_run_starts_when_there_is_nothing_to_resume(fresh):
    fresh.resume()
    assert len(events_of(fresh.one, RunStarted)) == 1
    assert events_of(fresh.one, RunResumed) == []
    assert summary_of(fresh.one)["status"] == "completed"


@pytest.mark.parametrize("left", [b"", b'{"seq":0,"at":179'])
def test_a_run_that_was_killed_before_its_first_word_is_not_begun_with_other_models_unheard(fresh, left):
    fresh.one.mkdir(parents=True)
    (fresh.one / "journal.jsonl").write_bytes(left)
    plain = ["run", fresh.home / "chunks", "--out", fresh.home / "runs", "--no-ui", "--run-id", "one", "--resume"]
    assert "run one ended before it recorded its settings: pass --roster" in interlock(*plain, check=2).stderr
    assert (fresh.one / "journal.jsonl").read_bytes() == left
    assert "ended before it recorded its settings: it begins anew, as this command says" in fresh.resume()
    assert summary_of(fresh.one)["status"] == "completed"


def test_without_a_run_id_the_newest_run_of_these_chunks_goes_on(fresh):
    interlock(*fresh.command("--run-id", "older"))
    interlock(*fresh.command("--run-id", "newer"))
    interlock(*fresh.command("--resume"))
    assert [summary_of(fresh.home / "runs" / name)["sessions"] for name in ("older", "newer")] == [1, 2]


def test_an_existing_run_id_is_refused_without_resume(finished):
    before = files_of(finished.one)
    said = interlock(*finished.command("--run-id", "one"), check=2).stderr
    assert "add --resume" in said
    assert files_of(finished.one) == before


def test_only_changed_texts_are_computed_with_reuse(world):
    world.change()
    interlock(*world.command("--run-id", "two", "--reuse", world.one))
    two = world.home / "runs" / "two"
    assert [(plan.rows, plan.reused) for plan in events_of(two, PassPlanned)] == [(CHANGED, TEXTS - CHANGED)] * 2
    assert sum(each.rows for each in events_of(two, BatchCommitted)) == 2 * CHANGED
    assert [each["rows_reused"] for each in summary_of(two)["collections"][0]["passes"]] == [TEXTS - CHANGED] * 2


@pytest.mark.parametrize("file", ["a.npy", "b.npy", "fused.npy"])
def test_unchanged_texts_keep_their_bytes_with_reuse(reused, file):
    old, new = (np.load(reused.home / "runs" / run / "exports" / "Docs" / file) for run in ("one", "two"))
    assert old[CHANGED:].tobytes() == new[CHANGED:].tobytes()
    assert (old[:CHANGED] != new[:CHANGED]).any(axis=1).all()


@pytest.fixture(scope="module")
def reused(finished: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world whose run `two` has taken over from `one` what had not changed."""
    world = finished.copy(tmp_path_factory.mktemp("reuse") / "world")
    world.change()
    interlock(*world.command("--run-id", "two", "--reuse", world.one))
    return world


def test_nothing_is_reused_of_another_model_of_the_same_name(world, tiny_b):
    rows = {name: {"source": str(tiny_b), "batch_tokens": 16} for name in "ab"}
    toml(world.home / "interlock.toml", rows)
    interlock(*world.command("--run-id", "two", "--reuse", world.one, roster="a"))
    old, new = (np.load(world.home / "runs" / run / "exports" / "Docs" / f"{name}.npy") for run, name in NAMES)
    np.testing.assert_array_equal(old, new)


NAMES = (("one", "b"), ("two", "fused"))


def test_reusing_a_directory_that_is_no_run_is_refused_and_leaves_no_run(fresh):
    said = interlock(*fresh.command("--run-id", "one", "--reuse", fresh.home / "chunks"), check=2).stderr
    assert "not a run directory" in said
    assert not fresh.one.exists()


@pytest.mark.parametrize(
    ("file", "damage", "why"),
    [
        ("run.json", lambda path: path.write_text("{"), "is damaged"),
        ("run.json", lambda path: path.write_text("[1]"), "is damaged"),
        ("run.json", lambda path: path.write_text('{"threads": 1}'), "missing required field"),
        ("passes/texts.npy", lambda path: os.truncate(path, 20), "resume that run"),
        ("passes/texts.npy", lambda path: np.save(path, np.zeros((3, 3), np.uint8)), "expected 16 bytes per text"),
        ("passes/0_a/vectors.npy", lambda path: os.truncate(path, 4096), "is damaged"),
        ("passes/0_a/vectors.npy", lambda path: np.save(path, np.ones((3, 32), np.float32)), f"{TEXTS} texts of 32"),
    ],
)
def test_reusing_a_damaged_run_names_the_file_and_leaves_no_run(world, file, damage, why):
    damage(world.one / file)
    said = interlock(*world.command("--run-id", "two", "--reuse", world.one), check=2).stderr
    assert str(world.one / file) in said
    assert why in said
    assert "Traceback" not in said
    assert not (world.home / "runs" / "two").exists()


def test_only_rows_that_are_no_unit_vectors_are_computed_again(world):
    vectors = np.load(world.one / "passes" / "0_a" / "vectors.npy", mmap_mode="r+")
    vectors[3, 0], vectors[5], vectors[7, 2] = np.nan, 0, 4
    vectors.flush()
    interlock(*world.command("--run-id", "two", "--reuse", world.one))
    two = world.home / "runs" / "two"
    assert [(plan.rows, plan.reused) for plan in events_of(two, PassPlanned)] == [(3, TEXTS - 3), (0, TEXTS)]
    assert np.isfinite(np.load(two / "exports" / "Docs" / "a.npy")).all()


def test_a_run_at_work_is_in_use_to_a_second_process(running):
    world, process = running
    process.send_signal(signal.SIGSTOP)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:  # until then it still writes
        time.sleep(0.005)
    try:
        before = (world.one / "journal.jsonl").read_bytes()
        assert "is in use" in world.resume(check=2)
        assert (world.one / "journal.jsonl").read_bytes() == before
    finally:
        process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_asked_to_stop_stops_between_batches_and_resumes(running, number, code):
    world, process = running
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    stopped = summary_of(world.one)
    assert (stopped["status"], stopped["exit_code"]) == ("stopped", code)
    ended = [type(each) for each in events_of(world.one, BatchCommitted, LeaseReleased, RunClosed)][-3:]
    assert ended == [BatchCommitted, LeaseReleased, RunClosed]
    world.resume()
    interlock(*world.command("--run-id", "whole"))
    whole = world.one.with_name("whole")
    commits = [(each.model_pass, each.batch_index) for each in events_of(world.one, BatchCommitted)]
    assert len(commits) == len(set(commits)) == len(events_of(whole, BatchCommitted))
    assert files_of(world.one / "exports") == files_of(whole / "exports")


def test_a_resumed_run_goes_on_as_its_operator_steered_it_unless_told_otherwise(running):
    world, process = running
    interlock("ctl", world.one, "exclusive", "off")
    interlock("ctl", world.one, "stop")
    assert process.wait(timeout=60) == 4
    kept = world.copy(world.home.parent / "kept")
    for place, flags, window in ((kept, [], "shared"), (world, ["--window", "0"], 0)):
        place.resume(*flags)
        assert [each.config["window"].value for each in events_of(place.one, RunResumed)] == [window]
        assert summary_of(place.one)["schedule"] == (window or "exclusive")
