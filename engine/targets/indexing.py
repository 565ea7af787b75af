"""Has a collection of a server build its indexes, waits until it has, and tells how far they are.

One green answer proves nothing: a server takes up a new configuration in the background, and each peer of a cluster in
its own time. Several answers are believed that are spaced, green and the same, while no optimisation runs or waits by
the server's own list; where it has none, an index has to be there if vectors are too many to go without. Where they are
so few that no index is ever built, one is enough. What is grey was left when the server was stopped, and waits for an
update: it is woken.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from interlock.engine.errors import InterlockError, UnavailableError
from interlock.engine.record.words import duration
from interlock.engine.targets.collection import ServerCollection
from interlock.engine.targets.layout import INDEXED, UNINDEXED, unindexed
from interlock.engine.targets.server import Forbidden, QdrantServer
from interlock.engine.targets.target import batches, gated
from interlock.engine.vectors.points import Point

if TYPE_CHECKING:
    from qdrant_client.models import CollectionInfo

GREENS, SPACING = 3, 1.5
"""Answers in a row that have to be green and the same, and seconds between them."""
POLLS = (0.2, 5.0)
"""Seconds between two looks at a collection that is not: the first pause, and the longest."""
TOLD, WAKES = 10.0, 60.0
"""Seconds between two words on progress, and between two attempts to wake what is grey."""
LEAST_THRESHOLD, THRESHOLD = 10_000, 20_000
"""KiB of vectors that a segment has without an index unless its collection says otherwise: the least of any version,
and the most."""


class _Stand(Protocol):
    """Hears what is waited for, for how many seconds more, and whether the server has left off with it."""

    def __call__(self, waits: str, seconds: float, *, cut: bool) -> object: ...


@dataclass(frozen=True)
class _Look:
    """What one answer says; `busy` is why it is not done, empty: it is."""

    status: str
    indexed: int | None
    segments: int
    busy: str


@dataclass(frozen=True)
class IndexWait:
    """One wait of at most `seconds`; `some` are points of the collection, to be sent again where nothing else wakes it,
    `say` hears of progress, and `stand` at each look of what is waited for, for how many seconds more."""

    server: QdrantServer
    target: ServerCollection
    seconds: float
    some: Callable[[], Iterable[Point]]
    say: Callable[[str], object]
    stand: _Stand

    def until_built(
        self, described: Callable[[], "CollectionInfo"], clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        """Return once indexes are built. Raises InterlockError where they fail, UnavailableError where it takes too
        long."""
        from qdrant_client.models import HnswConfigDiff

        if unindexed(described()):
            self.server.change(self.target.name, hnsw_config=HnswConfigDiff(m=INDEXED))
        began = told = clock()
        woken, pause, same, last = began - WAKES, POLLS[0], 0, None
        while True:
            there = described()
            look, now = self._look(there), clock()
            waits = f"its indexes are built ({look.busy})" if look.busy else ""
            self.stand(waits, began + self.seconds - now, cut=look.status == "grey")
            if look.status == "red":
                raise InterlockError(
                    f"{self.target.where} failed to build its indexes ({look.busy}): fix that on the server, then "
                    "repeat the command"
                )
            same = 0 if look.busy else same + 1 if look == last else 1
            if same >= (1 if _few(there) else GREENS):
                return
            if now - began > self.seconds + (0 if look.busy else 2 * GREENS * SPACING):
                raise UnavailableError(
                    f"{self.target.where} has all its points, and its indexes are not built after {self.seconds:g} s "
                    f"({look.busy or 'its counts change'}): wait on with the same command, or raise --settle"
                )
            if look.status == "grey" and now - woken >= WAKES:
                self.say(f"{self.target.name} is grey, its indexing was cut off: it is set going again")
                self._wake()
                woken = now
            if now - told >= TOLD:
                self.say(self._progress(look, now - began))
                told = now
            sleep(SPACING if same else pause)
            pause, last = min(POLLS[1], 2 * pause), look

    def _wake(self) -> None:
        """Have a server take up again what it left when it was stopped: any update makes it. One of the configuration
        reaches every shard; a key that may not make it sends some points once more."""
        from qdrant_client.models import OptimizersConfigDiff

        try:
            self.server.change(self.target.name, optimizers_config=OptimizersConfigDiff())
        except Forbidden:
            points = [gated(each, self.target) for each in self.some()]
            for batch, size in batches(points, self.target.most_points, lambda: self.target.most_bytes):
                self.target.upsert(batch, size)

    def _look(self, there: "CollectionInfo") -> _Look:
        status, hnsw = str(there.status.value), there.config.hnsw_config
        queue = getattr(there, "update_queue", None)
        waiting, busy = None, ""
        if hnsw and hnsw.m == UNINDEXED:
            busy = "m = 0, as it was made"
        elif status == "red":
            busy = self.server.shown(getattr(there.optimizer_status, "error", there.optimizer_status))
        elif status != "green":
            busy = status
        elif queue and queue.length:
            busy = f"green, {queue.length:,} updates wait"
        elif (waiting := self.server.waiting(self.target.name)) is None:
            busy = "" if _enough(there) else "green, nothing is indexed"
        elif waiting:
            busy = f"green, {waiting:,} optimisations run or wait"
        return _Look(status, there.indexed_vectors_count, there.segments_count, busy)

    def _progress(self, look: _Look, elapsed: float) -> str:
        indexed = "" if look.indexed is None else f"{look.indexed:,} vectors indexed, "
        return (
            f"{self.target.name}: all points there, its indexes are built ({look.busy or look.status}): {indexed}"
            f"{duration(elapsed)} of at most {duration(self.seconds)}"
        )


def _enough(there: "CollectionInfo") -> bool:
    """Whether there may be no more to index: some is, or no segment has so many vectors that it has to be."""
    threshold, numbers = there.config.optimizer_config.indexing_threshold, _numbers(there)
    most = 2048 * (THRESHOLD if threshold is None else threshold) * there.segments_count
    return bool(there.indexed_vectors_count != 0 or not threshold or 2 * numbers <= most)  # in halves, to be sure


def _few(there: "CollectionInfo") -> bool:
    """Whether all vectors together are fewer than those from which on a segment gets an index."""
    threshold = there.config.optimizer_config.indexing_threshold
    return 4 * _numbers(there) < 1024 * (LEAST_THRESHOLD if threshold is None else threshold)


def _numbers(there: "CollectionInfo") -> int:
    """Count the numbers in the widest vectors of a collection that are indexed."""
    vectors = there.config.params.vectors
    named = vectors.values() if isinstance(vectors, dict) else ()
    return max((each.size for each in named if not each.multivector_config), default=0) * (there.points_count or 0)
