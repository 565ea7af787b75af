"""Questions to be searched for: a file of JSON Lines (`{"id": ..., "text": ...}`), of `id<TAB>text`, or of one a line.

What BEIR calls them is taken too (`_id`, `query`). A line without an id has its number for one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from interlock.engine.errors import UsageError
from interlock.engine.record import atomic

LISTED = (".jsonl", ".tsv", ".txt")
"""How the name of a file of questions may end, which says how it is read."""


@dataclass(frozen=True)
class Question:
    """A question with the id that its answer is told with."""

    id: str
    text: str


class _Line(msgspec.Struct):
    id: str | int | None = None
    id_: str | int | None = msgspec.field(default=None, name="_id")
    text: str | None = None
    query: str | None = None


def read_questions(file: Path) -> Iterator[Question]:
    """Yield the questions of a file in order. Raises UsageError for a file that cannot be read or holds none, and for a
    bad or empty line and an id that comes twice, with the line's number."""
    if file.suffix not in LISTED:
        raise UsageError(f"--queries {file}: name it {', '.join(LISTED)}, which says how it is read")
    seen: dict[str, int] = {}
    try:
        with atomic.opened(file) as handle:
            for number, line in enumerate(handle, 1):
                question = _read(f"{file}:{number}", line, file.suffix, str(number))
                if question.id in seen:
                    raise UsageError(
                        f"{file}:{number}: id {question.id!r:.60} is that of line {seen[question.id]} too: give each "
                        "question an id of its own"
                    )
                seen[question.id] = number
                yield question
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error
    if not seen:
        raise UsageError(f"{file} is empty: put a question on each line")


def _read(place: str, line: bytes, suffix: str, number: str) -> Question:
    try:
        text = line.decode("utf-8-sig" if number == "1" else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{place}: the line is not UTF-8 ({error.reason}): write it as UTF-8") from None
    own = number
    if suffix == ".jsonl":
        own, text = _of_json(place, text, number)
    elif suffix == ".tsv" and text.strip():
        own, tab, text = text.partition("\t")
        if not tab or not own.strip():
            raise UsageError(f"{place}: no tab: put an id and a tab before the question, or use a .txt")
    if not text.strip():
        raise UsageError(f"{place}: the question is empty: remove the line")
    return Question(own.strip(), text)


def _of_json(place: str, text: str, number: str) -> tuple[str, str]:
    try:
        line = msgspec.json.decode(text or "null", type=_Line)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f'{place}: {error}: put {{"id": ..., "text": ...}} on each line') from None
    ids = [each for each in (line.id, line.id_) if each is not None]
    texts = [each for each in (line.text, line.query) if each is not None]
    if len(texts) != 1:
        raise UsageError(f'{place}: expected one of "text" and "query": give one of them')
    return str(ids[0]) if ids else number, texts[0]
