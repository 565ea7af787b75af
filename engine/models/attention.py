"""Attention of rows laid end to end: each attends to itself alone, and nothing is computed for padding or masked.

On a GPU all rows of a batch share one kernel, which is told where each begins. On the host, and where a GPU has no such
kernel, neighbours of one length share a call. No GPU writes the scores of packed rows out: what fused kernels do not
take as it is (fewer heads of keys, heads of odd width, bfloat16 below 8.0) is laid out so that they do. Memory grows
with the square of the longest row for the mask of a window alone, and for what MPNet adds. `register` gives
the same attention to networks that transformers builds: it makes no mask for an attention that it does not know, and
hands on positions as they are.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from interlock.engine.models.precision import Capability
from interlock.engine.models.sdpa import ALIGNED, FILLED, Sdpa, sdpa_for

NAME = "interlock-packed"
"""What transformers calls this attention."""
ROTARY = frozenset({"eurobert", "gemma3_text", "gte", "llama", "mistral", "modernbert", "nomic_bert", "qwen2", "qwen3"})
"""Architectures of transformers that take positions as they are given and hand all of attention to a function."""
TILE = 32
"""Batches are filled up to a multiple of as many tokens: ever new sizes fragment the heap and fill oneDNN's caches."""
Ids = npt.NDArray[np.int64]


class Kernel(StrEnum):
    """How the rows of a batch are attended to."""

    FLASH = "flash"
    EFFICIENT = "memory-efficient"
    RUNS = "runs of one length"
    """Through torch's own choice."""
    HOST = "runs of one length on the host"
    MATH = "written out"
    """Of padded rows that no fused kernel takes: memory grows with the square of the longest."""


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


def why_padded(config: Mapping[str, Any], attention: str) -> str:
    """Say why a network that transformers builds cannot compute rows without padding; empty where it can."""
    if attention == "eager":
        return "its attention is eager"
    if config.get("attn_logit_softcapping"):
        return "its attention scores are capped"
    architecture = config.get("model_type")
    return "" if architecture in ROTARY else f"the {architecture} network of transformers has no packed form"


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


def filling(tokens: int) -> int:
    """Count the tokens that a batch of `tokens` is filled up with."""
    return -tokens % TILE


def padded_tokens(rows: int, longest: int, shortest: int) -> int:
    """Count the tokens of rows that are padded to one width: rows of one length need no mask and stay as they are."""
    return rows * (longest if longest == shortest else longest + -longest % ALIGNED)


class LaidRows(tuple[Ids, ...]):
    """Rows of token ids, and beside them what `PackedBatch` takes, laid end to end on the host by `lay`."""

    lengths: Sequence[int]
    flat: Ids
    """[3 T + rows + 1]: ids, positions, rows, and where each begins."""
    pinned: Tensor | None
    """The page-locked memory of `flat`, from which a GPU copies beside the host; None where it is plain."""


def lay(rows: Sequence[Ids], place: torch.device) -> LaidRows:
    """Lay rows end to end on the host, ready to be copied to a device; touches no device that is not a GPU."""
    laid = LaidRows(rows)
    laid.lengths = [len(row) for row in rows]
    starts = np.cumsum([0, *laid.lengths])
    total = int(starts[-1])
    count = total + filling(total)
    size = 3 * count + len(starts)
    laid.pinned = _pinned(size) if place.type == "cuda" else None
    laid.flat = np.empty(size, np.int64) if laid.pinned is None else laid.pinned.numpy()
    ids, positions, owners = laid.flat[: 3 * count].reshape(3, count)
    laid.flat[3 * count :] = starts
    ids[total:] = positions[total:] = 0
    owners[total:] = len(rows)
    owners[:total] = np.repeat(np.arange(len(rows)), laid.lengths)
    positions[:total] = np.arange(total) - starts[owners[:total]]
    if rows:
        np.concatenate(rows, out=ids[:total])
    return laid


def pack(rows: Sequence[Ids], place: torch.device, kernel: Kernel = Kernel.HOST) -> PackedBatch:
    """Lay rows end to end on a device, in one copy; the host does not wait for it where the rows are pinned."""
    laid = rows if isinstance(rows, LaidRows) else lay(rows, place)
    pinned = laid.pinned
    there = torch.tensor(laid.flat, device=place) if pinned is None else pinned.to(place, non_blocking=True)
    count = (len(there) - len(rows) - 1) // 3
    ids, positions, owners, begins = torch.split(there, [count, count, count, len(rows) + 1])
    return PackedBatch(laid.lengths, ids, positions, owners, begins, kernel)


def _pinned(size: int) -> Tensor | None:
    """Page-locked memory of torch's own store, which keeps it until the copies from it are done; None where the machine
    gives none."""
    with suppress(RuntimeError):
        return torch.empty(size, dtype=torch.int64, pin_memory=True)
    return None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    batch: PackedBatch,
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Attend within each row; what comes out is shaped like `query`.

    Shapes are `[T, heads, d]`; keys and values may have fewer heads, each for several of the queries. What comes out of
    tokens that belong to no row means nothing. A token sees those nearer than `window`. `bias` [1, heads, L, L] is
    added to the scores of the longest row, and its corner to those of a shorter one.
    """
    window = window if window is not None and window < batch.longest else None
    odd, dtype, width = query.shape[-1] % FILLED, query.dtype, value.shape[-1]
    single = dtype is torch.bfloat16 and batch.kernel is not Kernel.FLASH
    if batch.kernel is Kernel.HOST or not (odd or single):
        return _attend(query, key, value, batch, causal, window, scale, bias)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    computed = torch.float32 if single else dtype
    query, key, value = (F.pad(each.to(computed), (0, -each.shape[-1] % FILLED)) for each in (query, key, value))
    bias = None if bias is None else bias.to(computed)
    return _attend(query, key, value, batch, causal, window, scale, bias)[..., :width].to(dtype)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    batch: PackedBatch,
    causal: bool,
    window: int | None,
    scale: float | None,
    bias: Tensor | None,
) -> Tensor:
    if batch.kernel is Kernel.FLASH and bias is None:
        return _flash(query, key, value, batch, causal, window, scale)
    if batch.kernel is Kernel.EFFICIENT and bias is None and (causal or window is None):
        return _efficient(query, key, value, batch, causal, window, scale)
    return _runs(query, key, value, batch, causal, window, scale, bias)


def _flash(
    query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, causal: bool, window: int | None, scale: float | None
) -> Tensor:
    left = -1 if window is None else window - 1
    out: Tensor
    out, *_ = torch.ops.aten._flash_attention_forward(
        query, key, value, batch.offsets, batch.offsets, batch.longest, batch.longest, 0.0, causal, False,
        scale=scale, window_size_left=left, window_size_right=0 if causal else left,
    )  # fmt: skip
    return out


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, causal: bool, window: int | None, scale: float | None
) -> Tensor:
    key, value = _spread(query, key, value)
    out: Tensor
    out, *_ = torch.ops.aten._efficient_attention_forward(
        query[None], key[None], value[None], None, batch.offsets, batch.offsets, batch.longest, batch.longest, 0.0,
        int(causal), scale=scale, window_size=window,
    )  # fmt: skip
    return out.squeeze(0)


def _runs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    batch: PackedBatch,
    causal: bool,
    window: int | None,
    scale: float | None,
    bias: Tensor | None,
) -> Tensor:
    if batch.kernel is not Kernel.HOST:  # below 8.0 no fused kernel takes fewer heads of keys
        key, value = _spread(query, key, value)
    outs = []  # they are joined at the end, so that memory is the same whatever the lengths
    for span, length in batch.runs():
        q, k, v = (each[span].view(-1, length, *each.shape[1:]).transpose(1, 2) for each in (query, key, value))
        mask = None if bias is None else bias[..., :length, :length]
        if window is not None and length > window:
            mask = _window(query, batch, window, causal)[:length, :length]
        grouped = q.shape[1] != k.shape[1]
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal and mask is None, scale=scale, enable_gqa=grouped
        )
        outs.append(mixed.transpose(1, 2).flatten(0, 1))
    return torch.cat([*outs, value.new_zeros(len(query) - batch.tokens, query.shape[1], value.shape[2])])


def _spread(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values once for each head of the queries."""
    share = query.shape[1] // key.shape[1]
    if share == 1:
        return key, value
    return key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)


def _window(query: Tensor, batch: PackedBatch, window: int, causal: bool) -> Tensor:
    """What is added to the scores of the longest row, [L, L]: -inf where a token does not see another; shorter rows use
    its corner. Its rows are aligned, for fused kernels copy it otherwise, in each layer."""
    if (window, causal) not in batch.masks:
        side = math.ceil(batch.longest / ALIGNED) * ALIGNED
        near = query.new_ones(side, side, dtype=torch.bool).triu_(1 - window).tril_(0 if causal else window - 1)
        batch.masks[window, causal] = query.new_zeros(side, side).masked_fill_(near.logical_not_(), -math.inf)
    return batch.masks[window, causal]


_BATCH: ContextVar[PackedBatch] = ContextVar("batch")


@contextmanager
def attending(batch: PackedBatch) -> Iterator[None]:
    """Let the networks that this thread computes within attend by the rows of `batch`."""
    token = _BATCH.set(batch)
    try:
        yield
    finally:
        _BATCH.reset(token)


def attend_here(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, window: int | None, scale: float | None
) -> Tensor:
    """Attend by the rows of the batch that this thread computes; shapes are those of `attend`."""
    return attend(query, key, value, _BATCH.get(), causal=causal, window=window, scale=scale)


def spread_heads() -> None:
    """Have transformers give each head of the queries its own keys, where rows are padded.

    Otherwise it hands fewer heads of keys to torch, whose fused attention takes those from compute capability 8.0 on;
    below, all scores are computed at once, in float32 (transformers#48633).
    """
    from transformers.integrations import sdpa_attention

    sdpa_attention.use_gqa_in_sdpa = lambda *_, **__: False


def register() -> str:
    """Make this attention known to transformers, and return the name to load a network with."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _for_transformers)
    return NAME


def _for_transformers(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer: `[1, heads, T, d]` in, `[1, T, heads, d]` out."""
    causal, window = seen(module, sliding_window)
    query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
    return attend_here(query, key, value, causal=causal, window=window, scale=scaling)[None], None


def seen(module: Any, window: int | None) -> tuple[bool, int | None]:
    """Say of an attention that transformers built whether a token sees only those before it, and within which window.

    Where the configuration has a causal network look both ways, transformers counts the last token of its window in
    (`sliding_window_bidirectional_overlay` of masking_utils.py); ModernBERT's modules have counted it themselves.
    """
    both = getattr(module.config, "is_causal", None) is False
    if both and window is not None and window == module.config.sliding_window:
        window += 1
    return module.is_causal and not both, window
