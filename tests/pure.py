"""Which tests are pure: they start no process, load or trace no model, do no run, show no screen, and end in moments.

Told from the source: a test is pure unless it, a helper or a fixture of its module uses a name that comes from where
such things are done. `make quick` runs these alone.
"""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

WORKING = (
    "bench",
    "interlock.console.apps",
    "interlock.engine.flows.rehearsal",
    "interlock.engine.compute.texts.encode_texts",
    "interlock.engine.flows.run.Run",
    "interlock.engine.compute.checks",
    "interlock.engine.compute.cluster.ray_cluster",
    "interlock.engine.compute.cluster.ray_head",
    "multiprocessing",
    "runpy",
    "sentence_transformers",
    "subprocess",
    "tests.architectures",
    "tests.builders.command",
    "tests.builders.interlock",
    "tests.builders.sentence_transformer",
    "tests.builders.start",
    "tests.builders.tiny_answerer",
    "tests.builders.tiny_model",
    "tests.builders.tiny_scorer",
    "tests.fake_cuda",
    "tests.hub",
    "tests.oracle",
    "tests.pty_harness",
    "tests.ray_nodes",
    "tests.warm",
    "tests.weightless",
    "textual",
    "transformers",
    "tools.screenshots",
)
"""Where what takes its time comes from: a module with all in it, or a name."""
SLOW = ("bench", "sentence_transformers", "transformers")
"""What takes seconds to import."""
FIXTURES = {"tiny_a", "tiny_b", "minilm"}
"""Models, by the fixtures of conftest."""


@cache
def _names(file: Path) -> dict[str, set[str]]:
    """What each top-level function, class and constant of a module uses, by name; imports by what they stand for."""
    used: dict[str, set[str]] = {}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            used |= {alias.asname or alias.name.partition(".")[0]: {f"import {alias.name}"} for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            used |= {each.asname or each.name: {f"import {node.module}.{each.name}"} for each in node.names}
        else:
            names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
            names |= {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
            names |= {
                f"import {each.module}.{alias.name}"
                for each in ast.walk(node)
                if isinstance(each, ast.ImportFrom)
                for alias in each.names
            }
            made = [
                each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
            ]
            owners = [node.name] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else made
            for owner in owners:
                used[owner] = used.get(owner, set()) | names
    return used


def is_pure(file: Path, name: str, fixtures: Iterable[str] = ()) -> bool:
    """Whether the test `name` of a module does none of these, with the fixtures that it is given."""
    used, seen, waiting = _names(file), set[str](), [name, *fixtures]
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        if each in FIXTURES or any(_within(each, place) for place in WORKING):
            return False
        waiting += used.get(each, ())
    return True


def _within(name: str, place: str) -> bool:
    return name == f"import {place}" or name.startswith(f"import {place}.")


def files() -> list[Path]:
    """The modules with pure tests, but for those that are slow to import."""
    found = []
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        used = _names(file)
        slow = any(_within(name, place) for names in used.values() for name in names for place in SLOW)
        if not slow and any(is_pure(file, name) for name in used if name.startswith("test_")):
            found.append(file)
    return found


if __name__ == "__main__":
    print(*(file.relative_to(Path.cwd()) for file in files()))
