"""What an ensemble finds over judged collections: all that `interlock eval` judges, and whether a default does harm.

The same code as the command: a table for each collection, and three counts that must be 0: collections on which the
default fusion is significantly below its best member, and on which the default hybrid or a reranker at its default
share is significantly below the search without it.
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import evidence
import machine
import msgspec

from interlock.console.main import ENVIRONMENT
from interlock.console.text.evaluation_text import evaluation_text
from interlock.engine.evaluation.report import Evaluation, MeasuredWay
from interlock.engine.flows import Listener
from interlock.engine.flows.evaluate import EvaluationRequest, evaluate
from interlock.engine.settings import load
from interlock.engine.vectors import SPARSE_SHARE

SOURCES = (
    "engine/evaluation/encoding.py",
    "engine/evaluation/judging.py",
    "engine/evaluation/nearest.py",
    "engine/evaluation/report.py",
    "engine/evaluation/ways.py",
    "engine/evaluation/weighing.py",
    "engine/search/combine.py",
    "engine/search/rerank.py",
    "engine/vectors/__init__.py",
    "engine/vectors/bm25.py",
    "engine/vectors/fusion.py",
    "engine/vectors/precision.py",
)
ROSTER, SPARSE, RERANKERS = "all-minilm-l6,all-mpnet-base-v2", "splade-tiny", ("maxsim",)
HARM = {
    "default fusion below its best member": lambda way: way.group == "fusions" and way.name == "concat",
    "default hybrid below the dense search": lambda way: (
        way.group == "hybrid" and way.name.endswith(f", {SPARSE_SHARE:g}")
    ),
    "default rerank below the search without": lambda way: way.group == "rerank",
}


def below(way: MeasuredWay) -> bool:
    """Whether the interval of a way lies below what it is compared with, by itself: harm is not one of many finds."""
    return way.difference is not None and way.difference.high < 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    about = machine.describe()
    settings = load({"roster": options.roster, "sparse": options.sparse, "offline": "yes"})
    found: list[Evaluation] = []
    for directory in options.collections:
        found.append(evaluate(settings, EvaluationRequest(directory, RERANKERS, options.limit), Listener()))
        print(evaluation_text(found[-1]), end="\n\n", flush=True)
    harms = {
        name: sum(any(each(way) and below(way) for way in one.ways) for one in found) for name, each in HARM.items()
    }
    return {
        "machine": {**about, "load_after": machine.load()},
        "collections": [without_places(msgspec.to_builtins(each)) for each in found],
        "goals": {name: machine.goal(count, 0, at_most=True) for name, count in harms.items()},
    }


def without_places(result: dict[str, Any]) -> dict[str, Any]:
    """A result without the notes, which name files of the machine that it was measured on, and without texts and
    figures of single queries."""
    ways = [{name: value for name, value in way.items() if name != "values"} for way in result["ways"]]
    kept = {name: value for name, value in result.items() if name not in ("notes", "query_ids", "worst_of", "worst")}
    return {**kept, "ways": ways}


def show(result: dict[str, Any]) -> None:
    machine.goals(result["goals"])


def main() -> None:
    os.environ.update(ENVIRONMENT)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("collections", type=Path, nargs="+", metavar="DIR", help="directories of judged collections")
    parser.add_argument("--roster", default=ROSTER)
    parser.add_argument("--sparse", default=SPARSE)
    parser.add_argument("--limit", type=int, metavar="N", help="judge by N queries only")
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
