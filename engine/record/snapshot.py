"""What a front end knows of a run at one moment: small, frozen, and nobody's to wait for.

`snapshot` copies out of the state what screens show. It is called under the recorder's lock, so the engine may wait for
it; what is derived (rates, time left) is computed from the copy, outside the lock.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from interlock.engine.record import events as ev
from interlock.engine.record.facts import (
    NO_WORK,
    DeviceFacts,
    Memory,
    Planned,
    Readings,
    Setting,
    Tally,
    on_host,
    rehearsed,
)
from interlock.engine.record.state import (
    CollectionState,
    Control,
    Gauge,
    Lately,
    LeaseState,
    NodeState,
    Pace,
    RunState,
    RunStatus,
)

Beat = TypeVar("Beat", bound=ev.Heartbeat)
NEARLY = 1 - 1e-9
GONE = "stopped writing"
"""The phase of a run whose process is there no more."""
LEASES = 64
"""The latest leases that are shown."""


class DeviceView(Struct, frozen=True, kw_only=True):
    """One device, in bytes: `weights` are what open leases have attached; `latest` is its sample of each of the last
    seconds, oldest first, of `samples` in all; `course` the most of every `course_step` seconds of the whole run."""

    facts: DeviceFacts
    memory: Memory | None
    readings: Readings | None
    peak: int
    weights: int
    lost: str
    second: int = 0
    """That of its latest sample, of those of the run's pace."""
    latest: tuple[ev.DeviceSampled, ...] = ()
    samples: int = 0
    course: tuple[int, ...] = ()
    course_step: int = 1
    taken: ev.MemoryTaken | None = None
    leased: bool = False

    @property
    def occupied(self) -> int:
        """Bytes of this process."""
        return self.memory.occupied if self.memory else 0

    @property
    def others(self) -> int:
        """Bytes of other processes; of a host, what is not free and not ours."""
        return self.readings.others_beside(self.occupied) if self.readings else 0

    @property
    def most(self) -> int:
        """Bytes that this run may have: the ceiling, or less where others leave less."""
        return self._most(self.occupied, self.readings)

    def _most(self, occupied: int, readings: Readings | None) -> int:
        nobodys = readings.total - readings.used if readings else self.facts.total_bytes - occupied
        if readings and readings.memory_free is not None and on_host(self.facts.name):  # as a container allows it
            nobodys = readings.memory_free
        return min(self.facts.ceiling_bytes, occupied + max(0, nobodys))

    @property
    def free(self) -> int:
        """Bytes of these that nobody has."""
        return max(0, self.most - self.occupied)

    @property
    def share(self) -> float:
        """How much of these is used; above 1 where the ceiling was passed."""
        return self.occupied / self.most if self.most > 0 else 0.0

    @property
    def history(self) -> tuple[int, ...]:
        """Bytes occupied in each of the last seconds."""
        return tuple(each.memory.occupied for each in self.latest)

    @property
    def shares(self) -> tuple[float, ...]:
        """How much of what the run might have was used in each of the last seconds."""
        pairs = [(each.memory.occupied, self._most(each.memory.occupied, each.readings)) for each in self.latest]
        return tuple(occupied / most if most > 0 else 0.0 for occupied, most in pairs)

    def told(self, figure: str) -> list[int]:
        """List a figure of the readings of each of the last seconds that tell of it."""
        return [told for each in self.latest if (told := getattr(each.readings, figure, None)) is not None]


class PassView(Planned, frozen=True, kw_only=True):
    """One model over all rows, as planned and as far as it is `done`."""

    model_pass: int
    model: str
    weight: float
    word: str
    """queued, running, waiting, done, failed, missing or reused."""
    done: Tally = NO_WORK
    batches_done: int
    cells: tuple[int, ...]
    """The batch indices that are committed, in no order."""
    devices: tuple[str, ...]
    """Those that ever computed a batch of it."""
    mitigations: int
    parked: int
    failure: str
    cost: float = 0.0
    """Of all its batches, in predicted operations; in tokens where not every pass has a prediction."""
    cost_done: float = 0.0
    lately: Lately = field(default_factory=Lately)
    """What its latest batches took, on one GPU."""
    lately_on_host: Lately = field(default_factory=Lately)
    known_pace: float = 0.0
    """Tokens a second on one device in earlier runs; 0 where there was none."""
    at_work: tuple[str, ...] = ()
    """The devices that it holds now, without those that were lost."""
    kind: str = "dense"
    kept_bytes: int = 0
    """What the vectors of its tokens take that were computed."""
    coverage: float | None = None
    """The share of its texts' tokens that it sees, 0 to 1; None where there are none, and in older journals."""

    @property
    def terms_per_text(self) -> float:
        """The mean over the texts that it computed and did not park; 0 where there are none."""
        rows = self.done.rows - self.parked
        return self.done.terms / rows if rows > 0 else 0.0

    @property
    def share_done(self) -> float:
        """Of its cost, 0 to 1; 1 only where every batch is committed, or nothing was left to do."""
        if self.batches_done >= self.batches:
            return float(self.batches > 0 or self.word == "reused")
        return min(NEARLY, self.cost_done / self.cost) if self.cost else 0.0

    @property
    def wall_seconds(self) -> float:
        """What its batches took, side by side on its devices."""
        return wall_seconds([self])

    @property
    def rows_per_second(self) -> float:
        """On all of its devices; 0 before there were any batches."""
        return self.done.rows / self.wall_seconds if self.done.seconds else 0.0


def wall_seconds(passes: Sequence[PassView]) -> float:
    """Add up the seconds of these passes' batches, shared by their devices as if none was ever idle."""
    devices = {name for each in passes for name in each.devices}
    return sum(each.done.seconds for each in passes) / side_by_side(devices)


def side_by_side(devices: Collection[str]) -> int:
    """Count the devices that share work: beside GPUs, a host computes what they could not, and hardly counts."""
    return sum(not on_host(name) for name in devices) or len(devices) or 1


class CollectionView(Struct, frozen=True):
    """One collection, and what became of it; `word` is reading, planned, done, or its final status. Until it was read,
    `read` holds zeros; `refusals` are the first file and the first record that were refused."""

    name: str
    word: str
    read: ev.CollectionRead
    refused: int
    artefacts: int
    verified: bool | None
    reason: str
    refusals: tuple[ev.RecordRefused, ...] = ()


class Snapshot(RunStatus, kw_only=True):
    """The run at one moment, a copy that nobody changes. `seq` counts the entries that are folded in; two snapshots of
    one `seq` are the same."""

    seq: int = -1
    run_id: str = ""
    chunks: str = ""
    store: str = ""
    """The directory that its points are written to, if any."""
    rehearsed: bool = False
    config: Mapping[str, Setting] = {}
    """What the session was called with."""
    phase: str = "starting"
    """starting, resolving, reading, planning, running, delivering, or how the run ended."""
    elapsed: float = 0.0
    sessions: int = 1
    """How often it was begun, or gone on with."""
    collection: str = ""
    """The one that is being read, computed (that of the latest batch) or written."""
    devices: tuple[DeviceView, ...] = ()
    passes: tuple[PassView, ...] = ()
    leases: tuple[LeaseState, ...] = ()
    leases_in_all: int = 0
    collections: tuple[CollectionView, ...] = ()
    models: tuple[ev.ModelResolved, ...] = ()
    retries: int = 0
    warnings: int = 0
    parked: int = 0
    """Texts that have no vector of a model, or of several."""
    first_parked: ev.RowParked | None = None
    untried: int = 0
    """Of them, those that were not computed again since."""
    losses: tuple[ev.DeviceLost, ...] = ()
    """Devices that were lost, in all sessions."""
    pace: Pace = field(default_factory=Pace)
    controls: tuple[Control, ...] = ()
    hosted: Mapping[int, ev.Mitigated] = {}
    """Why a pass was given to the CPU, the last time."""
    nodes: tuple[NodeState, ...] = ()
    """Of a cluster, those of earlier sessions too; none on one machine."""
    beats: Mapping[str, ev.Heartbeat] = field(default_factory=dict)

    def latest(self, kind: type[Beat]) -> Beat | None:
        """Find the latest heartbeat of a kind; None before the first."""
        found = self.beats.get(kind.__name__)
        return found if isinstance(found, kind) else None

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.exit_code is not None

    @property
    def resumes(self) -> bool:
        """Whether a session more would find something to compute or to deliver in a run that has ended; it does not
        where all that lacks was refused or parked."""
        unfinished = any(each.failure or each.batches_done < each.batches for each in self.passes)
        ended = ("completed", "incomplete", "skipped")
        return (
            self.phase == "stopped"
            or not self.passes
            or unfinished
            or any(each.read.chunks and each.word not in ended for each in self.collections)
        )

    @property
    def simulated(self) -> bool:
        return self.device_kind == "sim"

    @property
    def on_gpus(self) -> bool:
        """Whether it began on GPUs, be they simulated."""
        return any(device.facts.kind != "cpu" for device in self.devices)

    @property
    def scripted(self) -> bool:
        """Whether nothing of this was computed."""
        return self.device_kind == "scripted"

    @property
    def batches(self) -> int:
        return sum(each.batches for each in self.passes)

    @property
    def batches_done(self) -> int:
        return sum(each.batches_done for each in self.passes)

    @property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.passes)

    @property
    def tokens_done(self) -> int:
        return sum(each.done.tokens for each in self.passes)

    @property
    def share_done(self) -> float:
        """Of the predicted cost of all passes, 0 to 1: the one measure of progress. What was reused costs nothing."""
        if self.passes and all(each.share_done >= 1 for each in self.passes):
            return 1.0
        cost = sum(each.cost for each in self.passes)
        done = sum(each.cost_done for each in self.passes)
        return min(NEARLY, done / cost) if cost else 0.0

    @property
    def mitigations(self) -> int:
        return sum(each.mitigations for each in self.passes)

    @property
    def running(self) -> tuple[PassView, ...]:
        """The passes that are at work: those that hold devices and have something left, or else that of the latest
        batch."""
        held = tuple(each for each in self.passes if each.word == "running")
        latest = self.current_pass
        return held or (() if latest is None else self.passes[latest : latest + 1])

    def reached(self, control: str) -> tuple[int, int]:
        """Count the nodes that are there on which a control is in force as operators changed it last, and all of
        them."""
        here = [node for node in self.nodes if node.here]
        return sum(node.reached.get(control) == self.in_force.get(control) for node in here), len(here)


def snapshot(state: RunState, seq: int) -> Snapshot:
    """Copy what the state says now, where `seq` is that of the entry folded last."""
    config = state.started.config if state.started else {}
    held = list(state.held.values())
    # Operations and tokens cannot be added up: tokens count for all, if one share has no price.
    priced = all(share.plan.flops for share in state.shares() if share.plan.batches)
    warnings = [state.warnings, state.residues, *(each.warnings for each in state.collections.values())]
    return Snapshot(
        **dict(zip(_STANDING, _stands(state), strict=True)),
        seq=seq,
        run_id=state.started.run_id if state.started else "",
        chunks=state.started.chunks if state.started else "",
        store=str(config["qdrant"].value or "") if "qdrant" in config else "",
        rehearsed=rehearsed(config),
        config=config,
        phase=_phase(state),
        elapsed=state.elapsed,
        sessions=state.session + 1,
        collection=_current(state),
        devices=_devices(state, held),
        passes=tuple(_pass(state, number, held, priced) for number in range(len(state.roster))) if state.plans else (),
        leases=tuple(islice(reversed(state.leases.values()), LEASES))[::-1],
        leases_in_all=len(state.leases),
        collections=tuple(map(_collection, state.collections.values())),
        models=tuple(state.models),
        retries=len(state.retries),
        first_parked=next(
            (each for by in state.parked.values() for rows in by.values() for each in rows.values()), None
        ),
        parked=len({row for _, row in _parked(state)}),
        untried=len({row for number, row in _parked(state) if (number, row) not in state.tried_again}),
        losses=tuple(state.losses),
        warnings=sum(map(len, warnings)) + sum(bool(node.refused) for node in state.nodes.values()),
        pace=state.pace.copy(),
        controls=tuple(state.controls),
        hosted=dict(state.hosted),
        nodes=tuple(state.nodes.values()),
        beats=dict(state.beats),
    )


def _parked(state: RunState) -> Iterator[tuple[int, int]]:
    """The pass and the text of each vector that is missing."""
    for number, by_name in state.parked.items():
        for rows in by_name.values():
            yield from ((number, row) for row in rows)


_STANDING = RunStatus.__struct_fields__
_stands = attrgetter(*_STANDING)


def _phase(state: RunState) -> str:
    if state.status:
        return state.status
    due, all_over = state.stage in ("planning", "running"), len(state.passes_completed | state.failures.keys())
    over, early = due and 0 < len(state.roster) == all_over, due and state.blocks and not state.plans
    return "delivering" if over else "reading" if early else state.stage


def _current(state: RunState) -> str:
    if state.status:
        return ""
    if state.current_pass is not None and state.batch_index is not None and _phase(state) == "running":
        owner = state.share_of(state.current_pass, state.batch_index)
        return owner[0].name if owner else ""
    return next((name for name, each in state.collections.items() if not each.status and each.shares), "")


def _devices(state: RunState, held: Sequence[LeaseState]) -> tuple[DeviceView, ...]:
    """Thousands of devices under hundreds of leases: each lease is looked through once."""
    weights, leased = Counter[str](), {name for lease in held for name in lease.devices}
    for lease in held:
        weights.update(lease.weights_on)
    return tuple(
        _device(gauge, weights[name], over=bool(state.status), leased=name in leased)
        for name, gauge in state.devices.items()
    )


def _device(gauge: Gauge, weights: int, *, over: bool, leased: bool) -> DeviceView:
    return DeviceView(
        facts=gauge.facts,
        memory=gauge.memory,
        readings=gauge.readings,
        peak=gauge.peak,
        weights=weights,
        lost=gauge.lost,
        second=gauge.second or 0,
        latest=tuple(gauge.latest),
        samples=gauge.course.count,
        course=tuple(gauge.course.values),
        course_step=gauge.course.step,
        taken=None if gauge.lost or over else gauge.taken,
        leased=leased,
    )


def _pass(state: RunState, number: int, held: Sequence[LeaseState], priced: bool) -> PassView:
    entry, shares, failed = state.roster[number], state.shares_of(number), state.failures.get(number)
    plans, done = [share.plan for share in shares], sum((share.done for share in shares), NO_WORK)
    leased = [name for lease in held if lease.model_pass == number for name in lease.devices]
    lately = [share.by_flops if priced else share.by_tokens for share in shares]
    view = PassView(
        **{name: sum(getattr(plan, name) for plan in plans) for name in Planned.__struct_fields__},
        model_pass=number,
        model=entry.model,
        weight=entry.weight,
        word="",
        done=done,
        batches_done=sum(share.batches_done for share in shares),
        cells=tuple(state.committed.get(number, ())),
        devices=tuple(sorted({name for share in shares for name in share.devices})),
        mitigations=state.mitigated[number],
        parked=len(set().union(*state.parked.get(number, {}).values())),
        failure=failed.reason if failed else "",
        cost=sum(plan.flops if priced else plan.tokens for plan in plans),
        cost_done=sum(share.flops_done if priced else share.done.tokens for share in shares),
        lately=sum((each[False] for each in lately if False in each), Lately()),
        lately_on_host=sum((each[True] for each in lately if True in each), Lately()),
        known_pace=state.paces.get(entry.model, 0.0),
        at_work=tuple(name for name in leased if not (name in state.devices and state.devices[name].lost)),
        kind=entry.kind,
        kept_bytes=done.token_vectors * entry.tokens.bytes if entry.tokens else 0,
        coverage=coverage(plans),
    )
    return replace(view, word=_word(state, view, held))


def coverage(plans: Sequence[ev.PassPlanned]) -> float | None:
    """Return the share of the tokens of the planned texts that a model sees; None where there are none, and where an
    older journal does not tell."""
    seen = [plan.seen_tokens for plan in plans if plan.seen_tokens is not None]
    whole = sum(seen) + sum(plan.truncated_tokens for plan in plans)
    return sum(seen) / whole if whole and len(seen) == len(plans) else None


def _word(state: RunState, view: PassView, held: Sequence[LeaseState]) -> str:
    if view.failure:
        return "missing" if state.roster[view.model_pass].missing else "failed"
    if view.model_pass in state.passes_completed:
        return "reused" if view.reused and not view.batches else "done"
    if view.batches_done >= view.batches > 0:  # its lease may be held until the others beside it are done
        return "done"
    at_work = any(lease.model_pass == view.model_pass for lease in held)
    return "running" if at_work and not state.status else "waiting" if view.batches_done else "queued"


def _collection(collection: CollectionState) -> CollectionView:
    firsts = {each.record is None: each for each in reversed(collection.refusals)}
    return CollectionView(
        name=collection.name,
        word=collection.status or ("planned" if collection.shares else "reading"),
        read=collection.read,
        refused=collection.read.refused or len(collection.refusals),
        artefacts=len(collection.artefacts),
        verified=collection.verification.ok if collection.verification else None,
        reason=collection.reason,
        refusals=tuple(firsts.values()),
    )


class PassCells(Struct, frozen=True, eq=False):
    """The committed batches of a pass by their index; how often the ladder was climbed for a batch, committed or not,
    and how many of its rows were parked. Equal only to itself."""

    committed: Mapping[int, ev.BatchCommitted] = field(default_factory=dict)
    mitigated: Mapping[int, int] = field(default_factory=dict)
    parked: Mapping[int, int] = field(default_factory=dict)


def cells_of(state: RunState, model_pass: int) -> PassCells:
    """Copy what is known of the batches of a pass."""
    steps = (each for collection in state.collections.values() for each in collection.mitigations)
    rows = (each for parked in state.parked.get(model_pass, {}).values() for each in parked.values())
    return PassCells(
        committed=dict(state.committed.get(model_pass, {})),
        mitigated=Counter(
            each.batch_index for each in steps if each.model_pass == model_pass and each.batch_index is not None
        ),
        parked=Counter(each.batch_index for each in rows if each.batch_index is not None),
    )
