"""Delivers one collection: files and store, each told as an event once it was read back and is what was planned."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import asdict

from interlock.engine.intake.corpus import Digests, Rows
from interlock.engine.outlet import files, shard
from interlock.engine.outlet.fusion import Fusion, delivered
from interlock.engine.outlet.manifest import manifest_of
from interlock.engine.outlet.qdrant import Store
from interlock.engine.outlet.store import sink, verified
from interlock.engine.outlet.windows import Delivery, ModelVectors, SparseSource, Vectors
from interlock.engine.record import atomic
from interlock.engine.record.counting import several
from interlock.engine.record.events import ArtefactWritten, Emit, StoreVerified, Warned
from interlock.engine.record.facts import RosterEntry
from interlock.engine.record.rundir import RunDirectory


def check_store(collection: str, roster: Sequence[RosterEntry], fusion: Fusion, directory: Path, run_id: str) -> None:
    """Raise UsageError now for whatever the store at `directory` would refuse after all the work; writes nothing."""
    dims = delivered(fusion, {entry.model: entry.dim for entry in roster if entry.kind == "dense"})
    sparse = [entry.model for entry in roster if entry.kind == "sparse"]
    shard.check(directory, collection, dims, manifest_of(collection, fusion, roster, run_id), sparse)


def deliver(
    rows: Rows,
    digests: Digests,
    vectors: Sequence[Vectors],
    roster: Sequence[RosterEntry],
    fusion: Fusion,
    formats: Sequence[str],
    directory: Path | None,
    run: RunDirectory,
    emit: Emit,
    sparse: Sequence[SparseSource] = (),
) -> None:
    """Write the files of `formats`, and into the embedded store at `directory` if there is one; one walk for all.

    `vectors` are the dense passes' own, a row for each distinct text, in the order of `roster`, and `sparse` those of
    its sparse models; `digests` are the corpus's.
    Raises InterlockError, with no file delivered and nothing called verified, where chunks are not those of the plan.
    """
    names = [source.name for source in sparse]
    dense = [entry for entry in roster if entry.kind == "dense"]
    sources = [
        ModelVectors(entry.model, entry.weight, array, entry.dim) for entry, array in zip(dense, vectors, strict=True)
    ]
    delivery = Delivery(rows, digests, sources, fusion, sparse)
    name = rows.collection.qdrant_collection
    with ExitStack() as stack:
        store = None
        if directory:
            manifest = manifest_of(name, fusion, roster, run.id)
            store = stack.enter_context(Store.open_for_write(directory, name, delivery.dims, manifest, names))
        beside = {store.path: sink(store)} if store else {}
        for path in files.write(delivery, formats, run.exports(rows.collection.name), beside):
            artefact = ArtefactWritten(
                collection=rows.collection.name,
                path=path.relative_to(run.path).as_posix(),
                rows=rows.chunks,
                bytes=path.stat().st_size,
                sha256=atomic.sha256_of(path),
                verified=True,
            )
            emit(artefact)
        if store:
            seen = verified(delivery, store)
            emit(StoreVerified(collection=rows.collection.name, qdrant_collection=name, **asdict(seen)))
            if seen.stale:
                emit(
                    Warned(
                        message=f"{store.path} still holds {several(seen.stale, 'point')} of earlier deliveries, and "
                        "searches find them: delete that directory and --resume to drop them",
                        collection=rows.collection.name,
                    )
                )
