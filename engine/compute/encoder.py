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

from interlock.engine.compute.batches import plan
from interlock.engine.compute.by_token import LateVectors, LexicalTerms, late_vectors, lexical_terms
from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.parts.terms import NO_TERMS, SparseRows
from interlock.engine.corpus.tokens import encoded, load_tokenizer, naming, specials_of
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.attention import attending
from interlock.engine.models.card import ModelCard
from interlock.engine.models.layout import POSITIONS
from interlock.engine.models.network import PackedEncoder, PackedTermEncoder
from interlock.engine.models.packing import PackedBatch, filling, pack, padded_tokens
from interlock.engine.models.sdpa import Kernel
from interlock.engine.models.term_pooling import TermPooling
from interlock.engine.models.trace import law_for
from interlock.engine.models.weights import Attached, attach_to_host

Ids = npt.NDArray[np.int64]
MOST_SPECIALS = 8
"""Special tokens of a row, at most, so far as no tokenizer has to be asked."""


class Encoder(Protocol):
    """Turns rows of token ids into vectors."""

    padded: bool
    """Whether every row costs as much as the longest."""

    def encode(self, rows: Sequence[Ids]) -> Outputs:
        """Compute what the model gives of rows of token ids, special tokens included."""


def encoder_for(card: ModelCard, network: nn.Module, device: Device) -> Encoder:
    """Return the encoder for a network that is attached to `device`."""
    if isinstance(network, PackedTermEncoder):
        return TermRows(network, card.terms, device.torch, card.kernel_on(device.kind))
    if card.packed:
        how = (card.pooling or "mean") if "dense" in card.outputs else None, device.torch, card.kernel_on(device.kind)
        if isinstance(network, PackedEncoder):
            terms, tokens = lexical_terms(card, network.heads), late_vectors(card, network.heads)
            return PackedRows(network, *how, terms=terms, tokens=tokens)
        modules = list(network.children())
        return PackedRows(Hidden(modules[0]), *how, modules[2:], tokens=late_vectors(card, nn.ModuleDict()))
    return PaddedRows(network, int(card.config.get("pad_token_id") or 0), device.torch, card.positions)


def one_by_one(encoder: Encoder, rows: Sequence[Ids]) -> Outputs:
    """Compute each row alone."""
    each = [encoder.encode([row]) for row in rows]
    return each[0].joined(len(each), [(np.array([place]), outputs) for place, outputs in enumerate(each)])


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
        pooling: str | None,
        device: torch.device,
        kernel: Kernel = Kernel.HOST,
        after: Sequence[nn.Module] = (),
        terms: LexicalTerms | None = None,
        tokens: LateVectors | None = None,
    ) -> None:
        """`after` are the modules of sentence-transformers that follow the pooling, `terms` and `tokens` what is made
        of single tokens; without a `pooling` there is no vector of a row."""
        self._network = network
        self._pooling = pooling
        self._device = device
        self._kernel = kernel
        self._after = after
        self._terms = terms
        self._tokens = tokens

    @torch.inference_mode()
    def encode(self, rows: Sequence[Ids]) -> Outputs:
        batch = pack(rows, self._device, self._kernel)
        hidden = self._network(batch)
        return Outputs(
            self._dense(hidden, batch, self._pooling) if self._pooling else None,
            self._terms(hidden, rows) if self._terms else None,
            self._tokens(hidden, rows) if self._tokens else None,
        )

    def _dense(self, hidden: torch.Tensor, batch: PackedBatch, pooling: str) -> Vectors:
        vectors = pool_hidden(hidden, batch, pooling)
        for module in self._after:
            weight = next(module.parameters(), vectors)
            vectors = module({"sentence_embedding": vectors.to(weight.dtype)})["sentence_embedding"]
        return _unit(vectors.float())


class TermRows:
    """Weighs the terms of rows laid end to end, as SPLADE does. Nothing is normalised.

    Logits leave the device as the head gives them, so that a batch takes no more of it for having more rows.
    """

    padded = False

    def __init__(
        self,
        network: PackedTermEncoder,
        pooling: TermPooling,
        device: torch.device,
        kernel: Kernel = Kernel.HOST,
    ) -> None:
        self._network = network
        self._pooling = pooling
        self._device = device
        self._kernel = kernel

    @torch.inference_mode()
    def encode(self, rows: Sequence[Ids]) -> Outputs:
        found = _Terms(self._pooling)
        self._network.terms(pack(rows, self._device, self._kernel), self._pooling, found.add)
        return Outputs(terms=found.rows())


class _Terms:
    """Rows of all words as a head gives them, those that are whole compressed at once: all of a batch would be
    gigabytes. Of the last row another part may follow."""

    def __init__(self, pooling: TermPooling) -> None:
        self._pooling = pooling
        self._open = torch.empty(0, 0)
        self._pieces: list[tuple[Ids, SparseRows]] = []
        self._whole = 0

    def add(self, first: int, values: torch.Tensor) -> None:
        """Take what the tokens of some rows have together [n, words], of row `first` and those that follow."""
        here = values.to("cpu", torch.float32, copy=True)
        if first < self._whole + len(self._open):
            self._pooling.join(here[0], self._open[0])
        else:
            self._compress(self._open)
        self._compress(here[:-1])
        self._open = here[-1:].clone()

    def rows(self) -> SparseRows:
        """Return all rows, compressed."""
        self._compress(self._open)
        return NO_TERMS.join(self._whole, self._pieces)

    def _compress(self, rows: torch.Tensor) -> None:
        if len(rows):
            places = np.arange(self._whole, self._whole + len(rows))
            weights = SparseRows.from_dense(self._pooling.finish(rows).numpy())
            self._pieces.append((places, weights.heaviest(self._pooling.most, rows.shape[1])))
            self._whole += len(rows)


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


def pool_hidden(hidden: torch.Tensor, batch: PackedBatch, pooling: str) -> torch.Tensor:
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
    def encode(self, rows: Sequence[Ids]) -> Outputs:
        lengths = np.array([len(row) for row in rows])
        longest, even = int(lengths.max()), bool((lengths == lengths[0]).all())
        width = longest if even else max(longest, min(self._limit, padded_tokens(1, longest, 0)))
        there = np.arange(width) < lengths[:, None]
        filled = np.stack([np.full(there.shape, self._pad), there])  # ids and mask, in one copy
        filled[0][there] = np.concatenate(rows)
        ids, mask = torch.from_numpy(filled).to(self._device).unbind()
        features = {"input_ids": ids} if even else {"input_ids": ids, "attention_mask": mask}
        return Outputs(_unit(self._network(features)["sentence_embedding"].float()))


class HostEncoder:
    """Encodes texts outside a run, mostly questions, on a device without copies to and fro: a CPU.

    It is attached by `load`, or the first `encode`, under a lease that whoever calls it holds, and until `detach`.
    """

    def __init__(self, card: ModelCard, device: Device) -> None:
        with naming([card.key], card.tokenizer_file):
            self._tokenizer = load_tokenizer(card.tokenizer_file)
            self._specials = specials_of(self._tokenizer)
        self._card, self._device = card, device
        self._law = law_for(card, device.kind)
        self._attached: Attached | None = None

    @property
    def attached(self) -> bool:
        """Whether its weights are in memory."""
        return self._attached is not None

    def rows(self, texts: Sequence[str], prompt: str) -> list[Ids]:
        """Return the token ids of each text behind `prompt`, cut to what the model takes."""
        room = self._card.max_tokens - self._specials.count
        before, after = self._specials.before, self._specials.after
        with naming([self._card.key], self._card.tokenizer_file):
            encodings = encoded(self._tokenizer, [prompt + text for text in texts])
        return [np.asarray([*before, *encoding.ids[:room], *after], np.int64) for encoding in encodings]

    def needs(self, lengths: Sequence[int]) -> int:
        """Predict the most bytes that encoding rows of these lengths takes, weights included."""
        given, padded = np.array(lengths), not self._card.packed
        each = [given[batch].tolist() for batch in self._batches(given)]
        return max(self._law.peak(computed_tokens(one, padded=padded), max(one)) for one in each)

    def load(self) -> Attached:
        """Bring its weights into memory, where they are not."""
        if self._attached is None:
            self._attached = attach_to_host(self._card, self._device)
        return self._attached

    def encode(self, rows: Sequence[Ids], told: Callable[[int], object] = lambda rows: None) -> Outputs:
        """Compute what rows of token ids give; `told` hears 0 once the weights are there, and then how many are
        done."""
        encoder, pieces, done = encoder_for(self._card, self.load().network, self._device), [], 0
        told(done)
        for batch in self._batches(np.array([len(row) for row in rows])):
            pieces.append((batch, encoder.encode([rows[row] for row in batch])))
            told(done := done + len(batch))
        return pieces[0][1].joined(len(rows), pieces)

    def detach(self) -> None:
        """Let the weights go."""
        self._attached = None

    def _batches(self, lengths: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        return [batch.rows for batch in plan(np.arange(len(lengths)), lengths, self._card.batch_tokens).batches]


def beyond_limit(card: ModelCard, texts: Sequence[str], prompt: str) -> list[int]:
    """Count the tokens of each text that `encode_texts` would cut off."""
    found, sizes = [0] * len(texts), [len((prompt + text).encode()) for text in texts]
    long = [
        at for at, size in enumerate(sizes) if size > card.max_tokens - MOST_SPECIALS
    ]  # a token has a byte at least
    if long:
        with naming([card.key], card.tokenizer_file):
            tokenizer = load_tokenizer(card.tokenizer_file)
            room = card.max_tokens - specials_of(tokenizer).count
            for at, encoding in zip(long, encoded(tokenizer, [prompt + texts[at] for at in long]), strict=True):
                found[at] = max(0, len(encoding.ids) - room)
    return found


def encode_texts(
    card: ModelCard,
    texts: Sequence[str],
    prompt: str,
    lessor: Lessor,
    told: Callable[[int], object] = lambda rows: None,
) -> Outputs:
    """Compute what one text or more give, under a lease of their own; `told` hears what it does of
    `HostEncoder.encode`."""
    (device,) = lessor.devices
    encoder = HostEncoder(card, device)
    rows = encoder.rows(texts, prompt)
    with lessor.lease(card.key, {device.name: encoder.needs([len(row) for row in rows])}, lambda _: None):
        try:
            return encoder.encode(rows, told)
        finally:
            encoder.detach()


def _unit(vectors: torch.Tensor) -> Vectors:
    unit: Vectors = F.normalize(vectors, dim=1).cpu().numpy()
    return unit
