"""How much memory a forward pass takes, before it is run: weights exactly, activations by a closed form.

The form counts the values a token has alive at the widest moment of a layer. The packed network holds
`max(6d, 2d + ff)` of them (measured: exact in the allocator's terms); a padded GELU encoder `3d + 2ff`, a gated one
`4d + 3ff` (d is the width, ff the feed-forward's), where attention is fused.
"""

from dataclasses import dataclass

HEAP_FACTOR = 4.5
"""Resident memory for each byte of activations: what the C library's heap and the kernels keep beside what is in use.
Measured on a CPU, float32: 1.8 for rows of 250 tokens, 4.4 for rows of 26."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that decide its memory; `weights_bytes` as they are held on the device."""

    weights_bytes: int
    token_values: int
    bytes_per_value: int


def packed_values(width: int, feed_forward: int) -> int:
    """Values alive for each token in the packed network."""
    return max(6 * width, 2 * width + feed_forward)


def padded_values(width: int, feed_forward: int, *, gated: bool) -> int:
    """Values alive for each token, padding included, in a network that transformers builds."""
    return 4 * width + 3 * feed_forward if gated else 3 * width + 2 * feed_forward


def predict_peak(shape: Shape, tokens: int) -> int:
    """Bytes that a lease of this model needs on a CPU for batches of at most `tokens`."""
    return shape.weights_bytes + int(HEAP_FACTOR * tokens * shape.token_values * shape.bytes_per_value)
