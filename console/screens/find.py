"""A line to type in: what to find, or a path."""

from textual import on
from textual.app import ComposeResult
from textual.screen import ModalScreen
from textual.widgets import Input


class Find(ModalScreen[str | None]):
    """Gives what was typed; None when it was left with escape."""

    DEFAULT_CSS = """
    Find { align: center bottom; background: $background 0%; }
    Find > Input { width: 100%; margin-bottom: 1; }
    """
    BINDINGS = [("escape", "leave", "Back")]  # noqa: RUF012

    def __init__(self, title: str = "find", value: str = "") -> None:
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
