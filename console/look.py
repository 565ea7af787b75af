"""How an operator wants to see a run, from the settings; and how a console can be left.

Themes of our own stand beside Textual's. `daltonic` tells good from bad by blue against orange, which deuter-, prot-
and tritanopes tell apart; `ansi` leaves all colours to the terminal, which costs the fewest bytes on a slow link.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from textual.theme import BUILTIN_THEMES, Theme

from interlock.console.actions import keymap
from interlock.engine.config import Configuration
from interlock.engine.errors import UsageError

SIGNAL = Theme(
    "signal", primary="#4f9dde", secondary="#7a8794", accent="#56b6c2", success="#7fbf5f", warning="#e5b84b",
    error="#e8615a", foreground="#d5d9de", background="#14181d", surface="#1b2027", panel="#232a33",
)  # fmt: skip
DALTONIC = Theme(
    "daltonic", primary="#56b4e9", secondary="#8a8f98", accent="#f0e442", success="#56b4e9", warning="#e69f00",
    error="#ff6db6", foreground="#e0e0e0", background="#101214", surface="#181b1f", panel="#20242a",
)  # fmt: skip
OWN = (SIGNAL, DALTONIC)
THEMES = ("signal", "daltonic", "textual-light", "ansi-dark")
"""What `t` walks through."""
SLOW = "ansi-dark"
SLOW_RATE = 1.0
"""Looks a second on a slow link."""


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
    """Take the look from the settings. Raises UsageError for a theme or a key that there is not."""
    settings = configuration.settings
    known = {theme.name for theme in OWN} | BUILTIN_THEMES.keys()
    if settings.theme not in known:
        raise UsageError(f"unknown theme {settings.theme!r}: available {', '.join(sorted(known))}")
    theme, keys = SLOW if settings.slow_link else settings.theme, keymap(configuration.keys)
    return Look(settings.refresh, theme, settings.ascii, settings.slow_link, settings.readonly, keys)
