"""Who has which batch of a pass. Pure."""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping


class BatchPool:
    """The batches of one pass: each waits, is held by a node, or is done; one that is doubled waits and is held."""

    def __init__(self, batches: Iterable[int]) -> None:
        self._waiting = deque(batches)
        self._left = len(self._waiting)
        self._holders: dict[int, list[str]] = {}
        self._held: defaultdict[str, dict[int, None]] = defaultdict(dict)
        self._doubled: set[int] = set()

    def __len__(self) -> int:
        """How many are not done."""
        return self._left

    def held(self, node: str) -> Mapping[int, None]:
        """What a node holds, in the order in which it was taken."""
        return self._held[node]

    @property
    def unheld(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def waiting(self, node: str) -> list[int]:
        """List what a node may take, in order."""
        return sorted(batch for batch in self._waiting if batch not in self._held[node])

    def next(self, node: str, last: float = math.inf) -> int | None:
        """The batch that a node is given next, up to the `last` that it would take; None: nothing waits for it."""
        mine = self._held[node]  # what was doubled waits behind later ones
        return next((batch for batch in self._waiting if batch <= last and batch not in mine), None)

    def take(self, batch: int, node: str) -> list[str]:
        """Give a batch that waits to a node; returns who holds it too."""
        self._waiting.remove(batch)  # one of the first
        self._held[node][batch] = None
        others = self._holders.setdefault(batch, [])
        others.append(node)
        return others[:-1]

    def commit(self, batch: int, node: str) -> list[str]:
        """Count a batch as done by a node that holds it; returns who else does."""
        holders = self._holders.pop(batch)
        for holder in holders:
            del self._held[holder][batch]
        if batch in self._doubled and batch in self._waiting:
            self._waiting.remove(batch)
        self._left -= 1
        return [other for other in holders if other != node]

    def give_back(self, node: str) -> list[int]:
        """Take everything from a node; what it alone held waits again, first of all."""
        held = self._held.pop(node, {})
        for batch in held:
            self._holders[batch].remove(node)
        back = [batch for batch in held if not self._holders[batch]]
        for batch in back:
            del self._holders[batch]
        self._waiting.extendleft(batch for batch in reversed(back) if batch not in self._waiting)
        self._doubled.difference_update(back)
        return back

    def double(self, node: str, seconds: Mapping[int, float], devices: int, silent: float, lead: float) -> bool:
        """Have what a node alone holds wait too, from its end, as far as it would be long: `seconds` are those of each
        batch, of which it computes as many side by side as it has `devices`, and `silent` is how long it gave nothing.
        Twice a batch's seconds and a `lead` are not long. Tells whether there is any."""
        alone, before = [batch for batch in self._held[node] if batch not in self._doubled], len(self._doubled)
        while alone and max(sum(map(seconds.__getitem__, alone)) / devices, silent) > 2 * seconds[alone[-1]] + lead:
            self._waiting.append(alone[-1])
            self._doubled.add(alone.pop())
        return len(self._doubled) > before
