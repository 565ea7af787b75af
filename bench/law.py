"""The memory law against full-depth traces of published architectures: what it foretells, and what is then allocated.

The law is estimated from a configuration; here every layer is traced, without weights or content, for rows of 32 to
32,768 tokens, alone and in batches, of one length and mixed, for each kernel that a card may choose. What kernels of
a GPU allocate is read from their source (`tests/oracle.py`): this is the error of the law, and whether a card does
what its source says is what `bench/gpu_acceptance.py` is for. `--heads` traces sparse models instead, which score their
whole vocabulary for each token.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench import evidence, machine

os.environ |= machine.SINGLE_THREAD

import numpy as np
import torch

from interlock.engine.compute.encoder import computed_tokens
from interlock.engine.models.memory import Law, law_of
from interlock.engine.models.networks.kernels import Kernel, precision_for
from interlock.engine.models.registry import Kind
from tests.architectures import ARCHITECTURES, LIMITS, SPARSE
from tests.oracle import Oracle

SOURCES = ("engine/models/memory.py", "engine/models/networks", "engine/gpu/meter.py")
MEDIAN, WORST = 0.01, 0.02
GRAIN = 8 << 10
"""Bytes that rounding may add to a forward."""
LENGTHS = tuple(2**power for power in range(5, 16, 2))
BATCHES = (1, 4, 1 << 15)
"""Rows of a batch, or from 32 on its tokens."""
PACKED = {"flash": Kernel.FLASH, "memory-efficient": Kernel.EFFICIENT, "runs": Kernel.RUNS}
"""Rows laid end to end, by the kernel that attends: that of an A100, that of a T4, and what either falls back on."""
CAPABILITIES = {"flash": (8, 0)}
T4 = (7, 5)
"""What computes what is not named here, in the precision that it takes for the architecture."""
PADDED = {"padded": Kernel.EFFICIENT, "padded, written out": Kernel.MATH, "eager": Kernel.RUNS}
ATTENTIONS = (*PACKED, *PADDED)
WITHOUT_SDPA = ("mpnet",)
CONTEXTS = {"Qwen3-0.6B": 32766, "Qwen2-1.5B": 32766}
"""Longest rows, where they are longer than what those models are mostly given."""


class Error(NamedTuple):
    """How far the law was above one forward, as shares: of all that is allocated, and of what is beside the weights."""

    peak: float
    activations: float
    shape: str


def cases(names: Sequence[str], attentions: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every architecture with each way in which the engine can compute it on a GPU."""
    for name in names:
        config = (ARCHITECTURES | SPARSE)[name]
        mpnet = config["model_type"] in WITHOUT_SDPA
        for attention in attentions:
            possible = attention == "runs" if mpnet and attention in PACKED else True
            if possible and not (mpnet and attention.startswith("padded")):
                yield name, attention


def shapes(limit: int, seed: int) -> Iterator[list[int]]:
    """Lengths of the rows of each forward, longest first; mixed rows are between half of the longest and it."""
    dice = np.random.default_rng(seed)
    for longest in sorted({min(length, limit) for length in LENGTHS if length < 2 * limit}):
        counts = {number if number < LENGTHS[0] else max(1, number // longest) for number in BATCHES}
        for rows in sorted(counts):
            yield [longest] * rows
            if rows > 1:
                rest = dice.integers(longest // 2, longest, rows - 1, endpoint=True)
                yield [longest, *sorted(rest.tolist(), reverse=True)]


def errors(name: str, attention: str, longest: int, seed: int, kind: Kind) -> Iterator[Error]:
    """Of every shape of one case, with rows of up to `longest` tokens."""
    packed, kernel = attention in PACKED, {**PACKED, **PADDED}[attention]
    config, how = (ARCHITECTURES | SPARSE)[name], "eager" if attention == "eager" else "sdpa"
    dtype = getattr(torch, precision_for(config, CAPABILITIES.get(attention, T4)))
    law = law_of(config, dtype.itemsize, packed=packed, attends=how, kernel=kernel, kind=kind)
    oracle = Oracle(config, packed=packed, attention=how, dtype=dtype, kernel=kernel, kind=kind)
    for lengths in shapes(min(CONTEXTS.get(name, LIMITS[name]), longest), seed):
        beside = oracle.peak(lengths)
        off = predicted(law, lengths, padded=not packed) - beside
        whole = (law.weights - oracle.weights + off) / (oracle.weights + beside)
        mix = "even" if len(set(lengths)) == 1 else "mixed"
        yield Error(whole, off / beside if abs(off) > GRAIN else 0.0, f"{len(lengths)} x {lengths[0]} {mix}")


def predicted(law: Law, lengths: Sequence[int], *, padded: bool) -> int:
    """Bytes beside the weights, uncorrected by any measurement."""
    return law.activations(computed_tokens(lengths, padded=padded), max(lengths))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    about = machine.describe()
    found = []
    kind: Kind = "sparse" if options.heads else "dense"
    ways = [each for each in options.attentions if each in PACKED] if options.heads else options.attentions
    for name, attention in cases(options.architectures or list(SPARSE if options.heads else ARCHITECTURES), ways):
        began = time.process_time()
        each = list(errors(name, attention, options.longest, options.seed, kind))
        found.append({"architecture": name, "attention": attention, **summed(each)})
        print(f"{name}, {attention}: {len(each)} forwards, {time.process_time() - began:.0f} CPU s", flush=True)
    return {"machine": about, "seed": options.seed, "cases": found, "goals": judged(found)}


def summed(each: Sequence[Error]) -> dict[str, Any]:
    """Median and worst of one case; the worst keeps its sign: below nothing, the law promised too little."""
    peaks, beside = [error.peak for error in each], [error.activations for error in each]
    return {
        "shapes": len(each),
        "peak": {"median": median(map(abs, peaks)), "worst": max(peaks, key=abs)},
        "activations": {"median": median(map(abs, beside)), "worst": max(beside, key=abs)},
        "worst_shape": max(each, key=lambda error: abs(error.activations)).shape,
    }


def judged(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The case that is farthest off beside the goals: for all that is allocated, and for activations alone."""
    return {
        f"{name} error of {what}": machine.goal(max(abs(each[what][name]) for each in found), wanted, at_most=True)
        for what in ("peak", "activations")
        for name, wanted in (("median", MEDIAN), ("worst", WORST))
    }


def show(result: Mapping[str, Any]) -> None:
    print()
    heads = ["architecture", "attention", "shapes", "peak: median %", "worst %", "activations: median %", "worst %"]
    rows = [
        [
            each["architecture"],
            each["attention"],
            each["shapes"],
            *(100 * each[what][name] for what in ("peak", "activations") for name in ("median", "worst")),
            each["worst_shape"],
        ]
        for each in result["cases"]
    ]
    machine.table([*heads, "worst shape"], rows)
    machine.goals(result["goals"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--architectures", nargs="+", choices=list(ARCHITECTURES | SPARSE))
    parser.add_argument("--heads", action="store_true", help="sparse models, with their masked-LM heads")
    parser.add_argument("--attentions", nargs="+", choices=ATTENTIONS, default=ATTENTIONS)
    parser.add_argument("--seed", type=int, default=11, help="of the mixed rows")
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], help="tokens of the longest rows")
    machine.quick(parser, architectures=["MiniLM-L6"], attentions=["flash"], longest=32)
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:  # no law that was traced before
        os.environ["INTERLOCK_CACHE"] = place
        result = measure(options)
    show(result)
    evidence.keep(result, options.json, SOURCES)


if __name__ == "__main__":
    main()
