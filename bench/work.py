"""What a model has to compute, and how fast this machine could: useful operations, GEMM probe, padding.

Imported only after the environment has settled the number of threads.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from interlock.engine.compute.job import BatchPlan
from interlock.engine.models.card import ModelCard
from interlock.engine.models.networks.kernels import filling


def gemm(card: ModelCard, dtype: torch.dtype) -> Callable[[], dict[str, float]]:
    """GF/s of one linear at the model's own shapes and a square one, by whichever kernel of torch is faster there."""
    width, inner = int(card.config["hidden_size"]), int(card.config.get("intermediate_size") or 0)
    shapes = [(2048, width, 3 * width), (2048, width, inner), (2048, inner, width), (1024, 1024, 1024)]

    def run() -> dict[str, float]:
        return {f"{m}x{k}x{n}": _rate(m, k, n, dtype) for m, k, n in shapes}

    return run


@torch.inference_mode()
def _rate(m: int, k: int, n: int, dtype: torch.dtype) -> float:
    x, weight, bias = (torch.randn(shape, dtype=dtype) for shape in ((m, k), (n, k), (n,)))
    packed, fused = torch.ops.mkldnn._reorder_linear_weight(weight), torch.ops.mkldnn._linear_pointwise.default
    kernels = (lambda: F.linear(x, weight, bias), lambda: fused(x, packed, bias, "none", [], "none"))
    return 2 * m * k * n / min(map(_median, kernels)) / 1e9


def _median(kernel: Callable[[], object], repeats: int = 15) -> float:
    """CPU seconds of one call."""
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        kernel()
        seconds.append(time.process_time() - began)
    return float(np.median(seconds[2:]))


def flops(card: ModelCard, lengths: np.ndarray) -> float:
    """Useful floating point operations of a BERT-like encoder: linears and attention, no padding."""
    d, depth = int(card.config["hidden_size"]), int(card.config["num_hidden_layers"])
    inner = int(card.config.get("intermediate_size") or 4 * d)
    linear = float(lengths.sum()) * (8 * d * d + 4 * d * inner)
    return depth * (linear + 4.0 * d * float((lengths.astype(np.float64) ** 2).sum()))


def padding(card: ModelCard, planned: BatchPlan) -> float:
    """Tokens that our encoder computes beside the real ones, as a share of these.

    Packed rows are filled up to a tile once a batch; padded ones each up to the longest.
    """
    if card.packed:
        return sum(filling(batch.tokens) for batch in planned.batches) / planned.tokens
    return planned.padding / planned.tokens


def padding_by_characters(texts: Sequence[str], lengths: np.ndarray, size: int) -> float:
    """Padding share of sentence-transformers' default: sorted by characters, `size` rows a batch."""
    order = sorted(range(len(texts)), key=lambda n: -len(texts[n]))
    batches = [lengths[order[start : start + size]] for start in range(0, len(order), size)]
    return sum(int(batch.max()) * len(batch) for batch in batches) / int(lengths.sum()) - 1
