"""What passes have left to compute, and what becomes of each: it goes on, it has ended, or it has failed."""

from collections.abc import Iterable, Mapping, Sequence

from interlock.engine.compute.grid import Cells, Queue
from interlock.engine.compute.schedule import Assignment
from interlock.engine.record.events import BatchCommitted, Emit, EnsemblePassCompleted, PassFailed
from interlock.engine.record.facts import joined


class Backlog:
    """The grid of a run, and the batches that each pass has left of it."""

    def __init__(
        self,
        grid: Sequence[Cells],
        done: Sequence[Iterable[BatchCommitted]],
        weights: Sequence[float],
        emit: Emit,
    ) -> None:
        """`done` are, for each pass of the grid, the batches that earlier sessions committed; `weights[k]` is that of
        pass k, which the grid lacks where its model is missing."""
        self.grid = {cells.model_pass: cells for cells in grid}
        self.left = [list(range(len(self.grid[k].batches))) if k in self.grid else [] for k in range(len(weights))]
        self._done = {cells.model_pass: list(batches) for cells, batches in zip(grid, done, strict=True)}
        self.left = self.without({number: indices(batches) for number, batches in self._done.items()})
        self._weights = weights
        self._emit = emit

    def more(self) -> bool:
        """Whether anything is left to be placed."""
        return any(self.left)

    def queue(self, cells: Cells, assignment: Assignment) -> Queue:
        """Make the queue of an assignment."""
        return Queue(cells, assignment.batches)

    def without(self, done: Mapping[int, Iterable[int]]) -> list[list[int]]:
        """The batches that each pass has left when these are `done` too."""
        return [sorted({*batches} - {*done.get(number, ())}) for number, batches in enumerate(self.left)]

    def take_in(self, model_pass: int, committed: Sequence[BatchCommitted]) -> None:
        """Count batches as done."""
        self._done[model_pass] += committed
        self.left = self.without({model_pass: indices(committed)})

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


def completed(cells: Cells, weight: float, batches: Sequence[BatchCommitted]) -> EnsemblePassCompleted:
    """Describe a pass that has ended by its batches of all sessions, as they ran."""
    return EnsemblePassCompleted(
        model_pass=cells.model_pass,
        model=cells.card.key,
        device=joined(batch.device for batch in batches),
        dtype=joined(batch.dtype or cells.card.dtype for batch in batches),
        weight=weight,
        rows=sum(batch.rows for batch in batches),
        seconds=round(sum(batch.seconds for batch in batches), 3),
    )


def indices(batches: Iterable[BatchCommitted]) -> list[int]:
    """Name batches by their place in their pass."""
    return [batch.batch_index for batch in batches]
