"""Random rosters, corpora, budgets and schedules through the engine: memory never runs short, no row is lost."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from acceptance.inputs import lengths_of, texts_of
from acceptance.models import CONFIGS
from acceptance.rounds import compute, masters_of
from acceptance.workbench import CEILING, Bench

from interlock.engine.compute.schedule import Schedule
from interlock.engine.record import events as ev


def plans(bench: Bench) -> Iterator[tuple[str, Any]]:
    names = [*CONFIGS] if bench.real else ["XLM-R-large", "Qwen3-0.6B"]
    cards = [*map(bench.card, names), bench.card("Qwen3-0.6B", eager=True)]
    masters = masters_of(bench)
    ooms, retries = bench.shortages()
    tried = rows = missing = highest = 0
    while tried < bench.scale.plans and not bench.spent:
        kind = bench.rng.choice(("chunks", "mixed", "short", "spikes"))
        roster, schedule = bench.rng.sample(cards, bench.rng.randint(1, 2)), bench.rng.choice(list(Schedule))
        budget = bench.rng.choice((2048, 8192, 16384, 65536))
        tried += 1
        with bench.part(f"plan {tried}: {', '.join(card.key for card in roster)}, {kind}, {schedule}, {budget}"):
            texts = texts_of(bench, lengths_of(bench, kind, bench.scale.plan_tokens))
            rows += len(texts) * len(roster)
            missing += len(texts) * len(roster)
            vectors, told = compute(bench, roster, texts, masters, budget=budget, schedule=schedule)
            missing -= sum(int(np.isfinite(each).all(1).sum()) for each in vectors)
            highest = max([highest, *_peaks(told)])
    now = bench.shortages()
    yield "plans", tried
    yield "rows", rows
    yield "highest_peak_bytes", highest
    if tried:
        yield "plans: out-of-memory errors", now[0] - ooms
        yield "plans: allocator retries", now[1] - retries
        yield "plans: bytes over the ceiling", max(0, highest - CEILING)
        yield "plans: rows without a vector", missing


def _peaks(told: Sequence[ev.AnyEvent]) -> Iterator[int]:
    for event in told:
        if isinstance(event, ev.LeaseReleased):
            yield from (receipt.peak.occupied for receipt in event.receipts)
