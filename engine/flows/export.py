"""Delivers a finished run once more, from the vectors of its passes: into files elsewhere, or into a store.

No model is loaded and no device is used. The run is held meanwhile, and nothing in its directory is written. What is
delivered is checked as by the run itself: chunks and texts against what it read, vectors against its journal, files by
reading them back. Files that no export wrote are never written over.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import json, structs

from interlock.engine import storage
from interlock.engine.compute import reuse
from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.corpus import Corpus, Rows, read_corpus
from interlock.engine.corpus.identity import digest_of_texts
from interlock.engine.errors import UsageError, check_apart, near
from interlock.engine.flows.opening import form_of
from interlock.engine.flows.plan import RunPlan
from interlock.engine.parsers import OFF
from interlock.engine.record import atomic
from interlock.engine.record.events import AnyEvent, ArtefactWritten, Emit, Warned
from interlock.engine.record.inputs import resume_words, union_of
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.record.shards import part_of, shard_in
from interlock.engine.record.state import RunState
from interlock.engine.record.words import command, differences, few, typed
from interlock.engine.settings import Configuration, RunSettings, continued, flag_of
from interlock.engine.standing.outcome import collection_status
from interlock.engine.standing.runs import chunks_of
from interlock.engine.targets.delivery import DeliveryBuilder, Destination, deliver
from interlock.engine.targets.files.formats import FORMATS, files_of
from interlock.engine.targets.files.write import (
    RECORD,
    ExportRecord,
    check_ours,
    of_others,
    projected_otherwise,
    publish,
    read_record,
    staging,
)
from interlock.engine.targets.stores import check_delivery, is_store
from interlock.engine.targets.windows import Delivery
from interlock.engine.vectors.fusion import PROJECTION, Fusion
from interlock.engine.vectors.precision import Encoding, Loss, Precision


@dataclass(frozen=True)
class ExportRequest:
    """What to export: into files below `to`, with vectors of this precision, into the `store`, or both; of one
    `collection`, or all; the run's `chunks` where they lie now, if that is not where they were."""

    to: Path | None = None
    store: Path | None = None
    precision: Precision = "float32"
    collection: str | None = None
    chunks: Path | None = None


class Exported(NamedTuple):
    """What an export came to: by collection what narrower numbers cost, and which collections are not complete in the
    run, as `Docs incomplete`."""

    losses: dict[str, list[Loss]]
    lacking: list[str]


def export(run: Path, now: Configuration, asked: ExportRequest, emit: Emit) -> Exported:
    """Deliver the collections of a finished run with its own settings, but for those that are given `now`. `emit` hears
    what was written and verified.

    Raises UsageError for what is no finished run or in use, for chunks that are not those it read, and for a place that
    holds something else; InterlockError where the disk refuses.
    """
    directory = RunDirectory(run)
    with _held(directory):
        begun, inputs = directory.begun(), directory.inputs()
        if begun is None or not inputs:
            raise UsageError(f"{run} is not a run that has vectors: name the directory of one")
        own = continued(begun.kept, now)
        settings = own.settings
        _check(settings, now, asked, chunks := asked.chunks or storage.located(inputs["chunks"], Path))
        earlier = reuse.check(run)
        roster = earlier.state.roster
        _check_whole(earlier.state, directory)
        passes = [reuse.whole_pass(earlier, number) for number in range(len(roster))]
        fusion, form = Fusion(settings.fusion), form_of(settings)
        form.check(fusion)
        told = Exported({}, [])
        with atomic.scratch("interlock-export-") as scratch:
            language = settings.language if asked.store else ""
            builder = DeliveryBuilder(scratch, language, settings.chunk_sparse)
            corpus = _corpus(earlier, inputs, builder, chunks, own)
            plan = RunPlan(settings, roster, corpus, builder, sparse_share=own.sparse_share)
            wanted = _chosen(plan.corpus, asked.collection)
            for rows in wanted:  # what would be refused after the work is refused now
                _check_places(rows, asked, directory)
                check_delivery(rows, plan.spec(rows, directory.id), asked.store, emit)
            for name in earlier.state.collections if asked.collection is None else [asked.collection]:
                status, why = collection_status(earlier.state, name)
                if status in ("failed", "incomplete"):
                    what = f"{name} is {status} in its run, and is exported as that left it: {why}"
                    emit(Warned(message=what, collection=name))
                    told.lacking.append(f"{name} {status}")
            union = union_of(inputs) and " ".join((union_of(inputs), settings.keep, settings.payload, asked.precision))
            began, passed = earlier.state.began_at, _checksum(earlier.state)
            of = ExportRecord(schema_version="1", run=directory.id, began=began, passes=passed, union=union)
            for rows in wanted:
                delivery = plan.builder.delivery(rows, plan.corpus, passes, plan.spec(rows, directory.id))
                if asked.to:
                    narrow = delivery.specified(form=replace(form, quantise="none"))  # files have their own precision
                    to = Destination(directory, settings.export, precision=asked.precision)
                    told.losses[rows.collection.name] = _into_files(narrow, to, asked.to, of, emit)
                if asked.store:
                    deliver(delivery, Destination(directory, (), asked.store, settings.prune), emit)
        return told


def _check(settings: RunSettings, now: Configuration, asked: ExportRequest, chunks: Path) -> None:
    for name in () if asked.store else ("compact", "quantise", "prune", "bm25"):
        if now.origins[name].startswith("flag ") and getattr(settings, name) not in (False, "none", OFF):
            raise UsageError(f"{flag_of(name)} is for a store: add --to-store DIR, or drop it (files have --vectors)")
    if not asked.to and not asked.store:
        raise UsageError("export: name a directory for files with --to, or one of a store with --to-store")
    if settings.shard and asked.precision == "int8":
        raise UsageError(f"--vectors int8 is scaled by all vectors, and shard {settings.shard} has its share: drop it")
    if asked.to and not settings.export:
        raise UsageError(f"export: the run made no files: choose some with --export {','.join(FORMATS)}")
    if asked.precision != "float32" and (not asked.to or not all(FORMATS[each].narrows for each in settings.export)):
        narrower = ",".join(name for name, each in FORMATS.items() if each.narrows)
        raise UsageError(
            f"--vectors {asked.precision} is for files of {narrower}, others have no narrower numbers: choose --to DIR "
            f"--export {narrower}, or drop it (a store has --quantise)"
        )
    for flag, path in (("--to", asked.to), ("--to-store", asked.store)):
        if path:
            check_apart(flag, path, chunks)


def _check_places(rows: Rows, asked: ExportRequest, directory: RunDirectory) -> None:
    """Raise UsageError where something of a collection would be written into the run, through a link too, or files into
    a store."""
    files = asked.to and asked.to / rows.collection.name
    store = asked.store and asked.store / rows.collection.qdrant_collection
    for place in filter(None, (files, store)):
        if _real(place).is_relative_to(_real(directory.path)):
            raise UsageError(f"{place} is in run {directory.id}, which stays as it is: choose another place")
    if files and (is_store(files) or (store and _real(files) == _real(store))):
        raise UsageError(f"{files} is a collection of a store, which files do not go into: choose another --to")


def _real(path: Path) -> Path:
    """The path behind links, of which a circle is refused where it is read or written."""
    return storage.real(path)


def _checksum(state: RunState) -> str:
    """The SHA-256 of the journal's checksums of all vectors: a text that got one after all makes it another."""
    computed = [
        [(number, each.batch_index, each.crc) for _, each in sorted(batches.items())]
        for number, batches in sorted(state.committed.items())
    ]
    taken = [(number, each.crcs) for number, each in sorted(state.reused.items())]
    return hashlib.sha256(json.encode([computed, taken])).hexdigest()


def _check_whole(state: RunState, directory: RunDirectory) -> None:
    missing = [each.model for collection in state.collections.values() for each in collection.missing]
    if missing and state.started:
        config = state.started.config
        again = resume_words(chunks_of(directory.path, state.started.chunks, config), directory.path, config)
        raise UsageError(
            f"run {directory.id} was delivered without {', '.join(dict.fromkeys(missing))}: add what is missing first "
            f"(`{command(again)}`)"
        )


@contextmanager
def _held(directory: RunDirectory) -> Iterator[None]:
    """Keep a run as it is: nobody may resume it meanwhile, and who has it in use keeps it."""
    try:
        handle = os.open(directory.journal, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        why = f"({error.strerror}){near(directory.path)}"
        raise UsageError(f"{directory.path} is not a run {why}: name the directory of one") from None
    try:
        if not atomic.lock(handle, fcntl.LOCK_SH):
            by = atomic.occupant(directory.path) or "another process"
            raise UsageError(f"{directory.path} is in use by {by}: wait for its end")
        yield
    finally:
        os.close(handle)


def _corpus(
    earlier: reuse.Earlier, inputs: Mapping[str, Any], builder: DeliveryBuilder, chunks: Path, own: Configuration
) -> Corpus:
    """Read the chunks again. Raises UsageError where they are not those that the run read."""
    beside = builder.beside
    found = discover(chunks, own.settings.collections, own.settings.naming)
    found = [replace(each, by_ordinal=own.by_ordinal, shard=shard_in(own.settings.shard)) for each in found]
    corpus = read_corpus(found, beside.texts, beside.each, beside.features, passed=beside.passed)
    changed = list(differences(inputs["files"], corpus.fingerprint()))
    if changed or digest_of_texts(corpus.digests) != earlier.state.texts_digest:
        raise UsageError(
            f"the chunks in {chunks} are not those of run {earlier.directory.id} ({few(changed or ['other texts'])}): "
            "restore them (a new file: move it away), name them with --chunks, or run again with --reuse "
            f"{typed(earlier.directory.path)}"
        )
    return corpus


def _chosen(corpus: Corpus, name: str | None) -> list[Rows]:
    there = {rows.collection.name: rows for rows in corpus.rows if rows.chunks}
    if name is None:
        return list(there.values())
    if name not in there:
        raise UsageError(f"the run has no collection {name!r}: choose one of {few(list(there))}")
    return [there[name]]


def _into_files(delivery: Delivery, to: Destination, above: Path, of: ExportRecord, emit: Emit) -> list[Loss]:
    """Write the files of a collection below `above`, and give them their names when all have been read back; `of` says
    which run they are of."""
    collection, told = delivery.rows.collection.name, list[AnyEvent]()
    directory = above / collection
    with staging(directory) as staged:
        name = part_of(delivery.rows.collection.shard, RECORD)
        record, names = read_record(directory, name, of.union), _names(delivery, to)
        check_ours(directory, {*names, PROJECTION}, record)  # one that is not ours would pass for theirs
        same = record.is_of(of)
        if left := of_others(directory, names, record, same=same):
            another = "another run" if record.run == of.run else "run"
            another = "an earlier state of run" if (record.run, record.began) == (of.run, of.began) else another
            whose = "an export that was cut short" if same else f"{another} {record.run}"
            raise UsageError(
                f"{directory} has {few(left)} of {whose}, whose rows are others: choose another --to, or export what "
                "replaces them too"
            )
        losses = deliver(delivery, replace(to, directory=staged), told.append)
        made = {Path(each.path).name: each.sha256 for each in told if isinstance(each, ArtefactWritten)}
        check_ours(directory, {*made, PROJECTION}, record)  # nobody has put another one there meanwhile
        if left := projected_otherwise(directory, made, record):
            raise UsageError(
                f"{directory} has {few(left)} of another {PROJECTION} than this export's: choose another --to, remove "
                "those, or export what replaces them too"
            )
        known = structs.replace(of, collection=collection, vectors=to.precision, losses=losses, files=record.files)
        publish(directory, staged, made, known, name)
    for event in told:
        emit(event)
    return losses


def _names(delivery: Delivery, to: Destination) -> list[str]:
    """How the files of a delivery will be called, before anything is fitted or scaled for them."""
    project = np.empty((0, 0), np.float32) if delivery.spec.form.project else None
    numbers = dict.fromkeys(delivery.arrays | delivery.spec.dims, Encoding(to.precision))
    return list(files_of(replace(delivery, projection=project, columns_in=numbers, arrays_in=numbers), to.formats))
