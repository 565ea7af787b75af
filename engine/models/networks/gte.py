"""Networks of Alibaba's type `new` (gte-en-v1.5, gte-multilingual, stella-400M), which are the `gte` of transformers.

Their settings are said anew as `gte` has them; transformers itself renames their tensors. What `gte` does not compute
is told, and stays `new`. As `modeling.py` and `configuration.py` of Alibaba-NLP/new-impl have it, which never run.
"""

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]
NEW, GTE = "new", "gte"
_ONLY = {
    "layer_norm_type": "layer_norm",
    "position_embedding_type": "rope",
    "pack_qkv": True,
    "logn_attention_scale": False,
}
"""Settings that may be otherwise in a `new` network, and not in a `gte`."""
_THETA, _POSITIONS = 10000.0, 2048
"""What holds in a `new` network where nothing is said."""


def fault_of(config: Config) -> str:
    """Name the setting of a `new` network that a `gte` has not; empty where there is none, and for any other type."""
    if config.get("model_type") != NEW:
        return ""
    told = [key for key, value in _ONLY.items() if config.get(key, value) != value]
    scaling = config.get("rope_scaling")
    ntk = isinstance(scaling, Mapping) and set(scaling) == {"type", "factor"} and scaling["type"] == "ntk"
    factor = scaling["factor"] if scaling and ntk else None
    stretched = isinstance(factor, int | float) and factor > 1
    told += ["rope_scaling"] * (scaling is not None and not stretched)
    return f"{told[0]} is {config[told[0]]!r:.100}" if told else ""


def as_gte(config: Config) -> Config:
    """Return a parsed `config.json` of a `new` network as that of the `gte` that computes the same; any other as it is.

    Its code of its own is left out where it is the published one. NTK's frequencies, (theta f)^(-2i/d) / f^(2/d), are
    those of a theta f times as large that are then scaled alike (https://kexue.fm/archives/9706).
    """
    if config.get("model_type") != NEW or fault_of(config):
        return config
    code = config.get("auto_map")
    published = isinstance(code, Mapping) and str(code.get("AutoModel")).endswith(".NewModel")
    theta, scaling = float(config.get("rope_theta", _THETA)), config.get("rope_scaling")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if scaling:
        factor, size = scaling["factor"], int(config["hidden_size"]) // int(config["num_attention_heads"])
        rope = {"rope_type": "linear", "rope_theta": theta * factor, "factor": factor ** (2 / size)}
    dropped = {"rope_theta", "rope_scaling", *["auto_map"] * published}
    kept = {key: value for key, value in config.items() if key not in dropped}
    return {"max_position_embeddings": _POSITIONS, **kept, "model_type": GTE, "rope_parameters": rope}


def register() -> None:
    """Have transformers read a `config.json` of type `new` as that of a `gte`; nothing where it knows no `gte`."""
    from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

    if GTE not in CONFIG_MAPPING:
        return

    class NewConfig(PretrainedConfig):  # type: ignore[misc]
        model_type = NEW

        @classmethod
        def from_dict(cls, config_dict: Config, **more: Any) -> Any:
            return CONFIG_MAPPING[GTE].from_dict(dict(as_gte(config_dict)), **more)

    AutoConfig.register(NEW, NewConfig, exist_ok=True)
