"""What makes a sparse model of the files of one: a masked-LM head, and pooling of its logits into weights of terms.

Reads JSON and the header of the weights. What cannot be computed exactly is refused by name, with what works.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.models.checkpoint import NAMES, PACKED_TYPES, packable
from interlock.engine.models.layout import ROUTER, SPLADE, Module, read_object, routes_of
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.tensors import TensorFiles
from interlock.engine.models.term_pooling import TermPooling

USE = f"use one of type {', '.join(sorted(PACKED_TYPES))} with its masked-LM head, such as splade-v3"
POOLING = {"pooling_strategy": "strategy", "activation_function": "activation"}
"""What sentence-transformers calls the ways of pooling terms."""
UNHEARD = ("embedding_dimension", "word_embedding_dimension", "chunk_size")
"""They change no weights."""


def check_kind(
    spec: ModelSpec, weights: Sequence[Path], path: Path, config: Mapping[str, object], modules: Sequence[Module]
) -> None:
    """Raise UsageError where the files at `path` are those of another kind of model than its row says, and
    UnavailableError for a sparse one that is not computed here. `modules` are those of documents."""
    kinds = [module.kind for module in modules]
    if spec.kind == "dense":
        if SPLADE in kinds:
            raise UsageError(
                f"model {spec.key} is a sparse model by its {path / 'modules.json'}: name it in --sparse, with "
                f'kind = "sparse" in [models.{spec.key}] where there is such a table'
            )
        return
    if kinds and kinds[-1] != SPLADE and not routes_of(path):
        raise UsageError(f"model {spec.key} is a dense model by its {path / 'modules.json'}: name it in --roster")
    if reason := next(_faults(weights, path, config, modules), ""):
        raise _refused(spec.key, reason)


def pooling_of(key: str, path: Path, modules: Sequence[Module]) -> TermPooling:
    """Read how a sparse model pools its logits, by its last module and its settings; the usual way where it has none.

    Raises UnavailableError, naming the file, for a way that is not known here.
    """
    file = path / (modules[-1].path if modules else "") / "config.json"
    told = read_object(file) if modules else {}
    if unknown := sorted(set(told) - set(POOLING) - set(UNHEARD)):
        raise _refused(key, f"{file}: {unknown[0]} is not known")
    settings = path / "config_sentence_transformers.json"
    overall = read_object(settings)
    if (similarity := overall.get("similarity_fn_name")) not in (None, "dot"):
        raise _refused(key, f"{settings}: similarity_fn_name is {similarity!r:.100}, which no store has")
    given = {name: told[item] for item, name in POOLING.items() if told.get(item) is not None}
    try:
        pooling = msgspec.convert(given, TermPooling)
    except msgspec.ValidationError as error:
        raise _refused(key, f"{file}: {error}") from None
    most = overall.get("max_active_dims")
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise _refused(key, f"{settings}: max_active_dims is {most!r:.100}")
    return replace(pooling, most=most)


def _refused(key: str, reason: str) -> UnavailableError:
    return UnavailableError(f"model {key} cannot be computed as a sparse model: {reason}; {USE}")


def _faults(
    weights: Sequence[Path], path: Path, config: Mapping[str, object], modules: Sequence[Module]
) -> Iterator[str]:
    """Why a sparse model is not computed here."""
    routes = routes_of(path)
    if routes and (not modules or modules[-1].kind != SPLADE):
        told = ", ".join(module.kind for module in routes.get("document", [])) or "nothing"
        yield f"{path / ROUTER}: its documents go through {told}"
    parameters = read_object(path / ROUTER).get("parameters")
    if isinstance(parameters, dict) and parameters.get("route_mappings"):
        yield f"{path / ROUTER}: route_mappings is {parameters['route_mappings']!r:.100}"
    if not packable(config):
        yield f"{path / 'config.json'}: model_type {config.get('model_type')!r} or one of its settings is not supported"
    if modules and [module.kind for module in modules[:-1]] not in (["Transformer"], ["MLMTransformer"]):
        yield f"{path / 'modules.json'}: its modules are {', '.join(module.kind for module in modules)}"
    head = NAMES[str(config["model_type"])].head[0]
    if f"{head}.weight" not in TensorFiles(weights):
        yield f"{path} lacks the tensors of a masked-LM head ({head}.weight)"
