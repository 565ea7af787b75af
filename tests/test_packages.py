"""A library that only the delivery needs is known not to load before anything is computed."""

import sys

import pytest

from interlock.engine.compute.controls import Controls
from interlock.engine.errors import UnavailableError
from interlock.engine.flows import doctor
from interlock.engine.flows.opening import unloadable
from interlock.engine.flows.run import Run
from interlock.engine.settings import load
from tests.builders import corpus


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
