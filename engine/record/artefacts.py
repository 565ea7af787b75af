"""Whether a delivered file is the one that its run recorded."""

from functools import lru_cache
from pathlib import Path

from interlock.engine.errors import InterlockError
from interlock.engine.record import atomic
from interlock.engine.record.facts import Artefact

AGAIN = "restore it, or resume the run to write it again"


def check_written(path: Path, artefact: Artefact) -> None:
    """Raise InterlockError unless the file at `path` is the one that the run delivered."""
    try:
        status = path.stat()
        if status.st_size != artefact.bytes:
            raise InterlockError(f"{path} has {status.st_size:,} bytes, delivered were {artefact.bytes:,}: {AGAIN}")
        digest = _digest(path, status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
    except OSError as error:
        raise InterlockError(f"cannot read {path} ({error.strerror}): {AGAIN}") from error
    if digest != artefact.sha256:
        raise InterlockError(f"{path} was changed after it was delivered (its SHA-256 differs): {AGAIN}")


@lru_cache(4096)
def _digest(path: Path, *_status: int) -> str:
    """The SHA-256 of a file, computed once for each state of it."""
    return atomic.sha256_of(path)
