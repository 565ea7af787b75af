"""How much memory a forward pass takes, before it is run: weights exactly, activations by a closed form.

The closed form counts the widest moment of a layer: for a GELU encoder `(3 + 2m)` values a token and unit of
width (m is the feed-forward's factor), for a gated one `(4 + 3m)`; in both, what attention keeps is less.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that decide its memory; bytes of its weights as they are held."""

    weights_bytes: int
    width: int
    intermediate: int
    layers: int
    gated: bool
    bytes_per_value: int


def activation_bytes(shape: Shape, tokens: int) -> int:
    """Bytes of activations at the peak of a batch of `tokens` (padding included) under fused attention."""
    factor = shape.intermediate / shape.width
    values = (4 + 3 * factor) if shape.gated else (3 + 2 * factor)
    return int(tokens * values * shape.width * shape.bytes_per_value)


def predict_peak(shape: Shape, tokens: int) -> int:
    """Bytes that a lease of this model needs for batches of at most `tokens`."""
    return shape.weights_bytes + activation_bytes(shape, tokens)
