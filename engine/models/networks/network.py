"""The forward pass of BERT-family encoders over packed rows: sequences laid end to end, no padding.

Token ids (special tokens included) and the length of each sequence go in; the last hidden state comes out,
one row for each token, as transformers computes it: in float32 equal to rounding. With its masked-LM head an encoder
gives one row of term weights for each sequence instead, and with the head of a cross-encoder one logit. Every setting
and weight is checked when the encoder is made; what this code cannot compute exactly is refused with a ValueError.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from interlock.engine.models.networks.attention import attend
from interlock.engine.models.networks.checkpoint import Blank, Shape, Weights, frozen
from interlock.engine.models.networks.fused import add_normed
from interlock.engine.models.networks.int8 import QuantisedLinear
from interlock.engine.models.networks.kernels import PackedBatch
from interlock.engine.models.networks.pooling import TermPooling

HEAD_TOKENS, HEAD_ROWS = 256, 16
"""A head computes so many tokens at a time, and gives the terms of so many of their sequences at a time: the logits of
a whole batch would be gigabytes. Each block that leaves a GPU is waited for, which was not measured on one yet."""
KeepTerms = Callable[[int, Tensor], object]
"""Takes the number of a sequence and `[n, words]`, what its tokens in one part have together and those of its
followers; it must not keep the tensor. A sequence in several parts is given several times, to be joined."""

_BUCKETS, _REACH = 32, 128  # of MPNet's relative positions; transformers ignores the config's number too
_ALIGN = 16  # CUDA's fused attention wants each row of a bias to start on such a boundary


class PackedEncoder(nn.Module):
    """An encoder of one of `PACKED_TYPES`, made by `from_state`. Its weights take no gradients."""

    def __init__(self, shape: Shape, weights: Weights) -> None:
        super().__init__()
        self.embeddings = _Embeddings(weights, shape)
        self.nearness = _Nearness(weights, shape) if shape.kind == "mpnet" else None
        prefixes = [f"{shape.names.layers}{number}." for number in range(shape.depth)]
        self.layers = nn.ModuleList(
            half(weights, prefix, shape) for prefix in prefixes for half in (_Attention, FeedForward)
        )
        self.heads = nn.ModuleDict()
        """Those of `token_heads.py`, where the model has them and its pass needs them; not for `forward`."""

    @classmethod
    def from_state(
        cls, config: Mapping[str, object], state: Mapping[str, Tensor], dtype: torch.dtype = torch.float32
    ) -> "PackedEncoder":
        """Build the encoder in `dtype` that a parsed `config.json` and the tensors of `model.safetensors` describe.

        Names may carry a prefix (`bert.`, `roberta.`, ...); poolers and heads are left alone. Raises
        ValueError naming the setting not supported, or the tensor that is missing or has another shape.
        """
        shape = Shape(config)
        return cls(shape, Weights(state, dtype, shape.names.base))

    @classmethod
    def blank(cls, config: Mapping[str, object], dtype: torch.dtype = torch.float32) -> "PackedEncoder":
        """Build the encoder of `config` with weights that nobody set, for sizes and traces under FakeTensorMode."""
        return cls(Shape(config), Blank({}, dtype))

    @property
    def width(self) -> int:
        """Numbers in a row of the result: the hidden size."""
        return self.embeddings.words.shape[1]

    def pack_for_cpu(self, *, int8: bool = False) -> "PackedEncoder":
        """Lay the weights out for oneDNN's fused kernels, in place of the originals, and the maps of its layers in
        `int8` where that is wanted; returns the encoder.

        Call it last: packed weights can no longer be moved or converted. Where the device is not a CPU, or
        torch lacks these kernels, nothing happens. The processor alone decides what is packed, so that a run
        that is resumed on it gives the same bytes.
        """
        words = self.embeddings.words
        if words.device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            return self
        for layer in self.layers if int8 else ():
            for name, module in [*layer.named_children()]:
                if isinstance(module, _Linear):
                    setattr(layer, name, QuantisedLinear(module.weight.data, module.bias.data, module.activation))
        bfloat16 = words.dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        # A fused activation costs oneDNN a third of its speed with AVX2, where MKL and GELU by themselves keep theirs.
        fuses = bfloat16 or torch.backends.cpu.get_cpu_capability() != "AVX2"
        for module in self.modules() if bfloat16 or words.dtype is torch.float32 else ():
            if isinstance(module, _Linear) and not module.weight.is_mkldnn and (fuses or module.activation == "none"):
                module.weight = frozen(torch.ops.mkldnn._reorder_linear_weight(module.weight.data))
        return self

    def forward(self, batch: PackedBatch) -> Tensor:
        """Compute the last hidden state `[T, width]` of the tokens of a batch.

        Neighbours of one length may share an attention call, so sorted sequences run fastest; the order changes nothing
        else. Raises ValueError when a sequence has no token or more than there are positions.
        """
        return self.states(batch)[: batch.tokens]

    def states(self, batch: PackedBatch) -> Tensor:
        """Compute what `forward` does, with the rows that fill the batch up: they mean nothing."""
        positions = len(self.embeddings.places) - 1
        shortest, longest = min(batch.lengths, default=0), max(batch.lengths, default=0)
        if not 1 <= shortest <= longest <= positions:
            raise ValueError(
                f"{len(batch.lengths)} lengths of {shortest} to {longest} tokens; each must be from 1 to the model's "
                f"{positions} positions"
            )
        bias = None if self.nearness is None else self.nearness(longest)
        rows = self.embeddings(batch)
        for layer in self.layers:
            rows = layer(rows, batch, bias)
        return rows  # type: ignore[no-any-return]


class PackedTermEncoder(PackedEncoder):
    """An encoder of one of `PACKED_TYPES` with its masked-LM head, which scores every word of its vocabulary."""

    def __init__(self, shape: Shape, weights: Weights) -> None:
        super().__init__(shape, weights)
        self.head = _MaskedLmHead(weights, shape)

    @property
    def words(self) -> int:
        """Numbers in a row of the result: the size of the vocabulary."""
        return self.embeddings.words.shape[0]

    def terms(self, batch: PackedBatch, pooling: TermPooling, keep: KeepTerms) -> None:
        """Give `keep` what the tokens of each sequence have together of each word, special tokens included."""
        self.head(self.states(batch), batch, pooling, keep)


class PackedPairEncoder(PackedEncoder):
    """An encoder of one of `PACKED_TYPES` with the head of a cross-encoder, which scores a pair of texts in one row."""

    def __init__(self, shape: Shape, weights: Weights) -> None:
        super().__init__(shape, weights)
        self.embeddings.types = weights.types(shape)
        self.head = _ScoringHead(weights, shape)

    def scores(self, batch: PackedBatch) -> Tensor:
        """Compute the logit of each row of a batch, [rows]; `batch.types` tells its two texts apart."""
        return self.head(self.states(batch)[batch.starts[:-1]])  # type: ignore[no-any-return]


class _ScoringHead(nn.Module):
    """The first token's state [rows, width] to a logit for each row."""

    def __init__(self, weights: Weights, shape: Shape) -> None:
        super().__init__()
        dense, self._activation, out = shape.names.scorer
        self.dense = _Transform(weights, [dense], shape.width, shape.width)
        self.out = _Score(weights, out, shape.width)

    def forward(self, first: Tensor) -> Tensor:
        hidden = self.dense(first)
        hidden = hidden.relu_() if self._activation == "relu" else hidden.tanh_()
        return self.out(hidden)  # type: ignore[no-any-return]


class _MaskedLmHead(nn.Module):
    """Hidden states to logits, a part of the tokens at a time."""

    def __init__(self, weights: Weights, shape: Shape) -> None:
        super().__init__()
        transform, norm, _, _ = shape.names.head
        self.transform = _Transform(weights, [transform], shape.width, shape.width, shape.head_activation)
        self.norm = _norm(weights, norm, shape)
        self.decoder = _Decoder(*weights.decoder(shape))

    def forward(self, rows: Tensor, batch: PackedBatch, pooling: TermPooling, keep: KeepTerms) -> None:
        self.decoder(self.norm(self.transform(rows)), batch, pooling, keep)


class _Embeddings(nn.Module):
    """Ids to rows: words and places, normalised."""

    def __init__(self, weights: Weights, shape: Shape) -> None:
        super().__init__()
        self._padding = shape.padding
        self.words = weights.take("embeddings.word_embeddings.weight", shape.words, shape.width)
        self.places = weights.places(shape)
        self.types: nn.Parameter | None = None
        self.norm = _norm(weights, "embeddings.LayerNorm", shape)

    def forward(self, batch: PackedBatch) -> Tensor:
        rows = F.embedding(batch.ids, self.words).add_(F.embedding(self._counted(batch), self.places))
        if self.types is not None and batch.types is not None:
            rows.add_(F.embedding(batch.types, self.types))
        return self.norm(rows)  # type: ignore[no-any-return]

    def _counted(self, batch: PackedBatch) -> Tensor:
        """Which counted token of its sequence each one is, from 1; 0 for those that have no position."""
        if self._padding < 0:
            return batch.positions + 1
        counts = ((batch.ids != self._padding) & (batch.rows < len(batch.lengths))).long()
        before = F.pad(counts.cumsum(0), (1, 0))
        return (before[1:] - before[batch.starts][batch.rows]) * counts


class _Nearness(nn.Module):
    """MPNet's addition to the attention scores, `[1, heads, L, L]`; shorter sequences use its corner."""

    def __init__(self, weights: Weights, shape: Shape) -> None:
        super().__init__()
        self.table = weights.take("encoder.relative_attention_bias.weight", _BUCKETS, shape.heads)

    def forward(self, longest: int) -> Tensor:
        place = torch.arange(math.ceil(longest / _ALIGN) * _ALIGN, device=self.table.device)
        return self.table[_buckets(place - place[:, None])].permute(2, 0, 1).contiguous()[None]


class _Attention(nn.Module):
    """The first half of a layer, which also wants to know where each sequence begins and ends."""

    def __init__(self, weights: Weights, prefix: str, shape: Shape) -> None:
        super().__init__()
        *qkv, out, norm = [prefix + part for part in shape.names.attention]
        self._heads, self._head = shape.heads, shape.head
        self.qkv = _Linear(weights, qkv, shape.width, shape.width)
        self.out = _Linear(weights, [out], shape.width, shape.width)
        self.norm = _norm(weights, norm, shape)

    def forward(self, rows: Tensor, batch: PackedBatch, bias: Tensor | None) -> Tensor:
        query, key, value = self.qkv.activated(rows).view(len(rows), 3, self._heads, self._head).unbind(1)
        mixed = attend(query, key, value, batch, bias=bias).flatten(1)
        del query, key, value
        if batch.triton:
            return add_normed(self.out.activated(mixed), rows, self.norm)
        return self.norm(self.out.added(mixed, rows))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """The second half of a layer: each row by itself, so that rows may also come a few at a time."""

    def __init__(self, weights: Weights, prefix: str, shape: Shape) -> None:
        super().__init__()
        up, down, norm = [prefix + part for part in shape.names.feed_forward]
        self.up = _Linear(weights, [up], shape.inner, shape.width, shape.activation)
        self.down = _Linear(weights, [down], shape.width, shape.inner)
        self.norm = _norm(weights, norm, shape)

    def forward(self, rows: Tensor, batch: PackedBatch, bias: Tensor | None) -> Tensor:
        if batch.triton:
            return add_normed(self.down.activated(self.up.activated(rows)), rows, self.norm)
        rows = self.down.added(self.up.activated(rows), rows)
        return self.norm(rows)  # type: ignore[no-any-return]


class _Linear(nn.Module):
    """One map for all `names`, their outputs side by side; once packed, one kernel with what follows it."""

    activation = "none"

    def __init__(
        self, weights: Weights, names: Sequence[str], rows: int, columns: int, activation: str = "none"
    ) -> None:
        super().__init__()
        self.activation = activation
        first, *others = [weights.take(f"{name}.weight", rows, columns) for name in names]
        self.weight = frozen(torch.cat([first, *others])) if others else first  # a copy would take memory of its own
        self.bias = frozen(torch.cat([weights.take(f"{name}.bias", rows) for name in names]))

    def activated(self, rows: Tensor) -> Tensor:
        if self.weight.is_mkldnn:
            fuse = torch.ops.mkldnn._linear_pointwise.default
            return fuse(rows, self.weight, self.bias, self.activation, [], "none")  # type: ignore[no-any-return]
        plain = F.linear(rows, self.weight, self.bias)
        if self.activation == "gelu":
            return torch.ops.aten.gelu_(plain)  # type: ignore[no-any-return]
        return plain.relu_() if self.activation == "relu" else plain

    def added(self, rows: Tensor, other: Tensor) -> Tensor:
        if self.weight.is_mkldnn:
            fuse = torch.ops.mkldnn._linear_pointwise.binary
            return fuse(rows, other, self.weight, self.bias, "add")  # type: ignore[no-any-return]
        return F.linear(rows, self.weight, self.bias).add_(other)


class _Transform(_Linear):
    """The first step of a masked-LM head; called as a module, so that its weights may come when it is its turn."""

    def forward(self, rows: Tensor) -> Tensor:
        return self.activated(rows)


class _Score(nn.Module):
    """The last step of a cross-encoder, in float32: a half has eleven bits, and would have good candidates tie."""

    def __init__(self, weights: Weights, name: str, width: int) -> None:
        super().__init__()
        self.weight, self.bias = weights.take(f"{name}.weight", 1, width), weights.take(f"{name}.bias", 1)

    def forward(self, rows: Tensor) -> Tensor:
        return F.linear(rows.float(), self.weight.float(), self.bias.float())[:, 0]


class _Decoder(_Linear):
    """The last step of a masked-LM head, and its logits pooled for each sequence. Its weights are its own, also where
    they equal the embedding's: the two may lie in different layouts, and come to a device at different times."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        nn.Module.__init__(self)
        self.weight, self.bias = weight, bias

    def forward(self, rows: Tensor, batch: PackedBatch, pooling: TermPooling, keep: KeepTerms) -> None:
        ends = np.cumsum(batch.lengths)
        block = rows.new_empty(HEAD_ROWS, len(self.bias), dtype=pooling.held(rows.dtype))
        for start in range(0, len(rows), HEAD_TOKENS):
            stop = min(start + HEAD_TOKENS, batch.tokens)
            logits = pooling.prepare(self.activated(rows[start : start + HEAD_TOKENS]))
            first, last = (int(np.searchsorted(ends, token, "right")) for token in (start, stop - 1))
            bounds = [0, *(ends[first:last] - start).tolist(), stop - start]
            for number, (begin, end) in enumerate(pairwise(bounds)):
                place = number % HEAD_ROWS
                pooling.pool(logits[begin:end], block[place])
                if place == HEAD_ROWS - 1 or first + number == last:
                    keep(first + number - place, block[: place + 1])
            del logits  # before the next ones are computed


def _buckets(distance: Tensor) -> Tensor:
    """T5's two-sided buckets as MPNet uses them: exact for near keys, then logarithmic up to `_REACH`."""
    side, exact = _BUCKETS // 2, _BUCKETS // 4
    away = distance.abs()
    far = torch.log(away.clamp(min=1).float() / exact) / math.log(_REACH / exact) * (side - exact)
    return torch.where(away < exact, away, (exact + far.long()).clamp(max=side - 1)) + (distance > 0) * side


def _norm(weights: Weights, name: str, shape: Shape) -> nn.LayerNorm:
    norm = nn.LayerNorm(shape.width, shape.epsilon)
    norm.weight, norm.bias = (weights.take(f"{name}.{part}", shape.width) for part in ("weight", "bias"))
    return norm
