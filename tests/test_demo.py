"""The demo needs no data and no network: it cuts the standard library's docstrings, embeds and searches them."""

import json
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from interlock.console.flags import QUESTION
from interlock.engine.compute.texts import encode_texts
from interlock.engine.corpus.chunks import Chunk, ChunkReader
from interlock.engine.corpus.collections import discover
from interlock.engine.flows import demo
from interlock.engine.gpu.devices import choose
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.registry import ModelSpec
from interlock.engine.settings import load
from tests.builders import interlock, summary_of


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    directory = tmp_path_factory.mktemp("demo") / "chunks"
    return directory, demo.write(directory, everything=False)


HERE = Path(sysconfig.get_path("stdlib"))
LIBRARIES = {
    file.parent.name: file.parent
    for file in [HERE / "os.py", *Path.home().glob(".pyenv/versions/3.1[1-4]*/lib/*/os.py")]
}
"""The standard libraries that this machine has."""
NEAR = ("date", "time", "ISO")
"""What a chunk has to speak of for the question to come near it; leaving out the others makes this quick."""
ANSWERS = {f"datetime.{kind}.fromisoformat" for kind in ("date", "datetime", "time")}


def three_hits(library, place, model):
    """The chunks that the demo's question finds first in the sample cut from a library."""
    demo.write(place, everything=False, library=library)
    files = sorted(place.rglob("*_chunks.json"))
    chunks = [
        chunk for file in files for chunk in json.loads(file.read_text()) if any(map(chunk["text"].__contains__, NEAR))
    ]
    spec = ModelSpec("minilm", (str(model),))
    card = read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")
    vectors = encode_texts(
        card, [QUESTION, *(chunk["text"][:150] for chunk in chunks)], "", Lessor(choose("cpu"), 12 << 30)
    ).dense
    best = np.argsort(-(vectors[1:] @ vectors[0]))[:3]
    return {chunks[place]["metadata"]["chunk_id"] for place in best}


@pytest.mark.parametrize("library", LIBRARIES.values(), ids=LIBRARIES)
def test_the_three_hits_make_dates_from_strings_whatever_python_the_sample_is_cut_from(library, tmp_path, minilm):
    assert three_hits(library, tmp_path, minilm) == ANSWERS


def test_docstrings_keep_the_name_that_is_imported_when_a_module_is_compiled(tmp_path):
    library = tmp_path / "lib"
    library.mkdir()
    texts = {
        "datetime.py": "from _pydatetime import *",
        "_pyrepl.py": '"""A prompt that is nobody\'s twin, and long."""',
    }
    texts["_pydatetime.py"] = f'class date:\n    """A date, with all that can be done to dates. {"x" * 40}"""\n'
    for name, text in texts.items():
        (library / name).write_text(text)
    assert demo.write(tmp_path / "chunks", everything=True, library=library) == 2
    (file,) = (tmp_path / "chunks").rglob("_pydatetime_chunks.json")
    assert json.loads(file.read_text())[0]["metadata"] == {
        "chunk_id": "datetime.date", "source_path": "_pydatetime.py", "heading_text": "datetime.date", "line": 1,
    }  # fmt: skip
    (other,) = (tmp_path / "chunks").rglob("_pyrepl_chunks.json")
    assert json.loads(other.read_text())[0]["metadata"]["chunk_id"] == "_pyrepl"


def content(directory):
    return {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_the_demo_corpus_is_one_collection_of_a_few_hundred_good_chunks(cut):
    directory, count = cut
    (found,) = discover(directory)
    chunks = list(ChunkReader(found))
    assert (found.name, found.qdrant_collection) == ("Python-Stdlib", "python-stdlib")
    assert all(isinstance(chunk, Chunk) for chunk in chunks)
    assert 250 <= count == len(chunks) <= 800


def test_the_demo_corpus_begins_with_what_people_know(cut):
    directory, _ = cut
    names = {path.name for path in (directory / demo.COLLECTION).iterdir()}
    assert {"argparse_chunks.json", "csv_chunks.json"} <= names
    first = json.loads((directory / demo.COLLECTION / "argparse_chunks.json").read_text())[0]
    assert first["metadata"]["chunk_id"] == "argparse"
    assert first["text"].startswith("argparse\n\nCommand-line parsing library")


def test_cutting_the_same_library_again_gives_the_same_bytes(cut, tmp_path):
    directory, count = cut
    assert demo.write(tmp_path / "again", everything=False) == count
    assert content(tmp_path / "again") == content(directory)


def test_cutting_again_leaves_no_older_chunk(cut, tmp_path):
    (old := tmp_path / "chunks" / demo.COLLECTION / "old_chunks.json").parent.mkdir(parents=True)
    old.write_text("[]")
    demo.write(tmp_path / "chunks", everything=False)
    assert content(tmp_path / "chunks") == content(cut[0])


@pytest.mark.parametrize(
    ("flags", "store"), [({}, "runs/demo-store"), ({"qdrant": "mine"}, "mine"), ({"out": "o"}, "o/demo-store")]
)
def test_the_demo_makes_a_store_beside_its_runs(flags, store):
    assert str(demo.with_store(load(flags, {})).settings.qdrant) == store


def test_the_demo_embeds_and_searches_with_a_tiny_roster(tmp_path, cut, tiny_a):
    done = interlock("demo", "--roster", tiny_a, "--run-id", "r", "--query", "parse a date", cwd=tmp_path)
    said = summary_of(tmp_path / "runs" / "r")
    assert (said["status"], said["collections"][0]["chunks"]) == ("completed", cut[1])
    assert said["collections"][0]["verification"]["points"] == cut[1]
    heading, *hits = [line for line in done.stdout.splitlines() if line]
    assert heading == "parse a date  (0.75 dense + 0.25 bm25, each from 0 to 1 among what it found)"
    assert [line.split()[0] for line in hits[::2]] == ["1.", "2.", "3."]
    assert f"{cut[1]} chunks in" in done.stderr
