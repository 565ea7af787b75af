"""What an upload is asked for, would do and came to."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import Struct

from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.targets.collection import PAGE, REST_BYTES, ServerCollection
from interlock.engine.targets.files.exported import ExportedCollection
from interlock.engine.targets.layout import (
    CollectionLayout,
    Quantisation,
    Topology,
    VectorType,
    check_named,
    key_of,
    mark_of,
    shards_in,
)
from interlock.engine.targets.server import Forbidden, QdrantServer
from interlock.engine.targets.target import MOST_POINTS, OtherPoints, batches, compare, halves, others, size_of
from interlock.engine.vectors.points import DIGEST, Point, digested, for_client

if TYPE_CHECKING:
    from qdrant_client.models import CollectionInfo

AVERAGE = "bm25_average_length"
"""What the mark of an incremental upload says of the BM25 vectors that are there."""


@dataclass(frozen=True)
class UploadOptions:
    """How a collection is to be on the server; `settle` is how many seconds its indexes may take, `grpc_port` where
    points may go over gRPC (0: nowhere, None: where it belongs beside the port of REST), `prune` whether points of
    earlier uploads that are not of the run are removed, `incremental` whether points get a digest of what they are, and
    those that the server has with the same are not sent, `streams` how many requests with points are under way at once,
    `flags` how a command line asks for all that.
    """

    alias: str = ""
    indexes: Mapping[str, str] = field(default_factory=dict)
    vector_type: VectorType = "float32"
    quantisation: Quantisation = "none"
    topology: Topology = Topology()
    settle: float = 3600.0
    grpc_port: int | None = 0
    prune: bool = False
    incremental: bool = False
    streams: int = 1
    flags: tuple[str, ...] | None = None


class UploadPlan(Struct, frozen=True, kw_only=True):
    """What an upload would send, and how its collection would be made; where it is incremental, how many points more
    would stay `unchanged`; where it is asked to prune, how many points it would remove, how many more are neither of
    the run nor of an upload, and why none can be told (`unread`)."""

    collection: str
    alias: str
    points: int
    requests: int
    bytes: int
    configuration: dict[str, Any]
    prunable: int | None = None
    foreign: int | None = None
    unread: str = ""
    unchanged: int | None = None


class UploadReport(Struct, frozen=True, kw_only=True):
    """What an upload came to: `rows` are those of the run, all of them found there by their ids; `points` all that the
    collection holds, of which `stale` are of no shard of the run; `sent` are those that this process sent, and
    `transport` how: grpc, rest, grpc+rest, or none; `pruned` are those that it removed, and `foreign` those that no
    upload put there, where it was asked to prune; `unchanged` those that were there already, where it was incremental.
    `unproved` says what the server did not let it see."""

    schema_version: str = "1"
    url: str
    server_version: str
    collection: str
    alias: str
    previous: str
    run_id: str
    fingerprint: str
    rows: int
    points: int
    stale: int
    pruned: int
    foreign: int | None
    compared: int
    worst_cosine: float | None
    sent: int
    transport: str
    requests: int
    retries: int
    bytes: int
    seconds: float
    finished_at: str
    configuration: dict[str, Any]
    unproved: list[str] = []
    unchanged: int | None = None


def layout_of(collection: ExportedCollection, options: UploadOptions) -> CollectionLayout:
    """Return how a collection is to be on a server."""
    return CollectionLayout(
        collection.dims,
        collection.sparse,
        collection.token_widths,
        collection.manifest,
        options.vector_type,
        options.quantisation,
        options.indexes,
        options.topology,
    )


def target_of(collection: ExportedCollection, options: UploadOptions) -> str:
    """Name the collection that is written to: with an alias one for each generation of what is uploaded.

    Raises UsageError for a name that no server takes.
    """
    if not options.alias:
        return collection.qdrant_collection
    check_named(options.alias)
    asked = [options.topology.asked] if options.topology.asked else []
    union = collection.shards and [collection.shards.union, {**collection.manifest, "run": None}]
    kept = [union or collection.fingerprint, options.vector_type, options.quantisation, *asked]
    target = f"{options.alias}-{hashlib.sha256(msgspec.json.encode(kept)).hexdigest()[:8]}"
    check_named(target)
    return target


def plan_of(collection: ExportedCollection, options: UploadOptions, server: QdrantServer | None) -> UploadPlan:
    """Count what an upload by REST would send, to the byte; and with a server, what it would leave or remove there.

    Raises UsageError for a server or a collection that does not fit.
    """
    from qdrant_client.http.api.points_api import jsonable_encoder

    name, layout, requests, size, points = target_of(collection, options), layout_of(collection, options), 0, 0, 0
    prunable = foreign = target = None
    if server:
        server.version()
        alias_before(server, name, options.alias)
        if there := server.describe(name):
            target = ServerCollection(server, name, layout)
            layout.check(there, target.where)
            target.obey(there, 0)
            collection = as_held(collection, there)
    if server and options.prune:
        prunable = foreign = 0
        for page in unplanned(target, collection) if target and not collection.unread else ():
            prunable, foreign = prunable + len(page.stale), foreign + page.foreign
    rows = differing(collection, target) if options.incremental else collection.points()
    sent = ((each, size_of(each)) for each in rows if each)
    for batch, _ in batches(sent, MOST_POINTS, lambda: REST_BYTES):
        body = jsonable_encoder(for_client(batch))
        points, requests, size = points + len(batch), requests + 1, size + len(body.encode())
    return UploadPlan(
        collection=name,
        prunable=prunable,
        foreign=foreign,
        unread=collection.unread if options.prune else "",
        unchanged=collection.rows - points if options.incremental else None,
        alias=options.alias,
        points=points,
        requests=requests,
        bytes=size,
        configuration=layout.configuration,
    )


def as_held(collection: ExportedCollection, there: "CollectionInfo") -> ExportedCollection:
    """Return a collection with the average length by which the points that are there have their BM25 vectors."""
    told = mark_of(there, key_of(collection.shards)).get(AVERAGE)
    return replace(collection, average=float(told) if isinstance(told, float | int) else 0.0)


def as_sent(collection: ExportedCollection, most: int, options: UploadOptions) -> Iterator[Point]:
    """Read at most so many points, as they are sent."""
    points = collection.sampled(most)
    return map(digested, points) if options.incremental else points


def create(server: QdrantServer, name: str, layout: CollectionLayout) -> bool:
    """Make a collection; whether the key may."""
    try:
        server.create(name, layout.request)
    except Forbidden:
        return False
    except InterlockError:  # an attempt whose answer was lost may have made it
        if server.describe(name) is None:
            raise
    return True


def shard_told(
    server: QdrantServer, name: str, described: Callable[[], "CollectionInfo"], collection: ExportedCollection
) -> str:
    """Say in its mark, where the key may, that all of a shard is there, and return what is still missing of the
    collection; empty where nothing is, or it is not cut."""
    if not (own := collection.shards):
        return ""
    with suppress(Forbidden):
        now = msgspec.structs.replace(own, there={str(own.own): collection.rows})
        mark = {**mark_of(described(), key_of(own)), "shards": msgspec.to_builtins(now)}
        server.change(name, metadata={key_of(own): mark})
    return found.gap(name) if (found := shards_in(described())) else ""


def differing(collection: ExportedCollection, target: ServerCollection | None) -> Iterator[Point | None]:
    """Yield the point of every row in order with its digest, None for one that the target has with the same: of `PAGE`
    rows at a time their digests are read there, where there is a target."""
    held, ids = dict[str, Any](), chain.from_iterable(collection.ids())
    for row, point in enumerate(map(digested, collection.points())):
        if target and row % PAGE == 0:
            held = target.payloads(list(islice(ids, PAGE)), [DIGEST])
        same = held.get(point.id, {}).get(DIGEST) == point.payload[DIGEST]
        yield None if same else point


def behind(collection: ExportedCollection, target: ServerCollection, first: int, most: int) -> Iterator[Point | None]:
    """Yield the point of every row from `first` on; None for one of the next `most`, which an upload that was killed
    may have sent, that the target has with no digest and otherwise as it would be sent."""
    points = collection.points(first)
    while window := list(islice(points, min(most, MOST_POINTS))):
        most -= len(window)
        held = target.payloads([each.id for each in window], [DIGEST])
        there = {each.id: each for each in window if DIGEST not in held.get(each.id, DIGEST)}
        faults = compare(there.values(), target.read, payloads=True).faults
        yield from (None if each.id in there and each.id not in faults else each for each in window)
    yield from points


def unplanned(target: ServerCollection, collection: ExportedCollection) -> Iterator[OtherPoints]:
    """Look at the points of a target that are not of the collection, a page at a time."""
    known = np.concatenate([halves(ids) for ids in collection.ids()])
    return others(target, known, collection.qdrant_collection)


def unproved(exact: bool, marked: bool) -> list[str]:
    """List what the server did not let be seen, where it did not count exactly or its collection was not `marked`."""
    told = {
        "how many other points there are (strict mode lets nobody count exactly)": exact,
        "that no other upload wrote at the same time (the key may not mark the collection)": marked,
    }
    return [what for what, seen in told.items() if not seen]


def alias_before(server: QdrantServer, target: str, alias: str) -> str:
    """Return what the alias means so far. Raises UsageError where a collection has its name, or it the target's."""
    try:
        aliases = server.aliases()
    except Forbidden:
        if alias:
            raise
        aliases = {}  # a key for this collection alone may not see them
    if target in aliases:
        raise UsageError(
            f"{target} is an alias of {aliases[target]} on {server.address.url}: pass --alias {target} to upload "
            "beside it and switch"
        )
    if alias and alias in server.collections():
        raise UsageError(
            f"{alias} is a collection on {server.address.url}, so it cannot be an alias: choose another --alias"
        )
    return aliases.get(alias, "") if alias else ""


def switch_alias(server: QdrantServer, alias: str, name: str, before: str, say: Callable[[str], object]) -> str:
    """Let the alias mean the collection of this name, and see that it does; what it meant until then. `before` is what
    it meant when the upload began. Raises InterlockError where it does not stay."""
    meant = server.aliases().get(alias, "")
    if meant != before:
        say(f"{alias} was switched from {before or 'nothing'} to {meant or 'nothing'} while this upload went on")
    if meant != name:
        server.point_alias(alias, name, anew=bool(meant))
        if (now := server.aliases().get(alias, "")) != name:
            raise InterlockError(
                f"alias {alias} means {now or 'nothing'} on {server.address.url}, not {name}: check for who else "
                "switches it, then repeat the command"
            )
    return meant
