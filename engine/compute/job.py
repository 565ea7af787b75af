"""Texts outside a run, computed as a run computes a collection: a pass for each model over all of them.

Leases, canaries, the ladder and receipts are those of a run; what the passes give is read from scratch files and kept
nowhere.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from interlock.engine.compute.batches import plan
from interlock.engine.compute.context import RunContext
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.encoder import Ids, computed_tokens, encoder_for
from interlock.engine.compute.executor import PassExecutor
from interlock.engine.compute.grid import Cells, lay_out
from interlock.engine.compute.parts.outputs import Outputs, PassFiles
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
from interlock.engine.models.term_table import TermTable, table_of
from interlock.engine.models.trace import law_for
from interlock.engine.models.weights import Attached, attach_to_host
from interlock.engine.record.events import AnyEvent, BatchCommitted, Emit, PassFailed

Told = Callable[[str, int], object]
"""Hears which model has computed how many texts."""


@dataclass(frozen=True)
class TextPass:
    """Texts for a model, each behind a prompt and cut at the model's limit."""

    card: ModelCard
    prompt: str
    texts: Sequence[str]


@dataclass(frozen=True)
class Encoded:
    """What a model gives of texts, one row each, and the seconds that computing it took: of a CPU's time, or of all
    GPUs together."""

    rows: Outputs
    seconds: float


@dataclass(frozen=True)
class TextDevices:
    """Computes texts on GPUs, of which there is at least one; `lessor` lends them, and `host`, the CPU."""

    devices: Sequence[Device]
    host: Device
    lessor: Lessor
    emit: Emit
    cpu_fallback: bool = True

    def compute(self, asked: Sequence[TextPass], name: str, told: Told = lambda model, texts: None) -> list[Encoded]:
        """Compute what each model gives of its texts, in their order; a text that nothing helps is parked.

        `name` is what the texts are called in events, and who holds the GPUs meanwhile. Raises UnavailableError where a
        pass fails or another process holds a GPU; an interrupt ends after the batches that are being computed.
        """
        done: dict[int, list[BatchCommitted]] = {number: [] for number in range(len(asked))}
        failed = dict[int, str]()

        def heard(event: AnyEvent) -> None:
            self.emit(event)
            if isinstance(event, PassFailed):
                failed[event.model_pass] = event.reason
            elif isinstance(event, BatchCommitted):
                own = done[event.model_pass]
                own.append(event)
                told(asked[event.model_pass].card.key, sum(batch.rows for batch in own))

        with TemporaryDirectory(prefix="interlock-") as scratch, holding(self.devices, name):
            grid = [_cells(number, each, name, Path(scratch)) for number, each in enumerate(asked)]
            _interruptible(grid, self._context(heard))
            if failed:
                number, why = min(failed.items())
                raise UnavailableError(f"model {asked[number].card.key}: {why}")
            rows = [cells.files.take(np.arange(len(each.texts))) for cells, each in zip(grid, asked, strict=True)]
        return [Encoded(each, sum(batch.seconds for batch in done[number])) for number, each in enumerate(rows)]

    def _context(self, heard: Emit) -> RunContext:
        controls, masters = Controls(), Masters(0, hydrated_for(self.devices[0]))
        controls.begin(Schedule.EXCLUSIVE, 0, cpu_fallback=self.cpu_fallback)
        return RunContext(self.devices, self.host, self.lessor, masters, controls, heard, sync=lambda: None)


def _interruptible(grid: Sequence[Cells], context: RunContext) -> None:
    """Compute a grid; an interrupt comes to the thread that waits, and not to those that compute."""
    executor = PassExecutor(BatchSource(grid, [[] for _ in grid], [1.0] * len(grid), context.emit), context)
    with ThreadPoolExecutor(1, "passes") as beside:
        passes = beside.submit(executor.run)
        try:
            passes.result()
        except BaseException:
            context.controls.stop(ExitCode.INTERRUPTED)
            raise


def _cells(number: int, asked: TextPass, name: str, scratch: Path) -> Cells:
    card, texts = asked.card, asked.texts
    with naming([card.key], card.tokenizer_file):
        tokenizer = load_tokenizer(card.tokenizer_file)
        with TokenStore(scratch / f"{number}.ids", tokenizer, asked.prompt, card.max_tokens) as store:
            store.add(texts)
    rows = Rows(Collection(name, name, scratch, ()), 0, own_texts=len(texts))
    layout = lay_out(number, card, store, [rows], np.zeros(len(texts), np.bool_))
    return Cells(number, layout, store, PassFiles.open(scratch / f"pass-{number}", card, len(texts)))


MOST_SPECIALS = 8
"""Special tokens of a row, at most, so far as no tokenizer has to be asked."""


class HostEncoder:
    """Encodes texts outside a run, mostly questions, on a device without copies to and fro: a CPU.

    It is attached by `load`, or the first `encode`, under a lease that whoever calls it holds, and until `detach`.
    """

    def __init__(self, card: ModelCard, device: Device) -> None:
        with naming([card.key], card.tokenizer_file):
            self._tokenizer = load_tokenizer(card.tokenizer_file)
            self._specials = specials_of(self._tokenizer)
        self._card, self._device = card, device
        self._law = law_for(card, device.kind)
        self._attached: Attached | None = None

    @property
    def attached(self) -> bool:
        """Whether its weights are in memory."""
        return self._attached is not None

    def rows(self, texts: Sequence[str], prompt: str) -> list[Ids]:
        """Return the token ids of each text behind `prompt`, cut to what the model takes."""
        room = self._card.max_tokens - self._specials.count
        before, after = self._specials.before, self._specials.after
        with naming([self._card.key], self._card.tokenizer_file):
            encodings = encoded(self._tokenizer, [prompt + text for text in texts])
        return [np.asarray([*before, *encoding.ids[:room], *after], np.int64) for encoding in encodings]

    def needs(self, lengths: Sequence[int]) -> int:
        """Predict the most bytes that encoding rows of these lengths takes, weights included."""
        given, padded = np.array(lengths), not self._card.packed
        each = [given[batch].tolist() for batch in self._batches(given)]
        return max(self._law.peak(computed_tokens(one, padded=padded), max(one)) for one in each)

    def load(self) -> Attached:
        """Bring its weights into memory, where they are not."""
        if self._attached is None:
            self._attached = attach_to_host(self._card, self._device)
        return self._attached

    def encode(self, rows: Sequence[Ids], told: Callable[[int], object] = lambda rows: None) -> Outputs:
        """Compute what rows of token ids give; `told` hears 0 once the weights are there, and then how many are
        done."""
        encoder, pieces, done = encoder_for(self._card, self.load().network, self._device), [], 0
        told(done)
        for batch in self._batches(np.array([len(row) for row in rows])):
            pieces.append((batch, encoder.encode([rows[row] for row in batch])))
            told(done := done + len(batch))
        return pieces[0][1].joined(len(rows), pieces)

    def detach(self) -> None:
        """Let the weights go."""
        self._attached = None

    def _batches(self, lengths: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        return [batch.rows for batch in plan(np.arange(len(lengths)), lengths, self._card.batch_tokens).batches]


def beyond_limit(card: ModelCard, texts: Sequence[str], prompt: str) -> list[int]:
    """Count the tokens of each text that `encode_texts` would cut off."""
    found, sizes = [0] * len(texts), [len((prompt + text).encode()) for text in texts]
    long = [
        at for at, size in enumerate(sizes) if size > card.max_tokens - MOST_SPECIALS
    ]  # a token has a byte at least
    if long:
        with naming([card.key], card.tokenizer_file):
            tokenizer = load_tokenizer(card.tokenizer_file)
            room = card.max_tokens - specials_of(tokenizer).count
            for at, encoding in zip(long, encoded(tokenizer, [prompt + texts[at] for at in long]), strict=True):
                found[at] = max(0, len(encoding.ids) - room)
    return found


def encode_texts(
    card: ModelCard,
    texts: Sequence[str],
    prompt: str,
    lessor: Lessor,
    told: Callable[[int], object] = lambda rows: None,
) -> Outputs:
    """Compute what one text or more give, under a lease of their own; `told` hears what it does of
    `HostEncoder.encode`."""
    (device,) = lessor.devices
    encoder = HostEncoder(card, device)
    rows = encoder.rows(texts, prompt)
    with lessor.lease(card.key, {device.name: encoder.needs([len(row) for row in rows])}, lambda _: None):
        try:
            return encoder.encode(rows, told)
        finally:
            encoder.detach()


def weigh_queries(card: ModelCard, texts: Sequence[str], lessor: Lessor) -> SparseRows:
    """Weigh the terms of queries: by the model's table where it has one, which needs no lease, else by its network.

    Raises UnavailableError for a model whose queries go another way.
    """
    if table := table_of(card):
        return by_table(card, table, texts)
    return _by_network(card, texts, card.query_prompt, lessor)


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
