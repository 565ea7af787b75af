"""The events pane follows, stands still, filters and finds; the detail of an event leaves nothing out."""

import base64
import itertools
import time

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.app import App, ComposeResult
from textual.events import MouseScrollDown, MouseScrollUp

from interlock.console.screens import event as detail
from interlock.console.screens.event import EventScreen
from interlock.console.text.dialog_text import exported
from interlock.engine.record import events as ev
from interlock.engine.record.events import Entry
from interlock.engine.record.words import safe
from interlock.widgets.panes.events import SEVERITIES, EventsPane, Line, Sieve, rows, title
from interlock.widgets.text import plain, width_of
from tests.test_lines import EVENTS, HOSTILE, entry, example

HEIGHT = 8
SIZE = (80, HEIGHT + 2)


def line(seq: int, text: str = "", severity: str = "note", word: str = "lease") -> Line:
    return Line(seq, 1_795_000_000.0 + seq, severity, word, text or f"line {seq}")


def lines(count: int, first: int = 0) -> tuple[Line, ...]:
    return tuple(line(seq) for seq in range(first, first + count))


class Tiny(App[None]):
    """One pane, and nothing else; `painted` are the screen's lines that were written to the terminal."""

    CSS = "Screen { layout: vertical; }"

    def __init__(self, **how) -> None:
        super().__init__()
        self.pane = EventsPane(**how)
        self.painted: set[int] = set()

    def compose(self) -> ComposeResult:
        yield self.pane

    def _display(self, screen, renderable):
        whole = range(self.size.height)
        if renderable is not None:
            self.painted |= {span[0] for span in renderable.spans} if hasattr(renderable, "spans") else set(whole)
        super()._display(screen, renderable)

    async def painting(self, pilot) -> set[int]:
        """What was painted since this was asked before; 0 and the last are the border."""
        await pilot.pause(0.1)
        painted, self.painted = self.painted, set()
        return painted

    @property
    def shown(self) -> list[str]:
        """The pane's rows as text."""
        return [text.rstrip() for text in plain(self.pane._rows)]

    @property
    def above(self) -> str:
        """The pane's title."""
        return str(self.pane._border_title)


def texts(app: Tiny) -> list[str]:
    return [text.rpartition("lease")[2].strip() for text in app.shown if "lease" in text]


@settings(max_examples=150, deadline=None)
@given(
    found=st.lists(st.tuples(st.sampled_from(SEVERITIES), HOSTILE, HOSTILE, st.floats(allow_nan=True)), max_size=6),
    size=st.tuples(st.integers(0, 160), st.integers(0, 9)),
    chosen=st.one_of(st.none(), st.integers(0, 6)),
    pattern=st.one_of(HOSTILE, st.sampled_from(["a", " ", ".*", "x"])),
)
def test_hostile_lines_fill_the_width_exactly_and_steer_nothing(found, size, chosen, pattern):
    told = [Line(seq, at, severity, word, text) for seq, (severity, word, text, at) in enumerate(found)]
    width, height = size
    made = rows(told, chosen, 0, width, height, sieve=Sieve(pattern=pattern))
    assert len(made) == (height if width else 0)
    for row, text in zip(made, plain(made), strict=True):
        assert sum(width_of(span.text) for span in row) == width
        assert text == safe(text, 10_000)


def test_a_severity_is_a_sign_and_on_a_wide_screen_a_word_too():
    told = [line(seq, "it happened", severity) for seq, severity in enumerate(SEVERITIES)]
    narrow, wide = (plain(rows(told, None, 0, width, 4)) for width in (80, 120))
    assert [text[10] for text in narrow] == ["·", "i", "!", "X"]
    assert [text.split()[2] for text in wide] == list(SEVERITIES)
    assert plain(rows(told, 1, 0, 20, 4))[1] == "▸i it happened      "
    assert plain(rows(told, 1, 0, 10, 4))[1] == "▸i it hap…"
    for at, style in ((2, "chosen warn"), (3, "chosen error")):  # which the line under the cursor keeps
        assert [span.style for span in rows(told, at, 0, 120, 4)[at]][2:4] == [style, style]


def test_the_time_of_a_line_is_local(monkeypatch):
    monkeypatch.setenv("TZ", "XXX-03:30")
    time.tzset()
    try:
        drawn = plain(rows([line(0)], None, 0, 60, 1))[0]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert drawn[1:9] == time.strftime("%H:%M:%S", time.gmtime(1_795_000_000 + 3.5 * 3600))


def test_a_found_pattern_is_marked_in_either_case_and_brought_before_the_cut():
    told = [line(0, "Out of memory, OUT of luck"), line(1, "y" * 90 + " out")]
    first, second = rows(told, None, 0, 80, 2, sieve=Sieve(pattern="out"))
    assert [span.text for span in first if span.style == "hit"] == ["Out", "OUT"]
    assert [span.text for span in second if span.style == "hit"] == ["out"]
    assert [span.text for span in rows(told, 0, 0, 80, 1, sieve=Sieve(pattern=".*"))[0] if span.style == "hit"] == []


def test_an_empty_pane_says_so():
    assert plain(rows([], None, 0, 30, 2))[0].strip() == "nothing yet"
    assert plain(rows([], None, 0, 50, 2, sieve=Sieve("! -lease"), back="f9"))[0].strip() == (
        "nothing with /! -lease: f9 shows all"
    )


def test_a_hostile_pattern_is_short_plain_text_in_the_title():
    assert title("6 Events", Sieve(), following=True, fresh=0) == "6 Events  follow"
    told = title("6 Events", Sieve("[red]\x1b" + "x" * 99), following=False, fresh=12)
    assert told.startswith("6 Events  +12  /[red]\\x1bxxx") and len(told) < 70


async def test_the_latest_line_is_at_the_bottom_while_following():
    app = Tiny()
    async with app.run_test(size=SIZE) as pilot:
        app.pane.feed(lines(3))
        assert texts(app) == ["line 0", "line 1", "line 2"]
        app.pane.feed(lines(20))
        await pilot.pause()
        assert texts(app) == [f"line {seq}" for seq in range(12, 20)]
        assert (app.pane.chosen.seq, app.above) == (19, "6 Events  follow")


async def test_lines_fed_before_the_pane_has_a_size_are_drawn_once_it_has():
    app = Tiny()
    app.pane.feed(lines(20))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        assert texts(app)[-1] == "line 19"
        await pilot.resize_terminal(50, 6)
        await pilot.pause()
        assert texts(app) == [f"line {seq}" for seq in range(16, 20)]
        assert {width_of(text) for text in plain(app.pane._rows)} == {48}


async def test_the_view_stands_still_and_counts_new_lines_after_moving_up():
    app = Tiny()
    async with app.run_test(size=SIZE) as pilot:
        app.pane.feed(lines(20))
        await pilot.press("up", "k")
        before = texts(app)
        assert (app.pane.chosen.seq, app.above) == (17, "6 Events  +0")
        app.pane.feed(lines(25))
        assert (texts(app), app.pane.chosen.seq, app.above) == (before, 17, "6 Events  +5")
        await pilot.press("pagedown")
        assert (app.pane.chosen.seq, app.above) == (24, "6 Events  follow")
        await pilot.press("g")
        assert (app.pane.chosen.seq, texts(app)[0], app.pane.following) == (0, "line 0", False)
        await pilot.press("down", "j")
        assert app.pane.chosen.seq == 2
        for back in ("pagedown", "down"):  # whoever comes to the last line follows again
            await pilot.press(*["down"] * 26 if back == "down" else [back] * 4)
            app.pane.feed(lines(26))
            assert (app.pane.chosen.seq, app.pane.following) == (25, True)
            await pilot.press("g")


async def test_a_still_view_keeps_its_lines_while_old_ones_are_dropped():
    app = Tiny()
    async with app.run_test(size=SIZE) as pilot:
        app.pane.feed(lines(100))
        await pilot.press("pageup", "pageup")
        before, chosen = texts(app), app.pane.chosen
        app.pane.feed(lines(100, first=40))
        assert (texts(app), app.pane.chosen) == (before, chosen)
        app.pane.feed(lines(100, first=500))
        assert (app.pane.chosen.seq, texts(app)[0]) == (500, "line 500")


async def test_a_line_that_is_replaced_is_redrawn():
    app = Tiny()
    async with app.run_test(size=SIZE):
        app.pane.feed(lines(3))
        app.pane.feed((*lines(2), line(2, "9 more")))
        assert texts(app)[-1] == "9 more"


async def test_one_more_line_repaints_only_rows_that_changed():
    app = Tiny()
    async with app.run_test(size=SIZE) as pilot:
        app.pane.feed(lines(4))
        app.screen.set_focus(None)
        await app.painting(pilot)
        app.pane.feed(lines(5))
        assert await app.painting(pilot) == {5}
        app.pane.feed(lines(50))
        app.pane.move(-20)
        await app.painting(pilot)
        app.pane.feed(lines(60))
        assert (await app.painting(pilot), app.above) == ({0}, "6 Events  +10")
        app.pane.feed(lines(60))
        assert await app.painting(pilot) == set()
        app.pane.move(1)
        assert await app.painting(pilot) == {1, 2}


async def test_the_cursor_stays_near_its_line_whatever_is_let_through():
    app = Tiny()
    told = tuple(line(seq, severity=SEVERITIES[seq % 4]) for seq in range(40))
    async with app.run_test(size=SIZE):
        app.pane.feed(told)
        app.pane.move(-21)
        assert app.pane.chosen.seq == 18
        assert app.pane.sift("!") == 20
        assert app.pane.chosen.seq == 18
        app.pane.feed(tuple(line(seq) for seq in range(40)))
        assert (app.pane.chosen, app.pane.listed()) == (None, ())
        app.pane.feed(told)
        assert app.pane.sift("") == 40
        assert app.pane.chosen.seq == 18


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        ("", range(12)), ("!", [2, 3, 6, 7, 10, 11]), ("cache:", [2, 5, 8, 11]), ("! cache:", [2, 11]),
        ("lease: pass:", [0, 1, 3, 4, 6, 7, 9, 10]), ("-lease -pass", [2, 5, 8, 11]), ("LINE 1", [1, 10, 11]),
        ("! line 1", [10, 11]), ("pass", [1, 4, 7, 10]), ("cuda: -x", []),
    ],
)  # fmt: skip
def test_one_line_asks_for_what_went_wrong_for_kinds_and_for_a_text(typed, left):
    kinds = ("lease", "pass", "cache")
    told = [Line(seq, 0.0, SEVERITIES[seq % 4], kinds[seq % 3], f"line {seq}") for seq in range(12)]
    assert [each.seq for each in Sieve.of(typed, kinds).shown(told)] == [*left]


async def test_what_is_let_through_stands_in_the_title_until_it_is_cleared():
    app = Tiny()
    told = tuple(line(seq, "an OOM here" if seq % 10 == 0 else "") for seq in range(40))
    async with app.run_test(size=SIZE):
        app.pane.feed(told)
        assert (app.pane.sift("oom"), app.pane.chosen.seq) == (4, 30)
        assert [each.seq for each in app.pane.listed()] == [0, 10, 20, 30]
        assert app.above == "6 Events  follow  /oom  4 matches"
        assert (app.pane.clear(), len(app.pane.listed())) == (True, 40)
        assert app.pane.sift("LEASE") == 40
        assert (app.pane.sift("no such thing"), app.pane.chosen) == (0, None)
        assert any("nothing with /no such thing" in shown for shown in app.shown)
        assert app.pane.sift("[bold]x[/]") == 0 and app.above.endswith("/[bold]x[/]  0 matches")  # as it was typed
        assert app.pane.clear() is True and app.pane.clear() is False


@pytest.mark.parametrize("width", [40, 60, 80])
def test_what_is_found_behind_the_cut_comes_into_sight(width):
    told = [line(1, "x" * 90 + " needle " + "y" * 90)]
    (shown,) = rows(told, 0, 0, width, 1, sieve=Sieve(pattern="needle"))
    assert [span.text for span in shown if span.style == "hit"] == ["needle"]
    assert "…" in "".join(span.text for span in shown)
    assert sum(width_of(span.text) for span in shown) == width


async def test_keys_on_an_empty_pane_do_nothing_and_following_goes_on():
    app = Tiny()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("up", "down", "g", "pageup")
        await pilot.click(app.pane, offset=(5, 3))
        assert (app.pane.chosen, app.pane.following, app.pane.sift("x")) == (None, True, 0)
        app.pane.clear()
        app.pane.feed(lines(20))
        assert app.pane.chosen.seq == 19


async def test_clicks_and_the_wheel_choose_a_line():
    app = Tiny()
    async with app.run_test(size=SIZE) as pilot:
        app.pane.feed(lines(20))
        await pilot.click(app.pane, offset=(5, 3))
        assert (app.pane.chosen.seq, app.shown[2][0]) == (14, "▸")
        await pilot._post_mouse_events([MouseScrollUp], app.pane)
        assert app.pane.chosen.seq == 11
        await pilot._post_mouse_events([MouseScrollDown], app.pane)
        assert app.pane.chosen.seq == 14


@pytest.mark.parametrize("kind", EVENTS)
def test_the_detail_of_an_event_shows_every_field(kind):
    for filled, width in itertools.product((True, False), (1, 12, 40, 98)):
        made = detail.rows(entry(7, example(kind, "some text", filled)), width)
        assert {sum(width_of(span.text) for span in row) for row in made} <= {width, 0}
    told = "\n".join(plain(made))
    assert all(f"{name}:" in told for name in ("seq", "time", "session", *kind.__struct_fields__))


@settings(max_examples=150, deadline=None)
@given(text=HOSTILE, kind=st.sampled_from(EVENTS), width=st.integers(0, 60))
def test_hostile_fields_fit_the_detail_and_steer_nothing(text, kind, width):
    made = detail.rows(entry(7, example(kind, text)), width)
    for row, told in zip(made, plain(made), strict=True):
        assert sum(width_of(span.text) for span in row) in (0, width)
        assert told == safe(told, 10_000)


def test_a_long_value_is_shown_whole_in_the_detail():
    message = " ".join(f"word{number}" for number in range(3000))
    told = " ".join(text.strip() for text in plain(detail.rows(entry(7, ev.Warned(message=message)), 60)))
    assert message in told


def test_bytes_are_readable_in_the_detail():
    found = ev.ResidueFound(lease="L1", device="cuda:0", bytes=1536, action="cleared", left_bytes=0)
    told = [text.strip() for text in plain(detail.rows(entry(7, found), 60))]
    assert "bytes: 1536 (1.5 KiB)" in told and "left_bytes: 0 (0 B)" in told


@pytest.mark.parametrize("key", ["escape", "enter"])
async def test_closing_the_detail_brings_back_the_screen_below(key):
    app = Tiny()
    async with app.run_test(size=(80, 24)) as pilot:
        await app.push_screen(EventScreen(entry(7, ev.Warned(message="[/]\x1b[2J"))))
        assert isinstance(app.screen, EventScreen)
        await pilot.press("down", "pagedown")
        await pilot.press(key)
        assert not isinstance(app.screen, EventScreen)


async def test_copying_the_detail_puts_its_json_on_the_clipboard(monkeypatch):
    app, shown_entry = Tiny(), entry(7, ev.Warned(message="a\x1b[2J[/]b"))
    async with app.run_test(size=(60, 15)) as pilot:
        written: list[str] = []
        monkeypatch.setattr(app._driver, "write", written.append)
        await app.push_screen(EventScreen(shown_entry))
        await pilot.press("y")
        assert msgspec.json.decode(app.clipboard, type=Entry) == shown_entry
        sent = next(text for text in written if text.startswith("\x1b]52;c;"))
        assert base64.b64decode(sent[7:-1]).decode() == app.clipboard


def test_a_line_whose_time_is_none_is_saved_all_the_same():
    assert exported(Line(0, 1e300, "note", "run", "a")) == "--:--:-- note    run        a"
