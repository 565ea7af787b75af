"""Large published models without content on simulated T4s, computed by the engine's own passes.

`engine/flows/weightless.py` says what is real of them. Here are also those that transformers builds.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from interlock.engine.compute.context import Backend, RunContext
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.executor import PassExecutor
from interlock.engine.compute.schedule import Schedule
from interlock.engine.compute.source import BatchSource
from interlock.engine.flows import weightless
from interlock.engine.flows.weightless import META, WeightlessGpu, WeightlessHost, WeightlessNetwork, WeightlessRows
from interlock.engine.gpu.faults import Fault
from interlock.engine.gpu.lease import Lessor
from interlock.engine.gpu.sim import CARDS
from interlock.engine.models.assets import ModelSnapshot
from interlock.engine.models.card import ModelCard
from interlock.engine.models.masters import Masters
from interlock.engine.models.memory import Law, law_of
from interlock.engine.models.networks.kernels import Kernel
from interlock.engine.models.weights import DTYPES, Master
from interlock.engine.record import events as ev
from interlock.engine.record.summary import Summary, summarise
from tests.architectures import ARCHITECTURES
from tests.harness import File, Told, grid_of
from tests.oracle import blank

LIMIT = 8192


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


def ids_of(text: int, length: int) -> np.ndarray:
    """The ids of a text are its number."""
    return np.full(length, text)


def vectors_of(lengths: Sequence[int], dim: int) -> np.ndarray:
    """The unit vectors that texts of these lengths are given."""
    return weightless.vectors_of([ids_of(text, length) for text, length in enumerate(lengths)], dim)


class T4(WeightlessGpu):
    """A card that knows the most that it ever occupied, by its allocator."""

    def __init__(self, number: int, faults: Sequence[Fault] = ()) -> None:
        super().__init__(f"cuda:{number}", CARDS["T4"], faults)
        self._most = 0

    @property
    def most(self) -> int:
        return max(self._most, self.peak().occupied)

    def start_peak(self) -> None:
        self._most = self.most
        super().start_peak()


def load(card: ModelCard) -> WeightlessNetwork:
    """A network in place of reading files: ours, or one that transformers builds."""
    with META:
        network = blank(card.config, card.attention, DTYPES[card.dtype], packed=card.packed)
    return WeightlessNetwork(network, law(card, "sim"), packed=card.packed)


def hydrate(card: ModelCard) -> Master:
    with META:
        return Master(load(card))


def law(card: ModelCard, kind: str) -> Law:
    """The law in float16; the host computes in float32."""
    size = 4 if kind == "cpu" else 2
    return law_of(ARCHITECTURES[card.key], size, packed=card.packed, attends=card.attention, kernel=Kernel.HOST)


class Desk(Told):
    """Models, texts and cards; what came of computing them. `hears` is told of every event."""

    def __init__(self, cards: Sequence[ModelCard], lengths: Sequence[int], gpus: Sequence[T4], ceiling: int) -> None:
        super().__init__()
        self.cards, self.lengths, self.gpus, self.ceiling = cards, lengths, gpus, ceiling
        self.hears: Callable[[ev.AnyEvent], object] = lambda _: None
        self.files: list[File] = []

    def told(self, event: ev.AnyEvent) -> None:
        self.hears(event)

    def compute(self, schedule: Schedule, *, window: int = 0, cpu_fallback: bool = True) -> Summary:
        """All passes by the engine's executor; the folded summary."""
        host, controls, cells = WeightlessHost(), Controls(), grid_of(self.cards, self.lengths, ids_of)
        self.files = [each.files for each in cells]
        controls.begin(schedule, window, cpu_fallback=cpu_fallback)
        self.begin(cells, self.gpus, self.ceiling, schedule, "T4")
        context = RunContext(
            devices=self.gpus,
            host=host,
            lessor=Lessor([*self.gpus, host], self.ceiling),
            masters=Masters(1 << 40, hydrate),
            controls=controls,
            emit=self,
            sync=lambda: None,
            backend=Backend(laws=law, encoders=lambda card, network, _: WeightlessRows(card, network), load=load),
        )
        PassExecutor(BatchSource(cells, [[] for _ in cells], [1.0] * len(cells), context.emit), context).run()
        return summarise(self.state)
