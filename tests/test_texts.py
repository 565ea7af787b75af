"""Texts in memory go in as they are: lists, records, documents of other libraries, tables of any that knows Arrow."""

import dataclasses
import datetime
import json
import os
import re
import shutil
import uuid
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

import interlock
from interlock.engine.corpus.chunks import ChunkReader
from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.naming import USUAL, Naming
from interlock.engine.errors import InterlockError
from interlock.texts import path_to


@dataclasses.dataclass
class Document:
    """As Haystack has it."""

    id: str
    content: str
    meta: dict


class Element:
    """As Unstructured has it."""

    def __init__(self, text, page):
        self.text, self.id = text, "e1"
        self.metadata = SimpleNamespace(to_dict=lambda: {"page_number": page})


@pytest.mark.parametrize("name", [5, "", ".a", "a/b", "é" * 101])
def test_a_name_that_no_collection_can_have_is_refused(tmp_path, name):
    with pytest.raises(InterlockError, match="name: expected the name of a collection, got"):
        path_to(["a"], name, tmp_path)


def test_a_directory_whose_path_leaves_no_room_for_a_file_is_one_line(tmp_path):
    above = tmp_path / "/".join(["d" * 200] * 20)[: 4070 - len(os.fspath(tmp_path))]
    with pytest.raises(InterlockError, match="File name too long"):
        path_to(["a"], "texts", above)


def documents():
    """As LangChain, LlamaIndex, Haystack, Unstructured and Docling have them, made by hand."""
    return [
        SimpleNamespace(page_content="a", metadata={"source": "x.md", "page": 1}, id="l1", type="Document"),
        SimpleNamespace(text="b", metadata={"file": "y"}, id_="n1", node_id="n1"),
        Document("h1", "c", {"page": 3}),
        Element("d", 4),
        SimpleNamespace(text="e", meta=SimpleNamespace(export_json_dict=lambda: {"headings": ["H"]})),
    ]


def read(texts, tmp_path, naming=USUAL, name="texts"):
    (found,) = discover(path_to(texts, name, tmp_path / "inputs"), naming=naming)
    return list(ChunkReader(found))


def test_strings_in_a_list_an_array_or_an_iterator_are_the_same_corpus(tmp_path):
    ways = [["a", "b"], ("a", "b"), (each for each in "ab"), np.array(["a", "b"])]
    (path,) = {path_to(way, "texts", tmp_path) for way in ways}
    assert [each.text for each in read(path, tmp_path)] == ["a", "b"]
    assert [each.name for each in tmp_path.iterdir()] == [path.parent.name]


def test_a_column_of_arrow_is_a_list_of_texts(tmp_path):
    wanted = path_to(["a", "b"], "texts", tmp_path)
    assert path_to(pa.array(["a", "b"]), "texts", tmp_path) == wanted


def test_records_keep_ids_and_fields(tmp_path):
    rows = [{"id": np.int64(7), "text": "a", "path": Path("x/y")}, {"_id": "k", "text": "b", "metadata": {"page": 2}}]
    first, second = read(iter(rows), tmp_path)
    assert (first.chunk_id, json.loads(first.record)) == ("7", {"id": 7, "path": "x/y"})
    assert (second.chunk_id, json.loads(second.payload)) == ("k", {"page": 2})


@dataclasses.dataclass
class Row:
    text: str
    id: str
    lang: str


class Struct(msgspec.Struct):
    text: str
    id: str
    lang: str
    metadata: dict[str, int] = {}


def test_rows_that_are_objects_keep_all_their_fields(tmp_path):
    values = {"text": "a", "id": "k", "lang": "de"}
    named = namedtuple("named", [*values, "metadata"])(**values, metadata={"page": 1})
    made = pytest.importorskip("attrs").make_class("Made", [*values])(**values)
    rows = [values, made, Row(**values), SimpleNamespace(**values), Struct(**values, metadata={"page": 1}), named]
    for number, each in enumerate(rows):
        (found,) = read([each], tmp_path / str(number))
        assert (found.text, found.chunk_id, json.loads(found.record)) == ("a", "k", {"id": "k", "lang": "de"})
        assert json.loads(found.payload) == ({"page": 1} if number > 3 else {})


def test_a_slot_without_a_list_and_a_frame_within_a_record_are_kept_whole(tmp_path):
    slotted = type("Slotted", (), {"__slots__": "text"})()
    slotted.text = "a"
    (found,) = read([slotted], tmp_path)
    assert (found.text, found.record) == ("a", b"")
    (found,) = read([{"text": "a", "rows": pytest.importorskip("pandas").DataFrame({"x": range(100)})}], tmp_path)
    assert len(json.loads(found.record)["rows"]["x"]) == 100


def test_two_fields_that_may_be_the_text_are_both_kept(tmp_path):
    both = type("Both", (), {})()
    vars(both).update(page_content="a", text="b", metadata=None, meta={"m": 1}, id=[1], id_="k")
    (found,) = read([both], tmp_path)
    assert (found.text, json.loads(found.payload)) == ("a", {"m": 1})
    assert json.loads(found.record) == {"text_": "b", "id_": [1], "id": "k"}


def test_documents_and_objects_of_any_class_keep_all_that_json_can_hold(tmp_path):
    parts = {"text": "a", "id": "k", "lang": "de", "when": datetime.date(2024, 1, 2), "page": None}
    made = dataclasses.make_dataclass("Made", [*parts, "metadata"])(**parts, metadata={"m": 1})
    plain = type("Plain", (), {})()
    vars(plain).update(parts, metadata=SimpleNamespace(to_dict=lambda: {"m": 1}), _own=1, odd=object())
    bare = type("Bare", (), {})()
    vars(bare).update(parts)
    slotted = type("Slotted", (), {"__slots__": [*parts, "_own"]})()
    for name, value in parts.items():
        setattr(slotted, name, value)
    known = SimpleNamespace(page_content="a", id_="k", type="Document", metadata={"m": 1}, node_id="n")
    for number, each in enumerate((made, plain, bare, slotted, known)):
        (found,) = read([each], tmp_path / str(number))
        assert (found.text, found.chunk_id) == ("a", "k")
        assert json.loads(found.payload) == ({} if each in (bare, slotted) else {"m": 1})
        others = (
            {"type": "Document", "node_id": "n"}
            if each is known
            else {"lang": "de", "when": "2024-01-02", "page": None}
        )
        assert json.loads(found.record) == {**others, "id": "k"}


class Parsed(str):
    """A text of a class of its own, as Beautiful Soup and lxml give them."""


def test_texts_of_a_class_of_their_own_and_arrays_within_records_are_plain(tmp_path):
    record = {"text": Parsed("b"), "of": Parsed("x"), "vector": np.array([1.5, 2]), "table": np.eye(2, dtype=int)}
    first, second = read([Parsed("a"), record], tmp_path)
    assert (first.text, second.text) == ("a", "b")
    assert json.loads(second.record) == {"of": "x", "vector": [1.5, 2], "table": [[1, 0], [0, 1]]}


def test_a_table_with_two_columns_of_one_name_is_refused_in_words(tmp_path):
    made = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"])
    (refusal,) = read(made, tmp_path)
    assert refusal.reason == "2 columns are called 'text': rename all but one"


def test_documents_of_other_libraries_keep_ids_sources_and_pages(tmp_path):
    found = read(documents(), tmp_path)
    assert [(each.text, each.chunk_id) for each in found[:4]] == [("a", "l1"), ("b", "n1"), ("c", "h1"), ("d", "e1")]
    payloads = [json.loads(each.payload) for each in found]
    assert payloads == [
        {"source": "x.md", "page": 1},
        {"file": "y"},
        {"page": 3},
        {"page_number": 4},
        {"headings": ["H"]},
    ]


def test_bytes_in_a_record_are_the_utf_8_that_they_are(tmp_path):
    (found,) = read([{"text": "é".encode(), "id": bytearray(b"i"), "raw": b"\xff"}], tmp_path)
    assert (found.text, found.chunk_id, json.loads(found.record)["raw"]) == ("é", "i", "/w==")
    with pytest.raises(interlock.UsageError, match="codec can't decode"):
        path_to([{"body": b"\xff"}], "texts", tmp_path, Naming(text="body"))


def test_sets_and_bytes_at_any_depth_are_the_same_in_each_process(tmp_path):
    @dataclasses.dataclass
    class Tagged:
        tags: frozenset

    words = [f"w{number:02}" for number in range(40)]
    metadata = {"tags": set(words), "deep": [{"more": (frozenset(words), b"\xc3\xa9")}], "of": Tagged(frozenset(words))}
    (found,) = read([{"text": "a", "metadata": metadata}], tmp_path)
    assert json.loads(found.payload) == {"tags": words, "deep": [{"more": [words, "é"]}], "of": {"tags": words}}
    (found,) = read(pa.table({"text": ["a"], "parts": [[b"x", b"\xff"]]}), tmp_path)
    assert json.loads(found.record) == {"parts": ["x", "/w=="]}


def test_moments_of_numpy_are_texts_in_nanoseconds_too(tmp_path):
    at = np.datetime64("2020-01-01T00:00:00.123456789")
    record = {"text": "a", "at": at, "all": np.array([at, "NaT"], at.dtype), "for": np.timedelta64(5, "ns")}
    (found,) = read([record], tmp_path)
    said = str(at)
    assert json.loads(found.record) == {"at": said, "all": [said, None], "for": "5 nanoseconds"}


def test_documents_may_be_known_by_numbers_and_uuids(tmp_path):
    ids = [7, uuid.UUID(int=5), True, ""]
    found = read([SimpleNamespace(text=f"t{at}", metadata={}, id=each) for at, each in enumerate(ids)], tmp_path)
    assert [each.chunk_id for each in found[:2]] == ["7", str(uuid.UUID(int=5))]
    assert [len(each.chunk_id) for each in found[2:]] == [32, 32]


def test_tables_are_streamed_as_arrow(tmp_path):
    table = pa.table({"id": [1, 2], "body": ["a", "b"], "title": ["t", None]})
    found = read(table, tmp_path, Naming(text="body", title="title"))
    assert [(each.text, each.chunk_id) for each in found] == [("t a", "1"), ("b", "2")]
    (alone,) = read(pa.chunked_array([["only"]]), tmp_path)
    assert alone.text == "only"
    (numbered,) = read(pa.table({"text": ["a"], "n": [1], "__index_level_0__": [7]}), tmp_path)  # of pandas, by itself
    assert json.loads(numbered.record) == {"n": 1}


def indexed(named, start=1, stop=4):
    """As pandas has a frame with the index 1, 2, 3: beside its columns."""
    said = {"index_columns": [{"kind": "range", "name": named, "start": start, "stop": stop, "step": 1}]}
    return pa.table({"text": ["a", "b", "c"]}).replace_schema_metadata({"pandas": json.dumps(said)})


def test_an_index_of_pandas_with_a_name_is_a_column_though_it_is_a_range(tmp_path):
    table = indexed("id")
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    feather.write_feather(table, tmp_path / "b.feather", chunksize=2)
    with pa.ipc.new_stream(tmp_path / "c.arrow", table.schema) as out:
        out.write_table(table, max_chunksize=2)
    for texts in (table, *(tmp_path / name for name in ("a.parquet", "b.feather", "c.arrow"))):
        assert [(each.text, each.chunk_id) for each in read(texts, tmp_path)] == [("a", "1"), ("b", "2"), ("c", "3")]
    assert [each.chunk_id for each in read(indexed("key"), tmp_path, Naming(id="key"))] == ["1", "2", "3"]
    frame = SimpleNamespace(index=SimpleNamespace(names=["id"]), to_frame=lambda _: table)
    frame.__arrow_c_stream__ = pa.chunked_array([["a", "b", "c"]]).__arrow_c_stream__  # a column with that index
    assert [each.chunk_id for each in read(frame, tmp_path)] == ["1", "2", "3"]


def test_an_index_of_pandas_with_the_name_of_a_column_is_no_other_numbers(tmp_path):
    columns = {"text": ["a", "b"], "sku": [4, 5]}
    for numbers, refused in (([1, 2], True), ([4, 5], False)):
        frame = SimpleNamespace(**columns, columns=[*columns], __arrow_c_stream__=pa.table(columns).__arrow_c_stream__)
        frame.index = SimpleNamespace(names=["sku"], get_level_values=lambda _, own=numbers: own)
        made = type("Frame", (), {**vars(frame), "__getitem__": lambda _, name: columns[name]})()
        made.__class__.__arrow_c_stream__ = lambda _, schema=None: pa.table(columns).__arrow_c_stream__(schema)
        if refused:
            with pytest.raises(interlock.UsageError, match="the index and a column are both called 'sku': rename one"):
                path_to(made, "texts", tmp_path / "inputs")
        else:
            assert [each.text for each in read(made, tmp_path)] == ["a", "b"]


def test_an_index_of_pandas_without_a_name_or_of_other_rows_is_none(tmp_path):
    parts = indexed("id").slice(1), indexed("id", stop=2**70), indexed("id", start=2**70, stop=2**70 + 3), indexed(None)
    for other in parts[:2] + parts[3:]:
        assert {len(each.chunk_id) for each in read(other, tmp_path)} == {32}
    (refusal,) = read(parts[2], tmp_path)
    assert "cannot read the table" in refusal.reason
    known = pa.table({"text": ["a"], "__index_level_0__": ["k-1"]})  # by texts, as a file has it too
    (found,) = read(known, tmp_path)
    assert json.loads(found.record) == {"__index_level_0__": "k-1"}


class Timestamp(datetime.datetime):
    """As pandas has it."""

    __module__ = "pandas"

    def isoformat(self):
        return super().isoformat() + ".123456789"


class Missing:
    __module__ = "pandas.api.typing"

    def __str__(self):
        return "<NA>"


def test_what_no_file_can_hold_is_told_by_its_place(tmp_path):
    endless = {"text": "a"}
    endless["more"] = endless
    for wrong, said in (("\ud83d", "a string has half of a surrogate pair"), (endless, "nested too deeply")):
        with pytest.raises(interlock.UsageError, match=rf"chunks\[1\]: {said}"):
            path_to(["a", wrong], "texts", tmp_path)
    (found,) = read([{"text": "a", "z": [1 + 2j, np.complex64(3j)]}], tmp_path)
    assert json.loads(found.record) == {"z": ["(1+2j)", "3j"]}


def test_times_and_missing_values_of_pandas_in_records_are_as_in_its_tables(tmp_path):
    (found,) = read([{"text": "a", "at": Timestamp(2020, 1, 1), "n": Missing()}], tmp_path)
    assert json.loads(found.record) == {"at": "2020-01-01T00:00:00.123456789", "n": None}


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_data_frame_is_a_table(tmp_path, library):
    made = pytest.importorskip(library).DataFrame({"id": ["x", "y"], "text": ["a", "b"], "n": [1.5, None]})
    found = read(made, tmp_path)
    assert [(each.text, each.chunk_id, json.loads(each.record)["n"]) for each in found] == [
        ("a", "x", 1.5),
        ("b", "y", None),
    ]
    assert [each.text for each in read(made["text"], tmp_path)] == ["a", "b"]


class Mixed:
    """As pandas has a frame whose column `x` holds numbers and texts."""

    columns = ("text", "x")

    def __arrow_c_stream__(self, requested_schema=None):
        raise pa.ArrowInvalid("Could not convert 'b' with type str", "Conversion failed for column x with type object")


class Frame:
    """As a library has it whose column `n` holds what Arrow has not."""

    columns = ("text", "n")

    def __init__(self, **values):
        self.values = values

    def __getitem__(self, name):
        return [self.values[name]]

    def __arrow_c_stream__(self, requested_schema=None):
        return pa.chunked_array(self["n"]).__arrow_c_stream__()


def test_the_column_is_named_that_arrow_cannot_have(tmp_path):
    large = Frame(text=["a", "b"], id=[1, 2], n=[1, 2**70])
    large.index = SimpleNamespace(names=["id"])
    remedy = re.escape("or pass chunks.reset_index().to_dict('records')")
    with pytest.raises(interlock.UsageError, match=rf"chunks: column 'n': .* too large .*, {remedy}"):
        path_to(large, "texts", tmp_path / "inputs")
    large.index.get_level_values = large.__getitem__
    large.columns = ("id", "n")  # which pandas would have twice
    with pytest.raises(interlock.UsageError, match=re.escape("or pass chunks.to_dict('records')")):
        path_to(large, "texts", tmp_path / "inputs")
    large.columns = ("n", "n")  # of which a record keeps one
    with pytest.raises(interlock.UsageError, match="chunks: 2 columns are called 'n': rename all but one"):
        path_to(large, "texts", tmp_path / "inputs")
    objects = Frame(text=["a"], n=[b"address"])
    objects.collect_schema, objects.to_dicts = lambda: {"text": "String", "n": "Object"}, None
    with pytest.raises(interlock.UsageError, match=r"column 'n' holds objects of Python: .* pass chunks\.to_dicts"):
        path_to(objects, "texts", tmp_path / "inputs")


def test_what_is_not_computed_yet_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(interlock.UsageError, match=r"a LazyFrame is not computed yet: pass chunks\.collect\(\)"):
        path_to(SimpleNamespace(collect_schema=dict), "texts", tmp_path / "inputs")


def test_a_column_of_a_table_that_says_no_value_is_named_with_what_to_do(tmp_path):
    with pytest.raises(interlock.UsageError, match=r"column x .*: give each column one type, .* pass chunks\.to_dict"):
        path_to(Mixed(), "texts", tmp_path / "inputs")
    large = SimpleNamespace(columns=("text", "n"), __arrow_c_stream__=lambda *_: pa.array([2**70]))
    with pytest.raises(interlock.UsageError, match=r"chunks: .* too large .*, or pass chunks\.to_dict\('records'\)"):
        path_to(large, "texts", tmp_path / "inputs")
    structs = pa.array([{"text": "a", "s": {"x": 1}}, None])
    with pytest.raises(interlock.UsageError, match=r"chunks: .*null.*: .* or pass chunks\.to_pylist\(\)"):
        path_to(pa.chunked_array([structs]), "texts", tmp_path / "inputs")
    whole = pa.table({"text": ["a", "b"], "s": pa.array([{"x": [1, None]}, None])})
    assert [json.loads(each.record)["s"] for each in read(whole, tmp_path)] == whole["s"].to_pylist()
    shutil.rmtree(tmp_path / "inputs")
    periods = pa.field("when", pa.int64(), metadata={"ARROW:extension:name": "pandas.period"})
    table = pa.table([["a"], [600]], schema=pa.schema([pa.field("text", pa.string()), periods]))
    with pytest.raises(interlock.UsageError, match=r"chunks: column 'when' holds periods .*: pass it through astype"):
        path_to(table, "texts", tmp_path / "inputs")
    pq.write_table(table, tmp_path / "a.parquet")
    (found,) = discover(tmp_path / "a.parquet")
    (refusal,) = ChunkReader(found)
    assert "column 'when' holds periods" in refusal.reason
    assert not [*tmp_path.glob("inputs/*")]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([], "expected at least one text, got none"),
        (["a", 5], r"chunks\[1\]: expected a text, a record or a document, got 5"),
        ([{"text": "a", "raw": object()}], r"chunks\[0\]: .*object"),
        ([{"text": "a", "of": {1: "x", "1": "y"}}], r"chunks\[0\]: .*a dict with the keys 1 and '1'"),
        (["\ud800"], r"chunks\[0\]: "),
        ([{"text": b"\xff"}], r"chunks\[0\]: .*codec can't decode"),
        ([None, "a"], r"chunks\[0\]: expected a text, a record or a document, got None"),
        ({"text": ["a"]}, "expected a path or texts, got a dict: pass one of its values"),
        (b"in", "expected a path, got b'in'"),
        (5, "expected a path, got 5"),
        (np.array("a"), "expected a path or texts, got array"),
        (np.array([["a", "b"]]), r"chunks\[0\]: expected a text, .*got array"),
        ({"a", "b"}, r"a set has no order, .*: pass sorted\(chunks\)"),
    ],
)
def test_what_is_no_text_is_named(tmp_path, texts, said):
    with pytest.raises(interlock.UsageError, match=said):
        path_to(texts, "texts", tmp_path / "inputs")
    assert not [*tmp_path.glob("inputs/*")]


@pytest.mark.parametrize("name", ["", "a/b", ".a", "a\n"])
def test_a_collection_is_called_by_a_name(tmp_path, name):
    with pytest.raises(interlock.UsageError, match="name: expected the name of a collection"):
        path_to(["a"], name, tmp_path)


def test_texts_are_planned_embedded_continued_and_exported_like_files(tmp_path, tiny_a):
    texts = [f"text number {number}" for number in range(20)]
    settings = interlock.Settings(roster=[str(tiny_a)], out=tmp_path / "runs", devices="cpu", run_id="r")
    assert "News" in str(interlock.plan(texts, settings, name="News")) and not (tmp_path / "runs").exists()
    run = interlock.embed(texts, settings, progress="none", name="News")
    again = interlock.embed(iter(texts), dataclasses.replace(settings, resume=True), progress="none", name="News")
    assert again.path == run.path and len(run.vectors("News").array) == 20
    with pytest.raises(interlock.UsageError, match=r"differs|was started|changed|is new|is missing"):
        interlock.embed(texts[1:], dataclasses.replace(settings, resume=True), progress="none", name="News")


def test_a_document_without_a_text_is_told_by_its_place_and_where_it_comes_from(tmp_path, tiny_a):
    texts = documents()[:2]
    texts[0].page_content = " "
    settings = interlock.Settings(roster=[tiny_a], out=tmp_path / "runs", qdrant=tmp_path / "store", max_refused="0")
    with pytest.raises(InterlockError) as failed:
        interlock.embed(texts, settings, progress="none")
    assert "(chunks[0] (source 'x.md', page 1)), and its store has all else: mend them" in str(failed.value)
    assert "use Settings(max_refused='1'): open_run(" in str(failed.value)
    again = interlock.embed(texts, dataclasses.replace(settings, max_refused="1"), progress="none")
    assert again.summary.status == "completed"
