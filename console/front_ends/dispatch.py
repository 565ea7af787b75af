"""Who watches a run: the console on a terminal, lines on stderr without one; and what happens when the console is left.

The run is in a session's thread all the while. A console that is gone is followed by the headless front end, which sees
the same run to its end.
"""

import dataclasses
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from interlock.console.front_ends import headless
from interlock.console.front_ends.exposing import exposed
from interlock.console.front_ends.headless import Handler, handling, say
from interlock.console.front_ends.web import in_browser
from interlock.console.notifying import filled, notify
from interlock.console.sources.session import Session, Work
from interlock.console.streams import JsonLog
from interlock.console.terminal.tty import quiet_descriptors, takes_screens, why_headless
from interlock.console.text.event_text import line_of
from interlock.console.text.progress_text import interval, progress
from interlock.console.text.recap import next_commands, recap
from interlock.engine import __version__
from interlock.engine.compute.controls import Controls
from interlock.engine.crash import reportable
from interlock.engine.errors import ExitCode, InterlockError, Stopped, UsageError
from interlock.engine.record.journal import INTERRUPTED, upload_command, upload_of
from interlock.engine.record.rundir import SUMMARY
from interlock.engine.record.snapshot import Snapshot
from interlock.engine.record.words import LONG, argument, command, safe
from interlock.engine.settings import Configuration, recorded
from interlock.engine.standing.health import Health
from interlock.engine.standing.judgement import judge, left_behind
from interlock.widgets.formats import clock

if TYPE_CHECKING:
    from textual.driver import Driver

    from interlock.console.form import Filled
    from interlock.console.sources.journal import Watched
    from interlock.console.sources.runs import RunList
    from interlock.engine.record.facts import Status
    from interlock.engine.record.state import RunState


@dataclass(frozen=True)
class Audience:
    """What the command line says about who reads what."""

    no_ui: bool = False
    events: bool = False
    summary: str | None = None
    quiet: bool = False
    metrics: str | None = None
    notify: Sequence[str] = ()
    known: str = ""
    """Which run had all that is computed anew, and the command that takes it: a warning at the start scrolls off."""


def run_with_front_end(
    make: Callable[[Controls], Work], chunks: Path, configuration: Configuration, audience: Audience,
    then: Callable[[ExitCode], object] | None = None,
) -> ExitCode:  # fmt: skip
    """Do a run of `chunks` under the front end that fits the terminal, and `then` what follows it, with how it
    ended; return that.

    Raises InterlockError for whatever the run raises; a summary that was asked for says so too. Signals stay the run's:
    what comes after its end must not change how it ended, up to the end of the process.
    """
    session, failed = Session(make), ""
    headless.stopped_by_signals(session)

    def told(line: str) -> None:
        say(f"interlock: {safe(line, LONG)}")

    with exposed(audience.metrics, lambda: session.work.recorder if session.work else None, told):
        try:
            code = _watched(session, chunks, configuration, audience)
            try:
                if then and session.work:
                    then(code)
            except BaseException as error:
                failed = str(error) or INTERRUPTED
                raise
            return code
        finally:
            if session.work and session.summary and session.summarised and session.over:
                seen = left_behind(session.work.recorder.snapshot(), str(session.failure or ""))
                words = _notice(audience.notify, seen, session.work.directory.path, failed)
                notify(words, session.summary, told)


def _notice(words: Sequence[str], seen: Snapshot, run: Path, failed: str) -> list[str]:
    """The words of the command that hears how a run ended, and why what followed it `failed`: its upload, of which
    nothing else may tell."""
    server = seen.config["server"].value if "server" in seen.config else ""
    upload = upload_of(run) if server else None
    judged, onward = judge(seen, time.time(), upload), upload.onward if upload else next_commands(seen, run)[0]
    if failed and not upload:
        judged = dataclasses.replace(judged, health=Health("UPLOAD FAILED", "error", failed), share_done=0.0)
        onward = upload_command(run, str(server))
    return filled(words, run.name, judged, onward)


def _watched(session: Session, chunks: Path, configuration: Configuration, audience: Audience) -> ExitCode:
    """Watch a run to its end, and put out what was asked for of it."""
    try:
        front_end = _attended(session, configuration, audience)
        code = front_end.watch()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        failure = reportable(error, session.work.directory.path if session.work else None)
        summarise_failure(chunks, configuration, failure, audience, session.work)
        raise failure from error
    if session.work:
        if not audience.quiet:
            width = shutil.get_terminal_size().columns if sys.stderr.isatty() else None
            place = session.work.directory
            there = place.path if place.journal.exists() else None
            lines = recap(session.work.recorder.snapshot(), there, width)
            if audience.known and code == ExitCode.COMPLETED:
                at = next((at for at, line in enumerate(lines) if line.startswith("next: ")), len(lines))
                lines.insert(at, f"note: {safe(audience.known, LONG)}")
            if isinstance(sys.stderr, JsonLog):
                sys.stderr.record("\n".join(lines), event="recap")
            else:
                say("\n".join(lines))
        try:
            _deliver(session.work, front_end, audience)
        except InterlockError as error:  # a run that did not complete says by its code what to do
            error.exit_code = ExitCode.FAILED if code in (ExitCode.COMPLETED, ExitCode.MITIGATED) else code
            raise
    return code


def _deliver(work: Work, front_end: headless.Headless, audience: Audience) -> None:
    """Put out what was asked for of a run that is over. Raises InterlockError where that, or its events, failed."""
    if audience.summary:
        from interlock.engine.record.summary import dumps, summarise

        headless.deliver_summary(dumps(work.recorder.look(summarise)), audience.summary)
    if front_end.unwritten:
        raise front_end.unwritten


def summarise_failure(
    chunks: Path, configuration: Configuration | None, failure: InterlockError, audience: Audience,
    work: Work | None = None,
) -> None:  # fmt: skip
    """Write the summary of a run that was refused or broken off, where one was asked for; a failure to do so is a line.
    `configuration` is None where that was the reason. Nothing else is written."""
    if not audience.summary:
        return
    from interlock.engine.record.summary import dumps, summarise

    status: Status = "stopped" if isinstance(failure, Stopped) else "failed"
    try:
        summary = work.recorder.look(lambda state: summarise(state) if state.started else None) if work else None
        if summary is None:
            summary = summarise(_refused(chunks, configuration, status, failure))
        elif summary.exit_code is None:  # it ended for this reason unless it says itself how it ended
            summary = replace(summary, status=status, reason=str(failure), exit_code=int(failure.exit_code))
        headless.deliver_summary(dumps(summary), audience.summary)
    except InterlockError as error:
        say(f"interlock: {safe(error, LONG)}")


def _refused(
    chunks: Path, configuration: Configuration | None, status: "Status", failure: InterlockError
) -> "RunState":
    """What the record of a run says that never began."""
    from interlock.engine.record.events import Entry, RunClosed, RunStarted
    from interlock.engine.record.fold import fold
    from interlock.engine.record.state import RunState

    settings = configuration.settings if configuration else None
    began = RunStarted(
        run_id=settings.run_id if settings else "",
        chunks=str(chunks),
        config=recorded(configuration) if configuration else {},
        fusion=settings.fusion if settings else "",
        schedule="",
        versions={"interlock": __version__},
        environment={},
    )
    ended, state = RunClosed(status=status, reason=str(failure), exit_code=int(failure.exit_code)), RunState()
    fold(state, Entry(seq=0, at=time.time(), session=0, elapsed=0.0, device_kind="", body=began))
    fold(state, Entry(seq=1, at=time.time(), session=0, elapsed=0.0, device_kind="", body=ended))
    return state


def _attended(session: Session, configuration: Configuration, audience: Audience) -> headless.Headless:
    """Begin, and show the console until it is left; who watches the run from then on."""
    if reason := why_headless(no_ui=audience.no_ui, events=audience.events, summary=audience.summary):
        if not audience.no_ui and not audience.quiet:
            say(f"interlock: {reason}: plain log output")
        if configuration.settings.cluster and not audience.quiet:
            say(f"interlock: starting a node on each machine of --cluster {configuration.settings.cluster} (seconds)")
        session.start()
        seen = -1
    else:
        seen = _console(session, configuration)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nobody is left to be hung up on
    verbose = configuration.settings.verbose
    return headless.Headless(session, events=audience.events, quiet=audience.quiet, verbose=verbose, seen=seen)


def _console(session: Session, configuration: Configuration) -> int:
    """Show the console until it is left; the `seq` of the last entry that was seen there."""
    from interlock.console.apps.run import Console
    from interlock.console.look import Leave, look_of
    from interlock.console.sources.session import Live

    look, uploaded = look_of(configuration), "server" in configuration.beside
    live = Live(session, readonly=look.readonly)
    app = Console(live, look, session=session, painted=session.start, uploaded=uploaded)
    left, failure = None, "it exited"
    stops: dict[signal.Signals, Handler] = {  # after the batch in flight; the console leaves when the run has ended
        signal.SIGINT: lambda *_: session.controls.stop(ExitCode.INTERRUPTED),
        signal.SIGTERM: lambda *_: session.controls.stop(ExitCode.TERMINATED),
    }
    try:
        with quiet_descriptors(), handling(stops):
            left = app.run()
    except Exception as error:  # whatever a screen raises, the run is not its to end
        failure = safe(error, LONG)
    run = session.work.directory.path if session.work else None
    if left is Leave.ABORT:
        say("aborted: --resume continues")
        headless.leave_at_once(session, ExitCode.INTERRUPTED)
    session.start()  # where the screen was gone before it was painted
    session.detach()
    if left is Leave.STOP or (left is Leave.HANGUP and configuration.settings.on_hangup == "stop"):
        session.controls.stop(ExitCode.HANGUP if left is Leave.HANGUP else ExitCode.STOPPED)
    elif session.alive and left is None:
        say(f"the console failed ({failure}), the run continues: ^C stops it after the current batch")
    elif session.alive:
        shows = f", {command(['watch', argument(run)])} shows it again" if run else ""
        say(f"console detached, the run goes on: ^C stops it after the current batch{shows}")
    return app.seen_seq


def watch_journal(
    run: Path, speed: float | None, configuration: Configuration, *, listed: bool = False
) -> Sequence[str]:
    """Show a run by its journal until the console is left, or without a terminal in lines until it is over; only what
    an operator asks of it changes the run. Return the arguments of the command that it was left for, if any. One that
    was `listed` is left for its list by escape too."""
    from interlock.console.sources.journal import Replayed, Watched

    paged = in_browser()
    if not paged and not takes_screens():
        if speed is not None:
            raise UsageError("--speed replays on a screen: drop it to have the run in lines")
        with closing(Watched(run)) as source:
            _tell(source, verbose=configuration.settings.verbose)
        return ()
    from interlock.console.apps.run import Console
    from interlock.console.look import look_of

    look = look_of(configuration)
    source = Replayed(run, speed) if speed is not None else Watched(run, steered=not look.readonly)
    app = Console(source, look, summary=source.path.with_name(SUMMARY), listed=listed, driver=_driver(paged))
    try:
        with nullcontext() if paged else quiet_descriptors():
            app.run()
    finally:
        source.close()
    if not paged and not listed and not app.next:
        say(f"interlock: {safe(source.parting, LONG)}")
    return app.next


def _tell(source: "Watched", *, verbose: bool) -> None:
    """Print what happened in the run that is watched, and what happens until it is over or its process is gone."""
    seen, over, folded, began = -1, False, headless.Folded(), time.monotonic()
    spoke = began
    while not over:
        over = source.settled  # looked at first, so that nothing is missed
        for entry in source.entries(seen)[0] if source.caught_up else ():
            seen, lines = entry.seq, folded.ended_by(entry.body)
            if not folded.takes(entry.body):
                lines.append(line_of(entry.body, entry.device_kind, verbose=verbose))
            for line in filter(None, lines):
                spoke = time.monotonic()
                print(f"{clock(entry.at)} {safe(line, LONG)}", flush=True)
        if not over and time.monotonic() - spoke >= interval(time.monotonic() - began):
            spoke = time.monotonic()
            print(f"{clock(time.time())} {safe(progress(source.snapshot()) or source.note, LONG)}", flush=True)
        source.wait(headless.POLL_SECONDS)
    if source.failure:
        raise source.failure
    print(safe(source.parting, LONG))


def list_runs(configuration: Configuration, runs: "RunList") -> Sequence[str]:
    """Show runs, and each that is chosen to be watched, until their list is left; return the arguments of the command
    that it was left for."""
    from interlock.console.apps.base import Runs
    from interlock.console.look import look_of

    look, paged, chosen, told = look_of(configuration), in_browser(), None, ""
    driver = _driver(paged)
    while True:
        app = Runs(look, runs, chosen, told, driver=driver)
        with nullcontext() if paged else quiet_descriptors():
            app.run()
        words, told = app.next, ""
        if words[:1] != ["watch"]:
            return words
        while words[:1] == ["watch"]:
            chosen = Path(words[1])
            try:
                words = watch_journal(chosen, None, configuration, listed=True)
            except InterlockError as error:  # it went meanwhile, or was damaged
                words, told = (), str(error)
        if words or getattr(driver, "closed", False):
            return words


def _driver(paged: bool) -> "type[Driver]":
    """Choose what draws for a page, or on the terminal."""
    if paged:
        from interlock.console.terminal.page import PageDriver

        return PageDriver
    from interlock.console.terminal.driver import HangupSafeDriver

    return HangupSafeDriver


def set_up(configuration: Configuration, filled: "Filled | None" = None, failed: str = "") -> "Filled | None":
    """Show the set-up form, as it was `filled` where a run of that `failed` to begin; return what was filled in, None
    when it was left."""
    from interlock.console.apps.base import Form
    from interlock.console.form import Filled, Machine
    from interlock.console.look import look_of

    with quiet_descriptors():
        found = Form(look_of(configuration), Machine(configuration), filled, failed).run()
    return found if isinstance(found, Filled) else None  # what it leaves when its terminal is gone
