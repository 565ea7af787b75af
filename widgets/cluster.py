"""The devices of many nodes, folded: a line for each node with the fullest of its devices, and below one that is
unfolded a line for each of them.

The worst stands first: lost nodes, those that lack a device, then the fullest, in steps so that lines keep their places
for a while. Pure.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from interlock.engine.record.facts import node_of
from interlock.engine.record.snapshot import DeviceView
from interlock.engine.record.words import several
from interlock.widgets import gauges
from interlock.widgets.formats import several_devices
from interlock.widgets.gauges import Devices
from interlock.widgets.pane import Cursor
from interlock.widgets.text import CURSOR, FOLDED, UNFOLDED, Row, Span, fit, fitted, width_of

STEPS, LONGEST_NAME = 20, 16
"""Of the ceiling: nodes within one of these stand in the order of their names. Cells of a name, at most."""


class NodeLine(NamedTuple):
    """A node with its devices, or one device of it."""

    node: str
    devices: Devices
    device: str = ""

    @property
    def name(self) -> str:
        return self.device or self.node

    @property
    def lost(self) -> bool:
        """Whether nothing of it is left."""
        return all(each.lost for each in self.devices)

    @property
    def worst(self) -> DeviceView:
        """The fullest device that is left; any where none is."""
        return max(self.devices, key=lambda each: (not each.lost, each.share))


def several_nodes(devices: Devices) -> int:
    """Count the nodes that devices are of; one machine counts as one."""
    return len({node_of(each.facts.name) for each in devices})


def lines(devices: Devices, opened: Collection[str] = (), height: int = 0) -> list[NodeLine]:
    """List nodes, the worst first, and the devices of those that are unfolded. Of lost nodes no more stand first than
    half of the `height` (0: of any), so that those that compute stay in sight."""
    nodes: dict[str, list[DeviceView]] = {}
    for each in devices:
        nodes.setdefault(node_of(each.facts.name), []).append(each)
    ranked = sorted((NodeLine(node, tuple(mine)) for node, mine in nodes.items()), key=_calm)
    gone = sum(node.lost for node in ranked)
    first = min(gone, max(1, height // 2)) if height else gone
    ranked = [*ranked[:first], *ranked[gone:], *ranked[first:gone]]
    return [
        line
        for node in ranked
        for line in (node, *(NodeLine(node.node, (each,), each.facts.name) for each in node.devices))
        if not line.device or node.node in opened
    ]


def _calm(line: NodeLine) -> tuple[bool, bool, int, int, str]:
    """How little there is to look at; `node-2` comes before `node-10`."""
    left = [each.share for each in line.devices if not each.lost]
    full = int(max(left) * STEPS) if left else 0
    return bool(left), len(left) == len(line.devices), -full, len(line.node), line.node


def rows(
    found: Sequence[NodeLine], opened: Collection[str], cursor: Cursor, width: int, height: int, *, pointed: bool
) -> list[Row]:
    """Draw at most `height` rows of what was `found`, with a sign before the chosen one where it is `pointed` at; the
    last one tells of what is not in sight."""
    sight = cursor.sight
    shown, others = found[sight.start : sight.stop], [*found[: sight.start], *found[sight.stop :]]
    heads = [_head(line, opened) for line in shown]
    size = max(map(width_of, heads)) + 1
    names = [line.worst.facts.name.rpartition("/")[2] for line in shown]  # those on their nodes
    local = [
        replace(line.worst, facts=replace(line.worst.facts, name=name)) for line, name in zip(shown, names, strict=True)
    ]
    drawn = []
    for place, line, head, device in zip(sight, shown, heads, local, strict=True):
        text = fit(f"{CURSOR if pointed and place == cursor.place else ' '}{head}", size)
        if line.lost and not line.device:
            spans = [Span(f"{text} "), Span("LOST", "warn"), Span(f" {line.worst.lost}", "warn")]
        else:
            gauge = gauges.gauge(device, tuple(local), max(1, width - size - 1))
            spans = [Span(text, "warn" if any(each.lost for each in line.devices) else ""), Span(" "), *gauge]
        drawn.append(fitted(spans, width))
    return [*drawn, *([_more(others, width)] if others else [])][: max(1, height)]


def _head(line: NodeLine, opened: Collection[str]) -> str:
    """Whether it is unfolded, its name, and what it has."""
    if line.device:
        return ""
    left = sum(not each.lost for each in line.devices)
    of = f"{left} of " * (0 < left < len(line.devices))
    have = several_devices([each.facts.name for each in line.devices])
    name = fit(line.node, min(width_of(line.node), LONGEST_NAME))
    return f"{UNFOLDED if line.node in opened else FOLDED} {name}  {of}{have}"


def _more(others: Sequence[NodeLine], width: int) -> Row:
    nodes = [line for line in others if not line.device]
    if not nodes:
        return fitted([Span(f"and {several(len(others), 'more device', 'more devices')}", "dim")], width)
    return fitted(gauges.rest([line.worst for line in nodes], several(len(nodes), "more node", "more nodes")), width)
