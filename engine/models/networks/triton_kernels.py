"""Triton kernels for what lies between the matrix products of a layer: each reads and writes a batch once.

They compute in float32 and round once, and write in place where they can. Only a GPU's way with Triton imports this,
and its canary has to pass first. Shown equal to torch's code under Triton's interpreter, and compiled for cards from
a T4 to an H100; no card has run them, and no time of them was measured.
"""

import threading
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

_HEADS, _COLUMNS = tl.constexpr(8), tl.constexpr(1024)
"""Heads, and values of a gate, that one program computes. Chosen."""
_LAUNCHING = threading.Lock()
"""The first launch compiles, which several threads must not do at once (triton-lang/triton#5933)."""


def turn(
    rows: Tensor, weights: Tensor | None, cosines: Tensor, sines: Tensor, epsilon: float, beyond_one: bool
) -> None:
    """Norm each head of `rows` [T, heads, d] by its `weights` [heads, d], where it has any, and turn it by the angles
    [T, d] of its token, of which the halves are equal. The heads of a token lie side by side."""
    tokens, heads, size = rows.shape
    grid = tokens, triton.cdiv(heads, _HEADS.value)
    half, angles = size // 2, (cosines.contiguous(), sines.contiguous())
    across = triton.next_power_of_2(half)
    _launch(_turn, grid, rows, weights, *angles, epsilon, rows.stride(0), heads, half, across, float(beyond_one))


def gate(rows: Tensor, activation: str) -> None:
    """Multiply the first half of each row [T, 2 n] by the second, after its `activation`: `silu`, `gelu` or `tanh`."""
    tokens, width = rows.shape[0], rows.shape[1] // 2
    _launch(_gate, (tokens, triton.cdiv(width, _COLUMNS.value)), rows, rows.stride(0), width, activation)


def norm(
    out: Tensor, rows: Tensor, other: Tensor | None, weight: Tensor, bias: Tensor | None, epsilon: float, one: bool
) -> None:
    """Write the norm of `rows` [T, n], or of their sum with `other`, to `out`: with a `bias` that of a layer, else over
    the root of the mean square. Where `out` is another tensor, the sum is written to `rows`, and is what is normed."""
    width, kept = rows.shape[1], other is not None and out.data_ptr() != rows.data_ptr()
    across = triton.next_power_of_2(width)
    strides = out.stride(0), rows.stride(0), 0 if other is None else other.stride(0)
    given = out, rows, other, weight, bias, epsilon, *strides, width, across, float(one), kept
    _launch(_norm, (len(rows),), *given, num_warps=min(16, max(4, across // 512)))


def _launch(kernel: Any, grid: tuple[int, ...], *given: object, **how: int) -> None:
    if grid[0]:
        with _LAUNCHING:
            kernel[grid](*given, **how)


@triton.jit  # type: ignore[untyped-decorator]
def _turn(
    rows: tl.tensor, weights: tl.tensor, cosines: tl.tensor, sines: tl.tensor, epsilon: tl.tensor,
    stride: tl.constexpr, heads: tl.constexpr, half: tl.constexpr, across: tl.constexpr, one: tl.constexpr,
) -> None:  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * _HEADS + tl.arange(0, _HEADS)[:, None]
    column = tl.arange(0, across)[None, :]
    there = (head < heads) & (column < half)
    place, inside = head * (2 * half) + column, column < half
    first_place = rows + token * stride + place
    first = tl.load(first_place, there, 0.0).to(tl.float32)
    second = tl.load(first_place + half, there, 0.0).to(tl.float32)
    if weights is not None:
        mean = (tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * half)
        scale = tl.rsqrt(mean + epsilon)[:, None]
        first *= scale * (tl.load(weights + place, there, 0.0).to(tl.float32) + one)
        second *= scale * (tl.load(weights + place + half, there, 0.0).to(tl.float32) + one)
    cosine = tl.load(cosines + token * (2 * half) + column, inside, 0.0).to(tl.float32)
    sine = tl.load(sines + token * (2 * half) + column, inside, 0.0).to(tl.float32)
    tl.store(first_place, first * cosine - second * sine, there)
    tl.store(first_place + half, second * cosine + first * sine, there)


@triton.jit  # type: ignore[untyped-decorator]
def _gate(rows: tl.tensor, stride: tl.constexpr, width: tl.constexpr, activation: tl.constexpr) -> None:
    column = tl.program_id(1) * _COLUMNS + tl.arange(0, _COLUMNS)
    place, there = rows + tl.program_id(0).to(tl.int64) * stride + column, column < width
    opened = tl.load(place, there, 0.0).to(tl.float32)
    if activation == "silu":
        share = tl.sigmoid(opened)
    elif activation == "gelu":
        share = 0.5 * (1.0 + tl.erf(opened * 0.7071067811865476))
    else:  # (1 + tanh(x)) / 2 is the sigmoid of 2 x
        share = tl.sigmoid(1.5957691216057308 * (opened + 0.044715 * opened * opened * opened))
    tl.store(place, opened * share * tl.load(place + width, there, 0.0).to(tl.float32), there)


@triton.jit  # type: ignore[untyped-decorator]
def _norm(
    out: tl.tensor, rows: tl.tensor, other: tl.tensor, weight: tl.tensor, bias: tl.tensor, epsilon: tl.tensor,
    out_stride: tl.constexpr, stride: tl.constexpr, other_stride: tl.constexpr, width: tl.constexpr,
    across: tl.constexpr, one: tl.constexpr, kept: tl.constexpr,
) -> None:  # fmt: skip
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, across)
    there = column < width
    values = tl.load(rows + row * stride + column, there, 0.0).to(tl.float32)
    if other is not None:
        values += tl.load(other + row * other_stride + column, there, 0.0).to(tl.float32)
    if kept:
        rounded = values.to(rows.dtype.element_ty)
        tl.store(rows + row * stride + column, rounded, there)
        values = rounded.to(tl.float32)
    if bias is not None:
        values = tl.where(there, values - tl.sum(values, 0) / width, 0.0)
    values *= tl.rsqrt(tl.sum(values * values, 0) / width + epsilon)
    values *= tl.load(weight + column, there, 0.0).to(tl.float32) + one
    if bias is not None:
        values += tl.load(bias + column, there, 0.0).to(tl.float32)
    tl.store(out + row * out_stride + column, values, there)
