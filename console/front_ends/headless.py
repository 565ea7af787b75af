"""The front end without a screen: lines for people on stderr, events or the summary for programs on stdout.

It owns no state of the run: it polls the recorder, and whatever happens to the terminal the run goes on.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

from interlock.console.sources.session import Session
from interlock.console.text.event_text import line_of, progress
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.passes.controls import Controls
from interlock.engine.record import atomic, journal
from interlock.engine.record.events import Entry
from interlock.engine.record.safe import safe

Handler = Callable[[int, FrameType | None], object] | signal.Handlers
POLL_SECONDS = 0.25
LINE_SECONDS = 10.0


class Headless:
    """Watches the run of a session to its end."""

    def __init__(self, session: Session, *, events: bool, quiet: bool, seen: int = -1) -> None:
        """`seen` is the `seq` of the last entry that another front end has told of."""
        self._session = session
        self._events = events
        self._quiet = quiet
        self._seen = seen
        self._spoke = time.monotonic()

    def watch(self) -> ExitCode:
        """Print what happens until the run has ended; return how. Raises what the run raises."""
        with _stopped_by_signals(self._session.controls):
            while self._session.alive:
                self._session.wait(POLL_SECONDS)
                self.poll()
            self.poll()
        return self._session.result()

    def poll(self) -> None:
        """Print what happened since the last time."""
        work = self._session.work
        if work is None:
            return
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
        if time.monotonic() - self._spoke >= LINE_SECONDS and (text := progress(recorder.snapshot())):
            self._say(text)

    def _print(self, entry: Entry) -> None:
        """One line for what people want to know."""
        if text := line_of(entry.body, entry.device_kind):
            self._say(text)

    def _stream(self, entry: Entry) -> None:
        if not self._events:
            return
        try:
            sys.stdout.buffer.write(journal.encode(entry))
            sys.stdout.buffer.flush()
        except OSError:
            self._events = False  # whoever read it has gone; the journal has it all
            silence(sys.stdout)

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        if not self._quiet:
            say(f"{time.strftime('%H:%M:%S')} {safe(text)}")


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


def _stopped_by_signals(stop: Controls) -> AbstractContextManager[None]:
    """Interrupt and terminate stop the run at the next batch, a second interrupt at once; a hang-up stops nothing."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if stop.code is not None:
            os._exit(stop.code)  # the journal is whole after every line; --resume needs nothing else
        stop.code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED
        with suppress(OSError):
            os.write(2, b"stopping at the next batch; once more to stop now\n")  # print is not safe in a handler

    return handling({signal.SIGINT: interrupt, signal.SIGTERM: interrupt, signal.SIGHUP: signal.SIG_IGN})


def deliver_summary(summary: bytes, target: str) -> None:
    """Put a summary where `--summary` wants it. Raises InterlockError when it cannot be written there.

    That nobody reads stdout any more changes nothing of how the run ended.
    """
    if target != "-":
        atomic.write_bytes(Path(target), summary)
        return
    try:
        sys.stdout.buffer.write(summary)
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)


def silence(stream: TextIO) -> None:
    """Send what is still to come to nowhere, so that a reader who left is not missed at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def check_outputs(events: str | None, summary: str | None) -> None:
    """Raise UsageError where both events and summary want stdout."""
    if events and summary == "-":
        raise UsageError("--events - and --summary - both write to stdout: give --summary a path")
