"""Late interaction: how well the tokens of a text answer those of a query (Khattab and Zaharia 2020, arXiv:2004.12832).

The score of a text is the sum, over the query's tokens, of the largest dot product with any token of the text. Texts
stand one after the other and are never padded to the longest.
"""

import numpy as np

from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.compute.parts.tokens import TokenRows

TOKENS = 8192
"""Tokens of texts that are compared at once, unless one text has more."""


def maxsim(query: Vectors, texts: TokenRows) -> Vectors:
    """Score `texts` [n] for the token vectors of a query [tokens, dim]; NaN for one that has no tokens."""
    scores = np.full(len(texts), np.nan, np.float32)
    there = np.flatnonzero(texts.counts)
    slices = texts.starts[there + 1] // TOKENS
    for rows in np.split(there, np.flatnonzero(np.diff(slices)) + 1):
        some = texts.taken(rows)
        if len(some):
            likeness = query @ some.to_float32().T
            scores[rows] = np.maximum.reduceat(likeness, some.starts[:-1], axis=1).sum(axis=0)
    return scores
