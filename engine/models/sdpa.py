"""What attention takes on a GPU: which of torch's kernels is chosen there, and what it allocates that no trace shows.

The choice is that of `sdp::select_sdp_backend` in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of torch 2.13,
with cuDNN's attention off. What a kernel allocates inside itself is read from attention.cu and flash_api.cpp beside it.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from interlock.engine.gpu.meter import Ledger, Meter, Operation
from interlock.engine.models.precision import BFLOAT16_FROM, Capability

FLASH_FROM: Capability = (8, 0)
WIDEST_FLASH = 256
ALIGNED = 16
"""Rows of different lengths are padded to a multiple of as many tokens: a mask of any other width is copied in every
layer by memory-efficient attention (`preprocess_mask`, `pad_bias`)."""
FILLED = 8
"""Values: fused attention takes heads of a multiple of it. torch fills them up itself only for flash attention
(`pad_last_dim`), in queries, keys, values and output."""
IN_REGISTERS = 128
"""Values of a head: of wider ones memory-efficient attention sums halves in a float32 buffer of its own
(`kNeedsOutputAccumulatorBuffer` of kernel_forward.h: no kernel for halves keeps more than 128 in registers)."""


class Sdpa(StrEnum):
    """How scaled-dot-product attention is computed."""

    FLASH = "flash"
    EFFICIENT = "memory-efficient"
    MATH = "math"


def sdpa_for(dtype: torch.dtype, head: int, capability: Capability, *, masked: bool, grouped: bool = False) -> Sdpa:
    """Choose as torch does on a GPU, for heads of `head` values; `grouped` where keys have fewer heads than queries."""
    halves = dtype.itemsize == 2
    if halves and capability >= FLASH_FROM and head <= WIDEST_FLASH and not masked:
        return Sdpa.FLASH
    alignment = 8 if halves else 4
    if not halves and capability < FLASH_FROM:
        alignment = 1
    known = dtype is not torch.bfloat16 or capability >= BFLOAT16_FROM
    return Sdpa.EFFICIENT if known and not grouped and head and head % alignment == 0 else Sdpa.MATH


class Kernel(StrEnum):
    """How the rows of a batch are attended to."""

    FLASH = "flash"
    EFFICIENT = "memory-efficient"
    RUNS = "runs of one length"
    """Through torch's own choice."""
    HOST = "runs of one length on the host"
    MATH = "written out"
    """Of padded rows that no fused kernel takes: memory grows with the square of the longest."""


def kernel_for(config: Mapping[str, Any], dtype: str, capability: Capability, *, packed: bool = True) -> Kernel:
    """Choose the kernel that takes the rows of a model in this precision on GPUs of this capability.

    As pytorch's sdp_utils.cpp says of each: flash attention from 8.0 on, in halves, for heads of up to 256 values;
    memory-efficient attention everywhere. MPNet adds to the scores what depends on places, which neither takes with
    packed rows. Padded rows go through torch's own choice; `RUNS` says of them that it is flash attention without a
    mask and none that is fused with one.
    """
    heads = int(config.get("num_attention_heads") or 1)
    width = int(config.get("head_dim") or int(config.get("hidden_size") or 0) // heads)
    precision = getattr(torch, dtype)
    if not packed:
        return _padded_kernel(precision, width or FILLED, capability)
    if config.get("model_type") == "mpnet":
        return Kernel.RUNS
    chosen = sdpa_for(precision, width + -width % FILLED or FILLED, capability, masked=False)
    return Kernel.FLASH if chosen is Sdpa.FLASH else Kernel.EFFICIENT


def _padded_kernel(dtype: torch.dtype, width: int, capability: Capability) -> Kernel:
    plain, masked = (sdpa_for(dtype, width, capability, masked=masked) for masked in (False, True))
    if plain is Sdpa.FLASH:
        return Kernel.FLASH if masked is Sdpa.EFFICIENT else Kernel.RUNS
    return Kernel[plain.name]


class GpuMeter(Meter):  # type: ignore[no-untyped-call]
    """Charges what a GPU's kernels would take, for a network that is traced on the host."""

    def __init__(self, ledger: Ledger, sdpa: Sdpa, *, narrow: bool = False) -> None:
        """Take scaled-dot-product attention without fused kernel for `MATH`."""
        super().__init__(ledger, narrow=narrow)
        self._sdpa = sdpa
        self._filled, self._logs = 1.0, True

    def __torch_dispatch__(
        self, func: Operation, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self._sdpa is Sdpa.MATH and func is torch.ops.aten.scaled_dot_product_attention.default:
            with self:
                return _written_out(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def before(self, func: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Charge what the kernel allocates beside its output, together with it, for as long as it runs."""
        self._filled, self._logs, inside = 1.0, True, 0
        if func is torch.ops.aten._efficient_attention_forward.default:
            inside = _accumulator(args[2])
        elif func is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default:
            mask, width = kwargs.get("attn_mask"), args[0].shape[-1]
            if mask is not None or self._sdpa is not Sdpa.FLASH:
                inside = _accumulator(args[2]) + _aligned(mask)
                self._logs = False
            elif args[0].element_size() == 2 and width % FILLED:
                self._filled = math.ceil(width / FILLED) * FILLED / width
                inside = math.ceil(sum(each.numel() for each in args[:3]) * 2 * self._filled)
        if inside:
            query, value = args[0], args[2]
            out = query.numel() // query.shape[-1] * value.shape[-1] * query.element_size()
            self.ledger.free(self.ledger.allocate(inside + math.ceil(out * self._filled)))

    def charge(self, tensor: Tensor, size: int) -> Any:
        """Charge the output of flash attention with its heads filled up, and logarithms where a kernel keeps them."""
        if tensor.element_size() == 2:
            return self.ledger.allocate(math.ceil(size * self._filled))
        return self.ledger.allocate(size if self._logs or tensor.dim() != 3 else 0)


def _written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    out: Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]
    return out


def _accumulator(value: Tensor) -> int:
    """Bytes of memory-efficient attention's own sums, `[B, T, heads, d]` float32."""
    wide = value.element_size() == 2 and value.shape[-1] > IN_REGISTERS
    return 4 * value.numel() if wide else 0


def _aligned(mask: Tensor | None) -> int:
    """Bytes of the copy of a mask in halves whose rows do not begin where they must."""
    if mask is None or mask.element_size() != 2 or all(step % ALIGNED == 0 for step in mask.stride()[:-1] if step):
        return 0
    held = [size for size, step in zip(mask.shape, mask.stride(), strict=True) if step]
    wide = -(-mask.shape[-1] // ALIGNED) * ALIGNED
    return mask.element_size() * torch.Size(held[:-1]).numel() * wide
