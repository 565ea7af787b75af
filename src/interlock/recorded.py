"""Runs as their directories have them: summary, events, delivered vectors; nothing of them is changed."""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.console.sources.journal import POLL_SECONDS, QUIET_SECONDS
from interlock.console.sources.tail import Tail, journal_at
from interlock.engine.config import load
from interlock.engine.errors import InterlockError, UsageError, remedy
from interlock.engine.record import atomic, journal
from interlock.engine.record.counting import several
from interlock.engine.record.events import Entry, RunClosed
from interlock.engine.record.fold import fold_all
from interlock.engine.record.occupant import held
from interlock.engine.record.rundir import JOURNAL, RunDirectory
from interlock.engine.record.state import RunState
from interlock.wording import path_of, telling

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from interlock.engine.record.facts import Artefact
    from interlock.engine.record.summary import Summary

AnyPath = str | os.PathLike[str]
FUSED = "fused"
AGAIN = "restore it, or resume the run to write it again"


@dataclass(frozen=True)
class DeliveredVectors:
    """One model's vectors of one collection, in the order of its chunks."""

    collection: str
    model: str
    array: "npt.NDArray[np.float32]"
    """[chunks, dim], memory-mapped and read-only; a chunk that was parked has NaN."""
    points: Path
    """The run's `points.parquet` of this collection: id, chunk_id, source, text, payload and the vectors again."""
    _written: "Mapping[str, Artefact]" = field(repr=False)

    @cached_property
    def ids(self) -> list[str]:
        """The id of each row's point, as in the store. Raises UsageError where the run wrote no parquet file."""
        return self._column("id")

    @cached_property
    def chunk_ids(self) -> list[str]:
        """Each row's own id, as its chunk file has it. Raises UsageError where the run wrote no parquet file."""
        return self._column("chunk_id")

    def _column(self, name: str) -> list[str]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self.points.name not in self._written:
            raise UsageError(f'the run wrote no {self.points}: ids need "parquet" in its exports')
        _check_written(self.points, self._written[self.points.name])
        try:
            column: list[str] = pq.read_table(self.points, columns=[name])[name].to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise InterlockError(f"cannot read {self.points} ({error})") from error
        if len(column) != len(self.array):
            raise InterlockError(f"{self.points} has {len(column):,} rows, the vectors {len(self.array):,}")
        return column


def _check_written(path: Path, artefact: "Artefact") -> None:
    """Raise InterlockError unless the file at `path` is the one that the run delivered."""
    try:
        status = path.stat()
        if status.st_size != artefact.bytes:
            raise InterlockError(f"{path} has {status.st_size:,} bytes, delivered were {artefact.bytes:,}: {AGAIN}")
        digest = _digest(path, status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
    except OSError as error:
        raise InterlockError(f"cannot read {path} ({error.strerror}): {AGAIN}") from error
    if digest != artefact.sha256:
        raise InterlockError(f"{path} was changed after it was delivered (its SHA-256 differs): {AGAIN}")


@lru_cache(4096)
def _digest(path: Path, *_status: int) -> str:
    """The SHA-256 of a file, computed once for each state of it."""
    return atomic.sha256_of(path)


@dataclass(frozen=True, repr=False)
class RecordedRun:
    """A run as its directory has it, whether it is over or goes on; nothing of it is changed."""

    path: Path

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def summary(self) -> "Summary":
        """What became of it so far, folded from the journal each time it is asked for.

        Raises InterlockError for a journal that is damaged, UsageError for one in which no run has begun.
        """
        from interlock.engine.record.summary import summarise

        state = fold_all(RunState(), self.events())
        if state.started is None:
            raise UsageError(f"{self.path / JOURNAL} has no entry yet: the run has not started")
        return summarise(state)

    def events(self) -> Iterator[Entry]:
        """Yield each event that the journal holds now, in order. Raises InterlockError where it is damaged or gone."""
        file = self.path / JOURNAL
        try:
            yield from journal.read(file)
        except OSError as error:
            raise InterlockError(f"cannot read {file}: {error.strerror or error}; {remedy(error)}") from error

    def vectors(self, collection: str, model: str = FUSED) -> DeliveredVectors:
        """Open the delivered vectors of `collection` by `model`, or the fused ones.

        A file is compared with the SHA-256 that the run recorded when it is first opened in this process, and again
        once it was written to: a second or two for each GB. Raises UsageError naming what there is where this was not
        delivered, InterlockError for a file that is gone or not the one that was delivered.
        """
        import numpy as np

        collections = {each.name: each for each in self.summary.collections}
        if (found := collections.get(collection)) is None:
            there = ", ".join(collections) or "none yet"
            raise UsageError(f"run {self.id} has no collection {collection!r}: available {there}")
        written = {Path(each.path).name: each for each in found.exports}
        if f"{model}.npy" not in written:
            made = [name.removesuffix(".npy") for name in written if name.endswith(".npy")]
            there = f"available {', '.join(made)}" if made else f"it is {found.status}, with no .npy files"
            raise UsageError(f"run {self.id} has no vectors of {collection} by {model!r}: {there}")
        directory = RunDirectory(self.path).exports(collection)
        path = directory / f"{model}.npy"
        _check_written(path, written[path.name])
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InterlockError(f"cannot read {path} ({error}): {AGAIN}") from error
        return DeliveredVectors(collection, model, array, directory / "points.parquet", written)

    def __repr__(self) -> str:
        try:
            summary = self.summary
        except InterlockError as error:
            return f"<run {self.path}: {error}>"
        chunks = sum(each.chunks for each in summary.collections)
        held = f"{several(chunks, 'chunk')} in {several(len(summary.collections), 'collection')}"
        return f"<run {self.path}: {summary.status}, {held}>"


def open_run(run: RecordedRun | AnyPath, out: AnyPath | None = None) -> RecordedRun:
    """Open a run by its directory, or by its id in the directory of runs `out` (default: the setting's).

    Nothing of it is read yet: damage is told by what reads it. Raises UsageError where there is no run, naming those
    there are.
    """
    if isinstance(run, RecordedRun):
        return run
    path = path_of(run, "run")
    if out is not None or (path.name == str(run) and not path.exists()):
        path = (load({}).settings.out if out is None else path_of(out, "out")) / path
    with telling():
        found = journal_at(path)
    if found.name != JOURNAL:
        raise UsageError(f"{path} is a file: name the run's directory")
    return RecordedRun(found.parent.absolute())


def watch(run: RecordedRun | AnyPath) -> Iterator[Entry]:
    """Yield each event of a run from its first, waiting for more until the run is closed or its process is gone.

    A session that is refused takes back what it wrote; the run is then told from its beginning again. Raises UsageError
    where there is no run, InterlockError for a journal that is damaged.
    """
    return _watched(open_run(run).path / JOURNAL)


def _watched(path: Path) -> Iterator[Entry]:
    tail, closed, idle = Tail(path), False, False
    alive, asked = held(path), time.monotonic()
    while True:
        if time.monotonic() - asked > QUIET_SECONDS:
            alive, asked = held(path), time.monotonic()
        over = closed or not alive  # known before reading: what was written last is read still
        _, entries = tail.more()
        for entry in entries:
            closed = isinstance(entry.body, RunClosed)
            yield entry
        if over and idle and not entries:
            return
        idle = not entries
        if idle:  # a line that may be damaged is looked at twice
            time.sleep(POLL_SECONDS)
