"""Points as a server gives them back, compared with those that were to be there. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any

import numpy as np

from interlock.engine.vectors.points import Point, Terms, storable

MIN_COSINE = 1 - 1e-5
"""Between a dense vector as exported and as it is on the server, which keeps it at unit length; in float16 too, whose
rounding costs less than a millionth."""

Retrieved = Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]
"""Payload and vectors of each point by id, as JSON."""
ROUNDED = 1e-15
"""The share by which a decimal in a payload may be off: Qdrant reads numbers to some units in the last place."""


@dataclass(frozen=True)
class Compared:
    """How many points were compared, the lowest cosine of a dense vector (None: there was none), and the first fault in
    words; empty: all are as they should be."""

    points: int
    worst_cosine: float | None
    fault: str


def compare(wanted: Sequence[Point], found: Retrieved) -> Compared:
    """Compare points with what was retrieved: payloads by value and type, dense vectors by cosine, terms and token
    vectors number by number."""
    worst: float | None = None
    for point in wanted:
        if point.id not in found:
            return Compared(len(wanted), worst, f"point {point.id} is not there")
        payload, vectors = found[point.id]
        names = {*point.vectors, *point.sparse, *point.tokens}
        if names != vectors.keys():
            odd = ", ".join(sorted(names ^ vectors.keys()))
            return Compared(len(wanted), worst, f"point {point.id} has not the vectors that it should have ({odd})")
        if not same_json(storable(point.payload), payload):
            return Compared(len(wanted), worst, f"point {point.id} has another payload")
        for name, vector in point.vectors.items():
            cosine = _cosine(vector, vectors[name])
            worst = cosine if worst is None else min(worst, cosine)
            if cosine < MIN_COSINE:
                return Compared(len(wanted), worst, f"vector {name!r} of point {point.id} has a cosine of {cosine:.7f}")
        others = [name for name, terms in point.sparse.items() if not _same_terms(terms, vectors[name])]
        others += [name for name, tokens in point.tokens.items() if not _same_tokens(tokens, vectors[name])]
        if others:
            return Compared(len(wanted), worst, f"vector {others[0]!r} of point {point.id} has other numbers")
    return Compared(len(wanted), worst, "")


def same_json(wanted: Any, found: Any) -> bool:
    """Tell whether two values of JSON are the same, each number of the same type: neither 1.0 nor true is 1."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return wanted.keys() == found.keys() and all(same_json(wanted[key], found[key]) for key in wanted)
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(same_json, wanted, found))
    if isinstance(wanted, float) and isinstance(found, float):
        return isclose(wanted, found, rel_tol=ROUNDED, abs_tol=0)
    return type(wanted) is type(found) and bool(wanted == found)


def _cosine(wanted: Any, found: object) -> float:
    """The cosine of two vectors; 0 of what is none."""
    try:
        one, other = np.asarray(wanted, np.float64), np.asarray(found, np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            cosine = float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
    except (TypeError, ValueError):
        return 0.0
    return cosine if np.isfinite(cosine) else 0.0


def _same_terms(wanted: Terms, found: object) -> bool:
    if not isinstance(found, Mapping) or not found.keys() >= {"indices", "values"}:
        return False
    indices, values = np.asarray(found["indices"], np.int64), np.asarray(found["values"], np.float32)
    if indices.shape != values.shape:
        return False
    order = np.argsort(indices)
    return wanted.same(Terms(indices[order], values[order]))


def _same_tokens(wanted: Any, found: object) -> bool:
    try:
        return np.array_equal(wanted, np.asarray(found, np.float16))
    except (TypeError, ValueError):
        return False
