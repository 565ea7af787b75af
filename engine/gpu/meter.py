"""Charges the tensors that a thread computes to a ledger, and takes them off it when their memory really ends.

A `Meter` sees every operation of the thread that entered it, real or fake, also inside composite operations and under
`torch.inference_mode()`. A storage is charged once, when an operation creates it; views of it, and host tensors that
only pass through, are not. It is taken off when the last tensor on it has died, on whichever thread that is.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, partial
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

ROUND = 512
"""Bytes: an allocation takes whole ones."""

Operation = Any  # an OpOverload or a HigherOrderOperator; torch exports neither name

_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_LIVE: dict[tuple[int, int], "weakref.ref[torch.UntypedStorage]"] = {}
"""What is charged, by ledger and storage. Each reference's callback keeps its ledger: no key ever means two things."""


class Ledger(Protocol):
    """Where storages are charged."""

    def charge(self, tensor: torch.Tensor, size: int) -> int:
        """Take `size` bytes for a new storage, whose first tensor is `tensor`; return how many that takes.

        Raises torch.OutOfMemoryError for what does not fit.
        """

    def free(self, taken: int) -> None:
        """Give back what a charge took; called on any thread, in the middle of anything."""


class MemoryEffect(Enum):
    """What an operation can do to memory."""

    COMPOSITE = "is made of other operations"
    QUIET = "creates no storage"
    CREATES = "may create storages"


class Meter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Charges what the thread within computes; may be entered by several threads, and again within itself.

    `narrow` charges float32 at half its bytes: for a card that would hold in float16 what the host computes in float32.
    """

    supports_higher_order_operators = True

    def __init__(self, ledger: Ledger, *, narrow: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger = ledger
        self.narrow = narrow

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise every operation passes through, and the first imports, the whole compiler

    # The stack of modes is the thread's own, but what else the base class does here is not: it keeps flags for the
    # compiler in globals and on the instance, which threads would undo for each other.
    def __enter__(self) -> "Meter":
        _push_mode(self)
        return self

    def __exit__(self, *exception: object) -> None:
        _pop_mode()

    def __torch_dispatch__(
        self, func: Operation, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        effect = _effect_of(func)
        if effect is MemoryEffect.COMPOSITE:
            with self:
                return func.decompose(*args, **kwargs)
        if effect is MemoryEffect.QUIET:
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        for tensor in (out,) if isinstance(out, torch.Tensor) else _tensors(out):
            self._look(tensor, args, kwargs)
        return out

    def _look(self, tensor: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:  # a layout without one: packed weights, sparse
            return
        key = (id(self.ledger), storage._cdata)
        size = storage.nbytes()
        if key in _LIVE or not size:
            return
        # Some kernels return an input where their schema does not say so; what comes in was charged where it was made.
        if any(_address(given) == storage._cdata for given in _tensors((*args, *kwargs.values()))):
            return
        if self.narrow and tensor.dtype is torch.float32:
            size = (size + 1) // 2
        taken = self.ledger.charge(tensor, size)
        # torch keeps the Python object of a storage for as long as any tensor uses it: its end is the memory's
        _LIVE[key] = weakref.ref(storage, partial(_settle, key, self.ledger, taken))


def _settle(key: tuple[int, int], ledger: Ledger, taken: int, _: object) -> None:
    _LIVE.pop(key, None)
    ledger.free(taken)


@cache
def _effect_of(func: Operation) -> MemoryEffect:
    if not hasattr(func, "_schema"):  # one of a higher order
        return MemoryEffect.CREATES
    if func is torch.ops.prim.device.default:  # fake tensors answer it themselves
        return MemoryEffect.QUIET
    if _COMPOSITE in func.py_kernels or torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE):
        return MemoryEffect.COMPOSITE
    returns = func._schema.returns
    fresh = [value for value in returns if value.alias_info is None and "Tensor" in str(value.type)]
    return MemoryEffect.CREATES if fresh else MemoryEffect.QUIET


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values if isinstance(values, list | tuple) else ():
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _address(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:
        return 0
