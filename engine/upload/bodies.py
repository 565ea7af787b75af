"""Points as the bodies of upserts: JSON with the shortest decimals that are the same float32, cut by bytes and count.

Arrow writes the numbers of many vectors in one call, which takes a fraction of what Python's own encoders do, and
shortest decimals are little more than half of what a float64 takes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec
import numpy as np

from interlock.engine.errors import InterlockError
from interlock.engine.outlet.points import Point, Terms, Tokens, Vector, storable
from interlock.engine.outlet.windows import Vectors

MOST_BYTES, MOST_POINTS = 8_000_000, 256
"""Of one request."""
AT_ONCE = 64
"""Points that are written together."""
_BEGIN, _END = b'{"points":[', b"]}"


@dataclass(frozen=True)
class UpsertBody:
    """The body of one upsert: each of its points as JSON."""

    points: Sequence[bytes]

    @property
    def json(self) -> bytes:
        """The whole of it."""
        return _BEGIN + b",".join(self.points) + _END

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(_BEGIN) + len(_END) + sum(map(len, self.points)) + max(0, len(self.points) - 1)

    def halves(self) -> "tuple[UpsertBody, UpsertBody]":
        """Cut it in two; the first half is empty if it is one point."""
        middle = len(self.points) // 2
        return UpsertBody(self.points[:middle]), UpsertBody(self.points[middle:])


def bodies(
    points: Iterable[Point], most_points: int = MOST_POINTS, most_bytes: Callable[[], int] = lambda: MOST_BYTES
) -> Iterator[UpsertBody]:
    """Yield points in order as bodies of at most so many points and bytes, as it is asked each time; a larger point
    goes alone.

    Raises InterlockError for a dense vector that no cosine can be made of.
    """
    batch: list[bytes] = []
    size = len(_BEGIN) + len(_END)
    for written in _written(points):
        if batch and (len(batch) >= most_points or size + len(written) + 1 > most_bytes()):
            yield UpsertBody(batch)
            batch, size = [], len(_BEGIN) + len(_END)
        batch.append(written)
        size += len(written) + 1
    if batch:
        yield UpsertBody(batch)


def _written(points: Iterable[Point]) -> Iterator[bytes]:
    """Each point as a JSON object."""
    each = iter(points)
    while group := list(islice(each, AT_ONCE)):
        vectors: list[list[bytes]] = [[] for _ in group]
        for name in dict.fromkeys(name for point in group for name in point.vectors):
            owners = [row for row, point in enumerate(group) if name in point.vectors]
            for row, text in zip(owners, _dense([group[row] for row in owners], name), strict=True):
                vectors[row].append(_member(name, text))
        for row, point in enumerate(group):
            vectors[row] += [_member(name, _terms(terms)) for name, terms in point.sparse.items()]
            vectors[row] += [_member(name, _tokens(tokens)) for name, tokens in point.tokens.items()]
            payload = msgspec.json.encode(storable(point.payload))
            yield b'{"id":"%b","vector":{%b},"payload":%b}' % (point.id.encode(), b",".join(vectors[row]), payload)


def _member(name: str, value: bytes) -> bytes:
    return msgspec.json.encode(name) + b":" + value


def _dense(points: Sequence[Point], name: str) -> Iterator[bytes]:
    matrix = np.stack([point.vectors[name] for point in points])
    squares = np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64)
    for point, square in zip(points, squares.tolist(), strict=True):
        if not 0 < square < float("inf"):
            raise InterlockError(f"vector {name!r} of point {point.id} is zero or not finite: --resume recomputes it")
    return (b"[%b]" % row for row in _numbers(matrix))


def _terms(terms: Terms) -> bytes:
    indices = ",".join(map(str, terms.indices.tolist())).encode()
    (values,) = _numbers(terms.values[np.newaxis])
    return b'{"indices":[%b],"values":[%b]}' % (indices, values)


def _tokens(tokens: Tokens) -> bytes:
    return b"[[%b]]" % b"],[".join(_numbers(tokens.astype(np.float32)))


def _numbers(matrix: Vectors | Vector) -> list[bytes]:
    """The numbers of each row [n, width], with commas between them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows, width = matrix.shape
    texts = pa.array(np.ascontiguousarray(matrix, np.float32).reshape(-1)).cast(pa.string()).cast(pa.binary())
    ends = pa.array(np.arange(0, rows * width + 1, width, dtype=np.int32))
    joined: list[bytes] = pc.binary_join(
        pa.ListArray.from_arrays(ends, texts), pa.scalar(b",", pa.binary())
    ).to_pylist()
    return joined
