"""A network whose weights stay on the host: each stage's are on the device only while it is computed.

Layers use two slots in turn, so that the next layer is copied while this one is computed; any other stage gets memory
of its own for as long as it runs, and has the slots given back first. The mathematics is untouched, so the vectors are
the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from interlock.engine.gpu.device import Device
from interlock.engine.models.stages import TensorSlice

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

    def __init__(self, stages: Sequence[Stage], device: Device, *, in_turn: bool = False) -> None:
        """With `in_turn` a layer is copied when it is due, and nothing computed meanwhile."""
        self._device = device
        self._in_turn = in_turn
        self._layers = [stage for stage in stages if stage.is_layer]
        self._slots: list[dict[torch.dtype, Tensor]] = [{}, {}]
        self._held: dict[int, int] = {}  # slot -> the layer whose weights it holds
        self._hooks: list[RemovableHandle] = []
        for number, layer in enumerate(self._layers):
            self._hooks.append(layer.module.register_forward_pre_hook(lambda *_, number=number: self._enter(number)))
        for stage in (stage for stage in stages if not stage.is_layer and stage.host):
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
        """A layer is about to be computed: its weights are here, and the next one's are on their way."""
        self._fill(number)
        if self._in_turn:
            return
        self._device.join_copies()
        if number + 1 < len(self._layers):
            self._fill(number + 1)

    def _fill(self, number: int) -> None:
        slot = number % 2
        if self._held.get(slot) == number:
            return
        layer = self._layers[number]
        self._held.pop(slot, None)
        if not self._slots[slot]:  # as large as the largest layer, made when it is first needed
            sizes: dict[torch.dtype, int] = {}
            for dtype, piece in (held for layer in self._layers for held in layer.host.items()):
                sizes[dtype] = max(sizes.get(dtype, 0), len(piece))
            self._slots[slot] = {
                dtype: torch.empty(size, dtype=dtype, device=self._device.torch) for dtype, size in sizes.items()
            }
        with self._device.computing() if self._in_turn else self._device.copying():
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


def _spans(places: Iterable[TensorSlice]) -> dict[torch.dtype, tuple[int, int]]:
    """By precision: from the first value of the first place to the last of the last; they stand together."""
    spans: dict[torch.dtype, tuple[int, int]] = {}
    for place in places:
        start, stop = spans.get(place.dtype, (place.start, place.stop))
        spans[place.dtype] = (min(start, place.start), max(stop, place.stop))
    return spans
