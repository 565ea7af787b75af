"""Every key and what it does, made from the registry of actions, and what the signs on the main screen mean.

What concerns the pane that has the focus comes first, and what is typed leaves only the lines that say it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from interlock.console.actions import HELP, MAIN, actions_of, bindings_of, first_key, named, shown_keys
from interlock.console.look import Look
from interlock.widgets.panes import PANES

AREAS = {
    "Run": ("exclusive", "fallback", "pause", "stop", "quit"),
    "Panes": ("pane", "zoom", "unzoom"),
    "Events": ("find", "find_next", "find_previous", "filter", "attend", "follow", "detail", "export", "copy"),
}
"""What the actions of the main screen concern, by the first word of their calls; the rest is the screen itself."""
LEGEND = (
    ("RUN", "healthy; DEGRADED: goes on without a GPU or a model; STALLED: no progress for long"),
    ("!12", "warnings, mitigations, parked and refused rows that you have not looked at: {attend} shows them"),
    ("EXCL on*", "* marks a request that the engine has not answered yet"),
    ("STALE", "time since the last event"),
    ("SIMULATED", "the GPUs are not real: the logic is, the speed is not"),
)
"""What the signs mean that are in no pane; `{attend}` is the key of that action."""


class HelpLine(NamedTuple):
    """A line of the help, and under which heading it stands."""

    area: str
    keys: str
    text: str


def entries(screen: str, look: Look, pane: str = "") -> list[HelpLine]:
    """List what can be done on a screen; what concerns `pane`, which has the focus, comes first."""
    actions = [(action.name, shown_keys(action, look.keys), action.help) for action in actions_of(screen)]
    if screen != MAIN:
        return [HelpLine("Keys", keys, text) for _, keys, text in actions]
    area_of = {name: area for area, names in AREAS.items() for name in names}
    made = [HelpLine(area_of.get(name.partition("(")[0], "Screen"), keys, text) for name, keys, text in actions]
    told = [(kind.name.capitalize(), line) for kind in PANES for line in kind.help]
    signs = [(kind.title.split()[0], kind.sign) for kind in PANES if kind.sign]
    told += [("Signs", line) for line in (*signs, *LEGEND)]
    named_keys = {name: first_key(named(name), look.keys) for name in ("zoom", "attend")}
    made += [HelpLine(area, keys.format(**named_keys), text.format(**named_keys)) for area, (keys, text) in told]
    order = [pane.capitalize(), "Run", "Panes", "Events", "Screen"]
    areas = list(dict.fromkeys([*order, *(entry.area for entry in made)]))
    return sorted(made, key=lambda entry: areas.index(entry.area))


def found(listed: Sequence[HelpLine], typed: str) -> list[HelpLine]:
    """Choose the lines that have every word that was typed, in either case."""
    words = typed.casefold().split()
    return [entry for entry in listed if all(word in " ".join(entry).casefold() for word in words)]


def written(listed: Sequence[HelpLine]) -> Text:
    """Write lines under their headings."""
    text, area = Text(), ""
    for entry in listed:
        if entry.area != area:
            area = entry.area
            text.append("\n" if text else "").append(f"{area}\n", "bold")
        text.append(f"  {entry.keys:<12} {entry.text}\n")
    return text or Text("nothing like that")


class Help(ModalScreen[None]):
    """The keys of the screen it is laid over."""

    BINDINGS = bindings_of(HELP)
    DEFAULT_CSS = """
    Help { align: center middle; background: $background 60%; }
    Help > Vertical {
        width: 90; max-width: 100%; height: auto; max-height: 100%;
        border: round $accent; background: $surface; padding: 0 1;
    }
    Help Input { height: 1; border: none; padding: 0; background: $surface; }
    Help VerticalScroll { height: auto; max-height: 100%; }
    Help Static { width: 100%; height: auto; }
    """

    def __init__(self, screen: str, look: Look, pane: str = "") -> None:
        super().__init__()
        self._entries = entries(screen, look, pane)
        self._back = first_key(named("back"), look.keys)

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Keys"
            box.border_subtitle = f"up/down scroll, {self._back} closes"
            yield Input(placeholder="type to search", compact=True)
            with VerticalScroll(can_focus=False):
                yield Static(written(self._entries))

    @on(Input.Changed)
    def search(self, event: Input.Changed) -> None:
        self.query_one(Static).update(written(found(self._entries, event.value)))

    def on_key(self, event: events.Key) -> None:
        """Scroll the page while the line has the focus."""
        if event.key in ("up", "down", "pageup", "pagedown"):
            getattr(self.query_one(VerticalScroll), f"scroll_{event.key.replace('page', 'page_')}")(animate=False)

    def action_back(self) -> None:
        self.dismiss()
