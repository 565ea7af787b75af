"""The corpus of a run as rows: every good chunk in reading order, pointing at its distinct text.

Texts themselves stay in their files; what is kept is 20 bytes a row (its text's number and its point id) and 16 a text
(its digest). A text that stands in several chunks is one row of work. With these the same files are read once more
when they are delivered, and nothing is taken from them that is not the text that was embedded.
"""

import hashlib
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt

from interlock.engine.corpus.chunks import Chunk, ChunkReader, Refusals
from interlock.engine.corpus.collections import Collection
from interlock.engine.corpus.features import Features, no_features
from interlock.engine.errors import InterlockError
from interlock.engine.record import atomic
from interlock.engine.record.facts import Refusal

Digests = npt.NDArray[np.void]
DIGEST = np.dtype("V16")
WINDOW = 512


@dataclass
class Rows:
    """One collection as it was read: `texts[i]` is the distinct text of row i, `points[i]` the id of its point.

    Its own texts are a range. `features` reads the terms that its chunks bring, and refuses a chunk with bad ones.
    """

    collection: Collection
    first_text: int
    features: Features = no_features
    texts: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    points: Digests = field(default_factory=lambda: np.empty(0, DIGEST))
    own_texts: int = 0
    refusals: Refusals = field(default_factory=Refusals)
    hashes: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def chunks(self) -> int:
        return len(self.texts)

    @property
    def duplicates(self) -> int:
        """Rows whose text had been seen before, in this collection or an earlier one."""
        return self.chunks - self.own_texts


@dataclass
class Corpus:
    """All collections of a run and the digests of their distinct texts."""

    rows: list[Rows]
    digests: Digests

    @property
    def chunks(self) -> int:
        return sum(rows.chunks for rows in self.rows)

    def owners(self, rows: Rows) -> list[str]:
        """List the earlier collections in which texts of `rows` stood first."""
        earlier, starts = np.unique(rows.texts[rows.texts < rows.first_text]), [each.first_text for each in self.rows]
        places = np.unique(np.searchsorted(starts, earlier, side="right") - 1)
        return [self.rows[place].collection.name for place in places]

    def fingerprint(self) -> dict[str, str]:
        """Return the SHA-256 of every file, by `collection/file`."""
        return {f"{rows.collection.name}/{name}": digest for rows in self.rows for name, digest in rows.hashes.items()}


def read_corpus(
    collections: Sequence[Collection],
    take: Callable[[list[str]], object],
    each: Callable[[Chunk], object] = lambda _: None,
    features: Features = no_features,
) -> Corpus:
    """Read every collection; `take` gets the distinct texts in order, a window at a time, and `each` every chunk."""
    seen: dict[int, int] = {}  # of 16 bytes Python makes an integer of 48, and a string of bytes of 64
    rows = [_read(Rows(collection, len(seen), features), seen, take, each) for collection in collections]
    digests = bytearray()
    for digest in seen:  # joined at once, they would all be there twice
        digests += digest.to_bytes(DIGEST.itemsize, "big")
    return Corpus(rows, np.frombuffer(digests, DIGEST))


def _read(
    rows: Rows, seen: dict[int, int], take: Callable[[list[str]], object], each: Callable[[Chunk], object]
) -> Rows:
    began = time.monotonic()
    reader = ChunkReader(rows.collection, rows.features)
    texts, points = array("i"), bytearray()
    window: list[str] = []
    for chunk in reader:
        if isinstance(chunk, Refusal):
            rows.refusals.add(chunk)
            continue
        each(chunk)
        text = seen.setdefault(int.from_bytes(digest_of(chunk.text), "big"), len(seen))
        texts.append(text)
        points += bytes.fromhex(chunk.point_id.replace("-", ""))
        if text == rows.first_text + rows.own_texts:  # it has the next number, so nobody had it before
            rows.own_texts += 1
            window.append(chunk.text)
        if len(window) == WINDOW:
            take(window)
            window = []
    take(window)
    rows.texts, rows.points = np.array(texts, np.int32), np.frombuffer(points, DIGEST)
    rows.hashes, rows.seconds = reader.hashes, time.monotonic() - began
    return rows


def digest_of(text: str) -> bytes:
    """Digest a text, as it is known here: the first 16 bytes of its SHA-256."""
    return hashlib.sha256(text.encode()).digest()[: DIGEST.itemsize]


def digest_of_texts(digests: Digests) -> str:
    """Digest all the texts of a corpus in their order: a SHA-256 in hex."""
    return hashlib.sha256(digests.tobytes()).hexdigest()


def reread(rows: Rows, digests: Digests) -> Iterator[Chunk]:
    """Read the good chunks of a collection once more, in row order, each with the point id and the text of its row.

    `digests` are those of the corpus. Raises InterlockError where a file, a chunk or a refusal is not what it was when
    the run read it; what came before may then belong to a file that is no longer the one that was read.
    """
    reader, planned = ChunkReader(rows.collection, rows.features), _planned(rows, digests)
    files, refused, known = 0, 0, len(rows.refusals)
    for chunk in reader:
        if len(reader.hashes) != files:  # a file has been read to its end: the next chunk may be of one that changed
            files = _check_files(rows, reader.hashes, files)
        if isinstance(chunk, Chunk):
            if next(planned, None) != (bytes.fromhex(chunk.point_id.replace("-", "")), digest_of(chunk.text)):
                raise _changed(rows, _differing(rows), "different chunks")
            yield chunk
            continue
        expected = rows.refusals.told[refused : refused + 1]  # empty behind those that were kept by name
        refused += 1
        if expected not in ([chunk], []) or refused > known:
            raise _changed(rows, chunk.file, chunk.reason)
    _check_files(rows, reader.hashes, files)
    for name in rows.hashes.keys() - reader.hashes.keys():
        raise _changed(rows, name, "deleted")
    if next(planned, None) or refused < known:
        raise _changed(rows, _differing(rows), "fewer records")


def _planned(rows: Rows, digests: Digests) -> Iterator[tuple[bytes, bytes]]:
    """The point id and the text's digest of every row."""
    for start in range(0, rows.chunks, WINDOW):
        points, texts = rows.points[start : start + WINDOW], digests[rows.texts[start : start + WINDOW]]
        yield from zip(points.tolist(), texts.tolist(), strict=True)


def _check_files(rows: Rows, hashes: dict[str, str], checked: int) -> int:
    """Compare the files read since the first `checked` of them; how many that makes."""
    for name, digest in islice(hashes.items(), checked, None):
        if rows.hashes.get(name) != digest:
            raise _changed(rows, name, "different contents")
    return len(hashes)


def _differing(rows: Rows) -> str | None:
    """The first file that is not now what it was when the run read it."""
    for name in rows.collection.files:
        try:
            digest = atomic.sha256_of(rows.collection.root / name)
        except OSError:
            digest = None
        if digest != rows.hashes.get(name):
            return name
    return None


def _changed(rows: Rows, file: str | None, what: str) -> InterlockError:
    name = rows.collection.name
    advice = "no file was delivered for this collection, a store may hold part of it; restore the file, then --resume"
    if file is None:
        return InterlockError(f"{name}: its files are unchanged but gave different records when read again; {advice}")
    return InterlockError(f"{name}/{file} changed during the run ({what}); {advice}")
