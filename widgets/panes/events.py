"""The events pane: what happened, the latest at the bottom, one line each, with its severity as a sign and a word.

It stays at the end until the operator moves up; then it stands still and counts what came since as `+N`.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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
LEVELS: dict[str, tuple[Severity, ...]] = {"all": SEVERITIES, "notices": SEVERITIES[1:], "warnings": SEVERITIES[2:]}
"""What the filter lets through, in the order in which it is walked through."""

ALL = "all"
WHEEL_LINES = 3
LONGEST_PATTERN = 24
"""Cells of a pattern that the title shows."""

_SIGNS: dict[Severity, str] = {"note": DOT, "notice": "i", "warning": "!", "error": "X"}
_STYLES: dict[Severity, str] = {"note": "dim", "notice": "accent", "warning": "warn", "error": "error"}
_TIMED, _WORDED, _SPELT = 24, 44, 100
"""Columns from which on a line has its time, its word, and its severity spelt out."""


@dataclass(frozen=True)
class Line:
    """Something that happened. `seq` rises from line to line; `at` is seconds since the epoch, `elapsed` since the
    session began; `word` is its kind in a word (lease, cache, pass, ...)."""

    seq: int
    at: float
    elapsed: float
    severity: Severity
    word: str
    text: str


@dataclass(frozen=True)
class Kind:
    """A kind of events, by its word: how many lines are of it, and whether they are shown."""

    word: str
    count: int
    shown: bool


@dataclass(frozen=True)
class Sieve:
    """What lines are let through: those of a level and of no hidden kind, with a pattern, and, where `only` is given,
    with one of these `seq`, which are those `about` something."""

    level: str = ALL
    hidden: frozenset[str] = frozenset()
    pattern: str = ""
    only: frozenset[int] | None = None
    about: str = ""

    def shown(self, lines: Sequence[Line]) -> list[Line]:
        """Choose the lines that it lets through."""
        find, severities = self.finder, LEVELS[self.level]
        return [
            line
            for line in lines
            if line.severity in severities
            and line.word not in self.hidden
            and (self.only is None or line.seq in self.only)
            and (find is None or find.search(line.text) or find.search(line.word))
        ]

    @property
    def finder(self) -> re.Pattern[str] | None:
        """What finds the pattern literally, in either case; None for an empty one."""
        return re.compile(re.escape(self.pattern), re.IGNORECASE) if self.pattern else None

    @property
    def words(self) -> list[str]:
        """Say what it holds back."""
        hidden = sorted(self.hidden)
        without = f"without {', '.join(hidden)}" if len(hidden) < 3 else f"{len(hidden)} kinds hidden"
        pattern = f"/{drawn(self.pattern, LONGEST_PATTERN)}"
        return [self.level, *[without] * bool(hidden), *filter(None, [self.about]), *[pattern] * bool(self.pattern)]


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
        nothing = f"no {sieve.level} yet" if sieve == Sieve(sieve.level) else f"nothing with {'  '.join(sieve.words)}"
        said = "nothing yet" if sieve == EVERYTHING else f"{nothing}: {back} shows all"
        shown = [fitted([Span(f" {said}", "dim")], width)]
    shown += [(Span(" " * width),)] * (height - len(shown))
    return shown


def title(name: str, sieve: Sieve, *, following: bool, fresh: int, matches: int = 0) -> str:
    """Write what stands above the lines: `follow` or how much came since, what is held back, how many it leaves."""
    level, *more = sieve.words
    parts = [name, level, "follow" if following else f"+{fresh}", *more]
    return "  ".join([*parts, *[several(matches, "match", "matches")] * bool(sieve.pattern)])


def _row(line: Line, chosen: bool, width: int, find: re.Pattern[str] | None) -> Row:
    style = _STYLES[line.severity]
    spans = [Span(CURSOR if chosen else " ")]
    if width >= _TIMED:
        spans.append(Span(clock(line.at) + " ", "dim"))
    spans.append(Span(_SIGNS[line.severity] + " ", style))
    if width >= _SPELT:
        spans.append(Span(fit(line.severity, 8), style))
    if width >= _WORDED:
        spans += [*_marked(fit(line.word, 10), "bold", find), Span(" ")]
    left = width - sum(width_of(span.text) for span in spans)
    spans += _text(line, left, find)
    if chosen:
        spans = [Span(span.text, span.style if span.style == "hit" else "chosen") for span in spans]
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
        Binding("home", "home", "First", show=False),
        Binding("end", "follow", "Follow", show=False),
    ]

    def __init__(self, name: str = "4 Events", *, id: str = "events", back: str = "esc") -> None:
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
    def level(self) -> str:
        """The least severity that is let through, by its name."""
        return self._sieve.level

    def cycle_level(self) -> str:
        """Go to the next level, from all to notices to warnings and back to all; return it.

        The cursor stays on its line, or goes to the next one that is left.
        """
        names = list(LEVELS)
        self._sift(replace(self._sieve, level=names[(names.index(self.level) + 1) % len(names)]))
        return self.level

    def show_level(self, level: str) -> None:
        """Let through what a level does, whatever was held back before."""
        self._sift(Sieve(level))

    def show_only(self, seqs: Iterable[int], about: str) -> None:
        """Let through only the lines of these `seq`, which are those `about` something."""
        self._sift(Sieve(only=frozenset(seqs), about=about))

    def kinds(self) -> list[Kind]:
        """Count the lines of each kind, those that are held back too, in the order of the words."""
        counts = Counter(line.word for line in self._lines)
        hidden = self._sieve.hidden
        return [Kind(word, counts[word], word not in hidden) for word in sorted({*counts, *hidden})]

    def toggle(self, words: Iterable[str]) -> None:
        """Hide these kinds of events, or show those of them that are hidden."""
        self._sift(replace(self._sieve, hidden=self._sieve.hidden ^ frozenset(words)))

    def clear(self) -> bool:
        """Let everything through again; whether anything was held back."""
        held_back = self._sieve != EVERYTHING
        self._sift(EVERYTHING)
        return held_back

    def find(self, pattern: str) -> int:
        """Let through only lines with `pattern`, and mark it; return how many there are."""
        self._sift(replace(self._sieve, pattern=pattern))
        return len(self._kept) if pattern else 0

    def walk(self, way: int) -> bool:
        """Go to the next line with the pattern, or with -1 to the one before, round the end; False where none has
        it."""
        if not self._sieve.pattern or not self._kept:
            return False
        self._go((self._place + way) % len(self._kept))
        return True

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

    def _sift(self, sieve: Sieve) -> None:
        self._sieve = sieve
        self._keep()

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
    "events", 4, "Events", help=[("up down", "move; the end follows again"), ("click", "choose an event")],
    sign="note, notice, warning, error",
)  # fmt: skip
