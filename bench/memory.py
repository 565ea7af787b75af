"""Resident memory of a real `interlock run` beyond torch and weights, sampled every 50 ms, by phase and corpus size.

What is taken off is a process that has imported torch and attached the same model, and done nothing else. The
run delivers files first and the store last, so one run shows both deliveries.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import corpora
import evidence
import machine

from interlock.engine.record import journal
from interlock.engine.record.events import (
    ArtefactWritten,
    EnsemblePassCompleted,
    Entry,
    LeaseGranted,
    RunClosed,
    StoreVerified,
)

SOURCES = evidence.RUN
SECONDS = 0.05
GOAL_MB = 300
FIELDS = ("VmRSS", "RssAnon", "RssFile", "RssShmem")
PHASES = ("reading", "pass", "files", "store", "end")
Sample = dict[str, float]


def status(pid: int | str) -> Sample:
    """Resident set of a process in bytes, split by what backs it; empty once it has gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name: int(value.split()[0]) << 10 for name, value in pairs if name in FIELDS}


def hold(model: str) -> None:
    """Attach a model as a run does, say so, and wait for the end of stdin. The other end of `baseline`."""
    import torch

    from interlock.engine.gpu.devices import choose
    from interlock.engine.gpu.lease import Lessor
    from interlock.engine.models.assets import Policy, resolve
    from interlock.engine.models.card import read_card
    from interlock.engine.models.registry import REGISTRY, find
    from interlock.engine.models.weights import attach_to_host

    torch.set_num_threads(1)
    spec = find(REGISTRY, [model])[0]
    card = read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")
    (device,) = choose("cpu")
    with Lessor([device], 12 << 30).lease(card.key, {device.name: 0}, lambda _: None):
        attached = attach_to_host(card, device)
        print(attached.bytes, flush=True)
        sys.stdin.read()


def baseline(model: str) -> Sample:
    """What a process with torch and the weights holds, and the weights' own bytes."""
    command = [sys.executable, __file__, "--hold", model]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=_environment()) as child:
        assert child.stdout is not None
        weights = int(child.stdout.readline())
        return {**status(child.pid), "weights": weights}


def sampled_run(texts: Sequence[str], metadata_bytes: int, model: str) -> tuple[list[Sample], list[Entry]]:
    """A run over these texts: its samples, each with the time, and its journal."""
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        corpora.write_chunks(root / "chunks", list(texts), metadata_bytes)
        run = [
            sys.executable,
            "-m",
            "interlock.console.main",
            "run",
            str(root / "chunks"),
            "--roster",
            model,
            "--quiet",
        ]
        where = ["--out", str(root / "runs"), "--run-id", "bench", "--qdrant", str(root / "store")]
        samples = []
        with subprocess.Popen([*run, *where, "--threads", "1", "--offline"], env=_environment(), cwd=root) as child:
            while child.poll() is None:
                samples.append({"at": time.time(), **status(child.pid)})
                time.sleep(SECONDS)
        if child.returncode:
            raise SystemExit(f"interlock run ended with {child.returncode}")
        return [each for each in samples if "VmRSS" in each], list(journal.read(root / "runs/bench/journal.jsonl"))


def by_phase(samples: Sequence[Sample], entries: Sequence[Entry]) -> dict[str, Sample]:
    """The sample with the largest resident set of every phase, with the seconds that the phase took."""
    kinds = (LeaseGranted, EnsemblePassCompleted, ArtefactWritten, StoreVerified, RunClosed)
    ends = [max(entry.at for entry in entries if isinstance(entry.body, kind)) for kind in kinds]
    starts = [samples[0]["at"], *ends]
    found = {}
    for phase, start, end in zip(PHASES, starts, ends, strict=False):
        held = [each for each in samples if start <= each["at"] < end]
        if held:
            found[phase] = {**max(held, key=lambda each: each["VmRSS"]), "seconds": end - start}
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    about = machine.describe()
    held = baseline(options.model)
    source = corpora.texts_of(None, few=options.quick)
    runs: dict[str, Any] = {}
    for count in options.chunks:
        phases = by_phase(*sampled_run(corpora.cuts(source, count, options.words), options.metadata, options.model))
        runs[str(count)] = {
            phase: {
                "seconds": round(peak["seconds"], 2),
                "beyond_mb": _mb(peak["VmRSS"] - held["VmRSS"]),
                **{f"{name}_mb": _mb(peak[name]) for name in FIELDS},
                **{f"{name}_beyond_mb": _mb(peak[name] - held[name]) for name in FIELDS[1:]},
            }
            for phase, peak in phases.items()
        }
    return {
        "machine": {**about, "load_after": machine.load()},
        "model": options.model,
        "words": options.words,
        "metadata_bytes": options.metadata,
        "baseline_mb": {name: _mb(value) for name, value in held.items()},
        "runs": runs,
        "goals": {
            f"{count} chunks, {name}, MB": machine.goal(max(_beyond(phases, among)), GOAL_MB, at_most=True)
            for count, phases in runs.items()
            for name, among in (("with --qdrant", PHASES), ("without", PHASES[:3]))
        },
    }


def _beyond(phases: dict[str, Any], among: Sequence[str]) -> list[float]:
    return [each["beyond_mb"] for phase, each in phases.items() if phase in among]


def _mb(size: float) -> float:
    return round(size / 1e6, 1)


def _environment() -> dict[str, str]:
    return {**os.environ, **machine.SINGLE_THREAD}


def show(result: dict[str, Any]) -> None:
    print(f"\n{result['model']}; torch and weights (MB): {result['baseline_mb']}")
    heads = ("VmRSS", "RssAnon", "RssFile", "RssShmem", "RssAnon_beyond", "RssFile_beyond", "RssShmem_beyond")
    rows = [
        [count, phase, each["seconds"], each["beyond_mb"], *(each[f"{name}_mb"] for name in heads)]
        for count, phases in result["runs"].items()
        for phase, each in phases.items()
    ]
    machine.table(["chunks", "phase", "s", "beyond MB", *(name.replace("_", " ") for name in heads)], rows)
    machine.goals(result["goals"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, nargs="+", default=[2000, 20000], metavar="N")
    parser.add_argument("--model", default="all-minilm-l6")
    parser.add_argument("--words", type=int, default=12, help="words in a text")
    parser.add_argument("--metadata", type=int, default=1000, help="bytes of metadata in a record")
    machine.quick(parser, chunks=[40])
    parser.add_argument("--json", type=Path, metavar="PATH")
    parser.add_argument("--hold", metavar="MODEL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.hold:
        hold(options.hold)
        return
    result = measure(options)
    show(result)
    evidence.keep(result, options.json, SOURCES)


if __name__ == "__main__":
    main()
