"""The contract of a target: what any place for points keeps of a run, whatever code delivers it.

Nothing of Interlock is known here but its command line. The same run goes into an embedded store, and into servers: the
engine behind HTTP, the same over gRPC, and qdrant-client's local mode. What each holds is read by other programs and
compared with the files of the run.
"""

import json
import os
import shutil
import signal
import threading
import time
from contextlib import ExitStack

import numpy as np
import pyarrow.parquet as pq
import pytest
import qdrant_edge as edge

from tests.builders import interlock, pins_of, sentences, start, tiny_m3, tiny_model, toml
from tests.edge_bridge import EdgeBridge, refusal, serving
from tests.edge_grpc import UPSERT, serving_grpc
from tests.local_bridge import LocalBridge

ROWS, FEW = 40, 24
DENSE, LATE, TERMS = ("a", "m", "fused"), ("m-tokens",), ("m-sparse", "keywords")
KINDS = {*DENSE, *LATE, *TERMS, "bm25"}


def records(rows):
    """Chunks with metadata of every type, fields of their own, terms of their own, and one without words."""
    made = []
    for number, text in enumerate([*sentences(rows - 1), "—"]):
        about = {"chunk_id": f"c{number}", "page": number, "share": number / 7, "none": None, "list": [1, None, "ü"]}
        record = {"text": text, "metadata": about}
        if number % 3 == 0:
            record["sparse_features"] = {"key": 0.5, f"word{number}": 2.0}
        if number % 5 == 0:
            record["deep"] = {"large": 2**70, "unsigned": 2**64 - 1, "least": -(2**63), "half": 0.5}
        made.append(record)
    return made


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_a):
    """Two runs into stores of their own: of all chunks, and of those that are left of them later."""
    home = tmp_path_factory.mktemp("targets")
    tiny_m3(home / "m", seed=6)
    shutil.copytree(tiny_a, home / "a")
    models = {"m": {"source": str(home / "m"), "head_sha256": pins_of(home / "m")}, "a": {"source": str(home / "a")}}
    toml(home / "interlock.toml", models)
    for name, rows in (("one", ROWS), ("two", FEW)):
        file = home / name / "Docs" / "a.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text("".join(json.dumps(record) + "\n" for record in records(rows)))
        run(home, name, "--qdrant", home / "stores" / name)
    return home


def run(home, name, *more, config="interlock.toml", check=0, run_id=""):
    words = ["--out", home / "runs", "--run-id", run_id or name, "--config", home / config, "--roster", "m,a"]
    given = ["--sparse", "m", "--token-vectors", "m", "--chunk-sparse", "keywords", "--devices", "cpu"]
    return interlock(
        "run", home / name, *words, *given, "--keep", "both", "--export", "npy,parquet", "--no-ui", *more, check=check
    )


class Store:
    """An embedded store, delivered into by a run or again from its files."""

    def __init__(self, home, place):
        self.home, self.place = home, place / "store"
        self.words = ["--to-store", self.place]

    def deliver(self, name="one", *more, check=0):
        words = ["export", self.home / "runs" / name, *self.words, *more, "--config", self.home / "interlock.toml"]
        return interlock(*words, check=check)

    def points(self):
        return of_shard(self.place / "docs")

    def close(self):
        pass


def of_shard(path):
    """What any program of the engine finds in a store."""
    shard = edge.EdgeShard.load(str(path), None)
    found, _ = shard.scroll(edge.ScrollRequest(limit=1000, with_payload=True, with_vector=True))
    shard.close()
    return {
        str(each.id): (
            each.payload,
            {
                name: {"indices": one.indices, "values": one.values} if isinstance(one, edge.SparseVector) else one
                for name, one in each.vector.items()
            },
        )
        for each in found
    }


class Server:
    """A server behind sockets, uploaded to over HTTP or gRPC."""

    def __init__(self, home, place, kind=EdgeBridge, grpc=False):
        self.home, self._stack, self.bridge = home, ExitStack(), kind(place / "bridge")
        self.runs = place / "runs"
        url = self._stack.enter_context(serving(self.bridge))
        port = self._stack.enter_context(serving_grpc(self.bridge)) if grpc else 0
        self.words = ["--qdrant", url, "--grpc-port", port, "--patience", 5]
        self.request = ("GRPC", UPSERT) if grpc else ("PUT", "/collections/docs/points")

    def copy(self, name):
        """A run with uploads of its own."""
        if not (self.runs / name).exists():
            shutil.copytree(self.home / "runs" / name, self.runs / name)
        return self.runs / name

    def deliver(self, name="one", *more, check=0):
        return interlock("upload", self.copy(name), *self.words, *more, check=check)

    def points(self):
        collection = self.bridge.collections["docs"]
        return {each["id"]: (each["payload"], each["vector"]) for each in collection.points(sorted(collection.sent))}

    def close(self):
        self._stack.close()
        self.bridge.close()


TARGETS = {
    "store": Store,
    "edge": Server,
    "grpc": lambda home, place: Server(home, place, grpc=True),
    "local": lambda home, place: Server(home, place, LocalBridge),
}
SERVERS = sorted({*TARGETS} - {"store"})


@pytest.fixture(params=TARGETS)
def target(request, home, tmp_path):
    made = TARGETS[request.param](home, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=SERVERS)
def server(request, home, tmp_path):
    made = TARGETS[request.param](home, tmp_path)
    yield made
    made.close()


def weights(terms):
    return dict(zip(terms["indices"], np.array(terms["values"], np.float32).tolist(), strict=True))


def assert_as_exported(points, home, name, rows):
    """Points are those of the run's files: payloads by value and type, dense vectors at unit length, others exactly."""
    files = home / "runs" / name / "exports" / "Docs"
    table = pq.read_table(files / "points.parquet").to_pydict()
    assert points.keys() == {*table["id"]} and len(points) == rows
    arrays = {each: np.load(files / f"{each}.npy") for each in DENSE}
    tokens, starts = np.load(files / "m-tokens.npy"), np.load(files / "m-tokens-starts.npy")
    for row, (point, record) in enumerate(zip(table["id"], records(rows), strict=True)):
        payload, vectors = points[point]
        assert payload["text"] == record["text"] and payload["chunk_id"] == f"c{row}"
        metadata = {key: value for key, value in record["metadata"].items() if key != "chunk_id"}
        got = {key: value for key, value in payload["metadata"].items() if key != "chunk_id"}
        assert json.dumps(got, sort_keys=True) == json.dumps(metadata, sort_keys=True)  # 1 is not 1.0 here
        if "deep" in record:
            deep = {**record["deep"], "large": str(2**70)}
            assert json.dumps(payload["record"]["deep"], sort_keys=True) == json.dumps(deep, sort_keys=True)
        for each in DENSE:
            np.testing.assert_allclose(vectors[each], arrays[each][row], rtol=0, atol=1e-6)
        late = tokens[starts[row] : starts[row + 1]]
        wanted = late["values"].astype(np.float32) * (late["scale"][:, None] if "scale" in late.dtype.names else 1)
        np.testing.assert_array_equal(np.array(vectors["m-tokens"], np.float16), wanted.astype(np.float16))
        for each in TERMS:
            column = table[each][row]
            exported = dict(zip(column["indices"], column["values"], strict=True)) if column else {}
            assert weights(vectors.get(each, {"indices": [], "values": []})) == exported
        assert ("bm25" in vectors) is (record["text"] != "—")


def test_the_store_of_a_run_and_every_target_hold_the_points_of_its_files(target, home):
    target.deliver()
    points = target.points()
    assert_as_exported(points, home, "one", ROWS)
    assert {name for _, vectors in points.values() for name in vectors} == KINDS
    by_run = of_shard(home / "stores" / "one" / "docs")
    assert by_run.keys() == points.keys()
    for point, (payload, vectors) in by_run.items():
        assert json.dumps(points[point][0], sort_keys=True) == json.dumps(payload, sort_keys=True)
        assert points[point][1].keys() == vectors.keys()
        if "bm25" in vectors:
            assert weights(points[point][1]["bm25"]) == weights(vectors["bm25"])


def test_a_second_delivery_changes_no_point(target):
    target.deliver()
    before = target.points()
    target.deliver()
    assert json.dumps(target.points(), sort_keys=True) == json.dumps(before, sort_keys=True)


def test_a_second_upload_sends_nothing_and_compares_again(server):
    server.deliver()
    sent = list(server.bridge.collections["docs"].sent)
    (report,) = json.loads(server.deliver("one", "--json").stdout)
    assert (report["sent"], report["rows"], report["points"], report["compared"]) == (0, ROWS, ROWS, ROWS)
    assert report["worst_cosine"] > 1 - 1e-5
    assert server.bridge.collections["docs"].sent == sent


def test_chunks_that_left_the_corpus_stay_until_they_are_pruned(target, home):
    target.deliver("one")
    gone = target.points().keys() - {*pq.read_table(home / "runs/two/exports/Docs/points.parquet")["id"].to_pylist()}
    assert len(gone) == ROWS - FEW
    target.deliver("two")
    held = target.points()
    assert gone <= held.keys()
    if isinstance(target, Store):  # searches tell of them
        assert {point for point, (payload, _) in held.items() if "stale_since" in payload} == gone
    target.deliver("two", "--prune")
    assert_as_exported(target.points(), home, "two", FEW)


def test_a_server_keeps_what_others_put_there(server, home):
    server.deliver("one")
    collection = server.bridge.collections["docs"]
    theirs = "0" * 8 + "-0000-0000-0000-" + "0" * 11 + "7"
    vectors = {name: vector for name, vector in next(iter(server.points().values()))[1].items() if name in DENSE}
    collection.upsert([{"id": theirs, "vector": vectors, "payload": {"text": "theirs"}}])
    (report,) = json.loads(server.deliver("two", "--prune", "--json").stdout)
    assert (report["pruned"], report["foreign"], report["points"]) == (ROWS - FEW, 1, FEW + 1)
    assert theirs in server.points()


def kill_at(server, at, words):
    """Run the command and kill it at its upsert number `at`, before, while or after the server took it."""
    begun, asked, process = threading.Event(), [0], None

    def kill(number, answer=None):
        begun.wait()
        os.kill(process.pid, signal.SIGKILL)
        return answer

    def before(method, path, *_):
        if (method, path) != server.request:
            return None
        asked[0] += 1
        return kill(at, refusal(500, "gone")) if asked[0] == at and at % 2 else None

    def after(method, path):
        return kill(at) if (method, path) == server.request and asked[0] == at and not at % 2 else None

    server.bridge.before, server.bridge.after = before, after
    process = start(*words)
    begun.set()
    said = process.communicate(120)
    server.bridge.before = server.bridge.after = lambda *_: None
    assert process.returncode == -signal.SIGKILL, said


def test_an_upload_that_is_killed_goes_on_where_it_was_acknowledged(server, home):
    server.bridge.strict = {"enabled": True, "upsert_max_batchsize": 8}
    words = ["upload", server.copy("one"), *server.words]
    kill_at(server, 2, words)
    kill_at(server, 3, words)
    assert not list((server.runs / "one" / "uploads").glob("*.json"))
    (report,) = json.loads(server.deliver("one", "--json").stdout)
    assert 0 < report["sent"] < ROWS and report["points"] == ROWS
    assert len(server.bridge.collections["docs"].sent) == ROWS
    assert_as_exported(server.points(), home, "one", ROWS)


def test_a_delivery_into_a_store_that_is_killed_is_done_by_the_same_command(home, tmp_path):
    store = Store(home, tmp_path)
    words = ["export", home / "runs" / "one", *store.words, "--config", home / "interlock.toml"]
    process = start(*words)
    while not (store.place / "docs" / "manifest.json").exists() and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    process.communicate(60)
    assert process.returncode == -signal.SIGKILL
    store.deliver()
    assert_as_exported(store.points(), home, "one", ROWS)


def test_vectors_of_another_width_are_refused_and_what_is_there_stays(target, home):
    if not (home / "runs" / "wide").exists():
        tiny_model(home / "wide-model" / "a", seed=1, width=48)
        models = {"m": {"source": str(home / "m"), "head_sha256": pins_of(home / "m")}}
        toml(home / "wide.toml", {**models, "a": {"source": str(home / "wide-model" / "a")}})
        run(home, "one", config="wide.toml", run_id="wide")
    target.deliver("one")
    before = target.points()
    said = target.deliver("wide", check=2)
    assert "48" in said.stderr or "a was" in said.stderr or "fingerprint" in said.stderr, said.stderr
    assert target.points().keys() == before.keys()


def test_a_point_that_was_changed_behind_an_upload_is_no_success(server):
    server.deliver()
    collection = server.bridge.collections["docs"]
    point, (payload, vectors) = next(each for each in server.points().items() if each[1][0]["text"] != "—")
    collection.upsert([{"id": point, "vector": vectors, "payload": {**payload, "text": "another"}}])
    assert "payload" in server.deliver("one", check=1).stderr


def test_a_server_that_never_answers_right_ends_it_with_a_code_of_its_own(server):
    server.bridge.before = lambda method, path, *_: refusal(503, "starting") if path.endswith("/points/count") else None
    server.deliver("one", "--patience", 0.1, check=5)
    server.bridge.before = lambda *_: None
    server.deliver()
