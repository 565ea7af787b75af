"""A network whose weights stay on the host: the parts that are computed one after the other, each on the device only
while it is computed."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from interlock.engine.gpu.device import Device


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

    A stage with others inside it stays for as long as those are computed; tables of tokens never come.
    """
    layers = {id(layer) for layer in layers_of(network)}
    if not layers:
        return 0
    sizes = {
        id(module): sum(tensor.numel() * tensor.element_size() for tensor in stage)
        for (module, _), stage in zip(walk(network), stages_of(network), strict=True)
        if not isinstance(module, nn.Embedding)
    }

    def most(module: nn.Module) -> int:
        if id(module) in layers:
            return 2 * max(sizes[layer] for layer in layers)
        return sizes.get(id(module), 0) + max(map(most, module.children()), default=0)

    return most(network)


Flats = Mapping[torch.dtype, Tensor]


class Stage:
    """A module of a replica with its tensors, and the piece of the host master that holds them."""

    def __init__(
        self, module: nn.Module, places: Sequence[tuple[Tensor, TensorSlice]], master: Flats, *, is_layer: bool
    ) -> None:
        self.module = module
        self.is_layer = is_layer
        self._places = places
        self._spans = _spans(place for _, place in places)
        self.host = {dtype: master[dtype][start:stop] for dtype, (start, stop) in self._spans.items()}

    def point_to(self, flats: Flats, *, piece: bool = False) -> None:
        """Let its tensors be views of `flats`: laid out as the whole master, or (`piece`) as this stage alone."""
        for tensor, place in self._places:
            tensor.data = place.view(flats[place.dtype], self._spans[place.dtype][0] if piece else 0)


class Streaming:
    """Streams the stages of one replica until `end`."""

    def __init__(self, stages: Sequence[Stage], device: Device) -> None:
        self._device = device
        self._layers = [stage for stage in stages if stage.is_layer]
        self._slots: list[dict[torch.dtype, Tensor]] = [{}, {}]
        self._held: dict[int, int] = {}  # slot -> the layer whose weights it holds
        self._hooks: list[RemovableHandle] = []
        for number, layer in enumerate(self._layers):
            self._hooks.append(layer.module.register_forward_pre_hook(lambda *_, number=number: self._enter(number)))
            self._hooks.append(layer.module.register_forward_hook(lambda *_, number=number: self._follow(number)))
        for stage in (stage for stage in stages if not stage.is_layer and stage.host):
            if isinstance(stage.module, nn.Embedding):  # gigabytes of which a forward looks up some rows
                self._hooks.append(stage.module.register_forward_pre_hook(_to_host))
                self._hooks.append(stage.module.register_forward_hook(lambda *found: found[-1].to(device.torch)))
                continue
            self._hooks.append(stage.module.register_forward_pre_hook(lambda *_, stage=stage: self._visit(stage)))
            self._hooks.append(
                stage.module.register_forward_hook(
                    lambda *_, stage=stage: self._leave(stage),
                    always_call=True,  # it must also leave when memory runs out while it is computed
                )
            )

    def end(self) -> None:
        """Stop; the weights are on the host, and the slots are given back."""
        for hook in self._hooks:
            hook.remove()
        self.rest()

    def rest(self) -> None:
        """Leave nothing on the device until the next forward, whatever became of the last."""
        if self._slots[0]:
            self._device.join_copies()  # one may be on its way into memory that others are given now
        for layer in self._layers:
            layer.point_to(layer.host, piece=True)
        self._slots = [{}, {}]
        self._held = {}

    def _enter(self, number: int) -> None:
        """A layer is about to be computed: its weights are here, and copies wait for the layers before it alone."""
        if not self._slots[0]:
            self._slots = [self._slot(), self._slot()]
        self._device.hold_copies()
        self._fill(number)
        self._device.join_copies()

    def _follow(self, number: int) -> None:
        """A layer was issued: the next one's weights come while it is computed. Where they cannot be pinned their copy
        keeps this thread, so it is not issued before."""
        if number + 1 < len(self._layers):
            self._fill(number + 1)

    def _slot(self) -> dict[torch.dtype, Tensor]:
        """Make room for the largest layer."""
        sizes: dict[torch.dtype, int] = {}
        for dtype, piece in (held for layer in self._layers for held in layer.host.items()):
            sizes[dtype] = max(sizes.get(dtype, 0), len(piece))
        return {dtype: torch.empty(size, dtype=dtype, device=self._device.torch) for dtype, size in sizes.items()}

    def _fill(self, number: int) -> None:
        layer, slot = self._layers[number], number % 2
        if self._held.get(slot) == number:
            return
        self._held.pop(slot, None)
        with self._device.copying():
            pieces = {dtype: self._slots[slot][dtype][: len(piece)] for dtype, piece in layer.host.items()}
            for dtype, piece in layer.host.items():
                pieces[dtype].copy_(piece, non_blocking=True)
        layer.point_to(pieces, piece=True)
        self._held[slot] = number

    def _leave(self, stage: Stage) -> None:
        with suppress(RuntimeError):  # of a lost device, which says so itself
            stage.point_to(stage.host, piece=True)

    def _visit(self, stage: Stage) -> None:
        self.rest()
        pieces = {dtype: torch.empty_like(piece, device=self._device.torch) for dtype, piece in stage.host.items()}
        for dtype, piece in stage.host.items():
            pieces[dtype].copy_(piece, non_blocking=True)
        stage.point_to(pieces, piece=True)


def _to_host(_: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(each.cpu() for each in given)


def _spans(places: Iterable[TensorSlice]) -> dict[torch.dtype, tuple[int, int]]:
    """By precision: from the first value of the first place to the last of the last; they stand together."""
    spans: dict[torch.dtype, tuple[int, int]] = {}
    for place in places:
        start, stop = spans.get(place.dtype, (place.start, place.stop))
        spans[place.dtype] = (min(start, place.start), max(stop, place.stop))
    return spans
