"""The meter counts what real and fake tensors take; a simulated device makes a GPU of it: charged, walled, emptied."""

import copy
import gc
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from interlock.engine.errors import UsageError
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.device_errors import Trouble, classify
from interlock.engine.gpu.faults import parse
from interlock.engine.gpu.meter import Meter
from interlock.engine.gpu.sim import CARDS, CONTEXT, Card, SimDevice, simulated
from interlock.engine.record.facts import Memory
from interlock.engine.record.words import parse_bytes
from tests.ledgers import Counter

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LENGTHS = (48, 32, 7)


@pytest.fixture(scope="module")
def model(tiny_a: Path) -> nn.Module:
    from transformers import AutoModel

    return AutoModel.from_pretrained(tiny_a, attn_implementation="sdpa").eval()


@pytest.fixture
def device() -> SimDevice:
    return SimDevice("cuda:0", Card("GPU for tests", GIB))


@torch.inference_mode()
def encode(model: nn.Module) -> torch.Tensor:
    """Unit vectors of padded rows: everything that an encoder does."""
    rows = [torch.arange(length) % 60 + 5 for length in LENGTHS]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = (ids > 0).long()
    hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
    pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return nn.functional.normalize(pooled, dim=1)


def attach(model: nn.Module) -> tuple[torch.Tensor, nn.Module]:
    """A copy of the model whose weights are views of one flat tensor."""
    twin = copy.deepcopy(model)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    start = 0
    for parameter in twin.parameters():
        parameter.data = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return flat, twin


def test_a_storage_stays_charged_once_while_one_view_lives():
    counter = Counter()
    with Meter(counter):
        torch.empty(300)
        assert (counter.allocated, counter.peak) == (0, 1536)  # in steps of 512
        tensor = torch.empty(1024)
        views = [
            tensor.view(32, 32),
            tensor[5:],
            tensor.t(),
            tensor.detach(),
            tensor.reshape(2, -1),
            tensor.expand(3, -1),
        ]
    assert counter.allocated == 4096
    last = views.pop(1)
    del tensor, views
    assert counter.allocated == 4096
    del last
    assert counter.allocated == 0


def test_host_tensors_are_not_charged_and_what_is_made_of_them_is():
    host = torch.ones(1000)
    counter = Counter()
    with Meter(counter):
        passed = [host.contiguous(), host.to(torch.float32), host.view(10, 100), host.reshape(-1), host.add_(1)]
        passed += [nn.functional.dropout(host, training=False), torch.broadcast_tensors(host)[0]]
        passed += [torch.ops.aten.lift(host)]  # its schema promises a new tensor
        assert counter.allocated == 0
        made = host.half()
    assert counter.allocated == 2048
    del passed, made
    assert counter.allocated == 0


def test_each_result_of_one_operation_is_charged():
    counter = Counter()
    with Meter(counter):
        values, places = torch.ones(4, 128).sort()
        assert counter.allocated == 2048 + 4096
        parts = torch.split(values, 1)
        assert counter.allocated == 2048 + 4096
    del places, parts
    assert counter.allocated == 2048


def test_the_peak_holds_an_input_and_the_result_that_replaces_it():
    counter = Counter()
    with Meter(counter):
        tensor = torch.ones(1024)
        for _ in range(5):
            tensor = tensor * 2
    assert (counter.allocated, counter.peak) == (4096, 8192)
    counter.start_peak()
    assert counter.peak == 4096


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_a_composite_operation_makes_inside_is_seen(mode):
    query = torch.ones(1, 2, 16, 8)
    counter = Counter()
    with mode(), Meter(counter):
        nn.functional.scaled_dot_product_attention(query, query, query)
    assert counter.peak == query.numel() * 4 + 512  # the result, and the sums beside it that are never returned
    counter = Counter()
    with mode(), Meter(counter):
        kept = torch.chunk(torch.ones(8, 64) @ torch.ones(64, 64), 2)[0]
    assert counter.peak == (8 * 64 + 64 * 64 + 8 * 64) * 4
    assert counter.allocated == 8 * 64 * 4
    del kept
    assert counter.allocated == 0


def test_a_narrow_meter_counts_float32_half_and_nothing_else():
    counter = Counter()
    with Meter(counter, narrow=True):
        single = torch.empty(1024, dtype=torch.float32)
        assert counter.allocated == 2048
        others = [torch.empty(1024, dtype=dtype) for dtype in (torch.float16, torch.int64, torch.bool)]
        assert counter.allocated == 2048 + 2048 + 8192 + 1024
        view = single.view(torch.int32)
    del single, others
    assert counter.allocated == 2048
    del view
    assert counter.allocated == 0


def test_nested_meters_on_one_ledger_charge_each_storage_once():
    counter = Counter()
    outer = Meter(counter)
    with outer, outer, Meter(counter):
        tensor = torch.empty(1024)
    assert counter.allocated == 4096
    del tensor
    assert counter.allocated == 0


def test_nested_ledgers_are_both_charged():
    one, other = Counter(), Counter()
    with Meter(one), Meter(other):
        tensor = torch.empty(1024)
    assert one.allocated == other.allocated == 4096
    del tensor
    assert one.allocated == other.allocated == 0


def test_tensors_that_outlive_their_meter_are_taken_off():
    counter = Counter()
    with Meter(counter):
        tensor = torch.empty(1024)
    gc.collect()
    del tensor
    assert counter.allocated == 0


def test_one_meter_on_several_threads_neither_loses_nor_double_counts():
    counter = Counter()
    meter = Meter(counter)
    passed_on: list[torch.Tensor] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with torch.inference_mode():
                for _ in range(150):
                    with meter:
                        passed_on.append(nn.functional.linear(torch.ones(4, 16), torch.ones(16, 16)))
                    torch.ones(100_000)  # nobody's
                    passed_on.pop()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert counter.allocated == 0
    assert 0 < counter.peak < 100_000
    torch.ones(1000)
    assert torch._C._len_torch_dispatch_stack() == 0


def test_the_storage_of_a_collected_cycle_is_taken_off():
    counter = Counter()
    with Meter(counter):
        tensor = torch.empty(1024)
        tensor.itself = tensor
        del tensor
    gc.collect()
    assert counter.allocated == 0


def test_tensors_of_no_content_are_charged_and_cost_the_host_nothing(device):
    with device.computing():
        tensor = torch.empty(512 * MIB, dtype=torch.uint8, device="meta")
        view = tensor[1:]
        del tensor
        assert device.memory().allocated == 512 * MIB
        del view
        assert device.memory().allocated == 0


def test_vectors_of_a_simulated_device_are_those_of_outside_bit_for_bit(device, model):
    outside = encode(model)
    with device.computing():
        within = encode(model)
    assert torch.equal(outside, within)
    assert device.allocations > 50


def test_computing_twice_measures_the_same_peak(device, model):
    peaks = []
    for _ in range(2):
        device.start_peak()
        with device.computing():
            encode(model)
        peaks.append(device.peak())
    assert peaks[0] == peaks[1]
    assert peaks[0].allocated > 10 * KIB
    assert peaks[0].occupied == CONTEXT + peaks[0].reserved


def test_the_device_is_as_before_once_a_model_is_dropped_and_reclaimed(device, model):
    before = device.memory()
    with device.computing():
        flat, twin = attach(model)
        held = device.memory().allocated
        vectors = encode(twin)
    assert held == -(-flat.numel() * 2 // 512) * 512
    del flat, twin, vectors
    device.reclaim()
    assert device.memory() == before == Memory(allocated=0, occupied=CONTEXT, reserved=0)


def test_reclaiming_finds_tensors_in_a_cycle(device):
    gc.disable()
    try:
        with device.computing():
            tensor = torch.empty(MIB)
            tensor.itself = tensor
            del tensor
        device.trim()
        assert device.memory().allocated == 2 * MIB
        device.reclaim()
        assert device.memory().reserved == 0
    finally:
        gc.enable()


def test_a_model_over_the_wall_runs_out_of_memory_and_frees_all(device):
    device.wall(CONTEXT + 40 * MIB)
    layers = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(4)])
    gc.disable()
    try:
        with device.computing(), torch.inference_mode():
            kept = torch.ones(4, 1024)
            held = device.memory().allocated
            with pytest.raises(torch.OutOfMemoryError, match="cuda:0 has a total capacity") as caught:
                layers(torch.ones(8000, 1024))
            assert classify(caught.value) is Trouble.MEMORY
            del caught
            assert device.memory().allocated == held
            layers(kept)
    finally:
        gc.enable()
    assert device.peak().occupied <= CONTEXT + 40 * MIB
    assert device.retries() > 0


def test_each_device_on_its_thread_is_charged_for_its_own(model):
    devices = simulated("sim:2xT4")
    alone = SimDevice("cuda:0", CARDS["T4"])
    with alone.computing():
        encode(model)
    start = threading.Barrier(2)

    def work(device: SimDevice, times: int) -> None:
        with device.computing():
            start.wait()
            for _ in range(times):
                encode(model)

    threads = [threading.Thread(target=work, args=(device, 3 * (n + 1))) for n, device in enumerate(devices)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [device.allocations for device in devices] == [3 * alone.allocations, 6 * alone.allocations]
    assert [device.peak() for device in devices] == [alone.peak()] * 2
    encode(model)  # on none
    assert [device.memory().allocated for device in devices] == [0, 0]


def test_only_the_innermost_of_nested_devices_is_charged():
    one, other = simulated("sim:2xT4")
    with one.computing():
        with one.computing():
            assert torch._C._len_torch_dispatch_stack() == 1
        with other.computing(), one.copying():
            tensor = torch.empty(MIB)
        assert (one.memory().allocated, other.memory().allocated) == (2 * MIB, 0)
        with other.computing():
            moved = tensor.clone()
        assert (one.memory().allocated, other.memory().allocated) == (2 * MIB, 2 * MIB)
    del tensor, moved


def test_cached_memory_of_a_simulated_card_is_room_and_allocated_is_not(device):
    assert device.room(GIB) == GIB - CONTEXT
    assert device.room(CONTEXT + 100 * MIB) == 100 * MIB
    assert device.room(CONTEXT - MIB) == 0
    with device.computing():
        kept = torch.empty(60 * MIB, dtype=torch.uint8)
        torch.empty(30 * MIB, dtype=torch.uint8)
    assert device.memory().reserved == 90 * MIB
    assert device.room(CONTEXT + 100 * MIB) == 40 * MIB
    assert device.room(CONTEXT + 80 * MIB) == 20 * MIB
    device.trim()
    assert device.memory().reserved == 60 * MIB
    del kept


def test_a_simulated_device_says_what_it_is():
    device: Device = SimDevice("cuda:1", CARDS["T4"], key="GPU-1")
    assert (device.name, device.kind, device.label) == ("cuda:1", "sim", "Tesla T4 (simulated)")
    assert (device.total, device.torch, device.key, device.metered) == (15095 * MIB, torch.device("cpu"), "GPU-1", True)
    readings = device.readings()
    assert (readings.used, readings.total, readings.others) == (CONTEXT, 15095 * MIB, 0)
    device.hold(object(), GIB)
    device.join_copies()
    assert device.memory().allocated == 0


@pytest.mark.parametrize(
    ("text", "totals"),
    [
        ("sim:T4", [15095 * MIB]),
        ("sim:2xT4", [15095 * MIB] * 2),
        ("sim:1xt4+1xL4", [15095 * MIB, 22563 * MIB]),
        ("sim:2x16GiB", [16 * GIB] * 2),
        ("sim:1.5GiB+h100", [1536 * MIB, 81004 * MIB]),
    ],
)
def test_a_text_makes_numbered_cards_of_these_sizes(text, totals):
    devices = simulated(text)
    assert [device.total for device in devices] == totals
    assert [device.name for device in devices] == [f"cuda:{number}" for number in range(len(totals))]
    assert all(device.key is None for device in devices)


@pytest.mark.parametrize(
    "text", ["sim", "sim:", "T4", "sim:0xT4", "sim:2xK80", "sim:T4,L4", "sim:99xT4", "sim:2x", "sim:+"]
)
def test_an_unknown_card_shows_the_table(text):
    with pytest.raises(UsageError, match="sim:2xT4") as caught:
        simulated(text)
    assert repr(text) in str(caught.value)
    assert all(name in str(caught.value) for name in CARDS)


def test_a_card_too_small_for_a_context_is_refused():
    with pytest.raises(UsageError, match=r"more than 600\.0 MiB"):
        simulated("sim:2x512MiB")


def test_a_fault_of_a_missing_device_is_named():
    with pytest.raises(UsageError, match=r"cuda:2.*cuda:0, cuda:1"):
        simulated("sim:2xT4", parse("oom@2:1"))
    assert len(simulated("sim:2xT4", parse("oom@1:1,lag:1"))) == 2


@pytest.mark.parametrize(
    ("text", "size"), [("12GiB", 12 * GIB), ("1.5 MiB", 1536 * KIB), ("800mb", 800_000_000), ("4096", 4096)]
)
def test_a_size_as_people_write_it_is_in_bytes(text, size):
    assert parse_bytes(text) == size
    for wrong in (f"-{text}", f"{text}2x", ""):
        with pytest.raises(ValueError, match="expected a size"):
            parse_bytes(wrong)
