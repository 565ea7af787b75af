"""The memory law of a model before it ever runs: its real configuration, traced without weights, content or device.

A few layers of the network are computed over tensors that have a shape and no memory, and every storage that an
operation would have created is counted. Peaks do not depend on the depth, so the law holds for all of it. What was
traced is kept beside the models, and traced anew only for another configuration or other versions of the libraries.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from interlock.engine.errors import InterlockError
from interlock.engine.gpu.memory import HeadLaw, Law, Sample, fit
from interlock.engine.gpu.meter import Counter, Meter
from interlock.engine.models.attention import why_padded
from interlock.engine.models.checkpoint import packable, usual
from interlock.engine.models.layout import values_in
from interlock.engine.models.network import HEAD_ROWS, HEAD_TOKENS, PackedTermEncoder
from interlock.engine.models.registry import Kind
from interlock.engine.models.sdpa import ALIGNED, GpuMeter, Kernel
from interlock.engine.models.sources import model_cache
from interlock.engine.models.stages import size_of, slot_bytes
from interlock.engine.models.subjects import Subject, subject_of
from interlock.engine.models.token_heads import POOLING_PAIR, token_law, weight_law
from interlock.engine.record import atomic

if TYPE_CHECKING:
    from interlock.engine.models.card import ModelCard

LAW_VERSION = 5
STEP = 16
"""Lengths are one above a multiple of it: what is rounded up to such a multiple is then rounded up the most."""
TOKENS = 32 << 10
"""In a traced batch, at least: enough that an allocator's rounding of each tensor does not count."""
SHORTEST = 3
"""Tokens of a row that has any word: one, between two that are special."""
WEIGHED, TERM = 1 / 8, 8
"""The share of all words that a text is taken to have weights of, which trained models stay far below, and the bytes of
an index and its weight."""
Config = Mapping[str, Any]


def law_for(card: "ModelCard", device_kind: str) -> Law:
    """Find the law of a card's model on a device of this kind: its weights as held there, or as its files say."""
    dtype: torch.dtype = getattr(torch, card.dtype)
    size = 2 if device_kind == "sim" else dtype.itemsize
    law = _with_sums(_law_of_network(card, device_kind, dtype, size), card, device_kind)
    return _with_token_heads(law, card, size, host=device_kind == "cpu")


def _with_sums(law: Law, card: "ModelCard", device_kind: str) -> Law:
    """The law with the copy of a part's logits that weights are summed from, where these are not in float32 already;
    what is summed is then as wide."""
    given = torch.float32 if device_kind == "sim" else getattr(torch, card.dtype)
    wide = card.terms.held(given)
    if law.head is None or wide == given:
        return law
    summed = HEAD_ROWS * card.words * (wide.itemsize - given.itemsize)
    head = replace(
        law.head, constant=law.head.constant + summed, part=law.head.part + float(wide.itemsize * card.words)
    )
    return replace(law, head=head)


def _with_token_heads(law: Law, card: "ModelCard", size: int, *, host: bool) -> Law:
    """The law with what a card's tokens give beside the vectors of texts."""
    made, heads = card.by_token, card.snapshot.heads
    width = int(card.config.get("hidden_size") or card.dim)
    if made.vectors:
        head = token_law(width, made.vectors.dim, size, host=host)
    elif made.unweighed is not None:
        head = weight_law(width, size)
    else:
        return law
    law = _weighing(law, law.weights + size * sum(map(values_in, heads.values())))
    pairs = POOLING_PAIR if host and made.vectors and made.vectors.pooling > 1 else 0.0
    return replace(
        law,
        head=head,
        square=law.square + pairs,
        **{
            name: replace(part, head=head, square=part.square + pairs)
            for name in ("bare", "beyond", "aligned")
            if (part := getattr(law, name))
        },
    )


def _law_of_network(card: "ModelCard", device_kind: str, dtype: torch.dtype, size: int) -> Law:
    """The law up to the last hidden states, or for a sparse model's head its logits."""
    if device_kind == "cpu" and card.network_kind == "sparse":
        return _weighing(packed_law(card.config, dtype, "sparse"), _weights_with_head(card.config, dtype))
    if device_kind == "cpu" and card.ours:
        return _weighing(packed_law(card.config, dtype), _weights_in(card, size))
    narrow = device_kind == "sim"
    computed = torch.float32 if narrow else dtype
    kernel = card.kernel_on(device_kind)
    law = law_of(
        card.config,
        packed=card.packed,
        dtype=computed,
        attention=card.attention,
        narrow=narrow,
        kernel=kernel,
        kind=card.network_kind,
    )
    return law if card.ours else _weighing(law, _weights_in(card, size))


def law_of_config_only(
    config: Config,
    device_kind: str,
    dtype: torch.dtype = torch.float16,
    attention: str = "sdpa",
    kernel: Kernel = Kernel.HOST,
    kind: Kind = "dense",
) -> Law:
    """Find the law of a model of which only `config.json` is to be had, pooled as such models mostly are."""
    ours, narrow = packable(config), device_kind == "sim"
    packed = ours or not why_padded(config, attention)
    computed = torch.float32 if narrow else dtype
    kind = kind if ours else "dense"  # of a sparse model that no run would take, what its trunk needs
    law = law_of(config, packed=packed, dtype=computed, attention=attention, narrow=narrow, kernel=kernel, kind=kind)
    return _weighing(packed_law(config, dtype, kind), law.weights) if device_kind == "cpu" and ours else law


def law_of(
    config: Config,
    *,
    packed: bool,
    dtype: torch.dtype,
    attention: str = "sdpa",
    narrow: bool = False,
    kernel: Kernel = Kernel.HOST,
    kind: Kind = "dense",
) -> Law:
    """Find the law of what `config.json` describes, computed in `dtype`: traced, or as it was traced before.

    `packed` networks are ours, without padding; any other is built by transformers, with the given attention kernel
    where it has it. Its law counts the mask that rows of different lengths need; `Law.bare` is the one without.
    `narrow` counts float32 at half its bytes. Weights are those of the network alone, and of the head where the
    `kind` of model computes one. An architecture that cannot be
    traced gets a generous closed form.
    """
    config = usual(config)
    matters = {key: value for key, value in config.items() if key not in _UNHEARD}
    about = [LAW_VERSION, matters, packed, str(dtype), attention, narrow, kernel, *map(metadata.version, _LIBRARIES)]
    about += [kind] if kind != "dense" else []
    about += [HEAD_TOKENS, HEAD_ROWS] if kind == "sparse" else []
    described = json.dumps(about, sort_keys=True, default=str).encode()
    file = model_cache() / "laws" / f"{hashlib.sha256(described).hexdigest()}.json"
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(file.read_bytes(), type=Law)
    try:
        law = _traced(subject_of(config, dtype, attention, kernel, kind, packed=packed), narrow=narrow)
    except Exception:  # what foreign architectures do under a trace is beyond counting; measuring will correct it
        return _guessed(config, 2 if narrow else dtype.itemsize, attention)
    if kind == "sparse":
        law = replace(law, head=head_law(config, 2 if narrow else dtype.itemsize))
    with suppress(InterlockError):  # it can be traced again
        atomic.write_bytes(file, msgspec.json.encode(law))
    return law


_LIBRARIES = ("torch", "transformers")
_UNHEARD = ("_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype", "id2label", "label2id")


def _weights_in(card: "ModelCard", size: int) -> int:
    return size * sum(values_in(file) for file in card.snapshot.weights)


def _weights_with_head(config: Config, dtype: torch.dtype) -> int:
    """Bytes of the whole network: its files may have one table for the embedding and the head, of which it has two."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return size_of(PackedTermEncoder.blank(config, dtype))


def _weighing(law: Law, weights: int) -> Law:
    return replace(law, weights=weights, bare=law.bare and replace(law.bare, weights=weights))


def head_law(config: Config, size: int) -> HeadLaw:
    """State the law of a masked-LM head in values of `size` bytes: states before and after its first step, beside what
    a batch brings with it (three numbers for each token), the logits of a part, and the largest of a block of rows."""
    words = config["vocab_size"] * size
    return HeadLaw(HEAD_ROWS * words, float(2 * config["hidden_size"] * size + 3 * 8), float(words), HEAD_TOKENS)


def packed_law(config: Config, dtype: torch.dtype, kind: Kind = "dense") -> Law:
    """State the packed network's law: `max(6d, 2d + ff)` values for each token, MPNet's addition to the scores, and a
    sparse model's head, whose results lie on the host: two blocks of rows, and of all rows twice their terms."""
    width, inner, size = config["hidden_size"], config["intermediate_size"], dtype.itemsize
    phases = ((float(size * max(6 * width, 2 * width + inner)), 0.0),)
    law = Law(0, 0, phases)
    if config["model_type"] == "mpnet":
        square = float(config["num_attention_heads"] * size)
        prelude = replace(law, phases=((0.0, 0.0),), square=max(2 * square, 44.0))  # the scores twice, or distances
        law = replace(law, square=square, prelude=prelude)
    if kind == "sparse":
        head, words = head_law(config, size), config["vocab_size"]
        blocks, terms = 2 * HEAD_ROWS * 4 * words, 2 * TERM * WEIGHED * words / SHORTEST
        law = replace(law, head=replace(head, constant=head.constant + blocks, token=head.token + terms))
    return law


def _guessed(config: Config, size: int, attention: str) -> Law:
    """Above what gated networks are known to take: `4d + 3ff` values for each token, five scores for each head."""
    width = int(config.get("hidden_size") or config.get("n_embd") or config.get("d_model") or 1024)
    inner = int(config.get("intermediate_size") or config.get("d_ff") or 4 * width)
    heads, depth = int(config.get("num_attention_heads") or 16), int(config.get("num_hidden_layers") or 24)
    values = int(config.get("vocab_size") or 1 << 17) * width + depth * width * (6 * width + 3 * inner)
    slope = 5 * heads * size if attention == "eager" else 2 * (1 + size)
    return Law(values * size, 0, ((float(size * max(4 * width + 3 * inner, 16 * width)), float(slope)),))


def _traced(subject: Subject, *, narrow: bool) -> Law:
    """Sizes of the network, and the law of its forwards with a mask and without."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        network, larger = subject.blank(subject.layers), subject.blank(subject.layers + 1)

        def sampled(shortest: int, longest: int, step: int, *, masked: bool) -> Law:
            samples, sdpa = [], subject.sdpa(masked=masked)
            for rows, wanted in shapes(longest, shortest):
                length = min(longest, longest - longest % step or longest, -(-wanted // step) * step)
                counter = Counter()
                meter = Meter(counter, narrow=narrow) if sdpa is None else GpuMeter(counter, sdpa, narrow=narrow)
                with torch.inference_mode(), meter:
                    subject.forward(network, rows, length, masked=masked)
                samples.append(Sample(subject.tokens(rows, length), length, counter.peak))
            return replace(fit(samples), step=step)

        def fitted(*, masked: bool) -> Law:
            reach, longest = subject.reach(network, masked=masked), subject.longest
            near = sampled(0, min(reach, longest), subject.step if masked else 1, masked=masked)
            if reach >= longest:
                return near
            # The mask of a window is laid out in steps, or copied in each layer; rows that it does not cut have none.
            aligned = sampled(reach, longest, ALIGNED, masked=masked)
            if masked:
                return replace(near, reach=reach, beyond=aligned)
            return replace(near, reach=reach, beyond=sampled(reach, longest, 1, masked=False), aligned=aligned)

        whole = fitted(masked=True)
        bare: Law | None = None
        if subject.masks:
            with suppress(Exception):  # without a mask of its own it counts as with one
                bare = fitted(masked=False)
    share = 2 if narrow else 1
    size = size_of(network)
    # One layer more is what every further layer weighs: the whole depth never has to be built.
    weights = (size + (subject.depth - subject.layers) * (size_of(larger) - size)) // share
    law = replace(whole, slots=slot_bytes(network) // share, bare=bare if bare != whole else None)
    return _weighing(law, weights)


def shapes(longest: int, shortest: int = 0) -> list[tuple[int, int]]:
    """List rows and their length for each forward of a trace, of rows of more than `shortest` up to `longest`."""
    low, top = shortest // STEP, (longest - 1) // STEP
    if top - low < 4:
        lengths = sorted({max(shortest + 1, shortest + (longest - shortest) * quarter // 4) for quarter in range(1, 5)})
    else:
        # Neighbours at both ends, where they tell the slope of a phase that ends there, and four between.
        between = (round((low + 2) * (top / (low + 2)) ** (share / 5)) for share in range(1, 5))
        lengths = [1 + STEP * step for step in sorted({low + 1, low + 2, *between, top - 1, top})]
    # Many rows, for what grows with the tokens: one above a multiple of the step, as the lengths are.
    batches = [(1 + 2 * STEP * max(1, TOKENS // (2 * STEP * length)), length) for length in lengths]
    # Few long rows, for what grows with the longest row alone, and for preludes: `fit` looks in one row and in two.
    few = [(1, length) for length in lengths[-4:]] + [(2, length) for length in lengths[-3:]]
    return batches + few + [(8, length) for length in lengths[::-2][:2]]
