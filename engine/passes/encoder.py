"""From the token ids of a batch to unit vectors: forward pass, pooling and normalisation.

BERT-family models go through the packed network without padding; every other architecture goes through the module
graph that sentence-transformers builds, padded to its longest row.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from engine.gpu.lease import Lessor
from engine.gpu.memory import predict_peak
from engine.intake.tokens import load_tokenizer, specials_of
from engine.models.card import ModelCard
from engine.models.network import PackedEncoder
from engine.models.weights import attach

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


class Encoder(Protocol):
    """Turns rows of token ids into vectors."""

    def encode(self, rows: Sequence[Ids]) -> Vectors:
        """Unit vectors [len(rows), dim] of rows of token ids, special tokens included."""


def encoder_for(card: ModelCard, network: nn.Module) -> Encoder:
    """The encoder that fits an attached network."""
    if isinstance(network, PackedEncoder):
        return PackedRows(network, card.pooling or "mean")
    return PaddedRows(network, int(card.config.get("pad_token_id") or 0))


class PackedRows:
    """Rows laid end to end; nothing is computed for padding."""

    def __init__(self, network: PackedEncoder, pooling: str) -> None:
        self._network = network
        self._pooling = pooling

    @torch.inference_mode()
    def encode(self, rows: Sequence[Ids]) -> Vectors:
        lengths = [len(row) for row in rows]
        hidden = self._network(torch.from_numpy(np.concatenate(rows)), lengths).float()
        return _unit(self._pool(hidden, torch.tensor(lengths)))

    def _pool(self, hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        if self._pooling == "cls":
            return hidden[lengths.cumsum(0) - lengths]
        return torch.segment_reduce(hidden, "mean", lengths=lengths, axis=0)


class PaddedRows:
    """Rows padded on the right to the longest, with a mask."""

    def __init__(self, network: nn.Module, pad: int) -> None:
        self._network = network
        self._pad = pad

    @torch.inference_mode()
    def encode(self, rows: Sequence[Ids]) -> Vectors:
        longest = max(len(row) for row in rows)
        ids = torch.full((len(rows), longest), self._pad)
        mask = torch.zeros_like(ids)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = torch.from_numpy(row)
            mask[place, : len(row)] = 1
        out = self._network({"input_ids": ids, "attention_mask": mask})
        return _unit(out["sentence_embedding"].float())


def encode_texts(card: ModelCard, texts: Sequence[str], prompt: str, lessor: Lessor) -> Vectors:
    """Unit vectors [len(texts), dim] of a few texts, under a lease of their own; for queries."""
    tokenizer = load_tokenizer(card.tokenizer_file)
    specials = specials_of(tokenizer)
    room = card.max_tokens - specials.count
    rows = [
        np.asarray([*specials.before, *encoding.ids[:room], *specials.after], np.int64)
        for encoding in tokenizer.encode_batch([prompt + text for text in texts], add_special_tokens=False)
    ]
    predicted = predict_peak(card.shape, sum(len(row) for row in rows))
    with lessor.lease(card.key, predicted, lambda _: None) as lease:
        attached = attach(card, lease)
        vectors = encoder_for(card, attached.network).encode(rows)
        del attached
    return vectors


def _unit(vectors: torch.Tensor) -> Vectors:
    unit: Vectors = F.normalize(vectors, dim=1).numpy()
    return unit
