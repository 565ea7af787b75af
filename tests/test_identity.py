"""What a record is known by: the ids of earlier versions, and no text lost for an id that another had."""

import hashlib
import json
import random
from dataclasses import replace
from uuid import UUID

import pytest

from interlock.engine.corpus.chunks import Chunk, ChunkReader
from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.corpus import read_corpus
from interlock.engine.corpus.identity import point_of
from interlock.engine.corpus.rereading import reread
from interlock.engine.search.hits import Hit
from interlock.engine.settings import continued, load, recorded
from tests.builders import corpus

PINNED = [
    ({"text": "one", "metadata": {"chunk_id": "x/1"}}, "7bd5050b-7040-588d-8f04-85002ac5a34c"),
    ({"text": "two", "metadata": {"chunk_id": 7, "source": "b.pdf"}}, "2bb9056e-4885-5766-a1f6-18263fa6cd65"),
    ({"text": "three", "metadata": {"chunk_id": 0, "source_path": "p"}}, "b9bef6ef-53a3-580e-925f-1d348c36f51f"),
    ({"text": "four"}, "66ca3590-918e-540b-be62-d57e8c26e606"),
    ({"text": "four"}, "363b3c71-ead4-54df-b072-983ae754a1ea"),
    ({"text": "four", "id": 9}, "15262722-4657-50fb-80cd-8731ed9ca65a"),
    (
        {"text": "five", "chunk_id": 3, "metadata": {"filename": "n.pdf", "page_number": 2}},
        "c890e692-27c9-50ab-9d3a-3351c54aab8c",
    ),
    ({"text": "five", "metadata": {"filename": "n.pdf", "chunk_id": ""}}, "9ac4cc47-62f8-5c33-8303-c5d7df187b60"),
    ({"text": "six", "metadata": {"chunk_id": 12345678901234567890123}}, "2edad065-d55e-5076-8bfa-de33136ed53e"),
    ({"text": "seven", "metadata": {"chunk_id": " "}}, "20530c4e-63ba-5923-a555-39fe64347258"),
    (
        {"text": "e\u0301\u200d", "metadata": {"chunk_id": "ид", "source_file": "ф"}},
        "a042932b-ba11-5861-b3fc-824fd1883e85",
    ),
    ({"text": "nul \0", "metadata": {"chunk_id": "b\0c", "source_file": "s"}}, "ec6f2b98-b66d-578a-9843-202dac6811ca"),
]
"""Records with the ids that they had before chunk ids could come again, read one after the other."""
APART = (5, 7)
"""Those of equal texts that say of themselves that they are others."""
RESTARTS = [
    {"text": f"{name} part {number}", "metadata": {"source": f"{name}.pdf", "chunk_id": number}}
    for name in "abcd"
    for number in range(3)
]


def read(root, records, name="a.jsonl", **how):
    reader = ChunkReader(replace(discover(corpus(root, {"Docs": {name: records}}))[0], **how))
    found = list(reader)
    assert all(isinstance(each, Chunk) for each in found), found
    return found, reader.counts


def points(root, records):
    return {each.text: each.point_id for each in read(root, records)[0]}


@pytest.mark.parametrize("by_ordinal", [True, False], ids=["continued", "new"])
def test_records_keep_the_ids_that_earlier_versions_gave_them(tmp_path, by_ordinal):
    pinned = [each for number, each in enumerate(PINNED) if by_ordinal or number not in APART]
    found, _ = read(tmp_path, [record for record, _ in pinned], by_ordinal=by_ordinal)
    assert [each.point_id for each in found] == [point for _, point in pinned]


def test_the_first_of_records_with_one_id_keeps_the_id_that_it_always_had(tmp_path):
    record, point = PINNED[1]
    found, counted = read(tmp_path, [record, {"text": "other", "metadata": {"chunk_id": 7, "source": "c.pdf"}}])
    assert (found[0].point_id, len(found), counted.renamed) == (point, 2, 1)
    assert counted.first == f"a.jsonl record 2: chunk_id 7 of a.jsonl is now {found[1].chunk_id}"
    assert all(UUID(each.point_id) == point_of("docs", each.source, each.chunk_id) for each in found)


@pytest.mark.parametrize("place", range(3, len(RESTARTS) + 1))
def test_a_record_that_is_added_leaves_the_others_their_ids(tmp_path, place):
    new = {"text": "new", "metadata": {"source": "z.pdf", "chunk_id": 0}}
    before = points(tmp_path / "before", RESTARTS)
    after = points(tmp_path / "after", [*RESTARTS[:place], new, *RESTARTS[place:]])
    assert len(before) == len(RESTARTS)
    assert before.items() <= after.items()
    assert len(set(after.values())) == len(RESTARTS) + 1


@pytest.mark.parametrize(
    "said",
    [
        {"metadata": {"chunk_id": 0, "url": "https://x/%s"}},
        {"metadata": {"chunk_id": 0, "file_name": "%s.pdf", "page_label": "1"}},
        {"metadata": {"chunk_id": 0}, "id_": "%s"},
        {"metadata": {"chunk_id": 0}, "meta": {"origin": {"filename": "%s"}}},
        {"metadata": {"chunk_id": 0, "loc": {"pageNumber": "%s"}}},
        {"metadata": {"chunk_id": 0}, "sourceId": "%s"},
    ],
)
def test_what_a_record_says_of_itself_is_its_identity_whatever_it_is_called(tmp_path, said):
    def record(name, text):
        return {"text": text, **json.loads(json.dumps(said).replace("%s", name))}

    one = points(tmp_path / "one", [record("a", "A"), record("b", "B"), record("c", "C")])
    other = points(tmp_path / "other", [record("a", "A"), record("c", "C, but edited")])
    assert (one["A"], one["C"]) == (other["A"], other["C, but edited"])


def test_the_first_whole_number_that_is_a_text_in_a_store_is_told(tmp_path):
    fine = {"text": "a", "metadata": {"n": [2**64 - 1, -(2**63), 1e300], "id": "9" * 20}}
    found, counted = read(tmp_path / "fine", [fine])
    assert len(found) == 1 and not list(counted.told("fine"))
    large = {"text": "b", "metadata": {"deep": [1, {"n": -(2**63) - 1}]}}
    found, counted = read(tmp_path / "large", [fine, large, {"text": "c", "n": 2**64}])
    assert json.loads(found[1].payload) == large["metadata"]
    (said,) = counted.told("large")
    place = "deep.n of a.jsonl record 2 first"
    assert said.startswith(f"large: a whole number beyond 64 bits ({place}) is a text in a store and on a server")


def test_records_that_say_nothing_more_are_told_apart_by_what_they_hold(tmp_path):
    records = [{"text": text, "metadata": {"chunk_id": 1, "title": title}} for text in "ab" for title in ("x", "y")]
    found, counted = read(tmp_path / "all", records)
    assert (len(found), counted.renamed, counted.same) == (4, 3, 0)
    later = {each.text + each.payload.decode(): each.point_id for each in found[1:]}
    again, _ = read(tmp_path / "again", [records[0], records[3], records[2], records[1]])
    assert {each.text + each.payload.decode(): each.point_id for each in again[1:]} == later


def test_a_copy_is_told_as_the_same_and_only_where_all_of_it_is(tmp_path):
    record = {"text": "a", "metadata": {"chunk_id": 1, "x": {"p": 1, "q": [2]}}, "note": "n"}
    turned = {"note": "n", "metadata": {"x": {"q": [2], "p": 1}, "chunk_id": 1}, "text": "a"}
    near = [record | {"note": "m"}, record | {"text": "b"}, record | {"metadata": {"chunk_id": 1, "x": 1}}]
    found, counted = read(tmp_path, [record, *near, turned, *near, record])
    assert (counted.records, len(found), counted.same, counted.renamed) == (9, 4, 5, 3)


def test_records_of_one_id_by_the_ten_thousand_are_all_kept_and_read_again_alike(tmp_path):
    records = [{"text": f"t{n % 5000}", "metadata": {"chunk_id": 0, "page": n % 3}} for n in range(10_000)]
    (rows,) = (read_ := read_corpus(discover(corpus(tmp_path, {"Docs": {"a.jsonl": records}})), lambda _: None)).rows
    assert (rows.counts.records, rows.chunks, rows.counts.same, len(rows.refusals)) == (10_000, 10_000, 0, 0)
    assert len(set(rows.points.tolist())) == 10_000
    assert len(list(reread(rows, read_.digests))) == 10_000


@pytest.mark.parametrize("value", [1.5, 0, False, [], {}, [1], {"a": 1}, None, "", 2**70])
@pytest.mark.parametrize("name", ["chunk_id", "source_path", "source_file", "filename"])
def test_no_kind_of_value_costs_a_record(tmp_path, name, value):
    found, _ = read(tmp_path, [{"text": text, "metadata": {name: value}} for text in "ab"])
    assert len({each.point_id for each in found}) == 2


def test_ids_with_a_nul_do_not_meet(tmp_path):
    rng = random.Random(5)
    pairs = {tuple("".join(rng.choices("a\0", k=rng.randint(1, 4))) for _ in range(2)) for _ in range(200)}
    assert len({point_of("c", *pair) for pair in pairs}) == len(pairs)


@pytest.mark.parametrize(
    ("payload", "source"),
    [
        ({"source": "a.jsonl", "metadata": {"source": "b.pdf"}}, "b.pdf"),
        ({"source": "p.md", "metadata": {"source_path": "p.md", "source": "web"}}, "p.md"),
        ({"source": "a.jsonl", "metadata": {"source": ["x"], "url": ""}}, "a.jsonl"),
        ({"source": "a.jsonl"}, "a.jsonl"),
        ({}, ""),
    ],
)
def test_a_hit_shows_the_source_that_its_record_names(payload, source):
    assert Hit("id", 1.0, payload).source == source


EQUAL = [{"text": "same", "metadata": {"source": f"{name}.md", "page": page}} for name in "abc" for page in (1, 2)]


@pytest.mark.parametrize("seed", range(5))
def test_what_equal_texts_without_ids_say_of_themselves_parts_them_in_any_order_behind_the_first(tmp_path, seed):
    def ids(root, records):
        return {each.payload: each.chunk_id for each in read(root, records)[0]}

    first, *others = EQUAL
    before = ids(tmp_path / "before", EQUAL)
    random.Random(seed).shuffle(others)
    assert ids(tmp_path / "after", [first, *others]) == before
    assert len({*before.values()}) == len(EQUAL)
    assert not any(each.endswith(("-2", "-3")) for each in before.values())


def test_copies_without_ids_are_numbered_and_so_are_all_equal_texts_of_a_run_that_began_so(tmp_path):
    one, other = EQUAL[:2]
    name = hashlib.sha256(b"same").hexdigest()[:32]
    found, counted = read(tmp_path / "new", [one, one, other, one])
    assert [each.chunk_id for each in found if each.payload == found[0].payload] == [name, f"{name}-2", f"{name}-3"]
    assert (counted.same, counted.renamed) == (0, 0)
    old, _ = read(tmp_path / "old", [one, one, other], by_ordinal=True)
    assert [each.chunk_id for each in old] == [name, f"{name}-2", f"{name}-3"]


def test_a_run_that_is_continued_tells_equal_texts_apart_as_it_did(tmp_path):
    now = load({}, {})
    assert recorded(now)["by_ordinal"].value is False
    assert continued(recorded(now), now).by_ordinal is False
    begun = {name: each for name, each in recorded(now).items() if name != "by_ordinal"}
    again = continued(begun, now)
    assert again.by_ordinal is True and recorded(again)["by_ordinal"].value is True
