"""Runs that were closed, from their summaries: how they stand, and how fast their models were."""

import math
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec

from interlock.engine.record import atomic, journal
from interlock.engine.record.events import CollectionRead, RunClosed
from interlock.engine.record.rundir import JOURNAL, SUMMARY
from interlock.engine.record.summary import CollectionSummary, Summary, load
from interlock.engine.standing.judgement import Attention
from interlock.engine.standing.outcome import covered

TAIL_BYTES = 64 << 10  # of a journal's end are looked at for the entry that closes a run


def read_of(place: CollectionSummary) -> CollectionRead:
    """Tell what was read of a collection, as far as its summary says; of an older one the refused files that were
    told."""
    told = sum(each.record is None for each in place.refusals)
    files = told if place.refused_files is None else place.refused_files
    return CollectionRead("", "", 0, place.chunks, 0, place.refused, 0.0, same=place.same, refused_files=files)


def attention_of(said: Summary) -> Attention:
    """Count what an operator should look at in a run that was closed."""
    # A step of a whole lease stands in every collection of its pass.
    steps: Counter[bytes] = Counter()
    for place in said.collections:
        steps |= Counter(map(msgspec.json.encode, place.mitigations))
    refused = sum(place.refused for place in said.collections)
    allowed = sum(place.refused for place in said.collections if covered(read_of(place), said.configuration))
    nodes = said.nodes or []
    return Attention(
        lost=max(len(said.losses), sum(bool(each.lost) for each in said.devices)),
        parked=len({each.row for place in said.collections for each in place.parked}),
        warnings=len(said.warnings)
        + len(said.residues)
        + sum(len(each.warnings) for each in said.collections)
        + sum(bool(each.refused) for each in nodes),
        mitigations=steps.total(),
        refused=refused - allowed,
        allowed=allowed,
        nodes=sum(len(each.lost) for each in nodes),
    )


def models_of(said: Summary) -> tuple[str, ...]:
    """Name the models of its passes, in their order."""
    models = {each.model_pass: each.model for place in said.collections for each in place.passes}
    return tuple(models[number] for number in sorted(models))


def closed_run(directory: Path) -> Summary | None:
    """Read the summary of a run whose journal ends with its close; None for any other."""
    if (closed := close_of(directory / JOURNAL)) is None:
        return None
    try:
        said = load(atomic.content(directory / SUMMARY))
    except (OSError, ArithmeticError, ValueError, RecursionError, msgspec.MsgspecError):
        return None
    # Another one is that of an earlier session.
    return said if (said.status, said.exit_code) == (closed.status, closed.exit_code) else None


def close_of(path: Path) -> RunClosed | None:
    """Read in the end of a journal how its run was closed; None where it was not."""
    with atomic.opened(path) as handle:
        end = handle.seek(0, os.SEEK_END)
        handle.seek(max(0, end - TAIL_BYTES))
        lines = handle.read().splitlines(keepends=True)
    entry = journal.decode(lines[-1]) if lines else None
    return entry.body if entry and isinstance(entry.body, RunClosed) else None


RUNS_ASKED = 20
"""Earlier runs whose pace is looked at, the latest ones."""


def paces(out: Path, kind: str) -> dict[tuple[str, str], float]:
    """Read tokens a second by model and precision from the latest runs in `out` on this kind of device."""
    known: dict[tuple[str, str], float] = {}
    for path in sorted(out.glob("*/summary.json"), key=written_at)[-RUNS_ASKED:]:
        with suppress(OSError, ArithmeticError, RecursionError, msgspec.MsgspecError):  # a bad one hurts no other
            told = load(atomic.content(path))
            sums: dict[tuple[str, str], tuple[int, float]] = {}
            passes = [each for found in told.collections for each in found.passes if told.device_kind == kind]
            for each in passes:  # over all collections: a few texts alone tell a pace badly
                if each.status == "completed" and each.tokens > 0 and each.seconds and each.seconds > 0:
                    tokens, seconds = sums.get((each.model, each.dtype), (0, 0.0))
                    sums[each.model, each.dtype] = tokens + each.tokens, seconds + each.seconds
            found_paces = {which: tokens / seconds for which, (tokens, seconds) in sums.items()}
            # Anything else no journal could hold.
            known |= {which: pace for which, pace in found_paces.items() if math.isfinite(pace)}
    return known


def written_at(path: Path) -> float:
    """When a file was written last; never, where nobody can tell."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
