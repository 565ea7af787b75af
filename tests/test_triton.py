"""Triton's kernels equal torch's code under Triton's interpreter, and a canary refuses those that do not."""

import importlib.util
import inspect
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip(
    "triton", reason="Triton comes with torch's builds for CUDA alone (691 MB): `make triton` runs these tests"
)

from interlock.engine.errors import ExitCode
from interlock.engine.models import card as cards
from interlock.engine.models.card import ModelCard
from interlock.engine.models.networks import attention, fused, triton_kernels
from interlock.engine.models.networks.attention import attending, register
from interlock.engine.models.networks.checkpoint import PACKED_TYPES
from interlock.engine.models.networks.kernels import Kernel, pack
from interlock.engine.models.networks.network import PackedEncoder
from interlock.engine.record import events as ev
from tests.builders import corpus, events_of, sentences, tiny_model
from tests.fake_models import config_of
from tests.test_attention import CASES, HOST, MIXES, network
from tests.test_canary import Bench

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
SHAPES = 200
"""Random ones of each kernel and precision: odd sizes, no rows, rows that lie apart."""


def near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """What came out is what is `wanted` in float32, rounded once. The interpreter cuts bfloat16 off."""
    once = torch.finfo(got.dtype).eps * (1 if got.dtype is torch.bfloat16 else 0.5)
    torch.testing.assert_close(got.float(), wanted, rtol=once + 4e-6, atol=4e-6)


class Dice:
    """Random shapes and tensors, the same each time."""

    def __init__(self, dtype: torch.dtype, shape: int) -> None:
        self._draw, self._dtype = np.random.default_rng([shape, dtype.itemsize]), dtype
        self._numbers = torch.Generator().manual_seed(shape)

    def among(self, low: int, high: int) -> int:
        return int(self._draw.integers(low, high, endpoint=True))

    def rows(self, count: int, *shape: int) -> torch.Tensor:
        """Rows of which some lie apart: views of wider ones."""
        size, apart = int(np.prod(shape)), self.among(0, 3)
        wide = torch.randn(count, size + apart, generator=self._numbers).mul_(2).to(self._dtype)
        return wide[:, :size].unflatten(1, shape)


def beside(rows: torch.Tensor) -> torch.Tensor:
    """What lies between rows and behind the last, of which nothing may change."""
    whole = torch.tensor(rows.untyped_storage().tolist(), dtype=torch.uint8).view(rows.dtype)
    mine = torch.zeros(len(whole), dtype=torch.bool)
    mine.as_strided(rows.shape, rows.stride(), rows.storage_offset()).fill_(True)
    return whole[~mine]


@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_and_keys_are_normed_and_turned_as_torch_does_it(dtype):
    for shape in range(SHAPES):
        dice = Dice(dtype, shape)
        heads, half, plain, one = dice.among(1, 11), dice.among(1, 20), shape % 3 == 0, bool(shape % 2)
        rows = dice.rows(dice.among(0, 4), heads, 2 * half)
        weights = None if plain else dice.rows(heads, 2 * half).contiguous()
        angles = torch.rand(len(rows), half).repeat(1, 2).mul(6)
        cosines, sines = (each.to(dtype) for each in (angles.cos(), angles.sin()))
        wanted = rows.float()
        if weights is not None:
            wanted = torch.ops.interlock.rms_norm(wanted, None, 1e-6)[0] * (weights.float() + one)
        wanted = fused.turn(wanted, cosines.float()[:, None], sines.float()[:, None])
        before = beside(rows)
        torch.ops.interlock.turn(rows, weights, cosines, sines, 1e-6, one)
        near(rows, wanted)
        assert beside(rows).equal(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gate_is_what_torch_makes_of_it(dtype):
    functions = {"silu": F.silu, "gelu": F.gelu, "tanh": lambda gate: F.gelu(gate, approximate="tanh")}
    for shape in range(SHAPES):
        dice = Dice(dtype, shape)
        name, width = sorted(functions)[shape % 3], dice.among(1, 1100 if shape % 10 == 0 else 70)
        rows = dice.rows(dice.among(0, 4), 2 * width)
        gate, up = rows.float().chunk(2, -1)
        wanted, untouched, before = functions[name](gate) * up, rows[:, width:].clone(), beside(rows)
        torch.ops.interlock.gate(rows, name)
        near(rows[:, :width], wanted)
        assert rows[:, width:].equal(untouched)
        assert beside(rows).equal(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_normed_as_torch_does_it(dtype):
    for shape in range(SHAPES):
        dice, layer = Dice(dtype, shape), shape % 2 == 0
        width, one = dice.among(1, 90), bool(shape % 3)
        rows = dice.rows(dice.among(0, 4), width)
        other = dice.rows(len(rows), width) if shape % 5 else None
        weight, bias = dice.rows(1, width)[0], dice.rows(1, width)[0]
        total = rows.float() + (0 if other is None else other.float())
        before = beside(rows)
        if layer:  # in place, of the sum that nothing else needs
            torch.ops.interlock.norm(rows, rows, other, weight, bias, 1e-5, False)
            near(rows, F.layer_norm(total, (width,), weight.float(), bias.float(), 1e-5))
        else:
            out = torch.empty_like(rows)
            torch.ops.interlock.norm(out, rows, other, weight, None, 1e-6, one)
            near(rows, total)
            normed = torch.ops.interlock.rms_norm(rows.float(), None, 1e-6)[0]
            near(out, normed * (weight.float() + one))
        assert beside(rows).equal(before)


def test_gemmas_norm_is_the_publishers_to_the_last_bit():
    plain = network("gemma3_text", "sdpa").half().norm
    rows = torch.randn(400, len(plain.weight), generator=torch.Generator().manual_seed(1)).half()
    out = torch.empty_like(rows)
    torch.ops.interlock.norm(out, rows, None, plain.weight.data, None, float(plain.eps), True)
    with torch.inference_mode():
        assert (out == plain(rows)).float().mean() > 0.999


COMPILED = """
import sys, torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from interlock.engine.models.networks import fused, triton_kernels

class Card:
    get_current_device = get_current_stream = lambda *_: 0
    get_current_target = lambda _: GPUTarget("cuda", int(sys.argv[1]), 32)

def compiled(kernel, grid, *given, **how):
    assert kernel.warmup(*given, grid=grid, **how).asm["cubin"]
    done.append(kernel)

driver.set_active(Card())
done, triton_kernels._launch, ops = [], compiled, torch.ops.interlock
for dtype in [torch.float16, torch.float32] + [torch.bfloat16] * (int(sys.argv[1]) >= 80):
    heads, angles, rows, weight = (torch.empty(*shape, dtype=dtype) for shape in ((5, 6, 24), (5, 24), (5, 96), (96,)))
    ops.turn(heads, None, angles, angles, 0.0, False)
    ops.turn(heads, heads[0], angles, angles, 1e-6, True)
    for name in ("silu", "gelu", "tanh"):
        ops.gate(rows, name)
    ops.norm(rows, rows, rows, weight, weight, 1e-12, False)
    ops.norm(torch.empty_like(rows), rows, rows, weight, None, 1e-6, False)
    ops.norm(torch.empty_like(rows), rows, None, weight, None, 1e-6, True)
print(len(done))
"""
"""What compiles all kernels for cards of a capability, of which none need be there, and says how many."""


@pytest.mark.parametrize(("capability", "kernels"), [("75", 16), ("80", 24), ("90", 24)])
def test_every_kernel_compiles_for_cards_as_it_is_launched(tmp_path, capability, kernels):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", COMPILED, capability]
    said = subprocess.run(words, env=env, check=False, capture_output=True, text=True, timeout=250)
    assert said.stdout == f"{kernels}\n", said.stderr[-2000:]


def by_triton(rows):
    return replace(pack(rows, HOST), triton=True)


def computed(network, batch):
    with torch.inference_mode(), attending(batch):
        if isinstance(network, PackedEncoder):
            return network(batch)
        return network(input_ids=batch.ids[None], position_ids=batch.positions[None])[0][0, : batch.tokens]


def both_ways(network):
    rows = [np.random.default_rng(number).integers(5, 99, length) for number, length in enumerate(MIXES[-1])]
    return computed(network, by_triton(rows)), computed(network, pack(rows, HOST))


@pytest.mark.parametrize("name", CASES)
def test_a_network_of_transformers_computes_the_same_with_triton(name):
    got, wanted = both_ways(fused.fuse(network(name, register())))
    torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", sorted(PACKED_TYPES - {"mpnet"}))
def test_a_network_of_ours_computes_the_same_with_triton(kind):
    encoder = PackedEncoder.blank(config_of(kind, 2))
    torch.manual_seed(3)
    for parameter in encoder.parameters():
        parameter.data.copy_(torch.randn(parameter.shape) * 0.2)
    got, wanted = both_ways(encoder)
    torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-4)


def with_fault(tmp_path, monkeypatch, good: str, bad: str) -> None:
    """Have the kernels made of a source in which something is wrong."""
    source = inspect.getsource(triton_kernels)
    assert source.count(good) == 1
    file = tmp_path / "faulty_kernels.py"
    file.write_text(source.replace(good, bad))
    spec = importlib.util.spec_from_file_location("faulty_kernels", file)
    faulty = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "faulty_kernels", faulty)
    spec.loader.exec_module(faulty)
    for name in ("turn", "gate", "norm"):
        monkeypatch.setattr(triton_kernels, name, getattr(faulty, name))


@pytest.fixture
def with_triton(monkeypatch):
    """Simulated cards that try Triton, and attend as the host does."""
    monkeypatch.setattr(cards, "first_kernel", lambda *_, **__: Kernel.FLASH_TRITON)
    monkeypatch.setattr(ModelCard, "kernel_on", lambda card, kind: card.kernel if kind == "sim" else Kernel.HOST)
    monkeypatch.setattr(attention, "_flash", lambda *given: attention._runs(*given, None))


def ran(tmp_path, monkeypatch, kind: str):
    """What canaries said in a run, by a model of which no width is a power of two; and what was mitigated."""
    shape = {"bert": {"initializer_range": 0.3},
             "qwen3": {"initializer_range": 0.06, "num_key_value_heads": 2, "head_dim": 24}}[kind]  # fmt: skip
    desk = Bench(tmp_path, monkeypatch)
    desk.model = tiny_model(tmp_path / kind, kind=kind, width=96, layers=3, **shape)
    desk.chunks = corpus(tmp_path / "few", {"Docs": {"a_chunks.json": sentences(6, 9)}})
    code, run = desk.run()
    assert code == ExitCode.COMPLETED
    found = [(each.attention, each.outcome, each.action) for each in events_of(run, ev.CanaryChecked)]
    return found, [each.action for each in events_of(run, ev.Mitigated)]


@pytest.mark.parametrize("kind", ["bert", "qwen3"])
def test_a_run_keeps_the_kernels_that_its_canary_lets_pass(tmp_path, monkeypatch, with_triton, kind):
    assert ran(tmp_path, monkeypatch, kind) == ([("flash with Triton", "passed", "")], [])


FAULTS = {
    "another epsilon": ("qwen3", "width + epsilon)", "width + 0.1)"),
    "no mask at the edge": ("bert", "values = tl.load(rows + row * stride + column, there, 0.0)",
                            "values = tl.load(rows + row * stride + column)"),
    "angles swapped": ("qwen3", "cosine = tl.load(cosines +", "cosine = tl.load(sines +"),
    "no kernel": ("bert", "values *= tl.rsqrt", "values *= tl.no_such_function"),
}  # fmt: skip
"""What goes wrong, in a model of which kind, and how."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_kernel_is_caught_by_the_canary_and_the_run_goes_on_without_triton(
    tmp_path, monkeypatch, with_triton, fault
):
    kind, good, bad = FAULTS[fault]
    with_fault(tmp_path, monkeypatch, good, bad)
    found, mitigated = ran(tmp_path, monkeypatch, kind)
    assert found == [("flash with Triton", "failed", "trying without Triton"), ("flash", "passed", "")]
    assert mitigated == ["trying without Triton"]
