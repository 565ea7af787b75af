"""Models without weights: networks of published configurations at full size, whose tensors have a shape and no content.

Real are the size and place of every weight, and how it is attached and streamed; each stage of a forward takes what the
memory law says of the rows. Feigned are the vectors, which follow from the token ids alone and mean nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from interlock.engine.compute.encoder import Ids, terms_of
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.parts.tokens import TokenRows
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.sim import SimDevice
from interlock.engine.models.card import ModelCard
from interlock.engine.models.memory import Law, law_of
from interlock.engine.models.networks.kernels import filling, padded_tokens
from interlock.engine.models.networks.network import PackedEncoder, PackedTermEncoder
from interlock.engine.models.networks.streaming import size_of, slot_bytes, walk
from interlock.engine.models.registry import Kind
from interlock.engine.models.weights import DTYPES, Master

HOST_ROOM = 24 << 30
"""Bytes that a host is taken to have free: nothing here takes any of them."""
META = torch.device("meta")
"""Where tensors have a shape and no content."""
Vectors = npt.NDArray[np.float32]


class WeightlessGpu(SimDevice):
    """A simulated GPU for such networks: they compute in float16 as they stand."""

    lasting = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, narrow=False, **options)
        self.torch = META


class WeightlessHost(CpuDevice):
    """A host with room for whatever finds none on a simulated GPU."""

    lasting = False

    def __init__(self) -> None:
        super().__init__()
        self.torch = META

    def room(self, ceiling: int) -> int:
        return HOST_ROOM


class WeightlessNetwork(nn.Module):
    """A network at its full size; call it with the lengths of rows."""

    def __init__(self, network: nn.Module, law: Law, *, packed: bool = True) -> None:
        super().__init__()
        self.network = network
        self._law, self._packed = law, packed

    def forward(self, lengths: Sequence[int]) -> object:
        """Pass each stage in turn, as layers are streamed; what comes of it holds its memory until it is dropped."""
        tokens, longest = sum(lengths), max(lengths)
        tokens = tokens + filling(tokens) if self._packed else padded_tokens(len(lengths), longest, min(lengths))
        size, stages = self._law.activations(tokens, longest), [stage for stage, _ in walk(self.network)]
        taken = partial(torch.empty, size, dtype=torch.uint8, device=META)
        for stage in stages:
            stage.forward = taken
        try:
            for stage in stages:
                stage()
        finally:
            for stage in stages:
                del stage.forward
        return taken()


class WeightlessRows:
    """Has a weightless network compute rows, waits as long as `pace` says, and makes up their vectors."""

    def __init__(
        self,
        card: ModelCard,
        network: nn.Module,
        pace: Callable[[Sequence[int]], object] = lambda _: None,
        spoilt: int = -1,
    ) -> None:
        """Give a row that holds the id `spoilt` a vector that is not finite, wherever it is computed."""
        self.padded = not card.tight
        self._card = card
        self._network = network
        self._pace = pace
        self._spoilt = spoilt

    def encode(self, rows: Sequence[Ids]) -> Outputs:
        """Make up what the card's model gives of rows; no two different rows have the same vectors."""
        lengths = [len(row) for row in rows]
        hidden = self._network(lengths)
        self._pace(lengths)  # meanwhile its memory stays taken
        del hidden
        spoilt, outputs, by_token = [self._spoilt in row for row in rows], self._card.outputs, self._card.by_token
        vectors = vectors_of(rows, self._card.dim if self._card.kind == "dense" else 1)
        vectors[spoilt] = np.nan
        weights = np.where(np.repeat(spoilt, lengths), np.nan, 1).astype(np.float32)
        tokens = None
        if form := by_token.vectors:  # one vector for each row: that its tokens have any is all that a rehearsal shows
            tokens = TokenRows.from_vectors(vectors_of(rows, form.dim), np.arange(len(rows) + 1), form.precision)
        return Outputs(
            vectors if "dense" in outputs else None,
            terms_of(rows, weights, by_token.unweighed or ()) if "sparse" in outputs else None,
            tokens,
        )


def vectors_of(rows: Sequence[Ids], dim: int) -> Vectors:
    """Make up the unit vectors [len(rows), dim] of rows of token ids."""
    seeds = [crc32(row.astype(np.int64).tobytes()) for row in rows]
    drawn = np.array([np.random.default_rng(seed).standard_normal(dim, np.float32) for seed in seeds])
    unit: Vectors = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return unit


def load(card: ModelCard) -> WeightlessNetwork:
    """Build the network of a card that is packed, in place of reading its files."""
    return WeightlessNetwork(_blank(dict(card.config), card.dtype, card.network_kind), law(card, "sim"))


def hydrate(card: ModelCard) -> Master:
    """Make the host master of a card, of no content."""
    with META:
        return Master(load(card))


def law(card: ModelCard, device_kind: str) -> Law:
    """Find the memory law of what `load` gives; the host computes in float32, which takes twice as much."""
    dtype = "float32" if device_kind == "cpu" else card.dtype
    return _law(card.key, tuple(card.config.items()), dtype, card.network_kind)


@cache
def _law(key: str, config: tuple[tuple[str, Any], ...], dtype: str, kind: Kind) -> Law:
    network = _blank(dict(config), dtype, kind)
    law = law_of(dict(config), DTYPES[dtype].itemsize, packed=True, kind=kind)
    return replace(law, weights=size_of(network), slots=slot_bytes(network))


def _blank(config: dict[str, Any], dtype: str, kind: Kind) -> nn.Module:
    with META:
        return (PackedTermEncoder if kind == "sparse" else PackedEncoder).blank(config, DTYPES[dtype])
