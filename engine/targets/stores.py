"""The collections of an embedded store: which there are, what each was made as, and whether a delivery fits.

A directory is claimed by its manifest before the shard is made, so that a creation killed in between is taken up; one
that is foreign, damaged, in use or of another meaning is refused and left as it is. A collection that was delivered
without some models of its run takes points of that run and of no other, since no other can fill its gap; when the run
has the models, or lacks others, nothing in the store fits any more, and it is written anew. One that lacks none never
makes way.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

import msgspec

from interlock.engine.corpus.collections import qdrant_name
from interlock.engine.corpus.corpus import Rows
from interlock.engine.errors import UsageError, meant, near, remedy
from interlock.engine.models.registry import NAME_RULE, nameable
from interlock.engine.record.atomic import PARTIAL
from interlock.engine.record.events import Emit, Warned
from interlock.engine.record.inputs import SPLIT
from interlock.engine.record.rundir import JOURNAL, RUN
from interlock.engine.record.words import argument, command, differences, few, several
from interlock.engine.standing.runs import refuse_at_work
from interlock.engine.targets import shard
from interlock.engine.targets.shard import ELSEWHERE
from interlock.engine.vectors import UNSAID_SHARE
from interlock.engine.vectors.bm25 import BM25
from interlock.engine.vectors.fusion import PROJECTION, Vectors
from interlock.engine.vectors.manifest import CollectionSpec
from interlock.engine.vectors.points import NESTED
from interlock.engine.vectors.precision import ALL, Keep, Quantise, Reduced, VectorForm


def collections(directory: Path) -> list[str]:
    """List the collections of an embedded store by name. UsageError if it does not exist, is none or is closed."""
    try:
        return sorted(path.name for path in directory.iterdir() if _is_claimed(path))
    except FileNotFoundError:
        raise UsageError(f"no store at {directory}{near(directory)}: name the --qdrant directory of a run") from None
    except NotADirectoryError:
        raise UsageError(f"{directory} is not a store: name the --qdrant directory of a run") from None
    except OSError as error:
        raise UsageError(f"cannot read the store {directory}: {error.strerror}; {remedy(error)}") from None


def _is_claimed(path: Path) -> bool:
    """Whether it has a manifest, or keeps that to itself: who opens it is told, and who opens another is not."""
    try:
        return (path / shard.MANIFEST).exists()
    except PermissionError:
        return True


def is_store(path: Path) -> bool:
    """Tell whether the directory is a collection of a store."""
    return (path / shard.MANIFEST).is_file()


def named(directory: Path, collection: str | None = None) -> list[str]:
    """List the collections that are meant, as the store calls them: all, or the one of this name, which may be that of
    its chunks. UsageError, naming those there are, where there is none."""
    held = collections(directory)
    if not held and (directory / shard.MANIFEST).exists():
        raise UsageError(
            f"{directory} is one collection of a store: name {directory.parent}, with --collection {directory.name}"
        )
    if not held and any((directory / made).exists() for made in (RUN, JOURNAL)):
        refuse_at_work(directory, "there is no store of this run")
        make = command(["export", argument(str(directory)), "--to-store", "store"])
        raise UsageError(f"{directory} is a run and not a store: name its --qdrant directory, or make one: `{make}`")
    if not held:
        raise UsageError(f"{directory} has no collection: name the --qdrant directory of a run")
    if collection is None:
        return held
    for name in (collection, *([] if "/" in collection else [qdrant_name(collection)])):
        if name in held:
            return [name]
    hint = meant(collection, held)
    raise UsageError(f"no collection {collection!r} in {directory}{hint}: choose one of {', '.join(held)}")


def alone(directory: Path, collection: str | None = None) -> Path:
    """Find the directory of the one collection that is meant. UsageError where there is none, or several are."""
    name, *others = named(directory, collection)
    if others:
        there = ", ".join([name, *others])
        raise UsageError(f"{directory} has {1 + len(others)} collections: choose one with --collection ({there})")
    return directory / name


def check_names(collection: str, vectors: Iterable[str]) -> None:
    """Raise UsageError unless a Qdrant server would take these names of a collection and its vectors, and a disk the
    collection's for a directory."""
    for what, name in (("collection", collection), *(("vector", each) for each in vectors)):
        if not nameable(name):
            raise UsageError(f"{what} name {name!r} does not work in Qdrant: use {NAME_RULE}")


def check(
    directory: Path,
    collection: str,
    dims: Mapping[str, int],
    manifest: Mapping[str, object],
    sparse: Collection[str] = (),
    tokens: Mapping[str, int] = {},
    *,
    afresh: bool = False,
) -> None:
    """Raise now, and write nothing, what opening this collection for write would raise later; `afresh` where what is
    there makes way.

    UsageError for names, another meaning, other dimensions or sparse vectors, a foreign or damaged directory, one that
    is in use, and a place where no directory can be made; InterlockError for a disk without room.
    """
    check_names(collection, (*dims, *sparse, *tokens))
    path = directory / collection
    there = shard.existing(path)
    if not there.is_dir():
        raise UsageError(f"cannot create {path}: {there} is not a directory; {ELSEWHERE}")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"cannot write {path}: {there} is not writable; {ELSEWHERE}")
    shard.require_room(path, 0)
    with shard.opening(path, ELSEWHERE), ExitStack() as locks:
        for locked in (path, path / shard.LOCKED):  # ours first: while it is asked, nobody of us wants the engine's
            if locked.is_dir():
                locks.callback(os.close, shard.locked(locked, fcntl.LOCK_SH))
    made = not afresh and is_ours(path, json.loads(json.dumps(manifest))) and (path / shard.CONFIG).exists()
    kinds = shard.read_kinds(path) if made else None
    if kinds and (changed := list(differences(kinds.dims | kinds.tokens, {**dims, **tokens}))):
        raise UsageError(
            f"{path} was written with other dimensions ({few(changed)}): {ELSEWHERE}, or delete that directory"
        )
    if made:
        shard.check_sparse(path, sparse)


def is_ours(path: Path, wanted: Mapping[str, object]) -> bool:
    """Tell whether the directory is this collection's already, not a new one; UsageError if it is something else."""
    if (path / shard.MANIFEST).exists():
        free = dict.fromkeys(shard.FREE)
        if changed := _changes({**shard.read_manifest(path), **free}, {**wanted, **free}):
            raise UsageError(
                f"{path} was written with other settings ({few(changed)}): {ELSEWHERE}, or delete that directory"
            )
        return True
    if path.is_dir() and any(not child.match(PARTIAL) for child in path.iterdir()):
        raise UsageError(f"{path} is not an Interlock collection (no {shard.MANIFEST}): {ELSEWHERE}")
    return False


def _changes(there: Mapping[str, object], wanted: Mapping[str, object]) -> list[str]:
    """How two manifests differ: of other models their names alone, whose rows would fill a screen."""
    names = [[str(each.get("model")) for each in _rows(manifest.get("models"))] for manifest in (there, wanted)]
    if names[0] == names[1]:
        every = differences(dict(there), dict(wanted))
        return [f"long texts {SPLIT}" if each.endswith(".overlap is missing") else each for each in every]
    before, now = ({**manifest, "models": None, "sparse": None} for manifest in (there, wanted))
    return [
        f"models were {', '.join(names[0]) or 'none'}, are now {', '.join(names[1]) or 'none'}",
        *differences(before, now),
    ]


def _rows(value: object) -> list[Mapping[str, object]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def outgrown(path: Path, spec: CollectionSpec) -> bool:
    """Tell whether the store at `path`, if there is one, was made by this run without other models than those that are
    missing now, so that it has to make way.

    Raises UsageError where it lacks models of another run, or has some that are missing now.
    """
    if not (path / shard.MANIFEST).exists():
        return False
    there = shard.read_manifest(path)
    lacks, now, run = there.get("missing"), {each.model for each in spec.missing}, there.get("run")
    if not lacks:
        if now:
            raise UsageError(
                f"{path} was not written without {', '.join(sorted(now))}, and is not made worse: "
                f"{ELSEWHERE}, or --resume once nothing is missing"
            )
        return False
    names = ", ".join(map(str, lacks)) if isinstance(lacks, list) else "models"
    if not isinstance(run, dict) or (run.get("run_id"), run.get("began")) != (spec.run_id, spec.began):
        whose = run.get("run_id") if isinstance(run, dict) else "another"
        raise UsageError(
            f"{path} lacks {names}, which run {whose} can still add: resume that run, {ELSEWHERE}, or "
            "delete that directory"
        )
    return not isinstance(lacks, list) or {*lacks} != now


def clear(path: Path) -> None:
    """Remove the shard at `path`, and at last its manifest, so that a removal that is killed is taken up. Raises
    UsageError while anybody else has it, InterlockError where the disk refuses."""
    with shard.holding(path, fcntl.LOCK_EX), shard.working(path, "making way for all models"):
        for child in path.iterdir():
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            elif child.name != shard.MANIFEST:
                child.unlink()
        (path / shard.MANIFEST).unlink()


def check_delivery(rows: Rows, spec: CollectionSpec, store: Path | None, emit: Emit) -> None:
    """Raise UsageError now for what would be refused once a collection is delivered, into a `store` too."""
    if rows.chunks:
        check_projectable(rows, spec.form, store)
    if store and rows.collection.files:
        check_store(spec, store, emit)


def check_store(spec: CollectionSpec, directory: Path, emit: Emit = lambda _: None) -> None:
    """Raise UsageError now for whatever the store at `directory` would refuse after all the work; writes nothing.

    Warns where BM25 vectors are asked for and the store was made without: it gets none then; and where it keeps other
    dense vectors than the form asks for: it goes on with those.
    """
    path = directory / spec.collection
    afresh = outgrown(path, spec)
    there = {} if afresh else manifest_at(path)
    if there and (kept := str(there.get("payload", NESTED))) != spec.payload:
        raise UsageError(
            f"{path} was made with --payload {kept}, not {spec.payload}, and filters of both would find half of it: "
            f"pass --payload {kept}, {ELSEWHERE}, or delete that directory"
        )
    spec = replace(spec, form=spec.form.of(spec.fusion))
    made = kept_in(there, spec)
    if spec.bm25 and not made.bm25:
        emit(
            Warned(
                message=f"{path} was made without BM25 vectors and gets none now: --bm25 off if that is meant, else "
                f"{ELSEWHERE}, or delete that directory"
            )
        )
    if made.form != spec.form:
        emit(
            Warned(
                message=f"{path} was made with {made.form.told} and stays so, not {spec.form.told}: "
                f"{ELSEWHERE}, or delete that directory"
            )
        )
    if spec.compact and not made.compact and made.bm25:
        emit(Warned(message=f"{path} keeps its terms of BM25, --compact or not: {ELSEWHERE}, or delete that directory"))
    reduced = projection_in(there)
    if reduced and reduced.dim == made.form.project and shard.read_projection(path, reduced.sha256) is None:
        _check_refitted(path, spec.run_id)
    made = replace(made, projection=reduced.sha256 if reduced else "")
    check(directory, spec.collection, made.dims, made.manifest, made.sparse, made.tokens, afresh=afresh)


def other_models(path: Path, models: Mapping[str, str]) -> str:
    """Tell of a collection of a store at `path` that a run would refuse for its dense models, which were others than
    these (fingerprints by name); empty for none, and where what it was delivered without may be added."""
    try:
        there = manifest_at(path)
        had = {str(row["model"]): str(row["fingerprint"]) for row in cast("list[dict[str, object]]", there["models"])}
    except UsageError as error:
        return str(error)
    except (KeyError, TypeError):
        return ""  # none, or one that is compared when it is opened
    if not any(differences(had, models)) or there.get("missing"):
        return ""
    alike = had.keys() == models.keys()
    names = [
        ", ".join(f"{name} {digest[:12]}" if alike else name for name, digest in each.items()) for each in (had, models)
    ]
    return (
        f"{path} was written with other models (were {names[0]}, are now {names[1]}), and a run would refuse it: "
        f"{ELSEWHERE}, or delete that directory"
    )


def check_projectable(rows: Rows, form: VectorForm, store: Path | None) -> None:
    """Raise UsageError where a collection has too few texts for the projection that its form asks for, and its store
    has none that could be taken."""
    texts = rows.distinct
    kept = store and projection_in(manifest_at(store / rows.collection.qdrant_collection))
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
            f"of run {writer} have one), or {ELSEWHERE}"
        )


def manifest_at(path: Path) -> Mapping[str, object]:
    """Return the manifest of the store at `path`; empty where there is none."""
    return shard.read_manifest(path) if (path / shard.MANIFEST).exists() else {}


def kept_in(there: Mapping[str, object], spec: CollectionSpec) -> CollectionSpec:
    """Return what a store with this manifest, where there is one, is by the spec: in its own form, with its own share
    of sparse lists, and without BM25 vectors where it was made without."""
    bm25 = None if there and BM25 not in there else spec.bm25
    share = cast("float", there.get("sparse_share", UNSAID_SHARE)) if there else spec.sparse_share
    compact = bool(there.get("compact")) if there else spec.compact
    return replace(spec, bm25=bm25, form=form_in(there, spec.form), sparse_share=share, compact=compact)


def form_in(there: Mapping[str, object], wanted: VectorForm) -> VectorForm:
    """Return the `wanted` form, but with what a store with this manifest keeps, where there is one."""
    if not there:
        return wanted
    keep = next((each for each in get_args(Keep) if each == there.get("keep", ALL.keep)), wanted.keep)
    kinds = (each for each in get_args(Quantise) if each == there.get("quantised", ALL.quantise))
    return replace(wanted, keep=keep, quantise=next(kinds, wanted.quantise))


def kept_projection(path: Path, there: Mapping[str, object]) -> Vectors | None:
    """Read what brings a query to the dimensions of a store with this manifest, or of a run's files beside it; None
    where they have all. Raises UsageError where it is gone, or not the one that the manifest names."""
    told = there.get("projection")
    if not isinstance(told, Mapping):
        return None
    found = shard.read_projection(path, str(told.get("sha256")))
    if found is None:
        raise UsageError(f"{path} has lost its {PROJECTION}: restore it from a copy, or deliver again")
    return found


def projection_in(there: Mapping[str, object]) -> Reduced | None:
    """Return what reduced the fused vectors of a store with this manifest, if anything did."""
    try:
        return msgspec.convert(there.get("projection"), Reduced | None)
    except msgspec.ValidationError:
        return None  # a manifest that is damaged is refused when it is compared
