"""How an entry changes the state of a run: the only way in.

Folding the journal of a run gives the same state as having watched it.
"""

import gc
from bisect import insort
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import get_args

from msgspec import convert
from msgspec.structs import replace

from interlock.engine.errors import InterlockError
from interlock.engine.record import events as ev
from interlock.engine.record.events import Entry
from interlock.engine.record.facts import DeviceFacts, Setting, node_of
from interlock.engine.record.state import (
    HEAD,
    CollectionState,
    Control,
    Gauge,
    LeaseState,
    NodeEvent,
    NodeState,
    RunState,
    Share,
)

STAGES: dict[type[ev.AnyEvent], str] = {
    ev.RunStarted: "resolving",
    ev.RunResumed: "resolving",
    ev.RosterResolved: "reading",
    ev.PassPlanned: "planning",
    ev.LeaseGranted: "running",
}
"""The stage that begins with an event."""
MOST_PASSES, MOST_BATCHES = 10_000, 10_000_000
"""Of a run and of a pass: a journal that tells of more is of some gigabytes."""
EARLIEST, LATEST = -6e10, 2e11
"""Seconds since the epoch that have a date."""
PROGRESS = frozenset(get_args(ev.Progress))


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch the garbage collector off: it would walk a growing history again and again, and find nothing."""
    working = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if working:
            gc.enable()


def fold_each(state: RunState, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Take what a journal says into the state, and yield each entry once it is in. Raises InterlockError for one that
    does not fit those before it, as another version might write."""
    with uncollected():
        for entry in entries:
            try:
                fold(state, entry)
            except Exception as error:  # no entry of this version, so there is no telling of which kind
                raise InterlockError(
                    f"entry {entry.seq} of the journal ({type(entry.body).__name__}) does not fit those before it, so "
                    "nothing after it can be trusted"
                ) from error
            yield entry


def fold_all(state: RunState, entries: Iterable[Entry]) -> RunState:
    """Take all of a journal into the state; return it. Raises InterlockError as `fold_each` does."""
    for _ in fold_each(state, entries):
        pass
    return state


def fold(state: RunState, entry: Entry) -> None:
    """Take one entry into the state. Raises ValueError for one of a pass or a time that there is not."""
    model_pass = getattr(entry.body, "model_pass", None)
    if model_pass is not None and not 0 <= model_pass < (len(state.roster) or MOST_PASSES):
        raise ValueError(f"there is no pass {model_pass}")
    if not EARLIEST < entry.at < LATEST:
        raise ValueError(f"no clock says {entry.at}")
    before, state.latest_at = state.latest_at, entry.at
    if state.new_shares and not isinstance(entry.body, ev.PassPlanned):  # all passes are planned
        state.take_in()
    if isinstance(entry.body, ev.Heartbeat):
        state.beats[HEAD if getattr(entry.body, "device", "") == HEAD else type(entry.body).__name__] = entry.body
    # A pause that is lifted is no delay; any other answer to an operator says nothing of the work.
    lifted = isinstance(entry.body, ev.ControlApplied) and entry.body.control == "pause"
    if lifted or type(entry.body) in PROGRESS:
        state.progressed_at = entry.at
    state.stage = STAGES.get(type(entry.body), state.stage)
    state.device_kind = entry.device_kind
    state.session = entry.session
    if entry.session not in state.seconds_of_session:
        state.pace.second, state.slowest = 0, 0.0
        state.busy, state.opened, state.opening, state.opens = 0.0, 0, 0.0, False
        state.kinds.add(entry.device_kind)
    state.seconds_of_session[entry.session] = entry.elapsed
    state.pace.reach(int(entry.elapsed))
    match entry.body:
        case ev.BatchCommitted():  # what is told most often is looked for first
            _commit(state, entry.body)
        case ev.DeviceSampled():
            _fold_device(state, entry.body)
        case ev.RunStarted():
            state.started, state.began_at, state.versions = entry.body, entry.at, entry.body.versions
            state.schedule = entry.body.schedule
            state.cpu_fallback = _fallback(entry.body.config)
        case ev.RunResumed():
            _reopen(state, entry.body, before)
        case ev.DeadlineSet():
            state.deadline = entry.body.ends
        case ev.ModelResolved():
            state.models.append(entry.body)
        case ev.RosterResolved():
            state.roster, state.paces = entry.body.roster, entry.body.paces
        case ev.DownloadRetried():
            state.retries.append(entry.body)
        case ev.CorpusTokenised():
            state.texts_digest = state.texts_digest or entry.body.digest
        case ev.BlockRead():
            state.blocks[entry.body.texts] = entry.body.digest
        case ev.NodeJoined() | ev.NodeLost() | ev.NodeRefused() | ev.ControlReached() | ev.BatchesDoubled():
            _fold_node(state, entry.body)
        case ev.RunClosed():
            state.status, state.reason, state.exit_code = entry.body.status, entry.body.reason, entry.body.exit_code
        case _:
            _fold_device(state, entry.body)
            _fold_collection(state, entry.body)
            _fold_pass(state, entry.body)
            state.mitigations += [entry] * isinstance(entry.body, ev.Mitigated)


def _fold_device(state: RunState, event: ev.AnyEvent) -> None:
    match event:
        case ev.DevicesFound():
            _equip(state, event.devices, list(state.devices))
        case ev.DeviceSampled(device=name) if gauge := state.devices.get(name):
            gauge.take(event, state.pace.second)
        case ev.DeviceLost(device=name):
            state.losses.append(event)
            if gauge := state.devices.get(name):
                gauge.lost = event.reason
        case ev.MemoryTaken(device=name) if gauge := state.devices.get(name):
            gauge.taken = None if event.over else event
        case ev.ControlApplied():
            state.controls.append(Control(event.control, event.value, event.who, state.latest_at))
            match event.control:
                case "schedule":
                    state.schedule = event.value
                case "cpu_fallback":
                    state.cpu_fallback = event.value == "yes"
                case "pause":
                    state.paused, state.covered = event.value == "yes", state.elapsed
        case ev.ControlRefused():
            state.controls.append(Control(event.control, event.value, event.who, state.latest_at, event.reason))
        case ev.ResidueFound():
            state.residues.append(event)


def _equip(state: RunState, found: Iterable[DeviceFacts], before: Iterable[str]) -> None:
    """Take devices as a session or a node has them, in place of those `before`; a peak is that of all sessions on the
    same one."""
    for name in before:
        gone = state.devices.pop(name)
        state.peaks[name, gone.facts.label] = gone.peak
    for facts in found:
        state.devices[facts.name] = Gauge(facts, peak=state.peaks.get((facts.name, facts.label), 0))


def _fold_node(state: RunState, event: NodeEvent) -> None:
    node = state.nodes.get(event.node) or NodeState(node=event.node)
    state.nodes[event.node] = node.after(event, state.latest_at, state.in_force)
    if not isinstance(event, ev.NodeJoined | ev.NodeLost):
        return
    for lease in [each for each in state.held.values() if node_of(each.lease) == event.node]:
        _keep(state, replace(lease, left=True, left_at=state.latest_at))
    mine = [name for name in state.devices if node_of(name) == event.node]
    if isinstance(event, ev.NodeJoined):
        _equip(state, event.devices, mine)
        return
    for name in mine:
        state.devices[name].lost = state.devices[name].lost or event.reason


def _reopen(state: RunState, event: ev.RunResumed, before: float) -> None:
    """A new session reads and delivers afresh; only what was committed stays of that last heard of `before`."""
    state.versions = event.versions
    if state.started:
        called_with = {"chunks": event.chunks, "config": event.config, "environment": event.environment}
        state.started = replace(state.started, **called_with)
    for told in (state.retries, state.failures, state.hosted, state.models):
        told.clear()
    state.deadline, state.rows_before = 0.0, sum(share.done.rows for share in state.shares())
    state.status, state.reason, state.exit_code = None, "", None
    state.current_pass, state.batch_index = None, None
    state.cpu_fallback, state.paused = _fallback(event.config), False
    for lease in list(state.held.values()):
        _keep(state, replace(lease, left=True, left_at=before))
    state.nodes = {name: node.before_joining() for name, node in state.nodes.items()}
    state.schedule = event.schedule or state.schedule
    for collection in state.collections.values():
        collection.status, collection.reason, collection.verification = None, "", None
        collection.refusals.clear()
        collection.artefacts.clear()
        collection.kept.clear()
        collection.missing = []
    # A row was parked with its batch; where the process died before that was committed, it is done again.
    for model_pass, collections in state.parked.items():
        done = {None, *state.committed.get(model_pass, ())}
        for name, rows in collections.items():
            collections[name] = {row: parked for row, parked in rows.items() if parked.batch_index in done}


def _fallback(config: Mapping[str, Setting]) -> bool:
    """Whether the run was begun with the CPU as its last resort."""
    setting = config.get("cpu_fallback")
    return bool(setting.value) if setting else True


def _fold_collection(state: RunState, event: ev.AnyEvent) -> None:
    match event:
        case ev.RecordRefused():
            _collection(state, event.collection).refusals.append(event)
        case ev.CollectionRead():
            _collection(state, event.collection).read = event
        case ev.ArtefactWritten():
            _collection(state, event.collection).artefacts[event.path] = event
        case ev.StoreVerified():
            _collection(state, event.collection).verification = event
        case ev.DeliveredWithout():
            _collection(state, event.collection).missing = event.models
        case ev.VectorsKept():
            _collection(state, event.collection).kept[event.place] = event
        case ev.CollectionClosed():
            collection = _collection(state, event.collection)
            collection.status, collection.reason = event.status, event.reason
            if event.status == "failed" and not collection.artefacts and collection.verification is None:
                collection.missing = []  # the delivery was refused
        case ev.Warned():
            warnings = state.warnings if event.collection is None else _collection(state, event.collection).warnings
            warnings.setdefault(event.message)  # a session that goes on may warn of the same again


def _fold_pass(state: RunState, event: ev.AnyEvent) -> None:
    match event:
        case ev.PassPlanned():
            _plan(state, event)
        case ev.RowsReused():
            state.reused[event.model_pass] = event
        case ev.BatchesLost():
            state.batches_lost += len(event.batches)
            state.lose(event.model_pass, event.batches)
        case ev.ParkedRetried(model_pass=number):
            rows = [row for by_name in state.parked.get(number, {}).values() for row in by_name.values()]
            state.tried_again |= {(number, each.row) for each in rows if each.batch_index in event.batches}
            state.lose(number, event.batches)
        case ev.LeaseGranted():
            if not state.held:  # time is that of leases until a batch is under way
                state.opens, state.covered = True, state.covered if state.opened else state.elapsed
            if state.current_pass != event.model_pass:  # or the batch of another pass would be shown as its latest
                state.current_pass, state.batch_index, state.slowest = event.model_pass, None, 0.0
            _keep(state, replace(convert(event, LeaseState, from_attributes=True), granted_at=state.latest_at))
        case ev.ModelAttached(lease=name) if lease := state.leases.get(name):
            attached = replace(
                lease,
                weights_bytes=max(lease.weights_bytes, event.bytes),
                weights_on={**lease.weights_on, event.device: event.bytes},
                attach_seconds=max(lease.attach_seconds, event.seconds),
                warm=event.warm,
            )
            _keep(state, attached)
        case ev.LeaseReleased(lease=name) if lease := state.leases.get(name):
            _keep(state, replace(lease, held_seconds=event.held_seconds, receipts=event.receipts))
            for receipt in event.receipts:
                if gauge := state.devices.get(receipt.device):
                    gauge.peak = max(gauge.peak, receipt.peak.occupied)
                    gauge.memory = gauge.memory if receipt.lost else receipt.after
        case ev.CanaryChecked():
            state.canaries.append(event)
        case ev.MemoryCalibrated():
            state.calibrations[event.model_pass, event.device] = event
        case ev.Mitigated():
            state.mitigated[event.model_pass] += 1
            if event.rung == "cpu" and event.batch_index is None:
                state.hosted[event.model_pass] = event
            for collection in state.collections.values():
                if event.batch_index is None and event.model_pass in collection.shares:  # a whole lease fell short
                    collection.mitigations.append(event)
            if event.batch_index is not None and (owner := state.share_of(event.model_pass, event.batch_index)):
                owner[0].mitigations.append(event)
        case ev.PressurePassed():
            if owner := state.share_of(event.model_pass, event.batch_index):
                owner[0].pressure_passed.append(event)
        case ev.RowParked():
            state.parked.setdefault(event.model_pass, {}).setdefault(event.collection, {})[event.row] = event
            state.parked_on[event.model_pass, event.row] = state.conditions
        case ev.EnsemblePassCompleted():
            state.passes_completed.add(event.model_pass)
        case ev.PassFailed():
            state.failures[event.model_pass] = event


def _keep(state: RunState, lease: LeaseState) -> None:
    state.leases[lease.lease] = lease
    if lease.held:
        state.held[lease.lease] = lease
    else:
        state.held.pop(lease.lease, None)


def _collection(state: RunState, name: str) -> CollectionState:
    if name not in state.collections:
        unread = ev.CollectionRead(
            collection=name, qdrant_collection="", files=0, chunks=0, duplicates=0, refused=0, seconds=0.0
        )
        state.collections[name] = CollectionState(unread)
    return state.collections[name]


def _plan(state: RunState, event: ev.PassPlanned) -> None:
    """A resumed session plans again; the same plan keeps what was done under it."""
    if min(event.first_batch, event.batches) < 0 or event.first_batch + event.batches > MOST_BATCHES:
        raise ValueError(f"no pass has {event.batches} batches")
    state.plans[event.model_pass, event.collection] = event.plan
    shares = _collection(state, event.collection).shares
    if event.model_pass not in shares:
        shares[event.model_pass] = Share(event)
        state.new_shares.append(shares[event.model_pass])
        insort(state.places.setdefault(event.model_pass, []), (event.first_batch, event.batches, event.collection))
    share = shares[event.model_pass]
    if share.plan.cost != event.cost:  # where only this session can tell, what was done of it before counts too
        plan = share.plan = replace(share.plan, cost=event.cost, flops=event.flops)
        share.flops_done = sum(map(share.flops_of, state.done_of(plan)))


def _commit(state: RunState, event: ev.BatchCommitted) -> None:
    state.current_pass, state.batch_index = event.model_pass, event.batch_index
    state.slowest = max(state.slowest, event.seconds)
    idle = state.pass_time(event.seconds)
    state.pace.rows[-1] += event.rows
    state.pace.tokens[-1] += event.tokens
    state.committed.setdefault(event.model_pass, {})[event.batch_index] = event
    if owner := state.share_of(event.model_pass, event.batch_index):
        owner[1].take(event, state.usual_dtype(event.model_pass), idle)
