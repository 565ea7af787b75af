"""What the head of a run is measured with: a run's grid without a corpus, and nodes that compute nothing.

An echo answers at once with vectors that it made beforehand: in the head's own thread, where its own time is counted
apart, or in a process of Ray's. So what is left is the head's: ids read and handed out, vectors written and checked,
events journalled. A sleeper is a real node, whose encoder sleeps.
"""

import pickle
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from interlock.engine.compute.cluster.head import ClusterExecutor
from interlock.engine.compute.cluster.members import ClusterMembers
from interlock.engine.compute.cluster.messages import (
    Cluster,
    GridPlan,
    Hello,
    ModelFiles,
    NodeEvent,
    NodeMachine,
    Orders,
    Ready,
    RemoteFacts,
    Report,
    Welcome,
)
from interlock.engine.compute.cluster.node import ClusterNode, versions
from interlock.engine.compute.context import Backend, Deadline
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.job import Job, lay_out
from interlock.engine.compute.parts.outputs import Outputs, PassFiles
from interlock.engine.compute.schedule import Schedule
from interlock.engine.compute.source import BatchSource
from interlock.engine.corpus.collections import Collection
from interlock.engine.corpus.corpus import Rows
from interlock.engine.corpus.tokens import Specials, Tokenised
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.models.assets import Policy
from interlock.engine.models.card import ModelCard
from interlock.engine.models.registry import ModelSpec
from interlock.engine.record import events as ev
from interlock.engine.record.facts import DeviceFacts
from interlock.engine.record.journal import Journal
from interlock.engine.record.recorder import Recorder
from tests.harness import Told
from tests.threads import Threads
from tests.weightless import card_of

AHEAD = 8
"""Batches that an echo takes at a time."""
GIB = 1 << 30


class Texts(Tokenised):
    """Texts of one length, whose ids lie in a mapped file, as those of a run do."""

    def __init__(self, path: Path, texts: int, length: int, words: int) -> None:
        super().__init__(np.full(texts, length, np.int64), Specials((), ()))
        some = np.random.default_rng(3).integers(5, words, 4096 * length, np.uint32).tobytes()
        with path.open("wb") as handle:
            for _ in range(0, texts, 4096):
                handle.write(some)
        self._ids, self._length = np.memmap(path, np.uint32, mode="r"), length

    def stored(self, text: int) -> Any:
        return self._ids[text * self._length : (text + 1) * self._length]


class Stage:
    """A run of one pass that has been planned: so many texts of `length` tokens, and batches of so many of them."""

    def __init__(self, place: Path, card: ModelCard, texts: int, length: int, texts_a_batch: int = 64) -> None:
        place.mkdir(parents=True)
        self.place, self.texts, self.length, self.texts_a_batch = place, texts, length, texts_a_batch
        self.card = replace(card, batch_tokens=texts_a_batch * length, max_tokens=length)
        tokens = Texts(place / "ids", texts, length, card.config["vocab_size"])
        corpus = [Rows(Collection("all", "all", Path("c"), ()), 0, own_texts=texts)]
        layout = lay_out(0, self.card, tokens, corpus, np.zeros(texts, np.bool_))
        self.cells = Job(0, layout, tokens, PassFiles.open(place / "pass", self.card, texts))

    @property
    def batches(self) -> int:
        return len(self.cells.batches)


def weightless(dim: int) -> ModelCard:
    """The card of a model that nobody computes."""
    return replace(card_of("XLM-R-large", packed=True), dim=dim)


@dataclass(frozen=True)
class Spent:
    """What a head spent on a pass: seconds of its thread, of its whole process, and on the wall."""

    cpu: float
    process: float
    wall: float
    anonymous: int
    """Most bytes of memory that is no file's, beyond those before."""


def conduct(stage: Stage, cluster: Cluster, spec: ModelSpec | None = None) -> Spent:
    """Have a head compute a stage on a cluster; `spec` is where nodes find the model."""
    journal = Journal(stage.place / "journal.jsonl")
    try:
        recorder = Recorder(journal, "sim")
        said = _Said(recorder)
        said.begin([stage.cells], [], GIB, "exclusive", "bench")
        controls = Controls()
        controls.begin(Schedule.EXCLUSIVE, 0, cpu_fallback=False)
        crew = ClusterMembers(cluster, Hello("bench", "", "auto", (), GIB, GIB, GIB, 1), versions())
        crew.gather()
        specs = {0: spec or ModelSpec(stage.card.key, ("none",))}
        crew.begin(GridPlan.of([stage.cells], specs, Policy(offline=True), controls), _nothing_to_send)
        backlog = BatchSource([stage.cells], [()], [1.0], recorder.emit)
        head = ClusterExecutor(backlog, crew, controls, recorder.emit, journal.sync, Deadline(None, controls))
        with anonymous() as most:
            before = _clocks()
            head.run()
            took = [now - then for now, then in zip(_clocks(), before, strict=True)]
        assert said.completed == stage.texts, "every text once"
    finally:
        journal.close()
    return Spent(*took, most[0])


def _clocks() -> tuple[float, float, float]:
    return time.process_time(), time.process_time(), time.monotonic()


def _nothing_to_send(model: str) -> ModelFiles:
    raise AssertionError(f"{model} is lacking nowhere")


class _Said(Told):
    """What a run says before its passes, said to a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __call__(self, event: ev.AnyEvent) -> None:
        self._recorder.emit(event)

    @property
    def completed(self) -> int:
        return self._recorder.look(lambda state: sum(each.rows for each in state.committed[0].values()))


@contextmanager
def anonymous() -> Iterator[list[int]]:
    """Sample this process's anonymous memory; the list has the most of it beyond that before, at the end."""
    process, most, over = psutil.Process(), [0], threading.Event()
    before = _anonymous(process)

    def watch() -> None:
        while not over.wait(0.05):
            most[0] = max(most[0], _anonymous(process) - before)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield most
    finally:
        over.set()
        watching.join()


def _anonymous(process: psutil.Process) -> int:
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


class Echo:
    """A node that commits at once whatever it is handed, with vectors that it made beforehand."""

    def __init__(self) -> None:
        self.cpu = 0.0
        """Seconds of answering."""
        self.exchanges = 0
        self._cut: dict[int, tuple[Outputs, int]] = {}
        self._passes: set[int] = set()

    def welcome(self, hello: Hello) -> Welcome:
        self._device = f"{hello.node}/cuda:0"
        facts = DeviceFacts(name=self._device, kind="sim", label="stand-in", total_bytes=GIB, ceiling_bytes=GIB)
        return Welcome([RemoteFacts(facts, (7, 5), 1)], versions())

    def begin(self, plan: GridPlan) -> Ready:
        self._layout = plan.passes[0].layout
        for rows in {len(batch.rows) for batch in self._layout.batches}:
            vectors = np.random.default_rng(7).standard_normal((rows, self._layout.card.dim), np.float32)
            outputs = Outputs(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
            self._cut[rows] = outputs, outputs.crc()
        return Ready()

    def exchange(self, orders: Orders) -> Report:
        began = time.thread_time()
        self._passes |= {number for number, batches in orders.left.items() if batches}
        self._passes -= orders.dry
        news = [self._news(index) for handed in orders.handed for index in handed.batches]
        idle = not self._passes
        wants = {} if idle else dict.fromkeys(self._passes, (AHEAD, len(self._layout.batches)))
        self.exchanges += 1
        self.cpu += time.thread_time() - began
        return Report(news, wants, idle=idle and not news, ended=orders.over)

    def idles(self, orders: Orders) -> bool:
        """Whether it has nothing to tell: it was handed nothing, and nothing has begun or ended."""
        return bool(self.exchanges) and not (orders.handed or orders.dry or orders.over or any(orders.left.values()))

    def nudge(self) -> None:
        """It never waits."""

    def close(self) -> None:
        """It holds nothing."""

    def _news(self, index: int) -> NodeEvent:
        batch = self._layout.batches[index]
        outputs, crc = self._cut[len(batch.rows)]
        event = ev.BatchCommitted(
            model_pass=0,
            batch_index=index,
            rows=len(batch.rows),
            tokens=batch.tokens,
            padding=0,
            seconds=0.1,
            device=self._device,
            crc=crc,
            dtype="float16",
        )
        return NodeEvent(event, outputs)


class RemoteEcho(Echo):
    """An echo in a process of its own, which waits there while it has nothing to tell."""

    def __init__(self) -> None:
        super().__init__()
        self._nudged = threading.Event()

    def exchange(self, orders: Orders) -> Report:
        if self.idles(orders):
            self._nudged.wait(orders.wait)
        self._nudged.clear()
        return super().exchange(orders)

    def nudge(self) -> None:
        self._nudged.set()


@dataclass
class Echoes:
    """A cluster of echoes in the head's own thread."""

    nodes: int
    links: "list[EchoLink]" = field(default_factory=list)

    def about(self) -> str:
        return "machines"

    def held(self, machine: NodeMachine) -> str:
        return ""

    def want(self, more: int) -> None:
        pass

    def machines(self) -> Sequence[NodeMachine]:
        return [NodeMachine(f"machine-{number}", "echo") for number in range(self.nodes)]

    def start(self, machine: NodeMachine, hello: Hello) -> "EchoLink":
        self.links.append(EchoLink(Echo(), hello))
        return self.links[-1]

    def shared(self, value: GridPlan | ModelFiles) -> Any:
        return value

    def close(self) -> None:
        """There is nothing to end."""


@dataclass
class EchoLink:
    """The way to an echo, which answers at once, or when it is nudged; `said` are the bytes of its orders without the
    ids, but the first, which name all batches."""

    node: Echo
    hello: Hello
    said: int = 0
    _waits: "tuple[Future[Report], Orders] | None" = None

    def welcome(self) -> "Future[Welcome]":
        return _done(self.node.welcome(self.hello))

    def begin(self, plan: Any) -> "Future[Ready]":
        return _done(self.node.begin(plan))

    def take(self, files: Any) -> "Future[Ready]":
        return _done(Ready())

    def exchange(self, orders: Orders) -> "Future[Report]":
        if self.node.exchanges == 1:
            self.said = len(pickle.dumps(replace(orders, handed=())))
        if not self.node.idles(orders):
            return _done(self.node.exchange(orders))
        self._waits = Future(), orders
        return self._waits[0]

    def nudge(self) -> None:
        if self._waits:
            (answer, orders), self._waits = self._waits, None
            answer.set_result(self.node.exchange(orders))

    def close(self) -> None:
        """There is no process."""


def _done(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Sleeping:
    """An encoder that takes as long as it is told for a text, and gives every one a vector of its own."""

    padded = False

    def __init__(self, card: ModelCard, seconds: float) -> None:
        self._dim, self._seconds = card.dim, seconds

    def encode(self, rows: Sequence[Any]) -> Outputs:
        time.sleep(self._seconds * len(rows))
        first = np.array([row[0] for row in rows], np.float32)
        vectors = np.ones((len(rows), self._dim), np.float32)
        vectors[:, 0] = first
        return Outputs(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def sleepers(nodes: int, seconds: float) -> Threads:
    """A cluster of threads of this process: real nodes on the CPU, but for the encoder."""
    backend = Backend(devices=lambda *_: [CpuDevice()], encoders=lambda card, network, device: Sleeping(card, seconds))
    return Threads(lambda _: ClusterNode(backend), [f"m{number}" for number in range(nodes)])
