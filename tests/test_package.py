"""The wheel holds `interlock/` alone and works beside folders of the user's own with the names of its rooms."""

import subprocess
import sys
import zipfile

import pytest

from tests.builders import ROOT, environment

building = pytest.importorskip("hatchling.builders.wheel", reason="make install brings hatchling")
ASK = """
import importlib.metadata, sys
import engine, console, widgets, interlock
from pathlib import Path

wheel = Path(sys.argv[1])
assert engine.OWN and Path(interlock.__file__).is_relative_to(wheel), interlock.__file__
assert interlock.Settings(ceiling=1 << 30).configuration().settings.ceiling == 1 << 30
(command,) = importlib.metadata.distribution("interlock").entry_points
assert importlib.metadata.version("interlock") == interlock.__version__
sys.argv = ["interlock", "config", "show", "--ceiling", "3GiB"]
sys.exit(command.load()())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wheel")
    return next(building.WheelBuilder(str(ROOT)).build(directory=str(directory), versions=["standard"]))


def test_the_wheel_holds_every_module_and_nothing_beside_the_package(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    held = {name.partition("/")[0] for name in names}
    modules = {
        f"interlock/{path.relative_to(ROOT)}"
        for room in ("console", "engine", "widgets")
        for path in (ROOT / room).rglob("*")
        if path.suffix in (".py", ".json")
    }
    assert {name.partition("-")[0] for name in held} == {"interlock"}
    assert modules | {"interlock/py.typed", "interlock/api.py"} <= set(names)


def test_command_and_import_work_beside_folders_of_the_same_names(wheel, tmp_path):
    unpacked, own = tmp_path / "wheel", tmp_path / "own"
    zipfile.ZipFile(wheel).extractall(unpacked)
    for room in ("engine", "console", "widgets"):
        (own / room).mkdir(parents=True)
        (own / room / "__init__.py").write_text("OWN = True\n")
    done = subprocess.run(
        [sys.executable, "-c", ASK, unpacked], env=environment({"PYTHONPATH": str(unpacked)}), cwd=own,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "3221225472" in done.stdout
