"""The grid of a run: for one model, the batches of every collection in order, as cells and as events.

A cell is `(model_pass, batch_index)`; `batch_index` counts through the whole pass, and no batch mixes collections.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from interlock.engine.errors import UnavailableError
from interlock.engine.gpu.memory import Calibration, Law
from interlock.engine.intake.corpus import Rows
from interlock.engine.intake.tokens import TokenStore
from interlock.engine.models.card import ModelCard
from interlock.engine.models.cost import cost_of
from interlock.engine.models.packing import filling, padded_tokens
from interlock.engine.passes.batches import Batch, plan
from interlock.engine.passes.encoder import computed_tokens
from interlock.engine.passes.vectors import PassFile
from interlock.engine.record.events import BatchCommitted, PassPlanned


@dataclass
class Layout:
    """The batches of one pass, the collection that each belongs to, and what is planned for each collection."""

    card: ModelCard
    batches: list[Batch] = field(default_factory=list)
    collections: list[str] = field(default_factory=list)
    planned: list[PassPlanned] = field(default_factory=list)

    def predicted_bytes(self, law: Law, calibration: Calibration) -> int:
        """Predict what the model and its widest batch take."""
        return law.weights + max(
            (calibration.activations(law, self.computed(batch), batch.longest) for batch in self.batches), default=0
        )

    def least_bytes(self, law: Law, calibration: Calibration, *, streamed: bool = False) -> int:
        """Predict what the pass cannot do without: the weights, and its longest row alone."""
        longest = max((batch.longest for batch in self.batches), default=1)
        alone = computed_tokens([longest], padded=not self.card.packed)
        return (law.slots if streamed else law.weights) + calibration.activations(law, alone, longest)

    def computed(self, batch: Batch) -> int:
        """Count the tokens that the model computes for a batch in one forward."""
        return batch.tokens + self.padding(batch)

    def padding(self, batch: Batch) -> int:
        """Count the tokens that the model computes for nothing in this batch."""
        if self.card.packed:
            return filling(batch.tokens)
        shortest = 0 if batch.padding else batch.longest
        return padded_tokens(len(batch.rows), batch.longest, shortest) - batch.tokens


@dataclass(frozen=True)
class Cells:
    """One pass as a worker sees it: what to compute, from which ids, and where the vectors go."""

    model_pass: int
    layout: Layout
    tokens: TokenStore
    file: PassFile

    @property
    def card(self) -> ModelCard:
        return self.layout.card

    @property
    def batches(self) -> Sequence[Batch]:
        return self.layout.batches

    def ids(self, texts: Iterable[int]) -> list[npt.NDArray[np.int64]]:
        """Return the rows of ids of some texts.

        Raises UnavailableError for an id that the model has no word for: a GPU that looked it up would be lost to this
        process, with everything on it.
        """
        card, rows = self.card, [self.tokens.row(int(text), self.card.max_tokens) for text in texts]
        highest, words = int(np.concatenate(rows).max()), card.config.get("vocab_size")
        if isinstance(words, int) and highest >= words:
            raise UnavailableError(
                f"model {card.key}: {card.tokenizer_file} gives id {highest:,}, but the model has only {words:,} "
                "words: use the tokenizer that belongs to its weights"
            )
        return rows


def lay_out(
    model_pass: int, card: ModelCard, tokens: TokenStore, corpus: Sequence[Rows], reused: npt.NDArray[np.bool_]
) -> Layout:
    """Lay out one pass over `corpus`, without the texts that are `reused` [texts]."""
    lengths, over = tokens.lengths(card.max_tokens), tokens.truncated(card.max_tokens)
    layout, cost = Layout(card), cost_of(card.config, card.kind)
    for rows in corpus:
        own = np.arange(rows.first_text, rows.first_text + rows.own_texts, dtype=np.int64)
        todo = own[~reused[own]]
        made = plan(todo, lengths[todo], card.batch_tokens)
        flops = sum(cost.of(len(batch.rows), layout.computed(batch)) for batch in made.batches) if cost else 0.0
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
                truncated=int((over[own] > 0).sum()),
                truncated_tokens=int(over[own].sum()),
                plan=made.digest(),
                flops=flops,
                cost=cost,
            )
        )
        layout.batches.extend(made.batches)
        layout.collections.extend([rows.collection.name] * len(made.batches))
    return layout


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

    def put_back(self, index: int, device: str) -> None:
        """Return a batch that `device` took and did not compute."""
        self._left.appendleft(index)
        self.returned[device] += len(self.cells.batches[index].rows)
