"""Every architecture on a GPU that is not there: nothing lies on another device, few kernels, and nearly no waiting.

The host master, the replica, streaming, slicing and the encoders are those of the engine; tensors on `cuda:1` have no
content (`tests/fake_cuda.py`). A bare `cuda`, or the number 0, would show as a fault.
"""

import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorDeviceMismatchError

from interlock.engine.compute import encoder
from interlock.engine.compute.batch_runner import BatchRunner
from interlock.engine.compute.instance import ModelInstance
from interlock.engine.compute.ladder import Rung
from interlock.engine.compute.source import Queue
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.memory import Calibration, Law
from interlock.engine.models.networks import kernels as packing
from interlock.engine.models.networks.attention import ROTARY
from interlock.engine.models.networks.checkpoint import PACKED_TYPES
from interlock.engine.models.networks.kernels import lay, pack
from interlock.engine.models.networks.streaming import walk
from interlock.engine.record import events as ev
from tests.fake_cuda import FakeCuda, fake_cuda
from tests.fake_models import A100, KINDS, PADDED, ROWS, T4, Attached, attached
from tests.harness import Told, grid_of
from tests.weightless import card_of

LAYER_KERNELS = {"bert": 10, "roberta": 10, "xlm-roberta": 10, "llama": 17, "qwen2": 17, "qwen3": 19}
"""The most that a layer of an architecture may launch."""
BY_TRITON = {"bert": 8, "xlm-roberta": 8, "nomic_bert": 12, "llama": 13, "qwen3": 13, "gemma3_text": 16}
"""The same where Triton's kernels compute what lies between products; all but the first two: on a T4."""


@pytest.fixture
def fake() -> Iterator[FakeCuda]:
    with fake_cuda() as fake:
        yield fake


@pytest.mark.parametrize(
    ("kind", "capability"),
    [
        *((kind, A100) for kind in KINDS),
        *((kind, T4) for kind in ("bert", "gemma3_text", "modernbert", "qwen3")),
    ],
)
def test_all_tensors_of_an_architecture_are_on_its_gpu(fake, kind, capability):
    model = attached(fake, kind, capability=capability)
    for lengths in ROWS.values():
        model.encode(lengths)
    model.replica.stream()
    for lengths in ROWS.values():
        model.encode(lengths)
    model.replica.restore()
    model.encode(ROWS["ragged"])


def _stages_stay(fake, monkeypatch):
    model = attached(fake, "xlm-roberta")
    model.replica._stages[0].point_to(model.replica._stages[0].host, piece=True)
    return model


def _ids_stay(fake, monkeypatch):
    monkeypatch.setattr(encoder, "pack", lambda rows, place, kernel: pack(rows, torch.device("cpu"), kernel))
    return attached(fake, "bert")


def _bare_cuda(fake, monkeypatch):
    monkeypatch.setattr(encoder, "pack", lambda rows, place, kernel: pack(rows, torch.device("cuda:0"), kernel))
    return attached(fake, "qwen3")


@pytest.mark.parametrize("mistake", [_stages_stay, _ids_stay, _bare_cuda])
def test_a_tensor_on_another_device_is_a_fault(fake, monkeypatch, mistake):
    with pytest.raises(FakeTensorDeviceMismatchError):
        mistake(fake, monkeypatch).encode(ROWS["ragged"])


def on_the_gpu(network: nn.Module) -> list[torch.Size]:
    """Shapes of the weights of a network that are on a GPU, and of any tensors made since garbage was last frozen."""
    gc.collect()
    seen = [*network.parameters(), *network.buffers(), *(each for each in gc.get_objects() if type(each) is FakeTensor)]
    return [each.shape for each in seen if each.device.type == "cuda"]


def _run_out(*_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("kind", ["electra", "modernbert", "qwen3", "xlm-roberta"])
def test_memory_that_runs_out_in_any_stage_of_a_streamed_forward_leaves_nothing_on_the_gpu(fake, kind):
    model, called = attached(fake, kind, streamed=True), []
    for stage, _ in walk(model.replica.network):
        stage.register_forward_pre_hook(lambda stage, _: called.append(stage))
    model.encode(ROWS["single"])
    gc.freeze()
    assert len(called) > 2
    for stage in dict.fromkeys(called):
        hook = stage.register_forward_pre_hook(_run_out)
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError):
                model.encode(ROWS["single"])
            model.replica.clear()
            assert on_the_gpu(model.replica.network) == []
        hook.remove()
        model.encode(ROWS["single"])


class Others:
    """Where pieces go that one GPU cannot compute: another GPU."""

    def __init__(self) -> None:
        self.instance: ModelInstance | None = None

    def other(self, instance: ModelInstance) -> ModelInstance | None:
        return None if instance is self.instance else self.instance

    def host_possible(self) -> bool:
        return False

    def makes_room(self, instance: ModelInstance) -> bool:
        return False

    def streams_rightly(self, instance: ModelInstance) -> bool:
        return True


def _instance(stack: ExitStack, model: Attached, lessor: Lessor, lease: Any) -> ModelInstance:
    free = Law(0, 0.0, slots=1)
    return ModelInstance(model.gpu, model.replica, model.rows, "float16", free, Calibration(), lease, lessor)


CLIMBING = ("albert", "bert", "deberta-v2", "gemma3_text", "modernbert", "nomic_bert", "qwen3")
"""Padded and packed, learned and rotary positions, windows, shared layers, its own network: one of each."""


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=[pytest.mark.nightly] * (each not in CLIMBING)) for each in KINDS]
)
def test_a_batch_climbs_the_ladder_to_the_other_gpu_without_a_tensor_left_behind(fake, kind):
    told, others = Told(), Others()
    (cells,) = grid_of([replace(card_of("MiniLM-L6"), dim=64)], [24, 9], lambda _, length: np.full(length, 5))
    models = [attached(fake, kind, number=number) for number in (1, 2)]
    with ExitStack() as stack:
        lessor = Lessor([model.gpu for model in models], 1 << 30)
        lease = stack.enter_context(lessor.lease("m", {model.gpu.name: 0 for model in models}, lambda _: None))
        full, others.instance = (_instance(stack, model, lessor, lease) for model in models)
        stages = [stage for stage, _ in walk(models[0].replica.network)]
        stages[-1].register_forward_hook(_run_out)
        result = BatchRunner(Queue(cells, [0]), full, others, told).compute(0)
    assert {step.rung for step in told.of(ev.Mitigated)} >= {Rung.SPLIT, Rung.STREAM, Rung.RELOCATE}
    assert np.isfinite(result.outputs.dense).all()


@pytest.mark.parametrize("kind", sorted(PACKED_TYPES | ROTARY))
def test_the_host_waits_once_for_a_packed_batch(fake, kind):
    attached(fake, kind).encode(ROWS["ragged"])
    assert +fake.waits == {"to host": 1}


def test_the_host_waits_twice_where_nothing_can_be_page_locked(fake, monkeypatch):
    monkeypatch.setattr(packing, "_pinned", lambda size: None)
    attached(fake, "bert").encode(ROWS["ragged"])
    assert fake.waits == {"to device": 1, "to host": 1}


def test_page_locked_memory_is_given_back_once_it_is_copied_and_not_when_its_gpu_may_be_lost(fake, monkeypatch):
    made = []

    def note(size):
        made.append(weakref.ref(memory := torch.empty(size, dtype=torch.int64)))
        return memory

    monkeypatch.setattr(packing, "_pinned", note)
    place = torch.device("cuda", 1)
    rows = lay([np.arange(5), np.arange(40)], place)
    for tries in (1, 2):
        assert pack(rows, place).ids.shape == (48,)
        assert [memory() for memory in made] == [None] * tries


@pytest.mark.parametrize("kind", PADDED)
def test_the_host_waits_three_times_at_most_for_a_padded_batch(fake, kind):
    for lengths in ROWS.values():
        attached(fake, kind).encode(lengths)
        assert fake.waits.total() <= 3


@pytest.mark.parametrize(
    ("kind", "capability"), [*((kind, card) for kind in LAYER_KERNELS for card in (T4, A100)), ("modernbert", A100)]
)
def test_a_layer_launches_as_many_kernels_whatever_the_mix_of_lengths(fake, kind, capability):
    most = LAYER_KERNELS.get(kind, 15)
    few, many = attached(fake, kind, 2, capability), attached(fake, kind, 4, capability)
    for lengths in ROWS.values():
        assert (many.kernels(lengths) - few.kernels(lengths)) / 2 <= most


@pytest.mark.parametrize(("kind", "most"), BY_TRITON.items())
def test_a_layer_launches_fewer_kernels_with_triton_and_waits_no_longer(fake, kind, most):
    few, many = (attached(fake, kind, layers, T4, triton=True) for layers in (2, 4))
    for lengths in ROWS.values():
        assert (many.kernels(lengths) - few.kernels(lengths)) / 2 <= most
        assert +fake.waits == {"to host": 1}
