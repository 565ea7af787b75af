"""Chunk files as other tools write them: each record is kept, the same as an earlier one, or refused for what is true.

The oracle is what was written: it knows each record's text, metadata and other fields, and shares no code with the
reader. Whatever is added behind them, the records that were there keep their ids.
"""

import csv
import io
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.campaigns.field import PLAIN
from bench.campaigns.process import carry_out, wrongs
from bench.campaigns.tally import Campaign, Report, Room
from interlock.engine.corpus.chunks import Chunk
from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.corpus import Corpus, read_corpus
from interlock.engine.corpus.rereading import reread

Record = dict[str, Any]
WORDS = [
    "Öl",
    "naïve",
    "日本語",
    "می\u200cخواهم",
    "é",
    "😀",
    "a,b",
    '"q"',
    "\\",
    "]",
    "}",
    "plain",
    "words",
    "of",
    "a",
    "text",
]
EMPTY = ("", " ", "\n\u00a0")


def _langchain(text: str, doc: str, n: int, rng: random.Random) -> Record:
    meta = {"source": doc, "page": n // 2, "start_index": n * 800} | ({"chunk_id": n} if rng.random() < 0.7 else {})
    return {"id": None, "metadata": meta, "page_content": text, "type": "Document"}


def _dumped(text: str, doc: str, n: int, rng: random.Random) -> Record:
    place = ["langchain", "schema", "document", "Document"]
    kwargs = {key: value for key, value in _langchain(text, doc, n, rng).items() if key != "id"}
    return {"lc": 1, "type": "constructor", "id": place, "kwargs": kwargs}


def _node(text: str, doc: str, n: int, rng: random.Random) -> Record:
    name = f"{rng.getrandbits(128):032x}"
    meta = {"file_path": f"/data/{doc}", "file_name": doc, "page_label": str(n), "chunk_id": n}
    return {
        "id_": name, "embedding": None, "metadata": meta, "excluded_embed_metadata_keys": ["file_name"],
        "relationships": {"1": {"node_id": doc, "node_type": "4", "metadata": {}, "hash": name}}, "text": text,
        "metadata_template": "{key}: {value}", "start_char_idx": n * 10, "end_char_idx": None, "class_name": "TextNode",
    }  # fmt: skip


def _haystack(text: str, doc: str, n: int, rng: random.Random) -> Record:
    meta = {"source_id": doc, "page_number": n, "split_id": n, "chunk_id": f"{n}"}
    return {"id": f"{rng.getrandbits(64):x}", "content": text, "blob": None, "meta": meta, "score": None}


def _flat(text: str, doc: str, n: int, rng: random.Random) -> Record:
    nested = _haystack(text, doc, n, rng)
    return {**nested, **nested.pop("meta")}


def _element(text: str, doc: str, n: int, rng: random.Random) -> Record:
    meta = {"filename": doc, "filetype": "application/pdf", "page_number": n, "languages": ["eng"], "parent_id": None}
    meta |= {"coordinates": {"points": [[0.5, 1e-9], [n, 2.25]], "system": "PixelSpace"}}
    return {"type": "NarrativeText", "element_id": f"{rng.getrandbits(128):x}", "text": text, "metadata": meta}


def _docling(text: str, doc: str, n: int, rng: random.Random) -> Record:
    item = {"self_ref": f"#/texts/{n}", "prov": [{"page_no": n, "bbox": {"l": rng.random(), "t": 2.5}}]}
    origin = {"mimetype": "application/pdf", "binary_hash": rng.getrandbits(64), "filename": doc, "uri": None}
    return {"text": text, "meta": {"schema_name": "DocMeta", "doc_items": [item], "headings": [doc], "origin": origin}}


def _txtai(text: str, doc: str, n: int, rng: random.Random) -> Record:
    return {"id": rng.choice((n, f"{doc}#{n}")), "text": text, "tags": None, "entry": "2026-01-02T03:04:05", "doc": doc}


def _table(text: str, doc: str, n: int, rng: random.Random) -> Record:
    return {"text": text, "source": doc, "page": float(n), "chunk_id": n, "lang": rng.choice(("en", None))}


def _own(text: str, doc: str, n: int, rng: random.Random) -> Record:
    return {"text": text, "metadata": {"chunk_id": f"{doc}-{n}", "source_path": doc, "deep": {"a": [n, {"b": None}]}}}


def _anew(text: str, doc: str, n: int, rng: random.Random) -> Record:
    name = rng.choice(("source", "url", "document", "docName", "file"))
    return {"id": f"{doc}-{n}", "text": text, "metadata": {name: doc, "chunk_id": float(n) if n % 2 else n}}


def _bare(text: str, doc: str, n: int, rng: random.Random) -> Record:
    return {"text": text, "metadata": rng.choice((None, {}, {"title": doc}, {"chunk_id": n, "title": doc}))}


FORMS: Mapping[str, Callable[[str, str, int, random.Random], Record]] = {
    "langchain": _langchain, "langchain dumped": _dumped, "llamaindex": _node, "haystack": _haystack,
    "haystack flat": _flat, "unstructured": _element, "docling": _docling, "txtai": _txtai, "table": _table,
    "own": _own, "ids begin anew": _anew, "bare": _bare,
}  # fmt: skip
FILES = 40
EACH = 20
"""Of so many trials one is a whole run, and one of each kind a table."""


def trial(room: Room) -> Report:
    """One file or two of one form, read, read again, and once more with a record behind them."""
    form, rng, report = [*FORMS][room.number % len(FORMS)], room.rng, Report()
    root = room.directory("in/Docs").parent
    written = {
        f"{name}{rng.choice(('.jsonl', '_chunks.json'))}": _records(form, name, rng)
        for name in "ab"[: rng.choice((1, 1, 2))]
    }
    looks = {name: rng.getrandbits(32) for name in written}
    for name, records in written.items():
        (root / "Docs" / name).write_bytes(_file(name, records, random.Random(looks[name])))
    before = _check(written, root, report, form)
    last = max(written)
    written[last].append(FORMS[form]("one more text", "new.pdf", 0, rng))
    (root / "Docs" / last).write_bytes(_file(last, written[last], random.Random(looks[last])))
    after = _check(written, root, report, form)
    if gone := before - after:
        report.wrong.append(f"{form}: {len(gone)} ids changed as a record was added, {min(gone)}")
    if room.number % EACH == 0:
        _run(written, room, report, form)
    if room.number % EACH < len(TABLES):
        _tables([*TABLES][room.number % EACH], room, report)
    return report


def _run(written: Mapping[str, list[Record]], room: Room, report: Report, form: str) -> None:
    """Embed the files, and count and compare what was delivered of them, as other readers see it."""
    run, kept = room.run(), _expected(written)[0]
    outcome = carry_out(
        room.field.command(run, PLAIN, "--max-refused", "100%", chunks=room.directory("in")), room.place
    )
    report.tried["whole runs"] += 1
    report.wrong += [f"{form}: a run: {each}" for each in wrongs(outcome, codes=(0,))]
    arrays = [*run.glob("exports/Docs/*.npy")]
    rows = {file.name: len(np.load(file)) for file in arrays}
    texts = pq.read_table(run / "exports" / "Docs" / "points.parquet").column("text").to_pylist()
    report.wrong += [f"{form}: rows of {rows}, not {len(kept)}"] * (not rows or {*rows.values()} != {len(kept)})
    report.wrong += [f"{form}: other texts in the table"] * (sorted(texts) != sorted(json.loads(k)[0] for k in kept))


def _tables(kind: str, room: Room, report: Report) -> None:
    """A table by itself is read; beside chunk files it is not, which is told: by its own name as a file beside, by that
    of chunks as a refused file, whatever may be refused of records."""
    records = _records("table", "t", room.rng)
    data, alone = TABLES[kind](records), room.directory("tables") / f"t.{kind}"
    alone.write_bytes(data)
    chunks = list[Chunk]()
    (rows,) = read_corpus(discover(alone), lambda _: None, chunks.append).rows
    kept = Counter(each["text"] for each in records if each["text"].strip())
    counts = rows.counts.records, rows.chunks + rows.counts.same, len(rows.refusals)
    wanted = len(records), kept.total(), len(records) - kept.total()
    report.tried[f"{kind} read"] += 1
    report.wrong += [f"{kind}: read, kept, refused {counts}, not {wanted}"] * (counts != wanted)
    report.wrong += [f"{kind}: other texts"] * ({each.text for each in chunks} != {*kept})
    for number, name in enumerate((f"t.{kind}", "t.jsonl", "t_chunks.json")):
        place = room.directory(f"tables-{number}/Docs")
        (place / "good.jsonl").write_text('{"text": "a text"}\n' * 3)
        (place / name).write_bytes(data)
        (found,) = discover(place.parent)
        (rows,) = read_corpus([found], lambda _: None).rows
        told = name in found.unread.first.values() if number == 0 else rows.refusals.broken == 1
        report.tried[f"{kind} {'refused' if number else 'told'}"] += 1
        report.wrong += [f"{name} of {kind} is not told"] * (not told or rows.chunks != 3)


def _separated(records: list[Record], **how: Any) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, [*records[0]], **how)
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue().encode()


def _parquet(records: list[Record]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records), sink)
    return sink.getvalue()


TABLES: Mapping[str, Callable[[list[Record]], bytes]] = {
    "csv": _separated, "tsv": partial(_separated, dialect="excel-tab"), "parquet": _parquet,
}  # fmt: skip


def _records(form: str, file: str, rng: random.Random) -> list[Record]:
    records: list[Record] = []
    for doc in (f"{file}{number}.pdf" for number in range(rng.randrange(1, 5))):
        for n in range(rng.randrange(1, 12)):
            text = " ".join([doc, str(n), *rng.choices(WORDS, k=5)]) if rng.random() > 0.05 else rng.choice(EMPTY)
            records.append(FORMS[form](text, doc, n, rng))
            if rng.random() < 0.1:
                records.append(json.loads(json.dumps(rng.choice(records))))
    return records


def _file(name: str, records: list[Record], rng: random.Random) -> bytes:
    dumped = [json.dumps(each, ensure_ascii=rng.random() < 0.3, indent=rng.choice((None, None, 2))) for each in records]
    end = rng.choice(("\n", "\r\n"))
    if name.endswith("json") or rng.random() < 0.1:
        whole = "[" + f",{end}".join(dumped) + rng.choice(("]", f",{end}]", f"]{end}"))
    else:
        whole = end.join(dumped) + rng.choice(("", end))
    return whole.replace("\r\n", "\n").replace("\n", end).encode(rng.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16")))


def _plain(record: Record) -> tuple[str, Record]:
    """The text of a record, and its payload with its other fields."""
    fields = dict(record["kwargs"] if "lc" in record else record)
    other = "text" not in fields
    text = fields.pop(next(name for name in ("text", "page_content", "content") if name in fields))
    payload = dict(fields.pop("meta" if other and "meta" in fields else "metadata", None) or {})
    return text, payload | ({"record": fields} if fields else {})


def _check(written: Mapping[str, list[Record]], root: Any, report: Report, form: str) -> set[tuple[str, str]]:
    """Read the files and compare; the texts with the ids of their points."""
    (found,) = discover(root)
    chunks = list[Chunk]()
    corpus: Corpus = read_corpus([found], lambda _: None, chunks.append)
    (rows,) = corpus.rows
    kept, same, refused = _expected(written)
    counts = rows.counts.records, rows.chunks, rows.counts.same, len(rows.refusals)
    wanted = sum(map(len, written.values())), len(kept), same, refused
    report.tried.update({form: 1, "records": counts[0], "kept": counts[1], "same": counts[2], "refused": counts[3]})
    report.wrong += [f"{form}: read, kept, same, refused {counts}, not {wanted}"] * (counts != wanted)
    ours = Counter(_written(each.text, json.loads(each.whole_payload)) for each in chunks)
    report.wrong += [f"{form}: {each}" for each in [*(ours - Counter(kept)), *(Counter(kept) - ours)][:3]]
    report.wrong += [f"{form}: {each}" for each in rows.refusals.told if "empty" not in each.reason]
    if len({each.point_id for each in chunks}) != len(chunks) or list(reread(rows, corpus.digests)) != chunks:
        report.wrong.append(f"{form}: two chunks with one id, or others when read again")
    return {(each.text, each.point_id) for each in chunks}


def _expected(written: Mapping[str, list[Record]]) -> tuple[list[str], int, int]:
    """What is kept of these records, and how many are the same as others and refused."""
    kept, same, refused = list[str](), 0, 0
    for records in (written[name] for name in sorted(written)):
        seen = list[tuple[str, Record]]()
        for text, payload in map(_plain, records):
            if not text.strip():
                refused += 1
            elif payload.get("chunk_id") is not None and (text, payload) in seen:
                same += 1
            else:
                kept.append(_written(text, payload))
                seen.append((text, payload))
    return kept, same, refused


def _written(text: str, payload: Record) -> str:
    return json.dumps([text, payload], sort_keys=True)


CAMPAIGN = Campaign("producers", trial, FILES * len(FORMS), "chunk files as other tools write them")
