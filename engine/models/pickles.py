"""The tensors of a model's weights: of safetensors files one at a time, and of pickles, kept as safetensors once they
were read."""

import ctypes
import hashlib
import json
import mmap
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, cast

import torch

from interlock.engine.errors import DiskError, UnavailableError, reason
from interlock.engine.models.layout import INDEX as WHOLE_INDEX
from interlock.engine.models.layout import WEIGHTS, PickleOnly, modules_of, read_object, settings_of
from interlock.engine.models.registry import Head, ModelSpec, Output
from interlock.engine.record import atomic

NAME = "pytorch_model.bin"
INDEX = f"{NAME}.index.json"
PICKLES = (NAME, INDEX, "pytorch_model-*-of-*.bin", f"*/{NAME}")
"""What they are called in a repository."""
COMPLETE = "complete"


def may_read_pickles(spec: ModelSpec) -> bool:
    """Tell whether somebody vouches for the pickles of a model."""
    return spec.allow_pickle or bool(spec.pickle_sha256)


def pickles_of(path: Path) -> dict[Path, Path]:
    """List the pickles in place of which a model lacks safetensors, each with the file that it becomes, both relative
    to `path`. Raises UnavailableError for an index that names other files than those of the model's directory."""
    found: dict[Path, Path] = {}
    if not (path / WEIGHTS).is_file() and not (path / WHOLE_INDEX).is_file():
        if (path / INDEX).is_file():
            names = [Path(name) for name in sorted(set(_indexed(path).values()))]
            if lacking := [name for name in names if not (path / name).is_file()]:
                raise UnavailableError(f"{path} lacks {lacking[0]}: fetch the model again")
            found = {name: name.with_suffix(".safetensors") for name in names}
        elif (path / NAME).is_file():
            found = {Path(NAME): Path(WEIGHTS)}
    for module in modules_of(path):
        old = Path(module.path) / NAME
        if module.path and (path / old).is_file() and not (path / module.path / WEIGHTS).is_file():
            found[old] = old.with_name(WEIGHTS)
    return found


def in_safetensors(path: Path, spec: ModelSpec, home: Path, *, write: bool = True) -> Path:
    """Find the directory that has the model of `path` in safetensors: `path` itself where nothing in it is a pickle
    only, or nobody allowed to read what is; else one in `home`, which is made once.

    Without `write` it is only looked for, and `path` stands for one that could be made. Raises UnavailableError, with
    the reason, for a pickle that is not the one that is pinned, or that is anything but plain tensors.
    """
    pickles = pickles_of(path)
    return (_kept(path, pickles, settings_of(path), spec, home, write=write) or path) if pickles else path


def heads_in_safetensors(path: Path, spec: ModelSpec, home: Path, *, write: bool = True) -> dict[Head, Path]:
    """Find the heads beside the network in `path` that what `spec` gives may need: as they are, or converted once.

    Without `write` those are left out that could be converted. Raises UnavailableError for one that a row of the
    registry has and `path` lacks, and, with the reason, for a pickle that may not be read.
    """
    found: dict[Head, Path] = {}
    for head in heads_for(spec):
        old, new = Path(f"{head}.pt"), Path(f"{head}.safetensors")
        if (path / new).is_file():
            found[head] = path / new
        elif (path / old).is_file():
            target = _kept(path, {old: new}, [], spec, home, write=write)
            if target:
                found[head] = target / new
            elif not spec.allow_pickle and head not in spec.head_sha256:
                raise PickleOnly(path / old)
        elif head in spec.head_sha256:
            raise UnavailableError(f"{path} lacks {old}: fetch the model again")
    return found


def heads_for(spec: ModelSpec) -> list[Head]:
    """List the heads that a model computes with what it is to give, where it has them."""
    of: dict[Output, Head] = {"sparse": "sparse_linear", "tokens": "colbert_linear"}
    return [of[output] for output in spec.gives if output in of]


def _kept(
    path: Path, pickles: Mapping[Path, Path], settings: Sequence[Path], spec: ModelSpec, home: Path, *, write: bool
) -> Path | None:
    """The directory in `home` that has these pickles of `path` in safetensors, and its settings as they are; None where
    there is none and nobody allowed to make it, or it is not to be made."""
    with atomic.reading(path):
        target = home / spec.key / _key(path, pickles)
    if _serves(target, spec):
        return target
    if not write or not all(spec.allow_pickle or _pin(spec, old) for old in pickles):
        return None
    with atomic.alone(target.parent):
        if not _serves(target, spec):
            shutil.rmtree(target, ignore_errors=True)
            _make(path, pickles, settings, spec, target)
    return target


def _pin(spec: ModelSpec, old: Path) -> str | None:
    """The SHA-256 that a row of the registry gives for a pickle."""
    heads = {f"{head}.pt": pin for head, pin in spec.head_sha256.items()}
    return heads.get(old.name) if old.suffix == ".pt" else spec.pickle_sha256


def _make(path: Path, pickles: Mapping[Path, Path], settings: Sequence[Path], spec: ModelSpec, target: Path) -> None:
    """Write the model of `path` into `target`: its settings as they are, its pickles as safetensors."""
    origin: dict[str, str] = {}
    for file in settings:
        atomic.write_bytes(target / file.relative_to(path), atomic.content(file))
        (target / file.relative_to(path)).chmod(0o600)  # a link may have led to what is nobody else's
    for old, new in pickles.items():
        with atomic.opened(path / old) as handle:  # whatever lies at the path later, this one is read
            origin[str(old)] = _convert(handle, path / old, spec, target / new)
    if settings and (path / INDEX).is_file():
        table = {name: str(pickles[Path(file)]) for name, file in _indexed(path).items()}
        atomic.write_bytes(target / WHOLE_INDEX, json.dumps({"weight_map": table}).encode())
    made = {str(new): _stamp((target / new).stat()) for new in pickles.values()}
    atomic.write_bytes(target / COMPLETE, json.dumps({"pickles": origin, "made": made}).encode())


def _serves(target: Path, spec: ModelSpec) -> bool:
    """Whether a directory was finished, is as it was made, and comes from the pickle that is pinned, if one is."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        told = json.loads(atomic.content(target / COMPLETE))
        as_made = all(_stamp((target / name).stat()) == stamp for name, stamp in told["made"].items())
        pins = {} if spec.allow_pickle else {old: _pin(spec, Path(old)) for old in told["pickles"]}
        return as_made and all(not pin or told["pickles"][old] == pin for old, pin in pins.items())
    return False


def is_complete(target: Path) -> bool:
    """Tell whether a directory of the model cache was finished."""
    return (target / COMPLETE).exists()


def _convert(handle: BufferedReader, old: Path, spec: ModelSpec, new: Path) -> str:
    """Write the tensors of the pickle that is open, and lies at `old`, to `new`; returns the pickle's SHA-256."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    file, before = Path(f"/proc/self/fd/{handle.fileno()}"), _stamp(os.fstat(handle.fileno()))
    digest = hashlib.file_digest(handle, "sha256").hexdigest()
    pin = _pin(spec, old)
    if not spec.allow_pickle and digest != pin:
        raise UnavailableError(f"{old} has SHA-256 {digest}, expected {pin}: delete that copy and fetch it again")
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        state = dict(dict.items(loaded)) if isinstance(loaded, dict) else {}  # what it says of itself is its own
        tensors = _plain(state, 2 * before[1])
    except Exception as error:  # what the loader raises for a program that does not end well is beyond counting
        # torch's own words advise its unrestricted loader; of them only what was refused is said.
        foreign = re.search(r"GLOBAL (\S+)", str(error))
        cause = f"its pickle would call {foreign[1]}, which was not run" if foreign else reason(error)
        if cause.startswith("Weights only"):
            cause = "it is more than plain tensors, and nothing of it was run"
        raise UnavailableError(f"{old} cannot be read as weights ({cause}): use a revision with safetensors") from error
    with atomic.replacing(new) as partial:
        try:
            save_file(tensors, partial, {"format": "pt"})
        except SafetensorError as error:
            raise DiskError(f"cannot write {new}: {reason(error)}; free space or set INTERLOCK_CACHE") from error
    if before != _stamp(os.fstat(handle.fileno())):
        raise UnavailableError(f"{old} changed while its weights were read: start again")
    return digest


def _plain(state: Mapping[Any, Any], most: int) -> dict[str, torch.Tensor]:
    """Take tensors that share no memory out of a state, by their names. Raises ValueError for anything else in it, and
    where they would take more than `most` bytes."""
    kinds = (torch.Tensor, torch.nn.Parameter)
    if not state or not all(isinstance(name, str) and type(each) in kinds for name, each in state.items()):
        raise ValueError("it is not one state of tensors")
    if "__metadata__" in state or any(name != name.encode(errors="replace").decode() for name in state):
        raise ValueError("a tensor has a name that no file can hold")
    if sum(each.numel() * each.element_size() for each in state.values()) > most:
        raise ValueError("its tensors are larger than the file")
    seen: set[int] = set()
    tensors: dict[str, torch.Tensor] = {}
    for name, each in state.items():
        place, whole = each.untyped_storage().data_ptr(), each.detach().contiguous()
        tensors[name] = whole.clone() if place in seen else whole  # tied ones share their memory
        seen.add(place)
    return tensors


def _stamp(status: os.stat_result) -> list[int]:
    """What changes with the contents of a file: inode, bytes, and the times of its last changes."""
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _indexed(path: Path) -> dict[str, str]:
    """Which file has which tensor, where weights are spread over several pickles."""
    table = read_object(path / INDEX).get("weight_map")
    names = table.values() if isinstance(table, dict) and table else [None]
    if not all(isinstance(each, str) and re.fullmatch(r"[\w.-]+\.bin", each, re.ASCII) for each in names):
        raise UnavailableError(f"{path / INDEX} lacks a weight_map that names the weight files")
    return cast(dict[str, str], table)


def _key(path: Path, pickles: Iterable[Path]) -> str:
    """A name for the files of a model as they lie here now: other files have another, wherever they lie."""
    files = sorted({*settings_of(path), *(path / old for old in pickles)})
    stamps = "\n".join(f"{file.resolve()}:{_stamp(file.stat())}" for file in files)
    return hashlib.sha256(stamps.encode(errors="surrogateescape")).hexdigest()[:16]


STORED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}


class TensorFiles(Mapping[str, torch.Tensor]):
    """Every tensor of some files by name; each look-up reads it anew. ValueError for a file that is damaged, and for a
    tensor of numbers that are not computed with."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._places = {name: place for file in files for name, place in _header(file).items()}

    def __getitem__(self, name: str) -> torch.Tensor:
        file, start, kind, shape = self._places[name]
        if kind not in STORED:
            raise ValueError(f"{file}: {name} has numbers of type {kind}, which is not supported")
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
        if name != "__metadata__"
    }
