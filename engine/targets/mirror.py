"""A store beside its corpus: points whose chunks have left it are marked, and removed where that is asked for.

Only a delivery that has seen all of a collection, and found all of it in the store, says which they are: a record that
was refused may be a chunk that was delivered before. Killed at any moment, the next delivery finds what is left.
"""

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np

from interlock.engine.corpus.corpus import Digests, Rows
from interlock.engine.errors import UsageError
from interlock.engine.record.facts import Verification
from interlock.engine.record.words import several
from interlock.engine.targets import shard
from interlock.engine.targets.qdrant import Store
from interlock.engine.vectors.points import STALE


@dataclass(frozen=True)
class StalePoints:
    """What a collection of a store holds of chunks that left the corpus: its `points`, how many are `stale`, and
    whether these have been removed."""

    collection: str
    points: int
    stale: int
    removed: bool


def mirrored(store: Store, rows: Rows, seen: Verification, run: str, *, prune: bool) -> tuple[Verification, str]:
    """Mark the points of chunks that left the corpus, or remove them to `prune`; what was `seen` then, and a warning of
    what was left, empty for none. Touches nothing where the delivery is not whole."""
    if not seen.stale or not seen.ok:
        return seen, ""
    held = f"{store.path} still holds {several(seen.stale, 'point')}"
    if refused := len(rows.refusals):
        unread = f"{several(refused, 'record or file', 'records or files')} of {rows.collection.name}"
        return seen, (
            f"{held} of chunks that this run did not see; {unread} could not be used and may be some of them, so none "
            "was marked or removed: fix those, then run again"
        )
    stale = left(store, rows.points)
    if not prune:
        store.mark(stale, run)
        return seen, (
            f"{held} of chunks that are no longer in the corpus, and searches mark them: "
            f"`interlock prune {store.path.parent}` removes them, and so does a run with --prune"
        )
    store.remove(stale)
    points = store.count()
    left_over = points - seen.expected
    ok, detail = not left_over, f"{seen.detail}; {len(stale):,} stale removed"
    return msgspec.structs.replace(seen, points=points, stale=left_over, pruned=len(stale), ok=ok, detail=detail), ""


def left(store: Store, planned: Digests) -> list[str]:
    """List the points of the store that are not `planned`, by id."""
    # By the first half of an id, which is random enough; two that agree in it would spare a point, not cost one.
    known = np.sort(planned.view(np.uint64).reshape(-1, 2)[:, 0])
    found: list[str] = []
    for page in store.pages():
        halves = np.frombuffer(b"".join(UUID(point).bytes for point in page), np.uint64).reshape(-1, 2)[:, 0]
        found += [page[place] for place in np.flatnonzero(~np.isin(halves, known))]
    return found


def marked(store: Store) -> list[str]:
    """List the points that a delivery has found stale, by id."""
    return [point for point, _ in store.parts(STALE)]


def prune(directory: Path, collection: str, *, remove: bool) -> StalePoints:
    """Tell how many points of a collection of the store at `directory` are marked as stale, and `remove` them.

    Raises UsageError for a collection that is not there, damaged or in use.
    """
    with (Store.open_for_removal if remove else Store.open_for_read)(directory, collection) as store:
        points, stale = store.count(), marked(store)
        if remove:
            store.remove(stale)
    return StalePoints(collection, points, len(stale), remove)


def unplanned(directory: Path, rows: Rows) -> str:
    """Tell how many points of the store at `directory` a run of these rows would find stale; empty for none."""
    name = rows.collection.qdrant_collection
    if not rows.chunks or not (directory / name / shard.MANIFEST).exists():
        return ""
    try:
        with Store.open_for_read(directory, name) as store:
            stale = len(left(store, rows.points))
    except UsageError as error:
        return str(error)
    return f"{directory / name} holds {several(stale, 'point')} whose chunks are not in the corpus" if stale else ""
