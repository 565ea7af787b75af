"""Encode throughput of the engine's own path against sentence-transformers, in one process, in CPU seconds.

Ours is what a run does: tokenise into a TokenStore, plan, encode batch by batch under a lease. Loading is left
out on both sides. One thread; variants take turns in shuffled rounds, so that a busy machine hurts all alike.
"""

import argparse
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import evidence
import machine

os.environ.update(machine.SINGLE_THREAD)

import corpora
import numpy as np
import torch
import work

from interlock.engine.compute.encoder import Encoder, encoder_for
from interlock.engine.compute.job import plan
from interlock.engine.corpus.tokens import TokenStore, load_tokenizer
from interlock.engine.gpu.devices import choose
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.memory import law_for
from interlock.engine.models.registry import REGISTRY, find
from interlock.engine.models.weights import DTYPES, attach_to_host

SOURCES = evidence.NETWORK
SIZES = (32, 4, 8, 16, 64)
DEFAULT = 32
FLOAT32 = "st float32 32"
OPENVINO_SIZES = (2, 4, 8, 16, 32)
PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
FLOAT32_GOALS = {"x default": 1.35, "x best": 1.15, "minimal cosine": 0.99999, "share of GEMM peak": 0.82}
BFLOAT16_GOALS = {"x float32 default": 2.4, "x own best": 1.2, "minimal cosine": 0.998, "mean cosine": 0.9995}
INT8_GOALS = {"x default": 1.8, "minimal cosine": 0.98, "nearest ten kept": 0.95}
MADE_GOALS = {"x best": 1.0, "minimal cosine": 0.99999}
PADDING_GOAL = 0.01
SMALL: dict[str, Any] = {"width": 384, "layers": 6, "heads": 6, "max_tokens": 1024, "initializer_range": 0.05}
MADE = {
    "qwen3": {"pooling": "lasttoken", "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 1024},
    "modernbert": {"intermediate_size": 576, "local_attention": 128},
}
"""What is not as in `SMALL` of the models that `--made` makes."""
Timed = dict[str, float]


@dataclass
class Ours:
    """The engine's path over all texts; `vectors` are those of the last round, in the order of the texts."""

    card: ModelCard
    encoder: Encoder
    texts: Sequence[str]
    vectors: Any = None
    lengths: Any = None
    padding: float = 0.0
    batches: int = 0
    tokenizer: Any = field(init=False)

    def __post_init__(self) -> None:
        self.tokenizer = load_tokenizer(self.card.tokenizer_file)

    def __call__(self) -> Timed:
        began = time.process_time()
        with tempfile.TemporaryDirectory() as made:
            store = TokenStore(Path(made) / "ids", self.tokenizer, self.card.document_prompt, self.card.max_tokens)
            with store:
                store.add(self.texts)
            tokenised = time.process_time()
            self.lengths = store.lengths(self.card.max_tokens)
            planned = plan(np.arange(len(store)), self.lengths, self.card.batch_tokens)
            self.vectors = np.empty((len(store), self.card.dim), np.float32)
            for batch in planned.batches:
                rows = [store.row(int(row), self.card.max_tokens) for row in batch.rows]
                self.vectors[batch.rows] = self.encoder.encode(rows).dense
        ended = time.process_time()
        self.padding = work.padding(self.card, planned)
        self.batches = len(planned.batches)
        return {"cpu": ended - began, "tokenise": tokenised - began, "encode": ended - tokenised}


def theirs(model: Any, texts: Sequence[str], size: int, prompt: str) -> Callable[[], Timed]:
    def run() -> Timed:
        began = time.process_time()
        model.encode(list(texts), batch_size=size, prompt=prompt or None, show_progress_bar=False)
        return {"cpu": time.process_time() - began}

    return run


def cosines(ours: np.ndarray, reference: np.ndarray) -> np.ndarray:
    ours, reference = ours.astype(np.float64), reference.astype(np.float64)
    return (ours * reference).sum(1) / np.linalg.norm(ours, axis=1) / np.linalg.norm(reference, axis=1)


def nearest_kept(ours: np.ndarray, reference: np.ndarray, count: int = 10) -> float:
    """The share of the nearest vectors of each one that are the nearest in the reference too."""
    alike = (each @ each.T - 4 * np.eye(len(each)) for each in (ours, reference))
    pairs = zip(*(np.argsort(-each, 1)[:, :count] for each in alike), strict=True)
    return float(np.mean([np.isin(one, other).mean() for one, other in pairs]))


@contextmanager
def ours_of(options: argparse.Namespace) -> Iterator[Ours]:
    """The engine with its model on the CPU under a lease, as a run has it, and warm."""
    texts = corpora.sample(corpora.texts_of(options.chunks, few=options.quick), options.texts, options.shortest)
    spec = replace(find(REGISTRY, [options.model])[0], dtype={"cpu": options.dtype})
    card = read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")
    (device,) = choose("cpu")
    needs = {device.name: law_for(card, device.kind).weights}
    with Lessor([device], 12 << 30).lease(card.key, needs, lambda _: None):
        attached = attach_to_host(card, device)
        ours = Ours(card, encoder_for(card, attached.network, device), texts)
        replace(ours, texts=texts[:32])()
        yield ours


@contextmanager
def made(options: argparse.Namespace) -> Iterator[None]:
    """A model of an architecture that no package has, with random weights, in place of one of the registry."""
    from tests.builders import tiny_model

    with tempfile.TemporaryDirectory() as place:
        shape: dict[str, Any] = MADE[options.made]
        options.model = str(tiny_model(Path(place) / f"small-{options.made}", kind=options.made, **SMALL, **shape))
        yield


def alone(options: argparse.Namespace) -> dict[str, Any]:
    """Ours only: CPU seconds of each round."""
    with ours_of(options) as ours:
        return {"cpu": [ours()["cpu"] for _ in range(options.rounds)], "texts": len(ours.texts)}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from sentence_transformers import SentenceTransformer

    about = machine.describe()
    with ours_of(options) as ours:
        card, texts, dtype = ours.card, ours.texts, DTYPES[options.dtype]
        prompt, path = card.document_prompt, str(card.snapshot.path)
        whole = SentenceTransformer(path, device="cpu")
        peer = SentenceTransformer(path, device="cpu", model_kwargs={"dtype": dtype})
        reference = whole.encode(list(texts), batch_size=DEFAULT, prompt=prompt or None, show_progress_bar=False)
        variants: dict[str, Callable[[], Any]] = {"interlock": ours, "gemm": work.gemm(card, dtype)}
        variants |= {f"st {size}": theirs(peer, texts, size, prompt) for size in options.sizes}
        warm = [theirs(peer, texts[:32], 8, prompt)]
        if options.dtype == "bfloat16":
            variants[FLOAT32] = theirs(whole, texts, DEFAULT, prompt)
            warm.append(theirs(whole, texts[:32], 8, prompt))
        if options.openvino:
            other = openvino(path, options.dtype)
            variants |= {f"openvino {size}": theirs(other, texts, size, prompt) for size in OPENVINO_SIZES}
            warm.append(theirs(other, texts[:32], 8, prompt))
        for run in warm:
            run()
        found = machine.interleave(variants, options.rounds)
        return report(options, about, list(texts), ours, found, reference)


def installed() -> dict[str, str]:
    """The packages that their OpenVINO backend needs, with versions; empty where one of them is missing."""
    try:
        return {name: importlib.metadata.version(name) for name in ("openvino", "optimum-intel")}
    except importlib.metadata.PackageNotFoundError:
        return {}


def openvino(path: str, dtype: str) -> Any:
    """Their own backend for it, in the same precision (it would choose bfloat16 by itself) and on one thread."""
    from sentence_transformers import SentenceTransformer

    about = {"INFERENCE_PRECISION_HINT": PRECISIONS[dtype], "INFERENCE_NUM_THREADS": 1}
    kwargs = {"export": True, "ov_config": about}
    return SentenceTransformer(path, device="cpu", backend="openvino", model_kwargs=kwargs)


def quickest(median: dict[str, float], kind: str) -> str:
    """The variant of a kind that took least, at whatever batch size."""
    return min((name for name in median if name.startswith(kind) and name != FLOAT32), key=lambda name: median[name])


def report(options: Any, about: Any, texts: list[str], ours: Ours, found: Any, reference: np.ndarray) -> dict[str, Any]:
    cosine, kept = cosines(ours.vectors, reference), nearest_kept(ours.vectors, reference)
    probes = found.pop("gemm")
    cpu = {name: machine.spread([each["cpu"] for each in rounds]) for name, rounds in found.items()}
    median = {name: each["median"] for name, each in cpu.items()}
    best = quickest(median, "st ")
    tokens, useful = int(ours.lengths.sum()), work.flops(ours.card, ours.lengths)
    rates = {shape: machine.spread([probe[shape] for probe in probes], 1) for shape in probes[0]}
    forward = float(np.median([each["encode"] for each in found["interlock"]]))
    share = useful / forward / 1e9 / max(rate["median"] for rate in rates.values())
    values = {
        "x default": median["st 32"] / median["interlock"],
        "x best": median[best] / median["interlock"],
        "x own best": median[best] / median["interlock"],
        "x float32 default": median.get(FLOAT32, median["st 32"]) / median["interlock"],
        "minimal cosine": float(cosine.min()),
        "mean cosine": float(cosine.mean()),
        "nearest ten kept": kept,
        "share of GEMM peak": share,
    }
    by_dtype = {"float32": FLOAT32_GOALS, "bfloat16": BFLOAT16_GOALS, "int8": INT8_GOALS}
    wanted = MADE_GOALS if options.made else by_dtype[options.dtype]
    filled = {} if options.made else {"padding": machine.goal(ours.padding, PADDING_GOAL, at_most=True)}
    tokenise = float(np.median([each["tokenise"] for each in found["interlock"]]))
    return {
        "machine": {**about, "load_after": machine.load()},
        "model": ours.card.key, "dtype": options.dtype, "rounds": options.rounds,
        "texts": len(texts), "tokens": tokens, "batches": ours.batches, "gigaflops": round(useful / 1e9, 1),
        "cpu_seconds": cpu, "best": best, "openvino": installed() if options.openvino else None,
        "openvino_best": quickest(median, "openvino ") if options.openvino else None,
        "ratios_within_rounds": {
            name: machine.spread([t["cpu"] / o["cpu"] for t, o in zip(rounds, found["interlock"], strict=True)])
            for name, rounds in found.items() if name != "interlock"
        },
        "padding": {
            "interlock": round(ours.padding, 4),
            "st 32": round(work.padding_by_characters(texts, ours.lengths, DEFAULT), 4),
        },
        "tokenise_share": round(tokenise / median["interlock"], 4),
        "gemm_gflops": rates,
        "useful_gflops": {name: round(useful / seconds / 1e9, 1) for name, seconds in median.items()},
        "goals": {name: machine.goal(values[name], limit) for name, limit in wanted.items()} | filled,
    }  # fmt: skip


def show(result: dict[str, Any]) -> None:
    print(f"\n{result['model']} {result['dtype']}: {result['texts']} texts, {result['tokens']:,} tokens")
    cpu, rates = result["cpu_seconds"], result["useful_gflops"]
    machine.table(["variant", "CPU s", "min", "max", "tokens/s", "useful GF/s", "x interlock"], [
        [name, each["median"], each["min"], each["max"], round(result["tokens"] / each["median"]), rates[name],
         each["median"] / cpu["interlock"]["median"]]
        for name, each in sorted(cpu.items(), key=lambda item: item[1]["median"])
    ])  # fmt: skip
    print(f"GEMM GF/s: { {shape: rate['median'] for shape, rate in result['gemm_gflops'].items()} }")
    print(f"padding: {result['padding']}; tokenising is {result['tokenise_share']:.2%} of our time")
    machine.goals(result["goals"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=Path, help="chunk directory; default is the standard library's docstrings")
    parser.add_argument("--model", default="all-minilm-l6")
    parser.add_argument("--made", choices=MADE, help="in place of --model: a small one of this architecture, made now")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "int8"], default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=120)
    parser.add_argument("--shortest", type=int, default=300, help="least characters of a text")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="their batch sizes, with the default, 32")
    parser.add_argument("--openvino", action="store_true", help="their OpenVINO backend too, at its best batch size")
    parser.add_argument("--alone", action="store_true", help="only ours, as JSON; for against.py")
    machine.quick(parser, texts=6, shortest=0, rounds=1, sizes=[32, 8])
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.alone:
        print(json.dumps(alone(options)))
        return
    if options.openvino and not installed():
        print("left out: openvino or optimum-intel is not installed (bench/README.md says how)")
        return
    with made(options) if options.made else nullcontext():
        result = measure(options)
    show(result)
    evidence.keep(result, options.json, SOURCES)


if __name__ == "__main__":
    main()
