"""Uploads over gRPC: the same points as by REST, the same patience, and REST wherever gRPC does not do it.

A real gRPC server of this machine has the messages that qdrant-client ships and the engine behind `edge_bridge`; what
goes by REST goes to the same engine.
"""

import json
import shutil
import socket
import ssl
import subprocess
import time
import traceback
from collections import Counter

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from qdrant_client import grpc as api
from qdrant_client.conversions.conversion import grpc_to_payload

from interlock.engine.errors import InterlockError, UnavailableError, UsageError
from interlock.engine.targets.collection import ServerCollection
from interlock.engine.targets.connection import Address, ApiKey, Patience
from interlock.engine.targets.grpc_port import GrpcPort
from interlock.engine.targets.layout import CollectionLayout
from interlock.engine.targets.server import QdrantServer
from interlock.engine.targets.target import deliver
from interlock.engine.vectors.points import Point, Terms, for_client, for_grpc
from tests.builders import interlock as command
from tests.edge_bridge import refusal, serving
from tests.edge_grpc import GET, UPSERT, serving_grpc
from tests.test_upload import on_server
from tests.uploads import ROWS, URL, Uploads, bridged, killed, transport

Code = grpc.StatusCode
POINTS = "/collections/docs/points"


@pytest.fixture
def port(upload):
    with serving_grpc(upload.bridge) as port:
        yield port


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def failing(times, code, words="no", after=0, path=UPSERT, **trailing):
    """A server that gives this code to so many calls over gRPC, from the one behind `after` on."""
    calls = [0]

    def before(method, at, *_):
        if (method, at) != ("GRPC", path):
            return None
        calls[0] += 1
        return (code, trailing, words.encode()) if after < calls[0] <= after + times else None

    return before


def upserts(bridge):
    """How often points went by each way."""
    ways = Counter(bridge.requests)
    return ways["GRPC", UPSERT], ways["PUT", POINTS]


def plain(bridge, collection="docs"):
    """Every point as text, with the types of its payload."""
    found = bridge.collections[collection]
    return {each["id"]: json.dumps(each, sort_keys=True) for each in found.points(sorted(set(found.sent)))}


def test_points_are_the_same_bit_for_bit_as_those_that_went_by_rest(upload, port, tmp_path):
    report = upload(grpc_port=port)
    assert upserts(upload.bridge) == (report.requests, 0)
    assert (report.transport, report.rows, report.points, report.compared) == ("grpc", ROWS, ROWS, ROWS)
    assert upload.told == [f"docs: points go over gRPC to localhost:{port}"]
    with bridged(tmp_path / "other") as bridge:
        by_rest = Uploads(bridge, upload.run, tmp_path / "by-rest")()
        assert by_rest.transport == "rest" and by_rest.bytes > report.bytes
        assert plain(upload.bridge) == plain(bridge)


def test_a_second_upload_asks_for_no_way_and_says_so(upload, port):
    upload(grpc_port=port)
    again = upload(grpc_port=port)
    assert (again.sent, again.transport) == (0, "none")


JSONS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(
    payload=st.dictionaries(st.text(), JSONS, max_size=4),
    seed=st.integers(0, 99),
    width=st.sampled_from([1, 31, 32, 5000]),
)
def test_a_point_is_read_back_from_its_message_with_every_type_and_every_bit(payload, seed, width):
    rng = np.random.default_rng(seed)
    dense, tokens = rng.standard_normal(width, np.float32), rng.standard_normal((3, 5)).astype(np.float16)
    terms = Terms(np.array([0, 7, 2**32 - 1]), rng.random(3, np.float32))
    point = Point("0" * 31 + "1", payload, {"a": dense}, {"t": terms}, {"late": tokens})
    made = for_grpc(point)
    assert repr(grpc_to_payload(made.payload)) == repr(payload) or grpc_to_payload(made.payload) == payload
    assert json.dumps(grpc_to_payload(made.payload), sort_keys=True) == json.dumps(payload, sort_keys=True)
    vectors = made.vectors.vectors.vectors
    wanted = api.PointStruct(id=made.id, payload=made.payload)
    wanted.vectors.vectors.vectors["a"].dense.data.extend(dense.tolist())
    wanted.vectors.vectors.vectors["t"].sparse.indices.extend(terms.indices.tolist())
    wanted.vectors.vectors.vectors["t"].sparse.values.extend(terms.values.tolist())
    several = wanted.vectors.vectors.vectors["late"].multi_dense.vectors
    for token in tokens:
        several.add().data.extend(token.astype(np.float32).tolist())
    assert {name: each.SerializeToString() for name, each in vectors.items()} == {
        name: each.SerializeToString() for name, each in wanted.vectors.vectors.vectors.items()
    }


def dotted(row, **payload):
    return Point(f"00000000-0000-0000-0000-{row:012}", payload, {"a": np.full(8, row + 1, np.float32)})


def test_over_gRPC_a_number_takes_four_bytes_and_by_REST_the_decimals_of_a_float32():
    vectors = np.random.default_rng(0).standard_normal((20, 1000), np.float32)
    points = [Point(dotted(row).id, {}, {"a": vector}) for row, vector in enumerate(vectors)]
    assert all(4000 < for_grpc(each).ByteSize() < 4100 for each in points)
    for point, vector in zip(for_client(points).points, vectors, strict=True):
        numbers = np.array(json.loads(point.model_dump_json())["vector"]["a"], np.float32)
        np.testing.assert_array_equal(numbers, vector)
        assert len(point.model_dump_json()) < 13 * 1000


def nested(depth, value=1):
    for level in range(depth):
        value = {"in": value} if level % 5 else [value]
    return value


def test_what_no_message_holds_goes_by_rest_and_its_neighbours_over_gRPC(tmp_path):
    largest, least = 2**64 - 1, -(2**63)
    points = [dotted(row, number=row) for row in range(6)]
    points[3] = dotted(3, deep=[{"number": largest}], other=least, text=2**64)
    points[5] = dotted(5, number=5, deep=nested(100))
    points.append(dotted(6, number=6, deep=nested(30)))
    layout = CollectionLayout({"a": 8}, [], {}, {})
    with bridged(tmp_path / "bridge") as bridge, serving_grpc(bridge) as port:
        with QdrantServer(Address.parse(URL), None, Patience(0), transport(bridge)) as server:
            server.create("docs", layout.request)
            with ServerCollection(server, "docs", layout) as target:
                target.choose_way(port, lambda _: None)
                deliver(points, target)
                assert (target.transport, upserts(bridge)) == ("grpc+rest", (1, 1))
        payloads = {each["id"]: each["payload"] for each in bridge.collections["docs"].points([p.id for p in points])}
        assert payloads[points[3].id] == {"deep": [{"number": largest}], "other": least, "text": str(2**64)}
        assert [payloads[points[row].id]["number"] for row in (0, 1, 2, 4, 5, 6)] == [0, 1, 2, 4, 5, 6]
        assert [payloads[points[row].id]["deep"] for row in (5, 6)] == [nested(100), nested(30)]


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.INTERNAL, Code.ABORTED, Code.UNKNOWN])
def test_what_may_pass_is_tried_again_with_longer_and_longer_pauses(upload, port, code):
    upload.bridge.before = failing(2, code, "busy")
    report = upload(grpc_port=port)
    assert (report.transport, report.retries, report.sent) == ("grpc", 2, ROWS)
    assert upload.clock.slept[:2] == [0.25, 0.5]
    assert f"gRPC {code.name}: busy" in upload.told[1]


def test_a_server_that_says_when_to_come_back_is_left_alone_until_then_and_never_given_up_for_rest(upload, port):
    upload.bridge.before = failing(5, Code.RESOURCE_EXHAUSTED, "too many requests", **{"retry-after": "11"})
    report = upload(grpc_port=port)
    assert (report.transport, upload.clock.slept) == ("grpc", [11.0] * 5)
    upload.bridge.before = failing(10**6, Code.RESOURCE_EXHAUSTED, "too many requests")
    with bridged(upload.directory / "bridge") as bridge, serving_grpc(bridge) as other:
        bridge.before = failing(10**6, Code.RESOURCE_EXHAUSTED, "too many requests")
        with pytest.raises(UnavailableError, match=r"within 100 s of asking .last: gRPC RESOURCE_EXHAUSTED: too many"):
            Uploads(bridge, upload.run, upload.directory / "more")(grpc_port=other)


@pytest.mark.parametrize("status", ["Acknowledged", "WaitTimeout", "ClockRejected", "UnknownUpdateStatus"])
def test_what_a_server_only_took_note_of_is_asked_for_again(upload, port, status):
    result = api.UpdateResult(status=api.UpdateStatus.Value(status))
    content = api.PointsOperationResponse(result=result).SerializeToString().decode("latin-1")
    upload.bridge.before = failing(2, Code.OK, content)
    report = upload(grpc_port=port)
    assert (report.retries, report.transport) == (2, "grpc")
    assert upload.told[1].startswith(("('an upsert is only ", "('an answer of another form"))


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (Code.INVALID_ARGUMENT, InterlockError, r"refuses an upsert \(gRPC INVALID_ARGUMENT: no\): fix that"),
        (Code.FAILED_PRECONDITION, InterlockError, r"refuses an upsert \(gRPC FAILED_PRECONDITION: no\)"),
        (Code.OUT_OF_RANGE, InterlockError, r"refuses an upsert \(gRPC OUT_OF_RANGE: no\)"),
        (Code.UNAUTHENTICATED, UsageError, r"refuses this key \(gRPC UNAUTHENTICATED: no\): set QDRANT_API_KEY"),
        (
            Code.PERMISSION_DENIED,
            UsageError,
            r"PERMISSION_DENIED: no\) for an upsert, which takes write access",
        ),
    ],
)
def test_what_would_be_refused_again_is_told_at_once(upload, port, code, kind, says):
    upload.bridge.before = failing(1, code)
    with pytest.raises(kind, match=says):
        upload(grpc_port=port)
    assert (upload.clock.slept, upserts(upload.bridge)) == ([], (1, 0))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (Code.RESOURCE_EXHAUSTED, "Received message larger than max (90001 vs. 90000)"),
        (Code.OUT_OF_RANGE, "Error, decoded message length too large: found 90001 bytes, the limit is: 90000 bytes"),
        (Code.UNKNOWN, "Received http2 header with status: 413"),
    ],
)
def test_a_message_that_is_too_large_is_halved_and_so_are_those_after_it(upload, port, code, words):
    sizes = []

    def before(method, path, body, headers):
        if path != UPSERT:
            return None
        sizes.append(len(body))
        return (code, {}, words.encode()) if len(body) > 60_000 else None

    upload.bridge.before = before
    report = upload(grpc_port=port)
    assert (report.transport, report.retries, report.sent) == ("grpc", 0, ROWS)
    assert max(sizes) > 60_000 >= sizes[-1]
    assert set(Counter(upload.bridge.collections["docs"].sent).values()) == {1}


def test_the_limit_of_a_real_grpc_server_is_found_and_a_point_beyond_it_is_told(upload):
    with serving_grpc(upload.bridge, most=40_000) as port:
        assert upload(grpc_port=port).transport == "grpc"
    upload.bridge.collections.pop("docs").close()
    with (
        serving_grpc(upload.bridge, most=500) as port,
        pytest.raises(InterlockError, match=r"takes no request of this size .*larger than max.*: raise what it allows"),
    ):
        upload(grpc_port=port)


def test_where_gRPC_goes_silent_in_the_middle_and_rest_does_not_the_rest_goes_by_rest(upload, port):
    upload.bridge.strict = {"enabled": True, "upsert_max_batchsize": 16}
    upload.bridge.before = failing(10**6, Code.UNAVAILABLE, "gone", after=2)
    report = upload(grpc_port=port)
    assert (report.transport, report.sent, report.points) == ("grpc+rest", ROWS, ROWS)
    assert upserts(upload.bridge) == (2 + 3, 4)
    assert set(Counter(upload.bridge.collections["docs"].sent).values()) == {1}
    said = "docs: gRPC does not do it (gRPC UNAVAILABLE: gone): the rest goes by REST"
    assert upload.told.count(said) == 1 == sum("goes by REST" in text for text in upload.told)


def test_a_server_whose_port_is_closed_in_the_middle_is_uploaded_to_by_rest(upload):
    """The connection itself is lost, and nothing listens there any more."""
    upload.bridge.strict = {"enabled": True, "upsert_max_batchsize": 30}
    server = serving_grpc(upload.bridge)
    port = server.__enter__()
    acknowledged = upload.progress

    class Closing(list):
        def append(self, done):
            if done == 30:
                server.__exit__(None, None, None)
            acknowledged.append(done)

    upload.progress = Closing()
    report = upload(grpc_port=port)
    assert (report.transport, report.sent, upserts(upload.bridge)) == ("grpc+rest", ROWS, (1, 2))


def test_silence_that_ends_is_not_counted_together(upload, port):
    """Each time twice in a row, and three are needed."""
    upload.bridge.strict = {"enabled": True, "upsert_max_batchsize": 16}
    calls = [0]

    def before(method, path, *_):
        if path == UPSERT:
            calls[0] += 1
            return (Code.UNAVAILABLE, {}, b"busy") if calls[0] % 3 else None
        return None

    upload.bridge.before = before
    report = upload(grpc_port=port)
    assert (report.transport, report.retries) == ("grpc", 12)


def test_where_rest_does_not_answer_either_both_are_waited_for(upload, port):
    down = [True]

    def before(method, path, *_):
        if path == UPSERT and down[0]:
            return Code.UNAVAILABLE, {}, b"down"
        return (
            refusal(503, "down") if method == "GET" and path == "/" and upserts(upload.bridge)[0] and down[0] else None
        )

    upload.bridge.before = before
    with pytest.raises(UnavailableError, match=r"within 100 s of asking .last: gRPC UNAVAILABLE: down"):
        upload(grpc_port=port)
    assert upserts(upload.bridge)[1] == 0 and sum(upload.clock.slept) > 50
    down[0] = False
    assert upload(grpc_port=port).transport == "grpc"


def test_a_server_that_is_started_again_is_found_again_over_gRPC(upload):
    """The connection is lost with the server, for longer than the one pause of a client that keeps its own."""
    upload.bridge.strict = {"enabled": True, "upsert_max_batchsize": 30}
    servers, down, sleep = [serving_grpc(upload.bridge)], [False], upload.clock.sleep
    port = servers[0].__enter__()

    def before(method, path, *_):
        return refusal(503, "down") if down[0] and method != "GRPC" else None

    class Closing(list):
        def append(self, done):
            if done == 30 and len(servers) == 1:
                servers[0].__exit__(None, None, None)
                down[0] = True

    def slept(seconds):
        time.sleep(0.3)
        sleep(seconds)
        if len(upload.clock.slept) == 6:
            servers.append(serving_grpc(upload.bridge, port))
            servers[1].__enter__()
            down[0] = False

    upload.bridge.before, upload.progress, upload.clock.sleep = before, Closing(), slept
    try:
        report = upload(grpc_port=port, patience=1000)
    finally:
        servers[1].__exit__(None, None, None)
    assert (report.transport, report.sent, upserts(upload.bridge)) == ("grpc", ROWS, (3, 0))


def test_where_nothing_listens_points_go_by_rest_and_that_is_told(upload):
    port = free_port()
    report = upload(grpc_port=port)
    assert (report.transport, report.sent, report.retries) == ("rest", ROWS, 0)
    (told,) = upload.told
    assert told.startswith(f"docs: points go by REST, not over gRPC to localhost:{port} (gRPC UNAVAILABLE: ")


@pytest.mark.parametrize("code", [Code.UNIMPLEMENTED, Code.UNAUTHENTICATED, Code.NOT_FOUND])
def test_a_port_that_does_not_know_the_collection_gets_no_point(upload, port, code):
    upload.bridge.before = failing(1, code, path=GET)
    assert upload(grpc_port=port).transport == "rest"
    assert f"(gRPC {code.name}: no)" in upload.told[0]


def test_the_port_of_another_server_with_a_collection_of_this_name_gets_no_point(exported, upload, tmp_path):
    with bridged(tmp_path / "other") as other, serving_grpc(other) as port:
        Uploads(other, exported / "runs" / "two", tmp_path / "others")()
        sent = list(other.collections["docs"].sent)
        assert upload(grpc_port=port).transport == "rest"
        assert other.collections["docs"].sent == sent
        assert upload.told == [f"docs: points go by REST, not over gRPC to localhost:{port} (its docs is another one)"]


def test_a_call_that_the_server_does_not_have_goes_by_rest_at_once(upload, port):
    upload.bridge.before = failing(10**6, Code.UNIMPLEMENTED)
    report = upload(grpc_port=port)
    assert (report.transport, report.retries, upserts(upload.bridge)) == ("rest", 0, (1, 1))


def test_an_upload_that_is_killed_again_and_again_is_finished_by_the_same_command(upload, port, tmp_path):
    """Real processes, each killed at another upsert over gRPC."""
    run = tmp_path / "run"
    shutil.copytree(upload.run, run)
    upload.bridge.strict = {"enabled": True, "upsert_max_batchsize": 8}
    whole = Uploads(upload.bridge, upload.run, tmp_path / "whole")
    with serving(upload.bridge) as url:
        words = ["upload", run, "--qdrant", url, "--grpc-port", port, "--alias", "docs"]
        for at, side in ((1, "answered"), (2, "taken"), (1, "lost"), (3, "answered")):
            assert killed(words, upload.bridge, at, side, UPSERT)
            assert upload.bridge.requests[-1] == ("GRPC", UPSERT)
            assert not list(run.glob("uploads/*.json"))
        said = command(*words)
    assert f"{ROWS} rows there" in said.stdout and "over gRPC in" in said.stdout
    (target,) = upload.bridge.collections
    assert ("PUT", f"/collections/{target}/points") not in upload.bridge.requests
    assert {*Counter(upload.bridge.collections[target].sent).values()} == {1}
    by_rest = whole(alias="whole")
    assert plain(upload.bridge, target) == plain(upload.bridge, by_rest.collection)


def test_a_key_is_sent_over_gRPC_and_is_in_no_file_and_in_no_word_that_is_said(
    upload, port, tmp_path, call, monkeypatch
):
    """The server refuses with the key in its words, as one that echoes its request might; and one request fails."""
    canary = "canary-51e8b07d2f"
    monkeypatch.setenv("QDRANT_API_KEY", canary)
    run = tmp_path / "run"
    shutil.copytree(upload.run, run)
    said, keys, echo = [], set(), []

    def before(method, path, body, headers):
        if method == "GRPC":
            keys.add(headers.get("api-key"))
        return (echo[0], {}, f"bad key {headers['api-key']}".encode()) if path == UPSERT and echo else None

    upload.bridge.before = before
    with serving(upload.bridge) as url:
        words = ("upload", run, "--qdrant", url, "--grpc-port", port, "--patience", "0")
        for echo[:] in (
            [Code.PERMISSION_DENIED],
            [Code.INVALID_ARGUMENT],
            [Code.RESOURCE_EXHAUSTED],
            [Code.UNIMPLEMENTED],
            [],
        ):
            said.append(call(*words))
    assert keys == {canary}
    assert [code for code, _, _ in said] == [2, 1, 5, 0, 0]
    assert all("***" in err for _, _, err in said[:4])
    assert not [text for _, *texts in said for text in texts if canary in text]
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert len(files) > 10
    assert not [each for each in files if canary.encode() in each.read_bytes()]
    upload.bridge.collections.pop("docs").close()
    echo[:] = [Code.INVALID_ARGUMENT]
    with pytest.raises(InterlockError) as failed:
        upload(key=canary, grpc_port=port)
    assert canary not in "".join(traceback.format_exception(failed.value))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A key and a certificate of this machine, which nobody knows."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not there to make a certificate with")
    exported = tmp_path_factory.mktemp("tls")
    files = ["-keyout", exported / "key.pem", "-out", exported / "cert.pem"]
    about = ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, *about]
    subprocess.run(words, check=True, capture_output=True)
    return exported / "key.pem", exported / "cert.pem"


def test_a_https_url_means_tls_for_gRPC_too_and_no_key_goes_to_whom_nobody_vouches_for(
    upload, certificate, monkeypatch, capfd
):
    upload()
    key, cert = certificate
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])
    address, seen = Address.parse("https://localhost:6333"), []
    upload.bridge.before = lambda method, path, body, headers: seen.append(headers.get("api-key"))
    metadata = upload.bridge.collections["docs"].info()["config"]["metadata"]

    def objection(port):
        server = QdrantServer(address, ApiKey("sesame"), Patience(0), transport(upload.bridge))
        with server, GrpcPort(server, port) as points:
            return points.objection("docs", metadata)

    with serving_grpc(upload.bridge, tls=credentials) as port:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        assert objection(port).startswith("gRPC UNAVAILABLE: ") and seen == []
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert objection(port) == "" and seen == ["sesame"]
    with serving_grpc(upload.bridge) as port:
        assert objection(port).startswith("gRPC UNAVAILABLE: ") and seen == ["sesame"]


def test_what_the_environment_vouches_for_counts_for_a_server_of_this_machine_too(upload, certificate, monkeypatch):
    key, cert = certificate
    (tls := ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)).load_cert_chain(cert, key)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1")  # none is between a process and its own machine
    with serving(upload.bridge, tls) as url:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        with pytest.raises(UsageError, match=r"CERTIFICATE_VERIFY_FAILED.*: check the URL, or set SSL_CERT_FILE"):
            asked(url)
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert asked(url) == "1.19.0"


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (
            "SSL_CERT_FILE",
            "/absent/of-all.pem",
            r"SSL_CERT_FILE holds no certificates .*No such file.*: set it to a file that does",
        ),
        ("SSL_CERT_FILE", __file__, r"SSL_CERT_FILE holds no certificates .*: set it to a file that does"),
        ("HTTPS_PROXY", "socks5://127.0.0.1:1", r"the proxy .* cannot be used: fix HTTPS_PROXY.*httpx\[socks\]"),
        ("HTTPS_PROXY", "ftp://u:hunter2@127.0.0.1", r"the proxy .* cannot be used: fix HTTPS_PROXY"),
        ("HTTPS_PROXY", "http://u:hunt#er2@127.0.0.1", r"the proxy .* cannot be used: fix HTTPS_PROXY"),
    ],
)
def test_certificates_and_proxies_of_the_environment_that_cannot_be_used_are_told_by_their_variable(
    name, value, told, monkeypatch
):
    for each in ("SSL_CERT_DIR", "https_proxy", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=told) as refused:
        asked("https://192.0.2.1:6333")
    assert "hunt" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_asks_for_a_password_is_told_as_that(scheme, upload, monkeypatch):
    for each in ("SSL_CERT_FILE", "SSL_CERT_DIR", "https_proxy", "http_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(each, raising=False)
    upload.bridge.before = lambda *_: (407, {"Proxy-Authenticate": "Basic"}, b"")
    with serving(upload.bridge) as url:
        monkeypatch.setenv(f"{scheme}_proxy", url)
        with pytest.raises(UsageError, match=r"the proxy before .* asks for a password \(407\): put one into"):
            asked(f"{scheme}://192.0.2.1:6333")


def asked(url):
    """What a server says it is."""
    with QdrantServer(Address.parse(url), None, Patience(0)) as server:
        return server.version()


def test_a_key_that_would_be_readable_on_the_way_is_not_sent(upload, port):
    with QdrantServer(Address("http://127.0.0.1:6333", False), ApiKey("sesame"), Patience(0)) as server:
        seen = []
        upload.bridge.before = lambda method, path, body, headers: seen.append(headers.get("api-key"))
        with GrpcPort(server, port) as points:
            points.objection("docs", {})
    assert seen == [None]


def test_no_proxy_is_between_a_process_and_its_own_machine(upload, port, monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert upload(grpc_port=port).transport == "grpc"


@pytest.mark.parametrize(
    ("url", "asked", "port"),
    [
        ("http://localhost", None, 6334),
        ("https://example.org:6333", None, 6334),
        ("http://localhost:7333", None, 0),
        ("https://example.org:443/qdrant", None, 0),
        ("https://example.org/qdrant", None, 0),
        ("http://localhost:7333", 7334, 7334),
        ("http://localhost:6333", 0, 0),
    ],
)
def test_gRPC_is_looked_for_beside_the_port_of_rest_alone_or_where_it_is_said_to_be(url, asked, port):
    assert Address.parse(url).grpc_port(asked) == port


def test_the_command_says_how_points_went_and_keeps_it_in_the_report(upload, port, call, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(upload.run, run)
    with serving(upload.bridge) as url:
        code, out, err = call("upload", run, "--qdrant", url, "--grpc-port", port)
        assert (code, f"{ROWS} points sent over gRPC in" in out) == (0, True)
        assert f"docs: points go over gRPC to 127.0.0.1:{port}" in err
        (report,) = run.glob("uploads/*.json")
        assert json.loads(report.read_text())["transport"] == "grpc"
        shutil.rmtree(run / "uploads")
        code, out, err = call("upload", run, "--qdrant", url)
        assert (code, f"{ROWS} points sent by REST in" in out, "gRPC" in err) == (0, True, False)
        for wrong in ("65536", "-1", "x"):
            assert call("upload", run, "--qdrant", url, "--grpc-port", wrong)[0] == 2
    assert on_server(upload.bridge)
