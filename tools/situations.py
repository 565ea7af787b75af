"""What an operator may find a run in, each rehearsed, for pictures of it at every size.

`python -m tools.situations [NAME ...]` writes them as plain text, without colour, as a terminal shows them.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from interlock.console.text.recap import resuming
from interlock.engine.errors import ExitCode
from interlock.engine.record import events as ev
from interlock.engine.record.facts import Readings, Tenant
from interlock.engine.record.inputs import resume_words
from interlock.engine.record.journal import Acknowledged, Upload, UploadBinding
from interlock.engine.record.judgement import left_behind
from interlock.engine.record.rundir import NO_WORD
from interlock.engine.record.words import command
from tools.recorded import Recorded
from tools.screenshots import RUN, Shot, console, shown, steady

if TYPE_CHECKING:
    from textual.app import App

    from interlock.console.look import Look

SIZES = ((80, 24), (120, 40), (200, 60))
CALM = 0.24
"""The share of the work at which nothing is wrong in the recording."""
MIB, GIB = 1 << 20, 1 << 30
HERE = Path("runs", RUN)
SERVER = UploadBinding("http://vectors.example:6333", "handbook", "0" * 64, 2_096, flags=())
PARKED = ev.RowParked(
    model_pass=0, model="sim-bge-m3", row=77, reason="its vector is not finite", collection="Sim-Handbook",
    file="Handbook/part-0007_chunks.json", record=1284, chunk_id="f3b1c2d4-5e6f",
)  # fmt: skip
TAKEN = ev.MemoryTaken(
    device="cuda:0", others_bytes=2 * GIB, free_bytes=210 * MIB, needed_bytes=740 * MIB,
    holders=(Tenant(4711, "python", 2 * GIB, "kim"),),
)  # fmt: skip


def told(*events: ev.AnyEvent, **readings: Any) -> Callable[[Recorded, "Look"], "App[Any]"]:
    """The console on the run, once these events have happened, and its first device has told such `readings`."""

    def make(run: Recorded, look: "Look") -> "App[Any]":
        first = run.snapshot().devices[0]
        assert first.memory
        if readings:
            known = replace(first.readings or Readings(used=0, total=first.facts.total_bytes), **readings)
            run.recorder.emit(ev.DeviceSampled(device=first.facts.name, memory=first.memory, readings=known))
        for event in events:
            run.recorder.emit(event)
        return console(run, look)

    return make


def late(run: Recorded, look: "Look") -> "App[Any]":
    """The console on a run whose deadline comes before its end."""
    seconds = 40.0
    ends = run.snapshot().latest_at + seconds
    return told(ev.DeadlineSet(asked="3min", seconds=seconds, ends=ends, partial=False))(run, look)


def granted(run: Recorded, *devices: str) -> ev.LeaseGranted:
    """A lease of what the first pass has left, on these devices."""
    first = run.snapshot().passes[0]
    left = first.batches - first.batches_done
    return ev.LeaseGranted(
        lease="L002", model_pass=0, model=first.model, devices=[*devices], device_kind=run.snapshot().device_kind,
        budget_bytes=9 * GIB, predicted_bytes=3 * GIB, schedule="exclusive", batches=left, rows=30 * left,
    )  # fmt: skip


def on_the_cpu(run: Recorded, look: "Look") -> "App[Any]":
    """The console on a run one of whose models no GPU has room for."""
    lease = next(each for each in run.snapshot().leases if each.held)
    released = ev.LeaseReleased(lease=lease.lease, model_pass=0, model=lease.model, held_seconds=33.0, receipts=[])
    step = ev.Mitigated(
        model_pass=0, rung="cpu", device="cuda:0,cuda:1", rows=900,
        cause="no GPU has the 2.9 GiB that its weights need", action="raise --ceiling to have it on a GPU",
    )  # fmt: skip
    return told(released, step, granted(run, "cpu"))(run, look)


def watched(run: Recorded, look: "Look", **changes: Any) -> "App[Any]":
    """A watch of the run."""
    source = copy(run)
    source.kind = "watch"
    for name, value in changes.items():
        setattr(source, name, value)
    return console(source, look)


def died(run: Recorded, look: "Look") -> "App[Any]":
    """A watch of a run whose process is gone."""
    begun = run.snapshot()
    words = resume_words(begun.chunks, HERE, begun.config)
    seen = left_behind(begun, f"{NO_WORD}; continue it with {command(words)}")
    return watched(run, look, snapshot=lambda: seen, controls=None)


def over(run: Recorded, look: "Look") -> "App[Any]":
    """A watch of a run that has ended, which says how to go on."""
    return watched(run, look, note=f"continue it with {resuming(run.snapshot(), HERE)}")


def waiting(run: Recorded, look: "Look") -> "App[Any]":
    """A watch of a run whose upload waits for a server that does not answer."""
    now = run.snapshot().latest_at
    asked = Acknowledged(
        rows=1_280, at=now - 2, waits="503 Service Unavailable", since=now - 95, attempts=7, until=now + 205
    )
    return watched(run, look, upload=Upload(HERE, SERVER, asked, True))


def resumed(run: Recorded, look: "Look") -> "App[Any]":
    """The console on a run that was left and goes on."""
    run.close()
    vars(run).update(vars(Recorded(run.directory)))
    run.play_to(CALM + 0.02)
    return told(granted(run, "cuda:0", "cuda:1"))(run, look)


def stopped(run: Recorded, look: "Look") -> "App[Any]":
    """A watch of a run that its operator stopped."""
    assert run.controls
    run.controls.stop(ExitCode.STOPPED)
    run.code = run.go()
    return over(run, look)


SITUATIONS = (
    Shot("well", CALM),
    Shot("taken", CALM, make=told(TAKEN, others=2 * GIB, used=3_500 * MIB, holders=TAKEN.holders)),
    Shot("card-lost", CALM, make=told(ev.DeviceLost(device="cuda:1", reason="CUDA error: uncorrectable ECC error"))),
    Shot("parked", CALM, make=told(PARKED)),
    Shot("disk", CALM, make=told(ev.DiskLow(place="runs", free_bytes=412 * MIB), disk_free=412 * MIB)),
    Shot("memory", CALM, make=told(ev.MemoryLow(free_bytes=187 * MIB), memory_free=187 * MIB)),
    Shot("node-lost", 0.33, run="nodes"),
    Shot("server", 1.0, make=waiting),
    Shot("deadline", CALM, make=late),
    Shot("paused", CALM, heeded=("pause", "yes")),
    Shot("cpu", CALM, make=on_the_cpu),
    Shot("shared", 0.56),
    Shot("ended-parked", 1.0, make=over),
    Shot("died", CALM, make=died),
    Shot("stopped", CALM, make=stopped),
    Shot("resumed", CALM, make=resumed),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write situations; an exit code."""
    parser = argparse.ArgumentParser("tools.situations", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*(shot.name for shot in SITUATIONS), []], metavar="NAME")
    parser.add_argument("--size", type=lambda text: tuple(map(int, text.split("x"))), action="append", metavar="80x24")
    options = parser.parse_args(arguments)
    with steady():
        for shot in SITUATIONS:
            for size in (options.size or SIZES) if shot.name in (options.names or [shot.name]) else ():
                print(f"== {shot.name} {size[0]}x{size[1]}\n{shown(shot, size)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
