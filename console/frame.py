"""What the applications of the console have in common: a driver that survives a hang-up, themes, and their keys."""

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, TypeVar

from textual.app import App, SystemCommand
from textual.driver import Driver
from textual.screen import Screen

from console.actions import actions_of
from console.driver import HangupSafeDriver
from console.look import Look
from console.theme import OWN, THEMES

T = TypeVar("T")


class Frame(App[T]):
    """An application that looks as the operator wants it."""

    TITLE = "Interlock"
    COMMAND_PALETTE_BINDING = ""
    BINDINGS: ClassVar = []
    CSS = "Screen { overflow: hidden; }"

    def __init__(self, look: Look | None = None, *, driver: type[Driver] | None = HangupSafeDriver) -> None:
        super().__init__(driver_class=driver)
        self.look = look or Look()

    def on_mount(self) -> None:
        for theme in OWN:
            self.register_theme(theme)
        self.theme = self.look.theme
        self.set_keymap(dict(self.look.keys))
        self.open()

    def open(self) -> None:
        """Put the first screen up, once it can look as it is wanted."""

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The palette offers the actions of the screen that it is laid over."""
        for action in actions_of(getattr(screen, "ACTIONS", "")):
            yield SystemCommand(action.label, action.help, partial(self.call_later, screen.run_action, action.name))

    def next_theme(self) -> str:
        """The next of the themes that are offered."""
        place = THEMES.index(self.theme) if self.theme in THEMES else -1
        self.theme = THEMES[(place + 1) % len(THEMES)]
        return self.theme
