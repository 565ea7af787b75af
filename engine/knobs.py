"""Every setting of a run, declared once: its type, default, what it takes, its help, and the group it belongs to.

Flags and `--help`, environment names, `config show`, the set-up form, `interlock.Settings` and the table in
docs/reference.md are all made from these fields.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from interlock.engine import parsers
from interlock.engine.corpus.naming import Naming
from interlock.engine.models.members import members
from interlock.engine.models.registry import Asked, ModelSpec
from interlock.engine.record.facts import TokenPrecision
from interlock.engine.record.shards import shard_text
from interlock.engine.targets.files.formats import FORMATS
from interlock.engine.vectors import LANGUAGES, NO_LANGUAGE


def knob(default: str, parse: Callable[[Any], Any], metavar: str, text: str, *, kept: str = "") -> Any:
    """Declare a setting: its default as text, how texts and values become what the run takes, how its value is named
    (empty for a switch), and its help. A resumed run keeps the value it was begun with for every setting that has a
    `kept` group, unless one of that group is given now."""
    return field(
        default=parse(default),
        metadata={"default": default, "parse": parse, "metavar": metavar, "help": text, "kept": kept},
    )


def choice(words: tuple[str, ...], text: str, *, kept: str = "") -> Any:
    """Declare a setting that is one of these words, the first where nobody says it."""
    return knob(words[0], parsers.one_of(*words), "|".join(words), text, kept=kept)


@dataclass(frozen=True)
class ModelSettings:
    """models and texts"""

    roster: parsers.Roster = knob(
        "all-minilm-l6,all-mpnet-base-v2",
        parsers.roster,
        "NAME[=WEIGHT],...",
        "models in pass order with their fusion weights; the first is the primary. Without weights they count by their "
        "published retrieval quality, where that is known",
        kept="roster",
    )
    sparse: tuple[str, ...] = knob(
        "",
        parsers.names,
        "MODEL,...",
        "sparse models, which weigh terms (splade-tiny): passes of their own after the roster's",
        kept="sparse",
    )
    token_vectors: tuple[str, ...] = knob(
        "",
        parsers.names,
        "MODEL,...",
        "keep vectors of every token of these models of the roster too, for late interaction; they take hundreds of "
        "times the space: `interlock plan` says how much",
        kept="tokens",
    )
    token_precision: TokenPrecision = choice(
        get_args(TokenPrecision), "what a number of a token vector is kept in", kept="tokens"
    )
    token_pooling: int = knob(
        "1",
        parsers.at_least_one,
        "N",
        "keep one token vector for N of a text, the mean of those that are alike; 1 keeps all",
        kept="tokens",
    )
    collections: tuple[str, ...] = knob(
        "", parsers.names, "NAME,...", "embed only these collections", kept="collections"
    )
    shard: str = knob("", shard_text, "K/N", "embed only shard K of N of the texts, by their digests", kept="shard")
    text_field: str = knob(
        "", parsers.text, "NAME", "field or column that holds a record's text (default text)", kept="fields"
    )
    id_field: str = knob(
        "", parsers.text, "NAME", "field or column that holds a record's id, which its point is known by", kept="fields"
    )
    title_field: str = knob(
        "", parsers.text, "NAME", "field or column with a title, put before the text with a space", kept="fields"
    )
    dim: int = knob(
        "0", parsers.count, "N", "truncate vectors of Matryoshka models to N dimensions; 0 keeps all", kept="dim"
    )
    fusion: Literal["concat", "named", "mean"] = choice(
        ("concat", "named", "mean"), "how to fuse the models' vectors", kept="fusion"
    )
    keep: Literal["fused", "members", "both"] = choice(
        ("fused", "members", "both"),
        "dense vectors in a store and in points.parquet: the fused one, which answers at any weights where it is a "
        "concat, each model's own, or both",
        kept="keep",
    )
    project: int = knob(
        "0",
        parsers.count,
        "N",
        "reduce the fused vectors to the N dimensions in which those of a collection have the most length; 0 keeps all",
        kept="project",
    )
    quantise: Literal["none", "int8"] = choice(
        ("none", "int8"),
        "keep a number of a dense vector in a store, and of the fused ones in a file, in eight bits instead of 32",
        kept="quantise",
    )
    compact: bool = knob(
        "no",
        parsers.flag,
        "",
        "keep a store small: --quantise int8, --project 384 where that can be, BM25 made of its texts when asked",
        kept="compact",
    )
    payload: Literal["nested", "flat"] = choice(
        ("nested", "flat"),
        "where points have the fields of a chunk's metadata: under metadata, as metadata.lang, or flat beside our own "
        "(text, chunk_id, source, record), as lang; one of these names stays under metadata",
        kept="payload",
    )
    offline: bool = knob("no", parsers.flag, "", "never touch the network")
    refresh_models: bool = knob("no", parsers.flag, "", "fetch newer files of the models' revisions from the hub")
    allow_pickle: tuple[str, ...] = knob(
        "",
        parsers.names,
        "MODEL,...",
        "read weights that these models publish only as pickles, without running them; a safetensors copy is kept",
    )


@dataclass(frozen=True)
class DeviceSettings:
    """devices and memory"""

    devices: str = knob(
        "auto",
        parsers.text,
        "auto|cpu|cuda[:N],...|sim:2xT4",
        "where to compute: auto uses every GPU, or the CPU if there is none; sim:2xT4 rehearses on simulated GPUs, "
        "in float32 with the CPU's batches",
        kept="devices",
    )
    cluster: str = knob(
        "",
        parsers.cluster,
        "auto|HOST:PORT|local:N",
        "compute on every machine of a Ray cluster: the one that this machine is in, the one at an address, or N nodes "
        "on this machine alone, for trials; --devices, limits, threads and faults then count on each; "
        "ADDRESS,twice has every batch computed by two nodes and compared",
    )
    min_nodes: int = knob(
        "0",
        parsers.up_to(10_000),
        "N",
        "of a cluster: begin once so many nodes have joined, with GPUs unless --devices says otherwise, and have an "
        "autoscaler start them; 0: with those that are there",
    )
    node_resources: str = knob(
        "", parsers.resources, "NAME=AMOUNT,...", "of a node, by Ray's names: GPU=2,memory=32GiB; default: all GPUs"
    )
    wait: str = knob(
        "15m", parsers.lasting, "DURATION", "how long --min-nodes waits; then the run ends, with exit code 4"
    )
    window: int | Literal["shared"] = knob(
        "0",
        parsers.window,
        "N|shared",
        "how long a model has the devices: N batches, or 0: its whole pass; shared: models are resident side by side",
        kept="schedule",
    )
    cpu_fallback: bool = knob(
        "yes", parsers.flag, "", "fall back to the CPU (float32) for work that fits on no GPU", kept="cpu_fallback"
    )
    warm: int = knob(
        "4GiB", parsers.size, "SIZE", "host memory for keeping weights between leases, to attach them faster"
    )
    threads: int = knob("0", parsers.up_to(parsers.MOST_THREADS), "N", "CPU threads; 0 uses every core", kept="threads")
    precision: Asked = knob(
        "float32",
        parsers.one_of(*get_args(Asked)),
        "|".join(get_args(Asked)),
        "what a CPU computes in; auto: bfloat16 where it multiplies that itself; models whose vectors come out too far "
        "from those of float32 are computed in that",
        kept="precision",
    )
    ceiling: int = knob("12GiB", parsers.size, "SIZE", "memory limit of the run on each device", kept="ceiling")
    host_ceiling: int = knob(
        "0",
        parsers.size,
        "SIZE",
        "memory limit of a model on the host; 0: of a run on GPUs what is free there, else --ceiling",
        kept="host_ceiling",
    )
    margin: int = knob("64MiB", parsers.size, "SIZE", "memory of each limit that no lease is promised", kept="margin")
    faults: tuple[str, ...] = knob(
        "",
        parsers.names,
        "FAULT,...",
        "inject faults on simulated devices, for example oom:40, lose@cuda:1:400",
        kept="faults",
    )


@dataclass(frozen=True)
class ResultSettings:
    """results"""

    export: tuple[str, ...] = knob(
        "npy,parquet", parsers.some_of(*FORMATS), "FORMAT,...", "files to export for each collection", kept="export"
    )
    qdrant: Path | None = knob(
        "",
        parsers.store,
        "DIR",
        "write an embedded, searchable Qdrant store; `run --qdrant URL`: upload to a server at the end",
        kept="qdrant",
    )
    prune: bool = knob(
        "no",
        parsers.flag,
        "",
        "remove points from the store whose chunks are no longer in the corpus, once all of it is there",
        kept="prune",
    )
    bm25: str = knob(
        "english",
        parsers.words(*LANGUAGES, NO_LANGUAGE),
        "LANGUAGE|off",
        "write BM25 vectors, which need no model, into the store: with the stop words and stems of this language; "
        "none: all words as they are; off: no such vectors",
        kept="bm25",
    )
    chunk_sparse: str = knob(
        "",
        parsers.text,
        "NAME",
        "deliver the sparse_features that chunks bring as sparse vectors of this name; bad ones refuse their chunk",
        kept="chunk_sparse",
    )


@dataclass(frozen=True)
class SessionSettings:
    """the run"""

    out: Path = knob("runs", parsers.path, "DIR", "directory for run directories")
    run_id: str = knob("", parsers.run_id, "ID", "name of the run (default: its start time)")
    resume: bool = knob(
        "no",
        parsers.flag,
        "",
        "resume run --run-id, or the newest run of these chunks, with its original settings; start one "
        "if there is none (with --run-id only where --out has no other run)",
    )
    deadline: str = knob(
        "",
        parsers.deadline,
        "8h30m|17:45[,export]",
        "stop resumably, with exit code 4, before the session is so old, or before this time of day: no batch is begun "
        "that would not be done by then; with `,export` the collections that every model has seen are exported before",
    )
    reuse: Path | None = knob(
        "", parsers.path_or_none, "RUN_DIR", "reuse every vector of this run whose text and model are unchanged"
    )
    allow_missing: bool = knob(
        "no",
        parsers.flag,
        "",
        "deliver without the models that cannot be had or whose pass fails, what the others make; --resume adds them",
        kept="allow_missing",
    )
    max_refused: str = knob(
        "1%",
        parsers.allowance,
        "N|SHARE%[,files]",
        "how many records of a collection may be refused: with more, and with any refused file (nobody knows how many "
        "records it had) unless `,files` allows that, it is incomplete (exit code 1)",
        kept="max_refused",
    )
    retry_parked: bool = knob(
        "no", parsers.flag, "", "with --resume: compute texts again that an earlier session could not embed"
    )
    strict: bool = knob(
        "no", parsers.flag, "", "exit with 3 if the run needed mitigations, or completed without what it refused"
    )
    on_hangup: str = choice(("continue", "stop"), "console: what to do when the terminal is lost")


@dataclass(frozen=True)
class ScreenSettings:
    """console"""

    theme: str = knob(
        "signal", parsers.text, "NAME", "console: colour theme; daltonic is colour-blind-safe, daylight light"
    )
    ascii: bool = knob("no", parsers.flag, "", "write and draw with ASCII characters only")
    slow_link: bool = knob("no", parsers.flag, "", "console: 1 Hz, terminal colours, no charts")
    verbose: bool = knob("no", parsers.flag, "", "tell of checks and memory that were as they should be, too")


GROUPS = (ModelSettings, DeviceSettings, ResultSettings, SessionSettings, ScreenSettings)
"""What settings are about, in the order of `--help`; a docstring is the title of its group."""


@dataclass(frozen=True)
class RunSettings(ScreenSettings, SessionSettings, ResultSettings, DeviceSettings, ModelSettings):
    """The settings of a run."""

    def members(self, registry: Mapping[str, ModelSpec]) -> list[ModelSpec]:
        """Find the models of the run in the order of their passes. Raises UsageError as `registry.members` does."""
        found = members(registry, [name for name, _ in self.roster], self.sparse, self.token_vectors)
        found = [replace(spec, precision=self.precision) for spec in found]
        tokens: dict[str, Any] = {"token_precision": self.token_precision, "token_pooling": self.token_pooling}
        return [replace(spec, **tokens) if "tokens" in spec.gives else spec for spec in found]

    def ceiling_of(self, kind: str) -> int:
        """Return the memory limit in bytes on a device of this kind that a run is given to compute on."""
        return self.host_ceiling if kind == "cpu" and self.host_ceiling else self.ceiling

    @property
    def limits(self) -> tuple[int, int, int]:
        """The memory limits in bytes as a `Lessor` takes them: of a device, of the host, and the margin below both."""
        return self.ceiling, self.host_ceiling, self.margin

    @property
    def naming(self) -> Naming:
        """Under which names a record has its text, its id and its title."""
        return Naming(self.text_field, self.id_field, self.title_field)

    @property
    def language(self) -> str:
        """That of the words of BM25 vectors; empty where none are wanted."""
        return "" if self.bm25 == parsers.OFF else self.bm25

    @property
    def ends(self) -> str:
        """When the session has to be over; empty for never."""
        return self.deadline.partition(",")[0]

    @property
    def partial(self) -> bool:
        """Whether what is complete is exported before the session ends for its deadline."""
        return self.deadline.endswith(parsers.EXPORTING)


ON_SCREEN = frozenset(item.name for item in fields(ScreenSettings)) | {"on_hangup"}
"""Settings that change only what an operator sees: a run does not record them."""
