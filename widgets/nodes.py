"""A JSON document as nodes that are made when they are asked for; two documents that are compared make one of them.

Pure and without a terminal. A `Node` is a place: the steps to it, and what stands there in the first document and, when
two are compared, in the second. Every walk is a loop, so depth costs no stack, and nothing is left out of a comparison.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from interlock.engine.record import words

Step = str | int
"""A key, or the number of an item: from 0 in the first document; where only the second has it, from -1 downwards."""
Steps = tuple[Step, ...]


class No(Enum):
    """What stands in for a value."""

    VALUE = "no value here"
    OTHER = "no other document"


@dataclass(frozen=True, slots=True)
class Node:
    """One place of the outline."""

    steps: Steps
    here: object
    there: object = No.OTHER

    @property
    def value(self) -> object:
        """The first document's value; the second's where the first has none."""
        return self.there if self.here is No.VALUE else self.here

    @property
    def mark(self) -> str:
        """`-` only in the first, `+` only in the second, `~` it differs; empty where it is the same or to be opened."""
        if self.there is No.OTHER:
            return ""
        if self.here is No.VALUE:
            return "+"
        if self.there is No.VALUE:
            return "-"
        return "" if _alike(self.here, self.there) else "~"

    @property
    def branch(self) -> bool:
        """Whether there is anything below it."""
        return _branch(self.here) or _branch(self.there)

    @property
    def path(self) -> str:
        """`$.passes[1].peak`, as JSONPath writes it."""
        steps = (f"[{index(step)}]" if isinstance(step, int) else _key(step) for step in self.steps)
        return "$" + "".join(steps)

    @property
    def label(self) -> str:
        """What it is called among its siblings."""
        last = self.steps[-1] if self.steps else "$"
        return last if isinstance(last, str) else str(index(last))


def index(step: int) -> int:
    """Number an item in the document it is in."""
    return step if step >= 0 else ~step


def children(node: Node) -> Iterator[Node]:
    """Make what is below a node, in the order of the first document; what only the second has comes last."""
    here, there = node.here, node.there
    if there is No.OTHER:
        pairs: Iterable[tuple[Step, object, object]] = ((step, value, there) for step, value in _items(here))
    elif isinstance(here, dict) and isinstance(there, dict):
        pairs = _keyed(here, there)
    elif isinstance(here, list) and isinstance(there, list):
        pairs = _listed(here, there)
    elif _branch(here):
        pairs = ((step, value, No.VALUE) for step, value in _items(here))
    else:
        pairs = ((~step if isinstance(step, int) else step, No.VALUE, value) for step, value in _items(there))
    for step, one, other in pairs:
        yield Node((*node.steps, step), one, other)


def walk(top: Node, deeper: Callable[[Node], bool] = lambda _: True) -> Iterator[Node]:
    """Visit the node and everything below it, in order; below a node only where `deeper` says so."""
    stack = [iter((top,))]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            continue
        yield node
        if node.branch and deeper(node):
            stack.append(children(node))


def differences(top: Node) -> list[Node]:
    """Find every place where two documents differ, in order; a branch that only one has counts as one.

    Named items that only changed their places are the same here, so it can refuse nothing: `record.compare` does, to
    which the order of a list is part of it.
    """
    return [node for node in walk(top, lambda node: not node.mark) if node.mark]


def inside(places: Sequence[Node]) -> Mapping[Steps, int]:
    """Count how many of these places each branch above them holds."""
    counts: Counter[Steps] = Counter(node.steps[:-1] for node in places if node.steps)
    for depth in range(max(map(len, counts), default=0), 0, -1):
        for steps in [steps for steps in counts if len(steps) == depth]:
            counts[steps[:-1]] += counts[steps]
    return counts


def sought(top: Node, text: str) -> Iterator[Steps | None]:
    """Look for `text` in keys and values, in any case of letters: the steps to each that has it, None for each that has
    not."""
    wanted = text.casefold()
    for node in walk(top):
        last = node.steps[-1] if node.steps else 0
        said = (last if isinstance(last, str) else "", *map(_text, (node.here, node.there)))
        yield node.steps if any(wanted in each.casefold() for each in said) else None


def written(value: object, limit: int = 500) -> str:
    """Write a value on one line: JSON, or how much a branch holds."""
    match value:
        case dict():
            return f"{{{len(value)}}}"
        case list():
            return f"[{len(value)}]"
        case str():
            return json.dumps(value[:limit] + ("…" if len(value) > limit else ""), ensure_ascii=False)
        case No():
            return "nothing"
    return json.dumps(value)


def human(steps: Steps, value: object) -> str:
    """Write bytes and seconds as people read them, by the name of the field; empty where there is nothing to add."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    names = [step for step in steps[-2:] if isinstance(step, str)]
    name, above = names[-1] if names else "", names[0] if names else ""
    if is_bytes(name) or above == "budgets":
        return words.human_bytes(value) if abs(value) >= 1024 else ""
    return words.duration(value) if re.search(r"(^|_)seconds$", name) and value >= 60 else ""


def is_bytes(name: str) -> bool:
    """Tell whether a field of this name holds a number of bytes."""
    return re.search(r"(^|_)bytes$", name) is not None or name in MEMORY


MEMORY = ("allocated", "occupied", "reserved", "used", "total", "others")
"""Fields that are bytes and do not say so in their names."""
IDENTITY = (
    ("name",), ("lease",), ("path",), ("model",), ("model_pass", "batch_index", "device", "rung"),
    ("model_pass", "device"), ("model_pass", "row"), ("file", "record"), ("device",),
)  # fmt: skip
"""By which fields the items of two lists are matched: the first that all of them have and no two share."""
TITLES = ("name", "model", "rung", "path", "file", "control", "device", "lease", "point")


def title(value: object) -> str:
    """Find what an item of a list calls itself; empty where it has no name."""
    texts = (value.get(name) for name in TITLES) if isinstance(value, dict) else ()
    return next((text for text in texts if isinstance(text, str) and text), "")


def _branch(value: object) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _items(value: object) -> Iterable[tuple[Step, object]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _alike(here: object, there: object) -> bool:
    """Whether nothing is to be said of the two themselves; two branches of a kind differ only inside."""
    if isinstance(here, dict | list):
        return type(here) is type(there)
    return here == there and isinstance(here, bool) == isinstance(there, bool)


def _keyed(here: dict[str, object], there: dict[str, object]) -> Iterator[tuple[Step, object, object]]:
    for key, value in here.items():
        yield key, value, there.get(key, No.VALUE)
    for key, value in there.items():
        if key not in here:
            yield key, No.VALUE, value


def _listed(here: list[object], there: list[object]) -> Iterator[tuple[Step, object, object]]:
    ours, theirs = _names(here, there)
    where = {name: place for place, name in enumerate(theirs)}
    for place, value in enumerate(here):
        match = where.pop(ours[place], None)
        yield place, value, No.VALUE if match is None else there[match]
    for place in where.values():
        yield ~place, No.VALUE, there[place]


def _names(here: list[object], there: list[object]) -> tuple[Sequence[object], Sequence[object]]:
    """What each item of two lists is matched by: its name where that is plain, else its number."""
    for fields in IDENTITY if here and there else ():
        ours, theirs = _named(here, fields), _named(there, fields)
        if ours and theirs:
            return ours, theirs
    return range(len(here)), range(len(there))


def _named(items: list[object], fields: tuple[str, ...]) -> list[object]:
    """The items' names by these fields; none where one has no such name, or two have the same."""
    names: list[object] = []
    for item in items:
        name = tuple(item.get(field, No.VALUE) for field in fields) if isinstance(item, dict) else (No.VALUE,)
        if not all(part is None or isinstance(part, str | int) for part in name):
            return []
        names.append(name)
    return names if len(set(names)) == len(names) else []


def _key(step: str) -> str:
    return f".{step}" if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", step, re.ASCII) else f"[{json.dumps(step)}]"


def _text(value: object) -> str:
    """A value as it is searched in; branches and what is not there are nothing to find."""
    if isinstance(value, str):
        return value
    return "" if isinstance(value, dict | list | No) else json.dumps(value)
