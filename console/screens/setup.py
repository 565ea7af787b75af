"""The set-up of a run for who starts `interlock` without a word: a form, the plan it leads to, and the command it is.

Nothing here that flags cannot do: the result is a command line, and it is shown while it is made. What may wait (disk,
driver, plan) is asked in a thread; an answer to what is no longer asked is dropped.
"""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Container, VerticalScroll
from textual.widgets import Input, Select, Static
from textual.worker import Worker, WorkerState

from interlock.console.actions import SETUP, actions_of, bindings_of, line_key, named
from interlock.console.form import FIELDS, ChunksSeen, Filled, Machine, command_of, problems, shelf, words_for
from interlock.console.look import Look
from interlock.console.screens.base import Keyed, aside
from interlock.console.screens.entry import Browse, FormField, ModelChoices, Paths, TypedLine
from interlock.console.screens.layout import WIDE
from interlock.console.screens.lists import Listing
from interlock.console.screens.planning import PlanPane
from interlock.console.text import form_text
from interlock.engine.crash import reportable
from interlock.engine.errors import InterlockError
from interlock.engine.record.words import command, drawn
from interlock.widgets.pane import Bar, Key
from interlock.widgets.text import row

PAUSE = 0.4
"""Seconds without a key after which what was typed is looked at."""
UNASKED = 64 << 20
"""Bytes of chunks up to which a plan is made without being asked for: a plan reads and tokenises all of them."""
PATHS = ("chunks", "qdrant", "out")
LAST = ("help", "leave")
"""Actions that stand at the end of the footer."""


class Setup(Keyed):
    """A form beside a plan."""

    ACTIONS = SETUP
    BINDINGS: ClassVar = bindings_of(SETUP)
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (20, "-high")]  # noqa: RUF012
    DEFAULT_CSS = """
    Setup {
        layout: vertical;
        & > #title { dock: top; }
        & > #footer { dock: bottom; }
        & > #body { height: 1fr; layout: vertical; }
        & #form { height: 1fr; padding-left: 1; scrollbar-size: 1 1; }
        & #plan { height: 4; }
        &.-known #plan { height: 11; }
        & > #command { height: auto; max-height: 3; padding: 0 1; color: $accent; }
        & > #command.bad { color: $error; text-style: bold; }
        &.-low #plan { display: none; }
        &.-wide > #body { layout: horizontal; }
        &.-wide #form { width: 3fr; height: 100%; }
        &.-wide #plan { display: block; width: 2fr; height: 100%; }
        &.planned #form { display: none; }
        &.planned #plan { display: block; width: 100%; height: 100%; }
    }
    """

    def __init__(self, machine: Machine, look: Look, filled: Filled, failed: str = "") -> None:
        """`filled` is what stands in it at first, `failed` why a run of it did not begin."""
        super().__init__()
        self._machine = machine
        self._look = look
        self._first = filled
        self._failed = failed
        self._gpus: Sequence[str] | None = None
        self._seen = ChunksSeen("")
        self._told: dict[str, str] = {}  # what was found wrong when it was to run, until that field changes
        self._known = dict(filled.texts)
        self._touched: set[str] = set()
        self._note = ""

    def compose(self) -> ComposeResult:
        yield Bar(id="title")
        with Container(id="body"):
            with VerticalScroll(id="form", can_focus=False):
                for name in FIELDS:
                    yield FormField(form_text.label(name), self._entry(name, self._first.text(name)))
                    if name == "roster":
                        yield FormField("", ModelChoices(id="models"))
            yield PlanPane(self._machine, id="plan")
        yield Static(id="command")
        yield Bar(id="footer")

    def _entry(self, name: str, text: str) -> TypedLine | Select[str]:
        if choices := words_for(name, text, self._gpus):
            return Select([(each, each) for each in choices], value=text, id=name, allow_blank=False, compact=True)
        suggester = Paths() if name in PATHS else None
        return TypedLine(text, id=name, suggester=suggester, placeholder=form_text.PLACEHOLDERS.get(name, ""))

    def on_mount(self) -> None:
        self.query_one(ModelChoices).take(self._first.text("roster"), self._machine.known())
        self.query_one("#chunks", TypedLine).focus()
        self._draw()
        self._look_around()
        if self._first.text("chunks"):
            self._look_at_chunks()

    @property
    def filled(self) -> Filled:
        """What is filled in."""
        return Filled({name: self._field(name).value for name in FIELDS})

    def _field(self, name: str) -> Any:
        """The widget of a field, of which the value is its text."""
        return self.query_one(f"#{name}")

    # What is wrong, and what is said of it

    def _problems(self) -> dict[str, str]:
        """What is wrong with each field as far as it is known, in their order."""
        filled = self.filled
        found = problems(filled, self._machine.models)
        if self._seen.of == filled.text("chunks") and self._seen.problem:
            found.setdefault("chunks", self._seen.problem)
        found |= {name: reason for name, reason in self._told.items() if name not in found}
        return {name: found[name] for name in FIELDS if name in found}

    def _draw(self) -> None:
        wrong = self._problems()
        for field in self.query(FormField):
            name = str(field.entry.id)
            unasked = name == "chunks" and name not in self._touched
            field.tell("" if unasked else wrong.get(name, ""), self._hint(name))
        self._draw_command(wrong)
        much = self._seen.bytes if self._seen.bytes > UNASKED else 0
        self._plan.draw([] if wrong else self._command, much, self.shown_key("plan"))
        self.set_class(self._plan.known, "-known")
        about = "the command below is this form; any flag can be added"
        self.query_one("#title", Bar).show([row((" A NEW RUN  ", "bold"), (about, "dim"))])
        self.query_one("#footer", Bar).offer(self._keys(), self.size.width)
        self.call_after_refresh(self._reveal)

    def _keys(self) -> list[Key]:
        """The keys of the footer, what is done with the form first."""
        offered = sorted((each for each in actions_of(SETUP) if each.footer), key=lambda each: each.name in LAST)
        keys = [Key(line_key(each, self._look.keys), each.label, action=each.name) for each in offered]
        return [*keys[: -len(LAST)], Key("tab", "Next field", action="next"), *keys[-len(LAST) :]]

    def shown_key(self, name: str) -> str:
        return line_key(named(name), self._look.keys)

    def _draw_command(self, wrong: dict[str, str]) -> None:
        """The command that the form is; where it is none yet, what to fix. A reason that was told stays in sight."""
        said, note = self.query_one("#command", Static), self._failed or self._note
        fresh = list(wrong) == ["chunks"] and "chunks" not in self._touched
        said.set_class(bool((wrong and not fresh) or self._failed), "bad")
        if wrong and not fresh:
            said.update(Text(form_text.fixes(wrong)))
        elif note or not fresh:
            said.update(Text(drawn(note, 400) if note else drawn(command(self._command), 1000)))
        else:
            said.update(Text("fill in the chunks, and the command appears here", "dim"))

    @property
    def _command(self) -> list[str]:
        return command_of(self.filled, self._machine.settings)

    def _hint(self, name: str) -> str:
        """What is known of what stands in a field; of the one with the cursor, what it may be."""
        if name == "chunks":
            return form_text.chunks(self._seen, self.filled.text("chunks"), self.shown_key("browse"))
        if self.focused is None or self.focused.id != name:
            return ""
        model = self.query_one(ModelChoices).model
        return form_text.about(model) if name == "models" and model else form_text.hint(name, self._gpus)

    @on(events.DescendantFocus)
    @on(events.DescendantBlur)
    @on(ModelChoices.OptionHighlighted)
    def _moved(self) -> None:
        self._draw()

    def _reveal(self) -> None:
        """Scroll to the field with the cursor, and to what is said below it."""
        for field in self.query(FormField):
            if field.entry.has_focus:
                field.scroll_visible(animate=False, top=field.size.height > self.query_one("#form").size.height)

    # What is typed

    @on(Input.Changed)
    @on(Select.Changed)
    def _typed(self, event: Input.Changed | Select.Changed) -> None:
        name, value = str(event.control.id), str(event.value)
        if value == self._known.get(name, ""):  # it says so once of what it began with
            return
        self._known[name] = value
        self._touched.add(name)
        self._told.pop(name, None)
        if name == "out":
            self._told.pop("run_id", None)
        if name == "roster":
            self.query_one(ModelChoices).take(value)
        self._changed()
        if name == "chunks":
            self._look_at_chunks()

    def _changed(self) -> None:
        self._failed = self._note = ""
        self._plan.leave()
        self._draw()
        self._plan_soon()

    @property
    def _plan(self) -> PlanPane:
        return self.query_one(PlanPane)

    def _plan_soon(self, pause: float = PAUSE) -> None:
        """Plan what is filled in, where it can be planned; after a pause only where it does not cost much."""
        known = self._seen.of == self.filled.text("chunks") and self._seen.whole
        if ((known and self._seen.bytes <= UNASKED) or not pause) and not self._problems():
            self._plan.make(self._command, pause)

    # What is looked for meanwhile

    @on(Worker.StateChanged)
    def _broke_off(self, event: Worker.StateChanged) -> None:
        """Say why something that was looked for meanwhile is not there."""
        if event.state is WorkerState.ERROR and event.worker.error:
            self._note, self._failed = "", str(reportable(event.worker.error))
            self._draw()

    @work(exclusive=True, group="machine", exit_on_error=False)
    async def _look_around(self) -> None:
        """Find the GPUs and what of the models is here, once the form is on the screen."""
        self._gpus = await aside(self._machine.gpus)
        self._offer("devices", self._field("devices").value)
        self._draw()
        models = await aside(self._machine.looked_at)
        self.query_one(ModelChoices).take(self.filled.text("roster"), models)

    def _offer(self, name: str, text: str) -> None:
        """Let a field be what it may be now, and this."""
        with self.prevent(Select.Changed):
            self._field(name).set_options((each, each) for each in words_for(name, text, self._gpus))
            self._field(name).value = text

    @work(exclusive=True, group="chunks", exit_on_error=False)
    async def _look_at_chunks(self) -> None:
        text, left = self.filled.text("chunks"), threading.Event()
        try:
            await asyncio.sleep(PAUSE / 2)
            self._seen = await aside(lambda: shelf(text, left.is_set))
        except InterlockError as error:
            self._seen = ChunksSeen(text, problem=str(error))
        finally:
            left.set()
        self._draw()
        self._plan_soon()

    # What an operator asks

    @on(Input.Submitted)
    def action_next(self) -> None:
        self.focus_next()

    def action_plan(self) -> None:
        """Plan now, however long it takes; show the plan alone, or beside the form again."""
        self.toggle_class("planned")
        self.call_after_refresh(self._draw)
        if self.has_class("planned"):
            self._plan.focus()
            self._plan_soon(pause=0.0)
        else:
            self.query_one("#chunks").focus()

    @work(exclusive=True, group="run", exit_on_error=False)
    async def action_run(self) -> None:
        """Leave with what is filled in, where nothing speaks against it; else go to what does."""
        self._touched |= set(FIELDS)
        self._failed = ""
        if not self._problems():
            self._note = "checking..."
            self._draw()
            words = self._command
            hindered = await aside(lambda: self._machine.hindrance(words))
            self._note, self._told = "", dict([hindered] if hindered else [])
        if wrong := self._problems():
            self.remove_class("planned")
            self._draw()
            self._field(next(iter(wrong))).focus()
        else:
            self.app.exit(self.filled)

    def action_browse(self) -> None:
        """Choose a directory for the field in which the cursor is, or for the chunks."""
        focused = str(self.focused.id) if self.focused else ""
        entry = self.query_one(f"#{focused if focused in PATHS else 'chunks'}", TypedLine)

        def take(chosen: str | None) -> None:
            if chosen is not None:
                entry.take(chosen)
                entry.action_end()
                entry.focus()

        self.app.push_screen(Browse(entry.value.strip()), take)

    @work(exclusive=True, group="earlier", exit_on_error=False)
    async def action_earlier(self) -> None:
        """Show the runs that are there, and fill the form as one of them was begun."""
        out = self.filled.text("out")
        self._note = "looking at the earlier runs..."
        self._draw()
        listed = await aside(lambda: self._machine.earlier(out))
        self._note = ""
        self._draw()
        chosen = await self.app.push_screen_wait(Listing(listed, out))
        if isinstance(chosen, Path):
            self._fill(await aside(lambda: self._machine.begun(chosen)))

    def _fill(self, filled: Filled) -> None:
        now = self.filled.texts
        self._first = Filled({**filled.texts, "out": now["out"], "run_id": now["run_id"]})
        for name in FIELDS:
            text = self._first.text(name)
            if isinstance(entry := self._field(name), TypedLine):
                entry.take(text)
            else:
                self._offer(name, text)
        self._changed()

    def action_leave(self) -> None:
        """Leave; ask first where something was typed."""
        if not self._touched:
            self.app.exit(None)
            return
        lost = "leave the form, what is filled in is lost"
        self.confirm("Leave without a run?", [], lost, lambda: self.app.exit(None))
