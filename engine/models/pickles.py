"""Weights that were published as pickles only, kept as safetensors once they were read.

A pickle is a program. One is read only where its SHA-256 is pinned or the operator allowed its model; then every name
in it is looked at before anything of it runs, and torch's weights-only loader builds the tensors. Formats: the zip of
`torch.save`, pytorch.org/docs/stable/notes/serialization.html; opcodes, `pickletools`.
"""

import hashlib
import json
import pickletools
import shutil
import struct
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

from safetensors import SafetensorError

from interlock.engine.errors import DiskError, UnavailableError, reason
from interlock.engine.models.layout import modules_of, read_object
from interlock.engine.models.registry import ModelSpec
from interlock.engine.record import atomic

NAME = "pytorch_model.bin"
INDEX = f"{NAME}.index.json"
PICKLES = (NAME, INDEX, "pytorch_model-*-of-*.bin", f"*/{NAME}")
"""What they are called in a repository."""
BUILDERS = frozenset(
    {"collections OrderedDict", "torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"}
    | {f"torch {kind}Storage" for kind in ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char")}
    | {f"torch {kind}Storage" for kind in ("Byte", "Bool")}
)
"""What a state of plain tensors names, as the opcode GLOBAL has it. torch lets through more, such as `bytearray`, which
takes as much memory as it is told to."""
NAMING = frozenset({"STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4"})
"""Other ways to name or to make an object; `torch.save` uses none of them for tensors."""
PROGRAM = 64 << 20
"""Bytes of the longest program that is looked at; that of a thousand tensors takes a tenth of one MiB."""


def may_read_pickles(spec: ModelSpec) -> bool:
    """Tell whether somebody vouches for the pickles of a model."""
    return spec.allow_pickle or bool(spec.pickle_sha256)


def pickles_of(path: Path) -> dict[Path, Path]:
    """List the pickles in place of which a model lacks safetensors, each with the file that it becomes, both relative
    to `path`. Raises UnavailableError for an index that names no files of the model's directory."""
    found: dict[Path, Path] = {}
    if not (path / "model.safetensors").is_file() and not (path / "model.safetensors.index.json").is_file():
        names = sorted(set(_indexed(path).values())) if (path / INDEX).is_file() else [NAME]
        found = {Path(name): Path(name).with_suffix(".safetensors") for name in names if (path / name).is_file()}
        found = {old: Path("model.safetensors") if old.name == NAME else new for old, new in found.items()}
    for module in modules_of(path):
        old = Path(module.path) / NAME
        if module.path and (path / old).is_file() and not (path / module.path / "model.safetensors").is_file():
            found[old] = old.with_name("model.safetensors")
    return found


def in_safetensors(path: Path, spec: ModelSpec, home: Path, *, write: bool = True) -> Path:
    """Find the directory that has the model of `path` in safetensors: `path` itself where nothing in it is a pickle
    only, or nobody allowed to read what is; else one in `home`, which is made once.

    Without `write` it is only looked for, and `path` stands for one that could be made. Raises UnavailableError, with
    the reason, for a pickle that is not the one that is pinned, or that is anything but plain tensors.
    """
    pickles = pickles_of(path)
    if not pickles:
        return path
    target = home / spec.key / _key(path)
    if is_complete(target):
        return target
    if not write or not may_read_pickles(spec):
        return path
    stamps = _stamps(path, pickles)
    for old in pickles:
        _check_pinned(path / old, spec)
        check_program(path / old)
    with atomic.alone(target.parent):
        if is_complete(target):
            return target
        shutil.rmtree(target, ignore_errors=True)
        for file in _settings(path):
            atomic.write_bytes(target / file.relative_to(path), file.read_bytes())
        for old, new in pickles.items():
            _convert(path / old, target / new)
        if stamps != _stamps(path, pickles):
            raise UnavailableError(f"{path} changed while its weights were read: start again")
        if (path / INDEX).is_file():
            table = {name: str(pickles[Path(file)]) for name, file in _indexed(path).items()}
            text = json.dumps({"weight_map": table}, indent=1)
            atomic.write_bytes(target / "model.safetensors.index.json", text.encode())
        atomic.write_bytes(target / "complete", b"")
    return target


def is_complete(target: Path) -> bool:
    """Tell whether a directory of the model cache was finished."""
    return (target / "complete").exists()


def check_program(file: Path) -> None:
    """Look through what a pickle would do, and run none of it.

    Raises UnavailableError for a file that is not as `torch.save` writes it, that would unpack to more than it holds,
    or that names anything but plain tensors.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            programs = [each for each in members if each.filename.endswith("/data.pkl")]
            packed = any(each.compress_type != zipfile.ZIP_STORED for each in members)
            if packed or sum(each.file_size for each in members) > file.stat().st_size:
                raise UnavailableError(f"{file} unpacks to more than it holds: use a revision with safetensors")
            if len(programs) != 1 or programs[0].file_size > PROGRAM:
                raise UnavailableError(f"{file} is not one state of tensors: use a revision with safetensors")
            named = list(_named(archive.read(programs[0])))
    except (zipfile.BadZipFile, ValueError, EOFError, struct.error, NotImplementedError, RuntimeError) as error:
        raise UnavailableError(
            f"{file} is not as torch saves weights ({reason(error)}): use a revision with safetensors"
        ) from error
    if foreign := sorted(set(named) - BUILDERS):
        raise UnavailableError(
            f"{file} is not only weights (its pickle would call {foreign[0].replace(' ', '.')}; nothing of it was run):"
            " use a revision with safetensors"
        )


def _named(program: bytes) -> Iterator[str]:
    """What a pickle names, as `module name`; a way to name things that no state of tensors uses, by its opcode."""
    for opcode, argument, _ in pickletools.genops(program):
        if opcode.name == "GLOBAL":
            yield str(argument)
        elif opcode.name in NAMING:
            yield f"opcode {opcode.name}"


def _check_pinned(file: Path, spec: ModelSpec) -> None:
    """Raise UnavailableError for a pickle that nobody vouches for."""
    if spec.allow_pickle:
        return
    digest = atomic.sha256_of(file)
    if digest != spec.pickle_sha256:
        raise UnavailableError(
            f"{file} has SHA-256 {digest}, expected {spec.pickle_sha256}: delete that copy and fetch it again"
        )


def _convert(old: Path, new: Path) -> None:
    import torch
    from safetensors.torch import save_file

    try:
        state = torch.load(old, map_location="cpu", weights_only=True, mmap=True)
        fit = isinstance(state, dict) and all(
            isinstance(name, str) and type(each) in (torch.Tensor, torch.nn.Parameter) for name, each in state.items()
        )
    except Exception as error:  # what the loader raises for a program that does not end well is beyond counting
        raise UnavailableError(
            f"{old} cannot be read as weights ({reason(error)}): use a revision with safetensors"
        ) from error
    if not fit or sum(each.numel() * each.element_size() for each in state.values()) > 2 * old.stat().st_size:
        raise UnavailableError(f"{old} is not one state of tensors: use a revision with safetensors")
    seen: set[int] = set()
    tensors: dict[str, torch.Tensor] = {}
    for name, each in state.items():
        place = each.untyped_storage().data_ptr()
        # Tied tensors share their memory, and those of safetensors may not.
        whole = each.detach().contiguous()
        tensors[name] = whole.clone() if place in seen else whole
        seen.add(place)
    with atomic.replacing(new) as partial:
        try:
            save_file(tensors, partial, {"format": "pt"})
        except SafetensorError as error:
            raise DiskError(f"cannot write {new}: {reason(error)}; free space or set INTERLOCK_CACHE") from error


def _stamps(path: Path, pickles: Iterable[Path]) -> list[tuple[int, ...]]:
    """What changes with the contents of the files."""
    found = [(path / old).stat() for old in pickles]
    return [(each.st_ino, each.st_size, each.st_ctime_ns) for each in found]


def _indexed(path: Path) -> dict[str, str]:
    """Which file has which tensor, where weights are spread over several pickles."""
    table = read_object(path / INDEX).get("weight_map")
    names = table.values() if isinstance(table, dict) else [None]
    if not all(isinstance(each, str) and Path(each).name == each for each in names):
        raise UnavailableError(f"{path / INDEX} lacks a weight_map that names the weight files")
    return cast(dict[str, str], table)


def _settings(path: Path) -> list[Path]:
    """The files that stay as they are: settings, modules and tokenizer."""
    return sorted(
        file for pattern in ("*.json", "*.txt", "*.model") for file in path.rglob(pattern) if file.name != INDEX
    )


def _key(path: Path) -> str:
    """A name for the files of a model as they are now: other files have another."""
    files = sorted({*_settings(path), *(path / old for old in pickles_of(path))})
    stamps = "\n".join(
        f"{file.relative_to(path)}:{(status := file.stat()).st_size}:{status.st_mtime_ns}" for file in files
    )
    return hashlib.sha256(stamps.encode()).hexdigest()[:16]
