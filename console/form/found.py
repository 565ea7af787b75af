"""What this machine has for a new run: models, devices, earlier runs; and whether a run could begin. All of it may wait
for a disk or a driver, so a screen asks in a thread."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.console.form.filled import KNOBS, Filled, as_begun, as_configured
from interlock.engine.corpus.collections import Glance, glance
from interlock.engine.errors import InterlockError, UnavailableError
from interlock.engine.models.registry import ModelSpec, extended, vouched
from interlock.engine.settings import Configuration, RunSettings, flag_of
from interlock.widgets.ticks import ModelRow

if TYPE_CHECKING:
    from interlock.engine.flows.plan import Forecast
    from interlock.engine.record.runs import Overview

LISTED = 12
"""Earlier runs that are offered."""


class Machine:
    """What a form asks of the machine it is on, under these settings."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        allowed = configuration.settings.allow_pickle
        self.models = {key: vouched(spec, allowed) for key, spec in extended(configuration.models).items()}

    @property
    def settings(self) -> RunSettings:
        return self.configuration.settings

    def empty(self) -> Filled:
        """Fill the form with the settings as they are."""
        return as_configured(self.settings, self.models)

    def known(self) -> list[ModelRow]:
        """List the models for a roster as far as the registry knows them itself: no file is looked at."""
        return [_row(spec) for spec in self._dense]

    def looked_at(self) -> list[ModelRow]:
        """List them with what their files on this machine say; asks no network."""
        return [_looked_at(spec) for spec in self._dense]

    @property
    def _dense(self) -> list[ModelSpec]:
        return [spec for spec in self.models.values() if spec.kind == "dense"]

    def gpus(self) -> list[str]:
        """Ask the driver for the GPUs of this machine; none where there is no driver."""
        from interlock.engine.gpu.nvml import open_nvml

        driver = open_nvml()
        return driver.names() if driver else []

    def earlier(self, out: Path) -> "list[Overview]":
        """List the latest runs in `out`, the one written last first."""
        from interlock.engine.record.rundir import runs_in
        from interlock.engine.record.runs import overview

        return [overview(path, time.time()) for path in runs_in(out)[:LISTED]]

    def begun(self, run: Path) -> Filled:
        """Fill the form with what a run was begun with. Raises InterlockError for one that cannot be read."""
        from interlock.engine.record.rundir import RunDirectory

        directory = RunDirectory(run)
        begun, chunks = directory.begun(), directory.inputs().get("chunks", "")
        if not begun:
            raise InterlockError(f"{run} has no settings in its journal: choose another run")
        return as_begun(str(chunks), begun.config, self.settings, self.models)

    def plan(self, words: Sequence[str], stopped: Callable[[], bool] = lambda: False) -> "Forecast":
        """Say what a run of these arguments would do. Raises what `interlock plan` would raise."""
        from interlock.console.cli import configuration, parse
        from interlock.engine.flows.plan import forecast

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
            reason = str(error).splitlines()[0]
            return next((name for name in KNOBS if reason.startswith(f"{flag_of(name)} ")), at), reason
        return None

    def _looks(self, words: Sequence[str]) -> Iterator[tuple[str, Callable[[], object]]]:
        """What a run does before any work, each with the field that it would be about."""
        from interlock.console.cli import configuration, parse
        from interlock.engine.corpus.collections import discover
        from interlock.engine.flows.opening import check
        from interlock.engine.gpu import devices
        from interlock.engine.record import rundir

        options = parse(words)
        settings = configuration(options).settings
        chunks, out = options.chunks, settings.out
        yield "chunks", lambda: discover(chunks, settings.collections)
        yield "flags", lambda: check(settings, chunks)
        yield "models", lambda: self._check_models(settings)
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


def shelf(text: str, place: Path, left: Callable[[], bool]) -> ChunksSeen:
    """Look at a directory of chunks, which is called so, until it is `left`."""
    try:
        found, whole = glance(place, left)
    except OSError as error:
        return ChunksSeen(text, problem=f"cannot read it: {error.strerror or error}")
    if found or not whole:
        return ChunksSeen(text, found, whole)
    reason = f"no collections in {text}: a collection is a directory with *_chunks.json or .jsonl files"
    return ChunksSeen(text, problem=reason)


def _row(spec: ModelSpec) -> ModelRow:
    return ModelRow(spec.key, spec.dim, spec.max_tokens, spec.languages, spec.licence)


def _looked_at(spec: ModelSpec) -> ModelRow:
    """A row with what the files say: their size, and what the registry leaves to them."""
    from interlock.engine.models import assets
    from interlock.engine.models.configurations import configurations

    held = assets.cached(spec)
    config = configurations([spec], assets.Policy(offline=True))[0].config or {}
    dim, tokens = config.get("hidden_size"), config.get("max_position_embeddings")
    return ModelRow(
        spec.key,
        spec.dim or (dim if isinstance(dim, int) else None),
        spec.max_tokens or (tokens if isinstance(tokens, int) else None),
        spec.languages,
        spec.licence,
        held is not None,
        _size(held[0]) if held else None,
    )


def _size(place: Path) -> int | None:
    """Bytes of a model's weights, or of the packages that they are still in."""
    with suppress(OSError):
        files = [file for file in place.rglob("*") if file.is_file()]
        weights = [file for file in files if file.suffix == ".safetensors"]
        return sum(file.stat().st_size for file in weights or files)
    return None
