"""What a command writes while it works: text for stdout or a file, on stderr how far it is and what happens."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from io import TextIOWrapper
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from interlock.console.streams import JsonLog
from interlock.engine import parsers
from interlock.engine.errors import UsageError, check_apart
from interlock.engine.record import atomic
from interlock.engine.record.words import LONG, drawn, safe, several
from interlock.widgets.formats import width_of

if TYPE_CHECKING:
    from interlock.engine.record.events import AnyEvent, Emit

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


def say(text: str) -> None:
    """Print a line on stderr, as a word of the program's own."""
    print(f"interlock: {safe(text, LONG)}", file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Say what is to be known, where there is anything."""
    if text:
        say(f"warning: {text}")


def silence(stream: TextIO) -> None:
    """Send what is still to come to nowhere, so that a reader who left is not missed at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def check_file(flag: str, file: Path | None, others: Mapping[str, Path | None] = {}, begin: bytes = b"") -> None:
    """Raise UsageError for a file to be written by `flag` that cannot be there, that is one of the `others`, or that is
    there and does not `begin` so."""
    if file is None:
        return
    if not file.absolute().parent.is_dir():
        raise UsageError(f"{flag}: {file.parent} does not exist: create it, or name another file")
    if file.is_dir():
        raise UsageError(f"{flag}: {file} is a directory: name a file")
    for name, other in others.items():
        if other and same_file(file, other):
            raise UsageError(f"{flag}: {file} is {name}: name another file")
    check_own(flag, file, begin)


def check_own(flag: str, file: Path, begin: bytes) -> None:
    """Raise UsageError for a file that is there and does not `begin` as what `flag` writes does: it may be anything."""
    if begin and file.is_file():
        with atomic.explaining(file), file.open("rb") as there:
            if there.read(len(begin)) not in (b"", begin):
                raise UsageError(f"{flag}: {file} holds something else, which stays: name another file")


def check_several(files: Mapping[str, Path | None]) -> None:
    """Raise UsageError where two of these flags would write one file, of which the last word is all that stays."""
    given = [(flag, file) for flag, file in files.items() if file]
    for (flag, file), (other, also) in combinations(given, 2):
        if same_file(file, also):
            raise UsageError(f"{flag} and {other} both write {file}: name another file for one")


def check_outputs(events: str | None, summary: str | None, chunks: Path, numbers: Path | None = None) -> None:
    """Raise UsageError where events and summary both want stdout, or `numbers` the file of the summary, and for a place
    where no summary can be."""
    if events and summary == "-":
        raise UsageError("--events - and --summary - both write to stdout: give --summary a path")
    if summary is None or summary == "-":
        return
    path = parsers.path_of(summary, "--summary")
    if path.is_dir():
        raise UsageError(f"--summary {summary}: expected a file, found a directory: name a file in it")
    check_several({"--metrics": numbers, "--summary": path})
    check_own("--summary", path, b'{\n  "schema_version": "1",\n  "run_id"')
    check_apart("--summary", path, chunks)


def check_summary(summary: str | None, out: Path) -> None:
    """Raise UsageError for a summary in a directory that is not there; `out` is made by the run itself."""
    path = parsers.path(summary) if summary and summary != "-" else out / "any"
    if not path.parent.is_dir() and path.parent.absolute() != out.absolute():
        raise UsageError(f"--summary {summary}: {path.parent} is not a directory: create it, or give another path")


@contextmanager
def writing(file: Path | None) -> Iterator[Callable[[str], object]]:
    """Take text for stdout, or for a file that is there whole or not at all: in UTF-8 but on a terminal."""
    if file is None:
        if isinstance(sys.stdout, TextIOWrapper) and not sys.stdout.isatty():
            sys.stdout.reconfigure(encoding="utf-8")
        yield sys.stdout.write
        return
    atomic.sweep(file.parent, file.name[:50])  # what a killed process left of it
    with atomic.replacing(file) as partial, partial.open("w", encoding="utf-8") as handle:
        yield handle.write


@contextmanager
def progress(unit: str = "") -> Iterator[Progress]:
    """Tell stderr how much a model has done: in one line on a terminal, which its last word ends; elsewhere now and
    then, and its end where anything was told before. A model that has done nothing is being loaded. A total of 0 is
    unknown."""
    live, last, open_line, longest, said = sys.stderr.isatty(), time.monotonic(), False, 0, False

    def told(model: str, done: int, total: int) -> None:
        nonlocal last, open_line, longest, said
        ends = (live or said) and 0 < total <= done
        if ends or time.monotonic() - last > (BLINK if live else PAUSE):
            last, open_line, said = time.monotonic(), live and not ends, True
            whole = several(total or done, unit) if unit else f"{total:,}"
            amount = (f"{done:,} of {whole}" if total else f"{whole} so far") if done else "loading"
            line = f"interlock: {drawn(model)}: {amount}"
            longest = max(longest, width_of(line))
            room = longest - width_of(line) if live else 0  # what stood there before is written over
            print(f"{line}{' ' * room}", end="\r" if open_line else "\n", file=sys.stderr, flush=True)

    yield told
    if open_line:
        print(file=sys.stderr)


def telling(device_kind: str) -> "AbstractContextManager[Emit]":
    """Take events: each is a line on stderr, which a log has with its fields, leases too."""

    def tell_event(event: "AnyEvent") -> None:
        from interlock.console.text.event_text import line_of
        from interlock.engine.record.events import LeaseGranted, LeaseReleased

        line = line_of(event, device_kind)
        if line and isinstance(sys.stderr, JsonLog):
            sys.stderr.record(safe(line), event=str(event.__struct_config__.tag), fields=event)
        elif line and not isinstance(event, LeaseGranted | LeaseReleased):  # moves say it
            print(f"interlock: {safe(line)}", file=sys.stderr, flush=True)

    return nullcontext(tell_event)


def same_file(one: Path, other: Path) -> bool:
    """Tell whether two paths are of one file, by whatever name, or would be."""
    return one.samefile(other) if one.exists() and other.exists() else one.resolve() == other.resolve()
