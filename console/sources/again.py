"""Whether a run of the same chunks and models lies beside one that is to begin, and what goes on with it: nobody is to
compute twice unknowingly. Reads `run.json` of the latest runs and the ends of their journals."""

from collections.abc import Iterator
from contextlib import suppress
from math import isclose
from pathlib import Path

from interlock.engine.errors import InterlockError
from interlock.engine.models.registry import extended
from interlock.engine.record.atomic import held
from interlock.engine.record.rundir import JOURNAL, RunDirectory, runs_in
from interlock.engine.record.runs import RUNS_ASKED, close_of
from interlock.engine.record.words import typed
from interlock.engine.settings import Configuration


def begun_before(chunks: Path, configuration: Configuration) -> str:
    """Say in a line which run has these chunks by these models, one that was completed before others, and how to go on
    with it; empty where none has, or where this one resumes or reuses one."""
    settings = configuration.settings
    if settings.resume or settings.reuse:
        return ""
    with suppress(InterlockError, OSError):  # what is wrong with models and chunks the run itself says
        specs = settings.members(extended(configuration.models))
        whole = sum(weight for _, weight in settings.roster)
        weights = [weight / whole for _, weight in settings.roster]
        wanted = [(spec.key, at < len(weights) and weights[at]) for at, spec in enumerate(specs)]
        found = [*_alike(settings.out, str(chunks.resolve()), settings.fusion, wanted)]
        ends = {run: close_of(run / JOURNAL) for run in found}
        done = [run for run, end in ends.items() if end and end.status == "completed"]
        if done:
            return f"run {done[0].name} has these chunks by these models: use --reuse {typed(done[0])} to take them"
        if found and held(found[0] / JOURNAL):
            return f"run {found[0].name} computes these chunks by these models now: wait for its end"
        if found:
            told, name = "of these chunks and models was not completed", found[0].name
            return f"run {name} {told}: continue it with --run-id {typed(name)} --resume"
    return ""


def _alike(out: Path, chunks: str, fusion: str, wanted: list[tuple[str, float]]) -> Iterator[Path]:
    """The latest runs with these inputs, latest first; what cannot be read is none."""
    for path in runs_in(out)[:RUNS_ASKED]:
        with suppress(InterlockError):
            said = RunDirectory(path).inputs()
            has = [(each["model"], each.get("weight", 1.0)) for each in said.get("roster", ())]
            same = len(has) == len(wanted) and (said["chunks"], said["fusion"]) == (chunks, fusion)
            if same and all(a == b and isclose(x, y) for (a, x), (b, y) in zip(has, wanted, strict=True)):
                yield path
