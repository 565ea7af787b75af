"""One turn: a model gets a lease, is attached, computes the batches it has left, and leaves the devices empty."""

import time
from collections.abc import Callable

from engine.gpu.lease import Lease, Lessor
from engine.models.weights import attach
from engine.passes.encoder import encoder_for
from engine.passes.schedule import Turn
from engine.passes.worker import Cells, Worker
from engine.record.events import AnyEvent, EnsemblePassCompleted, LeaseGranted, LeaseReleased, ModelAttached, Warned

Emit = Callable[[AnyEvent], object]


def take(
    cells: Cells,
    turn: Turn,
    weight: float,
    lessor: Lessor,
    emit: Emit,
    sync: Callable[[], None],
    stop: Callable[[], bool],
) -> None:
    """Compute the batches of `turn`. The lease is released on every way out, exceptions included."""
    began = time.monotonic()
    with lessor.lease(
        cells.card.key, cells.layout.predicted_bytes(), lambda lease: emit(_released(cells, lease))
    ) as lease:
        emit(_granted(cells, turn, lease))
        _compute(cells, turn, lease, emit, sync, stop)
    for overrun in lease.overruns():
        emit(Warned(message=f"lease {lease.id}: {overrun}"))
    emit(completed(cells, weight, lease.devices[0].name, time.monotonic() - began))


def completed(cells: Cells, weight: float, device: str, seconds: float) -> EnsemblePassCompleted:
    """The end of a pass: its rows in all sessions, and the seconds of its last turn."""
    return EnsemblePassCompleted(
        model_pass=cells.model_pass,
        model=cells.card.key,
        device=device,
        dtype=cells.card.dtype,
        weight=weight,
        rows=sum(len(batch.rows) for batch in cells.batches),
        seconds=round(seconds, 3),
    )


def _compute(
    cells: Cells, turn: Turn, lease: Lease, emit: Emit, sync: Callable[[], None], stop: Callable[[], bool]
) -> None:
    """The model lives in this frame only: when it returns, nothing refers to the weights any more."""
    attached = attach(cells.card, lease)
    emit(ModelAttached(lease=lease.id, model=cells.card.key, bytes=attached.bytes, seconds=round(attached.seconds, 3)))
    encoder = encoder_for(cells.card, attached.network)
    Worker(cells, encoder, lease.devices[0].name, emit, sync, stop).run(turn.batches)


def _granted(cells: Cells, turn: Turn, lease: Lease) -> LeaseGranted:
    return LeaseGranted(
        lease=lease.id,
        model_pass=cells.model_pass,
        model=cells.card.key,
        devices=[device.name for device in lease.devices],
        device_kind=lease.devices[0].kind,
        budget_bytes=lease.budget,
        predicted_bytes=lease.predicted,
        batches=len(turn.batches),
        rows=sum(len(cells.batches[index].rows) for index in turn.batches),
    )


def _released(cells: Cells, lease: Lease) -> LeaseReleased:
    return LeaseReleased(
        lease=lease.id,
        model_pass=cells.model_pass,
        model=cells.card.key,
        held_seconds=round(lease.held_seconds, 3),
        receipts=lease.receipts,
    )
