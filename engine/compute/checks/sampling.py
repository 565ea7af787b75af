"""The rows that a canary is made of: of different lengths, the longest of them with the shortest, at a bounded cost.

What passes holds for rows that were looked at, so a long one is left out only where the plain path would take too long.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np

from interlock.engine.compute.encoder import Ids
from interlock.engine.compute.job import Job
from interlock.engine.compute.parts.files import Rows
from interlock.engine.corpus.tokens import Lengths
from interlock.engine.gpu.device import Device
from interlock.engine.models.card import ModelCard
from interlock.engine.models.networks.sizes import cost_of

ROWS, MANY = 8, 1 << 18
"""Rows of a canary, and those of a pass of which each is looked at."""
NO_ROWS = np.empty(0, np.int64)
OPERATIONS, OPERATIONS_ON_HOST = 4e12, 1e11
"""What the plain path may cost. By arithmetic, not measured: half of a T4's 8 TFLOP/s in float32 for a second, and a
second of a host that does 100 GFLOP/s."""


def budget_on(device: Device) -> float:
    """Return the operations that the plain path may cost on a device."""
    return OPERATIONS if device.kind == "cuda" else OPERATIONS_ON_HOST


def lengths_of(job: Job) -> Lengths:
    """List the different lengths of the rows of a pass in tokens, ascending; of none 1."""
    counts = np.bincount(job.tokens.lengths(job.card.max_tokens, _candidates(job)))
    counts[:1] = 0  # a text of no tokens is parked
    return np.flatnonzero(counts) if counts.any() else np.array([1])


def _candidates(job: Job) -> Rows:
    """The rows of a pass; where they are many, the longest and the shortest of each batch."""
    many = sum(len(batch.rows) for batch in job.batches) > MANY
    return np.concatenate([batch.rows[[0, -1]] if many else batch.rows for batch in job.batches] or [NO_ROWS])


def affordable(lengths: Lengths, card: ModelCard, operations: float) -> int:
    """Return the longest of some lengths that costs, beside the shortest, no more than half the `operations`."""
    shortest = int(lengths[0])
    return longest_of(lengths, lambda longest: _price(card, (longest, shortest)) <= operations / 2) or shortest


def longest_of(lengths: Lengths, possible: Callable[[int], bool]) -> int:
    """Return the longest of ascending lengths that is still possible, 0 for none."""
    place = bisect_left(lengths, True, key=lambda length: not possible(int(length)))
    return int(lengths[place - 1]) if place else 0


def _price(card: ModelCard, lengths: Sequence[int]) -> float:
    """The operations of rows of these lengths, the longest first, one by one and, where they are padded, together."""
    if (cost := cost_of(card.config, card.network_kind)) is None:
        return 0.0
    padded = 0.0 if card.tight else cost.of(len(lengths), len(lengths) * lengths[0])
    return padded + sum(cost.of(1, length) for length in lengths)


def sample(job: Job, card: ModelCard, most: int, operations: float) -> list[Ids]:
    """Choose rows of a pass of at most `most` tokens and of different lengths, the longest first: as many as cost no
    more `operations`, and at least its longest and its shortest."""
    every = _candidates(job)
    lengths = job.tokens.lengths(card.max_tokens, every)
    fit = (lengths > 0) & (lengths <= most)
    return job.ids(every[fit][spread(lengths[fit], card, ROWS, operations, least=2)]) if fit.any() else []


def spread(lengths: Lengths, card: ModelCard, most: int, operations: float, *, least: int = 1) -> Rows:
    """Choose the places of up to `most` rows of different lengths, the longest first: as many as cost no more
    `operations`, and at the `least` so many."""
    order = np.argsort(lengths, kind="stable")
    for count in range(most, 0, -1):
        places: Rows = order[np.unique(np.linspace(0, len(order) - 1, count).round().astype(int))[::-1]]
        if count <= least or _price(card, lengths[places].tolist()) <= operations:
            break
    return places


def left_out(job: Job, rows: Sequence[Ids]) -> str:
    """Say how long the rows are that were too costly to compare, where there are any."""
    longest = int(lengths_of(job)[-1])
    return f"texts of {len(rows[0]) + 1:,} to {longest:,} tokens were not compared" if longest > len(rows[0]) else ""
