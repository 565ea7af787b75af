"""An upload with several requests under way at once: the same points, one mark, one patience, one end."""

import json
import shutil
import threading
import urllib.request
from collections import Counter
from itertools import pairwise

import pytest

import interlock
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.record.journal import upload_of
from interlock.engine.targets.connection import Patience, TransientError, begun
from interlock.engine.targets.target import deliver
from tests.edge_bridge import EdgeBridge, refusal, serving
from tests.edge_grpc import serving_grpc
from tests.test_target import Memory, made
from tests.test_upload import POINTS, assert_same, in_store, on_server
from tests.uploads import ROWS, Uploads, killed, opened

STREAMS = 4


def read(url):
    """All that a server holds of a collection, as any client asks for it."""

    def asked(path, **body):
        request = urllib.request.Request(f"{url}{POINTS}{path}", json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["result"]

    ids = [each["id"] for each in asked("/scroll", limit=1000, with_payload=False, with_vector=False)["points"]]
    return asked("", ids=ids, with_payload=True, with_vector=True)


class SideBySide(Memory):
    """A target whose upserts end once so many are under way, which it proves."""

    def __init__(self, streams):
        super().__init__()
        self.meeting = threading.Barrier(streams)

    def upsert(self, points, size):
        self.meeting.wait(60)
        super().upsert(points, size)


def test_so_many_upserts_are_under_way_at_once_and_are_acknowledged_in_order():
    target, points, done = SideBySide(STREAMS), made(7 * 8 * STREAMS), []
    deliver(points, target, lambda batch, _: done.append([point.id for point in batch]), STREAMS)
    assert [point for each in done for point in each] == [point.id for point in points]
    assert len(target.held) == len(points) and len(done) < 8 * STREAMS  # several are told of together


def test_no_more_points_are_read_than_are_under_way():
    target, ahead, read = Memory(), [], []

    def points():
        for point in made(200):
            read.append(point)
            yield point

    deliver(points(), target, lambda batch, _: ahead.append(len(read)) or read.__delitem__(slice(len(batch))), STREAMS)
    assert max(ahead) <= 7 * STREAMS + 1 and not read


def test_what_is_too_large_goes_in_halves_behind_what_is_under_way():
    points, done = made(60), []
    target = Memory(largest=3 * max(len(json.dumps(dict(each.payload))) + each.vector_bytes for each in points))
    deliver(points, target, lambda batch, _: done.extend(point.id for point in batch), STREAMS)
    assert done == [point.id for point in points] and sorted(target.held) == sorted(done)
    assert max(target.sizes) <= 3


def test_while_requests_pause_no_other_is_tried_and_it_is_told_once():
    now, slept, told, pausing = [0.0], [], [], threading.Event()
    asking, resting = threading.Barrier(2), threading.Barrier(3)

    def sleep(seconds):
        slept.append(seconds)
        pausing.set()
        resting.wait(60)  # all are here before it passes
        now[0] = 7.0

    patience, asked = Patience(60, told.append, lambda: now[0], sleep, lambda: 0.0), []

    def attempt():
        asked.append(now[0])
        if now[0] == 0:
            asking.wait(60)
            raise TransientError("503", 7)

    with patience.noted_by(lambda *_: None):
        both = [begun(lambda: patience.insist(attempt)) for _ in range(2)]
        assert pausing.wait(60)
        patience.insist(attempt)
        for each in both:
            each.result(60)
    assert (asked, slept, len(told), patience.retries) == ([0.0] * 2 + [7.0] * 3, [7.0] * 3, 1, 2)


def test_a_pause_ends_with_the_patience_and_nobody_tries_again():
    tried, pausing = [], threading.Event()
    patience = Patience(10**6, lambda _: pausing.set())

    def attempt():
        tried.append(1)
        raise TransientError("429", 10**5)

    one = begun(lambda: patience.insist(attempt))
    assert pausing.wait(60)
    patience.end()
    with pytest.raises(TransientError):
        one.result(60)
    assert tried == [1]


@pytest.mark.parametrize("grpc", [False, True])
def test_the_same_points_arrive_each_once_by_either_way(exported, upload, grpc):
    upload.bridge.strict = {"enabled": True, "upsert_max_batchsize": 8}
    with serving_grpc(upload.bridge) as port:
        report = upload(streams=STREAMS, grpc_port=port if grpc else 0)
    assert (report.sent, report.requests, report.transport) == (ROWS, -(-ROWS // 8), "grpc" if grpc else "rest")
    assert_same(on_server(upload.bridge), in_store(exported))
    assert {*Counter(upload.bridge.collections["docs"].sent).values()} == {1}
    assert all(one <= other for one, other in pairwise(upload.progress)) and upload.progress[-1] == ROWS
    assert upload(streams=STREAMS).sent == 0


def test_what_may_pass_is_repeated_on_every_stream(exported, upload):
    upload.bridge.strict = {"enabled": True, "upsert_max_batchsize": 8}
    asked = []

    def before(method, path, *_):
        if (method, path) == ("PUT", POINTS):
            asked.append(path)
            return refusal(503, "starting") if len(asked) % 3 == 0 else None
        return None

    upload.bridge.before = before
    report = upload(streams=STREAMS)
    assert report.retries == len(asked) // 3 and report.sent == ROWS
    assert_same(on_server(upload.bridge), in_store(exported))
    assert {*Counter(upload.bridge.collections["docs"].sent).values()} == {1}


@pytest.mark.parametrize("at", [1, 6])
def test_one_that_is_refused_ends_all_and_the_next_upload_sends_what_lacks(exported, upload, tmp_path, monkeypatch, at):
    monkeypatch.setattr("interlock.engine.targets.upload.MOST_POINTS", 8)
    upload.bridge.strict = {"enabled": True, "upsert_max_batchsize": 8}
    asked = []

    def before(method, path, body, _):
        if (method, path) == ("PUT", POINTS):
            asked.append(json.loads(body)["points"][0]["id"])
            if len(asked) == at:
                return refusal(400, "no room")
            return refusal(503, "starting", **{"Retry-After": "10000"}) if len(asked) == at + 1 else None
        return None

    upload.bridge.before = before
    with pytest.raises(InterlockError, match=r"refuses an upsert \(400: no room\): fix that"):
        upload(streams=STREAMS, patience=10**6)
    docs = upload.bridge.collections["docs"]
    assert len(asked) <= at + 2 * STREAMS
    there, begun = len(docs.sent), upload_of(tmp_path)
    assert begun and begun.latest.rows <= [each.id for each in opened(upload.run).points()].index(asked[at - 1])
    upload.bridge.before = lambda *_: None
    assert upload(streams=STREAMS).sent == ROWS - there
    assert_same(on_server(upload.bridge), in_store(exported))
    assert {*Counter(docs.sent).values()} == {1}


def test_one_that_is_killed_among_four_and_goes_on_with_one_leaves_what_an_undisturbed_upload_does(upload, tmp_path):
    """Real processes, and both servers read by plain HTTP."""
    whole, run = EdgeBridge(tmp_path / "whole"), tmp_path / "run"
    shutil.copytree(upload.run, run)
    Uploads(whole, upload.run, tmp_path / "whole-uploads")()
    upload.bridge.strict = {"enabled": True, "upsert_max_batchsize": 8}
    with serving(upload.bridge) as url, serving(whole) as other:
        assert killed(["upload", run, "--qdrant", url, "--streams", STREAMS], upload.bridge, 6, "taken", POINTS)
        taken = len(upload.bridge.collections["docs"].sent)
        upload.directory = run / "uploads"
        begun = upload_of(run)
        assert begun and begun.to.flags == ("--streams", "4") and begun.latest.rows <= taken
        (report,) = interlock.upload(run, url)
        assert 0 < report.sent <= ROWS - 8
        assert read(url) == read(other)
    assert {*Counter(upload.bridge.collections["docs"].sent).values()} == {1}
    whole.close()


@pytest.mark.parametrize("streams", [0, 17, True, "4"])
def test_streams_that_there_cannot_be_are_refused(upload, streams):
    with pytest.raises(UsageError, match=r"streams.*pass a whole number from 1 to 16"):
        interlock.upload(upload.run, "http://localhost:6333", streams=streams)
