"""The order in which the cells (model_pass, batch_index) of a run are computed: pure, and complete.

There is one grid; a schedule only walks it. `exclusive` lets a model keep the devices until it has seen
every batch of every collection, so that each model is attached once in a run.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """What a model does under one lease: the batches left of its pass, in order."""

    model_pass: int
    batches: Sequence[int]


def exclusive(batches_of: Sequence[int], done: Sequence[Collection[int]]) -> Iterator[Turn]:
    """One turn for each pass that has cells left; `batches_of[k]` is how many batches pass k has in all,
    `done[k]` those already committed."""
    for model_pass, count in enumerate(batches_of):
        left = [batch for batch in range(count) if batch not in done[model_pass]]
        if left:
            yield Turn(model_pass, left)
