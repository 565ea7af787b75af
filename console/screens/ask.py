"""What is laid over the screen to be answered: a question with keys, or a line to type in; escape answers nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from interlock.engine.record.safe import safe


@dataclass(frozen=True)
class Choice:
    """An answer: its keys (by commas, the first is shown), and what it says."""

    keys: str
    label: str
    value: str


class Answer(Static):
    """One of the answers of a question: a click on it gives it, as its key does."""

    DEFAULT_CSS = """
    Answer:hover { background: $accent 20%; }
    """

    def __init__(self, key: str, label: str, value: str) -> None:
        super().__init__(Text().append(f" {key} ", "bold reverse").append(f" {label}"))
        self._value = value

    async def on_click(self) -> None:
        await self.screen.run_action(f"choose({self._value!r})")


class Ask(ModalScreen[str]):
    """Gives the value of what was chosen, or an empty text."""

    DEFAULT_CSS = """
    Ask { align: center middle; background: $background 60%; }
    Ask > Vertical {
        width: 72; max-width: 100%; height: auto; max-height: 100%;
        border: round $warning; background: $surface; padding: 0 1;
    }
    Ask Static { width: 100%; height: auto; }
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
                yield Answer(choice.keys.partition(",")[0], choice.label, str(choice.value))
            yield Answer("esc", "cancel", "")

    def action_choose(self, value: str) -> None:
        self.dismiss(value)


class Recap(Ask):
    """What became of a run; gives what comes next."""

    DEFAULT_CSS = """
    Recap > Vertical { width: 108; }
    """


class Find(ModalScreen[str | None]):
    """Gives what was typed; None when it was left with escape."""

    DEFAULT_CSS = """
    Find { align: center bottom; background: $background 0%; }
    Find > Input { width: 100%; margin-bottom: 1; }
    """
    BINDINGS = [("escape", "leave", "Back")]  # noqa: RUF012

    def __init__(self, title: str, value: str = "") -> None:
        super().__init__()
        self._title = title
        self._value = value

    def compose(self) -> ComposeResult:
        line = Input(self._value, compact=False)
        line.border_title = self._title
        yield line

    @on(Input.Submitted)
    def done(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_leave(self) -> None:
        self.dismiss(None)
