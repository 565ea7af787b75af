"""Pairs to be scored, one question a line of a JSON Lines file: `{"query": ..., "text": ...}`, or `"texts": [...]`.

Line n is for line n of what is written, so that a line which cannot be read is refused with its number, and so is an
empty one. Other members of a line are left alone.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from interlock.engine.errors import UsageError
from interlock.engine.record import atomic


@dataclass(frozen=True)
class PairLine:
    """A query and the texts that it is paired with; `alone` where the line has one text and not a list."""

    query: str
    texts: tuple[str, ...]
    alone: bool


class _Line(msgspec.Struct):
    query: str
    text: str | None = None
    texts: tuple[str, ...] | None = None


def read_pairs(file: Path) -> Iterator[PairLine]:
    """Yield the lines of a file in order. Raises UsageError for a file that cannot be read, and for a bad line with its
    number."""
    decode = msgspec.json.Decoder(_Line).decode
    try:
        with atomic.opened(file) as handle:
            for number, line in enumerate(handle, 1):
                yield _checked(f"{file}:{number}", line, decode)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error


def _checked(place: str, line: bytes, decode: Callable[[bytes], _Line]) -> PairLine:
    if not line.strip():
        raise UsageError(f"{place}: the line is empty: remove it")
    try:
        read = decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f'{place}: expected {{"query": ..., "text": ...}} or "texts": [...]: {error}') from None
    if (read.text is None) == (read.texts is None):
        raise UsageError(f'{place}: expected one of "text" and "texts" beside "query": give one of them')
    if not read.query.strip():
        raise UsageError(f"{place}: the query is empty: remove the line")
    texts = (read.text,) if read.text is not None else read.texts or ()
    return PairLine(read.query, texts, read.text is not None)
