"""From the token ids of a batch to unit vectors: forward pass, pooling and normalisation; or to weights of terms.

Rows are laid end to end without padding, through our network of the BERT family or through one that transformers
builds. What cannot be packed goes through the module graph of sentence-transformers, padded to its longest row; there
rows of one length carry no mask.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from interlock.engine.gpu.device import Device
from interlock.engine.gpu.lease import Lessor
from interlock.engine.intake.tokens import encoded, load_tokenizer, naming, specials_of
from interlock.engine.models.attention import attending
from interlock.engine.models.card import ModelCard
from interlock.engine.models.layout import POSITIONS
from interlock.engine.models.network import PackedEncoder, PackedTermEncoder
from interlock.engine.models.packing import PackedBatch, filling, pack, padded_tokens
from interlock.engine.models.sdpa import Kernel
from interlock.engine.models.trace import law_for
from interlock.engine.models.weights import attach_to_host

Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


class Encoder(Protocol):
    """Turns rows of token ids into vectors."""

    padded: bool
    """Whether every row costs as much as the longest."""

    def encode(self, rows: Sequence[Ids]) -> Vectors:
        """Compute unit vectors, or weights of terms, [len(rows), dim] of rows of token ids, special tokens included."""


def encoder_for(card: ModelCard, network: nn.Module, device: Device) -> Encoder:
    """Return the encoder for a network that is attached to `device`."""
    if isinstance(network, PackedTermEncoder):
        return TermRows(network, device.torch, card.kernel_on(device.kind))
    if card.packed:
        how = card.pooling or "mean", device.torch, card.kernel_on(device.kind)
        if isinstance(network, PackedEncoder):
            return PackedRows(network, *how)
        modules = list(network.children())
        return PackedRows(Hidden(modules[0]), *how, modules[2:])
    return PaddedRows(network, int(card.config.get("pad_token_id") or 0), device.torch, card.positions)


def computed_tokens(lengths: Sequence[int], *, padded: bool) -> int:
    """Count the tokens that a forward of rows of these lengths computes, padding and filling included."""
    if padded:
        return padded_tokens(len(lengths), max(lengths, default=0), min(lengths, default=0))
    return sum(lengths) + filling(sum(lengths))


class PackedRows:
    """Encodes rows laid end to end; nothing is computed for padding."""

    padded = False

    def __init__(
        self,
        network: Callable[[PackedBatch], torch.Tensor],
        pooling: str,
        device: torch.device,
        kernel: Kernel = Kernel.HOST,
        after: Sequence[nn.Module] = (),
    ) -> None:
        """`after` are the modules of sentence-transformers that follow the pooling."""
        self._network = network
        self._pooling = pooling
        self._device = device
        self._kernel = kernel
        self._after = after

    @torch.inference_mode()
    def encode(self, rows: Sequence[Ids]) -> Vectors:
        batch = pack(rows, self._device, self._kernel)
        vectors = pooled(self._network(batch), batch, self._pooling)
        for module in self._after:
            weight = next(module.parameters(), vectors)
            vectors = module({"sentence_embedding": vectors.to(weight.dtype)})["sentence_embedding"]
        return _unit(vectors.float())


class TermRows:
    """Weighs the terms of rows laid end to end, as SPLADE does (arxiv.org/abs/2109.10086): by the largest logit of each
    over the tokens of a row, log1p(relu(logit)). Nothing is normalised.

    Logits leave the device as the head gives them, so that a batch takes no more of it for having more rows.
    """

    padded = False

    def __init__(self, network: PackedTermEncoder, device: torch.device, kernel: Kernel = Kernel.HOST) -> None:
        self._network = network
        self._device = device
        self._kernel = kernel

    @torch.inference_mode()
    def encode(self, rows: Sequence[Ids]) -> Vectors:
        weights = np.zeros((len(rows), self._network.words), np.float32)
        largest = torch.from_numpy(weights)  # from 0: what no token brings above it weighs nothing

        def keep(first: int, logits: torch.Tensor) -> None:
            here = largest[first : first + len(logits)]
            torch.maximum(here, logits.to("cpu", torch.float32), out=here)

        self._network.terms(pack(rows, self._device, self._kernel), keep)
        largest.log1p_()
        return weights


class Hidden:
    """The last hidden state of a network that transformers built with our attention."""

    def __init__(self, transformer: nn.Module) -> None:
        """`transformer` is the first module of a sentence-transformers model."""
        self._network: nn.Module = transformer.get_submodule("model" if hasattr(transformer, "model") else "auto_model")

    def __call__(self, batch: PackedBatch) -> torch.Tensor:
        """[T, width], in the network's precision."""
        with attending(batch):
            hidden: torch.Tensor = self._network(input_ids=batch.ids[None], position_ids=batch.positions[None])[0]
        return hidden[0, : batch.tokens]


def pooled(hidden: torch.Tensor, batch: PackedBatch, pooling: str) -> torch.Tensor:
    """One vector in float32 [rows, width] for each row of a batch, of its tokens' [T, width]."""
    if pooling == "cls":
        return hidden[batch.starts[:-1]].float()
    if pooling == "lasttoken":
        return hidden[batch.starts[1:] - 1].float()
    # unsafe: it would look at the offsets from the host, and wait for the device to tell them
    return torch.segment_reduce(hidden.float(), "mean", offsets=batch.starts, axis=0, unsafe=True)


class PaddedRows:
    """Encodes rows padded on the right; with a mask, and to a multiple of `ALIGNED`, where their lengths differ."""

    padded = True

    def __init__(self, network: nn.Module, pad: int, device: torch.device, limit: int = POSITIONS) -> None:
        """`limit` is the longest row that the network takes."""
        self._network = network
        self._pad = pad
        self._device = device
        self._limit = limit

    @torch.inference_mode()
    def encode(self, rows: Sequence[Ids]) -> Vectors:
        lengths = np.array([len(row) for row in rows])
        longest, even = int(lengths.max()), bool((lengths == lengths[0]).all())
        width = longest if even else max(longest, min(self._limit, padded_tokens(1, longest, 0)))
        there = np.arange(width) < lengths[:, None]
        filled = np.stack([np.full(there.shape, self._pad), there])  # ids and mask, in one copy
        filled[0][there] = np.concatenate(rows)
        ids, mask = torch.from_numpy(filled).to(self._device).unbind()
        features = {"input_ids": ids} if even else {"input_ids": ids, "attention_mask": mask}
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
