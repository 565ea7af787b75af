"""The vectors that a run delivered of one collection, to be judged without embedding anything again."""

import fcntl
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.errors import UsageError, meant
from interlock.engine.evaluation.weighing import SideCost
from interlock.engine.models.assets import Policy
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.registry import ModelSpec, name_of_output
from interlock.engine.record.atomic import check_written
from interlock.engine.record.facts import Artefact, RosterEntry
from interlock.engine.record.inputs import language_of, resume_words, store_of
from interlock.engine.record.shards import whole_name
from interlock.engine.record.summary import CollectionSummary
from interlock.engine.record.words import command
from interlock.engine.search.store_models import check_tokens, the_same
from interlock.engine.targets import shard
from interlock.engine.targets.files.exported import ExportedRun, readable
from interlock.engine.targets.files.formats import TABLE
from interlock.engine.targets.files.tables import matrix_of, terms_of
from interlock.engine.targets.files.told import spec_of
from interlock.engine.targets.stores import kept_in, manifest_at
from interlock.engine.vectors.fusion import Fusion, unit_rows
from interlock.engine.vectors.manifest import CalibratedWeights, read_manifest, remaining
from interlock.engine.vectors.precision import FUSED

MOMENT = 0.002
"""Seconds by which a time differs at most from one that was written in whole milliseconds."""


@dataclass(frozen=True, kw_only=True)
class DeliveredCollection:
    """The texts by id of the chunks of a collection that have a vector of every model, with these vectors [n, dim], and
    weights of terms by name; `parked` counts the chunks that lack one.

    `bm25` is the language of its BM25, empty where it was delivered without, and `sparse_share` what sparse lists count
    in answers of its store; `store` where the run wrote it as a collection of a store, if it did; `smaller` what made
    the vectors of its store smaller than these, in the words of a command line; `missing` are the models of the run
    that it was delivered without.
    """

    run: str
    name: str
    fusion: str
    texts: Mapping[str, str]
    roster: Sequence[RosterEntry]
    dense: Mapping[str, Vectors]
    sparse: Mapping[str, SparseRows]
    costs: Mapping[str, SideCost]
    parked: int
    bm25: str
    sparse_share: float
    store: Path | None
    smaller: str
    missing: Sequence[str]
    known_by: str = ""
    """Why chunks are known by their points, to be said of the corpus; empty where their own ids tell them apart."""
    began: float = 0.0
    """When the run was begun, in seconds since the epoch; 0: nobody knows."""


def read_delivered(directory: Path, wanted: str | None) -> DeliveredCollection:
    """Read what the run in `directory` delivered of the collection `wanted` (None: its only one).

    A chunk is known by its own id, or by its point's where two chunks share one. Raises UsageError for a collection
    that is not there or whose files lack texts or a model's vectors, InterlockError for a file that is damaged.
    """
    run = ExportedRun.open(directory)
    summary = run.summary
    found = {each.name: each for each in summary.collections}
    if wanted is None and len(found) != 1:
        names = ", ".join(found)
        raise UsageError(f"run {directory.name} has {len(found)} collections: choose one with --collection ({names})")
    stored = {each.qdrant_collection: each.name for each in summary.collections}
    name = next(iter(found)) if wanted is None else wanted if wanted in found else stored.get(wanted, wanted)
    if name not in found:
        hint = meant(name, found)
        raise UsageError(f"run {directory.name} has no collection {name!r}{hint}: choose one of {', '.join(found)}")
    delivered, inputs = found[name], run.directory.inputs()
    again = resume_words(str(inputs.get("chunks", "CHUNKS")), directory, run.summary.configuration)
    files = _Files(
        run.directory.exports(name),
        {whole_name(each.path): each for each in delivered.exports},
        command([*again, "--export", "npy,parquet"]),
    )
    roster = remaining(run.roster, delivered.missing)
    dense = [entry for entry in roster if "dense" in entry.gives]
    vectors = {entry.model: files.vectors(entry, dense, run) for entry in dense}
    ids, chunk_ids, texts = (files.texts(column) for column in ("id", "chunk_id", "text"))
    weighing = [entry for entry in roster if "sparse" in entry.gives]
    terms = {key: files.terms(key) for key in (name_of_output(each.model, "sparse", each.kind) for each in weighing)}
    there = np.ones(len(ids), np.bool_)
    for matrix in vectors.values():
        there &= np.isfinite(matrix).all(axis=1)
    for rows in terms.values():
        there &= ~rows.parked
    kept = np.flatnonzero(there)
    twice, times = Counter(chunk_ids).most_common(1)[0] if chunk_ids else ("", 0)
    known = ids if times > 1 else chunk_ids
    shared = f" (known by the ids of its points, as {times} chunks have the chunk_id {twice!r:.100})"
    place = store_of(summary.configuration, summary.run_id, directory)
    store = place and place / delivered.qdrant_collection
    own = kept_in(manifest_at(store) if store else {}, spec_of(summary, run.roster, delivered, 0))
    smaller = {f"--{setting}": run.setting(setting) for setting in ("project", "quantise")}
    return DeliveredCollection(
        run=directory.name,
        name=name,
        fusion=summary.fusion,
        texts={known[row]: texts[row] for row in kept},
        roster=roster,
        dense={model: np.ascontiguousarray(matrix[kept], np.float32) for model, matrix in vectors.items()},
        sparse={key: rows.taken(kept) for key, rows in terms.items()},
        costs={entry.model: _cost(delivered, entry.model) for entry in roster},
        parked=len(ids) - len(kept),
        bm25=language_of(summary.configuration),
        sparse_share=own.sparse_share,
        store=store,
        smaller=" ".join(f"{flag} {value}" for flag, value in smaller.items() if value not in (None, 0, "none")),
        missing=sorted({each.model for each in delivered.missing}),
        known_by=shared if times > 1 else "",
        began=datetime.fromisoformat(summary.started_at).timestamp() if summary.started_at else 0.0,
    )


def card_of(entry: RosterEntry, registry: Mapping[str, ModelSpec], policy: Policy) -> tuple[ModelSpec, ModelCard]:
    """Find the very model that a run computed with, for the CPU. Raises UsageError where this machine has another."""
    known = registry.get(entry.model) or ModelSpec(entry.model, (entry.source,))
    spec = replace(
        known,
        sources=tuple(dict.fromkeys((entry.source, *known.sources))),
        revision=entry.commit or known.revision,
        kind=entry.kind,
        max_tokens=entry.max_tokens,
        document_prompt=entry.document_prompt,
        query_prompt=entry.query_prompt,
        dtype={"cpu": "bfloat16" if entry.dtype == "bfloat16" else "float32"},
        outputs=tuple(output for output in entry.outputs if output != "tokens"),
    )
    snapshot = the_same(spec, None, entry.fingerprint, policy, was="run was computed", again="run")
    card = read_card(spec, snapshot, "cpu")
    check_tokens(card, entry.tokenizer, "run was computed", "run")
    return spec, card


@dataclass(frozen=True)
class _Files:
    """The files of one collection, with what the run recorded of each: arrays, and what these lack from the table."""

    directory: Path
    written: Mapping[str, Artefact]
    again: str
    """The command that writes all of them."""

    def vectors(self, entry: RosterEntry, roster: Sequence[RosterEntry], run: ExportedRun) -> Vectors:
        """A dense model's own vectors [n, dim] of those of `roster`, a parked row of which is NaN."""
        model = entry.model
        for name in (f"{model}.npy", *([f"{FUSED}.npy"] if len(roster) == 1 else [])):
            if name in self.written:
                with self._reading(name) as path:
                    found: Vectors = np.load(path, mmap_mode="r", allow_pickle=False)
                    return found
        columns = self._table.schema_arrow.names if TABLE in self.written else []
        if model in columns:
            return matrix_of(self._column(model), entry.dim)
        concat = len(roster) == 1 or run.summary.fusion == Fusion.CONCAT
        if not concat or run.setting("project") or FUSED not in columns:
            raise self._lacking(f"vectors of {model} by themselves")
        whole = matrix_of(self._column(FUSED), sum(each.dim for each in roster))
        first = sum(each.dim for each in roster[: roster.index(entry)])  # in `concat` a block is a model's own, scaled
        return unit_rows(whole[:, first : first + entry.dim].astype(np.float64))

    def terms(self, name: str) -> SparseRows:
        """A sparse model's weights of terms."""
        return terms_of(self._column(name, f"terms of {name}"))

    def texts(self, name: str) -> list[str]:
        """A column of texts."""
        found: list[str] = self._column(name, "texts").to_pylist()
        return found

    def _column(self, name: str, what: str = "") -> Any:
        if TABLE not in self.written:
            raise self._lacking(what)
        with self._reading(TABLE):
            return self._table.read([name])[name]

    @cached_property
    def _table(self) -> Any:
        import pyarrow.parquet as pq

        with self._reading(TABLE) as path:
            return pq.ParquetFile(path, memory_map=True)

    @contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        """The path of a file that is as it was delivered, or an InterlockError; that too for what is not read."""
        path = self.directory / Path(self.written[name].path).name
        check_written(path, self.written[name])
        with readable(path):
            yield path

    def _lacking(self, what: str) -> UsageError:
        return UsageError(f"{self.directory} has no {what}: use `{self.again}`, which writes them and computes nothing")


def _cost(collection: CollectionSummary, model: str) -> SideCost:
    """What the journal tells of a model's pass; nothing where rows were reused, whose time is that of another run."""
    passes = [each for each in collection.passes if each.model == model]
    if not passes or any(each.seconds is None or each.rows_reused for each in passes):
        return SideCost()
    on = {each.device or "" for each in passes}
    device = "CPU" if on == {"cpu"} else "GPU" if not any("cpu" in name for name in on) else "device"
    return SideCost(sum(each.seconds or 0.0 for each in passes), None, device)


def calibrate(
    path: Path, run_id: str, weights: Mapping[str, float], queries: int, began: float = 0.0
) -> CalibratedWeights:
    """Have questions to the collection at `path` count its dense models by `weights`, which so many judged
    `queries` chose, where nobody says otherwise. Returns what was written: the manifest, whole or not at all.

    Raises UsageError for a collection that is damaged, in use, written by another run than `run_id`, which was begun at
    `began`, or such that no other weights can be asked of it, and for weights that are not those of its models.
    """
    with shard.holding(path, fcntl.LOCK_EX):
        plain, kinds = shard.read_manifest(path), shard.read_kinds(path)
        manifest = read_manifest(plain, *kinds)
        if manifest.run.run_id != run_id:
            raise UsageError(
                f"{path} keeps its weights: run {manifest.run.run_id} wrote it after {run_id}, which was judged: name "
                "that one"
            )
        if began and manifest.run.began and abs(manifest.run.began - began) > MOMENT:
            raise UsageError(
                f"{path} keeps its weights: another run {run_id} than the judged one wrote it: name that one"
            )
        if manifest.fusion is Fusion.MEAN and not {member.model for member in manifest.models} <= kinds.dims.keys():
            raise UsageError(
                f"{path} keeps its weights: --fusion {Fusion.MEAN} mixed its models for good: use --fusion "
                f"{Fusion.CONCAT} or --keep both in another run"
            )
        chosen = CalibratedWeights(weights=dict(weights), before=manifest.weights, queries=queries)
        try:
            chosen.check([member.model for member in manifest.models])
        except ValueError as error:
            raise UsageError(f"cannot calibrate {path} ({error}): name the run that wrote it") from None
        shard.write_manifest(path, {**plain, "calibrated": json.loads(msgspec.json.encode(chosen))})
    return chosen
