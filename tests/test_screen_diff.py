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

from interlock.console.terminal import screen_diff as styles
from interlock.console.terminal.screen_diff import RESET, ScreenDiff

COLUMNS, ROWS = 24, 5
CODES = ["0", "1", "3", "4", "5", "7", "9", "22", "23", "24", "25", "27", "29", "39", "49", "31", "94", "42", "103"]
CODES += ["38;2;1;2;3", "38;5;200", "48;2;9;9;9", "48;5;17", ""]
STRANGE = ["73", "4:3", "58;5;1"]
WHOLE = ["bg", "bold", "italics", "underscore", "strikethrough", "reverse", "blink"]
ATTRIBUTES = ["bold", "dim", "italic", "underline", "blink", "blink2", "reverse", "conceal", "strike"]
ATTRIBUTES += ["underline2", "frame", "encircle", "overline"]
WITHOUT_STYLES = re.compile(r"\x1b\[[0-9;]*m")

sets = st.lists(st.sampled_from(CODES), min_size=1, max_size=4).map(lambda codes: f"\x1b[{';'.join(codes)}m")
moves = st.tuples(st.integers(1, ROWS), st.integers(1, COLUMNS)).map(lambda to: f"\x1b[{to[0]};{to[1]}H")
texts = st.sampled_from(["a", "word ", "   ", " ", "│é漢", "e\u0301", "x\r\n", "  \r\n", "\r\n"])
others = st.sampled_from(["\x1b[2J", "\x1b[K", "\x1b[?25l", "\x1b[?2026$p", "\x1b]2;title\x07", "\x1b]9;a\x1b\\", "\a"])
tokens = st.lists(st.one_of(sets, sets, texts, texts, texts, moves, others), max_size=30)
pieces = st.one_of(tokens.map("".join), st.sampled_from([RESET, *(f"\x1b[{code}m" for code in STRANGE)]))

segments = st.tuples(sets, st.sampled_from(["a", "b", "ab   ab", "      ", "──│", "漢x"])).map(
    lambda made: f"{made[0]}{made[1]}{RESET}"
)
rows = st.dictionaries(
    st.integers(1, ROWS), st.tuples(st.integers(1, 5), st.lists(segments, min_size=1, max_size=2)), min_size=1
)


@st.composite
def frames(draw: st.DrawFn) -> str:
    """What Textual paints: rows from the top down, each after a move, and where the cursor is to rest."""
    made = sorted(draw(rows).items())
    return "\n".join(f"\x1b[{row};{at}H{''.join(text)}" for row, (at, text) in made) + draw(moves)


streams = st.lists(st.one_of(frames(), frames(), pieces), max_size=8)


def cells(stream: list[str]) -> list[list[tuple[object, ...]]]:
    """Every cell as it is seen: of a blank the colour of its sign is nothing."""
    screen = pyte.Screen(COLUMNS, ROWS)
    terminal = pyte.Stream(screen)
    for piece in stream:
        terminal.feed(piece.replace("\x1b[?2026$p", "").replace("\x1b[4:3m", ""))
    return [[_seen(screen.buffer[row][column]) for column in range(COLUMNS)] for row in range(ROWS)]


def _seen(cell: pyte.screens.Char) -> tuple[object, ...]:
    if cell.data == " " and not (cell.underscore or cell.strikethrough or cell.reverse or cell.blink):
        return (" ", cell.bg)
    return (cell.data, cell.fg, *(getattr(cell, name) for name in WHOLE))


@given(streams)
@example(["\x1b[7;31m", "a", "\x1b[0m", " ", "\x1b[1m", " ", "b"])
@example(["\x1b[48;2;9;9;9m", " ", "\x1b[0m", "\x1b[2J", "a"])
@example(["\x1b[1;2m", "a", "\x1b[22;2m", "b", "\x1b[1;mc"])
@example(["\x1b[1;1Haa\x1b[1;1H", "\x1b[1;1Hba\x1b[1;1H", "\x1b[1;1H\x1b[K", "\x1b[1;1Hba\x1b[1;1H"])
def test_every_cell_looks_the_same_after_rewriting(stream: list[str]) -> None:
    thrift = ScreenDiff(COLUMNS, ROWS)
    sent = [thrift(piece) for piece in stream]
    assert cells(sent) == cells(stream)


@given(tokens)
def test_everything_that_is_no_style_stays_in_order_when_rewritten(stream: list[str]) -> None:
    thrift = ScreenDiff(COLUMNS, ROWS)
    sent = "".join(thrift(piece) for piece in stream)
    assert WITHOUT_STYLES.sub("", sent) == WITHOUT_STYLES.sub("", "".join(stream))


@given(frames(), st.integers(COLUMNS // 2, COLUMNS), st.integers(1, ROWS))
def test_a_frame_is_not_sent_twice_unless_the_size_changed(frame: str, columns: int, height: int) -> None:
    thrift = ScreenDiff(COLUMNS, ROWS)
    first = thrift(frame)
    if "漢" not in frame:
        assert re.fullmatch(r"\x1b\[\d+;\d+H", thrift(frame))
    thrift.fit(COLUMNS, ROWS)
    thrift.forget()
    assert len(WITHOUT_STYLES.sub("", thrift(frame))) == len(WITHOUT_STYLES.sub("", first))
    thrift.fit(columns, height)
    assert (columns, height) == (COLUMNS, ROWS) or len(thrift(frame)) > 10


@given(frames(), frames())
def test_nothing_is_taken_as_known_after_a_frame_for_a_larger_terminal(large: str, frame: str) -> None:
    thrift = ScreenDiff(3, 1)
    sent = [thrift(large)]
    thrift.fit(COLUMNS, ROWS)
    assert cells([*sent, thrift(frame)]) == cells([large, frame])


@given(st.lists(st.one_of(sets, texts, st.sampled_from(STRANGE).map(lambda code: f"\x1b[{code}m")), max_size=30))
def test_a_reset_clears_unknown_codes_that_went_through(stream: list[str]) -> None:
    strange = [f"\x1b[{code}m" for code in STRANGE]
    thrift = ScreenDiff(COLUMNS, ROWS)
    sent = "".join(thrift(piece) for piece in [*stream, "\x1b[0m.", "\x1b[0m"])
    assert sum(sent.count(each) for each in strange) == sum(piece in strange for piece in stream)
    if any(piece in strange for piece in stream):
        after = sent[max(sent.rindex(each) for each in strange if each in sent) :]
        assert re.search(r"\x1b\[(0|)(;|m)", after)


def listed(lines: list[str], beside: str, *, whole: bool) -> str:
    """A list of `lines` in rows 2 to 4 beside a column that has its own signs, as Textual paints it: whole with its
    border, or the list alone."""
    painted = {row: f"\x1b[{row};2H\x1b[32m{line:<16}{RESET}" for row, line in enumerate(lines, 2)}
    if whole:
        painted = {row: f"\x1b[{row};1H|{text[6:]}|\x1b[31m{beside * 6}{RESET}" for row, text in painted.items()}
        painted |= {row: f"\x1b[{row};1H{'-' * COLUMNS}" for row in (1, ROWS)}
    return "\n".join(text for _, text in sorted(painted.items())) + "\x1b[5;1H"


@given(
    st.lists(st.sampled_from(["a warning here", "LEASE AT REST", "1234567890"]), min_size=3, max_size=9),
    st.lists(st.sampled_from(["x", "yz", " "]), min_size=7, max_size=7),
)
def test_a_list_that_goes_on_is_moved_and_every_cell_beside_it_stays_in_its_place(told: list[str], gaps: list[str]):
    lines = [f"{at} {line}"[:16] for at, line in enumerate(told)]
    frames = [listed(lines[at : at + 3], "=", whole=not at) for at in range(len(lines) - 2)]
    frames = [each for frame, gap in zip(frames, gaps, strict=False) for each in (frame, f"\x1b[1;3H{gap}\x1b[5;1H")]
    thrift = ScreenDiff(COLUMNS, ROWS)
    assert cells([thrift(frame) for frame in frames]) == cells(frames)


def test_a_list_that_goes_on_costs_its_new_line_and_a_row_of_no_cells_nothing() -> None:
    thrift = ScreenDiff(COLUMNS, ROWS)
    for at in range(3):
        sent = thrift(listed([sign * 16 for sign in "abcdef"[at : at + 3]], "=", whole=not at))
    assert sent.startswith("\x1b[2;4r\x1b[4;1H\n\x1b[r\x1b[4;1H") and set(re.findall("[a-f]", sent)) == {"e"}
    assert thrift("\x1b[2;25H\n\x1b[3;1H\x1b[0m|\x1b[5;1H") == "\x1b[5;1H"


def test_what_did_not_change_is_jumped_over_where_that_is_shorter() -> None:
    thrift = ScreenDiff(COLUMNS, ROWS)
    thrift("\x1b[2;1H████████ab\x1b[5;1H")
    assert thrift("\x1b[2;1H▁██████▁cb\x1b[5;1H") == "\x1b[2;1H▁\x1b[6C▁c\x1b[5;1H"
    assert thrift("\x1b[2;1H█a█████▁db\x1b[5;1H") == "\x1b[2;1H█a\x1b[6Cd\x1b[5;1H"


def test_only_the_change_in_a_row_is_sent_and_each_style_once() -> None:
    def painted(*texts: str) -> str:
        colours = ["#4d5156", "#56b6c2", "#d5d9de", "#56b6c2"]
        row = [
            Segment(text, Style(color=colour, bgcolor="#14181d")) for text, colour in zip(texts, colours, strict=True)
        ]
        return "\x1b[3;1H" + Console(color_system="truecolor", force_terminal=True)._render_buffer(row) + "\x1b[1;1H"

    thrift = ScreenDiff(COLUMNS, ROWS)
    assert thrift(painted("│", "model", "     ", "│")) == (
        "\x1b[3;1H\x1b[38;2;77;81;86;48;2;20;24;29m│\x1b[38;2;86;182;194mmodel     │\x1b[1;1H"
    )
    assert thrift(painted("│", "model", "     ", "│")) == "\x1b[1;1H"
    assert thrift(painted("│", "modem", "     ", "│")) == "\x1b[3;6Hm\x1b[1;1H"


@pytest.mark.parametrize("system", ["standard", "256", "truecolor"])
def test_every_style_of_rich_is_known(system: str) -> None:
    colours = [Color.parse(name) for name in ("default", "red", "bright_blue", "color(99)", "#102030")]
    console = Console(color_system=system, force_terminal=True)
    for front, back, name in itertools.product(colours, colours, ATTRIBUTES):
        style = Style.from_color(front, back) + Style(**{name: True})
        painted = console._render_buffer([Segment("a", style)])
        assert styles.after(styles.PLAIN, painted[2 : painted.index("m")]) is not None


def test_a_reset_alone_is_sent() -> None:
    thrift = ScreenDiff(COLUMNS, ROWS)
    thrift("\x1b[1ma")
    assert thrift(RESET) == RESET
    assert thrift("a") == "a"
