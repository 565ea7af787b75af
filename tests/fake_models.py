"""Small models of every architecture on a GPU that is not there, with the encoders of the engine.

The host master, the replica, streaming, slicing and the encoders are those of the engine; tensors on the GPU have no
content (`tests/fake_cuda.py`).
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from interlock.engine.compute.encoder import Hidden, PackedRows, PaddedRows
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.models.networks.attention import ROTARY
from interlock.engine.models.networks.checkpoint import PACKED_TYPES
from interlock.engine.models.networks.kernels import kernel_for
from interlock.engine.models.networks.network import PackedEncoder
from interlock.engine.models.weights import Master, Replica
from tests.fake_cuda import FakeCuda
from tests.oracle import blank

T4, A100 = (7, 5), (8, 0)
ROWS = {"even": [24] * 4, "ragged": [40, 24, 24, 9, 3], "single": [17]}
SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 99, "type_vocab_size": 1,
    "max_position_embeddings": 512, "pad_token_id": 1, "hidden_act": "gelu", "bos_token_id": 2, "eos_token_id": 3,
    "cls_token_id": 2, "sep_token_id": 3, "mask_token_id": 4,
}  # fmt: skip
GROUPED = ("eurobert", "gemma2", "gemma3_text", "llama", "mistral", "qwen2", "qwen3")
PADDED = ("albert", "bert padded", "deberta-v2", "electra", "gemma2", "jina_embeddings_v3", "xlm-roberta-xl")
EAGER = ("deberta-v2", "gemma2")
WINDOWED = {"modernbert": {"local_attention": 16}, "gemma3_text": {"sliding_window": 16, "layer_types": None},
            "mistral": {"sliding_window": 16}}  # fmt: skip
KINDS = sorted(PACKED_TYPES | ROTARY | {*PADDED})
"""Every architecture that can be packed, and of the others those that differ most."""


class Gpu(CpuDevice):
    """`cuda:1`, or another, as those see it who attach a model to it."""

    kind = "cuda"

    def __init__(self, number: int = 1) -> None:
        super().__init__()
        self.name, self.torch = f"cuda:{number}", torch.device("cuda", number)

    def room(self, ceiling: int) -> int:
        return ceiling

    def reclaim(self) -> None:
        """There is nothing."""

    def computing(self) -> AbstractContextManager[object]:
        return nullcontext()


@dataclass
class Attached:
    """A model on the GPU that is not there, and what encodes with it."""

    gpu: Gpu
    replica: Replica
    rows: Any
    fake: FakeCuda

    def encode(self, lengths: list[int]) -> None:
        """Compute rows of these lengths, counting from zero."""
        self.fake.kernels.clear()
        self.fake.waits.clear()
        vectors = self.rows.encode([np.full(length, 5) for length in lengths]).dense
        assert vectors.shape == (len(lengths), SMALL["hidden_size"])

    @property
    def packed(self) -> bool:
        return not self.rows.padded

    def kernels(self, lengths: list[int]) -> int:
        """Count what computing rows of these lengths launches."""
        self.encode(lengths)
        return sum(self.fake.kernels.values())


class _Graph(nn.Module):
    """What sentence-transformers makes of a network, as far as the encoders look at it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.first = _First(network)

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        hidden = self.first.model(**features)[0]
        mask = features.get("attention_mask", torch.ones_like(features["input_ids"]))[..., None]
        return {"sentence_embedding": (hidden * mask).sum(1) / mask.sum(1)}


class _First(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.model = network


def config_of(kind: str, layers: int) -> dict[str, Any]:
    config = {
        **SMALL,
        "model_type": kind.removesuffix(" padded"),
        "num_hidden_layers": layers,
        **WINDOWED.get(kind, {}),
    }
    if kind in GROUPED:
        config |= {"num_key_value_heads": 2, "head_dim": 16}
    if kind in ("albert", "electra"):
        config["embedding_size"] = 64
    return {name: value for name, value in config.items() if value is not None}


def attached(
    fake: FakeCuda,
    kind: str,
    layers: int = 2,
    capability: tuple[int, int] = A100,
    number: int = 1,
    triton: bool = False,
    **how: bool,
) -> Attached:
    """A model of random weights, of a `KINDS`, on `cuda:1` or the GPU of this number."""
    config, gpu = config_of(kind, layers), Gpu(number)
    kernel = kernel_for(config, "float16", capability, triton=triton)
    with fake.mode:
        network: nn.Module
        if kind in PACKED_TYPES:
            network = PackedEncoder.blank(config, torch.float16)
        else:
            network = _Graph(blank(config, "eager" if kind in EAGER else "sdpa", torch.float16, packed=kind in ROTARY))
        master = Master(network)
    replica = Replica(master, gpu, **how)
    if kind in PACKED_TYPES:
        rows: Any = PackedRows(replica.network, "mean", gpu.torch, kernel)
    elif kind in ROTARY:
        rows = PackedRows(Hidden(replica.network.first), "lasttoken", gpu.torch, kernel)
    else:
        rows = PaddedRows(replica.network, 1, gpu.torch)
    return Attached(gpu, replica, rows, fake)
