"""The rows of a table as records: each a JSON object of its columns, which is read on as that of a chunk file is.

Rows are streamed: of a table of any length a few thousand are held. What is no number, text or list in JSON becomes a
text: dates in ISO 8601, bytes as the UTF-8 that they are or in base 64, times in nanoseconds with all their digits, and
decimals that no float is.
A cell that cannot be read costs its own row.
"""

import codecs
import csv
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from io import BufferedReader, TextIOWrapper
from itertools import chain
from typing import Any, BinaryIO

import msgspec

from interlock.engine.corpus.forms import MAX_RECORD_BYTES, Found, bounded, lost, read_bytes
from interlock.engine.record.words import human_bytes, safe, several

ROWS = 1000
"""Rows that are turned into Python at once."""
PARQUETS, ARROWS, SCANNED = b"PAR1\x15", b"ARROW1\0\0", 1 << 20
"""How a file begins, a second one too that was written behind a whole or a cut one; bytes that are looked through at
once."""
END = b"\0\0\0\0"
"""How the mark ends that an Arrow stream ends with, of 8 bytes or, before Arrow 0.15, of these alone."""
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",  # begins as that of UTF-16 does
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
UNMARKED: dict[tuple[bool, ...], str] = {
    (True, False, False, False): "utf-32-le",
    (False, False, False, True): "utf-32-be",
    (True, False, True, False): "utf-16-le",
    (False, True, False, True): "utf-16-be",
}
"""The encoding of a text without a mark, by which of its first four bytes are no null (of JSON: RFC 4627, 3)."""
DELIMITERS = ",;\t|"
LONGEST_CELL = 8 * MAX_RECORD_BYTES
"""Signs of a cell that is read; what is larger is rather a quotation mark that nobody closed."""
LINES = 100
"""Lines that the names of columns may take."""
_SEPARATOR = re.compile(r"\ufeff?sep=([,;\t|])", re.IGNORECASE)
_BEGUN = re.compile(r'(?<![^,;\t|])"')
_QUOTED = re.compile(_BEGUN.pattern + '(?:[^"]|"")*+"')


def rows_of_cells(handle: BufferedReader, *, tabs: bool) -> Iterator[Found]:
    """Yield the rows of a CSV file in UTF-8, -16 or -32, whose first line names its columns: a record a row, of texts.

    What parts the cells is what the first line has most of outside quotes: a comma, a semicolon, a tab or a bar; or
    what a line before it says, as Excel takes it: `sep=;`.
    """
    csv.field_size_limit(LONGEST_CELL)
    begin = handle.peek(4)
    unmarked = UNMARKED.get(tuple(map(bool, begin[:4])), "utf-8-sig")
    encoding = next((name for mark, name in MARKS.items() if begin.startswith(mark)), unmarked)
    lines = TextIOWrapper(handle, encoding=encoding, errors="surrogateescape", newline="")
    try:
        head = [lines.readline(MAX_RECORD_BYTES)]
        if said := _SEPARATOR.fullmatch(head[0].rstrip("\r\n")):
            head = [lines.readline(MAX_RECORD_BYTES)]
        if not head[0].strip():
            yield None, "the first line names no columns: put their names there" if head[0] else "empty file"
            return
        while _BEGUN.search(names := _QUOTED.sub("", "".join(head))) and len(head) < LINES:
            head.append(lines.readline(MAX_RECORD_BYTES))
        if any(len(line) == MAX_RECORD_BYTES and line[-1] not in "\r\n" for line in head):
            yield None, f"the names of its columns are longer than {human_bytes(MAX_RECORD_BYTES)}: shorten them"
            return
        delimiter = said[1] if said else "\t" if tabs else max(DELIMITERS, key=names.count)
        yield from _cells(csv.reader(chain(head, lines), delimiter=delimiter, strict=True))
    finally:
        lines.detach()  # else it closes what it reads


def _cells(reader: Iterator[list[str]]) -> Iterator[Found]:
    number = 0
    try:
        columns = [name or f"column_{place}" for place, name in enumerate(next(reader), 1)]
        if problem := twice(columns):
            yield None, problem
            return
        for cells in filter(None, reader):  # an empty line is none
            if len(cells) > 1 and [cells[0].removeprefix("\ufeff").strip('"'), *cells[1:]] == columns:
                continue  # the first line of the next of several files that were joined end to end
            number += 1
            if any("\0" in cell for cell in cells):
                gap = any("\0\0" in cell for cell in cells)
                yield lost(number) if gap else (number, "holds a null byte, as texts never do: save it as UTF-8")
            else:
                yield number, _row(columns, cells)
    except csv.Error as error:
        begin = f"record {number + 1} and what follows cannot be read ({error})"
        yield None, f"{begin}: close its quotation marks, shorten its cell or save the file as UTF-8"


def _row(columns: Sequence[str], cells: Sequence[str]) -> bytes | str:
    if len(cells) != len(columns):
        mend = "quote a cell with a delimiter in it" if len(cells) > len(columns) else "fill in those that are lacking"
        return f"has {several(len(cells), 'cell')} where the first line names {len(columns)}: {mend}"
    try:
        return bounded(msgspec.json.encode(dict(zip(columns, cells, strict=True))))
    except UnicodeEncodeError:
        return "not UTF-8: save the file as UTF-8"


def twice(columns: Sequence[str]) -> str:
    """Why columns of these names cannot be told apart; empty where they can."""
    name, times = Counter(columns).most_common(1)[0] if columns else ("", 0)
    return f"{times} columns are called {safe(name, 40)!r}: rename all but one" if times > 1 else ""


def rows_of_columns(handle: BinaryIO, texts: Collection[str] = ()) -> Iterator[Found]:
    """Yield the rows of a parquet, Arrow or Feather file, or of an Arrow stream; bytes under one of the names `texts`
    must be UTF-8."""
    import pyarrow as pa

    try:
        yield from _columns(handle, texts)
    except (pa.ArrowException, ArithmeticError, OSError, NotImplementedError) as error:
        yield None, f"cannot read the table ({safe(str(error).splitlines()[0], 120)}): write it again"


def _columns(handle: BinaryIO, texts: Collection[str]) -> Iterator[Found]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    magic = handle.read(8)
    handle.seek(0)
    if not magic:
        yield None, "empty file"
        return
    joined, number = False, 0
    batches: Iterator[Any]
    if magic[:4] == b"PAR1":
        table = pq.ParquetFile(handle)
        joined = _has(handle, PARQUETS, _end(table.metadata))
        # Arrow joins no lists of categories from two row groups.
        groups = (table.iter_batches(ROWS, row_groups=[group]) for group in range(table.num_row_groups))
        batches = _numbered(chain.from_iterable(groups), table.schema_arrow, lambda: table.metadata.num_rows)
    elif magic[:6] == b"ARROW1":
        joined = _has(handle, ARROWS, len(ARROWS))
        reader = pa.ipc.open_file(handle)
        batches = map(reader.get_batch, range(reader.num_record_batches))
        batches = _numbered(batches, reader.schema, reader.count_rows)
    else:
        batches = _streamed(handle)
    if joined:  # Arrow would read the first by the places of the last
        yield None, "holds another table behind the first: write each as a file of its own"
        return
    for batch in batches:
        if batch is None:  # cut between two batches, it reads as if it were whole
            yield None, f"ends behind record {number} without the mark of its end: write it again"
            return
        if problem := twice(batch.schema.names) or unclear(batch.schema):
            yield None, problem
            return
        _check(batch)
        for start in range(0, batch.num_rows, ROWS):
            for row in _rows(batch.slice(start, ROWS)):
                number += 1
                yield number, row if isinstance(row, str) else _encoded(row, texts)


def _streamed(handle: BinaryIO) -> Iterator[Any]:
    """The batches of streams that may have been joined end to end; None behind the last where no mark ends it."""
    import pyarrow as pa

    size = handle.seek(-len(END), 2) + len(END)
    ends, last = handle.read() == END, 0
    handle.seek(0)
    while handle.tell() < size:
        begin, reader = handle.tell(), pa.ipc.open_stream(handle)
        last = handle.tell()
        for batch in _numbered(reader, reader.schema, partial(_counted, handle, begin)):
            last = handle.tell()
            yield batch
    if not ends or last == size:  # the bytes of a batch may end as the mark does
        yield None


def _counted(handle: BinaryIO, begin: int) -> int:
    """The rows of the stream that begins there."""
    import pyarrow as pa

    place = handle.tell()
    handle.seek(begin)
    try:
        return sum(batch.num_rows for batch in pa.ipc.open_stream(handle))
    finally:
        handle.seek(place)


def _numbered(batches: Iterable[Any], schema: Any, rows: Callable[[], int]) -> Iterator[Any]:
    """The batches of a table, with the index that pandas tells as a range beside its columns, 1 to n say, as one: where
    it has a name and is of as many `rows`, else they are a part of those that had it."""
    import pyarrow as pa

    name, numbers, start = "", range(0), 0
    with suppress(ArithmeticError, LookupError, TypeError, ValueError):  # of anybody: what is no such index
        (said,) = schema.pandas_metadata["index_columns"]
        numbers = range(said["start"], said["stop"], said["step"])
        name = str(said["name"] or "") if said["name"] not in schema.names and len(numbers) == rows() else ""
    for batch in batches:
        end = start + batch.num_rows
        yield batch.append_column(name, pa.array(numbers[start:end], pa.int64())) if name else batch
        start = end


def _end(metadata: Any) -> int:
    """Where the columns of a Parquet file end, as it says itself."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    columns = (group.column(at) for group in groups for at in range(metadata.num_columns))
    starts = ((each.dictionary_page_offset or each.data_page_offset, each) for each in columns)
    return max((start + each.total_compressed_size for start, each in starts), default=4)


def _has(handle: BinaryIO, mark: bytes, start: int) -> bool:
    """Whether these bytes are in a file, from `start` on."""
    handle.seek(start)
    before = b""
    while block := handle.read(SCANNED):
        if mark in before + block:
            return True
        before = block[-len(mark) :]
    return False


def unclear(schema: Any) -> str:
    """Say which column holds what Arrow has a number of that only pandas can read; empty where none does."""
    for field in schema:
        kind = getattr(field.type, "extension_name", "") or (field.metadata or {}).get(b"ARROW:extension:name", b"")
        if kind in ("pandas.period", b"pandas.period"):
            name = safe(field.name, 40)
            return f"column {name!r} holds periods of pandas, which are numbers here: pass it through astype(str)"
    return ""


def _check(batch: Any) -> None:
    """Raise ArrowInvalid for places beyond a batch's own bytes, which Arrow would follow; that texts are UTF-8 is told
    row by row."""
    import pyarrow as pa

    for column in batch.columns:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" not in str(error):
                raise


def _rows(batch: Any) -> list[dict[str, Any] | str]:
    """Its rows, or why one cannot be read."""
    import pyarrow as pa
    import pyarrow.types as kinds

    # Python has no type for times in nanoseconds: they are texts.
    times = [kinds.is_timestamp(kind) or kinds.is_time(kind) for kind in batch.schema.types]
    arrays = [
        _moments(column) if timed and column.type.unit == "ns" else column
        for column, timed in zip(batch.columns, times, strict=True)
    ]
    with suppress(ArithmeticError, LookupError, ValueError, pa.ArrowException):  # for one cell among all of them
        if not any(_has_nanoseconds(column.type) for column in arrays):  # those of pandas, where Arrow finds it
            return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names).to_pylist()  # type: ignore[no-any-return]
    return [_by_cell(batch.schema.names, [column[place] for column in arrays]) for place in range(batch.num_rows)]


def _has_nanoseconds(kind: Any) -> bool:
    """Whether there are times in nanoseconds in a type, at any depth."""
    return "[ns" in str(getattr(kind, "storage_type", kind))


def _moments(times: Any) -> Any:
    """Times of a column, or of a cell, as texts in ISO 8601, where Arrow puts a blank before the hour."""
    import pyarrow as pa
    from pyarrow import compute

    joined = compute.replace_substring(times.cast(pa.string()), " ", "T")
    return compute.replace_substring_regex(joined, r"([+-]\d\d)(\d\d)$", r"\1:\2")


def _span(span: int) -> str:
    """Nanoseconds in ISO 8601: whole microseconds as those of a coarser column are written."""
    if not span % 1000:
        return str(msgspec.to_builtins(timedelta(microseconds=span // 1000)))
    seconds, rest = divmod(abs(span), 10**9)
    return f"{'-' * (span < 0)}PT{seconds}.{rest:09}S"


def _by_cell(names: Sequence[str], cells: Sequence[Any]) -> dict[str, Any] | str:
    row = dict[str, Any]()
    for name, cell in zip(names, cells, strict=True):
        try:
            row[name] = _value(cell)
        except UnicodeDecodeError:
            return f"column {safe(name, 40)!r} is not UTF-8: write it as UTF-8"
        except ValueError as error:  # Arrow's own too
            return f"column {safe(name, 40)!r} cannot be read ({safe(str(error), 80)}): drop the column"
    return row


def _value(cell: Any) -> Any:
    """A cell in Python; a time of which Python has no such, as Arrow writes it."""
    import pyarrow as pa

    if isinstance(cell, pa.DictionaryScalar | pa.UnionScalar | pa.ExtensionScalar) and _has_nanoseconds(cell.type):
        return _value(cell.value)
    if cell.is_valid and getattr(cell.type, "unit", "") == "ns":
        return _span(cell.value) if pa.types.is_duration(cell.type) else _moments(cell).as_py()
    if cell.is_valid and isinstance(cell, pa.StructScalar):
        names = [field.name for field in cell.type]
        if problem := twice(names):
            raise ValueError(problem)
        return {name: _value(cell[place]) for place, name in enumerate(names)}
    if cell.is_valid and isinstance(cell, pa.MapScalar):
        return [[*_value(each).values()] for each in cell.values]
    if cell.is_valid and isinstance(cell, pa.ListScalar):
        return [_value(each) for each in cell.values]
    try:
        return cell.as_py()
    except UnicodeDecodeError:
        raise
    except (ArithmeticError, LookupError, ValueError):  # pytz has an error of its own for a zone that it lacks
        if pa.types.is_timestamp(cell.type):
            text = str(cell.cast(pa.timestamp(cell.type.unit)).cast(pa.string()))
            # a year that Arrow cannot write: in a time zone it writes another
            return text if text.startswith("<") else _moments(cell).as_py()
        return f"{cell.cast(pa.string()).as_py()}{f' {cell.type.unit}' if pa.types.is_duration(cell.type) else ''}"


def _encoded(row: dict[str, Any], texts: Collection[str]) -> bytes | str:
    try:
        read_bytes(row, texts)
        return bounded(msgspec.json.encode(row))
    except UnicodeDecodeError:
        return "its text is bytes that are not UTF-8: write it as UTF-8"
    except (TypeError, ValueError, RecursionError) as error:
        return f"cannot be written as JSON ({safe(str(error), 80)}): drop the column"
