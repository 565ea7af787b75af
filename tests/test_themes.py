"""Our themes: every text can be read, and what means different things has colours that everybody tells apart."""

import itertools

import pytest
from textual.theme import Theme

from interlock.console.apps.base import Frame
from interlock.console.look import GAUGE, OWN, THEMES
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


def test_a_light_theme_of_our_own_is_among_those_that_are_walked_through() -> None:
    own = {theme.name: theme for theme in OWN}
    assert [name for name in THEMES if name in own and not own[name].dark] == ["daylight"]
    assert {"work", "context", "others", "limit"} <= set(STYLES)
