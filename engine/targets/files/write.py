"""Files of a finished collection, written in one walk and read back before any gets its name.

Vectors are read from the passes a window at a time and go into every file from there, so memory does not grow with the
collection: a file is there whole and right or not at all, and the same vectors always give the same bytes. In a
directory that may hold other things only what an export wrote is ever replaced: `export.json` names every file with its
SHA-256, and is written before a file gets its name, so that each is known to be ours whenever this is killed.
"""

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

import msgspec

from interlock.engine import storage
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.record import atomic
from interlock.engine.record.shards import part_of
from interlock.engine.targets.files.formats import MARK, files_of, files_of_missing
from interlock.engine.targets.windows import Check, Delivery, Sink, Window
from interlock.engine.vectors.fusion import PROJECTION
from interlock.engine.vectors.precision import FUSED, Loss, Precision

RECORD, EXPORTS = "export.json", "export*.json"
STAGING = ".interlock-export"
"""Where files wait for their names: a directory that no other program makes."""


def write(delivery: Delivery, formats: Sequence[str], directory: Path, sinks: Mapping[Path, Sink]) -> list[Path]:
    """Write the files of `formats` in one walk for these and the other `sinks`; the paths written.

    Raises InterlockError where the chunks are not those of the plan, the disk refuses, or a file does not hold what the
    plan says when it is read back; no file of this delivery has got its name then, unless the disk refused just that.
    """
    made = {directory / name: kind for name, kind in files_of(delivery, formats).items()}
    with ExitStack() as published:  # files get their names as it closes, when all of them have been compared
        partials = {path: published.enter_context(atomic.replacing(path)) for path in made}
        with ExitStack() as open_files:
            all_sinks = dict[Path, Sink]()
            for path, kind in made.items():
                open_files.enter_context(atomic.explaining(path))  # or the file opened last would be blamed
                all_sinks[path] = open_files.enter_context(kind.written(partials[path]))
            all_sinks |= sinks  # a store last: it may change what it is given
            if all_sinks:
                pour(delivery.windows(), all_sinks)
        with ExitStack() as open_files:
            checks = {}
            for path, kind in made.items():
                with _reading_back(path):
                    checks[path] = open_files.enter_context(kind.read(partials[path]))
            compare(delivery.without_chunks() if checks else (), checks)
    others = (*files_of_missing(delivery.spec.missing), MARK) if made else ()  # those of a store alone are another's
    for path in {directory / part_of(delivery.rows.collection.shard, name) for name in others} - made.keys():
        with atomic.explaining(path):
            path.unlink(missing_ok=True)  # of an earlier delivery, which had more models or fewer
    return list(made)


def pour(windows: Iterable[Window], sinks: Mapping[Path, Sink]) -> None:
    """Give every window to every sink; what the disk says is told of the sink's path."""
    for window in windows:
        for path, take in sinks.items():
            with atomic.explaining(path):
                take(window)


def compare(windows: Iterable[Window], checks: Mapping[Path, Check]) -> None:
    """Ask every check about every window. Raises InterlockError for the first that is not as planned."""
    for window in windows:
        for path, check in checks.items():
            with _reading_back(path):
                fault = check(window)
            if fault:
                raise _unlike(path, fault)


@contextmanager
def _reading_back(path: Path) -> Iterator[None]:
    """Tell of whatever hinders reading what was just written to `path`: every library has errors of its own."""
    try:
        with atomic.explaining(path):
            yield
    except InterlockError:
        raise
    except Exception as error:
        raise _unlike(path, f"cannot be read ({error})") from error


def _unlike(path: Path, fault: str) -> InterlockError:
    return InterlockError(
        f"{path} differs from what was written ({fault}): no file was delivered for this collection, a store may hold "
        "part of it; check for another writer or a failing disk, then --resume"
    )


class ExportRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What `export.json` says: the run, when it was begun (two may have one name), a checksum of its `passes` (a text
    may get a vector later), the numbers and losses of the latest export, and the files of all of them, each with the
    SHA-256 that it has, or is about to have: one that is about to go has an empty one first. A shard's has the name of
    its part, and says as what `union` it is one."""

    schema_version: Literal["1"]
    run: str = ""
    began: float = 0.0
    passes: str = ""
    union: str = ""
    collection: str = ""
    vectors: Precision = "float32"
    losses: list[Loss] = []
    files: dict[str, list[str]] = {}

    def is_of(self, run: "ExportRecord") -> bool:
        """Tell whether it may be of the same run as it was then: one that was never written is of any."""
        return self.run in ("", run.run) and self.began in (0.0, run.began) and self.passes in ("", run.passes)


@contextmanager
def staging(directory: Path) -> Iterator[Path]:
    """Hold the directory of a collection's files, which is made, and yield an empty one in it for files to come; of one
    in storage, which nobody can hold, an empty one beside the other scratch."""
    if isinstance(directory, storage.Url):
        with atomic.scratch("interlock-export-files-") as scratch:
            yield scratch / directory.name
        return
    with atomic.locked(directory):
        place = directory / STAGING
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise UsageError(f"{place} is not a directory that an export made: choose another --to, or remove it")
        atomic.sweep(directory, EXPORTS)
        atomic.remove(place)
        try:
            yield place / directory.name
        finally:
            atomic.remove(place)


def read_record(directory: Path, name: str = RECORD, union: str = "") -> ExportRecord:
    """Read what exports have written there; nothing, where no record is of this name. Raises UsageError for one that is
    damaged, and for one of a part that is of no such `union`."""
    found, names = ExportRecord(schema_version="1"), list[str]()
    with suppress(FileNotFoundError):
        names = next((names for _, _, names in storage.walk(directory)), [])
    for path in (directory / each for each in fnmatch.filter(names, EXPORTS)):
        try:
            record = msgspec.json.decode(atomic.content(path), type=ExportRecord)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise UsageError(f"{path} is not what an export wrote ({error}): choose another --to, or move it") from None
        found = record if path.name == name else found
        if record.union != union:
            raise UsageError(f"{path} is of run {record.run}, of other texts, settings or shards: choose another --to")
    return found


def check_ours(directory: Path, names: Iterable[str], record: ExportRecord) -> None:
    """Raise UsageError where a file of these names is there and none that an export wrote."""
    for path in (directory / name for name in names):
        if not storage.lexists(path):
            continue
        known = record.files.get(path.name, [])
        if path.is_symlink() or not path.is_file() or atomic.sha256_of(path) not in known:
            raise UsageError(f"{path} was not written by an export, or changed since: choose another --to, or move it")


def of_others(directory: Path, names: Iterable[str], record: ExportRecord, *, same: bool) -> list[str]:
    """Name the files beside these that an export of another run wrote; of the `same`, that one which was cut short was
    to replace. A projection goes with the vectors that it made."""
    beside = {name: directory / name for name in record.files if name not in {*names, PROJECTION}}
    there = [name for name, path in beside.items() if storage.lexists(path)]
    late = (name for name in there if len(record.files[name]) > 1 and beside[name].is_file())
    return [name for name in late if atomic.sha256_of(beside[name]) != record.files[name][0]] if same else there


def projected_otherwise(directory: Path, made: Mapping[str, str], record: ExportRecord) -> list[str]:
    """Name the files beside those `made` whose fused vectors an export reduced with another projection than theirs, or
    with one where theirs have none, or the other way round."""
    if record.files.get(PROJECTION, [""])[0] == made.get(PROJECTION, ""):
        return []
    beside = (name for name in record.files if name not in made and storage.lexists(directory / name))
    return [name for name in beside if name.startswith((f"{FUSED}.", "points."))]


def publish(directory: Path, staged: Path, made: Mapping[str, str], record: ExportRecord, name: str) -> None:
    """Give the `staged` files, each `made` with a SHA-256, their names; `record` is that of this export, of this
    `name`, with the files of those before it, of which a projection that has made none of them goes."""
    before, going = record.files, {PROJECTION} & record.files.keys() - made.keys()
    coming = {name: [sha256, *before.get(name, [])] for name, sha256 in {**dict.fromkeys(going, ""), **made}.items()}
    _write(directory, staged, msgspec.structs.replace(record, files=before | coming), name)
    with atomic.explaining(directory):
        for each, sha256 in made.items():
            storage.bring(staged / each, directory / each, sha256)
        for each in going:
            (directory / each).unlink(missing_ok=True)
        if not isinstance(directory, storage.Url):
            atomic.sync_directory(directory)
    files = {each: known for each, known in before.items() if each not in going}
    files |= {each: [sha256] for each, sha256 in made.items()}
    _write(directory, staged, msgspec.structs.replace(record, files=files), name)


def _write(directory: Path, staged: Path, record: ExportRecord, name: str) -> None:
    place = staged / name if isinstance(directory, storage.Url) else directory / name
    atomic.write_bytes(place, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
    if place.parent == staged:
        storage.bring(place, directory / name, atomic.sha256_of(place))
