"""Models without weights: networks of published configurations at full size, whose tensors have a shape and no content.

Real are the size and place of every weight, each operation of a forward and each byte that it allocates on a simulated
device that holds float16. Feigned are the vectors, which follow from the token ids alone and mean nothing. Short rows
pass through `DEPTH` layers of all, because no peak depends on the depth.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.sim import SimDevice
from interlock.engine.models.card import ModelCard
from interlock.engine.models.memory import Law, law_of
from interlock.engine.models.networks.kernels import pack
from interlock.engine.models.networks.network import PackedEncoder, PackedTermEncoder
from interlock.engine.models.networks.pooling import TermPooling
from interlock.engine.models.networks.streaming import layers_of, size_of, slot_bytes
from interlock.engine.models.registry import Kind
from interlock.engine.models.weights import DTYPES, Master

DEPTH = 2
WHOLE = 8192
"""Rows from this length on pass through every layer."""
HOST_ROOM = 24 << 30
"""Bytes that a host is taken to have free: nothing here takes any of them."""

Forward = Callable[[nn.Module, Sequence[int]], object]
Ids = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


class _Contentless(FakeTensorMode):  # type: ignore[no-untyped-call]
    """The one mode of all weightless tensors, which torch made for one thread: threads enter it one after the other."""

    def __init__(self) -> None:
        self.turn = threading.RLock()
        self._own = threading.local()
        super().__init__()

    def __enter__(self) -> "_Contentless":
        self.turn.acquire()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self.turn.release()

    @property
    def in_kernel_invocation(self) -> bool:
        return getattr(self._own, "in_kernel", False)

    @in_kernel_invocation.setter
    def in_kernel_invocation(self, value: bool) -> None:
        self._own.in_kernel = value


CONTENTLESS = _Contentless()
"""Within it every tensor that a thread makes has a shape and no content."""


class WeightlessGpu(SimDevice):
    """A simulated GPU for such networks: they compute in float16 as they stand."""

    lasting = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, narrow=False, **options)

    @contextmanager
    def computing(self) -> Iterator[None]:
        with CONTENTLESS, super().computing():
            yield


class WeightlessHost(CpuDevice):
    """A host with room for whatever finds none on a simulated GPU."""

    lasting = False

    def room(self, ceiling: int) -> int:
        return HOST_ROOM

    @contextmanager
    def computing(self) -> Iterator[None]:
        with CONTENTLESS:
            yield


class WeightlessNetwork(nn.Module):
    """A network at its full size; call it with the lengths of rows."""

    def __init__(self, network: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.network = network
        self._forward = forward

    def forward(self, lengths: Sequence[int]) -> object:
        """Compute rows of these lengths; what comes of it holds its memory until it is dropped."""
        skipped = [] if max(lengths) >= WHOLE else layers_of(self.network)[DEPTH:]
        for layer in skipped:
            layer.forward = lambda hidden, *_, **__: hidden
        try:
            return self._forward(self.network, lengths)
        finally:
            for layer in skipped:
                del layer.forward


def vectors_of(rows: Sequence[Ids], dim: int) -> Vectors:
    """Make up the unit vectors [len(rows), dim] of rows of token ids."""
    seeds = [crc32(row.astype(np.int64).tobytes()) for row in rows]
    drawn = np.array([np.random.default_rng(seed).standard_normal(dim, np.float32) for seed in seeds])
    unit: Vectors = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return unit


def load(card: ModelCard) -> WeightlessNetwork:
    """Build the network of a card that is packed, in place of reading its files."""
    with CONTENTLESS:
        return WeightlessNetwork(*_blank(dict(card.config), card.dtype, card.network_kind))


def hydrate(card: ModelCard) -> Master:
    """Make the host master of a card, of no content."""
    with CONTENTLESS:
        return Master(load(card))


def law(card: ModelCard, device_kind: str) -> Law:
    """Find the memory law of what `load` gives; the host computes in float32, which takes twice as much."""
    return _law(
        card.key, tuple(card.config.items()), "float32" if device_kind == "cpu" else card.dtype, card.network_kind
    )


@cache
def _law(key: str, config: tuple[tuple[str, Any], ...], dtype: str, kind: Kind) -> Law:
    with CONTENTLESS:
        network, _ = _blank(dict(config), dtype, kind)
    law = law_of(dict(config), DTYPES[dtype].itemsize, packed=True, kind=kind)
    return replace(law, weights=size_of(network), slots=slot_bytes(network))


def _blank(config: dict[str, Any], dtype: str, kind: Kind) -> tuple[nn.Module, Forward]:
    """A network of this kind, and how it computes rows."""
    if kind == "sparse":
        return PackedTermEncoder.blank(config, DTYPES[dtype]), _terms
    return PackedEncoder.blank(config, DTYPES[dtype]), _packed


def _terms(network: nn.Module, lengths: Sequence[int]) -> None:
    assert isinstance(network, PackedTermEncoder)
    network.terms(
        pack([np.ones(each, np.int64) for each in lengths], torch.device("cpu")), TermPooling(), lambda *_: None
    )


def _packed(network: nn.Module, lengths: Sequence[int]) -> torch.Tensor:
    hidden: torch.Tensor = network(pack([np.ones(each, np.int64) for each in lengths], torch.device("cpu"))).float()
    return hidden
