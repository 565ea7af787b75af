"""What is computed of each token beside a vector of the whole text: its weight, and a vector of its own.

A model may have maps for these beside its network, as BGE-M3 (arxiv.org/abs/2402.03216) has: `sparse_linear` to a
weight, relu(w h + b), and `colbert_linear` to a vector of unit length. Any other network gives its last hidden states
as vectors, of unit length too.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from interlock.engine.errors import UnavailableError
from interlock.engine.models.checkpoint import Weights
from interlock.engine.models.layout import shapes_in
from interlock.engine.models.registry import Head
from interlock.engine.models.tensors import TensorFiles

VECTORS = 2048
"""Tokens whose vectors leave a device together, in float32: those of a whole batch would outgrow a layer."""
KeepVectors = Callable[[int, Tensor], object]
"""Takes the number of the first token, and unit vectors [n, dim] of it and those that follow."""


class TokenScale(nn.Module):
    """`sparse_linear`: the last hidden state of a token to its weight."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, hidden: Tensor) -> Tensor:
        """Weigh the tokens of `hidden` [T, width]: [T] in float32, none below 0."""
        return F.linear(hidden, self.weight, self.bias).relu_().float().squeeze(1)


class TokenMap(nn.Module):
    """`colbert_linear`: the last hidden state of a token to its vector."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, hidden: Tensor, keep: KeepVectors) -> None:
        """Give `keep` the unit vectors of the tokens of `hidden` [T, width], a part of them at a time."""
        for start in range(0, len(hidden), VECTORS):
            keep(start, F.normalize(F.linear(hidden[start : start + VECTORS], self.weight, self.bias).float(), dim=1))


def unit_states(hidden: Tensor, keep: KeepVectors) -> None:
    """Give `keep` the states [T, width] themselves as `TokenMap` would give its vectors."""
    for start in range(0, len(hidden), VECTORS):
        keep(start, F.normalize(hidden[start : start + VECTORS].float(), dim=1))


def load_heads(files: Mapping[Head, Path], width: int, dtype: torch.dtype) -> nn.ModuleDict:
    """Read heads of a network whose states have `width` numbers, each by its own name."""
    kinds: dict[Head, type[TokenScale | TokenMap]] = {
        "sparse_linear": TokenScale,
        "colbert_linear": TokenMap,
    }
    heads = nn.ModuleDict()
    for head, file in files.items():
        rows = shapes_in(file)["bias"][0]
        state = Weights(TensorFiles([file]), dtype)
        heads[head] = kinds[head](state.take("weight", rows, width), state.take("bias", rows))
    return heads


def check_heads(model: str, files: Mapping[Head, Path], width: int) -> None:
    """Raise UnavailableError, naming the file, for a head that is no map from `width` numbers, or not to a weight."""
    for head, file in files.items():
        shapes = shapes_in(file)
        rows = 1 if head == "sparse_linear" else shapes.get("bias", (0,))[0]
        if rows < 1 or shapes != {"weight": (rows, width), "bias": (rows,)}:
            raise UnavailableError(
                f"model {model}: {file} has the tensors {shapes}, expected a map from {width} numbers with its bias: "
                "use a model whose heads fit its network"
            )
