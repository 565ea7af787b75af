"""Our themes: every text can be read, and what means different things has colours that everybody tells apart."""

import itertools

import pytest
from rich.color import Color, ColorSystem
from textual.theme import Theme

from interlock.console.apps.base import Frame
from interlock.console.look import ANSI, DAYLIGHT, GAUGE, OWN, SIGNAL, THEMES
from interlock.widgets.text import STYLES

READABLE = 4.5
APART, APART_TO_DEUTERANOPES = 25, 10
DEUTERANOPIA = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881))
"""What is left of linear red, green and blue (Machado and others, 2009)."""


def linear(colour: str) -> list[float]:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def contrast(one: str, other: str) -> float:
    weights = (0.2126, 0.7152, 0.0722)
    light = sorted(sum(w * part for w, part in zip(weights, linear(each), strict=True)) for each in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


def lab(light: list[float]) -> tuple[float, float, float]:
    red, green, blue = (min(1.0, max(0.0, part)) for part in light)
    white = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883,
    )
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in white)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one: list[float], other: list[float]) -> float:
    """How different two colours look (CIE 1976)."""
    return sum((a - b) ** 2 for a, b in zip(lab(one), lab(other), strict=True)) ** 0.5


def to_deuteranopes(light: list[float]) -> list[float]:
    return [sum(weight * part for weight, part in zip(row, light, strict=True)) for row in DEUTERANOPIA]


def meanings(theme: Theme) -> dict[str, str]:
    """The colours that stand for something."""
    own = {"weights": theme.primary, "accent": theme.accent, "warning": theme.warning, "error": theme.error}
    return {name: str(colour) for name, colour in (own | theme.variables).items()}


@pytest.mark.parametrize("theme", OWN, ids=lambda theme: theme.name)
def test_every_text_of_a_theme_of_ours_stands_out_from_what_is_behind_it(theme: Theme) -> None:
    texts = meanings(theme) | {"text": str(theme.foreground), "good": str(theme.success)}
    found = {
        (name, behind): contrast(colour, str(behind))
        for name, colour in texts.items()
        for behind in (theme.background, theme.surface)
    }
    assert {place: value for place, value in found.items() if value < READABLE} == {}


@pytest.mark.parametrize("theme", OWN, ids=lambda theme: theme.name)
def test_what_means_different_things_is_told_apart_by_everybody(theme: Theme) -> None:
    told = {name: colour for name, colour in meanings(theme).items() if name != "context"}  # which is grey
    for one, other in itertools.combinations(told, 2):
        pair = linear(told[one]), linear(told[other])
        assert distance(*pair) >= APART, (one, other)
        assert distance(*map(to_deuteranopes, pair)) >= APART_TO_DEUTERANOPES, (one, other)


@pytest.mark.parametrize("name", [*THEMES, "nord", "textual-light"])
async def test_every_theme_has_all_the_colours_of_a_gauge(name: str) -> None:
    app = Frame[None](driver=None)
    async with app.run_test() as pilot:
        app.theme = name
        await pilot.pause()
        assert GAUGE["dark"].keys() <= app.get_css_variables().keys()


SIXTEEN = (
    "000000 cd0000 00cd00 cdcd00 0000ee cd00cd 00cdcd e5e5e5 7f7f7f ff0000 00ff00 ffff00 5c5cff ff00ff 00ffff ffffff",
    "000000 aa0000 00aa00 aa5500 0000aa aa00aa 00aaaa aaaaaa 555555 ff5555 55ff55 ffff55 5555ff ff55ff 55ffff ffffff",
    "2e3436 cc0000 4e9a06 c4a000 3465a4 75507b 06989a d3d7cf 555753 ef2929 8ae234 fce94f 729fcf ad7fa8 34e2e2 eeeeec",
)
"""What xterm, the console of Linux and GNOME's terminal draw their sixteen colours in."""


@pytest.mark.parametrize("palette", SIXTEEN, ids=["xterm", "linux", "gnome"])
async def test_a_warning_is_read_on_white_where_a_terminal_has_sixteen_colours_of_its_own(palette: str, monkeypatch):
    """In a theme that leaves colours to it, on white and black; in a light one of ours, on what stands behind it."""
    drawn_in = [f"#{each}" for each in palette.split()]

    def shown(colour: str) -> str:
        return drawn_in[Color.parse(colour.removeprefix("ansi_")).downgrade(ColorSystem.STANDARD).number or 0]

    behind = {DAYLIGHT.name: (DAYLIGHT.background, DAYLIGHT.surface), ANSI: ("black", "bright_white")}
    app = Frame[None](driver=None)
    async with app.run_test() as pilot:
        monkeypatch.setattr(app.console, "_color_system", ColorSystem.STANDARD)
        for theme, backgrounds in behind.items():
            app.theme = theme
            await pilot.pause()
            warning = app.get_css_variables()["warning"]
            # What a terminal writes all else in stands out from what it writes on.
            low = [each for each in backgrounds if contrast(shown(warning), shown(str(each))) < READABLE]
            assert warning == "ansi_default" or not low, (theme, low)


async def test_a_warning_keeps_its_colour_where_that_can_be_read(monkeypatch):
    app = Frame[None](driver=None)
    async with app.run_test() as pilot:
        for system, theme in ((ColorSystem.STANDARD, SIGNAL), (ColorSystem.EIGHT_BIT, DAYLIGHT)):
            monkeypatch.setattr(app.console, "_color_system", system)
            app.theme = theme.name
            await pilot.pause()
            assert contrast(app.get_css_variables()["warning"].lower(), str(theme.warning)) < 1.1


def test_a_light_theme_of_our_own_is_among_those_that_are_walked_through() -> None:
    own = {theme.name: theme for theme in OWN}
    assert [name for name in THEMES if name in own and not own[name].dark] == ["daylight"]
    assert {"work", "context", "others", "limit"} <= set(STYLES)
