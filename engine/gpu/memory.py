"""The memory law: how much a forward pass takes, before it is run, and what measuring teaches about it.

`peak(tokens, longest) = weights + constant + line * longest + square * longest^2 + tokens * max(a_i + b_i * longest)`:
two phases of a layer compete, attention and feed-forward, each affine in the longest row; nothing depends on the depth,
because inference keeps no graph. Of a model that weighs terms the head competes with them, which takes a part of the
tokens at a time. `tokens` counts padding. All of it is pure: `fit` makes a `Law` of traced forwards,
measured batches make a `Calibration`.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

HEAP_FACTOR = 4.5
"""Resident memory for each byte of activations on a CPU: what the C library's heap and the kernels keep beside what is
in use. Measured, float32: 1.8 for rows of 250 tokens, 4.4 for rows of 26."""

WINDOW = 64
FIRST_MARGIN, LEAST_MARGIN, MOST_MARGIN = 0.05, 0.01, 0.5
EASING = (LEAST_MARGIN / FIRST_MARGIN) ** (1 / WINDOW)
"""What a clean batch leaves of the margin: `WINDOW` of them lead from the first to the least."""
EXACT = 0.0001
"""A law that explains every sample to this share of it needs no further terms."""
GRAIN = 8 << 10
"""Bytes of a sample that say nothing: an allocator rounds every tensor up to 512."""
UNBOUNDED = 1 << 40
"""Tokens that no forward has."""


@dataclass(frozen=True)
class HeadLaw:
    """Bytes of what comes after the layers: a constant, some for each token, and `part` for each of the first `tokens`
    of them, which are as many as it computes at a time."""

    constant: int
    token: float
    part: float
    tokens: int

    def activations(self, tokens: int) -> int:
        """Predict the bytes beside the weights for `tokens` tokens."""
        return math.ceil(self.constant + self.token * tokens + self.part * min(tokens, self.tokens))


@dataclass(frozen=True)
class Law:
    """Bytes of one model in one precision: weights, a constant, and activations by tokens and longest row.

    `phases` are pairs (bytes for each token, bytes for each token and each token of the longest row); `square` is
    bytes for each token of the longest row squared, whatever the batch, and `line` for each token of it. `slots` is
    what the weights take on the device when layers are streamed: 0 where the model cannot be. `prelude` is the law of
    what is made and gone before the layers begin, such as masks: of a few long rows it can be the peak. `bare` is the
    law of rows of one length, where they are computed without the mask that this law counts. `beyond` is the law of
    rows of which the longest has more than `reach` tokens: where a window cuts them. Rows are computed as long
    as the longest, rounded up to a multiple of `step`. `head` is the law of what comes after the layers, where that can
    be the peak.
    """

    weights: int
    constant: int
    phases: tuple[tuple[float, float], ...]
    square: float = 0.0
    slots: int = 0
    line: float = 0.0
    prelude: "Law | None" = None
    bare: "Law | None" = None
    step: int = 1
    reach: int = 0
    beyond: "Law | None" = None
    aligned: "Law | None" = None
    head: HeadLaw | None = None

    def activations(self, tokens: int, longest: int) -> int:
        """Predict the bytes beside the weights for `tokens` tokens, padding included, in rows of up to `longest`."""
        if self.beyond and longest > self.reach:
            whole = self.aligned if self.aligned and longest % self.aligned.step == 0 else self.beyond
            return whole.activations(tokens, longest)
        longest += -longest % self.step
        steepest = max(fixed + slope * longest for fixed, slope in self.phases)
        layers = math.ceil(self.constant + (self.line + self.square * longest) * longest + tokens * steepest)
        others = [self.prelude.activations(tokens, longest)] if self.prelude else []
        return max(layers, *others, self.head.activations(tokens) if self.head else 0)

    def peak(self, tokens: int, longest: int) -> int:
        """Predict the bytes of weights and activations together."""
        return self.weights + self.activations(tokens, longest)

    def for_rows(self, lengths: Sequence[int]) -> "Law":
        """Choose the law of a forward of rows of these lengths: this one, or where they are all equal the bare one."""
        return self.bare if self.bare and len(set(lengths)) == 1 else self


@dataclass(frozen=True)
class Calibration:
    """What measured batches say of a law: a `scale` on its activations, and a `margin` for what still varies.

    The margin begins at 5 %, falls towards 1 % while batches are clean and doubles when the allocator struggled;
    `residuals` are measured / predicted of the last batches, with the scale of their time.
    """

    scale: float = 1.0
    margin: float = FIRST_MARGIN
    batches: int = 0
    residuals: tuple[float, ...] = ()

    def activations(self, law: Law, tokens: int, longest: int) -> int:
        """Predict the bytes beside the weights that a forward must be given: the law, corrected, with its margin."""
        return math.ceil(law.activations(tokens, longest) * self.scale * (1 + self.margin))

    def most_tokens(self, law: Law, longest: int, room: int) -> int:
        """Return the most tokens, padding included, whose activations fit `room` bytes; 0 where not one does."""
        return bisect_right(range(1, UNBOUNDED), room, key=lambda tokens: self.activations(law, tokens, longest))

    def observed(self, predicted: int, measured: int) -> "Calibration":
        """Take in one clean batch more: `predicted` by the law alone, `measured` activations of it, in bytes.

        The first batch sets the scale; after it only what exceeds the corrected law moves it, up to what covers it.
        """
        ratio = max(1, measured) / max(1, predicted)
        residual = ratio / self.scale
        scale = ratio if not self.batches else max(self.scale, ratio)
        residuals = (*self.residuals, residual)[-WINDOW:] if self.batches else ()
        worst = max(residuals, default=1.0) - 1
        margin = min(MOST_MARGIN, max(LEAST_MARGIN, worst, self.margin * EASING))
        return Calibration(scale, margin, self.batches + 1, residuals)

    def strained(self) -> "Calibration":
        """Double the margin, after an out-of-memory error or allocator retries."""
        return replace(self, margin=min(MOST_MARGIN, 2 * self.margin))


class Sample(NamedTuple):
    """A traced forward: its tokens, padding included, its longest row, and the bytes beside the weights at its peak."""

    tokens: int
    longest: int
    size: int


def fit(samples: Sequence[Sample]) -> Law:
    """Find the law without weights that explains the samples with the least relative error.

    Of the laws that explain all of them exactly the one with the fewest terms is taken. Two phases are told apart
    where samples lie on both sides of their crossing, at least two lengths of rows on each; a prelude is looked for in
    samples of one and of two rows.
    """

    def split_at(early: list[Sample]) -> Law:
        # A sample tells one peak, the prelude's or the layers': taken for the other it would bend the other's fit.
        late = [sample for sample in samples if sample not in early]
        return replace(_fewest(_LAYERS, late), prelude=_fewest(_PRELUDES, early) if early else None)

    return _first_exact(map(split_at, _preludes(samples)), samples)


def worst_error(law: Law, samples: Iterable[Sample]) -> float:
    """Return the largest relative difference between the law and a sample; what is but rounding is none."""
    differences = ((abs(law.activations(tokens, longest) - size), size) for tokens, longest, size in samples)
    return max((max(0, difference - GRAIN) / size for difference, size in differences), default=0.0)


def _preludes(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    """Samples that may have had their peak before the layers, fewest first: the longest of one row, and of two."""
    longest_first = sorted(samples, key=lambda sample: -sample.longest)
    one, two = ([sample for sample in longest_first if sample.tokens // sample.longest == rows] for rows in (1, 2))
    # A prelude's square counts most beside few tokens, so that never more samples of two rows than of one show it.
    counts = product(range(len(one) + 1), range(len(two) + 1))
    for ones, twos in sorted((pair for pair in counts if pair[1] <= pair[0]), key=sum):
        yield one[:ones] + two[:twos]


class _Form(NamedTuple):
    """Which terms a law has."""

    constant: bool = False
    line: bool = False
    square: bool = False
    fixed: bool = False
    slope: bool = False
    phases: int = 1


_LAYERS = [
    _Form(True, line, square, True, True, phases)
    for phases in (1, 2)
    for square in (False, True)
    for line in (False, True)
]
_PRELUDES = [
    _Form(square=True),
    _Form(square=True, fixed=True),
    _Form(square=True, fixed=True, slope=True),
    _Form(square=True, fixed=True, slope=True, line=True),
]


def _fewest(forms: Sequence[_Form], samples: Sequence[Sample]) -> Law:
    """The law of the first form that explains the samples exactly, else the one that does it best."""
    # A phase is a line over the longest row, and one length on its side of the crossing would not tell its slope.
    crossings = sorted({sample.longest for sample in samples})[2:-1]
    laws = ([_solved(form, at, samples) for at in (crossings if form.phases == 2 else [0])] for form in forms)
    nearest = (min(ones, key=lambda law: worst_error(law, samples)) for ones in laws if ones)
    return _first_exact(nearest, samples)


def _first_exact(laws: Iterable[Law], samples: Sequence[Sample]) -> Law:
    """The first law that explains the samples exactly, else the one that does it best."""
    best, least = Law(0, 0, ((0.0, 0.0),)), math.inf
    for law in laws:
        error = worst_error(law, samples)
        if error < least:
            best, least = law, error
        if least <= EXACT:
            break
    return best


def _solved(form: _Form, crossing: int, samples: Sequence[Sample]) -> Law:
    """The law of one form by least squares of the relative error, without negative terms."""
    columns = np.array([_row(form, crossing, sample) for sample in samples], np.float64)
    sizes = np.array([sample.size for sample in samples], np.float64)
    shares = sizes + 64 * GRAIN  # small samples are mostly rounding
    constant, line, square, *numbers = _without_negative(columns / shares[:, None], sizes / shares)
    phases = ((numbers[0], numbers[1]), (numbers[2], numbers[3]))[: form.phases]
    return Law(0, math.ceil(constant), phases, square=square, line=line)


def _row(form: _Form, crossing: int, sample: Sample) -> list[int]:
    """What each term multiplies: constant, line, square, and two numbers for each phase."""
    tokens, longest = sample.tokens, sample.longest
    phase, none = [tokens * form.fixed, tokens * longest * form.slope], [0, 0]
    phases = none + phase if 0 < crossing <= longest else phase + none
    return [1 * form.constant, longest * form.line, longest**2 * form.square, *phases]


def _without_negative(columns: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]) -> list[float]:
    """What the columns must be multiplied by to come nearest to what is wanted; what would be negative is 0."""
    scales = np.linalg.norm(columns, axis=0)
    factors, kept = np.zeros(len(scales)), np.flatnonzero(scales)
    while len(kept):
        solved = np.linalg.lstsq(columns[:, kept] / scales[kept], wanted, rcond=None)[0]
        if solved.min() >= 0:
            factors[kept] = solved / scales[kept]
            break
        kept = np.delete(kept, solved.argmin())  # no term is negative memory: drop the worst, solve for the rest
    return [float(factor) for factor in factors]
