"""qdrant-client's local mode behind the paths of a server: another implementation of what a server does with points.

It is written in Python by those who write the server, shares no code with the engine, and is fed the very same
requests, read by the client's own models of them.
"""

from pathlib import Path
from typing import Any
from uuid import uuid4

from qdrant_client import QdrantClient, models

from tests.edge_bridge import Collection, EdgeBridge


class LocalCollection(Collection):
    """A collection in the memory of this process."""

    def _make(self, path: Path) -> None:
        self._name, self._client = uuid4().hex, QdrantClient(":memory:")
        made = models.CreateCollection.model_validate(self.asked)
        self._client.create_collection(
            self._name,
            vectors_config=made.vectors,
            sparse_vectors_config=made.sparse_vectors,
            hnsw_config=models.HnswConfigDiff(**made.hnsw_config.model_dump()) if made.hnsw_config else None,
            metadata=made.metadata,
        )

    def index(self, key: str, kind: str | dict[str, Any]) -> None:
        """Local mode looks at every point."""

    def close(self) -> None:
        self._client.close()

    def count(self, among: list[str] | None) -> int:
        where = None if among is None else models.Filter(must=[models.HasIdCondition(has_id=list(among))])
        return self._client.count(self._name, where, exact=True).count

    def upsert(self, points: list[dict[str, Any]]) -> None:
        batch = models.PointsList.model_validate({"points": points})
        assert self._client.upsert(self._name, batch.points, wait=True).status == models.UpdateStatus.COMPLETED
        self.sent += [point["id"] for point in points]

    def delete(self, ids: list[str | int]) -> None:
        self._client.delete(self._name, models.PointIdsList(points=ids), wait=True)

    def page(self, offset: str | int | None, limit: int) -> tuple[list[str | int], str | int | None]:
        found, following = self._client.scroll(self._name, limit=limit, offset=offset, with_payload=False)
        return [each.id for each in found], following

    def scroll(self, asked: dict[str, Any]) -> dict[str, Any]:
        request = models.ScrollRequest.model_validate(asked)
        found, following = self._client.scroll(
            self._name,
            scroll_filter=request.filter,
            limit=asked["limit"],
            offset=request.offset,
            with_payload=request.with_payload,
        )
        points = [each.model_dump(mode="json", include={"id", "payload"}) for each in found]
        return {"points": points, "next_page_offset": following}

    def points(self, ids: list[str]) -> list[dict[str, Any]]:
        found = self._client.retrieve(self._name, ids, with_payload=True, with_vectors=True)
        return [each.model_dump(mode="json", include={"id", "payload", "vector"}) for each in found]

    def search(self, asked: dict[str, Any]) -> list[tuple[str, float]]:
        request = models.QueryRequest.model_validate(asked)
        found = self._client.query_points(
            self._name,
            query=request.query,
            using=request.using,
            prefetch=request.prefetch,
            query_filter=request.filter,
            limit=request.limit or 10,
        )
        return [(str(each.id), each.score) for each in found.points]


class LocalBridge(EdgeBridge):
    """Collections of local mode."""

    kind = LocalCollection
