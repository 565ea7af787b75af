"""What `import interlock` offers a notebook or a script: plan, embed, open a run, search, watch.

Each function does what the command of its name does, with the same engine, and raises an InterlockError where the
command would end with an exit code other than 0. None needs the main thread, and none touches signals or event loops.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from interlock.console.commands import best_chunks, limit_threads
from interlock.console.crash import told
from interlock.console.sources.session import Session, Work
from interlock.console.sources.tail import Tail, held, journal_at
from interlock.console.text.plan_text import plan_text
from interlock.engine.config import Configuration, knobs, load
from interlock.engine.errors import ExitCode, InterlockError, Stopped, UsageError, remedy
from interlock.engine.passes.controls import Controls
from interlock.engine.record import events as events
from interlock.engine.record import journal
from interlock.engine.record.counting import several
from interlock.engine.record.events import Entry, RunClosed
from interlock.engine.record.fold import fold, uncollected
from interlock.engine.record.rundir import JOURNAL, RunDirectory
from interlock.engine.record.state import RunState
from interlock.progress import follow

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from interlock.engine.forecast import Forecast
    from interlock.engine.outlet.qdrant import Hit
    from interlock.engine.record.summary import CollectionSummary, Summary

AnyPath = str | os.PathLike[str]
FUSED = "fused"
POLL_SECONDS = 0.1
QUIET_SECONDS = 4.0
"""A run that writes nothing for so long is asked whether its process is still there."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Set what a run takes, by value; None leaves a setting to the environment, the file or its default.

    Sizes are bytes, or a text such as "12GiB". `config` is a TOML file, `models` are rows for the registry in addition
    to those of its [models.*] tables: `{"mine": {"source": "hf:org/name", "query_prompt": "query: "}}`.
    """

    roster: Mapping[str, float] | Mapping[Path, float] | Sequence[str | Path] | None = None
    collections: Sequence[str] | None = None
    devices: str | Sequence[str] | None = None
    exclusive: bool | None = None
    window: int | None = None
    cpu_fallback: bool | None = None
    warm: int | str | None = None
    threads: int | None = None
    ceiling: int | str | None = None
    faults: Sequence[str] | None = None
    fusion: Literal["concat", "named", "mean"] | None = None
    dim: int | None = None
    export: Sequence[Literal["npy", "parquet"]] | None = None
    qdrant: AnyPath | None = None
    out: AnyPath | None = None
    run_id: str | None = None
    resume: bool | None = None
    reuse: AnyPath | None = None
    offline: bool | None = None
    refresh_models: bool | None = None
    strict: bool | None = None
    config: AnyPath | None = None
    models: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def configuration(self) -> Configuration:
        """Every setting with where it came from. Raises UsageError naming the one that cannot be used."""
        names = {item.name for item in knobs()} & {item.name for item in fields(self)}
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        file = Path(self.config).expanduser() if self.config else None
        found = load(given, file=file, origin_of="python Settings.{}".format)
        return replace(found, models={**found.models, **self.models})


Settings.__doc__ = f"{Settings.__doc__}\n" + "".join(
    f"    {item.name}: {item.metadata['help']} (default {item.metadata['default'] or 'none'})\n"
    for item in knobs()
    if not item.metadata["screen"]
)
DEFAULTS = Settings()


@dataclass(frozen=True, repr=False)
class Plan:
    """What a run would do; printed, it is what `interlock plan` prints."""

    forecast: "Forecast"
    """Its collections and passes, in numbers; a pass that fits nowhere says why in `refused`."""

    def __str__(self) -> str:
        return plan_text(self.forecast)

    __repr__ = __str__


@dataclass(frozen=True)
class DeliveredVectors:
    """One model's vectors of one collection, in the order of its chunks."""

    collection: str
    model: str
    array: "npt.NDArray[np.float32]"
    """[chunks, dim], memory-mapped and read-only; a chunk that was parked has NaN."""
    points: Path
    """The run's `points.parquet` of this collection: id, chunk_id, source, text, payload and the vectors again."""

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

        try:
            column: list[str] = pq.read_table(self.points, columns=[name])[name].to_pylist()
        except FileNotFoundError:
            raise UsageError(f'{self.points} does not exist: ids need "parquet" in the run\'s exports') from None
        except (OSError, pa.ArrowException) as error:
            raise InterlockError(f"cannot read {self.points} ({error})") from error
        if len(column) != len(self.array):
            raise InterlockError(f"{self.points} has {len(column):,} rows, the vectors {len(self.array):,}")
        return column


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

        state = RunState()
        with uncollected():
            for entry in self.events():
                fold(state, entry)
        if state.started is None:
            raise UsageError(f"{self.path / JOURNAL} has no entry yet: the run has not started")
        return summarise(state)

    def events(self) -> Iterator[Entry]:
        """Each event that the journal holds now, in order. Raises InterlockError at damage, or where it is gone."""
        try:
            yield from journal.read(self.path / JOURNAL)
        except OSError as error:
            reason = error.strerror or error
            raise InterlockError(f"cannot read {self.path / JOURNAL}: {reason}; {remedy(error)}") from error

    def vectors(self, collection: str, model: str = FUSED) -> DeliveredVectors:
        """The delivered vectors of `collection` by `model`, or the fused ones.

        Raises UsageError naming what there is where this was not delivered, InterlockError for a damaged file.
        """
        import numpy as np

        found = self._collection(collection)
        made = {Path(each.path).stem: each for each in found.exports if each.path.endswith(".npy")}
        if model not in made:
            there = f"available {', '.join(made)}" if made else f"it is {found.status}, with no .npy files"
            raise UsageError(f"run {self.id} has no vectors of {collection} by {model!r}: {there}")
        directory = RunDirectory(self.path).exports(collection)
        path = directory / f"{model}.npy"
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InterlockError(f"cannot read {path} ({error}): resume the run to write it again") from error
        if array.ndim != 2 or len(array) != made[model].rows or array.dtype != np.float32:
            raise InterlockError(f"{path} has {array.dtype} {array.shape}, expected {made[model].rows:,} vectors")
        return DeliveredVectors(collection, model, array, directory / "points.parquet")

    def _collection(self, name: str) -> "CollectionSummary":
        collections = {each.name: each for each in self.summary.collections}
        if name not in collections:
            there = ", ".join(collections) or "none yet"
            raise UsageError(f"run {self.id} has no collection {name!r}: available {there}")
        return collections[name]

    def __repr__(self) -> str:
        try:
            summary = self.summary
        except InterlockError as error:
            return f"<run {self.path}: {error}>"
        chunks = sum(each.chunks for each in summary.collections)
        held = f"{several(chunks, 'chunk')} in {several(len(summary.collections), 'collection')}"
        return f"<run {self.path}: {summary.status}, {held}>"


def plan(chunks: AnyPath, settings: Settings = DEFAULTS) -> Plan:
    """Plan a run of the directory `chunks`: passes, batches, tokens, memory. Loads no weights and writes nothing.

    Raises what the run itself would raise before it computes.
    """
    configuration = settings.configuration()
    limit_threads(configuration)
    from interlock.engine.forecast import forecast

    return Plan(forecast(Path(chunks), configuration))


def embed(
    chunks: AnyPath, settings: Settings = DEFAULTS, *, progress: Literal["auto", "lines", "none"] = "auto"
) -> RecordedRun:
    """Embed the directory `chunks`, show how far it is, and return the completed run.

    `progress` "auto" draws a table in a terminal or a notebook's cell and prints lines elsewhere. An interrupt (Ctrl-C,
    a notebook's stop button) ends the run after the batch in flight; a second one returns at once and leaves that batch
    to end by itself.

    Raises Stopped for a run that was interrupted, which `Settings(run_id=..., resume=True)` continues, and another
    InterlockError for one that failed, is incomplete, or was refused; its `exit_code` is that of the command.
    """
    configuration = settings.configuration()
    limit_threads(configuration)

    def make(controls: Controls) -> Work:
        from interlock.engine.run import Run

        return Run(Path(chunks), configuration, controls)

    session = Session(make)
    follow(session, progress)
    try:
        code = session.result()
    except Exception as error:
        failure = told(error, session.work.directory.path if session.work else None)
        raise failure from (None if failure is error else error)
    assert session.work, "a run that has a result was made"
    run = RecordedRun(session.work.directory.path.absolute())
    if code != ExitCode.COMPLETED:
        raise _ended(run, code)
    return run


def _ended(run: RecordedRun, code: ExitCode) -> InterlockError:
    """Why a run that came to work is not what its caller asked for."""
    summary, kind = run.summary, InterlockError
    reasons = [f"{each.name} {each.status}: {each.reason}" for each in summary.collections if each.reason]
    why = f"run {run.id} {summary.status}: {'; '.join(reasons) or summary.reason}"
    if code == ExitCode.MITIGATED:
        why = f"run {run.id} needed mitigations, a failure under Settings(strict=True)"
    if summary.status == "stopped":
        kind, why = Stopped, f"run {run.id} was stopped: continue it with Settings(run_id={run.id!r}, resume=True)"
    error = kind(f"{why}: open_run({str(run.path)!r}) has what was done")
    error.exit_code = code
    return error


def open_run(run: AnyPath, out: AnyPath | None = None) -> RecordedRun:
    """Open a run by its directory, or by its id in the directory of runs `out` (default: the setting's).

    Raises UsageError where there is none, naming those there are.
    """
    path = Path(run).expanduser()
    if out is not None or (path.name == str(run) and not path.exists()):
        path = Settings(out=out).configuration().settings.out / path
    return RecordedRun(journal_at(path).parent.absolute())


def watch(run: RecordedRun | AnyPath) -> Iterator[Entry]:
    """Yield each event of a run from its first, waiting for more until the run is closed or its process is gone.

    A session that is refused takes back what it wrote; the run is then told from its beginning again. Raises UsageError
    where there is no run, InterlockError for a journal that is damaged.
    """
    path = (run if isinstance(run, RecordedRun) else open_run(run)).path / JOURNAL
    return _watched(path)


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


def search(
    store: RecordedRun | AnyPath,
    query: str,
    *,
    collection: str | None = None,
    limit: int = 5,
    settings: Settings = DEFAULTS,
) -> "list[Hit]":
    """The `limit` best chunks for `query` in a store, or in the store that a run wrote, best first.

    `collection` is its name in Qdrant, needed where the store holds several. Raises UsageError for a store or
    collection that is not there, UnavailableError for a model that is not.
    """
    configuration = settings.configuration()
    limit_threads(configuration)
    return best_chunks(configuration, _store_of(store), collection, query, limit)


def _store_of(store: RecordedRun | AnyPath) -> Path:
    if not isinstance(store, RecordedRun):
        return Path(store).expanduser()
    written = store.summary.configuration["qdrant"].value
    if not written:
        raise UsageError(f"run {store.id} wrote no store: use Settings(qdrant=...)")
    return Path(str(written))
