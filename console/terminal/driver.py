"""Textual's Linux driver on a terminal that may go away or be slow: then nothing waits, and nothing is lost but frames.

Whoever writes never waits: a thread of its own sends. A terminal that does not keep up is not fed more and more: frames
are left out until it has taken what was on its way, and then the screen is painted afresh. A hang-up, noticed by its
signal, by the terminal's descriptors, or by a failed read, ends the app with `Leave.HANGUP`. Of Textual's private names
`_app`, `_loop`, `_key_thread` and the handlers of SIGTSTP and SIGCONT are used; the tests hang up a real terminal in
every way that matters.
"""

import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver

from interlock.console.look import Leave
from interlock.console.terminal import tty as terminal
from interlock.console.terminal.screen_diff import RESET, ScreenDiff

MOST_BYTES = 1 << 15
"""On their way before frames are left out: the terminal would be seconds behind."""
AT_ONCE = 4096
GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL


class OutputThread:
    """A way to one terminal. `skipped` counts what was left out."""

    def __init__(
        self, writes: int, reads: int, caught_up: Callable[[], None], lost: Callable[[], None],
        rewrite: Callable[[str], str] = str,
    ) -> None:  # fmt: skip
        """Of `reads` only a hang-up is noticed. `caught_up` is called after frames were left out, `lost` when the
        terminal is gone; both from the thread. `rewrite` sees what is sent, in order, and nothing of the rest."""
        self.skipped = 0
        self._caught_up = caught_up
        self._lost = lost
        self._rewrite = rewrite
        self._descriptor, self._watched = os.dup(writes), os.dup(reads)
        self._wakes, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._lock = threading.Lock()
        self._backlog = bytearray()
        self._behind = self._last = self._over = False
        self._thread = threading.Thread(target=self._go, name="terminal-output", daemon=True)
        self._thread.start()

    def write(self, text: str) -> None:
        """Send it, or leave it out when the terminal is behind. Never waits."""
        with self._lock:
            if self._over:
                return
            if not self._last and (self._behind or len(self._backlog) > MOST_BYTES):
                self._behind, self.skipped = True, self.skipped + 1
                return
            self._backlog += self._rewrite(text).encode("utf-8", "replace")
            self._rouse()

    def leave(self) -> None:
        """Leave nothing out from here on: the terminal is being given back as it was."""
        with self._lock:
            self._last = True

    def close(self, patience: float) -> None:
        """Send what is left, for at most so many seconds; a thread that is held up longer is left to itself."""
        with self._lock:
            self._last = True
            if self._thread.is_alive() and not self._over:
                self._over = True
                self._rouse()
        self._thread.join(patience)

    def _rouse(self) -> None:
        with suppress(OSError):
            os.write(self._wake, b".")

    def _go(self) -> None:
        try:
            self._carry()
        except OSError:
            self._lost()
        finally:
            with self._lock:
                self._over = True
                self._backlog.clear()
                for descriptor in (self._descriptor, self._watched, self._wakes, self._wake):
                    os.close(descriptor)

    def _carry(self) -> None:
        """Send until all is sent and it is over. Raises OSError when the terminal is gone."""
        poll = select.poll()
        poll.register(self._wakes, select.POLLIN)
        poll.register(self._watched, 0)
        while self._backlog or not self._over:
            poll.register(self._descriptor, select.POLLOUT if self._backlog else 0)
            for descriptor, seen in poll.poll():
                if descriptor == self._wakes:
                    os.read(self._wakes, AT_ONCE)
                elif seen & GONE:
                    raise OSError("the terminal hung up")
                elif seen & select.POLLOUT:
                    self._send()

    def _send(self) -> None:
        with suppress(BlockingIOError):
            sent = os.write(self._descriptor, self._backlog[:AT_ONCE])
            with self._lock:
                del self._backlog[:sent]
                caught_up = self._behind and not self._backlog
                self._behind = self._behind and not caught_up
            if caught_up:
                self._caught_up()


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
        if self._terminal.lost or self._terminal.ending:  # before there was anybody to tell
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
        if self._terminal.lost:  # else keys are read, and the mouse is on, until it is given back
            self.exit_event.set()
        if self._app.return_value is None:
            self._app.exit(Leave.HANGUP)

    def _later(self, call: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: the app has ended
            self._loop.call_soon_threadsafe(call)


def _let_print(stdout: Any, stderr: Any) -> None:
    """Textual swallows what is printed while it runs; here it may go into the log."""
    sys.stdout, sys.stderr = stdout, stderr
