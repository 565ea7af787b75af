"""Token vectors in files: `<model>-tokens.npy` with all of them, `<model>-tokens-starts.npy` where each row's begin.

Both are arrays that numpy maps. A token is a record as it was stored: `values` int8 [dim] with its `scale`, `values`
float16 [dim], or `bits` uint8 [dim / 8]. Those of row i are `[starts[i]:starts[i + 1]]`; a row without any was parked.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from interlock.engine.compute.parts.files import release
from interlock.engine.compute.parts.tokens import TokenRows
from interlock.engine.record import atomic
from interlock.engine.targets.windows import Check, Sink, Window, first


@dataclass(frozen=True)
class TokenStarts:
    """Where the tokens of each row begin, and those of the last end: int64 [rows + 1]."""

    name: str
    rows: int

    @contextmanager
    def written(self, partial: Path) -> Iterator[Sink]:
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.int64, shape=(self.rows + 1,))
        atomic.take_blocks(partial)

        def take(window: Window) -> None:
            array[self._places(window)] = array[window.start] + self._ends(window)

        yield take
        array.flush()

    @contextmanager
    def read(self, partial: Path) -> Iterator[Check]:
        array = np.lib.format.open_memmap(partial, mode="r")

        def check(window: Window) -> str:
            if array.dtype != np.int64 or array.shape != (self.rows + 1,):
                return f"found {array.dtype} {array.shape}, expected int64 {(self.rows + 1,)}"
            begin = array[window.start] if window.start else 0
            return first(window, array[self._places(window)] != begin + self._ends(window), "place")

        yield check

    def _places(self, window: Window) -> slice:
        return slice(window.start + 1, window.start + 1 + len(window.points))

    def _ends(self, window: Window) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        tokens = window.tokens[self.name]
        return np.cumsum(tokens.file.counts(tokens.texts))


@dataclass(frozen=True)
class TokenVectors:
    """The tokens of all rows [tokens], one after the other, each a `record`."""

    name: str
    record: np.dtype[np.void]
    tokens: int

    @contextmanager
    def written(self, partial: Path) -> Iterator[Sink]:
        with partial.open("wb") as out:
            kind = np.lib.format.dtype_to_descr(self.record)
            np.lib.format.write_array_header_1_0(out, {"descr": kind, "fortran_order": False, "shape": (self.tokens,)})

            def take(window: Window) -> None:
                for rows in window.tokens[self.name].slices():
                    out.write(np.ascontiguousarray(rows.records).data)

            yield take

    @contextmanager
    def read(self, partial: Path) -> Iterator[Check]:
        """Windows have to come in order, as tokens stand in the file."""
        array = np.lib.format.open_memmap(partial, mode="r")
        place = 0

        def check(window: Window) -> str:
            nonlocal place
            if (array.dtype, array.shape) != (self.record, (self.tokens,)):
                return f"found {array.dtype} {array.shape}, expected {self.record} {(self.tokens,)}"
            wrong = []
            for rows in window.tokens[self.name].slices():
                written = array[place : place + len(rows.records)]
                wrong.append(TokenRows(rows.starts, written, rows.parked).unlike(rows))
                place += len(rows.records)
            release(array)
            return first(window, np.concatenate(wrong), "tokens")

        yield check
