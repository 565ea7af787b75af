"""The terminal of this process: whether a console can be shown on it, and holding it while one is.

While it is held, the screen has private descriptors of it. Descriptor 0 is empty and 1 and 2 lead into a log, so that
nothing that a library prints tears the screen. When the terminal hangs up meanwhile, it is never touched again. Knows
no terminal library.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from interlock.engine.record.words import safe

LAID_ASIDE = (
    *(signal.SIGHUP, signal.SIGTERM, signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH, signal.SIGTTIN, signal.SIGTTOU),
)
"""Signals that a screen takes for itself, and that mean afterwards what they meant before."""
NO = ("", "0", "false", "no")


@dataclass(frozen=True)
class Surroundings:
    """What decides whether a console can be shown. A screen is drawn on stderr and its keys are read from stdin."""

    environment: Mapping[str, str]
    stdin: bool
    stderr: bool
    foreground: bool = True

    @classmethod
    def here(cls) -> "Surroundings":
        """Look at those of this process."""
        stdin, stderr = _is_terminal(0), _is_terminal(2)
        return cls(os.environ, stdin, stderr, foreground=not stdin or _in_foreground(0))


def why_headless(
    *, no_ui: bool = False, events: bool = False, summary: str | None = None, around: Surroundings | None = None
) -> str:
    """Say why there can be no console, in words for one line; empty when there can be one."""
    around = around or Surroundings.here()
    terminal = around.environment.get("TERM", "")
    refusals = {
        "--no-ui was given": no_ui,
        "events go to stdout": events,
        "the summary goes to stdout": summary == "-",
        "stdin is not a terminal": not around.stdin,
        "stderr is not a terminal": not around.stderr,
        "started in the background": not around.foreground,
        f"TERM is {safe(terminal) or 'not set'}": terminal in ("", "dumb", "unknown"),
        "CI is set": around.environment.get("CI", "").lower() not in NO,
        "running in a notebook cell": in_a_cell(around.environment),
    }
    return next((words for words, applies in refusals.items() if applies), "")


def takes_screens() -> bool:
    """Whether who called a command that only shows something sees a screen: one who reads its stdout wants text."""
    return bool(sys.stdout and sys.stdout.isatty()) and not why_headless()


def in_a_cell(environment: Mapping[str, str]) -> bool:
    """Whether this is a command of a notebook's cell: its kernel gives it a terminal, but shows no screen, and keeps
    all that is written. A shell that a kernel started on a real terminal has another TERM."""
    return "JPY_PARENT_PID" in environment and environment.get("TERM") == "xterm-color"


@dataclass
class Terminal:
    """A terminal that is held for a screen: descriptors of its own to read keys from and to write to.

    `lost` once it has hung up. `on_lost` is called then, once, from whichever thread notices or from a signal handler;
    and when the process is to end, which it does once the terminal is given back.
    """

    reads: int
    writes: int
    quiet: bool = True
    lost: bool = False
    ending: bool = False
    on_lost: Callable[[], None] = field(default=lambda: None, repr=False)

    def lose(self) -> None:
        if not self.lost:
            self.lost = True
            self.on_lost()

    def end(self) -> None:
        self.ending = True
        self.on_lost()

    def close(self) -> None:
        os.close(self.reads)
        os.close(self.writes)


_held: Terminal | None = None


def held() -> Terminal:
    """Get the terminal that is held; where none is, that of descriptors 0 and 2 as they are."""
    return _held or Terminal(os.dup(0), _writable(2), quiet=False)


@contextmanager
def quiet_descriptors(log: Path | None = None) -> Iterator[Terminal]:
    """Hold the terminal; what is printed on descriptors 1 and 2 meanwhile is appended to `log`, else to a file made for
    it. Where it is, is said afterwards if there is anything in it.

    Nothing is read from descriptor 0 meanwhile. A hang-up from here on ends nothing: what was a terminal leads into the
    log afterwards, and a second hang-up is ignored.
    """
    global _held
    path, sink = _log(log)
    began = os.fstat(sink).st_size
    copies, terminals = [os.dup(number) for number in range(3)], [_is_terminal(number) for number in range(3)]
    _held = terminal = Terminal(os.dup(0), _writable(2))
    signals = {number: signal.getsignal(number) for number in LAID_ASIDE}
    signal.signal(signal.SIGHUP, lambda number, frame: terminal.lose())
    signal.signal(signal.SIGTERM, lambda number, frame: terminal.end())
    try:
        _flush()
        empty = os.open(os.devnull, os.O_RDWR)
        for number, target in enumerate((empty, sink, sink)):
            os.dup2(target, number)
        os.close(empty)
        yield terminal
    finally:
        _held = None
        for number, handler in signals.items():
            keeps = terminal.lost and number == signal.SIGHUP
            signal.signal(number, signal.SIG_IGN if keeps else handler or signal.SIG_DFL)  # None: not set from Python
        _flush()
        for number, copy in enumerate(copies):
            if not (terminal.lost and terminals[number]):  # what led to a terminal that is lost stays where it is
                os.dup2(copy, number)
            os.close(copy)
        terminal.close()
        if not terminal.lost:
            _mention(path, os.fstat(sink).st_size - began, keep=log is not None)
        os.close(sink)
        if terminal.ending:
            os.kill(os.getpid(), signal.SIGTERM)


def _is_terminal(descriptor: int) -> bool:
    with suppress(OSError):
        return os.isatty(descriptor)
    return False


def _in_foreground(descriptor: int) -> bool:
    """Whether this process may draw on the terminal without being stopped for it, and its run with it."""
    with suppress(OSError):
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    return True


def _writable(descriptor: int) -> int:
    """A descriptor that never blocks. The terminal is opened anew for it, because not to block is said of what was
    opened, and that is shared with the shell; where it cannot be opened, a copy has to do."""
    with suppress(OSError):
        return os.open(os.ttyname(descriptor), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    return os.dup(descriptor)


def _log(path: Path | None) -> tuple[Path, int]:
    if path is None:
        descriptor, name = tempfile.mkstemp(prefix="interlock-", suffix=".log")
        os.close(descriptor)
        path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def _mention(path: Path, size: int, *, keep: bool) -> None:
    if size:
        with suppress(OSError):
            os.write(2, f"output captured while the console was open: {safe(path)}\n".encode())
    elif not keep:
        path.unlink(missing_ok=True)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
