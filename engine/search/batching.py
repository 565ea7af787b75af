"""Requests of many clients for one thread that computes: those that wait for the same thing become one batch.

Nobody waits for a batch to fill: it is what came while the one before was computed. A request of more texts than a
batch is computed piece by piece, and others come between. What waits is bounded in texts, so that a client hears at
once that there is too much, and not after a minute.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


class QueueFull(Exception):
    """As many texts wait as may."""


@dataclass(eq=False)
class _Request(Generic[K, R]):
    """Texts of which one thing is wanted: those that are still `left`, the rows of the others, and where they go."""

    key: K
    left: Sequence[str]
    rows: list[R] = field(default_factory=list)
    future: "Future[Sequence[R]]" = field(default_factory=Future)


class RequestBatcher(Generic[K, R]):
    """Computes what is asked for, in the order in which it came, in a thread of its own; closed once."""

    def __init__(
        self,
        work: Callable[[K, Sequence[str]], Sequence[R]],
        batch: int,
        waiting: int,
        seen: Callable[[int], object] = lambda texts: None,
    ) -> None:
        """`work` computes something of each text; a `batch` has so many texts at most, and so many are `waiting`
        at most. `seen` hears the texts of each batch."""
        self._work, self._batch, self._most, self._seen = work, batch, waiting, seen
        self._requests = deque[_Request[K, R]]()
        self._changed, self._closed = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="batches", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many texts wait."""
        with self._changed:
            return self._texts()

    def submit(self, key: K, texts: Sequence[str]) -> "Future[Sequence[R]]":
        """Ask for what `key` says of each text; a future that is cancelled is not computed. Raises QueueFull where they
        would be too many with those that wait."""
        request: _Request[K, R] = _Request(key, texts)
        with self._changed:
            if self._closed or self._texts() + len(texts) > self._most:
                raise QueueFull
            self._requests.append(request)
            self._changed.notify()
        return request.future

    def close(self) -> None:
        """Compute what waits, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _texts(self) -> int:
        return sum(len(each.left) for each in self._wanted())

    def _wanted(self) -> deque[_Request[K, R]]:
        """Let go what nobody waits for any more, and its texts with it."""
        self._requests = deque(each for each in self._requests if not each.future.done())
        return self._requests

    def _run(self) -> None:
        while batch := self._next():
            self._compute(batch)

    def _next(self) -> list[tuple[_Request[K, R], Sequence[str]]]:
        """Take the oldest request, or a piece of it, which then is the latest, and all for the same thing that the
        batch has room for; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted() or self._closed)
            batch, room = list[tuple[_Request[K, R], Sequence[str]]](), self._batch
            for each in [*self._requests]:
                if not batch or (each.key == batch[0][0].key and len(each.left) <= room):
                    self._requests.remove(each)
                    piece, each.left = each.left[:room], each.left[room:]
                    batch.append((each, piece))
                    room -= len(piece)
                    if each.left:
                        self._requests.append(each)
            return batch

    def _compute(self, batch: Sequence[tuple[_Request[K, R], Sequence[str]]]) -> None:
        texts = [text for _, piece in batch for text in piece]
        try:
            rows = self._work(batch[0][0].key, texts)
        except BaseException as error:  # a library's panic is no Exception, and without this thread nobody is answered
            if len(batch) == 1:
                fault = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
                with suppress(InvalidStateError):  # the client has left
                    batch[0][0].future.set_exception(fault)
                return
            for each in batch:  # one request's fault is not that of its neighbours
                self._compute([each])
            return
        self._seen(len(texts))
        for request, piece in batch:
            request.rows += rows[: len(piece)]
            rows = rows[len(piece) :]
            if not request.left:
                with suppress(InvalidStateError):
                    request.future.set_result(request.rows)
