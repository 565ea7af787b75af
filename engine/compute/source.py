"""Where an executor gets its batches from, and what becomes of each: the source of a run on this machine.

A `BatchSource` says what each pass has left, and makes the queue of an assignment; a cluster has another one.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from interlock.engine.compute.job import Job
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.schedule import Assignment
from interlock.engine.record.events import BatchCommitted, Emit, EnsemblePassCompleted, PassFailed
from interlock.engine.record.facts import joined


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
        event = replace(event, crc=self.job.files.put(self.job.batches[event.batch_index].rows, outputs))
        emit(event)
        self.committed.append(event)

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        self.job.files.sync()

    def put_back(self, index: int, device: str) -> None:
        """Return a batch that `device` took and did not compute."""
        self._left.appendleft(index)
        self.returned[device] += len(self.job.batches[index].rows)


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
