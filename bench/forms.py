"""What reading costs in each form that texts come in: CPU time a row, and memory, which is to stay flat.

`interlock plan` reads and tokenises rows of 10 to 12 words, made for the moment, in a process of its own, with a tiny
model; what it counts must be what was made. Bytes a row are what its peak grows by from one size to the next.
"""

import argparse
import csv
import gzip
import itertools
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import pyarrow as pa
import pyarrow.parquet as pq

from bench import evidence, machine
from bench.growths import Ground
from tests import builders

SOURCES = ("engine/corpus", "engine/flows/plan.py", "engine/storage.py")
FLAT = 30
"""Bytes that a row may add to the peak."""
PER_FILE, PER_BATCH = 10_000, 5_000
Row = dict[str, str]
Rows = Iterator[Row]


def rows_of(count: int) -> Rows:
    """So many rows of distinct texts, the same each time."""
    words = builders.WORDS * 2  # in the vocabulary of the tiny model: one token each
    for n in range(count):
        at = 7 * n % (len(words) - 11)
        yield {"id": f"r{n}", "text": " ".join([str(n), *words[at : at + 9 + n % 3]]), "source": f"page {n // 100}"}


def parts(rows: Rows, size: int) -> Iterator[list[Row]]:
    while part := list(itertools.islice(rows, size)):
        yield part


def chunk_files(place: Path, rows: Rows) -> None:
    for number, part in enumerate(parts(rows, PER_FILE)):
        records = [{"text": r["text"], "metadata": {"chunk_id": r["id"], "source_path": r["source"]}} for r in part]
        (place / f"{number:05}_chunks.json").write_text(json.dumps(records))


def a_list(place: Path, rows: Rows) -> None:
    with (place / "rows.json").open("w") as file:
        file.writelines(f"{'[,'[n > 0]}\n{json.dumps(row)}" for n, row in enumerate(rows))
        file.write("]\n")


def lines(place: Path, rows: Rows) -> None:
    with (place / "rows.jsonl").open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def cells(place: Path, rows: Rows, ending: str = "csv") -> None:
    with (place / f"rows.{ending}").open("w", newline="") as file:
        writer = csv.DictWriter(file, ("id", "text", "source"), delimiter="\t" if ending == "tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)


def batches(rows: Rows) -> Iterator[pa.RecordBatch]:
    return map(pa.RecordBatch.from_pylist, parts(rows, PER_BATCH))


def columns(place: Path, rows: Rows, write: Callable[..., Any], name: str) -> None:
    """A table by pyarrow's writer: Parquet's, that of Arrow's file, or that of its stream."""
    begun = next(found := batches(rows))
    with write(str(place / name), begun.schema) as writer:
        for batch in itertools.chain([begun], found):
            writer.write_batch(batch)


def dataset(place: Path, rows: Rows) -> None:
    """A directory as `datasets` saves it."""
    columns(place, rows, pa.ipc.new_stream, name := "data-00000-of-00001.arrow")
    (place / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}], "_split": "train"}))
    (place / "dataset_info.json").write_text("{}")


def beir(place: Path, rows: Rows) -> None:
    with (place / "corpus.jsonl").open("w") as file:
        file.writelines(json.dumps({"_id": r["id"], "title": r["source"], "text": r["text"]}) + "\n" for r in rows)
    (place / "queries.jsonl").write_text('{"_id": "q", "text": "what"}\n')
    (place / "qrels").mkdir()
    (place / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tr0\t1\n")


FORMS: dict[str, Callable[[Path, Rows], None]] = {
    "*_chunks.json": chunk_files,
    "JSON": a_list,
    "JSON lines": lines,
    "CSV": cells,
    "TSV": lambda place, rows: cells(place, rows, "tsv"),
    "Parquet": lambda place, rows: columns(place, rows, pq.ParquetWriter, "rows.parquet"),
    "Arrow": lambda place, rows: columns(place, rows, pa.ipc.new_file, "rows.arrow"),
    "datasets": dataset,
    "BEIR": beir,
}
PACKED = ("*_chunks.json", "JSON", "JSON lines", "CSV", "TSV", "Parquet", "Arrow", "BEIR")
"""Forms whose files come packed too; what `datasets` writes does not."""


def pack(place: Path, packing: str) -> None:
    """Pack the texts of a directory, each file for itself."""
    for file in [*place.glob("*rows.*"), *place.glob("*_chunks.json"), *place.glob("corpus.jsonl")]:
        into = f"{file}{packing}"
        with file.open("rb") as plain, (
            gzip.open(into, "wb", 1) if packing == ".gz" else pa.CompressedOutputStream(into, "zstd")
        ) as packed:  # fmt: skip
            shutil.copyfileobj(plain, packed, 1 << 20)
        file.unlink()


def planned(ground: Ground, place: Path, count: int) -> dict[str, float]:
    """Plan what lies there: CPU seconds, and the peaks of all resident and of anonymous memory, in bytes."""
    command = builders.command(*ground.plan(place), "--text-field", "text")
    with tempfile.TemporaryFile("w+") as out:
        took = machine.watched(command, builders.environment(machine.SINGLE_THREAD), out)
        out.seek(0)
        said = out.read()
    counted = re.search(r"^\S+ +[\d,]+ +([\d,]+) +([\d,]+) +0 +0 ", said, re.MULTILINE)
    if not counted or {int(each.replace(",", "")) for each in counted.groups()} != {count}:
        raise SystemExit(f"{place.name}: not {count:,} rows:\n{said[:2000]}")
    return {"cpu_seconds": round(took["cpu"], 2), **{name: took[name] for name in machine.PEAKS}}


def measured(ground: Ground, form: str, packing: str, sizes: Sequence[int]) -> dict[str, Any]:
    """One form at all sizes, each made, read and removed."""
    found, name = [], re.sub(r"\W+", "", form) + packing.replace(".", "-")
    for count in sizes:
        with tempfile.TemporaryDirectory(dir=ground.place) as made:
            (place := Path(made) / name).mkdir()
            FORMS[form](place, rows_of(count))
            if packing:
                pack(place, packing)
            size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
            found.append({"rows": count, "bytes": size, **planned(ground, place, count)})
    told = {"form": form + packing, "sizes": found}
    if len(found) > 1:
        before, last = found[-2:]
        more = last["rows"] - before["rows"]
        told["us a row"] = round(1e6 * (last["cpu_seconds"] - before["cpu_seconds"]) / more, 1)
        told |= {f"{name} a row": round((last[name] - before[name]) / more, 1) for name in machine.PEAKS}
    print(json.dumps(told), flush=True)
    return told


def measure(options: argparse.Namespace) -> dict[str, Any]:
    about = machine.describe()
    wanted = [(form, packing) for packing in options.packings for form in options.forms]
    wanted = [(form, packing) for form, packing in wanted if not packing or form in PACKED]
    found = []
    with tempfile.TemporaryDirectory() as made, suppress(KeyboardInterrupt):  # keeps what there is
        ground = Ground(Path(made))
        for each in wanted:
            found.append(measured(ground, *each, options.packed if each[1] else options.rows))
    return {"machine": {**about, "load_after": machine.load()}, "flat": FLAT, "forms": found, "goals": {
        f"bytes a row, {each['form']}, to {each['sizes'][-1]['rows']:,}": machine.goal(
            each["VmHWM a row"], FLAT, at_most=True
        ) for each in found
    }}  # fmt: skip


def show(result: dict[str, Any]) -> None:
    heads = ["form", "rows", "MB", "CPU s", "peak MiB", "of it anonymous"]
    machine.table(heads, [
        [each["form"], f"{s['rows']:,}", s["bytes"] // 10**6, s["cpu_seconds"], *(s[n] >> 20 for n in machine.PEAKS)]
        for each in result["forms"] for s in each["sizes"]
    ])  # fmt: skip
    machine.goals(result["goals"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=[*FORMS], metavar="FORM")
    parser.add_argument("--packings", nargs="+", choices=("", ".gz", ".zst"), default=("", ".gz", ".zst"), metavar="P")
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000], metavar="N")
    parser.add_argument(
        "--packed", type=int, nargs="+", default=[100_000, 300_000], metavar="N", help="rows that are packed"
    )
    machine.quick(parser, rows=[1_000, 2_000], packings=[""])
    evidence.gather(parser, measure, show, SOURCES)
