"""Fault campaigns: the command line is killed, starved and lied to, and what it delivers is compared.

Whatever is done, a run ends with the undisturbed run's vectors, texts and ids, or it says in a line and an exit code
what was wrong, and can be continued. `--share 0.01` makes a hundredth of it; the same seed makes the same trials.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from bench import evidence
from bench.campaigns import CAMPAIGNS
from bench.campaigns.field import build
from bench.campaigns.many import dealt, many
from bench.campaigns.process import no_core_files, warm
from bench.campaigns.tally import Campaign, Tally
from tests import builders

RESULT = ROOT / "bench" / "results" / "campaigns.json"
SOURCES = ("engine", "console")
SEED = 20_261_121


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for all of it, in memory where there is room, with the settings of nobody."""
    shared = Path("/dev/shm")
    roomy = shared.is_dir() and shutil.disk_usage(shared).free > 8 << 30
    place = Path(tempfile.mkdtemp(prefix="interlock-campaigns-", dir=shared if roomy else None))
    for name in [name for name in os.environ if name.startswith(builders.FOREIGN)]:
        del os.environ[name]
    os.environ |= {"INTERLOCK_CACHE": str(place / "cache"), "HF_HOME": str(place / "huggingface")}
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def result_of(
    tallies: Mapping[str, Tally], chosen: Sequence[Campaign], options: argparse.Namespace, seconds: float
) -> dict[str, Any]:
    """What was tried and what failed, as it is kept."""
    tried = {name: sum(tally.tried[name] for tally in tallies.values()) for name in GOALS}
    return {
        "date": date.today().isoformat(),
        "commit": commit(),
        "seed": options.seed,
        "share": options.share,
        "seconds": round(seconds),
        "failures": sum(len(tally.failures) for tally in tallies.values()),
        "goals": {
            name: {"tried": tried[name], "goal": goal, "met": tried[name] >= goal} for name, goal in GOALS.items()
        },
        "campaigns": [
            {
                "name": each.name,
                "what": each.told,
                "trials": tallies[each.name].trials,
                "tried": {name: tallies[each.name].tried[name] for name in MAIN if tallies[each.name].tried[name]},
                "spread": {name: n for name, n in sorted(tallies[each.name].tried.items()) if name not in MAIN},
                "failures": tallies[each.name].failures,
                "seconds": round(tallies[each.name].seconds),
            }
            for each in chosen
        ],
    }


MAIN = (
    *("kills", "resumes", "damaged files", "damaged journals", "disk-full points", "limited runs", "changed inputs"),
    *("inputs that failed once", "hostile models", "signals", "storms on a terminal", "storms without one", "pairs"),
)
"""What stands in the table; the rest is how it was spread."""
GOALS = {"kills": 1000, "damaged files": 5000, "disk-full points": 200, "changed inputs": 500}


def commit() -> str:
    """The commit that is tried, with a mark where files differ from it."""

    def told(*words: str) -> str:
        return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True).stdout.strip()

    return told("rev-parse", "--short", "HEAD") + (
        "+changes" if told("status", "--porcelain", "--", "engine", "console") else ""
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--share", type=float, default=1.0, help="of the trials (default 1, about an hour on two cores)"
    )
    parser.add_argument("--only", action="append", choices=[each.name for each in CAMPAIGNS], help="may be repeated")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--first", type=int, default=0, help="number of the first trial, to repeat one")
    parser.add_argument("--trials", type=int, help="so many of each campaign instead of its share")
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no trial after so long")
    parser.add_argument("--records", type=int, default=900, help="of the large collections")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument(
        "--json", type=Path, metavar="PATH", help="keep the result here (a whole campaign: bench/results)"
    )
    options = parser.parse_args()
    print(f"seed {options.seed}, share {options.share}, commit {commit()}", flush=True)
    no_core_files()
    warm()
    chosen = [each for each in CAMPAIGNS if not options.only or each.name in options.only]
    began = time.monotonic()
    with scratch() as place:
        counts = {each.name: options.trials or max(1, round(each.trials * options.share)) for each in chosen}
        until = began + options.minutes * 60
        work = dealt(chosen, counts, options.first)
        tallies = many(chosen, work, build(place, options.records), options.seed, options.jobs, until)
    result = result_of(tallies, chosen, options, time.monotonic() - began)
    print(json.dumps(result, indent=1))
    if path := options.json or (RESULT if options.share == 1 and not options.only and not options.trials else None):
        evidence.keep(result, path, SOURCES)
    sys.exit(bool(result["failures"]))


if __name__ == "__main__":
    main()
