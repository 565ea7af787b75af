"""The rules of PyTorch's caching allocator for CUDA, applied to memory that is not there.

Sizes go in, addresses and counters come out, and a real `torch.OutOfMemoryError` where the card would have raised one.
Rules: `c10/cuda/CUDACachingAllocator.cpp`, `c10/core/AllocatorConfig.h`; one stream, no expandable segments. Any thread
may allocate; `free` may come from a finalizer in the middle of another call and never waits.
"""

import threading
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

ROUND = 512
SMALL, SMALL_SEGMENT = 1 << 20, 2 << 20
MEDIUM, MEDIUM_SEGMENT = 10 << 20, 20 << 20
LARGE_ROUND = 2 << 20

_ADVICE = (
    "If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


@dataclass(frozen=True)
class Counters:
    """Figures of `torch.cuda.memory_stats`: bytes now, their peaks, and how often memory fell short."""

    allocated: int
    reserved: int
    requested: int
    inactive_split: int
    peak_allocated: int
    peak_reserved: int
    retries: int
    ooms: int


class Block:
    """A piece of a segment, in use or free. The block at a segment's start stays that block."""

    __slots__ = ("address", "following", "free", "pool", "previous", "requested", "size")

    def __init__(self, pool: "Pool", address: int, size: int) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.requested = 0
        self.free = True
        self.previous: Block | None = None
        self.following: Block | None = None

    @property
    def split(self) -> bool:
        """Whether it is only a part of its segment."""
        return self.previous is not None or self.following is not None


class Handle:
    """What `allocate` gives and `free` takes back, once; `block` is what it stands for until then."""

    __slots__ = ("block",)

    def __init__(self, block: Block) -> None:
        self.block: Block | None = block


class Pool:
    """The free blocks of one kind of segment, by size and then address; a rest above `smallest_rest` is split off."""

    def __init__(self, smallest_rest: int) -> None:
        self.smallest_rest = smallest_rest
        self._free: list[tuple[int, int, Block]] = []

    def __iter__(self) -> Iterator[Block]:
        return (block for _, _, block in list(self._free))

    def add(self, block: Block) -> None:
        insort(self._free, (block.size, block.address, block))

    def remove(self, block: Block) -> None:
        del self._free[bisect_left(self._free, (block.size, block.address))]

    def take(self, size: int) -> Block | None:
        """Remove and return the smallest free block of at least `size` bytes, the lowest of equals."""
        index = bisect_left(self._free, (size, 0))
        return self._free.pop(index)[2] if index < len(self._free) else None


class Allocator:
    """Memory of one card in one process. All sizes are bytes.

    `floor` is what the process takes beside its segments, `others` what other processes hold, and `limit` the most
    that floor and segments may take together. The driver shows freed segments only after `lag` seconds of `clock`,
    but gives them out at once.
    """

    def __init__(
        self,
        total: int,
        floor: int = 0,
        *,
        index: int = 0,
        lag: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self.floor = floor
        self.others = 0
        self.limit: int | None = None
        self._index, self._lag, self._clock = index, lag, clock
        self._lock = threading.Lock()
        self._dead: deque[Block] = deque()
        self._unseen: deque[tuple[float, int]] = deque()
        # Nothing of 1 MiB or less is ever taken from the large pool, so that a rest of that size stays with its block.
        self._small, self._large = Pool(ROUND), Pool(SMALL + 1)
        self._segments: dict[int, Block] = {}
        self._next_address = LARGE_ROUND
        self._allocated = self._reserved = self._requested = 0
        self._peak_allocated = self._peak_reserved = 0
        self._retries = self._ooms = 0

    def allocate(self, size: int) -> Handle:
        """Take at least `size` bytes. Raises torch.OutOfMemoryError when they fit nowhere."""
        wanted = max(ROUND, _up(size, ROUND))
        with self._lock:
            self._bury()
            pool = self._small if wanted <= SMALL else self._large
            block = pool.take(wanted) or self._grow(pool, wanted)
            if block is None:  # only when the driver refuses is the cache given up, and that counts as a retry
                self._flush()
                self._retries += 1
                block = self._grow(pool, wanted)
            if block is None:
                raise self._short_of(_segment(wanted))
            _split(block, wanted)
            block.free, block.requested = False, size
            self._allocated += block.size
            self._requested += size
            self._peak_allocated = max(self._peak_allocated, self._allocated)
            return Handle(block)

    def free(self, handle: Handle) -> None:
        """Give it back, from any thread and at any moment. Raises ValueError the second time."""
        block, handle.block = handle.block, None
        if block is None:
            raise ValueError("the same memory is freed twice")
        self._dead.append(block)
        # A garbage collection inside this class's own critical section ends here: it must neither wait nor go on.
        # What it leaves in `_dead` is buried before the next call looks at anything.
        if self._lock.acquire(blocking=False):
            try:
                self._bury()
            finally:
                self._lock.release()

    def empty_cache(self) -> None:
        """Give every segment that is wholly free back to the driver."""
        with self._lock:
            self._bury()
            self._flush()

    def start_peak(self) -> None:
        """Measure peaks from here."""
        with self._lock:
            self._bury()
            self._peak_allocated, self._peak_reserved = self._allocated, self._reserved

    def refuse(self, size: int) -> torch.OutOfMemoryError:
        """Make the error of an allocation that must not succeed, and count it; the caller raises it."""
        with self._lock:
            self._bury()
            return self._short_of(_segment(max(ROUND, _up(size, ROUND))))

    def counters(self) -> Counters:
        """Read all counters at one moment, those of torch.cuda.memory_stats."""
        with self._lock:
            self._bury()
            free = (block for pool in (self._small, self._large) for block in pool if block.split)
            return Counters(
                allocated=self._allocated,
                reserved=self._reserved,
                requested=self._requested,
                inactive_split=sum(block.size for block in free),
                peak_allocated=self._peak_allocated,
                peak_reserved=self._peak_reserved,
                retries=self._retries,
                ooms=self._ooms,
            )

    @property
    def driver_free(self) -> int:
        """Bytes that the driver says are free for every process."""
        with self._lock:
            self._bury()
            return self._driver_free()

    @property
    def unseen(self) -> int:
        """Bytes given back that the driver has not seen yet."""
        with self._lock:
            return self._still_unseen()

    def snapshot(self) -> list[list[tuple[int, int, bool]]]:
        """List every segment's blocks in order: address, size, whether it is free."""
        with self._lock:
            self._bury()
            heads = [head for _, head in sorted(self._segments.items())]
            return [[(block.address, block.size, block.free) for block in _chain(head)] for head in heads]

    def _bury(self) -> None:
        """Put what was freed back into its pool, as one block with free neighbours: no two free blocks ever touch."""
        while self._dead:
            block = self._dead.popleft()
            self._allocated -= block.size
            self._requested -= block.requested
            block.free = True
            if block.following and block.following.free:
                block.pool.remove(block.following)
                _absorb_following(block)
            if block.previous and block.previous.free:
                block = block.previous
                block.pool.remove(block)
                _absorb_following(block)
            block.pool.add(block)

    def _grow(self, pool: Pool, wanted: int) -> Block | None:
        """Take a new segment from the driver, if limit and card have room for it."""
        size = _segment(wanted)
        ours = self.floor + self._reserved + size
        if ours + self.others > self.total or (self.limit is not None and ours > self.limit):
            return None
        block = Block(pool, self._next_address, size)
        self._segments[block.address] = block
        self._next_address += size + LARGE_ROUND  # a gap, so that no two segments ever look like neighbours
        self._reserved += size
        self._peak_reserved = max(self._peak_reserved, self._reserved)
        return block

    def _flush(self) -> None:
        for pool in (self._large, self._small):
            for block in pool:
                if not block.split:
                    pool.remove(block)
                    del self._segments[block.address]
                    self._reserved -= block.size
                    self._unseen.append((self._clock() + self._lag, block.size))

    def _driver_free(self) -> int:
        return max(0, self.total - self.floor - self._reserved - self.others - self._still_unseen())

    def _still_unseen(self) -> int:
        now = self._clock()
        while self._unseen and self._unseen[0][0] <= now:
            self._unseen.popleft()
        return sum(size for _, size in self._unseen)

    def _short_of(self, size: int) -> torch.OutOfMemoryError:
        self._ooms += 1
        allowed = "" if self.limit is None else f"{_shown(self.limit)} allowed; "
        return torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {_shown(size)}. GPU {self._index} has a total capacity of "
            f"{_shown(self.total)} of which {_shown(self._driver_free())} is free. Including non-PyTorch memory, this "
            f"process has {_shown(self.floor + self._reserved)} memory in use. {allowed}Of the allocated memory "
            f"{_shown(self._allocated)} is allocated by PyTorch, and {_shown(self._reserved - self._allocated)} is "
            f"reserved by PyTorch but unallocated. {_ADVICE}"
        )


def _segment(size: int) -> int:
    """Bytes asked of the driver for a block of `size` bytes: small blocks share a segment, large ones get their own."""
    if size <= SMALL:
        return SMALL_SEGMENT
    return MEDIUM_SEGMENT if size < MEDIUM else _up(size, LARGE_ROUND)


def _split(block: Block, wanted: int) -> None:
    """Leave `block` with `wanted` bytes, and what is over free behind it, unless that is too little."""
    if block.size - wanted < block.pool.smallest_rest:
        return
    rest = Block(block.pool, block.address + wanted, block.size - wanted)
    rest.previous, rest.following = block, block.following
    if rest.following:
        rest.following.previous = rest
    block.following, block.size = rest, wanted
    block.pool.add(rest)


def _absorb_following(block: Block) -> None:
    following = block.following
    assert following is not None
    block.size += following.size
    block.following = following.following
    if block.following:
        block.following.previous = block


def _chain(head: Block) -> Iterator[Block]:
    block: Block | None = head
    while block is not None:
        yield block
        block = block.following


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def _shown(size: int) -> str:
    """As the allocator formats sizes in its messages."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size > 1 << power:
            return f"{size / (1 << power):.2f} {unit}"
    return f"{size} bytes"
