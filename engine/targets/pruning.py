"""Points of a collection on a server that are not of a run: stale ones, which an upload of an earlier corpus put there,
and foreign ones, which are somebody else's.

The id of a point of ours follows from the name of its collection and from `source` and `chunk_id` in its payload. What
has another id, or no such payload, was put there by nobody here, and is never removed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np

from interlock.engine.corpus.chunks import point_of
from interlock.engine.targets.exported import ExportedCollection
from interlock.engine.targets.server import QdrantServer

PAGE = 1000
"""Points whose ids are read at a time."""
IDENTITY = ("source", "chunk_id")


@dataclass(frozen=True)
class OtherPoints:
    """Of some points of a collection those that are not of the run: the ids of stale ones, and how many are foreign."""

    stale: list[str]
    foreign: int


def others(
    server: QdrantServer, target: str, collection: ExportedCollection, limits: Mapping[str, Any]
) -> Iterator[OtherPoints]:
    """Look at all points of `target`, a page at a time, that are not of the run's `collection`. Pages may be removed as
    they come."""
    # By the first half of an id, as `interlock prune` does: two that agree in it would spare a point, not cost one.
    known = np.sort(np.concatenate([_halves(ids) for ids in collection.ids()]))
    offset, most = None, min(PAGE, limits.get("max_query_limit") or PAGE)
    while True:
        page, offset = server.page(target, offset, most)
        ours = [each for each in page if isinstance(each, str)]
        unknown = [ours[place] for place in np.flatnonzero(~np.isin(_halves(ours), known))]
        payloads = server.payloads(target, unknown, IDENTITY) if unknown else {}
        stale = [point for point in unknown if _put_there(collection.qdrant_collection, point, payloads.get(point))]
        yield OtherPoints(stale, len(page) - len(ours) + len(unknown) - len(stale))
        if offset is None:
            return


def _halves(ids: list[str]) -> Any:
    return np.frombuffer(b"".join(UUID(each).bytes for each in ids), np.uint64).reshape(-1, 2)[:, 0]


def _put_there(collection: str, point: str, payload: Mapping[str, Any] | None) -> bool:
    """Whether an upload put a point there; None of a payload: it is gone meanwhile."""
    source, chunk_id = ((payload or {}).get(key) for key in IDENTITY)
    return (
        isinstance(source, str) and isinstance(chunk_id, str) and UUID(point) == point_of(collection, source, chunk_id)
    )
