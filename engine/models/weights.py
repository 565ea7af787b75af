"""Weights between the host and a device: attached under a lease, dropped when it ends.

On the host's own processor attaching means reading the files into the layout that its kernels want; nothing is
copied back on release, because weights never change.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from torch import nn

from engine.errors import UnavailableError
from engine.gpu.lease import Lease
from engine.models.card import ModelCard
from engine.models.network import PackedEncoder
from engine.models.tensors import TensorFiles

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Attached:
    """A model on its device; it stays there until the last reference to it is gone."""

    network: nn.Module
    bytes: int
    seconds: float


def attach(card: ModelCard, lease: Lease) -> Attached:
    """Put the model of `card` on the devices of `lease`. Raises UnavailableError for weights that do not load."""
    began = time.monotonic()
    try:
        network = _packed(card) if card.packed else _graph(card)
    except (ValueError, OSError, RuntimeError, SafetensorError) as error:
        raise UnavailableError(f"model {card.key} in {card.snapshot.path} does not load: {error}") from error
    size = sum(tensor.numel() * tensor.element_size() for tensor in network.parameters())
    lease.hold(network, size)
    lease.trim()
    return Attached(network, size, time.monotonic() - began)


def _packed(card: ModelCard) -> PackedEncoder:
    state = TensorFiles(card.snapshot.weights)
    return PackedEncoder.from_state(card.config, state, DTYPES[card.dtype]).pack_for_cpu()


def _graph(card: ModelCard) -> "SentenceTransformer":
    """Any other architecture, as sentence-transformers assembles it; its own code stays off."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(
        str(card.snapshot.path),
        device="cpu",
        local_files_only=True,
        trust_remote_code=False,
        model_kwargs={"torch_dtype": DTYPES[card.dtype], "use_safetensors": True},
    ).eval()
