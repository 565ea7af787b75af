"""Every knob of a run, once: its type, default, flag and help; where a value came from is kept with it.

Precedence: flag, then environment (`INTERLOCK_*`), then the TOML file, then the default. Flags, environment
names, `config show` and README's table are all generated from `Settings`.
"""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from interlock.engine.errors import UsageError
from interlock.engine.record.durable import parse_bytes
from interlock.engine.record.events import Setting

FROM_RUN = "from the run"
"""The origin of what a continued run was begun with."""
SIMULATED = "sim:"
RESERVED = {"INTERLOCK_CONFIG", "INTERLOCK_CACHE"}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")

Roster = tuple[tuple[str, float], ...]


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _roster(text: str) -> Roster:
    entries = []
    for item in _names(text):
        name, _, weight = item.rpartition("=") if re.search(r"=[^/=]*$", item) else (item, "", "1")
        try:
            value = float(weight)
        except ValueError:
            raise ValueError(f"the weight of {name} is {weight!r}, not a number") from None
        if not 0 < value < float("inf"):
            raise ValueError(f"the weight of {name} is {weight}, it must be above 0")
        entries.append((name, value))
    if not entries:
        raise ValueError("a roster needs at least one model")
    if len({name for name, _ in entries}) < len(entries):
        raise ValueError("a model stands in it twice")
    return tuple(entries)


def _count(text: str) -> int:
    if not text.strip().lstrip("-").isdigit():
        raise ValueError("a whole number is needed")
    value = int(text)
    if value < 0:
        raise ValueError("it cannot be negative")
    return value


def _rate(text: str) -> float:
    value = float(text)
    if not 0.5 <= value <= 10:
        raise ValueError("it must be from 0.5 to 10")
    return value


def _flag(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError("yes or no is needed")
    return text.lower() in _TRUE


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None


def _store(text: str) -> Path | None:
    if "://" in text or re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+):\d{1,5}(/.*)?", text):
        raise ValueError("writing to a Qdrant server is not supported yet; give a directory for an embedded store")
    return _path(text)


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)} is needed")
        return text

    return parse


def _some_of(*choices: str) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        if unknown := [name for name in _names(text) if name not in choices]:
            raise ValueError(f"{unknown[0]!r} is none of {', '.join(choices)}")
        return _names(text)

    return parse


def _run_id(text: str) -> str:
    if text and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", text):
        raise ValueError("letters, digits, '.', '_' and '-' only, beginning with a letter or digit")
    return text


def knob(
    default: str, parse: Callable[[str], Any], metavar: str, text: str, *, screen: bool = False, kept: str = ""
) -> Any:
    """A field of `Settings`: its default as text, how text becomes a value, and its help; `screen` where it changes
    only what an operator sees. A resumed run keeps the value it was begun with for every setting that has a `kept`
    group, unless one of that group is given now."""
    return field(
        default_factory=lambda: parse(default),
        metadata={"default": default, "parse": parse, "metavar": metavar, "help": text, "screen": screen, "kept": kept},
    )


@dataclass(frozen=True)
class Settings:
    """The knobs of a run."""

    roster: Roster = knob(
        "all-minilm-l6,all-mpnet-base-v2",
        _roster,
        "NAME[=WEIGHT],...",
        "models in the order of their passes, with their weights in the fusion; the first is the primary",
        kept="roster",
    )
    collections: tuple[str, ...] = knob("", _names, "NAME,...", "embed only these collections", kept="collections")
    devices: str = knob(
        "auto",
        str,
        "auto|cpu|cuda[:N],...|sim:2xT4",
        "where to compute; auto takes every GPU, else the CPU; sim:2xT4 rehearses on GPUs that are not there",
        kept="devices",
    )
    exclusive: bool = knob(
        "yes",
        _flag,
        "",
        "one model at a time holds the devices; without, models stay resident side by side",
        kept="schedule",
    )
    window: int = knob(
        "0",
        _count,
        "N",
        "hand the devices to the next model after N batches; 0: after the whole pass",
        kept="schedule",
    )
    cpu_fallback: bool = knob(
        "yes", _flag, "", "what no GPU has room for is computed on the CPU, in float32", kept="cpu_fallback"
    )
    warm: int = knob(
        "4GiB", parse_bytes, "SIZE", "host memory for weights that are kept between leases, so that attaching is a copy"
    )
    threads: int = knob("0", _count, "N", "processor threads; 0 takes every core")
    ceiling: int = knob("12GiB", parse_bytes, "SIZE", "most memory that a run may occupy on one device", kept="ceiling")
    faults: tuple[str, ...] = knob(
        "",
        _names,
        "FAULT,...",
        "what goes wrong on simulated devices, for a rehearsal: oom:40, lose@cuda:1:400",
        kept="faults",
    )
    fusion: str = knob(
        "concat",
        _one_of("concat", "named", "mean"),
        "concat|named|mean",
        "how the models' vectors become one",
        kept="fusion",
    )
    dim: int = knob(
        "0", _count, "N", "cut the vectors of Matryoshka models to N dimensions; 0 keeps them whole", kept="dim"
    )
    export: tuple[str, ...] = knob(
        "npy,parquet", _some_of("npy", "parquet"), "FORMAT,...", "files to write for each collection", kept="export"
    )
    qdrant: Path | None = knob("", _store, "DIR", "write an embedded Qdrant store that can be searched", kept="qdrant")
    out: Path = knob("runs", lambda text: Path(text).expanduser(), "DIR", "directory of run directories")
    run_id: str = knob("", _run_id, "ID", "name of the run; default is the time it started")
    resume: bool = knob(
        "no",
        _flag,
        "",
        "continue the run --run-id, or the newest run of these chunks, as it was begun; start one if there is none",
    )
    reuse: Path | None = knob(
        "", _path, "RUN_DIR", "take over every vector of this run whose text and model are the same"
    )
    offline: bool = knob("no", _flag, "", "never touch the network")
    refresh_models: bool = knob("no", _flag, "", "ask the hub for newer files of the models' revisions")
    strict: bool = knob("no", _flag, "", "exit 3 when the run completed with mitigations")
    refresh: float = knob("4", _rate, "HZ", "console: how often a second it looks at the run, 0.5 to 10", screen=True)
    theme: str = knob("signal", str, "NAME", "console: its colours; daltonic is safe for the colour-blind", screen=True)
    ascii: bool = knob("no", _flag, "", "console: draw with ASCII signs only", screen=True)
    slow_link: bool = knob("no", _flag, "", "console: 1 Hz, the terminal's own colours, no curves", screen=True)
    readonly: bool = knob("no", _flag, "", "console: watch, and change nothing", screen=True)
    on_hangup: str = knob(
        "continue", _one_of("continue", "stop"), "continue|stop", "console: what a lost terminal means to the run",
        screen=True,
    )  # fmt: skip


@dataclass(frozen=True)
class Configuration:
    """Settings with the origin of each, and the file's tables of models and of keys (action -> key)."""

    settings: Settings
    origins: Mapping[str, str]
    models: Mapping[str, Mapping[str, Any]]
    keys: Mapping[str, str] = field(default_factory=dict)


def knobs() -> tuple[Field[Any], ...]:
    """The fields of `Settings`, for everything that is generated from them."""
    return fields(Settings)


def load(
    flags: Mapping[str, str], environment: Mapping[str, str] = os.environ, file: Path | None = None
) -> Configuration:
    """Settings from flags, environment, file and defaults, in this order of precedence.

    Raises UsageError naming the origin of a value that cannot be used.
    """
    _check_environment(environment)
    file = file or (Path(environment["INTERLOCK_CONFIG"]) if environment.get("INTERLOCK_CONFIG") else None)
    table = _read(file) if file else {}
    models, keys = table.pop("models", {}), table.pop("keys", {})
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for item in knobs():
        name, text, origin = item.name, item.metadata["default"], "default"
        if name in table:
            text, origin = table.pop(name), f"file {file}"
        if (variable := variable_of(name)) in environment:
            text, origin = environment[variable], f"environment {variable}"
        if name in flags:
            text, origin = flags[name], f"flag {flag_of(name)}"
        values[name], origins[name] = _parsed(item, text, origin), origin
    if table:
        raise UsageError(f"{file}: no setting is called {', '.join(table)}; `interlock config show` lists them")
    if not isinstance(models, dict) or not all(isinstance(row, dict) for row in models.values()):
        raise UsageError(f"{file}: models must be tables, as in [models.my-model]")
    if not isinstance(keys, dict) or not all(isinstance(key, str) for key in keys.values()):
        raise UsageError(f'{file}: keys must be a table of names and keys, as in [keys] with stop = "f9"')
    return Configuration(Settings(**values), origins, models, keys)


def continued(begun: Mapping[str, Setting], now: Configuration) -> Configuration:
    """The settings of a run that is continued: as they were `begun`, but for what is given `now`.

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
            f"the run was begun on {was}, and {now.origins['devices']} is {settings.devices}: "
            "simulated and real devices do not mix in one run; leave out --devices, or start a new run"
        )
    return replace(now, settings=settings, origins={**now.origins, **dict.fromkeys(kept, FROM_RUN)})


def recorded(configuration: Configuration) -> dict[str, Setting]:
    """The settings as a run records them: all but those of the screen, each with its origin, every path absolute."""
    return {
        item.name: Setting(shown(_placed(getattr(configuration.settings, item.name))), configuration.origins[item.name])
        for item in knobs()
        if not item.metadata["screen"]
    }


def flag_of(name: str) -> str:
    """`run_id` -> `--run-id`."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """`run_id` -> `INTERLOCK_RUN_ID`."""
    return "INTERLOCK_" + name.upper()


def _placed(value: Any) -> Any:
    """A setting that means the same place in whatever directory the run is continued."""
    if isinstance(value, Path):
        return value.absolute()
    if isinstance(value, tuple):
        return tuple((_directory(item[0]), *item[1:]) if isinstance(item, tuple) else item for item in value)
    return value


def _directory(name: str) -> str:
    """A model's directory by its absolute path; one with a comma, which parts a roster's entries, as it was given."""
    path = str(Path(name).absolute()) if name.startswith(("./", "../")) else name
    return name if "," in path else path


def shown(value: Any) -> Any:
    """A value as the summary and `config show` give it: plain JSON."""
    if isinstance(value, Path):
        return str(value).encode(errors="backslashreplace").decode()
    if isinstance(value, tuple):
        return [list(item) if isinstance(item, tuple) else item for item in value]
    return value


def _parsed(item: Field[Any], text: Any, origin: str) -> Any:
    """A TOML value may be a list, a table (roster), a number or a boolean; everything else is text."""
    if isinstance(text, list):
        text = ",".join("=".join(map(str, part)) if isinstance(part, list) else str(part) for part in text)
    elif isinstance(text, dict):
        text = ",".join(f"{name}={weight}" for name, weight in text.items())
    text = "" if text is None else text
    try:
        return item.metadata["parse"](str(text))
    except (ValueError, OverflowError, RuntimeError) as error:  # RuntimeError: `~name` of nobody
        raise UsageError(f"{origin}: {item.name} = {text!r}: {error}") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not TOML: {error}") from None


def _check_environment(environment: Mapping[str, str]) -> None:
    known = {variable_of(item.name) for item in knobs()} | RESERVED
    if unknown := sorted(name for name in environment if name.startswith("INTERLOCK_") and name not in known):
        raise UsageError(f"environment {unknown[0]} is no setting; `interlock config show` lists them")
