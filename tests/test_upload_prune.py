"""Points of earlier uploads whose chunks are gone: removed where that is asked for, and nobody else's ever.

The engine behind `edge_bridge` says what is left.
"""

import json
import shutil
from uuid import UUID, uuid4

import pytest
import qdrant_edge as edge

import interlock
from interlock.engine.corpus.identity import point_of
from interlock.engine.errors import InterlockError, UnavailableError, UsageError
from interlock.engine.targets.layout import MARK
from tests.builders import corpus
from tests.builders import interlock as command
from tests.edge_bridge import refusal, serving
from tests.uploads import ROWS, Uploads, answered, bridged, embedded, killed

FEW = 40
DELETE = "/collections/docs/points/delete"


@pytest.fixture
def upload(exported, tmp_path):
    """Uploads of the second run into the collection of the first."""
    with bridged(tmp_path / "bridge") as bridge:
        Uploads(bridge, exported / "runs" / "one", tmp_path / "uploads")()
        yield Uploads(bridge, exported / "runs" / "two", tmp_path / "uploads")


def shard(bridge):
    return bridge.collections["docs"].shard


def held(bridge):
    """The payloads that are there, by id."""
    records, _ = shard(bridge).scroll(edge.ScrollRequest(limit=1000, with_payload=True))
    return {str(each.id): each.payload for each in records}


def put(bridge, point, payload):
    """Let somebody else write a point."""
    point = edge.Point(point, {"a": [1.0] + [0.0] * 31}, payload)
    shard(bridge).update(edge.UpdateOperation.upsert_points([point]))


def chunks_of(payloads):
    return {payload["chunk_id"] for payload in payloads.values()}


def test_points_whose_chunks_are_gone_are_removed_once_all_is_verified(upload):
    asked = []
    upload.seen = lambda request: asked.append(request.url.path)
    report = upload(prune=True)
    assert (report.rows, report.points, report.pruned, report.stale, report.foreign) == (FEW, FEW, ROWS - FEW, 0, 0)
    assert chunks_of(held(upload.bridge)) == {f"c{number}" for number in range(FEW)}
    assert asked.index("/collections/docs/points/count") < asked.index(DELETE)
    again = upload(prune=True)
    assert (again.sent, again.pruned, again.points) == (0, 0, FEW)


def test_nothing_is_removed_that_no_upload_put_there(upload):
    there = held(upload.bridge)
    stale = {point: payload for point, payload in there.items() if int(payload["chunk_id"][1:]) >= FEW}
    gone, renamed, without, *_ = sorted(stale)
    theirs = {
        "7": {"text": "a number for an id"},
        str(uuid4()): {},
        str(uuid4()): stale[gone],  # a copy of a chunk that is gone, under an id of their own
        renamed: {**stale[renamed], "source": "elsewhere"},
        without: {"text": "only"},
    }
    for point, payload in theirs.items():
        put(upload.bridge, int(point) if point.isdecimal() else point, payload)
    put(upload.bridge, gone, {**stale[gone], "text": "edited on the server", "note": 1})
    report = upload(prune=True)
    assert (report.pruned, report.foreign, report.stale) == (ROWS - FEW - 2, 5, 5)
    left = held(upload.bridge)
    assert left.keys() == {point for point in there if point not in stale} | theirs.keys()
    assert gone not in left


def test_points_of_a_collection_of_another_name_are_somebody_elses(upload):
    """The id of a point says of which collection it is."""
    other = point_of("other", "a.jsonl", "c1")
    put(upload.bridge, str(other), {"source": "a.jsonl", "chunk_id": "c1"})
    assert upload(prune=True).foreign == 1
    assert str(other) in held(upload.bridge)


def test_a_run_that_did_not_read_everything_removes_nothing_and_says_why(upload, tmp_path, tiny_a, exported):
    bad = exported / "in-40broken" / "Docs" / "b.jsonl"
    bad.parent.mkdir(parents=True)
    bad.write_text('{"text": ""}\n')
    run = embedded(exported, tiny_a, "broken", rows=FEW, told="broken", keep="both", max_refused="100%")
    report = upload(run, prune=True)
    assert (report.pruned, report.stale) == (0, ROWS - FEW)
    (said,) = upload.told
    assert "1 record or file of Docs could not be used and may be some of them, so none was removed: fix" in said


@pytest.mark.parametrize("side", ["lost", "taken", "answered"])
def test_what_an_interruption_left_is_removed_by_the_same_command(upload, monkeypatch, side):
    monkeypatch.setattr("interlock.engine.targets.collection.PAGE", 16)

    left = [2]

    def end(method, path, *_):
        left[0] -= path == DELETE
        if path == DELETE and not left[0]:
            raise KeyboardInterrupt

    if side == "lost":
        upload.bridge.before = end
    else:
        upload.bridge.after = end
    with pytest.raises(KeyboardInterrupt):
        upload(prune=True)
    upload.bridge.before = upload.bridge.after = lambda *_: None
    assert FEW < len(held(upload.bridge)) < ROWS
    report = upload(prune=True)
    assert 0 < report.pruned < ROWS - FEW
    assert chunks_of(held(upload.bridge)) == {f"c{number}" for number in range(FEW)}


def test_a_dry_run_says_how_many_would_be_removed_and_changes_nothing(upload, call):
    put(upload.bridge, 7, {})
    with serving(upload.bridge) as url:
        before = len(upload.bridge.requests)
        code, out, _ = call("upload", upload.run, "--qdrant", url, "--dry-run", "--prune")
    assert code == 0
    assert "would remove 50 points of earlier uploads, and keep 1 point that no upload put there" in out
    reads = {("POST", f"/collections/docs/points{kind}") for kind in ("", "/count", "/scroll")}
    assert {each for each in upload.bridge.requests[before:] if each[0] != "GET"} == reads
    assert len(held(upload.bridge)) == ROWS + 1
    assert upload.bridge.collections["docs"].metadata[MARK]["run"] == "one"


def test_a_dry_run_of_a_collection_that_is_not_there_or_is_another_one(upload, call):
    with serving(upload.bridge) as url:
        words = ("upload", upload.run, "--qdrant", url, "--dry-run", "--prune")
        code, out, _ = call(*words, "--alias", "live")
        assert (code, "would remove 0 points" in out) == (0, True)
        upload.bridge.collections["docs"].metadata.clear()
        code, _, err = call(*words)
        assert (code, "was not made by interlock" in err) == (2, True)


def test_pages_are_as_large_as_strict_mode_allows(upload):
    collection = upload.bridge.collections["docs"]
    collection.strict |= {"enabled": True, "max_query_limit": 7}
    assert upload(prune=True).pruned == ROWS - FEW
    assert upload.bridge.requests.count(("POST", "/collections/docs/points/scroll")) == -(-ROWS // 7)


def test_another_upload_that_begins_meanwhile_ends_it(upload, monkeypatch):
    monkeypatch.setattr("interlock.engine.targets.collection.PAGE", 16)

    def mark(request):
        if request.url.path == DELETE:
            upload.bridge.collections["docs"].metadata[MARK] = {"run": "three", "upload": "x"}

    upload.seen = mark
    with pytest.raises(InterlockError, match=r"another upload \(of run three\) writes to docs"):
        upload(prune=True)
    assert len(held(upload.bridge)) > ROWS - 16


def test_points_that_are_there_after_they_were_removed_are_told(upload):
    done = answered({"operation_id": 1, "status": "completed"})
    upload.bridge.before = lambda method, path, *_: done if path == DELETE else None
    with pytest.raises(InterlockError, match=r"docs on .* still has 50 of 50 points that were removed: "):
        upload(prune=True)


def test_a_page_that_leads_to_itself_is_no_answer(upload):
    page = answered({"points": [{"id": str(UUID(int=1))}], "next_page_offset": str(UUID(int=1))})
    upload.bridge.before = lambda method, path, *_: page if path.endswith("/scroll") else None
    with pytest.raises(UnavailableError, match=r"an answer of another form"):
        upload(prune=True)
    assert len(held(upload.bridge)) == ROWS


def test_a_server_that_refuses_to_remove_is_told_and_nothing_is_called_done(upload):
    upload.bridge.before = lambda method, path, *_: refusal(403, "read-only") if path == DELETE else None
    with pytest.raises(UsageError, match=r"refuses this key \(403: read-only\)"):
        upload(prune=True)
    assert not [path for path in upload.directory.glob("*.json") if json.loads(path.read_text())["run_id"] == "two"]


def test_killed_while_it_removes_it_is_finished_by_the_same_command(upload, tmp_path):
    """Processes of their own, each killed at another request from where it counts to where it has removed."""
    run = tmp_path / "run"
    shutil.copytree(upload.run, run)
    with serving(upload.bridge) as url:
        words = ("upload", run, "--qdrant", url, "--prune")
        for at, side in ((15, "lost"), (11, "taken"), (12, "lost"), (12, "taken"), (12, "answered")):
            assert killed(words, upload.bridge, at, side)
            assert len(held(upload.bridge)) in (FEW, ROWS)
            assert not list(run.glob("uploads/*.json"))
        assert f"{FEW} rows there" in command(*words).stdout
    assert chunks_of(held(upload.bridge)) == {f"c{number}" for number in range(FEW)}


def test_a_run_and_a_script_remove_them_as_the_command_does(tmp_path, tiny_a, call, upload):
    chunks = corpus(tmp_path / "in", {"Docs": {"a.jsonl": ["one text", "another", "third"]}})
    words = ["run", chunks, "--roster", tiny_a, "--out", tmp_path / "runs", "--no-ui", "--bm25", "off"]
    upload.bridge.collections.pop("docs").close()
    with serving(upload.bridge) as url:
        assert call(*words, "--run-id", "a", "--qdrant", url)[0] == 0
        corpus(tmp_path / "in", {"Docs": {"a.jsonl": ["one text", "another"]}})
        code, _, err = call(*words, "--run-id", "b", "--qdrant", url)
        assert (code, "1 other point there: --prune removes" in err) == (0, True), err
        code, _, err = call(*words, "--run-id", "c", "--qdrant", url, "--prune")
        assert (code, "1 point of earlier uploads removed" in err) == (0, True), err
        assert "nothing is delivered into a store" not in err
        (report,) = interlock.upload(tmp_path / "runs" / "a", url)
        assert (report.points, report.pruned) == (3, 0)
        (report,) = interlock.upload(tmp_path / "runs" / "c", url, prune=True)
        assert (report.points, report.pruned) == (2, 1)
