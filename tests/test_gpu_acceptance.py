"""The acceptance on a GPU, as far as it goes without one: a rehearsal tells every goal and no time, no GPU is said."""

import importlib.util
import json
import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from tests.builders import ROOT, environment

SCRIPT = "bench/gpu_acceptance.py"
SECTIONS = ("throughput", "wall", "ladder", "residue")
TIMED = ("attach: ms", "throughput: x", "streaming: time")


def acceptance(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *map(str, args)]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=250)


@pytest.mark.nightly
def test_a_rehearsal_without_a_gpu_tells_every_goal_and_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has imported what it compares with."""
    out = tmp_path / "deep" / "acceptance.json"
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [SCRIPT, "--rehearse", "--only", *SECTIONS, "--out", str(out)])
    with patch.dict(os.environ), warnings.catch_warnings(), pytest.raises(SystemExit) as over:
        runpy.run_path(SCRIPT, run_name="__main__")
    said = capsys.readouterr()
    assert over.value.code == 0, said.out + said.err
    result = json.loads(out.read_text())
    goals, sections = result["goals"], result["sections"]

    assert result["device_kind"] == "sim"
    assert set(result["switches"]) == {"flash", "mem_efficient", "math", "cudnn"}
    assert result["torch"]["version"] == torch.__version__
    assert all(set(goal) == {"limit", "figure", "met"} for goal in goals.values())
    timed = {name: goal for name, goal in goals.items() if name.startswith(TIMED)}
    assert len(timed) == 6
    assert all(goal["figure"] is None and goal["met"] is None for goal in timed.values())
    told = {name for name in goals.keys() - timed if name.startswith(SECTIONS)}
    assert len(told) == 8
    assert all(goals[name]["met"] is True for name in told)
    unmeasured = goals.keys() - timed - told
    assert all(goals[name]["figure"] is None and goals[name]["met"] is None for name in unmeasured)

    assert {"seconds", "gemm_tflops", "pinned_h2d_gb_per_s"}.isdisjoint(sections["probes"])
    assert all(step["refused_by_us"] and step["driver_free_bytes"] > 0 for step in sections["wall"]["steps"])
    assert [line.split(":")[0] for line in said.out.splitlines()[: 1 + len(SECTIONS)]] == ["probes", *SECTIONS]
    assert said.err == ""


@pytest.mark.parametrize("beside", ["", "/taken/x.json"])
def test_a_result_that_could_not_be_written_is_refused_before_anything_is_measured(tmp_path: Path, beside: str) -> None:
    (tmp_path / "taken").write_text("")
    done = acceptance("--rehearse", "--only", "wall", "--out", f"{tmp_path}{beside}")
    assert done.returncode == 2
    assert f"--out {tmp_path}" in done.stderr
    assert "name a" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["taken"]
    assert not tmp_path.with_name(f"{tmp_path.name}.part").exists()


def test_a_rung_that_was_never_used_is_named_in_the_table(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    from acceptance.goals import Report

    report = Report({}, timed=False, file=tmp_path / "result.json")
    report.sections = {"ladder": {"never_used": ["stream"]}}
    report.figures = {"ladder: rungs never used": 1}
    report.show()
    assert "MISSED stream" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure on")
def test_measuring_without_a_gpu_says_why_not_and_exits_5(tmp_path: Path) -> None:
    done = acceptance("--out", tmp_path / "acceptance.json")
    assert done.returncode == 5
    assert done.stderr.startswith("gpu_acceptance: no GPU to measure on: torch")
    assert "--rehearse" in done.stderr
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())


def test_a_machine_that_lacks_a_package_is_told_which_before_anything_is_imported(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "msgspec" else found(name, *more)
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    with patch.dict(os.environ), warnings.catch_warnings(), pytest.raises(SystemExit) as over:
        runpy.run_path(str(ROOT / SCRIPT), run_name="__main__")
    assert over.value.code == 5
    assert capsys.readouterr().err == "gpu_acceptance: msgspec is missing: pip install msgspec\n"
