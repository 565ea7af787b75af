"""The runs of a directory as they stand, looked at again and again in a thread, so that a screen never waits for them.

What was not written to since is not read again; of a run that goes on only what was added.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from interlock.engine.errors import InterlockError
from interlock.engine.record.atomic import SESSION
from interlock.engine.record.fold import fold_all
from interlock.engine.record.recorder import Tail
from interlock.engine.record.rundir import JOURNAL, SUMMARY, runs_in
from interlock.engine.record.runs import Overview, overview
from interlock.engine.record.state import RunState

BEAT = 2.0
"""Seconds from one look to the next."""
Stamp = tuple[tuple[int, int, int], ...]


@dataclass
class _Known:
    """What was found out about a run, and of which state of its files."""

    seen: Overview
    stamp: Stamp


@dataclass
class _Followed:
    """A run that is not closed, as far as its journal was read."""

    tail: Tail
    state: RunState = field(default_factory=RunState)
    failure: InterlockError | None = None
    """Why nothing behind what was read can be trusted."""


class RunList:
    """Keeps looking at the runs in a directory until it is closed."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.complete = False
        """Whether every run was looked at once."""
        self.failure = ""
        self._known: dict[Path, _Known] = {}
        self._followed: dict[Path, _Followed] = {}
        self._ended, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="runs", daemon=True)
        self._thread.start()

    @property
    def seen(self) -> Sequence[Overview]:
        """List the runs that were looked at, the one that began last first."""
        return sorted((each.seen for each in list(self._known.values())), key=lambda each: each.began_at, reverse=True)

    def look(self) -> None:
        """Look again at once."""
        self._wake.set()

    def close(self) -> None:
        self._ended.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._look()
                self.failure = ""
            except Exception as error:  # whatever a directory holds, the screen goes on
                self.failure = str(error)
            self.complete = True
            self._wake.wait(BEAT)
            self._wake.clear()

    def _look(self) -> None:
        paths = runs_in(self.out)
        for gone in self._known.keys() - set(paths):
            del self._known[gone]
            self._followed.pop(gone, None)
        for path in paths:
            if self._ended.is_set():
                return
            stamp, known = _stamp(path), self._known.get(path)
            if known and known.stamp == stamp and not known.seen.held:
                continue
            seen = overview(path, time.time(), self._folded)
            self._known[path] = _Known(seen, stamp)
            if not seen.held:
                self._followed.pop(path, None)

    def _folded(self, path: Path) -> RunState:
        """The state of a run, folded on from where it was left."""
        followed = self._followed.setdefault(path, _Followed(Tail(path / JOURNAL)))
        empty = 0
        while not self._ended.is_set() and empty < 2:  # a line in doubt is looked at twice
            anew, entries = followed.tail.more()
            if anew:
                followed.state, followed.failure = RunState(), None
            if followed.failure:
                raise followed.failure
            try:
                fold_all(followed.state, entries)
            except InterlockError as error:
                followed.failure = error
                raise
            empty = 0 if entries else empty + 1
        return followed.state


def _stamp(path: Path) -> Stamp:
    """What changes when a run is written to, or somebody has it in use no more."""
    found = []
    for name in (JOURNAL, SUMMARY, SESSION):
        try:
            status = (path / name).stat()
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            found.append((0, 0, 0))
    return tuple(found)
