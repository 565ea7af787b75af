"""Every script of `bench/` and `tools/` starts as its page says, those of `bench/` run in their shortest form; what is
kept names its commit and its sources."""

import ast
import json
import os
import runpy
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from bench import evidence, retrieval_tables, tables
from interlock.engine.models.assets import cached
from interlock.engine.models.registry import REGISTRY
from tests.builders import ROOT
from tools import generate

SCRIPTS = {
    "cluster": ["--quick"],
    "encode": ["--quick"],
    "eta": ["--quick"],
    "forms": ["--quick"],
    "idle": ["--quick"],
    "kernels": ["--quick"],
    "law": ["--quick"],
    "memory": ["--quick"],
    "overhead": ["--quick"],
    "plans": ["--quick"],
    "rerank": ["--quick"],
    "screen": ["--quick"],
    "search": ["--quick"],
    "serve": ["--quick"],
    "sparse": ["--quick"],
    "start": ["--quick"],
    "upload": ["--quick"],
    "walk": [],
    "whole": ["--quick"],
    "law_plans": ["--quick"],
    "against": ["HEAD", "--quick"],
}
OWN_TESTS = (
    "node_kills", "campaign", "growth", "gpu_acceptance", "late_interaction", "bm25", "retrieval", "defaults",
    "intervals", "compact",
)  # fmt: skip


@pytest.fixture
def started(monkeypatch):
    """Run a script in this process, which has imported what they import; how it ended, None as it came to its end."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "bench"), *sys.path])
    monkeypatch.chdir(ROOT)

    def start(name, *flags):
        monkeypatch.setattr(sys, "argv", [f"bench/{name}.py", *map(str, flags)])
        with patch.dict(os.environ):
            try:
                runpy.run_path(sys.argv[0], run_name="__main__")
            except SystemExit as over:
                return over.code
        return None

    return start


def is_script(file: Path) -> bool:
    return "__main__" in file.read_text()


def test_every_script_of_the_bench_is_among_those_that_are_run_here():
    scripts = {file.stem for file in (ROOT / "bench").glob("*.py") if is_script(file)}
    assert scripts == {*SCRIPTS, *OWN_TESTS}


def modules_with_a_use() -> list[str]:
    """What `python -m` starts: the tools, and the tests' own."""
    files = [*(ROOT / "tools").glob("*.py"), *(ROOT / "tests").rglob("make.py")]
    return sorted(".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files if is_script(file))


@pytest.fixture
def from_a_shell(monkeypatch, capfd):
    """Start a script, or a module, for its `--help` as a shell does: with nothing of this repository imported, and
    nothing of it found but what lies beside the script, or in the directory for a module; what it said."""
    rooms = {"bench", "tools", "tests", *(file.stem for file in (ROOT / "bench").glob("*.py"))}
    for name in [name for name in sys.modules if name.partition(".")[0] in rooms]:
        monkeypatch.delitem(sys.modules, name)
    elsewhere = [place for place in sys.path if Path(place).resolve() not in (ROOT, ROOT / "bench")]
    monkeypatch.chdir(ROOT)

    def start(name):
        script = name.endswith(".py")
        monkeypatch.setattr(sys, "path", [str(ROOT / "bench" if script else ROOT), *elsewhere])
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        with patch.dict(os.environ), pytest.raises(SystemExit) as over:
            (runpy.run_path if script else runpy.run_module)(name, run_name="__main__")
        assert not over.value.code
        return capfd.readouterr().out

    return start


@pytest.mark.parametrize("name", [*SCRIPTS, *OWN_TESTS])
def test_a_script_teaches_its_use(name, from_a_shell):
    assert "usage: " in from_a_shell(f"bench/{name}.py")


@pytest.mark.parametrize("name", modules_with_a_use())
def test_a_tool_teaches_its_use_and_does_nothing(name, from_a_shell):
    assert "usage: " in from_a_shell(name)


@pytest.mark.nightly
@pytest.mark.usefixtures("minilm")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_tells_its_goals_when_run_in_its_shortest_form(name, capfd, started):
    if name == "against" and not (ROOT / ".git").exists():
        pytest.skip("no repository, so no other commit")
    if name == "sparse" and not cached(REGISTRY["splade-tiny"]):
        pytest.skip("the package of splade-tiny is not installed")
    assert not started(name, *SCRIPTS[name])
    said = capfd.readouterr().out
    assert ('"failures": 0' if name == "plans" else "| goal | measured | wanted |") in said


@pytest.fixture
def judged(tmp_path):
    """A judged collection in which each text is its own question."""
    texts = ["a cat sleeps", "dogs bark loudly", "the sea is deep"]
    for name in ("corpus", "queries"):
        rows = [json.dumps({"_id": str(number), "text": text}) for number, text in enumerate(texts)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    (tmp_path / "qrels").mkdir()
    judged = "".join(f"{number}\t{number}\t1\n" for number in range(3))
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return tmp_path


@pytest.mark.nightly
def test_bm25_is_measured_over_a_judged_collection(judged, capsys, started):
    kept = judged / "kept.json"
    assert not started("bm25", judged, "--rounds", 1, "--json", kept)
    assert "delivery of 3 texts" in capsys.readouterr().out
    (figures,) = json.loads(kept.read_text())["collections"]
    assert (figures["english"], figures["none"]) == (1.0, 1.0)  # each text answers itself best


@pytest.mark.nightly
def test_intervals_are_measured_over_a_judged_collection(judged, capsys, started):
    kept = judged / "kept.json"
    assert not started("intervals", judged, "--rounds", 3, "--json", kept)
    assert "| queries | intervals that hold the difference |" in capsys.readouterr().out
    assert json.loads(kept.read_text())["samples"]["300"]["t"] == 1.0  # each way finds each text: nothing to tell


@pytest.mark.nightly
def test_a_compact_store_is_measured_over_a_judged_collection(judged, tiny_a, tiny_b, capsys, started):
    kept = judged / "kept.json"
    assert not started("compact", judged, "--roster", f"{tiny_a},{tiny_b}", "--chunks", 400, "--json", kept)
    assert "| form | vectors | terms | ids | payload |" in capsys.readouterr().out
    assert json.loads(kept.read_text())["bytes"]["compact"]["terms"] == 0.0


@pytest.mark.nightly
def test_the_roster_is_measured_over_a_judged_collection(judged, tiny_a, tiny_b, capsys, started):
    kept = judged / "kept.json"
    assert not started("retrieval", judged, "--roster", f"{tiny_a},{tiny_b}", "--sparse", "", "--json", kept)
    assert "| goal | measured | wanted |" in capsys.readouterr().out
    found = json.loads(kept.read_text())
    assert [each["met"] for each in found["goals"].values()] == [True] * 3
    assert str(judged) not in kept.read_text().replace(judged.name, "")
    assert len(list(retrieval_tables.verdicts(found))) == 4
    assert {len(row) for row in retrieval_tables.retrieval(found)} == {4}


def test_what_harms_another_collection_is_not_chosen_and_none_chooses_for_itself(started, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["defaults.py"])
    defaults = runpy.run_path(str(ROOT / "bench" / "defaults.py"), run_name="defaults")
    chance, plain = np.random.default_rng(0), np.full(60, 0.5)
    noise = chance.normal(0, 0.01, 60)
    kind, mild = dict.fromkeys(defaults["CHOICES"], plain + noise), defaults["Choice"](0.3, False, 0.25)
    greedy = mild._replace(share=0.4)
    gains = {mild: plain + 0.02 + noise, greedy: plain + 0.05 + noise}
    assert defaults["best"]([kind | gains]) == greedy
    assert defaults["best"]([kind | gains, kind | gains | {greedy: plain - 0.01 + noise + noise**2}]) == mild
    yes, no = np.array([0.5, 0.6, 0.7, 0.8]), np.array([0.1, 0.2, 0.3, 0.65])
    assert defaults["threshold_of"](yes, no) == 0.5 and defaults["error"](yes, no, 0.5) == 0.125


@pytest.mark.usefixtures("minilm")
@pytest.mark.nightly
def test_late_interaction_is_measured_over_a_judged_collection(judged, capsys, started):
    kept = judged / "kept.json"
    assert not started("late_interaction", judged, "--json", kept)
    assert "3 queries, 3 texts" in capsys.readouterr().out
    found = json.loads(kept.read_text())
    assert found["alone"] == 1.0  # each text answers itself best
    assert [row["ndcg at 0.5"] for row in found["forms"]] == [1.0] * len(found["forms"])


@pytest.mark.parametrize("file", sorted((ROOT / "bench").glob("*.py")), ids=lambda file: file.stem)
def test_the_sources_that_a_script_names_are_there(file):
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SOURCES":
            for source in eval(ast.unparse(node.value), {"evidence": evidence}):
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


def test_a_table_says_when_its_results_were_measured_and_leaves_out_those_that_are_older_than_the_code(
    tmp_path, monkeypatch
):
    result = {"seconds": {"run": 2.0}, "goals": {"share not forward": {"value": 0.02, "goal": "<= 0.01", "met": False}}}
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)

    def origin(**about: object) -> str:
        (tmp_path / "overhead.json").write_text(json.dumps({**result, **about}))
        return tables.PARTS["overhead"]().origin

    about = {"commit": "c0ffee", "date": "2026-01-02", "sources": ["engine/record"]}
    stale = "Measured: nothing at this code. Not stated, since the code has changed since: overhead."
    assert origin() == stale
    now = evidence.digest(["engine/record"])
    assert origin(**about, sources_sha256=now) == "Measured: 2026-01-02 at c0ffee (overhead)."
    assert tables.PARTS["overhead"]().rows[-1] == ("not a forward pass", "", "**2.0 %**, goal 1 %")
    assert origin(**about, sources_sha256="0") == stale
    assert tables.PARTS["overhead"]().rows == []
    assert tables.PARTS["memory"]().origin == "Measured: nothing at this code."


@pytest.mark.parametrize("name", tables.PARTS)
def test_a_row_has_a_cell_for_each_head_whatever_results_there_are(name):
    table = tables.PARTS[name]()
    assert {len(row) for row in table.rows} <= {len(table.heads)}


@pytest.mark.parametrize("page", ["docs/measurements.md", "docs/cluster.md", "docs/evaluation.md", "bench/README.md"])
def test_figures_changed_by_hand_are_put_right_by_generating(page):
    text = (ROOT / page).read_text()
    head, marker, rest = text.partition("<!-- figures: ")
    name, end, table = rest.partition(" -->\n")
    assert generate.generated(f"{head}{marker}{name}{end}| better |\n{table}") == text
