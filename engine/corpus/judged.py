"""Judged collections, in BEIR's files: `corpus.jsonl`, `queries.jsonl`, `qrels/test.tsv`, and `qrels/train.tsv` if any.

A line that cannot be used is refused with its file and number: a judgement of what is not there, or half a line, would
make every figure after it wrong. A text without any word is the one thing that is left out: nothing finds it.
"""

from collections.abc import Collection as Members
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from interlock.engine.errors import UsageError
from interlock.engine.record import atomic

Grades = Mapping[str, Mapping[str, int]]
"""How well each judged text answers, by query and text; 0: not at all."""
MOST = 1000
"""The highest grade: what counts them takes memory for each."""
COLUMNS = 3


@dataclass(frozen=True)
class Judged:
    """Texts and queries by id, and the grades of the queries of each split; a split has a query with an answer."""

    texts: Mapping[str, str]
    queries: Mapping[str, str]
    splits: Mapping[str, Grades]
    left_out: Sequence[str] = ()
    """The texts without a word, as `file:line`."""


class _Line(msgspec.Struct):
    id: str = msgspec.field(name="_id")
    text: str
    title: str | None = None


def read_judged(directory: Path) -> Judged:
    """Read a judged collection. Raises UsageError for what cannot be used, with its file and line."""
    texts, left_out = dict[str, str](), list[str]()
    for place, line in _lines(directory / "corpus.jsonl"):
        _once(place, line.id, texts)
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
    """Read queries by id: a JSON object with `_id` and `text` a line. Raises UsageError for a line that is none."""
    queries: dict[str, str] = {}
    for place, line in _lines(file):
        _once(place, line.id, queries)
        if not line.text.strip():
            raise UsageError(f"{place}: query {line.id!r:.100} is empty: remove the line, and its judgements")
        queries[line.id] = line.text
    return queries


def read_grades(file: Path, queries: Mapping[str, str], texts: Members[str]) -> dict[str, dict[str, int]]:
    """Read judgements, `query-id<tab>corpus-id<tab>score` a line under a line of heads; keep the queries that have an
    answer.

    Raises UsageError for a line that is none, for a query or a text that is not there, for one that is judged twice,
    and where no query has an answer.
    """
    grades: dict[str, dict[str, int]] = {}
    for number, line in enumerate(_read(file), 1):
        place, cells = f"{file}:{number}", _decoded(f"{file}:{number}", line).split("\t")
        if number == 1 and cells[-1:] == ["score"]:
            continue
        if len(cells) != COLUMNS or not cells[2].removeprefix("-").isdecimal():
            raise UsageError(f"{place}: expected query-id, corpus-id and a whole score with tabs between: fix it")
        query, text, score = cells
        if abs(int(score[:9])) > MOST:
            raise UsageError(f"{place}: a score of {score:.30} is above {MOST}: use grades from 0 to {MOST}")
        if query not in queries:
            raise UsageError(f"{place}: query {query!r:.100} is not among the queries: add it, or drop the line")
        if text not in texts:
            raise UsageError(f"{place}: text {text!r:.100} is not in the corpus: add it, or drop the line")
        if text in grades.setdefault(query, {}):
            raise UsageError(f"{place}: text {text!r:.100} is judged twice for query {query!r:.100}: drop one line")
        grades[query][text] = int(score)
    answered = {query: each for query, each in grades.items() if any(grade > 0 for grade in each.values())}
    if not answered:
        raise UsageError(f"{file}: no query has a text with a score above 0: nothing can be judged by it")
    return answered


def _lines(file: Path) -> Iterator[tuple[str, _Line]]:
    decode = msgspec.json.Decoder(_Line).decode
    number = 0
    for number, line in enumerate(_read(file), 1):
        place = f"{file}:{number}"
        try:
            yield place, decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError(f'{place}: expected {{"_id": ..., "text": ...}}: {error}') from None
    if not number:
        raise UsageError(f"{file} is empty: expected a JSON object a line")


def _read(file: Path) -> Iterator[bytes]:
    try:
        with atomic.opened(file) as handle:
            for line in handle:
                yield line.rstrip(b"\r\n")
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror or error}") from error


def _decoded(place: str, line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{place}: not text in UTF-8 ({error.reason}): replace it by UTF-8") from None


def _once(place: str, id: str, seen: Members[str]) -> None:
    if id in seen:
        raise UsageError(f"{place}: _id {id!r:.100} was there before: drop one of the lines")
