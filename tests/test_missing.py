"""A model that cannot be had or whose pass fails: what the others make is delivered and says so, and a resume adds it.

A run that never missed a model, and one whose roster never had it, are what a run with a gap is compared with.
"""

import json
import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from interlock.console.text.recap import recap
from interlock.engine.record import atomic
from interlock.engine.record import events as ev
from interlock.engine.record.fold import fold_all
from interlock.engine.record.journal import Entry
from interlock.engine.record.snapshot import snapshot
from interlock.engine.record.state import RunState
from interlock.widgets.panes import passes
from tests.builders import corpus, entries, events_of, interlock, sentences, summary_of, tiny_model, tiny_sparse, toml
from tests.snapshots import drawn

TEXTS = 48
WEIGHTS = {"a": 3, "b": 2, "c": 1}
DYING = (
    "import os; from interlock.engine.targets import {module} as m; "
    "m.{place} = lambda *_, **__: os.kill(os.getpid(), 9)"
)
"""Has a process killed as it comes to some place."""


@dataclass(frozen=True)
class World:
    """Chunks, models that can be taken away, and runs with a store each."""

    home: Path

    def run(self, name: str) -> Path:
        return self.home / "runs" / name

    def store(self, name: str) -> Path:
        return self.home / "stores" / name

    def embed(self, name: str, *more: object, roster: str = "abcs", check: int = 0, first: str = "") -> str:
        """Begin or continue a run; what was said on stderr."""
        models = ",".join(f"{each}={WEIGHTS[each]}" for each in roster if each in WEIGHTS)
        inputs = ["run", self.home / "chunks", "--config", self.home / "interlock.toml", "--roster", models]
        inputs += ["--sparse", "s"] * ("s" in roster)
        place = ["--out", self.home / "runs", "--run-id", name, "--qdrant", self.store(name), "--no-ui"]
        return interlock(*inputs, *place, *more, check=check, first=first).stderr

    def resume(self, name: str, *more: object, check: int = 0, first: str = "") -> str:
        return self.embed(name, "--resume", *more, check=check, first=first)

    def search(self, name: str, *more: object, check: int = 0) -> tuple[list[dict[str, object]], str]:
        words = ["search", self.store(name), "text 7 of the", "--json", "--limit", 9, "--hybrid", "off"]
        done = interlock(*words, "--config", self.home / "interlock.toml", *more, check=check)
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    def lose(self, models: str) -> None:
        for model in models:
            (self.home / "models" / model).rename(self.home / "models" / f"lost-{model}")

    def find(self, models: str) -> None:
        for model in models:
            (self.home / "models" / f"lost-{model}").rename(self.home / "models" / model)

    def exports(self, name: str) -> dict[str, str]:
        files = sorted((self.run(name) / "exports" / "Docs").iterdir())
        return {path.name: atomic.sha256_of(path) for path in files}

    def array(self, name: str, file: str) -> np.ndarray:
        return np.load(self.run(name) / "exports" / "Docs" / f"{file}.npy")

    def manifest(self, name: str) -> dict[str, object]:
        return json.loads((self.store(name) / "docs" / "manifest.json").read_text())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world with two runs: `whole` of all models, `rest` of a roster without b and s. Not to be changed."""
    home = tmp_path_factory.mktemp("missing")
    tiny_model(home / "models" / "a", seed=1)
    tiny_model(home / "models" / "b", seed=2, kind="mpnet", width=48, layers=1, pooling="cls")
    tiny_model(home / "models" / "c", seed=3, width=16)
    tiny_sparse(home / "models" / "s", seed=4)
    corpus(home / "chunks", {"Docs": {"a_chunks.json": sentences(TEXTS)}})
    rows = {name: {"source": str(home / "models" / name), "batch_tokens": 64} for name in "abcs"}
    rows["s"]["kind"] = "sparse"
    toml(home / "interlock.toml", rows)
    world = World(home)
    world.embed("whole")
    world.embed("rest", roster="ac")
    return world


@pytest.fixture(scope="module")
def gapped(made: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The same where run `one` was delivered without b and s. Not to be changed."""
    world = copied(made, tmp_path_factory.mktemp("gapped") / "world")
    world.lose("bs")
    world.embed("one", "--allow-missing", check=1)
    return world


@pytest.fixture
def world(made: World, tmp_path: Path) -> World:
    return copied(made, tmp_path / "world")


@pytest.fixture
def gap(gapped: World, tmp_path: Path) -> World:
    """A world of one's own where run `one` was delivered without b and s, which are lost."""
    return copied(gapped, tmp_path / "world")


def copied(world: World, home: Path) -> World:
    """A world elsewhere, whose rows name its own models."""
    shutil.copytree(world.home, home)
    file = home / "interlock.toml"
    file.write_text(file.read_text().replace(str(world.home), str(home)))
    return World(home)


def batches_since_resume(run: Path) -> set[int]:
    """The passes of which the last session committed a batch."""
    told: list[Entry] = entries(run)
    begun = max(each.seq for each in told if isinstance(each.body, ev.RunResumed))
    return {each.body.model_pass for each in told if each.seq > begun and isinstance(each.body, ev.BatchCommitted)}


def stored(store: Path) -> dict[str, np.ndarray]:
    """The fused vectors of a store by the id of their points, read by the engine alone."""
    import qdrant_edge as edge

    shard = edge.EdgeShard.load(str(store / "docs"), None)
    records, _ = shard.scroll(edge.ScrollRequest(limit=1000, with_vector=True))
    shard.close()
    return {str(each.id): np.array(each.vector["fused"], np.float32) for each in records}


def test_without_the_flag_a_missing_model_is_refused_at_the_start_and_the_flag_is_named(world):
    world.lose("b")
    said = world.embed("one", check=5)
    assert "model b is not on this machine" in said
    assert "add --allow-missing to deliver what the other models make" in said
    assert not world.run("one").exists()
    assert not world.store("one").exists()


def test_a_run_without_a_model_delivers_what_a_roster_without_it_does(gapped):
    ours, rest = gapped.exports("one"), gapped.exports("rest")
    assert set(ours) - set(rest) == {"missing.json"}
    assert {name: digest for name, digest in ours.items() if name.endswith(".npy")} == {
        name: digest for name, digest in rest.items() if name.endswith(".npy")
    }
    one, other = (stored(gapped.store(name)) for name in ("one", "rest"))
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[point], other[point]) for point in one)


def test_the_gap_is_marked_in_every_artefact(gapped):
    run = gapped.run("one")
    (collection,) = summary_of(run)["collections"]
    missing, terms = collection["missing"]
    assert (summary_of(run)["status"], collection["status"]) == ("incomplete", "incomplete")
    assert (missing["model"], missing["model_pass"], missing["weight"]) == ("b", 1, pytest.approx(2 / 6))
    assert "model b is not on this machine" in missing["reason"]
    assert (terms["model"], terms["kind"], terms["weight"]) == ("s", "sparse", 0)
    (told,) = events_of(run, ev.DeliveredWithout)
    assert ([each.model for each in told.models], told.weights) == (["b", "s"], {"a": 0.75, "c": 0.25})
    mark = json.loads((run / "exports" / "Docs" / "missing.json").read_text())
    assert ([each["model"] for each in mark["missing"]], mark["weights"]) == (["b", "s"], told.weights)
    metadata = pq.read_schema(run / "exports" / "Docs" / "points.parquet").metadata
    assert json.loads(metadata[b"interlock.missing"]) == mark
    manifest = gapped.manifest("one")
    assert manifest["missing"] == ["b", "s"]
    assert "sparse" not in manifest
    assert [(each["model"], each["weight"]) for each in manifest["models"]] == [("a", 0.75), ("c", 0.25)]


def test_the_gap_is_told_by_view_and_by_the_end_of_the_run(gapped):
    seen, whole = (interlock("view", gapped.run(name)).stdout for name in ("one", "rest"))
    assert "delivered without b: model b is not on this machine" in seen
    assert [name for name, text in (("one", seen), ("rest", whole)) if "missing" in text.splitlines()] == ["one"]
    exported = interlock("export", gapped.run("one"), "--to", gapped.home / "elsewhere", check=2)
    assert "run one was delivered without b, s: add what is missing" in exported.stderr


def test_the_console_and_the_last_words_of_a_run_show_what_is_missing(gapped):
    told = entries(gapped.run("one"))
    seen = snapshot(fold_all(RunState(), told), told[-1].seq)
    assert [each.word for each in seen.passes] == ["done", "missing", "done", "missing"]
    lines = ["".join(span.text for span in row) for row in drawn(passes, seen, 100, 8)]
    assert " 2 b missing: model b is not on this machine" in lines[1]
    last = recap(seen, gapped.run("one"))
    assert last[0].startswith("INCOMPLETE")
    assert "Docs: delivered without b: model b is not on this machine" in last[0]
    assert any(line.startswith("next: interlock run") and line.endswith("--resume") for line in last)


def test_a_search_says_which_model_is_missing_and_finds_what_the_rest_finds(gapped):
    (found, said), (wanted, silent) = gapped.search("one"), gapped.search("rest")
    assert "docs was delivered without b (model b is not on this machine" in said
    assert "without" not in silent
    assert [(hit["id"], hit["score"]) for hit in found] == [(hit["id"], hit["score"]) for hit in wanted]
    for words in (["--weights", "a=1,b=1"], ["--only", "b"]):
        assert "it was delivered without; run one can add it" in gapped.search("one", *words, check=2)[1]


def test_a_resume_adds_the_model_and_delivers_what_a_run_that_never_missed_it_does(gap):
    gap.find("bs")
    gap.resume("one")
    assert gap.exports("one") == gap.exports("whole")
    ours, wanted = (stored(gap.store(name)) for name in ("one", "whole"))
    assert ours.keys() == wanted.keys()
    assert all(np.array_equal(ours[point], wanted[point]) for point in ours)
    one, other = ({**gap.manifest(name), "run": None} for name in ("one", "whole"))
    assert one == other
    assert batches_since_resume(gap.run("one")) == {1, 3}
    (collection,) = summary_of(gap.run("one"))["collections"]
    assert (collection["status"], collection["missing"]) == ("completed", [])
    assert gap.search("one") == gap.search("whole")


def test_a_resume_that_still_misses_it_delivers_the_same_gap_and_computes_nothing(gap):
    before = gap.exports("one")
    gap.resume("one", check=1)
    assert gap.exports("one").keys() == before.keys()
    assert {name for name, digest in gap.exports("one").items() if digest == before[name]} == {
        name for name in before if name.endswith(".npy")
    }
    assert batches_since_resume(gap.run("one")) == set()
    assert summary_of(gap.run("one"))["collections"][0]["verification"]["ok"]


def test_a_resume_without_leave_to_miss_it_is_refused_and_changes_nothing(gap):
    before = {path: path.read_bytes() for path in gap.home.rglob("*") if path.is_file()}
    assert "--allow-missing" in gap.resume("one", "--no-allow-missing", check=5)
    assert {path: path.read_bytes() for path in gap.home.rglob("*") if path.is_file()} == before


def test_a_model_that_came_back_as_another_is_refused_once_it_has_been_added(gap):
    gap.find("bs")
    gap.resume("one")
    tiny_model(gap.home / "models" / "b", seed=9, kind="mpnet", width=48, layers=1, pooling="cls")
    assert "fingerprint of b was" in gap.resume("one", check=2)


def test_a_whole_delivery_is_never_replaced_by_one_with_a_gap(gap):
    gap.find("bs")
    gap.resume("one")
    gap.lose("b")
    before = gap.exports("one")
    assert "its vectors of Docs are computed" in gap.resume("one", check=5)
    assert "was not written without b" in gap.embed("two", "--allow-missing", "--qdrant", gap.store("one"), check=2)
    assert gap.exports("one") == before
    assert stored(gap.store("one")).keys() == stored(gap.store("whole")).keys()


def test_a_store_with_a_gap_takes_points_of_no_other_run(gap):
    same = "--qdrant", gap.store("one")
    assert "which run one can still add" in gap.embed("two", "--allow-missing", *same, check=2)
    gap.find("bs")
    assert "which run one can still add" in gap.embed("two", *same, check=2)
    shutil.rmtree(gap.run("one"))  # another run of the same name is another run
    assert "which run one can still add" in gap.embed("one", check=2)


def test_a_run_that_reuses_one_with_a_gap_computes_the_missing_model_alone(gap):
    gap.find("bs")
    gap.embed("two", "--reuse", gap.run("one"))
    assert {each.model_pass for each in events_of(gap.run("two"), ev.BatchCommitted)} == {1, 3}
    assert gap.exports("two") == gap.exports("whole")


def test_nothing_is_delivered_where_no_dense_model_is_left(world):
    for model in "abc":
        world.lose(model)
    assert "model a is not on this machine" in world.embed("one", "--allow-missing", check=5)
    assert not world.run("one").exists()


SIM = "--devices", "sim:T4", "--no-cpu-fallback"


def test_where_the_primary_fails_its_pass_the_next_one_leads_and_a_resume_adds_it(world):
    said = world.embed("one", *SIM, "--faults", "skew:1", check=1)
    assert "add --allow-missing to deliver what the other models make" in said
    assert not (world.run("one") / "exports").exists()
    world.resume("one", "--allow-missing", check=1)
    (collection,) = summary_of(world.run("one"))["collections"]
    assert [each["model"] for each in collection["missing"]] == ["a"]
    assert "computes wrongly on cuda:0" in collection["missing"][0]["reason"]
    assert world.array("one", "fused").shape == (TEXTS, 48 + 16)
    assert "s.npz" in world.exports("one")
    assert world.search("one")[0]
    world.resume("one", "--faults", "")
    assert world.exports("one") == world.exports("whole")
    assert batches_since_resume(world.run("one")) == {0}


def test_a_model_that_fits_nowhere_may_be_missing(world):
    tiny_model(world.home / "models" / "b", seed=2, width=512, layers=1)
    small = *SIM, "--ceiling", "366MiB"
    assert "add --allow-missing" in world.embed("one", *small, roster="abc", check=5)
    world.embed("one", *small, "--allow-missing", roster="abc", check=1)
    np.testing.assert_allclose(world.array("one", "fused"), world.array("rest", "fused"), atol=1e-5)


def test_killed_in_a_delivery_with_a_gap_a_run_still_delivers_it(gap):
    gap.resume("one", check=-signal.SIGKILL, first=DYING.format(module="embedded", place="Store.flush"))
    gap.resume("one", check=1)
    assert gap.exports("one")["fused.npy"] == gap.exports("rest")["fused.npy"]
    assert summary_of(gap.run("one"))["collections"][0]["verification"]["ok"]


@pytest.mark.parametrize(
    ("module", "place"),
    [("stores", "shutil.rmtree"), ("shard", "write_manifest"), ("embedded", "shard.load"), ("embedded", "Store.flush")],
    ids=["as the old store makes way", "when it is gone", "as the new one is made", "when that is written"],
)
def test_killed_as_a_gap_is_filled_a_run_still_delivers_what_was_never_missed(gap, module, place):
    gap.find("bs")
    gap.resume("one", check=-signal.SIGKILL, first=DYING.format(module=module, place=place))
    gap.resume("one")
    assert gap.exports("one") == gap.exports("whole")
    ours, wanted = (stored(gap.store(name)) for name in ("one", "whole"))
    assert ours.keys() == wanted.keys()
    assert all(np.array_equal(ours[point], wanted[point]) for point in wanted)


def test_a_model_that_fails_in_one_collection_is_missing_there_alone(tmp_path, made):
    world = copied(made, tmp_path / "world")
    tiny_model(world.home / "models" / "b", seed=2, vocab_size=50)  # it has no word for most texts of Docs
    corpus(world.home / "chunks", {"Abc": {"a_chunks.json": ["a b c", "x 1 2", "q"]}})
    world.embed("one", "--allow-missing", roster="abc", check=1)
    letters, docs = summary_of(world.run("one"))["collections"]
    assert (letters["status"], letters["missing"]) == ("completed", [])
    assert (docs["status"], [each["model"] for each in docs["missing"]]) == ("incomplete", ["b"])
    assert world.exports("one")["fused.npy"] == world.exports("rest")["fused.npy"]
    world.lose("b")
    assert "its vectors of Abc are computed" in world.embed("one", "--resume", roster="abc", check=5)


def test_a_gap_that_a_whole_store_refuses_costs_that_store_nothing(world):
    before, manifest = stored(world.store("whole")), world.manifest("whole")
    same = "--qdrant", world.store("whole"), *SIM, "--faults", "skew:1", "--allow-missing"
    assert "was not written without a" in world.embed("one", *same, check=1)
    assert stored(world.store("whole")).keys() == before.keys()
    assert world.manifest("whole") == manifest
    (collection,) = summary_of(world.run("one"))["collections"]
    assert (collection["status"], collection["missing"], collection["exports"]) == ("failed", [], [])


def test_a_plan_is_made_without_a_model_that_may_be_missing_and_says_so(tmp_path, tiny_a, call):
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": sentences(8)}})
    words = ["plan", chunks, "--offline", "--sparse", tmp_path / "gone"]
    code, _, said = call(*words, "--roster", tiny_a)
    assert (code, "model gone is not on this machine" in said) == (5, True)
    code, out, _ = call(*words, "--roster", tiny_a, "--allow-missing")
    assert (code, "warning: planned without a model: model gone is not on this machine" in out) == (0, True)
    assert [line.split()[1] for line in out.splitlines() if re.match(r" *\d+ +[a-z]", line)] == ["tiny-a"]
    code, out, said = call(*words, "--roster", tmp_path / "away", "--allow-missing")
    assert (code, "model away is not on this machine" in said) == (5, True)  # no dense model would be left
