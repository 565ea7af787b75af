"""The page on Kaggle, executed as it is printed: in a copy of this machine that has no network, whose `/kaggle/input`
cannot be written, and in which Interlock is installed by the page's own cell."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import ROOT, corpus, interlock, sentences

pytestmark = pytest.mark.nightly
ROSTER = "all-minilm-l6=0.4,all-mpnet-base-v2=0.6"
BOX = """
unshare --net --mount --propagation private bash -ec '
python=$1 pip=$2 input=$3 working=$4 driver=$5 place=$(mktemp -d)
mount -t tmpfs none $place && mkdir $place/up $place/work $place/root
mount -t overlay overlay -o lowerdir=/,upperdir=$place/up,workdir=$place/work $place/root && cd $place/root
mount --rbind /proc proc && mount --rbind /dev dev && mkdir -p kaggle/input kaggle/working
mount --bind $input kaggle/input && mount -o remount,ro,bind kaggle/input && mount --bind $working kaggle/working
mkdir bin2 && printf "#!/bin/sh\\nexec $pip -m pip --python $python \\"\\$@\\"\\n" > bin2/pip && chmod +x bin2/pip
export PATH=/bin2:${python%/*}:$PATH PYTHONPATH=
exec chroot . sh -c "cd / && pip uninstall -q -y interlock && exec $python $driver"
' box "$@"
"""
"""Overlays this machine with memory: whatever is installed or written in it is gone with it, but what is in working."""
DRIVER = """
import io, json, os, subprocess, sys, time
from contextlib import redirect_stderr, redirect_stdout
told, names = [], {}
for cell in CELLS:
    began, said, code = time.monotonic(), io.StringIO(), 0
    if cell.startswith("!"):
        done = subprocess.run(cell[1:], shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said, code = io.StringIO(done.stdout), done.returncode
    elif cell.startswith("%env "):
        os.environ.update([cell[5:].split("=", 1)])
    elif cell.startswith("%cd "):
        os.chdir(cell[4:])
    else:
        with redirect_stdout(said), redirect_stderr(said):
            exec(cell, names)
    told.append((cell, round(time.monotonic() - began, 1), code, said.getvalue()))
print(json.dumps(told))
"""


def cells(heading: str, end: str) -> list[str]:
    """What the page has to be executed from one heading to another: lines of their own, and whole blocks of Python."""
    page = (ROOT / "docs" / "kaggle.md").read_text()
    part, found = page[page.index(f"## {heading}") : page.index(f"## {end}")], []
    for kind, block in re.findall(r"^```(\w*)\n(.*?)^```", part, re.M | re.S):
        if kind == "python":
            found.append(block)
        elif block.startswith(("!", "%")):
            found += re.sub(r"\\\n *", " ", block).strip().splitlines()
    return found


@pytest.fixture(scope="module")
def pip():
    """A Python of this machine that has pip."""
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if os.geteuid() or subprocess.run([base, "-m", "pip", "--version"], capture_output=True).returncode:
        pytest.skip("needs root, and a pip beside this Python")
    return base


@pytest.fixture(scope="module")
def given(tmp_path_factory, pip):
    """What lies in /kaggle/input: a wheel of Interlock (what it needs is there), models and chunks."""
    place = tmp_path_factory.mktemp("input")
    make = [pip, "-m", "pip", "--python", sys.executable, "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*make, "--wheel-dir", place / "wheelhouse", ROOT], check=True)
    interlock("models", "bundle", place / "bundle", "--roster", ROSTER, cwd=place)
    texts = sentences(60)
    corpus(place / "chunks", {"Handbook": {"a.jsonl": texts[:40]}, "Tickets": {"b.jsonl": texts[40:]}})
    return place


def session(given: Path, working: Path, pip: Path, todo: list[str]) -> list[tuple[str, float, int, str]]:
    """Execute cells in a session of their own; each with its seconds, exit code and output."""
    working.mkdir()
    driver = working / "driver.py"
    driver.write_text(DRIVER.replace("CELLS", repr(todo)))
    words = ["bash", "-c", BOX, "box", sys.executable, pip, given, working, "/kaggle/working/driver.py"]
    done = subprocess.run(words, capture_output=True, text=True, cwd="/")
    if "unshare failed" in done.stderr or "mount: " in done.stderr:
        pytest.skip(f"this machine makes no such box: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_cell_of_the_page_runs_a_second_time_at_once_and_goes_on_in_the_next_session(given, tmp_path, pip):
    first = cells("The notebook", "Space")
    command, python = first[-2:]
    assert [cell.split()[0] for cell in first[:4]] == ["!pip", "%env", "%cd", "!interlock"] and len(first) == 8
    *told, again, once_more, anew = session(given, tmp_path / "one", pip, [*first, command, command, python])
    codes = {cell: code for cell, _, code, _ in told}
    assert codes.pop("!interlock doctor --gpu") == 5 and not any(codes.values()), told
    assert "Successfully installed interlock-" in told[0][3] and "Collecting" not in told[0][3]
    assert min(again[1], once_more[1]) <= 5 and "resumed: " in again[3] and "already committed" in again[3], again
    assert anew[1] <= 5 and "has these chunks by these models: going on with it" in anew[3], anew
    assert "lease L" in told[-2][3] and "lease L" not in again[3] + anew[3]

    shutil.move(tmp_path / "one", given / "LAST")
    print(*(f"{seconds} s {cell[:60]!r}" for cell, seconds, *_ in [*told, again, once_more, anew]), sep="\n")
    late = cells("The next session", "After")
    *_, command_again, python_again = session(given, tmp_path / "two", pip, [*first[:3], *late, command, python])
    assert "already committed" in command_again[3] and "lease L" not in command_again[3] + python_again[3]
    exported = [{file.relative_to(place): file.read_bytes() for file in place.rglob("exports/*/*.npy")}
                for place in (given / "LAST" / "runs" / "kaggle", tmp_path / "two" / "runs" / "kaggle")]  # fmt: skip
    assert len(exported[0]) == 6 and exported[0] == exported[1]
