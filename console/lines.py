"""What is said of an event, and of how far a run has come, in one line for people: pure text from plain state."""

from collections.abc import Callable

from engine.models.assets import label
from engine.record import durable
from engine.record import events as ev
from engine.record.state import RunState

Look = Callable[[Callable[[RunState], str]], str]


def line_of(event: ev.AnyEvent, look: Look) -> str:
    """What is said of an event; nothing for most."""
    match event:
        case ev.RunStarted():
            return f"run {event.run_id} of {event.chunks}"
        case ev.DevicesFound():
            return _devices(event)
        case ev.DeviceLost():
            return f"device {event.device} is LOST: {event.reason}"
        case ev.ControlApplied():
            return f"{event.who} set {event.control} to {event.value}"
        case ev.RunResumed():
            return look(_resumed)
        case ev.ModelResolved():
            commit = f" at {event.commit[:12]}" if event.commit else ""
            size = durable.human_bytes(event.bytes)
            return f"model {event.model}: {event.outcome}, {label(event.source)}{commit}, {size}"
        case ev.DownloadRetried():
            return f"model {event.model}: try {event.attempt} failed ({event.reason}); again in {event.wait_seconds} s"
        case ev.RecordRefused(record=None):
            return f"refused {event.collection}/{event.file}: {event.reason}"
        case ev.RecordRefused():
            return f"refused {event.collection}/{event.file} record {event.record}: {event.reason}"
        case ev.CollectionRead():
            return (
                f"collection {event.collection}: {event.chunks} chunks in {event.files} files, "
                f"{event.duplicates} duplicates, {event.refused} refused -> {event.qdrant_collection}"
            )
        case ev.PassFailed():
            return f"pass {event.model_pass + 1} {event.model} FAILED: {event.reason}"
        case ev.Mitigated():
            place = "" if event.batch_index is None else f" batch {event.batch_index}"
            where = f" on {event.device}" if event.device else ""
            return f"mitigation in pass {event.model_pass + 1}{place}{where}: {event.cause}; {event.action}"
        case ev.PressurePassed():
            return f"pressure passed in pass {event.model_pass + 1} on {event.device}: whole batches fit again"
        case ev.ResidueFound():
            size, left = durable.human_bytes(event.bytes), durable.human_bytes(event.left_bytes)
            return f"lease {event.lease} left {size} behind on {event.device}: {event.action}; {left} are left"
        case ev.RowParked():
            return f"row {event.row} of {event.collection} has no vector of {event.model}: {event.reason}"
        case ev.Warned():
            return f"warning: {event.message}"
        case _:
            return _line_of_work(event, look)


def _line_of_work(event: ev.AnyEvent, look: Look) -> str:
    match event:
        case ev.LeaseGranted():
            return look(lambda state: _begins(state, event))
        case ev.EnsemblePassCompleted():
            return look(lambda state: _completed(state, event))
        case ev.ArtefactWritten():
            return f"wrote {event.path} ({event.rows} rows, {durable.human_bytes(event.bytes)})"
        case ev.StoreVerified():
            word = "verified" if event.ok else "NOT AS WRITTEN"
            return f"store {event.store}/{event.qdrant_collection} {word}: {event.detail}"
        case ev.CollectionClosed():
            return f"collection {event.collection} {event.status}" + (f": {event.reason}" if event.reason else "")
        case ev.RunClosed():
            return f"run {event.status}" + (f": {event.reason}" if event.reason else "")
    return ""


def progress(state: RunState) -> str:
    """What is being done and how far it has come."""
    number = state.current_pass
    if state.status:
        return ""
    if not state.roster:
        return "checking the models' files"
    if not state.plans:
        return "reading and tokenising chunks"
    if number is None or number in state.passes_completed or number in state.failures:
        return "writing files and points" if number is not None else "preparing the passes"
    shares = [share for share in state.shares() if share.model_pass == number]
    done, total = sum(share.rows_done for share in shares), sum(share.rows for share in shares)
    batches, of = sum(share.batches_done for share in shares), sum(share.batches for share in shares)
    seconds = sum(share.seconds for share in shares) * (state.device_kind != "sim")
    rate = done / seconds if seconds else 0.0
    pace = sum(share.tokens_done for share in shares) / seconds if seconds else 0.0
    tokens = sum(share.tokens - share.tokens_done for share in shares)
    left = f", {_minutes(tokens / pace)} left in this pass" if pace else ""
    percent = f"{done / total:.0%}" if total else "0%"
    place = f"pass {number + 1}/{len(state.roster)} {shares[0].model}"
    pace_told = f", {rate:.1f} rows/s{left}" if seconds else ""
    return f"{place} {percent} batch {batches}/{of}{pace_told}" + (" SIMULATED" if state.device_kind == "sim" else "")


def _devices(event: ev.DevicesFound) -> str:
    """A simulated device is called so wherever it is told of."""
    simulated = "SIMULATED: " if any(facts.kind == "sim" for facts in event.devices) else ""
    told = [
        f"{facts.name} {facts.label}, {durable.human_bytes(facts.total_bytes)}, "
        f"ceiling {durable.human_bytes(facts.ceiling_bytes)}"
        for facts in event.devices
    ]
    return f"{simulated}devices: {'; '.join(told)}"


def _resumed(state: RunState) -> str:
    kept = sum(len(done) for done in state.committed.values())
    return f"run {state.started.run_id if state.started else ''} resumed: {kept} batches were committed before"


def _begins(state: RunState, event: ev.LeaseGranted) -> str:
    reused = sum(share.reused for share in state.shares() if share.model_pass == event.model_pass)
    place = f"pass {event.model_pass + 1}/{len(state.roster)} {event.model}"
    streamed = ", its layers streamed" if event.streamed else ""
    simulated = "SIMULATED " if event.device_kind == "sim" else ""
    text = f"{place}: lease {event.lease} on {simulated}{','.join(event.devices)}{streamed}, "
    text += f"{event.rows} rows in {event.batches} batches"
    return text + (f", {reused} reused" if reused else "")


def _completed(state: RunState, event: ev.EnsemblePassCompleted) -> str:
    lease = next((lease for lease in reversed(state.leases.values()) if lease.model_pass == event.model_pass), None)
    shares = [share for share in state.shares() if share.model_pass == event.model_pass]
    timed = state.device_kind != "sim"
    seconds, reused = sum(share.seconds for share in shares) * timed, sum(share.reused for share in shares)
    place = f"pass {event.model_pass + 1}/{len(state.roster)} {event.model}"
    text = f"{place} done: {event.rows} rows" + (f", {reused} reused" if reused else "")
    if seconds:
        text += f" in {seconds:.1f} s ({event.rows / seconds:.1f} rows/s)"
    for receipt in lease.receipts if lease else ():
        peak, residue = durable.human_bytes(receipt.peak.occupied), durable.human_bytes(receipt.residue_bytes)
        text += f", {receipt.device} peak {peak}, residue {residue}"
    return text


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
