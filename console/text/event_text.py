"""The one table of events: how much each type matters, its word, whether plain output prints it, and its text.

The events pane, plain output and whatever else names an event ask `describe`; nobody else has words for one.
Text is one line, made of the event alone. Seconds are left out where the device is not a real one.
"""

from typing import TYPE_CHECKING, assert_never

from interlock.console.text.machine_text import Description, MachineEvent, WorkEvent, computing, machines, work
from interlock.engine.models.registry import label
from interlock.engine.record import events as ev
from interlock.engine.record.facts import REFUSALS_TOLD, RosterEntry, Status, timed
from interlock.engine.record.words import duration, human_bytes, pass_of, several

if TYPE_CHECKING:  # plain output loads no terminal library
    from interlock.widgets.panes.events import Severity

BY_STATUS: "dict[Status, Severity]" = {
    "completed": "notice", "skipped": "notice", "stopped": "warning", "incomplete": "warning", "failed": "error",
}  # fmt: skip
_ReadingEvent = (
    ev.ModelResolved
    | ev.DownloadRetried
    | ev.RosterResolved
    | ev.RecordRefused
    | ev.CollectionRead
    | ev.CorpusTokenised
    | ev.PassPlanned
    | ev.RowsReused
    | ev.BatchesLost
)
_DeliveryEvent = ev.DeliveredWithout | ev.ArtefactWritten | ev.StoreVerified | ev.VectorsKept | ev.CollectionClosed


def line_of(event: ev.AnyEvent, device_kind: str = "") -> str:
    """Write an event as plain output prints it, what went wrong marked as such; empty for one that it leaves out."""
    said = describe(event, device_kind)
    mark = f"{said.severity}: " if said.severity in ("warning", "error") else ""
    return mark + (said.line or said.text) if said.printed else ""


def describe(event: ev.AnyEvent, device_kind: str = "") -> Description:
    """Look up what is said of an event that happened on devices of this kind."""
    # One row for each type: mypy proves that none is missing.
    real = timed(device_kind)
    match event:
        case ev.RunStarted():
            return Description("notice", "run", f"run {event.run_id} started: chunks from {event.chunks}")
        case ev.RunResumed():
            committed = f"{several(event.committed or 0, 'batch', 'batches')} already committed"
            chunks = f"run resumed: chunks from {event.chunks}"
            text = chunks if event.committed is None else f"run {event.run_id} resumed: {committed}"
            return Description("notice", "run", text)
        case ev.DeadlineSet():
            does = "exports what is complete and stops resumably" if event.partial else "stops resumably"
            text = f"deadline {event.asked}, in {duration(event.seconds)}: the run {does} before it"
            return Description("notice", "run", text)
        case ev.ControlApplied():
            return Description("notice", "control", f"{event.who} {_asked(event)}")
        case ev.ControlRefused():
            text = f"{event.control} stays as it is: {event.reason} ({event.who} asked for {event.value})"
            return Description("warning", "control", text)
        case ev.ControlReached():
            reached = _REACHED.get((event.control, event.value), f"has the {event.control} {event.value}")
            return Description("note", "control", f"{event.node} {reached}", f"nodes: {event.control} {event.value}")
        case ev.Warned():
            return Description("warning", "warning", event.message or "(no message)")
        case ev.RunClosed():
            with_all = (
                f" with {several(event.mitigations, 'mitigation')}"
                if event.mitigations and event.status == "completed"
                else ""
            )
            again = event.reason.startswith(f"{event.status} ")  # stopped by somebody: the word is said once
            said = event.reason if again else f"{event.status}{with_all}{_because(event.reason)}"
            return Description(BY_STATUS[event.status], "run", f"run {said}")
    if isinstance(event, ev.Heartbeat):  # of which there are too many to be told
        return Description(None, "sample", str(event), printed=False)
    if isinstance(event, MachineEvent):
        return machines(event, real)
    if isinstance(event, WorkEvent):
        return computing(event, real)
    return _reading(event) if isinstance(event, _ReadingEvent) else _delivering(event)


def _reading(event: _ReadingEvent) -> Description:
    """What is said of models, chunks and the plan."""
    match event:
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
            text = f"{event.collection}/{event.file}{record} refused: {event.reason}"
            return Description("warning", "refused", text, f"refused in {event.collection}")
        case ev.CollectionRead():
            return Description("note", "collection", _collection(event))
        case ev.CorpusTokenised():
            text = f"tokenised {several(event.texts, 'text')} for {', '.join(event.models)}"
            tokens = f"{several(event.tokens, 'token')} before truncation"
            return Description("note", "tokens", f"{text}: {tokens}", printed=False)
        case ev.PassPlanned():
            reused = f", {event.reused:,} reused" if event.reused else ""
            text = f"{pass_of(event.model_pass)} {event.model}, {event.collection}: {work(event)}{reused}"
            if event.split:
                return Description("note", "spans", text + _split(event))
            return Description("note" if event.reused else None, "cache", text, printed=False)
        case ev.RowsReused():
            text = f"{several(event.rows, 'vector')} reused from {event.source}"
            return Description("note", "cache", f"{pass_of(event.model_pass)} {event.model}: {text}", printed=False)
        case ev.BatchesLost():
            return Description("warning", "pass", _lost(event))
    assert_never(event)


def _delivering(event: _DeliveryEvent) -> Description:
    """What is said of files, stores and collections."""
    match event:
        case ev.DeliveredWithout():
            models = ", ".join(f"{each.model} ({each.reason})" for each in event.models)
            weights = ", ".join(f"{name}={weight:.3g}" for name, weight in event.weights.items())
            text = f"delivering {event.collection} without {models}; weights of the rest: {weights}"
            return Description("warning", "gap", text)
        case ev.ArtefactWritten():
            verb = "wrote and verified" if event.verified else "wrote"
            text = f"{verb} {event.path} ({several(event.rows, 'row')}, {human_bytes(event.bytes)})"
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
            return Description(BY_STATUS[event.status], "collection", text)
    assert_never(event)


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


def _asked(event: ev.ControlApplied) -> str:
    """What somebody did with a control."""
    return _ASKED.get((event.control, event.value), f"set the {event.control} to {event.value}")


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _split(event: ev.PassPlanned) -> str:
    """What became of texts beyond the model's limit, where they are split."""
    spans = f"split into {several(event.spans, 'span')} ({several(event.split_tokens, 'token')} more)"
    return f"; {several(event.split, 'text')} longer than its limit, {spans}"


def _collection(event: ev.CollectionRead) -> str:
    """What was refused by its reason, the commonest first, where not every refusal has had a line of its own."""
    sizes = f"{several(event.chunks, 'chunk')} in {several(event.files, 'file')}"
    left_out = f"{several(event.duplicates, 'duplicate')}, {event.refused:,} refused"
    reasons = sorted(event.reasons.items(), key=lambda each: -each[1]) if event.refused > REFUSALS_TOLD else []
    why = f" ({'; '.join(f'{count:,} x {reason}' for reason, count in reasons)})" if reasons else ""
    return f"collection {event.collection}: {sizes}, {left_out}{why}; Qdrant collection {event.qdrant_collection}"


def _lost(event: ev.BatchesLost) -> str:
    number, named = len(event.batches), ", ".join(str(index + 1) for index in event.batches[:20])
    lost = f"{several(number, 'committed batch', 'committed batches')} lost {'its' if number == 1 else 'their'} vectors"
    which = f"{'batch' if number == 1 else 'batches'} {named}{', ...' * (number > 20)}"
    return f"{pass_of(event.model_pass)}: {lost}; recomputing {which}"
