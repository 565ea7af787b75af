"""Throughput of a sparse pass against sentence-transformers' SparseEncoder, in one process, in CPU seconds.

Ours is what a run does: tokenise, plan, weigh batch by batch and keep what is above zero; theirs is `encode_document`
with sparse tensors. Loading is left out on both sides. One thread; variants take turns in shuffled rounds. The model is
`splade-tiny`, or with `--made` a DistilBERT of six layers and its usual size with random weights, whose last bias lets
one word in a hundred have a weight, as in trained models.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import evidence
import machine

os.environ.update(machine.SINGLE_THREAD)

import corpora
import numpy as np
import torch

from interlock.engine.compute.encoder import Encoder, encoder_for
from interlock.engine.compute.job import plan
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.corpus.tokens import TokenStore, load_tokenizer
from interlock.engine.gpu.devices import choose
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.members import members
from interlock.engine.models.memory import law_for
from interlock.engine.models.registry import REGISTRY
from interlock.engine.models.weights import attach_to_host

SOURCES = evidence.NETWORK
SIZES = (32, 4, 8, 16)
MARGIN = 1.3
CLOSE = 1e-4
"""Of weights, to theirs: rounding of another order of sums."""
SHARE = 0.01
"""Of the vocabulary, with a weight in a text of a made model."""


@dataclass
class Ours:
    """The engine's path over all texts; `rows` are those of the last round, in the order of the texts."""

    card: ModelCard
    encoder: Encoder
    texts: Sequence[str]
    tokens: int = 0
    pieces: list[tuple[Any, Outputs]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokenizer = load_tokenizer(self.card.tokenizer_file)

    def __call__(self) -> float:
        began = time.process_time()
        with tempfile.TemporaryDirectory() as made:
            store = TokenStore(Path(made) / "ids", self.tokenizer, self.card.document_prompt, self.card.max_tokens)
            with store:
                store.add(self.texts)
            lengths = store.lengths(self.card.max_tokens)
            self.pieces, self.tokens = [], int(lengths.sum())
            for batch in plan(np.arange(len(store)), lengths, self.card.batch_tokens).batches:
                rows = [store.row(int(row), self.card.max_tokens) for row in batch.rows]
                self.pieces.append((batch.rows, self.encoder.encode(rows)))
        return time.process_time() - began

    def dense(self) -> np.ndarray:
        terms = self.pieces[0][1].joined(len(self.texts), self.pieces).terms
        assert terms is not None, "a sparse model weighs terms"
        return terms.to_dense(self.card.dim)


def theirs(model: Any, texts: Sequence[str], size: int) -> Callable[[], float]:
    def run() -> float:
        began = time.process_time()
        model.encode_document(list(texts), batch_size=size, show_progress_bar=False)
        return time.process_time() - began

    return run


@contextmanager
def made(texts: Sequence[str]) -> Iterator[str]:
    """A DistilBERT of random weights with the tokenizer of splade-tiny, in a directory for the moment."""
    from sentence_transformers import SparseEncoder
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    (spec,) = members(REGISTRY, (), ["splade-tiny"])
    tokenizer = resolve(spec, Policy(offline=True), lambda _: None).path
    with tempfile.TemporaryDirectory() as place:
        torch.manual_seed(7)
        network = DistilBertForMaskedLM(DistilBertConfig()).eval()
        network.save_pretrained(place)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tokenizer / name, place)
        encoder = SparseEncoder(place, device="cpu")
        with torch.inference_mode():
            logits = encoder[0](encoder.preprocess(list(texts[:4])))["token_embeddings"].amax(1)
        network.vocab_projector.bias.data -= torch.quantile(logits.flatten()[:: len(texts[:4])], 1 - SHARE)
        network.save_pretrained(place)
        yield place


def measure(options: argparse.Namespace) -> dict[str, Any]:
    texts = corpora.sample(corpora.texts_of(options.chunks, few=options.quick), options.texts, options.shortest)
    if not options.made:
        return compared(options, "splade-tiny", texts)
    with made(texts) as place:
        return {**compared(options, place, texts), "model": "distilbert made of random weights"}


def compared(options: argparse.Namespace, model: str, texts: Sequence[str]) -> dict[str, Any]:
    from sentence_transformers import SparseEncoder

    about = machine.describe()
    (spec,) = members(REGISTRY, (), [model])
    card = read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")
    (device,) = choose("cpu")
    with Lessor([device], 12 << 30).lease(card.key, {device.name: law_for(card, "cpu").weights}, lambda _: None):
        attached = attach_to_host(card, device)
        ours = Ours(card, encoder_for(card, attached.network, device), texts)
        peer = SparseEncoder(str(card.snapshot.path), device="cpu")
        peer.max_seq_length = card.max_tokens
        variants: dict[str, Callable[[], float]] = {"interlock": ours}
        variants |= {f"st {size}": theirs(peer, texts, size) for size in options.sizes}
        theirs(peer, texts[:8], 8)()
        ours()
        found = machine.interleave(variants, options.rounds)
        wanted = peer.encode_document(list(texts), convert_to_sparse_tensor=False, batch_size=8).numpy()
    return {**about, "load_after": machine.load(), **report(options, ours, found, wanted)}


def report(
    options: argparse.Namespace, ours: Ours, found: dict[str, list[float]], wanted: np.ndarray
) -> dict[str, Any]:
    cpu = {name: machine.spread(rounds) for name, rounds in found.items()}
    median = {name: each["median"] for name, each in cpu.items()}
    best = min((name for name in median if name.startswith("st ")), key=lambda name: median[name])
    weights = ours.dense()
    values = {"x default": median["st 32"] / median["interlock"], "x best": median[best] / median["interlock"]}
    return {
        "model": ours.card.key, "rounds": options.rounds, "texts": len(ours.texts), "tokens": ours.tokens,
        "terms_per_text": round(float((weights > 0).sum(1).mean()), 1), "cpu_seconds": cpu, "best": best,
        "ratios_within_rounds": {
            name: machine.spread([theirs / own for theirs, own in zip(rounds, found["interlock"], strict=True)])
            for name, rounds in found.items() if name != "interlock"
        },
        "goals": {name: machine.goal(value, MARGIN) for name, value in values.items()}
        | {"largest difference": machine.goal(float(np.abs(weights - wanted).max()), CLOSE, at_most=True)},
    }  # fmt: skip


def show(result: dict[str, Any]) -> None:
    about = f"{result['texts']} texts, {result['tokens']:,} tokens, {result['terms_per_text']} terms a text"
    print(f"\n{result['model']}: {about}")
    cpu = result["cpu_seconds"]
    machine.table(["variant", "CPU s", "min", "max", "texts/s", "x interlock"], [
        [name, each["median"], each["min"], each["max"], result["texts"] / each["median"],
         each["median"] / cpu["interlock"]["median"]]
        for name, each in sorted(cpu.items(), key=lambda item: item[1]["median"])
    ])  # fmt: skip
    machine.goals(result["goals"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=Path, help="chunk directory; default is the standard library's docstrings")
    parser.add_argument("--made", action="store_true", help="in place of splade-tiny: a DistilBERT of random weights")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=120)
    parser.add_argument("--shortest", type=int, default=300, help="least characters of a text")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="their batch sizes, with the default, 32")
    machine.quick(parser, texts=6, shortest=0, rounds=1, sizes=[32, 8])
    torch.set_num_threads(1)
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
