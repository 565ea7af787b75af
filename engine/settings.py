"""Every knob of a run, once: its type, default, flag and help; where a value came from is kept with it.

Precedence: flag or Python value, then environment (`INTERLOCK_*`), then the TOML file, then the default. Flags,
environment names, `config show` and the table in docs/reference.md are all generated from `RunSettings`.
"""

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from interlock.engine import parsers
from interlock.engine.errors import UsageError
from interlock.engine.models.registry import ModelSpec, lengthened, members
from interlock.engine.record.facts import Setting, TokenPrecision
from interlock.engine.vectors.languages import LANGUAGES, NO_LANGUAGE

FROM_RUN = "from the run"
"""The origin of what a continued run was begun with."""
SIMULATED = "sim:"
RESERVED = {"INTERLOCK_CONFIG", "INTERLOCK_CACHE", "INTERLOCK_MODELS"}


def knob(
    default: str, parse: Callable[[Any], Any], metavar: str, text: str, *, screen: bool = False, kept: str = ""
) -> Any:
    """Declare a field of `RunSettings`: its default as text, how texts and values become what the run takes, its help,
    and `screen` where it changes only what an operator sees. A resumed run keeps the value it was begun with for every
    setting that has a `kept` group, unless one of that group is given now."""
    return field(
        default_factory=lambda: parse(default),
        metadata={"default": default, "parse": parse, "metavar": metavar, "help": text, "screen": screen, "kept": kept},
    )


@dataclass(frozen=True)
class RunSettings:
    """The knobs of a run."""

    roster: parsers.Roster = knob(
        "all-minilm-l6,all-mpnet-base-v2",
        parsers.roster,
        "NAME[=WEIGHT],...",
        "models in pass order with their fusion weights; the first is the primary",
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
    token_precision: TokenPrecision = knob(
        "int8",
        parsers.one_of(*get_args(TokenPrecision)),
        "|".join(get_args(TokenPrecision)),
        "what a number of a token vector is kept in",
        kept="tokens",
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
        "on this machine alone, for trials; --devices, limits, threads and faults then count on each",
    )
    exclusive: bool = knob(
        "yes",
        parsers.flag,
        "",
        "lease the devices to one model at a time; otherwise keep models resident side by side",
        kept="schedule",
    )
    window: int = knob(
        "0",
        parsers.count,
        "N",
        "switch to the next model after N batches; 0: after the whole pass",
        kept="schedule",
    )
    cpu_fallback: bool = knob(
        "yes", parsers.flag, "", "fall back to the CPU (float32) for work that fits on no GPU", kept="cpu_fallback"
    )
    warm: int = knob(
        "4GiB", parsers.size, "SIZE", "host memory for keeping weights between leases, to attach them faster"
    )
    threads: int = knob("0", parsers.threads, "N", "CPU threads; 0 uses every core")
    ceiling: int = knob("12GiB", parsers.size, "SIZE", "memory limit of the run on each device", kept="ceiling")
    host_ceiling: int = knob(
        "0",
        parsers.size,
        "SIZE",
        "memory limit of a model on the host; 0: of a run on GPUs what is free there, else --ceiling",
        kept="host_ceiling",
    )
    faults: tuple[str, ...] = knob(
        "",
        parsers.names,
        "FAULT,...",
        "inject faults on simulated devices, for example oom:40, lose@cuda:1:400",
        kept="faults",
    )
    fusion: str = knob(
        "concat",
        parsers.one_of("concat", "named", "mean"),
        "concat|named|mean",
        "how to fuse the models' vectors",
        kept="fusion",
    )
    keep: Literal["fused", "members", "both"] = knob(
        "fused",
        parsers.one_of("fused", "members", "both"),
        "fused|members|both",
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
    quantise: Literal["none", "int8", "binary"] = knob(
        "none",
        parsers.one_of("none", "int8", "binary"),
        "none|int8|binary",
        "keep a number of a dense vector in a store, and of the fused ones in a file, in eight bits instead of 32; "
        "binary is for files: one bit a number to search, and the eight to order what it finds",
        kept="quantise",
    )
    long: Literal["cut", "split"] = knob(
        "cut",
        parsers.one_of("cut", "split"),
        "cut|split",
        "texts longer than a model's limit: cut off what is beyond it, or split them into overlapping spans, whose "
        "vectors become one",
        kept="long",
    )
    long_overlap: float = knob(
        "0.125",
        parsers.share,
        "SHARE",
        "how much of a span the one before has too, 0 to 0.9, with --long split",
        kept="long",
    )
    dim: int = knob(
        "0", parsers.count, "N", "truncate vectors of Matryoshka models to N dimensions; 0 keeps all", kept="dim"
    )
    export: tuple[str, ...] = knob(
        "npy,parquet",
        parsers.some_of("npy", "parquet", "jsonl"),
        "FORMAT,...",
        "files to export for each collection",
        kept="export",
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
    bm25: bool = knob(
        "yes",
        parsers.flag,
        "",
        "write BM25 vectors into the store, which need no model",
        kept="bm25",
    )
    bm25_language: str = knob(
        "english",
        parsers.one_of(*LANGUAGES, NO_LANGUAGE),
        "LANGUAGE",
        "language of the texts, for BM25's stop words and stems; none: all words as they are",
        kept="bm25",
    )
    chunk_sparse: str = knob(
        "",
        parsers.text,
        "NAME",
        "deliver the sparse_features that chunks bring as sparse vectors of this name; bad ones refuse their chunk",
        kept="chunk_sparse",
    )
    out: Path = knob("runs", parsers.path, "DIR", "directory for run directories")
    run_id: str = knob("", parsers.run_id, "ID", "name of the run (default: its start time)")
    resume: bool = knob(
        "no",
        parsers.flag,
        "",
        "resume run --run-id, or the newest run of these chunks, with its original settings; start one "
        "if there is none",
    )
    deadline: str = knob(
        "",
        parsers.deadline,
        "8h30m|17:45",
        "stop resumably, with exit code 4, before the session is so old, or before this time of day: no batch is begun "
        "that would not be done by then",
    )
    partial: bool = knob(
        "no", parsers.flag, "", "before it stops for --deadline, export the collections that every model has seen"
    )
    reuse: Path | None = knob(
        "", parsers.path_or_none, "RUN_DIR", "reuse every vector of this run whose text and model are unchanged"
    )
    offline: bool = knob("no", parsers.flag, "", "never touch the network")
    allow_pickle: tuple[str, ...] = knob(
        "",
        parsers.names,
        "MODEL,...",
        "read weights that these models publish only as pickles, without running them; a safetensors copy is kept",
    )
    refresh_models: bool = knob("no", parsers.flag, "", "fetch newer files of the models' revisions from the hub")
    allow_missing: bool = knob(
        "no",
        parsers.flag,
        "",
        "deliver without the models that cannot be had or whose pass fails, what the others make; --resume adds them",
        kept="allow_missing",
    )
    strict: bool = knob("no", parsers.flag, "", "exit with 3 if the run needed mitigations")
    refresh: float = knob("4", parsers.rate, "HZ", "console: refreshes per second, 0.5 to 10", screen=True)
    theme: str = knob(
        "signal",
        parsers.text,
        "NAME",
        "console: colour theme; daltonic is colour-blind-safe, daylight light",
        screen=True,
    )
    ascii: bool = knob("no", parsers.flag, "", "console: draw with ASCII characters only", screen=True)
    slow_link: bool = knob("no", parsers.flag, "", "console: 1 Hz, terminal colours, no charts", screen=True)
    readonly: bool = knob("no", parsers.flag, "", "console: watch only, change nothing", screen=True)
    on_hangup: str = knob(
        "continue",
        parsers.one_of("continue", "stop"),
        "continue|stop",
        "console: what to do when the terminal is lost",
        screen=True,
    )

    def members(self, registry: Mapping[str, ModelSpec]) -> list[ModelSpec]:
        """Find the models of the run in the order of their passes. Raises UsageError as `registry.members` does."""
        found = members(registry, [name for name, _ in self.roster], self.sparse, self.token_vectors)
        found = lengthened(found, self.long, self.long_overlap)
        precision, pooling = self.token_precision, self.token_pooling
        return [
            replace(spec, token_precision=precision, token_pooling=pooling) if "tokens" in spec.gives else spec
            for spec in found
        ]

    def ceiling_of(self, kind: str) -> int:
        """Return the memory limit in bytes on a device of this kind that a run is given to compute on."""
        return self.host_ceiling if kind == "cpu" and self.host_ceiling else self.ceiling


@dataclass(frozen=True)
class Configuration:
    """Settings with the origin of each, and the file's tables of models and of keys (action -> key)."""

    settings: RunSettings
    origins: Mapping[str, str]
    models: Mapping[str, Mapping[str, Any]]
    keys: Mapping[str, str] = field(default_factory=dict)


def knobs() -> tuple[Field[Any], ...]:
    """Return the fields of `RunSettings`, for everything that is generated from them."""
    return fields(RunSettings)


def load(
    given: Mapping[str, object],
    environment: Mapping[str, str] = os.environ,
    file: Path | None = None,
    *,
    origin_of: Callable[[str], str] = lambda name: f"flag {flag_of(name)}",
) -> Configuration:
    """Settle every setting from what is given, environment, file and defaults, in this order of precedence.

    `given` holds the texts of flags or Python's values by setting; `origin_of` a setting says where they come from.
    Raises UsageError naming the origin of a value that cannot be used.
    """
    known = {variable_of(item.name) for item in knobs()} | RESERVED
    if unknown := sorted(name for name in environment if name.startswith("INTERLOCK_") and name not in known):
        raise UsageError(
            f"{unknown[0]} is not a setting: `interlock config show` lists all settings and their variables"
        )
    file = file or (Path(environment["INTERLOCK_CONFIG"]) if environment.get("INTERLOCK_CONFIG") else None)
    table = _read(file) if file else {}
    models, keys = table.pop("models", {}), table.pop("keys", {})
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for item in knobs():
        name, value, origin = item.name, item.metadata["default"], "default"
        if name in table:
            value, origin = table.pop(name), f"file {file}"
            if item.metadata["parse"] is parsers.size:  # a person wrote it, so it needs a unit as in a text
                value = str(value)
        if (variable := variable_of(name)) in environment:
            value, origin = environment[variable], f"environment {variable}"
        if name in given:
            value, origin = given[name], origin_of(name)
        values[name], origins[name] = _parsed(item, value, origin), origin
    if table:  # what no setting took
        raise UsageError(
            f"{file}: unknown setting {', '.join(map(repr, table))}: `interlock config show` lists all settings"
        )
    if not isinstance(models, dict) or not all(isinstance(row, dict) for row in models.values()):
        raise UsageError(f"{file}: models must be tables, such as [models.my-model]")
    if not isinstance(keys, dict) or not all(isinstance(key, str) for key in keys.values()):
        raise UsageError(f'{file}: keys must be a table of actions and keys, such as stop = "f9" under [keys]')
    return Configuration(RunSettings(**values), origins, models, keys)


def continued(begun: Mapping[str, Setting], now: Configuration) -> Configuration:
    """Settle a run that is continued: its settings as they were `begun`, but for what is given `now`.

    Raises UsageError where a run on simulated devices would go on on real ones, or the other way round.
    """
    given = {item.metadata["kept"] for item in knobs() if now.origins[item.name] != "default"}
    kept = {
        item.name: _parsed(item, begun[item.name].value, FROM_RUN)
        for item in knobs()
        if item.metadata["kept"] not in {"", *given} and item.name in begun
    }
    settings = replace(now.settings, **kept)
    was = str(begun["devices"].value) if "devices" in begun else settings.devices
    if was.startswith(SIMULATED) != settings.devices.startswith(SIMULATED):
        raise UsageError(
            f"the run uses {was}, but {now.origins['devices']} is {settings.devices}: drop --devices, or "
            "start a new run (a run cannot mix simulated and real devices)"
        )
    return replace(now, settings=settings, origins={**now.origins, **dict.fromkeys(kept, FROM_RUN)})


def recorded(configuration: Configuration) -> dict[str, Setting]:
    """Return the settings as a run records them, with origins and absolute paths: all but those of the screen."""
    return {
        item.name: Setting(shown(_placed(getattr(configuration.settings, item.name))), configuration.origins[item.name])
        for item in knobs()
        if not item.metadata["screen"]
    }


def flag_of(name: str) -> str:
    """Name the flag of a setting: `run_id` -> `--run-id`."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """Name the environment variable of a setting: `run_id` -> `INTERLOCK_RUN_ID`."""
    return "INTERLOCK_" + name.upper()


def _placed(value: Any) -> Any:
    """A setting that means the same place in whatever directory the run is continued."""
    if isinstance(value, Path):
        return value.absolute()
    if isinstance(value, str) and value.startswith(("./", "../")):  # a model's directory
        path = str(Path(value).absolute())
        return value if "," in path else path  # a comma parts the entries of a roster
    return tuple(map(_placed, value)) if isinstance(value, tuple) else value


def shown(value: Any) -> Any:
    """Turn a value into the plain JSON that the summary and `config show` give."""
    if isinstance(value, Path):
        return str(value).encode(errors="backslashreplace").decode()
    return list(map(shown, value)) if isinstance(value, tuple) else value


def _parsed(item: Field[Any], value: object, origin: str) -> Any:
    """What a run takes for a text of the command line, or for a value of TOML, JSON or Python."""
    try:
        return item.metadata["parse"]("" if value is None else value)
    except ValueError as wanted:
        said = (flag_of(item.name), variable_of(item.name), f"Settings.{item.name}")
        where = origin.removeprefix("flag ").removeprefix("python ")
        where = where if where.endswith(said) else f"{where}: {item.name}"
        raise UsageError(f"{where}: {wanted}, got {shown(value)!r:.100}") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not valid TOML: {error}") from None
