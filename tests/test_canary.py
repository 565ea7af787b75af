"""The canary: what a device makes of a model is compared before any is kept; and what follows where it differs."""

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from interlock.engine.compute import batch_runner
from interlock.engine.compute.batch_runner import BatchRunner
from interlock.engine.compute.checks import canary, findings, sampling
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.instance import ModelInstance, Shortfall
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.parts.tokens import TokenRows
from interlock.engine.compute.resident import ResidentModel
from interlock.engine.compute.schedule import Schedule
from interlock.engine.errors import ExitCode
from interlock.engine.flows.run import Run
from interlock.engine.gpu.device_errors import Trouble
from interlock.engine.models import weights
from interlock.engine.models.networks.kernels import Kernel
from interlock.engine.models.networks.streaming import Streaming
from interlock.engine.models.weights import Replica
from interlock.engine.record import events as ev
from interlock.engine.settings import load
from tests.builders import command, corpus, environment, events_of, sentences, summary_of, tiny_model, toml
from tests.harness import grid_of
from tests.weightless import T4, Desk, card_of, ids_of

TEXTS = [*sentences(40, 20), "a long one " + "and on it goes " * 25]


class Bench:
    """A model, a corpus and a place for runs."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch, **model: object) -> None:
        self.place = place
        monkeypatch.setenv("INTERLOCK_CACHE", str(place / "cache"))
        self.model = tiny_model(place / "one", seed=1, width=64, layers=3, **model)
        self.chunks = corpus(place / "in", {"Docs": {"a_chunks.json": TEXTS}})

    def run(self, dtype: str = "float16", **flags: str | bool) -> tuple[ExitCode, Path]:
        row = {"source": str(self.model), "batch_tokens": 300, "gpu_batch_tokens": 300}
        file = toml(self.place / "models.toml", {"one": row, "one.dtype": {"sim": dtype}})
        settings = load({"out": str(self.place / "runs"), "roster": "one", "devices": "sim:T4", **flags}, {}, file)
        run = Run(self.chunks, settings, Controls())
        return run.go(), run.directory.path


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def reference(desk: Bench) -> np.ndarray:
    return vectors_of(desk.run(devices="cpu", run_id="reference")[1])


def vectors_of(run: Path) -> np.ndarray:
    (file,) = run.glob("passes/*/vectors.npy")
    return np.load(file)


def dtypes(run: Path) -> set[str]:
    return {batch.dtype for batch in events_of(run, ev.BatchCommitted)}


def least_cosine(vectors: np.ndarray, others: np.ndarray) -> float:
    return float((vectors * others).sum(1).min())


def overflowing(model: Path, factor: float) -> None:
    """Have the feed-forward of the second layer make numbers beyond what float16 has, and take them back."""
    weights = load_file(model / "model.safetensors")
    weights["encoder.layer.1.intermediate.dense.weight"] *= factor
    weights["encoder.layer.1.output.dense.weight"] /= factor
    save_file(weights, model / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize("devices", ["cpu", "sim:2xT4"])
def test_a_canary_comes_before_the_first_batch_and_passes(desk, devices):
    code, run = desk.run(devices=devices)
    assert code == ExitCode.COMPLETED
    kinds = [type(event) for event in events_of(run, ev.CanaryChecked, ev.BatchCommitted)]
    assert kinds[0] is ev.CanaryChecked
    assert kinds.count(ev.CanaryChecked) == 1
    (canary,) = summary_of(run)["canaries"]
    assert (canary["outcome"], canary["rows"], canary["remembered"]) == ("passed", 8, False)
    assert canary["least"] < canary["cosine"] <= 1.0001


def test_what_a_canary_found_is_remembered_until_the_precision_changes(desk):
    found = [events_of(desk.run(dtype=dtype)[1], ev.CanaryChecked)[0] for dtype in ("float16", "float16", "bfloat16")]
    assert [canary.remembered for canary in found] == [False, True, False]
    assert found[0].cosine == found[1].cosine != found[2].cosine


def test_a_cpu_that_may_use_other_instructions_is_looked_at_anew_in_a_cache_that_is_shared(desk):
    file = toml(desk.place / "models.toml", {"one": {"source": str(desk.model)}})
    about = ["--config", file, "--roster", "one", "--devices", "cpu", "--quiet", "--export", "npy"]

    def remembered(number: int, **switches: str) -> bool:
        words = ["run", desk.chunks, *about, "--out", desk.place / "runs", "--run-id", f"r{number}"]
        env = environment({"INTERLOCK_CACHE": str(desk.place / "cache"), **switches})
        subprocess.run(command(*words), env=env, cwd=desk.place, check=True, timeout=120)
        (canary,) = events_of(desk.place / "runs" / f"r{number}", ev.CanaryChecked)
        return bool(canary.remembered)

    ways = [{}, {"ATEN_CPU_CAPABILITY": "default"}, {"ONEDNN_MAX_CPU_ISA": "SSE41"}, {}]
    assert [remembered(number, **switches) for number, switches in enumerate(ways)] == [False, False, False, True]


def test_a_run_that_is_resumed_on_a_cpu_that_may_use_other_instructions_says_so(desk, monkeypatch):
    desk.run(devices="cpu", run_id="one", roster="one")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    desk.run(devices="cpu", run_id="one", roster="one", resume=True)
    (told,) = [each.message for each in events_of(desk.place / "runs" / "one", ev.Warned) if "is now" in each.message]
    assert told.startswith("instructions was ")
    assert told.endswith("ONEDNN_MAX_CPU_ISA=SSE41: the last bits of vectors may differ")


def test_what_canaries_found_is_listed_with_model_device_and_precision_the_newest_first(desk):
    events = [events_of(desk.run(dtype=dtype)[1], ev.CanaryChecked)[0] for dtype in ("float16", "bfloat16")]
    (desk.place / "cache" / "canaries" / "damaged.json").write_text('{"model": 1}')
    listed = [(each.model, each.label, each.dtype, each.finding.cosine) for each in findings.remembered()]
    assert listed == [("one", "Tesla T4 (simulated)", event.dtype, event.cosine) for event in events[::-1]]


def test_a_device_that_computes_wrongly_in_float16_is_asked_for_float32(desk):
    wanted = reference(desk)
    code, run = desk.run(faults="skew:1")
    assert code == ExitCode.COMPLETED
    first, second = events_of(run, ev.CanaryChecked)
    assert (first.outcome, first.dtype, first.action) == ("failed", "float16", "trying float32")
    assert (second.outcome, second.dtype) == ("passed", "float32")
    assert first.cosine < first.least < second.least < second.cosine
    assert dtypes(run) == {"float32"}
    assert least_cosine(vectors_of(run), wanted) > 0.99999


def test_a_device_that_computes_nothing_rightly_is_not_used(desk):
    wanted = reference(desk)
    code, run = desk.run(faults="skew:9")
    assert code == ExitCode.COMPLETED
    assert [canary.outcome for canary in events_of(run, ev.CanaryChecked)] == ["failed", "failed"]
    assert {batch.device for batch in events_of(run, ev.BatchCommitted)} == {"cpu"}
    assert least_cosine(vectors_of(run), wanted) > 0.99999


def test_a_model_that_no_device_computes_rightly_fails_where_the_cpu_may_not(desk):
    code, run = desk.run(faults="skew:9", cpu_fallback="no")
    assert code == ExitCode.FAILED
    assert "computes wrongly on cuda:0" in events_of(run, ev.PassFailed)[0].reason
    assert not events_of(run, ev.BatchCommitted)


def test_a_device_that_fails_its_canary_leaves_the_work_to_one_that_passes(desk):
    _, run = desk.run(dtype="float32", devices="sim:1xT4+1xL4", faults="skew@cuda:1:9")
    assert [canary.outcome for canary in events_of(run, ev.CanaryChecked)] == ["passed", "failed"]
    assert {batch.device for batch in events_of(run, ev.BatchCommitted)} == {"cuda:0"}


def test_a_card_that_fails_its_canary_does_not_condemn_the_other_of_its_make(desk):
    code, run = desk.run(dtype="float32", devices="sim:2xT4", faults="skew@cuda:0:2")
    assert code == ExitCode.COMPLETED
    asked = [(canary.device, canary.outcome) for canary in events_of(run, ev.CanaryChecked)]
    assert asked == [("cuda:0", "failed"), ("cuda:1", "passed")]
    assert {batch.device for batch in events_of(run, ev.BatchCommitted)} == {"cuda:1"}


def test_each_card_of_a_make_is_named_as_wrong_only_after_its_own_canary(desk):
    _, run = desk.run(dtype="float32", devices="sim:2xT4", faults="skew:9")
    asked = [(canary.device, canary.outcome) for canary in events_of(run, ev.CanaryChecked)]
    assert asked == [("cuda:0", "failed"), ("cuda:1", "failed")]
    assert steps(run)[:2] == [("relocate", "not using cuda:0"), ("relocate", "not using cuda:1")]


@pytest.mark.parametrize(
    ("flags", "step"),
    [
        ({"dtype": "float32", "devices": "sim:1xT4+1xL4", "faults": "skew@cuda:0:1"}, ("relocate", "not using cuda:0")),
        ({"faults": "skew:1"}, ("float32", "trying float32")),
    ],
    ids=["another device", "another precision"],
)
def test_what_follows_from_a_failed_canary_counts_as_a_mitigation(desk, flags, step):
    code, run = desk.run(strict="yes", **flags)
    assert code == ExitCode.MITIGATED
    assert steps(run) == [step]
    (collection,) = summary_of(run)["collections"]
    assert [(each["rung"], each["rows"]) for each in collection["mitigations"]] == [(step[0], len(TEXTS))]


def test_a_device_that_failed_is_counted_once_however_often_its_model_has_its_turn(desk):
    _, run = desk.run(dtype="float32", devices="sim:2xT4", faults="skew@cuda:0:1", window="1")
    assert steps(run) == [("relocate", "not using cuda:0")]


def test_a_model_that_gives_more_is_asked_anew(desk):
    found = [events_of(desk.run(**flags)[1], ev.CanaryChecked)[0] for flags in ({}, {"token_vectors": "one"}, {})]
    assert [canary.remembered for canary in found] == [False, False, True]


def test_what_failed_in_an_earlier_run_is_asked_anew_and_what_passed_is_not(desk, monkeypatch):
    outcomes = iter([0.5, 0.9999999, 0.9999999])
    monkeypatch.setattr(canary, "lowest_cosine", lambda *_: next(outcomes))
    found = [canary for _ in range(3) for canary in events_of(desk.run()[1], ev.CanaryChecked)]
    assert [(each.dtype, each.outcome, each.remembered) for each in found] == [
        ("float16", "failed", False),
        ("float32", "passed", False),
        ("float16", "passed", False),
        ("float16", "passed", True),
    ]


def test_a_card_that_failed_is_asked_itself_although_another_of_its_make_has_passed(desk, monkeypatch):
    lowest = canary.lowest_cosine
    outcomes = iter([0.5, 0.9999999, 0.5])
    monkeypatch.setattr(canary, "lowest_cosine", lambda *_: next(outcomes))
    for _ in range(2):
        run = desk.run(dtype="float32", devices="sim:2xT4")[1]
        asked = [(each.device, each.outcome) for each in events_of(run, ev.CanaryChecked)]
        assert asked == [("cuda:0", "failed"), ("cuda:1", "passed")]
    monkeypatch.setattr(canary, "lowest_cosine", lowest)
    run = desk.run(dtype="float32", devices="sim:2xT4")[1]
    assert [(each.device, each.outcome) for each in events_of(run, ev.CanaryChecked)] == [("cuda:0", "passed")]


def test_a_model_that_overflows_in_float16_is_computed_in_float32_from_the_first_row(desk):
    overflowing(desk.model, 1e6)
    wanted = reference(desk)
    code, run = desk.run()
    assert code == ExitCode.COMPLETED
    failed, passed = events_of(run, ev.CanaryChecked)
    assert (failed.outcome, failed.cosine) == ("failed", -1)
    assert (passed.outcome, passed.dtype) == ("passed", "float32")
    assert steps(run) == [("float32", "trying float32")]
    assert least_cosine(vectors_of(run), wanted) > 0.99999


def test_an_error_of_a_kernel_counts_as_a_failure_and_is_told(desk, monkeypatch):
    from interlock.engine.models.networks import attention

    runs = attention._runs

    def broken(query, *more):
        if query.dtype is torch.float16:
            raise RuntimeError("no kernel image is available for execution on the device")
        return runs(query, *more)

    monkeypatch.setattr(attention, "_runs", broken)
    code, run = desk.run()
    assert code == ExitCode.COMPLETED
    failed, passed = events_of(run, ev.CanaryChecked)
    assert "no kernel image" in failed.detail
    assert (failed.cosine, passed.dtype) == (None, "float32")
    monkeypatch.setattr(attention, "_runs", runs)
    assert events_of(desk.run()[1], ev.CanaryChecked)[0].outcome == "passed"


def spoil(model: Path, sign: str, factor: float = 1e7) -> None:
    """Give a sign an embedding with numbers beyond what float16 has, or not even float32."""
    weights = load_file(model / "model.safetensors")
    number = Tokenizer.from_file(str(model / "tokenizer.json")).encode(sign, add_special_tokens=False).ids
    weights["embeddings.word_embeddings.weight"][number] *= factor
    save_file(weights, model / "model.safetensors", {"format": "pt"})


def steps(run: Path) -> list[tuple[str, str]]:
    return [(step.rung, step.action) for step in events_of(run, ev.Mitigated)]


@pytest.fixture
def blind(desk: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The canary sees the shortest text alone, and a sign of others overflows in float16."""
    monkeypatch.setattr(sampling, "ROWS", 1)
    spoil(desk.model, "@")
    return desk


@pytest.fixture
def one_lost(blind: Bench) -> Bench:
    """One text has no vector anywhere."""
    spoil(blind.model, "@", np.nan)
    corpus(blind.place / "in", {"Docs": {"a_chunks.json": [*TEXTS, "the @ and on it goes and on it goes"]}})
    return blind


def test_a_text_without_a_vector_in_any_precision_counts_once_and_does_not_widen_its_pass(one_lost, monkeypatch):
    monkeypatch.setattr(batch_runner, "MOST_REFUSED", 2)
    _, run = one_lost.run()
    assert [rung for rung, _ in steps(run)] == ["replan", "float32", "cpu"]
    assert len(events_of(run, ev.RowParked)) == 1


def test_a_text_that_float32_has_no_vector_of_is_not_computed_in_float32_again_but_on_the_cpu(one_lost):
    _, run = one_lost.run(dtype="float32")
    assert [rung for rung, _ in steps(run)] == ["replan", "cpu"]


def test_a_row_that_is_not_finite_in_float16_is_computed_in_float32_on_its_device(blind):
    corpus(blind.place / "in", {"Docs": {"a_chunks.json": [*TEXTS, "the @ and on it goes and on it goes"]}})
    wanted = reference(blind)
    code, run = blind.run()
    assert code == ExitCode.COMPLETED
    assert [rung for rung, _ in steps(run)] == ["replan", "float32"]
    parts = [part for batch in events_of(run, ev.BatchCommitted) for part in batch.parts]
    assert [(part.device, part.dtype, part.rows) for part in parts if part.dtype == "float32"] == [
        ("cuda:0", "float32", 1)
    ]
    assert least_cosine(vectors_of(run), wanted) > 0.999
    assert least_cosine(vectors_of(run)[-1:], wanted[-1:]) > 0.999999
    (lease,) = summary_of(run)["collections"][0]["leases"]
    assert [receipt["residue_bytes"] for receipt in lease["receipts"]] == [0]


def test_a_row_goes_to_the_cpu_where_float32_finds_no_room_on_its_device(blind, monkeypatch):
    monkeypatch.setattr(ResidentModel, "float32_possible", lambda *_: False)
    corpus(blind.place / "in", {"Docs": {"a_chunks.json": [*TEXTS, "the @ and on it goes and on it goes"]}})
    _, run = blind.run()
    assert [rung for rung, _ in steps(run)][-1] == "cpu"


def test_a_pass_whose_rows_are_refused_again_and_again_goes_on_in_float32(blind):
    bad = [f"number {number} of the @ and on it goes" for number in range(60)]
    corpus(blind.place / "in", {"Docs": {"a_chunks.json": [*TEXTS, *bad]}})
    wanted = reference(blind)
    code, run = blind.run()
    assert code == ExitCode.COMPLETED
    assert steps(run)[-1] == ("float32", "computing the rest in float32")
    assert len(steps(run)) <= 1 + 2 * batch_runner.MOST_REFUSED
    canaries = [(canary.dtype, canary.streamed) for canary in events_of(run, ev.CanaryChecked)]
    assert canaries == [("float16", False), ("float32", True), ("float32", False)]
    assert least_cosine(vectors_of(run), wanted) > 0.999
    assert least_cosine(vectors_of(run)[-60:], wanted[-60:]) > 0.99999
    batches = events_of(run, ev.BatchCommitted)
    assert len({batch.batch_index for batch in batches}) == len(batches)


def test_a_streamed_model_has_a_canary_of_its_own(desk, monkeypatch):
    monkeypatch.setattr(Replica, "_attach", full)
    _, run = desk.run(dtype="float32")
    assert [canary.streamed for canary in events_of(run, ev.CanaryChecked)] == [True]
    assert [lease.streamed for lease in events_of(run, ev.ModelAttached)] == [True]


def full(replica):
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_a_gpu_is_not_used_where_the_copies_of_streamed_layers_come_too_late(desk, monkeypatch):
    wanted = reference(desk)
    monkeypatch.setattr(Replica, "_attach", full)
    fill = Streaming._fill

    def late(streaming, number):
        fill(streaming, number)
        if number == 1:
            for piece in streaming._slots[1].values():
                piece.zero_()

    monkeypatch.setattr(Streaming, "_fill", late)
    code, run = desk.run(dtype="float32")
    assert code == ExitCode.COMPLETED
    first, *_ = events_of(run, ev.CanaryChecked)
    assert (first.outcome, first.streamed, first.action) == ("failed", True, "not using cuda:0")
    assert least_cosine(vectors_of(run), wanted) > 0.99999
    assert ("relocate", "not using cuda:0") in steps(run)


def test_one_batch_that_comes_out_wrong_is_computed_again_in_the_same_precision(desk, monkeypatch):
    refused, spoilt = Outputs.refused, []

    def once(outputs, width):
        if len(outputs) < batch_runner.MOST_REFUSED or spoilt:
            return refused(outputs, width)
        spoilt.append(len(outputs))
        return dict.fromkeys(range(len(outputs)), "not finite")

    monkeypatch.setattr(Outputs, "refused", once)
    code, run = desk.run()
    assert code == ExitCode.COMPLETED
    assert spoilt
    assert dtypes(run) == {"float16"}


def test_float32_that_fails_its_canary_is_read_and_tried_once_and_not_for_each_row(blind, monkeypatch):
    outcome, read = canary.Canaries.outcome, []

    def fails(self, cells, card, instance, then=None):
        found = outcome(self, cells, card, instance, then)
        return "failed" if card.dtype == "float32" else found

    monkeypatch.setattr(canary.Canaries, "outcome", fails)
    hydrate = weights.Master.__init__
    monkeypatch.setattr(weights.Master, "__init__", lambda self, network: read.append(hydrate(self, network)))
    texts = [
        text for number in range(8) for text in (f"the {number} @ and on it goes", *sentences(30, 20, 30 * number))
    ]
    corpus(blind.place / "in", {"Docs": {"a_chunks.json": texts}})
    code, run = blind.run()
    assert code == ExitCode.COMPLETED
    assert [rung for rung, _ in steps(run)].count("cpu") == 8
    assert len(read) == 2


def test_a_plain_path_that_fails_leaves_the_model_as_it_is(desk, monkeypatch):
    def broken(*_):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 5 bytes")

    monkeypatch.setattr(canary.Canaries, "_plainly", broken)
    code, run = desk.run()
    assert code == ExitCode.COMPLETED
    (found,) = events_of(run, ev.CanaryChecked)
    assert (found.outcome, found.dtype) == ("skipped", "float16")
    assert "can't allocate memory" in found.detail


@pytest.mark.parametrize("devices", ["cpu", "sim:T4"])
def test_texts_without_a_vector_anywhere_say_nothing_of_a_device(desk, devices):
    tensors = load_file(desk.model / "model.safetensors")
    for part in ("weight", "bias"):
        tensors[f"encoder.layer.2.output.LayerNorm.{part}"].zero_()
    save_file(tensors, desk.model / "model.safetensors", {"format": "pt"})
    _, run = desk.run(devices=devices)
    assert {(found.outcome, found.cosine) for found in events_of(run, ev.CanaryChecked)} == {("skipped", None)}
    assert {parked.reason for parked in events_of(run, ev.RowParked)} == {"zero vector"}
    assert not events_of(run, ev.PassFailed)


def test_what_a_canary_gives_back_is_not_taken_for_what_the_first_batch_needs(desk):
    _, run = desk.run()
    assert max(learnt.scale for learnt in events_of(run, ev.MemoryCalibrated)) < 1.1


def test_nor_is_what_the_canary_of_float32_gives_back_in_the_middle_of_a_pass(blind):
    texts = [*TEXTS, "the @ and on it goes and on it goes", *sentences(60, 10)]
    corpus(blind.place / "in", {"Docs": {"a_chunks.json": texts}})
    _, run = blind.run()
    assert "float32" in [rung for rung, _ in steps(run)]
    assert max(learnt.scale for learnt in events_of(run, ev.MemoryCalibrated)) < 1.1


@pytest.mark.parametrize(("cosine", "outcome"), [(0.9985, "failed"), (0.9995, "passed")])
def test_vectors_in_float16_have_to_reach_a_cosine_of_0_999(desk, monkeypatch, cosine, outcome):
    monkeypatch.setattr(canary, "lowest_cosine", lambda *_: cosine)
    assert events_of(desk.run()[1], ev.CanaryChecked)[0].outcome == outcome


@pytest.mark.parametrize(("own", "outcome"), [(0.9991, "passed"), (0.9995, "failed"), (0.6, "failed")])
def test_vectors_in_bfloat16_may_be_twice_as_far_off_as_those_of_the_plain_path_in_bfloat16(
    desk, monkeypatch, own, outcome
):
    cosines = iter([0.9985 if own > 0.99 else 0.985, own, 1.0])
    monkeypatch.setattr(canary, "lowest_cosine", lambda *_: next(cosines))
    found = events_of(desk.run("bfloat16")[1], ev.CanaryChecked)[0]
    assert (found.dtype, found.outcome) == ("bfloat16", outcome)
    assert (found.cosine >= found.least) == (outcome == "passed")


def test_a_deep_network_whose_own_rounding_in_bfloat16_is_coarse_keeps_its_precision(desk):
    shape = {"num_key_value_heads": 2, "head_dim": 16, "initializer_range": 1.0}
    desk.model = tiny_model(desk.place / "deep", kind="qwen3", width=64, layers=28, pooling="lasttoken", **shape)
    found = events_of(desk.run("bfloat16")[1], ev.CanaryChecked)
    assert [(each.dtype, each.outcome) for each in found] == [("bfloat16", "passed")]
    assert found[0].least <= found[0].cosine < 0.999
    assert events_of(desk.run("bfloat16", faults="skew:1")[1], ev.CanaryChecked)[0].outcome == "failed"


def test_a_wider_precision_is_one_that_every_gpu_of_the_run_has():
    mixed = replace(card_of("XLM-R-large", packed=True), capability=(7, 5))
    then = canary.in_wider(mixed, mixed)
    newer = canary.in_wider(*[replace(mixed, capability=(8, 0))] * 2)
    assert (then.dtype, newer.dtype) == ("float32", "bfloat16")


def test_fused_attention_that_is_at_fault_is_not_what_a_padded_network_is_compared_with(tmp_path, monkeypatch):
    desk, attention = Bench(tmp_path, monkeypatch, pooling="max"), torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda *a, **more: -attention(*a, **more))
    _, run = desk.run()
    found = [(each.attention, each.outcome, each.dtype) for each in events_of(run, ev.CanaryChecked)]
    assert found == [("sdpa", "failed", "float16"), ("eager", "passed", "float16")]


def test_a_canary_has_the_longest_text_of_its_corpus_and_the_shortest():
    (cells,) = grid_of([card_of("MiniLM-L6", packed=True)], [64, 205, 204, *[100] * 30, 500], ids_of)
    lengths = [len(row) for row in sampling.sample(cells, cells.card, 500, 1e15)]
    assert (lengths[0], lengths[-1], len(lengths)) == (500, 64, sampling.ROWS)
    assert [len(row) for row in sampling.sample(cells, cells.card, 500, 1.0)] == [500, 64]


def test_what_a_canary_found_on_one_card_is_not_taken_for_another(desk):
    found = [events_of(desk.run(devices=f"sim:{card}")[1], ev.CanaryChecked)[0] for card in ("T4", "P100", "T4")]
    assert [canary.remembered for canary in found] == [False, False, True]


def test_a_canary_leaves_nothing_on_the_device_that_was_not_there_before(desk, monkeypatch):
    tried, compute, reserved = canary._tried, BatchRunner.compute, []

    def noting(instance, done, *given):
        reserved.append(instance.device.memory().reserved)
        return done(*given)

    monkeypatch.setattr(canary, "_tried", lambda instance, *rows: noting(instance, tried, instance, *rows))
    monkeypatch.setattr(BatchRunner, "compute", lambda self, *batch: noting(self.instance, compute, self, *batch))
    desk.run()
    assert reserved[0] == reserved[1] < reserved[2]


def test_what_a_canary_found_is_not_remembered_of_other_weights(desk):
    desk.run()
    overflowing(desk.model, 1e6)
    found = events_of(desk.run()[1], ev.CanaryChecked)
    assert [(canary.outcome, canary.remembered) for canary in found] == [("failed", False), ("passed", False)]


def test_a_gpu_that_is_lost_in_its_canary_leaves_the_work_to_the_other(desk, monkeypatch):
    tried = canary._tried
    monkeypatch.setattr(
        canary, "_tried", lambda at, rows: Trouble.LOST if at.device.name == "cuda:0" else tried(at, rows)
    )
    code, run = desk.run(devices="sim:2xT4")
    assert code == ExitCode.COMPLETED
    assert [lost.device for lost in events_of(run, ev.DeviceLost)] == ["cuda:0"]
    assert {batch.device for batch in events_of(run, ev.BatchCommitted)} == {"cuda:1"}


@pytest.mark.parametrize("kernel", [Kernel.FLASH, Kernel.FLASH_TRITON])
def test_after_a_failure_comes_a_plainer_kernel_and_then_the_next_precision_with_its_own_kernel(kernel):
    card = replace(card_of("XLM-R-large", packed=True), dtype="float16", kernel=kernel, capability=(8, 0))
    tried, now = [], card
    while now := canary.plainer(now, card):
        tried.append((now.dtype, now.kernel))
    if kernel.triton:
        assert tried[:4:3] == [("float16", Kernel.FLASH), ("bfloat16", Kernel.FLASH)]
        assert tried[2::3] == [("bfloat16", Kernel.FLASH_TRITON), ("float32", Kernel.EFFICIENT_TRITON)]
        tried = [way for way in tried[1:] if not way[1].triton]
    assert tried == [
        ("float16", Kernel.RUNS),
        ("bfloat16", Kernel.FLASH),
        ("bfloat16", Kernel.RUNS),
        ("float32", Kernel.EFFICIENT),
        ("float32", Kernel.RUNS),
    ]


def test_what_batches_have_taught_is_forgotten_where_a_later_canary_has_the_model_computed_in_another_way(monkeypatch):
    cards = [replace(card_of(name, packed=True), batch_tokens=512) for name in ("MiniLM-L6", "XLM-R-large")]
    desk, outcomes = Desk(cards, [512] * 6, [T4(0)], 12 << 30), iter(["passed", "failed", "passed"])
    monkeypatch.setattr(
        canary.Canaries, "outcome", lambda self, cells, *_: "passed" if cells.model_pass else next(outcomes)
    )
    desk.compute(Schedule.ROTATING, window=3)
    taught = [learnt.batches for learnt in desk.of(ev.MemoryCalibrated) if learnt.model_pass == 0]
    assert taught == [2, 2]  # the first batch of three takes workspaces and teaches nothing


def test_a_model_that_the_cpu_itself_computes_wrongly_fails_without_a_word_of_a_fallback(desk, monkeypatch):
    monkeypatch.setattr(canary, "lowest_cosine", lambda *_: 0.5)
    code, run = desk.run(devices="cpu")
    assert code == ExitCode.FAILED
    (failed,) = events_of(run, ev.PassFailed)
    assert failed.reason.startswith("computes wrongly on cpu: drop it from --roster")


def test_a_canary_that_is_too_large_is_made_of_the_shorter_half_of_its_texts(desk, monkeypatch):
    attempt, tried = ModelInstance.attempt, []

    def short_at_first(instance, rows, *more):
        tried.append([len(row) for row in rows])
        if len(tried) == 1:
            return Shortfall(Trouble.MEMORY, "CUDA out of memory", 2, 1, 0.0)
        return attempt(instance, rows, *more)

    monkeypatch.setattr(ModelInstance, "attempt", short_at_first)
    _, run = desk.run()
    (found,) = events_of(run, ev.CanaryChecked)
    assert tried[1] == sorted(tried[0], reverse=True)[4:]
    assert (found.outcome, found.rows, found.tokens) == ("passed", 4, sum(tried[1]))


def test_refused_rows_with_good_batches_between_them_do_not_widen_a_pass(blind, monkeypatch):
    monkeypatch.setattr(batch_runner, "MOST_REFUSED", 2)
    between = " ".join(["and on it goes"] * 12)
    texts = [f"{number} {'%' if number % 14 else '@'} {between}" for number in range(14, 42)]
    corpus(blind.place / "in", {"Docs": {"a_chunks.json": [*TEXTS, *texts]}})
    code, run = blind.run()
    assert code == ExitCode.COMPLETED
    assert [step for step in steps(run) if step[0] == "float32"] == [("float32", "computing in float32")] * 2


@pytest.mark.parametrize("precision", ["int8", "float16", "bit"])
def test_vectors_of_tokens_pass_where_only_rounding_tells_them_apart_and_fail_where_they_are_others(precision):
    draw = np.random.default_rng(1)
    right = draw.standard_normal((40, 256)).astype(np.float32)
    near = right + 0.04 * draw.standard_normal(right.shape).astype(np.float32)  # a cosine of 0.999, as in float16
    others = draw.standard_normal(right.shape).astype(np.float32)
    wanted, found, wrong = (
        Outputs(np.eye(2, dtype=np.float32), tokens=TokenRows.from_vectors(each, np.array([0, 10, 40]), precision))
        for each in (right, near, others)
    )
    assert canary.lowest_cosine(found, wanted) == 1
    assert canary.lowest_cosine(wrong, wanted) == -1
    none = Outputs(wanted.dense, tokens=wanted.tokens.join(2, []))
    assert canary.lowest_cosine(none, wanted) == -1
    assert canary.lowest_cosine(none, none) == 1
