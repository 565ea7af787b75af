"""How chunk files become chunks: layouts, payload, and an identity that stays the same."""

import hashlib
import json
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.engine.corpus.chunks import Chunk, ChunkReader
from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.corpus import read_corpus
from interlock.engine.corpus.records import LIST_KEYS
from interlock.engine.corpus.rereading import reread
from interlock.engine.errors import InterlockError
from tests.builders import corpus


def reader(root, name=None):
    return ChunkReader(discover(root, [name] if name else [])[0])


def chunks(root, name=None):
    found = list(reader(root, name))
    assert all(isinstance(each, Chunk) for each in found), found
    return found


def raw(tmp_path, data, name="a_chunks.json"):
    (tmp_path / "Docs").mkdir(exist_ok=True)
    (tmp_path / "Docs" / name).write_bytes(data)
    return tmp_path


def content_id(text):
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def with_id(text, chunk_id, **metadata):
    return {"text": text, "metadata": {"chunk_id": chunk_id, **metadata}}


def test_chunks_come_in_the_order_of_the_list(tmp_path):
    assert [each.text for each in chunks(corpus(tmp_path, {"D": {"a_chunks.json": ["b", "a", "c"]}}))] == [
        "b",
        "a",
        "c",
    ]


@pytest.mark.parametrize("key", LIST_KEYS)
def test_an_object_that_holds_the_list_gives_its_records(tmp_path, key):
    root = raw(tmp_path, json.dumps({"version": 3, key: [{"text": "a"}, {"text": "b"}], "total": 2}).encode())
    assert [each.text for each in chunks(root)] == ["a", "b"]


def test_fields_beside_the_list_are_told_once(tmp_path):
    for name in ("a_chunks.json", "b_chunks.json"):
        root = raw(tmp_path, b'{"document": "h.pdf", "chunks": [{"text": "a"}], "total": 1}', name)
    found = reader(root)
    assert len(list(found)) == 2
    (said,) = found.counts.told("Docs")
    assert said.startswith(
        "Docs: fields beside the records of a_chunks.json ('document', 'total') are left out: put them"
    )


def test_jsonl_skips_blank_lines_and_takes_crlf(tmp_path):
    root = raw(tmp_path, b'{"text": "a"}\r\n\r\n{"text": "b"}\r\n  \n{"text": "c"}', "a.jsonl")
    assert [each.text for each in chunks(root)] == ["a", "b", "c"]


@pytest.mark.parametrize(("name", "data"), [("a_chunks.json", b'[{"text": "a"}]'), ("a.jsonl", b'{"text": "a"}\n')])
def test_a_byte_order_mark_is_skipped(tmp_path, name, data):
    assert [each.text for each in chunks(raw(tmp_path, b"\xef\xbb\xbf" + data, name))] == ["a"]


def test_files_are_read_in_name_order_and_each_hash_is_kept(tmp_path):
    root = corpus(tmp_path, {"D": {"b_chunks.json": ["b"], "a/z.jsonl": ["a"], "c.jsonl": ["c"]}})
    read = reader(root)
    assert [each.text for each in read] == ["a", "b", "c"]
    assert read.hashes == {
        name: hashlib.sha256((root / "D" / name).read_bytes()).hexdigest()
        for name in ("a/z.jsonl", "b_chunks.json", "c.jsonl")
    }


def test_the_payload_is_the_metadata_object_as_it_stood_in_the_file(tmp_path):
    payload = b'{ "z": [1.50, {"\\u00e9": null}],"a":12345678901234567890123 }'
    (chunk,) = chunks(raw(tmp_path, b'[{"metadata": ' + payload + b', "text": "a", "other": 1}]'))
    assert chunk.payload == payload


def test_other_fields_of_a_record_are_kept_beside_its_metadata(tmp_path):
    data = b'{"id": 7, "text": "a", "score": 1.50, "metadata": {"page": 3}, "tags": ["x", {"y": null}]}\n{"text": "b"}'
    with_others, without = chunks(raw(tmp_path, data, "a.jsonl"))
    assert (with_others.payload, without.payload) == (b'{"page": 3}', b"{}")
    assert json.loads(with_others.record) == {"id": 7, "score": 1.5, "tags": ["x", {"y": None}]}
    assert json.loads(with_others.whole_payload) == {"page": 3, "record": json.loads(with_others.record)}
    assert (without.record, without.whole_payload) == (b"", b"{}")


@pytest.mark.parametrize(
    ("record", "payload"),
    [
        ({"page_content": "a", "metadata": {"p": 1}, "type": "Document"}, {"p": 1, "record": {"type": "Document"}}),
        (
            {"lc": 1, "id": ["x"], "score": 0.5, "kwargs": {"page_content": "a", "metadata": {"p": 1}}},
            {"p": 1, "record": {"score": 0.5}},
        ),
        ({"id": "i", "content": "a", "meta": {"p": 1}, "blob": None}, {"p": 1, "record": {"id": "i", "blob": None}}),
        ({"content": "a", "page": 2}, {"record": {"page": 2}}),
        ({"text": "a", "content": "b", "meta": {"p": 1}}, {"record": {"content": "b", "meta": {"p": 1}}}),
    ],
)
def test_a_text_has_the_name_that_its_producer_gives_it(tmp_path, record, payload):
    (chunk,) = chunks(corpus(tmp_path, {"D": {"a_chunks.json": [record]}}))
    assert (chunk.text, json.loads(chunk.whole_payload)) == ("a", payload)


def test_metadata_with_a_field_called_record_loses_nothing_to_other_fields(tmp_path):
    (chunk,) = chunks(raw(tmp_path, b'[{"text": "a", "metadata": {"record": 1}, "id": 7}]'))
    assert json.loads(chunk.whole_payload) == {"record": 1, "record_": {"id": 7}}


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("[" * 200 + "]" * 200, "nested too deeply"),
        ("1e400", "out of range"),
        (r'"\udfff"', "surrogate"),
        ("NaN", "malformed"),
        ("9" * 5000, ""),
    ],
)
def test_other_fields_that_cannot_be_delivered_are_refused_with_their_record_alone(tmp_path, other, reason):
    data = '{"text": "a"}\n{"text": "b", "x": ' + other + '}\n{"text": "c"}'
    first, refusal, last = reader(raw(tmp_path, data.encode(), "a.jsonl"))
    assert (first.text, refusal.record, last.text) == ("a", 2, "c")
    assert reason in refusal.reason


@pytest.mark.parametrize("metadata", [{}, {"metadata": None}, {"metadata": {}}])
def test_the_payload_is_an_empty_object_without_metadata(tmp_path, metadata):
    (chunk,) = chunks(corpus(tmp_path, {"D": {"a_chunks.json": [{"text": "a", **metadata}]}}))
    assert chunk.payload == b"{}"


@pytest.mark.parametrize("text", ["a\0b", "\0", "  padded  ", "emoji \U0001f600", "a\u200db", "\uffff"])
def test_a_text_with_unusual_characters_is_kept_exactly(tmp_path, text):
    (chunk,) = chunks(corpus(tmp_path, {"D": {"a_chunks.json": [text]}}))
    assert chunk.text == text


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip))
def test_any_text_is_kept_exactly(tmp_path_factory, text):
    root = raw(tmp_path_factory.mktemp("texts"), json.dumps([{"text": text}], ensure_ascii=False).encode())
    assert [each.text for each in chunks(root)] == [text]


def test_a_chunk_id_is_the_identity_of_its_chunk(tmp_path):
    root = corpus(tmp_path, {"D": {"a_chunks.json": [with_id("a", "x/1"), with_id("a", 7), with_id("a", 0)]}})
    assert [each.chunk_id for each in chunks(root)] == ["x/1", "7", "0"]


@pytest.mark.parametrize("metadata", [{}, {"chunk_id": None}, {"chunk_id": ""}])
def test_the_text_is_the_identity_without_a_chunk_id(tmp_path, metadata):
    (chunk,) = chunks(corpus(tmp_path, {"D": {"a_chunks.json": [{"text": "some text", "metadata": metadata}]}}))
    assert chunk.chunk_id == content_id("some text")


@pytest.mark.parametrize(
    ("metadata", "source"),
    [
        ({"source_path": "p", "source_file": "f", "filename": "n"}, "p"),
        ({"source_path": "", "source_file": "f", "filename": "n"}, "f"),
        ({"filename": "n"}, "n"),
        ({}, "sub/a_chunks.json"),
    ],
)
def test_the_source_is_the_first_that_the_metadata_names_or_else_the_file(tmp_path, metadata, source):
    root = corpus(tmp_path, {"D": {"sub/a_chunks.json": [{"text": "a", "metadata": metadata}]}})
    assert chunks(root)[0].source == source


def test_a_text_repeated_in_one_source_gets_numbered_identities(tmp_path):
    found = chunks(corpus(tmp_path, {"D": {"a_chunks.json": ["same", "other", "same", "same"]}}))
    name = content_id("same")
    assert [each.chunk_id for each in found] == [name, content_id("other"), f"{name}-2", f"{name}-3"]
    assert len({each.point_id for each in found}) == 4


def test_a_chunk_id_repeated_in_one_source_costs_no_record(tmp_path):
    root = corpus(tmp_path, {"D": {"a_chunks.json": [with_id("a", "1"), with_id("b", 1), with_id("c", "2")]}})
    found = chunks(root)
    assert [each.text for each in found] == ["a", "b", "c"]
    assert len({each.point_id for each in found}) == 3


def test_a_chunk_id_in_two_sources_makes_two_points(tmp_path):
    files = {"a_chunks.json": [with_id("a", "1")], "b_chunks.json": [with_id("b", "1")]}
    found = chunks(corpus(tmp_path, {"D": files}))
    assert len({each.point_id for each in found}) == 2


def test_a_chunk_id_repeated_across_files_of_a_source_names_the_later_file(tmp_path):
    files = {f"{name}_chunks.json": [with_id(name, "1", source_path="s")] for name in "ab"}
    read = reader(corpus(tmp_path, {"D": files}))
    first, later = read
    assert (first.chunk_id, read.counts.renamed) == ("1", 1)
    assert read.counts.first == f"b_chunks.json record 1: chunk_id 1 of s is now {later.chunk_id}"


def test_the_same_chunk_elsewhere_has_the_same_point_id(tmp_path):
    one = corpus(tmp_path / "one", {"My Docs": {"a_chunks.json": ["a", with_id("b", "2", source_path="s")]}})
    other = corpus(
        tmp_path / "other",
        {"my docs": {"a_chunks.json": ["new", "a"], "z.jsonl": [with_id("b, but changed", "2", source_path="s")]}},
    )
    ids = {each.text[0]: each.point_id for each in chunks(one)}
    again = {each.text[0]: each.point_id for each in chunks(other)}
    assert {name: again[name] for name in ids} == ids
    assert all(UUID(point).version == 5 for point in ids.values())


def test_the_same_chunk_in_two_collections_makes_two_points(tmp_path):
    root = corpus(tmp_path, {"A": {"a_chunks.json": ["a"]}, "B": {"a_chunks.json": ["a"]}})
    assert chunks(root, "A")[0].point_id != chunks(root, "B")[0].point_id


def test_a_text_in_several_chunks_is_taken_once(tmp_path):
    root = corpus(tmp_path, {"A": {"a_chunks.json": ["x", "y", "x"]}, "B": {"a_chunks.json": ["y", "z", "x"]}})
    taken = []
    read = read_corpus(discover(root), taken.extend)
    assert taken == ["x", "y", "z"]
    assert [rows.texts.tolist() for rows in read.rows] == [[0, 1, 0], [1, 2, 0]]
    assert [(rows.first_text, rows.own_texts, rows.duplicates) for rows in read.rows] == [(0, 2, 1), (2, 1, 2)]
    assert (read.chunks, len(read.digests)) == (6, 3)
    assert read.digests[2].tobytes() == hashlib.sha256(b"z").digest()[:16]


def test_more_texts_than_a_window_are_all_taken_in_order(tmp_path):
    texts = [f"text {number % 1300}" for number in range(1500)]
    windows = []
    read = read_corpus(discover(corpus(tmp_path, {"A": {"a.jsonl": texts}})), windows.append)
    assert [text for window in windows for text in window] == texts[:1300]
    np.testing.assert_array_equal(read.rows[0].texts, np.arange(1500) % 1300)


def test_reading_again_gives_the_good_chunks_in_row_order(tmp_path):
    root = corpus(tmp_path, {"A": {"a_chunks.json": ["x", {"text": 1}, "y"], "b.jsonl": ["x"]}})
    read = read_corpus(discover(root), lambda _: None)
    assert [chunk.text for chunk in reread(read.rows[0], read.digests)] == ["x", "y", "x"]


@pytest.mark.parametrize("change", ["edited", "gone"])
def test_reading_again_names_a_file_that_changed(tmp_path, change):
    root = corpus(tmp_path, {"A": {"a_chunks.json": ["x"], "b.jsonl": ["y"]}})
    read = read_corpus(discover(root), lambda _: None)
    if change == "gone":
        (root / "A" / "b.jsonl").unlink()
    else:
        (root / "A" / "b.jsonl").write_text('{"text": "z"}\n')
    with pytest.raises(InterlockError, match=r"A/b\.jsonl changed during the run"):
        list(reread(read.rows[0], read.digests))
