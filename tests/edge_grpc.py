"""A loopback gRPC front over the collections of a bridge, of the messages and services that qdrant-client ships.

`serving_grpc` puts it behind a socket beside the HTTP front: both see one engine. `before` and `after` of the bridge
see its calls too, by the method `GRPC`; what they answer in its place has a `grpc.StatusCode` for a status.
"""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
from qdrant_client import grpc as api
from qdrant_client.conversions.conversion import grpc_to_payload, payload_to_grpc

from tests.edge_bridge import EdgeBridge, serving

UPSERT, GET = "/qdrant.Points/Upsert", "/qdrant.Collections/Get"
ANSWERS = {UPSERT: api.PointsOperationResponse, GET: api.GetCollectionInfoResponse}


class _Front(api.PointsServicer, api.CollectionsServicer):
    def __init__(self, bridge: EdgeBridge) -> None:
        self._bridge = bridge

    def Get(self, request: Any, context: Any) -> Any:
        return self._said(GET, request, context)

    def Upsert(self, request: Any, context: Any) -> Any:
        return self._said(UPSERT, request, context)

    def _said(self, path: str, request: Any, context: Any) -> Any:
        bridge, headers = self._bridge, dict(context.invocation_metadata())
        with bridge.lock:
            bridge.requests.append(("GRPC", path))
            if (instead := bridge.before("GRPC", path, request.SerializeToString(), headers)) is None:
                try:
                    done = self._done(path, request)
                except KeyError as error:
                    instead = grpc.StatusCode.NOT_FOUND, {}, f"Not found: Collection {error} doesn't exist!".encode()
                except Exception as error:  # what the engine refuses
                    instead = grpc.StatusCode.INVALID_ARGUMENT, {}, str(error).encode()
            instead = instead or bridge.after("GRPC", path)
        if instead is None:
            return done
        code, trailing, words = instead
        if code is grpc.StatusCode.OK:  # an answer of another content
            return ANSWERS[path].FromString(words)
        code = code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.INTERNAL
        context.set_trailing_metadata(tuple(trailing.items()))
        return context.abort(code, words.decode())

    def _done(self, path: str, request: Any) -> Any:
        collection = self._bridge.collections[request.collection_name]
        if path == GET:
            config = api.CollectionConfig(metadata=payload_to_grpc(collection.info()["config"]["metadata"] or {}))
            return api.GetCollectionInfoResponse(result=api.CollectionInfo(config=config))
        if (most := collection.strict.get("upsert_max_batchsize")) and len(request.points) > most:
            raise ValueError(f"Upsert limit exceeded: {len(request.points)} > {most}")
        collection.upsert([_point(each) for each in request.points])
        status = api.UpdateStatus.Completed if request.wait else api.UpdateStatus.Acknowledged
        return api.PointsOperationResponse(result=api.UpdateResult(status=status))


def _point(made: Any) -> dict[str, Any]:
    vectors = {name: _vector(one) for name, one in made.vectors.vectors.vectors.items()}
    return {"id": made.id.uuid, "vector": vectors, "payload": grpc_to_payload(made.payload)}


def _vector(made: Any) -> Any:
    match made.WhichOneof("vector"):
        case "dense":
            return list(made.dense.data)
        case "sparse":
            return {"indices": list(made.sparse.indices), "values": list(made.sparse.values)}
        case "multi_dense":
            return [list(each.data) for each in made.multi_dense.vectors]
        case other:
            raise ValueError(f"a vector of no kind: {other}")


@contextmanager
def serving_grpc(
    bridge: EdgeBridge, port: int = 0, tls: grpc.ServerCredentials | None = None, most: int = -1
) -> Iterator[int]:
    """Put the bridge behind a port of this machine as well; `most` bytes are a message."""
    options = [("grpc.max_receive_message_length", most), ("grpc.so_reuseport", 0)]
    server = grpc.server(ThreadPoolExecutor(8), options=options)
    api.add_PointsServicer_to_server(_Front(bridge), server)
    api.add_CollectionsServicer_to_server(_Front(bridge), server)
    place = f"127.0.0.1:{port}"
    port = server.add_secure_port(place, tls) if tls else server.add_insecure_port(place)
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


if __name__ == "__main__":  # for whoever measures: its work is then not that of who asks
    with ExitStack() as stack:
        both = EdgeBridge(Path(sys.argv[1]))
        print(stack.enter_context(serving(both)), stack.enter_context(serving_grpc(both)), flush=True)
        sys.stdin.read()
