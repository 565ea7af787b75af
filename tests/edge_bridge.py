"""A loopback HTTP front over the engine of qdrant-edge: real points, vectors and filters behind the paths of a server.

It is no Qdrant server: it has no authentication, optimisers, cluster or limits of its own, and proves nothing of these.
`EdgeBridge.answer` is what it says to one request; `serving` puts it behind a socket; `before` may answer in its place,
and `raw` write what it likes instead of an answer.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from ssl import SSLContext
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import UUID

import qdrant_edge as edge

VERSION = "1.19.0"
SPREAD = "shard_number", "replication_factor", "write_consistency_factor"
DATATYPES = {"float32": edge.VectorStorageDatatype.Float32, "float16": edge.VectorStorageDatatype.Float16}
DISTANCES = {"Cosine": edge.Distance.Cosine, "Dot": edge.Distance.Dot}
Answer = tuple[int, dict[str, str], bytes]


class Collection:
    """One shard with what a server would remember of how it was asked for."""

    threshold: int | None = None
    """KiB of vectors from which on a segment gets an index; None for the server's own."""

    def __init__(self, path: Path, asked: dict[str, Any]) -> None:
        self.asked, self.schema, self.status = asked, dict[str, Any](), "green"
        self.metadata = dict(asked.get("metadata") or {})
        self.hnsw, self.strict = {"m": 16, **(asked.get("hnsw_config") or {})}, dict[str, Any]()
        self.waiting = 0
        """Optimisations that wait by its list."""
        self.sent: list[str] = []
        """The id of every point that was ever written, as often as it was."""
        self._make(path)

    def _make(self, path: Path) -> None:
        params = {}
        for name, one in self.asked["vectors"].items():
            several = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim) if "multivector_config" in one else None
            params[name] = edge.EdgeVectorParams(
                size=one["size"],
                distance=DISTANCES[one["distance"]],
                multivector_config=several,
                datatype=DATATYPES[one.get("datatype") or "float32"],
            )
        modifiers = {"idf": edge.Modifier.Idf}
        terms = {
            name: edge.EdgeSparseVectorParams(modifier=modifiers.get(one.get("modifier")))
            for name, one in (self.asked.get("sparse_vectors") or {}).items()
        }
        path.mkdir(parents=True)
        config = edge.EdgeConfig(vectors=params, sparse_vectors=terms, wal_enabled=False)
        self.shard = edge.EdgeShard.create(str(path), config)

    def info(self) -> dict[str, Any]:
        params = {"vectors": self.asked["vectors"], "sparse_vectors": self.asked.get("sparse_vectors") or {}}
        optimizer = {"deleted_threshold": 0.2, "vacuum_min_vector_number": 1000, "default_segment_number": 0}
        spread = {name: self.asked.get(name) or 1 for name in SPREAD}
        config = {
            "params": {**params, **spread},
            "hnsw_config": {"ef_construct": 100, "full_scan_threshold": 10000, **self.hnsw},
            "optimizer_config": {**optimizer, "flush_interval_sec": 5, "indexing_threshold": self.threshold},
            "strict_mode_config": self.strict or None,
            "metadata": self.metadata or None,
        }
        return {
            "status": self.status,
            "optimizer_status": "ok",
            "segments_count": 1,
            "points_count": self.count(None),
            "config": config,
            "payload_schema": self.schema,
        }

    def count(self, among: list[str] | None) -> int:
        where = None if among is None else edge.Filter(must=[edge.HasIdCondition(set(among))])
        return int(self.shard.count(edge.CountRequest(exact=True, filter=where)))

    def upsert(self, points: list[dict[str, Any]]) -> None:
        made = []
        for point in points:
            UUID(point["id"])
            vectors = {
                name: edge.SparseVector(one["indices"], one["values"]) if isinstance(one, dict) else one
                for name, one in point["vector"].items()
            }
            made.append(edge.Point(point["id"], vectors, point["payload"]))
        self.shard.update(edge.UpdateOperation.upsert_points(made))
        self.sent += [point["id"] for point in points]

    def delete(self, ids: list[str | int]) -> None:
        self.shard.update(edge.UpdateOperation.delete_points(ids))

    def page(self, offset: str | int | None, limit: int) -> tuple[list[str | int], str | int | None]:
        """The ids of so many points from one on, and the id of the next."""
        found, following = self.shard.scroll(edge.ScrollRequest(offset=offset, limit=limit, with_payload=False))
        return [_id(each.id) for each in found], None if following is None else _id(following)

    def scroll(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A page of points for which a filter holds, with what is asked of their payloads."""
        keys = asked["with_payload"]
        payload = edge.PayloadSelector.Include(keys) if isinstance(keys, list) else keys
        where, offset = _filter(asked.get("filter")), asked.get("offset")
        request = edge.ScrollRequest(offset=offset, limit=asked["limit"], with_payload=payload, filter=where)
        found, following = self.shard.scroll(request)
        points = [{"id": _id(each.id), "payload": each.payload or {}} for each in found]
        return {"points": points, "next_page_offset": None if following is None else _id(following)}

    def index(self, key: str, kind: str | dict[str, Any]) -> None:
        """Only a server tells tenants apart; here they are keywords."""
        field = getattr(edge.PayloadSchemaType, (kind if isinstance(kind, str) else kind["type"]).capitalize())
        self.shard.update(edge.UpdateOperation.create_field_index(key, field))

    def close(self) -> None:
        self.shard.close()

    def search(self, asked: dict[str, Any]) -> list[tuple[str, float]]:
        """The hits of a request to `points/query`, with their scores."""
        stages = [
            edge.Prefetch(each["limit"], _query(each), filter=_filter(each.get("filter")))
            for each in asked.get("prefetch", [])
        ]
        request = edge.QueryRequest(
            limit=asked["limit"], query=_query(asked), prefetches=stages, filter=_filter(asked.get("filter"))
        )
        return [(str(each.id), each.score) for each in self.shard.query(request)]

    def points(self, ids: list[str]) -> list[dict[str, Any]]:
        found = self.shard.retrieve(ids, with_payload=True, with_vector=True)
        return [
            {"id": str(each.id), "payload": each.payload or {}, "vector": _plain(each.vector or {})} for each in found
        ]


def _id(of: object) -> str | int:
    return of if isinstance(of, int) else str(of)


def _plain(vectors: Any) -> dict[str, Any]:
    return {
        name: {"indices": one.indices, "values": one.values} if isinstance(one, edge.SparseVector) else one
        for name, one in vectors.items()
    }


def _query(asked: dict[str, Any]) -> Any:
    """What is looked for: a vector of any kind, or the fusion of what was found before."""
    match asked["query"]:
        case {"rrf": rrf}:
            return edge.Fusion.Rrf(k=rrf["k"])
        case {"nearest": inner}:
            return _query({**asked, "query": inner})
        case {"indices": indices, "values": values}:
            return edge.Query.Nearest(edge.SparseVector(indices, values), using=asked["using"])
        case vector:
            return edge.Query.Nearest(vector, using=asked["using"])


def _filter(asked: dict[str, Any] | None) -> Any:
    if asked is None:
        return None
    kinds = {kind: [*map(_condition, asked.get(kind) or [])] for kind in ("must", "should", "must_not")}
    return edge.Filter(**{kind: each for kind, each in kinds.items() if each})


def _condition(asked: dict[str, Any]) -> Any:
    match asked:
        case {"has_id": ids}:
            return edge.HasIdCondition({*ids})
        case {"is_empty": {"key": key}}:
            return edge.IsEmptyCondition(key)
        case {"key": key, "match": {"value": value}}:
            return edge.FieldCondition(key, match=edge.MatchValue(value))
        case {"key": key, "range": bounds}:
            return edge.FieldCondition(key, range=edge.RangeFloat(**bounds))
    return _filter(asked)


class EdgeBridge:
    """Collections below `directory`. `before` sees each request first; what it returns is the answer, if anything."""

    kind: type[Collection] = Collection

    def __init__(self, directory: Path) -> None:
        self._directory, self.lock = directory, threading.Lock()
        self.collections: dict[str, Collection] = {}
        self.aliases: dict[str, str] = {}
        self.requests: list[tuple[str, str]] = []
        self.before: Callable[[str, str, bytes, dict[str, str]], Answer | None] = lambda *_: None
        self.after: Callable[[str, str], Answer | None] = lambda *_: None
        self.raw: Callable[[BaseHTTPRequestHandler, Answer], bool] = lambda *_: False
        self.strict: dict[str, Any] = {}
        """The strict mode of collections that are made from now on."""
        self._made = 0

    def answer(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> Answer:
        """What is said to one request; `headers` have names in lower case."""
        with self.lock:
            parts = urlsplit(target)
            path = unquote(parts.path)
            self.requests.append((method, path))
            if (instead := self.before(method, path, body, headers)) is not None:
                return instead
            said = self._said(method, path.strip("/").split("/"), body, parse_qs(parts.query))
            return self.after(method, path) or said

    def _said(self, method: str, path: list[str], body: bytes, query: dict[str, list[str]]) -> Answer:
        try:
            return 200, {}, json.dumps(self._result(method, path, json.loads(body) if body else None, query)).encode()
        except KeyError as error:
            return refusal(404, f"Not found: {error.args[0]} doesn't exist!")
        except Exception as error:  # what the engine refuses
            return refusal(400, str(error))

    def close(self) -> None:
        for each in self.collections.values():
            each.close()

    def _result(self, method: str, path: list[str], body: Any, query: dict[str, list[str]]) -> Any:
        match method, path:
            case "GET", [""]:
                return {"title": "edge bridge over qdrant-edge, not a Qdrant server", "version": VERSION}
            case "GET", ["collections"]:
                return _done({"collections": [{"name": name} for name in self.collections]})
            case "GET", ["aliases"]:
                each = [{"alias_name": name, "collection_name": of} for name, of in self.aliases.items()]
                return _done({"aliases": each})
            case "POST", ["collections", "aliases"]:
                return _done(self._switch(body["actions"]))
            case "PUT", ["collections", name] if name in self.collections:
                raise ValueError(f"Wrong input: Collection `{name}` already exists!")
            case "PUT", ["collections", name]:
                self._made += 1
                self.collections[name] = self.kind(self._directory / str(self._made), body)
                self.collections[name].strict |= self.strict
                return _done(True)
        collection = self.collections[self.aliases.get(path[1], path[1])]
        match method, path[2:]:
            case "GET", []:
                return _done(collection.info())
            case "GET", ["exists"]:
                return _done({"exists": True})
            case "GET", ["optimizations"]:
                queued = {"queued_optimizations": collection.waiting, "queued_segments": 0, "queued_points": 0}
                return _done({"summary": {**queued, "idle_segments": 1}, "running": []})
            case "PATCH", []:
                collection.hnsw |= body.get("hnsw_config") or {}
                collection.metadata |= body.get("metadata") or {}
                for key in [key for key, value in collection.metadata.items() if value is None]:
                    del collection.metadata[key]
                return _done(True)
            case "PUT", ["index"]:
                collection.index(body["field_name"], body["field_schema"])
                schema = body["field_schema"]
                plain = (
                    {"data_type": schema}
                    if isinstance(schema, str)
                    else {"data_type": schema["type"], "params": schema}
                )
                collection.schema[body["field_name"]] = {**plain, "points": 0}
            case "PUT", ["points"]:
                if (most := collection.strict.get("upsert_max_batchsize")) and len(body["points"]) > most:
                    raise ValueError(f"Upsert limit exceeded: {len(body['points'])} > {most}")
                collection.upsert(body["points"])
            case "POST", ["points", "count"]:
                if collection.strict.get("search_allow_exact") is False and body.get("exact", True):
                    raise ValueError("Exact search disabled!. Help: Set exact=false.")
                must = body.get("filter", {}).get("must")
                return _done({"count": collection.count(must[0]["has_id"] if must else None)})
            case "POST", ["points", "scroll"] if body["with_payload"] or body.get("filter"):
                return _done(collection.scroll(body))
            case "POST", ["points", "scroll"]:
                assert body["with_payload"] is body["with_vector"] is False
                if (most := collection.strict.get("max_query_limit")) and body["limit"] > most:
                    raise ValueError(f'Limit exceeded {body["limit"]} > {most} for "limit"')
                ids, following = collection.page(body.get("offset"), body["limit"])
                return _done({"points": [{"id": each} for each in ids], "next_page_offset": following})
            case "POST", ["points", "delete"]:
                collection.delete(body["points"])
            case "POST", ["points"]:
                return _done(collection.points(body["ids"]))
            case "POST", ["points", "query"]:
                hits = collection.search(body)
                there = {each["id"]: each["payload"] for each in collection.points([id for id, _ in hits])}
                found = [{"id": id, "version": 0, "score": score, "payload": there[id]} for id, score in hits]
                return _done({"points": found})
            case other:
                raise ValueError(f"the bridge has no {other}")
        return _done({"operation_id": 0, "status": "completed" if query.get("wait") == ["true"] else "acknowledged"})

    def _switch(self, actions: list[dict[str, Any]]) -> bool:
        aliases = dict(self.aliases)
        for action in actions:
            if "delete_alias" in action:
                del aliases[action["delete_alias"]["alias_name"]]
            else:
                made = action["create_alias"]
                self.collections[made["collection_name"]]
                aliases[made["alias_name"]] = made["collection_name"]
        self.aliases = aliases
        return True


def refusal(status: int, why: str, **headers: str) -> Answer:
    """How a server says no."""
    return status, headers, json.dumps({"status": {"error": why}, "time": 0.0}).encode()


def _done(result: Any) -> dict[str, Any]:
    return {"result": result, "status": "ok", "time": 0.0}


@contextmanager
def serving(bridge: EdgeBridge, tls: SSLContext | None = None) -> Iterator[str]:
    """Put a bridge behind a socket of this machine, under `tls` if that is given; its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, more, content = bridge.answer(self.command, self.path, body, headers)
            if bridge.raw(self, (status, more, content)):
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **more}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_PATCH = do_CONNECT = _handle  # as the library calls them

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Whoever asked was killed."""

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


if __name__ == "__main__":  # for whoever measures: its work is then not that of who asks
    with serving(EdgeBridge(Path(sys.argv[1]))) as url:
        print(url, flush=True)
        sys.stdin.read()
