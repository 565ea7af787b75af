"""What the console says when it asks, labels or exports something, as pure text from plain state."""

from interlock.console.actions import Action
from interlock.console.control.protocol import Foreseen
from interlock.engine.compute.schedule import Schedule
from interlock.engine.record.facts import on_host
from interlock.engine.record.snapshot import Snapshot
from interlock.engine.record.words import duration, several
from interlock.engine.standing.health import goes_on
from interlock.engine.standing.outlook import time_left
from interlock.widgets.formats import clock, placed
from interlock.widgets.panes.events import Line


def label(
    action: Action, snapshot: Snapshot, *, past: bool = False, playing: bool = False, watched: bool = False
) -> str:  # fmt: skip
    """Name what a key would do now, of a run, which may be `watched`, or of its `past`, which may be `playing`."""
    match action.name:
        case "pause" if snapshot.paused:
            return "Resume"
        case "freeze" if past:
            return "Pause" if playing else "Play"
        case "step('back')" if not past:
            return "Past"
        case "quit" if watched and goes_on(snapshot):
            return "Leave"
    return action.label


def foreseen(wanted: Schedule, then: Foreseen, snapshot: Snapshot) -> list[str]:
    """Tell what another schedule would do to the cells that are left, as the engine foresees it."""
    if not snapshot.passes:
        return ["Batches are not planned yet; the change takes effect with the first lease."]
    if then.unknown:
        return [f"What would move is not known: {then.unknown}."]
    if not then.leases and any(each.batches_done < each.batches for each in snapshot.passes):
        return ["Nothing is leased now; the change takes effect with the next lease."]
    if not then.leases:
        return ["Nothing is left to compute, so nothing would move."]
    names = {each.model_pass: each.model for each in snapshot.passes}
    lines = ["Current leases end after their batches, then:"]
    for lease in then.leases:
        model = names.get(lease.model_pass, f"pass {lease.model_pass + 1}")
        streamed = ", layers streamed" if lease.streamed else ""
        batches = several(lease.batches, "batch", "batches")
        lines.append(f"  {model}: {batches} on {placed(lease.devices, ', ')}{streamed}")
    if wanted is Schedule.SHARED and len(then.leases) == 1:
        lines.append("No other model fits beside it now.")
    lines.append("Models that move are attached again; no committed batch is recomputed.")
    return lines


def staying(snapshot: Snapshot) -> list[str]:
    """Tell what another schedule does for which everything that is leased stays where it is."""
    held = {lease.model_pass: lease.model for lease in snapshot.leases if lease.held}
    models = " and ".join(held.values()) or "the leased model"
    return [
        f"Nothing changes now: {models} stays in place and no lease ends. The change takes effect with the next lease."
    ]


def no_other(snapshot: Snapshot) -> str:
    """Say why no other schedule would change anything, now or later; empty where one may."""
    left = [each for each in snapshot.passes if each.batches_done < each.batches and not each.failure]
    if len(left) != 1:
        return ""
    return f"Only {left[0].model} has work left, so nothing would change."


def no_fallback(snapshot: Snapshot) -> list[str]:
    lines = [
        "A model that fits on no GPU is refused and a text that does not fit is parked, so the run may end "
        "incomplete (exit code 1).",
    ]
    if any(lease.held and any(map(on_host, lease.devices)) for lease in snapshot.leases):
        lines.append("The lease on the CPU ends after its batch.")
    left = snapshot.batches - snapshot.batches_done
    return [*lines, f"{left:,} of {several(snapshot.batches, 'batch', 'batches')} left."]


def fallback(snapshot: Snapshot) -> list[str]:
    lines = [
        "Models and batches that fit on no GPU are computed on the CPU (float32) instead of being refused or parked. "
        "This is many times slower.",
    ]
    left = time_left(snapshot)
    return [*lines, f"{duration(left.seconds)} left at the current pace."] if left else lines


def stopping(snapshot: Snapshot) -> list[str]:
    """Tell how far the run is, and that stopping loses nothing of that."""
    done, of = snapshot.batches_done, snapshot.batches
    left = time_left(snapshot)
    time = f", about {duration(left.seconds)} left" if left else ""
    return [
        f"{done:,} of {several(of, 'batch', 'batches')} committed{time}.",
        "Committed batches are kept, whatever you choose.",
    ]


def exported(line: Line) -> str:
    """Write an event as it stands in a file: in UTC, with its severity and its kind."""
    return f"{clock(line.at, '%Y-%m-%dT%H:%M:%SZ', utc=True)} {line.severity:<7} {line.word:<10} {line.text}"
