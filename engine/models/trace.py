"""The memory law of a model before it ever runs: its real configuration, traced without weights, content or device.

A few layers of the network are computed over tensors that have a shape and no memory, and every storage that an
operation would have created is counted. Peaks do not depend on the depth, so the law holds for all of it. What was
traced is kept beside the models, and traced anew only for another configuration or other versions of the libraries.
"""

import copy
import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from interlock.engine.errors import InterlockError
from interlock.engine.gpu.memory import Law, Sample, fit
from interlock.engine.gpu.meter import Counter, Meter
from interlock.engine.models.attention import attending, register, spread_heads, why_padded
from interlock.engine.models.fused import fuse
from interlock.engine.models.layout import POSITIONS, values_in
from interlock.engine.models.network import PackedEncoder, packable
from interlock.engine.models.packing import PackedBatch, filling, pack
from interlock.engine.models.sdpa import ALIGNED, GpuMeter, Kernel, Sdpa
from interlock.engine.models.sources import model_cache
from interlock.engine.models.stages import size_of, slot_bytes
from interlock.engine.record import atomic

if TYPE_CHECKING:
    from interlock.engine.models.card import ModelCard

LAW_VERSION = 5
STEP = 16
"""Lengths are one above a multiple of it: what is rounded up to such a multiple is then rounded up the most."""
TOKENS = 32 << 10
"""In a traced batch, at least: enough that an allocator's rounding of each tensor does not count."""
Config = Mapping[str, Any]


def law_for(card: "ModelCard", device_kind: str) -> Law:
    """Find the law of a card's model on a device of this kind: its weights as held there, or as its files say."""
    dtype: torch.dtype = getattr(torch, card.dtype)
    if device_kind == "cpu" and card.ours:
        return _weighing(packed_law(card.config, dtype), _weights_in(card, dtype.itemsize))
    narrow = device_kind == "sim"
    computed = torch.float32 if narrow else dtype
    kernel = card.kernel if device_kind == "cuda" else Kernel.HOST
    law = law_of(
        card.config, packed=card.packed, dtype=computed, attention=card.attention, narrow=narrow, kernel=kernel
    )
    return law if card.ours else _weighing(law, _weights_in(card, 2 if narrow else dtype.itemsize))


def law_of_config_only(
    config: Config,
    device_kind: str,
    dtype: torch.dtype = torch.float16,
    attention: str = "sdpa",
    kernel: Kernel = Kernel.HOST,
) -> Law:
    """Find the law of a model of which only `config.json` is to be had, pooled as such models mostly are."""
    ours, narrow = packable(config), device_kind == "sim"
    packed = ours or not why_padded(config, attention)
    computed = torch.float32 if narrow else dtype
    law = law_of(config, packed=packed, dtype=computed, attention=attention, narrow=narrow, kernel=kernel)
    return _weighing(packed_law(config, dtype), law.weights) if device_kind == "cpu" and ours else law


def law_of(
    config: Config,
    *,
    packed: bool,
    dtype: torch.dtype,
    attention: str = "sdpa",
    narrow: bool = False,
    kernel: Kernel = Kernel.HOST,
) -> Law:
    """Find the law of what `config.json` describes, computed in `dtype`: traced, or as it was traced before.

    `packed` networks are ours, without padding; any other is built by transformers, with the given attention kernel
    where it has it. Its law counts the mask that rows of different lengths need; `Law.bare` is the one without.
    `narrow` counts float32 at half its bytes. Weights are those of the network alone. An architecture that cannot be
    traced gets a generous closed form.
    """
    matters = {key: value for key, value in config.items() if key not in _UNHEARD}
    about = [LAW_VERSION, matters, packed, str(dtype), attention, narrow, kernel, *map(metadata.version, _LIBRARIES)]
    described = json.dumps(about, sort_keys=True, default=str).encode()
    file = model_cache() / "laws" / f"{hashlib.sha256(described).hexdigest()}.json"
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(file.read_bytes(), type=Law)
    try:
        law = _traced(_subject(config, dtype, attention, kernel, packed=packed), narrow=narrow)
    except Exception:  # what foreign architectures do under a trace is beyond counting; measuring will correct it
        return _guessed(config, 2 if narrow else dtype.itemsize, attention)
    with suppress(InterlockError):  # it can be traced again
        atomic.write_bytes(file, msgspec.json.encode(law))
    return law


_LIBRARIES = ("torch", "transformers")
_UNHEARD = ("_name_or_path", "transformers_version", "architectures", "torch_dtype", "dtype", "id2label", "label2id")


def _weights_in(card: "ModelCard", size: int) -> int:
    return size * sum(values_in(file) for file in card.snapshot.weights)


def _weighing(law: Law, weights: int) -> Law:
    return replace(law, weights=weights, bare=law.bare and replace(law.bare, weights=weights))


def packed_law(config: Config, dtype: torch.dtype) -> Law:
    """State the packed network's law: `max(6d, 2d + ff)` values for each token, and MPNet's addition to the scores."""
    width, inner, size = config["hidden_size"], config["intermediate_size"], dtype.itemsize
    phases = ((float(size * max(6 * width, 2 * width + inner)), 0.0),)
    if config["model_type"] != "mpnet":
        return Law(0, 0, phases)
    square = float(config["num_attention_heads"] * size)
    prelude = Law(0, 0, ((0.0, 0.0),), square=max(2 * square, 44.0))  # the scores twice, or distances as whole numbers
    return Law(0, 0, phases, square=square, prelude=prelude)


def _guessed(config: Config, size: int, attention: str) -> Law:
    """Above what gated networks are known to take: `4d + 3ff` values for each token, five scores for each head."""
    width = int(config.get("hidden_size") or config.get("n_embd") or config.get("d_model") or 1024)
    inner = int(config.get("intermediate_size") or config.get("d_ff") or 4 * width)
    heads, depth = int(config.get("num_attention_heads") or 16), int(config.get("num_hidden_layers") or 24)
    values = int(config.get("vocab_size") or 1 << 17) * width + depth * width * (6 * width + 3 * inner)
    slope = 5 * heads * size if attention == "eager" else 2 * (1 + size)
    return Law(values * size, 0, ((float(size * max(4 * width + 3 * inner, 16 * width)), float(slope)),))


def _subject(
    config: Config, dtype: torch.dtype, attention: str, kernel: Kernel, *, packed: bool
) -> "_Packed | _Padded":
    if not packed:
        return _Padded(config, dtype, attention, kernel)
    return _Packed(config, dtype, kernel) if packable(config) else _EndToEnd(config, dtype, kernel)


class _Packed:
    """Our network as a trace wants it: blank, with any number of layers, called as the encoder calls it."""

    def __init__(self, config: Config, dtype: torch.dtype, kernel: Kernel) -> None:
        self._config, self._dtype, self._kernel = config, dtype, kernel
        self.depth, self.layers, self.longest = config["num_hidden_layers"], 2, _longest(config)
        self.step = ALIGNED if config["model_type"] == "mpnet" else 1

    def sdpa(self, *, masked: bool) -> Sdpa | None:
        """How a GPU computes its attention where it goes through torch's own choice; None on the host."""
        return _chosen_packed(self._kernel, self._dtype)

    def reach(self, network: nn.Module, *, masked: bool) -> int:
        """The longest rows that no window cuts: what is above them has a law of its own."""
        return self.longest

    def blank(self, layers: int) -> nn.Module:
        """The network with this many layers and weights that nobody set; called under FakeTensorMode."""
        return PackedEncoder.blank({**self._config, "num_hidden_layers": layers}, self._dtype)

    def tokens(self, rows: int, length: int) -> int:
        """How many tokens are computed for rows of one length."""
        return rows * length + filling(rows * length)

    def forward(self, network: nn.Module, rows: int, length: int, *, masked: bool) -> Tensor:
        """Unit vectors of blank rows, computed as the encoder does."""
        batch = pack([np.ones(length, np.int64)] * rows, torch.device("cpu"), self._kernel)
        hidden = network(batch).float()
        return F.normalize(hidden[batch.starts[:-1]], dim=1)


class _Padded:
    """A network of transformers, likewise: a layer and then one of every kind, since a peak may be of any kind, and
    beside the first there is less."""

    def __init__(self, config: Config, dtype: torch.dtype, attention: str, kernel: Kernel) -> None:
        spread_heads()
        self._config, self._dtype, self._attention, self._kernel = config, dtype, attention, kernel
        text = self._settings().get_text_config()
        self._kinds = list(dict.fromkeys(getattr(text, "layer_types", None) or ()))
        self.depth, self.layers = int(text.num_hidden_layers), 1 + max(1, len(self._kinds))
        self.longest = _longest(text.to_dict())
        self.step = ALIGNED
        windowed = "sliding_attention" in self._kinds
        self._window = int((windowed and getattr(text, "sliding_window", None)) or self.longest + 1)

    def sdpa(self, *, masked: bool) -> Sdpa | None:
        return Sdpa.MATH if masked and self._kernel is Kernel.RUNS else _chosen(self._kernel)

    def reach(self, network: nn.Module, *, masked: bool) -> int:
        return self.longest if masked else min(self.longest, self._window - 1)

    def blank(self, layers: int) -> nn.Module:
        settings = self._settings()
        text = settings.get_text_config()
        text.num_hidden_layers = layers
        if self._kinds:
            text.layer_types = (self._kinds[:1] + self._kinds + self._kinds[-1:] * layers)[:layers]
        try:
            settings._attn_implementation = self._attention
            network = _blank(settings)
        except ValueError:  # an architecture without that kernel; it is loaded without it too
            settings._attn_implementation = "eager"
            network = _blank(settings)
        for parameter in network.parameters():
            parameter.data = parameter.data.to(self._dtype)
        return network.eval()

    def tokens(self, rows: int, length: int) -> int:
        return rows * length

    def forward(self, network: nn.Module, rows: int, length: int, *, masked: bool) -> Tensor:
        ids = torch.ones(rows, length, dtype=torch.int64)
        mask = torch.ones_like(ids) if masked else None
        # A causal network would have to look at its positions to know that it needs no mask; it is told instead.
        sure = self._attention == "sdpa" and self._kinds == ["full_attention"]
        unmasked = {"full_attention": None} if sure else None
        hidden = network(input_ids=ids, attention_mask=unmasked if mask is None else mask)[0]
        counted = (torch.ones_like(ids) if mask is None else mask)[..., None].to(hidden.dtype)
        return F.normalize((hidden * counted).sum(1, dtype=torch.float32), dim=1)

    def _settings(self) -> Any:
        from transformers import CONFIG_MAPPING

        settings = CONFIG_MAPPING[self._config["model_type"]].from_dict(copy.deepcopy(dict(self._config)))
        for part in (settings, settings.get_text_config()):
            part.use_cache = False  # keys and values of every layer would be kept; nobody asks for them
        return settings


class _EndToEnd(_Padded):
    """A network of transformers over rows laid end to end."""

    def __init__(self, config: Config, dtype: torch.dtype, kernel: Kernel) -> None:
        super().__init__(config, dtype, register(), kernel)
        self.step = 1

    def sdpa(self, *, masked: bool) -> Sdpa | None:
        return _chosen_packed(self._kernel, self._dtype)

    def reach(self, network: nn.Module, *, masked: bool) -> int:
        batch = self._batch(1, self.longest)
        with torch.inference_mode(), attending(batch):
            network(input_ids=batch.ids[None], position_ids=batch.positions[None])
        return min((window for window, _ in batch.masks), default=self.longest)

    def blank(self, layers: int) -> nn.Module:
        return fuse(super().blank(layers))

    def tokens(self, rows: int, length: int) -> int:
        return rows * length + filling(rows * length)

    def forward(self, network: nn.Module, rows: int, length: int, *, masked: bool) -> Tensor:
        batch = self._batch(rows, length)
        with attending(batch):
            hidden = network(input_ids=batch.ids[None], position_ids=batch.positions[None])[0][0]
        return F.normalize(hidden[batch.starts[:-1]].float(), dim=1)

    def _batch(self, rows: int, length: int) -> PackedBatch:
        return pack([np.ones(length, np.int64)] * rows, torch.device("cpu"), self._kernel)


def _chosen(kernel: Kernel) -> Sdpa | None:
    known = {Kernel.HOST: None, Kernel.MATH: Sdpa.MATH, Kernel.EFFICIENT: Sdpa.EFFICIENT}
    return known.get(kernel, Sdpa.FLASH)


def _chosen_packed(kernel: Kernel, dtype: torch.dtype) -> Sdpa | None:
    """Runs of a GPU are computed in float16 or in float32, which flash attention does not take."""
    return Sdpa.EFFICIENT if kernel is Kernel.RUNS and dtype is not torch.float16 else _chosen(kernel)


def _longest(config: Config) -> int:
    """The longest row of a configuration; two positions may belong to padding."""
    positions = config.get("max_position_embeddings") or config.get("n_positions")
    return max(1, positions - 2) if isinstance(positions, int) else POSITIONS


def _blank(settings: Any) -> nn.Module:
    """The network of a configuration, its encoder if it has two halves, without a number being drawn for it."""
    from transformers import MODEL_MAPPING

    mapped = MODEL_MAPPING[type(settings)]
    base = mapped[0] if isinstance(mapped, tuple) else mapped
    blank = type(base.__name__, (base,), {"__module__": base.__module__, "_init_weights": lambda *_: None})
    network: Any = blank(settings)
    half: nn.Module = network.get_encoder() if settings.is_encoder_decoder else network
    return half


def _traced(subject: _Packed | _Padded, *, narrow: bool) -> Law:
    """Sizes of the network, and the law of its forwards with a mask and without."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        network, larger = subject.blank(subject.layers), subject.blank(subject.layers + 1)

        padded = type(subject) is _Padded

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
        if padded:
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
