"""The numbers of a run that a monitoring system collects: a fold of its journal, of all its sessions.

Counters only rise: what was computed, lost and computed again counts twice. Seconds are left out of what a device took
that is simulated, since they say nothing.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from interlock.engine.record import events as ev
from interlock.engine.record.events import Entry
from interlock.engine.record.facts import node_of, timed

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Up to how many seconds each bucket of a histogram counts; the last one, behind these, counts all."""


@dataclass
class SecondsHistogram:
    """How many times something took up to so many seconds, and all of them together."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds


@dataclass
class RunMetrics:
    """What `take` has made of the entries of a journal: counts by model, step of the ladder or device."""

    run: str = ""
    status: str = "running"
    rows: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    parked: Counter[str] = field(default_factory=Counter)
    batch_seconds: dict[str, SecondsHistogram] = field(default_factory=dict)
    leases: Counter[str] = field(default_factory=Counter)
    held: dict[str, str] = field(default_factory=dict)
    """The model of each lease that is held."""
    mitigations: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By rung and device."""
    ceilings: dict[str, int] = field(default_factory=dict)
    occupied: dict[str, int] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, bool] = field(default_factory=dict)
    """Whether each node of a cluster is there."""
    node_losses: Counter[str] = field(default_factory=Counter)
    rows_again: Counter[str] = field(default_factory=Counter)
    """By the node that was lost with them."""
    warnings: int = 0
    latest: float = 0.0
    """When anything was told last, in seconds since the epoch."""
    _models: dict[int, str] = field(default_factory=dict)

    def take(self, entry: Entry) -> None:
        """Take in the next entry."""
        self.latest = entry.at
        match entry.body:
            case ev.BatchCommitted() as batch:
                self._commit(batch, entry.device_kind)
            case ev.DeviceSampled(device=device, memory=memory):
                self._occupy(device, memory.occupied)
            case ev.RunStarted(run_id=run):
                self.run = run
            case ev.RunResumed(run_id=run):
                self.run, self.status = run or self.run, "running"
                self.held.clear()  # by a session that died
                self.nodes = dict.fromkeys(self.nodes, False)
            case ev.DevicesFound(devices=devices):
                self.ceilings = {device.name: device.ceiling_bytes for device in devices}
                self.occupied.clear()
            case ev.NodeJoined(node=node, devices=devices):
                self.nodes[node] = True
                self.ceilings |= {device.name: device.ceiling_bytes for device in devices}
            case ev.NodeLost(node=node, rows=rows):
                self._lose(node, rows)
            case ev.RosterResolved(roster=roster):
                self._models = dict(enumerate(entry.model for entry in roster))
            case ev.LeaseGranted(lease=lease, model=model):
                self.leases[model] += 1
                self.held[lease] = model
            case ev.LeaseReleased(lease=lease, receipts=receipts):
                self.held.pop(lease, None)
                for receipt in receipts:
                    self._occupy(receipt.device, receipt.peak.occupied)
                    if not receipt.lost:
                        self.occupied[receipt.device] = receipt.after.occupied
            case ev.Mitigated(rung=rung, device=device):
                self.mitigations[rung, device] += 1
            case ev.RowParked(model=model):
                self.parked[model] += 1
            case ev.Warned():
                self.warnings += 1
            case ev.RunClosed(status=status):
                self.status = status

    def _commit(self, batch: ev.BatchCommitted, device_kind: str) -> None:
        model = self._models.get(batch.model_pass, "")
        self.rows[model] += batch.rows
        self.tokens[model] += batch.tokens
        if timed(device_kind):
            self.batch_seconds.setdefault(model, SecondsHistogram()).add(batch.seconds)

    def _lose(self, node: str, rows: int) -> None:
        self.nodes[node] = False
        self.node_losses[node] += 1
        self.rows_again[node] += rows
        self.held = {lease: model for lease, model in self.held.items() if node_of(lease) != node}
        self.occupied = {device: size for device, size in self.occupied.items() if node_of(device) != node}

    def _occupy(self, device: str, occupied: int) -> None:
        self.occupied[device] = occupied
        self.peaks[device] = max(self.peaks.get(device, 0), occupied)
