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

from interlock.engine.errors import ExitCode
from interlock.engine.record import events as ev
from interlock.engine.record import journal
from interlock.engine.record.facts import Memory, Readings, Receipt, Tenant
from interlock.engine.record.journal import Acknowledged, Upload, UploadBinding
from interlock.engine.record.rundir import NO_WORD
from interlock.engine.standing.judgement import left_behind
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

EMPTY = Memory(allocated=0, reserved=2 * MIB, occupied=302 * MIB)
"""A GPU on which this process has a context and nothing else."""


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


def taken(run: Recorded, look: "Look") -> "App[Any]":
    """The console on a run one of whose devices others use."""
    first, others = run.snapshot().devices[0], 2 * GIB
    assert first.memory
    used = first.memory.occupied + others
    event = ev.MemoryTaken(
        device=first.facts.name, others_bytes=others, free_bytes=first.facts.total_bytes - used,
        needed_bytes=740 * MIB, holders=(Tenant(4711, "python", others, "kim"),),
    )  # fmt: skip
    return told(event, others=others, used=used, holders=event.holders)(run, look)


def disk(run: Recorded, look: "Look") -> "App[Any]":
    """The console on a run whose disk is nearly full."""
    place, free = str(run.snapshot().config["out"].value), 412 * MIB
    return told(ev.DiskLow(place=place, free_bytes=free), disk_free=free)(run, look)


def memory(run: Recorded, look: "Look") -> "App[Any]":
    """The console on a run whose host has hardly any memory left."""
    free, most = 187 * MIB, (Tenant(3310, "java", 11 * GIB, "kim"),)
    return told(ev.MemoryLow(free_bytes=free, holders=most), memory_free=free, memory_holders=most)(run, look)


def late(run: Recorded, look: "Look") -> "App[Any]":
    """The console on a run whose deadline comes before its end."""
    seconds = 40.0
    ends = run.snapshot().latest_at + seconds
    return told(ev.DeadlineSet(asked="3min", seconds=seconds, ends=ends, partial=False))(run, look)


def granted(run: Recorded, lease: str, *devices: str) -> ev.LeaseGranted:
    """A lease of what the first pass has left, on these devices."""
    first = run.snapshot().passes[0]
    left = first.batches - first.batches_done
    return ev.LeaseGranted(
        lease=lease, model_pass=0, model=first.model, devices=[*devices], device_kind=run.snapshot().device_kind,
        budget_bytes=2_700 * MIB, predicted_bytes=2_600 * MIB, schedule="exclusive", batches=left, rows=16 * left,
    )  # fmt: skip


def on_the_cpu(run: Recorded, look: "Look") -> "App[Any]":
    """The console on a run no GPU has room for whose first model; earlier runs tell how fast the others are."""
    while not isinstance(run.coming[0], ev.LeaseGranted):
        run.step()
    first = run.snapshot().passes[0].model
    run.recorder.look(lambda state: state.paces.update(dict.fromkeys((entry.model for entry in state.roster), 9e3)))
    lack = "needs 3.1 GiB, 2.6 GiB left of --ceiling 3.0 GiB after 300.0 MiB of context and margin"
    step = ev.Mitigated(
        model_pass=0, rung="cpu", device="cuda:0, cuda:1", rows=976, cause=f"{first} fits on no GPU ({lack})",
        action="computing all of it on the CPU; raise --ceiling to 3.5GiB or more", stays=True,
        flags=("--ceiling", "3.5GiB"),
    )  # fmt: skip
    attached = ev.ModelAttached(lease="L001", model=first, bytes=1_275 * MIB, seconds=3.0, device="cpu")
    batches = [body for body in run.coming if isinstance(body, ev.BatchCommitted)]
    for event in (step, granted(run, "L001", "cpu"), attached):
        run.recorder.emit(event)
    for body in batches[:6]:
        run.wait(4.0)
        for device in run.snapshot().devices:
            run.recorder.emit(ev.DeviceSampled(device=device.facts.name, memory=EMPTY))
        run.recorder.emit(replace(body, device="cpu", seconds=4.0, dtype="float32", parts=[]))
    return console(run, look)


def watched(run: Recorded, look: "Look", **changes: Any) -> "App[Any]":
    """A watch of the run."""
    source = copy(run)
    source.kind = "watch"
    for name, value in changes.items():
        setattr(source, name, value)
    return console(source, look)


def died(run: Recorded, look: "Look") -> "App[Any]":
    """A watch of a run whose process is gone."""
    seen = left_behind(run.snapshot(), NO_WORD)
    return watched(run, look, snapshot=lambda: seen, controls=None, note=NO_WORD)


def waiting(run: Recorded, look: "Look") -> "App[Any]":
    """A watch of a run whose upload waits for a server that does not answer."""
    now = run.snapshot().latest_at
    asked = Acknowledged(
        rows=1_280, at=now - 2, waits="503 Service Unavailable", since=now - 95, attempts=7, until=now + 205
    )
    return watched(run, look, upload=Upload(HERE, SERVER, asked, True))


def resumed(run: Recorded, look: "Look") -> "App[Any]":
    """The console on a run that was left and goes on: its models are found and attached once more."""
    run.close()
    before = [entry.body for entry in journal.read(run.directory.journal)]
    vars(run).update(vars(Recorded(run.directory)))
    attached = [replace(each, lease="L002", warm=True) for each in before if isinstance(each, ev.ModelAttached)]
    found = [each for each in before if isinstance(each, ev.ModelResolved)]
    again: list[ev.AnyEvent] = [*found, granted(run, "L002", "cuda:0", "cuda:1"), *attached]
    for event in again:
        run.recorder.emit(event)
    run.play_to(CALM + 0.04)
    return console(run, look)


def stopped(run: Recorded, look: "Look") -> "App[Any]":
    """A watch of a run that its operator stopped: it gives up its devices first."""
    assert run.controls
    lease = next(each for each in run.snapshot().leases if each.held)
    receipts = list[Receipt]()
    for device in run.snapshot().devices:
        assert device.memory
        receipts.append(
            Receipt(device=device.facts.name, before=EMPTY, peak=device.memory, after=EMPTY, residue_bytes=0)
        )
        run.recorder.emit(ev.DeviceSampled(device=device.facts.name, memory=EMPTY))
    run.recorder.emit(ev.LeaseReleased(lease.lease, lease.model_pass, lease.model, 33.0, receipts))
    run.controls.stop(ExitCode.STOPPED, "kim@gpu-1 (pid 4711)")
    run.code = run.go()
    return watched(run, look)


SITUATIONS = (
    Shot("well", CALM),
    Shot("taken", CALM, make=taken),
    Shot("card-lost", CALM, make=told(ev.DeviceLost(device="cuda:1", reason="CUDA error: uncorrectable ECC error"))),
    Shot("parked", CALM, make=told(PARKED)),
    Shot("disk", CALM, make=disk),
    Shot("memory", CALM, make=memory),
    Shot("node-lost", 0.33, run="nodes"),
    Shot("server", 1.0, make=waiting),
    Shot("deadline", CALM, make=late),
    Shot("paused", CALM, heeded=("pause", "yes")),
    Shot("cpu", 0.0, make=on_the_cpu),
    Shot("shared", 0.56),
    Shot("ended-parked", 1.0, make=watched),
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
