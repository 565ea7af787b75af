"""What is promised of a GPU, measured on one in under nine minutes without a network; `--rehearse` proves the script.

Sections come one after the other, each with a budget of time and free of the others' errors; every goal stands in the
JSON with its limit, its figure and whether it was met (null: not measured). A rehearsal runs the same code on a card
that is not there, with small models: it proves logic, and its JSON holds no figure of time or rate.
"""

import time

START = time.monotonic()

import argparse
import faulthandler
import gc
import importlib.util
import os
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_WAIT_POLICY": "PASSIVE",
}
warnings.filterwarnings("ignore")

NEEDED = {"torch": "torch", "transformers": "transformers", "sentence_transformers": "sentence-transformers",
          "tokenizers": "tokenizers", "safetensors": "safetensors", "huggingface_hub": "huggingface_hub",
          "msgspec": "msgspec", "numpy": "numpy", "psutil": "psutil", "pyarrow": "pyarrow", "pynvml": "nvidia-ml-py",
          "tenacity": "tenacity"}  # fmt: skip
"""What has to be imported, and the package that has it."""
if missing := [package for name, package in NEEDED.items() if importlib.util.find_spec(name) is None]:
    print(*(f"gpu_acceptance: {each} is missing: pip install {each}" for each in missing), sep="\n", file=sys.stderr)
    sys.exit(5)

import machine
import torch
from acceptance.attach import attach
from acceptance.goals import Report, Timed
from acceptance.ladder import ladder
from acceptance.memory_law import law
from acceptance.models import CONFIGS
from acceptance.plans import plans
from acceptance.probes import probes
from acceptance.residue import residue
from acceptance.streaming import streaming
from acceptance.throughput import throughput
from acceptance.wall import wall
from acceptance.whole import whole
from acceptance.workbench import CEILING, REAL, SMALL, Bench

from interlock.engine.errors import ExitCode, UnavailableError
from interlock.engine.gpu.cuda import CudaDevice
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.devices import describe_host, why_no_gpu
from interlock.engine.gpu.sim import simulated

WHOLE, LAST = 510.0, 530.0
"""Seconds after which no section has time left, and after which what there is is written and the process ends."""
RESULT = Path(__file__).parent / "results" / "gpu-acceptance.json"
Section = Callable[[Bench], Iterator[tuple[str, Any]]]


def models(bench: Bench) -> Iterator[tuple[str, Any]]:
    """Make and read all models, once for all sections."""
    for name in CONFIGS:
        with bench.part(name):
            yield name, {"bytes": bench.master(bench.card(name)).bytes}


SECTIONS: Mapping[str, tuple[float, Section]] = {
    "probes": (10, probes),
    "models": (60, models),
    "law": (90, law),
    "plans": (50, plans),
    "throughput": (95, throughput),
    "whole": (60, whole),
    "wall": (8, wall),
    "ladder": (50, ladder),
    "streaming": (12, streaming),
    "residue": (30, residue),
    "attach": (45, attach),
}
"""Seconds that a section may take, and what it does; what one leaves over the next ones have too. What matters
most comes first."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    text = "the JSON to write (default bench/results/gpu-acceptance.json)"
    parser.add_argument("--out", type=Path, default=RESULT, metavar="FILE", help=text)
    parser.add_argument("--rehearse", action="store_true", help="on a simulated T4, small models; no figure of time")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), metavar="SECTION",
                        help=f"some of {', '.join(SECTIONS)}; probes always")  # fmt: skip
    options = parser.parse_args()
    if refusal := _unwritable(options.out):
        parser.error(f"--out {options.out}: {refusal}")
    try:
        device = _device(rehearse=options.rehearse)
    except UnavailableError as error:
        print(f"gpu_acceptance: {error}", file=sys.stderr)
        return error.exit_code
    report = Report(_about(device), device.kind == "cuda", options.out)
    if report.timed:
        _end_at_last(report)
    with tempfile.TemporaryDirectory(prefix="interlock-acceptance-") as made:
        os.environ["INTERLOCK_CACHE"] = str(Path(made) / "cache")
        measure(Bench(device, Path(made), SMALL if options.rehearse else REAL), report, ["probes", *options.only])
    report.show()
    print(f"written to {options.out}")
    return ExitCode.FAILED if report.failed else ExitCode.COMPLETED


def measure(bench: Bench, report: Report, wanted: Sequence[str]) -> None:
    """The wanted sections in order, under the ceiling; one that was late takes at most half of the next one's time."""
    allowed = START
    for name, (budget, section) in SECTIONS.items():
        if name not in wanted:
            continue
        allowed += budget
        began = time.monotonic()
        bench.until = min(max(allowed, began + budget / 2), START + WHOLE)
        bench.device.wall(CEILING)
        _freeze()
        with bench.part(name):
            for title, value in section(bench):
                report.put(name, title, value)
        if bench.errors:
            report.put(name, "errors", bench.errors)
            bench.errors = []
        bench.device.reclaim()
        took = time.monotonic() - began
        report.put(name, "seconds", Timed(took))
        print(f"{name}: {f'{took:.0f} s of {budget:.0f}' if report.timed else 'rehearsed'}", flush=True)


def _unwritable(out: Path) -> str:
    """Say why the result could not be written there; empty where it can be."""
    if out.is_dir():
        return f"is a directory: name a file, like {out / RESULT.name}"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out.parent).close()
    except OSError as error:
        return f"cannot be written ({error.strerror}): name another file"
    return ""


def _device(*, rehearse: bool) -> Device:
    """Raises UnavailableError without a GPU to measure on."""
    if rehearse:
        return simulated("sim:1xT4")[0]
    if not torch.cuda.is_available():
        raise UnavailableError(f"no GPU to measure on: {why_no_gpu()}; --rehearse proves the script without one")
    return CudaDevice(0)


def _freeze() -> None:
    """Spare the collector, which every release calls, all that was there before the section: the libraries' objects are
    a million, and going through them would take up much of its time."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _about(device: Device) -> dict[str, Any]:
    about = {name: value for name, value in machine.describe().items() if name != "load_before"}
    return {
        "device_kind": device.kind,
        "device": device.label,
        "ceiling_bytes": CEILING,
        "machine": {**about, **describe_host([device])},
        "torch": {"version": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()},
        "switches": {
            name: getattr(torch.backends.cuda, f"{name}_sdp_enabled")()
            for name in ("flash", "mem_efficient", "math", "cudnn")
        },
        "gpus": torch.cuda.device_count() if torch.cuda.is_available() else 0,
    }


def _end_at_last(report: Report) -> None:
    """Whatever hangs: what there is is written, and the process is gone before the nine minutes are."""

    def end() -> None:
        try:
            report.write(cut_off=True)
            print(f"cut off after {LAST:.0f} s, written to {report.file}", flush=True)
        finally:
            os._exit(ExitCode.FAILED)

    left = START + LAST - time.monotonic()
    timer = threading.Timer(left, end)
    timer.daemon = True
    timer.start()
    faulthandler.dump_traceback_later(left + 5, exit=True)  # where a hanging call lets no other thread run


if __name__ == "__main__":
    sys.exit(main())
