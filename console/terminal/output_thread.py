"""What is written to the terminal, by a thread of its own: whoever writes never waits, however slow the terminal is.

A terminal that does not keep up is not fed more and more: frames are left out until it has taken what was on its way,
and then the screen is painted afresh. That a terminal has hung up is noticed here too.
"""

import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress

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
