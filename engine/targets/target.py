"""A place for points, and the one way into it: rows in order, a mark behind what is there, one comparison, one pruning.

The embedded store and a collection of a server are both a `Target`: what has its own words, patience or transport hides
behind upsert, ids, read and remove. What a target holds is never believed: points are counted or their texts read back,
and a sample is compared number by number.
"""

import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol
from uuid import UUID

import numpy as np
import numpy.typing as npt

from interlock.engine.corpus.identity import digest_of, point_of
from interlock.engine.errors import InterlockError
from interlock.engine.record.shards import Shard
from interlock.engine.record.words import several
from interlock.engine.targets.connection import begun
from interlock.engine.vectors.points import Point, Vector, same_json, storable

MOST_POINTS, MOST_BYTES = 256, 8_000_000
"""Of one upsert."""
MIN_COSINE, MIN_QUANTISED = 1 - 1e-5, 0.999
"""Between a dense vector as delivered and as it is kept, at unit length and perhaps in float16; in eight bits a number
it has lost more."""
TOGETHER = 10
"""Points that are read back whole at a time."""
IDENTITY = ("source", "chunk_id")
"""What of a payload says which point it is."""
Ids = Sequence[str]


class TooLarge(InterlockError):
    """The target, or what stands before it, takes no upsert of this size."""


class Target(Protocol):
    """An open collection that points are delivered into.

    `where` is how it is told of; `dims` and `tokens` are the widths of its dense and token vectors by name, `sparse`
    the names of its sparse ones. An upsert has at most `most_points`, and about `most_bytes` unless one point is
    larger.
    """

    @property
    def where(self) -> str: ...

    @property
    def dims(self) -> Mapping[str, int]: ...

    @property
    def sparse(self) -> Collection[str]: ...

    @property
    def tokens(self) -> Mapping[str, int]: ...

    @property
    def most_points(self) -> int: ...

    @property
    def most_bytes(self) -> int: ...

    def upsert(self, points: Sequence[Point], size: int) -> None:
        """Write points of about so many bytes; they are there when it returns. Raises TooLarge where fewer may be."""

    def ids(self) -> Iterator[list[str | int]]:
        """Yield the ids of all points, a page at a time; pages may be removed as they come."""

    def count(self, among: Ids | None = None) -> int:
        """Count its points exactly; only those `among` these ids, if given."""

    def read(self, ids: Ids) -> Mapping[str, Point]:
        """Return those of these points that exist, whole, with dense vectors at unit length."""

    def payloads(self, ids: Ids, keys: Sequence[str] = ()) -> Mapping[str, Mapping[str, object]]:
        """Return the payloads of those of these points that exist, by id; only these keys, if given."""

    def remove(self, ids: Ids) -> None:
        """Delete these points; they are gone when it returns."""


def deliver(
    points: Iterable[Point],
    target: Target,
    acknowledge: Callable[[Sequence[Point], int], object] = lambda *_: None,
    streams: int = 1,
    end: Callable[[], object] = lambda: None,
) -> None:
    """Write points in order, each once with all its vectors, by up to so many upserts at once; `acknowledge` hears of
    those that are there with all before them, and of their bytes. What is too large for the target goes in halves, and
    so does what comes after it. Where anything fails, no upsert begins, `end` is called, and those under way are waited
    for.

    Raises InterlockError for a point that the target would take and must not, and TooLarge for one that it does not.
    """
    most = target.most_bytes  # less once a batch was too large for it
    going, there = deque[tuple[Sequence[Point], int, Future[None]]](), list[tuple[Sequence[Point], int]]()

    def write(batch: Sequence[Point], size: int, upsert: Callable[[], object]) -> None:
        nonlocal most
        try:
            upsert()
        except TooLarge:
            if len(batch) == 1:
                raise
            most, middle = min(most, size // 2), len(batch) // 2
            for half in (batch[:middle], batch[middle:]):
                size = sum(map(size_of, half))
                write(half, size, partial(target.upsert, half, size))
        else:
            there.append((batch, size))
            if not (going and going[0][2].done() and not going[0][2].exception()):  # else they are told of together
                acknowledge([point for each, _ in there for point in each], sum(each for _, each in there))
                there.clear()

    def settle(most_going: int) -> None:
        """Wait for the first upserts until no more are going than that, or one has failed."""
        while len(going) > most_going or there:
            while not going[0][2].done():
                wait([each for *_, each in going if not each.done()], return_when=FIRST_COMPLETED)
                for *_, each in going:
                    if each.done() and not isinstance(each.exception(), TooLarge):
                        each.result()
            batch, size, upsert = going.popleft()
            write(batch, size, upsert.result)

    try:
        whole = (gated(point, target) for point in points)
        for batch, size in batches(whole, target.most_points, lambda: min(most, target.most_bytes)):
            upsert = partial(target.upsert, batch, size)
            if streams == 1:
                write(batch, size, upsert)
            else:
                going.append((batch, size, begun(upsert)))
                settle(streams - 1)
        settle(0)
    except BaseException as error:
        end()
        if isinstance(error, Exception):
            wait([each for *_, each in going])
        raise


def batches(
    points: Iterable[tuple[Point, int]], most_points: int, most_bytes: Callable[[], int]
) -> Iterator[tuple[list[Point], int]]:
    """Yield points with their bytes as batches of at most so many of both, as it is asked each time, with the sum; a
    larger point goes alone."""
    batch, total = list[Point](), 0
    for point, size in points:
        if batch and (len(batch) >= most_points or total + size > most_bytes()):
            yield batch, total
            batch, total = [], 0
        batch.append(point)
        total += size
    if batch:
        yield batch, total


def size_of(point: Point) -> int:
    """Return about how many bytes a point is. Raises ValueError for a payload that is not JSON."""
    return len(json.dumps(point.payload, ensure_ascii=False, allow_nan=False).encode()) + point.vector_bytes


def gated(point: Point, target: Target) -> tuple[Point, int]:
    """Return a point with its size. Raises InterlockError for what a target would take and must not: an id that is no
    UUID, a payload that is no JSON, vectors that it has not, of another width, zero or not finite."""
    try:
        UUID(point.id)
        size = size_of(point)
    except (TypeError, ValueError) as cause:
        raise InterlockError(f"cannot store point {point.id} in {target.where}: {cause}") from cause
    vectors = {**point.vectors, **point.sparse, **point.tokens}
    if fault := next(filter(None, (fault_of(name, vector, target) for name, vector in vectors.items())), ""):
        raise InterlockError(f"cannot store point {point.id} in {target.where}: {fault}")
    return point, size


def fault_of(name: str, vector: Any, target: Target) -> str:
    """Say why a target has no such vector: dense [dim], of tokens [tokens, dim], or terms; empty: it has."""
    kinds = {"vector": target.dims, "sparse vector": target.sparse, "token vectors": target.tokens}
    kind = "sparse vector" if hasattr(vector, "indices") else "vector" if vector.ndim == 1 else "token vectors"
    if name not in kinds[kind]:
        return f"no {kind} {name!r}; it has {', '.join(sorted(kinds[kind])) or 'none'}"
    if kind == "sparse vector":
        fault = vector.fault()
        return f"sparse vector {name!r} {fault}" if fault else ""
    if kind == "token vectors":
        whole = (
            vector.ndim == 2 and len(vector) and vector.shape[1] == target.tokens[name] and np.isfinite(vector).all()
        )
        return "" if whole else f"token vectors {name!r} {vector.shape} are none of {target.tokens[name]} dimensions"
    if vector.shape != (target.dims[name],):
        return f"vector {name!r} has shape {vector.shape}, expected {target.dims[name]} dimensions"
    return "" if 0 < float(vector @ vector) < float("inf") else f"vector {name!r} is zero or not finite"


def lacking(target: Target, ids: Iterable[Ids], most: int) -> int:
    """Count which of these points a target has not, so many ids at a time. Raises InterlockError for a count of more
    points than ids, which proves nothing."""
    missing = 0
    for part in (window[start : start + most] for window in ids for start in range(0, len(window), most)):
        found = target.count(part)
        if found > len(part):
            raise InterlockError(
                f"{target.where} counts {several(found, 'point')} that have one of {len(part):,} ids: fix that on the "
                "server, then repeat the command"
            )
        missing += len(part) - found
    return missing


@dataclass(frozen=True)
class Compared:
    """How many points were compared, the lowest cosine of a dense vector (None: there was none), and what is wrong with
    each point that is not as it should be."""

    points: int
    worst_cosine: float | None
    faults: Mapping[str, str]


def compare(
    wanted: Iterable[Point], read: Callable[[Ids], Mapping[str, Point]], least: float = MIN_COSINE, *, payloads: bool
) -> Compared:
    """Compare points with what is read of them, some at a time: dense vectors by cosine, terms and token vectors number
    by number, and payloads by value and type where that is asked."""
    points, cosines, faults = 0, list[float](), dict[str, str]()
    stream = iter(wanted)
    while window := list(islice(stream, TOGETHER)):
        found = read([point.id for point in window])
        points += len(window)
        for point in window:
            if fault := _fault(point, found.get(point.id), least, cosines, payloads=payloads):
                faults[point.id] = fault
    return Compared(points, min(cosines, default=None), faults)


def _fault(wanted: Point, found: Point | None, least: float, cosines: list[float], *, payloads: bool) -> str:
    """What is wrong with a point that was found; its cosines are added."""
    if found is None:
        cosines += [0.0] * len(wanted.vectors)
        return f"point {wanted.id} is not there"
    ours = [{*point.vectors, *point.sparse, *point.tokens} for point in (wanted, found)]
    mine = [cosine(vector, found.vectors.get(name)) for name, vector in wanted.vectors.items()]
    cosines += mine
    if ours[0] != ours[1]:
        odd = ", ".join(sorted(ours[0] ^ ours[1]))
        return f"point {wanted.id} has not the vectors that it should have ({odd})"
    if payloads and not same_json(storable(wanted.payload), found.payload):
        return f"point {wanted.id} has another payload"
    for name, near in zip(wanted.vectors, mine, strict=True):
        if near < least:
            return f"vector {name!r} of point {wanted.id} has a cosine of {near:.7f}"
    other = [
        name for name, terms in wanted.sparse.items() if name not in found.sparse or not terms.same(found.sparse[name])
    ]
    other += [name for name, each in wanted.tokens.items() if not np.array_equal(each, found.tokens.get(name, ()))]
    return f"vector {other[0]!r} of point {wanted.id} has other numbers" if other else ""


def cosine(delivered: Vector, kept: Vector | None) -> float:
    """Return the cosine of two vectors; 0 of what is none."""
    if kept is None or kept.shape != delivered.shape:
        return 0.0
    one, other = delivered.astype(np.float64), kept.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        found = float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
    return found if np.isfinite(found) else 0.0  # NaN would slip through min() as if it were fine


@dataclass(frozen=True)
class OtherPoints:
    """Of a page of points those that are not planned: the ids of `stale` ones, which an earlier delivery put there, and
    how many are `foreign`, somebody else's."""

    stale: list[str]
    foreign: int


def others(
    target: Target, planned: npt.NDArray[np.uint64], collection: str = "", shard: Shard | None = None
) -> Iterator[OtherPoints]:
    """Look at all points of a target that are not `planned` (`halves` of ids), a page at a time; of a `shard` at those
    whose texts fall to it.

    The id of a point of ours follows from the name of its `collection` and from `source` and `chunk_id` in its payload:
    what has another id, or no such payload, was put there by nobody here. Without a name the target is ours alone.
    """
    known = np.sort(planned)
    for page in target.ids():
        ours = [each for each in page if isinstance(each, str)]
        unknown = [ours[place] for place in np.flatnonzero(~np.isin(halves(ours), known))]
        if shard:
            texts = target.payloads(unknown, ["text"]) if unknown else {}
            unknown = [each for each in unknown if shard.has(digest_of(str(texts.get(each, {}).get("text"))))]
        stale = unknown
        if collection:
            payloads = target.payloads(unknown, IDENTITY) if unknown else {}
            stale = [point for point in unknown if _made_here(collection, point, payloads.get(point))]
        yield OtherPoints(stale, len(page) - len(ours) + len(unknown) - len(stale))


def halves(ids: Iterable[str]) -> npt.NDArray[np.uint64]:
    """Return the first half of each id, which is random enough: two that agree in it would spare a point, not cost
    one."""
    return np.frombuffer(b"".join(UUID(each).bytes for each in ids), np.uint64).reshape(-1, 2)[:, 0]


def _made_here(collection: str, point: str, payload: Mapping[str, object] | None) -> bool:
    """Whether a delivery put a point there; None of a payload: it is gone meanwhile."""
    source, chunk_id = ((payload or {}).get(key) for key in IDENTITY)
    if not isinstance(source, str) or not isinstance(chunk_id, str):
        return False
    return UUID(point) == point_of(collection, source, chunk_id)


def prune(
    target: Target, pages: Iterable[OtherPoints], most: int, removed: Callable[[], object] = lambda: None
) -> tuple[int, int]:
    """Remove the stale points of `pages`: how many there were, and how many are somebody else's. `removed` is called
    behind each page, whose points are counted then, so many ids at a time. Raises InterlockError where any is left."""
    pruned = foreign = 0
    for page in pages:
        foreign += page.foreign
        if not page.stale:
            continue
        target.remove(page.stale)
        removed()
        if left := len(page.stale) - lacking(target, [page.stale], most):
            raise InterlockError(
                f"{target.where} still has {left:,} of {several(len(page.stale), 'point')} that were removed: check "
                "for another writer, then repeat the command"
            )
        pruned += len(page.stale)
    return pruned, foreign
