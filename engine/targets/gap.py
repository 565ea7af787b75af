"""A collection that was delivered without some models of its run: whose store it is, and how it makes way.

Such a store takes points of the run that made it and of no other, since no other can fill its gap. When that run has
the models, or lacks others, nothing in the store fits any more, and it is written anew. One that lacks none never makes
way for one that does.
"""

import fcntl
import shutil
from collections.abc import Sequence
from pathlib import Path

from interlock.engine.errors import UsageError
from interlock.engine.record.facts import MissingModel
from interlock.engine.targets import shard


def outgrown(path: Path, run_id: str, began: float, missing: Sequence[MissingModel]) -> bool:
    """Tell whether the store at `path`, if there is one, was made by this run without other models than those that are
    `missing` now, so that it has to make way.

    Raises UsageError where it lacks models of another run, or has some that are missing now.
    """
    if not (path / shard.MANIFEST).exists():
        return False
    there = shard.read_manifest(path)
    lacks, now, run = there.get("missing"), {each.model for each in missing}, there.get("run")
    if not lacks:
        if now:
            raise UsageError(
                f"{path} was not written without {', '.join(sorted(now))}, and is not made worse: "
                f"choose another --qdrant DIR, or --resume once nothing is missing"
            )
        return False
    names = ", ".join(map(str, lacks)) if isinstance(lacks, list) else "models"
    if not isinstance(run, dict) or (run.get("run_id"), run.get("began")) != (run_id, began):
        whose = run.get("run_id") if isinstance(run, dict) else "another"
        raise UsageError(
            f"{path} lacks {names}, which run {whose} can still add: resume that run, choose another "
            "--qdrant DIR, or delete that directory"
        )
    return not isinstance(lacks, list) or {*lacks} != now


def clear(path: Path) -> None:
    """Remove the shard at `path`, and at last its manifest, so that a removal that is killed is taken up. Raises
    UsageError while anybody else has it, InterlockError where the disk refuses."""
    with shard.holding(path, fcntl.LOCK_EX), shard.working(path, "making way for all models"):
        for child in path.iterdir():
            if child.is_dir() and not child.is_symlink():
                shutil.rmtree(child)
            elif child.name != shard.MANIFEST:
                child.unlink()
        (path / shard.MANIFEST).unlink()
