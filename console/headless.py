"""The front end without a screen: lines for people on stderr, events or the summary for programs on stdout.

It owns no state of the run: it polls the recorder, and whatever happens to the terminal the run goes on.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from console.lines import line_of, progress
from console.safe import safe
from engine.errors import ExitCode, UsageError
from engine.record import durable, journal
from engine.record.events import Entry
from engine.run import Run, StopRequest

POLL_SECONDS = 0.25
LINE_SECONDS = 10.0


class Headless:
    """Watches one run to its end."""

    def __init__(self, run: Run, stop: StopRequest, *, events: bool, quiet: bool) -> None:
        self._run = run
        self._stop = stop
        self._events = events
        self._quiet = quiet
        self._seen = run.recorder.first - 1
        self._spoke = time.monotonic()
        self._failure: BaseException | None = None
        self._code = ExitCode.FAILED

    def watch(self) -> ExitCode:
        """Run to the end. Raises what the run raised."""
        restore = _signals(self._stop)
        engine = threading.Thread(target=self._go, name="engine")
        engine.start()
        while engine.is_alive():
            engine.join(POLL_SECONDS)
            self._poll()
        self._poll()
        restore()
        if self._failure:
            raise self._failure
        return self._code

    def _go(self) -> None:
        try:
            self._code = self._run.go()
        except BaseException as error:
            self._failure = error

    def _poll(self) -> None:
        entries, dropped = self._run.recorder.drain(self._seen)
        if dropped:
            entries = [entry for entry in journal.read(self._run.directory.journal) if entry.seq > self._seen]
        for entry in entries:
            self._seen = entry.seq
            self._stream(entry)
            if text := line_of(entry.body, self._run.recorder.look):
                self._say(text)
        if time.monotonic() - self._spoke >= LINE_SECONDS and (text := self._run.recorder.look(progress)):
            self._say(text)

    def _stream(self, entry: Entry) -> None:
        if not self._events:
            return
        try:
            sys.stdout.buffer.write(journal.encode(entry))
            sys.stdout.buffer.flush()
        except OSError:
            self._events = False  # whoever read it has gone; the journal has it all

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        if not self._quiet:
            with suppress(OSError, ValueError):
                print(f"{time.strftime('%H:%M:%S')} {safe(text)}", file=sys.stderr, flush=True)


def _signals(stop: StopRequest) -> Callable[[], None]:
    """Interrupt and terminate stop the run at the next batch, a second interrupt at once; a hang-up stops nothing."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if stop.code is not None:
            os._exit(stop.code)  # the journal is whole after every line; --resume needs nothing else
        stop.code = ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED
        with suppress(OSError):
            print("stopping after this batch; once more to stop now", file=sys.stderr, flush=True)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, interrupt),
        signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    }

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore


def deliver_summary(run: Run, target: str | None) -> None:
    """Copy the run's summary where `--summary` wants it. Raises InterlockError when it cannot be written."""
    if target == "-":
        sys.stdout.write(run.directory.summary.read_text())
    elif target:
        durable.write_bytes(Path(target), run.directory.summary.read_bytes())


def check_outputs(events: str | None, summary: str | None) -> None:
    """Raises UsageError where both events and summary want stdout."""
    if events and summary == "-":
        raise UsageError("--events - and --summary - both want stdout: give --summary a path")
