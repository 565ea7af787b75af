"""What all plans share: tiny models, read once, their memory laws, and the vectors that rows should have."""

import copy
import gc
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.scenarios.plan import LONGEST, ids_of
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.memory import Law
from interlock.engine.models import weights
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.network import PackedEncoder
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.trace import law_for
from interlock.engine.models.weights import Master, attach_to_host
from interlock.engine.passes.canary import plain
from interlock.engine.passes.encoder import Vectors, encoder_for
from tests.builders import tiny_model

MODELS: Mapping[str, Mapping[str, Any]] = {
    "flat": {"seed": 1, "width": 16, "layers": 1, "heads": 2},
    "deep": {"seed": 2, "width": 16, "layers": 3, "heads": 2, "pooling": "cls"},  # more layers than slots to stream
    "padded": {
        "seed": 3, "kind": "qwen3", "width": 16, "layers": 1, "heads": 2, "pooling": "lasttoken",
        "head_dim": 8, "num_key_value_heads": 1,
    },
}  # fmt: skip


class Workshop:
    """The models by their keys; the last one is padded and costs most."""

    def __init__(self, place: Path) -> None:
        self.cards = {key: _card(place / key, options) for key, options in MODELS.items()}
        self._networks = {key: _light(weights.load(card)) for key, card in self.cards.items()}
        self._plain = cache(lambda key: weights.load(plain(self.cards[key])))
        self._vector = cache(self._encoded)
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

    def vectors(self, key: str, lengths: Sequence[int]) -> Vectors:
        """What rows of these lengths come to when nothing disturbs them: each alone, on the CPU."""
        return np.stack([self._vector(key, row, min(length, LONGEST)) for row, length in enumerate(lengths)])

    def network(self, card: ModelCard) -> torch.nn.Module:
        """A network of its own each time."""
        return copy.deepcopy(self._networks[card.key] if card.packed else self._plain(card.key))

    def master(self, card: ModelCard) -> Master:
        """Weights never change: one for all plans."""
        master: Master = self._master(card.key)
        return master

    def _encoded(self, key: str, row: int, length: int) -> Vectors:
        vector: Vectors = self._encoders[key].encode([ids_of(row, length)])[0]
        return vector


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
    path = tiny_model(place, max_tokens=LONGEST, **options)
    spec = ModelSpec(key=place.name, sources=(str(path),))
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "sim")
