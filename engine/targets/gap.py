"""A collection that was delivered without some models of its run: whose store it is, and how it makes way.

Such a store takes points of the run that made it and of no other, since no other can fill its gap. When that run has
the models, or lacks others, nothing in the store fits any more, and it is written anew. One that lacks none never makes
way for one that does.
"""

import fcntl
import json
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from msgspec.structs import replace

from interlock.engine.errors import UsageError
from interlock.engine.record.facts import MissingModel, RosterEntry
from interlock.engine.targets import shard
from interlock.engine.vectors.fusion import shares

MARK = "missing.json"
"""The file beside a collection's others that says which models they lack; not there where they lack none."""


def remaining(
    roster: Sequence[RosterEntry], without: Sequence[MissingModel], given: Sequence[float] = ()
) -> list[RosterEntry]:
    """Return the models that are left in their order, the dense ones with their shares of the fusion as if they were
    the whole roster; `given` are the weights of the first models, as they were asked for."""
    gone = {each.model_pass for each in without}
    left = {number: entry for number, entry in enumerate(roster) if number not in gone}
    asked = dict(enumerate(given)) if given else {number: entry.weight for number, entry in left.items()}
    dense = [number for number, entry in left.items() if entry.kind == "dense"]
    weights = dict(zip(dense, shares([asked[number] for number in dense]).tolist(), strict=True)) if dense else {}
    return [replace(entry, weight=weights.get(number, entry.weight)) for number, entry in left.items()]


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


def mark(missing: Sequence[MissingModel], weights: dict[str, float]) -> bytes:
    """Return what MARK says: the models that are missing and why, and the weights of the dense ones that are left."""
    told = [{"model": each.model, "kind": each.kind, "weight": each.weight, "reason": each.reason} for each in missing]
    return json.dumps({"missing": told, "weights": weights}, indent=2, ensure_ascii=False).encode() + b"\n"


def files_of(missing: Collection[MissingModel]) -> list[str]:
    """Name the files that these models would have, which are none of a delivery without them."""
    ends = (".npy", ".npz", "-sparse.npz", "-tokens.npy", "-tokens-starts.npy")
    return [f"{each.model}{end}" for each in missing for end in ends]
