"""Which share of a run's texts a shard is, a rule of the texts alone; and which shards a collection holds."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from interlock.engine.record.inputs import union_of
from interlock.engine.record.words import few


@dataclass(frozen=True)
class Shard:
    """One of `of` shares of the texts of a run, counted from 1: by their digests, so that equal ones fall together."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def has(self, digest: bytes) -> bool:
        """Tell whether a text with this digest, or what else is known by one, falls to it."""
        return int.from_bytes(digest[:8], "little") % self.of == self.number - 1


class Shards(Struct, frozen=True):
    """Which of so many shards a collection holds: `there` says by number how many of all its `chunks` each brought, and
    `union` what makes them shards of one run; `own` is the number of the one that tells it."""

    of: int
    union: str
    chunks: int
    there: dict[str, int] = {}
    own: int = 0

    @property
    def shard(self) -> Shard:
        """The one that tells it."""
        return Shard(self.own, self.of)

    def gap(self, collection: str) -> str:
        """Say which a collection lacks; empty where all its chunks are there, for a shard may have none of them."""
        missing = [f"{each}/{self.of}" for each in range(1, self.of + 1) if str(each) not in self.there]
        if sum(self.there.values()) >= self.chunks:
            return ""
        lacks = few(missing).replace("; ", ", ")
        return f"{collection} has {len(self.there):,} of {self.of:,} shards: deliver {lacks} too"


def part_of(shard: Shard | None, name: str) -> str:
    """Return the name of a file as that of this part of it, if there is one: points-00003-of-00008.parquet."""
    stem, dot, ending = name.rpartition(".")
    return f"{stem}-{shard.number:05}-of-{shard.of:05}{dot}{ending}" if shard else name


def whole_name(path: str) -> str:
    """Return the name of a file, of a part that of the whole."""
    return re.sub(r"-\d{5}-of-\d{5}(?=\.)", "", path.rpartition("/")[2])


def shard_in(text: str) -> Shard | None:
    """Read `K/N`; None of an empty text. Raises ValueError for what is no shard."""
    found = re.fullmatch(r"0*([1-9]\d{0,4})/0*([1-9]\d{0,4})", re.sub(r"\s", "", text), re.ASCII)
    if text.strip() and not (found and int(found[1]) <= int(found[2])):
        raise ValueError("expected K/N, such as 3/8: the third of eight shards")
    return Shard(int(found[1]), int(found[2])) if found else None


def shard_text(value: object) -> str:
    """Read a shard, as it is written: `3/8`, or nothing. Raises ValueError as `shard_in` does."""
    return str(shard_in(str(value)) or "")


def shards_of(inputs: Mapping[str, Any], chunks: int) -> Shards | None:
    """Return which shard a run with these inputs is, of a collection with so many chunks in all; None: it is whole."""
    shard = shard_in(inputs.get("shard", ""))
    return Shards(shard.of, union_of(inputs), chunks, own=shard.number) if shard else None
