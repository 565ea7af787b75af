"""The tensors of safetensors files, read one at a time into memory of their own.

The library's own loader maps the file: what is written into it later is computed with, one that is cut short ends the
process, and its pages count in the resident set beside every copy made of them. On a host with a memory ceiling that
doubles what attaching a model costs. Format: huggingface.co/docs/safetensors.
"""

import ctypes
import json
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch

STORED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}


class TensorFiles(Mapping[str, torch.Tensor]):
    """Every tensor of some files by name; each look-up reads it anew. ValueError for a file that is damaged."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._places = {name: place for file in files for name, place in _header(file).items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        file, start, kind, shape = self._places[name]
        tensor = torch.empty(shape, dtype=STORED[kind])
        if tensor.numel():
            with file.open("rb") as handle:
                handle.seek(start)
                view = tensor.view(-1).view(torch.uint8).numpy().data
                if handle.readinto(view) != len(view):
                    raise ValueError(f"{file} ends within {name}")
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def unmap(tensors: Iterable[torch.Tensor], files: Sequence[Path]) -> None:
    """Give each tensor memory of its own; pages of `files` that it was mapped from are let go as they are copied."""
    mapped = _mapped(files)
    for tensor in tensors:
        before = tensor.data
        tensor.data = before.clone()
        if any(before.data_ptr() in place for place in mapped):
            _let_go(before)


def _mapped(files: Sequence[Path]) -> list[range]:
    """The addresses at which this process has the files mapped; none where no system tells."""
    names, ranges = {str(file.resolve()) for file in files}, []
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            place, _, rest = line.partition(" ")
            if rest.split(maxsplit=4)[-1] in names:
                start, stop = (int(address, 16) for address in place.split("-"))
                ranges.append(range(start, stop))
    return ranges


def _let_go(mapped: torch.Tensor) -> None:
    """Take the whole pages of a mapped tensor out of the resident set; they stay in their file."""
    start = -(-mapped.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (mapped.data_ptr() + mapped.nbytes - start) // mmap.PAGESIZE * mmap.PAGESIZE
    if size > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def _header(file: Path) -> dict[str, tuple[Path, int, str, list[int]]]:
    """Where each tensor of a file begins, its type and shape."""
    with file.open("rb") as handle:
        size = int.from_bytes(handle.read(8), "little")
        if size > file.stat().st_size:
            raise ValueError(f"{file} is not a safetensors file")
        table = json.loads(handle.read(size))
    return {
        name: (file, 8 + size + entry["data_offsets"][0], entry["dtype"], entry["shape"])
        for name, entry in table.items()
        if name != "__metadata__" and entry["dtype"] in STORED
    }
