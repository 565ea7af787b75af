"""Attention of rows laid end to end: each attends to itself alone, and nothing is computed for padding or masked.

On a GPU all rows of a batch share one kernel, which is told where each begins. On the host, and where a GPU has no such
kernel, neighbours of one length share a call. No GPU writes the scores of packed rows out: what fused kernels do not
take as it is (fewer heads of keys, heads of odd width, bfloat16 below 8.0) is laid out so that they do. Memory grows
with the square of the longest row for the mask of a window alone, and for what MPNet adds. `register` gives
the same attention to networks that transformers builds: it makes no mask for an attention that it does not know, and
hands on positions as they are.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from typing import Any

import torch
import torch.nn.functional as F
from packaging.version import Version
from torch import Tensor

from interlock.engine.models.networks.batching import stretched
from interlock.engine.models.networks.kernels import ALIGNED, FILLED, Kernel, PackedBatch

NAME = "interlock-packed"
"""What transformers calls this attention."""
ROTARY = frozenset({"eurobert", "gemma3_text", "gte", "llama", "mistral", "modernbert", "nomic_bert", "qwen2", "qwen3"})
"""Architectures of transformers that take positions as they are given and hand all of attention to a function."""


def why_padded(config: Mapping[str, Any], attention: str) -> str:
    """Say why a network that transformers builds cannot compute rows without padding; empty where it can."""
    if attention == "eager":
        return "its attention is eager"
    if config.get("attn_logit_softcapping"):
        return "its attention scores are capped"
    if stretched(config):
        return "its positions stretch with the longest row"
    architecture = config.get("model_type")
    if architecture == "modernbert" and (older := older_transformers()):
        return f"{older} computes its attention itself"
    return "" if architecture in ROTARY else f"the {architecture} network of transformers has no packed form"


def older_transformers() -> str:
    """Name the transformers that is here, where it is one that lets no ModernBERT attend otherwise and heeds no
    `is_causal` of a configuration; empty for a newer one."""
    found = version("transformers")
    return f"transformers {found} (before 5.6)" if Version(found) < Version("5.6") else ""


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
    laid_out = batch.kernel is not Kernel.HOST and (odd or single)
    if laid_out:
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        computed = torch.float32 if single else dtype
        query, key, value = (F.pad(each.to(computed), (0, -each.shape[-1] % FILLED)) for each in (query, key, value))
        bias = None if bias is None else bias.to(computed)
    if batch.kernel is Kernel.FLASH and bias is None:
        out = _flash(query, key, value, batch, causal, window, scale)
    elif batch.kernel is Kernel.EFFICIENT and bias is None and (causal or window is None):
        out = _efficient(query, key, value, batch, causal, window, scale)
    else:
        out = _runs(query, key, value, batch, causal, window, scale, bias)
    return out[..., :width].to(dtype) if laid_out else out


def _flash(
    query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, causal: bool, window: int | None, scale: float | None
) -> Tensor:
    reach = -1 if window is None else window - 1
    longest = max(2, batch.longest)  # of 1 it takes each token for a row, also those that fill the batch up
    out: Tensor
    out, *_ = torch.ops.aten._flash_attention_forward(
        query, key, value, batch.offsets, batch.offsets, longest, longest, 0.0, causal, False,
        scale=scale, window_size_left=reach, window_size_right=reach,
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


def by_triton() -> bool:
    """Tell whether Triton's kernels compute what this thread does between products of matrices."""
    batch = _BATCH.get(None)
    return batch is not None and batch.triton


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
