"""What must hold of every plan, whatever goes wrong in it: each check says in words what does not.

No row is lost or written twice, no error of memory escapes, vectors are those of an undisturbed run, the ceiling holds,
a lease is exclusive and leaves nothing, nothing is given up that need not be, and the folded summary tells it all.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from bench.scenarios.stage import Outcome
from interlock.engine.compute.schedule import Schedule
from interlock.engine.record import events as ev
from interlock.engine.record.facts import Receipt

TOLERANCE = 2e-6

SLACK = 8 << 20
"""Bytes that a plan without trouble has to spare where nothing is to be mitigated."""


def wrongs(outcome: Outcome) -> list[str]:
    """Everything that should not be; empty for a plan that went well."""
    if outcome.error:
        return [f"the rounds raised {type(outcome.error).__name__}: {outcome.error}"]
    return [wrong for check in CHECKS for wrong in check(outcome)]


def rows(outcome: Outcome) -> Iterator[str]:
    """Every row of a pass is committed once; of a pass that failed, at most once, and the reason is told."""
    failed = {event.model_pass for event in outcome.of(ev.PassFailed)}
    cells = Counter((event.model_pass, event.batch_index) for event in outcome.of(ev.BatchCommitted))
    if twice := [cell for cell, times in cells.items() if times > 1]:
        yield f"cells committed twice: {twice}"
    for model_pass, puts in enumerate(outcome.puts):
        times = [puts[row] for row in range(len(outcome.plan.lengths))]
        if max(times) > 1:
            yield f"pass {model_pass}: rows written twice"
        if 0 in times and model_pass not in failed:
            yield f"pass {model_pass}: {times.count(0)} rows lost"


def vectors(outcome: Outcome) -> Iterator[str]:
    """What is written is what an undisturbed run writes; only parked rows are NaN."""
    parked = {(event.model_pass, event.row) for event in outcome.of(ev.RowParked)}
    for model_pass, (got, wanted) in enumerate(zip(outcome.vectors, outcome.wanted, strict=True)):
        for row in outcome.puts[model_pass]:
            bad = bool(np.isnan(got[row]).any())
            if bad != ((model_pass, row) in parked):
                yield f"pass {model_pass}, row {row}: NaN is {bad}, parked is {not bad}"
            if not bad and (off := float(np.abs(got[row] - wanted[row]).max())) > TOLERANCE:
                yield f"pass {model_pass}, row {row}: off by {off:.2e}"


def ends(outcome: Outcome) -> Iterator[str]:
    """With the fallback every pass is complete; without it only what goes wrong excuses one that is not."""
    plan = outcome.plan
    fallback = plan.cpu_fallback and not any(control == "cpu_fallback" for _, control, _ in plan.asked)
    for event in (*outcome.of(ev.RowParked), *outcome.of(ev.PassFailed)):
        if (fallback and outcome.hosts[event.model_pass] <= plan.ceiling) or plan.calm:
            yield f"given up although {'there is the CPU' if fallback else 'nothing went wrong'}: {event.reason}"
        if "Error" in event.reason or not event.reason:
            yield f"given up for no reason that a person can use: {event.reason!r}"
    ended = {event.model_pass for event in (*outcome.of(ev.EnsemblePassCompleted), *outcome.of(ev.PassFailed))}
    if len(ended) != len(plan.models):
        yield f"only the passes {sorted(ended)} ended"


def told(outcome: Outcome) -> Iterator[str]:
    """Every failed forward is let go of and is a mitigation or a parked row; the summary has these and no others."""
    assert outcome.summary is not None
    yield from outcome.unheard
    collections = outcome.summary.collections
    emitted: Counter[tuple[object, ...]] = Counter()
    for event in outcome.of(ev.Mitigated):  # of a whole lease: once in each collection
        emitted[_key(event)] += len(collections) if event.batch_index is None else 1
    found = Counter(_key(step) for each in collections for step in each.mitigations)
    if emitted != found:
        yield f"mitigations that the summary lacks: {emitted - found}, or has too many: {found - emitted}"
    if len(outcome.of(ev.RowParked)) != sum(len(each.parked) for each in collections):
        yield "parked rows and those of the summary differ"
    lost = {device.name for device in outcome.devices if device.lost}
    if lost != {device.name for device in outcome.summary.devices if device.lost}:
        yield "lost devices and those of the summary differ"


def quiet(outcome: Outcome) -> Iterator[str]:
    """Where nothing goes wrong and everything fits, nothing is told."""
    plan = outcome.plan
    fits = max(outcome.predicted) + SLACK <= plan.ceiling - plan.reserve
    if plan.calm and fits and Schedule.SHARED not in plan.schedules:
        for event in outcome.of(ev.Mitigated):
            yield f"mitigated for nothing: {event.cause}; {event.action}"


def residues(outcome: Outcome) -> Iterator[str]:
    """What is on a device in the end is what its receipts say: nothing, unless it leaks or was lost."""
    if len(outcome.of(ev.LeaseReleased)) != len(outcome.of(ev.LeaseGranted)):
        yield "a lease has no receipt"
    left: Counter[str] = Counter()
    for receipt in _receipts(outcome):
        left[receipt.device] += 0 if receipt.lost else receipt.residue_bytes
    if left["cpu"]:
        yield "weights stayed on the host"
    for device in outcome.devices:
        there, said = device.memory().allocated, left[device.name]
        if there and not (device.leaks or device.lost):
            yield f"{there} bytes stayed on {device.name}"
        side_by_side = Schedule.SHARED in outcome.plan.schedules  # then each lease that ends tells it
        if not device.lost and (said < there or (said > there and not side_by_side)):
            yield f"{there} bytes are left on {device.name}, {said} by its receipts"


def ceilings(outcome: Outcome) -> Iterator[str]:
    """No device ever held more, and the receipts tell the most that it held."""
    peaks: defaultdict[str, int] = defaultdict(int)
    for receipt in _receipts(outcome):
        peaks[receipt.device] = max(peaks[receipt.device], receipt.peak.occupied)
    for device in outcome.devices:
        if device.highest > outcome.plan.ceiling:
            yield f"{device.name} held {device.highest} of {outcome.plan.ceiling}"
        if device.highest > peaks[device.name] and device.name in peaks and not device.lost:
            yield f"{device.name} held {device.highest}, its receipts say {peaks[device.name]}"


def leases(outcome: Outcome) -> Iterator[str]:
    """A GPU has one lease at a time; several only on the shared schedule, and then their budgets fit side by side."""
    held: dict[str, Any] = {}
    for event in outcome.events:
        if isinstance(event, ev.LeaseReleased):
            held.pop(event.lease, None)
        if isinstance(event, ev.LeaseGranted):
            held[event.lease] = event
            for name in set(event.budgets) - {"cpu"}:
                budgets = [lease.budgets[name] for lease in held.values() if name in lease.budgets]
                if len(budgets) > 1 and event.schedule != Schedule.SHARED:
                    yield f"{name} is leased {len(budgets)} times at once"
                if sum(budgets) > outcome.plan.ceiling:
                    yield f"{name} is promised {sum(budgets)} of {outcome.plan.ceiling}"


CHECKS = (rows, vectors, ends, told, quiet, residues, ceilings, leases)


def _receipts(outcome: Outcome) -> Iterator[Receipt]:
    return (receipt for event in outcome.of(ev.LeaseReleased) for receipt in event.receipts)


def _key(step: Any) -> tuple[object, ...]:
    return step.model_pass, step.batch_index, step.rung, step.device, step.cause, step.action, step.rows
