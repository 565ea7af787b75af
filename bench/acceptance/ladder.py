"""The ladder under falling ceilings, told and untold: which rungs the engine takes, and what they do to the vectors.

Told, the run knows its ceiling and plans for it; untold, the allocator refuses what the law says is there, as if others
had taken it. The levels follow from the law, so that each asks for another rung; what ends on the CPU is short.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from acceptance.goals import Tree
from acceptance.inputs import least_cosine, texts_of
from acceptance.rounds import compute, masters_of
from acceptance.workbench import CEILING, Bench

from interlock.engine.compute.encoder import computed_tokens
from interlock.engine.compute.instance import first_calibration
from interlock.engine.compute.ladder import Rung
from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.gpu.device import RESERVE
from interlock.engine.models.card import ModelCard
from interlock.engine.models.masters import Masters
from interlock.engine.models.memory import law_for
from interlock.engine.record import events as ev

SHORT = (64, 32, 32, 16)
"""Tokens of the rows that may end on the CPU."""
ELSEWHERE = {
    Rung.RELOCATE.value: "needs a second GPU",
    Rung.FLOAT32.value: "not asked for by memory, but by vectors that are not finite",
}
"""Rungs that are not to be seen here, and why."""
SEGMENT = 20 << 20
"""Bytes that an allocator takes at once for a middling tensor; in a rehearsal that is more than all tensors."""


@dataclass(frozen=True)
class _Try:
    """A ceiling of `size` bytes beside what is in use anyway."""

    name: str
    size: int
    told: bool = True
    cpu_fallback: bool = False
    short: bool = False


def ladder(bench: Bench) -> Iterator[tuple[str, Any]]:
    card, masters = bench.card("XLM-R-large", deep=True), masters_of(bench)
    longest = bench.scale.long_row
    lengths = [longest, longest // 2, *([longest // 8] * 4)]
    texts = {short: texts_of(bench, SHORT if short else lengths) for short in (False, True)}
    wanted = {short: _computed(bench, card, each, masters, None)[0] for short, each in texts.items()}
    done: list[Tree] = []
    tries = _tries(bench, card, lengths)
    for number, one in enumerate(tries):
        if bench.spent:
            break
        with bench.part(one.name, len(tries) - number):
            vectors, told = _computed(bench, card, texts[one.short], masters, one)
            done.append(_climbed(vectors, wanted[one.short], told))
            yield one.name, done[-1]
        bench.device.wall(CEILING)
    used = {rung for each in done for rung in each["rungs"]}
    never = [rung.value for rung in Rung if rung.value not in used and rung.value not in ELSEWHERE]
    yield "never_used", never
    yield from ELSEWHERE.items()
    if done:
        yield "ladder: rungs never used", len(never)
    if cosines := [each["least_cosine"] for each in done if each["least_cosine"] is not None]:
        yield "ladder: least cosine to the undisturbed", min(cosines)


def _tries(bench: Bench, card: ModelCard, lengths: Sequence[int]) -> list[_Try]:
    law, first = law_for(card, bench.device.kind), first_calibration(bench.device)
    tokens = computed_tokens(lengths, padded=False)
    whole, row = first.activations(law, tokens, max(lengths)), first.activations(law, max(lengths), max(lengths))
    slack = SEGMENT if bench.real else 0
    weights, slots = law.weights + slack, law.slots + slack
    return [
        _Try("told, room for pieces", weights + (whole + row) // 2),
        _Try("told, room for layers", slots + 2 * row),
        _Try("told, room for layers and a row", slots + row + row // 8),
        _Try("untold, room for pieces", weights + (whole + row) // 2, told=False),
        _Try("untold, room for layers", slots + 2 * row, told=False),
        _Try("untold, room for layers and half a row", slots + row // 2, told=False),
        _Try("untold, no room, nowhere to go", 0, told=False, short=True),
        _Try("untold, no room, the CPU to go to", 0, told=False, short=True, cpu_fallback=True),
    ]


def _computed(
    bench: Bench, card: ModelCard, texts: Sequence[str], masters: Masters, one: _Try | None
) -> tuple[Vectors, list[ev.AnyEvent]]:
    """The vectors of one batch with all texts, under what is tried (None: undisturbed), and the events."""
    bench.device.reclaim()
    low = bench.device.memory().occupied + one.size if one else CEILING
    (vectors,), told = compute(
        bench,
        [card],
        texts,
        masters,
        budget=len(texts) * bench.scale.long_row,
        ceiling=low + RESERVE if one and one.told else CEILING,
        cpu_fallback=bool(one and one.cpu_fallback),
        attached=(lambda: bench.device.wall(low)) if one and not one.told else (lambda: None),
    )
    return vectors, told


def _climbed(vectors: Vectors, wanted: Vectors, told: Sequence[ev.AnyEvent]) -> Tree:
    rungs = [event.rung for event in told if isinstance(event, ev.Mitigated)]
    parked = sum(isinstance(event, ev.RowParked) for event in told)
    rows = int(np.isfinite(vectors).all(1).sum())
    return {
        "rungs": sorted({str(rung) for rung in rungs} | ({Rung.PARK.value} if parked else set())),
        "streamed": any(event.streamed for event in told if isinstance(event, ev.ModelAttached)),
        "refused": [event.reason for event in told if isinstance(event, ev.PassFailed)],
        "rows": rows,
        "parked": parked,
        "least_cosine": least_cosine(vectors, wanted),
        "largest_difference": float(np.nanmax(np.abs(vectors - wanted))) if rows else None,
    }
