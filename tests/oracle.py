"""What forwards really allocate: the truth that a memory law is held against.

`Oracle` traces the whole depth of a published configuration; `measured` counts what a real network allocates on the
host. Neither takes anything from the code under test but the network itself and the meter.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from interlock.engine.gpu.meter import Meter
from interlock.engine.models.networks.attention import attending, register, spread_heads
from interlock.engine.models.networks.checkpoint import packable
from interlock.engine.models.networks.fused import fuse
from interlock.engine.models.networks.kernels import Kernel, pack
from interlock.engine.models.networks.network import PackedEncoder, PackedTermEncoder
from interlock.engine.models.networks.pooling import TermPooling
from interlock.engine.models.registry import Kind
from tests.ledgers import Counter

CAUSAL = ("qwen2", "qwen3")


class Oracle:
    """A network at its full depth without weights or content. Rows of one length are computed without a mask."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        packed: bool,
        attention: str = "sdpa",
        dtype: torch.dtype = torch.float16,
        kernel: Kernel = Kernel.HOST,
        kind: Kind = "dense",
    ) -> None:
        self._causal = is_causal(config, attention)
        self._packed, self._kernel = packed, kernel
        self._mode = FakeTensorMode()
        with self._mode:
            if kind == "sparse":
                self._network: nn.Module = PackedTermEncoder.blank(config, dtype)
            else:
                self._network = blank(config, attention, dtype, packed=packed)
        parameters = {id(each): each for each in self._network.parameters()}.values()
        self.weights = sum(each.numel() * each.element_size() for each in parameters)

    def __enter__(self) -> nn.Module:
        """The network, for as long as tensors are without content."""
        self._mode.__enter__()
        return self._network

    def __exit__(self, *exception: Any) -> None:
        self._mode.__exit__(*exception)

    def peak(self, lengths: Sequence[int]) -> int:
        """Bytes beside the weights at the peak of one forward of rows of these lengths, pooled in float32."""
        with self._mode, as_on_a_gpu(self._kernel.plain):
            return measured(self._network, lengths, packed=self._packed, causal=self._causal, kernel=self._kernel)


@contextmanager
def as_on_a_gpu(kernel: Kernel) -> Iterator[None]:
    """Within, attention allocates what torch 2.13's attention.cu does where a GPU computes it by `kernel`.

    Masks of truth become numbers, and are copied where their rows are not aligned (`preprocess_mask`); heads of more
    than 128 halves are summed in float32 beside (`output_accum`); flash attention fills heads up (`pad_last_dim`) and
    keeps a float32 for each token and head (`softmax_lse`).
    """
    packed_efficient = torch.ops.aten._efficient_attention_forward
    chosen_here = torch.nn.functional.scaled_dot_product_attention

    def sums(value: Tensor) -> Tensor | None:
        return torch.empty(value.shape, dtype=torch.float32) if value.itemsize == 2 and value.shape[-1] > 128 else None

    def efficient(*args: Any, **more: Any) -> Any:
        beside = sums(args[2])
        out = packed_efficient(*args, **more)
        del beside
        return out

    efficient.default = packed_efficient.default  # type: ignore[attr-defined]  # torch itself asks for it

    def sdpa(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **more: Any) -> Tensor:
        odd = query.itemsize == 2 and query.shape[-1] % 8
        if kernel is Kernel.HOST:
            return chosen_here(query, key, value, attn_mask, **more)
        if kernel is Kernel.MATH or (odd and attn_mask is not None):
            more = {"is_causal": more.get("is_causal", False), "scale": more.get("scale")}
            return torch.ops.aten._scaled_dot_product_attention_math(query, key, value, attn_mask, **more)[0]
        rows, heads, longest, wide = *query.shape[:3], value.shape[-1]
        full, inside = wide, []  # what lives while the kernel runs
        if attn_mask is None and kernel is not Kernel.EFFICIENT and query.itemsize == 2:
            full = -(-wide // 8) * 8
            inside = [torch.empty(*x.shape[:-1], full, dtype=x.dtype) for x in (query, key, value) if wide % 8]
            inside.append(torch.empty(rows, heads, longest))
        else:
            if attn_mask is not None and attn_mask.dtype is torch.bool:
                attn_mask = torch.empty(attn_mask.shape, dtype=query.dtype)
            if attn_mask is not None and attn_mask.stride(-2) % 16:
                inside.append(torch.empty(*attn_mask.shape[:-1], -(-longest // 16) * 16, dtype=query.dtype))
            inside.append(sums(value))
        out = torch.empty(rows, longest, heads, full, dtype=query.dtype)
        inside.clear()
        return out[..., :wide].transpose(1, 2)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.ops.aten, "_efficient_attention_forward", efficient)
        patched.setattr(torch.nn.functional, "scaled_dot_product_attention", sdpa)
        yield


def measured(
    network: nn.Module,
    lengths: Sequence[int],
    *,
    packed: bool,
    narrow: bool = False,
    causal: bool = False,
    kernel: Kernel = Kernel.HOST,
) -> int:
    """Bytes that a forward of rows of these lengths allocates at its peak; `causal` says so where no mask does."""
    counter = Counter()
    with torch.inference_mode(), Meter(counter, narrow=narrow):
        forward(network, lengths, packed=packed, causal=causal, kernel=kernel)
    return counter.peak


def forward(
    network: nn.Module, lengths: Sequence[int], *, packed: bool, causal: bool, kernel: Kernel = Kernel.HOST
) -> None:
    """Compute rows of these lengths, pooled in float32, and drop what came of it."""
    if packed:
        batch = pack([np.ones(each, np.int64) for each in lengths], torch.device("cpu"), kernel)
        if isinstance(network, PackedTermEncoder):
            network.terms(batch, TermPooling(), lambda *_: None)
            return
        if isinstance(network, PackedEncoder):
            hidden = network(batch).float()
        else:
            with attending(batch):
                hidden = network(input_ids=batch.ids[None], position_ids=batch.positions[None])[0][0].float()
    else:
        width = max(lengths) if len(set(lengths)) == 1 else -(-max(lengths) // 16) * 16
        ids = torch.ones(len(lengths), width, dtype=torch.int64)
        mask: Any = {"full_attention": None} if causal else None
        if len(set(lengths)) > 1:
            mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
        hidden = network(input_ids=ids, attention_mask=mask)[0].float()
    pooled = hidden[:1]
    del hidden, pooled


def is_causal(config: Mapping[str, Any], attention: str) -> bool:
    """Whether a network must be told that rows of one length need no mask: it cannot look at what has no content."""
    return config["model_type"] in CAUSAL and attention == "sdpa"


def lengths_of(generator: np.random.Generator, longest: int, tokens: int, *, packed: bool, even: bool) -> list[int]:
    """Rows at random: the longest from 32 up to `longest`, as many as make at most about `tokens`."""
    top = int(np.exp(generator.uniform(np.log(32), np.log(longest + 1))))
    rows = int(np.exp(generator.uniform(0, np.log(max(1, tokens // top) + 1))))
    if even or (rows == 1 and packed):
        return [top] * rows
    return [top, *generator.integers(max(1, top // 2), top, max(1, rows - 1), endpoint=False).tolist()]


def blank(config: Mapping[str, Any], attention: str, dtype: torch.dtype, *, packed: bool) -> nn.Module:
    """The whole network of a configuration, its weights not set: ours, or the one that transformers builds."""
    if packed and packable(config):
        return PackedEncoder.blank(config, dtype)
    return fuse(blank_padded(config, register(), dtype)) if packed else blank_padded(config, attention, dtype)


def blank_padded(config: Mapping[str, Any], attention: str, dtype: torch.dtype) -> nn.Module:
    """The network that transformers builds of a configuration, its weights not set."""
    from transformers import AutoConfig, AutoModel
    from transformers.initialization import no_init_weights

    spread_heads()  # as whatever loads a padded network does
    settings = AutoConfig.for_model(**{**config, "use_cache": False})
    with no_init_weights():
        network: nn.Module = AutoModel.from_config(settings, attn_implementation=attention, dtype=dtype)
    return network.eval()
