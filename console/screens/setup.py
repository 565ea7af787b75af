"""The set-up of a run for who starts `interlock` without a word: a form, the plan it leads to, and the command it is.

Nothing here that flags cannot do: the result is a command line, and it is shown while it is made. What may wait (disk,
driver, plan) is asked in a thread; an answer to what is no longer asked is dropped.
"""

import asyncio
import shlex
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Container, VerticalScroll
from textual.geometry import Region
from textual.widgets import Input, Static
from textual.worker import Worker, WorkerState

from interlock.console.actions import SETUP, actions_of, bindings_of, line_key, named
from interlock.console.form.aside import aside
from interlock.console.form.filled import FIELDS, Filled, command_of, directory, problems
from interlock.console.form.found import ChunksSeen, Machine, shelf
from interlock.console.look import Look
from interlock.console.screens.ask import Choice, Dialog
from interlock.console.screens.base import Keyed
from interlock.console.screens.entry import FormField, Paths, TypedLine
from interlock.console.screens.layout import WIDE
from interlock.console.screens.pick import Begin, Browse
from interlock.console.text import form_text
from interlock.console.text.plan_rows import plan_rows
from interlock.engine.errors import InterlockError
from interlock.engine.record.crash import reportable
from interlock.engine.record.words import safe
from interlock.widgets.pane import Bar, Key, Pane
from interlock.widgets.text import row, wrapped
from interlock.widgets.ticks import ModelList

if TYPE_CHECKING:
    from interlock.engine.flows.plan import Forecast

PAUSE = 0.4
"""Seconds without a key after which what was typed is looked at."""
UNASKED = 64 << 20
"""Bytes of chunks up to which a plan is made without being asked for: a plan reads and tokenises all of them."""
LABELS = {
    "chunks": "chunks", "models": "models", "other": "others", "devices": "devices", "ceiling": "ceiling",
    "fusion": "fusion", "qdrant": "store", "out": "runs", "run_id": "run id", "flags": "flags",
}  # fmt: skip
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
        self._shelf = ChunksSeen("")
        self._told: dict[str, str] = {}  # what was found wrong when it was to run, until that field changes
        self._known = dict(filled.texts)
        self._touched: set[str] = set()
        self._plan: Forecast | None = None
        self._planned: Sequence[str] = ()
        self._stop = threading.Event()
        self._note = self._unplanned = ""

    def compose(self) -> ComposeResult:
        first, paths = self._first.text, Paths
        yield Bar(id="title")
        with Container(id="body"):
            with VerticalScroll(id="form", can_focus=False):
                yield FormField("chunks", TypedLine(first("chunks"), id="chunks", suggester=paths(),
                                            placeholder="folder that contains your collections"))  # fmt: skip
                yield FormField("models", ModelList(id="models", ascii=self._look.ascii))
                more = "hf:org/name, pkg:dist or a directory, each with =WEIGHT (optional)"
                yield FormField(LABELS["other"], TypedLine(first("other"), id="other", placeholder=more))
                yield FormField("devices", TypedLine(first("devices"), id="devices", choices=self._choices()))
                yield FormField(
                    "ceiling", TypedLine(first("ceiling"), id="ceiling", placeholder="memory of each device, as 12GiB")
                )
                fusions = ("concat", "named", "mean")
                yield FormField("fusion", TypedLine(first("fusion"), id="fusion", choices=fusions))
                store = "Qdrant store directory (optional)"
                yield FormField(
                    LABELS["qdrant"], TypedLine(first("qdrant"), id="qdrant", suggester=paths(), placeholder=store)
                )
                yield FormField(LABELS["out"], TypedLine(first("out"), id="out", suggester=paths()))
                yield FormField(LABELS["run_id"], TypedLine(first("run_id"), id="run_id", placeholder="its start time"))
                flags = "any other flag of `interlock run`, as --dim 256 --shared"
                yield FormField(LABELS["flags"], TypedLine(first("flags"), id="flags", placeholder=flags))
            yield Pane("plan", id="plan")
        yield Static(id="command")
        yield Bar(id="footer")

    def on_mount(self) -> None:
        models = self.query_one(ModelList)
        models.take(self._machine.known())
        models.tick(self._first.ticked)
        self.query_one("#chunks", TypedLine).focus()
        self._draw()
        self._look_around()
        if self._first.text("chunks"):
            self._look_at_chunks()

    def on_unmount(self) -> None:
        self._stop.set()

    def on_resize(self, event: events.Resize) -> None:
        self.call_after_refresh(self._draw)

    @property
    def filled(self) -> Filled:
        """What is filled in."""
        texts = {str(entry.id): entry.value for entry in self.query(TypedLine)}
        return Filled(texts, self.query_one(ModelList).ticked)

    def _choices(self) -> list[str]:
        """What devices may be: those that are here, and simulated ones; what is set stays among them."""
        gpus = [f"cuda:{number}" for number in range(len(self._gpus or ()))]
        own = self._first.text("devices")
        listed = ["auto", "cpu", *gpus, *(["cuda"] if len(gpus) > 1 else []), "sim:2xT4"]
        return listed if own in listed else [*listed, own]

    # What is wrong, and what is said of it

    def _problems(self) -> dict[str, str]:
        """What is wrong with each field as far as it is known, in their order."""
        filled = self.filled
        found = problems(filled, self._machine.models, self._gpus)
        if self._shelf.of == filled.text("chunks") and self._shelf.problem:
            found.setdefault("chunks", self._shelf.problem)
        found |= {name: reason for name, reason in self._told.items() if name not in found}
        return {name: found[name] for name in FIELDS if name in found}

    def _draw(self) -> None:
        wrong = self._problems()
        for field in self.query(FormField):
            name = str(field.entry.id)
            unasked = name == "chunks" and name not in self._touched
            field.tell("" if unasked else wrong.get(name, ""), self._hint(name))
        self._draw_command(wrong)
        self._draw_plan()
        if self._plan and (wrong or self._command != self._planned):
            self.query_one("#plan", Pane).entitle(above="plan before these changes")
        title = (" A NEW RUN  ", "bold"), ("the command below is this form; any flag can be added", "dim")
        self.query_one("#title", Bar).show([row(*title)])
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
        said = self.query_one("#command", Static)
        fresh = list(wrong) == ["chunks"] and "chunks" not in self._touched
        said.set_class(bool((wrong and not fresh) or self._failed), "bad")
        if fresh and not self._failed:
            said.update(Text("fill in the chunks, and the command appears here", "dim"))
        elif wrong and not fresh:
            first = next(iter(wrong))
            names = ", ".join(LABELS[name] for name in wrong)
            said.update(Text(f"X fix: {names}\n{LABELS[first]}: {safe(wrong[first], 300)}"))
        elif self._failed or self._note:
            said.update(Text(safe(self._failed or self._note, 400)))
        else:
            said.update(Text(safe(shlex.join(["interlock", *self._command]), 1000)))

    @property
    def _command(self) -> list[str]:
        return command_of(self.filled, self._machine.settings)

    def _hint(self, name: str) -> str:
        """What is known of what stands in a field; of the one with the cursor, what it may be."""
        if name == "chunks":
            return form_text.chunks(self._shelf, self.filled.text("chunks"), self.shown_key("browse"))
        here = self.focused is not None and self.focused.id == name
        text = form_text.hint(name, self._gpus, ascii=self._look.ascii) if here else ""
        model = self.query_one(ModelList).chosen if here and name == "models" else None
        return f"{form_text.about(model)}; {text}" if model else text

    @on(events.DescendantFocus)
    @on(events.DescendantBlur)
    @on(ModelList.Moved)
    def _moved(self) -> None:
        self._draw()

    def _reveal(self) -> None:
        """Scroll to the field with the cursor, and to what is said below it where there is room for both."""
        form = self.query_one("#form")
        for field in self.query(FormField):
            if field.entry.has_focus:
                place, models = field.virtual_region, field.entry if isinstance(field.entry, ModelList) else None
                fits = place.height <= form.size.height
                line = Region(0, place.y + (models.line if models and not fits else 0), 1, place.height if fits else 1)
                form.scroll_to_region(line, animate=False)

    # What is typed

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        name = str(event.input.id)
        if event.value == self._known.get(name, ""):  # it says so once of what it began with
            return
        self._known[name] = event.value
        self._touched.add(name)
        self._told.pop(name, None)
        if name == "out":
            self._told.pop("run_id", None)
        self._changed()
        if name == "chunks":
            self._look_at_chunks()

    @on(ModelList.Changed)
    def _ticked(self) -> None:
        self._told.pop("models", None)
        self._told.pop("other", None)
        self._changed()

    def _changed(self) -> None:
        self._failed = self._note = self._unplanned = ""
        self._draw()
        self._plan_soon()

    # What is looked for meanwhile

    @on(Worker.StateChanged)
    def _broke_off(self, event: Worker.StateChanged) -> None:
        """Say what nobody expected of it."""
        if event.state is WorkerState.ERROR and event.worker.error:
            self._note, self._failed = "", str(reportable(event.worker.error))
            self._draw()

    @work(exclusive=True, group="machine", exit_on_error=False)
    async def _look_around(self) -> None:
        """Find the GPUs and what of the models is here, once the form is on the screen."""
        self._gpus = await aside(self._machine.gpus)
        self.query_one("#devices", TypedLine).choices = self._choices()
        self._draw()
        self.query_one(ModelList).take(await aside(self._machine.looked_at))

    @work(exclusive=True, group="chunks", exit_on_error=False)
    async def _look_at_chunks(self) -> None:
        text, left = self.filled.text("chunks"), threading.Event()
        if not (place := directory(text)):
            return
        try:
            await asyncio.sleep(PAUSE / 2)
            self._shelf = await aside(lambda: shelf(text, place, left.is_set))
        except InterlockError as error:
            self._shelf = ChunksSeen(text, problem=str(error))
        finally:
            left.set()
        self._draw()
        self._plan_soon()

    @work(exclusive=True, group="plan", exit_on_error=False)
    async def _plan_soon(self) -> None:
        """Plan what is filled in, where it can be planned and does not cost much."""
        self._stop.set()
        self._stop = stop = threading.Event()
        await asyncio.sleep(PAUSE)
        seen = self._shelf
        known = seen.of == self.filled.text("chunks") and seen.whole
        if known and seen.bytes <= UNASKED:
            await self._make_plan(stop)

    async def _make_plan(self, stop: threading.Event) -> None:
        if self._problems() or (words := self._command) == self._planned:
            return
        pane = self.query_one("#plan", Pane)
        pane.entitle(above="plan: reading and tokenising...")
        try:
            self._plan = await aside(lambda: self._machine.plan(words, stop.is_set))
            self._planned, self._unplanned = words, ""
        except InterlockError as error:
            self._plan, self._planned, self._unplanned = None, (), str(error)
        finally:
            pane.entitle(above="plan")
        self._draw_plan()

    def _draw_plan(self) -> None:
        pane, failed = self.query_one("#plan", Pane), self._unplanned
        self.set_class(bool(failed or self._plan), "-known")
        width = pane.inner_width
        if failed:
            lines = [row((line, "warn")) for text in failed.splitlines() for line in wrapped(safe(text, 2000), width)]
            pane.show([row(("no plan:", "warn")), *lines])
        elif self._plan and width > 0:
            pane.show(plan_rows(self._plan, width, ascii=self._look.ascii))
        elif not self._plan:
            much = self._shelf.bytes if self._shelf.bytes > UNASKED else 0
            said = form_text.no_plan(much, self.shown_key("plan"))
            pane.show([row((line, "dim")) for line in wrapped(said, max(1, width))])

    # What an operator asks

    @on(Input.Submitted)
    def action_next(self) -> None:
        self.focus_next()

    def action_plan(self) -> None:
        """Plan now, however long it takes; show the plan alone, or beside the form again."""
        self.toggle_class("planned")
        self.call_after_refresh(self._draw)
        if self.has_class("planned"):
            self.query_one("#plan").focus()
            self._plan_now()
        else:
            self.query_one("#chunks").focus()

    @work(exclusive=True, group="plan", exit_on_error=False)
    async def _plan_now(self) -> None:
        self._stop.set()
        self._stop = stop = threading.Event()
        await self._make_plan(stop)

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
            self._note = ""
            if hindered:
                self._told = dict([hindered])
        wrong = self._problems()
        if not wrong:
            self._stop.set()
            self.app.exit(self.filled)
            return
        self.remove_class("planned")
        self._draw()
        name = next(iter(wrong))
        self.query_one(f"#{name}").focus()

    def action_browse(self) -> None:
        """Choose a directory for the field in which the cursor is, or for the chunks."""
        focused = str(self.focused.id) if self.focused else ""
        entry = self.query_one(f"#{focused if focused in PATHS else 'chunks'}", TypedLine)
        begun = Path(entry.value.strip())
        start = next((found for place in (begun, *begun.parents) if (found := directory(str(place)))), Path())

        def take(chosen: Path | None) -> None:
            if chosen is not None:
                entry.take(_short(chosen))
                entry.action_end()
                entry.focus()

        self.app.push_screen(Browse(start.absolute(), ascii=self._look.ascii), take)

    @work(exclusive=True, group="earlier", exit_on_error=False)
    async def action_earlier(self) -> None:
        """Show the runs that are there, and fill the form as one of them was begun."""
        out = self.filled.text("out")
        self._note = "looking at the earlier runs..."
        self._draw()
        listed = await aside(lambda: self._machine.earlier(directory(out) or Path(out)))
        self._note = ""
        self._draw()
        chosen = await self.app.push_screen_wait(Begin(listed, out))
        if chosen is None:
            return
        try:
            self._fill(await aside(lambda: self._machine.begun(chosen)))
        except InterlockError as error:
            self._failed = str(error)
            self._draw()

    def _fill(self, filled: Filled) -> None:
        kept = {name: self.filled.texts[name] for name in ("out", "run_id")}
        self._first = replace(filled, texts={**filled.texts, **kept})
        for entry in self.query(TypedLine):
            entry.take(self._first.texts.get(str(entry.id), ""))
        self.query_one("#devices", TypedLine).choices = self._choices()
        self.query_one(ModelList).tick(filled.ticked)
        self._changed()

    def action_leave(self) -> None:
        """Leave; ask first where something was typed."""
        if not self._touched and self.filled.ticked == self._first.ticked:
            self.app.exit(None)
            return
        choices = [Choice("y", "leave the form, what is filled in is lost", "leave")]
        self.app.push_screen(
            Dialog("Leave without a run?", [], choices), lambda said: self.app.exit(None) if said else None
        )


def _short(path: Path) -> str:
    """A path as somebody would type it here."""
    here = Path.cwd()
    return f"{path.relative_to(here)}/" if path.is_relative_to(here) and path != here else str(path)
