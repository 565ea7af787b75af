"""How an operator wants to see a run, from the settings; and how a console can be left."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from textual.theme import BUILTIN_THEMES

from interlock.console.actions import keymap
from interlock.console.theme import OWN, SLOW
from interlock.engine.config import Configuration
from interlock.engine.errors import UsageError

SLOW_RATE = 1.0


class Leave(StrEnum):
    """The run is over, or goes on without a screen, or is to stop, or to end at once; or the terminal is gone."""

    OVER = "over"
    DETACH = "detach"
    STOP = "stop"
    ABORT = "abort"
    HANGUP = "hangup"


@dataclass(frozen=True)
class Look:
    """What the screen is drawn with; `keys` are those that were given other actions, by the actions' ids."""

    refresh: float = 4.0
    theme: str = "signal"
    ascii: bool = False
    slow_link: bool = False
    readonly: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Looks a second."""
        return min(self.refresh, SLOW_RATE) if self.slow_link else self.refresh


def look_of(configuration: Configuration) -> Look:
    """As the settings say. Raises UsageError for a theme or a key that there is not."""
    settings = configuration.settings
    known = {theme.name for theme in OWN} | BUILTIN_THEMES.keys()
    if settings.theme not in known:
        raise UsageError(f"unknown theme {settings.theme!r}: available {', '.join(sorted(known))}")
    return Look(
        refresh=settings.refresh,
        theme=SLOW if settings.slow_link else settings.theme,
        ascii=settings.ascii,
        slow_link=settings.slow_link,
        readonly=settings.readonly,
        keys=keymap(configuration.keys),
    )
