"""Every script of `bench/` starts and runs in its shortest form; what is kept names its commit and its sources."""

import ast
import json
import os
import runpy
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from bench import evidence, tables
from tests.builders import ROOT
from tools import generate

SCRIPTS = {
    "encode": ["--quick"],
    "eta": ["--quick"],
    "kernels": ["--quick"],
    "law": ["--quick"],
    "memory": ["--quick"],
    "overhead": ["--quick"],
    "plans": ["--quick"],
    "screen": ["--quick"],
    "start": ["--quick"],
    "against": ["HEAD", "--quick"],
}
OWN_TESTS = ("campaign", "growth", "gpu_acceptance")


def is_script(file: Path) -> bool:
    return "__main__" in file.read_text()


def test_every_script_of_the_bench_is_among_those_that_are_run_here():
    scripts = {file.stem for file in (ROOT / "bench").glob("*.py") if is_script(file)}
    assert scripts == {*SCRIPTS, *OWN_TESTS}


@pytest.mark.usefixtures("minilm")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_tells_its_goals_when_run_in_its_shortest_form(name, capfd, monkeypatch):
    """Run in this process, which has imported what they import; what they measure are processes of their own."""
    if name == "against" and not (ROOT / ".git").exists():
        pytest.skip("no repository, so no other commit")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    monkeypatch.setattr(sys, "argv", [f"bench/{name}.py", *SCRIPTS[name]])
    with patch.dict(os.environ):
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as over:
            assert not over.code
    said = capfd.readouterr().out
    assert ('"failures": 0' if name == "plans" else "| goal | measured | wanted |") in said


@pytest.mark.parametrize("file", sorted((ROOT / "bench").glob("*.py")), ids=lambda file: file.stem)
def test_the_sources_that_a_script_names_are_there(file):
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SOURCES":
            for source in ast.literal_eval(node.value):
                assert evidence.digest([source]) != evidence.digest([]), f"{file.name}: {source}"


def test_a_result_names_commit_day_and_sources_and_is_older_once_one_of_them_changed(tmp_path):
    (tmp_path / "engine").mkdir()
    (source := tmp_path / "engine" / "a.py").write_text("one")
    evidence.keep({"figure": 1}, tmp_path / "kept" / "r.json", ("engine/record",))
    kept = json.loads((tmp_path / "kept" / "r.json").read_text())
    assert kept["figure"] == 1
    assert kept["date"][:2] == "20"
    assert evidence.age(kept) == ("" if kept["commit"] else evidence.UNRECORDED)

    result = {"commit": "c", "sources": ["engine"], "sources_sha256": evidence.digest(["engine"], tmp_path)}
    assert evidence.age(result, tmp_path) == ""
    source.write_text("two")
    assert evidence.age(result, tmp_path) == evidence.OLDER
    source.write_text("one")
    (tmp_path / "engine" / "b.py").write_text("")
    assert evidence.age(result, tmp_path) == evidence.OLDER
    assert evidence.age({"figure": 1}) == evidence.UNRECORDED


def test_a_table_says_of_each_result_when_it_was_measured_and_whether_it_is_older_than_the_code(tmp_path, monkeypatch):
    result = {"seconds": {"run": 2.0}, "goals": {"share not forward": {"value": 0.02, "goal": "<= 0.01", "met": False}}}
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)

    def origin(**about: object) -> str:
        (tmp_path / "overhead.json").write_text(json.dumps({**result, **about}))
        return tables.PARTS["overhead"]().origin

    about = {"commit": "c0ffee", "date": "2026-01-02", "sources": ["engine/record"]}
    assert origin() == "Measured: commit not recorded (overhead)."
    now = evidence.digest(["engine/record"])
    assert origin(**about, sources_sha256=now) == "Measured: 2026-01-02 at c0ffee (overhead)."
    assert origin(**about, sources_sha256="0") == "Measured: 2026-01-02 at c0ffee, **older than the code** (overhead)."
    assert tables.PARTS["overhead"]().rows[-1] == ("not a forward pass", "", "**2.0 %**, goal 1 %")
    assert tables.PARTS["memory"]().origin == "Measured: nothing yet."


@pytest.mark.parametrize("name", tables.PARTS)
def test_a_row_has_a_cell_for_each_head_whatever_results_there_are(name):
    table = tables.PARTS[name]()
    assert {len(row) for row in table.rows} <= {len(table.heads)}


@pytest.mark.parametrize("page", ["docs/measurements.md", "bench/README.md"])
def test_figures_changed_by_hand_are_put_right_by_generating(page):
    text = (ROOT / page).read_text()
    head, marker, rest = text.partition("<!-- figures: ")
    name, end, table = rest.partition(" -->\n")
    assert generate.generated(f"{head}{marker}{name}{end}| better |\n{table}") == text
