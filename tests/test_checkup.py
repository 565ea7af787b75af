"""`interlock doctor --gpu`: what it tries of a GPU, what it says, and what it makes of faults."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from interlock.engine.compute.checks import checkup, specimen
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.errors import ExitCode
from interlock.engine.gpu.device import Pinning
from interlock.engine.gpu.devices import choose
from interlock.engine.models.networks import attention, kernels
from interlock.engine.models.networks.network import PackedEncoder
from interlock.engine.models.networks.streaming import Streaming
from interlock.engine.models.weights import DTYPES, Master
from tests.fake_cuda import fake_cuda
from tests.fake_models import A100, T4, Gpu

GIB = 1 << 30
P100 = (6, 0)


def outcomes(checks):
    return {f"{check.name}: {check.found.partition(':')[0]}": check.outcome for check in checks if check.cosine}


def on_sim(faults=()):
    return list(checkup.examine(choose("sim:T4", faults), 12 * GIB))


def test_every_way_of_a_sound_gpu_passes():
    checks = on_sim()
    assert outcomes(checks) == dict.fromkeys(
        [
            "bert float32: runs of one length",
            "bert streamed: float32, as resident",
            "qwen3 float32: runs of one length",
            "qwen3 float32: padded, sdpa",
            "qwen3 float32: padded, eager",
            "qwen3 streamed: float32, as resident",
        ],
        "passed",
    )
    assert [check.name for check in checks if check.outcome == "untried"] == ["pinning"]


def test_a_kernel_that_lets_rows_see_each_other_fails_where_rows_are_laid_end_to_end(monkeypatch):
    runs = attention._runs

    def leaking(query, key, *more):
        return runs(query, torch.cat([key[:1], key[:-1]]), *more)

    monkeypatch.setattr(attention, "_runs", leaking)
    failed = [name for name, outcome in outcomes(on_sim()).items() if outcome == "failed"]
    assert "qwen3 float32: runs of one length" in failed
    assert "bert float32: runs of one length" in failed
    assert not [name for name in failed if "padded" in name]


def test_a_kernel_that_is_not_there_fails_with_what_the_library_said_and_the_rest_is_tried(monkeypatch):
    runs = attention._runs

    def missing(query, key, value, batch, *more):
        if len(batch.lengths) > 1:
            raise RuntimeError("no kernel image is available for execution on the device")
        return runs(query, key, value, batch, *more)

    monkeypatch.setattr(attention, "_runs", missing)
    checks = on_sim()
    failed = [check for check in checks if check.outcome == "failed"]
    assert {check.name for check in failed if "no kernel image" in check.found} >= {"bert float32", "qwen3 float32"}
    assert failed[0].advice.startswith("a run goes on, not using cuda:0; please report it")
    assert [check.found[:6] for check in checks if check.outcome == "passed"][-2:] == ["padded"] * 2


def test_weights_that_are_computed_with_before_they_are_there_fail_the_streamed_checks(monkeypatch):
    fill = Streaming._fill

    def late(self, number):
        fill(self, number)
        for slot in self._slots[number % 2].values():
            slot[: len(slot) // 2] = 0

    monkeypatch.setattr(Streaming, "_fill", late)
    assert {name for name, outcome in outcomes(on_sim()).items() if outcome == "failed"} == {
        "bert streamed: float32, as resident",
        "qwen3 streamed: float32, as resident",
    }


@pytest.mark.parametrize(
    ("capability", "kind", "triton", "tried"),
    [
        (
            T4,
            "qwen3",
            "",
            "float16 memory-efficient, float16 runs of one length, "
            "float32 memory-efficient, float32 runs of one length, "
            "float16 sdpa, float16 eager, float32 sdpa, float32 eager",
        ),
        (
            T4,
            "bert",
            "3.7.1",
            "float16 memory-efficient with Triton, float16 memory-efficient, float16 runs of one length, "
            "float32 memory-efficient with Triton, float32 memory-efficient, float32 runs of one length",
        ),
        (
            P100,
            "bert",
            "3.7.1",
            "float16 memory-efficient, float16 runs of one length, "
            "float32 memory-efficient, float32 runs of one length",
        ),
        (
            A100,
            "bert",
            "",
            "float16 flash, float16 runs of one length, bfloat16 flash, bfloat16 runs of one length, "
            "float32 memory-efficient, float32 runs of one length",
        ),
    ],
)
def test_every_kernel_and_precision_that_a_card_may_come_to_is_tried(
    tmp_path, monkeypatch, capability, kind, triton, tried
):
    monkeypatch.setattr(kernels, "triton_version", lambda: triton)
    device = SimpleNamespace(capability=capability)
    card = specimen.make(tmp_path, kind, "cuda", capability)
    ways = [f"{way.dtype} {way.kernel if way.packed else way.attention}" for way, _ in checkup.ways(card, device)]
    assert ways == tried.split(", ")


def master_of(fake, card):
    with fake.mode:
        return Master(PackedEncoder.blank(card.config, DTYPES[card.dtype]))


class Refusing(Gpu):
    """A GPU that is not there, whose driver page-locks nothing."""

    capability = A100

    def pin(self, tensor):
        return Pinning(refused="out of memory")


def test_the_checks_of_a_real_gpu_reach_their_end_on_one_that_is_not_there(monkeypatch):
    monkeypatch.setattr(kernels, "triton_version", lambda: "")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(specimen, "SPECIMENS", {"bert": specimen.SPECIMENS["bert"]})
    monkeypatch.setattr(checkup, "_on_host", lambda card, rows: Outputs(np.ones((len(rows), card.dim), np.float32)))
    with fake_cuda() as fake:
        monkeypatch.setattr(checkup, "hydrated_for", lambda device: lambda card: master_of(fake, card))
        checks = list(checkup.examine([Refusing()], 12 * GIB))
    compared = [check.found.partition(":")[0] for check in checks if check.cosine is not None]
    halves = ["flash", "runs of one length"]
    assert compared == [*halves, *halves, "memory-efficient", "runs of one length", "float16, as resident"]
    (pinning,) = (check for check in checks if check.name == "pinning")
    assert pinning.outcome == "limited"
    assert pinning.found.startswith("refused (out of memory); 64.0 MiB in ")


def test_doctor_prints_what_a_bug_report_needs_within_80_columns(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = call("doctor", "--gpu", "--devices", "sim:T4")
    assert code == ExitCode.COMPLETED
    assert max(map(len, out.splitlines())) <= 80
    for said in ("Tesla T4 (simulated)", torch.__version__, "cuDNN", "memory-efficient on", "SIMULATED"):
        assert said in out


def test_doctor_fails_with_advice_where_a_gpu_computes_wrongly(call):
    code, out, _ = call("doctor", "--gpu", "--json", "--devices", "sim:T4", "--faults", "skew:1")
    assert code == ExitCode.FAILED
    report = json.loads(out)
    assert report["simulated"] is True
    (failed,) = (check for check in report["checks"] if check["outcome"] == "failed")
    assert (failed["device"], failed["name"], failed["least"]) == ("cuda:0", "bert float32", 0.99999)
    assert failed["cosine"] < 0.9
    assert failed["advice"].startswith("a run goes on, not using cuda:0")


@pytest.mark.parametrize("devices", ["auto", "cuda", "cpu"])
def test_doctor_says_why_there_is_no_gpu_to_check(call, monkeypatch, devices):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, out, err = call("doctor", "--gpu", "--devices", devices)
    assert (code, out) == (ExitCode.UNAVAILABLE, "")
    assert "GPU" in err and "sim:" in err


@pytest.mark.parametrize(
    ("ceiling", "others", "advice"),
    [(300 << 20, 0, "raise --ceiling"), (12 * GIB, 14 * GIB + (400 << 20), "end what holds its memory")],
)
def test_what_a_gpu_lacks_is_asked_of_the_ceiling_or_of_who_holds_it(ceiling, others, advice):
    (gpu,) = choose("sim:T4", ())
    gpu.others = others
    assert checkup.memory(gpu, ceiling).advice.startswith(advice)
    assert checkup.memory(gpu, 12 * GIB, 12 * GIB).outcome == "failed"
