"""Whether a run of the same chunks and models lies beside one that is to begin, and what goes on with it: nobody is to
compute twice unknowingly. Reads `run.json` of the latest runs and the ends of their journals."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import Literal

from interlock.engine.corpus.collections import discover
from interlock.engine.errors import InterlockError
from interlock.engine.models.registry import extended
from interlock.engine.record.atomic import held, sha256_of
from interlock.engine.record.inputs import INPUTS
from interlock.engine.record.rundir import JOURNAL, RunDirectory, runs_in
from interlock.engine.record.words import argument, command, typed
from interlock.engine.settings import FROM_RUN, SIMULATED, Configuration, recorded
from interlock.engine.standing.closed import RUNS_ASKED, close_of

OF_A_SESSION = ("run_id", "resume", "reuse", "deadline", "by_ordinal")
"""The settings that make no other run of a call that is made again."""


def begun_before(chunks: Path, configuration: Configuration, words: Sequence[str] = ()) -> str:
    """Say in a line which run has these chunks by these models, one that was completed before others, and how to go on
    with it, with the whole command where `words` were typed to `interlock`; empty where none has, or where this one
    resumes or reuses one."""
    if configuration.settings.resume or configuration.settings.reuse:
        return ""
    run, state = _before(chunks, configuration)
    if run is None:
        return ""
    if state == "completed":
        whole = f": `{_typed_again(words, '--reuse', argument(str(run)))}`" if words else ""
        return f"run {run.name} has these chunks by these models: use --reuse {typed(run)} to take them{whole}"
    if state == "running":
        return f"run {run.name} computes these chunks by these models now: wait for its end"
    told = f"run {run.name} of these chunks and models was not completed"
    whole = f": `{_typed_again(words, '--run-id', run.name, '--resume')}`" if words else ""
    return f"{told}: continue it with --run-id {typed(run.name)} --resume{whole}"


def _typed_again(words: Sequence[str], *more: str) -> str:
    """Write a command that was typed with `more` to it, and without the name that it gave its run."""
    left = list(words)
    while "--run-id" in left[:-1]:
        del left[(at := left.index("--run-id")) : at + 2]
    return command([*(each for each in left if not each.startswith("--run-id=")), *more])


def taken_up(chunks: Path, configuration: Configuration) -> tuple[Configuration, str]:
    """Settle what a call does that is made again and says neither to resume nor to reuse: it goes on with the run that
    it began, or, where chunks or settings are others since, takes the vectors of that into a new one; with a line that
    says so. Where there is no such run, or it goes on now, nothing changes."""
    settings, origins = configuration.settings, configuration.origins
    said = any(origins[name] != "default" for name in ("resume", "reuse"))
    if said or settings.faults or settings.devices.startswith(SIMULATED):  # who rehearses wants to see it computed
        return configuration, ""
    run, state = _before(chunks, configuration)
    if run is None or state == "running":
        return configuration, begun_before(chunks, configuration)
    if settings.run_id in ("", run.name) and _is_same(run, chunks, configuration):
        changes, did = {"run_id": run.name, "resume": True}, "going on with it"
    else:
        changes, did = {"reuse": run}, "taking its vectors"
    whole = "has these chunks by these models" if state == "completed" else "has part of these chunks by these models"
    if RunDirectory(run).inputs()["chunks"] != os.path.realpath(chunks):
        whole = "has other texts of this name"
    told = f"run {run.name} {whole}: {did}; Settings(resume=False) computes all anew"
    origins = {**origins, **dict.fromkeys(changes, FROM_RUN)}
    return replace(configuration, settings=replace(settings, **changes), origins=origins), told  # type: ignore[arg-type]


def _before(chunks: Path, configuration: Configuration) -> tuple[Path | None, Literal["completed", "running", "cut"]]:
    """The run to take up, and how it stands."""
    settings = configuration.settings
    with suppress(InterlockError, OSError):  # what is wrong with models and chunks the run itself says
        specs = settings.members(extended(configuration.models))
        whole = sum(weight for _, weight in settings.roster)
        weights = [weight / whole for _, weight in settings.roster]
        wanted = [(spec.key, at < len(weights) and weights[at]) for at, spec in enumerate(specs)]
        told = settings.fusion, wanted, settings.shard
        found = [*_alike(settings.out, os.path.realpath(chunks), *told, usual=configuration.usual)]
        ends = {run: close_of(run / JOURNAL) for run in found}
        done = [run for run, end in ends.items() if end and end.status == "completed"]
        if done:
            return done[0], "completed"
        if found:
            return found[0], "running" if held(found[0] / JOURNAL) else "cut"
    return None, "cut"


def _is_same(run: Path, chunks: Path, configuration: Configuration) -> bool:
    """Whether a run was begun with these settings and with the files that there are now, byte for byte."""
    settings = configuration.settings
    with suppress(InterlockError, OSError):
        directory = RunDirectory(run)
        begun, wanted = directory.begun(), recorded(configuration)
        free = {*OF_A_SESSION, *["devices"] * (settings.devices == "auto")}  # a run keeps those that it found
        if begun is None or any(
            name not in begun.config or begun.config[name].value != each.value
            for name, each in wanted.items()
            if name not in free
        ):
            return False
        files = {
            f"{each.name}/{file}": each.root / file
            for each in discover(chunks, settings.collections, settings.naming)
            for file in each.files
        }
        hashes: dict[str, str] = directory.inputs()["files"]
        return files.keys() == hashes.keys() and all(sha256_of(files[name]) == hashes[name] for name in files)
    return False


def _known(chunks: str) -> str:
    """How chunks are known: by their path, of texts in memory by their name alone, since others lie elsewhere."""
    path = Path(chunks)
    return str(path.parents[1] / path.stem) if path.parent.parent.name == INPUTS and path.suffix else chunks


def _alike(
    out: Path, chunks: str, fusion: str, wanted: list[tuple[str, float]], shard: str, *, usual: bool
) -> Iterator[Path]:
    """The latest runs with these inputs, latest first; what cannot be read is none. What weights are `usual` may have
    been others then."""
    for path in runs_in(out)[:RUNS_ASKED]:
        with suppress(InterlockError):
            said = RunDirectory(path).inputs()
            has = [(each["model"], each.get("weight", 1.0)) for each in said.get("roster", ())]
            same = len(has) == len(wanted) and said["fusion"] == fusion and _known(said["chunks"]) == _known(chunks)
            same = same and said.get("shard", "") == shard
            if same and all(a == b and (usual or isclose(x, y)) for (a, x), (b, y) in zip(has, wanted, strict=True)):
                yield path
