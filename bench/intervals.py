"""How often the intervals of `interlock eval` hold the true difference, and how often a star or a verdict is chance.

The truth is that of judged collections: differences in nDCG@10 between five lexical searches over their queries. Few
queries are drawn from these, whose mean is known, and told as the command tells them; beside it the quantiles of
resamples, which it told before.
"""

import argparse
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import evidence
import machine
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from interlock.engine.evaluation.judgements import read_judged
from interlock.engine.evaluation.report import DEEPEST, LEAST, MAIN, Values, differences, measured

SOURCES = ("engine/evaluation/report.py",)
QUERIES, MOST = (6, 10, 20, 30, 60, 100, 300), 70
"""Sizes of samples; collections with fewer queries than `MOST` are no truth to draw from."""
WAYS: dict[str, dict[str, Any]] = {
    "tf-idf": {},
    "sublinear": {"sublinear_tf": True, "stop_words": "english"},
    "stopped": {"stop_words": "english"},
    "bigrams": {"sublinear_tf": True, "ngram_range": (1, 2)},
    "characters": {"analyzer": "char_wb", "ngram_range": (3, 4), "max_features": 50_000},
}


def populations(directory: Path) -> tuple[list[Values], list[Values]]:
    """Return the nDCG@10 [queries] of each lexical way over a collection, and the differences of each pair."""
    judged, found = read_judged(directory), list[Values]()
    test, ids = judged.splits["test"], list(judged.texts)
    for settings in WAYS.values():
        words = TfidfVectorizer(**settings)
        texts = words.fit_transform(judged.texts.values())
        scores = (words.transform([judged.queries[query] for query in test]) @ texts.T).toarray()
        lists = [{ids[at]: float(row[at]) for at in np.argsort(-row, kind="stable")[:DEEPEST]} for row in scores]
        found.append(measured(lists, list(test.values()))[MAIN])
    return found, [one - other for one, other in combinations(found, 2)]


def covered(truths: list[Values], queries: int, rounds: int) -> dict[str, float]:
    """Say how often intervals hold the mean of what they were drawn from, and how often a table of equal ways stars."""
    generator, held, before, starred = np.random.default_rng(queries), [], [], 0
    picked = generator.integers(0, queries, (1000, queries))
    for _ in range(rounds):
        drawn = [generator.choice(each, queries) for each in truths]
        for truth, sample, told in zip(truths, drawn, differences(drawn), strict=True):
            low, high = np.quantile(sample[picked].mean(axis=1), (0.025, 0.975))
            held.append(told.low <= truth.mean() <= told.high)
            before.append(low <= truth.mean() <= high)
        alike = [sample - truth.mean() for truth, sample in zip(truths, drawn, strict=True)]
        starred += any(each.significant for each in differences(alike))
    return {"t": float(np.mean(held)), "resamples": float(np.mean(before)), "stars": starred / rounds}


def covered_together(sets: list[list[Values]], queries: int, rounds: int) -> dict[str, float]:
    """Say the same of the pairs over all sets, each set with its share of so many queries, or `LEAST`."""
    generator, held, starred = np.random.default_rng(queries), [], 0
    every = sum(len(pairs[0]) for pairs in sets)
    counts = [max(2, min(LEAST, queries // len(sets)), round(queries * len(pairs[0]) / every)) for pairs in sets]
    truths = np.array([[each.mean() for each in pairs] for pairs in sets])  # [sets, pairs]
    for _ in range(rounds):
        drawn = [[generator.choice(each, count) for each in pairs] for pairs, count in zip(sets, counts, strict=True)]
        told = differences(*drawn)
        held += [each.low <= truth <= each.high for each, truth in zip(told, truths.mean(axis=0), strict=True)]
        alike = [[own - truth for own, truth in zip(*each, strict=True)] for each in zip(drawn, truths, strict=True)]
        starred += any(each.significant for each in differences(*alike))
    return {"t": float(np.mean(held)), "stars": starred / rounds}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    ways, sets = zip(*(populations(directory) for directory in options.collections), strict=True)
    every = [each for pairs in sets for each in pairs]
    truths = [each for each in every if len(each) >= MOST] or every
    alone = [each for own in ways for each in own]
    means = [each for each in alone if len(each) >= MOST] or alone
    spreads = [float(each.std()) for each in every]
    found = {str(queries): covered(truths, queries, options.rounds) for queries in QUERIES}
    for queries, each in found.items():
        each["means"] = covered(means, int(queries), options.rounds)["t"]
    together = {str(queries): covered_together(sets, queries, options.rounds) for queries in QUERIES}
    told = {"pairs": len(truths), "rounds": options.rounds, "spreads": spreads, "samples": found, "together": together}
    return {"machine": machine.describe(), "sets": len(sets), **told}


def show(result: dict[str, Any]) -> None:
    low, middle, high = np.quantile(result["spreads"], (0, 0.5, 1))
    print(f"{result['pairs']} pairs of ways; standard deviations {low:.3f} to {high:.3f}, median {middle:.3f}\n")
    print("| queries | intervals that hold the difference | by resamples | tables of equal ways with a star | means |")
    print("| --- | --- | --- | --- | --- |")
    for queries, each in result["samples"].items():
        figures = (each[name] for name in ("t", "resamples", "stars", "means"))
        print(f"| {queries} | {' | '.join(f'{figure:.1%}' for figure in figures)} |")
    print(f"\n| queries of {result['sets']} sets | intervals that hold the difference | tables with a star |")
    print("| --- | --- | --- |")
    for queries, each in result["together"].items():
        print(f"| {queries} | {each['t']:.1%} | {each['stars']:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collections", type=Path, nargs="+", metavar="DIR", help="directories of judged collections")
    parser.add_argument("--rounds", type=int, default=2000, metavar="N", help="samples of each size (2000)")
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
