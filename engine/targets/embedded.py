"""The embedded store: Qdrant's own engine in this process, one directory a collection.

`<directory>/<collection>/` is a shard that any qdrant_edge loads, plus `manifest.json`, which says what its
vectors mean; vectors of another meaning are refused. Points go in once, with all their vectors, by ids that
do not change, so delivering twice changes nothing and a killed delivery is repeated. Points that left the
corpus are marked, and deleted only where that is asked for. The write-ahead log stays on: it is what survives SIGKILL,
and what locks the shard against other programs; Interlock's own lock holds before the engine makes a file. Nothing is
ever optimised, so every search is exact.
"""

import fcntl
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from interlock.engine.errors import UsageError
from interlock.engine.record import atomic
from interlock.engine.targets import readers, shard, stores
from interlock.engine.targets.shard import VectorKinds, working
from interlock.engine.targets.target import MOST_BYTES, MOST_POINTS, Ids, fault_of
from interlock.engine.vectors.bm25 import BM25, WordWeights
from interlock.engine.vectors.fusion import PROJECTION, Vectors
from interlock.engine.vectors.points import STALE, Point, Terms, Vector, for_engine, of_engine
from interlock.engine.vectors.precision import Quantise
from interlock.engine.vectors.texts import TextPostings, made_of_texts, with_terms, without_terms

if TYPE_CHECKING:
    import qdrant_edge as edge
    from qdrant_edge import EdgeShard

PAGE = 10_000
"""Points whose payloads are read at a time."""
FLUSH_BYTES = 64_000_000  # a flush trims the write-ahead log, which otherwise grows with the corpus


class Store(AbstractContextManager["Store"]):
    """One open collection of an embedded store; a context manager.

    `dims` gives the dimensions of its dense vectors, `sparse` the names of the sparse ones, and `tokens` the dimensions
    of its token vectors.
    """

    tells_truths = False
    """Whether its filters know true and false: the engine's binding makes numbers of them."""

    def __init__(
        self, path: Path, engine: "EdgeShard", manifest: Mapping[str, object], kinds: VectorKinds, held: ExitStack
    ) -> None:
        self.path, self.manifest = path, manifest
        self.dims, self.sparse, self.tokens = kinds.dims, frozenset(kinds.sparse), kinds.tokens
        self._shard = engine
        self._held = held.pop_all()
        self._unflushed = self._known = 0
        self.where, self.most_points, self.most_bytes = str(path), MOST_POINTS, MOST_BYTES
        self._before = self.count()

    @classmethod
    def open_for_write(
        cls,
        directory: Path,
        collection: str,
        dims: Mapping[str, int],
        manifest: Mapping[str, object],
        sparse: Collection[str] = (),
        tokens: Mapping[str, int] = {},
        projection: Vectors | None = None,
    ) -> Self:
        """Open or create a collection. UsageError if it means something else, is foreign, damaged or in use.

        `manifest` is JSON-able and kept as it is; on re-use all of it but the key "run" must be the same, and
        the key "calibrated" stays as it is there. `projection` is what brought its fused vectors to fewer dimensions,
        which the manifest names by its SHA-256.
        """
        stores.check_names(collection, (*dims, *sparse, *tokens))
        path, wanted = directory / collection, json.loads(json.dumps(manifest))
        with working(path, f"writing {shard.MANIFEST}"):
            path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            held.enter_context(shard.holding(path, fcntl.LOCK_EX, shard.ELSEWHERE))
            if not stores.is_ours(path, wanted):  # claimed first, so that a creation that is killed is taken up
                shard.write_manifest(path, wanted)
            elif calibrated := shard.read_manifest(path).get("calibrated"):  # of the same models at the same weights
                wanted["calibrated"] = calibrated
            if projection is not None and not (path / PROJECTION).exists():
                shard.write_projection(path, projection)
            shard.require_room(path, 0)  # the engine makes mapped files, and is killed where they cannot be filled
            engine = shard.load(
                path, dims, sparse, tokens, int8=wanted.get("quantised") == "int8", compact=bool(wanted.get("compact"))
            )
            held.callback(engine.close)
            atomic.sweep(path)
            shard.write_manifest(path, wanted)  # under the lock: the "run" of whoever writes is the one kept
            return cls(path, engine, wanted, VectorKinds(dict(dims), [*sparse], dict(tokens)), held)

    @classmethod
    def open_for_read(cls, directory: Path, collection: str | None) -> Self:
        """Open a collection, the only one where none is named; UsageError where none is, it is damaged or in use."""
        path = stores.alone(directory, collection)
        with ExitStack() as held:
            engine, manifest = held.enter_context(readers.reading(path)), shard.read_manifest(path)
            return cls(path, engine, manifest, shard.read_kinds(path), held)

    @classmethod
    def open_copy(cls, directory: Path, collection: str | None) -> Self:
        """Open a copy of an existing collection, which goes when this is closed: others may read it meanwhile, and a
        run may write to it, which is not seen here. Raises as `open_for_read` and `shard.copied` do."""
        path = stores.alone(directory, collection)
        with ExitStack() as held:
            place = held.enter_context(atomic.scratch(shard.COPY)) / path.name
            shard.copied(path, place)
            engine, manifest = held.enter_context(readers.reading(place)), shard.read_manifest(place)
            copy = cls(place, engine, manifest, shard.read_kinds(place), held)
        copy.where = str(path)
        return copy

    @classmethod
    def open_for_removal(cls, directory: Path, collection: str) -> Self:
        """Open an existing collection whose points are to be removed, for this process alone; UsageError as above."""
        path = stores.alone(directory, collection)
        with ExitStack() as held:
            held.enter_context(shard.holding(path, fcntl.LOCK_EX))
            engine, manifest = shard.load(path, None), shard.read_manifest(path)
            held.callback(engine.close)
            return cls(path, engine, manifest, shard.read_kinds(path), held)

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def projection(self) -> Vectors | None:
        """What brings a query [n, width] to the dimensions [width, dim] of its fused vectors; None where they have all.

        Raises UsageError where it is gone, or not the one that the manifest names.
        """
        return stores.kept_projection(self.path, self.manifest)

    @property
    def quantise(self) -> Quantise:
        """In what numbers its dense vectors are; but for `none` they are only near what was written."""
        return "int8" if self.manifest.get("quantised") == "int8" else "none"

    def upsert(self, points: Sequence[Point], size: int) -> None:
        """Write points of about so many bytes, each once an opening. Raises InterlockError where the disk has no room.

        Integers beyond 64 bits are stored as their decimal text, because the engine would round them.
        """
        import qdrant_edge as edge

        shard.require_room(self.path, size)
        self.__dict__.pop("_texts", None)
        points = [without_terms(point) for point in points] if self._made else points
        with working(self.path, "writing"):
            self._known += len(self._shard.retrieve([point.id for point in points], False, False))
            self._shard.update(edge.UpdateOperation.upsert_points([for_engine(point) for point in points]))
        self._unflushed += size
        if self._unflushed >= FLUSH_BYTES:
            self.flush()

    @cached_property
    def _made(self) -> WordWeights | None:
        return made_of_texts(self.manifest)

    @cached_property
    def _texts(self) -> TextPostings:
        """The terms of a compact store, made at the first question; what is written or removed makes them anew."""
        assert self._made
        return TextPostings(self._made, ((id, str(text)) for id, text in self.parts("text")))

    @property
    def stale(self) -> int:
        """Points that were in the store before this opening and have not been written since."""
        return max(0, self._before - self._known)

    def ids(self) -> Iterator[list[str | int]]:
        """Yield the ids of all points, some thousands at a time."""
        for records in self._scrolled(False):
            yield [each.id if isinstance(each.id, int) else str(each.id) for each in records]

    def _scrolled(
        self, payload: "bool | edge.PayloadSelector", where: "edge.Filter | None" = None
    ) -> "Iterator[list[edge.Record]]":
        """All points without their vectors, with this of their payloads, a page at a time."""
        from qdrant_edge import ScrollRequest

        offset, more = None, True
        while more:
            with working(self.path, "reading"):
                asked = ScrollRequest(offset=offset, limit=PAGE, with_payload=payload, with_vector=False, filter=where)
                records, offset = self._shard.scroll(asked)
            more = offset is not None
            yield records

    def mark(self, points: Sequence[str], run: str) -> None:
        """Say in the payloads of these points that `run` found their chunks gone; who is marked stays as it is."""
        import qdrant_edge as edge

        for batch in _few(points):
            unmarked = edge.Filter(must=[edge.HasIdCondition({*batch}), edge.IsEmptyCondition(STALE)])
            with working(self.path, "marking stale points"):
                self._shard.update(edge.UpdateOperation.set_payload_by_filter(unmarked, {STALE: run}))
        self.flush()

    def remove(self, points: Sequence[str]) -> None:
        """Delete these points; each is there or not, whenever this is killed."""
        import qdrant_edge as edge

        self.__dict__.pop("_texts", None)
        for batch in _few(points):
            with working(self.path, "removing points"):
                self._shard.update(edge.UpdateOperation.delete_points([*batch]))
        self.flush()

    def flush(self) -> None:
        """Make everything so far durable on disk, not only against a kill of this process."""
        with working(self.path, "flushing"):
            self._shard.flush()
        self._unflushed = 0

    def close(self) -> None:
        """Flush and let go of the shard; a second call does nothing."""
        with working(self.path, "closing"):
            self._held.close()  # the engine's close is a flush and an unlock

    def settle(self, shards: dict[str, object]) -> None:
        """Say in the manifest that what was delivered is all there, of a run in `shards` which of them are."""
        self.manifest = {key: value for key, value in self.manifest.items() if key != "unfinished"} | shards
        shard.write_manifest(self.path, self.manifest)

    def count(self, among: Ids | None = None, where: "edge.Filter | None" = None) -> int:
        """Count the points in the store, exactly; only those `among` these ids, else those for which `where` holds."""
        import qdrant_edge as edge

        kept = where if among is None else edge.Filter(must=[edge.HasIdCondition({*among})])
        with working(self.path, "counting"):
            return int(self._shard.count(edge.CountRequest(exact=True, filter=kept)))

    def has(self, where: "edge.Filter | None") -> bool:
        """Tell whether there is a point for which `where` holds."""
        return self.count(where=where) > 0

    def read(self, ids: Ids, names: Collection[str] | None = None) -> dict[str, Point]:
        """Return those of these points that exist, in the order asked, with dense vectors at unit length; with those of
        these `names` alone, if given: token vectors may be large."""
        wanted = [*self.dims, *self.sparse, *self.tokens] if names is None else [*names]
        made = self._made if BM25 in wanted else None
        wanted = [name for name in wanted if name != BM25 or not made]
        with working(self.path, "reading"):
            records = self._shard.retrieve(list(ids), with_payload=True, with_vector=wanted)
        return {point.id: with_terms(point, made) if made else point for point in map(of_engine, records)}

    def payloads(self, ids: Ids, keys: Sequence[str] = ()) -> dict[str, Mapping[str, object]]:
        """Return the payloads of those of these points that exist, by id; only these keys, if given."""
        from qdrant_edge import PayloadSelector

        wanted = PayloadSelector.Include([*keys]) if keys else True
        with working(self.path, "reading"):
            records = self._shard.retrieve(list(ids), with_payload=wanted, with_vector=False)
        return {str(record.id): record.payload or {} for record in records}

    def query(
        self,
        name: str,
        question: Vector | Terms,
        limit: int,
        where: "edge.Filter | None" = None,
        among: Collection[str] | None = None,
    ) -> dict[str, float]:
        """Return the scores of the `limit` points that answer best by their vectors `name`, by id, best first; of
        equals the lower id first, since the engine's own order of them may change.

        A cosine for a dense vector [dim], a dot product for terms (by the store's own IDF for BM25's), and MaxSim for
        the vectors of tokens [tokens, dim]: the sum, over them, of the largest dot product with any token of the point.
        Only points for which `where` holds, only those `among` these ids if given; a point without such vectors has no
        score. Exact. Raises UsageError for vectors that the store does not have.
        """
        return self.queries(name, [question], limit, where, among)[0]

    def queries(
        self,
        name: str,
        questions: Sequence[Vector | Terms],
        limit: int,
        where: "edge.Filter | None" = None,
        among: Collection[str] | None = None,
    ) -> list[dict[str, float]]:
        """Answer each question as `query` does, and to the same scores: all go through the points together."""
        import qdrant_edge as edge

        conditions: list[edge.Filter | edge.HasIdCondition] = [where] if where else []
        if among is not None:
            conditions.append(edge.HasIdCondition({*among}))
        requests, kept = list[edge.QueryRequest](), edge.Filter(must=[*conditions]) if conditions else None
        if fault := next(filter(None, (fault_of(name, question, self) for question in questions)), ""):
            raise UsageError(f"cannot search {self.path}: {fault}")
        if self._made and name == BM25:
            ids = {str(each.id) for page in self._scrolled(False, kept) for each in page} if kept else None
            return [self._texts.best(each, limit, ids) for each in questions if isinstance(each, Terms)]
        for question in questions:
            asked: edge.SparseVector | list[float] | list[list[float]] = (
                edge.SparseVector(question.indices.tolist(), question.values.tolist())
                if isinstance(question, Terms)
                else question.tolist()
            )
            nearest, exact = edge.Query.Nearest(asked, using=name), edge.SearchParams(exact=True)
            requests.append(edge.QueryRequest(limit=limit, query=nearest, filter=kept, params=exact))
        with working(self.path, "searching"):
            found = self._shard.query_batch(edge.QueryBatchRequest(requests))
        scores = [{str(point.id): float(point.score) for point in each} for each in found]
        return [dict(sorted(each.items(), key=lambda pair: (-pair[1], pair[0]))) for each in scores]

    def some_payloads(self, most: int) -> list[Mapping[str, object]]:
        """Return the payloads of some points, at most so many."""
        from qdrant_edge import ScrollRequest

        with working(self.path, "reading"):
            records, _ = self._shard.scroll(ScrollRequest(limit=most, with_payload=True, with_vector=False))
        return [record.payload or {} for record in records]

    def parts(self, key: str) -> Iterator[tuple[str, object]]:
        """Yield the id of every point whose payload has this key at its top, with what is there."""
        from qdrant_edge import PayloadSelector

        for records in self._scrolled(PayloadSelector.Include([f'"{key}"'])):  # a path, in which dots part keys
            yield from ((str(each.id), (each.payload or {})[key]) for each in records if key in (each.payload or {}))


def _few(points: Sequence[str]) -> Iterator[Sequence[str]]:
    return (points[start : start + MOST_POINTS] for start in range(0, len(points), MOST_POINTS))
