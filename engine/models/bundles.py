"""Bundles: a directory with snapshots of models and a manifest of every file, for machines that reach no hub.

A bundle is looked into before any cache, and nothing is ever written there: it may lie on a disk that cannot be
written. Every file of a model is compared with the manifest before it is used.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec
from msgspec import Struct

from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.models.commits import Proof, lacking, proof_of
from interlock.engine.models.layout import Unsupported, onnx_of, weights_of
from interlock.engine.models.registry import Head, ModelSpec
from interlock.engine.models.sources import COMMIT, PATTERNS, Copy, complete, remembered_sha256
from interlock.engine.record import atomic
from interlock.engine.record.words import human_bytes

MANIFEST, VARIABLE = "models.json", "INTERLOCK_MODELS"
BLOCK = 4 << 20
HUB, PACKAGE = "hf:", "pkg:"
Told = Callable[[str, int, int], object]
"""Hears of each file that was copied: its place in the bundle, and the bytes done of how many."""


class BundledFile(Struct, frozen=True):
    """A file of a model: its place in the model's directory, its size in bytes and its SHA-256."""

    path: str
    bytes: int
    sha256: str


class BundledModel(Struct, frozen=True, kw_only=True):
    """A model in a bundle, in the directory of its key: the sources that it may stand for, and the one it came from."""

    key: str
    source: str
    sources: list[str]
    repository: str | None
    revision: str
    commit: str | None
    files: list[BundledFile]
    whole: bool = False
    """Whether these are known to be all the files of its commit that count; earlier versions did not look."""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def serves(self, spec: ModelSpec) -> bool:
        """Whether this is the model that a row of the registry means: of one of its sources, and of its commit, branch
        or tag. Directories of other machines are known by the model's name alone; one of this machine is what it is."""
        other = spec.revision not in (self.commit, self.revision)
        if other and (self.commit or COMMIT.fullmatch(spec.revision)):
            return False
        named = {source for source in spec.sources if source.startswith((HUB, PACKAGE))}
        if named:
            return bool(named.intersection(self.sources))
        here = any(Path(source).expanduser().is_dir() for source in spec.sources)
        return spec.key == self.key and not self.repository and not here


class Bundle(Struct, frozen=True):
    """What `models.json` says."""

    schema_version: Literal["1"]
    models: list[BundledModel]


def bundle_directory() -> Path | None:
    """Find the bundle to look into first: INTERLOCK_MODELS, which `--models` sets."""
    text = os.environ.get(VARIABLE, "")
    return Path(text).expanduser() if text else None


def read_bundle(directory: Path) -> Bundle:
    """Read the manifest of a bundle. Raises UsageError for a directory that is none."""
    file = directory / MANIFEST
    try:
        bundle = msgspec.json.decode(atomic.content(file), type=Bundle)
        for model in bundle.models:
            for each in (model.key, *(each.path for each in model.files)):
                _check_inside(each)
    except FileNotFoundError:
        raise UsageError(
            f"{directory} has no {MANIFEST}: name a directory that `interlock models bundle` wrote"
        ) from None
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise UsageError(f"{file} cannot be read ({error}): copy the bundle anew") from error
    return bundle


def bundled(spec: ModelSpec, *, whole: bool = True) -> Copy | None:
    """Find a model in the bundle of this process; None where there is no bundle or it has no such model.

    Raises UnavailableError naming the first file that is missing, not the one of the manifest or not in it; without
    `whole` nothing is hashed.
    """
    directory = bundle_directory()
    if directory is None:
        return None
    model = next((each for each in read_bundle(directory).models if each.serves(spec)), None)
    if model is None:
        return None
    path = directory / model.key
    for file in model.files:
        _check(path / file.path, file, spec, whole=whole)
    if extra := files_of(path, {}).keys() - {file.path for file in model.files}:
        raise UnavailableError(
            f"model {spec.key}: {path / min(extra)} is not of the model that the bundle was made with: remove it"
        )
    if not whole:
        return Copy(path, model.commit, source=model.source)
    proof = None if model.whole or not model.repository else Proof()
    try:
        return complete(path.resolve(), model.commit, spec, proof, by_row=True)._replace(source=model.source)
    except Unsupported:
        raise
    except UnavailableError as error:
        raise UnavailableError(
            f"model {spec.key}: {error}: make the bundle anew (`interlock models bundle DIR`)"
        ) from error


def _check(path: Path, file: BundledFile, spec: ModelSpec, *, whole: bool) -> None:
    try:
        found = path.stat().st_size
        same = found == file.bytes and (not whole or remembered_sha256(path) == file.sha256)
    except OSError as error:
        raise UnavailableError(
            f"model {spec.key}: {path} of the bundle cannot be read ({error.strerror}): copy the bundle anew"
        ) from error
    if not same:
        raise UnavailableError(
            f"model {spec.key}: {path} is not the file that the bundle was made with: copy the bundle anew"
        )


def files_of(path: Path, heads: Mapping[Head, Path]) -> dict[str, Path]:
    """List the files of a model's snapshot that loading may read, by their place in a bundle."""
    found = {file for pattern in PATTERNS for file in path.rglob(pattern) if file.is_file()}
    found |= set(weights_of(path)) if onnx_of(path) else set()
    own = {file.relative_to(path).as_posix(): file for file in sorted(found)}
    return own | {f"{head}.safetensors": file for head, file in heads.items()}


def write_bundle(directory: Path, models: Sequence[tuple[ModelSpec, Copy, str]], told: Told) -> Bundle:
    """Copy snapshots of models, each with the source that it came from, into a bundle, beside those that are there; its
    manifest is written last. A file that is there already is not copied again.

    What a model had there by the manifest and has no longer is removed, and so is what killed processes left. Raises
    InterlockError where the disk refuses, or has too little room.
    """
    with atomic.locked(directory):
        return _written(directory, models, told)


def _written(directory: Path, models: Sequence[tuple[ModelSpec, Copy, str]], told: Told) -> Bundle:
    before = read_bundle(directory).models if (directory / MANIFEST).exists() else []
    wanted = {spec.key: files_of(copy.path, copy.heads) for spec, copy, _ in models}
    total, done = sum(file.stat().st_size for files in wanted.values() for file in files.values()), 0
    keys = {spec.key for spec, _, _ in models}
    gone = [
        directory / old.key / name
        for old in before
        if old.key in keys
        for name in {each.path for each in old.files} - wanted.get(old.key, {}).keys()
    ]
    _refuse_links(directory, [*gone, *(directory / key / name for key, files in wanted.items() for name in files)])
    _check_room(directory, total)
    made = []
    for spec, copy, source in models:
        files = []
        for place in {directory / spec.key / name for name in wanted[spec.key]}:
            atomic.sweep(place.parent)
        for name, file in wanted[spec.key].items():
            target, size = directory / spec.key / name, file.stat().st_size
            digest = _same(file, target) or _copied(file, target)
            files.append(BundledFile(name, size, digest))
            done += size
            told(f"{spec.key}/{name}", done, total)
        repository = source.removeprefix(HUB) if source.startswith(HUB) else None
        named = [each for each in (source, *spec.sources) if each.startswith((HUB, PACKAGE))]
        sources, shown = list(dict.fromkeys(named)), source if named else spec.key  # no directory of this machine
        made.append(
            BundledModel(
                key=spec.key,
                source=shown,
                sources=sources,
                repository=repository,
                revision=spec.revision,
                commit=copy.commit,
                files=files,
                whole=not lacking(copy.path, spec, proof_of(copy.path)),
            )
        )
    bundle = Bundle("1", sorted([*made, *(old for old in before if old.key not in keys)], key=lambda each: each.key))
    for path in gone:
        with atomic.explaining(path):
            path.unlink(missing_ok=True)
    atomic.write_bytes(directory / MANIFEST, msgspec.json.format(msgspec.json.encode(bundle), indent=2) + b"\n")
    return bundle


def _refuse_links(directory: Path, files: Sequence[Path]) -> None:
    """Raise UsageError where one of these files below the directory would be written or removed somewhere else."""
    for file in files:
        below = file.relative_to(directory)
        if link := next((each for each in below.parents[:-1] if (directory / each).is_symlink()), None):
            raise UsageError(
                f"{directory / link} is a symbolic link, and bundles are not written through links: remove it, or "
                "choose another place"
            )
        if ".." in below.parts:
            raise UsageError(f"{directory / MANIFEST} names {below}, which is not in the bundle: remove that file")


def _check_room(directory: Path, total: int) -> None:
    with atomic.explaining(directory):
        free = shutil.disk_usage(directory).free
    have = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    if total > free + have:
        raise UsageError(
            f"{directory} has {human_bytes(free)} free, but the bundle takes {human_bytes(total)}: choose another place"
        )


def _same(file: Path, target: Path) -> str:
    """The SHA-256 of both, where they are the same already; else empty."""
    if not target.is_file() or target.is_symlink() or target.stat().st_size != file.stat().st_size:
        return ""
    digest = remembered_sha256(file)
    return digest if atomic.sha256_of(target) == digest else ""


def _copied(file: Path, target: Path) -> str:
    """Copy a file; the SHA-256 of what was written."""
    digest = hashlib.sha256()
    with atomic.replacing(target) as partial, atomic.opened(file) as old, partial.open("wb") as new:
        while block := old.read(BLOCK):
            digest.update(block)
            new.write(block)
    return digest.hexdigest()


def _check_inside(name: str) -> None:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name!r} leads out of the bundle")
