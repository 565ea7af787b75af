"""What can be shown of the GPU side without a GPU: its arithmetic, over figures that a stub tells in CUDA's place.

The stub stands for torch.cuda and the driver, which cannot be had here. It proves what is done with their figures, that
the functions exist in the torch that is installed, and nothing about a real card.
"""

import gc
import inspect
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
import torch

from interlock.engine.compute.checks import checkup
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode, UnavailableError
from interlock.engine.flows import doctor
from interlock.engine.flows.forecast import forecast
from interlock.engine.flows.run import Run
from interlock.engine.gpu import cuda, devices, nvml
from interlock.engine.gpu.devices import choose, describe_host, unused_gpus
from interlock.engine.gpu.locks import holding
from interlock.engine.gpu.nvml import Nvml, open_nvml
from interlock.engine.models.weights import Master
from interlock.engine.record import events as ev
from interlock.engine.record.facts import Memory, Readings, Tenant
from interlock.engine.settings import load
from tests.builders import ROOT, corpus, environment, events_of

MIB, GIB = 1 << 20, 1 << 30
UUID = "GPU-12345678-0000-0000-0000-000000000000"
LOST = getattr(torch, "AcceleratorError", RuntimeError)("CUDA error: unspecified launch failure")


class Card:
    """One card: who has how much of it, as the test sets it, and what was asked of it."""

    total = 15 * GIB
    others = 0
    context = 300 * MIB  # once it is made
    opened = False
    error = None
    retries = 3
    lag = late = 0  # looks at the driver after `empty_cache` that show less than is free

    def __init__(self):
        self.allocated = self.reserved = self.peak_allocated = self.peak_reserved = 0
        self.fraction = None
        self.calls = []

    @property
    def own(self):
        return (self.context if self.opened else 0) + self.reserved

    def mem_get_info(self, device):
        self.answer()
        self.late, late = max(0, self.late - 1), self.late
        return self.total - self.others - self.own - (GIB if late else 0), self.total

    def stats(self, device):
        def counts(now, peak):
            return {"all": {"current": now, "peak": max(now, peak)}}

        reserved = counts(self.reserved, self.peak_reserved)
        allocated = counts(self.allocated, self.peak_allocated)
        return {"allocated_bytes": allocated, "reserved_bytes": reserved, "num_alloc_retries": self.retries}

    def reset_peak(self, device):
        self.peak_allocated = self.peak_reserved = 0

    def set_fraction(self, fraction, device):
        self.fraction = fraction

    def first_product(self, place):
        self.answer()
        self.opened = True

    def empty_cache(self):
        self.answer()
        self.calls.append("empty_cache")
        self.reserved, self.late = self.allocated, self.lag

    def ask_for(self, size, device):
        """An allocator that cannot give so much gives back what it has cached, tries again, and refuses."""
        self.answer()
        assert size > self.total
        self.calls.append(f"ask on {device}")
        self.reserved, self.retries = self.allocated, self.retries + 1
        raise torch.OutOfMemoryError("CUDA out of memory")

    def answer(self):
        if self.error:
            raise self.error


class Driver:
    """NVML's account of a card; `pid` is under which number it knows this process."""

    def __init__(self, card, pid):
        self._card, self._pid = card, pid

    def readings(self, uuid):
        assert uuid == UUID
        used = self._card.others + self._card.own + 512 * MIB
        return Readings(used=used, total=self._card.total + 512 * MIB, others=self._card.others)

    def own(self, uuid):
        return self._card.own if self._pid == os.getpid() and self._card.opened else None

    def others(self, uuid):
        return [Tenant(4711, "python", self._card.others)] if self._card.others else []

    def names(self):
        return ["Tesla T4", "Tesla T4"]

    def driver(self):
        return "550.54.15"

    def cuda(self):
        return "12.4"


class Stranger(Driver):
    """Knows another process by our number."""

    def own(self, uuid):
        return MIB


@pytest.fixture
def card(monkeypatch):
    card = Card()
    properties = SimpleNamespace(
        name="Tesla T4",
        total_memory=card.total,
        major=7,
        minor=5,
        uuid=UUID.removeprefix("GPU-"),
        multi_processor_count=40,
    )
    for name, function in {
        "get_device_properties": lambda index: properties,
        "mem_get_info": card.mem_get_info,
        "memory_stats_as_nested_dict": card.stats,
        "memory_reserved": lambda device: card.reserved,
        "reset_peak_memory_stats": card.reset_peak,
        "set_per_process_memory_fraction": card.set_fraction,
        "synchronize": lambda device=None: (card.answer(), card.calls.append("synchronize")),
        "empty_cache": card.empty_cache,
        "caching_allocator_alloc": card.ask_for,
    }.items():
        monkeypatch.setattr(torch.cuda, name, function)
    clear = lambda: card.calls.append("clear_workspaces")  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", clear, raising=False)
    monkeypatch.setattr(cuda, "_first_product", card.first_product)
    monkeypatch.setattr(cuda, "open_nvml", lambda: Driver(card, os.getpid()))
    monkeypatch.setattr(cuda, "FRESH", 0.0)
    cuda._open.cache_clear()
    yield card
    cuda._open.cache_clear()


@pytest.fixture
def device(card):
    return cuda.CudaDevice(0)


def test_the_installed_torch_takes_every_call_with_these_arguments():
    where = torch.device("cuda", 0)
    for name, arguments in {
        "get_device_properties": (0,),
        "mem_get_info": (where,),
        "memory_stats_as_nested_dict": (where,),
        "memory_reserved": (where,),
        "reset_peak_memory_stats": (where,),
        "set_per_process_memory_fraction": (0.5, where),
        "synchronize": (where,),
        "empty_cache": (),
        "caching_allocator_alloc": (1, where),
        "device": (where,),
        "stream": (None,),
        "default_stream": (where,),
        "current_stream": (where,),
        "Stream": (where,),
        "cudart": (),
        "is_available": (),
        "device_count": (),
    }.items():
        inspect.signature(getattr(torch.cuda, name)).bind(*arguments)
    assert (
        "def _cuda_clearCublasWorkspaces() -> None"
        in Path(torch._C.__file__).with_name("_C").joinpath("__init__.pyi").read_text()
    )


def test_importing_the_module_does_not_touch_cuda():
    code = "import torch, interlock.engine.gpu.cuda; assert not torch.cuda.is_initialized()"
    poisoned = "import torch; torch.cuda._lazy_init = torch.cuda.is_available = None; " + code
    subprocess.run([sys.executable, "-c", poisoned], env=environment(), cwd=ROOT, check=True)


@pytest.fixture
def kernels():
    """The process's choice of kernels as torch makes it, and again afterwards."""
    fused, product = torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.matmul
    before = fused(), product.allow_fp16_reduced_precision_reduction
    torch.backends.cuda.enable_cudnn_sdp(True)
    product.allow_fp16_reduced_precision_reduction = True
    cuda._settle_kernels.cache_clear()
    yield lambda: (fused(), product.allow_fp16_reduced_precision_reduction)
    torch.backends.cuda.enable_cudnn_sdp(before[0])
    product.allow_fp16_reduced_precision_reduction = before[1]


def test_the_first_card_turns_off_cudnn_attention_and_sums_in_float16(card, kernels):
    assert kernels() == (True, True)
    cuda.CudaDevice(0)
    assert kernels() == (False, False)
    torch.backends.cuda.enable_cudnn_sdp(True)  # what is turned on later stays on
    cuda.CudaDevice(1)
    assert kernels() == (True, False)


def test_a_card_becomes_a_named_device_without_a_context(card, device):
    assert (device.name, device.label, device.total, device.key) == ("cuda:0", "Tesla T4", 15 * GIB, UUID)
    assert device.torch == torch.device("cuda:0")
    assert not card.opened


@pytest.mark.parametrize(
    ("ceiling", "walled"),
    [(12 * GIB, 12 * GIB - Card.context), (None, Card.total), (100 * GIB, Card.total), (200 * MIB, 0)],
)
def test_the_allocator_may_have_what_the_ceiling_leaves_beside_the_context(card, device, ceiling, walled):
    device.wall(ceiling)
    assert round(card.fraction * card.total) == walled


@pytest.mark.parametrize(
    ("others", "reserved", "allocated", "room"),
    [
        (0, 0, 0, 12 * GIB - Card.context),
        (0, 5 * GIB, 2 * GIB, 12 * GIB - Card.context - 2 * GIB),
        (10 * GIB, 2 * GIB, GIB, Card.total - 10 * GIB - Card.context - GIB),
    ],
    ids=["empty", "cached", "beside another process"],
)
def test_room_is_what_ceiling_and_card_leave_beside_what_is_allocated(card, device, others, reserved, allocated, room):
    card.others, card.reserved, card.allocated = others, reserved, allocated
    assert device.room(12 * GIB) == room


def test_a_card_without_kernels_in_torch_says_what_to_do_on_first_use(card, device):
    card.error = RuntimeError("CUDA error: no kernel image is available for execution on the device\nmore")
    with pytest.raises(UnavailableError, match=r"cuda:0 cannot compute .*on the device\): install a torch build"):
        device.room(12 * GIB)


@pytest.mark.parametrize("others", [0, 3 * GIB])
@pytest.mark.parametrize("known", ["told", "by another number", "a stranger's", "no driver"])
def test_occupied_memory_is_never_less_than_our_own(card, monkeypatch, known, others):
    card.others = others
    drivers = {
        "told": Driver(card, os.getpid()),
        "by another number": Driver(card, 1),
        "a stranger's": Stranger(card, 1),
    }
    monkeypatch.setattr(cuda, "open_nvml", lambda: drivers.get(known))
    device = cuda.CudaDevice(0)
    device.room(GIB)
    card.context += 50 * MIB  # kernels are loaded when they are first used
    card.reserved, card.allocated = 2 * GIB, GIB
    unknown = others if known == "no driver" else 0
    expected = Memory(allocated=GIB, reserved=2 * GIB, occupied=2 * GIB + 350 * MIB + unknown)
    assert device.memory() == expected


def test_the_context_still_counts_after_a_neighbour_leaves(card, monkeypatch):
    card.others = 3 * GIB
    monkeypatch.setattr(cuda, "open_nvml", lambda: Driver(card, 1))
    device = cuda.CudaDevice(0)
    device.room(GIB)
    card.others = 0
    assert device.memory().occupied == card.context


def test_the_driver_is_not_asked_twice_within_a_moment(card, device, monkeypatch):
    device.memory()
    monkeypatch.setattr(cuda, "FRESH", 60.0)
    card.error = AssertionError("asked")
    card.reserved = GIB
    assert device.memory().occupied == GIB + card.context


def test_a_new_peak_is_the_highest_of_allocator_and_looks(card, device):
    device.start_peak()
    card.reserved, card.allocated = 3 * GIB, 2 * GIB
    card.peak_reserved, card.peak_allocated = 4 * GIB, 3 * GIB
    assert device.peak() == Memory(allocated=3 * GIB, reserved=4 * GIB, occupied=4 * GIB + card.context)
    card.context += GIB
    seen = device.memory().occupied
    card.reserved = card.allocated = 0
    card.peak_reserved = card.peak_allocated = 0
    assert device.peak().occupied == seen
    device.start_peak()
    assert device.peak().occupied < seen
    assert device.retries() == 3


def test_a_lost_card_raises_nothing_and_keeps_its_last_figures(card, device):
    card.reserved, card.allocated = 3 * GIB, 2 * GIB
    before = device.memory()
    card.error = LOST
    device.reclaim()
    device.trim()
    assert device.memory() == before
    assert device.peak() == before
    device.start_peak()
    device.wall(GIB)


def test_a_card_is_trimmed_alone_while_another_one_is_lost(card, device, monkeypatch):
    def stops_at_the_lost_one():
        raise LOST

    monkeypatch.setattr(torch.cuda, "empty_cache", stops_at_the_lost_one)
    for give_back in (device.trim, device.reclaim):
        card.reserved, card.allocated, card.calls = 3 * GIB, GIB, []
        give_back()
        assert card.calls[-1] == "ask on cuda:0"
        assert (device.memory().reserved, device.retries()) == (GIB, 3)


def test_a_card_that_does_not_answer_is_lost_and_one_that_is_full_is_not(card, device):
    card.error = torch.OutOfMemoryError("CUDA out of memory")
    assert (device.room(GIB), device.lost) == (0, False)
    card.error = LOST
    assert (device.room(GIB), device.lost) == (0, True)


def test_reclaiming_frees_workspaces_first_and_waits_for_the_driver_a_while(card, device, monkeypatch):
    card.reserved, card.allocated = 3 * GIB, 0
    device.memory()
    card.calls.clear()
    card.lag = 3
    device.reclaim()
    assert card.calls == ["synchronize", "clear_workspaces", "empty_cache"]
    assert card.late == 0
    assert device.memory() == Memory(allocated=0, reserved=0, occupied=card.context)
    monkeypatch.setattr(cuda, "PATIENCE", 0.05)  # of a driver that never tells
    card.reserved, card.lag = 3 * GIB, 1_000_000
    device.reclaim()
    assert 0 < card.late < card.lag


@pytest.fixture
def streams(monkeypatch):
    """Streams and current devices that are none."""
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, nullcontext)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: None)


def test_workspaces_stay_while_another_gpu_computes(card, device, streams):
    with cuda.CudaDevice(1).computing():
        device.reclaim()
    assert card.calls == ["synchronize", "empty_cache"]
    device.reclaim()
    assert "clear_workspaces" in card.calls


def test_no_gpu_begins_to_compute_while_workspaces_are_cleared(card, device, streams, monkeypatch):
    began, other = threading.Event(), cuda.CudaDevice(1)

    def compute():
        with other.computing():
            began.set()

    def clear():
        threading.Thread(target=compute, daemon=True).start()
        card.calls.append(f"computed meanwhile: {began.wait(0.2)}")

    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", clear, raising=False)
    device.reclaim()
    assert "computed meanwhile: False" in card.calls
    assert began.wait(20)


def test_a_context_the_driver_numbers_otherwise_invents_no_other_process(card, monkeypatch):
    for pid, others in ((os.getpid(), 2 * GIB), (1, None)):
        monkeypatch.setattr(cuda, "open_nvml", lambda pid=pid: Driver(card, pid))
        card.others = 2 * GIB
        device = cuda.CudaDevice(0)
        device.memory()
        assert device.readings().others == others


def test_copy_and_compute_streams_wait_for_each_other(device, monkeypatch):
    said, current = [], ["main"]

    class Stream:
        def __init__(self, name):
            self.name = "copies" if isinstance(name, torch.device) else name

        def wait_stream(self, other):
            said.append(f"{self.name} waits for {other.name}")

        def __enter__(self):
            current.append(self.name)

        def __exit__(self, *_):
            current.pop()

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: Stream("main"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(current[-1]))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "device", lambda device: Stream(str(device)))
    with device.computing():
        assert current[-2:] == ["cuda:0", "main"]
        device.hold_copies()
        with device.copying():
            assert current[-1] == "copies"
        device.join_copies()
    assert said == ["copies waits for main", "main waits for copies"]
    assert current == ["main"]


@pytest.fixture
def two_cards(card, monkeypatch, tmp_path):
    """torch sees two cards; both are `card`."""
    for name, told in {"is_available": True, "device_count": 2}.items():
        monkeypatch.setattr(torch.cuda, name, lambda told=told: told)
    monkeypatch.setattr(nvml, "open_nvml", lambda: Driver(card, os.getpid()))
    monkeypatch.setattr(checkup, "open_nvml", lambda: Driver(card, os.getpid()))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return card


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("auto", ["cuda:0", "cuda:1"]),
        ("cuda", ["cuda:0", "cuda:1"]),
        ("cuda:1", ["cuda:1"]),
        ("cuda:1, cuda:0,cuda:1", ["cuda:1", "cuda:0"]),
        ("cpu", ["cpu"]),
    ],
)
def test_each_named_card_is_chosen_once_and_no_context_is_made(two_cards, wanted, names):
    assert [device.name for device in choose(wanted)] == names
    assert not two_cards.opened


def test_a_card_is_described_by_its_driver_and_one_that_is_not_here_refused_with_those_that_are(two_cards, monkeypatch):
    monkeypatch.setattr(devices, "triton_version", lambda: "")
    assert describe_host(choose("cuda:1"))["gpu cuda:1"] == "Tesla T4, 15.0 GiB, driver 550.54.15, Triton not used"
    with pytest.raises(UnavailableError, match="no device cuda:2: available cuda:0, cuda:1"):
        choose("cuda:2")


def test_doctor_says_what_is_free_on_a_shared_card_and_who_holds_the_rest(two_cards):
    two_cards.others = 3 * GIB
    settings = load({"devices": "cuda:0"}, {}).settings
    (free,) = doctor._devices(settings)
    said = "11.7 GiB available to a run (ceiling 12.0 GiB); 3.0 GiB held by pid 4711 (python)"
    assert free == (True, "device cuda:0", f"Tesla T4, 15.0 GiB; {said}")
    with holding(choose("cuda:0"), "run-7"):
        (held,) = doctor._devices(settings)
    assert held[0] is False
    assert f"in use by run run-7 (pid {os.getpid()}, since " in held[2]


@pytest.fixture
def unusable(card, monkeypatch):
    """The driver knows two cards, and torch can use none."""
    for module in (nvml, doctor):
        monkeypatch.setattr(module, "open_nvml", lambda: Driver(card, os.getpid()))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)


def test_a_gpu_that_torch_cannot_use_is_told_in_run_plan_and_doctor(unusable, tmp_path, tiny_a):
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": ["one text"]}})
    settings = load({"roster": str(tiny_a), "out": str(tmp_path / "runs"), "export": "npy"}, {})
    run = Run(root, settings, Controls())
    assert run.go() == ExitCode.COMPLETED
    said = (
        f"computing on the CPU, though there is a GPU (torch {torch.__version__}, built for CUDA 13.0, sees none; "
        "driver 550.54.15 (CUDA up to 12.4) reports Tesla T4, Tesla T4): install a torch build that this driver runs, "
        "or pass --devices cpu"
    )
    assert [warned.message for warned in events_of(run.directory.path, ev.Warned)] == [said]
    assert forecast(root, settings).overlooked == [said]
    ((good, _, found),) = doctor._gpus(settings.settings)
    assert not good
    assert "Tesla T4" in found
    assert unused_gpus("cpu", choose("cpu")) == []  # one that was not asked for is not missed
    ((good, *_),) = doctor._gpus(load({"devices": "cpu"}, {}).settings)
    assert good


class Runtime:
    """libcudart: `refuses` is what it answers instead of success."""

    def __init__(self, refuses=0):
        self.refuses, self.calls = refuses, []

    def cudaHostRegister(self, pointer, size, flags):
        self.calls.append(("register", pointer, size, flags))
        return self.refuses

    def cudaHostUnregister(self, pointer):
        self.calls.append(("unregister", pointer))
        return 0

    def cudaGetErrorString(self, status):
        return {2: "out of memory"}[status]


@pytest.fixture
def runtime(monkeypatch):
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    return runtime


def test_a_pinned_tensor_registers_its_own_bytes_and_returns_them_once(runtime):
    tensor = torch.zeros(1000, dtype=torch.float16)
    pinning = cuda.pin(tensor, torch.device("cuda:0"))
    pinning.release()
    pinning.release()
    assert pinning.refused == ""
    assert runtime.calls == [("register", tensor.data_ptr(), 2000, 1), ("unregister", tensor.data_ptr())]


def test_a_pinned_host_master_returns_its_memory_when_it_goes(runtime):
    master = Master(torch.nn.Linear(8, 8))
    (flat,) = (each.data_ptr() for each in master.flats.values())
    master.pin(SimpleNamespace(pin=lambda tensor: cuda.pin(tensor, torch.device("cuda:0"))))
    del master
    gc.collect()
    assert [(call[0], call[1]) for call in runtime.calls] == [("register", flat), ("unregister", flat)]


def test_a_refused_registration_is_consumed_and_nothing_is_undone(runtime, monkeypatch):
    taken = []
    monkeypatch.setattr(torch, "ones", lambda *_, device: taken.append(device) or torch.zeros(1))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    runtime.refuses = 2
    pinning = cuda.pin(torch.zeros(8), torch.device("cuda:0"))
    pinning.release()
    assert pinning.refused == "out of memory"
    assert [call[0] for call in runtime.calls] == ["register"]
    assert taken == ["cuda"]


@pytest.mark.parametrize(
    ("tensor", "place"),
    [
        (torch.zeros(8), "cpu"),
        (torch.zeros(0), "cuda:0"),
        (torch.zeros(8, 2)[:, 0], "cuda:0"),
    ],
    ids=["for the host", "empty", "with gaps"],
)
def test_what_cannot_be_pinned_stays_as_it_is(runtime, tensor, place):
    pinning = cuda.pin(tensor, torch.device(place))
    pinning.release()
    assert (runtime.calls, pinning.refused) == ([], "")


def test_a_machine_without_a_driver_has_no_nvml_and_no_error():
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        open_nvml.cache_clear()
        assert open_nvml() is None
    else:
        pytest.skip("there is a driver here")


class Library:
    """pynvml with one GPU: a method that is named in `broken` fails as NVML does."""

    NVMLError = pynvml.NVMLError
    NVMLLibraryMismatchError = pynvml.NVMLLibraryMismatchError

    def __init__(self, *broken, processes=()):
        self._processes = processes
        for name in broken:
            setattr(self, name, self._fail)

    def _fail(self, *_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlSystemGetDriverVersion(self):
        return "550.54.15"

    def nvmlSystemGetCudaDriverVersion(self):
        return 12040

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):
        return "handle"

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid != UUID:
            self._fail()
        return "handle"

    def nvmlDeviceGetName(self, handle):
        return "Tesla T4"

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(total=16 * GIB, used=5 * GIB, free=11 * GIB)

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=98, memory=40)

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 71

    def nvmlDeviceGetPowerUsage(self, handle):
        return 69_500

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return 70_000

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return 0x1 | 0x4 | 0x20 | 0x40  # idle too, which slows nothing that computes

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self._processes]

    def nvmlSystemGetProcessName(self, pid):
        return "/usr/bin/python"


def test_every_figure_of_a_gpu_is_in_its_unit(monkeypatch):
    monkeypatch.setattr(nvml, "_user", lambda pid: "kim")
    library = Library(processes=[(os.getpid(), 2 * GIB), (4711, 3 * GIB)])
    assert Nvml(library).readings(UUID) == Readings(
        used=5 * GIB, total=16 * GIB, others=3 * GIB, utilisation=98, temperature=71, power=69.5,
        power_limit=70.0, throttled="power cap, heat", holders=(Tenant(4711, "python", 3 * GIB, "kim"),),
    )  # fmt: skip
    told = Nvml(library)
    assert (told.own(UUID), told.names(), told.driver(), told.cuda()) == (2 * GIB, ["Tesla T4"], "550.54.15", "12.4")


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        ("nvmlDeviceGetUtilizationRates", "utilisation"),
        ("nvmlDeviceGetTemperature", "temperature"),
        ("nvmlDeviceGetPowerUsage", "power"),
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit"),
        ("nvmlDeviceGetComputeRunningProcesses", "others"),
    ],
)
def test_a_figure_the_driver_does_not_give_is_missing_alone(broken, field):
    told = Nvml(Library(broken)).readings(UUID)
    lacking = {name for name in told.__struct_fields__ if getattr(told, name) is None}
    assert lacking == {field, "disk_free", "memory_free"}


def test_a_gpu_unknown_to_the_driver_has_no_figures():
    told = Nvml(Library())
    assert (told.readings("GPU-0"), told.processes("GPU-0"), told.own("GPU-0")) == (None, None, None)
    assert Nvml(Library("nvmlDeviceGetMemoryInfo")).readings(UUID) is None


def test_other_processes_are_named_with_what_they_hold(monkeypatch):
    monkeypatch.setattr(nvml, "_user", lambda pid: "")
    told = Nvml(Library(processes=[(os.getpid(), GIB), (4711, 3 * GIB + 100 * MIB), (12, None)]))
    assert told.others(UUID) == [Tenant(4711, "python", 3 * GIB + 100 * MIB), Tenant(12, "python", None)]
    assert [str(process) for process in told.others(UUID)] == [
        "3.1 GiB held by pid 4711 (python)",
        "memory held by pid 12 (python)",
    ]
    assert told.readings(UUID).others is None


def test_triton_is_there_where_it_is_installed_and_finds_the_c_compiler_that_it_calls(monkeypatch):
    monkeypatch.setattr(devices.metadata, "version", lambda name: "3.7.1" if name == "triton" else "")
    monkeypatch.delenv("CC", raising=False)
    for compilers, version in ((["gcc"], "3.7.1"), (["clang"], "3.7.1"), (["cc"], ""), ([], "")):
        monkeypatch.setattr(
            devices.shutil, "which", lambda name, compilers=compilers: name if name in compilers else None
        )
        devices.triton_version.cache_clear()
        assert devices.triton_version() == version
    devices.triton_version.cache_clear()
