"""A disk that is full at every write of a run; then room is made and the run is continued.

Refused by the system at the n-th call that needs room, once or from there on; and on small disks of growing sizes,
where compiled libraries and mapped files meet the end too. Never a signal, and the same bytes after all.
"""

import errno
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.campaigns import taps
from bench.campaigns.field import PLAIN, STORED, Variant
from bench.campaigns.process import Outcome, carry_out
from bench.campaigns.tally import Campaign, Report, Room

SMALLEST, GROWTH, STEPS = 8 << 10, 1.11, 100
"""Disks from 8 KiB on, each so much larger than the one before: the largest holds a run and its store."""
KINDS = {"open-w", "write", "os.mkdir", "posix_fallocate"}
TOLD = re.compile(r"No space|room|full|Disk quota", re.IGNORECASE)
_points: dict[str, int] = {}


def trial(room: Room) -> Report:
    """One run that finds its disk full somewhere, and its resume with room again."""
    variant = (PLAIN, STORED)[room.number // 2 % 2]
    return _mounted(room, variant) if room.number % 2 and mountable() else _injected(room, variant)


def _injected(room: Room, variant: Variant) -> Report:
    run, report = room.run(), Report()
    count = _count(room, variant)
    number = room.number // 4 * 7919 % count
    times = room.rng.choice((1, 1 << 30))
    act = taps.fail_at(number, errno.ENOSPC, times)
    outcome = carry_out(
        room.field.command(run, variant), room.place, setup=lambda: taps.install([run.parent], act, KINDS)
    )
    report.tried.update(["disk-full points", f"refused {'once' if times == 1 else 'from there on'}"])
    _judge(room, run, variant, outcome, report)
    report.wrong = [f"{variant.name}, full at write {number} of {count}: {each}" for each in report.wrong]
    return report


def _mounted(room: Room, variant: Variant) -> Report:
    report = Report()
    size = int(SMALLEST * GROWTH ** (room.number // 4 * 37 % STEPS))
    with disk(room.directory("disk"), size) as place:
        run = place / "runs" / "r"
        with suppress(OSError):
            run.parent.mkdir()
        outcome = carry_out(room.field.command(run, variant), room.place)
        report.tried.update(["disk-full points", "small disks"])
        enlarge(place)
        _judge(room, run, variant, outcome, report)
    report.wrong = [f"{variant.name}, a disk of {size:,} bytes: {each}" for each in report.wrong]
    return report


def _judge(room: Room, run: Path, variant: Variant, outcome: Outcome, report: Report) -> None:
    report.wrong += room.field.right_or_refused(outcome, run, variant)
    report.tried[f"ended with {outcome.code}"] += 1
    if outcome.code > 0 and not TOLD.search(outcome.err):
        report.wrong.append(f"not told as a full disk: {outcome.last}")
    again = carry_out(room.field.command(run, variant, "--resume"), room.place)
    report.wrong += [f"resumed: {each}" for each in room.field.must_be_right(again, run, variant)]


def _count(room: Room, variant: Variant) -> int:
    """How many calls of an undisturbed run need room."""
    if variant.name not in _points:
        place = room.directory("survey")
        file = room.place / "points"
        setup = lambda: taps.install([place], taps.record_points(file), KINDS)  # noqa: E731
        outcome = carry_out(room.field.command(place / "runs" / "r", variant), room.place, setup=setup)
        assert outcome.code == 0, outcome
        _points[variant.name] = len(taps.points(file))
    return _points[variant.name]


@contextmanager
def disk(place: Path, size: int) -> Iterator[Path]:
    """A disk of `size` bytes at `place`."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "interlock", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def enlarge(place: Path) -> None:
    """Make room on a disk of ours."""
    subprocess.run(["mount", "-o", "remount,size=2g", place], check=True)


def mountable() -> bool:
    """Whether this process may mount a disk: without that, writes are only refused by injection."""
    if os.geteuid():
        return False
    if "may" not in _MOUNTS:
        place = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path("/tmp")
        probe = place / f"interlock-probe-{os.getpid()}"
        probe.mkdir()
        tried = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "probe", probe], capture_output=True)
        _MOUNTS["may"] = tried.returncode == 0
        if _MOUNTS["may"]:
            subprocess.run(["umount", probe], check=True)
        probe.rmdir()
    return _MOUNTS["may"]


_MOUNTS: dict[str, bool] = {}
CAMPAIGN = Campaign("full-disk", trial, 480, "a disk that is full at every write, by injection and on small disks")
