"""A run that is killed again and again ends with the same bytes, and never computes more than one batch twice.

One campaign of SIGKILLs at real processes, spread over the life of a run; each test reads its evidence.
"""

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from interlock.engine.record import summary
from interlock.engine.record.events import BatchCommitted, BatchesLost, CollectionClosed, Entry
from interlock.engine.record.fold import fold
from interlock.engine.record.state import RunState
from tests.builders import corpus, entries, events_of, interlock, sentences, summary_of, toml
from tests.processes import commits, files_of, kill_after, killed

KILLS = 6
SEED = 20_261_121
Cell = tuple[int, int]


@dataclass(frozen=True)
class Kill:
    """A run as a SIGKILL left it: its committed batches, and rows that were computed but not committed, by pass."""

    run: Path
    committed: frozenset[Cell]
    uncommitted: dict[int, int]


@dataclass(frozen=True)
class Campaign:
    """What the kills left behind."""

    whole: Path
    runs: list[Path]
    kills: list[Kill]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory, tiny_a: Path, tiny_b: Path) -> Campaign:
    field = _Field(tmp_path_factory.mktemp("kill"), tiny_a, tiny_b)
    interlock("--version")  # whoever forks is there before the clock starts
    began = time.monotonic()
    interlock(*field.command("whole"))
    life = time.monotonic() - began
    kills = list(_kills(field, life, len(events_of(field.run("whole"), BatchCommitted))))
    runs = sorted({kill.run for kill in kills})
    for run in runs:
        interlock(*field.command(run.name))
    return Campaign(field.run("whole"), runs, kills)


class _Field:
    """The inputs that all runs share, and where they lie."""

    def __init__(self, directory: Path, *models: Path) -> None:
        self._directory = directory
        self._chunks = corpus(
            directory / "chunks",
            {
                "Guides": {"a_chunks.json": sentences(300), "deep/b_chunks.json": sentences(150, start=300)},
                "Notes": {"c.jsonl": sentences(300, start=400)},
            },
        )
        rows = {model.name: {"source": str(model), "batch_tokens": 64} for model in models}
        self._config = toml(directory / "interlock.toml", rows)
        self._roster = ",".join(f"{model.name}={weight}" for weight, model in enumerate(models, 1))

    def run(self, name: str) -> Path:
        return self._directory / f"runs-{name}" / name

    def command(self, name: str) -> list[object]:
        inputs = ["run", self._chunks, "--config", self._config, "--roster", self._roster]
        outputs = ["--out", self.run(name).parent, "--run-id", name, "--qdrant", self._directory / "stores" / name]
        return [*inputs, *outputs, "--resume", "--no-ui", "--quiet"]


def _kills(field: _Field, life: float, batches: int) -> Iterator[Kill]:
    """Two kills of three at a moment in the life of a run, one after a third and two thirds of the commits.

    A run that has outlived its kill, or has too few batches left for the next, is followed by a new one.
    """
    chance = random.Random(SEED)
    moments = [(number + chance.random()) / KILLS for number in range(KILLS)]
    chance.shuffle(moments)
    names = (f"r{number:02d}" for number in itertools.count())
    run = field.run(next(names))
    for place, moment in enumerate(moments):
        more = 0 if place % 3 else batches * (place + 3) // (KILLS + 3)
        if commits(run) + more >= batches:
            run = field.run(next(names))
        for haste in itertools.count(1):
            if _killed(field, run, moment * life / haste, more):
                break
            run = field.run(next(names))
        yield _look(run)


def _killed(field: _Field, run: Path, seconds: float, more: int) -> bool:
    """Continue a run and kill it after `more` commits, or where that is 0 after `seconds`; whether it was alive."""
    if more:
        return kill_after(run, commits(run) + more, *field.command(run.name))
    return killed(lambda _: time.sleep(seconds), *field.command(run.name))


def _look(run: Path) -> Kill:
    commits = events_of(run, BatchCommitted) if (run / "journal.jsonl").exists() else []
    rows = Counter[int]()
    for commit in commits:
        rows[commit.model_pass] += commit.rows
    written = {int(path.parent.name[0]): np.load(path) for path in run.glob("passes/*/vectors.npy")}
    uncommitted = {
        model_pass: int(np.isfinite(vectors).any(axis=1).sum()) - rows[model_pass]
        for model_pass, vectors in written.items()
    }
    return Kill(run, frozenset((commit.model_pass, commit.batch_index) for commit in commits), uncommitted)


def test_killed_runs_export_the_same_bytes_once_resumed_to_the_end(campaign):
    wanted = files_of(campaign.whole / "exports")
    assert len(wanted) == 8
    for run in campaign.runs:
        assert files_of(run / "exports") == wanted, run.name


def test_the_kills_fall_before_within_and_after_the_passes(campaign):
    batches = len(events_of(campaign.whole, BatchCommitted))
    within = [kill for kill in campaign.kills if 0 < len(kill.committed) < batches]
    in_the_second = [kill for kill in within if any(model_pass == 1 for model_pass, _ in kill.committed)]
    assert len(campaign.kills) == KILLS
    assert len(within) >= KILLS // 3, [len(kill.committed) for kill in campaign.kills]
    assert in_the_second


def test_a_kill_leaves_at_most_the_batch_in_flight_uncommitted(campaign):
    rows_of = {(each.model_pass, each.batch_index): each.rows for each in events_of(campaign.whole, BatchCommitted)}
    for kill in campaign.kills:
        in_flight = min(rows_of.keys() - kill.committed, default=None)
        for model_pass, rows in kill.uncommitted.items():
            most = rows_of[in_flight] if in_flight and in_flight[0] == model_pass else 0
            assert 0 <= rows <= most, kill


def test_no_committed_batch_is_computed_again_after_a_kill(campaign):
    batches = {(each.model_pass, each.batch_index) for each in events_of(campaign.whole, BatchCommitted)}
    for run in campaign.runs:
        commits = Counter((each.model_pass, each.batch_index) for each in events_of(run, BatchCommitted))
        for lost in events_of(run, BatchesLost):
            commits.subtract((lost.model_pass, index) for index in lost.batches)
        assert commits.keys() == batches
        assert set(commits.values()) == {1}, run.name


def test_a_kill_without_a_power_cut_loses_no_committed_batch(campaign):
    assert [lost for run in campaign.runs for lost in events_of(run, BatchesLost)] == []


def test_the_store_holds_exactly_the_points_after_kills_and_resumes(campaign):
    for run in campaign.runs:
        for collection in summary_of(run)["collections"]:
            verification = collection["verification"]
            assert verification["ok"], verification
            assert verification["points"] == verification["expected"] == collection["chunks"]


def test_the_summary_is_the_fold_of_the_journal_after_kills_and_resumes(campaign):
    for run in campaign.runs:
        state = RunState()
        for entry in entries(run):
            fold(state, entry)
        assert (run / "summary.json").read_bytes() == summary.dumps(summary.summarise(state))
        assert summary_of(run)["status"] == "completed"


def test_the_journal_counts_on_without_a_gap_after_kills(campaign):
    for run in campaign.runs:
        written: list[Entry] = entries(run)
        assert [entry.seq for entry in written] == list(range(len(written)))
        assert [entry.session for entry in written] == sorted(entry.session for entry in written)
        closed = [entry.body.collection for entry in written if isinstance(entry.body, CollectionClosed)]
        assert closed[-2:] == ["Guides", "Notes"]
