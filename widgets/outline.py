"""Which branches of a JSON document are open, and which line is chosen: what a tree on the screen is drawn from.

Pure. Children are made when their branch is opened, so a document costs what is looked at of it.
"""

from collections.abc import Mapping, Sequence

from interlock.widgets.nodes import Node, Steps, children


class Outline:
    """`nodes` are the lines, the document itself first; `opened` are the branches among them that are open."""

    def __init__(self, top: Node, *, opened: Sequence[Steps] = ()) -> None:
        self.nodes = [top]
        self.opened: set[Steps] = set()
        self.chosen = 0
        self.open(0)
        for steps in opened:
            self.reveal(steps)
            self.open(self.chosen)
        self.chosen = 0

    @property
    def node(self) -> Node:
        return self.nodes[self.chosen]

    def open(self, line: int) -> None:
        """Put the children of a line below it."""
        node = self.nodes[line]
        if node.steps not in self.opened and (below := list(children(node))):
            self.opened.add(node.steps)
            self.nodes[line + 1 : line + 1] = below

    def close(self, line: int) -> None:
        """Take everything below a line away; the chosen line is never among it."""
        end = self._end(line)
        self.opened -= {node.steps for node in self.nodes[line:end]}
        del self.nodes[line + 1 : end]
        if self.chosen > line:
            self.chosen = line if self.chosen < end else self.chosen - (end - line - 1)

    def fold(self) -> None:
        (self.close if self.node.steps in self.opened else self.open)(self.chosen)

    def move(self, lines: int) -> None:
        """Choose a line further down, or up; the ends hold."""
        self.chosen = max(0, min(len(self.nodes) - 1, self.chosen + lines))

    def inward(self) -> None:
        """Open the chosen branch; go to its first child where it is open."""
        if self.node.steps in self.opened:
            self.move(1)
        else:
            self.open(self.chosen)

    def outward(self) -> None:
        """Close the chosen branch; go to the one above where there is nothing to close."""
        if self.node.steps in self.opened and self.chosen:
            self.close(self.chosen)
            return
        above = self.node.steps[:-1]
        self.chosen = next((line for line in range(self.chosen, -1, -1) if self.nodes[line].steps == above), 0)

    def reveal(self, steps: Steps) -> bool:
        """Open what hides a place and choose it; False where there is no such place."""
        line = 0
        for depth in range(1, len(steps) + 1):
            self.open(line)
            end = self._end(line)
            below = next((at for at in range(line + 1, end) if self.nodes[at].steps == steps[:depth]), None)
            if below is None:
                return False
            line = below
        self.chosen = line
        return True

    def following(self, places: Sequence[Steps], way: int) -> int:
        """Find which of the places (in the order of the document) comes after the chosen line, or before it where
        `way` is -1; round at the ends. A place that is hidden counts as just below what hides it."""
        if self.node.steps in places:
            return (places.index(self.node.steps) + way) % len(places)
        lines = {node.steps: line for line, node in enumerate(self.nodes)}
        first = next((at for at, steps in enumerate(places) if _line(lines, steps) > self.chosen), len(places))
        return (first if way > 0 else first - 1) % len(places)

    def _end(self, line: int) -> int:
        """The line after everything below a line."""
        depth, last = len(self.nodes[line].steps), len(self.nodes)
        return next((at for at in range(line + 1, last) if len(self.nodes[at].steps) <= depth), last)


def _line(lines: Mapping[Steps, int], steps: Steps) -> float:
    """The line of a place, or a little below that of what hides it."""
    for depth in range(len(steps), -1, -1):
        if steps[:depth] in lines:
            return lines[steps[:depth]] + (0.5 if depth < len(steps) else 0.0)
    return 0.0
