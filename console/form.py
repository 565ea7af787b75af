"""The application around the set-up form: which models are here, what a plan says, and the command that comes of it."""

import contextlib
import io
from collections.abc import Sequence

from textual.app import App

from console.driver import HangupSafeDriver
from console.look import Look
from console.screens.setup import Setup
from console.theme import OWN
from engine.config import Configuration


class Form(App[list[str]]):
    """Gives the arguments of `interlock` that were filled in; nothing when it was left."""

    TITLE = "Interlock"
    COMMAND_PALETTE_BINDING = ""
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, look: Look, configuration: Configuration) -> None:
        super().__init__(driver_class=HangupSafeDriver)
        self._look = look
        self._configuration = configuration

    def on_mount(self) -> None:
        for theme in OWN:
            self.register_theme(theme)
        self.theme = self._look.theme
        roster = ",".join(
            name if weight == 1 else f"{name}={weight:g}" for name, weight in self._configuration.settings.roster
        )
        self.push_screen(Setup(models_here(self._configuration), plan_of, roster, self._look))


def models_here(configuration: Configuration) -> list[str]:
    """The models of the registry whose files are on this machine."""
    from engine.models import assets
    from engine.models.registry import extended

    return [spec.key for spec in extended(configuration.models).values() if assets.cached(spec)]


def plan_of(words: Sequence[str]) -> str:
    """What `interlock plan` prints for the arguments of a run. Raises InterlockError as it does."""
    from console import commands
    from console.cli import parse

    with contextlib.redirect_stdout(io.StringIO()) as said:
        commands.plan(parse(["plan", *words[1:]]))
    return said.getvalue().strip()
