"""`interlock ctl`: asks one thing of a run and waits for the answer, and says how a run stands."""

import time
from pathlib import Path
from typing import Literal

import msgspec

from interlock.console.control import protocol as said
from interlock.console.control.client import Link, UnreachableError
from interlock.console.text.runs_text import upload_told
from interlock.engine.compute.controls import NO, STOP, YES
from interlock.engine.compute.schedule import Schedule
from interlock.engine.errors import ExitCode
from interlock.engine.record import atomic
from interlock.engine.record.rundir import JOURNAL
from interlock.engine.record.snapshot import Snapshot, snapshot
from interlock.engine.record.state import Control, RunState
from interlock.engine.record.words import LONG, command, named, percent, remaining, safe
from interlock.engine.standing.health import nodes_reached
from interlock.engine.standing.runs import Overview, overview, state_of
from interlock.widgets.formats import clock

POLL_SECONDS = 0.1
SWITCHES = {
    "exclusive": {"on": ("schedule", Schedule.EXCLUSIVE.value), "off": ("schedule", Schedule.SHARED.value)},
    "fallback": {"on": ("cpu_fallback", YES), "off": ("cpu_fallback", NO)},
}
"""What each switch asks of the engine."""
NO_JOURNAL = "its journal is gone: the run was refused before any work, or deleted"
PLAIN = {"pause": ("pause", YES), "resume": ("pause", NO), "stop": (STOP, YES)}


class Outcome(msgspec.Struct, frozen=True):
    """What became of a request; `at` is empty where it has no answer yet."""

    run: str
    action: str
    state: Literal["acknowledged", "refused", "pending"]
    who: str
    at: str = ""
    reason: str = ""

    @property
    def code(self) -> ExitCode:
        """What the command ends with; one that nobody waited for is no failure."""
        return ExitCode.FAILED if self.state == "refused" or self.reason else ExitCode.COMPLETED


def steer(directory: Path, action: str, value: str | None, patience: float) -> Outcome:
    """Ask for `action`, and wait so many seconds for what becomes of it; 0: not at all. Raises UnreachableError."""
    control, wanted = SWITCHES[action][value] if value else PLAIN[action]
    called = f"{action} {value}" if value else action
    request = said.Halt() if control == STOP else said.Change(control, wanted)
    try:
        with Link(directory) as link:
            asked = link.ask(request, said.Answered)
            if asked.refused:
                return Outcome(named(directory), called, "refused", asked.who, _iso(time.time()), asked.refused)
            answer = _answer(link, directory, asked, control, wanted, patience)
    except UnreachableError as error:
        raise UnreachableError(f"{directory}: {_instead(directory, str(error))}") from error
    if answer is None:
        waited = f"no answer within {patience:g} s: it counts from the next batch" if patience else ""
        if control == STOP and patience:
            waited = f"not over within {patience:g} s: it stops after the current batch or collection"
        return Outcome(named(directory), called, "pending", asked.who, "", waited)
    state: Literal["refused", "acknowledged"] = "refused" if answer.refused else "acknowledged"
    return Outcome(named(directory), called, state, answer.who, _iso(answer.at), answer.refused)


def outcome_text(outcome: Outcome, *, as_json: bool) -> str:
    """Write what became of a request."""
    if as_json:
        return msgspec.json.format(msgspec.json.encode(outcome), indent=2).decode()
    when = f" at {outcome.at}" if outcome.at else ""
    why = f": {outcome.reason}" if outcome.reason else ""
    return safe(f"{outcome.action} {outcome.state}{when}, asked by {outcome.who}{why}", LONG)


def status(directory: Path, *, as_json: bool) -> str:
    """Write how a run stands, who has it in use, and what was asked of it. Raises InterlockError for one that cannot be
    read."""
    folded = _state(directory)
    seen, now = overview(directory, time.time(), lambda _: folded), snapshot(folded, 0)
    standing, unsteered = said.Standing(), ""
    try:
        with Link(directory) as link:
            standing = link.ask(said.Inquiry(), said.Standing)
    except UnreachableError as error:
        unsteered = _instead(directory, str(error), seen)
    ran, stopping = (seen.ran or seen).health, "STOPPING" if standing.stopping else ""
    facts: dict[str, object] = {
        "run": named(directory),
        "state": stopping or ran.word,
        "detail": ran.told,
        "done": round(now.share_done, 4),
        "upload": upload_told(seen),
        "seconds_left": seen.left.seconds if seen.left else None,
        "schedule": now.schedule,
        "cpu_fallback": now.cpu_fallback,
        "paused": now.paused,
        "in_use_by": str(seen.occupant) if seen.held and seen.occupant else None,
        "pending": [f"{each.control}={each.value} ({each.who})" for each in standing.pending],
        "answered": [_told(each, now) for each in now.controls[-5:]],
        "cannot_steer": unsteered,
    }
    if as_json:
        return msgspec.json.format(msgspec.json.encode(facts), indent=2).decode()
    left = f"  {remaining(seen.left.seconds)} left" if seen.left else ""
    yes = {True: "on", False: "off"}
    done = now.share_done if seen.share_done is None else seen.share_done
    lines = [
        f"{directory}: {stopping or seen.health.word}  {percent(done).strip()}{left}",
        seen.health.detail if seen.resumable and not seen.ran else seen.health.told,  # else said below
        "  ".join(seen.attention.words),
        f"in use by {facts['in_use_by']}" if facts["in_use_by"] else "",
        f"schedule {now.schedule}, CPU fallback {yes[now.cpu_fallback]}, paused {yes[now.paused]}",
        *(f"pending: {each.control}={each.value} ({each.who})" for each in standing.pending),
        *(_told(each, now) for each in now.controls[-5:]),
        unsteered,
    ]
    return "\n  ".join(safe(line, LONG) for line in lines if line)


def _answer(
    link: Link, directory: Path, asked: said.Answered, control: str, value: str, patience: float
) -> Control | None:
    """Wait for the answer to what was asked, which to a stop is the end of the run, whoever asked first; None where
    there is none so long. Raises UnreachableError where nobody is left to give one."""
    until = time.monotonic() + patience
    while True:
        lost, ended = None, RunState()
        try:
            answers = link.ask(said.Inquiry(since=asked.answers), said.Standing).answers
        except UnreachableError as error:  # it has ended; its journal has the answer, or there is none
            lost, ended = error, _state(directory)
            answers = ended.controls[asked.answers :]
        if control == STOP and ended.status:
            otherwise = "" if ended.status == "stopped" else f"the run ended before it could stop ({ended.status})"
            return Control(control, value, asked.who, ended.latest_at, otherwise)
        for each in answers:
            if control != STOP and (each.control, each.value, each.who) == (control, value, asked.who):
                return each
        if lost:
            raise lost
        if time.monotonic() >= until:
            return None
        time.sleep(POLL_SECONDS)


def _state(directory: Path) -> RunState:
    """What the journal of a run says. Raises UnreachableError where the run was taken away meanwhile."""
    try:
        with atomic.reading(directory / JOURNAL):
            return state_of(directory)
    except FileNotFoundError as error:
        raise UnreachableError(f"{directory}: {NO_JOURNAL}") from error


def _instead(directory: Path, why: str, seen: Overview | None = None) -> str:
    """Say why a run cannot be asked, and what can be done with it; `seen` is how it stands, where that is known."""
    if not (directory / JOURNAL).exists():
        return NO_JOURNAL
    seen = seen or overview(directory, time.time())
    if seen.held:
        return f"cannot steer it: {why}"
    how = f"the run is over ({seen.health.word})" if seen.exit_code is not None else "the run's process died"
    return f"{how}: continue it with {command(seen.onward)}" if seen.resumable else how


def _told(answer: Control, now: Snapshot) -> str:
    what = f"{answer.control}={answer.value} asked by {answer.who}, {_iso(answer.at)}"
    if answer.refused:
        return f"{what}: refused, {answer.refused}"
    in_force = not now.over and now.in_force.get(answer.control) == answer.value
    nodes = nodes_reached(now, answer.control) if in_force else ""
    return f"{what}: acknowledged{f' by {nodes}' * bool(nodes)}"


def _iso(at: float) -> str:
    return clock(at, "%Y-%m-%dT%H:%M:%SZ", utc=True, otherwise="?")
