"""Looks at this machine as a run would: each check is good or not, with what was found and what to do."""

import importlib.metadata
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from interlock.engine.compute.checks import checkup, findings
from interlock.engine.compute.checks.checkup import GpuCheck, GpuReport
from interlock.engine.errors import InterlockError
from interlock.engine.flows.opening import NEEDED_LATE, unloadable
from interlock.engine.gpu.devices import choose, describe_host, why_no_gpu
from interlock.engine.gpu.nvml import open_nvml
from interlock.engine.models import assets
from interlock.engine.models.registry import extended, label, vouched
from interlock.engine.models.sources import hub_cache, model_cache
from interlock.engine.record.words import human_bytes
from interlock.engine.settings import Configuration, RunSettings

Check = tuple[bool, str, str]
PACKAGES = ("torch", "tokenizers", "transformers", "sentence-transformers", *NEEDED_LATE)


def examine(configuration: Configuration) -> list[Check]:
    """Do every check: whether it is good, its name, what was found."""
    settings = configuration.settings
    untried = "not tried (missing models would be downloaded)"
    return [
        (sys.version_info >= (3, 11), "python", sys.version.split()[0]),
        *_packages(),
        *_host(),
        *_gpus(settings),
        *_devices(settings),
        _writable(settings.out),
        (True, "model cache", f"{hub_cache()} (Hugging Face), {model_cache()} (from packages)"),
        (True, "network", "offline (set in the environment)" if assets.is_offline() else untried),
        *_models(configuration),
    ]


def examine_gpus(settings: RunSettings, tell: Callable[[GpuCheck], object]) -> GpuReport:
    """Do every check of the GPUs, and tell each as soon as it is done.

    Raises UnavailableError where there is no GPU, saying why.
    """
    began = time.monotonic()
    devices = checkup.gpus(settings.devices, settings.faults)
    software, checks = checkup.software(), []
    for check in checkup.examine(devices, settings.ceiling, settings.margin):
        tell(check)
        checks.append(check)
    return GpuReport(
        simulated=devices[0].kind == "sim",
        software=software,
        checks=checks,
        canaries=findings.remembered(),
        seconds=round(time.monotonic() - began, 1),
    )


def _host() -> Iterator[Check]:
    for name, found in describe_host().items():
        yield True, *(("memory", human_bytes(int(found))) if name == "memory_bytes" else (name, found))


def _packages() -> Iterator[Check]:
    for name in PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield False, name, f"not installed: pip install {name}"
        else:
            why = unloadable(name) if name in NEEDED_LATE else ""
            yield not why, name, why or version
    try:
        yield True, "ray", importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        yield True, "ray", "not installed (needed for --cluster alone: pip install 'interlock[cluster]')"


def _gpus(settings: RunSettings) -> Iterator[Check]:
    """What the driver says of GPUs; a machine without one is no fault, and one that torch cannot use is."""
    import torch

    driver = open_nvml()
    if driver and torch.cuda.is_available():
        yield True, "gpu", f"{', '.join(driver.names())}; driver {driver.driver()}"
    else:
        usable = settings.devices == "cpu" or not (driver and driver.names())
        yield usable, "gpu", f"none: {why_no_gpu()}"


def _devices(settings: RunSettings) -> Iterator[Check]:
    try:
        for device in choose(settings.devices, settings.faults):
            check = checkup.memory(device, settings.ceiling_of(device.kind), settings.margin)
            yield check.outcome == "passed", f"device {device.name}", check.found  # good if a run would get it now
    except InterlockError as error:
        yield False, f"device {settings.devices}", str(error)


def _writable(out: Path) -> Check:
    place = next(path for path in (out.absolute(), *out.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            return True, "runs", f"{out}: {human_bytes(shutil.disk_usage(place).free)} free"
    except OSError as error:
        return False, "runs", f"cannot write to {place} ({error.strerror}): choose another --out"


def _models(configuration: Configuration) -> Iterator[Check]:
    settings = configuration.settings
    registry = extended(configuration.models)
    for spec in settings.members(registry):
        here = assets.cached(vouched(spec, settings.allow_pickle))
        missing = "not on this machine; to fetch it: " + " | ".join(assets.how_to_fetch(spec))
        yield bool(here), f"model {spec.key}", f"{label(here[1])}: {here[0]}" if here else missing
