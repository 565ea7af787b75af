"""In which signs stdout and stderr are written: in ASCII where a terminal shows no more, or where that is asked for.

A sign that a stream cannot take is never an error: it is written as a screen draws it on such a terminal. A stream that
the process was begun without is opened.
"""

import codecs
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import TextIOWrapper

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


def _drawn(error: UnicodeError) -> tuple[str, int]:
    """What stands for signs that a stream cannot take, in as many cells."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    from interlock.widgets.text import ascii_only

    return ascii_only(error.object[error.start : error.end]), error.end


codecs.register_error(DRAWN, _drawn)
