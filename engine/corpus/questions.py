"""What people ask, from files of a question a line: questions to be searched for, pairs to be scored, and judged
collections in BEIR's files (`corpus.jsonl`, `queries.jsonl`, `qrels/test.tsv`, and `qrels/train.tsv` if any).

A line that cannot be used is refused with its file and number, since its answer is known by its place, and half a
judgement would make every figure after it wrong. Other members of a line are left alone.
"""

import re
from collections.abc import Collection as Members
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from interlock.engine.errors import UsageError
from interlock.engine.record import atomic

LISTED = (".jsonl", ".tsv", ".txt")
"""How the name of a file of questions may end, which says how it is read."""
Grades = Mapping[str, Mapping[str, int]]
"""How well each judged text answers, by query and text; 0: not at all."""
MOST = 1000
"""The highest grade: what counts them takes memory for each."""
COLUMNS = 3
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


@dataclass(frozen=True)
class Judged:
    """Texts and queries by id, and the grades of the queries of each split; a split has a query with an answer.

    `left_out` are the texts without a word, which nothing finds, as `file:line`. Queries without one are in no split.
    """

    texts: Mapping[str, str]
    queries: Mapping[str, str]
    splits: Mapping[str, Grades]
    left_out: Sequence[str] = ()

    @property
    def unasked(self) -> list[str]:
        """The queries without a word."""
        return [query for query, text in self.queries.items() if not text.strip()]


class _Asked(msgspec.Struct):
    id: str | int | None = None
    id_: str | int | None = msgspec.field(default=None, name="_id")
    text: str | None = None
    query: str | None = None


class _Paired(msgspec.Struct):
    query: str
    text: str | None = None
    texts: tuple[str, ...] | None = None


class _Text(msgspec.Struct):
    id: str = msgspec.field(name="_id")
    text: str
    title: str | None = None


def read_questions(file: Path, *, empty: bool = False) -> Iterator[Question]:
    """Yield the questions of a file in order: of JSON Lines (`{"id": ..., "text": ...}`, or BEIR's `_id` and `query`),
    of `id<TAB>text`, or of one a line. One without an id has its line's number for one.

    Raises UsageError for a file that cannot be read or holds none, and for a bad line and an id that comes twice, with
    the line's number; for a question without a word too, unless those may be `empty`.
    """
    if file.suffix not in LISTED:
        raise UsageError(f"{file}: name it {', '.join(LISTED)}, which says how it is read")
    yield from questions_in(_read(file), str(file), file.suffix, empty=empty)


def questions_in(
    lines: Iterable[bytes], source: str, suffix: str = ".txt", *, empty: bool = False
) -> Iterator[Question]:
    """Yield the questions of lines, which are read as those of a file with this suffix. Raises as `read_questions`."""
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        place, own = f"{source}:{number}", str(number)
        text = _decoded(place, line.removeprefix(BOM) if number == 1 else line)
        if suffix == ".jsonl":
            found = _of_json(place, text.encode() or b"null", _Asked, '{"id": ..., "text": ...}')
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
    for number, line in enumerate(_read(file), 1):
        place = f"{file}:{number}"
        if not line.strip():
            raise UsageError(f"{place}: the line is empty: remove it")
        read = _of_json(place, line, _Paired, '{"query": ..., "text": ...} or "texts": [...]')
        if (read.text is None) == (read.texts is None):
            raise UsageError(f'{place}: expected one of "text" and "texts" beside "query": give one of them')
        if not read.query.strip():
            raise UsageError(f"{place}: the query is empty: remove the line")
        texts = (read.text,) if read.text is not None else read.texts or ()
        yield PairLine(read.query, texts, read.text is not None)
    if not number:
        raise UsageError(f"{file} is empty: put a pair on each line")


def read_judged(directory: Path) -> Judged:
    """Read a judged collection. Raises UsageError for what cannot be used, with its file and line."""
    texts, left_out = dict[str, str](), list[str]()
    for place, line in _texts(directory / "corpus.jsonl"):
        texts[line.id] = f"{line.title or ''} {line.text}".strip()
        if not texts[line.id]:
            left_out.append(place)
    queries = read_queries(directory / "queries.jsonl")
    files = {name: directory / "qrels" / f"{name}.tsv" for name in ("test", "train")}
    known = {name: file for name, file in files.items() if name == "test" or file.exists()}
    splits = {name: read_grades(file, queries, texts.keys()) for name, file in known.items()}
    if both := sorted(splits["test"].keys() & splits.get("train", {}).keys()):
        raise UsageError(
            f"{files['train']}: query {both[0]!r:.100} is in {files['test'].name} too, and weights must not be chosen "
            "by what they are measured on: drop it from one"
        )
    return Judged({id: text for id, text in texts.items() if text}, queries, splits, left_out)


def read_queries(file: Path) -> dict[str, str]:
    """Read queries by id, those without a word too: a JSON object with `_id` and `text` a line. Raises UsageError for a
    line that is none."""
    return {line.id: line.text for _, line in _texts(file)}


def read_grades(file: Path, queries: Mapping[str, str], texts: Members[str]) -> dict[str, dict[str, int]]:
    """Read judgements, `query-id<tab>corpus-id<tab>score` a line under a line of heads; keep the queries that have a
    word and an answer.

    Raises UsageError for a line that is none, for a query or a text that is not there, for one that is judged twice,
    and where no query has an answer.
    """
    grades: dict[str, dict[str, int]] = {}
    for number, line in enumerate(_read(file), 1):
        place, cells = f"{file}:{number}", _decoded(f"{file}:{number}", line).split("\t")
        if number == 1 and cells[-1:] == ["score"]:
            continue
        found = re.fullmatch("(-?)0*([0-9]+)", cells[-1])
        if len(cells) != COLUMNS or not found:
            raise UsageError(f"{place}: expected query-id, corpus-id and a whole score with tabs between: fix it")
        (query, text, score), grade = cells, int(found[1] + found[2][:9])
        if abs(grade) > MOST:
            raise UsageError(f"{place}: a score of {score:.30} is above {MOST}: use grades from 0 to {MOST}")
        if query not in queries:
            raise UsageError(f"{place}: query {query!r:.100} is not among the queries: add it, or drop the line")
        if text not in texts:
            raise UsageError(f"{place}: text {text!r:.100} is not in the corpus: add it, or drop the line")
        if text in grades.setdefault(query, {}):
            raise UsageError(f"{place}: text {text!r:.100} is judged twice for query {query!r:.100}: drop one line")
        grades[query][text] = grade
    answered = {
        query: each
        for query, each in grades.items()
        if queries[query].strip() and any(grade > 0 for grade in each.values())
    }
    if not answered:
        raise UsageError(f"{file}: no query has a text with a score above 0: nothing can be judged by it")
    return answered


def _texts(file: Path) -> Iterator[tuple[str, _Text]]:
    """The lines of a file of texts by id, each with its place."""
    seen: set[str] = set()
    for number, line in enumerate(_read(file), 1):
        place = f"{file}:{number}"
        text = _of_json(place, line, _Text, '{"_id": ..., "text": ...}')
        if text.id in seen:
            raise UsageError(f"{place}: _id {text.id!r:.100} was there before: drop one of the lines")
        seen.add(text.id)
        yield place, text
    if not seen:
        raise UsageError(f"{file} is empty: expected a JSON object a line")


def _read(file: Path) -> Iterator[bytes]:
    try:
        with atomic.opened(file) as handle:
            for number, line in enumerate(handle):
                yield (line if number else line.removeprefix(BOM)).rstrip(b"\r\n")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error


def _decoded(place: str, line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{place}: the line is not UTF-8 ({error.reason}): write it as UTF-8") from None


def _of_json(place: str, line: bytes, kind: type[T], expected: str) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{place}: {error}: put {expected} on each line") from None
