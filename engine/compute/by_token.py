"""What comes of the tokens of packed rows: weights of terms, as BGE-M3 has them, and vectors of single tokens."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.compute.parts.tokens import TokenRows, pool_tokens
from interlock.engine.corpus.ragged import Ints, owners_of, places_of, starts_of
from interlock.engine.models.card import ModelCard
from interlock.engine.models.token_heads import KeepVectors, unit_states
from interlock.engine.record.facts import TokenForm

Ids = npt.NDArray[np.int64]


def lexical_terms(card: ModelCard, heads: nn.ModuleDict) -> "LexicalTerms | None":
    """Return what weighs the terms of a card's rows by their tokens, where its pass does."""
    unweighed = card.by_token.unweighed
    return None if unweighed is None else LexicalTerms(heads["sparse_linear"], unweighed)


def late_vectors(card: ModelCard, heads: nn.ModuleDict) -> "LateVectors | None":
    """Return what keeps the vectors of the tokens of a card's rows, where its pass does."""
    form = card.by_token.vectors
    give = heads["colbert_linear"] if "colbert_linear" in heads else unit_states  # noqa: SIM401
    return None if form is None else LateVectors(give, form, card.by_token.around)


class LexicalTerms:
    """Weighs the terms of rows by the largest weight of their tokens."""

    def __init__(self, weigh: Callable[[Tensor], Tensor], unweighed: Sequence[int]) -> None:
        """`weigh` turns states [T, width] into weights [T]; the ids of `unweighed` have none."""
        self._weigh = weigh
        self._unweighed = unweighed

    def __call__(self, hidden: Tensor, rows: Sequence[Ids]) -> SparseRows:
        """Weigh the terms of `rows`, whose tokens have the states `hidden` [T, width]."""
        return terms_of(rows, self._weigh(hidden).cpu().numpy(), self._unweighed)


def terms_of(rows: Sequence[Ids], weights: Vectors, unweighed: Sequence[int]) -> SparseRows:
    """Give each id of a row the largest of the weights [T] of its tokens; ids of `unweighed` and weights of 0 are left
    out, and a row with a weight that is not finite is parked."""
    owners, ids = owners_of([len(row) for row in rows]), np.concatenate(rows)
    parked = np.zeros(len(rows), np.bool_)
    parked[owners[~np.isfinite(weights)]] = True
    kept = (weights > 0) & ~np.isin(ids, unweighed)
    return SparseRows.largest(owners[kept], ids[kept], weights[kept], parked)


class LateVectors:
    """Keeps the vectors of the tokens of rows, as a model's `TokenForm` says."""

    def __init__(self, give: Callable[[Tensor, KeepVectors], None], form: TokenForm, around: tuple[int, int]) -> None:
        """`give` turns states [T, width] into unit vectors, a part at a time; `around` says how many tokens at the
        start and at the end of a row have none."""
        self._give = give
        self._form = form
        self._around = around

    def __call__(self, hidden: Tensor, rows: Sequence[Ids]) -> TokenRows:
        """Keep the vectors of the tokens of `rows`, whose states are `hidden` [T, width]."""
        inside, counts = self._inside([len(row) for row in rows])
        places = starts_of(inside.astype(np.int64))
        vectors = np.empty((int(places[-1]), self._form.dim), np.float32)

        def keep(start: int, part: Tensor) -> None:
            stop = start + len(part)
            vectors[places[start] : places[stop]] = part.cpu().numpy()[inside[start:stop]]

        self._give(hidden, keep)
        return TokenRows.from_vectors(
            *pool_tokens(vectors, starts_of(counts), self._form.pooling), self._form.precision
        )

    def _inside(self, lengths: Sequence[int]) -> tuple[npt.NDArray[np.bool_], Ints]:
        """Which tokens [T] have a vector, and how many of each row [rows]."""
        before, after = self._around
        whole = np.asarray(lengths, np.int64)
        places = places_of(np.zeros_like(whole), whole)
        inside = (places >= before) & (places < np.repeat(whole, whole) - after)
        return inside, np.maximum(whole - before - after, 0)
