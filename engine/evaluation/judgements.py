"""Judged collections in the field's files: BEIR's directory (`corpus.jsonl`, `queries.jsonl`, `qrels/test.tsv`), TREC's
judgements and ranked lists, and `ir_datasets` by name.

A line that cannot be used is refused with its file and number: half a judgement would make every figure after it wrong.
"""

import math
import re
from collections import Counter
from collections.abc import Collection as Members
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from interlock.engine.errors import UnavailableError, UsageError, meant
from interlock.engine.record.words import parse_number, several
from interlock.engine.search.questions import LISTED, decoded, lines_of, of_json, read_questions

Missing = Literal["error", "drop", "count"]
"""What becomes of judgements of texts and queries that are not there; a text counts as not found."""
Grades = Mapping[str, Mapping[str, int]]
"""How well each judged text answers, by query and text; 0 and less: not at all."""
Found = Mapping[str, float]
"""The hits of one query: a score by id, best first."""
Lists = Sequence[Found]
MOST = 1000
"""The highest grade: what counts them takes memory for each."""
ENDINGS = (".tsv", ".txt", ".qrels")
"""How the name of a file of judgements in `qrels/` may end; `.gz` may follow."""
NAMED = "irds:"
"""What stands before the name of a collection of ir_datasets."""
BEIR = "query-id, corpus-id and a whole score with tabs between"
TREC = "query, iteration, text and a whole grade with blanks between"
RUN = "query, Q0, text, rank, score and tag with blanks between"
ALIKE = 0.9
"""How many of a query's words the text of its own id has, where it is the query itself."""


@dataclass(frozen=True)
class Judgements:
    """The grades of the queries that have a word and an answer, and what is to be told of the others."""

    grades: Grades
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Judged:
    """Texts and queries by id, and the grades of the queries that are measured (`test`) and of those that choose
    weights (`train`, if any); each of them has an answer.

    `left_out` are the texts without a word, which nothing finds, as `file:line`. Queries without one are in no split.
    """

    texts: Mapping[str, str]
    queries: Mapping[str, str]
    splits: Mapping[str, Grades]
    left_out: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def unasked(self) -> list[str]:
        """The queries without a word."""
        return [query for query, text in self.queries.items() if not text.strip()]

    @cached_property
    def themselves(self) -> list[str]:
        """The queries that are texts of the corpus, by their ids and words, and no answers to themselves."""
        found = []
        for query, grades in (each for split in self.splits.values() for each in split.items()):
            asked, own = (set(said.get(query, "").lower().split()) for said in (self.queries, self.texts))
            if own and grades.get(query, 0) <= 0 and len(asked & own) >= ALIKE * len(asked):
                found.append(query)
        return found


class _Text(msgspec.Struct):
    id: str = msgspec.field(name="_id")
    text: str
    title: str | None = None


def read_judged(
    directory: Path,
    split: str | None = None,
    queries: Path | None = None,
    qrels: Path | None = None,
    *,
    missing: Missing = "error",
) -> Judged:
    """Read a judged collection: of its splits `split` is measured (None: `test`, or the only one), unless `queries` and
    `qrels` are read instead; `missing` says what becomes of judgements of what is not there. Raises UsageError for what
    cannot be used, with its file and line."""
    texts, left_out = dict[str, str](), list[str]()
    files, notes = ({"test": qrels}, []) if qrels else _splits(directory / "qrels", split)
    for place, line in _texts(directory / "corpus.jsonl"):
        texts[line.id] = f"{line.title or ''} {line.text}".strip()
        if not texts[line.id]:
            left_out.append(place)
    asked = read_queries(queries or directory / "queries.jsonl")
    found = {name: read_grades(file, asked, texts.keys(), missing=missing) for name, file in files.items()}
    splits = {name: each.grades for name, each in found.items()}
    if both := sorted(splits["test"].keys() & splits.get("train", {}).keys()):
        raise UsageError(
            f"{files['train']}: query {both[0]!r:.100} is in {files['test'].name} too, and weights must not be chosen "
            "by what they are measured on: drop it from one"
        )
    notes += [note for each in found.values() for note in each.notes]
    return Judged({id: text for id, text in texts.items() if text}, asked, splits, left_out, notes)


def _splits(directory: Path, wanted: str | None) -> tuple[dict[str, Path], list[str]]:
    """The files of the split that is measured and of the one that chooses weights, and what is to be told of them."""
    found = dict[str, Path]()
    for file in sorted(directory.glob("[!.]*")):
        name, dot, ending = file.name.removesuffix(".gz").rpartition(".")
        if dot + ending not in ENDINGS:
            continue
        if name in found:
            raise UsageError(f"{file} and {found[name].name} are both of the split {name}: remove one of them")
        found[name] = file
    if not found:
        raise UsageError(f"{directory} has no judgements: put a test.tsv there, or name their file with --qrels")
    chosen = wanted or ("test" if "test" in found or len(found) > 1 else next(iter(found)))
    if chosen not in found:
        lacks = f"no split {wanted!r}{meant(wanted, found)}" if wanted else "several splits and none is test"
        raise UsageError(f"{directory} has {lacks}: choose one with --split ({', '.join(found)})")
    files = {"test": found[chosen], **({"train": found["train"]} if "train" in found and chosen != "train" else {})}
    return files, [f"judged by the split {chosen}"] if chosen != "test" else []


def read_named(name: str, *, missing: Missing = "error") -> Judged:
    """Read the collection that ir_datasets knows by this name, which it fetches where it has not yet. Raises UsageError
    for one that cannot be judged by, UnavailableError where it cannot be had."""
    try:
        import ir_datasets
    except ModuleNotFoundError:
        raise UnavailableError("ir_datasets is not installed: install it with pip install ir-datasets") from None
    try:
        data = ir_datasets.load(name)
    except KeyError:
        raise UsageError(f"ir_datasets has no {name!r:.100}: choose a name of its catalogue") from None
    if lacks := [part for part in ("docs", "queries", "qrels") if not getattr(data, f"has_{part}")()]:
        raise UsageError(f"{name} of ir_datasets has no {lacks[0]}: name a part of it that has, as in beir/fiqa/test")
    try:
        texts = {each.doc_id: each.default_text().strip() for each in data.docs_iter()}
        queries = {each.query_id: each.default_text() for each in data.queries_iter()}
        rows = [(each.query_id, each.doc_id, str(each.relevance)) for each in data.qrels_iter()]
    except (OSError, RuntimeError) as error:
        raise UnavailableError(f"ir_datasets cannot read {name}: {error}: fetch it where there is a network") from error
    places = ((f"{name}, judgement {number}", *row) for number, row in enumerate(rows, 1))
    found = _graded(places, name, queries, texts.keys(), missing=missing)
    left_out = [id for id, text in texts.items() if not text]
    return Judged(
        {id: text for id, text in texts.items() if text}, queries, {"test": found.grades}, left_out, found.notes
    )


def read_queries(file: Path) -> dict[str, str]:
    """Read queries by id, those without a word too: a JSON object with `_id` and `text` a line, or the `.tsv` and
    `.txt` that a search takes. Raises UsageError for a line that is none."""
    if file.suffix in LISTED[1:]:
        return {each.id: each.text for each in read_questions(file, empty=True)}
    return {line.id: line.text for _, line in _texts(file)}


def read_grades(
    file: Path,
    queries: Mapping[str, str] | None,
    texts: Members[str] | None,
    *,
    missing: Missing = "error",
    known_by: str = "",
) -> Judgements:
    """Read judgements: BEIR's `query-id<tab>corpus-id<tab>score` a line under a line of heads, or TREC's `query
    iteration text grade` with any blanks; `.gz` is read as it is. Keep the queries that have a word and an answer.

    Raises UsageError for a line that is none, for a query or a text that is not there (unless judgements of those are
    dropped, or texts counted as not found, or these are None and nobody knows), for a text that is judged twice, and
    where no query has an answer. `known_by` says of the corpus how its texts are known, where that is to be told.
    """
    return _graded(judged_lines(file), str(file), queries, texts, missing=missing, known_by=known_by)


def judged_lines(file: Path) -> Iterator[tuple[str, str, str, str]]:
    """The lines of a file of judgements: place, query, text and grade. The first line says of which form it is."""
    form = ""
    for number, line in enumerate(lines_of(file), 1):
        place = f"{file}:{number}"
        whole = decoded(place, line)
        tabbed, every = whole.split("\t"), whole.split()
        if number == 1 and tabbed[-1:] == ["score"]:
            form = BEIR
            continue
        if not every:  # an empty line, as at an end, is none
            continue
        form = form or (BEIR if len(tabbed) == 3 else TREC if len(every) == 4 else f"{BEIR}, or {TREC}")
        cells = every if form == TREC else tabbed
        if len(cells) != (4 if form == TREC else 3):
            raise UsageError(f"{place}: expected {form}, got {several(len(cells), 'column')}: fix it")
        yield place, cells[0], cells[-2], cells[-1]


def _graded(
    rows: Iterable[tuple[str, str, str, str]],
    source: str,
    queries: Mapping[str, str] | None,
    texts: Members[str] | None,
    *,
    missing: Missing,
    known_by: str = "",
) -> Judgements:
    grades, absent = dict[str, dict[str, int]](), Counter[str]()
    for place, query, text, score in rows:
        found = re.fullmatch("(-?)0*([0-9]+)", score)
        if not found:
            raise UsageError(f"{place}: expected a whole number for a grade, got {score!r:.30}: fix it")
        grade = int(found[1] + found[2][:9])
        if abs(grade) > MOST:
            raise UsageError(f"{place}: a score of {score:.30} is above {MOST}: use grades from 0 to {MOST}")
        lacks = "query" if queries is not None and query not in queries else ""
        lacks = lacks or ("text" if texts is not None and text not in texts else "")
        if lacks and missing == "error":
            where = f"query {query!r:.100} is not among the queries" if lacks == "query" else ""
            where = where or f"text {text!r:.100} is not in the corpus{known_by}"
            raise UsageError(f"{place}: {where}: add it, drop the line, or pass --missing drop or count")
        absent[lacks] += 1
        if lacks and (missing, lacks) != ("count", "text"):
            continue
        if text in grades.setdefault(query, {}):
            raise UsageError(f"{place}: text {text!r:.100} is judged twice for query {query!r:.100}: drop one line")
        grades[query][text] = grade
    if not absent:
        raise UsageError(f"{source} is empty: put a judgement on each line")
    asked = {query: each for query, each in grades.items() if queries is None or queries[query].strip()}
    answered = {query: each for query, each in asked.items() if any(grade > 0 for grade in each.values())}
    if not answered:
        raise UsageError(f"{source}: no query has a text with a score above 0: nothing can be judged by it")
    notes = [
        f"{several(absent[what], 'judgement')} dropped of {where} (--missing {missing}): measures may be higher for it"
        for what, where in (("text", f"texts that are not in the corpus{known_by}"), ("query", "unknown queries"))
        if absent[what] and (missing, what) != ("count", "text")
    ]
    if missing == "count" and absent["text"]:
        what = f"texts that are not in the corpus{known_by}"
        notes.append(f"{several(absent['text'], 'judgement')} of {what}: these are not found")
    if unanswered := len(asked) - len(answered):
        notes.append(f"{several(unanswered, 'judged query', 'judged queries')} without an answer skipped")
    return Judgements(answered, notes)


def read_run(file: Path) -> dict[str, Found]:
    """Read a TREC run, `query Q0 text rank score tag` a line: hits by query in the order that trec_eval takes them,
    which is by score, in float32, of equal ones by id from the last, whatever their ranks say. Raises UsageError for
    a line that is none and a text that comes twice."""
    hits = dict[str, dict[str, float]]()
    for number, line in enumerate(lines_of(file), 1):
        place = f"{file}:{number}"
        cells = decoded(place, line).split()
        if not cells:
            continue
        if len(cells) != 6:
            raise UsageError(f"{place}: expected {RUN}, got {several(len(cells), 'column')}: fix it")
        query, text = cells[0], cells[2]
        try:
            with np.errstate(over="ignore"):
                score = float(np.float32(parse_number(cells[4])))
        except ValueError:
            score = math.nan
        if math.isnan(score):
            raise UsageError(f"{place}: expected a number for a score, got {cells[4]!r:.30}: fix it")
        if text in hits.setdefault(query, {}):
            raise UsageError(f"{place}: text {text!r:.100} is found twice for query {query!r:.100}: drop one line")
        hits[query][text] = score
    if not hits:
        raise UsageError(f"{file} is empty: put a hit on each line")
    return {
        query: dict(sorted(each.items(), key=lambda hit: (hit[1], hit[0].encode()), reverse=True))
        for query, each in hits.items()
    }


def _texts(file: Path) -> Iterator[tuple[str, _Text]]:
    """The lines of a file of texts by id, each with its place."""
    seen: set[str] = set()
    for number, line in enumerate(lines_of(file), 1):
        place = f"{file}:{number}"
        text = of_json(place, line, _Text, '{"_id": ..., "text": ...}')
        if text.id in seen:
            raise UsageError(f"{place}: _id {text.id!r:.100} was there before: drop one of the lines")
        seen.add(text.id)
        yield place, text
    if not seen:
        raise UsageError(f"{file} is empty: expected a JSON object a line")
