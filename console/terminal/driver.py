"""Textual's Linux driver on a terminal that may go away: then the app ends with `Leave.HANGUP`, and nothing waits.

A hang-up is noticed by its signal, by the terminal's descriptors, or by a failed read. Of Textual's private names
`_app`, `_loop`, `_key_thread` and the handlers of SIGTSTP and SIGCONT are used; the tests hang up a real terminal in
every way that matters.
"""

import os
import signal
import sys
from contextlib import suppress
from functools import partial
from typing import Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

from interlock.console.look import Leave
from interlock.console.terminal import tty as terminal
from interlock.console.terminal.output_thread import OutputThread
from interlock.console.terminal.screen_diff import RESET, ScreenDiff

CLEAR = "\x1b[2J\x1b[H"
"""Leaves nothing behind where there is no other screen to go back to, as in GNU screen."""
PATIENCE = 1.0
"""Seconds that a terminal which stands still gets to take what gives it back to the shell."""


class HangupSafeDriver(LinuxDriver):
    """For `App(driver_class=...)`, best under `terminal.quiet_descriptors`."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._terminal = terminal.held()
        self._output: OutputThread | None = None
        self._diff = ScreenDiff(*self._get_terminal_size())
        self._taken = self._suspended = False
        self._size = self._size or self._get_terminal_size()
        self.fileno = self._terminal.reads
        self.input_tty = True

    @property
    def skipped(self) -> int:
        """How many writes were left out because the terminal did not keep up."""
        return self._output.skipped if self._output else 0

    def repaint(self) -> None:
        """Send the whole screen anew, whatever the terminal shows."""
        self._diff.forget()
        self._app.refresh()

    def write(self, data: str) -> None:
        """Send it without waiting."""
        if self._output:
            self._output.write(data)

    def start_application_mode(self) -> None:
        self._diff.forget()
        self._taken, self._suspended = True, False
        terminal, caught_up = self._terminal, partial(self._later, self.repaint)  # what was left out has to be painted
        self._output = OutputThread(terminal.writes, terminal.reads, caught_up, terminal.lose, self._diffed)
        self._output.write(RESET)
        self._terminal.on_lost = self._hung_up
        signal.signal(signal.SIGHUP, lambda number, frame: self._terminal.lose())
        super().start_application_mode()  # type: ignore[no-untyped-call]
        super().close()  # the thread that Textual writes from has nothing to do here
        if self._terminal.quiet:
            self._loop.call_soon(_let_print, sys.stdout, sys.stderr)
        if self._terminal.lost:  # before there was anybody to tell
            self._hung_up()

    def run_input_thread(self) -> None:
        try:
            super().run_input_thread()
        except OSError:
            self._terminal.lose()

    def disable_input(self) -> None:
        """Stop reading keys; a lost terminal is asked nothing any more, and its thread ends by itself."""
        if not self._terminal.lost:
            super().disable_input()
            return
        signal.signal(signal.SIGWINCH, signal.SIG_DFL)
        self._disable_mouse_support()
        if self._key_thread is not None:
            self._key_thread.join(PATIENCE)

    def suspend_application_mode(self) -> None:
        super().suspend_application_mode()
        self._suspended = True

    def _sigtstp_application(self, *about: Any) -> None:
        """Stop between two steps of the loop: a handler that meets a write holds the lock that it then waits for."""
        self._later(super()._sigtstp_application)

    def _sigcont_application(self, *about: Any) -> None:
        self._later(self._continued)

    def _continued(self) -> None:
        """Take the terminal again. Whoever was stopped without being asked still has it: give it back first.

        A process that has not taken it yet, or has given it back for good, has nothing to take again.
        """
        if self._taken:
            self.suspend_application_mode()
        if self._suspended:
            super()._sigcont_application()

    def stop_application_mode(self) -> None:
        self._taken = False
        if self._output:
            self._output.leave()
            self._output.write(RESET + CLEAR)
        super().stop_application_mode()

    def close(self) -> None:
        if self._output:
            self._output.close(PATIENCE)

    def _get_terminal_size(self) -> tuple[int, int]:
        """Asked of the terminal itself: stdout may lead elsewhere."""
        with suppress(OSError):
            columns, lines = os.get_terminal_size(self._terminal.writes)
            return columns or 80, lines or 24
        return 80, 24

    def _diffed(self, text: str) -> str:
        self._diff.fit(*self._get_terminal_size())
        return self._diff(text)

    def _hung_up(self) -> None:
        """From any thread, or a signal handler: takes no lock."""
        self._later(self._leave)

    def _leave(self) -> None:
        self.exit_event.set()
        if self._app.return_value is None:
            self._app.exit(Leave.HANGUP)

    def _later(self, call: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: the app has ended
            self._loop.call_soon_threadsafe(call)


def _let_print(stdout: Any, stderr: Any) -> None:
    """Textual swallows what is printed while it runs; here it may go into the log."""
    sys.stdout, sys.stderr = stdout, stderr
