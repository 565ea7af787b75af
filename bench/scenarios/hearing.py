"""Who listens to the rounds of a plan: takes their events, folds them, and asks for what the plan asks for.

Beside the events it sees every forward, and so knows which failures nobody told, and which were not let go of.
"""

import threading
import weakref
from collections.abc import Sequence

import numpy as np
from torch import nn

from interlock.engine.compute.controls import Controls
from interlock.engine.compute.encoder import Encoder, Ids, encoder_for
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.errors import ExitCode
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.device_errors import Trouble, classify
from interlock.engine.models.card import ModelCard
from interlock.engine.record import events as ev
from tests.harness import Told


class Hearing(Told):
    """Told of each event, from any worker's thread."""

    def __init__(self, asked: Sequence[tuple[int, str, str]] = (), stop: int = 0, overflows: int = 0) -> None:
        """Rows of `overflows` tokens are not finite in a half precision."""
        super().__init__()
        self._overflows = overflows
        self.controls = Controls()
        self.untold: list[str] = []
        """Batches with more failed forwards than mitigations and parked rows."""
        self.kept: list[str] = []
        """Forwards that began while a failed one still held its tensors, or before its device was cleared."""
        self._asked = sorted(asked)
        self._stop = stop
        self._committed = 0
        self._own = _Account()

    def told(self, event: ev.AnyEvent) -> None:
        self._settle(event)
        if isinstance(event, ev.BatchCommitted):
            self._committed += 1
            self._ask()

    def encoders(self, card: ModelCard, network: nn.Module, device: Device) -> Encoder:
        """The engine's encoders, within earshot."""
        spoilt = 0 if card.dtype == "float32" else self._overflows
        return _Heard(encoder_for(card, network, device), device, self._own, self.kept, spoilt, card.dim)

    def _settle(self, event: ev.AnyEvent) -> None:
        """Failures are told by the thread that they happened to, at the latest with the batch."""
        own = self._own
        match event:
            case ev.Mitigated(batch_index=int()) | ev.RowParked():
                own.told += 1
            case ev.BatchCommitted() | ev.LeaseReleased():
                if isinstance(event, ev.BatchCommitted) and own.failed > own.told:
                    cell = f"pass {event.model_pass}, batch {event.batch_index}"
                    self.untold.append(f"{cell}: {own.failed} forwards failed, {own.told} times something was told")
                own.failed = own.told = 0

    def _ask(self) -> None:
        while self._asked and self._asked[0][0] <= self._committed:
            _, control, value = self._asked.pop(0)
            self.controls.ask(control, value, "the plan")
        if self._committed == self._stop:
            self.controls.code = ExitCode.INTERRUPTED


class _Account(threading.local):
    """Of one thread since its last batch."""

    failed = 0
    told = 0
    error: "weakref.ref[_Mark] | None" = None
    """Alive as long as something refers to the frames of the last error."""
    uncleared: tuple[Device, int] | None = None
    """Where that was, and how often the device had been cleared by then."""


class _Mark:
    """Something in a frame."""


class _Heard:
    """An encoder whose failures are counted."""

    def __init__(
        self, encoder: Encoder, device: Device, account: _Account, kept: list[str], spoilt: int, dim: int
    ) -> None:
        self.padded = encoder.padded
        self._encoder = encoder
        self._device = device
        self._account = account
        self._kept = kept
        self._spoilt, self._dim = spoilt, dim

    def encode(self, rows: Sequence[Ids]) -> Outputs:
        if getattr(self._device, "aside", False):  # a canary that fails is told as such
            return self._encoder.encode(rows)
        own, mark = self._account, _Mark()
        self._look_back()
        try:
            outputs = self._encoder.encode(rows)
        except Exception as error:
            if classify(error) is not Trouble.MEMORY:
                raise
            own.failed += 1
            own.error, own.uncleared = weakref.ref(mark), (self._device, _clearings(self._device))
            raise
        sound = np.flatnonzero([len(row) != self._spoilt for row in rows])
        outputs = outputs.joined(len(rows), [(sound, outputs.taken(sound))])
        own.failed += bool(outputs.refused(self._dim))
        return outputs

    def _look_back(self) -> None:
        """Whether the last failure of this thread is history."""
        own = self._account
        if own.error and own.error():
            self._kept.append("a forward begins while the error of another is kept with its tensors")
        if own.uncleared and own.uncleared[1] == _clearings(own.uncleared[0]):
            self._kept.append(f"a forward begins before {own.uncleared[0].name} was cleared of another")
        own.error = own.uncleared = None


def _clearings(device: Device) -> int:
    return int(getattr(device, "reclaims", -1))
