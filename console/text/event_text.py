"""What is said of an event, and of how far a run has come, in one line for people: pure text from plain state."""

from collections.abc import Callable

from interlock.engine.models.registry import label
from interlock.engine.record import durable
from interlock.engine.record import events as ev
from interlock.engine.record.counting import batch_of, batches_of, pass_of, percent, several
from interlock.engine.record.snapshot import Snapshot
from interlock.engine.record.state import RunState

Look = Callable[[Callable[[RunState], str]], str]


def line_of(event: ev.AnyEvent, look: Look) -> str:
    """What is said of an event where nothing but lines is seen; nothing of what only a screen has room for."""
    match event:
        case ev.RunResumed():
            return look(_resumed)
        case ev.LeaseGranted():
            return look(lambda state: _begins(state, event))
        case ev.EnsemblePassCompleted():
            return look(lambda state: _completed(state, event))
        case ev.RecordRefused():
            return f"refused {text_of(event)}"
        case ev.Mitigated():
            return look(lambda state: f"mitigation: {text_of(event, timed=ev.timed(state.device_kind))}")
        case ev.Warned():
            return f"warning: {text_of(event)}"
        case _:
            return "" if isinstance(event, UNTOLD) else text_of(event)


UNTOLD = (
    ev.BatchCommitted,
    ev.CorpusTokenised,
    ev.DeviceSampled,
    ev.LeaseReleased,
    ev.MemoryCalibrated,
    ev.ModelAttached,
    ev.PassPlanned,
    ev.RosterResolved,
    ev.RowsReused,
)
"""Events that make no line of their own: they are many, or a later line says more."""


def text_of(event: ev.AnyEvent, *, timed: bool = True) -> str:
    """An event of any kind in one line, from itself alone; `timed` is whether its seconds mean anything."""
    told = _of_run(event) or _of_input(event) or _of_outcome(event) or _of_pass(event, timed)
    return told or _of_memory(event, timed)


def _of_run(event: ev.AnyEvent) -> str:
    match event:
        case ev.RunStarted():
            return f"run {event.run_id} of {event.chunks}"
        case ev.RunResumed():
            return f"the run goes on in a new session, with {event.chunks}"
        case ev.DevicesFound():
            return _devices(event)
        case ev.DeviceSampled():
            held, ours = durable.human_bytes(event.memory.occupied), durable.human_bytes(event.memory.allocated)
            return f"device {event.device}: {held} occupied, {ours} of it tensors"
        case ev.DeviceLost():
            return f"device {event.device} is LOST: {event.reason}"
        case ev.ControlApplied():
            return f"{event.who} set {event.control} to {event.value}"
        case ev.ControlRefused():
            return f"{event.who} asked for {event.control} to be {event.value}: REFUSED, {event.reason}"
        case ev.Warned():
            return event.message or "something, without a word"
        case ev.RunClosed():
            return f"run {event.status}" + (f": {event.reason}" if event.reason else "")
    return ""


def _of_input(event: ev.AnyEvent) -> str:
    match event:
        case ev.ModelResolved():
            commit = f" at {event.commit[:12]}" if event.commit else ""
            size = durable.human_bytes(event.bytes)
            return f"model {event.model}: {event.outcome}, {label(event.source)}{commit}, {size}"
        case ev.DownloadRetried():
            return f"model {event.model}: try {event.attempt} failed ({event.reason}); again in {event.wait_seconds} s"
        case ev.RosterResolved():
            told = ", ".join(f"{entry.model} {entry.weight:g}" for entry in event.roster)
            return f"{several(len(event.roster), 'model')} by weight, the primary first: {told}"
        case ev.RecordRefused(record=None):
            return f"{event.collection}/{event.file}: {event.reason}"
        case ev.RecordRefused():
            return f"{event.collection}/{event.file} record {event.record}: {event.reason}"
        case ev.CollectionRead():
            return (
                f"collection {event.collection}: {several(event.chunks, 'chunk')} in {several(event.files, 'file')}, "
                f"{several(event.duplicates, 'duplicate')}, {event.refused:,} refused{_reasons(event)} "
                f"-> {event.qdrant_collection}"
            )
        case ev.CorpusTokenised():
            are = "is" if event.texts == 1 else "are"
            told = f"{several(event.texts, 'text')} {are} {several(event.tokens, 'token')}"
            return f"{told}, before truncation, to {', '.join(event.models)}"
    return ""


def _reasons(event: ev.CollectionRead) -> str:
    """What was refused by its reason, the commonest first, where not all of it has been told."""
    told = sorted(event.reasons.items(), key=lambda each: -each[1]) if event.refused > ev.REFUSALS_TOLD else []
    return f" ({'; '.join(f'{count} times {reason}' for reason, count in told)})" if told else ""


def _of_outcome(event: ev.AnyEvent) -> str:
    match event:
        case ev.ArtefactWritten():
            word = "wrote and read back" if event.verified else "wrote"
            return f"{word} {event.path} ({several(event.rows, 'row')}, {durable.human_bytes(event.bytes)})"
        case ev.StoreVerified():
            word = "verified" if event.ok else "NOT AS WRITTEN"
            return f"store {event.store}/{event.qdrant_collection} {word}: {event.detail}"
        case ev.CollectionClosed():
            return f"collection {event.collection} {event.status}" + (f": {event.reason}" if event.reason else "")
        case ev.RowParked():
            return f"row {event.row} of {event.collection} has no vector of {event.model}: {event.reason}"
    return ""


def _of_pass(event: ev.AnyEvent, timed: bool) -> str:
    match event:
        case ev.PassPlanned(reused=0):
            place = f"{pass_of(event.model_pass)} {event.model} of {event.collection}"
            return f"{place}: {_work(event)}, {event.truncated:,} truncated"
        case ev.PassPlanned():
            place = f"{pass_of(event.model_pass)} {event.model} of {event.collection}"
            return f"{place}: {event.reused:,} of {several(event.reused + event.rows, 'vector')} reused"
        case ev.RowsReused():
            taken = f"{several(event.rows, 'vector')} taken over from {event.source}"
            return f"{pass_of(event.model_pass)} {event.model}: {taken}"
        case ev.BatchesLost():
            were, are = ("was", "is") if len(event.batches) == 1 else ("were", "are")
            lost = f"{several(len(event.batches), 'batch', 'batches')} that {were} committed did not survive"
            named = ", ".join(str(index + 1) for index in event.batches[:20])
            return f"{pass_of(event.model_pass)}: {lost} and {are} done again: {named}"
        case ev.BatchCommitted():
            took = _took(event.seconds, timed)
            place = f"{pass_of(event.model_pass)} {batch_of(event.batch_index)} on {event.device}"
            return f"{place}: {several(event.rows, 'row')}, {several(event.tokens, 'token')}{took}"
        case ev.EnsemblePassCompleted():
            place = f"{pass_of(event.model_pass)} {event.model} done"
            where = f" on {event.device}" if event.device else ""
            dtype = f", {event.dtype}" if event.dtype else ""
            return f"{place}{where}: {several(event.rows, 'row')}{_pace(event, timed)}{dtype}"
        case ev.PassFailed():
            return f"{pass_of(event.model_pass)} {event.model} FAILED: {event.reason}"
        case ev.PressurePassed():
            return f"pressure passed in {pass_of(event.model_pass)} on {event.device}: whole batches fit again"
    return ""


def _of_memory(event: ev.AnyEvent, timed: bool) -> str:
    match event:
        case ev.LeaseGranted():
            predicted, budget = durable.told_apart(event.predicted_bytes, event.budget_bytes)
            return f"{_granted(event)}, {predicted} predicted of {budget}"
        case ev.ModelAttached():
            how = "layers streamed" if event.streamed else durable.human_bytes(event.bytes)
            warm = ", warm" if event.warm else ""
            where = f" to {event.device}" if event.device else ""
            return f"{event.lease} attached {event.model}{where}: {how}{_took(event.seconds, timed)}{warm}"
        case ev.LeaseReleased():
            held = f", held {durable.duration(event.held_seconds)}" if timed else ""
            receipts = "".join(f"; {_receipt(receipt)}" for receipt in event.receipts)
            return f"{event.lease} released: {pass_of(event.model_pass)} {event.model}{held}{receipts}"
        case ev.ResidueFound():
            size, left = durable.told_apart(event.bytes, event.left_bytes)
            return f"lease {event.lease} left {size} behind on {event.device}: {event.action}; {left} are left"
        case ev.MemoryCalibrated():
            place = f"{pass_of(event.model_pass)} on {event.device}"
            law = f"activations are {event.scale:.3g} times what the law says"
            measured = f"worst {event.worst:.3g}, of {several(event.batches, 'batch', 'batches')}"
            return f"{place}: {law}, {event.margin:.1%} margin, {measured}"
        case ev.Mitigated():
            return _mitigated(event, timed)
    return ""


def _mitigated(event: ev.Mitigated, timed: bool) -> str:
    """The step and its place first: what is cut off at the end of a narrow line is the evidence."""
    place = "" if event.batch_index is None else f" {batch_of(event.batch_index)}"
    where = f" on {event.device}" if event.device else ""
    evidence = [several(event.rows, "row")]
    if event.predicted_bytes is not None and event.free is not None:
        sizes = "needs {}, {} free".format(*durable.told_apart(event.predicted_bytes, event.free))
        evidence += [sizes] * (sizes not in event.cause)
    if timed:
        evidence.append(f"cost {event.cost_seconds:.2f} s")
    begin = f"{event.rung or 'step'} in {pass_of(event.model_pass)}{place}{where}"
    return f"{begin}: {event.cause}; {event.action} ({', '.join(evidence)})"


def _granted(event: ev.LeaseGranted) -> str:
    streamed = ", its layers streamed" if event.streamed else ""
    place = f"{event.lease} granted: {pass_of(event.model_pass)} {event.model}"
    where = f"{_feigned(event.device_kind)}{','.join(event.devices)}{streamed}"
    return f"{place} on {where}, {event.schedule}, {_work(event)}"


def _work(event: ev.LeaseGranted | ev.PassPlanned) -> str:
    """What a lease is opened for, or a pass planned."""
    return f"{several(event.rows, 'row')} in {several(event.batches, 'batch', 'batches')}"


def _receipt(receipt: ev.Receipt) -> str:
    """Before, peak and after as the driver says, and what stayed behind."""
    if receipt.lost:
        return f"{receipt.device} is LOST"
    path = " > ".join(durable.human_bytes(each.occupied) for each in (receipt.before, receipt.peak, receipt.after))
    retries = f", {several(receipt.retries, 'retry', 'retries')}" if receipt.retries else ""
    return f"{receipt.device} {path}, residue {durable.human_bytes(receipt.residue_bytes)}{retries}"


def _took(seconds: float, timed: bool) -> str:
    return f" in {seconds:.1f} s" if timed else ""


def _pace(event: ev.EnsemblePassCompleted, timed: bool) -> str:
    """How long the rows of a pass took, in all sessions; several devices worked at the same time."""
    if not timed or not event.seconds:
        return ""
    rate, devices = event.rows / event.seconds, event.device.count(",") + 1
    on, each = (f" of computing on {devices} devices", " each") if devices > 1 else ("", "")
    return f" in {event.seconds:.1f} s{on} ({rate:.1f} rows/s{each})"


BEFORE = {
    "starting": "checking the models' files",
    "resolving": "checking the models' files",
    "reading": "reading and tokenising chunks",
    "planning": "preparing the passes",
    "delivering": "writing files and points",
}
"""What is being done while no pass is at work."""


def progress(snapshot: Snapshot) -> str:
    """What is being done and how far it has come: the run as a whole, then the pass; nothing of a run that is over."""
    if snapshot.over or snapshot.current_pass is None or snapshot.phase in BEFORE:
        return "" if snapshot.over else BEFORE.get(snapshot.phase, "")
    now = snapshot.passes[snapshot.current_pass]
    place = pass_of(now.model_pass, len(snapshot.passes))
    told = [f"{percent(snapshot.share_done).strip()} of the run"]
    told.append(f"{place} {now.model} {percent(now.share_done).strip()}")
    told += [batches_of(now)] if now.batches_done else []
    if ev.timed(snapshot.device_kind) and now.rows_per_second and now.seconds_left is not None:
        each = " each" if len(now.devices) > 1 else ""
        told += [f"{now.rows_per_second:.1f} rows/s{each}", f"{durable.duration(now.seconds_left)} left in this pass"]
        told.append(f"{durable.duration(snapshot.seconds_left() or 0.0)} in all")
    return f"{', '.join(told)} {_feigned(snapshot.device_kind)}".rstrip()


def _devices(event: ev.DevicesFound) -> str:
    """A simulated device is called so wherever it is told of."""
    if not event.devices:
        return "no device is there"
    feigned = next((f"{word.strip()}: " for facts in event.devices if (word := _feigned(facts.kind))), "")
    told = [
        f"{facts.name} {facts.label}, {durable.human_bytes(facts.total_bytes)}, "
        f"ceiling {durable.human_bytes(facts.ceiling_bytes)}"
        for facts in event.devices
    ]
    return f"{feigned}devices: {'; '.join(told)}"


def _feigned(device_kind: str) -> str:
    """What no line leaves out of a device that is not there."""
    return {"sim": "SIMULATED ", "scripted": "SCRIPTED "}.get(device_kind, "")


def _resumed(state: RunState) -> str:
    kept = sum(len(done) for done in state.committed.values())
    told = f"{several(kept, 'batch', 'batches')} {'was' if kept == 1 else 'were'}"
    return f"run {state.started.run_id if state.started else ''} resumed: {told} committed before"


def _begins(state: RunState, event: ev.LeaseGranted) -> str:
    reused = sum(share.reused for share in state.shares() if share.model_pass == event.model_pass)
    place = f"{pass_of(event.model_pass, len(state.roster))} {event.model}"
    streamed = ", its layers streamed" if event.streamed else ""
    text = f"{place}: lease {event.lease} on {_feigned(event.device_kind)}{','.join(event.devices)}{streamed}, "
    return text + _work(event) + (f", {reused:,} reused" if reused else "")


def _completed(state: RunState, event: ev.EnsemblePassCompleted) -> str:
    leases = [lease for lease in reversed(state.leases.values()) if lease.model_pass == event.model_pass]
    lease = max(leases, key=lambda lease: lease.device_kind != "cpu", default=None)  # not that of a row gone to the CPU
    shares = [share for share in state.shares() if share.model_pass == event.model_pass]
    reused = sum(share.reused for share in shares)
    place = f"{pass_of(event.model_pass, len(state.roster))} {event.model}"
    text = f"{place} done: {several(event.rows, 'row')}" + (f", {reused:,} reused" if reused else "")
    text += _pace(event, state.timed)
    planned = state.roster[event.model_pass].dtype if state.roster else event.dtype
    if event.dtype != planned or not {*event.device.split(",")} <= {*(lease.devices if lease else ())}:
        text += f", computed on {event.device} in {event.dtype}" if event.device else ""
    for receipt in lease.receipts if lease else ():
        peak, residue = durable.human_bytes(receipt.peak.occupied), durable.human_bytes(receipt.residue_bytes)
        text += f", {receipt.device} peak {peak}, residue {residue}"
    return text
