"""The devices of this machine by name, and what the summary says of the machine.

Only what is named is looked for: a run on the CPU asks no driver, and simulated devices are made where they are wanted.
"""

import itertools
import os
import platform
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import psutil
import torch

from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.device import Device
from interlock.engine.record.words import human_bytes

_INSTRUCTIONS = re.compile(r"avx2|avx512f|avx512_(vnni|bf16|fp16)|avx_\w+|amx_\w+|asimddp|sve2?|sme2?|bf16|i8mm")
_SWITCHES = (
    *("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"),
    *("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS"),
)
"""What oneDNN and MKL take from the environment; what torch takes is in its capability."""
_INSTEAD = "use --devices cpu, or rehearse with --devices sim:2xT4"


def choose(wanted: str, faults: Sequence[str] = ()) -> list[Device]:
    """Make the devices that `--devices` names: `auto`, `cpu`, `cuda`, `cuda:0,cuda:1` or `sim:2xT4`.

    `auto` takes every GPU, else the CPU. `faults` go wrong on simulated devices only. Raises UnavailableError
    for what is not here, UsageError for faults of real devices and simulated ones that it does not know.
    """
    if wanted.startswith("sim:"):
        from interlock.engine.gpu.faults import parse
        from interlock.engine.gpu.sim import simulated

        return list(simulated(wanted, parse(",".join(faults))))
    if faults:
        raise UsageError("--faults needs simulated devices: use --devices sim:2xT4, or drop --faults")
    if wanted == "auto":
        return _gpus() if torch.cuda.is_available() else [CpuDevice()]
    if wanted == "cpu":
        return [CpuDevice()]
    if wanted == "cuda":
        return _gpus()
    names = [name.strip() for name in wanted.split(",")]
    if not all(re.fullmatch(r"cuda:[0-9]{1,3}", name) for name in names):
        raise UnavailableError(f"unknown device {wanted!r}: use auto, cpu, cuda, cuda:0,cuda:1 or sim:2xT4")
    return _gpus(list(dict.fromkeys(int(name.removeprefix("cuda:")) for name in names)))


def describe_host(devices: Sequence[Device] = ()) -> dict[str, str]:
    """Describe the machine for the summary and of the GPUs among `devices`; no names of hosts or people."""
    return {
        **_arithmetic_of_host(),
        "cores": str(os.cpu_count()),
        "memory_bytes": str(psutil.virtual_memory().total),
        **{name: made for device in devices if device.kind == "cuda" for name, made in arithmetic_of(device).items()},
    }


def arithmetic_of(device: Device) -> dict[str, str]:
    """Say what decides, beside versions and sources, which numbers a device gives: the make and driver of a GPU; else
    the processor, what of its instructions kernels are chosen by, and what the environment leaves them of these."""
    return {f"gpu {device.name}": _make_of(device)} if device.kind == "cuda" else _arithmetic_of_host()


def why_no_gpu() -> str:
    """Say what is missing between torch and a GPU, where torch sees none."""
    from interlock.engine.gpu.nvml import open_nvml

    driver = open_nvml()
    known = ", ".join(driver.names()) if driver else ""
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        return f"torch {torch.__version__} is built without CUDA" + (f", though {known} is present" if known else "")
    if driver is None:
        return f"torch {torch.__version__} is built for CUDA, but no NVIDIA driver responds"
    newest = driver.cuda()
    built = f", built for CUDA {torch.version.cuda}," if torch.version.cuda else ""
    runs = f" (CUDA up to {newest})" if newest else ""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    masked = f", CUDA_VISIBLE_DEVICES is {hidden!r}" if hidden is not None else ""
    return (
        f"torch {torch.__version__}{built} sees none; driver {driver.driver()}{runs} reports {known or 'none'}{masked}"
    )


def unused_gpus(wanted: str, chosen: Sequence[Device]) -> list[str]:
    """Say why `auto` has chosen the CPU, where the driver knows GPUs: nobody would expect that."""
    from interlock.engine.gpu.nvml import open_nvml

    driver = open_nvml() if wanted == "auto" and chosen[0].kind == "cpu" else None
    if not driver or not driver.names():
        return []
    advice = "install a torch build that this driver runs, or pass --devices cpu"
    return [f"computing on the CPU, though there is a GPU ({why_no_gpu()}): {advice}"]


def _gpus(numbers: Sequence[int] | None = None) -> list[Device]:
    """The GPUs with these numbers; without any, all of them."""
    from interlock.engine.gpu.cuda import CudaDevice

    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for number in numbers or ():
        if here and number >= here:
            listed = ", ".join(f"cuda:{present}" for present in range(here))
            raise UnavailableError(f"no device cuda:{number}: available {listed}")
    if not here:
        raise UnavailableError(f"no usable GPU ({why_no_gpu()}): {_INSTEAD}")
    return [CudaDevice(number) for number in (range(here) if numbers is None else numbers)]


@cache
def triton_version() -> str:
    """Return the version of Triton, which torch's builds for CUDA bring; empty where it is not here, or lacks the C
    compiler that it calls at a kernel's first launch."""
    with suppress(metadata.PackageNotFoundError):
        if os.environ.get("CC") or shutil.which("clang") or shutil.which("gcc"):
            return metadata.version("triton")
    return ""


def _make_of(device: Device) -> str:
    from interlock.engine.gpu.nvml import open_nvml  # a run on the CPU never loads it

    driver = nvml.driver() if (nvml := open_nvml()) else None
    made = f"{device.label}, {human_bytes(device.total)}" + (f", driver {driver}" if driver else "")
    return f"{made}, Triton {triton_version() or 'not used'}"


def _arithmetic_of_host() -> dict[str, str]:
    processor, instructions = _processor()
    switched = [f"{name}={os.environ[name]}" for name in _SWITCHES if os.environ.get(name)]
    return {
        "processor": processor,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "instructions": " ".join([*instructions, *switched]),
    }


@cache
def _processor() -> tuple[str, list[str]]:
    """Its name, which in a virtual machine may be that of a whole family, and the instructions that tell it apart."""
    about = dict[str, str]()
    with suppress(OSError), Path("/proc/cpuinfo").open() as handle:
        for line in itertools.takewhile(str.strip, handle):  # the first core
            name, _, value = line.partition(":")
            about[name.strip()] = value.strip()
    flags = about.get("flags", about.get("Features", "")).split()  # Features: so an ARM has it
    known = sorted(each for each in flags if _INSTRUCTIONS.fullmatch(each))
    return about.get("model name", "unknown"), known or [platform.machine()]
