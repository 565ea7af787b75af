"""Vectors taken over from an earlier run: every row whose text and model are the same is paid for only once.

A row counts as there when it is a unit vector: files begin as NaN, so a row that an earlier run never finished cannot
be mistaken for one that it did, nor one that was damaged beyond its length. A file that is not what that run wrote is
refused by name.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import InterlockError, UsageError
from engine.intake.corpus import DIGEST, Digests
from engine.passes.batches import Rows
from engine.passes.vectors import VectorFile, Vectors
from engine.record import durable
from engine.record.rundir import RUN, RunDirectory

SAME = ("fingerprint", "dtype", "max_tokens", "document_prompt")
NEEDED = {"model", "dim", *SAME}
UNIT_TOLERANCE = 1e-2
WINDOW = 4096
Mask = npt.NDArray[np.bool_]


def check(run: Path) -> RunDirectory:
    """The run to take vectors from. Raises UsageError for a directory that is none, or whose files are damaged."""
    directory = RunDirectory(run)
    with _damage_of(directory.path / RUN):
        begun = directory.inputs()
        if not begun or not directory.digests.exists():
            raise UsageError(f"--reuse {run} is not a run directory with vectors in it")
        _roster_of(begun)
    _digests_of(directory)
    return directory


def take_over(
    earlier: RunDirectory | None, entry: Mapping[str, object], digests: Digests, file: VectorFile, mask: Path
) -> Mask:
    """Copy into `file` what `earlier` has of the model `entry` (as in run.json); which rows [texts] that were.

    The answer is kept in `mask`, so that a resumed run plans as it did before.
    """
    if mask.exists() and not file.fresh:
        kept: Mask = np.load(mask)
        return kept
    taken = np.zeros(len(digests), np.bool_)
    for rows, vectors in available(earlier, entry, digests):
        if earlier and vectors.shape[1] != (dim := file.array.shape[1]):
            raise UsageError(
                f"{earlier.path} has {entry['model']} in {vectors.shape[1]} dimensions, not {dim}: leave out --reuse"
            )
        file.put(rows, vectors)
        taken[rows] = True
    file.sync()
    with durable.replacing(mask) as partial, partial.open("wb") as handle:
        np.save(handle, taken)
    return taken


def available(
    earlier: RunDirectory | None, entry: Mapping[str, object], digests: Digests
) -> Iterator[tuple[Rows, Vectors]]:
    """Rows with their vectors in `earlier`, a window at a time. Raises UsageError naming a damaged file."""
    if earlier is None:
        return
    others = _digests_of(earlier)
    vectors = _vectors_of(earlier, entry, len(others))
    if vectors is None:
        return
    rows, places = _matches(digests, others)
    for start in range(0, len(rows), WINDOW):
        window = vectors[places[start : start + WINDOW]]
        whole = _are_unit(window)
        yield rows[start : start + WINDOW][whole], window[whole]


def _roster_of(begun: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The roster in a run's inputs. Raises ValueError where it is not one."""
    roster = begun.get("roster")
    if not isinstance(roster, list) or not all(isinstance(each, dict) and each.keys() >= NEEDED for each in roster):
        raise ValueError("it has no roster of models")
    return roster


def _digests_of(earlier: RunDirectory) -> Digests:
    """What the rows of an earlier run's vectors are the vectors of."""
    with _damage_of(earlier.digests):
        found = np.load(earlier.digests)
        if found.dtype != np.uint8 or found.ndim != 2 or (len(found) and found.shape[1] != DIGEST.itemsize):
            raise ValueError(f"it holds {found.dtype} {found.shape}, not {DIGEST.itemsize} bytes a text")
        digests: Digests = np.ascontiguousarray(found).reshape(-1).view(DIGEST)
        return digests


def _vectors_of(earlier: RunDirectory, entry: Mapping[str, object], texts: int) -> Vectors | None:
    """The earlier run's vectors [texts, dim] of the same model under the same conditions; None where it has none."""
    with _damage_of(earlier.path / RUN):
        roster = _roster_of(earlier.inputs())
    for model_pass, other in enumerate(roster):
        if all(other[name] == entry[name] for name in SAME):
            path = earlier.vectors(model_pass, other["model"])
            return _load(path, texts, other["dim"]) if path.exists() else None
    return None


def _load(path: Path, texts: int, least: int) -> Vectors:
    """A pass's vectors; its model may be wider than the `least` dimensions that were delivered of it."""
    with _damage_of(path):
        vectors: Vectors = np.load(path, mmap_mode="r")
        if vectors.dtype != np.float32 or vectors.ndim != 2 or len(vectors) != texts or vectors.shape[1] < least:
            raise ValueError(
                f"it holds {vectors.dtype} {vectors.shape}, the run has {texts} texts of {least} dimensions"
            )
        return vectors


@contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    """Whatever reading `path` raises, as a UsageError that names it."""
    try:
        yield
    except UsageError:
        raise
    except (InterlockError, OSError, ValueError, TypeError, EOFError) as error:
        raise UsageError(f"{path} is damaged ({error}): leave out --reuse, or reuse another run") from error


def _are_unit(window: Vectors) -> Mask:
    """Which rows have length one; NaN and infinity have not."""
    with np.errstate(over="ignore", invalid="ignore"):
        unit: Mask = np.abs(np.linalg.norm(window, axis=1) - 1) <= UNIT_TOLERANCE
    return unit


def _matches(digests: Digests, others: Digests) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows here and their places there, of the texts that both have."""
    place = {digest.tobytes(): index for index, digest in enumerate(others)}
    pairs = [(row, place[key]) for row, digest in enumerate(digests) if (key := digest.tobytes()) in place]
    both = np.asarray(pairs, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]
