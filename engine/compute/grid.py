"""The grid of a run: for one model, the batches of every collection in order, as cells and as events.

A cell is `(model_pass, batch_index)`; `batch_index` counts through the whole pass, and no batch mixes collections.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from interlock.engine.compute.batches import Batch, Forward, in_spans, plan
from interlock.engine.compute.encoder import computed_tokens
from interlock.engine.compute.parts.outputs import Outputs, PassFiles
from interlock.engine.corpus.corpus import Rows
from interlock.engine.corpus.spans import NO_SPANS, Spans, Splitting
from interlock.engine.corpus.tokens import Tokenised
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.gpu.memory import Calibration, Law
from interlock.engine.models.card import ModelCard
from interlock.engine.models.cost import cost_of
from interlock.engine.models.packing import filling, padded_tokens
from interlock.engine.models.registry import Output, name_of_output
from interlock.engine.record.events import BatchCommitted, Emit, PassPlanned


@dataclass
class Layout:
    """The batches of one pass, the collection that each belongs to, and what is planned for each collection."""

    card: ModelCard
    splitting: Splitting | None = None
    """How longer texts are split; None where they are cut off."""
    batches: list[Batch] = field(default_factory=list)
    collections: list[str] = field(default_factory=list)
    planned: list[PassPlanned] = field(default_factory=list)

    def predicted_bytes(self, law: Law, calibration: Calibration) -> int:
        """Predict what the model and its widest batch take."""
        forwards = (forward for batch in self.batches for forward in batch.forwards)
        return law.weights + max(
            (calibration.activations(law, self._computed(forward), forward.longest) for forward in forwards), default=0
        )

    def least_bytes(self, law: Law, calibration: Calibration, *, streamed: bool = False) -> int:
        """Predict what the pass cannot do without: the weights, and its longest row alone."""
        longest = max((batch.longest for batch in self.batches), default=1)
        alone = computed_tokens([longest], padded=not self.card.packed)
        return (law.slots if streamed else law.weights) + calibration.activations(law, alone, longest)

    def computed(self, batch: Batch) -> int:
        """Count the tokens that the model computes for a batch in all its forwards."""
        return sum(map(self._computed, batch.forwards))

    def cost(self, index: int) -> float:
        """Price a batch by what the plan predicts: in operations, or in tokens where nobody knows these."""
        batch, cost = self.batches[index], next((each.cost for each in self.planned if each.cost), None)
        return cost.of(batch.spans, self.computed(batch)) if cost else float(self.computed(batch))

    def padding(self, batch: Batch) -> int:
        """Count the tokens that the model computes for nothing in this batch."""
        return self.computed(batch) - batch.tokens

    def _computed(self, forward: Forward) -> int:
        """Count the tokens that the model computes in one forward."""
        if self.card.packed:
            return forward.tokens + filling(forward.tokens)
        shortest = 0 if forward.padding else forward.longest
        return padded_tokens(forward.rows, forward.longest, shortest)


@dataclass(frozen=True)
class Cells:
    """One pass as a worker sees it: what to compute, from which ids, and where the vectors go."""

    model_pass: int
    layout: Layout
    tokens: Tokenised
    files: PassFiles

    def name_of(self, output: Output) -> str:
        """Return what an output of the pass is delivered as."""
        return name_of_output(self.card.key, output, self.card.kind)

    @property
    def card(self) -> ModelCard:
        return self.layout.card

    @property
    def batches(self) -> Sequence[Batch]:
        return self.layout.batches

    def spans(self, batch: Batch) -> Spans:
        """List the spans of a batch's texts after the first of each, as its forwards have them."""
        splitting, over = self.layout.splitting, self.tokens.truncated(self.card.max_tokens, batch.rows)
        return splitting.further(over) if splitting else NO_SPANS

    def rows(self, batch: Batch) -> list[npt.NDArray[np.int64]]:
        """Return the rows of ids of a batch's forwards: each text's first, then further spans. Raises as `ids` does."""
        spans, further = self.spans(batch), []
        if splitting := self.layout.splitting:
            places = zip(batch.rows[spans.texts].tolist(), spans.numbers.tolist(), strict=True)
            further = [self.tokens.further(text, number, splitting) for text, number in places]
        return self._checked([*self._firsts(batch.rows.tolist()), *further])

    def ids(self, texts: Iterable[int]) -> list[npt.NDArray[np.int64]]:
        """Return the rows of ids of some texts, up to the model's limit.

        Raises UnavailableError for an id that the model has no word for: a GPU that looked it up would be lost to this
        process, with everything on it.
        """
        return self._checked(self._firsts(texts))

    def _firsts(self, texts: Iterable[int]) -> list[npt.NDArray[np.int64]]:
        return [self.tokens.row(int(text), self.card.max_tokens) for text in texts]

    def _checked(self, rows: list[npt.NDArray[np.int64]]) -> list[npt.NDArray[np.int64]]:
        card = self.card
        highest, words = int(np.concatenate(rows).max()), card.config.get("vocab_size")
        if isinstance(words, int) and highest >= words:
            raise UnavailableError(
                f"model {card.key}: {card.tokenizer_file} gives id {highest:,}, but the model has only {words:,} "
                "words: use the tokenizer that belongs to its weights"
            )
        return rows


def lay_out(
    model_pass: int, card: ModelCard, tokens: Tokenised, corpus: Sequence[Rows], reused: npt.NDArray[np.bool_]
) -> Layout:
    """Lay out one pass over `corpus`, without the texts that are `reused` [texts].

    Raises UsageError where longer texts are to be split and the model's prompt leaves no room for them.
    """
    lengths, over = tokens.lengths(card.max_tokens), tokens.truncated(card.max_tokens)
    splitting = None if card.overlap is None else splitting_of(card, tokens, card.overlap)
    layout, cost = Layout(card, splitting), cost_of(card.config, card.network_kind)
    for rows in corpus:
        own = np.arange(rows.first_text, rows.first_text + rows.own_texts, dtype=np.int64)
        todo = own[~reused[own]]
        made, beyond = plan(todo, lengths[todo], card.batch_tokens), over[todo]
        if splitting:
            made = in_spans(made, over, splitting, card.batch_tokens)
        further = splitting.lengths(beyond) if splitting else lengths[:0]
        flops = sum(cost.of(batch.spans, layout.computed(batch)) for batch in made.batches) if cost else 0.0
        layout.planned.append(
            PassPlanned(
                model_pass=model_pass,
                model=card.key,
                collection=rows.collection.name,
                first_batch=len(layout.batches),
                batches=len(made.batches),
                rows=len(todo),
                reused=len(own) - len(todo),
                tokens=made.tokens,
                padding=sum(layout.padding(batch) for batch in made.batches),
                truncated=0 if splitting else int((over[own] > 0).sum()),
                truncated_tokens=0 if splitting else int(over[own].sum()),
                split=int((beyond > 0).sum()) if splitting else 0,
                spans=int(((beyond > 0) + splitting.counts(beyond)).sum()) if splitting else 0,
                split_tokens=splitting.cost(beyond) if splitting else 0,
                plan=made.digest(),
                flops=flops,
                cost=cost,
                seen_tokens=int((lengths[own] - tokens.specials.count + over[own] * bool(splitting)).sum()),
                token_bytes=token_bytes(card, np.concatenate([lengths[todo], further])),
            )
        )
        layout.batches.extend(made.batches)
        layout.collections.extend([rows.collection.name] * len(made.batches))
    return layout


def token_bytes(card: ModelCard, lengths: npt.NDArray[np.int64]) -> int:
    """Predict what the token vectors of texts with so many tokens [n] take; none where the model gives none."""
    form, (before, after) = card.by_token.vectors, card.by_token.around
    kept = -(-np.maximum(lengths - before - after, 0) // form.pooling) if form else 0
    return int(np.sum(kept)) * form.bytes if form else 0


def splitting_of(card: ModelCard, tokens: Tokenised, share: float) -> Splitting:
    """Return how a model splits longer texts, or would. Raises UsageError where its prompt leaves no room for them."""
    splitting = tokens.splitting(card.max_tokens, share)
    if splitting.room < 1:
        raise UsageError(
            f"--long split: the document prompt of {card.key} takes all of its {card.max_tokens:,} tokens: shorten it "
            f"or raise max_tokens in [models.{card.key}], or drop --long"
        )
    return splitting


class Queue:
    """The batches that an assignment has left, pulled by its workers; `failed` says why nobody should go on, `narrow`
    that the rest is for a wider precision."""

    def __init__(self, cells: Cells, batches: Iterable[int]) -> None:
        self.cells = cells
        self.failed: Exception | None = None
        self.narrow = False
        self.refused = 0
        """Rows whose vectors were refused, alone too, since a batch went through whole."""
        self.committed: list[BatchCommitted] = []
        self.returned: Counter[str] = Counter()
        """Rows of the batches that were put back, by the device that had taken them."""
        self._left = deque(batches)

    def begin(self) -> None:
        """Somebody is about to work it off."""

    @property
    def open(self) -> bool:
        """Whether anybody should go on with it."""
        return self.failed is None and not self.narrow

    def __len__(self) -> int:
        return len(self._left) if self.open else 0

    def take(self) -> int | None:
        """Take the next batch; None when there is none."""
        try:
            return self._left.popleft() if self else None
        except IndexError:
            return None

    def left(self) -> list[int]:
        """List the batches that nobody has taken yet."""
        return list(self._left)

    def give_back(self, index: int) -> None:
        """Return a batch that was taken ahead, and that no device has begun."""
        self._left.appendleft(index)

    def more(self) -> bool:
        """Whether batches may still come where none is left; waits for one a moment."""
        return False

    def commit(self, event: BatchCommitted, outputs: Outputs, emit: Emit) -> None:
        """Write what a batch gave, and tell of it as it ran, with the CRC-32 of what was written."""
        event = replace(event, crc=self.cells.files.put(self.cells.batches[event.batch_index].rows, outputs))
        emit(event)
        self.committed.append(event)

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        self.cells.files.sync()

    def put_back(self, index: int, device: str) -> None:
        """Return a batch that `device` took and did not compute."""
        self._left.appendleft(index)
        self.returned[device] += len(self.cells.batches[index].rows)
