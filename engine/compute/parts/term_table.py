"""The table by which an inference-free model weighs queries: each token in one counts once, and no network runs.

It is what sentence-transformers saves as SparseStaticEmbedding: weights in `model.safetensors`, or by token in a JSON
file, with a tokenizer of their own. Mostly they are inverse document frequencies (arxiv.org/abs/2411.04403).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from interlock.engine.corpus.tokenizer import build
from interlock.engine.corpus.tokens import encoded, load_tokenizer, naming
from interlock.engine.errors import UnavailableError
from interlock.engine.models.card import ModelCard
from interlock.engine.models.layout import ROUTER, document_modules, read_object, routes_of
from interlock.engine.models.pickles import TensorFiles
from interlock.engine.models.sources import model_cache

KNOWN = ("frozen", "path")
"""What the settings of a table may say; whether it was trained changes no weights."""


@dataclass(frozen=True)
class TermTable:
    """A weight for each token, float32 [words], and the tokenizer that finds the tokens of a text."""

    model: str
    weights: npt.NDArray[np.float32]
    tokenizer: Path
    longest: int | None
    """Tokens of a text that count, from its beginning; None for all."""

    def weigh(self, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        """List the tokens of each text that have a weight, ascending. Raises UnavailableError as its tokenizer does."""
        with naming([self.model], self.tokenizer):
            encodings = encoded(load_tokenizer(self.tokenizer), texts)
        return [self._weighing(np.unique(np.asarray(each.ids[: self.longest], np.int64))) for each in encodings]

    def _weighing(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if tokens.max(initial=0) >= len(self.weights):
            raise UnavailableError(
                f"model {self.model}: {self.tokenizer} gives id {tokens.max():,}, but the table has only "
                f"{len(self.weights):,} weights: {_ADVICE}"
            )
        return tokens[self.weights[tokens] > 0]


def table_of(card: ModelCard) -> TermTable | None:
    """Read the table of a sparse model; None where its queries go through the network of its documents.

    Raises UnavailableError, naming the file, for queries that go another way or a table that cannot be used.
    """
    root, routes = card.snapshot.path, routes_of(card.snapshot.path)
    query = routes.get("query", [])
    if not routes or query == document_modules(root):
        return None
    if [module.kind for module in query] != ["SparseStaticEmbedding"]:
        told = ", ".join(module.kind for module in query) or "nothing"
        raise UnavailableError(
            f"model {card.key}: {root / ROUTER}: its queries go through {told} of their own, which is not supported: "
            "use a model with a table or with the same network for both, such as splade-v3"
        )
    folder = root / query[0].path
    if (built := build(card.key, folder, {}, model_cache() / "tokenizers")).side != "right":
        file = folder / "tokenizer_config.json"
        raise UnavailableError(
            f"model {card.key}: {file}: truncation_side: expected 'right', got {built.side!r}: {_ADVICE}"
        )
    return TermTable(card.key, _weights(card, folder, built.file), built.file, built.limit)


def _weights(card: ModelCard, folder: Path, tokenizer: Path) -> npt.NDArray[np.float32]:
    settings = read_object(folder / "config.json")
    if unknown := sorted(set(settings) - set(KNOWN)):
        raise UnavailableError(f"model {card.key}: {folder / 'config.json'}: {unknown[0]} is not known: {_ADVICE}")
    if (path := settings.get("path")) is None:
        file, weights = folder / "model.safetensors", _of_tensor(card, folder / "model.safetensors")
    else:
        file = card.snapshot.path / str(path)
        weights = _of_json(card, file, tokenizer)
    if weights.shape != (card.dim,) or not np.isfinite(weights).all() or weights.min(initial=0) < 0:
        raise UnavailableError(
            f"model {card.key}: {file}: expected a weight of at least 0 for each of {card.dim:,} tokens: {_ADVICE}"
        )
    return weights


_ADVICE = "use another copy of the model, or splade-v3"


def _of_tensor(card: ModelCard, file: Path) -> npt.NDArray[np.float32]:
    try:
        return np.asarray(TensorFiles([file])["weight"].float().numpy())
    except (OSError, KeyError, ValueError) as error:
        raise UnavailableError(f"model {card.key}: cannot read the weight of terms in {file}: {_ADVICE}") from error


def _of_json(card: ModelCard, file: Path, tokenizer: Path) -> npt.NDArray[np.float32]:
    """Weights by the token that each belongs to; a token that is not named weighs nothing."""
    if file.resolve().parent != card.snapshot.path.resolve() or not file.is_file():
        raise UnavailableError(f"model {card.key}: {file} is not a file of the model's directory: {_ADVICE}")
    ids, weights = load_tokenizer(tokenizer).get_vocab(), np.zeros(card.dim, np.float32)
    for token, weight in read_object(file).items():
        number = ids.get(token)
        if number is None or not number < card.dim or isinstance(weight, bool) or not isinstance(weight, int | float):
            raise UnavailableError(
                f"model {card.key}: {file}: expected a number for a token of {tokenizer}, got {weight!r:.100} for "
                f"{token!r:.100}: {_ADVICE}"
            )
        weights[number] = weight
    return weights
