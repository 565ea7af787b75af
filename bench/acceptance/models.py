"""Models for a machine without a network: the real architectures with random weights, as sentence-transformers keeps
them. Memory and speed do not depend on what weights say; a rehearsal has the same architectures, small.
"""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from interlock.engine.gpu.device import Device
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.roster import card_for
from interlock.engine.models.weights import DTYPES
from tests.architectures import MODERNBERT_BASE, QWEN2_15B, QWEN3_06B, XLM_R_LARGE
from tests.builders import PAD, tiny_model

Config = Mapping[str, Any]
CONFIGS: Mapping[str, Config] = {
    "XLM-R-large": XLM_R_LARGE,
    "Qwen3-0.6B": QWEN3_06B,
    "ModernBERT-base": MODERNBERT_BASE,
    "Qwen2-1.5B": QWEN2_15B,
}
POOLINGS = {"XLM-R-large": "cls", "Qwen3-0.6B": "lasttoken", "ModernBERT-base": "mean", "Qwen2-1.5B": "lasttoken"}
SMALL: Config = {
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "vocab_size": 512,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "cls_token_id": 2,
    "sep_token_id": 3,
    "max_window_layers": 3,
    "head_dim": 16,
    "num_key_value_heads": 2,
    "local_attention": 32,
}
"""What a rehearsal's models have less of."""
DEEP: Config = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 28}
"""A rehearsal's model whose weights are large beside a segment of the allocator."""


def made(device: Device, directory: Path, name: str, longest: int, *, deep: bool = False) -> ModelCard:
    """A model of an architecture in `directory`, for rows of at most `longest` tokens; its card."""
    real = device.kind == "cuda"
    config = {**CONFIGS[name], "pad_token_id": PAD, **({} if real else _small(name, longest, deep))}
    tiny_model(directory, width=config["hidden_size"], layers=1, heads=2, pooling=POOLINGS[name], max_tokens=longest)
    dtype = "float16" if real else "float32"
    (directory / "config.json").write_text(json.dumps({**config, "dtype": dtype, "torch_dtype": dtype}))
    save_file(_weights(config, DTYPES[dtype], device), directory / "model.safetensors", {"format": "pt"})
    spec = ModelSpec(directory.name, (str(directory),))
    return card_for(spec, resolve(spec, Policy(offline=True), lambda _: None), [device])


def _small(name: str, longest: int, deep: bool) -> Config:
    less = {key: value for key, value in SMALL.items() if key in CONFIGS[name]}
    return {**less, "max_position_embeddings": longest + 2, **(DEEP if deep else {})}


def _weights(config: Config, dtype: torch.dtype, device: Device) -> dict[str, torch.Tensor]:
    """Random tensors, made on the device, for every parameter that transformers looks for; norms are about 1."""
    from transformers import AutoConfig, AutoModel

    with torch.device("meta"):
        blank = AutoModel.from_config(AutoConfig.for_model(**copy.deepcopy(dict(config))))
    norms = {f"{name}.weight" for name, module in blank.named_modules() if "norm" in type(module).__name__.lower()}
    generator = torch.Generator(device.torch).manual_seed(7)
    weights = {}
    for name, parameter in blank.named_parameters():
        numbers = torch.randn(parameter.shape, dtype=dtype, device=device.torch, generator=generator).mul_(0.02)
        weights[name] = numbers.add_(name in norms).cpu()
    return weights
