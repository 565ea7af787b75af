"""The set-up of a run for who starts `interlock` without a word: a form, the plan it leads to, and the command it is.

Nothing here that flags cannot do: the result is a command line, and it is shown while it is made.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import on, work
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.suggester import SuggestFromList
from textual.widgets import Input, Label, Select, Static

from interlock.console.actions import SETUP, bindings_of
from interlock.console.look import Look
from interlock.console.screens.base import Keyed
from interlock.engine.errors import InterlockError
from interlock.engine.record.safe import safe
from interlock.widgets.pane import Bar, Key, Pane, keys
from interlock.widgets.text import row

DEVICES = ("auto", "cpu", "cuda", "sim:2xT4")
FUSIONS = ("concat", "named", "mean")
Plan = Callable[[Sequence[str]], Sequence[str]]
"""What a run of these arguments would do, in lines."""


def command_of(form: Mapping[str, str]) -> list[str]:
    """Write the arguments that a filled-in form stands for, without those that are as by default."""
    words = ["run", form.get("chunks", "").strip() or "."]
    for flag, default in (("roster", ""), ("devices", "auto"), ("fusion", "concat"), ("qdrant", ""), ("ceiling", "")):
        value = form.get(flag, "").strip()
        if value and value != default:
            words += [f"--{flag}", value]
    return words


class Setup(Keyed):
    """A form over a plan."""

    ACTIONS = SETUP
    BINDINGS: ClassVar = bindings_of(SETUP)
    DEFAULT_CSS = """
    Setup { layout: vertical; }
    Setup > #title { dock: top; }
    Setup > #footer { dock: bottom; }
    Setup Horizontal { height: 1; }
    Setup Label { width: 12; color: $text-muted; padding-left: 1; }
    Setup Input, Setup Select { width: 1fr; }
    Setup #command { height: auto; margin: 1 1 0 1; color: $accent; }
    Setup #plan { height: 1fr; }
    """

    def __init__(self, models: Sequence[str], plan: Plan, roster: str, look: Look) -> None:
        """`models` are those whose files are here; `plan` may take seconds and raise InterlockError."""
        super().__init__()
        self._models = models
        self._plan = plan
        self._roster = roster
        self._look = look

    def compose(self) -> ComposeResult:
        yield Bar(id="title")
        here = ", ".join(self._models) or "none yet"
        suggester = SuggestFromList(self._models, case_sensitive=False)
        fields: dict[str, Input | Select[str] | Static] = {
            "chunks": Input(placeholder="directory of collections of chunk files", id="chunks", compact=True),
            "roster": Input(self._roster, suggester=suggester, id="roster", compact=True),
            "": Static(Text(f"here: {safe(here)}", "dim", no_wrap=True, overflow="ellipsis")),
            "devices": Select.from_values(DEVICES, value="auto", id="devices", compact=True),
            "ceiling": Input("12GiB", id="ceiling", compact=True),
            "fusion": Select.from_values(FUSIONS, value="concat", id="fusion", compact=True),
            "store": Input(placeholder="Qdrant store directory (optional)", id="qdrant", compact=True),
        }
        for label, field in fields.items():
            yield Horizontal(Label(label), field)
        yield Static(id="command")
        yield Pane("plan", id="plan")
        yield Bar(id="footer")

    def on_mount(self) -> None:
        self.query_one("#chunks", Input).focus()
        self._show_command()

    def on_resize(self) -> None:
        shown = [Key("^p", "Plan"), Key("^r", "Run"), Key("tab", "Next field"), Key("f1", "Help"), Key("^q", "Quit")]
        about = "use the command below to set anything else"
        self.query_one("#title", Bar).show([row((" A NEW RUN  ", "bold"), (about, "dim"))])
        self.query_one("#footer", Bar).show([keys(shown, self.size.width)])

    @property
    def form(self) -> dict[str, str]:
        """What is filled in, by the name of the flag."""
        texts = {field.id: field.value for field in self.query(Input)}
        chosen = {field.id: str(field.value) for field in self.query(Select)}
        return {name: value for name, value in {**texts, **chosen}.items() if name}

    @on(Input.Changed)
    @on(Select.Changed)
    def _show_command(self) -> None:
        words = shlex.join(["interlock", *command_of(self.form)])
        self.query_one("#command", Static).update(Text(safe(words)))

    @on(Input.Submitted)
    def action_plan(self) -> None:
        self._say(["reading and tokenising..."])
        self._forecast(command_of(self.form))

    def action_run(self) -> None:
        chunks = Path(self.form["chunks"].strip() or ".")
        if not chunks.is_dir():
            self._say([f"{chunks} is not a directory: name the one that holds your collections"])
            return
        self.app.exit(command_of(self.form))

    def action_quit(self) -> None:
        self.app.exit(None)

    @work(thread=True, exclusive=True, exit_on_error=False)
    def _forecast(self, words: Sequence[str]) -> None:
        try:
            lines = self._plan(words)
        except InterlockError as error:
            lines = str(error).splitlines()
        self.app.call_from_thread(self._say, lines)

    def _say(self, lines: Sequence[str]) -> None:
        self.query_one("#plan", Pane).show([row(line) for line in lines])
