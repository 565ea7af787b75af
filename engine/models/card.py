"""What a model says of itself: its shape, limits, pooling and prompts, read from the files of its snapshot.

Reads JSON and the header of the weights, never the weights. The registry's row has the last word.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from engine.errors import UnavailableError, UsageError
from engine.gpu.memory import Shape, packed_values, padded_values
from engine.models.assets import Snapshot
from engine.models.network import packable
from engine.models.registry import ModelSpec

POOLINGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "lasttoken",
}
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_GATED = ("qwen", "modernbert", "nomic", "llama", "mistral", "gemma")


@dataclass(frozen=True)
class ModelCard:
    """Everything that planning and encoding need to know of one model."""

    key: str
    snapshot: Snapshot
    config: Mapping[str, Any]
    dim: int
    max_tokens: int
    pooling: str | None
    packed: bool
    dtype: str
    document_prompt: str
    query_prompt: str
    batch_tokens: int
    shape: Shape

    @property
    def tokenizer_file(self) -> Path:
        return self.snapshot.path / "tokenizer.json"


def read_card(spec: ModelSpec, snapshot: Snapshot, device_kind: str) -> ModelCard:
    """The card of a snapshot. Raises UnavailableError for a model that cannot run without its own code."""
    path = snapshot.path
    config = _json(path / "config.json")
    modules = _modules(path)
    pooling = _pooling(path)
    dtype = spec.dtype.get(device_kind, "float32")
    if dtype not in BYTES:
        raise UsageError(f"[models.{spec.key}] dtype {dtype!r} is not one of {', '.join(BYTES)}")
    prompts = {**_json(path / "config_sentence_transformers.json").get("prompts", {})}
    document = prompts.get("document") or prompts.get("passage") or ""
    plain = modules in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
    packed = plain and pooling in ("cls", "mean") and packable(config)
    if not packed and config.get("auto_map") and not _known_to_transformers(config):
        raise UnavailableError(
            f"model {spec.key} brings code of its own ({path / 'config.json'}: auto_map), which is never run; "
            "use a model that loads without it"
        )
    return ModelCard(
        key=spec.key,
        snapshot=snapshot,
        config=config,
        dim=_dim(spec, path, config),
        max_tokens=spec.max_tokens or _max_tokens(path, config),
        pooling=pooling,
        packed=packed,
        dtype=dtype,
        document_prompt=document if spec.document_prompt is None else spec.document_prompt,
        query_prompt=prompts.get("query") or "" if spec.query_prompt is None else spec.query_prompt,
        batch_tokens=spec.batch_tokens,
        shape=_shape(snapshot, config, BYTES[dtype], packed=packed),
    )


def _known_to_transformers(config: Mapping[str, Any]) -> bool:
    """Whether the library has the architecture itself, so that the code in the model's repository is not needed."""
    from transformers import CONFIG_MAPPING

    return config.get("model_type") in CONFIG_MAPPING


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text())) if path.is_file() else {}
    except (ValueError, OSError) as error:
        raise UnavailableError(f"{path} cannot be read: {error}") from error


def _modules(path: Path) -> list[str]:
    """The kinds of a sentence-transformers model's modules; only that library's own kinds are accepted."""
    file = path / "modules.json"
    if not file.is_file():
        return ["Transformer", "Pooling", "Normalize"]
    kinds = [str(module["type"]) for module in json.loads(file.read_text())]
    if foreign := [kind for kind in kinds if not kind.startswith("sentence_transformers.")]:
        raise UnavailableError(f"{file} names {foreign[0]}, which is code of its own and never run")
    return [kind.rsplit(".", 1)[-1] for kind in kinds]


def _pooling(path: Path) -> str | None:
    """`cls`, `mean` or `lasttoken`; None for a mixture, which sentence-transformers pools itself."""
    config = _json(path / "1_Pooling" / "config.json")
    if not config:
        return "mean"
    if isinstance(mode := config.get("pooling_mode"), str):
        return mode
    chosen = [name for flag, name in POOLINGS.items() if config.get(flag)]
    others = [
        flag for flag, on in config.items() if flag.startswith("pooling_mode_") and on is True and flag not in POOLINGS
    ]
    return chosen[0] if len(chosen) == 1 and not others else None


def _dim(spec: ModelSpec, path: Path, config: Mapping[str, Any]) -> int:
    dense = sorted(path.glob("*_Dense/config.json"))
    read = _json(dense[-1])["out_features"] if dense else config.get("hidden_size")
    if read is None:
        raise UnavailableError(f"{path / 'config.json'} does not say the width of its vectors (hidden_size)")
    if spec.dim is not None and spec.dim != read:
        raise UnavailableError(f"model {spec.key} has {read} dimensions, the registry says {spec.dim}: {path}")
    return int(read)


def _max_tokens(path: Path, config: Mapping[str, Any]) -> int:
    positions = int(config.get("max_position_embeddings", 512))
    if config.get("model_type") in ("roberta", "xlm-roberta", "mpnet"):
        positions -= 2  # the first positions belong to padding
    said = _json(path / "sentence_bert_config.json").get("max_seq_length")
    limit = _json(path / "tokenizer_config.json").get("model_max_length")
    return min([positions, *(int(value) for value in (said, limit) if value and not math.isinf(value))])


def _shape(snapshot: Snapshot, config: Mapping[str, Any], bytes_per_value: int, *, packed: bool) -> Shape:
    width = int(config["hidden_size"])
    feed_forward = int(config.get("intermediate_size") or 4 * width)
    gated = str(config.get("model_type", "")).startswith(_GATED)
    values = packed_values(width, feed_forward) if packed else padded_values(width, feed_forward, gated=gated)
    return Shape(_values(snapshot) * bytes_per_value, values, bytes_per_value)


def _values(snapshot: Snapshot) -> int:
    """How many numbers the weights hold, from the headers of their files."""
    total = 0
    for file in snapshot.weights:
        with safe_open(file, framework="np") as header:
            for name in header.keys():  # noqa: SIM118 - the file is not a mapping
                total += math.prod(header.get_slice(name).get_shape())
    return total
