"""Random plans of `bench/plans.py`, a few of them: each goes well, and what would not be well is seen."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from bench.plans import Totals
from bench.scenarios.checks import wrongs
from bench.scenarios.plan import Plan, draw
from bench.scenarios.stage import Outcome, carry_out
from bench.scenarios.workshop import Workshop, workshop
from interlock.engine.compute.ladder import Rung
from interlock.engine.compute.schedule import Schedule
from interlock.engine.gpu.faults import MENU
from interlock.engine.record import events as ev

FEW, MANY = range(160, 200), range(150, 250)
"""Seeds; in the few every fault strikes and every rung is climbed too."""


@pytest.fixture(scope="module")
def shop() -> Iterator[Workshop]:
    with workshop() as shop:
        yield shop


@pytest.fixture(scope="module", params=[FEW, pytest.param(MANY, marks=pytest.mark.nightly)], ids=len)
def told(request: pytest.FixtureRequest, shop: Workshop) -> dict[str, object]:
    """What these plans came to, and under `wrongs` everything that should not be, with its seed."""
    totals, found = Totals(), []
    for seed in request.param:
        outcome = carry_out(draw(seed, shop.on_gpu), shop)
        these = wrongs(outcome)
        totals.add(outcome, these)
        found += [f"bench/plans.py --plans 1 --seed {seed}: {wrong}" for wrong in these]
    return {**totals.told(), "wrongs": found}


@pytest.fixture(scope="module")
def outcome(shop: Workshop) -> Outcome:
    """Of a plan that cannot give one row room, nor go to the CPU."""
    plan = Plan(
        seed=-1, models=("flat", "deep"), lengths=(600, 3, 3, 2, 40), split=2, batch_tokens=100, ceiling=80 << 20,
        totals=(160 << 20, 160 << 20), reserve=64 << 20, schedule=Schedule.EXCLUSIVE, window=0, cpu_fallback=False,
        halves=False, overflows=False, faults=("oom:25", "oom-over:50KiB", "leak@1:3MiB"), asked=(), stop=0,
    )  # fmt: skip
    return carry_out(plan, shop)


def test_nothing_is_wrong_with_any_random_plan(told):
    assert told["wrongs"] == []


def test_every_fault_strikes_and_every_rung_is_climbed_in_random_plans(told):
    assert set(told["plans_by_fault_that_struck"]) == set(MENU)
    assert set(told["steps_by_rung"]) == set(Rung) - {Rung.PARK}
    assert set(told["plans_by_schedule"]) == set(Schedule)
    assert min(told[name] for name in ("rows_parked", "passes_refused", "leaks_reported", "plans_stopped")) > 0


def test_a_gpu_lost_while_weights_that_stream_wrongly_come_back_costs_no_pass(shop):
    plan = Plan(
        seed=-2, models=("flat", "deep"), lengths=(1,) * 10, split=10, batch_tokens=16, ceiling=46_181_590,
        totals=(46_181_590, 88_130_630), reserve=46_137_344, schedule=Schedule.SHARED, window=0, cpu_fallback=True,
        halves=False, overflows=False, faults=("leak@cuda:1:1KiB", "skew:5", "lose:2"), asked=(), stop=7,
    )  # fmt: skip
    outcome = carry_out(plan, shop)
    assert wrongs(outcome) == []
    assert outcome.of(ev.DeviceLost)


def test_the_same_seed_draws_the_same_plans(shop):
    assert [draw(seed, shop.on_gpu) for seed in range(20)] == [draw(seed, shop.on_gpu) for seed in range(20)]


def test_another_seed_draws_another_plan(shop):
    plans = [repr(replace(draw(seed, shop.on_gpu), seed=0)) for seed in range(20)]
    assert len(set(plans)) == 20


def without(kind: type[ev.Event]) -> Callable[[Outcome], None]:
    """As if the first event of a kind had not been told."""

    def damage(outcome: Outcome) -> None:
        outcome.events.remove(outcome.of(kind)[0])

    return damage


def lost_row(outcome: Outcome) -> None:
    outcome.puts[0][1] = 0


def row_written_twice(outcome: Outcome) -> None:
    outcome.puts[0][1] = 2


def cell_committed_twice(outcome: Outcome) -> None:
    outcome.events.append(outcome.of(ev.BatchCommitted)[0])


def rows_in_another_order(outcome: Outcome) -> None:
    written = [row for row in outcome.puts[0] if np.isfinite(outcome.vectors[0][row]).all()]
    outcome.vectors[0][written] = outcome.vectors[0][written[::-1]]


def vector_gone(outcome: Outcome) -> None:
    outcome.vectors[1][1] = np.nan


def failure_in_silence(outcome: Outcome) -> None:
    outcome.unheard.append("pass 0, batch 0: 2 forwards failed")


def error_escaped(outcome: Outcome) -> None:
    outcome.error = MemoryError("CUDA out of memory")


def error_as_a_reason(outcome: Outcome) -> None:
    outcome.events.append(ev.PassFailed(model_pass=0, model="flat", reason="OutOfMemoryError: CUDA out of memory"))


def given_up_for_nothing(outcome: Outcome) -> None:
    outcome.plan = replace(outcome.plan, cpu_fallback=True)


def mitigated_for_nothing(outcome: Outcome) -> None:
    outcome.plan = replace(outcome.plan, faults=())


def kept_weights(outcome: Outcome) -> None:
    outcome.devices[1].faults = []


def over_the_ceiling(outcome: Outcome) -> None:
    outcome.devices[1].highest = outcome.plan.ceiling + 1


def leased_twice(outcome: Outcome) -> None:
    lease = outcome.of(ev.LeaseGranted)[0]
    outcome.events.insert(outcome.events.index(lease), lease.__class__(**{**_fields(lease), "lease": "another"}))


def _fields(event: ev.Event) -> dict[str, object]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lost_row, "pass 0: 1 rows lost"),
        (row_written_twice, "rows written twice"),
        (cell_committed_twice, "cells committed twice"),
        (rows_in_another_order, "off by"),
        (vector_gone, "NaN is True, parked is False"),
        (without(ev.RowParked), "NaN is True, parked is False"),
        (without(ev.Mitigated), "mitigations that the summary lacks: Counter(), or has too many"),
        (without(ev.LeaseReleased), "a lease has no receipt"),
        (without(ev.EnsemblePassCompleted), "only the passes"),
        (failure_in_silence, "2 forwards failed"),
        (error_escaped, "the rounds raised MemoryError"),
        (error_as_a_reason, "for no reason that a person can use"),
        (given_up_for_nothing, "given up although there is the CPU"),
        (mitigated_for_nothing, "mitigated for nothing"),
        (kept_weights, "bytes stayed on cuda:1"),
        (over_the_ceiling, "cuda:1 held"),
        (leased_twice, "is leased 2 times at once"),
    ],
)
def test_something_wrong_in_a_plan_is_seen(outcome, damage, said):
    assert wrongs(outcome) == []
    damaged = copy.copy(outcome)
    damaged.events, damaged.unheard = [*outcome.events], [*outcome.unheard]
    damaged.puts, damaged.vectors = copy.deepcopy(outcome.puts), copy.deepcopy(outcome.vectors)
    damaged.devices = [copy.copy(device) for device in outcome.devices]
    damage(damaged)
    assert any(said in wrong for wrong in wrongs(damaged))
