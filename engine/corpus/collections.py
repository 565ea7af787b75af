"""Which directories are collections, which files they hold, and what Qdrant will call them.

`<root>/<Collection>/**/*_chunks.json` and `*.jsonl`, where there are none tables, else other JSON; a root that holds
such files itself is one collection named after itself, as a file is. Nothing outside the root is ever read: a link that
leaves it is refused by name.
"""

import hashlib
import math
import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from interlock.engine import storage
from interlock.engine.corpus.forms import CORPUS, QUERIES, READ, Unread, copies_in, form_of, is_beir, stem_of, walk
from interlock.engine.corpus.naming import BEIR, USUAL, Naming, spelt
from interlock.engine.errors import UsageError, meant, near
from interlock.engine.record import atomic
from interlock.engine.record.facts import Refusal
from interlock.engine.record.shards import Shard
from interlock.engine.record.words import argument, command, few, several

NOTHING = 9
"""The rank where nothing is read."""
LONGEST_NAME = 200


@dataclass(frozen=True)
class Collection:
    """A directory of files of texts; `files` are relative to `root`, sorted. Nothing is read outside `within`."""

    name: str
    qdrant_collection: str
    root: Path
    files: tuple[str, ...]
    refusals: tuple[Refusal, ...] = field(default=())
    within: Path = Path("/")
    unread: Unread = field(default_factory=Unread)
    """Files beside them that are not read."""
    naming: Naming = USUAL
    by_ordinal: bool = False  # equal texts without ids are told apart by their order alone, as earlier versions did
    shard: Shard | None = None  # the share of its texts that is taken


def qdrant_name(name: str) -> str:
    """Derive the Qdrant collection of a directory: lower case, accents dropped, every run of other signs than
    letters, digits, `-` and `_` becomes one `_`, at most 200 characters.

    Where letters or digits of another script are lost, `-` and 8 hex digits of the SHA-256 of the name's NFC are added,
    so that names which differ in these alone stay apart; where nothing else is left, they follow `collection`.
    """
    kept = unicodedata.normalize("NFKD", name)
    mapped = re.sub(r"[^a-z0-9_-]+", "_", kept.encode("ascii", "ignore").decode().lower()).strip("_-")
    if mapped and not any(sign.isalnum() and not sign.isascii() for sign in kept):
        return mapped[:LONGEST_NAME]
    whole = unicodedata.normalize("NFC", name).encode(errors="backslashreplace")
    suffix = f"-{hashlib.sha256(whole).hexdigest()[:8]}"
    return (mapped or "collection")[: LONGEST_NAME - len(suffix)] + suffix


def discover(root: Path, wanted: Sequence[str] = (), naming: Naming = USUAL) -> list[Collection]:
    """List the collections under `root` in the order of their names; only those named in `wanted`, if any. A file is
    one, named after itself.

    Raises UsageError for a root that is missing or holds no file of texts, for a wanted name that is not
    there, and for two directories that would share one Qdrant name.
    """
    if any(unicodedata.category(sign) == "Cs" for sign in os.path.realpath(root)):
        raise UsageError(f"cannot record {printable(str(root))}: the path is not UTF-8; rename it")
    try:
        entire = storage.real(root)
        found = [_alone(entire)] if entire.is_file() else _found(entire)
    except FileNotFoundError:
        hint = "" if isinstance(root, storage.Url) else near(root)
        raise UsageError(f"{root} does not exist{hint}: name a file or a directory of texts") from None
    except NotADirectoryError:
        told = f"cannot read texts from {root}: name a directory, or a file of those forms: {READ}"
        raise UsageError(f"{told}; what Python holds takes interlock.embed(documents)") from None
    except OSError as error:
        raise UsageError(f"cannot read {root}: {error.strerror}") from None
    if not any(collection.files or collection.refusals for collection in found):
        skipped = "".join(f"; {each}" for each in overlooked(root, found))
        if _not_read(root, found).documents:
            words = ["chunk", argument(root), "--out", f"chunks/{entire.name}/pages.jsonl"]
            skipped += f"; to make a chunk file of documents use `{command(words)}`"
        raise UsageError(f"{root} has no chunk files or tables: name the directory above them ({READ}){skipped}")
    names = {collection.name for collection in found}
    wanted = [spelt(name, names) for name in wanted]
    if missing := [name for name in wanted if name not in names]:
        hint = meant(missing[0], names)
        raise UsageError(f"no collection {', '.join(map(repr, missing))}{hint}: available {', '.join(sorted(names))}")
    # A directory without files gets no name in Qdrant, so that it is in nobody's way.
    chosen = [
        replace(
            collection,
            qdrant_collection=qdrant_name(collection.name) if collection.files else "",
            naming=naming if naming.given else collection.naming,
        )
        for collection in found
        if not wanted or collection.name in wanted
    ]
    if empty := [each.name for each in chosen if wanted and not each.files and not each.refusals]:
        raise UsageError(f"collection {empty[0]!r} has no chunk files: drop it from --collections")
    owners: dict[str, str] = {}
    for collection in (each for each in chosen if each.files):
        other = owners.setdefault(collection.qdrant_collection, collection.name)
        if other != collection.name:
            raise UsageError(
                f"collections {other!r} and {collection.name!r} both map to the Qdrant collection "
                f"{collection.qdrant_collection!r}: rename one, or choose with --collections"
            )
    return chosen


def _alone(file: Path) -> Collection:
    """A file as a collection. Raises NotADirectoryError for one that is not read."""
    if not form_of(file.name):
        raise NotADirectoryError
    return Collection(stem_of(file.name), "", file.parent, (file.name,), within=file.parent)


def _found(root: Path) -> list[Collection]:
    rank = _rank(root)
    places = _directories(root, rank)
    found = [_collection(path, root, rank) for path in places if path == root or path.name[0] != "."]
    listed = rank and root not in places
    lacking = copies_in(root, [name for names in _listed(root) for name in names])[1] if listed else {}
    found = [each for each in found if each.files or each.name not in lacking]  # which say more
    found += [Collection(each, "", root, (), (Refusal(printable(each), None, why),)) for each, why in lacking.items()]
    return sorted(found, key=lambda each: each.name)


def _rank(root: Path, most: float = math.inf) -> int:
    """Of which rank the files are that are read under `root`: the lowest that is there, but for hidden directories, of
    the first files and directories, of which `most` are looked at."""
    lowest = NOTHING
    for folder, folders, names in walk(root):
        if folder == root:
            folders[:] = [name for name in folders if name[0] != "."]
        forms = map(form_of, {*names} - copies_in(folder, names)[0])
        lowest = min([lowest, *(form.rank for form in forms if form)])
        most -= len(folders) + len(names)
        if not lowest or most < 0:
            break
    return lowest


def _is_read(name: str, rank: int) -> bool:
    return (form := form_of(name)) is not None and form.rank == rank


def overlooked(root: Path, found: Sequence[Collection]) -> Iterator[str]:
    """Tell of what may have been meant: files of the collections `found` that are not read, directories that hold chunk
    files and are no collections, since their name begins with a dot or the root is one, and how BEIR's are read."""
    if not root.is_dir():
        return
    here = root.resolve()
    entire = next((each for each in found if each.root == here), None)
    read_of = (form.rank for each in found for name in each.files[:1] if (form := form_of(name)))
    rank = min(read_of, default=NOTHING)
    if (unread := _not_read(root, found)).files:
        read = "chunk files (*_chunks.json, *.jsonl) are, where there are some, else tables, else other JSON"
        files, shown = several(unread.files.total(), "file"), printable(unread.told())
        yield f"{files} not read ({shown}): {read}; name such a file alone, or make one of it (pages: interlock chunk)"
    if written := [printable(str(path.relative_to(here))) for each in found for path in each.unread.written]:
        yield f"not read, since runs wrote it: {few(sorted(written), 3)}; name a file in it alone to read it"
    for each in (each for each in found if each.naming == BEIR):
        what = "is a test collection of BEIR's form, so titles are put before texts and _id is the id"
        yield f"{printable(each.name)} {what}: name other fields with --text-field"
    splits = {(each.root / name).parents[1] for each in found for name in each.files if name.endswith(".arrow")}
    for place in sorted(each for each in splits if here in each.parents and (each / "dataset_dict.json").exists()):
        name = printable(str(place.relative_to(here)))
        yield f"the splits in {name} are one collection together: name that directory to have each as one"
    if not entire and (parts := [printable(each.name) for each in found if each.files and "=" in each.name]):
        yield f"each partition is a collection ({few(parts, 3)}): name the directory above {root} to have them as one"
    if entire:
        if inner := sorted({Path(name).parts[0] for name in entire.files if "/" in name}):
            yield (
                f"{root} holds chunk files itself, so it is one collection: move them into a directory of their own to "
                f"have {few([printable(name) for name in inner])} as collections"
            )
        return
    for path in _directories(root, rank):
        if path.name.startswith(".") and _rank(path) <= min(rank, NOTHING - 1):
            yield f"skipped {printable(path.name)} in {root}: names of collections do not begin with a dot"


def _directories(root: Path, rank: int) -> list[Path]:
    """What may be collections, by name: the root itself where it holds files that are read, else its directories."""
    folders, names = _listed(root)
    return [root] if any(_is_read(name, rank) for name in names) else [root / name for name in sorted(folders)]


def _listed(root: Path) -> tuple[list[str], list[str]]:
    """The folders and the files in a directory, by name. Raises OSError for one that is closed."""

    def refuse(error: OSError) -> None:
        raise error

    _, folders, names = next(walk(root, refuse), (root, [], []))
    return folders, names


def _collection(directory: Path, root: Path, rank: int) -> Collection:
    if refusal := refuse_path(directory, root):
        name = printable(directory.name)
        return Collection(name, "", directory, (), (Refusal(name, None, refusal),))
    files, unread, refusals = list[str](), Unread(), list[Refusal]()
    if beir := is_beir(directory):
        rank = int(not (directory / CORPUS[0]).exists())  # those that are packed are tables
    for path in _walk(directory, rank, refusals, unread):
        relative = path.relative_to(directory).as_posix()
        if reason := refuse_path(path, root):
            refusals.append(Refusal(printable(relative), None, reason))
        elif (path.name in QUERIES or path.parent.name == "qrels") and is_beir(path.parents[path.name not in QUERIES]):
            unread.add(relative)
        elif _is_read(path.name, rank):
            files.append(relative)
    corpora = (path.name in CORPUS and is_beir(path.parent) for path in map(directory.joinpath, files))
    naming = BEIR if beir or (files and all(corpora)) else USUAL
    refused = tuple(sorted(refusals, key=str))
    return Collection(directory.name, "", directory, tuple(sorted(files)), refused, root, unread, naming)


def _not_read(root: Path, found: Sequence[Collection]) -> Unread:
    """The files under `root` that are not read, in the collections `found` and beside them."""
    unread, here = Unread(), root.resolve()
    for each in found:
        for kind, name in each.unread.first.items():
            unread.add((each.root / name).relative_to(here).as_posix(), each.unread.files[kind])
    if not any(each.root == here for each in found):
        names = _listed(root)[1]
        for name in names:
            unread.see(Path(name), names)
    return unread


def _walk(directory: Path, rank: int, refusals: list[Refusal], unread: Unread) -> Iterator[Path]:
    """Files that are read, and every link to a directory (for `refuse_path` to judge), below `directory`; others are
    counted in `unread`, but for those that are plainly nobody's texts."""

    def refuse(error: OSError) -> None:
        name = Path(os.fsdecode(error.filename or directory)).relative_to(directory).as_posix()
        refusals.append(Refusal(printable(name), None, f"cannot read the directory: {error.strerror}"))

    for folder, folders, names in walk(directory, refuse, unread.written.append):
        for name in folders:
            path = folder / name
            with suppress(OSError):  # beyond the system's limits; the walk itself refuses it
                if path.is_symlink():
                    yield path
        copies, lacking = copies_in(folder, [*names, *folders])
        within = folder.relative_to(directory)
        refusals += [Refusal(printable(str(within / each)), None, why) for each, why in lacking.items() if rank]
        for name in names:
            if _is_read(name, rank) and name not in copies:
                yield folder / name
            elif name in copies:
                unread.add((within / name).as_posix())
            else:
                unread.see(within / name, names)


def refuse_path(path: Path, root: Path) -> str | None:
    """Say why nothing is read from `path` below `root`, or return None."""
    name = path.relative_to(root).as_posix() if path != root else ""
    if ".." in name.split("/"):  # as a key in storage may have
        return "its path has a part '..': rename it"
    if any(unicodedata.category(sign) in ("Cc", "Cs") for sign in name):
        return "name contains a control character or is not UTF-8: rename it"
    if isinstance(path, storage.Url):
        return None
    try:
        if path.is_symlink() and (reason := _refuse_link(path, root)):
            return reason
        return None if path.is_file() or path.is_dir() else "not a regular file"
    except OSError as error:
        return f"cannot read the file: {error.strerror}"


def _refuse_link(path: Path, root: Path) -> str | None:
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError: a link to itself, before Python 3.13
        return "broken link"
    if not target.is_relative_to(root):
        return "link points outside the root"
    return "link to a directory (its files are read where they are)" if target.is_dir() else None


def printable(name: str) -> str:
    """Escape everything in `name` that a terminal or a UTF-8 file could not take."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in name)


MOST = 20_000
"""Files and directories that are looked at; who names the root of a disk does not wait for all of it."""
SAMPLED, SAMPLE = 4, 1 << 16
"""Files of a collection of which so many bytes are read."""


@dataclass(frozen=True)
class Glance:
    """A directory that would become a collection: its chunk files, their bytes, and about how many chunks."""

    name: str
    files: int
    bytes: int
    chunks: int


def glance(root: Path, stopped: Callable[[], bool] = lambda: False, most: int = MOST) -> tuple[list[Glance], bool]:
    """Look at the collections under `root`; add whether all of it was seen. Raises OSError for what is no directory."""
    found, left, entire = [], most, root.resolve()
    if entire.is_file():
        return ([_glance(entire, [entire])] if form_of(entire.name) else []), True
    rank = _rank(entire, most)
    for place in (each for each in _directories(entire, rank) if each == entire or each.name[0] != "."):
        files: list[Path] = []
        for folder, folders, names in walk(place):
            files += [folder / name for name in names if _is_read(name, rank)]
            left -= len(folders) + len(names)
            if left < 0 or stopped():
                break
        if files:
            found.append(_glance(place, sorted(files)))
        if left < 0 or stopped():
            return found, False
    return found, True


def _glance(place: Path, files: Sequence[Path]) -> Glance:
    sizes = {}
    for file in files:
        with suppress(OSError):
            sizes[file] = file.stat().st_size
    total, read, records = sum(sizes.values()), 0, 0
    for file in list(sizes)[:: max(1, len(sizes) // SAMPLED)][:SAMPLED]:
        with suppress(OSError), atomic.opened(file) as handle:
            head = handle.read(SAMPLE)
            read += len(head)
            form = form_of(file.name)
            if form and not form.packing and form.layout != "columns":  # of others the bytes say nothing
                records += head.count(b'"text"') if form.layout == "list" else len(head.splitlines())
    name = stem_of(place.name) if place.is_file() else place.name
    return Glance(name, len(files), total, round(records * total / read) if read else 0)
