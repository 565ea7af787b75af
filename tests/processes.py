"""Processes at work: waited for and killed; and what a run has on disk, to be compared with another's."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from interlock.engine.record import atomic
from interlock.engine.record.events import BatchCommitted
from tests.builders import events_of, start
from tests.warm import Fork

Process = Fork | subprocess.Popen[str]
PATIENCE = 120.0
COMMITTED = b'"event":"batch_committed"'


def until(there: Callable[[], object]) -> None:
    """Wait until it has come to that."""
    limit = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < limit, "it never came to that"
        time.sleep(0.01)


def kill_after(run: Path, wanted: int, *command: object) -> bool:
    """Begin a command and kill its process when the journal of `run` tells of so many batches; whether it was alive."""
    return killed(lambda process: wait_for_commits(process, run, wanted), *command)


def killed(wait: Callable[[Process], object], *command: object) -> bool:
    """Begin a command and kill its process after `wait`; whether it was alive until then."""
    process = start(*command)
    try:
        wait(process)
    finally:
        process.kill()
    code = process.wait()
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def wait_for_commits(process: Process, run: Path, wanted: int) -> None:
    """Wait until the journal of `run` tells of so many batches of any pass, or its process has ended."""
    while process.poll() is None and commits(run) < wanted:
        time.sleep(0.002)


def commits(run: Path) -> int:
    """How many batches of any pass the journal tells of."""
    journal = run / "journal.jsonl"
    return journal.read_bytes().count(COMMITTED) if journal.exists() else 0


def checksums(run: Path) -> dict[tuple[int, int], int]:
    """CRC-32 of each batch that is committed, by pass and number."""
    return {(each.model_pass, each.batch_index): each.crc for each in events_of(run, BatchCommitted)}


def files_of(directory: Path) -> dict[str, str]:
    """SHA-256 of every file, by its relative path."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): atomic.sha256_of(path) for path in files}


def exports(run: Path, collection: str = "Docs") -> dict[str, str]:
    """SHA-256 of every delivered file of a collection."""
    return files_of(run / "exports" / collection)
