"""What the console says when it asks, labels or exports something, as pure text from plain state."""

import time

from interlock.console.actions import Action
from interlock.engine.passes.schedule import Placement, Schedule
from interlock.engine.record.snapshot import Snapshot
from interlock.engine.record.units import duration
from interlock.widgets.events import Line


def label(action: Action, snapshot: Snapshot) -> str:
    """What a key would do now."""
    return "Go on" if action.name == "pause" and snapshot.paused else action.label


def foreseen(wanted: Schedule, then: Placement | None, snapshot: Snapshot) -> list[str]:
    """What another schedule would do to the cells that are left, as the engine foresees it."""
    if not snapshot.passes:
        return ["The batches are not planned yet: it counts from the first lease on."]
    if then is None or not then.assignments:
        return ["Nothing is left to compute: no cell would change its place."]
    names = {each.model_pass: each.model for each in snapshot.passes}
    lines = ["The leases that are held end after their batches; then:"]
    for assignment in then.assignments:
        model, batches = names.get(assignment.model_pass, f"pass {assignment.model_pass}"), len(assignment.batches)
        streamed = ", layers streamed" if assignment.streamed else ""
        lines.append(f"  {model}: {batches:,} batches on {', '.join(assignment.devices)}{streamed}")
    if wanted is Schedule.SHARED and len(then.assignments) == 1:
        lines.append("No other model fits beside it now.")
    lines.append("Models that move are attached anew; no committed batch is redone.")
    return lines


def staying(snapshot: Snapshot) -> list[str]:
    """What another schedule does for which everything that is leased stays where it is."""
    held = {lease.model_pass: lease.model for lease in snapshot.leases if lease.held}
    return [
        f"Nothing changes now: {' and '.join(held.values()) or 'what is leased'} would stay where it is,",
        "and no lease ends. It counts from the next lease on.",
    ]


def no_other(snapshot: Snapshot) -> str:
    """Why no other schedule would change anything, now or later; empty where one may."""
    left = [each for each in snapshot.passes if each.batches_done < each.batches and not each.failure]
    if len(left) != 1:
        return ""
    return f"{left[0].model} is the only model that has anything left to compute: it goes on as it is."


def no_fallback(snapshot: Snapshot) -> list[str]:
    """What forbidding the CPU means."""
    lines = [
        "A model that fits on no GPU is then refused, a row that does not",
        "is parked, and the run will be incomplete (exit code 1).",
    ]
    if any(lease.held and "cpu" in lease.devices for lease in snapshot.leases):
        lines.append("What is on the CPU now ends its turn there.")
    return [*lines, f"{snapshot.batches - snapshot.batches_done:,} of {snapshot.batches:,} batches are left."]


def fallback(snapshot: Snapshot) -> list[str]:
    """What allowing the CPU means."""
    lines = [
        "A model or a batch that finds no room on a GPU is computed on the CPU in float32",
        "instead of being refused or parked. That takes many times longer.",
    ]
    left = snapshot.seconds_left()
    return [*lines, f"As it goes now, {duration(left)} are left."] if left else lines


def stopping(snapshot: Snapshot) -> list[str]:
    """What is lost by stopping now."""
    done, of = snapshot.batches_done, snapshot.batches
    left = snapshot.seconds_left()
    time = f", about {duration(left)} left" if left else ""
    return [f"{done:,} of {of:,} batches are committed{time}.", "What is committed stays, whatever you choose."]


def exported(line: Line) -> str:
    """An event as it stands in a file: in UTC, with its severity and its kind."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(line.at))
    return f"{at} {line.severity:<7} {line.word:<10} {line.text}"
