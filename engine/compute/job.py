"""Jobs: texts that a model computes outside a run, such as questions and judged texts, and what executes them.

On GPUs each job is a pass of the executor of runs, with its leases, canaries, ladder and receipts; what the passes give
is read from scratch files and kept nowhere. On the CPU a model is attached under a lease and computes at once, and
stays in memory from one call to the next where it is kept.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.batches import plan
from interlock.engine.compute.context import RunContext
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.encoder import Ids, computed_tokens, encoder_for
from interlock.engine.compute.executor import PassExecutor
from interlock.engine.compute.grid import Cells, lay_out
from interlock.engine.compute.parts.outputs import Outputs, PassFiles
from interlock.engine.compute.parts.term_table import TermTable, table_of
from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.compute.schedule import Schedule
from interlock.engine.compute.source import BatchSource
from interlock.engine.corpus.collections import Collection
from interlock.engine.corpus.corpus import Rows
from interlock.engine.corpus.ragged import starts_of
from interlock.engine.corpus.tokens import TokenStore, encoded, load_tokenizer, naming, specials_of
from interlock.engine.errors import ExitCode, UnavailableError
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.lease import Lessor
from interlock.engine.gpu.locks import holding
from interlock.engine.models.card import ModelCard
from interlock.engine.models.masters import Masters, hydrated_for
from interlock.engine.models.memory import Law, law_for
from interlock.engine.models.weights import Attached, attach_to_host
from interlock.engine.record.events import AnyEvent, BatchCommitted, Emit, PassFailed

Progress = Callable[[str, int], object]
"""Takes the key of a model, and how many of its texts are done; 0 of one that is loaded next."""


def unheard(model: str, texts: int) -> None:
    """Take progress that nobody asked for."""


ROOM = 512
"""Tokens of a text that a kept lease has room for from the beginning; a longer one takes another lease."""
MOST_SPECIALS = 8
"""Special tokens of a row, at most, so far as no tokenizer has to be asked."""


@dataclass(frozen=True)
class Job:
    """Texts for a model, each behind a prompt and cut at the model's limit."""

    card: ModelCard
    prompt: str
    texts: Sequence[str]

    def rows(self) -> list[Ids]:
        """Return the token ids of each text, special tokens included."""
        return _HostModel(self.card).rows(self)


@dataclass(frozen=True)
class Encoded:
    """What a model gives of texts, one row each, and the seconds that computing it took: of a CPU's time, or of all
    GPUs together."""

    rows: Outputs
    seconds: float


class JobExecutor(Protocol):
    """Computes jobs."""

    @property
    def devices(self) -> Sequence[Device]:
        """What it computes on."""

    @property
    def resident(self) -> list[str]:
        """The keys of the models that stay in memory."""

    @property
    def loading(self) -> float:
        """Seconds that bringing models into memory took of the last `compute`, where nothing else tells."""

    def compute(self, jobs: Sequence[Job], progress: Progress = ..., /) -> list[Encoded]:
        """Compute what each model gives of its texts, in their order. Raises UnavailableError where one does not fit or
        cannot be computed."""


@dataclass(frozen=True)
class GpuJobs:
    """Computes jobs on GPUs, of which there is at least one; `lessor` lends them, and `host`, the CPU.

    `name` is what the texts are called in events, and who holds the GPUs meanwhile.
    """

    devices: Sequence[Device]
    host: Device
    lessor: Lessor
    emit: Emit
    cpu_fallback: bool = True
    name: str = "questions"

    @property
    def resident(self) -> list[str]:
        return []

    @property
    def loading(self) -> float:
        return 0.0  # the events of the leases tell

    def compute(self, jobs: Sequence[Job], progress: Progress = unheard) -> list[Encoded]:
        """Compute a pass for each job; a text that nothing helps is parked.

        Raises UnavailableError where a pass fails or another process holds a GPU; an interrupt ends after the batches
        that are being computed.
        """
        done: dict[int, list[BatchCommitted]] = {number: [] for number in range(len(jobs))}
        failed = dict[int, str]()

        def heard(event: AnyEvent) -> None:
            self.emit(event)
            if isinstance(event, PassFailed):
                failed[event.model_pass] = event.reason
            elif isinstance(event, BatchCommitted):
                own = done[event.model_pass]
                own.append(event)
                progress(jobs[event.model_pass].card.key, sum(batch.rows for batch in own))

        with TemporaryDirectory(prefix="interlock-") as scratch, holding(self.devices, self.name):
            grid = [self._cells(number, job, Path(scratch)) for number, job in enumerate(jobs)]
            self._run(grid, heard)
            if failed:
                number, why = min(failed.items())
                raise UnavailableError(f"model {jobs[number].card.key}: {why}")
            rows = [cells.files.take(np.arange(len(job.texts))) for cells, job in zip(grid, jobs, strict=True)]
        return [Encoded(each, sum(batch.seconds for batch in done[number])) for number, each in enumerate(rows)]

    def _run(self, grid: Sequence[Cells], heard: Emit) -> None:
        """Compute a grid; an interrupt comes to the thread that waits, and not to those that compute."""
        controls, masters = Controls(), Masters(0, hydrated_for(self.devices[0]))
        controls.begin(Schedule.EXCLUSIVE, 0, cpu_fallback=self.cpu_fallback)
        context = RunContext(self.devices, self.host, self.lessor, masters, controls, heard, sync=lambda: None)
        executor = PassExecutor(BatchSource(grid, [[] for _ in grid], [1.0] * len(grid), heard), context)
        with ThreadPoolExecutor(1, "passes") as beside:
            passes = beside.submit(executor.run)
            try:
                passes.result()
            except BaseException:
                controls.stop(ExitCode.INTERRUPTED)
                raise

    def _cells(self, number: int, job: Job, scratch: Path) -> Cells:
        card, texts = job.card, job.texts
        with naming([card.key], card.tokenizer_file):
            tokenizer = load_tokenizer(card.tokenizer_file)
            with TokenStore(scratch / f"{number}.ids", tokenizer, job.prompt, card.max_tokens) as store:
                store.add(texts)
        rows = Rows(Collection(self.name, self.name, scratch, ()), 0, own_texts=len(texts))
        layout = lay_out(number, card, store, [rows], np.zeros(len(texts), np.bool_))
        return Cells(number, layout, store, PassFiles.open(scratch / f"pass-{number}", card, len(texts)))


class HostJobs:
    """Computes jobs on a CPU, which `lessor` lends; a context manager, which lets every model go."""

    def __init__(self, lessor: Lessor, *, kept: bool = False) -> None:
        """`kept` holds the models of one call for the next, all under one lease; else each has a lease of its own, and
        goes."""
        (self._device,) = lessor.devices
        self._lessor, self._kept = lessor, kept
        self._models: dict[str, _HostModel] = {}
        self._lease = ExitStack()
        self._room: dict[str, int] = {}
        self.loading = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let every model go, and then the lease."""
        for model in self._models.values():
            model.attached = None
        self._lease.close()
        self._room.clear()

    @property
    def devices(self) -> Sequence[Device]:
        """The CPU."""
        return [self._device]

    @property
    def resident(self) -> list[str]:
        """The keys of the models in memory."""
        return [key for key, model in self._models.items() if model.attached]

    def hold(self, jobs: Sequence[Job]) -> None:
        """Have a lease with room for jobs that come later in parts."""
        self._hold({job.card.key: self._needs(self._model(job), self._model(job).rows(job)) for job in jobs})

    def compute(self, jobs: Sequence[Job], progress: Progress = unheard) -> list[Encoded]:
        """Compute jobs one after the other; with `kept` all of them hold their models at once."""
        self.loading, kept = 0.0, [jobs] if self._kept else [[job] for job in jobs]
        return [found for part in kept for found in self._computed(part, progress)]

    def _computed(self, jobs: Sequence[Job], progress: Progress) -> list[Encoded]:
        began = time.perf_counter()
        models = [self._model(job) for job in jobs]
        made = time.perf_counter() - began
        rows = [model.rows(job) for model, job in zip(models, jobs, strict=True)]
        began = time.perf_counter()
        try:
            self._hold({model.card.key: self._needs(model, own) for model, own in zip(models, rows, strict=True)})
            if cold := [model for model in models if not model.attached]:
                for model in cold:
                    progress(model.card.key, 0)
                    model.attached = attach_to_host(model.card, self._device)
                self.loading += made + time.perf_counter() - began
            return [model.encode(own, self._device, progress) for model, own in zip(models, rows, strict=True)]
        finally:
            if not self._kept:
                self.close()
                self._models.clear()

    def _model(self, job: Job) -> "_HostModel":
        """The model of a job; made anew where it has changed."""
        known = self._models.get(job.card.key)
        if known is None or known.card is not job.card:
            self._models[job.card.key] = _HostModel(job.card)
        return self._models[job.card.key]

    def _needs(self, model: "_HostModel", rows: Sequence[Ids]) -> int:
        """Predict the most bytes that rows take, weights included."""
        card, law = model.card, model.law
        given = np.array([*map(len, rows), *([min(ROOM, card.max_tokens)] if self._kept else [])], np.int64)
        each = [given[batch].tolist() for batch in _batches(card, given)]
        return max(law.peak(computed_tokens(one, padded=not card.packed), max(one)) for one in each)

    def _hold(self, wanted: Mapping[str, int]) -> None:
        """Have a lease of at least these bytes for each model: the one there is, or a larger one."""
        if all(self._room.get(key, 0) >= size for key, size in wanted.items()):
            return
        room = {**self._room, **{key: max(size, self._room.get(key, 0)) for key, size in wanted.items()}}
        self.close()
        holder, device = ", ".join(room), self._device
        self._lease.enter_context(self._lessor.lease(holder, {device.name: sum(room.values())}, lambda _: None))
        self._room = room


class _HostModel:
    """A model on a device without copies to and fro, and its tokenizer."""

    def __init__(self, card: ModelCard) -> None:
        with naming([card.key], card.tokenizer_file):
            self._tokenizer = load_tokenizer(card.tokenizer_file)
            self._specials = specials_of(self._tokenizer)
        self.card = card
        self.attached: Attached | None = None

    @cached_property
    def law(self) -> Law:
        """Its memory law on a CPU."""
        return law_for(self.card, "cpu")

    def rows(self, job: Job) -> list[Ids]:
        """Return the token ids of each text behind its prompt, cut to what the model takes."""
        room = self.card.max_tokens - self._specials.count
        before, after = self._specials.before, self._specials.after
        with naming([self.card.key], self.card.tokenizer_file):
            encodings = encoded(self._tokenizer, [job.prompt + text for text in job.texts])
        return [np.asarray([*before, *encoding.ids[:room], *after], np.int64) for encoding in encodings]

    def encode(self, rows: Sequence[Ids], device: Device, progress: Progress) -> Encoded:
        """Compute what rows of token ids give."""
        assert self.attached, "it is in memory"
        encoder, pieces, done = encoder_for(self.card, self.attached.network, device), [], 0
        began = time.process_time()
        for batch in _batches(self.card, np.array([len(row) for row in rows])):
            pieces.append((batch, encoder.encode([rows[row] for row in batch])))
            progress(self.card.key, done := done + len(batch))
        return Encoded(pieces[0][1].joined(len(rows), pieces), time.process_time() - began)


def _batches(card: ModelCard, lengths: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    return [batch.rows for batch in plan(np.arange(len(lengths)), lengths, card.batch_tokens).batches]


def beyond_limit(job: Job) -> list[int]:
    """Count the tokens of each text that are cut off."""
    card, found = job.card, [0] * len(job.texts)
    sizes = [len((job.prompt + text).encode()) for text in job.texts]
    # a token has a byte at least
    if long := [at for at, size in enumerate(sizes) if size > card.max_tokens - MOST_SPECIALS]:
        with naming([card.key], card.tokenizer_file):
            tokenizer = load_tokenizer(card.tokenizer_file)
            room = card.max_tokens - specials_of(tokenizer).count
            for at, encoding in zip(long, encoded(tokenizer, [job.prompt + job.texts[at] for at in long]), strict=True):
                found[at] = max(0, len(encoding.ids) - room)
    return found


def encode_texts(card: ModelCard, texts: Sequence[str], prompt: str, lessor: Lessor) -> Outputs:
    """Compute what one text or more give on the CPU, under a lease of their own."""
    return HostJobs(lessor).compute([Job(card, prompt, texts)])[0].rows


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
