"""How large a network is, as its `config.json` says, and what a token and a pair of tokens cost in it."""

from collections.abc import Mapping
from dataclasses import dataclass

from interlock.engine.models.registry import Kind
from interlock.engine.record.facts import Cost

GATED_ACTIVATIONS = ("silu", "swish", "swiglu", "geglu", "gated")
GATED_TYPES = ("modernbert", "gte", "gemma")
"""Architectures whose feed-forward has a third matrix though their activation does not say so."""
MOST = 1 << 31
"""No dimension of a model is as large."""


@dataclass(frozen=True)
class Sizes:
    """The dimensions of a network, in values; `queries` and `keys` are those of all heads together."""

    width: int
    depth: int
    heads: int
    queries: int
    keys: int
    inner: int
    gated: bool
    words: int

    @property
    def attention(self) -> int:
        """Values of the four matrices of a layer's attention."""
        return 2 * self.width * (self.queries + self.keys)

    @property
    def feed_forward(self) -> int:
        """Values of the two or three matrices of a layer's feed-forward."""
        return (3 if self.gated else 2) * self.width * self.inner


def sizes_of(config: Mapping[str, object]) -> Sizes | None:
    """Read the sizes of a parsed `config.json`; None where it does not say how wide and how deep the model is."""
    text = config.get("text_config")  # of a model for text and images: its text half says what a token costs
    config = {**config, **text} if isinstance(text, Mapping) else config
    width = _whole(config, "hidden_size", "n_embd", "d_model", "dim")
    depth = _whole(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if width is None or depth is None:
        return None
    heads = _whole(config, "num_attention_heads", "n_head", "n_heads", "num_heads") or 1
    size = _whole(config, "head_dim", "d_kv") or max(1, width // heads)
    inner = _whole(config, "intermediate_size", "n_inner", "d_ff", "hidden_dim") or 4 * width
    activations = ("hidden_act", "hidden_activation", "activation_function", "feed_forward_proj")
    activation = next((str(config[name]) for name in activations if config.get(name)), "")
    gated = activation.startswith(GATED_ACTIVATIONS) or str(config.get("model_type", "")).startswith(GATED_TYPES)
    shared = _whole(config, "num_key_value_heads") or heads
    words = _whole(config, "vocab_size") or 0
    return Sizes(width, depth, heads, heads * size, shared * size, inner, gated, words)


def cost_of(config: Mapping[str, object], kind: Kind = "dense") -> Cost | None:
    """Predict what a token and a pair of tokens cost by a parsed `config.json` and the kind of model.

    None where it does not say how wide and how deep the model is.
    """
    if (sizes := sizes_of(config)) is None:
        return None
    head = sizes.width * (sizes.width + sizes.words) if kind == "sparse" else 0
    layers = sizes.depth * (sizes.attention + sizes.feed_forward)
    return Cost(per_token=2.0 * (layers + head), per_pair=4.0 * sizes.depth * sizes.queries)


def _whole(config: Mapping[str, object], *names: str) -> int | None:
    """The first of these settings that is a size."""
    numbers = [value for name in names if isinstance(value := config.get(name), int) and not isinstance(value, bool)]
    return next((value for value in numbers if 0 < value < MOST), None)
