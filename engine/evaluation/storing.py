"""The forms in which fused vectors can be stored, as far as they change what is found. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.vectors.precision import BITS, int8_for, signs
from interlock.engine.vectors.projection import fit, project, turned

SIZES = (768, 384, 256)
"""Widths that vectors are projected to, where they are wider."""
SMALLEST = 384
"""The width that is quantised after projection."""
CHUNK = 16_384


@dataclass(frozen=True)
class StoredForm:
    """Vectors in one form: the texts' [n, d] in numbers of any kind, queries [q, d] to be multiplied with them, and
    the bytes of one stored vector. Scores are true up to a factor and a term that all texts of a query share."""

    documents: npt.NDArray[np.generic]
    queries: Vectors
    bytes: int


def whole(documents: Vectors, queries: Vectors) -> StoredForm:
    """Keep vectors as they are."""
    return StoredForm(documents, queries, 4 * documents.shape[1])


def projected(documents: Vectors, queries: Vectors, sizes: Sequence[int]) -> list[StoredForm]:
    """Project vectors to each of some numbers of dimensions as a run does, by the directions of the texts."""
    if not sizes:
        return []
    directions = fit(_windows(documents), documents.shape[1], max(sizes))  # the longest first, so that fewer are in it
    return [_projected(documents, queries, directions[:, :size]) for size in sizes]


def _projected(documents: Vectors, queries: Vectors, directions: Vectors) -> StoredForm:
    kept = np.concatenate([project(window, directions) for window in _windows(documents)])
    return StoredForm(kept, queries @ directions, 4 * directions.shape[1])


def _windows(documents: Vectors) -> Iterator[Vectors]:
    for first in range(0, len(documents), CHUNK):
        yield documents[first : first + CHUNK]


def in_bytes(form: StoredForm) -> StoredForm:
    """Keep each number in a byte as a run does, over the full range of the texts' numbers; queries stay as they are."""
    numbers = np.asarray(form.documents, np.float32)
    return StoredForm(int8_for(_windows(numbers)).encode(numbers), form.queries, numbers.shape[1])


def in_bits(documents: Vectors, queries: Vectors) -> StoredForm:
    """Keep of each number on which side of zero it is, as a run does; queries stay as they are."""
    return StoredForm(signs(documents).astype(np.int8), queries, BITS.width(documents.shape[1]))


def in_turned_bits(form: StoredForm) -> StoredForm:
    """Keep bits of projected vectors as a run does: of the same ones by axes of which none has more length."""
    return in_bits(turned(np.asarray(form.documents, np.float32)), turned(form.queries))
