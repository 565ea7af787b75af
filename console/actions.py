"""Everything that an operator can do on a screen, once: keys, footer, help, palette and the documented key table.

An action's name is the method `action_<name>` of the screen it belongs to, and the id by which `[keys]` in a
configuration file gives it another key.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from textual.binding import Binding, BindingType

from interlock.engine.errors import UsageError
from interlock.widgets.panes import PANES


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
    wide: int = 0
    """Columns from which on it stands in the footer too; 0 for never."""
    past: bool = False
    """Whether it goes through the past of a run: a run of this process has only its present."""

    @property
    def id(self) -> str:
        """What a configuration file calls it: `find-next`, `pane-vram`."""
        return self.name.translate({ord("_"): "-", ord("("): "-", ord(")"): None, ord("'"): None})

    def stands(self, width: int) -> bool:
        """Tell whether it stands in a footer of so many columns."""
        return self.footer or 0 < self.wide <= width

    def binding(self) -> Binding:
        return Binding(self.key, self.name, self.label, id=self.id, tooltip=self.help, show=self.footer)


MAIN, VIEW, EVENT, HELP, SETUP, RUNS, SEARCH, HIT, JUDGE = SCREENS = (
    "main", "view", "event", "help", "setup", "runs", "search", "chunk", "judge",
)  # fmt: skip

ACTIONS = (
    Action("help", "question_mark,f1", "Help", "show this page", (MAIN, VIEW, SETUP, RUNS, SEARCH, JUDGE),
           footer=True),
    Action("grade('relevant')", "r,2", "Relevant", "the chunk answers the question", (JUDGE,), footer=True),
    Action("grade('partly')", "p,1", "Partly", "it answers a part of it, or leads there", (JUDGE,), footer=True),
    Action("grade('not')", "n,0", "Not", "it does not answer it", (JUDGE,), footer=True),
    Action("grade('skip')", "s", "Skip", "leave it: it counts as no answer", (JUDGE,), footer=True),
    Action("turn('on')", "right", "Next", "show the next question", (JUDGE,), footer=True),
    Action("turn('back')", "left", "Previous", "show the question before", (JUDGE,)),
    Action("ask", "slash", "Question", "type another question", (SEARCH, JUDGE), footer=True),
    Action("open_hit", "enter,space", "Open", "show the whole text and payload of the chunk", (SEARCH, JUDGE),
           footer=True),
    Action("filters", "f", "Filters", "ask only chunks whose payload says KEY=VALUE", (SEARCH,), footer=True),
    Action("hybrid", "h", "Hybrid", "combine lists in the next way: weighted, rrf, dbsf, off", (SEARCH,), footer=True),
    Action("only", "w", "Models", "ask the next model alone, and after the last one all", (SEARCH,), footer=True),
    Action("rerank", "r", "Rerank", "score the best chunks anew, or not (begin with --rerank)", (SEARCH,), footer=True),
    Action("copy_hit", "c,y", "Copy", "copy the chunk's id and text", (SEARCH, HIT, JUDGE), footer=True),
    Action("enter", "enter", "Open", "watch a run in progress, view one that is over", (RUNS,), footer=True),
    Action("mark", "space", "Mark", "mark a run to be compared", (RUNS,), footer=True),
    Action("compare", "o", "Compare", "compare the two marked runs", (RUNS,), footer=True),
    Action("resume", "r", "Resume", "continue a run; its command is shown first", (RUNS,), footer=True, changes=True),
    Action("delete", "D", "Delete", "delete a run for good; asks first", (RUNS,), footer=True, changes=True),
    Action("pause", "P", "Pause", "pause the run at the next batch, or resume it", footer=True, changes=True),
    Action("stop", "S", "Stop", "stop the run after the current batch (resumable)", footer=True, changes=True),
    Action("freeze", "space", "Freeze", "freeze the screen, or go on; pause or play the past", wide=120),
    Action("step('back')", "left", "Earlier", "go back by a step, about a sixtieth of the run", footer=True, past=True),
    Action("step('on')", "right", "Later", "go on by a step", footer=True, past=True),
    Action("leap('back')", "shift+left,left_square_bracket", "Far back", "go back by ten steps", past=True),
    Action("leap('on')", "shift+right,right_square_bracket", "Far on", "go on by ten steps", past=True),
    Action("trouble('next')", "n", "Next !", "go to the next warning, mitigation or error", footer=True, past=True),
    Action("trouble('previous')", "N", "Last !", "go to the one before", footer=True, past=True),
    Action("faster", "plus", "Faster", "play the past twice as fast", wide=120, past=True),
    Action("slower", "minus", "Slower", "play the past half as fast", wide=120, past=True),
    Action("set_mark", "m", "Mark", "mark this moment", wide=120, past=True),
    Action("to_mark", "M", "To mark", "go to the moment that was marked", wide=160, past=True),
    Action("exclusive", "x", "Exclusive", "one model at a time, or models side by side", footer=True, changes=True),
    Action("fallback", "c", "CPU", "allow or forbid CPU fallback", footer=True, changes=True),
    Action("find", "slash", "Find", "show only events (!: what went wrong) or runs with a text; search the summary",
           (MAIN, VIEW, RUNS), footer=True),
    Action("find_next", "n", "Next", "go to the next match", (VIEW,), wide=200),
    Action("find_previous", "N", "Previous", "go to the previous match", (VIEW,)),
    Action("first", "home", "First", "go to the first event; where there is a past, to the beginning of the run"),
    Action("follow", "G,end", "Follow", "follow the latest event; from the past, back to the run as it is now"),
    Action("detail", "enter", "Detail", "show every field of the selected event", wide=160),
    Action("export", "e", "Export", "save the listed events to a file", wide=200),
    Action("summary", "s", "Summary", "show the summary as a tree and tables", footer=True),
    *(Action(f"pane('{kind.name}')", str(kind.key), kind.title.split()[0], f"go to the {kind.title.split()[0]} pane")
      for kind in PANES),
    Action("zoom", "z", "Zoom", "zoom the focused pane, or show all", wide=120),
    Action("unzoom", "escape", "Unzoom", "show all events and panes again"),
    Action("run", "ctrl+r", "Run", "start the run", (SETUP,), footer=True),
    Action("plan", "ctrl+p", "Plan", "show the plan alone, or beside the form: batches, tokens, memory, time", (SETUP,),
           footer=True),
    Action("browse", "ctrl+o,f2", "Tree", "choose the directory of the field in a tree", (SETUP,), footer=True),
    Action("earlier", "ctrl+g,f3", "Earlier runs", "fill the form as an earlier run was begun", (SETUP,), footer=True),
    Action("leave", "ctrl+q", "Quit", "leave the form; asks first where something was typed", (SETUP,), footer=True),
    Action("fold", "enter,space", "Fold", "expand or collapse the selected part", (VIEW,), footer=True),
    Action("move('in')", "right,l", "In", "expand, or go to the first child", (VIEW,)),
    Action("move('out')", "left,h", "Out", "collapse, or go to the parent", (VIEW,)),
    *(Action(f"move('{name}')", keys, name.capitalize(), text, (VIEW, RUNS, SEARCH, JUDGE)) for name, keys, text in (
        ("down", "down,j", "move down"), ("up", "up,k", "move up"),
        ("page_down", "pagedown", "page down"), ("page_up", "pageup", "page up"),
        ("first", "home,g", "go to the first line"), ("last", "end,G", "go to the last line"))),
    Action("theme", "t", "Theme", "switch to the next theme", (MAIN, VIEW, RUNS, SEARCH, JUDGE), wide=200),
    Action("redraw", "ctrl+l", "Redraw", "redraw the screen"),
    Action("copy", "y", "Copy", "copy the line, the path, or the event as JSON", (MAIN, VIEW, EVENT), wide=200),
    Action("copy_value", "Y", "Value", "copy the value", (VIEW,)),
    Action("open", "o", "Open", "compare with another summary", (VIEW,), footer=True),
    Action("close", "escape,q", "Close", "go back", (EVENT, HIT), footer=True),
    Action("back", "escape", "Back", "go back", (VIEW, HELP, RUNS, SEARCH, JUDGE), footer=True),
    Action("runs", "R", "Runs", "list the runs: watch, view, resume, compare, delete", (MAIN, VIEW), wide=160),
    Action("palette", "ctrl+p,colon", "Palette", "search all actions by name", (MAIN, VIEW, RUNS, SEARCH, JUDGE),
           wide=160),
    Action("suspend", "ctrl+z", "Suspend", "suspend to the shell; fg returns", (MAIN, VIEW, RUNS, SEARCH, JUDGE)),
    Action("quit", "q,ctrl+c", "Quit", "quit; asks first while a run is live", (MAIN, VIEW, RUNS, SEARCH, JUDGE),
           footer=True),
)  # fmt: skip


def actions_of(screen: str) -> list[Action]:
    """List what can be done on a screen, in the order of the footer."""
    return [action for action in ACTIONS if screen in action.screens]


def bindings_of(screen: str) -> list[BindingType]:
    return [action.binding() for action in actions_of(screen)]


NAMES = {
    "question_mark": "?", "slash": "/", "plus": "+", "minus": "-", "colon": ":", "escape": "esc",
    "left_square_bracket": "[", "right_square_bracket": "]",
}  # fmt: skip


def keymap(wanted: Mapping[str, str]) -> dict[str, str]:
    """Check the keys of a configuration file, by the ids of their actions. Raises UsageError for what is no action, and
    for a key that would do two things on one screen."""
    known = {action.id: action for action in ACTIONS}
    if unknown := sorted(wanted.keys() - known):
        raise UsageError(f"[keys] unknown action {unknown[0]!r}: available {', '.join(known)}")
    for screen in SCREENS:
        taken: dict[str, str] = {}
        for action in actions_of(screen):
            for key in wanted.get(action.id, action.key).split(","):
                if (other := taken.setdefault(key, action.id)) != action.id:
                    raise UsageError(f"[keys] {key!r} is assigned to both {other} and {action.id}")
    return dict(wanted)


def named(name: str) -> Action:
    return next(action for action in ACTIONS if action.name == name)


def first_key(action: Action, keymap: Mapping[str, str]) -> str:
    """Choose the key that a footer shows for an action."""
    return shown_keys(action, keymap).split()[0]


def line_key(action: Action, keymap: Mapping[str, str]) -> str:
    """Choose a key of an action that still works while a line is typed in: one that is no single character, if any."""
    keys = shown_keys(action, keymap).split()
    return next((key for key in keys if len(key) > 1), keys[0])


def shown_keys(action: Action, keymap: Mapping[str, str]) -> str:
    """Name the keys of an action as a keyboard has them."""
    keys = keymap.get(action.id, action.key)
    return " ".join(NAMES.get(key, key.replace("ctrl+", "^")) for key in keys.split(","))
