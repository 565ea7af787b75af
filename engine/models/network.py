"""The forward pass of BERT-family encoders over packed rows: sequences laid end to end, no padding.

Token ids (special tokens included) and the length of each sequence go in; the last hidden state comes out,
one row for each token, as transformers computes it: in float32 equal to rounding. With its masked-LM head an encoder
gives one row of term weights for each sequence instead. Every setting and weight is checked when the encoder is made;
what this code cannot compute exactly is refused with a ValueError.
"""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from interlock.engine.models.attention import attend
from interlock.engine.models.packing import PackedBatch

PACKED_TYPES = frozenset({"bert", "roberta", "xlm-roberta", "mpnet"})
TERM_TYPES = frozenset({"bert"})
"""Whose masked-LM head is known here too."""
HEAD = "cls.predictions."
"""What the names of a head's tensors begin with."""
PART, BLOCK = 256, 16
"""A head computes so many tokens at a time, and gives the terms of so many of their sequences at a time: the logits of
a whole batch would be gigabytes. Each block that leaves a GPU is waited for, which was not measured on one yet."""
Keep = Callable[[int, Tensor], object]
"""Takes the number of a sequence and `[n, words]`, its largest logits and those of its followers, for the tokens of one
part; it must not keep the tensor. A sequence in several parts is given several times."""

_BERT_PARTS = ("attention.self.query", "attention.self.key", "attention.self.value",
               "attention.output.dense", "attention.output.LayerNorm")  # fmt: skip
_MPNET_PARTS = ("attention.attn.q", "attention.attn.k", "attention.attn.v",
                "attention.attn.o", "attention.LayerNorm")  # fmt: skip
_FORMER_NORM = {"weight": ".gamma", "bias": ".beta"}  # what a norm's tensors were called in TensorFlow's checkpoints
_BUCKETS, _REACH = 32, 128  # of MPNet's relative positions; transformers ignores the config's number too
_ALIGN = 16  # CUDA's fused attention wants each row of a bias to start on such a boundary


class PackedEncoder(nn.Module):
    """An encoder of one of `PACKED_TYPES`, made by `from_state`. Its weights take no gradients."""

    def __init__(self, shape: "_Shape", weights: "_Weights") -> None:
        super().__init__()
        self.embeddings = _Embeddings(weights, shape)
        self.nearness = _Nearness(weights, shape) if shape.kind == "mpnet" else None
        prefixes = [f"encoder.layer.{number}." for number in range(shape.depth)]
        self.layers = nn.ModuleList(
            half(weights, prefix, shape) for prefix in prefixes for half in (_Attention, FeedForward)
        )

    @classmethod
    def from_state(
        cls, config: Mapping[str, object], state: Mapping[str, Tensor], dtype: torch.dtype = torch.float32
    ) -> "PackedEncoder":
        """Build the encoder in `dtype` that a parsed `config.json` and the tensors of `model.safetensors` describe.

        Names may carry a prefix (`bert.`, `roberta.`, ...); poolers and heads are left alone. Raises
        ValueError naming the setting not supported, or the tensor that is missing or has another shape.
        """
        return cls(_Shape(config), _Weights(state, dtype))

    @classmethod
    def blank(cls, config: Mapping[str, object], dtype: torch.dtype = torch.float32) -> "PackedEncoder":
        """Build the encoder of `config` with weights that nobody set, for sizes and traces under FakeTensorMode."""
        return cls(_Shape(config), _Blank({}, dtype))

    @property
    def width(self) -> int:
        """Numbers in a row of the result: the hidden size."""
        return self.embeddings.words.shape[1]

    def pack_for_cpu(self) -> "PackedEncoder":
        """Lay the weights out for oneDNN's fused kernels, in place of the originals; returns the encoder.

        Call it last: packed weights can no longer be moved or converted. Where the device is not a CPU, or
        torch lacks these kernels, nothing happens.
        """
        words = self.embeddings.words
        if words.device.type != "cpu" or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
            return self
        bfloat16 = words.dtype is torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        for module in self.modules() if bfloat16 or words.dtype is torch.float32 else ():
            if isinstance(module, _Linear) and not module.weight.is_mkldnn:
                module.weight = _frozen(torch.ops.mkldnn._reorder_linear_weight(module.weight.data))
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
    """An encoder of one of `TERM_TYPES` with its masked-LM head, which scores every word of its vocabulary."""

    def __init__(self, shape: "_Shape", weights: "_Weights") -> None:
        super().__init__(shape, weights)
        self.head = _MaskedLmHead(weights, shape)

    @property
    def words(self) -> int:
        """Numbers in a row of the result: the size of the vocabulary."""
        return self.embeddings.words.shape[0]

    def terms(self, batch: PackedBatch, keep: Keep) -> None:
        """Give `keep` the largest logit of each word over the tokens of each sequence, special tokens included."""
        self.head(self.states(batch), batch, keep)


class _MaskedLmHead(nn.Module):
    """Hidden states to logits, a part of the tokens at a time."""

    def __init__(self, weights: "_Weights", shape: "_Shape") -> None:
        super().__init__()
        self.transform = _Transform(weights, [f"{HEAD}transform.dense"], shape.width, shape.width)
        self.transform.activation = shape.activation
        self.norm = _norm(weights, f"{HEAD}transform.LayerNorm", shape)
        self.decoder = _Decoder(*weights.decoder(shape))

    def forward(self, rows: Tensor, batch: PackedBatch, keep: Keep) -> None:
        self.decoder(self.norm(self.transform(rows)), batch, keep)


class _Embeddings(nn.Module):
    """Ids to rows: words and places, normalised."""

    def __init__(self, weights: "_Weights", shape: "_Shape") -> None:
        super().__init__()
        self._padding = shape.padding
        self.words = weights.take("embeddings.word_embeddings.weight", shape.words, shape.width)
        self.places = weights.places(shape)
        self.norm = _norm(weights, "embeddings.LayerNorm", shape)

    def forward(self, batch: PackedBatch) -> Tensor:
        rows = F.embedding(batch.ids, self.words).add_(F.embedding(self._counted(batch), self.places))
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

    def __init__(self, weights: "_Weights", shape: "_Shape") -> None:
        super().__init__()
        self.table = weights.take("encoder.relative_attention_bias.weight", _BUCKETS, shape.heads)

    def forward(self, longest: int) -> Tensor:
        place = torch.arange(math.ceil(longest / _ALIGN) * _ALIGN, device=self.table.device)
        return self.table[_buckets(place - place[:, None])].permute(2, 0, 1).contiguous()[None]


class _Attention(nn.Module):
    """The first half of a layer, which also wants to know where each sequence begins and ends."""

    def __init__(self, weights: "_Weights", prefix: str, shape: "_Shape") -> None:
        super().__init__()
        *qkv, out, norm = [prefix + part for part in (_MPNET_PARTS if shape.kind == "mpnet" else _BERT_PARTS)]
        self._heads, self._head = shape.heads, shape.head
        self.qkv = _Linear(weights, qkv, shape.width, shape.width)
        self.out = _Linear(weights, [out], shape.width, shape.width)
        self.norm = _norm(weights, norm, shape)

    def forward(self, rows: Tensor, batch: PackedBatch, bias: Tensor | None) -> Tensor:
        query, key, value = self.qkv.activated(rows).view(len(rows), 3, self._heads, self._head).unbind(1)
        mixed = attend(query, key, value, batch, bias=bias).flatten(1)
        del query, key, value
        return self.norm(self.out.added(mixed, rows))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """The second half of a layer: each row by itself, so that rows may also come a few at a time."""

    def __init__(self, weights: "_Weights", prefix: str, shape: "_Shape") -> None:
        super().__init__()
        self._activation = shape.activation
        self.up = _Linear(weights, [prefix + "intermediate.dense"], shape.inner, shape.width)
        self.down = _Linear(weights, [prefix + "output.dense"], shape.width, shape.inner)
        self.norm = _norm(weights, prefix + "output.LayerNorm", shape)

    def forward(self, rows: Tensor, batch: PackedBatch, bias: Tensor | None) -> Tensor:
        rows = self.down.added(self.up.activated(rows, self._activation), rows)
        return self.norm(rows)  # type: ignore[no-any-return]


class _Linear(nn.Module):
    """One map for all `names`, their outputs side by side; once packed, one kernel with what follows it."""

    def __init__(self, weights: "_Weights", names: Sequence[str], rows: int, columns: int) -> None:
        super().__init__()
        self.weight = _frozen(torch.cat([weights.take(f"{name}.weight", rows, columns) for name in names]))
        self.bias = _frozen(torch.cat([weights.take(f"{name}.bias", rows) for name in names]))

    def activated(self, rows: Tensor, name: str = "none") -> Tensor:
        if self.weight.is_mkldnn:
            fuse = torch.ops.mkldnn._linear_pointwise.default
            return fuse(rows, self.weight, self.bias, name, [], "none")  # type: ignore[no-any-return]
        plain = F.linear(rows, self.weight, self.bias)
        if name == "gelu":
            return torch.ops.aten.gelu_(plain)  # type: ignore[no-any-return]
        return plain.relu_() if name == "relu" else plain

    def added(self, rows: Tensor, other: Tensor) -> Tensor:
        if self.weight.is_mkldnn:
            fuse = torch.ops.mkldnn._linear_pointwise.binary
            return fuse(rows, other, self.weight, self.bias, "add")  # type: ignore[no-any-return]
        return F.linear(rows, self.weight, self.bias).add_(other)


class _Transform(_Linear):
    """The first step of a masked-LM head; called as a module, so that its weights may come when it is its turn."""

    activation = "gelu"

    def forward(self, rows: Tensor) -> Tensor:
        return self.activated(rows, self.activation)


class _Decoder(_Linear):
    """The last step of a masked-LM head, and the largest logit of each sequence. Its weights are its own, also where
    they equal the embedding's: the two may lie in different layouts, and come to a device at different times."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        nn.Module.__init__(self)
        self.weight, self.bias = weight, bias

    def forward(self, rows: Tensor, batch: PackedBatch, keep: Keep) -> None:
        ends = np.cumsum(batch.lengths)
        block = rows.new_empty(BLOCK, len(self.bias))
        for start in range(0, len(rows), PART):
            stop = min(start + PART, batch.tokens)
            logits = self.activated(rows[start : start + PART])
            first, last = (int(np.searchsorted(ends, token, "right")) for token in (start, stop - 1))
            bounds = [0, *(ends[first:last] - start).tolist(), stop - start]
            for number, (begin, end) in enumerate(pairwise(bounds)):
                place = number % BLOCK
                torch.amax(logits[begin:end], 0, out=block[place])
                if place == BLOCK - 1 or first + number == last:
                    keep(first + number - place, block[: place + 1])
            del logits  # before the next ones are computed


def _buckets(distance: Tensor) -> Tensor:
    """T5's two-sided buckets as MPNet uses them: exact for near keys, then logarithmic up to `_REACH`."""
    side, exact = _BUCKETS // 2, _BUCKETS // 4
    away = distance.abs()
    far = torch.log(away.clamp(min=1).float() / exact) / math.log(_REACH / exact) * (side - exact)
    return torch.where(away < exact, away, (exact + far.long()).clamp(max=side - 1)) + (distance > 0) * side


def _norm(weights: "_Weights", name: str, shape: "_Shape") -> nn.LayerNorm:
    norm = nn.LayerNorm(shape.width, shape.epsilon)
    norm.weight, norm.bias = (weights.take(f"{name}.{part}", shape.width) for part in ("weight", "bias"))
    return norm


def gives_terms(config: Mapping[str, object]) -> bool:
    """Tell whether this code also computes the masked-LM head of what a `config.json` describes."""
    return packable(config) and config.get("model_type") in TERM_TYPES


def packable(config: Mapping[str, object]) -> bool:
    """Tell whether this code computes exactly what a `config.json` describes."""
    try:
        _Shape(config)
    except ValueError:
        return False
    return True


class _Shape:
    """What `config.json` says, checked."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self.kind = _one_of(config, "model_type", PACKED_TYPES)
        _one_of({"position_embedding_type": "absolute", **config}, "position_embedding_type", {"absolute"})
        self.activation = _one_of(config, "hidden_act", {"gelu", "relu"})
        if config.get("is_decoder"):
            raise ValueError("config.json: is_decoder is not supported by the packed encoder")
        self.width, self.inner = _count(config, "hidden_size"), _count(config, "intermediate_size")
        self.heads, self.depth = _count(config, "num_attention_heads"), _count(config, "num_hidden_layers")
        self.words, self.positions = _count(config, "vocab_size"), _count(config, "max_position_embeddings")
        self.epsilon = float(str(config.get("layer_norm_eps", 1e-12)))
        self.types = _count({"type_vocab_size": 2, **config}, "type_vocab_size")
        # RoBERTa's kin give the pad token no position and begin after its id; BERT counts every token
        fixed = {"bert": -1, "mpnet": 1}
        self.padding = fixed[self.kind] if self.kind in fixed else _count(config, "pad_token_id")
        self.tied = config.get("tie_word_embeddings", True) is not False
        if self.heads < 1 or self.width % self.heads:
            raise ValueError(f"config.json: hidden_size {self.width} is not a multiple of {self.heads} heads")
        self.head = self.width // self.heads


def _count(config: Mapping[str, object], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int):
        raise ValueError(f"config.json: {key}: expected a whole number, got {value!r}")
    return value


def _one_of(config: Mapping[str, object], key: str, known: Container[str]) -> str:
    value = config.get(key)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"config.json: {key} {value!r} is not supported by the packed encoder")
    return value


class _Weights:
    """The tensors of a checkpoint by their plain names; each is checked as it is taken."""

    def __init__(self, state: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        anchor = "embeddings.word_embeddings.weight"
        self._prefix = next((name.removesuffix(anchor) for name in state if name.endswith(anchor)), "")
        self._state, self._dtype = state, dtype

    def take(self, name: str, *shape: int) -> nn.Parameter:
        full = name if name.startswith(HEAD) else self._prefix + name
        tensor = self._state.get(full)
        if tensor is None and (former := _FORMER_NORM.get(name.rpartition("LayerNorm.")[2])):
            tensor = self._state.get(full.rpartition(".")[0] + former)
        if tensor is None:
            raise ValueError(f"the checkpoint lacks the tensor {full}")
        if tensor.shape != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, the configuration says {shape}")
        return _frozen(tensor.to(self._dtype))

    def decoder(self, shape: _Shape) -> tuple[nn.Parameter, nn.Parameter]:
        """Weight and bias of a masked-LM head; where they are tied and the checkpoint has no others, the embedding's
        and that of the predictions."""
        weight, bias = f"{HEAD}decoder.weight", f"{HEAD}decoder.bias"
        if shape.tied and weight not in self._state:
            weight = "embeddings.word_embeddings.weight"
        if shape.tied and bias not in self._state:
            bias = f"{HEAD}bias"
        return self.take(weight, shape.words, shape.width), self.take(bias, shape.words)

    def places(self, shape: _Shape) -> nn.Parameter:
        """Row n is for the n-th counted token and row 0 for an uncounted one; token type 0 is added in."""
        table = self.take("embeddings.position_embeddings.weight", shape.positions, shape.width).data
        if shape.kind != "mpnet":
            table = table + self.take("embeddings.token_type_embeddings.weight", shape.types, shape.width)[0]
        return _frozen(F.pad(table, (0, 0, 1, 0)) if shape.kind == "bert" else table[shape.padding :])


class _Blank(_Weights):
    """Any tensor, uninitialised."""

    def take(self, name: str, *shape: int) -> nn.Parameter:
        return _frozen(torch.empty(shape, dtype=self._dtype))


def _frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)
