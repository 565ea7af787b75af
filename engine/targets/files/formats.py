"""The formats in which a collection is exported: one row of `FORMATS` each, with all that any other room has to know.

A new format is a row here and what writes it. Nothing heavy is imported before a file is to be written, since settings
take their choices from here.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.engine.record.facts import MissingModel
    from interlock.engine.targets.windows import Delivery, Files, OutputFile
    from interlock.engine.vectors.fusion import Fusion
    from interlock.engine.vectors.precision import VectorForm

TABLE, LINES, MARK = "points.parquet", "points.jsonl", "missing.json"
"""The table, the same as lines of JSON, and what says beside the other files which models they lack."""
NUMBER_BYTES = 21
"""About what a number of a vector takes as text, with its comma."""


@dataclass(frozen=True)
class ExportFormat:
    """What a format writes of a delivery, and what it takes and can.

    `bytes` are those of a chunk's dense vectors before any compression. `arrays` says that each name has a file of its
    own, which token vectors need, `narrows` that numbers may have fewer bits, `package` what has to load.
    `endings` are those of the files that a model has of its own, behind its name.
    """

    name: str
    files: "Callable[[Delivery], Files]"
    bytes: "Callable[[VectorForm, Fusion, Mapping[str, int]], int]"
    arrays: bool = False
    narrows: bool = False
    package: str = ""
    endings: tuple[str, ...] = ()


def _arrays(delivery: "Delivery") -> "Files":
    from interlock.engine.targets.files.arrays import array_files

    return array_files(delivery)


def _array_bytes(form: "VectorForm", fusion: "Fusion", members: Mapping[str, int]) -> int:
    from interlock.engine.vectors.precision import FUSED

    widths = form.files(fusion, members)
    codes = widths.pop(FUSED, 0) if form.quantise != "none" else 0
    return codes + 4 * sum(widths.values())


def _table(delivery: "Delivery") -> "Files":
    from interlock.engine.targets.files.tables import Parquet

    rows, widths = len(delivery.rows.texts), delivery.spec.dims
    yield TABLE, Parquet(rows, widths, delivery.terms_widths, delivery.columns_in, delivery.mark)


def _lines(delivery: "Delivery") -> "Files":
    from interlock.engine.targets.files.tables import Jsonl

    yield LINES, Jsonl(len(delivery.rows.texts), [*delivery.spec.dims], [*delivery.terms_widths], delivery.spec.payload)


FORMATS = {
    each.name: each
    for each in (
        ExportFormat(
            "npy",
            _arrays,
            _array_bytes,
            arrays=True,
            narrows=True,
            endings=(".npy", ".npz", "-sparse.npz", "-tokens.npy", "-tokens-starts.npy"),
        ),
        ExportFormat(
            "parquet",
            _table,
            lambda form, fusion, members: 4 * sum(form.widths(fusion, members).values()),
            narrows=True,
            package="pyarrow",
        ),
        ExportFormat(
            "jsonl", _lines, lambda form, fusion, members: NUMBER_BYTES * sum(form.widths(fusion, members).values())
        ),
    )
}


def with_arrays(formats: Collection[str]) -> bool:
    """Tell whether any of these formats has a file for each name."""
    return any(FORMATS[each].arrays for each in formats)


def file_bytes(formats: Collection[str], form: "VectorForm", fusion: "Fusion", members: Mapping[str, int]) -> int:
    """Return the bytes of a chunk's dense vectors in all files of these formats, before a table is compressed."""
    return sum(FORMATS[each].bytes(form, fusion, members) for each in formats)


def files_of(delivery: "Delivery", formats: Collection[str]) -> "dict[str, OutputFile]":
    """Say which files of these formats a delivery has, by name, and how each is made."""
    from interlock.engine.record.shards import part_of
    from interlock.engine.targets.files.arrays import Content
    from interlock.engine.vectors.fusion import PROJECTION, to_bytes

    made: dict[str, OutputFile] = {}
    for each in (row for name, row in FORMATS.items() if name in formats):
        made |= each.files(delivery)
    if delivery.projection is not None and formats:
        made[PROJECTION] = Content(to_bytes(delivery.projection))
    if delivery.spec.missing and formats:  # comes last, so it is the first that gets its name
        made[MARK] = Content(delivery.mark)
    return {part_of(delivery.rows.collection.shard, name): each for name, each in made.items()}


def files_of_missing(missing: "Collection[MissingModel]") -> list[str]:
    """Name the files that these models would have, which are none of a delivery without them."""
    return [f"{each.model}{end}" for each in missing for row in FORMATS.values() for end in row.endings]
