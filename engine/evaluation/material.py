"""What an evaluation is made of: what each model gives of the texts and of the judged queries. Plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.compute.parts.terms import SparseRows

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SideCost:
    """What a model takes: seconds of `device` for all texts, and CPU milliseconds for a query; None if not known."""

    seconds: float | None = None
    query_ms: float | None = None
    device: str = "CPU"


@dataclass(frozen=True)
class DenseSide:
    """A dense model with unit vectors of the texts [n, d] and of the queries [q, d]."""

    model: str
    weight: float
    documents: Vectors
    queries: Vectors
    cost: SideCost = SideCost()
    sizes: tuple[int, ...] = ()
    """The sizes that the model was trained to be cut to."""


@dataclass(frozen=True)
class SparseSide:
    """Sparse vectors of the texts [n] and of the queries [q]: a model's, or BM25's."""

    name: str
    documents: SparseRows
    queries: SparseRows
    cost: SideCost = SideCost()


@dataclass(frozen=True)
class Material:
    """Texts and queries by number, what the models give of them, and who judges: `tested` queries are what figures are
    of, `trained` ones choose weights and the best member; they share none, unless a query is in both splits."""

    ids: Sequence[str]
    texts: Sequence[str]
    queries: Sequence[str]
    grades: Sequence[Mapping[str, int]]
    tested: Rows
    trained: Rows
    dense: Sequence[DenseSide]
    sparse: Sequence[SparseSide] = field(default_factory=tuple)
    halved: bool = False
    """Whether `trained` are a half of the tested ones, because the collection has no split to train by."""
