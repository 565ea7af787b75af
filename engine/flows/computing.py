"""What a run computes on: devices of this process or nodes of a cluster; who leases them, what runs passes there."""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from interlock.engine.compute.cluster.head import ClusterExecutor
from interlock.engine.compute.cluster.members import ClusterMembers, RemoteDevice
from interlock.engine.compute.cluster.messages import Cluster, GridPlan, Hello
from interlock.engine.compute.cluster.node import pack, versions
from interlock.engine.compute.context import Backend, Deadline, RunContext
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.executor import PassExecutor
from interlock.engine.compute.job import Job
from interlock.engine.compute.source import BatchSource
from interlock.engine.errors import ExitCode, Stopped, UnavailableError
from interlock.engine.flows.plan import Models, RunRequest
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.device import RESERVE, Device
from interlock.engine.gpu.lease import Lessor, imports_left_alone
from interlock.engine.gpu.sampler import Sampler
from interlock.engine.models.masters import Masters
from interlock.engine.record.events import BatchCommitted, Emit
from interlock.engine.record.state import HEAD
from interlock.engine.settings import FROM_RUN, Configuration, RunSettings

TWICE = ",twice"
Executor = PassExecutor | ClusterExecutor
Clusters = Callable[[str, str], Cluster]
"""Connects to the cluster at an address, whose nodes are to compute on these devices."""


def connected(address: str, devices: str) -> Cluster:
    """Connect to the Ray cluster of `--cluster`, whose nodes are to compute on `devices`. Raises UsageError for an
    address that cannot be used, UnavailableError where Ray is not installed or not there."""
    from interlock.engine.compute.cluster.ray_head import connect  # Ray is loaded for those who ask for it

    return connect(address, devices)


def gathered(
    settings: RunSettings,
    run_id: str,
    threads: int,
    controls: Controls,
    clusters: Clusters | None,
    clock: Callable[[], float],
) -> ClusterMembers | None:
    """Gather the nodes that compute, where a cluster is asked for. Raises Stopped where the operator stops that."""
    if not settings.cluster:
        return None
    hello = Hello(
        run=run_id,
        node="",
        devices=settings.devices,
        faults=settings.faults,
        ceiling=settings.ceiling,
        host_ceiling=settings.host_ceiling,
        margin=settings.margin,
        warm=settings.warm,
        threads=threads,
    )
    members = ClusterMembers(
        (clusters or connected)(settings.cluster.removesuffix(TWICE), settings.devices), hello, versions(), clock=clock
    )
    try:
        members.gather(lambda: controls.stop_requested)
    except BaseException as error:
        members.close()
        if isinstance(error, Stopped):
            error.exit_code = controls.code or ExitCode.STOPPED
        raise
    return members


def devices_of(
    configuration: Configuration, run_id: str, members: ClusterMembers | None, backend: Backend
) -> list[Device]:
    """Choose the devices of this machine, or of the nodes. Raises UnavailableError for those that are not there."""
    if members:
        return [RemoteDevice(device) for device in members.devices]
    settings = configuration.settings
    try:
        return backend.devices(settings.devices, settings.faults)
    except UnavailableError as error:
        if configuration.origins["devices"] != FROM_RUN:
            raise
        raise UnavailableError(
            f"run {run_id} was started on {settings.devices}: {error}; pass --devices to continue it on this machine"
        ) from None


def context_of(
    settings: RunSettings,
    devices: Sequence[Device],
    controls: Controls,
    emit: Emit,
    granted: int,
    sync: Callable[[], None],
    backend: Backend,
    deadline: Deadline,
    masters: Masters,
) -> RunContext:
    """Make what every placement of a run shares, with who leases its devices; `granted` counts earlier leases."""
    gpus = [device for device in devices if device.kind != "cpu"]
    host = backend.host() if gpus else devices[0]
    return RunContext(
        devices=devices,
        host=host,
        lessor=Lessor([*gpus, host], *settings.limits, granted=granted),
        masters=masters,
        controls=controls,
        emit=emit,
        sync=sync,
        backend=backend,
        deadline=deadline,
    )


def read_ahead(masters: Masters, models: Models, completed: Container[int], device: Device, backend: Backend) -> None:
    """Begin to read the weights of the first pass that is not completed, which goes to a GPU, while texts are read."""
    first = next((card for number, card in models.cards.items() if number not in completed), None)
    if first and not isinstance(device, RemoteDevice) and device.kind != "cpu":
        masters.prefetch(first, backend.laws(first, device.kind).weights)


@contextmanager
def at_work(devices: Sequence[Device], emit: Emit, place: Path | None = None, margin: int = RESERVE) -> Iterator[None]:
    """Sample the devices, and the disk that `place` is on, while a run computes, and import nothing beside it. A node
    of a cluster samples its own devices, and the head the machine that it is on, as `head`."""
    own = [device for device in devices if not isinstance(device, RemoteDevice)]
    if not own:
        own = [CpuDevice()]
        own[0].name = HEAD
    with Sampler(own, emit, place=place, margin=margin), imports_left_alone():
        yield


def executor_of(
    request: RunRequest,
    models: Models,
    grid: Sequence[Job],
    done: Sequence[Sequence[BatchCommitted]],
    context: RunContext,
    members: ClusterMembers | None,
    granted: int,
) -> Executor:
    """Make what computes the batches of a grid that are not done: over this process's devices, or over the nodes."""
    source = BatchSource(grid, done, request.weights, context.emit)
    if members is None:
        return PassExecutor(source, context)
    snapshots, controls = {card.key: card.snapshot for card in models.cards.values()}, context.controls
    plan = GridPlan.of([*source.grid.values()], request.specs, request.policy, controls, granted)
    members.begin(plan, lambda key: pack(key, snapshots[key]), lambda: controls.stop_requested)
    told, twice = (controls, context.emit, context.sync, context.deadline), request.settings.cluster.endswith(TWICE)
    return ClusterExecutor(source, members, *told, context, twice=twice)
