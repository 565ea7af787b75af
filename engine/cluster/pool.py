"""Who has which batch of a pass: each is waiting, held by one node or by two, or done. Pure."""

from collections import deque
from collections.abc import Iterable


class BatchPool:
    """The batches of one pass while it is open."""

    def __init__(self, batches: Iterable[int]) -> None:
        self._waiting = deque(batches)
        self._holders: dict[int, list[str]] = {}

    def __len__(self) -> int:
        """How many are not done."""
        return len(self._waiting) + len(self._holders)

    @property
    def waiting(self) -> int:
        """How many nobody has."""
        return len(self._waiting)

    @property
    def next(self) -> int:
        """The batch that is handed out next, of those that wait."""
        return self._waiting[0]

    def hand(self, node: str) -> int:
        """Give the next batch to a node."""
        batch = self._waiting.popleft()
        self._holders[batch] = [node]
        return batch

    def held(self, node: str) -> list[int]:
        """List what a node holds, in the order in which it was given."""
        return [batch for batch, holders in self._holders.items() if node in holders]

    def alone(self, node: str) -> list[int]:
        """List what only this node holds."""
        return [batch for batch, holders in self._holders.items() if holders == [node]]

    def double(self, batch: int, node: str) -> None:
        """Give a batch that one node holds to another too."""
        self._holders[batch].append(node)

    def finish(self, batch: int, node: str) -> list[str] | None:
        """Count a batch as done by a node that holds it; who else does. None where it does not, so that it counts no
        more."""
        if node not in self._holders.get(batch, ()):
            return None
        return [other for other in self._holders.pop(batch) if other != node]

    def take_back(self, node: str) -> list[int]:
        """Take everything from a node; what it alone held waits again, first of all."""
        back = self.alone(node)
        for batch in self.held(node):
            self._holders[batch].remove(node)
        for batch in back:
            del self._holders[batch]
        self._waiting.extendleft(reversed(back))
        return back
