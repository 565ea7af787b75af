"""How time and memory grow: with rows, repeats, files, collections, refusals, parked rows, events and sessions.

Each subject is measured at four sizes or more, in forks of a process that has imported everything, in CPU seconds and
peak memory. `a + b * n^k` is fitted, so that what is paid once does not flatten what grows; k above 1.1 fails.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))


import numpy as np

from bench import evidence, machine
from bench.campaign import commit, scratch
from bench.campaigns.process import Outcome, aside, start, warm, wrongs
from bench.growths import Ground, Subject, subjects
from tests import builders

SOURCES = ("engine",)
MOST = 1.1
LEAST_RISEN = 3
"""Sizes that an exponent is told from."""
TELLING_SECONDS, TELLING_MIB = 0.15, 16.0
"""Growth below this is noise, and no exponent is told."""
RESULT = Path(__file__).parent / "results" / "growth.json"
IDENTICAL, SMALL = 100_000, 1_000_000
KIB_A_CHUNK = 0.3


def fit(sizes: Sequence[int], values: Sequence[float], telling: float) -> float | None:
    """The k of `a + b * n^k`, by least squares of relative errors, a and b above 0; None where nothing grows."""
    if max(values) - values[0] < telling:
        return None
    n, y = np.asarray(sizes, float) / sizes[-1], np.asarray(values, float)
    tried = [(_error(n**k, y), k) for k in np.arange(0.05, 3.0, 0.01)]
    return round(float(min(tried)[1]), 2)


def _error(grown: np.ndarray, y: np.ndarray) -> float:
    """Of the best `a + b * grown`, which is not seen below the least: starting takes some memory and gives it back."""
    found = []
    for columns in ([np.ones_like(grown), grown], [grown]):
        matrix, risen = np.stack(columns, axis=1), np.ones(len(y), bool)
        for _ in y:  # what lies below tells nothing of a and b
            parts = np.linalg.lstsq((matrix / y[:, None])[risen], np.ones(risen.sum()), rcond=None)[0]
            above = matrix @ parts > y.min()
            if above.sum() < LEAST_RISEN:
                break
            risen = above
        seen = np.maximum(matrix @ parts, y.min())
        found.append(float(((seen / y - 1) ** 2).sum()) if (parts >= 0).all() else np.inf)
    return min(found)


@dataclass(frozen=True)
class Spent:
    """CPU seconds and peak memory of a process."""

    seconds: float
    mib: float


def spent(work: Callable[[], object] | list[object], place: Path) -> Spent:
    """What a command, or a function, takes in a fork of its own. Raises SystemExit where it fails."""
    if callable(work):
        return aside(lambda: _own(work))
    trial = start(work, place)
    _, status, usage = os.wait4(trial.pid, 0)
    if (code := os.waitstatus_to_exitcode(status)) not in (0, 1) or wrongs(Outcome(code, *_said(trial.place), 0.0)):
        raise SystemExit(f"{work[:2]} ended with {code}: {(trial.place / 'err').read_text()[-500:]}")
    return Spent(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def _said(place: Path) -> tuple[str, str]:
    return (place / "err").read_text(), (place / "out").read_text()


def _own(work: Callable[[], object]) -> Spent:
    work()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Spent(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def grown(subject: Subject, ground: Ground, share: float, rounds: int) -> dict[str, Any]:
    """Measure one subject at all its sizes; the least of some rounds counts."""
    sizes = [max(2, round(size * share)) for size in subject.sizes]
    took: list[list[Spent]] = [[] for _ in sizes]
    for _ in range(rounds):  # all sizes in each, so that a busy minute is nobody's alone
        for size, found in zip(sizes, took, strict=True):
            with tempfile.TemporaryDirectory(dir=ground.place) as made:
                found.append(spent(subject.make(ground, Path(made), size), Path(made)))
    seconds = [round(min(each.seconds for each in found), 3) for found in took]
    memory = [round(min(each.mib for each in found), 1) for found in took]
    exponents = fit(sizes, seconds, TELLING_SECONDS), fit(sizes, memory, TELLING_MIB)
    told = {
        "sizes": sizes,
        "cpu_seconds": seconds,
        "mib": memory,
        "exponent": exponents[0],
        "memory_exponent": exponents[1],
    }
    return {"subject": subject.name, **told, "met": all(each is None or each <= MOST for each in exponents)}


def big(ground: Ground) -> dict[str, Any]:
    """So many identical records planned, and so many small chunks, as processes of their own."""
    few, same, many = (ground.lines(name, count, distinct=distinct) for name, count, distinct in (
        ("few", 100, True), ("same", IDENTICAL, False), ("many", SMALL, True)))  # fmt: skip
    took = {name: _process(ground, chunks) for name, chunks in (("few", few), ("same", same), ("many", many))}
    each = (took["many"].mib - took["few"].mib) * 1024 / SMALL
    return {
        "identical_records": IDENTICAL,
        "identical_records_cpu_seconds": round(took["same"].seconds, 2),
        "small_chunks": SMALL,
        "small_chunks_cpu_seconds": round(took["many"].seconds, 1),
        "mib_for_100_chunks": round(took["few"].mib, 1),
        "mib_for_small_chunks": round(took["many"].mib, 1),
        "kib_a_chunk": {"value": round(each, 3), "goal": f"<= {KIB_A_CHUNK}", "met": each <= KIB_A_CHUNK},
    }


def _process(ground: Ground, chunks: Path) -> Spent:
    words = [sys.executable, "-m", "interlock", *map(str, ground.plan(chunks))]
    child = subprocess.Popen(words, env=builders.environment(machine.SINGLE_THREAD), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return Spent(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="--share 0.01 --rounds 1: sizes too small to tell much")
    parser.add_argument("--share", type=float, default=1.0, help="of the sizes")
    parser.add_argument("--big", action="store_true", help="also a million small chunks, and many identical records")
    parser.add_argument("--only", action="append", metavar="SUBJECT", help="subjects whose name begins so")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    if options.quick:
        options.share, options.rounds = 0.01, 1
    about, began = machine.describe(), time.monotonic()
    warm()
    with scratch() as made:  # in memory, where no disk makes one size slower than another
        ground = Ground(made)
        chosen = [each for each in subjects() if not options.only or each.name.startswith(tuple(options.only))]
        found = []
        for subject in chosen:
            found.append(grown(subject, ground, options.share, options.rounds))
            print(json.dumps(found[-1]), flush=True)
        result = {"host": about, "commit": commit(), "most": MOST, "subjects": found}
        if options.big:
            result["big"] = big(ground)
            print(json.dumps(result["big"], indent=1))
    result["seconds"] = round(time.monotonic() - began)
    whole = not options.only and options.share == 1
    evidence.keep(result, options.json or (RESULT if whole else None), SOURCES)
    missed = [each["subject"] for each in found if not each["met"]]
    missed += ["memory of a small chunk"] if options.big and not result["big"]["kib_a_chunk"]["met"] else []
    print(f"grows faster than n^{MOST}: {', '.join(missed) or 'nothing'}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
