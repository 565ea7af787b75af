"""The whole flow of a run on one page: read, resolve, plan, lease, compute, deliver, remember.

`Run._work` is the way a chunk walks, top to bottom. Everything is told through the recorder; nothing here draws
or prints. A run that never came to work leaves nothing behind; one that did is always closed with a summary.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import torch

from interlock.engine.compute.context import CLOSING_SECONDS, REAL, Backend, Deadline, RunContext, seconds_until
from interlock.engine.compute.controls import STOP, Controls
from interlock.engine.compute.job import Job
from interlock.engine.corpus.corpus import BLOCK, Corpus
from interlock.engine.corpus.rereading import placed
from interlock.engine.errors import ExitCode, InterlockError, Stopped, UsageError, limit
from interlock.engine.flows import computing, opening
from interlock.engine.flows import plan as planning
from interlock.engine.flows.sessions import Continuation, SessionEnd
from interlock.engine.gpu.locks import holding
from interlock.engine.models.masters import Masters
from interlock.engine.models.roster import illegible
from interlock.engine.parsers import SHARED
from interlock.engine.record import atomic, rundir, summary
from interlock.engine.record import events as ev
from interlock.engine.record.facts import RosterEntry, Setting, Status
from interlock.engine.record.inputs import UPLOADED, now_at, upload_flags
from interlock.engine.record.journal import Journal, upload_command
from interlock.engine.record.recorder import Recorder
from interlock.engine.record.words import typed
from interlock.engine.settings import FROM_RUN, Configuration, altered
from interlock.engine.standing import outcome
from interlock.engine.targets.stores import check_delivery


class Run:
    """One run from its flags to its summary; `go` may be called once, from any thread."""

    def __init__(
        self,
        chunks: Path,
        configuration: Configuration,
        controls: Controls,
        backend: Backend = REAL,
        clusters: computing.Clusters | None = None,
        reach: Callable[[], object] = lambda: None,
        known: str = "",
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Find the run's directory, the collections and the devices, on nodes of `clusters` where asked for; `reach`
        what it is to go to. `known` is warned of once chunks are accepted; `say` is told how nodes come, before there
        is a journal. Raises before anything is computed."""
        asked = configuration.settings
        opening.check(asked, chunks)
        self.controls, self._backend, self._working = controls, backend, False
        self._notes, self._known = list[str](), known
        named, begin = (asked.out, asked.run_id, chunks), configuration.origins["roster"] != "default"
        self.directory = rundir.choose(
            *named, resume=asked.resume, skipped=self._notes.append, begin=begin, shard=asked.shard
        )
        with ExitStack() as undo:
            undo.callback(self.directory.unmake)
            begun = self.directory.begun()
            if asked.resume and not begun and self.directory.journal.exists():
                self._notes.append(self._unrecorded(configuration))
            now = self._continued(begun, configuration) if begun else configuration
            self._request = self._requested(chunks, begun, now)
            self.settings = settings = self._request.settings
            opening.check_packages(settings.export, settings.qdrant)
            opening.check_uploadable(self._request.configuration)
            window = 0 if settings.window == SHARED else settings.window
            controls.begin(opening.schedule_of(settings), window, cpu_fallback=settings.cpu_fallback)
            until = seconds_until(settings.ends, datetime.now()) if settings.ends else None
            self.deadline = Deadline(until, controls, backend.clock)  # counted from now
            controls.due = lambda: self.deadline.allows(0.0)
            if settings.cluster:
                reach()  # nodes take longer to come than a server to answer
            self._members = computing.gathered(
                settings, self.directory.id, self._threads(), controls, clusters, self.deadline, say
            )
            undo.callback(self._disperse)
            self._devices = computing.devices_of(self._request.configuration, self.directory.id, self._members, backend)
            self._masters = Masters(settings.warm, backend.hydrate(self._devices[0]))
            self._notes += self._request.unused(self._devices)
            there = self.directory.journal.exists()
            self._journal = Journal(self.directory.journal)
            try:
                self.recorder = Recorder(self._journal, self._devices[0].kind, clock=backend.clock)
            except BaseException:
                self._journal.close()  # a notebook keeps the error, and the error this frame: the lock would stay
                raise
            self._fresh = not there and self.recorder.first == 0
            undo.callback(self._leave_no_trace)
            self._earlier = Continuation(self.recorder, self.directory, settings)
            self._emit = self.recorder.emit
            complete = self.recorder.look(lambda state: state.status == "completed")
            self._complete = bool(begun and complete and not altered(begun.kept, self._request.configuration))
            if all(device.kind == "cpu" for device in self._devices):
                controls.refuse("cpu_fallback", "this run has no GPU to fall back from")
            if len(self._request.specs) == 1:
                controls.refuse("schedule", "the roster has only one model")
            if not settings.cluster:
                reach()
            undo.pop_all()

    def _requested(self, chunks: Path, begun: rundir.Begun | None, now: Configuration) -> planning.RunRequest:
        """What is asked for; where that cannot be, a run that was begun with a file of settings may lack it."""
        try:
            return planning.requested(chunks, now)
        except UsageError as error:
            if not begun or "config" in now.beside or "config" not in begun.config:
                raise
            file = typed(now_at(begun.config["config"].value, self.directory.path, begun.config))
            raise UsageError(f"{error}; run {self.directory.id} was started with --config {file}: add it") from None

    def _continued(self, begun: rundir.Begun, now: Configuration) -> Configuration:
        """The settings of another session; where the run is to go stays known, though this one was not told of it."""
        if (server := begun.kept.get("server")) and "server" not in now.beside and now.origins["qdrant"] == "default":
            how = {name: Setting(begun.kept[name].value, FROM_RUN) for name in UPLOADED if name in begun.kept}
            onward = upload_command(self.directory.path, str(server.value), upload_flags(how))
            self._notes.append(
                f"the run is to go to {server.value}, and this session does not upload it: add --qdrant "
                f"{server.value}, or upload it then with `{onward}`"
            )
            now = replace(now, beside={**now.beside, "server": Setting(server.value, FROM_RUN), **how})
        return opening.resumed(begun, now, self.directory.path)

    def _unrecorded(self, configuration: Configuration) -> str:
        """Say that a run whose first session was cut short in its first moment begins anew. Raises UsageError where
        nothing says with which models."""
        early = f"--resume: run {self.directory.id} ended before it recorded its settings"
        if configuration.origins["roster"] == "default":
            raise UsageError(f"{early}: pass --roster again, and what else it was started with")
        return f"{early}: it begins anew, as this command says"

    def _disperse(self) -> None:
        if self._members:
            self._members.close()

    def _threads(self) -> int:
        return self.settings.threads or int(self.directory.inputs().get("threads", 0)) or torch.get_num_threads()

    def go(self) -> ExitCode:
        """Do the run; how it ended. Raises InterlockError when it never came to work."""
        if self._complete and not self.deadline.fits(0.0):
            return self._as_it_is()
        try:
            status, reason = self._outcome()
        except BaseException as error:
            lost = self._journal.lost
            if self._working:
                self._finish("failed", limit(error) or f"internal error: {error!r}")
            else:
                self._leave_no_trace()
                self.directory.unmake()
            if lost and isinstance(error, Exception) and not isinstance(error, InterlockError):
                raise InterlockError(lost) from error
            raise
        return self._finish(status, reason)

    def _finish(self, status: Status, reason: str) -> ExitCode:
        if lost := self._journal.lost:
            status, reason = "failed", lost
        code = self._code(status, reason)
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

    def _as_it_is(self) -> ExitCode:
        """Leave a run that is complete, and that there is no time to check again, as it is."""
        late = f"--deadline {self.settings.ends} leaves no time to check it again"
        told = f"run {self.directory.id} is completed: nothing to do ({late})"
        code = self._code("completed", self.recorder.look(lambda state: state.reason))
        self._emit(ev.Warned(message=told))
        self._leave_no_trace()
        return code

    def _leave_no_trace(self) -> None:
        """A session that was refused before it could work is no part of the run."""
        self._disperse()
        with suppress(OSError):  # what cannot be taken back tells of a session without work
            self.recorder.take_back()
        if self._fresh:
            atomic.remove(self.directory.path)

    def _outcome(self) -> tuple[Status, str]:
        """What became of the run once it worked; before that, every error is the caller's."""
        try:
            with holding(self._devices, self.directory.id), closing(self._masters), self.directory.scratch() as scratch:
                return self._work(Path(scratch))
        except InterlockError as error:
            stopped = isinstance(error, Stopped)
            if stopped:
                error.exit_code = self._code("stopped", str(error))
            if not self._working:
                raise
            return "stopped" if stopped else "failed", str(error)

    def _work(self, scratch: Path) -> tuple[Status, str]:
        """Go the way of a chunk: read, plan, compute, deliver; nothing is kept of what is refused before the work."""
        settings, request, recorder = self.settings, self._request, self.recorder
        threads = self._threads()
        torch.set_num_threads(threads)  # sums of floats depend on it, so it is one of the run's inputs
        machine = self._devices, self._notes, self._members.environment if self._members else {}
        opening.announce(recorder, self.directory, request.configuration, request.chunks, *machine)
        if settings.ends:
            left = max(0.0, self.deadline.left)
            ends = round(time.time() + left, 3)
            told = ev.DeadlineSet(asked=settings.ends, seconds=round(left, 3), ends=ends, partial=settings.partial)
            self._emit(told)
        models = planning.resolve(
            self._backend, request.specs, request.policy, self._devices, self._emit, allowed=settings.allow_missing
        )
        begun = self.directory.inputs().get("roster", ())
        models = planning.sized(request, models, self._devices, self._backend.laws, begun)
        completed = recorder.look(lambda state: {*state.passes_completed})
        computing.read_ahead(self._masters, models, completed, self._devices[0], self._backend)
        plan = self._read(models, scratch)
        self._journal.sync()  # what the run is tied to is never there without what began it
        self._earlier.bind(plan.inputs(request.chunks, threads), plan.corpus)
        recorder.look(lambda state: planning.check_unfinished(state, models.missing))

        # The grid is laid out without the rows that are reused, then without the batches that earlier sessions left.
        plan = plan.laid_out(self._earlier.reused)
        grid = [self._earlier.begin(each) for each in plan.passes]
        executor = self._executor(grid, models, plan.corpus)

        # Room on devices, on the disk and in the store is asked for before any work: what is refused costs nothing.
        planning.check_placed(executor.unplaceable(), request.specs, models, allowed=settings.allow_missing)
        opening.check_room(self.directory.path, settings.qdrant, grid, settings.export)
        began, allowed = recorder.look(lambda state: state.began_at), settings.allow_missing
        for rows in plan.corpus.rows:  # of models that fail later nothing is known yet
            without = recorder.look(partial(planning.lacking, name=rows.collection.name, allowed=allowed))
            check_delivery(rows, plan.spec(rows, self.directory.id, without, began), settings.qdrant, self._emit)

        self._begins()
        end = SessionEnd(recorder, self.directory, plan, grid, self._earlier)
        if settings.partial:
            self.deadline.reserve = lambda: end.reserve(2 * len(self._devices))
        try:
            with computing.at_work(self._devices, self._emit, self.directory.path, settings.margin):
                executor.run()
            end.close_passes(request.weights)
            for rows in plan.corpus.rows:
                if rows is plan.corpus.rows[-1] and not self.controls.stop_requested:
                    self.controls.refuse(STOP, "the last collection is being written, so the run ends by itself")
                self.deadline.allows(end.seconds_of(rows), reserve=False)
                if self.controls.stop_requested:
                    raise Stopped(f"stopped by {self.controls.stopped_by} before delivery ended: --resume continues")
                end.close(rows)
        except Stopped:
            if not self.deadline.near:
                raise
            return "stopped", end.early(self.deadline)  # there is time left for what is complete
        return recorder.look(outcome.run_status)

    def _read(self, models: planning.Models, scratch: Path) -> planning.RunPlan:
        """Tell what the models are, and read the chunks for them."""
        request, settings = self._request, self.settings
        roster, kind = request.roster(models), self._devices[0].kind
        self.deadline.paces = opening.tell_roster(self.recorder, roster, models.missing, settings, kind)
        language = settings.language if settings.qdrant or settings.shard else ""  # a shard may be uploaded
        begun = self.directory.inputs()
        block = begun.get("block", 0) if begun else BLOCK  # as it was begun; a smaller run has one block either way
        told = request, models, roster, scratch, self._emit
        if beside := self._beside(models, roster, block):
            plan = beside.read(partial(planning.read, *told, beside.stopped, language, beside.whole, block))
        else:
            plan = planning.read(*told, self._stops_reading, language, block=block)
        for message in filter(None, [plan.builder.missed, self._known, *illegible(plan.corpus.rows, plan.cards)]):
            self._emit(ev.Warned(message=message))
        return plan

    def _beside(self, models: planning.Models, roster: Sequence[RosterEntry], block: int) -> computing.Beside | None:
        """What computes the first pass while texts are read: on GPUs of this machine, unless some are taken from
        another run, or were read without a digest of each block; None where nothing may."""
        read, closed = self.recorder.look(
            lambda state: (state.texts_digest and not state.blocks, {*state.passes_completed})
        )
        first = next((number for number in models.cards if number not in closed), None)
        elsewhere = self._members is not None or self._devices[0].kind == "cpu"
        if first is None or read or elsewhere or not block or self.settings.reuse:
            return None
        if models.cards[first].by_token.vectors:  # whether the disk holds these is known once all texts are
            return None
        told = first, self.directory, self.recorder, self._earlier, self._threads(), block
        return computing.Beside(self._request, models, roster, *told, self._context, self._stops_reading, self._begins)

    def _begins(self) -> None:
        """From here on the run exists, whatever becomes of it: it ends with a summary."""
        self._working = True
        summary.write(self.recorder.look(summary.summarise), self.directory.summary)

    def _executor(self, grid: Sequence[Job], models: planning.Models, corpus: Corpus) -> computing.Executor:
        """Make what computes the batches that are left, and names the place of each text that is parked; the deadline
        learns from those that are not."""

        def emit(event: ev.AnyEvent) -> None:
            self._emit(placed(event, corpus) if isinstance(event, ev.RowParked) else event)

        done = [self._earlier.survived(job) for job in grid]
        for job, batches in zip(grid, done, strict=True):
            for batch in batches:
                self.deadline.learn(job, batch.batch_index, batch.seconds)
        granted = self.recorder.look(lambda state: len(state.leases))
        return computing.executor_of(self._request, models, grid, done, self._context(emit), self._members, granted)

    def _context(self, emit: ev.Emit) -> RunContext:
        granted = self.recorder.look(lambda state: len(state.leases))
        here = [each for each in self._devices if not each.lost] or self._devices  # some were, while texts were read
        shared = self.settings, here, self.controls, emit, granted
        return computing.context_of(*shared, self._journal.sync, self._backend, self.deadline, self._masters)

    def _stops_reading(self) -> bool:
        """Whether the operator stops the run. Raises Stopped where it is the deadline that does."""
        if not self.deadline.allows(0.0) and self.deadline.near:
            raise Stopped(
                f"deadline {self.settings.ends}: the last {CLOSING_SECONDS:.0f} s, which close a run, came before "
                "chunks were read: this session did nothing, repeat the command with a later --deadline"
            )
        return self.controls.stop_requested

    def _code(self, status: Status, reason: str) -> ExitCode:
        if status == "stopped":
            return self.controls.code or ExitCode.STOPPED
        if status != "completed":
            return ExitCode.FAILED
        mitigated = self.recorder.look(lambda state: any(each.mitigations for each in state.collections.values()))
        return ExitCode.MITIGATED if (mitigated or reason) and self.settings.strict else ExitCode.COMPLETED
