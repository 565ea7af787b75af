"""What nodes gave, proved: with rows that the head computes itself, or with what another node gave of the batch.

The head is the reference: a row alone, in float32 on its CPU. It computes some rows of the first batch that each
process of a node gives of each pass; of a batch that two nodes computed every row is compared, and where they differ it
computes that row to say whose is wrong. One thread does it, beside the run.
"""

import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from interlock.engine.compute.checks.canary import LEAST_IN_HALVES, enough, lowest_cosine, plain
from interlock.engine.compute.checks.sampling import OPERATIONS_ON_HOST, spread
from interlock.engine.compute.context import RunContext
from interlock.engine.compute.encoder import Encoder, one_by_one
from interlock.engine.compute.job import Job
from interlock.engine.compute.parts.files import Mask, Rows
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.errors import reason
from interlock.engine.models.card import ModelCard
from interlock.engine.record.words import distinct_sizes

MOST_TOKENS = 1024
"""Of a row that is compared: the plain path may take memory with the square of it."""
ROWS = 4
SHARE = 64
"""One batch in so many is computed by another node too: 1.6 % of what nodes compute."""
LEAST = 0.9999
"""The cosine in float32 below which a row is another one: devices that differ only in the order of their sums should be
far above it, though no two makes of card were compared. In halves it is a canary's (`enough`)."""

Given = Mapping[str, Outputs]
"""What a batch gave, by node."""


class Proofs:
    """Judges batches in the order in which they came."""

    def __init__(
        self, context: RunContext, wrong: Callable[[str, str], None], told: Callable[[int, str], None]
    ) -> None:
        """`wrong` is called with a node and what it computes wrongly, `told` with a pass when a batch of it was judged,
        and why it could not be, each from the thread that judges."""
        self._context, self._wrong, self._told = context, wrong, told
        self._waiting: queue.SimpleQueue[tuple[Job, int, Given] | None] = queue.SimpleQueue()
        self._pending: Counter[int] = Counter()
        self._loaded: tuple[int, Encoder] | None = None
        self._thread: threading.Thread | None = None

    def see(self, job: Job, batch: int, given: Given) -> None:
        """Have a batch judged by what one node gave, or two."""
        self._pending[job.model_pass] += 1
        self._waiting.put((job, batch, given))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="proofs", daemon=True)
            self._thread.start()

    def pending(self, model_pass: int | None = None) -> int:
        """Count the batches that are yet to be judged, of a pass or of all."""
        return self._pending.total() if model_pass is None else self._pending[model_pass]

    def close(self) -> None:
        """Judge nothing more."""
        self._waiting.put(None)

    def _work(self) -> None:
        while (asked := self._waiting.get()) is not None:
            job, batch, given = asked
            trouble = ""
            try:
                for node, why in self._judged(job, batch, given).items():
                    self._wrong(node, why)
            except Exception as error:  # whatever the head lacks, the nodes have shown no fault
                trouble = reason(error)
            self._pending[job.model_pass] -= 1
            self._told(job.model_pass, trouble)
        self._loaded = None

    def _judged(self, job: Job, batch: int, given: Given) -> dict[str, str]:
        """Which of the nodes gave another row than the head, and how far it is off."""
        least = LEAST if job.card.dtype == "float32" else LEAST_IN_HALVES
        places = _some(job, batch, *given.values()) if len(given) == 1 else _furthest(least, *given.values())
        if not len(places):
            return {}
        rows = job.ids(job.batches[batch].rows[places])
        wanted, found = one_by_one(self._encoder(job), rows), dict[str, str]()

        def computed(card: ModelCard) -> Outputs:
            backend, host = self._context.backend, self._context.host
            return one_by_one(backend.encoders(card, backend.load(card), host), rows)

        for node, outputs in given.items():
            cosine = lowest_cosine(outputs.taken(places), wanted)
            if cosine is not None and not cosine >= enough(job.card, least, cosine, wanted, computed):
                found[node] = f"computes {job.card.key} wrongly (cosine {cosine:.5f} with what the head computes)"
        return found

    def _encoder(self, job: Job) -> Encoder:
        """The model of a pass on this CPU. Raises MemoryError where it does not fit beside the run."""
        if self._loaded is None or self._loaded[0] != job.model_pass:
            self._loaded = None
            card, context = plain(job.card), self._context
            needs, free = context.backend.laws(card, "cpu").weights, context.lessor.budget(context.host)
            if needs > free:
                raise MemoryError("float32 on the head's host needs {}, {} free".format(*distinct_sizes(needs, free)))
            network = context.backend.load(card)
            self._loaded = job.model_pass, context.backend.encoders(card, network, context.host)
        return self._loaded[1]


def _some(job: Job, batch: int, outputs: Outputs) -> Rows:
    """Choose rows of different lengths that were not parked, as many as cost no more than a canary, or one."""
    lengths = job.tokens.lengths(job.card.max_tokens, job.batches[batch].rows)
    able = np.flatnonzero(_given(outputs) & (lengths <= MOST_TOKENS))
    return able[spread(lengths[able], job.card, ROWS, OPERATIONS_ON_HOST)] if len(able) else able


def _furthest(least: float, one: Outputs, other: Outputs) -> Rows:
    """Find the row in which two nodes differ most; none where no two rows are further apart than devices may be."""
    able = np.flatnonzero(_given(one) & _given(other))
    whole = lowest_cosine(one.taken(able), other.taken(able)) if len(able) else None
    if whole is None or whole >= least:
        return np.empty(0, np.int64)
    each = [lowest_cosine(one.taken(able[[at]]), other.taken(able[[at]])) for at in range(len(able))]
    return able[[int(np.argmin([1.0 if cosine is None else cosine for cosine in each]))]]


def _given(outputs: Outputs) -> Mask:
    """Which rows have a vector: a node says itself of those that have none."""
    return outputs.sound if outputs.dense is None else np.asarray(~np.isnan(outputs.dense).any(axis=1))
