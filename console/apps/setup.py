"""The application around the set-up form: which models are here, what a plan says, and the command that comes of it."""

from collections.abc import Sequence

from interlock.console.apps.base import Frame
from interlock.console.look import Look
from interlock.console.screens.setup import Setup
from interlock.console.text.plan_text import NARROW, plan_text
from interlock.engine.config import Configuration


class Form(Frame[list[str]]):
    """Gives the arguments of `interlock` that were filled in; nothing when it was left."""

    ENABLE_COMMAND_PALETTE = False

    def __init__(self, look: Look, configuration: Configuration) -> None:
        super().__init__(look)
        self._configuration = configuration

    def open(self) -> None:
        weights = self._configuration.settings.roster
        roster = ",".join(name if weight == 1 else f"{name}={weight:g}" for name, weight in weights)
        self.push_screen(Setup(models_here(self._configuration), plan_of, roster, self.look))


def models_here(configuration: Configuration) -> list[str]:
    """List the models of the registry whose files are on this machine."""
    from interlock.engine.models import assets
    from interlock.engine.models.registry import extended

    return [spec.key for spec in extended(configuration.models).values() if assets.cached(spec)]


def plan_of(words: Sequence[str]) -> list[str]:
    """Tell in lines what a run of these arguments would do. Raises what `interlock plan` would raise."""
    from interlock.console.cli import configuration, parse
    from interlock.engine.forecast import forecast

    options = parse(["plan", *words[1:]])
    seen = forecast(options.chunks, configuration(options))
    return [*plan_text(seen, NARROW).splitlines(), *(each.refused for each in seen.passes if each.refused)]
