"""Delivers one collection: files and store, each told as an event once it was read back and is what was planned."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, get_args

import msgspec
import numpy as np
from msgspec.structs import asdict

from interlock.engine.corpus.corpus import Rows
from interlock.engine.errors import UsageError
from interlock.engine.models.registry import name_of_output
from interlock.engine.record import atomic
from interlock.engine.record.events import ArtefactWritten, Emit, StoreVerified, VectorsKept, Warned
from interlock.engine.record.facts import MissingModel, RosterEntry
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.record.words import several
from interlock.engine.targets import files, gap, shard
from interlock.engine.targets.embedded import Store
from interlock.engine.targets.kept import kept, losses, narrowed
from interlock.engine.targets.mirror import mirrored, verified
from interlock.engine.targets.target import deliver as put
from interlock.engine.targets.windows import Delivery, Sink, points_of
from interlock.engine.vectors.bm25 import BM25, WordWeights
from interlock.engine.vectors.form import ALL, Keep, VectorForm
from interlock.engine.vectors.fusion import Fusion
from interlock.engine.vectors.manifest import Reduced, manifest_of, token_dims
from interlock.engine.vectors.precision import FilePrecision, Loss, Quantise
from interlock.engine.vectors.projection import PROJECTION, energy, fit, to_bytes, turned


def check_store(
    collection: str,
    roster: Sequence[RosterEntry],
    fusion: Fusion,
    directory: Path,
    run_id: str,
    bm25: WordWeights | None = None,
    chunk_sparse: str = "",
    form: VectorForm = ALL,
    emit: Emit = lambda _: None,
    missing: Sequence[MissingModel] = (),
    began: float = 0.0,
) -> None:
    """Raise UsageError now for whatever the store at `directory` would refuse after all the work; writes nothing.

    `roster` are the models of the run but for those that are `missing`. Warns where BM25 vectors are asked for and the
    store was made without: it gets none then; and where it keeps other dense vectors than the `form` asks for: it goes
    on with those.
    """
    sparse = [name_of_output(entry.model, "sparse", entry.kind) for entry in roster if "sparse" in entry.gives]
    path = directory / collection
    afresh = gap.outgrown(path, run_id, began, missing)
    there = {} if afresh else _manifest_there(path)
    if bm25 and _without_bm25(there):
        bm25 = None
        emit(
            Warned(
                message=f"{path} was made without BM25 vectors and gets none now: --no-bm25 if that is meant, else "
                f"{shard.ELSEWHERE}, or delete that directory"
            )
        )
    form = form.of(fusion)
    if (made := _form_of(there, form)) != form:
        emit(
            Warned(
                message=f"{path} was made with {made.told} and stays so, not {form.told}: "
                f"{shard.ELSEWHERE}, or delete that directory"
            )
        )
    reduced = _reduced_in(there)
    if reduced and reduced.dim == made.project and shard.read_projection(path, reduced.sha256) is None:
        _check_refitted(path, run_id)
    reduced = reduced or Reduced(dim=made.project, sha256="")
    dims = made.widths(fusion, {entry.model: entry.dim for entry in roster if entry.kind == "dense"})
    sparse += filter(None, [chunk_sparse, BM25 if bm25 else ""])
    manifest = manifest_of(collection, fusion, roster, run_id, bm25, chunk_sparse, made, reduced.sha256, missing, began)
    shard.check(directory, collection, dims, manifest, sparse, token_dims(roster), afresh=afresh)


def other_models(path: Path, models: Mapping[str, str]) -> str:
    """Tell of a collection of a store at `path` that a run would refuse for its dense models, which were others than
    these (fingerprints by name); empty for none, and where what it was delivered without may be added."""
    try:
        there = _manifest_there(path)
        had = {str(row["model"]): str(row["fingerprint"]) for row in cast("list[dict[str, object]]", there["models"])}
    except UsageError as error:
        return str(error)
    except (KeyError, TypeError):
        return ""  # none, or one that is compared when it is opened
    if had == models or there.get("missing"):
        return ""
    names = [", ".join(each) if had.keys() != models.keys() else _prints(each) for each in (had, models)]
    return (
        f"{path} was written with other models (were {names[0]}, are now {names[1]}), and a run would refuse it: "
        f"{shard.ELSEWHERE}, or delete that directory"
    )


def _prints(models: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {fingerprint[:12]}" for name, fingerprint in models.items())


@dataclass(frozen=True)
class Destination:
    """Where collections are delivered: as files of `formats` in a run's directory, or of one collection in `directory`,
    with vectors of this `precision`; and into the embedded store at `store`, of which `prune` removes points whose
    chunks have left the corpus. The run was begun at `began`, in seconds since the epoch."""

    run: RunDirectory
    formats: Sequence[str]
    store: Path | None = None
    prune: bool = False
    directory: Path | None = None
    precision: FilePrecision = "float32"
    began: float = 0.0

    def place(self, collection: str) -> Path:
        """Return where the files of a collection go."""
        return self.directory or self.run.exports(collection)

    def told(self, path: Path) -> str:
        """Name a file, or their directory, in events: relative to the run, or to where they were asked for."""
        return path.relative_to(self.directory.parent if self.directory else self.run.path).as_posix()


def deliver(delivery: Delivery, roster: Sequence[RosterEntry], to: Destination, emit: Emit) -> list[Loss]:
    """Write the files and into the store, if there is one, in one walk for all; `roster` are the models of the run.
    Returns what narrower numbers cost, if any are asked for.

    The store gets BM25 vectors as well where the delivery has them, unless it was made without. What this run once
    delivered without other models than now is replaced.
    Raises InterlockError, with no file delivered and nothing called verified, where chunks are not those of the plan.
    """
    with ExitStack() as stack:
        if to.store:
            path = to.store / delivery.rows.collection.qdrant_collection
            if gap.outgrown(path, to.run.id, to.began, delivery.missing):
                gap.clear(path)
            if _without_bm25(_manifest_there(path)):
                delivery = replace(delivery, bm25=None)
        delivery, store = narrowed(_projected(delivery, to, emit), to.formats, to.precision), None
        if to.store:
            store = stack.enter_context(_opened(delivery, roster, to.store, to))
        sinks = {store.path: _sink(store, delivery.bm25)} if store else {}
        name = delivery.rows.collection.name
        for path in files.write(delivery, to.formats, to.place(name), sinks):
            artefact = ArtefactWritten(
                collection=name,
                path=to.told(path),
                rows=delivery.rows.chunks,
                bytes=path.stat().st_size,
                sha256=atomic.sha256_of(path),
                verified=True,
            )
            emit(artefact)
        if store:
            _verify(delivery, store, to, emit)
        formats = () if delivery.columns_in else to.formats  # whose loss is told by name
        for each in kept(delivery, formats, to.told(to.place(name)), store):
            emit(VectorsKept(collection=name, **asdict(each)))
        return list(losses(delivery))


def _sink(store: Store, bm25: WordWeights | None) -> Sink:
    """What writes every row of a window as one point."""
    return lambda window: put(points_of(window, store.dims, bm25), store)


def _opened(delivery: Delivery, roster: Sequence[RosterEntry], directory: Path, to: Destination) -> Store:
    """The store at `directory`, ready to be written to."""
    name, bm25 = delivery.rows.collection.qdrant_collection, delivery.bm25
    sparse = [*(source.name for source in delivery.sparse), *([BM25] if bm25 else [])]
    delivery = replace(delivery, form=_form_of(_manifest_there(directory / name), delivery.form))
    reduces = delivery.projection
    digest = hashlib.sha256(to_bytes(reduces)).hexdigest() if reduces is not None else ""
    made = roster, to.run.id, bm25, delivery.chunk_sparse, delivery.form, digest, delivery.missing, to.began
    manifest = manifest_of(name, delivery.fusion, *made)
    return Store.open_for_write(directory, name, delivery.dims, manifest, sparse, token_dims(roster), reduces)


def _projected(delivery: Delivery, to: Destination, emit: Emit) -> Delivery:
    """The same delivery with what brings its fused vectors to the dimensions that its form asks for, fitted on them;
    that of the store where it has one, whose points would mean something else with another."""
    if not (dim := delivery.form.project):
        return delivery
    collection, there = delivery.rows.collection, None
    path = (to.store or to.run.path) / collection.qdrant_collection
    if to.store and (known := _reduced_in(_manifest_there(path))) and known.dim == dim:
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
        there = fit(map(delivery.fused, map(delivery.places, delivery.starts)), delivery.fused_width, dim)
        there = turned(there) if delivery.form.quantise == "binary" else there
    return replace(delivery, projection=there)


def check_projectable(rows: Rows, form: VectorForm, store: Path | None) -> None:
    """Raise UsageError where a collection has too few texts for the projection that its form asks for, and its store
    has none that could be taken."""
    texts = len(np.unique(rows.texts))
    kept = store and _reduced_in(_manifest_there(store / rows.collection.qdrant_collection))
    if texts < form.project and not kept:
        raise UsageError(
            f"--project {form.project}: {rows.collection.name} has {several(texts, 'distinct text')}, too few to find "
            f"that many dimensions: choose at most {texts:,}, or drop it"
        )


def _check_refitted(path: Path, run_id: str) -> None:
    """Raise UsageError where the projection that a store has lost would not come out of its chunks again."""
    writer = shard.writer_of(shard.read_manifest(path))
    if writer != run_id:
        raise UsageError(
            f"{path} has lost its {PROJECTION}, without which nothing can be added: restore it from a copy (exports "
            f"of run {writer} have one), or {shard.ELSEWHERE}"
        )


def _verify(delivery: Delivery, store: Store, to: Destination, emit: Emit) -> None:
    """Compare what the store holds with the plan, see to what is stale there, and tell what was found."""
    collection = delivery.rows.collection
    seen, warning = mirrored(store, delivery.rows, verified(delivery, store), to.run.id, remove=to.prune)
    emit(StoreVerified(collection=collection.name, qdrant_collection=collection.qdrant_collection, **asdict(seen)))
    if warning:
        emit(Warned(message=warning, collection=collection.name))


def _manifest_there(path: Path) -> Mapping[str, object]:
    """The manifest of the store at `path`; empty where there is none."""
    return shard.read_manifest(path) if (path / shard.MANIFEST).exists() else {}


def _without_bm25(there: Mapping[str, object]) -> bool:
    return bool(there) and BM25 not in there


def _form_of(there: Mapping[str, object], wanted: VectorForm) -> VectorForm:
    """The `wanted` form, but with what a store with this manifest keeps, where there is one."""
    if not there:
        return wanted
    keep = next((each for each in get_args(Keep) if each == there.get("keep", ALL.keep)), wanted.keep)
    kinds = (each for each in get_args(Quantise) if each == there.get("quantised", ALL.quantise))
    return replace(wanted, keep=keep, quantise=next(kinds, wanted.quantise))


def _reduced_in(there: Mapping[str, object]) -> Reduced | None:
    """What reduced the fused vectors of a store with this manifest, if anything did."""
    try:
        return msgspec.convert(there.get("projection"), Reduced | None)
    except msgspec.ValidationError:
        return None  # a manifest that is damaged is refused when it is compared
