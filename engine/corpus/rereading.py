"""Reads the files of a corpus once more: all chunks when they are delivered, of which nothing is taken that is not the
text that was embedded, and the chunk of a text that was parked, to name it by file, record and id.

A chunk id costs a reading of its file: the first texts that come to nothing are worth that, and a pass that parks every
text is not to read its files for each.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
from msgspec import structs

from interlock.engine.corpus.chunks import Chunk, ChunkReader
from interlock.engine.corpus.corpus import WINDOW, Corpus, Rows
from interlock.engine.corpus.identity import Digests, digest_of
from interlock.engine.corpus.places import release
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.record import atomic
from interlock.engine.record.events import RowParked

LOOKED_UP = 20
"""Rows of a collection whose chunk id is looked up."""


def reread(rows: Rows, digests: Digests) -> Iterator[Chunk]:
    """Read the good chunks of a collection once more, in row order, each with the point id and the text of its row.

    `digests` are those of the corpus. Raises InterlockError where a file, a chunk or a refusal is not what it was when
    the run read it; what came before may then belong to a file that is no longer the one that was read.
    """
    reader, planned, known = ChunkReader(rows.collection, rows.features), _planned(rows, digests), len(rows.refusals)
    files = refused = 0

    def check_files() -> int:
        """Compare the files that were read since; how many that makes."""
        for name, digest in islice(reader.hashes.items(), files, None):
            if rows.hashes.get(name) != digest:
                raise _changed(rows, name, "different contents")
        return len(reader.hashes)

    for chunk in reader:
        if len(reader.hashes) != files:  # a file has been read to its end: the next chunk may be of one that changed
            files = check_files()
        if isinstance(chunk, Chunk):
            if next(planned, None) != (bytes.fromhex(chunk.point_id.replace("-", "")), digest_of(chunk.text)):
                raise _changed(rows, _differing(rows), "different chunks")
            yield chunk
            continue
        expected = rows.refusals.told[refused : refused + 1]  # empty behind those that were kept by name
        refused += 1
        if expected not in ([chunk], []) or refused > known:
            raise _changed(rows, chunk.file, chunk.reason)
    check_files()
    for name in rows.hashes.keys() - reader.hashes.keys():
        raise _changed(rows, name, "deleted")
    if next(planned, None) or refused < known:
        raise _changed(rows, _differing(rows), "fewer records")


def _planned(rows: Rows, digests: Digests) -> Iterator[tuple[bytes, bytes]]:
    """The point id and the text's digest of every row."""
    for start in range(0, rows.chunks, WINDOW):
        points, texts = rows.points[start : start + WINDOW], digests[rows.texts[start : start + WINDOW]]
        planned = zip(points.tolist(), texts.tolist(), strict=True)
        release(rows.points, rows.texts, digests)
        yield from planned


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


def other_texts(run: str) -> UsageError:
    """Return the error of a run of which a session has read other texts before."""
    return UsageError(f"run {run} was started with other texts: restore its files, or start a new run")


def placed(event: RowParked, corpus: Corpus) -> RowParked:
    """Name the first place of a parked text in its collection, with its chunk id for the first LOOKED_UP of them; the
    event as it is where that has none."""
    rows = next(each for each in corpus.rows if each.collection.name == event.collection)
    found = np.flatnonzero(rows.texts == event.row)
    if not len(found):
        return event
    row, ids = int(found[0]), rows.chunk_ids
    file, record = rows.places.of(row)
    if row not in ids and len(ids) < LOOKED_UP:
        ids[row] = _chunk_id(rows, row, file, record)
    return structs.replace(event, file=file, record=record, chunk_id=ids.get(row, ""))


def _chunk_id(rows: Rows, row: int, file: str, record: int) -> str:
    """The id of a chunk, read from its file; from all of them, where what came before it made it another. Empty where
    it is there no more."""
    point = rows.points[row].tobytes().hex()
    alone = replace(rows.collection, files=(file,), refusals=())
    for collection in (alone, rows.collection):
        reader = ChunkReader(collection, rows.features)
        for chunk in reader:
            if reader.place == (file, record):
                if isinstance(chunk, Chunk) and chunk.point_id.replace("-", "") == point:
                    return chunk.chunk_id
                break
    return ""
