"""Weights that an evaluation chose are in the store of the run that was judged, and searches have them unless told."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import interlock as product
from interlock.engine.errors import UsageError
from interlock.engine.evaluation.delivered import calibrate
from interlock.engine.vectors.manifest import read_manifest
from tests.builders import corpus, interlock, nearest_others, sentences

TEXTS = sentences(60, words=10)
OWN = {"tiny-a": 0.25, "tiny-b": 0.75}
JUDGED = ("--queries", "queries.jsonl", "--qrels", "qrels.tsv")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_a: Path, tiny_b: Path) -> Path:
    """A run into a store, one of its vectors that writes none, and judgements that only the lighter model finds."""
    place = tmp_path_factory.mktemp("calibrated")
    records = [{"text": text, "metadata": {"chunk_id": f"d{at}"}} for at, text in enumerate(TEXTS)]
    corpus(place / "chunks", {"Docs": {"a_chunks.json": records}})
    lines = [json.dumps({"_id": f"q{at}", "text": text}) for at, text in enumerate(TEXTS)]
    (place / "queries.jsonl").write_text("\n".join(lines))
    deliver(place, "one", tiny_a, tiny_b, "--qdrant", "store")
    deliver(place, "bare", tiny_a, tiny_b, "--reuse", "runs/one")
    judge(place, nearest_others(np.load(place / "runs" / "one" / "exports" / "Docs" / "tiny-a.npy")))
    return place


def judge(place: Path, answers: Sequence[int]) -> None:
    """Write which text answers each question."""
    grades = ["query-id\tcorpus-id\tscore", *(f"q{at}\td{text}\t1" for at, text in enumerate(answers))]
    (place / "qrels.tsv").write_text("\n".join(grades))


def deliver(place: Path, run: str, a: Path, b: Path, *flags: str) -> None:
    interlock("run", "chunks", "--roster", f"{a}=1,{b}=3", "--run-id", run, "--no-ui", *flags, cwd=place)


def evaluated(place: Path, run: str, *flags: str, check: int = 0):
    return interlock("eval", f"runs/{run}", *JUDGED, "--calibrate", "own.toml", *flags, cwd=place, check=check)


def manifest_at(place: Path) -> dict:
    return json.loads((place / "store" / "docs" / "manifest.json").read_text())


def by_hand(place: Path, row: int, weights: dict[str, float]) -> dict[str, float]:
    """The weighted cosines of all texts with one of them, from what the run exported."""
    exports = place / "runs" / "one" / "exports" / "Docs"
    vectors = {name: np.load(exports / f"{name}.npy") for name in weights}
    scores = sum(weight * (vectors[name] @ vectors[name][row]) for name, weight in weights.items())
    return {f"d{at}": score / sum(weights.values()) for at, score in enumerate(scores.tolist())}


def found(place: Path, **asked: object) -> dict[str, float]:
    hits = product.search(place / "store", TEXTS[7], limit=len(TEXTS), hybrid="off", **asked)
    return {str(hit.payload["chunk_id"]): hit.score for hit in hits}


def test_weights_of_an_evaluation_are_those_of_a_search_that_names_none(place, tiny_a, tiny_b):
    plain = manifest_at(place)
    assert found(place) == pytest.approx(by_hand(place, 7, OWN), abs=1e-4)
    said = evaluated(place, "one", "--json", "figures.json").stdout
    chosen = json.loads((place / "figures.json").read_text())["weights"]["weights"]
    assert chosen != OWN
    calibrated = {"weights": chosen, "before": OWN, "queries": 30}
    assert manifest_at(place) == {**plain, "calibrated": calibrated}
    listed = ", ".join(f"{name} {weight:.2g}" for name, weight in chosen.items())
    assert f"docs: questions count {listed} from now on, before tiny-a 0.25, tiny-b 0.75 (--weights" in said
    assert re.search(r"next: interlock run \S+ --config own\.toml", said)
    assert found(place) == pytest.approx(by_hand(place, 7, chosen), abs=1e-4)
    assert found(place, weights={"tiny-a": 1, "tiny-b": 3}) == pytest.approx(by_hand(place, 7, OWN), abs=1e-4)
    deliver(place, "two", tiny_a, tiny_b, "--qdrant", "store", "--reuse", "runs/one")  # of the same models
    assert manifest_at(place)["calibrated"] == calibrated
    assert "run two wrote it after one, which was judged: name that one" in evaluated(place, "one", check=2).stderr


def test_a_copy_of_a_run_and_its_store_is_calibrated_and_not_the_store_where_it_was(place, tmp_path):
    shutil.copytree(place, there := tmp_path / "there")
    before = manifest_at(place)
    judged = before["run"]["run_id"]
    file = there / "store" / "docs" / "manifest.json"
    assert before["sparse_share"] == 0.25
    kept = {name: value for name, value in before.items() if name not in ("calibrated", "sparse_share")}
    file.write_text(json.dumps(kept))
    evaluated(there, judged, "--json", "figures.json")
    assert json.loads((there / "figures.json").read_text())["worst_of"] == "bm25, 0.2"  # as such a store answers
    assert (manifest_at(place), "calibrated" in manifest_at(there)) == (before, True)


def test_a_search_says_that_its_weights_are_calibrated(place):
    weights = {"tiny-a": 0.9, "tiny-b": 0.1}
    calibrate(place / "store" / "docs", manifest_at(place)["run"]["run_id"], weights, 3)
    question = ("search", "store", TEXTS[7], "--limit", "2")
    assert "weights calibrated by `interlock eval`: tiny-a 0.9, tiny-b 0.1" in explained(place, *question)
    assert "calibrated" not in explained(place, *question, "--weights", "tiny-a=1")
    assert "calibrated" not in explained(place, *question, "--only", "tiny-a")
    for hit in interlock(*question, "--json", cwd=place).stdout.splitlines():
        assert json.loads(hit)["calibrated_weights"] == weights
    answers = interlock("search", "store", "--queries", "queries.jsonl", cwd=place).stdout.splitlines()
    assert [json.loads(answer)["calibrated_weights"] for answer in answers] == [weights] * len(TEXTS)


def explained(place: Path, *words: str) -> str:
    return interlock(*words, "--explain", cwd=place).stdout


def test_a_run_without_a_store_is_told_so_and_its_weights_are_in_the_file_alone(place):
    assert "run bare wrote no store that could have these weights" in evaluated(place, "bare").stdout
    assert (place / "own.toml").read_text().startswith("roster = ")


def test_a_run_of_the_same_id_does_not_weigh_the_store_of_another(place, tiny_a, tiny_b, tmp_path):
    asked = [f"--{name}={place / f'{name}.{kind}'}" for name, kind in (("queries", "jsonl"), ("qrels", "tsv"))]
    for out in ("runs", "others"):
        deliver(place, "one", tiny_a, tiny_b, "--qdrant", tmp_path / "store", "--out", tmp_path / out)
    before = manifest_at(tmp_path)
    said = interlock("eval", tmp_path / "runs/one", *asked, "--calibrate", "own.toml", cwd=tmp_path, check=2).stderr
    assert "keeps its weights: another run one than the judged one wrote it: name that one" in said
    assert manifest_at(tmp_path) == before
    interlock("eval", tmp_path / "others/one", *asked, "--calibrate", "own.toml", cwd=tmp_path)
    assert manifest_at(tmp_path)["calibrated"]["queries"] == 30


def test_weights_that_the_held_out_queries_do_not_support_are_written_nowhere(place, tmp_path):
    """Each text answers itself here, which any weights find."""
    shutil.copytree(place, there := tmp_path / "there")
    judge(there, range(len(TEXTS)))
    (there / "own.toml").unlink(missing_ok=True)
    before = manifest_at(there)
    judged = before["run"]["run_id"]
    done = evaluated(there, judged, "--json", "figures.json", check=2)
    assert "That is no reason to change the roster: keep its weights." in " ".join(done.stdout.split())
    told = "30 held-out queries do not tell that these weights find more than the roster's, so nothing was written"
    assert told in done.stderr and "next:" not in done.stdout
    assert not (there / "own.toml").exists() and manifest_at(there) == before
    assert json.loads((there / "figures.json").read_text())["weights"]["against_roster"]["significant"] is False


def test_one_training_query_chooses_no_weights(place):
    before = manifest_at(place)
    said = evaluated(place, "one", "--limit", "2", check=2).stderr
    assert "--calibrate: weights are chosen for two models or more by two training queries or more" in said
    assert manifest_at(place) == before


def test_a_store_that_is_gone_is_told(place):
    shutil.move(place / "store", place / "elsewhere")
    try:
        said = evaluated(place, "one").stdout
    finally:
        shutil.move(place / "elsewhere", place / "store")
    assert f"the store of run one is not at {place}/store/docs any more" in said


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ({"a": 0.5}, "weights are of a"),
        ({"a": 0.5, "c": 0.5}, "weights are of a; c"),
        ({"a": -1.0, "b": 1.0}, "-1.0"),
        ({"a": 0.0, "b": 0.0}, "0.0"),
        ({"a": float("nan"), "b": 1.0}, "nan"),
    ],
)
def test_weights_that_no_question_could_have_are_neither_written_nor_read(tmp_path, weights, why):
    store = hand_made(tmp_path, fusion="concat")
    before = (store / "manifest.json").read_bytes()
    with pytest.raises(UsageError, match=f"cannot calibrate .*{why}"):
        calibrate(store, "r", weights, 1)
    assert (store / "manifest.json").read_bytes() == before
    plain = json.loads(before) | {"calibrated": {"weights": weights, "before": OWN, "queries": 1}}
    with pytest.raises(UsageError, match=f"cannot read the store's manifest .*{why}"):
        read_manifest(plain, {"fused": 16})


def test_a_store_of_means_alone_keeps_the_weights_that_it_was_mixed_by(tmp_path):
    store = hand_made(tmp_path, fusion="mean")
    with pytest.raises(UsageError, match="--fusion mean mixed its models for good: use --fusion concat"):
        calibrate(store, "r", {"a": 0.1, "b": 0.9}, 1)


def hand_made(place: Path, fusion: str) -> Path:
    """A collection's directory with what says what is in it, of two models of 8 dimensions."""
    about = {
        "fingerprint": "f",
        "dim": 8,
        "dtype": "float32",
        "max_tokens": 9,
        "query_prompt": "",
        "document_prompt": "",
    }
    models = [{"model": name, "weight": 0.5, **about} for name in "ab"]
    run = {"run_id": "r", "sources": {"a": "x", "b": "y"}, "commits": {"a": None, "b": None}}
    plain = {
        "schema_version": "1",
        "collection": "docs",
        "fusion": fusion,
        "keep": "fused",
        "models": models,
        "run": run,
    }
    (place / "manifest.json").write_text(json.dumps(plain))
    width = {"concat": 16, "mean": 8}[fusion]
    (place / "edge_config.json").write_text(json.dumps({"vectors": {"fused": {"size": width}}}))
    return place
