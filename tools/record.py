"""Record the runs that pictures and tests show: `python -m tools.record [NAME ...]` rehearses them anew.

A journal is kept as the engine wrote it, but for the time of day, what it tells of this machine, and two of three looks
at a device. Seconds are those of the rehearsal, so no two recordings are the same. Nodes are threads of this process.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import msgspec

from interlock.engine.compute.cluster.node import ClusterNode
from interlock.engine.compute.controls import Controls
from interlock.engine.flows import rehearsal
from interlock.engine.record import events as ev
from interlock.engine.record import journal
from interlock.engine.settings import load
from tests.threads import Threads
from tools.recorded import BEGAN, HOME, RECORDED

THIRD = 3


@dataclass(frozen=True)
class Take:
    """A run to record: its flags, when it began, and what is asked for at which share of the work."""

    began: float
    flags: Mapping[str, str]
    asked: Sequence[tuple[float, str, str]] = ()
    speed: float = 1.0
    machines: Sequence[str] = ()
    """Of a cluster; what is asked by the name of KILL is that one of them is gone."""


KILL = "kill"
TAKES = {
    "two-devices": Take(BEGAN, {}, [(0.48, "schedule", "shared"), (0.6, "schedule", "exclusive")]),
    "eight-devices": Take(
        BEGAN - 51_300,
        {"devices": "sim:8x4GiB", "faults": "oom@3:150,oom@5:200,other@5:2680MiB:200:260,leak@0:46MiB,lose@6:215"},
        speed=2.0,
    ),
    "nodes": Take(
        BEGAN - 100_000,
        {"devices": "sim:2x4GiB", "faults": "oom@0:9", "cluster": "local:6"},
        [(0.3, KILL, "ws-3")],
        speed=4.0,
        machines=[f"ws-{number}" for number in range(1, 7)],
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the runs; an exit code."""
    parser = argparse.ArgumentParser("tools.record", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*TAKES, []], metavar="NAME", help="only these runs")
    for name in parser.parse_args(arguments).names or TAKES:
        with tempfile.TemporaryDirectory() as scratch:
            lines = taken(TAKES[name], Path(scratch))
        RECORDED.mkdir(exist_ok=True)
        (RECORDED / f"{name}.jsonl").write_bytes(b"".join(lines))
        print(f"{name}: {len(lines)} entries, {sum(map(len, lines)):,} bytes")
    return 0


def taken(take: Take, scratch: Path) -> list[bytes]:
    """Rehearse, ask for what is to be asked for, and give the journal's lines. Raises what the run raises."""
    controls, asked = Controls(), list(take.asked)
    run_id = time.strftime("%Y%m%d-%H%M%S", time.gmtime(take.began))
    flags = {**take.flags, "out": str(scratch), "run_id": run_id, "threads": "1"}
    threads = Threads(lambda _: ClusterNode(rehearsal.backend(scratch, take.speed)), [*take.machines])
    run = rehearsal.run(load(flags, {}), controls, take.speed, lambda *_: threads)
    with ThreadPoolExecutor(1) as pool:
        engine = pool.submit(run.go)
        while not engine.done():
            wait([engine], 0.2)
            if asked and run.recorder.snapshot().share_done >= asked[0][0]:
                _, control, value = asked.pop(0)
                threads.kill(value, gone=True) if control == KILL else controls.ask(control, value, "operator")
        engine.result()
    text = run.directory.journal.read_bytes().replace(str(scratch).encode(), HOME.encode())
    entries = (msgspec.json.decode(line, type=ev.Entry) for line in text.splitlines())
    kept = filter(_counts, entries)
    return [journal.encode(_elsewhere(entry, seq, take.began)) for seq, entry in enumerate(kept)]


def _counts(entry: ev.Entry) -> bool:
    """A device is looked at every second, and every third is enough here."""
    return not isinstance(entry.body, ev.DeviceSampled) or round(entry.elapsed) % THIRD == 0


def _elsewhere(entry: ev.Entry, seq: int, began: float) -> ev.Entry:
    """An entry as another machine would have written it at another time."""
    body = entry.body
    if isinstance(body, ev.RunStarted):
        body = msgspec.structs.replace(body, environment={"processor": "recorded", "cores": "2"})
    return msgspec.structs.replace(entry, seq=seq, at=round(began + entry.elapsed, 3), body=body)


if __name__ == "__main__":
    sys.exit(main())
