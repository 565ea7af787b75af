"""What a model's JSON files and the tensors of a checkpoint may say: read by plain names, and checked."""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from interlock.engine.corpus.tokens import sentence_config
from interlock.engine.errors import UnavailableError
from interlock.engine.models.layout import Module, read_object
from interlock.engine.models.networks.gte import as_gte, fault_of

Config = Mapping[str, object]
_FORMER_NORM = {"weight": ".gamma", "bias": ".beta"}  # what a norm's tensors were called in TensorFlow's checkpoints
_ALIASES = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}
_OWN = {"intermediate_size": "hidden_dim", "hidden_act": "activation"}


@dataclass(frozen=True)
class Names:
    """What an architecture calls its tensors."""

    layers: str
    """What comes before the number of a layer."""
    attention: tuple[str, ...]
    """Queries, keys, values, output and norm, within a layer."""
    feed_forward: tuple[str, str, str]
    """Up, down and norm, within a layer."""
    head: tuple[str, str, str, str]
    """Of the masked-LM head, where the model has one: its first map, norm, decoder, and what a tied decoder adds."""
    base: str
    """What comes before the names of the network in a checkpoint that has more than it: its `base_model_prefix`."""
    scorer: tuple[str, str, str] = ("classifier.dense", "tanh", "classifier.out_proj")
    """Of the head of a cross-encoder, where the model has one: its first map, what follows it, and its last map."""


_LM_HEAD = ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")
_BERT = Names(
    "encoder.layer.",
    ("attention.self.query", "attention.self.key", "attention.self.value",
     "attention.output.dense", "attention.output.LayerNorm"),
    ("intermediate.dense", "output.dense", "output.LayerNorm"),
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder",
     "cls.predictions.bias"),
    "bert.",
    ("pooler.dense", "tanh", "classifier"),
)  # fmt: skip
_ROBERTA = Names(_BERT.layers, _BERT.attention, _BERT.feed_forward, _LM_HEAD, "roberta.")
_MPNET = Names(
    _BERT.layers,
    ("attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o", "attention.LayerNorm"),
    _BERT.feed_forward,
    _LM_HEAD,
    "mpnet.",
)
_DISTILBERT = Names(
    "transformer.layer.",
    ("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "sa_layer_norm"),
    ("ffn.lin1", "ffn.lin2", "output_layer_norm"),
    ("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"),
    "distilbert.",
    ("pre_classifier", "relu", "classifier"),
)
NAMES = {"bert": _BERT, "distilbert": _DISTILBERT, "mpnet": _MPNET, "roberta": _ROBERTA, "xlm-roberta": _ROBERTA}
PACKED_TYPES = frozenset(NAMES)
_OUTSIDE = (
    "cls.",
    "lm_head.",
    "vocab_",
    "classifier.",
    "pre_classifier.",
)  # heads stand beside the encoder, and have no prefix


def usual(config: Config) -> Config:
    """Return a parsed `config.json` with the settings that DistilBERT names otherwise under BERT's names too, and that
    of a `new` network as that of a `gte`."""
    if config.get("model_type") != "distilbert":
        return as_gte(config)
    known, own = ({name: config[theirs] for name, theirs in table.items() if theirs in config}
                  for table in (_ALIASES, _OWN))  # fmt: skip
    return {**known, **config, **own}  # as transformers reads it, which takes only the first three by either name


def packable(config: Config) -> bool:
    """Tell whether the packed network computes exactly what a `config.json` describes."""
    try:
        Shape(config)
    except ValueError:
        return False
    return True


class Shape:
    """What `config.json` says, checked."""

    def __init__(self, config: Config) -> None:
        config = usual(config)
        self.kind = _one_of(config, "model_type", PACKED_TYPES)
        self.names = NAMES[self.kind]
        _one_of({"position_embedding_type": "absolute", **config}, "position_embedding_type", {"absolute"})
        self.activation = _one_of(config, "hidden_act", {"gelu", "relu"})
        self.head_activation = "gelu" if self.names.head == _LM_HEAD else self.activation
        if told := [key for key in ("is_decoder", "add_cross_attention") if config.get(key)]:
            raise ValueError(f"config.json: {told[0]} is not supported by the packed encoder")
        self.width, self.inner = _count(config, "hidden_size"), _count(config, "intermediate_size")
        self.heads, self.depth = _count(config, "num_attention_heads"), _count(config, "num_hidden_layers")
        self.words, self.positions = _count(config, "vocab_size"), _count(config, "max_position_embeddings")
        epsilon = 1e-12 if self.kind == "distilbert" else config.get("layer_norm_eps", 1e-12)
        self.epsilon = float(str(epsilon))
        self.types = _count({"type_vocab_size": 2, **config}, "type_vocab_size")
        # RoBERTa's kin give the pad token no position and begin after its id; BERT and DistilBERT count every token
        fixed = {"bert": -1, "distilbert": -1, "mpnet": 1}
        self.padding = fixed[self.kind] if self.kind in fixed else _count(config, "pad_token_id")
        self.tied = config.get("tie_word_embeddings", True) is not False
        if self.heads < 1 or self.width % self.heads:
            raise ValueError(f"config.json: hidden_size {self.width} is not a multiple of {self.heads} heads")
        self.head = self.width // self.heads


def _count(config: Config, key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int):
        raise ValueError(f"config.json: {key}: expected a whole number, got {value!r}")
    return value


def _one_of(config: Config, key: str, known: Container[str]) -> str:
    value = config.get(key)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"config.json: {key} {value!r} is not supported by the packed encoder")
    return value


class Weights:
    """The tensors of a checkpoint by their plain names; each is checked as it is taken."""

    def __init__(self, state: Mapping[str, Tensor], dtype: torch.dtype, base: str = "") -> None:
        """`base` is what may come before a network's names; what lies under another name is no part of it."""
        self._state, self._dtype, self._base = state, dtype, base

    def take(self, name: str, *shape: int) -> nn.Parameter:
        """Return a tensor in the encoder's precision. Raises ValueError where it is missing, there twice or has another
        shape."""
        former = _FORMER_NORM.get(name.rpartition("LayerNorm.")[2])
        names = [name, name.rpartition(".")[0] + former] if former else [name]
        bases = ("",) if name.startswith(_OUTSIDE) or not self._base else ("", self._base)
        found = [full for full in (base + each for base in bases for each in names) if full in self._state]
        if len(found) > 1:
            raise ValueError(f"the checkpoint has both {found[0]} and {found[1]}")
        full = found[0] if found else self._base * (len(bases) > 1) + name
        tensor = self._state.get(full)
        if tensor is None:
            raise ValueError(f"the checkpoint lacks the tensor {full}")
        if tensor.shape != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, the configuration says {shape}")
        return frozen(tensor.to(self._dtype))

    def decoder(self, shape: Shape) -> tuple[nn.Parameter, nn.Parameter]:
        """Return weight and bias of a masked-LM head; where they are tied and the checkpoint has no others, the
        embedding's and that of the head."""
        _, _, decoder, tied_bias = shape.names.head
        weight, bias = f"{decoder}.weight", f"{decoder}.bias"
        if shape.tied and weight not in self._state:
            weight = "embeddings.word_embeddings.weight"
        if shape.tied and bias not in self._state:
            bias = tied_bias
        return self.take(weight, shape.words, shape.width), self.take(bias, shape.words)

    def places(self, shape: Shape) -> nn.Parameter:
        """Return a table whose row n is for the n-th counted token and row 0 for an uncounted one; token type 0 is
        added in."""
        table = self.take("embeddings.position_embeddings.weight", shape.positions, shape.width).data
        if shape.kind not in ("mpnet", "distilbert"):
            table = table + self.take("embeddings.token_type_embeddings.weight", shape.types, shape.width)[0]
        return frozen(F.pad(table, (0, 0, 1, 0)) if shape.padding < 0 else table[shape.padding :])

    def types(self, shape: Shape) -> nn.Parameter | None:
        """Return a table of what each token type adds to type 0; None where the architecture has one type."""
        if shape.types < 2 or shape.kind in ("mpnet", "distilbert"):
            return None
        table = self.take("embeddings.token_type_embeddings.weight", shape.types, shape.width).data
        return frozen(table - table[0])


class Blank(Weights):
    """Any tensor, uninitialised."""

    def take(self, name: str, *shape: int) -> nn.Parameter:
        return frozen(torch.empty(shape, dtype=self._dtype))


def frozen(tensor: Tensor) -> nn.Parameter:
    """Return a parameter that takes no gradients."""
    return nn.Parameter(tensor, requires_grad=False)


COUNTS = ("hidden_size", "n_embd", "num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size")
UNSUPPORTED = ("quantization_config", "chunk_size_feed_forward")
SPARSE_TYPES = ("big_bird", "bigbird_pegasus")
PLAIN_ACTIVATIONS = ("gelu", "relu")
"""Those of the packed network, known without an import."""


def check_settings(root: Path, path: Path, config: Config, modules: Sequence[Module]) -> None:
    """Raise UnavailableError, naming file and key, for the first setting of a model that cannot be what it says;
    `path` is the folder of its network within `root`."""
    _check_config(path / "config.json", config)
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
        **dict.fromkeys(("layer_norm_eps", "layer_norm_epsilon"), (_is_size, "a number >= 0.0")),
        "hidden_act": (_is_hidden_activation, "an activation of transformers"),
    }
    for key in (key for key in expected if key in config):
        _require(file, key, config[key], *expected[key])
    one_way = config.get("model_type") == "gemma"  # transformers masks it one way where rows are padded
    for key in (*UNSUPPORTED, *["is_causal"] * _looks_both_ways(config), *["use_bidirectional_attention"] * one_way):
        if config.get(key) not in (None, 0):
            raise UnavailableError(f"{file}: {key} is {config[key]!r:.100}, which is not supported: use another model")
    if fault := fault_of(config):
        raise UnavailableError(f"{file}: {fault}, which is not supported in a network of type new: use another model")
    if config.get("model_type") in SPARSE_TYPES and config.get("attention_type") != "original_full":
        raise UnavailableError(
            f"{file}: attention_type is block_sparse, which draws at random what a token sees, so no vector comes "
            'twice: set it to "original_full" in a copy, or use another model'
        )
    heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    if config.get("model_type") in PACKED_TYPES and isinstance(heads, int) and isinstance(width, int) and width % heads:
        raise UnavailableError(f"{file}: hidden_size {width} is not a multiple of num_attention_heads {heads}")


def _looks_both_ways(config: Config) -> bool:
    """Whether transformers has the architecture with a masked-LM head, or an encoder before a decoder: what makes it
    causal is no setting of ours."""
    if not config.get("is_causal"):
        return False
    from transformers.models.auto import modeling_auto as auto

    kinds = auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
    return any(config.get("model_type") in names for names in kinds)


def _require(file: Path, key: str, value: object, fits: Callable[[object], bool], expected: str) -> None:
    if not fits(value):
        raise UnavailableError(f"{file}: {key}: expected {expected}, got {value!r:.100}")


def _is_flag(value: object) -> bool:
    return value is None or isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_size(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value >= 0


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
