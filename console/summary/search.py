"""A search in a summary that is done in slices, so that a screen goes on while a large one is walked through."""

import time
from itertools import islice

from interlock.widgets.nodes import Node, Steps, sought

AT_ONCE = 500
"""Places that are looked at between two looks at the clock."""
MOST = 20_000
"""Matches after which nobody wants another one."""


class Search:
    """Finds where a key or a value contains `text`, in any case of letters."""

    def __init__(self, top: Node, text: str) -> None:
        self.text = text
        self.places: list[Steps] = []
        self.over = not text
        self._left = sought(top, text)

    @property
    def count(self) -> str:
        """How many places were found, in a word."""
        return f"{len(self.places):,}" + "+" * (len(self.places) >= MOST)

    def go_on(self, seconds: float) -> None:
        """Look for so long, or to the end."""
        until = time.monotonic() + seconds
        while not self.over and time.monotonic() < until:
            looked_at = list(islice(self._left, AT_ONCE))
            self.places += [steps for steps in looked_at if steps is not None]
            self.over = len(looked_at) < AT_ONCE or len(self.places) >= MOST
