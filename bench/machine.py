"""What every benchmark needs around its measurement: the machine in words, shuffled rounds, and a table.

No host names and no paths come out of here, so results can be kept.
"""

import argparse
import importlib.metadata
import os
import platform
import random
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

SINGLE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}
PEAKS, SECONDS = ("VmHWM", "RssAnon"), 0.01
"""The most that was resident, and what is anonymous of it now; how often that is looked at."""
VERSIONS = ("torch", "sentence-transformers", "transformers", "tokenizers")


class _Quick(argparse.Action):
    """Sets every option that makes a script short."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, *_: Any) -> None:
        for name, value in {**self.const, "quick": True}.items():
            setattr(namespace, name, value)


def quick(parser: argparse.ArgumentParser, **small: Any) -> None:
    """Add `--quick`: the script in seconds, with these options; options that come after it still count."""
    about = "the shortest form, in seconds: proves that the script works, and its figures mean nothing"
    parser.add_argument("--quick", nargs=0, action=_Quick, const=small, default=False, help=about)


def watched(
    command: Sequence[str], environment: Mapping[str, str], stdout: Any = subprocess.DEVNULL
) -> dict[str, float]:
    """What a process takes: CPU and wall seconds, and the peaks of all resident and of anonymous memory, in bytes.

    Raises SystemExit where it fails.
    """
    peaks, began = dict.fromkeys(PEAKS, 0), time.monotonic()
    child = subprocess.Popen(command, env=environment, stdout=stdout)
    while not (ended := os.wait4(child.pid, os.WNOHANG))[0]:
        told = Path(f"/proc/{child.pid}/status").read_text()
        for name, size in re.findall(rf"({'|'.join(PEAKS)}):\s+(\d+)", told):
            peaks[name] = max(peaks[name], int(size) << 10)
        time.sleep(SECONDS)
    child.returncode = os.waitstatus_to_exitcode(ended[1])
    if child.returncode:
        raise SystemExit(f"{command[1:4]} ended with {child.returncode}")
    return {"cpu": ended[2].ru_utime + ended[2].ru_stime, "wall": time.monotonic() - began, **peaks}


def describe() -> dict[str, Any]:
    """Processor, cores, capability, versions and the load now."""
    from interlock.engine.gpu.devices import describe_host

    versions = {name: importlib.metadata.version(name) for name in VERSIONS}
    return {**describe_host(), "python": platform.python_version(), **versions, "load_before": load()}


def load() -> list[float]:
    """Load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def interleave(variants: Mapping[str, Callable[[], Any]], rounds: int, seed: int = 7) -> dict[str, list[Any]]:
    """What each variant returned in every round; the order within a round is shuffled."""
    found: dict[str, list[Any]] = {name: [] for name in variants}
    order, generator = list(variants), random.Random(seed)
    for number in range(rounds):
        generator.shuffle(order)
        for name in order:
            found[name].append(variants[name]())
        print(f"round {number + 1} of {rounds}, load {load()[0]}", flush=True)
    return found


def spread(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Median, least and most."""
    most = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits) for name, value in most.items()}


def goal(value: float, wanted: float, *, at_most: bool = False) -> dict[str, Any]:
    """A measured value beside its goal."""
    met = value <= wanted if at_most else value >= wanted
    return {"value": round(value, 7), "goal": f"{'<=' if at_most else '>='} {wanted}", "met": met}


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table."""
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for row in rows:
        print("| " + " | ".join(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row) + " |")


def goals(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Print measured values beside their goals."""
    print()
    table(
        ["goal", "measured", "wanted", ""],
        [
            [name, f"{each['value']:.6g}", each["goal"], "met" if each["met"] else "MISSED"]
            for name, each in found.items()
        ],
    )
