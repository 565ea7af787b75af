"""The corpus of a run as rows: every good chunk in reading order, pointing at its distinct text.

Texts themselves stay in their files; what is kept is 20 bytes a row and 16 a text. A text that stands
in several chunks is one row of work.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.errors import InterlockError
from engine.intake.chunks import Chunk, ChunkReader
from engine.intake.collections import Collection, Refusal
from engine.intake.refusals import Refusals

Digests = npt.NDArray[np.void]
DIGEST = np.dtype("V16")
WINDOW = 512


@dataclass
class Rows:
    """One collection as it was read: `texts[i]` is the distinct text of row i; its own texts are a range."""

    collection: Collection
    first_text: int
    texts: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    own_texts: int = 0
    refusals: Refusals = field(default_factory=Refusals)
    hashes: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def duplicates(self) -> int:
        """Rows whose text had been seen before, in this collection or an earlier one."""
        return len(self.texts) - self.own_texts


@dataclass
class Corpus:
    """All collections of a run and the digests of their distinct texts."""

    rows: list[Rows]
    digests: Digests

    @property
    def chunks(self) -> int:
        return sum(len(rows.texts) for rows in self.rows)

    def owners(self, rows: Rows) -> list[str]:
        """The earlier collections in which texts of `rows` stood first."""
        earlier = np.unique(rows.texts[rows.texts < rows.first_text])
        starts = [other.first_text for other in self.rows]
        places = np.unique(np.searchsorted(starts, earlier, side="right") - 1)
        return [self.rows[place].collection.name for place in places]

    def fingerprint(self) -> dict[str, str]:
        """SHA-256 of every file, by `collection/file`."""
        return {f"{rows.collection.name}/{name}": digest for rows in self.rows for name, digest in rows.hashes.items()}


def read_corpus(collections: Sequence[Collection], take: Callable[[list[str]], None]) -> Corpus:
    """Read every collection; `take` gets the distinct texts in order, a window at a time."""
    seen: dict[bytes, int] = {}
    return Corpus(
        [_read(collection, seen, take) for collection in collections],
        np.frombuffer(b"".join(seen), DIGEST) if seen else np.empty(0, DIGEST),
    )


def _read(collection: Collection, seen: dict[bytes, int], take: Callable[[list[str]], None]) -> Rows:
    began = time.monotonic()
    reader, rows = ChunkReader(collection), Rows(collection, len(seen))
    texts: list[int] = []
    window: list[str] = []
    for found in reader:
        if isinstance(found, Refusal):
            rows.refusals.add(found)
            continue
        digest = hashlib.sha256(found.text.encode()).digest()[: DIGEST.itemsize]
        text = seen.setdefault(digest, len(seen))
        texts.append(text)
        if text == rows.first_text + rows.own_texts:
            rows.own_texts += 1
            window.append(found.text)
        if len(window) == WINDOW:
            take(window)
            window = []
    take(window)
    rows.texts = np.asarray(texts, np.int32)
    rows.hashes, rows.seconds = reader.hashes, time.monotonic() - began
    return rows


def reread(rows: Rows) -> Iterator[Chunk]:
    """The good chunks of a collection once more, in row order.

    Raises InterlockError when a file is not what it was when the run read it.
    """
    reader, files = ChunkReader(rows.collection), 0
    for found in reader:
        if len(reader.hashes) != files:
            files = len(reader.hashes)
            _check_unchanged(rows, next(reversed(reader.hashes.items())))
        if isinstance(found, Chunk):
            yield found
    for item in rows.hashes.items() ^ reader.hashes.items():
        _check_unchanged(rows, (item[0], ""))


def _check_unchanged(rows: Rows, file: tuple[str, str]) -> None:
    name, digest = file
    if rows.hashes.get(name) != digest:
        raise InterlockError(f"{rows.collection.name}/{name} changed during the run: put it back and --resume")
