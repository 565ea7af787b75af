"""Names the place of a text that was parked: its file, its record, and the id of its chunk.

The id is looked up in the file, which costs a reading of it: the first texts that come to nothing are worth that, and
a pass that parks every text is not to read its files for each.
"""

from dataclasses import replace

import numpy as np
from msgspec import structs

from interlock.engine.corpus.chunks import Chunk, ChunkReader
from interlock.engine.corpus.corpus import Corpus, Rows
from interlock.engine.record.events import RowParked

LOOKED_UP = 20
"""Rows of a collection whose chunk id is looked up."""


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
