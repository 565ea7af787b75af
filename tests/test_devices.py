"""What `--devices` names here, where there is no GPU: the CPU, simulated GPUs, and clear refusals."""

import subprocess
import sys

import pytest
import torch

from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.gpu.devices import choose, describe_host
from tests.builders import ROOT, environment

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")


@no_gpu
@pytest.mark.parametrize("wanted", ["auto", "cpu"])
def test_auto_and_cpu_are_the_cpu_without_a_gpu(wanted):
    assert [(device.name, device.kind) for device in choose(wanted)] == [("cpu", "cpu")]


@no_gpu
@pytest.mark.parametrize("wanted", ["cuda", "cuda:0", "cuda:0,cuda:1"])
def test_asking_for_a_gpu_without_one_says_what_was_found_and_what_to_use(wanted):
    with pytest.raises(UnavailableError) as refused:
        choose(wanted)
    assert f"torch {torch.__version__} is built " in str(refused.value)
    assert "--devices cpu" in str(refused.value)
    assert "sim:2xT4" in str(refused.value)


@pytest.mark.parametrize(
    "wanted", ["quantum", "", "cuda:", "cuda:x", "cuda:-1", "cuda:0;cuda:1", "cuda:0,cpu", "CUDA:0"]
)
def test_a_name_of_no_device_is_refused_with_the_names_there_are(wanted):
    with pytest.raises(UnavailableError, match=f"unknown device '{wanted}': use auto, cpu, cuda"):
        choose(wanted)


def test_an_unknown_simulated_card_is_a_usage_error():
    with pytest.raises(UsageError):
        choose("sim:2xABACUS")


def test_simulated_gpus_have_real_names_and_are_marked_as_simulated():
    devices = choose("sim:2xT4")
    assert [device.name for device in devices] == ["cuda:0", "cuda:1"]
    assert {device.kind for device in devices} == {"sim"}


def test_a_fault_strikes_when_its_simulated_gpu_is_used():
    (device,) = choose("sim:1xT4", ["oom:1"])
    with pytest.raises(torch.OutOfMemoryError), device.computing():
        torch.empty(1024)


@pytest.mark.parametrize("wanted", ["auto", "cpu", "cuda:0"])
def test_a_fault_on_a_real_device_is_a_usage_error(wanted):
    with pytest.raises(UsageError, match="needs simulated devices"):
        choose(wanted, ["oom:1"])


def test_choosing_the_cpu_loads_neither_cuda_nor_a_simulation():
    code = (
        "import sys, torch; from interlock.engine.gpu.devices import choose, describe_host; "
        "choose('cpu'); describe_host(choose('cpu')); "
        "assert not torch.cuda.is_initialized(); print(*(name for name in sys.modules if 'engine.gpu' in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) & {f"interlock.engine.gpu.{name}" for name in ("cuda", "nvml", "sim")} == set()


@pytest.mark.parametrize("wanted", ["cpu", "sim:2xT4"])
def test_the_host_claims_no_gpu_where_no_real_one_is_used(wanted):
    told = describe_host(choose(wanted))
    assert set(told) == {"processor", "capability", "instructions", "cores", "memory_bytes"}
    assert all(told.values())
