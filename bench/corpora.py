"""Texts to measure with: the distinct texts of a chunk directory, by default the standard library's docstrings.

The same Python and the same seed give the same texts. Nothing is kept in the repository.
"""

import json
import random
import tempfile
from pathlib import Path

from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.corpus import read_corpus
from interlock.engine.flows import demo

SEED = 7
PER_FILE = 500


def texts_of(chunks: Path | None, *, few: bool = False) -> list[str]:
    """The distinct texts under `chunks`, or of a demo corpus made for the moment, with all docstrings or a `few`."""
    with tempfile.TemporaryDirectory() as made:
        if chunks is None:
            demo.write(Path(made), everything=not few)
        found: list[str] = []
        read_corpus(discover(chunks or Path(made)), found.extend)
        return found


def sample(texts: list[str], count: int, shortest: int) -> list[str]:
    """`count` of the texts that have `shortest` characters or more, always the same ones; all, if there are fewer."""
    long = sorted(text for text in texts if len(text) >= shortest)
    return random.Random(SEED).sample(long, min(count, len(long)))


def write_chunks(directory: Path, texts: list[str], metadata_bytes: int) -> None:
    """A collection of chunk files, each record with about `metadata_bytes` of metadata."""
    target = directory / "Bench"
    target.mkdir(parents=True)
    for file, start in enumerate(range(0, len(texts), PER_FILE)):
        records = [
            {
                "text": text,
                "metadata": {"chunk_id": str(row), "source_path": f"{file}.md", "about": "m" * metadata_bytes},
            }
            for row, text in enumerate(texts[start : start + PER_FILE], start)
        ]
        (target / f"{file:05d}_chunks.json").write_text(json.dumps(records))


def cuts(texts: list[str], count: int, words: int) -> list[str]:
    """`count` distinct texts of `words` words, each with its number: the words of `texts`, cut in order."""
    stream = [word for text in texts for word in text.split()]
    stream *= count * words // len(stream) + 1
    return [f"{n} {' '.join(stream[n * words : (n + 1) * words])}" for n in range(count)]
