"""Delivers one collection: files and store, each told as an event once it was read back and is what was planned.

What narrower numbers, fewer dimensions and an engine's own quantisation cost is told too, by the neighbours that are
still found. What a session has to see while it reads chunks, for words and for the terms that they bring, is seen by
the builder of its deliveries.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np
from msgspec import structs
from msgspec.structs import asdict

from interlock.engine.compute.parts.outputs import PassFiles
from interlock.engine.compute.parts.terms import SparseFile
from interlock.engine.compute.parts.tokens import TokenFile
from interlock.engine.corpus.corpus import Corpus, Onlooker, Rows
from interlock.engine.corpus.features import features_of, no_features
from interlock.engine.errors import UsageError
from interlock.engine.models.registry import name_of_output
from interlock.engine.record import atomic
from interlock.engine.record.events import ArtefactWritten, Emit, StoreVerified, VectorsKept, Warned
from interlock.engine.record.facts import KeptVectors
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.record.shards import Shards, shards_of, whole_name
from interlock.engine.targets import shard, stores
from interlock.engine.targets.embedded import Store
from interlock.engine.targets.files import write as files
from interlock.engine.targets.files.formats import MARK, file_bytes, with_arrays
from interlock.engine.targets.mirror import mirrored, verified
from interlock.engine.targets.stores import manifest_at, projection_in
from interlock.engine.targets.target import deliver as put
from interlock.engine.targets.windows import ChunkTerms, Delivery, Sink, Window, points_of, uuid_of
from interlock.engine.vectors.bm25 import WordCounts, Words, WordWeights
from interlock.engine.vectors.fusion import PROJECTION, Vectors, energy, fit, to_bytes
from interlock.engine.vectors.manifest import CollectionSpec
from interlock.engine.vectors.precision import (
    COUNT,
    FLOAT16,
    FLOAT32,
    FUSED,
    Loss,
    NeighbourSample,
    Precision,
    int8_for,
    loss_of,
    stored_bytes,
)


class DeliveryBuilder:
    """Sees texts and chunks while they are read, for BM25 of `language` and for what chunks bring as `chunk_sparse`; ""
    is neither."""

    def __init__(self, directory: Path, language: str, chunk_sparse: str) -> None:
        self.chunk_sparse = chunk_sparse
        self._counts = WordCounts(Words(language=language)) if language else None
        self._terms = ChunkTerms(directory) if chunk_sparse else None

    @property
    def beside(self) -> Onlooker:
        """What has to see the texts and chunks while they are read."""
        return Onlooker(
            self._counts.add if self._counts else lambda _: None,
            self._terms.add if self._terms else lambda _: None,
            features_of if self._terms else no_features,
            self._counts.of if self._counts else lambda _: 0,
        )

    def bm25(self, rows: Rows) -> WordWeights | None:
        """Return what makes the BM25 vectors of a collection, if it is to have any."""
        return self._counts.bm25(rows.texts, rows.rest) if self._counts else None

    def delivery(self, rows: Rows, corpus: Corpus, passes: Sequence[PassFiles], spec: CollectionSpec) -> Delivery:
        """Put together what is delivered of a collection: what its texts have in the `passes`, in the order of the
        roster of its `spec`, and what was seen."""
        dense, sparse, tokens = dict[str, Vectors](), dict[str, SparseFile](), dict[str, TokenFile]()
        for entry, made in zip(spec.roster, passes, strict=True):
            if made.dense:
                dense[entry.model] = made.dense.array
            if made.terms:
                sparse[name_of_output(entry.model, "sparse", entry.kind)] = made.terms
            if made.tokens:
                tokens[name_of_output(entry.model, "tokens", entry.kind)] = made.tokens
        first = sum(each.chunks for each in takewhile(lambda each: each is not rows, corpus.rows))
        return Delivery(rows, corpus.digests, spec, dense, sparse, tokens, self._terms, first)

    @property
    def missed(self) -> str:
        """Tell of terms that are asked for and that no chunk brings; empty: there are some, or none are asked for."""
        if self._terms is None or self._terms.count:
            return ""
        return f"--chunk-sparse {self.chunk_sparse}: no chunk brings sparse_features, so these vectors are all empty"


@dataclass(frozen=True)
class Destination:
    """Where collections are delivered: as files of `formats` in a run's directory, or of one collection in `directory`,
    with vectors of this `precision`; and into the embedded store at `store`, of which `prune` removes points whose
    chunks have left the corpus."""

    run: RunDirectory
    formats: Sequence[str]
    store: Path | None = None
    prune: bool = False
    directory: Path | None = None
    precision: Precision = "float32"

    def place(self, collection: str) -> Path:
        """Return where the files of a collection go."""
        return self.directory or self.run.exports(collection)

    def told(self, path: Path) -> str:
        """Name a file, or their directory, in events: relative to the run, or to where they were asked for."""
        return path.relative_to(self.directory.parent if self.directory else self.run.path).as_posix()


def deliver(delivery: Delivery, to: Destination, emit: Emit) -> list[Loss]:
    """Write the files and into the store, if there is one, in one walk for all. Returns what narrower numbers cost, if
    any are asked for.

    The store gets BM25 vectors as well where the delivery has them, unless it was made without. What this run once
    delivered without other models than now is replaced.
    Raises InterlockError, with no file delivered and nothing called verified, where chunks are not those of the plan.
    """
    name = delivery.rows.collection.name
    with ExitStack() as stack:
        if to.store:
            path = to.store / delivery.spec.collection
            if stores.outgrown(path, delivery.spec):
                stores.clear(path)
            delivery = delivery.specified(bm25=stores.kept_in(manifest_at(path), delivery.spec).bm25)
        delivery, store = narrowed(_projected(delivery, to, emit), to.formats, to.precision), None
        sinks: dict[Path, Sink] = {}
        if to.store:
            store = stack.enter_context(_opened(delivery, to.store, to.run))
            sinks[store.path] = partial(_into, store, delivery.spec)
        for path in files.write(delivery, to.formats, to.place(name), sinks):
            artefact = ArtefactWritten(
                collection=name,
                path=to.told(path),
                rows=delivery.rows.chunks * (whole_name(path.name) not in (PROJECTION, MARK)),
                bytes=path.stat().st_size,
                sha256=atomic.sha256_of(path),
                verified=True,
            )
            emit(artefact)
        if store:  # what it holds is compared with the plan, and what is stale there seen to
            seen, warning = mirrored(store, delivery.rows, verified(delivery, store), to.run.id, remove=to.prune)
            if seen.ok:
                store.settle(_sharded(delivery, to.run, store.manifest, delivery.rows.chunks))
            emit(StoreVerified(collection=name, qdrant_collection=delivery.spec.collection, **asdict(seen)))
            if warning:
                emit(Warned(message=warning, collection=name))
        formats = () if delivery.columns_in else to.formats  # whose loss is told by name
        for each in kept(delivery, formats, to.told(to.place(name)), store):
            emit(VectorsKept(collection=name, **asdict(each)))
        return list(losses(delivery))


def _into(store: Store, spec: CollectionSpec, window: Window) -> None:
    """Write every row of a window as one point."""
    put(points_of(window, store.dims, spec.bm25, spec.payload), store)


def _sharded(delivery: Delivery, run: RunDirectory, there: Mapping[str, object], own: int) -> dict[str, object]:
    """What the manifest of a store says of the shards of a run, of which this one has brought its `own` chunks."""
    rows = delivery.rows
    if not (made := shards_of(run.inputs(), rows.chunks + rows.elsewhere.chunks)):
        return {}
    with suppress(msgspec.ValidationError):  # one that is damaged holds none
        had = msgspec.convert(there.get("shards"), Shards)
        made = structs.replace(made, there=had.there if (had.union, had.chunks) == (made.union, made.chunks) else {})
    others = {number: count for number, count in made.there.items() if number != str(made.own)}
    now = structs.replace(made, there=others | ({str(made.own): own} if own else {}))
    return {"shards": msgspec.to_builtins(now)}


def _opened(delivery: Delivery, directory: Path, run: RunDirectory) -> Store:
    """The store at `directory`, ready to be written to."""
    reduces = delivery.projection
    digest = hashlib.sha256(to_bytes(reduces)).hexdigest() if reduces is not None else ""
    there = manifest_at(directory / delivery.spec.collection)
    spec = replace(stores.kept_in(there, delivery.spec), projection=digest)
    manifest = {**spec.manifest, "unfinished": True, **_sharded(delivery, run, there, 0)}  # until it is found whole
    return Store.open_for_write(directory, spec.collection, spec.dims, manifest, spec.sparse, spec.tokens, reduces)


def _projected(delivery: Delivery, to: Destination, emit: Emit) -> Delivery:
    """The same delivery with what brings its fused vectors to the dimensions that its form asks for, fitted on them;
    that of the store where it has one, whose points would mean something else with another."""
    if not (dim := delivery.spec.form.project):
        return delivery
    collection, there = delivery.rows.collection, None
    path = (to.store or to.run.path) / collection.qdrant_collection
    if to.store and (known := projection_in(manifest_at(path))) and known.dim == dim:
        there = shard.read_projection(path, known.sha256)
        if there is None:
            with suppress(UsageError):  # what the run itself has of it is not the one
                there = shard.read_projection(to.run.exports(collection.name), known.sha256)
        if there is not None and shard.writer_of(shard.read_manifest(path)) != to.run.id:
            share = energy(delivery.fused(delivery.sample), there)
            message = (
                f"{path} keeps the projection that it was made with, which holds {share:.1%} of the length of the "
                f"vectors of {collection.name}: {shard.ELSEWHERE} to have one fitted on them"
            )
            emit(Warned(message=message, collection=collection.name))
    if there is None:
        there = fit(map(delivery.fused, delivery.row_windows), delivery.fused_width, dim)
    return replace(delivery, projection=there)


def narrowed(delivery: Delivery, formats: Sequence[str], precision: Precision) -> Delivery:
    """Return the delivery with the numbers that its files are to have: every dense vector in this precision, and the
    arrays of fused ones as its form says."""
    if precision != "float32":
        numbers = {
            name: FLOAT16 if precision == "float16" else int8_for(map(delivery.reader(name), delivery.row_windows))
            for name in delivery.arrays | delivery.spec.dims
        }
        return replace(delivery, columns_in=numbers, arrays_in=numbers)
    if delivery.spec.form.quantise == "none" or not with_arrays(formats) or FUSED not in delivery.arrays:
        return delivery
    return replace(delivery, arrays_in={FUSED: int8_for(map(delivery.reader(FUSED), delivery.row_windows))})


def losses(delivery: Delivery) -> Iterator[Loss]:
    """Measure what each of the narrowed vectors of a delivery has lost, by a sample of its rows against all of them."""
    for name, numbers in delivery.columns_in.items():
        vectors = delivery.reader(name)
        yield loss_of(name, NeighbourSample(vectors, delivery.row_windows, delivery.sample), vectors, numbers)


def kept(delivery: Delivery, formats: Sequence[str], directory: str, store: Store | None) -> Iterator[KeptVectors]:
    """Tell what the files of `formats` in `directory` hold, and what the store does; where vectors were made smaller,
    with the share of the ten nearest neighbours of a sample of rows that are found as by the whole fused vectors."""
    smaller = delivery.projection is not None or FUSED in delivery.arrays_in
    reduced = smaller or (store is not None and store.quantise != "none")
    sample = None
    if reduced and FUSED in delivery.arrays:
        sample = NeighbourSample(delivery.fused, delivery.row_windows, delivery.sample)
    if formats:
        share = _by_files(delivery, sample) if sample and smaller else None
        size = file_bytes(formats, delivery.spec.form, delivery.spec.fusion, delivery.spec.members)
        compared = len(sample.rows) if sample and share is not None else 0
        yield KeptVectors(place=directory, bytes=size, neighbours=share, sampled=compared)
    if store:
        share = _by_store(delivery, sample, store) if sample and FUSED in store.dims else None
        compared = len(sample.rows) if sample and share is not None else 0
        size = stored_bytes(store.dims, store.quantise)
        yield KeptVectors(place=str(store.path), bytes=size, neighbours=share, sampled=compared)


def _by_files(delivery: Delivery, sample: NeighbourSample) -> float | None:
    vectors, numbers = delivery.reader(FUSED), delivery.arrays_in.get(FUSED, FLOAT32)
    return sample.by(lambda rows: numbers.decode(numbers.encode(vectors(rows))))


def _by_store(delivery: Delivery, sample: NeighbourSample, store: Store) -> float | None:
    """The share that is kept by what a store answers, points aside that are no longer in the corpus."""
    own = [uuid_of(point) for point in delivery.points(sample.rows)]
    found = [store.query(FUSED, vector, COUNT + 1) for vector in delivery.reader(FUSED)(sample.rows)]
    wanted = {UUID(point).bytes for points in found for point in points}
    every = (zip(delivery.points(rows), rows.tolist(), strict=True) for rows in delivery.row_windows)
    rows = {uuid_of(point): row for window in every for point, row in window if point in wanted}
    return sample.share(
        np.array([rows[point] for point in points if point != mine and point in rows][:COUNT], np.int64)
        for points, mine in zip(found, own, strict=True)
    )
