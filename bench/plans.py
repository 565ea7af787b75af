"""Random plans on simulated GPUs: whatever goes wrong, no row is lost, no error of memory escapes, and all is told.

A plan is drawn from its seed and carried out on two devices that are not there; then everything that must hold is
checked (`scenarios/`), vectors against those of each row alone on the CPU. Seconds here are not those of any GPU.
"""

import argparse
import faulthandler
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import evidence, machine
from bench.scenarios.checks import wrongs
from bench.scenarios.crews import carry_out_on, crew_wrongs, draw_crew
from bench.scenarios.plan import draw
from bench.scenarios.stage import Outcome, carry_out
from bench.scenarios.workshop import Workshop, workshop
from interlock.engine.record import events as ev

SOURCES = ("engine/gpu", "engine/models", "engine/compute")
ON_NODES = (*SOURCES, "engine/compute/cluster")
PATIENCE = 180
"""Seconds after which a plan hangs: every thread's stack is shown, and that is the end."""


def many(first: int, count: int, shop: Workshop, show: Callable[[str], object] = print) -> dict[str, Any]:
    """Run the plans of so many seeds from `first` on; what happened in numbers."""
    began, totals = time.monotonic(), Totals()
    for seed in range(first, first + count):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        outcome = carry_out(draw(seed, shop.on_gpu), shop)
        found = wrongs(outcome)
        totals.add(outcome, found)
        for wrong in found:
            show(f"--seed {seed} --plans 1: {wrong}")
        if found:
            show(f"  {outcome.plan}")
        del outcome
        if totals.plans % 1000 == 0:
            show(f"{totals.plans} plans, {totals.failures} failed, {time.monotonic() - began:.0f} s")
    faulthandler.cancel_dump_traceback_later()
    return {"seed": first, **totals.told(), "seconds_on_this_host": round(time.monotonic() - began, 1)}


def on_nodes(first: int, count: int, shop: Workshop, show: Callable[[str], object] = print) -> dict[str, Any]:
    """The same on several nodes, which come, go, stall and lie."""
    began, failures, machines, befell = time.monotonic(), 0, Counter[int](), Counter[str]()
    counts: Counter[str] = Counter()
    for seed in range(first, first + count):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        outcome = carry_out_on(draw_crew(seed, shop), shop)
        found = crew_wrongs(outcome)
        failures += bool(found)
        machines[outcome.crew.machines] += 1
        befell.update(outcome.heard.befell)
        counts.update({name: len(outcome.of(kind)) for name, kind in TOLD.items()})
        counts["rows_computed_again"] += sum(event.rows for event in outcome.of(ev.NodeLost))
        counts["rows_doubled"] += sum(event.rows for event in outcome.of(ev.BatchesDoubled))
        for wrong in found:
            show(f"--nodes --seed {seed} --plans 1: {wrong}")
    faulthandler.cancel_dump_traceback_later()
    return {
        "seed": first,
        "plans": count,
        "failures": failures,
        **counts,
        "plans_by_machines": {str(number): times for number, times in sorted(machines.items())},
        "happenings": dict(sorted(befell.items())),
        "seconds_on_this_host": round(time.monotonic() - began, 1),
    }


TOLD = {
    "batches": ev.BatchCommitted,
    "leases": ev.LeaseGranted,
    "nodes_joined": ev.NodeJoined,
    "nodes_lost": ev.NodeLost,
    "times_doubled": ev.BatchesDoubled,
    "controls_reached": ev.ControlReached,
    "rows_parked": ev.RowParked,
    "passes_refused": ev.PassFailed,
}
"""What is counted of plans on nodes."""


@dataclass
class Totals:
    """Counts over plans."""

    plans: int = 0
    failures: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    drawn: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    mitigated: Counter[str] = field(default_factory=Counter)
    schedules: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome, found: Sequence[str]) -> None:
        self.plans += 1
        self.failures += bool(found)
        self.drawn.update(outcome.plan.kinds)
        self.struck.update(set().union(*(device.struck for device in outcome.devices)))
        self.schedules[outcome.plan.schedule] += 1
        self.mitigated.update(event.rung for event in outcome.of(ev.Mitigated))
        self.counts.update(_counts(outcome))

    def told(self) -> dict[str, Any]:
        return {
            "plans": self.plans,
            "failures": self.failures,
            **self.counts,
            "plans_by_fault_drawn": dict(sorted(self.drawn.items())),
            "plans_by_fault_that_struck": dict(sorted(self.struck.items())),
            "steps_by_rung": dict(sorted(self.mitigated.items())),
            "plans_by_schedule": dict(sorted(self.schedules.items())),
        }


def _counts(outcome: Outcome) -> dict[str, int]:
    batches = outcome.of(ev.BatchCommitted)
    parked = len(outcome.of(ev.RowParked))
    return {
        "rows": sum(sum(each.values()) for each in outcome.puts),
        "batches": len(batches),
        "forwards": sum(event.forwards for event in batches),
        "leases": len(outcome.of(ev.LeaseGranted)),
        "out_of_memory_errors_inside": sum(each.ooms for each in outcome.devices),
        "rows_parked": parked,
        "passes_refused": len(outcome.of(ev.PassFailed)),
        "devices_lost": len(outcome.of(ev.DeviceLost)),
        "leaks_reported": len(outcome.of(ev.ResidueFound)),
        "controls_applied": len(outcome.of(ev.ControlApplied)),
        "plans_mitigated": bool(outcome.of(ev.Mitigated)),
        "plans_with_parked_rows": bool(parked),
        "plans_calm": outcome.plan.calm,
        "plans_stopped": outcome.sessions > 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, help="of the first plan; the next one has the next")
    parser.add_argument("--nodes", action="store_true", help="on several nodes, which come, go, stall and lie")
    machine.quick(parser, plans=2)
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    with workshop() as shop:
        result = (on_nodes if options.nodes else many)(
            options.seed, options.plans, shop, lambda text: print(text, flush=True)
        )
    print(json.dumps(result, indent=1))
    evidence.keep(result, options.json, ON_NODES if options.nodes else SOURCES)
    sys.exit(bool(result["failures"]))


if __name__ == "__main__":
    main()
