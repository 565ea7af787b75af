"""A recorded rehearsal that is told again: what the engine once wrote (`tools/record.py`), through a real recorder.

It is a run for a session, and a source for screens that is moved by hand. What is asked for is heeded at the next step
by the engine's own rules, but what follows in the recording stays as it was. No model is loaded, nothing is computed.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from interlock.console.control.protocol import Foreseen, foreseen
from interlock.engine.compute.controls import PAUSE_SECONDS, STOP, Controls
from interlock.engine.compute.schedule import DeviceRoom, MemoryNeed, Placement, Schedule, next_placement
from interlock.engine.errors import ExitCode
from interlock.engine.record import events as ev
from interlock.engine.record import journal, summary
from interlock.engine.record.events import Entry
from interlock.engine.record.recorder import Recorder
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.record.snapshot import PassCells, Snapshot, cells_of

RECORDED = Path(__file__).parent / "recorded"
BEGAN = 1_788_249_600.0
"""When the run of two devices began: 2026-09-01 08:00:00 UTC."""
HOME = "/home/operator"


class Recorded:
    """One recorded run, told into a directory of its own; one that was left is gone on with where it was."""

    kind, begun = "live", 1
    note = ""
    unsteered = "--readonly: controls are off"
    past = False
    upload = None

    def __init__(
        self,
        directory: RunDirectory,
        controls: Controls | None = None,
        *,
        name: str = "two-devices",
        speed: float = math.inf,
    ) -> None:
        self.directory = directory
        self.controls: Controls | None = controls or Controls()
        self.code: ExitCode | None = None
        self._box, self._speed = self.controls, speed
        entries = list(journal.read(RECORDED / f"{name}.jsonl"))
        self._journal = journal.Journal(directory.journal)
        self._at, self._seconds = entries[0].at, 0.0
        self.recorder = Recorder(
            self._journal, "sim", clock=lambda: self._seconds, wall=lambda: self._at + self._seconds
        )
        self._left = deque(entries[self.recorder.first :])
        self._before = self._left[0].elapsed
        self._at = self._left[0].at
        bodies = [entry.body for entry in entries]
        self._leases = {each.model: each for each in bodies if isinstance(each, ev.LeaseGranted) and each.batches > 1}
        self._box.attend(self, self.recorder.emit)
        if self.recorder.first:
            began = self.recorder.look(lambda state: state.started)
            assert began
            self.recorder.emit(
                ev.RunResumed(
                    versions=began.versions,
                    chunks=began.chunks,
                    config=began.config,
                    environment=began.environment,
                )
            )

    @property
    def over(self) -> bool:
        """Whether it was told to its end."""
        return self.code is not None

    def snapshot(self) -> Snapshot:
        """The run at this moment."""
        return self.recorder.snapshot()

    def cells(self, model_pass: int) -> PassCells:
        """What is known of the batches of a pass."""
        return self.recorder.look(lambda state: cells_of(state, model_pass))

    def mitigations(self) -> list[Entry]:
        """What tells of them, of all sessions."""
        return self.recorder.look(lambda state: list(state.mitigations))

    def entries(self, after: int) -> tuple[list[Entry], int]:
        """Those with a `seq` above `after`, and how many before them were dropped."""
        return self.recorder.drain(max(after, self.recorder.first - 1))

    def foresee(self, schedule: Schedule) -> Foreseen:
        """What another schedule would lease next."""
        return foreseen(self._box.preview(schedule), unaffected=False)

    def told(self) -> str:
        """Nothing: what is asked here is answered at once."""
        return ""

    def go(self) -> ExitCode:
        """Let it happen at its speed; how it ended."""
        while self.code is None:
            time.sleep((self._left[0].elapsed - self._before - self._seconds) / self._speed)
            self.step()
            while self._box.paused and not self._box.stop_requested:
                time.sleep(PAUSE_SECONDS)
                self._box.settle(self.recorder.emit)
        return self.code

    def play_until(self, there: Callable[[Snapshot], bool]) -> Snapshot:
        """Skip to the first moment at which `there` is so, or to the end."""
        while not there(seen := self.snapshot()) and self.code is None:
            self.step()
        return seen if self.code is None else self.snapshot()

    def play_to(self, share: float) -> Snapshot:
        """Skip to where this share of all work is done; 1 is the end."""
        while self.code is None and (share >= 1 or self.snapshot().share_done < share):
            while not isinstance(self.step(), ev.BatchCommitted) and self.code is None:
                pass
        return self.snapshot()

    @property
    def coming(self) -> list[ev.AnyEvent]:
        """What the recording has left."""
        return [entry.body for entry in self._left]

    def wait(self, seconds: float) -> None:
        """Let time go on, in which nothing of the recording happens."""
        self._seconds += seconds

    def close(self) -> None:
        """Leave it where it is."""
        if self.code is None:
            self._journal.close()

    def step(self) -> ev.AnyEvent:
        """One entry of the recording, or the end that was asked for; what it told."""
        entry = self._left.popleft()
        self._seconds = max(self._seconds, entry.elapsed - self._before)
        self._box.settle(self.recorder.emit)
        body = entry.body
        if self._box.stop_requested:
            code = self._box.code or ExitCode.STOPPED
            asked = self.recorder.look(lambda state: [each.who for each in state.controls if each.control == STOP])
            why = f"stopped by {next(reversed(asked), 'the operator')} between batches: --resume continues"
            body = ev.RunClosed(status="stopped", reason=why, exit_code=code)
        if isinstance(body, ev.RunStarted):
            body = replace(body, run_id=self.directory.id)
        if isinstance(body, ev.RunClosed):
            self._box.end(self.recorder.emit)
        self.recorder.emit(body)
        if isinstance(body, ev.RunClosed):
            summary.write(self.recorder.look(summary.summarise), self.directory.summary)
            self._journal.close()
            self.code = ExitCode(body.exit_code)
        return body

    def unaffected_by(self, schedule: Schedule) -> bool:
        """Never: what follows in the recording stays as it was."""
        return False

    def preview(self, schedule: Schedule) -> Placement | None:
        """What the engine would lease next, by its own rule and what leases took in the recording."""
        from interlock.engine.flows.weightless import HOST_ROOM

        seen = self.snapshot()
        left = [sorted(set(range(each.batches)) - set(each.cells)) for each in seen.passes]
        sizes = [(each.model, self._leases[each.model].predicted_bytes) for each in seen.passes]
        needs = [MemoryNeed(key, whole=size, streamed=size // 2, host=2 * size) for key, size in sizes]
        room = next(iter(self._leases.values())).budget_bytes
        healthy = [device.facts.name for device in seen.devices if not device.lost]
        places = [*(DeviceRoom(name, "sim", room) for name in healthy), DeviceRoom("cpu", "cpu", HOST_ROOM)]
        return next_placement(schedule, left, needs, places, 0, None, cpu_fallback=seen.cpu_fallback)
