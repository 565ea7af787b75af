"""Points as the bodies of upserts, cut by bytes and count; JSON has the shortest decimals that are the same float32.

Arrow writes the numbers of many vectors in one call, which takes a fraction of what Python's own encoders do, and
shortest decimals are little more than half of what a float64 takes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec
import numpy as np

from interlock.engine.errors import InterlockError
from interlock.engine.vectors.points import Point, Terms, Tokens, Vector, storable

MOST_BYTES, MOST_POINTS = 8_000_000, 256
"""Of one request."""
AT_ONCE = 64
"""Points that are written together."""


@dataclass(frozen=True)
class BodyForm:
    """How points that are written make one body."""

    begin: bytes
    between: bytes
    end: bytes


JSON = BodyForm(b'{"points":[', b",", b"]}")
PROTOBUF = BodyForm(b"", b"", b"")
"""The members of a message."""
Written = tuple[BodyForm, bytes]
"""A point, and what body it may be in."""


@dataclass(frozen=True)
class UpsertBody:
    """The body of one upsert: each of its points, written in its form."""

    points: Sequence[bytes]
    form: BodyForm = JSON

    @property
    def content(self) -> bytes:
        """The whole of it."""
        return self.form.begin + self.form.between.join(self.points) + self.form.end

    @property
    def size(self) -> int:
        """Its bytes."""
        own, between = len(self.form.begin) + len(self.form.end), len(self.form.between)
        return own + sum(map(len, self.points)) + between * max(0, len(self.points) - 1)

    def halves(self) -> "tuple[UpsertBody, UpsertBody]":
        """Cut it in two; the first half is empty if it is one point."""
        middle = len(self.points) // 2
        return UpsertBody(self.points[:middle], self.form), UpsertBody(self.points[middle:], self.form)


def as_json(points: Iterable[Point]) -> Iterator[Written]:
    """Yield each point as a JSON object. Raises InterlockError for a dense vector that no cosine can be made of."""
    for group in checked(points):
        vectors: list[list[bytes]] = [[] for _ in group]
        for name, owners in _named([point.vectors for point in group]).items():
            texts = _texts([group[row].vectors[name] for row in owners])
            for row, text in zip(owners, texts, strict=True):
                vectors[row].append(_member(name, b"[%b]" % text))
        for name, owners in _named([point.sparse for point in group]).items():
            texts = _texts([group[row].sparse[name].values for row in owners])
            for row, text in zip(owners, texts, strict=True):
                vectors[row].append(_member(name, _terms(group[row].sparse[name], text)))
        for row, point in enumerate(group):
            vectors[row] += [_member(name, _tokens(tokens)) for name, tokens in point.tokens.items()]
            payload = msgspec.json.encode(storable(point.payload))
            yield (
                JSON,
                b'{"id":"%b","vector":{%b},"payload":%b}' % (point.id.encode(), b",".join(vectors[row]), payload),
            )


def bodies(
    points: Iterable[Point],
    most_points: int = MOST_POINTS,
    most_bytes: Callable[[], int] = lambda: MOST_BYTES,
    write: Callable[[Iterable[Point]], Iterator[Written]] = as_json,
) -> Iterator[UpsertBody]:
    """Yield points in order as bodies of at most so many points and bytes, as it is asked each time; a larger point
    goes alone, and what is written in another form in another body.

    Raises InterlockError for a dense vector that no cosine can be made of.
    """
    batch, form, size = list[bytes](), JSON, 0
    for own, written in write(points):
        full = len(batch) >= most_points or size + len(written) > most_bytes()
        if batch and (full or own is not form):
            yield UpsertBody(batch, form)
            batch = []
        if not batch:
            form, size = own, len(own.begin) + len(own.end)
        batch.append(written)
        size += len(written) + len(form.between)
    if batch:
        yield UpsertBody(batch, form)


def checked(points: Iterable[Point]) -> Iterator[list[Point]]:
    """Yield points in groups that are written together. Raises InterlockError for a dense vector that no cosine can be
    made of."""
    each = iter(points)
    while group := list(islice(each, AT_ONCE)):
        for name, owners in _named([point.vectors for point in group]).items():
            matrix = np.stack([group[row].vectors[name] for row in owners])
            squares = np.einsum("ij,ij->i", matrix, matrix, dtype=np.float64)
            for row, square in zip(owners, squares.tolist(), strict=True):
                if not 0 < square < float("inf"):
                    raise InterlockError(
                        f"vector {name!r} of point {group[row].id} is zero or not finite: --resume recomputes it"
                    )
        yield group


def _named(vectors: Sequence[Mapping[str, object]]) -> dict[str, list[int]]:
    """The rows that have a vector, by its name."""
    names = dict.fromkeys(name for each in vectors for name in each)
    return {name: [row for row, each in enumerate(vectors) if name in each] for name in names}


def _member(name: str, value: bytes) -> bytes:
    return msgspec.json.encode(name) + b":" + value


def _terms(terms: Terms, values: bytes) -> bytes:
    return b'{"indices":[%b],"values":[%b]}' % (",".join(map(str, terms.indices.tolist())).encode(), values)


def _tokens(tokens: Tokens) -> bytes:
    return b"[[%b]]" % b"],[".join(_texts(list(tokens)))


def _texts(vectors: Sequence[Vector | Tokens]) -> list[bytes]:
    """The numbers of each vector, with commas between them: of many at once, because a call costs more than they do."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = pa.array(np.concatenate(vectors, dtype=np.float32)).cast(pa.string()).cast(pa.binary())
    ends = pa.array(np.cumsum([0, *map(len, vectors)], dtype=np.int32))
    joined: list[bytes] = pc.binary_join(
        pa.ListArray.from_arrays(ends, numbers), pa.scalar(b",", pa.binary())
    ).to_pylist()
    return joined
