"""What makes a cross-encoder of the files of one: a head that gives one score, and what is applied to that score.

Reads JSON and the header of the weights, never the weights. What would score otherwise than its authors' own code, or
by a head that nobody trained, is refused by name.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from interlock.engine.corpus.tokenizer import check_template
from interlock.engine.errors import UnavailableError
from interlock.engine.models.assets import ModelSnapshot
from interlock.engine.models.card import ModelCard, attention_of
from interlock.engine.models.layout import Module, architecture_of, modules_of, onnx_of, read_object
from interlock.engine.models.networks.batching import padding
from interlock.engine.models.networks.checkpoint import NAMES, check_settings, packable, usual
from interlock.engine.models.networks.int8 import dtype_of
from interlock.engine.models.networks.kernels import OLDEST, Capability, Kernel, kernel_for
from interlock.engine.models.pickles import TensorFiles
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.sentence import PLAIN, UNBOUNDED, check_sentence, max_tokens_of, positions_of, tokenizer_of
from interlock.engine.models.sources import model_cache

Activation = Literal["sigmoid", "identity"]
Config = Mapping[str, object]
SCORING = PLAIN | {
    "transformer_task": "sequence-classification",
    "module_output_name": "scores",
    "modality_config.text.method_output_name": "logits",
}
"""What a cross-encoder says of itself."""
ANSWER = "LogitScore"
"""The module that tells which tokens of a language model's answer are weighed."""
HEADS = ("classifier.", "score.", "pre_classifier.", "head.")
"""What the tensors of a trained head begin with in the architectures of transformers."""
ACTIVATIONS: Mapping[str, Activation] = {
    **dict.fromkeys(("torch.nn.modules.linear.Identity", "torch.nn.Identity"), "identity"),
    **dict.fromkeys(("torch.nn.modules.activation.Sigmoid", "torch.nn.Sigmoid"), "sigmoid"),
}


def read_scorer(
    spec: ModelSpec, snapshot: ModelSnapshot, device_kind: str, capability: Capability = OLDEST, processors: int = 0
) -> ModelCard:
    """Read the card of a cross-encoder; arguments as those of `read_card`.

    Raises UnavailableError, naming the file, for a model that scores no pairs, needs its own code or cannot be computed
    as its authors did.
    """
    path = snapshot.path
    if onnx := onnx_of(path):
        raise _refused(spec, f"{onnx} is ONNX, which gives vectors of texts alone here")
    config, modules = usual(read_object(path / "config.json")), modules_of(path)
    if foreign := [module.type for module in modules if not module.type.startswith("sentence_transformers.")]:
        raise _refused(spec, f"{path / 'modules.json'} names {foreign[0]}, its own code, which is never run")
    check_settings(path, path, config, modules)
    _check_head(spec, path, config, modules, list(TensorFiles(snapshot.weights)))
    attention = attention_of(spec, path, config)
    activation_of(spec, path, config)
    packed = _packable(config, modules)
    if packed:  # of any other sentence-transformers reads its settings itself
        check_sentence(spec.key, path, config, SCORING)
    dtype, hard = dtype_of(spec, config, device_kind, capability), positions_of(snapshot, path, config)
    tokenizer = tokenizer_of(spec, path, config)
    if tokenizer.chat and not packed:
        check_template(spec.key, path, config, model_cache() / "tokenizers")
    return ModelCard(
        key=spec.key,
        snapshot=snapshot,
        config=config,
        dim=1,
        max_tokens=max_tokens_of(spec, path, config, tokenizer, hard),
        positions=hard or UNBOUNDED,
        pooling=None,
        packed=packed,
        kind="scores",
        dtype=dtype,
        document_prompt="",
        query_prompt=_prompt(spec, path),
        batch_tokens=spec.tokens_for(device_kind, processors),
        attention=attention,
        kernel=kernel_for(config, dtype, capability, packed=packed) if device_kind == "cuda" else Kernel.RUNS,
        **padding("" if packed else f"its network is a {architecture_of(config) or 'foreign one'}", config),
        capability=capability,
        tokenizer=tokenizer,
    )


def activation_of(spec: ModelSpec, path: Path, config: Config) -> Activation:
    """Find what is applied to the score, by the files at `path`, in the order in which sentence-transformers looks.

    Raises UnavailableError for anything but a sigmoid or nothing.
    """
    own, nested = path / "config_sentence_transformers.json", config.get("sentence_transformers")
    said = [(own, "activation_fn", read_object(own).get("activation_fn"))]
    if isinstance(nested, dict):
        said.append((path / "config.json", "sentence_transformers.activation_fn", nested.get("activation_fn")))
    old = "sbert_ce_default_activation_function"
    said.append((path / "config.json", old, config.get(old)))
    for file, key, name in said:
        if name is not None:
            if not isinstance(name, str) or name not in ACTIVATIONS:
                raise _refused(spec, f"{file}: {key} is {name!r:.100}, expected {', '.join(ACTIVATIONS)}")
            return ACTIVATIONS[name]
    return "sigmoid"


def _packable(config: Config, modules: Sequence[Module]) -> bool:
    """Whether the packed network and its head compute exactly what is described."""
    plain = [module.kind for module in modules] in ([], ["Transformer"])
    return plain and packable(config) and architecture_of(config).endswith("ForSequenceClassification")


def _check_head(spec: ModelSpec, path: Path, config: Config, modules: Sequence[Module], tensors: Sequence[str]) -> None:
    """Refuse what has no head that was trained to score, for which a library would draw one at random."""
    file, kinds = path / "config.json", [module.kind for module in modules]
    if ANSWER in kinds or "Dense" in kinds:
        return
    if not architecture_of(config).endswith("ForSequenceClassification"):
        found = architecture_of(config) or "missing"
        expected = f"one ForSequenceClassification, or a modules.json with {ANSWER}"
        raise _refused(spec, f"{file}: architectures is {found}, expected {expected}")
    labels = config.get("id2label")
    count = len(labels) if isinstance(labels, dict) else config.get("num_labels", 2)
    if count != 1:
        raise _refused(spec, f"{file} says {count} labels: a reranker gives one score")
    wanted = _head_of(config)
    if not any(name.startswith(wanted) or f".{wanted}" in f".{name}" for wanted in wanted for name in tensors):
        raise _refused(spec, f"{path} lacks the tensors of its head ({', '.join(wanted)})")


def _head_of(config: Config) -> tuple[str, ...]:
    names = NAMES.get(str(config.get("model_type")))
    return (f"{names.scorer[2]}.weight",) if names else HEADS


def _prompt(spec: ModelSpec, path: Path) -> str:
    """What is put before every query where its row or its files say so."""
    file = path / "config_sentence_transformers.json"
    settings = read_object(file)
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    prompt = prompts.get(default, "") if isinstance(prompts, dict) and default is not None else ""
    if not isinstance(prompt, str):
        raise _refused(spec, f"{file}: prompts: expected an object of strings")
    return prompt if spec.query_prompt is None else spec.query_prompt


def _refused(spec: ModelSpec, reason: str) -> UnavailableError:
    return UnavailableError(f"model {spec.key} cannot score pairs: {reason}; use another, such as bge-reranker-v2-m3")
