"""What a pass has given so far, on disk: a file for each kind of output, written and committed together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from interlock.engine.compute.batches import Rows
from interlock.engine.compute.outputs import Outputs
from interlock.engine.compute.sparse import SparseFile
from interlock.engine.compute.token_rows import TokenFile
from interlock.engine.compute.vectors import VectorFile, crc_together
from interlock.engine.models.card import ModelCard
from interlock.engine.models.registry import Output

PLACES: dict[Output, str] = {"dense": "vectors.npy", "sparse": "rows.npy", "tokens": "token_rows.npy"}
"""The file in the directory of a pass that each output is found by."""


@dataclass(frozen=True)
class PassFiles:
    """The files of one pass, at least one; `rows` below are those of the corpus's distinct texts."""

    dense: VectorFile | None = None
    terms: SparseFile | None = None
    tokens: TokenFile | None = None

    @property
    def path(self) -> Path:
        """The file that the pass is known by."""
        return next(self._all()).path

    @property
    def texts(self) -> int:
        return next(self._all()).texts

    @property
    def token_bytes(self) -> int:
        """What its token vectors take so far."""
        return self.tokens.records.stat().st_size if self.tokens else 0

    def put(self, rows: Rows, outputs: Outputs) -> int:
        """Write what `rows` gave; returns the CRC-32 of what was written, of all parts.

        Raises DiskError where the disk takes no more, and ValueError for rows that lack a part: they would be damaged.
        """
        parts = ((self.dense, outputs.dense), (self.terms, outputs.terms), (self.tokens, outputs.tokens))
        if any(file is not None and part is None for file, part in parts):
            raise ValueError("rows without an output of their pass")
        crcs = []
        if self.dense and outputs.dense is not None:
            crcs.append(self.dense.put(rows, outputs.dense))
        if self.terms and outputs.terms is not None:
            crcs.append(self.terms.put(rows, outputs.terms))
        if self.tokens and outputs.tokens is not None:
            crcs.append(self.tokens.put(rows, outputs.tokens))
        return crc_together(crcs)

    def crc(self, rows: Rows) -> int:
        """Return the CRC-32 of what stands in `rows` now, which is another one where any of it is torn."""
        return crc_together([file.crc(rows) for file in self._all()])

    def take(self, rows: Rows) -> Outputs:
        """Read `rows`. Raises InterlockError where what is there is no row."""
        return Outputs(
            self.dense.take(rows) if self.dense else None,
            self.terms.take(rows) if self.terms else None,
            self.tokens.take(rows) if self.tokens else None,
        )

    def sync(self) -> None:
        """Make every row written so far survive a power cut."""
        for file in self._all():
            file.sync()

    def _all(self) -> Iterator[VectorFile | SparseFile | TokenFile]:
        return (file for file in (self.dense, self.terms, self.tokens) if file is not None)


def open_pass(directory: Path, card: ModelCard, texts: int) -> PassFiles:
    """Open the files of a pass in its `directory`, or make them. Raises InterlockError as the files do."""
    form = card.by_token.vectors
    dense, terms, tokens = (directory / PLACES[output] for output in ("dense", "sparse", "tokens"))
    return PassFiles(
        VectorFile.open(dense, texts, card.dim) if "dense" in card.outputs else None,
        SparseFile.open(terms, texts, card.words) if "sparse" in card.outputs else None,
        TokenFile.open(tokens, texts, form.dim, form.precision) if form else None,
    )


def damaged_batches(files: PassFiles, batches: Sequence[Rows], committed: dict[int, int]) -> list[int]:
    """List the committed batches (index -> CRC-32) whose rows in `files` are not what was committed."""
    return [index for index, crc in committed.items() if files.crc(batches[index]) != crc]
