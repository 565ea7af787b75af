"""What is shown of the chosen place of a summary: how it differs, a table or its value, and what the schema says of it.

Pure: rows of exactly `width` cells.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

from interlock.console.summary.document import Document, change, in_a_line, legend, meaning, told
from interlock.console.summary.tables import Table, listed, overview, table_of
from interlock.engine.record.words import safe
from interlock.widgets.nodes import No, Node, children, human, title, written
from interlock.widgets.text import Row, fit, fitted, row, table_rows, width_of, wrapped

MOST_LINES = 300
"""Lines that a value or a list of differences may take; the tree has all of it."""
FEW = 20
"""Rows of each table of the overview."""
LONGEST = 20_000
SHORT = 40
"""Signs of a text that is shown beside the same of other items."""
STYLES = {"-": "error", "+": "ok", "~": "warn", "": ""}


def rows(document: Document, node: Node, siblings: Sequence[Node], found: Sequence[Node], width: int) -> list[Row]:
    """Draw the chosen `node` beside its `siblings` in the list above, with the differences `found` below it."""
    # Type and meaning; of a branch, whose size the tree shows, only the meaning.
    sort = "" if node.branch else kind(node.value)
    text = ": ".join(filter(None, [sort, meaning(node.steps)]))
    about = list(_wrapped(text, width, "dim")) if node.steps and text else []
    body = list(_body(document, node, width))
    lines = [*_difference(node, found, width), *(about + body if node.branch else body + about)]
    lines += _others(node, siblings, width)
    return [fitted(line, width) for line in lines]


def kind(value: object) -> str:
    match value:
        case dict():
            return f"object of {len(value):,}"
        case list():
            return f"list of {len(value):,}"
        case bool():
            return "true or false"
        case str():
            return f"text of {len(value):,} characters"
        case int() | float():
            return "number"
    return "null"


def copied(value: object) -> str:
    """Write a value for the clipboard: text as it is where no sign of it could do harm in a terminal, else JSON."""
    if isinstance(value, str) and safe(value, len(value)) == value:
        return value
    return json.dumps(value, indent=2)


def _difference(node: Node, found: Sequence[Node], width: int) -> Iterator[Row]:
    if node.there is No.OTHER:
        return
    if node.mark in ("-", "+"):
        yield row((f"only in the {'first' if node.mark == '-' else 'second'}", STYLES[node.mark]))
    elif node.mark == "~":
        yield from _wrapped(f"first   {written(node.here, LONGEST)}", width, "error")
        yield from _wrapped(f"second  {written(node.there, LONGEST)}{_by(node)}", width, "ok")
    else:
        below = [each for each in found if each.steps[: len(node.steps)] == node.steps]
        below, others = told(below)
        yield from _wrapped(legend(len(below)) if below else "same in both", width, "bold")
        for each in below[:MOST_LINES]:
            yield row((in_a_line(each), STYLES[each.mark]))
        if len(below) > MOST_LINES:
            yield row((f"and {len(below) - MOST_LINES:,} more: n steps through all of them", "dim"))
        if others:
            yield from _wrapped(others, width, "dim")
    yield ()


def _by(node: Node) -> str:
    one, other = node.here, node.there
    if not (isinstance(one, int | float) and isinstance(other, int | float)) or isinstance(one, bool):
        return ""
    with suppress(OverflowError):
        share = change(one, other)
        return f"  ({other - one:+,.6g}{f', {share}' if share else ''})"
    return ""


def _body(document: Document, node: Node, width: int) -> Iterator[Row]:
    value = node.value
    if not node.steps:
        if node.there is No.OTHER:
            yield from _overview(document, width)
    elif cells := table_of(node.steps, value, MOST_LINES):
        yield from _table(cells, width)
    elif isinstance(value, dict | list):
        yield from _fields(node, width)
    elif node.mark != "~":
        extra = human(node.steps, value)
        text = value[:LONGEST] if isinstance(value, str) else written(value)
        yield from _wrapped(text + (f"  ({extra})" if extra else ""), width, "bold")


def _overview(document: Document, width: int) -> Iterator[Row]:
    reason = document.data.get("reason")
    if isinstance(reason, str) and reason:
        yield from _wrapped(reason, width, "warn")
    for place, each in enumerate(overview(document.data, FEW)):
        if place:
            yield ()
        yield row((f"{each.title} {each.count:,}", "bold"))
        yield from _table(each, width)


def _table(cells: Table, width: int) -> list[Row]:
    return table_rows(cells.heads, cells.rows, width, of=cells.count)


def _fields(node: Node, width: int) -> Iterator[Row]:
    """An object or a list, a line for each thing in it."""
    value = node.value
    pairs = list(islice(value.items() if isinstance(value, dict) else enumerate(listed(value)), MOST_LINES))
    longest = min(max((width_of(safe(key, 30)) for key, _ in pairs), default=0), width // 2)
    for key, each in pairs:
        extra = human((*node.steps, key), each)
        branch = isinstance(each, dict | list)
        text = f"{written(each)} {title(each)}" if branch else _text(each)
        name = fit(safe(key, 30), longest) + "  "
        yield row((name, "dim"), (text, "dim" if branch else ""), (extra and f"  {extra}", "dim"))


def _others(node: Node, siblings: Sequence[Node], width: int) -> Iterator[Row]:
    """The same field of the other items of the list: a number says little alone."""
    value = node.value
    if len(siblings) < 2 or isinstance(value, dict | list) or (isinstance(value, str) and len(value) > SHORT):
        return
    yield ()
    yield row(("same for each", "dim"))
    for item in siblings[:MOST_LINES]:
        for each in (child for child in children(item) if child.label == node.label):
            name = f"{item.label} {title(item.value)}"
            style = "chosen" if each.steps == node.steps else STYLES[each.mark]
            extra = human(each.steps, each.value)
            sign = f"{each.mark or ' '} " if each.there is not No.OTHER else ""
            text = f"{sign}{_text(each.value)}{f'  ({extra})' if extra else ''}"
            if each.mark == "~":
                text = f"~ {_text(each.here)} -> {_text(each.there)}"
            yield row((f"{fit(safe(name, 24), 24)}  {text}", style))


def _text(value: object) -> str:
    return value if isinstance(value, str) and value else written(value)


def _wrapped(text: str, width: int, style: str) -> Iterator[Row]:
    """A text of any length in lines, broken at blanks where it has them."""
    lines = [
        piece for line in text[:LONGEST].splitlines() or [""] for piece in wrapped(safe(line, LONGEST), width) or [""]
    ]
    for line in lines[:MOST_LINES]:
        yield row((line, style))
    if len(lines) > MOST_LINES or len(text) > LONGEST:
        yield row(("... (Y copies all of it)", "dim"))
