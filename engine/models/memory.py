"""The memory law: how much a forward pass takes, before it is run, and what measuring teaches about it.

`peak(tokens, longest) = weights + tokens * max(token + mask * longest, attention + pair * longest) + square *
longest^2`: nothing depends on the depth, because inference keeps no graph. `law_for` estimates the terms from a model's
configuration; the first measured batch sets the scale, and every batch after corrects it. An estimate that is too low
costs a step of the ladder under the allocator's wall, never memory that is not there.

`tokens` counts padding; sizes are bytes. All of it is pure.
"""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from interlock.engine.models.heads import VECTORS
from interlock.engine.models.layout import STATIC_TYPE, values_in
from interlock.engine.models.networks.checkpoint import packable, usual
from interlock.engine.models.networks.kernels import ALIGNED, Kernel
from interlock.engine.models.networks.network import HEAD_ROWS, HEAD_TOKENS
from interlock.engine.models.networks.sizes import Sizes, sizes_of
from interlock.engine.models.registry import Kind

if TYPE_CHECKING:
    from interlock.engine.models.card import ModelCard

HEAP_FACTOR = 4.5
"""Resident memory for each byte of activations on a CPU: what the C library's heap and the kernels keep beside what is
in use. Measured, float32: 1.8 for rows of 250 tokens, 4.4 for rows of 26."""

WINDOW = 64
FIRST_MARGIN, LEAST_MARGIN, MOST_MARGIN = 0.05, 0.01, 0.5
EASING = (LEAST_MARGIN / FIRST_MARGIN) ** (1 / WINDOW)
"""What a clean batch leaves of the margin: `WINDOW` of them lead from the first to the least."""
UNBOUNDED = 1 << 40
"""Tokens that no forward has."""
UNKNOWN = Sizes(1024, 24, 16, 1024, 1024, 4096, gated=True, words=1 << 17)
"""What a configuration is taken to say that does not say how wide and how deep its model is."""
DISTANCES = 44.0
"""Bytes that the distance of two tokens of a row takes where a network makes numbers of it."""
WINDOWED = ("modernbert", "gemma2", "gemma3")
"""Model types of which some layers see a window, whether or not the configuration says so."""
WIDEST_HALVES = 128
"""Values of a head: memory-efficient attention sums wider ones in float32 (`output_accum` of attention.cu)."""
BATCH_TOKEN = 24
"""Bytes that a batch brings along for each token: its id, its position and its row."""
SHORTEST = 3
"""Tokens of a row that has any word: one, between two that are special."""
WEIGHED, TERM = 1 / 8, 8
"""The share of all words that a text is taken to have weights of, which trained models stay far below, and the bytes of
an index and its weight."""
POOLING_PAIR = 12.0
"""Bytes of the host that clustering takes for each two tokens of a text: their likeness and their distance, twice."""
Config = Mapping[str, Any]


@dataclass(frozen=True)
class HeadLaw:
    """Bytes of what comes after the layers: a constant, some for each token, and `part` for each of the first `tokens`
    of them, which are as many as it computes at a time; some for each `row` where rows are padded."""

    constant: int
    token: float
    part: float
    tokens: int
    row: float = 0.0

    def activations(self, tokens: int, longest: int) -> int:
        """Predict the bytes beside the weights for `tokens` tokens, padding included, in rows of up to `longest`."""
        rows = self.row * tokens / max(1, longest)
        return math.ceil(self.constant + self.token * tokens + self.part * min(tokens, self.tokens) + rows)


@dataclass(frozen=True)
class Law:
    """Bytes of one model in one precision: weights, and activations by tokens and longest row.

    Two moments of a layer compete, each of some bytes for a token and some for a token and each token of the longest
    row: its widest, `token` beside a `mask` of rows of different lengths; and attention over scores or masks that no
    kernel spares, `attention` and `pair`. `square` is bytes for each pair of tokens of the longest row, whatever the
    batch, and `before` such bytes before the first layer. `slots` is what the weights take on the device when layers
    are streamed: 0 where the model cannot be. `head` is the law of what comes after the layers, where that can be the
    peak.
    """

    weights: int
    token: float
    attention: float = 0.0
    pair: float = 0.0
    square: float = 0.0
    slots: int = 0
    head: HeadLaw | None = None
    mask: float = 0.0
    before: float = 0.0

    def activations(self, tokens: int, longest: int) -> int:
        """Predict the bytes beside the weights for `tokens` tokens, padding included, in rows of up to `longest`."""
        longest += -longest % ALIGNED  # in such steps scores and masks are laid out
        widest = max(self.token + self.mask * longest, self.attention + self.pair * longest)
        layers = math.ceil(tokens * widest + self.square * longest**2)
        return max(
            layers, math.ceil(self.before * longest**2), self.head.activations(tokens, longest) if self.head else 0
        )

    def peak(self, tokens: int, longest: int) -> int:
        """Predict the bytes of weights and activations together."""
        return self.weights + self.activations(tokens, longest)


@dataclass(frozen=True)
class Calibration:
    """What measured batches say of a law: a `scale` on its activations, and a `margin` for what still varies.

    The margin begins at 5 %, falls towards 1 % while batches are clean and doubles when the allocator struggled;
    `residuals` are measured / predicted of the last batches, with the scale of their time.
    """

    scale: float = 1.0
    margin: float = FIRST_MARGIN
    batches: int = 0
    residuals: tuple[float, ...] = ()

    def activations(self, law: Law, tokens: int, longest: int) -> int:
        """Predict the bytes beside the weights that a forward must be given: the law, corrected, with its margin."""
        return math.ceil(law.activations(tokens, longest) * self.scale * (1 + self.margin))

    def most_tokens(self, law: Law, longest: int, room: int) -> int:
        """Return the most tokens, padding included, whose activations fit `room` bytes; 0 where not one does."""
        return bisect_right(range(1, UNBOUNDED), room, key=lambda tokens: self.activations(law, tokens, longest))

    def observed(self, predicted: int, measured: int) -> "Calibration":
        """Take in one clean batch more: `predicted` by the law alone, `measured` activations of it, in bytes.

        The first batch sets the scale; after it only what exceeds the corrected law moves it, up to what covers it.
        """
        ratio = max(1, measured) / max(1, predicted)
        residual = ratio / self.scale
        scale = ratio if not self.batches else max(self.scale, ratio)
        residuals = (*self.residuals, residual)[-WINDOW:] if self.batches else ()
        worst = max(residuals, default=1.0) - 1
        margin = min(MOST_MARGIN, max(LEAST_MARGIN, worst, self.margin * EASING))
        return Calibration(scale, margin, self.batches + 1, residuals)

    def strained(self) -> "Calibration":
        """Double the margin, after an out-of-memory error or allocator retries."""
        return replace(self, margin=min(MOST_MARGIN, 2 * self.margin))


def law_for(card: "ModelCard", device_kind: str) -> Law:
    """Estimate the law of a card's model on a device of this kind, with what its tokens give beside the layers."""
    host, dtype = device_kind == "cpu", getattr(torch, "float32" if card.dtype == "int8" else card.dtype)
    size = 2 if device_kind == "sim" else dtype.itemsize
    kind, kernel = card.network_kind, card.kernel_on(device_kind)
    law = law_of(card.config, size, packed=card.packed, attends=card.attention, kernel=kernel, kind=kind, host=host)
    files = () if card.ours or card.static or card.onnx else card.snapshot.weights
    own = card.snapshot.bytes if card.onnx else size * sum(map(values_in, files)) or law.weights
    weights = own + size * sum(map(values_in, card.snapshot.heads.values()))
    # Weights in int8 count as float32: so they are read before maps are packed, and that room is needed then. A BERT of
    # 109 million numbers (415 MiB) took 552 MiB while it was attached, in float32 553; 188 MiB stayed (427), and 726
    # (834) was the most with 64 rows of 250 tokens: resident memory on one thread of an AMD EPYC with AVX-512 and VNNI.
    law = replace(law, weights=weights)
    width = int(card.config.get("hidden_size") or card.dim)
    if card.dtype == "int8" and (sizes := sizes_of(card.config)):  # a byte for each number that goes into a map
        law = replace(law, token=law.token + sizes.inner)
    if law.head:
        # Weights are summed from a copy of a part's logits where these are not in float32 already.
        given = torch.float32 if device_kind == "sim" else dtype
        wide = card.terms.held(given)
        if wide != given:
            wider = HEAD_ROWS * card.words * (wide.itemsize - given.itemsize)
            part = law.head.part + float(wide.itemsize * card.words)
            law = replace(law, head=replace(law.head, constant=law.head.constant + wider, part=part))
    if made := card.by_token.vectors:
        pooled = POOLING_PAIR if host and made.pooling > 1 else 0.0
        return replace(law, head=token_law(width, made.dim, size, host=host), square=law.square + pooled)
    return law if card.by_token.unweighed is None else replace(law, head=weight_law(width, size))


def law_of(
    config: Config,
    size: int,
    *,
    packed: bool,
    attends: str = "sdpa",
    kernel: Kernel = Kernel.HOST,
    kind: Kind = "dense",
    host: bool = False,
) -> Law:
    """Estimate the law of what `config.json` describes, in values of `size` bytes, laid end to end or padded.

    The terms are what a layer holds at its widest moment, read off traces of published networks; `docs/memory.md` says
    how far off they are. The weights are those of the network alone, and of the head where the `kind` has one.
    """
    config = dict(usual(config))
    if config.get("model_type") == STATIC_TYPE:
        width = int(config["hidden_size"])
        return Law(size * int(config["vocab_size"]) * width, token=BATCH_TOKEN + (size + 4.0) * width)
    sizes = sizes_of(config) or UNKNOWN
    if packed:
        law = _end_to_end(config, sizes, size, kernel)
    elif attends == "eager" or kernel in (Kernel.RUNS, Kernel.MATH):
        law = _scores_kept(config, sizes, size, kernel)
    else:
        law = _padded(config, sizes, size)
    width, words = sizes.width, sizes.words
    layer = sizes.attention + sizes.feed_forward + 9 * width + sizes.inner
    positions = int(config.get("max_position_embeddings") or 0) if packable(config) else 0
    tables = (words + positions + 2) * width
    pooler = 0 if packed or sizes.gated else (width + 1) * width
    beside = {"sparse": (words + width + 3) * width + words, "scores": (width + 3) * width, "dense": pooler}[kind]
    largest = tables if packed and packable(config) else 0  # transformers' stay on the host, where rows are looked up
    return replace(
        law,
        weights=size * (tables + sizes.depth * layer + beside),
        token=law.token + BATCH_TOKEN,
        slots=size * max(2 * layer, largest),
        head=_sparse_head(sizes, size, host=host) if kind == "sparse" else None,
    )


def _windowed(config: Config) -> bool:
    """Whether some layers see a window only, which has a mask of its own."""
    window = config.get("sliding_window") and config.get("use_sliding_window") is not False
    return bool(window or str(config.get("model_type")).startswith(WINDOWED))


def _end_to_end(config: Config, sizes: Sizes, size: int, kernel: Kernel) -> Law:
    """State the terms of layers without padding: no mask but that of a window, and scores of one row at a time."""
    width, inner, kind = sizes.width, sizes.inner, config.get("model_type")
    windowed = _windowed(config)
    if packable(config):
        values: float = max(6 * width, 2 * width + inner)
    else:
        values = _turned(config, sizes, size, kernel)
    if kind == "mpnet":  # what it adds to the scores of a row, made from distances of its tokens
        scores = float(sizes.heads * size)
        return Law(0, size * values, square=scores, before=max(2 * scores, DISTANCES))
    return Law(0, size * values, square=float(size) if kernel.plain is not Kernel.FLASH and windowed else 0.0)


def _turned(config: Config, sizes: Sizes, size: int, kernel: Kernel) -> float:
    """Values that each token holds at the widest moment of layers that turn queries and keys by their positions.

    Attention has queries, keys, values and what comes out; beside them fewer heads of keys spread over those of
    queries, which flash attention and the host spare, and rows joined where they took turns or sums in float32 of wide
    heads. A gated feed-forward has both halves and their product, which Triton writes over the first; ModernBERT
    keeps them while it makes a third.
    """
    windowed, head = _windowed(config), sizes.queries // sizes.heads
    triton, kernel = kernel.triton, kernel.plain
    two = str(config.get("model_type")).startswith(WINDOWED)  # layers with a window turn by angles of their own
    angles = 2 * head * (2 if two else 1)
    joined = kernel in (Kernel.HOST, Kernel.RUNS) or (windowed and kernel is not Kernel.FLASH)
    spread = sizes.keys != sizes.queries and kernel in (Kernel.EFFICIENT, Kernel.RUNS)
    summed = kernel is Kernel.EFFICIENT and size == 2 and head > WIDEST_HALVES
    beside = sizes.queries * (2 * spread + max(joined, 2 * summed))
    attention = 3 * sizes.width + 2 * (sizes.queries + sizes.keys) + beside
    halves = (4 if config.get("model_type") == "modernbert" else 2 if triton else 3) * sizes.inner
    return angles + max(attention, 5 * sizes.width + halves)


def _padded(config: Config, sizes: Sizes, size: int) -> Law:
    """State the terms of padded layers under a fused kernel: a mask of rows of different lengths, as it comes and, for
    attention, in numbers; and of layers with a window a second one, made from distances."""
    masks, before = (2.0, 16.0 + size) if _windowed(config) else (1.0, 0.0)
    attention = 3 * sizes.width + 4 * sizes.queries + 2 * sizes.keys if sizes.gated else 6 * sizes.width
    token = size * _between(config, sizes)
    return Law(0, token, size * attention, masks + size, mask=masks, before=before)


def _scores_kept(config: Config, sizes: Sizes, size: int, kernel: Kernel) -> Law:
    """State the terms of padded layers whose scores are written out: the mask in numbers, the scores of the layer
    before, and at the widest two of them, or what their softmax in float32 takes. Torch itself computes halves in
    float32 where it has no fused kernel: queries, keys, values, scores and what comes of them."""
    width, heads = sizes.width, sizes.heads
    attention = 3 * width + 3 * sizes.queries + 2 * sizes.keys if sizes.gated else 5 * width
    copies = 4 if config.get("model_type") == "mpnet" else 5 if size < 4 and sizes.gated else 2
    if kernel is Kernel.MATH and size < 4:
        copies, attention = 4, attention + 11 * sizes.queries
    token, kept, most = size * _between(config, sizes), (heads + 1) * size, (copies * heads + 1) * size
    return Law(0, token, float(size * attention), float(most), mask=float(kept))


def _between(config: Config, sizes: Sizes) -> float:
    """Values that each token of padded layers holds at their widest moment outside of attention."""
    if config.get("model_type") == "modernbert":
        return max(15.1 * sizes.width, 5.1 * sizes.width + 4 * sizes.inner)
    return (4.2 if sizes.gated else 3.1) * sizes.width + (3 if sizes.gated else 2) * sizes.inner


def _sparse_head(sizes: Sizes, size: int, *, host: bool) -> HeadLaw:
    """The law of a masked-LM head: states before and after its first step, the logits of a part, and the largest of a
    block of rows. On the host its results stay: two blocks of rows, and of all rows twice their terms."""
    row = sizes.words * size
    constant, token = HEAD_ROWS * row, float(2 * sizes.width * size + BATCH_TOKEN)
    if host:
        constant += 2 * HEAD_ROWS * 4 * sizes.words
        token += 2 * TERM * WEIGHED * sizes.words / SHORTEST
    return HeadLaw(constant, token, float(row), HEAD_TOKENS)


def token_law(width: int, dim: int, size: int, *, host: bool) -> HeadLaw:
    """State the law of token vectors of `dim` numbers from states of `width` in values of `size` bytes.

    Beside the states and what a batch brings along there are a part's vectors before and after they are brought to unit
    length. On the `host` all vectors are kept, and brought to int8 with two copies.
    """
    states = float(width * size + BATCH_TOKEN)
    return HeadLaw(0, states + 13 * dim, 0.0, VECTORS) if host else HeadLaw(0, states, float(8 * dim), VECTORS)


def weight_law(width: int, size: int) -> HeadLaw:
    """State the law of the weights of tokens: the states, what a batch brings along, and two numbers for each token."""
    return HeadLaw(0, float(width * size + BATCH_TOKEN + size + 4), 0.0, VECTORS)
