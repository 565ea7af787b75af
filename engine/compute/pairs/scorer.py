"""Scores pairs with a cross-encoder: jobs of a model that stays until it is closed.

Nothing is dropped: a score that cannot be had is an error.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.context import Granted
from interlock.engine.compute.held import HeldModel
from interlock.engine.compute.job import Job, in_memory
from interlock.engine.compute.pairs.rows import Pair, pair_law, rows_of_network, rows_of_texts, scorer_for
from interlock.engine.compute.parts.part import NOT_FINITE
from interlock.engine.errors import InterlockError, NoDeviceError
from interlock.engine.models.card import ModelCard
from interlock.engine.models.scoring import Activation
from interlock.engine.record.events import PairsPlanned, PairsScored, RowParked
from interlock.engine.record.facts import joined
from interlock.engine.record.words import several

Scores = npt.NDArray[np.float32]
Progress = Callable[[int], object]
"""Takes how many pairs have their scores."""


class Scorer(HeldModel, AbstractContextManager["Scorer"]):
    """A cross-encoder; a context manager, which takes it off its device."""

    def __init__(self, card: ModelCard, activation: Activation, on: Granted) -> None:
        super().__init__(card, on, encoders=partial(scorer_for, activation), laws=pair_law)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close("done" if kind is None else f"ended by {kind.__name__}")

    def check(self) -> None:
        """Raise what keeps it from scoring any pair; nothing is leased."""
        self.choose(self._job([("a query", "a text")]))

    def _job(self, pairs: Sequence[Pair]) -> Job:
        """Tokenise pairs and lay out their batches. Of a model that is not packed this reads the weights: only with
        them sentence-transformers tells how its pairs are put together."""
        card = self.card
        rows = rows_of_texts(card, pairs) if card.packed else rows_of_network(self.network(), card, pairs)
        return in_memory(card, rows, "pairs")

    def score(self, pairs: Sequence[Pair], progress: Progress = lambda _: None) -> Scores:
        """Compute the score of each pair [len(pairs)], in their order.

        Raises InterlockError for a score that is not finite on the CPU either, UnavailableError where the model fits
        nowhere, NoDeviceError for a pair that fits nowhere.
        """
        if not pairs:
            return np.empty(0, np.float32)
        began, job = time.monotonic(), self._job(pairs)
        self._emit(told := _told(job))
        results = self.compute(job, progress)
        if parked := [row for result in results for row in result.parked]:
            raise self._lacking(parked, len(pairs))
        parts = [part for result in results for part in result.parts]
        self._emit(
            PairsScored(
                model=told.model,
                pairs=told.pairs,
                tokens=told.tokens,
                forwards=sum(result.forwards for result in results),
                device=joined(part.device for part in parts),
                dtype=joined(part.dtype for part in parts),
                seconds=round(time.monotonic() - began, 3),
            )
        )
        scores: Scores = job.gathered().parts["scores"].vectors[:, 0]
        return scores

    def _lacking(self, parked: Sequence[RowParked], pairs: int) -> InterlockError:
        """The error of pairs without a score."""
        key = self.card.key
        if other := [row.reason for row in parked if row.reason != NOT_FINITE]:
            return NoDeviceError(f"model {key} cannot score a pair: {other[0]}")
        first = 1 + min(row.row for row in parked)
        return InterlockError(
            f"model {key}: {len(parked)} of {several(pairs, 'score')} not finite, the first of pair {first}: its "
            "weights are damaged or it does not suit these texts; use another reranker"
        )


def _told(job: Job) -> PairsPlanned:
    """Say what is about to be scored."""
    layout, card = job.layout, job.card
    cut = job.tokens.truncated(card.max_tokens)
    return PairsPlanned(
        model=card.key,
        pairs=len(cut),
        batches=len(layout.batches),
        tokens=sum(batch.tokens for batch in layout.batches),
        padding=0 if card.tight else sum(batch.padding for batch in layout.batches),
        truncated=int((cut > 0).sum()),
        truncated_tokens=int(cut.sum()),
    )
