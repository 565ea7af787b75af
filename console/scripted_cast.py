"""What a scripted run is about: models, collections, their cells and what goes wrong in which of them, as plain data.

Nothing of it was measured. Names, widths and limits of models are the registry's; bytes and speeds are about what such
models take on a card of 16 GB, so that screens look as they would. What is done about a mishap is the ladder's answer.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from interlock.engine.models.registry import REGISTRY, ModelSpec
from interlock.engine.passes.ladder import Cause, Effort, Evidence, Means, Rung, Step, next_step, slices
from interlock.engine.passes.schedule import DeviceRoom, MemoryNeed
from interlock.engine.record import events as ev

KIND = "scripted"
MIB, GIB = 1 << 20, 1 << 30
CARD_BYTES, CEILING, CONTEXT, RESERVE = 15095 * MIB, 12 * GIB, 300 * MIB, 96 * MIB
BUDGET = CEILING - RESERVE
"""Bytes that a lease may have on a card."""
HOST, HOST_ROOM = "cpu", 24 * GIB
BATCH_TOKENS = 16384
STREAMED_SHARE = 6
"""A streamed model holds this part of its weights on a device."""


@dataclass(frozen=True)
class Part:
    """A model: bytes of its weights and of each token in flight, tokens a second on one card, its tokens for each of a
    text's own, and how its files came to be here."""

    key: str
    weights: int
    per_token: int
    pace: float
    factor: float
    outcome: ev.Outcome

    @property
    def spec(self) -> ModelSpec:
        return REGISTRY[self.key]

    @property
    def cost(self) -> ev.Cost:
        """Two operations for each parameter of two bytes, as of a model whose rows are short."""
        return ev.Cost(per_token=float(self.weights), per_pair=0.0)

    def need(self) -> MemoryNeed:
        """The least that it can work in."""
        row = self.per_token * 1024
        return MemoryNeed(
            self.key, self.weights + row, self.weights // STREAMED_SHARE + row, 2 * self.weights + 4 * row
        )


PARTS = (
    Part("jina-code-embeddings-1.5b", 2945 * MIB, 430 << 10, 13_500, 1.00, "hit"),
    Part("bge-m3", 1083 * MIB, 310 << 10, 27_000, 1.12, "download"),
    Part("qwen3-embedding-0.6b", 1137 * MIB, 350 << 10, 21_000, 1.05, "refresh"),
    Part("nomic-coderank", 261 * MIB, 180 << 10, 44_000, 1.09, "hit"),
    Part("all-mpnet-base-v2", 209 * MIB, 150 << 10, 52_000, 0.96, "hit"),
    Part("all-minilm-l6", 44 * MIB, 60 << 10, 160_000, 0.96, "hit"),
)


@dataclass(frozen=True)
class Shelf:
    """A collection."""

    name: str
    files: int
    chunks: int
    duplicates: int
    refusals: tuple[tuple[str, int | None, str], ...] = ()
    borrows: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Distinct texts that stand here first."""
        return self.chunks - self.duplicates


SHELVES = (
    Shelf("Handbook", 14, 2310, 96),
    Shelf("Runbooks", 9, 1480, 210, (), ("Handbook",)),
    Shelf(
        "Source-Code",
        61,
        4120,
        35,
        (("src/vendor/legacy_chunks.json", 118, "the text is empty"),),
    ),
    Shelf(
        "Tickets",
        27,
        1960,
        12,
        (
            ("2019/export.jsonl", None, "the file is neither a list of chunks nor an object that holds one"),
            ("2021/q3.jsonl", 40, "chunk_id T-20417 of 2021/q3.md has been used before"),
        ),
    ),
)
PARKED_IN, UNVERIFIED = "Source-Code", "Tickets"


@dataclass(frozen=True)
class Cell:
    """One batch of one model; `lengths` of its rows in tokens, longest first."""

    model_pass: int
    index: int
    collection: str
    first_row: int
    lengths: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    @property
    def padding(self) -> int:
        return self.lengths[0] * len(self.lengths) - self.tokens


def cells_of(model_pass: int, part: Part) -> list[Cell]:
    """A pass: collection by collection, in each the longest rows first."""
    cells: list[Cell] = []
    first_row = 0
    for shelf in SHELVES:
        lengths = _lengths(part, shelf.rows)
        for cut in slices(lengths, BATCH_TOKENS, padded=True):
            rows = tuple(lengths[cut])
            cells.append(Cell(model_pass, len(cells), shelf.name, first_row + cut.start, rows))
        first_row += shelf.rows
    return cells


def _lengths(part: Part, rows: int) -> list[int]:
    """A few long texts and many short ones."""
    most = part.spec.max_tokens or BATCH_TOKENS
    return [min(most, round(part.factor * (24 + 500 * (1 - (place + 0.5) / rows) ** 2.6))) for place in range(rows)]


def share_of(cells: Sequence[Cell], part: Part, shelf: Shelf) -> ev.PassPlanned:
    """What a pass will do for a collection."""
    mine = [cell for cell in cells if cell.collection == shelf.name]
    full = part.spec.max_tokens or BATCH_TOKENS
    return ev.PassPlanned(
        model_pass=mine[0].model_pass,
        model=part.key,
        collection=shelf.name,
        first_batch=mine[0].index,
        batches=len(mine),
        rows=shelf.rows,
        reused=0,
        tokens=sum(cell.tokens for cell in mine),
        padding=sum(cell.padding for cell in mine),
        truncated=sum(length == full for cell in mine for length in cell.lengths),
        truncated_tokens=0,
        plan=digest(part.key, shelf.name)[:16],
        flops=sum(part.cost.of(len(cell.lengths), cell.tokens + cell.padding) for cell in mine),
        cost=part.cost,
    )


def entry_of(part: Part, weight: float) -> ev.RosterEntry:
    """A model as it was resolved."""
    spec = part.spec
    return ev.RosterEntry(
        model=part.key,
        weight=weight,
        source=spec.sources[0],
        commit=digest("commit", part.key)[:40],
        fingerprint=digest("files", part.key),
        dim=spec.dim or 0,
        dtype="float16",
        max_tokens=spec.max_tokens or BATCH_TOKENS,
        document_prompt=spec.document_prompt or "",
        query_prompt=spec.query_prompt or "",
        batch_tokens=BATCH_TOKENS,
    )


def weights_of(models: int) -> list[float]:
    """Of the models in the fusion; the first weighs most."""
    return [2 * (models - place) / (models * (models + 1)) for place in range(models)]


class Mishap(Enum):
    """What goes wrong in a cell."""

    TIGHT = "the batch is too large for what is free"
    SHORT = "nothing on the card helps a row"
    REFUSED = "vectors come out not finite"


REFUSAL = "it is not finite"
ODD_ROWS = 3
"""Rows whose vectors are refused at first."""


def mishaps_of(grid: Sequence[Sequence[Cell]]) -> dict[tuple[int, int], Mishap]:
    """By (model_pass, batch_index)."""
    first, second, last = grid[0], grid[min(1, len(grid) - 1)], grid[min(2, len(grid) - 1)]
    odd = [cell for cell in last if cell.collection == PARKED_IN][len(SHELVES)]
    found = {first[5]: Mishap.TIGHT, second[len(second) * 2 // 5]: Mishap.SHORT, odd: Mishap.REFUSED}
    return {(cell.model_pass, cell.index): mishap for cell, mishap in found.items()}


def climb(part: Part, cell: Cell, mishap: Mishap, means: Means) -> Iterator[tuple[Step, Evidence]]:
    """Every rung that the hardest piece of the batch takes, up to the one that helps or the last."""
    refused = mishap is Mishap.REFUSED
    effort, lengths = Effort(), cell.lengths[:ODD_ROWS] if refused else cell.lengths
    while True:
        evidence = _evidence(part, Cause.NOT_FINITE if refused else Cause.MEMORY, lengths)
        step = next_step(effort, evidence, means)
        yield step, evidence
        if step.rung is Rung.PARK or mishap is Mishap.TIGHT or (step.rung is Rung.CPU and not refused):
            return
        if step.rung is Rung.CPU:
            means = replace(means, others=False, cpu=False)
        lengths, effort = lengths[step.pieces(lengths, padded=True)[0]], step.effort


def mitigated(device: str, cell: Cell, mishap: Mishap, step: Step, evidence: Evidence, cost: float) -> ev.Mitigated:
    """What is told of a rung."""
    what, _, action = step.reason.partition("; ")
    refused = mishap is Mishap.REFUSED
    return ev.Mitigated(
        model_pass=cell.model_pass,
        batch_index=cell.index,
        cause=f"a vector was refused: {REFUSAL}" if refused else what,
        action=action,
        rows=evidence.rows,
        cost_seconds=round(cost, 6),
        rung=step.rung,
        device=device,
        predicted_bytes=None if refused else evidence.predicted,
        free_bytes=None if refused else evidence.room,
    )


def parked(cell: Cell, part: Part, reason: str) -> ev.RowParked:
    """The hardest row of a cell has no vector."""
    return ev.RowParked(
        model_pass=cell.model_pass,
        model=part.key,
        collection=cell.collection,
        row=cell.first_row,
        reason=reason,
        batch_index=cell.index,
    )


def _evidence(part: Part, cause: Cause, lengths: Sequence[int]) -> Evidence:
    longest, tokens = lengths[0], lengths[0] * len(lengths)
    allowed = max(longest, tokens // 3)
    size = part.per_token if cause is Cause.MEMORY else 0
    predicted, room = size * tokens, size * min(allowed, tokens * 2 // 3)
    return Evidence(cause, len(lengths), longest, tokens, predicted, room, allowed if len(lengths) > 1 else 0)


def places_of(cards: Sequence[str], room: int) -> list[DeviceRoom]:
    """What can be leased: the cards, and the host."""
    return [*(DeviceRoom(name, KIND, room) for name in cards), DeviceRoom(HOST, HOST, HOST_ROOM)]


def facts_of(number: int) -> ev.DeviceFacts:
    """A card that is not there."""
    return ev.DeviceFacts(
        name=f"cuda:{number}", kind=KIND, label="T4 (scripted)", total_bytes=CARD_BYTES, ceiling_bytes=CEILING
    )


def digest(*parts: object) -> str:
    """A hex digest that follows from `parts`."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()
