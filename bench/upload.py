"""What an upload takes by REST and over gRPC, against qdrant-client's own `upload_points`, and whether it survives
being killed.

All send the same points (two dense vectors, a sparse one, a payload), of 256 a request and waited for, to the same
fronts over Qdrant's engine in a process of their own, in shuffled turns, each into a collection of its own. CPU seconds
are those of who sends; wall time is mostly the front's. `--kills N` uploads a run again and again instead, by REST or
over gRPC, with one stream or four, each process killed at a random request, before, while or after the server took it.
`--latency MS...` compares four streams with one instead, against a stand-in that answers each request so much later and
looks at no point.
"""

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parents[1]))

import evidence
import machine
import numpy as np

from interlock.engine.targets.collection import ServerCollection
from interlock.engine.targets.connection import Address, Patience
from interlock.engine.targets.layout import CollectionLayout
from interlock.engine.targets.server import QdrantServer
from interlock.engine.targets.target import MOST_POINTS, deliver
from interlock.engine.vectors.points import Point, Terms

SOURCES = (
    "engine/targets/collection.py",
    "engine/targets/connection.py",
    "engine/targets/server.py",
    "engine/targets/target.py",
)
ROOT = Path(__file__).parents[1]
LAYOUT = CollectionLayout({"a": 384, "b": 768}, ["terms"], {}, {})
TERMS = 40
ROWS, LATEST = 60, 50
"""Chunks of the run whose uploads are killed, and the latest of their requests at which they are."""
GOAL = 1.0
STREAMS = 4


def points(count: int) -> list[Point]:
    """Points whose numbers mean nothing."""
    rng = np.random.default_rng(0)
    vectors = {name: rng.standard_normal((count, width), np.float32) for name, width in LAYOUT.dense.items()}
    for matrix in vectors.values():
        matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    made = []
    for row in range(count):
        indices = np.sort(rng.choice(30_000, TERMS, replace=False)).astype(np.int64)
        terms = {"terms": Terms(indices, rng.random(TERMS, np.float32) + np.float32(0.1))}
        payload = {"text": f"text {row} " * 30, "chunk_id": str(row), "source": "a", "metadata": {"page": row}}
        made.append(Point(str(UUID(int=row + 1)), payload, {name: of[row] for name, of in vectors.items()}, terms))
    return made


@contextlib.contextmanager
def front(directory: str) -> Iterator[tuple[str, int]]:
    """The fronts in a process of their own: the URL, and the port of gRPC."""
    words = [sys.executable, "-m", "tests.edge_grpc", directory]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdin
        url, port = process.stdout.readline().split()
        yield url, int(port)
        process.stdin.close()


def ours(server: QdrantServer, port: int, collection: str, sent: list[Point]) -> int:
    """Send the points, and return their bytes."""
    with ServerCollection(server, collection, LAYOUT) as target:
        target.choose_way(port, lambda _: None)
        deliver(sent, target)
        assert target.transport == ("grpc" if port else "rest")
        return target.bytes


def structs(sent: list[Point]) -> Iterator[Any]:
    from qdrant_client.models import PointStruct, SparseVector

    for point in sent:
        vectors: dict[str, Any] = {name: vector.tolist() for name, vector in point.vectors.items()}
        for name, terms in point.sparse.items():
            vectors[name] = SparseVector(indices=terms.indices.tolist(), values=terms.values.tolist())
        yield PointStruct(id=point.id, vector=vectors, payload=dict(point.payload))


def theirs(server: QdrantServer, port: int, collection: str, sent: list[Point]) -> int:
    from qdrant_client import QdrantClient

    url = server.address.url
    way = {"prefer_grpc": True, "grpc_port": port} if port else {"trust_env": False}
    client = QdrantClient(url=url, check_compatibility=False, timeout=60, **way)
    client.upload_points(collection, structs(sent), batch_size=MOST_POINTS, wait=True)
    client.close()
    return 0


WAYS = {"REST": ours, "gRPC": ours, "upload_points by REST": theirs, "upload_points over gRPC": theirs}


def throughput(options: argparse.Namespace) -> dict[str, Any]:
    about, sent, dice = machine.describe(), points(options.points), random.Random(0)
    cpu: dict[str, list[float]] = {name: [] for name in WAYS}
    wall: dict[str, list[float]] = {name: [] for name in WAYS}
    size: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        url, port = stack.enter_context(front(stack.enter_context(tempfile.TemporaryDirectory())))
        server = stack.enter_context(QdrantServer(Address.parse(url), None, Patience(60)))
        for number in range(options.rounds + 1):  # the first is for imports and caches
            for name in dice.sample(list(WAYS), len(WAYS)):
                collection = f"{name.replace(' ', '-')}-{number}"
                server.create(collection, LAYOUT.request)
                target = ServerCollection(server, collection, LAYOUT)
                began, used = time.perf_counter(), time.process_time()
                size[name] = WAYS[name](server, port if "gRPC" in name else 0, collection, sent) // len(sent)
                if number:
                    cpu[name].append(time.process_time() - used)
                    wall[name].append(time.perf_counter() - began)
                assert target.count() == len(sent)
    pairs = {
        "gRPC to REST": ("gRPC", "REST"),
        "REST to upload_points": ("REST", "upload_points by REST"),
        "gRPC to upload_points": ("gRPC", "upload_points over gRPC"),
    }
    ratios = {
        name: {
            kind: round(statistics.median(a / b for a, b in zip(each[one], each[other], strict=True)), 3)
            for kind, each in (("cpu", cpu), ("wall", wall))
        }
        for name, (one, other) in pairs.items()
    }
    return {
        "machine": {**about, "load_after": machine.load()},
        "points": len(sent),
        "bytes": {name: of for name, of in size.items() if of},
        "cpu_seconds": {name: machine.spread(values) for name, values in cpu.items()},
        "wall_seconds": {name: machine.spread(values) for name, values in wall.items()},
        "ratios": ratios,
        "goals": {f"CPU, {name}": machine.goal(of["cpu"], GOAL, at_most=True) for name, of in ratios.items()},
    }


LATE = """
import contextlib, sys, tempfile, time
from pathlib import Path
from grpc import StatusCode
from qdrant_client import grpc as api
from tests.edge_bridge import EdgeBridge, serving
from tests.edge_grpc import UPSERT, serving_grpc
from tests.uploads import answered

taken = api.PointsOperationResponse(result=api.UpdateResult(status=api.UpdateStatus.Completed)).SerializeToString()

def late(method, path, *_):
    time.sleep(float(sys.argv[1]) / 1000)
    if path == UPSERT:
        return StatusCode.OK, {}, taken
    return answered({"operation_id": 0, "status": "completed"}) if path.endswith("/points") else None

with tempfile.TemporaryDirectory() as made:
    bridge = EdgeBridge(Path(made))
    bridge.before, bridge.lock = late, contextlib.nullcontext()
    with serving(bridge) as url, serving_grpc(bridge) as port:
        print(url, port, flush=True)
        sys.stdin.read()
"""


def streams(options: argparse.Namespace) -> dict[str, Any]:
    """Send the points with one request and with four under way, a look at the collection behind each as an upload has
    it."""
    about, sent, dice = machine.describe(), points(options.points), random.Random(0)
    ways = [(way, number) for way in ("REST", "gRPC") for number in (1, STREAMS)]
    rows = []
    for latency in options.latency:
        took: dict[tuple[str, int], list[tuple[float, float]]] = {way: [] for way in ways}
        words = [sys.executable, "-c", LATE, str(latency)]
        with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout and process.stdin
            url, port = process.stdout.readline().split()
            with QdrantServer(Address.parse(url), None, Patience(60)) as server:
                server.create("docs", LAYOUT.request)
                for turn in range(options.rounds + 1):  # the first is for imports and caches
                    for way, number in dice.sample(ways, len(ways)):
                        with ServerCollection(server, "docs", LAYOUT) as target:
                            target.choose_way(int(port) if way == "gRPC" else 0, lambda _: None)
                            began, used = time.perf_counter(), time.process_time()
                            deliver(sent, target, lambda *_: server.describe("docs"), number)
                            spent = time.process_time() - used, time.perf_counter() - began
                        assert target.transport == way.lower()
                        took[way, number] += [spent] * bool(turn)
            process.stdin.close()
        for (way, number), each in took.items():
            cpu, wall = (machine.spread(values) for values in zip(*each, strict=True))
            rows.append({"latency_ms": latency, "way": way, "streams": number, "cpu": cpu, "wall": wall})
    return {"machine": {**about, "load_after": machine.load()}, "points": len(sent), "rows": rows, "goals": {}}


def kills(options: argparse.Namespace) -> dict[str, Any]:
    """Kill uploads until there were so many kills, each upload until it ends by itself; then look at every point.

    In turns into a new collection with an alias, and into one of a larger corpus, whose other points are pruned.
    """
    from tests.builders import interlock, tiny_model
    from tests.edge_bridge import EdgeBridge, serving
    from tests.edge_grpc import serving_grpc
    from tests.uploads import SIDES, Uploads, embedded, killed

    dice, done, uploads, wrong = random.Random(options.seed), 0, 0, list[str]()
    with tempfile.TemporaryDirectory() as made:
        home = Path(made)
        tiny = tiny_model(home / "a", seed=1)
        larger, run = embedded(home, tiny, "larger", keep="both"), embedded(home, tiny, "one", rows=ROWS, keep="both")
        whole = EdgeBridge(home / "whole")
        Uploads(whole, run, home / "whole-uploads")()
        wanted = _held(whole, "docs")
        while done < options.kills:
            bridge, copy = EdgeBridge(home / f"bridge-{uploads}"), home / f"run-{uploads}"
            bridge.strict = {"enabled": True, "upsert_max_batchsize": 5}
            subprocess.run(["cp", "-r", str(run), str(copy)], check=True)
            pruning = uploads % 2 == 1
            if pruning:
                Uploads(bridge, larger, home / f"larger-uploads-{uploads}")()
                bridge.collections["docs"].sent.clear()
            with serving(bridge) as url, serving_grpc(bridge) as port:
                words = ["upload", copy, "--qdrant", url, "--grpc-port", dice.choice((0, port))]
                words += ["--streams", dice.choice((1, STREAMS)), *(["--prune"] if pruning else ["--alias", "docs"])]
                while done < options.kills and killed(words, bridge, dice.randint(1, LATEST), dice.choice(SIDES)):
                    done += 1
                    if list(copy.glob("uploads/*.json")) and not (pruning or bridge.aliases):
                        wrong.append(f"upload {uploads}: reported before it was done")
                told = interlock(*words).stdout
            (target,) = bridge.collections
            if (
                _held(bridge, target) != wanted
                or bridge.aliases != ({} if pruning else {"docs": target})
                or f"{ROWS} rows there" not in told
            ):
                wrong.append(f"upload {uploads}: other points than of an undisturbed one")
            if twice := len(sent := bridge.collections[target].sent) - len({*sent}):
                wrong.append(f"upload {uploads}: {twice} points sent twice")
            bridge.close()
            uploads += 1
        whole.close()
    return {
        "machine": machine.describe(),
        "kills": done,
        "uploads": uploads,
        "wrong": wrong,
        "goals": {"uploads that were not finished right": machine.goal(len(wrong), 0, at_most=True)},
    }


def _held(bridge: Any, collection: str) -> dict[str, str]:
    """Every point of a collection as text, by id."""
    ids, _ = bridge.collections[collection].page(None, 10_000)
    points = bridge.collections[collection].points(ids)
    return {each["id"]: json.dumps(each, sort_keys=True) for each in points}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.latency:
        return streams(options)
    return kills(options) if options.kills else throughput(options)


def show(result: dict[str, Any]) -> None:
    if "rows" in result:
        rows = [[*list(each.values())[:3], each["cpu"]["median"], each["wall"]["median"]] for each in result["rows"]]
        print(f"\n{result['points']:,} points")
        machine.table(["latency ms", "way", "streams", "CPU s", "wall s"], rows)
        return
    if "kills" in result:
        print(f"\n{result['kills']} kills of {result['uploads']} uploads", *result["wrong"], sep="\n")
    else:
        print(f"\n{result['points']:,} points")
        seconds = {name: [result[f"{kind}_seconds"][name]["median"] for kind in ("cpu", "wall")] for name in WAYS}
        rows = [[name, result["bytes"].get(name, ""), *seconds[name]] for name in WAYS]
        machine.table(["way", "bytes a point", "CPU s", "wall s"], rows)
    machine.goals(result["goals"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=2000, metavar="N")
    parser.add_argument("--rounds", type=int, default=7, metavar="N")
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="kill uploads so often instead")
    parser.add_argument("--latency", type=int, nargs="+", metavar="MS", help="compare streams instead")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the kills")
    machine.quick(parser, points=100, rounds=1)
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
