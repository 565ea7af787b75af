"""Texts as the vectors that the points of a collection have: questions as a search has them encoded, chunks as the run
that delivered them did. What the vectors mean is read of a store without opening it, so a run or a service may use it.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.compute.parts.tokens import TokenRows
from interlock.engine.compute.texts import Progress, TextJobs, by_table, unheard
from interlock.engine.corpus.places import starts_of
from interlock.engine.corpus.tokens import texts_in
from interlock.engine.errors import UsageError, meant
from interlock.engine.models.registry import name_of_output
from interlock.engine.record.inputs import store_of
from interlock.engine.record.rundir import JOURNAL, RUN
from interlock.engine.record.shards import whole_name
from interlock.engine.record.summary import CollectionSummary
from interlock.engine.search.hits import EncodedTexts, Side
from interlock.engine.search.served import Place, ServerPlace, StoreCopy
from interlock.engine.search.store_models import StoreModel, StoreModels
from interlock.engine.standing.runs import refuse_at_work
from interlock.engine.targets import shard, stores
from interlock.engine.targets.files.exported import ExportedCollection, ExportedRun
from interlock.engine.targets.files.formats import TABLE
from interlock.engine.targets.files.told import spec_of
from interlock.engine.vectors.bm25 import BM25, Words, WordWeights
from interlock.engine.vectors.fusion import PROJECTION, Fusion, Vectors, fuse, project, truncate
from interlock.engine.vectors.manifest import Manifest, Member, query_vectors, read_manifest, token_dims
from interlock.engine.vectors.points import Terms
from interlock.engine.vectors.precision import FUSED

NO_AVERAGE = (
    "the points have bm25, which nothing here makes of chunks: how many words they have on average stands in the store "
    "and in the exports of the run: name one of these"
)


@dataclass(frozen=True)
class Meaning:
    """What the vectors of a collection are, wherever its points lie; `bm25` makes those of its texts, None where
    nothing tells how many words they have on average."""

    manifest: Manifest
    projection: Vectors | None = None
    bm25: Callable[[], WordWeights | None] = lambda: None

    @classmethod
    def of(cls, manifest: Manifest, projection: Vectors | None) -> "Meaning":
        """Take it from a manifest, which may tell how many words there are."""
        average = manifest.run.bm25_average_length
        words = WordWeights(words=manifest.bm25, average_length=average) if manifest.bm25 and average else None
        return cls(manifest, projection, lambda: words)


def meaning_of(place: Place, collection: str | None) -> Meaning:
    """Find what the vectors of a collection are: in a store, on a server, or for a run in the store that it wrote, else
    in its own record. Raises UsageError where there is none, or several and none is named."""
    if isinstance(place, ServerPlace):
        with place.open(collection) as served:
            return Meaning.of(
                read_manifest(served.manifest, served.dims, served.sparse, served.tokens), served.projection
            )
    if isinstance(place, StoreCopy):
        return meaning_of(place.directory, collection)
    if not (store := _store_behind(place, collection)):
        return _of_run(*_chosen(place, collection))
    path = stores.alone(*store)
    plain = shard.read_manifest(path)
    manifest = read_manifest(plain, *shard.read_kinds(path))
    return Meaning.of(manifest, stores.kept_projection(path, plain))


def points_behind(place: Place, collection: str | None) -> tuple[Place, str | None] | None:
    """Find where the points of a collection are, and what it is called there: at `place` itself, or where that is a run
    in the store that it wrote; None where there is none."""
    if isinstance(place, ServerPlace):
        return place, collection
    if isinstance(place, Path):
        return _store_behind(place, collection)
    found = _store_behind(place.directory, collection)
    return found and (StoreCopy(found[0]), found[1])


def _store_behind(place: Path, collection: str | None) -> tuple[Path, str | None] | None:
    if not any(os.path.exists(place / made) for made in (RUN, JOURNAL)):  # noqa: PTH110  # who may not look is told later
        return place, collection
    run, chosen = _chosen(place, collection)
    store = store_of(run.summary.configuration, run.summary.run_id, place)
    there = store and stores.is_store(store / chosen.qdrant_collection)
    return (store, chosen.qdrant_collection) if store and there else None


def _chosen(place: Path, collection: str | None) -> tuple[ExportedRun, CollectionSummary]:
    """A run, and its only collection or the one that is named."""
    run = ExportedRun.open(place)
    chosen, *others = run.named(collection)
    if others:
        there = ", ".join(each.name for each in (chosen, *others))
        raise UsageError(f"{place} has {1 + len(others)} collections: choose one with --collection ({there})")
    return run, chosen


def _of_run(run: ExportedRun, chosen: CollectionSummary) -> Meaning:
    if not chosen.exports:
        refuse_at_work(run.directory.path, f"nothing of {chosen.name} is delivered")
        raise UsageError(
            f"run {run.summary.run_id} has delivered nothing of {chosen.name} ({chosen.status}) that is still there: "
            "finish it with --resume, or `interlock export` it"
        )
    written = {whole_name(each.path): each.sha256 for each in chosen.exports}
    reduced = {"projection": {"sha256": written[PROJECTION]}} if PROJECTION in written else {}
    matrix = stores.kept_projection(run.directory.exports(chosen.name), reduced)
    plain = spec_of(run.summary, run.roster, chosen, 0 if matrix is None else matrix.shape[1]).manifest

    def words() -> WordWeights | None:
        return ExportedCollection.open(run, chosen).bm25 if TABLE in written else None

    return Meaning(msgspec.convert(plain, Manifest), matrix, words)


def check_texts(given: object) -> list[str]:
    """Return texts to be encoded. Raises UsageError as `texts_in` does, for none at all, and for one without a word."""
    texts = texts_in(given)
    for number, text in enumerate(texts):
        if not text.strip():
            raise UsageError(f"text {number} is empty: remove it, or pass some words")
    if not texts:
        raise UsageError("texts: got none: pass one or more")
    return texts


def computed(
    models: Sequence[StoreModel], texts: Sequence[str], on: TextJobs, progress: Progress = unheard
) -> tuple[dict[str, Outputs], list[dict[str, int]], list[int]]:
    """Compute what each model gives of texts, by its key; how many tokens of each text it leaves out; and how many all
    models together have read of each."""
    jobs = [on.job(each.card, each.prompt, texts) for each in models if not each.table]
    beyond = {job.card.key: job.tokens.truncated(job.card.max_tokens).tolist() for job in jobs}
    outputs = {each.card.key: Outputs(terms=by_table(each.card, each.table, texts)) for each in models if each.table}
    if jobs:
        done = on.compute(jobs, progress)
        outputs |= {job.card.key: each.rows for job, each in zip(jobs, done, strict=True)}
    read = np.sum([np.zeros(len(texts), np.int64), *(job.tokens.lengths(job.card.max_tokens) for job in jobs)], axis=0)
    cut = [{key: own[row] for key, own in beyond.items() if own[row]} for row in range(len(texts))]
    return outputs, cut, read.tolist()


def encode(
    meaning: Meaning,
    models: StoreModels,
    on: TextJobs,
    texts: Sequence[str],
    side: Side = "query",
    only: str = "",
    progress: Progress = unheard,
) -> EncodedTexts:
    """Make all vectors that the points of a collection have of texts, or `only` those of one name, which needs their
    models alone; a dense model's, whether the points have these beside the fused ones or not.

    Raises UsageError for a name that the points do not have, for a model here that is another one than theirs, and for
    a question of which a model makes no vector; UnavailableError for a model that is not there or does not fit.
    """
    manifest = meaning.manifest
    members = {member.model: member for member in manifest.models}
    dims = manifest.form.widths(manifest.fusion, {name: each.dim for name, each in members.items()})
    terms = [each.model for each in manifest.sparse]
    late = list(token_dims(manifest.tokens))
    every = [*dims, *terms, *late, *([BM25] if manifest.bm25 else [])]
    if only and only not in (could := [*dict.fromkeys([*members, *every])]):
        raise UsageError(f"--only {only}: no such vectors{meant(only, could)}: name one of {', '.join(could)}")
    wanted = {only} if only else {*every}
    # A mean takes the weights of its points alone; a question to any other those that a search has.
    own = side == "document" or manifest.fusion is Fusion.MEAN
    weights = {name: each.weight for name, each in members.items()} if own else manifest.weights
    fused = FUSED in wanted and FUSED in dims
    needed = (wanted - {FUSED}) | ({name for name, weight in weights.items() if weight} if fused else set())
    outputs, cut, read = computed(models.serving(needed, side), texts, on, progress)
    dense = {name: _dense(members[name], outputs[name], texts, side) for name in members if name in needed}
    vectors = {name: each for name, each in dense.items() if name in wanted}
    if fused:
        vectors[FUSED] = _fused(meaning, dense, weights, side)
    sparse = {name: rows for name, rows in terms_in(outputs).items() if name in wanted and rows is not None}
    lacks = ""
    if BM25 in wanted and manifest.bm25:
        words = manifest.bm25 if side == "query" else meaning.bm25()
        sparse |= {BM25: _worded(words, texts)} if words else {}
        lacks = "" if words else NO_AVERAGE
    named = {name_of_output(key, "tokens"): each.tokens for key, each in outputs.items()}
    tokens = {name: _split(rows, side) for name, rows in named.items() if name in wanted and rows is not None}
    return EncodedTexts(manifest.collection, side, texts, vectors, sparse, tokens, cut, read, lacks)


def _dense(member: Member, outputs: Outputs, texts: Sequence[str], side: Side) -> Vectors:
    """The vectors of texts by a model, as wide as those of the points; that of a chunk may be parked."""
    if side == "query":
        return vectors_of(member, outputs, texts)
    assert outputs.dense is not None, "a dense model has vectors"
    return _cut(outputs.dense, member.dim)


def _fused(meaning: Meaning, dense: Mapping[str, Vectors], weights: Mapping[str, float], side: Side) -> Vectors:
    manifest, projection = meaning.manifest, meaning.projection
    if side == "query":
        return query_vectors(manifest, dense, weights, projection)[0]
    names = [member.model for member in manifest.models]
    fused = fuse(manifest.fusion, [dense[name] for name in names], [weights[name] for name in names])
    assert fused is not None, "there are fused vectors"
    return fused if projection is None else project(fused, projection)


def _worded(words: Words | WordWeights, texts: Sequence[str]) -> SparseRows:
    """BM25's rows of texts: as documents by what weighs those, as questions by what makes their words."""
    none = Terms(np.empty(0, np.int64), np.empty(0, np.float32))
    rows = [words_of(words, each) if isinstance(words, Words) else words.of(each).get(BM25, none) for each in texts]
    indices, values = (np.concatenate(each) for each in zip(*((row.indices, row.values) for row in rows), strict=True))
    return SparseRows(starts_of([len(row.indices) for row in rows]), indices, values, np.zeros(len(rows), np.bool_))


def _split(rows: TokenRows, side: Side) -> list[Vectors]:
    """The token vectors of each text; those of a chunk in the numbers that a store keeps."""
    vectors = rows.to_float32()
    kept = vectors if side == "query" else vectors.astype(np.float16).astype(np.float32)
    return np.split(kept, rows.starts[1:-1])


def terms_in(outputs: Mapping[str, Outputs]) -> dict[str, SparseRows | None]:
    """Return the terms that models gave, by the names of a store's sparse vectors."""
    beside = {name_of_output(key, "sparse"): each.terms for key, each in outputs.items()}
    return beside | {key: each.terms for key, each in outputs.items() if each.dense is None}


def vectors_of(member: Member, outputs: Outputs, texts: Sequence[str]) -> Vectors:
    """Return the vectors [n, dim] of questions, as wide as those of the store. Raises UsageError, naming it, for a
    question of which the model makes none."""
    whole = outputs.dense
    assert whole is not None, "a dense model has vectors"
    if not (finite := np.isfinite(whole).all(axis=1)).all():
        wrong = texts[int(finite.argmin())]
        raise UsageError(f"{member.model} makes no vector of {wrong!r:.100}: use --only with another, or ask otherwise")
    return _cut(whole, member.dim)


def _cut(whole: Vectors, dim: int) -> Vectors:
    return truncate(whole, dim) if dim < whole.shape[1] else np.asarray(whole, np.float32)


def words_of(words: Words, text: str) -> Terms:
    """Return the words of a question for BM25, 1 for each that is not a stop word."""
    found = words.engine(words.k, words.b, 1.0).embed_query(text)
    order = np.argsort(found.indices)
    return Terms(np.array(found.indices, np.int64)[order], np.array(found.values, np.float32)[order])
