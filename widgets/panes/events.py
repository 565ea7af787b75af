"""The events pane: what happened, the latest at the bottom, one line each, with its severity as a sign and a word.

It stays at the end until the operator moves up; then it stands still and counts what came since as `+N`.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar, Literal

from textual import events
from textual.binding import Binding, BindingType

from interlock.engine.record.words import drawn, several
from interlock.widgets.formats import clock
from interlock.widgets.pane import Pane, PaneKind
from interlock.widgets.text import CURSOR, DOT, ELLIPSIS, Row, Span, fit, fitted, width_of

Severity = Literal["note", "notice", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("note", "notice", "warning", "error")
SERIOUS: tuple[Severity, ...] = ("warning", "error")
WHEEL_LINES = 3
LONGEST_PATTERN = 24
"""Cells of a pattern that the title shows."""

_SIGNS: dict[Severity, str] = {"note": DOT, "notice": "i", "warning": "!", "error": "X"}
_STYLES: dict[Severity, str] = {"note": "dim", "notice": "accent", "warning": "warn", "error": "error"}
_TIMED, _WORDED, _SPELT = 24, 44, 100
"""Columns from which on a line has its time, its word, and its severity spelt out."""


@dataclass(frozen=True)
class Line:
    """Something that happened. `seq` rises from line to line; `at` is seconds since the epoch; `word` is its kind in a
    word (lease, cache, pass, ...)."""

    seq: int
    at: float
    severity: Severity
    word: str
    text: str


@dataclass(frozen=True)
class Sieve:
    """What lines are let through: those with a pattern, of no hidden kind, where `kinds` are named of one of them, and
    where only what is `serious` counts, warnings and errors."""

    typed: str = ""
    """What an operator wrote for that."""
    serious: bool = False
    kinds: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()
    pattern: str = ""

    @classmethod
    def of(cls, typed: str, known: Collection[str]) -> "Sieve":
        """Read what was typed, where `known` are kinds of events: `!` for what is serious, `lease:` for a kind alone,
        `-lease` for all but that; the rest is a pattern."""
        terms = typed.split()
        kinds = {term[:-1] for term in terms if term.endswith(":")} & {*known}
        hidden = {term[1:] for term in terms if term.startswith("-")} & {*known}
        signs = {"!", *(f"{kind}:" for kind in kinds), *(f"-{kind}" for kind in hidden)}
        pattern = " ".join(term for term in terms if term not in signs)
        return cls(typed.strip(), "!" in terms, frozenset(kinds), frozenset(hidden), pattern)

    def shown(self, lines: Sequence[Line]) -> list[Line]:
        """Choose the lines that it lets through."""
        find = self.finder
        return [
            line
            for line in lines
            if (not self.serious or line.severity in SERIOUS)
            and line.word not in self.hidden
            and (not self.kinds or line.word in self.kinds)
            and (find is None or find.search(line.text) or find.search(line.word))
        ]

    @property
    def finder(self) -> re.Pattern[str] | None:
        """What finds the pattern literally, in either case; None for an empty one."""
        return re.compile(re.escape(self.pattern), re.IGNORECASE) if self.pattern else None

    @property
    def word(self) -> str:
        """Say what it lets through, in few cells; nothing where that is all."""
        return f"/{drawn(self.typed, LONGEST_PATTERN)}" if self.typed else ""


EVERYTHING = Sieve()
SEQ = attrgetter("seq")


def rows(
    lines: Sequence[Line], chosen: int | None, top: int, width: int, height: int,
    *, sieve: Sieve = EVERYTHING, back: str = "esc",
) -> list[Row]:  # fmt: skip
    """Draw `height` rows of `width` cells from line `top` on; `lines` are those that `sieve` lets through, `back` is
    the key that lets all through."""
    if width < 1:
        return []
    find = sieve.finder
    shown = [_row(line, at == chosen, width, find) for at, line in enumerate(lines[top : top + height], top)]
    if not lines and height > 0:
        said = f"nothing with {sieve.word}: {back} shows all" if sieve.typed else "nothing yet"
        shown = [fitted([Span(f" {said}", "dim")], width)]
    shown += [(Span(" " * width),)] * (height - len(shown))
    return shown


def title(name: str, sieve: Sieve, *, following: bool, fresh: int, matches: int = 0) -> str:
    """Write what stands above the lines: `follow` or how much came since, what is held back, how many it leaves."""
    parts = [name, "follow" if following else f"+{fresh}"]
    return "  ".join([*parts, *[sieve.word, several(matches, "match", "matches")] * bool(sieve.typed)])


def _row(line: Line, chosen: bool, width: int, find: re.Pattern[str] | None) -> Row:
    style = _STYLES[line.severity]
    spans = [Span(CURSOR if chosen else " ")]
    if width >= _TIMED:
        spans.append(Span(clock(line.at) + " ", "dim"))
    spans.append(Span(_SIGNS[line.severity] + " ", style))
    if width >= _SPELT:
        spans.append(Span(fit(line.severity, 8), style))
    told = len(spans)
    if width >= _WORDED:
        spans += [*_marked(fit(line.word, 10), "bold", find), Span(" ")]
    left = width - sum(width_of(span.text) for span in spans)
    spans += _text(line, left, find)
    if chosen:
        serious = line.severity in SERIOUS
        under = [f"chosen {style}" if serious and span.style == style else "chosen" for span in spans[:told]]
        under += ["hit" if span.style == "hit" else "chosen" for span in spans[told:]]
        spans = [Span(span.text, name) for span, name in zip(spans, under, strict=True)]
    return fitted(spans, width)


def _text(line: Line, width: int, find: re.Pattern[str] | None) -> list[Span]:
    """The text, cut; where what was found would be behind the cut, the beginning is cut as well."""
    text, style = line.text, "error" if line.severity == "error" else ""
    hit = find.search(text) if find else None
    if hit and not (find and find.search(fit(text, width))):
        begin = max(0, hit.start() - max(0, width - len(hit.group()) - 2) // 2)
        text = ELLIPSIS + text[begin:]
    return _marked(fit(text, width), style, find)


def _marked(text: str, style: str, find: re.Pattern[str] | None) -> list[Span]:
    spans, place = [], 0
    for match in find.finditer(text) if find else ():
        spans += [Span(text[place : match.start()], style), Span(match.group(), "hit")]
        place = match.end()
    return [*spans, Span(text[place:], style)]


class EventsPane(Pane):
    """Lines to walk through. It is told all there are, as often as there are other ones."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("g", "home", "First", show=False),
        Binding("home", "screen.first", show=False),
        Binding("end", "screen.follow", show=False),
    ]

    def __init__(self, name: str = "6 Events", *, id: str = "events", back: str = "esc") -> None:
        """`back` is the key that calls `clear`."""
        super().__init__(id=id)
        self._heading = name
        self._back = back
        self._lines: tuple[Line, ...] = ()
        self._kept: list[Line] = []
        self._sieve = EVERYTHING
        self._place = 0
        self._seq = -1  # of the line under the cursor, which finds it again when places shift
        self._top = 0
        self.following = True
        """Whether the view goes with the end."""
        self._known = -1  # `seq` of the latest line that was on the screen

    @property
    def chosen(self) -> Line | None:
        """The line that the cursor is on; the latest while the end is followed."""
        return self._kept[self._place] if self._kept else None

    @property
    def fresh(self) -> int:
        """How many lines have not been on the screen yet."""
        return len(self._kept) - bisect_right(self._kept, self._known, key=SEQ)

    def listed(self) -> tuple[Line, ...]:
        """List the lines that the filter lets through, for an export."""
        return tuple(self._kept)

    def feed(self, lines: Sequence[Line]) -> None:
        """Take the lines that there are now, old ones with them; only rows that differ are painted."""
        if tuple(lines) != self._lines:
            self._lines = tuple(lines)
            self._keep()

    @property
    def sieve(self) -> Sieve:
        """What is let through."""
        return self._sieve

    def sift(self, typed: str) -> int:
        """Let through only what was asked for, as `Sieve.of` reads it, and mark it; return how many lines there are.

        The cursor stays on its line, or goes to the next one that is left.
        """
        self._sieve = Sieve.of(typed, {line.word for line in self._lines})
        self._keep()
        return len(self._kept)

    def clear(self) -> bool:
        """Let everything through again; whether anything was held back."""
        held_back = self._sieve != EVERYTHING
        self.sift("")
        return held_back

    def move(self, lines: int) -> None:
        """Move the cursor; who comes down to the last line follows again."""
        self._go(self._place + lines, follow=lines > 0)

    def follow(self) -> None:
        self._go(len(self._kept) - 1, follow=True)

    action_move, action_follow = move, follow

    def action_page(self, pages: int) -> None:
        self.move(pages * max(1, self.inner_height - 1))

    def action_home(self) -> None:
        self._go(0)

    def on_resize(self) -> None:
        self._draw()

    def watch_has_focus(self, _has_focus: bool) -> None:
        super().watch_has_focus(_has_focus)
        self._draw()

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset and self._top + offset.y < len(self._kept):
            self._go(self._top + offset.y)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.move(-WHEEL_LINES)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.move(WHEEL_LINES)

    def _keep(self) -> None:
        """Filter anew; what was under the cursor stays there, and at its height, while older lines go."""
        height = self._place - self._top
        self._kept = self._sieve.shown(self._lines)
        if self.following:
            self.follow()
            return
        place = bisect_left(self._kept, self._seq, key=SEQ)
        self._top = place - height
        self._go(place)

    def _go(self, place: int, *, follow: bool = False) -> None:
        last = len(self._kept) - 1
        self._place = max(0, min(place, last))
        if self._kept:
            self.following = follow and self._place == last
            self._seq = self._kept[self._place].seq
        self._draw()

    def _draw(self) -> None:
        height, width, lines, sieve = self.inner_height, self.inner_width, self._kept, self._sieve
        last = max(0, len(lines) - height)
        least, most = self._place - height + 1, self._place
        self._top = last if self.following else min(max(self._top, least, 0), most, last)
        bottom = len(lines) if self.following else min(len(lines), self._top + height)
        if bottom:
            self._known = max(self._known, lines[bottom - 1].seq)
        cursor = None if self.following and not self.has_focus else self._place
        self.show(rows(lines, cursor, self._top, width, height, sieve=sieve, back=self._back))
        told = title(self._heading, sieve, following=self.following, fresh=self.fresh, matches=len(lines))
        self.entitle(above=told)


PANE = PaneKind(
    "events", 6, "Events", help=[("up down", "move; the end follows again"), ("click", "choose an event")],
    sign="note, notice, warning, error",
)  # fmt: skip
