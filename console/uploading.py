"""`interlock upload`: what a run exported, as points of a Qdrant server; or, with --dry-run, what that would send."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.record.words import duration, human_bytes, safe, several

if TYPE_CHECKING:
    from interlock.engine.targets.exported import ExportedCollection
    from interlock.engine.targets.report import UploadHearing, UploadOptions, UploadPlan, UploadReport
    from interlock.engine.targets.server import QdrantServer

PAUSE = 5.0
"""Seconds between two words on progress where there is no terminal."""
PATIENCE, SETTLE = 300.0, 3600.0
CHECKING = 10.0
"""Seconds in which a server has to answer before a run begins that is to be uploaded to it."""


@dataclass(frozen=True)
class AskedUpload:
    """What an upload is asked for: which run, where to, and how."""

    run: Path
    url: str
    collection: str | None = None
    alias: str = ""
    indexes: Sequence[str] = ()
    vector_type: str = "float32"
    quantisation: str = "none"
    key_file: Path | None = None
    patience: float = PATIENCE
    settle: float = SETTLE
    grpc_port: int | None = None
    prune: bool = False
    tell: Callable[[str], object] = field(default=lambda text: None)


def upload(options: argparse.Namespace) -> int:
    """Upload a run, or say what that would send."""
    asked = AskedUpload(
        options.run,
        options.server,
        options.collection,
        options.alias or "",
        options.index or (),
        options.vector_type,
        options.quantisation,
        options.api_key_file,
        options.patience,
        options.settle,
        options.grpc_port,
        options.prune,
        lambda text: print(f"interlock: {safe(text, 1000)}", file=sys.stderr, flush=True),
    )
    if options.json:
        _print_json(planned_uploads(asked) if options.dry_run else uploaded(asked))
    elif options.dry_run:
        print("\n".join(text for plan in planned_uploads(asked) for text in plan_lines(plan)))
    else:
        for report in uploaded(asked):
            print("\n".join(report_lines(report)), flush=True)
    return ExitCode.COMPLETED


def _print_json(items: "Iterator[UploadPlan] | Iterator[UploadReport]") -> None:
    """Print one array, of what was done before an error as well."""
    import msgspec

    done: list[object] = []
    try:
        done.extend(items)  # each as it comes
    finally:
        print(msgspec.json.format(msgspec.json.encode(done), indent=2).decode(), flush=True)


def check_server(url: str) -> None:
    """Raise now what an upload would raise after all the work: for a URL, a key or a server that cannot be used."""
    from interlock.engine.targets.address import Address, read_key
    from interlock.engine.targets.patience import Patience
    from interlock.engine.targets.server import QdrantServer

    address = Address.parse(url)
    with QdrantServer(address, read_key(address, None), Patience(CHECKING)) as server:
        server.version()
        server.collections()


def upload_after(code: ExitCode, run: Path, url: str, *, prune: bool, quiet: bool) -> None:
    """Upload a run that has just ended, if it is whole; what it came to goes to stderr. Raises as `uploaded` does."""

    def tell(text: str) -> None:
        print(f"interlock: {safe(text, 1000)}", file=sys.stderr, flush=True)

    if code not in (ExitCode.COMPLETED, ExitCode.MITIGATED):
        tell(f"the run is not whole and was not uploaded: --resume, or interlock upload {run} --qdrant {url}")
        return
    for report in uploaded(AskedUpload(run, url, prune=prune, tell=tell)):
        for line in () if quiet else report_lines(report):
            tell(line)


def planned_uploads(asked: AskedUpload) -> "Iterator[UploadPlan]":
    """Say what would be sent of each collection. Asks the server only what would be pruned there, if that is asked."""
    from interlock.engine.targets.address import Address
    from interlock.engine.targets.planning import planned

    Address.parse(asked.url)
    collections, options = _prepared(asked)
    with _server(asked) if asked.prune else nullcontext() as server:
        for each in collections:
            yield planned(each, options, server)


def uploaded(asked: AskedUpload) -> "Iterator[UploadReport]":
    """Upload each collection; what it came to. Raises as `CollectionUpload.go` does, and UsageError for what cannot be
    asked for."""
    from interlock.engine.targets.uploader import CollectionUpload

    server = _server(asked)
    collections, options = _prepared(asked)
    directory = collections[0].uploads
    with server:
        for each in collections:
            if each.status != "completed":
                asked.tell(f"warning: {each.name} is {each.status} in its run, and is uploaded as it was exported")
            with _progress(each.name, asked.tell) as hearing:
                yield CollectionUpload(each, server, options, directory, hearing).go()


def _server(asked: AskedUpload) -> "QdrantServer":
    """The server that is asked for; nothing is asked of it yet."""
    from interlock.engine.targets.address import Address, read_key
    from interlock.engine.targets.patience import Patience
    from interlock.engine.targets.server import QdrantServer

    address = Address.parse(asked.url)
    patience = Patience(
        asked.patience, lambda reason, pause: asked.tell(f"{address.url}: {reason}; again in {pause:.1f} s")
    )
    return QdrantServer(address, read_key(address, asked.key_file), patience)


def plan_lines(plan: "UploadPlan") -> list[str]:
    """Word what would be sent."""
    import msgspec

    into = f"{safe(plan.collection)}" + (f", then alias {safe(plan.alias)}" if plan.alias else "")
    requests = several(plan.requests, "request")
    would = []
    if plan.unread:
        would = [f"would remove nothing: {safe(plan.unread)}"]
    elif plan.prunable is not None:
        kept = f", and keep {several(plan.foreign, 'point')} that no upload put there" if plan.foreign else ""
        would = [f"would remove {several(plan.prunable, 'point')} of earlier uploads{kept}"]
    return [
        f"{into}: {several(plan.points, 'point')}, {human_bytes(plan.bytes)} in {requests} by REST",
        *would,
        msgspec.json.format(msgspec.json.encode(plan.configuration), indent=2).decode(),
    ]


def report_lines(report: "UploadReport") -> list[str]:
    """Word what an upload came to."""
    over = {"grpc": " over gRPC", "rest": " by REST"}.get(report.transport, " over gRPC and by REST")
    sent = f"{several(report.sent, 'point')} sent{over}" if report.sent else "nothing was left to send"
    worst = "" if report.worst_cosine is None else f", worst cosine {report.worst_cosine:.7f}"
    lines = [
        f"{safe(report.collection)} on {safe(report.url)} (Qdrant {safe(report.server_version)}): "
        f"{several(report.rows, 'row')} there, {sent} in {duration(report.seconds)} ({human_bytes(report.bytes)}, "
        f"{several(report.requests, 'request')}, {report.retries:,} repeated)",
        f"verified: every id counted, {several(report.compared, 'point')} compared whole{worst}",
    ]
    if report.foreign is not None:
        kept = f"; {several(report.foreign, 'point')} that no upload put there kept" if report.foreign else ""
        lines.append(f"{several(report.pruned, 'point')} of earlier uploads removed{kept}")
    elif report.stale:
        lines.append(
            f"{several(report.stale, 'other point')} there: --prune removes those of earlier uploads, --alias uploads "
            "beside them"
        )
    if report.alias:
        kept = f"; {safe(report.previous)} is kept" if report.previous else ""
        lines.append(f"alias {safe(report.alias)} means {safe(report.collection)}{kept}")
    return lines


def _prepared(asked: AskedUpload) -> "tuple[list[ExportedCollection], UploadOptions]":
    from interlock.engine.targets.address import Address
    from interlock.engine.targets.exported import ExportedRun
    from interlock.engine.targets.layout import parse_indexes, quantisation_of, vector_type_of
    from interlock.engine.targets.report import UploadOptions

    options = UploadOptions(
        alias=asked.alias,
        indexes=parse_indexes(asked.indexes),
        vector_type=vector_type_of(asked.vector_type),
        quantisation=quantisation_of(asked.quantisation),
        settle=asked.settle,
        grpc_port=Address.parse(asked.url).grpc_port(asked.grpc_port),
        prune=asked.prune,
    )
    collections = ExportedRun.open(asked.run).collections(asked.collection)
    if asked.alias and len(collections) > 1:
        raise UsageError(
            f"--alias: the run has {len(collections)} collections, and an alias means one: choose it with --collection"
        )
    return collections, options


@contextmanager
def _progress(name: str, tell: Callable[[str], object]) -> "Iterator[UploadHearing]":
    """Tell stderr how many rows are there: in one line on a terminal, now and then elsewhere."""
    from interlock.engine.targets.report import UploadHearing

    live, last, shown = bool(sys.stderr and sys.stderr.isatty()), time.monotonic(), False

    def told(text: str) -> None:
        nonlocal shown
        if shown:
            print(file=sys.stderr)
            shown = False
        tell(text)

    def progress(done: int, rows: int) -> None:
        nonlocal last, shown
        if live or time.monotonic() - last > PAUSE:
            last = time.monotonic()
            text = f"{safe(name)}: {done:,} of {several(rows, 'row')} there"
            if live:
                print(f"{text}\x1b[K", end="\r", file=sys.stderr, flush=True)
                shown = True
            else:
                tell(text)

    try:
        yield UploadHearing(progress, told)
    finally:
        if shown:
            print(file=sys.stderr)
