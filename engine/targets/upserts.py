"""The way of points to a server: over gRPC where its port answers, by REST otherwise; chosen once, and told.

Whoever sends sees bodies and nothing of how they go. If gRPC stops answering while REST does, the rest goes by REST.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

from interlock.engine.targets.bodies import PROTOBUF, UpsertBody, as_json, bodies
from interlock.engine.targets.grpc_points import GrpcPoints, RestInstead, as_protobuf
from interlock.engine.targets.server import QdrantServer
from interlock.engine.vectors.points import Point


class Upserts:
    """The upserts of one collection; a context manager, which ends their connection."""

    def __init__(self, server: QdrantServer, collection: str, grpc_port: int, told: Callable[[str], object]) -> None:
        """Ask nothing yet; `grpc_port` 0: REST alone."""
        self._server, self._collection, self._port, self._told = server, collection, grpc_port, told
        self._grpc: GrpcPoints | None = None
        self._ways, self._stack = set[str](), ExitStack()

    def __enter__(self) -> "Upserts":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def transport(self) -> str:
        """How points went: grpc, rest, both, or none."""
        return "+".join(sorted(self._ways)) or "none"

    def bodies(
        self, points: Callable[[], Iterable[Point]], most_points: int, most_bytes: Callable[[], int]
    ) -> Iterator[UpsertBody]:
        """Yield bodies of `points`, which is asked again for those that are left where they have to go another way."""
        self._choose()
        while True:
            write = as_protobuf if self._grpc else as_json
            for body in bodies(points(), most_points, most_bytes, write):
                yield body
                if self._grpc is None and write is as_protobuf:
                    break
            else:
                return

    def send(self, body: UpsertBody) -> bool:
        """Write points, and wait until they are. False: they have to go another way, as the next bodies do. Raises
        TooLarge where the server takes less."""
        if body.form is not PROTOBUF:
            self._server.upsert(self._collection, body.content)
            self._ways.add("rest")
            return True
        if self._grpc is None:
            return False
        try:
            self._grpc.upsert(self._collection, body.content)
        except RestInstead as error:
            self._told(f"{self._collection}: gRPC does not do it ({error}): the rest goes by REST")
            self._grpc = None
            return False
        self._ways.add("grpc")
        return True

    def _choose(self) -> None:
        """Ask the port once."""
        port, self._port = self._port, 0
        if not port:
            return
        there = self._server.describe(self._collection) or {}
        found = self._stack.enter_context(GrpcPoints(self._server, port))
        if why := found.objection(self._collection, (there.get("config") or {}).get("metadata") or {}):
            self._told(f"{self._collection}: points go by REST, not over gRPC to {found.place} ({why})")
        else:
            self._grpc = found
            self._told(f"{self._collection}: points go over gRPC to {found.place}")
