"""What stands in the form, the command it means, and what is wrong with it, field by field. Pure but for one `isdir`.

Every text is read by the parser that the command line has for it, so what passes here is taken there.
"""

import io
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from interlock.console.cli import parse
from interlock.engine import parsers
from interlock.engine.errors import UsageError
from interlock.engine.models.registry import ModelSpec, members
from interlock.engine.record.facts import Setting
from interlock.engine.settings import ON_SCREEN, RunSettings, flag_of, knobs, shown

KNOBS = ("devices", "ceiling", "fusion", "qdrant", "out", "run_id")
"""Settings that have a field of their own; the models are ticked, and `flags` has all others."""
FIELDS = ("chunks", "models", "other", *KNOBS, "flags")
"""Every field, in the order in which they stand."""
_DEVICES = re.compile(r"auto|cpu|cuda|cuda:\d{1,3}( *, *cuda:\d{1,3})*|sim:[^\s,]+")
_ITS_OWN = ("roster", "resume", "reuse", *KNOBS)
"""Settings of an earlier run that are fields here, or were meant for that run alone."""


@dataclass(frozen=True)
class Filled:
    """The texts of the fields by their names, and the models that are ticked, each with its weight as typed."""

    texts: Mapping[str, str] = field(default_factory=dict)
    ticked: tuple[tuple[str, str], ...] = ()

    def text(self, name: str) -> str:
        return self.texts.get(name, "").strip()


def as_configured(settings: RunSettings, models: Mapping[str, ModelSpec]) -> Filled:
    """Fill the form with the settings as they are, and no chunks yet."""
    texts = {name: _written(shown(getattr(settings, name))) for name in KNOBS}
    return _with_roster(Filled(texts | {"ceiling": _sized(settings.ceiling)}), settings.roster, models)


def as_begun(
    chunks: str, config: Mapping[str, Setting], settings: RunSettings, models: Mapping[str, ModelSpec]
) -> Filled:
    """Fill the form with what an earlier run was called with; what has no field here becomes flags."""
    now, values = as_configured(settings, models), {name: each.value for name, each in config.items()}
    same: tuple[str, ...] = ("devices", "fusion", "qdrant")
    texts = {name: _written(values[name]) for name in same if name in values}
    if isinstance(values.get("ceiling"), int):
        texts["ceiling"] = _sized(values["ceiling"])
    others = [item for item in knobs() if item.name not in ON_SCREEN and item.name not in _ITS_OWN]
    words: list[str] = []
    for name in (item.name for item in others if item.name in values):
        if (value := values[name]) != shown(getattr(settings, name)):
            words += _as_flag(name, value)
    filled = replace(now, texts={**now.texts, **texts, "chunks": chunks, "flags": shlex.join(words)})
    roster = [(str(name), float(weight)) for name, weight in values.get("roster", [])]
    return _with_roster(filled, roster or settings.roster, models)


def command_of(filled: Filled, settings: RunSettings) -> list[str]:
    """Write the arguments that a filled-in form without problems stands for, without those that are as configured."""
    chunks = filled.text("chunks")
    words = ["run", f"./{chunks}" if chunks.startswith("-") else chunks]
    for name, text in (("roster", roster_of(filled)), *((name, filled.text(name)) for name in KNOBS)):
        if _parser(name)(text) != getattr(settings, name):
            words += [f"{flag_of(name)}={text}"] if text.startswith("-") else [flag_of(name), text]
    return [*words, *shlex.split(filled.text("flags"))]


def roster_of(filled: Filled) -> str:
    """Write the models that are ticked, then those that were typed, as `--roster` has them."""
    ticked = [name if weight in ("", "1") else f"{name}={weight}" for name, weight in filled.ticked]
    return ",".join([*ticked, *filter(None, [filled.text("other")])])


def problems(filled: Filled, models: Mapping[str, ModelSpec], gpus: Sequence[str] | None) -> dict[str, str]:
    """Say what is wrong, by field; `gpus` are those that the driver knows, None while nobody has asked it."""
    found = {"chunks": _chunks(filled.text("chunks")), "devices": _devices(filled.text("devices"), gpus)}
    found |= _models(filled, models)
    for name in (name for name in KNOBS if not found.get(name)):
        found[name] = _refused(name, filled.text(name))
    found = {name: reason for name, reason in found.items() if reason}
    if not found and (reason := _flags(filled)):
        found["flags"] = reason
    return found


def _chunks(text: str) -> str:
    if not text:
        return "name the directory that holds your collections"
    return "" if directory(text) else "no such directory: name the one that holds your collections"


def directory(text: str) -> Path | None:
    """Find the directory that a text names, its `~` resolved; None where there is none."""
    with suppress(ValueError, OSError):
        place = parsers.path(text)
        return place if place.is_dir() else None
    return None


def _models(filled: Filled, models: Mapping[str, ModelSpec]) -> dict[str, str]:
    """Models that were typed are looked up as those that are ticked were."""
    if not filled.ticked and not filled.text("other"):
        return {"models": "tick at least one with the space bar"}
    for name, weight in filled.ticked:
        if reason := _refused("roster", f"{name}={weight or 1}"):
            return {"models": reason}
    reason = _refused("roster", roster_of(filled))
    try:
        if not reason:
            members(models, [name for name, _ in _parser("roster")(roster_of(filled))])
    except UsageError as error:
        reason = str(error)
    return {"other" if filled.text("other") else "models": reason}


def _devices(text: str, gpus: Sequence[str] | None) -> str:
    if not _DEVICES.fullmatch(text):
        return "expected auto, cpu, cuda, cuda:0,cuda:1 or sim:2xT4"
    if not text.startswith("cuda") or gpus is None:
        return ""
    if not gpus:
        return "no GPU on this machine: use cpu, or rehearse with sim:2xT4"
    missing = [number for number in map(int, re.findall(r":(\d+)", text)) if number >= len(gpus)]
    return f"no cuda:{missing[0]} here: the driver knows {len(gpus)}, from cuda:0" if missing else ""


def _flags(filled: Filled) -> str:
    try:
        words = shlex.split(filled.text("flags"))
    except ValueError as error:
        return f"{error}".lower()
    return misread(["run", ".", *words]) if words else ""


def misread(words: Sequence[str]) -> str:
    """Say what the command line would say against these words; empty where it takes them."""
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            options = parse(words)
    except SystemExit as left:
        told = said.getvalue().strip().rpartition("error: ")[2] if left.code else "expected flags of `interlock run`"
        return " ".join(told.split())
    each = ((item.name, getattr(options, item.name)) for item in knobs() if item.name not in KNOBS)
    refused = ((name, _refused(name, str(value))) for name, value in each if value is not None)
    return next((f"{flag_of(name)}: {reason}" for name, reason in refused if reason), "")


def _refused(name: str, text: str) -> str:
    try:
        _parser(name)(text)
    except ValueError as wanted:
        return str(wanted)
    return ""


def _parser(name: str) -> Any:
    return next(item.metadata["parse"] for item in knobs() if item.name == name)


def _with_roster(filled: Filled, roster: Sequence[tuple[str, float]], models: Mapping[str, ModelSpec]) -> Filled:
    """Tick the models that the list has; the others are typed."""
    ticked = tuple((name, f"{weight:g}") for name, weight in roster if name in models)
    other = [name if weight == 1 else f"{name}={weight:g}" for name, weight in roster if name not in models]
    return replace(filled, ticked=ticked, texts={**filled.texts, "other": ",".join(other)})


def _as_flag(name: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [flag_of(name) if value else "--no-" + flag_of(name)[2:]]
    return [flag_of(name), _sized(value) if name in SIZES and isinstance(value, int) else _written(value)]


SIZES = ("ceiling", "host_ceiling", "warm")


def _sized(size: int) -> str:
    """A size in the largest unit that says it exactly."""
    for unit, bytes_of in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size and size % bytes_of == 0:
            return f"{size // bytes_of}{unit}"
    return str(size)


def _written(value: object) -> str:
    if value is None:
        return ""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
