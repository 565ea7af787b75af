"""Files of an export in a directory that may hold other things: only what an export wrote there is ever replaced.

`export.json` names every file with its SHA-256, and is written before a file gets its name: whenever this is killed,
each file is the old or the new one, whole, and known to be ours.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from interlock.engine.errors import UsageError
from interlock.engine.record import atomic
from interlock.engine.vectors.narrow import Loss, Precision

RECORD = "export.json"
STAGING = ".interlock-export"
"""Where files wait for their names: a directory that no other program makes."""


class ExportRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `export.json` says: the run, the numbers and losses of the latest export, and the files of all of them, each
    with the SHA-256 that it has, or is about to have."""

    schema_version: Literal["1"]
    run: str = ""
    collection: str = ""
    vectors: Precision = "float32"
    losses: list[Loss] = []
    files: dict[str, list[str]] = {}


@contextmanager
def staging(directory: Path) -> Iterator[Path]:
    """Hold the directory of a collection's files, which is made, and yield an empty one in it for files to come."""
    with atomic.explaining(directory):
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        place = directory / STAGING
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise UsageError(f"{place} is not a directory that an export made: choose another --to, or remove it")
        atomic.sweep(directory, RECORD)
        atomic.remove(place)
        try:
            yield place / directory.name
        finally:
            atomic.remove(place)
    finally:
        os.close(handle)


def read_record(directory: Path) -> ExportRecord:
    """Read what exports have written there; nothing, where no record is. Raises UsageError for one that is damaged."""
    try:
        return msgspec.json.decode(atomic.content(directory / RECORD), type=ExportRecord)
    except FileNotFoundError:
        return ExportRecord(schema_version="1")
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise UsageError(
            f"{directory / RECORD} is not what an export wrote ({error}): choose another --to, or move it"
        ) from None


def check_ours(directory: Path, names: Iterable[str], record: ExportRecord) -> None:
    """Raise UsageError where a file of these names is there and none that an export wrote."""
    for path in (directory / name for name in names):
        if not os.path.lexists(path):
            continue
        known = record.files.get(path.name, [])
        if path.is_symlink() or not path.is_file() or atomic.sha256_of(path) not in known:
            raise UsageError(f"{path} was not written by an export, or changed since: choose another --to, or move it")


def publish(directory: Path, staged: Path, made: Mapping[str, str], record: ExportRecord) -> None:
    """Give the `staged` files, each `made` with a SHA-256, their names; `record` is that of this export, with the files
    of those before it."""
    before = record.files
    coming = {name: [sha256, *before.get(name, [])] for name, sha256 in made.items()}
    _write(directory, msgspec.structs.replace(record, files=before | coming))
    with atomic.explaining(directory):
        for name in made:
            (staged / name).replace(directory / name)
        atomic.sync_directory(directory)
    _write(directory, msgspec.structs.replace(record, files=before | {name: [sha] for name, sha in made.items()}))


def _write(directory: Path, record: ExportRecord) -> None:
    atomic.write_bytes(directory / RECORD, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
