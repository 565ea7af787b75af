"""What the set-up form lays over itself: a tree of directories to choose from, and the earlier runs to begin from."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DirectoryTree, OptionList, Static
from textual.widgets.option_list import Option

from interlock.console.form import directory
from interlock.console.text import runs_text
from interlock.engine.corpus.collections import SUFFIXES
from interlock.engine.record.runs import Overview
from interlock.engine.record.words import safe

BOX = """
    {name} {{ align: center middle; background: $background 60%; }}
    {name} > Vertical {{
        width: 100; max-width: 100%; height: 80%; min-height: 8;
        border: round $accent; background: $surface; padding: 0 1;
    }}
    {name} Static {{ width: 100%; height: auto; color: $text-muted; }}
    {name} DirectoryTree, {name} OptionList {{ height: 1fr; border: none; padding: 0; background: $surface; }}
    {name} OptionList:focus {{ border: none; }}
"""


class Directories(DirectoryTree):
    """Directories and chunk files, no other."""

    ICON_NODE = "> "
    ICON_NODE_EXPANDED = "v "
    ICON_FILE = "  "

    def filter_paths(self, paths: Iterable[Path]) -> Iterable[Path]:
        return [path for path in paths if not path.name.startswith(".") and _told(path)]


def _told(path: Path) -> bool:
    try:
        return path.name.endswith(SUFFIXES) or path.is_dir()
    except OSError:
        return False


class Browse(ModalScreen[str | None]):
    """Gives the directory that was chosen, as somebody would type it here; None when it was left."""

    DEFAULT_CSS = BOX.format(name="Browse")
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back"),
        Binding("space", "open", "Open", priority=True),
        Binding("enter", "choose", "Choose", priority=True),
        Binding("left,h", "out", "Out"),
        Binding("right,l", "open", "Open"),
        Binding("backspace", "above", "Above"),
        Binding("j", "down", show=False),
        Binding("k", "up", show=False),
    ]

    def __init__(self, typed: str, *, ascii: bool) -> None:
        """`typed` is a path of which what is there already is where one begins to look."""
        super().__init__()
        places = (Path(typed), *Path(typed).parents)
        self._start = next((found for each in places if (found := directory(str(each)))), Path()).absolute()
        self._ascii = ascii

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Choose a directory"
            box.border_subtitle = "enter chooses  space opens  backspace goes up  esc cancels"
            yield Static(Text(safe(self._start)), id="place")
            yield Directories(self._start)

    def on_mount(self) -> None:
        self._tree.show_guides = not self._ascii
        self._tree.focus()

    @property
    def _tree(self) -> DirectoryTree:
        return self.query_one(DirectoryTree)

    @on(DirectoryTree.NodeHighlighted)
    def _show(self) -> None:
        self.query_one("#place", Static).update(Text(safe(self._chosen)))

    @property
    def _chosen(self) -> Path:
        """The directory under the cursor, or that of the file there."""
        node = self._tree.cursor_node
        path = node.data.path if node and node.data else self._start
        return path if path.is_dir() else path.parent

    def action_choose(self) -> None:
        chosen, here = self._chosen, Path.cwd()
        below = chosen.is_relative_to(here) and chosen != here
        self.dismiss(f"{chosen.relative_to(here)}/" if below else str(chosen))

    def action_open(self) -> None:
        if node := self._tree.cursor_node:
            node.toggle()

    def action_out(self) -> None:
        """Close the directory, or go to the one it is in."""
        node = self._tree.cursor_node
        if node and node.is_expanded:
            node.collapse()
        elif node and node.parent:
            self._tree.move_cursor(node.parent)

    def action_above(self) -> None:
        self._start = self._start.parent
        self._tree.path = self._start

    def action_down(self) -> None:
        self._tree.action_cursor_down()

    def action_up(self) -> None:
        self._tree.action_cursor_up()

    def action_leave(self) -> None:
        self.dismiss(None)


class Begin(ModalScreen[Path | None]):
    """Gives the earlier run that was chosen; None when it was left."""

    DEFAULT_CSS = BOX.format(name="Begin")
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Back")]

    def __init__(self, runs: Sequence[Overview], out: str) -> None:
        super().__init__()
        self._runs = runs
        self._out = out

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = f"Earlier runs in {safe(self._out, 60)}"
            box.border_subtitle = "enter fills the form as that run was begun  esc cancels"
            if not self._runs:
                yield Static(Text(f"no runs in {safe(self._out)} yet: a run you start there is listed here"))
                return
            yield OptionList(*(Option(_told_of(run), str(number)) for number, run in enumerate(self._runs)))

    @on(OptionList.OptionSelected)
    def _choose(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._runs[event.option_index].path)

    def action_leave(self) -> None:
        self.dismiss(None)


def _told_of(run: Overview) -> Text:
    age = f"{runs_text.age(time.time() - run.began_at)} ago" if run.began_at else ""
    return Text.assemble(
        (safe(run.id), "bold"),
        f"  {run.health.word}  {age}\n",
        (f"  {safe(run.chunks)}: {safe(', '.join(run.models))}", "dim"),
    )
