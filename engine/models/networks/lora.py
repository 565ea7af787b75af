"""LoRA adapters: each merged once into the weights of its base, W + scale * B A in float32, and kept as a model.

Only plain ones are: what else an adapter may be, and what it may change beside, is refused by file and setting.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from interlock.engine.corpus.tokens import SENTENCE_CONFIGS
from interlock.engine.errors import UnavailableError
from interlock.engine.models.layout import (
    INDEX,
    MERGED,
    MODULES,
    OF_NETWORK,
    WEIGHTS,
    Unsupported,
    home_of,
    is_indexed,
    modules_of,
    read_object,
    settings_of,
    shapes_in,
    weights_of,
)
from interlock.engine.models.registry import REPOSITORY
from interlock.engine.record import atomic

CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
USED = ("peft_type", "base_model_name_or_path", "revision", "r", "lora_alpha", "use_rslora")
UNHEARD = (
    *("task_type", "auto_mapping", "inference_mode", "lora_dropout", "peft_version", "target_modules"),
    *("exclude_modules", "layers_to_transform", "layers_pattern", "megatron_core", "runtime_config", "eva_config"),
    "qalora_group_size",
)
"""They say which modules were trained, and how: which ones have tensors says the file of these."""
USUAL = {"bias": ("none",), "init_lora_weights": (True, "gaussian", "orthogonal")}
PART = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
INSTEAD = "merge it into its base with peft (merge_and_unload) and save that"


@dataclass(frozen=True)
class Adapter:
    """What an adapter says of itself: what its product counts, and which model it was trained on."""

    scale: float
    base: str
    revision: str


def is_adapter(path: Path) -> bool:
    """Tell whether a directory has an adapter, with or without its base."""
    return (path / CONFIG).is_file()


def read_adapter(path: Path) -> Adapter:
    """Read the adapter in a directory. Raises Unsupported, naming file and setting, for one that is not plain."""
    file = path / CONFIG
    told = read_object(file)
    kind, rank, alpha = told.get("peft_type"), told.get("r"), told.get("lora_alpha")
    if kind != "LORA":
        raise Unsupported(f"{file}: adapters of type {kind!r:.100} are not supported: {INSTEAD}")
    for key, value in told.items():
        if value and key not in USED and key not in UNHEARD and value not in USUAL.get(key, ()):
            raise Unsupported(f"{file}: {key} is {value!r:.100}, and only plain LoRA is supported: {INSTEAD}")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        raise Unsupported(f"{file}: r is {rank!r:.100} and lora_alpha {alpha!r:.100}: fetch the model again")
    scale = alpha / (math.sqrt(rank) if told.get("use_rslora") else rank)
    return Adapter(scale, str(told.get("base_model_name_or_path") or ""), str(told.get("revision") or "main"))


def base_of(model: str, path: Path) -> tuple[str, str]:
    """Name the source and the revision of the base of an adapter; no source where its weights lie beside it. Raises
    UnavailableError for one that is neither here nor a repository."""
    told = read_adapter(path)
    if (path / WEIGHTS).is_file() or (path / INDEX).is_file():
        return "", ""
    for place in (path / told.base, Path(told.base)):
        if told.base and place.is_dir():
            return str(place.resolve()), told.revision
    if REPOSITORY.fullmatch(told.base):
        return f"hf:{told.base}", told.revision
    raise UnavailableError(
        f"model {model}: {path / CONFIG}: base_model_name_or_path is {told.base!r:.100}, which is not here: put its "
        "files beside the adapter"
    )


def merge(path: Path, base: Path, target: Path, record: Mapping[str, str]) -> None:
    """Write into `target` the model of `base` with the adapter in `path` merged; pooling, prompts and, if it has one,
    the tokenizer are the adapter's. `record` is kept beside it, last. Raises Unsupported for parts that do not fit."""
    adapter, home = read_adapter(path), home_of(base)
    if (base / MODULES).is_file() and not (path / MODULES).is_file():
        raise Unsupported(
            f"{path} says nothing of pooling, and its base does: copy modules.json and the folders that it names from "
            f"{base} to it"
        )
    shards = [file for file in weights_of(base) if file.parent == home]
    shapes = {name: shape for each in shards for name, shape in shapes_in(each).items()}
    pairs = _pairs(path / ADAPTER, shapes)
    for name, file in _settings(path, home).items():
        atomic.write_bytes(target / name, atomic.content(file))
    for file in shards:
        tensors = load_file(file)
        for name in tensors.keys() & pairs.keys():  # one product at a time: all of them may be as large as the base
            below, above = pairs[name]
            tensors[name] = tensors[name].float() + adapter.scale * (above @ below)
        with atomic.replacing(target / file.name) as partial:
            save_file(tensors, partial, {"format": "pt"})
    atomic.write_bytes(target / MERGED, json.dumps(record, sort_keys=True).encode())


def _pairs(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[Tensor, Tensor]]:
    """The two factors of what is added to each tensor of a base, whose tensors have these `shapes`."""
    factors: dict[str, dict[str, Tensor]] = {}
    for name, tensor in load_file(file).items():
        if not (part := PART.fullmatch(name)):
            raise Unsupported(f"{file} has {name}, which is no part of a plain LoRA: {INSTEAD}")
        factors.setdefault(part[1], {})[part[2]] = tensor.float()
    pairs = dict[str, tuple[Tensor, Tensor]]()
    for module, pair in factors.items():
        full = f".{module}.weight"  # either may have the prefix of a network within a larger one
        found = [name for name in shapes if f".{name}".endswith(full) or full.endswith(f".{name}")]
        below, above = pair.get("A", torch.empty(0)), pair.get("B", torch.empty(0))
        fits = below.ndim == above.ndim == 2 and above.shape[1] == below.shape[0]
        if len(found) != 1 or not fits or shapes[found[0]] != (above.shape[0], below.shape[1]):
            raise Unsupported(f"{file}: {module} is no matrix of the base: use the base that it was trained on")
        pairs[found[0]] = below, above
    return pairs


def _settings(path: Path, home: Path) -> dict[str, Path]:
    """The files beside the weights of a merged model, by their names in it."""
    patterns = ("config.json",) if (path / "tokenizer.json").is_file() else OF_NETWORK
    found = {file.name: file for pattern in patterns for file in home.glob(pattern)}
    found = {name: file for name, file in found.items() if name not in SENTENCE_CONFIGS}
    own = [file for file in settings_of(path) if file.name != "config.json" or file.parent != path]
    own += [path / module.path / WEIGHTS for module in modules_of(path) if module.path not in ("", ".")]
    found |= {str(file.relative_to(path)): file for file in own if file.is_file()}
    found |= {INDEX: home / INDEX} if is_indexed(home) else {}
    return {name: file for name, file in found.items() if name != CONFIG}
