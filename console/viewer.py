"""`interlock view` on a terminal: an app that shows one or two summaries and nothing else."""

from collections.abc import Iterable
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.driver import Driver
from textual.screen import Screen

from console.actions import VIEW, actions_of
from console.driver import HangupSafeDriver
from console.look import Look
from console.screens.summary import SummaryScreen
from console.summaries import Document
from console.theme import OWN, THEMES


class Viewer(App[None]):
    """Summaries that were read, on the screen until they are left."""

    TITLE = "Interlock"
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = ""
    BINDINGS: ClassVar = []

    def __init__(
        self,
        document: Document,
        other: Document | None = None,
        look: Look | None = None,
        *,
        driver: type[Driver] | None = HangupSafeDriver,
    ) -> None:
        super().__init__(driver_class=driver)
        self._documents = document, other
        self._look = look or Look()

    def on_mount(self) -> None:
        for theme in OWN:
            self.register_theme(theme)
        self.theme = self._look.theme
        self.set_keymap(dict(self._look.keys))
        document, other = self._documents
        self.push_screen(SummaryScreen(document, other, self._look))

    def next_theme(self) -> str:
        """The next of the themes that are offered."""
        place = THEMES.index(self.theme) if self.theme in THEMES else -1
        self.theme = THEMES[(place + 1) % len(THEMES)]
        return self.theme

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette offers the actions of the registry."""
        for action in actions_of(VIEW):
            yield SystemCommand(action.label, action.help, lambda name=action.name: self._do(name))

    def _do(self, name: str) -> None:
        screen = next(each for each in self.screen_stack if isinstance(each, SummaryScreen))
        self.call_later(screen.run_action, name)
