"""The simulated allocator keeps the rules of PyTorch's caching allocator, whatever is asked of it in whatever order."""

import gc
import re
import threading
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.engine.gpu.allocator import Allocator, Handle

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TOTAL, FLOOR = 256 * MIB, 20 * MIB

sizes = st.one_of(
    st.integers(1, 4 * KIB),
    st.integers(1, MIB),
    st.sampled_from([512, 513, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 20 * MIB]),
    st.integers(MIB, 60 * MIB),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), sizes),
        st.tuples(st.just("free"), st.integers(0, 1000)),
        st.tuples(st.just("empty_cache"), st.just(0)),
    ),
    max_size=80,
)
limits = st.one_of(st.none(), st.integers(FLOOR, TOTAL))


def rounded(size: int) -> int:
    return -(-size // 512) * 512


def segment(size: int) -> int:
    if size <= MIB:
        return 2 * MIB
    return 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB


class Trial:
    """An allocator under random use, and what is known to be live on it."""

    def __init__(self, limit: int | None = None) -> None:
        self.allocator = Allocator(TOTAL, FLOOR)
        self.allocator.limit = limit
        self.live: list[tuple[int, Handle]] = []
        self.refused: list[int] = []

    def run(self, steps: list[tuple[str, int]]) -> "Trial":
        for name, value in steps:
            getattr(self, name)(value)
            self.check()
        return self

    def allocate(self, size: int) -> None:
        before = self.allocator.snapshot()
        try:
            self.live.append((size, self.allocator.allocate(size)))
        except torch.OutOfMemoryError:
            self.refused.append(size)
            self.check_refusal(rounded(size), before)

    def free(self, number: int) -> None:
        if self.live:
            self.allocator.free(self.live.pop(number % len(self.live))[1])

    def empty_cache(self, _: int) -> None:
        self.allocator.empty_cache()

    def check(self) -> None:
        counters = self.allocator.counters()
        held = [(size, handle.block.size) for size, handle in self.live if handle.block]
        assert counters.allocated == sum(size for _, size in held)
        for size, got in held:  # a rest of at most 1 MiB of a large segment is not split off
            assert 0 <= got - rounded(size) <= (0 if size <= MIB else MIB)
        assert counters.requested == sum(size for size, _ in self.live)
        assert counters.allocated + counters.inactive_split <= counters.reserved
        assert counters.peak_allocated >= counters.allocated
        assert counters.peak_reserved >= counters.reserved
        assert (
            FLOOR + counters.reserved <= (TOTAL if self.allocator.limit is None else self.allocator.limit)
            or not counters.reserved
        )
        self.check_layout(counters.reserved)

    def check_layout(self, reserved: int) -> None:
        """Blocks lie end to end in their segments, segments apart, and two free blocks are never neighbours."""
        segments = self.allocator.snapshot()
        for blocks in segments:
            for (address, size, free), (following, _, also_free) in pairwise(blocks):
                assert address + size == following
                assert not (free and also_free)
        ends = sorted((blocks[0][0], blocks[-1][0] + blocks[-1][1]) for blocks in segments)
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
        assert sum(end - start for start, end in ends) == reserved
        used = sorted((address, size) for blocks in segments for address, size, free in blocks if not free)
        owned = [handle.block for _, handle in self.live]
        assert used == sorted((block.address, block.size) for block in owned if block)

    def check_refusal(self, size: int, before: list[list[tuple[int, int, bool]]]) -> None:
        """No free block of its pool would have held it, and no segment could be had after the cache was given back."""
        pool = [
            blocks for blocks in before if (blocks[-1][0] + blocks[-1][1] - blocks[0][0] == 2 * MIB) == (size <= MIB)
        ]
        assert not [1 for blocks in pool for _, free_size, free in blocks if free and free_size >= size]
        after = self.allocator.snapshot()
        assert not [blocks for blocks in after if len(blocks) == 1 and blocks[0][2]]
        wanted = FLOOR + self.allocator.counters().reserved + segment(size)
        assert wanted > min(TOTAL, self.allocator.limit if self.allocator.limit is not None else TOTAL)


@settings(deadline=None, max_examples=150)
@given(steps, limits)
def test_counters_layout_and_refusals_keep_the_rules_under_any_use(steps, limit):
    Trial(limit).run(steps)


@settings(deadline=None, max_examples=100)
@given(steps, limits)
def test_nothing_stays_reserved_once_all_is_freed_and_the_cache_emptied(steps, limit):
    trial = Trial(limit).run(steps)
    for _, handle in trial.live:
        trial.allocator.free(handle)
    trial.allocator.empty_cache()
    counters = trial.allocator.counters()
    assert (counters.allocated, counters.requested, counters.reserved, counters.inactive_split) == (0, 0, 0, 0)
    assert trial.allocator.driver_free == TOTAL - FLOOR
    assert trial.allocator.snapshot() == []


@settings(deadline=None, max_examples=100)
@given(steps)
def test_the_same_use_twice_gives_the_same_counters(steps):
    assert Trial().run(steps).allocator.counters() == Trial().run(steps).allocator.counters()


@settings(deadline=None, max_examples=100)
@given(steps, limits)
def test_each_refusal_is_an_oom_after_a_retry(steps, limit):
    trial = Trial(limit).run(steps)
    counters = trial.allocator.counters()
    assert counters.ooms == len(trial.refused) <= counters.retries


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (21 * MIB - 1, 22 * MIB, 22 * MIB),
    ],
)
def test_a_size_is_rounded_and_gets_its_segment_on_an_empty_card(size, allocated, reserved):
    allocator = Allocator(GIB)
    allocator.allocate(size)
    counters = allocator.counters()
    assert (counters.allocated, counters.reserved, counters.requested) == (allocated, reserved, size)


def test_a_large_block_is_split_when_more_than_1_mib_would_be_left():
    allocator = Allocator(GIB)
    allocator.allocate(5 * MIB)
    assert allocator.counters().inactive_split == 15 * MIB
    allocator.allocate(14 * MIB)  # from 15: the rest of 1 MiB is too little to be split off
    counters = allocator.counters()
    assert (counters.allocated, counters.reserved, counters.inactive_split) == (20 * MIB, 20 * MIB, 0)


def test_a_small_block_is_split_when_512_bytes_would_be_left():
    allocator = Allocator(GIB)
    allocator.allocate(MIB)
    allocator.allocate(MIB - 512)
    assert allocator.counters().inactive_split == 512


def test_the_smallest_hole_that_fits_is_taken_and_of_equals_the_lowest():
    allocator = Allocator(GIB)
    holes = [allocator.allocate(size) for size in (40 * MIB, 12 * MIB, 16 * MIB, 12 * MIB)]
    addresses = [handle.block.address for handle in holes]
    for handle in holes:
        allocator.free(handle)
    assert [allocator.allocate(12 * MIB).block.address for _ in range(3)] == [addresses[1], addresses[3], addresses[2]]


def test_a_large_tensor_gets_no_memory_from_the_small_pool():
    allocator = Allocator(GIB)
    allocator.free(allocator.allocate(MIB))
    allocator.allocate(MIB + 1)
    assert allocator.counters().reserved == 22 * MIB


def test_another_size_returns_the_cache_and_counts_a_retry():
    allocator = Allocator(100 * MIB)
    allocator.free(allocator.allocate(60 * MIB))
    allocator.allocate(80 * MIB)
    counters = allocator.counters()
    assert (counters.reserved, counters.peak_reserved, counters.retries, counters.ooms) == (80 * MIB, 80 * MIB, 1, 0)


def test_free_memory_in_pinned_segments_does_not_help_a_large_tensor():
    allocator = Allocator(100 * MIB)
    pieces = [allocator.allocate(2 * MIB) for _ in range(50)]
    pins, rest = pieces[::10], [piece for number, piece in enumerate(pieces) if number % 10]
    for piece in rest:
        allocator.free(piece)
    assert allocator.counters().inactive_split == 90 * MIB
    with pytest.raises(torch.OutOfMemoryError):
        allocator.allocate(20 * MIB)
    for pin in pins:
        allocator.free(pin)
    allocator.allocate(20 * MIB)


def test_an_oom_error_reads_like_cudas():
    allocator = Allocator(15 * GIB, 300 * MIB, index=1)
    allocator.limit, allocator.others = 12 * GIB, 2 * GIB
    allocator.allocate(9 * GIB + 900 * MIB)
    allocator.allocate(5 * MIB)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        allocator.allocate(2 * GIB - 5)
    assert str(caught.value).startswith(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 15.00 GiB of which 2.81 GiB is "
        "free. Including non-PyTorch memory, this process has 10.19 GiB memory in use. 12.00 GiB allowed; Of the "
        "allocated memory 9.88 GiB is allocated by PyTorch, and 15.00 MiB is reserved by PyTorch but unallocated. If "
        "reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid "
        "fragmentation.  See documentation for Memory Management  (https://"
    )


def test_memory_of_another_process_can_be_had_once_it_leaves():
    allocator = Allocator(100 * MIB)
    allocator.others = 50 * MIB
    assert allocator.driver_free == 50 * MIB
    with pytest.raises(torch.OutOfMemoryError):
        allocator.allocate(60 * MIB)
    allocator.others = 0
    allocator.allocate(60 * MIB)


def test_a_lagging_driver_reports_late_but_frees_at_once():
    now = [10.0]
    allocator = Allocator(100 * MIB, lag=1.5, clock=lambda: now[0])
    allocator.free(allocator.allocate(80 * MIB))
    allocator.empty_cache()
    assert (allocator.driver_free, allocator.unseen) == (20 * MIB, 80 * MIB)
    allocator.free(allocator.allocate(90 * MIB))
    allocator.empty_cache()
    now[0] += 1.49
    assert allocator.unseen == 170 * MIB
    now[0] += 0.02
    assert (allocator.driver_free, allocator.unseen) == (100 * MIB, 0)


def test_a_reset_peak_begins_at_what_is_held():
    allocator = Allocator(GIB)
    kept = allocator.allocate(30 * MIB)
    allocator.free(allocator.allocate(50 * MIB))
    assert (allocator.counters().peak_allocated, allocator.counters().peak_reserved) == (80 * MIB, 80 * MIB)
    allocator.empty_cache()
    allocator.start_peak()
    assert (allocator.counters().peak_allocated, allocator.counters().peak_reserved) == (30 * MIB, 30 * MIB)
    allocator.free(kept)
    assert allocator.counters().peak_allocated == 30 * MIB


def test_freeing_twice_is_an_error_even_where_the_memory_is_reused():
    allocator = Allocator(GIB)
    first = allocator.allocate(MIB)
    allocator.free(first)
    allocator.allocate(MIB)
    with pytest.raises(ValueError, match="twice"):
        allocator.free(first)
    assert allocator.counters().allocated == MIB


def test_a_refusal_made_to_order_is_counted_and_names_the_segment():
    allocator = Allocator(GIB)
    assert re.search(r"Tried to allocate 20\.00 MiB", str(allocator.refuse(3 * MIB)))
    assert allocator.counters().ooms == 1


def test_threads_freeing_each_others_memory_lose_nothing():
    allocator = Allocator(8 * GIB)
    given_on: list[Handle] = []

    def work(seed: int) -> None:
        for number in range(400):
            given_on.append(allocator.allocate((seed * 7919 + number * 104729) % (3 * MIB) + 1))
            allocator.free(given_on.pop())

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert allocator.counters().allocated == 0


def test_a_finalizer_that_frees_during_a_call_neither_blocks_nor_is_lost():
    """A clock that collects garbage is called inside the allocator's critical section."""

    class Owner:
        def __init__(self, handle: Handle) -> None:
            self.handle, self.itself = handle, self

        def __del__(self) -> None:
            allocator.free(self.handle)

    allocator = Allocator(GIB, clock=lambda: float(gc.collect()))
    Owner(allocator.allocate(40 * MIB))
    allocator.free(allocator.allocate(30 * MIB))
    allocator.empty_cache()
    assert allocator.counters().allocated == 0
