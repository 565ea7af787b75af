"""One worker for each device: takes the next batch of a queue, has it computed, gated, written and committed.

Several devices of one assignment pull from one queue, of each collection the longest batches first; a device that
serves several assignments takes a batch of each in turn. Between two batches a worker applies what the operator asked
for.
"""

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from interlock.engine.errors import DiskError
from interlock.engine.gpu.device import Device
from interlock.engine.passes.batch_runner import BatchRunner, DeviceGone, Result
from interlock.engine.passes.controls import Controls
from interlock.engine.record.events import BatchCommitted, Emit, MemoryCalibrated
from interlock.engine.record.facts import Computed, joined

SYNC_SECONDS = 1.0
PROBES = 3
"""Measured batches after which the calibration of the memory law is recorded for the first time."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(eq=False)
class Worker:
    """Computes cells on one device until its queues are empty or the order of the cells changes.

    `sync` makes the journal durable.
    """

    device: Device
    runners: deque[BatchRunner]
    emit: Emit
    sync: Callable[[], None]
    controls: Controls

    def __post_init__(self) -> None:
        self.lost_because = ""
        self.error: Exception | None = None
        self._reorders = self.controls.reorders
        self._synced = time.monotonic()

    def run(self) -> None:
        """Work until nothing is left; sets `lost_because` when the device is gone, or `error` when the run must end."""
        try:
            while runner := self._next_runner():
                self._one(runner)
            self._sync()
            for runner in self.runners:
                self._record_calibration(runner)
        except DeviceGone as gone:
            self.lost_because = str(gone)
        except Exception as error:
            self.error = without_frames(error)

    def _next_runner(self) -> BatchRunner | None:
        """The next runner in turn whose queue has batches; None when all are empty, or the operator wants otherwise."""
        controls = self.controls
        controls.apply_pending(self.emit)
        if controls.stop_requested or controls.reorders != self._reorders:
            return None
        for _ in range(len(self.runners)):
            self.runners.rotate(-1)
            if self.runners[-1].queue:
                return self.runners[-1]
        return None

    def _one(self, runner: BatchRunner) -> None:
        index = runner.queue.take()
        if index is None:
            return
        began, known = time.monotonic(), runner.instance.calibration.batches
        try:
            result = runner.compute(index)
        except DeviceGone:
            runner.queue.put_back(index, self.device.name)
            raise
        except Exception as error:  # whatever a model's libraries raise costs this model's pass, not the run
            if isinstance(error, DiskError) or (isinstance(error, OSError) and error.errno in _FULL):
                raise  # no model is to blame for a disk that takes nothing more
            runner.queue.failed = without_frames(error)
            return
        self._commit(runner, index, result, time.monotonic() - began)
        if known < PROBES <= runner.instance.calibration.batches:
            self._record_calibration(runner)
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self._sync()

    def _commit(self, runner: BatchRunner, index: int, result: Result, seconds: float) -> None:
        """Write the vectors, then record the batch as it ran."""
        cells, batch = runner.queue.cells, runner.queue.cells.batches[index]
        own = Computed(device=self.device.name, dtype=runner.instance.dtype, rows=len(batch.rows))
        parts = sorted(result.parts, key=lambda part: (part.device, part.dtype)) or [replace(own, rows=0)]
        crc = cells.file.put(batch.rows, result.vectors)
        event = BatchCommitted(
            model_pass=cells.model_pass,
            batch_index=index,
            rows=len(batch.rows),
            tokens=batch.tokens,
            padding=cells.layout.padding(batch),
            seconds=round(seconds, 6),
            device=joined(part.device for part in parts),
            crc=crc,
            forwards=result.forwards,
            dtype=joined(part.dtype for part in parts),
            parts=[] if [part.rows for part in parts] == [len(batch.rows)] else parts,
        )
        self.emit(event)
        runner.queue.committed.append(event)

    def _record_calibration(self, runner: BatchRunner) -> None:
        known = runner.instance.calibration
        if known.batches:
            self.emit(
                MemoryCalibrated(
                    model_pass=runner.queue.cells.model_pass,
                    device=self.device.name,
                    batches=known.batches,
                    scale=round(known.scale, 5),
                    margin=round(known.margin, 5),
                    worst=round(max(known.residuals, default=1.0), 5),
                )
            )

    def _sync(self) -> None:
        """Vectors first: what the journal says is there must be there."""
        for runner in self.runners:
            runner.queue.cells.file.sync()
        self.sync()
        self._synced = time.monotonic()


def run_all(workers: Sequence[Worker]) -> None:
    """Run workers side by side; a single one works in this thread."""
    if len(workers) == 1:
        workers[0].run()
        return
    threads = [threading.Thread(target=worker.run, name=f"worker {worker.device.name}") for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def without_frames(error: Exception) -> Exception:
    """Strip the tracebacks of an error and of those it came from: their frames would keep a model alive."""
    each: BaseException | None = error
    while each:
        each.__traceback__, each = None, each.__cause__ or each.__context__
    return error
