"""Where a model's files lie on this machine, if they do: hub cache, installed packages, or a directory.

Nothing here touches the network or runs code that a model brings along. A place counts only when it is complete:
every file that loading reads is there, through its links, with weights in safetensors.
"""

import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO

from engine.models.registry import ModelSpec
from engine.record import durable

PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model")
BLOCK = 4 << 20
COMMIT = re.compile(r"[0-9a-f]{40}")


class Missing(Exception):
    """Why one source does not have the model."""


def hub_cache() -> Path:
    """Where Hugging Face keeps snapshots: HF_HUB_CACHE, else HF_HOME/hub, else the user's cache."""
    if path := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(path).expanduser()
    home = os.environ.get("HF_HOME")
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "huggingface"
    return (Path(home).expanduser() if home else default) / "hub"


def model_cache() -> Path:
    """Where models joined from packages are kept: INTERLOCK_CACHE, else the user's cache."""
    if path := os.environ.get("INTERLOCK_CACHE"):
        return Path(path).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "interlock"


def local(source: str, spec: ModelSpec) -> tuple[Path, str | None]:
    """The complete snapshot that `source` has of `spec`, and its commit. Raises Missing, saying what lacks."""
    path, commit = _place(source, spec)
    check_complete(path)
    return path, commit


def _place(source: str, spec: ModelSpec) -> tuple[Path, str | None]:
    kind, _, name = source.partition(":")
    if kind == "hf":
        return _from_hub_cache(name, spec.revision)
    if kind == "pkg":
        return _from_packages(name.split("+"), spec), None
    path = Path(source).expanduser()
    if not path.is_dir():
        raise Missing("is not a directory")
    return path.resolve(), None


def _from_hub_cache(repo: str, revision: str) -> tuple[Path, str]:
    """The snapshot that `revision` stood for when it was last fetched."""
    home = hub_cache() / ("models--" + repo.replace("/", "--"))
    commit = revision
    if not COMMIT.fullmatch(revision):
        try:
            commit = (home / "refs" / revision).read_text().strip()
        except OSError:
            raise Missing(f"not in {home}") from None
    path = home / "snapshots" / commit
    if not path.is_dir():
        raise Missing(f"no snapshot {commit} in {home}")
    return path, commit


def _from_packages(names: Sequence[str], spec: ModelSpec) -> Path:
    """A model inside an installed package, located by its metadata; no code of the package runs."""
    try:
        files = [file for name in names for file in metadata.distribution(name).files or ()]
    except metadata.PackageNotFoundError as error:
        raise Missing(f"package {error.name} is not installed") from None
    if len(names) == 1:
        configs = [Path(str(file.locate())) for file in files if file.name in ("modules.json", "config.json")]
        if not configs:
            raise Missing("the package holds no model")
        return min((config.parent for config in configs), key=lambda path: len(path.parts)).resolve()
    parts = sorted((Path(str(file.locate())) for file in files if ".zip." in file.name), key=lambda path: path.name)
    if len(parts) != len(names):
        raise Missing(f"the packages hold {len(parts)} of {len(names)} parts")
    return _joined(parts, model_cache() / spec.key)


def _joined(parts: Sequence[Path], home: Path) -> Path:
    """The one zip that `parts` make, unpacked once into `home`."""
    digest = hashlib.sha256("".join(f"{part.name}:{part.stat().st_size}" for part in parts).encode()).hexdigest()[:16]
    target = home / digest
    if not (target / "complete").exists():
        archive = home / f"{digest}.zip"
        with durable.replacing(archive) as whole, whole.open("wb") as joined:
            for part in parts:
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, joined, BLOCK)
        _unpack(archive, target)
        archive.unlink()
        durable.write_bytes(target / "complete", b"")
    return target


def _unpack(archive: Path, target: Path) -> None:
    """The model's files from the one directory of the archive that holds `config.json`."""
    try:
        with zipfile.ZipFile(archive) as bundle:
            root = min((name for name in bundle.namelist() if name.endswith("config.json")), key=len)[
                : -len("config.json")
            ]
            for member in bundle.infolist():
                path = Path(member.filename.removeprefix(root))
                wanted = any(path.match(pattern) for pattern in PATTERNS) and ".." not in path.parts
                if member.filename.startswith(root) and not member.is_dir() and wanted:
                    with durable.replacing(target / path) as partial:
                        _copy(bundle.open(member), partial)
    except (zipfile.BadZipFile, ValueError) as error:
        raise Missing(f"the parts do not make a zip that holds a model ({error})") from None


def _copy(source: IO[bytes], target: Path) -> None:
    with source, target.open("wb") as out:
        shutil.copyfileobj(source, out, BLOCK)


def check_complete(path: Path) -> None:
    """Raise Missing unless everything that loading reads is there, through its links."""
    for name in ("config.json", "tokenizer.json"):
        if not (path / name).is_file():
            raise Missing(f"{path} has no {name}")
    for weights in weights_of(path):
        if not weights.is_file():
            raise Missing(f"{path} lacks {weights.name}")
    for folder in _module_folders(path):
        if folder.name.endswith("_Normalize"):
            continue
        if not (folder / "config.json").is_file():
            raise Missing(f"{path} lacks {folder.name}/config.json")


def weights_of(path: Path) -> Iterator[Path]:
    """The weight files of a snapshot."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        yield from (path / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values())))
    elif (path / "model.safetensors").is_file():
        yield path / "model.safetensors"
    elif any(path.glob("*.bin")):
        raise Missing(f"{path} holds its weights as pickle only; use a revision with safetensors")
    else:
        raise Missing(f"{path} has no model.safetensors")


def _module_folders(path: Path) -> list[Path]:
    modules = path / "modules.json"
    if not modules.is_file():
        return []
    return [path / module["path"] for module in json.loads(modules.read_text()) if module["path"]]
