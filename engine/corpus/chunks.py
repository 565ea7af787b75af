"""Chunk files as a stream of chunks and refusals, each chunk with its payload and an identity that stays the same."""

import hashlib
import json
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from interlock.engine.corpus.collections import Collection
from interlock.engine.corpus.features import Features, no_features
from interlock.engine.corpus.records import TOO_DEEP, depth_of, records
from interlock.engine.record.facts import REFUSALS_TOLD, Refusal

MAX_DEPTH = 110  # the store takes deeper metadata, but never gives it back
RECORD = "record"
"""The name in a payload under which a record's other fields are kept."""
POINT_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:interlock:point")

NAMES_SHOWN, LONGEST_SHOWN = 5, 40
"""Fields of a record without a text that are named, and the most signs of each."""
_KINDS = {str: "a string", list: "a list", int: "a number", float: "a number", bool: "a boolean", type(None): "null"}
_AT_A_STRING = re.compile("truncated|escape|surrogate")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One text with its payload (its metadata, a JSON object as it stood in the file) and its identity.

    `record` is a JSON object of the record's other fields; empty where it has none. `features` are the terms that it
    brings, if they are asked for.
    """

    text: str
    payload: bytes
    chunk_id: str
    source: str
    point_id: str
    record: bytes = b""
    features: bytes = b""

    @property
    def whole_payload(self) -> bytes:
        """The payload with the other fields in it under `record`, or `record_` where the metadata has that name."""
        if not self.record:
            return self.payload
        fields, name = msgspec.json.decode(self.payload, type=dict[str, Raw]), RECORD
        while name in fields:
            name += "_"
        return msgspec.json.encode(fields | {name: Raw(self.record)})


def parted(whole: bytes) -> tuple[bytes, bytes]:
    """Part a whole payload into payload and record, as a chunk has them. Metadata that itself ends in an object of that
    name is taken for a record."""
    if b'"' + RECORD.encode() not in whole:
        return whole, b""
    fields = msgspec.json.decode(whole, type=dict[str, Raw])
    last = next(reversed(fields), "")
    taken = [RECORD + "_" * each for each in range(len(last) - len(RECORD))]
    added = last.rstrip("_") == RECORD and all(name in fields for name in taken)
    if not added or not bytes(fields[last]).startswith(b"{"):
        return whole, b""
    record = bytes(fields.pop(last))
    return msgspec.json.encode(fields), record


def point_of(collection: str, source: str, chunk_id: str) -> uuid.UUID:
    """Return the id of the point that a chunk of a collection, by its Qdrant name, is."""
    return uuid.uuid5(POINT_NAMESPACE, f"{collection}\0{source}\0{chunk_id}")


class _Record(Struct):
    text: str
    metadata: Raw | UnsetType = UNSET


_OWN = _Record.__struct_fields__


class _Plain(_Record, forbid_unknown_fields=True):
    """A record without other fields, as most are."""


class _Known(Struct):
    """The metadata that carries identity; everything else is payload only."""

    chunk_id: str | int | None = None
    source_path: str | None = None
    source_file: str | None = None
    filename: str | None = None


class ChunkReader:
    """Reads one collection, always in the same order; `hashes` gets a file's SHA-256 once its end has been read."""

    def __init__(self, collection: Collection, features: Features = no_features) -> None:
        self.collection, self._features = collection, features
        self.hashes: dict[str, str] = {}
        self._taken: set[bytes] = set()
        self._repeats: dict[tuple[str, str], int] = {}
        self._bad: tuple[bytes | None, str] = (None, "")

    def __iter__(self) -> Iterator[Chunk | Refusal]:
        yield from self.collection.refusals
        for name in self.collection.files:
            path, within = self.collection.root / name, self.collection.within
            for number, data in records(path, within, partial(self.hashes.__setitem__, name)):
                yield Refusal(name, number, data) if isinstance(data, str) else self._read(name, number, data)

    def _read(self, file: str, number: int | None, data: bytes) -> Chunk | Refusal:
        """The chunk that a record is, or why it is none; bad records are often millions of the same."""
        if data == self._bad[0]:
            return Refusal(file, number, self._bad[1])
        try:
            return self._chunk(file, data)
        except _Refused as refused:
            self._bad = data, str(refused)
            return Refusal(file, number, str(refused))

    def _chunk(self, file: str, data: bytes) -> Chunk:
        """The chunk with its payload and identity; `others` are its fields beside text and metadata, as an object."""
        record: _Record
        try:
            record, others = msgspec.json.decode(data, type=_Plain), b""
        except (ValueError, RecursionError):
            fields = _fields(data)
            record = _decode(data, _Record)
            rest = {key: value for key, value in fields.items() if key not in _OWN}
            others = msgspec.json.encode(rest) if rest else b""
        if not record.text.strip():
            raise _Refused("the text is empty")
        payload = b"{}" if record.metadata is UNSET else bytes(record.metadata)
        payload = b"{}" if payload == b"null" else payload
        if not payload.startswith(b"{"):
            raise _Refused("metadata is not an object")
        known = _decode(payload, _Known, "$.metadata")
        for kept in filter(None, (payload, others)):  # refuse what not every reader of a delivered payload could take
            if kept.count(b"{") + kept.count(b"[") > MAX_DEPTH and depth_of(kept) > MAX_DEPTH:
                raise _Refused(TOO_DEEP)
            _decode(kept, dict)
        try:
            features = self._features(payload, others)
        except ValueError as error:
            raise _Refused(str(error)) from None
        source = known.source_path or known.source_file or known.filename or file
        chunk_id, point_id = self._identity(source, known.chunk_id, record.text)
        return Chunk(record.text, payload, chunk_id, source, point_id, others, features)

    def _identity(self, source: str, given: str | int | None, text: str) -> tuple[str, str]:
        """The chunk's own id, else a hash of its text, numbered where one source repeats a text."""
        if given not in (None, ""):
            point = self._take(source, str(given))
            if point is None:
                raise _Refused(f"chunk_id {given} of {source} has been used before")
            return str(given), point
        content = chunk_id = hashlib.sha256(text.encode()).hexdigest()[:32]
        repeat = self._repeats.get((source, content), 1)  # or the millionth of one text would try all before it
        while (point := self._take(source, chunk_id)) is None:
            repeat += 1
            self._repeats[source, content] = repeat
            chunk_id = f"{content}-{repeat}"
        return chunk_id, point

    def _take(self, source: str, chunk_id: str) -> str | None:
        point = point_of(self.collection.qdrant_collection, source, chunk_id)
        known = point.bytes[1:]  # of 15 bytes Python makes an object of 48, of 16 one of 64
        if known in self._taken:
            return None
        self._taken.add(known)
        return str(point)


class _Refused(Exception):
    """Why a record is left out."""


def _fields(data: bytes) -> dict[str, Raw]:
    """The fields of a record by name. Raises _Refused where it is no object, or one without a text."""
    if not data.startswith(b"{"):
        kind = _KINDS[type(_decode(data, object))]
        raise _Refused(f'expected an object with a field "text", got {kind}')
    fields = _decode(data, dict[str, Raw])
    if "text" not in fields:
        found = [name[:LONGEST_SHOWN] for name in fields if name != "metadata"]
        if not found:
            raise _Refused('no field "text"')
        names = ", ".join(found[:NAMES_SHOWN]) + ", ..." * (len(found) > NAMES_SHOWN)
        raise _Refused(f'no field "text" (found {names}): rename the one that holds the text')
    return fields


def _decode(data: bytes, kind: type[T], place: str = "$") -> T:
    """Raises _Refused, in words, for whatever JSON and the kind do not allow; `place` is where it stands."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise _Refused(TOO_DEEP) from None
    except ValueError as error:  # msgspec's own errors, and what Python says of bytes and of endless numbers
        if _AT_A_STRING.search(str(error)) and _is_whole(data):
            raise _Refused("a \\u escape is half of a surrogate pair without its other half") from None
        raise _Refused(str(error).split(";")[0].replace("`$", f"`{place}")) from None


def _is_whole(data: bytes) -> bool:
    """Whether its strings end: Python's reader takes half of a surrogate pair, which others say to be cut short."""
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


REASONS = 20
"""Kinds of reason that are counted apart."""
_PLACES = re.compile(
    r" \(byte \d+\)| in position [\d-]+|(?<=^chunk_id ).* of .*(?= has been used before$)"
    r'|(?<=^no field "text") \(found .*\)(?=: rename)',
    re.DOTALL,
)


@dataclass
class Refusals:
    """Counts every refusal and keeps the first REFUSALS_TOLD; as many as `len` says."""

    told: list[Refusal] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, refusal: Refusal) -> None:
        if len(self.told) < REFUSALS_TOLD:
            self.told.append(refusal)
        kind = kind_of(refusal.reason)
        self.reasons[kind if kind in self.reasons or len(self.reasons) < REASONS else "other reasons"] += 1

    def __len__(self) -> int:
        return self.reasons.total()


@lru_cache(1024)
def kind_of(reason: str) -> str:
    """Strip a reason of the names and places that make each its own."""
    return _PLACES.sub("…" if reason.startswith("chunk_id") else "", reason)
