"""The demo needs no data and no network: it cuts the standard library's docstrings, embeds and searches them."""

import json

import pytest

from console import demo
from engine.config import load
from engine.intake.chunks import Chunk, ChunkReader
from engine.intake.collections import discover
from tests.builders import interlock, summary_of


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    directory = tmp_path_factory.mktemp("demo") / "chunks"
    return directory, demo.write(directory, everything=False)


def content(directory):
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_GIVEN_the_standard_library_WHEN_cut_THEN_a_few_hundred_good_chunks_make_one_collection(cut):
    directory, count = cut
    (found,) = discover(directory)
    chunks = list(ChunkReader(found))
    assert (found.name, found.qdrant_collection) == ("Python-Stdlib", "python-stdlib")
    assert all(isinstance(chunk, Chunk) for chunk in chunks)
    assert 250 <= count == len(chunks) <= 800


def test_GIVEN_the_standard_library_WHEN_cut_THEN_what_people_know_comes_first(cut):
    directory, _ = cut
    names = {path.name for path in (directory / demo.COLLECTION).iterdir()}
    assert {"argparse_chunks.json", "csv_chunks.json"} <= names
    first = json.loads((directory / demo.COLLECTION / "argparse_chunks.json").read_text())[0]
    assert first["metadata"]["chunk_id"] == "argparse"
    assert first["text"].startswith("argparse\n\nCommand-line parsing library")


def test_GIVEN_the_same_library_WHEN_cut_again_THEN_every_byte_is_the_same(cut, tmp_path):
    directory, count = cut
    assert demo.write(tmp_path / "again", everything=False) == count
    assert content(tmp_path / "again") == content(directory)


def test_GIVEN_older_chunks_WHEN_cut_again_THEN_none_of_them_stays(cut, tmp_path):
    (old := tmp_path / "chunks" / demo.COLLECTION / "old_chunks.json").parent.mkdir(parents=True)
    old.write_text("[]")
    demo.write(tmp_path / "chunks", everything=False)
    assert content(tmp_path / "chunks") == content(cut[0])


@pytest.mark.parametrize(
    ("flags", "store"), [({}, "runs/demo-store"), ({"qdrant": "mine"}, "mine"), ({"out": "o"}, "o/demo-store")]
)
def test_GIVEN_no_store_WHEN_the_demo_is_set_up_THEN_one_is_made_beside_the_runs(flags, store):
    assert str(demo.with_store(load(flags, {})).settings.qdrant) == store


def test_GIVEN_a_tiny_roster_WHEN_the_demo_is_run_THEN_it_embeds_and_searches(tmp_path, cut, tiny_a):
    done = interlock("demo", "--roster", tiny_a, "--run-id", "r", "--query", "parse a date", cwd=tmp_path)
    said = summary_of(tmp_path / "runs" / "r")
    assert (said["status"], said["collections"][0]["chunks"]) == ("completed", cut[1])
    assert said["collections"][0]["verification"]["points"] == cut[1]
    heading, *hits = [line for line in done.stdout.splitlines() if line]
    assert heading == "parse a date"
    assert [line.split()[0] for line in hits[::2]] == ["1.", "2.", "3."]
    assert f"{cut[1]} chunks in" in done.stderr
