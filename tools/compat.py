"""Tries the package under every Python from 3.11 that is here, and under the oldest packages that pyproject allows.

The quick tests, tests of models and downloads, and the demo; with the build of torch for CUDA (`cuda`, 4 GB from PyPI)
what can be seen of it without a driver. `python -m tools.compat [NAME...]` runs all or the named ones (`3.12.1`,
`oldest`, `cuda`). An environment takes gigabytes: it is removed once all has passed in it, and kept in
`.compat/` for the next try where something failed.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tools.environments import ROOT, environment, oldest, pythons, run, tested

KEPT = ROOT / ".compat"
ANSWER = "datetime.date.fromisoformat"
"""What the demo's question finds first."""


def tests(python: Path, *chosen: str) -> str:
    """Why the chosen tests fail; empty: they pass."""
    words = [str(python), "-m", "pytest", "-n", "2", "--tb=short", *chosen]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)  # noqa: S603
    return "" if done.returncode == 0 else "\n".join(done.stdout.splitlines()[-40:])


def quick(python: Path) -> str:
    """Why the quick tests fail; empty: they pass."""
    return tests(python, "-m", "pure and not alone", *run(python, "-m", "tests.pure").split())


def models(python: Path) -> str:
    """Why networks or downloads fail, which use packages that the quick tests and the demo do not; empty: they pass."""
    return tests(python, "-m", "not alone", "tests/test_encoder.py", "tests/test_network.py")


def demo(python: Path) -> str:
    """Why the demo fails, or its question is answered otherwise; empty: neither."""
    with tempfile.TemporaryDirectory() as place:
        flags = ["--no-ui", "--sparse", "splade-tiny", "--out", f"{place}/runs"]
        words = [str(python.with_name("interlock")), "demo", *flags]
        done = subprocess.run(words, cwd=place, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        return f"exit {done.returncode}\n{done.stderr[-2000:]}"
    first = next((line for line in done.stdout.splitlines() if line.lstrip().startswith("1.")), "")
    return "" if ANSWER in first else f"its question is answered with: {first}"


def gpu(python: Path) -> str:
    """Why what can be seen of a build for CUDA without a driver is not as it should be; empty: it is."""
    if run(python, "-c", "import torch; print(torch.version.cuda)").strip() == "None":
        return "pip found no torch that is built for CUDA"
    files = (f"tests/test_{name}.py" for name in ("cuda_build", "fake_cuda", "streaming", "cuda_host", "attention"))
    return tests(python, *files)


USUAL = {"quick tests": quick, "models": models, "demo": demo}
ATTEMPTS = {"cuda": {"build for CUDA": gpu}}
"""Of an environment by its name, where they are not the usual ones."""


def passes(name: str, base: Path, constraints: Sequence[str]) -> bool:
    """Whether all of it passes in an environment of the Python `base` with these versions; a line for each step."""
    began = time.monotonic()
    python = environment(KEPT / name, base, constraints, "--editable", f"{ROOT}[dev]")
    print(f"{name:8} {'installed':22} {time.monotonic() - began:5.0f} s", flush=True)
    reasons = []
    for what, attempt in ATTEMPTS.get(name, USUAL).items():
        began = time.monotonic()
        reasons.append(why := attempt(python))
        print(f"{name:8} {what:14} {'FAILED' if why else 'passed':7} {time.monotonic() - began:5.0f} s", flush=True)
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
    # `===` takes what PyPI calls by this very version, which is the build for CUDA, and none made for CPUs
    pinned = [line.replace("==", "===") if line.startswith("torch==") else line for line in tested()]
    tries["cuda"] = next(iter(there.values())), pinned
    if unknown := set(names) - tries.keys():
        sys.exit(f"no {', '.join(sorted(unknown))}; there are: {', '.join(tries)}")
    failed = [name for name in names or tries if not passes(name, *tries[name])]
    return int(bool(failed))


if __name__ == "__main__":
    parser = argparse.ArgumentParser("tools.compat", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a version of Python, `oldest` or `cuda`; all")
    sys.exit(main(parser.parse_args().names))
