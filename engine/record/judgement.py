"""How a run is judged: one answer for the header, for lists of runs, for `ctl status` and for what is told at its end;
with what has gone wrong in it so far.

A pure function of a snapshot. What looks at runs adds where they lie; it decides nothing about them itself.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

from msgspec.structs import replace

from interlock.engine.record.facts import node_of
from interlock.engine.record.health import STALLED, Health, Level, health, lost_devices
from interlock.engine.record.outlook import Outlook, time_left
from interlock.engine.record.snapshot import GONE, DeviceView, Snapshot
from interlock.engine.record.words import several


@dataclass(frozen=True)
class Attention:
    """What an operator should look at, counted since the run began, or since it was looked at last."""

    lost: int = 0
    parked: int = 0
    warnings: int = 0
    mitigations: int = 0
    refused: int = 0
    nodes: int = 0
    """How often a node was lost."""

    def __sub__(self, seen: "Attention") -> "Attention":
        """Count what came since `seen`; a count that fell, as in a replay, has nothing new."""
        return Attention(*(max(0, getattr(self, each.name) - getattr(seen, each.name)) for each in fields(self)))

    @property
    def losses(self) -> "Attention":
        """Only what is lost for good: GPUs, nodes, texts that have no vector."""
        return Attention(lost=self.lost, parked=self.parked, nodes=self.nodes)

    @property
    def total(self) -> int:
        return sum(getattr(self, each.name) for each in fields(self))

    @property
    def words(self) -> list[str]:
        """Name each count that is not zero, what matters most first."""
        named = [
            (self.nodes, several(self.nodes, "node loss", "node losses")),
            (self.lost, several(self.lost, "GPU") + " lost"),
            (self.parked, f"{self.parked} parked"),
            (self.warnings, several(self.warnings, "warning")),
            (self.mitigations, several(self.mitigations, "mitigation")),
            (self.refused, f"{self.refused} refused"),
        ]
        return [text for number, text in named if number]


CALM = Attention()
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


def judge(snapshot: Snapshot, now: float) -> Judgement:
    """Judge a run at `now`, in seconds since the epoch; the moment of its latest entry where it is replayed."""
    state, over = health(snapshot, now), snapshot.over or snapshot.phase == GONE
    computes = snapshot.phase == "running" and not snapshot.paused and state.word != STALLED
    return Judgement(
        health=state,
        attention=attention(snapshot),
        share_done=snapshot.share_done,
        left=time_left(snapshot) if computes else None,
        devices=tuple(_use(device, over=over) for device in snapshot.devices),
    )


def _use(device: DeviceView, *, over: bool) -> DeviceUse:
    if device.lost:
        return DeviceUse(device.facts.name, level="error", lost=True)
    level: Level = "ok" if over or not device.taken else "warn" if device.leased else "error"
    return DeviceUse(device.facts.name, device.share if device.memory and not over else None, level)


def left_behind(seen: Snapshot, why: str) -> Snapshot:
    """The run once no process has it in use: its process died where it was not closed, and what is known of `why`."""
    return seen if seen.over else replace(seen, phase=GONE, reason=why)


def need(judged: Judgement, *, held: bool, latest_at: float, now: float) -> int:
    """Rank a run by how much it needs somebody, low first: what stands still or ended by a fault, what lacks something
    for good, what goes on without something or ended so, all else; history last."""
    if not held and now - latest_at > NIGHT:
        return HISTORY
    state = judged.health.level
    return 0 if state == "error" else 1 if judged.attention.losses.total else 2 if state == "warn" else 3


def attention(snapshot: Snapshot) -> Attention:
    """Count what an operator should look at in a run."""
    return Attention(
        lost=max(len(lost_devices(snapshot)), _losses(snapshot)),
        parked=snapshot.parked,
        warnings=snapshot.warnings,
        mitigations=snapshot.mitigations,
        refused=sum(each.refused for each in snapshot.collections),
        nodes=sum(len(node.losses) for node in snapshot.nodes),
    )


def _losses(snapshot: Snapshot) -> int:
    """Count what was lost in all sessions, but for what went with its node."""
    gone = {node.node for node in snapshot.nodes if node.lost}
    return sum(node_of(each.device) not in gone for each in snapshot.losses)
