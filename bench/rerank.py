"""Scores a CPU second of a cross-encoder, against `CrossEncoder.predict` of sentence-transformers, in one process.

Ours is what `interlock rerank` does with pairs: tokenise, plan, score batch by batch under a lease. Loading is left out
on both sides. A model of MiniLM-L6's shape with random weights: what it says means nothing, what it takes does. One
thread; variants take turns in shuffled rounds.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import evidence
import machine

os.environ.update(machine.SINGLE_THREAD)

import numpy as np
import torch

from interlock.engine.compute.context import Granted
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy
from interlock.engine.models.members import rerankers
from interlock.engine.record.events import AnyEvent, PairsPlanned
from interlock.engine.search.rerank import Rerankers
from tests.builders import ENDINGS, WORDS, tiny_scorer

SOURCES = (
    "engine/compute/*.py", "engine/compute/pairs", "engine/compute/parts", "engine/corpus/tokens.py",
    "engine/models/networks", "engine/models/members.py", "engine/models/weights.py", "engine/search/rerank.py",
)  # fmt: skip
SHAPE: dict[str, Any] = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_attention_heads": 12,
    "num_hidden_layers": 6,
}
LONGEST = 512
SIZES = (32, 8, 16, 64)
DEFAULT = 32
GOALS = {"x default": 1.3, "x best": 1.0}
DIFFERENCE = 1e-5
Pair = tuple[str, str]


def pairs_of(queries: int, depth: int, seed: int = 7) -> list[Pair]:
    """Queries of 4 to 12 words, each with texts of 8 to 400, most of them about 80, as chunks and passages are."""
    generator = np.random.default_rng(seed)
    words = [*WORDS, *(word + ending for word in WORDS for ending in ENDINGS)]

    def text(length: int) -> str:
        return " ".join(generator.choice(words, length))

    lengths = np.clip(generator.lognormal(np.log(80), 0.8, (queries, depth)), 8, 400).astype(int)
    return [
        (query, text(length)) for row in lengths for query in [text(int(generator.integers(4, 12)))] for length in row
    ]


def model_at(directory: Path) -> Path:
    """The cross-encoder to measure, made now."""
    model = tiny_scorer(directory, max_position_embeddings=LONGEST, initializer_range=0.05, **SHAPE)
    file = model / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": LONGEST}))
    return model


def timed(score: Callable[[], Any]) -> Callable[[], dict[str, Any]]:
    """CPU seconds of a call, and its scores."""

    def run() -> dict[str, Any]:
        began = time.process_time()
        scores = score()
        return {"cpu": time.process_time() - began, "scores": scores}

    return run


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from sentence_transformers import CrossEncoder

    torch.set_num_threads(1)
    about, pairs = machine.describe(), pairs_of(options.queries, options.depth)
    with tempfile.TemporaryDirectory() as place:
        model = model_at(Path(place) / "scorer")
        host, peer = CpuDevice(), CrossEncoder(str(model), device="cpu")
        lessor = Lessor([host], host.total)
        told = list[AnyEvent]()
        on = Granted([], host, lessor, told.append)
        with Rerankers(rerankers({}, [str(model)]), Policy(offline=True), on) as ours:
            variants = {"interlock": timed(lambda: ours.score(pairs))}
            for size in options.sizes:
                variants[f"st {size}"] = timed(lambda size=size: peer.predict(pairs, batch_size=size))  # type: ignore[misc]
            ours.score(pairs[:8])
            peer.predict(pairs[:8])
            found = machine.interleave(variants, options.rounds)
    tokens = max(event.tokens for event in told if isinstance(event, PairsPlanned))
    return report(options, about, pairs, tokens, found)


def report(
    options: argparse.Namespace, about: dict[str, Any], pairs: Sequence[Pair], tokens: int, found: dict[str, list[Any]]
) -> dict[str, Any]:
    cpu = {name: machine.spread([each["cpu"] for each in rounds]) for name, rounds in found.items()}
    median = {name: each["median"] for name, each in cpu.items()}
    best = min((name for name in median if name != "interlock"), key=lambda name: median[name])
    difference = np.abs(found["interlock"][0]["scores"] - found[f"st {DEFAULT}"][0]["scores"]).max()
    values = {
        "x default": median[f"st {DEFAULT}"] / median["interlock"],
        "x best": median[best] / median["interlock"],
    }
    goals = {name: machine.goal(values[name], wanted) for name, wanted in GOALS.items()}
    return {
        "machine": {**about, "load_after": machine.load()},
        "shape": SHAPE, "rounds": options.rounds, "pairs": len(pairs), "tokens": tokens, "best": best,
        "cpu_seconds": cpu,
        "pairs_per_cpu_second": {name: round(len(pairs) / seconds, 2) for name, seconds in median.items()},
        "ratios_within_rounds": {
            name: machine.spread([t["cpu"] / o["cpu"] for t, o in zip(rounds, found["interlock"], strict=True)])
            for name, rounds in found.items() if name != "interlock"
        },
        "goals": goals | {"largest difference": machine.goal(float(difference), DIFFERENCE, at_most=True)},
    }  # fmt: skip


def show(result: dict[str, Any]) -> None:
    print(f"\na cross-encoder of MiniLM-L6's shape: {result['pairs']} pairs, {result['tokens']:,} tokens")
    cpu, rates = result["cpu_seconds"], result["pairs_per_cpu_second"]
    machine.table(["variant", "CPU s", "min", "max", "pairs/CPU s", "x interlock"], [
        [name, each["median"], each["min"], each["max"], rates[name], each["median"] / cpu["interlock"]["median"]]
        for name, each in sorted(cpu.items(), key=lambda item: item[1]["median"])
    ])  # fmt: skip
    machine.goals(result["goals"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=4)
    parser.add_argument("--depth", type=int, default=50, help="texts for each query")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="their batch sizes, with the default, 32")
    machine.quick(parser, queries=1, depth=6, rounds=1, sizes=[32, 8])
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
