"""SIGKILL at every call to the file system, of a run and of its resume, one to three times in a row.

Also with the line of the journal half written, with rows of the batch in flight half written, and at random moments,
which reach what compiled libraries do by themselves. The last resume must give the undisturbed run's bytes.
"""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from bench.campaigns import taps
from bench.campaigns.field import VARIANTS, Variant, store_of
from bench.campaigns.process import Outcome, carry_out, wrongs
from bench.campaigns.tally import Campaign, Report, Room

_points: dict[str, list[tuple[str, str]]] = {}
_seconds: dict[str, float] = {}


def trial(room: Room) -> Report:
    """One run, killed and continued until it is through."""
    report = Report()
    variant = VARIANTS[room.number % len(VARIANTS)]
    room.field.truth(variant)
    run = room.run()
    wanted = room.rng.choice((1, 1, 1, 2, 2, 3))
    for count in range(wanted):
        command = room.field.command(run, variant, *(["--resume"] if count else []))
        outcome = _killed(room, command, variant, report, first=count == 0)
        report.wrong += [f"kill {count + 1}: {each}" for each in wrongs(outcome, sent=[signal.SIGKILL])]
        if outcome.code == -signal.SIGKILL and room.rng.random() < 0.3:
            report.tried["half-written batches"] += _half_write(room, run)
    outcome = carry_out(room.field.command(run, variant, "--resume"), room.place)
    report.tried["resumes"] += 1
    report.wrong += room.field.must_be_right(outcome, run, variant)
    report.wrong += left_over(run)
    if report.wrong:
        report.wrong.insert(0, f"variant {variant.name}")
    return report


def _killed(room: Room, command: list[object], variant: Variant, report: Report, *, first: bool) -> Outcome:
    """Carry the command out and kill it somewhere; a run that ends before is one that was not killed."""
    roots = [room.place]
    points = _points_of(room, variant)
    if room.rng.random() < 0.15:
        outcome = carry_out(command, room.place, meanwhile=_killer(room.rng.random() * _seconds[variant.name]))
        kind = "at random moments"
    else:
        chosen = (room.number // len(VARIANTS) * 7919 + 13 * room.number) if first else room.rng.randrange(1 << 20)
        act = taps.kill_at(chosen % len(points), room.rng.random())
        outcome = carry_out(command, room.place, setup=lambda: taps.install(roots, act))
        kind = f"at {points[chosen % len(points)][0]}"
    if outcome.code == -signal.SIGKILL:
        report.tried["kills"] += 1
        report.tried[f"kills {kind}"] += 1
    else:
        report.tried["runs that ended before their kill"] += 1
    return outcome


def _points_of(room: Room, variant: Variant) -> list[tuple[str, str]]:
    """The points of an undisturbed run, met once in this process."""
    if variant.name not in _points:
        place = room.directory("survey")
        command = room.field.command(place / "runs" / "r", variant)
        file = place / "points"
        outcome = carry_out(command, place, setup=lambda: taps.install([place], taps.record_points(file)))
        assert outcome.code == 0, outcome
        _points[variant.name], _seconds[variant.name] = taps.points(file), outcome.seconds
    return _points[variant.name]


def _killer(seconds: float) -> Callable[[int], None]:
    def kill(pid: int) -> None:
        time.sleep(seconds)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    return kill


def _half_write(room: Room, run: Path) -> int:
    """Put numbers into rows that no batch had written, as a kill within a write leaves them; how many."""
    count = 0
    for file in sorted(run.glob("passes/*/vectors.npy")):
        with suppress(ValueError, OSError):
            array = np.load(file, mmap_mode="r+")
            for row in np.flatnonzero(np.isnan(array).any(axis=1))[: room.rng.randrange(4)]:
                array[row] = room.rng.choice((1.0, 1 / np.sqrt(array.shape[1])))
                count += 1
            array.flush()
    return count


def left_over(run: Path) -> list[str]:
    """Files that a finished run has no use for."""
    names = [*run.rglob("*.partial*"), *run.glob(".tokens-*"), *store_of(run).rglob(".atomicwrite*")]
    return [f"left over: {path.relative_to(run.parent)}" for path in names]


CAMPAIGN = Campaign("kill", trial, 720, "SIGKILL at every file-system call of a run and its resumes")
