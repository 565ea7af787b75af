"""Judges what a roster finds: by a judged collection, whose texts it encodes under leases, or a run by its own vectors.

Everything that speaks against a judgement is said before anything is computed.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from interlock.engine.compute.texts import GpuJobs
from interlock.engine.errors import UsageError, near
from interlock.engine.evaluation.delivered import DeliveredCollection, card_of, is_run, read_delivered
from interlock.engine.evaluation.encoding import Amount, TextEncoder, bm25_side, late_scores, sides_of
from interlock.engine.evaluation.judgements import NAMED, Judged, read_grades, read_judged, read_named, read_queries
from interlock.engine.evaluation.judging import Judge, Lists, Reranking, Rescored
from interlock.engine.evaluation.report import Evaluation, MeasuredWeights, measured, reach
from interlock.engine.evaluation.weighing import Material, parted
from interlock.engine.flows import Listener
from interlock.engine.flows.rerank import free_devices, rerank_of, rerankers
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.members import rerankers as found_rerankers
from interlock.engine.models.registry import ModelSpec, extended
from interlock.engine.record.inputs import now_at
from interlock.engine.record.rundir import JOURNAL
from interlock.engine.record.words import duration, several
from interlock.engine.search.ask import MAXSIM
from interlock.engine.search.rerank import Rerank
from interlock.engine.settings import Configuration, load
from interlock.engine.targets.embedded import calibrate
from interlock.engine.targets.files.exported import ExportedRun
from interlock.engine.targets.shard import MANIFEST
from interlock.engine.targets.stores import is_store
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
    missing: str = "error"
    """What becomes of judgements of texts and queries that are not there: error or drop."""

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--limit: expected a whole number of at least 1, got {self.limit}")
        if self.missing not in ("error", "drop"):
            raise UsageError(f"--missing: got {self.missing!r:.30}: use error or drop")
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
        judged = read_named(name.removeprefix(NAMED), drop=request.missing == "drop")
    else:
        _check_place(request.data)
        judged = read_judged(
            request.data, request.split, request.queries, request.qrels, drop=request.missing == "drop"
        )
    registry, policy = extended(settings.models), policy_of(settings)
    specs = settings.settings.members(registry)
    models = [(spec, read_card(spec, resolve(spec, policy, lambda _: None), "cpu")) for spec in specs]
    notes = [*judged.notes, *_skipped("empty text", judged.left_out), *_skipped("empty query", judged.unasked)]
    weights = dict(settings.settings.roster)
    return Subject(
        name if listed else request.data.absolute().name, judged, models, weights, settings.settings.fusion, notes
    )


def _skipped(what: str, which: Sequence[str]) -> list[str]:
    """Tell how many were left out, and the first of them; nothing where none was."""
    few = ", ".join(each[:100] for each in which[:3]) + (" and others" if len(which) > 3 else "")
    return [f"{several(len(which), what)} skipped: {few}"] if which else []


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
        f"{data} {what}: name a directory with {CORPUS}, queries.jsonl and qrels/test.tsv, or that of a run"
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
    graded = read_grades(request.qrels, queries, found.texts.keys(), drop=request.missing == "drop")
    judged = Judged(found.texts, queries, {"test": graded.grades}, (), graded.notes)
    registry, policy = extended(settings.models or models_of(request.data)), policy_of(settings)
    models = [card_of(entry, registry, policy) for entry in found.roster]
    notes = [f"{several(found.parked, 'chunk')} without vectors skipped"] if found.parked else []
    notes += [*judged.notes, *_skipped("empty query", judged.unasked)]
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


def policy_of(settings: Configuration) -> Policy:
    """How far to go for models."""
    return Policy(offline=settings.settings.offline, pickles=settings.settings.allow_pickle)


def amounts(settings: Configuration, request: EvaluationRequest, listener: Listener) -> list[Amount]:
    """Say what encoding the texts would take, model by model; of a run nothing but the queries is encoded."""
    subject = subject_of(settings, request)
    asked = filter(str.strip, subject.judged.queries.values())
    texts = [*(asked if subject.delivered else subject.judged.texts.values())]
    listener.say(reach(len(parted(subject.judged, request.limit, request.seed).tested)))
    with _encoder(settings, subject, listener) as encoder:
        return [encoder.amount(*each, texts) for each in subject.models]


def evaluate(settings: Configuration, request: EvaluationRequest, listener: Listener) -> Evaluation:
    """Judge a roster by a collection, or a run by queries of its own. Raises UsageError for what cannot be judged."""
    measured([{"a": 1.0}], [{"a": 1}])  # what could not be measured is not computed
    subject = subject_of(settings, request)
    rerank = _reranker(settings, request.rerank, subject)
    parts = parted(subject.judged, request.limit, request.seed)
    listener.say(reach(len(parts.tested)))
    with _encoder(settings, subject, listener) as encoder:
        if subject.delivered is None:
            _tell_amounts(encoder, subject, listener)
        judged, own, weights = subject.judged, settings.settings, list(subject.weights.values())
        texts, queries = list(judged.texts.values()), [judged.queries[query] for query in parts.queries]
        dense, sparse = sides_of(encoder, subject.models, weights, texts, queries, subject.delivered)
        if language := own.language if subject.delivered is None else subject.delivered.bm25:
            sparse = [bm25_side(texts, queries, language), *sparse]
        every = {**judged.splits.get("train", {}), **judged.splits["test"]}
        grades = [every[query] for query in parts.queries]
        listener.say("judging")
        material = Material(list(judged.texts), grades, parts.tested, parts.trained, parts.halved, dense, sparse)
        judge = Judge(material, Fusion(subject.fusion), request.seed)
        ways = judge.ways()
        if rerank:
            asked = [queries[at] for at in parts.tested]
            with _reranking(settings, rerank, asked, subject, encoder, listener) as reranking:
                ways += judge.reranked(reranking)
        return judge.evaluation(subject.name, ways, subject.notes, list(subject.weights))


def weights_file(found: Evaluation, data: Path) -> bytes:
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


def calibrate_store(request: EvaluationRequest, found: MeasuredWeights) -> tuple[Path, CalibratedWeights] | str:
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


def _reranker(settings: Configuration, names: Sequence[str], subject: Subject) -> Rerank | None:
    """What is to rerank, if anything: late interaction by a dense model of the roster, or cross-encoders. Raises
    UsageError, before anything is encoded, for a name that is neither."""
    rerank = rerank_of(settings, names, None, None)
    if rerank and rerank.late:
        dense = [spec.key for spec, _ in subject.models if "dense" in spec.gives]
        if not dense or rerank.late not in (MAXSIM, *dense):
            raise UsageError(f"--rerank {rerank.late}: not a model of the roster: add it to --roster")
        return replace(rerank, late=dense[0] if rerank.late == MAXSIM else rerank.late)
    if rerank:
        found_rerankers(extended(settings.models), names)
    return rerank


@contextmanager
def _reranking(
    settings: Configuration,
    rerank: Rerank,
    queries: Sequence[str],
    subject: Subject,
    encoder: TextEncoder,
    listener: Listener,
) -> Iterator[Reranking]:
    if rerank.late:
        spec = next(spec for spec, _ in subject.models if spec.key == rerank.late)
        # with vectors of tokens, as a store keeps them
        spec = replace(spec, outputs=("dense", "tokens"), token_precision="int8")  # noqa: S106  # no password
        card = read_card(spec, resolve(spec, policy_of(settings), lambda _: None), "cpu")
        yield Reranking(
            f"{spec.key} maxsim",
            lambda first: late_scores(encoder, card, subject.judged.texts, queries, first),
            rerank.share,
            rerank.depth,
        )
        return
    with free_devices(settings, listener.events) as on, rerankers(settings, rerank.names, on) as models:

        def rescore(first: Lists) -> Rescored:
            began = time.process_time()
            pairs = [
                (query, subject.judged.texts[id]) for query, hits in zip(queries, first, strict=True) for id in hits
            ]
            scores = iter(models.score(pairs, lambda done: encoder.tell(models.model, done, len(pairs))))
            took = 1000 * (time.process_time() - began) / len(first)
            return Rescored([{id: float(next(scores)) for id in hits} for hits in first], took)

        yield Reranking(",".join(rerank.names), rescore, rerank.share, rerank.depth)


def _tell_amounts(encoder: TextEncoder, subject: Subject, listener: Listener) -> None:
    """Tell how much there is to encode before it is encoded."""
    texts = list(subject.judged.texts.values())
    for spec, card in subject.models:
        amount = encoder.amount(spec, card, texts)
        if amount.missing:
            kept = amount.texts - amount.missing
            known = f" ({kept:,} more are kept)" if kept else ""
            listener.say(
                f"{amount.model}: {several(amount.missing, 'text')} to encode{known}, "
                f"{several(amount.tokens, 'token')}, about {duration(amount.seconds)}"
            )
