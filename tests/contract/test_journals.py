"""The contract of what is on disk: runs of an earlier version are shown, continued, searched and delivered again.

The runs lie in `journals/`, as they were left: one finished, with its store; one killed in the middle of its second
pass; one that met faults on simulated cards; one of a cluster. They lie elsewhere now than where they were made.
"""

import hashlib
import json
import lzma
import shutil
import tarfile

import msgspec
import numpy as np
import pytest

import interlock as product
from tests.builders import interlock, summary_of
from tests.contract.conftest import journal_of, told
from tests.contract.journals import ASKED, FLAGS, KEPT, write_config

RUNS = {"finished": "DONE", "half": "STOPPED", "faults": "DONE", "cluster": "DONE"}
OVER = [name for name, state in RUNS.items() if state == "DONE"]


def unpack(home, *archives):
    for name in archives:
        with lzma.open(KEPT / f"{name}.tar.xz") as packed, tarfile.open(fileobj=packed) as archive:
            archive.extractall(home, filter="data")
    write_config(home)
    return home


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """All the runs beside each other; not to be changed."""
    return unpack(tmp_path_factory.mktemp("kept"), *RUNS)


@pytest.fixture
def home(tmp_path):
    return unpack(tmp_path / "home", "finished", "half")


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """The same run as those that were kept, made by this version at once."""
    home = unpack(tmp_path_factory.mktemp("whole"), "finished")
    shutil.rmtree(home / "runs")
    interlock("run", "chunks", "--run-id", "whole", *FLAGS, cwd=home)
    return home / "runs" / "whole"


def digests(run):
    """SHA-256 of each array that a run delivered."""
    return {
        str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted((run / "exports").rglob("*.np[yz]"))
    }


def promised(run):
    """SHA-256 of each array as its summary has them."""
    files = [each for one in summary_of(run)["collections"] for each in one["exports"]]
    return {each["path"]: each["sha256"] for each in files if not each["path"].endswith(".parquet")}


def assert_near(run, other):
    assert digests(run).keys() == digests(other).keys()
    for name in digests(run):
        if name.endswith(".npy") and "tokens" not in name:
            np.testing.assert_allclose(np.load(run / name), np.load(other / name), rtol=0, atol=2e-6)


def holds(found, wanted, at="summary"):
    """Whether all that an earlier version wrote is still there; a newer one may tell more."""
    if isinstance(wanted, dict):
        assert isinstance(found, dict) and wanted.keys() <= found.keys(), at
        for name in wanted:
            holds(found[name], wanted[name], f"{at}.{name}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), at
        for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
            holds(a, b, f"{at}[{number}]")
    else:
        assert found == wanted, at


# Shown.


@pytest.mark.parametrize("name", RUNS)
def test_every_line_of_an_old_journal_is_read_in_its_order(kept, name):
    run = kept / "runs" / name
    entries = list(product.open_run(run).events()) if name != "half" else list(product.watch(run))
    assert [entry.seq for entry in entries] == list(range(len(journal_of(run))))


@pytest.mark.parametrize("name", OVER)
def test_a_summary_is_folded_anew_from_an_old_journal_with_all_that_it_had(kept, name):
    run = kept / "runs" / name
    wanted = summary_of(run)
    for collection in wanted["collections"]:
        for step in collection["mitigations"]:  # earlier versions said the bytes that were free by two names
            assert step.pop("measured_bytes") == step["free_bytes"]
        for model in collection["cache"] if wanted["seconds"] is None else ():  # of simulated runs no other seconds
            del model["seconds"]
    holds(msgspec.to_builtins(product.open_run(run).summary), wanted)


@pytest.mark.parametrize("name", RUNS)
def test_old_runs_are_listed_as_they_stand(kept, name):
    listed = {
        each["run"].rpartition("/")[2]: each
        for each in json.loads(interlock("runs", "--out", kept / "runs", "--json").stdout)
    }
    assert {*listed} == {*RUNS}
    run, state = listed[name], RUNS[name]
    if state == "DONE":
        assert (run["state"], run["done"], run["exit_code"]) == ("DONE", 1.0, 0)
    else:
        assert run["state"] not in ("DONE", "RUNNING") and 0 < run["done"] < 1 and run["exit_code"] is None
    assert (run["models"], run["chunks_read"], run["refused"]) == (["mean", "cls", "splade"], 19, 1)
    assert run["in_use"] is False
    status = json.loads(interlock("ctl", kept / "runs" / name, "status", "--json").stdout)
    assert status["state"] == run["state"] and status["done"] == pytest.approx(run["done"], abs=1e-3)


@pytest.mark.parametrize("name", RUNS)
def test_an_old_run_is_viewed_and_compared(kept, name):
    seen = interlock("view", kept / "runs" / name, "--plain").stdout
    assert name in seen and all(model in seen for model in ("mean", "cls", "splade"))
    assert interlock("view", kept / "runs" / name, kept / "runs" / "finished", "--plain").stdout


# Continued.


def test_a_finished_run_is_resumed_computes_nothing_and_delivers_the_same_bytes(home):
    run = home / "runs" / "finished"
    wanted, lines = promised(run), (run / "journal.jsonl").read_bytes()
    interlock("run", "chunks", "--run-id", "finished", "--resume", *FLAGS, cwd=home)
    assert (run / "journal.jsonl").read_bytes().startswith(lines)
    assert len(told(run, "batch_committed")) == lines.count(b'"batch_committed"')
    assert digests(run) == wanted == promised(run)
    assert summary_of(run)["sessions"] == 2 and summary_of(run)["status"] == "completed"


def test_a_killed_run_is_resumed_where_it_was_to_the_bytes_of_one_that_never_was(home, whole):
    run = home / "runs" / "half"
    before = [(each["model_pass"], each["batch_index"]) for each in told(run, "batch_committed")]
    lines = (run / "journal.jsonl").read_bytes()
    interlock("run", "chunks", "--run-id", "half", "--resume", *FLAGS, cwd=home)
    assert (run / "journal.jsonl").read_bytes().startswith(lines)
    after = [(each["model_pass"], each["batch_index"]) for each in told(run, "batch_committed")]
    assert after[: len(before)] == before and len(after) == len({*after}) > len(before)
    summary = summary_of(run)
    assert (summary["sessions"], summary["status"], summary["exit_code"]) == (2, "completed", 0)
    assert_near(run, whole)
    here, there = summary_of(whole), summary_of(home / "runs" / "finished")
    if all(here[name] == there[name] for name in ("environment", "versions")):  # other kernels round otherwise
        assert digests(run) == digests(whole) == promised(home / "runs" / "finished")
    assert not list(run.glob(".tokens-*"))


def test_a_killed_run_without_its_newest_vectors_computes_these_again(home, whole):
    run = home / "runs" / "half"
    (run / "passes" / "1_cls" / "vectors.npy").unlink()
    interlock("run", "chunks", "--run-id", "half", "--resume", *FLAGS, cwd=home)
    (lost,) = told(run, "batches_lost")
    assert lost["model_pass"] == 1
    assert_near(run, whole)


def test_a_new_run_takes_over_what_an_old_one_computed(home):
    interlock("run", "chunks", "--run-id", "new", "--reuse", "runs/finished", *FLAGS, cwd=home)
    run = home / "runs" / "new"
    assert told(run, "batch_committed") == [] or all(each["rows"] == 0 for each in told(run, "batch_committed"))
    passes = [each for one in summary_of(run)["collections"] for each in one["passes"]]
    assert sum(each["rows_reused"] for each in passes) == 3 * 18
    assert digests(run) == promised(home / "runs" / "finished")


def test_an_old_run_whose_texts_are_others_is_not_continued(home):
    file = home / "chunks" / "Docs" / "a_chunks.json"
    file.write_text(file.read_text().replace("text 3", "text three"))
    said = interlock("run", "chunks", "--run-id", "half", "--resume", *FLAGS, cwd=home, check=2)
    assert "a_chunks.json" in said.stderr


# Searched.


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
    return unpack(tmp_path_factory.mktemp("stored"), "finished", "store")


def hits(home, store, *more):
    words = ("--collection", "docs", "--limit", 5, "--json", "--config", home / "interlock.toml")
    return [json.loads(line) for line in interlock("search", store, ASKED, *words, *more).stdout.splitlines()]


def test_an_old_store_is_searched_with_the_answers_that_it_gave(stored):
    wanted = [json.loads(line) for line in (stored / "answers.jsonl").read_text().splitlines()]
    found = hits(stored, stored / "store")
    assert [(each["id"], each["payload"]) for each in found] == [(each["id"], each["payload"]) for each in wanted]
    np.testing.assert_allclose(*([each["score"] for each in one] for one in (found, wanted)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("only", ["mean", "cls", "splade", "bm25"])
def test_an_old_store_answers_by_each_of_its_vectors(stored, only):
    assert len(hits(stored, stored / "store", "--only", only)) == 5


def test_an_old_runs_vectors_make_a_store_that_answers_the_same(stored):
    words = ("--to-store", "again", "--chunks", "chunks", "--config", "interlock.toml")
    interlock("export", "runs/finished", *words, cwd=stored)
    wanted = [json.loads(line) for line in (stored / "answers.jsonl").read_text().splitlines()]
    found = hits(stored, stored / "again")
    assert [each["id"] for each in found] == [each["id"] for each in wanted]
    np.testing.assert_allclose(*([each["score"] for each in one] for one in (found, wanted)), rtol=0, atol=1e-5)


def test_an_old_store_takes_a_new_run_and_prunes_what_left(tmp_path):
    home = unpack(tmp_path / "home", "finished", "store")
    file = home / "chunks" / "Docs" / "b.jsonl"
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:3]))
    interlock("run", "chunks", "--run-id", "less", *FLAGS, "--qdrant", "store", cwd=home)
    counted = interlock("prune", "store", "--collection", "docs", "--dry-run", cwd=home)
    assert "3" in counted.stdout + counted.stderr
    kept = json.loads((home / "store" / "docs" / "manifest.json").read_text())
    assert "sparse_share" not in kept and kept["run"]["run_id"] == "less"  # so it answers as before
    interlock("prune", "store", "--collection", "docs", cwd=home)
    assert {each["payload"]["chunk_id"] for each in hits(home, home / "store", "--limit", 40)} == {
        f"c{number}" for number in range(13)
    }


# Delivered again.


def test_an_old_run_is_delivered_again_to_the_same_bytes(home):
    interlock("export", "runs/finished", "--to", "again", "--chunks", "chunks", "--config", "interlock.toml", cwd=home)
    wanted = {name.removeprefix("exports/"): each for name, each in promised(home / "runs" / "finished").items()}
    for name, digest in wanted.items():
        assert hashlib.sha256((home / "again" / name).read_bytes()).hexdigest() == digest, name


def test_an_old_run_is_uploaded(home):
    interlock("run", "chunks", "--run-id", "finished", "--resume", *FLAGS, cwd=home)
    words = ("--qdrant", "http://127.0.0.1:9", "--dry-run", "--json")
    reports = json.loads(interlock("upload", "runs/finished", *words, cwd=home).stdout)
    assert [(each["collection"], each["points"]) for each in reports] == [("docs", 16), ("more", 3)]
    told = [each["configuration"]["metadata"]["interlock"] for each in reports]
    assert [each.get("sparse_share") for each in told] == [None, None]  # it answers as it did, though it was resumed
