"""One worker for each device: takes the next batch of a queue, has it computed, gated, written and committed.

Several devices of one turn pull from one queue, longest batches first; a device that serves several turns takes from
each in rotation. Between two batches a worker heeds what the operator asked for.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from interlock.engine.gpu.device import Device
from interlock.engine.passes.batch_runner import BatchRunner, DeviceGone, Fallbacks, Result
from interlock.engine.passes.controls import Controls
from interlock.engine.passes.grid import Cells
from interlock.engine.passes.instance import ModelInstance
from interlock.engine.record.events import AnyEvent, BatchCommitted, Computed, MemoryCalibrated, joined

SYNC_SECONDS = 1.0
PROBES = 3
"""Measured batches after which the calibration of the memory law is told for the first time."""

Emit = Callable[[AnyEvent], object]


class Queue:
    """The batches that a turn has left, pulled by its workers; `failed` says why nobody should go on."""

    def __init__(self, cells: Cells, batches: Iterable[int]) -> None:
        self.cells = cells
        self.failed: Exception | None = None
        self.committed: list[BatchCommitted] = []
        self.returned = 0
        """Rows of the batches that were put back."""
        self._left = deque(batches)

    def __bool__(self) -> bool:
        return bool(self._left) and self.failed is None

    def take(self) -> int | None:
        """The next batch; None when there is none."""
        try:
            return self._left.popleft() if self.failed is None else None
        except IndexError:
            return None

    def left(self) -> list[int]:
        """The batches that nobody has taken yet."""
        return list(self._left)

    def put_back(self, index: int) -> None:
        """What was taken is still to be done."""
        self._left.appendleft(index)
        self.returned += len(self.cells.batches[index].rows)


class Post:
    """A worker's place in one turn: the queue, and the seat that computes for it on this device."""

    def __init__(self, queue: Queue, instance: ModelInstance, elsewhere: Fallbacks, emit: Emit) -> None:
        self.queue = queue
        self.instance = instance
        self.forwards = BatchRunner(queue.cells, instance, elsewhere, emit)


class Worker:
    """Computes cells on one device until its queues are empty or the order of the cells changes."""

    def __init__(
        self, device: Device, posts: Sequence[Post], emit: Emit, sync: Callable[[], None], controls: Controls
    ) -> None:
        """`sync` makes the journal durable."""
        self.device = device
        self.lost = ""
        self.error: Exception | None = None
        self._posts = deque(posts)
        self._emit = emit
        self._sync_journal = sync
        self._controls = controls
        self._orders = controls.orders
        self._synced = time.monotonic()

    def run(self) -> None:
        """Work; what ends it early is left in `lost` (the device is gone) or `error` (nothing can be recorded)."""
        try:
            while self._may_go_on() and (post := self._next_post()):
                self._one(post)
            self._sync()
            for post in self._posts:
                self._tell_calibration(post)
        except DeviceGone as gone:
            self.lost = str(gone)
        except Exception as error:
            self.error = error.with_traceback(None)  # its frames hold a model

    def _may_go_on(self) -> bool:
        self._controls.apply_pending(self._emit)
        return not self._controls() and self._controls.orders == self._orders

    def _next_post(self) -> Post | None:
        """Each in its turn."""
        for _ in range(len(self._posts)):
            self._posts.rotate(-1)
            if self._posts[-1].queue:
                return self._posts[-1]
        return None

    def _one(self, post: Post) -> None:
        index = post.queue.take()
        if index is None:
            return
        began = time.monotonic()
        try:
            result = post.forwards.compute(index)
        except DeviceGone:
            post.queue.put_back(index)
            raise
        except Exception as error:  # whatever a model's libraries raise costs this model's pass, not the run
            post.queue.failed = error.with_traceback(None)
            return
        self._commit(post, index, result, time.monotonic() - began)
        if post.instance.calibration.batches == PROBES:
            self._tell_calibration(post)
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self._sync()

    def _commit(self, post: Post, index: int, result: Result, seconds: float) -> None:
        """Write the vectors, then tell of the batch as it ran."""
        cells, batch = post.queue.cells, post.queue.cells.batches[index]
        own = Computed(device=self.device.name, dtype=post.instance.dtype, rows=len(batch.rows))
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
        self._emit(event)
        post.queue.committed.append(event)

    def _tell_calibration(self, post: Post) -> None:
        known = post.instance.calibration
        if known.batches:
            self._emit(
                MemoryCalibrated(
                    model_pass=post.queue.cells.model_pass,
                    device=self.device.name,
                    batches=known.batches,
                    scale=round(known.scale, 5),
                    margin=round(known.margin, 5),
                    worst=round(max(known.residuals, default=1.0), 5),
                )
            )

    def _sync(self) -> None:
        """Vectors first: what the journal says is there must be there."""
        for post in self._posts:
            post.queue.cells.file.sync()
        self._sync_journal()
        self._synced = time.monotonic()


def run_all(workers: Sequence[Worker]) -> None:
    """Let them work side by side; a single one works in this thread."""
    if len(workers) == 1:
        workers[0].run()
        return
    threads = [threading.Thread(target=worker.run, name=f"worker {worker.device.name}") for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
