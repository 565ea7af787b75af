"""The state of a run: what screens show and what the summary says. `fold` is the only way in.

It keeps the facts themselves, and what adds up added up. `RunStatus` is what a front end is told as it stands: state
and snapshot both are one.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct, field
from msgspec.structs import replace

from interlock.engine.record import events as ev
from interlock.engine.record.facts import (
    NO_WORK,
    DeviceFacts,
    Grant,
    Memory,
    MissingModel,
    Readings,
    Receipt,
    RosterEntry,
    Status,
    Tally,
    on_host,
    timed,
)

HISTORY = 600
"""Samples of a device, and seconds of the pace, that are kept: ten minutes."""
SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Up to how many seconds a batch took that is counted together; behind these, all others."""


HEAD = "head"
"""By which name the head of a cluster tells how its own machine stands."""


class Lately(Struct):
    """Cost and seconds of the latest batches, and those between them: each batch counts a little less with every later
    one. `squares` is of their paces, each weighted with its cost: with it one can tell how much they differ."""

    FADES: ClassVar[float] = 0.9
    cost: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    idle: float = 0.0

    def add(self, cost: float, seconds: float, idle: float = 0.0) -> None:
        """Take in one batch more, before which none was under way for `idle` seconds."""
        self.cost = self.cost * self.FADES + cost
        self.seconds = self.seconds * self.FADES + seconds
        self.squares = self.squares * self.FADES + (seconds * seconds / cost if cost else 0.0)
        self.idle = self.idle * self.FADES + idle

    def __add__(self, other: "Lately") -> "Lately":
        idle = self.idle + other.idle
        return Lately(self.cost + other.cost, self.seconds + other.seconds, self.squares + other.squares, idle)

    @property
    def pace(self) -> float:
        """Seconds for each unit of cost; 0 before there was any."""
        return self.seconds / self.cost if self.cost else 0.0

    @property
    def varies(self) -> float:
        """The standard deviation of the batches' paces, as a share of the pace."""
        if not self.pace:
            return 0.0
        return math.sqrt(max(0.0, self.squares / self.cost - self.pace**2)) / self.pace


class Share(Struct):
    """One model's work on one collection: as first planned, priced by the latest plan, and what is done of it."""

    plan: ev.PassPlanned
    done: Tally = NO_WORK
    batches_done: int = 0
    flops_done: float = 0.0
    by_tokens: dict[bool, Lately] = field(default_factory=dict)
    by_flops: dict[bool, Lately] = field(default_factory=dict)
    """What its latest batches took, by whether the host alone computed them."""
    computed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Rows by the device and the precision that computed them."""
    lost: Tally = NO_WORK
    """What was done and did not survive, to be done again."""
    took: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    """Batches, lost ones too, by how many SECONDS they took."""

    @property
    def whole(self) -> bool:
        """Whether every batch is committed."""
        return self.batches_done == self.plan.batches

    @property
    def devices(self) -> set[str]:
        """The devices that computed it."""
        return {device for (device, _), rows in self.computed.items() if rows}

    def flops_of(self, batch: Tally) -> float:
        """Predict what a batch costs, in operations; 0 where that is not known."""
        cost = self.plan.cost
        return cost.of(batch.spans or batch.rows, batch.tokens + batch.padding) if cost else 0.0

    def take(self, batch: ev.BatchCommitted, dtype: str, idle: float) -> None:
        """Count a batch, `idle` seconds after another was under way; `dtype` is that of rows that do not say theirs."""
        flops = self.flops_of(batch)
        self.batches_done += 1
        self.done += batch
        self.flops_done += flops
        hosted = all(map(on_host, batch.device.split(",")))
        self.by_tokens.setdefault(hosted, Lately()).add(batch.tokens, batch.seconds, idle)
        self.by_flops.setdefault(hosted, Lately()).add(flops, batch.seconds, idle)
        self.took[bisect_left(SECONDS, batch.seconds)] += 1
        self.computed.update(_places(batch, dtype))

    def lose(self, batch: ev.BatchCommitted, dtype: str) -> None:
        """Take a batch out again that did not survive."""
        self.batches_done -= 1
        self.done -= batch
        self.lost += batch
        self.flops_done -= self.flops_of(batch)
        self.computed.subtract(_places(batch, dtype))


def _places(batch: ev.BatchCommitted, dtype: str) -> dict[tuple[str, str], int]:
    if not batch.parts:
        return {(batch.device, batch.dtype or dtype): batch.rows}
    return {(part.device, part.dtype): part.rows for part in batch.parts}


class Course(Struct):
    """How a number went from its first second on: the most of every `step` seconds. Where they become too many, two
    of them become one."""

    step: int = 1
    count: int = 0
    values: list[int] = field(default_factory=list)

    def add(self, value: int) -> None:
        if self.count % self.step:
            self.values[-1] = max(self.values[-1], value)
        else:
            self.values.append(value)
        self.count += 1
        if len(self.values) == HISTORY and not self.count % self.step:
            self.values = list(map(max, self.values[::2], self.values[1::2]))
            self.step *= 2


class Gauge(Struct):
    """A device and how it stands: the sample of each of the last seconds of this session, and the course of its
    `occupied` bytes over all of them."""

    facts: DeviceFacts
    memory: Memory | None = None
    readings: Readings | None = None
    peak: int = 0
    latest: deque[ev.DeviceSampled] = field(default_factory=lambda: deque(maxlen=HISTORY))
    course: Course = field(default_factory=Course)
    second: int | None = None
    """That of the latest sample."""
    lost: str = ""
    taken: ev.MemoryTaken | None = None
    """While others have what the next batch needs."""

    def take(self, sample: ev.DeviceSampled, second: int) -> None:
        """Take in a sample; seconds without one were as it says, and a second has one value."""
        self.memory, self.readings = sample.memory, sample.readings
        self.peak = max(self.peak, sample.memory.occupied)
        since = 1 if self.second is None else min(second - self.second, HISTORY)
        self.second = second
        for _ in range(since):
            self.latest.append(sample)
            self.course.add(sample.memory.occupied)


class CollectionState(Struct):
    """What is known of one collection; until it was read, `read` holds zeros."""

    read: ev.CollectionRead
    refusals: list[ev.RecordRefused] = field(default_factory=list)
    shares: dict[int, Share] = field(default_factory=dict)
    mitigations: list[ev.Mitigated] = field(default_factory=list)
    pressure_passed: list[ev.PressurePassed] = field(default_factory=list)
    artefacts: dict[str, ev.ArtefactWritten] = field(default_factory=dict)
    verification: ev.StoreVerified | None = None
    kept: dict[str, ev.VectorsKept] = field(default_factory=dict)
    missing: list[MissingModel] = field(default_factory=list)
    """The models that it was delivered without."""
    warnings: dict[str, None] = field(default_factory=dict)
    status: Status | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        return self.read.collection


class LeaseState(Grant, frozen=True, kw_only=True):
    """A lease from its grant to its receipt."""

    weights_bytes: int = 0
    weights_on: dict[str, int] = field(default_factory=dict)
    attach_seconds: float = 0.0
    warm: bool = False
    held_seconds: float | None = None
    receipts: list[Receipt] = field(default_factory=list)
    granted_at: float = 0.0
    left: bool = False
    """Whether its session or its node was gone before it was released."""
    left_at: float = 0.0
    """When that was last heard of, in seconds since the epoch."""

    @property
    def held(self) -> bool:
        return self.held_seconds is None and not self.left


class Control(Struct, frozen=True):
    """What an operator asked for, when it was answered (seconds since the epoch), and why not, where it was refused."""

    control: str
    value: str
    who: str
    at: float
    refused: str = ""


class Pace(Struct):
    """Rows and tokens committed in each second of work, the latest last; `second` is which one that is."""

    second: int = 0
    rows: deque[int] = field(default_factory=lambda: deque([0], maxlen=HISTORY))
    tokens: deque[int] = field(default_factory=lambda: deque([0], maxlen=HISTORY))

    def copy(self) -> "Pace":
        return Pace(self.second, self.rows.copy(), self.tokens.copy())

    def reach(self, second: int) -> None:
        """Count on to a second; those in which nothing was committed count too."""
        for _ in range(min(second - self.second, HISTORY)):
            self.rows.append(0)
            self.tokens.append(0)
        self.second = max(self.second, second)


NodeEvent = ev.NodeJoined | ev.NodeLost | ev.NodeRefused | ev.ControlReached | ev.BatchesDoubled


class NodeState(Struct, frozen=True, kw_only=True):
    """A node of a cluster; what was lost, computed again and sent counts over all sessions."""

    node: str
    label: str = ""
    devices: tuple[str, ...] = ()
    since: float | None = None
    """When it joined in this session, in seconds since the epoch; None before that."""
    lost: str = ""
    """Why it is gone; empty while it is there."""
    refused: str = ""
    losses: tuple[str, ...] = ()
    """Why it was lost, each time."""
    batches_again: int = 0
    """Batches that it alone held when it was lost, and that were computed again; so many `rows_again`."""
    rows_again: int = 0
    batches_doubled: int = 0
    """Batches that another node was given too, because this one was slow."""
    sent_bytes: int = 0
    reached: dict[str, str] = {}
    """What is in force on it, by control."""

    @property
    def here(self) -> bool:
        """Whether it computes now."""
        return self.since is not None and not self.lost

    def after(self, event: NodeEvent, at: float, in_force: dict[str, str]) -> "NodeState":
        """Return it as it is after an event of `at`, in seconds since the epoch; one that joins has all controls as
        they are `in_force` then."""
        match event:
            case ev.NodeJoined():
                sent, names = self.sent_bytes + event.sent_bytes, tuple(each.name for each in event.devices)
                anew = replace(self.before_joining(), label=event.label, devices=names)
                return replace(anew, since=at, sent_bytes=sent, reached=in_force)
            case ev.NodeLost():
                batches, rows = self.batches_again + event.batches, self.rows_again + event.rows
                again = replace(self, batches_again=batches, rows_again=rows)
                return replace(again, lost=event.reason, losses=(*self.losses, event.reason))
            case ev.NodeRefused():
                return replace(self, refused=event.reason)
            case ev.ControlReached():
                return replace(self, reached=self.reached | {event.control: event.value})
            case ev.BatchesDoubled():
                return replace(self, batches_doubled=self.batches_doubled + len(event.batches))

    def before_joining(self) -> "NodeState":
        """Return what of it outlasts a session."""
        return replace(self, since=None, lost="", refused="", reached={})


class RunStatus(Struct, kw_only=True):
    """How a run stands in plain values, times in seconds since the epoch."""

    began_at: float = 0.0
    latest_at: float = 0.0
    progressed_at: float = 0.0
    """When anything was told last but a sample, or an answer to an operator that lifts no pause."""
    device_kind: str = ""
    schedule: str = "exclusive"
    cpu_fallback: bool = True
    paused: bool = False
    deadline: float = 0.0
    """When the latest session has to be over; 0 where it has no end."""
    slowest: float = 0.0
    """Seconds of the longest batch of the current pass in this session."""
    covered: float = 0.0
    busy: float = 0.0
    opened: int = 0
    opening: float = 0.0
    opens: bool = False
    """When this session's first lease was granted or its latest batch done, by the seconds of work in all sessions; how
    many from the one to the other were no lease's and no pause's. How often a lease was granted where none was held and
    a batch followed, how long none was under way the last time, and whether one is to follow now."""
    rows_before: int = 0
    """What earlier sessions have computed."""
    current_pass: int | None = None
    batch_index: int | None = None
    """That of the latest batch."""
    reason: str = ""
    exit_code: int | None = None

    @property
    def in_force(self) -> dict[str, str]:
        """What operators may change, as controls have it."""
        switches = {"pause": self.paused, "cpu_fallback": self.cpu_fallback}
        return {name: "yes" if on else "no" for name, on in switches.items()} | {"schedule": self.schedule}


class RunState(RunStatus, kw_only=True):
    """Everything an operator or an auditor may ask of a run."""

    stage: str = "starting"
    """What the latest session has come to: starting, resolving, reading, planning or running."""
    started: ev.RunStarted | None = None
    status: Status | None = None
    kinds: set[str] = field(default_factory=set)
    """Of the devices of all sessions."""
    session: int = 0
    seconds_of_session: dict[int, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    devices: dict[str, Gauge] = field(default_factory=dict)
    beats: dict[str, ev.Heartbeat] = field(default_factory=dict)
    """The latest of each kind, by its name, and the head's own of its machine."""
    peaks: dict[tuple[str, str], int] = field(default_factory=dict)
    """Of devices that earlier sessions, or nodes before they joined again, had; by name and label."""
    nodes: dict[str, NodeState] = field(default_factory=dict)
    """Empty on one machine."""
    controls: list[Control] = field(default_factory=list)
    pace: Pace = field(default_factory=Pace)
    mitigations: list[ev.Entry] = field(default_factory=list)
    """What the journal says of them, of all sessions."""
    mitigated: Counter[int] = field(default_factory=Counter)
    hosted: dict[int, ev.Mitigated] = field(default_factory=dict)
    """Why a pass was given to the CPU, the last time."""
    canaries: list[ev.CanaryChecked] = field(default_factory=list)
    calibrations: dict[tuple[int, str], ev.MemoryCalibrated] = field(default_factory=dict)
    residues: list[ev.ResidueFound] = field(default_factory=list)
    roster: list[RosterEntry] = field(default_factory=list)
    paces: dict[str, float] = field(default_factory=dict)
    """Tokens a second on one device of earlier runs, by model."""
    models: list[ev.ModelResolved] = field(default_factory=list)
    retries: list[ev.DownloadRetried] = field(default_factory=list)
    new_shares: list[Share] = field(default_factory=list)
    """Those that were planned just now, of which batches may have been committed before."""
    texts_digest: str = ""
    """Of the texts that the run was begun with."""
    blocks: dict[int, str] = field(default_factory=dict)
    """The digest of so many first texts of it, as far as they were told while a pass was computed beside reading."""
    collections: dict[str, CollectionState] = field(default_factory=dict)
    leases: dict[str, LeaseState] = field(default_factory=dict)
    held: dict[str, LeaseState] = field(default_factory=dict)
    """The leases that are held now; searching all of them would slow down every snapshot."""
    committed: dict[int, dict[int, ev.BatchCommitted]] = field(default_factory=dict)
    batches_lost: int = 0
    parked: dict[int, dict[str, dict[int, ev.RowParked]]] = field(default_factory=dict)
    """By pass, collection and row."""
    parked_on: dict[tuple[int, int], object] = field(default_factory=dict)
    """The conditions under which the row of a pass was parked."""
    tried_again: set[tuple[int, int]] = field(default_factory=set)
    """Rows of a pass that were parked, and computed once more."""
    losses: list[ev.DeviceLost] = field(default_factory=list)
    """Of all sessions."""
    places: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)
    """Of each pass, the first batch, the number of batches and the collection of every share, sorted."""
    reused: dict[int, ev.RowsReused] = field(default_factory=dict)
    plans: dict[tuple[int, str], str] = field(default_factory=dict)
    passes_completed: set[int] = field(default_factory=set)
    failures: dict[int, ev.PassFailed] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)

    @property
    def timed(self) -> bool:
        """Whether the run's seconds say anything: those of devices that are not there do not."""
        return all(timed(kind) for kind in self.kinds or {self.device_kind})

    @property
    def conditions(self) -> object:
        """What decides whether a text that failed might not: the devices of this session, their limits and faults."""
        devices = sorted({(each.facts.label, each.facts.ceiling_bytes) for each in self.devices.values()})
        config = self.started.config if self.started else {}
        return devices, [config[name].value for name in ("faults", "host_ceiling", "cpu_fallback") if name in config]

    @property
    def elapsed(self) -> float:
        """Seconds of work in all sessions."""
        return sum(self.seconds_of_session.values())

    def shares(self) -> list[Share]:
        """Return every share of every pass, in the order of the passes."""
        shares = [share for collection in self.collections.values() for share in collection.shares.values()]
        return sorted(shares, key=lambda share: (share.plan.model_pass, share.plan.first_batch))

    def shares_of(self, model_pass: int) -> list[Share]:
        """Return every share of one pass."""
        return [each.shares[model_pass] for each in self.collections.values() if model_pass in each.shares]

    def share_of(self, model_pass: int, batch_index: int) -> tuple[CollectionState, Share] | None:
        """Return the collection and share that a cell of the grid belongs to."""
        places = self.places.get(model_pass, [])
        at = bisect_right(places, batch_index, key=lambda place: place[0]) - 1
        if at < 0 or batch_index >= places[at][0] + places[at][1]:
            return None
        collection = self.collections[places[at][2]]
        return collection, collection.shares[model_pass]

    def done_of(self, plan: ev.PassPlanned) -> list[ev.BatchCommitted]:
        """Return the committed batches of a share, in the order of the plan."""
        done, mine = self.committed.get(plan.model_pass, {}), range(plan.first_batch, plan.first_batch + plan.batches)
        return [done[index] for index in sorted(done) if index in mine]

    def take_in(self) -> None:
        """Count for new shares what was done of them while texts were read: together, or progress would fall."""
        for share in self.new_shares:
            plan = share.plan
            for batch in (done := self.done_of(plan)):
                share.take(batch, self.usual_dtype(plan.model_pass), 0.0)
            mine = {None, *(batch.batch_index for batch in done)}
            steps = [each.body for each in self.mitigations if isinstance(each.body, ev.Mitigated)]
            steps = [each for each in steps if each.model_pass == plan.model_pass and each.batch_index in mine]
            self.collections[plan.collection].mitigations += steps
        self.new_shares = []

    def pass_time(self, seconds: float) -> float:
        """Count the time up to the end of a batch of so many seconds; return those since another one, leases aside."""
        since, self.covered = self.elapsed - self.covered, self.elapsed
        idle = max(0.0, since - seconds)
        if self.opens:
            self.opened, self.opening, self.opens = self.opened + 1, idle, False
            since, idle = since - idle, 0.0
        self.busy += since
        return idle

    def lose(self, model_pass: int, batches: Sequence[int]) -> None:
        """Take committed batches of a pass out again, with the rows that were parked in them."""
        self.passes_completed.discard(model_pass)
        lost, parked = set(batches), self.parked.get(model_pass, {})
        for name, rows in parked.items():
            parked[name] = {row: each for row, each in rows.items() if each.batch_index not in lost}
        for batch_index in batches:
            gone = self.committed[model_pass].pop(batch_index)
            if owner := self.share_of(model_pass, batch_index):
                owner[1].lose(gone, self.usual_dtype(model_pass))

    def usual_dtype(self, model_pass: int) -> str:
        """Return what a pass was computed in where a batch of an older journal does not say."""
        return self.roster[model_pass].dtype if self.roster else ""
