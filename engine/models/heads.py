"""What a model gives beside a vector of a whole text: weights of terms, and vectors of single tokens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from interlock.engine.corpus.tokens import load_tokenizer, specials_of
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.models.assets import ModelSnapshot
from interlock.engine.models.layout import (
    ROUTER,
    SPLADE,
    STATIC,
    Module,
    architecture_of,
    read_object,
    routes_of,
    shapes_in,
)
from interlock.engine.models.networks.checkpoint import NAMES, PACKED_TYPES, Weights, packable
from interlock.engine.models.networks.pooling import TermPooling
from interlock.engine.models.pickles import TensorFiles
from interlock.engine.models.registry import Head, ModelSpec
from interlock.engine.record.facts import TokenForm

VECTORS = 2048
"""Tokens whose vectors leave a device together, in float32: those of a whole batch would outgrow a layer."""
KeepVectors = Callable[[int, Tensor], object]
"""Takes the number of the first token, and unit vectors [n, dim] of it and those that follow."""


class TokenScale(nn.Module):
    """`sparse_linear`: the last hidden state of a token to its weight."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, hidden: Tensor) -> Tensor:
        """Weigh the tokens of `hidden` [T, width]: [T] in float32, none below 0."""
        return F.linear(hidden, self.weight, self.bias).relu_().float().squeeze(1)


class TokenMap(nn.Module):
    """`colbert_linear`: the last hidden state of a token to its vector."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, hidden: Tensor, keep: KeepVectors) -> None:
        """Give `keep` the unit vectors of the tokens of `hidden` [T, width], a part of them at a time."""
        for start in range(0, len(hidden), VECTORS):
            keep(start, F.normalize(F.linear(hidden[start : start + VECTORS], self.weight, self.bias).float(), dim=1))


def unit_states(hidden: Tensor, keep: KeepVectors) -> None:
    """Give `keep` the states [T, width] themselves as `TokenMap` would give its vectors."""
    for start in range(0, len(hidden), VECTORS):
        keep(start, F.normalize(hidden[start : start + VECTORS].float(), dim=1))


def load_heads(files: Mapping[Head, Path], width: int, dtype: torch.dtype) -> nn.ModuleDict:
    """Read heads of a network whose states have `width` numbers, each by its own name."""
    kinds: dict[Head, type[TokenScale | TokenMap]] = {
        "sparse_linear": TokenScale,
        "colbert_linear": TokenMap,
    }
    heads = nn.ModuleDict()
    for head, file in files.items():
        rows = shapes_in(file)["bias"][0]
        state = Weights(TensorFiles([file]), dtype)
        heads[head] = kinds[head](state.take("weight", rows, width), state.take("bias", rows))
    return heads


def check_heads(model: str, files: Mapping[Head, Path], width: int) -> None:
    """Raise UnavailableError, naming the file, for a head that is no map from `width` numbers, or not to a weight."""
    for head, file in files.items():
        shapes = shapes_in(file)
        rows = 1 if head == "sparse_linear" else shapes.get("bias", (0,))[0]
        if rows < 1 or shapes != {"weight": (rows, width), "bias": (rows,)}:
            raise UnavailableError(
                f"model {model}: {file} has the tensors {shapes}, expected a map from {width} numbers with its bias: "
                "use a model whose heads fit its network"
            )


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
        named = architecture_of(config)
        if named.endswith("ForSequenceClassification") and "Pooling" not in kinds:
            raise UsageError(
                f"model {spec.key} is a cross-encoder by its {path / 'config.json'} ({named}), which gives no vectors: "
                f'name it in --rerank, with kind = "scores" in [models.{spec.key}] where there is such a table'
            )
        if kinds and "Pooling" not in kinds and kinds[0] != STATIC:
            raise UnavailableError(f"model {spec.key}: {path / 'modules.json'} names no Pooling: use another model")
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


UNWEIGHED = ("cls_token", "eos_token", "pad_token", "unk_token")
"""They are in no text, or stand for what is not known."""


@dataclass(frozen=True)
class TokenOutputs:
    """Weights and vectors of tokens; without arguments, neither."""

    unweighed: tuple[int, ...] | None = None
    """The ids that weigh nothing, where tokens are weighed and the weights of terms come of that."""
    vectors: TokenForm | None = None
    """How the vectors of tokens are kept."""
    around: tuple[int, int] = (0, 0)
    """Tokens at the start and at the end of each row that have no vector."""


def is_lexical(spec: ModelSpec, snapshot: ModelSnapshot, modules: Sequence[str]) -> bool:
    """Tell whether terms get their weights from those of tokens. Raises UsageError for a dense model that is to weigh
    terms beside its vectors and has no `sparse_linear`."""
    if spec.kind == "sparse":
        return "sparse_linear" in snapshot.heads and "SpladePooling" not in modules
    if "sparse" in spec.gives and "sparse_linear" not in snapshot.heads:
        raise UsageError(
            f"--sparse: {spec.key} is a dense model without lexical weights ({snapshot.path} lacks "
            "sparse_linear.safetensors): name it in --roster alone"
        )
    return "sparse" in spec.gives


def token_outputs(
    spec: ModelSpec,
    snapshot: ModelSnapshot,
    path: Path,
    tokens: Path,
    width: int,
    padded: str,
    *,
    lexical: bool,
    ours: bool,
) -> TokenOutputs:
    """Read what the tokens of a model give whose network lies in `path` and has states of `width` numbers.

    `tokens` is the file of its tokenizer.

    `padded` is why its rows are padded, where they are. Raises UnavailableError for what is not computed here.
    """
    if not lexical and "tokens" not in spec.gives:
        return TokenOutputs()
    if (lexical or snapshot.heads) and not ours:
        raise UnavailableError(
            f"model {spec.key} has heads of its own beside a network that is not packed here "
            f"({', '.join(file.name for file in snapshot.heads.values())}): use bge-m3, or drop what they give"
        )
    if padded:
        raise UnavailableError(
            f"model {spec.key} gives no token vectors here, since its rows are padded ({padded}): drop it from "
            "--token-vectors"
        )
    check_heads(spec.key, snapshot.heads, width)
    tokenizer = load_tokenizer(tokens)
    specials = specials_of(tokenizer)
    unweighed = {*_special_ids(path, tokenizer), *specials.before, *specials.after}
    mapped = snapshot.heads.get("colbert_linear")
    dim = shapes_in(mapped)["bias"][0] if mapped else width
    precision = spec.token_precision
    if "tokens" in spec.gives and precision == "bit" and dim % 8:
        raise UsageError(f"--token-precision bit: {spec.key} has {dim} numbers in a vector, no multiple of 8: use int8")
    # BGE-M3 was trained to leave out the first token alone. Of a network that was not trained for its tokens, special
    # ones say nothing of any word: each would be alike with that of every query.
    around = (1, 0) if mapped else (len(specials.before), len(specials.after))
    wanted = "tokens" in spec.gives
    return TokenOutputs(
        tuple(sorted(unweighed)) if lexical else None,
        TokenForm(dim=dim, precision=precision, pooling=spec.token_pooling) if wanted else None,
        around if wanted else (0, 0),
    )


def _special_ids(path: Path, tokenizer: Tokenizer) -> set[int]:
    """The ids of the tokens of `UNWEIGHED`, as the model's files name them."""
    told = {**read_object(path / "special_tokens_map.json"), **read_object(path / "tokenizer_config.json")}
    words = [each.get("content") if isinstance(each := told.get(name), dict) else each for name in UNWEIGHED]
    ids = (tokenizer.token_to_id(word) for word in words if isinstance(word, str))
    return {number for number in ids if number is not None}
