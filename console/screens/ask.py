"""What is laid over the screen: a question with keys, a line to type in, or the page of keys; escape answers nothing.

The page is made from the registry of actions. What concerns the pane that has the focus comes first, and what is typed
leaves only the lines that say it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, Static

from interlock.console.actions import HELP, MAIN, Action, actions_of, bindings_of, first_key, named, shown_keys
from interlock.console.look import Look
from interlock.engine.record.words import drawn
from interlock.widgets.panes import PANES

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
    BINDINGS: ClassVar = [("ctrl+c", "again")]
    DEFAULT_CSS = """
    Dialog { align: center middle; background: $background 60%; }
    Dialog > Vertical {
        width: 72; max-width: 100%; height: auto; max-height: 100%;
        border: round $warning; background: $surface; padding: 0 1;
    }
    Dialog Static, Dialog VerticalScroll { width: 100%; height: auto; }
    """

    def __init__(self, title: str, lines: Sequence[str], choices: Sequence[Choice], again: str = "") -> None:
        """`again` is chosen by ^C, which mostly opened it."""
        super().__init__()
        self._title, self._again = title, again
        self._text = Static()
        self.tell(lines)
        self._choices = choices
        for choice in choices:
            self._bindings.bind(choice.keys, f"choose({str(choice.value)!r})", choice.label)
        self._bindings.bind("escape", "choose('')", "Back")

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = Content(self._title)
            with VerticalScroll() as self._told:
                yield self._text
            for choice in self._choices:
                yield DialogAnswer(choice.keys.partition(",")[0], choice.label, str(choice.value))
            yield DialogAnswer("esc", self.BACK, "")

    def tell(self, lines: Sequence[str]) -> None:
        """Say this above the answers."""
        self._text.update(Text("\n".join(drawn(line) for line in lines) + "\n"))

    def on_resize(self, event: events.Resize) -> None:
        """Leave room for every answer, whatever there is to read."""
        self._told.styles.max_height = max(1, event.size.height - 3 - len(self._choices))

    def action_choose(self, value: str) -> None:
        self.dismiss(value)

    def action_again(self) -> None:
        if self._again:
            self.dismiss(self._again)


class Recap(Dialog):
    """What became of a run; gives what comes next."""

    BACK = "back to the run"
    DEFAULT_CSS = """
    Recap > Vertical { width: 108; }
    """
    WIDTH, FRAME, TAKEN = 108, 4, 5
    """Cells across at most, those of its frame and margin, and the lines that its frame and answers take."""


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
        self._said.update(Text(drawn("  ".join(filter(None, [text, keys])))))

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        if self._typed:
            self.tell(self._typed(event.value))

    @on(Input.Submitted)
    def done(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def action_leave(self) -> None:
        self.dismiss(None)


AREAS = {
    "Run": ("exclusive", "fallback", "pause", "stop", "quit"),
    "Panes": ("pane", "zoom", "unzoom"),
    "Past": ("step", "leap", "trouble", "set_mark", "to_mark", "faster", "slower"),
    "Events": ("find", "first", "follow", "detail", "export", "copy"),
}
"""What the actions of the main screen concern, by the first word of their calls; the rest is the screen itself."""
LEGEND = (
    ("RUN", "healthy; DEGRADED: no work is lost, it takes longer; STALLED: no progress for long"),
    ("1 lost !2", "GPUs, nodes, texts; warnings, refused rows that you have not looked at: {find} ! shows them"),
    ("side by side*", "* marks a request that the engine has not answered yet"),
    ("STALE", "time since the last event"),
    ("SIMULATED", "the GPUs are not real: the logic is, the speed is not"),
)
"""What the signs mean that are in no pane; `{find}` is the key of that action."""


class HelpLine(NamedTuple):
    """A line of the help, and under which heading it stands."""

    area: str
    keys: str
    text: str


def entries(
    screen: str, look: Look, pane: str = "", offers: Callable[[Action], bool] = lambda _: True
) -> list[HelpLine]:
    """List what can be done on a screen, as far as it `offers` that; what concerns `pane`, which has the focus, comes
    first."""
    offered = filter(offers, actions_of(screen))
    actions = [(action.name, shown_keys(action, look.keys), action.help) for action in offered]
    if screen != MAIN:
        return [HelpLine("Keys", keys, text) for _, keys, text in actions]
    area_of = {name: area for area, names in AREAS.items() for name in names}
    made = [HelpLine(area_of.get(name.partition("(")[0], "Screen"), keys, text) for name, keys, text in actions]
    told = [(kind.name.capitalize(), line) for kind in PANES for line in kind.help]
    signs = [(kind.title.split()[0], kind.sign) for kind in PANES if kind.sign]
    told += [("Signs", line) for line in (*signs, *LEGEND)]
    named_keys = {name: first_key(named(name), look.keys) for name in ("zoom", "find")}
    made += [HelpLine(area, keys.format(**named_keys), text.format(**named_keys)) for area, (keys, text) in told]
    order = [pane.capitalize(), "Run", "Past", "Panes", "Events", "Screen"]
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

    def __init__(
        self, screen: str, look: Look, pane: str = "", offers: Callable[[Action], bool] = lambda _: True,
        told: Mapping[str, str] = {},
    ) -> None:  # fmt: skip
        """`told` comes before the keys: how a run stands, whole, and the command that goes on with it."""
        super().__init__()
        now = [HelpLine("This run", word, text) for word, text in told.items() if text]
        self._entries = [*now, *entries(screen, look, pane, offers)]
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
