"""A journal read as it grows: whole lines only, no lock kept, whatever its writer does with it meanwhile.

A line that is torn is waited for; one that was cut off again is forgotten; damage before the end is an error.
"""

from pathlib import Path
from typing import BinaryIO

from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.record import journal
from interlock.engine.record.events import Entry
from interlock.engine.record.rundir import JOURNAL, LISTED, beside, runs_in
from interlock.engine.record.words import few, several

CHUNK_BYTES = 256 << 10
MARK = 64
"""So much of the last line tells whether what was read before still stands."""


def journal_at(path: Path) -> Path:
    """Find the journal that a path means: a run's directory, or the file itself; it may be empty yet.

    Raises UsageError for a directory of runs, for what can be no journal, and where there is none, naming those
    there are.
    """
    try:
        found = path / JOURNAL if path.is_dir() else path
        if found.exists():
            return found
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    if runs := runs_in(path) or runs_in(path / "runs"):
        names = few([str(run) for run in runs], LISTED)
        raise UsageError(f"{path} has {several(len(runs), 'run')}: name one (latest first): {names}")
    wrong = "has no journal" if path.is_dir() else "does not exist"
    raise UsageError(f"{path} {wrong}: name a run directory ({beside(path)})")


class Tail:
    """Reads whole lines as they are added to a journal, which may be empty yet, and may be cut back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._suspect = -1
        self._begin_anew()

    def more(self) -> tuple[bool, list[Entry]]:
        """Read on: whether what was read before was taken back, and the entries since, up to a torn line.

        Raises InterlockError for a journal that is damaged or of another version.
        """
        try:
            with self._path.open("rb") as handle:
                return self._added(handle)
        except FileNotFoundError:
            return False, []
        except OSError as error:
            raise InterlockError(f"cannot read {self._path}: {error.strerror}") from error

    def _added(self, handle: BinaryIO) -> tuple[bool, list[Entry]]:
        handle.seek(self._end - len(self._mark))
        anew = handle.read(len(self._mark)) != self._mark
        if anew:
            self._begin_anew()
            handle.seek(0)
        lines = handle.readlines(CHUNK_BYTES)
        return anew, self._entries(lines, at_end=not handle.read(1))

    def _begin_anew(self) -> None:
        self._end, self._next, self._mark = 0, 0, b""

    def _entries(self, lines: list[bytes], *, at_end: bool) -> list[Entry]:
        found = []
        for place, line in enumerate(lines, 1):
            entry = journal.decode(line) if line.endswith(b"\n") else None
            if entry is None or entry.seq != self._next:
                self._doubt(entry, torn=place == len(lines) and at_end)
                break
            self._end, self._next, self._mark = self._end + len(line), self._next + 1, line[-MARK:]
            found.append(entry)
        return found

    def _doubt(self, entry: Entry | None, *, torn: bool) -> None:
        """A line that is not as it should be is looked at twice: a writer may be cutting off a torn one just now."""
        if torn and entry is None:
            return
        if self._suspect != self._end:
            self._suspect = self._end
            return
        wrong = "is damaged" if entry is None else "is out of order"
        raise InterlockError(f"{self._path}: line {self._next + 1} {wrong}, so nothing after it can be trusted")
