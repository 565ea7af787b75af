"""What is sent with thrift looks exactly like what was painted, and is shorter."""

import itertools
import re

import pyte
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.color import Color
from rich.console import Console
from rich.segment import Segment
from rich.style import Style

from console.thrift import RESET, Thrift

COLUMNS, ROWS = 24, 5
CODES = ["0", "1", "3", "4", "5", "7", "9", "22", "23", "24", "25", "27", "29", "39", "49", "31", "94", "42", "103"]
CODES += ["38;2;1;2;3", "38;5;200", "48;2;9;9;9", "48;5;17", ""]
STRANGE = ["73", "4:3", "58;5;1"]
WHOLE = ["bg", "bold", "italics", "underscore", "strikethrough", "reverse", "blink"]
ATTRIBUTES = ["bold", "dim", "italic", "underline", "blink", "blink2", "reverse", "conceal", "strike"]
ATTRIBUTES += ["underline2", "frame", "encircle", "overline"]

sets = st.lists(st.sampled_from(CODES), min_size=1, max_size=4).map(lambda codes: f"\x1b[{';'.join(codes)}m")
moves = st.tuples(st.integers(1, ROWS), st.integers(1, COLUMNS)).map(lambda to: f"\x1b[{to[0]};{to[1]}H")
texts = st.sampled_from(["a", "word ", "   ", " ", "│é漢", "x\r\n", "  \r\n", "\r\n"])
others = st.sampled_from(["\x1b[2J", "\x1b[K", "\x1b[?25l", "\x1b[?2026$p", "\x1b]2;title\x07", "\x1b]9;a\x1b\\", "\a"])
pieces = st.lists(st.one_of(sets, sets, texts, texts, texts, moves, others), max_size=40)


def cells(stream: list[str]) -> list[list[tuple[object, ...]]]:
    """Every cell as it is seen: of a blank the colour of its sign is nothing."""
    screen = pyte.Screen(COLUMNS, ROWS)
    terminal = pyte.Stream(screen)
    for piece in stream:
        terminal.feed(piece.replace("\x1b[?2026$p", ""))
    return [[_seen(screen.buffer[row][column]) for column in range(COLUMNS)] for row in range(ROWS)]


def _seen(cell: pyte.screens.Char) -> tuple[object, ...]:
    if cell.data == " " and not (cell.underscore or cell.strikethrough or cell.reverse or cell.blink):
        return (" ", cell.bg)
    return (cell.data, cell.fg, *(getattr(cell, name) for name in WHOLE))


@given(pieces)
@example(["\x1b[7;31m", "a", "\x1b[0m", " ", "\x1b[1m", " ", "b"])
@example(["\x1b[48;2;9;9;9m", " ", "\x1b[0m", "\x1b[2J", "a"])
@example(["\x1b[1;2m", "a", "\x1b[22;2m", "b"])
def test_GIVEN_any_stream_WHEN_it_is_rewritten_THEN_every_cell_looks_the_same(
    stream: list[str],
) -> None:
    thrift = Thrift()
    sent = [thrift(piece) for piece in stream]
    assert cells(sent) == cells(stream)


@given(pieces)
def test_GIVEN_any_stream_WHEN_its_styles_are_taken_away_THEN_everything_else_is_still_there_in_order(
    stream: list[str],
) -> None:
    thrift = Thrift()
    without = re.compile(r"\x1b\[[0-9;]*m")
    assert without.sub("", "".join(thrift(piece) for piece in stream)) == without.sub("", "".join(stream))


@given(st.lists(st.one_of(sets, texts, st.sampled_from(STRANGE).map(lambda code: f"\x1b[{code}m")), max_size=30))
def test_GIVEN_codes_that_are_not_known_WHEN_a_reset_follows_THEN_they_went_through_and_nothing_is_left_of_them(
    stream: list[str],
) -> None:
    strange = [f"\x1b[{code}m" for code in STRANGE]
    thrift = Thrift()
    sent = "".join(thrift(piece) for piece in [*stream, "\x1b[0m.", "\x1b[0m"])
    assert sum(sent.count(each) for each in strange) == sum(piece in strange for piece in stream)
    if any(piece in strange for piece in stream):
        after = sent[max(sent.rindex(each) for each in strange if each in sent) :]
        assert re.search(r"\x1b\[(0|)(;|m)", after)


def test_GIVEN_a_row_as_textual_paints_it_WHEN_rewritten_THEN_each_style_is_said_once() -> None:
    row = [
        Segment("│", Style(color="#4d5156", bgcolor="#14181d")),
        Segment("model", Style(color="#56b6c2", bgcolor="#14181d", bold=True)),
        Segment("     ", Style(color="#d5d9de", bgcolor="#14181d")),
        Segment("│", Style(color="#56b6c2", bgcolor="#14181d")),
    ]
    painted = Console(color_system="truecolor", force_terminal=True)._render_buffer(row)
    thrift = Thrift()
    assert thrift(painted) == ("\x1b[38;2;77;81;86;48;2;20;24;29m│\x1b[1;38;2;86;182;194mmodel     \x1b[22m│")
    assert thrift(painted) == "\x1b[38;2;77;81;86m│\x1b[1;38;2;86;182;194mmodel     \x1b[22m│"


@pytest.mark.parametrize("system", ["standard", "256", "truecolor"])
def test_GIVEN_every_style_that_rich_has_WHEN_rewritten_THEN_it_is_known(system: str) -> None:
    colours = [Color.parse(name) for name in ("default", "red", "bright_blue", "color(99)", "#102030")]
    styles = [
        Style.from_color(*pair) + Style(**{name: True})
        for pair in itertools.product(colours, colours)
        for name in ATTRIBUTES
    ]
    console = Console(color_system=system, force_terminal=True)
    thrift = Thrift()
    for style in styles:
        thrift(console._render_buffer([Segment("a", style)]))
    assert not thrift._strange


def test_GIVEN_a_reset_alone_WHEN_rewritten_THEN_it_is_sent() -> None:
    thrift = Thrift()
    thrift("\x1b[1ma")
    assert thrift(RESET) == RESET
    assert thrift("a") == "a"
