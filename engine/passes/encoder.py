"""From the token ids of a batch to unit vectors: forward pass, pooling and normalisation.

BERT-family models go through the packed network without padding; every other architecture goes through the module
graph that sentence-transformers builds, padded to its longest row. Rows of one length carry no mask.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from interlock.engine.gpu.device import Device
from interlock.engine.gpu.lease import Lessor
from interlock.engine.intake.tokens import encoded, load_tokenizer, naming, specials_of
from interlock.engine.models.card import ModelCard
from interlock.engine.models.network import PackedEncoder, filling
from interlock.engine.models.trace import law_for
from interlock.engine.models.weights import attach_to_host

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


class Encoder(Protocol):
    """Turns rows of token ids into vectors."""

    padded: bool
    """Whether every row costs as much as the longest."""

    def encode(self, rows: Sequence[Ids]) -> Vectors:
        """Compute unit vectors [len(rows), dim] of rows of token ids, special tokens included."""


def encoder_for(card: ModelCard, network: nn.Module, device: Device) -> Encoder:
    """Return the encoder for a network that is attached to `device`."""
    if isinstance(network, PackedEncoder):
        return PackedRows(network, card.pooling or "mean", device.torch)
    return PaddedRows(network, int(card.config.get("pad_token_id") or 0), device.torch)


def computed_tokens(lengths: Sequence[int], *, padded: bool) -> int:
    """Count the tokens that a forward of rows of these lengths computes, padding and filling included."""
    if padded:
        return max(lengths, default=0) * len(lengths)
    return sum(lengths) + filling(sum(lengths))


class PackedRows:
    """Encodes rows laid end to end; nothing is computed for padding."""

    padded = False

    def __init__(self, network: PackedEncoder, pooling: str, device: torch.device) -> None:
        self._network = network
        self._pooling = pooling
        self._device = device

    @torch.inference_mode()
    def encode(self, rows: Sequence[Ids]) -> Vectors:
        lengths = [len(row) for row in rows]
        hidden = self._network(torch.from_numpy(np.concatenate(rows)).to(self._device), lengths).float()
        sizes = torch.tensor(lengths, device=self._device)
        if self._pooling == "cls":
            return _unit(hidden[sizes.cumsum(0) - sizes])
        return _unit(torch.segment_reduce(hidden, "mean", lengths=sizes, axis=0))


class PaddedRows:
    """Encodes rows padded on the right to the longest, with a mask where there is any padding."""

    padded = True

    def __init__(self, network: nn.Module, pad: int, device: torch.device) -> None:
        self._network = network
        self._pad = pad
        self._device = device

    @torch.inference_mode()
    def encode(self, rows: Sequence[Ids]) -> Vectors:
        longest = max(len(row) for row in rows)
        ids = torch.full((len(rows), longest), self._pad)
        mask = torch.zeros_like(ids)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.from_numpy(row)
            mask[number, : len(row)] = 1
        features = {"input_ids": ids.to(self._device)}
        if not bool(mask.all()):
            features["attention_mask"] = mask.to(self._device)
        return _unit(self._network(features)["sentence_embedding"].float())


def encode_texts(card: ModelCard, texts: Sequence[str], prompt: str, lessor: Lessor) -> Vectors:
    """Compute unit vectors [len(texts), dim] of a few texts, under a lease of their own; for queries."""
    with naming([card.key], card.tokenizer_file):
        tokenizer = load_tokenizer(card.tokenizer_file)
        specials = specials_of(tokenizer)
        encodings = encoded(tokenizer, [prompt + text for text in texts])
    room = card.max_tokens - specials.count
    rows = [np.asarray([*specials.before, *encoding.ids[:room], *specials.after], np.int64) for encoding in encodings]
    (device,) = lessor.devices
    lengths = [len(row) for row in rows]
    predicted = law_for(card, device.kind).peak(computed_tokens(lengths, padded=not card.packed), max(lengths))
    with lessor.lease(card.key, {device.name: predicted}, lambda _: None):
        attached = attach_to_host(card, device)
        vectors = encoder_for(card, attached.network, device).encode(rows)
        del attached
    return vectors


def _unit(vectors: torch.Tensor) -> Vectors:
    unit: Vectors = F.normalize(vectors, dim=1).cpu().numpy()
    return unit
