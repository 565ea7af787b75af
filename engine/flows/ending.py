"""What comes after the last batch of a session: collections are delivered, or left for the next session and told of.

A collection is delivered where every model has seen all of it. A deadline may end the session before that: what is
complete then is delivered in the time that was kept for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from interlock.engine.compute.context import Deadline
from interlock.engine.compute.grid import Cells
from interlock.engine.compute.source import completed
from interlock.engine.corpus.corpus import Rows
from interlock.engine.errors import InterlockError
from interlock.engine.flows import gaps
from interlock.engine.flows.continuing import Continuation
from interlock.engine.flows.plan import Plan
from interlock.engine.record import events as ev
from interlock.engine.record import health
from interlock.engine.record.facts import MissingModel, RosterEntry, Status, timed
from interlock.engine.record.health import time_left
from interlock.engine.record.recorder import Recorder
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.record.snapshot import Snapshot
from interlock.engine.record.state import RunState
from interlock.engine.record.words import duration, few
from interlock.engine.settings import RunSettings
from interlock.engine.targets.delivery import Destination, deliver

FILE_BYTES, STORE_BYTES, LEAST_SECONDS = 8e6, 2e6, 2.0
"""What a delivery is taken to do in a second, in bytes of vectors, in files and in a store; and what it takes at least.
Chosen: with what else is counted, about a quarter of what two busy cores did (17.8 and 7.8 MB/s)."""


@dataclass
class Ending:
    """Closes the collections of a run, in this session as far as it has the time."""

    recorder: Recorder
    directory: RunDirectory
    plan: Plan
    grid: Sequence[Cells]
    earlier: Continuation

    @property
    def settings(self) -> RunSettings:
        return self.plan.settings

    def close_passes(self, weights: Sequence[float]) -> None:
        """Check what was computed, and end the passes that no session has told the end of."""
        closed = self.recorder.look(lambda state: {*state.passes_completed, *state.failures})
        for cells in self.grid:
            self.earlier.check(cells)
            if cells.model_pass not in closed:  # an earlier session committed its last batch, or all rows were reused
                weight = weights[cells.model_pass]
                self.recorder.emit(completed(cells, weight, self.earlier.committed(cells)))

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
            for cells in self.grid:
                self.earlier.check(cells)
            unseen = self.recorder.look(
                lambda state: {name: health.unfinished(state, name) for name in state.collections}
            )
            for rows in self.plan.corpus.rows:
                name = rows.collection.name
                if models := unseen[name]:
                    left_out[name] = f"not finished by {', '.join(models)}"
                elif not (closed := self._closed(name)) and not deadline.fits(self.seconds_of(rows)):
                    left_out[name] = "too little time"
                elif (status := closed or self.close(rows)) in ("failed", "incomplete"):
                    left_out[name] = status
                elif rows.chunks:
                    exported.append(name)
        return told(self.settings.deadline, self.recorder.snapshot(), exported, left_out)

    def _closed(self, name: str) -> Status | None:
        """What became of a collection in this session, if it was closed."""
        return self.recorder.look(lambda state: state.collections[name].status)

    def close(self, rows: Rows) -> Status:
        """Deliver a collection that every model has seen, but for those that may be missing; say what became of it."""
        name = rows.collection.name
        without = self._missing(name, allowed=self.settings.allow_missing)
        gone = {each.model for each in without}
        seen_by_all = self.recorder.look(lambda state: gone.issuperset(health.unfinished(state, name)))
        self._park_shared(rows)
        status: Status
        try:
            if rows.chunks and seen_by_all:
                self._deliver(rows, without)
            status, reason = self.recorder.look(lambda state: health.collection_status(state, name))
            if status == "failed" and not seen_by_all and self._missing(name, allowed=True):
                reason += f"; {gaps.OFFER}"
        except InterlockError as error:
            status, reason = "failed", str(error)
        self.recorder.emit(ev.CollectionClosed(collection=name, status=status, reason=reason))
        return status

    def _deliver(self, rows: Rows, without: Sequence[MissingModel]) -> None:
        """Deliver what the other models made of a collection."""
        settings, gone = self.settings, {each.model_pass for each in without}
        roster = self.plan.without(without)
        if without:
            weights = {entry.model: entry.weight for entry in roster if entry.kind == "dense"}
            self.recorder.emit(
                ev.DeliveredWithout(collection=rows.collection.name, models=list(without), weights=weights)
            )
        passes = [cells.files for cells in self.grid if cells.model_pass not in gone]
        delivery = self.plan.delivery(rows, passes, without)
        began = self.recorder.look(lambda state: state.began_at)
        to = Destination(self.directory, settings.export, settings.qdrant, settings.prune, began=began)
        deliver(delivery, roster, to, self.recorder.emit)

    def _missing(self, name: str, *, allowed: bool) -> list[MissingModel]:
        return self.recorder.look(lambda state: gaps.lacking(state, name, allowed=allowed))

    def _park_shared(self, rows: Rows) -> None:
        """Park a text in every collection that shares it; where it first stood it is parked already."""
        name = rows.collection.name
        known = self.recorder.look(
            lambda state: {(each, text) for each, by_name in state.parked.items() for text in by_name.get(name, ())}
        )
        for text in np.unique(rows.texts).tolist():
            for event in self._parked.get(text, ()):
                if (event.model_pass, text) not in known:
                    self.recorder.emit(replace(event, collection=name))

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
