"""Checks of each GPU what a run relies on: memory, copies, precision, kernels and streaming; what was found is data.

Small models of random weights are computed as a run would compute its own, in every way that it may come to, and held
against the plain path on the host. Nothing is fetched, and nothing is written but to a temporary place.
"""

import dataclasses
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from msgspec import Struct

from interlock.engine.compute.checks import specimen
from interlock.engine.compute.checks.canary import (
    least_cosine,
    lowest_cosine,
    plain,
    plainer,
    remedy,
)
from interlock.engine.compute.checks.findings import Remembered, attention_of
from interlock.engine.compute.encoder import Ids, encoder_for, one_by_one
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.errors import InterlockError, UnavailableError, reason
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.device import RESERVE, Device
from interlock.engine.gpu.device_errors import Trouble, classify
from interlock.engine.gpu.devices import choose, why_no_gpu
from interlock.engine.gpu.locks import holder
from interlock.engine.gpu.nvml import open_nvml
from interlock.engine.models.card import ModelCard
from interlock.engine.models.masters import hydrated_for
from interlock.engine.models.networks.attention import ROTARY
from interlock.engine.models.networks.checkpoint import PACKED_TYPES
from interlock.engine.models.networks.kernels import OLDEST, first_kernel, lay, precision_for
from interlock.engine.models.weights import Replica, load
from interlock.engine.record import atomic
from interlock.engine.record.words import human_bytes

Outcome = Literal["passed", "limited", "untried", "failed"]
LENGTHS = (300, 129, 64, 64, 33, 7, 1)
"""Tokens of the rows: of one length and of different ones, aligned and not."""
COPIED = 64 << 20
"""Bytes of the copies that are timed."""
NEEDED = 512 << 20
"""Bytes that the checks may take of a GPU."""
VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_MODULE_LOADING", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_RAISE = "raise --ceiling"
_LIBRARIES = ("interlock", "torch", "transformers", "sentence-transformers")
_REPORT = "please report it, with the output of interlock doctor --gpu --json"


class GpuCheck(Struct, frozen=True, kw_only=True):
    """One thing that was looked at, of one device.

    `limited` is what works in a plainer way, `untried` what could not be looked at here; `failed` asks for `advice`.
    """

    device: str
    name: str
    outcome: Outcome
    found: str
    advice: str = ""
    cosine: float | None = None
    """The lowest of the rows', where vectors were compared, and the `least` that passes."""
    least: float | None = None
    seconds: float | None = None


class GpuReport(Struct, frozen=True, kw_only=True):
    """All that was found, as a bug report wants it."""

    simulated: bool
    software: dict[str, str]
    checks: list[GpuCheck]
    canaries: list[Remembered]
    seconds: float


def gpus(wanted: str, faults: Sequence[str]) -> list[Device]:
    """Make the GPUs that `--devices` names. Raises UnavailableError saying why there is none."""
    found = choose(wanted, faults)
    if found[0].kind == "cpu":
        why = "--devices is cpu" if wanted == "cpu" else why_no_gpu()
        raise UnavailableError(f"no GPU to check ({why}): to see the checks without one, use --devices sim:T4")
    return found


def software() -> dict[str, str]:
    """Say what computes on the GPUs of this machine: driver, libraries and switches, for a bug report."""
    driver, cuda = open_nvml(), torch.backends.cuda
    switches = {
        "flash": cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
        "memory-efficient": cuda.mem_efficient_sdp_enabled(),  # type: ignore[no-untyped-call]
        "cudnn": cuda.cudnn_sdp_enabled(),  # type: ignore[no-untyped-call]
        "math": cuda.math_sdp_enabled(),  # type: ignore[no-untyped-call]
        "tf32": cuda.matmul.allow_tf32,
        "sums in float16": cuda.matmul.allow_fp16_reduced_precision_reduction,
    }
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return {
        "python": f"{platform.python_version()} on {platform.platform(terse=True)}",
        "driver": f"{driver.driver()}, for CUDA up to {driver.cuda()}" if driver else "none",
        "CUDA": f"{torch.version.cuda or 'none'} of torch, cuDNN {cudnn or 'none'}",
        **{name: metadata.version(name) for name in _LIBRARIES},
        "attention": ", ".join(f"{name} {'on' if on else 'off'}" for name, on in switches.items()),
        **{name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def memory(device: Device, ceiling: int, margin: int = RESERVE) -> GpuCheck:
    """Look whether a run would get a device now, with room for something."""
    run, room = holder(device), min(ceiling, device.room(ceiling))
    facts = [
        f"{device.label}, {human_bytes(device.total)}",
        f"{human_bytes(room)} available to a run (ceiling {human_bytes(ceiling)})",
        *_others(device),
        *([f"in use by {run}: wait for it, or choose other --devices"] if run else []),
    ]
    good = run is None and room > margin
    free = _RAISE if device.room(device.total) > NEEDED + margin else "end what holds its memory"
    advice = "" if good or run else f"{free}, or choose other --devices"
    return GpuCheck(
        device=device.name, name="memory", outcome="passed" if good else "failed", found="; ".join(facts), advice=advice
    )


def ways(card: ModelCard, device: Device) -> Iterator[tuple[ModelCard, ModelCard | None]]:
    """Give every way that a run may come to compute a model in on a device, each with what follows where it fails:
    its rows laid end to end, and padded where its network is one of transformers."""
    padded = [] if card.ours else [dataclasses.replace(card, packed=False)]
    for original in (card, *padded):
        way: ModelCard | None = original
        while way:
            then = plainer(way, original)
            yield way, then
            way = then


def examine(devices: Sequence[Device], ceiling: int, margin: int = RESERVE) -> Iterator[GpuCheck]:
    """Check devices one after the other; each check is given as soon as it is done."""
    with atomic.scratch("interlock-checkup-") as place:
        for device in devices:
            first = memory(device, ceiling, margin)
            yield first
            if first.outcome == "passed":
                yield from _Checkup(device, place / device.name.replace(":", "-"), ceiling).checks()


class _Checkup:
    """The checks of one device that compute on it."""

    def __init__(self, device: Device, place: Path, ceiling: int) -> None:
        self._device, self._place = device, place
        self._ceiling = ceiling
        self._lost = False

    def checks(self) -> Iterator[GpuCheck]:
        device = self._device
        if device.kind == "cuda":
            capability = ".".join(map(str, device.capability or ()))
            yield self._passed("capability", f"{capability}, {device.processors} multiprocessors")
        yield from (self._passed("precision", found) for found in _precisions(device))
        if device.room(self._ceiling) < NEEDED:
            capped = device.room(device.total) >= NEEDED
            advice = f"{_RAISE if capped else 'end what holds its memory'}, then check again"
            yield self._check("kernels", "untried", f"needs {human_bytes(NEEDED)}", advice=advice)
            return
        yield self._pinning()
        for kind in specimen.SPECIMENS:
            yield from self._model(kind)
            if self._lost:
                return

    def _model(self, kind: str) -> Iterator[GpuCheck]:
        """Every way to compute a model of a kind, then streaming it."""
        device, directory = self._device, self._place / kind
        directory.mkdir(parents=True)
        card = specimen.make(directory, kind, device.kind, device.capability or OLDEST)
        rows = _rows()
        wanted = _on_host(plain(card), rows)
        for way, then in ways(card, device):
            yield self._compared(
                f"{card.key} {way.dtype}",
                attention_of(way) if way.packed else f"padded, {way.attention}",
                partial(self._encoded, way, rows),
                lambda: wanted,
                least_cosine(way.dtype),
                remedy(way, then, device),
            )
            if self._lost:
                return
        yield self._compared(
            f"{card.key} streamed",
            f"{card.dtype}, as resident",
            partial(self._encoded, card, rows, streamed=True),
            lambda: self._encoded(card, rows)[0],
            least_cosine("float32"),
            remedy(card, plainer(card, card), device),
        )
        if not self._lost:
            device.reclaim()

    def _compared(
        self,
        name: str,
        how: str,
        tries: Callable[[], Sequence[Outputs]],
        wanted: Callable[[], Outputs],
        least: float,
        otherwise: str,
    ) -> GpuCheck:
        """Hold vectors against those `wanted`; what a run does `otherwise` is told where they differ."""
        began = time.monotonic()
        try:
            reference = wanted()
            cosine = min(lowest_cosine(each, reference) or 0.0 for each in tries())
        except InterlockError:
            raise
        except Exception as error:  # a kernel that this build of torch or this card does not have
            return self._trouble(name, how, error, otherwise)
        good = cosine >= least
        return GpuCheck(
            device=self._device.name,
            name=name,
            outcome="passed" if good else "failed",
            found=f"{how}: cosine {cosine:.7f}" + ("" if good else f", below {least}"),
            advice="" if good else f"a run goes on, {otherwise}; {_REPORT}",
            cosine=round(cosine, 7),
            least=least,
            seconds=round(time.monotonic() - began, 3),
        )

    def _encoded(self, card: ModelCard, rows: Sequence[Ids], *, streamed: bool = False) -> list[Outputs]:
        """Vectors as a run would compute them; streamed ones twice, because copies may be early or late."""
        device, master = self._device, hydrated_for(self._device)(card)
        with device.trying():
            replica = Replica(master, device, streamed=streamed)
            encoder = encoder_for(card, replica.network, device)
            with device.computing():
                return [encoder.encode(rows) for _ in range(1 + streamed)]

    def _pinning(self) -> GpuCheck:
        """Time copies to the device from plain memory, and from memory that is page-locked where it is."""
        device = self._device
        if device.kind != "cuda":
            return self._check("pinning", "untried", "copies to a simulated GPU stay on the host")
        host = torch.zeros(COPIED, dtype=torch.uint8)
        there = torch.empty_like(host, device=device.torch)
        plainly = _copy_seconds(host, there)
        pinning = device.pin(host)
        quickly = _copy_seconds(host, there)
        pinning.release()
        figures = f"{human_bytes(COPIED)} in {1000 * plainly:.1f} ms pageable"
        if why := pinning.refused or ("" if lay(_rows(), device.torch).pinned is not None else "no page-locked memory"):
            advice = "vectors are the same, copies take longer: free host memory, or raise the container's limit of it"
            return self._check("pinning", "limited", f"refused ({why}); {figures}", advice=advice)
        return self._passed("pinning", f"{figures}, {1000 * quickly:.1f} ms page-locked")

    def _trouble(self, name: str, how: str, error: Exception, otherwise: str) -> GpuCheck:
        trouble, why = classify(error), reason(error).partition(". ")[0]
        self._lost = trouble is Trouble.LOST
        if trouble is Trouble.MEMORY:
            self._device.reclaim()
            return self._check(name, "untried", f"{how}: {why}", advice="end what holds its memory, then check again")
        if self._lost:
            advice = "this process has lost the GPU: check again, then look at dmesg for Xid errors"
        else:
            advice = f"a run goes on, {otherwise}; {_REPORT}"
        return self._check(name, "failed", f"{how}: {why}", advice=advice)

    def _passed(self, name: str, found: str) -> GpuCheck:
        return self._check(name, "passed", found)

    def _check(self, name: str, outcome: Outcome, found: str, *, advice: str = "") -> GpuCheck:
        return GpuCheck(device=self._device.name, name=name, outcome=outcome, found=found, advice=advice)


def _precisions(device: Device) -> list[str]:
    """Which architectures get which precision and kernel on a device: heads are 64 wide, as most have them."""
    found: dict[str, list[str]] = {}
    for kind in sorted(PACKED_TYPES | ROTARY):
        config = {"model_type": kind, "hidden_size": 64, "num_attention_heads": 1}
        capability = device.capability or OLDEST
        dtype = precision_for(config, capability) if device.kind == "cuda" else "float32"
        kernel = first_kernel(config, dtype, device.kind, capability)
        found.setdefault(f"{dtype}, {kernel}", []).append(kind)
    return [f"{how}: {', '.join(kinds)}" for how, kinds in found.items()]


def _others(device: Device) -> list[str]:
    """What other processes have there, as far as the driver tells."""
    driver = open_nvml() if device.kind == "cuda" else None
    if driver and device.key:
        return [str(process) for process in driver.others(device.key) or ()]
    readings = device.readings()
    return [f"{human_bytes(readings.others)} used by other processes"] if readings and readings.others else []


def _rows() -> list[Ids]:
    """Rows of token ids, the same each time; none is padding's."""
    draw = np.random.default_rng(7)
    return [draw.integers(1, specimen.WORDS, length) for length in LENGTHS]


def _on_host(card: ModelCard, rows: Sequence[Ids]) -> Outputs:
    """Vectors of each row alone, on the host."""
    return one_by_one(encoder_for(card, load(card), CpuDevice()), rows)


def _copy_seconds(host: torch.Tensor, there: torch.Tensor) -> float:
    """Wall seconds of a copy to a GPU: the shortest of three, after one that is not counted."""
    taken = []
    for _ in range(4):
        torch.cuda.synchronize(there.device)
        began = time.perf_counter()
        there.copy_(host, non_blocking=True)
        torch.cuda.synchronize(there.device)
        taken.append(time.perf_counter() - began)
    return min(taken[1:])
