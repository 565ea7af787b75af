"""The search screen as a judge has it: of each question the chunks that any way found, in an order that does not say
which, and keys that say whether they answer. What is said is on disk before the next key.
"""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual.screen import Screen

from interlock.console.actions import JUDGE, bindings_of
from interlock.console.look import Look
from interlock.console.screens.search import SLOW, SearchScreen, Wanted
from interlock.console.text.answer_rows import StoreShown
from interlock.engine.errors import InterlockError
from interlock.engine.evaluation.pooling import GRADES, PooledQuestion
from interlock.engine.evaluation.report import FEWEST
from interlock.engine.record.words import drawn, several
from interlock.engine.search.ask import Ask
from interlock.widgets.text import fit, row

if TYPE_CHECKING:
    from interlock.engine.flows.search import Answers, Judging


class JudgingScreen(SearchScreen, inherit_bindings=False):
    """Questions to one store, and what a judge says of their candidates."""

    ACTIONS, TITLE = JUDGE, "JUDGE"
    BINDINGS: ClassVar = [*Screen.BINDINGS, *bindings_of(JUDGE)]
    DEFAULT_CSS = """
    JudgingScreen {
        & > #parts { layout: vertical; }
        & #hits { width: 100%; height: 2fr; }
        & #detail { display: block; width: 100%; height: 3fr; }
        &.-wide > #parts { layout: horizontal; }
        &.-wide #hits { width: 2fr; height: 100%; }
        &.-wide #detail { width: 3fr; height: 100%; }
    }
    """

    def __init__(self, judging: "Judging", shown: StoreShown, look: Look) -> None:
        super().__init__(judging, shown, Ask(), look)
        self._sheet = judging.sheet
        self._question.value = text = self._undone() or next((each.text for each in self._sheet.questions.values()), "")
        self._wanted = Wanted(text, self._ask, reranked=False)

    @property
    def _asked(self) -> PooledQuestion | None:
        """The question whose candidates are shown."""
        return self._sheet.asked(self._answer.text) if self._answer else None

    def _undone(self) -> str:
        """The first question that is not done; empty where all are."""
        return next((each.text for each in self._sheet.questions.values() if self._sheet.left(each)), "")

    def _open(self, text: str) -> None:
        self._question.value = text
        self._want(Wanted(text, self._ask, reranked=False))

    def _take(self, wanted: Wanted, reply: "Answers | None") -> None:
        super()._take(wanted, reply)
        self._draw()
        self._to_next()

    def _to_next(self) -> bool:
        """Go to the next candidate that nobody has judged; whether there is one."""
        hits, here = (self._answer.hits if self._answer else ()), self._list.place
        places = [*range(here, len(hits)), *range(here)]
        place = next((place for place in places if getattr(hits[place], "grade", None) is None), None)
        if place is not None:
            self._list.choose(place)
        return place is not None

    def action_grade(self, what: str) -> None:
        """Say how well the chunk under the cursor answers, and go to the next one."""
        question, answer, here = self._asked, self._answer, self._list.place
        if not (question and answer and answer.hits):
            self.say("nothing to judge: type a question")
            return
        try:
            self._sheet.judge(question.id, question.candidates[here], GRADES[what])
        except InterlockError as error:
            self.say(str(error))
            return
        payloads = {hit.id: hit.payload for hit in answer.hits}
        self._answer = replace(answer, hits=self._sheet.shown(question, payloads))
        self._draw()
        if self._to_next():
            return
        if text := self._undone():
            self._open(text)
        else:
            self.say("every question is judged: / types another, q leaves and says what the ways differ by")

    def action_turn(self, where: str) -> None:
        """Show the next question, or the one before."""
        texts, here = [each.text for each in self._sheet.questions.values()], self._asked
        if texts:
            at = texts.index(here.text) + (1 if where == "on" else -1) if here else 0
            self._open(texts[at % len(texts)])

    def _draw_status(self) -> None:
        under_way, width, sheet, question = self._under_way, self.size.width, self._sheet, self._asked
        took, chunks = time.monotonic() - self._began, len(question.points) if question else 0
        done, without = len(sheet.answered), len(sheet.done) - len(sheet.answered)
        first = "no question yet: type one, as those who search ask it"
        if under_way and took > SLOW:
            first = f"asking every way... {took:.1f} s"
        elif question:
            place = f"question {[*sheet.questions].index(question.id) + 1} of {len(sheet.questions)}"
            first = f"{place}: {chunks - sheet.left(question)} of {several(chunks, 'chunk')} judged"
        lacking = f"at least {FEWEST - done} more until two ways can be told apart"
        then = "leave to see which ways are told apart"
        none = f" and {without:,} without an answer" if without else ""
        second = f"{several(done, 'question')} done{none}, {lacking if done < FEWEST else then}"
        styles = ((first, "bold"), (second, "dim"))
        self._status.show([row((f" {fit(drawn(text), max(1, width - 1))}", style)) for text, style in styles])
