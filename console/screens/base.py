"""What the screens under the registry's keys have in common: help, theme and palette; and work that may wait."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Protocol, TypeVar, cast

from textual.app import App
from textual.screen import Screen

from interlock.console.actions import first_key, named
from interlock.console.look import Leave, Look
from interlock.console.screens.help import Help
from interlock.engine.record.crash import reportable
from interlock.engine.record.words import human_bytes, safe


class Themed(Protocol):
    """An application whose look can be changed."""

    @property
    def why_not_suspend(self) -> str:
        """Why this process must not be stopped for a while; empty where it may be."""

    def next_theme(self) -> str:
        """Use the next theme; return its name."""

    def show_runs(self) -> None:
        """Open the list of runs."""


class Host(Themed, Protocol):
    """An application that looks at a run."""

    who: str
    """Who sits at the terminal."""

    @property
    def skipped(self) -> int:
        """Frames that were left out because the terminal did not keep up."""

    def exit(self, result: Leave | None = None) -> None:
        """Leave the screen in this way."""

    def stop_run(self) -> bool:
        """Ask the run for an end after the batch in flight; whether it could be asked."""

    def show_recap(self) -> None:
        """Say what became of the run that has ended."""

    def show_summary(self) -> None:
        """Show the summary as it is on disk now."""

    def export(self, lines: Sequence[str]) -> str:
        """Write these lines beside the summary; return what to say of it."""

    def redraw(self) -> None:
        """Send the whole screen anew."""

    def change_rate(self, step: int) -> float:
        """Look more often, or less; return how often a second."""


T = TypeVar("T")

CLIPBOARD = 100_000
"""Bytes that terminals take into the clipboard by OSC 52; more is cut by some and dropped by others."""


def copied(app: App[Any], text: str, what: str) -> str:
    """Copy `text` through the terminal where it takes that much; what to say of it."""
    if (size := len(text.encode(errors="replace"))) > CLIPBOARD:
        return f"{what} is {human_bytes(size)}, too large for a terminal's clipboard: open the file instead"
    app.copy_to_clipboard(text)
    return f"copied {what}: {safe(text, 200)}"


class Keyed(Screen[None]):
    """A screen whose keys are those of the registry for `ACTIONS`."""

    ACTIONS: ClassVar[str]
    _look: Look

    def say(self, text: str) -> None:
        """Tell the operator something."""

    def shown_key(self, name: str) -> str:
        """Name the key that this screen shows for an action."""
        return first_key(named(name), self._look.keys)

    def action_help(self) -> None:
        self.app.push_screen(Help(self.ACTIONS, self._look))

    def action_theme(self) -> None:
        self.say(f"theme {cast(Themed, self.app).next_theme()}")

    def action_suspend(self) -> None:
        """Give the shell its terminal until `fg`, where that stops no run."""
        if why := cast(Themed, self.app).why_not_suspend:
            self.say(why)
        else:
            self.app.action_suspend_process()

    def action_runs(self) -> None:
        cast(Themed, self.app).show_runs()

    def action_quit(self) -> None:
        """Leave as the application does, which asks while a run is live."""
        self.app.call_later(self.app.action_quit)

    def action_palette(self) -> None:
        self.app.action_command_palette()


async def aside(work: Callable[[], T]) -> T:
    """Do `work` in a thread and give what it gives. Raises what it raises, as an InterlockError that can be told.

    It has a thread of its own: asyncio's pool is waited for at the end, and a look at a dead disk takes minutes.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():  # nobody waits any more
            return
        if error:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:  # it is raised where it is waited for
            failure = reportable(error)
        with suppress(RuntimeError):  # the application has ended
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="aside", daemon=True).start()
    return await done
