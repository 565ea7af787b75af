"""What each command does once the command line is read: ask the engine, print the answer.

Every function takes the parsed options and returns an exit code. Text from outside goes through `safe`.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.console.cli import configuration, parse, parser
from interlock.console.text.columns import render
from interlock.console.text.next_step import command
from interlock.console.text.plan_text import plan_text
from interlock.engine.config import Configuration, RunSettings, flag_of, knobs, shown
from interlock.engine.errors import ExitCode, UnavailableError, UsageError
from interlock.engine.models.registry import extended, find, label
from interlock.engine.record.counting import several
from interlock.engine.record.safe import safe
from interlock.engine.record.units import human_bytes

if TYPE_CHECKING:
    from interlock.console.front_ends.dispatch import Outputs
    from interlock.console.sources.session import Work
    from interlock.engine.outlet.qdrant import Hit
    from interlock.engine.passes.controls import Controls


def run(options: argparse.Namespace) -> int:
    """Embed a directory of chunks."""
    from interlock.console.front_ends.dispatch import run_with_front_end

    settings = _settings(options, options.chunks)

    def make(controls: "Controls") -> "Work":
        from interlock.engine.run import Run

        return Run(options.chunks, settings, controls)

    return run_with_front_end(make, options.chunks, settings, _outputs(options))


def _settings(options: argparse.Namespace, chunks: Path) -> Configuration:
    """The settings of a run of `chunks`, or a UsageError that the summary says too where one was asked for."""
    from interlock.console.front_ends import dispatch, headless

    headless.check_outputs(options.events, options.summary)
    try:
        settings = configuration(options)
    except UsageError as error:
        dispatch.summarise_failure(chunks, None, error, _outputs(options))
        raise
    headless.check_summary(options.summary, settings.settings.out)
    limit_threads(settings)
    return settings


def _outputs(options: argparse.Namespace) -> "Outputs":
    from interlock.console.front_ends.dispatch import Outputs

    return Outputs(no_ui=options.no_ui, events=options.events == "-", summary=options.summary, quiet=options.quiet)


def setup(options: argparse.Namespace) -> int:
    """Open the set-up form and do the run that it leads to. Exits with 2 without a terminal."""
    from interlock.console.terminal.tty import why_headless

    if why_headless():
        parser().error("name a command: without one the set-up form opens, and it needs a terminal")
    from interlock.console.form.filled import command_of
    from interlock.console.front_ends.dispatch import set_up
    from interlock.engine.record.rundir import RUN, runs_in

    settings = configuration(options)
    filled, failed = set_up(settings), ""
    while filled:
        words = command_of(filled, settings.settings)
        print(f"interlock {shlex.join(words)}", file=sys.stderr)
        chosen = parse(words)
        out, signals = configuration(chosen).settings.out, [(each, signal.getsignal(each)) for each in _RUNS_SIGNALS]
        before = runs_in(out)
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


_RUNS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What a run answers itself, to the end of the process that it is in."""


def runs(options: argparse.Namespace) -> int:
    """List the runs, or open the screen of them."""
    from interlock.console.front_ends.dispatch import list_runs
    from interlock.console.terminal.tty import why_headless
    from interlock.console.text import runs_text
    from interlock.engine.record.runs import overviews

    settings = configuration(options)
    out = settings.settings.out
    if not (options.json or options.plain or not (sys.stdout and sys.stdout.isatty()) or why_headless()):
        while words := list_runs(out, settings):
            if words[0] != "watch":
                return _go_on(words, settings)
            _go_on(words, settings)
        return ExitCode.COMPLETED
    found = overviews(out, time.time())
    if options.json:
        print(runs_text.as_json(found))
    elif found:
        print(runs_text.table(found, time.time()))
    else:
        print("\n".join(safe(line, 1000) for line in runs_text.nothing(out)))
    return ExitCode.COMPLETED


def watch(options: argparse.Namespace) -> int:
    """Follow a run by its journal, or replay it."""
    from interlock.console.front_ends.dispatch import watch_journal

    settings = configuration(options)
    return _go_on(watch_journal(options.run, options.speed, settings), settings)


def _go_on(words: Sequence[str], settings: Configuration) -> int:
    """Do the command that a screen was left for; its exit code."""
    from interlock.console.front_ends.dispatch import watch_journal

    while words and words[0] == "watch":
        words = watch_journal(Path(words[1]), 0.0, settings)
    if not words:
        return ExitCode.COMPLETED
    print(command(words), file=sys.stderr)
    options = parse(words)
    return run(options) if options.command == "run" else demo(options)


def ctl(options: argparse.Namespace) -> int:
    """Ask something of a run of another process, or say how a run stands."""
    from interlock.console import ctl as control
    from interlock.console.sources.tail import journal_at

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
    from interlock.console.terminal.tty import quiet_descriptors, why_headless

    settings = configuration(options)
    document, other = load(options.file), load(options.other) if options.other else None
    if options.plain or not (sys.stdout and sys.stdout.isatty()) or why_headless():
        print(plain(document, other), end="")
        return ExitCode.COMPLETED
    from interlock.console.apps.viewer import Viewer
    from interlock.console.look import look_of

    app = Viewer(document, other, look_of(settings))
    with quiet_descriptors():
        app.run()
    return _go_on(app.next, settings)


def _survey(settings: Configuration) -> int:
    """What each model of the registry would take."""
    from interlock.engine.forecast import survey
    from interlock.engine.models.configurations import UNREACHED

    models, ceiling, kind = survey(settings)
    rows = []
    for each in models:
        needs = ["-"] * 4
        if law := each.law:
            a_thousand = law.activations(1024, min(1024, each.longest))
            batch = f"{each.batch_tokens:,} tokens: {human_bytes(each.batch_bytes)}"
            fits = f"{each.most_tokens:,}" + ", streamed or CPU" * (each.most_tokens < each.longest)
            needs = [human_bytes(law.weights), human_bytes(a_thousand), batch, fits]
        rows.append([each.key, each.dtype, f"{each.longest:,}", *needs, each.source])
    most = f"most in {human_bytes(ceiling)}"
    heads = ["model", "dtype", "longest text", "weights", "per 1,024 tokens", "a batch", most, "configuration"]
    print(render(heads, rows))
    print(f"\npredicted for {kind}: peak including weights; no weights were read and nothing was computed")
    if unreached := sum(each.source == UNREACHED for each in models):
        print(f"hub not reached: no configuration for {several(unreached, 'model')}", file=sys.stderr)
    return ExitCode.COMPLETED


def limit_threads(settings: Configuration) -> None:
    """Settle the tokenizer's own threads before its library starts them."""
    if settings.settings.threads:
        os.environ["RAYON_NUM_THREADS"] = str(settings.settings.threads)


def plan(options: argparse.Namespace) -> int:
    """Show what a run would do."""
    from interlock.engine.forecast import forecast

    if options.chunks is None:
        return _survey(configuration(options))
    settings = configuration(options)
    limit_threads(settings)
    seen = forecast(options.chunks, settings)
    print(plan_text(seen))
    if refused := [each.refused for each in seen.passes if each.refused]:
        raise UnavailableError("\n".join(refused))
    return ExitCode.COMPLETED


def demo(options: argparse.Namespace) -> int:
    """Embed the standard library's docstrings and search them."""
    from interlock.console import demo as corpus
    from interlock.console import rehearsal
    from interlock.console.front_ends.dispatch import run_with_front_end
    from interlock.console.front_ends.headless import handling

    chunks = Path("rehearsal" if options.scripted else "demo")
    settings = _settings(options, chunks)
    if not options.scripted:
        settings = corpus.with_store(settings)

    def make(controls: "Controls") -> "Work":
        if options.scripted:
            return rehearsal.run(settings, controls, options.speed)
        return corpus.run(settings, controls, everything=options.all)

    code = run_with_front_end(make, chunks, settings, _outputs(options))
    store = settings.settings.qdrant
    if code == ExitCode.COMPLETED and store and not options.scripted:
        cut = signal.default_int_handler
        with suppress(KeyboardInterrupt), handling({signal.SIGINT: cut, signal.SIGTERM: cut}):  # the run is done
            print()
            _print_search(settings, store, None, options.query, 3, as_json=False)
    return code


def search(options: argparse.Namespace) -> int:
    """Search a store."""
    settings = configuration(options)
    limit_threads(settings)
    _print_search(settings, options.store, options.collection, options.query, options.limit, as_json=options.json)
    return ExitCode.COMPLETED


def best_chunks(
    settings: Configuration,
    store: Path,
    collection: str | None,
    query: str,
    limit: int,
    given: Mapping[str, Mapping[str, object]] = {},
) -> "list[Hit]":
    """Find the `limit` best chunks of a store for `query`, encoded on the CPU, best first; `given` are rows of models
    that the caller passes by value."""
    from interlock.engine.gpu.cpu import CpuDevice
    from interlock.engine.gpu.lease import Lessor
    from interlock.engine.models import assets
    from interlock.engine.outlet.search import search as search_store

    lessor = Lessor([CpuDevice()], settings.settings.ceiling, settings.settings.host_ceiling)
    policy = assets.Policy(offline=settings.settings.offline)
    return search_store(store, collection, query, limit, extended(settings.models), policy, lessor, given)


def _print_search(
    settings: Configuration, store: Path, collection: str | None, query: str, limit: int, *, as_json: bool
) -> None:
    hits = best_chunks(settings, store, collection, query, limit)
    if as_json:
        for hit in hits:
            print(json.dumps({"id": hit.id, "score": hit.score, "payload": hit.payload}, ensure_ascii=True))
        return
    print(safe(query))
    for place, hit in enumerate(hits, 1):
        print(f"{place:3}. {hit.score:.3f}  {safe(hit.payload.get('chunk_id'))}  ({safe(hit.payload.get('source'))})")
        print(f"     {safe(' '.join(str(hit.payload.get('text')).split()), 160)}")


def models(options: argparse.Namespace) -> int:
    """List the registry, or fetch models."""
    from interlock.console.text.event_text import line_of
    from interlock.engine.models import assets

    settings = configuration(options)
    registry = extended(settings.models)
    specs = find(registry, options.names or list(registry))
    if options.action == "fetch":
        if not options.names:
            raise UsageError("models fetch: name the models to fetch")
        for spec in specs:
            policy = assets.Policy(settings.settings.offline, settings.settings.refresh_models)
            found = assets.resolve(spec, policy, lambda event: print(safe(line_of(event))))
            print(f"{safe(spec.key)}: {safe(found.path)}")
        return ExitCode.COMPLETED
    rows = []
    for spec in specs:
        here = assets.cached(spec)
        state = f"yes, {here[1].partition(':')[0]}" if here else "no"
        sources = ", ".join(label(source) for source in spec.sources)
        rows.append([spec.key, str(spec.dim or "?"), str(spec.max_tokens or "?"), spec.licence, state, sources])
    if options.json:
        names = ["model", "dim", "max_tokens", "licence", "cached", "sources"]
        print(json.dumps([dict(zip(names, row, strict=True)) for row in rows], indent=2))
    else:
        print(render(["model", "dim", "tokens", "licence", "on this machine", "sources"], rows))
    return ExitCode.COMPLETED


def config(options: argparse.Namespace) -> int:
    """Print every setting with its origin."""
    settings = configuration(options)
    rows = [
        [name, safe(json.dumps(shown(getattr(settings.settings, name)))), settings.origins[name], flag_of(name)]
        for name in (item.name for item in knobs())
    ]
    print(render(["setting", "value", "from", "flag"], rows))
    return ExitCode.COMPLETED


def doctor(options: argparse.Namespace) -> int:
    """Check this machine."""
    from interlock.console.doctor import examine

    if options.gpu:
        return _check_gpus(configuration(options).settings, as_json=options.json)
    checks = examine(configuration(options))
    if options.json:
        print(json.dumps([{"check": name, "good": good, "found": found} for good, name, found in checks], indent=2))
        return ExitCode.COMPLETED if all(good for good, _, _ in checks) else ExitCode.UNAVAILABLE
    print(render(["", "check", "found"], [["ok" if good else "!!", name, safe(found)] for good, name, found in checks]))
    return ExitCode.COMPLETED if all(good for good, _, _ in checks) else ExitCode.UNAVAILABLE


def _check_gpus(settings: RunSettings, *, as_json: bool) -> int:
    """Try out each GPU, and print each check as soon as it is done, or all as one JSON object."""
    import msgspec

    from interlock.console.doctor import examine_gpus
    from interlock.console.text.checkup_text import check_text, report_text

    width = shutil.get_terminal_size().columns
    report = examine_gpus(settings, lambda check: None if as_json else print(check_text(check, width), flush=True))
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        print(f"\n{report_text(report, width)}")
    failed = any(check.outcome == "failed" for check in report.checks)
    return ExitCode.FAILED if failed else ExitCode.COMPLETED


def schema(options: argparse.Namespace) -> int:
    """Print the JSON Schema of summary.json."""
    from interlock.engine.record.summary import schema_text

    print(schema_text(), end="")
    return ExitCode.COMPLETED
