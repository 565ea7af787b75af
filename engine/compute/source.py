"""Where an executor gets its batches from, and what becomes of each: the source of a run on this machine.

A `BatchSource` says what each pass has left, and makes the queue of an assignment; a cluster has another one. While a
batch is computed it is `Unfinished`, then a `Result`.
"""

from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from threading import Condition

import numpy as np
from msgspec.structs import replace

from interlock.engine.compute.encoder import Ids
from interlock.engine.compute.instance import ModelInstance
from interlock.engine.compute.job import Batch, Job
from interlock.engine.compute.ladder import Effort
from interlock.engine.compute.parts.files import Rows as Indices
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.schedule import Assignment
from interlock.engine.corpus.places import release
from interlock.engine.record.events import BatchCommitted, Emit, EnsemblePassCompleted, PassFailed, RowParked
from interlock.engine.record.facts import Computed, joined

MOMENT = 0.1
"""Seconds that are waited at a time for a batch that may still come."""


class Queue:
    """The batches that an assignment has left, pulled by its workers; `failed` says why nobody should go on, `narrow`
    that the rest is for a wider precision."""

    def __init__(self, job: Job, batches: Iterable[int]) -> None:
        self.job = job
        self.failed: Exception | None = None
        self.narrow = False
        self.refused = 0
        """Rows whose vectors were refused, alone too, since a batch went through whole."""
        self.committed: list[BatchCommitted] = []
        self.returned: Counter[str] = Counter()
        """Rows of the batches that were put back, by the device that had taken them."""
        self._left = deque(batches)

    def begin(self) -> None:
        """Somebody is about to work it off."""

    @property
    def open(self) -> bool:
        """Whether anybody should go on with it."""
        return self.failed is None and not self.narrow

    def __len__(self) -> int:
        return len(self._left) if self.open else 0

    def take(self) -> int | None:
        """Take the next batch; None when there is none."""
        try:
            return self._left.popleft() if self else None
        except IndexError:
            return None

    def left(self) -> list[int]:
        """List the batches that nobody has taken yet."""
        return list(self._left)

    def give_back(self, index: int) -> None:
        """Return a batch that was taken ahead, and that no device has begun."""
        self._left.appendleft(index)

    def more(self) -> bool:
        """Whether batches may still come where none is left; waits for one a moment."""
        return False

    def commit(self, event: BatchCommitted, outputs: Outputs, emit: Emit) -> None:
        """Write what a batch gave, and tell of it as it ran, with the CRC-32 of what was written."""
        rows = self.job.batches[event.batch_index].rows
        event = replace(event, crc=self.job.files.put(rows, outputs))
        release(rows)
        emit(event)
        self.committed.append(event)

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        self.job.files.sync()

    def put_back(self, index: int, device: str) -> None:
        """Return a batch that `device` took and did not compute."""
        self._left.appendleft(index)
        self.returned[device] += len(self.job.batches[index].rows)


@dataclass(frozen=True)
class Piece:
    """Rows of the batch that go through together, by their index in it, longest first."""

    indices: Indices
    effort: Effort
    instance: ModelInstance


@dataclass(frozen=True)
class Result:
    """What became of a batch: what its rows gave; its forwards; what computed how many rows; the rows that were
    parked."""

    outputs: Outputs
    forwards: int
    parts: Sequence[Computed]
    parked: Sequence[RowParked] = ()


@dataclass
class Unfinished:
    """A batch while it is computed: what is still to do, and what has come of the rest."""

    job: Job
    index: int
    rows: Sequence[Ids]
    pieces: deque[Piece]
    done: list[tuple[Indices, Outputs]] = field(default_factory=list)
    computed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Rows by device and precision."""
    parked: list[RowParked] = field(default_factory=list)
    forwards: int = 0
    calm: bool = True
    """Whether nothing has fallen short."""

    @property
    def batch(self) -> Batch:
        return self.job.batches[self.index]

    def lengths(self, piece: Piece) -> list[int]:
        return [len(self.rows[index]) for index in piece.indices]

    def rows_of(self, piece: Piece) -> Sequence[Ids]:
        whole = len(piece.indices) == len(self.rows)
        return self.rows if whole else [self.rows[index] for index in piece.indices]

    def take(self, piece: Piece, outputs: Outputs, bad: Sequence[int]) -> None:
        """Take in what a forward gave, but for its rows that are `bad`."""
        indices = piece.indices
        if bad:
            sound = np.setdiff1d(np.arange(len(outputs)), bad)
            indices, outputs = indices[sound], outputs.taken(sound)
        self.done.append((indices, outputs))
        if len(indices):  # where all were refused, it computed nothing that counts
            self.computed[piece.instance.device.name, piece.instance.dtype] += len(indices)

    def remove(self, rows: Sequence[int]) -> None:
        """Take rows out of what is still to do."""
        left = [changed(piece, indices=piece.indices[~np.isin(piece.indices, rows)]) for piece in self.pieces]
        self.pieces = deque(piece for piece in left if len(piece.indices))

    def park(self, piece: Piece, reason: str) -> None:
        job = self.job
        self.parked += [
            RowParked(
                model_pass=job.model_pass,
                model=job.card.key,
                collection=job.layout.collections[self.index],
                row=row,
                reason=reason,
                batch_index=self.index,
            )
            for row in self.batch.rows[piece.indices].tolist()
        ]

    def lost(self) -> list[RowParked]:
        """Leave rows that were to be parked as an earlier session has committed them, where it has; return the rest."""
        failed = {each.row for each in self.parked} if self.index in self.job.retried else set[int]()
        places = np.array([at for at, row in enumerate(self.batch.rows.tolist()) if row in failed], np.int64)
        if len(places) and (sound := (earlier := self.job.files.take(self.batch.rows[places])).sound).any():
            kept = self.batch.rows[places[sound]].tolist()
            self.done.append((places[sound], earlier.taken(np.flatnonzero(sound))))
            self.parked = [each for each in self.parked if each.row not in kept]
        return self.parked

    def result(self) -> Result:
        parts = [Computed(device=device, dtype=dtype, rows=rows) for (device, dtype), rows in self.computed.items()]
        outputs = Outputs.none(self.job.card).joined(len(self.rows), self.done)
        return Result(outputs, self.forwards, parts, self.parked)


class BatchSource:
    """The grid of a run, and the batches that each pass has left of it."""

    def __init__(
        self,
        grid: Sequence[Job],
        done: Sequence[Iterable[BatchCommitted]],
        weights: Sequence[float],
        emit: Emit,
    ) -> None:
        """`done` are, for each pass of the grid, the batches that earlier sessions committed; `weights[k]` is that of
        pass k, which the grid lacks where its model is missing."""
        self.grid = {job.model_pass: job for job in grid}
        self.left = [list(range(len(self.grid[k].batches))) if k in self.grid else [] for k in range(len(weights))]
        self._done = {job.model_pass: list(batches) for job, batches in zip(grid, done, strict=True)}
        self.left = self.without({number: indices(batches) for number, batches in self._done.items()})
        self._weights = weights
        self._emit = emit

    @property
    def last(self) -> bool:
        """Whether nothing of the run is left to be steered once all of it is done."""
        return True

    def more(self) -> bool:
        """Whether anything is left to be placed."""
        return any(self.left)

    def queue(self, job: Job, assignment: Assignment) -> Queue:
        """Make the queue of an assignment."""
        return Queue(job, assignment.batches)

    def without(self, done: Mapping[int, Iterable[int]]) -> list[list[int]]:
        """The batches that each pass has left when these are `done` too."""
        return [sorted({*batches} - {*done.get(number, ())}) for number, batches in enumerate(self.left)]

    def take_in(self, model_pass: int, committed: Sequence[BatchCommitted]) -> None:
        """Count batches as done."""
        self._done[model_pass] += committed
        self.left = self.without({model_pass: indices(committed)})

    def take_back(self, model_pass: int, batches: Iterable[int]) -> None:
        """Count batches as not done: they are computed again."""
        self._done[model_pass] = [each for each in self._done[model_pass] if each.batch_index not in {*batches}]
        self.left[model_pass] = sorted({*self.left[model_pass], *batches})

    def close(self, model_pass: int) -> None:
        """End a pass that has nothing left."""
        if not self.left[model_pass]:
            self._emit(completed(self.grid[model_pass], self._weights[model_pass], self._done[model_pass]))

    def fail(self, model_pass: int, reason: str) -> None:
        """Give up a pass; the others go on. Whoever tells the reason names the model."""
        self.left[model_pass] = []
        model = self.grid[model_pass].card.key
        self._emit(PassFailed(model_pass=model_pass, model=model, reason=reason.removeprefix(f"{model} ")))

    def rows_left(self, model_pass: int) -> int:
        """Count the rows that a pass has left."""
        batches = self.grid[model_pass].batches
        return sum(len(batches[index].rows) for index in self.left[model_pass])


class ArrivingSource(BatchSource):
    """The batches of one pass whose texts are still read, until all are: what is left then is another source's, which
    also tells the end of the pass, or why it failed."""

    def __init__(self, job: Job, stopped: Callable[[], bool]) -> None:
        """Begin without a batch; `stopped` says that nobody should wait for more."""
        super().__init__([job], [()], [0.0] * (job.model_pass + 1), lambda _: None)
        self._job, self._stopped, self._ended = job, stopped, False
        self._queue = ArrivingQueue(job, self)
        self.lock = Condition()

    @property
    def last(self) -> bool:
        return False

    @property
    def committed(self) -> list[int]:
        """The batches that were committed out of it."""
        return indices(self._done[self._job.model_pass])

    def add(self, batches: Sequence[Batch], collection: str, done: Callable[[range], Container[int]]) -> None:
        """Take in the next batches of the pass, of which `done` says by their range which need not be computed."""
        layout, number, first = self._job.layout, self._job.model_pass, len(self._job.batches)
        layout.collections.extend([collection] * len(batches))
        layout.batches.extend(batches)
        there = done(mine := range(first, len(layout.batches)))
        with self.lock:
            fresh = [index for index in mine if index not in there]
            self.left[number] = [*self.left[number], *fresh]
            self._queue.extend(fresh)
            self.lock.notify_all()

    def end(self) -> None:
        """Have what is under way be the last."""
        with self.lock:
            self._ended = True
            self.left[self._job.model_pass] = []
            while self._queue.take() is not None:
                pass
            self.lock.notify_all()

    def comes(self) -> bool:
        """Whether batches may still come; waits for one a moment where none is left."""
        with self.lock:
            if not (self._ended or self._stopped() or (any(self.left) and len(self._queue))):
                self.lock.wait(MOMENT)
            return not self._ended

    def more(self) -> bool:
        while not any(self.left) and not self._stopped() and self.comes():
            pass
        return not self._ended

    def queue(self, job: Job, assignment: Assignment) -> Queue:
        with self.lock:
            self._queue = ArrivingQueue(job, self)
            self._queue.extend(self.left[job.model_pass])
            return self._queue

    def take_in(self, model_pass: int, committed: Sequence[BatchCommitted]) -> None:
        with self.lock:
            super().take_in(model_pass, committed)

    def close(self, model_pass: int) -> None:
        """Leave it to the other source."""

    def fail(self, model_pass: int, reason: str) -> None:
        """Leave it to the other source."""
        self.end()


class ArrivingQueue(Queue):
    """What an assignment has left of a source whose batches still come."""

    def __init__(self, job: Job, source: ArrivingSource) -> None:
        super().__init__(job, ())
        self._source = source

    def extend(self, batches: Iterable[int]) -> None:
        """Have further batches wait."""
        self._left.extend(batches)

    def more(self) -> bool:
        return self.open and self._source.comes()


def completed(job: Job, weight: float, batches: Sequence[BatchCommitted]) -> EnsemblePassCompleted:
    """Describe a pass that has ended by its batches of all sessions, as they ran."""
    return EnsemblePassCompleted(
        model_pass=job.model_pass,
        model=job.card.key,
        device=joined(batch.device for batch in batches),
        dtype=joined(batch.dtype or job.card.dtype for batch in batches),
        weight=weight,
        rows=sum(batch.rows for batch in batches),
        seconds=round(sum(batch.seconds for batch in batches), 3),
    )


def indices(batches: Iterable[BatchCommitted]) -> list[int]:
    """Name batches by their place in their pass."""
    return [batch.batch_index for batch in batches]
