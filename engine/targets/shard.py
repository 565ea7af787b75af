"""The directory of a collection: Qdrant's shard, its locks and its disk, and the files beside it.

Whoever opens it holds a lock (flock) on the directory itself: the engine's own holds only once its files are made. The
engine's errors leave here as ours: UsageError for what cannot be opened, InterlockError for what failed.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from interlock.engine.errors import InterlockError, UsageError, remedy
from interlock.engine.record.atomic import content, free_bytes, lock, sync_directory, write_bytes
from interlock.engine.record.words import human_bytes
from interlock.engine.vectors.bm25 import BM25
from interlock.engine.vectors.fusion import PROJECTION, Vectors, from_bytes, to_bytes
from interlock.engine.vectors.texts import made_of_texts

if TYPE_CHECKING:
    from qdrant_edge import EdgeShard

MANIFEST = "manifest.json"
FREE = ("run", "calibrated", "unfinished", "shards")
"""What in a manifest says nothing of what the vectors mean: who wrote last, whether to its end, shards, weights."""
CONFIG = "edge_config.json"  # the engine's own
LEFT = ".atomicwrite*"  # directories in which the engine was about to write when it was killed
LOCKED = "wal"  # the directory that the engine holds a lock on while a shard is open
COPY = "interlock-store-"  # directories of copies
SPARE_BYTES = 64_000_000  # the engine writes through mmap: on a full disk it dies of SIGBUS, without an error
DISK_ERRORS = {errno.EACCES, errno.EDQUOT, errno.EIO, errno.ENOSPC, errno.EROFS}
LIMITS = {errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
ELSEWHERE = "choose another store directory"
STDERR = 2
_LOADING = threading.Lock()
_PANIC = (
    rb"\n?thread '[^'\n]*'(?: \(\d+\))? panicked at [^\n]*\n%s\n"
    rb"(?:stack backtrace:\n(?: +(?:\d+: |at )[^\n]*\n)*)?(?:note: [^\n]*RUST_BACKTRACE[^\n]*\n)?"
)
READING = ("reading", "counting", "searching", "opening", "copying")
"""What is done to a store that nothing is delivered into."""
READ: dict[tuple[int, ...], Any] = {}  # what `readers` has open in this process, or is to, by `key_of`


@contextmanager
def holding(path: Path, how: int, elsewhere: str = "") -> Iterator[None]:
    """Hold a collection's directory, by LOCK_EX to write and LOCK_SH to read; UsageError while anybody else does, with
    what to do `elsewhere`, if that is a way."""
    with opening(path, elsewhere):
        handle = locked(path, how)
    try:
        yield
    finally:
        os.close(handle)


def load(
    path: Path,
    dims: Mapping[str, int] | None,
    sparse: Collection[str] = (),
    tokens: Mapping[str, int] = {},
    *,
    int8: bool = False,
    compact: bool = False,
) -> "EdgeShard":
    """Open the shard, creating it (or finishing a creation that was killed) if `dims` are given.

    `sparse` are the names of its sparse vectors then, of which BM25's are weighed by IDF; `tokens` the dimensions of
    its token vectors by name: as many a point as it has tokens, in float16, compared by MaxSim and in no index, which
    would be larger than they are. Dense ones are kept in float32, or with `int8` in eight bits a
    number, turned at random by the engine before they are rounded: its scalar quantisation only adds to the float32.
    A `compact` one keeps none of BM25's.
    """
    import qdrant_edge as edge
    from qdrant_edge import Distance, EdgeConfig, EdgeShard, EdgeSparseVectorParams, EdgeVectorParams

    config, left = None, list[Path]()
    if dims is not None:
        kind = edge.VectorStorageDatatype.Turbo8 if int8 else None
        params = {
            name: EdgeVectorParams(size=dim, distance=Distance.Cosine, datatype=kind) for name, dim in dims.items()
        }
        for name, dim in tokens.items():
            params[name] = EdgeVectorParams(
                size=dim,
                distance=Distance.Dot,
                on_disk=True,
                multivector_config=edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim),
                datatype=edge.VectorStorageDatatype.Float16,
                hnsw_config=edge.HnswIndexConfig(m=0, ef_construct=0, full_scan_threshold=0),
            )
        kept = [name for name in sparse if name != BM25 or not compact]
        terms = {each: EdgeSparseVectorParams(modifier=edge.Modifier.Idf if each == BM25 else None) for each in kept}
        config, left = EdgeConfig(vectors=params, sparse_vectors=terms), list(path.rglob(LEFT))
    elif not any((path / made).exists() for made in (CONFIG, LOCKED)):
        raise _unfinished(path)  # before the engine, which would clear away what it takes for remains
    if (path / CONFIG).exists():
        read_kinds(path)  # the engine would wait for a pipe in its place
        if dims is not None:
            check_sparse(path, sparse)  # the engine itself takes fewer than there are
    with opening(path, ELSEWHERE if dims is not None else ""), _without_panics():
        shard = EdgeShard.load(str(path), config)
    for directory in left:  # whoever made them held the lock that is ours now
        shutil.rmtree(directory, ignore_errors=True)
    return shard


@contextmanager
def _without_panics() -> Iterator[None]:
    """Leave out of descriptor 2 what the engine prints of a panic that is raised here, which our refusal tells better.

    What is written there meanwhile, by anybody, comes when this ends.
    """
    with _LOADING, ExitStack() as stack:
        try:
            real = os.dup(STDERR)
            stack.callback(os.close, real)
            said = stack.enter_context(tempfile.TemporaryFile())
        except OSError:  # no descriptor is left, or none is there to be kept clean
            yield
            return
        message = ""
        os.dup2(said.fileno(), STDERR)
        try:
            yield
        except BaseException as error:
            message = str(error)
            raise
        finally:
            os.dup2(real, STDERR)
            said.seek(0)
            panic = _PANIC % re.escape(message.encode(errors="replace"))
            with suppress(OSError):  # nobody reads any more
                os.write(STDERR, re.sub(panic, b"", said.read()))


def copied(path: Path, place: Path) -> None:
    """Copy a collection's directory, holes of its files left out. Raises UsageError while somebody writes to it,
    InterlockError where there is no room."""
    with holding(path, fcntl.LOCK_SH), working(path, "copying"):
        size = sum(each.lstat().st_blocks * 512 for each in path.rglob("*"))
        if (free := free_bytes(place.parent)) < size + SPARE_BYTES:
            told = f"{human_bytes(size)}, and {human_bytes(free)} are free in {place.parent}"
            raise InterlockError(f"a copy of {path} takes {told}: free space, or set TMPDIR to another directory")
        shutil.copytree(path, place, ignore=shutil.ignore_patterns(LEFT), copy_function=_copy_data)


def _copy_data(source: str, target: str) -> None:
    """Copy a file: the engine makes its own in tens of MiB, which are holes for the most part."""
    with Path(source).open("rb", buffering=0) as read, Path(target).open("wb", buffering=0) as written:
        size, at = os.fstat(read.fileno()).st_size, 0
        os.truncate(written.fileno(), size)
        while at < size:
            try:
                at = os.lseek(read.fileno(), at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # a hole to its end
                    break
                raise
            end = os.lseek(read.fileno(), at, os.SEEK_HOLE)
            os.lseek(written.fileno(), at, os.SEEK_SET)
            while at < end:
                if not (sent := os.sendfile(written.fileno(), read.fileno(), at, end - at)):
                    raise EOFError(f"{source} became shorter")
                at += sent


class VectorKinds(NamedTuple):
    """The vectors of a shard: the dimensions of dense ones by name, the names of sparse ones, and the dimensions of
    token vectors by name."""

    dims: dict[str, int]
    sparse: list[str]
    tokens: dict[str, int]


def read_kinds(path: Path) -> VectorKinds:
    """Read what vectors a shard has; UsageError if its configuration is damaged."""
    if not (path / CONFIG).exists() and read_manifest(path).get("unfinished"):
        raise _unfinished(path)
    with opening(path):
        dims, tokens = dict[str, int](), dict[str, int]()
        for name, each in (config := json.loads(content(path / CONFIG)))["vectors"].items():
            (tokens if each.get("multivector_config") else dims)[name] = int(each["size"])
        made = [BM25] if (path / MANIFEST).exists() and made_of_texts(read_manifest(path)) else []
        return VectorKinds(dims, sorted([*(config.get("sparse_vectors") or {}), *made]), tokens)


def read_manifest(path: Path) -> dict[str, object]:
    """Read the manifest of a collection's directory; UsageError if it is damaged."""
    with opening(path):
        manifest = json.loads(content(path / MANIFEST))
        if not isinstance(manifest, dict):
            raise ValueError(f"{MANIFEST} is not an object")
        return manifest


def writer_of(manifest: Mapping[str, object]) -> str:
    """Return the id of the run that wrote last; empty where the manifest does not say."""
    run = manifest.get("run")
    return str(run.get("run_id", "")) if isinstance(run, dict) else ""


def read_projection(path: Path, sha256: str) -> Vectors | None:
    """Read the projection of a collection's fused vectors, which is known by its SHA-256; None where it is gone.

    Raises UsageError for another one than the manifest names.
    """
    with opening(path):
        try:
            saved = content(path / PROJECTION)
        except FileNotFoundError:
            return None
        if hashlib.sha256(saved).hexdigest() != sha256:
            raise ValueError(f"{PROJECTION} is not the one that {MANIFEST} names")
        return from_bytes(saved)


def write_projection(path: Path, projection: Vectors) -> None:
    """Write it atomically beside the manifest."""
    with working(path, f"writing {PROJECTION}"):
        write_bytes(path / PROJECTION, to_bytes(projection))


def write_manifest(path: Path, manifest: Mapping[str, object]) -> None:
    """Write atomically: a reader, or a restart after a power cut, sees the old or the new one, whole."""
    with working(path, f"writing {MANIFEST}"):
        write_bytes(path / MANIFEST, json.dumps(manifest, indent=2, ensure_ascii=False).encode())
        sync_directory(path.parent)  # the name of a directory just made


def require_room(path: Path, size: int) -> None:
    """Raise InterlockError unless the disk of `path` has room for `size` more bytes of points."""
    if (free := free_bytes(existing(path))) < 4 * size + SPARE_BYTES:
        raise InterlockError(
            f"disk of {path} is nearly full ({human_bytes(free)} free): free space and deliver again "
            f"(finished work is kept), or {ELSEWHERE}"
        )


def opening(path: Path, elsewhere: str = "") -> AbstractContextManager[None]:
    """Explain failures to open, which are the user's to resolve: somebody else at work there, a damaged directory; with
    what to do `elsewhere`, where something is to be delivered."""
    return _translated(partial(_unopenable, path, elsewhere))


def working(path: Path, doing: str) -> AbstractContextManager[None]:
    """Explain failures of an open store, which end the delivery: it can be repeated."""
    return _translated(partial(_failed, path, doing))


def check_sparse(path: Path, wanted: Collection[str]) -> None:
    """Raise UsageError where a shard has other sparse vectors than these."""
    if (there := read_kinds(path).sparse) != sorted(wanted):
        raise UsageError(
            f"{path} was written with other sparse vectors ({', '.join(there) or 'none'}, now "
            f"{', '.join(sorted(wanted)) or 'none'}): {ELSEWHERE}, or delete that directory"
        )


def existing(path: Path) -> Path:
    """Return what exists of a path, or of those above it."""
    return next(above for above in (path, *path.absolute().parents) if os.path.lexists(above))


def key_of(directory: Path) -> tuple[int, ...]:
    """Tell an open directory of this process from any other, by whatever path."""
    return os.getpid(), (at := directory.stat()).st_dev, at.st_ino


def locked(directory: Path, how: int) -> int:
    """The open directory, locked; BlockingIOError if somebody else has it for longer than a check takes."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if lock(handle, how):
            return handle
        raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
    except BaseException:
        os.close(handle)
        raise


@contextmanager
def _translated(explain: Callable[[BaseException], InterlockError]) -> Iterator[None]:
    """The engine raises bare Exception, and for a panic (a damaged file) a BaseException of its own."""
    try:
        yield
    except InterlockError:
        raise
    except BaseException as cause:
        if isinstance(cause, Exception) or type(cause).__name__ == "PanicException":
            raise explain(cause) from cause
        raise


def _unopenable(path: Path, elsewhere: str, cause: BaseException) -> InterlockError:
    of_engine = "WouldBlock" in str(cause)  # of who reads too: a writer has our own lock
    otherwise = f", or {elsewhere}" if elsewhere else ", or ask a copy of it with --copy" if of_engine else ""
    if isinstance(cause, BlockingIOError) or of_engine:
        if (read := READ.get(key_of(path))) and read.engine:
            return UsageError(
                f"{path} is in use by a search of this process: close its Searcher, wait for its end{otherwise}"
            )
        return UsageError(f"{path} is in use by another run or search: wait for its end{otherwise}")
    if _code(cause) in DISK_ERRORS | LIMITS:  # which say nothing of what is there
        return _failed(path, "opening for delivery" if elsewhere else "opening", cause)
    return UsageError(
        f"cannot open {path} as an embedded collection ({cause}): it is damaged or not Interlock's; "
        f"delete it and deliver again{otherwise}"
    )


def _unfinished(path: Path) -> UsageError:
    run = writer_of(read_manifest(path)) or "ID"
    return UsageError(
        f"{path} has no points yet: the first delivery into it did not finish; finish run {run} with "
        "the command that `interlock ctl RUN_DIR status` tells, repeat its export, or delete that directory"
    )


def _failed(path: Path, doing: str, cause: BaseException) -> InterlockError:
    code = _code(cause)
    full = remedy(OSError(code or 0, "")).removesuffix(" and retry")
    advice = full if code in LIMITS else "free space or fix the permissions" if code in DISK_ERRORS else "fix the cause"
    if doing == "opening" and code in (errno.EACCES, errno.EROFS):  # the engine writes to what it opens
        closed = not os.access(path, os.R_OK | os.X_OK, effective_ids=True)
        advice = "let this user read it" if closed else "make it writable, or search a copy of it (--copy)"
    if doing in READING:
        return InterlockError(f"the store {path} failed while {doing}: {cause}; {advice}, then try again")
    return InterlockError(
        f"the store {path} failed while {doing}: {cause}; {advice}, then deliver again (finished work is "
        f"kept), or {ELSEWHERE}"
    )


def _code(cause: BaseException) -> int | None:
    """The system's number of an error, which the engine has in its words."""
    if isinstance(cause, OSError):
        return cause.errno
    number = re.search(r"(?:os error |Os \{ code: )(\d+)", str(cause))
    return int(number[1]) if number else None
