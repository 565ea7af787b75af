"""Wheels of Interlock and of everything it needs, in one directory: for a machine that reaches no package index.

    python -m tools.wheelhouse --to wheelhouse                       for this Python and platform
    python -m tools.wheelhouse --to wheelhouse --python 3.12 --platform manylinux_2_28_x86_64

The versions are those that are installed here, but for what `--pin` names. torch, with what it alone needs, is left to
the machine unless `--torch` asks for it: a machine with a GPU has one that fits its driver, and its wheels take
gigabytes.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Container, Sequence
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
    """Fill the directory. Raises SystemExit where pip fails, or where no torch can be had."""
    parser = argparse.ArgumentParser(description="wheels for a machine without a package index")
    parser.add_argument("--to", type=Path, default=Path("wheelhouse"), metavar="DIR")
    parser.add_argument("--python", default="", metavar="3.12", help="for this Python (default: the one that runs)")
    parser.add_argument("--platform", action="append", default=[], metavar="TAG", help="for this platform")
    parser.add_argument("--torch", action="store_true", help="torch too")
    parser.add_argument("--pin", action="append", default=[], metavar="NAME==VERSION", help="this version of a package")
    chosen = parser.parse_args()
    if chosen.torch and (chosen.python or chosen.platform) and "+" in metadata.version(TORCH):
        parser.error(
            f"--torch: {metadata.version(TORCH)} is a build for this machine, not for another Python or platform: "
            "leave out --torch, or fetch theirs with pip download"
        )
    before = set(chosen.to.glob("*")) if chosen.to.is_dir() else set()
    pip = [sys.executable, "-m", "pip"]
    names = needed(OWN, () if chosen.torch else (TORCH,), python=chosen.python)
    other = {str(canonicalize_name(pin.partition("==")[0])): pin for pin in chosen.pin}
    pinned = [other.get(name, f"{name}=={metadata.version(name)}") for name in names]
    target = [word for tag in chosen.platform for word in ("--platform", tag)]
    target += ["--python-version", chosen.python] if chosen.python else []
    made = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(chosen.to), str(ROOT)]
    _call([*pip, *made])
    download = [*pip, "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(chosen.to)]
    _call([*download, *target, *pinned])
    print(told(chosen.to, before))


def told(directory: Path, before: Container[Path]) -> str:
    """Say what lies in a wheelhouse, and how much of it lay there before: wheels for another Python, or older ones."""
    wheels = sorted(directory.glob("*.whl"))
    size, kept = sum(wheel.stat().st_size for wheel in wheels), sum(wheel in before for wheel in wheels)
    return f"{directory}: {len(wheels)} wheels, {size / 1e6:.0f} MB" + (
        f", {kept} of them there before" if kept else ""
    )


def _call(words: list[str]) -> None:
    """Call pip, which says itself what fails. Raises SystemExit then."""
    if subprocess.run(words, check=False).returncode:  # noqa: S603  # no word of it comes from elsewhere
        sys.exit("wheelhouse: pip failed as it says above; what it had by then lies in the directory")


if __name__ == "__main__":
    main()
