"""Jobs: rows for a model in batches, of a pass of a run or in memory, as an executor computes them.

A cell of a run's grid is `(model_pass, batch_index)`; `batch_index` counts through the whole pass, and no batch mixes
collections. Which rows go through the model together is a pure function of their token lengths and a token budget:
sorted by length, longest first, so that neighbours hardly differ and the largest batch comes first. The same lengths
and budget always give the same batches, and `BatchPlan.digest` names them.
"""

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.encoder import computed_tokens
from interlock.engine.compute.parts.outputs import Gathered, Outputs, PassFiles
from interlock.engine.corpus.corpus import Rows as CorpusRows
from interlock.engine.corpus.places import laid, release, spooled, starts_of, windows
from interlock.engine.corpus.tokens import Lengths, Tokenised
from interlock.engine.errors import UnavailableError
from interlock.engine.models.card import ModelCard
from interlock.engine.models.memory import Calibration, Law
from interlock.engine.models.networks.kernels import filling, padded_tokens
from interlock.engine.models.networks.sizes import cost_of
from interlock.engine.models.registry import Output, name_of_output
from interlock.engine.record.events import PassPlanned

Rows = npt.NDArray[np.int64]
MOST = 0x7FFFFFFF
"""Tokens of a row."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that go through a model together and are committed together, longest first: their tokens, and those of the
    longest."""

    rows: Rows
    longest: int
    tokens: int

    @property
    def padding(self) -> int:
        """Tokens added when every row is padded to the longest."""
        return self.longest * len(self.rows) - self.tokens


@dataclass(frozen=True)
class BatchPlan:
    """The ordered batches of one model over one collection."""

    batches: Sequence[Batch]

    @property
    def tokens(self) -> int:
        return sum(batch.tokens for batch in self.batches)

    @property
    def padding(self) -> int:
        return sum(batch.padding for batch in self.batches)

    def digest(self) -> str:
        """Return the SHA-256 of every row in its batch."""
        return digest_of(batch.rows for batch in self.batches)


def digest_of(batches: Iterable[Rows]) -> str:
    """Return the SHA-256 of every row in its batch."""
    digest = hashlib.sha256()
    for rows in batches:
        digest.update(len(rows).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(rows, np.int64).tobytes())
        release(rows)
    return digest.hexdigest()


def plan(rows: Lengths, lengths: Lengths, budget: int, order: Rows | None = None) -> BatchPlan:
    """Make batches of `rows` (each of `lengths[i]` tokens) of at most `budget` tokens, padding included. They ascend
    where they are more than are looked at together. They lie in `order` [rows], where there is room for them already.

    A row longer than the budget is a batch of its own. Every row is in exactly one batch.
    """
    counts = Counter[int]()
    for part in windows(0, len(rows), lengths):
        counts.update(dict(zip(*(each.tolist() for each in np.unique(lengths[part], return_counts=True)), strict=True)))
    kinds = sorted(counts, reverse=True)
    sizes = np.array([counts[kind] for kind in kinds], np.int64)
    firsts: list[int] = starts_of(sizes).tolist()
    tokens: list[int] = starts_of(sizes * np.array(kinds, np.int64)).tolist()
    order = laid(len(rows), np.int64) if order is None else order
    _put_in_order(order, rows, lengths, kinds, firsts)

    def before(place: int) -> int:
        """The tokens of all rows before one."""
        kind = bisect_right(firsts, place) - 1
        return tokens[kind] + (place - firsts[kind]) * kinds[kind] if kind < len(kinds) else tokens[-1]

    batches, start = [], 0
    while start < len(order):
        longest = kinds[bisect_right(firsts, start) - 1]
        stop = min(start + max(1, budget // max(longest, 1)), len(order))
        batches.append(Batch(order[start:stop], longest, before(stop) - before(start)))
        start = stop
    return BatchPlan(batches)


def _put_in_order(order: Rows, rows: Lengths, lengths: Lengths, kinds: Sequence[int], firsts: Sequence[int]) -> None:
    """Write rows to `order` by their lengths, of which those of `kinds[i]` begin at `firsts[i]`, and by their numbers:
    some at a time, each behind those of its length that came before."""
    nexts, falling = np.array(firsts[:-1], np.int64), -np.array(kinds, np.int64)
    for part in windows(0, len(rows), order, rows, lengths):
        keys = np.subtract(MOST, lengths[part], dtype=np.int64) << 32 | rows[part]
        keys.sort()
        kind = np.searchsorted(falling, (keys >> 32) - MOST)
        sizes = np.bincount(kind, minlength=len(kinds))
        order[np.arange(len(keys)) + (nexts - starts_of(sizes)[:-1])[kind]] = keys & 0xFFFFFFFF
        nexts += sizes


@dataclass
class Layout:
    """The batches of one pass, the collection that each belongs to, and what is planned for each collection."""

    card: ModelCard
    batches: list[Batch] = field(default_factory=list)
    collections: list[str] = field(default_factory=list)
    planned: list[PassPlanned] = field(default_factory=list)

    def predicted_bytes(self, law: Law, calibration: Calibration) -> int:
        """Predict what the model and its widest batch take."""
        each = (calibration.activations(law, self.computed(batch), batch.longest) for batch in self.batches)
        return law.weights + max(each, default=0)

    def least_bytes(self, law: Law, calibration: Calibration, *, streamed: bool = False) -> int:
        """Predict what the pass cannot do without: the weights, and its longest row alone."""
        longest = max((batch.longest for batch in self.batches), default=1)
        alone = computed_tokens([longest], padded=not self.card.tight)
        return (law.slots if streamed else law.weights) + calibration.activations(law, alone, longest)

    def computed(self, batch: Batch) -> int:
        """Count the tokens that the model computes for a batch."""
        if self.card.tight:
            return batch.tokens + filling(batch.tokens)
        return padded_tokens(len(batch.rows), batch.longest, 0 if batch.padding else batch.longest)

    def cost(self, index: int) -> float:
        """Price a batch by what the plan predicts: in operations, or in tokens where nobody knows these."""
        batch, cost = self.batches[index], next((each.cost for each in self.planned if each.cost), None)
        return cost.of(len(batch.rows), self.computed(batch)) if cost else float(self.computed(batch))

    def padding(self, batch: Batch) -> int:
        """Count the tokens that the model computes for nothing in this batch."""
        return self.computed(batch) - batch.tokens


@dataclass(frozen=True)
class Job:
    """Rows for a model, as an executor takes them: in batches, from which ids, and where what they give goes. A pass of
    a run is one, and so are questions, judged texts and pairs."""

    model_pass: int
    layout: Layout
    tokens: Tokenised
    files: PassFiles
    retried: set[int] = field(default_factory=set)
    """Batches of an earlier session that are computed again for what it parked: what it had of the others stands."""

    def name_of(self, output: Output) -> str:
        """Return what an output of the pass is delivered as."""
        return name_of_output(self.card.key, output, self.card.kind)

    @property
    def card(self) -> ModelCard:
        return self.layout.card

    @property
    def batches(self) -> Sequence[Batch]:
        return self.layout.batches

    def gathered(self) -> Outputs:
        """Return what the rows of a job in memory gave, in their order."""
        assert isinstance(self.files, Gathered), "others are in their files"
        return self.files.rows(self.card, len(self.tokens.full_lengths))

    def ids(self, texts: Iterable[int]) -> list[npt.NDArray[np.int64]]:
        """Return the rows of ids of some texts, up to the model's limit.

        Raises UnavailableError for an id that the model has no word for: a GPU that looked it up would be lost to this
        process, with everything on it.
        """
        card = self.card
        rows = [self.tokens.row(int(text), card.max_tokens) for text in texts]
        highest, words = int(np.concatenate(rows).max(initial=0)), card.config.get("vocab_size")
        if isinstance(words, int) and highest >= words:
            raise UnavailableError(
                f"model {card.key}: {card.tokenizer_file} gives id {highest:,}, but the model has only {words:,} "
                "words: use the tokenizer that belongs to its weights"
            )
        return rows


def lay_out(
    model_pass: int,
    card: ModelCard,
    tokens: Tokenised,
    corpus: Sequence[CorpusRows],
    reused: npt.NDArray[np.bool_],
    block: int = 0,
) -> Layout:
    """Lay out one pass over `corpus`, without the texts that are `reused` [texts]; every `block` texts of a collection
    are planned for themselves, or with 0 all of them."""
    layout, cost = Layout(card), cost_of(card.config, card.network_kind)
    for rows in corpus:
        own = range(rows.first_text, rows.first_text + rows.own_texts)
        spans = windows(own.start, own.stop)
        todo = spooled(np.int32, (np.arange(each.start, each.stop, dtype=np.int32)[~reused[each]] for each in spans))
        every = windows(0, len(todo), todo, tokens.full_lengths)
        lengths = spooled(np.int32, (tokens.lengths(card.max_tokens, todo[part]) for part in every))
        truncated = beyond = seen = 0
        for each in windows(own.start, own.stop, tokens.full_lengths):
            over = tokens.truncated(card.max_tokens, each)
            truncated, beyond = truncated + int(np.count_nonzero(over)), beyond + int(over.sum())
            seen += int(tokens.lengths(card.max_tokens, each).sum())
        firsts = own[block::block] if block else []
        edges = [0, *np.searchsorted(todo, firsts).tolist(), len(todo)]
        order = laid(len(todo), np.int64)  # one for all blocks: each that is mapped takes a descriptor
        cuts = [slice(start, stop) for start, stop in pairwise(edges)]
        parts = (plan(todo[cut], lengths[cut], card.batch_tokens, order[cut]) for cut in cuts)
        made = BatchPlan([batch for part in parts for batch in part.batches])
        flops = sum(cost.of(len(batch.rows), layout.computed(batch)) for batch in made.batches) if cost else 0.0
        layout.planned.append(
            PassPlanned(
                model_pass=model_pass,
                model=card.key,
                collection=rows.collection.name,
                first_batch=len(layout.batches),
                batches=len(made.batches),
                rows=len(todo),
                reused=rows.own_texts - len(todo),
                tokens=made.tokens,
                padding=sum(layout.padding(batch) for batch in made.batches),
                truncated=truncated,
                truncated_tokens=beyond,
                plan=made.digest(),
                flops=flops,
                cost=cost,
                seen_tokens=seen - rows.own_texts * tokens.specials.count,
                token_bytes=token_bytes(card, lengths),
            )
        )
        layout.batches.extend(made.batches)
        layout.collections.extend([rows.collection.name] * len(made.batches))
    return layout


def token_bytes(card: ModelCard, lengths: Lengths) -> int:
    """Predict what the token vectors of texts with so many tokens [n] take; none where the model gives none."""
    form, (before, after) = card.by_token.vectors, card.by_token.around
    return int(np.sum(-(-np.maximum(lengths - before - after, 0) // form.pooling))) * form.bytes if form else 0


def in_memory(card: ModelCard, tokens: Tokenised, name: str) -> Job:
    """Lay out rows that are in memory, and what comes of them too; `name` stands for their collection in events."""
    lengths = tokens.lengths(card.max_tokens)
    batches = [*plan(np.arange(len(lengths)), lengths, card.batch_tokens).batches]
    return Job(0, Layout(card, batches, [name] * len(batches)), tokens, Gathered())
