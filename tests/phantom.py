"""Full-size models without content, computed by the engine's own rounds on simulated cards that hold float16.

Real: configurations, the size and place of every weight, each operation of the forwards and each byte it allocates,
the allocator, leases, memory law, ladder, schedules, events. Phantom: tensors have a shape and no content, and the
vectors follow from the row's number; batches of short rows pass through `DEPTH` layers of all, because no peak depends
on the depth. The kernels are those that torch has for a CPU: what a T4's own take is not shown here.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.faults import Fault
from interlock.engine.gpu.lease import Lessor
from interlock.engine.gpu.memory import Law
from interlock.engine.gpu.sim import CARDS, SimDevice
from interlock.engine.intake.collections import Collection
from interlock.engine.intake.corpus import Rows
from interlock.engine.models.assets import ModelSnapshot
from interlock.engine.models.card import ModelCard
from interlock.engine.models.masters import Masters
from interlock.engine.models.network import PackedEncoder
from interlock.engine.models.roster import entry_of
from interlock.engine.models.stages import layers_of
from interlock.engine.models.trace import law_of
from interlock.engine.models.weights import DTYPES, Master
from interlock.engine.passes.controls import Controls
from interlock.engine.passes.executor import PassExecutor
from interlock.engine.passes.grid import Cells, lay_out
from interlock.engine.passes.resident import RunContext
from interlock.engine.passes.schedule import Schedule
from interlock.engine.record import events as ev
from interlock.engine.record.fold import fold
from interlock.engine.record.state import RunState
from interlock.engine.record.summary import Summary, summarise
from tests.architectures import ARCHITECTURES
from tests.memory import File, Tokens
from tests.oracle import blank_padded, forward, is_causal

LIMIT = 8192
DEPTH = 2
WHOLE = LIMIT
"""Rows from this length on pass through every layer."""
MODE = FakeTensorMode()
_COMPUTING = threading.RLock()  # what torch keeps of fake tensors is not made for two threads


def card_of(name: str, *, packed: bool = False, attention: str = "sdpa") -> ModelCard:
    """The card of a published configuration, with the engine's own batches for a GPU."""
    config = ARCHITECTURES[name]
    snapshot = ModelSnapshot(Path(name), name, None, "hit", (), name, 0, 0.0)
    return ModelCard(
        key=name,
        snapshot=snapshot,
        config=config,
        dim=config["hidden_size"],
        max_tokens=LIMIT,
        pooling="mean" if packed else "lasttoken",
        packed=packed,
        dtype="float16",
        document_prompt="",
        query_prompt="",
        batch_tokens=16384,
        attention=attention,
    )


def lengths_of(rows: int, seed: int) -> list[int]:
    """Tokens of chunks: most near 200, few above 1,000, and one as long as the models take.

    They go in steps of 32, so that many batches have one shape: torch remembers what it has worked out of a shape.
    """
    drawn = np.random.default_rng(seed).lognormal(np.log(180), 0.5, rows - 1) // 32 * 32
    lengths = [LIMIT, *np.clip(drawn, 32, 1504).astype(int).tolist()]
    np.random.default_rng(seed + 1).shuffle(lengths)
    return lengths


def vectors_of(rows: Sequence[int], dim: int) -> np.ndarray:
    """The unit vectors that a phantom gives to these rows; no two are alike."""
    drawn = np.array([np.random.default_rng(row).standard_normal(dim, np.float32) for row in rows])
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


class Phantom(nn.Module):
    """A model at its full size; called with the lengths of rows."""

    def __init__(self, card: ModelCard) -> None:
        super().__init__()
        self.card = card
        dtype = DTYPES[card.dtype]
        padded = None if card.packed else blank_padded(card.config, card.attention, dtype)
        self.network = padded or PackedEncoder.blank(card.config, dtype)

    def forward(self, lengths: Sequence[int]) -> None:
        with self._depth(len(layers_of(self.network)) if max(lengths) >= WHOLE else DEPTH):
            causal = is_causal(self.card.config, self.card.attention)
            forward(self.network, lengths, packed=self.card.packed, causal=causal)

    @contextmanager
    def _depth(self, layers: int) -> Iterator[None]:
        skipped = layers_of(self.network)[layers:]
        for layer in skipped:
            layer.forward = lambda hidden, *_, **__: hidden
        try:
            yield
        finally:
            for layer in skipped:
                del layer.forward


class T4(SimDevice):
    """A card whose tensors have no content; `most` is what it ever occupied, by its allocator."""

    def __init__(self, number: int, faults: Sequence[Fault] = ()) -> None:
        super().__init__(f"cuda:{number}", CARDS["T4"], faults, narrow=False)
        self._most = 0

    @property
    def most(self) -> int:
        return max(self._most, self.peak().occupied)

    def start_peak(self) -> None:
        self._most = self.most
        super().start_peak()

    @contextmanager
    def computing(self) -> Iterator[None]:
        with _COMPUTING, MODE, super().computing():
            yield


class Host(CpuDevice):
    """A host that has room for anything under the ceiling."""

    def room(self, ceiling: int) -> int:
        return 1 << 40

    @contextmanager
    def computing(self) -> Iterator[None]:
        with _COMPUTING, MODE:
            yield


class Encoder:
    """Has a phantom compute rows, and says what it gives to them; the ids of a row are its number."""

    def __init__(self, card: ModelCard, network: nn.Module) -> None:
        self.padded = not card.packed
        self._dim = card.dim
        self._network = network

    @torch.inference_mode()
    def encode(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        self._network([len(row) for row in rows])
        return vectors_of([int(row[0]) for row in rows], self._dim)


def load(card: ModelCard) -> Phantom:
    """In place of reading files."""
    with _COMPUTING, MODE:
        return Phantom(card)


def hydrate(card: ModelCard) -> Master:
    with _COMPUTING, MODE:
        return Master(Phantom(card))


@cache
def _law(name: str, packed: bool, attention: str) -> Law:
    with _COMPUTING:  # a thread that prefetches may be at it too
        return law_of(ARCHITECTURES[name], packed=packed, dtype=torch.float16, attention=attention)


def law(card: ModelCard, kind: str) -> Law:
    """The law in float16; the host's float32 takes twice as much."""
    half = _law(card.key, card.packed, card.attention)
    if kind != "cpu":
        return half
    phases = tuple((2 * fixed, 2 * slope) for fixed, slope in half.phases)
    return Law(2 * half.weights, 2 * half.constant, phases, 2 * half.square, line=2 * half.line)


@dataclass
class Desk:
    """Models, rows and cards; what came of computing them."""

    cards: Sequence[ModelCard]
    lengths: Sequence[int]
    gpus: Sequence[T4]
    ceiling: int
    hears: Callable[[ev.AnyEvent], object] = lambda _: None
    events: list[ev.AnyEvent] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    state: RunState = field(default_factory=RunState)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def compute(self, schedule: Schedule) -> Summary:
        """All passes by the engine's rounds; the folded summary."""
        host, controls, cells = Host(), Controls(), self._grid()
        controls.begin(schedule, 0, cpu_fallback=True)
        self._announce(cells, schedule)
        context = RunContext(
            devices=self.gpus,
            host=host,
            lessor=Lessor([*self.gpus, host], self.ceiling),
            masters=Masters(1 << 40, hydrate),
            controls=controls,
            emit=self,
            sync=lambda: None,
            laws=law,
            encoders=lambda card, network, _: Encoder(card, network),
            load=load,
        )
        PassExecutor(cells, [[] for _ in cells], [1.0] * len(cells), context).run()
        return summarise(self.state)

    def __call__(self, event: ev.AnyEvent) -> None:
        with self._lock:
            entry = ev.Entry(seq=len(self.events), at=0.0, session=0, elapsed=0.0, device_kind="sim", body=event)
            fold(self.state, entry)
            self.events.append(event)
        self.hears(event)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def _grid(self) -> list[Cells]:
        tokens: Any = Tokens(self.lengths, lambda row, length: np.full(length, row))
        corpus = [Rows(Collection("docs", "docs", Path("docs"), ()), 0, own_texts=len(self.lengths))]
        cells = []
        for number, card in enumerate(self.cards):
            layout = lay_out(number, card, tokens, corpus, np.zeros(len(self.lengths), np.bool_))
            file: Any = File(len(self.lengths), card.dim)
            self.files.append(file)
            cells.append(Cells(number, layout, tokens, file))
        return cells

    def _announce(self, cells: Sequence[Cells], schedule: Schedule) -> None:
        """What a run says before its rounds."""
        start = {"run_id": "T4", "chunks": "", "config": {}, "fusion": "none", "versions": {}, "environment": {}}
        self(ev.RunStarted(schedule=schedule, **start))
        facts = [
            ev.DeviceFacts(
                name=each.name, kind=each.kind, label=each.label, total_bytes=each.total, ceiling_bytes=self.ceiling
            )
            for each in self.gpus
        ]
        self(ev.DevicesFound(devices=facts))
        self(ev.RosterResolved(roster=[entry_of(each.card, 1.0, each.card.dim) for each in cells]))
        for each in cells:
            for share in each.layout.shares:
                self(share)
