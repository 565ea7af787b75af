"""Where the rows of a collection stand in its files: at which record of which.

What is kept is a step wherever file and record do not simply go on by one.
"""

from array import array
from bisect import bisect_right


class Places:
    """The file and the record, counted from 1, of every row that was added in order."""

    def __init__(self) -> None:
        self._rows, self._records = array("q"), array("q")
        self._files: list[str] = []
        self._next: tuple[str, int] = "", 0

    def add(self, row: int, file: str, record: int) -> None:
        """Take in the next row."""
        if self._next != (file, record):
            self._rows.append(row)
            self._records.append(record)
            self._files.append(file)
        self._next = file, record + 1

    def of(self, row: int) -> tuple[str, int]:
        """Return the file and the record of a row."""
        step = bisect_right(self._rows, row) - 1
        return self._files[step], self._records[step] + row - self._rows[step]
