"""A command on a real terminal: its window size, its keys, what it paints and when, its stalls and its hang-ups.

The test's side of the terminal is read in a thread; every piece is kept with the moment it came. `pyte` is the screen.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pyte

from tests.builders import environment
from tests.warm import Fork

ENVIRONMENT = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
NOT_OURS = ("CI", "NO_COLOR", "COLUMNS", "LINES", "JPY_PARENT_PID", "TMUX")
# Sequences that pyte would paint as text: the keyboard protocol's and queries of modes.
_FOREIGN = re.compile(r"\x1b\[[<>=?]?[0-9;]*(?:\$[a-z]|u)|\x1b\[[<>=][0-9;]*[a-zA-Z]")
_UNFINISHED = re.compile(r"\x1b(?:\[[^@-~]*|\][^\x07\x1b]*)?\Z")


class Screen:
    """What a terminal of some size shows after the bytes it is fed."""

    def __init__(self, columns: int, rows: int) -> None:
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.Stream(self._screen)
        self._left = b""
        self._tail = ""

    def feed(self, data: bytes) -> None:
        """Any piece of the stream, cut anywhere."""
        text = self._decoded(data)
        found = _UNFINISHED.search(text)
        cut = found.start() if found else len(text)
        self._tail = text[cut:]
        self._stream.feed(_FOREIGN.sub("", text[:cut]))

    @property
    def lines(self) -> list[str]:
        return list(self._screen.display)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def resize(self, columns: int, rows: int) -> None:
        self._screen.resize(rows, columns)

    def _decoded(self, data: bytes) -> str:
        data = self._left + data
        for end in range(len(data), max(len(data) - 4, -1), -1):
            with suppress(UnicodeDecodeError):
                text = data[:end].decode()
                self._left = data[end:]
                return self._tail + text
        self._left = b""
        return self._tail + data.decode(errors="replace")


def _spawned(command: list[str], terminal: int, env: dict[str, str], cwd: Path | None) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True, close_fds=True, cwd=cwd,
        env=env, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip


class OnTerminal:
    """One process with a terminal of its own, leader of its session; a context manager that leaves nothing behind.

    It is what `begin` makes of the command line, the open terminal, the environment and the directory.
    """

    def __init__(
        self,
        command: Sequence[object],
        *,
        columns: int = 80,
        rows: int = 24,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        begin: Callable[[list[str], int, dict[str, str], Path | None], Fork | subprocess.Popen[bytes]] = _spawned,
    ) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        """Everything that was read, each piece with the monotonic time at which it came."""
        self.size = columns, rows
        self._master, slave = pty.openpty()
        _set_size(slave, columns, rows)
        kept = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
        self.began = time.monotonic()
        self.process = begin([str(part) for part in command], slave, {**kept, **ENVIRONMENT, **_own(env or {})}, cwd)
        os.close(slave)
        self._screen, self._fed = Screen(columns, rows), 0
        self._reading, self._stopped = threading.Event(), threading.Event()
        self._reading.set()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> "OnTerminal":
        return self

    def __exit__(self, *about: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.hang_up()

    def press(self, keys: str) -> float:
        """Type; when."""
        now = time.monotonic()
        os.write(self._master, keys.encode())
        return now

    def stall(self) -> None:
        """Read nothing from here on; the process finds its terminal full."""
        self._reading.clear()
        time.sleep(0.1)

    def go_on(self) -> None:
        self._reading.set()

    def hang_up(self) -> None:
        """Close our side, as a lost connection does. What the process then holds is a dead terminal."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._thread.join()
            os.close(self._master)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def resize(self, columns: int, rows: int) -> None:
        self._feed()
        self.size = columns, rows
        self._screen.resize(columns, rows)
        _set_size(self._master, columns, rows)

    def wait(self, seconds: float = 20) -> int:
        """The exit code; of a process that a signal ended, the signal's number below zero."""
        return self.process.wait(seconds)

    def screen(self) -> Screen:
        """What is on the screen now."""
        self._feed()
        return self._screen

    def wait_for(self, wanted: str | Callable[[Screen], bool], seconds: float = 20) -> Screen:
        """The screen once it shows the text, or once the predicate says yes of it; fails with what was on it."""
        shows = (lambda screen: wanted in screen.text) if isinstance(wanted, str) else wanted
        until = time.monotonic() + seconds
        while not shows(screen := self.screen()):
            assert time.monotonic() < until, f"not on the screen within {seconds} s: {wanted!r}\n{screen.text}"
            time.sleep(0.02)
        return screen

    def bytes_between(self, began: float, ended: float) -> int:
        """How many bytes came from one moment to another."""
        return sum(len(piece) for at, piece in list(self.pieces) if began <= at < ended)

    @property
    def output(self) -> bytes:
        return b"".join(piece for _, piece in list(self.pieces))

    def frames(self, began: float = 0.0) -> Iterator[tuple[float, Screen]]:
        """The screen after every piece that came since `began`, with when; always one and the same object."""
        screen = Screen(*self.size)
        for at, piece in list(self.pieces):
            screen.feed(piece)
            if at >= began:
                yield at, screen

    @property
    def canonical(self) -> bool:
        """Whether the terminal is as a shell has it: lines, not keys."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ICANON)

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def resident_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def _feed(self) -> None:
        fresh = self.pieces[self._fed :]
        self._fed += len(fresh)
        for _, piece in fresh:
            self._screen.feed(piece)

    def _read(self) -> None:
        while not self._stopped.is_set():
            if not self._reading.wait(0.02):
                continue
            if select.select([self._master], [], [], 0.02)[0] and not self._take():
                return

    def _take(self) -> bool:
        """Read one piece; whether there may be more."""
        try:
            piece = os.read(self._master, 1 << 16)
        except OSError:  # nobody has the other side open any more
            return False
        self.pieces.append((time.monotonic(), piece))
        return True


def on_terminal(*args: object, cwd: Path, first: str = "", columns: int = 80, rows: int = 24) -> OnTerminal:
    """The command on a terminal of its own, begun as `builders.start` begins it, after the statements of `first`."""

    def forked(words: list[str], terminal: int, env: dict[str, str], _: Path | None) -> Fork:
        return Fork(words, env, cwd, hub=True, terminal=terminal, first=first)

    return OnTerminal(args, columns=columns, rows=rows, env=environment(), begin=forked)


def _own(env: Mapping[str, str]) -> dict[str, str]:
    """Without what it only has from this process, which may run where there is no terminal."""
    return {name: value for name, value in env.items() if name not in NOT_OURS or os.environ.get(name) != value}


def _set_size(descriptor: int, columns: int, rows: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
