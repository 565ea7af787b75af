"""What a record is known by: a source and a chunk id, from which the id of its point follows. This is where it is made.

Its own `chunk_id` comes first, else a hash of its text. Where another record had that id, what a record says of itself
beside it (a source, file, page, number: whatever it is called) tells it apart, then all that it holds, an ordinal at
last, or at once where the first was its copy: no text is lost for an id, and a record that is added later leaves the
others theirs.
"""

import hashlib
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import msgspec
import numpy as np
import numpy.typing as npt

from interlock.engine.corpus.naming import spelt
from interlock.engine.corpus.places import DIGEST, Numbered, windows
from interlock.engine.record.words import safe

POINT_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:interlock:point")
DIGITS = 12
_SAYS = re.compile(
    "(?:source|file|path|ur[il]|href|link|page|doc(?:ument)?|chunk|node|element|index|idx|split|row|line|start|offset"
    "|part|section|sheet|slide|key|name)*(?:ids?|uu?id|guid|num(?:ber)?|no|nr)?",
    re.IGNORECASE,
)
"""Words in the names of fields that tell which record it is."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_DIGITS, _TO_DIGITS = b"0" * len(str(2**63)), bytes.maketrans(b"123456789", b"0" * 9)
"""As few digits as a whole number beyond 64 bits has."""


class ChunkIdentity(NamedTuple):
    """How a chunk is known; `given` where another had the id that it gives itself."""

    source: str
    chunk_id: str
    point_id: str
    given: str = ""


def point_of(collection: str, source: str, chunk_id: str) -> uuid.UUID:
    """Return the id of the point that a chunk of a collection, by its Qdrant name, is."""
    parted = source if "\0" not in source else f"\0{len(source)}\0{source}"  # no source is empty
    return uuid.uuid5(POINT_NAMESPACE, f"{collection}\0{parted}\0{chunk_id}")


Digests = npt.NDArray[np.void]


def digest_of(text: str) -> bytes:
    """Digest a text, as it is known here: the first 16 bytes of its SHA-256."""
    return hashlib.sha256(text.encode()).digest()[: DIGEST.itemsize]


def digest_of_texts(digests: Digests) -> str:
    """Digest all the texts of a corpus in their order: a SHA-256 in hex."""
    digest = hashlib.sha256()
    for part in windows(0, len(digests), digests):
        digest.update(digests[part].tobytes())
    return digest.hexdigest()


SOURCES = ("source_path", "source_file", "filename")
"""Fields of the metadata that name a source, the first that does."""
Fields = Mapping[str, object]
Partition = tuple[str, str | None]
NULL = "__HIVE_DEFAULT_PARTITION__"
"""What stands in a directory's name for no value."""
SIGNS = 80
"""Signs of a field and its values that are told."""
UNUSED = ("id", "_id", "doc_id", "chunk_id")
"""What may be meant as the id of a record in a chunk file."""


class IdentityMaker:
    """The identities of one collection's records, by its Qdrant name; each is given once. Equal texts without an id are
    told apart `by_ordinal` alone, as earlier versions did, or as records of one id are."""

    def __init__(self, collection: str, *, by_ordinal: bool = False) -> None:
        self._collection, self._by_ordinal = collection, by_ordinal
        self._taken = Numbered(np.dtype([("point", DIGEST), ("whole", "V8")]))
        self._numbers: dict[tuple[str, str], int] = {}

    def of(self, file: str, text: str, *fields: Fields, own: str = "", beside: object = ()) -> ChunkIdentity | None:
        """Identify the next record of `file` by its text, its metadata and its other fields, of which one may be its
        `own` id; None for one that was there before with all of these and what is true `beside`."""
        metadata = fields[0]
        source = next(filter(None, map(named, map(metadata.get, SOURCES))), file) if metadata else file
        given = own or named(metadata.get("chunk_id"))
        name = given or hashlib.sha256(text.encode()).hexdigest()[:32]
        held = msgspec.json.encode((text, fields), order="sorted")  # whatever the order of its fields
        aside = msgspec.json.encode(beside) if given and beside else b""  # else the id would be another for it
        whole = (hash(held + aside) or 1).to_bytes(8, "little", signed=True)
        names = self._further(source, name, held, aside, fields)
        while True:
            point = point_of(self._collection, source, chunk_id := next(names))
            known = len(self._taken)
            if (holder := self._taken.number(point.bytes + whole)) == known:
                return ChunkIdentity(source, chunk_id, str(point), given if given != chunk_id else "")
            same = self._taken[holder][16:] == whole
            if given and same:
                return None
            if chunk_id == name and not given and (same or self._by_ordinal):
                names = self._numbered(source, name)

    @property
    def points(self) -> npt.NDArray[np.void]:
        """The ids of all points in order; none is given any more then."""
        return self._taken.records["point"]

    def _further(self, source: str, name: str, held: bytes, aside: bytes, fields: Sequence[Fields]) -> Iterator[str]:
        """The ids of a record of this name, each for where the one before is another's."""
        yield name
        if said := sorted(each for one in fields for each in _said(one)):
            yield f"{name}-{_digest(msgspec.json.encode(said))}"
        yield (whole := f"{name}-{_digest(held)}")
        if aside:
            yield f"{name}-{_digest(held + aside)}"
        yield from self._numbered(source, whole)

    def _numbered(self, source: str, name: str) -> Iterator[str]:
        """A name with an ordinal; the millionth does not try all before it."""
        for ordinal in count(self._numbers.get((source, name), 1) + 1):
            self._numbers[source, name] = ordinal
            yield f"{name}-{ordinal}"


def partitions_above(path: Path, within: Path) -> list[Partition]:
    """Return the fields and values that the names of directories between a file and `within` say (`lang=de`), as Hive
    has them: percent signs for others, no value under its name for that."""
    folders = path.parent.relative_to(within).parts if within in path.parents else ()
    parted = (map(_unquoted, each.split("=", 1)) for each in folders if "=" in each[1:])
    return [(name, None if value == NULL else value) for name, value in parted]


def _unquoted(text: str) -> str:
    with suppress(UnicodeDecodeError):
        return unquote(text, errors="strict")
    return text


def joined(others: bytes, fields: Fields, partitions: Sequence[Partition]) -> tuple[bytes, str]:
    """Add what directories say to the object `others`, a record's own `fields` beside text and metadata; and say which
    of it is not what the record has, which is kept."""
    added, unlike = dict[str, object](), ""
    for written, value in partitions:
        name = spelt(written, (*fields, *added))
        held = fields.get(name, added.get(name))
        if name not in fields and name not in added:
            added[name] = value
        elif str(held).lower() != str(value).lower():  # 1 is "1", true "true"
            unlike = unlike or safe(f"{name}={value} above {held}", SIGNS)
    more = msgspec.json.encode(added)
    return others[:-1] + b"," * bool(others and added) + more[bool(others) :], unlike


def named(value: object) -> str:
    """Return a name as a record gives it: a text, or a number in its decimals; nothing for anything else."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def large_in(data: bytes, value: object) -> str:
    """Name the field that has the first whole number beyond 64 bits in a value and its JSON; empty where none has."""
    return next(_large(value), "") if _DIGITS in data.translate(_TO_DIGITS) else ""


def _large(value: object, place: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _large(each, f"{place}.{name}" if place else name)
    elif isinstance(value, list):
        for each in value:
            yield from _large(each, place)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        yield place


def _said(fields: Fields, place: str = "") -> Iterator[str]:
    """What the fields of a record say of which it is, with their places."""
    for name, each in fields.items():
        where = f"{place}.{name}"
        if isinstance(each, Mapping):
            yield from _said(each, where)
        elif where != ".chunk_id" and any(map(_SAYS.fullmatch, _WORD.findall(name))) and named(each):
            yield f"{where}={named(each)}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]
