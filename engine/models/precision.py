"""In which precision a GPU computes a model, where its row of the registry does not say."""

from collections.abc import Mapping
from typing import Any

Capability = tuple[int, int]
"""Of a GPU, as NVIDIA counts: (7, 5) is a T4, (8, 0) an A100, (9, 0) an H100."""

OLDEST: Capability = (5, 0)
"""What every GPU that torch can use has."""
T4: Capability = (7, 5)
BFLOAT16_FROM: Capability = (8, 0)
"""Below it a GPU computes bfloat16 by way of float32, and its fused attention refuses it (pytorch, sdp_utils.cpp)."""

HALVES = frozenset({"bert", "distilbert", "roberta", "xlm-roberta", "mpnet", "modernbert", "nomic_bert"})
"""Encoders with a norm after each half layer: what flows between layers is of the size of one, far from 65,504, where
float16 ends; its three more bits than bfloat16 has are worth having."""
HALVES_BELOW = frozenset({"qwen3"})
"""No overflow of Qwen3-Embedding-0.6B in float16 is known; of the 8B there is one (QwenLM/Qwen3-Embedding#164), which
shows as a vector that is not finite and is computed anew."""


def wider(dtype: str, capability: Capability) -> str | None:
    """Return the precision to compute in where this one is too narrow; None after float32."""
    if dtype == "float16" and capability >= BFLOAT16_FROM:
        return "bfloat16"
    return None if dtype == "float32" else "float32"


def precision_for(config: Mapping[str, Any], capability: Capability) -> str:
    """Decide by architecture and card.

    float16 where activations are known to stay small. Anything else was trained in bfloat16 or float32, and there are
    models that overflow in float16 among them (gemma3: unslothai/unsloth#4014; Qwen2: QwenLM/Qwen3#826): bfloat16 where
    the card has it, float32 on older ones.
    """
    architecture = config.get("model_type")
    if architecture in HALVES:
        return "float16"
    if capability >= BFLOAT16_FROM:
        return "bfloat16"
    return "float16" if architecture in HALVES_BELOW else "float32"
