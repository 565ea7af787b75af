"""What a command writes while it works: text for stdout or a file, on stderr how far it is, events to a file."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from io import TextIOWrapper
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from interlock.engine import parsers
from interlock.engine.errors import InterlockError, UsageError, check_apart
from interlock.engine.record import atomic
from interlock.engine.record.words import LONG, drawn, safe, several
from interlock.widgets.formats import width_of

if TYPE_CHECKING:
    from interlock.engine.record.events import AnyEvent

PAUSE, BLINK = 10.0, 0.2
"""Seconds between two words on progress, and between two on a terminal."""
LONGEST = 1_000_000
"""Bytes of a line of telemetry, at most."""
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
    then, and nothing of what is done sooner. A model that has done nothing is being loaded. A total of 0 is unknown."""
    live, last, open_line, longest = sys.stderr.isatty(), time.monotonic(), False, 0

    def told(model: str, done: int, total: int) -> None:
        nonlocal last, open_line, longest
        ends = live and 0 < total <= done
        if ends or time.monotonic() - last > (BLINK if live else PAUSE):
            last, open_line = time.monotonic(), live and not ends
            whole = several(total or done, unit) if unit else f"{total:,}"
            amount = (f"{done:,} of {whole}" if total else f"{whole} so far") if done else "loading"
            line = f"interlock: {drawn(model)}: {amount}"
            longest = max(longest, width_of(line))
            room = longest - width_of(line) if live else 0  # what stood there before is written over
            print(f"{line}{' ' * room}", end="\r" if open_line else "\n", file=sys.stderr, flush=True)

    yield told
    if open_line:
        print(file=sys.stderr)


class Telemetry:
    """Takes events: to stderr as lines, or with a file to that, appended as lines of a journal, and only what went
    wrong to stderr. A context manager."""

    def __init__(self, file: Path | None, device_kind: str) -> None:
        self._file, self._kind = file, device_kind
        self._stack = ExitStack()
        self._count, self._began = 0, time.monotonic()

    def __enter__(self) -> "Telemetry":
        if self._file:
            _check_appendable(self._file)
            with atomic.explaining(self._file):
                self._out = self._stack.enter_context(self._file.open("ab", buffering=0))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, event: "AnyEvent") -> None:
        from interlock.console.text.event_text import SEVERE, describe, line_of
        from interlock.engine.record import journal
        from interlock.engine.record.events import Entry, LeaseGranted, LeaseReleased

        if self._file:
            elapsed = round(time.monotonic() - self._began, 3)
            entry = Entry(
                seq=self._count, at=time.time(), session=1, elapsed=elapsed, device_kind=self._kind, body=event
            )
            with atomic.explaining(self._file):
                self._out.write(journal.encode(entry))
            self._count += 1
        line = "" if isinstance(event, LeaseGranted | LeaseReleased) else line_of(event, self._kind)  # moves say it
        if line and (not self._file or describe(event).severity in SEVERE):
            print(f"interlock: {safe(line)}", file=sys.stderr, flush=True)


check_telemetry = partial(check_file, "--telemetry")
"""What it is appended to is looked at when it is opened."""


def same_file(one: Path, other: Path) -> bool:
    """Tell whether two paths are of one file, by whatever name, or would be."""
    return one.samefile(other) if one.exists() and other.exists() else one.resolve() == other.resolve()


def _check_appendable(file: Path) -> None:
    """Raise UsageError for a file that begins with anything but telemetry: one of a run or a store, by any name."""
    from interlock.engine.record import journal
    from interlock.engine.record.events import RunStarted

    if not file.is_file():
        return
    with atomic.explaining(file), file.open("rb") as there:
        line = there.readline(LONGEST)
    with suppress(InterlockError):  # for an entry of another version
        entry = journal.decode(line) if line else None
        if not line or (entry and not isinstance(entry.body, RunStarted)):
            return
    raise UsageError(f"--telemetry: {file} holds something else, to which nothing is added: name another file")
