"""Rows and texts of wanted lengths, the same in every run with the same seed, and how near two sets of vectors are."""

from collections.abc import Iterable, Sequence

import numpy as np
from acceptance.workbench import Bench

from interlock.engine.compute.encoder import Ids
from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.corpus.tokens import TokenStore, load_tokenizer
from interlock.engine.models.card import ModelCard
from tests.builders import WORDS


def rows_of(bench: Bench, lengths: Iterable[int]) -> list[Ids]:
    """Rows of token ids, longest first."""
    draw = np.random.default_rng(bench.rng.randrange(1 << 30))
    return [draw.integers(5, 100, length, np.int64) for length in sorted(lengths, reverse=True)]


def texts_of(bench: Bench, lengths: Iterable[int]) -> list[str]:
    """Texts of so many tokens, special ones included."""
    return [" ".join(bench.rng.choices(WORDS, k=max(1, length - 2))) for length in lengths]


def lengths_of(bench: Bench, kind: str, tokens: int) -> list[int]:
    """Lengths of rows, about `tokens` in all: chunks as documents give them, or anything from few to many."""
    found: list[int] = []
    while sum(found) < tokens:
        match kind:
            case "chunks":
                length = int(bench.rng.lognormvariate(5.2, 0.6))
            case "mixed":
                length = bench.rng.randint(10, 2000)
            case "short":
                length = bench.rng.randint(4, 60)
            case _:
                length = bench.rng.choice((8, bench.scale.longest))
        found.append(max(3, min(length, bench.scale.longest)))
    return found


def stored(bench: Bench, card: ModelCard, texts: Sequence[str]) -> TokenStore:
    """The token ids of texts."""
    store = TokenStore(bench.file(".ids"), load_tokenizer(card.tokenizer_file), "", card.max_tokens)
    with store:
        store.add(texts)
    return store


def least_cosine(found: Vectors, wanted: Vectors) -> float | None:
    """Of the rows that have a vector; None where none has."""
    some = np.isfinite(found).all(1)
    one, other = found[some].astype(np.float64), wanted[some].astype(np.float64)
    cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    return float(cosines.min()) if len(cosines) else None
