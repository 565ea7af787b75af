"""The demo's corpus and settings: the docstrings of the standard library that is installed, cut into chunk files.

The files are parsed, never imported, so nothing of them runs.
"""

import ast
import json
import shutil
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from interlock.engine.compute.controls import Controls
from interlock.engine.record import atomic
from interlock.engine.settings import Configuration

if TYPE_CHECKING:
    from interlock.engine.flows.run import Run

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
REHEARSAL = "sim:2xT4"
COLLECTION = "Python-Stdlib"
FEW = 300
SHORTEST = 40
SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "__pycache__", "turtledemo"}
LIKED = {"argparse", "csv", "datetime", "pathlib", "random", "shutil", "statistics", "threading"}


def with_store(configuration: Configuration) -> Configuration:
    """Put a store beside the runs, where nothing else was said."""
    knobs = configuration.settings
    if knobs.qdrant is None:
        knobs = replace(knobs, qdrant=knobs.out / "demo-store")
    return replace(configuration, settings=knobs)


def run(configuration: Configuration, controls: Controls, *, everything: bool) -> "Run":
    """Cut the corpus and make the run of it; `everything` takes all docstrings, not a few hundred."""
    from interlock.engine.flows.run import Run

    chunks = configuration.settings.out / "demo-chunks"
    write(chunks, everything=everything)
    return Run(chunks, with_devices(configuration), controls)


def with_devices(configuration: Configuration) -> Configuration:
    """Choose simulated GPUs where there are no real ones and nothing else was said, so that leases are seen."""
    import torch

    knobs, origins = configuration.settings, dict(configuration.origins)
    if origins["devices"] != "default" or torch.cuda.is_available():
        return configuration
    origins["devices"] = "demo: no GPU found"
    return replace(configuration, settings=replace(knobs, devices=REHEARSAL), origins=origins)


def write(directory: Path, *, everything: bool, library: Path | None = None) -> int:
    """Write the chunk files under `directory`, in place of older ones; return how many chunks.

    They are cut from `library`, by default the standard library of the Python that runs this.
    """
    shutil.rmtree(directory / COLLECTION, ignore_errors=True)
    root, total = library or Path(sysconfig.get_path("stdlib")), 0
    for file in _files(root):
        if not everything and total >= FEW:
            break
        chunks = list(_chunks(file, file.relative_to(root).as_posix(), _module(root, file)))
        if chunks:
            name = file.relative_to(root).with_suffix("").as_posix().replace("/", ".")
            target = directory / COLLECTION / f"{name}_chunks.json"
            atomic.write_bytes(target, json.dumps(chunks, indent=1).encode())
            total += len(chunks)
    return total


def _files(root: Path) -> list[Path]:
    """Every module, those that people know first, so that a small demo has something to find."""
    files = [file for file in root.rglob("*.py") if not SKIPPED & set(file.relative_to(root).parts)]
    files.sort(key=lambda file: file.relative_to(root).as_posix())
    return sorted(files, key=lambda file: _module(root, file).split(".")[0] not in LIKED)


def _module(root: Path, file: Path) -> str:
    """The name that people import: the docstrings of `datetime`, which is compiled, stand in `_pydatetime.py`."""
    name = file.relative_to(root).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
    known = name.removeprefix("_py")
    return known if (root / f"{known}.py").is_file() else name


def _chunks(file: Path, source: str, module: str) -> Iterator[dict[str, object]]:
    """One chunk a docstring, with where it stands."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return
    for name, node in _named(tree, module):
        text = ast.get_docstring(node)
        if text and len(text) >= SHORTEST:
            line = node.lineno if hasattr(node, "lineno") else 1
            yield {
                "text": f"{name}\n\n{text}",
                "metadata": {"chunk_id": name, "source_path": source, "heading_text": name, "line": line},
            }


def _named(node: Documented, name: str) -> Iterator[tuple[str, Documented]]:
    """The node and the classes and functions in it, by qualified name; the first of a name counts."""
    yield name, node
    seen: set[str] = set()
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name not in seen:
            seen.add(child.name)
            yield from _named(child, f"{name}.{child.name}")
