"""Judges what a roster finds: by a judged collection, whose texts it encodes under leases, or a run by its own vectors.

Everything that speaks against a judgement is said before anything is computed.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec

from interlock.engine.compute.texts import GpuJobs
from interlock.engine.errors import UsageError, near
from interlock.engine.evaluation import report
from interlock.engine.evaluation.comparing import hardest
from interlock.engine.evaluation.delivered import DeliveredCollection, calibrate, card_of, read_delivered
from interlock.engine.evaluation.encoding import Amount, TextEncoder, bm25_side, sides_of
from interlock.engine.evaluation.judgements import (
    NAMED,
    Judged,
    Missing,
    read_grades,
    read_judged,
    read_named,
    read_queries,
)
from interlock.engine.evaluation.judging import Judge
from interlock.engine.evaluation.strata import PooledEvaluation, pool_evaluations
from interlock.engine.evaluation.ways import check_run_out, write_runs
from interlock.engine.evaluation.weighing import QueryParts, material_of, parted
from interlock.engine.flows import Listener
from interlock.engine.flows.rerank import checked_reranker, free_devices, policy_of, reranking_of, with_tokens
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.registry import ModelSpec, extended
from interlock.engine.record.inputs import now_at
from interlock.engine.record.rundir import JOURNAL, is_run
from interlock.engine.record.words import duration, several
from interlock.engine.search.rerank import Rerank
from interlock.engine.settings import Configuration, flag_of, load
from interlock.engine.targets.files.exported import ExportedRun
from interlock.engine.targets.shard import MANIFEST
from interlock.engine.targets.stores import is_store
from interlock.engine.vectors import SPARSE_SHARE
from interlock.engine.vectors.fusion import Fusion
from interlock.engine.vectors.manifest import CalibratedWeights

CORPUS = "corpus.jsonl"
OWN_OF_A_RUN = ("roster", "sparse", "fusion", "bm25")
"""Settings that a run has of its own."""


@dataclass(frozen=True)
class EvaluationRequest:
    """What an evaluation is asked for, beside its settings."""

    data: Path
    rerank: Sequence[str] = ()
    limit: int | None = None
    seed: int = 0
    queries: Path | None = None
    qrels: Path | None = None
    collection: str | None = None
    split: str | None = None
    measures: Sequence[str] = ()
    run_out: Path | None = None
    missing: Missing = "error"
    """What becomes of judgements of texts and queries that are not there: error, drop, or count as not found."""

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--limit: expected a whole number of at least 1, got {self.limit}")
        if self.missing not in get_args(Missing):
            raise UsageError(f"--missing: got {self.missing!r:.30}: use error or drop, or count")
        if self.seed < 0:
            raise UsageError(f"--seed: expected a whole number of at least 0, got {self.seed}")


@dataclass(frozen=True)
class Subject:
    """What is judged: texts with queries and grades, models with their weights, and what a run has delivered."""

    name: str
    judged: Judged
    models: Sequence[tuple[ModelSpec, ModelCard]]
    """Each with what it is on the CPU."""
    weights: Mapping[str, float]
    """By the name that --roster has of each dense model."""
    fusion: str
    notes: Sequence[str]
    delivered: DeliveredCollection | None = None


def subject_of(settings: Configuration, request: EvaluationRequest) -> Subject:
    """Read what is to be judged, and find its models. Raises UsageError for what cannot be judged."""
    if is_run(request.data):
        return _run(settings, request)
    name, listed = str(request.data), str(request.data).startswith(NAMED)
    idle: dict[str, object] = {
        "collection": request.collection,
        "split": request.split if listed or request.qrels else None,
    }
    idle |= {"queries": request.queries, "qrels": request.qrels} if listed else {}
    for flag in (flag for flag, value in idle.items() if value is not None):
        raise UsageError(f"--{flag} says nothing about {name}{' with --qrels' if request.qrels else ''}: drop it")
    if listed:
        judged = read_named(name.removeprefix(NAMED), missing=request.missing)
    else:
        _check_place(request.data)
        judged = read_judged(request.data, request.split, request.queries, request.qrels, missing=request.missing)
    registry, policy = extended(settings.models), policy_of(settings)
    specs = settings.settings.members(registry)
    models = [(spec, read_card(spec, resolve(spec, policy, lambda _: None), "cpu")) for spec in specs]
    notes = [*judged.notes, *_skipped("empty text", judged.left_out), *_of_queries(judged)]
    weights = dict(settings.settings.roster)
    return Subject(
        name if listed else request.data.absolute().name, judged, models, weights, settings.settings.fusion, notes
    )


def _skipped(what: str, which: Sequence[str]) -> list[str]:
    """Tell how many were left out, and the first of them; nothing where none was."""
    few = ", ".join(each[:100] for each in which[:3]) + (" and others" if len(which) > 3 else "")
    return [f"{several(len(which), what)} skipped: {few}"] if which else []


def _of_queries(judged: Judged) -> list[str]:
    own, count = judged.themselves, several(len(judged.themselves), "query", "queries")
    left = [f"{count} with the id and the words of a text of the corpus, which is left out of the hits"] if own else []
    return [*_skipped("empty query", judged.unasked), *left]


def _check_place(data: Path) -> None:
    """Raise UsageError, saying what it is instead, for a place that has no judged collection."""
    if not data.is_dir():
        what = "is not a directory" if data.exists() else f"does not exist{near(data)}"
    elif any(data.glob(f"*/{MANIFEST}")):
        raise UsageError(f"{data} is a store: name the run that wrote it")
    elif any(data.glob(f"*/{JOURNAL}")):
        raise UsageError(f"{data} is a directory of runs: name one of them")
    elif not (data / CORPUS).exists():
        what = f"has no {CORPUS}"
    else:
        return
    raise UsageError(
        f"{data} {what}: name a directory with {CORPUS}, queries.jsonl and qrels/test.tsv, or that of a run, which "
        "takes texts of other files and is judged by --queries and --qrels"
    )


def _run(settings: Configuration, request: EvaluationRequest) -> Subject:
    """A run's own vectors, with queries and judgements from files."""
    if given := [name for name in OWN_OF_A_RUN if settings.origins[name].startswith(("flag", "python"))]:
        why = "a run is judged by its own: drop it, or name a judged collection"
        raise UsageError(f"--{given[0]}: {why}")
    if request.queries is None or request.qrels is None:
        raise UsageError("a run is judged by --queries and --qrels: pass both")
    found = read_delivered(request.data, request.collection)
    if request.split is not None:
        raise UsageError("--split: a run is judged by the file of --qrels: drop it")
    queries = read_queries(request.queries)
    graded = read_grades(request.qrels, queries, found.texts.keys(), missing=request.missing, known_by=found.known_by)
    judged = Judged(found.texts, queries, {"test": graded.grades}, (), graded.notes)
    registry, policy = extended(settings.models or models_of(request.data)), policy_of(settings)
    models = [card_of(entry, registry, policy) for entry in found.roster]
    notes = [f"{several(found.parked, 'chunk')} without vectors skipped"] if found.parked else []
    notes += [*judged.notes, *_of_queries(judged)]
    if found.missing:
        notes.append(f"delivered without {', '.join(found.missing)}, so the others alone are judged")
    if found.smaller:
        notes.append(
            f"the store was made smaller ({found.smaller}) and is not judged: the whole vectors are; the storage "
            "rows say what smaller ones find"
        )
    dense = [entry for entry in found.roster if entry.model in found.dense]
    weights = {entry.model if entry.model in registry else entry.source: entry.weight for entry in dense}
    return Subject(f"{found.run}, {found.name}", judged, models, weights, found.fusion, notes, found)


def models_of(data: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return the tables of models of the file that a run was begun with; none where it is gone or there was none."""
    config = ExportedRun.open(data).summary.configuration if is_run(data) else {}
    with suppress(UsageError):
        return load({}, {}, Path(now_at(config["config"].value, data, config))).models if "config" in config else {}
    return {}


def amounts(settings: Configuration, request: EvaluationRequest, listener: Listener) -> list[Amount]:
    """Say what encoding the texts would take, model by model; of a run nothing but the queries is encoded."""
    subject, *_ = _checked(settings, request, listener)
    asked = filter(str.strip, subject.judged.queries.values())
    texts = [*(asked if subject.delivered else subject.judged.texts.values())]
    with _encoder(settings, subject, listener) as encoder:
        return [encoder.amount(*each, texts) for each in subject.models]


def evaluate(settings: Configuration, request: EvaluationRequest, listener: Listener) -> report.Evaluation:
    """Judge a roster by a collection, or a run by queries of its own. Raises UsageError for what cannot be judged."""
    subject, parts, measures, rerank = _checked(settings, request, listener)
    judged, own, weights = subject.judged, settings.settings, list(subject.weights.values())
    texts, queries = list(judged.texts.values()), [judged.queries[query] for query in parts.queries]
    with _encoder(settings, subject, listener) as encoder:
        late, models, asking = with_tokens(settings, rerank, subject.models), [*subject.models], dict[str, ModelCard]()
        tokens = None
        if rerank and late:
            asking[late[0].key] = late[1]
            tokens = encoder.encode(late[1], queries, late[1].query_prompt).rows.tokens
            if tokens is None:
                raise UsageError(f"--rerank: {rerank.late} gives no token vectors here: name another model of --roster")
            if len(parts.tested) * rerank.depth >= len(texts):  # most texts are candidates: computed once, with tokens
                models = [late if each[0].key == late[0].key else each for each in models]
        if subject.delivered is None:
            _tell_amounts(encoder, models, texts, listener)
        dense, sparse = sides_of(encoder, models, weights, texts, queries, subject.delivered, asking)
        if language := own.language if subject.delivered is None else subject.delivered.bm25:
            sparse = [bm25_side(texts, queries, language), *sparse]
        listener.say("judging")
        material = material_of(judged, parts, dense, sparse)
        share = subject.delivered.sparse_share if subject.delivered else SPARSE_SHARE
        judge = Judge(material, Fusion(subject.fusion), request.seed, measures, share)
        ways = judge.ways()
        if rerank:
            asked = [queries[at] for at in parts.tested]
            tokens = tokens and tokens.taken(parts.tested)
            with reranking_of(
                settings, rerank, asked, tokens, judged.texts, encoder, late, material, listener
            ) as behind:
                ways += judge.reranked(behind)
        if request.run_out:
            write_runs(request.run_out, {f"{way.group}-{way.name}": way.found for way in ways}, material.queries)
        found = judge.evaluation(subject.name, ways, subject.notes, list(subject.weights))
    usual, grades = judge.hybrid or judge.base, [material.grades[at] for at in parts.tested]
    worst = hardest(usual.found, material.queries, grades, judged.queries, judged.texts)
    return msgspec.structs.replace(found, worst_of=usual.name, worst=worst)


def evaluate_sets(
    settings: Configuration, requests: Sequence[EvaluationRequest], listener: Listener
) -> PooledEvaluation:
    """Judge a roster by several collections, one after another, and together. Raises UsageError as `check_sets` does,
    before anything is computed."""
    check_sets(settings, requests)
    found = [evaluate(settings, request, listener) for request in requests]
    return pool_evaluations({str(request.data): each for request, each in zip(requests, found, strict=True)})


def check_sets(settings: Configuration, requests: Sequence[EvaluationRequest]) -> None:
    """Raise UsageError for a collection that cannot be judged, or not with the others."""
    places = [str(request.data) for request in requests]
    for request in requests:
        for flag in (flag for flag in ("queries", "qrels", "run_out") if getattr(request, flag)):
            raise UsageError(
                f"{flag_of(flag)} is of one collection: drop it, or judge each alone and pool them with compare"
            )
        if places.count(str(request.data)) > 1:
            raise UsageError(f"{request.data} is named twice: name each collection once")
        if len(_checked(settings, request, Listener())[1].tested) < 2:
            raise UsageError(f"{request.data} has one judged query, which tells nothing: drop it, or judge more")


def _checked(
    settings: Configuration, request: EvaluationRequest, listener: Listener
) -> tuple[Subject, QueryParts, Sequence[str], Rerank | None]:
    """Read what is to be judged, by which queries, in which measures and behind which reranker: all that may be refused
    is, before anything is computed."""
    measures = report.measures_of(request.measures, report.DEEPEST) or report.MEASURES
    report.measured([{"a": 1.0}], [{"a": 1}], measures)
    subject = subject_of(settings, request)
    rerank = checked_reranker(settings, request.rerank, subject.models)
    parts = parted(subject.judged, request.limit, request.seed)
    if request.run_out:
        check_run_out(request.run_out, [*subject.judged.texts, *parts.queries])
    listener.say(report.reach(len(parts.tested)))
    return subject, parts, measures, rerank


def weights_file(found: report.Evaluation, data: Path) -> bytes:
    """Write the proposed weights as a file that `config` takes, with the models of a judged run's own file. Raises
    UsageError where none were chosen, or the held-out queries do not tell that they find more than the roster's."""
    if not found.weights:
        raise UsageError(
            "--calibrate: weights are chosen for two models or more by two training queries or more: drop it, or add "
            "to these"
        )
    if not found.weights.supported:
        held = several(found.weights.held_out, "held-out query", "held-out queries")
        raise UsageError(
            f"--calibrate: {held} do not tell that these weights find more than the roster's, so nothing was written: "
            "drop it and keep the roster's, or add to the judged queries"
        )
    lines = [f"roster = {json.dumps(found.roster)}"]
    for name, row in models_of(data).items():
        lines += [f"\n[models.{_toml(name)}]", *(f"{key} = {_toml(value)}" for key, value in row.items())]
    return "\n".join([*lines, ""]).encode()


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(each)}" for key, each in value.items()) + " }"
    # Strings, numbers and lists are written alike but for DEL, and for JSON's halves of a surrogate pair.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def calibrate_store(request: EvaluationRequest, found: report.MeasuredWeights) -> tuple[Path, CalibratedWeights] | str:
    """Give the store of a judged run the weights that were chosen: where it is, and the weights now and before. Says
    why not where it has none."""
    judged = read_delivered(request.data, request.collection)
    if not judged.store:
        return f"run {judged.run} wrote no store that could have these weights"
    if not is_store(judged.store):
        return f"the store of run {judged.run} is not at {judged.store} any more, to have these weights"
    return judged.store, calibrate(judged.store, judged.run, found.weights, found.training, judged.began)


@contextmanager
def _encoder(settings: Configuration, subject: Subject, listener: Listener) -> Iterator[TextEncoder]:
    """What encodes texts, unless a run has delivered them, and queries, under the ceilings of the settings."""
    if settings.settings.threads:
        import torch

        torch.set_num_threads(settings.settings.threads)
    own, gpus = settings.settings, None
    with ExitStack() as stack:
        if subject.delivered is None:
            on = stack.enter_context(free_devices(settings, listener.events))
            if on.gpus:
                gpus = GpuJobs(on, "judged texts")
        yield TextEncoder(Lessor([CpuDevice()], *own.limits), listener.progress, gpus)


def _tell_amounts(
    encoder: TextEncoder, models: Sequence[tuple[ModelSpec, ModelCard]], texts: Sequence[str], listener: Listener
) -> None:
    """Tell how much there is to encode before it is encoded."""
    for spec, card in models:
        amount = encoder.amount(spec, card, texts)
        if amount.missing:
            kept = amount.texts - amount.missing
            known = f" ({kept:,} more are kept)" if kept else ""
            listener.say(
                f"{amount.model}: {several(amount.missing, 'text')} to encode{known}, "
                f"{several(amount.tokens, 'token')}, about {duration(amount.seconds)}"
            )
