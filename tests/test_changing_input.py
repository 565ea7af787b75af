"""Chunk files that change, shrink or grow beyond reason while they are read: told, and never the end of the process."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from interlock.engine.corpus.chunks import Chunk, ChunkReader
from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.corpus import read_corpus
from interlock.engine.corpus.rereading import reread
from interlock.engine.errors import InterlockError
from interlock.engine.record.facts import Refusal
from tests.builders import ROOT, corpus, environment

MANY = [f"text {number} " + "and so on " * 100 for number in range(4000)]  # 4 MB: far more than is read at a time
READING = """
import sys
from pathlib import Path
from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.chunks import ChunkReader
def peak(): return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])  # KiB; rusage has our own
found = iter(ChunkReader(discover(Path(sys.argv[1]))[0]))
"""


def reading(root, what):
    """What a process of its own prints that reads the collection below `root`, and then does `what`."""
    done = subprocess.run(
        [sys.executable, "-c", READING + what, str(root)],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("name", ["a.jsonl", "a_chunks.json"])
def test_a_file_that_is_cut_short_while_it_is_read_ends_there_and_kills_nobody(tmp_path, name):
    root = corpus(tmp_path, {"Docs": {name: MANY}})
    said = reading(
        root,
        f"next(found); import os; os.truncate(Path(sys.argv[1]) / 'Docs' / {name!r}, 10)\n"
        "print(*(type(each).__name__ for each in found))",
    )
    assert "Chunk" in said


def test_a_file_that_is_cut_short_while_it_is_delivered_is_an_error(tmp_path):
    root = corpus(tmp_path, {"Docs": {"a.jsonl": MANY}})
    read = read_corpus(discover(root), lambda _: None)
    chunks = reread(read.rows[0], read.digests)
    next(chunks)
    os.truncate(root / "Docs" / "a.jsonl", 10)
    with pytest.raises(InterlockError, match="changed during the run"):
        list(chunks)


def test_the_hash_of_a_file_that_is_edited_while_it_is_read_is_that_of_the_bytes_that_were_parsed(tmp_path):
    root = corpus(tmp_path, {"Docs": {"a.jsonl": MANY}})
    file = root / "Docs" / "a.jsonl"
    reader = ChunkReader(discover(root)[0])
    found = iter(reader)
    texts = [next(found).text]
    with file.open("rb+") as handle:
        handle.seek(-20, os.SEEK_END)
        handle.write(b"X")
    texts += [each.text for each in found]
    parsed = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    assert reader.hashes == {"a.jsonl": hashlib.sha256(parsed).hexdigest()}


def test_a_file_has_no_hash_before_its_end_has_been_read(tmp_path):
    reader = ChunkReader(discover(corpus(tmp_path, {"Docs": {"a.jsonl": MANY}}))[0])
    found = iter(reader)
    next(found)
    assert reader.hashes == {}
    list(found)
    assert list(reader.hashes) == ["a.jsonl"]


def test_a_file_that_can_be_read_only_when_it_is_delivered_is_an_error(tmp_path):
    root = corpus(tmp_path, {"Docs": {"a.jsonl": ["a"], "b.jsonl": ["b"]}})
    collections = discover(root)
    (root / "Docs" / "b.jsonl").rename(tmp_path / "aside")
    read = read_corpus(collections, lambda _: None)
    (tmp_path / "aside").rename(root / "Docs" / "b.jsonl")
    with pytest.raises(InterlockError, match=r"b\.jsonl changed during the run"):
        list(reread(read.rows[0], read.digests))


def test_a_line_without_an_end_is_refused_without_being_held(tmp_path):
    root = corpus(tmp_path, {"Docs": {"a.jsonl": ["a"]}})
    with (root / "Docs" / "a.jsonl").open("ab") as handle:
        handle.truncate(150 << 20)
    said = reading(
        root,
        "before = peak()\nprint(*(getattr(each, 'reason', each) for each in found), sep='\\n')\nprint(peak() - before)",
    )
    assert "larger than 4.0 MiB" in said
    assert int(said.split()[-1]) < 50 << 10


def test_a_file_that_became_a_pipe_is_refused_and_not_waited_for(tmp_path):
    root = corpus(tmp_path, {"Docs": {"a.jsonl": ["a"]}})
    said = reading(
        root,
        "import os; file = Path(sys.argv[1]) / 'Docs' / 'a.jsonl'; file.unlink(); os.mkfifo(file)\n"
        "print(*(each.reason for each in found))",
    )
    assert "not a regular file" in said


def test_lines_are_the_same_however_the_blocks_fall(tmp_path, monkeypatch):
    lines = [b'{"text": "a\\u00e9"}', b"", b"nonsense", b'  {"text": "b"}\r', b'{"text": "cut off']
    (tmp_path / "Docs").mkdir()
    (tmp_path / "Docs" / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\n".join(lines))

    def told():
        return [
            each.text if isinstance(each, Chunk) else (each.record, each.reason)
            for each in ChunkReader(discover(tmp_path)[0])
        ]

    whole = told()
    assert [each for each in whole if isinstance(each, str)] == ["aé", "b"]
    assert [each[0] for each in whole if not isinstance(each, str)] == [3, None]
    for block in range(3, 60):
        monkeypatch.setattr("interlock.engine.corpus.records.BLOCK", block)
        assert told() == whole


def test_an_error_in_the_middle_of_a_file_is_told_and_costs_no_neighbour(tmp_path):
    root = corpus(tmp_path, {"Docs": {"a.jsonl": MANY, "b.jsonl": ["b"]}})
    reader = ChunkReader(discover(root)[0])
    found = iter(reader)
    next(found)
    with Path(os.devnull).open("wb") as nothing:  # what can only be written stands where the file was being read
        os.dup2(nothing.fileno(), _descriptor(root / "Docs" / "a.jsonl"))
    *_, refusal, last = found
    assert isinstance(refusal, Refusal)
    assert refusal.reason == "cannot read the file: Bad file descriptor"
    assert last.text == "b"
    assert list(reader.hashes) == ["b.jsonl"]


def _descriptor(path):
    """The descriptor under which this process has `path` open."""
    return next(int(link.name) for link in Path("/proc/self/fd").iterdir() if link.exists() and link.samefile(path))


@pytest.mark.parametrize("swapped", ["a.jsonl", "."])
def test_a_file_that_became_a_link_out_of_the_root_after_it_was_listed_is_not_read(tmp_path, swapped):
    root = corpus(tmp_path / "in", {"Docs": {"a.jsonl": ["inside"], "b.jsonl": ["beside"]}})
    other = corpus(tmp_path / "out", {"Docs": {"a.jsonl": ["secret"], "b.jsonl": ["secret"]}}) / "Docs"
    (collection,) = discover(root)
    place = root / "Docs" / swapped
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    place.symlink_to(other / swapped)
    found = list(ChunkReader(collection))
    assert "secret" not in [each.text for each in found if not isinstance(each, Refusal)]
    assert {each.reason for each in found if isinstance(each, Refusal)} == {
        "cannot read the file: link points outside the root"
    }
