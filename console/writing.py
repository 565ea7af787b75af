"""What a command writes while it works: text for stdout or a file, and on stderr how far it is."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from interlock.engine.errors import UsageError
from interlock.engine.record import atomic
from interlock.engine.record.words import safe, several

PAUSE, BLINK = 10.0, 0.2
"""Seconds between two words on progress, and between two on a terminal."""
Progress = Callable[[str, int, int], object]
"""Hears a model, how much of its work is done, and of how much."""


def tell(text: str, *, error: bool = False) -> None:
    """Print for whoever reads it, on stdout or as an `error` on stderr: work that has begun goes on when they leave."""
    stream = sys.stderr if error else sys.stdout
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        silence(stream)


def silence(stream: TextIO) -> None:
    """Send what is still to come to nowhere, so that a reader who left is not missed at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def check_directory(flag: str, file: Path | None) -> None:
    """Raise UsageError for a file to be written by `flag` in a directory that is not there."""
    if file and not file.absolute().parent.is_dir():
        raise UsageError(f"{flag}: {file.parent} does not exist: create it, or name another file")


@contextmanager
def writing(file: Path | None) -> Iterator[Callable[[str], object]]:
    """Take text for stdout, or for a file that is there whole or not at all."""
    if file is None:
        yield sys.stdout.write
        return
    with atomic.replacing(file) as partial, partial.open("w", encoding="utf-8") as handle:
        yield handle.write


@contextmanager
def progress(unit: str = "") -> Iterator[Progress]:
    """Tell stderr how much a model has done: in one line on a terminal, which its last word ends; elsewhere now and
    then, and nothing of what is done sooner. A model that has done nothing is being loaded."""
    live, last, open_line, longest = sys.stderr.isatty(), time.monotonic(), False, 0

    def told(model: str, done: int, total: int) -> None:
        nonlocal last, open_line, longest
        ends = live and done >= total
        if ends or time.monotonic() - last > (BLINK if live else PAUSE):
            last, open_line = time.monotonic(), live and not ends
            amount = f"{done:,} of {several(total, unit) if unit else f'{total:,}'}" if done else "loading"
            line, longest = f"interlock: {safe(model)}: {amount}", max(longest, len(amount) + len(model))
            room = longest - len(amount) - len(model) if live else 0  # what stood there before is written over
            print(f"{line}{' ' * room}", end="\r" if open_line else "\n", file=sys.stderr, flush=True)

    yield told
    if open_line:
        print(file=sys.stderr)
