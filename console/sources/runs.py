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
class _Run:
    """What was found out about a run and of which state of its files, and how far its journal was read."""

    tail: Tail
    seen: Overview | None = None
    stamp: Stamp = ()
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
        self._known: dict[Path, _Run] = {}
        self._ended, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="runs", daemon=True)
        self._thread.start()

    @property
    def seen(self) -> Sequence[Overview]:
        """List the runs that were looked at, the one that began last first."""
        seen = [each.seen for each in list(self._known.values()) if each.seen]
        return sorted(seen, key=lambda each: each.began_at, reverse=True)

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
        for path in paths:
            if self._ended.is_set():
                return
            stamp, known = _stamp(path), self._known.setdefault(path, _Run(Tail(path / JOURNAL)))
            if known.seen and known.stamp == stamp and not known.seen.held:
                continue
            known.seen, known.stamp = overview(path, time.time(), self._folded), stamp
            if not known.seen.held:  # what may go on is read from its beginning
                known.tail, known.state, known.failure = Tail(path / JOURNAL), RunState(), None

    def _folded(self, path: Path) -> RunState:
        """The state of a run, folded on from where it was left."""
        run, empty = self._known[path], 0
        while not self._ended.is_set() and empty < 2:  # a line in doubt is looked at twice
            anew, entries = run.tail.more()
            if anew:
                run.state, run.failure = RunState(), None
            if run.failure:
                raise run.failure
            try:
                fold_all(run.state, entries)
            except InterlockError as error:
                run.failure = error
                raise
            empty = 0 if entries else empty + 1
        return run.state


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
