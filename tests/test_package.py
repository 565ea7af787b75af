"""The wheel holds `interlock/` alone and works beside folders of the user's own with the names of its rooms."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest
import yaml

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


def test_the_sdist_holds_what_its_readme_and_its_build_need(tmp_path):
    sdist = pytest.importorskip("hatchling.builders.sdist")
    path = next(sdist.SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    pages = set(re.findall(r"\]\((docs/[^)#]+)", (ROOT / "README.md").read_text()))
    own = {"README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "SECURITY.md", "constraints.txt", "pyproject.toml"}
    assert pages | own | {"src/interlock/engine/knobs.py"} <= names
    assert not {name for name in names if name.startswith(("tests", "bench", "tools"))}


def test_the_citation_says_what_the_package_says():
    said = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0" and cited["message"] and cited["title"].lower() == said["name"]
    assert (cited["license"], cited["keywords"]) == (said["license"], said["keywords"])
    assert cited["authors"] == said["authors"]
    assert cited["abstract"].rstrip(".") == said["description"]
