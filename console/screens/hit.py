"""One chunk that was found in full, laid over the screen: its scores by stage, its text and its payload."""

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from interlock.console.actions import HIT, actions_of, bindings_of, first_key
from interlock.console.look import Look
from interlock.console.screens.base import copied
from interlock.console.text import answer_rows
from interlock.engine.record.words import safe
from interlock.engine.search.hits import Hit
from interlock.widgets.pane import Pane


class HitScreen(ModalScreen[None]):
    """Everything about one chunk."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of(HIT), Binding("enter,space", "close", show=False)]
    DEFAULT_CSS = """
    HitScreen { align: center middle; background: $background 60%; }
    HitScreen > Pane > .pane--hit { color: $warning; text-style: bold; }
    HitScreen > Pane { width: 110; max-width: 100%; height: 90%; min-height: 10; background: $surface; }
    """

    def __init__(self, hit: Hit, question: str, look: Look) -> None:
        super().__init__()
        self._hit, self._question, self._look = hit, question, look
        self._pane = Pane(safe(hit.payload.get("chunk_id"), 80))

    def compose(self) -> ComposeResult:
        yield self._pane

    def on_mount(self) -> None:
        keys = [f"{first_key(action, self._look.keys)} {action.label}" for action in actions_of(HIT)]
        self._pane.border_subtitle = Text("  ".join(keys))
        self._pane.focus()

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        width = self._pane.inner_width
        self._pane.show(answer_rows.whole(self._hit, self._question, width, ascii=self._look.ascii))

    def action_close(self) -> None:
        self.dismiss()

    def action_copy_hit(self) -> None:
        """Copy id and text through the terminal (OSC 52)."""
        self.notify(copied(self.app, answer_rows.copied(self._hit), "id and text"), markup=False)
