"""The fields of the set-up form: a label, what is filled in, and below it what is wrong with it or what it may be.

A directory may be chosen in a tree as well.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widget import Widget
from textual.widgets import DirectoryTree, Input, Label, Static

from interlock.console.form import ModelRow, directory, placed, toggled
from interlock.console.screens.base import aside
from interlock.console.text import form_text
from interlock.engine.corpus.forms import form_of
from interlock.engine.record.words import drawn
from interlock.widgets.choices import Choices


class Paths(Suggester):
    """Completes the last part of a path by the directories that are there."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        return await aside(lambda: completed(value))


def completed(text: str) -> str | None:
    """Complete a path to the first directory that it may become, with a slash; None where there is none.

    What ends with a slash is whole, so that tab leaves it.
    """
    place, _, begun = text.rpartition("/")
    if begun in ("", ".", ".."):
        return None
    shown = f"{place}/" if "/" in text else ""
    with suppress(OSError), os.scandir(directory(shown or ".") or "") as listing:
        names = sorted(each.name for each in listing if each.name.startswith(begun) and each.is_dir())
        return f"{shown}{names[0]}/" if names else None
    return None


MOVES = {"up": "focus_previous", "shift+tab": "focus_previous", "down": "focus_next", "tab": "focus_next"}
"""What keys that leave a line ask of the screen."""


class TypedLine(Input):
    """A line to type in; up and down leave it, tab takes what is suggested."""

    def __init__(self, value: str, *, id: str, placeholder: str = "", suggester: Suggester | None = None) -> None:
        super().__init__(
            value, placeholder=placeholder, id=id, compact=True, suggester=suggester, select_on_focus=False
        )
        self._given = value

    def take(self, value: str) -> None:
        """Show this as what is given, and not as something that was typed."""
        self._given = self.value = value

    async def on_key(self, event: events.Key) -> None:
        """Do what a key does before the next one is taken. Left to bubble up, it would be overtaken by what was typed
        after it, where a slow link brings both at once."""
        focused, bound = self.screen.focused, self._bindings.key_to_bindings.get(event.key, ())
        typed = self.value != self._given and self.cursor_at_end
        if focused is not self and focused is not None:  # typed behind the key that left this line
            focused.post_message(events.Key(event.key, event.character))
        elif event.key == "tab" and typed and len(self._suggestion) > len(self.value):
            self.action_cursor_right()
        elif event.key in MOVES:
            getattr(self.screen, MOVES[event.key])()
        elif bound and not event.is_printable:
            await self.run_action(bound[0].action)
        else:
            return
        event.prevent_default().stop()


class ModelChoices(Choices):
    """The models that can be ticked; what is ticked is the roster, the line above them, which is typed as well."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "step('up')", show=False),
        Binding("down,j", "step('down')", show=False),
        Binding("space,enter", "tick", show=False),
    ]
    DEFAULT_CSS = """
    ModelChoices {
        width: 1fr; border: none; max-height: 9; &:focus { border: none; }
        & > .option-list--option-highlighted { background: transparent; }
    }
    """

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._models: Sequence[ModelRow] = ()
        self._roster = ""

    @property
    def model(self) -> ModelRow | None:
        """The one under the cursor; None where there is none."""
        return next((each for each in self._models if each.key == self.chosen), None)

    def take(self, roster: str, models: Sequence[ModelRow] | None = None) -> None:
        """Show these models, or those that are there, ticked as the roster has them."""
        self._roster, self._models = roster, self._models if models is None else models
        heads, lines = form_text.models(self._models, placed(roster), self.inner_width)
        keyed = zip((each.key for each in self._models), ([line] for line in lines), strict=True)
        self.show(keyed, heads=[heads])

    def action_step(self, where: str) -> None:
        """Move the cursor; who leaves the list by its end comes to the field beside it."""
        before = self.place
        self.move(where)
        if self.place == before:
            (self.screen.focus_next if where == "down" else self.screen.focus_previous)()

    def action_tick(self) -> None:
        if self.model:
            self.screen.query_one("#roster", Input).value = toggled(self._roster, self.model.key)

    def on_option_list_option_selected(self) -> None:
        self.action_tick()

    def on_resize(self) -> None:
        self.take(self._roster)


class FormField(Vertical):
    """A label and what is filled in; `tell` writes below it."""

    DEFAULT_CSS = """
    FormField { height: auto; }
    FormField > Horizontal { height: auto; }
    FormField Label { width: 10; color: $text-muted; }
    FormField Input, FormField Select { width: 1fr; }
    FormField > Static { padding-left: 10; height: auto; color: $text-muted; display: none; }
    FormField.told > Static { display: block; }
    FormField.bad Label, FormField.bad > Static { color: $error; text-style: bold; }
    """

    def __init__(self, label: str, entry: Widget) -> None:
        super().__init__()
        self._label = label
        self.entry = entry

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Label(self._label)
            yield self.entry
        yield Static()

    def tell(self, problem: str, hint: str) -> None:
        """Mark the field with its problem; else write the hint, where there is one."""
        self.set_class(bool(problem), "bad")
        self.set_class(bool(problem or hint), "told")
        self.query_one(Label).update(Text(f"X {self._label}" if problem else self._label))
        self.query_one(Static).update(Text(drawn(problem or hint, 500)))


class Directories(DirectoryTree):
    """Directories and chunk files, no other."""

    ICON_NODE = "> "
    ICON_NODE_EXPANDED = "v "
    ICON_FILE = "  "

    def filter_paths(self, paths: Iterable[Path]) -> Iterable[Path]:
        return [path for path in paths if not path.name.startswith(".") and _told(path)]


def _told(path: Path) -> bool:
    try:
        return form_of(path.name) is not None or path.is_dir()
    except OSError:
        return False


class Browse(ModalScreen[str | None]):
    """Gives the directory that was chosen, as somebody would type it here; None when it was left."""

    DEFAULT_CSS = """
    Browse { align: center middle; background: $background 60%; }
    Browse > Vertical {
        width: 100; max-width: 100%; height: 80%; min-height: 8;
        border: round $accent; background: $surface; padding: 0 1;
    }
    Browse Static { width: 100%; height: auto; color: $text-muted; }
    Browse DirectoryTree { height: 1fr; border: none; padding: 0; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Back"),
        Binding("enter", "choose", "Choose", priority=True),
        Binding("left,h", "out", "Out"),
        Binding("right,l", "focused.toggle_node", "Open"),
        Binding("backspace", "above", "Above"),
        Binding("j", "focused.cursor_down", show=False),
        Binding("k", "focused.cursor_up", show=False),
    ]

    def __init__(self, typed: str) -> None:
        """`typed` is a path of which what is there already is where one begins to look."""
        super().__init__()
        places = (Path(typed), *Path(typed).parents)
        self._start = next((found for each in places if (found := directory(str(each)))), Path()).absolute()

    def compose(self) -> ComposeResult:
        with Vertical() as box:
            box.border_title = "Choose a directory"
            box.border_subtitle = "enter chooses  space opens  backspace goes up  esc cancels"
            yield Static(Text(drawn(self._start)), id="place")
            yield Directories(self._start)

    def on_mount(self) -> None:
        self._tree.focus()

    @property
    def _tree(self) -> DirectoryTree:
        return self.query_one(DirectoryTree)

    @on(DirectoryTree.NodeHighlighted)
    def _show(self) -> None:
        self.query_one("#place", Static).update(Text(drawn(self._chosen)))

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
