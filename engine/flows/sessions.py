"""What of a run crosses its sessions: what earlier ones and an earlier run have left for this one, and how it ends.

A run is tied to its inputs and texts. Batches whose vectors did not survive are computed again; reused vectors that did
not survive end the run, because its plan is without them. A collection is delivered where every model has seen all of
it; a deadline may end the session before that: what is complete then is delivered in the time that was kept for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from interlock.engine.compute import reuse
from interlock.engine.compute.context import Deadline
from interlock.engine.compute.job import Job
from interlock.engine.compute.parts.outputs import KINDS, PassFiles
from interlock.engine.compute.source import completed
from interlock.engine.corpus.corpus import Corpus, Rows
from interlock.engine.corpus.identity import digest_of_texts
from interlock.engine.corpus.places import save, windows
from interlock.engine.corpus.rereading import other_texts, placed
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.flows.plan import OFFER, PlannedPass, RunPlan, lacking
from interlock.engine.models.card import ModelCard
from interlock.engine.record import atomic, rundir
from interlock.engine.record import events as ev
from interlock.engine.record.facts import MissingModel, RosterEntry, Status, timed
from interlock.engine.record.inputs import resume_words
from interlock.engine.record.recorder import Recorder
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.record.snapshot import Snapshot
from interlock.engine.record.state import RunState
from interlock.engine.record.words import command, duration, few, several, typed
from interlock.engine.settings import RunSettings
from interlock.engine.standing import outcome
from interlock.engine.standing.outlook import time_left
from interlock.engine.targets.delivery import Destination, deliver

FILE_BYTES, STORE_BYTES, LEAST_SECONDS = 8e6, 2e6, 2.0
"""What a delivery is taken to do in a second, in bytes of vectors, in files and in a store; and what it takes at least.
Chosen: with what else is counted, about a quarter of what two busy cores did (17.8 and 7.8 MB/s)."""


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value or "")


class Continuation:
    """Plans the passes of one run without what is already there, in it or in the run that --reuse names."""

    def __init__(self, recorder: Recorder, directory: RunDirectory, settings: RunSettings) -> None:
        self._recorder = recorder
        self._directory = directory
        self._settings = settings
        self._source = reuse.check(settings.reuse) if settings.reuse else None
        self._files: dict[int, PassFiles] = {}
        self.fresh, self.sound = set[tuple[int, int]](), set[tuple[int, int]]()
        """Batches by pass and index that were computed while texts were read, and those known to have survived then."""
        began = recorder.look(lambda state: state.started)
        self._begun = began.config if began else {}

    def bind(self, inputs: dict[str, object], corpus: Corpus) -> None:
        """Tie the run to its inputs. Raises UsageError where it was begun with others."""
        directory = self._directory
        rundir.bind(directory, inputs, [*self._others()])
        digest, blocks = self._recorder.look(lambda state: (state.texts_digest, dict(state.blocks)))
        before = max(blocks, default=0)  # so many texts were read while a pass was begun
        if blocks.get(before) not in (None, digest_of_texts(corpus.digests[:before])):
            raise other_texts(directory.id)
        if digest_of_texts(corpus.digests) != digest:
            raise UsageError(
                f"run {directory.id} was started with other texts, though its files are the same: start a "
                f"new run with --reuse {typed(directory.path)}"
            )
        with atomic.replacing(directory.digests) as partial, partial.open("wb") as handle:
            save(handle, corpus.digests.view(np.uint8).reshape(len(corpus.digests), -1))

    def _others(self) -> Iterator[str]:
        """Say which flags ask for something else than before that files and models would show in their own words."""
        for name in ("collections", "precision"):
            said = self._begun.get(name)
            was, now = (_listed(each) for each in (said and said.value, getattr(self._settings, name)))
            if said and was != now:
                yield f"--{name} was {was or 'not given'}, is now {now or 'not given'}"

    def reused(self, model_pass: int, card: ModelCard, corpus: Corpus) -> reuse.Mask:
        """Open the files of a pass, and take over what the source has for them; of which texts [texts]."""
        place = self._directory.pass_directory(model_pass, card.key)
        kept, begun = self._recorder.look(lambda state: (state.reused.get(model_pass), dict(state.plans)))
        if kept and not all((place / KINDS[output].file.PLACE).exists() for output in card.outputs):
            raise self._not_reused(kept, kept.rows)
        anew = all(planned != model_pass for planned, _ in begun)
        PassFiles.open(place, card, len(corpus.digests), growing=anew)  # one that was begun beside reading has fewer
        files = PassFiles.open(place, card, len(corpus.digests))
        if kept and (damaged := reuse.damaged(kept, files)):
            raise self._not_reused(kept, damaged)
        if not kept and anew and not self._recorder.look(lambda state: state.committed.get(model_pass)):
            kept = self._take_over(model_pass, corpus, files)
        self._files[model_pass] = files
        return reuse.mask_of(kept, len(corpus.digests))

    def begin(self, planned: PlannedPass) -> Job:
        """Make the job of a pass that is laid out; tell what is planned. Raises UsageError where an earlier session
        planned it otherwise."""
        directory, emit, layout = self._directory, self._recorder.emit, planned.layout
        model_pass, card, files = planned.model_pass, layout.card, self._files[planned.model_pass]
        begun = self._recorder.look(lambda state: dict(state.plans))
        if any(begun.get((model_pass, share.collection), share.plan) != share.plan for share in layout.planned):
            raise UsageError(
                f"run {directory.id} was planned by another version of interlock: start a new run with "
                f"--reuse {typed(directory.path)}"
            )
        reuse.keep_order(directory.pass_directory(model_pass, card.key), layout.batches)
        for share in layout.planned:
            emit(share)
        return Job(model_pass, layout, planned.tokens, files)

    def committed(self, job: Job) -> list[ev.BatchCommitted]:
        """List the batches of a pass that the journal speaks of."""
        return self._recorder.look(lambda state: list(state.committed.get(job.model_pass, {}).values()))

    def survived(self, job: Job) -> list[ev.BatchCommitted]:
        """List the committed batches whose vectors are still what was committed, and that are not computed again for
        the sake of a text that was parked; tell of the others."""
        committed = self.committed(job)
        if gone := _lost(job, [each for each in committed if (job.model_pass, each.batch_index) not in self.sound]):
            self._recorder.emit(ev.BatchesLost(model_pass=job.model_pass, batches=gone))
        job.retried.update({*(again := self._again(job.model_pass))} - {*gone})
        missing = {*gone, *again}
        return [batch for batch in committed if batch.batch_index not in missing]

    def _again(self, model_pass: int) -> list[int]:
        """Tell of texts that earlier sessions parked, and return their batches where these are worth another try: where
        that is asked for, and where devices or limits are others than those that they failed on."""
        found, conditions = self._recorder.look(
            lambda state: (list(state.parked.get(model_pass, {}).items()), state.conditions)
        )
        again, before = dict[int, set[int]](), self._recorder.look(lambda state: dict(state.parked_on))
        for name, rows in found:
            stay = list[ev.RowParked]()
            for parked in (each for each in rows.values() if (model_pass, each.batch_index) not in self.fresh):
                other = before.get((model_pass, parked.row), conditions) != conditions
                if parked.batch_index is None or not (self._settings.retry_parked or other):
                    stay.append(parked)
                else:
                    again.setdefault(parked.batch_index, set()).add(parked.row)
            if stay:
                first = stay[0].place or f"text {stay[0].row + 1:,} of the run"
                what = f"{several(len(stay), 'text')} failed before, {'first ' * (len(stay) > 1)}{first}"
                told = f"{stay[0].model}: {what} ({stay[0].reason}); not tried again: once this is over, repeat it with"
                began = self._recorder.look(lambda state: state.started)
                words = resume_words(began.chunks, self._directory.path, began.config) if began else ["run", "--resume"]
                retrying = command([*words, "--retry-parked"])
                self._recorder.emit(ev.Warned(message=f"{told} {retrying}", collection=name))
        if again:
            texts = len(set().union(*again.values()))
            why = "asked for" if self._settings.retry_parked else "devices or limits are others"
            self._recorder.emit(ev.ParkedRetried(model_pass=model_pass, batches=sorted(again), rows=texts, cause=why))
        return list(again)

    def check(self, job: Job) -> None:
        """Raise InterlockError unless every vector of a pass still is the one that the journal speaks of."""
        reused = self._recorder.look(lambda state: state.reused.get(job.model_pass))
        if _lost(job, self.committed(job)) or (reused and reuse.damaged(reused, job.files)):
            raise InterlockError(
                f"the vectors of {job.card.key} in {job.files.path} changed after they were computed: check "
                "for another writer, then --resume"
            )

    def _take_over(self, model_pass: int, corpus: Corpus, files: PassFiles) -> ev.RowsReused | None:
        """Copy what the source has of one pass; tell what was taken, with its checksums, and what is damaged there."""
        entry, damaged = self._directory.inputs()["roster"][model_pass], list[int]()
        found = reuse.take_over(self._source, entry, model_pass, corpus.digests, files, damaged.append)
        if found:
            self._recorder.emit(found)
        if lacking := reuse.lacking(self._source, entry):
            message = f"--reuse {self._settings.reuse}: no {lacking} of {entry['model']} there, computing it anew"
            self._recorder.emit(ev.Warned(message=message))
        if damaged:
            vectors = several(sum(damaged), "vector")
            message = f"--reuse {self._settings.reuse}: {vectors} of {entry['model']} damaged there, recomputing"
            self._recorder.emit(ev.Warned(message=message))
        return found

    def _not_reused(self, kept: ev.RowsReused, damaged: int) -> UsageError:
        return UsageError(
            f"run {self._directory.id}: up to {damaged:,} of the {several(kept.rows, 'vector')} of "
            f"{kept.model} reused from {kept.source} are damaged: start a new run with "
            f"--reuse {typed(self._directory.path)} (intact vectors cost nothing)"
        )


def _lost(job: Job, committed: Sequence[ev.BatchCommitted]) -> list[int]:
    """The batches whose vectors are not those that were committed."""
    crcs = {batch.batch_index: batch.crc for batch in committed}
    return job.files.damaged([batch.rows for batch in job.batches], crcs)


@dataclass
class SessionEnd:
    """Closes the collections of a run, in this session as far as it has the time."""

    recorder: Recorder
    directory: RunDirectory
    plan: RunPlan
    grid: Sequence[Job]
    earlier: Continuation

    @property
    def settings(self) -> RunSettings:
        return self.plan.settings

    def close_passes(self, weights: Sequence[float]) -> None:
        """Check what was computed, and end the passes that no session has told the end of."""
        closed = self.recorder.look(lambda state: {*state.passes_completed, *state.failures})
        for job in self.grid:
            self.earlier.check(job)
            if job.model_pass not in closed:  # an earlier session committed its last batch, or all rows were reused
                weight = weights[job.model_pass]
                self.recorder.emit(completed(job, weight, self.earlier.committed(job)))

    def seconds_of(self, rows: Rows) -> float:
        """Predict on the safe side what the delivery of a collection takes."""
        return delivery_seconds(rows, self.plan.roster, self.settings)

    def reserve(self, ahead: int) -> float:
        """Seconds for delivering what is complete, or will be when the next `ahead` batches are."""
        names = self.recorder.look(lambda state: {*ready(state, ahead)})
        return sum(self.seconds_of(rows) for rows in self.plan.corpus.rows if rows.collection.name in names)

    def early(self, deadline: Deadline) -> str:
        """End a session before its run: deliver what is complete, if that was asked for; what is told of it."""
        exported, left_out = list[str](), dict[str, str]()
        if self.settings.partial:
            for job in self.grid:
                self.earlier.check(job)
            known = self.recorder.look(
                lambda state: {
                    name: (outcome.unfinished(state, name), each.status) for name, each in state.collections.items()
                }
            )
            for rows in self.plan.corpus.rows:
                name = rows.collection.name
                models, closed = known[name]
                if models:
                    left_out[name] = f"not finished by {', '.join(models)}"
                elif not closed and not deadline.fits(self.seconds_of(rows)):
                    left_out[name] = "too little time"
                elif (status := closed or self.close(rows)) in ("failed", "incomplete"):
                    left_out[name] = status
                elif rows.chunks:
                    exported.append(name)
        return told(self.settings.ends, self.recorder.snapshot(), exported, left_out)

    def close(self, rows: Rows) -> Status:
        """Deliver a collection that every model has seen, but for those that may be missing; say what became of it."""
        name = rows.collection.name
        without = self._missing(name, allowed=self.settings.allow_missing)
        gone = {each.model for each in without}
        seen_by_all = self.recorder.look(lambda state: gone.issuperset(outcome.unfinished(state, name)))
        self._park_shared(rows)
        status: Status
        try:
            if rows.chunks and seen_by_all:
                self._deliver(rows, without)
            status, reason = self.recorder.look(lambda state: outcome.collection_status(state, name))
            if status == "failed" and not seen_by_all and self._missing(name, allowed=True):
                reason += f"; {OFFER}"
        except InterlockError as error:
            status, reason = "failed", str(error)
        self.recorder.emit(ev.CollectionClosed(collection=name, status=status, reason=reason))
        return status

    def _deliver(self, rows: Rows, without: Sequence[MissingModel]) -> None:
        """Deliver what the other models made of a collection."""
        settings, gone = self.settings, {each.model_pass for each in without}
        began = self.recorder.look(lambda state: state.began_at)
        spec = self.plan.spec(rows, self.directory.id, without, began)
        if without:
            weights = {entry.model: entry.weight for entry in spec.roster if entry.kind == "dense"}
            self.recorder.emit(
                ev.DeliveredWithout(collection=rows.collection.name, models=list(without), weights=weights)
            )
        passes = [job.files for job in self.grid if job.model_pass not in gone]
        to = Destination(self.directory, settings.export, settings.qdrant, settings.prune)
        deliver(self.plan.builder.delivery(rows, self.plan.corpus, passes, spec), to, self.recorder.emit)

    def _missing(self, name: str, *, allowed: bool) -> list[MissingModel]:
        return self.recorder.look(lambda state: lacking(state, name, allowed=allowed))

    def _park_shared(self, rows: Rows) -> None:
        """Park a text in every collection that shares it; where it first stood it is parked already."""
        name = rows.collection.name
        known = self.recorder.look(
            lambda state: {(each, text) for each, by_name in state.parked.items() for text in by_name.get(name, ())}
        )
        parked, here = np.array(sorted(self._parked), np.int32), set[int]()
        for part in windows(0, rows.chunks if len(parked) else 0):
            here.update(np.intersect1d(rows.texts[part], parked).tolist())
        for text in sorted(here):
            for event in self._parked[text]:
                if (event.model_pass, text) not in known:
                    self.recorder.emit(placed(replace(event, collection=name), self.plan.corpus))

    @cached_property
    def _parked(self) -> dict[int, list[ev.RowParked]]:
        """By text, one event for each model that has no vector of it; asked for once nothing more is computed."""
        parked: dict[int, dict[int, ev.RowParked]] = {}
        in_collections = self.recorder.look(
            lambda state: [events for by_name in state.parked.values() for events in by_name.values()]
        )
        for events in in_collections:
            for text, event in events.items():
                parked.setdefault(text, {}).setdefault(event.model_pass, event)
        return {text: list(by_pass.values()) for text, by_pass in parked.items()}


def delivery_seconds(rows: Rows, roster: Sequence[RosterEntry], settings: RunSettings) -> float:
    """Predict on the safe side what the delivery of a collection takes: its chunks are read and its vectors written
    again and read back. Only dense vectors are counted; twice, which stands for the fused ones and texts."""
    if not rows.chunks:
        return 0.0
    size = 2 * rows.chunks * 4 * sum(entry.dim for entry in roster if entry.kind == "dense")
    files = size / FILE_BYTES * bool(settings.export)
    store = size / STORE_BYTES if settings.qdrant else 0.0
    return LEAST_SECONDS + 2 * rows.seconds + files + store


def ready(state: RunState, ahead: int = 0) -> list[str]:
    """Name the collections whose every pass is complete, or will be when the next `ahead` batches are."""
    return [name for name in state.collections if _left(state, name) <= ahead]


def _left(state: RunState, name: str) -> int:
    """Batches without which a collection cannot be delivered, those it shares with earlier ones included."""
    owners = [state.collections[owner] for owner in (name, *state.collections[name].read.borrows)]
    return sum(share.plan.batches - share.batches_done for owner in owners for share in owner.shares.values())


def told(deadline: str, snapshot: Snapshot, exported: Sequence[str], left_out: Mapping[str, str]) -> str:
    """Say why a session ends before its run: how much is left, how long that takes by the pace so far, and what of it
    was exported and what was not (`left_out`, with the reason)."""
    left = time_left(snapshot)
    takes = f", about {duration(left.seconds)} at the pace so far" if left and timed(snapshot.device_kind) else ""
    texts = [f"stopped for the deadline {deadline} with {1 - snapshot.share_done:.1%} of the work left{takes}"]
    texts += [f"exported {few(exported)}"] if exported else []
    texts += ["not exported " + few([f"{name} ({why})" for name, why in left_out.items()])] if left_out else []
    return "; ".join(texts) + ": --resume continues"
