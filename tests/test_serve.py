"""A service answers many clients at once as the Python API answers one, and says what is wrong with a request."""

import asyncio
import base64
import json
import re
import shutil
import signal
import socket
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from starlette.responses import Response

import interlock
from interlock.console.front_ends import connections
from interlock.console.front_ends.connections import Admission, listening, server_of
from interlock.console.front_ends.http import MOST_BYTES, Door, SearchRequest
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode, UnavailableError, UsageError
from interlock.engine.flows.run import Run
from interlock.engine.flows.search import Service
from interlock.engine.record.events import ResidueFound
from interlock.engine.search.ask import Ask
from interlock.engine.search.batching import QueueFull, RequestBatcher
from interlock.engine.search.options import SearchRules
from interlock.engine.settings import load
from tests.builders import corpus, start, toml
from tests.builders import interlock as command
from tests.test_encode import QUESTIONS, TEXTS

HEAD = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_a, tiny_b):
    """A run with a store and one without, and what the Python API answers of the first."""
    place = tmp_path_factory.mktemp("serve")
    corpus(place / "chunks", {"Docs": {"a.jsonl": [{"text": each, "metadata": {"lang": "en"}} for each in TEXTS]}})
    file = toml(place / "interlock.toml", {"a": {"source": str(tiny_a)}, "b": {"source": str(tiny_b)}})
    for name, form in {"stored": {"qdrant": str(place / "store")}, "plain": {"export": "npy,parquet"}}.items():
        given = {"roster": "a=0.7,b=0.3", "out": str(place / "runs"), "run_id": name, **form}
        assert Run(place / "chunks", load(given, {}, file), Controls()).go() == ExitCode.COMPLETED
    return place


@pytest.fixture(scope="module")
def settings(place):
    return interlock.Settings(config=place / "interlock.toml", offline=True)


@pytest.fixture(scope="module")
def wanted(place, settings):
    """What a caller from Python gets, before a service has the store."""
    with interlock.Searcher(place / "store", settings=settings) as searcher:
        found = [searcher.search(each, 4) for each in QUESTIONS]
        documents, questions = (
            {name: searcher.encode(texts, side, only=name).dense[name] for name in ("fused", "a", "b")}
            for texts, side in ((TEXTS, "document"), (QUESTIONS, "query"))
        )
        return SimpleNamespace(hits=found, documents=documents, questions=questions)


def started(*words, env=None):
    """A service that answers, and its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = start("serve", *words, "--port", port, "--offline", env=env)
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        with suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=0.2).status_code == 200:
                return process, port
        time.sleep(0.05)
    process.kill()
    raise AssertionError(process.communicate())


@pytest.fixture(scope="module")
def client(place, wanted):
    process, port = started(place / "store", "--config", place / "interlock.toml")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        yield client
    process.send_signal(signal.SIGTERM)
    told, said = process.communicate(timeout=30)
    assert process.returncode == 0 and "ended" in said and "Traceback" not in said
    url = f"http://127.0.0.1:{port}"
    assert told.startswith("docs: fused (") and f"\n{url}/v1/embeddings, {url}/search\nno key asked for" in told


def vectors(answer):
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [each["index"] for each in data] == list(range(len(data)))
    return np.array([each["embedding"] for each in data], np.float32)


def asked(client, texts, model="fused", **more):
    return client.post("/v1/embeddings", json={"model": model, "input": texts, **more})


@pytest.mark.parametrize("name", ["fused", "a", "b"])
def test_embeddings_are_those_of_the_points_and_of_questions_to_them(client, wanted, name):
    np.testing.assert_allclose(vectors(asked(client, QUESTIONS, name)), wanted.questions[name], atol=2e-6)
    np.testing.assert_allclose(vectors(asked(client, TEXTS, f"{name}:document")), wanted.documents[name], atol=2e-6)


def test_vectors_come_packed_as_openais_client_asks_for_them(client, wanted):
    more = {"encoding_format": "base64", "user": "me", "dimensions": wanted.questions["a"].shape[1]}
    answer = asked(client, QUESTIONS[0], "a", **more)
    row = np.frombuffer(base64.b64decode(answer.json()["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(row, wanted.questions["a"][0], atol=2e-6)
    assert answer.json()["usage"]["prompt_tokens"] > 2 and "warnings" not in answer.json()
    (said,) = asked(client, ["word " * 300, "x"]).json()["warnings"]
    assert "1 text of 2 is longer than the models read" in said


def test_a_search_finds_what_python_finds(client, wanted):
    answers = client.post("/search", json={"query": QUESTIONS, "limit": 4}).json()["answers"]
    for answer, question, hits in zip(answers, QUESTIONS, wanted.hits, strict=True):
        assert answer["query"] == question
        assert [each["id"] for each in answer["hits"]] == [each.id for each in hits]
        assert [each["score"] for each in answer["hits"]] == pytest.approx([each.score for each in hits], abs=1e-5)
    only = client.post(
        "/search", json={"query": TEXTS[3], "only": "bm25", "where": {"metadata.lang": "en"}, "limit": 1}
    ).json()
    assert only["answers"][0]["hits"][0]["payload"]["text"] == TEXTS[3]
    none = client.post("/search", json={"query": "x", "where": "metadata.lang=de"}).json()["answers"][0]
    assert none["hits"] == [] and "metadata.lang" in none["why_none"]
    assert none["warnings"] == [f"no chunk found: {none['why_none']}"]
    large = client.post("/search", json={"query": "x", "where": {"metadata.lang": 2**53 + 1}}).json()["answers"][0]
    assert large["why_none"].startswith(f"no chunk has metadata.lang={2**53 + 1}:")


def batches(client):
    """How many batches there were, and of how many texts."""
    told = client.get("/metrics").text
    return [float(re.search(rf"batch_texts_{each} (\S+)", told)[1]) for each in ("count", "sum")]


def test_requests_that_come_together_are_one_batch_and_each_client_gets_its_own(client, wanted):
    def ask(at):
        time.sleep(at % 3 / 100)
        return vectors(asked(client, TEXTS[at], "fused:document"))[0]

    before = batches(client)
    with ThreadPoolExecutor(len(TEXTS)) as clients:
        rows = list(clients.map(ask, range(len(TEXTS))))
    np.testing.assert_allclose(np.stack(rows), wanted.documents["fused"], atol=2e-6)
    count, texts = (now - then for now, then in zip(batches(client), before, strict=True))
    assert texts == len(TEXTS) and count < len(TEXTS)
    assert 'code="200",path="/v1/embeddings"' in client.get("/metrics").text


@pytest.mark.parametrize(
    ("path", "said", "status", "told"),
    [
        ("/v1/embeddings", {"model": "ada-002", "input": "x"}, 404, "use fused, a, b"),
        ("/v1/embeddings", {"model": "fused", "input": [[1, 2], [3]]}, 400, "check_embedding_ctx_length=False"),
        ("/v1/embeddings", {"model": "fused", "input": ["x", " "]}, 400, "text 1 is empty"),
        ("/v1/embeddings", {"model": "fused", "input": []}, 400, "pass one or more"),
        ("/v1/embeddings", {"model": "fused", "input": "x", "dimensions": 7}, 400, "drop it"),
        ("/v1/embeddings", {"model": "fused"}, 400, "`input`"),
        ("/v1/embeddings", {"model": "fused", "input": "x", "sise": 1}, 400, "`sise`"),
        ("/search", {"query": "x", "top_k": 3}, 400, "a request has query, limit, weights, only"),
        ("/v1/embeddings", {"model": "fused", "input": ["x"] * 2049}, 413, "at most 2,048"),
        ("/v1/embeddings", b'{"model": "fused", "input": "' + b"x" * MOST_BYTES, 413, "4 MiB"),
        ("/v1/embeddings", b"[" * 100_000, 400, "not a request"),
        ("/v1/embeddings", b'{"model": "fused", "input": "\\ud800"}', 400, "not a request"),
        ("/search", {"query": ""}, 400, "the query is empty"),
        ("/search", {"query": "x", "limit": 0}, 400, "limit: expected a whole number"),
        ("/search", {"query": "x", "limit": 1 << 40}, 400, "set a lower one"),
        ("/search", {"query": "x", "sparse_share": 3}, 400, "sparse_share"),
        ("/search", {"query": "x", "where": "no.such=1"}, 400, "no.such"),
        ("/search", {"query": "x", "where": ["a=1"] * 101}, 400, "at most 100"),
        ("/search", {"query": "x", "where": {"a": ["1"] * 101}}, 400, "at most 100"),
        ("/search", {"query": "x", "where": "a" + " " * 200_000 + "b"}, 400, "give KEY=VALUE"),
        ("/search", {"query": "x", "where": "a=b" + " " * 200_000 + "c"}, 400, "no chunk has 'a'"),
        ("/search", {"query": "x", "rerank": True}, 400, "start the service with --rerank MODEL"),
        ("/serch", {}, 404, "use /v1/embeddings"),
    ],
)
def test_what_cannot_be_answered_is_said_in_the_form_of_openai(client, path, said, status, told):
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status and told in answer.json()["error"]["message"]


def test_a_page_in_a_browser_reaches_nothing(client):
    """Neither by a name of its own that leads here, nor by a form, which cannot send JSON."""
    assert client.get("/v1/models", headers={"Host": "evil.example:80"}).status_code == 403
    assert client.post("/search", content=b'{"query": "x"}', headers={"Content-Type": "text/plain"}).status_code == 415
    answer = client.get("/search")
    assert answer.status_code == 405 and answer.headers["allow"] == "POST"
    assert answer.json()["error"]["message"] == "GET /search: Method Not Allowed: use POST"


def test_who_breaks_off_is_not_missed(client):
    with socket.create_connection(("127.0.0.1", client.base_url.port)) as line:
        line.sendall(HEAD + b"{")
    assert client.get("/health").json()["status"] == "ok"


@pytest.mark.nightly
def test_who_is_slow_is_told_so_and_keeps_nobody(client):
    with socket.create_connection(("127.0.0.1", client.base_url.port)) as line:
        line.sendall(HEAD + b"{")
        assert vectors(asked(client, "x")).shape[0] == 1
        line.settimeout(20)
        assert line.recv(99).startswith(b"HTTP/1.1 408")


def test_a_key_and_a_run_without_a_store(place, settings):
    wanted = interlock.encode(place / "runs" / "plain", QUESTIONS, settings=settings).dense["fused"]
    words = place / "runs" / "plain", "--config", place / "interlock.toml", "--waiting", "3"
    process, port = started(*words, env={"INTERLOCK_SERVE_KEY": "s3cret"})
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            assert client.get("/health").status_code == 200
            assert client.get("/v1/models").status_code == 401
            assert asked(client, "x").status_code == 401
            client.headers["Authorization"] = "Bearer s3cret"
            np.testing.assert_allclose(vectors(asked(client, QUESTIONS)), wanted, atol=2e-6)
            assert asked(client, ["x"] * 4).status_code == 413
            refused = client.post("/search", json={"query": "x"})
            assert refused.status_code == 400 and "wrote no store" in refused.json()["error"]["message"]
    finally:
        process.kill()
        process.communicate()


def test_a_store_that_is_not_whole_is_served_with_a_word(place, wanted, tmp_path):
    manifest = shutil.copytree(place / "store", tmp_path / "store") / "docs" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "unfinished": True}))
    process, _ = started(tmp_path / "store", "--config", place / "interlock.toml")
    process.send_signal(signal.SIGTERM)
    assert "warning: docs is not whole: finish run stored" in process.communicate(timeout=30)[1]


def test_the_door_is_not_opened_wide_without_a_key_and_not_twice(place):
    words = ("serve", place / "runs" / "plain", "--config", place / "interlock.toml")
    assert "set INTERLOCK_SERVE_KEY" in command(*words, "--host", "0.0.0.0", check=2).stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = command(*words, "--port", taken.getsockname()[1], check=2).stderr
        assert said.endswith("cannot listen there (another program does): choose another with --port N\n")


def test_what_is_accepted_sends_without_waiting_for_receipts():
    with listening("127.0.0.1", 0) as at, socket.create_connection(at.getsockname()), at.accept()[0] as line:
        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


class Slow:
    """A service whose work waits to be let go."""

    reranks, dims, batch = False, {"v": 2}, 256

    def __init__(self):
        self.go, self.seen, self.fault = threading.Event(), [], None

    def encode(self, texts, side, only):
        self.go.wait(10)
        self.seen.append(list(texts))
        if self.fault:
            raise self.fault
        return SimpleNamespace(
            dense={"v": np.zeros((len(texts), 2), np.float32)}, read=[1] * len(texts), cut=[{}] * len(texts)
        )


def door_of(service, waiting):
    return Door(service, waiting, Admission("", local=True))


async def posted(client, *texts):
    return await client.post("/v1/embeddings", json={"model": "v", "input": list(texts)})


async def waits(door, texts):
    while door._batcher.waiting != texts:
        await asyncio.sleep(0.005)


def client_of(door):
    return httpx.AsyncClient(transport=httpx.ASGITransport(door.app), base_url="http://localhost")


async def test_what_would_wait_too_long_is_refused_at_once():
    service = Slow()
    door = door_of(service, 4)
    async with client_of(door) as client:
        first = asyncio.create_task(posted(client, "1"))
        while door._batcher.waiting or not door._batcher._thread.is_alive():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)  # it is being computed
        others = [asyncio.create_task(posted(client, text)) for text in "abcd"]
        await waits(door, 4)
        refused = await posted(client, "e")
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        service.go.set()
        assert [each.status_code for each in await asyncio.gather(first, *others)] == [200] * 5
    door.close()
    assert service.seen == [["1"], ["a", "b", "c", "d"]]


@pytest.mark.parametrize(
    ("fault", "status"),
    [(UsageError("--only: no"), 400), (UnavailableError("gone"), 503), (ZeroDivisionError(), 500)],
)
async def test_a_fault_is_told_to_who_asked_and_the_service_goes_on(fault, status, capfd):
    service = Slow()
    door, service.fault = door_of(service, 4), fault
    service.go.set()
    async with client_of(door) as client:
        assert (await posted(client, "1")).status_code == status
        service.fault = None
        assert (await posted(client, "1")).status_code == 200
    door.close()
    assert ("ZeroDivisionError" in capfd.readouterr().err) == (status == 500)


def test_batches_are_of_one_kind_in_the_order_of_their_oldest_and_bounded():
    go, seen = threading.Event(), []

    def work(key, texts):
        go.wait(10)
        seen.append((key, list(texts)))
        if "bad" in texts:
            raise ValueError("bad")
        return [f"{key}{text}" for text in texts]

    batcher = RequestBatcher(work, 4, 12)
    first = batcher.submit("k", ["0"])
    while batcher.waiting:
        time.sleep(0.005)
    futures = [
        batcher.submit(key, texts)
        for key, texts in [("k", ["1", "2"]), ("j", ["x"]), ("k", ["3"]), ("k", ["4", "5"]), ("j", ["bad"])]
    ]
    left = batcher.submit("k", ["left"])
    assert left.cancel() and batcher.waiting == 7
    with pytest.raises(QueueFull):
        batcher.submit("k", ["6"] * 6)
    large = batcher.submit("k", ["l"] * 5)
    go.set()
    assert first.result(9) == ["k0"]
    assert [each.result(9) for each in futures[:4]] == [["k1", "k2"], ["jx"], ["k3"], ["k4", "k5"]]
    with pytest.raises(ValueError, match="bad"):
        futures[4].result(9)
    assert large.result(9) == ["kl"] * 5
    batcher.close()
    with pytest.raises(QueueFull):
        batcher.submit("k", ["late"])
    kinds = [("k", ["0"]), ("k", ["1", "2", "3"]), ("j", ["x", "bad"]), ("j", ["x"]), ("j", ["bad"])]
    assert seen == [*kinds, ("k", ["4", "5"]), ("k", ["l"] * 4), ("k", ["l"])]
    with pytest.raises(CancelledError):
        left.result()


def test_a_long_request_lets_short_ones_between_and_a_panic_ends_nobody():
    class Panic(BaseException):
        """As libraries in Rust raise it."""

    go, seen = threading.Event(), []

    def work(key, texts):
        go.wait(10)
        seen.append("".join(texts))
        if "!" in texts:
            raise Panic("index out of bounds")
        return [text.upper() for text in texts]

    batcher = RequestBatcher(work, 2, 12)
    long = batcher.submit("k", "abcdef")
    while batcher.waiting == 6:
        time.sleep(0.005)
    short, left, bad = (batcher.submit(key, text) for key, text in [("j", "x"), ("k", "left"), ("k", "!")])
    left.cancel()
    assert batcher.waiting == 6 and left not in [each.future for each in batcher._requests]
    go.set()
    with pytest.raises(RuntimeError, match="Panic: index"):
        bad.result(9)
    assert (short.result(9), long.result(9)) == (["X"], list("ABCDEF"))
    assert seen == ["ab", "cd", "x", "!", "ef"]
    batcher.close()


@pytest.mark.parametrize("said", [b"", b"GET /health HTTP/1.1\r\nX: ", HEAD.replace(b"localhost", b"x") + b"{"])
async def test_a_connection_without_a_request_ends_though_bytes_trickle(said, monkeypatch):
    monkeypatch.setattr(connections, "SLOW", 0.3)
    door = door_of(Slow(), 4)
    with listening("127.0.0.1", 0) as at:
        server = server_of(door.app)
        running = asyncio.create_task(server.serve([at]))
        reader, line = await asyncio.open_connection(*at.getsockname())
        line.write(said)
        until = time.monotonic() + 3
        while not (ended := line.transport.is_closing() or reader.at_eof()) and time.monotonic() < until:
            await asyncio.sleep(0.05)
            if said:
                line.write(b"x")
        server.should_exit = True
        line.close()
        await running
    door.close()
    assert ended


async def test_who_takes_nothing_of_an_answer_is_left(monkeypatch):
    monkeypatch.setattr(connections, "SLOW", 0.3)
    large = Response(b"x" * (16 << 20))
    with listening("127.0.0.1", 0) as at:
        server = server_of(large)
        running = asyncio.create_task(server.serve([at]))
        with socket.create_connection(at.getsockname()) as line:
            line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
            await asyncio.sleep(0.2)
            assert len(server.server_state.connections) == 1
            until = time.monotonic() + 3
            while server.server_state.connections and time.monotonic() < until:
                await asyncio.sleep(0.05)
            assert not server.server_state.connections
        server.should_exit = True
        await running


async def test_a_key_is_asked_for_as_http_says():
    door = Door(Slow(), 4, Admission("s3cret", local=False))
    async with client_of(door) as client:
        for given, status in [("Bearer s3cret", 200), ("bearer  s3cret", 200), ("s3cret", 401), ("Basic s3cret", 401)]:
            answer = await client.get("/v1/models", headers={"Authorization": given})
            assert answer.status_code == status, given
        odd = await client.get("/v1/models", headers={"Authorization": "Bearer s3cr\u00e9t".encode()})
        assert odd.status_code == 401
    door.close()


@pytest.mark.parametrize("key", ["two words", "a\nb", "cl\u00e9", "\udcff"])
def test_a_key_that_no_header_can_say_is_refused(key, monkeypatch, call):
    monkeypatch.setenv("INTERLOCK_SERVE_KEY", key)
    code, _, said = call("serve", "no-such-store")
    assert code == ExitCode.USAGE and "set it to another" in said


def test_models_stay_beside_each_other_on_a_gpu(place, wanted, tmp_path):
    shutil.copytree(place / "store", tmp_path / "store")
    settings, moved = load({"devices": "sim:1xT4", "offline": True}, {}, place / "interlock.toml"), []
    with Service(settings, tmp_path / "store", None, None, lambda kind: nullcontext(moved.append)) as service:
        found = service.encode(QUESTIONS, "query", "fused").dense["fused"]
        assert (found * wanted.questions["fused"]).sum(axis=1).min() > 0.999
        assert [each.id for each in service.answer(QUESTIONS[:1], Ask(4), reranked=False).answers[0].hits]
    kinds = [(type(each).__name__, each.model, each.device) for each in moved if hasattr(each, "device")]
    loaded = [("ModelMoved", "a", "cuda:0"), ("ModelMoved", "b", "cuda:0")]
    assert kinds[:2] == loaded and ("ModelUnloaded", "a", "cuda:0") in kinds
    assert not [each for each in moved if isinstance(each, ResidueFound)]


def test_a_search_over_http_knows_no_option_that_is_not_declared_for_all():
    assert {*SearchRequest.__struct_fields__} - {"query", "limit"} <= SearchRules.__annotations__.keys()
