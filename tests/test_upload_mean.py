"""Uploads to a server that is slow to index, grey, strict, sparing with rights, or mean: either all is there, or a line
says what is not.

The engine behind `edge_bridge` says what is there; what it answers is bent here.
"""

import json
import time
from email.utils import formatdate
from uuid import UUID

import pytest

from interlock.engine.errors import InterlockError, UnavailableError, UsageError
from interlock.engine.targets.connection import pause_of
from interlock.engine.targets.indexing import GREENS
from interlock.engine.targets.layout import MARK
from tests.edge_bridge import Collection, refusal, serving
from tests.test_upload import POINTS, on_server
from tests.uploads import ROWS, answered, key_of

DOCS = "/collections/docs"


def of(upload):
    (collection,) = upload.bridge.collections.values()
    return collection


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Vectors are as many as get an index."""
    monkeypatch.setattr(Collection, "threshold", 1)


def states(upload, words, **then):
    """The collection says these states one after the other once its index was asked for, then the last for ever."""
    left = list(words)

    def before(method, path, body, _):
        if method == "GET" and path.count("/") == 2 and path.startswith("/collections/") and upload.bridge.collections:
            collection = of(upload)
            if collection.hnsw["m"]:
                collection.status = left.pop(0) if len(left) > 1 else left[0]
        return then.get("answer", lambda *_: None)(method, path)

    upload.bridge.before = before


def switched_after(upload):
    """How often the collection was looked at between the change of its index and the switch of the alias."""
    asked = [(method, path.replace(of_name(upload), "x")) for method, path in upload.bridge.requests]
    switch = asked.index(("POST", "/collections/aliases"))
    index = max(place for place, each in enumerate(asked) if each == ("PATCH", "/collections/x"))
    return asked[index:switch].count(("GET", "/collections/x"))


def of_name(upload):
    (name,) = upload.bridge.collections
    return name


def test_an_alias_is_switched_after_several_green_answers_and_none_of_them_is_the_first(upload):
    states(upload, ["green", "yellow", "yellow", "green", "green", "yellow", "green"])
    upload(alias="live")
    assert switched_after(upload) >= 6 + GREENS
    assert sum(upload.clock.slept) > 5


def test_one_green_answer_is_enough_where_vectors_are_too_few_for_an_index(upload, monkeypatch):
    monkeypatch.setattr(Collection, "threshold", None)
    states(upload, ["yellow", "green"])
    upload(alias="live")
    assert upload.bridge.aliases and sum(upload.clock.slept) < 1  # several take three seconds


def test_green_answers_whose_counts_change_are_not_the_same(upload):
    states(upload, ["green"])
    info, counts = upload_info(upload)
    upload(alias="live")
    assert len(counts) >= 5 + GREENS
    assert info


def upload_info(upload):
    """The first five answers count more and more indexed vectors."""
    counts, whole = [], Collection.info

    def info(self):
        found = whole(self)
        if self.hnsw["m"]:
            counts.append(min(len(counts), 5))
            found["indexed_vectors_count"] = counts[-1] * 100
        return found

    upload.bridge.kind = type("Counting", (Collection,), {"info": info})
    return whole, counts


def test_what_the_server_lists_as_waiting_is_waited_for_though_it_says_green(upload):
    def sleep(seconds, real=upload.clock.sleep):
        real(seconds)
        of(upload).waiting = 3 if upload.clock.now < 20 else 0

    upload.clock.sleep = sleep
    upload.bridge.after = lambda method, path: (
        setattr(of(upload), "waiting", 3) if method == "PATCH" and not upload.clock.now else None
    )
    upload(alias="live")
    assert upload.clock.now >= 20
    assert any("green, 3 optimisations run or wait" in said for said in upload.told)


def test_a_server_without_a_list_has_to_have_an_index_where_vectors_are_many(upload):
    class Many(Collection):
        def info(self):
            now = upload.clock.now
            return {**super().info(), "points_count": 10**7, "indexed_vectors_count": 0 if now < 30 else 10**7}

    upload.bridge.kind = Many
    gone = refusal(404, "Not found")
    upload.bridge.before = lambda method, path, *_: gone if path.endswith("/optimizations") else None
    with pytest.raises(UnavailableError, match=r"not built after 12 s \(green, nothing is indexed\): wait on with"):
        upload(settle=12, alias="live")
    assert not upload.bridge.aliases
    upload(alias="live")
    assert upload.bridge.aliases and upload.clock.now >= 30


def test_what_is_grey_is_set_going_by_an_update_of_its_configuration(upload):
    states(upload, ["grey"])
    woken = []

    def seen(request):
        if request.method == "PATCH" and b"optimizers_config" in request.content:
            woken.append(json.loads(request.content))
            states(upload, ["yellow", "green"])

    upload.seen = seen
    upload(settle=60)
    assert woken == [{"optimizers_config": {}}]
    assert "docs is grey, its indexing was cut off: it is set going again" in upload.told


def test_what_stays_grey_ends_at_its_deadline_and_the_same_command_goes_on(upload):
    states(upload, ["grey"])
    with pytest.raises(UnavailableError, match=r"not built after 200 s \(grey\): wait on with the same command, or"):
        upload(settle=200)
    assert upload.told.count("docs is grey, its indexing was cut off: it is set going again") == 4
    states(upload, ["green"])
    assert upload().sent == 0


def test_how_far_indexes_are_is_told_while_they_are_built(upload):
    states(upload, ["yellow"] * 30 + ["green"])
    upload()
    told = [said for said in upload.told if "its indexes are built" in said]
    assert len(told) > 5 and "(yellow)" in told[0] and "of at most" in told[0]


def test_where_nobody_may_count_exactly_every_id_is_looked_up_and_what_is_not_proved_is_said(upload, exported):
    upload.bridge.strict = {"enabled": True, "search_allow_exact": False}
    report = upload()
    assert (report.rows, report.sent) == (ROWS, ROWS)
    assert report.unproved == ["how many other points there are (strict mode lets nobody count exactly)"]
    assert upload().sent == 0
    lost = sorted(on_server(upload.bridge))[:1]
    of(upload).delete(lost)
    assert upload().sent == ROWS
    assert upload(exported / "runs" / "two", prune=True).pruned == ROWS - 40


def test_a_server_that_refuses_exact_counts_and_does_not_say_so_before_is_asked_otherwise(upload):
    upload.bridge.before = lambda method, path, body, _: (
        refusal(400, "Exact search disabled!. Help: Set exact=false.") if b'"exact":true' in body else None
    )
    assert upload().unproved


@pytest.mark.parametrize("name", ["condition_max_size", "filter_max_conditions"])
def test_where_no_condition_may_be_asked_ids_are_looked_up(upload, name):
    upload.bridge.strict = {"enabled": True, name: 0}
    upload.bridge.before = lambda method, path, body, _: refusal(400, "Condition") if b"has_id" in body else None
    assert upload().rows == ROWS


def test_a_limit_on_a_rate_is_one_on_a_request(upload):
    upload.bridge.strict = {"enabled": True, "write_rate_limit": 7, "read_rate_limit": 5}
    sizes = []

    def seen(request):
        body = json.loads(request.content or b"{}")
        sizes.append((request.method, len(body.get("points") or body.get("ids") or ())))

    upload.seen = seen
    upload()
    assert max(size for method, size in sizes if method == "PUT") == 7
    assert max(size for method, size in sizes if method == "POST") == 5


def test_a_collection_that_takes_no_point_is_told_before_the_first(upload):
    upload.bridge.strict = {"enabled": True, "upsert_max_batchsize": 0}
    with pytest.raises(UsageError, match=r"docs takes no point in strict mode: raise its upsert_max_batchsize"):
        upload()
    assert ("PUT", POINTS) not in upload.bridge.requests


@pytest.mark.parametrize("rights", ["r", "prw", "rw"])
def test_a_key_that_may_not_make_the_collection_is_told_before_the_first_point(upload, rights):
    upload.bridge.before = key_of(rights)
    with pytest.raises(UsageError, match=r"this key may not make docs, which is not there: use one with global manage"):
        upload()
    assert ("PUT", POINTS) not in upload.bridge.requests


@pytest.mark.parametrize("rights", ["prw", "rw"])
def test_a_key_for_one_collection_is_enough_where_a_whole_upload_was_made_there(upload, exported, rights):
    upload()
    upload.bridge.before = key_of(rights)
    run = exported / "runs" / "two"
    report = upload(run, prune=True)
    assert (report.rows, report.sent, report.pruned) == (40, 40, ROWS - 40)
    assert sum("docs keeps the mark of another upload" in each for each in upload.told) == 1
    (said,) = report.unproved
    assert "no other upload wrote at the same time" in said
    again = upload(run)
    assert (again.rows, again.sent) == (40, 40)  # nothing says that nobody wrote meanwhile
    assert "docs has no mark of this upload" in upload.told[-1] or "another upload" in upload.told[-1]
    upload(run, incremental=True)
    upload.told.clear()
    assert upload(run, incremental=True).sent == 0 and not any("keeps the mark" in each for each in upload.told)


def test_an_upload_whose_points_a_key_without_a_mark_overwrote_is_mended_by_incremental(upload, exported):
    upload()
    upload.bridge.before = key_of("prw")
    upload(exported / "runs" / "two")
    assert upload(incremental=True).sent == ROWS


def test_a_whole_upload_is_found_whole_by_a_key_that_may_only_read(upload):
    upload()
    upload.bridge.before = key_of("r")
    assert (upload().sent, upload().unproved) == (0, [])


def test_a_key_that_may_only_read_sends_nothing_and_is_told_what_lacks(upload, exported):
    upload()
    upload.bridge.before = key_of("r")
    sent = list(of(upload).sent)
    with pytest.raises(UsageError, match=r"refuses this key .403.* for an upsert, which takes write access"):
        upload(exported / "runs" / "two")
    assert of(upload).sent == sent


def test_a_key_that_may_not_switch_an_alias_is_told_before_the_first_point(upload):
    first = upload(alias="live")
    upload.bridge.aliases.clear()
    (upload.directory / "x").mkdir(parents=True)
    [path.unlink() for path in upload.directory.glob("*.jsonl")]
    upload.bridge.before, sent = key_of("rw"), list(of(upload).sent)
    with pytest.raises(UsageError, match=r"this key may not switch an alias, nor change a collection: use"):
        upload(alias="live")
    assert of(upload).sent == sent and first.rows == ROWS


def test_a_key_that_may_not_have_the_index_built_is_told_before_the_first_point(upload):
    upload()
    of(upload).hnsw["m"], sent = 0, list(of(upload).sent)
    upload.bridge.before = key_of("rw")
    with pytest.raises(UsageError, match=r"this key may not change docs, which builds no index"):
        upload()
    assert of(upload).sent == sent


def test_what_is_grey_is_set_going_by_points_where_the_key_may_do_no_more(upload, exported):
    upload()
    states(upload, ["grey"], answer=lambda *asked: key_of("rw")(*asked, b"", {}))

    def seen(request):
        if request.method == "PUT" and len(of(upload).sent) >= ROWS + 40:
            states(upload, ["yellow", "green"], answer=lambda *asked: key_of("rw")(*asked, b"", {}))

    upload.seen = seen
    assert upload(exported / "runs" / "two", settle=60).rows == 40


def test_a_mark_that_is_not_kept_is_nobodys_upload(upload):
    upload.bridge.before = lambda method, path, body, _: (
        answered(True) if method == "PATCH" and MARK.encode() in body else None
    )
    with pytest.raises(InterlockError, match=r"docs on .* does not keep the mark of this upload in its metadata"):
        upload()
    assert ("PUT", POINTS) not in upload.bridge.requests


def test_a_mark_that_a_peer_shows_late_is_waited_for(upload):
    kept = []

    def before(method, path, body, _):
        if method == "PATCH" and MARK.encode() in body and not kept:
            kept.append(json.loads(body)["metadata"])
            return answered(True)
        if kept and upload.clock.now > 2 and MARK not in of(upload).metadata:
            of(upload).metadata |= kept[0]
        return None

    upload.bridge.before = before
    assert upload().sent == ROWS


def trickled(handler, answer, pause=0.05):
    """Write an answer byte by byte, for ever longer than anybody waits."""
    status, _, content = answer
    head = f"HTTP/1.1 {status} OK\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    for byte in head + content:
        handler.wfile.write(bytes([byte]))
        handler.wfile.flush()
        time.sleep(pause)
    return True


@pytest.mark.parametrize("part", ["head", "body"])
def test_an_answer_that_trickles_is_no_answer_in_time(upload, call, monkeypatch, part):
    monkeypatch.setattr("interlock.engine.targets.server.TIMEOUT", 0.5)

    def raw(handler, answer):
        if part == "head":
            return trickled(handler, answer)
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        return trickled(handler, (200, {}, b" " * 1000))

    upload.bridge.raw = raw
    began = time.monotonic()
    with serving(upload.bridge) as url:
        code, _, err = call("upload", upload.run, "--qdrant", url, "--patience", "1")
    assert (code, "no whole answer within 0.5 s" in err, time.monotonic() - began < 10) == (5, True, True)


def pages(*offsets):
    """A server whose pages lead to these, in turn."""
    turn = []

    def before(method, path, *_):
        if not path.endswith("/scroll"):
            return None
        turn.append(offsets[len(turn) % len(offsets)])
        return answered({"points": [{"id": str(UUID(int=len(turn)))}], "next_page_offset": str(UUID(int=turn[-1]))})

    return before


def test_pages_in_a_circle_are_no_answer(upload):
    upload()
    upload.bridge.before = pages(1, 2, 3)
    with pytest.raises(UnavailableError, match=r"an answer of another form"):
        upload(prune=True)


def test_pages_without_points_or_without_end_are_no_answer(upload, monkeypatch):
    upload()
    upload.bridge.before = lambda method, path, *_: (
        answered({"points": [], "next_page_offset": 7}) if path.endswith("/scroll") else None
    )
    with pytest.raises(UnavailableError, match=r"an answer of another form"):
        upload(prune=True)
    monkeypatch.setattr("interlock.engine.targets.collection.SLACK", 10)
    upload.bridge.before = pages(*range(100, 10_000))
    with pytest.raises(InterlockError, match=r"docs on .* lists more points than it counts: fix that on the server"):
        upload(prune=True)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    "told", ["9" * 400, "9" * 5000, "-5", "soon", "1e999", "nan", formatdate(0), formatdate(10**10), "²", "1.5"]
)
def test_a_time_to_come_back_is_understood_or_left_aside(upload, status, told):
    left = [1]

    def before(method, path, *_):
        if (method, path) == ("PUT", POINTS) and left and left.pop():
            return refusal(status, "busy", **{"Retry-After": told})
        return None

    upload.bridge.before = before
    try:
        assert upload().sent == ROWS
    except UnavailableError as error:
        assert (told == formatdate(10**10) and "busy" in str(error)) or "429" in str(error)


def test_seconds_and_dates_to_come_back():
    assert [pause_of(each) for each in ("17", 17, "1.5", "", None, "-1", "9" * 400, formatdate(0))] == [
        *(17, 17, 1.5, 0, 0, 0, 0, 0)
    ]
    assert 50 < pause_of(formatdate(time.time() + 60)) <= 61


NESTED = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("status", [200, 400, 404, 429, 500])
@pytest.mark.parametrize("path", ["/", "/aliases", DOCS, POINTS, f"{POINTS}/count"])
def test_an_answer_in_too_many_brackets_is_one_of_another_form(upload, status, path):
    upload.bridge.before = lambda _, at, *__: (status, {}, NESTED) if at == path else None
    with pytest.raises(InterlockError):
        upload(patience=2)


@pytest.mark.parametrize("told", ["a text", 7, [1], {"models": {"a": [[[[]]]]}}, {}, True])
@pytest.mark.parametrize("key", ["interlock", MARK])
def test_metadata_of_any_form_is_looked_at(upload, key, told):
    upload()
    of(upload).metadata[key] = told
    if key == MARK:
        assert upload().sent == ROWS
    else:
        with pytest.raises(UsageError, match=r"is another collection"):
            upload()


@pytest.mark.parametrize("version", ["9" * 5000, "1.19.0\x1b[2J", "1.²", "1.19." + "x" * 10**6])
def test_a_version_of_any_form_is_looked_at(upload, version):
    body = json.dumps({"title": "qdrant", "version": version}).encode()
    upload.bridge.before = lambda method, path, *_: (200, {}, body) if path == "/" else None
    with pytest.raises(UsageError, match=r"is not a Qdrant server"):
        upload()


def test_an_answer_that_is_packed_or_has_no_end_is_one_of_another_form(upload, monkeypatch, call):
    monkeypatch.setattr("interlock.engine.targets.server.LARGEST", 10_000)

    def endless(handler, answer):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n" + b" " * 200_000)
        return True

    def packed(handler, answer):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello")
        return True

    for upload.bridge.raw in (endless, packed):
        with serving(upload.bridge) as url:
            code, _, err = call("upload", upload.run, "--qdrant", url, "--patience", "0")
        assert (code, "is not a Qdrant server" in err) == (2, True), err
