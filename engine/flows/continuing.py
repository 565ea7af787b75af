"""What earlier sessions and an earlier run have left for this one, where it still is what their journals say.

A run is tied to its inputs and texts. Batches whose vectors did not survive are computed again; reused vectors that did
not survive end the run, because its plan is without them.
"""

from collections.abc import Sequence

import numpy as np

from interlock.engine.compute import reuse
from interlock.engine.compute.grid import Cells
from interlock.engine.compute.parts.outputs import KINDS, PassFiles
from interlock.engine.corpus.corpus import Corpus, digest_of_texts
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.flows.plan import PlannedPass
from interlock.engine.models.card import ModelCard
from interlock.engine.record import atomic, rundir
from interlock.engine.record import events as ev
from interlock.engine.record.recorder import Recorder
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.record.words import several
from interlock.engine.settings import RunSettings


class Continuation:
    """Plans the passes of one run without what is already there, in it or in the run that --reuse names."""

    def __init__(self, recorder: Recorder, directory: RunDirectory, settings: RunSettings) -> None:
        self._recorder = recorder
        self._directory = directory
        self._settings = settings
        self._source = reuse.check(settings.reuse) if settings.reuse else None
        self._files: dict[int, PassFiles] = {}

    def bind(self, inputs: dict[str, object], corpus: Corpus) -> None:
        """Tie the run to its inputs. Raises UsageError where it was begun with others."""
        directory = self._directory
        rundir.bind(directory, inputs)
        if digest_of_texts(corpus.digests) != self._recorder.look(lambda state: state.texts_digest):
            raise UsageError(
                f"run {directory.id} was started with other texts, though its files are the same: start a "
                f"new run with --reuse {directory.path}"
            )
        with atomic.replacing(directory.digests) as partial, partial.open("wb") as handle:
            np.save(handle, corpus.digests.view(np.uint8).reshape(len(corpus.digests), -1))

    def reused(self, model_pass: int, card: ModelCard, corpus: Corpus) -> reuse.Mask:
        """Open the files of a pass, and take over what the source has for them; of which texts [texts]."""
        place = self._directory.pass_directory(model_pass, card.key)
        kept, begun = self._recorder.look(lambda state: (state.reused.get(model_pass), dict(state.plans)))
        if kept and not all((place / KINDS[output].PLACE).exists() for output in card.outputs):
            raise self._not_reused(kept, kept.rows)
        files = PassFiles.open(place, card, len(corpus.digests))
        if kept and (damaged := reuse.damaged(kept, files)):
            raise self._not_reused(kept, damaged)
        if not kept and all(planned != model_pass for planned, _ in begun):
            kept = self._take_over(model_pass, corpus, files)
        self._files[model_pass] = files
        return reuse.mask_of(kept, len(corpus.digests))

    def begin(self, planned: PlannedPass) -> Cells:
        """Make the cells of a pass that is laid out; tell what is planned, and what is truncated. Raises UsageError
        where an earlier session planned it otherwise."""
        directory, emit, layout = self._directory, self._recorder.emit, planned.layout
        model_pass, card, files = planned.model_pass, layout.card, self._files[planned.model_pass]
        begun = self._recorder.look(lambda state: dict(state.plans))
        if any(begun.get((model_pass, share.collection), share.plan) != share.plan for share in layout.planned):
            raise UsageError(
                f"run {directory.id} was planned by another version of interlock: start a new run with "
                f"--reuse {directory.path}"
            )
        reuse.keep_order(directory.pass_directory(model_pass, card.key), layout.batches)
        for share in layout.planned:
            emit(share)
            name = share.collection
            said = self._recorder.look(lambda state: state.collections[name].warnings)  # noqa: B023
            message = _truncation(share, card)
            if share.truncated and message not in said:  # by an earlier session
                emit(ev.Warned(message=message, collection=name))
        return Cells(model_pass, layout, planned.tokens, files)

    def committed(self, cells: Cells) -> list[ev.BatchCommitted]:
        """List the batches of a pass that the journal speaks of."""
        return self._recorder.look(lambda state: list(state.committed.get(cells.model_pass, {}).values()))

    def survived(self, cells: Cells) -> list[ev.BatchCommitted]:
        """List the committed batches whose vectors are still what was committed; tell of the others."""
        committed = self.committed(cells)
        if gone := _lost(cells, committed):
            self._recorder.emit(ev.BatchesLost(model_pass=cells.model_pass, batches=gone))
        missing = set(gone)
        return [batch for batch in committed if batch.batch_index not in missing]

    def check(self, cells: Cells) -> None:
        """Raise InterlockError unless every vector of a pass still is the one that the journal speaks of."""
        reused = self._recorder.look(lambda state: state.reused.get(cells.model_pass))
        if _lost(cells, self.committed(cells)) or (reused and reuse.damaged(reused, cells.files)):
            raise InterlockError(
                f"the vectors of {cells.card.key} in {cells.files.path} changed after they were computed: check "
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
            f"{kept.model} reused from {kept.source} are damaged: start a new run with --reuse "
            f"{self._directory.path} (intact vectors cost nothing)"
        )


def _truncation(share: ev.PassPlanned, card: ModelCard) -> str:
    """What a model does not see of a collection."""
    exceed, are = ("exceeds", "is") if share.truncated == 1 else ("exceed", "are")
    return (
        f"{card.key}: {share.truncated:,} of {several(share.rows + share.reused, 'text')} of "
        f"{share.collection} {exceed} its limit of {card.max_tokens:,} tokens and {are} truncated "
        f"({several(share.truncated_tokens, 'token')} not embedded)"
    )


def _lost(cells: Cells, committed: Sequence[ev.BatchCommitted]) -> list[int]:
    """The batches whose vectors are not those that were committed."""
    crcs = {batch.batch_index: batch.crc for batch in committed}
    return cells.files.damaged([batch.rows for batch in cells.batches], crcs)
