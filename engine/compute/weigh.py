"""The terms of a few texts by a sparse model, outside a run: what a query is searched with."""

from collections.abc import Sequence

import numpy as np

from interlock.engine.compute.encoder import encode_texts
from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.corpus.ragged import starts_of
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.card import ModelCard
from interlock.engine.models.term_table import TermTable, table_of


def weigh_queries(card: ModelCard, texts: Sequence[str], lessor: Lessor) -> SparseRows:
    """Weigh the terms of queries: by the model's table where it has one, which needs no lease, else by its network.

    Raises UnavailableError for a model whose queries go another way.
    """
    if table := table_of(card):
        return by_table(card, table, texts)
    return _by_network(card, texts, card.query_prompt, lessor)


def weigh_documents(card: ModelCard, texts: Sequence[str], lessor: Lessor) -> SparseRows:
    """Weigh the terms of texts as a run does, under a lease of their own."""
    return _by_network(card, texts, card.document_prompt, lessor)


def _by_network(card: ModelCard, texts: Sequence[str], prompt: str, lessor: Lessor) -> SparseRows:
    if not texts:
        return SparseRows.from_dense(np.empty((0, card.dim), np.float32))
    terms = encode_texts(card, texts, prompt, lessor).terms
    assert terms is not None, "a sparse model weighs terms"
    return terms


def by_table(card: ModelCard, table: TermTable, texts: Sequence[str]) -> SparseRows:
    """Weigh the terms of queries by the table of their model: no network, and no lease."""
    terms = table.weigh([card.query_prompt + text for text in texts])
    indices = np.concatenate([*terms, np.empty(0, np.int64)])
    starts = starts_of(np.array([len(each) for each in terms], np.int64))
    rows = SparseRows(starts, indices.astype(np.int32), table.weights[indices], np.zeros(len(terms), np.bool_))
    return rows.heaviest(card.terms.most, card.words)
