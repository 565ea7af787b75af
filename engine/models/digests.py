"""SHA-256 of weights, remembered: a search would otherwise spend most of its start on hashing what has not changed.

A file is known by its real path and what the system says of it: device, inode, size, and the times of its last change,
of which nobody can set one. What changed in the last seconds is not remembered, as it could change again unseen.
"""

import hashlib
import json
import time
from contextlib import suppress
from pathlib import Path

from interlock.engine.errors import InterlockError
from interlock.engine.models.sources import model_cache
from interlock.engine.record import atomic

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
