"""From start to first batch, against a script that only loads the model with sentence-transformers.

Whole processes, CPU seconds of the child and its children (wait4) and wall, in shuffled rounds with a warm cache.
Without --export nothing is delivered, so the run's whole process is the way to its first and only batch.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import corpora
import evidence
import machine

from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.registry import REGISTRY, find
from interlock.engine.record import journal
from interlock.engine.record.events import BatchCommitted

SOURCES = (
    *evidence.RUN,
    "console/main.py",
    "console/cli.py",
    "console/commands.py",
    "console/answers.py",
)
GOAL = 0.4
JUDGED = ("interlock to first batch", "sentence-transformers, model loaded")
TEXTS = [f"Chunk {number} says how a run starts." for number in range(4)]
LOAD = "import sys, torch; torch.set_num_threads(1)\nfrom sentence_transformers import SentenceTransformer\n"
LOAD += "SentenceTransformer(sys.argv[1], device='cpu')"
Spent = dict[str, float]
ENVIRONMENT = {**os.environ, **machine.SINGLE_THREAD}


def spent(command: list[str], directory: Path, environment: Mapping[str, str] = ENVIRONMENT) -> Spent:
    """CPU and wall seconds of one process from its start to its end."""
    began = time.time()
    child = subprocess.Popen(command, env=environment, cwd=directory, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command[1:4]} ended with {child.returncode}")
    return {"began": began, "cpu": usage.ru_utime + usage.ru_stime, "wall": time.time() - began}


def run_of(model: str, root: Path, exports: str, *more: str) -> Callable[[], Spent]:
    """A run of one batch in a new directory each time, with the wall seconds to its first batch."""

    def run() -> Spent:
        with tempfile.TemporaryDirectory() as made:
            command = [sys.executable, "-m", "interlock", "run", str(root), "--roster", model, "--quiet"]
            where = ["--out", made, "--run-id", "bench", "--offline", "--threads", "1", "--export", exports]
            took = spent([*command, *where, *more], Path(made))
            entries = journal.read(Path(made) / "bench/journal.jsonl")
            first = next(entry.at for entry in entries if isinstance(entry.body, BatchCommitted))
            return {**took, "first_batch": first - took["began"]}

    return run


def measure(options: argparse.Namespace) -> dict[str, Any]:
    about = machine.describe()
    path = resolve(find(REGISTRY, [options.model])[0], Policy(offline=True), lambda _: None).path
    with tempfile.TemporaryDirectory() as made:
        corpora.write_chunks(Path(made), TEXTS, 100)
        variants = {
            "interlock to first batch": run_of(options.model, Path(made), ""),
            "interlock with files": run_of(options.model, Path(made), "npy,parquet"),
            "sentence-transformers, model loaded": lambda: spent([sys.executable, "-c", LOAD, str(path)], Path(made)),
            "import torch": lambda: spent([sys.executable, "-c", "import torch"], Path(made)),
        }
        if options.quick:
            variants = {name: variants[name] for name in JUDGED}
        for run in () if options.quick else variants.values():
            run()
        found = machine.interleave(variants, options.rounds)
    seconds = {
        name: {what: machine.spread([each[what] for each in rounds]) for what in rounds[0] if what != "began"}
        for name, rounds in found.items()
    }
    ours, theirs = (seconds[name] for name in JUDGED)
    ratios = {
        "CPU, whole process": ours["cpu"]["median"] / theirs["cpu"]["median"],
        "wall, start to first batch": ours["first_batch"]["median"] / theirs["wall"]["median"],
    }
    return {
        "machine": {**about, "load_after": machine.load()},
        "model": options.model,
        "rounds": options.rounds,
        "seconds": seconds,
        "goals": {name: machine.goal(ratio, GOAL, at_most=True) for name, ratio in ratios.items()},
    }


def show(result: dict[str, Any]) -> None:
    print()
    rows = [
        [name, *(_cell(each.get(what)) for what in ("cpu", "wall", "first_batch"))]
        for name, each in result["seconds"].items()
    ]
    machine.table(["process", "CPU s", "wall s", "wall to first batch s"], rows)
    machine.goals(result["goals"])


def _cell(found: dict[str, float] | None) -> str:
    return f"{found['median']:.2f} ({found['min']:.2f}-{found['max']:.2f})" if found else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="all-minilm-l6")
    parser.add_argument("--rounds", type=int, default=5)
    machine.quick(parser, rounds=1)
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
