"""How a text's tokens become one: their hidden states a vector, and their logits weights of terms.

Of terms as sentence-transformers' SpladePooling does it: the largest logit of each is taken before the activation,
which rises with it and is then computed once a text and not once a token; sums need it for each token.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from interlock.engine.models.networks.kernels import PackedBatch


def _first(hidden: Tensor, batch: PackedBatch) -> Tensor:
    return hidden[batch.starts[:-1]].float()


def _last(hidden: Tensor, batch: PackedBatch) -> Tensor:
    return hidden[batch.starts[1:] - 1].float()


def _mean(hidden: Tensor, batch: PackedBatch) -> Tensor:
    # unsafe: it would look at the offsets from the host, and wait for the device to tell them
    return torch.segment_reduce(hidden.float(), "mean", offsets=batch.starts, axis=0, unsafe=True)


POOLINGS: Mapping[str, Callable[[Tensor, PackedBatch], Tensor]] = {"cls": _first, "lasttoken": _last, "mean": _mean}
"""By sentence-transformers' name what makes one vector in float32 [rows, width] for each row of a batch, of its tokens'
[T, width]. Rows that are pooled in another way are padded."""
Strategy = Literal["max", "sum"]
Activation = Literal["relu", "log1p_relu"]


@dataclass(frozen=True)
class TermPooling:
    """One way of pooling: log1p(relu(logit)), or log1p of that, by its largest or its sum over the tokens of a text.

    `most` terms of each text are kept, those that weigh most; None keeps all.
    """

    strategy: Strategy = "max"
    """`sum` as in arxiv.org/abs/2107.05720, `max` as in arxiv.org/abs/2109.10086."""
    activation: Activation = "relu"
    """`log1p_relu` as in arxiv.org/abs/2504.14839."""
    most: int | None = None

    def held(self, dtype: torch.dtype) -> torch.dtype:
        """Return the precision of what tokens have together, where their logits are in `dtype`: no logit is rounded
        for being the largest, but weights and sums would be."""
        return dtype if self.strategy == "max" else torch.float32

    def prepare(self, logits: Tensor) -> Tensor:
        """Bring the logits of some tokens [n, words], in place unless their precision is another, to what `pool` and
        `join` take."""
        values = logits.to(self.held(logits.dtype))
        return values if self.strategy == "max" else self._activated(values)

    def pool(self, values: Tensor, out: Tensor) -> None:
        """Write into `out` [words] what the tokens of a text, or of a part of it, have together."""
        if self.strategy == "max":
            torch.amax(values, 0, out=out)
        else:
            torch.sum(values, 0, out=out)

    def join(self, here: Tensor, more: Tensor) -> None:
        """Add to `here` what another part of the same text has."""
        if self.strategy == "max":
            torch.maximum(here, more, out=here)
        else:
            here.add_(more)

    def finish(self, joined: Tensor) -> Tensor:
        """Turn what whole texts have together [n, words], in place, into weights, of which `most` are to be kept."""
        if self.strategy == "max":
            self._activated(joined)
        return joined

    def _activated(self, values: Tensor) -> Tensor:
        values.relu_().log1p_()
        return values.log1p_() if self.activation == "log1p_relu" else values
