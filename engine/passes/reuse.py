"""Vectors taken over from an earlier run: every row whose text and model are the same is paid for only once.

A row counts as there when all its numbers are finite: files begin as NaN, so a row that an earlier run never
finished cannot be mistaken for one that it did.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.errors import UsageError
from engine.intake.corpus import DIGEST, Digests
from engine.passes.batches import Rows
from engine.passes.vectors import VectorFile
from engine.record import durable
from engine.record.rundir import RunDirectory

SAME = ("fingerprint", "dtype", "max_tokens", "document_prompt")
WINDOW = 4096
Mask = npt.NDArray[np.bool_]


def check(run: Path) -> RunDirectory:
    """The run to take vectors from. Raises UsageError for a directory that is none."""
    directory = RunDirectory(run)
    if not directory.inputs() or not directory.digests.exists():
        raise UsageError(f"--reuse {run} is not a run directory with vectors in it")
    return directory


def take_over(
    earlier: RunDirectory | None, entry: Mapping[str, object], digests: Digests, file: VectorFile, mask: Path
) -> Mask:
    """Copy into `file` what `earlier` has of the model `entry` (as in run.json); which rows [texts] that were.

    The answer is kept in `mask`, so that a resumed run plans as it did before.
    """
    if mask.exists():
        kept: Mask = np.load(mask)
        return kept
    taken = np.zeros(len(digests), np.bool_)
    for rows, vectors in available(earlier, entry, digests):
        file.put(rows, vectors)
        taken[rows] = True
    file.sync()
    with durable.replacing(mask) as partial, partial.open("wb") as handle:
        np.save(handle, taken)
    return taken


def available(
    earlier: RunDirectory | None, entry: Mapping[str, object], digests: Digests
) -> Iterator[tuple[Rows, npt.NDArray[np.float32]]]:
    """Rows with their vectors in `earlier`, a window at a time."""
    found = _vectors_of(earlier, entry) if earlier else None
    if earlier is None or found is None:
        return
    rows, places = _matches(digests, np.load(earlier.digests).view(DIGEST).reshape(-1))
    vectors = np.load(found, mmap_mode="r")
    for start in range(0, len(rows), WINDOW):
        window = vectors[places[start : start + WINDOW]]
        whole = np.isfinite(window).all(axis=1)
        yield rows[start : start + WINDOW][whole], window[whole]


def _vectors_of(earlier: RunDirectory, entry: Mapping[str, object]) -> Path | None:
    """The earlier run's vectors of the same model under the same conditions."""
    for model_pass, other in enumerate(earlier.inputs()["roster"]):
        if all(other[name] == entry[name] for name in SAME):
            path = earlier.vectors(model_pass, other["model"])
            return path if path.exists() else None
    return None


def _matches(digests: Digests, others: Digests) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows here and their places there, of the texts that both have."""
    place = {digest.tobytes(): index for index, digest in enumerate(others)}
    pairs = [(row, place[key]) for row, digest in enumerate(digests) if (key := digest.tobytes()) in place]
    both = np.asarray(pairs, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]
