"""How a run is judged: one answer for the header, for lists of runs, for `ctl status` and for what is told at its end;
with what has gone wrong in it so far.

A pure function of a snapshot. What looks at runs adds where they lie; it decides nothing about them itself.
"""

import dataclasses
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from interlock.engine.record.facts import node_of, on_host
from interlock.engine.record.journal import INTERRUPTED, Upload
from interlock.engine.record.rundir import NO_WORD
from interlock.engine.record.snapshot import GONE, DeviceView, Snapshot
from interlock.engine.record.words import duration, safe, several
from interlock.engine.standing.health import (
    CHECK,
    KEPT,
    STALLED,
    Concern,
    Health,
    Level,
    Remedy,
    goes_on,
    health,
    lost_devices,
    some,
    uploading,
)
from interlock.engine.standing.outcome import covered
from interlock.engine.standing.outlook import Outlook, time_left


@dataclass(frozen=True)
class Attention:
    """What an operator should look at, counted since the run began, or since it was looked at last."""

    lost: int = 0
    parked: int = 0
    warnings: int = 0
    mitigations: int = 0
    refused: int = 0
    """Records and files, more than the run may do without."""
    allowed: int = 0
    """Those that it may do without."""
    nodes: int = 0
    """How often a node was lost."""

    def __sub__(self, seen: "Attention") -> "Attention":
        """Count what came since `seen`; a count that fell, as in a replay, has nothing new."""
        return Attention(*(max(0, getattr(self, each.name) - getattr(seen, each.name)) for each in fields(self)))

    @property
    def losses(self) -> "Attention":
        """What will not come back by itself: GPUs, nodes, vectors of parked texts. Of these alone results lack."""
        return Attention(lost=self.lost, parked=self.parked, nodes=self.nodes)

    @property
    def rest(self) -> "Attention":
        """What is not lost, and was not answered by a mitigation."""
        return Attention(warnings=self.warnings, refused=self.refused)

    @property
    def total(self) -> int:
        return sum(getattr(self, each.name) for each in fields(self))

    @property
    def words(self) -> list[str]:
        """Name each count that is not zero, what matters most first."""
        named = [
            (self.nodes, several(self.nodes, "node lost", "node losses")),
            (self.lost, several(self.lost, "GPU") + " lost"),
            (self.parked, several(self.parked, "text") + " parked"),
            (self.warnings, several(self.warnings, "warning")),
            (self.mitigations, several(self.mitigations, "mitigation")),
            (self.refused, several(self.refused, "input") + " refused"),
            (self.allowed, several(self.allowed, "input") + " left out"),
        ]
        return [text for number, text in named if number]


CALM = Attention()
LEVELS: tuple[Level, ...] = ("ok", "idle", "warn", "error")
SLOW = 15.0
"""Seconds without an answer from which on a server is waited for."""
SAID = 40
"""Signs of what it says that leave room for all else."""
ANSWERS, HUNG = 20, 1200.0
"""A GPU has hung where a run makes no progress for the time of so many of its longest batches, and so many seconds."""
HISTORY, NIGHT = 4, 86_400.0
"""The rank of a run that needs nobody any more, and seconds after which one is that with which nobody goes on."""


class DeviceUse(NamedTuple):
    """A device in a list: how much of what the run may have of it is used, 0 to 1 (above where the ceiling was passed);
    None where nobody uses it any more, or tells."""

    name: str
    share: float | None = None
    level: Level = "ok"
    lost: bool = False


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """How a run stands, what went wrong, how far it is (0 to 1; None where nobody wrote it down), when it ends (None
    where nobody knows, or nothing goes on), and its devices."""

    health: Health
    attention: Attention = CALM
    share_done: float | None = None
    left: Outlook | None = None
    devices: tuple[DeviceUse, ...] = ()
    ran: "Judgement | None" = None
    """The run by itself, where the rest tells of its upload."""


J = TypeVar("J", bound=Judgement)


def judge(snapshot: Snapshot, now: float, upload: Upload | None = None, run: Path | None = None) -> Judgement:
    """Judge a run at `now`, in seconds since the epoch; the moment of its latest entry where it is replayed. An
    `upload` counts once the run has ended. Where its directory is given, commands that go on with it are written."""
    state = health(snapshot, now, run)
    computes = snapshot.phase == "running" and not snapshot.paused and state.word != STALLED
    judged = Judgement(
        health=state,
        attention=attention(snapshot),
        share_done=snapshot.share_done,
        left=time_left(snapshot) if computes else None,
        devices=tuple(_use(device, over=not goes_on(snapshot)) for device in snapshot.devices),
    )
    return uploaded(judged, upload, now) if snapshot.over else judged


def _use(device: DeviceView, *, over: bool) -> DeviceUse:
    if device.lost:
        return DeviceUse(device.facts.name, level="error", lost=True)
    level: Level = "ok" if over or not device.taken else "warn" if device.leased else "error"
    return DeviceUse(device.facts.name, device.share if device.memory and not over else None, level)


def uploaded(judged: J, upload: Upload | None, now: float) -> J:
    """How a run stands that has ended, and is on its way to a server or was not brought there whole; how much of it is
    there."""
    if not upload:
        return judged
    going, state = upload.live and upload.latest.ended is None, judged.health
    found = _on_its_way(upload, now) if going else _broken_off(upload)
    worse = max(state.level, found.level, key=LEVELS.index)
    ran, concerns = f"the run is over ({state.word})" * (state.level in LEVELS[2:]), list(found.concerns)
    named = next((each for each in state.concerns if not each.remedy or each.remedy.command != CHECK), None)
    for concern in state.concerns if ran else ():
        told = concern.remedy
        if told and told.command != CHECK:
            again = "upload it again after that" * (upload.to.url not in told.command)
            when = "after the upload " * going + told.when.removeprefix(KEPT)
            told = told._replace(when=uploading(when, again))
        concerns.append(Concern(f"{ran}: " * (concern is named) + concern.why, told, concern.level or state.level))
    share = upload.latest.rows / upload.to.rows if upload.to.rows else float(bool(upload.to.collection))
    detail = "; ".join(filter(None, [found.detail, ran]))
    return dataclasses.replace(
        judged,
        health=Health(found.word, worse, detail, found.stuck or state.stuck, tuple(concerns)),
        share_done=share,
        ran=judged,
    )


def _on_its_way(upload: Upload, now: float) -> Health:
    latest = upload.latest
    level: Level = "warn"
    since = duration(max(0.0, now - (latest.since or latest.at)))
    ends = duration(max(0.0, latest.until - now))
    if latest.attempts:
        last = f"{safe(latest.waits, SAID)}, {several(latest.attempts, 'attempt')} in {since}"
        why = f"check the server, which is retried for {ends} more: {last}"
    elif latest.at and now - latest.at > SLOW:
        why = f"check the server: no answer for {duration(now - latest.at)}, the upload waits for it"
    elif latest.waits:
        why = f"wait: {latest.waits} for {since}, gives up in {ends}"
        level = "warn" if latest.cut else "idle"
    else:
        left = "" if latest.left is None else f", {duration(latest.left)} left"
        told = _points(upload) + left
        return Health("UPLOADING", "ok", told, concerns=(Concern(told, level="ok"),))
    told = f"{why}; {_points(upload)}"
    again = Remedy("if it gives up, upload the rest with", upload.onward)
    return Health("UPLOAD WAITING", level, told, concerns=(Concern(told, again, level),))


def _broken_off(upload: Upload) -> Health:
    if not upload.to.collection:
        told = f"nothing is at {upload.to.url.partition('://')[2]}"
        begin = Concern(
            told, Remedy("unless its process compares the files now, upload it with", upload.onward), "warn"
        )
        return Health("UPLOAD NOT BEGUN", "warn", told, concerns=(begin,))
    ended, unsaid = upload.latest.ended, "the flags that it had and " * (upload.to.flags is None)
    told = f"{_points(upload)}: {ended or NO_WORD}"
    again = (Concern(told, Remedy(f"continue it with {unsaid}".rstrip(), upload.onward)),)
    if ended == INTERRUPTED:
        return Health("UPLOAD STOPPED", "warn", told, concerns=again)
    return Health("UPLOAD DIED" if ended is None else "UPLOAD FAILED", "error", told, True, again)


def _points(upload: Upload) -> str:
    """Say how much of it is there, and where that is."""
    to = upload.to
    return f"{upload.latest.rows:,} of {several(to.rows, 'point')} at {to.url.partition('://')[2]} ({to.collection})"


def left_behind(seen: Snapshot, why: str) -> Snapshot:
    """The run once no process has it in use: its process died where it was not closed, and what is known of `why`."""
    return seen if seen.over else replace(seen, phase=GONE, reason=why)


def need(judged: Judgement, *, held: bool, latest_at: float, now: float) -> int:
    """Rank a run by how much it needs somebody, low first: what stands still or ended by a fault, what lacks something
    for good, what goes on without something or ended so, all else; history last."""
    if not held and now - latest_at > NIGHT:
        return HISTORY
    if judged.health.stuck:
        return 0
    level = judged.health.level
    return 1 if level == "error" or judged.attention.parked else 2 if level == "warn" else 3


def attention(snapshot: Snapshot) -> Attention:
    """Count what an operator should look at in a run."""
    return Attention(
        lost=max(len(lost_devices(snapshot)), _losses(snapshot)),
        parked=snapshot.parked,
        warnings=snapshot.warnings,
        mitigations=snapshot.mitigations,
        refused=sum(each.refused for each in snapshot.collections if not covered(each.read, snapshot.config)),
        allowed=sum(each.refused for each in snapshot.collections if covered(each.read, snapshot.config)),
        nodes=sum(len(node.losses) for node in snapshot.nodes),
    )


def _losses(snapshot: Snapshot) -> int:
    """Count what was lost in all sessions, but for what went with its node."""
    gone = {node.node for node in snapshot.nodes if node.lost}
    return sum(node_of(each.device) not in gone for each in snapshot.losses)


def hung(snapshot: Snapshot, still: float) -> str:
    """Say which GPUs have not answered for the `still` seconds in which they were awaited; empty where they may yet."""
    held = awaited(snapshot)
    if not held or still < max(HUNG, ANSWERS * snapshot.slowest):
        return ""
    return f"{some(held)} {'has' if len(held) == 1 else 'have'} not answered for {duration(still)}"


def awaited(snapshot: Snapshot) -> list[str]:
    """Name the GPUs that are to answer now."""
    if snapshot.phase != "running" or snapshot.paused:
        return []
    held = [device.facts.name for device in snapshot.devices if device.leased and not device.lost]
    return [name for name in held if not on_host(name)]
