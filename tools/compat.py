"""Runs the quick tests and the demo under every Python from 3.11 that is here, and under the oldest packages allowed.

`python -m tools.compat [NAME...]` runs all or the named ones (`3.12.1`, `oldest`). An environment takes gigabytes:
it is removed once all has passed in it, and kept in `.compat/` for the next try where something failed.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tools.environments import ROOT, environment, oldest, pythons, tested

KEPT = ROOT / ".compat"
ANSWER = "datetime.date.fromisoformat"
"""What the demo's question finds first."""


def quick(python: Path) -> str:
    """Why the quick tests fail; empty: they pass."""
    files = subprocess.run([python, "-m", "tests.pure"], cwd=ROOT, capture_output=True, text=True).stdout.split()  # noqa: S603
    words = [str(python), "-m", "pytest", "-n", "2", "-m", "pure and not alone", *files]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)  # noqa: S603
    return "" if done.returncode == 0 else "\n".join(done.stdout.splitlines()[-40:])


def demo(python: Path) -> str:
    """Why the demo fails, or its question is answered otherwise; empty: neither."""
    with tempfile.TemporaryDirectory() as place:
        words = [str(python.with_name("interlock")), "demo", "--no-ui", "--out", f"{place}/runs"]
        done = subprocess.run(words, cwd=place, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        return f"exit {done.returncode}\n{done.stderr[-2000:]}"
    first = next((line for line in done.stdout.splitlines() if line.lstrip().startswith("1.")), "")
    return "" if ANSWER in first else f"its question is answered with: {first}"


def passes(name: str, base: Path, constraints: Sequence[str]) -> bool:
    """Whether both pass in an environment of the Python `base` with these versions; a line for each step."""
    began = time.monotonic()
    python = environment(KEPT / name, base, constraints, "--editable", f"{ROOT}[dev]")
    print(f"{name:8} {'installed':20} {time.monotonic() - began:5.0f} s", flush=True)
    reasons = []
    for what, attempt in (("quick tests", quick), ("demo", demo)):
        began = time.monotonic()
        reasons.append(why := attempt(python))
        print(f"{name:8} {what:12} {'FAILED' if why else 'passed':7} {time.monotonic() - began:5.0f} s", flush=True)
        if why:
            print(why)
    if not any(reasons):
        shutil.rmtree(KEPT / name)
    return not any(reasons)


def main(names: Sequence[str]) -> int:
    """Try all, or the named ones; an exit code."""
    there = pythons()
    tries = {version: (path, tested()) for version, path in there.items()}
    tries["oldest"] = next(iter(there.values())), oldest()
    if unknown := set(names) - tries.keys():
        sys.exit(f"no {', '.join(sorted(unknown))}; there are: {', '.join(tries)}")
    failed = [name for name in names or tries if not passes(name, *tries[name])]
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
