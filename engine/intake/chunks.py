"""Chunk files as a stream of chunks and refusals: what is wrong with a record never costs its neighbours.

A file is mapped, not loaded, and its records are decoded one at a time. A file that is broken as a whole is
cut into records by its brackets, so that the good ones are kept and the bad ones named.
"""

import hashlib
import mmap
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from engine.intake.collections import Collection, Refusal
from engine.record import durable

MAX_RECORD_BYTES = 4 << 20
MAX_DEPTH = 110  # the store takes deeper metadata, but never gives it back
LIST_KEYS = ("chunks", "data", "records", "items")
POINT_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:interlock:point")

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{},]', re.DOTALL)
_QUOTED_KEYS = {f'"{key}"'.encode() for key in LIST_KEYS}
_BEGIN = re.compile(rb"\s*([\[{])")
_LIST = re.compile(rb"\s*:\s*\[")
_TOO_DEEP = "it is nested too deeply"
T = TypeVar("T")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One text with its payload (a JSON object, as it stood in the file) and its identity."""

    text: str
    payload: bytes
    chunk_id: str
    source: str
    point_id: str


class _Record(Struct):
    text: str
    metadata: Raw | UnsetType = UNSET


class _Known(Struct):
    """The metadata that carries identity; everything else is payload only."""

    chunk_id: str | int | None = None
    source_path: str | None = None
    source_file: str | None = None
    filename: str | None = None


class ChunkReader:
    """Reads one collection, always in the same order; `hashes` fills with each file's SHA-256 as it is read."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self.hashes: dict[str, str] = {}
        self._taken: set[bytes] = set()

    def __iter__(self) -> Iterator[Chunk | Refusal]:
        yield from self.collection.refusals
        for name in self.collection.files:
            for number, found in self._records(name):
                try:
                    yield Refusal(name, number, found) if isinstance(found, str) else self._chunk(name, found)
                except _Refused as refused:
                    yield Refusal(name, number, str(refused))

    def _records(self, name: str) -> Iterator[tuple[int | None, bytes | str]]:
        """Every record of a file as its number from 1 and its bytes, or why it is refused."""
        try:
            with (self.collection.root / name).open("rb") as handle:
                self.hashes[name] = hashlib.file_digest(handle, "sha256").hexdigest()
                if handle.tell() == 0:
                    yield None, "the file is empty"
                    return
                data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
            start = len(_BOM) if data[: len(_BOM)] == _BOM else 0
            yield from _lines(data, start) if name.endswith(".jsonl") else _members(data, start)
        except OSError as error:
            yield None, f"it cannot be read: {error.strerror}"

    def _chunk(self, file: str, data: bytes) -> Chunk:
        record = _decode(data, _Record)
        if not record.text.strip():
            raise _Refused("the text is empty")
        payload, known = _payload(record)
        source = known.source_path or known.source_file or known.filename or file
        chunk_id, point_id = self._identity(source, known.chunk_id, record.text)
        return Chunk(record.text, payload, chunk_id, source, point_id)

    def _identity(self, source: str, given: str | int | None, text: str) -> tuple[str, str]:
        """The chunk's own id, else a hash of its text, numbered where one source repeats a text."""
        if given not in (None, ""):
            point = self._take(source, str(given))
            if point is None:
                raise _Refused(f"chunk_id {given} of {source} has been used before")
            return str(given), point
        content = hashlib.sha256(text.encode()).hexdigest()[:32]
        chunk_id, repeat = content, 1
        while (point := self._take(source, chunk_id)) is None:
            repeat += 1
            chunk_id = f"{content}-{repeat}"
        return chunk_id, point

    def _take(self, source: str, chunk_id: str) -> str | None:
        name = f"{self.collection.qdrant_collection}\0{source}\0{chunk_id}"
        point = uuid.uuid5(POINT_NAMESPACE, name)
        if point.bytes in self._taken:
            return None
        self._taken.add(point.bytes)
        return str(point)


class _Refused(Exception):
    """Why a record is left out."""


def _decode(data: bytes, kind: type[T]) -> T:
    """Raises _Refused, in words, for whatever JSON and the kind do not allow."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise _Refused(_TOO_DEEP) from None
    except ValueError as error:  # msgspec's own errors, and what Python says of bytes and of endless numbers
        raise _Refused(str(error).split(";")[0]) from None


def _payload(record: _Record) -> tuple[bytes, _Known]:
    """The metadata as it stands in the file, once it is known that every reader can take it."""
    data = b"{}" if record.metadata is UNSET else bytes(record.metadata)
    data = b"{}" if data == b"null" else data
    if not data.startswith(b"{"):
        raise _Refused("the metadata is not an object")
    known = _decode(data, _Known)
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and _depth(data) > MAX_DEPTH:
        raise _Refused(_TOO_DEEP)
    _decode(data, dict)
    return data, known


def _depth(data: bytes) -> int:
    """How deep brackets nest in a JSON text."""
    depth = deepest = 0
    for token in _TOKEN.finditer(data):
        depth += _step(token[0])
        deepest = max(deepest, depth)
    return deepest


def _step(token: bytes) -> int:
    return (token in (b"[", b"{")) - (token in (b"]", b"}"))


def _lines(data: mmap.mmap, start: int) -> Iterator[tuple[int | None, bytes | str]]:
    number = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        number += 1
        if record := _bounded(data, start, end):
            yield number, record
        start = end + 1


def _members(data: mmap.mmap, start: int) -> Iterator[tuple[int | None, bytes | str]]:
    """The members of the file's list: by msgspec where the file is whole, by its brackets where it is not."""
    try:
        members, unread = _list(memoryview(data)[start:])
    except _Refused as refused:
        yield None, str(refused)
    except (ValueError, RecursionError) as error:
        yield from _salvaged(data, start, _TOO_DEEP if isinstance(error, RecursionError) else str(error))
    else:
        for number, raw in enumerate(members, 1):
            view = memoryview(raw)
            yield number, _bounded(view, 0, len(view))
        if unread:
            yield None, f"only its {unread[0]} are read, not its {', '.join(unread[1:])}"


def _list(body: memoryview) -> tuple[list[Raw], list[str]]:
    """The raw members of the list that the file is, or holds under one of LIST_KEYS; all keys, if there are several."""
    top = msgspec.json.decode(body, type=Raw)
    first = bytes(memoryview(top)[:1])
    if first == b"[":
        return msgspec.json.decode(top, type=list[Raw]), []
    if first != b"{":
        raise _Refused("the file is neither a list of chunks nor an object that holds one")
    held = msgspec.json.decode(top, type=dict[str, Raw])
    keys = [key for key in LIST_KEYS if key in held]
    if not keys:
        raise _Refused(f"the file's object holds none of {', '.join(LIST_KEYS)}")
    return msgspec.json.decode(held[keys[0]], type=list[Raw]), keys if len(keys) > 1 else []


def _salvaged(data: mmap.mmap, start: int, error: str) -> Iterator[tuple[int | None, bytes | str]]:
    """The members of a broken list, cut where its brackets say they end."""
    begin = _opening(data, start)
    if begin is None:
        yield None, error
        return
    number, start, depth = 0, begin, 0
    for token in _TOKEN.finditer(data, start):
        sign = token[0]
        if depth == 0 and sign in (b",", b"]"):
            number += 1
            yield number, _bounded(data, start, token.start())
            start = token.end()
            if sign == b"]":
                if bytes(data[start:]).strip() not in (b"", b"}"):
                    yield None, f"what stands behind its list is not read: {error}"
                return
        depth += _step(sign)
    yield number + 1, "the file ends within this record"


def _opening(data: mmap.mmap, start: int) -> int | None:
    """Where the list of a broken file begins: the file's own, or that of a key of its object."""
    begin = _BEGIN.match(data, start)
    if begin is None or begin[1] == b"[":
        return begin.end() if begin else None
    depth = 1
    for token in _TOKEN.finditer(data, begin.end()):
        opening = _LIST.match(data, token.end()) if depth == 1 and token[0] in _QUOTED_KEYS else None
        if opening:
            return opening.end()
        depth += _step(token[0])
    return None


def _bounded(data: mmap.mmap | memoryview, start: int, end: int) -> bytes | str:
    """The record between `start` and `end`, or why it is refused."""
    if end - start > MAX_RECORD_BYTES:
        return f"it is larger than {durable.human_bytes(MAX_RECORD_BYTES)}"
    return bytes(data[start:end]).strip()
