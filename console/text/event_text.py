"""The one table of events: how much each type matters, its word, whether plain output prints it, and its text.

The events pane, plain output and whatever else names an event ask `describe`; nobody else has words for one.
Text is one line, made of the event alone. Seconds are left out where the device is not a real one.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never

from interlock.console.text.machine_text import Description, computed, feigned, planned, took
from interlock.engine.models.registry import label
from interlock.engine.record import events as ev
from interlock.engine.record.facts import REFUSALS_TOLD, DeviceFacts, RosterEntry, Status, node_of, timed
from interlock.engine.record.words import duration, human_bytes, in_collection, pass_of, several

if TYPE_CHECKING:  # plain output loads no terminal library
    from interlock.widgets.panes.events import Severity

BY_STATUS: "dict[Status, Severity]" = {
    "completed": "notice", "skipped": "notice", "stopped": "warning", "incomplete": "error", "failed": "error",
}  # fmt: skip

SEVERE = ("warning", "error")
"""How bad an event is that an operator is called for."""


def line_of(event: ev.AnyEvent, device_kind: str = "", *, verbose: bool = False) -> str:
    """Write an event as plain output prints it, what went wrong marked as such; empty for one that it leaves out."""
    said = describe(event, device_kind)
    mark = f"{said.severity}: " if said.severity in SEVERE else ""
    return mark + (said.line or said.text) if said.printed and (verbose or not said.usual) else ""


def describe(event: ev.AnyEvent, device_kind: str = "") -> Description:
    """Look up what is said of an event that happened on devices of this kind."""
    # A row for each type: mypy proves that none is missing.
    real = timed(device_kind)
    if isinstance(event, ev.Heartbeat):  # of which there are too many to be told
        return Description(None, "sample", str(event), printed=False)
    if isinstance(event, ev.Plans | ev.Ends):
        return planned(event, real)
    if isinstance(event, ev.Scores | ev.Computes):
        return computed(event, real)
    if isinstance(event, ev.Joins | ev.Reads):
        return _read(event, real)
    return _begun(event) if isinstance(event, ev.Begins | ev.Steers) else _delivered(event)


def _begun(event: ev.Begins | ev.Steers) -> Description:
    """What is said of the run, its devices and its controls."""
    match event:
        case ev.RunStarted():
            return Description("notice", "run", f"run {event.run_id}: chunks from {event.chunks}")
        case ev.RunResumed():
            committed = f"{several(event.committed or 0, 'batch', 'batches')} already committed"
            chunks = f"run resumed: chunks from {event.chunks}"
            text = chunks if event.committed is None else f"run {event.run_id} resumed: {committed}"
            return Description("notice", "run", text)
        case ev.DeadlineSet():
            does = "exports what is complete and stops resumably" if event.partial else "stops resumably"
            text = f"deadline {event.asked}, in {duration(event.seconds)}: the run {does} before it"
            return Description("notice", "run", text)
        case ev.DevicesFound():
            return Description("note", "device", _devices(event))
        case ev.DeviceLost():
            return Description("error", "device", f"{event.device} lost: {event.reason}")
        case ev.MemoryTaken():
            if event.over:
                return Description("notice", "memory", f"{event.device}: others leave enough for the next batch again")
            who = "; ".join(map(str, event.holders))
            return Description("warning", "memory", f"{event}{' (' * bool(who)}{who}{')' * bool(who)}")
        case ev.DiskLow():
            return Description("notice" if event.over else "warning", "disk", str(event))
        case ev.MemoryLow():
            return Description("notice" if event.over else "warning", "memory", str(event))
        case ev.ControlApplied():
            asked = _ASKED.get((event.control, event.value), f"set the {event.control} to {event.value}")
            return Description("notice", "control", f"{event.who} {asked}")
        case ev.ControlRefused():
            text = f"{event.control} stays as it is: {event.reason} ({event.who} asked for {event.value})"
            return Description("warning", "control", text)
        case ev.ControlReached():
            reached = _REACHED.get((event.control, event.value), f"has the {event.control} {event.value}")
            return Description("note", "control", f"{event.node} {reached}", f"nodes: {event.control} {event.value}")
    assert_never(event)


def _read(event: ev.Joins | ev.Reads, real: bool) -> Description:
    """What is said of nodes, models and chunks."""
    match event:
        case ev.NodeJoined():
            return Description("notice", "node", _joined(event, real), "nodes joined")
        case ev.NodeLost():
            held = f"; {_held(event.batches, event.rows)} computed again elsewhere" * bool(event.batches)
            return Description("error", "node", f"{event.node} lost: {event.reason}{held}")
        case ev.NodeRefused():
            return Description("warning", "node", f"{event.node} takes no part: {event.reason}")
        case ev.BatchesDoubled():
            held = f"{_held(len(event.batches), event.rows)} of {pass_of(event.model_pass)} also given to {event.other}"
            return Description("note", "node", f"{event.node} is slow: {held}, and the first result counts")
        case ev.ModelResolved():
            verb = {"hit": "found on this machine", "download": "downloaded", "refresh": "refreshed"}[event.outcome]
            commit = f" @ {event.commit[:12]}" if event.commit else ""
            text = f"model {event.model}: {verb} ({label(event.source)}{commit}, {human_bytes(event.bytes)})"
            return Description("note" if event.outcome == "hit" else "notice", "cache", text)
        case ev.DownloadRetried():
            text = f"download attempt {event.attempt} failed ({event.reason}), retrying in {event.wait_seconds:g} s"
            return Description("warning", "cache", f"model {event.model}: {text}")
        case ev.RosterResolved():
            models = ", ".join(f"{entry.model} ({_share(entry)})" for entry in event.roster)
            order = ", primary first" * (len(event.roster) > 1)
            return Description("note", "roster", f"{several(len(event.roster), 'model')}{order}: {models}")
        case ev.RecordRefused():
            record = "" if event.record is None else f" record {event.record}"
            text = f"{in_collection(event.collection, event.file)}{record} refused: {event.reason}"
            return Description("warning", "refused", text, f"refused in {event.collection}")
        case ev.CollectionRead():
            return Description("note", "collection", _collection(event))
        case ev.CorpusTokenised():
            text = f"tokenised {several(event.texts, 'text')} for {', '.join(event.models)}"
            tokens = f"{several(event.tokens, 'token')} before truncation"
            return Description("note", "tokens", f"{text}: {tokens}", printed=False)
        case ev.BlockRead():
            text = f"read {several(event.texts, 'distinct text')}: those of them that are new can be computed"
            return Description("note", "block", text, printed=False)
    assert_never(event)


def _delivered(event: ev.Delivers) -> Description:
    """What is said of files, stores and collections, and at the end."""
    match event:
        case ev.DeliveredWithout():
            models = ", ".join(f"{each.model} ({each.reason})" for each in event.models)
            weights = ", ".join(f"{name}={weight:.3g}" for name, weight in event.weights.items())
            text = f"delivering {event.collection} without {models}; weights of the rest: {weights}"
            return Description("warning", "gap", text)
        case ev.ArtefactWritten():
            verb = "wrote and verified" if event.verified else "wrote"
            rows = f"{several(event.rows, 'row')}, " * bool(event.rows)
            text = f"{verb} {event.path} ({rows}{human_bytes(event.bytes)})"
            return Description("note", "export", text)
        case ev.StoreVerified():
            word = "verified" if event.ok else "differs from what was written"
            text = f"store {event.store}/{event.qdrant_collection} {word}: {event.detail}"
            return Description("notice" if event.ok else "error", "export", text)
        case ev.VectorsKept():
            text = f"{event.place} has {several(event.bytes, 'byte')} of dense vectors a chunk"
            if event.neighbours is None:
                return Description("note", "export", text)
            kept = f"{event.neighbours:.1%} of the nearest neighbours of {several(event.sampled, 'chunk')} kept"
            return Description("notice", "export", f"{text}, {kept}")
        case ev.CollectionClosed():
            text = f"collection {event.collection} {event.status}{_because(event.reason)}"
            return Description(_severity(event), "collection", text)
        case ev.Warned():
            return Description("warning", "warning", event.message or "(no message)")
        case ev.RunClosed():
            steps = event.mitigations * (event.status == "completed")
            with_all = f" with {several(steps, 'mitigation')}" * bool(steps)
            again = event.reason.startswith(f"{event.status} ")  # stopped by somebody: the word is said once
            said = event.reason if again else f"{event.status}{with_all}{_because(event.reason)}"
            return Description(_severity(event), "run", f"run {said}")
    assert_never(event)


def _severity(event: ev.CollectionClosed | ev.RunClosed) -> "Severity":
    """How much an end matters; what is completed for a reason lacks what was refused."""
    lacking = event.status == "completed" and event.reason
    return "warning" if lacking else BY_STATUS[event.status]


_ASKED = {
    ("stop", "yes"): "asked the run to stop",
    ("pause", "yes"): "paused the run",
    ("pause", "no"): "resumed the run",
    ("cpu_fallback", "yes"): "turned CPU fallback on",
    ("cpu_fallback", "no"): "turned CPU fallback off",
}


_REACHED = {
    ("stop", "yes"): "stops",
    ("pause", "yes"): "has paused",
    ("pause", "no"): "has resumed",
    ("cpu_fallback", "yes"): "has turned CPU fallback on",
    ("cpu_fallback", "no"): "has turned CPU fallback off",
}


def _share(entry: RosterEntry) -> str:
    share = "sparse" if entry.kind == "sparse" else f"weight {entry.weight:g}"
    share += ", missing" * bool(entry.missing)
    share += ", weights of terms" * (entry.kind == "dense" and "sparse" in entry.gives)
    return share + (f", token vectors {entry.tokens.precision}" if entry.tokens else "")


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _collection(event: ev.CollectionRead) -> str:
    """What was refused by its reason, the commonest first, where not every refusal has had a line of its own."""
    sizes = f"{several(event.chunks, 'chunk')} in {several(event.files, 'file')}"
    once = " (texts computed once, delivered for each chunk)" * bool(event.duplicates)
    left_out = f"{several(event.duplicates, 'duplicate')}{once}, {event.refused:,} refused"
    reasons = sorted(event.reasons.items(), key=lambda each: -each[1]) if event.refused > REFUSALS_TOLD else []
    why = f" ({'; '.join(f'{count:,} x {reason}' for reason, count in reasons)})" if reasons else ""
    sums = counted(event.records, event.chunks, event.same)
    why += f" ({sums})" * bool(sums)
    return f"collection {event.collection}: {sizes}, {left_out}{why}; Qdrant collection {event.qdrant_collection}"


def counted(records: int, kept: int, same: int) -> str:
    """Tell what became of a collection's records; empty where all were kept, and of older runs, which do not say."""
    if records <= kept:
        return ""
    return f"of {several(records, 'record')} {kept:,} kept + {same:,} the same + {records - kept - same:,} refused"


def _devices(event: ev.DevicesFound) -> str:
    if not event.devices:
        return "no device found"
    told = "; ".join(f"{each.name} {_make(each)}" for each in event.devices)
    if nodes := {node for each in event.devices if (node := node_of(each.name))}:
        told = f"{_alike(event.devices)}; on {several(len(nodes), 'node')}"
    return f"{_feigned(event.devices)}device{'s' * (len(event.devices) > 1)}: {told}"


def _make(device: DeviceFacts) -> str:
    return f"{device.label}, {human_bytes(device.total_bytes)}, ceiling {human_bytes(device.ceiling_bytes)}"


def _alike(devices: Sequence[DeviceFacts]) -> str:
    """Devices of nodes, those of a kind counted."""
    return "; ".join(f"{count} x {make}" for make, count in Counter(map(_make, devices)).items())


def _feigned(devices: Sequence[DeviceFacts]) -> str:
    return next((word for each in devices if (word := feigned(each.kind))), "")


def _joined(event: ev.NodeJoined, timed: bool) -> str:
    sent = f"; {human_bytes(event.sent_bytes)} of models sent" * bool(event.sent_bytes)
    where = f" ({event.label})" * bool(event.label)
    devices = f"{_feigned(event.devices)}{_alike(event.devices) or 'no device'}"
    return f"{event.node}{where} joined{took(event.seconds, timed)}: {devices}{sent}"


def _held(batches: int, rows: int) -> str:
    """What a node had in its hands."""
    return f"{several(batches, 'batch', 'batches')} ({several(rows, 'text')})"
