"""The commands about what a run has delivered: `interlock export`, `interlock upload` and `interlock prune`."""

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from interlock.console.cli import configuration, parser
from interlock.console.writing import say, tell
from interlock.engine.errors import ExitCode, InterlockError, Terminated
from interlock.engine.flows import Listener
from interlock.engine.record.words import LONG, duration, few, human_bytes, safe, several, unarmed

if TYPE_CHECKING:
    from interlock.engine.record.facts import Setting
    from interlock.engine.targets.upload_plan import UploadPlan, UploadReport
    from interlock.engine.vectors.precision import Loss

PAUSE = 5.0
"""Seconds between two words on progress where there is no terminal."""


def export(options: argparse.Namespace) -> int:
    """Deliver a finished run once more; a line for each file and store. Raises InterlockError at the end where the run
    has gaps."""
    from interlock.console.text.event_text import SEVERE, describe, line_of
    from interlock.console.text.recap import search_command
    from interlock.engine.flows.export import ExportRequest
    from interlock.engine.flows.export import export as deliver
    from interlock.engine.record.events import AnyEvent, StoreVerified

    verified = dict[str, bool]()

    def hear(event: AnyEvent) -> None:
        if isinstance(event, StoreVerified):
            verified[event.qdrant_collection] = event.ok
        tell(safe(line_of(event), LONG), error=describe(event).severity in SEVERE)

    request = ExportRequest(options.to, options.to_store, options.vectors, options.collection, options.chunks)
    made = deliver(options.run, configuration(options), request, hear)
    for collection, losses in made.losses.items():
        for each in losses:
            tell(safe(f"{collection}: {each.name} in {options.vectors}: {_cost(each)}", 2000))
    if made.lacking:
        raise InterlockError(
            f"exported with gaps, as the run left it ({few(made.lacking)}): resume the run or mend its input, then "
            "export again"
        )
    if not all(verified.values()):
        return ExitCode.FAILED
    if verified:
        tell(f"next: {search_command(str(options.to_store), [*verified])}")
    return ExitCode.COMPLETED


def _cost(loss: "Loss") -> str:
    """What narrower numbers cost, in words."""
    if loss.least_cosine is None or loss.mean_cosine is None:
        return "no chunk has such a vector"
    kept = "" if loss.neighbours is None else f", {loss.neighbours:.1%} of the ten nearest neighbours kept"
    cosine = f"{loss.least_cosine:.7f} at the least, {loss.mean_cosine:.7f} in the mean"
    return f"cosine to float32 {cosine}{kept}, of {several(loss.sampled, 'chunk')}"


def prune(options: argparse.Namespace) -> int:
    """Remove stale points from a store, or tell how many there are."""
    from interlock.engine.targets import mirror, stores

    for name in stores.named(options.store, options.collection):
        each = mirror.prune_marked(options.store, name, remove=not options.dry_run)
        done = f"removed, {each.points - each.stale:,} left" if each.removed else "no longer in the corpus"
        tell(f"{safe(each.collection)}: {each.stale:,} of {several(each.points, 'point')} {done}")
    return ExitCode.COMPLETED


def upload(options: argparse.Namespace) -> int:
    """Upload a run, or say what that would send."""
    from interlock.console.front_ends.exposing import Ended, exposed
    from interlock.engine.flows import upload as flow
    from interlock.engine.record.journal import upload_command
    from interlock.engine.targets.layout import parse_indexes, payload_of, quantisation_of, topology_of, vector_type_of

    request = flow.UploadRequest(
        run=options.run,
        url=options.server,
        collection=options.collection,
        alias=options.alias or "",
        indexes=parse_indexes(options.index or ()),
        vector_type=vector_type_of(options.vector_type),
        quantisation=quantisation_of(options.quantisation),
        topology=topology_of(options.shards, options.replicas, options.write_consistency),
        key_file=options.api_key_file,
        patience=options.patience,
        settle=options.settle,
        grpc_port=options.grpc_port,
        prune=options.prune,
        incremental=options.incremental,
        streams=options.streams or 1,
        payload=payload_of(options.payload),
        flags=tuple(_flags(options)),
    )
    run = cache(lambda: Ended.of(options.run))
    onward = "" if options.dry_run else upload_command(options.run, options.server, request.flags or ())
    with exposed(None if options.dry_run else options.metrics, run, say), uploading(onward) as listener:
        if options.json:
            _print_json((flow.plan_upload if options.dry_run else flow.upload)(request, listener))
        elif options.dry_run:
            print("\n".join(text for plan in flow.plan_upload(request, listener) for text in _plan_lines(plan)))
        else:
            for report in flow.upload(request, listener):
                print("\n".join(report_lines(report)), flush=True)
    return ExitCode.COMPLETED


def _flags(options: argparse.Namespace) -> Iterator[str]:
    """The flags that an upload was called with, but for where from, where to and how it is told: those of another
    session that goes on with it, from any directory."""
    for name, usual in vars(parser().parse_args(["upload", "RUN", "--qdrant", "URL"])).items():
        if (value := getattr(options, name)) == usual or name in ("run", "server", "dry_run", "json"):
            continue
        for each in value if isinstance(value, list) else [value]:
            text = str(each.absolute() if isinstance(each, Path) else f"{each:g}" if isinstance(each, float) else each)
            flag = f"--{name.replace('_', '-')}"
            yield from [flag] if each is True else [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _print_json(items: "Iterator[UploadPlan] | Iterator[UploadReport]") -> None:
    """Print one array, of what was done before an error as well."""
    done: list[object] = []
    try:
        done.extend(items)  # each as it comes
    finally:
        print(unarmed(msgspec.json.format(msgspec.json.encode(done), indent=2), ascii=True).decode(), flush=True)


def upload_after(
    code: ExitCode, run: Path, url: str, how: Mapping[str, "Setting"], *, prune: bool, quiet: bool
) -> None:
    """Upload a run that has just ended, if it is whole; what it came to goes to stderr. Raises as `upload` does."""
    from interlock.engine.flows import upload as flow
    from interlock.engine.record.inputs import upload_flags
    from interlock.engine.record.journal import upload_command

    flags, asked = ("--prune",) * prune + upload_flags(how), {name: each.value for name, each in how.items()}
    request = flow.UploadRequest(run=run, url=url, prune=prune, flags=flags, **asked)
    onward = upload_command(run, url, flags)
    if code not in (ExitCode.COMPLETED, ExitCode.MITIGATED):
        say(f"the run is not whole and was not uploaded: continue it, or upload what there is: {onward}")
        return
    try:
        with uploading() as listener:
            for report in flow.upload(request, listener):
                for line in () if quiet else report_lines(report):
                    say(line)
    except BaseException:
        say(f"the run is whole, nothing is computed again: {onward}")
        raise


def _plan_lines(plan: "UploadPlan") -> list[str]:
    """What would be sent."""
    into = f"{safe(plan.collection)}" + (f", then alias {safe(plan.alias)}" if plan.alias else "")
    requests = several(plan.requests, "request")
    would = []
    if plan.unread:
        would = [f"would remove nothing: {safe(plan.unread)}"]
    elif plan.prunable is not None:
        kept = f", and keep {several(plan.foreign, 'point')} that no upload put there" if plan.foreign else ""
        would = [f"would remove {several(plan.prunable, 'point')} of earlier uploads{kept}"]
    stays = "" if plan.unchanged is None else f", {plan.unchanged:,} unchanged"
    return [
        f"{into}: {several(plan.points, 'point')}{stays}, {human_bytes(plan.bytes)} in {requests} by REST",
        *would,
        msgspec.json.format(msgspec.json.encode(plan.configuration), indent=2).decode(),
    ]


def report_lines(report: "UploadReport") -> list[str]:
    """Word what an upload came to."""
    over = {"grpc": " over gRPC", "rest": " by REST"}.get(report.transport, " over gRPC and by REST")
    sent = f"{several(report.sent, 'point')} sent{over}" if report.sent else "nothing was left to send"
    sent = f"{report.unchanged:,} unchanged, {sent}" if report.unchanged is not None else sent
    worst = "" if report.worst_cosine is None else f", worst cosine {report.worst_cosine:.7f}"
    lines = [
        f"{safe(report.collection)} on {safe(report.url)} (Qdrant {safe(report.server_version)}): "
        f"{several(report.rows, 'row')} there, {sent} in {duration(report.seconds)} ({human_bytes(report.bytes)}, "
        f"{several(report.requests, 'request')}, {report.retries:,} repeated)",
        f"verified: every id found, {several(report.compared, 'point')} compared whole{worst}",
    ]
    if report.foreign is not None:
        kept = f"; {several(report.foreign, 'point')} that no upload put there kept" if report.foreign else ""
        lines.append(f"{several(report.pruned, 'point')} of earlier uploads removed{kept}")
    elif report.stale:
        lines.append(
            f"{several(report.stale, 'other point')} there: --prune removes those of earlier uploads, --alias uploads "
            "beside them"
        )
    lines += [f"not proved: {safe(each)}" for each in report.unproved]
    if report.alias:
        kept = f"; {safe(report.previous)} is kept" if report.previous else ""
        lines.append(f"alias {safe(report.alias)} means {safe(report.collection)}{kept}")
    return lines


@contextmanager
def uploading(onward: str = "") -> Iterator[Listener]:
    """Tell stderr how many rows are there, in one line on a terminal, now and then elsewhere; and what else is worth
    knowing. An interrupt and SIGTERM end it by a KeyboardInterrupt, which says the command that goes `onward`."""
    from interlock.console.front_ends.headless import handling

    live, last, shown = bool(sys.stderr and sys.stderr.isatty()), time.monotonic(), False

    def close_line() -> None:
        nonlocal shown
        if shown:
            print(file=sys.stderr)
        shown = False

    def told(text: str) -> None:
        close_line()
        say(text)

    def progress(name: str, done: int, rows: int) -> None:
        nonlocal last, shown
        if live or time.monotonic() - last > PAUSE:
            last = time.monotonic()
            text = f"{safe(name)}: {done:,} of {several(rows, 'row')} there"
            if live:
                print(f"{text}\x1b[K", end="\r", file=sys.stderr, flush=True)
                shown = True
            else:
                say(text)

    def terminate(number: int, frame: object) -> None:
        raise Terminated

    try:
        with handling({signal.SIGTERM: terminate}):
            yield Listener(say=told, progress=progress)
    except KeyboardInterrupt:
        close_line()
        if onward:
            tell(f"next: {onward}", error=True)
        raise
    finally:
        close_line()
