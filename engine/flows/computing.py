"""What a run computes on: devices of this process or nodes of a cluster; who leases them, what runs passes there, and
what is computed while texts are still read: never on nodes, which get the plan as a whole."""

import sys
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from interlock.engine.compute.cluster.head import ClusterExecutor
from interlock.engine.compute.cluster.members import ClusterMembers
from interlock.engine.compute.cluster.messages import Cluster, GridPlan, Hello, RemoteDevice
from interlock.engine.compute.cluster.node import pack, versions
from interlock.engine.compute.context import Backend, Deadline, RunContext
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.executor import PassExecutor
from interlock.engine.compute.job import Batch, Job, Layout
from interlock.engine.compute.job import plan as planned
from interlock.engine.compute.parts.outputs import PassFiles
from interlock.engine.compute.source import ArrivingSource, BatchSource
from interlock.engine.corpus.corpus import Corpus, Rows
from interlock.engine.corpus.places import DIGEST
from interlock.engine.corpus.rereading import other_texts, placed
from interlock.engine.corpus.tokens import TokenStore
from interlock.engine.errors import ExitCode, Stopped, UnavailableError
from interlock.engine.flows.plan import Models, RunPlan, RunRequest, check_placed
from interlock.engine.flows.sessions import Continuation
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.device import RESERVE, Device
from interlock.engine.gpu.lease import Lessor, imports_left_alone
from interlock.engine.gpu.sampler import Sampler
from interlock.engine.models.card import ModelCard
from interlock.engine.models.masters import Masters
from interlock.engine.models.roster import token_key
from interlock.engine.record import rundir
from interlock.engine.record.events import AnyEvent, BatchCommitted, BatchesLost, BlockRead, Emit, RowParked
from interlock.engine.record.facts import RosterEntry
from interlock.engine.record.recorder import Recorder
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.record.state import HEAD
from interlock.engine.record.words import parse_duration, parse_resources
from interlock.engine.settings import FROM_RUN, Configuration, RunSettings
from interlock.engine.targets.delivery import DeliveryBuilder
from interlock.engine.targets.stores import check_delivery

TWICE = ",twice"
SWITCH = 0.0005
"""Seconds after which the interpreter goes from the thread that reads to one that computes: a tenth of what is usual,
as a device waits for its next kernel meanwhile."""
Executor = PassExecutor | ClusterExecutor
Clusters = Callable[[str, str, Mapping[str, float]], Cluster]
"""Connects to the cluster at an address, whose nodes are to compute on these devices and take so much of a machine."""


def connected(address: str, devices: str, takes: Mapping[str, float]) -> Cluster:
    """Connect to the Ray cluster of `--cluster`, whose nodes are to compute on `devices`, and take of each machine what
    `takes` says by Ray's names. Raises UsageError for an
    address that cannot be used, UnavailableError where Ray is not installed or not there."""
    from interlock.engine.compute.cluster.ray_head import connect  # Ray is loaded for those who ask for it

    return connect(address, devices, takes)


def gathered(
    settings: RunSettings,
    run_id: str,
    threads: int,
    controls: Controls,
    clusters: Clusters | None,
    deadline: Deadline,
    say: Callable[[str], object],
) -> ClusterMembers | None:
    """Gather the nodes that compute, where a cluster is asked for. Raises Stopped where the operator stops that, or
    fewer have come than are asked for."""
    if not settings.cluster:
        return None
    devices, least = settings.devices, settings.min_nodes
    if least and devices == "auto" and not settings.cluster.startswith("local:"):
        devices = "cuda"  # who waits for nodes waits for their GPUs, and is not to get CPUs meanwhile
    hello = Hello(
        run=run_id,
        node="",
        devices=devices,
        faults=settings.faults,
        ceiling=settings.ceiling,
        host_ceiling=settings.host_ceiling,
        margin=settings.margin,
        warm=settings.warm,
        threads=threads,
    )
    takes = parse_resources(settings.node_resources)
    cluster = (clusters or connected)(settings.cluster.removesuffix(TWICE), devices, takes)
    members = ClusterMembers(cluster, hello, versions(), clock=deadline.clock)
    try:
        wait = min(parse_duration(settings.wait), deadline.left)
        members.gather(lambda: controls.stop_requested, least, wait, say)
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


@dataclass
class Beside:
    """Computes the first pass of a run on GPUs while its texts are read, a block after the other. The plan of the whole
    run, which comes after, finds what was committed as if an earlier session had left it.

    Texts are read in a thread of its own, which begins the pass once a block is whole; who calls `read` computes.
    """

    request: RunRequest
    models: Models
    roster: Sequence[RosterEntry]
    model_pass: int
    directory: RunDirectory
    recorder: Recorder
    earlier: Continuation
    threads: int
    block: int
    context: Callable[[Emit], RunContext]
    stops: Callable[[], bool]
    """Whether a run that has not begun to compute is to stop."""
    begun: Callable[[], object]
    """Hears that the run exists from now on."""

    def __post_init__(self) -> None:
        self._source: ArrivingSource | None = None
        self._ready, self._abandoned = threading.Event(), False
        self._layout, self._waiting = Layout(self.card), list[tuple[Sequence[Batch], str]]()
        self._parked = list[RowParked]()
        self._blocks, self._committed, self._all_known = self.recorder.look(
            lambda state: (dict(state.blocks), dict(state.committed.get(self.model_pass, {})), bool(state.texts_digest))
        )
        self._seen = 0

    @property
    def card(self) -> ModelCard:
        return self.models.cards[self.model_pass]

    def read(self, read: Callable[[], RunPlan]) -> RunPlan:
        """Have the texts read, and compute what comes of them until all are. Raises Stopped between two batches."""
        with ThreadPoolExecutor(1, "reading") as pool:
            reading = pool.submit(read)
            reading.add_done_callback(lambda _: self._end())
            try:
                self._ready.wait()
                if self._source:
                    self._compute(self._source)
            except BaseException:
                self._abandoned = True
                raise
            plan = reading.result()
        for event in self._parked:  # where they stand is known now
            self.recorder.emit(placed(event, plan.corpus))
        return plan

    def stopped(self) -> bool:
        """Whether reading is to stop; once the pass has begun, that is for who computes."""
        if not self._source:
            return self.stops()
        self._computes.deadline.allows(0.0)
        return self._abandoned

    def whole(self, builder: DeliveryBuilder, rows: Rows, stores: Mapping[str, TokenStore], digest: str) -> None:
        """Plan another block of texts, whose digest with all before is this one; begin the pass once there is enough.

        Raises UsageError where an earlier session read other texts, and for what a run would be refused for.
        """
        store = stores.get(token_key(self.card))
        if store is None:  # its tokenizer was replaced meanwhile
            return
        end = rows.first_text + rows.own_texts
        texts = slice(end - (rows.own_texts - 1) % self.block - 1, end)
        lengths = store.lengths(self.card.max_tokens, texts)
        batches = planned(np.arange(texts.start, texts.stop), lengths, self.card.batch_tokens).batches
        self._waiting.append((batches, rows.collection.name))
        if self._source is None and end < self.block:
            return
        source = self._source or self._begin(builder, rows, store)
        self._recognise(end, digest)
        self._job.files.grow(end)
        for batches, name in self._waiting:
            source.add(batches, name, self._survived)
        self._waiting.clear()
        self._source = source
        self._ready.set()

    def _begin(self, builder: DeliveryBuilder, rows: Rows, store: TokenStore) -> ArrivingSource:
        """Ask for what a run asks for before any work, as far as it can be known; what is refused costs nothing."""
        end, settings = rows.first_text + rows.own_texts, self.request.settings
        corpus = Corpus([rows], np.empty(end, DIGEST))
        plan = RunPlan(settings, self.roster, corpus, builder, self.models.cards, block=self.block)
        first = Layout(self.card, [each for batches, _ in self._waiting for each in batches])
        self._computes = self.context(self._emit)
        grid = [Job(self.model_pass, first, store, PassFiles())]
        alone = BatchSource(grid, [()], [0.0] * (self.model_pass + 1), lambda _: None)
        refused = PassExecutor(alone, self._computes).unplaceable()
        check_placed(refused, self.request.specs, self.models, allowed=settings.allow_missing)
        if rows.own_texts >= self.block:  # of a smaller part the form of its vectors may not be known
            so_far = replace(rows, texts=np.arange(rows.first_text, end, dtype=np.int32))
            check_delivery(so_far, plan.spec(so_far, self.directory.id), settings.qdrant, lambda _: None)
        self._computes.sync()  # what the run is tied to is never there without what began it
        inputs = plan.inputs(self.request.chunks, self.threads)  # but for the files, which are still read
        rundir.bind(self.directory, inputs | {"files": self.directory.inputs().get("files", {})})
        place = self.directory.pass_directory(self.model_pass, self.card.key)
        self._job = Job(self.model_pass, self._layout, store, PassFiles.open(place, self.card, end, growing=True))
        return ArrivingSource(self._job, lambda: self._computes.controls.stop_requested)

    def _recognise(self, texts: int, digest: str) -> None:
        """Record how far reading has come, or compare it with what an earlier session read."""
        known, self._seen = [each for each in self._blocks if self._seen < each <= texts], texts
        if (known or self._all_known) and (known != [texts] or self._blocks[texts] != digest):
            raise other_texts(self.directory.id)
        if not known:
            self.recorder.emit(BlockRead(texts=texts, digest=digest))
            self._computes.sync()  # before files are made longer for it

    def _survived(self, batches: range) -> set[int]:
        """Which of some batches an earlier session committed, and are still what was committed; tell of the others."""
        crcs = {index: self._committed[index].crc for index in batches if index in self._committed}
        files = self._job.files
        gone = [each for each, crc in crcs.items() if files.crc(self._layout.batches[each].rows) != crc]
        if gone:
            self.recorder.emit(BatchesLost(model_pass=self.model_pass, batches=gone))
        there = crcs.keys() - {*gone}
        self.earlier.sound |= {(self.model_pass, each) for each in there}
        return there

    def _compute(self, source: ArrivingSource) -> None:
        self.begun()
        context, before = self._computes, sys.getswitchinterval()
        sys.setswitchinterval(SWITCH)
        try:
            with at_work(context.devices, self._emit, self.directory.path, self.request.settings.margin):
                PassExecutor(source, context).run()
        finally:
            sys.setswitchinterval(before)
            mine = {(self.model_pass, each) for each in source.committed}
            self.earlier.fresh |= mine
            self.earlier.sound |= mine

    def _emit(self, event: AnyEvent) -> None:
        self._parked += [event] if isinstance(event, RowParked) else []
        self.recorder.emit(event)

    def _end(self) -> None:
        if self._source:
            self._source.end()
        self._ready.set()


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
