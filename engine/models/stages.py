"""The parts of a network that are computed one after the other, so that their weights can come one after the other.

A stage is a whole layer, or any module outside the layers that owns tensors itself (embeddings, norms, a dense head).
The same order lays out a host master: the tensors of a stage stand together there and are copied as one piece.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from interlock.engine.models.network import FeedForward

MLP_NAMES = ("mlp", "feed_forward")


@dataclass(frozen=True)
class TensorSlice:
    """Where a tensor stands in the flat one of its precision, counted in values."""

    dtype: torch.dtype
    start: int
    shape: torch.Size

    @property
    def stop(self) -> int:
        return self.start + math.prod(self.shape)

    def view(self, flat: Tensor, origin: int = 0) -> Tensor:
        """Return the tensor in a flat one that begins at value `origin` of the master's."""
        return flat[self.start - origin : self.stop - origin].view(self.shape)


def layers_of(network: nn.Module) -> list[nn.Module]:
    """Find the repeated layers: the list of modules that holds the most weights; empty where there is none."""
    lists = [module for module in network.modules() if isinstance(module, nn.ModuleList) and len(module)]
    return list(max(lists, key=size_of).children()) if lists else []


def stages_of(network: nn.Module) -> list[list[Tensor]]:
    """List the distinct tensors of every stage of `walk`; a tensor belongs to the first that has it."""
    seen: set[int] = set()
    stages = []
    for stage, whole in walk(network):
        fresh = {id(tensor): tensor for tensor in tensors_of(stage, whole=whole) if id(tensor) not in seen}
        seen |= fresh.keys()
        stages.append(list(fresh.values()))
    return stages


def walk(network: nn.Module) -> Iterator[tuple[nn.Module, bool]]:
    """Yield each stage, and whether it counts with everything inside it."""
    layers = {id(layer) for layer in layers_of(network)}

    def below(module: nn.Module) -> Iterator[tuple[nn.Module, bool]]:
        if id(module) in layers:
            yield module, True
            return
        if any(True for _ in module.parameters(recurse=False)) or any(True for _ in module.buffers(recurse=False)):
            yield module, False
        for child in module.children():
            yield from below(child)

    return below(network)


def tensors_of(stage: nn.Module, *, whole: bool) -> list[Tensor]:
    """List parameters and buffers of a stage, with those of the modules inside it where it counts `whole`."""
    return [*stage.parameters(recurse=whole), *stage.buffers(recurse=whole)]


def size_of(module: nn.Module) -> int:
    """Sum the bytes of the distinct tensors of a module."""
    tensors = {id(tensor): tensor for tensor in tensors_of(module, whole=True)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def slot_bytes(network: nn.Module) -> int:
    """Count the bytes of weights on a device when stages are streamed: two layers, or a larger stage alone.

    A stage with others inside it stays for as long as those are computed.
    """
    layers = {id(layer) for layer in layers_of(network)}
    if not layers:
        return 0
    sizes = {
        id(module): sum(tensor.numel() * tensor.element_size() for tensor in stage)
        for (module, _), stage in zip(walk(network), stages_of(network), strict=True)
    }

    def most(module: nn.Module) -> int:
        if id(module) in layers:
            return 2 * max(sizes[layer] for layer in layers)
        return sizes.get(id(module), 0) + max(map(most, module.children()), default=0)

    return most(network)


def feed_forwards(network: nn.Module) -> list[nn.Module]:
    """Find the modules that treat each token by itself and are widest there."""
    return [
        module
        for name, module in network.named_modules()
        if isinstance(module, FeedForward) or name.rpartition(".")[2] in MLP_NAMES
    ]


def by_parts(whole: Callable[..., Tensor], tokens: int) -> Callable[..., Tensor]:
    """Make a feed-forward of `[..., T, d]` that takes `tokens` tokens at a time: the same vectors, a smaller peak."""

    def parts(hidden: Tensor, *more: object) -> Tensor:
        out = torch.empty_like(hidden)
        for to, part in zip(torch.split(out, tokens, -2), torch.split(hidden, tokens, -2), strict=True):
            to.copy_(whole(part, *more))
        return out

    return parts
