"""How far a run is, in one line: for a log, and for a line that is written over in place."""

from interlock.console.text.machine_text import feigned
from interlock.engine.record.facts import timed
from interlock.engine.record.snapshot import Snapshot
from interlock.engine.record.words import drawn, duration, pass_of, percent
from interlock.engine.standing.health import batches_of
from interlock.engine.standing.outlook import DOING, doing, time_left, time_left_of
from interlock.widgets.formats import cut, width_of

LEAST_SECONDS, MOST_SECONDS, SHARE = 10.0, 300.0, 30
BAR = 20
"""Cells."""


def interval(elapsed: float) -> float:
    """Say how many seconds after a line the next one is due: more and more, so that a run of nine hours has some two
    hundred of them."""
    return min(MOST_SECONDS, max(LEAST_SECONDS, elapsed / SHARE))


def bar(snapshot: Snapshot, width: int) -> str:
    """Draw how far a run is in at most `width` cells of a terminal; what matters least is left out first."""
    if snapshot.over or not snapshot.running:
        return cut(drawn(progress(snapshot)), width)
    now, *others = snapshot.running
    left = None if snapshot.paused else time_left(snapshot)
    full = int(BAR * snapshot.share_done)
    parts = [f"[{'#' * full}{'.' * (BAR - full)}] {percent(snapshot.share_done)}"] + ["paused"] * snapshot.paused
    if timed(snapshot.device_kind):
        parts += [f"eta {duration(left.seconds)}"] if left else []
    else:
        parts.append(feigned(snapshot.device_kind).strip())
    mine = f"{pass_of(now.model_pass, len(snapshot.passes))} {now.model} {batches_of(now)}".rstrip()
    parts.append(f"{1 + len(others)} passes at once" if others else mine)
    if timed(snapshot.device_kind) and now.rows_per_second and not others:
        parts.append(f"{now.rows_per_second:.1f} texts/s")
    parts = list(map(drawn, parts))
    while len(parts) > 1 and width_of("  ".join(parts)) > width:
        parts.pop()
    return cut("  ".join(parts), width)


def progress(snapshot: Snapshot) -> str:
    """Say what is being done and how far it has come: the run, then the pass; nothing of a run that is over."""
    if snapshot.over or not snapshot.running or snapshot.phase in DOING:
        return "" if snapshot.over else doing(snapshot)
    now, *others = snapshot.running
    parts = ["paused"] * snapshot.paused + [f"{percent(snapshot.share_done).strip()} of the run"]
    told = [f"{each.model} {percent(each.share_done).strip()}" for each in snapshot.running]
    if others:
        parts.append(f"{len(told)} passes at once ({', '.join(told)})")
    else:
        parts.append(f"{pass_of(now.model_pass, len(snapshot.passes))} {told[0]}")
        parts += [batches_of(now)] if now.batches_done else []
    if timed(snapshot.device_kind):
        parts += [f"{now.rows_per_second:.1f} texts/s"] * bool(now.rows_per_second and not others)
        if not snapshot.paused:  # else nobody knows how long
            mine, left = time_left_of(now, snapshot.passes), time_left(snapshot)
            later = [each for each in snapshot.passes if each.batches_done < each.batches and not each.failure][1:]
            parts += [f"{duration(mine.seconds)} left in this pass"] if mine and later and not others else []
            parts += [f"{duration(left.seconds)} left in all"] if left else []
    if snapshot.deadline:
        parts.append(f"deadline in {duration(max(0.0, snapshot.deadline - snapshot.latest_at))}")
    return f"{', '.join(parts)} {feigned(snapshot.device_kind)}".rstrip()
