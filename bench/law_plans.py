"""What the memory law from a configuration loses against one fitted to traces: generated plans, pure computation.

`results/traced-laws.json` holds laws that were fitted to traces of published networks, of 20 M to 8 B weights.

Each plan draws a model, a card, a ceiling, what other processes hold (and take in the middle of the pass), a batch
budget and a mix of text lengths. The pass is then computed on paper by both laws, batch by batch, with the engine's own
calibration, cuts and order. What a forward really takes is the traced law times an error of the card that neither law
knows, up to 6 %, and of every forward, up to 3 %. Time is operations by the card's pace, a launch for each kernel, and
copies of streamed layers; a forward that runs out of memory has cost half of itself and a clean-up. Nothing here is a
measurement of a card.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from bench import evidence, machine, tables
from interlock.engine.compute.job import plan as batches_of
from interlock.engine.compute.ladder import slices
from interlock.engine.gpu.device import RESERVE
from interlock.engine.models.memory import Calibration, Law, law_of
from interlock.engine.models.networks.kernels import Kernel
from interlock.engine.models.networks.sizes import cost_of, sizes_of

SOURCES = ("engine/models/memory.py", "engine/models/layout.py")
TRACED = evidence.RESULTS / "traced-laws.json"
MIB, GIB = 1 << 20, 1 << 30
CARDS = {  # bytes, operations a second in halves, capability
    "8 GiB": (8 * GIB, 20e12, 7), "12 GiB": (12 * GIB, 25e12, 8), "T4": (15095 * MIB, 25e12, 7),
    "L4": (22563 * MIB, 60e12, 8), "24 GiB": (24 * GIB, 70e12, 8), "A100": (40326 * MIB, 150e12, 8),
    "H100": (81004 * MIB, 400e12, 8),
}  # fmt: skip
CONTEXT, COPY, HOST, LAUNCH, CLEANUP = 400 * MIB, 12e9, 4e11, 6e-6, 0.05
KERNELS = 15
"""Launches of a layer."""


class Traced:
    """A law fitted to traces, as it stands in the file: phases that compete, preludes, masks and windows."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._about = about
        self.weights, self.slots = int(about["weights"]), int(about.get("slots", 0))

    def activations(self, tokens: int, longest: int) -> int:
        return round(_traced(self._about, tokens, longest))


def _traced(law: Mapping[str, Any], tokens: int, longest: int) -> float:
    if law.get("beyond") and longest > law.get("reach", 0):
        aligned = law.get("aligned")
        return _traced(aligned if aligned and longest % aligned.get("step", 1) == 0 else law["beyond"], tokens, longest)
    longest += -longest % law.get("step", 1)
    widest = max(fixed + slope * longest for fixed, slope in law["phases"])
    found = law.get("constant", 0) + (law.get("line", 0) + law.get("square", 0) * longest) * longest + tokens * widest
    head = law.get("head") or {}
    after = (
        head.get("constant", 0)
        + head.get("token", 0) * tokens
        + head.get("part", 0) * min(tokens, head.get("tokens", 0))
    )
    return max(found, after, _traced(law["prelude"], tokens, longest) if law.get("prelude") else 0)


@dataclass
class Plan:
    """One pass to be computed: a model, where, and what."""

    model: Mapping[str, Any]
    card: str
    room: int
    """Bytes beside the context, under the ceiling and beside what others hold."""
    taken: int
    """Bytes that others take for a quarter of the batches."""
    lengths: Any
    budget: int
    error: float
    noise: Any

    @property
    def batches(self) -> list[Any]:
        """Token lengths of the rows of each batch, longest first."""
        found = batches_of(np.arange(len(self.lengths)), self.lengths, self.budget)
        return [self.lengths[batch.rows] for batch in found.batches]


@dataclass
class Outcome:
    """What became of a pass."""

    seconds: float = 0.0
    ooms: int = 0
    streamed: int = 0
    """Layers that were copied for a forward."""
    on_host: int = 0
    """Texts computed on the CPU."""
    forwards: int = 0
    place: str = ""
    """Where it begins: `whole` on the GPU, `streamed`, or on the `host` because the GPU was refused."""


def draw(dice: np.random.Generator, models: list[Mapping[str, Any]]) -> Plan:
    card = list(CARDS)[dice.integers(len(CARDS))]
    total, _, major = CARDS[card]
    fitting = [each for each in models if each["capability"][0] == major]
    model = fitting[dice.integers(len(fitting))]
    others = int(dice.uniform(0, 0.6) * total) if dice.random() < 0.4 else 0
    ceiling = min(total, int(dice.choice([2, 4, 6, 8, 12, 16, 24, 40, 80])) * GIB)
    room = min(ceiling, total - others) - CONTEXT - RESERVE
    median = float(np.exp(dice.uniform(np.log(20), np.log(900))))
    lengths = np.clip(dice.lognormal(np.log(median), dice.uniform(0.1, 1.0), 1500), 3, model["limit"]).astype(np.int64)
    if dice.random() < 0.3:
        lengths[: dice.integers(1, 20)] = model["limit"]
    taken = int(dice.uniform(0, 0.4) * room) if dice.random() < 0.15 and room > 0 else 0
    budget, error, noise = int(2 ** dice.integers(11, 18)), dice.uniform(0.98, 1.06), dice.uniform(0.97, 1.0, 4096)
    return Plan(model, card, room, taken, np.sort(lengths)[::-1], budget, error, noise)


def computed(plan: Plan, law: Any, truth: Traced) -> Outcome:
    """Compute the pass on paper by one law; `truth` says what is really taken."""
    out, known, model = Outcome(), Calibration(), plan.model
    padded, cost, sizes = model["way"] != "packed", cost_of(model["config"], model["kind"]), sizes_of(model["config"])
    assert cost and sizes
    rate = CARDS[plan.card][1] * (0.5 if model["dtype"] == "float32" else 1.0)

    def seconds(rows: Any, tokens: int, *, host: bool = False, copied: bool = False) -> float:
        work = cost.per_token * tokens + cost.per_pair * float((rows.astype(float) ** 2).sum())
        least = sizes.depth * KERNELS * LAUNCH
        return work / HOST if host else max(work / rate + least, truth.weights / COPY if copied else 0.0)

    longest = int(plan.lengths[0])
    alone = known.activations(law, longest, longest)
    whole, streams = law.weights + alone <= plan.room, law.slots > 0 and law.slots + alone <= plan.room
    out.place = "whole" if whole else "streamed" if streams else "host"
    batches = plan.batches
    for number, rows in enumerate(batches):
        disturbed = len(batches) // 4 <= number < len(batches) // 2
        room = plan.room - (plan.taken if disturbed else 0)
        pending, streamed, retried = [(rows, False)], not whole, False
        if not whole and not streams:
            out.seconds, out.on_host = out.seconds + seconds(rows, int(rows.sum()), host=True), out.on_host + len(rows)
            continue
        first = True
        while pending:
            piece, copied = pending.pop(0)
            copied = copied or streamed
            free = room - (truth.slots if copied else truth.weights)
            top, tokens = int(piece[0]), len(piece) * int(piece[0]) if padded else int(piece.sum())
            allowed = known.most_tokens(law, top, free)
            cut = slices(piece.tolist(), allowed, padded=padded) if tokens > allowed else [slice(0, len(piece))]
            if first and len(cut) > 1:
                pending, first = [(piece[part], copied) for part in cut] + pending, False
                continue
            foreseen = tokens > allowed
            need = truth.activations(tokens, top) * plan.error * plan.noise[out.forwards % 4096]
            out.forwards += 1
            short = need > free + RESERVE  # the wall stands at the ceiling itself
            if not foreseen and not short:
                out.seconds += seconds(piece, tokens, copied=copied)
                out.streamed += sizes.depth * copied
                if not copied:
                    known = known.observed(law.activations(tokens, top), round(need))
                continue
            if not foreseen:
                out.ooms += 1
                out.seconds += seconds(piece, tokens, copied=copied) / 2 + CLEANUP
                known = known.strained()
            if len(piece) > 1:
                half = len(piece) // 2
                pending = [(piece[:half], copied), (piece[half:], copied), *pending]
            elif not copied and law.slots:
                pending, streamed = [(piece, True), *pending], True  # until the batch has ended
            elif foreseen and not short and not retried:
                pending, retried = [(piece, copied), *pending], True
            else:
                out.seconds, out.on_host = out.seconds + seconds(piece, tokens, host=True), out.on_host + 1
    return out


def measure(options: argparse.Namespace) -> dict[str, Any]:
    models = json.loads(TRACED.read_text())["laws"]
    dice, told = np.random.default_rng(options.seed), []
    while len(told) < options.plans:
        plan = draw(dice, models)
        about, truth = plan.model, Traced(plan.model["law"])
        small = estimated(about)
        told.append((plan, {"traced": computed(plan, truth, truth), "small": computed(plan, small, truth)}))
        if len(told) % 2000 == 0:
            print(f"{len(told)} plans", flush=True)
    found = [summed(name, told, of) for name, of in GROUPS.items()]
    goals = {"texts a second of all plans, median": machine.goal(found[0]["pace_median"], 0.99)}
    return {"seed": options.seed, "plans": len(told), "tables": found, "goals": goals}


def estimated(about: Mapping[str, Any]) -> Law:
    """Estimate the law of a model of the file from its configuration."""
    size, packed = 4 if about["dtype"] == "float32" else 2, about["way"] == "packed"
    how = {"attends": about["attention"], "kernel": Kernel[about["kernel"]], "kind": about["kind"]}
    return law_of(about["config"], size, packed=packed, **how)


Told = tuple[Plan, Mapping[str, Outcome]]
GROUPS: Mapping[str, Callable[[Plan, Outcome], bool]] = {
    "all": lambda plan, traced: True,
    "rows end to end": lambda plan, traced: plan.model["way"] == "packed",
    "padded rows": lambda plan, traced: plan.model["way"] == "padded",
    "eager attention": lambda plan, traced: plan.model["way"] == "eager",
    "memory binds": lambda plan, traced: traced.forwards > len(plan.batches) or traced.place != "whole",
    "neighbours come": lambda plan, traced: plan.taken > 0,
}


def summed(name: str, told: list[Told], chosen: Callable[[Plan, Outcome], bool]) -> dict[str, Any]:
    """One row of the table: sums over the plans of a group, and how single plans changed."""
    group = [outcomes for plan, outcomes in told if chosen(plan, outcomes["traced"])]
    pace = [each["traced"].seconds / each["small"].seconds for each in group]
    moved = [each for each in group if each["traced"].place != each["small"].place]
    total = {law: [each[law] for each in group] for law in ("traced", "small")}
    return {
        "group": name, "plans": len(group),
        "pace_median": round(float(np.median(pace)), 4), "pace_worst": round(min(pace), 3),
        "pace_p1": round(float(np.quantile(pace, 0.01)), 3), "pace_p99": round(float(np.quantile(pace, 0.99)), 3),
        "placed_otherwise": len(moved),
        **{f"refused_{law}": sum(each.place == "host" for each in total[law]) for law in total},
        **{f"{what}_{law}": sum(getattr(each, what) for each in total[law])
           for what in ("forwards", "ooms", "streamed", "on_host") for law in total},
    }  # fmt: skip


def show(result: Mapping[str, Any]) -> None:
    machine.table(tables.LAW_PLANS, list(tables.law_plans(result)))
    machine.goals(result["goals"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=27)
    machine.quick(parser, plans=40)
    evidence.gather(parser, measure, show, SOURCES)
