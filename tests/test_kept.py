"""What vectors take and what making them smaller costs is told, before a run and after it."""

import numpy as np
import pytest

from interlock.console.text.event_text import line_of
from interlock.console.text.plan_text import plan_text
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode
from interlock.engine.flows.forecast import forecast
from interlock.engine.flows.run import Run
from interlock.engine.record.events import VectorsKept
from interlock.engine.settings import load
from interlock.engine.targets.embedded import Store
from interlock.engine.vectors.precision import nearest, share_kept
from tests.builders import corpus, events_of, sentences, summary_of

WIDTH = 32 + 48


def unit(rows, width, seed):
    drawn = np.random.default_rng(seed).standard_normal((rows, width))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def in_windows(vectors, size=37):
    return (
        (np.arange(start, min(start + size, len(vectors))), vectors[start : start + size])
        for start in range(0, len(vectors), size)
    )


def test_neighbours_are_those_of_a_whole_matrix_without_the_row_itself_and_parked_ones():
    vectors, own = unit(200, 16, 1), np.arange(0, 200, 11)
    vectors[50] = np.nan
    rows, products = nearest(in_windows(vectors), vectors[own], own)
    whole = np.nan_to_num(vectors[own] @ vectors.T, nan=-9)
    whole[np.arange(len(own)), own] = -9
    np.testing.assert_array_equal(rows, np.argsort(-whole, axis=1)[:, :10])
    np.testing.assert_allclose(products, -np.sort(-whole, axis=1)[:, :10], rtol=1e-5)


def test_fewer_rows_than_neighbours_are_all_there_is():
    vectors = unit(4, 16, 1)
    rows, products = nearest(in_windows(vectors), vectors, np.arange(4))
    assert (rows >= 0).sum(axis=1).tolist() == [3] * 4
    assert np.isneginf(products[:, 3:]).all()


def test_what_is_as_near_is_as_good_and_what_is_further_away_is_not():
    before = np.array([[0.9, 0.8, 0.7], [0.5, 0.4, 0.3]], np.float32)
    same, tied = np.array([0.7, 0.9, 0.8]), np.array([0.5, 0.4, 0.3 - 5e-7])
    assert share_kept(before, [same, tied]) == 1
    assert share_kept(before, [np.array([0.9, 0.1, 0.2]), tied]) == pytest.approx(4 / 6)
    assert share_kept(before, [np.array([0.9]), np.array([])]) == 1  # two of a store's answers left the corpus
    assert share_kept(before[:0], []) is None


@pytest.fixture
def place(tmp_path, tiny_a, tiny_b):
    chunks = corpus(tmp_path / "in", {"Docs": {"a.jsonl": [*sentences(300), *sentences(20)]}})

    def given(**settings):
        roster = {"roster": f"{tiny_a}=0.3,{tiny_b}=0.7", "out": str(tmp_path / "runs"), "run_id": "r"}
        return chunks, load({**roster, "qdrant": str(tmp_path / "store"), "offline": True, **settings}, {})

    return given


@pytest.fixture
def go(place):
    def run(**settings):
        made = Run(*place(**settings), Controls())
        assert made.go() == ExitCode.COMPLETED
        return made.directory.path

    return run


BOTH, FUSED = 4 * (WIDTH + WIDTH), 4 * WIDTH


@pytest.mark.parametrize(
    ("settings", "stored", "filed"),
    [
        ({}, FUSED, BOTH + FUSED),
        ({"keep": "both", "export": "npy"}, BOTH, BOTH),
        ({"project": 24, "quantise": "int8"}, 24 + 4, FUSED + 24 + 4 * 24),
        ({"fusion": "named", "export": "parquet"}, FUSED, FUSED),
    ],
)
def test_bytes_of_a_chunk_are_the_same_in_plan_run_and_summary(place, go, settings, stored, filed):
    seen = forecast(*place(**settings))
    assert (seen.stored_bytes, seen.file_bytes) == (stored, filed)
    assert f"dense vectors: {stored:,} bytes a chunk in a store, {filed:,} bytes in files" in plan_text(seen)
    told = events_of(run := go(**settings), VectorsKept)
    assert [each.bytes for each in told] == [filed, stored]
    assert [each["bytes"] for each in summary_of(run)["collections"][0]["vectors"]] == [filed, stored]


def test_nothing_is_compared_where_vectors_are_kept_whole(go):
    for each in events_of(go(), VectorsKept):
        assert (each.neighbours, each.sampled) == (None, 0)
        assert line_of(each).endswith("bytes of dense vectors a chunk")


def top(vectors, row):
    products = vectors @ vectors[row]
    products[row] = -9
    return np.argsort(-products, kind="stable")[:10]


@pytest.mark.parametrize("settings", [{"project": 6}, {"project": 6, "quantise": "int8"}])
def test_the_share_of_neighbours_is_that_of_brute_force(go, tmp_path, settings):
    run = go(**settings)
    files, store = events_of(run, VectorsKept)
    exports = run / "exports" / "Docs"
    own = [np.load(exports / f"{name}.npy") * weight**0.5 for name, weight in (("tiny-a", 0.3), ("tiny-b", 0.7))]
    whole = np.hstack(own)
    codes = exports / "fused.int8.npy"
    kept = np.load(codes).astype(np.float32) if codes.exists() else np.load(exports / "fused.npy")
    sample = np.unique(np.linspace(0, 319, 256).astype(int))
    shares = []
    for row in sample:
        last = (whole @ whole[row])[top(whole, row)][-1]
        shares.append(np.mean((whole @ whole[row])[top(kept, row)] >= last - 1e-6))
    assert files.neighbours == pytest.approx(np.mean(shares), abs=2e-3)
    assert 0.3 < files.neighbours < 0.999
    assert (files.place, files.sampled, store.sampled) == ("exports/Docs", 256, 256)
    assert store.neighbours == pytest.approx(files.neighbours, abs=0.02)
    assert f"{store.neighbours:.1%} of the nearest neighbours of 256 chunks kept" in line_of(store)
    assert store.place == str(tmp_path / "store" / "docs")


def test_a_store_that_answers_otherwise_is_told_as_it_answers(go, monkeypatch):
    asked = Store.query
    monkeypatch.setattr(Store, "query", lambda self, name, vector, limit: asked(self, name, -vector, limit))
    files, store = events_of(go(quantise="int8"), VectorsKept)
    assert files.neighbours > 0.9
    assert store.neighbours < 0.1
