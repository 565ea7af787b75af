"""The whole flow of a run on one page: read, resolve, plan, lease, compute, deliver, remember.

`Run._work` is the way a chunk walks, top to bottom. Everything is told through the recorder; nothing here draws
or prints. A run that never came to work leaves nothing behind; one that did is always closed with a summary.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import torch

from interlock.engine.compute import reuse
from interlock.engine.compute.cluster.devices import RemoteDevice
from interlock.engine.compute.cluster.head import ClusterExecutor, plan_of
from interlock.engine.compute.cluster.links import Cluster
from interlock.engine.compute.cluster.members import ClusterMembers, connected
from interlock.engine.compute.cluster.messages import Hello
from interlock.engine.compute.cluster.models import pack
from interlock.engine.compute.cluster.node import versions
from interlock.engine.compute.context import REAL, Backend, Deadline, RunContext, seconds_until
from interlock.engine.compute.controls import STOP, Controls
from interlock.engine.compute.executor import PassExecutor
from interlock.engine.compute.grid import Cells
from interlock.engine.compute.source import BatchSource, completed
from interlock.engine.corpus.collections import discover, overlooked
from interlock.engine.corpus.corpus import Corpus, Rows
from interlock.engine.corpus.reading import read_and_tokenise
from interlock.engine.errors import ExitCode, InterlockError, Stopped, UnavailableError, limit
from interlock.engine.flows import gaps
from interlock.engine.flows.continuing import Continuation
from interlock.engine.flows.ending import Ending
from interlock.engine.flows.gaps import Models
from interlock.engine.flows.opening import (
    announce,
    check,
    check_packages,
    check_room,
    form_of,
    schedule_of,
    without_effect,
)
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.devices import unused_gpus
from interlock.engine.gpu.lease import Lessor, imports_left_alone
from interlock.engine.gpu.locks import holding
from interlock.engine.gpu.sampler import Sampler
from interlock.engine.models.assets import Policy
from interlock.engine.models.masters import Masters
from interlock.engine.models.registry import check_beside, extended, find
from interlock.engine.models.roster import delivered_dim, entry_of, entry_without, token_key, tokenisings
from interlock.engine.record import atomic, health, rundir, summary
from interlock.engine.record import events as ev
from interlock.engine.record.facts import Memory, Readings, RosterEntry, Status
from interlock.engine.record.inputs import as_input
from interlock.engine.record.journal import Journal
from interlock.engine.record.recorder import Recorder
from interlock.engine.record.runs import paces
from interlock.engine.settings import FROM_RUN, Configuration, continued
from interlock.engine.targets.builder import DeliveryBuilder, remaining
from interlock.engine.targets.delivery import check_projectable, check_store
from interlock.engine.vectors.fusion import Fusion, shares


class Run:
    """One run from its flags to its summary; `go` may be called once, from any thread."""

    def __init__(
        self,
        chunks: Path,
        configuration: Configuration,
        controls: Controls,
        backend: Backend = REAL,
        clusters: Callable[[str, str], Cluster] = connected,
    ) -> None:
        """Find the run's directory, the collections and the devices, on the nodes of one of `clusters` where that is
        asked for. Raises before anything is computed."""
        asked = configuration.settings
        check(asked, chunks)
        self._chunks = chunks
        self.controls = controls
        self._working = False
        self._backend = backend
        self._notes: list[str] = []
        self.directory = rundir.choose(asked.out, asked.run_id, chunks, resume=asked.resume, skipped=self._notes.append)
        with ExitStack() as undo:
            undo.callback(self.directory.unmake)
            begun = self.directory.begun()
            self._configuration = continued(begun.kept, configuration) if begun else configuration
            self.settings = self._configuration.settings
            check(self.settings, chunks)
            check_packages(self.settings.export, self.settings.qdrant)
            controls.begin(schedule_of(self.settings), self.settings.window, cpu_fallback=self.settings.cpu_fallback)
            registry = extended(configuration.models)
            find(registry, self.settings.allow_pickle)  # refuses what is no model
            self._specs = self.settings.members(registry)
            dense = shares([weight for _, weight in self.settings.roster]).tolist()
            check_beside(self.settings.chunk_sparse, self._specs)
            self._weights = [*dense, *[0.0] * (len(self._specs) - len(dense))]
            self._collections = discover(chunks, self.settings.collections)
            self._notes += [*without_effect(self._configuration, self._specs), *overlooked(chunks, self._collections)]
            self.deadline = self._choose_deadline()
            self._members = self._gathered(clusters)
            undo.callback(self._disperse)
            self._devices = self._choose_devices()
            self._notes += [] if self._members else unused_gpus(self.settings.devices, self._devices)
            source = reuse.check(self.settings.reuse) if self.settings.reuse else None
            there = self.directory.journal.exists()
            self._journal = Journal(self.directory.journal)
            try:
                self.recorder = Recorder(self._journal, self._devices[0].kind, clock=backend.clock)
            except BaseException:
                self._journal.close()  # a notebook keeps the error, and the error this frame: the lock would stay
                raise
            self._fresh = not there and self.recorder.first == 0
            undo.callback(self._leave_no_trace)
            self._earlier = Continuation(self.recorder, self.directory, self.settings, source)
            self._emit = self.recorder.emit
            leases_before = self.recorder.look(lambda state: len(state.leases))
            gpus = [device for device in self._devices if device.kind != "cpu"]
            self._host: Device = backend.host() if gpus else self._devices[0]
            self._lessor = Lessor(
                [*gpus, self._host], self.settings.ceiling, self.settings.host_ceiling, granted=leases_before
            )
            if not gpus:
                controls.refuse("cpu_fallback", "this run has no GPU to fall back from")
            if len(self._specs) == 1:
                controls.refuse("schedule", "the roster has only one model")
            undo.pop_all()

    def _gathered(self, clusters: Callable[[str, str], Cluster]) -> ClusterMembers | None:
        """The nodes that compute, where there are any."""
        asked = self.settings
        if not asked.cluster:
            return None
        hello = Hello(
            run=self.directory.id,
            node="",
            devices=asked.devices,
            faults=asked.faults,
            ceiling=asked.ceiling,
            host_ceiling=asked.host_ceiling,
            warm=asked.warm,
            threads=self._threads(),
        )
        members = ClusterMembers(clusters(asked.cluster, asked.devices), hello, versions(), clock=self._backend.clock)
        try:
            members.gather(lambda: self.controls.stop_requested)
        except BaseException as error:
            members.close()
            if isinstance(error, Stopped):
                error.exit_code = self._code("stopped")
            raise
        return members

    def _disperse(self) -> None:
        if self._members:
            self._members.close()

    def _threads(self) -> int:
        return self.settings.threads or int(self.directory.inputs().get("threads", 0)) or torch.get_num_threads()

    def _choose_devices(self) -> list[Device]:
        if self._members:
            return [RemoteDevice(device) for device in self._members.devices]
        try:
            return self._backend.devices(self.settings.devices, self.settings.faults)
        except UnavailableError as error:
            if self._configuration.origins["devices"] != FROM_RUN:
                raise
            raise UnavailableError(
                f"run {self.directory.id} was started on {self.settings.devices}: {error}; pass --devices to "
                "continue it on this machine"
            ) from None

    def _choose_deadline(self) -> Deadline:
        """The end of this session, counted from now."""
        asked, clock = self.settings.deadline, self._backend.clock
        deadline = Deadline(seconds_until(asked, datetime.now()) if asked else None, self.controls, clock)
        self.controls.due = lambda: deadline.allows(0.0)
        return deadline

    def go(self) -> ExitCode:
        """Do the run; how it ended. Raises InterlockError when it never came to work."""
        try:
            status, reason = self._outcome()
        except BaseException as error:
            if self._working:
                self._finish("failed", limit(error) or f"internal error: {error!r}")
            else:
                self._leave_no_trace()
                self.directory.unmake()
            raise
        return self._finish(status, reason)

    def _finish(self, status: Status, reason: str) -> ExitCode:
        if lost := self._journal.lost:
            status, reason = "failed", lost
        code = self._code(status)
        try:
            mitigations = self.recorder.look(lambda state: sum(state.mitigated.values()))
            self._emit(ev.RunClosed(status=status, reason=reason, exit_code=code, mitigations=mitigations))
            if not lost:
                summary.write(self.recorder.look(summary.summarise), self.directory.summary)
        except InterlockError as error:
            if reason and reason != str(error):
                raise InterlockError(f"{reason}; this could not be recorded: {error}") from error
            raise
        finally:
            self._journal.close()
            self._disperse()
        return code

    def _leave_no_trace(self) -> None:
        """A session that was refused before it could work is no part of the run."""
        self._disperse()
        self._journal.rewind()
        self._journal.close()
        if self._fresh:
            atomic.remove(self.directory.path)

    def _outcome(self) -> tuple[Status, str]:
        """What became of the run once it worked; before that, every error is the caller's."""
        try:
            with holding(self._devices, self.directory.id), self.directory.scratch() as scratch:
                return self._work(Path(scratch))
        except InterlockError as error:
            stopped = isinstance(error, Stopped)
            if stopped:
                error.exit_code = self._code("stopped")
            if not self._working:
                raise
            return "stopped" if stopped else "failed", str(error)

    def _work(self, scratch: Path) -> tuple[Status, str]:
        settings = self.settings
        threads = self._threads()
        torch.set_num_threads(threads)
        elsewhere = self._members.environment if self._members else {}
        announce(
            self.recorder, self.directory, self._configuration, self._chunks, self._devices, self._notes, elsewhere
        )
        if asked := settings.deadline:
            left = max(0.0, self.deadline.left)
            ends = round(time.time() + left, 3)
            self._emit(ev.DeadlineSet(asked=asked, seconds=round(left, 3), ends=ends, partial=settings.partial))
        policy = Policy(settings.offline, settings.refresh_models, settings.allow_pickle)
        models = gaps.resolved(
            self._backend, self._specs, policy, self._devices, self._emit, allowed=settings.allow_missing
        )
        cards, roster = [*models.cards.values()], self._roster(models)
        language = settings.bm25_language if settings.qdrant and settings.bm25 else ""
        builder = DeliveryBuilder(scratch, language, settings.chunk_sparse)
        corpus, stores = read_and_tokenise(
            self._collections,
            tokenisings(cards),
            scratch,
            self._emit,
            self._stops_reading,
            builder.beside,
        )
        if missed := builder.missed:
            self._emit(ev.Warned(message=missed))
        self._journal.sync()  # what the run is tied to is never there without what began it
        self._earlier.bind(self._inputs(roster, corpus, threads), corpus)
        self.recorder.look(lambda state: gaps.check_unfinished(state, models.missing))
        grid = [
            self._earlier.plan(number, card, stores[token_key(card)], corpus) for number, card in models.cards.items()
        ]
        done = [self._earlier.survived(cells) for cells in grid]
        for cells, batches in zip(grid, done, strict=True):
            for batch in batches:
                self.deadline.learn(cells, batch.batch_index, batch.seconds)
        executor = self._executor(BatchSource(grid, done, self._weights, self._emit), models, policy)
        gaps.check_placed(executor.unplaceable(), self._specs, models, allowed=settings.allow_missing)
        check_room(self.directory.path, settings.qdrant, grid, settings.export)
        for rows in corpus.rows:
            if rows.chunks:
                check_projectable(rows, form_of(settings), settings.qdrant)
        if settings.qdrant:  # what the store would refuse after all the work, it refuses now
            for rows in corpus.rows:
                if rows.collection.files:
                    self._check_store(rows, roster, builder)
        self._working = True
        summary.write(self.recorder.look(summary.summarise), self.directory.summary)

        def sampled(device: str, memory: Memory, readings: Readings | None) -> None:
            self._emit(ev.DeviceSampled(device=device, memory=memory, readings=readings))

        ending = Ending(self.recorder, self.directory, settings, corpus, grid, roster, builder, self._earlier)
        if settings.partial:
            self.deadline.reserve = lambda: ending.reserve(2 * len(self._devices))
        try:
            with Sampler([] if self._members else self._devices, sampled), imports_left_alone():
                executor.run()
            self._close_passes(grid)
            for rows in corpus.rows:
                if rows is corpus.rows[-1] and not self.controls.stop_requested:
                    self.controls.refuse(STOP, "the last collection is being written, so the run ends by itself")
                self.deadline.allows(ending.seconds_of(rows), reserve=False)
                if self.controls.stop_requested:
                    raise Stopped("stopped by the operator before delivery ended: --resume continues")
                ending.close(rows)
        except Stopped:
            if not self.deadline.near:
                raise
            return "stopped", ending.early(self.deadline)
        return self.recorder.look(health.run_status)

    def _check_store(self, rows: Rows, roster: list[RosterEntry], builder: DeliveryBuilder) -> None:
        """Refuse a collection now that its store would refuse; of models that fail later nothing is known yet."""
        settings, collection, run = self.settings, rows.collection, self.directory.id
        assert settings.qdrant, "which is why it is asked"
        allowed = settings.allow_missing
        without = self.recorder.look(lambda state: gaps.lacking(state, collection.name, allowed=allowed))
        left = remaining(roster, without, [weight for _, weight in settings.roster])
        where = collection.qdrant_collection, left, Fusion(settings.fusion), settings.qdrant, run
        brought = builder.bm25(rows), settings.chunk_sparse
        began = self.recorder.look(lambda state: state.began_at)
        check_store(*where, *brought, form_of(settings), self._emit, without, began)

    def _close_passes(self, grid: list[Cells]) -> None:
        """Check what was computed, and end the passes that no session has told the end of."""
        closed = self.recorder.look(lambda state: {*state.passes_completed, *state.failures})
        for cells in grid:
            self._earlier.check(cells)
            if cells.model_pass not in closed:  # an earlier session committed its last batch, or all rows were reused
                self._emit(completed(cells, self._weights[cells.model_pass], self._earlier.committed(cells)))

    def _stops_reading(self) -> bool:
        """Whether the operator stops the run. Raises Stopped where it is the deadline that does."""
        if not self.deadline.allows(0.0) and self.deadline.near:
            raise Stopped(
                f"deadline {self.settings.deadline} came while chunks were read: nothing was kept, repeat the command "
                "with a later --deadline"
            )
        return self.controls.stop_requested

    def _roster(self, models: Models) -> list[RosterEntry]:
        """The resolved roster, once it is known that its vectors can be fused."""
        cards, missing, weights = models.cards, models.missing, self._weights
        dims = {k: delivered_dim(self._specs[k], card, self.settings.dim) for k, card in cards.items()}
        dense = {card.key: dims[k] for k, card in cards.items() if card.kind == "dense"}
        form_of(self.settings).widths(Fusion(self.settings.fusion), dense)
        roster = [
            entry_of(cards[k], weights[k], dims[k]) if k in cards else entry_without(spec, weights[k], missing[k])
            for k, spec in enumerate(self._specs)
        ]
        known = paces(self.settings.out, self._devices[0].kind)
        before = {entry.model: known.get((entry.model, entry.dtype), 0.0) for entry in roster}
        self._emit(ev.RosterResolved(roster=roster, paces=before))
        self.deadline.paces = before
        for number, why in missing.items():
            self._emit(ev.PassFailed(model_pass=number, model=roster[number].model, reason=why))
        if Fusion(self.settings.fusion) is Fusion.MEAN:
            message = "--fusion mean mixes unrelated vector spaces and scored below concat in every measurement"
            self._emit(ev.Warned(message=message))
        return roster

    def _inputs(self, roster: list[RosterEntry], corpus: Corpus, threads: int) -> dict[str, object]:
        """What the run is tied to."""
        return {
            "schema_version": "1",
            "chunks": str(self._chunks.resolve()),
            "fusion": self.settings.fusion,
            "threads": threads,
            "roster": [as_input(entry) for entry in roster],
            "files": corpus.fingerprint(),
        }

    def _executor(self, source: BatchSource, models: Models, policy: Policy) -> PassExecutor | ClusterExecutor:
        """What computes the source: the devices of this process, or the nodes."""
        if self._members is None:
            return PassExecutor(source, self._context())
        snapshots = {card.key: card.snapshot for card in models.cards.values()}
        granted = self.recorder.look(lambda state: len(state.leases))
        plan = plan_of([*source.grid.values()], self._specs, policy, granted)
        self._members.begin(plan, lambda key: pack(key, snapshots[key]), lambda: self.controls.stop_requested)
        return ClusterExecutor(
            source, self._members, self.controls, self._emit, self._journal.sync, self.deadline, self._backend.clock
        )

    def _context(self) -> RunContext:
        return RunContext(
            devices=self._devices,
            host=self._host,
            lessor=self._lessor,
            masters=Masters(self.settings.warm, self._backend.hydrate(self._devices[0])),
            controls=self.controls,
            emit=self._emit,
            sync=self._journal.sync,
            backend=self._backend,
            deadline=self.deadline,
        )

    def _code(self, status: Status) -> ExitCode:
        if status == "stopped":
            return self.controls.code or ExitCode.STOPPED
        if status != "completed":
            return ExitCode.FAILED
        mitigated = self.recorder.look(lambda state: any(each.mitigations for each in state.collections.values()))
        return ExitCode.MITIGATED if mitigated and self.settings.strict else ExitCode.COMPLETED
