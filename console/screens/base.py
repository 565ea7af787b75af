"""What the screens under the registry's keys have in common: help, theme and palette; and work that may wait."""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, cast

from rich.text import Text
from textual.app import App, ComposeResult
from textual.screen import ModalScreen, Screen

from interlock.console.actions import Action, actions_of, first_key, named
from interlock.console.look import Leave, Look
from interlock.console.screens.ask import Choice, Dialog, Find, Help
from interlock.console.screens.layout import too_small
from interlock.engine.crash import reportable
from interlock.engine.record.words import drawn, human_bytes
from interlock.widgets.pane import Key, Pane
from interlock.widgets.text import Row


class Host(Protocol):
    """The application under a screen."""

    @property
    def why_not_suspend(self) -> str:
        """Why this process must not be stopped for a while; empty where it may be."""

    def next_theme(self) -> str:
        """Use the next theme; return its name."""

    def show_runs(self) -> None:
        """Open the list of runs."""

    def may_leave(self, command: str) -> bool:
        """Whether the application can be left for such a command."""

    def leave_for(self, words: Sequence[str]) -> None:
        """Leave for a command of these arguments."""

    who: str
    """Who sits at the terminal of a run; this and what follows is of an application that looks at one."""

    @property
    def skipped(self) -> int:
        """Frames that were left out because the terminal did not keep up."""

    listed: bool
    """Whether there is a list of runs to go back to."""

    def exit(self, result: Leave | None = None) -> None:
        """Leave the screen in this way."""

    def stop_run(self) -> bool:
        """Ask the run for an end after the batch in flight; whether it could be asked."""

    def show_recap(self) -> None:
        """Say what became of the run that has ended."""

    @property
    def run_directory(self) -> Path | None:
        """Where the run lies; None before it has begun."""

    def show_summary(self) -> None:
        """Show the summary as it is on disk now."""

    def export(self, lines: Sequence[str]) -> str:
        """Write these lines beside the summary; return what to say of it."""

    def redraw(self) -> None:
        """Send the whole screen anew."""

    def poll(self) -> None:
        """Look at the run now."""


T = TypeVar("T")

CLIPBOARD = 100_000
"""Bytes that terminals take into the clipboard by OSC 52; more is cut by some and dropped by others."""


def copied(app: App[Any], text: str, what: str) -> str:
    """Copy `text` through the terminal where it takes that much; what to say of it."""
    if (size := len(text.encode(errors="replace"))) > CLIPBOARD:
        return f"{what} is {human_bytes(size)}, too large for a terminal's clipboard: open the file instead"
    app.copy_to_clipboard(text)
    return f"copied {what}: {drawn(text, 200)}"


class Keyed(Screen[None]):
    """A screen whose keys are those of the registry for `ACTIONS`."""

    ACTIONS: ClassVar[str]
    _look: Look

    def say(self, text: str) -> None:
        """Tell the operator something."""

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        """Draw all of it for the cells that there are."""

    def offers(self, action: Action) -> bool:
        """Tell whether an action has its place on what this screen shows."""
        return True

    def shown_key(self, name: str) -> str:
        """Name the key that this screen shows for an action."""
        return first_key(named(name), self._look.keys)

    def footer_keys(self, *more: str) -> list[Key]:
        """List the keys that a footer of this width has, and those of the actions named `more`; none where the screen
        is too small for it."""
        return [
            Key(first_key(each, self._look.keys), each.label, action=each.name)
            for each in actions_of(self.ACTIONS)
            if self.offers(each) and not too_small(*self.size) and (each.stands(self.size.width) or each.name in more)
        ]

    def narrow(self, value: str, typed: Callable[[str], str]) -> None:
        """Ask for a text, beginning with `value`: `typed` is called with each change, and with the last one; escape
        clears it."""

        def keep(kept: str | None) -> None:
            typed(kept or "")

        self.app.push_screen(Find("/", value, typed), keep)

    def confirm(
        self, title: str, lines: Sequence[str], label: str, then: Callable[[], object], keys: str = "y"
    ) -> None:
        """Ask whether to go on, by these keys; do what comes `then`."""
        question = Dialog(title, lines, [Choice(keys, label, "yes")])
        self.app.push_screen(question, lambda yes: (then() if yes else None, None)[1])

    def action_help(self) -> None:
        self.app.push_screen(Help(self.ACTIONS, self._look))

    def action_theme(self) -> None:
        self.say(f"theme {cast(Host, self.app).next_theme()}")

    def action_suspend(self) -> None:
        """Give the shell its terminal until `fg`, where that stops no run."""
        if why := cast(Host, self.app).why_not_suspend:
            self.say(why)
        else:
            self.app.action_suspend_process()

    def action_runs(self) -> None:
        cast(Host, self.app).show_runs()

    def action_quit(self) -> None:
        """Leave as the application does, which asks while a run is live."""
        self.app.call_later(self.app.action_quit)

    def action_palette(self) -> None:
        self.app.action_command_palette()


async def aside(work: Callable[[], T]) -> T:
    """Do `work` in a thread and give what it gives. Raises what it raises, as an InterlockError that can be told.

    It has a thread of its own: asyncio's pool is waited for at the end, and a look at a dead disk takes minutes.
    """
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()  # from here on nobody who stops waiting takes the result away

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # it is raised where it is waited for
            done.set_exception(reportable(error))
        else:
            done.set_result(result)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return await asyncio.wrap_future(done)


class DetailScreen(ModalScreen[None]):
    """One thing in full, laid over the screen until it is closed: rows in a pane, the keys on its border."""

    ACTIONS: ClassVar[str]
    DEFAULT_CSS = """
    DetailScreen { align: center middle; background: $background 60%; }
    DetailScreen > Pane { width: 110; max-width: 100%; height: 90%; min-height: 10; background: $surface; }
    DetailScreen > Pane > .pane--hit { color: $warning; text-style: bold; }
    """

    def __init__(self, title: str, keymap: Mapping[str, str]) -> None:
        """`keymap` is what keys the operator gave to actions, by their ids."""
        super().__init__()
        self._pane, self._keymap = Pane(title), keymap

    def compose(self) -> ComposeResult:
        yield self._pane

    def on_mount(self) -> None:
        keys = [f"{first_key(action, self._keymap)} {action.label}" for action in actions_of(self.ACTIONS)]
        self._pane.border_subtitle = Text("  ".join(keys))
        self._pane.focus()

    def on_resize(self) -> None:
        self.call_after_refresh(lambda: self._pane.show(self.rows(self._pane.inner_width)))

    def rows(self, width: int) -> list[Row]:
        """Draw it in rows of at most `width` cells."""
        return []

    def action_close(self) -> None:
        self.dismiss()
