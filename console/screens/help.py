"""Every key and what it does, made from the registry of actions; and what the signs on the screen mean."""

from collections.abc import Iterator

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from interlock.console.actions import HELP, actions_of, bindings_of, shown_keys
from interlock.console.look import Look

LEGEND = """
VRAM     weights, activations, free under the ceiling; the ceiling stands as a mark, ^ is the peak so far
Passes   a cell is (model_pass, batch_index); the bar fills as batches are committed
Leases   before > peak > after in GiB of the driver, and the residue: bytes that a lease left behind
Events   note, notice, warning, error; enter shows all of one
EXCL on* the star: asked for, and not yet answered by the engine
stale    nothing was heard for that long
SIMULATED  the GPUs are not there: logic is shown, never speed
"""


class Help(ModalScreen[None]):
    """The keys of the screen it is laid over."""

    BINDINGS = bindings_of(HELP)
    DEFAULT_CSS = """
    Help { align: center middle; background: $background 60%; }
    Help > VerticalScroll {
        width: 90; max-width: 100%; height: auto; max-height: 100%;
        border: round $accent; background: $surface; padding: 0 1;
    }
    Help Static { width: 100%; height: auto; }
    """

    def __init__(self, screen: str, look: Look) -> None:
        super().__init__()
        self._of = screen
        self._look = look

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = "Keys"
            box.border_subtitle = "esc closes"
            yield Static(Text("\n".join(self._lines()) + "\n" + LEGEND))

    def action_back(self) -> None:
        self.dismiss()

    def _lines(self) -> Iterator[str]:
        for action in actions_of(self._of):
            yield f"{shown_keys(action, self._look.keys):<12} {action.help}"
