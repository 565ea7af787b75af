"""The inside of a simulated GPU: its allocator as a ledger, what cuBLAS takes of it, and what goes wrong on it.

A `ChipMeter` charges what a thread computes to a `Chip`. Where devices are nested, only the innermost is charged. An
operation that the host has no memory for fails as the card would, before it is run.
"""

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil
import torch

from interlock.engine.gpu.allocator import MEDIUM_SEGMENT, Allocator, Handle
from interlock.engine.gpu.faults import DeviceFaults
from interlock.engine.gpu.meter import Meter
from interlock.engine.record.facts import Memory

WORKSPACE = 8_519_680
"""Bytes of cuBLAS's workspace, which torch's allocator gives it at the first matrix product (pytorch#95668)."""
HOST_LARGE, HOST_RESERVE = 64 << 20, 512 << 20
"""An operation that makes more than the one must leave the other free on the host, in bytes."""

_AcceleratorError: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)  # older versions have none
_LOST = """CUDA error: {}
Search for `{}' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for \
more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
"""
_LOSSES = {
    "lose": _LOST.format("unspecified launch failure", "cudaErrorLaunchFailure"),
    "assert": _LOST.format("device-side assert triggered", "cudaErrorAssert"),
}
_REFUSALS = {
    "cublas": "CUDA error: CUBLAS_STATUS_INTERNAL_ERROR when calling `cublasGemmEx( handle, opa, opb, m, n, k)`",
    "nvml": "NVML_SUCCESS == r INTERNAL ASSERT FAILED at "
    '"/pytorch/c10/cuda/CUDACachingAllocator.cpp":1131, please report a bug to PyTorch. ',
}
"""What torch says where memory is short, beside its own words."""
SKEW = 1.5
"""What every second number that a device makes wrongly is multiplied with."""
_PIN, _FILLER = 2 << 20, 9 << 20


class Chip:
    """One card's memory in this process, with its faults. All sizes are bytes of the card."""

    def __init__(self, index: int, total: int, context: int, faults: DeviceFaults, clock: Callable[[], float]) -> None:
        self.allocator = Allocator(total, context, index=index, lag=faults.lag, clock=clock)
        self.allocations = 0
        self.canaries = 0
        self.trying = False
        """Whether a canary is computed: its allocations are not counted."""
        self._faults = faults
        self._leak = faults.leaked
        self._workspace: list[Handle] = []
        self._pins: list[Handle] = []
        self._leaks: list[Handle] = []
        self._last: tuple[Memory, Memory] | None = None
        self._loss = ""
        self._lock = threading.Lock()  # `free` must not take it: it may come in the middle of what holds it

    @property
    def lost(self) -> bool:
        return self._last is not None

    @property
    def skewed(self) -> bool:
        """Whether it computes wrongly now."""
        return self.trying and self._faults.skews(self.canaries)

    @property
    def faulty(self) -> bool:
        """Whether anything at all goes wrong on it."""
        return self._faults.any

    def answer(self) -> None:
        """Raise as CUDA does on every call once the device is lost."""
        if self._last is not None:
            raise _AcceleratorError(self._loss)

    def allocate(self, size: int) -> tuple[Handle, bool]:
        """Take memory for a tensor; the second value says whether its contents are to be spoiled."""
        with self._lock:
            if self.trying:
                self.answer()
                return self.allocator.allocate(size), False
            self.allocations += 1
            number = self.allocations
            if self._last is None and (loss := self._faults.loses(number)):
                self._last, self._loss = (self.memory(), self.peak()), _LOSSES[loss]
            self.answer()
            wanted, held = self._faults.others(number), self.allocator.others
            if wanted != held:  # other processes get what they want only of what is free
                self.allocator.others = min(wanted, self.allocator.driver_free + held)
            if words := self._faults.short(number, size):
                raise RuntimeError(_REFUSALS[words]) if words in _REFUSALS else self.allocator.refuse(size)
            self._scatter()
            return self.allocator.allocate(size), self._faults.spoils(number)

    def free(self, handle: tuple[Handle, bool]) -> None:
        self.allocator.free(handle[0])

    def provide_workspace(self) -> None:
        """Take cuBLAS's workspace before the first matrix product, as torch does."""
        if not self._workspace:
            with self._lock:
                self._workspace = self._workspace or [self.allocator.allocate(WORKSPACE)]

    def clear(self) -> None:
        """Give back what no tensor uses; a leak begins here."""
        with self._lock:
            self._give_back(self._workspace)
            if self._leak and self.allocations:
                with suppress(torch.OutOfMemoryError):
                    self._leaks.append(self.allocator.allocate(self._leak))
                self._leak = 0
            own = (handle.block for handle in (*self._workspace, *self._pins, *self._leaks))
            if self.allocator.counters().allocated <= sum(block.size for block in own if block):  # no tensor is left
                self._give_back(self._pins)
        self.allocator.empty_cache()

    def memory(self) -> Memory:
        """Count what is held now; of a lost card, what was when it was lost."""
        if self._last:
            return self._last[0]
        now = self.allocator.counters()
        occupied = self.allocator.floor + now.reserved + self.allocator.unseen
        return Memory(allocated=now.allocated, reserved=now.reserved, occupied=occupied)

    def peak(self) -> Memory:
        """Count the most since the allocator's `start_peak`; of a lost card, until it was lost."""
        if self._last:
            return self._last[1]
        now = self.allocator.counters()
        occupied = self.allocator.floor + now.peak_reserved
        return Memory(allocated=now.peak_allocated, reserved=now.peak_reserved, occupied=occupied)

    def _scatter(self) -> None:
        """Fill segments with three pieces each, then drop two of them: the third pins its segment."""
        if self._pins or not self._faults.scattered:
            return
        fillers: list[Handle] = []
        with suppress(torch.OutOfMemoryError):
            for _ in range(max(1, self._faults.scattered // MEDIUM_SEGMENT)):
                self._pins.append(self.allocator.allocate(_PIN))
                fillers.append(self.allocator.allocate(_FILLER))
                fillers.append(self.allocator.allocate(_FILLER))
        self._give_back(fillers)
        self.allocator.start_peak()  # the device was empty: what the fillers took is nobody's peak

    def _give_back(self, handles: list[Handle]) -> None:
        while handles:
            self.allocator.free(handles.pop())


class ChipMeter(Meter):  # type: ignore[no-untyped-call]
    """Charges a chip, and fails every operation once it is lost."""

    def __init__(self, chip: Chip, *, narrow: bool) -> None:
        super().__init__(chip, narrow=narrow)
        self._chip = chip

    @contextmanager
    def within(self) -> Iterator[None]:
        """Charge what this thread computes in the block to the chip, and to none around it."""
        around = getattr(_here, "chip", None)
        if around is self._chip:
            yield
            return
        _here.chip = self._chip
        try:
            with self:
                yield
        finally:
            _here.chip = around

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if _here.chip is not self._chip:
            return func(*args, **(kwargs or {}))
        self._chip.answer()
        return super().__torch_dispatch__(func, types, args, kwargs)

    def before(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        product = getattr(func, "overloadpacket", None) in _PRODUCTS
        if product:
            self._chip.provide_workspace()
        size = _likely(func, args, product)
        if size <= HOST_LARGE or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return  # fake tensors take nothing of the host
        if size + HOST_RESERVE > int(psutil.virtual_memory().available):
            raise self._chip.allocator.refuse(size // 2 if self.narrow else size)

    def charge(self, tensor: torch.Tensor, size: int) -> tuple[Handle, bool]:
        charged = self._chip.allocate(size)
        if charged[1] and tensor.is_floating_point():
            tensor.fill_(math.nan)
        if self._chip.skewed and tensor.is_floating_point() and tensor.dim():
            tensor[..., ::2].mul_(SKEW)
        return charged


_here = threading.local()
_aten = torch.ops.aten
_PRODUCTS = frozenset((_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.addbmm, _aten.mv, _aten.addmv))


def _likely(func: Any, args: Sequence[Any], product: bool) -> int:
    """About how many bytes of the host an operation makes: cheap, and not too low for what encoders do."""
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    if product:
        left, right = tensors[-2:]
        return 4 * (left.numel() // max(1, left.shape[-1]) * right.shape[-1])
    if func is _aten.embedding.default:
        return 4 * tensors[1].numel() * tensors[0].shape[-1]
    values = max((tensor.numel() for tensor in tensors), default=0)
    for items in args:
        if isinstance(items, list | tuple) and items:
            if isinstance(items[0], int):  # the shape of what is made
                values = max(values, math.prod(items))
            else:  # tensors that are joined
                values = max(values, sum(item.numel() for item in items if isinstance(item, torch.Tensor)))
    return 4 * values
