"""The latest entries of a run, for those who poll: bounded, and what is gone is counted."""

from collections import deque
from itertools import islice

from interlock.engine.record.events import Entry

LATEST = 4096


class Ring:
    """At most `LATEST` entries whose `seq` rise by one. It has no lock of its own."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=LATEST)

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)

    def after(self, seq: int) -> tuple[list[Entry], int]:
        """Return those with a `seq` above this one, and how many before them are kept no more."""
        count = self._entries[-1].seq - seq if self._entries else 0
        fresh = list(islice(reversed(self._entries), max(0, count)))[::-1]
        return fresh, fresh[0].seq - seq - 1 if fresh else 0
