"""The precision that a model is computed in where it runs, and the linear maps of an encoder in int8 on a CPU.

Weights have one scale for each output, activations one for each row, found when they come: what a row gives does not
depend on its neighbours. Products are exact in 32-bit integers, by oneDNN; all between them stays in float32. How near
that comes to float32 differs from model to model, so a canary looks at it before a run keeps anything.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from interlock.engine.errors import UsageError
from interlock.engine.models.networks.checkpoint import frozen
from interlock.engine.models.networks.kernels import Capability, precision_for
from interlock.engine.models.registry import ModelSpec

MOST, TINY = 127, 1e-12
"""The largest whole number of a scale, and the least that is divided by."""


def dtype_of(
    spec: ModelSpec,
    config: Mapping[str, Any],
    device_kind: str,
    capability: Capability,
    *,
    ours: bool = False,
    fixed: bool = False,
) -> str:
    """Decide the precision of a model on devices of this kind; `ours`: by the network of `network.py`, `fixed`: by what
    knows one precision. Raises UsageError for one that is asked for and cannot be had."""
    less = spec.precision in ("bfloat16", "int8")
    if less and device_kind != "cpu":
        raise UsageError(
            f"--precision {spec.precision} is for the CPU and the run has GPUs: drop it, or choose --devices cpu"
        )
    if less and fixed:
        raise UsageError(f"--precision {spec.precision}: {spec.key} has float32 only: choose --precision auto")
    if device_kind == "cuda" and not fixed:
        decided = precision_for(config, capability)
    else:
        decided = cpu_precision(spec.precision) if device_kind == "cpu" and not fixed else "float32"
    dtype = spec.dtype.get(device_kind, decided)
    if dtype == "int8" and not (ours and device_kind == "cpu" and "AVX" in torch.backends.cpu.get_cpu_capability()):
        raise UsageError(
            f"{spec.key} cannot be computed in int8 on {device_kind}, only BERT and its like on a CPU with AVX2: "
            "choose another --precision, or another dtype in its [models.*] table"
        )
    return dtype


def cpu_precision(asked: str) -> str:
    """Return what `--precision` means on this processor: `auto` is bfloat16 where it multiplies that itself."""
    if asked != "auto":
        return asked
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if native else "float32"


class QuantisedLinear(nn.Module):
    """A linear map with what follows it, made of one in float32; `weight` [outputs, inputs]."""

    def __init__(self, weight: Tensor, bias: Tensor, activation: str) -> None:
        super().__init__()
        self.activation = activation
        most = _most_of_weights()
        scales = weight.abs().amax(1).clamp_min_(TINY).div_(most)
        whole = (weight / scales[:, None]).round_().to(torch.int8)
        self.weight = frozen(torch.ops.onednn.qlinear_prepack(whole, None))
        self.scales, self.bias = frozen(scales), frozen(bias)
        self.offsets = frozen(torch.zeros(len(weight), dtype=torch.int64))

    def activated(self, rows: Tensor) -> Tensor:
        """Map `rows` [T, inputs] to [T, outputs]."""
        scale = _scale(rows)
        out = self._products(rows * scale.reciprocal())
        out = torch.addcmul(self.bias, out, scale, out=out)
        if self.activation == "gelu":
            return torch.ops.aten.gelu_(out)  # type: ignore[no-any-return]
        return out.relu_() if self.activation == "relu" else out

    def added(self, rows: Tensor, other: Tensor) -> Tensor:
        """Map `rows`, which nobody needs afterwards, and add `other` [T, outputs]."""
        scale = _scale(rows)
        out = self._products(rows.mul_(scale.reciprocal()))
        return torch.addcmul(other, out, scale, out=out).add_(self.bias)

    def _products(self, scaled: Tensor) -> Tensor:
        """Products of rows within -127 and 127, in float32; oneDNN's kernels are for rows without a sign."""
        rows = scaled.round_().to(torch.int8).view(torch.uint8).bitwise_xor_(128)
        return _multiplied(rows, self.weight, self.scales, self.offsets)


def _multiplied(rows: Tensor, weight: Tensor, scales: Tensor, offsets: Tensor) -> Tensor:
    about: tuple[Any, ...] = (weight, scales, offsets, None, 1.0, 0, torch.float32, "none", [], "")
    return torch.ops.onednn.qlinear_pointwise.default(rows, 1.0, 128, *about)  # type: ignore[no-any-return]


@cache
def _most_of_weights() -> int:
    """The largest whole number that weights may have: without VNNI oneDNN adds pairs of products in 16 bits, where two
    of 255 * 127 find no room."""
    size = 64
    weight = torch.ops.onednn.qlinear_prepack(torch.full((size, size), 127, dtype=torch.int8), None)
    rows, ones = torch.full((size, size), 255, dtype=torch.uint8), torch.ones(size)
    found = _multiplied(rows, weight, ones, torch.zeros(size, dtype=torch.int64))
    return MOST if bool((found == size * 127 * 127).all()) else MOST // 2


def _scale(rows: Tensor) -> Tensor:
    """The largest number of each row, as 127 stands for it: [T, 1]."""
    return torch.maximum(rows.amax(1, keepdim=True), rows.amin(1, keepdim=True).neg_()).clamp_min_(TINY).div_(MOST)
