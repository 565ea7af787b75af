"""This tree against another commit: encoding, and whole runs, in CPU seconds, both taking turns within one run.

The other commit is checked out beside this one for the moment. The same Python, the same packages, the same texts and
this tree's bench measure both; only `engine` and `console` differ.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import corpora
import evidence
import machine
from start import spent

SOURCES = ("engine",)
GOAL = 1.01
"""Of the other commit's CPU seconds, at most."""
OURS, OTHER = "this tree", "the other"


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The files of a commit in a directory that is gone afterwards."""
    git = ["git", "-C", str(evidence.ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as made:
        place = Path(made) / "tree"
        subprocess.run([*git, "add", "--quiet", "--detach", str(place), commit], check=True)
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], check=True)


def of(tree: Path) -> dict[str, str]:
    """The environment in which `interlock` is that of a tree."""
    return {**os.environ, **machine.SINGLE_THREAD, "PYTHONPATH": f"{tree}/src"}


def encoding(tree: Path, options: argparse.Namespace) -> Callable[[], float]:
    """CPU seconds to encode the texts once, the least of a few times in a process of its own."""
    script = Path(__file__).with_name("encode.py")
    command = [sys.executable, str(script), "--alone", "--model", options.model, "--texts", str(options.texts)]
    command += ["--rounds", str(options.repeats), "--shortest", "0"]

    def run() -> float:
        chunks = ["--chunks", str(options.chunks)]
        done = subprocess.run([*command, *chunks], env=of(tree), stdout=subprocess.PIPE, text=True, check=True)
        return float(min(json.loads(done.stdout.splitlines()[-1])["cpu"]))

    return run


def running(tree: Path, options: argparse.Namespace) -> Callable[[], float]:
    """CPU seconds of a whole run over the chunks, from the start of its process to its end, with files and a store."""

    def run() -> float:
        with tempfile.TemporaryDirectory() as made:
            command = [
                sys.executable,
                "-m",
                "interlock.console.main",
                "run",
                str(options.chunks),
                "--roster",
                options.model,
            ]
            where = ["--out", made, "--run-id", "bench", "--qdrant", f"{made}/store", "--threads", "1", "--offline"]
            return spent([*command, *where, "--quiet"], Path(made), of(tree))["cpu"]

    return run


PARTS = {"encode": encoding, "run": running}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    about = machine.describe()
    with tempfile.TemporaryDirectory() as made, checked_out(options.commit) as other:
        if options.chunks is None:
            source = corpora.texts_of(None, few=options.quick)
            corpora.write_chunks(Path(made) / "chunks", corpora.cuts(source, options.count, options.words), 1000)
            options.chunks = Path(made) / "chunks"
        trees = {OURS: evidence.ROOT, OTHER: other}
        found = {
            name: machine.interleave({tree: PARTS[name](path, options) for tree, path in trees.items()}, options.rounds)
            for name in options.only
        }
    ratios = {name: [a / b for a, b in zip(each[OURS], each[OTHER], strict=True)] for name, each in found.items()}
    return {
        "machine": {**about, "load_after": machine.load()},
        "against": evidence.commit_of(options.commit),
        "rounds": options.rounds,
        "cpu_seconds": {
            name: {tree: machine.spread(seconds) for tree, seconds in each.items()} for name, each in found.items()
        },
        "ratios_within_rounds": {name: machine.spread(each, 4) for name, each in ratios.items()},
        "goals": {
            f"{name}, of the other's CPU": machine.goal(statistics.median(each), GOAL, at_most=True)
            for name, each in ratios.items()
        },
    }


def show(result: dict[str, Any]) -> None:
    print(f"\nthis tree against {result['against']}")
    machine.table(["", "CPU s", "min", "max"], [
        [f"{name}, {tree}", *spread.values()]
        for name, each in result["cpu_seconds"].items() for tree, spread in each.items()
    ])  # fmt: skip
    machine.goals(result["goals"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", metavar="COMMIT", help="to measure against")
    parser.add_argument("--chunks", type=Path, help="chunk directory; default is cut from the docstrings")
    parser.add_argument("--count", type=int, default=1000, help="chunks that are cut")
    parser.add_argument("--words", type=int, default=60, help="words in one of them")
    parser.add_argument("--texts", type=int, default=128, help="how many are encoded")
    parser.add_argument("--model", default="all-minilm-l6")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    machine.quick(parser, only=["encode"], count=8, texts=8, rounds=1, repeats=1)
    evidence.gather(parser, measure, show, SOURCES)


if __name__ == "__main__":
    main()
