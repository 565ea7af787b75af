"""All that a model gives of rows, and the files of a pass: a part of each kind, written and committed together.

A row is parked in all parts or in none. A new kind of output is a file beside this one, and a row of `KINDS`.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from interlock.engine.compute.parts.dense import DenseRows, ScoreRows, VectorFile, Vectors
from interlock.engine.compute.parts.files import Mask, Rows, rows_in
from interlock.engine.compute.parts.part import Part, PartFile
from interlock.engine.compute.parts.terms import NO_TERMS, SparseFile, SparseRows
from interlock.engine.compute.parts.tokens import NO_TOKENS, TokenFile, TokenRows
from interlock.engine.corpus.places import release
from interlock.engine.models.card import ModelCard
from interlock.engine.models.registry import Output
from interlock.engine.record.facts import RosterEntry, TokenForm

NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True)
class PartKind:
    """A kind of output: its file, rows of it for nothing, and what its file is opened with, by the card of a model and
    by what a run's roster says of one."""

    file: type[VectorFile | SparseFile | TokenFile]
    none: Callable[[ModelCard], Part]
    of_card: Callable[[ModelCard], tuple[Any, ...]]
    of_member: Callable[[RosterEntry], tuple[Any, ...]]


KINDS: dict[Output, PartKind] = {
    "dense": PartKind(
        VectorFile,
        lambda card: DenseRows(np.empty((0, card.dim), np.float32)),
        lambda card: (card.dim,),
        lambda member: (member.dim,),
    ),
    "sparse": PartKind(
        SparseFile, lambda _: NO_TERMS, lambda card: (card.words,), lambda member: (member.words or member.dim,)
    ),
    "tokens": PartKind(
        TokenFile,
        lambda _: NO_TOKENS,
        lambda card: _form(card.by_token.vectors),
        lambda member: _form(member.tokens),
    ),
}
"""In the order in which the parts of a batch are written, and their CRC-32 journalled."""
Pieces = Sequence[tuple[Rows, "Outputs"]]


class Outputs:
    """One row in each part that there is."""

    def __init__(
        self, dense: Vectors | None = None, terms: SparseRows | None = None, tokens: TokenRows | None = None
    ) -> None:
        """`dense` float32 [n, dim], NaN where parked."""
        parts = {"dense": None if dense is None else DenseRows(dense), "sparse": terms, "tokens": tokens}
        self.parts: dict[str, Any] = {name: part for name, part in parts.items() if part is not None}

    @classmethod
    def of(cls, parts: Mapping[str, Part]) -> "Outputs":
        """Put parts together by their kind, in the order of `KINDS`."""
        made = cls()
        made.parts = dict(parts)
        return made

    @classmethod
    def none(cls, card: ModelCard) -> "Outputs":
        """Return what no rows of a model give, with the parts that its pass has."""
        if card.kind == "scores":
            return cls.of({"scores": ScoreRows(np.empty((0, 1), np.float32))})
        return cls.of({name: kind.none(card) for name, kind in KINDS.items() if name in card.outputs})

    @property
    def dense(self) -> Vectors | None:
        """Vectors of rows, float32 [n, dim], NaN where parked."""
        return self.parts["dense"].vectors if "dense" in self.parts else None

    @property
    def terms(self) -> SparseRows | None:
        """Weights of terms."""
        return self.parts.get("sparse")

    @property
    def tokens(self) -> TokenRows | None:
        """Vectors of tokens."""
        return self.parts.get("tokens")

    def __len__(self) -> int:
        return len(next(iter(self.parts.values())))

    def taken(self, rows: Rows) -> "Outputs":
        """Return some of the rows, in the order in which they are named."""
        return Outputs.of({name: part.taken(rows) for name, part in self.parts.items()})

    def joined(self, rows: int, pieces: Pieces) -> "Outputs":
        """Make `rows` rows with these parts of `pieces`, each with its places; a row of no piece is parked."""
        if len(pieces) == 1 and np.array_equal(pieces[0][0], np.arange(rows)):
            return pieces[0][1]
        return Outputs.of(
            {
                name: part.join(rows, [(places, piece.parts[name]) for places, piece in pieces])
                for name, part in self.parts.items()
            }
        )

    def crc(self) -> int:
        """Return the CRC-32 of the rows as their pass writes them, of all parts."""
        return crc_together([part.crc() for part in self.parts.values()])

    @property
    def bytes(self) -> int:
        """What the rows take in memory."""
        return sum(part.nbytes for part in self.parts.values())

    def matrices(self, words: int) -> list[Vectors]:
        """Write out the parts that have one vector a row, for a few rows: weights of terms as so many `words`."""
        terms = [] if self.terms is None else [self.terms.to_dense(words)]
        return [*([] if self.dense is None else [self.dense]), *terms]

    def refused(self, width: int) -> dict[int, str]:
        """Find the rows that must not be written, with the reason; `width` is that of the dense part.

        Raises InterlockError for a dense part of another width.
        """
        bad: dict[int, str] = {}
        for part in self.parts.values():
            bad |= part.gate(width)
        return bad

    @property
    def sound(self) -> Mask:
        """Tell which rows [n] were not parked: in a dense part those with unit vectors."""
        mask: Mask = next(iter(self.parts.values())).sound
        return mask


@dataclass(frozen=True)
class PassFiles:
    """The files of one pass by kind, in the order of `KINDS`; `rows` below are those of the corpus's distinct texts."""

    parts: Mapping[str, PartFile] = field(default_factory=dict)

    @classmethod
    def open(cls, directory: Path, card: ModelCard, texts: int, *, growing: bool = False) -> "PassFiles":
        """Open the files of a pass in its `directory`, or make them; those that are `growing` may have other rows.
        Raises InterlockError as the files do."""
        found: dict[str, PartFile] = {}
        for name, kind in ((name, kind) for name, kind in KINDS.items() if name in card.outputs):
            path = directory / kind.file.PLACE
            rows = rows_in(path) if growing else 0
            found[name] = kind.file.open(path, rows or texts, *kind.of_card(card))
            if growing:
                found[name].grow(texts)
        return cls(found)

    @classmethod
    def read(
        cls,
        directory: Path,
        member: RosterEntry,
        texts: int,
        guard: Callable[[Path], AbstractContextManager[None]],
    ) -> "PassFiles | None":
        """Open the files of an earlier run's pass, to be read only, each within its `guard`; None where one is not
        there."""
        paths = {name: directory / kind.file.PLACE for name, kind in KINDS.items() if name in member.gives}
        if not all(path.exists() for path in paths.values()):
            return None
        found: dict[str, PartFile] = {}
        for name, path in paths.items():
            with guard(path):
                found[name] = KINDS[name].file.read(path, texts, *KINDS[name].of_member(member))
        return cls(found)

    @property
    def dense(self) -> VectorFile | None:
        """The file of dense vectors, where the pass has one."""
        found = self.parts.get("dense")
        return found if isinstance(found, VectorFile) else None

    @property
    def terms(self) -> SparseFile | None:
        """The file of weights of terms, where the pass has one."""
        found = self.parts.get("sparse")
        return found if isinstance(found, SparseFile) else None

    @property
    def tokens(self) -> TokenFile | None:
        """The file of vectors of tokens, where the pass has one."""
        found = self.parts.get("tokens")
        return found if isinstance(found, TokenFile) else None

    @property
    def path(self) -> Path:
        """The file that the pass is known by."""
        return next(iter(self.parts.values())).path

    @property
    def texts(self) -> int:
        return next(iter(self.parts.values())).texts

    @property
    def token_bytes(self) -> int:
        """What its token vectors take so far."""
        return self.tokens.records.stat().st_size if self.tokens else 0

    def put(self, rows: Rows, outputs: Outputs) -> int:
        """Write what `rows` gave; returns the CRC-32 of what was written, of all parts.

        Raises DiskError where the disk takes no more, and ValueError for rows that lack a part: they would be damaged.
        """
        if not outputs.parts.keys() >= self.parts.keys():
            raise ValueError("rows without an output of their pass")
        return crc_together([file.put(rows, outputs.parts[name]) for name, file in self.parts.items()])

    def crc(self, rows: Rows) -> int:
        """Return the CRC-32 of what stands in `rows` now, which is another one where any of it is torn."""
        return crc_together([file.crc(rows) for file in self.parts.values()])

    def take(self, rows: Rows) -> Outputs:
        """Read `rows`. Raises InterlockError where what is there is no row."""
        return Outputs.of({name: file.take(rows) for name, file in self.parts.items()})

    def grow(self, texts: int) -> None:
        """Have rows for so many texts at least, while others are put to."""
        for file in self.parts.values():
            file.grow(texts)

    def sync(self) -> None:
        """Make every row written so far survive a power cut."""
        for file in self.parts.values():
            file.sync()

    def damaged(self, batches: Sequence[Rows], committed: Mapping[int, int]) -> list[int]:
        """List the committed batches (index -> CRC-32) whose rows are not what was committed."""
        found = list[int]()
        for index, crc in committed.items():
            found += [index] * (self.crc(batches[index]) != crc)
            release(batches[index])
        return found


@dataclass(frozen=True)
class Gathered(PassFiles):
    """What the rows of a job gave, in memory: for whoever asked, and for nobody later."""

    pieces: list[tuple[Rows, Outputs]] = field(default_factory=list)

    def put(self, rows: Rows, outputs: Outputs) -> int:
        """Keep a copy of what `rows` gave: nothing on a device stays behind it."""
        self.pieces.append((rows, outputs.taken(np.arange(len(outputs)))))
        return 0

    def rows(self, card: ModelCard, rows: int) -> Outputs:
        """Return what all `rows` gave; one of which nothing came is parked."""
        return Outputs.none(card).joined(rows, self.pieces)


def _form(form: TokenForm | None) -> tuple[Any, ...]:
    return (form.dim, form.precision) if form else ()


def crc_together(crcs: Sequence[int]) -> int:
    """Make one CRC-32 of several; that of a pass with one output is its only one."""
    return crcs[0] if len(crcs) == 1 else zlib.crc32(np.array(crcs, "<u4").tobytes())
