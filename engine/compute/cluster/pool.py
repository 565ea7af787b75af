"""Who has which batch of a pass: each is waiting, held by one node or by two, or done. Pure."""

from collections import defaultdict, deque
from collections.abc import Iterable


class BatchPool:
    """The batches of one pass while it is open."""

    def __init__(self, batches: Iterable[int]) -> None:
        self._waiting = deque(batches)
        self._holders: dict[int, list[str]] = {}
        self._held: defaultdict[str, dict[int, None]] = defaultdict(dict)
        """By node, in the order in which they were given; a thousand nodes ask often."""

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
        self._held[node][batch] = None
        return batch

    def held(self, node: str) -> list[int]:
        """List what a node holds, in the order in which it was given."""
        return list(self._held[node])

    def alone(self, node: str) -> list[int]:
        """List what only this node holds."""
        return [batch for batch in self._held[node] if len(self._holders[batch]) == 1]

    def double(self, batch: int, node: str) -> None:
        """Give a batch that one node holds to another too."""
        self._holders[batch].append(node)
        self._held[node][batch] = None

    def finish(self, batch: int, node: str) -> list[str] | None:
        """Count a batch as done by a node that holds it; who else does. None where it does not, so that it counts no
        more."""
        if batch not in self._held[node]:
            return None
        holders = self._holders.pop(batch)
        for holder in holders:
            del self._held[holder][batch]
        return [other for other in holders if other != node]

    def take_back(self, node: str) -> list[int]:
        """Take everything from a node; what it alone held waits again, first of all."""
        back = self.alone(node)
        for batch in self._held.pop(node, {}):
            self._holders[batch].remove(node)
        for batch in back:
            del self._holders[batch]
        self._waiting.extendleft(reversed(back))
        return back
