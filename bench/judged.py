"""Judged collections, in BEIR's files (corpus.jsonl, queries.jsonl, qrels/test.tsv), and how well an order answers."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from interlock.engine.evaluation.judgements import Grades, read_judged

CUT = 10


def read(directory: Path) -> tuple[Mapping[str, str], Mapping[str, str], Grades]:
    """The texts that have a word and the queries by id, and the grade of each judged text by query."""
    found = read_judged(directory)
    return found.texts, found.queries, found.splits["test"]


def ndcg(order: list[str], grades: Mapping[str, int]) -> float:
    """nDCG at `CUT` with the grades as gains, as trec_eval has it."""
    discounts = 1 / np.log2(np.arange(2, CUT + 2))
    gains = np.array([float(grades.get(text, 0)) for text in order[:CUT]])
    best = np.sort([float(grade) for grade in grades.values()])[::-1][:CUT]
    return float(gains @ discounts[: len(gains)] / (best @ discounts[: len(best)]))
