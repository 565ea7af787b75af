"""The tensors of safetensors files, read one at a time into memory of their own.

The library's own loader maps the file, and its pages count in the resident set beside every copy made of them; on a
host with a memory ceiling that doubles what attaching a model costs. Format: huggingface.co/docs/safetensors.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}


class TensorFiles(Mapping[str, torch.Tensor]):
    """Every tensor of some files by name; each look-up reads it anew. ValueError for a file that is damaged."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._places = {name: place for file in files for name, place in _header(file).items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        file, start, kind, shape = self._places[name]
        tensor = torch.empty(shape, dtype=DTYPES[kind])
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
        if name != "__metadata__" and entry["dtype"] in DTYPES
    }
