"""The bench that all sections work on: one device under the ceiling, its clock, the models made so far, time that ends.

Nothing here judges. Times are taken between two events on the device, or between two synchronisations where the host's
part counts; each section has a share of the time and looks at `spent` between two measurements.
"""

import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TypeVar

import torch
from acceptance.models import made

from interlock.engine.compute.encoder import encoder_for
from interlock.engine.compute.instance import ModelInstance, first_calibration
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.cuda import pin
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.lease import Lease, Lessor
from interlock.engine.gpu.sim import SimDevice
from interlock.engine.models.card import ModelCard
from interlock.engine.models.memory import law_for
from interlock.engine.models.weights import Master, Replica, load

CEILING = 12 << 30
T = TypeVar("T")


@dataclass(frozen=True)
class Scale:
    """How much is done: on a GPU, or in a rehearsal."""

    longest: int
    """Tokens of the longest rows."""
    shape_tokens: int
    """The most tokens of a shape that the law is held against."""
    shapes: int
    eager: tuple[str, ...]
    """Models that the law is also held against as transformers builds them, with eager attention."""
    plans: int
    plan_tokens: int
    repeats: int
    leases: int
    text_tokens: tuple[int, int]
    """The fewest and the most tokens of the texts that are raced over."""
    run_tokens: int
    """Tokens of the texts of a whole run."""
    sizes: tuple[int, ...]
    """Batch sizes of sentence-transformers, its default first."""
    long_row: int
    stream_tokens: tuple[int, ...]
    walls: tuple[int, ...]
    """Ceilings in bytes, each tried in blocks of a share of it."""
    copied: int
    square: int


_NAMES = ("XLM-R-large", "Qwen3-0.6B", "ModernBERT-base", "Qwen2-1.5B")
REAL = Scale(
    longest=8192,
    shape_tokens=16384,
    shapes=40,
    eager=_NAMES,
    plans=60,
    plan_tokens=60_000,
    repeats=5,
    leases=50,
    text_tokens=(16_000, 160_000),
    run_tokens=2_000_000,
    sizes=(32, 16, 64, 8, 128),
    long_row=8192,
    stream_tokens=(512, 8192),
    walls=(2 << 30, 4 << 30, 8 << 30, CEILING),
    copied=256 << 20,
    square=8192,
)
SMALL = Scale(
    longest=256,
    shape_tokens=1024,
    shapes=3,
    eager=_NAMES[1:2],
    plans=3,
    plan_tokens=1200,
    repeats=1,
    leases=6,
    text_tokens=(500, 500),
    run_tokens=6000,
    sizes=(4, 8),
    long_row=1024,
    stream_tokens=(64, 512),
    walls=(1 << 30, 2 << 30),
    copied=1 << 20,
    square=64,
)


@dataclass
class Bench:
    """One device under the ceiling, a place for files, and what earlier sections found out or made."""

    device: Device
    place: Path
    scale: Scale
    host: CpuDevice = field(default_factory=CpuDevice)
    rng: Random = field(default_factory=lambda: Random(7))
    until: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    _cards: dict[str, ModelCard] = field(default_factory=dict)
    _masters: dict[str, Master] = field(default_factory=dict)
    _files: int = 0

    @property
    def real(self) -> bool:
        return self.device.kind == "cuda"

    @property
    def left(self) -> float:
        """Seconds that the section, or the part of it, still has."""
        return max(0.0, self.until - time.monotonic())

    @property
    def spent(self) -> bool:
        """Whether that time is over; a rehearsal is never short of it."""
        return self.real and not self.left

    @contextmanager
    def part(self, what: str, parts: int = 1) -> Iterator[None]:
        """One of the `parts` that are still to come, with its share of the time; an error in it costs it alone."""
        ends = self.until
        self.until = time.monotonic() + self.left / parts
        failed = True
        try:
            yield
            failed = False
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-3:]
            steps = " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in where)
            self.errors.append(f"{what}: {type(error).__name__}: {str(error).partition(chr(10))[0]} ({steps})")
        self.until = ends
        if failed:  # now that the error, which may hold tensors, is gone
            self.device.wall(CEILING)
            self.device.reclaim()

    def card(self, name: str, *, eager: bool = False, deep: bool = False) -> ModelCard:
        """A model, made when it is first asked for; `eager` as transformers builds it, whatever we have for it, and
        for rows of half the length, whose attention scores still fit under the ceiling.
        """
        deep = deep and not self.real
        key = f"{name}-deep" if deep else name
        if key not in self._cards:
            longest = self.scale.long_row + 2 if deep else self.scale.longest
            self._cards[key] = made(self.device, self.place / key, name, longest, deep=deep)
        card, half = self._cards[key], self.scale.longest // 2
        return replace(card, key=f"{key}-eager", packed=False, attention="eager", max_tokens=half) if eager else card

    def master(self, card: ModelCard) -> Master:
        """Its weights in host memory, read once; those of eager networks, which few ask for, are not kept."""
        if card.attention == "eager":
            return Master(load(card))
        if card.key not in self._masters:
            self._masters[card.key] = Master(load(card))
        return self._masters[card.key]

    @contextmanager
    def pinned(self, master: Master) -> Iterator[bool]:
        """Within, its memory is pinned; whether that was to be had."""
        pinnings = [pin(flat, self.device.torch) for flat in master.flats.values()]
        try:
            yield self.real and all(flat.is_pinned() for flat in master.flats.values())
        finally:
            self.sync()
            for pinning in pinnings:
                pinning.release()

    def file(self, suffix: str) -> Path:
        self._files += 1
        return self.place / f"{self._files}{suffix}"

    def sync(self) -> None:
        if self.real:
            torch.cuda.synchronize(self.device.torch)

    def seconds(self, work: Callable[[], object]) -> float:
        """Wall seconds of some work, with what it left the device to do."""
        self.sync()
        began = time.perf_counter()
        work()
        self.sync()
        return time.perf_counter() - began

    def device_seconds(self, work: Callable[[], object], repeats: int = 5) -> float:
        """Seconds between two events around the work on the device: the median after two warm-ups."""
        once = _between_events if self.real else self.seconds
        with self.device.computing():
            return statistics.median([once(work) for _ in range(2 + repeats)][2:])

    def shortages(self) -> tuple[int, int]:
        """Out-of-memory errors and retries of the allocator so far."""
        if isinstance(self.device, SimDevice):
            return self.device.ooms, self.device.retries()
        stats = torch.cuda.memory_stats(self.device.torch)
        return int(stats.get("num_ooms", 0)), int(stats.get("num_alloc_retries", 0))

    def free(self) -> int:
        """Bytes of the card that the driver could still give to anybody."""
        if isinstance(self.device, SimDevice):
            readings = self.device.readings()
            return readings.total - readings.used if readings else 0
        return int(torch.cuda.mem_get_info(self.device.torch)[0])


def seated(bench: Bench, card: ModelCard, work: Callable[[ModelInstance, Lessor], T]) -> T:
    """Lease, attach, work, release; the model lives in a frame that is gone before the lease ends."""
    lessor, master = Lessor([bench.device, bench.host], CEILING), bench.master(card)
    needs = {bench.device.name: law_for(card, bench.device.kind).weights}
    with lessor.lease(card.key, needs, lambda _: None) as lease:
        return _seated(bench, card, master, lease, lessor, work)


def _seated(
    bench: Bench,
    card: ModelCard,
    master: Master,
    lease: Lease,
    lessor: Lessor,
    work: Callable[[ModelInstance, Lessor], T],
) -> T:
    attached = Replica(master, bench.device)
    encoder, law = encoder_for(card, attached.network, bench.device), law_for(card, bench.device.kind)
    return work(
        ModelInstance(bench.device, attached, encoder, card.dtype, law, first_calibration(bench.device), lease, lessor),
        lessor,
    )


def _between_events(work: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000
