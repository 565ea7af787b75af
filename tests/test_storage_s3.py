"""A real S3 server, with all that goes wrong on the way to one. Needs s3fs and moto[server], which `make install`
leaves out for the half minute that they take."""

import threading
import time

import pytest

from interlock import Settings, embed
from interlock.engine import parsers, storage
from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.corpus import read_corpus
from interlock.engine.errors import UnavailableError, UsageError
from tests.builders import corpus, sentences

s3fs = pytest.importorskip("s3fs")
server = pytest.importorskip("moto.server")
serving = pytest.importorskip("werkzeug.serving")
DENIED = "<Error><Code>{0}</Code><Message>The provided token is not good: {0}.</Message></Error>"


class Faulty:
    """The server behind a network that does what `faults` say with answers about contents, one after the other."""

    def __init__(self):
        self.app = server.DomainDispatcherApplication(server.create_backend_app)
        self.faults = []

    def __call__(self, environ, start):
        is_object = environ["REQUEST_METHOD"] in ("GET", "PUT") and environ["PATH_INFO"].count("/") > 1
        fault = self.faults.pop(0) if self.faults and is_object else ""
        if fault == "slow":
            time.sleep(0.3)
        if fault in ("503", "403"):
            code = {"503": "SlowDown", "403": "ExpiredToken"}[fault]
            start(f"{fault} {code}", [("Content-Type", "application/xml")])
            return [DENIED.format(code).encode()]
        if fault != "cut":
            return self.app(environ, start)
        said = []
        body = b"".join(self.app(environ, lambda status, headers, *_: said.append((status, headers))))
        start(*said[0])
        return [body[: len(body) // 2]]  # and the connection ends


@pytest.fixture(scope="module")
def running():
    app = Faulty()
    made = serving.make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield app, f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    thread.join()


@pytest.fixture
def s3(running, monkeypatch):
    app, url = running
    for name, value in (
        ("ACCESS_KEY_ID", "AKIAOPENSESAME"),
        ("SECRET_ACCESS_KEY", "open-sesame"),
        ("ENDPOINT_URL", url),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(storage, "FIRST", 0.01)
    app.faults.clear()
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem()
    if not system.exists("bucket"):
        system.mkdir("bucket")
    yield app, system
    s3fs.S3FileSystem.clear_instance_cache()


def read(url):
    found = read_corpus(discover(parsers.place(url)), lambda _: None)
    return found.fingerprint(), [rows.points.tolist() for rows in found.rows]


def test_what_is_read_behind_503_slow_and_broken_answers_is_what_is_there(s3, tmp_path):
    app, system = s3
    corpus(tmp_path / "in", {"Docs": {"a.jsonl": sentences(50), "b.jsonl": sentences(50, start=100)}})
    system.put(str(tmp_path / "in"), "bucket/in", recursive=True)
    app.faults[:] = ["503", "503", "slow", "cut", "503", "cut"]
    assert read("s3://bucket/in") == read(str(tmp_path / "in"))
    assert not app.faults


def test_an_expired_key_and_a_missing_bucket_are_one_line_each(s3):
    app, system = s3
    system.pipe("bucket/Docs.jsonl", b'{"text": "one"}\n')
    app.faults[:] = ["403"] * 9
    with pytest.raises(
        UnavailableError, match=r"^no access to s3://bucket/Docs.jsonl \(.*ExpiredToken.*\): check the keys"
    ):
        read("s3://bucket/Docs.jsonl")
    assert len(app.faults) == 8
    with pytest.raises(UsageError, match=r"^s3://no-such-bucket/x does not exist: name a file or a directory"):
        read("s3://no-such-bucket/x")


def test_a_run_from_s3_exports_to_s3_what_one_from_disk_exports_to_disk_and_holds_no_key(s3, tmp_path, tiny_a, call):
    app, system = s3
    corpus(tmp_path / "in", {"Docs": {"a.jsonl": sentences(50)}})
    system.put(str(tmp_path / "in"), "bucket/run", recursive=True)
    settings = {"models": {"tiny-a": {"source": str(tiny_a)}}, "roster": "tiny-a", "devices": "cpu", "export": "npy"}
    for name, place in (("disk", str(tmp_path / "in")), ("s3", "s3://bucket/run")):
        embed(place, Settings(out=tmp_path / "runs", run_id=name, **settings))
    assert call("export", tmp_path / "runs" / "disk", "--to", tmp_path / "files")[0] == 0
    app.faults[:] = ["", "503", "cut", "503", "", "cut", "slow", "cut"]
    code, out, told = call("export", tmp_path / "runs" / "s3", "--to", "s3://bucket/files")
    assert code == 0 and not app.faults, told
    made = {file.name: file.read_bytes() for file in (tmp_path / "files" / "Docs").iterdir()}
    sent = {name.rpartition("/")[2]: system.cat_file(name) for name in system.find("bucket/files/Docs")}
    assert made.keys() == sent.keys()
    assert {name for name in made if made[name] != sent[name]} <= {"export.json", "manifest.json"}  # each names its run
    assert call("export", tmp_path / "runs" / "s3", "--to", "s3://bucket/files")[0] == 0  # over its own
    system.pipe_file("bucket/files/Docs/fused.npy", b"another's")
    code, _, told = call("export", tmp_path / "runs" / "s3", "--to", "s3://bucket/files")
    assert (code, "was not written by an export, or changed since" in told) == (2, True), told
    for number in (1, 2):
        run_id = f"part{number}"
        embed("s3://bucket/run", Settings(out=tmp_path / "runs", run_id=run_id, shard=f"{number}/2", **settings))
        assert call("export", tmp_path / "runs" / run_id, "--to", "s3://bucket/parts")[0] == 0
        assert call("export", tmp_path / "runs" / run_id, "--to", "s3://bucket/parts")[0] == 0
    parts = {name.rpartition("/")[2] for name in system.find("bucket/parts/Docs")}
    kinds = (("fused", "npy"), ("export", "json"))
    assert {f"{name}-0000{number}-of-00002.{end}" for number in (1, 2) for name, end in kinds} <= parts
    code, _, told = call("export", tmp_path / "runs" / "s3", "--to", "s3://bucket/parts")
    assert (code, "of other texts, settings or shards" in told) == (2, True), told
    written = [file.read_bytes() for file in (tmp_path / "runs").rglob("*") if file.is_file()]
    for secret in (b"AKIAOPENSESAME", b"open-sesame"):
        assert not any(secret in data for data in (*written, *sent.values(), out.encode(), told.encode()))
