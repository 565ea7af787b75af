"""Records by the hundred thousand, repeated, refused or both: time and memory grow with them and not faster."""

import hashlib
import json
import random
import time

import numpy as np
import pytest

from interlock.console.text.progress_text import progress
from interlock.engine.compute.controls import Controls
from interlock.engine.corpus.chunks import UNUSABLE, Chunk, ChunkReader
from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.corpus import read_and_tokenise, read_corpus
from interlock.engine.corpus.identity import point_of
from interlock.engine.corpus.places import Numbered
from interlock.engine.corpus.rereading import reread
from interlock.engine.errors import Stopped
from interlock.engine.flows.run import Run
from interlock.engine.record.events import CollectionRead, RecordRefused
from interlock.engine.record.fold import fold
from interlock.engine.record.snapshot import snapshot
from interlock.engine.record.state import RunState
from interlock.engine.settings import load
from tests.builders import corpus, entries, events_of, summary_of
from tests.test_changing_input import reading

GROWTH = (
    "from interlock.engine.corpus.corpus import read_corpus\n"
    "before = peak()\n"
    "(rows,) = read_corpus(discover(Path(sys.argv[1])), lambda _: None).rows\n"
    "print(len(rows.refusals), peak() - before)"
)


def written(tmp_path, data, name="a.jsonl"):
    (tmp_path / "Docs").mkdir(parents=True)
    (tmp_path / "Docs" / name).write_bytes(data)
    return tmp_path


def test_a_hundred_thousand_identical_records_are_read_in_seconds(tmp_path):
    root = written(tmp_path, b'{"text": "Copyright, all rights reserved."}\n' * 100_000)
    began = time.process_time()
    (rows,) = read_corpus(discover(root), lambda _: None).rows
    assert time.process_time() - began < 30
    assert (len(rows.texts), rows.duplicates) == (100_000, 99_999)


@pytest.mark.parametrize(("held", "live"), [(1 << 20, 1 << 20), (64, 1 << 20), (64, 300)])
def test_keys_are_numbered_as_a_dict_does_though_many_share_the_bits_that_are_looked_at(monkeypatch, held, live):
    monkeypatch.setattr("interlock.engine.corpus.places.HELD", held)
    monkeypatch.setattr("interlock.engine.corpus.places.LIVE", live)  # slots in memory, the others in a file
    monkeypatch.setattr("interlock.engine.corpus.places.LEAST", 4 if live == 300 else 2000)
    monkeypatch.setattr("interlock.engine.corpus.places.hash", lambda key: hash(key) & 0xFF0000FF, raising=False)
    rng, keys, numbered = random.Random(3), {}, Numbered(np.dtype("V20"))
    for _ in range(6000):
        key = rng.randrange(4000).to_bytes(16, "big")
        assert numbered.number(key + b"more") == keys.setdefault(key, len(keys))
    assert numbered.records.tolist() == [key + b"more" for key in keys]


def test_equal_ids_and_texts_on_both_sides_of_what_is_held_are_those_of_a_dict(tmp_path, monkeypatch):
    monkeypatch.setattr("interlock.engine.corpus.places.HELD", 1000)  # a table goes to its file all the time
    rng = random.Random(4)
    records = [(rng.randrange(900), f"text {rng.randrange(700)}") for _ in range(3000)]
    lines = [json.dumps({"text": text, "metadata": {"chunk_id": number}}) for number, text in records]
    root = written(tmp_path, "\n".join(lines).encode())
    read = read_corpus(discover(root), lambda _: None)
    (rows,) = read.rows
    firsts = dict(reversed(records))
    kept = list(dict.fromkeys(records))
    texts = list(dict.fromkeys(text for _, text in kept))
    assert (rows.chunks, rows.counts.same) == (len(kept), len(records) - len(kept))
    assert rows.texts.tolist() == [texts.index(text) for _, text in kept]
    assert read.digests.tolist() == [hashlib.sha256(text.encode()).digest()[:16] for text in texts]
    points = dict(zip(kept, rows.points.tolist(), strict=True))
    assert all(points[one] == point_of("docs", "a.jsonl", str(one[0])).bytes for one in firsts.items())
    assert len(set(points.values())) == len(kept)
    assert [each.text for each in reread(rows, read.digests)] == [text for _, text in kept]


@pytest.mark.parametrize("record", [b'{"text": "same"}\n', b"7\n"], ids=["copies", "refused"])
def test_reading_is_told_and_stopped_though_no_record_brings_a_text(tmp_path, record):
    found, reached = discover(written(tmp_path, record * 2000)), []
    read_corpus(found, lambda _: None, reached=lambda *place: reached.append(place))
    assert reached == [("Docs", records) for records in (512, 1024, 1536, 2000)]
    with pytest.raises(Stopped):
        read_and_tokenise(found, {}, tmp_path, lambda _: None, iter([False, True]).__next__)


def test_a_plan_and_a_run_say_how_many_records_they_have_read(tmp_path, tiny_a, call, monkeypatch):
    monkeypatch.setattr("interlock.engine.corpus.corpus.BEAT", 0.0)
    monkeypatch.setattr("interlock.console.writing.PAUSE", -1.0)
    root = written(tmp_path / "in", b'{"text": "same"}\n' * 600)
    words = (root, "--roster", tiny_a, "--out", tmp_path / "runs", "--devices", "cpu")
    _, _, said = call("plan", *words)
    assert said.splitlines()[:2] == [f"interlock: Docs: {records} records so far" for records in (512, 600)]
    call("run", *words, "--run-id", "r", "--quiet")
    state, told = RunState(), set()
    for entry in entries(tmp_path / "runs" / "r"):
        fold(state, entry)
        told.add(progress(snapshot(state, entry.seq)))
    assert "reading and tokenising chunks: Docs, 512 records so far" in told


def test_repeated_texts_are_numbered_around_the_ids_that_were_given(tmp_path):
    name = hashlib.sha256(b"same").hexdigest()[:32]
    given = [{"text": "other", "metadata": {"chunk_id": f"{name}-{number}"}} for number in (2, 4)]
    root = corpus(tmp_path, {"Docs": {"a.jsonl": [given[0], "same", "same", given[1], "same", "same"]}})
    found = [each.chunk_id for each in ChunkReader(discover(root)[0])]
    assert found == [f"{name}-2", name, f"{name}-3", f"{name}-4", f"{name}-5", f"{name}-6"]


@pytest.mark.parametrize(("unit", "records"), [(b"{},", 1_000_002), (b",", 1)])
def test_a_list_of_millions_of_empty_records_takes_little_memory(tmp_path, unit, records):
    data = b"[" + unit * 1_000_000 + b"{}]"
    said = reading(written(tmp_path, data, "a_chunks.json"), GROWTH)
    count, growth = map(int, said.split())
    assert count == records  # and the file, of which nothing is left
    assert growth < 100 << 10


def test_a_dense_list_gives_the_same_chunks_as_a_list_of_any_kind(tmp_path, monkeypatch):
    records = [{"text": f"a ] , {number}", "metadata": {"x": [1, {"y": "}"}]}} for number in range(9)]
    data = json.dumps({"version": [1, 2], "chunks": [*records, {}, 7, []], "items": []}).encode()
    collection = discover(written(tmp_path, data, "a_chunks.json"))[0]
    before = list(ChunkReader(collection))
    monkeypatch.setattr("interlock.engine.corpus.records.MEMBER", 1 << 30)
    assert list(ChunkReader(collection)) == before
    assert sum(isinstance(each, Chunk) for each in before) == 9


def test_quotes_without_an_end_are_looked_at_once(tmp_path):
    root = written(tmp_path, b'[{"text": "' + b'\\"' * 300_000, "a_chunks.json")
    began = time.process_time()
    (refusal,) = ChunkReader(discover(root)[0])
    assert time.process_time() - began < 10
    assert refusal.reason == "file ends within record 1"


def test_the_first_hundred_refusals_are_told_by_name_and_all_are_counted_by_reason(tmp_path, tiny_a):
    bad = b"x\n" * 300 + b'{"text": ""}\n' * 200
    ids = b"".join(b'{"text": "a", "metadata": {"chunk_id": %d}}\n' % (number % 50) for number in range(100))
    bad += b"7\n" * 50
    root = written(tmp_path / "in", b'{"text": "good"}\n' + bad + ids)
    run = Run(root, load({"out": str(tmp_path / "out"), "roster": str(tiny_a)}, {}), Controls())
    run.go()
    told = events_of(run.directory.path, RecordRefused)
    (read,) = events_of(run.directory.path, CollectionRead)
    (collection,) = summary_of(run.directory.path)["collections"]
    assert [each.record for each in told] == list(range(2, 102))
    assert (read.refused, collection["refused"], len(collection["refusals"])) == (550, 550, 100)
    assert read.reasons == collection["refused_by_reason"]
    assert sorted(read.reasons.values()) == [50, 200, 300]
    assert read.reasons["the text is empty"] == 200
    assert (read.records, read.chunks, read.same, read.renamed) == (651, 51, 50, 0)
    names = ("records", "chunks", "same", "renamed")
    assert [collection[name] for name in names] == [651, 51, 50, 0]


def test_reasons_without_number_are_counted_together(tmp_path):
    bad = b"".join(b'{"text": "' + b"a" * n + b"\xff" + b'"}\n' for n in range(60))
    (rows,) = read_corpus(discover(written(tmp_path, bad)), lambda _: None).rows
    assert rows.refusals.reasons == {"not UTF-8: save the file as UTF-8": 60, UNUSABLE: 1}


def test_texts_of_three_hundred_collections_are_owned_by_those_that_had_them_first(tmp_path):
    files = {f"C{number:03}": {"a.jsonl": ["shared", f"own {number}"]} for number in range(300)}
    files["C150"]["a.jsonl"] = ["shared"]
    files["D"] = {"a.jsonl": ["own 7", "own 149", "own 151", "shared", "new"]}
    read = read_corpus(discover(corpus(tmp_path, files)), lambda _: None)
    assert read.owners(read.rows[-1]) == ["C000", "C007", "C149", "C151"]
    assert read.owners(read.rows[150]) == ["C000"]
    assert read.owners(read.rows[0]) == []
