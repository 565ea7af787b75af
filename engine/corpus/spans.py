"""How a text that is longer than its model's limit becomes spans: a pure function of its number of tokens.

The first span is what the model would be given of a text that is cut off. Each further one repeats the last tokens of
the one before, so that no sentence is seen by halves alone, and every one has the special tokens and the prompt.
"""

from dataclasses import dataclass

import numpy as np

from interlock.engine.corpus.ragged import Ints, owners_of, places_of


@dataclass(frozen=True)
class Spans:
    """The spans after the first of some texts, longest first; int64 [n] each."""

    texts: Ints
    """The place of each one's text among the texts."""
    numbers: Ints
    """Its place among the further spans of its text, from 0."""
    new: Ints
    """The tokens that no span of its text before it has."""


NO_SPANS = Spans(*[np.empty(0, np.int64)] * 3)


@dataclass(frozen=True)
class Splitting:
    """How long the spans of a text are, in tokens.

    `room` tokens of the text are in a full span beside the `frame` of special tokens and prompt; `overlap` of them are
    in the span before too.
    """

    room: int
    overlap: int
    frame: int

    @classmethod
    def of(cls, limit: int, frame: int, share: float) -> "Splitting":
        """Return the spans of at most `limit` tokens of which the text's share this much; `room` may be 0 or less."""
        room = limit - frame
        return cls(room, int(room * share), frame)

    @property
    def step(self) -> int:
        """The tokens that a full span adds to those before it."""
        return self.room - self.overlap

    @property
    def repeated(self) -> int:
        """The tokens of a further span that are computed once more."""
        return self.frame + self.overlap

    def counts(self, over: Ints) -> Ints:
        """Count the further spans of texts that are longer than the limit by `over` [texts] tokens."""
        return -(-over // self.step)

    def cost(self, over: Ints) -> int:
        """Count the tokens that all further spans of such texts have."""
        return int(over.sum() + self.counts(over).sum() * self.repeated)

    def lengths(self, over: Ints) -> Ints:
        """The tokens of each further span of such texts, longest first."""
        return self.repeated + self.further(over).new

    def further(self, over: Ints) -> Spans:
        """List the further spans of such texts."""
        counts = self.counts(over)
        texts = owners_of(counts)
        numbers = places_of(np.zeros_like(counts), counts)
        new = np.minimum(self.step, over[texts] - numbers * self.step)
        order = np.argsort(-new, kind="stable")
        return Spans(texts[order], numbers[order], new[order])
