"""What is wrong with a record never costs its neighbours: each is named with file, number and reason, none is lost."""

import json
import os

import numpy as np
import pytest

from interlock.engine.compute.controls import Controls
from interlock.engine.corpus.chunks import Chunk, ChunkReader
from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.forms import MAX_RECORD_BYTES
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.flows.run import Run
from interlock.engine.settings import load
from tests.builders import corpus, interlock, summary_of

GOOD = b'{"text": "good"}'
DEEP = 200_000


def read(tmp_path, data, name="a_chunks.json"):
    """Texts that were kept, and refusals as (record, reason)."""
    (tmp_path / "Docs").mkdir(exist_ok=True)
    (tmp_path / "Docs" / name).write_bytes(data)
    found = list(ChunkReader(discover(tmp_path)[0]))
    bad = [each for each in found if not isinstance(each, Chunk)]
    assert all(each.file == name for each in bad)
    return [each.text for each in found if isinstance(each, Chunk)], [(each.record, each.reason) for each in bad]


def embed(chunks, out, **flags):
    run = Run(chunks, load({"out": str(out), **flags}, {}), Controls())
    return run.go(), run.directory.path


BAD_RECORDS = {
    "not-json": (b"{'text': 1}", "JSON is malformed"),
    "not-utf8": (b'{"text": "caf\xe9 au lait"}', "not UTF-8 (byte "),
    "not-utf8-in-metadata": (b'{"text": "a", "metadata": {"note": "caf\xe9"}}', "save the file as UTF-8"),
    "nan": (b'{"text": NaN}', "NaN and Infinity are no JSON, write null"),
    "nan-in-metadata": (b'{"text": "a", "metadata": {"x": NaN}}', "NaN and Infinity are no JSON, write null"),
    "infinity-in-metadata": (b'{"text": "a", "metadata": {"x": -Infinity}}', "NaN and Infinity are no JSON"),
    "1e400": (b'{"text": 1e400}', "out of range"),
    "1e400-in-metadata": (b'{"text": "a", "metadata": {"x": [1e400]}}', ""),
    "5000-digits-in-metadata": (b'{"text": "a", "metadata": {"x": ' + b"9" * 5000 + b"}}", ""),
    "number": (b"17", 'expected an object with a field "text", got a number'),
    "null": (b"null", "got null"),
    "list": (b"[1]", "got a list"),
    "string": (b'"text"', "got a string"),
    "missing-text": (b'{"metadata": {}}', 'no field "text"'),
    "text-of-another-name": (
        b'{"body": "a", "title": "b"}',
        "(found body: a, title: b): say which holds",
    ),
    "many-other-names": (
        b'{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1}',
        "(found a: 1, b: 1, c: 1, d: 1, e: 1, ...): ",
    ),
    "null-text": (b'{"text": null}', "null in place of a text - at `$.text`"),
    "number-text": (b'{"text": 4}', "Expected `str`, got `int`"),
    "empty-text": (b'{"text": ""}', "the text is empty"),
    "blank-text": (b'{"text": " \\n\\t\\u00a0 "}', "the text is empty"),
    "metadata-list": (b'{"text": "a", "metadata": [1]}', "metadata is not an object"),
    "metadata-string": (b'{"text": "a", "metadata": "x"}', "metadata is not an object"),
    "lone-surrogate": (b'{"text": "a\\ud800b"}', ""),
    "lone-surrogate-in-metadata": (b'{"text": "a", "metadata": {"x": "\\udfff"}}', ""),
    "deep": (b"[" * DEEP + b"]" * DEEP, ""),
    "deep-metadata": (b'{"text": "a", "metadata": {"x": ' + b"[" * DEEP + b"]" * DEEP + b"}}", "nested too deeply"),
    "huge": (b'{"text": "' + b"a" * MAX_RECORD_BYTES + b'"}', "larger than 4.0 MiB"),
    "raw-nul": (b'{"text": "a\0b"}', "JSON is malformed"),
}
each_bad_record = pytest.mark.parametrize(("bad", "reason"), BAD_RECORDS.values(), ids=BAD_RECORDS)


@each_bad_record
def test_a_bad_record_in_a_list_is_named_and_its_neighbours_are_kept(tmp_path, bad, reason):
    texts, ((record, said),) = read(tmp_path, b"[" + GOOD + b"," + bad + b"," + GOOD + b"]")
    assert texts == ["good", "good"]
    assert record == 2
    assert reason in said


@each_bad_record
def test_a_bad_line_is_named_and_its_neighbours_are_kept(tmp_path, bad, reason):
    texts, ((record, said),) = read(tmp_path, GOOD + b"\n" + bad + b"\n" + GOOD + b"\n", "a.jsonl")
    assert texts == ["good", "good"]
    assert record == 2
    assert reason in said


RECORDS = [{"text": f"größe {number}", "metadata": {"n": [number], "nested": [{"a": 1}]}} for number in range(4)]
LINES = [json.dumps(each, ensure_ascii=False) for each in RECORDS]
PRETTY = [json.dumps(each, ensure_ascii=False, indent=2) for each in RECORDS]
FORMS = {
    "utf-16": ("\n".join(LINES).encode("utf-16"), "a.jsonl"),
    "utf-16 big-endian": (b"\xfe\xff" + "\r\n".join(LINES).encode("utf-16-be"), "a.jsonl"),
    "utf-16 without a mark": ("\n".join(LINES).encode("utf-16-le"), "a.jsonl"),
    "utf-16 big-endian without a mark": ("\n".join(LINES).encode("utf-16-be"), "a.jsonl"),
    "utf-32 without a mark": ("\n".join(["", *LINES]).encode("utf-32-le"), "a.jsonl"),
    "utf-32 big-endian without a mark, a list": (json.dumps(RECORDS).encode("utf-32-be"), "a_chunks.json"),
    "utf-32": ("\n".join(LINES).encode("utf-32"), "a.jsonl"),
    "utf-16, a list": (json.dumps(RECORDS).encode("utf-16"), "a_chunks.json"),
    "files with marks joined": (b"".join(f"{each}\n".encode("utf-8-sig") for each in LINES), "a.jsonl"),
    "files with marks and without ends of lines joined": ("\ufeff".join(["", *LINES]).encode(), "a.jsonl"),
    "the same, one of them empty": ("\ufeff\ufeff".join(["", *LINES, ""]).encode("utf-16"), "a.jsonl"),
    "the same where a list belongs": ("\ufeff".join(["", *LINES]).encode(), "a_chunks.json"),
    "lines that end in CR": ("\r".join(LINES).encode(), "a.jsonl"),
    "lines that end in CR, one at the end": (("\r".join(LINES) + "\r").encode("utf-8-sig"), "a.jsonl"),
    "records over several lines": ("\n".join(PRETTY).encode(), "a.jsonl"),
    "records over several lines, CRLF": ("\r\n\r\n".join(PRETTY).replace("\n", "\r\n").encode(), "a.jsonl"),
    "some records over several lines": ("\n".join([*LINES[:1], *PRETTY[1:3], *LINES[3:]]).encode(), "a.jsonl"),
    "a list in one line": (("[" + ", ".join(LINES) + "]\n").encode(), "a.jsonl"),
    "a list over several lines": (json.dumps(RECORDS, indent=1).encode(), "a.jsonl"),
    "a list a line": ("\n".join(f"[{each}]" for each in LINES).encode(), "a.jsonl"),
    "a list and lines": (("[" + ",".join(LINES[:2]) + "]\n" + "\n".join(LINES[2:])).encode(), "a.jsonl"),
    "lines with commas": (",\n".join(LINES).encode(), "a.jsonl"),
    "a comma behind the last": (("[" + ",\n".join(LINES) + ",\n]").encode(), "a_chunks.json"),
    "a comma, in an object": (("{\"chunks\": [" + ",".join(LINES) + ",], \"n\": 4}").encode(), "a_chunks.json"),
    "two commas": (("[" + ", ,".join(LINES) + "]").encode(), "a_chunks.json"),
    "lists joined": (b"".join(f"[{each}]\r\n".encode("utf-8-sig") for each in LINES), "a_chunks.json"),
    "lines where a list belongs": ("\n".join(LINES).encode(), "a_chunks.json"),
    "records over several lines where a list belongs": ("\n".join(PRETTY).encode(), "a_chunks.json"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "name"), FORMS.values(), ids=FORMS)
def test_a_record_is_read_however_its_file_is_written(tmp_path, data, name):
    assert read(tmp_path, data, name) == ([each["text"] for each in RECORDS], [])


@pytest.mark.parametrize(
    "torn", [b'{"text": "cut', b'{"text": "cut", "metadata": {', b'{"text": "cut",', b'{"text": ', b"{", b"["]
)
@pytest.mark.parametrize("indent", [b"", b"  "])
def test_a_torn_line_costs_no_neighbour(tmp_path, torn, indent):
    data = b"\n".join(indent + each for each in (GOOD, torn, GOOD, torn, GOOD, GOOD))
    texts, refusals = read(tmp_path, data, "a.jsonl")
    assert (len(texts), [record for record, _ in refusals]) == (4, [2, 4])


@pytest.mark.parametrize(
    "bad", [b"null", b"42", b"nonsense", b"[1,2", b'{"text": "cut', b'{"a": {', b'"a\\r', b"}", b" "]
)
@pytest.mark.parametrize("over", [b"", b"\n"], ids=["a line", "several lines"])
@pytest.mark.parametrize("last", [b"", b"\n", b"\n\n"])
def test_a_bad_line_costs_no_neighbour_whatever_ends_the_lines(tmp_path, bad, over, last):
    good = [b'{"text":%b "%d",%b"n": [1]%b}' % (over, each, over, over) for each in range(6)]
    data = b"\n".join([*good[:2], bad, b"", *good[2:]])
    found = [read(tmp_path, data.replace(b"\n", end) + last, "a.jsonl") for end in (b"\n", b"\r\n", b"\r")]
    assert found[0][0] == list("012345")
    assert found[1:] == found[:1] * 2


def test_a_cr_within_a_text_of_lines_that_end_otherwise_is_one_refusal(tmp_path):
    texts, ((record, said),) = read(tmp_path, GOOD + b"\n" + GOOD.replace(b"oo", b"o\ro") + b"\n" + GOOD, "a.jsonl")
    assert (len(texts), record) == (2, 2)
    assert said.startswith("JSON is malformed")


def test_a_record_over_several_lines_that_is_wrong_is_one_refusal(tmp_path):
    wrong = PRETTY[0].replace('"n": [', '"n": [nothing')
    data = "\n".join([PRETTY[1], wrong, PRETTY[2]]).encode()
    texts, ((record, said),) = read(tmp_path, data, "a.jsonl")
    assert (len(texts), record) == (2, 1 + len(PRETTY[1].splitlines()))
    assert said.startswith("JSON is malformed")


def test_what_stands_under_a_known_key_and_is_no_list_of_chunks_refuses_nothing(tmp_path):
    assert read(tmp_path, b'{"chunks": [' + GOOD + b'], "data": {"pages": [1]}, "items": null}') == (["good"], [])


@pytest.mark.parametrize(
    "text", [b"a\\ud800b, and the string goes on", b"\\ud83d", b"\\ud83d a", b"\\udc00", b"\\ud83d\\n, and more"]
)
@pytest.mark.parametrize(
    "record", [b'{"text": "%s"}', b'{"text": "a", "metadata": {"x": "%s"}}', b'{"text": "", "%s": 1}']
)
@pytest.mark.parametrize("file", ["a_chunks.json", "a.jsonl"])
def test_half_a_surrogate_pair_is_refused_with_that_reason(tmp_path, text, record, file):
    data = record % text
    _, ((_, said),) = read(tmp_path, b"[" + data + b"]" if file.endswith(".json") else data, file)
    assert said == "a \\u escape is half of a surrogate pair without its other half"


def test_a_record_cut_after_half_a_surrogate_pair_is_refused_as_cut(tmp_path):
    assert read(tmp_path, b'{"text": "\\ud83d', "a.jsonl") == ([], [(None, "file ends within record 1")])


@pytest.mark.parametrize("opening", [b"[", b'{"chunks": [', b'\xef\xbb\xbf {"data":[', b'{"version": 1, "chunks": ['])
@pytest.mark.parametrize("end", [b'{"text": "cut of', b'{"text": "cut", "metadata": {"a": [1', b'{"text": "cut"'])
def test_a_file_cut_within_a_record_keeps_the_whole_ones(tmp_path, opening, end):
    texts, refusals = read(tmp_path, opening + GOOD + b"," + GOOD + b"," + end)
    assert texts == ["good", "good"]
    assert refusals == [(None, "file ends within record 3")]


def test_a_file_cut_after_a_record_keeps_it_and_reports_the_cut(tmp_path):
    texts, refusals = read(tmp_path, b"[" + GOOD + b"," + GOOD)
    assert texts == ["good", "good"]
    assert refusals == [(None, "file ends before the end of its list")]


def test_a_jsonl_file_cut_within_the_last_line_keeps_the_others(tmp_path):
    texts, refusals = read(tmp_path, GOOD + b"\n" + GOOD + b'\n{"text": "cu', "a.jsonl")
    assert texts == ["good", "good"]
    assert refusals == [(None, "file ends within record 3")]


@pytest.mark.parametrize("rest", [b"[" + GOOD + b"]", b" and more", b"\n" + GOOD])
def test_trailing_data_after_the_list_is_reported(tmp_path, rest):
    texts, refusals = read(tmp_path, b"[" + GOOD + b"]" + rest)
    assert len(texts) + len(refusals) >= 2


def test_two_lists_under_one_key_are_refused(tmp_path):
    texts, ((_, said),) = read(tmp_path, b'{"a": [1], "chunks": [' + GOOD + b'], "b": 1, "chunks": [{"text": "two"}]}')
    assert texts == [] and said.startswith("two lists under one key")


@pytest.mark.parametrize("other", [b'"data": [{"text": "data"}], ', b'"a": {"chunks": []}, "items": [], '])
def test_a_key_that_comes_again_behind_another_list_is_refused(tmp_path, other):
    twice = b'{"name": "chunks", ' + other + b'"chunks": [' + GOOD + b'], "chunks": [{"text": "two"}]}'
    texts, ((_, said),) = read(tmp_path, twice)
    assert texts == [] and said.startswith("two lists under one key")
    once = twice.replace(b', "chunks": [{"text": "two"}]', b"")
    texts, refusals = read(tmp_path, once)
    assert texts == ["good"] and [said[:13] for _, said in refusals] == ["only the list"]


@pytest.mark.parametrize("parted", [b"", b" ", b"\n"])
@pytest.mark.parametrize("record", [GOOD, b'{"chunks": [' + GOOD + b"]}"], ids=["records", "lists"])
def test_objects_that_were_joined_in_one_file_are_read_or_the_line_says_how_to_part_them(tmp_path, record, parted):
    texts, refusals = read(tmp_path, parted.join([record] * 3))
    assert len(texts) == 3 or [said for _, said in refusals if "write one record a line, or one list a file" in said]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"[" + GOOD + b"] and more", "ignored text after the end of the list (JSON is malformed"),
        (
            b'{"data": [], "chunks": [' + GOOD + b'], "records": {"a": 1}, "items": []}',
            "only the list under 'data', 'items': the one under 'chunks' is read",
        ),
    ],
)
def test_what_of_a_file_is_ignored_is_told(tmp_path, data, told):
    texts, ((_, said),) = read(tmp_path, data)
    assert texts == ["good"]
    assert said.startswith(told)


BAD_FILES = {
    "empty": (b"", "empty file"),
    "blank": (b" \n", "truncated"),
    "only-a-byte-order-mark": (b"\xef\xbb\xbf", "truncated"),
    "utf-16-cut": (
        '[{"text": "a"}]'.encode("utf-16")[:-1],
        "ends within a character of UTF-16-LE: save the file as UTF-8",
    ),
    "not-json": (b"text: yaml", "malformed"),
    "a-number": (b"4", "neither a list of chunks nor an object"),
    "one-record": (b'{"text": "a"}', "with none of chunks, data, records, items"),
    "list-key-of-another-type": (b'{"chunks": {"text": "a"}}', "Expected `array`, got `object`"),
    "deep": (b'{"a": ' * DEEP + b"1" + b"}" * DEEP, "nested too deeply"),
    "a-picture": (bytes(range(256)), ""),
}


@pytest.mark.parametrize(("data", "reason"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_without_a_list_is_refused_whole(tmp_path, data, reason):
    texts, ((record, said),) = read(tmp_path, data)
    assert texts == []
    assert record is None
    assert reason in said


def test_brackets_and_quotes_in_texts_do_not_end_a_record_of_a_broken_list(tmp_path):
    tricky = ["a ] , [ b", 'quote " } , {', "backslash \\", "{", "}"]
    data = b"[" + b",".join(json.dumps({"text": text}).encode() for text in tricky) + b', {"text": NaN}]'
    texts, ((record, _),) = read(tmp_path, data)
    assert texts == tricky
    assert record == len(tricky) + 1


def test_an_unreadable_file_is_named_and_its_neighbours_are_kept(tmp_path):
    root = corpus(tmp_path, {"Docs": {"a_chunks.json": ["a"], "b_chunks.json": ["b"]}})
    (closed := root / "Docs" / "a_chunks.json").chmod(0)
    if os.access(closed, os.R_OK):
        pytest.skip("this user reads everything")
    refusal, chunk = ChunkReader(discover(root)[0])
    assert (refusal.file, refusal.record, refusal.reason) == (
        "a_chunks.json",
        None,
        "cannot read the file: Permission denied",
    )
    assert chunk.text == "b"


def test_a_file_that_vanished_is_named_and_its_neighbours_are_kept(
    tmp_path,
):
    root = corpus(tmp_path, {"Docs": {"a_chunks.json": ["a"], "b_chunks.json": ["b"]}})
    (found,) = discover(root)
    (root / "Docs" / "a_chunks.json").unlink()
    refusal, chunk = ChunkReader(found)
    assert (refusal.file, refusal.record) == ("a_chunks.json", None)
    assert "No such file" in refusal.reason
    assert chunk.text == "b"


HARMLESS = {name: bad for name, (bad, _) in BAD_RECORDS.items() if "in-metadata" not in name or "nan" in name}


def all_at_once(root):
    """Every fault in one root, a good neighbour around each; how many good chunks and refusals there must be."""
    good = iter(range(10**6))
    files = {
        "list_chunks.json": b"[" + b",".join(_with_neighbours(HARMLESS, good)) + b"]",
        "lines.jsonl": b"\r\n".join(_with_neighbours(HARMLESS, good)),
        "cut_chunks.json": b'{"chunks": [' + _good(good) + b"," + _good(good) + b', {"text": "cu',
        "nul_chunks.json": b'[{"text": "a\\u0000b", "metadata": {"x": "\\u0000"}}]',
        "repeat_chunks.json": b'[{"text": "r", "metadata": {"chunk_id": 1}},{"text":"s","metadata": {"chunk_id": 1}}]',
        **{f"whole-{name}_chunks.json": data for name, (data, _) in BAD_FILES.items()},
        "dots.._chunks.json": b"[" + GOOD + b"]",
        "esc\x1b[2J_chunks.json": b"[" + GOOD + b"]",
    }
    directory = root / "Docs" / "deep" / "er"
    directory.mkdir(parents=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    outside = corpus(root.parent / "outside", {"Secret": {"s_chunks.json": ["secret"]}})
    (directory / "link_chunks.json").symlink_to(outside / "Secret" / "s_chunks.json")
    (directory / "link").symlink_to(outside / "Secret")
    (directory / "gone_chunks.json").symlink_to("nowhere")
    kept = next(good) + 4  # those extra: with a NUL, of one id, and in a file with dots
    return kept, 2 * len(HARMLESS) + 1 + len(BAD_FILES) + 1 + 3


def _good(numbers):
    return json.dumps({"text": f"good number {next(numbers)}"}).encode()


def _with_neighbours(records, numbers):
    yield _good(numbers)
    for record in records.values():
        yield record
        yield _good(numbers)


def test_all_good_chunks_are_embedded_and_every_bad_one_is_named(tmp_path, tiny_a):
    kept, refused = all_at_once(tmp_path / "in")
    code, run = embed(tmp_path / "in", tmp_path / "out", roster=str(tiny_a), qdrant=str(tmp_path / "store"))
    summary = summary_of(run)
    (collection,) = summary["collections"]
    assert (code, summary["status"], collection["status"]) == (ExitCode.FAILED, "incomplete", "incomplete")
    assert (collection["chunks"], collection["refused"]) == (kept, refused)
    assert len(collection["refusals"]) == refused
    assert all(each["file"].startswith("deep/er/") and each["reason"] for each in collection["refusals"])
    numbers = [each["record"] for each in collection["refusals"] if each["file"] == "deep/er/list_chunks.json"]
    assert numbers == [2 * (place + 1) for place in range(len(HARMLESS))]
    assert np.isfinite(np.load(run / "exports" / "Docs" / "fused.npy")).all(axis=1).sum() == kept
    assert collection["verification"]["points"] == kept


UNSTORABLE = {
    name: bad for name, (bad, _) in BAD_RECORDS.items() if name.endswith("in-metadata") and "nan" not in name
} | {f"{depth}-deep-in-metadata": b'{"text": "a", "metadata": {"x": ' + b"[" * depth + b"]" * depth + b"}}"
     for depth in (150, 900)}  # fmt: skip


@pytest.mark.parametrize("bad", UNSTORABLE.values(), ids=UNSTORABLE)
def test_a_record_with_undeliverable_metadata_is_refused_alone(tmp_path, tiny_a, bad):
    (tmp_path / "in" / "Docs").mkdir(parents=True)
    (tmp_path / "in" / "Docs" / "a_chunks.json").write_bytes(b"[" + GOOD + b"," + bad + b"]")
    store = str(tmp_path / "store")
    code, run = embed(tmp_path / "in", tmp_path / "out", roster=str(tiny_a), qdrant=store, max_refused="1")
    (collection,) = summary_of(run)["collections"]
    assert (code, collection["status"], collection["chunks"], collection["refused"]) == (0, "completed", 1, 1)


def test_metadata_as_deep_as_a_store_takes_is_delivered(tmp_path, tiny_a):
    deep = {"text": "a", "metadata": {"x": json.loads("[" * 100 + "]" * 100)}}
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": [deep]}})
    code, _ = embed(root, tmp_path / "out", roster=str(tiny_a), qdrant=str(tmp_path / "store"))
    assert code == ExitCode.COMPLETED


def test_a_collection_of_bad_records_fails_and_the_others_complete(tmp_path, tiny_a):
    collections = {"Bad": [{"text": ""}], "Empty": [], "Good": ["a"]}
    root = corpus(tmp_path / "in", {name: {"a_chunks.json": chunks} for name, chunks in collections.items()})
    code, run = embed(root, tmp_path / "out", roster=str(tiny_a))
    assert code == ExitCode.FAILED
    bad = "no usable record: 1 of 1 records refused (a_chunks.json record 1: the text is empty)"
    assert [(each["name"], each["status"], each["reason"]) for each in summary_of(run)["collections"]] == [
        ("Bad", "failed", bad),
        ("Empty", "skipped", "no record in 1 file"),
        ("Good", "completed", ""),
    ]


@pytest.mark.parametrize("kind", ["missing", "empty", "empty-collection", "empty-list", "no-good-chunk"])
def test_nothing_to_embed_is_a_usage_error_and_leaves_no_run(tmp_path, tiny_a, kind):
    root = tmp_path / "in"
    if kind == "empty":
        root.mkdir()
    elif kind == "empty-collection":
        (root / "Docs").mkdir(parents=True)
    elif kind == "empty-list":
        corpus(root, {"Docs": {"a_chunks.json": []}})
    elif kind == "no-good-chunk":
        corpus(root, {"Docs": {"a_chunks.json": [{"text": " "}, 4]}})
    with pytest.raises(UsageError) as raised:
        embed(root, tmp_path / "out", roster=str(tiny_a))
    assert len(str(raised.value).splitlines()) == 1
    assert not str(raised.value).endswith(": ")
    assert not list(tmp_path.glob("out/*"))


def test_records_without_a_text_are_named_once_with_their_fields_when_no_chunk_is_good(tmp_path, tiny_a):
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": [{"body": "a"}] * 5 + [4]}, "No": {"b.jsonl": []}})
    done = interlock("run", root, "--roster", tiny_a, "--quiet", cwd=tmp_path, check=2)
    lacking = 'no field "text" (found body: a): say which holds the text, such as --text-field NAME'
    first = f"records 1, 2, 3: {lacking}"
    second = 'record 6: expected an object with a field "text", got a number'
    said = f"nothing to embed: Docs/a_chunks.json {first}; Docs/a_chunks.json {second}"
    assert done.stderr == f"interlock: {said}; No/b.jsonl: empty file (and 2 more)\n"


@pytest.mark.parametrize("words", [("plan", "loop"), ("run", "loop"), ("chunk", "loop", "--out", "o.jsonl")])
def test_a_circle_of_links_is_refused_in_a_line(tmp_path, words):
    (tmp_path / "loop").symlink_to("loop")
    said = interlock(*words, cwd=tmp_path, check=2).stderr.splitlines()
    assert "loop" in said[-1] and "a bug in interlock" not in said[-1]


@pytest.mark.parametrize("name", ["", "a" * 300])
def test_what_can_name_no_model_is_refused_and_no_bundle_is_written_where_one_stands(tmp_path, name):
    for words in (("models", "list", name), ("models", "bundle", name)):
        assert "argument MODEL: expected a name" in interlock(*words, cwd=tmp_path, check=2).stderr
    assert not [*tmp_path.iterdir()]


def test_a_file_that_is_none_of_a_run_is_not_watched_as_the_runs_beside_it(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    said = interlock("watch", "notes.txt", cwd=tmp_path, check=2).stderr
    assert "notes.txt does not belong to a run: name a run directory" in said
