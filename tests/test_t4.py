"""Large models on two T4s, by the book: full-size models without content (`tests/weightless.py`), no byte left out.

Weights are those of the published configurations in float16, activations those of the memory law, counted against a T4
under a ceiling of 12 GiB. What is shown is where bytes go, not that a real T4 computes it.
"""

import gc

import numpy as np
import pytest

from interlock.engine.compute.schedule import Schedule
from interlock.engine.models.memory import law_of
from interlock.engine.models.networks.kernels import Kernel
from interlock.engine.record import events as ev
from interlock.engine.record.summary import Summary, summarise
from tests.architectures import ARCHITECTURES
from tests.oracle import Oracle
from tests.weightless import T4, Desk, card_of, law, lengths_of, load, vectors_of

GIB = 1 << 30
CEILING = 12 * GIB
ROWS = 200
HEAVY = card_of("Qwen2-1.5B", attention="eager")
PRIMARY, COMPANION = card_of("Qwen3-0.6B"), card_of("XLM-R-large", packed=True)


@pytest.fixture(autouse=True, scope="module")
def stage():
    """Every lease collects garbage: not what was imported, nor what a trace left."""
    for card in (HEAVY, PRIMARY, COMPANION):
        law(card, "sim")
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def large() -> Desk:
    """Three large models in turn over 200 chunks, one of them as long as they take, on two T4s."""
    desk = Desk([HEAVY, PRIMARY, COMPANION], lengths_of(ROWS, seed=1), [T4(0), T4(1)], CEILING)
    desk.compute(Schedule.EXCLUSIVE)
    return desk


def test_three_large_models_commit_every_row_of_200_chunks_once(large):
    for card, file in zip(large.cards, large.files, strict=True):
        assert file.puts == dict.fromkeys(range(ROWS), 1)
        np.testing.assert_array_equal(file.array, vectors_of(large.lengths, card.dim))
    cells = [(batch.model_pass, batch.batch_index) for batch in large.of(ev.BatchCommitted)]
    assert len(cells) == len(set(cells)) == sum(share.batches for share in large.of(ev.PassPlanned))
    assert [end.rows for end in large.of(ev.EnsemblePassCompleted)] == [ROWS] * 3


def test_no_card_is_ever_over_12_gib(large):
    peaks = [receipt.peak.occupied for lease in large.of(ev.LeaseReleased) for receipt in lease.receipts]
    assert max(peaks) <= CEILING
    assert max(peaks) == max(gpu.most for gpu in large.gpus)
    assert max(peaks) > 10 * GIB


def test_memory_never_runs_out_and_nothing_stays(large):
    assert [gpu.ooms for gpu in large.gpus] == [0, 0]
    receipts = [receipt for lease in large.of(ev.LeaseReleased) for receipt in lease.receipts]
    assert len(receipts) == 2 * len(large.cards)
    assert {(receipt.residue_bytes, receipt.after.allocated) for receipt in receipts} == {(0, 0)}
    assert not large.of(ev.RowParked)


def test_every_card_is_charged_the_true_weights_of_its_model(large):
    for card, lease in zip(large.cards, large.of(ev.LeaseReleased), strict=True):
        network = load(card).network
        size = sum(each.numel() * 2 for each in {id(each): each for each in network.parameters()}.values())
        for receipt in lease.receipts:
            assert receipt.peak.allocated > size
        attached = [event.bytes for event in large.of(ev.ModelAttached) if event.model == card.key]
        assert attached == pytest.approx([size, size], rel=0.001)


def test_a_batch_of_an_8k_token_chunk_is_replanned_smaller_and_told(
    large,
):
    (collection,) = summarise(large.state).collections
    (step,) = collection.mitigations
    assert (step.model_pass, step.batch_index, step.rung) == (0, 0, "replan")
    assert step.predicted_bytes > CEILING > step.free_bytes
    (batch,) = [each for each in large.of(ev.BatchCommitted) if (each.model_pass, each.batch_index) == (0, 0)]
    assert batch.forwards == 2
    assert {lease.model: lease.devices for lease in collection.leases} == {
        card.key: ["cuda:0", "cuda:1"] for card in large.cards
    }


def shared(desk: Desk) -> Summary:
    """The summary of computing side by side, after every row is found to be there once."""
    summary = desk.compute(Schedule.SHARED)
    for card, file in zip(desk.cards, desk.files, strict=True):
        assert file.puts == dict.fromkeys(range(len(desk.lengths)), 1)
        np.testing.assert_array_equal(file.array, vectors_of(desk.lengths, card.dim))
    assert max(gpu.most for gpu in desk.gpus) <= desk.ceiling
    return summary


def leases_of(summary: Summary) -> list[tuple[str, list[str]]]:
    """The two leases of the beginning: on a slow machine a companion goes on where the primary has ended."""
    (collection,) = summary.collections
    return [(each.model, each.devices) for each in collection.leases[:2]]


@pytest.fixture
def pair() -> Desk:
    """A primary and its companion, and two T4s."""
    return Desk([PRIMARY, COMPANION], lengths_of(100, seed=2), [T4(0), T4(1)], CEILING)


def test_a_shared_companion_is_on_the_second_card_beside_the_primary(pair):
    summary = shared(pair)
    assert leases_of(summary) == [(PRIMARY.key, ["cuda:0"]), (COMPANION.key, ["cuda:1"])]
    first, second = pair.of(ev.LeaseGranted)
    assert pair.events.index(second) < pair.events.index(pair.of(ev.LeaseReleased)[0])
    assert pair.gpus[0].most > first.predicted_bytes
    assert pair.gpus[1].most > second.predicted_bytes
    assert summary.collections[0].mitigations == []


def test_a_companion_without_room_on_any_card_is_on_the_cpu(pair):
    pair.ceiling = 3 * GIB
    pair.gpus[1].others = 14 * GIB
    summary = shared(pair)
    assert leases_of(summary) == [(PRIMARY.key, ["cuda:0"]), (COMPANION.key, ["cpu"])]
    assert [(each.model, each.device.partition(",")[0]) for each in summary.collections[0].passes] == [
        (PRIMARY.key, "cuda:0"),
        (COMPANION.key, "cpu"),
    ]


def test_the_summary_tells_why_a_companion_went_to_the_cpu(pair):
    def fill(event: ev.AnyEvent) -> None:
        if isinstance(event, ev.ModelAttached):
            pair.gpus[1].others = 14 * GIB

    pair.hears = fill
    summary = shared(pair)
    assert leases_of(summary) == [(PRIMARY.key, ["cuda:0"]), (COMPANION.key, ["cpu"])]
    left, fell = summary.collections[0].mitigations
    assert (left.model_pass, left.rung, left.device) == (1, "relocate", "cuda:1")
    assert (fell.model_pass, fell.rung, fell.device) == (1, "cpu", "cpu")
    assert "cuda:1" in left.cause
    assert "cuda:1" in fell.cause


def test_one_row_of_32768_tokens_fits_its_prediction_on_a_t4():
    """Qwen3-Embedding-0.6B as a T4 computes it: packed, float16, memory-efficient attention, every layer."""
    config = ARCHITECTURES["Qwen3-0.6B"]
    foreseen = law_of(config, 2, packed=True, kernel=Kernel.EFFICIENT)
    taken = Oracle(config, packed=True, kernel=Kernel.EFFICIENT).peak([32768])
    assert taken == pytest.approx(foreseen.activations(32768, 32768), rel=0.02)
    assert foreseen.peak(32768, 32768) < 4 * GIB
