"""An embedded store beside its corpus: what was delivered is compared with the plan, and what left the corpus is
marked.

Every text is read back, and a sample's vectors. Only a delivery that has seen all of a collection, and found all of it
in the store, says which points are stale: a record that was refused may be a chunk that was delivered before. Killed at
any moment, the next delivery finds what is left.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from interlock.engine.corpus.corpus import Rows
from interlock.engine.corpus.identity import digest_of
from interlock.engine.errors import UsageError
from interlock.engine.record.facts import Verification
from interlock.engine.record.words import argument, command, few, several
from interlock.engine.targets import shard
from interlock.engine.targets.embedded import Store
from interlock.engine.targets.target import MIN_COSINE, MIN_QUANTISED, OtherPoints, Target, compare, others, prune
from interlock.engine.targets.windows import Delivery, Places, points_at, uuid_of
from interlock.engine.vectors.points import STALE, Point

TOKEN_SAMPLE = 32
"""Rows of the sample whose token vectors are read back; the other vectors of all of it are."""
IDS = 10_000
"""Points that are counted by their ids at a time."""


@dataclass(frozen=True)
class StalePoints:
    """What a collection of a store holds of chunks that left the corpus: its `points`, how many are `stale`, and
    whether these have been removed."""

    collection: str
    points: int
    stale: int
    removed: bool


def verified(delivery: Delivery, store: Store) -> Verification:
    """Make the points durable and compare them with the plan: every text, and a sample's vectors with the passes.

    What its BM25 makes of a text is compared with what it makes now of the text that is there, which is compared too.
    """
    store.flush()
    planned = (
        dict(zip(map(uuid_of, delivery.points(rows)), delivery.texts(rows), strict=True))
        for rows in delivery.row_windows
    )
    rows = delivery.sample
    late = rows[:: -(-len(rows) // TOKEN_SAMPLE)] if delivery.tokens else rows[:0]  # a point's tokens may be large
    tokens = (replace(each, vectors={}, sparse={}) for each in points_at(delivery, late, (), tokens=True))
    others, own = 0, delivery.rows
    if own.collection.shard and store.stale:  # what other shards brought is not stale
        others = store.stale - sum(len(page.stale) for page in _left(store, own))
    return verify(store, planned, _sampled(delivery, store, rows), tokens, others)


def _sampled(delivery: Delivery, store: Store, rows: Places) -> Iterator[Point]:
    """The points of these rows, without payloads and tokens."""
    ids = [uuid_of(point) for point in delivery.points(rows)]
    bm25 = delivery.spec.bm25
    kept = store.payloads(ids, ["text"]) if bm25 else {}
    for point in points_at(delivery, rows, store.dims, tokens=False):
        text = kept.get(point.id, {}).get("text")
        words = bm25.of(text) if bm25 and isinstance(text, str) else {}
        yield replace(point, sparse={**point.sparse, **words})


def verify(
    store: Store,
    planned: Iterable[Mapping[str, bytes]],
    sample: Iterable[Point],
    late: Iterable[Point] = (),
    others: int = 0,
) -> Verification:
    """Read the store back and compare it with what was `planned`: by id the digest of each text, a window at a time.

    ok: every planned point is there with its text, there is no other but the stale ones, which an earlier delivery
    wrote, and so many `others` of other shards, every point of the `sample` has just its dense and sparse vectors, and
    every one of `late` its tokens.
    """
    held = texts_held(store, planned)
    points, stale = store.count(), store.stale - others
    least = MIN_QUANTISED if store.quantise != "none" else MIN_COSINE
    compared = compare(sample, lambda ids: store.read(ids, [*store.dims, *store.sparse]), least, payloads=False)
    tokens = compare(late, lambda ids: store.read(ids, store.tokens), least, payloads=False)
    odd = {**compared.faults, **tokens.faults}
    faults = {"missing": held.missing, "with a different text": held.changed, "with other vectors than delivered": odd}
    vectors, worst = "no vector sampled", compared.worst_cosine
    if worst is not None:
        vectors = f"vectors of {several(compared.points, 'point')} compared, worst cosine {worst:.7f}"
    texts = f"{several(held.expected - len(held.missing), 'text')} compared; {vectors}"
    elsewhere = f", {others:,} of other shards" * bool(others)
    told = "".join(f"; {len(ids)} {fault}: {few([*ids])}" for fault, ids in faults.items() if ids)
    return Verification(
        store=str(store.path.parent),
        points=points,
        expected=held.expected,
        stale=stale,
        sampled=compared.points,
        worst_cosine=worst,
        ok=points - stale - others == held.expected and not any(faults.values()),
        detail=f"{points:,} points ({held.expected:,} expected, {stale:,} stale{elsewhere}); {texts}{told}",
    )


@dataclass(frozen=True)
class Held:
    """What a target holds of planned points: how many are `expected`, the ids that are `missing` and those whose text
    is another one (`changed`)."""

    expected: int
    missing: Sequence[str]
    changed: Sequence[str]


def texts_held(target: Target, planned: Iterable[Mapping[str, bytes]]) -> Held:
    """Read every text back and compare it with the planned ones: by id the digest of each, a window at a time."""
    expected, missing, changed = 0, list[str](), list[str]()
    for window in planned:
        found = target.payloads([*window], ["text"])
        expected += len(window)
        missing += window.keys() - found.keys()
        for point, payload in found.items():
            text = payload.get("text")
            if not isinstance(text, str) or digest_of(text) != window[point]:
                changed.append(point)
    return Held(expected, missing, changed)


def mirrored(store: Store, rows: Rows, seen: Verification, run: str, *, remove: bool) -> tuple[Verification, str]:
    """Mark the points of chunks that left the corpus, or `remove` them; what was `seen` then, and a warning of what was
    left, empty for none. Touches nothing where the delivery is not whole."""
    if not seen.stale or not seen.ok:
        return seen, ""
    kept = f"{store.path} still holds {several(seen.stale, 'point')}"
    if refused := len(rows.refusals) + rows.elsewhere.refused:
        unread = f"{several(refused, 'record or file', 'records or files')} of {rows.collection.name}"
        return seen, (
            f"{kept} of chunks that this run did not see; {unread} could not be used and may be some of them, so none "
            "was marked or removed: fix those, then run again"
        )
    if not remove:
        for page in _left(store, rows):
            store.mark(page.stale, run)
        return seen, (
            f"{kept} of chunks that are no longer in the corpus, and searches mark them: "
            f"`{command(['prune', argument(store.path.parent)])}` removes them, and so does a run with --prune"
        )
    pruned, _ = prune(store, _left(store, rows), IDS)
    points = store.count()
    left_over = seen.stale - (seen.points - points)
    detail = f"{seen.detail}; {pruned:,} stale removed"
    return msgspec.structs.replace(
        seen, points=points, stale=left_over, pruned=pruned, ok=not left_over, detail=detail
    ), ""


def _left(store: Store, rows: Rows) -> Iterator[OtherPoints]:
    """The points of the store that are not planned, and not of other shards, a page at a time."""
    planned = rows.points.copy().view("u8").reshape(-1, 2)[:, 0]  # whole, for a view: they are a field of records
    return others(store, planned, shard=rows.collection.shard)


def marked(store: Store) -> list[str]:
    """List the points that a delivery has found stale, by id."""
    return [point for point, _ in store.parts(STALE)]


def prune_marked(directory: Path, collection: str, *, remove: bool) -> StalePoints:
    """Tell how many points of a collection of the store at `directory` are marked as stale, and `remove` them.

    Raises UsageError for a collection that is not there, damaged or in use.
    """
    with (Store.open_for_removal if remove else Store.open_for_read)(directory, collection) as store:
        points, stale = store.count(), marked(store)
        if remove:
            prune(store, [OtherPoints(stale, 0)], IDS)
    return StalePoints(collection, points, len(stale), remove)


def unplanned(directory: Path, rows: Rows) -> str:
    """Tell how many points of the store at `directory` a run of these rows would find stale; empty for none."""
    name = rows.collection.qdrant_collection
    if not rows.chunks or not (directory / name / shard.MANIFEST).exists():
        return ""
    try:
        with Store.open_for_read(directory, name) as store:
            stale = sum(len(page.stale) for page in _left(store, rows))
    except UsageError as error:
        return str(error)
    return f"{directory / name} holds {several(stale, 'point')} whose chunks are not in the corpus" if stale else ""
