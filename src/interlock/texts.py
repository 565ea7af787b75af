"""Texts that a caller has in memory, as a file that a run reads, continues and exports as it does any other.

Rows of a table become an Arrow stream, all else a JSON object a line. The file lies in a directory named after its
contents, so that the same texts are the same corpus, whenever and in whatever process they are given again.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import msgspec

from interlock.engine import parsers
from interlock.engine.corpus.collections import LONGEST_NAME
from interlock.engine.corpus.forms import read_bytes
from interlock.engine.corpus.identity import named
from interlock.engine.corpus.naming import USUAL, Naming
from interlock.engine.corpus.tables import twice, unclear
from interlock.engine.errors import UsageError
from interlock.engine.parsers import path_of
from interlock.engine.record import atomic
from interlock.engine.record.inputs import INPUTS as INPUTS
from interlock.recorded import AnyPath

Texts = AnyPath | Iterable[str | Mapping[str, object] | object]
"""A path, or texts, records, documents, or whatever gives itself as an Arrow stream."""
_TEXTS, _METADATA, _IDS = ("page_content", "text", "content"), ("metadata", "meta"), ("id", "id_", "node_id")
"""What LangChain, LlamaIndex, Haystack, Unstructured and Docling call the parts of a document."""
_UNNAMED = re.compile(r"__index_level_\d+__")
"""What pandas calls the numbers that rows keep when others were left out."""
_AS_MAPPING = ("to_dict", "export_json_dict", "model_dump")


def path_to(texts: object, name: str, above: Path, naming: Naming = USUAL) -> Path:
    """Return the path that was given, or that of a file below `above` with the texts, in a directory of their digest.

    Raises UsageError for what is neither, naming the first item that cannot be kept.
    """
    is_table = hasattr(texts, "__arrow_c_stream__")
    if hasattr(texts, "collect_schema") and not is_table:
        raise UsageError("chunks: a LazyFrame is not computed yet: pass chunks.collect()")
    if isinstance(texts, str | bytes | os.PathLike) or not (is_table or isinstance(texts, Iterable)):
        return path_of(texts, "chunks", parsers.place)
    if isinstance(texts, Mapping):
        raise UsageError(f"chunks: expected a path or texts, got a {type(texts).__name__}: pass one of its values")
    if isinstance(texts, set | frozenset):
        raise UsageError(
            f"chunks: a {type(texts).__name__} has no order, by which texts are known again: pass sorted(chunks)"
        )
    is_name = isinstance(name, str) and name.isprintable() and 0 < len(name.encode()) <= LONGEST_NAME
    if not is_name or name.startswith(".") or "/" in name:
        raise UsageError(f"name: expected the name of a collection, got {name!r:.100}: pass a word")
    with atomic.explaining(above):
        above.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".texts-", dir=above))
    file = scratch / f"{name}.{'arrow' if is_table else 'ndjson'}"
    try:
        _write_table(texts, file) if is_table else _write_lines(cast(Iterable[object], texts), file, naming)
        with atomic.explaining(above):
            place = above / atomic.sha256_of(file)[:16] / file.name
            place.parent.mkdir(exist_ok=True)
            return file.replace(place)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def places_of(file: Path, records: Sequence[int]) -> str:
    """Say which of the texts in memory these records of their `file` are, the first three with where they come from."""
    found, shown = {number: f"chunks[{number - 1}]" for number in records}, [*records[:3]]
    if file.suffix == ".ndjson":
        with suppress(OSError, ValueError), file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if number in shown and isinstance(record := msgspec.json.decode(line), dict):
                    metadata = record.get("metadata")
                    known = {**record, **(metadata if isinstance(metadata, dict) else {})}
                    at = ", ".join(f"{name} {known[name]!r:.80}" for name in ("source", "page") if name in known)
                    found[number] += f" ({at})" if at else ""
                if number >= max(shown):
                    break
    return ", ".join([found[number] for number in shown] + ["..."] * (len(records) > len(shown)))


def _write_table(texts: Any, file: Path) -> None:
    """Write the rows of a DataFrame or an Arrow table; a column alone holds texts."""
    import pyarrow as pa

    faults = pa.ArrowException, ArithmeticError, TypeError, ValueError
    index = [name for name in getattr(getattr(texts, "index", None), "names", ()) if name]  # of pandas
    frame = texts.to_frame("text") if index and hasattr(texts, "to_frame") else texts
    for name in {*index}.intersection(map(str, getattr(texts, "columns", ()))):
        if [*texts.index.get_level_values(name)] != [*texts[name]]:
            raise UsageError(f"chunks: the index and a column are both called {name!r:.60}: rename one of them")
    kinds: Mapping[str, object] = getattr(texts, "collect_schema", dict)()  # polars gives addresses of some
    try:
        if name := next((name for name, kind in kinds.items() if str(kind) == "Object"), ""):
            raise ValueError(f"column {name!r:.60} holds objects of Python")
        try:
            reader = pa.RecordBatchReader.from_stream(frame)
        except faults:
            reader = pa.table({"text": pa.chunked_array(texts)}).to_reader()
        # By place: of two columns of one name Arrow gives neither by it, and who reads the file says so.
        unnamed = [_UNNAMED.fullmatch(each.name) and pa.types.is_integer(each.type) for each in reader.schema]
        named = [at for at, each in enumerate(unnamed) if not each]
        schema = pa.schema([reader.schema.field(at) for at in named], reader.schema.metadata)
        if problem := unclear(schema):
            raise UsageError(f"chunks: {problem}")
        with atomic.explaining(file), pa.ipc.new_stream(file, schema) as writer:
            for batch in reader:
                writer.write_batch(batch.select(named))
    except faults as error:
        why, names = "; ".join(map(str, error.args)), [*getattr(texts, "columns", ())]
        if problem := twice([*map(str, names)]):
            raise UsageError(f"chunks: {problem}") from None
        for name in names if "column" not in why else ():
            try:
                pa.chunked_array(texts[name])
            except faults:
                why = f"column {name!r:.60}: {why}"
                break
        rows = next((way for way in ("to_pylist()", "to_dicts()") if hasattr(texts, way[:-2])), "")
        rows = rows or ("to_dict('records')" if names else "to_list()")
        rows = f"reset_index().{rows}" if index and not {*index}.intersection(names) else rows
        otherwise = f"give each column one type, drop null rows, or pass chunks.{rows}"
        raise UsageError(f"chunks: {why:.300}: {otherwise}") from None


def _write_lines(texts: Iterable[object], file: Path, naming: Naming) -> None:
    try:
        items = iter(texts)
    except TypeError:  # an array of no dimension says it late
        raise UsageError(f"chunks: expected a path or texts, got {texts!r:.100}: pass a list") from None
    first = next(items, items)  # which is none of its own
    if first is items:
        raise UsageError("chunks: expected at least one text, got none: pass some")
    if hasattr(texts, "columns"):  # of an old pandas, which iterates over the names of its columns
        raise UsageError("chunks: this table does not give itself as Arrow: pass table.to_dict('records')")
    with atomic.explaining(file):
        out = file.open("wb")
    with out:
        for number, item in enumerate(chain((first,), items)):
            try:
                record = dict(_record(item))
                read_bytes(record, naming.texts)
                line = msgspec.json.encode(record, enc_hook=_plain)
            except UnicodeEncodeError:
                raise UsageError(f"chunks[{number}]: a string has half of a surrogate pair: drop the half") from None
            except RecursionError:
                raise UsageError(f"chunks[{number}]: nested too deeply, or within itself: pass flat records") from None
            except (TypeError, ValueError) as error:
                raise UsageError(
                    f"chunks[{number}]: expected a text, a record or a document, got {error}: pass strings"
                ) from None
            with atomic.explaining(file):
                out.write(line + b"\n")


def _record(item: object) -> Mapping[str, object]:
    """An item as a record, of a document with its other fields; one of an Arrow column is a value of Python's first."""
    item = item.as_py() if hasattr(item, "as_py") else item
    if isinstance(item, str):
        return {"text": item}
    if isinstance(item, Mapping):
        return item
    if isinstance(item, msgspec.Struct):
        return msgspec.structs.asdict(item)
    if callable(method := getattr(item, "_asdict", None)):
        return dict(method())
    of_pandas, row = type(item).__module__.partition(".")[0] == "pandas", _row(item)
    about = next((name for name in _METADATA if getattr(item, name, None) is not None), "")
    if row and (of_pandas or not about):
        return row
    text = next((name for name in _TEXTS if isinstance(getattr(item, name, None), str)), "")
    if not text:
        raise TypeError(f"{item!r:.100}")
    said: object = getattr(item, about) if about else {}
    metadata = dict(said if isinstance(said, Mapping) else _mapping(said))
    ids = {name: getattr(item, name, None) for name in _IDS}
    own = next((name for name, each in ids.items() if named(each) or isinstance(each, UUID)), "")
    others = dict[str, object]()
    names = chain(getattr(item, "__dict__", ()), *(vars(kind).get("__slots__", ()) for kind in type(item).__mro__))
    for name, value in (row or {name: getattr(item, name) for name in names if hasattr(item, name)}).items():
        with suppress(TypeError, ValueError, RecursionError):  # what is no JSON, and not asked for
            if (
                name not in (text, about, own)
                and (row or name[0] != "_")
                and msgspec.json.encode(value, enc_hook=_plain)
            ):
                others[name] = value
    known = {"text": getattr(item, text), "metadata": metadata, **({"id": ids[own]} if own else {})}
    # What has the name of one of these, and is none, gets another.
    kept = {
        name + "_" * (name in known): each for name, each in others.items() if each is not None or name not in known
    }
    return kept | known


def _row(item: object) -> Mapping[str, object]:
    """The fields of a row of pandas, a namespace, a class of attrs, a dataclass, a model of pydantic or any other that
    says of itself what it holds; nothing of any other."""
    if isinstance(item, SimpleNamespace):
        return vars(item)
    if own := fields(item) if is_dataclass(item) else getattr(type(item), "__attrs_attrs__", ()):
        return {each.name: getattr(item, each.name) for each in own}
    with suppress(TypeError):
        return _mapping(item)
    return {}


def _mapping(value: object) -> Mapping[str, object]:
    """What an object says of itself as a mapping."""
    for name in _AS_MAPPING:
        if callable(method := getattr(value, name, None)):
            found = method()
            if isinstance(found, Mapping):
                return found
    raise TypeError(f"metadata {value!r:.100}")


def _plain(value: object) -> object:
    """What JSON has no kind for, as one that it has."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, complex):
        return str(value)
    if isinstance(value, str):  # of a class of its own, as parsers of HTML have them
        return str.__str__(value)
    if type(value).__module__.partition(".")[0] == "pandas" and not {"tolist", "columns"}.intersection(dir(value)):
        said = value.isoformat() if hasattr(value, "isoformat") else str(value)  # a time, or what is missing
        return None if said in ("NaT", "<NA>") else said
    if callable(tolist := getattr(value, "tolist", None)):  # a number of NumPy's, or an array
        return _time(value) if getattr(getattr(value, "dtype", None), "kind", "") in ("M", "m") else tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return _mapping(value)


def _time(value: Any) -> object:
    """A moment or a span of NumPy's, or an array of them: in nanoseconds, say, `tolist` makes numbers of them."""
    if value.ndim:
        return [_time(each) for each in value]
    found = value.tolist()
    return str(value) if isinstance(found, int) else found
