"""What a chunk and a question walk through: the functions and files of the product that they call, by `sys.setprofile`.

`chunks`: 40 texts, one model, the CPU, files and a store, through `interlock.embed`. `question`: a `Searcher` is opened
and asked; `next question`: its second. `--list` counts by file. Only the public package is used, so that any commit can
be counted.
"""

import argparse
import collections
import inspect
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import evidence
import machine

SOURCES = ("engine", "console", "src/interlock/*.py")
CHUNKS = 40
GOALS = {"chunks": (440, 60), "question": (160, 30)}
ROOMS = ("engine", "console", "widgets")


class Walk:
    """Functions called while it is on, in every thread."""

    def __init__(self) -> None:
        self.called: set[tuple[str, str, int]] = set()

    @contextmanager
    def on(self) -> Iterator[None]:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        # The bodies of modules and classes, comprehensions and lambdas are no functions that a reader looks up.
        named = code.co_flags & inspect.CO_NEWLOCALS and not code.co_name.startswith("<")
        if event == "call" and named and (file := _of_product(code.co_filename)):
            self.called.add((file, code.co_qualname, code.co_firstlineno))

    def count(self) -> dict[str, int]:
        return {"functions": len(self.called), "files": len({file for file, _, _ in self.called})}


def _of_product(name: str) -> str:
    """The file below the package; "" of everything else."""
    _, inside, rest = name.rpartition("/interlock/")
    return rest if inside and ("/" not in rest or rest.split("/")[0] in ROOMS) and "site-packages" not in name else ""


def walked(action: Callable[[], object]) -> Walk:
    walk = Walk()
    with walk.on():
        action()
    return walk


def measure(options: argparse.Namespace) -> dict[str, Any]:
    import interlock

    with tempfile.TemporaryDirectory() as made:
        chunks = Path(made) / "chunks" / "Walk"
        chunks.mkdir(parents=True)
        rows = [{"text": f"text {number} of a walk", "metadata": {"chunk_id": str(number)}} for number in range(CHUNKS)]
        (chunks / "walk_chunks.json").write_text(json.dumps(rows))
        settings = interlock.Settings(
            roster=options.model, out=Path(made) / "runs", qdrant=f"{made}/store", devices="cpu", resume=False
        )
        interlock.embed(chunks.parent, settings, progress="none")  # imports what is imported late
        runs: list[Any] = []
        embedded = walked(lambda: runs.append(interlock.embed(chunks.parent, settings, progress="none")))
        opened: list[Any] = []

        def ask() -> None:
            opened.append(interlock.Searcher(runs[0], settings=settings))
            opened[0].search("which text is it?")

        first = walked(ask)
        next_one = walked(lambda: opened[0].search("which walk is it?"))
        opened[0].close()
    found = {"chunks": embedded, "question": first, "next question": next_one}
    if options.list:
        for name, walk in found.items():
            by_file = collections.Counter(file for file, _, _ in walk.called)
            for file, count in sorted(by_file.items()):
                print(f"{name}\t{count:4d}\t{file}")
    walks = {name: walk.count() for name, walk in found.items()}
    goals = {
        f"{name}: {unit}": machine.goal(walks[name][unit], wanted, at_most=True)
        for name, most in GOALS.items()
        for unit, wanted in zip(("functions", "files"), most, strict=True)
    }
    return {"walks": walks, "goals": goals}


def show(result: dict[str, Any]) -> None:
    machine.table(["walk", "functions", "files"], [[name, *found.values()] for name, found in result["walks"].items()])
    machine.goals(result["goals"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="all-minilm-l6", help="a model on this machine (all-minilm-l6)")
    parser.add_argument("--list", action="store_true", help="say how many functions of each file")
    evidence.gather(parser, measure, show, SOURCES)
