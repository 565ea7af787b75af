"""The runs of a directory as they stand, looked at again and again in a thread, so that a screen never waits for them.

What was not written to since is not read again; of a run that goes on only what was added.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.record import atomic
from interlock.engine.record.atomic import SESSION
from interlock.engine.record.fold import fold_all
from interlock.engine.record.recorder import Tail, journal_at
from interlock.engine.record.rundir import JOURNAL, SUMMARY, beside, is_run, runs_at, runs_in
from interlock.engine.record.state import RunState
from interlock.engine.record.words import few, named
from interlock.engine.standing.runs import Overview, overview

BEAT = 2.0
"""Seconds from one look to the next."""
Rank = Callable[[Overview], Any]
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


def latest(each: Overview) -> float:
    """Rank runs, low first: the one that began last first."""
    return -each.began_at


def neediest(each: Overview) -> tuple[object, ...]:
    """Rank runs, low first: those that need somebody, of them those in use, then the one that began last."""
    return each.need(time.time()), not each.held, latest(each)


def walled(paths: Sequence[Path]) -> list[Path]:
    """Find the directories of runs, and the runs, that are meant; none where it is a single run. Raises UsageError for
    what is neither."""
    found = list(map(_meant, paths))
    return [] if len(found) == 1 and is_run(found[0]) else found


def _meant(path: Path) -> Path:
    """The run at a path, or the directory of runs: that, or its `runs`."""
    if is_run(path) or not path.is_dir():
        if not is_run(run := journal_at(path).parent):
            raise UsageError(f"{path} does not belong to a run: name a run directory ({beside(path)})")
        return run
    if there := next(filter(runs_in, (path, path / "runs")), None):
        return there
    with atomic.reading(path):
        lies = sorted(named(each.relative_to(path)) for each in path.iterdir())
    what = f"in it: {few(lies, 3)}" if lies else "it is empty"
    wrong = f"{path} is neither a run nor a directory of runs ({what})"
    raise UsageError(f"{wrong}: name one, or none for the runs under --out ({beside(path)})")


class RunList:
    """Keeps looking at the runs in directories, or at single ones, until it is closed; it can be opened again."""

    def __init__(self, *places: Path, rank: Rank = latest) -> None:
        self.places, self.rank = places, rank
        self.complete = False
        """Whether every run was looked at once."""
        self.looks = 0
        """How often it has looked."""
        self.failure = ""
        self._known: dict[Path, _Run] = {}
        self._there = set[Path]()
        """The places that were there once."""
        self._ended, self._wake = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.open()

    @property
    def seen(self) -> Sequence[Overview]:
        """List the runs that were looked at, by their rank."""
        return sorted((each.seen for each in list(self._known.values()) if each.seen), key=self.rank)

    def open(self) -> None:
        """Begin to look, or go on where a list that was closed left off."""
        if self._thread is None:
            self._ended.clear()
            self._thread = threading.Thread(target=self._run, name="runs", daemon=True)
            self._thread.start()

    def look(self) -> None:
        """Look again at once."""
        self._wake.set()

    def close(self) -> None:
        self._ended.set()
        self._wake.set()
        if self._thread:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._look()
                self.failure = self._gone()
            except Exception as error:  # whatever a directory holds, the screen goes on
                self.failure = str(error)
            self.complete, self.looks = True, self.looks + 1
            self._wake.wait(BEAT)
            self._wake.clear()

    def _gone(self) -> str:
        there = {place for place in self.places if place.exists()}
        gone, self._there = self._there - there, self._there | there
        return f"{few(sorted(map(str, gone)), 2)}: no longer there" if gone else ""

    def _look(self) -> None:
        paths = runs_at(self.places)
        for gone in self._known.keys() - set(paths):
            del self._known[gone]
        for path in paths:
            if self._ended.is_set():
                return
            stamp, known = _stamp(path), self._known.setdefault(path, _Run(Tail(path / JOURNAL)))
            if known.seen and known.stamp == stamp and not (known.seen.held or known.seen.uploading):
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
    for file in (path / JOURNAL, path / SUMMARY, path / SESSION, *sorted(path.glob("uploads/*.jsonl"))):
        try:
            status = file.stat()
            found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        except OSError:
            found.append((0, 0, 0))
    return tuple(found)
