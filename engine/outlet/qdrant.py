"""The embedded store: Qdrant's own engine in this process, one directory a collection.

`<directory>/<collection>/` is a shard that any qdrant_edge loads, plus `manifest.json`, which says what its
vectors mean; vectors of another meaning are refused. Points go in once, with all their vectors, by ids that
do not change, so delivering twice changes nothing and a killed delivery is repeated. Points that left the
corpus are counted, never deleted. The write-ahead log stays on: it is what survives SIGKILL, and what locks the
shard against other programs; Interlock's own lock holds before the engine makes a file. Nothing is ever optimised, so
every search is exact.
"""

import fcntl
import heapq
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import UUID

import numpy as np

from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.intake.corpus import digest_of
from interlock.engine.outlet import shard
from interlock.engine.outlet.fusion import shares
from interlock.engine.outlet.points import Point, Terms, Vector, for_engine, of_engine
from interlock.engine.outlet.shard import working
from interlock.engine.record.atomic import sweep
from interlock.engine.record.compare import few
from interlock.engine.record.counting import several
from interlock.engine.record.facts import Verification

if TYPE_CHECKING:
    from qdrant_edge import EdgeShard

TEXT = "text"
"""Where a point's payload has the text of its vectors."""

BATCH_BYTES = 8_000_000
BATCH_POINTS = 256
FLUSH_BYTES = 64_000_000  # a flush trims the write-ahead log, which otherwise grows with the corpus
MIN_COSINE = 1 - 1e-5


@dataclass(frozen=True)
class Hit:
    """A found point; `score` is a cosine, or a weighted mean of cosines."""

    id: str
    score: float
    payload: Mapping[str, object]


class Store:
    """One open collection of an embedded store; a context manager.

    `dims` gives the dimensions of its dense vectors, `sparse` the names of the others.
    """

    def __init__(
        self,
        path: Path,
        engine: "EdgeShard",
        manifest: Mapping[str, object],
        dims: Mapping[str, int],
        sparse: Collection[str],
        held: ExitStack,
    ) -> None:
        self.path, self.manifest, self.dims, self.sparse = path, manifest, dims, frozenset(sparse)
        self._shard = engine
        self._held = held.pop_all()
        self._unflushed = 0
        self._known = 0
        self._before = self.count()

    @classmethod
    def open_for_write(
        cls,
        directory: Path,
        collection: str,
        dims: Mapping[str, int],
        manifest: Mapping[str, object],
        sparse: Collection[str] = (),
    ) -> Self:
        """Open or create a collection. UsageError if it means something else, is foreign, damaged or in use.

        `manifest` is JSON-able and kept as it is; on re-use all of it but the key "run" must be the same.
        """
        shard.check_names(collection, (*dims, *sparse))
        path, wanted = directory / collection, json.loads(json.dumps(manifest))
        with working(path, f"writing {shard.MANIFEST}"):
            path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            held.enter_context(shard.holding(path, fcntl.LOCK_EX))
            if not shard.is_ours(path, wanted):  # claimed first, so that a creation that is killed is taken up
                shard.write_manifest(path, wanted)
            shard.require_room(path, 0)  # the engine makes mapped files, and is killed where they cannot be filled
            engine = shard.load(path, dims, sparse)
            sweep(path)
            shard.write_manifest(path, wanted)  # under the lock: the "run" of whoever writes is the one kept
            return cls(path, engine, wanted, dict(dims), sparse, held)

    @classmethod
    def open_for_read(cls, directory: Path, collection: str) -> Self:
        """Open an existing collection; UsageError if there is none, or it is damaged or in use."""
        path = shard.find(directory, collection)
        with ExitStack() as held:
            held.enter_context(shard.holding(path, fcntl.LOCK_SH))
            engine, manifest = shard.load(path, None), shard.read_manifest(path)
            return cls(path, engine, manifest, shard.read_dims(path), shard.read_sparse(path), held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def upsert(self, points: Iterable[Point]) -> int:
        """Write each point once with all its vectors; the number written. Pass each id once per opening.

        Integers beyond 64 bits are stored as their decimal text, because the engine would round them.
        Raises InterlockError for a vector that is not finite, zero or of another dimension, for a sparse one
        that has no terms or not in order, for a payload that is not JSON, and when the disk has no room.
        """
        written = 0
        for batch, size in _batches(self._gated(point) for point in points):
            self._send(batch, size)
            written += len(batch)
        return written

    @property
    def stale(self) -> int:
        """Points that were in the store before this opening and have not been upserted since."""
        return max(0, self._before - self._known)

    def flush(self) -> None:
        """Make everything so far durable on disk, not only against a kill of this process."""
        with working(self.path, "flushing"):
            self._shard.flush()
        self._unflushed = 0

    def close(self) -> None:
        """Flush and let go of the shard; a second call does nothing."""
        with self._held, working(self.path, "closing"):
            self._shard.close()  # the engine's close is a flush and an unlock

    def count(self) -> int:
        """Count the points in the store, exactly."""
        from qdrant_edge import CountRequest

        with working(self.path, "counting"):
            return int(self._shard.count(CountRequest(exact=True)))

    def retrieve(self, ids: Sequence[str]) -> list[Point]:
        """Return the points of these ids that exist, in the order asked, with dense vectors at unit length."""
        with working(self.path, "reading"):
            records = self._shard.retrieve(list(ids), with_payload=True, with_vector=True)
        return [of_engine(record) for record in records]

    def texts(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Return the text in the payload of each of these points that exists, by id; None where there is none."""
        from qdrant_edge import PayloadSelector

        with working(self.path, "reading"):
            records = self._shard.retrieve(list(ids), PayloadSelector.Include([TEXT]), with_vector=False)
        texts = {str(record.id): (record.payload or {}).get(TEXT) for record in records}
        return {point: text if isinstance(text, str) else None for point, text in texts.items()}

    def search(self, vector_name: str, vector: Vector, limit: int) -> list[Hit]:
        """Return the `limit` points with the highest cosine to `vector` [dim], best first. Exact."""
        return self._hits(self._scores(vector_name, vector, limit))

    def search_named(self, vectors: Mapping[str, Vector], weights: Mapping[str, float], limit: int) -> list[Hit]:
        """Return the `limit` points with the highest weighted mean of the models' cosines, best first. Exact.

        Each model gives its nearest points, the union is scored by every model, and the depth grows until no
        point outside the union can reach the last hit (Fagin's threshold). A point parked for a model scores
        0 there.
        """
        share = dict(zip(vectors, shares([weights[name] for name in vectors]).tolist(), strict=True))
        total, depth = self.count(), max(256, 16 * limit)
        while True:
            means, beyond = self._means(vectors, share, depth)
            best = heapq.nsmallest(limit, means.items(), key=lambda pair: (-pair[1], pair[0]))
            if depth >= total or (best and best[-1][1] >= beyond):
                return self._hits(dict(best))
            depth *= 4

    def _gated(self, point: Point) -> tuple[Point, int]:
        """The point and its size in bytes; InterlockError for what the engine would take and must not."""
        try:
            UUID(point.id)
            size = len(json.dumps(point.payload, ensure_ascii=False, allow_nan=False).encode())
        except (TypeError, ValueError) as cause:
            raise InterlockError(f"cannot store point {point.id} in {self.path}: {cause}") from cause
        faults = [self._fault(name, vector) for name, vector in point.vectors.items()]
        faults += [self._fault_of_terms(name, terms) for name, terms in point.sparse.items()]
        if fault := next(filter(None, faults), None):
            raise InterlockError(f"cannot store point {point.id} in {self.path}: {fault}")
        return point, size + point.vector_bytes

    def _fault(self, name: str, vector: Vector) -> str | None:
        if name not in self.dims:
            return f"no vector {name!r}; the store has {', '.join(self.dims)}"
        if vector.shape != (self.dims[name],):
            return f"vector {name!r} has shape {vector.shape}, expected {self.dims[name]} dimensions"
        square = float(vector @ vector)
        return None if 0 < square < float("inf") else f"vector {name!r} is zero or not finite"

    def _fault_of_terms(self, name: str, terms: Terms) -> str | None:
        if name not in self.sparse:
            return f"no sparse vector {name!r}; the store has {', '.join(sorted(self.sparse)) or 'none'}"
        fault = terms.fault()
        return f"sparse vector {name!r} {fault}" if fault else None

    def _send(self, batch: Sequence[Point], size: int) -> None:
        import qdrant_edge as edge

        shard.require_room(self.path, size)
        ids = {str(UUID(point.id)) for point in batch}
        with working(self.path, "writing"):
            self._known += len(self._shard.retrieve(list(ids), with_payload=False, with_vector=False))
            points = [for_engine(point) for point in batch]
            self._shard.update(edge.UpdateOperation.upsert_points(points))
        self._unflushed += size
        if self._unflushed >= FLUSH_BYTES:
            self.flush()

    def _scores(self, name: str, vector: Vector, limit: int, among: Iterable[str] = ()) -> dict[str, float]:
        """Cosines of the nearest `limit` points by id, best first; only `among` these ids, if any given."""
        import qdrant_edge as edge

        if fault := self._fault(name, vector):
            raise UsageError(f"cannot search {self.path}: {fault}")
        wanted: set[int | UUID | str] = set(among)
        request = edge.QueryRequest(
            limit=limit,
            query=edge.Query.Nearest(vector.tolist(), using=name),
            filter=edge.Filter(must=[edge.HasIdCondition(wanted)]) if wanted else None,
            params=edge.SearchParams(exact=True),
        )
        with working(self.path, "searching"):
            return {str(point.id): float(point.score) for point in self._shard.query(request)}

    def _means(
        self, vectors: Mapping[str, Vector], share: Mapping[str, float], depth: int
    ) -> tuple[dict[str, float], float]:
        """Weighted mean cosine of every candidate, and the most that any other point could have."""
        near = {name: self._scores(name, vector, depth) for name, vector in vectors.items()}
        union = set().union(*near.values())
        # A point that no model has among its nearest is for each at most as near as the last of these.
        beyond = sum(share[n] * max(0.0, min(scores.values(), default=0.0)) for n, scores in near.items())
        for name, scores in near.items():
            if rest := union - scores.keys():
                scores |= self._scores(name, vectors[name], len(rest), rest)
        means = {i: sum(share[n] * scores.get(i, 0.0) for n, scores in near.items()) for i in union}
        return means, beyond

    def _hits(self, scores: Mapping[str, float]) -> list[Hit]:
        with working(self.path, "reading"):
            records = self._shard.retrieve(list(scores), with_payload=True, with_vector=False)
        return [Hit(str(r.id), scores[str(r.id)], r.payload or {}) for r in records]


def verify(
    store: Store,
    planned: Iterable[Mapping[str, bytes]],
    sample: Mapping[str, Mapping[str, Vector]],
    sparse: Mapping[str, Mapping[str, Terms]] = {},
) -> Verification:
    """Read the store back and compare it with what was planned.

    `planned` are the points of the corpus, a window at a time: by id the digest of each text. `sample` has the dense
    vectors that some of them must have, id -> name -> vector, and `sparse` their sparse ones. ok: every planned point
    is there with its text, there is no other but the stale ones, and every sampled point has just its vectors: a dense
    one with a cosine above 1 - 1e-5, a sparse one with the same terms.
    """
    expected, missing, changed = 0, list[str](), list[str]()
    for window in planned:
        texts = store.texts(list(window))
        expected += len(window)
        missing += window.keys() - texts.keys()
        changed += [point for point, text in texts.items() if text is None or digest_of(text) != window[point]]
    points, stale = store.count(), store.stale
    stored = {point.id: point for point in store.retrieve(list(sample))}
    cosines = [
        _cosine(vector, stored[point].vectors.get(name) if point in stored else None)
        for point, vectors in sample.items()
        for name, vector in vectors.items()
    ]
    worst = min(cosines, default=None)
    odd = [
        point for point in sample if point not in stored or not stored[point].has(sample[point], sparse.get(point, {}))
    ]
    faults = {"missing": missing, "with a different text": changed, "with other vectors than delivered": odd}
    # Stale points are no fault: an earlier delivery wrote them, and nothing here deletes.
    ok = points - stale == expected and (worst is None or worst > MIN_COSINE) and not any(faults.values())
    vectors = "no vector sampled"
    if worst is not None:
        vectors = f"vectors of {several(len(sample), 'point')} compared, worst cosine {worst:.7f}"
    compared = f"{several(expected - len(missing), 'text')} compared; {vectors}"
    told = "".join(f"; {len(ids)} {fault}: {few(ids)}" for fault, ids in faults.items() if ids)
    detail = f"{points:,} points ({expected:,} expected, {stale:,} stale); {compared}{told}"
    return Verification(
        store=str(store.path.parent),
        points=points,
        expected=expected,
        stale=stale,
        sampled=len(sample),
        worst_cosine=worst,
        ok=ok,
        detail=detail,
    )


def _batches(points: Iterable[tuple[Point, int]]) -> Iterator[tuple[list[Point], int]]:
    """Batches of at most BATCH_POINTS and BATCH_BYTES (a larger point goes alone), with their bytes."""
    batch: list[Point] = []
    total = 0
    for point, size in points:
        if batch and (len(batch) == BATCH_POINTS or total + size > BATCH_BYTES):
            yield batch, total
            batch, total = [], 0
        batch.append(point)
        total += size
    if batch:
        yield batch, total


def _cosine(delivered: Vector, stored: Vector | None) -> float:
    if stored is None or stored.shape != delivered.shape:
        return 0.0
    one, other = delivered.astype(np.float64), stored.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
    return cosine if np.isfinite(cosine) else 0.0  # NaN would slip through min() as if it were fine
