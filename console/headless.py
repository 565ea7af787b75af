"""The front end without a screen: lines for people on stderr, events or the summary for programs on stdout.

It owns no state of the run: it polls the recorder, and whatever happens to the terminal the run goes on.
"""

import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from console.safe import safe
from engine.errors import ExitCode, UsageError
from engine.record import durable, journal
from engine.record import events as ev
from engine.record.events import Entry
from engine.record.state import RunState
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
        self._seen = -1
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
            raise KeyboardInterrupt
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


def line_of(event: ev.AnyEvent, look: Callable[[Callable[[RunState], str]], str]) -> str:
    """What is said of an event; nothing for most."""
    match event:
        case ev.RunStarted():
            return f"run {event.run_id} of {event.chunks}"
        case ev.RunResumed():
            return look(_resumed)
        case ev.ModelResolved():
            commit = f" at {event.commit[:12]}" if event.commit else ""
            return f"model {event.model}: {event.outcome}, {event.source}{commit}, {durable.human_bytes(event.bytes)}"
        case ev.DownloadRetried():
            return f"model {event.model}: try {event.attempt} failed ({event.reason}); again in {event.wait_seconds} s"
        case ev.RecordRefused(record=None):
            return f"refused {event.collection}/{event.file}: {event.reason}"
        case ev.RecordRefused():
            return f"refused {event.collection}/{event.file} record {event.record}: {event.reason}"
        case ev.CollectionRead():
            return (
                f"collection {event.collection}: {event.chunks} chunks in {event.files} files, "
                f"{event.duplicates} duplicates, {event.refused} refused -> {event.qdrant_collection}"
            )
        case ev.PassFailed():
            return f"pass {event.model_pass + 1} {event.model} FAILED: {event.reason}"
        case ev.Mitigated():
            return f"mitigation in pass {event.model_pass + 1} batch {event.batch_index}: {event.cause}; {event.action}"
        case ev.RowParked():
            return f"row {event.row} of {event.collection} has no vector of {event.model}: {event.reason}"
        case ev.Warned():
            return f"warning: {event.message}"
        case _:
            return _line_of_work(event, look)


def _line_of_work(event: ev.AnyEvent, look: Callable[[Callable[[RunState], str]], str]) -> str:
    match event:
        case ev.LeaseGranted():
            return look(lambda state: _begins(state, event))
        case ev.EnsemblePassCompleted():
            return look(lambda state: _completed(state, event))
        case ev.ArtefactWritten():
            return f"wrote {event.path} ({event.rows} rows, {durable.human_bytes(event.bytes)})"
        case ev.StoreVerified():
            word = "verified" if event.ok else "NOT AS WRITTEN"
            return f"store {event.store}/{event.qdrant_collection} {word}: {event.detail}"
        case ev.CollectionClosed():
            return f"collection {event.collection} {event.status}" + (f": {event.reason}" if event.reason else "")
        case ev.RunClosed():
            return f"run {event.status}" + (f": {event.reason}" if event.reason else "")
    return ""


def progress(state: RunState) -> str:
    """How far the pass that is computing has come; nothing when none is."""
    number = state.current_pass
    if number is None or number in state.passes_completed or state.status:
        return ""
    shares = [share for share in state.shares() if share.model_pass == number]
    done, total = sum(share.rows_done for share in shares), sum(share.rows for share in shares)
    batches, of = sum(share.batches_done for share in shares), sum(share.batches for share in shares)
    seconds = sum(share.seconds for share in shares)
    rate = done / seconds if seconds else 0.0
    left = f", {_minutes((total - done) / rate)} left in this pass" if rate else ""
    percent = f"{done / total:.0%}" if total else "0%"
    return f"pass {number + 1}/{len(state.roster)} {shares[0].model} {percent} batch {batches}/{of}, {rate:.1f} rows/s{left}"


def _resumed(state: RunState) -> str:
    kept = sum(len(done) for done in state.committed.values())
    return f"run {state.started.run_id if state.started else ''} resumed: {kept} batches were committed before"


def _begins(state: RunState, event: ev.LeaseGranted) -> str:
    shares = [share for share in state.shares() if share.model_pass == event.model_pass]
    rows, batches = sum(s.rows - s.rows_done for s in shares), sum(s.batches - s.batches_done for s in shares)
    reused = sum(share.reused for share in shares)
    return (
        f"pass {event.model_pass + 1}/{len(state.roster)} {event.model}: lease {event.lease} on {','.join(event.devices)}, "
        f"{rows} rows in {batches} batches" + (f", {reused} reused" if reused else "")
    )


def _completed(state: RunState, event: ev.EnsemblePassCompleted) -> str:
    lease = next((lease for lease in reversed(state.leases.values()) if lease.model_pass == event.model_pass), None)
    text = f"pass {event.model_pass + 1}/{len(state.roster)} {event.model} done: {event.rows} rows in {event.seconds:.1f} s"
    if event.seconds:
        text += f" ({event.rows / event.seconds:.1f} rows/s)"
    if lease and lease.receipts:
        receipt = lease.receipts[0]
        text += (
            f", peak {durable.human_bytes(receipt.peak.occupied)}, residue {durable.human_bytes(receipt.residue_bytes)}"
        )
    return text


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
