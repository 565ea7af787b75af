"""Uploads to a server: what arrives, what is tried again and what is refused at once, and that an end is an end.

Requests go through the real client into the engine behind `edge_bridge`, with a scripted server in front of it where
one has to fail.
"""

import fcntl
import json
import os
import secrets
import shlex
import shutil
import signal
import traceback
from collections import Counter

import httpx
import jsonschema
import numpy as np
import pytest
import qdrant_edge as edge

import interlock
from interlock.console.main import main
from interlock.engine.errors import InterlockError, UnavailableError, UsageError
from interlock.engine.flows import upload as upload_flow
from interlock.engine.record import journal
from interlock.engine.record.journal import INTERRUPTED, UploadJournal, upload_of
from interlock.engine.targets.connection import Address, read_key
from interlock.engine.targets.layout import MARK
from interlock.engine.vectors.bm25 import BM25
from interlock.engine.vectors.points import DIGEST
from tests.builders import ROOT, corpus
from tests.builders import interlock as command
from tests.edge_bridge import refusal, serving
from tests.openapi import OpenApi
from tests.uploads import ROWS, URL, embedded, killed

POINTS = "/collections/docs/points"
OPENAPI = ROOT.parent / "shared" / "data" / "qdrant-openapi-1.19.json"
LIVE = os.environ.get("QDRANT_TEST_URL", "")


def in_store(exported, name="one"):
    """The points of a run's embedded store by id, as the engine gives them: payload and vectors."""
    shard = edge.EdgeShard.load(str(exported / "stores" / name / "docs"), None)
    records, _ = shard.scroll(edge.ScrollRequest(limit=1000, with_payload=True, with_vector=True))
    shard.close()
    return {str(each.id): (each.payload, each.vector) for each in records}


def on_server(bridge, collection="docs"):
    shard = bridge.collections[collection].shard
    records, _ = shard.scroll(edge.ScrollRequest(limit=1000, with_payload=True, with_vector=True))
    return {str(each.id): (each.payload, each.vector) for each in records}


def numbers(vector):
    if isinstance(vector, edge.SparseVector):
        order = np.argsort(vector.indices)
        return np.array([vector.indices, vector.values])[:, order].tolist()
    return vector


def assert_same(found, wanted):
    """Points of two engines are the same: bit for bit but for the last ones of what each brought to unit length."""
    assert found.keys() == wanted.keys()
    for point, (payload, vectors) in wanted.items():
        assert found[point][0] == payload
        assert found[point][1].keys() == vectors.keys(), payload["text"]
        for name, vector in vectors.items():
            other = numbers(found[point][1][name])
            exact = isinstance(vector, edge.SparseVector) or isinstance(vector[0], list)
            np.testing.assert_allclose(other, numbers(vector), rtol=0, atol=0 if exact else 1e-7)


def failing(times, answer, method="PUT", path=POINTS):
    """A server that gives this answer, or raises it, to the first requests for a path, and then does its work."""
    left = [times]

    def before(asked, at, body, headers):
        if (asked, at) != (method, path) or not left[0]:
            return None
        left[0] -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    return before


def losing(request):
    """The first such request is done, and its answer lost."""
    lost = [refusal(502, "bad gateway")]
    return lambda *asked: lost.pop() if asked == request and lost else None


def test_every_point_arrives_as_the_embedded_store_has_it(exported, upload):
    report = upload()
    assert_same(on_server(upload.bridge), in_store(exported))
    vectors = {name for _, each in on_server(upload.bridge).values() for name in each}
    assert vectors == {"m", "a", "fused", "m-sparse", "keywords", "m-tokens", BM25}
    assert (report.rows, report.points, report.stale, report.sent) == (ROWS, ROWS, 0, ROWS)
    assert report.compared == ROWS and report.worst_cosine > 1 - 1e-5
    made = upload.bridge.collections["docs"].asked
    assert made["sparse_vectors"] == {"keywords": {}, "m-sparse": {}, BM25: {"modifier": "idf"}}
    assert {name: one["distance"] for name, one in made["vectors"].items()} == {
        "m": "Cosine",
        "a": "Cosine",
        "fused": "Cosine",
        "m-tokens": "Dot",
    }
    assert str(exported) not in json.dumps(made)


def test_each_point_goes_in_once_with_a_wait_and_the_index_is_built_at_the_end(upload):
    asked = []
    upload.seen = lambda request: asked.append((request.method, request.url.path, request.url.query))
    upload()
    assert set(Counter(upload.bridge.collections["docs"].sent).values()) == {1}
    assert upload.bridge.collections["docs"].asked["hnsw_config"] == {"m": 0}
    assert upload.bridge.collections["docs"].hnsw["m"] == 16
    assert ("PUT", POINTS, b"wait=true") in asked
    kinds = [(method, path) for method, path, _ in asked]
    marked, indexed = (place for place, kind in enumerate(kinds) if kind == ("PATCH", "/collections/docs"))
    assert marked < kinds.index(("PUT", POINTS)) and ("PUT", POINTS) not in kinds[indexed:]


@pytest.mark.parametrize(
    "answer",
    [
        refusal(500, "internal"),
        refusal(503, "starting"),
        refusal(429, "slow down"),
        (200, {}, b"<html>a proxy</html>"),
        (200, {}, b'{"result": {"operation_id": 3, "sta'),
        (200, {}, b'{"result": {"operation_id": 3, "status": "acknowledged"}, "status": "ok", "time": 0.1}'),
        (200, {}, b'{"result": {"operation_id": 3, "status": "wait_timeout"}, "status": "ok", "time": 0.1}'),
        (200, {}, b'{"result": null}'),
    ],
    ids=["500", "503", "429", "html", "truncated", "acknowledged", "wait_timeout", "no_result"],
)
def test_what_may_pass_is_tried_again_with_longer_and_longer_pauses(upload, answer):
    upload.bridge.before = failing(3, answer)
    report = upload()
    assert report.retries == 3
    assert upload.clock.slept[:3] == [0.25, 0.5, 1.0]  # half of 0.5, 1 and 2 s: the dice of these tests show 0
    assert ["attempt 2" in upload.told[0], "attempt 4" in upload.told[2], len(upload.told)] == [True, True, 3]
    assert len(on_server(upload.bridge)) == ROWS


def test_a_server_that_is_not_there_is_asked_for_a_while_that_is_told_and_nothing_is_to_go_on(monkeypatch):
    monkeypatch.setattr(upload_flow, "CHECKING", 0.6)
    told: list[str] = []
    with pytest.raises(UnavailableError) as gone:
        upload_flow.check_server("http://127.0.0.1:9", told.append)
    assert [line.split()[0] for line in told] == ["http://127.0.0.1:9:"] and "the last within 1 s" in told[0]
    assert "continues" not in str(gone.value)


@pytest.mark.parametrize(
    "error", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("cut")]
)
def test_a_connection_that_fails_is_tried_again(upload, error):
    left = [2]

    def fail(request):
        if request.url.path == POINTS and request.method == "PUT" and left[0]:
            left[0] -= 1
            raise error

    upload.seen = fail
    assert upload().retries == 2


def test_an_answer_that_was_lost_costs_a_second_request_and_no_second_point(upload):
    upload.bridge.after = losing(("PUT", POINTS))
    report = upload()
    assert (report.points, report.retries) == (ROWS, 1)


@pytest.mark.parametrize("answered", [False, True])
def test_a_port_of_this_machine_that_refuses_is_told_soon_unless_a_server_answered_there(upload, answered):
    left = [9]

    def refuse(request):
        if left[0] and (request.method == "PUT" or not answered):
            left[0] -= 1
            raise httpx.ConnectError("[Errno 111] Connection refused")

    upload.seen = refuse
    if answered:  # it is started again, and is waited for
        assert upload().retries == 9
        return
    with pytest.raises(UnavailableError, match="nothing listens at http://localhost:6333: start Qdrant there, or"):
        upload()
    assert sum(upload.clock.slept) < 5


def test_a_server_that_says_when_to_come_back_is_left_alone_until_then(upload):
    upload.bridge.before = failing(2, refusal(429, "busy", **{"Retry-After": "17"}))
    upload()
    assert upload.clock.slept[:2] == [17.0, 17.0]


def test_a_server_that_asks_for_more_patience_than_there_is_ends_it_at_once(upload):
    upload.bridge.before = failing(1, refusal(503, "busy", **{"Retry-After": "900"}))
    with pytest.raises(UnavailableError, match=r"did not do its work within 100 s.*last: 503: busy.*or wait until"):
        upload()
    assert upload.clock.slept == []


def test_patience_ends_and_the_next_upload_goes_on(upload):
    upload.bridge.before = failing(10**6, refusal(500, "disk"))
    with pytest.raises(UnavailableError):
        upload(patience=60)
    assert 30 <= sum(upload.clock.slept) <= 60
    upload.bridge.before = lambda *_: None
    assert upload().sent == ROWS


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (400, InterlockError, "refuses an upsert .400: no. fix"),
        (401, UsageError, "set QDRANT_API_KEY"),
        (403, UsageError, "set QDRANT_API_KEY"),
        (404, InterlockError, "refuses an upsert .404"),
        (409, InterlockError, "409"),
        (422, InterlockError, "422"),
        (301, UsageError, "is not a Qdrant server"),
    ],
)
def test_what_would_be_refused_again_is_told_at_once(upload, status, kind, says):
    upload.bridge.before = failing(1, refusal(status, "no"))
    with pytest.raises(kind, match=says.replace(". fix", ".: fix")):
        upload()
    assert upload.clock.slept == []


def test_a_batch_that_is_too_large_is_halved_and_so_are_those_after_it(upload, monkeypatch):
    sizes = []

    def before(method, path, body, headers):
        if (method, path) == ("PUT", POINTS):
            sizes.append(len(body))
            if len(body) > 90_000:
                return refusal(413, "too large")
        return None

    monkeypatch.setattr("interlock.engine.targets.collection.MOST_POINTS", 64)
    upload.bridge.before = before
    report = upload()
    assert len(on_server(upload.bridge)) == report.sent == ROWS
    assert report.retries == 0
    refused = [size for size in sizes if size > 90_000]
    assert 1 < len(refused) < 8 and sizes[-1] <= 90_000
    assert set(Counter(upload.bridge.collections["docs"].sent).values()) == {1}


def test_a_single_point_that_is_too_large_is_told(upload):
    upload.bridge.before = failing(10**6, refusal(413, "too large"))
    with pytest.raises(
        InterlockError, match=r"takes no request of this size \(413: too large\): raise its max_request"
    ):
        upload()


def test_an_interrupted_upload_goes_on_where_it_was_acknowledged(upload, monkeypatch):
    monkeypatch.setattr("interlock.engine.targets.collection.MOST_POINTS", 16)
    monkeypatch.setattr("interlock.engine.targets.upload.UploadJournal.acknowledge", interrupted(3))
    with pytest.raises(KeyboardInterrupt):
        upload()
    monkeypatch.undo()
    again = upload()
    assert again.sent == ROWS - 3 * 16  # the third was taken, and its acknowledgement not written down
    times = Counter(upload.bridge.collections["docs"].sent)
    assert len(times) == ROWS and {*times.values()} == {1}


def test_of_what_was_taken_and_not_acknowledged_that_is_sent_again_which_is_not_there_as_it_would_be_sent(
    exported, upload, monkeypatch
):
    monkeypatch.setattr("interlock.engine.targets.upload.UploadJournal.acknowledge", interrupted(1))
    with pytest.raises(KeyboardInterrupt):
        upload()
    monkeypatch.undo()
    found, docs = on_server(upload.bridge), upload.bridge.collections["docs"]
    gone, told, marked, turned = sorted(found)[:4]
    docs.shard.update(edge.UpdateOperation.delete_points([gone]))
    docs.shard.update(edge.UpdateOperation.set_payload([told], {"text": "theirs"}))
    docs.shard.update(edge.UpdateOperation.set_payload([marked], {DIGEST: "0" * 32}))
    docs.shard.update(
        edge.UpdateOperation.update_vectors([edge.PointVectors(turned, {"m": found[turned][1]["m"][::-1]})])
    )
    docs.sent.clear()
    report = upload()
    assert (sorted(docs.sent), report.sent, report.unchanged) == ([gone, told, marked, turned], 4, None)
    assert_same(on_server(upload.bridge), in_store(exported))
    assert (upload().sent, upload.told) == (0, [])


def interrupted(at):
    acknowledge, calls = UploadJournal.acknowledge, []

    def once(self, rows):
        calls.append(rows)
        if len(calls) == at:
            raise KeyboardInterrupt
        acknowledge(self, rows)

    return once


def test_an_upload_that_is_killed_again_and_again_is_finished_by_the_same_command(exported, upload, tmp_path):
    """Real processes, each killed at another request; `bench/upload.py --kills 50` is the same at random."""
    run = tmp_path / "run"
    shutil.copytree(upload.run, run)
    upload.bridge.strict = {"enabled": True, "upsert_max_batchsize": 8}
    with serving(upload.bridge) as url:
        words = ["upload", run, "--qdrant", url, "--alias", "docs"]
        for at, side in ((4, "answered"), (8, "taken"), (7, "lost"), (18, "answered")):
            assert killed(words, upload.bridge, at, side)
            assert not upload.bridge.aliases
            assert not list(run.glob("uploads/*.json"))
        assert f"{ROWS} rows there" in command(*words).stdout
    (target,) = upload.bridge.collections
    assert upload.bridge.aliases == {"docs": target}
    assert_same(on_server(upload.bridge, target), in_store(exported))
    assert {*Counter(upload.bridge.collections[target].sent).values()} == {1}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_upload_that_is_ended_by_a_signal_says_how_to_go_on(upload, tmp_path, capsys, number, code):
    run = shutil.copytree(upload.run, tmp_path / "run")
    sent = []

    def end(method: str, path: str, *_: object) -> None:
        if (method, path) == ("PUT", POINTS) and not sent.append(path) and len(sent) == 1:
            os.kill(os.getpid(), number)

    upload.bridge.before = end
    with serving(upload.bridge) as url:
        words = ["upload", str(run), "--qdrant", url]
        assert main([*words, "--grpc-port", "0"]) == code
        assert capsys.readouterr().err.splitlines()[-1] == f"next: interlock {shlex.join(words)} --grpc-port 0"
        assert upload_of(run).latest.ended == INTERRUPTED
        assert main(words) == 0


def test_points_that_went_lost_behind_the_journal_are_sent_again(upload):
    upload()
    shard = upload.bridge.collections["docs"].shard
    lost = sorted(on_server(upload.bridge))[:5]
    shard.update(edge.UpdateOperation.delete_points(lost))
    assert upload().sent == ROWS
    assert upload.told == ["docs has fewer points than it acknowledged: all are sent again"]


def test_points_that_went_lost_are_missed_though_others_took_their_place(exported, upload):
    upload()
    shard = upload.bridge.collections["docs"].shard
    for point in sorted(on_server(upload.bridge))[:5]:
        payload, vectors = on_server(upload.bridge)[point]
        shard.update(edge.UpdateOperation.delete_points([point]))
        shard.update(
            edge.UpdateOperation.upsert_points([edge.Point(point.replace(point[:8], "0" * 8), vectors, payload)])
        )
    report = upload()
    assert (report.sent, report.points, report.stale) == (ROWS, ROWS + 5, 5)
    assert upload.told == ["docs has lost points since they were acknowledged: all are sent again"]


def test_a_collection_that_was_deleted_on_the_server_is_made_anew(upload):
    upload()
    upload.bridge.collections.pop("docs").shard.close()
    report = upload()
    assert (report.sent, report.points) == (ROWS, ROWS)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda vectors, payload: payload.update(text="other"), "has another payload"),
        (lambda vectors, payload: payload["metadata"].update(more=1), "has another payload"),
        (lambda vectors, payload: vectors.update(m=vectors["a"]), "vector 'm' of point .* has a cosine of"),
        (lambda vectors, payload: vectors.pop("a"), r"has not the vectors that it should have \(a\)"),
        (lambda vectors, payload: vectors["m-tokens"].pop(), "vector 'm-tokens' of point .* has other numbers"),
        (
            lambda vectors, payload: vectors.update(bm25=edge.SparseVector([1], [0.5])),
            "vector 'bm25' of point .* has other numbers",
        ),
    ],
    ids=["text", "metadata", "dense", "missing", "tokens", "terms"],
)
def test_an_upload_is_not_called_done_where_a_point_is_not_what_was_exported(upload, spoil, says):
    upload()
    point = next(point for point, (payload, _) in on_server(upload.bridge).items() if payload["text"] != "—")
    payload, vectors = on_server(upload.bridge)[point]
    spoil(vectors, payload)
    points = [edge.Point(point, vectors, payload)]
    upload.bridge.collections["docs"].shard.update(edge.UpdateOperation.upsert_points(points))
    with pytest.raises(InterlockError, match=f"differs from the run .*{says}"):
        upload()


def test_points_of_an_earlier_upload_stay_and_are_told(exported, upload):
    upload()
    upload.bridge.collections["docs"].sent.clear()
    report = upload(exported / "runs" / "two")
    assert (report.rows, report.points, report.stale) == (40, ROWS, ROWS - 40)
    assert len(upload.bridge.collections["docs"].sent) == 40


def test_a_journal_of_other_exports_or_a_damaged_one_is_begun_anew(exported, upload):
    upload()
    (path,) = upload.directory.glob("*.jsonl")
    assert upload(exported / "runs" / "two").sent == 40
    assert upload().sent == ROWS
    whole = path.read_bytes()
    path.write_bytes(whole[:30] + b"x" + whole[31:])
    assert upload().sent == ROWS
    path.write_bytes(whole[:-7])  # torn: the last acknowledgement was not written whole
    assert upload().sent == ROWS
    lines = path.read_bytes().splitlines(keepends=True)
    assert all(journal.opened_seal(line) for line in lines)


def test_two_uploads_of_one_collection_do_not_meet(upload):
    upload()
    (path,) = upload.directory.glob("*.jsonl")
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match=r"is in use by another upload: wait for its end"):
            upload()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"title": "nginx", "version": "1.2.3"}, "is not a Qdrant server: check the URL"),
        ({"title": "qdrant - vector search engine", "version": "1.15.4"}, "keeps no metadata.*use 1.16 or newer"),
        ({}, "is not a Qdrant server: check the URL"),
    ],
)
def test_what_is_no_server_or_too_old_a_one_is_told_first(upload, answer, says):
    upload.bridge.before = failing(1, (200, {}, json.dumps(answer).encode()), "GET", "/")
    with pytest.raises(UsageError, match=says):
        upload()
    assert upload.bridge.requests == [("GET", "/")]


def test_a_collection_of_the_same_texts_but_another_meaning_is_refused_and_left_as_it_is(exported, upload, tiny_a):
    upload()
    made = upload.bridge.collections["docs"].asked
    upload.bridge.collections["docs"].metadata["interlock"]["models"][0]["fingerprint"] = "f" * 64
    made["vectors"]["m"]["size"] = 16
    before = list(upload.bridge.requests)
    with pytest.raises(UsageError, match=r"models\[0\].fingerprint was .*vectors.m.size was 16, is now 32.*--alias"):
        upload()
    assert all(method == "GET" for method, _ in upload.bridge.requests[len(before) :])


def test_a_collection_keeps_the_share_of_sparse_lists_that_it_answers_with(upload):
    upload()
    told = upload.bridge.collections["docs"].metadata["interlock"]
    assert told.pop("sparse_share") == 0.25  # as earlier versions left it
    upload()
    assert "sparse_share" not in upload.bridge.collections["docs"].metadata["interlock"]


def test_a_collection_that_somebody_else_made_is_refused(upload):
    upload()
    upload.bridge.collections["docs"].metadata.clear()
    with pytest.raises(UsageError, match=r"was not made by interlock"):
        upload()


def test_a_creation_whose_answer_was_lost_is_taken_up(upload):
    lost = [refusal(502, "bad gateway")]
    upload.bridge.after = lambda method, path: (
        lost.pop() if (method, path) == ("PUT", "/collections/docs") and lost else None
    )
    assert upload().points == ROWS


def test_settings_of_a_script_that_name_a_server_are_told_the_function_that_uploads():
    with pytest.raises(interlock.UsageError, match=r"Settings.qdrant: .* goes by interlock.upload\(run, url"):
        interlock.plan("chunks", interlock.Settings(qdrant="http://localhost:6333"))


def test_a_script_uploads_as_the_command_does_and_hears_of_errors_in_its_words(upload, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(upload.run, run)
    with serving(upload.bridge) as url:
        (report,) = interlock.upload(run, url, alias="docs", indexes={"metadata.lang": "keyword"})
        assert (report.rows, report.alias, upload.bridge.aliases["docs"]) == (ROWS, "docs", report.collection)
        with pytest.raises(interlock.UsageError, match=r"^indexes: 'page:whole' is not KEY:TYPE"):
            interlock.upload(interlock.open_run(run), url, indexes={"page": "whole"})


def test_a_dry_run_tells_points_bytes_and_requests_to_the_byte_and_asks_nobody(exported, upload, call):
    code, out, _ = call("upload", upload.run, "--qdrant", "http://192.0.2.1:1", "--dry-run")
    sent = []
    upload.seen = lambda request: sent.append(len(request.content)) if request.method == "PUT" else None
    report = upload()
    head, configuration = out.split("\n", 1)
    assert code == 0
    assert head.startswith(f"docs: {ROWS} points, ") and head.endswith(" in 1 request by REST")
    assert json.loads(configuration) == upload.bridge.collections["docs"].asked
    assert report.bytes == sent[1]


def test_a_program_reads_one_array_of_reports_or_of_what_would_be_sent(upload, tmp_path, call):
    run = tmp_path / "run"
    shutil.copytree(upload.run, run, ignore=shutil.ignore_patterns("uploads"))
    with serving(upload.bridge) as url:
        code, out, err = call("upload", run, "--qdrant", url, "--json")
        (report,) = json.loads(out)
        assert (code, err, report["rows"], report["collection"]) == (0, "", ROWS, "docs")
        assert report == json.loads(next(run.glob("uploads/*.json")).read_text())
        code, out, _ = call("upload", run, "--qdrant", url, "--json", "--dry-run", "--prune")
        (plan,) = json.loads(out)
        assert (code, plan["points"], plan["prunable"], plan["foreign"]) == (0, ROWS, 0, 0)
        upload.bridge.before = lambda *_: refusal(400, "no")
        code, out, err = call("upload", run, "--qdrant", url, "--json")
        assert (code, json.loads(out), "refuses" in err or "is not a Qdrant server" in err) == (2, [], True)


def test_a_directory_that_is_no_run_and_a_run_without_tables_are_told(exported, tmp_path, call, tiny_a):
    code, _, err = call("upload", tmp_path, "--qdrant", URL)
    assert (code, "is not a run (no journal.jsonl): name the directory of a run" in err) == (2, True)
    run = embedded(exported, tiny_a, "npy", rows=4, export="npy", token_vectors="")
    code, _, err = call("upload", run, "--qdrant", URL)
    assert (code, "points.parquet" in err, "add parquet to --export" in err) == (2, True, True)


def test_an_export_that_was_changed_is_not_uploaded(exported, tmp_path, upload):
    copy = tmp_path / "copy"
    shutil.copytree(upload.run, copy)
    table = copy / "exports" / "Docs" / "points.parquet"
    content = table.read_bytes()
    table.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    with pytest.raises(InterlockError, match=r"was changed after it was delivered"):
        upload(copy)
    assert upload.bridge.requests == [("GET", "/")] * 0


def test_an_alias_is_switched_once_all_is_verified_and_what_it_meant_is_kept(exported, upload):
    first = upload(alias="docs")
    assert first.collection.startswith("docs-") and upload.bridge.aliases == {"docs": first.collection}
    switched = []
    upload.seen = lambda request: switched.append(request.url.path) if request.method == "POST" else None
    second = upload(exported / "runs" / "two", alias="docs")
    assert second.collection != first.collection == second.previous
    assert upload.bridge.aliases == {"docs": second.collection}
    assert len(on_server(upload.bridge, first.collection)) == ROWS
    assert len(on_server(upload.bridge, second.collection)) == 40
    assert switched[-1] == "/collections/aliases" and switched.count("/collections/aliases") == 1
    again = upload(exported / "runs" / "two", alias="docs")
    assert (again.sent, again.previous, again.collection) == (0, "", second.collection)


def test_an_alias_stays_with_the_old_generation_where_the_new_one_is_not_whole(exported, upload):
    first = upload(alias="docs")
    upload.bridge.before = lambda method, path, *_: refusal(500, "no") if path.endswith("/points/count") else None
    with pytest.raises(UnavailableError):
        upload(exported / "runs" / "two", alias="docs")
    assert upload.bridge.aliases == {"docs": first.collection}


def test_an_alias_of_the_name_of_a_collection_and_a_collection_of_the_name_of_an_alias_are_refused(upload):
    upload()
    with pytest.raises(UsageError, match=r"docs is a collection on .* so it cannot be an alias"):
        upload(alias="docs")
    upload.bridge.aliases["docs"] = "other"
    with pytest.raises(UsageError, match=r"docs is an alias of other on .*: pass --alias docs"):
        upload()


def test_another_type_or_quantisation_is_another_generation_and_no_change_of_the_collection_that_is_there(upload):
    made = {
        upload(alias="named", quantisation=kind, vector_type=of).collection
        for kind, of in (("none", "float32"), ("int8", "float32"), ("binary", "float16"))
    }
    assert len(made) == 3
    upload()
    with pytest.raises(UsageError, match=r"vectors.a.datatype was \"float32\", is now \"float16\""):
        upload(vector_type="float16")
    with pytest.raises(UsageError, match=r"vectors.a.quantisation was \"none\", is now \"int8\""):
        upload(quantisation="int8")


def test_halves_are_near_enough_and_token_vectors_are_never_quantised(exported, upload):
    report = upload(vector_type="float16", quantisation="binary")
    assert report.worst_cosine < 1 - 1e-12  # they were rounded
    assert report.worst_cosine > 1 - 1e-5
    vectors = upload.bridge.collections["docs"].asked["vectors"]
    assert vectors["a"]["quantization_config"] == {"binary": {"always_ram": True}}
    assert "quantization_config" not in vectors["m-tokens"] and vectors["m-tokens"]["hnsw_config"] == {"m": 0}


def test_indexes_are_there_before_the_first_point_and_one_of_another_type_is_refused(upload):
    upload(indexes={"metadata.lang": "keyword", "metadata.page": "integer"})
    asked = [path for method, path in upload.bridge.requests if method == "PUT"]
    assert asked == ["/collections/docs", "/collections/docs/index", "/collections/docs/index", POINTS]
    kinds = {key: each["data_type"] for key, each in upload.bridge.collections["docs"].schema.items()}
    assert kinds == {"metadata.lang": "keyword", "metadata.page": "integer"}
    upload(indexes={"metadata.lang": "keyword", "chunk_id": "keyword"})
    assert len(upload.bridge.collections["docs"].schema) == 3
    with pytest.raises(UsageError, match=r"the index of metadata.lang was keyword, is now text"):
        upload(indexes={"metadata.lang": "text"})


def test_limits_of_strict_mode_are_obeyed(upload):
    upload()
    collection = upload.bridge.collections["docs"]
    collection.strict |= {"enabled": True, "upsert_max_batchsize": 7, "condition_max_size": 11}
    (path,) = upload.directory.glob("*.jsonl")
    path.unlink()
    sizes = []

    def note(request):
        body = json.loads(request.content or b"{}")
        sizes.append(
            ("points", len(body["points"]))
            if "points" in body
            else ("ids", len(body["filter"]["must"][0]["has_id"]))
            if "filter" in body
            else ("", 0)
        )

    upload.seen = note
    upload()
    assert max(size for kind, size in sizes if kind == "points") == 7
    assert max(size for kind, size in sizes if kind == "ids") == 11
    collection.strict["max_points_count"] = ROWS - 1
    with pytest.raises(UsageError, match=r"takes 89 points in strict mode, and 90 are to be uploaded: raise"):
        upload()
    collection.strict |= {"max_points_count": ROWS, "max_collection_vector_size_bytes": 999}
    with pytest.raises(UsageError, match=r"takes 999 B of vectors in strict mode, and .* of dense ones"):
        upload()
    collection.strict["enabled"] = False
    assert upload().points == ROWS


def test_indexes_that_are_being_built_are_waited_for_up_to_a_deadline(upload):
    upload()
    collection = upload.bridge.collections["docs"]
    left = [4]

    def before(method, path, *_):
        if (method, path) == ("GET", "/collections/docs"):
            left[0] -= 1
            collection.status = "green" if left[0] <= 0 else "yellow"
        return

    upload.bridge.before = before
    upload.clock.slept.clear()
    upload()
    assert upload.clock.slept == [0.2]
    upload.bridge.before = lambda *_: None
    collection.status = "yellow"
    with pytest.raises(
        UnavailableError, match=r"has all its points, and its indexes are not built after 60 s \(yellow\)"
    ):
        upload(settle=60)
    collection.status = "red"
    with pytest.raises(InterlockError, match=r"failed to build its indexes .ok.: fix that on the server"):
        upload()


@pytest.mark.parametrize("text", ["metadata.lang", ":keyword", "metadata.lang:string", "a:b:uint8"])
def test_an_index_of_a_type_that_there_is_not_is_refused(upload, call, text):
    code, _, err = call("upload", upload.run, "--qdrant", URL, "--index", text)
    assert (code, "name a key and a type, such as metadata.lang:keyword" in err) == (2, True)


def test_a_vector_type_of_whole_numbers_does_not_exist(upload, call):
    code, _, err = call("upload", upload.run, "--qdrant", URL, "--vector-type", "uint8", "--dry-run")
    assert (code, "'uint8' does not exist: choose float32 or float16" in err) == (2, True)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://localhost:6333", "http://localhost:6333"),
        ("https://Example.org", "https://example.org:6333"),
        ("https://example.org:443/qdrant/", "https://example.org:443/qdrant"),
        ("http://[::1]:6334", "http://[::1]:6334"),
    ],
)
def test_a_url_is_told_with_its_port_and_path(text, url):
    assert Address.parse(text).url == url


@pytest.mark.parametrize("text", ["localhost:6333", "store", "ftp://x", "http://", "http://x:99999", "http://[::1"])
def test_what_is_not_a_url_is_refused(text):
    with pytest.raises(UsageError, match=r"is not the URL of a server: name one such as http://localhost:6333"):
        Address.parse(text)


@pytest.mark.parametrize("text", ["https://u:hunter2@x:1", "https://x/?api-key=hunter2", "https://x#hunter2"])
def test_a_url_with_a_secret_in_it_is_refused_and_not_repeated(text):
    with pytest.raises(UsageError, match=r"drop user, password and query") as refused:
        Address.parse(text)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1", "https://example.org"])
def test_a_key_goes_to_this_machine_and_to_where_it_is_encrypted(url):
    key = read_key(Address.parse(url), None, {"QDRANT_API_KEY": "sesame"})
    assert (key.reveal(), repr(key), str(key), f"{[key]}") == ("sesame", "***", "***", "[***]")


@pytest.mark.parametrize("url", ["http://example.org", "http://192.0.2.7:6333", "http://localhost.example.org"])
def test_a_key_is_not_sent_in_the_clear(url):
    with pytest.raises(UsageError, match=r"the key would be readable on the way to .*: use https") as refused:
        read_key(Address.parse(url), None, {"QDRANT_API_KEY": "sesame"})
    assert "sesame" not in str(refused.value)


def test_a_key_is_read_from_a_file_before_the_environment_and_one_line_of_it(tmp_path):
    (file := tmp_path / "key").write_text("  in-file\n")
    address = Address.parse(URL)
    assert read_key(address, file, {"QDRANT_API_KEY": "in-environment"}).reveal() == "in-file"
    assert read_key(address, None, {}) is None
    for content in ("", "two\nlines", "ünicode"):
        file.write_text(content)
        with pytest.raises(UsageError, match=r"holds no key"):
            read_key(address, file, {})
    with pytest.raises(UsageError, match=r"cannot read .*absent"):
        read_key(address, tmp_path / "absent", {})


def test_a_key_is_sent_and_is_in_no_file_and_in_no_word_that_is_said(exported, upload, tmp_path, call, monkeypatch):
    """The server refuses with the key in its words, as one that echoes its request might; and one request fails."""
    canary = "canary-7f3a9d1c5b"
    monkeypatch.setenv("QDRANT_API_KEY", canary)
    (file := tmp_path / "key-elsewhere").write_text(canary)
    run = tmp_path / "run"
    shutil.copytree(upload.run, run)
    said, keys = [], set()
    with serving(upload.bridge) as url:

        def before(method, path, body, headers):
            keys.add(headers.get("api-key"))
            return echo[0](path, headers) if echo else None

        upload.bridge.before = before
        echo = [lambda path, headers: refusal(401, f"bad key {headers['api-key']}")]
        said.append(call("upload", run, "--qdrant", url))
        echo = [lambda path, headers: refusal(500, f"key {headers['api-key']}") if path == POINTS else None]
        said.append(call("upload", run, "--qdrant", url, "--patience", "0", "--api-key-file", file))
        echo = [lambda path, headers: (_ for _ in ()).throw(OSError(canary))] * 0
        said.append(call("upload", run, "--qdrant", url))
    file.unlink()
    assert keys == {canary}
    assert [code for code, _, _ in said] == [2, 5, 0]
    assert "***" in said[0][2] and "***" in said[1][2]
    assert not [text for _, *texts in said for text in texts if canary in text]
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert len(files) > 10
    assert not [each for each in files if canary.encode() in each.read_bytes()]
    with pytest.raises(InterlockError) as failed:
        upload.bridge.before = failing(1, refusal(400, f"what is {canary}"))
        upload(key=canary)
    assert canary not in "".join(traceback.format_exception(failed.value))


def test_every_request_and_every_answer_of_the_bridge_is_as_qdrant_describes_its_api(exported, upload):
    """By the OpenAPI document of a Qdrant release, whose text belongs to its project and is not kept here."""
    if not OPENAPI.exists():
        pytest.skip(f"{OPENAPI} is not there: no request was compared with Qdrant's own description")
    api, seen = OpenApi(json.loads(OPENAPI.read_text())), []

    def note(request):
        api.check(request.method, request.url.path, dict(request.url.params), request.content)
        seen.append(f"{request.method} {request.url.path.replace('docs-', '').count('/')}")

    answer = upload.bridge.answer

    def answered(method, target, body, headers):
        status, more, content = answer(method, target, body, headers)
        if target != "/" and status == 200:
            api.check_answer(method, target.partition("?")[0], content)
        return status, more, content

    upload.bridge.answer, upload.seen = answered, note
    small = exported / "runs" / "two"
    upload(small, alias="docs", indexes={"metadata.lang": "keyword", "metadata.page": "integer"}, quantisation="int8")
    upload.bridge.aliases["docs"] = next(iter(upload.bridge.collections))
    upload(small, alias="docs", vector_type="float16", quantisation="binary")
    upload.bridge.aliases.clear()
    upload()
    assert upload(small, prune=True).pruned == ROWS - 40
    assert len(seen) > 30


def test_a_mark_may_be_taken_away_as_qdrant_describes_it():
    if not OPENAPI.exists():
        pytest.skip(f"{OPENAPI} is not there")
    api, none = OpenApi(json.loads(OPENAPI.read_text())), {"metadata": {MARK: None}}
    api.check("PATCH", "/collections/c", {}, json.dumps(none).encode())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/collections/c/points", {"points": [{"id": -1, "vector": {}}]}),
        ("/collections/c/points", {"point": []}),
        ("/collections/c/points", {"points": [{"id": 1, "vector": {"a": {"indices": [-1], "values": [1]}}}]}),
        ("/collections/c", {"vectors": {"a": {"size": 0, "distance": "Cosine"}}}),
        ("/collections/c", {"vectors": {"a": {"size": 4, "distance": "Manhatten"}}}),
    ],
)
def test_the_comparison_with_the_description_sees_what_is_wrong(path, body):
    if not OPENAPI.exists():
        pytest.skip(f"{OPENAPI} is not there")
    with pytest.raises(jsonschema.ValidationError):
        OpenApi(json.loads(OPENAPI.read_text())).check("PUT", path, {}, json.dumps(body).encode())


@pytest.mark.skipif(not LIVE, reason="QDRANT_TEST_URL names no Qdrant server: nothing was asked of a real one")
def test_a_real_server_takes_an_upload_switches_the_alias_and_gives_every_point_back(exported, call):
    """Makes collections whose names begin with `interlock-test-` and leaves them there."""
    alias = f"interlock-test-{secrets.token_hex(4)}"
    for run, rows in (("one", ROWS), ("two", 40)):
        words = [
            "upload",
            exported / "runs" / run,
            "--qdrant",
            LIVE,
            "--alias",
            alias,
            "--index",
            "metadata.lang:keyword",
        ]
        code, out, err = call(*words, "--quantisation", "int8")
        assert code == 0, err
        assert f"{rows} rows there" in out
        assert "nothing was left to send" in call(*words, "--quantisation", "int8")[1]


def test_a_run_is_uploaded_at_its_end_where_a_url_stands_for_a_store(upload, tmp_path, tiny_a, call):
    chunks = corpus(tmp_path / "in", {"Docs": {"a.jsonl": ["one text", "another"]}})
    words = ["run", chunks, "--roster", tiny_a, "--run-id", "r", "--out", tmp_path / "runs", "--no-ui"]
    with serving(upload.bridge) as url:
        code, _, err = call(*words, "--qdrant", url)
        assert code == 0, err
        assert f"docs on {url} (Qdrant 1.19.0): 2 rows there, 2 points sent" in err
        assert {payload["text"] for payload, _ in on_server(upload.bridge).values()} == {"one text", "another"}
        code, _, err = call(*words, "--qdrant", url, "--resume")
        assert (code, "nothing was left to send" in err) == (0, True)
    assert not list(tmp_path.glob("http*"))


def test_a_run_that_could_not_be_uploaded_does_not_begin(upload, tmp_path, tiny_a, call, monkeypatch):
    chunks = corpus(tmp_path / "in", {"Docs": {"a.jsonl": ["one text"]}})
    words = ["run", chunks, "--roster", tiny_a, "--out", tmp_path / "runs", "--no-ui", "--qdrant"]
    with serving(upload.bridge) as url:
        upload.bridge.before = lambda *_: refusal(401, "who are you")
        assert call(*words, url)[0] == 2
    monkeypatch.setenv("QDRANT_API_KEY", "sesame")
    code, _, err = call(*words, "http://192.0.2.1:6333")
    assert (code, "would be readable on the way" in err, "sesame" in err) == (2, True, False)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("export", "lacks"), [("npy", "parquet"), ("", "parquet"), ("parquet", "npy")])
def test_a_run_that_makes_no_files_to_upload_does_not_begin(upload, exported, tmp_path, call, export, lacks):
    config, chunks = exported / "interlock.toml", exported / "in-90"
    late = ("--token-vectors", "m") if lacks == "npy" else ()
    words = ["run", chunks, "--config", config, "--roster", "m", *late, "--out", tmp_path / "runs", "--devices", "cpu"]
    with serving(upload.bridge) as url:
        code, _, err = call(*words, "--export", export, "--qdrant", url, "--quiet")
        assert (code, f"--export leaves out: add {lacks} to it" in err) == (2, True), err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--export", "npy"), "add parquet"),
        (("--roster", "nosuch"), "nosuch"),
        (("--dim", "16"), "--dim 16"),
        (("--collections", "Nope"), "Nope"),
        (("--reuse", "nowhere"), "not a run directory"),
        (("--faults", "oom:1"), "--faults needs simulated devices"),
        (("--devices", "gpu"), "unknown device"),
    ],
)
def test_what_is_wrong_with_a_run_is_refused_before_the_server_that_it_goes_to_is_asked(
    upload, exported, tmp_path, call, flags, why
):
    words = ["run", exported / "in-90", "--config", exported / "interlock.toml", "--roster", "m", "--quiet"]
    asked: list[object] = []
    upload.bridge.before = lambda *about: asked.append(about)
    with serving(upload.bridge) as url:
        code, _, err = call(*words, "--out", tmp_path / "runs", "--devices", "cpu", "--qdrant", url, *flags)
    assert (code in (2, 5), why in err, asked) == (True, True, []), err
    assert not (tmp_path / "runs").exists()


def test_what_goes_on_with_a_run_that_was_killed_uploads_it_as_it_was_to_be(upload, tmp_path, tiny_a, call):
    chunks = corpus(tmp_path / "in", {"Docs": {"a.jsonl": ["one text", "another"]}})
    words = ["run", chunks, "--roster", tiny_a, "--out", tmp_path / "runs", "--no-ui", "--bm25", "german"]
    with serving(upload.bridge) as url:
        upload.bridge.before = lambda _, path, *__: refusal(400, "no") if path.endswith("/points") else None
        code, _, err = call(*words, "--run-id", "a", "--qdrant", url, "--prune")
        assert (code, f"--qdrant {url} --prune\n" in err, "BM25 is only in a store" in err) == (1, True, False), err
        upload.bridge.before = lambda *_: None
        journal = tmp_path / "runs" / "a" / "journal.jsonl"
        journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))  # not closed: it was killed
        again = call("ctl", tmp_path / "runs" / "a", "status")[1].partition("continue it with interlock ")[2]
        assert again.endswith(f"--resume --qdrant {url}\n"), again  # the run keeps --prune
        code, _, err = call(*shlex.split(again))
        assert (code, "0 points of earlier uploads removed" in err) == (0, True), err
    assert {payload["text"] for payload, _ in on_server(upload.bridge).values()} == {"one text", "another"}


def test_a_url_is_never_taken_for_a_directory(call, tmp_path):
    for text in ("http://localhost:6333", "localhost:6333", "https://example.org/qdrant"):
        code, _, err = call("plan", tmp_path, "--qdrant", text)
        assert (code, "expected a directory for an embedded store" in err) == (2, True)
    assert not list(tmp_path.iterdir())
