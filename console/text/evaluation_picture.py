"""An evaluation as a picture in SVG: quality against bytes a text, and against milliseconds a query.

Written by hand, so that nothing has to be installed for it; its colours follow the reader's light or dark scheme.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from interlock.engine.evaluation.measures import MAIN
from interlock.engine.evaluation.report import Evaluation, MeasuredWay
from interlock.engine.search.combine import SPARSE_SHARE

WIDTH, HEIGHT = 980, 520
TOP, BOTTOM, LEFT, GAP, RIGHT = 78, 62, 62, 60, 24
LABEL = 13.0
"""Least distance of two labels, from line to line."""
LETTER = 6.3
"""About the width of a letter of a label."""
STYLE = """
  svg { background: #ffffff; font: 12px system-ui, sans-serif }
  text { fill: #1b1f24 } .faint { fill: #57606a } .label { font-size: 11px }
  .grid { stroke: #d8dee4 } .lead { stroke: #8c959f }
  .models { fill: #6e7781 } .fusions { fill: #0969da } .storage { fill: #8250df }
  .sparse { fill: #bf8700 } .hybrid { fill: #1a7f37 } .rerank { fill: #cf222e }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117 }
    text { fill: #e6edf3 } .faint { fill: #9198a1 } .grid { stroke: #30363d } .lead { stroke: #6e7681 }
    .models { fill: #9198a1 } .fusions { fill: #58a6ff } .storage { fill: #bc8cff }
    .sparse { fill: #d29922 } .hybrid { fill: #3fb950 } .rerank { fill: #ff7b72 }
  }
"""


@dataclass(frozen=True)
class Panel:
    """One of the two diagrams: where it stands, which ways it has, and what its x is of a way."""

    left: float
    width: float
    title: str
    ways: Sequence[MeasuredWay]
    cost: Callable[[MeasuredWay], float]
    ticks: Sequence[float]


def picture(found: Evaluation) -> str:
    """Draw an evaluation. A way without a known time is in the first diagram only."""
    width = (WIDTH - LEFT - GAP - RIGHT) / 2
    small = [way for way in found.ways if way.group in ("models", "fusions", "storage")]
    timed = [way for way in found.ways if way.ms and not _aside(way, found)]
    panels = [
        Panel(LEFT, width, "bytes a text", small, lambda way: way.bytes, _doubled(small)),
        Panel(
            LEFT + width + GAP,
            width,
            "CPU milliseconds a query",
            timed,
            lambda way: way.ms or 0.0,
            _tens(timed),
        ),
    ]
    values = [way.measures[MAIN] for panel in panels for way in panel.ways]
    low, high = _range(values)
    groups = list(dict.fromkeys(way.group for panel in panels for way in panel.ways))
    title = f"{found.data}: {MAIN} against cost, {found.queries:,} judged queries"
    body = [
        f'<text x="{LEFT}" y="26" font-size="16" font-weight="600">{escape(title)}</text>',
        *_legend(groups),
        *(line for panel in panels if panel.ways for line in _panel(panel, low, high)),
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f"<style>{STYLE}</style>", *body, "</svg>\n"])


def _aside(way: MeasuredWay, found: Evaluation) -> bool:
    """Whether its time is that of another way: of another form, fusion or share than a search takes by itself."""
    other = {"fusions": way.name != found.fusion, "hybrid": not way.name.endswith(f", {SPARSE_SHARE:.1g}")}
    return other.get(way.group, way.group == "storage")


def _legend(groups: Sequence[str]) -> list[str]:
    lines, x = [], float(LEFT)
    for group in groups:
        lines.append(f'<circle class="{group}" cx="{x + 5:.0f}" cy="46" r="5"/>')
        lines.append(f'<text x="{x + 15:.0f}" y="50">{group}</text>')
        x += 36 + LETTER * len(group)
    return lines


def _panel(panel: Panel, low: float, high: float) -> list[str]:
    bottom = HEIGHT - BOTTOM
    costs = [math.log(max(panel.cost(way), 1e-3)) for way in panel.ways]
    first, last = min(costs), max(costs)
    margin = max(0.1 * (last - first), 0.3)
    first, last = first - margin, last + margin

    def across(cost: float) -> float:
        return panel.left + panel.width * (math.log(max(cost, 1e-3)) - first) / (last - first)

    def up(value: float) -> float:
        return bottom - (bottom - TOP) * (value - low) / (high - low)

    lines = []
    for value in _steps(low, high):
        y = up(value)
        lines.append(f'<path class="grid" d="M{panel.left:.0f} {y:.1f}h{panel.width:.0f}"/>')
        lines.append(_text(panel.left - 8, y + 4, f"{value:.2f}", "end", "faint"))
    for tick in panel.ticks:
        if first < math.log(tick) < last:
            x = across(tick)
            lines.append(f'<path class="grid" d="M{x:.1f} {bottom}v5"/>')
            lines.append(_text(x, bottom + 19, f"{tick:,g}", "middle", "faint"))
    middle = panel.left + panel.width / 2
    lines.append(_text(middle, HEIGHT - 18, panel.title, "middle"))
    points = [(across(panel.cost(way)), up(way.measures[MAIN]), way) for way in panel.ways]
    for (x, y, way), at in zip(points, _apart(points, panel), strict=True):
        name = escape(way.name)
        lines.append(f'<circle class="{way.group}" cx="{x:.1f}" cy="{y:.1f}" r="5"><title>{name}</title></circle>')
        if at is None:
            continue
        right, label_y = at
        text_x, anchor = (x + 10, "start") if right else (x - 10, "end")
        if abs(label_y - y) > LABEL:
            lines.append(f'<path class="lead" d="M{x:.1f} {y:.1f}L{text_x:.1f} {label_y:.1f}"/>')
        lines.append(_text(text_x, label_y + 4, way.name, anchor, "label"))
    return lines


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    own = f' class="{kind}"' if kind else ""
    return f'<text{own} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _apart(points: Sequence[tuple[float, float, MeasuredWay]], panel: Panel) -> list[tuple[bool, float] | None]:
    """Where each label stands (right of its point, and how high) so that none lies over another; None for one that
    finds no place, whose point tells its name where a pointer rests on it."""
    taken: list[tuple[float, float, float]] = [(x - 5, x + 5, y) for x, y, _ in points]
    places: list[tuple[bool, float] | None] = []
    for x, y, way in points:
        length = LETTER * len(way.name)
        found = None
        for shift in (0, -1, 1, -2, 2, -3, 3):
            for right in (True, False):
                begin = x + 10 if right else x - 10 - length
                inside = begin > panel.left - 4 and begin + length < panel.left + panel.width + RIGHT
                at = y + shift * LABEL
                free = all(
                    begin > end or begin + length < start or abs(at - line) >= LABEL - 1 for start, end, line in taken
                )
                if found is None and inside and free and TOP - 20 < at < HEIGHT - BOTTOM:
                    found = (right, at)
                    taken.append((begin, begin + length, at))
        places.append(found)
    return places


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = max(0.06 * (high - low), 0.005)
    return low - margin, high + margin


def _steps(low: float, high: float) -> list[float]:
    """Round numbers within a range, four to nine of them."""
    step = next(size for size in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2) if (high - low) / size <= 9 or size == 0.2)
    return [at * step for at in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _tens(ways: Sequence[MeasuredWay]) -> list[float]:
    """1, 10, 100 where the times of the ways are far apart, else 1, 2, 5, 10 as well."""
    times = [way.ms for way in ways if way.ms]
    far = max(times, default=1.0) / min(times, default=1.0) > 30
    return [digit * 10.0**power for power in range(-3, 7) for digit in ((1,) if far else (1, 2, 5))]


def _doubled(ways: Sequence[MeasuredWay]) -> list[float]:
    return [2.0**power for power in range(3, 40)] if ways else []
