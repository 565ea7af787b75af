"""A model that a node lacks: its files as one value to be sent, and as a directory again.

What is sent is what makes the model what it is (weights, heads, configuration, modules, tokenizer) and the settings
beside it. Files are mapped, not read: a model of many GB takes no memory before it is sent.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tempfile import gettempdir, mkdtemp

import numpy as np
import numpy.typing as npt
import psutil

from interlock.engine.compute.cluster.messages import ModelFiles
from interlock.engine.errors import UnavailableError
from interlock.engine.models.assets import ModelSnapshot
from interlock.engine.models.sources import PATTERNS
from interlock.engine.record import atomic

_ROOM = "interlock-model-"


def pack(key: str, snapshot: ModelSnapshot) -> ModelFiles:
    """Map the files of the model `key` by their path in its snapshot; heads that lie elsewhere are put beside it.

    Raises UnavailableError for one that cannot be read.
    """
    files = {_name(file, snapshot.path): file for file in sorted(_sent(snapshot))}
    try:
        return ModelFiles(key, {name: _mapped(file) for name, file in files.items()})
    except OSError as error:
        raise UnavailableError(
            f"model {key}: cannot read {error.filename or snapshot.path}: {error.strerror}"
        ) from error


def room() -> Path:
    """Make a directory for a model that is sent, and remove those of processes that have died: nobody else does."""
    for left in Path(gettempdir()).glob(f"{_ROOM}*"):
        pid = left.name.removeprefix(_ROOM).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    return Path(mkdtemp(prefix=f"{_ROOM}{os.getpid()}-"))


def unpack(files: ModelFiles, place: Path) -> Path:
    """Write the files of a model into `place`, each whole or not at all, one in memory at a time; returns `place`, a
    source for `assets.resolve`.

    Raises UnavailableError for a name that leads out of `place`, DiskError naming what cannot be written.
    """
    for name in files.files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise UnavailableError(f"model {files.key}: {name!r} leads out of its directory, so it was not written")
        with atomic.replacing(place / path) as partial, partial.open("wb") as out:
            out.write(files.files[name].data)
    return place


def _sent(snapshot: ModelSnapshot) -> Iterator[Path]:
    """What counts in a model, and what its settings' directories hold beside it, other weights left out."""
    counting = snapshot.stamps or snapshot.stamped()
    yield from counting
    for folder in {file.parent for file in counting if file.is_relative_to(snapshot.path)}:
        for pattern in PATTERNS:
            yield from (file for file in folder.glob(pattern) if file.suffix != ".safetensors" and file.is_file())


def _name(file: Path, root: Path) -> str:
    return str(file.relative_to(root)) if file.is_relative_to(root) else file.name


def _mapped(file: Path) -> npt.NDArray[np.uint8]:
    return np.memmap(file, np.uint8, "r") if file.stat().st_size else np.zeros(0, np.uint8)  # no empty map
