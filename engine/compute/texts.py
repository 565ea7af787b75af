"""Texts that models compute outside a run, such as questions and judged texts: jobs in memory, and what executes them.

On GPUs they are passes of the executor of runs, with its leases, canaries, ladder and receipts. On the CPU a model
computes at once, and stays in memory from one call to the next where it is kept.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np
from tokenizers import Tokenizer

from interlock.engine.compute.context import Granted, RunContext
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.executor import PassExecutor
from interlock.engine.compute.held import HeldModel
from interlock.engine.compute.job import Job, in_memory
from interlock.engine.compute.parts.outputs import Gathered, Outputs
from interlock.engine.compute.parts.term_table import TermTable, table_of
from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.compute.schedule import Schedule
from interlock.engine.compute.source import BatchSource
from interlock.engine.corpus.places import starts_of
from interlock.engine.corpus.tokens import Ids, Specials, Tokenised, encoded, load_tokenizer, naming, specials_of
from interlock.engine.errors import ExitCode, UnavailableError
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.lease import Lessor
from interlock.engine.gpu.locks import holding
from interlock.engine.models.card import ModelCard
from interlock.engine.models.masters import Masters, hydrated_for
from interlock.engine.record.events import AnyEvent, BatchCommitted, Emit, PassFailed

Progress = Callable[[str, int], object]
"""Takes the key of a model, and how many of its texts are done; 0 of one that is loaded next."""


def unheard(model: str, texts: int) -> None:
    """Take progress that nobody asked for."""


class TextsInMemory(Tokenised):
    """Texts behind a prompt, as ids without special tokens."""

    def __init__(self, tokenizer: Tokenizer, specials: Specials, prompt: str, texts: Sequence[str]) -> None:
        self._ids = [np.asarray(each.ids, np.uint32) for each in encoded(tokenizer, [prompt + text for text in texts])]
        super().__init__(np.array([len(each) for each in self._ids], np.int64), specials)
        self.prompt = prompt

    def stored(self, text: int) -> Ids:
        return self._ids[text]


@dataclass(frozen=True)
class Encoded:
    """What a model gives of texts, one row each, and the seconds that computing it took: of a CPU's time, or of all
    GPUs together."""

    rows: Outputs
    seconds: float


class TextJobs(ABC):
    """Makes jobs of texts, and computes them; tokenizers are read once."""

    devices: Sequence[Device]
    """What it computes on."""
    loading: float = 0.0
    """Seconds that bringing models into memory took of the last `compute`, where nothing else tells."""
    name = "questions"
    """What the texts are called in events."""

    def __init__(self) -> None:
        self._tokenizers: dict[str, tuple[ModelCard, Tokenizer, Specials]] = {}

    def job(self, card: ModelCard, prompt: str, texts: Sequence[str]) -> Job:
        """Make a job of texts, each behind a prompt and cut at the model's limit. Raises UnavailableError for what the
        model's tokenizer cannot take."""
        with naming([card.key], card.tokenizer_file):
            known = self._tokenizers.get(card.key)
            if known is None or known[0] is not card:
                tokenizer = load_tokenizer(card.tokenizer_file)
                known = self._tokenizers[card.key] = card, tokenizer, specials_of(tokenizer)
            return in_memory(card.behind(prompt), TextsInMemory(*known[1:], prompt, texts), self.name)

    @property
    def resident(self) -> list[str]:
        """The keys of the models that stay in memory."""
        return []

    @abstractmethod
    def compute(self, jobs: Sequence[Job], progress: Progress = unheard) -> list[Encoded]:
        """Compute what each model gives of its texts, in their order; a text that nothing helps is parked.

        Raises UnavailableError where one does not fit or cannot be computed.
        """


class GpuJobs(TextJobs):
    """Computes jobs on GPUs, of which there is at least one."""

    def __init__(self, on: Granted, name: str = "questions") -> None:
        """`name` is also who holds the GPUs meanwhile."""
        super().__init__()
        self.devices, self.name, self._on = on.gpus, name, on

    def compute(self, jobs: Sequence[Job], progress: Progress = unheard) -> list[Encoded]:
        """Compute a pass for each job. Raises UnavailableError where one fails or another process holds a GPU; an
        interrupt ends after the batches that are being computed."""
        grid = [replace(job, model_pass=number, files=Gathered()) for number, job in enumerate(jobs)]
        done: list[list[BatchCommitted]] = [[] for _ in grid]
        failed = dict[int, str]()

        def heard(event: AnyEvent) -> None:
            self._on.emit(event)
            if isinstance(event, PassFailed):
                failed[event.model_pass] = event.reason
            elif isinstance(event, BatchCommitted):
                own = done[event.model_pass]
                own.append(event)
                progress(jobs[event.model_pass].card.key, sum(batch.rows for batch in own))

        with holding(self.devices, self.name):
            self._run(grid, heard)
        if failed:
            number, why = min(failed.items())
            raise UnavailableError(f"model {jobs[number].card.key}: {why}")
        return [Encoded(job.gathered(), sum(batch.seconds for batch in done[job.model_pass])) for job in grid]

    def _run(self, grid: Sequence[Job], heard: Emit) -> None:
        """Compute a grid; an interrupt comes to the thread that waits, and not to those that compute."""
        on, controls, masters = self._on, Controls(), Masters(0, hydrated_for(self.devices[0]))
        controls.begin(Schedule.EXCLUSIVE, 0, cpu_fallback=on.cpu_fallback)
        context = RunContext(on.gpus, on.host, on.lessor, masters, controls, heard, sync=lambda: None)
        executor = PassExecutor(BatchSource(grid, [[] for _ in grid], [1.0] * len(grid), heard), context)
        with ThreadPoolExecutor(1, "passes") as beside:
            passes = beside.submit(executor.run)
            try:
                passes.result()
            except BaseException:
                controls.stop(ExitCode.INTERRUPTED)
                raise


class HeldJobs(TextJobs, AbstractContextManager["HeldJobs"]):
    """Computes jobs on a CPU, or on GPUs with a model where each fits; a context manager, which lets every model go."""

    def __init__(self, on: Granted | Lessor, *, kept: bool = False) -> None:
        """`on` are GPUs and the CPU, or who lends the CPU alone; `kept` holds the models of one call for the next, else
        each goes before the next is loaded."""
        super().__init__()
        self._on = on if isinstance(on, Granted) else Granted([], on.devices[0], on, lambda event: None)
        self.devices, self._kept = self._on.gpus or [self._on.host], kept
        self._models: dict[str, HeldModel] = {}

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let every model go, and its lease."""
        while self._models:
            self._models.popitem()[1].close()

    @property
    def resident(self) -> list[str]:
        """The keys of the models in memory."""
        return [key for key, model in self._models.items() if model.instance]

    def compute(self, jobs: Sequence[Job], progress: Progress = unheard) -> list[Encoded]:
        """Compute jobs one after the other."""
        self.loading, found = 0.0, []
        for job in jobs:
            try:
                found.append(self._computed(job, progress))
            finally:
                if not self._kept:
                    self.close()
        return found

    def _computed(self, job: Job, progress: Progress) -> Encoded:
        key, card = job.card.key, replace(job.card, kernel=job.card.kernel.plain)  # no canary looks at it
        model = self._models.get(key)
        if model is None or not model.becomes(card):  # made anew where it has changed
            if model:
                model.close()
            model = self._models[key] = HeldModel(card, self._on)
        if not model.instance:
            progress(key, 0)
            before = model.loading
            model.load(job)
            self.loading += model.loading - before
        began = time.process_time()
        model.compute(job, lambda done: progress(key, done))
        return Encoded(job.gathered(), time.process_time() - began)


def encode_texts(card: ModelCard, texts: Sequence[str], prompt: str, lessor: Lessor) -> Outputs:
    """Compute what one text or more give on the CPU, under a lease of their own."""
    on = HeldJobs(lessor)
    return on.compute([on.job(card, prompt, texts)])[0].rows


def weigh_queries(card: ModelCard, texts: Sequence[str], lessor: Lessor) -> SparseRows:
    """Weigh the terms of queries: by the model's table where it has one, which needs no lease, else by its network.

    Raises UnavailableError for a model whose queries go another way.
    """
    table = table_of(card)
    return by_table(card, table, texts) if table else _by_network(card, texts, card.query_prompt, lessor)


def weigh_documents(card: ModelCard, texts: Sequence[str], lessor: Lessor) -> SparseRows:
    """Weigh the terms of texts as a run does, under a lease of their own."""
    return _by_network(card, texts, card.document_prompt, lessor)


def _by_network(card: ModelCard, texts: Sequence[str], prompt: str, lessor: Lessor) -> SparseRows:
    if not texts:
        return SparseRows.from_dense(np.empty((0, card.dim), np.float32))
    terms = encode_texts(card, texts, prompt, lessor).terms
    assert terms is not None, "a sparse model weighs terms"
    return terms


def by_table(card: ModelCard, table: TermTable, texts: Sequence[str]) -> SparseRows:
    """Weigh the terms of queries by the table of their model: no network, and no lease."""
    terms = table.weigh([card.query_prompt + text for text in texts])
    indices = np.concatenate([*terms, np.empty(0, np.int64)])
    starts = starts_of(np.array([len(each) for each in terms], np.int64))
    rows = SparseRows(starts, indices.astype(np.int32), table.weights[indices], np.zeros(len(terms), np.bool_))
    return rows.heaviest(card.terms.most, card.words)
