"""Uploads what a run exported, as points of a Qdrant server; or plans what that would send, and asks no server."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.flows import Listener
from interlock.engine.record.words import few
from interlock.engine.targets.connection import MOST_STREAMS, Address, Patience, read_key
from interlock.engine.targets.files.exported import ExportedCollection, ExportedRun
from interlock.engine.targets.server import QdrantServer
from interlock.engine.targets.upload import CollectionUpload
from interlock.engine.targets.upload_plan import UploadOptions, UploadPlan, UploadReport, plan_of
from interlock.engine.vectors.points import PayloadForm

PATIENCE = 300.0
CHECKING = 10.0
"""Seconds in which a server has to answer before a run begins that is to be uploaded to it."""


@dataclass(frozen=True, kw_only=True)
class UploadRequest(UploadOptions):
    """What an upload is asked for: which run, where to, and how; without a port gRPC is looked for where it belongs;
    and without a form of `payload` it is as in the run."""

    run: Path
    url: str
    collection: str | None = None
    key_file: Path | None = None
    patience: float = PATIENCE
    grpc_port: int | None = None
    payload: PayloadForm | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for streams that there cannot be."""
        if type(self.streams) is not int or not 1 <= self.streams <= MOST_STREAMS:
            raise UsageError(f"--streams: {self.streams!r:.100}: pass a whole number from 1 to {MOST_STREAMS}")


def check_server(url: str, say: Callable[[str], object]) -> None:
    """Raise now what an upload would raise after all the work: for a URL, a key or a server that cannot be used."""
    with _server(url, None, CHECKING, say) as server:
        server.version()
        server.collections()


def plan_upload(request: UploadRequest, listener: Listener) -> Iterator[UploadPlan]:
    """Say what would be sent of each collection. Asks the server only what would be pruned there, and what is unchanged
    there, if that is asked."""
    Address.parse(request.url)
    collections = _collections(ExportedRun.open(request.run), request)
    asked = request.prune or request.incremental
    reached = _server(request.url, request.key_file, request.patience, listener.say) if asked else nullcontext()
    with reached as server:
        for each in collections:
            yield plan_of(each, request, server)


def upload(request: UploadRequest, listener: Listener) -> Iterator[UploadReport]:
    """Upload each collection; what it came to. Raises as `CollectionUpload.go` does, UsageError for what cannot be
    asked for, and at the end InterlockError where the run has gaps."""
    server = _server(request.url, request.key_file, request.patience, listener.say)
    run = ExportedRun.open(request.run)
    collections = _collections(run, request)
    with server:
        for each in collections:
            if each.status != "completed":
                listener.say(f"warning: {each.name} is {each.status} in its run, and is uploaded as it was exported")

            def progress(done: int, rows: int, name: str = each.name) -> None:
                listener.progress(name, done, rows)

            more = each is not collections[-1]
            yield CollectionUpload(
                each, server, request, each.uploads, more=more, progress=progress, say=listener.say
            ).go()
    if lacking := run.lacking(request.collection):
        raise InterlockError(
            f"uploaded with gaps, as the run left it ({few(lacking)}): resume the run or mend its input, then upload "
            "again"
        )


def _server(url: str, key_file: Path | None, patience: float, say: Callable[[str], object]) -> QdrantServer:
    """The server that is asked for, whose pauses are told; nothing is asked of it yet."""
    address = Address.parse(url)
    waiting = Patience(patience, lambda told: say(f"{address.url}: {told}"))
    return QdrantServer(address, read_key(address, key_file), waiting)


def _collections(run: ExportedRun, request: UploadRequest) -> list[ExportedCollection]:
    found = run.collections(request.collection, request.payload)
    if request.alias and len(found) > 1:
        raise UsageError(
            f"--alias: the run has {len(found)} collections, and an alias means one: choose it with --collection"
        )
    asked = [f"--{name}" for name in ("incremental", "prune") if getattr(request, name)]
    if asked and any(each.shards for each in found):  # what another shard brings meanwhile is not known here
        raise UsageError(f"{asked[0]}: the run is a shard: drop it, or pass --alias NAME to upload all shards anew")
    return found
