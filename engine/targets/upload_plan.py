"""What an upload would do: into which collection, made how, with which requests, and what it would prune there."""

import hashlib
from collections.abc import Iterator

import msgspec
import numpy as np

from interlock.engine.errors import UsageError
from interlock.engine.targets.collection import REST_BYTES, CollectionLayout, ServerCollection, check_named
from interlock.engine.targets.files.exported import ExportedCollection
from interlock.engine.targets.server import QdrantServer
from interlock.engine.targets.target import MOST_POINTS, OtherPoints, batches, halves, others, size_of
from interlock.engine.targets.upload_record import UploadOptions, UploadPlan
from interlock.engine.vectors.points import for_client


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
    )


def target_of(collection: ExportedCollection, options: UploadOptions) -> str:
    """Name the collection that is written to: with an alias one for each generation of what is uploaded.

    Raises UsageError for a name that no server takes.
    """
    if not options.alias:
        return collection.qdrant_collection
    check_named(options.alias)
    kept = [collection.fingerprint, options.vector_type, options.quantisation]
    target = f"{options.alias}-{hashlib.sha256(msgspec.json.encode(kept)).hexdigest()[:8]}"
    check_named(target)
    return target


def plan_of(collection: ExportedCollection, options: UploadOptions, server: QdrantServer | None) -> UploadPlan:
    """Count what an upload by REST would send, to the byte; and with a server, what it would remove there.

    Raises UsageError for a server or a collection that does not fit.
    """
    from qdrant_client.http.api.points_api import jsonable_encoder

    name, layout, requests, size = target_of(collection, options), layout_of(collection, options), 0, 0
    for batch, _ in batches(((each, size_of(each)) for each in collection.points()), MOST_POINTS, lambda: REST_BYTES):
        body = jsonable_encoder(for_client(batch))
        requests, size = requests + 1, size + len(body.encode())
    prunable = foreign = None
    if server:
        server.version()
        alias_before(server, name, options.alias)
        prunable = foreign = 0
        there = server.describe(name)
        if there and not collection.unread:
            target = ServerCollection(server, name, layout)
            layout.check(there, target.where)
            target.obey(there)
            for page in unplanned(target, collection):
                prunable, foreign = prunable + len(page.stale), foreign + page.foreign
    return UploadPlan(
        collection=name,
        prunable=prunable,
        foreign=foreign,
        unread=collection.unread if server else "",
        alias=options.alias,
        points=collection.rows,
        requests=requests,
        bytes=size,
        configuration=layout.configuration,
    )


def unplanned(target: ServerCollection, collection: ExportedCollection) -> Iterator[OtherPoints]:
    """Look at the points of a target that are not of the collection, a page at a time."""
    known = np.concatenate([halves(ids) for ids in collection.ids()])
    return others(target, known, collection.qdrant_collection)


def alias_before(server: QdrantServer, target: str, alias: str) -> str:
    """Return what the alias means so far. Raises UsageError where a collection has its name, or it the target's."""
    aliases = server.aliases()
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
