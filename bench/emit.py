"""What it costs the engine to tell of an event, while a front end looks as often as the console does."""

import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from interlock.engine.record import journal
from interlock.engine.record.recorder import Recorder
from tools.recorded import RECORDED

POLL_HZ = 4


def emit_cost(events: int) -> dict[str, float]:
    """Microseconds to emit the events of a recorded run, while a front end looks as often as the console does."""
    bodies = [entry.body for entry in journal.read(RECORDED / "two-devices.jsonl")]
    took: list[int] = []
    while len(took) < events:
        with tempfile.TemporaryDirectory() as made, polled(Path(made)) as recorder:
            for body in bodies:
                began = time.perf_counter_ns()
                recorder.emit(body)
                took.append(time.perf_counter_ns() - began)
    microseconds = np.array(took) / 1000
    return {"median": float(np.median(microseconds)), "p99": float(np.quantile(microseconds, 0.99))}


@contextlib.contextmanager
def polled(directory: Path) -> Iterator[Recorder]:
    recorder, over = Recorder(journal.Journal(directory / "journal.jsonl"), "sim"), threading.Event()

    def look() -> None:
        seen = -1
        while not over.wait(1 / POLL_HZ):
            recorder.snapshot()
            seen = max((entry.seq for entry in recorder.drain(seen)[0]), default=seen)

    front_end = threading.Thread(target=look)
    front_end.start()
    yield recorder
    over.set()
    front_end.join()
    recorder.journal.close()
