"""What a question costs: a process of its own, the first and the next of a searcher that stays, a thousand in one file.

CPU seconds at one thread over a store of the demo's corpus with both demo models and BM25, stage by stage. Then, over
random clustered vectors in a shard of their own, every point compared against the engine's HNSW index: milliseconds a
question, the share of the exact ten that the index finds, and what building it takes. A store of ours has no index.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import evidence
import machine

os.environ.update(machine.SINGLE_THREAD)

import numpy as np

SOURCES = (
    "engine/search/*.py",
    "engine/targets/embedded.py",
    "engine/vectors/*.py",
    "engine/compute/encoder.py",
    "engine/compute/job.py",
)
INTERLOCK = (sys.executable, "-m", "interlock")
QUESTION = "how do I make a date from an ISO 8601 string?"
CLUSTERS, SPREAD, TOP = 1000, 0.6, 10
WARM_MS, SHARE, AGREED = 100, 0.1, 0.999


def used() -> float:
    """CPU seconds of the processes that have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def demo(place: Path, roster: str) -> Path:
    flags = ("--no-ui", "--quiet", "--devices", "cpu", "--roster", roster)
    subprocess.run([*INTERLOCK, "demo", *flags], cwd=place, check=True, capture_output=True)
    return place / "runs" / "demo-store"


def a_process(store: Path) -> float:
    before = used()
    subprocess.run([*INTERLOCK, "search", store, QUESTION, "--threads", "1"], check=True, capture_output=True)
    return used() - before


def questions(count: int) -> list[str]:
    """Distinct ones, of words of the corpus: names of its own functions among words that ask."""
    names = [name for name in dir(str) + dir(os) + dir(time) if not name.startswith("_")]
    return [f"how do I use {names[row % len(names)]} with {names[row * 7 % len(names)]} {row}" for row in range(count)]


def kept(store: Path, many: int) -> dict[str, Any]:
    """The first question of a searcher, those after it, and many at once, with the stages of the warm ones."""
    import interlock

    settings, asked = interlock.Settings(threads=1, offline=True), questions(many)
    stages = defaultdict[str, list[float]](list)
    with interlock.Searcher(store, settings=settings) as searcher:
        began = time.process_time()
        searcher.search(QUESTION)
        first, warm = time.process_time() - began, []
        for question in asked[:50]:
            began = time.process_time()
            (answer,) = searcher.answers([question])
            warm.append(time.process_time() - began)
            for stage, seconds in answer.seconds.items():
                stages[stage].append(1000 * seconds)
        began = time.process_time()
        assert sum(1 for _ in searcher.answers(asked)) == many
        batch = (time.process_time() - began) / many
    return {"first": first, "warm": float(np.median(warm)), "batch": batch,
            "stages_ms": {stage: round(float(np.median(each)), 2) for stage, each in stages.items()}}  # fmt: skip


def index(points: int, dim: int, asked: int) -> dict[str, Any]:
    """Every point compared, and the engine's index, on the same vectors."""
    import qdrant_edge as edge

    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CLUSTERS, dim), np.float32)

    def drawn(count: int) -> Any:
        vectors = centres[rng.integers(0, CLUSTERS, count)] + SPREAD * rng.standard_normal((count, dim), np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    vectors, wanted = drawn(points), drawn(asked)
    with tempfile.TemporaryDirectory() as made:
        params = {"v": edge.EdgeVectorParams(size=dim, distance=edge.Distance.Cosine)}
        shard = edge.EdgeShard.load(made, edge.EdgeConfig(vectors=params))
        for start in range(0, points, 1000):
            rows = range(start, min(start + 1000, points))
            batch = [edge.Point(row, {"v": vectors[row].tolist()}, {}) for row in rows]
            shard.update(edge.UpdateOperation.upsert_points(batch))
        shard.flush()

        def ask(*, exact: bool) -> tuple[float, list[set[Any]]]:
            began, found = time.process_time(), []
            for vector in wanted:
                query = edge.Query.Nearest(vector.tolist(), using="v")
                request = edge.QueryRequest(limit=TOP, query=query, params=edge.SearchParams(exact=exact))
                found.append({each.id for each in shard.query(request)})
            return 1000 * (time.process_time() - began) / asked, found

        plain, truth = ask(exact=True)
        force = np.argsort(-(wanted @ vectors.T), axis=1)[:, :TOP]
        agrees = np.mean([len(each & {*row.tolist()}) / TOP for each, row in zip(truth, force, strict=True)])
        began = time.process_time()
        shard.optimize()
        building = time.process_time() - began
        indexed, found = ask(exact=False)
        shard.close()
    recall = float(np.mean([len(each & best) / TOP for each, best in zip(found, truth, strict=True)]))
    return {
        "points": points,
        "dim": dim,
        "asked": asked,
        "exact_ms": round(plain, 2),
        "exact_agrees": round(float(agrees), 4),
        "indexed_ms": round(indexed, 2),
        "recall": round(recall, 4),
        "building_s": round(building, 1),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    about = machine.describe()
    with tempfile.TemporaryDirectory() as made:
        store = demo(Path(made), options.roster)
        processes = [a_process(store) for _ in range(options.rounds)]
        stays = [kept(store, options.questions) for _ in range(options.rounds)]
    spread = {name: machine.spread([each[name] for each in stays]) for name in ("first", "warm", "batch")}
    warm, first = spread["warm"]["median"], spread["first"]["median"]
    found = [index(options.points, options.dim, 200)] if options.points else []
    wanted = {
        "CPU ms of the next question": machine.goal(1000 * warm, WARM_MS, at_most=True),
        "the next beside the first": machine.goal(warm / first, SHARE, at_most=True),
        "exact is brute force": machine.goal(min((each["exact_agrees"] for each in found), default=1.0), AGREED),
    }
    return {
        "machine": {**about, "load_after": machine.load()},
        "rounds": options.rounds,
        "questions": options.questions,
        "cpu_seconds": {"process": machine.spread(processes), **spread},
        "stages_ms": stays[0]["stages_ms"],
        "index": found,
        "goals": wanted,
    }


def show(result: dict[str, Any]) -> None:
    seconds = result["cpu_seconds"]
    told = {"process": "interlock search, a process of its own", "first": "first question of a Searcher",
            "warm": "the next ones", "batch": f"each of {result['questions']:,} at once"}  # fmt: skip
    machine.goals(result["goals"])
    machine.table(["question", "CPU ms"], [[told[name], f"{1000 * seconds[name]['median']:.1f}"] for name in told])
    print("warm, by stage (ms): " + ", ".join(f"{name} {took}" for name, took in result["stages_ms"].items()))
    for each in result["index"]:
        print(f"{each['points']:,} points of {each['dim']}: every one compared {each['exact_ms']} ms; index "
              f"{each['indexed_ms']} ms, recall {each['recall']}, built in {each['building_s']} CPU s")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--points", type=int, default=100_000, help="points with an index and without; 0: none")
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--roster", default="all-minilm-l6,all-mpnet-base-v2", help="models of the demo's store")
    machine.quick(parser, rounds=1, questions=20, points=2000, dim=16, roster="all-minilm-l6")
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
