"""How long simulated GPUs wait in a run: before their first batch, and from there to the last, with the first pass
beside reading and without.

The engine, its reading and its journal are real, and GPUs take the time that a rate of theirs asks for; vectors cost
nothing. A real card's rate is not known here: what is told is how well this engine keeps cards of this rate at work.
"""

import argparse
import json
import random
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import evidence
import machine
import numpy as np

from interlock.engine.compute.controls import Controls
from interlock.engine.corpus.corpus import BLOCK
from interlock.engine.flows import rehearsal, weightless
from interlock.engine.flows import run as flow
from interlock.engine.flows.run import Run
from interlock.engine.record import events as ev
from interlock.engine.record import journal
from interlock.engine.settings import load

SOURCES = evidence.RUN
MACHINES = {"2xT4": 20e12, "8xH100": 300e12}
"""Operations that one GPU is taken to do in a second: about a third of what its makers state for float16."""
LENGTHS, MODEL, AFTER = (32, 64, 96, 128), "sim-bge-m3", "after reading"
COLUMNS = ("batches", "seconds", "first", "before", "between", "cpu", "cpu to all")


def waited(place: Path, chunks: Path, gpus: str, block: int) -> dict[str, float]:
    """Run a model beside reading, by so many texts, or (0) after it: seconds, and the shares of them without work."""
    asked = {"roster": MODEL, "devices": f"sim:{gpus}", "out": str(place), "export": ""}
    told = rehearsal.configured(load(asked, {}))
    told = replace(told, settings=replace(told.settings, qdrant=None, faults=()))
    ends: list[float] = []

    def cheap(rows: Any, dim: int) -> Any:
        """Vectors that take no time, in place of those that are drawn."""
        ends.append(time.process_time())
        return np.full((len(rows), dim), dim**-0.5, np.float32)

    began = time.process_time()
    with (
        patch.object(rehearsal, "OPERATIONS", MACHINES[gpus]),
        patch.object(rehearsal, "RESOLVED", 0.0),
        patch.object(weightless, "vectors_of", cheap),
    ):
        run = Run(chunks, told, Controls(), rehearsal.backend(place, 1.0))
        with patch.object(flow, "BLOCK", block) if block else patch.object(run, "_beside", lambda *_: None):
            code = run.go()
    assert not code, code
    entries = [*journal.read(run.directory.journal)]
    batches = [(each.elapsed, each.body.seconds) for each in entries if isinstance(each.body, ev.BatchCommitted)]
    (ended, took), last = batches[0], batches[-1][0]
    first, busy = ended - took, sum(seconds for _, seconds in batches)
    between = 1 - busy / (int(gpus.split("x")[0]) * (last - first))
    shares = {"seconds": last, "before": first / last, "first": first, "between": between, "batches": len(batches)}
    return shares | {"cpu": ends[0] - began, "cpu to all": time.process_time() - began}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    about, rng = machine.describe(), random.Random(7)
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        rehearsal.write(root)  # for the tokenizer
        (root / "chunks").mkdir()
        texts = (" ".join(rng.choices(rehearsal.WORDS, k=rng.choice(LENGTHS))) for _ in range(options.texts))
        (root / "chunks" / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        ways = {AFTER: 0, **{f"blocks of {size:,}": size for size in options.blocks}}
        variants = {
            f"{gpus}, {way}": partial(alone, root, gpus, size) for gpus in options.gpus for way, size in ways.items()
        }
        found = machine.interleave(variants, options.rounds)
    told = {
        name: {what: machine.spread([each[what] for each in rounds], 4) for what in rounds[0]}
        for name, rounds in found.items()
    }
    goals = {
        f"{gpus}: CPU seconds before the first batch, of those without overlap": machine.goal(
            _first(told, gpus, f"blocks of {options.blocks[0]:,}") / _first(told, gpus, AFTER), 0.5, at_most=True
        )
        for gpus in options.gpus
    }
    return {"machine": {**about, "load_after": machine.load()}, "texts": options.texts, "ways": told, "goals": goals}


def _first(told: dict[str, Any], gpus: str, way: str) -> float:
    return float(told[f"{gpus}, {way}"]["cpu"]["median"])


def alone(root: Path, gpus: str, block: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=root) as place:
        rehearsal.write(Path(place))
        return waited(Path(place), root / "chunks", gpus, block)


def show(result: dict[str, Any]) -> None:
    heads = [
        "GPUs",
        "batches",
        "seconds to the last batch",
        "to the first",
        "idle before it",
        "idle from there on",
        "CPU s to the first",
        "to the end",
    ]
    machine.table(heads, [
        [name, *(each[what]["median"] for what in COLUMNS)]
        for name, each in result["ways"].items()
    ])  # fmt: skip
    machine.goals(result["goals"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=int, default=100_000, metavar="N")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpus", nargs="+", choices=MACHINES, default=[*MACHINES], metavar="GPUS")
    parser.add_argument(
        "--blocks", type=int, nargs="+", default=[BLOCK], metavar="N", help="texts that are planned for themselves"
    )
    machine.quick(parser, texts=2_000, rounds=1)
    evidence.gather(parser, measure, show, SOURCES)
