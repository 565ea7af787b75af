"""Where the paths of a run lie after its directory was moved or copied: beside it, as they did before.

A run records the whole path of its store and of models that are directories. Pure but for looking whether a path is
there.
"""

import os
from pathlib import Path
from typing import Any

from interlock.engine.record.summary import Summary


def moved(value: Any, before: Path, now: Path) -> Any:
    """Return a recorded setting with the paths in it as they are beside a run that lay at `before` and lies at `now`.

    What is there, seen from the run, is taken; where nothing is, what is at the recorded path. What is in neither place
    is to be made, and that beside the run, unless only the recorded path has a directory for it.
    """
    if before == now:
        return value
    if isinstance(value, list | tuple):
        return [moved(each, before, now) for each in value]
    return str(_moved(Path(value), before, now)) if isinstance(value, str) and value.startswith("/") else value


def store_of(summary: Summary, run: Path) -> Path | None:
    """Return where the store of a run that lies at `run` now has to be looked for; None where it wrote none."""
    written, out = (str(summary.configuration[name].value or "") for name in ("qdrant", "out"))
    return Path(moved(written, Path(out) / summary.run_id, run.absolute())) if written else None


def _moved(path: Path, before: Path, now: Path) -> Path:
    if os.path.commonpath([path, before]) == "/":
        return path
    beside = Path(os.path.normpath(now / os.path.relpath(path, before)))
    if beside.exists() or not path.exists():
        return beside if beside.parent.exists() or not path.parent.exists() else path
    return path


def same_files(files: list[str], root: Path) -> bool:
    """Whether the chunk files of a run, `collection/file` each, are in `root` by their names."""
    own = [root.resolve().parent, root]  # a root that is a collection itself is named after itself
    return bool(files) and any(all((place / file).is_file() for file in files) for place in own)
