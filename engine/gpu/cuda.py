"""A GPU as a device: torch's allocator counts what is allocated, the driver knows what this process occupies.

Nothing is asked of CUDA at import, and no context is made before memory or computation is asked for. The allocator
knows nothing of the context, the kernels and the libraries' own memory; they are measured beside it, so that the wall
stands where the driver's figure would pass the ceiling. Measuring a lost GPU raises nothing: the last figures stay.
"""

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, SupportsInt

import torch
from msgspec.structs import replace
from torch import Tensor

from interlock.engine.errors import UnavailableError, reason
from interlock.engine.gpu.device import Device, Pinning
from interlock.engine.gpu.device_errors import Trouble, classify
from interlock.engine.gpu.nvml import open_nvml
from interlock.engine.record.facts import Memory, Readings

FRESH = 1.0
"""Seconds for which what is beside the allocator counts as measured: asking the driver takes longer than a kernel."""
PATIENCE = 2.0
"""Seconds that the driver is given to notice memory that was given back."""
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for the contexts of all GPUs
_LOCK = threading.Lock()


class _Workspaces:
    """cuBLAS's workspaces on all GPUs of this process, which can only be cleared together: so while none computes.

    Threads may take theirs side by side: torch guards its table of them from 2.10 on (pytorch#167928).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep them while the block computes; waits while they are being cleared."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1

    def clear(self) -> None:
        """Give them back to the allocator, unless somebody computes: then they stay, and count as allocated."""
        with self._lock:
            if not self._users:
                torch._C._cuda_clearCublasWorkspaces()


_WORKSPACES = _Workspaces()


class CudaDevice(Device):
    """GPU number `index` as torch counts them: it computes on its default stream and copies on one of its own."""

    kind = "cuda"
    metered = True

    def __init__(self, index: int) -> None:
        _settle_kernels()
        card = torch.cuda.get_device_properties(index)
        self.name = f"cuda:{index}"
        self.label = card.name
        self.total = card.total_memory
        self.capability = (card.major, card.minor)
        self.processors = card.multi_processor_count
        self.torch = torch.device("cuda", index)
        self._uuid = f"GPU-{card.uuid}"
        self.key: str | None = self._uuid
        self._nvml = open_nvml()
        self._copies: torch.cuda.Stream | None = None
        self._outside = 0
        self._measured = -FRESH
        self._highest = 0
        self._lost = False
        self._refused = 0

    @property
    def lost(self) -> bool:
        return self._lost

    def memory(self) -> Memory:
        held = self._held("current")
        self._highest = max(self._highest, held.occupied)
        return held

    def room(self, ceiling: int) -> int:
        try:
            self._opened()
            held = self.memory()
            free, _ = torch.cuda.mem_get_info(self.torch)
        except RuntimeError as error:
            if (trouble := classify(error)) is None:
                raise
            self._lost = trouble is Trouble.LOST
            return 0  # lost, or so full that not even a context finds a place
        return max(0, min(ceiling - held.occupied, free) + held.reserved - held.allocated)

    def wall(self, ceiling: int | None) -> None:
        """Limit the allocator to what the ceiling leaves beside what the allocator does not count."""
        self._measured = -FRESH
        part = 1.0 if ceiling is None else (ceiling - self._beside(self._held("current").reserved)) / self.total
        torch.cuda.set_per_process_memory_fraction(min(1.0, max(0.0, part)), self.torch)

    @contextmanager
    def computing(self) -> Iterator[None]:
        default = torch.cuda.default_stream(self.torch)
        with _WORKSPACES.used(), torch.cuda.device(self.torch), torch.cuda.stream(default):
            yield

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Switch to the copies' stream. Allocate before: what is allocated within belongs to that stream."""
        with torch.cuda.stream(self._copy_stream()):
            yield

    def hold_copies(self) -> None:
        self._copy_stream().wait_stream(torch.cuda.current_stream(self.torch))

    def join_copies(self) -> None:
        torch.cuda.current_stream(self.torch).wait_stream(self._copy_stream())

    def pin(self, tensor: Tensor) -> Pinning:
        return pin(tensor, self.torch)

    def start_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch)
        self._highest = 0

    def peak(self) -> Memory:
        held = self._held("peak")
        return replace(held, occupied=max(held.occupied, self._highest))

    def retries(self) -> int:
        return int(self._stats().get("num_alloc_retries", 0)) - self._refused

    def trim(self) -> None:
        try:
            torch.cuda.empty_cache()
        except RuntimeError:  # it goes through all GPUs, and stops at one that is lost
            self._trim_alone()

    def _trim_alone(self) -> None:
        """Ask for more than there is: before it refuses, a GPU's allocator gives back what it has cached, of this GPU
        alone, and counts that as a retry (`DeviceCachingAllocator::malloc`)."""
        with suppress(RuntimeError):
            before = self.retries()
            with suppress(RuntimeError):
                torch.cuda.caching_allocator_alloc(2 * self.total, self.torch)
            self._refused += self.retries() - before

    def reclaim(self) -> None:
        """Give back what no tensor uses, and cuBLAS's workspaces unless another GPU of this process computes now."""
        gc.collect()
        self._measured = -FRESH
        with suppress(RuntimeError):  # a lost GPU gives nothing back, and its lease ends all the same
            torch.cuda.synchronize(self.torch)
            free, reserved = self._free(), torch.cuda.memory_reserved(self.torch)
            _WORKSPACES.clear()  # they lie in the allocator and outlive every model
            self.trim()
            wanted = free + reserved - torch.cuda.memory_reserved(self.torch)
            deadline = time.monotonic() + PATIENCE
            while self._free() < wanted and time.monotonic() < deadline:  # the driver notices late
                time.sleep(0.01)

    def readings(self) -> Readings | None:
        readings = self._nvml.readings(self._uuid) if self._nvml else None
        if readings and self._outside and self._own() is None:
            # In a container the driver's process numbers are not ours.
            return replace(readings, others=None, holders=())
        return readings

    def _held(self, when: str) -> Memory:
        """What the allocator counts now (`current`) or counted at most (`peak`), and all that is beside it."""
        stats = self._stats()
        allocated, reserved, now = (
            int(stats[count]["all"][at]) if stats else 0
            for count, at in (("allocated_bytes", when), ("reserved_bytes", when), ("reserved_bytes", "current"))
        )
        return Memory(allocated=allocated, reserved=reserved, occupied=reserved + self._beside(now))

    def _stats(self) -> dict[str, Any]:
        return torch.cuda.memory_stats_as_nested_dict(self.torch)

    def _beside(self, reserved: int) -> int:
        """Bytes of this process on the card that its allocator does not count; never fewer than its context took."""
        if time.monotonic() - self._measured >= FRESH:
            with suppress(RuntimeError):  # of a lost GPU: what was known last stands
                opening = self._opened()
                own = self._own()
                used = self.total - self._free() - opening.others if own is None or own < reserved else own
                self._outside = max(opening.context, used - reserved)
                self._measured = time.monotonic()
        return self._outside

    def _own(self) -> int | None:
        return self._nvml.own(self._uuid) if self._nvml else None

    def _free(self) -> int:
        return int(torch.cuda.mem_get_info(self.torch)[0])

    def _opened(self) -> "_Opening":
        with _LOCK:
            return _open(self.torch.index, self._uuid, self.total)

    def _copy_stream(self) -> torch.cuda.Stream:
        with _LOCK:
            self._copies = self._copies or torch.cuda.Stream(self.torch)  # type: ignore[no-untyped-call]
            return self._copies


@cache
def _settle_kernels() -> None:
    """Set what this process computes with, without touching CUDA.

    cuDNN's attention builds a plan for every new shape (42 to 70 ms: pytorch#191576, flashinfer#5245), and batches
    hardly ever have the same. Products of float16 are summed in float32 throughout.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def pin(tensor: Tensor, device: torch.device) -> Pinning:
    """Let copies of a host tensor to GPUs run beside their work, until what is returned is released.

    Its memory is registered where it is, for all GPUs; `device` is one that is in use. Where that cannot be (a limit of
    the machine, a mapped file) it stays as it is, copies take longer, and the result says why.
    """
    registered: list[Tensor] = []
    refused = ""
    try:
        if device.type == "cuda" and tensor.nbytes and tensor.is_contiguous() and not tensor.is_pinned():
            with torch.cuda.device(device):
                refused = _refusal(_runtime().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, _PORTABLE))
                if not refused:
                    registered.append(tensor)
    except RuntimeError as error:
        refused = reason(error)

    def unpin() -> None:
        while registered:
            pinned = registered.pop()
            with suppress(RuntimeError), torch.cuda.device(device):
                _refusal(_runtime().cudaHostUnregister(pinned.data_ptr()))

    return Pinning(unpin, refused)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _refusal(status: SupportsInt) -> str:
    """Why a call of the CUDA runtime failed; empty where it did not. Its error is taken up here: CUDA keeps it for the
    thread's next kernel, which would be blamed for it."""
    if int(status) == 0:
        return ""
    with suppress(RuntimeError):
        torch.ones(1, device="cuda").add_(1)
        torch.cuda.synchronize()
    with suppress(RuntimeError, AttributeError, TypeError):
        return str(_runtime().cudaGetErrorString(status))
    return f"CUDA error {int(status)}"


@dataclass(frozen=True)
class _Opening:
    """A card as this process came to it: what others had in use, and what its own context and libraries took."""

    others: int
    context: int


@cache
def _open(index: int, uuid: str, total: int) -> _Opening:
    """Make this process's context on a card and see what that takes. Without a driver to ask, all that is in use on the
    card counts as ours, which errs on the side of the ceiling."""
    before = nvml.readings(uuid) if (nvml := open_nvml()) else None
    others = max(0, total - (before.total - before.used)) if before else 0
    try:
        _first_product(torch.device("cuda", index))
    except RuntimeError as error:
        if classify(error):
            raise
        first = str(error).partition("\n")[0]
        advice = "install a torch build that supports this card, or drop it from --devices"
        raise UnavailableError(f"cuda:{index} cannot compute ({first}): {advice}") from error
    used = total - torch.cuda.mem_get_info(index)[0] - torch.cuda.memory_reserved(index)
    return _Opening(others, max(0, used - others))


def _first_product(device: torch.device) -> None:
    """Load cuBLAS and its kernels by computing once, lest the first lease pays for them; its workspace goes again."""
    with _WORKSPACES.used(), torch.cuda.device(device):
        ones = torch.ones(16, 16, dtype=torch.float16, device=device)
        ones @ ones
        torch.cuda.synchronize()
    del ones
    _WORKSPACES.clear()
    with suppress(RuntimeError):  # of another GPU, which is lost
        torch.cuda.empty_cache()
