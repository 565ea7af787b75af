"""Which rows may be computed together so that each comes out as it does alone, by what a configuration says.

Rows laid end to end never see each other. Of padded rows a network may see the padding, whatever its mask says: one
that mixes along the sequence (Fourier, convolution, pooling), whose positions stretch with the longest row, or whose
experts take so many tokens and no more. So padding is for those alone that were tried: others get rows of one length.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from torch import nn


class Batching(StrEnum):
    """Which rows a forward may have."""

    MIXED = "rows of any length"
    EVEN = "rows of one length"
    SINGLE = "one row"


MASKED = frozenset({
    "albert", "bart", "bert", "bert-generation", "biogpt", "bloom", "camembert", "cohere", "data2vec-text", "deberta",
    "deberta-v2", "distilbert", "electra", "ernie", "eurobert", "gemma", "gemma2", "gemma3_text", "glm", "gpt2",
    "gpt_neo", "gpt_neox", "gptj", "granite", "gte", "jina_embeddings_v3", "llama", "mbart", "megatron-bert",
    "mistral", "modernbert", "modernbert-decoder", "mpnet", "mt5", "nomic_bert", "olmo", "olmo2", "opt", "phi",
    "phi3", "qwen2", "qwen3", "rembert", "roberta", "roberta-prelayernorm", "roformer", "smollm3", "squeezebert",
    "starcoder2", "t5", "umt5", "xglm", "xlm-roberta", "xlm-roberta-xl", "xmod",
})  # fmt: skip
"""Networks of transformers whose mask keeps padding out of every row: each was tried, and is tried by
`bench/campaigns/architectures.py`."""
STRETCHED = frozenset({"dynamic", "longrope", "su"})
"""Rotary positions that depend on the longest row of a forward."""
SEEN = frozenset({"Transformer", "MLMTransformer", "Pooling", "Dense", "Normalize", "LayerNorm", "Dropout"})
"""Modules of sentence-transformers that look at each token or each row by itself."""


def batching_of(config: Mapping[str, Any], kinds: Sequence[str] = ()) -> tuple[Batching, str]:
    """Say which rows of a padded network may be computed together, and why not any; `kinds` are its modules."""
    kind = str(config.get("model_type"))
    if any("expert_capacity" in each for each in _parts(config)):
        return Batching.SINGLE, "its experts take no more than so many tokens"
    if stretched(config):
        return Batching.EVEN, "its positions stretch with the longest row"
    if others := [each for each in kinds if each not in SEEN]:
        return Batching.EVEN, f"its modules are {', '.join(others)}"
    if kind not in MASKED:
        return Batching.EVEN, f"a {kind} network may see the padding"
    return Batching.MIXED, ""


def padding(because: str, config: Mapping[str, Any], kinds: Sequence[str] = ()) -> dict[str, Any]:
    """Say which rows may be computed together of a model that is padded for a cause, and the whole cause."""
    batching, why = batching_of(config, kinds) if because else (Batching.MIXED, "")
    return {"batching": batching, "padded_because": f"{because}; {batching} at a time: {why}" if why else because}


def stretched(config: Mapping[str, Any]) -> bool:
    """Whether the positions of a network depend on the longest row that is computed."""
    return any(STRETCHED & {each.get("rope_type"), each.get("type")} for each in _parts(config))


def forgetting(network: nn.Module) -> nn.Module:
    """Have rotary positions forget before each forward how long the rows before were; returns the network."""
    for module in network.modules():
        if hasattr(module, "max_seq_len_cached"):
            module.register_forward_pre_hook(_forget)
    return network


def _forget(module: Any, given: tuple[Any, ...]) -> None:
    if module.max_seq_len_cached > module.original_max_seq_len:
        module.register_buffer("inv_freq", module.original_inv_freq.to(given[0].device), persistent=False)
        module.max_seq_len_cached = module.original_max_seq_len


def _parts(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A configuration and every object in it."""
    yield config
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _parts(value)
