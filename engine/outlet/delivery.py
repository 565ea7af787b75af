"""Delivers one collection: files and store, each told as an event with what was really written."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from engine.intake.corpus import Rows
from engine.outlet import files, shard, store
from engine.outlet.files import Delivery, Source, Vectors
from engine.outlet.fusion import Fusion, fused_width
from engine.outlet.manifest import manifest_of
from engine.record import durable
from engine.record.events import AnyEvent, ArtefactWritten, RosterEntry, StoreVerified
from engine.record.rundir import RunDirectory

Emit = Callable[[AnyEvent], object]


def check_store(collection: str, roster: Sequence[RosterEntry], fusion: Fusion, directory: Path, run_id: str) -> None:
    """Raise UsageError now for whatever the store at `directory` would refuse after all the work; writes nothing."""
    widths = {entry.model: entry.dim for entry in roster}
    fused = fused_width(fusion, list(widths.values()), list(widths))
    dims = files.with_fused(widths, fused)
    shard.check(directory, collection, dims, manifest_of(collection, fusion, roster, run_id))


def deliver(
    rows: Rows,
    vectors: Sequence[Vectors],
    roster: Sequence[RosterEntry],
    fusion: Fusion,
    formats: Sequence[str],
    directory: Path | None,
    run: RunDirectory,
    emit: Emit,
) -> None:
    """Write the files of `formats`, and into the embedded store at `directory` if there is one.

    `vectors` are the passes' own, a row for each distinct text, in the order of `roster`.
    """
    sources = [
        Source(entry.model, entry.weight, array, entry.dim) for entry, array in zip(roster, vectors, strict=True)
    ]
    delivery = Delivery(rows, sources, fusion)
    _write_files(delivery, formats, run, emit)
    if directory:
        _write_store(delivery, directory, manifest_of(rows.collection.qdrant_collection, fusion, roster, run.id), emit)


def _write_files(delivery: Delivery, formats: Sequence[str], run: RunDirectory, emit: Emit) -> None:
    for path in files.write(delivery, formats, run.exports(delivery.rows.collection.name)):
        emit(
            ArtefactWritten(
                collection=delivery.rows.collection.name,
                path=path.relative_to(run.path).as_posix(),
                rows=len(delivery.rows.texts),
                bytes=path.stat().st_size,
                sha256=durable.sha256_of(path),
            )
        )


def _write_store(delivery: Delivery, directory: Path, manifest: Mapping[str, object], emit: Emit) -> None:
    seen = store.deliver(delivery, directory, manifest)
    emit(
        StoreVerified(
            collection=delivery.rows.collection.name,
            qdrant_collection=delivery.rows.collection.qdrant_collection,
            store=str(directory),
            points=seen.points,
            expected=seen.expected,
            stale=seen.stale,
            sampled=seen.sampled,
            worst_cosine=seen.worst_cosine,
            ok=seen.ok,
            detail=seen.detail,
        )
    )
