"""A chunk file as the bytes of its records: what is wrong with one never costs its neighbours.

Files are read, never mapped: one that is cut short meanwhile ends, and nothing else happens. Lines are read in blocks
and one too large is not held; a list is held whole, once. A list that is broken is cut into records by its brackets,
so that the good ones are kept and the bad ones named.
"""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from io import FileIO
from itertools import chain
from pathlib import Path

import msgspec
from msgspec import Raw

from engine.record import durable

MAX_RECORD_BYTES = 4 << 20
LIST_KEYS = ("chunks", "data", "records", "items")
BLOCK = 256 << 10
TOO_DEEP = "it is nested too deeply"
Found = tuple[int | None, bytes | str]
"""A record's number from 1 and its bytes, or why it is refused; without a number, why (the rest of) the file is."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{},]', re.DOTALL)  # a string without an end goes on to that of the file
_QUOTED_KEYS = {f'"{key}"'.encode() for key in LIST_KEYS}
_BEGIN = re.compile(rb"\s*([\[{])")
_LIST = re.compile(rb"\s*:\s*\[")
_BOM = b"\xef\xbb\xbf"


def records(path: Path, read: Callable[[str], object]) -> Iterator[Found]:
    """Every record of a file in order; `read` gets the SHA-256 of exactly the bytes parsed, once the end is reached.

    A file that cannot be opened, or read to its end, is refused from there on, and `read` is not called.
    """
    lines = path.name.endswith(".jsonl")
    try:
        blocks = _blocks(path, BLOCK if lines else -1, read)
        first = next(blocks, None)
        if first is None:
            yield None, "the file is empty"
            return
        parts = chain((first.removeprefix(_BOM),), blocks)
        yield from _lines(parts) if lines else _members(b"".join(parts))
    except OSError as error:
        yield None, f"it cannot be read: {error.strerror}"
    except MemoryError:
        yield None, "it does not fit in memory: write it as .jsonl, one record a line"


def _blocks(path: Path, size: int, read: Callable[[str], object]) -> Iterator[bytes]:
    """The bytes of a file, at most `size` at a time (-1: all of them)."""
    digest = hashlib.sha256()
    with FileIO(path, opener=_at_once) as handle:
        if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        while block := handle.read(size):
            digest.update(block)
            yield block
    read(digest.hexdigest())


def _at_once(path: str, flags: int) -> int:
    """Open what may have become a pipe meanwhile, which would be waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


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
        members, unread = _list(data)
    except _NoList as error:
        yield None, str(error)
    except (ValueError, RecursionError) as error:
        yield from _salvaged(data, TOO_DEEP if isinstance(error, RecursionError) else str(error))
    else:
        for number, raw in enumerate(members, 1):
            yield number, _bounded(memoryview(raw))
        if unread:
            yield None, f"only its {unread[0]} are read, not its {', '.join(unread[1:])}"


class _NoList(Exception):
    """Why a whole file holds no records."""


def _list(data: bytes) -> tuple[list[Raw], list[str]]:
    """The raw members of the list that the file is, or holds under one of LIST_KEYS; all keys, if there are several."""
    top = msgspec.json.decode(data, type=Raw)
    first = bytes(memoryview(top)[:1])
    if first == b"[":
        return msgspec.json.decode(top, type=list[Raw]), []
    if first != b"{":
        raise _NoList("the file is neither a list of chunks nor an object that holds one")
    held = msgspec.json.decode(top, type=dict[str, Raw])
    keys = [key for key in LIST_KEYS if key in held]
    if not keys:
        raise _NoList(f"the file's object holds none of {', '.join(LIST_KEYS)}")
    return msgspec.json.decode(held[keys[0]], type=list[Raw]), keys if len(keys) > 1 else []


def _salvaged(data: bytes, error: str) -> Iterator[Found]:
    """The members of a broken list, cut where its brackets say they end."""
    begin = _opening(data)
    if begin is None:
        yield None, error
        return
    number, start, depth, view = 0, begin, 0, memoryview(data)
    for token in _TOKEN.finditer(data, start):
        sign = token[0]
        if depth == 0 and sign in (b",", b"]"):
            number += 1
            yield number, _bounded(view[start : token.start()])
            start = token.end()
            if sign == b"]":
                if data[start:].strip() not in (b"", b"}"):
                    yield None, f"what stands behind its list is not read: {error}"
                return
        depth += _step(sign)
    yield number + 1, "the file ends within this record"


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
        return f"it is larger than {durable.human_bytes(MAX_RECORD_BYTES)}"
    return bytes(record).strip()


def depth_of(data: bytes) -> int:
    """How deep brackets nest in a JSON text."""
    depth = deepest = 0
    for token in _TOKEN.finditer(data):
        depth += _step(token[0])
        deepest = max(deepest, depth)
    return deepest


def _step(token: bytes) -> int:
    return (token in (b"[", b"{")) - (token in (b"]", b"}"))
