"""How well a run foretells its end: what the console says at a tenth, a quarter, half, three quarters and nine tenths
of its time, against what then came.

Runs of every schedule are made and measured (`eta_runs.py`), or those whose directories are given. Time is counted from
the first lease of the last session to its last batch. A percent that falls though no work was added is a fault.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import eta_runs, evidence, machine
from interlock.engine.record import events as ev
from interlock.engine.record import journal
from interlock.engine.record.fold import fold
from interlock.engine.record.snapshot import snapshot
from interlock.engine.record.state import RunState
from interlock.engine.standing.outlook import Outlook, time_left

SOURCES = (
    "engine/standing/outlook.py", "engine/record/state.py", "engine/record/fold.py", "engine/record/snapshot.py",
    "engine/compute/schedule.py", "engine/compute/executor.py", "engine/models/networks/sizes.py",
    "engine/flows/rehearsal.py", "engine/flows/weightless.py", "bench/eta_runs.py",
)  # fmt: skip
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
"""Of a run's time: when it is looked at."""
HELD = 0.8
"""Share of what came that should lie within what was said."""
ADDS_WORK = ev.RosterResolved | ev.PassPlanned | ev.RowsReused | ev.BatchesLost | ev.ParkedRetried


@dataclass(frozen=True)
class Said:
    """What was said with `left` seconds to go of a `whole`; None for nothing."""

    left: float
    whole: float
    said: Outlook | None

    @property
    def error(self) -> float:
        """Of what was said to be left, as a share of what was."""
        return (self.said.seconds - self.left) / self.left if self.said else 0.0

    @property
    def held(self) -> bool:
        return bool(self.said) and abs(self.error) * self.left <= self.said.spread


def foretold(run: Path) -> tuple[list[Said], int]:
    """What was said at each of SHARES of a finished run's last session; and how often its percent fell for nothing."""
    entries = list(journal.read(run / "journal.jsonl"))
    mine = [each for each in entries if each.session == entries[-1].session]
    began = next((each.elapsed for each in mine if isinstance(each.body, ev.LeaseGranted)), 0.0)
    ended = max((each.elapsed for each in mine if isinstance(each.body, ev.BatchCommitted)), default=0.0)
    if ended <= began:
        raise SystemExit(f"{run} has no batches to foretell")
    state, found, falls, share = RunState(), list[Said](), 0, 0.0
    due = [began + each * (ended - began) for each in SHARES]
    for entry in entries:
        while due and entry.session == entries[-1].session and entry.elapsed > due[0]:
            found.append(Said(ended - due.pop(0), ended - began, time_left(snapshot(state, 0))))
        fold(state, entry)
        now = snapshot(state, 0).share_done
        falls += now < share and not isinstance(entry.body, ADDS_WORK)
        share = now
    return found, falls


def summed(said: Sequence[Said]) -> dict[str, Any]:
    """How far off what was said is, how often nothing was said, and how often what came lay within what was said."""
    told = [each for each in said if each.said]
    return {
        "moments": len(said),
        "silent": len(said) - len(told),
        "median": round(median([abs(each.error) for each in told] or [0.0]), 4),
        "median_of_whole": round(median([abs(each.error) * each.left / each.whole for each in told] or [0.0]), 4),
        "bias": round(median([each.error for each in told] or [0.0]), 4),
        "held": round(mean([each.held for each in told] or [0.0]), 4),
        "spread": round(median([each.said.spread / each.left for each in told if each.said] or [0.0]), 4),
    }


def made(options: argparse.Namespace, out: Path) -> Iterator[tuple[str, str, Path]]:
    for kind, run in eta_runs.simulated(options.simulated, options.first, out):
        yield "simulated", kind, run
    for kind, run in eta_runs.real(options.real, options.first, out, options.texts) if options.real else ():
        yield "real", kind, run


def measure(options: argparse.Namespace) -> dict[str, Any]:
    about, falls, runs = machine.describe(), 0, []
    by_kind: dict[tuple[str, str], list[Said]] = {}
    with nullcontext(options.out) if options.out else tempfile.TemporaryDirectory() as out:
        given = [("given", run.name, run) for run in options.runs]
        for made_as, kind, run in given or made(options, Path(out)):
            said, fell = foretold(run)
            falls += fell
            by_kind.setdefault((made_as, kind), []).extend(said)
            runs.append({"made": made_as, "kind": kind, "seconds": round(said[0].whole, 1), "load": machine.load()[0]})
            print(f"{made_as} {kind}: {said[0].whole:.0f} s, {summed(said)}", flush=True)
    ways = {way for way, _ in by_kind}
    groups = [{"made": way, "kind": kind, **summed(said)} for (way, kind), said in by_kind.items()]
    for way in sorted(ways, reverse=True):
        said = [each for (made_as, _), group in by_kind.items() if made_as == way for each in group]
        groups.append({"made": way, "kind": "all", **summed(said)})
    goals = {
        f"{group['made']} runs: what came lies within what was said": machine.goal(group["held"], HELD)
        for group in groups if group["kind"] == "all"
    } | {"times that a percent fell though no work was added": machine.goal(falls, 0, at_most=True)}  # fmt: skip
    return {"machine": about, "runs": runs, "groups": groups, "goals": goals, "load_after": machine.load()}


def show(result: dict[str, Any]) -> None:
    heads = ["runs", "kind", "moments", "silent", "median error %", "of the whole %", "bias %", "held %", "band %"]
    machine.table(
        heads,
        [
            [each["made"], each["kind"], each["moments"], each["silent"]]
            + [100 * each[name] for name in ("median", "median_of_whole", "bias", "held", "spread")]
            for each in result["groups"]
        ],
    )
    machine.goals(result["goals"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="directories of finished runs")
    parser.add_argument("--simulated", type=int, default=240, metavar="N", help="runs on simulated GPUs")
    parser.add_argument("--real", type=int, default=20, metavar="N", help="runs of random models on this machine's CPU")
    parser.add_argument("--texts", type=int, default=600, metavar="N", help="texts of a real run, at most")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the first run; the next has the next")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where runs stay, and are not made again")
    machine.quick(parser, simulated=1, real=1, texts=20)
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
