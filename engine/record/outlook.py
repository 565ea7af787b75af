"""When a run will end, and how sure that is: pure functions of a snapshot.

The work that is left is priced by the operations that each model's plan predicts. A model that has begun goes on at the
pace of its latest batches, one that has not at that of its earlier runs, else at that of the models before it.
"""

from typing import NamedTuple

from interlock.engine.record.snapshot import GONE, PassView, Snapshot, side_by_side

LEAST, KNOWN, UNKNOWN = 0.05, 0.20, 0.35
"""How far a prediction is said to be off, as a share of it: at a model's own pace as much as its latest batches differ,
at least so much; at the pace of an earlier run; at that of other models. Chosen; `bench/eta.py` measures how often the
end lies within."""
SETTLED = 3
"""Batches from which on a model's own pace is better than that of an earlier run."""


class Outlook(NamedTuple):
    """Seconds to the end of what is left, and by how many of them that may be off."""

    seconds: float
    spread: float


def of_pass(each: PassView) -> Outlook | None:
    """Predict when a pass that has committed a batch ends; None for any other."""
    if not each.cost_done or each.failure:
        return None
    return _left(each, each.lately.pace, max(LEAST, each.lately.varies), side_by_side(each.at_work or each.devices))


def of_run(snapshot: Snapshot) -> Outlook | None:
    """Predict when the last batch of a run is committed; None where nothing is left, or nothing is known."""
    passes = [each for each in snapshot.passes if not each.failure and each.batches_done < each.batches]
    if snapshot.over or snapshot.phase == GONE or not passes:
        return None
    seconds, done = (sum(getattr(each, name) for each in snapshot.passes) for name in ("seconds", "cost_done"))
    usual = seconds / done if done else 0.0
    held = {name for each in snapshot.passes for name in each.at_work}
    working = side_by_side(held) if held else _usable(snapshot)
    found = [_left(each, *_pace(each, usual), working) for each in passes]
    if any(each is None for each in found):
        return None
    known = [each for each in found if each]
    return Outlook(sum(each.seconds for each in known), sum(each.spread for each in known))


def _usable(snapshot: Snapshot) -> int:
    """How many devices the next leases may hold."""
    return side_by_side([device.facts.name for device in snapshot.devices if not device.lost])


def _pace(each: PassView, usual: float) -> tuple[float, float]:
    """Seconds for each unit of a pass's cost on one device, 0 where nobody knows; and how far they may be off."""
    before = each.tokens / each.known_pace / each.cost if each.known_pace and each.cost else 0.0
    if each.cost_done and (each.batches_done >= SETTLED or not before):
        return each.lately.pace, max(LEAST, each.lately.varies)
    return (before, KNOWN) if before else (usual, UNKNOWN)


def _left(each: PassView, pace: float, off: float, devices: int) -> Outlook | None:
    if not pace:
        return None
    seconds = max(0.0, each.cost - each.cost_done) * pace / max(1, devices)
    # The batch that is under way may have just begun, or be nearly done.
    return Outlook(seconds, seconds * off + each.cost / max(1, each.batches) * pace)
