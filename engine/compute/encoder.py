"""From the token ids of a batch to unit vectors: forward pass, pooling and normalisation; or to weights of terms.

Rows are laid end to end without padding, through our network of the BERT family or through one that transformers
builds. What cannot be packed goes through the module graph of sentence-transformers, padded to its longest row; there
rows of one length carry no mask.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.parts.terms import NO_TERMS, SparseRows
from interlock.engine.compute.parts.tokens import TokenRows, pool_tokens
from interlock.engine.corpus.places import Ints, owners_of, places_of, starts_of
from interlock.engine.corpus.tokenizer import Types
from interlock.engine.gpu.device import Device
from interlock.engine.models.card import ModelCard
from interlock.engine.models.heads import KeepVectors, unit_states
from interlock.engine.models.layout import POSITIONS
from interlock.engine.models.networks.attention import attending
from interlock.engine.models.networks.batching import Batching
from interlock.engine.models.networks.kernels import Kernel, PackedBatch, filling, pack, padded_tokens
from interlock.engine.models.networks.network import PackedEncoder, PackedTermEncoder
from interlock.engine.models.networks.onnx import OnnxNetwork
from interlock.engine.models.networks.pooling import POOLINGS, WHOLE, TermPooling, VectorShape
from interlock.engine.models.networks.static import StaticTable
from interlock.engine.record.facts import TokenForm

Ids = npt.NDArray[np.int64]


class Encoder(Protocol):
    """Turns rows of token ids into vectors."""

    @property
    def padded(self) -> bool:
        """Whether every row costs as much as the longest."""

    def encode(self, rows: Sequence[Ids]) -> Outputs:
        """Compute what the model gives of rows of token ids, special tokens included."""


def encoder_for(card: ModelCard, network: nn.Module, device: Device) -> Encoder:
    """Return the encoder for a network that is attached to `device`."""
    if isinstance(network, PackedTermEncoder):
        return TermRows(network, card.terms, device.torch, card.kernel_on(device.kind), card.types)
    if isinstance(network, StaticTable):
        return PackedRows(network, "mean", device.torch, shape=card.shape)
    if isinstance(network, OnnxNetwork):
        after = list(network.after)
        rows = PackedRows(network, card.pooling, device.torch, shape=card.shape, after=after, types=card.types)
        return Apart(rows, card.batching)
    if card.packed:
        pooling = (card.pooling or "mean") if "dense" in card.outputs else None
        how = pooling, device.torch, card.kernel_on(device.kind), card.shape
        if isinstance(network, PackedEncoder):
            terms, tokens = lexical_terms(card, network.heads), late_vectors(card, network.heads)
            return PackedRows(network, *how, terms=terms, tokens=tokens, types=card.types)
        modules, tokens = list(network.children()), late_vectors(card, nn.ModuleDict())
        return PackedRows(Hidden(modules[0]), *how, modules[2:], tokens=tokens, types=card.types)
    pad = int(card.config.get("pad_token_id") or 0)
    mixed = card.batching is Batching.MIXED
    padded = PaddedRows(network, pad, device.torch, card.positions, card.types, card.shape, masked=not mixed)
    return padded if mixed else Apart(padded, card.batching)


def one_by_one(encoder: Encoder, rows: Sequence[Ids]) -> Outputs:
    """Compute each row alone."""
    return Apart(encoder, Batching.SINGLE).encode(rows)


class Apart:
    """Encodes rows of a network that may see what lies beside them: those of one length together, or each alone."""

    padded = False

    def __init__(self, encoder: Encoder, batching: Batching) -> None:
        self.encoder = encoder
        self._single = batching is Batching.SINGLE

    def encode(self, rows: Sequence[Ids]) -> Outputs:
        kin = np.arange(len(rows)) if self._single else np.array([len(row) for row in rows])
        groups = [np.flatnonzero(kin == one) for one in dict.fromkeys(kin.tolist())]
        pieces = [(group, self.encoder.encode([rows[int(place)] for place in group])) for group in groups]
        return pieces[0][1].joined(len(rows), pieces)


def typed(batch: PackedBatch, types: Types | None) -> PackedBatch:
    """Return a batch with the token types of its rows, if they have any."""
    if types is None:
        return batch
    each = np.concatenate([types.of(batch.lengths), np.zeros(filling(batch.tokens), np.int64)])
    return replace(batch, types=torch.from_numpy(each).to(batch.ids.device))


def computed_tokens(lengths: Sequence[int], *, padded: bool) -> int:
    """Count the tokens that a forward of rows of these lengths computes, padding and filling included."""
    if padded:
        return padded_tokens(len(lengths), max(lengths, default=0), min(lengths, default=0))
    return sum(lengths) + filling(sum(lengths))


def lexical_terms(card: ModelCard, heads: nn.ModuleDict) -> "LexicalTerms | None":
    """Return what weighs the terms of a card's rows by their tokens, where its pass does."""
    unweighed = card.by_token.unweighed
    return None if unweighed is None else LexicalTerms(heads["sparse_linear"], unweighed)


def late_vectors(card: ModelCard, heads: nn.ModuleDict) -> "LateVectors | None":
    """Return what keeps the vectors of the tokens of a card's rows, where its pass does."""
    form = card.by_token.vectors
    give = heads["colbert_linear"] if "colbert_linear" in heads else unit_states  # noqa: SIM401
    return None if form is None else LateVectors(give, form, card.by_token.around)


@dataclass(frozen=True)
class LexicalTerms:
    """Weighs the terms of rows by the largest weight of their tokens: `weigh` turns states [T, width] into weights [T];
    the ids of `unweighed` have none."""

    weigh: Callable[[Tensor], Tensor]
    unweighed: Sequence[int]

    def __call__(self, hidden: Tensor, rows: Sequence[Ids]) -> SparseRows:
        """Weigh the terms of `rows`, whose tokens have the states `hidden` [T, width]."""
        return terms_of(rows, self.weigh(hidden).cpu().numpy(), self.unweighed)


def terms_of(rows: Sequence[Ids], weights: Vectors, unweighed: Sequence[int]) -> SparseRows:
    """Give each id of a row the largest of the weights [T] of its tokens; ids of `unweighed` and weights of 0 are left
    out, and a row with a weight that is not finite is parked."""
    owners, ids = owners_of([len(row) for row in rows]), np.concatenate(rows)
    parked = np.zeros(len(rows), np.bool_)
    parked[owners[~np.isfinite(weights)]] = True
    kept = (weights > 0) & ~np.isin(ids, unweighed)
    return SparseRows.largest(owners[kept], ids[kept], weights[kept], parked)


@dataclass(frozen=True)
class LateVectors:
    """Keeps the vectors of the tokens of rows as a model's `form` says: `give` turns states [T, width] into unit
    vectors, a part at a time; `around` says how many tokens at the start and at the end of a row have none."""

    give: Callable[[Tensor, KeepVectors], None]
    form: TokenForm
    around: tuple[int, int]

    def __call__(self, hidden: Tensor, rows: Sequence[Ids]) -> TokenRows:
        """Keep the vectors of the tokens of `rows`, whose states are `hidden` [T, width]."""
        inside, counts = self._inside([len(row) for row in rows])
        places = starts_of(inside.astype(np.int64))
        vectors = np.empty((int(places[-1]), self.form.dim), np.float32)

        def keep(start: int, part: Tensor) -> None:
            stop = start + len(part)
            vectors[places[start] : places[stop]] = part.cpu().numpy()[inside[start:stop]]

        self.give(hidden, keep)
        return TokenRows.from_vectors(*pool_tokens(vectors, starts_of(counts), self.form.pooling), self.form.precision)

    def _inside(self, lengths: Sequence[int]) -> tuple[npt.NDArray[np.bool_], Ints]:
        """Which tokens [T] have a vector, and how many of each row [rows]."""
        before, after = self.around
        whole = np.asarray(lengths, np.int64)
        places = places_of(np.zeros_like(whole), whole)
        inside = (places >= before) & (places < np.repeat(whole, whole) - after)
        return inside, np.maximum(whole - before - after, 0)


@dataclass(eq=False)
class PackedRows:
    """Encodes rows laid end to end; nothing is computed for padding. Without a `pooling` a row has no vector."""

    padded: ClassVar[bool] = False
    network: Callable[[PackedBatch], torch.Tensor]
    pooling: str | None
    device: torch.device
    kernel: Kernel = Kernel.HOST
    shape: VectorShape = WHOLE
    after: Sequence[nn.Module] = ()
    """The modules of sentence-transformers that follow the pooling."""
    terms: LexicalTerms | None = None
    tokens: LateVectors | None = None
    """What is made of single tokens."""
    types: Types | None = None

    @torch.inference_mode()
    def encode(self, rows: Sequence[Ids]) -> Outputs:
        batch = typed(pack(rows, self.device, self.kernel), self.types)
        hidden = self.network(batch)
        return Outputs(
            self._dense(hidden, batch, self.pooling) if self.pooling else None,
            self.terms(hidden, rows) if self.terms else None,
            self.tokens(hidden, rows) if self.tokens else None,
        )

    def _dense(self, hidden: torch.Tensor, batch: PackedBatch, pooling: str) -> Vectors:
        vectors = POOLINGS[pooling](hidden, batch, self.shape.skipped)
        for module in self.after:
            weight = next(module.parameters(), vectors)
            vectors = module({"sentence_embedding": vectors.to(weight.dtype)})["sentence_embedding"]
        return _unit(vectors[:, : self.shape.cut].float())


@dataclass(eq=False)
class TermRows:
    """Weighs the terms of rows laid end to end, as SPLADE does. Nothing is normalised.

    Logits leave the device as the head gives them, so that a batch takes no more of it for having more rows.
    """

    padded: ClassVar[bool] = False
    network: PackedTermEncoder
    pooling: TermPooling
    device: torch.device
    kernel: Kernel = Kernel.HOST
    types: Types | None = None

    @torch.inference_mode()
    def encode(self, rows: Sequence[Ids]) -> Outputs:
        found = _Terms(self.pooling)
        batch = typed(pack(rows, self.device, self.kernel), self.types)
        self.network.terms(batch, self.pooling, found.add)
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
        self._typed = "token_type_ids" in signature(self._network.forward).parameters

    def __call__(self, batch: PackedBatch) -> torch.Tensor:
        """[T, width], in the network's precision."""
        given = {"input_ids": batch.ids[None], "position_ids": batch.positions[None]}
        if self._typed and batch.types is not None:
            given["token_type_ids"] = batch.types[None]
        with attending(batch):
            hidden: torch.Tensor = self._network(**given)[0]
        return hidden[0, : batch.tokens]


@dataclass(eq=False)
class PaddedRows:
    """Encodes rows padded on the right; with a mask, and to a multiple of `ALIGNED`, where their lengths differ."""

    padded: ClassVar[bool] = True
    network: nn.Module
    pad: int
    device: torch.device
    limit: int = POSITIONS
    """The longest row that the network takes."""
    types: Types | None = None
    shape: VectorShape = WHOLE
    masked: bool = False
    """Whether rows of one length have a mask too: without it some networks guess one by the ids."""

    @torch.inference_mode()
    def encode(self, rows: Sequence[Ids]) -> Outputs:
        lengths = np.array([len(row) for row in rows])
        longest, even = int(lengths.max()), bool((lengths == lengths[0]).all())
        width = longest if even else max(longest, min(self.limit, padded_tokens(1, longest, 0)))
        there = np.arange(width) < lengths[:, None]
        filled = np.stack([np.full(there.shape, self.pad), there])  # ids and mask, in one copy
        filled[0][there] = np.concatenate(rows)
        ids, mask = torch.from_numpy(filled).to(self.device).unbind()
        features: dict[str, torch.Tensor | int] = {"input_ids": ids}
        if self.masked or not even:
            features["attention_mask"] = mask
        if self.shape.skipped:
            features["prompt_length"] = self.shape.skipped
        if self.types is not None:
            types = np.zeros(there.shape, np.int64)
            types[there] = self.types.of(lengths.tolist())
            features["token_type_ids"] = torch.from_numpy(types).to(self.device)
        vectors = self.network(features)["sentence_embedding"]
        return Outputs(_unit(vectors[:, : self.shape.cut].float()))


def _unit(vectors: torch.Tensor) -> Vectors:
    unit: Vectors = F.normalize(vectors, dim=1).cpu().numpy()
    return unit
