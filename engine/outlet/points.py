"""A chunk as a point of the embedded store: payload, dense and sparse vectors; to the engine and back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import qdrant_edge as edge

Vector = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Terms:
    """One sparse vector: `indices` int32 [terms], ascending, and `values` float32 [terms]."""

    indices: NDArray[np.int32]
    values: Vector

    def same(self, other: "Terms") -> bool:
        """Tell whether it is this very vector."""
        return np.array_equal(self.indices, other.indices) and np.array_equal(self.values, other.values)

    def fault(self) -> str:
        """Say why it is no sparse vector; empty: it is one."""
        indices, values = self.indices, self.values
        if indices.ndim != 1 or indices.shape != values.shape or not len(indices):
            return "has no terms, or not as many values as indices"
        if indices[0] < 0 or (np.diff(indices) <= 0).any():
            return "has terms that are not in order"
        return "" if (np.isfinite(values) & (values > 0)).all() else "has a term without a weight"


@dataclass(frozen=True)
class Point:
    """A chunk in the store. `id` is a UUID; `vectors` and `sparse` lack the models for which the row was parked, and
    `sparse` those that found no term in it too."""

    id: str
    payload: Mapping[str, object]
    vectors: Mapping[str, Vector]
    sparse: Mapping[str, Terms] = field(default_factory=dict)

    @property
    def vector_bytes(self) -> int:
        """Bytes of all its vectors."""
        sparse = sum(terms.indices.nbytes + terms.values.nbytes for terms in self.sparse.values())
        return sparse + sum(vector.nbytes for vector in self.vectors.values())

    def has(self, vectors: Mapping[str, Vector], sparse: Mapping[str, Terms]) -> bool:
        """Tell whether it has dense vectors of these names, these sparse ones, and no other."""
        if (self.vectors.keys(), self.sparse.keys()) != (vectors.keys(), sparse.keys()):
            return False
        return all(terms.same(self.sparse[name]) for name, terms in sparse.items())


def for_engine(point: Point) -> "edge.Point":
    """Make the engine's own point; integers beyond 64 bits become their decimal text."""
    import qdrant_edge as edge

    vectors: dict[str, list[float] | list[list[float]] | edge.SparseVector] = {}
    for name, vector in point.vectors.items():
        vectors[name] = vector.tolist()
    for name, terms in point.sparse.items():
        vectors[name] = edge.SparseVector(terms.indices.tolist(), terms.values.tolist())
    return edge.Point(point.id, vectors, {key: _storable(value) for key, value in point.payload.items()})


def of_engine(record: "edge.Record") -> Point:
    """Read a point of ours as the engine gives it."""
    import qdrant_edge as edge

    assert isinstance(record.vector, dict | None)  # every vector of ours is named
    vectors, sparse = dict[str, Vector](), dict[str, Terms]()
    for name, vector in (record.vector or {}).items():
        if isinstance(vector, edge.SparseVector):
            sparse[name] = Terms(np.array(vector.indices, np.int32), np.array(vector.values, np.float32))
        else:
            vectors[name] = np.array(vector, np.float32)
    return Point(str(record.id), record.payload or {}, vectors, sparse)


def _storable(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _storable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(inner) for inner in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value
