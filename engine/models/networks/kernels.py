"""What a GPU computes a model by: the precision, torch's attention kernel, and rows of token ids laid end to end."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from interlock.engine.corpus.places import owners_of, starts_of
from interlock.engine.gpu.devices import triton_version

Capability = tuple[int, int]
"""Of a GPU, as NVIDIA counts: (7, 5) is a T4, (8, 0) an A100, (9, 0) an H100."""

OLDEST: Capability = (5, 0)
"""What every GPU that torch can use has."""
BFLOAT16_FROM: Capability = (8, 0)
"""Below it a GPU computes bfloat16 by way of float32, and its fused attention refuses it (pytorch, sdp_utils.cpp)."""

HALVES = frozenset({"bert", "distilbert", "roberta", "xlm-roberta", "mpnet", "modernbert", "nomic_bert"})
"""Encoders with a norm after each half layer: what flows between layers is of the size of one, far from 65,504, where
float16 ends; its three more bits than bfloat16 has are worth having. ModernBERT has its norms before the halves, and
what flows grows from layer to layer: it is here because no overflow of it is known."""
HALVES_BELOW = frozenset({"qwen3"})
"""No overflow of Qwen3-Embedding-0.6B in float16 is known; of the 8B there is one (QwenLM/Qwen3-Embedding#164), which
shows as a vector that is not finite and is computed anew."""


def wider(dtype: str, capability: Capability) -> str | None:
    """Return the precision to compute in where this one is too narrow; None after float32."""
    if dtype == "float16" and capability >= BFLOAT16_FROM:
        return "bfloat16"
    return None if dtype == "float32" else "float32"


def precision_for(config: Mapping[str, Any], capability: Capability) -> str:
    """Decide by architecture and card.

    float16 where activations are known to stay small. Anything else was trained in bfloat16 or float32, and there are
    models that overflow in float16 among them (gemma3: unslothai/unsloth#4014; Qwen2: QwenLM/Qwen3#826): bfloat16 where
    the card has it, float32 on older ones.
    """
    architecture = config.get("model_type")
    if architecture in HALVES:
        return "float16"
    if capability >= BFLOAT16_FROM:
        return "bfloat16"
    return "float16" if architecture in HALVES_BELOW else "float32"


FLASH_FROM: Capability = (8, 0)
TRITON_FROM: Capability = (7, 5)
"""Below it Triton's kernels are not tried. Chosen: they are compiled for that of a T4."""
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
    FLASH_TRITON = "flash with Triton"
    EFFICIENT_TRITON = "memory-efficient with Triton"
    """The same attention, and between its products of matrices the kernels of `triton_kernels.py`."""

    @property
    def triton(self) -> bool:
        return self is not self.plain

    @property
    def plain(self) -> "Kernel":
        """The same attention, and nothing by Triton."""
        return Kernel(self.removesuffix(" with Triton"))


def first_kernel(
    config: Mapping[str, Any], dtype: str, device_kind: str, capability: Capability, *, packed: bool = True
) -> Kernel:
    """Choose what a device tries first: a GPU with Triton's kernels where Triton is here."""
    if device_kind != "cuda":
        return Kernel.RUNS
    triton = capability >= TRITON_FROM and bool(triton_version())
    return kernel_for(config, dtype, capability, packed=packed, triton=triton)


def kernel_for(
    config: Mapping[str, Any], dtype: str, capability: Capability, *, packed: bool = True, triton: bool = False
) -> Kernel:
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
    kernel = Kernel.FLASH if chosen is Sdpa.FLASH else Kernel.EFFICIENT
    return Kernel(f"{kernel} with Triton") if triton else kernel


def _padded_kernel(dtype: torch.dtype, width: int, capability: Capability) -> Kernel:
    plain, masked = (sdpa_for(dtype, width, capability, masked=masked) for masked in (False, True))
    if plain is Sdpa.FLASH:
        return Kernel.FLASH if masked is Sdpa.EFFICIENT else Kernel.RUNS
    return Kernel[plain.name]


TILE, FEW = 32, 128
"""Batches are filled up to a multiple of as many tokens: ever new sizes fragment the heap and fill oneDNN's caches. Of
up to so `FEW` there are not many sizes, and a question of a dozen would take twice its time: a quarter does there."""


Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PackedBatch:
    """Rows of token ids laid end to end on a device, and after them up to `TILE` tokens that belong to none."""

    lengths: Sequence[int]
    ids: Tensor
    """[T] int64."""
    positions: Tensor
    """[T] int64: from 0 in each row."""
    rows: Tensor
    """[T] int64: the row that a token belongs to; the number of rows where it belongs to none."""
    starts: Tensor
    """[rows + 1] int64: where each row begins, and where the last ends."""
    kernel: Kernel = Kernel.HOST
    """How its rows are attended to."""
    triton: bool = False
    """Whether Triton's kernels compute what lies between products of matrices."""
    types: Tensor | None = None
    """[T] int64: which of a pair's texts a token belongs to, where a network tells them apart; None is the first."""
    masks: dict[tuple[int, bool], Tensor] = field(default_factory=dict)
    """What the layers of one forward share: which token sees which in the longest row, by window and causality."""

    @cached_property
    def longest(self) -> int:
        return max(self.lengths)

    @cached_property
    def tokens(self) -> int:
        """Count those of the rows."""
        return sum(self.lengths)

    @cached_property
    def offsets(self) -> Tensor:
        """`starts` [rows + 1] int32, as fused kernels want them."""
        return self.starts.int()

    def runs(self) -> Iterator[tuple[slice, int]]:
        """Neighbouring rows of one length: the tokens that they take, and that length."""
        stop = 0
        for length, equal in groupby(self.lengths):
            start, stop = stop, stop + sum(equal)
            yield slice(start, stop), length


def filling(tokens: int) -> int:
    """Count the tokens that a batch of `tokens` is filled up with."""
    return -tokens % tile(tokens)


def tile(tokens: int) -> int:
    """Say to a multiple of what a batch of `tokens` is filled up."""
    return TILE if tokens > FEW else TILE // 4


def padded_tokens(rows: int, longest: int, shortest: int) -> int:
    """Count the tokens of rows that are padded to one width: rows of one length need no mask and stay as they are."""
    return rows * (longest if longest == shortest else longest + -longest % ALIGNED)


class LaidRows(tuple[Ids, ...]):
    """Rows of token ids, and beside them what `PackedBatch` takes, laid end to end on the host by `lay`."""

    lengths: Sequence[int]
    flat: Ids | None
    """[3 T + rows + 1]: ids, positions, rows, and where each begins; None once a GPU has copied it from `pinned`."""
    pinned: Tensor | None
    """The page-locked memory of `flat`, from which a GPU copies beside the host; None where it is plain."""


def lay(rows: Sequence[Ids], place: torch.device) -> LaidRows:
    """Lay rows end to end on the host, ready to be copied to a device; touches no device that is not a GPU."""
    laid = LaidRows(rows)
    laid.lengths = [len(row) for row in rows]
    starts = starts_of(laid.lengths)
    total = int(starts[-1])
    count = total + filling(total)
    size = 3 * count + len(starts)
    laid.pinned = _pinned(size) if place.type == "cuda" else None
    laid.flat = flat = np.empty(size, np.int64) if laid.pinned is None else laid.pinned.numpy()
    ids, positions, owners = flat[: 3 * count].reshape(3, count)
    flat[3 * count :] = starts
    ids[total:] = positions[total:] = 0
    owners[total:] = len(rows)
    owners[:total] = owners_of(laid.lengths)
    positions[:total] = np.arange(total) - starts[owners[:total]]
    if rows:
        np.concatenate(rows, out=ids[:total])
    return laid


def pack(rows: Sequence[Ids], place: torch.device, kernel: Kernel = Kernel.HOST) -> PackedBatch:
    """Lay rows end to end on a device, in one copy; the host does not wait for it where the rows are pinned.

    Pinned memory is given back at once: later its GPU may be lost, and torch ends a process that frees what a lost GPU
    has copied from (pytorch#178154). Rows that are packed once more are laid anew.
    """
    laid = rows if isinstance(rows, LaidRows) and rows.flat is not None else lay(rows, place)
    if laid.pinned is None:
        there = torch.tensor(laid.flat, device=place)
    else:
        there = laid.pinned.to(place, non_blocking=True)
        laid.pinned = laid.flat = None
    count = (len(there) - len(rows) - 1) // 3
    ids, positions, owners, begins = torch.split(there, [count, count, count, len(rows) + 1])
    return PackedBatch(laid.lengths, ids, positions, owners, begins, kernel.plain, kernel.triton)


def _pinned(size: int) -> Tensor | None:
    """Page-locked memory of torch's own store, which keeps it until the copies from it are done; None where the machine
    gives none."""
    with suppress(RuntimeError):
        return torch.empty(size, dtype=torch.int64, pin_memory=True)
    return None
