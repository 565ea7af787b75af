"""Vectors in narrower numbers: float16, or eight bits with one scale for all of a name."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from interlock.engine.vectors import int8
from interlock.engine.vectors.fusion import Vectors

Precision = Literal["float32", "float16", "int8"]


@dataclass(frozen=True)
class Narrow:
    """How one kind of vector is narrowed: to float16, or with a `scale` to multiples of it in eight bits."""

    scale: np.float32 | None = None

    @property
    def kind(self) -> np.dtype[Any]:
        """The type of its numbers."""
        return np.dtype(np.float16 if self.scale is None else np.int8)

    def file(self, name: str) -> str:
        """Name the array of the vectors `name`."""
        return f"{name}.{self.kind.name}.npy"

    def encode(self, vectors: Vectors) -> NDArray[Any]:
        """Narrow vectors [n, dim]; a parked row stays one."""
        return vectors.astype(np.float16) if self.scale is None else int8.encode(vectors, self.scale)

    def decode(self, numbers: NDArray[Any]) -> Vectors:
        """Return the vectors [n, dim] in float32 that a reader has of it."""
        return numbers.astype(np.float32) if self.scale is None else int8.decode(numbers, self.scale)


@dataclass(frozen=True)
class Loss:
    """What narrower numbers cost the vectors `name`: the cosine to float32 of `sampled` rows, at the least and in the
    mean, and the share of their ten nearest neighbours that is kept; None for no row with a vector or a neighbour."""

    name: str
    least_cosine: float | None
    mean_cosine: float | None
    neighbours: float | None
    sampled: int
