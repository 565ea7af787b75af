"""How a run stands in one word, what to do about that, and what became of it and of its collections.

Pure functions of a snapshot, and of the state where a run is closed: header, lists of runs and `ctl status` say the
same. A collection is completed only when every model saw every row, and no more of it was refused than --max-refused
allows; anything less says what is missing. One that was delivered without some models is incomplete, and failed where
they are missing and it was not, or where nothing is left of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from interlock.engine.record import outlook
from interlock.engine.record.events import CollectionRead, RecordRefused, RowParked
from interlock.engine.record.facts import MissingModel, Status, node_of, on_host
from interlock.engine.record.inputs import onward
from interlock.engine.record.snapshot import GONE, PassView, Snapshot
from interlock.engine.record.state import RunState
from interlock.engine.record.words import Allowance, command, duration, human_bytes, parse_allowance, several

PAUSED, STALLED, DEGRADED, CROWDED = "PAUSED", "STALLED", "DEGRADED", "CROWDED"
LOW_MEMORY, LOW_DISK, MODEL_FAILED, TEXT_PARKED = "LOW MEMORY", "LOW DISK", "MODEL FAILED", "TEXT PARKED"
TROUBLES = (PAUSED, STALLED, CROWDED, DEGRADED, LOW_MEMORY, LOW_DISK, MODEL_FAILED, TEXT_PARKED, "LATE")
"""The words of a run that goes on and is not well."""
Level = Literal["ok", "idle", "warn", "error"]
PATIENCE, FIRST_PATIENCE, BATCHES = 60.0, 300.0, 8
"""Seconds without any progress after which a run has stalled: in a pass that has committed a batch in this session, and
in one that has not, which may be reading its weights; and in any case the time of so many of its longest batches."""
CHECK, KEPT = command(["doctor", "--gpu"]), "no finished batch is lost: "
ENDED: dict[str, tuple[str, Level]] = {
    "completed": ("DONE", "ok"),
    "incomplete": ("INCOMPLETE", "warn"),
    "stopped": ("STOPPED", "warn"),
    "failed": ("FAILED", "error"),
    "skipped": ("SKIPPED", "warn"),
    GONE: ("RUN PROCESS DIED", "error"),
}


class Remedy(NamedTuple):
    """A `command`, whole, and what an operator runs it for, or when."""

    when: str
    command: str


@dataclass(frozen=True)
class Health:
    """One word for how a run stands, what it is about, and how bad that is; whether it is `stuck`, as it stands still
    or a fault ended it; the `remedy`, where that is a command."""

    word: str
    level: Level
    detail: str = ""
    stuck: bool = field(default=False, compare=False)
    remedy: Remedy | None = field(default=None, compare=False)

    @property
    def told(self) -> str:
        """The detail and the remedy, for where they stand on one line."""
        return "; ".join(filter(None, [self.detail, " ".join(self.remedy or ())]))


class _Trouble(NamedTuple):
    """Why a run is not well; when it is gone on with, with more of which `flags`, or what is run `instead`."""

    why: str
    when: str = ""
    flags: Sequence[str] = ()
    instead: str = ""


def health(snapshot: Snapshot, now: float, run: Path | None = None) -> Health:
    """Find how a run stands at `now`, in seconds since the epoch; the moment of its latest entry where it is replayed.
    Where its directory is given, the commands that go on with it are written.

    What ended it comes first, then what keeps it from going on, then what it goes on without.
    """
    if snapshot.over or snapshot.phase == GONE:
        state = ended(snapshot.phase, snapshot.reason, lacks=(lacks := loses(snapshot)), lost=lost_devices(snapshot))
        when = "retry missing vectors with" if lacks and snapshot.phase == "incomplete" else "continue it with"
        when = KEPT * (snapshot.phase in ("stopped", GONE)) + when
        return replace(state, remedy=_remedy([_Trouble("", when)], snapshot, run))
    if not snapshot.paused and (still := now - snapshot.progressed_at) > _patience(snapshot):
        trouble = _Trouble(f"no progress for {duration(still)}", "if that lasts, stop it and continue it with")
        return Health(STALLED, "error", trouble.why, True, _remedy([trouble], snapshot, run))
    taken, running = [device for device in snapshot.devices if device.taken], snapshot.phase == "running"
    stopped = next((device for device in taken if not device.leased and running and not snapshot.paused), None)
    if stopped:
        return Health(CROWDED, "error", f"{stopped.taken}; nothing is computed there until they leave", stuck=True)
    crowd = "; ".join([str(device.taken) for device in taken] + ["smaller batches, only slower, until those end"])
    found = {
        MODEL_FAILED: _failed(snapshot),
        TEXT_PARKED: _missing(snapshot),
        LOW_MEMORY: _Trouble(
            outlook.low_memory(snapshot),
            "or stop it and, to keep no weights in memory, continue it with",
            ["--warm", "0"],
        ),
        LOW_DISK: _Trouble(outlook.low_disk(snapshot), "if it stops for that, continue it with"),
        DEGRADED: _degraded(snapshot),
        CROWDED: _Trouble(crowd * bool(taken)),
        "LATE": _Trouble(outlook.late(snapshot, now), "after that continue it with"),
    }
    told = {PAUSED: _Trouble(_paused(snapshot, now))} if snapshot.paused else {}
    told |= {word: trouble for word, trouble in found.items() if trouble.why}
    if told:  # the first gives the word, red ones before amber ones; none hides another
        level: Level = "error" if told.keys() & {MODEL_FAILED} else "warn"  # a parked text may yet get its vector
        why = "; ".join(each.why for each in told.values() if each.why)
        return Health(next(iter(told)), level, why, remedy=_remedy(told.values(), snapshot, run))
    return Health("RUN", "ok") if running else Health(snapshot.phase.upper(), "idle", outlook.doing(snapshot))


def _remedy(troubles: Iterable[_Trouble], snapshot: Snapshot, run: Path | None) -> Remedy | None:
    """What to do about the first of these about which a command does something."""
    known = [
        (each.when, each.instead or (run and onward(snapshot, run, *each.flags))) for each in troubles if each.when
    ]
    return next((Remedy(when, told) for when, told in known if told), None)


def _paused(snapshot: Snapshot, now: float) -> str:
    """Say who paused a run and when, and how many nodes have heard of it."""
    asked = [each for each in snapshot.controls if each.control == "pause" and not each.refused][-1:]
    told = [f"by {each.who} {duration(max(0.0, now - each.at))} ago" for each in asked]
    return ", ".join(filter(None, [*told, nodes_reached(snapshot, "pause")]))


def _missing(snapshot: Snapshot) -> _Trouble:
    """Say which text has no vector, the first of several, and why."""
    count, first = several(snapshot.parked, "text"), snapshot.first_parked
    where = first and f" ({'first ' * (snapshot.parked > 1)}{first.place or f'text {first.row + 1:,}'}: {first.reason})"
    return _Trouble(f"{count} parked, no vector{where or ''}" * bool(snapshot.parked), "after the run retry with")


def _failed(snapshot: Snapshot) -> _Trouble:
    """Say which models a run goes on without."""
    failed = [f"{each.model}: {each.failure}" for each in snapshot.passes if each.failure]
    return _Trouble(f"{several(len(failed), 'model')} failed ({some(failed)})" * bool(failed), "mend it, continue with")


def ended(status: str, reason: str, *, lacks: bool, lost: Sequence[str] = ()) -> Health:
    """Say how a run stands that has ended so, and `lacks` vectors or not; one that is completed for a `reason` lacks
    what was refused. Devices that were `lost` want a check."""
    word, level = ENDED.get(status, (status.upper(), "error"))
    why = reason.removeprefix(f"{status} ").removesuffix(": --resume continues")  # the command does
    mine = [name for name in lost if not node_of(name) and name not in why]
    told = "; ".join(filter(None, [why, f"{some(mine)} was lost: check it with {CHECK}" * bool(mine)]))
    return Health(word, "error" if lacks else "warn" if level == "ok" and reason else level, told, level == "error")


def _degraded(snapshot: Snapshot) -> _Trouble:
    """Say which devices a run goes on without, and which models the CPU computes since no GPU does."""
    gone, lost = [node.node for node in snapshot.nodes if node.lost], lost_devices(snapshot)
    there = [device.facts.name for device in snapshot.devices if not device.lost]
    to = "the other devices" if any(map(node_of, there)) else some(there) or "the CPU" * snapshot.cpu_fallback
    whole = to and snapshot.phase == "running" and not loses(snapshot)
    goes = f"no work lost: the batches go to {to}, only the end comes later"
    goes = goes if whole else "the rest goes on" + f", {snapshot.phase}" * (snapshot.phase != "running")
    parts = [f"{several(len(gone), 'node')} lost ({some(gone)})"] * bool(gone)
    parts += [f"{several(len(lost), 'GPU')} lost ({some(lost)})"] * bool(lost)
    told = [", ".join([*parts, goes])] * bool(parts) + ["once Ray runs there again it joins"] * bool(gone)
    when, flags = "before the next run check it with" * bool(lost), list[str]()
    held = [lease for lease in snapshot.leases if lease.held] if snapshot.on_gpus else []
    on_gpu = {lease.model_pass for lease in held if not any(map(on_host, lease.devices))}  # whose texts may be tried
    for lease in [each for each in held if each.model_pass not in on_gpu]:
        told.append(f"{lease.model} on the CPU, only slower")
        if not (move := snapshot.hosted.get(lease.model_pass)):
            continue
        told[-1] += f": {move.cause.removeprefix(f'{lease.model} ')}" + f"; {move.action}" * (not move.flags)
        if move.flags and not when:
            when, flags = "for a GPU stop it and continue it with", [*move.flags]
    return _Trouble("; ".join(told), when, flags, CHECK * bool(lost))


def loses(snapshot: Snapshot) -> bool:
    """Tell whether a run lacks, or will lack in the end, what was wanted of it: a model, a text's vector."""
    return bool(snapshot.parked) or any(each.failure for each in snapshot.passes)


def goes_on(snapshot: Snapshot) -> bool:
    """Tell whether the process of a run is there and has not done with it."""
    return not snapshot.over and snapshot.phase != GONE


def at_rest(snapshot: Snapshot) -> bool:
    """Tell whether nothing is computed: a run is paused, or does not go on."""
    return snapshot.paused or not goes_on(snapshot)


def some(names: Sequence[str]) -> str:
    """Name two of these, and how many more there are."""
    return ", ".join(names[:2]) + f" and {len(names) - 2} more" * (len(names) > 2)


def lost_devices(snapshot: Snapshot) -> list[str]:
    """Name lost devices, but for those that went with their node."""
    gone = {node.node for node in snapshot.nodes if node.lost}
    lost = [device.facts.name for device in snapshot.devices if device.lost]
    return [name for name in lost if node_of(name) not in gone]


def _patience(snapshot: Snapshot) -> float:
    """Seconds that may pass without progress. Reading and delivering tell of none: they are never said to stall."""
    if snapshot.phase != "running" or not snapshot.progressed_at:
        return float("inf")
    return max(PATIENCE if snapshot.slowest else FIRST_PATIENCE, BATCHES * snapshot.slowest)


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
        return f"no chunk files, though {several(read.unread, 'file')} beside like them: give its own path"
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
    texts: dict[tuple[str, str], list[str]] = {}  # what is true of several models is said once
    for model, mine in sorted(by_model.items()):
        first = f" ({'first ' * (len(mine) > 1)}{mine[0].place})" if mine[0].place else ""
        again = all((each.model_pass, each.row) in state.tried_again for each in mine)
        count = f"{several(len(mine), 'text')} {'has' if len(mine) == 1 else 'have'} no"
        why = f"vector{first}: {mine[0].reason}" + ", also when tried again" * again
        texts.setdefault((count, why), []).append(model)
    return "; ".join(f"{count} {', '.join(models)} {why}" for (count, why), models in texts.items())


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
