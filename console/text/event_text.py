"""The one table of events: how much each type matters, its word, whether plain output prints it, and its text.

The events pane, plain output and whatever else names an event ask `describe`; nobody else has words for one.
Text is one line, made of the event alone. Seconds are left out where the device is not a real one.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, assert_never

from interlock.engine.models.registry import label
from interlock.engine.record import events as ev
from interlock.engine.record.facts import REFUSALS_TOLD, DeviceFacts, Receipt, RosterEntry, Status, node_of, timed
from interlock.engine.record.snapshot import side_by_side
from interlock.engine.record.words import batch_of, distinct_sizes, duration, human_bytes, pass_of, several
from interlock.widgets.formats import placed

if TYPE_CHECKING:  # plain output loads no terminal library
    from interlock.widgets.events import Severity

BY_STATUS: "dict[Status, Severity]" = {
    "completed": "notice", "skipped": "notice", "stopped": "warning", "incomplete": "warning", "failed": "error",
}  # fmt: skip


class Description(NamedTuple):
    """What is said of an event; those with the same `more` in a row may be told as a count."""

    severity: "Severity | None"
    """None: there are too many of them for the events pane."""
    word: str
    text: str
    more: str = ""
    printed: bool = True
    """Whether plain output prints it, too."""
    line: str = ""
    """What plain output prints in place of the text."""


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
        case ev.DevicesFound():
            return Description("note", "device", _devices(event))
        case ev.DeviceSampled():
            held, ours = human_bytes(event.memory.occupied), human_bytes(event.memory.allocated)
            return Description(None, "device", f"{event.device}: {held} occupied, {ours} in tensors", printed=False)
        case ev.DeviceLost():
            return Description("error", "device", f"{event.device} lost: {event.reason}")
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
        case ev.ControlApplied():
            return Description("notice", "control", f"{event.who} {_asked(event)}")
        case ev.ControlRefused():
            text = f"{event.control} stays as it is: {event.reason} ({event.who} asked for {event.value})"
            return Description("warning", "control", text)
        case ev.ControlReached():
            reached = _REACHED.get((event.control, event.value), f"has the {event.control} {event.value}")
            return Description("note", "control", f"{event.node} {reached}", f"nodes: {event.control} {event.value}")
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
            text = f"{pass_of(event.model_pass)} {event.model}, {event.collection}: {_work(event)}{reused}"
            if event.split:
                return Description("note", "spans", text + _split(event))
            return Description("note" if event.reused else None, "cache", text, printed=False)
        case ev.RowsReused():
            text = f"{several(event.rows, 'vector')} reused from {event.source}"
            return Description("note", "cache", f"{pass_of(event.model_pass)} {event.model}: {text}", printed=False)
        case ev.BatchesLost():
            return Description("warning", "pass", _lost(event))
        case ev.LeaseGranted():
            return Description("notice", "lease", _granted(event), _more(event.lease, f"of {event.model} on nodes"))
        case ev.ModelAttached():
            how = "layers streamed from the host" if event.streamed else human_bytes(event.bytes)
            warm = ", weights already in host memory" if event.warm else ""
            where = f" to {event.device}" if event.device else ""
            text = f"lease {event.lease}: {event.model} attached{where}{_took(event.seconds, real)}, {how}{warm}"
            return Description("note", "lease", text, _more(event.lease, f"of {event.model} on nodes"), printed=False)
        case ev.ModelMoved():
            how = f"from {event.source} to {event.device}{_took(event.seconds, real)}, {human_bytes(event.bytes)}"
            return Description("note", "rerank", f"lease {event.lease}: {event.model} moved {how}: {event.cause}")
        case ev.ModelUnloaded():
            how = f"unloaded from {event.device}{_took(event.seconds, real)}, {human_bytes(event.bytes)}"
            return Description("note", "rerank", f"lease {event.lease}: {event.model} {how}: {event.cause}")
        case ev.PairsPlanned():
            work = f"{several(event.pairs, 'pair')} in {several(event.batches, 'batch', 'batches')}"
            cut = f", {event.truncated:,} truncated" if event.truncated else ""
            text = f"{event.model} is to score {work}, {several(event.tokens, 'token')}{cut}"
            return Description("note", "rerank", text)
        case ev.PairsScored():
            text = f"{event.model} scored {several(event.pairs, 'pair')} on {event.device} in {event.dtype}"
            return Description("notice", "rerank", f"{text}{_took(event.seconds, real)}")
        case ev.RerankerPassedOver():
            instead = f"trying {event.next}" if event.next else "keeping the order of the first stage"
            return Description("warning", "rerank", f"reranker {event.model}: {event.reason}; {instead}")
        case ev.CanaryChecked():
            weight: Severity = "note" if event.outcome == "passed" else "warning"
            return Description(
                weight, "canary", _canary(event, real), printed=not event.remembered, line=_passed(event, real)
            )
        case ev.MemoryCalibrated():
            ratio = f"measured/predicted {event.scale:.2f} over {several(event.batches, 'batch', 'batches')}"
            text = f"memory law calibrated: {ratio} (margin {event.margin:.1%}, worst batch {event.worst:.2f})"
            text = f"{pass_of(event.model_pass)} on {event.device}: {text}"
            return Description("note", "memory", text, printed=False)
        case ev.BatchCommitted():
            text = f"{several(event.rows, 'text')}, {several(event.tokens, 'token')}{_took(event.seconds, real)}"
            place = f"{pass_of(event.model_pass)} {batch_of(event.batch_index)} on {event.device}"
            return Description(None, "batch", f"{place}: {text}", printed=False)
        case ev.Mitigated():
            return Description("warning", "mitigation", _mitigated(event, real))
        case ev.PressurePassed():
            text = f"{pass_of(event.model_pass)} on {event.device}: memory pressure is over, whole batches fit again"
            return Description("notice", "mitigation", text)
        case ev.RowParked():
            place = f"text {event.row + 1:,} of the run ({event.collection})"
            text = f"{place} has no {event.model} vector: {event.reason}"
            return Description("error", "parked", text, f"in {event.collection} without a {event.model} vector")
        case ev.LeaseReleased():
            lost = any(receipt.lost for receipt in event.receipts)
            held = f" after {duration(event.held_seconds)}" if real else ""
            receipts = "".join(f"; {_receipt(receipt)}" for receipt in event.receipts)
            text = f"lease {event.lease}: released {event.model}{held}{receipts}"
            more = _more(event.lease, f"leases of {event.model} released")
            return Description("warning" if lost else "notice", "lease", text, more)
        case ev.ResidueFound():
            size, left = distinct_sizes(event.bytes, event.left_bytes)
            text = f"{size} not freed on {event.device} ({event.action}); {left} remain after a second gc"
            return Description("warning", "lease", f"lease {event.lease}: {text}")
        case ev.EnsemblePassCompleted():
            return Description("notice", "pass", _completed(event, real))
        case ev.PassFailed():
            text = f"{pass_of(event.model_pass)} {event.model} failed: {event.reason}"
            return Description("error", "pass", text)
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


def _more(lease: str, text: str) -> str:
    """What many like it are told as, where every node has its lease."""
    return text if node_of(lease) else ""


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


def _took(seconds: float, timed: bool) -> str:
    return f" in {seconds:.1f} s" if timed else ""


def _work(event: ev.LeaseGranted | ev.PassPlanned) -> str:
    """What a lease is opened for, or a pass planned."""
    return f"{several(event.rows, 'text')} in {several(event.batches, 'batch', 'batches')}"


def _split(event: ev.PassPlanned) -> str:
    """What became of texts beyond the model's limit, where they are split."""
    spans = f"split into {several(event.spans, 'span')} ({several(event.split_tokens, 'token')} more)"
    return f"; {several(event.split, 'text')} longer than its limit, {spans}"


def feigned(device_kind: str) -> str:
    """Name a device that is not there for what it is, wherever it is spoken of."""
    return {"sim": "SIMULATED ", "scripted": "SCRIPTED "}.get(device_kind, "")


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
    return f"{event.node}{where} joined{_took(event.seconds, timed)}: {devices}{sent}"


def _held(batches: int, rows: int) -> str:
    """What a node had in its hands."""
    return f"{several(batches, 'batch', 'batches')} ({several(rows, 'text')})"


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


def _granted(event: ev.LeaseGranted) -> str:
    predicted, budget = distinct_sizes(event.predicted_bytes, event.budget_bytes)
    streamed = ", layers streamed" if event.streamed else ""
    where = f"{feigned(event.device_kind)}{placed(event.devices)}{streamed}, {event.schedule}"
    place = f"lease {event.lease}: {pass_of(event.model_pass)} {event.model} on {where}"
    return f"{place}, {_work(event)}, {predicted} predicted of {budget}"


def _canary(event: ev.CanaryChecked, timed: bool) -> str:
    """The figures and what is done about them first: what is cut off at the end of a narrow line is how they came."""
    begin = f"{pass_of(event.model_pass)} {event.model} on {event.device}"
    how = f"{event.dtype}, {event.attention}{', streamed' * event.streamed}"
    if event.outcome == "skipped":
        return f"{begin}: vectors not checked before use: {event.detail} ({how})"
    after = f"; {event.action}" if event.action else ""
    texts = several(event.rows, "text")
    if event.cosine is None:
        return f"{begin}: {texts} could not be computed: {event.detail}{after} ({how})"
    when = "found by an earlier run" if event.remembered else f"{texts} compared{_took(event.seconds or 0.0, timed)}"
    compared = f"cosine {event.cosine:.5f} to {event.reference}, at least {event.least:g} wanted"
    return f"{begin}: {compared}{after} ({how}, {when})"


def _passed(event: ev.CanaryChecked, timed: bool) -> str:
    """A canary that passed, in short; empty for any other."""
    if event.outcome != "passed" or event.cosine is None:
        return ""
    took = f" ({event.seconds or 0.0:.1f} s)" if timed else ""
    return f"canary {event.model} on {event.label}: passed, cosine {event.cosine:.7f}{took}"


def _mitigated(event: ev.Mitigated, timed: bool) -> str:
    """The step and its place first: what is cut off at the end of a narrow line is the evidence."""
    place = "" if event.batch_index is None else f" {batch_of(event.batch_index)}"
    where = f" on {event.device}" if event.device else ""
    texts = several(event.rows, "pair" if event.model else "text")
    evidence = [texts] * (texts not in event.cause)
    if event.predicted_bytes is not None and event.free is not None:
        sizes = "needs {}, {} free".format(*distinct_sizes(event.predicted_bytes, event.free))
        evidence += [sizes] * (sizes not in event.cause)
    if timed:
        evidence.append(f"cost {event.cost_seconds:.2f} s")
    begin = f"{event.rung or 'step'} in {event.model or pass_of(event.model_pass)}{place}{where}"
    return f"{begin}: {event.cause}; {event.action}" + (f" ({', '.join(evidence)})" if evidence else "")


def _receipt(receipt: Receipt) -> str:
    """Before, peak and after as the driver says, and what stayed behind."""
    if receipt.lost:
        return f"{receipt.device} lost"
    before, peak, after = (human_bytes(each.occupied) for each in (receipt.before, receipt.peak, receipt.after))
    retries = f", {several(receipt.retries, 'retry', 'retries')}" if receipt.retries else ""
    residue = human_bytes(receipt.residue_bytes)
    return f"{receipt.device} {before} before, {peak} peak, {after} after, residue {residue}{retries}"


def _completed(event: ev.EnsemblePassCompleted, timed: bool) -> str:
    """How long the texts of a pass took, in all sessions; several devices worked at the same time."""
    begin = f"{pass_of(event.model_pass)} {event.model} completed: {several(event.rows, 'text')}"
    if timed and event.seconds:
        seconds = event.seconds / side_by_side(event.device.split(","))
        begin += f" in {seconds:.1f} s ({event.rows / seconds:.1f} texts/s)"
    return begin + (f", {event.dtype} on {placed(event.device.split(','))}" if event.device else "")
