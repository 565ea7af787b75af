"""Tables of texts go in as chunk files do: CSV, parquet, Arrow and JSON, packed too; what is wrong is named."""

import csv
import datetime
import gzip
import io
import json
import re
import shlex
import struct
import sys
import tracemalloc
from dataclasses import replace
from decimal import Decimal
from itertools import compress
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from interlock.engine.corpus.chunks import UNUSABLE, Chunk, ChunkReader
from interlock.engine.corpus.collections import discover, overlooked
from interlock.engine.corpus.corpus import read_and_tokenise, read_corpus
from interlock.engine.corpus.naming import USUAL, Naming
from interlock.engine.corpus.tables import LONGEST_CELL
from interlock.engine.errors import UsageError
from interlock.engine.record.events import Warned
from tests.builders import interlock

ROWS = [
    {"id": "k-1", "title": "Rivers", "body": 'The Rhine, the "Rhône"\nand the Danube', "lang": "en"},
    {"id": "k-2", "title": "", "body": "größer als ein Bach; kleiner als ein Strom", "lang": "de"},
    {"id": "k-3", "title": "Seas", "body": "salt water", "lang": "en"},
]
NAMED = Naming("body", "id", "title")


def as_csv(rows, delimiter=","):
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def as_arrow(rows, stream=True, **form):
    table, sink, options = pa.Table.from_pylist(rows), pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(**form)
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=max(2, len(rows) // 10))
    return sink.getvalue().to_pybytes()


def as_parquet(rows):
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=max(2, len(rows) // 10))
    return sink.getvalue().to_pybytes()


def as_feather(rows):
    sink = pa.BufferOutputStream()
    pyarrow.feather.write_feather(pa.Table.from_pylist(rows), sink)
    return sink.getvalue().to_pybytes()


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def zstd(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as out:
        out.write(data)
    return sink.getvalue().to_pybytes()


FILES = {
    "a.csv": as_csv(ROWS).encode(),
    "semicolons.csv": as_csv(ROWS, ";").encode(),
    "BOM.CSV": as_csv(ROWS).encode("utf-8-sig"),
    "wide.csv": as_csv(ROWS).encode("utf-16"),
    "a.tsv": as_csv(ROWS, "\t").encode(),
    "a.csv.gz": gzip.compress(as_csv(ROWS).encode()),
    "a.csv.zst": zstd(as_csv(ROWS).encode()),
    "a.jsonl": lines(ROWS),
    "a.jsonl.gz": gzip.compress(lines(ROWS)),
    "a.jsonl.zst": zstd(lines(ROWS)),
    "a.ndjson": lines(ROWS),
    "a.json": json.dumps({"data": ROWS}).encode(),
    "a.json.gz": gzip.compress(json.dumps(ROWS).encode()),
    "a_chunks.json.gz": gzip.compress(json.dumps(ROWS).encode()),
    "a.parquet": as_parquet(ROWS),
    "a.parquet.gz": gzip.compress(as_parquet(ROWS)),
    "a.parquet.zst": zstd(as_parquet(ROWS)),
    "a.arrow.zst": zstd(as_arrow(ROWS)),
    "a.arrow": as_arrow(ROWS),
    "legacy.arrow": as_arrow(ROWS, use_legacy_format=True),
    "file.arrow": as_arrow(ROWS, stream=False),
    "a.feather": as_feather(ROWS),
}


def read(path, naming=NAMED):
    (found,) = discover(path, naming=naming)
    return list(ChunkReader(found))


def test_places_beyond_the_end_of_a_damaged_table_are_not_followed(tmp_path):
    whole = as_arrow([{"text": "one text"}, {"text": "b"}])
    starts = struct.pack("<3i", 0, 8, 9)
    assert whole.count(starts) == 1
    (tmp_path / "a.arrow").write_bytes(whole.replace(starts, struct.pack("<3i", 0, 2**31 - 1, 9)))
    (refusal,) = read(tmp_path / "a.arrow", USUAL)
    assert "cannot read the table (Offset invariant failure" in refusal.reason


@pytest.mark.parametrize("alone", [True, False], ids=["as a file", "in a directory"])
@pytest.mark.parametrize("name", FILES)
def test_each_form_gives_the_same_chunks(tmp_path, name, alone):
    (tmp_path / "in" / "Docs").mkdir(parents=True)
    file = tmp_path / "in" / "Docs" / name
    file.write_bytes(FILES[name])
    chunks = read(file if alone else tmp_path / "in")
    assert [each.text for each in chunks] == [f"{row['title']} {row['body']}".strip() for row in ROWS]
    assert [each.chunk_id for each in chunks] == [row["id"] for row in ROWS]
    rest = [{name: value for name, value in row.items() if name != "body"} for row in ROWS]
    assert [json.loads(each.record) for each in chunks] == rest


def test_a_file_is_a_collection_of_its_name_and_its_hash_is_that_of_what_lies_on_the_disk(tmp_path):
    import hashlib

    for name in ("News.csv.gz", "News.parquet", "News_chunks.json", "News.jsonl.zst", "News.parquet.gz"):
        data = FILES["a" + name.removeprefix("News")] if "_" not in name else json.dumps(ROWS).encode()
        (tmp_path / name).write_bytes(data)
        read_ = read_corpus(discover(tmp_path / name, naming=NAMED), lambda _: None)
        assert [rows.collection.name for rows in read_.rows] == ["News"]
        assert read_.fingerprint() == {f"News/{name}": hashlib.sha256(data).hexdigest()}


def test_a_table_knows_its_ids_and_a_chunk_file_keeps_those_it_had(tmp_path):
    rows = [{"id": 7, "text": "one"}, {"id": None, "text": "two"}]
    (tmp_path / "a.parquet").write_bytes(as_parquet(rows))
    (tmp_path / "a.jsonl").write_bytes(lines(rows))
    table, chunks = (read(tmp_path / name, Naming()) for name in ("a.parquet", "a.jsonl"))
    assert table[0].chunk_id == "7"
    assert [table[1].chunk_id, *(len(each.chunk_id) for each in chunks)] == [chunks[1].chunk_id, 32, 32]


def test_what_json_has_no_kind_for_is_a_text_with_all_its_digits(tmp_path):
    table = pa.table(
        {
            "text": pa.array(["a"]).dictionary_encode(),
            "when": pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5)], pa.timestamp("us")),
            "nano": pa.array([1_600_000_000_123_456_789], pa.timestamp("ns")),
            "zoned": pa.array([1], pa.timestamp("ns", "Asia/Kolkata")),
            "utc": pa.array([1], pa.timestamp("ns", "UTC")),
            "late": pa.array([253_402_300_800_000], pa.timestamp("ms")),
            "day": pa.array([datetime.date(2026, 1, 2)]),
            "raw": pa.array([b"\x00\xff"]),
            "gone": pa.array([float("nan")]),
            "tags": pa.array([["x", "y"]]),
            "price": pa.array([Decimal("24.30")]),
            "key": pa.array([Decimal("12345678901234567890")]),
            "fine": pa.array([Decimal("1.00000000000000000001")]),
            "within": pa.array([[{"each": Decimal("0.1")}]]),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (chunk,) = read(tmp_path / "a.parquet", Naming())
    assert json.loads(chunk.record) == {
        "when": "2026-01-02T03:04:05",
        "nano": "2020-09-13T12:26:40.123456789",
        "zoned": "1970-01-01T05:30:00.000000001+05:30",
        "utc": "1970-01-01T00:00:00.000000001Z",
        "late": "10000-01-01T00:00:00.000",
        "day": "2026-01-02",
        "raw": "AP8=",
        "gone": None,
        "tags": ["x", "y"],
        "price": 24.3,
        "key": 12345678901234567890,
        "fine": "1.00000000000000000001",
        "within": [{"each": 0.1}],
    }


def test_a_cell_that_cannot_be_read_costs_its_own_row_and_times_beyond_python_are_texts(tmp_path):
    whole = pa.array(["aaaa"] * 1500)
    _, offsets, data = whole.buffers()
    spoilt = bytearray(data.to_pybytes())
    spoilt[700 * 4] = 0xFF
    note = pa.Array.from_buffers(pa.string(), 1500, [None, offsets, pa.py_buffer(bytes(spoilt))])
    until = pa.array([2**63 - 1] + [0] * 1499, pa.timestamp("us"))
    since = pa.array([1_700_000_000_000] + [0] * 1499, pa.timestamp("s", "UTC"))  # milliseconds, taken for seconds
    took = pa.array([1_000_001] + [1_000] * 1499, pa.duration("ns"))
    texts = [f"text {each}" for each in range(1500)]
    inner = pa.array(
        [{"at": 1, "each": [2]}] * 1500, pa.struct([("at", pa.timestamp("ns")), ("each", pa.list_(pa.int8()))])
    )
    names = ["text", "note", "until", "since", "took", "inner"]
    pa.feather.write_feather(pa.table([texts, note, until, since, took, inner], names), tmp_path / "a.arrow")
    found = read(tmp_path / "a.arrow", Naming())
    (refused,) = [each for each in found if not isinstance(each, Chunk)]
    assert (refused.record, refused.reason) == (701, "column 'note' is not UTF-8: write it as UTF-8")
    assert [each.text for each in found if isinstance(each, Chunk)] == texts[:700] + texts[701:]
    first, second = (json.loads(each.record) for each in found[:2])
    assert first["until"] == "<value out of range: 9223372036854775807>"
    assert first["since"] == "<value out of range: 1700000000000>"
    assert (first["took"], second["took"]) == ("PT0.001000001S", "PT0.000001S")
    assert second["until"] == "1970-01-01T00:00:00"
    assert first["inner"] == {"at": "1970-01-01T00:00:00.000000001", "each": [2]}


def test_fields_that_cannot_be_told_apart_cost_their_rows(tmp_path):
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["k", "k"])
    pq.write_table(pa.table([["a"], twice], ["text", "s"]), tmp_path / "a.parquet")
    (refused,) = [each for each in read(tmp_path / "a.parquet", Naming()) if each.record]
    assert refused.reason == "column 's' cannot be read (2 columns are called 'k': rename all but one): drop the column"


@pytest.mark.parametrize("name", ["text", "page_content", "body"])
def test_bytes_are_the_text_that_they_are_and_what_is_no_text_is_not_embedded(tmp_path, name):
    columns = [pa.array(["größer".encode(), "größer".encode("latin-1")]), pa.array([b"x", b"\xff"])]
    pq.write_table(pa.table(columns, [name, "note"]), tmp_path / "a.parquet")
    chunk, refused = read(tmp_path / "a.parquet", Naming("body" if name == "body" else ""))
    assert (chunk.text, json.loads(chunk.record)) == ("größer", {"note": "x"})
    assert refused.reason == "its text is bytes that are not UTF-8: write it as UTF-8"


def test_a_column_that_happens_to_be_called_metadata_is_one_like_others(tmp_path):
    (tmp_path / "a.csv").write_text('text,metadata\na,"{""x"": 1}"\n')
    (tmp_path / "a.parquet").write_bytes(as_parquet([{"text": "a", "metadata": {"x": 1}}]))
    cells, columns = (read(tmp_path / name, Naming())[0] for name in ("a.csv", "a.parquet"))
    assert (cells.payload, json.loads(cells.record)) == (b"{}", {"metadata": '{"x": 1}'})
    assert (columns.payload, columns.record) == (b'{"x":1}', b"")


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_a_csv_file_in_another_encoding_is_read_without_a_mark_too(tmp_path, encoding, quote):
    rows = f"{quote}id{quote},{quote}text{quote}\r\n1,{quote}größer 日本{quote}\r\n2,b\r\n"
    (tmp_path / "a.csv").write_bytes(rows.encode(encoding))
    found = [(each.chunk_id, each.text) for each in read(tmp_path / "a.csv", Naming())]
    assert found == [("1", "größer 日本"), ("2", "b")]


@pytest.mark.parametrize("sign", ",;|\t")
def test_a_first_line_that_says_what_parts_the_cells_names_no_columns(tmp_path, sign):
    (tmp_path / "a.csv").write_bytes(f"\ufeffsep={sign}\r\nid{sign}text\r\n1{sign}a\r\n".encode())
    (found,) = read(tmp_path / "a.csv", Naming())
    assert (found.chunk_id, found.text) == ("1", "a")


def test_lists_of_categories_are_read_from_several_row_groups(tmp_path):
    tags = pa.array([["x"], ["y"], ["z"]], pa.list_(pa.string())).cast(pa.list_(pa.dictionary(pa.int32(), pa.string())))
    pq.write_table(pa.table([list("abc"), tags], ["text", "tags"]), tmp_path / "a.parquet", row_group_size=1)
    found = [(each.text, each.record) for each in read(tmp_path / "a.parquet", Naming())]
    assert found == [("a", b'{"tags":["x"]}'), ("b", b'{"tags":["y"]}'), ("c", b'{"tags":["z"]}')]


BROKEN = {
    "cut.csv.gz": (FILES["a.csv.gz"][:-9], "cannot unpack the file"),
    "flipped.jsonl.gz": (FILES["a.jsonl.gz"][:-8] + b"\0\0\0\0" + FILES["a.jsonl.gz"][-4:], "cannot unpack the file"),
    "no.csv.gz": (b"id,text\n1,a\n", "cannot unpack the file"),
    "cut.jsonl.zst": (FILES["a.jsonl.zst"][:-5], "cannot read the file"),
    "cut.parquet": (FILES["a.parquet"][:-9], "cannot read the table"),
    "cut.arrow": (as_arrow([{"text": "a"}] * 5)[:-60], "cannot read the table"),
    "short.arrow": (as_arrow([{"text": str(each)} for each in range(5)])[:-8], "ends behind record 5 without"),
    "old.arrow": (as_arrow([{"text": "a", "n": 0}], use_legacy_format=True)[:-4], "ends behind record 1 without"),
    "joined.parquet": (
        as_parquet([{"text": "a"}]) + as_parquet([{"text": "b"}]),
        "another table behind the first: write",
    ),
    "joined.feather": (as_arrow([{"text": "a"}], False) + as_arrow([{"text": "b"}], False), "another table behind"),
    "after.parquet": (as_parquet([{"text": "a"}])[:-1] + as_parquet([{"text": "b"}]), "another table behind"),
    "begun.parquet": (as_parquet([{"text": "a"}])[:-40] + b"\n" + as_parquet([{"text": "b"}]), "another table behind"),
    "cut.feather": (as_arrow([{"text": "a"}], False)[:-8] + as_arrow([{"text": "b"}], False), "another table behind"),
    "behind.arrow": (as_arrow([{"text": "a"}]) + b"what else" + b"\xff\xff\xff\xff\0\0\0\0", "cannot read the table"),
    "no.feather": (b"FEA1" + bytes(40), "cannot read the table"),
    "empty.csv": (b"", "empty file"),
    "empty.parquet": (b"", "empty file"),
    "blank.csv": (b"\n\n", "the first line names no columns"),
    "twice.csv": (b"text,x,x\na,1,2\n", "2 columns are called 'x': rename all but one"),
    "open.csv": (b'text,x\na,1\n"b,2\n', "record 2 and what follows cannot be read"),
    "kana.csv": ('"あい","text"\n"1","a"\n'.encode("utf-16-le"), "or save the file as UTF-8"),
    "wide.csv": (b"text\n" + b"a" * (LONGEST_CELL + 1), "close its quotation marks, shorten its cell"),
    "ragged.csv": (b"text,x\na,1\nb\nc,1,2\nd,4\n", "has 1 cell where the first line names 2: fill in those"),
    "more.csv": (b"text,x\na,1,2\n", "has 3 cells where the first line names 2: quote a cell"),
    "latin.csv": ("text,x\na,1\nné,2\n".encode("latin-1"), "not UTF-8"),
    "other.csv": (b"id,body\n1,the one text\n", "such as --text-field body"),
    "shell.csv": (b"id,my text; rm\n1,the one text\n", "such as --text-field 'my text; rm'"),
    "dash.csv": (b"id,-text\n1,the one text\n", "such as --text-field=-text"),
    "headless.tsv": (b"7\ta red lamp\n8\ta blue one\n", "where it is a record, put one with names above it"),
    "number.parquet": (as_parquet([{"text": 4}]), "Expected `str`, got `int`"),
    "null.parquet": (as_parquet([{"text": "a"}, {"text": None}]), "null in place of a text - at `$.text`"),
    "blank.parquet": (as_parquet([{"text": "a"}, {"text": " "}]), "the text is empty"),
    "first.parquet": (as_parquet([{"page_content": None}, {"page_content": "a"}]), "null in place of a text"),
    "nulls.csv": (b"n,text\n1,a\n2,b" + bytes(100), "holds null bytes within record 2"),
    "null.tsv": (b"n\ttext\n1\ta\n2\tb\0\n3\tc\n", "holds a null byte, as texts"),
    "nulls.jsonl": (b'{"text": "a"}\n{"te' + bytes(99) + b'\n{"text": "b"}\n', "holds null bytes within record 2"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_with_a_table_is_named_and_the_rest_is_kept(tmp_path, name):
    data, reason = BROKEN[name]
    (tmp_path / name).write_bytes(data)
    found = read(tmp_path / name, Naming())
    assert reason in "\n".join(each.reason for each in found if not isinstance(each, Chunk))
    kept = {"open.csv": 1, "ragged.csv": 2, "latin.csv": 1, "null.parquet": 1, "blank.parquet": 1, "short.arrow": 5}
    kept |= {"joined.parquet": 0, "joined.feather": 0, "behind.arrow": 1}
    kept |= {"after.parquet": 0, "begun.parquet": 0, "cut.feather": 0}
    kept |= {"first.parquet": 1, "nulls.csv": 1, "null.tsv": 2, "nulls.jsonl": 2}
    if name in kept:
        assert sum(isinstance(each, Chunk) for each in found) == kept[name]


@pytest.mark.parametrize("between", [b"", b" ", b",", b",\r"])
def test_records_that_share_a_line_are_each_read(tmp_path, between):
    rows = [b'{"text": "%d}, {", "metadata": {"a": [{}, {"b": 1}]}}' % each for each in range(5)]
    (tmp_path / "a.jsonl").write_bytes(between.join(rows[:3]) + b"\n" + rows[3] + between + rows[4] + b'\n{"text": ""}')
    *found, last = read(tmp_path / "a.jsonl", Naming())
    assert [each.text for each in found] == [f"{each}}}, {{" for each in range(5)] and last.record == 6


def test_arrow_streams_that_were_joined_end_to_end_are_read_to_the_last(tmp_path):
    (tmp_path / "a.arrow").write_bytes(as_arrow([{"text": "a"}]) + as_arrow([]) + as_arrow([{"text": "b", "n": 1}]))
    found = read(tmp_path / "a.arrow", Naming())
    assert [each.text for each in found] == ["a", "b"]


def test_tables_of_cells_that_were_joined_end_to_end_have_no_record_of_their_heads(tmp_path):
    (tmp_path / "a.csv").write_text('id,text\n1,a\n\ufeffid,text\n2,b\nid,text\n3,c\nid,d\n\ufeff"id","text"\n4,e\n')
    assert [each.text for each in read(tmp_path / "a.csv", Naming())] == ["a", "b", "c", "d", "e"]


def test_the_records_of_a_broken_table_add_up(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,a\n1,a\n1,b\n2\n3,\n4,d\n")
    (rows,) = read_corpus(discover(tmp_path / "a.csv"), lambda _: None).rows
    assert (rows.counts.records, rows.chunks, rows.counts.same, len(rows.refusals)) == (6, 3, 1, 2)


def test_a_title_that_no_record_has_is_refused_and_an_id_that_one_lacks_costs_that_record(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines([{"text": "a", "key": 1, "titel": "t"}, {"text": "b"}]))
    with pytest.raises(UsageError, match=r"none of its 2 records has a field 'title'.* --title-field"):
        read(tmp_path / "a.jsonl", Naming(title="title"))
    assert [each.record for each in read(tmp_path / "a.jsonl", Naming(text="body", title="title"))] == [1, 2, None]
    kept, refused = read(tmp_path / "a.jsonl", Naming(id="key", title="titel"))
    assert (kept.text, kept.chunk_id) == ("t a", "1")
    assert refused.reason.startswith('no field "key" with an id, nor "titel" with a title: add it')
    (tmp_path / "b.csv").write_bytes(b"key,text\n1,a\n,b\n")
    kept, refused = read(tmp_path / "b.csv", Naming(id="key"))
    assert refused.reason == 'field "key" is empty or not an id: give this record one, or drop --id-field'


@pytest.mark.parametrize(
    ("naming", "likely"),
    [
        (Naming(text="Body"), "--text-field body"),
        (Naming(id="SKU"), "--id-field sku"),
        (Naming(id="key"), "--id-field sku"),
        (Naming(title="titel"), "--title-field title"),
        (Naming(title="headline"), "--title-field name"),
    ],
)
def test_the_field_that_may_be_meant_is_the_one_in_other_letters_a_close_or_a_likely_one(tmp_path, naming, likely):
    name = "title" if naming.title == "titel" else "name"
    rows = f'sku,{name},price,body\n1,a red lamp,7,"a lamp, red and round, for rooms"\n'
    (tmp_path / "a.csv").write_text(rows)
    with pytest.raises(UsageError) as refused:
        read_and_tokenise(discover(tmp_path / "a.csv", (), replace(naming, text="body") if not naming.text else naming),
                          {}, tmp_path / "t", lambda _: None, lambda: False)  # fmt: skip
    assert f"such as {likely}" in str(refused.value) and "(found sku: 1, " in str(refused.value)
    assert "a/a.csv" not in str(refused.value)


@pytest.mark.parametrize("rows", [5, 400])
def test_two_names_that_no_row_has_are_refused_together_and_each_row_counts_once(tmp_path, rows):
    (tmp_path / "a.csv").write_text("sku,name,text\n" + "".join(f"{at},n{at},t{at}\n" for at in range(rows)))
    naming = Naming(id="ski", title="nme")
    with pytest.raises(UsageError) as refused:
        read_and_tokenise(discover(tmp_path / "a.csv", (), naming), {}, tmp_path / "t", lambda _: None, lambda: False)
    lacks = 'no field "ski" with an id, nor "nme" with a title (found sku: 0, name: n0): add it, name another, such as'
    said = f"nothing to embed: a.csv records 1, 2, 3: {lacks} --id-field sku, or drop --id-field (and {rows - 3} more)"
    assert str(refused.value) == said


def test_texts_that_are_empty_beside_a_title_are_counted_and_the_first_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("name,text\nn0,t0\nn1,\nn2, \n,t3\nn1,\n,\n")
    events: list[object] = []
    found = discover(tmp_path / "a.csv", (), Naming(title="name"))
    corpus, _ = read_and_tokenise(found, {}, tmp_path / "t", events.append, lambda: False)
    (said,) = [each.message for each in events if isinstance(each, Warned)]
    assert said.startswith("a: 3 empty texts, embedded by title alone (first: a.csv record 2): fill in ")
    assert (corpus.chunks, len(corpus.rows[0].refusals)) == (5, 1)


def test_a_table_without_a_row_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("sku,body\n")
    with pytest.raises(UsageError, match=r"^nothing to embed: a\.csv: no record$"):
        read_and_tokenise(discover(tmp_path / "a.csv"), {}, tmp_path / "t", lambda _: None, lambda: False)


@pytest.mark.parametrize("naming", [Naming(text="txt"), Naming(id="nr")])
def test_a_field_that_no_record_has_is_one_refusal_which_lists_those_that_are_there(tmp_path, naming):
    records = [{"text": f"text number {at}", "metadata": {"lang": f"of {at}"}, "topic": f"t{at}"} for at in range(30)]
    (tmp_path / "a.jsonl").write_bytes(lines(records))
    events: list[object] = []
    with pytest.raises(UsageError) as refused:
        read_and_tokenise(discover(tmp_path, (), naming), {}, tmp_path / "t", events.append, lambda: False)
    assert not events
    found, common = str(refused.value), "topic: t0" if naming.text else "lang: of 0, topic: t0"
    assert "records 1, 2, 3: no field" in found and found.endswith(" (and 27 more)")
    assert common in found
    assert "topic: t1" not in found
    assert ("--text-field text" in found) == bool(naming.text)


def test_a_name_may_be_that_of_a_field_of_the_metadata(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines([{"page_content": "a", "metadata": {"title": "t", "doc": 5}}]))
    (kept,) = read(tmp_path / "a.jsonl", Naming(id="doc", title="title"))
    assert (kept.text, kept.chunk_id) == ("t a", "5")


@pytest.mark.parametrize("none", [None, "absent"])
def test_an_id_that_is_null_hides_none_of_the_metadata(tmp_path, none):
    record = {"id": none, "text": "a", "metadata": {"id": "m1", "title": "t"}, "title": none}
    record = {name: value for name, value in record.items() if value != "absent"}
    (tmp_path / "a.ndjson").write_bytes(lines([record]))
    (kept,) = read(tmp_path / "a.ndjson", Naming(title="title"))
    assert (kept.chunk_id, kept.text) == ("m1", "t a")
    (tmp_path / "b.jsonl").write_bytes(lines([record]))
    (kept,) = read(tmp_path / "b.jsonl", Naming(id="id"))
    assert kept.chunk_id == "m1"


def test_an_id_of_a_record_goes_before_those_of_its_metadata_where_the_chunks_own_goes_first(tmp_path):
    metadata = {"id": "page-7", "chunk_id": "c1"}
    records = [{"text": "a", "metadata": metadata}, {"text": "b", "metadata": metadata, "chunk_id": "c2"}]
    (tmp_path / "a.ndjson").write_bytes(lines([*records, {"text": "c", "metadata": {"id": "m"}, "_id": None}]))
    assert [each.chunk_id for each in read(tmp_path / "a.ndjson", Naming())] == ["c1", "c2", "m"]


@pytest.mark.parametrize("cell", ["x" * (5 << 20), '"' + "a line\n" * (1 << 20) + '"'], ids=["a line", "many lines"])
def test_a_cell_that_is_too_large_costs_its_own_row(tmp_path, cell):
    (tmp_path / "a.csv").write_text(f"id,text\n1,a\n2,{cell}\n3,c\n")
    first, refusal, last = read(tmp_path / "a.csv", Naming())
    assert (first.chunk_id, last.chunk_id) == ("1", "3")
    assert (refusal.record, refusal.reason) == (2, "larger than 4.0 MiB")


def test_what_stands_behind_a_quotation_mark_that_nobody_closed_is_said_to_be_lost(tmp_path):
    (tmp_path / "a.csv").write_text('id,text\n1,a\n2,"b\n' + "3,c\n" * (2 << 20))
    _, refusal = read(tmp_path / "a.csv", Naming())
    assert refusal.record is None and refusal.reason.startswith("record 2 and what follows cannot be read")


@pytest.mark.parametrize("empty", [None, ""])
def test_where_no_record_of_a_file_has_a_text_the_field_that_may_hold_it_is_told(tmp_path, empty):
    rows = [{"content": empty, "lang": "en", "body": each} for each in ("a text", "another text")]
    (tmp_path / "a.ndjson").write_bytes(lines(rows))
    *_, refusal = read(tmp_path / "a.ndjson", Naming())
    assert refusal.reason == f"{UNUSABLE}: say which field holds the text, such as --text-field body"
    with pytest.raises(UsageError, match="such as --text-field body"):
        read_and_tokenise(discover(tmp_path / "a.ndjson"), {}, tmp_path, lambda _: None, lambda: False)
    rows[1]["content"] = "text"
    (tmp_path / "a.ndjson").write_bytes(lines(rows))
    refusal, kept = read(tmp_path / "a.ndjson", Naming())
    assert (kept.text, refusal.record) == ("text", 1)


def test_a_text_that_is_null_hides_none_of_another_usual_name(tmp_path):
    (tmp_path / "a.ndjson").write_bytes(lines([{"text": None, "content": "a"}, {"text": "b", "content": "c"}]))
    assert [each.text for each in read(tmp_path / "a.ndjson", Naming())] == ["a", "b"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_table_of_cells_is_read_in_each_encoding_that_its_mark_tells(tmp_path, encoding):
    (tmp_path / "a.tsv").write_text("id\ttext\n1\tné\n", encoding)
    (kept,) = read(tmp_path / "a.tsv", Naming())
    assert (kept.chunk_id, kept.text) == ("1", "né")


def test_spans_in_nanoseconds_are_iso_8601_as_coarser_ones_are(tmp_path):
    spans = [1, 1_500_000_001, -1_500_000_000, 10**12, 0, None]
    columns = {"text": list("abcdef"), "ns": pa.array(spans, pa.duration("ns"))}
    columns["us"] = pa.array([each and each // 1000 for each in spans], pa.duration("us"))
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    found = [json.loads(each.record) for each in read(tmp_path / "a.parquet", Naming())]
    assert [each["ns"] for each in found[:2]] == ["PT0.000000001S", "PT1.500000001S"]
    assert [each["ns"] for each in found[2:]] == [each["us"] for each in found[2:]]


def test_times_in_nanoseconds_within_lists_and_structs_are_as_those_of_a_column(tmp_path):
    at, span = 1_577_836_800_123_456_789, 1_500_000_001
    times = pa.array([at, at - 789], pa.timestamp("ns"))
    columns = {
        "text": ["a", "b"],
        "list": pa.array([[at], None], pa.list_(pa.timestamp("ns"))),
        "clock": pa.array([{"t": 123456789}, {"t": 123456000}], pa.struct([("t", pa.time64("ns"))])),
        "spans": pa.array([[("k", span)], []], pa.map_(pa.string(), pa.duration("ns"))),
        "coded": times.dictionary_encode(),
        "deep": pa.array([[{"x": [at]}], []], pa.list_(pa.struct([("x", pa.list_(pa.timestamp("ns")))]))),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    first, second = (json.loads(each.record) for each in read(tmp_path / "a.parquet", Naming()))
    said = "2020-01-01T00:00:00.123456789"
    assert (first["list"], first["deep"], second["list"]) == ([said], [{"x": [said]}], None)
    assert [each["clock"]["t"] for each in (first, second)] == ["00:00:00.123456789", "00:00:00.123456000"]
    assert (first["spans"], second["spans"]) == ([["k", "PT1.500000001S"]], [])
    assert [each["coded"] for each in (first, second)] == [said, f"{said[:-3]}000"]


def test_a_zone_that_nobody_knows_costs_its_column_whoever_is_asked(tmp_path, monkeypatch):
    table = pa.table({"text": ["a"], "at": pa.array([0], pa.timestamp("us", "Mars/Base"))})
    pq.write_table(table, tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pytz", SimpleNamespace(timezone=lambda name: {}[name], FixedOffset=None))
    refusal, *_ = read(tmp_path / "a.parquet", Naming())
    assert refusal.reason.startswith("column 'at' cannot be read (Cannot locate or parse timezone")


def test_a_map_has_one_form_whatever_stands_beside_it(tmp_path):
    for name, at in (("a", 10**12), ("b", 0)):
        columns = {
            "text": ["a"],
            "at": pa.array([at], pa.timestamp("s")),
            "map": pa.array([[("k", 1)]], pa.map_("string", "int8")),
        }
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
        (found,) = read(tmp_path / f"{name}.parquet", Naming())
        assert json.loads(found.record)["map"] == [["k", 1]]


def test_chunk_files_go_before_tables_and_tables_before_other_json(tmp_path):
    place = tmp_path / "Docs"
    place.mkdir()
    for name in ("a.json", "b.csv", "c.jsonl"):
        (place / name).write_bytes(FILES["a" + name[1:]])
    for name, left in (("c.jsonl", 2), ("b.csv", 1), ("a.json", 0)):
        (found,) = discover(tmp_path)
        assert found.files == (name,) and found.unread.files.total() == left
        (place / name).unlink()


@pytest.mark.parametrize("packed", [(False, False), (True, True), (True, False)])
def test_a_test_collection_of_beir_is_its_corpus_with_titles(tmp_path, packed):
    place = tmp_path / "sets" / "scifact"
    (place / "qrels").mkdir(parents=True)
    (place / "corpus.jsonl").write_bytes(lines([{"_id": "d1", "title": "T", "text": "x"}, {"text": "of nobody"}]))
    (place / "queries.jsonl").write_bytes(lines([{"_id": "q1", "text": "no text of it"}]))
    (place / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    for name in compress(("corpus.jsonl", "queries.jsonl"), packed):
        (place / f"{name}.gz").write_bytes(gzip.compress((place / name).read_bytes()))
        (place / name).unlink()
    for root in (place, place.parent, tmp_path)[: 3 - (packed == (True, False))]:
        (found,) = discover(root)
        first, second = ChunkReader(found)
        assert (first.chunk_id, first.text) == ("d1", "T x")
        assert second.reason.endswith("add it") and "_id" in second.reason  # no flag names the fields of this form
        assert any("BEIR" in line for line in overlooked(root, [found]))


@pytest.mark.parametrize("title", [{"title": ""}, {}], ids=["empty", "none"])
def test_a_test_collection_without_titles_is_read_as_it_is(tmp_path, title):
    (tmp_path / "quora" / "qrels").mkdir(parents=True)
    (tmp_path / "quora" / "corpus.jsonl").write_bytes(lines([{"_id": "d1", "text": "x", **title}]))
    (tmp_path / "quora" / "queries.jsonl").write_bytes(lines([{"_id": "q1", "text": "y"}]))
    (found,) = discover(tmp_path)
    assert [(each.chunk_id, each.text) for each in ChunkReader(found)] == [("d1", "x")]
    (tmp_path / "a.jsonl").write_bytes(lines([{"text": "x", "title": ""}]))
    assert [each.text for each in read(tmp_path / "a.jsonl", Naming(title="title"))] == ["x"]


def test_a_record_with_a_title_alone_is_its_title(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(
        lines([{"text": each, "title": "Only a title"} for each in ("", " ", None, "x")])
    )
    kept = read(tmp_path / "a.jsonl", Naming(title="title"))
    assert [each.text for each in kept] == [*["Only a title"] * 3, "Only a title x"]


def test_a_saved_dataset_is_its_tables(tmp_path):
    for part in ("train", "test"):
        (tmp_path / "set" / part).mkdir(parents=True)
        (tmp_path / "set" / part / "data-00000-of-00001.arrow").write_bytes(as_arrow(ROWS))
        (tmp_path / "set" / part / "state.json").write_text("{}")
        (tmp_path / "set" / part / "dataset_info.json").write_text("{}")
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    found = discover(tmp_path / "set", naming=NAMED)
    assert [each.name for each in found] == ["test", "train"] and not list(overlooked(tmp_path / "set", found))
    assert [len(list(ChunkReader(each))) for each in found] == [3, 3]
    found = discover(tmp_path, naming=NAMED)
    assert [each.name for each in found] == ["set"]
    said = "the splits in set are one collection together: name that directory to have each as one"
    assert list(overlooked(tmp_path, found)) == [said]


def test_what_datasets_or_jupyter_keep_of_a_file_is_not_read_with_it(tmp_path):
    (tmp_path / "set" / "Docs" / ".ipynb_checkpoints").mkdir(parents=True)
    for name in ("data-0.arrow", "cache-1f2e.arrow", ".ipynb_checkpoints/data-0-checkpoint.arrow"):
        (tmp_path / "set" / "Docs" / name).write_bytes(as_arrow(ROWS))
    (tmp_path / "set" / "Docs" / "state.json").write_text('{"_data_files": [{"filename": "data-0.arrow"}]}')
    (found,) = discover(tmp_path / "set", naming=NAMED)
    assert (found.files, len(list(ChunkReader(found)))) == (("data-0.arrow",), 3)
    (said,) = overlooked(tmp_path, [found])
    assert said.startswith("2 files not read (2 .arrow; first set/Docs/.ipynb_checkpoints/data-0-checkpoint.arrow): ")
    (tmp_path / "set" / "Docs" / ".ipynb_checkpoints" / "b-checkpoint.jsonl").write_text('{"text": "a copy"}')
    assert discover(tmp_path / "set")[0].files == ("data-0.arrow",)


def test_a_state_of_its_owners_is_read_as_any_other_file(tmp_path):
    (tmp_path / "set" / "Docs").mkdir(parents=True)
    (tmp_path / "set" / "Docs" / "state.json").write_text('[{"text": "a"}]')
    for root in (tmp_path / "set", tmp_path / "set" / "Docs" / "state.json"):
        assert [each.text for each in ChunkReader(discover(root)[0])] == ["a"]


def test_what_a_saved_dataset_lists_and_is_not_there_is_refused(tmp_path):
    for part, listed in (("cut", "{"), ("none", '{"_data_files": [{"filename": "data-1.arrow"}]}')):
        (tmp_path / "set" / part).mkdir(parents=True)
        (tmp_path / "set" / part / "data-0.arrow").write_bytes(as_arrow(ROWS))
        (tmp_path / "set" / part / "state.json").write_text(listed)
        (tmp_path / "set" / part / "dataset_info.json").write_text("{}")
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["cut", "empty", "none", "test"]}')
    (tmp_path / "set" / "empty").mkdir()
    refused = {each.name: [reason.file for reason in each.refusals] for each in discover(tmp_path / "set")}
    assert refused == {"cut": ["state.json"], "empty": ["empty"], "none": ["data-1.arrow"], "test": ["test"]}
    (below,) = discover(tmp_path)  # where the splits are directories of one collection
    assert sorted(each.file for each in below.refusals) == ["cut/state.json", "empty", "none/data-1.arrow", "test"]


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.arrow"])
def test_a_long_table_is_streamed(tmp_path, name):
    written = {"a.csv": lambda rows: as_csv(rows).encode(), "a.parquet": as_parquet, "a.arrow": as_arrow}[name]
    (tmp_path / name).write_bytes(written([{"id": each, "text": f"{each} " + "x" * 2000} for each in range(6000)]))
    (found,) = discover(tmp_path / name)
    tracemalloc.start()
    held = pa.total_allocated_bytes()
    most = 0
    for count, _ in enumerate(ChunkReader(found), 1):
        most = max(most, pa.total_allocated_bytes() - held) if not count % 500 else most
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 6000
    assert peak < 8 << 20 and most < 8 << 20  # of twelve


def test_a_run_of_a_table_keeps_its_names_and_is_continued_with_them_alone(tmp_path, tiny_a):
    (tmp_path / "a.csv").write_text(as_csv(ROWS))
    run = ("run", tmp_path / "a.csv", "--roster", tiny_a, "--devices", "cpu", "--quiet", "--run-id", "r")
    interlock(*run, "--text-field", "body", "--title-field", "title", "--qdrant", "store", cwd=tmp_path)
    table = pq.read_table(tmp_path / "runs" / "r" / "exports" / "a" / "points.parquet").to_pylist()
    assert [row["text"] for row in table] == [f"{row['title']} {row['body']}".strip() for row in ROWS]
    assert [row["chunk_id"] for row in table] == [row["id"] for row in ROWS]
    inputs = json.loads((tmp_path / "runs" / "r" / "run.json").read_text())
    assert (inputs["text_field"], inputs["title_field"]) == ("body", "title")
    interlock(*run, "--resume", cwd=tmp_path)
    other = interlock(*run, "--resume", "--text-field", "body", cwd=tmp_path, check=2)
    again = re.search(r"`interlock (.*)`", other.stderr)
    assert "was started with --text-field body --title-field title, and this command has not all" in other.stderr
    interlock(*shlex.split(again[1]), "--quiet", cwd=tmp_path)
    interlock("export", tmp_path / "runs" / "r", "--to", tmp_path / "again", cwd=tmp_path)
    found = interlock("search", "store", "salt", "--json", cwd=tmp_path)
    assert "Seas salt water" in found.stdout


def test_a_directory_of_pages_says_what_is_read(tmp_path):
    (tmp_path / "Docs").mkdir()
    (tmp_path / "Docs" / "page.md").write_text("# Title")
    with pytest.raises(UsageError, match=r"no chunk files or tables.*\.parquet.*1 file not read \(Docs/page\.md\)"):
        discover(tmp_path)


@pytest.mark.parametrize("name", ["x, y, z", "x\n, y, z", 'a ""b"", c, d'])
def test_what_parts_the_cells_is_not_looked_for_in_quotes(tmp_path, name):
    (tmp_path / "a.csv").write_text(f'"{name}";text;id\nc, d;"a; b";1\n')
    (found,) = read(tmp_path / "a.csv", USUAL)
    rest = {name.replace('""', '"'): "c, d", "id": "1"}
    assert (found.text, found.chunk_id, json.loads(found.record)) == ("a; b", "1", rest)


def test_a_first_line_that_is_cut_is_refused(tmp_path):
    names = ",".join(f"column_{number}" for number in range(400_000))
    (tmp_path / "a.csv").write_text(f"text,{names}\na{',1' * 400_000}\n")
    (refusal,) = read(tmp_path / "a.csv", USUAL)
    assert (refusal.record, refusal.reason) == (None, "the names of its columns are longer than 4.0 MiB: shorten them")


def test_fields_are_named_in_either_form_of_unicode(tmp_path):
    row = {"te\u0301xt": "a", "k\u00e9y": "k", "ti\u0301tle": "T", "\u00e9": 1}
    (tmp_path / "a.ndjson").write_text(json.dumps(row))
    (found,) = read(tmp_path / "a.ndjson", Naming("t\u00e9xt", "ke\u0301y", "t\u00edtle"))
    kept = {name: value for name, value in row.items() if value != "a"}
    assert (found.text, found.chunk_id, json.loads(found.record)) == ("T a", "k", kept)
    pq.write_table(pa.table({"te\u0301xt": [b"a", b"\xff"]}), tmp_path / "b.parquet")
    text, none = read(tmp_path / "b.parquet", Naming("t\u00e9xt"))
    assert (text.text, none.reason) == ("a", "its text is bytes that are not UTF-8: write it as UTF-8")


def test_an_id_that_a_chunk_file_does_not_take_is_told_once(tmp_path):
    rows = [{"text": "a", "id": None}, {"text": "b", "doc_id": "d"}, {"text": "c", "id": 7}]
    rows[:0] = [{"text": "z", "id": "z", "metadata": {"chunk_id": "own"}}]
    said = "a: 'doc_id' of a.jsonl record 3 is no id in a chunk file: add --id-field doc_id to have it so"
    for name, naming, told in (("a.jsonl", USUAL, [said]), ("a.ndjson", USUAL, []), ("b.jsonl", Naming(id="text"), [])):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        reader = ChunkReader(*discover(tmp_path / name, naming=naming))
        assert (bool([*reader]), [*reader.counts.told("a")]) == (True, told)
