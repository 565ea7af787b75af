"""Which rows are computed together: as many as a lease holds, and where a network may see what lies beside a row, rows
of one length."""

from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from interlock.engine.compute.checks.findings import Finding, Remembered
from interlock.engine.compute.encoder import Apart, PaddedRows
from interlock.engine.compute.schedule import Schedule
from interlock.engine.flows.plan import Models, requested, sized
from interlock.engine.gpu.device import RESERVE
from interlock.engine.gpu.sim import CONTEXT, simulated
from interlock.engine.models.networks.batching import Batching, batching_of
from interlock.engine.record import events as ev
from interlock.engine.settings import load
from tests.builders import corpus, interlock, tiny_model, toml
from tests.contract.conftest import cosines, told
from tests.weightless import T4, Desk, card_of, law


class Longest(torch.nn.Module):
    """A network whose rows all come out as the longest of them says."""

    def forward(self, features):
        ids = features["input_ids"]
        return {"sentence_embedding": torch.stack([ids[:, 0].float(), torch.full((len(ids),), float(ids.shape[1]))], 1)}


@pytest.mark.parametrize("batching", [Batching.EVEN, Batching.SINGLE])
def test_rows_that_are_computed_apart_come_out_as_alone_in_their_order(batching):
    rows = [np.arange(1, length + 1) for length in (5, 2, 5, 1, 2)]
    padded = PaddedRows(Longest(), 0, torch.device("cpu"), 64)
    alone = np.concatenate([padded.encode([row]).dense for row in rows])
    np.testing.assert_array_equal(Apart(padded, batching).encode(rows).dense, alone)
    assert not np.allclose(padded.encode(rows).dense, alone)


def test_padding_is_for_networks_that_were_tried_and_whose_positions_stay():
    rope = {"model_type": "phi3", "rope_scaling": {"type": "longrope"}}
    kinds = [{"model_type": "albert"}, {"model_type": "fnet"}, rope, {"model_type": "x", "expert_capacity": 4}]
    assert [batching_of(each)[0] for each in kinds] == [
        Batching.MIXED, Batching.EVEN, Batching.EVEN, Batching.SINGLE
    ]  # fmt: skip


def test_what_passed_holds_for_rows_as_long_and_as_mixed_as_those_that_were_seen():
    found = Finding(outcome="passed", cosine=1.0, least=0.9, rows=2, tokens=9, reference="")
    seen = Remembered(
        model="m", label="host", dtype="float32", attention="sdpa", finding=found, shortest=60, longest=100, beside=40
    )
    covered = [seen.covers(*lengths) for lengths in ((60, 100), (90, 90), (60, 101), (5, 100), (5, 40), (41, 41))]
    assert covered == [True, True, False, False, True, False]


@pytest.mark.parametrize("tokens", ["1", "4096"])
def test_a_network_whose_positions_stretch_gives_every_text_its_own_vector_also_after_a_short_corpus(
    call, monkeypatch, tmp_path, tokens
):
    monkeypatch.setenv("INTERLOCK_CACHE", str(tmp_path))
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 4.0,
            "rope_theta": 10_000.0, "original_max_position_embeddings": 24}  # fmt: skip
    model = tiny_model(
        tmp_path / "model", seed=1, kind="phi3", num_key_value_heads=2, rope_scaling=rope,
        original_max_position_embeddings=24,
    )  # fmt: skip
    config = tmp_path / "i.toml"
    config.write_text(f'[models.one]\nsource = "{model}"\nbatch_tokens = {tokens}\n')
    texts = [" ".join(["the", *["of", "and"] * count, "to"][: 1 + 2 * count]) for count in (1, 2, 9, 10, 11, 12, 30)]
    for name, some in (("short", texts[:2]), ("all", texts)):
        chunks = corpus(tmp_path / name, {"Docs": {"a_chunks.json": some}})
        words = ("--config", config, "--roster", "one", "--devices", "cpu", "--run-id", name, "--export", "npy")
        assert call("run", chunks, *words, "--out", tmp_path / "runs", "--quiet")[0] == 0
    checked = [
        each["remembered"] for name in ("short", "all") for each in told(tmp_path / "runs" / name, "canary_checked")
    ]
    assert checked == [False, False]  # the long ones were not looked at
    from sentence_transformers import SentenceTransformer

    plain = SentenceTransformer(str(model), device="cpu")
    alone = np.concatenate([plain.encode([text], normalize_embeddings=True) for text in texts])
    assert cosines(np.load(tmp_path / "runs" / "all" / "exports" / "Docs" / "fused.npy"), alone).min() > 0.99999


@pytest.mark.parametrize("more", [(), ("--no-cpu-fallback",)])
def test_a_fault_that_stays_is_climbed_for_a_few_texts_and_not_for_each(tmp_path, more):
    model = tiny_model(tmp_path / "model", seed=1, width=64)
    texts = [" ".join(["the"] * (1 + number % 40) + [str(number)]) for number in range(120)]
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": texts}})
    words = ("--devices", "sim:1xT4", "--faults", "oom-over:1KiB", "--run-id", "one", "--quiet", *more)
    interlock("run", chunks, "--roster", model, "--out", tmp_path / "runs", *words, check=1 if more else 0)
    done = tmp_path / "runs" / "one"
    assert 4 < len(told(done, "mitigated")) < 80
    assert len(told(done, "row_parked")) == (120 if more else 0)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What a run of 64 MiB of texts is asked for, with this row and these flags, on a host with 64 GiB of memory."""

    def ask(row=(), size=64 << 20, host=64 << 30, **flags):
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=host))
        (tmp_path / "in").mkdir(exist_ok=True)
        with (tmp_path / "in" / "a.jsonl").open("wb") as file:
            file.truncate(size)
        tables = toml(tmp_path / "interlock.toml", {"one": {"source": "/m", **dict(row)}})
        return requested(tmp_path / "in", load({"roster": "one", **flags}, {}, tables))

    return ask


def tokens_of(request, devices, begun=()):
    """The tokens in a batch of XLM-R-large."""
    models = Models({0: card_of("XLM-R-large", packed=True)}, {})
    return sized(request, models, simulated(devices), law, begun).cards[0].batch_tokens


def test_batches_fill_what_a_lease_of_the_model_alone_holds_while_a_run_has_many(asked):
    assert tokens_of(asked(), "sim:2xT4") == tokens_of(asked(), "sim:H100") == 65536
    assert tokens_of(asked(window="shared"), "sim:2xT4") == 65536  # all schedules walk the same batches
    assert tokens_of(asked(size=5 << 20), "sim:2xT4") == 32768
    assert tokens_of(asked(size=1), "sim:2xT4") == 16384
    room = CONTEXT + RESERVE + law(card_of("XLM-R-large", packed=True), "sim").weights
    small = tokens_of(asked(ceiling=f"{(room >> 20) + 300}MiB"), "sim:2xT4")
    assert 16384 < small < 32768
    streamed = tokens_of(asked(ceiling=f"{(room >> 20) - 100}MiB"), "sim:2xT4")
    assert 16384 < streamed <= 65536
    assert tokens_of(asked(ceiling="400MiB"), "sim:2xT4") == 2048  # it goes to the CPU
    assert tokens_of(asked(host=4 << 30), "sim:4xT4") < 32768  # which that host computes at the same time


def test_batches_are_as_a_row_or_the_run_that_goes_on_has_them(asked):
    assert tokens_of(asked({"batch_tokens": 300}), "sim:2xT4") == 300
    assert tokens_of(asked({"batch_tokens": 300, "gpu_batch_tokens": 400}), "sim:2xT4") == 400
    assert tokens_of(asked({"gpu_batch_tokens": 400}), "sim:2xT4", [{"batch_tokens": 777}]) == 777
    assert tokens_of(asked(), "sim:2xT4", [{"batch_tokens": 0}]) == 65536  # it was missing then


def test_a_share_that_does_not_hold_a_batch_has_it_computed_in_several_forwards_and_that_is_no_mitigation():
    cards = [card_of(name, packed=True) for name in ("XLM-R-large", "MiniLM-L6")]
    room = CONTEXT + RESERVE + sum(law(card, "sim").weights for card in cards)
    desk = Desk(cards, [512] * 100, [T4(0)], room + (150 << 20))
    desk.compute(Schedule.SHARED, cpu_fallback=False)
    assert next(batch.forwards for batch in desk.of(ev.BatchCommitted) if batch.model_pass == 0) > 1
    assert not desk.of(ev.Mitigated)
