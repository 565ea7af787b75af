"""Every architecture on a GPU that is not there: nothing lies on another device, few kernels, and nearly no waiting.

The host master, the replica, streaming, slicing and the encoders are those of the engine; tensors on `cuda:1` have no
content (`tests/fake_cuda.py`). A bare `cuda`, or the number 0, would show as a fault.
"""

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorDeviceMismatchError

from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.models.attention import ROTARY, kernel_for, pack
from interlock.engine.models.network import PACKED_TYPES, PackedEncoder
from interlock.engine.models.stages import walk
from interlock.engine.models.weights import Master, Replica
from interlock.engine.passes import encoder
from interlock.engine.passes.encoder import Hidden, PackedRows, PaddedRows
from tests.fake_cuda import FakeCuda, fake_cuda
from tests.oracle import blank

T4, A100 = (7, 5), (8, 0)
ROWS = {"even": [24] * 4, "ragged": [40, 24, 24, 9, 3], "single": [17]}
SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 99, "type_vocab_size": 1,
    "max_position_embeddings": 512, "pad_token_id": 1, "hidden_act": "gelu", "bos_token_id": 2, "eos_token_id": 3,
    "cls_token_id": 2, "sep_token_id": 3, "mask_token_id": 4,
}  # fmt: skip
GROUPED = ("eurobert", "gemma3_text", "llama", "mistral", "qwen2", "qwen3")
PADDED = ("albert", "deberta-v2", "electra", "xlm-roberta-xl")
EAGER = ("deberta-v2",)
LAYER_KERNELS = {"bert": 10, "roberta": 10, "xlm-roberta": 10, "llama": 17, "qwen2": 17, "qwen3": 19}
"""The most that a layer of an architecture may launch."""
WINDOWED = {"modernbert": {"local_attention": 16}, "gemma3_text": {"sliding_window": 16, "layer_types": None},
            "mistral": {"sliding_window": 16}}  # fmt: skip


class Gpu(CpuDevice):
    """`cuda:1` as those see it who attach a model to it."""

    name, kind = "cuda:1", "cuda"

    def __init__(self) -> None:
        super().__init__()
        self.torch = torch.device("cuda", 1)

    def computing(self) -> AbstractContextManager[object]:
        return nullcontext()


@dataclass
class Attached:
    """A model on the GPU that is not there, and what encodes with it."""

    replica: Replica
    rows: Any
    fake: FakeCuda

    def encode(self, lengths: list[int]) -> None:
        """Compute rows of these lengths, counting from zero."""
        self.fake.kernels.clear()
        self.fake.waits.clear()
        vectors = self.rows.encode([np.full(length, 5) for length in lengths])
        assert vectors.shape == (len(lengths), SMALL["hidden_size"])

    def kernels(self, lengths: list[int]) -> int:
        self.encode(lengths)
        return sum(self.fake.kernels.values())


class _Graph(nn.Module):
    """What sentence-transformers makes of a network, as far as the encoders look at it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.first = _First(network)

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        hidden = self.first.model(**features)[0]
        mask = features.get("attention_mask", torch.ones_like(features["input_ids"]))[..., None]
        return {"sentence_embedding": (hidden * mask).sum(1) / mask.sum(1)}


class _First(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.model = network


def config_of(kind: str, layers: int) -> dict[str, Any]:
    config = {**SMALL, "model_type": kind, "num_hidden_layers": layers, **WINDOWED.get(kind, {})}
    if kind in GROUPED:
        config |= {"num_key_value_heads": 2, "head_dim": 16}
    if kind in ("albert", "electra"):
        config["embedding_size"] = 64
    return {name: value for name, value in config.items() if value is not None}


def attached(fake: FakeCuda, kind: str, layers: int = 2, capability: tuple[int, int] = A100, **how: bool) -> Attached:
    config, gpu = config_of(kind, layers), Gpu()
    kernel = kernel_for(config, "float16", capability)
    with fake.mode:
        network: nn.Module
        if kind in PACKED_TYPES:
            network = PackedEncoder.blank(config, torch.float16)
        else:
            network = _Graph(blank(config, "eager" if kind in EAGER else "sdpa", torch.float16, packed=kind in ROTARY))
        master = Master(network)
    replica = Replica(master, gpu, **how)
    if kind in PACKED_TYPES:
        rows: Any = PackedRows(replica.network, "mean", gpu.torch, kernel)
    elif kind in ROTARY:
        rows = PackedRows(Hidden(replica.network.first), "lasttoken", gpu.torch, kernel)
    else:
        rows = PaddedRows(replica.network, 1, gpu.torch)
    return Attached(replica, rows, fake)


@pytest.fixture
def fake() -> Iterator[FakeCuda]:
    with fake_cuda() as fake:
        yield fake


@pytest.mark.parametrize(
    ("kind", "capability"),
    [
        *((kind, A100) for kind in sorted(PACKED_TYPES | ROTARY | {*PADDED})),
        *((kind, T4) for kind in ("bert", "gemma3_text", "modernbert", "qwen3")),
    ],
)
def test_all_tensors_of_an_architecture_are_on_its_gpu(fake, kind, capability):
    model = attached(fake, kind, capability=capability)
    for lengths in ROWS.values():
        model.encode(lengths)
    model.replica.slice_mlp()
    model.encode(ROWS["ragged"])
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


@pytest.mark.parametrize("kind", ["albert", "modernbert", "mpnet", "qwen3", "xlm-roberta"])
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


@pytest.mark.parametrize("kind", sorted(PACKED_TYPES | ROTARY))
def test_the_host_waits_twice_for_a_packed_batch(fake, kind):
    attached(fake, kind).encode(ROWS["ragged"])
    assert fake.waits == {"to device": 1, "to host": 1}


@pytest.mark.parametrize(
    ("kind", "capability"), [*((kind, card) for kind in LAYER_KERNELS for card in (T4, A100)), ("modernbert", A100)]
)
def test_a_layer_launches_as_many_kernels_whatever_the_mix_of_lengths(fake, kind, capability):
    most = LAYER_KERNELS.get(kind, 15)
    few, many = attached(fake, kind, 2, capability), attached(fake, kind, 4, capability)
    for lengths in ROWS.values():
        assert (many.kernels(lengths) - few.kernels(lengths)) / 2 <= most
