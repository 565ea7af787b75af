"""Which files hold texts, by their names; their bytes, unpacked, with the digest of what stands in the file; and how
JSON has what a record holds.

Chunk files come first: where a tree has some, they alone are read, else its tables, else its other JSON.
"""

import errno
import gzip
import hashlib
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from decimal import Decimal
from io import BufferedIOBase, BufferedReader, RawIOBase
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Literal, cast

import msgspec

from interlock.engine import storage
from interlock.engine.corpus.naming import spelt
from interlock.engine.record import atomic, words
from interlock.engine.record.inputs import INPUTS
from interlock.engine.record.journal import BEGINS
from interlock.engine.record.rundir import JOURNAL, RUN

Layout = Literal["list", "lines", "cells", "columns"]
CHUNKS: dict[str, Layout] = {"_chunks.json": "list", ".jsonl": "lines"}
TABLES: dict[str, Layout] = {
    ".csv": "cells",
    ".tsv": "cells",
    ".parquet": "columns",
    ".arrow": "columns",
    ".feather": "columns",
    ".ndjson": "lines",
}
PACKINGS = (".gz", ".zst")
CORPUS, QUERIES = (tuple(f"{name}.jsonl{packing}" for packing in ("", *PACKINGS)) for name in ("corpus", "queries"))
"""What BEIR's form calls its texts and its questions, beside `qrels`."""
READ = f"{', '.join((*(f'*{ending}' for ending in CHUNKS), *TABLES, '.json'))}, each also {' or '.join(PACKINGS)}"
"""What is said of the files that are read."""
BESIDE = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json")
"""What `datasets` writes beside its tables; its `state.json` may be anybody's."""
PAGES = (".txt", ".md", ".html", ".pdf", ".docx")
"""Endings of documents."""
KINDS = 6
"""Endings of files that are not read that are told apart."""
_ASIDE = re.compile(
    r"_SUCCESS|_(?:common_)?metadata|_(?:started|committed)_\d+|(?:README|LICEN[CS]E)(?:\.\w+)?|.*\.(?:crc|md5|sha\d+)"
    r"|(?:md5|sha\d+)sums?(?:\.txt)?|dataset_(?:infos?|dict)\.json",
    re.IGNORECASE,
)
_GIVEN = re.compile(r"[0-9a-f]{16}|\.texts-.*")
"""What directories of texts in memory are called: by their digest, or while they are written."""
_ENDING = re.compile(r"(?:\.\w{1,9})?\.(?:gz|zst|bz2|xz|lz4)$|\.\w{1,9}$", re.IGNORECASE)
MAX_RECORD_BYTES = 4 << 20
Found = tuple[int | None, bytes | str]
"""A record's number from 1 and its bytes, or why it is refused; without a number, why (the rest of) the file is."""
Read = Callable[[str], object]
_BYTES = (bytes, bytearray, memoryview)
_PLAIN = {str, int, float, bool, type(None)}
"""What JSON has as it is."""


@dataclass(frozen=True)
class FileForm:
    """How a file is read: its records are members of a list, lines, rows of cells or of columns; of the files of a tree
    those of the lowest `rank` are. `usual_ids` says whether records may name their ids as others do, or, as in chunk
    files, `metadata.chunk_id` alone."""

    layout: Layout
    rank: int
    packing: str = ""
    usual_ids: bool = True

    @property
    def is_table(self) -> bool:
        return self.layout in ("cells", "columns")


def form_of(name: str) -> FileForm | None:
    """Tell how a file of this name is read; None for one that is not. The names of tables may be in upper case."""
    for ending, layout in CHUNKS.items():
        if name.endswith(ending):
            return FileForm(layout, 0, usual_ids=False)
    lower = name.lower()
    packing = next((each for each in PACKINGS if lower.endswith(each)), "")
    lower = lower.removesuffix(packing)
    for ending, layout in (CHUNKS | TABLES).items():
        if lower.endswith(ending):
            return FileForm(layout, 1, packing, ending not in CHUNKS)
    return FileForm("list", 2, packing) if lower.endswith(".json") and lower not in BESIDE else None


@dataclass
class Unread:
    """How many files of each ending are not read, and the first of them."""

    files: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    written: list[Path] = field(default_factory=list)
    """What runs wrote."""

    def add(self, name: str, files: int = 1) -> None:
        """Count files that end as the first of them does, in whatever letters; of packed ones both endings."""
        kind = ending[0].lower() if (ending := _ENDING.search(name)) else "without ending"
        self.files[kind] += files
        self.first[kind] = min(self.first.get(kind, name), name)

    def see(self, path: PurePath, names: Collection[str]) -> None:
        """Count a file unless it is plainly nobody's texts: hidden, or one with a mark, sums or a word on the `names`
        that it stands among."""
        saved = path.name == "state.json" and any(name.endswith(".arrow") for name in names)
        if not (saved or _ASIDE.fullmatch(path.name) or any(part[0] == "." for part in path.parts)):
            self.add(path.as_posix())

    @property
    def alike(self) -> int:
        """How many have an ending of which others are read."""
        return sum(files for kind, files in self.files.items() if form_of(f"_{kind}"))

    @property
    def documents(self) -> bool:
        """Whether some are pages that a chunk file can be made of."""
        return any(kind in PAGES for kind in self.files)

    def told(self) -> str:
        """Say how many of which ending there are, those first of which others are read, and one of them by name."""
        kinds = sorted(self.files, key=lambda kind: (form_of(f"_{kind}") is None, -self.files[kind], kind))
        shown, total = [f"{self.files[kind]:,} {kind}" for kind in kinds[:KINDS]], self.files.total()
        shown += [f"{sum(self.files[kind] for kind in kinds[KINDS:]):,} other"] * (len(kinds) > KINDS)
        return f"{', '.join(shown)}; first " * (total > 1) + self.first[kinds[0]]


def stem_of(name: str) -> str:
    """Return the name of a file without what says how it is read."""
    base = name
    for endings in (PACKINGS, (*CHUNKS, *TABLES, ".json")):
        base = next((base[: -len(each)] for each in endings if base.lower().endswith(each)), base)
    return base or name


class _SavedFile(msgspec.Struct):
    name: str = msgspec.field(name="filename")


class _Saved(msgspec.Struct):
    """What `datasets` writes beside its tables as `state.json`, and beside its splits as `dataset_dict.json`."""

    files: list[_SavedFile] = msgspec.field(name="_data_files", default_factory=list)
    splits: list[str] = msgspec.field(default_factory=list)


def copies_in(folder: Path, names: Sequence[str]) -> tuple[set[str], dict[str, str]]:
    """Tell which of a folder's files and directories say again what others say (what Jupyter keeps of those that it
    saved, and `datasets` beside the tables that it lists), and why those cannot be read that `datasets` lists."""
    if folder.name == ".ipynb_checkpoints":
        return {name for name in names if form_of(name)}, {}
    listed, lacking = set[str](), dict[str, str]()
    for list_name in {"state.json", "dataset_dict.json"}.intersection(names):
        try:
            saved = msgspec.json.decode(atomic.content(folder / list_name), type=_Saved)
            listed |= {each.name for each in saved.files}
            absent = {*saved.splits, *listed}.difference(names)
            absent |= {each for each in saved.splits if not (folder / each / "state.json").exists()}
            lacking |= dict.fromkeys(absent, f"listed in {list_name}, but not there: copy the data set again")
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            if list_name != "state.json" or "dataset_info.json" in names:  # else it is anybody's file
                lacking[list_name] = "cannot be read as the list of tables that it is: copy the data set again"
    return {name for name in names if listed and name.endswith(".arrow")} - listed, lacking


def walk(
    place: Path, refuse: Callable[[OSError], object] | None = None, skipped: Callable[[Path], object] = lambda _: None
) -> Iterator[tuple[Path, list[str], list[str]]]:
    """Walk a tree as `storage.walk` does, but for what runs wrote, which `skipped` hears."""
    for folder, folders, names in storage.walk(place, refuse):
        if _is_written(folder, folders, names):
            folders.clear()
            skipped(folder)
        else:
            yield folder, folders, names


def _is_written(folder: Path, folders: list[str], names: list[str]) -> bool:
    """Whether a folder is a run, or holds what Python gave to runs, of which nothing is input."""
    if {RUN, JOURNAL}.issubset(names):
        with suppress(OSError), storage.raw(folder / JOURNAL, atomic.at_once) as journal:
            return (journal.read(len(BEGINS)) or BEGINS) == BEGINS  # it may have been killed before it wrote a line
    return folder.name == INPUTS and bool(folders) and not names and all(map(_GIVEN.fullmatch, folders))


def is_beir(place: Path) -> bool:
    """Tell whether a directory is a test collection of BEIR's form."""
    with suppress(OSError):  # of one that is closed; the walk itself refuses it
        return all(any((place / name).exists() for name in names) for names in (("qrels",), QUERIES, CORPUS))
    return False


def bounded(record: bytes | memoryview) -> bytes | str:
    """Return the record, or why it is refused."""
    if len(record) > MAX_RECORD_BYTES:
        return f"larger than {words.human_bytes(MAX_RECORD_BYTES)}"
    return bytes(record).strip()


def lost(number: int) -> Found:
    """Refuse a file with null bytes in a row within a record, as a full disk leaves them: more may be lost there."""
    return None, f"holds null bytes within record {number}: copy it again, or save it as UTF-8"


def read_bytes(row: dict[str, Any], texts: Collection[str]) -> None:
    """Make texts of what of a row is bytes in UTF-8, at any depth, numbers of decimals, and lists of sets, in one order
    in each process.

    Raises UnicodeDecodeError for bytes under a name of `texts` that are not, TypeError for two keys that JSON does not
    tell apart.
    """
    for name, value in row.items():
        if isinstance(value, _BYTES) and any(spelt(each, (name,)) == name for each in texts):
            row[name] = bytes(value).decode()
        elif type(value) not in _PLAIN:
            row[name] = _legible(value)


def _legible(value: Any) -> Any:
    if isinstance(value, _BYTES):
        with suppress(UnicodeDecodeError):
            return bytes(value).decode()
    if isinstance(value, Decimal) and value.is_finite():
        number = int(value) if value.as_tuple().exponent == 0 else float(value)
        return number if Decimal(repr(number)) == value else value  # a text, with all its digits
    if is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, dict):
        if twice := next((key for key in value if not isinstance(key, str) and str(key) in value), None):
            raise TypeError(f"a dict with the keys {twice!r} and {str(twice)!r}")
        return {key: each if type(each) in _PLAIN else _legible(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(_legible, value), key=repr)
    if isinstance(value, list | tuple) and not _PLAIN.issuperset(map(type, value)):
        return list(map(_legible, value))
    return value


class _Hashed(RawIOBase):
    """A file that is read from its beginning to its end, and hashed as it is."""

    def __init__(self, raw: RawIOBase) -> None:
        super().__init__()
        self.raw, self.digest = raw, hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        block = (self.raw.readall() if size is None or size < 0 else self.raw.read(size)) or b""
        self.digest.update(block)
        return block

    def readall(self) -> bytes:
        return self.read(-1)

    def readinto(self, buffer: Any, /) -> int:
        size = self.raw.readinto(buffer) or 0
        self.digest.update(memoryview(buffer)[:size])
        return size

    def drain(self) -> str:
        """Read what is left; the SHA-256 of it all."""
        while self.read(1 << 20):
            pass
        return self.digest.hexdigest()


@contextmanager
def opened(path: Path, within: Path, read: Read, packing: str = "") -> Iterator[BufferedReader]:
    """Open a file to be read from its beginning on, unpacked; `read` gets the SHA-256 of the bytes that stand in it.

    Raises OSError for one that cannot be opened or has become a link out of the directory `within`.
    """
    with storage.raw(path, atomic.at_once) as raw, _Hashed(raw) as handle:
        _check_within(handle, path, within)
        yield BufferedReader(cast(RawIOBase, _unpacked(handle, packing)))
        read(handle.drain())


@contextmanager
def opened_anywhere(path: Path, within: Path, read: Read, packing: str = "") -> Iterator[BinaryIO]:
    """Open a file that is read at any place, as `opened` does; what is packed or in storage goes to scratch.

    Raises OSError also for one that changed meanwhile.
    """
    with storage.raw(path, atomic.at_once) as raw, _Hashed(raw) as handle:
        _check_within(handle, path, within)
        before = _stamp(handle)
        if packing or not before:
            with tempfile.TemporaryFile() as scratch:
                unpacked = _unpacked(handle, packing)  # held: Arrow's closes the file when it goes
                shutil.copyfileobj(unpacked, scratch, 1 << 20)
                digest = handle.drain()
                scratch.seek(0)
                yield cast(BinaryIO, scratch)
        else:
            digest = handle.drain()
            with os.fdopen(os.dup(handle.raw.fileno()), "rb") as again:
                again.seek(0)
                yield again
        if _stamp(handle) != before:
            raise OSError(errno.ESTALE, storage.CHANGED)
        read(digest)


def _unpacked(handle: _Hashed, packing: str) -> BufferedIOBase | RawIOBase:
    if packing == ".gz":
        return gzip.GzipFile(fileobj=handle, mode="rb")
    if packing == ".zst":
        import pyarrow as pa

        return cast(BufferedIOBase, pa.CompressedInputStream(pa.PythonFile(handle, "r"), "zstd"))
    return handle


def _check_within(handle: _Hashed, path: Path, within: Path) -> None:
    if isinstance(path, storage.Url):  # has no links
        return
    if not atomic.place_of(handle.raw.fileno(), path).is_relative_to(within):
        raise OSError(errno.EPERM, "link points outside the root")


def _stamp(handle: _Hashed) -> tuple[int, ...]:
    """What another state of a file has not; nothing of one in storage, which looks itself."""
    if isinstance(handle.raw, storage.ObjectReader):
        return ()
    found = os.fstat(handle.raw.fileno())
    return found.st_size, found.st_mtime_ns
