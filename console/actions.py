"""Everything that an operator can do on a screen, once: keys, footer, help, palette and the documented key table.

An action's name is the method `action_<name>` of the screen it belongs to, and the id by which `[keys]` in a
configuration file gives it another key.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from textual.binding import Binding, BindingType

from interlock.engine.errors import UsageError


@dataclass(frozen=True)
class Action:
    """One thing that can be done. `key` may be several, by commas; `label` stands in the footer, `help` explains."""

    name: str
    key: str
    label: str
    help: str
    screens: tuple[str, ...] = ("main",)
    footer: bool = False
    changes: bool = False
    """Whether it changes the run, so that a read-only screen refuses it."""

    @property
    def id(self) -> str:
        """What a configuration file calls it: `find-next`, `pane-vram`."""
        return self.name.translate({ord("_"): "-", ord("("): "-", ord(")"): None, ord("'"): None})

    def binding(self) -> Binding:
        return Binding(self.key, self.name, self.label, id=self.id, tooltip=self.help, show=self.footer)


MAIN, VIEW, EVENT, HELP, SETUP = SCREENS = ("main", "view", "event", "help", "setup")

ACTIONS = (
    Action("help", "question_mark,f1", "Help", "this page", (MAIN, VIEW, SETUP), footer=True),
    Action("freeze", "space", "Freeze", "freeze the screen, or let it go on; the run goes on either way", footer=True),
    Action("exclusive", "x", "Excl", "one model at a time, or models side by side", footer=True, changes=True),
    Action("fallback", "c", "CPU-FB", "whether a model may go to the CPU", footer=True, changes=True),
    Action("pause", "P", "Pause", "pause the run at the next batch, or let it go on", footer=True, changes=True),
    Action("stop", "S", "Stop", "stop the run after the batch; --resume continues", changes=True),
    Action("find", "slash", "Find", "find in the events or in the summary", (MAIN, VIEW), footer=True),
    Action("find_next", "n", "Next", "the next that is found", (MAIN, VIEW)),
    Action("find_previous", "N", "Previous", "the one found before", (MAIN, VIEW)),
    Action("filter", "f", "Filter", "events: all, from notices up, from warnings up"),
    Action("follow", "G,end", "Follow", "to the latest event, and stay there"),
    Action("detail", "enter", "Detail", "everything about the chosen event"),
    Action("export", "e", "Export", "write the events that are shown to a file"),
    Action("summary", "s", "Summary", "the summary as a tree and tables", footer=True),
    *(Action(f"pane('{name}')", str(number), name.capitalize(), f"go to the pane {name}")
      for number, name in enumerate(("vram", "passes", "leases", "events", "cache"), 1)),
    Action("zoom", "z", "Zoom", "the chosen pane alone, or all of them"),
    Action("faster", "plus", "Faster", "refresh more often; a replay: twice as fast"),
    Action("slower", "minus", "Slower", "refresh less often; a replay: half as fast"),
    Action("plan", "ctrl+p", "Plan", "what this run would do: batches, tokens, memory, time", (SETUP,), footer=True),
    Action("run", "ctrl+r", "Run", "start the run", (SETUP,), footer=True),
    Action("fold", "enter,space", "Fold", "open or close the chosen part", (VIEW,), footer=True),
    *(Action(f"move('{name}')", keys, name.capitalize(), text, (VIEW,)) for name, keys, text in (
        ("down", "down,j", "the next line"), ("up", "up,k", "the line before"),
        ("in", "right,l", "open, or go to the first part inside"), ("out", "left,h", "close, or go to the part around"),
        ("page_down", "pagedown", "a page further"), ("page_up", "pageup", "a page back"),
        ("first", "home,g", "the first line"), ("last", "end,G", "the last line"))),
    Action("theme", "t", "Theme", "the next theme", (MAIN, VIEW)),
    Action("redraw", "ctrl+l", "Redraw", "send the whole screen anew"),
    Action("copy", "y", "Copy", "copy the line, the path, or the event as JSON", (MAIN, VIEW, EVENT)),
    Action("copy_value", "Y", "Value", "copy the value in the summary", (VIEW,)),
    Action("open", "o", "Open", "another summary beside this one: they are compared", (VIEW,), footer=True),
    Action("back", "escape", "Back", "back to where you came from", (VIEW, EVENT, HELP), footer=True),
    Action("palette", "ctrl+p,colon", "Palette", "every action by its name", (MAIN, VIEW)),
    Action("quit", "q,ctrl+c", "Quit", "leave; while a run is live it asks how", (MAIN, VIEW, SETUP), footer=True),
)  # fmt: skip


def actions_of(screen: str) -> list[Action]:
    """What can be done on a screen, in the order of the footer."""
    return [action for action in ACTIONS if screen in action.screens]


def bindings_of(screen: str) -> list[BindingType]:
    """A screen's keys."""
    return [action.binding() for action in actions_of(screen)]


NAMES = {"question_mark": "?", "slash": "/", "plus": "+", "minus": "-", "colon": ":", "escape": "esc"}


def keymap(wanted: Mapping[str, str]) -> dict[str, str]:
    """The keys of a configuration file by the ids of their actions. Raises UsageError for what is no action, and for a
    key that would do two things on one screen."""
    known = {action.id: action for action in ACTIONS}
    if unknown := sorted(wanted.keys() - known):
        raise UsageError(f"[keys] {unknown[0]} is no action; there are: {', '.join(known)}")
    for screen in SCREENS:
        taken: dict[str, str] = {}
        for action in actions_of(screen):
            for key in wanted.get(action.id, action.key).split(","):
                if (other := taken.setdefault(key, action.id)) != action.id:
                    raise UsageError(f"[keys] {key} is the key of {other} and of {action.id}")
    return dict(wanted)


def named(name: str) -> Action:
    """The action of this name."""
    return next(action for action in ACTIONS if action.name == name)


def shown_keys(action: Action, keymap: Mapping[str, str]) -> str:
    """The keys of an action as they are called on a keyboard."""
    keys = keymap.get(action.id, action.key)
    return " ".join(NAMES.get(key, key.replace("ctrl+", "^")) for key in keys.split(","))
