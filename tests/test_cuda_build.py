"""What the engine asks of a build of torch for CUDA is there, looked at without a driver; `make compat` has one."""

import ast
import contextlib
import operator
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import interlock.engine

pytestmark = pytest.mark.skipif(not torch.version.cuda, reason="this torch is built for CPUs; see `make compat`")
ENGINE = Path(next(iter(interlock.engine.__path__)))
ATTENTION = {
    "_flash_attention_forward": {"scale", "window_size_left", "window_size_right"},
    "_efficient_attention_forward": {"scale", "window_size"},
}


def names() -> Iterator[str]:
    """Every name of torch.cuda and torch._C that code of the engine mentions: `cuda.mem_get_info`."""
    for file in sorted(ENGINE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if text.startswith(("torch.cuda.", "torch._C._cuda", "torch.backends.cuda.")) and "(" not in text:
                yield text.removeprefix("torch.")


def test_every_name_that_the_engine_uses_is_in_the_build_for_cuda():
    used = sorted({*names()})
    assert used
    for name in used:
        operator.attrgetter(name)(torch)


@pytest.mark.parametrize("name", ["cudaHostRegister", "cudaHostUnregister", "cudaGetErrorString"])
def test_the_runtime_can_pin_memory_that_is_there(name):
    assert callable(getattr(torch._C._cudart, name))


def test_without_a_driver_the_runtime_says_so():
    with contextlib.suppress(RuntimeError):
        torch.cuda.cudart()
        pytest.skip("there is a driver")
    assert not torch.cuda.is_available()


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_of_packed_rows_is_built_for_gpus_and_takes_what_it_is_given(name):
    schema = getattr(torch.ops.aten, name).default._schema
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA")
    keywords = {argument.name for argument in schema.arguments if argument.kwarg_only}
    assert keywords >= ATTENTION[name]
    positional = [argument.name for argument in schema.arguments if not argument.kwarg_only]
    assert positional[:3] == ["query", "key", "value"]
    assert positional.index("dropout_p") == (7 if "flash" in name else 8)
