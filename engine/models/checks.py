"""What a model's JSON files may say: the types and values of every setting that loading relies on.

The files come from somebody else. What they say is either used as it stands or refused by file and key; nothing that
they name is imported here, and nothing that they name is put in place of what they name.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from interlock.engine.corpus.tokens import sentence_config
from interlock.engine.errors import UnavailableError
from interlock.engine.models.checkpoint import PACKED_TYPES
from interlock.engine.models.layout import Module, read_object

Config = Mapping[str, object]
COUNTS = ("hidden_size", "n_embd", "num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size")
KINDS = {
    *("Transformer", "Pooling", "Normalize", "Dense", "LayerNorm", "LSTM", "CNN", "WeightedLayerPooling"),
    *("Dropout", "BoW", "WordEmbeddings", "WordWeights", "CLIPModel", "Router", "Asym", "StaticEmbedding"),
    *("MLMTransformer", "SpladePooling", "LogitScore"),
}
PLAIN_ACTIVATIONS = ("gelu", "relu")
"""Those of the packed network, known without an import."""


def check_settings(root: Path, path: Path, config: Config, modules: Sequence[Module]) -> None:
    """Raise UnavailableError, naming file and key, for the first setting of a model that cannot be what it says;
    `path` is the folder of its network within `root`."""
    _check_config(path / "config.json", config)
    if (path / "adapter_config.json").is_file():
        raise UnavailableError(f"{path / 'adapter_config.json'}: adapters are not supported: merge it into the weights")
    for module in modules:
        _require(root / "modules.json", "type", module.type, _is_module, "a module of sentence-transformers")
        if module.kind in ("Transformer", "MLMTransformer") and root / module.path != path:
            raise UnavailableError(
                f"{root / 'modules.json'}: path of the Transformer: expected the model's directory, got {module.path!r}"
            )
    for module in modules:
        file = root / module.path / "config.json"
        if module.kind == "Dense" and "activation_function" in (dense := read_object(file)):
            _require(
                file, "activation_function", dense["activation_function"], _is_activation, "an activation of torch.nn"
            )
        if module.kind == "Pooling":
            for key, value in read_object(file).items():
                if key.startswith("pooling_mode_"):
                    _require(file, key, value, _is_flag, "true or false")
    file, settings = sentence_config(path)
    _require(file, "do_lower_case", settings.get("do_lower_case"), _is_flag, "true or false")


def _check_config(file: Path, config: Config) -> None:
    expected = {
        **dict.fromkeys(COUNTS, (_is_count, "an integer >= 1")),
        **dict.fromkeys(("layer_norm_eps", "layer_norm_epsilon"), (_is_size, "a number >= 0")),
        "hidden_act": (_is_hidden_activation, "an activation of transformers"),
    }
    for key in (key for key in expected if key in config):
        _require(file, key, config[key], *expected[key])
    heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    if config.get("model_type") in PACKED_TYPES and isinstance(heads, int) and isinstance(width, int) and width % heads:
        raise UnavailableError(f"{file}: hidden_size {width} is not a multiple of num_attention_heads {heads}")


def _require(file: Path, key: str, value: object, fits: Callable[[object], bool], expected: str) -> None:
    if not fits(value):
        raise UnavailableError(f"{file}: {key}: expected {expected}, got {value!r:.100}")


def _is_flag(value: object) -> bool:
    return value is None or isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_size(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_module(value: object) -> bool:
    first, *_, last = str(value).split(".")
    return first == "sentence_transformers" and last in KINDS


def _is_hidden_activation(value: object) -> bool:
    if not isinstance(value, str):
        return False
    if value in PLAIN_ACTIVATIONS:
        return True
    from transformers.activations import ACT2FN

    return value in ACT2FN


def _is_activation(value: object) -> bool:
    """Whether it is the full name of an activation of torch.nn, or of Identity."""
    from torch.nn.modules import activation

    known = {
        "torch.nn.modules.linear.Identity",
        *(f"torch.nn.modules.activation.{name}" for name in activation.__all__),
    }
    known |= {f"torch.nn.{name.rsplit('.', 1)[-1]}" for name in known}
    return isinstance(value, str) and value in known
