"""What a process holds open for its caller, until that closes it, lets it go or the process ends."""

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Self

from interlock.engine.errors import UsageError
from interlock.wording import python_wording


class OpenResource:
    """What one process holds open, and its threads use one after the other; a context manager."""

    _holds = ""

    def __init__(self, release: Callable[[], object]) -> None:
        self._process, self._lock, self._closed = os.getpid(), RLock(), False
        self._release = weakref.finalize(self, _let_go, release, self._process, self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> object:
        raise TypeError(f"a {type(self).__name__} is open in one process: make another where it is needed")

    def close(self) -> None:
        """Let what is held go, once no thread is at it. A fork of the process leaves it to that."""
        if os.getpid() == self._process:
            with self._lock:
                self._closed = True
                self._release()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until no other thread is at it. Raises UsageError where it is not open, or not in this process."""
        self._check()  # at first without the lock, which another thread may have had in the moment of the fork
        with self._lock, python_wording():
            self._check()
            yield

    def _check(self) -> None:
        name = type(self).__name__
        if os.getpid() != self._process:
            raise UsageError(
                f"the {self._holds} is open in the process that this one was forked from: use a {name} of its own"
            )
        if self._closed:
            raise UsageError(f"the {self._holds} was closed: use another {name}")


def _let_go(release: Callable[[], object], process: int, lock: "RLock") -> None:
    """Let go what nobody holds any more, or has left open at the end of its process, unless a thread is at it."""
    if os.getpid() == process and lock.acquire(blocking=False):
        try:
            release()
        finally:
            lock.release()
