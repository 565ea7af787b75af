"""Every key and what it does, made from the registry of actions; and what the signs on the main screen mean."""

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from interlock.console.actions import HELP, MAIN, actions_of, bindings_of, shown_keys
from interlock.console.look import Look

LEGEND = (
    ("VRAM", "weights, activations, free; a mark: ceiling, ^: peak so far"),
    ("Passes", "the bar fills as batches are committed"),
    ("Leases", "GiB before > peak > after, and the residue left behind"),
    ("Events", "note, notice, warning, error"),
    ("RUN", "healthy; DEGRADED: goes on without a GPU or a model; STALLED: no batch for long"),
    ("!12", "warnings, mitigations, parked and refused rows that you have not looked at: press a"),
    ("EXCL on*", "* marks a request that the engine has not answered yet"),
    ("STALE", "time since the last event"),
    ("SIMULATED", "the GPUs are not real: the logic is, the speed is not"),
)
"""What the signs of the main screen mean."""


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
            lines = [(shown_keys(action, self._look.keys), action.help) for action in actions_of(self._of)]
            lines += [("", ""), *LEGEND] if self._of == MAIN else []
            yield Static(Text("\n".join(f"{name:<12} {text}" for name, text in lines)))

    def action_back(self) -> None:
        self.dismiss()
