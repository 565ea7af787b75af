"""In which signs stdout and stderr are written: in ASCII where a terminal shows no more, or where that is asked for.

A sign that a stream cannot take is never an error: it is written as a screen draws it on such a terminal. A stream that
the process was begun without is opened. With `--log-json` every line of stderr is a JSON object, whoever writes it.
"""

import codecs
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import TextIOBase, TextIOWrapper
from typing import NoReturn

DRAWN = "interlock-drawn"
"""How a stream's errors of encoding are handled that shows signs as a screen draws them."""
ASCII_TERMINALS = ("linux", "vt100", "vt102", "vt220", "ansi", "cons25", "sun")
LOCALES, COERCED = ("LC_ALL", "LC_CTYPE", "LANG"), "C.UTF-8"


def draws_only_ascii(environment: Mapping[str, str]) -> bool:
    """Tell whether a terminal is known to show no more than ASCII: by its name, or by a locale of another encoding.

    Where no locale is set, as in many containers, nothing is known against it.
    """
    locale = next((value for name in LOCALES if (value := environment.get(name))), "UTF-8")
    # Python itself sets LC_CTYPE where it finds the locale to be "C", so that alone says nothing.
    if locale == COERCED and (asked := environment.get("LANG")):
        locale = asked
    terminal = environment.get("TERM", "").partition("-")[0]
    return terminal in ASCII_TERMINALS or not locale.upper().replace("-", "").endswith("UTF8")


def write_ascii(*, asked: bool = False) -> None:
    """Have text on stdout and stderr be ASCII, where that is `asked` for or a terminal shows no more. What a stream in
    another encoding than UTF-8 cannot take is written as a screen draws it on such a terminal."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            if isinstance(stream, TextIOWrapper):
                only = asked or (stream.isatty() and draws_only_ascii(os.environ))
                if only or stream.encoding.lower() != "utf-8":
                    stream.reconfigure(encoding="ascii" if only else None, errors=DRAWN)


def fill_closed_streams() -> None:
    """Open each standard stream that the process was begun without, so that no file of a run takes its number: stdin
    ends at once, stdout fails when something is written to it, and what stderr is told is lost."""
    for number, name, flags in ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, flags)  # takes the lowest number that is free, so this one
            os.set_inheritable(opened, True)
            stream = open(opened, "w" if number else "r", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


@contextmanager
def streams_put_back() -> Iterator[None]:
    """Give stdout and stderr the encoding back that they had."""
    before = [
        (each, each.encoding, each.errors) for each in (sys.stdout, sys.stderr) if isinstance(each, TextIOWrapper)
    ]
    try:
        yield
    finally:
        for stream, encoding, errors in before:
            with suppress(OSError, ValueError):
                stream.reconfigure(encoding=encoding, errors=errors)


_BEGINS = re.compile(r"(?:interlock(?: [a-z]+)?: )?(?:(?P<level>warning|error): )?")


class JsonLog(TextIOBase):
    """Stands for stderr, each line a JSON object: what this program says goes out at once, what a library or a command
    of the operator's writes to the descriptor comes by a pipe, as an `output`."""

    def __init__(self) -> None:
        self._out, self._rest = os.dup(2), threading.local()
        reads, writes = os.pipe()
        os.dup2(writes, 2)
        os.close(writes)
        self._others = threading.Thread(target=self._take, args=(reads,), name="log", daemon=True)
        self._others.start()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """The descriptor that a process which is started gets."""
        return 2

    def write(self, text: str) -> int:
        """Tell each line that is whole, as a message of the level that it begins with."""
        *lines, self._rest.text = (getattr(self._rest, "text", "") + text.replace("\r", "\n")).split("\n")
        for line in lines:
            self.record(line)
        return len(text)

    def record(
        self, message: str, level: str = "", event: str = "message", at: float | None = None, **more: object
    ) -> None:
        """Write one line: when it was, by the seconds since the epoch; how bad; what happened, in words and fields."""
        import msgspec

        from interlock.engine.record.words import unarmed

        begins = _BEGINS.match(message)
        assert begins, "all of it may be missing"
        when = datetime.fromtimestamp(time.time() if at is None else at, UTC).isoformat(timespec="milliseconds")
        said = {"time": when, "level": level or begins["level"] or "info", "event": event}
        said["message"] = message = message[begins.end() :].strip()
        line = unarmed(msgspec.json.encode({**said, **more})) + b"\n"
        with suppress(OSError):  # nobody reads it any more
            while message and line:
                line = line[os.write(self._out, line) :]

    def _take(self, reads: int) -> None:
        with open(reads, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self.record(line, event="output")

    def close(self) -> None:
        """Give the descriptor back once all that came by the pipe is told; who keeps it open is not waited for."""
        os.dup2(self._out, 2)
        self._others.join(1.0)


@contextmanager
def json_log(arguments: Sequence[str]) -> Iterator[None]:
    """Have stderr be a JsonLog where the command line asks for it."""
    before = sys.stderr
    if asked := "--log-json" in arguments:
        sys.stderr = JsonLog()
    try:
        yield
    finally:
        if asked:
            sys.stderr.close()
            sys.stderr = before


def leave(code: int) -> NoReturn:
    """End the process at once, and put out what stderr has still to say."""
    with suppress(OSError, ValueError, AttributeError, RuntimeError):  # the last: a signal came while it was written to
        sys.stderr.close() if isinstance(sys.stderr, JsonLog) else sys.stderr.flush()
    os._exit(code)


def _drawn(error: UnicodeError) -> tuple[str, int]:
    """What stands for signs that a stream cannot take, in as many cells."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    from interlock.widgets.text import ascii_only

    return ascii_only(error.object[error.start : error.end]), error.end


codecs.register_error(DRAWN, _drawn)
