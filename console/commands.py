"""The commands that do a run, or show and steer one; `answers` has those that only print something.

Every function takes the parsed options and returns an exit code. Text from outside goes through `safe`.
"""

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.console.cli import configuration, parse, parser
from interlock.console.writing import check_outputs, check_summary, warn
from interlock.engine.errors import ExitCode, UnavailableError, UsageError
from interlock.engine.record.facts import Setting
from interlock.engine.record.inputs import UPLOADED
from interlock.engine.record.words import command, safe
from interlock.engine.settings import Configuration
from interlock.engine.targets.connection import is_address

if TYPE_CHECKING:
    from interlock.console.front_ends.dispatch import Audience
    from interlock.console.sources.runs import Rank
    from interlock.console.sources.session import Work
    from interlock.engine.compute.controls import Controls
    from interlock.engine.flows.run import Run


def run(options: argparse.Namespace) -> int:
    """Embed a directory of chunks; with the URL of a server in place of a store, upload the run to it."""
    from interlock.console.front_ends.dispatch import run_with_front_end
    from interlock.console.sources.again import begun_before
    from interlock.console.writing import say

    server = options.qdrant if is_address(options.qdrant or "") else ""
    how = {name: Setting(value, f"flag --{name}") for name in UPLOADED if (value := getattr(options, name))}
    if server:
        options.qdrant = None
    elif flag := next(iter(how), ""):
        raise UsageError(f"--{flag} is how a run is uploaded to a server: add --qdrant URL")
    settings, made = _settings(options, options.chunks), list["Run"]()
    told: Callable[[str], object] = (lambda _: None) if options.quiet else say
    known = begun_before(options.chunks, settings, options.words)
    if server:
        settings = replace(settings, beside={**settings.beside, "server": Setting(server, "flag --qdrant"), **how})

    def reach() -> None:
        from interlock.engine.flows.upload import check_server

        if server:
            check_server(server, told)

    def make(controls: "Controls") -> "Work":
        from interlock.engine.flows.run import Run

        made.append(Run(options.chunks, settings, controls, reach=reach, known=known, say=told))
        return made[-1]

    def then(code: ExitCode) -> None:
        from interlock.console.delivery import upload_after
        from interlock.console.front_ends.headless import handling

        with handling({signal.SIGINT: signal.default_int_handler}):  # the run is done
            path, prune = made[-1].directory.path, made[-1].settings.prune
            upload_after(code, path, server, how, prune=prune, quiet=options.quiet)

    audience = replace(_audience(options), known=known)
    return run_with_front_end(make, options.chunks, settings, audience, then if server else None)


def _settings(options: argparse.Namespace, chunks: Path) -> Configuration:
    """The settings of a run of `chunks`, or a UsageError that the summary says too where one was asked for."""
    from interlock.console.front_ends import dispatch
    from interlock.console.front_ends.exposing import check_target
    from interlock.console.notifying import recordable

    file = check_target(options.metrics)
    check_outputs(options.events, options.summary, chunks, file)
    try:
        settings = configuration(options)
    except UsageError as error:
        dispatch.summarise_failure(chunks, None, error, _audience(options))
        raise
    check_summary(options.summary, settings.settings.out)
    heard = {"metrics": str(file.absolute()) if file else options.metrics, "notify": recordable(options.notify)}
    beside = {name: Setting(value, f"flag --{name}") for name, value in heard.items() if value}
    return replace(settings, beside={**settings.beside, **beside})


def _audience(options: argparse.Namespace) -> "Audience":
    from interlock.console.front_ends.dispatch import Audience
    from interlock.console.notifying import words_of

    return Audience(
        no_ui=options.no_ui or options.log_json,
        events=options.events == "-",
        summary=options.summary,
        quiet=options.quiet,
        metrics=options.metrics,
        notify=words_of(options.notify),
    )


def setup(options: argparse.Namespace) -> int:
    """Open the set-up form and do the run that it leads to. Exits with 2 without a terminal."""
    from interlock.console.terminal.tty import why_headless

    if why_headless():
        parser().error("name a command: without one the set-up form opens, and it needs a terminal")
    from interlock.console.form import command_of
    from interlock.console.front_ends.dispatch import set_up
    from interlock.engine.record.rundir import RUN, runs_in

    settings = configuration(options)
    filled, failed = set_up(settings), ""
    while filled:
        words = command_of(filled, settings.settings)
        print(command(words), file=sys.stderr)
        chosen = parse(words)
        out = configuration(chosen).settings.out
        answered = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # by a run itself, to the end of its process
        before, signals = runs_in(out), [(each, signal.getsignal(each)) for each in answered]
        try:
            return run(chosen)
        except (UsageError, UnavailableError) as error:
            if any((each / RUN).exists() for each in set(runs_in(out)) - set(before)):  # it had read its chunks
                raise
            failed = f"the run did not begin: {error}"
        for number, handler in signals:
            signal.signal(number, handler)
        filled = set_up(settings, filled, failed)
    return ExitCode.COMPLETED


def runs(options: argparse.Namespace) -> int:
    """List the runs, or open the screen of them."""
    from interlock.console.front_ends.dispatch import list_runs
    from interlock.console.sources.runs import RunList, latest
    from interlock.console.terminal.tty import takes_screens

    settings = configuration(options)
    out = settings.settings.out
    if options.shards:
        return _check_shards(options.runs or [out], as_json=options.json)
    if options.runs:
        raise UsageError("runs: directories are for --shards: add it, or name one with --out")
    if not (options.json or options.plain) and takes_screens():
        return _go_on(list_runs(settings, RunList(out)), settings)
    return _print_runs([out], latest, as_json=options.json)


def _check_shards(places: Sequence[Path], *, as_json: bool) -> int:
    from interlock.engine.standing.shards import unions

    found = unions(places)
    if as_json:
        print(json.dumps([asdict(each) for each in found], indent=2))
    for each in () if as_json else found:
        print("\n".join(safe(line, 1000) for line in each.told))
        for fault in each.faults:
            warn(fault)
    return ExitCode.FAILED if any(each.faults for each in found) else ExitCode.COMPLETED


def _print_runs(places: Sequence[Path], rank: "Rank", *, as_json: bool = False) -> int:
    from interlock.console.text import runs_text
    from interlock.engine.standing.runs import overviews
    from interlock.widgets.text import plain

    found = sorted(overviews(places, time.time()), key=rank)
    if as_json:
        print(runs_text.as_json(found))
    elif found and sys.stdout.isatty():  # as wide as it is: a reason that breaks its line tears the table
        head, drawn = runs_text.rows(found, (), time.time(), shutil.get_terminal_size().columns)
        print("\n".join(line.rstrip() for line in plain([head, *drawn])))
    elif found:
        print(runs_text.table(found, time.time()))
    else:
        print("\n".join(safe(line, 1000) for line in runs_text.nothing(places)))
    return ExitCode.COMPLETED


def watch(options: argparse.Namespace) -> int:
    """Follow a run by its journal, or replay it; list many of them, those that need somebody first."""
    from interlock.console.front_ends import web
    from interlock.console.front_ends.dispatch import list_runs, watch_journal
    from interlock.console.sources.runs import RunList, neediest, walled
    from interlock.console.terminal.tty import takes_screens

    settings = configuration(options)
    settings = replace(settings, readonly=options.readonly or settings.readonly)
    places = walled(options.runs) if options.runs else [settings.settings.out]
    if places and options.speed is not None:
        raise UsageError("--speed replays a single run: name its directory")
    if options.web and not web.in_browser():
        web.serve(options.web)
        return ExitCode.COMPLETED
    if places and not takes_screens() and not web.in_browser():
        return _print_runs(places, neediest)
    with web.page():
        if places:
            words = list_runs(settings, RunList(*places, rank=neediest))
        else:
            words = watch_journal(options.runs[0], options.speed, settings)
        return _go_on(words, settings)


def _go_on(words: Sequence[str], settings: Configuration) -> int:
    """Do the command that a screen was left for; its exit code."""
    from interlock.console.front_ends.dispatch import watch_journal

    while words and words[0] == "watch":
        words = watch_journal(Path(words[1]), None, settings)
    if not words:
        return ExitCode.COMPLETED
    print(command(words), file=sys.stderr)
    options = parse(words)
    return run(options) if options.command == "run" else demo(options)


def ctl(options: argparse.Namespace) -> int:
    """Ask something of a run of another process, or say how a run stands."""
    from interlock.console import ctl as control
    from interlock.engine.record.recorder import journal_at

    directory = journal_at(options.run).parent
    if (options.action in control.SWITCHES) != (options.value is not None):
        takes = "on or off" if options.action in control.SWITCHES else "no value"
        raise UsageError(f"ctl {options.action} takes {takes}")
    if options.action == "status":
        print(control.status(directory, as_json=options.json))
        return ExitCode.COMPLETED
    outcome = control.steer(directory, options.action, options.value, 0 if options.no_wait else options.timeout)
    print(control.outcome_text(outcome, as_json=options.json))
    return outcome.code


def view(options: argparse.Namespace) -> int:
    """Show a summary, or two of them compared."""
    from interlock.console.summary.document import load, plain
    from interlock.console.terminal.tty import quiet_descriptors, takes_screens

    settings = configuration(options)
    document, other = load(options.file), load(options.other) if options.other else None
    if options.plain or not takes_screens():
        print(plain(document, other), end="")
        return ExitCode.COMPLETED
    from interlock.console.apps.base import viewer
    from interlock.console.look import look_of

    app = viewer(document, other, look_of(settings))
    with quiet_descriptors():
        app.run()
    return _go_on(app.next, settings)


def demo(options: argparse.Namespace) -> int:
    """Embed the standard library's docstrings and search them."""
    from interlock.console.front_ends.dispatch import run_with_front_end
    from interlock.console.front_ends.headless import handling
    from interlock.engine.flows import demo as corpus
    from interlock.engine.flows import rehearsal

    chunks = Path("rehearsal" if options.scripted else "demo")
    settings = _settings(options, chunks)
    if not options.scripted:
        settings = corpus.with_store(settings)

    def make(controls: "Controls") -> "Work":
        if options.scripted:
            return rehearsal.run(settings, controls, options.speed)
        return corpus.run(settings, controls, everything=options.all)

    code = run_with_front_end(make, chunks, settings, _audience(options))
    store = settings.settings.qdrant
    if code == ExitCode.COMPLETED and store and not options.scripted:
        cut = signal.default_int_handler
        with suppress(KeyboardInterrupt), handling({signal.SIGINT: cut, signal.SIGTERM: cut}):  # the run is done
            from interlock.console.searching import print_search

            print()
            print_search(settings, store, options.query, 3)
    return code
