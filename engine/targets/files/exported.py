"""What a run exported of a collection, read as the points that its embedded store would hold.

Everything comes from files of the run: `points.parquet`, the token vectors beside it, and the journal that says what
they mean. A window of rows is in memory at once, and BM25 is made of the texts as a run makes it. No file is mapped:
one that is cut short would end the process.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import numpy as np

from interlock.engine.compute.parts.files import header_of
from interlock.engine.compute.parts.tokens import TokenRows
from interlock.engine.corpus.chunks import Chunk, parted
from interlock.engine.errors import InterlockError, UsageError, near, remedy
from interlock.engine.record.atomic import AGAIN, check_written
from interlock.engine.record.facts import Artefact, RosterEntry
from interlock.engine.record.inputs import language_of
from interlock.engine.record.rundir import JOURNAL, RunDirectory
from interlock.engine.record.shards import Shards, shards_of, whole_name
from interlock.engine.record.summary import CollectionSummary, Summary, summarise
from interlock.engine.record.words import several
from interlock.engine.standing.runs import refuse_at_work, state_of
from interlock.engine.targets.files.formats import TABLE
from interlock.engine.targets.files.tables import OWN_RECORDS, TEXTS, matrix_of, terms_of
from interlock.engine.targets.files.told import spec_of, told
from interlock.engine.targets.windows import Places, TokenWindow, Window, points_of
from interlock.engine.vectors.bm25 import BM25, WordCounts, Words, WordWeights
from interlock.engine.vectors.manifest import read_manifest, remaining, token_dims
from interlock.engine.vectors.points import PayloadForm, Point
from interlock.engine.vectors.precision import FUSED

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


NEAR = 0.01
"""The share by which the average length of texts may be off in their BM25 vectors."""


@dataclass(frozen=True)
class ExportedRun:
    """A run whose exports can be uploaded."""

    directory: RunDirectory
    summary: Summary
    roster: Sequence[RosterEntry]

    @classmethod
    def open(cls, directory: Path) -> "ExportedRun":
        """Read a run's journal. Raises UsageError where there is none, InterlockError where it is damaged."""
        path = directory / JOURNAL
        try:
            state = state_of(directory)
        except (FileNotFoundError, NotADirectoryError):
            why = f"(no {JOURNAL}){near(directory)}"
            raise UsageError(f"{directory} is not a run {why}: name the directory of a run") from None
        except OSError as error:
            raise InterlockError(f"cannot read {path}: {error.strerror}; {remedy(error)}") from error
        if state.started is None:
            raise UsageError(f"{path} has no entry yet: wait until the run has started")
        return cls(RunDirectory(directory), summarise(state), state.roster)

    def collections(self, wanted: str | None = None, payload: PayloadForm | None = None) -> "list[ExportedCollection]":
        """Open what was exported of every collection, or of the one that is `wanted`, by either of its names, with the
        payload of its points in another form than in the run, if one is given.

        Raises UsageError for one that is not there or has no table of points, InterlockError for a file that changed.
        """
        return [ExportedCollection.open(self, each, payload) for each in self.named(wanted)]

    def named(self, wanted: str | None = None) -> list[CollectionSummary]:
        """Find every collection that has chunks, or the one that is `wanted`. Raises UsageError where there is none."""
        every = [each for each in self.summary.collections if each.chunks]
        chosen = [each for each in every if wanted in (None, each.name, each.qdrant_collection)]
        if not chosen:
            refuse_at_work(self.directory.path, f"there is no collection {wanted or 'of this run'}")
            there = ", ".join(each.name for each in every) or "none"
            raise UsageError(f"run {self.summary.run_id} has no collection {wanted!r}: choose one of {there}")
        return chosen

    def lacking(self, wanted: str | None = None) -> list[str]:
        """List every collection that is not complete, or the one that is `wanted`, as `Docs incomplete`."""
        chosen = [each for each in self.summary.collections if wanted in (None, each.name, each.qdrant_collection)]
        return [f"{each.name} {each.status}" for each in chosen if each.status not in ("completed", "skipped")]

    def setting(self, name: str) -> Any:
        """Return a setting of the run's latest session; None where it had none of this name."""
        found = self.summary.configuration.get(name)
        return found.value if found else None


class _ExportedArray:
    """An array in a file, of which parts are read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with readable(path):
            self._kind, shape, size = header_of(path, complete=False)
            self._offset = size - math.prod(shape) * self._kind.itemsize

    def part(self, start: int, end: int) -> Any:
        """Read what is at `[start:end]`."""
        offset = self._offset + start * self._kind.itemsize
        with readable(self._path):
            found = np.fromfile(self._path, self._kind, end - start, offset=offset)
            if len(found) < end - start:
                raise EOFError("it has no such part")
        return found


class _ExportedTokens:
    """Token vectors in the two arrays in which they are exported; consecutive rows of them are read."""

    def __init__(self, starts: Path, vectors: Path, width: int) -> None:
        self.width, self._starts, self._records = width, _ExportedArray(starts), _ExportedArray(vectors)

    def counts(self, rows: Places) -> Places:
        return np.asarray(np.diff(self._starts.part(rows[0], rows[-1] + 2)), np.int64)

    def take(self, rows: Places) -> TokenRows:
        starts = self._starts.part(rows[0], rows[-1] + 2)
        return TokenRows(starts - starts[0], self._records.part(starts[0], starts[-1]), np.diff(starts) == 0)


@dataclass(frozen=True)
class ExportedCollection:
    """One collection: its dense vectors by name with their widths, what they all mean, and its points.

    `terms` are the names of the sparse vectors in its table, `late` its token vectors by name, `language` that of its
    BM25, empty without, `form` where payloads have metadata. `fingerprint` is the SHA-256 of what its files hold and of
    what they mean, `status` what became of it in the run, `uploads` where the run keeps what is known of uploads.
    `unread` says what of the corpus the run may not have seen, empty for nothing. `files` are all that is read, as the
    run recorded them. `average` is the average length of a text by which points that are there have their BM25, 0 for
    none: it stays while that of these texts is `NEAR` it, so that few other texts do not change the vectors of all.
    `elsewhere` is what other shards count, `shards` which this is.
    """

    run_id: str
    name: str
    qdrant_collection: str
    status: str
    rows: int
    dims: Mapping[str, int]
    terms: Sequence[str]
    manifest: Mapping[str, object]
    fingerprint: str
    uploads: Path
    unread: str
    files: Mapping[Path, Artefact]
    table: "pq.ParquetFile"
    late: Mapping[str, _ExportedTokens]
    language: str
    form: PayloadForm
    average: float = 0.0
    elsewhere: Mapping[str, int] = field(default_factory=dict)
    shards: Shards | None = None

    @classmethod
    def open(
        cls, run: ExportedRun, summary: CollectionSummary, payload: PayloadForm | None = None
    ) -> "ExportedCollection":
        """Open the files of a collection, once they are those that the run wrote."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        directory = run.directory.exports(summary.name)
        written = {whole_name(each.path): each for each in summary.exports}
        tokens = token_dims(remaining(run.roster, summary.missing))
        names = [TABLE, *(f"{name}{end}" for name in tokens for end in ("-starts.npy", ".npy"))]
        for name in (each for each in names if each not in written):
            refuse_at_work(run.directory.path, f"there is no {name} of {summary.name}")
            kind = "parquet" if name == TABLE else "npy"
            raise UsageError(
                f"the run wrote no {directory / name} ({summary.name} is {summary.status}): add {kind} to --export "
                f"and --resume it"
            )
        at = {name: directory / Path(written[name].path).name for name in names}
        files = {at[name]: written[name] for name in names}
        for path, artefact in files.items():
            check_written(path, artefact)
        with readable(at[TABLE]):
            table = pq.ParquetFile(at[TABLE], memory_map=False)
        vectors = [field for field in table.schema_arrow if field.name not in TEXTS]
        dims = {each.name: each.type.list_size for each in vectors if pa.types.is_fixed_size_list(each.type)}
        terms = [each.name for each in vectors if each.name not in dims]
        language = language_of(run.summary.configuration)
        spec = spec_of(run.summary, run.roster, summary, dims.get(FUSED, 0))
        manifest = told(replace(spec, payload=payload or spec.payload).manifest)
        form = read_manifest(manifest, dims, [*terms, *([BM25] if language else [])], tokens).payload
        held = {name: written[name].sha256 for name in names}
        known = hashlib.sha256(msgspec.json.encode([held, {**manifest, "run": None}], order="sorted")).hexdigest()
        return cls(
            run.summary.run_id,
            summary.name,
            summary.qdrant_collection,
            summary.status,
            table.metadata.num_rows,
            dims,
            terms,
            manifest,
            known,
            run.directory.uploads,
            _unread(summary),
            files,
            table,
            {each: _ExportedTokens(at[f"{each}-starts.npy"], at[f"{each}.npy"], tokens[each]) for each in tokens},
            language,
            form,
            elsewhere=summary.elsewhere,
            shards=shards_of(run.directory.inputs(), summary.chunks + summary.elsewhere.get("chunks", 0)),
        )

    @property
    def sparse(self) -> list[str]:
        """The names of its sparse vectors."""
        return [*self.terms, *([BM25] if self.language else [])]

    @property
    def token_widths(self) -> dict[str, int]:
        """The width of its token vectors, by name."""
        return {name: each.width for name, each in self.late.items()}

    @cached_property
    def bm25(self) -> WordWeights | None:
        """What makes the BM25 vectors of its texts, which are all read once for their average length."""
        if not self.language:
            return None
        counts = WordCounts(Words(language=self.language))
        for group in range(self.table.num_row_groups):
            counts.add(self._read(group, ["text"])["text"].to_pylist())
        own = counts.bm25(np.arange(self.rows, dtype=np.int32), self.elsewhere)
        near = abs(self.average - own.average_length) <= NEAR * own.average_length
        return msgspec.structs.replace(own, average_length=self.average) if near else own

    @cached_property
    def _own_records(self) -> frozenset[int]:
        """Rows whose metadata itself ends as if it held other fields of a record."""
        told = (self.table.metadata.metadata or {}).get(OWN_RECORDS, b"[]")
        return frozenset(msgspec.json.decode(told, type=list[int]))

    def points(self, first: int = 0) -> Iterator[Point]:
        """Yield the point of every row in order, from row `first` on."""
        for window in self._windows(first):
            yield from points_of(window, self.dims, self.bm25, self.form)

    def sampled(self, most: int) -> Iterator[Point]:
        """Yield the points of at most so many rows, which are spread over the collection."""
        places = np.unique(np.linspace(0, self.rows - 1, most).astype(np.int64))
        for start, group in self._groups():
            rows = places[(places >= start) & (places < start + self.table.metadata.row_group(group).num_rows)]
            if len(rows):
                whole = self._window(start, group)
                for row in (rows - start).tolist():
                    one = _rows(whole, slice(row, row + 1))
                    yield from points_of(one, self.dims, self.bm25, self.form)

    def ids(self) -> Iterator[list[str]]:
        """Yield the ids of all points, a window at a time."""
        for group in range(self.table.num_row_groups):
            yield self._read(group, ["id"])["id"].to_pylist()

    def check(self) -> None:
        """Raise InterlockError unless all files are still those of the run; they are read again where their inode, size
        or times are others."""
        for path, artefact in self.files.items():
            check_written(path, artefact)

    def _read(self, group: int, columns: list[str] | None = None) -> "pa.Table":
        with readable(next(iter(self.files))):
            return self.table.read_row_group(group, columns=columns)

    def _groups(self) -> Iterator[tuple[int, int]]:
        """The first row of each group of rows, with its number."""
        start = 0
        for group in range(self.table.num_row_groups):
            yield start, group
            start += self.table.metadata.row_group(group).num_rows

    def _windows(self, first: int) -> Iterator[Window]:
        for start, group in self._groups():
            skipped = first - start
            if skipped < self.table.metadata.row_group(group).num_rows:
                window = self._window(start, group)
                yield _rows(window, slice(skipped, None)) if skipped > 0 else window

    def _window(self, start: int, group: int) -> Window:
        table = self._read(group)
        columns = (table[name].to_pylist() for name in TEXTS)
        chunks = [
            Chunk(text, metadata, chunk_id, source, point, record)
            for point, chunk_id, source, text, payload in zip(*columns, strict=True)
            for metadata, record in [parted(payload.encode())]
        ]
        for row in self._own_records.intersection(range(start, start + len(chunks))):
            chunk, payload = chunks[row - start], table["payload"][row - start].as_py()
            chunks[row - start] = replace(chunk, payload=payload.encode(), record=b"")
        rows = np.arange(start, start + len(chunks))
        return Window(
            start,
            [UUID(each.point_id).bytes for each in chunks],
            (),
            {name: matrix_of(table[name], width) for name, width in self.dims.items()},
            {name: terms_of(table[name]) for name in self.terms},
            {name: TokenWindow(tokens, rows) for name, tokens in self.late.items()},
            chunks,
        )


def _unread(summary: CollectionSummary) -> str:
    if refused := summary.refused + summary.elsewhere.get("refused", 0):
        unread = several(refused, "record or file", "records or files")
        return f"{unread} of {summary.name} could not be used and may be some of them"
    return "" if summary.status == "completed" else f"{summary.name} is {summary.status}"


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what a library says of a file into an InterlockError."""
    import pyarrow as pa

    try:
        yield
    except (OSError, ValueError, KeyError, EOFError, pa.ArrowException) as error:
        raise InterlockError(f"cannot read {path} ({error}): {AGAIN}") from error


def _rows(window: Window, rows: slice) -> Window:
    """Some consecutive rows of a window."""
    places = np.arange(len(window.points))[rows]
    return Window(
        window.start + int(places[0]),
        window.points[rows],
        (),
        {name: vectors[rows] for name, vectors in window.vectors.items()},
        {name: terms.taken(places) for name, terms in window.sparse.items()},
        {name: TokenWindow(tokens.file, tokens.texts[rows]) for name, tokens in window.tokens.items()},
        window.chunks[rows],
    )
