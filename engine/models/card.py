"""What a model says of itself: its shape, limits, pooling and prompts, read from the files of its snapshot.

Reads JSON and the header of the weights, never the weights, and has the tokenizer tried. The registry's row has the
last word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from interlock.engine.corpus.tokenizer import Built, Types
from interlock.engine.corpus.tokens import tokens_of_prompt
from interlock.engine.errors import UnavailableError
from interlock.engine.models.assets import ModelSnapshot
from interlock.engine.models.commits import published_of
from interlock.engine.models.heads import TokenOutputs, check_kind, is_lexical, pooling_of, token_outputs
from interlock.engine.models.layout import (
    POSITIONS,
    STATIC_TYPE,
    Module,
    document_modules,
    home_of,
    is_static,
    modules_of,
    onnx_of,
    read_object,
)  # fmt: skip
from interlock.engine.models.networks.attention import ROTARY, older_transformers, why_padded
from interlock.engine.models.networks.batching import Batching, padding
from interlock.engine.models.networks.checkpoint import check_settings, packable, usual
from interlock.engine.models.networks.gte import GTE
from interlock.engine.models.networks.int8 import dtype_of
from interlock.engine.models.networks.kernels import OLDEST, Capability, Kernel, first_kernel, kernel_for
from interlock.engine.models.networks.onnx import how_computed
from interlock.engine.models.networks.pooling import (
    POOLINGS,
    WHOLE,
    TermPooling,
    VectorShape,
    pooling_file,
    poolings_of,
)
from interlock.engine.models.networks.static import table_settings
from interlock.engine.models.registry import Kind, ModelSpec, Output, without_code
from interlock.engine.models.sentence import (
    PLAIN,
    SPARSE,
    UNBOUNDED,
    check_sentence,
    check_whole,
    dense_width,
    max_tokens_of,
    positions_of,
    tokenizer_of,
    whole,
)

NOT_AS_NONE = ("ctrl", "gpt2", "openai-gpt", "xlnet")
"""Architectures that add something for a token type of 0 too."""
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
Config = Mapping[str, Any]


@dataclass(frozen=True)
class ModelCard:
    """Everything that planning and encoding need to know of one model."""

    key: str
    snapshot: ModelSnapshot
    config: Config
    dim: int
    max_tokens: int
    pooling: str | None
    """None for a mixture, which sentence-transformers pools itself, and for a sparse model."""
    packed: bool
    dtype: str
    document_prompt: str
    query_prompt: str
    batch_tokens: int
    attention: str
    kind: Kind = "dense"
    asked: tuple[Output, ...] = ()
    """What its pass is to give; empty for what its kind says alone."""
    by_token: TokenOutputs = TokenOutputs()
    """What comes of each token, where that is asked for."""
    terms: TermPooling = TermPooling()
    """How a sparse model makes weights of its logits."""
    home: str = ""
    """The folder of the snapshot that has its network and tokenizer, where that is not the snapshot's own."""
    kernel: Kernel = Kernel.RUNS
    """How a GPU attends to its rows; a host does it in runs of one length."""
    positions: int = POSITIONS
    """The longest row that the network itself takes."""
    padded_because: str = ""
    """Why its rows are padded, where they are not packed."""
    batching: Batching = Batching.MIXED
    """Which rows may be computed together."""
    capability: Capability = OLDEST
    """The lowest of the GPUs that compute it."""
    tokenizer: Built | None = None
    """Its tokenizer, as transformers builds it of all its files."""
    prompt_tokens: Mapping[str, int] = field(default_factory=dict)
    """How many tokens of a row are those of a prompt, where pooling leaves them out."""
    shape: VectorShape = WHOLE
    """What counts of the tokens of a document and of its vector."""
    unused_prompts: tuple[str, ...] = ()
    """Names of its prompts that stand before neither documents nor queries, where it names none for one of these."""

    @property
    def outputs(self) -> tuple[Output, ...]:
        """What its pass gives; nothing of a model that scores pairs, which has none."""
        return self.asked if self.asked or self.kind == "scores" else (self.kind,)

    @property
    def ours(self) -> bool:
        """Whether its network is the one of `network.py`."""
        return self.packed and packable(self.config)

    @property
    def static(self) -> bool:
        """Whether it has a table in place of a network."""
        return self.config.get("model_type") == STATIC_TYPE

    @property
    def onnx(self) -> bool:
        """Whether onnxruntime computes it."""
        return any(file.suffix == ".onnx" for file in self.snapshot.weights)

    @property
    def network_kind(self) -> Kind:
        """What its network ends with: `sparse` for a masked-LM head."""
        return "dense" if self.by_token.unweighed is not None else self.kind

    @property
    def how_pooled(self) -> str:
        """Name the way from states of tokens to what it makes of a text."""
        way = self.pooling or (self.terms.strategy if self.kind == "sparse" else "several")
        return f"{way} without the prompt" if self.prompt_tokens else way

    @property
    def words(self) -> int:
        """Return the size of its vocabulary."""
        return int(self.config["vocab_size"])

    @property
    def on_host(self) -> "ModelCard":
        """The same model as a host computes it beside GPUs: in float32."""
        return replace(self, dtype="float32", kernel=Kernel.RUNS)

    def behind(self, prompt: str) -> "ModelCard":
        """The same model for texts behind another prompt than that of documents."""
        shape = replace(self.shape, skipped=self.prompt_tokens.get(prompt, 0))
        return self if shape == self.shape else replace(self, shape=shape)

    @property
    def tight(self) -> bool:
        """Whether nothing is computed for padding."""
        return self.packed or self.batching is not Batching.MIXED

    def kernel_on(self, device_kind: str) -> Kernel:
        """Return how a device of this kind attends to its rows: only a GPU that is there does it otherwise."""
        return self.kernel if device_kind == "cuda" else Kernel.HOST

    def in_precision(self, dtype: str) -> "ModelCard":
        """Return the same model in another precision, with the kernel that a GPU has for it; one that attends in runs
        goes on so."""
        if self.packed and self.kernel is Kernel.RUNS:
            return replace(self, dtype=dtype)
        kernel = kernel_for(self.config, dtype, self.capability, packed=self.packed, triton=self.kernel.triton)
        return replace(self, dtype=dtype, kernel=kernel)

    @property
    def tokenizer_file(self) -> Path:
        return self.tokenizer.file if self.tokenizer else self.snapshot.path / self.home / "tokenizer.json"

    @property
    def types(self) -> Types | None:
        """The token types that its network is given; None where it need not be given any."""
        types = self.tokenizer.types if self.tokenizer else None
        return None if types is None or (self.packed and not any(types.every)) else types

    @property
    def tokens_digest(self) -> str:
        """What makes its rows other than `tokenizer.json` alone would; empty where nothing does."""
        types, told = self.types, self.tokenizer.digest if self.tokenizer else ""
        if types and (any(types.every) or self.config.get("model_type") in NOT_AS_NONE):
            return f"{told} {types.before} {types.own} {types.after}".strip()
        return told


def read_card(
    spec: ModelSpec, snapshot: ModelSnapshot, device_kind: str, capability: Capability = OLDEST, processors: int = 0
) -> ModelCard:
    """Read the card of a snapshot, and refuse a model that could not be used as it stands.

    `capability` is the lowest of the GPUs that will compute it, `processors` the fewest multiprocessors of one.

    Raises UnavailableError, naming the file, for a model that cannot be used or cannot run without its own code,
    and UsageError for a row of the registry that asks for what the model does not have.
    """
    root, path = snapshot.path, home_of(snapshot.path)
    static, modules, onnx = is_static(root), document_modules(root), onnx_of(root)
    config = table_settings(snapshot.weights) if static else usual(read_object(path / "config.json"))
    check_settings(root, path, config, modules)
    kinds = [module.kind for module in modules]
    lexical = is_lexical(spec, snapshot, kinds)
    sparse = spec.kind == "sparse" and not lexical
    if not lexical and not (onnx and sparse):
        check_kind(spec, snapshot.weights, root, config, modules)
    check_sentence(spec.key, path, config, SPARSE if sparse else PLAIN)
    poolings = () if sparse else poolings_of(spec, path, config, modules)
    pooling = poolings[0] if len(poolings) == 1 else None
    plain = kinds in ([], ["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
    ours = not onnx and (sparse or (plain and pooling in POOLINGS and packable(config)))
    attention = "eager" if onnx else spec.attention if ours or static else attention_of(spec, path, config)
    padded = "" if ours or static else _why_padded(config, attention, kinds, pooling)
    together = how_computed(spec, onnx, root, device_kind, kinds, pooling) if onnx else padding(padded, config, kinds)
    dtype = dtype_of(spec, config, device_kind, capability, ours=ours, fixed=static or bool(onnx))
    document, query, unused = _prompts(spec, root)
    cut = check_whole(spec.key, root, spec.kind == "dense") if modules else None
    dim = _dim(spec, path, config, modules, len(poolings), cut)
    width = whole(path / "config.json", config, *WIDTHS) or dim
    tokenizer = tokenizer_of(spec, path, config, plain=not modules)
    tokens = token_outputs(spec, snapshot, path, tokenizer.file, width, padded, lexical=lexical, ours=ours)
    hard = positions_of(snapshot, path, config)
    limit = max_tokens_of(spec, path, config, tokenizer, hard)
    excluded = poolings and modules and not read_object(pooling_file(root, modules)).get("include_prompt", True)
    skipped = {each: tokens_of_prompt(tokenizer.file, each, limit) for each in (document, query) if each and excluded}
    card = ModelCard(
        key=spec.key,
        snapshot=snapshot,
        config=config,
        dim=dim,
        max_tokens=limit,
        positions=hard or UNBOUNDED,
        pooling=pooling,
        packed=not padded,
        kind=spec.kind,
        asked=spec.outputs,
        by_token=tokens,
        terms=pooling_of(spec.key, root, modules) if sparse else TermPooling(),
        home="" if path == root else str(path.relative_to(root)),
        dtype=dtype,
        document_prompt=document,
        query_prompt=query,
        batch_tokens=spec.tokens_for(device_kind, processors),
        attention=attention,
        kernel=first_kernel(config, dtype, device_kind, capability, packed=not padded),
        **together,
        capability=capability,
        tokenizer=tokenizer,
        prompt_tokens=skipped,
        shape=VectorShape(skipped.get(document, 0), cut),
        unused_prompts=unused,
    )
    check_types(card)
    return card


def told_by(spec: ModelSpec, path: Path | None) -> tuple[str, str, str] | None:
    """Read the pooling of a model and its prompts for documents and queries, by its files in `path` or, without, by its
    row; None where neither says them. Raises UnavailableError for files that cannot be used."""
    if path is None or spec.kind != "dense":
        known = published_of(spec)
        document, query = spec.document_prompt, spec.query_prompt
        return known and (known[0], known[1] if document is None else document, known[2] if query is None else query)
    modules = document_modules(path)
    poolings = poolings_of(spec, path, read_object(home_of(path) / "config.json"), modules)
    return " and ".join(poolings), *_prompts(spec, path)[:2]


def _why_padded(config: Config, attention: str, kinds: Sequence[str], pooling: str | None) -> str:
    """Why transformers cannot compute rows of it without padding; what follows the pooling sees one vector a row."""
    if pooling not in POOLINGS:
        return f"its pooling is {pooling or 'a mixture'}"
    usual = not kinds or (kinds[:2] == ["Transformer", "Pooling"] and set(kinds[2:]) <= {"Dense", "Normalize"})
    return why_padded(config, attention) if usual else f"its modules are {', '.join(kinds)}"


def attention_of(spec: ModelSpec, path: Path, config: Config) -> Literal["sdpa", "eager"]:
    """Choose the attention kernel of its row, or eager where the architecture has no other.

    Refuses what transformers would run by code in the model's repository, and what the one that is here lacks.
    """
    from transformers import CONFIG_MAPPING, MODEL_MAPPING

    kind = str(config.get("model_type"))
    if kind in ROTARY and kind not in CONFIG_MAPPING:
        found = version("transformers")
        raise UnavailableError(f"model {spec.key}: transformers {found} has no {kind} networks: install a newer one")
    if config.get("is_causal") is False and why_padded(config, spec.attention) and (older := older_transformers()):
        raise UnavailableError(
            f"model {spec.key}: {older} does not heed is_causal of {path / 'config.json'}: install a newer one"
        )
    if config.get("auto_map") and kind not in CONFIG_MAPPING:
        raise UnavailableError(
            f"model {spec.key} needs its own code ({path / 'config.json'}: auto_map), which is never run: use "
            f"{without_code(spec.hub_repo)}"
        )
    if kind == GTE and kind not in CONFIG_MAPPING:
        raise UnavailableError(f"model {spec.key}: this version of transformers has no network {GTE}: install another")
    mapped = MODEL_MAPPING.get(CONFIG_MAPPING[kind], None) if kind in CONFIG_MAPPING else None
    network = mapped[0] if isinstance(mapped, tuple) else mapped
    return spec.attention if getattr(network, "_supports_sdpa", True) else "eager"


def _prompts(spec: ModelSpec, path: Path) -> tuple[str, str, tuple[str, ...]]:
    """What is put before documents and before queries; and the names of the others, where one of these two is not said.
    They are called as by sentence-transformers, which takes none of another name."""
    file, known = path / "config_sentence_transformers.json", published_of(spec)
    prompts = read_object(file).get("prompts") or {}
    if not modules_of(path):  # as in sentence-transformers, which then reads no prompts
        prompts = {"document": known[1], "query": known[2]} if known else {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise UnavailableError(f"{file}: prompts: expected an object of strings")
    given = {"document": spec.document_prompt, "query": spec.query_prompt}
    document, query = (prompts.get(name) or "" if text is None else text for name, text in given.items())
    unsaid = any(text is None and prompts.get(name) is None for name, text in given.items())
    return document, query, tuple(name for name, text in prompts.items() if text and name not in given and unsaid)


def _dim(spec: ModelSpec, path: Path, config: Config, modules: Sequence[Module], poolings: int, cut: int | None) -> int:
    """The numbers of a vector, of which the model's own settings keep `cut`."""
    names = ("vocab_size",) if spec.kind == "sparse" else WIDTHS
    read = whole(path / "config.json", config, *names) or spec.dim
    if read is None:
        raise UnavailableError(f"{path / 'config.json'} lacks the vector width (hidden_size)")
    for module in modules:
        if module.kind == "Pooling":
            read *= poolings
        if module.kind == "Dense":
            read = dense_width(path / module.path / "config.json", read if spec.kind == "dense" else None)
    whole_width, read = read, min(read, cut or read)
    if spec.dim is not None and spec.dim not in (whole_width, read):
        raise UnavailableError(f"model {spec.key} has {read} dimensions, expected {spec.dim}: {path}")
    return read


def check_types(card: ModelCard) -> None:
    """Raise UnavailableError for token types that its network does not know."""
    known, types = card.config.get("type_vocab_size"), card.types
    if types and isinstance(known, int) and max(types.every) >= max(known, 1):
        raise UnavailableError(
            f"model {card.key}: {card.tokenizer_file} gives token type {max(types.every)}, but the model has only "
            f"{known}: use the tokenizer that belongs to its weights"
        )
