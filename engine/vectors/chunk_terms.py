"""The terms that chunks bring along, kept from when they are read until they are delivered, a row for each chunk."""

from array import array
from pathlib import Path

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.corpus.chunks import Chunk
from interlock.engine.corpus.features import TERM
from interlock.engine.corpus.ragged import places_of, starts_of
from interlock.engine.record import atomic

WIDTH = 2**32
"""How many indices there may be."""
BLOCK = 1 << 20


class ChunkTerms:
    """The terms of all chunks of a run, in the order in which they are read, in a file of the session's scratch."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "chunk-terms.bin"
        self._ends, self._pending = array("q", [0]), bytearray()

    def add(self, chunk: Chunk) -> None:
        """Keep the terms of the next chunk. Raises InterlockError where the disk takes no more."""
        self._pending += chunk.features
        if len(self._pending) > BLOCK:
            self._write()
        self._ends.append(self._ends[-1] + len(chunk.features) // TERM.itemsize)

    @property
    def count(self) -> int:
        """How many terms all chunks have."""
        return self._ends[-1]

    def take(self, rows: npt.NDArray[np.int64]) -> SparseRows:
        """Read the terms of `rows` [n], counted over all collections; a chunk that brings none has an empty row."""
        self._write()
        ends = np.frombuffer(self._ends, np.int64)
        counts = ends[rows + 1] - ends[rows]
        places = places_of(ends[rows], counts)
        terms = np.memmap(self.path, TERM, "r")[places] if len(places) else np.empty(0, TERM)
        starts = starts_of(counts)
        return SparseRows(starts, terms["index"].astype(np.int64), terms["value"].copy(), np.zeros(len(rows), bool))

    def _write(self) -> None:
        with atomic.explaining(self.path), self.path.open("ab") as out:
            out.write(self._pending)
        self._pending.clear()
