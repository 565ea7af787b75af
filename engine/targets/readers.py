"""Readers of one process share an open collection: the engine opens a directory once, and searches it side by side.

What is open changes for none of them: whoever writes waits until the last has let it go.
"""

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from interlock.engine.targets import shard

if TYPE_CHECKING:
    from qdrant_edge import EdgeShard


@dataclass(eq=False)
class _Shared:
    """An open collection, what closes it, and how many read it."""

    readers: int = 0
    engine: "EdgeShard | None" = None
    held: ExitStack = field(default_factory=ExitStack)


_TURN = RLock()  # the collector of garbage may let a reader go wherever this thread is


@contextmanager
def reading(path: Path) -> "Iterator[EdgeShard]":
    """Hold a collection open to read, together with all who do so in this process. Raises UsageError where it is
    damaged or another process has it open."""
    with _TURN:
        key = shard.key_of(path)
        while True:
            shared: _Shared = shard.READ.setdefault(key, _Shared())
            shared.readers += 1
            if shared is shard.READ.get(key):  # else its last reader went in this moment
                break
        try:
            engine = shared.engine = shared.engine or _opened(path, shared.held)
        except BaseException:
            _let_go(key, shared)
            raise
    try:
        yield engine
    finally:
        with _TURN:
            _let_go(key, shared)


def _opened(path: Path, held: ExitStack) -> "EdgeShard":
    held.enter_context(shard.holding(path, fcntl.LOCK_SH))
    engine = shard.load(path, None)
    held.callback(engine.close)
    return engine


def _let_go(key: tuple[int, ...], shared: _Shared) -> None:
    shared.readers -= 1
    if not shared.readers:
        del shard.READ[key]
        shared.held.close()
