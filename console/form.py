"""What stands in the set-up form, the command that it means, and what is wrong with it, field by field.

Every text is read by the parser that the setting declares, so what passes here is taken on the command line. What may
wait for a disk or a driver is asked of a `Machine`, by a screen in a thread.
"""

import io
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.console.cli import configuration, parse
from interlock.engine import parsers, storage
from interlock.engine.corpus.collections import Glance, glance
from interlock.engine.corpus.forms import form_of
from interlock.engine.errors import InterlockError, UnavailableError, UsageError
from interlock.engine.knobs import ON_SCREEN
from interlock.engine.models.members import members
from interlock.engine.models.registry import ModelSpec, extended, usual_weights, vouched
from interlock.engine.record.facts import Setting
from interlock.engine.settings import Configuration, RunSettings, begun_with, flag_of, knobs, setting_of, shown

if TYPE_CHECKING:
    from interlock.engine.flows.forecast import Forecast
    from interlock.engine.standing.runs import Overview

KNOBS = ("roster", "devices", "ceiling", "fusion", "qdrant", "out", "run_id")
"""Settings that have a field of their own; `flags` has all others."""
FIELDS = ("chunks", *KNOBS, "flags")
"""Every field, in the order in which they stand."""
SIZES = ("ceiling", "host_ceiling", "margin", "warm")
_ITS_OWN = ("resume", "reuse", *KNOBS)
"""Settings of an earlier run that are fields here, or were meant for that run alone."""
LISTED = 12
"""Earlier runs that are offered."""


@dataclass(frozen=True)
class Filled:
    """The texts of the fields by their names."""

    texts: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        return self.texts.get(name, "").strip()


def as_configured(settings: RunSettings) -> Filled:
    """Fill the form with the settings as they are, and no chunks yet."""
    return Filled({name: _written(name, shown(getattr(settings, name))) for name in KNOBS})


def as_begun(chunks: str, config: Mapping[str, Setting], settings: RunSettings) -> Filled:
    """Fill the form with what an earlier run was called with; what has no field here becomes flags."""
    values = {name: shown(value) for name, value in begun_with(config).items()}
    same = ("roster", "devices", "ceiling", "fusion", "qdrant")
    texts = {name: _written(name, values[name]) for name in same if name in values}
    words: list[str] = []
    for name in (item.name for item in knobs() if item.name not in ON_SCREEN and item.name not in _ITS_OWN):
        if name not in values or (value := values[name]) == shown(getattr(settings, name)):
            continue
        if isinstance(value, bool):
            words.append(flag_of(name) if value else "--no-" + flag_of(name)[2:])
        else:
            words += [flag_of(name), _written(name, value)]
    return Filled({**as_configured(settings).texts, **texts, "chunks": chunks, "flags": shlex.join(words)})


def command_of(filled: Filled, settings: RunSettings) -> list[str]:
    """Write the arguments that a filled-in form without problems stands for, without those that are as configured."""
    chunks = filled.text("chunks")
    words = ["run", f"./{chunks}" if chunks.startswith("-") else chunks]
    for name, text in ((name, filled.text(name)) for name in KNOBS):
        if _meant(name, text) != getattr(settings, name):
            words += [f"{flag_of(name)}={text}"] if text.startswith("-") else [flag_of(name), text]
    return [*words, *shlex.split(filled.text("flags"))]


def _meant(name: str, text: str) -> object:
    """What a run would take for the text of a field."""
    found = setting_of(name).metadata["parse"](text)
    if name != "roster" or parsers.weighs(text):
        return found
    return tuple(zip(models := [model for model, _ in found], usual_weights(models), strict=True))


def problems(filled: Filled, models: Mapping[str, ModelSpec]) -> dict[str, str]:
    """Say what is wrong, by field, in their order."""
    found = {"chunks": "" if directory(filled.text("chunks")) else "name the directory that holds your collections"}
    if filled.text("chunks") and found["chunks"]:
        found["chunks"] = f"no such directory: {found['chunks']}"
    found |= {name: _refused(name, filled.text(name)) for name in KNOBS}
    if not found["roster"]:
        try:
            members(models, [name for name, _ in parsers.roster(filled.text("roster"))])
        except UsageError as error:
            found["roster"] = str(error)
    found = {name: reason for name, reason in found.items() if reason}
    if not found and (reason := _flags(filled.text("flags"))):
        found["flags"] = reason
    return found


def directory(text: str) -> Path | None:
    """Find the directory, or the file of texts, that a text names, its `~` resolved; None where there is none."""
    with suppress(ValueError, OSError, UsageError):
        place = parsers.place(text)
        there = isinstance(place, storage.Url) or place.is_dir() or (form_of(place.name) and place.is_file())
        return place if there else None
    return None


def words_for(name: str, own: str, gpus: Sequence[str] | None) -> list[str]:
    """List what a field may be, where that is a few words: of devices those that are here, and simulated ones. What is
    set stays among them."""
    if name == "devices":
        here = [f"cuda:{number}" for number in range(len(gpus or ()))]
        listed = ["auto", "cpu", *here, *(["cuda"] if len(here) > 1 else []), "sim:2xT4"]
    else:
        listed = str(setting_of(name).metadata["metavar"]).split("|") if name == "fusion" else []
    return listed if own in listed or not listed else [*listed, own]


def placed(roster: str) -> dict[str, str]:
    """Number the models of a roster, as it is typed, in the order of their passes."""
    entries = [entry.partition("=")[0].strip() for entry in roster.split(",")]
    return {name: str(place) for place, name in enumerate(filter(None, entries), 1)}


def toggled(roster: str, name: str) -> str:
    """Take a model out of a roster, as it is typed, or put it at its end."""
    entries = [entry.strip() for entry in roster.split(",") if entry.strip()]
    others = [entry for entry in entries if entry.partition("=")[0].strip() != name]
    return ",".join(others if len(others) < len(entries) else [*entries, name])


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


def _flags(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        return f"{error}".lower()
    return misread(["run", ".", *words]) if words else ""


def _refused(name: str, text: str) -> str:
    try:
        setting_of(name).metadata["parse"](text)
    except ValueError as wanted:
        return str(wanted)
    return ""


def _written(name: str, value: object) -> str:
    """A value of a journal or of the settings as somebody would type it."""
    if name == "roster" and isinstance(value, list):
        models, weights = [model for model, _ in value], [weight for _, weight in value]
        if weights == usual_weights(models):  # those of models that are ticked then are usual, too
            return ",".join(models)
        return ",".join(key if weight == 1 and {*weights} != {1} else f"{key}={weight:g}" for key, weight in value)
    if name in SIZES and isinstance(value, int):  # in the largest unit that says it exactly
        units = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
        exact = (f"{value // size}{unit}" for unit, size in units if value and value % size == 0)
        return next(exact, str(value))
    return "" if value is None else ",".join(map(str, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class ModelRow:
    """A model that can be ticked; what is None is not known (yet). `size` is bytes on this machine."""

    key: str
    dim: int | None = None
    tokens: int | None = None
    languages: str = ""
    licence: str = ""
    here: bool | None = None
    size: int | None = None


class Machine:
    """What a form asks of the machine it is on, under these settings."""

    def __init__(self, begun: Configuration) -> None:
        self.settings = begun.settings
        allowed = self.settings.allow_pickle
        self.models = {key: vouched(spec, allowed) for key, spec in extended(begun.models).items()}

    def empty(self) -> Filled:
        """Fill the form with the settings as they are."""
        return as_configured(self.settings)

    def known(self) -> list[ModelRow]:
        """List the models for a roster as far as the registry knows them itself: no file is looked at."""
        return [
            ModelRow(spec.key, spec.dim, spec.max_tokens, spec.languages, spec.licence)
            for spec in self.models.values()
            if spec.kind == "dense"
        ]

    def looked_at(self) -> list[ModelRow]:
        """List them with what their files on this machine say; asks no network."""
        return [_looked_at(self.models[each.key], each) for each in self.known()]

    def gpus(self) -> list[str]:
        """Ask the driver for the GPUs of this machine; none where there is no driver."""
        from interlock.engine.gpu.nvml import open_nvml

        driver = open_nvml()
        return driver.names() if driver else []

    def earlier(self, out: str) -> "list[Overview]":
        """List the latest runs in the directory called `out`, the one written last first."""
        from interlock.engine.record.rundir import runs_in
        from interlock.engine.standing.runs import overview

        return [overview(path, time.time()) for path in runs_in(directory(out) or Path(out))[:LISTED]]

    def begun(self, run: Path) -> Filled:
        """Fill the form with what a run was begun with. Raises InterlockError for one that cannot be read."""
        from interlock.engine.record.rundir import RunDirectory

        directory = RunDirectory(run)
        begun, chunks = directory.begun(), directory.inputs().get("chunks", "")
        if not begun:
            raise InterlockError(f"{run} has no settings in its journal: choose another run")
        return as_begun(str(chunks), begun.config, self.settings)

    def plan(self, words: Sequence[str], stopped: Callable[[], bool] = lambda: False) -> "Forecast":
        """Say what a run of these arguments would do. Raises what `interlock plan` would raise."""
        from interlock.engine.flows.forecast import forecast

        options = parse(words)
        return forecast(options.chunks, configuration(options), stopped)

    def hindrance(self, words: Sequence[str]) -> tuple[str, str] | None:
        """Find what would keep a run of these arguments from beginning, as the field and the reason."""
        at = "flags"
        try:
            for field, look in self._looks(words):
                at = field
                look()
        except InterlockError as error:
            return error.setting or at, str(error).splitlines()[0]
        return None

    def _looks(self, words: Sequence[str]) -> Iterator[tuple[str, Callable[[], object]]]:
        """What a run does before any work, each with the field that it would be about."""
        from interlock.engine.corpus.collections import discover
        from interlock.engine.flows.opening import check
        from interlock.engine.gpu import devices
        from interlock.engine.record import rundir

        options = parse(words)
        settings = configuration(options).settings
        chunks, out = options.chunks, settings.out
        yield "chunks", lambda: discover(chunks, settings.collections, settings.naming)
        yield "flags", lambda: check(settings, chunks)
        yield "roster", lambda: self._check_models(settings)
        yield "devices", lambda: devices.choose(settings.devices, settings.faults)
        if settings.run_id:
            yield "run_id", lambda: rundir.choose(out, settings.run_id, chunks, resume=settings.resume)

    def _check_models(self, settings: RunSettings) -> None:
        """Raise UnavailableError for a model that is not here where nothing may be fetched."""
        from interlock.engine.models import assets

        offline = settings.offline or assets.is_offline()
        for spec in settings.members(self.models):
            if (offline or not spec.hub_repo) and not assets.cached(spec):
                raise UnavailableError(f"{spec.key} is not on this machine, and nothing may be fetched: choose another")


@dataclass(frozen=True)
class ChunksSeen:
    """What the directory of chunks `of` this name holds, as far as it was looked at; or why that is nothing."""

    of: str
    found: Sequence[Glance] = ()
    whole: bool = True
    problem: str = ""

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.found)


def shelf(text: str, left: Callable[[], bool]) -> ChunksSeen:
    """Look at the directory of chunks that is called so, until it is `left`."""
    if not (place := directory(text)):
        return ChunksSeen("")
    try:
        found, whole = glance(place, left)
    except (OSError, InterlockError) as error:
        return ChunksSeen(text, problem=f"cannot read it: {getattr(error, 'strerror', '') or error}")
    why = f"no collections in {text}: a collection is a directory with *_chunks.json or .jsonl files"
    return ChunksSeen(text, found, whole, "" if found or not whole else why)


def _looked_at(spec: ModelSpec, row: ModelRow) -> ModelRow:
    """A row with what the files say: their size, and what the registry leaves to them."""
    from interlock.engine.models import assets
    from interlock.engine.models.layout import home_of, read_object

    held, config = assets.cached(spec), dict[str, object]()
    with suppress(UnavailableError):
        config = read_object(home_of(held[0]) / "config.json") if held else {}
    dim, tokens = config.get("hidden_size"), config.get("max_position_embeddings")
    return replace(
        row,
        dim=row.dim or (dim if isinstance(dim, int) else None),
        tokens=row.tokens or (tokens if isinstance(tokens, int) else None),
        here=held is not None,
        size=_size(held[0]) if held else None,
    )


def _size(place: Path) -> int | None:
    """Bytes of a model's weights, or of the packages that they are still in."""
    with suppress(OSError):
        files = [file for file in place.rglob("*") if file.is_file()]
        weights = [file for file in files if file.suffix == ".safetensors"]
        return sum(file.stat().st_size for file in weights or files)
    return None
