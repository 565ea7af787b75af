"""Others at the same server: who else writes, switches or deletes while an upload goes on, and counts that are wrong.

The engine behind `edge_bridge` says what is there; no upload may say that all is well where it is not.
"""

import json
import threading
from uuid import UUID

import pytest
import qdrant_edge as edge

from interlock.engine.errors import InterlockError, UnavailableError, UsageError
from interlock.engine.targets.layout import MARK, METADATA, Topology, topology_of
from interlock.engine.vectors.points import same_json
from tests.edge_bridge import SPREAD
from tests.uploads import ROWS, Uploads, answered, embedded, key_of

POINTS = "/collections/docs/points"
COUNT = ("POST", f"{POINTS}/count")


@pytest.fixture
def other(exported, upload, tmp_path):
    """Uploads of the other run from another machine."""
    return Uploads(upload.bridge, exported / "runs" / "other", tmp_path / "elsewhere")


def shard(bridge, collection="docs"):
    return bridge.collections[collection].shard


def told(bridge):
    """What the payloads say that are there."""
    records, _ = shard(bridge).scroll(edge.ScrollRequest(limit=1000, with_payload=True))
    return {each.payload["metadata"].get("told") for each in records}


def once(request, do, number=1):
    """Do something when such a request comes for the n-th time."""
    left = [number]

    def step(method, path, *_):
        if (method, path) == request:
            left[0] -= 1
            return do() if not left[0] else None
        return None

    return step


def asked(do):
    """The same of the requests of one upload alone."""
    return lambda request: do(request.method, request.url.path)


def test_an_upload_over_which_another_run_was_uploaded_is_sent_again(upload, other):
    upload()
    assert other().sent == ROWS
    assert told(upload.bridge) == {"other"}
    again = upload()
    assert (again.sent, again.rows) == (ROWS, ROWS)
    assert told(upload.bridge) == {None}
    assert upload.told == ["docs has the mark of another upload: all rows are sent again"]
    assert upload().sent == 0


def test_a_journal_is_believed_where_the_collection_has_its_mark_and_nowhere_else(upload, other, exported, tmp_path):
    """The run itself is uploaded over the other one from elsewhere, and that one does not come far."""
    upload()
    other()
    upload.bridge.before = lambda method, path, *_: (500, {}, b"") if (method, path) == ("PUT", POINTS) else None
    with pytest.raises(UnavailableError):
        Uploads(upload.bridge, exported / "runs" / "one", tmp_path / "third")()
    upload.bridge.before = lambda *_: None
    assert upload().sent == ROWS
    assert told(upload.bridge) == {None}


def test_the_mark_leaves_what_else_the_metadata_says(upload):
    upload()
    metadata = upload.bridge.collections["docs"].metadata
    metadata["owner"] = "search"
    metadata.pop(MARK)
    assert upload().sent == ROWS
    assert metadata.keys() == {"interlock", MARK, "owner"}
    assert metadata[MARK]["run"] == "one"


def test_of_two_uploads_at_once_into_one_collection_neither_is_called_done(upload, other, monkeypatch):
    monkeypatch.setattr("interlock.engine.targets.collection.MOST_POINTS", 16)
    midst, go, errors = threading.Event(), threading.Event(), []

    def both(one):
        with pytest.raises(InterlockError, match=r"another upload.* writes to docs on .*: wait for its end") as failed:
            one()
        errors.append(str(failed.value))

    def stand():
        midst.set()
        assert go.wait(60)

    thread = threading.Thread(target=both, args=(other,))

    def meet():
        thread.start()
        assert midst.wait(60)

    upload.seen, other.seen = asked(once(("PUT", POINTS), meet, 3)), asked(once(("PUT", POINTS), stand, 3))
    both(upload)
    go.set()
    thread.join(60)
    assert ["(of run other)" in errors[0], "(of run one)" in errors[1]] == [True, True]
    assert upload().sent == ROWS
    assert told(upload.bridge) == {None}


def test_an_upload_that_began_at_the_very_end_of_another_is_seen_by_it(upload, other):
    upload.seen = asked(once(("PATCH", "/collections/docs"), other, 2))  # the first one marks the collection
    with pytest.raises(InterlockError, match=r"another upload \(of run other\) writes to docs on .*"):
        upload()
    assert not list(upload.directory.glob("*.json"))


def test_an_alias_that_somebody_switched_meanwhile_is_told_with_what_it_meant_last(upload, other):
    first = other(alias="live")
    upload.bridge.collections["theirs"] = upload.bridge.collections[first.collection]
    upload.seen = asked(once(("POST", f"/collections/{upload_target(upload)}/points/count"), lambda: theirs(upload)))
    report = upload(alias="live")
    assert report.previous == "theirs"
    assert upload.bridge.aliases == {"live": report.collection}
    assert upload.told == [f"live was switched from {first.collection} to theirs while this upload went on"]
    upload.bridge.collections.pop("theirs")


def upload_target(upload):
    from interlock.engine.targets.upload_plan import UploadOptions, target_of
    from tests.uploads import opened

    return target_of(opened(upload.run), UploadOptions(alias="live"))


def theirs(upload):
    upload.bridge.aliases = {"live": "theirs"}


def test_a_switch_that_did_not_last_is_no_success(upload):
    switch = ("POST", "/collections/aliases")

    def after(method, path):
        if (method, path) == switch:
            theirs(upload)

    upload.bridge.after = after
    with pytest.raises(InterlockError, match=r"alias live means theirs on .*, not live-\w+: check for"):
        upload(alias="live")
    upload.bridge.after = lambda *_: None
    upload.bridge.before = lambda method, path, *_: answered(True) if (method, path) == switch else None
    upload.bridge.aliases = {}
    with pytest.raises(InterlockError, match=r"alias live means nothing on .*, not live-\w+"):
        upload(alias="live")
    assert not list(upload.directory.glob("*.json"))


def test_points_that_go_lost_while_indexes_are_built_are_missed(upload):
    def lose():
        lost = [str(each.id) for each in shard(upload.bridge).scroll(edge.ScrollRequest(limit=3))[0]]
        shard(upload.bridge).update(edge.UpdateOperation.delete_points(lost))

    upload.seen = asked(once(("PATCH", "/collections/docs"), lose, 2))
    with pytest.raises(InterlockError, match=rf"docs on .* lacks 3 points of {ROWS} that it acknowledged"):
        upload()


def test_a_count_of_more_points_than_ids_is_no_proof_of_any(upload):
    upload.bridge.before = lambda method, path, body, _: (
        answered({"count": ROWS + 5}) if (method, path) == COUNT and b"has_id" in body else None
    )
    with pytest.raises(InterlockError, match=rf"docs on .* counts {ROWS + 5} points that have one of {ROWS} ids: "):
        upload()


def test_a_count_of_fewer_points_than_were_found_by_id_is_no_proof_either(upload):
    upload.bridge.before = lambda method, path, body, _: (
        answered({"count": ROWS - 1}) if (method, path) == COUNT and b"has_id" not in body else None
    )
    with pytest.raises(InterlockError, match=rf"docs on .* lacks 1 point of {ROWS} that it acknowledged"):
        upload()


@pytest.mark.parametrize(
    ("was", "becomes"),
    [(1, 1.0), (1, True), (0, False), (1.0, 1), ([1, {"a": 2}], [1, {"a": 2.0}]), (None, 0), ([1], [1, 1])],
)
def test_a_payload_with_another_type_of_number_is_another_payload(was, becomes):
    assert same_json({"key": was}, {"key": was})
    assert not same_json({"key": was}, {"key": becomes})


def test_a_decimal_that_the_engine_rounds_is_the_same(upload, exported, tiny_a):
    """It reads numbers to within some units in the last of 17 places."""
    precise = 248185064035.43118
    assert upload(embedded(exported, tiny_a, "decimals", rows=4, told=precise)).compared == 4
    assert told(upload.bridge) != {precise}
    assert not same_json(0.1, 0.1000000000001)


def test_a_server_that_keeps_no_index_is_not_done(upload):
    upload.bridge.before = lambda method, path, body, _: (
        answered(True) if (method, path) == ("PATCH", "/collections/docs") and b"hnsw" in body else None
    )
    with pytest.raises(UnavailableError, match=r"has all its points, and its indexes are not built after 60 s \(m = 0"):
        upload(settle=60)
    assert not list(upload.directory.glob("*.json"))


def always(asked, result):
    """A server that answers this to one kind of request, whatever it did."""
    return lambda method, path, *_: answered(result) if (method, path) == asked else None


@pytest.mark.parametrize(
    ("method", "path", "result"),
    [
        ("PUT", POINTS, True),
        ("PUT", POINTS, {}),
        ("PUT", POINTS, {"status": None}),
        ("POST", f"{POINTS}/count", True),
        ("POST", f"{POINTS}/count", {"count": None}),
        ("POST", f"{POINTS}/count", {"count": "many"}),
        ("POST", POINTS, True),
        ("POST", POINTS, [{"id": None}]),
        ("GET", "/collections/docs", True),
        ("GET", "/collections/docs", {"config": {}}),
        ("GET", "/aliases", []),
        ("GET", "/aliases", {}),
    ],
)
def test_an_answer_of_another_form_is_asked_for_again_and_told(upload, method, path, result):
    upload.bridge.before = always((method, path), result)
    with pytest.raises(UnavailableError, match=r"did not do its work within 100 s of asking \(.+\): start it"):
        upload()
    assert upload.clock.slept


@pytest.mark.parametrize("version", [None, "", "x", "1.x", "1.\xb2", "1"])
def test_a_version_that_is_none_is_that_of_no_server(upload, version):
    body = json.dumps({"title": "qdrant", "version": version}).encode()
    upload.bridge.before = lambda method, path, *_: (200, {}, body) if path == "/" else None
    with pytest.raises(UsageError, match=r"is not a Qdrant server|which keeps no metadata"):
        upload()


@pytest.mark.parametrize("path", ["/", "/collections/docs", POINTS])
@pytest.mark.parametrize("form", [lambda key: [key], lambda key: key, lambda key: {"result": [key]}])
def test_no_part_of_a_key_is_said_though_the_answer_repeats_it(upload, path, form):
    key = "head" * 20 + "tail" * 20
    upload.bridge.before = lambda _, at, *__: (200, {}, json.dumps(form(key)).encode()) if at == path else None
    with pytest.raises(InterlockError) as failed:
        upload(key=key)
    said = [str(failed.value), *upload.told]
    assert not [text for text in said if "headhead" in text or "tailtail" in text]


def by_administrator(bridge, upload, name="docs", **more):
    """Make a collection as an administrator may: what an upload would make, with nothing said of models, and `more`."""
    upload(alias="live")
    (made,) = bridge.collections
    there = bridge.collections[made].asked
    wanted = {"vectors": there["vectors"], "sparse_vectors": there["sparse_vectors"], **more}
    answer, _, said = bridge.answer("PUT", f"/collections/{name}", json.dumps(wanted).encode(), {})
    assert answer == 200, said
    return bridge.collections[name]


def test_an_empty_collection_that_an_administrator_made_is_filled_as_it_is(upload):
    made = by_administrator(upload.bridge, upload, shard_number=6, replication_factor=2, metadata={"owner": "search"})
    report = upload(indexes={"metadata.lang": "tenant"}, topology=Topology(6, 2))
    assert (report.rows, report.points, made.hnsw["m"]) == (ROWS, ROWS, 16)
    assert made.metadata.keys() == {"owner", METADATA, MARK}
    assert made.schema["metadata.lang"]["params"] == {"type": "keyword", "is_tenant": True}
    assert "docs was made by somebody else and is empty: it is filled as it is" in upload.told
    assert upload(indexes={"metadata.lang": "tenant"}).sent == 0
    with pytest.raises(UsageError, match=r"the index of metadata.lang was tenant, is now keyword"):
        upload(indexes={"metadata.lang": "keyword"})


def test_a_collection_of_others_that_has_a_point_or_another_form_is_left_alone(upload):
    made = by_administrator(upload.bridge, upload)
    made.asked["vectors"]["m"]["size"] = 16
    with pytest.raises(UsageError, match=r"vectors.m.size was 16, is now 32"):
        upload()
    made.asked["vectors"]["m"]["size"] = 32
    made.upsert([{"id": str(UUID(int=7)), "vector": {}, "payload": {"theirs": True}}])
    with pytest.raises(UsageError, match=r"was not made by interlock"):
        upload()
    assert (made.count(None), made.metadata) == (1, {})


def test_a_key_that_may_not_say_what_the_points_of_an_empty_collection_mean_is_told_so_first(upload):
    made = by_administrator(upload.bridge, upload)
    upload.bridge.before = key_of("rw")
    with pytest.raises(UsageError, match=r"may not say in docs, which is empty, what its points mean: use one with"):
        upload()
    assert (made.count(None), made.metadata) == (0, {})


def test_a_cluster_is_asked_to_spread_a_collection_and_one_that_is_spread_otherwise_is_refused(upload):
    upload(topology=Topology(6, 3, 2))
    asked = upload.bridge.collections["docs"].asked
    assert {name: asked[name] for name in SPREAD} == dict(zip(SPREAD, (6, 3, 2), strict=True))
    assert upload().sent == upload(topology=Topology(replicas=3)).sent == 0
    with pytest.raises(UsageError, match=r"shard_number was 6, is now 4.*--alias"):
        upload(topology=Topology(4))
    assert upload(topology=Topology(4), alias="live").rows == ROWS
    assert len(upload.bridge.collections) == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((0, None, None), "--shards: 0: pass a whole number"),
        ((None, "two", None), "--replicas: 'two': pass a whole number"),
        ((None, None, True), "--write-consistency: True: pass a whole number"),
        ((None, 2, 3), "--write-consistency 3 is more than --replicas 2"),
    ],
)
def test_a_spread_that_no_cluster_can_have_is_refused(given, says):
    with pytest.raises(UsageError, match=says):
        topology_of(*given)
