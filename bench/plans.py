"""Random plans on simulated GPUs: whatever goes wrong, no row is lost, no error of memory escapes, and all is told.

A plan is drawn from its seed alone: models, lengths of rows, a ceiling that makes memory bind, a schedule, faults, and
what an operator asks for on the way. It is computed by the engine's own rounds on two devices that are not there, and
once more undisturbed on the CPU; then everything that must hold is checked. Seconds here are not those of any GPU.
"""

import argparse
import copy
import faulthandler
import gc
import itertools
import json
import math
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import torch.nn.functional as F

from engine.gpu.cpu import CpuDevice
from engine.gpu.device import Device
from engine.gpu.faults import MENU, parse
from engine.gpu.lease import Lessor
from engine.gpu.memory import Law
from engine.gpu.sim import Card, SimDevice
from engine.intake.collections import Collection
from engine.intake.corpus import Rows
from engine.models import weights
from engine.models.assets import Policy, resolve
from engine.models.card import ModelCard, read_card
from engine.models.masters import Masters
from engine.models.network import PackedEncoder
from engine.models.registry import ModelSpec
from engine.models.roster import entry_of
from engine.models.trace import law_for
from engine.models.weights import Master
from engine.passes.controls import Controls
from engine.passes.grid import Cells, lay_out
from engine.passes.rounds import Crew, Rounds
from engine.passes.schedule import Schedule
from engine.passes.seat import first_calibration
from engine.record import events as ev
from engine.record.state import RunState, fold
from engine.record.summary import Summary, summarise
from tests.builders import tiny_model

KIB, MIB = 1 << 10, 1 << 20
LONGEST = 512
TOLERANCE = 2e-6
MODELS: Mapping[str, Mapping[str, Any]] = {
    "one": {"seed": 1, "width": 16, "layers": 1, "heads": 2},
    "two": {"seed": 2, "width": 16, "layers": 2, "heads": 2, "pooling": "cls"},
    "padded": {
        "seed": 3, "kind": "qwen3", "width": 16, "layers": 1, "heads": 2, "pooling": "lasttoken",
        "head_dim": 8, "num_key_value_heads": 1,
    },
}  # fmt: skip
RESERVES = (*[64 * MIB] * 8, 44 * MIB, 44 * MIB, 26 * MIB, 22 * MIB, 4 * MIB)
"""Slack that no lease is promised: with less than the engine's own, segments of the allocator do not fit either."""
_fused = F.scaled_dot_product_attention
PATIENCE = 180
"""Seconds after which a plan hangs: every thread's stack is shown, and that is the end."""


@dataclass(frozen=True)
class Plan:
    """Everything about one plan; the same seed always draws the same."""

    seed: int
    models: tuple[str, ...]
    lengths: tuple[int, ...]
    split: int
    """Rows from here on are those of a second collection."""
    batch_tokens: int
    ceiling: int
    totals: tuple[int, int]
    reserve: int
    schedule: Schedule
    window: int
    cpu_fallback: bool
    faults: tuple[str, ...]
    asked: tuple[tuple[int, str, str], ...]
    """What is asked for when so many batches are committed: a control and its value."""

    @property
    def kinds(self) -> set[str]:
        """The faults by their names."""
        return {fault.partition(":")[0].partition("@")[0] for fault in self.faults}

    @property
    def calm(self) -> bool:
        """Whether nothing goes wrong but that memory is scarce."""
        return not self.faults and self.reserve == RESERVES[0]


class Workshop:
    """What all plans share: tiny models on disk, their networks, and their laws."""

    def __init__(self, place: Path) -> None:
        self.cards = {key: _card(place / key, options) for key, options in MODELS.items()}
        self._networks = {key: _light(weights.load(card)) for key, card in self.cards.items()}
        self.law = cache(lambda key, dtype, kind: law_for(self.cards[key], kind))
        for key in self.cards:  # what is imported late is imported now, and then left alone by the collector
            self.law(key, "float32", "sim")

    def laws(self, card: ModelCard, kind: str) -> Law:
        return self.law(card.key, card.dtype, kind)

    def network(self, card: ModelCard) -> torch.nn.Module:
        """A network of its own each time, without reading files."""
        return copy.deepcopy(self._networks[card.key])

    def hydrate(self, card: ModelCard) -> Master:
        return Master(self.network(card))


@contextmanager
def workshop() -> Iterator[Workshop]:
    """The models for as long as plans are run; one thread computes."""
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        shop = Workshop(Path(place))
        stack.enter_context(patch.object(weights, "load", shop.network))
        stack.enter_context(patch.object(F, "scaled_dot_product_attention", _attention))
        torch.set_num_threads(1)
        stack.callback(torch.set_num_threads, threads)
        gc.collect()
        gc.freeze()  # every lease collects garbage: not what was imported
        stack.callback(gc.unfreeze)
        yield shop


def draw(seed: int, shop: Workshop) -> Plan:
    """The plan of a seed."""
    dice = random.Random(seed)
    known = list(MODELS)[: dice.choice((2, 2, 3))]  # the padded one costs most and is drawn less often
    models = tuple(dice.sample(known, min(len(known), dice.choice((1, 2, 2, 3)))))
    lengths, budget = _lengths(dice), dice.choice((16, 64, 65, 127, 256, 600))
    reserve = dice.choice(RESERVES)
    laws = [shop.laws(shop.cards[key], "sim") for key in models]
    ceiling = dice.choice((KIB, 300 * KIB, 8 * MIB)) + reserve + _scarce(dice, laws, lengths, budget)
    schedule = dice.choice(list(Schedule))
    return Plan(
        seed=seed,
        models=models,
        lengths=lengths,
        split=dice.choice((len(lengths), max(1, len(lengths) // 3))),
        batch_tokens=budget,
        ceiling=ceiling,
        totals=(_total(dice, ceiling), _total(dice, ceiling)),
        reserve=reserve,
        schedule=schedule,
        window=dice.randrange(1, 4) if schedule is Schedule.ROTATING else 0,
        cpu_fallback=dice.random() < 0.7,
        faults=tuple(_fault(dice, ceiling) for _ in range(dice.choice((0, 1, 1, 2, 3)))),
        asked=tuple(_asked(dice) for _ in range(dice.choice((0, 0, 1, 2)))),
    )


@dataclass
class Outcome:
    """What came of a plan."""

    plan: Plan
    events: list[ev.AnyEvent] = field(default_factory=list)
    puts: list[Counter[int]] = field(default_factory=list)
    vectors: list[np.ndarray] = field(default_factory=list)
    wanted: list[np.ndarray] = field(default_factory=list)
    devices: list[SimDevice] = field(default_factory=list)
    hosts: list[int] = field(default_factory=list)
    """What each pass needs on the CPU, where the ceiling counts too."""
    error: BaseException | None = None
    summary: Summary | None = None

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def carry_out(plan: Plan, shop: Workshop) -> Outcome:
    """Compute a plan on its devices, and without them."""
    outcome = Outcome(plan)
    calm = _Hearing(())
    cells = _grid(plan, shop)
    _rounds(cells, [host := CpuDevice()], host, plan, shop, calm).run()
    outcome.wanted = [each.file.array for each in cells]
    heard = _Hearing(plan.asked)
    first = first_calibration(host)
    outcome.hosts = [each.layout.least_bytes(shop.laws(each.card, "cpu"), first) for each in cells]
    cells = _grid(plan, shop)
    slept = [0.0]
    outcome.devices = [_device(number, plan, slept) for number in range(2)]
    _announce(plan, shop, cells, outcome.devices, heard)
    try:
        with patch("engine.gpu.lease.RESERVE", plan.reserve):
            _rounds(cells, outcome.devices, host, plan, shop, heard).run()
    except Exception as error:
        outcome.error = error
    outcome.events, outcome.summary = heard.events, summarise(heard.state)
    outcome.vectors = [each.file.array for each in cells]
    outcome.puts = [each.file.puts for each in cells]
    return outcome


def wrongs(outcome: Outcome) -> list[str]:
    """Everything that should not be; empty for a plan that went well."""
    if outcome.error:
        return [f"the rounds raised {type(outcome.error).__name__}: {outcome.error}"]
    checks = (_rows, _vectors, _ends, _told, _residues, _peaks)
    return [wrong for check in checks for wrong in check(outcome)]


def many(first: int, count: int, shop: Workshop, show: Callable[[str], object] = print) -> dict[str, Any]:
    """Run the plans of so many seeds from `first` on; what happened in numbers."""
    began, totals = time.monotonic(), Totals()
    for seed in range(first, first + count):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        plan = draw(seed, shop)
        outcome = carry_out(plan, shop)
        found = wrongs(outcome)
        totals.add(outcome, found)
        for wrong in found:
            show(f"--seed {seed} --plans 1: {wrong}")
        if found:
            show(f"  {plan}")
        del outcome
        if (seed - first) % 1000 == 999:
            show(f"{seed - first + 1} plans, {totals.failures} failed, {time.monotonic() - began:.0f} s")
    faulthandler.cancel_dump_traceback_later()
    return {"seed": first, **totals.told(), "seconds_on_this_host": round(time.monotonic() - began, 1)}


@dataclass
class Totals:
    """Counts over plans."""

    plans: int = 0
    failures: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    drawn: Counter[str] = field(default_factory=Counter)
    mitigated: Counter[str] = field(default_factory=Counter)
    schedules: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome, found: Sequence[str]) -> None:
        self.plans += 1
        self.failures += bool(found)
        self.drawn.update(outcome.plan.kinds)
        self.schedules[outcome.plan.schedule] += 1
        self.mitigated.update(event.rung for event in outcome.of(ev.Mitigated))
        self.counts["rows"] += sum(sum(each.values()) for each in outcome.puts)
        self.counts["batches"] += len(outcome.of(ev.BatchCommitted))
        self.counts["forwards"] += sum(event.forwards for event in outcome.of(ev.BatchCommitted))
        self.counts["leases"] += len(outcome.of(ev.LeaseGranted))
        self.counts["out_of_memory_errors_inside"] += sum(each.allocator.counters().ooms for each in outcome.devices)
        self.counts["parked"] += len(outcome.of(ev.RowParked))
        self.counts["passes_refused"] += len(outcome.of(ev.PassFailed))
        self.counts["devices_lost"] += len(outcome.of(ev.DeviceLost))
        self.counts["leaks_reported"] += len(outcome.of(ev.ResidueFound))
        self.counts["schedules_switched"] += len(outcome.of(ev.ControlApplied))
        self.counts["plans_mitigated"] += bool(outcome.of(ev.Mitigated))

    def told(self) -> dict[str, Any]:
        return {
            "plans": self.plans,
            "failures": self.failures,
            **self.counts,
            "plans_by_fault": dict(sorted(self.drawn.items())),
            "mitigations_by_rung": dict(sorted(self.mitigated.items())),
            "plans_by_schedule": dict(sorted(self.schedules.items())),
        }


def _rows(outcome: Outcome) -> Iterator[str]:
    """Every row of a pass is committed once; of a pass that failed, at most once, and the reason is told."""
    plan, failed = outcome.plan, {event.model_pass for event in outcome.of(ev.PassFailed)}
    cells = Counter((event.model_pass, event.batch_index) for event in outcome.of(ev.BatchCommitted))
    if twice := [cell for cell, times in cells.items() if times > 1]:
        yield f"cells committed twice: {twice}"
    for model_pass, puts in enumerate(outcome.puts):
        times = [puts[row] for row in range(len(plan.lengths))]
        if max(times) > 1:
            yield f"pass {model_pass}: rows written twice"
        if 0 in times and model_pass not in failed:
            yield f"pass {model_pass}: {times.count(0)} rows lost"


def _vectors(outcome: Outcome) -> Iterator[str]:
    """What is written is what an undisturbed run writes; only parked rows are NaN."""
    parked = {(event.model_pass, event.row) for event in outcome.of(ev.RowParked)}
    for model_pass, (got, wanted) in enumerate(zip(outcome.vectors, outcome.wanted, strict=True)):
        for row in outcome.puts[model_pass]:
            bad = bool(np.isnan(got[row]).any())
            if bad != ((model_pass, row) in parked):
                yield f"pass {model_pass}, row {row}: NaN is {bad}, parked is {not bad}"
            if not bad and (off := float(np.abs(got[row] - wanted[row]).max())) > TOLERANCE:
                yield f"pass {model_pass}, row {row}: off by {off:.2e}"


def _ends(outcome: Outcome) -> Iterator[str]:
    """With the fallback every pass is complete; without it only what goes wrong excuses one that is not."""
    plan = outcome.plan
    given_up = [*outcome.of(ev.RowParked), *outcome.of(ev.PassFailed)]
    fallback = plan.cpu_fallback and not any(control == "cpu_fallback" for _, control, _ in plan.asked)
    for event in given_up:
        if (fallback and outcome.hosts[event.model_pass] <= plan.ceiling) or plan.calm:
            yield f"given up although {'there is the CPU' if fallback else 'nothing went wrong'}: {event.reason}"
        if "OutOfMemory" in event.reason or not event.reason:
            yield f"given up for no reason that a person can use: {event.reason!r}"
    ended = {event.model_pass for event in (*outcome.of(ev.EnsemblePassCompleted), *outcome.of(ev.PassFailed))}
    if len(ended) != len(plan.models):
        yield f"only the passes {sorted(ended)} ended"


def _told(outcome: Outcome) -> Iterator[str]:
    """Every mitigation is in the folded summary, once in each collection that it concerns."""
    assert outcome.summary is not None
    names = [each.name for each in outcome.summary.collections]
    emitted: Counter[tuple[object, ...]] = Counter()
    for event in outcome.of(ev.Mitigated):
        emitted[_key(event)] += len(names) if event.batch_index is None else 1
    found = Counter(_key(step) for each in outcome.summary.collections for step in each.mitigations)
    if emitted != found:
        yield f"mitigations that the summary lacks: {emitted - found}, or has too many: {found - emitted}"
    if len(outcome.of(ev.RowParked)) != sum(len(each.parked) for each in outcome.summary.collections):
        yield "parked rows and those of the summary differ"
    lost = {event.device for event in outcome.of(ev.DeviceLost)}
    if lost != {device.name for device in outcome.summary.devices if device.lost}:
        yield "lost devices and those of the summary differ"


def _key(step: Any) -> tuple[object, ...]:
    return step.model_pass, step.batch_index, step.rung, step.device, step.cause, step.action, step.rows


def _residues(outcome: Outcome) -> Iterator[str]:
    """Nothing stays on a device that was not lost, unless it leaks; then it is told."""
    receipts = [receipt for event in outcome.of(ev.LeaseReleased) for receipt in event.receipts]
    if len(outcome.of(ev.LeaseReleased)) != len(outcome.of(ev.LeaseGranted)):
        yield "a lease has no receipt"
    for device in outcome.devices:
        left = sum(each.residue_bytes for each in receipts if each.device == device.name and not each.lost)
        leaks = sum(handle.block.size for handle in device._chip._leaks if handle.block)
        if left and not leaks:
            yield f"{left} bytes stayed on {device.name}"
        if leaks and not left and not device.lost:
            yield f"{device.name} leaks {leaks} bytes, and no receipt says so"
    if any(each.residue_bytes for each in receipts if each.device == "cpu"):
        yield "weights stayed on the host"


def _peaks(outcome: Outcome) -> Iterator[str]:
    """The ceiling holds: by receipts, and by the allocator."""
    for event in outcome.of(ev.LeaseReleased):
        for receipt in event.receipts:
            if receipt.device != "cpu" and receipt.peak.occupied > outcome.plan.ceiling:
                yield f"{receipt.device} held {receipt.peak.occupied} of {outcome.plan.ceiling}"


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
    """NaN stays NaN: torch's fused kernel for the CPU makes zeros of it in short rows without a mask, and no gate would
    see that a vector is wrong."""
    mixed = _fused(query, key, value, **options)
    return mixed.fill_(math.nan) if math.isnan(float(query.sum() + key.sum())) else mixed


class _LastToken(torch.nn.Module):
    """The padded network with its pooling, without all else that a SentenceTransformer carries along."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, features: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        hidden, mask = self.network(**features, use_cache=False)[0], features.get("attention_mask")
        last = hidden.new_full((len(hidden),), hidden.shape[1], dtype=torch.int64) if mask is None else mask.sum(1)
        return {"sentence_embedding": hidden[torch.arange(len(hidden)), last - 1]}


def _light(network: torch.nn.Module) -> torch.nn.Module:
    return network if isinstance(network, PackedEncoder) else _LastToken(network[0].model)  # type: ignore[index]


def _card(place: Path, options: Mapping[str, Any]) -> ModelCard:
    path = tiny_model(place, max_tokens=LONGEST, **options)
    spec = ModelSpec(key=place.name, sources=(str(path),))
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "sim")


def _lengths(dice: random.Random) -> tuple[int, ...]:
    """Rows that are hard to plan for."""
    count = dice.randrange(1, 15)
    near = [2**power + step for power in range(1, 9) for step in (-1, 0, 1)]
    kind = dice.choice(("one", "equal", "huge", "powers", "random"))
    if kind == "one":
        return (1,) * count
    if kind == "equal":
        return (dice.choice(near),) * count
    if kind == "huge":
        return (*(dice.randrange(1, 9) for _ in range(count)), LONGEST)
    pool = near if kind == "powers" else range(1, 130)
    return tuple(dice.choice(pool) for _ in range(count))


def _scarce(dice: random.Random, laws: Sequence[Law], lengths: Sequence[int], budget: int) -> int:
    """Bytes between what the largest model cannot do without and what holds its widest batch at ease."""
    longest = max(lengths)
    first = first_calibration(SimDevice("cuda:0", Card("any", 1 << 30)))
    alone = longest + 31  # packed rows are filled up
    least = max((law.slots or law.weights) + first.activations(law, alone, longest) for law in laws)
    most = max(law.weights + first.activations(law, max(alone, budget + 31), longest) for law in laws)
    return least + int(dice.random() ** 2 * 1.5 * max(0, most - least))


def _total(dice: random.Random, ceiling: int) -> int:
    """All memory of a card: mostly more than the ceiling."""
    return ceiling + dice.choice((0, MIB, 40 * MIB, 100 * MIB))


def _fault(dice: random.Random, ceiling: int) -> str:
    kind = dice.choice(list(MENU))
    where = dice.choice(("", "", "@cuda:0", "@cuda:1"))
    first = int(2 ** dice.uniform(0, 9))
    arguments = {
        "oom": f"{first}",
        "oom-over": f"{dice.choice((2, 8, 16, 64, 256))}KiB",
        "fragment": f"{dice.choice((1, 20, 40, 100))}MiB",
        "leak": f"{dice.choice((1, 600, 3000))}KiB",
        "other": f"{dice.choice((1, ceiling // KIB // 2, ceiling // KIB))}KiB:{first}"
        + dice.choice(("", f":{first + dice.randrange(200)}")),
        "lose": f"{first}",
        "attach": f"{dice.choice((1, 2, 3, 5))}",
        "nan": f"{first}",
        "lag": f"{dice.choice((0.05, 1, 5))}",
    }
    return f"{kind}{where}:{arguments[kind]}"


def _asked(dice: random.Random) -> tuple[int, str, str]:
    if dice.random() < 0.8:
        return dice.randrange(1, 12), "schedule", dice.choice(list(Schedule))
    return dice.randrange(1, 12), "cpu_fallback", dice.choice(("yes", "no"))


class _Hearing:
    """Takes events, folds them, and asks for what the plan asks for."""

    def __init__(self, asked: Sequence[tuple[int, str, str]]) -> None:
        self.events: list[ev.AnyEvent] = []
        self.state = RunState()
        self.controls = Controls()
        self._asked = sorted(asked)
        self._committed = 0
        self._lock = threading.Lock()

    def __call__(self, event: ev.AnyEvent) -> None:
        with self._lock:
            entry = ev.Entry(seq=len(self.events), at=0.0, session=0, elapsed=0.0, device_kind="sim", body=event)
            fold(self.state, entry)
            self.events.append(event)
            self._committed += isinstance(event, ev.BatchCommitted)
            while self._asked and self._asked[0][0] <= self._committed:
                _, control, value = self._asked.pop(0)
                self.controls.ask(control, value, "the plan")


class _Tokens:
    """Ids of the plan's rows, which follow from their places."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = np.asarray(lengths, np.int64)
        self._rows = [(np.arange(length) * (row + 3) + row) % 60 + 5 for row, length in enumerate(lengths)]

    def lengths(self, limit: int) -> np.ndarray:
        return np.minimum(self._lengths, limit)

    def truncated(self, limit: int) -> np.ndarray:
        return np.maximum(self._lengths - limit, 0)

    def row(self, text: int, limit: int) -> np.ndarray:
        return self._rows[text][:limit]


class _File:
    """Vectors in memory; how often each row was written."""

    def __init__(self, rows: int, dim: int) -> None:
        self.array = np.full((rows, dim), np.nan, np.float32)
        self.puts: Counter[int] = Counter()

    def put(self, rows: np.ndarray, vectors: np.ndarray) -> int:
        self.array[rows] = vectors
        self.puts.update(rows.tolist())
        return 0

    def sync(self) -> None:
        """There is no disk."""


def _grid(plan: Plan, shop: Workshop) -> list[Cells]:
    """The cells of every pass."""
    tokens: Any = _Tokens(plan.lengths)
    ends = sorted({0, plan.split, len(plan.lengths)})
    corpus = [
        Rows(Collection(f"c{first}", f"c{first}", Path("c"), ()), first, own_texts=end - first)
        for first, end in itertools.pairwise(ends)
    ]
    cells = []
    for number, key in enumerate(plan.models):
        card = replace(shop.cards[key], batch_tokens=plan.batch_tokens)
        layout = lay_out(number, card, tokens, corpus, np.zeros(len(plan.lengths), np.bool_))
        file: Any = _File(len(plan.lengths), card.dim)
        cells.append(Cells(number, layout, tokens, file))
    return cells


def _rounds(
    cells: Sequence[Cells], devices: Sequence[Device], host: CpuDevice, plan: Plan, shop: Workshop, heard: _Hearing
) -> Rounds:
    heard.controls.begin(plan.schedule, plan.window, cpu_fallback=plan.cpu_fallback)
    places = [device for device in devices if device is not host]
    crew = Crew(
        devices=devices,
        host=host,
        lessor=Lessor([*places, host], plan.ceiling if places else 1 << 40),
        masters=Masters(1 << 30, shop.hydrate),
        controls=heard.controls,
        emit=heard,
        sync=lambda: None,
        laws=shop.laws,
    )
    return Rounds(cells, [list(range(len(each.batches))) for each in cells], [1.0] * len(cells), crew)


def _device(number: int, plan: Plan, slept: list[float]) -> SimDevice:
    """A card on whose clock nobody waits."""

    def sleep(seconds: float) -> None:
        slept[0] += seconds

    card = Card("GPU of a plan", plan.totals[number], min(KIB, plan.ceiling))
    faults = parse(",".join(fault for fault in plan.faults if "@" not in fault or f"@cuda:{number}:" in fault))
    return SimDevice(f"cuda:{number}", card, faults, clock=lambda: time.monotonic() + slept[0], sleep=sleep)


def _announce(
    plan: Plan, shop: Workshop, cells: Sequence[Cells], devices: Sequence[SimDevice], heard: _Hearing
) -> None:
    """What a run says before its rounds."""
    heard(
        ev.RunStarted(
            run_id=f"plan-{plan.seed}", chunks="", config={}, fusion="none", schedule=plan.schedule, versions={},
            environment={},
        )
    )  # fmt: skip
    facts = [
        ev.DeviceFacts(
            name=each.name, kind=each.kind, label=each.label, total_bytes=each.total, ceiling_bytes=plan.ceiling
        )
        for each in devices
    ]
    heard(ev.DevicesFound(devices=facts))
    heard(ev.RosterResolved(roster=[entry_of(each.card, 1.0, each.card.dim) for each in cells]))
    for each in cells:
        for share in each.layout.shares:
            heard(share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, help="of the first plan; the next one has the next")
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    with workshop() as shop:
        result = many(options.seed, options.plans, shop, lambda text: print(text, flush=True))
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(bool(result["failures"]))


if __name__ == "__main__":
    main()
