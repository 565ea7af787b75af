"""Settles the settings of a run, and keeps where each came from.

Precedence: flag or Python value, then environment (`INTERLOCK_*`), then the TOML file, then the default; a continued
run keeps what it was begun with. `knobs` declares the settings themselves.
"""

import os
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from interlock.engine import parsers
from interlock.engine.errors import UsageError
from interlock.engine.knobs import ON_SCREEN as ON_SCREEN
from interlock.engine.knobs import RunSettings as RunSettings
from interlock.engine.models.registry import REGISTRY, canonical, usual_weights
from interlock.engine.record import atomic
from interlock.engine.record.facts import Setting
from interlock.engine.record.words import given, human_bytes
from interlock.engine.removed import REMOVED
from interlock.engine.vectors import SPARSE_SHARE, UNSAID_SHARE

COMPACT = {"project": "384", "quantise": "int8"}
"""What `compact` says of other settings that nobody says."""
FROM_RUN = "from the run"
"""The origin of what a continued run was begun with."""
SIMULATED = "sim:"
MOST_FILE = 4 << 20
"""Bytes of a configuration file."""
ANY = "100%,files"
"""What runs of earlier versions refused and were complete."""
NAMING = ("sparse", "token_vectors", "allow_pickle")
"""Lists of models, beside the roster."""
RESERVED = {"INTERLOCK_CONFIG", "INTERLOCK_CACHE", "INTERLOCK_MODELS", "INTERLOCK_SERVE_KEY", "INTERLOCK_METRICS_KEY"}


@dataclass(frozen=True)
class Configuration:
    """Settings with the origin of each, the file's tables of models and of keys (action -> key), and what is to be told
    of settings that there are no more."""

    settings: RunSettings
    origins: Mapping[str, str]
    models: Mapping[str, Mapping[str, Any]]
    keys: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    readonly: bool = False
    """Whether a screen only looks on: asked for with `watch`, or where earlier versions took it as a setting."""
    usual: bool = False
    """Whether the roster was given no weights, and has those of `usual_weights`."""
    beside: Mapping[str, Setting] = field(default_factory=dict)
    """The file, the bundle of models, `--metrics` and `--notify` that it was called with, by the name of their flags,
    and the `server` that the run goes to at its end."""
    sparse_share: float = SPARSE_SHARE
    """How much the sparse lists of a store that a run makes count; a continued run keeps its own."""
    by_ordinal: bool = False
    """Whether a run goes on that tells equal texts without an id apart by their order alone."""


def knobs() -> tuple[Field[Any], ...]:
    """Return the fields of `RunSettings`, for everything that is generated from them."""
    return fields(RunSettings)


def load(
    given: Mapping[str, object],
    environment: Mapping[str, str] = os.environ,
    file: Path | None = None,
    *,
    origin_of: Callable[[str], str] = lambda name: f"flag {flag_of(name)}",
    rows: Mapping[str, Mapping[str, Any]] = {},
) -> Configuration:
    """Settle every setting from what is given, environment, file and defaults, in this order of precedence.

    `given` holds the texts of flags or Python's values by setting; `origin_of` a setting says where they come from,
    `rows` are the models of tables that are in no file.
    Raises UsageError naming the origin of a value that cannot be used.
    """
    known = {variable_of(name) for name in (*(item.name for item in knobs()), *REMOVED)} | RESERVED
    if unknown := sorted(name for name in environment if name.startswith("INTERLOCK_") and name not in known):
        raise UsageError(
            f"{unknown[0]} is not a setting: `interlock config show` lists all settings and their variables"
        )
    file = file or (Path(environment["INTERLOCK_CONFIG"]) if environment.get("INTERLOCK_CONFIG") else None)
    table = _read(file) if file else {}
    models, keys = table.pop("models", {}), table.pop("keys", {})
    said: dict[str, tuple[object, str]] = {}
    before = dict[str, int]()  # which source goes before which
    for name in (*(item.name for item in knobs()), *REMOVED):
        if name in table:
            said[name], before[name] = (table.pop(name), f"file {file}"), 0
        if (variable := variable_of(name)) in environment:
            said[name], before[name] = (environment[variable], f"environment {variable}"), 1
        if name in given:
            said[name], before[name] = (given[name], origin_of(name)), 2
    notes = []
    for name in [name for name in said if name in REMOVED]:
        value, origin = said.pop(name)
        notes.append(f"{origin}: {name} is no setting: {REMOVED[name].instead}")
        others = {other: value for other, (value, _) in said.items()}
        for to, text in _became(name, value, others, origin).items():
            if before.get(to, 0) <= before[name] or to not in REMOVED[name].yields:
                said[to] = text, origin
    readonly, values = said.pop("readonly", None) is not None, dict[str, Any]()
    origins = {item.name: "default" for item in knobs()}
    for item in (item for item in knobs() if item.name in said):
        value, origin = said[item.name]
        if item.metadata["parse"] is parsers.size and origin.startswith("file "):  # so it needs a unit as in a text
            value = str(value)
        values[item.name], origins[item.name] = _parsed(item, value, origin), origin
    _add_compact(values, origins)
    if table:  # what no setting took
        raise UsageError(
            f"{file}: unknown setting {', '.join(map(repr, table))}: `interlock config show` lists all settings"
        )
    if not isinstance(models, dict) or not all(isinstance(row, dict) for row in models.values()):
        raise UsageError(f"{file}: models must be tables, such as [models.my-model]")
    if not isinstance(keys, dict) or not all(isinstance(key, str) for key in keys.values()):
        raise UsageError(f'{file}: keys must be a table of actions and keys, such as stop = "f9" under [keys]')
    values |= _named(values, {*REGISTRY, *models, *rows})
    settings = RunSettings(**values)
    if usual := "roster" not in said or not parsers.weighs(said["roster"][0]):
        roster = [name for name, _ in settings.roster]
        weighed = zip(roster, usual_weights(roster, {**models, **rows}), strict=True)
        settings = replace(settings, roster=tuple(weighed))
    least = min(settings.ceiling, settings.host_ceiling or settings.ceiling)
    if origins["margin"] != "default" and settings.margin >= least:
        raise UsageError(
            f"--margin {human_bytes(settings.margin)} ({origins['margin']}) leaves nothing of a limit of "
            f"{human_bytes(least)}: choose a smaller one"
        )
    places = {"config": str(file or ""), "models": environment.get("INTERLOCK_MODELS", "")}
    beside = {name: Setting(shown(Path(place).absolute()), f"flag --{name}") for name, place in places.items() if place}
    return Configuration(settings, origins, models, keys, tuple(notes), readonly, usual, beside)


def continued(begun: Mapping[str, Setting], now: Configuration) -> Configuration:
    """Settle a run that is continued: its settings as they were `begun`, but for what is given `now` to this session
    alone. What a file or the environment says otherwise is told, and not taken.

    Raises UsageError where a run on simulated devices would go on on real ones, or the other way round.
    """
    roster = begun_with({name: each for name, each in begun.items() if name == "roster"}).get("roster", ())
    if now.usual and [name for name, _ in roster] == [name for name, _ in now.settings.roster]:
        now = replace(now, settings=replace(now.settings, roster=roster))  # its weights, whatever is usual now
    standing = {name: origin for name, origin in now.origins.items() if origin.startswith(("file ", "environment "))}
    given = {
        item.metadata["kept"] for item in knobs() if now.origins[item.name] != "default" and item.name not in standing
    }
    kept = begun_with({"max_refused": Setting(ANY, FROM_RUN), **begun}, without={"", *given})
    settings = replace(now.settings, **kept)
    was = str(begun["devices"].value) if "devices" in begun else settings.devices
    if was.startswith(SIMULATED) != settings.devices.startswith(SIMULATED):
        raise UsageError(
            f"the run uses {was}, but {now.origins['devices']} is {settings.devices}: drop --devices, or "
            "start a new run (a run cannot mix simulated and real devices)"
        )
    notes = [
        f"{standing[name]}: {name} is not taken, since a continued run keeps its own: {flag_of(name)} would change it"
        for name, value in kept.items()
        if name in standing and _placed(value) != _placed(getattr(now.settings, name))
    ]
    origins = {**now.origins, **dict.fromkeys(kept, FROM_RUN)}
    unsaid: dict[str, Any] = {"sparse_share": UNSAID_SHARE, "by_ordinal": True}
    own = {name: begun[name].value if name in begun else value for name, value in unsaid.items()}
    return replace(now, settings=settings, origins=origins, notes=(*now.notes, *notes), usual=False, **own)


def altered(begun: Mapping[str, Setting], now: Configuration) -> bool:
    """Tell whether a run that was `begun` so is `now` asked for anything else."""
    kept = begun_with(begun).items()
    return any(
        _placed(value) != _placed(getattr(now.settings, name))
        for name, value in kept
        if setting_of(name).metadata["kept"]
    )


def begun_with(begun: Mapping[str, Setting], without: Collection[str] = ()) -> dict[str, Any]:
    """Return what a run was `begun` with as the settings that there are, whatever an earlier version called them,
    `without` those that are kept as these groups. Raises UsageError for a value that none can have."""
    values = {name: each.value for name, each in begun.items()}
    if values.get("quantise") == "binary":  # its files had eight bits a number as well
        values["quantise"] = "int8"
    for name in begun.keys() & REMOVED.keys():
        values |= _became(name, values[name], values, FROM_RUN)
    wanted = [item for item in knobs() if item.name in values and item.metadata["kept"] not in without]
    return {item.name: _parsed(item, values[item.name], FROM_RUN) for item in wanted}


def recorded(configuration: Configuration) -> dict[str, Setting]:
    """Return the settings as a run records them, with origins and absolute paths: all but those of the screen."""
    own = {name: Setting(getattr(configuration, name), "default") for name in ("sparse_share", "by_ordinal")}
    return {**configuration.beside, **own} | {
        item.name: Setting(shown(_placed(getattr(configuration.settings, item.name))), configuration.origins[item.name])
        for item in knobs()
        if item.name not in ON_SCREEN
    }


def setting_of(name: str) -> Field[Any]:
    """Find how a setting is declared."""
    return next(item for item in knobs() if item.name == name)


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
        raise UsageError(f"{where}: {wanted}, got {given(shown(value))}") from None


def _add_compact(values: dict[str, Any], origins: dict[str, str]) -> None:
    """Settle what `compact` says of settings that nobody says."""
    small = {name: COMPACT[name] for name in COMPACT.keys() - values.keys() if values.get("compact")}
    values |= {name: setting_of(name).metadata["parse"](text) for name, text in small.items()}
    origins |= dict.fromkeys(small, origins["compact"])


def _named(values: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The settings among `values` that name models, by the names that are recorded."""

    def named(name: str) -> str:
        return canonical(known, os.path.expanduser(name))  # noqa: PTH111  # nobody's home stays, and is no model

    lists = {name: tuple(map(named, values[name])) for name in NAMING if name in values}
    roster = {"roster": tuple((named(name), weight) for name, weight in values.get("roster", ()))}
    return lists | (roster if "roster" in values else {})


def _became(name: str, value: object, others: Mapping[str, object], origin: str) -> Mapping[str, object]:
    try:
        return REMOVED[name].becomes(value, others)
    except ValueError as wanted:
        raise UsageError(f"{origin}: {name}: {wanted}, got {given(shown(value))}") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(atomic.content(file, MOST_FILE).decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UsageError(f"{file} is not valid TOML: {why}") from None


def limit_threads(configuration: Configuration) -> None:
    """Settle the tokenizer's own threads before its library starts them."""
    if threads := configuration.settings.threads:
        os.environ["RAYON_NUM_THREADS"] = str(threads)
