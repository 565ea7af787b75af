"""Weights between the host and a device: a flat host master, attached in one copy, dropped without one.

Weights never change, so releasing a device copies nothing back: what is on it is dropped, and the host master, where it
is kept, attaches the model again at the speed of a copy. On the host's own processor attaching means reading the files
into the layout that its kernels want.
"""

import copy
import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from interlock.engine.errors import InterlockError, UnavailableError, reason
from interlock.engine.gpu.device import Device
from interlock.engine.models.card import ModelCard
from interlock.engine.models.heads import load_heads
from interlock.engine.models.layout import modules_of
from interlock.engine.models.networks import gte
from interlock.engine.models.networks.attention import register, spread_heads
from interlock.engine.models.networks.batching import forgetting
from interlock.engine.models.networks.checkpoint import Shape, Weights
from interlock.engine.models.networks.fused import fuse, pack_for_cpu
from interlock.engine.models.networks.network import PackedEncoder, PackedPairEncoder, PackedTermEncoder
from interlock.engine.models.networks.onnx import OnnxNetwork
from interlock.engine.models.networks.static import StaticTable
from interlock.engine.models.networks.streaming import (
    Stage,
    Streaming,
    TensorSlice,
    layers_of,
    size_of,
    stages_of,
    walk,
)
from interlock.engine.models.pickles import TensorFiles, unmap
from interlock.engine.models.registry import without_code
from interlock.engine.record.words import several

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int8": torch.float32}
"""What weights are read in; in int8 only the linear maps are, once they are on the CPU."""
ALIGNMENT = 512
"""Bytes: every tensor begins where an allocator would have begun it."""
_BUILDING = threading.Lock()
"""transformers sets torch's default precision, that of all threads, while it builds a model, and puts back what it
found: where two are built at a time the second puts back that of the first."""


class Attached:
    """A model on a device; it stays there until the last reference to it is gone."""

    streams = False

    def __init__(self, network: nn.Module, device: Device) -> None:
        self.network = network
        self.bytes = size_of(network) + int(getattr(network, "beside", 0))
        device.hold(network, self.bytes)

    def clear(self) -> None:
        """Take off the device what a forward that failed has left there beside the weights."""
        return

    def restore(self) -> None:
        """Undo whatever makes it slower than it could be."""


class Replica(Attached):
    """A host master's weights on one device; they can also be streamed to it, stage by stage."""

    def __init__(self, master: "Master", device: Device, *, streamed: bool = False) -> None:
        """Attach. Raises what the device raises where there is no room; then nothing stays on it."""
        network, self._stages = master.twin()
        self._device, self._master = device, master
        self._streaming: Streaming | None = None
        super().__init__(network, device)
        self.streams = bool(layers_of(network))
        if streamed:
            self.stream()
        else:
            self._attach()

    @property
    def streamed(self) -> bool:
        return self._streaming is not None

    def stream(self) -> None:
        """Drop the weights from the device and copy each stage's when it is computed."""
        if self._streaming is None:
            for stage in self._stages:
                stage.point_to(self._master.flats)
            self._streaming = Streaming(self._stages, self._device)

    def clear(self) -> None:
        if self._streaming:
            self._streaming.rest()

    def restore(self) -> None:
        if self._streaming:
            self._streaming.end()
            self._streaming = None
            self._attach()

    def _attach(self) -> None:
        with self._device.computing():
            flats = {
                dtype: torch.empty_like(flat, device=self._device.torch).copy_(flat, non_blocking=True)
                for dtype, flat in self._master.flats.items()
            }
            for stage in self._stages:
                stage.point_to(flats)


class Master:
    """One model's weights in host memory, laid end to end, one flat tensor for each precision."""

    def __init__(self, network: nn.Module) -> None:
        """Take over `network`: its tensors become views of the flat ones."""
        self._network = network
        stages = stages_of(network)
        self.flats, self._slices = _flattened([tensor for stage in stages for tensor in stage])
        self._stages = [[id(tensor) for tensor in stage] for stage in stages]
        self.bytes = sum(flat.numel() * flat.element_size() for flat in self.flats.values())
        self.unpinned = ""
        """Why it is copied slower than it could be; empty where it is not."""

    def pin(self, device: Device) -> None:
        """Let it be copied to `device` at full speed for as long as it lives."""
        for flat in self.flats.values():
            pinned = device.pin(flat)
            weakref.finalize(self, pinned.release)
            self.unpinned = self.unpinned or pinned.refused

    def twin(self) -> tuple[nn.Module, list[Stage]]:
        """Copy the network, with tensors of its own that point to this master's memory, and its stages."""
        memo: dict[int, Any] = {id(tensor): _like(tensor) for stage in stages_of(self._network) for tensor in stage}
        for module in self._network.modules():  # a tokenizer is large, and nothing here changes one
            memo |= {id(value): value for name, value in vars(module).items() if name in ("tokenizer", "processor")}
        network = copy.deepcopy(self._network, memo)
        layers = {id(layer) for layer in layers_of(network)}
        return network, [
            Stage(
                module,
                [(memo[number], self._slices[number]) for number in numbers],
                self.flats,
                is_layer=id(module) in layers,
            )
            for (module, _), numbers in zip(walk(network), self._stages, strict=True)
        ]


def load(card: ModelCard) -> nn.Module:
    """Read the network of `card` with its weights, on the host.

    Raises UnavailableError for weights that do not load, or are not those that the run looked at.
    """
    looked = card.snapshot.stamped()
    try:
        made = _onnx if card.onnx else _table if card.static else _packed if card.ours else _graph
        network = made(card)
    except InterlockError:
        raise
    except Exception as error:  # what a foreign architecture raises for settings that do not fit is beyond counting
        shaped = "ignore_mismatched_sizes" in str(error)  # whose report only a terminal would see
        why = "its weights have other shapes than its config.json says" if shaped else reason(error)
        if card.config.get("auto_map"):
            raise _foreign(card, why) from error
        raise UnavailableError(f"cannot load model {card.key} from {card.snapshot.path}: {why}") from error
    card.snapshot.check_unchanged(card.key, looked)
    return network


def attach_to_host(card: ModelCard, device: Device, load: Callable[[ModelCard], nn.Module] = load) -> Attached:
    """Load the model of `card` on the host's processor, in the layout that its kernels want."""
    network = load(card)
    if isinstance(network, PackedEncoder):
        network.pack_for_cpu(int8=card.dtype == "int8")
    elif card.packed:
        pack_for_cpu(network)
    attached = Attached(network, device)
    device.trim()
    return attached


def _flattened(tensors: Sequence[Tensor]) -> tuple[dict[torch.dtype, Tensor], dict[int, TensorSlice]]:
    """Lay tensors flat in this order; each gives its own memory back as it is copied."""
    slices: dict[int, TensorSlice] = {}
    used: Counter[torch.dtype] = Counter()
    for tensor in tensors:
        slices[id(tensor)] = TensorSlice(tensor.dtype, used[tensor.dtype], tensor.shape)
        step = ALIGNMENT // tensor.element_size()
        used[tensor.dtype] += math.ceil(tensor.numel() / step) * step
    flats = {dtype: torch.empty(size, dtype=dtype) for dtype, size in used.items()}
    for tensor in tensors:
        piece = slices[id(tensor)]
        tensor.data = piece.view(flats[piece.dtype]).copy_(tensor.data)
    return flats, slices


def _like(tensor: Tensor) -> Tensor:
    """Another tensor object on the same memory."""
    alias = tensor.detach()
    return nn.Parameter(alias, requires_grad=False) if isinstance(tensor, nn.Parameter) else alias


def _onnx(card: ModelCard) -> OnnxNetwork:
    """A graph of onnxruntime, with the maps that sentence-transformers has behind the pooling."""
    root, after = card.snapshot.path, list[nn.Module]()
    for module in modules_of(root):
        if module.kind == "Dense":
            from sentence_transformers.models import Dense

            after.append(Dense.load(str(root / module.path)).eval())
    return OnnxNetwork(card.key, card.snapshot.weights[0], after, card.snapshot.bytes)


def _table(card: ModelCard) -> StaticTable:
    tensors = {name: tensor for file in card.snapshot.weights for name, tensor in load_file(file).items()}
    table = StaticTable.from_state(tensors, DTYPES[card.dtype])
    unmap(table.parameters(), card.snapshot.weights)
    return table


def _packed(card: ModelCard) -> PackedEncoder:
    network = {"dense": PackedEncoder, "sparse": PackedTermEncoder, "scores": PackedPairEncoder}[card.network_kind]
    built = network.from_state(card.config, TensorFiles(card.snapshot.weights), DTYPES[card.dtype])
    if card.types:
        tensors = Weights(TensorFiles(card.snapshot.weights), DTYPES[card.dtype])
        built.embeddings.types = tensors.types(Shape(card.config))
    built.heads = load_heads(card.snapshot.heads, built.width, DTYPES[card.dtype])
    return built


def _graph(card: ModelCard) -> nn.Module:
    """Any other architecture, as sentence-transformers assembles it; its own code stays off. Rows of a
    cross-encoder are padded, and what follows its score is applied by who computes with it."""
    from sentence_transformers import CrossEncoder, SentenceTransformer

    spread_heads()
    gte.register()
    attention = register() if card.packed else card.attention
    how: dict[str, Any] = {
        "device": "cpu",
        "local_files_only": True,
        "trust_remote_code": False,
        "config_kwargs": {"use_cache": False},  # keys and values of every layer would be kept; nobody asks for them
        "model_kwargs": {"dtype": DTYPES[card.dtype], "use_safetensors": True, "attn_implementation": attention},
    }
    network: nn.Module
    with _BUILDING:
        if card.kind == "scores":
            how |= {"max_length": card.max_tokens, "activation_fn": nn.Identity()}
            network = CrossEncoder(str(card.snapshot.path), **how).eval()
        else:
            network = SentenceTransformer(str(card.snapshot.path), **how).eval()
    _check_read(card, network)
    unmap((*network.parameters(), *network.buffers()), card.snapshot.weights)
    forgetting(network)
    return fuse(network) if card.packed else network


def _check_read(card: ModelCard, network: nn.Module) -> None:
    """Raise UnavailableError where transformers drew numbers at random for what the files lack: it marks what it read
    of them. Nobody asks for what it pools itself, which many checkpoints are without."""
    from transformers import PreTrainedModel

    read = [each for each in network.modules() if isinstance(each, PreTrainedModel)]
    named = (pair for model in read for pair in model.named_parameters())
    needed = (pair for pair in named if card.kind == "scores" or "pooler" not in pair[0].split("."))
    drawn = [name for name, tensor in needed if not getattr(tensor, "_is_hf_initialized", False)]
    if drawn and card.config.get("auto_map"):
        raise _foreign(card, f"they lack {drawn[0]}")
    if drawn:
        raise UnavailableError(
            f"model {card.key}: {card.snapshot.path} lacks {several(len(drawn), 'tensor')} that its config.json asks "
            f"for, first {drawn[0]}: fetch the model again, or use another"
        )


def _foreign(card: ModelCard, why: str) -> UnavailableError:
    """Say of weights that do not fit the network of transformers which network they are of."""
    file, kind = card.snapshot.path / card.home / "config.json", card.config.get("model_type")
    return UnavailableError(
        f"model {card.key}: its weights are those of another network than {kind} ({why}), whose code (auto_map of "
        f"{file}) is never run: use {without_code(card.snapshot.source)}"
    )
