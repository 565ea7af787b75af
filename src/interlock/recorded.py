"""Runs as their directories have them: summary, events, delivered vectors; nothing of them is changed."""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interlock.console.sources.journal import POLL_SECONDS, QUIET_SECONDS
from interlock.engine.errors import InterlockError, UsageError, remedy
from interlock.engine.parsers import path_of
from interlock.engine.record import journal
from interlock.engine.record.atomic import AGAIN, check_written, held
from interlock.engine.record.events import Entry, RunClosed
from interlock.engine.record.fold import fold_all
from interlock.engine.record.recorder import Tail, journal_at
from interlock.engine.record.rundir import JOURNAL, RunDirectory
from interlock.engine.record.state import RunState
from interlock.engine.record.words import several
from interlock.engine.settings import load
from interlock.wording import python_wording

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from interlock.engine.record.facts import Artefact
    from interlock.engine.record.summary import CollectionSummary, Summary

AnyPath = str | os.PathLike[str]
FUSED, TABLE = "fused", "points.parquet"


@dataclass(frozen=True)
class DeliveredVectors:
    """One model's vectors of one collection, in the order of its chunks."""

    collection: str
    model: str
    array: "npt.NDArray[np.float32]"
    """[chunks, dim], memory-mapped and read-only unless it was quantised; a chunk that was parked has NaN."""
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

        if TABLE not in self._written:
            raise UsageError(f'the run wrote no {self.points}: ids need "parquet" in its exports')
        check_written(self.points, self._written[TABLE])
        try:
            column: list[str] = pq.read_table(self.points, columns=[name])[name].to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise InterlockError(f"cannot read {self.points} ({error})") from error
        if len(column) != len(self.array):
            raise InterlockError(f"{self.points} has {len(column):,} rows, the vectors {len(self.array):,}")
        return column


def _alone(collection: "CollectionSummary", model: str) -> str:
    """The other name of a lone dense model's vectors, which are the fused ones too; the same name of any other's."""
    missing = {each.model for each in collection.missing}
    dense = [each.model for each in collection.passes if each.kind == "dense" and each.model not in missing]
    names = [*dense, FUSED]
    return names[1 - names.index(model)] if len(dense) == 1 and model in names else model


def _array(path: Path, written: "Artefact") -> "npt.NDArray[Any]":
    """An array as it was delivered, memory-mapped and read-only. Raises InterlockError for another one."""
    import numpy as np

    check_written(path, written)
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InterlockError(f"cannot read {path} ({error}): {AGAIN}") from error
    return array


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

        A lone model's vectors are the fused ones, by whichever name they are asked for; those in int8 are read into
        memory as the float32 that they stand for. A file is compared with the SHA-256 that the run recorded when it is
        first opened in this process, and again once it was written to: a second or two for each GB. Raises UsageError
        naming what there is where this was not delivered, InterlockError for a file that is gone or not the one that
        was delivered.
        """
        import numpy as np

        from interlock.engine.targets.files.arrays import scale_file
        from interlock.engine.vectors.precision import Encoding

        found, written = self._delivered(collection)
        file = _alone(found, model) if f"{model}.npy" not in written else model
        codes = Encoding("int8").file(FUSED)
        if model == FUSED and codes in written:
            file = codes.removesuffix(".npy")
        if f"{file}.npy" not in written:
            made = [name.removesuffix(".npy") for name in written if name.endswith(".npy")]
            there = f"available {', '.join(made)}" if made else f"it is {found.status}, with no .npy files"
            raise UsageError(f"run {self.id} has no vectors of {collection} by {model!r}: {there}")
        directory = RunDirectory(self.path).exports(collection)
        at = {name: directory / Path(each.path).name for name, each in written.items()}
        array = _array(at[f"{file}.npy"], written[f"{file}.npy"])
        if f"{file}.npy" == codes:
            scale = _array(at[scale_file(FUSED)], written[scale_file(FUSED)])
            array = Encoding("int8", np.float32(scale)).decode(array)
        return DeliveredVectors(collection, model, array, at.get(TABLE, directory / TABLE), written)

    def _delivered(self, collection: str) -> "tuple[CollectionSummary, dict[str, Artefact]]":
        """A collection, and the files that were written of it, by name; of a shard by that of the whole."""
        from interlock.engine.record.shards import whole_name

        collections = self.summary.collections
        if (found := next((each for each in collections if each.name == collection), None)) is None:
            there = ", ".join(each.name for each in collections) or "none yet"
            raise UsageError(f"run {self.id} has no collection {collection!r}: available {there}")
        return found, {whole_name(each.path): each for each in found.exports}

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
    with python_wording():
        if out is not None or (path.name == str(run) and not path.exists()):
            path = (load({}).settings.out if out is None else path_of(out, "out")) / path
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
