"""Rows of weightless networks: the vectors of a rehearsal."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

from interlock.engine.compute.encoder import Ids, terms_of
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.parts.tokens import TokenRows
from interlock.engine.models.card import ModelCard
from interlock.engine.models.weightless import CONTENTLESS, vectors_of
from interlock.engine.record.facts import TokenForm


class WeightlessRows:
    """Has a weightless network compute rows, waits as long as `pace` says, and makes up their vectors."""

    def __init__(
        self,
        card: ModelCard,
        network: nn.Module,
        pace: Callable[[Sequence[int]], object] = lambda _: None,
        spoilt: int = -1,
    ) -> None:
        """Give a row that holds the id `spoilt` a vector that is not finite, wherever it is computed."""
        self.padded = not card.packed
        self._card = card
        self._network = network
        self._pace = pace
        self._spoilt = spoilt

    @torch.inference_mode()
    def encode(self, rows: Sequence[Ids]) -> Outputs:
        """Make up what the card's model gives of rows; no two different rows have the same vectors."""
        lengths = [len(row) for row in rows]
        hidden = self._network(lengths)
        CONTENTLESS.turn.release()  # other devices compute while time passes on this one, whose memory stays taken
        try:
            self._pace(lengths)
        finally:
            CONTENTLESS.turn.acquire()
        del hidden
        spoilt, outputs, by_token = [self._spoilt in row for row in rows], self._card.outputs, self._card.by_token
        vectors = vectors_of(rows, self._card.dim) if self._card.kind == "dense" else vectors_of(rows, 1)
        vectors[spoilt] = np.nan
        weights = np.where(np.repeat(spoilt, lengths), np.nan, 1).astype(np.float32)
        return Outputs(
            vectors if "dense" in outputs else None,
            terms_of(rows, weights, by_token.unweighed or ()) if "sparse" in outputs else None,
            _tokens(rows, by_token.vectors) if by_token.vectors else None,
        )


def _tokens(rows: Sequence[Ids], form: TokenForm) -> TokenRows:
    """One vector for each row: that its tokens have any is all that a rehearsal shows."""
    return TokenRows.from_vectors(vectors_of(rows, form.dim), np.arange(len(rows) + 1), form.precision)
