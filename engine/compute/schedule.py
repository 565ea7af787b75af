"""Who works on what next: three orders of one grid of cells (model_pass, batch_index), and where each model goes.

    exclusive   A A A A A A | B B B B | C C C C C C            a model holds every GPU for its whole pass
    rotating    A A | B B | C C C C | B B | A A A A | C C      a model hands over after a window (here of 2)
    shared      cuda:0  A A A A A A                            models that fit beside each other stay side by side,
                cuda:1  B B B B C C C C C C                    the primary apart from its companions

A placement is what is resident at the same time. It is made from the cells that are left and from the pass that was
last, so the schedule, the window and the devices may change between any two placements: what is left is only walked in
another order, and every cell is still walked once.

Pure and deterministic: no devices, no clock. Sizes are bytes.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from interlock.engine.record.words import distinct_sizes


class Schedule(StrEnum):
    """The order in which the cells that are left are walked."""

    EXCLUSIVE = "exclusive"
    ROTATING = "rotating"
    SHARED = "shared"


@dataclass(frozen=True)
class DeviceRoom:
    """A device that can be leased now, by name and kind (`cuda`, `sim`, `cpu`); at most `room` bytes of it."""

    name: str
    kind: str
    room: int
    flag: str = "--ceiling"
    """The setting that makes more of it where memory is free; empty: none does."""

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, simulated or not."""
        return self.kind != "cpu"


@dataclass(frozen=True)
class MemoryNeed:
    """The least bytes that a model can work in: on a GPU whole or streamed (0: it cannot be), or on the CPU."""

    model: str
    whole: int
    streamed: int
    host: int


@dataclass(frozen=True)
class Assignment:
    """One model under one lease: `batches` of its pass, in order, and by name the `devices` that share that queue."""

    model_pass: int
    batches: Sequence[int]
    devices: tuple[str, ...]
    streamed: bool = False


@dataclass(frozen=True)
class Placement:
    """Assignments that are computed at the same time. `refused` passes fit nowhere, for these reasons: fail them."""

    assignments: tuple[Assignment, ...]
    refused: Mapping[int, str] = field(default_factory=dict)


def next_placement(
    schedule: Schedule,
    left: Sequence[Sequence[int]],
    needs: Sequence[MemoryNeed] | Mapping[int, MemoryNeed],
    devices: Sequence[DeviceRoom],
    window: int,
    last: int | None,
    *,
    cpu_fallback: bool,
) -> Placement | None:
    """Decide what to lease now, where `left[k]` are the batches that pass k still has to do, ascending; None: nothing.
    `needs[k]` is there for every pass that has any.

    `last` is the pass of the last assignment, if any; a `window` of 0 is a whole pass. The CPU is used where there is
    no GPU, and with `cpu_fallback` for a model that fits on none. A pass is refused when it is due and never while it
    waits; the caller takes its batches out of `left`. Only a placement that refuses every pass has no assignments.
    """
    waiting = {model_pass: batches for model_pass, batches in enumerate(left) if len(batches)}
    usable = [device for device in devices if cpu_fallback or device.is_gpu] or devices
    refused: dict[int, str] = {}
    while waiting:
        due, batches = _due(waiting, window if schedule is Schedule.ROTATING else 0, last)
        if fits := _fits(needs[due], usable):
            together = _side_by_side(waiting, needs, usable) if schedule is Schedule.SHARED else ()
            alone = Assignment(due, tuple(batches), tuple(device.name for device in fits[0].devices), fits[0].streamed)
            return Placement(together if len(together) > 1 else (alone,), refused)
        refused[due] = _refusal(needs[due], usable)
        del waiting[due]
    return Placement((), refused) if refused else None


def due(schedule: Schedule, left: Sequence[Sequence[int]], window: int, last: int | None) -> dict[int, Sequence[int]]:
    """Name the passes that are due now with their batches, wherever they fit: one, or with `shared` all. The arguments
    are those of `next_placement`; empty where nothing is left."""
    waiting = {model_pass: batches for model_pass, batches in enumerate(left) if len(batches)}
    if not waiting or schedule is Schedule.SHARED:
        return waiting
    first, batches = _due(waiting, window if schedule is Schedule.ROTATING else 0, last)
    return {first: batches}


def budgets(needs: Sequence[Mapping[str, int]], devices: Sequence[DeviceRoom]) -> list[dict[str, int]]:
    """Divide devices among models side by side: to each what it needs there, and an equal part of what is left over."""
    needed = Counter(name for need in needs for name in need)
    taken = {name: sum(need.get(name, 0) for need in needs) for name in needed}
    over = {device.name: max(0, device.room - taken.get(device.name, 0)) for device in devices}
    return [{name: size + over[name] // needed[name] for name, size in need.items()} for need in needs]


def _due(waiting: Mapping[int, Sequence[int]], window: int, last: int | None) -> tuple[int, Sequence[int]]:
    """The pass that is due, with its batches: all that are left unless there is a `window`.

    Windows are the same cells at any time: batches 0 to `window` - 1, and so on. The pass that stands in the earliest
    window is due; of several, the one nearest to `last` in the roster, itself first. So the roster is walked to and
    fro, and where it turns, a model goes on through the next window while it is attached: up to where the others stand.
    """
    if not window or len(waiting) == 1:
        return next(iter(waiting.items()))
    stands = {model_pass: batches[0] // window for model_pass, batches in waiting.items()}
    due = min(stands, key=lambda model_pass: (stands[model_pass], abs(model_pass - (last or 0))))
    others = min(stood for model_pass, stood in stands.items() if model_pass != due)
    return due, waiting[due][: bisect_left(waiting[due], (others + 1) * window)]


@dataclass(frozen=True)
class _Fit:
    """A way in which a model fits: it takes `size` bytes on each of `devices`."""

    devices: Sequence[DeviceRoom]
    size: int
    streamed: bool = False


def _fits(need: MemoryNeed, usable: Sequence[DeviceRoom]) -> list[_Fit]:
    """How a model fits when nothing is beside it, best first; streamed only where no GPU holds it whole."""
    gpus = [device for device in usable if device.is_gpu]
    whole = _Fit([gpu for gpu in gpus if need.whole <= gpu.room], need.whole)
    streamed = _Fit([gpu for gpu in gpus if 0 < need.streamed <= gpu.room], need.streamed, streamed=True)
    host = _Fit([device for device in usable if not device.is_gpu and need.host <= device.room], need.host)
    return [fit for fit in (whole if whole.devices else streamed, host) if fit.devices]


def _side_by_side(
    waiting: Mapping[int, Sequence[int]],
    needs: Sequence[MemoryNeed] | Mapping[int, MemoryNeed],
    usable: Sequence[DeviceRoom],
) -> tuple[Assignment, ...]:
    """The primary on the first device that holds it, then each companion that fits beside those placed before it.

    A companion keeps off the primary's device while another one holds it, and takes the one with the most room left.
    """
    room = {device.name: device.room for device in usable}
    assignments: list[Assignment] = []
    for model_pass, batches in waiting.items():
        primary = assignments[0].devices[0] if assignments else None
        if found := _roomiest(_fits(needs[model_pass], usable), room, primary):
            name, fit = found
            room[name] -= fit.size
            assignments.append(Assignment(model_pass, tuple(batches), (name,), fit.streamed))
    return tuple(assignments)


def _roomiest(fits: Sequence[_Fit], room: Mapping[str, int], primary: str | None) -> tuple[str, _Fit] | None:
    """The device for one more model, in the best way that the `room` left allows; None: it waits."""
    for fit in fits:
        if names := [device.name for device in fit.devices if fit.size <= room[device.name]]:
            roomiest = max(names, key=lambda name: (name != primary, room[name]))
            return roomiest if primary else names[0], fit
    return None


def _refusal(need: MemoryNeed, usable: Sequence[DeviceRoom]) -> str:
    """Why a model fits on no device, with the bytes that it lacks on each."""
    gpus = [device for device in usable if device.is_gpu]
    hosts = [device for device in usable if not device.is_gpu]
    on_gpu = _lack(need.whole, need.streamed, gpus) if gpus else "has no GPU"
    on_host = _lack(need.host, 0, hosts) if hosts else "CPU fallback is off"
    lacks = on_host if hosts and not gpus else f"{on_gpu}, and {on_host}"
    flags = " and ".join(dict.fromkeys(device.flag for device in usable if device.flag))
    raised = f", raise {flags}" if flags else ""
    return f"{need.model} {lacks}: free memory{raised}, or drop it from --roster"


def _lack(size: int, streamed: int, devices: Sequence[DeviceRoom]) -> str:
    needs, less, *free = distinct_sizes(size, streamed, *(max(0, device.room) for device in devices))
    rooms = ", ".join(f"{room} available on {device.name}" for room, device in zip(free, devices, strict=True))
    return f"needs {needs}{f' ({less} streamed)' if streamed else ''}, {rooms}"
