"""What is said of passes and leases, and of what is computed under them: two parts of the table of events."""

from typing import TYPE_CHECKING, NamedTuple, assert_never

from interlock.engine.record import events as ev
from interlock.engine.record.facts import Receipt, node_of
from interlock.engine.record.snapshot import side_by_side
from interlock.engine.record.words import (
    batch_of,
    distinct_sizes,
    duration,
    human_bytes,
    in_collection,
    pass_of,
    several,
)
from interlock.widgets.formats import RUNGS, placed

if TYPE_CHECKING:  # plain output loads no terminal library
    from interlock.widgets.panes.events import Severity


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
    usual: bool = False
    """Whether all was as it should be, which only `--verbose` tells."""


def planned(event: ev.Plans | ev.Ends, real: bool) -> Description:
    """Look up what is said of passes and leases."""
    match event:
        case ev.RowsReused():
            text = f"{several(event.rows, 'vector')} reused from {event.source}"
            return Description("note", "cache", f"{pass_of(event.model_pass)} {event.model}: {text}", printed=False)
        case ev.PassPlanned():
            reused = f", {event.reused:,} reused" if event.reused else ""
            text = f"{pass_of(event.model_pass)} {event.model}, {event.collection}: {work(event)}{reused}"
            if event.split:
                spans = f"{several(event.spans, 'span')} ({several(event.split_tokens, 'token')} more)"
                text += f"; {several(event.split, 'text')} longer than its limit, split into {spans}"
                return Description("note", "spans", text)
            if event.truncated:
                cut, gone = several(event.truncated, "text"), several(event.truncated_tokens, "token")
                text += f"; {cut} longer than its limit, truncated ({gone} not embedded)"
                return Description("note", "tokens", text)
            return Description("note" if event.reused else None, "cache", text, printed=False)
        case ev.BatchesLost():
            return Description("warning", "pass", _lost(event))
        case ev.ParkedRetried():
            held = f"{several(len(event.batches), 'batch', 'batches')} with {several(event.rows, 'text')}"
            text = f"{pass_of(event.model_pass)}: {held} that failed before computed again: {event.cause}"
            return Description("notice", "parked", text)
        case ev.LeaseGranted():
            return Description("notice", "lease", _granted(event), _more(event.lease, f"of {event.model} on nodes"))
        case ev.ModelAttached():
            how = "layers streamed from the host" if event.streamed else human_bytes(event.bytes)
            warm = ", weights already in host memory" if event.warm else ""
            where = f" to {event.device}" if event.device else ""
            text = f"lease {event.lease}: {event.model} attached{where}{took(event.seconds, real)}, {how}{warm}"
            return Description("note", "lease", text, _more(event.lease, f"of {event.model} on nodes"), printed=False)
        case ev.CanaryChecked():
            weight: Severity = "note" if event.outcome == "passed" else "warning"
            return Description(
                weight,
                "check",
                _canary(event, real),
                printed=not event.remembered,
                line=_passed(event, real),
                usual=event.outcome == "passed",
            )
        case ev.LeaseReleased():
            lost = any(receipt.lost for receipt in event.receipts)
            held = f" after {duration(event.held_seconds)}" if real else ""
            receipts = "".join(f"; {_receipt(receipt)}" for receipt in event.receipts)
            text = f"lease {event.lease}: released {event.model}{held}{receipts}"
            more = _more(event.lease, f"leases of {event.model} released")
            return Description("warning" if lost else "notice", "lease", text, more)
        case ev.ResidueFound():
            size, left = distinct_sizes(event.bytes, event.left_bytes)
            text = f"{left} stay on {event.device} after lease {event.lease}"
            return Description("warning", "lease", f"{text} ({size} before a second gc; {event.action})")
        case ev.EnsemblePassCompleted():
            return Description("notice", "pass", _completed(event, real))
        case ev.PassFailed():
            text = f"{pass_of(event.model_pass)} {event.model} failed: {event.reason}"
            return Description("error", "pass", text)
    assert_never(event)


def computed(event: ev.Scores | ev.Computes, real: bool) -> Description:
    """Look up what is said of batches, of their vectors and of pairs."""
    match event:
        case ev.ModelMoved():
            how = f"from {event.source} to {event.device}{took(event.seconds, real)}, {human_bytes(event.bytes)}"
            return Description("note", "rerank", f"lease {event.lease}: {event.model} moved {how}: {event.cause}")
        case ev.ModelUnloaded():
            how = f"unloaded from {event.device}{took(event.seconds, real)}, {human_bytes(event.bytes)}"
            return Description("note", "rerank", f"lease {event.lease}: {event.model} {how}: {event.cause}")
        case ev.PairsPlanned():
            work = f"{several(event.pairs, 'pair')} in {several(event.batches, 'batch', 'batches')}"
            cut = f", {event.truncated:,} truncated" if event.truncated else ""
            text = f"{event.model} is to score {work}, {several(event.tokens, 'token')}{cut}"
            return Description("note", "rerank", text)
        case ev.PairsScored():
            text = f"{event.model} scored {several(event.pairs, 'pair')} on {event.device} in {event.dtype}"
            return Description("notice", "rerank", f"{text}{took(event.seconds, real)}")
        case ev.RerankerPassedOver():
            instead = f"trying {event.next}" if event.next else "keeping the order of the first stage"
            return Description("warning", "rerank", f"reranker {event.model}: {event.reason}; {instead}")
        case ev.MemoryCalibrated():
            begin = f"{pass_of(event.model_pass)} on {event.device}: {several(event.batches, 'batch', 'batches')}"
            used = f"took {event.scale:.2f} times the memory predicted (±{event.margin:.1%}, at most {event.worst:.2f})"
            return Description("note", "memory", f"{begin} {used}", usual=True)
        case ev.BatchCommitted():
            text = f"{several(event.rows, 'text')}, {several(event.tokens, 'token')}{took(event.seconds, real)}"
            place = f"{pass_of(event.model_pass)} {batch_of(event.batch_index)} on {event.device}"
            return Description(None, "batch", f"{place}: {text}", printed=False)
        case ev.Mitigated():
            bad = event.rung == "park" or (
                event.rung == "cpu" and event.batch_index is None
            )  # it costs a text, or hours
            return Description("warning" if bad else "notice", "mitigation", _mitigated(event, real))
        case ev.PressurePassed():
            text = f"{pass_of(event.model_pass)} on {event.device}: memory pressure is over, whole batches fit again"
            return Description("notice", "mitigation", text)
        case ev.RowParked():
            place = in_collection(event.collection, event.place)
            place = place if event.place else f"text {event.row + 1:,} of the run ({event.collection})"
            text = f"{place} has no {event.model} vector: {event.reason}"
            return Description("warning", "parked", text, f"in {event.collection} without a {event.model} vector")
    assert_never(event)


def _more(lease: str, text: str) -> str:
    """What many like it are told as, where every node has its lease."""
    return text if node_of(lease) else ""


def took(seconds: float, timed: bool) -> str:
    return f" in {seconds:.1f} s" if timed else ""


def work(event: ev.LeaseGranted | ev.PassPlanned) -> str:
    """What a lease is opened for, or a pass planned."""
    return f"{several(event.rows, 'text')} in {several(event.batches, 'batch', 'batches')}"


def feigned(device_kind: str) -> str:
    """Name a device that is not there for what it is, wherever it is spoken of."""
    return {"sim": "SIMULATED ", "scripted": "SCRIPTED "}.get(device_kind, "")


def _granted(event: ev.LeaseGranted) -> str:
    predicted, budget = distinct_sizes(event.predicted_bytes, event.budget_bytes)
    streamed = ", layers streamed" if event.streamed else ""
    where = f"{feigned(event.device_kind)}{placed(event.devices)}{streamed}, {event.schedule}"
    place = f"lease {event.lease}: {pass_of(event.model_pass)} {event.model} on {where}"
    return f"{place}, {work(event)}, {predicted} predicted of {budget}"


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
    when = "found by an earlier run" if event.remembered else f"{texts} compared{took(event.seconds or 0.0, timed)}"
    right = "as they should be" if event.outcome == "passed" else "wrong"
    compared = f"cosine {event.cosine:.5f} to {event.reference}, {event.least:g} is enough"
    return f"{begin}: vectors are {right}{after} ({compared}; {how}, {when})"


def _passed(event: ev.CanaryChecked, timed: bool) -> str:
    """A check of vectors that passed, in short; empty for any other."""
    if event.outcome != "passed" or event.cosine is None:
        return ""
    took = f" ({event.seconds or 0.0:.1f} s)" if timed else ""
    return f"vectors of {event.model} on {event.label} are as they should be: cosine {event.cosine:.7f}{took}"


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
    begin = f"{RUNGS.get(event.rung, event.rung) or 'step'}, {event.model or pass_of(event.model_pass)}{place}{where}"
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
    where = "SIMULATED " * (not timed) + placed(event.device.split(","))
    return begin + (f", {event.dtype} on {where}" if event.device else "")


def _lost(event: ev.BatchesLost) -> str:
    number, named = len(event.batches), ", ".join(str(index + 1) for index in event.batches[:20])
    lost = f"{several(number, 'committed batch', 'committed batches')} lost {'its' if number == 1 else 'their'} vectors"
    if event.node:
        lost = f"{several(number, 'batch', 'batches')} of {event.node} {'counts' if number == 1 else 'count'} no more"
    which = f"{'batch' if number == 1 else 'batches'} {named}{', ...' * (number > 20)}"
    return f"{pass_of(event.model_pass)}: {lost}; recomputing {which}"
