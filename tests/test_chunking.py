"""Documents become a chunk file: nothing lost, nothing twice, nothing that a model would cut."""

import json
import re
import shlex
import shutil
import textwrap

import pytest
from transformers import AutoTokenizer

from interlock.console import writing
from interlock.console.cli import parse
from interlock.engine.corpus.documents import TokenCounter, chunk_documents
from tests.builders import ROOT, interlock, sentences

PAGE = """# Guide

Intro of the guide.

## Keys

How keys are rotated. {long}

```sh
# no heading
rotate --now
```

### Every week

Größe und Maß, naïve café: 日本語のテキスト。

## Ends
"""


@pytest.fixture
def pages(tmp_path):
    place = tmp_path / "Handbook"
    (place / "deep").mkdir(parents=True)
    (place / "guide.md").write_text(PAGE.replace("{long}", " ".join(sentences(40))))
    (place / "deep" / "code.py").write_text('def one():\n    """Return one."""\n    return 1\n' * 30)
    (place / "notes.txt").write_bytes(("\ufeff" + "\r\n\r\n".join(sentences(12))).encode())
    (place / "photo.jpg").write_bytes(b"\xff\xd8")
    return place


def chunked(place, out, *words, check=0):
    done = interlock("chunk", place, "--out", out, *words, check=check)
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else [], done


def text_of(file):
    return file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")


def test_documents_chunks_and_what_is_left_out_add_up(pages, tmp_path, tiny_a):
    for name in ("empty.md", "blank.txt"):
        (pages / name).write_text("\n \n" * (name == "blank.txt"))
    (pages / "latin.txt").write_bytes(b"caf\xe9")
    found, done = chunked(pages, tmp_path / "p.jsonl", "--roster", tiny_a, "--tokens", "24", check=1)
    assert f"{len(found)} chunks of 3 documents" in done.stdout
    assert "without text: blank.txt; empty.md" in done.stderr and "latin.txt refused" in done.stderr


@pytest.mark.parametrize("name", ["one.md", "one.txt", "many.md"])
def test_no_chunk_of_prose_ends_within_a_sentence_that_has_room(tmp_path, tiny_a, name):
    said = [text.capitalize().rstrip(".") + "." for text in sentences(120)]
    paragraphs = [said[start : start + 17] for start in range(0, 120, 17)] if name == "many.md" else [said]
    text = "\n\n".join(textwrap.fill(" ".join(each), 60) for each in paragraphs)
    (tmp_path / name).write_text(text)
    found, _ = chunked(tmp_path / name, tmp_path / "p.jsonl", "--roster", tiny_a, "--tokens", "64")
    assert [each["text"][-1] for each in found] == ["."] * len(found)
    places = [(each["metadata"]["start"], each["metadata"]["end"]) for each in found]
    assert "".join("".join(text[start:end].split()) for start, end in places) == "".join(text.split())
    sizes = [len(AutoTokenizer.from_pretrained(tiny_a)(each["text"])["input_ids"]) for each in found]
    assert max(sizes) <= 64 and min(sizes) > 8


def test_progress_in_a_pipe_ends_with_the_whole_where_it_has_begun(monkeypatch, capsys):
    monkeypatch.setattr(writing, "PAUSE", -1.0)
    with writing.progress("file") as told:
        told("documents", 2, 3)
        monkeypatch.setattr(writing, "PAUSE", 60.0)
        told("documents", 3, 3)
    assert capsys.readouterr().err.splitlines()[-1].endswith("documents: 3 of 3 files")


def test_chunks_are_the_whole_of_each_document_once_and_no_model_would_cut_one(pages, tmp_path, tiny_a, tiny_b):
    left, roster = tmp_path / "c" / "Docs" / ".p.jsonl.0a1b2c3d4e5f.partial", f"{tiny_a},{tiny_b}"
    left.parent.mkdir(parents=True)
    left.touch()  # of one that was killed
    found, done = chunked(pages, left.with_name("p.jsonl"), "--roster", roster, "--tokens", 24)
    assert not left.exists()
    again = parse(shlex.split(done.stdout.partition("next: interlock ")[2]))
    assert again.chunks == left.parent  # which is called Docs
    assert (again.command, again.roster, again.qdrant) == ("run", roster, "store")
    assert "3 documents" in done.stdout and "left out by their endings: 1 .jpg" in done.stderr
    tokenizers = [AutoTokenizer.from_pretrained(each) for each in (tiny_a, tiny_b)]
    for name in ("guide.md", "deep/code.py", "notes.txt"):
        text, last = text_of(pages / name), 0
        for chunk in (each for each in found if each["metadata"]["source_path"] == name):
            start, end = chunk["metadata"]["start"], chunk["metadata"]["end"]
            assert text[start:end] == chunk["text"] and not text[last:start].strip()
            last = end
        assert not text[last:].strip()
    assert max(len(each(chunk["text"])["input_ids"]) for each in tokenizers for chunk in found) <= 24
    planned = interlock("plan", tmp_path / "c", "--roster", f"{tiny_a},{tiny_b}", "--devices", "cpu", cwd=tmp_path)
    assert re.search(rf"^Docs +1 +{len(found)} +\d+ +\d+ +0 +docs$", planned.stdout, re.MULTILINE)


def test_no_chunk_is_a_heading_alone(tmp_path, tiny_a):
    body = " ".join(f"It is {number}." for number in range(100))
    page = f"# One\n\n## Two\n\n{body}\n\n### Three\n\n```python\n{body}\n```\n\n# Last\n"
    (tmp_path / "a.md").write_text(page)
    tokenizer = AutoTokenizer.from_pretrained(tiny_a)
    for overlap in (0, 5):
        words = ("--roster", tiny_a, "--tokens", 60, "--overlap", overlap)
        found, _ = chunked(tmp_path / "a.md", tmp_path / f"{overlap}.jsonl", *words)
        places = [(each["metadata"]["start"], each["metadata"]["end"]) for each in found]
        assert all(page[start:end] == each["text"] for (start, end), each in zip(places, found, strict=True))
        kept = {at for start, end in places for at in range(start, end)}
        assert not "".join(sign for at, sign in enumerate(page) if at not in kept).strip()
        assert found[0]["text"].startswith(f"# One\n\n## Two\n\n{body[:20]}"), found[0]
        assert [
            each["text"] for each in found if each["text"].split()[-1] in ("One", "Two", "Three", "```python")
        ] == []
        assert max(len(tokenizer(each["text"])["input_ids"]) for each in found) <= 60


def test_no_chunk_is_too_long_where_a_longer_text_has_fewer_tokens(tmp_path, tiny_a):
    text = "x | https://a.b/c?d=e\n" * 20
    (tmp_path / "a.txt").write_text(text)
    counter = TokenCounter(tiny_a / "tokenizer.json", "", 128, "a")
    chunk_documents(tmp_path / "a.txt", tmp_path / "p.jsonl", [counter], 8, 0, lambda *_: None)
    chunks = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert max(counter.count(each["text"]) for each in chunks) <= 8
    assert "".join("".join(each["text"] for each in chunks).split()) == "".join(text.split())
    assert all(text[each["metadata"]["start"] :].startswith(each["text"]) for each in chunks)


def test_the_time_of_a_long_line_is_that_of_its_length(tmp_path, tiny_a):
    class Telling(TokenCounter):
        def count(self, text):
            told.append(len(text))
            return super().count(text)

    told = []
    text = ",".join(str(1 / number) for number in range(1, 251))  # as in a table of SQL
    (tmp_path / "a.sql").write_text(text)
    counter = Telling(tiny_a / "tokenizer.json", "", 128, "a")
    report = chunk_documents(tmp_path / "a.sql", tmp_path / "p.jsonl", [counter], 64, 0, lambda *_: None)
    assert report.chunks > 1 and sum(told) < 40 * len(text)


def test_a_chunk_knows_its_headings(pages, tmp_path, tiny_a):
    found, _ = chunked(pages, tmp_path / "p.jsonl", "--roster", tiny_a, "--tokens", 24)
    by_text = {chunk["text"]: chunk["metadata"].get("headings") for chunk in found}
    (rotate,) = [headings for text, headings in by_text.items() if "rotate --now" in text]
    (size,) = [headings for text, headings in by_text.items() if "naïve café" in text]
    assert (rotate, size) == (["Guide", "Keys"], ["Guide", "Keys", "Every week"])


def test_what_cannot_be_read_is_refused_and_the_rest_is_written(pages, tmp_path, tiny_a):
    (pages / "latin.md").write_bytes("naïve".encode("latin-1"))
    (pages / "binary.txt").write_bytes(b"a\0b")
    (pages / "out.md").symlink_to(ROOT / "README.md")
    found, done = chunked(pages, tmp_path / "p.jsonl", "--roster", tiny_a, "--tokens", 24, check=1)
    assert {each["metadata"]["source_path"] for each in found} == {"guide.md", "deep/code.py", "notes.txt"}
    said = ("latin.md refused: not UTF-8 (byte 2)", "binary.txt refused: holds null", "out.md refused: link points out")
    assert all(each in done.stderr for each in said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tokens", 5000), "reads "),
        (("--tokens", 2), "puts 2 around a text: set more than that"),
        (("--tokens", 8, "--overlap", 8), "--overlap 8: expected less than --tokens"),
        (("--tokens", 8, "--overlap", 6), "puts around a text, which is 6: set it lower"),
        (("--out", "x.txt"), "name it x.jsonl"),
    ],
)
def test_sizes_and_names_that_cannot_be_are_refused(pages, tmp_path, tiny_a, words, said):
    _, done = chunked(pages, tmp_path / "p.jsonl", "--roster", tiny_a, *words, check=2)
    assert said in done.stderr and not (tmp_path / "p.jsonl").exists()


def test_a_run_of_documents_says_how_they_are_chunked(pages, tmp_path, tiny_a):
    shutil.rmtree(pages / "deep")
    done = interlock("run", pages, "--roster", tiny_a, cwd=tmp_path, check=2)
    assert f"use `interlock chunk {pages} --out chunks/Handbook/pages.jsonl`" in done.stderr
    empty = tmp_path / "none"
    empty.mkdir()
    assert "has no documents" in interlock("chunk", empty, "--out", tmp_path / "x.jsonl", check=2).stderr


def test_directories_that_are_left_out_are_told(pages, tmp_path, tiny_a):
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "a.md").write_text("words")
    (pages / "linked").symlink_to(tmp_path / "else")
    (pages / "again").symlink_to(pages)
    (pages / ".notes").mkdir()
    (pages / ".notes" / "b.md").write_text("words")
    said = interlock(
        "chunk", pages, "--out", tmp_path / "c.jsonl", "--roster", tiny_a, "--tokens", 40, check=None
    ).stderr
    assert "linked refused: link points outside the root" in said
    assert "1 hidden" in said
    assert "again" not in said


def test_where_nothing_can_be_read_nothing_is_written(tmp_path, tiny_a):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.md").write_bytes("é".encode("latin-1"))
    (tmp_path / "in" / "b.md").write_text("\n")
    words = ("chunk", tmp_path / "in", "--out", tmp_path / "p.jsonl", "--roster", tiny_a, "--tokens", "24")
    done = interlock(*words, check=2)
    assert "a.md: not UTF-8" in done.stderr and not (tmp_path / "p.jsonl").exists()
