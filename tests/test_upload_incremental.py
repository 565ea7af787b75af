"""An incremental upload sends what differs, by the digest that each point has on the server: what that shows, and what
it does not. Without it the server holds what it always did.
"""

import json
import shlex
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import qdrant_edge as edge

import interlock
from interlock.engine.errors import InterlockError
from interlock.engine.targets.layout import MARK
from interlock.engine.vectors.bm25 import BM25
from interlock.engine.vectors.points import DIGEST, Point, Terms, arranged, digested
from tests.builders import corpus
from tests.edge_bridge import EdgeBridge, refusal, serving
from tests.edge_grpc import UPSERT, serving_grpc
from tests.local_bridge import LocalBridge
from tests.test_upload import POINTS, assert_same, in_store, on_server
from tests.uploads import ROWS, Uploads, embedded, killed, opened


@pytest.fixture(scope="module")
def changed(exported, tiny_a):
    """The same corpus with another text in row 7; all other vectors are those of the first run."""
    return embedded(exported, tiny_a, "changed", changed=[7], keep="both", reuse=str(exported / "runs" / "one"))


def held(bridge):
    """What is there, as any client reads it: by id the payload and the vectors."""
    collection = bridge.collections["docs"]
    return {each["id"]: each for each in collection.points(sorted({*collection.sent}))}


def without_digests(upload):
    """The points on the server, each of which has one."""
    points = on_server(upload.bridge)
    assert {len(payload.pop(DIGEST)) for payload, _ in points.values()} == {32}
    return points


def update(upload, operation, *about):
    """Let another client change points."""
    upload.bridge.collections["docs"].shard.update(getattr(edge.UpdateOperation, operation)(*about))


@pytest.mark.parametrize("kind", [EdgeBridge, LocalBridge])
def test_of_a_corpus_with_one_other_text_one_point_is_sent(exported, changed, tmp_path, kind):
    bridge = kind(tmp_path / "bridge")
    upload = Uploads(bridge, exported / "runs" / "one", tmp_path / "uploads")
    first = upload(incremental=True)
    assert (first.sent, first.unchanged, upload.told) == (ROWS, 0, [])
    before, average = held(bridge), bridge.collections["docs"].metadata[MARK]["bm25_average_length"]
    bridge.collections["docs"].sent.clear()
    report = upload(changed, incremental=True)
    assert (report.rows, report.sent, report.unchanged, report.points) == (ROWS, 1, ROWS - 1, ROWS)
    assert report.bytes < first.bytes / 30 and upload.progress[-1] == ROWS
    (point,) = bridge.collections["docs"].sent
    (now,) = held(bridge).values()
    assert before[point]["payload"]["text"] + " and more words" == now["payload"]["text"]
    assert now["payload"][DIGEST] != before[point]["payload"][DIGEST]
    assert 1 < opened(changed).bm25.average_length / average < 1.01  # so that the BM25 of the others stays
    assert bridge.collections["docs"].metadata[MARK]["bm25_average_length"] == average
    bridge.close()


def test_points_are_those_of_the_store_but_for_the_digest_and_an_upload_without_it_leaves_none(exported, upload):
    upload(incremental=True)
    assert_same(without_digests(upload), in_store(exported))
    assert upload().sent == ROWS
    assert_same(on_server(upload.bridge), in_store(exported))


def test_a_collection_uploaded_without_digests_is_sent_once_and_that_is_told(upload, changed):
    upload()
    assert upload(incremental=True).sent == ROWS
    assert upload.told == ["docs was last uploaded without --incremental: points without a digest are sent"]
    report = upload(changed, incremental=True)
    assert (report.sent, report.unchanged, len(upload.told)) == (1, ROWS - 1, 1)


def test_what_another_client_overwrote_is_sent_again_and_what_it_deleted(upload, exported):
    upload(incremental=True)
    first, second, *_ = sorted(on_server(upload.bridge))
    update(upload, "overwrite_payload", [first], {"text": "theirs"})
    update(upload, "delete_points", [second])
    report = upload(incremental=True)
    assert (report.sent, report.unchanged) == (2, ROWS - 2)
    assert_same(without_digests(upload), in_store(exported))


def test_vectors_changed_below_their_digest_are_found_in_the_sample_alone_and_mended_without_it(
    exported, upload, monkeypatch
):
    upload(incremental=True)
    point = sorted(on_server(upload.bridge))[5]
    other = on_server(upload.bridge)[point][1]["m"][::-1]
    update(upload, "update_vectors", [edge.PointVectors(point, {"m": other})])
    with pytest.raises(InterlockError, match=rf"vector 'm' of point {point} .*repeat it without --incremental"):
        upload(incremental=True)
    monkeypatch.setattr("interlock.engine.targets.upload.SAMPLE", 1)
    assert upload(incremental=True).sent == 0
    upload()
    assert_same(on_server(upload.bridge), in_store(exported))


def test_an_upload_that_was_killed_sends_nothing_twice(exported, upload, tmp_path):
    """Real processes, killed where the server has taken a request and nobody noted it; the last upload is that of
    another machine, without their journal."""
    run = tmp_path / "run"
    shutil.copytree(upload.run, run)
    upload.bridge.strict = {"enabled": True, "upsert_max_batchsize": 8}
    with serving(upload.bridge) as url, serving_grpc(upload.bridge) as port:
        words = ["upload", run, "--qdrant", url, "--incremental", "--grpc-port"]
        assert killed([*words, 0], upload.bridge, 4, "taken", POINTS)  # the first asks for digests at the same path
        assert killed([*words, port], upload.bridge, 3, "answered", UPSERT)
    report = upload(incremental=True)
    assert (report.sent, report.unchanged) == (ROWS - 6 * 8, 6 * 8)
    assert {*Counter(upload.bridge.collections["docs"].sent).values()} == {1}
    assert_same(without_digests(upload), in_store(exported))


def test_another_upload_at_the_same_time_ends_it_and_the_next_one_sends_what_is_the_others(upload, exported, tmp_path):
    upload.bridge.strict = {"enabled": True, "upsert_max_batchsize": 16}
    other = Uploads(upload.bridge, exported / "runs" / "other", tmp_path / "elsewhere")
    asked = []

    def meddle(request):
        asked.append(request)
        if [(each.method, each.url.path) for each in asked].count(("PUT", POINTS)) == 2:
            upload.seen = lambda _: None
            assert other(incremental=True).sent == ROWS

    upload.seen = meddle
    with pytest.raises(InterlockError, match=r"another upload .*writes to docs"):
        upload(incremental=True)
    assert upload(incremental=True).sent > 16
    assert {payload["metadata"].get("told") for payload, _ in on_server(upload.bridge).values()} == {None}


def test_a_server_that_lets_nobody_list_points_and_few_be_read_at_a_time_is_asked_by_ids(upload, changed):
    upload(incremental=True)
    scroll = f"{POINTS}/scroll"
    upload.bridge.before = lambda _, path, *__: refusal(403, "no scrolling") if path == scroll else None
    upload.bridge.collections["docs"].strict |= {"enabled": True, "read_rate_limit": 7}
    assert upload(changed, incremental=True).sent == 1


def test_points_of_chunks_that_are_gone_are_pruned_as_ever(upload, exported):
    upload(incremental=True)
    report = upload(exported / "runs" / "two", incremental=True, prune=True)
    assert (report.pruned, report.points, report.sent + report.unchanged) == (ROWS - 40, 40, 40)
    assert upload(exported / "runs" / "two", incremental=True).unchanged == 40


def test_a_dry_run_says_what_goes_and_the_command_what_went_and_no_reader_shows_a_digest(
    exported, changed, upload, tmp_path, call
):
    upload(incremental=True)
    numbers = tmp_path / "numbers.prom"
    with serving(upload.bridge) as url:
        words = ["upload", changed, "--qdrant", url, "--grpc-port", 0, "--incremental"]
        code, out, err = call(*words, "--dry-run")
        assert (code, out.startswith(f"docs: 1 point, {ROWS - 1} unchanged, ")) == (0, True), (out, err)
        (plan,) = json.loads(call(*words, "--dry-run", "--json")[1])
        code, out, err = call(*words, "--metrics", numbers)
        assert (code, f"{ROWS} rows there, {ROWS - 1} unchanged, 1 point sent by REST in" in out) == (0, True), err
        (report,) = (json.loads(each.read_text()) for each in changed.glob("uploads/*.json"))
        assert (plan["requests"], plan["bytes"]) == (report["requests"], report["bytes"])
        assert f"interlock_upload_points_unchanged {ROWS - 1}.0\n" in numbers.read_text()
        shutil.rmtree(changed / "uploads")
        with interlock.Searcher(url, only="bm25") as searcher:
            hit, *_ = searcher.search("more words", limit=3)
        assert hit.payload["text"].endswith("and more words") and DIGEST not in hit.payload
        code, _, err = call("search", url, "words", "--only", "bm25", "--filter", "nosuch=1")
        assert (code, DIGEST in err, "metadata.lang" in err) == (2, False, True), err


def test_a_run_that_is_uploaded_incrementally_stays_so_where_it_is_continued(upload, tmp_path, tiny_a, call):
    chunks = corpus(tmp_path / "in", {"Docs": {"a.jsonl": ["one text", "another"]}})
    words = ["run", chunks, "--roster", tiny_a, "--out", tmp_path / "runs", "--no-ui", "--run-id", "a", "--incremental"]
    code, _, err = call(*words[:-1], "--streams", 3)
    assert (code, "--streams is how a run is uploaded to a server: add --qdrant URL" in err) == (2, True), err
    code, _, err = call(*words)
    assert (code, "--incremental is how a run is uploaded to a server: add --qdrant URL" in err) == (2, True), err
    with serving(upload.bridge) as url:
        upload.bridge.before = lambda _, path, *__: refusal(400, "no") if path.endswith("/points") else None
        code, _, err = call(*words, "--streams", 3, "--qdrant", url)
        assert (code, f"--qdrant {url} --incremental --streams 3\n" in err) == (1, True), err
        upload.bridge.before = lambda *_: None
        journal = tmp_path / "runs" / "a" / "journal.jsonl"
        journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))  # not closed: it was killed
        again = call("ctl", tmp_path / "runs" / "a", "status")[1].partition("continue it with interlock ")[2]
        assert again.endswith(f"--resume --qdrant {url} --incremental --streams 3\n"), again
        code, _, err = call(*shlex.split(again))
        assert (code, "2 rows there, 0 unchanged, 2 points sent" in err) == (0, True), err
    assert all(DIGEST in payload for payload, _ in on_server(upload.bridge).values())


def test_a_field_of_the_same_name_is_no_digest():
    assert arranged({DIGEST: "theirs", "lang": "en"}, "flat") == {"lang": "en", "metadata": {DIGEST: "theirs"}}


def made(**changes):
    vectors = {"a": np.arange(1, 4, dtype=np.float32)}
    terms = {"t": Terms(np.array([1, 7]), np.array([0.5, 1], np.float32))}
    return replace(Point("p", {"text": "x"}, vectors, terms, {"k": np.ones((2, 2), np.float16)}), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"payload": {"text": "y"}},
        {"payload": {"text": "x", "page": 1}},
        {"vectors": {"a": np.array([1, 2, np.nextafter(np.float32(3), 4)], np.float32)}},
        {"vectors": {"b": np.arange(1, 4, dtype=np.float32)}},
        {"vectors": {}},
        {"sparse": {"t": Terms(np.array([1, 8]), np.array([0.5, 1], np.float32))}},
        {"sparse": {"t": Terms(np.array([1, 7]), np.array([0.5, 2], np.float32))}},
        {"sparse": {BM25: Terms(np.array([1, 7]), np.array([0.5, 1], np.float32))}},
        {"sparse": {}},
        {"tokens": {"k": np.ones((1, 4), np.float16)}},
        {"tokens": {"k": np.full((2, 2), 2, np.float16)}},
        {"tokens": {}},
    ],
)
def test_a_point_of_another_payload_number_name_or_shape_has_another_digest(changes):
    assert digested(made(**changes)).payload[DIGEST] != digested(made()).payload[DIGEST]


def test_keys_in_another_order_and_wider_indices_have_the_same_digest():
    one = made(payload={"text": "x", "metadata": {"a": 1, "b": 2.0}})
    terms = {"t": Terms(np.array([1, 7], np.int32), np.array([0.5, 1], np.float32))}
    other = made(payload={"metadata": {"b": 2.0, "a": 1}, "text": "x"}, sparse=terms)
    assert digested(other).payload[DIGEST] == digested(one).payload[DIGEST]
