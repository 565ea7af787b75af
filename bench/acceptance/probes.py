"""What this machine can do, measured in this very run: copies to the device, pinned and pageable, and products.

Every figure of time in the other sections stands beside one of these.
"""

from collections.abc import Iterator
from typing import Any

import torch
from acceptance.goals import Timed
from acceptance.workbench import Bench

LAYER = (16384, 1024, 4096)
"""A feed-forward's product in XLM-R-large, for a batch of the usual size."""


def probes(bench: Bench) -> Iterator[tuple[str, Any]]:
    """Copies of one large buffer; a square product, and one as a layer has it."""
    for name in ("pinned", "pageable"):
        bench.rates[name] = _copied(bench, pinned=name == "pinned")
        yield f"{name}_h2d_gb_per_s", Timed(bench.rates[name] / 1e9)
    square = bench.scale.square
    bench.rates["gemm"] = _multiplied(bench, square, square, square)
    yield "copied_bytes", bench.scale.copied
    yield "gemm_tflops", Timed(bench.rates["gemm"] / 1e12)
    if bench.real:
        yield "layer_gemm_tflops", Timed(_multiplied(bench, *LAYER) / 1e12)


def _copied(bench: Bench, *, pinned: bool) -> float:
    """Bytes a second."""
    size = bench.scale.copied
    with bench.device.computing():
        target = torch.empty(size, dtype=torch.uint8, device=bench.device.torch)
    source = torch.ones(size, dtype=torch.uint8)
    source = source.pin_memory() if pinned and bench.real else source
    return size / bench.device_seconds(lambda: target.copy_(source, non_blocking=True))


def _multiplied(bench: Bench, rows: int, inner: int, columns: int) -> float:
    """Operations a second, in the precision that models are computed in."""
    dtype = torch.float16 if bench.real else torch.float32
    with bench.device.computing():
        left = torch.randn(rows, inner, dtype=dtype, device=bench.device.torch)
        right = torch.randn(inner, columns, dtype=dtype, device=bench.device.torch)
    return 2 * rows * inner * columns / bench.device_seconds(lambda: left @ right)
