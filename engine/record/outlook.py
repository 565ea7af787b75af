"""When the last batch of a run is committed, and how sure that is.

What a pass has left takes its cost times its latest pace where it computes now, on a GPU or the host. Passes on one
device take turns: their times add up. Those on several go on beside each other: the longest counts. What waits comes
after that. A companion that the host computes since the GPUs are full moves to the first GPU that has nothing left.
Pure functions of a snapshot.
"""

import math
from collections.abc import Sequence
from itertools import filterfalse
from typing import NamedTuple

from interlock.engine.record.facts import on_host
from interlock.engine.record.snapshot import GONE, PassView, Snapshot, side_by_side
from interlock.engine.record.state import Lately

LEAST, FEW, KNOWN, UNKNOWN = 0.10, 0.40, 0.20, 0.80
"""How far a pace is said to be off, as a share of it: at least so much; after one batch, beside how much they differ,
and less with the root of how many there were; at the pace of an earlier run; at that of other models. Chosen so that
some 85 % of what comes lies within; `bench/eta.py` measures it."""
SETTLED, BATCHES = 3, 10
"""Batches from which on a model's own pace is better than that of an earlier run, and of which a pace is the mean."""
SLOWED = 2.0
"""The most that idle seconds so far may stretch what is left."""


class Outlook(NamedTuple):
    """Seconds to the end of what is left, and by how many of them that may be off."""

    seconds: float
    spread: float

    def plus(self, other: "Outlook | None", share: float = 1.0) -> "Outlook":
        """Add a share of another, which is off in the same direction."""
        return Outlook(self.seconds + share * other.seconds, self.spread + share * other.spread) if other else self


NOTHING = Outlook(0.0, 0.0)


class Remaining(NamedTuple):
    """What a pass has left: on one GPU and on the host, None where nobody knows; and the devices that it holds now."""

    on_gpu: Outlook | None
    on_host: Outlook | None
    at: Sequence[str] = ()
    stays: bool = False
    """Whether the host computes it when its turn comes."""

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
    busy, guests = [load for name, load in loads.items() if not on_host(name)], [each for each in held if each.hosted]
    if busy and guests and all(each.on_gpu for each in guests):
        left = _back(guests, busy, left)
    then = NOTHING
    for work, mine in zip(waiting, alone, strict=True):
        then = then.plus(mine, 1 if work.stays else 1 / max(1, gpus))
    if shared and len(waiting) > 1:
        then = max(then, *filter(None, alone))
    return left.plus(then)


def _back(guests: Sequence[Remaining], busy: Sequence[Outlook], left: Outlook) -> Outlook:
    """The same where what the host computes is placed anew once a GPU has nothing left."""
    free, there, rest = min(busy), NOTHING, NOTHING
    for each in guests:
        there, rest = there.plus(each.on_host), rest.plus(each.on_gpu)
    if free >= there:
        return left
    share = 1 - free.seconds / there.seconds
    # How much of it is left then is as unsure as what the host does until then.
    unsure = rest.seconds * (1 - share) * there.spread / there.seconds
    return max(*busy, NOTHING.plus(free).plus(rest, share).plus(Outlook(0.0, unsure)))


def time_left(snapshot: Snapshot) -> Outlook | None:
    """Predict when the last batch of a run is committed; None where nothing is left, or nothing is known."""
    passes = [each for each in snapshot.passes if not each.failure and each.batches_done < each.batches]
    if snapshot.over or snapshot.phase == GONE or not passes:
        return None
    gpus = sum(not each.lost and not on_host(each.facts.name) for each in snapshot.devices)
    shared, main = snapshot.schedule == "shared", not snapshot.on_gpus
    usual = {place: sum((_lately(each, place) for each in snapshot.passes), Lately()) for place in (False, True)}
    works = []
    for each in passes:
        on_gpu, hosted = (_left(each, place, usual[place], main=place == main) for place in (False, True))
        was_there = each.lately_on_host.cost > 0 and not each.lately.cost and not shared
        works.append(Remaining(on_gpu, hosted, each.at_work, stays=not gpus or was_there))
    if (left := ends(works, gpus, shared=shared)) is None:
        return None
    # Between batches and leases something takes time too: as much of the rest as it took so far.
    worked = snapshot.covered - snapshot.first_done
    scale = min(SLOWED, worked / (worked - snapshot.idle)) if 0 < snapshot.idle < worked else 1.0
    batch = max(map(_batch, [each for each in passes if each.at_work] or passes))
    since = min(batch, max(0.0, snapshot.elapsed - snapshot.covered)) if snapshot.first_done else 0.0
    return Outlook(max(0.0, left.seconds * scale - since), left.spread * scale + batch / 2)


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


def _lately(each: PassView, on_the_host: bool) -> Lately:
    return each.lately_on_host if on_the_host else each.lately


def _batch(each: PassView) -> float:
    """Seconds of a batch of a pass on one device of those that it holds."""
    return each.cost / max(1, each.batches) * _lately(each, _hosted(each)).pace


def _left(each: PassView, on_the_host: bool, usual: Lately, *, main: bool) -> Outlook | None:
    """What a pass has left on one GPU, or on the host; `usual` is what the batches of all passes took there. Earlier
    runs tell of the `main` place alone."""
    lately, rest = _lately(each, on_the_host), max(0.0, each.cost - each.cost_done)
    before = each.tokens / each.known_pace / each.cost if main and each.known_pace and each.cost else 0.0
    if lately.cost and (each.batches_done >= SETTLED or not before):
        off = math.hypot(LEAST, math.hypot(FEW, lately.varies) / math.sqrt(min(BATCHES, each.batches_done)))
        return Outlook(rest * lately.pace, rest * lately.pace * off)
    if pace := before or usual.pace:
        return Outlook(rest * pace, rest * pace * (KNOWN if before else UNKNOWN))
    return None
