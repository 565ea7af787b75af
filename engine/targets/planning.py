"""What an upload would do: into which collection, made how, and within which limits of the server."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from interlock.engine.errors import UsageError
from interlock.engine.record.words import few
from interlock.engine.targets.bodies import bodies
from interlock.engine.targets.exported import ExportedCollection
from interlock.engine.targets.layout import CollectionLayout, check_named
from interlock.engine.targets.pruning import others
from interlock.engine.targets.report import UploadOptions, UploadPlan
from interlock.engine.targets.server import QdrantServer

IDS = 10_000
"""Points that are counted by their ids at a time."""


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


def planned(collection: ExportedCollection, options: UploadOptions, server: QdrantServer | None = None) -> UploadPlan:
    """Count what an upload would send, to the byte; and with a server, what it would remove there.

    Raises UsageError for a server or a collection that does not fit.
    """
    target, requests, size = target_of(collection, options), 0, 0
    for body in bodies(collection.points()):
        requests, size = requests + 1, size + body.size
    prunable = foreign = None
    if server:
        server.version()
        meaning(server, target, options.alias)
        prunable = foreign = 0
        there = server.describe(target)
        if there and not collection.unread:
            check_fits(layout_of(collection, options), there, f"{target} on {server.address.url}")
            for page in others(server, target, collection, limits_of(there)):
                prunable, foreign = prunable + len(page.stale), foreign + page.foreign
    return UploadPlan(
        collection=target,
        prunable=prunable,
        foreign=foreign,
        unread=collection.unread if server else "",
        alias=options.alias,
        points=collection.rows,
        requests=requests,
        bytes=size,
        configuration=layout_of(collection, options).request,
    )


def meaning(server: QdrantServer, target: str, alias: str) -> str:
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


def check_fits(layout: CollectionLayout, there: Mapping[str, Any], where: str) -> None:
    """Raise UsageError where a collection is another one than that which is to be uploaded."""
    if odd := layout.differences(there):
        raise UsageError(
            f"{where} is another collection ({few(odd)}): pass --alias NAME to upload beside it, or delete it there"
        )


def limits_of(there: Mapping[str, Any]) -> Mapping[str, Any]:
    """The limits that a collection sets in strict mode."""
    limits = there["config"].get("strict_mode_config") or {}
    return limits if limits.get("enabled") else {}


def parts(ids: list[str], limits: Mapping[str, Any]) -> Iterator[list[str]]:
    """Ids, as many at a time as may be counted by."""
    most = min(IDS, limits.get("condition_max_size") or IDS)
    return (ids[start : start + most] for start in range(0, len(ids), most))
