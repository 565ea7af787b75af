"""What a run computes on: devices of this process or nodes of a cluster; who leases them, what runs passes there."""

from collections.abc import Callable, Sequence

from interlock.engine.compute.backend import Backend, RunContext
from interlock.engine.compute.backlog import Backlog
from interlock.engine.compute.cluster.crew import Crew
from interlock.engine.compute.cluster.devices import RemoteDevice
from interlock.engine.compute.cluster.head import ClusterExecutor, plan_of
from interlock.engine.compute.cluster.links import Cluster
from interlock.engine.compute.cluster.messages import Hello
from interlock.engine.compute.cluster.models import pack
from interlock.engine.compute.cluster.node import versions
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.executor import PassExecutor
from interlock.engine.errors import ExitCode, Stopped, UnavailableError
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy
from interlock.engine.models.card import ModelCard
from interlock.engine.models.registry import ModelSpec
from interlock.engine.settings import FROM_RUN, Configuration, RunSettings

Clusters = Callable[[str, str], Cluster]
"""Connects to the cluster at an address, whose nodes are to compute on these devices."""


def gathered(
    settings: RunSettings,
    run_id: str,
    threads: int,
    controls: Controls,
    clusters: Clusters,
    clock: Callable[[], float],
) -> Crew | None:
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
        warm=settings.warm,
        threads=threads,
    )
    crew = Crew(clusters(settings.cluster, settings.devices), hello, versions(), clock=clock)
    try:
        crew.gather(lambda: controls.stop_requested)
    except BaseException as error:
        crew.close()
        if isinstance(error, Stopped):
            error.exit_code = controls.code or ExitCode.STOPPED
        raise
    return crew


def devices_of(configuration: Configuration, run_id: str, crew: Crew | None, backend: Backend) -> list[Device]:
    """Choose the devices of this machine, or of the nodes. Raises UnavailableError for those that are not there."""
    if crew:
        return [RemoteDevice(device) for device in crew.devices]
    settings = configuration.settings
    try:
        return backend.devices(settings.devices, settings.faults)
    except UnavailableError as error:
        if configuration.origins["devices"] != FROM_RUN:
            raise
        raise UnavailableError(
            f"run {run_id} was started on {settings.devices}: {error}; pass --devices to continue it on this machine"
        ) from None


def lessor_of(
    settings: RunSettings, devices: Sequence[Device], backend: Backend, granted: int
) -> tuple[Device, Lessor]:
    """Return the host, and who leases it and the GPUs; `granted` are the leases of earlier sessions."""
    gpus = [device for device in devices if device.kind != "cpu"]
    host = backend.host() if gpus else devices[0]
    return host, Lessor([*gpus, host], settings.ceiling, settings.host_ceiling, granted=granted)


def executor_of(
    backlog: Backlog,
    context: RunContext,
    crew: Crew | None,
    specs: Sequence[ModelSpec],
    cards: Sequence[ModelCard],
    policy: Policy,
    granted: int,
) -> PassExecutor | ClusterExecutor:
    """Make what computes the backlog: over the devices of this process, or over the nodes."""
    if crew is None:
        return PassExecutor(backlog, context)
    snapshots, controls = {card.key: card.snapshot for card in cards}, context.controls
    plan = plan_of([*backlog.grid.values()], specs, policy, granted)
    crew.begin(plan, lambda key: pack(key, snapshots[key]), lambda: controls.stop_requested)
    return ClusterExecutor(backlog, crew, controls, context.emit, context.sync, context.deadline, context.backend.clock)
