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
        self._checks: dict[int, str] = {}

    def __len__(self) -> int:
        """How many are not done, or wait for another node to compute them too."""
        return self._left + len(self._checks)

    def held(self, node: str) -> Mapping[int, None]:
        """What a node holds, in the order in which it was taken."""
        return self._held[node]

    @property
    def unheld(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def waiting(self, node: str) -> list[int]:
        """List what a node may take, in order."""
        return sorted(batch for batch in self._waiting if self._may(batch, node))

    def next(self, node: str, last: float = math.inf) -> int | None:
        """The batch that a node is given next, up to the `last` that it would take; None: nothing waits for it."""
        may = (batch for batch in self._waiting if batch <= last and self._may(batch, node))
        return next(may, None)  # what was doubled waits behind later ones

    def _may(self, batch: int, node: str) -> bool:
        return batch not in self._held[node] and self._checks.get(batch) != node

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

    def check(self, batch: int, node: str) -> None:
        """Have a batch that a node gave computed by another one too, before all that waits."""
        self._checks[batch] = node
        self._waiting.appendleft(batch)

    def checked(self, batch: int) -> None:
        """Another node has given it too, or nobody else is to."""
        if self._checks.pop(batch, ""):
            for holder in self._holders.pop(batch, ()):
                del self._held[holder][batch]
            if batch in self._waiting:
                self._waiting.remove(batch)

    @property
    def checks(self) -> list[int]:
        """List what waits for another node."""
        return [*self._checks]

    def again(self, batches: Iterable[int]) -> None:
        """Have batches that are done computed again, first of all."""
        for batch in batches:
            self.checked(batch)
            self._left += 1
            self._waiting.appendleft(batch)

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
        known, before = self._doubled | self._checks.keys(), len(self._doubled)
        alone = [batch for batch in self._held[node] if batch not in known]
        while alone and max(sum(map(seconds.__getitem__, alone)) / devices, silent) > 2 * seconds[alone[-1]] + lead:
            self._waiting.append(alone[-1])
            self._doubled.add(alone.pop())
        return len(self._doubled) > before
