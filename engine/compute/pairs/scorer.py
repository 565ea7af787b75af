"""Scores pairs with a cross-encoder, wherever it sits.

What does not fit at once is halved, and what does not fit alone moves with the model to the CPU, in float32. Nothing is
dropped: a score that cannot be had is an error.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from traceback import clear_frames
from typing import Self

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.batches import BatchPlan, plan
from interlock.engine.compute.encoder import computed_tokens
from interlock.engine.compute.instance import Shortfall
from interlock.engine.compute.ladder import Rung
from interlock.engine.compute.pairs.rows import Pair, PairRow, Scores
from interlock.engine.compute.pairs.seat import ON_CPU, Place, Seat
from interlock.engine.errors import InterlockError, NoDeviceError
from interlock.engine.gpu.device_errors import Trouble, classify, summed_up
from interlock.engine.record.events import Emit, PairsPlanned, PairsScored
from interlock.engine.record.words import distinct_sizes, several

Rows = npt.NDArray[np.int64]
Progress = Callable[[int], object]
"""Takes how many pairs have their scores."""


@dataclass(frozen=True)
class PairPlan:
    """Pairs as rows, and the batches that they go through in; `needed` is the most that a forward is predicted to take
    beside the weights, in bytes, `weights` what those take."""

    rows: Sequence[PairRow]
    batches: BatchPlan
    device: str
    weights: int
    needed: int

    @property
    def truncated(self) -> int:
        """Count the pairs of which something is cut off."""
        return sum(row.full > len(row) for row in self.rows)

    @property
    def truncated_tokens(self) -> int:
        return sum(row.full - len(row) for row in self.rows)


@dataclass
class _Tally:
    """What one call of `score` took."""

    forwards: int = 0
    tokens: int = 0
    devices: set[str] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)


class Scorer:
    """A cross-encoder that takes its seat when it is first needed, and leaves it when it is closed."""

    def __init__(self, seat: Seat, emit: Emit) -> None:
        self._seat = seat
        self._emit = emit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close("done" if kind is None else f"ended by {kind.__name__}")

    def close(self, cause: str = "done") -> None:
        """Take the model off its device and end the lease."""
        self._seat.leave(cause)

    def plan(self, pairs: Sequence[Pair]) -> PairPlan:
        """Tokenise pairs and lay out their batches, without a lease."""
        seat, rows = self._seat, self._seat.rows(pairs)
        device, _ = seat.choose(rows)
        lengths = np.array([len(row) for row in rows], np.int64)
        batches = plan(np.arange(len(rows)), lengths, seat.card.batch_tokens)
        law = seat.law(device, rows)
        needs = [seat.needed(device, law, [len(rows[row]) for row in batch.rows]) for batch in batches.batches]
        return PairPlan(rows, batches, device.name, law.weights, max(needs, default=0))

    def score(self, pairs: Sequence[Pair], progress: Progress = lambda _: None) -> Scores:
        """Compute the score of each pair [len(pairs)], in their order.

        Raises InterlockError for a score that is not finite on the CPU either, UnavailableError where the model fits
        nowhere.
        """
        if not pairs:
            return np.empty(0, np.float32)
        try:
            return self._scored(pairs, progress)
        except BaseException as error:
            clear_frames(error.__traceback__)  # they hold the network, and who catches it wants to unload that
            raise

    def _scored(self, pairs: Sequence[Pair], progress: Progress) -> Scores:
        began, tally, planned = time.monotonic(), _Tally(), self.plan(pairs)
        card, rows, scores = self._seat.card, planned.rows, np.full(len(pairs), np.nan, np.float32)
        self._emit(
            PairsPlanned(
                model=card.key,
                pairs=len(rows),
                batches=len(planned.batches.batches),
                tokens=planned.batches.tokens,
                padding=planned.batches.padding if not card.packed else 0,
                truncated=planned.truncated,
                truncated_tokens=planned.truncated_tokens,
            )
        )
        done = 0
        for batch in planned.batches.batches:
            self._compute(batch.rows, rows, scores, tally)
            progress(done := done + len(batch.rows))
        self._repair(rows, scores, tally)
        self._emit(
            PairsScored(
                model=card.key,
                pairs=len(rows),
                tokens=tally.tokens,
                forwards=tally.forwards,
                device=",".join(sorted(tally.devices)),
                dtype=",".join(sorted(tally.dtypes)),
                seconds=round(time.monotonic() - began, 3),
            )
        )
        return scores

    def _repair(self, rows: Sequence[PairRow], scores: Scores, tally: _Tally) -> None:
        """Compute what is not finite once more on the CPU; there it is an error."""
        seat, bad = self._seat, np.flatnonzero(~np.isfinite(scores))
        if len(bad) and seat.place and seat.falls_back(seat.place.device):
            cause = f"{several(len(bad), 'score')} not finite in {seat.place.card.dtype}"
            seat.move_to_host([rows[row] for row in bad.tolist()], cause)
            self._compute(bad, rows, scores, tally)
            bad = np.flatnonzero(~np.isfinite(scores))
        if len(bad):
            raise InterlockError(
                f"model {seat.card.key}: {len(bad)} of {several(len(scores), 'score')} not finite, the first of pair "
                f"{bad[0] + 1}: its weights are damaged or it does not suit these texts; use another reranker"
            )

    def _compute(self, batch: Rows, rows: Sequence[PairRow], scores: Scores, tally: _Tally) -> None:
        """Score one batch, in as many pieces as memory asks for."""
        seat, pieces = self._seat, deque([batch])
        while pieces:
            piece = pieces.popleft()
            pairs = [rows[row] for row in piece]
            place = seat.taken(pairs)
            done = self._attempt(place, pairs, tally)
            if not isinstance(done, Shortfall):
                scores[piece] = done
                continue
            short, device, cause = done, place.device, _cause(done)
            del place  # nothing but the seat may hold what is about to be unloaded
            if short.trouble is Trouble.MEMORY and len(piece) > 1:
                half = len(piece) // 2
                pieces.extendleft([piece[half:], piece[:half]])
                action = f"halved to {half} and {len(piece) - half} pairs"
                seat.tell_mitigated(Rung.SPLIT, cause, action, len(piece), device, short)
            elif not seat.falls_back(device):
                raise NoDeviceError(f"model {seat.card.key} cannot score a pair on {device.name}: {cause}")
            else:
                seat.tell_mitigated(Rung.CPU, cause, ON_CPU, len(piece), device, short)
                seat.move_to_host(pairs, cause)
                pieces.appendleft(piece)

    def _attempt(self, place: Place, rows: Sequence[PairRow], tally: _Tally) -> Scores | Shortfall:
        """Run the network; what is wrong comes back as data, when what the forward held is gone."""
        seat, device, lengths = self._seat, place.device, [len(row) for row in rows]
        law, lessor, known = seat.law(device, rows), seat.lessor, seat.calibration(device)
        needed, room = seat.needed(device, law, lengths), seat.room(place, law)
        if needed > room and len(rows) > 1:
            return Shortfall(Trouble.MEMORY, "", needed, room, 0.0, foreseen=True)
        began = time.monotonic()
        try:
            with lessor.measuring(device) as measure, device.computing():
                scores = place.scorer.score(rows)
        except Exception as error:
            trouble = classify(error)
            if trouble is None:
                raise
            if trouble is Trouble.LOST:
                lessor.lose(device, str(error))
            message = summed_up(error)
        else:
            tally.forwards, tally.tokens = tally.forwards + 1, tally.tokens + sum(lengths)
            tally.devices.add(device.name)
            tally.dtypes.add(place.card.dtype)
            if measure.activations is not None and tally.forwards > 1:  # the first one takes workspaces that stay
                tokens = computed_tokens(lengths, padded=place.scorer.padded)
                lawful = law.activations(tokens, max(lengths))
                seat.learn(device, known.observed(lawful, measure.activations))
            return scores
        seat.learn(device, known.strained())
        device.reclaim()
        return Shortfall(trouble, message, needed, seat.room(place, law), time.monotonic() - began)


def _cause(short: Shortfall) -> str:
    if short.foreseen:
        return "needs {}, {} free".format(*distinct_sizes(short.predicted, short.room))
    return short.message
