"""Many trials of many campaigns, by as many processes as asked for; what became of them in numbers."""

import os
import pickle
import random
import shutil
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.campaigns.field import Field
from bench.campaigns.tally import Campaign, Report, Room, Tally

Jobs = list[tuple[Campaign, int]]


def many(chosen: Sequence[Campaign], work: Jobs, field: Field, seed: int, jobs: int, until: float) -> dict[str, Tally]:
    """Carry out these trials, dealt out to `jobs` processes; none is begun after `until`."""
    place = field.place
    pids = []
    for job in range(jobs):
        if not (pid := os.fork()):
            try:
                _work(work[job::jobs], field, seed, until, place / f"job-{job}")
            finally:
                os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    tallies = {each.name: Tally() for each in chosen}
    for job in range(jobs):
        for name, tally in pickle.loads((place / f"job-{job}" / "tallies").read_bytes()).items():
            tallies[name].merge(tally)
    return tallies


def dealt(chosen: Sequence[Campaign], counts: Mapping[str, int], first: int) -> Jobs:
    """All trials, so that every campaign is spread evenly over the time: one that is cut short has tried of each."""
    shares = [
        ((number + 0.5) / counts[each.name], each, first + number)
        for each in chosen
        for number in range(counts[each.name])
    ]
    return [(each, number) for _, each, number in sorted(shares, key=lambda share: share[0])]


def _work(jobs: Jobs, field: Field, seed: int, until: float, place: Path) -> None:
    place.mkdir()
    tallies: dict[str, Tally] = {}
    for campaign, number in jobs:
        if time.monotonic() > until:
            break
        began = time.monotonic()
        report = one(campaign, number, seed, field, place / "trial")
        tallies.setdefault(campaign.name, Tally()).add(number, report, time.monotonic() - began)
        for wrong in report.wrong:
            print(f"{campaign.name} --first {number} --trials 1 --seed {seed}: {wrong}", flush=True)
    (place / "tallies").write_bytes(pickle.dumps(tallies))


def one(campaign: Campaign, number: int, seed: int, field: Field, place: Path) -> Report:
    """One trial in a room of its own; a harness that fails has failed, too."""
    place.mkdir(parents=True)
    try:
        return campaign.trial(Room(field, place, number, random.Random(f"{seed}/{campaign.name}/{number}")))
    except Exception:
        return Report(wrong=[f"the trial itself: {' | '.join(traceback.format_exc().strip().splitlines()[-4:])}"])
    finally:
        shutil.rmtree(place, ignore_errors=True)
