"""A CUDA that is not there: tensors of a GPU with shape, place and precision, and no content.

torch needs a device guard for CUDA before it lets a tensor claim to be there; a build for the CPU has none. `guard`
compiles four lines of C++ that register one that does nothing. Within `FakeCuda` what is on the host is computed, what
is on a GPU has only its shape: an operation whose tensors lie on two devices raises, as it would there. Every operation
of a GPU is counted, and every time the host would have waited for one.
"""

import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from interlock.engine.gpu.meter import MemoryEffect, _effect_of
from interlock.engine.models.networks import streaming

SOURCE = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>)
"""
VIEWS = frozenset(
    [
        "view",
        "_unsafe_view",
        "expand",
        "slice",
        "transpose",
        "permute",
        "t",
        "unbind",
        "split",
        "split_with_sizes",
        "select",
        "unsqueeze",
        "squeeze",
        "squeeze_",
        "detach",
        "detach_",
        "alias",
        "as_strided",
        "lift_fresh",
        "device",
        "empty",
        "empty_like",
        "new_empty",
        "empty_strided",
        "reshape",
        "_reshape_alias",
        "unfold",
    ]
)
"""Operations that launch nothing."""


@cache
def guard() -> None:
    """Let tensors claim to be on a GPU; skips the test where nothing can be compiled."""
    if torch.version.cuda:
        return
    if (compiler := shutil.which("g++") or shutil.which("c++")) is None:
        pytest.skip("no C++ compiler for the device guard of a CUDA that is not there")
    folder = Path(mkdtemp(prefix="interlock-guard-"))
    (folder / "guard.cpp").write_text(SOURCE)
    home = Path(torch.__path__[0])
    subprocess.run(
        [compiler, "-std=c++20", "-O0", "-shared", "-fPIC", f"-I{home / 'include'}", str(folder / "guard.cpp"),
         "-o", str(folder / "guard.so"), f"-L{home / 'lib'}", "-lc10"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    torch.ops.load_library(str(folder / "guard.so"))
    shutil.rmtree(folder)


class FakeCuda(TorchDispatchMode):
    """The host computes, a GPU keeps shapes. `kernels` counts what it launches, `waits` what the host waits for."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        guard()
        super().__init__()
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.kernels: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.pinned: dict[int, Tensor] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("pin_memory"):
            tensor = func(*args, **{**kwargs, "pin_memory": False})
            self.pinned[tensor.data_ptr()] = tensor
            return tensor
        if _effect_of(func) is MemoryEffect.COMPOSITE:
            with self:
                return func.decompose(*args, **kwargs)
        place = kwargs.get("device")
        asked = place is not None and torch.device(place).type == "cuda"
        if not asked and not any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        name = func._schema.name.rpartition("::")[2]
        if func is torch.ops.aten._local_scalar_dense.default:
            self.waits["item"] += 1
            return 1
        if name == "_to_copy" and place is not None and not asked:
            self.waits["to host"] += 1
            return torch.ones(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        if (name == "_to_copy" and asked and not isinstance(args[0], FakeTensor)) or (
            name == "copy_"
            and not isinstance(args[1], FakeTensor)
            and not (args[2:] or [kwargs.get("non_blocking")])[0]
        ):
            beside = kwargs.get("non_blocking") and args[0].data_ptr() in self.pinned
            self.waits["to device"] += not beside
        elif name not in VIEWS:
            self.kernels[name] += 1
        args, kwargs = tree_map_only(Tensor, self._fake, (args, kwargs))
        return self.mode.dispatch(func, types, args, kwargs)  # as under the mode, without a second way through torch

    def _fake(self, tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self.mode.from_tensor(tensor)


@contextmanager
def fake_cuda() -> Iterator[FakeCuda]:
    """Within, tensors may be on GPUs that are not there."""
    fake = FakeCuda()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.cuda, "_lazy_init", lambda: None)
        patched.setattr(fake_tensor, "CONSTANT_NUMEL_LIMIT", 0)
        patched.setattr(streaming.Stage, "point_to", _pointing(streaming.Stage.point_to))
        patched.setattr(streaming.TensorSlice, "view", _view)
        lifted = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        try:
            with fake:
                yield fake
        finally:
            torch._C._set_only_lift_cpu_tensors(lifted)


def _view(self: streaming.TensorSlice, flat: Tensor, origin: int = 0) -> Tensor:
    """The same in one step: half of the time goes into views, each of which torch describes anew in Python."""
    first, last = self.start - origin, self.stop - origin
    assert 0 <= first <= last <= flat.numel()
    strides = [prod(self.shape[place:]) for place in range(1, len(self.shape) + 1)]
    return flat.as_strided(self.shape, strides, flat.storage_offset() + first)


def _pointing(point_to: Any) -> Any:
    """A fake tensor does not see that its data went elsewhere."""

    def pointing(self: Any, flats: Any, *, piece: bool = False) -> None:
        point_to(self, flats, piece=piece)
        for tensor, place in self._places:
            tensor.fake_device = flats[place.dtype].device

    return pointing
