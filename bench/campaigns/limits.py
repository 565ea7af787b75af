"""Descriptors, memory and the size of files limited by the system; then the run is continued without the limit."""

import resource
from collections.abc import Callable
from pathlib import Path

from bench.campaigns.field import PLAIN, STORED
from bench.campaigns.process import carry_out
from bench.campaigns.tally import Campaign, Report, Room

Limit = tuple[Callable[[], object], str]


def trial(room: Room) -> Report:
    """One run under a limit, and its resume without."""
    variant = (PLAIN, STORED)[room.number // 3 % 2]
    kind = (_descriptors, _memory, _sizes)[room.number % 3]
    setup, told = kind(room)
    run, report = room.run(), Report()
    outcome = carry_out(room.field.command(run, variant), room.place, setup=setup)
    report.tried.update(["limited runs", told.partition(":")[0], f"ended with {outcome.code}"])
    report.wrong += room.field.right_or_refused(outcome, run, variant)
    again = carry_out(room.field.command(run, variant, "--resume"), room.place)
    report.wrong += [f"resumed: {each}" for each in room.field.must_be_right(again, run, variant)]
    report.wrong = [f"{variant.name}, {told}: {each}" for each in report.wrong]
    return report


def _descriptors(room: Room) -> Limit:
    more = room.number // 6 % 40

    def setup() -> None:
        held = len(list(Path("/proc/self/fd").iterdir()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (held + more, held + more))

    return setup, f"descriptors: {more} more"


def _memory(room: Room) -> Limit:
    more = round(4 * 1.12 ** (room.number // 6 % 48))

    def setup() -> None:
        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (held + (more << 20), held + (more << 20)))

    return setup, f"memory: {more} MiB more"


def _sizes(room: Room) -> Limit:
    most = round(512 * 1.3 ** (room.number // 6 % 44))
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)), f"files: of {most:,} bytes at most"


CAMPAIGN = Campaign("limits", trial, 288, "descriptors, memory and the size of files limited, then not any more")
