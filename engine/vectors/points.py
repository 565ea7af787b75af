"""A chunk as a point: payload, dense, sparse and token vectors; to the engine of the embedded store and back, and to
the client of a server and back."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from math import isclose
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import qdrant_edge as edge
    from qdrant_client import grpc
    from qdrant_client.models import PointsList, Record

Vector = NDArray[np.float32]
Tokens = NDArray[np.float16]
"""Vectors of a text's tokens [tokens, dim], in the precision in which a store keeps them."""
STALE = "stale_since"
"""Where the payload of a point has the run that found its chunk gone from the corpus; absent: it is there."""
DIGEST = "interlock_digest"
"""Where the payload of a point that was uploaded incrementally has the digest of all else that was sent of it."""
PayloadForm = Literal["nested", "flat"]
"""Where a payload has what a chunk's metadata says: under `metadata`, or beside our own keys."""
NESTED: PayloadForm = "nested"
METADATA = "metadata"
OURS = frozenset({"text", "chunk_id", "source", "record", METADATA, STALE, DIGEST})
"""Keys at the top of a payload that mean the same in each form."""
MOST_INDEX = 2**32 - 1
"""The largest index that the engine takes in a sparse vector."""


@dataclass(frozen=True, eq=False)
class Terms:
    """One sparse vector: `indices` [terms], signed integers, ascending, and `values` float32 [terms]."""

    indices: NDArray[np.signedinteger]
    values: Vector

    def same(self, other: "Terms") -> bool:
        """Tell whether it is this very vector."""
        return np.array_equal(self.indices, other.indices) and np.array_equal(self.values, other.values)

    def fault(self) -> str:
        """Say why it is no sparse vector; empty: it is one."""
        indices, values = self.indices, self.values
        if indices.ndim != 1 or indices.shape != values.shape or not len(indices):
            return "has no terms, or not as many values as indices"
        if indices[0] < 0 or indices[-1] > MOST_INDEX or (np.diff(indices) <= 0).any():
            return "has terms that are not in order"
        return "" if (np.isfinite(values) & (values > 0)).all() else "has a term without a weight"


@dataclass(frozen=True)
class Point:
    """A chunk in the store. `id` is a UUID; `vectors`, `sparse` and `tokens` lack the models for which the row was
    parked, and `sparse` those that found no term in it too."""

    id: str
    payload: Mapping[str, object]
    vectors: Mapping[str, Vector]
    sparse: Mapping[str, Terms] = field(default_factory=dict)
    tokens: Mapping[str, Tokens] = field(default_factory=dict)

    @property
    def vector_bytes(self) -> int:
        """Bytes of all its vectors."""
        sparse = sum(terms.indices.nbytes + terms.values.nbytes for terms in self.sparse.values())
        tokens = sum(2 * vectors.nbytes for vectors in self.tokens.values())  # the engine's log has them in float32
        return sparse + tokens + sum(vector.nbytes for vector in self.vectors.values())


def digested(point: Point) -> Point:
    """Return a point whose payload has the digest of the rest of it and of every name, shape and number of its vectors:
    BLAKE2b of 128 bits, in hexadecimal; another version of what it covers is another `person`."""
    digest = blake2b(json.dumps(point.payload, sort_keys=True).encode(), digest_size=16, person=b"interlock 1")
    arrays: dict[str, list[NDArray[Any]]] = {name: [each] for name, each in point.vectors.items()}
    arrays |= {name: [each] for name, each in point.tokens.items()}
    arrays |= {name: [each.indices.astype("<i8"), each.values] for name, each in point.sparse.items()}
    for name, parts in sorted(arrays.items()):
        digest.update(json.dumps([name, [[*part.shape, part.dtype.str] for part in parts]]).encode())
        for part in parts:
            digest.update(np.ascontiguousarray(part).data)
    return replace(point, payload={**point.payload, DIGEST: digest.hexdigest()})


def undigested(payload: Mapping[str, object] | None) -> dict[str, object]:
    """Return what a payload on a server says of its chunk."""
    return {key: value for key, value in (payload or {}).items() if key != DIGEST}


def arranged(metadata: Mapping[str, object], form: PayloadForm) -> dict[str, object]:
    """Return what a payload has of metadata; of a flat one a field with a name of ours stays under `metadata`."""
    within = {name: value for name, value in metadata.items() if form == NESTED or name in OURS}
    beside = {name: value for name, value in metadata.items() if name not in within}
    return beside | ({METADATA: within} if within or form == NESTED else {})


def for_engine(point: Point) -> "edge.Point":
    """Make the engine's own point; integers beyond 64 bits become their decimal text."""
    import qdrant_edge as edge

    vectors: dict[str, list[float] | list[list[float]] | edge.SparseVector] = {}
    for name, vector in point.vectors.items():
        vectors[name] = vector.tolist()
    for name, terms in point.sparse.items():
        vectors[name] = edge.SparseVector(terms.indices.tolist(), terms.values.tolist())
    for name, tokens in point.tokens.items():
        vectors[name] = tokens.tolist()
    return edge.Point(point.id, vectors, storable(point.payload))


def of_engine(record: "edge.Record") -> Point:
    """Read a point of ours as the engine gives it."""
    import qdrant_edge as edge

    assert isinstance(record.vector, dict | None)  # every vector of ours is named
    vectors, sparse, tokens = dict[str, Vector](), dict[str, Terms](), dict[str, Tokens]()
    for name, vector in (record.vector or {}).items():
        if isinstance(vector, edge.SparseVector):
            sparse[name] = Terms(np.array(vector.indices, np.int64), np.array(vector.values, np.float32))
        elif isinstance(vector[0], list):
            tokens[name] = np.array(vector, np.float16)
        else:
            vectors[name] = np.array(vector, np.float32)
    return Point(str(record.id), record.payload or {}, vectors, sparse, tokens)


def for_client(points: Sequence[Point]) -> "PointsList":
    """Make the client's own points. Their numbers have, as JSON, the shortest decimals that are the same float32, which
    are little more than half of those of a float64."""
    from qdrant_client.models import PointsList, PointStruct, SparseVector

    arrays = list[Any]()
    for point in points:
        arrays += [*point.vectors.values(), *(each.values for each in point.sparse.values()), *point.tokens.values()]
    numbers = _shortest(arrays)
    made = []
    for point in points:
        vectors: dict[str, Any] = {name: next(numbers) for name in point.vectors}
        for name, terms in point.sparse.items():
            vectors[name] = SparseVector.model_construct(indices=terms.indices.tolist(), values=next(numbers))
        vectors |= {name: next(numbers) for name in point.tokens}
        # Nothing is validated: the numbers are ours, and looking at each takes as long as writing it.
        made.append(PointStruct.model_construct(id=point.id, vector=vectors, payload=storable(point.payload)))
    return PointsList(points=made)


def _shortest(arrays: Sequence[Any]) -> Iterator[Any]:
    """The numbers of each array as lists of the float64 that have these decimals: of all at once, for speed."""
    import pyarrow as pa

    flat = np.concatenate([np.empty(0, np.float32), *(np.asarray(each, np.float32).ravel() for each in arrays)])
    numbers = pa.array(flat).cast(pa.string()).cast(pa.float64()).to_numpy(zero_copy_only=False)
    ends = np.cumsum([each.size for each in arrays])
    return (part.reshape(each.shape).tolist() for part, each in zip(np.split(numbers, ends[:-1]), arrays, strict=False))


def for_grpc(point: Point) -> "grpc.PointStruct":
    """Make the client's own message. Dense numbers are not made Python's on the way, which takes longer than all else:
    a packed field of float32 has the very bytes of the array."""
    from qdrant_client import grpc
    from qdrant_client.conversions.conversion import payload_to_grpc

    vectors = {name: grpc.Vector(dense=_dense(vector)) for name, vector in point.vectors.items()}
    for name, terms in point.sparse.items():
        sparse = grpc.SparseVector(values=terms.values.tolist(), indices=terms.indices.tolist())
        vectors[name] = grpc.Vector(sparse=sparse)
    for name, tokens in point.tokens.items():
        vectors[name] = grpc.Vector(multi_dense=grpc.MultiDenseVector(vectors=[_dense(each) for each in tokens]))
    return grpc.PointStruct(
        id=grpc.PointId(uuid=point.id),
        vectors=grpc.Vectors(vectors=grpc.NamedVectors(vectors=vectors)),
        payload=payload_to_grpc(storable(point.payload)),
    )


def _dense(vector: Vector | Tokens) -> "grpc.DenseVector":
    from qdrant_client.grpc import DenseVector

    made = DenseVector()
    made.ParseFromString(_head_of(len(vector)) + vector.astype("<f4", copy=False).tobytes())
    return made


@cache
def _head_of(width: int) -> bytes:
    """What stands before the numbers of a dense vector in its message."""
    from qdrant_client.grpc import DenseVector

    return bytes(DenseVector(data=[0.0] * width).SerializeToString()[: -4 * width])


def of_client(record: "Record") -> Point:
    """Read a point as a server gives it. Raises ValueError for vectors that are none."""
    from qdrant_client.models import SparseVector

    vectors, sparse, tokens = {}, {}, {}
    for name, vector in (record.vector if isinstance(record.vector, dict) else {}).items():
        if isinstance(vector, SparseVector):
            indices, values = np.array(vector.indices, np.int64), np.array(vector.values, np.float32)
            order = np.argsort(indices)
            sparse[name] = Terms(indices[order], values[order])
        elif isinstance(vector, list) and vector and isinstance(vector[0], list):
            tokens[name] = np.array(vector, np.float16)
        else:
            vectors[name] = np.array(vector, np.float32)
    return Point(str(record.id), undigested(record.payload), vectors, sparse, tokens)


def storable(payload: Mapping[str, object]) -> dict[str, object]:
    """Return a payload as the engine keeps it: integers beyond 64 bits, which it would round, as their decimal text."""
    return {key: _storable(value) for key, value in payload.items()}


def _storable(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _storable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(inner) for inner in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value


ROUNDED = 1e-15
"""The share by which a decimal in a payload may be off: Qdrant reads numbers to some units in the last place."""


def same_json(wanted: Any, found: Any) -> bool:
    """Tell whether two values of JSON are the same, each number of the same type: neither 1.0 nor true is 1."""
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return wanted.keys() == found.keys() and all(same_json(wanted[key], found[key]) for key in wanted)
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(same_json, wanted, found))
    if isinstance(wanted, float) and isinstance(found, float):
        return isclose(wanted, found, rel_tol=ROUNDED, abs_tol=0)
    return type(wanted) is type(found) and bool(wanted == found)
