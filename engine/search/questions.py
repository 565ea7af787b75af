"""What people ask, from files of a question a line: questions to be searched for, and pairs to be scored.

A line that cannot be used is refused with its file and number, since its answer is known by its place. Other members of
a line are left alone.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from interlock.engine.errors import UsageError
from interlock.engine.record import atomic

LISTED = (".jsonl", ".tsv", ".txt")
"""How the name of a file of questions may end, which says how it is read."""
BOM = b"\xef\xbb\xbf"

T = TypeVar("T")


@dataclass(frozen=True)
class Question:
    """A question with the id that its answer is told with."""

    id: str
    text: str


@dataclass(frozen=True)
class PairLine:
    """A query and the texts that it is paired with; `alone` where the line has one text and not a list."""

    query: str
    texts: tuple[str, ...]
    alone: bool


class _Asked(msgspec.Struct):
    id: str | int | None = None
    id_: str | int | None = msgspec.field(default=None, name="_id")
    text: str | None = None
    query: str | None = None


class _Paired(msgspec.Struct):
    query: str
    text: str | None = None
    texts: tuple[str, ...] | None = None


def read_questions(file: Path, *, empty: bool = False) -> Iterator[Question]:
    """Yield the questions of a file in order: of JSON Lines (`{"id": ..., "text": ...}`, or BEIR's `_id` and `query`),
    of `id<TAB>text`, or of one a line. One without an id has its line's number for one.

    Raises UsageError for a file that cannot be read or holds none, and for a bad line and an id that comes twice, with
    the line's number; for a question without a word too, unless those may be `empty`.
    """
    if file.suffix not in LISTED:
        raise UsageError(f"{file}: name it {', '.join(LISTED)}, which says how it is read")
    yield from questions_in(lines_of(file), str(file), file.suffix, empty=empty)


def questions_in(
    lines: Iterable[bytes], source: str, suffix: str = ".txt", *, empty: bool = False
) -> Iterator[Question]:
    """Yield the questions of lines, which are read as those of a file with this suffix. Raises as `read_questions`."""
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        place, own = f"{source}:{number}", str(number)
        text = decoded(place, line.removeprefix(BOM) if number == 1 else line)
        if text.strip() == "<top>":
            raise UsageError(f"{place}: a topic in TREC's tags: put number, tab and title on a line of a .tsv")
        if suffix == ".jsonl":
            found = of_json(place, text.encode() or b"null", _Asked, '{"id": ..., "text": ...}')
            texts = [each for each in (found.text, found.query) if each is not None]
            if len(texts) != 1:
                raise UsageError(f'{place}: expected one of "text" and "query": give one of them')
            own, text = str(next((each for each in (found.id, found.id_) if each is not None), number)), texts[0]
        elif suffix == ".tsv" and text.strip():
            own, tab, text = text.partition("\t")
            if not tab or not own.strip():
                raise UsageError(f"{place}: no tab: put an id and a tab before the question, or use a .txt")
        if not text.strip() and not empty:
            raise UsageError(f"{place}: the question is empty: remove the line")
        if (own := own.strip()) in seen:
            raise UsageError(
                f"{place}: id {own!r:.60} is that of line {seen[own]} too: give each question an id of its own"
            )
        seen[own] = number
        yield Question(own, text)
    if not seen:
        raise UsageError(f"{source} is empty: put a question on each line")


def read_pairs(file: Path) -> Iterator[PairLine]:
    """Yield the lines of a file in order, `{"query": ..., "text": ...}` or `"texts": [...]`. Raises UsageError for a
    file that cannot be read or holds none, and for a bad line with its number."""
    number = 0
    for number, line in enumerate(lines_of(file), 1):
        place = f"{file}:{number}"
        if not line.strip():
            raise UsageError(f"{place}: the line is empty: remove it")
        read = of_json(place, line, _Paired, '{"query": ..., "text": ...} or "texts": [...]')
        if (read.text is None) == (read.texts is None):
            raise UsageError(f'{place}: expected one of "text" and "texts" beside "query": give one of them')
        if not read.query.strip():
            raise UsageError(f"{place}: the query is empty: remove the line")
        texts = (read.text,) if read.text is not None else read.texts or ()
        yield PairLine(read.query, texts, read.text is not None)
    if not number:
        raise UsageError(f"{file} is empty: put a pair on each line")


def lines_of(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file without their ends and its byte order mark; of a `.gz` those that were packed. Raises
    UsageError for one that cannot be read."""
    number = 0
    try:
        with atomic.opened(file) as handle:
            for line in gzip.GzipFile(fileobj=handle) if file.suffix == ".gz" else handle:
                yield (line if number else line.removeprefix(BOM)).rstrip(b"\r\n")
                number += 1
    except (EOFError, zlib.error):
        raise UsageError(f"{file}:{number + 1}: the gzip file is cut or damaged here: copy it again") from None
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error


def decoded(place: str, line: bytes) -> str:
    """Read a line as UTF-8, or raise UsageError with its place."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{place}: the line is not UTF-8 ({error.reason}): write it as UTF-8") from None


def of_json(place: str, line: bytes, kind: type[T], expected: str) -> T:
    """Read a line of JSON as a `kind`, or raise UsageError with its place and what was `expected`."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{place}: {error}: put {expected} on each line") from None
