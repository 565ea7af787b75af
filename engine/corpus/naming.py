"""Under which names a record has its text, its id and its title.

Each is a field of the record, an id or a title else one of its metadata. The title stands before the text with a space
between them, as BEIR and MTEB have it; what it was stays in the record.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from unicodedata import normalize

import msgspec
from msgspec import Raw

from interlock.engine.record.words import quoted, safe

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
