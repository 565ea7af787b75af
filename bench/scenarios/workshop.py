"""What all plans share: tiny models, read once, their memory laws, and the vectors that rows should have."""

import copy
import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.scenarios.plan import LONGEST, Plan, ids_of
from interlock.engine.compute.checks.canary import plain
from interlock.engine.compute.encoder import encoder_for
from interlock.engine.compute.parts.dense import Vectors
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.models import weights
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.memory import Law, law_for
from interlock.engine.models.networks.network import PackedEncoder
from interlock.engine.models.registry import ModelSpec, Output
from interlock.engine.models.weights import Master, attach_to_host
from tests.builders import pins_of, tiny_m3, tiny_model, tiny_sparse
from tests.harness import written_out

MODELS: Mapping[str, Mapping[str, Any]] = {
    "flat": {"seed": 1, "width": 16, "layers": 1, "heads": 2},
    "deep": {"seed": 2, "width": 16, "layers": 3, "heads": 2, "pooling": "cls"},  # more layers than slots to stream
    "terms": {"seed": 4, "width": 16, "layers": 2, "heads": 2},
    "three": {"seed": 5},
    "padded": {
        "seed": 3, "kind": "qwen3", "width": 16, "layers": 1, "heads": 2, "pooling": "lasttoken",
        "head_dim": 8, "num_key_value_heads": 1,
    },
}  # fmt: skip
MAKERS: Mapping[str, Callable[..., Path]] = {"terms": tiny_sparse, "three": tiny_m3}


class Workshop:
    """The models by their keys; the last one is padded and costs most."""

    def __init__(self, place: Path) -> None:
        self.cards = {key: _card(place / key, options) for key, options in MODELS.items()}
        self._networks = {key: _light(weights.load(card)) for key, card in self.cards.items()}
        self._plain = cache(lambda key: weights.load(plain(self.cards[key])))
        self._row = cache(self._told)
        self._law = cache(lambda key, kind: law_for(self.cards[key], kind))
        self._master = cache(lambda key: Master(self.network(self.cards[key])))
        host = CpuDevice()
        self._attached = {key: attach_to_host(card, host) for key, card in self.cards.items()}
        self._encoders = {key: encoder_for(self.cards[key], each.network, host) for key, each in self._attached.items()}
        self.on_gpu = {key: self._law(key, "sim") for key in self.cards}

    def law(self, card: ModelCard, kind: str) -> Law:
        """The memory law of a model on a kind of device, traced once."""
        law: Law = self._law(card.key, kind)
        return law

    def vectors(self, key: str, plan: Plan) -> Vectors:
        """What the rows of a plan come to when nothing disturbs them: each alone, on the CPU."""
        told = [self._row(key, row, min(length, plan.limit)) for row, length in enumerate(plan.lengths)]
        return np.stack(told)

    def _told(self, key: str, row: int, length: int) -> Vectors:
        given = self._encoders[key].encode([ids_of(row, length)])
        vectors: Vectors = written_out(given, self.cards[key])[0]
        return vectors

    def network(self, card: ModelCard) -> torch.nn.Module:
        """A network of its own each time."""
        return copy.deepcopy(self._networks[card.key] if card.packed else self._plain(card.key))

    def master(self, card: ModelCard) -> Master:
        """Weights never change: one for all plans."""
        master: Master = self._master(card.key)
        return master


@contextmanager
def workshop() -> Iterator[Workshop]:
    """The models for as long as plans are carried out; one thread computes."""
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        shop = Workshop(Path(place))
        torch.set_num_threads(1)
        stack.callback(torch.set_num_threads, threads)
        gc.collect()
        gc.freeze()  # every lease collects garbage: not what was imported
        stack.callback(gc.unfreeze)
        yield shop


def _light(network: torch.nn.Module) -> torch.nn.Module:
    return network if isinstance(network, PackedEncoder) else torch.nn.Sequential(network[0])  # type: ignore[index]


def _card(place: Path, options: Mapping[str, Any]) -> ModelCard:
    key = place.name
    path = MAKERS.get(key, tiny_model)(place, max_tokens=LONGEST, **options)
    spec = ModelSpec(key, (str(path),), max_tokens=LONGEST)
    if key == "terms":
        spec = replace(spec, kind="sparse")
    if key == "three":
        outputs: tuple[Output, ...] = ("dense", "sparse", "tokens")
        spec = replace(spec, head_sha256=pins_of(path), outputs=outputs, token_precision="float16")
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "sim")
