"""The front end without a screen: lines for people on stderr, events or the summary for programs on stdout.

It owns no state of the run: it polls the recorder, and whatever happens to the terminal the run goes on.
"""

import os
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from interlock.console.sources.session import Session
from interlock.console.streams import JsonLog, leave
from interlock.console.terminal.tty import in_a_cell
from interlock.console.text.event_text import describe, line_of
from interlock.console.text.progress_text import bar, interval, progress
from interlock.console.text.recap import next_commands
from interlock.console.writing import silence
from interlock.engine.errors import DiskError, ExitCode
from interlock.engine.record import atomic, journal
from interlock.engine.record import events as ev
from interlock.engine.record.rundir import SCRATCH, SOCKET
from interlock.engine.record.snapshot import Snapshot
from interlock.engine.record.words import LONG, pass_of, safe, unarmed
from interlock.widgets.formats import RUNGS, width_of

IN_PLACE_SECONDS = 1.0
LINE_SECONDS = 10.0
OVER = "end of memory pressure"


class InPlace:
    """The last line of a terminal, written over once a second."""

    def __init__(self) -> None:
        self._drawn, self._width = 0.0, 0

    def due(self, now: float) -> bool:
        """Tell whether it is time to draw again."""
        return now - self._drawn >= IN_PLACE_SECONDS

    def draw(self, snapshot: Snapshot) -> None:
        """Write how far the run is."""
        self._drawn = time.monotonic()
        text = bar(snapshot, _columns() - 1)
        size = width_of(text)
        _overwrite(text + " " * (self._width - size))
        self._width = size

    def clear(self) -> None:
        """Make room for a line."""
        if self._width:
            _overwrite(" " * self._width + "\r")
        self._width, self._drawn = 0, 0.0


def _columns() -> int:
    with suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    return 80


def _overwrite(text: str) -> None:
    with suppress(OSError, ValueError):
        print(f"\r{text}", end="", file=sys.stderr, flush=True)


class Folded:
    """Steps of the ladder that are counted instead of told: all but the first of a pass, a rung and a device."""

    def __init__(self) -> None:
        self._more: dict[tuple[int, str, str], int] = {}
        self._told = time.monotonic()

    def takes(self, event: ev.AnyEvent) -> bool:
        """Whether an event is one more of its like, and counted."""
        if isinstance(event, ev.PressurePassed):
            like = event.model_pass, OVER, event.device
        elif isinstance(event, ev.Mitigated) and event.batch_index is not None:
            like = event.model_pass, RUNGS.get(event.rung, event.rung), event.device
        else:
            return False
        first = like not in self._more
        self._more[like] = 0 if first else self._more[like] + 1
        return not first

    def due(self, now: float) -> list[str]:
        """The counts, every ten seconds."""
        return self._counts(self._more) if now - self._told >= LINE_SECONDS else []

    def ended_by(self, event: ev.AnyEvent) -> list[str]:
        """The counts of a pass that an event ends; the next one of its like is told again."""
        if isinstance(event, ev.RunClosed):
            ended = list(self._more)
        elif isinstance(event, ev.EnsemblePassCompleted | ev.PassFailed):
            ended = [like for like in self._more if like[0] == event.model_pass]
        else:
            return []
        counts = self._counts(ended)
        for like in ended:
            del self._more[like]
        return counts

    def _counts(self, likes: Iterable[tuple[int, str, str]]) -> list[str]:
        self._told = time.monotonic()
        counts = []
        for like in likes:
            if more := self._more[like]:
                self._more[like] = 0
                model_pass, what, device = like
                mark = "warning: " * (what == RUNGS["park"])
                counts.append(f"{mark}{what}, {pass_of(model_pass)} on {device}: ... and {more:,} like it")
        return counts


Handler = Callable[[int, FrameType | None], object] | signal.Handlers
POLL_SECONDS = 0.25


class Headless:
    """Watches the run of a session to its end."""

    def __init__(self, session: Session, *, events: bool, quiet: bool, verbose: bool = False, seen: int = -1) -> None:
        """`verbose` tells, too, what was as it should be; `seen` is the `seq` of the last entry that another front end
        has told of."""
        self._session = session
        self._events = events
        self._quiet, self._verbose = quiet, verbose
        self._seen = seen
        self._began = self._spoke = time.monotonic()
        # A saved notebook keeps every drawing of a line: 30,000 of a night.
        drawn = sys.stderr.isatty() and not in_a_cell(os.environ)
        self._in_place = InPlace() if drawn and not quiet and not events else None
        self._folded = Folded()
        self._failures: list[str] = []
        self._ending = ""
        """How the run ended, for who wanted to hear of errors only; an error that is raised is told by who gets it."""
        self._noted = False
        self.unwritten: DiskError | None = None
        """Why the stream of events broke off before the run did."""

    def watch(self) -> ExitCode:
        """Print what happens until the run has ended; return how. Raises what the run raises."""
        while self._session.alive:
            self._session.wait(POLL_SECONDS)
            self.poll()
        self.poll()
        if self._in_place:
            self._in_place.clear()
        if self._ending and not self._session.failure:
            self._say(self._ending, urgent=True, event="run_closed")
        return self._session.result()

    def poll(self) -> None:
        """Print what happened since the last time."""
        work = self._session.work
        if work is None:
            return
        if self._session.note and not self._noted:
            self._noted = True
            self._say(self._session.note)
        recorder = work.recorder
        self._seen = max(self._seen, recorder.first - 1)
        entries, dropped = recorder.drain(self._seen)
        if dropped and self._events:  # the ring was too short for what is to be streamed; the journal has it
            with suppress(OSError):
                entries = [entry for entry in journal.read(work.directory.journal) if entry.seq > self._seen]
        for entry in entries:
            self._seen = entry.seq
            self._stream(entry)
            self._print(entry)
        for text in self._folded.due(time.monotonic()):
            self._say(text)
        now = time.monotonic()  # a snapshot copies every batch's number: it is taken only for a line that is due
        if self._in_place and self._in_place.due(now):
            self._in_place.draw(recorder.snapshot())
        due = not self._in_place and now - self._spoke >= interval(now - self._began)
        if due and (text := progress(seen := recorder.snapshot())):
            done = {name: getattr(seen, name) for name in ("share_done", "batches_done", "batches", "tokens_done")}
            self._say(text, event="progress", fields=done)

    def _print(self, entry: ev.Entry) -> None:
        """One line for what people want to know; what failed is told in full once."""
        event, urgent = entry.body, describe(entry.body).severity == "error"  # which is told although progress is not
        urgent = urgent or (isinstance(event, ev.RunClosed) and bool(event.exit_code or event.reason))
        for count in self._folded.ended_by(event):
            self._say(count)
        if self._folded.takes(event) or not (text := line_of(event, entry.device_kind, verbose=self._verbose)):
            return
        for known in self._failures:
            text = text.replace(known, "see above")
        if isinstance(event, ev.PassFailed):
            self._failures.append(event.reason)
        tag, fields = event.__struct_config__.tag, event  # what a log has beside the text
        if self._quiet and isinstance(event, ev.RunClosed):
            self._ending = text if urgent else ""
        else:
            self._say(text, urgent=urgent, event=str(tag), at=entry.at, fields=fields)

    def _stream(self, entry: ev.Entry) -> None:
        if not self._events:
            return
        try:
            self._events = _put_out(journal.encode(entry))
        except DiskError as error:
            self._events, self.unwritten = False, error  # the run goes on; the journal has it all

    def _say(self, text: str, *, urgent: bool = False, **told: Any) -> None:
        """Say it, on a log with what else is `told` of it."""
        self._spoke = time.monotonic()
        if self._in_place:
            self._in_place.clear()
        if (urgent or not self._quiet) and isinstance(sys.stderr, JsonLog):
            sys.stderr.record(safe(text, LONG), **told)
        elif urgent or not self._quiet:
            say(f"{time.strftime('%H:%M:%S')} {safe(text, LONG)}")


def say(line: str) -> None:
    """Put a line on stderr; nothing happens when the terminal is gone."""
    try:
        print(line, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        silence(sys.stderr)


@contextmanager
def handling(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Answer these signals so for a while."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stopped_by_signals(session: Session) -> None:
    """From now on, interrupt and terminate stop the run at the next batch, a second one at once.

    Once the run has ended they change nothing of how; a second one ends what is still to be written.
    """
    late: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if session.over:
            late.append(number)
            if len(late) > 1:
                leave(session.ended)
            return
        stop = session.controls
        if stop.code is not None:
            leave_at_once(session, stop.code)
        stop.code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED
        with suppress(OSError):
            text = b"stopping at the next batch; once more to stop now\n"  # print is not safe in a handler
            os.write(2, b"\n" + text if os.isatty(2) else text)  # behind the line that is written in place

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)


def leave_at_once(session: Session, code: ExitCode) -> None:
    """End the process, whatever it computes: the journal says so, and stderr how to go on."""

    def close() -> None:
        seen = session.close("interrupted in a batch: --resume continues", code)
        if seen and session.work:
            os.write(2, f"next: {next_commands(seen, session.work.directory.path)[0]}\n".encode())
        if session.work:
            (session.work.directory.path / SOCKET).unlink(missing_ok=True)  # of a process that steers nothing any more
            atomic.leave(session.work.directory.path)
            for left in session.work.directory.path.glob(f"{SCRATCH}*"):
                shutil.rmtree(left, ignore_errors=True)

    closing = threading.Thread(target=close, daemon=True)  # the frame that a signal interrupts may hold the lock
    closing.start()
    closing.join(2.0)
    leave(code)  # the journal is whole after every line; --resume needs nothing else


def deliver_summary(summary: bytes, target: str) -> None:
    """Put a summary where `--summary` wants it. Raises InterlockError when it cannot be written there.

    That nobody reads it any more changes nothing of how the run ended.
    """
    path = Path(target)
    if target == "-":
        _put_out(summary)
    elif _is_stream(path):  # a pipe or a device is written to; a file of its name in its place is for nobody
        with atomic.explaining(path), suppress(BrokenPipeError):
            handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)  # a pipe without a reader is an error
            os.set_blocking(handle, True)
            with os.fdopen(handle, "wb") as stream:
                stream.write(summary)
    else:
        with atomic.explaining(path):
            path.parent.stat()  # a directory that is not there was mistyped
        atomic.write_bytes(path, summary)


def _is_stream(path: Path) -> bool:
    if path.parent.as_posix() in ("/dev", "/dev/fd", "/proc/self/fd"):  # a descriptor, whatever is behind it
        return path.exists()
    return path.exists() and not stat.S_ISREG(path.stat().st_mode)


def _put_out(data: bytes) -> bool:
    """Write to stdout; tell whether anybody reads on. Raises DiskError where anything else is in the way."""
    try:
        with atomic.explaining(Path("stdout")):
            sys.stdout.buffer.write(unarmed(data, ascii=True) if sys.stdout.encoding == "ascii" else data)
            sys.stdout.buffer.flush()
    except DiskError as error:
        silence(sys.stdout)
        if isinstance(error.__cause__, BrokenPipeError):
            return False
        raise
    return True
