"""How an operator wants to see a run, from the settings; and how a console can be left.

Themes of our own stand beside Textual's. `daltonic` tells good from bad by blue against orange, which deuter-, prot-
and tritanopes tell apart; `daylight` is light; `ansi` leaves all colours to the terminal, which costs the fewest bytes
on a slow link. Each has a colour of its own for what accents, warns, or is part of a gauge.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from textual.theme import BUILTIN_THEMES, Theme

from interlock.console.actions import keymap
from interlock.console.streams import draws_only_ascii
from interlock.engine.errors import UsageError
from interlock.engine.settings import Configuration

GAUGE = {
    "dark": {"work": "#e48df5", "context": "#8b93a1", "others": "#c4b78f"},
    "light": {"work": "#9a1fd0", "context": "#44505e", "others": "#7c655a"},
    "ansi": {"work": "ansi_magenta", "context": "ansi_bright_black", "others": "ansi_white"},
}
"""Colours of a gauge's parts in a theme that names none, by what kind of theme it is."""
SIGNAL = Theme(
    "signal", primary="#3f97f0", secondary="#7a8794", accent="#8fe6e0", success="#7fbf5f", warning="#f0bd3c",
    error="#f2636b", foreground="#d5d9de", background="#14181d", surface="#1b2027", panel="#232a33",
    variables=GAUGE["dark"],
)  # fmt: skip
DALTONIC = Theme(
    "daltonic", primary="#3d8ee8", secondary="#8a8f98", accent="#f5ec6e", success="#56b4e9", warning="#e08a00",
    error="#ff7ac0", foreground="#e0e0e0", background="#101214", surface="#181b1f", panel="#20242a",
    variables={"work": "#b9e0ff", "context": "#7f848c", "others": "#b3a27a"},
)  # fmt: skip
DAYLIGHT = Theme(
    "daylight", primary="#123f95", secondary="#5b6778", accent="#0a6f86", success="#2c7a2c", warning="#8c540d",
    error="#8f1010", foreground="#1c2430", background="#fbfbf9", surface="#eef0f2", panel="#e2e5e9", dark=False,
    variables=GAUGE["light"],
)  # fmt: skip
OWN = (SIGNAL, DALTONIC, DAYLIGHT)
ANSI = "ansi-dark" if "ansi-dark" in BUILTIN_THEMES else "textual-ansi"  # what Textual 6 calls its only one
THEMES = ("signal", "daltonic", "daylight", ANSI)
"""What `t` walks through."""
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
    verbose: bool = False
    keys: Mapping[str, str] = field(default_factory=dict)
    out: Path = Path("runs")
    """Where the runs are that can be listed."""

    @property
    def rate(self) -> float:
        """Looks a second."""
        return min(self.refresh, SLOW_RATE) if self.slow_link else self.refresh


def look_of(configuration: Configuration) -> Look:
    """Take the look from the settings. Raises UsageError for a theme or a key that there is not."""
    settings, readonly = configuration.settings, configuration.readonly
    known = {theme.name for theme in OWN} | BUILTIN_THEMES.keys()
    if settings.theme not in known:
        raise UsageError(f"unknown theme {settings.theme!r}: available {', '.join(sorted(known))}")
    theme, keys = ANSI if settings.slow_link else settings.theme, keymap(configuration.keys)
    ascii = settings.ascii or draws_only_ascii(os.environ)
    return Look(
        theme=theme, ascii=ascii, slow_link=settings.slow_link, readonly=readonly, verbose=settings.verbose, keys=keys,
        out=settings.out,
    )  # fmt: skip
