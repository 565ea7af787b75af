"""Places in object storage as paths: `s3://bucket/folder` and its like, listed and read through fsspec.

What is read comes in ranges, each as long as it was asked for. What a network or a service refuses is asked for again,
with growing pauses, then told in one line. Keys are those that fsspec's packages find in the environment, in files or
in the machine's role; a URL holds none.
"""

import errno
import fnmatch
import hashlib
import os
import re
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from io import FileIO, RawIOBase
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import unquote

from interlock.engine.errors import InterlockError, UnavailableError, UsageError, reason

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")),
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gs")),
    **dict.fromkeys(("az", "abfs", "abfss"), ("adlfs", "az")),
}
"""By scheme: the package that speaks it, and the extra that brings it."""
SHOWN = ("s3://", "gs://", "az://", "file://")
BLOCK = 8 << 20
"""Bytes of a range."""
PATIENCE, FIRST, LONGEST = 120.0, 0.5, 15.0
"""Seconds for which a request is tried again, of the first pause, and of the longest."""
CHANGED = "changed while it was read: repeat the command"
_MARKS = ("ETag", "etag", "md5Hash", "generation", "LastModified", "last_modified", "mtime", "created")
"""What services call that which is another for each state of an object."""
_JOINED = re.compile(rf"^({'|'.join(PACKAGES)}):/+")
_HOLDS_KEYS = re.compile(r"[^/]*:[^/]*@|[^?]*\?")
_DENIED = re.compile(
    r"forbidden|denied|credential|authenticat|\b40[13]\b|expired|bad request|validation failed", re.IGNORECASE
)
_SECRET = re.compile(r"KEY|SECRET|TOKEN|SAS|CONNECTION_STRING")
T = TypeVar("T")


class StoredObject(NamedTuple):
    """An object: its bytes, and a mark that each state of it has of its own. Of a folder there are neither."""

    size: int
    mark: str
    is_folder: bool


class Url(PosixPath):
    """A place in storage; what is asked of it is asked of the service, and raises UnavailableError where that does not
    answer. Names, parents and joins are those of a path."""

    __slots__ = ()

    def __str__(self) -> str:
        return _JOINED.sub(r"\1://", super().__str__())

    def entry(self) -> StoredObject:
        """Ask what is there now. Raises FileNotFoundError where nothing is."""
        return _insist(self, _entry)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return size and kind alone."""
        found = self.entry()
        kind = stat.S_IFDIR if found.is_folder else stat.S_IFREG
        return os.stat_result((kind, 0, 0, 1, 0, 0, found.size, 0, 0, 0))

    def is_dir(self, **_: Any) -> bool:
        return stat.S_ISDIR(self._mode)

    def is_file(self, **_: Any) -> bool:
        return stat.S_ISREG(self._mode)

    def exists(self, **_: Any) -> bool:
        return self._mode != 0

    @property
    def _mode(self) -> int:
        try:
            return self.stat().st_mode
        except FileNotFoundError:
            return 0

    def unlink(self, missing_ok: bool = False) -> None:
        if not missing_ok or self.exists():
            _insist(self, lambda system, key: system.rm_file(key))

    def glob(self, pattern: str) -> Generator["Url", None, None]:
        """Yield the objects in a folder whose names are of a pattern; none where nothing is."""
        with suppress(FileNotFoundError):
            names = [name for name in _insist(self, _names) if "/" not in name]
            yield from (self / name for name in fnmatch.filter(names, pattern))

    def is_symlink(self) -> bool:
        return False

    def is_absolute(self) -> bool:
        return True

    def absolute(self) -> "Url":
        return self

    def resolve(self, strict: bool = False) -> "Url":
        return self


def located(value: object, otherwise: Callable[[Any], Path]) -> Path:
    """Return the place in storage that a URL names; of what is none, or begins with file://, what `otherwise` makes.

    Raises ValueError for a URL of another kind, UsageError for one that holds keys, which it does not repeat.
    """
    scheme, is_url, rest = str(value).partition("://")
    if isinstance(value, Url) or not is_url:
        return value if isinstance(value, Url) else otherwise(value)
    if scheme == "file":
        return otherwise(unquote(rest))
    if scheme not in PACKAGES or not rest.strip("/"):
        raise ValueError(f"expected a path, or a URL that begins with {', '.join(SHOWN)}")
    if _HOLDS_KEYS.match(rest):
        raise UsageError(
            f"{scheme}://*** holds more than a place: drop user, password and query, and put keys where {scheme}'s own "
            "tools find them, such as the environment"
        )
    return Url(str(value))


def real(path: Path) -> Path:
    """Return the path behind links, of which a circle does not end in a RuntimeError; one in storage as it is."""
    return path if isinstance(path, Url) else Path(os.path.realpath(path))


def lexists(path: Path) -> bool:
    """Tell whether anything is there, a link that leads nowhere too."""
    return path.exists() if isinstance(path, Url) else os.path.lexists(path)


def bring(file: Path, to: Path, sha256: str) -> None:
    """Give a whole file of this SHA-256 the name `to`, in place of what has it: by renaming it, or by sending it, in
    parts where it is large, which the service shows as a whole or not at all; then it is read back.

    Raises InterlockError where other bytes come back, UsageError where there is no such bucket.
    """
    if not isinstance(to, Url):
        file.replace(to)
        return
    try:
        _insist(to, lambda system, key: system.put_file(str(file), key))
        with ObjectReader(to) as sent:
            digest = hashlib.sha256()
            while block := sent.read(BLOCK):
                digest.update(block)
    except FileNotFoundError:
        raise UsageError(f"cannot write {to}: its bucket is not there; make it, or choose another --to") from None
    if digest.hexdigest() != sha256:
        raise InterlockError(f"{to} differs from what was sent: check for another writer, then export again")


def raw(path: Path, opener: Callable[[str, int], int]) -> RawIOBase:
    """Open a file to be read from its beginning on; one on disk by `opener`."""
    return ObjectReader(path) if isinstance(path, Url) else FileIO(path, opener=opener)


def walk(
    place: Path, onerror: Callable[[OSError], object] | None = None
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Yield each folder with the names of those in it, which may be cut to go into fewer, and of its files.

    Raises FileNotFoundError for one in storage that holds nothing: it has no folders of its own.
    """
    if not isinstance(place, Url):
        yield from ((Path(folder), folders, names) for folder, folders, names in os.walk(place, onerror=onerror))
        return
    tree: dict[tuple[str, ...], tuple[dict[str, None], list[str]]] = {}
    for name in _insist(place, _names):
        *above, last = name.split("/")
        for depth, folder in enumerate(above):
            tree.setdefault(tuple(above[:depth]), ({}, []))[0][folder] = None
        tree.setdefault(tuple(above), ({}, []))[1].append(last)
    if not tree:
        raise _missing(place)
    left: list[tuple[str, ...]] = [()]
    while left:
        above_all = left.pop()
        inner, names = tree[above_all]
        yield place.joinpath(*above_all), (folders := list(inner)), names
        left += [(*above_all, folder) for folder in reversed(folders)]


class ObjectReader(RawIOBase):
    """An object that is read from its beginning to its end.

    Raises FileNotFoundError where it is not there, OSError where it became another meanwhile, UnavailableError where
    the service does not give a range whole.
    """

    def __init__(self, url: Url) -> None:
        super().__init__()
        self._url, self._begun = url, url.entry()
        if self._begun.is_folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(url))
        self._at, self._block = 0, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._block and self._at < self._begun.size:
            self._block = memoryview(self._next())
        target = memoryview(buffer).cast("B")
        size = min(len(target), len(self._block))
        target[:size], self._block = self._block[:size], self._block[size:]
        return size

    def _next(self) -> bytes:
        """The next range; behind the last one more byte is asked for, which only an object that grew has."""
        start, size = self._at, self._begun.size
        self._at = min(start + BLOCK, size)
        block = _insist(self._url, partial(_range, start=start, end=self._at, beyond=self._at == size))
        if len(block) != self._at - start or (start and self._at == size and self._url.entry() != self._begun):
            raise OSError(errno.ESTALE, CHANGED)
        return block


def _range(system: "AbstractFileSystem", key: str, *, start: int, end: int, beyond: bool) -> bytes:
    block: bytes = system.cat_file(key, start=start, end=end + beyond)
    if len(block) < end - start and _entry(system, key).size >= end:
        raise OSError(errno.EIO, f"gave {len(block):,} of {end - start:,} bytes")
    return block


def _entry(system: "AbstractFileSystem", key: str) -> StoredObject:
    system.invalidate_cache(system._parent(key))
    found = system.info(key)
    mark = str([found[name] for name in _MARKS if name in found])
    return StoredObject(found["size"] or 0, mark, found["type"] == "directory")


def _names(system: "AbstractFileSystem", key: str) -> list[str]:
    """The names of all objects below a place, from there."""
    system.invalidate_cache()
    files = (name for name in system.find(key) if not name.endswith("/"))  # which marks a folder
    return [below for name in files if (below := name.removeprefix(key).strip("/"))]


def _insist(url: Url, ask: Callable[["AbstractFileSystem", str], T]) -> T:
    """Return what a service is asked for, again and again where that may help. Raises FileNotFoundError where it is not
    there, UnavailableError where it is not to be had."""
    from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

    retrying = Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, Exception) and not _lasts(error)),
        wait=wait_random_exponential(FIRST, LONGEST),
        stop=stop_after_delay(PATIENCE),
        reraise=True,
    )
    try:
        return retrying(lambda: ask(*_system(url)))
    except FileNotFoundError:
        raise _missing(url) from None
    except UnavailableError:
        raise
    except Exception as error:  # each service's package raises its own
        if _lasts(error):
            raise UnavailableError(
                f"no access to {url} ({_told(error)}): check the keys in the environment, or renew them, then try again"
            ) from None
        raise UnavailableError(
            f"cannot reach {url} ({_told(error)}), tried for {PATIENCE:.0f} s: check the network, then try again"
        ) from None


def _system(url: Url) -> tuple["AbstractFileSystem", str]:
    """What speaks to the service, and what it calls the place."""
    from fsspec import filesystem, get_filesystem_class

    scheme = url.parts[0].removesuffix(":")
    try:
        kind = get_filesystem_class(scheme)  # not `url_to_fs`, to which `::` in a key parts two systems
    except (ImportError, ValueError):  # of a scheme that only its package makes known
        package, extra = PACKAGES[scheme]
        raise UnavailableError(f"{url} needs {package}: install interlock[{extra}]") from None
    return filesystem(scheme, **kind._get_kwargs_from_urls(str(url))), kind._strip_protocol(str(url))


def _lasts(error: Exception) -> bool:
    """Whether another try would end as this one."""
    known = isinstance(error, PermissionError | FileNotFoundError | ValueError | UnavailableError)
    return known or bool(_DENIED.search(f"{type(error).__name__} {error}"))


def _told(error: Exception) -> str:
    """What a package says, without what the environment keeps secret."""
    said = reason(error)[:200]
    for name, value in os.environ.items():
        if len(value) >= 8 and _SECRET.search(name):
            said = said.replace(value, "***")
    return said


def _missing(url: Url) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(url))
