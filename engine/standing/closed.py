"""Runs that were closed, from their summaries: how they stand, and how fast their models were."""

import math
import os
from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec

from interlock.engine.record import atomic, journal
from interlock.engine.record.events import CollectionRead, RunClosed
from interlock.engine.record.facts import Setting
from interlock.engine.record.rundir import JOURNAL, SUMMARY
from interlock.engine.standing.judgement import Attention
from interlock.engine.standing.outcome import covered

TAIL_BYTES = 64 << 10  # of a journal's end are looked at for the entry that closes a run


class _Pass(msgspec.Struct):
    model_pass: int
    model: str
    dtype: str = ""
    status: str = ""
    tokens: int = 0
    seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None


class _Parked(msgspec.Struct):
    row: int


class _Refusal(msgspec.Struct):
    record: int | None = None


class _Collection(msgspec.Struct):
    chunks: int
    refused: int
    passes: list[_Pass]
    mitigations: list[msgspec.Raw]
    parked: list[_Parked]
    warnings: list[msgspec.Raw]
    missing: list[msgspec.Raw] = []
    same: int = 0
    refusals: list[_Refusal] = []
    refused_files: int | None = None

    @property
    def read(self) -> CollectionRead:
        """What was read, as far as the summary says; of an older one the refused files that were told."""
        told = sum(each.record is None for each in self.refusals)
        files = told if self.refused_files is None else self.refused_files
        return CollectionRead("", "", 0, self.chunks, 0, self.refused, 0.0, same=self.same, refused_files=files)


class _Device(msgspec.Struct):
    name: str = ""
    lost: str = ""


class _Node(msgspec.Struct):
    lost: list[str] = []
    refused: str = ""


class ClosedRun(msgspec.Struct):
    """What a list needs of a run's summary; the rest, which may be many megabytes, is not looked at."""

    status: str
    reason: str
    exit_code: int | None
    started_at: datetime
    finished_at: datetime
    device_kind: str
    chunks: str
    collections: list[_Collection]
    warnings: list[msgspec.Raw]
    configuration: dict[str, Setting] = {}
    residues: list[msgspec.Raw] = []
    devices: list[_Device] = []
    losses: list[msgspec.Raw] = []
    nodes: list[_Node] = []
    share_done: float | None = None

    @property
    def attention(self) -> Attention:
        """Count what an operator should look at."""
        # A step of a whole lease stands in every collection of its pass.
        steps: Counter[bytes] = Counter()
        for place in self.collections:
            steps |= Counter(bytes(each) for each in place.mitigations)
        refused = sum(place.refused for place in self.collections)
        allowed = sum(place.refused for place in self.collections if covered(place.read, self.configuration))
        return Attention(
            lost=max(len(self.losses), sum(bool(each.lost) for each in self.devices)),
            parked=len({each.row for place in self.collections for each in place.parked}),
            warnings=sum(map(len, (self.warnings, self.residues, *(each.warnings for each in self.collections))))
            + sum(bool(each.refused) for each in self.nodes),
            mitigations=steps.total(),
            refused=refused - allowed,
            allowed=allowed,
            nodes=sum(len(each.lost) for each in self.nodes),
        )

    @property
    def models(self) -> tuple[str, ...]:
        """Name the models of its passes, in their order."""
        models = {each.model_pass: each.model for place in self.collections for each in place.passes}
        return tuple(models[number] for number in sorted(models))


def closed_run(directory: Path) -> ClosedRun | None:
    """Read the summary of a run whose journal ends with its close; None for any other."""
    if (closed := close_of(directory / JOURNAL)) is None:
        return None
    try:
        said = msgspec.json.decode(atomic.content(directory / SUMMARY), type=ClosedRun)
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
            told = msgspec.json.decode(atomic.content(path), type=ClosedRun)
            sums: dict[tuple[str, str], tuple[int, float]] = {}
            passes = [each for found in told.collections for each in found.passes if told.device_kind == kind]
            for each in passes:  # over all collections: a few texts alone tell a pace badly
                if each.status == "completed" and each.tokens > 0 and each.seconds:
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
