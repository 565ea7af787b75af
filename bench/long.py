"""What `--long split` is worth: nDCG@10 of judged collections with texts beyond a model's limit, cut and split.

A collection is a directory with `corpus.jsonl`, `queries.jsonl` and `qrels/test.tsv`, as BEIR has them. Texts are
embedded by runs, one for each limit and overlap; queries are cut. Differences are paired by query, with 95 % bootstrap
intervals.
"""

import argparse
import csv
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import corpora
import evidence
import machine
import numpy as np

import interlock
from interlock.engine.compute.encoder import encode_texts
from interlock.engine.corpus.tokens import encoded, load_tokenizer, specials_of
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy
from interlock.engine.models.card import ModelCard
from interlock.engine.models.registry import REGISTRY, ModelSpec, find
from interlock.engine.models.roster import cards_of
from interlock.engine.record.summary import PassSummary

SOURCES = ("engine/corpus", "engine/compute", "engine/models")
DEPTH = 10
RESAMPLES = 10_000
AT_A_TIME = 16
"""Queries of a forward."""


@dataclass(frozen=True)
class Judged:
    """A collection with its queries, and by query the grades of texts by their row."""

    name: str
    texts: Sequence[str]
    queries: Sequence[str]
    grades: Sequence[Mapping[int, int]]


def read(directory: Path) -> Judged:
    """Read a collection; queries without a relevant text are left out."""
    records = [json.loads(line) for line in (directory / "corpus.jsonl").read_text().splitlines()]
    rows = {record["_id"]: row for row, record in enumerate(records)}
    asked = [json.loads(line) for line in (directory / "queries.jsonl").read_text().splitlines()]
    grades: dict[str, dict[int, int]] = {record["_id"]: {} for record in asked}
    with (directory / "qrels" / "test.tsv").open() as handle:
        for line in csv.DictReader(handle, delimiter="\t"):
            if int(line["score"]) > 0 and line["corpus-id"] in rows:
                grades[line["query-id"]][rows[line["corpus-id"]]] = int(line["score"])
    judged = [record for record in asked if grades[record["_id"]]]
    texts = [f"{record.get('title', '')} {record['text']}".strip() for record in records]
    return Judged(directory.name, texts, [each["text"] for each in judged], [grades[each["_id"]] for each in judged])


def made_up() -> Judged:
    """Docstrings, each with words of its last quarter as a query."""
    texts = corpora.sample(corpora.texts_of(None, few=True), 24, 600)
    queries = [" ".join(text.split()[-12:]) for text in texts]
    return Judged("docstrings", texts, queries, [{row: 1} for row in range(len(texts))])


def gains(judged: Judged, vectors: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The nDCG@10 of every query by cosine."""
    found = []
    for scores, grades in zip(queries @ vectors.T, judged.grades, strict=True):
        best = np.argsort(-scores, kind="stable")[:DEPTH]
        got = _discounted([grades.get(int(row), 0) for row in best])
        found.append(got / _discounted(sorted(grades.values(), reverse=True)[:DEPTH]))
    return np.array(found)


def _discounted(grades: Sequence[int]) -> float:
    return float(sum(grade / np.log2(2 + place) for place, grade in enumerate(grades)))


def interval(differences: np.ndarray) -> list[float]:
    """The mean difference, and its 95 % interval over resampled queries."""
    generator = np.random.default_rng(7)
    means = differences[generator.integers(0, len(differences), (RESAMPLES, len(differences)))].mean(axis=1)
    return [round(float(value), 4) for value in (differences.mean(), *np.quantile(means, [0.025, 0.975]))]


def embedded(
    place: Path, judged: Judged, spec: ModelSpec, overlap: float | None, rows: Sequence[int]
) -> tuple[np.ndarray, PassSummary]:
    """The vectors of these texts in their order, and what the summary says of the pass."""
    run_id = f"{judged.name}-{spec.max_tokens}-{overlap}"
    corpora.write_chunks(place / run_id, [judged.texts[row] for row in rows], 0)
    settings = interlock.Settings(
        roster=[spec.key],
        models={spec.key: {"max_tokens": spec.max_tokens, "dtype": dict(spec.dtype)}},
        long="cut" if overlap is None else "split",
        long_overlap=overlap or 0.0,
        devices="cpu",
        threads=1,
        export=["npy"],
        offline=True,
        out=place / "runs",
        run_id=run_id,
    )
    run = interlock.embed(place / run_id, settings, progress="none")
    return np.array(run.vectors("Bench").array), run.summary.collections[0].passes[0]


def longer(judged: Judged, card: ModelCard) -> np.ndarray:
    """Which texts [texts] are longer than the model's limit."""
    tokenizer = load_tokenizer(card.tokenizer_file)
    most = card.max_tokens - specials_of(tokenizer).count
    return np.array([len(each.ids) > most for each in encoded(tokenizer, judged.texts)])


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Every collection under every limit: its texts cut, then split with every overlap."""
    collections = [read(path) for path in options.data] if options.data else [made_up()]
    found = []
    with tempfile.TemporaryDirectory() as made:
        for limit in options.limits:
            known = find(REGISTRY, [options.model])[0]
            spec = replace(known, max_tokens=limit, dtype={"cpu": options.dtype})
            own = [_compared(Path(made), judged, spec, options.overlaps) for judged in collections]
            found += [told for _, told in own]
            if len(own) > 1:
                found.append(_pooled(limit, [differences for differences, _ in own]))
            print(json.dumps(found[-1]), flush=True)
    queries = sum(len(each.queries) for each in collections)
    result = {"model": options.model, "dtype": options.dtype, "machine": machine.describe(), "queries": queries}
    worst = min(each["split"][-1]["difference"][0] for each in found)
    goals = {"nDCG@10, the largest overlap beside texts that are cut, worst collection": machine.goal(worst, 0.0)}
    return {**result, "found": found, "goals": goals}


def _compared(
    place: Path, judged: Judged, spec: ModelSpec, overlaps: Sequence[float]
) -> tuple[dict[float, np.ndarray], dict[str, Any]]:
    """By overlap the difference of each query to texts that are cut, and what is kept of them."""
    (card,) = cards_of([spec], Policy(offline=True), [CpuDevice()], lambda _: None)
    queries, long = _queries(judged, card), longer(judged, card)
    there = [row for row, text in enumerate(judged.texts) if text]
    cut = np.zeros((len(judged.texts), card.dim), np.float32)
    cut[there], told = embedded(place, judged, spec, None, there)
    base = gains(judged, cut, queries)
    differences, kept = {}, []
    for overlap in overlaps:
        vectors = cut.copy()  # what fits has the same vector
        vectors[long], whole = embedded(place, judged, spec, overlap, np.flatnonzero(long).tolist())
        values = gains(judged, vectors, queries)
        differences[overlap] = values - base
        kept.append(
            {
                "overlap": overlap,
                "ndcg": round(float(values.mean()), 4),
                "difference": interval(values - base),
                "spans": whole.spans,
                "tokens": round(1 + whole.split_tokens / told.tokens, 3),
            }
        )
        print(f"{judged.name}, {spec.max_tokens} tokens: {kept[-1]}", flush=True)
    about = {"collection": judged.name, "limit": spec.max_tokens, "texts": len(cut), "long": int(long.sum())}
    return differences, {**about, "cut": round(float(base.mean()), 4), "split": kept}


def _pooled(limit: int, differences: Sequence[Mapping[float, np.ndarray]]) -> dict[str, Any]:
    """The differences of the queries of all collections together."""
    split = [
        {"overlap": overlap, "difference": interval(np.concatenate([each[overlap] for each in differences]))}
        for overlap in differences[0]
    ]
    return {"collection": "all", "limit": limit, "split": split}


def _queries(judged: Judged, card: ModelCard) -> np.ndarray:
    """Unit vectors of the queries, which are cut."""
    texts, lessor = judged.queries, Lessor([CpuDevice()], 1 << 40)
    parts = [texts[start : start + AT_A_TIME] for start in range(0, len(texts), AT_A_TIME)]
    return np.concatenate([encode_texts(card, part, card.query_prompt, lessor).dense for part in parts])


def show(result: dict[str, Any]) -> None:
    heads = ["collection", "limit", "longer", "cut", "overlap", "split", "difference", "95 % interval", "tokens"]
    rows = []
    for each in result["found"]:
        for split in each["split"]:
            mean, low, high = split["difference"]
            longer = f"{each['long']:,} of {each['texts']:,}" if "long" in each else ""
            cells = [each["collection"], each["limit"], longer, each.get("cut", ""), split["overlap"]]
            cells += [split.get("ndcg", ""), f"{mean:+.4f}", f"[{low:+.4f}, {high:+.4f}]", split.get("tokens", "")]
            rows.append(cells)
    machine.table(heads, rows)
    machine.goals(result["goals"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, nargs="*", default=[], metavar="DIR", help="judged collections")
    parser.add_argument("--model", default="all-minilm-l6")
    parser.add_argument("--limits", type=int, nargs="+", default=[256, 128], metavar="TOKENS")
    parser.add_argument("--overlaps", type=float, nargs="+", default=[0.0, 0.125, 0.25], metavar="SHARE")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    machine.quick(parser, data=[], limits=[64], overlaps=[0.125])
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
