"""Rows of token ids laid end to end, on the host and on a device, and how many tokens that makes."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from interlock.engine.corpus.ragged import owners_of, starts_of
from interlock.engine.models.sdpa import ALIGNED, Kernel

TILE = 32
"""Batches are filled up to a multiple of as many tokens: ever new sizes fragment the heap and fill oneDNN's caches."""


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
    return -tokens % TILE


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
    return PackedBatch(laid.lengths, ids, positions, owners, begins, kernel)


def _pinned(size: int) -> Tensor | None:
    """Page-locked memory of torch's own store, which keeps it until the copies from it are done; None where the machine
    gives none."""
    with suppress(RuntimeError):
        return torch.empty(size, dtype=torch.int64, pin_memory=True)
    return None
