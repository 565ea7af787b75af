"""How a run stands in one word, and what to do about that.

Pure functions of a snapshot: header, lists of runs and `ctl status` say the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from interlock.engine.record.facts import node_of, on_host
from interlock.engine.record.inputs import onward
from interlock.engine.record.snapshot import GONE, PassView, Snapshot
from interlock.engine.record.words import argument, command, duration, human_bytes, in_collection, several
from interlock.engine.standing import outlook
from interlock.engine.standing.outcome import allowance, covered

PAUSED, STALLED, DEGRADED, CROWDED = "PAUSED", "STALLED", "DEGRADED", "CROWDED"
LOW_MEMORY, LOW_DISK, MODEL_FAILED, TEXT_PARKED = "LOW MEMORY", "LOW DISK", "MODEL FAILED", "TEXT PARKED"
REFUSED = "INPUT REFUSED"
TROUBLES = (PAUSED, STALLED, CROWDED, DEGRADED, LOW_MEMORY, LOW_DISK, MODEL_FAILED, TEXT_PARKED, "LATE", REFUSED)
"""The words of a run that goes on and is not well."""
ACT = "act now"
ASKS = dict.fromkeys((LOW_MEMORY, LOW_DISK, STALLED, "UPLOAD WAITING"), ACT)
ASKS |= dict.fromkeys((CROWDED, DEGRADED, TEXT_PARKED, MODEL_FAILED, "LATE", REFUSED), "nothing to do now")
ASKS |= dict.fromkeys(("INCOMPLETE", "FAILED", "RUN PROCESS DIED"), "needs you")
ASKS |= dict.fromkeys((PAUSED, "STOPPED"), "no hurry")
"""Whether anybody is needed: where a run may end unless somebody acts, where it does nothing until it is told to, and
where it goes on by itself, for now."""
Level = Literal["ok", "idle", "warn", "error"]
PATIENCE, FIRST_PATIENCE, BATCHES = 60.0, 300.0, 8
"""Seconds without any progress after which a run has stalled: in a pass that has committed a batch in this session, and
in one that has not, which may be reading its weights; and in any case the time of so many of its longest batches."""
CHECK, KEPT = command(["doctor", "--gpu"]), "no finished batch is lost: "
ENDED: dict[str, tuple[str, Level]] = {
    "completed": ("DONE", "ok"),
    "incomplete": ("INCOMPLETE", "error"),
    "stopped": ("STOPPED", "warn"),
    "failed": ("FAILED", "error"),
    "skipped": ("SKIPPED", "warn"),
    GONE: ("RUN PROCESS DIED", "error"),
}


class Remedy(NamedTuple):
    """A `command`, whole, and what an operator runs it for, or when; none yet where it is the one that goes on."""

    when: str
    command: str = ""


class Concern(NamedTuple):
    """What is not as wanted, what to do about it where that is a command, and how bad it is where that is not as bad as
    the state; with more of which `flags` it is gone on with."""

    why: str
    remedy: Remedy | None = None
    level: Level | None = None
    flags: Sequence[str] = ()

    @property
    def told(self) -> str:
        """What is wrong and what to do, for where they stand on one line."""
        return "; ".join(filter(None, [self.why, " ".join(self.remedy or ())]))


@dataclass(frozen=True)
class Health:
    """One word for how a run stands, what it is about, and how bad that is; whether it is `stuck`, as it stands still
    or a fault ended it; and each of its `concerns` by itself, what matters most first."""

    word: str
    level: Level
    detail: str = ""
    stuck: bool = field(default=False, compare=False)
    concerns: tuple[Concern, ...] = field(default=(), compare=False)

    @property
    def asks(self) -> str:
        """What a run asks of whoever looks at it; one that is well, though something is to be told of it, says so."""
        levels = {self.level, *(each.level or self.level for each in self.concerns)}
        if self.level == "idle" and self.word in ASKS:  # a server that only takes its time
            return "nothing to do now"
        return ACT if self.stuck and self.word == CROWDED else ASKS.get(self.word, "all is well" * (levels == {"ok"}))

    @property
    def remedy(self) -> Remedy | None:
        """What goes on with the run, or else the first command that does something about a concern."""
        remedies = [each.remedy for each in self.concerns if each.remedy]
        return next((each for each in remedies if each.command != CHECK), next(iter(remedies), None))

    @property
    def told(self) -> str:
        """The detail and the remedy, for where they stand on one line."""
        return "; ".join(filter(None, [self.detail, " ".join(self.remedy or ())]))


def health(snapshot: Snapshot, now: float, run: Path | None = None) -> Health:
    """Find how a run stands at `now`, in seconds since the epoch; the moment of its latest entry where it is replayed.
    Where its directory is given, the commands that go on with it are written.

    What ended it comes first, then what keeps it from going on, then what it goes on without.
    """

    def solved(concerns: Iterable[Concern]) -> tuple[Concern, ...]:
        return tuple(_solved(each, snapshot, run) for each in concerns if each.why)

    if snapshot.over or snapshot.phase == GONE:
        state = ended(snapshot.phase, snapshot.reason, lost=lost_devices(snapshot), exit_code=snapshot.exit_code)
        return replace(state, concerns=solved(_at_end(snapshot)))
    if not snapshot.paused and (still := now - snapshot.progressed_at) > _patience(snapshot):
        concern = Concern(f"no progress for {duration(still)}", Remedy("if that lasts, stop it and continue it with"))
        return Health(STALLED, "error", concern.why, True, solved([concern]))
    taken, running = [device for device in snapshot.devices if device.taken], snapshot.phase == "running"
    stopped = next((device for device in taken if not device.leased and running and not snapshot.paused), None)
    if stopped:
        return Health(CROWDED, "error", f"{stopped.taken}; nothing is computed there until they leave", stuck=True)
    crowd = "; ".join([str(device.taken) for device in taken] + ["smaller batches, only slower, until those end"])
    found = {
        LOW_MEMORY: Concern(
            outlook.low_memory(snapshot),
            Remedy("or stop the run and, to keep no weights in memory, continue it with"),
            flags=["--warm", "0"],
        ),
        LOW_DISK: Concern(outlook.low_disk(snapshot), Remedy("if it stops for that, continue it with")),
        MODEL_FAILED: _failed(snapshot),
        TEXT_PARKED: _missing(snapshot),
        DEGRADED: _degraded(snapshot),
        CROWDED: Concern(crowd * bool(taken)),
        "LATE": Concern(outlook.late(snapshot, now), Remedy(f"{KEPT}continue it after that with")),
        REFUSED: _left_out(snapshot),
    }
    go_on = Remedy("resume it with", command(["ctl", argument(run), "resume"])) if run else None
    told = {PAUSED: Concern(_paused(snapshot, now), go_on)} if snapshot.paused else {}
    told |= {word: concern for word, concern in found.items() if concern.why}
    allowed = [told.pop(REFUSED)] if REFUSED in told and told[REFUSED].level == "ok" else []
    if told:  # the first gives the word: what may end the run before what it lacks; none hides another
        level: Level = "error" if told.keys() & {MODEL_FAILED} else "warn"  # a parked text may yet get its vector
        why = "; ".join(each.why for each in told.values() if each.why)
        return Health(next(iter(told)), level, why, concerns=solved(told.values()))
    if running:
        return Health("RUN", "ok", "".join(each.why for each in allowed), concerns=solved(allowed))
    return Health(snapshot.phase.upper(), "idle", outlook.doing(snapshot))


def _solved(concern: Concern, snapshot: Snapshot, run: Path | None) -> Concern:
    """Write the command that does something about it, if one does."""
    if not concern.remedy or concern.remedy.command:
        return concern
    told = run and onward(snapshot, run, *concern.flags)
    then = "the upload follows by itself" * ("server" in snapshot.config and not goes_on(snapshot))
    return concern._replace(remedy=Remedy(uploading(concern.remedy.when, then), told) if told else None)


def uploading(when: str, then: str) -> str:
    """Say beside when a command is run what becomes of the upload after it."""
    return f"{when.removesuffix('with')}({then}) with" if then else when


def _at_end(snapshot: Snapshot) -> list[Concern]:
    """What is to be said of a run that is over, or whose process died, each by itself: why it ended, or what it
    lacks."""
    status, refused = snapshot.phase, _left_out(snapshot)
    lacks = [_failed(snapshot), _missing(snapshot, "retry it with"), *[refused] * (refused.level != "ok")]
    found = {"incomplete": [each for each in lacks if each.why], "completed": [refused]}.get(status)
    if not found:
        kept = KEPT * (status in ("stopped", GONE))
        why = _why(status, snapshot.reason) or ("its process is gone" if status == GONE else f"it is {status}")
        found = [Concern(why, Remedy(kept + "when wanted, " * (status == "stopped") + "continue it with"))]
    mine = _to_check(lost_devices(snapshot), snapshot.reason)
    gone = f"{several(len(mine), 'GPU')} lost ({some(mine)})" * bool(mine)
    check = Concern(gone, Remedy("check it before a retry with", CHECK), "warn")
    return [check, *found]  # in the order in which it is done


def _paused(snapshot: Snapshot, now: float) -> str:
    """Say who paused a run and when, how many nodes have heard of it, and whether it holds its devices."""
    asked = [each for each in snapshot.controls if each.control == "pause" and not each.refused][-1:]
    told = [f"by {each.who} {duration(max(0.0, now - each.at))} ago" for each in asked]
    kept = "devices stay held" * any(lease.held for lease in snapshot.leases)
    return ", ".join(filter(None, [*told, nodes_reached(snapshot, "pause"), kept * bool(told)]))


def _missing(snapshot: Snapshot, when: str = "after the run retry with") -> Concern:
    """Say which text has no vector, the first of several, and why."""
    count, first = several(snapshot.parked, "text"), snapshot.first_parked
    where = first and f" ({'first ' * (snapshot.parked > 1)}{first.place or f'text {first.row + 1:,}'}: {first.reason})"
    models = sum(each.parked > 0 for each in snapshot.passes)
    of = f" of {several(models, 'model')}" * (models > 1)
    return Concern(f"{count} parked, no vector{of}{where or ''}" * bool(snapshot.parked), Remedy(when))


def _left_out(snapshot: Snapshot) -> Concern:
    """Say how much of the input was refused, where the first of it is, and whether the run does without, as
    --max-refused allows, which is no alarm."""
    out = [each for each in snapshot.collections if each.read.refused]
    over = [each for each in out if not covered(each.read, snapshot.config)]
    told, number = over or out, sum(each.read.refused for each in over or out)
    if not told:
        return Concern("")
    first = next((each for collection in told for each in collection.refusals), None)
    where = ""
    if first and (over or not goes_on(snapshot)):
        record = "" if first.record is None else f" record {first.record:,}"
        place = in_collection(first.collection, first.file) + record
        where = f" ({'first ' * (number > 1)}{place}: {first.reason})"
    most = snapshot.config["max_refused"].value if "max_refused" in snapshot.config else ""
    if not over:
        return Concern(f"{several(number, 'input')} left out, as allowed (--max-refused {most}){where}", level="ok")
    needs = allowance([each.read for each in out], snapshot.config)
    why = f"{several(number, 'input')} refused{where}, more than --max-refused {most} allows"
    when = "mend it and run again, or do without it with"
    if goes_on(snapshot):
        why, when = f"{why}: the run ends INCOMPLETE, all else is computed", f"after the run {when}"
    return Concern(why, Remedy(when), flags=["--max-refused", needs])


def _failed(snapshot: Snapshot) -> Concern:
    """Say which models a run goes on without."""
    failed = [f"{each.model}: {each.failure}" for each in snapshot.passes if each.failure]
    why = f"{several(len(failed), 'model')} failed ({some(failed)})" * bool(failed)
    return Concern(why, Remedy("mend it, continue with"))


def ended(status: str, reason: str, *, lost: Sequence[str] = (), exit_code: int | None = 0) -> Health:
    """Say how a run stands that has ended so; one that is completed is well, unless its exit code says otherwise
    (--strict). Devices that were `lost` want a check."""
    word, level = ENDED.get(status, (status.upper(), "error"))
    why, mine = _why(status, reason), _to_check(lost, reason)
    told = "; ".join(filter(None, [why, f"{some(mine)} was lost: check it with {CHECK}" * bool(mine)]))
    stuck = level == "error" and status != "incomplete"
    return Health(word, "warn" if level == "ok" and exit_code else level, told, stuck)


def _why(status: str, reason: str) -> str:
    """Why a run ended, without what its state and the command say."""
    return reason.removeprefix(f"{status} ").removesuffix(": --resume continues")


def _to_check(lost: Sequence[str], reason: str) -> list[str]:
    """Of lost devices those of this machine that the reason does not name."""
    return [name for name in lost if not node_of(name) and name not in reason]


def _degraded(snapshot: Snapshot) -> Concern:
    """Say which devices a run goes on without, and which models the CPU computes since no GPU does."""
    gone, lost = [node.node for node in snapshot.nodes if node.lost], lost_devices(snapshot)
    there = [device.facts.name for device in snapshot.devices if not device.lost]
    to = "the other devices" if any(map(node_of, there)) else some(there) or "the CPU" * snapshot.cpu_fallback
    whole = to and snapshot.phase == "running" and not snapshot.parked and not _failed(snapshot).why
    goes = f"no work lost: the batches go to {to}, only the end comes later"
    goes = goes if whole else "the rest goes on" + f", {snapshot.phase}" * (snapshot.phase != "running")
    parts = [f"{several(len(gone), 'node')} lost ({some(gone)})"] * bool(gone)
    parts += [f"{several(len(lost), 'GPU')} lost ({some(lost)})"] * bool(lost)
    told = [", ".join([*parts, goes])] * bool(parts) + ["it joins again by itself once Ray runs on it"] * bool(gone)
    when, flags = "before the next run check it with" * bool(lost), list[str]()
    held = [lease for lease in snapshot.leases if lease.held] if snapshot.on_gpus else []
    on_gpu = {lease.model_pass for lease in held if not any(map(on_host, lease.devices))}  # whose texts may be tried
    for lease in [each for each in held if each.model_pass not in on_gpu]:
        told.append(f"{lease.model} on the CPU, only slower")
        if not (move := snapshot.hosted.get(lease.model_pass)):
            continue
        told[-1] += f": {move.cause.removeprefix(f'{lease.model} ')}" + f"; {move.action}" * (not move.flags)
        if move.flags and not when:
            when, flags = "if you want it faster, stop it and continue it with", [*move.flags]
    return Concern("; ".join(told), Remedy(when, CHECK * bool(lost)) if when else None, flags=flags)


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
