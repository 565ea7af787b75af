"""Which of torch's attention kernels a GPU takes for a model.

The choice is that of `sdp::select_sdp_backend` in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of torch 2.13,
with cuDNN's attention off.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import torch

from interlock.engine.models.precision import BFLOAT16_FROM, Capability

FLASH_FROM: Capability = (8, 0)
WIDEST_FLASH = 256
ALIGNED = 16
"""Rows of different lengths are padded to a multiple of as many tokens: a mask of any other width is copied in every
layer by memory-efficient attention (`preprocess_mask`, `pad_bias`)."""
FILLED = 8
"""Values: fused attention takes heads of a multiple of it. torch fills them up itself only for flash attention
(`pad_last_dim`), in queries, keys, values and output."""


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
