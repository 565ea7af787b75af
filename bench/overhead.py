"""Share of a real run's wall time that is not a forward pass, from its summary and its journal, by where it went.

Docstrings of usual length, cut and numbered so that all are distinct; one thread; files are delivered, and a
store where `--qdrant` is given.
"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import corpora
import evidence
import machine

from interlock.engine.record import journal, summary
from interlock.engine.record.events import (
    ArtefactWritten,
    BatchCommitted,
    EnsemblePassCompleted,
    LeaseGranted,
    ModelAttached,
    RunClosed,
    RunStarted,
)

SOURCES = evidence.RUN
GOAL = 0.03
KINDS = (RunStarted, LeaseGranted, ModelAttached, BatchCommitted, EnsemblePassCompleted, ArtefactWritten, RunClosed)
PARTS = ("reading and tokenising", "attach", "batches", "release", "files", "store and summary")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    about = machine.describe()
    texts = corpora.cuts(corpora.texts_of(None, few=options.quick), options.chunks, options.words)
    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        corpora.write_chunks(root / "chunks", texts, 1000)
        run = [sys.executable, "-m", "interlock", "run", str(root / "chunks"), "--roster", options.model]
        where = ["--out", str(root / "runs"), "--run-id", "bench", "--threads", "1", "--offline", "--quiet"]
        store = ["--qdrant", str(root / "store")] if options.qdrant else []
        environment = {**os.environ, **machine.SINGLE_THREAD}
        began = time.monotonic()
        subprocess.run([*run, *where, *store], env=environment, cwd=root, check=True)
        whole = time.monotonic() - began
        said = summary.load((root / "runs/bench/summary.json").read_bytes())
        entries = list(journal.read(root / "runs/bench/journal.jsonl"))
    last = {kind: max(entry.elapsed for entry in entries if isinstance(entry.body, kind)) for kind in KINDS}
    passes = [each for collection in said.collections for each in collection.passes]
    forward = sum(each.seconds or 0.0 for each in passes)
    spans = dict(zip(PARTS, (last[b] - last[a] for a, b in itertools.pairwise(KINDS)), strict=True))
    commits = spans.pop("batches") - forward
    return {
        "machine": {**about, "load_after": machine.load()},
        "model": options.model,
        "chunks": options.chunks,
        "tokens": sum(each.tokens for each in passes),
        "qdrant": options.qdrant,
        "seconds": {
            "process": round(whole, 2),
            "run": round(said.seconds, 2),
            "forward": round(forward, 2),
            **{part: round(seconds, 3) for part, seconds in spans.items()},
            "gate, write, commit, sync": round(commits, 3),
        },
        "goals": {"share not forward": machine.goal(1 - forward / said.seconds, GOAL, at_most=True)},
    }


def show(result: dict[str, Any]) -> None:
    print(f"\n{result['chunks']:,} chunks, {result['tokens']:,} tokens, {result['model']}")
    run = result["seconds"]["run"]
    machine.table(["part", "s", "% of the run"], [
        [name, seconds, 100 * seconds / run] for name, seconds in result["seconds"].items()
    ])  # fmt: skip
    machine.goals(result["goals"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=3000, metavar="N")
    parser.add_argument("--words", type=int, default=60, help="words in a text")
    parser.add_argument("--model", default="all-minilm-l6")
    parser.add_argument("--qdrant", action="store_true", help="deliver into an embedded store too")
    machine.quick(parser, chunks=40)
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
