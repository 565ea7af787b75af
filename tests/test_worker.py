"""A vector that must not be written is never written: it is tried once more, or parked with its reason."""

import errno
import re
import threading
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from interlock.engine.compute import worker as workers
from interlock.engine.compute.batch_runner import DeviceGone
from interlock.engine.compute.context import REAL, Backend
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.encoder import encoder_for
from interlock.engine.compute.parts.dense import DenseRows, VectorFile
from interlock.engine.compute.parts.outputs import Outputs, PassFiles
from interlock.engine.compute.source import Queue, Result
from interlock.engine.compute.worker import PROBES, Worker
from interlock.engine.errors import DiskError, ExitCode, InterlockError
from interlock.engine.flows.run import Run
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.models.memory import Calibration
from interlock.engine.record import events as ev
from interlock.engine.settings import load
from interlock.engine.targets.embedded import Store
from tests.builders import corpus, events_of, sentences, summary_of, tiny_model
from tests.harness import File, Told, grid_of
from tests.processes import until
from tests.weightless import card_of

POISON = "#"  # a sign that stands in no other text of these tests
TEXTS = [*sentences(12), f"this has a {POISON} in it", "a last one"]
BAD = 12


def poisoned(directory, seed=1):
    """`tiny-a` with one token whose embedding is NaN."""
    model = tiny_model(directory, seed=seed)
    token = Tokenizer.from_file(str(model / "tokenizer.json")).token_to_id(POISON)
    weights = load_file(model / "model.safetensors")
    (name,) = [name for name in weights if name.endswith("word_embeddings.weight")]
    weights[name] = weights[name].clone()
    weights[name][token] = torch.nan
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    return model


def embed(chunks, out, backend=REAL, **flags):
    run = Run(chunks, load({"out": str(out), **flags}, {}), Controls(), backend)
    return run.go(), run.directory.path


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory, tiny_b):
    """A run of a model that cannot encode one text, and of one that can; the store beside it."""
    place = tmp_path_factory.mktemp("spoilt")
    root = corpus(place / "in", {"Docs": {"a_chunks.json": TEXTS}})
    model = poisoned(place / "tiny-a")
    code, run = embed(root, place / "runs", roster=f"{model},{tiny_b}", keep="both", qdrant=str(place / "store"))
    assert code == ExitCode.FAILED
    return run


@pytest.fixture(scope="module")
def clean(tmp_path_factory, tiny_a, tiny_b):
    """The same run with a model whose weights are whole."""
    place = tmp_path_factory.mktemp("clean")
    root = corpus(place / "in", {"Docs": {"a_chunks.json": TEXTS}})
    code, run = embed(root, place / "runs", roster=f"{tiny_a},{tiny_b}")
    assert code == ExitCode.COMPLETED
    return run


def test_a_text_that_encodes_to_nan_is_parked_and_the_run_incomplete(spoilt):
    said = summary_of(spoilt)
    (docs,) = said["collections"]
    assert (said["status"], said["exit_code"], docs["status"]) == ("incomplete", 1, "incomplete")
    (row,) = docs["parked"]
    chunk = pq.read_table(spoilt / "exports" / "Docs" / "points.parquet")["chunk_id"][BAD].as_py()
    assert row == {
        "model_pass": 0, "model": "tiny-a", "row": BAD, "reason": "not finite",
        "file": "a_chunks.json", "record": BAD + 1, "chunk_id": chunk,
    }  # fmt: skip
    place = f"a_chunks.json record {BAD + 1}, chunk {chunk}"
    assert docs["reason"] == f"1 text has no tiny-a vector ({place}): not finite"


def test_the_retry_of_a_nan_text_is_a_mitigation_with_cause_and_cost(spoilt):
    (step,) = summary_of(spoilt)["collections"][0]["mitigations"]
    assert step["cause"] == "invalid vector (not finite)"
    assert (step["rung"], step["action"]) == ("replan", "retrying alone")
    assert (step["model_pass"], step["rows"]) == (0, 1)
    assert step["cost_seconds"] > 0


def test_a_parked_row_is_nan_in_the_files_and_changes_no_other(spoilt, clean):
    for name in ("tiny-a", "tiny-b", "fused"):
        found, wanted = (np.load(run / "exports" / "Docs" / f"{name}.npy") for run in (spoilt, clean))
        if name != "tiny-b":
            assert np.isnan(found[BAD]).all()
            found, wanted = np.delete(found, BAD, 0), np.delete(wanted, BAD, 0)
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_parked_row_is_null_in_the_parquet_file(spoilt):
    table = pq.read_table(spoilt / "exports" / "Docs" / "points.parquet")
    assert table["text"][BAD].as_py() == TEXTS[BAD]
    nulls = {name: np.flatnonzero(table[name].is_null().to_numpy()).tolist() for name in ("tiny-a", "tiny-b", "fused")}
    assert nulls == {"tiny-a": [BAD], "tiny-b": [], "fused": [BAD]}


def test_the_point_of_a_parked_row_has_only_the_vectors_there_are(spoilt):
    table = pq.read_table(spoilt / "exports" / "Docs" / "points.parquet")
    ids = [table["id"][row].as_py() for row in (0, BAD)]
    with Store.open_for_read(spoilt.parents[1] / "store", "docs") as store:
        first, second = [*store.read(ids).values()]
        assert store.count() == len(TEXTS)
    assert first.vectors.keys() == {"tiny-a", "tiny-b", "fused"}
    assert second.vectors.keys() == {"tiny-b"}
    assert second.payload["text"] == TEXTS[BAD]


def test_a_run_with_a_parked_row_is_still_incomplete_when_resumed(tmp_path):
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": TEXTS}})
    model = poisoned(tmp_path / "m")
    for resume in ("no", "yes"):
        code, run = embed(root, tmp_path / "out", roster=str(model), resume=resume)
        assert code == ExitCode.FAILED
    (docs,) = summary_of(run)["collections"]
    assert (docs["status"], len(docs["parked"])) == ("incomplete", 1)


def test_a_parked_text_makes_a_second_collection_incomplete_too(tmp_path):
    root = corpus(tmp_path / "in", {"A": {"a_chunks.json": TEXTS}, "B": {"b_chunks.json": [TEXTS[BAD], "other"]}})
    code, run = embed(root, tmp_path / "out", roster=str(poisoned(tmp_path / "m")))
    assert code == ExitCode.FAILED
    assert [each["status"] for each in summary_of(run)["collections"]] == ["incomplete", "incomplete"]


def test_a_collection_of_duplicates_of_failed_texts_is_not_completed(tmp_path, tiny_a):
    root = corpus(tmp_path / "in", {"A": {"a_chunks.json": TEXTS}, "B": {"b_chunks.json": TEXTS[:3]}})
    save_file({"nothing": torch.ones(1)}, (model := tiny_model(tmp_path / "m")) / "model.safetensors")
    code, run = embed(root, tmp_path / "out", roster=f"{model},{tiny_a}")
    assert code == ExitCode.FAILED
    assert [each["status"] for each in summary_of(run)["collections"]] == ["failed", "failed"]


class Flaky:
    """A real encoder that spoils its first row of a batch, but of no batch of one: what a faulty kernel does."""

    def __init__(self, encoder):
        self._encoder = encoder
        self.padded = encoder.padded

    def encode(self, rows):
        outputs = self._encoder.encode(rows)
        if len(rows) > 1:
            outputs.dense[0] = np.nan
        return outputs


@pytest.mark.parametrize(("strict", "code"), [("no", ExitCode.COMPLETED), ("yes", ExitCode.MITIGATED)])
def test_a_row_that_fails_only_in_company_is_encoded_alone_and_strict_says_so(tmp_path, tiny_a, clean, strict, code):
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": TEXTS}})
    flaky = Backend(encoders=lambda *given: Flaky(encoder_for(*given)))
    ended, run = embed(root, tmp_path / "out", flaky, roster=str(tiny_a), strict=strict)
    assert ended == code
    assert summary_of(run)["status"] == "completed"
    assert events_of(run, ev.RowParked) == []
    assert len(events_of(run, ev.Mitigated)) == 1
    alone, among = run / "exports" / "Docs" / "fused.npy", clean / "exports" / "Docs" / "tiny-a.npy"
    found, wanted = np.load(alone), np.load(among)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_ids_that_a_model_has_no_words_for_fail_its_pass_before_any_is_looked_up(tmp_path, tiny_b):
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": TEXTS}})
    small, looked_up = tiny_model(tmp_path / "m", vocab_size=50), []

    def noting(card, network, device):
        encoder = encoder_for(card, network, device)

        def encode(rows):
            looked_up.append(card.key)
            return type(encoder).encode(encoder, rows)

        return SimpleNamespace(padded=encoder.padded, encode=encode)

    code, run = embed(root, tmp_path / "out", Backend(encoders=noting), roster=f"{small},{tiny_b}", export="npy")
    assert code == ExitCode.FAILED
    (failed,) = events_of(run, ev.PassFailed)
    said = rf"model m: {small}/tokenizer.json gives id \d+, but the model has only 50 words: use the tokenizer"
    assert re.match(said, failed.reason)
    assert set(looked_up) == {"tiny-b"}
    assert [end.model for end in events_of(run, ev.EnsemblePassCompleted)] == ["tiny-b"]


def test_the_gate_names_vectors_that_are_not_finite_or_zero():
    vectors = np.ones((5, 3), np.float32)
    vectors[1, 2], vectors[2], vectors[4, 0] = np.nan, 0, np.inf
    assert DenseRows(vectors).gate(3) == {1: "not finite", 2: "zero vector", 4: "not finite"}
    assert DenseRows(vectors[:1]).gate(3) == {}


@pytest.mark.parametrize("shape", [(2, 4), (2,), (2, 3, 1)])
def test_the_gate_refuses_vectors_of_another_shape(shape):
    with pytest.raises(InterlockError, match="expected 3 dimensions"):
        DenseRows(np.ones(shape, np.float32)).gate(3)


def test_just_the_batches_whose_rows_changed_on_disk_are_lost(tmp_path):
    file = VectorFile.open(tmp_path / "p" / "vectors.npy", 6, 2)
    batches = [np.array([0, 5]), np.array([2, 1]), np.array([3, 4])]
    crcs = {index: file.put(rows, DenseRows(np.full((2, 2), index, np.float32))) for index, rows in enumerate(batches)}
    file.sync()
    again = VectorFile.open(tmp_path / "p" / "vectors.npy", 6, 2)
    assert PassFiles({"dense": again}).damaged(batches, crcs) == []
    again.array[1, 0] = 7
    assert PassFiles({"dense": again}).damaged(batches, crcs) == [1]


def test_rows_never_written_are_nan_in_a_new_vector_file(tmp_path):
    file = VectorFile.open(tmp_path / "p" / "vectors.npy", 5000, 2)
    assert np.isnan(file.array).all()


def test_a_vector_file_of_another_shape_is_refused(tmp_path):
    VectorFile.open(tmp_path / "vectors.npy", 6, 2)
    with pytest.raises(InterlockError, match=r"has .*expected"):
        VectorFile.open(tmp_path / "vectors.npy", 6, 3)


class Learned:
    """Computes any batch; its first `PROBES` teach the memory law, later ones do not: as where weights are streamed."""

    def __init__(self, queue):
        self.queue = queue
        self.instance = SimpleNamespace(calibration=Calibration(), dtype="float32")

    def prepare(self, index):
        return []

    def compute(self, index, rows):
        if self.instance.calibration.batches < PROBES:
            self.instance.calibration = self.instance.calibration.observed(100_000, 110_000)
        rows = len(self.queue.job.batches[index].rows)
        return Result(Outputs(np.ones((rows, 1024), np.float32)), 1, [])


class Paced(Learned):
    """Computes a batch as `at` says, which is given its number; knows which batches were prepared."""

    def __init__(self, queue, at):
        super().__init__(queue)
        self._at, self.prepared = at, []

    def prepare(self, index):
        self.prepared.append(index)
        return [index]

    def compute(self, index, rows):
        assert rows == [index]
        self._at(self, index)
        return super().compute(index, rows)


def paced(at, *, told=None, controls=None):
    """A worker that has worked on nine batches: which it committed, its queue, and itself."""
    told, card = told or Told(), replace(card_of("XLM-R-large", packed=True), batch_tokens=64)
    (cells,) = grid_of([card], [64] * 9, lambda text, length: np.full(length, text))
    queue = Queue(cells, range(9))
    worker = Worker(CpuDevice(), deque([Paced(queue, at)]), told, lambda: None, controls or Controls())
    worker.run()
    return [event.batch_index for event in told.of(ev.BatchCommitted)], queue, worker


def test_beside_a_batch_the_next_is_read_and_the_one_before_is_committed():
    told = Told()

    def wait_for_both(runner, index):
        until(lambda: len(told.of(ev.BatchCommitted)) == index)
        until(lambda: index + 1 in runner.prepared or index >= 7)  # the last is for whoever is free first

    committed, queue, worker = paced(wait_for_both, told=told)
    assert (committed, queue.left(), worker.error) == ([*range(9)], [], None)


def test_the_last_batch_is_not_taken_ahead_but_left_for_whoever_is_free_first():
    left = {}
    committed, _, _ = paced(lambda runner, index: left.update({index: runner.queue.left()}))
    assert (left[6], left[7]) == ([8], [8])
    assert committed == [*range(9)]


def test_models_take_turns_on_a_device_while_the_files_of_all_are_made_durable(monkeypatch):
    computed, syncing, turned = [], threading.Event(), threading.Event()

    class Slow(Controls):
        def apply_pending(self, emit):
            assert not computed or syncing.wait(60)

    def sync(file):
        syncing.set()
        assert turned.wait(60)

    def turn(runner, index):
        if computed:  # the next in turn has been taken
            turned.set()
        computed.append(index)

    told, card = Told(), replace(card_of("XLM-R-large", packed=True), batch_tokens=64)
    queues = [
        Queue(cells, range(3)) for cells in grid_of([card] * 2, [64] * 3, lambda text, length: np.full(length, text))
    ]
    runners = [Paced(queue, turn) for queue in queues]
    monkeypatch.setattr(File, "sync", sync)
    monkeypatch.setattr(workers, "SYNC_SECONDS", -1.0)
    (both := Worker(CpuDevice(), deque(runners), told, lambda: None, Slow())).run()
    assert both.error is None
    assert [len(queue.committed) for queue in queues] == [3, 3]


def test_stopping_commits_what_was_computed_and_returns_what_was_taken_ahead():
    controls = Controls()

    def stop_in_the_third(runner, index):
        controls.code = ExitCode.STOPPED if index == 2 else None

    committed, queue, worker = paced(stop_in_the_third, controls=controls)
    assert (committed, queue.left(), worker.error) == ([0, 1, 2], [3, 4, 5, 6, 7, 8], None)


def test_a_lost_device_returns_its_batch_and_the_one_taken_ahead_in_order():
    def lose_in_the_third(runner, index):
        if index == 2:
            raise DeviceGone("gone")

    committed, queue, worker = paced(lose_in_the_third)
    assert (committed, queue.left(), worker.lost_because) == ([0, 1], [2, 3, 4, 5, 6, 7, 8], "gone")
    assert queue.returned == {"cpu": 1}  # the rows that were being computed


def test_a_disk_that_takes_nothing_more_ends_the_run_while_the_next_batch_is_computed(monkeypatch):
    tried = threading.Event()

    def put(file, rows, vectors):
        if rows[0] == 2:
            tried.set()
            raise DiskError("full")
        return 0

    monkeypatch.setattr(File, "put", put)
    committed, _, worker = paced(lambda runner, index: index < 3 or tried.wait(60))
    assert (committed, str(worker.error)) == ([0, 1], "full")


def test_a_disk_that_refuses_the_last_batch_ends_the_run_too(monkeypatch):
    def put(file, rows, vectors):
        if rows[0] == 8:
            raise DiskError("full")
        return 0

    monkeypatch.setattr(File, "put", put)
    committed, _, worker = paced(lambda runner, index: True)
    assert (committed, str(worker.error)) == ([*range(8)], "full")


@pytest.mark.parametrize("full", [DiskError("no space left"), OSError(errno.ENOSPC, "no space left")])
def test_a_disk_that_takes_no_more_of_the_journal_while_a_batch_is_computed_is_no_fault_of_the_model(full):
    def refuse(runner, index):
        if index == 2:
            raise full

    committed, queue, worker = paced(refuse)
    assert (committed, worker.error, queue.failed) == ([0, 1], full, None)


def test_a_calibration_is_recorded_when_it_is_known_and_at_the_end_though_later_batches_teach_nothing():
    told, card = Told(), replace(card_of("XLM-R-large", packed=True), batch_tokens=64)
    (cells,) = grid_of([card], [64] * 9, lambda text, length: np.full(length, text))
    queue = Queue(cells, range(len(cells.batches)))
    worker = Worker(CpuDevice(), deque([Learned(queue)]), told, lambda: None, Controls())
    worker.run()
    assert worker.error is None
    assert len(told.of(ev.BatchCommitted)) == len(cells.batches) > PROBES + 2
    assert len(told.of(ev.MemoryCalibrated)) == 2
