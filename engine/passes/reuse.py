"""Vectors taken over from an earlier run: every row whose text and model are the same is paid for only once.

The earlier run's own journal says which rows it has and what their bytes were: a batch, or what that run had taken over
itself, is taken only where its CRC-32 still holds. What is taken is recorded with checksums of its own, so that the
journal of a run knows every vector in its directory. A file that is not what the earlier run wrote is refused by name.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.intake.corpus import DIGEST, Digests, digest_of_texts
from interlock.engine.passes.batches import Batch, Rows, digest_of
from interlock.engine.passes.pass_files import place_of
from interlock.engine.passes.sparse import TERMS, SparseFile
from interlock.engine.passes.vectors import NOT_AN_ARRAY, UNIT_TOLERANCE, PassFile, Vectors, crc_of, header_of
from interlock.engine.record import atomic, journal
from interlock.engine.record.events import RowsReused
from interlock.engine.record.fold import fold_all
from interlock.engine.record.rundir import RUN, RunDirectory
from interlock.engine.record.state import RunState

SAME = ("fingerprint", "max_tokens", "document_prompt", "kind")
"""What two passes of a model must have in common for their vectors to be the same."""
ORDER = "order.npy"
WINDOW = 512
"""Rows taken over that share a checksum."""
Mask = npt.NDArray[np.bool_]
Report = Callable[[int], object]
Kept = Callable[[Rows, int], tuple[Vectors, Mask] | None]
"""Gives rows of an earlier run by their numbers and checksum: what it has of them [rows, dim], and which are vectors;
None where they are not what was checked in."""


@dataclass(frozen=True)
class Earlier:
    """A run to take vectors from: its files, the digests of its texts, and what its journal says."""

    directory: RunDirectory
    digests: Digests
    state: RunState


def check(run: Path) -> Earlier:
    """Open the run to take vectors from. Raises UsageError for another directory, or where files are damaged."""
    directory = RunDirectory(run)
    with _damage_of(directory.path / RUN):
        if not directory.inputs() or not directory.digests.exists() or not directory.journal.exists():
            raise UsageError(f"--reuse {run}: not a run directory with vectors")
    with _damage_of(directory.journal):
        state = fold_all(RunState(), journal.read(directory.journal))
    return Earlier(directory, _digests_of(directory, state), state)


def take_over(
    earlier: Earlier | None,
    entry: Mapping[str, object],
    model_pass: int,
    digests: Digests,
    file: PassFile,
    report: Report,
) -> RowsReused | None:
    """Copy into `file` what `earlier` has of the model `entry` (as in run.json); None where that is nothing.

    Each time rows turn out to be damaged there, `report` is called with how many.
    """
    taken = np.zeros(len(digests), np.bool_)
    for rows, vectors in available(earlier, entry, digests, report):
        if earlier and vectors.shape[1] != (dim := file.width):
            raise UsageError(
                f"{earlier.directory.path} has {entry['model']} in {vectors.shape[1]} dimensions, not {dim}: drop "
                "--reuse"
            )
        file.put(rows, vectors)
        taken[rows] = True
    if not earlier or not taken.any():
        return None
    file.sync()
    crcs = [file.crc(rows) for rows in _windows(np.flatnonzero(taken))]
    return RowsReused(
        model_pass=model_pass,
        model=str(entry["model"]),
        source=str(earlier.directory.path.resolve()),
        rows=int(taken.sum()),
        mask=zlib.compress(np.packbits(taken).tobytes()),
        crcs=crcs,
    )


def mask_of(reused: RowsReused | None, texts: int) -> Mask:
    """Unpack which of so many texts were taken over."""
    if reused is None:
        return np.zeros(texts, np.bool_)
    bits = np.frombuffer(zlib.decompress(reused.mask), np.uint8)
    return np.unpackbits(bits, count=texts).astype(np.bool_)


def damaged(reused: RowsReused, file: PassFile) -> int:
    """Count the rows taken over whose checksum does not hold any more."""
    windows = _windows(np.flatnonzero(mask_of(reused, file.texts)))
    return sum(len(rows) for rows, crc in zip(windows, reused.crcs, strict=True) if file.crc(rows) != crc)


def keep_order(vectors: Path, batches: Sequence[Batch]) -> None:
    """Keep beside a pass's `vectors` which rows its batches have: with it, another run can check what it takes."""
    rows = [batch.rows for batch in batches]
    order = np.concatenate([np.empty(0, np.int64), *rows])
    firsts = np.cumsum([0, *(len(each) for each in rows)])[:-1]
    order[firsts] = ~order[firsts]  # a negative number begins a batch
    path, data = vectors.with_name(ORDER), BytesIO()
    np.save(data, order.astype(np.int32))
    if not path.is_file() or path.read_bytes() != data.getvalue():
        atomic.write_bytes(path, data.getvalue())


def available(
    earlier: Earlier | None, entry: Mapping[str, object], digests: Digests, report: Report
) -> Iterator[tuple[Rows, Vectors]]:
    """Yield rows with their vectors in `earlier`, checked against its journal; `report` as for `take_over`.

    Raises UsageError naming a file that is not what that run wrote.
    """
    roster, wanted = earlier.state.roster if earlier else (), {"kind": "dense", **entry}
    same = (number for number, other in enumerate(roster) if all(getattr(other, name) == wanted[name] for name in SAME))
    model_pass = next(same, None)
    if earlier is None or model_pass is None:
        return
    member, texts = earlier.state.roster[model_pass], len(earlier.digests)
    path = earlier.directory.vectors(model_pass, member.model)
    groups = list(_groups(earlier, model_pass, path, str(entry["dtype"])))
    kept = (_kept_terms if member.kind == "sparse" else _kept)(path, texts, member.dim)
    positions = _positions(digests, earlier.digests)
    for rows, crc in groups:
        here = positions[rows]
        if not (here >= 0).any():
            continue
        found = kept(rows, crc)
        if found is None:
            report(len(rows))
            continue
        vectors, whole = found
        good = (here >= 0) & whole
        yield here[good], vectors[good]


def _groups(earlier: Earlier, model_pass: int, vectors: Path, dtype: str) -> Iterator[tuple[Rows, int]]:
    """Rows of a pass that were computed in this precision and have a checksum in the journal, with it."""
    state, usual = earlier.state, earlier.state.roster[model_pass].dtype
    reused, committed = state.reused.get(model_pass), state.committed.get(model_pass, {})
    if reused and usual == dtype:
        yield from zip(_windows(np.flatnonzero(mask_of(reused, len(earlier.digests)))), reused.crcs, strict=True)
    if committed:
        batches = _batches_of(earlier, model_pass, vectors.with_name(ORDER))
        yield from ((batches[index], each.crc) for index, each in committed.items() if (each.dtype or usual) == dtype)


def _batches_of(earlier: Earlier, model_pass: int, path: Path) -> list[Rows]:
    """The rows of each batch of an earlier run's pass, once they are known to be those that its journal speaks of."""
    if not path.exists():
        raise UsageError(
            f"cannot check the vectors of {earlier.directory.path} without {path} (older versions lack it "
            "until resumed): drop --reuse, or reuse another run"
        )
    with _damage_of(path):
        with atomic.opened(path) as handle:
            order = np.lib.format.read_array(handle)
        if order.dtype != np.int32 or order.ndim != 1 or (len(order) and order[0] >= 0):
            raise ValueError(f"found {order.dtype} {order.shape}, expected a row order")
        rows = np.where(order < 0, ~order, order).astype(np.int64)
        batches = np.split(rows, np.flatnonzero(order < 0)[1:])
        for collection in earlier.state.collections.values():
            share = collection.shares.get(model_pass)
            if share and share.plan.batches:
                own = batches[share.plan.first_batch : share.plan.first_batch + share.plan.batches]
                if digest_of(own) != earlier.state.plans[model_pass, collection.name]:
                    raise ValueError("rows differ from the journal's")
    return batches


def _digests_of(earlier: RunDirectory, state: RunState) -> Digests:
    """What the rows of an earlier run's vectors are the vectors of, as its journal knows them."""
    if not state.texts_digest:
        raise UsageError(
            f"the journal of {earlier.path} does not list its texts (older versions do not until resumed): "
            "drop --reuse, or reuse another run"
        )
    with _damage_of(earlier.digests), atomic.opened(earlier.digests) as handle:
        found = np.lib.format.read_array(handle)
        if found.dtype != np.uint8 or found.ndim != 2 or (len(found) and found.shape[1] != DIGEST.itemsize):
            raise ValueError(f"found {found.dtype} {found.shape}, expected {DIGEST.itemsize} bytes per text")
        digests: Digests = np.ascontiguousarray(found).reshape(-1).view(DIGEST)
        if digest_of_texts(digests) != state.texts_digest:
            raise ValueError("texts differ from the journal's")
        return digests


def _kept(path: Path, texts: int, dim: int) -> Kept:
    """What gives rows of a dense pass."""
    vectors = _load(path, texts, dim) if path.exists() else None

    def taken(rows: Rows, crc: int) -> tuple[Vectors, Mask] | None:
        if vectors is None or crc_of(window := vectors[rows]) != crc:
            return None
        with np.errstate(over="ignore", invalid="ignore"):  # a parked row is NaN, and so no unit vector
            return window, np.abs(np.linalg.norm(window, axis=1) - 1) <= UNIT_TOLERANCE

    return taken


def _kept_terms(path: Path, texts: int, words: int) -> Kept:
    """What gives rows of a sparse pass, written out."""
    table = place_of(path, "sparse")
    if not (table.exists() and table.with_name(TERMS).exists()):
        return lambda *_: None
    with _damage_of(table):
        dtype, shape, _ = header_of(table)
        if dtype != np.int64 or shape != (texts, 2):
            raise ValueError(f"found {dtype} {shape}, expected {texts:,} rows of terms")
        file = SparseFile.over(table, np.lib.format.open_memmap(table, mode="r"), words)

    def taken(rows: Rows, crc: int) -> tuple[Vectors, Mask] | None:
        if file.crc(rows) != crc:
            return None
        terms = file.take(rows)
        return terms.to_dense(words), ~terms.parked

    return taken


def _load(path: Path, texts: int, least: int) -> Vectors:
    """A pass's vectors; its model may be wider than the `least` dimensions that were delivered of it."""
    with _damage_of(path):
        dtype, shape, _ = header_of(path)
        if dtype != np.float32 or len(shape) != 2 or shape[0] != texts or shape[1] < least:
            raise ValueError(f"found {dtype} {shape}, expected {texts:,} texts of {least} dimensions")
        vectors: Vectors = np.lib.format.open_memmap(path, mode="r")
        return vectors


@contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    """Whatever reading `path` raises, as a UsageError that names it, and says whether it is damaged or out of reach."""
    try:
        yield
    except UsageError:
        raise
    except OSError as error:
        what = f"cannot be read ({error.strerror or error}): fix the cause"
        raise UsageError(f"{path} {what}, drop --reuse, or reuse another run") from error
    except (InterlockError, *NOT_AN_ARRAY) as error:
        raise UsageError(f"{path} is damaged ({error}): drop --reuse, or reuse another run") from error


def _positions(digests: Digests, others: Digests) -> Rows:
    """For each text there its row here, or -1; neither has a text twice."""
    halves = np.concatenate([digests, others]).view(np.uint64).reshape(-1, 2)
    order = np.lexsort(halves.T)  # the same text is side by side, and as the sort is stable ours comes first
    same = (halves[order[1:]] == halves[order[:-1]]).all(axis=1)
    positions = np.full(len(others), -1, np.int64)
    positions[order[1:][same] - len(digests)] = order[:-1][same]
    return positions


def _windows(rows: Rows) -> Iterable[Rows]:
    return (rows[start : start + WINDOW] for start in range(0, len(rows), WINDOW))
