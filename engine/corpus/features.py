"""Weights of terms that chunks bring along as `sparse_features`, in their metadata or beside it.

Three forms are read: an object of terms and weights; one whose `term_weights` lists objects with `term` and `weight`;
and one of `indices` and `values`, Qdrant's own. A term's index is the first 32 bits of its SHA-1, where two terms that
share one are added up; an index stays as it is.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Annotated

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

FIELD = "sparse_features"
TERM = np.dtype([("index", "<u4"), ("value", "<f4")])
"""One term as it is kept."""
MOST_SHOWN = 40
Features = Callable[[bytes, bytes], bytes]
"""What reads the terms of a chunk from its metadata and its other fields: records of TERM, ascending."""


class _Holder(Struct):
    sparse_features: Raw | UnsetType = UNSET


class _Weighted(Struct):
    term: str
    weight: float


class _Listed(Struct):
    term_weights: list[_Weighted]


class _Indexed(Struct):
    indices: list[Annotated[int, Meta(ge=0, lt=2**32)]]
    values: list[float]


def no_features(_metadata: bytes, _others: bytes) -> bytes:
    """Read nothing, whatever a chunk brings."""
    return b""


def features_of(metadata: bytes, others: bytes) -> bytes:
    """Read the terms that a chunk brings, those beside its metadata first; empty where it brings none.

    Raises ValueError, saying what is wrong with them.
    """
    for fields, place in ((others, f"$.{FIELD}"), (metadata, f"$.metadata.{FIELD}")):
        held = msgspec.json.decode(fields, type=_Holder).sparse_features if fields else UNSET
        if held is not UNSET and bytes(held) != b"null":
            try:
                return _packed(bytes(held))
            except msgspec.MsgspecError as error:  # in the words that it has for every field
                said = str(error) if "`$" in str(error) else f"{error} - at `$`"
                raise ValueError(said.replace("`$", f"`{place}")) from None
            except ValueError as error:
                raise ValueError(f"{error} - at `{place}`") from None
    return b""


def index_of(term: str) -> int:
    """Return the index of a term: the first 32 bits of its SHA-1."""
    return int.from_bytes(hashlib.sha1(term.encode(), usedforsecurity=False).digest()[:4], "big")


def _packed(held: bytes) -> bytes:
    keys = msgspec.json.decode(held, type=dict[str, Raw]).keys()
    if keys == {"indices", "values"}:
        given = msgspec.json.decode(held, type=_Indexed)
        if len(given.indices) != len(given.values):
            raise ValueError(f"{len(given.indices):,} indices, but {len(given.values):,} values")
        indices, weights = given.indices, given.values
        _check(indices, weights)
    else:
        if "term_weights" in keys:
            listed = msgspec.json.decode(held, type=_Listed).term_weights
            terms, weights = [each.term for each in listed], [each.weight for each in listed]
        else:
            mapped = msgspec.json.decode(held, type=dict[str, float])
            terms, weights = list(mapped), list(mapped.values())
        _check(terms, weights)
        indices = list(map(index_of, terms))
    found, places = np.unique(np.array(indices, np.uint32), return_inverse=True)
    packed = np.zeros(len(found), TERM)
    packed["index"], packed["value"] = found, np.bincount(places, weights, len(found))
    return packed.tobytes()


def _check(names: Iterable[str | int], weights: list[float]) -> None:
    """Raise ValueError for a term that is there twice, and for a weight that is no number above 0 as a float32."""
    names = list(names)
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"{twice!r:.{MOST_SHOWN}} is there twice")
    with np.errstate(over="ignore", under="ignore"):
        kept = np.array(weights, np.float32)
    if len(wrong := np.flatnonzero(~(np.isfinite(kept) & (kept > 0)))):
        name, weight = names[wrong[0]], weights[wrong[0]]
        raise ValueError(f"the weight of {name!r:.{MOST_SHOWN}} is {weight:g}, expected a finite number above 0")
