"""The journal of one upload: how many rows of what a server has acknowledged, so that another process goes on there.

One line a batch, each with a checksum as in the journal of a run. Rows go in order, so the last line says it all. A
journal of something else, or a damaged one, is begun anew: points have ids that stay, and sending them twice changes
nothing. Each beginning has a mark of its own, which its collection is given: with another mark there, nothing that was
acknowledged here is sure to be there still.
"""

import io
import os
import secrets
from pathlib import Path
from typing import Self

import msgspec

from interlock.engine.errors import UsageError
from interlock.engine.record import atomic, journal, locks


class UploadBinding(msgspec.Struct, frozen=True, tag_field="entry", tag="begun"):
    """What a journal is about: a collection of a server, the SHA-256 of what is uploaded, its rows, and its mark."""

    url: str
    collection: str
    fingerprint: str
    rows: int
    mark: str = ""


class _Acknowledged(msgspec.Struct, frozen=True, tag_field="entry", tag="acknowledged"):
    """All rows before `rows` are in the collection."""

    rows: int


class UploadJournal:
    """An open journal, locked for this process; a context manager. `rows` is how many are acknowledged, `mark` what the
    collection is marked with while that holds."""

    def __init__(self, path: Path, binding: UploadBinding) -> None:
        """Open or create the journal. Raises UsageError where another process has it or a link is in its place."""
        self.path, self._binding, self.mark = path, binding, ""
        with atomic.explaining(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = io.FileIO(path, "ab+", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666))
        if not locks.lock(self._file):
            self._file.close()
            raise UsageError(f"{path} is in use by another upload: wait for its end")
        rows = self._replay()
        self.rows = rows or 0
        if rows is None:
            self.restart()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def acknowledge(self, rows: int) -> None:
        """Note that all rows before `rows` are in the collection; it survives the death of this process."""
        self._append(_Acknowledged(rows))
        self.rows = rows

    def restart(self) -> None:
        """Begin anew, with another mark and no row acknowledged."""
        with atomic.explaining(self.path):
            self._file.truncate(0)
        self.rows, self.mark = 0, secrets.token_hex(8)
        self._append(msgspec.structs.replace(self._binding, mark=self.mark))

    def _append(self, entry: "UploadBinding | _Acknowledged") -> None:
        line = journal.sealed(msgspec.json.encode(entry)[:-1])
        with atomic.explaining(self.path):
            if self._file.write(line) != len(line):
                raise OSError(28, os.strerror(28))

    def _replay(self) -> int | None:
        """The rows that are acknowledged; None where the journal is new, damaged or of something else. A torn last line
        is cut off."""
        self._file.seek(0)
        content = self._file.readall()
        rows, whole = None, 0
        for line in content.splitlines(keepends=True):
            body = journal.opened_seal(line)
            if body is None:
                break
            whole += len(line)
            try:
                entry = msgspec.json.decode(body, type=UploadBinding | _Acknowledged)
            except msgspec.MsgspecError:
                return None
            if rows is None:
                if not isinstance(entry, UploadBinding) or self._binding != msgspec.structs.replace(entry, mark=""):
                    return None
                self.mark = entry.mark
            rows = entry.rows if isinstance(entry, _Acknowledged) else 0
        if b"\n" in content[whole:]:
            return None
        self._file.truncate(whole)
        return rows
