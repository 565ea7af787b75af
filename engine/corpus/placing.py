"""Names the place of a text that was parked: its file, its record, and the id of its chunk.

The id is looked up in the file, which costs a reading of it; only a text that comes to nothing is worth that.
"""

from dataclasses import replace

import numpy as np
from msgspec import structs

from interlock.engine.corpus.chunks import Chunk, ChunkReader
from interlock.engine.corpus.corpus import Corpus, Rows
from interlock.engine.record.events import RowParked


def placed(event: RowParked, corpus: Corpus) -> RowParked:
    """Name the first place of a parked text in its collection; the event as it is where that has none."""
    rows = next(each for each in corpus.rows if each.collection.name == event.collection)
    found = np.flatnonzero(rows.texts == event.row)
    if not len(found):
        return event
    file, record = rows.places.of(int(found[0]))
    return structs.replace(event, file=file, record=record, chunk_id=_chunk_id(rows, int(found[0]), file, record))


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
