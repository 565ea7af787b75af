"""How a run stands, in one word that an operator can act on, and what has gone wrong in it so far.

Pure functions of a snapshot and of what is known of where it comes from; the header, lists of runs and `ctl status` say
the same.
"""

from dataclasses import dataclass, fields
from typing import Literal

from interlock.engine.record.counting import nodes_reached, several
from interlock.engine.record.facts import node_of, on_host
from interlock.engine.record.snapshot import GONE, Snapshot
from interlock.engine.record.units import duration

STALLED, DEGRADED = "STALLED", "DEGRADED"
Level = Literal["ok", "idle", "warn", "error"]
PATIENCE, FIRST_PATIENCE, BATCHES = 60.0, 300.0, 8
"""Seconds without any progress after which a run has stalled: in a pass that has committed a batch in this session, and
in one that has not, which may be reading its weights; and in any case the time of so many of its longest batches."""
ENDED: dict[str, tuple[str, Level]] = {
    "completed": ("DONE", "ok"),
    "incomplete": ("INCOMPLETE", "warn"),
    "stopped": ("STOPPED", "warn"),
    "failed": ("FAILED", "error"),
    "skipped": ("SKIPPED", "warn"),
}


@dataclass(frozen=True)
class Health:
    """One word for how a run stands, what it is about, and how bad that is."""

    word: str
    level: Level
    detail: str = ""


def health(snapshot: Snapshot, now: float) -> Health:
    """Find how a run stands at `now`, in seconds since the epoch; the moment of its latest entry where it is replayed.

    What ended it comes first, then what keeps it from going on, then what it goes on without.
    """
    if snapshot.over:
        word, level = ENDED.get(snapshot.phase, (snapshot.phase.upper(), "error"))
        return Health(word, level, snapshot.reason)
    if snapshot.phase == GONE:
        return Health("PROCESS DIED", "error", snapshot.reason)
    if snapshot.paused:
        return Health("PAUSED", "warn", nodes_reached(snapshot, "pause"))
    if (still := now - snapshot.progressed_at) > _patience(snapshot):
        return Health(STALLED, "error", f"no progress for {duration(still)}")
    if without := degraded(snapshot):
        doing = "" if snapshot.phase == "running" else f", {snapshot.phase}"
        return Health(DEGRADED, "warn", without + doing)
    return Health("RUN", "ok") if snapshot.phase == "running" else Health(snapshot.phase.upper(), "idle")


def degraded(snapshot: Snapshot) -> str:
    """Say what a run goes on without; empty where it has all that it began with."""
    gone, lost = sum(bool(node.lost) for node in snapshot.nodes), _lost(snapshot)
    failed = sum(bool(each.failure) for each in snapshot.passes)
    fell_back = snapshot.on_gpus and any(lease.held and any(map(on_host, lease.devices)) for lease in snapshot.leases)
    parts = [several(gone, "node") + " lost"] * bool(gone) + [several(lost, "GPU") + " lost"] * bool(lost)
    parts += [several(failed, "model") + " failed"] * bool(failed)
    parts += ["computing on the CPU"] * fell_back
    return ", ".join(parts)


def _lost(snapshot: Snapshot) -> int:
    """Count lost devices, but for those that went with their node."""
    gone = {node.node for node in snapshot.nodes if node.lost}
    return sum(bool(device.lost) and node_of(device.facts.name) not in gone for device in snapshot.devices)


def _patience(snapshot: Snapshot) -> float:
    """Seconds that may pass without progress. Reading and delivering tell of none: they are never said to stall."""
    if snapshot.phase != "running" or not snapshot.progressed_at:
        return float("inf")
    return max(PATIENCE if snapshot.slowest else FIRST_PATIENCE, BATCHES * snapshot.slowest)


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


def attention(snapshot: Snapshot) -> Attention:
    """Count what an operator should look at in a run."""
    return Attention(
        lost=_lost(snapshot),
        parked=sum(each.parked for each in snapshot.passes),
        warnings=snapshot.warnings,
        mitigations=snapshot.mitigations,
        refused=sum(each.refused for each in snapshot.collections),
        nodes=sum(len(node.losses) for node in snapshot.nodes),
    )
