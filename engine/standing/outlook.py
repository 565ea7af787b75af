"""What lies ahead of a run: when its last batch is committed, and how sure that is; what runs short before.

What a pass has left takes its cost times its latest pace where it computes now, on a GPU or the host. Passes on one
device take turns: their times add up. Those on several go on beside each other: the longest counts. What waits comes
after that. A companion that the host computes since the GPUs are full moves to the first GPU that has nothing left.
Pure functions of a snapshot.
"""

import math
from collections.abc import Sequence
from itertools import filterfalse
from typing import NamedTuple

from interlock.engine.record.events import DeviceSampled, RecordsRead
from interlock.engine.record.facts import LEAST_DISK, LEAST_MEMORY, DiskShortage, MemoryShortage, Readings, on_host
from interlock.engine.record.snapshot import GONE, PassView, Snapshot, side_by_side
from interlock.engine.record.state import HEAD, Lately
from interlock.engine.record.words import duration, safe, several

DOING = {
    "starting": "looking for devices and models",
    "resolving": "checking the models' files",
    "reading": "reading and tokenising chunks",
    "planning": "planning the passes",
    "delivering": "writing files and points",
}
"""What is being done while no pass is at work."""
LEAST, FEW, KNOWN, UNKNOWN = 0.10, 0.40, 0.20, 0.80
"""How far a pace is said to be off, as a share of it: at least; after one batch, beside how much they differ, less with
the root of how many; at that of an earlier run, as leases to come are; at that of other models. `bench/eta.py` measures
how much of what comes lies within: some 85 % is wanted."""
SETTLED, BATCHES = 3, 10
"""Batches from which on a model's own pace is better than that of an earlier run, and of which a pace is the mean."""


def doing(snapshot: Snapshot) -> str:
    """Say what is done while no pass is at work but one beside reading, and how far reading has come."""
    read = snapshot.latest(RecordsRead) if snapshot.phase == "reading" else None
    so_far = f": {safe(read.collection)}, {several(read.records, 'record')} so far" if read else ""
    beside = "; what was read is computed meanwhile" if read and snapshot.current_pass is not None else ""
    return DOING.get(snapshot.phase, "") + so_far + beside


class Outlook(NamedTuple):
    """Seconds to the end of what is left, and by how many of them that may be off."""

    seconds: float
    spread: float

    def plus(self, other: "Outlook | None", share: float = 1.0) -> "Outlook":
        """Add a share of another, which is off in the same direction."""
        return Outlook(self.seconds + share * other.seconds, self.spread + share * other.spread) if other else self


NOTHING = Outlook(0.0, 0.0)


class Remaining(NamedTuple):
    """What a pass has left: on one GPU and on the host, None where nobody knows; the devices that it holds now; whether
    no GPU will have it; and what its way to one takes, with the rest of a batch on the host."""

    on_gpu: Outlook | None
    on_host: Outlook | None
    at: Sequence[str] = ()
    stays: bool = False
    moves: float = 0.0

    @property
    def hosted(self) -> bool:
        """Whether the host alone computes it now."""
        return bool(self.at) and all(map(on_host, self.at))


def ends(works: Sequence[Remaining], gpus: int, *, shared: bool) -> Outlook | None:
    """Predict when all of it is done, where so many `gpus` may be leased next; None where nobody knows."""
    held, waiting = [each for each in works if each.at], [each for each in works if not each.at]
    known = [each.on_host if each.hosted else each.on_gpu for each in held]
    alone = [each.on_host if each.stays else each.on_gpu for each in waiting]
    if not all((*known, *alone)):
        return None
    # What is held on the same devices takes turns there; of several devices that with the most to do counts.
    loads: dict[str, Outlook] = {}
    for work, mine in zip(held, known, strict=True):
        for name in work.at if work.hosted else filterfalse(on_host, work.at):
            loads[name] = loads.get(name, NOTHING).plus(mine, 1 / side_by_side(work.at))
    left = max(loads.values(), default=NOTHING)
    busy, there = [load for name, load in loads.items() if not on_host(name)], [each for each in held if each.hosted]
    if busy and not all(each.stays for each in there) and all(each.stays or each.on_gpu for each in there):
        left = _back(there, busy, left)
    then = NOTHING
    for work, mine in zip(waiting, alone, strict=True):
        then = then.plus(mine, 1 if work.stays else 1 / max(1, gpus))
    if shared and len(waiting) > 1:
        then = max(then, *filter(None, alone))
    return left.plus(then)


def _back(works: Sequence[Remaining], busy: Sequence[Outlook], left: Outlook) -> Outlook:
    """The same where what the host computes is placed anew once a GPU has nothing left, but for what stays there."""
    free, there, rest, stays, moves = min(busy), NOTHING, NOTHING, NOTHING, 0.0
    for each in works:
        there, stays = there.plus(each.on_host), stays.plus(each.on_host if each.stays else None)
        rest, moves = rest.plus(None if each.stays else each.on_gpu), max(moves, each.moves)
    if free >= there:
        return left
    share = 1 - free.seconds / there.seconds
    # How much of it is left then is as unsure as what the host does until then.
    unsure = rest.seconds * (1 - share) * there.spread / there.seconds
    return max(*busy, stays, NOTHING.plus(free).plus(rest, share).plus(Outlook(moves, unsure)))


def time_left(snapshot: Snapshot) -> Outlook | None:
    """Predict when the last batch of a run is committed; None where nothing is left, or nothing is known."""
    passes = [each for each in snapshot.passes if not each.failure and each.batches_done < each.batches]
    if snapshot.over or snapshot.phase == GONE or not passes:
        return None
    gpus = sum(not each.lost and not on_host(each.facts.name) for each in snapshot.devices)
    shared, main = snapshot.schedule == "shared", not snapshot.on_gpus
    on_gpus = sum((each.lately for each in snapshot.passes), Lately())
    on_hosts = sum((each.lately_on_host for each in snapshot.passes), Lately())
    works, stay = [], {number for number, moved in snapshot.hosted.items() if moved.stays}
    for each in passes:
        on_gpu, hosted = _left(each, False, on_gpus, main=not main), _left(each, True, on_hosts, main=main)
        was_there = each.lately_on_host.cost > 0 and not each.lately.cost and not shared
        stays = not gpus or was_there or each.model_pass in stay
        works.append(Remaining(on_gpu, hosted, each.at_work, stays, snapshot.opening + _batch(each) / 2))
    if (left := ends(works, gpus, shared=shared)) is None:
        return None
    # What waits gets a lease first, which takes as long as the latest; where models take turns, as many as so far.
    held = [each for each in passes if each.at_work]
    turns: float = len(passes) - len(held) + (snapshot.opens and bool(held))
    if snapshot.schedule == "rotating" and snapshot.busy:
        turns = max(turns, (snapshot.opened - 0.5) * left.seconds / snapshot.busy)
    leases, batch = turns * snapshot.opening, max(map(_batch, held or passes))
    most = batch + snapshot.opening * (snapshot.opens or not held)
    since = min(most, snapshot.elapsed - snapshot.covered) if snapshot.opened or snapshot.opens else 0.0
    return Outlook(max(0.0, left.seconds + leases - since), left.spread + leases * KNOWN + batch / 2)


def time_left_of(each: PassView, passes: Sequence[PassView]) -> Outlook | None:
    """Predict when a pass of these that has committed a batch ends, which takes turns with those that are held on its
    devices; None for any other."""
    left, mine = each.batches - each.batches_done, _left(each, _hosted(each), Lately(), main=False)
    if not mine or each.failure or left <= 0:
        return None
    both = side_by_side(each.at_work or each.devices)
    turns = NOTHING.plus(mine, 1 / both)
    for other in passes:
        if other is not each and not other.failure and set(other.at_work) & set(each.at_work):
            theirs = min(left, other.batches - other.batches_done) * _batch(other)
            turns = turns.plus(Outlook(theirs, theirs * LEAST), 1 / both)
    return Outlook(turns.seconds, turns.spread + _batch(each))


def _hosted(each: PassView) -> bool:
    """Whether the host alone computes a pass, or did."""
    return all(map(on_host, each.at_work)) if each.at_work else not each.lately.cost


def _batch(each: PassView) -> float:
    """Seconds of a batch of a pass on one device of those that it holds."""
    return each.cost / max(1, each.batches) * (each.lately_on_host if _hosted(each) else each.lately).pace


def _left(each: PassView, on_the_host: bool, usual: Lately, *, main: bool) -> Outlook | None:
    """What a pass has left on one GPU, or on the host; `usual` is what the batches of all passes took there. Earlier
    runs tell of the `main` place alone."""
    lately, rest = each.lately_on_host if on_the_host else each.lately, max(0.0, each.cost - each.cost_done)
    before = each.tokens / each.known_pace / each.cost if main and each.known_pace and each.cost else 0.0
    if lately.cost and (each.batches_done >= SETTLED or not before):
        off = math.hypot(LEAST, math.hypot(FEW, lately.varies) / math.sqrt(min(BATCHES, each.batches_done)))
        return Outlook(rest * (lately.pace + lately.idle / lately.cost), rest * lately.pace * off)
    pace = before or usual.pace
    return Outlook(rest * pace, rest * pace * (KNOWN if before else UNKNOWN)) if pace else None


def low_disk(snapshot: Snapshot) -> str:
    """Say how little the run's disk has free; empty where that is enough, or nobody knows."""
    free = _least(snapshot, "disk_free", LEAST_DISK)
    place = str(snapshot.config["out"].value) if "out" in snapshot.config else "the run"
    return str(DiskShortage(place=place, free_bytes=free)) if free < LEAST_DISK else ""


def low_memory(snapshot: Snapshot) -> str:
    """Say how little memory the run's host has free; empty where that is enough, or nobody knows."""
    told = [each for each in readings_of(snapshot).values() if each.memory_free is not None]
    low = min(told, key=lambda each: each.memory_free or 0, default=None)
    free = LEAST_MEMORY if low is None or low.memory_free is None else low.memory_free
    return str(MemoryShortage(free_bytes=free, holders=low.memory_holders)) if low and free < LEAST_MEMORY else ""


def _least(snapshot: Snapshot, figure: str, otherwise: int) -> int:
    return min(told_of(snapshot, figure).values(), default=otherwise)


def told_of(snapshot: Snapshot, figure: str) -> dict[str, int]:
    """Find what the readings of devices, and of a cluster's head, tell of it, by their names."""
    readings = readings_of(snapshot)
    return {name: told for name, each in readings.items() if (told := getattr(each, figure, None)) is not None}


def readings_of(snapshot: Snapshot) -> dict[str, Readings]:
    """Find the latest readings of devices, and of a cluster's head, by their names."""
    readings = {device.facts.name: device.readings for device in snapshot.devices}
    if isinstance(sample := snapshot.beats.get(HEAD), DeviceSampled):
        readings[HEAD] = sample.readings
    return {name: each for name, each in readings.items() if each}


def late(snapshot: Snapshot, now: float) -> str:
    """Say that the work may not be done, or will not, when the deadline comes; empty where it will be."""
    left, still = time_left(snapshot) if snapshot.deadline else None, max(0.0, snapshot.deadline - now)
    if not left or left.seconds + left.spread <= still:
        return ""
    ends = "it stops before that" if left.seconds - left.spread > still else "it may stop before that"
    return f"{duration(left.seconds)} of work left, {duration(still)} to the deadline: {ends}, unfinished"
