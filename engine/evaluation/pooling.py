"""Questions to a corpus of one's own, the candidates that all ways to search have for each, and what a person says of
these: a directory of three kinds of files.

`questions.jsonl` and TREC's judgements in `qrels.txt` are written whole after every question and every judgement, so
that a kill loses neither; `runs/` has each way's lists. No model judges.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count
from pathlib import Path

import msgspec
import numpy as np

from interlock.engine.errors import UsageError
from interlock.engine.evaluation.comparing import RunComparison, compared
from interlock.engine.evaluation.judgements import Grades, judged_lines
from interlock.engine.evaluation.report import FEWEST, MAIN, SPREAD, measures_of, queries_to_tell
from interlock.engine.evaluation.ways import write_runs
from interlock.engine.record import atomic
from interlock.engine.search.ask import Ask, comparison_of
from interlock.engine.search.combine import Hybrid
from interlock.engine.search.hits import Answer, Candidate
from interlock.engine.search.questions import Question, lines_of, of_json
from interlock.engine.vectors.fusion import Fusion
from interlock.engine.vectors.manifest import Manifest

QUESTIONS, QRELS, RUNS = "questions.jsonl", "qrels.txt", "runs"
DEPTH = 10
"""How many hits of each way are candidates: those that nDCG@10 looks at."""
GRADES = {"relevant": 2, "partly": 1, "not": 0, "skip": -1}
"""What a judge says of a candidate. A grade below 0 answers nothing, and is how TREC keeps what nobody could judge."""
DEFAULT = "default"
"""The way that a search goes where nobody says another."""


class PooledQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A question with what each way found for it, scores by name of chunk, best first; and the point of each chunk."""

    id: str = msgspec.field(name="_id")
    text: str
    collection: str
    ways: dict[str, dict[str, float]]
    points: dict[str, str]
    texts: dict[str, str] = {}  # digests: a judgement is of a text, whatever has its name later
    asked_of: str = ""

    @property
    def candidates(self) -> list[str]:
        """The chunks that are to be judged, in an order that tells nothing of who found them."""
        return sorted(self.points, key=lambda chunk: sha256(f"{self.id}\0{chunk}".encode()).digest())


class Sheet:
    """The questions and judgements of a directory."""

    def __init__(self, directory: Path, collection: str, depth: int = DEPTH) -> None:
        """Read what is there; new questions get the first `depth` hits of each way. Raises UsageError for a directory
        that has something else, or questions to another collection, and for a line that is none."""
        measures_of([MAIN], None)  # which needs a library: said before anybody judges
        self.directory, self.collection, self.depth = directory, collection, depth
        self.questions = dict[str, PooledQuestion]()
        self.grades = dict[str, dict[str, int]]()
        file, qrels = directory / QUESTIONS, directory / QRELS
        if not file.exists():
            if strange := next((each.name for each in directory.glob("[!.]*")), ""):
                raise UsageError(f"{directory} has {strange:.100} and no {QUESTIONS}: name another directory")
            return
        for number, line in enumerate(lines_of(file), 1):
            question = of_json(f"{file}:{number}", line, PooledQuestion, "what was written there")
            self.questions[question.id] = question
            if question.collection != collection:
                raise UsageError(
                    f"{directory} has questions to {question.collection}, not to {collection}: name its store, or "
                    "another directory"
                )
        for place, id, chunk, said in judged_lines(qrels) if qrels.exists() else ():
            if id not in self.questions or not said.removeprefix("-").isdecimal():
                raise UsageError(f"{place}: no grade of a question of {QUESTIONS}: fix the line, or drop it")
            self.grades.setdefault(id, {})[chunk] = int(said)

    def ways(self, manifest: Manifest, stored: Collection[str]) -> dict[str, Ask]:
        """Name every way that a store with these dense vectors can be searched, the default first."""
        default = Ask(self.depth)
        usual, ways = comparison_of(manifest, default), {DEFAULT: default}
        if usual.several:
            ways |= {how.value: replace(default, hybrid=how) for how in (Hybrid.RRF, Hybrid.DBSF)}
            ways |= {"dense": replace(default, hybrid=Hybrid.OFF)} if len(usual.weights) > 1 else {}
        alone = [*usual.weights, *usual.sparse] if usual.several or len(usual.weights) > 1 else []
        mean = manifest.fusion is Fusion.MEAN  # which has none of a model by itself
        own = [name for name in alone if not mean or name in stored or name in usual.sparse]
        return ways | {name: replace(default, only=name) for name in own}

    def add(
        self,
        questions: Sequence[Question],
        found: Mapping[str, Sequence[Answer]],
        *,
        asked_of: str = "",
        by_point: bool = False,
    ) -> None:
        """Keep questions with what each way answered to them, chunks by their chunk_id or `by_point`, as `eval` knows
        them where two chunks of a collection share an id; what was judged of a text that is another now is dropped.
        Raises UsageError for ids that TREC's files do not hold."""
        made, kept = dict(self.questions), dict(self.grades)
        for at, each in enumerate(questions):
            ways, points, texts = dict[str, dict[str, float]](), dict[str, str](), dict[str, str]()
            for way, answers in found.items():
                hits = [(hit.id if by_point else str(hit.payload.get("chunk_id")), hit) for hit in answers[at].hits]
                ways[way] = {chunk: hit.score for chunk, hit in hits}
                points |= {chunk: hit.id for chunk, hit in hits}
                texts |= {chunk: sha256(str(hit.payload.get("text")).encode()).hexdigest()[:16] for chunk, hit in hits}
            _check_blanks(points)
            before = made[each.id].texts if each.id in made else {}
            if own := kept.get(each.id):
                changed = {chunk for chunk, now in texts.items() if before.get(chunk, now) != now}
                kept[each.id] = {chunk: grade for chunk, grade in own.items() if chunk not in changed}
            made[each.id] = PooledQuestion(
                id=each.id,
                text=each.text,
                collection=self.collection,
                ways=ways,
                points=points,
                texts=texts,
                asked_of=asked_of,
            )
        if kept != self.grades:
            self._keep(kept)  # first: no kill leaves a judgement to a text that it is not of
        lines = [msgspec.json.encode(each) + b"\n" for each in made.values()]
        atomic.write_bytes(self.directory / QUESTIONS, b"".join(lines))
        self.questions = made

    def judge(self, question: str, chunk: str, grade: int) -> None:
        """Keep what a judge says of a candidate, in the place of what was said before."""
        self._keep({**self.grades, question: {**self.grades.get(question, {}), chunk: grade}})

    def _keep(self, grades: dict[str, dict[str, int]]) -> None:
        lines = [f"{id} 0 {chunk} {said}\n" for id, own in grades.items() for chunk, said in own.items()]
        atomic.write_bytes(self.directory / QRELS, "".join(lines).encode())
        self.grades = grades

    def outdated(self, asked_of: str) -> list[Question]:
        """The questions that another store, or the same one in other ways, was asked."""
        return [Question(each.id, each.text) for each in self.questions.values() if each.asked_of != asked_of]

    def new(self, questions: Sequence[Question], *, numbered: bool = False) -> list[Question]:
        """Those that are not there yet; the `numbered` ones have the number of their line for an id, and get another
        where that is taken. Raises UsageError for an id that TREC's files do not hold, for words under two ids, and an
        id with other words."""
        _check_blanks(each.id for each in questions)
        ids = {each.text: id for id, each in self.questions.items()}
        if numbered:
            free = (id for at in count(1) if (id := f"q{at:02}") not in self.questions)
            named = {each: each.id if each.id not in self.questions else next(free) for each in questions}
            questions = [Question(ids.get(each.text, named[each]), each.text) for each in questions]
        for each in questions:
            there = self.questions.get(each.id)
            if ids.setdefault(each.text, each.id) != each.id or (there and there.text != each.text):
                raise UsageError(
                    f"question {each.id!r:.60} is there under another id, or its id with other words: drop one of them"
                )
        return [each for each in questions if each.id not in self.questions]

    def asked(self, text: str) -> PooledQuestion | None:
        """The question of these words; None where it is new."""
        return next((each for each in self.questions.values() if each.text == text), None)

    def new_id(self) -> str:
        """An id that no question has."""
        return next(id for at in count(len(self.questions) + 1) if (id := f"q{at:02}") not in self.questions)

    def shown(self, question: PooledQuestion, payloads: Mapping[str, Mapping[str, object]]) -> list[Candidate]:
        """The candidates of a question with the payloads of their points, each with what was said of it."""
        said, points = self.grades.get(question.id, {}), question.points
        return [Candidate(points[id], 0.0, payloads[points[id]], grade=said.get(id)) for id in question.candidates]

    def left(self, question: PooledQuestion) -> int:
        """How many candidates of a question nobody has judged."""
        return len(question.points.keys() - self.grades.get(question.id, {}).keys())

    @property
    def done(self) -> list[PooledQuestion]:
        """The questions of which every candidate is judged."""
        return [each for each in self.questions.values() if not self.left(each)]

    @property
    def answered(self) -> list[PooledQuestion]:
        """Those of them that have an answer, by which ways are compared."""
        return [each for each in self.done if any(grade > 0 for grade in self.grades.get(each.id, {}).values())]

    def comparison(self) -> RunComparison | None:
        """Compare each way with the default one by the questions that are done and have an answer; None where there is
        none. Their lists are written as runs of TREC."""
        if not (done := {each.id: each for each in self.answered}):
            return None
        names = list(dict.fromkeys(name for each in done.values() for name in each.ways))
        runs = {name: {id: each.ways.get(name, {}) for id, each in done.items()} for name in names}
        for file in (self.directory / RUNS).glob("*.run"):  # one may be of a way that is no more
            file.unlink(missing_ok=True)
        write_runs(self.directory / RUNS, {name: [*own.values()] for name, own in runs.items()}, list(done))
        grades: Grades = {id: self.grades[id] for id in done}
        answered = {name: own for name, own in runs.items() if any(own.values())}
        return compared(answered, grades, [MAIN], {id: each.text for id, each in done.items()}, [])


def _check_blanks(ids: Iterable[str]) -> None:
    if blank := next((id for id in ids if len(id.split()) != 1), None):
        raise UsageError(f"TREC's judgements hold no ids with blanks, as in {blank!r:.60}: give ids without")


@dataclass(frozen=True)
class Needed:
    """How many judged questions more tell a way from the default one, if they go on to differ by this much: 0 where
    they are told apart, None where a thousand are too few. Some are told apart only if `alone`, as one that nobody
    chose among others."""

    way: str
    difference: float
    more: int | None
    alone: bool


def needed(found: RunComparison) -> Iterator[Needed]:
    """Say of each way how many questions are lacking; of fewer than `FEWEST` the spread is the usual one, or more."""
    first, *others = found.runs
    for own, told in zip(others, found.differences, strict=True):
        apart, few = np.subtract(own.values[MAIN], first.values[MAIN]), found.queries < FEWEST
        spread = max(float(apart.std(ddof=1)) if found.queries > 1 else 0.0, SPREAD * few)
        whole = queries_to_tell(told.difference.mean, spread, len(others))
        more = None if whole is None else max(1, whole - found.queries)
        alone = found.queries >= FEWEST and told.difference.low * told.difference.high > 0
        yield Needed(own.name, told.difference.mean, 0 if told.difference.significant else more, alone)
