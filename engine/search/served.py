"""A collection that was uploaded to a Qdrant server, to be searched as an embedded store is.

What its vectors mean stands in its metadata. The server answers by its indexes, which find most of what is near, or
with `exact` by looking at every point.
"""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from interlock.engine.corpus.collections import qdrant_name
from interlock.engine.errors import UsageError, meant
from interlock.engine.record import atomic
from interlock.engine.record.words import few
from interlock.engine.targets.collection import ServerCollection, id_of
from interlock.engine.targets.connection import Address, Patience, read_key
from interlock.engine.targets.embedded import Store
from interlock.engine.targets.layout import CollectionLayout, layout_in
from interlock.engine.targets.server import QdrantServer
from interlock.engine.targets.target import Ids, fault_of
from interlock.engine.vectors.fusion import PROJECTION, Vectors, from_bytes
from interlock.engine.vectors.points import Terms, Vector, undigested

if TYPE_CHECKING:
    import qdrant_edge as edge
    from qdrant_client.models import CollectionInfo, Condition, Filter, Record

ASKING = 10.0
"""Seconds to go on asking a server that does not answer, where nobody says it: somebody waits for it."""


@dataclass(frozen=True)
class ServerPlace:
    """Where a collection is served, and how it is asked: with the key in a file, for so many seconds, exactly; and the
    file of what its fused vectors were projected by, which no server keeps."""

    url: str
    key_file: Path | None = None
    patience: float = ASKING
    projection: Path | None = None
    exact: bool = False

    def open(self, collection: str | None) -> "ServedCollection":
        """Find the collection of this name, or the alias, or the only one. Raises UsageError where there is none, it is
        not ours, or the server refuses the key; UnavailableError where it does not answer."""
        address = Address.parse(self.url)
        with ExitStack() as stack:
            server = QdrantServer(address, read_key(address, self.key_file), Patience(self.patience))
            stack.enter_context(server)
            server.version()
            name, there = _found(server, collection)
            found = ServedCollection(server, name, layout_in(there, f"{name} on {address.url}"), self)
            found.obey(there, 0)
            stack.pop_all()  # the collection ends what it is asked through
        return found


@dataclass(frozen=True)
class StoreCopy:
    """A store of which a copy is searched, so that others may read it and write to it."""

    directory: Path

    def open(self, collection: str | None) -> Store:
        """Copy the collection of this name, or the only one."""
        return Store.open_copy(self.directory, collection)


Place = Path | ServerPlace | StoreCopy
"""Where a collection is: in a store, on a server, in a copy that is to be made."""


def _found(server: QdrantServer, collection: str | None) -> "tuple[str, CollectionInfo]":
    """A collection by one of its names, an alias, or the only one there is."""
    every = [] if collection else sorted(server.collections())
    if len(every) > 1:
        raise UsageError(
            f"{server.address.url} has {len(every)} collections: choose one with --collection ({few(every)})"
        )
    for name in dict.fromkeys([collection, qdrant_name(collection)] if collection else every):
        if there := server.describe(name):
            return name, there
    every = sorted(server.collections())
    if not every:
        raise UsageError(f"{server.address.url} has no collection: `interlock upload` a run first")
    raise UsageError(
        f"{server.address.url} has no collection {collection!r}{meant(collection or '', every)}: choose one of "
        f"{few(every)}"
    )


class ServedCollection(ServerCollection):
    """One collection of a server with what a search asks of it; a context manager, which ends its connections."""

    tells_truths = True
    """Whether its filters know true and false."""

    def __init__(self, server: QdrantServer, name: str, layout: CollectionLayout, place: ServerPlace) -> None:
        super().__init__(server, name, layout)
        self.manifest, self._place = layout.manifest, place
        self._stack.callback(server.client.close)

    def __enter__(self) -> Self:
        return self

    @cached_property
    def projection(self) -> Vectors | None:
        """What brings a query to the dimensions of its fused vectors; None where they have all. Raises UsageError where
        the file of it was not named, or is another."""
        told, file = self.manifest.get("projection"), self._place.projection
        if not isinstance(told, Mapping):
            return None
        if file is None:
            raise UsageError(
                f"the fused vectors of {self.where} were projected: name the {PROJECTION} of the run's exports with "
                "--projection FILE"
            )
        try:
            with atomic.reading(file):
                content = file.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise UsageError(f"--projection {file} does not exist: name the {PROJECTION} of the exports") from None
        if hashlib.sha256(content).hexdigest() != told.get("sha256"):
            raise UsageError(
                f"--projection {file} is not that of {self.where}: name the one of the run that was uploaded"
            )
        return from_bytes(content)

    def query(
        self,
        name: str,
        question: Vector | Terms,
        limit: int,
        where: "edge.Filter | None" = None,
        among: Collection[str] | None = None,
    ) -> dict[str, float]:
        """Return the scores of the `limit` points that answer best, as `Store.query` does."""
        from qdrant_client import models

        if fault := fault_of(name, question, self):
            raise UsageError(f"cannot search {self.where}: {fault}")
        asked: Any = question.tolist() if not isinstance(question, Terms) else None
        if isinstance(question, Terms):
            asked = models.SparseVector(indices=question.indices.tolist(), values=question.values.tolist())
        conditions: list[Condition] = [_filter(where)] if where else []
        conditions += [models.HasIdCondition(has_id=list(map(id_of, among)))] if among is not None else []
        request = models.QueryRequest(
            query=asked,
            using=name,
            limit=limit,
            filter=models.Filter(must=conditions) if conditions else None,
            # Of what is found by quantised copies the scores are those of the whole vectors.
            params=models.SearchParams(
                exact=self._place.exact or None, quantization=models.QuantizationSearchParams(rescore=True)
            ),
        )
        api = self._server.client.http.search_api
        answer = self._server.ask("a search", lambda: api.query_points(self.name, query_request=request).result)
        found = {str(point.id): float(point.score) for point in answer.points}
        return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))

    def queries(
        self, name: str, questions: Sequence[Vector | Terms], limit: int, where: "edge.Filter | None" = None
    ) -> list[dict[str, float]]:
        """Answer each question as `query` does, one after the other."""
        return [self.query(name, question, limit, where) for question in questions]

    def has(self, where: "edge.Filter | None") -> bool:
        """Tell whether there is a point for which `where` holds."""
        return bool(self._first(1, where, with_payload=False))

    def some_payloads(self, most: int) -> list[Mapping[str, object]]:
        """Return the payloads of some points, at most so many."""
        return [undigested(each.payload) for each in self._first(min(most, self._page), None, with_payload=True)]

    def payloads(self, ids: Ids, keys: Sequence[str] = ()) -> dict[str, Mapping[str, object]]:
        """Return the payloads of those of these points that exist, by id; only these keys, if given."""
        return {point: undigested(payload) for point, payload in super().payloads(ids, keys).items()}

    def parts(self, key: str) -> Iterator[tuple[str, object]]:
        """Yield the id of every point whose payload has this key at its top, with what is there."""
        for each in chain.from_iterable(self.pages([f'"{key}"'])):  # a path, in which dots part keys
            if key in (payload := each.payload or {}):
                yield str(each.id), payload[key]

    def _first(self, limit: int, where: "edge.Filter | None", *, with_payload: bool) -> "list[Record]":
        how: dict[str, Any] = {"scroll_filter": _filter(where) if where else None, "with_vectors": False}
        scroll = partial(self._server.client.scroll, self.name, limit=limit, with_payload=with_payload, **how)
        found: list[Record] = self._server.ask("a page of points", scroll)[0]
        return found


Searched = Store | ServedCollection
"""What questions are put to."""


def _filter(where: "edge.Filter") -> "Filter":
    """The engine's filter as the client's."""
    from qdrant_client import models

    return models.Filter(
        must=[*map(_condition, where.must or ())] or None,
        should=[*map(_condition, where.should or ())] or None,
        must_not=[*map(_condition, where.must_not or ())] or None,
    )


def _condition(of: Any) -> "Condition":
    import qdrant_edge as edge
    from qdrant_client import models

    if isinstance(of, edge.Filter):
        return _filter(of)
    if isinstance(of, edge.HasIdCondition):
        return models.HasIdCondition(has_id=[each if isinstance(each, int) else str(each) for each in of.point_ids])
    if isinstance(of, edge.IsEmptyCondition):
        return models.IsEmptyCondition(is_empty=models.PayloadField(key=of.key))
    if of.range is not None:
        bounds = {name: getattr(of.range, name) for name in ("gt", "gte", "lt", "lte")}
        return models.FieldCondition(key=of.key, range=models.Range(**bounds))
    truth = isinstance(of.match, edge.MatchAny)  # how `conditions` writes one
    value = of.match.value[0] == "true" if truth else of.match.value
    return models.FieldCondition(key=of.key, match=models.MatchValue(value=value))
