"""From the spans of split texts to one row a text: what `--long split` makes of what a model gave.

The rows of a batch stand first, each the first span of its text, and the further spans after them. A text of one span
keeps what the model gave of it to the last bit; one that lacks a span is parked, since part of it would be missing.
"""

import numpy as np

from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.compute.parts.files import Mask
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.compute.parts.tokens import TokenRows
from interlock.engine.corpus.ragged import Ints, starts_of
from interlock.engine.corpus.spans import Spans
from interlock.engine.models.card import ModelCard


def pool_spans(outputs: Outputs, spans: Spans, room: int, card: ModelCard) -> Outputs:
    """Pool every part of what `outputs` [rows + spans] has: vectors by their mean at unit length, each counting by the
    tokens that no span before it has, which are `room` of the first; terms by their largest weight, of which as many
    are kept as the model keeps of a text; token vectors one span after the other."""
    if not len(spans.texts):
        return outputs
    rows = len(outputs) - len(spans.texts)
    texts = np.concatenate([np.arange(rows), spans.texts])
    return Outputs(
        None if outputs.dense is None else _mean(outputs.dense, spans, room),
        None if outputs.terms is None else _largest(outputs.terms, texts, rows).heaviest(card.terms.most, card.words),
        None if outputs.tokens is None else _one_after_the_other(outputs.tokens, spans, texts, rows),
    )


def _mean(vectors: Vectors, spans: Spans, room: int) -> Vectors:
    rows = len(vectors) - len(spans.texts)
    split, owners = np.unique(spans.texts, return_inverse=True)
    sums = vectors[split].astype(np.float64) * room
    np.add.at(sums, owners, vectors[rows:] * spans.new[:, None].astype(np.float64))
    means = vectors[:rows].copy()
    with np.errstate(divide="ignore", invalid="ignore"):  # what cancels out is no vector
        means[split] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    return means


def _largest(terms: SparseRows, texts: Ints, rows: int) -> SparseRows:
    owners = np.repeat(texts, terms.counts)
    return SparseRows.largest(owners, terms.indices, terms.values, _parked(terms.parked, texts, rows))


def _one_after_the_other(tokens: TokenRows, spans: Spans, texts: Ints, rows: int) -> TokenRows:
    parked = _parked(tokens.parked, texts, rows)
    numbers = np.concatenate([np.full(rows, -1), spans.numbers])
    order = np.lexsort((numbers, texts))
    there = tokens.taken(order[~parked[texts[order]]])
    counts = np.bincount(texts, weights=tokens.counts, minlength=rows).astype(np.int64)
    return TokenRows(starts_of(np.where(parked, 0, counts)), there.records, parked)


def _parked(parked: Mask, texts: Ints, rows: int) -> Mask:
    """Which texts lack a span."""
    lacking: Mask = np.bincount(texts, weights=parked, minlength=rows) > 0
    return lacking
