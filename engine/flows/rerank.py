"""Scores pairs of a query and a text with cross-encoders: the devices they may use, the order in which they are tried,
and a file of pairs from its first line to its last score.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.engine.compute.context import Granted
from interlock.engine.compute.pairs.rows import Pair
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.flows import EventSink, Listener, no_events
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.devices import choose
from interlock.engine.gpu.lease import Lessor
from interlock.engine.gpu.locks import holder
from interlock.engine.models import members, registry
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.record.events import Warned
from interlock.engine.record.words import several
from interlock.engine.search.ask import MAXSIM
from interlock.engine.search.combine import LATE_SHARE
from interlock.engine.search.questions import PairLine, read_pairs
from interlock.engine.search.rerank import Rerank, Rerankers
from interlock.engine.settings import Configuration

if TYPE_CHECKING:
    from interlock.engine.compute.parts.tokens import TokenRows
    from interlock.engine.evaluation.encoding import TextEncoder
    from interlock.engine.evaluation.judgements import Lists
    from interlock.engine.evaluation.ways import Reranking
    from interlock.engine.evaluation.weighing import Material

Roster = Sequence[tuple[registry.ModelSpec, ModelCard]]
WINDOW = 8192
"""Pairs that are tokenised, sorted and scored together, at least."""


@contextmanager
def free_devices(settings: Configuration, events: EventSink) -> Iterator[Granted]:
    """Find the devices of the settings; GPUs that a run holds are left to it, with a warning."""
    own = settings.settings
    found = choose(own.devices, own.faults)
    held = {device.name: by for device in found if (by := holder(device))}
    host = next((device for device in found if device.kind == "cpu"), None) or CpuDevice()
    gpus = [device for device in found if device is not host and device.name not in held]
    with events(found[0].kind) as emit:
        for name, by in held.items():
            emit(Warned(message=f"{name} is left to {by}: computing elsewhere"))
        lessor = Lessor([*gpus, host], *own.limits)
        yield Granted(gpus, host, lessor, emit, own.cpu_fallback)


def rerankers(settings: Configuration, names: Sequence[str], on: Granted, others: Sequence[str] = ()) -> Rerankers:
    """Open cross-encoders in their order; `others` are offered where a name means nothing."""
    specs = members.rerankers(registry.extended(settings.models), names, others)
    return Rerankers(specs, policy_of(settings), on)


def policy_of(settings: Configuration) -> Policy:
    """How far to go for models."""
    return Policy(offline=settings.settings.offline, pickles=settings.settings.allow_pickle)


def rerank_of(settings: Configuration, names: Sequence[str], share: float | None, depth: int | None) -> Rerank | None:
    """Make what reranks of what was given: a dense model or `maxsim` means late interaction, other names are
    cross-encoders. Raises UsageError for what is out of bounds, or says nothing without a name."""
    given = {name: value for name, value in (("share", share), ("depth", depth)) if value is not None}
    if not names:
        if given:
            raise UsageError(f"--rerank-{next(iter(given))} needs a model: name it in --rerank")
        return None
    known = registry.extended(settings.models)
    names = [registry.canonical(known, name) for name in names]
    late = [name for name in names if name == MAXSIM or (name in known and known[name].kind == "dense")]
    if late and len(names) > 1:
        raise UsageError(f"--rerank: {late[0]} compares token vectors, which needs no other model: name it alone")
    usual = {"share": LATE_SHARE} if late else {}
    return Rerank(names, late[0] if late else "", **{**usual, **given})  # type: ignore[arg-type]


def checked_reranker(settings: Configuration, names: Sequence[str], roster: Roster) -> Rerank | None:
    """What is to rerank, if anything: late interaction by a dense model of the roster, or cross-encoders. Raises
    UsageError, before anything is encoded, for a name that is neither, UnavailableError for what cannot be had."""
    rerank = rerank_of(settings, names, None, None)
    if rerank and rerank.late:
        dense = [spec.key for spec, _ in roster if "dense" in spec.gives]
        if not dense or rerank.late not in (MAXSIM, *dense):
            raise UsageError(f"--rerank {rerank.late}: not a model of the roster: add it to --roster")
        return replace(rerank, late=dense[0] if rerank.late == MAXSIM else rerank.late)
    if rerank:
        with free_devices(settings, no_events) as on, rerankers(settings, names, on) as models:
            models.check()
    return rerank


def with_tokens(
    settings: Configuration, rerank: Rerank | None, roster: Roster
) -> tuple[registry.ModelSpec, ModelCard] | None:
    """The model of late interaction as it gives vectors of tokens too, as a store keeps them."""
    if not rerank or not rerank.late:
        return None
    spec = next(spec for spec, _ in roster if spec.key == rerank.late)
    spec = replace(spec, outputs=("dense", "tokens"), token_precision="int8")  # noqa: S106  # no password
    return spec, read_card(spec, resolve(spec, policy_of(settings), lambda _: None), "cpu")


@contextmanager
def reranking_of(
    settings: Configuration,
    rerank: Rerank,
    queries: Sequence[str],
    asked: "TokenRows | None",
    texts: Mapping[str, str],
    encoder: "TextEncoder",
    late: tuple[registry.ModelSpec, ModelCard] | None,
    material: "Material",
    listener: Listener,
) -> "Iterator[Reranking]":
    """Open what reranks the hits of `queries` [n] among `texts`, each pair once: cross-encoders, or `late` interaction
    by the vectors of the queries' tokens (`asked`) and of the texts', which are there or computed for candidates."""
    from interlock.engine.evaluation.encoding import late_scores
    from interlock.engine.evaluation.ways import Reranking, Rescored, each_once

    if late:
        side = next(side for side in material.dense if side.name == late[1].key)

        def compare(first: "Lists") -> Rescored:
            wanted = sorted({id for hits in first for id in hits}) if side.tokens is None else material.ids
            tokens = side.tokens or encoder.documents(*late, [texts[id] for id in wanted]).rows.tokens
            assert tokens is not None and asked is not None, "it gave vectors of tokens before"
            return late_scores(tokens, {id: at for at, id in enumerate(wanted)}, asked, first)

        yield Reranking(f"{late[0].key} maxsim", each_once(compare), rerank.share, rerank.depth)
        return
    with free_devices(settings, listener.events) as on, rerankers(settings, rerank.names, on) as models:

        def rescore(first: "Lists") -> Rescored:
            began = time.process_time()
            pairs = [(query, texts[id]) for query, hits in zip(queries, first, strict=True) for id in hits]
            scores = iter(models.score(pairs, lambda done: encoder.tell(models.model, done, len(pairs))))
            took = 1000 * (time.process_time() - began) / len(first)
            return Rescored([{id: float(next(scores)) for id in hits} for hits in first], took)

        yield Reranking(",".join(rerank.names), each_once(rescore), rerank.share, rerank.depth)


def score_file(
    settings: Configuration, file: Path, names: Sequence[str], listener: Listener
) -> Iterator[tuple[PairLine, list[float]]]:
    """Score the pairs of a file: each of its lines with the scores of its texts, in their order.

    Raises UsageError for a bad line before anything is computed, UnavailableError where no model can be had, and
    InterlockError where a second one would have to go on: scores of two models cannot be compared.
    """
    total = sum(len(line.texts) for line in read_pairs(file))
    with free_devices(settings, listener.events) as on, rerankers(settings, names, on) as models:
        done, first = 0, ""
        for lines in _windows(read_pairs(file)):
            pairs = _pairs(lines)

            def tell(count: int, before: int = done) -> None:
                listener.progress(models.model, before + count, total)

            scores = [float(score) for score in models.score(pairs, tell)]
            if first not in ("", models.model):
                raise InterlockError(
                    f"{first} scored the first {several(done, 'pair')} of {file} and not the others, and scores of two "
                    f"models cannot be compared: name --model {models.model} alone"
                )
            first = models.model
            done += len(pairs)
            for line in lines:
                own, scores = scores[: len(line.texts)], scores[len(line.texts) :]
                yield line, own


def _pairs(lines: Sequence[PairLine]) -> list[Pair]:
    return [(line.query, text) for line in lines for text in line.texts]


def _windows(lines: Iterator[PairLine]) -> Iterator[list[PairLine]]:
    """Lines in lists of `WINDOW` pairs at least, but for the last."""
    for first in lines:
        window, pairs = [first], len(first.texts)
        while pairs < WINDOW and (line := next(lines, None)):
            window.append(line)
            pairs += len(line.texts)
        yield window
