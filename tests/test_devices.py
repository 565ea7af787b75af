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
def test_GIVEN_no_gpu_WHEN_the_best_or_the_cpu_is_wanted_THEN_it_is_the_cpu(wanted):
    assert [(device.name, device.kind) for device in choose(wanted)] == [("cpu", "cpu")]


@no_gpu
@pytest.mark.parametrize("wanted", ["cuda", "cuda:0", "cuda:0,cuda:1"])
def test_GIVEN_no_gpu_WHEN_one_is_wanted_THEN_the_refusal_says_what_was_found_and_what_to_use(wanted):
    with pytest.raises(UnavailableError) as refused:
        choose(wanted)
    assert f"torch {torch.__version__} is built " in str(refused.value)
    assert "--devices cpu" in str(refused.value)
    assert "sim:2xT4" in str(refused.value)


@pytest.mark.parametrize(
    "wanted", ["quantum", "", "cuda:", "cuda:x", "cuda:-1", "cuda:0;cuda:1", "cuda:0,cpu", "CUDA:0"]
)
def test_GIVEN_what_names_no_device_WHEN_wanted_THEN_the_refusal_says_what_to_say(wanted):
    with pytest.raises(UnavailableError, match=f"unknown device '{wanted}': use auto, cpu, cuda"):
        choose(wanted)


def test_GIVEN_a_card_that_no_simulation_knows_WHEN_wanted_THEN_it_is_an_error_of_usage():
    with pytest.raises(UsageError):
        choose("sim:2xABACUS")


def test_GIVEN_simulated_gpus_WHEN_wanted_THEN_they_are_called_as_real_ones_and_marked_as_none():
    devices = choose("sim:2xT4")
    assert [device.name for device in devices] == ["cuda:0", "cuda:1"]
    assert {device.kind for device in devices} == {"sim"}


def test_GIVEN_a_fault_for_a_simulated_gpu_WHEN_it_is_used_THEN_the_fault_strikes():
    (device,) = choose("sim:1xT4", ["oom:1"])
    with pytest.raises(torch.OutOfMemoryError), device.computing():
        torch.empty(1024)


@pytest.mark.parametrize("wanted", ["auto", "cpu", "cuda:0"])
def test_GIVEN_a_fault_WHEN_the_device_is_not_simulated_THEN_it_is_an_error_of_usage(wanted):
    with pytest.raises(UsageError, match="needs simulated devices"):
        choose(wanted, ["oom:1"])


def test_GIVEN_a_cpu_run_WHEN_its_device_is_chosen_THEN_neither_cuda_nor_a_simulation_is_loaded():
    code = (
        "import sys, torch; from interlock.engine.gpu.devices import choose, describe_host; "
        "choose('cpu'); describe_host(choose('cpu')); "
        "assert not torch.cuda.is_initialized(); print(*(name for name in sys.modules if 'engine.gpu' in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) & {f"interlock.engine.gpu.{name}" for name in ("cuda", "nvml", "sim")} == set()


@pytest.mark.parametrize("wanted", ["cpu", "sim:2xT4"])
def test_GIVEN_no_real_gpu_among_the_devices_WHEN_the_host_is_described_THEN_no_gpu_is_claimed(wanted):
    told = describe_host(choose(wanted))
    assert set(told) == {"processor", "cores", "memory_bytes", "capability"}
    assert all(told.values())
