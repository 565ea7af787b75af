"""An answer of the demo's store that is told again: what a search once found, for pictures and tests of its screen."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from interlock.console.text.answer_rows import StoreShown
from interlock.engine.errors import InterlockError
from interlock.engine.flows.search import Answers
from interlock.engine.search.ask import Ask
from interlock.engine.search.hits import Answer, Hit, StageScore

FILE = Path(__file__).parent / "recorded" / "search.json"
SHOWN = StoreShown("python-stdlib", 321, {"all-minilm-l6": 0.5, "all-mpnet-base-v2": 0.5}, ["bm25"], sparse_share=0.2)


def recorded() -> Answer:
    """Read the answer."""
    said = json.loads(FILE.read_text())
    hits = [
        Hit(
            each["id"],
            each["score"],
            each["payload"],
            stages={name: StageScore(*of) for name, of in each["stages"].items()},
        )
        for each in said["hits"]
    ]
    return Answer(said["text"], hits, said["shares"], said["seconds"])


@dataclass
class RecordedRetriever:
    """Gives the recorded answer to any question, and remembers what it was asked."""

    asked: list[tuple[str, Ask, bool]] = field(default_factory=list)
    resident: Sequence[str] = ()
    failure: InterlockError | None = None
    """What the next question is refused with."""

    def load(self, ask: Ask) -> None:
        self.resident = [*SHOWN.dense]

    def check(self, ask: Ask) -> None:
        """Refuse nothing."""

    def answer(self, texts: Sequence[str], ask: Ask, *, reranked: bool) -> Answers:
        self.asked.append((texts[0], ask, reranked))
        if failure := self.failure:
            self.failure = None
            raise failure
        return Answers([replace(recorded(), text=texts[0])])
