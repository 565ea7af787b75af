"""Small models of random weights, made in place: what a device does to a model shows in them, and nothing is fetched.

Their numbers are of the size of those of trained models, so that half precision costs them as little.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.networks.kernels import OLDEST, Capability
from interlock.engine.models.registry import ModelSpec

WORDS = 512
"""Ids that they have words for."""
LONGEST = 512
"""Tokens of the longest row that they take."""
_WIDTH = 256
_SHAPE = {
    "hidden_size": _WIDTH, "intermediate_size": 4 * _WIDTH, "num_attention_heads": 4, "num_hidden_layers": 3,
    "vocab_size": WORDS, "max_position_embeddings": LONGEST, "initializer_range": _WIDTH**-0.5, "pad_token_id": 0,
}  # fmt: skip
SPECIMENS: Mapping[str, Mapping[str, Any]] = {
    # twice as large as usual: its norms would hide what attention does wrong
    "bert": {**_SHAPE, "type_vocab_size": 2, "initializer_range": 2 * _WIDTH**-0.5},
    "qwen3": {**_SHAPE, "num_key_value_heads": 2, "head_dim": 128},
}
"""By architecture, their configurations: a network of ours, and one that transformers builds."""
_POOLED = {"bert": "cls_token", "qwen3": "lasttoken"}


def make(directory: Path, kind: str, device_kind: str, capability: Capability = OLDEST) -> ModelCard:
    """Write a model of a kind of `SPECIMENS` into `directory`; its card, for a device of this kind and capability."""
    _save_tokenizer(directory / "tokenizer.json")
    _save_weights(directory, kind)
    pooling = {"word_embedding_dimension": _WIDTH, f"pooling_mode_{_POOLED[kind]}": True}
    (directory / "1_Pooling").mkdir()
    for name, content in (
        ("1_Pooling/config.json", pooling),
        ("modules.json", [_module(0, "", "Transformer"), _module(1, "1_Pooling", "Pooling")]),
        ("sentence_bert_config.json", {"max_seq_length": LONGEST, "do_lower_case": False}),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "w0"}),
    ):
        (directory / name).write_text(json.dumps(content), encoding="utf-8")
    spec = ModelSpec(kind, (str(directory),))
    snapshot = resolve(spec, Policy(offline=True), lambda _: None)
    return read_card(spec, snapshot, device_kind, capability)


def _module(number: int, path: str, kind: str) -> dict[str, object]:
    return {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}


def _save_tokenizer(file: Path) -> None:
    from tokenizers import Tokenizer, models

    words = {f"w{number}": number for number in range(WORDS)}
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(file))  # noqa: S106  # no password


def _save_weights(directory: Path, kind: str) -> None:
    """Random weights, the same each time; biases and norms too, which otherwise begin at 0 and 1 and hide mistakes."""
    from transformers import AutoConfig, AutoModel

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(7)
        network = AutoModel.from_config(AutoConfig.for_model(kind, **SPECIMENS[kind]))
        for parameter in network.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.02)
    save_file(network.state_dict(), directory / "model.safetensors", {"format": "pt"})
    network.config.to_json_file(directory / "config.json")
