"""What was counted of a collection while it was read: its records, and why some were refused."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from interlock.engine.record.facts import REFUSALS_TOLD, Refusal
from interlock.engine.record.words import several


@dataclass
class Counts:
    """How many records a collection has: `records` in all, `same` of them copies of an earlier one, which are left out,
    `refused` those that are none, and `renamed` those whose chunk id another had; `first` says which that was and how
    it is known. `titled` have a field for the title, where one is named; of those that are `bare`, as the `first_bare`,
    it is the whole text. The first field with a whole number beyond 64 bits is `large`, with the record that it is of.
    The first where a directory's name says otherwise is `unlike`, `unused` a name that may be meant as an id and its
    record, `beside` the first file with fields that no record has. The chunks of other shards have so many `words`,
    where these are counted."""

    records: int = 0
    same: int = 0
    refused: int = 0
    words: int = 0
    renamed: int = 0
    first: str = ""
    titled: int = 0
    bare: int = 0
    first_bare: str = ""
    large: str = ""
    unlike: str = ""
    unused: tuple[str, str] = ("", "")
    beside: str = ""

    @property
    def chunks(self) -> int:
        """Records that are neither copies nor refused, where these are counted here."""
        return self.records - self.same - self.refused

    @property
    def summed(self) -> dict[str, int]:
        """What a shard tells of others."""
        return {"chunks": self.chunks, "same": self.same, "refused": self.refused, "words": self.words}

    def told(self, collection: str) -> Iterator[str]:
        """Tell of chunks whose ids others had, of those whose text is their title, and of numbers that not everybody
        keeps."""
        if self.renamed:
            again = f"{collection}: {several(self.renamed, 'chunk')} had an id that another has"
            yield f"{again}, and got a further one ({self.first}): give each an id of its own"
        if self.bare:
            empty = f"{collection}: {several(self.bare, 'empty text')}, embedded by title alone"
            yield f"{empty} (first: {self.first_bare}): fill in what is missing, or leave these records out"
        if self.large:
            number = f"{collection}: a whole number beyond 64 bits ({self.large} first)"
            yield f"{number} is a text in a store and on a server: write it as a text to have it so in files too"
        if self.unlike:
            yield f"{collection}: a directory says {self.unlike}, which is kept: rename it, or drop the field"
        if self.beside:
            lost = f"{collection}: fields beside the records of {self.beside}"
            yield f"{lost} are left out: put them into each record to keep them"
        name, place = self.unused
        if name:
            yield f"{collection}: {name!r} of {place} is no id in a chunk file: add --id-field {name} to have it so"


REASONS = 20
"""Kinds of reason that are counted apart."""
_PLACES = re.compile(
    r" \(byte \d+\)| in position [\d-]+"
    r'|(?:(?<=")|(?<= with an id)|(?<= with a title)) \(found .*\)(?=: (?:say|add) )'
    r"|(?<=--text-field) \S+(?=$|; the first line)|(?<=such as --id-field) \S+(?=, or drop)"
    r"|(?<=^file ends within record) \d+",
    re.DOTALL,
)


@dataclass
class Refusals:
    """Counts every refusal and keeps the first REFUSALS_TOLD, and as many of files; as many as `len` says, of them
    `broken` files."""

    told: list[Refusal] = field(default_factory=list)
    files: list[Refusal] = field(default_factory=list)
    broken: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, refusal: Refusal) -> None:
        if len(self.told) < REFUSALS_TOLD:
            self.told.append(refusal)
        if refusal.record is None:
            self.broken += 1
            self.files += [refusal] * (len(self.files) < REFUSALS_TOLD)
        kind = kind_of(refusal.reason)
        self.reasons[kind if kind in self.reasons or len(self.reasons) < REASONS else "other reasons"] += 1

    def __len__(self) -> int:
        return self.reasons.total()


@lru_cache(1024)
def kind_of(reason: str) -> str:
    """Strip a reason of the names and places that make each its own."""
    return _PLACES.sub("", reason)
