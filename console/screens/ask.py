"""What is laid over the screen to be answered: a question with keys, or a line to type in; escape answers nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from interlock.engine.record.words import safe

NARROW = 60
"""Columns below which a line to type in has no room for its keys."""


@dataclass(frozen=True)
class Choice:
    """An answer: its keys (by commas, the first is shown), and what it says."""

    keys: str
    label: str
    value: str


class DialogAnswer(Static):
    """One of the answers of a question: a click on it gives it, as its key does."""

    DEFAULT_CSS = """
    DialogAnswer:hover { background: $accent 20%; }
    """

    def __init__(self, key: str, label: str, value: str) -> None:
        super().__init__(Text().append(f" {key} ", "bold reverse").append(f" {label}"))
        self._value = value

    async def on_click(self) -> None:
        await self.screen.run_action(f"choose({self._value!r})")


class Dialog(ModalScreen[str]):
    """Gives the value of what was chosen, or an empty text."""

    BACK = "cancel"
    """What escape does."""
    DEFAULT_CSS = """
    Dialog { align: center middle; background: $background 60%; }
    Dialog > Vertical {
        width: 72; max-width: 100%; height: auto; max-height: 100%;
        border: round $warning; background: $surface; padding: 0 1;
    }
    Dialog Static { width: 100%; height: auto; }
    """

    def __init__(self, title: str, lines: Sequence[str], choices: Sequence[Choice]) -> None:
        super().__init__()
        self._title = title
        self._lines = lines
        self._choices = choices
        for choice in choices:
            self._bindings.bind(choice.keys, f"choose({str(choice.value)!r})", choice.label)
        self._bindings.bind("escape", "choose('')", "Back")

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = self._title
            yield Static(Text("\n".join(safe(line) for line in self._lines) + "\n"))
            for choice in self._choices:
                yield DialogAnswer(choice.keys.partition(",")[0], choice.label, str(choice.value))
            yield DialogAnswer("esc", self.BACK, "")

    def action_choose(self, value: str) -> None:
        self.dismiss(value)


class Recap(Dialog):
    """What became of a run; gives what comes next."""

    BACK = "back to the run"
    DEFAULT_CSS = """
    Recap > Vertical { width: 108; }
    """
    WIDTH, FRAME = 108, 4

    @classmethod
    def columns(cls, screen: int) -> int:
        """Say how many cells a line has on a screen so wide."""
        return min(cls.WIDTH, screen) - cls.FRAME


class Find(ModalScreen[str | None]):
    """One line to type in, above the keys: gives what was typed, None when it was left with escape.

    `typed` is called with each change and gives what to say of it; `tell` says more once that is known.
    """

    DEFAULT_CSS = """
    Find { align: center bottom; background: $background 0%; }
    Find > Horizontal { height: 1; width: 100%; margin-bottom: 1; background: $panel; }
    Find Label { color: $accent; text-style: bold; padding: 0 1; }
    Find Input { width: 1fr; background: $panel; }
    Find #said { color: $text-muted; padding: 0 1; }
    """
    BINDINGS = [("escape", "leave", "Back")]  # noqa: RUF012

    def __init__(self, title: str, value: str = "", typed: Callable[[str], str] | None = None) -> None:
        super().__init__()
        self._title = title
        self._typed = typed
        self._line = Input(value, compact=True)
        self._said = Label(id="said")

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Label(Text(self._title))
            yield self._line
            yield self._said

    def on_mount(self) -> None:
        self.tell("")

    def type(self, character: str) -> None:
        """Take a key that was typed before the line was there to take it."""
        self._line.insert_text_at_cursor(character)

    def tell(self, text: str) -> None:
        """Say something of what was typed, whether or not the line is there yet, or still."""
        narrow = self.app.size.width < NARROW
        keys = "enter keeps  esc clears" if self._typed else "esc cancels"
        keys = "" if narrow and text else keys
        self._said.update(Text(safe("  ".join(filter(None, [text, keys])))))

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        if self._typed:
            self.tell(self._typed(event.value))

    @on(Input.Submitted)
    def done(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_leave(self) -> None:
        self.dismiss(None)
