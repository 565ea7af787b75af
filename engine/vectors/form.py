"""In which form dense vectors are kept: those of the models, the fused one, or both, and in how many dimensions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from interlock.engine.errors import UsageError
from interlock.engine.vectors.fusion import Fusion, fused_width
from interlock.engine.vectors.precision import Quantise
from interlock.engine.vectors.projection import check_width

FUSED = "fused"
"""The name of the fused vectors."""
Keep = Literal["fused", "members", "both"]


@dataclass(frozen=True)
class VectorForm:
    """How a collection's dense vectors are kept: `keep` says which, `project` to how many dimensions the fused ones are
    brought, 0 for all, and `quantise` in what numbers a store keeps all of them and a file the fused ones. `binary` is
    of files alone, which have the fused ones in bits to search and in int8 to order what was found.

    Nothing is lost of what other weights need where only the fused ones of `concat` are: they hold every model's own,
    scaled. A row that was parked for one model has none, so that what others made of it is in the files alone.
    """

    keep: Keep = "both"
    project: int = 0
    quantise: Quantise = "none"

    @property
    def told(self) -> str:
        """What asks for it, but for the projection."""
        return f"--keep {self.keep}" + (f" --quantise {self.quantise}" if self.quantise != "none" else "")

    def of(self, fusion: Fusion) -> "VectorForm":
        """Return the form for a fusion: `named` makes no fused vector, so it has its members in any case."""
        return replace(self, keep=ALL.keep) if fusion is Fusion.NAMED else self

    def check(self, fusion: Fusion, *, arrays: bool, store: bool) -> None:
        """Raise UsageError for a form in which a collection of this fusion could not be asked, or cannot be kept where
        it is to be: in a file of its own for each name (`arrays`), in a `store`."""
        if self.quantise == "binary" and store:
            raise UsageError(
                "--quantise binary: a store keeps its vectors beside their bits, and only grows by these: use "
                "--quantise int8 for it, or leave the store out for files with bits"
            )
        if self.quantise == "binary" and (fusion is Fusion.NAMED or not arrays):
            raise UsageError(
                "--quantise binary: it is the fused vectors of .npy files that are kept in bits, and none are written: "
                f"use --fusion {Fusion.CONCAT} and --export npy, or drop it"
            )
        if self.keep == "members" and fusion is Fusion.MEAN:
            raise UsageError(
                f"--keep members has nothing of --fusion {Fusion.MEAN}, whose means would not be kept: use --fusion "
                f"{Fusion.NAMED}, or drop --keep"
            )
        if self.project and (fusion is Fusion.NAMED or self.keep == "members"):
            raise UsageError(
                f"--project {self.project}: it is the fused vectors that are projected, and none are kept: drop it, or "
                f"use --fusion {Fusion.CONCAT} with --keep fused"
            )

    def widths(self, fusion: Fusion, members: Mapping[str, int]) -> dict[str, int]:
        """Return the width of every dense vector that is kept, by name; `members` are the models' own."""
        fused = fused_width(fusion, list(members.values()), list(members))
        if fused is None:
            return {**members}
        kept = {} if self.keep == "fused" else {**members}
        if self.project:
            check_width(self.project, fused)
        return kept if self.keep == "members" else {**kept, FUSED: self.project or fused}

    def files(self, fusion: Fusion, members: Mapping[str, int]) -> dict[str, int]:
        """Return the width of every `.npy` by name: the models' own and the fused one, whatever a store keeps;
        those of a lone model once where they are the fused ones too."""
        once = len(members) == 1 and not self.project and self.quantise == "none"
        return (self if once else replace(self, keep="both")).widths(fusion, members)


ALL = VectorForm()
"""Everything: the form of older stores."""


def stored_bytes(widths: Mapping[str, int], quantise: Quantise) -> int:
    """Return the bytes of a chunk's dense vectors of these `widths` in a store, which adds a number to each that it
    quantises; 0 where none keeps them so."""
    return (
        0 if quantise == "binary" else sum(width + 4 if quantise == "int8" else 4 * width for width in widths.values())
    )
