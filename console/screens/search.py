"""The search screen: a line to ask in, the chunks that were found, and how each stage found them.

A question is answered in a thread; one that is asked meanwhile takes its place, and the answer to the older one is
dropped. The store and its models are the retriever's, and nothing here computes.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Container, Horizontal
from textual.widgets import Input, Label

from interlock.console.actions import SEARCH, bindings_of, line_key, named
from interlock.console.look import Look
from interlock.console.screens.base import Keyed, aside, copied
from interlock.console.screens.hits import Filters, Hits, HitScreen, QuestionLine, read_conditions
from interlock.console.screens.layout import LEAST_HEIGHT, LEAST_WIDTH, WIDE, too_small
from interlock.console.text import answer_rows
from interlock.console.text.answer_rows import StoreShown
from interlock.console.text.answer_text import cut_text
from interlock.engine.errors import InterlockError
from interlock.engine.record.words import drawn, several
from interlock.engine.search.ask import Ask
from interlock.engine.search.conditions import Condition
from interlock.engine.search.hits import Answer, Hit
from interlock.widgets.choices import Choices
from interlock.widgets.pane import Bar, Key, Note, Pane
from interlock.widgets.text import Span, fit, fitted, plain, row, width_of, wrapped

if TYPE_CHECKING:
    from interlock.engine.flows.search import Answers, SerialRetriever

TICK = 0.25
"""Seconds between two looks at how long an answer takes."""
SLOW = 0.3
"""Seconds after which it is said that a question is being answered."""
NOTE_LINES = 5


class Wanted(NamedTuple):
    """What is to be answered; without a text, models are loaded and nothing is answered."""

    text: str
    ask: Ask
    reranked: bool


class SearchScreen(Keyed):
    """Questions to one store."""

    ACTIONS, TITLE = SEARCH, "SEARCH"
    BINDINGS: ClassVar = bindings_of(SEARCH)
    HORIZONTAL_BREAKPOINTS = [(0, "-thin"), (LEAST_WIDTH, "-narrow"), (WIDE, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (LEAST_HEIGHT, "-high")]  # noqa: RUF012
    DEFAULT_CSS = """
    SearchScreen {
        & > #line { height: 1; width: 100%; background: $panel; }
        & > #line Label { color: $accent; text-style: bold; padding: 0 1; }
        & > #line Input { width: 1fr; background: $panel; }
        & > #parts { height: 1fr; layout: horizontal; }
        & #hits { width: 3fr; height: 100%; max-height: 100%; }
        & Pane > .pane--hit { color: $warning; text-style: bold; }
        & #detail { display: none; width: 2fr; height: 100%; overflow-x: hidden; }
        &.-wide #detail { display: block; }
        &.-thin > #parts, &.-low > #parts { display: none; }
        & > #status { height: 2; }
    }
    """

    def __init__(self, retriever: "SerialRetriever", shown: StoreShown, ask: Ask, look: Look) -> None:
        super().__init__()
        self._retriever, self._shown, self._ask, self._look = retriever, shown, ask, look
        self._own = ask
        """How it was asked on the command line."""
        self._reranked = bool(shown.rerank)
        self._wanted: Wanted | None = Wanted("", ask, reranked=False)
        self._under_way: Wanted | None = None
        self._began = 0.0
        self._answer: Answer | None = None
        self._failure = self._notice = ""
        self._resident: Sequence[str] = ()
        self._question = QuestionLine()
        self._list, self._detail = Hits("Chunks", id="hits"), Pane("Chunk", id="detail")
        self._head, self._status, self._keys = (Bar(id=name) for name in ("head", "status", "keys"))
        self._note = Note(id="note")

    def compose(self) -> ComposeResult:
        yield self._head
        with Horizontal(id="line"):
            yield Label("❯")
            yield self._question
        with Container(id="parts"):
            yield from (self._list, self._detail)
        yield from (self._note, self._status, self._keys)

    def on_mount(self) -> None:
        self._question.focus()
        self.set_interval(TICK, self._draw_status)
        self._answer_on()

    # What is asked

    @on(Input.Changed, "#question")
    def _typed(self) -> None:
        if self._notice:
            self.say("")

    @on(Input.Submitted, "#question")
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        if not event.value.strip():
            self.say("the question is empty: type what to look for")
            return
        self._ask_anew(event.value)

    def _ask_anew(self, text: str = "") -> None:
        """Ask this, or what was asked last, as things are set now."""
        last = (self._wanted or self._under_way or Wanted("", self._ask, reranked=False)).text
        text = text or last or (self._answer.text if self._answer else "")
        if text:
            self._want(Wanted(text, self._ask, self._reranked))
        self._draw_status()

    def _want(self, wanted: Wanted) -> None:
        """Have it answered; what waits for an answer, and what is being answered, is not wanted any more."""
        self._wanted = wanted
        if self._under_way is None:
            self._answer_on()

    @work(group="answers", exit_on_error=False)
    async def _answer_on(self) -> None:
        """Answer what is wanted until nothing is."""
        while wanted := self._wanted:
            self._wanted, self._under_way, self._began = None, wanted, time.monotonic()
            try:
                reply, failure = await aside(partial(self._answered, wanted)), ""
            except InterlockError as error:
                reply, failure = None, str(error)
            self._under_way = None
            if not self._wanted:
                self._failure = failure
                self._take(wanted, reply)
            self._resident = tuple(self._retriever.resident)
        self._draw()

    def _answered(self, wanted: Wanted) -> "Answers | None":
        if wanted.text:
            return self._retriever.answer([wanted.text], wanted.ask, reranked=wanted.reranked)
        self._retriever.load(wanted.ask)
        return None

    def _take(self, wanted: Wanted, reply: "Answers | None") -> None:
        """Show an answer; who has typed no further goes on among the chunks."""
        if reply is None:
            return
        (self._answer,) = reply.answers
        self._list.show([])  # so that the first one is chosen
        if self._answer.cut:
            self._failure = cut_text([self._answer.cut], 1)
        if reply.failure:
            self._failure = f"not reranked: {reply.failure}"
        if self._answer.hits and self._question.has_focus and self._question.value == wanted.text:
            self._list.focus()

    # What is shown

    @property
    def _hit(self) -> Hit | None:
        """The chunk under the cursor."""
        hits = self._answer.hits if self._answer else ()
        return hits[self._list.place] if hits else None

    def say(self, text: str) -> None:
        """Write a few lines for the operator, until the next key."""
        self._notice = text
        self._draw_note()

    def on_key(self, event: events.Key) -> None:
        if self._notice:
            self.say("")
        if not event.is_printable or not event.character:
            return
        if self.focused is self._question:  # typed in one burst behind the key that went there
            event.stop()
            self._question.take(event.character)
        elif bound := self.active_bindings.get(event.key):
            if bound.binding.action == "ask":  # at once: what is typed next is not to be taken for keys
                event.stop()
                self.action_ask()
        else:  # what is no key begins another question
            event.stop()
            self.set_focus(self._question)
            self._question.value = ""
            self._question.take(event.character)

    def on_paste(self, event: events.Paste) -> None:
        """Take what was pasted beside the line."""
        event.stop()
        self.set_focus(self._question)
        self._question.value = " ".join(event.text.split())
        self._question.action_end()

    @on(events.DescendantFocus)
    @on(events.DescendantBlur)
    def _moved(self) -> None:
        self._draw_keys()

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        told = answer_rows.head(self._shown, wide=self.size.width >= WIDE)
        words = Span(f" {self.TITLE} {drawn(self._shown.collection, 60)}  ", "title"), Span(told)
        self._head.show([fitted(words, self.size.width)])
        self._draw_hits()
        self._draw_detail()
        self._draw_note()
        self._draw_status()
        self._draw_keys()

    def _draw_hits(self) -> None:
        width, answer = self._list.inner_width, self._answer
        if width < 1:
            return
        filtered = f"{self.shown_key('filters')} changes the filters." if answer and self._ask.where else ""
        none = answer_rows.nothing(answer, self._shown, filtered)
        lines = [row(line) for text in none for line in wrapped(text, width - 2)]
        blocks = answer_rows.blocks(answer, width) if answer else []
        self._list.show(enumerate(blocks), none=["", *plain(lines)])
        asked = fit(drawn(" ".join(answer.text.split()), 500), max(10, width - 30)).rstrip() if answer else ""
        above = f"{several(len(answer.hits), 'chunk')} for {asked}" if answer else "Chunks"
        below = answer_rows.stages(self._hit) if self._hit else ""
        self._list.entitle(above, fit(below, max(1, width - 4)).rstrip())

    def _draw_detail(self) -> None:
        hit, width, answer = self._hit, self._detail.inner_width, self._answer
        shown = answer_rows.whole(hit, answer.text, width) if hit and answer else []
        name = fit(drawn(hit.payload.get("chunk_id")), max(1, width - 4)).rstrip() if hit else "Chunk"
        self._detail.entitle(above=name)
        self._detail.show(shown)
        self._detail.scroll_to(0, 0, animate=False)

    def _draw_note(self) -> None:
        self._note.tell(f"{self._failure}\n{self._notice}".strip(), NOTE_LINES)

    def _draw_status(self) -> None:
        under_way, width = self._under_way, self.size.width
        took = time.monotonic() - self._began
        first = answer_rows.found_in(self._answer, width - 1) if self._answer else "nothing asked yet"
        if under_way and (took > SLOW or not self._resident):
            wanted = answer_rows.loaded_for(under_way.ask, self._shown)
            missing = [name for name in wanted if name not in self._resident]
            what = f"loading {', '.join(missing)}" if missing else "searching"
            first = f"{what}... {took:.1f} s"
        rules = answer_rows.rules(self._ask, self._shown, reranked=self._reranked)
        told = "  ".join([*rules, ""])
        second = f"{told}{answer_rows.in_memory(self._resident, width - 1 - width_of(told))}"
        lines = [row((f" {fit(drawn(first), max(1, width - 1))}", "bold" if under_way else ""))]
        self._status.show([*lines, row((f" {fit(drawn(second), max(1, width - 1))}", "dim"))])

    def _draw_keys(self) -> None:
        width, typing = self.size.width, self._question.has_focus
        if typing:
            moves = [Key("up down", "Chunks")] if self._hit else []
            help_key = Key(line_key(named("help"), self._look.keys), "Help", action="help")
            back = Key(self.shown_key("back"), "Chunks" if self._hit else "Quit", action="back")
            shown = [Key("enter", "Search"), *moves, help_key, back]
        else:
            shown = [each for each in self.footer_keys() if each.action != "rerank" or self._shown.rerank]
        self._keys.offer([] if too_small(*self.size) else shown, width)

    # What an operator asks

    def action_move(self, where: str) -> None:
        """Move among the chunks; in the other pane, where that has the focus, scroll."""
        if self._detail.has_focus:
            self._detail.scroll_relative(y=1 if where == "down" else -1, animate=False)
            return
        self._list.move(where)

    @on(Choices.OptionHighlighted)
    def _chosen(self) -> None:
        self._draw_hits()
        self._draw_detail()

    def on_click(self, event: events.Click) -> None:
        """Open a chunk with a second click."""
        if event.chain == 2 and event.widget is self._list:
            self.action_open_hit()

    def action_open_hit(self) -> None:
        if self._hit and self._answer:
            self.app.push_screen(HitScreen(self._hit, self._answer.text, self._look))

    def action_ask(self) -> None:
        """Go to the line, with all of it selected: what is typed takes its place."""
        self.set_focus(self._question)
        self._question.select_all()

    def action_filters(self) -> None:
        def take(text: str | None) -> None:
            if text is not None:
                self._ask = replace(self._ask, where=read_conditions(text))
                self._ask_anew()

        def check(conditions: Sequence[Condition]) -> None:
            self._retriever.check(replace(self._ask, where=conditions))

        self.app.push_screen(Filters(" ".join(answer_rows.written(self._ask)), check, self.say), take)

    def action_hybrid(self) -> None:
        """Combine the lists in the next way."""
        self._ask_by(*answer_rows.combined_next(self._ask, self._shown, self.shown_key("only")))

    def action_only(self) -> None:
        """Ask the next model alone, and after the last one all."""
        self._ask_by(*answer_rows.alone_next(self._ask, self._own, self._shown))

    def _ask_by(self, ask: Ask, said: str) -> None:
        """Ask by these rules, where they are others."""
        self.say(said)
        if ask != self._ask:
            self._ask = ask
            self._ask_anew()

    def action_rerank(self) -> None:
        if not self._shown.rerank:
            self.say("no reranker was named: begin with --rerank MODEL")
            return
        self._reranked = not self._reranked
        self._ask_anew()

    def action_copy_hit(self) -> None:
        if self._hit:
            self.say(copied(self.app, answer_rows.copied(self._hit), "id and text"))

    def action_back(self) -> None:
        """Go from the line to the chunks; from there, leave."""
        if self._question.has_focus and self._hit:
            self._list.focus()
        else:
            self.app.exit()
