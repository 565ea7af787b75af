"""What the BM25 vectors of a store find by themselves, stemmed and not, and what they cost its delivery.

nDCG@10 over judged collections, each delivered into a store of its own as a run delivers it and asked there with
Qdrant's own queries. The cost: CPU seconds (counting words included) of delivering all their texts, with a vector of
384 numbers each, with BM25 and without, in turns; and what they take on disk, the write-ahead log aside.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import evidence
import machine
import numpy as np
import qdrant_edge as edge
from judged import CUT, ndcg, read

from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.corpus import Corpus, read_corpus
from interlock.engine.evaluation.judgements import Grades
from interlock.engine.record.facts import RosterEntry
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.targets.delivery import Destination, deliver
from interlock.engine.targets.windows import Delivery
from interlock.engine.vectors import NO_LANGUAGE
from interlock.engine.vectors.bm25 import BM25, WordCounts, Words
from interlock.engine.vectors.fusion import Fusion
from interlock.engine.vectors.manifest import CollectionSpec

SOURCES = (
    "engine/vectors/bm25.py",
    "engine/vectors/points.py",
    "engine/targets/target.py",
    "engine/targets/embedded.py",
)
LANGUAGES = ("english", NO_LANGUAGE)
DIM = 384
ENTRY = RosterEntry(
    model="dense", weight=1.0, source="none", commit=None, fingerprint="none", dim=DIM, dtype="float32", max_tokens=256,
    document_prompt="", query_prompt="", batch_tokens=2048,
)  # fmt: skip


class Chunks:
    """Texts by id as a collection of chunk files, read as a run reads them, with vectors that mean nothing."""

    def __init__(self, root: Path, texts: Mapping[str, str]) -> None:
        (root / "in" / "docs").mkdir(parents=True)
        lines = (json.dumps({"text": text or "-", "metadata": {"chunk_id": each}}) for each, text in texts.items())
        (root / "in" / "docs" / "a.jsonl").write_text("\n".join(lines))
        self.texts: list[str] = []
        self.read: Corpus = read_corpus(discover(root / "in"), self.texts.extend)
        vectors = np.random.default_rng(0).standard_normal((len(self.texts), DIM), np.float32)
        self.vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def deliver(self, store: Path, language: str | None) -> None:
        (rows,), bm25 = self.read.rows, None
        if language:
            counts = WordCounts(Words(language=language))
            counts.add(self.texts)
            bm25 = counts.bm25(rows.texts)
        spec = CollectionSpec(rows.collection.qdrant_collection, Fusion.NAMED, [ENTRY], "run", bm25)
        delivery = Delivery(rows, self.read.digests, spec, {ENTRY.model: self.vectors})
        deliver(delivery, Destination(RunDirectory(store / "run"), (), store), lambda _: None)


def found(chunks: Chunks, asked: Mapping[str, str], grades: Grades, language: str) -> float:
    """Mean nDCG of the queries that have an answer, by BM25 alone."""
    with tempfile.TemporaryDirectory() as made:
        chunks.deliver(Path(made), language)
        engine, terms = edge.EdgeShard.load(f"{made}/docs", None), Words(language=language).engine(1.2, 0.75, 1.0)
        figures = []
        for query, grade in grades.items():
            if any(grade.values()):
                wanted = edge.Query.Nearest(terms.embed_query(asked[query]), using=BM25)
                hits = engine.query(edge.QueryRequest(limit=CUT, query=wanted, with_payload=True))
                figures.append(ndcg([hit.payload["metadata"]["chunk_id"] for hit in hits], grade))
        engine.close()
    return float(np.mean(figures))


def cost(chunks: Chunks, language: str | None) -> dict[str, float]:
    """CPU seconds and bytes on disk of one delivery."""
    with tempfile.TemporaryDirectory() as made:
        began = time.process_time()
        chunks.deliver(Path(made), language)
        took = time.process_time() - began
        files = [path.stat() for path in Path(made).rglob("*") if path.is_file() and "wal" not in path.parts]
        return {"cpu": took, "bytes": sum(512 * file.st_blocks for file in files)}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    about, every, collections = machine.describe(), dict[str, str](), list[dict[str, Any]]()
    for directory in options.collections:
        texts, asked, grades = read(directory)
        every |= {f"{directory.name}/{each}": text for each, text in texts.items()}
        with tempfile.TemporaryDirectory() as made:
            chunks = Chunks(Path(made), texts)
            figures = {language: round(found(chunks, asked, grades, language), 4) for language in LANGUAGES}
        collections.append({"collection": directory.name, "texts": len(texts), "queries": len(grades), **figures})
    with tempfile.TemporaryDirectory() as made:
        chunks = Chunks(Path(made), every)
        turns = {"without": lambda: cost(chunks, None), "with": lambda: cost(chunks, "english")}
        taken = machine.interleave(turns, options.rounds)
    spread = {name: machine.spread([each["cpu"] for each in rounds]) for name, rounds in taken.items()}
    sizes = {name: rounds[0]["bytes"] for name, rounds in taken.items()}
    return {
        "machine": {**about, "load_after": machine.load()},
        "collections": collections,
        "rounds": options.rounds,
        "texts": len(every),
        "cpu_seconds": spread,
        "ratio": round(spread["with"]["median"] / spread["without"]["median"], 3),
        "bytes a text": {name: round(size / len(every)) for name, size in sizes.items()},
    }


def show(result: dict[str, Any]) -> None:
    rows = [[*map(str, each.values())] for each in result["collections"]]
    machine.table(["collection", "texts", "queries", "nDCG@10 stemmed", "not stemmed"], rows)
    seconds, size = result["cpu_seconds"], result["bytes a text"]
    print(f"delivery of {result['texts']:,} texts: {seconds['without']['median']:.2f} CPU s without, "
          f"{seconds['with']['median']:.2f} with ({result['ratio']:.2f}x); {size['without']:,} and {size['with']:,} "
          f"bytes a text in the store")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collections", type=Path, nargs="+", metavar="DIR", help="directories of judged collections")
    parser.add_argument("--rounds", type=int, default=5)
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
