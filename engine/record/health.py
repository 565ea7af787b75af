"""How a run stands in one word that an operator can act on, what has gone wrong in it so far, when it will end and how
sure that is, and what became of it and of its collections.

Pure functions of a snapshot, and of the state where a run is closed: header, lists of runs and `ctl status` say the
same. A collection is completed only when every model saw every row, and no more of it was refused than --max-refused
allows; anything less says what is missing. One that was delivered without some models is incomplete, and failed where
they are missing and it was not, or where nothing is left of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

from interlock.engine.record.events import CollectionRead, RecordRefused, RowParked
from interlock.engine.record.facts import MissingModel, Status, node_of, on_host
from interlock.engine.record.snapshot import GONE, PassView, Snapshot, side_by_side
from interlock.engine.record.state import RunState
from interlock.engine.record.words import Allowance, duration, human_bytes, parse_allowance, several

STALLED, DEGRADED = "STALLED", "DEGRADED"
Level = Literal["ok", "idle", "warn", "error"]
PATIENCE, FIRST_PATIENCE, BATCHES = 60.0, 300.0, 8
"""Seconds without any progress after which a run has stalled: in a pass that has committed a batch in this session, and
in one that has not, which may be reading its weights; and in any case the time of so many of its longest batches."""
ENDED: dict[str, tuple[str, Level]] = {
    "completed": ("DONE", "ok"),
    "incomplete": ("INCOMPLETE", "warn"),
    "stopped": ("STOPPED", "warn"),
    "failed": ("FAILED", "error"),
    "skipped": ("SKIPPED", "warn"),
}


@dataclass(frozen=True)
class Health:
    """One word for how a run stands, what it is about, and how bad that is."""

    word: str
    level: Level
    detail: str = ""


def health(snapshot: Snapshot, now: float) -> Health:
    """Find how a run stands at `now`, in seconds since the epoch; the moment of its latest entry where it is replayed.

    What ended it comes first, then what keeps it from going on, then what it goes on without.
    """
    if snapshot.over:
        return ended(snapshot.phase, snapshot.reason)
    if snapshot.phase == GONE:
        return Health("PROCESS DIED", "error", snapshot.reason)
    if snapshot.paused:
        return Health("PAUSED", "warn", nodes_reached(snapshot, "pause"))
    if (still := now - snapshot.progressed_at) > _patience(snapshot):
        return Health(STALLED, "error", f"no progress for {duration(still)}")
    if without := degraded(snapshot):
        doing = "" if snapshot.phase == "running" else f", {snapshot.phase}"
        return Health(DEGRADED, "warn", without + doing)
    return Health("RUN", "ok") if snapshot.phase == "running" else Health(snapshot.phase.upper(), "idle")


def ended(status: str, reason: str) -> Health:
    """Say how a run stands that has ended so; one that is completed for a `reason` lacks what was refused."""
    word, level = ENDED.get(status, (status.upper(), "error"))
    return Health(word, "warn" if level == "ok" and reason else level, reason)


def degraded(snapshot: Snapshot) -> str:
    """Say what a run goes on without; empty where it has all that it began with."""
    gone, lost = sum(bool(node.lost) for node in snapshot.nodes), _lost(snapshot)
    failed = sum(bool(each.failure) for each in snapshot.passes)
    fell_back = snapshot.on_gpus and any(lease.held and any(map(on_host, lease.devices)) for lease in snapshot.leases)
    parts = [several(gone, "node") + " lost"] * bool(gone) + [several(lost, "GPU") + " lost"] * bool(lost)
    parts += [several(failed, "model") + " failed"] * bool(failed)
    parts += ["computing on the CPU"] * fell_back
    return ", ".join(parts)


def _lost(snapshot: Snapshot) -> int:
    """Count lost devices, but for those that went with their node."""
    gone = {node.node for node in snapshot.nodes if node.lost}
    return sum(bool(device.lost) and node_of(device.facts.name) not in gone for device in snapshot.devices)


def _losses(snapshot: Snapshot) -> int:
    """Count what was lost in all sessions, but for what went with its node."""
    gone = {node.node for node in snapshot.nodes if node.lost}
    return sum(node_of(each.device) not in gone for each in snapshot.losses)


def _patience(snapshot: Snapshot) -> float:
    """Seconds that may pass without progress. Reading and delivering tell of none: they are never said to stall."""
    if snapshot.phase != "running" or not snapshot.progressed_at:
        return float("inf")
    return max(PATIENCE if snapshot.slowest else FIRST_PATIENCE, BATCHES * snapshot.slowest)


@dataclass(frozen=True)
class Attention:
    """What an operator should look at, counted since the run began, or since it was looked at last."""

    lost: int = 0
    parked: int = 0
    warnings: int = 0
    mitigations: int = 0
    refused: int = 0
    nodes: int = 0
    """How often a node was lost."""

    def __sub__(self, seen: "Attention") -> "Attention":
        """Count what came since `seen`; a count that fell, as in a replay, has nothing new."""
        return Attention(*(max(0, getattr(self, each.name) - getattr(seen, each.name)) for each in fields(self)))

    @property
    def total(self) -> int:
        return sum(getattr(self, each.name) for each in fields(self))

    @property
    def words(self) -> list[str]:
        """Name each count that is not zero, what matters most first."""
        named = [
            (self.nodes, several(self.nodes, "node loss", "node losses")),
            (self.lost, several(self.lost, "GPU") + " lost"),
            (self.parked, f"{self.parked} parked"),
            (self.warnings, several(self.warnings, "warning")),
            (self.mitigations, several(self.mitigations, "mitigation")),
            (self.refused, f"{self.refused} refused"),
        ]
        return [text for number, text in named if number]


def attention(snapshot: Snapshot) -> Attention:
    """Count what an operator should look at in a run."""
    return Attention(
        lost=max(_lost(snapshot), _losses(snapshot)),
        parked=snapshot.parked,
        warnings=snapshot.warnings,
        mitigations=snapshot.mitigations,
        refused=sum(each.refused for each in snapshot.collections),
        nodes=sum(len(node.losses) for node in snapshot.nodes),
    )


LEAST, KNOWN, UNKNOWN = 0.05, 0.20, 0.35
"""How far a prediction is said to be off, as a share of it: at a model's own pace as much as its latest batches differ,
at least so much; at the pace of an earlier run; at that of other models. Chosen; `bench/eta.py` measures how often the
end lies within."""
SETTLED = 3
"""Batches from which on a model's own pace is better than that of an earlier run."""


class Outlook(NamedTuple):
    """Seconds to the end of what is left, and by how many of them that may be off."""

    seconds: float
    spread: float


def time_left_of(each: PassView) -> Outlook | None:
    """Predict when a pass that has committed a batch ends; None for any other."""
    if not each.cost_done or each.failure:
        return None
    return _outlook(each, each.lately.pace, max(LEAST, each.lately.varies), side_by_side(each.at_work or each.devices))


def time_left(snapshot: Snapshot) -> Outlook | None:
    """Predict when the last batch of a run is committed; None where nothing is left, or nothing is known."""
    passes = [each for each in snapshot.passes if not each.failure and each.batches_done < each.batches]
    if snapshot.over or snapshot.phase == GONE or not passes:
        return None
    seconds = sum(each.done.seconds for each in snapshot.passes)
    done = sum(each.cost_done for each in snapshot.passes)
    usual = seconds / done if done else 0.0
    held = {name for each in snapshot.passes for name in each.at_work}
    working = side_by_side(held) if held else _usable(snapshot)
    found = [_outlook(each, *_own_pace(each, usual), working) for each in passes]
    if any(each is None for each in found):
        return None
    known = [each for each in found if each]
    return Outlook(sum(each.seconds for each in known), sum(each.spread for each in known))


def _usable(snapshot: Snapshot) -> int:
    """How many devices the next leases may hold."""
    return side_by_side([device.facts.name for device in snapshot.devices if not device.lost])


def _own_pace(each: PassView, usual: float) -> tuple[float, float]:
    """Seconds for each unit of a pass's cost on one device, 0 where nobody knows; and how far they may be off."""
    before = each.tokens / each.known_pace / each.cost if each.known_pace and each.cost else 0.0
    if each.cost_done and (each.batches_done >= SETTLED or not before):
        return each.lately.pace, max(LEAST, each.lately.varies)
    return (before, KNOWN) if before else (usual, UNKNOWN)


def _outlook(each: PassView, pace: float, off: float, devices: int) -> Outlook | None:
    if not pace:
        return None
    seconds = max(0.0, each.cost - each.cost_done) * pace / max(1, devices)
    # The batch that is under way may have just begun, or be nearly done.
    return Outlook(seconds, seconds * off + each.cost / max(1, each.batches) * pace)


GOOD: tuple[Status, ...] = ("completed", "skipped")


def unfinished(state: RunState, name: str) -> list[str]:
    """Return the models that have not seen every text of the collection, those it shares with earlier ones included."""
    owners = [state.collections[owner] for owner in (name, *state.collections[name].read.borrows)]
    shares = [share for owner in owners for share in owner.shares.values()]
    return list(dict.fromkeys(share.plan.model for share in shares if share.batches_done < share.plan.batches))


def lacking(state: RunState, name: str) -> list[MissingModel]:
    """Return the models that have failed or cannot be had and have not seen every text of the collection, in the order
    of the roster."""
    late = unfinished(state, name)
    return [
        MissingModel(
            model_pass=number,
            model=entry.model,
            kind=entry.kind,
            weight=entry.weight,
            reason=state.failures[number].reason,
        )
        for number, entry in enumerate(state.roster)
        if number in state.failures and (entry.missing or entry.model in late)
    ]


def collection_status(state: RunState, name: str) -> tuple[Status, str]:
    """Tell where a collection stands, before and after it is delivered."""
    collection = state.collections[name]
    out, allowed = left_out(state, name)
    if not collection.read.chunks:
        found = f"no record in {several(collection.read.files, 'file')}" if collection.read.files else "no chunk files"
        if not out:
            return "skipped", found
        if not collection.read.refused:
            return "skipped", out
        return "skipped" if allowed else "failed", f"no usable record: {out}"
    without = {each.model for each in collection.missing}
    missing = [model for model in unfinished(state, name) if model not in without]
    failed = [failure for failure in state.failures.values() if failure.model in missing]
    if failed:
        return "failed", "; ".join(f"{failure.model}: {failure.reason}" for failure in failed)
    if missing:
        return "incomplete", f"not finished by {', '.join(missing)}"
    if collection.verification and not collection.verification.ok:
        return "failed", f"the store differs from what was written: {collection.verification.detail}"
    gaps = [f"delivered without {each.model}: {each.reason}" for each in collection.missing]
    if faults := [*gaps, *filter(None, [_parked_texts(state, name), "" if allowed else out])]:
        return "incomplete", "; ".join(faults)
    return "completed", out


MEND = "mend what was refused and run again with --reuse, or allow it with --max-refused"
ALL = Allowance(0, 100.0, files=True)


def left_out(state: RunState, name: str) -> tuple[str, bool]:
    """Say what of a collection's input was refused, with the first of it by its place, or was not looked at where
    nothing else was there; and whether the run was told to do without. Nothing is said where all of it was taken."""
    collection = state.collections[name]
    config = state.started.config if state.started else {}
    allowed = parse_allowance(str(config["max_refused"].value)) if "max_refused" in config else ALL
    return refused(collection.read, collection.refusals), covered(collection.read, allowed)


def covered(read: CollectionRead, allowed: Allowance) -> bool:
    """Tell whether no more of a collection was refused than is allowed."""
    records = read.refused - read.refused_files
    return allowed.covers(records, read.chunks + read.same + records, read.refused_files)


def refused(read: CollectionRead, told: Sequence[RecordRefused]) -> str:
    """Say how many files and records of a collection were refused, and where the first of each is and why."""
    if not read.files and not read.refused and read.unread:
        return f"no chunk files, though {several(read.unread, 'file')} beside like them"
    records, texts = read.refused - read.refused_files, list[str]()
    for whole, number in ((True, read.refused_files), (False, records)):
        first = next((each for each in told if (each.record is None) == whole), None)
        of = "" if whole else f" of {read.chunks + read.same + records:,}"
        place = first and (first.file if whole else f"{first.file} record {first.record:,}")
        why = f" ({'first ' * (number > 1)}{place}: {first.reason})" if first else ""
        texts += [
            f"{number:,}{of} {'file' if whole else 'record'}{'s' * (number > 1 or not whole)} refused{why}"
        ] * bool(number)
    return ", ".join(texts)


def run_status(state: RunState) -> tuple[Status, str]:
    """Tell what became of a run whose collections are all closed."""
    bad = [collection for collection in state.collections.values() if collection.status not in GOOD]
    told = {collection.name: [collection.reason] for collection in bad}
    for name in state.collections:  # what was allowed to be refused is told too
        out, why = left_out(state, name)[0], told.get(name, [])
        told |= {name: [*why, out]} if out and out not in "".join(why) else {}
    reason = "; ".join(f"{name}: {'; '.join(why)}" for name, why in told.items())
    if not bad:
        return "completed", reason
    status: Status = "failed" if any(collection.status == "failed" for collection in bad) else "incomplete"
    mend = any(not left_out(state, collection.name)[1] for collection in bad)
    return status, reason + f"; {MEND}" * mend


def _parked_texts(state: RunState, name: str) -> str:
    rows = [parked for collections in state.parked.values() for parked in collections.get(name, {}).values()]
    by_model: dict[str, list[RowParked]] = {}
    for parked in rows:
        by_model.setdefault(parked.model, []).append(parked)
    texts = []
    for model, mine in sorted(by_model.items()):
        first = f" ({'first ' * (len(mine) > 1)}{mine[0].place})" if mine[0].place else ""
        again = all((each.model_pass, each.row) in state.tried_again for each in mine)
        text = f"{several(len(mine), 'text')} {'has' if len(mine) == 1 else 'have'} no {model} vector{first}"
        texts.append(f"{text}: {mine[0].reason}" + ", also when tried again" * again)
    return "; ".join(texts)


def batches_of(each: PassView) -> str:
    """Write `batch 14/22`: how many of a pass are committed, whichever they are; nothing before there is one."""
    return f"batch {each.batches_done}/{each.batches}" if each.batches_done else ""


def outputs_of(each: PassView) -> list[str]:
    """Tell what a pass has given beside a vector of each text, and how much of its texts its model sees."""
    seen = "" if each.coverage is None else f" ({int(each.coverage * 1000) / 10}% of the tokens seen)"
    facts = [f"{each.truncated:,} truncated{seen}"] * bool(each.truncated)
    facts += [f"{each.terms_per_text:.0f} terms a text"] * bool(each.done.terms)
    facts += [f"{each.done.termless:,} without terms"] * bool(each.done.termless)
    kept = f"{several(each.done.token_vectors, 'token vector')} ({human_bytes(each.kept_bytes)})"
    return facts + [kept] * bool(each.done.token_vectors)


def nodes_reached(snapshot: Snapshot, control: str) -> str:
    """Tell on how many nodes a control is in force: `2 of 3 nodes`, `all 3 nodes`; nothing on one machine."""
    done, of = snapshot.reached(control)
    return "" if not of else f"all {several(of, 'node')}" if done == of > 1 else f"{done} of {several(of, 'node')}"
