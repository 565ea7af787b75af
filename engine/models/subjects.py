"""Networks as a trace wants them: of a configuration, with as many layers as are asked for and weights that nobody set.

Each is called as its encoder calls it, on blank rows, and says how long those may be and how a GPU attends to them.
"""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from interlock.engine.models.attention import attending, register, spread_heads
from interlock.engine.models.checkpoint import packable
from interlock.engine.models.fused import fuse
from interlock.engine.models.layout import POSITIONS
from interlock.engine.models.network import PackedEncoder, PackedPairEncoder, PackedTermEncoder
from interlock.engine.models.packing import PackedBatch, filling, pack
from interlock.engine.models.registry import Kind
from interlock.engine.models.sdpa import ALIGNED, Kernel, Sdpa

Config = Mapping[str, Any]


def subject_of(
    config: Config, dtype: torch.dtype, attention: str, kernel: Kernel, kind: Kind = "dense", *, packed: bool
) -> "Subject":
    """Return the network that `config.json` describes, computed in `dtype`.

    `packed` networks are ours, without padding; any other is built by transformers, with the given `attention` where
    its rows are padded.
    """
    if kind == "sparse":
        return _PackedTerms(config, dtype, kernel)
    if kind == "scores" and packed:
        return _PackedPairs(config, dtype, kernel)
    if not packed:
        return _Padded(config, dtype, attention, kernel)
    return _Packed(config, dtype, kernel) if packable(config) else _EndToEnd(config, dtype, kernel)


class _Packed:
    """Our network."""

    masks = False
    """Whether rows of different lengths have a mask; those of one length have none."""

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
        batch = _laid(rows, length, self._kernel)
        hidden = network(batch).float()
        return F.normalize(hidden[batch.starts[:-1]], dim=1)


class _PackedTerms(_Packed):
    """Our network with its head: in its weights, and not in its forwards, for the head has a law of its own."""

    def blank(self, layers: int) -> nn.Module:
        return PackedTermEncoder.blank({**self._config, "num_hidden_layers": layers}, self._dtype)


class _PackedPairs(_Packed):
    """Our network with the head of a cross-encoder."""

    def blank(self, layers: int) -> nn.Module:
        return PackedPairEncoder.blank({**self._config, "num_hidden_layers": layers}, self._dtype)

    def forward(self, network: nn.Module, rows: int, length: int, *, masked: bool) -> Tensor:
        batch = _laid(rows, length, self._kernel)
        return network.scores(replace(batch, types=torch.zeros_like(batch.ids))).float()  # type: ignore[operator, no-any-return]


class _Padded:
    """A network of transformers: a layer and then one of every kind, since a peak may be of any kind, and beside the
    first there is less."""

    masks = True

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

    masks = False

    def __init__(self, config: Config, dtype: torch.dtype, kernel: Kernel) -> None:
        super().__init__(config, dtype, register(), kernel)
        self.step = 1

    def sdpa(self, *, masked: bool) -> Sdpa | None:
        return _chosen_packed(self._kernel, self._dtype)

    def reach(self, network: nn.Module, *, masked: bool) -> int:
        batch = _laid(1, self.longest, self._kernel)
        with torch.inference_mode(), attending(batch):
            network(input_ids=batch.ids[None], position_ids=batch.positions[None])
        return min((window for window, _ in batch.masks), default=self.longest)

    def blank(self, layers: int) -> nn.Module:
        return fuse(super().blank(layers))

    def tokens(self, rows: int, length: int) -> int:
        return rows * length + filling(rows * length)

    def forward(self, network: nn.Module, rows: int, length: int, *, masked: bool) -> Tensor:
        batch = _laid(rows, length, self._kernel)
        with attending(batch):
            hidden = network(input_ids=batch.ids[None], position_ids=batch.positions[None])[0][0]
        return F.normalize(hidden[batch.starts[:-1]].float(), dim=1)


Subject = _Packed | _Padded


def _laid(rows: int, length: int, kernel: Kernel) -> PackedBatch:
    """Blank rows of one length, laid end to end."""
    return pack([np.ones(length, np.int64)] * rows, torch.device("cpu"), kernel)


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
