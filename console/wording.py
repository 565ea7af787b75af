"""What the console says when it asks, labels or exports something, as pure text from plain state."""

import time

from console.actions import Action
from engine.passes.schedule import Round, Schedule
from engine.record.durable import duration
from engine.record.snapshot import Snapshot
from widgets.events import Line


def label(action: Action, snapshot: Snapshot) -> str:
    """What a key would do now."""
    return "Go on" if action.name == "pause" and snapshot.paused else action.label


def foreseen(wanted: Schedule, then: Round | None, snapshot: Snapshot) -> list[str]:
    """What another schedule would do to the cells that are left, as the engine foresees it."""
    if then is None or not then.turns:
        return ["Nothing is left to compute: no cell would change its place."]
    names = {each.model_pass: each.model for each in snapshot.passes}
    lines = ["The leases that are held end after their batches; then:"]
    for turn in then.turns:
        model, batches = names.get(turn.model_pass, f"pass {turn.model_pass}"), len(turn.batches)
        streamed = ", layers streamed" if turn.streamed else ""
        lines.append(f"  {model}: {batches:,} batches on {', '.join(turn.devices)}{streamed}")
    if wanted is Schedule.SHARED and len(then.turns) == 1:
        lines.append("No other model fits beside it: it stays one at a time for now.")
    lines.append("Each model that moves is attached anew; no committed batch is done again.")
    return lines


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
