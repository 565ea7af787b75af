"""Runs the quick tests and the demo under every Python from 3.11 that is here, and under the oldest packages allowed.

`python -m tools.compat [NAME...]` runs all or the named ones (`3.12.1`, `oldest`); environments are kept in `.compat/`.
"""

import subprocess
import sys
import tempfile
import time
import tomllib
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


def main(names: list[str]) -> int:
    """Try each; a line for each result."""
    dev = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    there = pythons()
    tries = {version: (path, tested()) for version, path in there.items()}
    tries["oldest"] = (next(iter(there.values())), oldest())
    if unknown := set(names) - tries.keys():
        sys.exit(f"no {', '.join(sorted(unknown))}; there are: {', '.join(tries)}")
    failures = 0
    for name in names or tries:
        path, constraints = tries[name]
        python = environment(KEPT / name, path, constraints, "--editable", str(ROOT), *dev)
        for what, attempt in (("quick tests", quick), ("demo", demo)):
            began = time.monotonic()
            why = attempt(python)
            failures += bool(why)
            print(f"{name:8} {what:12} {'FAILED' if why else 'passed':8} {time.monotonic() - began:4.0f} s", flush=True)
            if why:
                print(why)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
