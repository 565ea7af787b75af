"""What a forward pass costs, predicted from a model's configuration: a pure function.

Counted are the matrices of the layers, for each token, and attention's two products, for each pair of tokens of one
row; a multiplication with its addition is two operations. Of a sparse model the head counts too, which scores its whole
vocabulary for each token. Embeddings, norms and poolers are small beside these and left out. Where a pass runs, and in
which precision, changes its pace and not its cost.
"""

from collections.abc import Mapping

from interlock.engine.models.registry import Kind
from interlock.engine.record.facts import Cost

GATED_ACTIVATIONS = ("silu", "swish", "swiglu", "geglu", "gated")
GATED_TYPES = ("modernbert", "new", "gemma")
"""Architectures whose feed-forward has a third matrix though their activation does not say so."""
MOST = 1 << 31
"""No dimension of a model is as large."""


def cost_of(config: Mapping[str, object], kind: Kind = "dense") -> Cost | None:
    """Predict what a token and a pair of tokens cost by a parsed `config.json` and the kind of model.

    None where it does not say how wide and how deep the model is.
    """
    text = config.get("text_config")  # of a model for text and images: its text half says what a token costs
    config = {**config, **text} if isinstance(text, Mapping) else config
    width = _whole(config, "hidden_size", "n_embd", "d_model", "dim")
    depth = _whole(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if width is None or depth is None:
        return None
    heads = _whole(config, "num_attention_heads", "n_head", "n_heads", "num_heads") or 1
    size = _whole(config, "head_dim", "d_kv") or max(1, width // heads)
    shared = _whole(config, "num_key_value_heads") or heads
    inner = _whole(config, "intermediate_size", "n_inner", "d_ff", "hidden_dim") or 4 * width
    attention = 2 * width * size * (heads + shared)
    activations = ("hidden_act", "hidden_activation", "activation_function", "feed_forward_proj")
    activation = next((str(config[name]) for name in activations if config.get(name)), "")
    gated = activation.startswith(GATED_ACTIVATIONS) or str(config.get("model_type", "")).startswith(GATED_TYPES)
    feed_forward = (3 if gated else 2) * width * inner
    head = width * (width + (_whole(config, "vocab_size") or 0)) if kind == "sparse" else 0
    return Cost(per_token=2.0 * (depth * (attention + feed_forward) + head), per_pair=4.0 * depth * heads * size)


def _whole(config: Mapping[str, object], *names: str) -> int | None:
    """The first of these settings that is a size."""
    numbers = [value for name in names if isinstance(value := config.get(name), int) and not isinstance(value, bool)]
    return next((value for value in numbers if 0 < value < MOST), None)
