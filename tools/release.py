"""Builds wheel and sdist into `dist/` and checks them where nothing of this repository is: `python -m tools.release`.

The wheel from the sdist must be the wheel from the tree, byte for byte. Installed alone in an empty environment, beside
folders of the user's own that are called like its rooms, command and import must work, types must be seen, and the demo
must find its answer.
"""

import argparse
import shutil
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from tools.compat import demo
from tools.environments import ROOT, environment, pythons, run, tested

DIST = ROOT / "dist"
ROOMS = ("console", "engine", "widgets")
RIGHT = """
import engine
import interlock

assert engine.OWN
settings = interlock.Settings(roster={"all-minilm-l6": 0.4}, ceiling=4 << 30)
plan = interlock.plan("chunks", settings)
width: int | None = plan.forecast.fused_dim
"""
WRONG = {
    'interlock.embed("chunks", interlock.Settings(celing=1))': "call-arg",
    'interlock.embed("chunks", interlock.Settings(threads="all"))': "arg-type",
    "interlock.embedd": "attr-defined",
}


def build(place: Path) -> Path:
    """The wheel in `dist/`, beside the sdist, which gives the same wheel."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "hatchling", "build", "-d", DIST)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    (source,) = place.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place / "again", cwd=source)
    (again,) = (place / "again").glob("*.whl")
    if again.read_bytes() != wheel.read_bytes():
        names = set(zipfile.ZipFile(wheel).namelist()) ^ set(zipfile.ZipFile(again).namelist())
        sys.exit(f"the sdist gives another wheel than the tree: {sorted(names) or 'the same names, other contents'}")
    print(f"built {wheel.name} and {sdist.name}; the sdist gives the same wheel")
    return wheel


def check_names(wheel: Path) -> None:
    """End here where the wheel holds anything but the package."""
    held = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    said = f"{wheel.name} holds {', '.join(sorted(held))}"
    if held != {"interlock", f"interlock-{wheel.name.split('-')[1]}.dist-info"}:
        sys.exit(said)
    print(said)


def check_installed(wheel: Path, place: Path) -> None:
    """Install the wheel alone, and use it beside folders called like its rooms."""
    python = environment(place / "env", next(iter(pythons().values())), tested(), str(wheel))
    own = place / "own"
    for room in ROOMS:
        (own / room).mkdir(parents=True)
        (own / room / "__init__.py").write_text("OWN = True\n")
    home = run(python, "-c", "import engine, interlock; print(engine.OWN, interlock.__file__)", cwd=own).split()
    assert home[0] == "True" and Path(home[1]).is_relative_to(place / "env"), home
    run(python.with_name("interlock"), "doctor", cwd=own)
    print("installed alone beside folders of the same names: import and command work")
    check_types(python, own)
    if why := demo(python):
        sys.exit(f"the demo failed: {why}")
    print("the demo embeds, searches and finds its answer")


def check_types(python: Path, own: Path) -> None:
    """End here unless mypy sees the package's types from outside: right code passes, and each mistake is found."""
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", "mypy")
    (own / "right.py").write_text(RIGHT)
    run(python, "-m", "mypy", "--strict", "right.py", cwd=own)
    for line, code in WRONG.items():
        (own / "wrong.py").write_text(f"import interlock\n\n{line}  # type: ignore[{code}]\n")
        run(python, "-m", "mypy", "--strict", "--warn-unused-ignores", "wrong.py", cwd=own)
    print("mypy --strict sees the types from outside")


def main() -> None:
    """Build, then check."""
    with tempfile.TemporaryDirectory(prefix="interlock-release-") as place:
        wheel = build(Path(place, "sdist"))
        check_names(wheel)
        check_installed(wheel, Path(place))
    print(f"ready: {DIST}")


if __name__ == "__main__":
    argparse.ArgumentParser("tools.release", description=__doc__).parse_args()
    main()
