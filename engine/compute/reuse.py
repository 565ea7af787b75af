"""Vectors taken over from an earlier run: every row whose text and model are the same is paid for only once.

The earlier run's own journal says which rows it has and what their bytes were: a batch, or what that run had taken over
itself, is taken only where its CRC-32 still holds. What is taken is recorded with checksums of its own, so that the
journal of a run knows every vector in its directory. A file that is not what the earlier run wrote is refused by name.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from interlock.engine.compute.job import Batch, Rows, digest_of
from interlock.engine.compute.parts.files import NOT_AN_ARRAY, readable
from interlock.engine.compute.parts.outputs import Outputs, PassFiles
from interlock.engine.corpus.identity import Digests, digest_of_texts
from interlock.engine.corpus.places import DIGEST, laid, release, save, spooled, windows
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.record import atomic
from interlock.engine.record.events import RowsReused
from interlock.engine.record.facts import RosterEntry, TermForm
from interlock.engine.record.rundir import RUN, RunDirectory
from interlock.engine.record.state import RunState
from interlock.engine.record.words import alike, several
from interlock.engine.standing.runs import state_of

SAME = ("fingerprint", "max_tokens", "document_prompt", "overlap", "tokenizer")
"""What two passes of a model must have in common for their vectors to be the same."""
ORDER = "order.npy"
WINDOW = 512
"""Rows taken over that share a checksum."""
TOGETHER = 1 << 17
"""Texts whose digests are compared together, about."""
Mask = npt.NDArray[np.bool_]
Report = Callable[[int], object]


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
        state = state_of(run)
    return Earlier(directory, _digests_of(directory, state), state)


def take_over(
    earlier: Earlier | None,
    entry: Mapping[str, object],
    model_pass: int,
    digests: Digests,
    files: PassFiles,
    report: Report,
) -> RowsReused | None:
    """Copy into `files` what `earlier` has of the model `entry` (as in run.json); None where that is nothing.

    Each time rows turn out to be damaged there, `report` is called with how many.
    """
    taken = np.zeros(len(digests), np.bool_)
    for rows, outputs in available(earlier, entry, digests, report):
        if earlier and files.dense and outputs.dense is not None and outputs.dense.shape[1] != files.dense.width:
            raise UsageError(
                f"{earlier.directory.path} has {entry['model']} in {outputs.dense.shape[1]} dimensions, not "
                f"{files.dense.width}: drop --reuse"
            )
        files.put(rows, outputs)
        taken[rows] = True
    if not earlier or not taken.any():
        return None
    files.sync()
    crcs = [files.crc(rows) for rows in _rows_of(taken)]
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


def damaged(reused: RowsReused, files: PassFiles) -> int:
    """Count the rows taken over whose checksum does not hold any more."""
    found = zip(_rows_of(mask_of(reused, files.texts)), reused.crcs, strict=True)
    return sum(len(rows) for rows, crc in found if files.crc(rows) != crc)


def keep_order(place: Path, batches: Sequence[Batch]) -> None:
    """Keep in the directory of a pass which rows its batches have: with it, another run can check what it takes."""
    order, path = spooled(np.int32, map(_marked, batches)), place / ORDER
    with suppress(OSError, *NOT_AN_ARRAY):
        there = readable(path, np.int32, lambda shape: shape == order.shape, "a row order")
        if all(np.array_equal(there[part], order[part]) for part in windows(0, len(order), there, order)):
            return
    with atomic.replacing(path) as partial, partial.open("wb") as handle:
        save(handle, order)


def _marked(batch: Batch) -> Rows:
    """The rows of a batch, the first as a negative number."""
    rows = batch.rows.copy()
    rows[:1] = ~rows[:1]
    release(batch.rows)
    return rows


def available(
    earlier: Earlier | None, entry: Mapping[str, object], digests: Digests, report: Report
) -> Iterator[tuple[Rows, Outputs]]:
    """Yield rows with what `earlier` has of them, checked against its journal; `report` as for `take_over`.

    Raises UsageError naming a file that is not what that run wrote.
    """
    wanted = {"kind": "dense", "overlap": None, **entry}
    roster = earlier.state.roster if earlier else ()
    model_pass = next((number for number, other in enumerate(roster) if not _lacking(other, wanted)), None)
    if earlier is None or model_pass is None:
        return
    member, texts = earlier.state.roster[model_pass], len(earlier.digests)
    place = earlier.directory.pass_directory(model_pass, member.model)
    groups = list(_groups(earlier, model_pass, place, str(entry["dtype"])))
    files = PassFiles.read(place, member, texts, _damage_of)
    positions = _positions(digests, earlier.digests)
    for rows, crc in groups:
        here = positions[rows]
        release(positions, rows)
        if not (here >= 0).any():
            continue
        if files is None or files.crc(rows) != crc:
            report(len(rows))
            continue
        outputs = files.take(rows)
        good = np.flatnonzero((here >= 0) & outputs.sound)
        yield here[good], outputs.taken(good)


def lacking(earlier: Earlier | None, entry: Mapping[str, object]) -> str:
    """Say what `earlier` lacks of the model `entry`, of which it has something; empty where it lacks nothing."""
    wanted = {"kind": "dense", "overlap": None, **entry}
    found = [_lacking(other, wanted) for other in earlier.state.roster if _same(other, wanted)] if earlier else []
    return min(found, key=len, default="")


def _lacking(other: RosterEntry, wanted: Mapping[str, object]) -> str:
    """What the pass of an earlier run did not give of what is wanted of a model, or gave in another way."""
    if not _same(other, wanted):
        return str(wanted["model"])
    asked = msgspec.convert(wanted.get("outputs") or (wanted["kind"],), tuple[str, ...])
    heads = msgspec.convert(wanted.get("heads", {}), dict[str, str])
    kept = {"dense": True, "sparse": other.heads.get("sparse_linear") == heads.get("sparse_linear")}
    kept["sparse"] &= other.terms == msgspec.convert(wanted.get("terms"), TermForm | None)
    kept["tokens"] = other.heads.get("colbert_linear") == heads.get("colbert_linear") and (
        msgspec.to_builtins(other.tokens) == wanted.get("tokens")
    )
    named = {"dense": "vectors", "sparse": "weights of terms", "tokens": "token vectors as they are wanted"}
    return " and ".join(named[each] for each in asked if not (each in other.gives and kept[each]))


def _same(other: RosterEntry, wanted: Mapping[str, object]) -> bool:
    return all(alike(getattr(other, name), wanted.get(name, "")) for name in SAME)


def whole_pass(earlier: Earlier, model_pass: int) -> PassFiles:
    """Open the files of a pass that has seen every text, to be read, once each row is what the journal says of it.

    Raises UsageError, naming the run, where some have not been seen, or a file is not what that run wrote.
    """
    member, texts = earlier.state.roster[model_pass], len(earlier.digests)
    place = earlier.directory.pass_directory(model_pass, member.model)
    groups = list(_groups(earlier, model_pass, place))
    files = PassFiles.read(place, member, texts, _damage_of)
    seen = np.zeros(texts, np.bool_)
    for rows, _ in groups:
        seen[rows] = True
    if missing := texts - int(seen.sum()):
        raise UsageError(
            f"run {earlier.directory.id} has no {member.model} of {several(missing, 'text')} yet: resume it first"
        )
    if files is None or any(files.crc(rows) != crc for rows, crc in groups):
        raise UsageError(
            f"vectors of {member.model} in {place} are damaged or missing: resume run {earlier.directory.id}, which "
            "computes them again"
        )
    return files


def _groups(earlier: Earlier, model_pass: int, place: Path, dtype: str | None = None) -> Iterator[tuple[Rows, int]]:
    """Rows of a pass that were computed in this precision, or in any, and have a checksum in the journal, with it."""
    state, usual = earlier.state, earlier.state.roster[model_pass].dtype
    dtype, exact = dtype or usual, dtype is not None
    reused, committed = state.reused.get(model_pass), state.committed.get(model_pass, {})
    if reused and usual == dtype:
        yield from zip(_rows_of(mask_of(reused, len(earlier.digests))), reused.crcs, strict=True)
    if committed:
        batches = _batches_of(earlier, model_pass, place / ORDER)
        of_it = ((index, each) for index, each in committed.items() if not exact or (each.dtype or usual) == dtype)
        yield from ((batches[index], each.crc) for index, each in of_it)


def _batches_of(earlier: Earlier, model_pass: int, path: Path) -> list[Rows]:
    """The rows of each batch of an earlier run's pass, once they are known to be those that its journal speaks of."""
    if not path.exists():
        raise UsageError(
            f"cannot check the vectors of {earlier.directory.path} without {path} (older versions lack it "
            "until resumed): use another run, or resume that one"
        )
    with _damage_of(path):
        order = readable(path, np.int32, lambda shape: len(shape) == 1, "a row order")
        if len(order) and order[0] >= 0:
            raise ValueError(f"found {order.dtype} {order.shape}, expected a row order")
        every = [*windows(0, len(order))]
        rows = spooled(np.int64, (np.where(order[part] < 0, ~order[part], order[part]) for part in every))
        firsts = [first for part in every for first in (part.start + np.flatnonzero(order[part] < 0)).tolist()]
        batches = np.split(rows, firsts[1:])
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
            "use another run, or resume that one"
        )
    with _damage_of(earlier.digests):
        size = DIGEST.itemsize
        found = readable(earlier.digests, np.uint8, lambda shape: shape[1:] == (size,), f"{size} bytes per text")
        digests: Digests = np.asarray(found).reshape(-1).view(DIGEST)
        if digest_of_texts(digests) != state.texts_digest:
            raise ValueError("texts differ from the journal's")
        return digests


@contextmanager
def _damage_of(path: Path) -> Iterator[None]:
    """Whatever reading `path` raises, as a UsageError that names it, and says whether it is damaged or out of reach."""
    try:
        yield
    except UsageError:
        raise
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise UsageError(f"{path} {what}: fix the cause, or use another run") from error
    except (InterlockError, *NOT_AN_ARRAY) as error:
        anew = "resume that run, which writes it anew" if path.name == "texts.npy" else "use another run"
        said = str(error).partition(": restore ")[0]  # who reads a run has its own remedy, and names the file
        if said.startswith(str(path)):
            raise UsageError(f"{said}: restore it from a copy, or {anew}") from error
        raise UsageError(f"{path} is damaged ({error}): restore it from a copy, or {anew}") from error


def _positions(digests: Digests, others: Digests) -> Rows:
    """For each text there its row here, or -1; neither has a text twice. Those are looked at together whose digests
    begin with the same bits, of so many that this takes little memory."""
    positions = laid(len(others), np.int64)
    for part in windows(0, len(others)):
        positions[part] = -1
    bits = min(8, ((len(digests) + len(others)) // TOGETHER).bit_length())
    for begin in range(1 << bits):
        ours, theirs = (_beginning(each, begin, bits) for each in (digests, others))
        halves = np.concatenate([digests[ours], others[theirs]]).view(np.uint64).reshape(-1, 2)
        order = np.lexsort(halves.T)  # the same text is side by side, and as the sort is stable ours comes first
        same = (halves[order[1:]] == halves[order[:-1]]).all(axis=1)
        positions[theirs[order[1:][same] - len(ours)]] = ours[order[:-1][same]]
        release(digests, others, positions)
    return positions


def _beginning(digests: Digests, begin: int, bits: int) -> Rows:
    """The rows of the texts whose digests begin with these bits, so many of them."""
    rows = [np.empty(0, np.int64)]
    for part in windows(0, len(digests), digests):
        first = digests[part].view(np.uint8)[:: DIGEST.itemsize]
        rows.append(part.start + np.flatnonzero(first >> (8 - bits) == begin))
    return np.concatenate(rows)


def _rows_of(taken: Mask) -> Iterator[Rows]:
    """The rows that were taken, as many at a time as share a checksum."""
    rows = np.empty(0, np.int64)
    for part in windows(0, len(taken)):
        rows = np.concatenate([rows, part.start + np.flatnonzero(taken[part])])
        while len(rows) >= WINDOW:
            yield rows[:WINDOW]
            rows = rows[WINDOW:]
    if len(rows):
        yield rows
