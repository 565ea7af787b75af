"""A library that only the delivery needs is known not to load before anything is computed."""

import ast
import re
import sys
import tomllib
from importlib import metadata
from itertools import chain

import pytest

from interlock.engine.compute.controls import Controls
from interlock.engine.errors import UnavailableError
from interlock.engine.flows import doctor
from interlock.engine.flows.opening import unloadable
from interlock.engine.flows.run import Run
from interlock.engine.settings import load
from tests.builders import ROOT, corpus

BROUGHT = {
    "grpcio": "qdrant-client",
    "httpx": "qdrant-client",
    "scipy": "sentence-transformers",
    "aiohttp": "textual-serve",
    "fsspec": "huggingface-hub",
    "triton": "torch",
}
"""What is imported and comes with another package, whose own interface it is or which cannot do without."""
HOSTS = {"IPython"}
"""What is imported only where it runs this program."""


def test_every_package_that_is_imported_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    declared = {re.match(r"[\w.-]+", each)[0].lower().replace("_", "-") for each in listed}
    owners, imported = metadata.packages_distributions(), set[str]()
    for file in (file for top in ("engine", "console", "widgets", "src") for file in (ROOT / top).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                imported |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition(".")[0])
    others = imported - sys.stdlib_module_names - HOSTS - {"interlock"}
    names = {name.lower().replace("_", "-") for each in others for name in owners.get(each, [each])}
    assert {BROUGHT.get(name, name) for name in names} - declared == set()
    assert len(names) > 15 and BROUGHT.keys() <= names


@pytest.mark.parametrize(
    ("name", "module", "how"),
    [("pyarrow", "pyarrow.parquet", {}), ("qdrant-edge-py", "qdrant_edge", {"qdrant": "store", "export": "npy"})],
)
def test_a_run_whose_delivery_could_not_be_written_is_refused_at_its_start(
    tmp_path, monkeypatch, tiny_a, name, module, how
):
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": ["a"]}})
    asked = {"roster": str(tiny_a), "out": str(tmp_path / "runs"), "devices": "cpu", **how}
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnavailableError, match=f"{name} does not load .*{module}.*pip install --upgrade numpy"):
        Run(chunks, load(asked, {}), Controls())
    assert not (tmp_path / "runs").exists()


def test_the_doctor_tells_a_package_that_is_there_and_does_not_load(monkeypatch):
    def checks():
        return {name: (good, found) for good, name, found in doctor._packages()}

    assert checks()["pyarrow"][0] and unloadable("pyarrow") == ""
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    good, found = checks()["pyarrow"]
    assert not good and found.startswith("does not load (")
