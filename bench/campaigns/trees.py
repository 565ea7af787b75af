"""Trees as people have them: nested folders, partitions, every form and packing, odd names, foreign files.

The oracle walks and reads by os, csv, json and pyarrow: every record is kept once with all its fields, those that names
of directories say too, and every file is read or counted as not read.
"""

import csv
import gzip
import io
import json
import os
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import feather

from bench.campaigns.field import PLAIN
from bench.campaigns.process import carry_out, wrongs
from bench.campaigns.tally import Campaign, Report, Room
from interlock.engine.corpus.chunks import Chunk
from interlock.engine.corpus.collections import discover, overlooked
from interlock.engine.corpus.corpus import read_corpus

Record = dict[str, Any]
Payloads = dict[tuple[str, str], Record]
"""By collection and text."""
FOLDERS = ("a", "b c", "Café", "Cafe\u0301", "d.jsonl", "v1.2", ".hid", "__MACOSX", "日本", "-x", "runs")
PARTS = ("lang=de", "lang=d%C3%A9", "year=2024", "year=__HIVE_DEFAULT_PARTITION__", "k=a=b", "e=", "p%20q=x%2Fy", "=z")
FOREIGN = (
    *("logo.png", "notes.md", "x.tar.gz", "t.xlsx", "Makefile", "a.b.c", "log", "w.JSONLX", "noext.", "d.sql", "y.orc"),
    *("README.md", "LICENSE", "_SUCCESS", ".DS_Store", ".x.crc", "sums.md5", "_index.md", "é.txt", "two words.jpg"),
)
ASIDE = re.compile(r"(?i)(readme|licen[cs]e)(\.\w+)?|_SUCCESS|.*\.(crc|md5)|\..*")
RANKS = ((".jsonl", "_chunks.json"), (".csv", ".tsv", ".parquet", ".arrow", ".feather", ".ndjson"), (".json",))
PLAINLY = {ending: rank for rank, endings in enumerate(RANKS) for ending in endings}
ENDINGS = PLAINLY | {f"{ending}{each}": max(1, rank) for ending, rank in PLAINLY.items() for each in (".gz", ".zst")}
RUN = {"run.json", "journal.jsonl"}
EACH = 12
"""Of so many trials one is a whole run."""


def trial(room: Room) -> Report:
    """Make one tree, read it, and compare with what the oracle reads."""
    root, report = room.directory("tree"), Report()
    _grow(root, room.rng)
    kept, empty, unread = _walked(root)
    found, chunks = discover(root), dict[str, list[Chunk]]()
    for each in found:
        mine = chunks.setdefault(each.name, [])
        (rows,) = read_corpus([each], lambda _: None, mine.append).rows
        refused = [*rows.refusals.told]
        report.wrong += [f"{each.name}: refused {refused[:3]}"] * (len(rows.refusals) != empty[each.name])
    report.tried.update({"trees": 1, "records": len(kept), "without a text": empty.total(), "foreign files": unread})
    ours = {(name, each.text): json.loads(each.whole_payload) for name, some in chunks.items() for each in some}
    report.wrong += _compared(kept, ours, sum(map(len, chunks.values())))
    said = [each for each in overlooked(root, found) if " not read (" in each]
    told = int(said[0].split()[0].replace(",", "")) if said else 0
    report.wrong += [f"{told} files told as not read, not {unread}"] * (told != unread)
    if room.number % EACH == 0:
        _run(root, kept, told, room, report)
    return report


def _run(root: Path, kept: Payloads, told: int, room: Room, report: Report) -> None:
    """Embed the tree without a word of progress, and compare what was delivered."""
    run = room.run()
    flags = ("--max-refused", "100%,files", "--quiet")
    outcome = carry_out(room.field.command(run, PLAIN, *flags, chunks=root), room.place)
    report.tried["whole runs"] += 1
    report.wrong += [f"a run: {each}" for each in wrongs(outcome, codes=(0,))]
    report.wrong += ["a quiet run tells nothing of them"] * (bool(told) != (f" {told} file" in outcome.err))
    tables = [(file.parent.name, pq.read_table(file)) for file in run.glob("exports/*/points.parquet")]
    texts = [(name, text) for name, table in tables for text in table.column("text").to_pylist()]
    report.wrong += [f"a run delivered {len(texts)} texts, not {len(kept)}"] * (sorted(texts) != sorted(kept))


def _compared(kept: Payloads, ours: Payloads, chunks: int) -> list[str]:
    wrong = [f"{chunks} chunks, not {len(kept)}"] * (chunks != len(kept))
    wrong += [f"lacks {key}" for key in [*(kept.keys() - ours.keys())][:3]]
    differs = [key for key in kept.keys() & ours.keys() if kept[key] != ours[key]]
    return wrong + [f"{key} has {ours[key]}, not {kept[key]}" for key in differs[:3]]


def _grow(root: Path, rng: random.Random) -> None:
    """One to three directories of files of one rank mostly, with foreign ones among them."""
    rank = rng.choice((0, 0, 1, 1, 1, 2))
    for top in rng.sample((".", *FOLDERS[:3], "d.jsonl", *PARTS[:3:2]), rng.randrange(1, 4)):
        for number in range(rng.randrange(1, 6)):
            above = rng.choices((*FOLDERS, *PARTS), k=rng.choice((0, 0, 1, 2, 3)))
            above = [each for each in above if top != "." or each not in (FOLDERS[3], ".hid")]  # no collections
            folder = root.joinpath(top, *above)
            folder.mkdir(parents=True, exist_ok=True)
            of = rank if rng.random() < 0.8 else rng.choice((1, 2))
            some = [ending for ending, each in ENDINGS.items() if each == of]
            name = f"{rng.choice(('', '.', 'Part ', 'é'))}{number}{rng.choice(some)}"
            (folder / name).write_bytes(_file(name, f"{top}/{'/'.join(above)}/{name}", rng))
            for foreign in rng.choices(FOREIGN, k=rng.choice((0, 0, 1, 3))):
                (folder / foreign).write_bytes(b"foreign")
    for foreign in rng.choices(FOREIGN, k=rng.choice((0, 2))):
        (root / foreign).write_bytes(b"foreign")
    if rng.random() < 0.3:
        (old := root / top / "runs").mkdir(exist_ok=True)
        for name in (*RUN, "b.parquet"):
            (old / name).write_text('{"seq":0,"at":0.0,"text": "of a run"}')


def _file(name: str, place: str, rng: random.Random) -> bytes:
    records = [
        {
            "text": f"{place} {n}" if rng.random() < 0.95 else " ",
            "n": n,
            "lang": rng.choice("dex"),
            rng.choice("sß"): "a",
        }
        for n in range(rng.randrange(1, 5))
    ]
    names = list(dict.fromkeys(name for each in records for name in each))
    if "year=" not in place and rng.random() < 0.5:
        for each in records:
            each.pop("lang")
        names.remove("lang")
    packing = next((end for end in (".gz", ".zst") if name.endswith(end)), "")
    bare = name.removesuffix(packing)
    if bare.endswith((".csv", ".tsv")):
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, names, dialect="excel-tab" if bare.endswith(".tsv") else "excel", restval="")
        writer.writeheader()
        writer.writerows(records)
        data = text.getvalue().encode()
    elif bare.endswith((".parquet", ".arrow", ".feather")):
        sink, table = io.BytesIO(), pa.Table.from_pylist([dict.fromkeys(names) | each for each in records])
        pq.write_table(table, sink) if bare.endswith(".parquet") else feather.write_feather(table, sink)
        data = sink.getvalue()
    elif bare.endswith(".json"):
        data = json.dumps(records, indent=rng.choice((None, 1)), ensure_ascii=rng.random() < 0.5).encode()
    else:
        data = "\n".join(json.dumps({**each, "metadata": {"m": [1]}}) for each in records).encode()
    packed = gzip.compress(data) if packing == ".gz" else data
    return packed if packing != ".zst" else pa.compress(data, codec="zstd", asbytes=True)


def _walked(root: Path) -> tuple[Payloads, Counter[str], int]:
    """What the oracle reads: the payload of each text by its collection, how many records of each have no text, and how
    many files are to be told as not read."""
    walked = [(Path(folder), names) for folder, _, names in os.walk(root)]
    runs = [folder for folder, names in walked if {*names} >= RUN]
    ranks = {
        Path(folder, name): next((ENDINGS[end] for end in longest if name.endswith(end)), 9)
        for longest in [sorted(ENDINGS, key=len, reverse=True)]
        for folder, names in walked
        for name in names
        if not any(folder.is_relative_to(run) for run in runs)
    }
    lowest = min(ranks.values(), default=9)
    files = [file for file, rank in ranks.items() if rank == lowest < 9]
    entire = any(file.parent == root for file in files)
    kept, empty = dict[tuple[str, str], Record](), Counter[str]()
    for file in files:
        inner = file.relative_to(root).parts
        said = dict[str, str | None]()
        for name, is_one, value in (part.partition("=") for part in inner[:-1]):
            if is_one and name:
                said.setdefault(unquote(name), None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value))
        collection = root.name if entire else inner[0]
        for record in _records(file):
            payload, text = dict(record.pop("metadata", {})), record.pop("text")
            if text.strip():
                kept[collection, text] = payload | {"record": {**said, **record}}
            else:
                empty[collection] += 1
    others = [file.relative_to(root) for file in ranks if file not in files]
    aside = (any(part[0] == "." for part in each.parts) or ASIDE.fullmatch(each.name) for each in others)
    return kept, empty, len(others) - sum(map(bool, aside))


def _records(file: Path) -> list[Record]:
    data, name = file.read_bytes(), file.name
    if name.endswith(".gz"):
        data, name = gzip.decompress(data), name[:-3]
    if name.endswith(".zst"):
        data, name = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read(), name[:-4]
    if name.endswith((".csv", ".tsv")):
        text = io.StringIO(data.decode(), newline="")
        return [*csv.DictReader(text, dialect="excel-tab" if name.endswith(".tsv") else "excel")]
    if name.endswith(".parquet"):
        return pq.read_table(pa.BufferReader(data), partitioning=None).to_pylist()
    if name.endswith((".arrow", ".feather")):
        return feather.read_table(pa.BufferReader(data)).to_pylist()
    return json.loads(data) if name.endswith(".json") else [json.loads(line) for line in data.decode().splitlines()]


CAMPAIGN = Campaign("trees", trial, 400, "trees of every form, with partitions and foreign files")
