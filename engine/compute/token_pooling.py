"""Fewer token vectors of a text: those that are alike are pooled into their mean.

Hierarchical clustering with Ward's criterion on cosine distances, as in Clavié et al. 2024, "Reducing the Footprint of
Multi-Vector Retrieval with Minimal Performance Impact via Token Pooling" (arXiv:2409.14683).
"""

from itertools import pairwise

import numpy as np

from interlock.engine.compute.vectors import Vectors
from interlock.engine.corpus.ragged import Ints, starts_of


def pool_tokens(vectors: Vectors, starts: Ints, factor: int) -> tuple[Vectors, Ints]:
    """Pool the unit vectors [tokens, dim] of each row to one for `factor` of them, rounded up; with the new starts."""
    if factor == 1:
        return vectors, starts
    rows = [pool(vectors[begin:end], -(-(end - begin) // factor)) for begin, end in pairwise(starts)]
    return np.concatenate([vectors[:0], *rows]), starts_of(np.array([len(row) for row in rows], np.int64))


def pool(vectors: Vectors, clusters: int) -> Vectors:
    """Pool the unit vectors [tokens, dim] of one text into so many means of unit length, in the order of the first of
    each; all of them as they are where one is not finite."""
    from scipy.cluster.hierarchy import linkage  # not for a run that pools nothing

    tokens = len(vectors)
    if tokens <= clusters or not np.isfinite(vectors).all():
        return vectors
    likeness = vectors @ vectors.T
    distances = 1 - np.concatenate([row[place + 1 :] for place, row in enumerate(likeness)])
    del likeness  # as large as the clustering's own copy
    merges = linkage(np.maximum(distances, 0), "ward")[: tokens - clusters, :2].astype(np.int64)
    cluster = np.arange(tokens)
    for number, (one, other) in enumerate(merges, tokens):
        cluster[(cluster == one) | (cluster == other)] = number
    _, firsts, members = np.unique(cluster, return_index=True, return_inverse=True)
    sums = np.zeros((clusters, vectors.shape[1]), np.float32)
    np.add.at(sums, members, vectors)
    means: Vectors = sums[np.argsort(firsts)]
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return means
