"""`interlock eval`: reads what is judged, has it encoded under a lease, judges it, and prints or writes the result."""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.console.matter import Asked, Matter, material_of, matter_of, policy_of
from interlock.console.writing import check_directory, progress, tell
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.record import atomic
from interlock.engine.record.words import safe, several
from interlock.engine.settings import Configuration

if TYPE_CHECKING:
    from interlock.engine.evaluation.agreement import Agreement
    from interlock.engine.evaluation.delivered import DeliveredCollection
    from interlock.engine.evaluation.gathering import TextEncoder
    from interlock.engine.evaluation.judging import Judge, Lists, Reranking
    from interlock.engine.evaluation.report import Evaluation, MeasuredWeights


def evaluate(settings: Configuration, options: argparse.Namespace) -> int:
    """Judge a roster, or plan that."""
    asked = Asked(
        options.data,
        options.rerank or (),
        options.limit,
        options.seed,
        options.queries,
        options.qrels,
        options.collection,
    )
    for flag, file in (("--json", options.json), ("--picture", options.picture), ("--calibrate", options.calibrate)):
        check_directory(flag, file)
    if options.calibrate and options.config:
        raise UsageError(
            f"--calibrate writes a file for --config, which takes one: drop it, and set roster in {options.config}"
        )
    if options.plan:
        print(planned(settings, asked))
        return ExitCode.COMPLETED
    from interlock.console.text.evaluation_text import agreement_text, evaluation_text
    from interlock.engine.evaluation.agreement import agreement_json
    from interlock.engine.evaluation.delivered import is_run
    from interlock.engine.evaluation.report import dumps

    if is_run(asked.data) and asked.queries is None and asked.qrels is None:
        if options.picture or options.calibrate or asked.rerank:
            raise UsageError(
                "--picture, --calibrate and --rerank need judgements: pass --queries and --qrels, or drop them"
            )
        agreed_on = agreed(settings, asked)
        if options.json:
            atomic.write_bytes(options.json, agreement_json(agreed_on))
        print(agreement_text(agreed_on))
        return ExitCode.COMPLETED
    source = _matter(settings, asked)
    found = _judged(settings, asked, source)
    if options.json:
        atomic.write_bytes(options.json, dumps(found))
    if options.picture:
        from interlock.console.text.evaluation_picture import picture

        atomic.write_bytes(options.picture, picture(found).encode())
    tell(evaluation_text(found, whole=not (sys.stdout and sys.stdout.isatty())))
    if options.calibrate:
        print(f"\n{_calibrated(options.calibrate, found, source.delivered)}")
    return ExitCode.COMPLETED


def _calibrated(file: Path, found: "Evaluation", delivered: "DeliveredCollection | None") -> str:
    """Write the proposed weights into a file that `--config` takes, and into the store of a run that was judged; what
    was done, and the command that uses the file."""
    if not found.weights:
        raise UsageError(
            "--calibrate: weights are chosen for two models or more by two training queries or more: drop it, or "
            "add to these"
        )
    atomic.write_bytes(file, f"roster = {json.dumps(found.roster)}\n".encode())
    told = [_calibrated_store(found.weights, delivered)] if delivered else []
    return "\n".join([*map(safe, told), f"next: interlock run CHUNKS --config {shlex.quote(str(file))}"])


def _calibrated_store(found: "MeasuredWeights", delivered: "DeliveredCollection") -> str:
    from interlock.engine.targets.calibrating import calibrate, is_store

    if not delivered.store:
        return f"run {delivered.run} wrote no store that could have these weights"
    if not is_store(delivered.store):
        return f"the store of run {delivered.run} is not at {delivered.store} any more, to have these weights"
    chosen = calibrate(delivered.store, delivered.run, found.weights, found.training)
    now, before = _listed(chosen.weights), _listed(chosen.before)
    return f"{delivered.store}: questions count {now} from now on, before {before} (--weights says otherwise)"


def _listed(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {weight:.2g}" for name, weight in weights.items())


def planned(settings: Configuration, asked: Asked) -> str:
    """Say what encoding the texts would take, model by model; of a run nothing but the queries is encoded."""
    from interlock.console.text.evaluation_text import amounts_text

    source = matter_of(settings, asked)
    texts = list(source.judged.texts.values()) if source.delivered is None else list(source.judged.queries.values())
    with _encoder(settings, source) as encoder:
        every = zip(source.specs, source.cards, strict=True)
        return amounts_text([encoder.amount(spec, card, texts) for spec, card in every])


def evaluated(settings: Configuration, asked: Asked) -> "Evaluation":
    """Judge a roster by a collection, or a run by queries of its own. Raises UsageError for what cannot be judged."""
    return _judged(settings, asked, _matter(settings, asked))


def _matter(settings: Configuration, asked: Asked) -> Matter:
    _need_measures()
    return matter_of(settings, asked)


def _judged(settings: Configuration, asked: Asked, source: Matter) -> "Evaluation":
    from interlock.engine.evaluation.gathering import parted
    from interlock.engine.evaluation.judging import Judge
    from interlock.engine.evaluation.report import evaluation
    from interlock.engine.vectors.fusion import Fusion

    parts = parted(source.judged, asked.limit, asked.seed)
    with _encoder(settings, source) as encoder:
        if source.delivered is None:
            _forecast(encoder, source, list(source.judged.texts.values()))
        material = material_of(settings, source, parts, encoder)
        _tell("judging")
        judge = Judge(material, Fusion(source.fusion), asked.seed)
        ways = [*judge.models(), *judge.fusions(), *judge.storage(), *judge.sparse, *judge.hybrids()]
        if asked.rerank:
            with _reranking(settings, asked.rerank, judge, source, encoder) as reranking:
                ways += judge.reranked(reranking)
        return evaluation(source.name, judge, ways, source.notes, list(source.weights))


def agreed(settings: Configuration, asked: Asked) -> "Agreement":
    """Compare the models of a run that nobody has judged."""
    from interlock.engine.evaluation.agreement import agreement
    from interlock.engine.evaluation.delivered import read_delivered

    found = read_delivered(asked.data, asked.collection)
    weights = [entry.weight for entry in found.roster if entry.model in found.dense]
    if len(weights) < 2:
        raise UsageError(f"run {found.run} has one dense model: pass --queries and --qrels, or name a run with two")
    return agreement(f"{found.run}, {found.name}", found.dense, weights, asked.limit, asked.seed)


@contextmanager
def _encoder(settings: Configuration, source: Matter) -> "Iterator[TextEncoder]":
    """What encodes texts, unless a run has delivered them, and queries, under the ceilings of the settings."""
    from interlock.console.reranking import Telemetry, lending
    from interlock.engine.compute.texts import TextDevices
    from interlock.engine.evaluation.gathering import TextEncoder
    from interlock.engine.gpu.cpu import CpuDevice
    from interlock.engine.gpu.lease import Lessor

    if settings.settings.threads:
        import torch

        torch.set_num_threads(settings.settings.threads)
    own, gpus = settings.settings, None
    with ExitStack() as stack:
        if source.delivered is None:
            lent = stack.enter_context(lending(settings, partial(Telemetry, None)))
            if lent.gpus:
                gpus = TextDevices(lent.gpus, lent.host, lent.lessor, lent.emit, own.cpu_fallback)
        hear = stack.enter_context(progress())
        yield TextEncoder(Lessor([CpuDevice()], own.ceiling, own.host_ceiling), hear, gpus)


@contextmanager
def _reranking(
    settings: Configuration, names: Sequence[str], judge: "Judge", source: Matter, encoder: "TextEncoder"
) -> "Iterator[Reranking]":
    """The reranker that is named: a cross-encoder, or late interaction by a model of the roster."""
    from interlock.console.reranking import Telemetry, blend_of, late_of, lending, rerankers
    from interlock.engine.evaluation.judging import Reranking, Rescored
    from interlock.engine.search.ask import MAXSIM

    late, blend, material = late_of(settings, names), blend_of(settings, names, None, None), judge.material
    queries = [material.queries[at] for at in material.tested]
    if late:
        from interlock.engine.evaluation.gathering import giving_tokens, late_scores
        from interlock.engine.models.assets import resolve
        from interlock.engine.models.card import read_card

        specs = [spec for spec in source.specs if "dense" in spec.gives]
        spec = next((giving_tokens(spec) for spec in specs if late in (MAXSIM, spec.key)), None)
        if spec is None:
            raise UsageError(f"--rerank {late}: not a model of the roster: add it to --roster")
        card = read_card(spec, resolve(spec, policy_of(settings), lambda _: None), "cpu")
        yield Reranking(
            f"{spec.key} maxsim",
            lambda first: late_scores(encoder, card, source.judged.texts, queries, first),
            blend.share,
            blend.depth,
        )
        return
    with lending(settings, partial(Telemetry, None)) as lent, rerankers(settings, names, lent) as models:

        def rescore(first: "Lists") -> Rescored:
            began = time.process_time()
            pairs = [
                (query, source.judged.texts[id]) for query, hits in zip(queries, first, strict=True) for id in hits
            ]
            scores = iter(models.score(pairs, lambda done: encoder.tell(models.model, done, len(pairs))))
            took = 1000 * (time.process_time() - began) / len(first)
            return Rescored([{id: float(next(scores)) for id in hits} for hits in first], took)

        yield Reranking(",".join(names), rescore, blend.share, blend.depth)


def _forecast(encoder: "TextEncoder", source: Matter, texts: Sequence[str]) -> None:
    """Tell how much there is to encode before it is encoded."""
    from interlock.engine.record.words import duration

    for spec, card in zip(source.specs, source.cards, strict=True):
        amount = encoder.amount(spec, card, texts)
        if amount.missing:
            kept = amount.texts - amount.missing
            known = f" ({kept:,} more are kept)" if kept else ""
            _tell(
                f"{amount.model}: {several(amount.missing, 'text')} to encode{known}, "
                f"{several(amount.tokens, 'token')}, about {duration(amount.seconds)}"
            )


def _need_measures() -> None:
    """Refuse before anything is computed where nothing could be measured."""
    from interlock.engine.evaluation.measures import measured

    measured([{"a": 1.0}], [{"a": 1}])


def _tell(text: str) -> None:
    print(f"interlock: {safe(text)}", file=sys.stderr, flush=True)
