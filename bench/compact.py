"""What a store with `--compact` takes and finds: bytes a chunk by part, and nDCG@10 against whole vectors.

Bytes are of vectors at random, 384 and 1,024 dimensions, and the texts of judged collections, between a quarter of the
chunks and all. What is found is that of the engine's own store, asked as a search asks it; against it stand the whole
fused vectors by brute force, as `interlock eval` judges them.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

sys.path.insert(0, str(Path(__file__).parents[1]))

import evidence
import machine
import msgspec
import numpy as np

from interlock.engine.evaluation.judging import Judge
from interlock.engine.evaluation.report import MAIN, differences, measured, signed
from interlock.engine.evaluation.weighing import fused
from interlock.engine.flows import Listener
from interlock.engine.flows import evaluate as flow
from interlock.engine.search.combine import DEPTH, Hybrid, combined, shares_of
from interlock.engine.search.encoding import words_of
from interlock.engine.settings import load
from interlock.engine.targets.embedded import Store
from interlock.engine.vectors import SPARSE_SHARE
from interlock.engine.vectors.bm25 import BM25, WordCounts, Words, WordWeights
from interlock.engine.vectors.fusion import Vectors, fit, project
from interlock.engine.vectors.points import Point

SOURCES = ("engine/targets/embedded.py", "engine/targets/shard.py", "engine/vectors/texts.py", "engine/vectors/bm25.py")

DIMS, WIDTH = (384, 1024), 384
PARTS = {"vectors": "vector_storage-fused", "terms": "vector_storage-bm25", "ids": "tracker", "log": "wal"}
FORMS = {"default": ("none", False), "int8": ("int8", False), "compact": ("int8", True)}


def opened(place: Path, words: WordWeights, width: int, quantise: str, *, compact: bool) -> Store:
    manifest = {"bm25": msgspec.to_builtins(words.words), "run": {"bm25_average_length": words.average_length}}
    manifest |= {"quantised": quantise, "compact": compact}
    return Store.open_for_write(place, "c", {"fused": width}, manifest, [BM25])


def filled(store: Store, words: WordWeights, vectors: Vectors, texts: Sequence[str]) -> None:
    for start in range(0, len(vectors), 256):
        rows = range(start, min(start + 256, len(vectors)))
        own = [(row, texts[row % len(texts)]) for row in rows]
        points = [
            Point(str(UUID(int=row + 1)), {"text": text}, {"fused": vectors[row]}, words.of(text)) for row, text in own
        ]
        store.upsert(points, 1_000_000)


def sizes(texts: Sequence[str], words: WordWeights, chunks: int) -> dict[str, dict[str, float]]:
    """Return the bytes on disk of a chunk by form and part."""
    found = {}
    for form, (quantise, compact) in FORMS.items():
        width, taken = WIDTH if compact else sum(DIMS), list[dict[str, int]]()
        for count in (chunks // 4, chunks):
            vectors = np.random.default_rng(count).standard_normal((count, width)).astype(np.float32)
            with TemporaryDirectory() as place:
                with opened(Path(place), words, width, quantise, compact=compact) as store:
                    filled(store, words, vectors, texts)
                every = [(str(file), file.stat().st_blocks * 512) for file in Path(place).rglob("*") if file.is_file()]
            taken.append(dict.fromkeys((*PARTS, "payload"), 0))
            for file, size in every:
                taken[-1][next((part for part, name in PARTS.items() if name in file), "payload")] += size
        found[form] = {part: (taken[1][part] - taken[0][part]) / (chunks - chunks // 4) for part in taken[0]}
    return found


def answered(roster: str, directory: Path) -> dict[str, dict[str, Any]]:
    """Return nDCG@10 [queries] of the default and of the dense search, by whole vectors and by a compact store."""
    judges, asked, wanted = list[Judge](), load({"roster": roster, "offline": "yes"}), flow.EvaluationRequest(directory)

    class Kept(Judge):
        def __init__(self, *given: Any) -> None:
            judges.append(self)
            super().__init__(*given)

    flow.Judge, flow_judge = Kept, flow.Judge  # type: ignore[misc]
    flow.evaluate(asked, wanted, Listener())
    flow.Judge = flow_judge  # type: ignore[misc]
    (judge,), subject = judges, flow.subject_of(asked, wanted)
    material, texts, queries = judge.material, list(subject.judged.texts.values()), subject.judged.queries
    documents, questions = fused(material.dense, judge.fusion, [side.weight for side in material.dense])
    words = weights_of(texts)
    if (width := min(WIDTH, len(texts), documents.shape[1] - 1)) < documents.shape[1]:
        projection = fit([documents], documents.shape[1], width)
        documents, questions = project(documents, projection), project(questions, projection)
    lists: dict[str, list[Any]] = {"hybrid": [], "dense": []}
    with TemporaryDirectory() as place, opened(Path(place), words, width, "int8", compact=True) as store:
        filled(store, words, documents, texts)
        for query, at in zip(material.queries, material.tested, strict=True):
            terms = words_of(words.words, queries[query])
            found = {"dense": store.query("fused", questions[at], DEPTH), BM25: {}}
            if len(terms.indices):
                found[BM25] = store.query(BM25, terms, DEPTH)
            floors = {BM25: 0.0} if len(found[BM25]) < DEPTH else {}
            both = combined(Hybrid.WEIGHTED, found, shares_of(["dense"], [BM25], SPARSE_SHARE), floors)
            for name, hits in (("hybrid", both), ("dense", found["dense"])):
                lists[name].append({material.ids[UUID(point).int - 1]: score for point, score in hits.items()})
    assert judge.hybrid
    grades, whole = [material.grades[at] for at in material.tested], {"hybrid": judge.hybrid, "dense": judge.base}
    return {
        name: {"whole": measured(whole[name].found, grades)[MAIN], "compact": measured(lists[name], grades)[MAIN]}
        for name in lists
    }


def weights_of(texts: Sequence[str]) -> WordWeights:
    counts = WordCounts(Words(language="english"))
    counts.add(texts)
    return counts.bm25(np.arange(len(texts), dtype=np.int32))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    sets = {directory.name: answered(options.roster, directory) for directory in options.collections}
    found = {}
    for name in ("hybrid", "dense"):
        apart = [own[name]["compact"] - own[name]["whole"] for own in sets.values()]
        means = {each: {kind: float(values.mean()) for kind, values in own[name].items()} for each, own in sets.items()}
        found[name] = {"sets": means, "difference": msgspec.to_builtins(differences(*([each] for each in apart))[0])}
    every = [text for each in options.collections for text in flow.read_judged(each).texts.values()]
    return {"machine": machine.describe(), "bytes": sizes(every, weights_of(every), options.chunks), "found": found}


def show(result: dict[str, Any]) -> None:
    print("| form | vectors | terms | ids | payload |\n| --- | --- | --- | --- | --- |")
    for form, each in result["bytes"].items():
        print(f"| {form} | {each['vectors']:.0f} | {each['terms']:.0f} | {each['ids']:.0f} | {each['payload']:.0f} |")
    for name, each in result["found"].items():
        sets = ", ".join(f"{own} {one['whole']:.3f} {one['compact']:.3f}" for own, one in each["sets"].items())
        told = each["difference"]
        print(f"\n{name}: {sets}; {signed(told['mean'])} [{signed(told['low'])}, {signed(told['high'])}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collections", type=Path, nargs="+", metavar="DIR", help="directories of judged collections")
    parser.add_argument("--roster", default="all-minilm-l6,all-mpnet-base-v2")
    parser.add_argument("--chunks", type=int, default=8000, metavar="N", help="points of the larger store (8000)")
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
