"""Streamed weights when memory runs out, and what they really take: on a simulated card, and beside the memory law."""

from collections.abc import Iterable
from contextlib import ExitStack

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from interlock.engine.compute.encoder import Hidden, PackedRows, computed_tokens
from interlock.engine.compute.instance import ModelInstance, Shortfall
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.device_errors import Trouble
from interlock.engine.gpu.faults import parse
from interlock.engine.gpu.lease import Lessor
from interlock.engine.gpu.meter import Meter
from interlock.engine.gpu.sim import CARDS, SimDevice
from interlock.engine.models.memory import Calibration, Law, law_of
from interlock.engine.models.networks.streaming import Streaming, layers_of, walk
from interlock.engine.models.weights import Master, Replica
from tests.architectures import ARCHITECTURES, QWEN3_06B, XLM_R_LARGE
from tests.ledgers import Counter
from tests.oracle import blank, forward

GIB = 1 << 30
SMALL = {
    "num_hidden_layers": 3, "vocab_size": 200, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "max_position_embeddings": 64, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
NETWORKS = {
    "ours": {**XLM_R_LARGE, **SMALL},
    "of transformers": {**QWEN3_06B, **SMALL, "num_key_value_heads": 2, "head_dim": 16},
}
ROWS = [np.arange(3, 3 + length) for length in (30, 20, 20, 5)]
FREE = Law(0, 0.0, slots=1)


def network_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    network = blank(NETWORKS[kind], "sdpa", torch.float32, packed=True)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.02)
    return network


def streamed(kind: str, faults: str, stack) -> ModelInstance:
    """A streamed model on a simulated T4, under a lease."""
    gpu = SimDevice("cuda:0", CARDS["T4"], parse(faults))
    lessor = Lessor([gpu], 8 * GIB)
    lease = stack.enter_context(lessor.lease("m", {gpu.name: GIB}, lambda _: None))
    replica = Replica(Master(network_of(kind)), gpu, streamed=True)
    network = replica.network if kind == "ours" else Hidden(_Transformer(replica.network))
    rows = PackedRows(network, "lasttoken", gpu.torch)
    return ModelInstance(gpu, replica, rows, "float16", FREE, Calibration(), lease, lessor)


class _Transformer(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


def storages(tensors: Iterable[torch.Tensor]) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in tensors}


def stages_on_the_host(instance: ModelInstance) -> bool:
    return storages(instance.attached.network.parameters()) <= storages(instance.attached._master.flats.values())


def moments(instance: ModelInstance) -> list[int]:
    """Allocations of a forward: the last of those for the weights of each stage, and the first while it is computed."""
    began = []
    for module, _ in walk(instance.attached.network):
        module.register_forward_pre_hook(lambda *_: began.append(instance.device.allocations))
    instance.attempt(ROWS)
    return sorted({number + more for number in began for more in (0, 1)})


@pytest.mark.parametrize("kind", NETWORKS)
def test_wherever_memory_runs_out_in_a_streamed_forward_nothing_stays_and_the_next_is_right(kind):
    with ExitStack() as stack:
        calm = streamed(kind, "", stack)
        expected, numbers = calm.attempt(ROWS), moments(streamed(kind, "", stack))
    assert len(numbers) > 10
    for number in numbers:
        with ExitStack() as stack:
            instance = streamed(kind, f"oom:{number},oom:{2 * number}", stack)  # the same place of two forwards
            for _ in range(2):
                short = instance.attempt(ROWS)
                assert isinstance(short, Shortfall), number
                assert short.trouble is Trouble.MEMORY
                assert instance.device.memory().allocated == 0, number
                assert stages_on_the_host(instance)
            np.testing.assert_array_equal(instance.attempt(ROWS).dense, expected.dense)


@pytest.mark.parametrize("kind", NETWORKS)
def test_each_layer_of_every_forward_is_computed_with_its_copy_on_the_device(kind):
    with ExitStack() as stack:
        instance, on_host = streamed(kind, "", stack), []
        master = storages(instance.attached._master.flats.values())
        for layer in (layers := layers_of(instance.attached.network)):
            layer.register_forward_pre_hook(
                lambda layer, _: on_host.append(bool(storages(layer.parameters()) & master))
            )
        for _ in range(2):
            instance.attempt(ROWS)
    assert on_host == [False] * 2 * len(layers)


def test_the_next_layers_weights_are_copied_while_a_layer_is_computed_and_after_those_before_it(monkeypatch):
    """Its slot is that of the layer before; what is copied before a layer is issued keeps it from being computed."""
    told = []
    monkeypatch.setattr(SimDevice, "hold_copies", lambda _: told.append("copies wait"))
    monkeypatch.setattr(SimDevice, "join_copies", lambda _: told.append("it waits"))
    with ExitStack() as stack:
        instance = streamed("ours", "", stack)
        fill, streaming = Streaming._fill, instance.attached._streaming

        def copied(self, number):
            told.extend([f"copy {number}"] * (self._held.get(number % 2) != number))
            fill(self, number)

        monkeypatch.setattr(Streaming, "_fill", copied)
        for number, layer in enumerate(layers_of(instance.attached.network)):
            forward = layer.forward
            layer.forward = lambda *given, number=number, forward=forward: (
                told.append(f"layer {number}") or forward(*given)
            )
        instance.attempt(ROWS)
    last = len(streaming._layers) - 1
    assert told[:7] == ["copies wait", "copy 0", "it waits", "layer 0", "copy 1", "copies wait", "it waits"]
    for number in range(1, last):
        at = told.index(f"layer {number}")
        assert told[at - 2 : at + 2] == ["copies wait", "it waits", f"layer {number}", f"copy {number + 1}"]
    assert told[told.index(f"layer {last}") - 2 :][:3] == ["copies wait", "it waits", f"layer {last}"]


def test_a_table_of_tokens_stays_on_the_host_and_is_whole_again_afterwards():
    with ExitStack() as stack:
        instance = streamed("of transformers", "", stack)
        (table,) = (each for each in instance.attached.network.modules() if isinstance(each, nn.Embedding))
        looked_up = []
        table.register_forward_hook(lambda table, _, rows: looked_up.append((table.weight.data_ptr(), rows)))
        master = table.weight.data_ptr()
        streamed_rows = instance.attempt(ROWS).dense
        ((place, rows),) = looked_up
        assert place == master and rows.shape[-1] == table.embedding_dim
        instance.attached.restore()
        np.testing.assert_array_equal(instance.attempt(ROWS).dense, streamed_rows)


@pytest.mark.parametrize("name", ["XLM-R-large", "Qwen3-0.6B", "Qwen2-1.5B"])
def test_every_streamed_forward_stays_within_slots_and_law(name):
    config, lengths = {**ARCHITECTURES[name], "num_hidden_layers": 4}, [256]
    law = law_of(config, 2, packed=True)
    with FakeTensorMode():
        replica = Replica(Master(blank(config, "sdpa", torch.float16, packed=True)), CpuDevice(), streamed=True)
        counter, peaks = Counter(), []
        for _ in range(3):
            counter.start_peak()
            with torch.inference_mode(), Meter(counter):
                forward(replica.network, lengths, packed=True, causal=False)
            peaks.append(counter.peak)
        allowed = law.slots + law.activations(computed_tokens(lengths, padded=False), max(lengths))
    assert law.slots <= max(peaks) <= allowed
    assert len(set(peaks)) == 1
