"""A chunk file as the bytes of its records: what is wrong with one never costs its neighbours.

Files are read, never mapped: one that is cut short meanwhile ends, and nothing else happens. Lines are read in blocks
and one too large is not held; a list is held whole, once. A list that is broken is cut into records by its brackets,
so that the good ones are kept and the bad ones named. What a file holds decides how it is read, not its name alone:
UTF-16, lines that end in CR, records over several lines, a list among lines and lines where a list belongs.
"""

import codecs
import gzip
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from io import BufferedReader
from itertools import chain, count
from pathlib import Path

import msgspec
from msgspec import Raw

from interlock.engine.corpus.forms import MAX_RECORD_BYTES, Found, Read, bounded, form_of, lost, opened, opened_anywhere
from interlock.engine.corpus.tables import MARKS, UNMARKED, rows_of_cells, rows_of_columns

LIST_KEYS = ("chunks", "data", "records", "items")
Beside = Callable[[str], object]
BLOCK = 256 << 10
MEMBER = 72
"""Bytes that a member of a decoded list takes beside its text."""
TOO_DEEP = "nested too deeply"
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{},]', re.DOTALL)  # a string without an end goes on to that of the file
_FLAT = re.compile(
    rb'\s*+(?:\{[^]["{}]*+(?:"(?:[^"\\]|\\.)*+"[^]["{}]*+)*+\}\s*+)?,', re.DOTALL
)  # one without brackets in it
_QUOTED_KEYS = {f'"{key}"'.encode() for key in LIST_KEYS}
_BEGIN = re.compile(rb"\s*([\[{])")
_LIST = re.compile(rb"\s*:\s*\[")
_LISTED = re.compile(rb"\s*\[\s*\{")
_CR = re.compile(rb"\}[ \t]*\r[ \t\r]*(?=[{\xef])")  # no JSON has this within a record
_ONLY_CR = re.compile(rb"\r(?<!\r\r)\r*+(?!\n|\Z)")  # a CRLF may be cut at the end of a block
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_NO_NUMBER = re.compile(rb"\b(?:NaN|Infinity)\b")
_NEXT = re.compile(rb"\}(?:[\s,]|\xef\xbb\xbf)*\{")
_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_BETWEEN = _SPACE + _BOM + b","


def records(
    path: Path, within: Path, read: Read, texts: Collection[str] = (), beside: Beside = lambda _: None
) -> Iterator[Found]:
    """Yield every record of a file in order; `read` gets the SHA-256 of the very bytes parsed, once the end is reached.

    A file that cannot be opened, or read to its end, is refused from there on, and `read` is not called; one that has
    become a link out of the directory `within` is not read. What `texts` name, columns may have as bytes. `beside`
    hears the names of fields beside a list, which are in no record.
    """
    form = form_of(path.name)
    assert form, f"{path.name} is no file of texts"
    try:
        if form.layout == "columns":
            with opened_anywhere(path, within, read, form.packing) as columns:
                yield from rows_of_columns(columns, texts)
            return
        with opened(path, within, read, form.packing) as handle:
            if form.layout == "cells":
                yield from rows_of_cells(handle, tabs=".tsv" in path.name.lower())
            else:
                yield from _of_json(handle, beside, lines=form.layout == "lines")
    except UnicodeDecodeError as error:
        yield None, f"ends within a character of {error.encoding.upper()}: save the file as UTF-8"
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        yield None, f"cannot unpack the file ({error}): fetch it again"
    except OSError as error:
        yield None, f"cannot read the file: {error.strerror or error}"
    except MemoryError:
        yield None, "does not fit in memory (use .jsonl, one record a line)"


def _of_json(handle: BufferedReader, beside: Beside, *, lines: bool) -> Iterator[Found]:
    blocks = iter(partial(handle.read, BLOCK if lines else -1), b"")
    first = next(blocks, None)
    if first is None:
        yield None, "empty file"
        return
    parts = _as_utf8(first, blocks)
    first = next(parts)
    parts = chain((first,), parts)
    listed = not lines or _LISTED.match(first)
    yield from _members(b"".join(parts), beside, lines=lines) if listed else _lines(parts)


def _as_utf8(first: bytes, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of a file without its mark, in UTF-8 whatever its encoding; they begin with `first`."""
    encoding = next((name for mark, name in MARKS.items() if first.startswith(mark)), "")
    if not encoding and first.lstrip(b"\0")[:1] in b"[{" + _SPACE:
        encoding = UNMARKED.get(tuple(map(bool, first[:4])), "")
    if not encoding:
        yield first.removeprefix(_BOM)
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")  # half a pair costs its record alone
    for block in chain((first,), blocks):
        yield decoder.decode(block).encode(errors="surrogatepass")
    decoder.decode(b"", final=True)


def _lines(blocks: Iterable[bytes], number: int = 0) -> Iterator[Found]:
    """The records of lines, each with the number of its first, counted on from `number`.

    A record whose brackets, but no string, are open at the end of its line goes on, up to the next line that begins as
    it did.
    """
    parts, begin, first, size = list[bytes](), b"", 0, 0
    depth: int | None = None
    for line in _split(blocks):
        number += 1
        line = line.lstrip(_BOM).removesuffix(_BOM)
        if not line or line.isspace():
            continue
        if parts and not line.startswith(begin):
            depth = _goes_on(parts[0]) if depth is None else depth
            if depth > 0:
                depth, size = depth + _goes_on(line), size + len(line)
                parts += [line] * (size <= MAX_RECORD_BYTES + len(line))  # enough to know that it is too large
                continue
        if parts:
            found = _several(_joined(parts))
            yield from map(_in_place, count(first), found)
            number += len(found) - 1
        parts, depth, first, size = [line], None, number, len(line)
        begin = line[: len(line) - len(line.lstrip())] + b"{"
    if parts:
        *before, record = _several(_joined(parts))
        yield from map(_in_place, count(first), before)
        first += len(before)
        cut = not isinstance(record, str) and not is_json(record) and _left_open(record) > 0
        yield (None, f"file ends within record {first}") if cut else _in_place(first, record)


def _in_place(number: int, record: bytes | str) -> Found:
    gap = not isinstance(record, str) and b"\0" in record and b"\0\0" in record  # one sign is found much sooner
    return lost(number) if gap else (number, record)


def _several(record: bytes | str) -> list[bytes | str]:
    """The objects that stand on one line, as files have them that were joined without an end of the line."""
    if isinstance(record, str) or not _NEXT.search(record) or is_json(record):
        return [record]
    found, start = list[bytes | str](), 0
    for depth, token in _depths(record):
        if depth == 0 and token[0] == b"}":
            found.append(record[start : token.end()].lstrip(_BETWEEN))
            start = token.end()
    return [*found, *filter(None, [record[start:].lstrip(_BETWEEN)])]


def _joined(parts: Sequence[bytes]) -> bytes | str:
    """The record of some lines, or why it is refused; a comma behind it is none of it."""
    record = bounded(b"\n".join(parts))
    return record if isinstance(record, str) else record.removesuffix(b",")


def _split(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines, whatever ends them; of one too large its beginning."""
    rest, ends = b"", _ONLY_CR
    for block in blocks:
        data = rest + block
        if b"\r" in data:
            ends = _CR if b"\n" in data.rstrip() else ends
            data = ends.sub(lambda found: found[0].replace(b"\r", b"\n"), data)
        *lines, rest = data.split(b"\n")
        yield from lines
        rest = rest[: MAX_RECORD_BYTES + 1]
    yield rest


def is_json(data: bytes) -> bool:
    """Tell whether it is a whole JSON text, whatever its strings hold."""
    try:
        msgspec.json.decode(data, type=Raw)
    except (ValueError, RecursionError):
        return False
    return True


def _left_open(data: bytes) -> int:
    """Count the brackets that are open at the end of a text."""
    return sum(_step(token[0]) for token in _TOKEN.finditer(data))


def _goes_on(line: bytes) -> int:
    """Count the brackets that are open at the end of a line; few as can be where a string is, which no line ends."""
    return -MAX_RECORD_BYTES if b'"' in _STRING.sub(b"", line) else _left_open(line)


def _members(data: bytes, beside: Beside, *, lines: bool) -> Iterator[Found]:
    """The members of the file's list: by msgspec where the file is whole, by its brackets where it is not; records that
    are no members follow on lines of their own where there may be `lines`. `beside` hears what is no list."""
    try:
        body, keys, others = _list(data)
        # So many members may take many times the size of the file, held all at once.
        dense = data.count(b",") * MEMBER > max(64 << 20, 4 * len(data)) and bytes(body[:1]) == b"["
        members = None if dense else msgspec.json.decode(body, type=list[Raw])
    except _NoList as error:
        yield None, str(error)
    except (ValueError, RecursionError) as error:
        reason, begin = cause(error, data), _opening(data)
        if begin is not None:
            yield from _cut(data, begin, reason, lines=lines)
        elif "trailing" in reason and data.lstrip()[:1] == b"{":  # the first of several records
            yield from _lines((data,))
        else:
            yield None, reason
    else:
        whole = ((number, bounded(memoryview(raw))) for number, raw in enumerate(members or (), 1))
        yield from _cut(bytes(body), 1, "") if members is None else whole
        if len(keys) > 1:
            unread = ", ".join(map(repr, keys[1:]))
            yield None, f"only the list under {unread}: the one under {keys[0]!r} is read"
        if others:
            beside(", ".join(map(repr, others[:3])) + ", ..." * (len(others) > 3))


def cause(error: Exception, data: bytes) -> str:
    """Say why `data` is no JSON in the words of who wrote it, where they are known, else in those of the parser."""
    if isinstance(error, RecursionError):
        return TOO_DEEP
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 (byte {error.start}): save the file as UTF-8"
    if "malformed" in str(error) and _NO_NUMBER.search(_STRING.sub(b"", data)):
        return f"{error}: NaN and Infinity are no JSON, write null"
    if "trailing characters" in str(error):
        return f"{error}: write one record a line, or one list a file"
    return str(error)


class _NoList(Exception):
    """Why a whole file holds no records."""


def _list(data: bytes) -> tuple[memoryview, list[str], list[str]]:
    """The list that the file is, or holds under the first of the keys that are returned; the rest hold lists too. And
    the names of the fields beside it."""
    top = memoryview(msgspec.json.decode(data, type=Raw))
    if bytes(top[:1]) == b"[":
        return top, [], []
    if bytes(top[:1]) != b"{":
        raise _NoList("neither a list of chunks nor an object that contains one")
    fields = msgspec.json.decode(top, type=dict[str, Raw])
    held = {key: fields.pop(key) for key in LIST_KEYS if key in fields}
    if not held:
        raise _NoList(f"object with none of {', '.join(LIST_KEYS)}")
    begin = _opening(data)
    told = [key for key, _ in _lists(data)] if sum(map(data.count, _QUOTED_KEYS)) > len(held) else []
    is_read = begin is None or any(data.startswith(bytes(each), begin - 1) for each in held.values())
    if len({*told}) < len(told) or not is_read:
        raise _NoList(
            "two lists under one key, of which one alone can be read: name each of them otherwise, or join them"
        )
    used, *others = held
    lists = [key for key in others if bytes(memoryview(held[key])[:1]) == b"["]
    return memoryview(held[used]), [used, *lists], [*fields, *(key for key in others if key not in lists)]


def _cut(data: bytes, start: int, error: str, *, lines: bool = False) -> Iterator[Found]:
    """The members of a list from `start` on, each up to where its brackets say it ends; those of a list behind it too,
    and what follows on `lines`. Nothing between two commas is no member."""
    number, view = 0, memoryview(data)
    while end := _FLAT.match(data, start) or _end_of(data, start):
        if member := bounded(view[start : end.end() - 1]):
            number += 1
            yield number, member
        start = end.end()
        if data[start - 1 : start] == b",":
            continue
        rest = data[start:].lstrip(_SPACE + _BOM)
        if rest[:1] == b"[":
            start = len(data) - len(rest) + 1
        elif lines:
            return (yield from _lines((rest,), number))
        elif rest.strip() and not (data.lstrip()[:1] == b"{" and is_json(b'{"":0' + rest)):
            return (yield None, f"ignored text after the end of the list ({error})")
        else:
            return
    last = bounded(view[start:])
    if not isinstance(last, str) and is_json(last):
        yield number + 1, last
        last = b""
    yield None, f"file ends within record {number + 1}" if last else "file ends before the end of its list"


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
    return next((start for _, start in _lists(data)), None)


def _lists(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The lists that an object has under LIST_KEYS: each with its key, and where it begins."""
    for depth, token in _depths(data):
        opening = _LIST.match(data, token.end()) if depth == 1 and token[0] in _QUOTED_KEYS else None
        if opening:
            yield token[0], opening.end()


def depth_of(data: bytes) -> int:
    """Count how deep brackets nest in a JSON text."""
    return max((depth for depth, _ in _depths(data)), default=0)


def _depths(data: bytes) -> Iterator[tuple[int, re.Match[bytes]]]:
    """The brackets of a JSON text, each with how many are open behind it."""
    depth = 0
    for token in _TOKEN.finditer(data):
        depth += _step(token[0])
        yield depth, token


def _step(token: bytes) -> int:
    return (token in (b"[", b"{")) - (token in (b"]", b"}"))
