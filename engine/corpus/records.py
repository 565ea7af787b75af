"""A chunk file as the bytes of its records: what is wrong with one never costs its neighbours.

Files are read, never mapped: one that is cut short meanwhile ends, and nothing else happens. Lines are read in blocks
and one too large is not held; a list is held whole, once. A list that is broken is cut into records by its brackets,
so that the good ones are kept and the bad ones named.
"""

import errno
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from itertools import chain
from pathlib import Path

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from interlock.engine.record import atomic, words

MAX_RECORD_BYTES = 4 << 20
LIST_KEYS = ("chunks", "data", "records", "items")
BLOCK = 256 << 10
MEMBER = 72
"""Bytes that a member of a decoded list takes beside its text."""
TOO_DEEP = "nested too deeply"
Found = tuple[int | None, bytes | str]
"""A record's number from 1 and its bytes, or why it is refused; without a number, why (the rest of) the file is."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{},]', re.DOTALL)  # a string without an end goes on to that of the file
_FLAT = re.compile(
    rb'\s*+(?:\{[^]["{}]*+(?:"(?:[^"\\]|\\.)*+"[^]["{}]*+)*+\}\s*+)?,', re.DOTALL
)  # one without brackets in it
_QUOTED_KEYS = {f'"{key}"'.encode() for key in LIST_KEYS}
_BEGIN = re.compile(rb"\s*([\[{])")
_LIST = re.compile(rb"\s*:\s*\[")
_BOM = b"\xef\xbb\xbf"


def records(path: Path, within: Path, read: Callable[[str], object]) -> Iterator[Found]:
    """Yield every record of a file in order; `read` gets the SHA-256 of the very bytes parsed, once the end is reached.

    A file that cannot be opened, or read to its end, is refused from there on, and `read` is not called; one that has
    become a link out of the directory `within` is not read.
    """
    lines = path.name.endswith(".jsonl")
    try:
        blocks = _blocks(path, within, BLOCK if lines else -1, read)
        first = next(blocks, None)
        if first is None:
            yield None, "empty file"
            return
        parts = chain((first.removeprefix(_BOM),), blocks)
        yield from _lines(parts) if lines else _members(b"".join(parts))
    except OSError as error:
        yield None, f"cannot read the file: {error.strerror}"
    except MemoryError:
        yield None, "does not fit in memory (use .jsonl, one record a line)"


def _blocks(path: Path, within: Path, size: int, read: Callable[[str], object]) -> Iterator[bytes]:
    """The bytes of a file, at most `size` at a time (-1: all of them)."""
    digest = hashlib.sha256()
    with FileIO(path, opener=atomic.at_once) as handle:
        if not atomic.place_of(handle.fileno(), path).is_relative_to(within):
            raise OSError(errno.EPERM, "link points outside the root")
        while block := handle.read(size):
            digest.update(block)
            yield block
    read(digest.hexdigest())


def _lines(blocks: Iterable[bytes]) -> Iterator[Found]:
    number, rest = 0, b""
    for block in chain(blocks, (b"\n",)):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            number += 1
            if record := _bounded(line):
                yield number, record
        rest = rest[: MAX_RECORD_BYTES + 1]  # enough to know that it is too large


def _members(data: bytes) -> Iterator[Found]:
    """The members of the file's list: by msgspec where the file is whole, by its brackets where it is not."""
    try:
        body, keys = _list(data)
        # So many members may take many times the size of the file, held all at once.
        dense = data.count(b",") * MEMBER > max(64 << 20, 4 * len(data)) and bytes(body[:1]) == b"["
        members = None if dense else msgspec.json.decode(body, type=list[Raw])
    except _NoList as error:
        yield None, str(error)
    except (ValueError, RecursionError) as error:
        reason = TOO_DEEP if isinstance(error, RecursionError) else str(error)
        begin = _opening(data)
        yield from [(None, reason)] if begin is None else _cut(data, begin, reason)
    else:
        whole = ((number, _bounded(memoryview(raw))) for number, raw in enumerate(members or (), 1))
        yield from _cut(bytes(body), 1, "") if members is None else whole
        if len(keys) > 1:
            others = ", ".join(map(repr, keys[1:]))
            yield None, f"only the list under {others}: the one under {keys[0]!r} is read"


class _NoList(Exception):
    """Why a whole file holds no records."""


class _Holder(Struct):
    """An object that holds the list under one of LIST_KEYS."""

    chunks: Raw | UnsetType = UNSET
    data: Raw | UnsetType = UNSET
    records: Raw | UnsetType = UNSET
    items: Raw | UnsetType = UNSET


def _list(data: bytes) -> tuple[memoryview, list[str]]:
    """The list that the file is, or holds under the first of the keys that are returned; the rest hold lists too."""
    top = memoryview(msgspec.json.decode(data, type=Raw))
    if bytes(top[:1]) == b"[":
        return top, []
    if bytes(top[:1]) != b"{":
        raise _NoList("neither a list of chunks nor an object that contains one")
    holder = msgspec.json.decode(top, type=_Holder)
    held = {key: body for key in LIST_KEYS if (body := getattr(holder, key)) is not UNSET}
    if not held:
        raise _NoList(f"object with none of {', '.join(LIST_KEYS)}")
    used, *others = held
    return memoryview(held[used]), [used, *(key for key in others if bytes(memoryview(held[key])[:1]) == b"[")]


def _cut(data: bytes, start: int, error: str) -> Iterator[Found]:
    """The members of a list from `start` on, each up to where its brackets say it ends."""
    number, view = 0, memoryview(data)
    while end := _FLAT.match(data, start) or _end_of(data, start):
        number += 1
        yield number, _bounded(view[start : end.end() - 1])
        start = end.end()
        if data[start - 1 : start] == b"]":
            if data[start:].strip() not in (b"", b"}"):
                yield None, f"ignored text after the end of the list ({error})"
            return
    yield number + 1, "file ends within this record"


def _end_of(data: bytes, start: int) -> re.Match[bytes] | None:
    """The comma or bracket behind the member that begins at `start`."""
    depth = 0
    for token in _TOKEN.finditer(data, start):
        if depth == 0 and token[0] in (b",", b"]"):
            return token
        depth += _step(token[0])
    return None


def _opening(data: bytes) -> int | None:
    """Where the list of a broken file begins: the file's own, or that of a key of its object."""
    begin = _BEGIN.match(data)
    if begin is None or begin[1] == b"[":
        return begin.end() if begin else None
    depth = 1
    for token in _TOKEN.finditer(data, begin.end()):
        opening = _LIST.match(data, token.end()) if depth == 1 and token[0] in _QUOTED_KEYS else None
        if opening:
            return opening.end()
        depth += _step(token[0])
    return None


def _bounded(record: bytes | memoryview) -> bytes | str:
    """The record, or why it is refused."""
    if len(record) > MAX_RECORD_BYTES:
        return f"larger than {words.human_bytes(MAX_RECORD_BYTES)}"
    return bytes(record).strip()


def depth_of(data: bytes) -> int:
    """Count how deep brackets nest in a JSON text."""
    depth = deepest = 0
    for token in _TOKEN.finditer(data):
        depth += _step(token[0])
        deepest = max(deepest, depth)
    return deepest


def _step(token: bytes) -> int:
    return (token in (b"[", b"{")) - (token in (b"]", b"}"))
