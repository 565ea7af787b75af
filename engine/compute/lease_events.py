"""What is told of a lease: what a model was lent, and the receipts with what it left behind."""

from msgspec.structs import asdict

from interlock.engine.gpu.lease import Lease
from interlock.engine.record.events import Emit, LeaseGranted, LeaseReleased, ResidueFound


def tell_granted(
    emit: Emit,
    lease: Lease,
    model_pass: int,
    predicted: int,
    *,
    rows: int,
    batches: int = 0,
    schedule: str = "exclusive",
    streamed: bool = False,
) -> None:
    """Emit what a lease grants; `predicted` are the bytes that the model's widest batch takes, `rows` and `batches`
    what it is opened for."""
    emit(
        LeaseGranted(
            lease=lease.id,
            model_pass=model_pass,
            model=lease.holder,
            devices=[device.name for device in lease.devices],
            device_kind=lease.devices[0].kind,
            budget_bytes=lease.budget,
            predicted_bytes=min(predicted, lease.budget),
            batches=batches,
            rows=rows,
            budgets=dict(lease.budgets),
            schedule=schedule,
            streamed=streamed,
        )
    )


def tell_released(emit: Emit, lease: Lease, model_pass: int) -> None:
    """Emit the receipts of a lease that has ended, and each residue that was found."""
    emit(
        LeaseReleased(
            lease=lease.id,
            model_pass=model_pass,
            model=lease.holder,
            held_seconds=round(lease.held_seconds, 3),
            receipts=lease.receipts,
        )
    )
    for found in lease.residues:
        emit(ResidueFound(**asdict(found)))
