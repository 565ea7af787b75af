"""Scores pairs of a query and a text with cross-encoders: the devices they may use, the order in which they are tried,
and a file of pairs from its first line to its last score.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from interlock.engine.compute.context import Granted
from interlock.engine.compute.pairs.rows import Pair
from interlock.engine.compute.pairs.scorer import PairPlan
from interlock.engine.corpus.questions import PairLine, read_pairs
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.flows import EventSink, Listener
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.devices import choose
from interlock.engine.gpu.lease import Lessor
from interlock.engine.gpu.locks import holder
from interlock.engine.models import members, registry
from interlock.engine.models.assets import Policy
from interlock.engine.record.events import Warned
from interlock.engine.record.words import several
from interlock.engine.search.ask import MAXSIM
from interlock.engine.search.combine import LATE_SHARE
from interlock.engine.search.rerank import Rerank, Rerankers
from interlock.engine.settings import Configuration

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
    own = settings.settings
    specs = members.rerankers(registry.extended(settings.models), names, others)
    policy = Policy(offline=own.offline, pickles=own.allow_pickle)
    return Rerankers(specs, policy, on)


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


def plan_file(
    settings: Configuration, file: Path, names: Sequence[str], events: EventSink
) -> tuple[str, list[PairPlan]]:
    """Plan the pairs of a file, window by window: the model that would score them, and what that would take."""
    with free_devices(settings, events) as on, rerankers(settings, names, on) as models:
        plans = [models.plan(_pairs(lines)) for lines in _windows(read_pairs(file))]
        return models.model, plans


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
