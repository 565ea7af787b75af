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
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from msgspec.structs import replace

from interlock.engine.compute.batch_runner import BatchRunner, Crowded, DeviceGone, TooNarrow
from interlock.engine.compute.context import Deadline
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.encoder import Ids
from interlock.engine.compute.source import Result
from interlock.engine.errors import DiskError
from interlock.engine.gpu.device import Device
from interlock.engine.models.memory import Calibration
from interlock.engine.record.events import BatchCommitted, Emit, MemoryCalibrated
from interlock.engine.record.facts import Computed, joined

SYNC_SECONDS = 1.0
PROBES = 3
"""Measured batches after which the calibration of the memory law is recorded for the first time."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class _Taken:
    """A batch that this worker has taken, and its rows, which may still be read."""

    runner: BatchRunner
    index: int
    rows: Future[Sequence[Ids]]


@dataclass(eq=False)
class Worker:
    """Computes cells on one device until its queues are empty or the order of the cells changes.

    A thread beside it does what needs no device: it reads the ids of the next batch, and writes and commits the vectors
    of the one before.

    `sync` makes the journal durable.
    """

    device: Device
    runners: deque[BatchRunner]
    emit: Emit
    sync: Callable[[], None]
    controls: Controls
    deadline: Deadline = field(default_factory=Deadline)
    idle: Callable[[], object] = lambda: None
    """Called when nothing is left for this device."""

    def __post_init__(self) -> None:
        self.lost_because = ""
        self.error: Exception | None = None
        self._reorders = self.controls.reorders
        self._synced = time.monotonic()
        self._ahead: _Taken | None = None
        self._committing: Future[None] | None = None

    def run(self) -> None:
        """Work until nothing is left; sets `lost_because` when the device is gone, or `error` when the run must end."""
        try:
            try:
                with ThreadPoolExecutor(1, f"beside {self.device.name}") as self._beside:
                    while (taken := self._next()) is not None:
                        self._one(taken)
            finally:
                self._give_back()
                self._settle()
            self._sync()
            for runner in self.runners:
                self._record_calibration(runner, runner.instance.calibration)
        except DeviceGone as gone:
            self.lost_because = str(gone)
        except Exception as error:
            self.error = without_frames(error)

    def _next(self) -> "_Taken | None":
        """The batch that was taken ahead, or the next; None when there is none, no time for it, or the operator wants
        otherwise."""
        controls, taken = self.controls, None
        while not taken:
            controls.apply_pending(self.emit)
            if controls.stop_requested or controls.reorders != self._reorders:
                return None
            taken, self._ahead = self._ahead, None
            if not (taken and taken.runner.queue.open):
                taken = self._take(least=1)
            if not taken:
                self._settle()
                if not any(runner.queue.more() for runner in self.runners):
                    self.idle()
                    return None
        if not self.deadline.allows_batch(taken.runner.queue.job, taken.index):
            self._ahead = taken  # which is given back
            return None
        return taken

    def _take(self, least: int) -> "_Taken | None":
        """Take a batch of the next runner in turn whose queue has `least` of them, and have it prepared."""
        for _ in range(len(self.runners)):
            self.runners.rotate(-1)
            runner = self.runners[-1]
            if len(runner.queue) >= least and (index := runner.queue.take()) is not None:
                return _Taken(runner, index, self._beside.submit(runner.prepare, index))
        return None

    def _one(self, taken: "_Taken") -> None:
        """Compute a batch; beside it the next is prepared, and then its own vectors are written beside that."""
        runner, index = taken.runner, taken.index
        began, known = self.deadline.clock(), runner.instance.calibration.batches
        self._ahead = self._take(least=2)  # the last one is for whoever is free first
        try:
            result = runner.compute(index, taken.rows.result())
        except DeviceGone:
            self._give_back()
            runner.queue.put_back(index, self.device.name)
            raise
        except TooNarrow:
            runner.queue.narrow = True
            return
        except Crowded:  # the order of the cells changes, and what is not committed is placed anew
            return
        except Exception as error:  # whatever a model's libraries raise costs this model's pass, not the run
            if isinstance(error, DiskError) or (isinstance(error, OSError) and error.errno in _FULL):
                raise  # no model is to blame for a disk that takes nothing more
            runner.queue.failed = without_frames(error)
            return
        seconds, calibration = self.deadline.clock() - began, runner.instance.calibration
        self.deadline.learn(runner.queue.job, index, seconds)
        learnt = calibration if known < PROBES <= calibration.batches else None
        self._settle()
        self._committing = self._beside.submit(self._commit, runner, index, result, seconds, learnt)

    def _give_back(self) -> None:
        """Return the batch that was taken ahead."""
        taken, self._ahead = self._ahead, None
        if taken:
            taken.runner.queue.give_back(taken.index)

    def _settle(self) -> None:
        """Wait until the batch before is committed. Raises what stood in its way."""
        committing, self._committing = self._committing, None
        if committing:
            committing.result()

    def _commit(
        self, runner: BatchRunner, index: int, result: Result, seconds: float, learnt: Calibration | None
    ) -> None:
        """Write the vectors, then record the batch as it ran, and what it has taught."""
        job, batch = runner.queue.job, runner.queue.job.batches[index]
        own = Computed(device=self.device.name, dtype=runner.instance.dtype, rows=len(batch.rows))
        parts = sorted(result.parts, key=lambda part: (part.device, part.dtype)) or [replace(own, rows=0)]
        terms = result.outputs.terms
        event = BatchCommitted(
            model_pass=job.model_pass,
            batch_index=index,
            rows=len(batch.rows),
            tokens=batch.tokens,
            padding=job.layout.padding(batch),
            seconds=round(seconds, 6),
            device=joined(part.device for part in parts),
            crc=0,
            forwards=result.forwards,
            dtype=joined(part.dtype for part in parts),
            terms=0 if terms is None else len(terms.indices),
            termless=0 if terms is None else int(((terms.counts == 0) & ~terms.parked).sum()),
            token_vectors=0 if result.outputs.tokens is None else len(result.outputs.tokens.records),
            parts=[] if [part.rows for part in parts] == [len(batch.rows)] else parts,
        )
        runner.queue.commit(event, result.outputs, self.emit)
        if learnt:
            self._record_calibration(runner, learnt)
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self._sync()

    def _record_calibration(self, runner: BatchRunner, known: Calibration) -> None:
        if known.batches:
            self.emit(
                MemoryCalibrated(
                    model_pass=runner.queue.job.model_pass,
                    device=self.device.name,
                    batches=known.batches,
                    scale=round(known.scale, 5),
                    margin=round(known.margin, 5),
                    worst=round(max(known.residuals, default=1.0), 5),
                )
            )

    def _sync(self) -> None:
        """Vectors first: what the journal says is there must be there."""
        for runner in list(self.runners):  # which take turns meanwhile
            runner.queue.sync()
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
