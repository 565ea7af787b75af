"""Wheels of Interlock and of everything it needs, in one directory: for a machine that reaches no package index.

    python -m tools.wheelhouse --to wheelhouse                       for this Python and platform
    python -m tools.wheelhouse --to wheelhouse --python 3.12 --platform manylinux_2_28_x86_64

The versions are those that are installed here. torch, with what it alone needs, is left to the machine unless `--torch`
asks for it: a machine with a GPU has one that fits its driver, and its wheels take gigabytes.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
OWN, TORCH = "interlock", "torch"
Requires = Callable[[str], Sequence[str]]


def needed(name: str, without: Sequence[str] = (), *, python: str = "", requires: Requires | None = None) -> list[str]:
    """List what a distribution needs, directly or not, sorted, for this Python or another one;
    neither what is `without` nor what that alone needs."""
    asked, seen = [(name, "")], {(name, "")}
    marks = {"python_version": python, "python_full_version": f"{python}.0"} if python else {}
    while asked:
        each, extra = asked.pop()
        for requirement in map(Requirement, (requires or _requires)(each)):
            wanted = not requirement.marker or requirement.marker.evaluate({**marks, "extra": extra})
            key = canonicalize_name(requirement.name)
            new = {(key, more) for more in ("", *requirement.extras)} - seen if wanted and key not in without else set()
            seen |= new
            asked += new
    return sorted({each for each, _ in seen} - {name})


def _requires(name: str) -> Sequence[str]:
    return metadata.requires(name) or ()


def main() -> None:
    """Fill the directory. Raises CalledProcessError where pip fails."""
    parser = argparse.ArgumentParser(description="wheels for a machine without a package index")
    parser.add_argument("--to", type=Path, default=Path("wheelhouse"), metavar="DIR")
    parser.add_argument("--python", default="", metavar="3.12", help="for this Python (default: the one that runs)")
    parser.add_argument("--platform", action="append", default=[], metavar="TAG", help="for this platform")
    parser.add_argument("--torch", action="store_true", help="torch too")
    chosen = parser.parse_args()
    pip = [sys.executable, "-m", "pip"]
    names = needed(OWN, () if chosen.torch else (TORCH,), python=chosen.python)
    pinned = [f"{name}=={metadata.version(name)}" for name in names]
    target = [word for tag in chosen.platform for word in ("--platform", tag)]
    target += ["--python-version", chosen.python] if chosen.python else []
    made = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(chosen.to), str(ROOT)]
    subprocess.run([*pip, *made], check=True)  # noqa: S603  # no word of it comes from elsewhere
    download = [*pip, "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(chosen.to)]
    subprocess.run([*download, *target, *pinned], check=True)  # noqa: S603
    size = sum(file.stat().st_size for file in chosen.to.iterdir())
    print(f"{chosen.to}: {len(pinned) + 1} wheels, {size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
