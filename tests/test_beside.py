"""While the texts of a large run are read, its first pass is computed, a block after the other: the bytes are those of
a run that reads first, also of one whose process was killed meanwhile."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from interlock.engine.compute.controls import Controls
from interlock.engine.compute.job import lay_out
from interlock.engine.compute.parts.dense import VectorFile
from interlock.engine.corpus.collections import Collection
from interlock.engine.corpus.corpus import WINDOW, Rows
from interlock.engine.corpus.tokens import Specials, Tokenised
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.flows import run as running
from interlock.engine.flows.computing import Beside
from interlock.engine.flows.run import Run
from interlock.engine.models.card import TokenOutputs
from interlock.engine.record import events as ev
from interlock.engine.record.fold import fold, fold_all
from interlock.engine.record.snapshot import snapshot
from interlock.engine.record.state import RunState
from interlock.engine.settings import load
from tests.builders import corpus, entries, events_of, sentences, toml
from tests.processes import commits, files_of, until

TEXTS = {"Early": {"a.jsonl": sentences(200)}, "Late": {"b.jsonl": sentences(2 * WINDOW + 100, start=150)}}
"""Fifty texts stand in both."""
SECOND = 200 + 2 * WINDOW
"""Texts up to the end of the second block of the second collection: the first is smaller than a block."""


class Field:
    """Runs of the same texts by two models on a simulated GPU, with blocks of one window."""

    def __init__(self, place: Path, *models: Path) -> None:
        self.place, self.chunks = place, corpus(place / "in", TEXTS)
        rows = {name: {"source": str(each), "batch_tokens": 900} for name, each in zip("ab", models, strict=True)}
        self._models = toml(place / "models.toml", rows)

    def session(self, out: str, controls: Controls | None = None, chunks: Path | None = None, **flags: str) -> Run:
        common = {"out": str(self.place / out), "run_id": "r", "roster": "a,b", "devices": "sim:T4", **flags}
        return Run(chunks or self.chunks, load(common, {}, self._models), controls or Controls())

    def go(self, out: str, **flags: str) -> Path:
        run = self.session(out, **flags)
        assert run.go() == ExitCode.COMPLETED
        return run.directory.path


@pytest.fixture(scope="module", autouse=True)
def blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "BLOCK", WINDOW)
        yield


@pytest.fixture(scope="module")
def field(tmp_path_factory, tiny_a, tiny_b) -> Field:
    return Field(tmp_path_factory.mktemp("beside"), tiny_a, tiny_b)


@pytest.fixture(scope="module")
def plain(field: Field) -> Path:
    """A run that reads all texts first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "_beside", lambda *_: None)
        return field.go("plain")


@contextmanager
def paced(before: Callable[[int], object]) -> Iterator[None]:
    """Have something done before a block that ends with so many texts is planned."""
    whole = Beside.whole

    def first(self: Beside, builder: Any, rows: Rows, *rest: Any) -> None:
        before(rows.first_text + rows.own_texts)
        whole(self, builder, rows, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Beside, "whole", first)
        yield


@pytest.fixture(scope="module")
def beside(field: Field) -> Path:
    """A run that reads on from its second block only when something was committed."""
    run = field.place / "beside" / "r"

    def commits_first(end: int) -> None:
        if end == SECOND:
            until(lambda: commits(run) >= 2)
            left = shutil.ignore_patterns(".tokens-*", "control.sock")
            shutil.copytree(run, field.place / "killed" / "r", ignore=left)

    with paced(commits_first):
        return field.go("beside")


@pytest.fixture
def killed(field: Field, beside: Path, tmp_path: Path) -> Path:
    """What was on the disk then, as a killed process leaves it."""
    return Path(shutil.copytree(field.place / "killed", tmp_path / "killed")) / "r"


def test_the_first_pass_is_computed_while_texts_are_read_and_gives_the_same_bytes(plain, beside):
    kinds = [type(entry.body) for entry in entries(beside)]
    assert kinds.index(ev.BatchCommitted) < kinds.index(ev.CorpusTokenised) < kinds.index(ev.PassPlanned)
    assert ev.BlockRead not in [type(entry.body) for entry in entries(plain)]
    for part in ("exports", "passes"):
        assert files_of(beside / part) == files_of(plain / part)
    assert (beside / "run.json").read_text() == (plain / "run.json").read_text()


def test_what_was_computed_before_there_was_a_plan_counts_for_it(beside):
    state = fold_all(RunState(), entries(beside))
    assert all(share.whole and share.done.rows == share.plan.rows for share in state.shares())
    assert [len(state.committed[number]) for number in (0, 1)] == [
        sum(share.plan.batches for share in state.shares_of(number)) for number in (0, 1)
    ]


def test_progress_is_never_taken_back_while_texts_are_read(beside):
    state, shares, phases = RunState(), [0.0], list[str]()
    for entry in entries(beside):
        fold(state, entry)
        seen = snapshot(state, entry.seq)
        shares.append(seen.share_done)
        phases += [seen.phase] * (seen.phase not in phases[-1:])
    assert phases == ["resolving", "reading", "planning", "running", "delivering", "completed"]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_killed_process_is_gone_on_with_and_no_batch_is_computed_twice(field, plain, killed):
    had = {(each.model_pass, each.batch_index) for each in events_of(killed, ev.BatchCommitted)}
    assert len(had) >= 2
    assert json.loads((killed / "run.json").read_text())["files"] == {}
    assert field.go(str(killed.parent), resume="yes") == killed
    for part in ("exports", "passes"):
        assert files_of(killed / part) == files_of(plain / part)
    cells = Counter((each.model_pass, each.batch_index) for each in events_of(killed, ev.BatchCommitted))
    assert set(cells.values()) == {1}
    assert (killed / "run.json").read_text() == (plain / "run.json").read_text()


def test_a_killed_process_is_gone_on_with_where_texts_are_read_first(field, plain, killed, monkeypatch):
    monkeypatch.setattr(Run, "_beside", lambda *_: None)
    field.go(str(killed.parent), resume="yes")
    assert files_of(killed / "passes") == files_of(plain / "passes")
    assert max(Counter(each.batch_index for each in events_of(killed, ev.BatchCommitted)).values()) == 2  # two passes


@pytest.mark.parametrize("first", [True, False])
def test_other_texts_are_refused_before_anything_is_computed_of_them(field, killed, tmp_path, monkeypatch, first):
    if first:
        monkeypatch.setattr(Run, "_beside", lambda *_: None)
    other = corpus(tmp_path / "in", TEXTS | {"Early": {"a.jsonl": ["another text", *sentences(200)[1:]]}})
    had = (killed / "passes" / "0_a" / "vectors.npy").read_bytes()
    session = field.session(str(killed.parent), chunks=other, resume="yes")
    with pytest.raises(UsageError, match="started with other texts: restore its files"):
        session.go()
    assert (killed / "passes" / "0_a" / "vectors.npy").read_bytes() == had


def test_a_run_that_stopped_after_reading_computes_beside_it_again(field, plain, beside, tmp_path):
    run = Path(shutil.copytree(beside.parent, tmp_path / "later")) / "r"
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    ends = next(at for at, line in enumerate(lines) if b"ensemble_pass_completed" in line)
    (run / "journal.jsonl").write_bytes(b"".join(lines[: ends + 3]))
    field.go(str(run.parent), resume="yes")
    kinds = [type(entry.body) for entry in entries(run)][ends + 3 :]
    assert kinds.index(ev.LeaseGranted) < kinds.index(ev.CorpusTokenised)
    assert ev.BatchesLost not in kinds
    assert files_of(run / "passes") == files_of(plain / "passes")


def test_a_lost_batch_is_computed_again(field, plain, killed):
    lost = events_of(killed, ev.BatchCommitted)[0]
    vectors = np.load(killed / "passes" / "0_a" / "vectors.npy", mmap_mode="r+")
    vectors[:] = 0
    vectors.flush()
    field.go(str(killed.parent), resume="yes")
    assert lost.batch_index in events_of(killed, ev.BatchesLost)[0].batches
    assert files_of(killed / "passes") == files_of(plain / "passes")


def test_an_operator_stops_it_between_two_batches(field, plain):
    run, controls = field.place / "stopped" / "r", Controls()

    def stops(end: int) -> None:
        if end == SECOND:
            until(lambda: commits(run) >= 1)
            controls.stop(ExitCode.INTERRUPTED)

    session = field.session("stopped", controls)
    with paced(stops):
        assert session.go() == ExitCode.INTERRUPTED
    (closed,) = events_of(run, ev.RunClosed)
    assert closed.status == "stopped" and "between batches: --resume continues" in closed.reason
    assert files_of(field.go("stopped", resume="yes") / "exports") == files_of(plain / "exports")


def test_what_fails_while_texts_are_read_ends_the_run_with_its_reason(field):
    run = field.place / "failed" / "r"

    def fails(end: int) -> None:
        if end == SECOND:
            until(lambda: commits(run) >= 1)
            raise UsageError("the disk of the texts is gone")

    session = field.session("failed")
    with paced(fails):
        assert session.go() == ExitCode.FAILED
    (closed,) = events_of(run, ev.RunClosed)
    assert (closed.status, closed.reason) == ("failed", "the disk of the texts is gone")


def test_a_run_of_fewer_texts_is_as_it_always_was(field, monkeypatch):
    monkeypatch.setattr(running, "BLOCK", 4 * WINDOW)
    run = field.go("small")
    assert events_of(run, ev.BlockRead) == []
    assert "block" not in json.loads((run / "run.json").read_text())


def test_a_run_that_was_planned_as_a_whole_is_gone_on_with_so(field, monkeypatch):
    monkeypatch.setattr(running, "BLOCK", 0)  # as earlier versions did
    run = field.go("old")
    monkeypatch.setattr(running, "BLOCK", WINDOW)
    assert field.go("old", resume="yes") == run
    assert events_of(run, ev.BatchesLost) == []


class Lengths(Tokenised):
    def stored(self, text: int) -> Any:
        raise AssertionError("a plan reads no text")


@pytest.mark.parametrize("reused", [False, True])
def test_no_batch_has_texts_of_two_blocks(reused):
    lengths = np.random.default_rng(1).integers(1, 60, 100)
    rows = Rows(Collection("c", "c", Path("c"), ()), 10, own_texts=90)
    card: Any = SimpleNamespace(
        max_tokens=64, batch_tokens=200, config={}, network_kind="", tight=False, key="m", by_token=TokenOutputs()
    )
    mask = np.arange(100) % 7 == 0 if reused else np.zeros(100, np.bool_)
    layout = lay_out(0, card, Lengths(lengths, Specials((), ())), [rows], mask, block=40)
    parts = [{(int(row) - 10) // 40 for row in batch.rows} for batch in layout.batches]
    assert all(len(part) == 1 for part in parts)
    assert [max(part) for part in parts] == sorted(max(part) for part in parts)
    assert sorted(int(row) for batch in layout.batches for row in batch.rows) == [
        row for row in range(10, 100) if not mask[row]
    ]


def test_a_file_that_has_grown_is_one_that_was_made_so(tmp_path):
    grown, made = (VectorFile.open(tmp_path / name, rows, 3) for name, rows in (("grown", 5), ("made", 7000)))
    early = grown.array
    grown.grow(6000)
    early[4] = 1
    grown.array[5999] = 2
    grown.grow(7000)
    made.array[[4, 5999]] = [[1], [2]]
    for file in (grown, made):
        file.sync()
    assert (tmp_path / "grown").read_bytes() == (tmp_path / "made").read_bytes()
