"""What makes a sparse model of the files of one: a masked-LM head, and pooling by the largest weight of each term.

Reads JSON and the header of the weights. What cannot be computed exactly is refused, with what works.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.models.layout import Module, read_object
from interlock.engine.models.network import HEAD, TERM_TYPES, gives_terms
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.tensors import TensorFiles

SPLADE = "SpladePooling"
USE = f"use one of type {', '.join(sorted(TERM_TYPES))} with its masked-LM head, such as splade-v3"
POOLING = {"pooling_strategy": "max", "activation_function": "relu"}
"""How terms are pooled here, and where a model does not say how."""


def check_kind(
    spec: ModelSpec, weights: Sequence[Path], path: Path, config: Mapping[str, object], modules: Sequence[Module]
) -> None:
    """Raise UsageError where the files at `path` are those of another kind of model than its row says, and
    UnavailableError for a sparse one that is not computed here."""
    kinds = [module.kind for module in modules]
    if spec.kind == "dense":
        if SPLADE in kinds:
            raise UsageError(
                f"model {spec.key} is a sparse model by its {path / 'modules.json'}: name it in --sparse, with "
                f'kind = "sparse" in [models.{spec.key}] where there is such a table'
            )
        return
    if kinds and kinds[-1] != SPLADE:
        raise UsageError(f"model {spec.key} is a dense model by its {path / 'modules.json'}: name it in --roster")
    if reason := next(_faults(weights, path, config, modules), ""):
        raise UnavailableError(f"model {spec.key} cannot be computed as a sparse model: {reason}; {USE}")


def _faults(
    weights: Sequence[Path], path: Path, config: Mapping[str, object], modules: Sequence[Module]
) -> Iterator[str]:
    """Why a sparse model is not computed here."""
    if not gives_terms(config):
        yield f"{path / 'config.json'}: model_type {config.get('model_type')!r} or one of its settings is not supported"
    if modules and [module.kind for module in modules[:-1]] not in (["Transformer"], ["MLMTransformer"]):
        yield f"{path / 'modules.json'}: its modules are {', '.join(module.kind for module in modules)}"
    for file in (path / module.path / "config.json" for module in modules[-1:]):
        for key, usual in POOLING.items():
            if (given := read_object(file).get(key, usual)) != usual:
                yield f"{file}: {key} is {given!r:.100}"
    if not any(name.startswith(HEAD) for name in TensorFiles(weights)):
        yield f"{path} lacks the tensors of a masked-LM head ({HEAD}*)"
