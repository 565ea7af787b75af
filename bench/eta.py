"""How well a run foretells its end: what the console would have said after every batch, against what then happened.

Runs of unlike models, in both orders, first on a machine that never ran them and then on one that has; and any run
whose directory is given. After every committed batch the whole duration is foretold: what has passed and what is said
to be left. Its error is the share by which that is off the real one, looked at after the first tenth of the time.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import corpora, evidence, machine
from interlock.engine.record import journal
from interlock.engine.record.events import BatchCommitted, LeaseGranted
from interlock.engine.record.fold import fold
from interlock.engine.record.health import Outlook, time_left
from interlock.engine.record.snapshot import snapshot
from interlock.engine.record.state import RunState

SOURCES = ("engine/record/health.py", "engine/record/runs.py", "engine/record/snapshot.py", "engine/models/layout.py")
MOST = 0.25
FIRST = 0.1
"""Share of a run's time after which its end has to be known."""
ROSTERS = ("all-minilm-l6,all-mpnet-base-v2", "all-mpnet-base-v2,all-minilm-l6")


@dataclass(frozen=True)
class Said:
    """After a batch: the share of the run's time that has passed, the error of the whole duration that is foretold, and
    the share of it by which it was said to be off at most; None where nothing was said."""

    passed: float
    error: float | None
    spread: float = 0.0


def foretold(run: Path) -> list[Said]:
    """What was said after each batch of a finished run, from its first lease to its last batch."""
    state, moments = RunState(), list[tuple[float, Outlook | None]]()
    began = None
    for entry in journal.read(run / "journal.jsonl"):
        fold(state, entry)
        if isinstance(entry.body, LeaseGranted) and began is None:
            began = entry.at
        if isinstance(entry.body, BatchCommitted):
            moments.append((entry.at, time_left(snapshot(state, entry.seq))))
    if began is None or len(moments) < 2:
        raise SystemExit(f"{run} has no batches to foretell")
    whole = moments[-1][0] - began
    # The last batch has nothing left, so nothing is said after it.
    return [_said((at - began) / whole, left, whole) for at, left in moments[:-1]]


def _said(passed: float, left: Outlook | None, whole: float) -> Said:
    return Said(passed, passed + left.seconds / whole - 1, left.spread / whole) if left else Said(passed, None)


def runs(rosters: Sequence[str], texts: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Each roster twice, in one `--out`: the second run knows the paces of the first."""
    with tempfile.TemporaryDirectory() as made:
        corpora.write_chunks(Path(made) / "in", list(texts), 100)
        for number, roster in enumerate(rosters):
            out = Path(made) / f"runs{number}"
            for name in ("first run", "second run"):
                words = ["--roster", roster, "--out", out, "--run-id", name.replace(" ", "-"), "--threads", 1]
                command = [
                    sys.executable,
                    "-m",
                    "interlock",
                    "run",
                    Path(made) / "in",
                    *words,
                    "--quiet",
                    "--export",
                    "",
                ]
                subprocess.run([str(word) for word in command], check=True, env={**os.environ, **machine.SINGLE_THREAD})
                yield f"{roster}, {name}", out / name.replace(" ", "-")


def summed(said: Sequence[Said]) -> dict[str, Any]:
    """Errors after the first tenth, how often nothing was said, and how often the end lay within what was said."""
    late = [each for each in said if each.passed >= FIRST]
    errors = [each.error for each in late if each.error is not None]
    return {
        "moments": len(late),
        "silent": len(late) - len(errors),
        "median": round(median(map(abs, errors)), 4),
        "worst": round(max(errors, key=abs), 4),
        "within": round(mean(each.error is not None and abs(each.error) <= each.spread for each in late), 4),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    about = machine.describe()
    given = [(run.name, run) for run in options.runs]
    texts = corpora.sample(corpora.texts_of(None, few=True), options.texts, 200) if not given else []
    found = []
    for name, run in given or runs(options.rosters, texts):
        found.append({"run": name, **summed(foretold(run))})
        print(f"{name}: worst {found[-1]['worst']:+.1%}, load {machine.load()[0]}", flush=True)
    worst = max(abs(each["worst"]) for each in found)
    silent = sum(each["silent"] for each in found)
    goals = {
        "worst error of the whole duration after its first tenth": machine.goal(worst, MOST, at_most=True),
        "moments after it without a word": machine.goal(silent, 0, at_most=True),
    }
    return {"machine": about, "texts": len(texts), "runs": found, "goals": goals, "load_after": machine.load()}


def show(result: dict[str, Any]) -> None:
    heads = ["run", "moments", "silent", "median error %", "worst %", "end within what was said %"]
    rows = [
        [each["run"], each["moments"], each["silent"], 100 * each["median"], 100 * each["worst"], 100 * each["within"]]
        for each in result["runs"]
    ]
    machine.table(heads, rows)
    machine.goals(result["goals"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="directories of finished runs")
    parser.add_argument("--texts", type=int, default=300)
    parser.add_argument("--rosters", nargs="+", default=ROSTERS)
    machine.quick(parser, texts=40, rosters=["all-minilm-l6"])
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
