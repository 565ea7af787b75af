"""A search in a summary that is done in slices, so that a screen goes on while a large one is walked through."""

import time

from interlock.widgets.nodes import Node, Steps, holds, walk

AT_ONCE = 200
"""Places that are looked at between two looks at the clock."""


class Search:
    """Finds where a key or a value contains `text`, in any case of letters."""

    def __init__(self, top: Node, text: str) -> None:
        self.text = text
        self.places: list[Steps] = []
        self.seen = 0
        """Places that were looked at."""
        self.over = not text
        self._wanted = text.casefold()
        self._left = walk(top)

    def go_on(self, seconds: float) -> None:
        """Look for so long, or to the end."""
        until = time.monotonic() + seconds
        while not self.over and time.monotonic() < until:
            for _ in range(AT_ONCE):
                node = next(self._left, None)
                if node is None:
                    self.over = True
                    return
                self.seen += 1
                if holds(node, self._wanted):
                    self.places.append(node.steps)
