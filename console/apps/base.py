"""What the applications of the console have in common: a driver that survives a hang-up, themes, and their keys; and
those of one screen, each of which imports its screen when it opens.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from rich.segment import Segment
from textual import events
from textual.app import App
from textual.color import Color
from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content
from textual.driver import Driver
from textual.filter import LineFilter
from textual.screen import Screen

from interlock.console.actions import Action, actions_of, shown_keys
from interlock.console.look import ANSI, GAUGE, OWN, THEMES, Look
from interlock.console.screens.ask import Find
from interlock.console.screens.base import Keyed
from interlock.console.terminal.driver import HangupSafeDriver
from interlock.widgets.text import ascii_only

if TYPE_CHECKING:
    from interlock.console.form import Filled, Machine
    from interlock.console.screens.runs import RunsScreen
    from interlock.console.sources.runs import RunList
    from interlock.console.summary.document import Document

T = TypeVar("T")


class Palette(Provider):
    """The actions of a screen by their names: what changes the run comes last, and is never what Enter takes unless it
    was looked for and nothing else was found."""

    async def discover(self) -> Hits:
        for action in offered(self.screen):
            shown = self._with_key(Content(action.label), action)
            yield DiscoveryHit(shown, self._call(action), text=action.label, help=action.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action in offered(self.screen):
            if (score := matcher.match(action.label)) > 0:
                rank = score * UNRANKED if action.changes else score
                shown = self._with_key(matcher.highlight(action.label), action)
                yield Hit(rank, shown, self._call(action), text=action.label, help=action.help)

    def _with_key(self, label: Content, action: Action) -> Content:
        look: Look = getattr(self.app, "look", Look())
        return Content.assemble(label, (f"  {shown_keys(action, look.keys)}", "dim"))

    def _call(self, action: Action) -> partial[bool]:
        return partial(self.app.call_later, self.screen.run_action, action.name)


UNRANKED = 1e-6
"""What puts every match that changes the run below every one that does not."""


def offered(screen: Screen[Any]) -> Sequence[Action]:
    """List the actions of the screen under the palette, in the order in which it offers them."""
    found = actions_of(getattr(screen, "ACTIONS", ""))
    if isinstance(screen, Keyed):
        found = [each for each in found if screen.offers(each) and not each.name.startswith("move(")]
    return sorted(found, key=lambda action: action.changes)


class Ascii(LineFilter):
    """Whatever is drawn, in ASCII: the one place that knows of terminals that show nothing else."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(ascii_only(text), style, control) for text, style, control in segments]


ASCII_FILTER = Ascii()


class Frame(App[T]):
    """An application that looks as the operator wants it."""

    COMMANDS: ClassVar = {Palette}
    TITLE = "Interlock"
    COMMAND_PALETTE_BINDING = ""
    BINDINGS: ClassVar = []
    runs: "RunList | None" = None
    """The list of runs that is shown, where it outlasts the application."""
    CSS = """
    Screen {
        overflow: hidden;
    }
    .ascii {
        & VerticalScroll { scrollbar-size: 0 0; }
        & SelectCurrent .arrow { display: none; }
    }
    Pane {
        & > .pane--work { color: $work; }
        & > .pane--context { color: $context; }
        & > .pane--others { color: $others; }
    }
    """

    def __init__(
        self, look: Look | None = None, first: "Callable[[], Screen[Any]] | None" = None,
        *, runs_in: Path | None = None, driver: type[Driver] | None = HangupSafeDriver,
    ) -> None:  # fmt: skip
        """`first` makes the screen that opens, `runs_in` is the directory whose runs are listed: that of the settings
        where none is named."""
        super().__init__(driver_class=driver)
        self.look = look or Look()
        self._first, self._runs_in = first, runs_in
        self.next: Sequence[str] = ()
        """The arguments of the command that the application was left for; mostly none."""

    def on_mount(self) -> None:
        for theme in OWN:
            self.register_theme(theme)
        self.theme = self.look.theme
        self.set_keymap(dict(self.look.keys))
        self.set_class(self.look.ascii, "ascii")
        self.open()

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return GAUGE["ansi" if self._ansi else "dark" if self.current_theme.dark else "light"]

    def get_css_variables(self) -> dict[str, str]:
        """Draw warnings as texts where the terminal's own yellow may stand on white, on which nobody reads it."""
        variables, few = super().get_css_variables(), self.console.color_system == "standard"
        unread = self._ansi or (few and not self.current_theme.dark)
        return variables | ({"warning": variables["foreground"]} if unread else {})

    @property
    def _ansi(self) -> bool:
        """Whether the theme leaves all colours to the terminal."""
        theme = self.current_theme
        return bool(getattr(theme, "ansi", theme.name == ANSI))

    def on_key(self, event: events.Key) -> None:
        """Hand on what was typed in one burst with the key that opens a line; a slow link sends keys so."""
        if event.character and event.is_printable and isinstance(self.screen, Find):
            self.screen.type(event.character)

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *[ASCII_FILTER] * self.look.ascii]

    def open(self) -> None:
        """Put the first screen up, once it can look as it is wanted."""
        if self._first:
            self.push_screen(self._first())

    @property
    def why_not_suspend(self) -> str:
        """Nothing: what only looks may be stopped."""
        return ""

    @property
    def runs_in(self) -> Path:
        return self._runs_in or self.look.out

    @property
    def run_shown(self) -> Path | None:
        """The directory of the run that is looked at; None where it is none."""
        return None

    def may_leave(self, command: str) -> bool:
        """Whether the application can be left for such a command, and nothing but a look ends then: a page has no
        shell for another than to watch."""
        return command == "watch" or not self.is_web

    def show_runs(self) -> None:
        """Open the list of runs, once."""
        from interlock.console.screens.runs import RunsScreen
        from interlock.console.sources.runs import RunList

        if not any(isinstance(screen, RunsScreen) for screen in self.screen_stack):
            runs = self.runs or RunList(self.runs_in)
            self.push_screen(RunsScreen(runs, self.look, time.time, self.run_shown))

    def leave_for(self, words: Sequence[str]) -> None:
        """Leave; what made the application does the command of these arguments then."""
        self.next = words
        self.exit()

    def next_theme(self) -> str:
        place = THEMES.index(self.theme) if self.theme in THEMES else -1
        self.theme = THEMES[(place + 1) % len(THEMES)]
        return self.theme


def viewer(
    document: "Document", other: "Document | None" = None, look: Look | None = None,
    *, driver: type[Driver] | None = HangupSafeDriver,
) -> Frame[None]:  # fmt: skip
    """Make the application of `interlock view`: summaries that were read, on the screen until they are left."""
    from interlock.console.screens.summary import SummaryScreen

    runs_in = Path(document.name).absolute().parent.parent if document.size is not None else None
    return Frame(look, lambda: SummaryScreen(document, other, look), runs_in=runs_in, driver=driver)


class Runs(Frame[None]):
    """`interlock runs`, or `watch` of many of them, on a terminal: a list, until one is chosen."""

    def __init__(
        self, look: Look, runs: "RunList | None" = None, chosen: Path | None = None, told: str = "",
        *, driver: type[Driver] | None = HangupSafeDriver,
    ) -> None:  # fmt: skip
        """`chosen` is the run that the cursor begins at, `told` what is said first."""
        super().__init__(look, driver=driver)
        self.runs, self._chosen, self._told = runs, chosen, told

    @property
    def run_shown(self) -> Path | None:
        return self._chosen

    def open(self) -> None:
        self.show_runs()
        if self._told:
            self.call_after_refresh(cast("RunsScreen", self.screen).say, self._told)


class Form(Frame["Filled"]):
    """`interlock` alone: a form that gives what was filled in and can begin; nothing when it was left."""

    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, look: Look, machine: "Machine", filled: "Filled | None" = None, failed: str = "",
        *, driver: type[Driver] | None = HangupSafeDriver,
    ) -> None:  # fmt: skip
        """`filled` is what stands in the form at first, `failed` why a run of it did not begin."""
        from interlock.console.screens.setup import Setup

        self._setup = Setup(machine, look, filled or machine.empty(), failed)
        super().__init__(look, lambda: self._setup, driver=driver)
        self.animation_level = "none"  # a field is in sight at once, and few bytes are sent

    async def action_quit(self) -> None:
        """Leave as the form does, which asks where something would be lost."""
        if self.screen is self._setup:
            self._setup.action_leave()
