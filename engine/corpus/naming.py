"""Under which names a record has its text, its id and its title.

Each is a field of the record, an id or a title else one of its metadata. The title stands before the text with a space
between them, as BEIR and MTEB have it; what it was stays in the record. And what records are refused for, counted
without the names in it; and which shard of a run a text falls to, where one is cut: a rule of the text alone.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from unicodedata import normalize

import msgspec
from msgspec import Raw, Struct

from interlock.engine.record.facts import REFUSALS_TOLD, Refusal
from interlock.engine.record.words import few, quoted, safe

TEXTS = ("page_content", "content")
"""What other producers call a text, whose metadata may be their `meta`."""
IDS = ("id", "_id", "chunk_id")
"""What an id is called where nothing else is said."""
INNER_IDS = ("chunk_id", "id", "_id")
"""The same in the metadata, where an `id` may be that of a page, say."""
SHOWN, SIGNS = 5, 40
"""Fields of a record without a text that are named, and the most signs of a name or a value."""


@dataclass(frozen=True)
class Naming:
    """The names of the fields that hold a record's text, id and title; empty for the usual ones, and for no title."""

    text: str = ""
    id: str = ""
    title: str = ""
    usual_ids: bool = False
    """Whether the usual names of an id count where none is given, as they do in all but chunk files."""

    @property
    def texts(self) -> tuple[str, ...]:
        """Under which names a text may be."""
        return (self.text,) if self.text else ("text", *TEXTS)

    def id_in(self, fields: Mapping[str, Raw], metadata: Mapping[str, Raw]) -> Raw | None:
        """Return what a record gives as its id, by the name that is asked for or a usual one; None where nothing is."""
        if self.id:
            return looked_up(fields, metadata, self.id)
        places = ((fields, IDS), (metadata, INNER_IDS)) if self.usual_ids else ()
        found = (looked_up(place, {}, name) for place, names in places for name in names)
        return next(filter(None, found), None)

    def instead(self, fields: Mapping[str, Raw]) -> str:
        """Say which field may hold the text where the one that is read has none; empty where none does."""
        flag = _likely(fields, self.text or "text")
        return f": say which field holds the text, such as {flag}" if flag else ""

    @property
    def given(self) -> dict[str, str]:
        """Those that are given, by the setting that gives them."""
        said = {"text_field": self.text, "id_field": self.id, "title_field": self.title}
        return {name: value for name, value in said.items() if value}


USUAL = Naming()
BEIR = Naming("text", "_id", "title")


@dataclass(frozen=True, slots=True)
class Said:
    """What the fields of these names say of a record: its id and its title, and whether there is a field for one."""

    id: str = ""
    title: str = ""
    titled: bool = False


def unnamed(fields: Mapping[str, Raw], wanted: str) -> str:
    """Say that a record has no field `wanted`: what it has instead, with a sample of each, and which may be meant."""
    if not (there := found_in(fields)):
        return f'no field "{wanted}"'
    flag = _likely(fields, wanted) or "--text-field NAME"
    return f'no field "{wanted}"{there}: say which holds the text, such as {flag}'


def _likely(fields: Mapping[str, Raw], wanted: str) -> str:
    texts = [name for name in _texts(fields) if name != wanted]
    name = _same(wanted, texts) or max(texts, key=lambda name: len(bytes(fields[name])), default="")
    return _flag("--text-field", name) if name else ""


def other(flag: str, fields: Mapping[str, Raw], wanted: str) -> str:
    """Write `flag`, of an id or a title, with the field that may hold it where none is called as wanted: one of that
    name in other letters, a close one, or the first."""
    names = [name for name in fields if name != "metadata" and len(name) <= SIGNS]
    first = next(iter(names if flag == "--id-field" else _texts(fields)), "NAME")
    return _flag(flag, _same(wanted, names) or next(iter(get_close_matches(wanted, names, 1)), first))


def _texts(fields: Mapping[str, Raw]) -> list[str]:
    """The fields that hold more than a word."""
    return [
        name
        for name, value in fields.items()
        if len(name) <= SIGNS and (raw := bytes(value))[:1] == b'"' and b" " in raw
    ]


def _same(wanted: str, names: Sequence[str]) -> str:
    """The one of this name in other letters."""
    return next((name for name in names if name.casefold() == wanted.casefold()), "")


def _flag(flag: str, name: str) -> str:
    return f"{flag}={quoted(name)}" if name[:1] == "-" else f"{flag} {quoted(name)}"


def found_in(fields: Mapping[str, Raw]) -> str:
    """Say which fields there are beside the metadata, the first with a sample; empty where there are none."""
    told = [f"{name[:SIGNS]}: {_sample(bytes(value))}" for name, value in fields.items() if name != "metadata"]
    return f" (found {', '.join(told[:SHOWN])}{', ...' * (len(told) > SHOWN)})" if told else ""


def _sample(value: bytes) -> str:
    try:
        said = msgspec.json.decode(value)
    except ValueError:
        said = value.decode(errors="replace")
    return safe(said if isinstance(said, str) else value.decode(errors="replace"), SIGNS)


def spelt(name: str, there: Iterable[str]) -> str:
    """Return the one that is called so where none is in these signs alone, but in those that Unicode holds for the
    same, as names of files may be on a Mac; else the name as it is."""
    if name.isascii() or name in there:
        return name
    return next((each for each in there if normalize("NFC", each) == normalize("NFC", name)), name)


def looked_up(fields: Mapping[str, Raw], metadata: Mapping[str, Raw], name: str) -> Raw | None:
    """Return the field of a record, else of its metadata, that is called so; None where both are null or not there."""
    found = (each[its] for each in (fields, metadata) if (its := spelt(name, each)) in each)
    return next((value for value in found if bytes(value) != b"null"), None)


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
