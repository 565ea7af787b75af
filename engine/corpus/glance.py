"""What a directory of chunks seems to hold, looked at in passing while somebody types its name: nothing is parsed.

How many chunks there are is told from the first bytes of a few files, so it is about right and costs little.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from interlock.engine.corpus.collections import SUFFIXES

MOST = 20_000
"""Files and directories that are looked at; who names the root of a disk does not wait for all of it."""
SAMPLED, SAMPLE = 4, 1 << 16
"""Files of a collection of which so many bytes are read."""


@dataclass(frozen=True)
class Glance:
    """A directory that would become a collection: how many chunk files it has, their bytes, and about how many
    chunks."""

    name: str
    files: int
    bytes: int
    chunks: int


def glance(root: Path, stopped: Callable[[], bool] = lambda: False, most: int = MOST) -> tuple[list[Glance], bool]:
    """Look at the collections under `root`; add whether all of it was seen. Raises OSError for what is no directory."""
    found, left = [], most
    for place in _places(root):
        files: list[Path] = []
        for folder, folders, names in os.walk(place):
            files += [Path(folder, name) for name in names if name.endswith(SUFFIXES)]
            left -= len(folders) + len(names)
            if left < 0 or stopped():
                break
        if files:
            found.append(_seen(place, sorted(files)))
        if left < 0 or stopped():
            return found, False
    return found, True


def _places(root: Path) -> list[Path]:
    """The root itself where it holds chunk files, else the directories in it."""
    with os.scandir(root) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    if any(entry.name.endswith(SUFFIXES) for entry in entries):
        return [root.resolve()]
    return [Path(entry.path) for entry in entries if not entry.name.startswith(".") and entry.is_dir()]


def _seen(place: Path, files: Sequence[Path]) -> Glance:
    sizes = {}
    for file in files:
        with suppress(OSError):
            sizes[file] = file.stat().st_size
    total, read, records = sum(sizes.values()), 0, 0
    for file in list(sizes)[:: max(1, len(sizes) // SAMPLED)][:SAMPLED]:
        with suppress(OSError), file.open("rb") as handle:
            head = handle.read(SAMPLE)
            read += len(head)
            records += len(head.splitlines()) if file.name.endswith(".jsonl") else head.count(b'"text"')
    return Glance(place.name, len(files), total, round(records * total / read) if read else 0)
