"""The whole flow of a run on one page: read, resolve, plan, lease, compute, deliver, remember.

`Run._work` is the way a chunk walks, top to bottom. Everything is told through the recorder; nothing here draws
or prints. A run that never came to work leaves nothing behind; one that did is always closed with a summary.
"""

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace

from interlock.engine.config import FROM_RUN, Configuration, continued
from interlock.engine.continuing import Continuation
from interlock.engine.errors import ExitCode, InterlockError, Stopped, UnavailableError, limit
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.devices import unused_gpus
from interlock.engine.gpu.lease import Lessor
from interlock.engine.gpu.locks import holding
from interlock.engine.gpu.sampler import Sampler
from interlock.engine.intake.collections import discover, overlooked
from interlock.engine.intake.corpus import Corpus, Rows
from interlock.engine.intake.reading import read_and_tokenise
from interlock.engine.models.assets import Policy
from interlock.engine.models.card import ModelCard
from interlock.engine.models.masters import Masters
from interlock.engine.models.registry import extended, find, members
from interlock.engine.models.roster import as_input, delivered_dim, entry_of, ignored_dim, token_key, tokenisings
from interlock.engine.opening import announce, check, schedule_of
from interlock.engine.outlet.delivery import check_store, deliver
from interlock.engine.outlet.fusion import Fusion, fused_width, shares
from interlock.engine.outlet.windows import SparseSource
from interlock.engine.passes import reuse
from interlock.engine.passes.backend import REAL, Backend, RunContext
from interlock.engine.passes.controls import STOP, Controls
from interlock.engine.passes.executor import PassExecutor, completed
from interlock.engine.passes.grid import Cells
from interlock.engine.passes.sparse import SparseFile
from interlock.engine.passes.vectors import VectorFile
from interlock.engine.record import atomic, rundir, summary, verdict
from interlock.engine.record import events as ev
from interlock.engine.record.facts import Memory, Readings, RosterEntry, Status
from interlock.engine.record.journal import Journal
from interlock.engine.record.pace import paces
from interlock.engine.record.recorder import Recorder


@contextmanager
def _imports_left_alone() -> Iterator[None]:
    """Every lease ends with a collection of garbage, which need not walk what was there before."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Run:
    """One run from its flags to its summary; `go` may be called once, from any thread."""

    def __init__(self, chunks: Path, configuration: Configuration, controls: Controls, backend: Backend = REAL) -> None:
        """Find the run's directory, the collections and the devices. Raises before anything is computed."""
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
            controls.begin(schedule_of(self.settings), self.settings.window, cpu_fallback=self.settings.cpu_fallback)
            registry = extended(configuration.models)
            find(registry, self.settings.allow_pickle)  # refuses what is no model
            self._specs = members(registry, [name for name, _ in self.settings.roster], self.settings.sparse)
            dense = shares([weight for _, weight in self.settings.roster]).tolist()
            self._weights = [*dense, *[0.0] * len(self.settings.sparse)]
            self._collections = discover(chunks, self.settings.collections)
            self._notes += overlooked(chunks, self._collections)
            self._devices = self._choose_devices()
            self._notes += unused_gpus(self.settings.devices, self._devices)
            source = reuse.check(self.settings.reuse) if self.settings.reuse else None
            there = self.directory.journal.exists()
            self._journal = Journal(self.directory.journal)
            try:
                self.recorder = Recorder(self._journal, self._devices[0].kind)
            except BaseException:
                self._journal.close()  # a notebook keeps the error, and the error this frame: the lock would stay
                raise
            self._fresh = not there and self.recorder.first == 0
            undo.callback(self._leave_no_trace)
            self._earlier = Continuation(self.recorder, self.directory, self.settings, source)
            self._emit = self.recorder.emit
            leases_before = self.recorder.look(lambda state: len(state.leases))
            self._host: Device = self._devices[0] if self._devices[0].kind == "cpu" else backend.host()
            gpus = [device for device in self._devices if device is not self._host]
            self._lessor = Lessor(
                [*gpus, self._host], self.settings.ceiling, self.settings.host_ceiling, granted=leases_before
            )
            if not gpus:
                controls.refuse("cpu_fallback", "this run has no GPU to fall back from")
            if len(self._specs) == 1:
                controls.refuse("schedule", "the roster has only one model")
            undo.pop_all()

    def _choose_devices(self) -> list[Device]:
        try:
            return self._backend.devices(self.settings.devices, self.settings.faults)
        except UnavailableError as error:
            if self._configuration.origins["devices"] != FROM_RUN:
                raise
            raise UnavailableError(
                f"run {self.directory.id} was started on {self.settings.devices}: {error}; pass --devices to "
                "continue it on this machine"
            ) from None

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
        return code

    def _leave_no_trace(self) -> None:
        """A session that was refused before it could work is no part of the run."""
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
        threads = settings.threads or int(self.directory.inputs().get("threads", 0)) or torch.get_num_threads()
        torch.set_num_threads(threads)
        announce(self.recorder, self.directory, self._configuration, self._chunks, self._devices, self._notes)
        policy = Policy(settings.offline, settings.refresh_models, settings.allow_pickle)
        cards = self._backend.cards(self._specs, policy, self._devices, self._emit)
        roster = self._roster(cards)
        corpus, stores = read_and_tokenise(
            self._collections, tokenisings(cards), scratch, self._emit, lambda: self.controls.stop_requested
        )
        self._journal.sync()  # what the run is tied to is never there without what began it
        self._earlier.bind(self._inputs(roster, corpus, threads), corpus)
        grid = [self._earlier.plan(number, card, stores[token_key(card)], corpus) for number, card in enumerate(cards)]
        done = [self._earlier.survived(cells) for cells in grid]
        executor = PassExecutor(grid, done, self._weights, self._context())
        executor.check()
        if settings.qdrant:  # what the store would refuse after all the work, it refuses now
            for name in (each.qdrant_collection for each in self._collections if each.files):
                check_store(name, roster, Fusion(settings.fusion), settings.qdrant, self.directory.id)
        self._working = True
        summary.write(self.recorder.look(summary.summarise), self.directory.summary)

        def sampled(device: str, memory: Memory, readings: Readings | None) -> None:
            self._emit(ev.DeviceSampled(device=device, memory=memory, readings=readings))

        with Sampler(self._devices, sampled), _imports_left_alone():
            executor.run()
        closed = self.recorder.look(lambda state: {*state.passes_completed, *state.failures})
        for cells in grid:
            self._earlier.check(cells)
            if cells.model_pass not in closed:  # an earlier session committed its last batch, or all rows were reused
                self._emit(completed(cells, self._weights[cells.model_pass], self._earlier.committed(cells)))
        for rows in corpus.rows:
            if rows is corpus.rows[-1] and not self.controls.stop_requested:
                self.controls.refuse(STOP, "the last collection is being written, so the run ends by itself")
            self._close_collection(rows, corpus, grid, roster)
        return self.recorder.look(verdict.of_run)

    def _roster(self, cards: list[ModelCard]) -> list[RosterEntry]:
        """The resolved roster, once it is known that its vectors can be fused."""
        dims = [delivered_dim(spec, card, self.settings.dim) for spec, card in zip(self._specs, cards, strict=True)]
        dense = [card.key for card in cards if card.kind == "dense"]
        fused_width(Fusion(self.settings.fusion), dims[: len(dense)], dense)
        roster = [entry_of(*each) for each in zip(cards, self._weights, dims, strict=True)]
        known = paces(self.settings.out, self._devices[0].kind)
        before = {entry.model: known.get((entry.model, entry.dtype), 0.0) for entry in roster}
        self._emit(ev.RosterResolved(roster=roster, paces=before))
        if ignored := ignored_dim(self._specs, self.settings.dim):
            self._emit(ev.Warned(message=ignored))
        if self.settings.fusion == Fusion.MEAN:
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
        )

    def _close_collection(self, rows: Rows, corpus: Corpus, grid: list[Cells], roster: list[RosterEntry]) -> None:
        """Deliver a collection that every model has seen; say what became of it."""
        name = rows.collection.name
        if self.controls.stop_requested:
            raise Stopped("stopped by the operator before delivery ended: --resume continues")
        seen_by_all = self.recorder.look(lambda state: not verdict.unfinished(state, name))
        self._park_shared(rows)
        status: Status
        try:
            if rows.chunks and seen_by_all:
                vectors = [cells.file.array for cells in grid if isinstance(cells.file, VectorFile)]
                terms = [(cells.card.key, cells.file) for cells in grid if isinstance(cells.file, SparseFile)]
                sparse = [SparseSource(*each) for each in terms]
                fusion, formats, store = Fusion(self.settings.fusion), self.settings.export, self.settings.qdrant
                here = self.directory
                deliver(rows, corpus.digests, vectors, roster, fusion, formats, store, here, self._emit, sparse)
            status, reason = self.recorder.look(lambda state: verdict.of_collection(state, name))
        except InterlockError as error:
            status, reason = "failed", str(error)
        self._emit(ev.CollectionClosed(collection=name, status=status, reason=reason))

    def _park_shared(self, rows: Rows) -> None:
        """Park a text in every collection that shares it; where it first stood it is parked already."""
        name = rows.collection.name
        known = self.recorder.look(
            lambda state: {(each, text) for each, by_name in state.parked.items() for text in by_name.get(name, ())}
        )
        for text in np.unique(rows.texts).tolist():
            for event in self._parked.get(text, ()):
                if (event.model_pass, text) not in known:
                    self._emit(replace(event, collection=name))

    @cached_property
    def _parked(self) -> dict[int, list[ev.RowParked]]:
        """By text, one event for each model that has no vector of it; asked for once all passes are over."""
        parked: dict[int, dict[int, ev.RowParked]] = {}
        in_collections = self.recorder.look(
            lambda state: [events for by_name in state.parked.values() for events in by_name.values()]
        )
        for events in in_collections:
            for text, event in events.items():
                parked.setdefault(text, {}).setdefault(event.model_pass, event)
        return {text: list(by_pass.values()) for text, by_pass in parked.items()}

    def _code(self, status: Status) -> ExitCode:
        if status == "stopped":
            return self.controls.code or ExitCode.STOPPED
        if status != "completed":
            return ExitCode.FAILED
        mitigated = self.recorder.look(lambda state: any(each.mitigations for each in state.collections.values()))
        return ExitCode.MITIGATED if mitigated and self.settings.strict else ExitCode.COMPLETED
