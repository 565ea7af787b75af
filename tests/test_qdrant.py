"""The embedded store on the real engine: what survives, which points are refused, and exact searches."""

import hashlib
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.search.searcher import nearest_to_all
from interlock.engine.targets.embedded import Store
from interlock.engine.targets.mirror import verify
from interlock.engine.targets.target import MOST_BYTES, MOST_POINTS, batches, deliver
from interlock.engine.vectors.points import Point

ROOT = Path(__file__).parents[1]  # where a child process finds the engine
DIMS = {"small": 8, "large": 12}
MANIFEST = {"schema_version": 1, "fusion": "named", "models": [{"name": "a", "fingerprint": "f1"}]}

WRITER = """
import sys
import numpy as np
from pathlib import Path
from uuid import UUID
from interlock.engine.targets.embedded import Point, Store
from interlock.engine.targets.target import deliver
vectors = np.random.default_rng(0).standard_normal((20_000, 64)).astype(np.float32)
store = Store.open_for_write(Path(sys.argv[1]), "docs", {"m": 64}, {"v": 1})
def points():
    for row, vector in enumerate(vectors):
        if row % 256 == 0:
            print(row, flush=True)
        yield Point(str(UUID(int=row + 1)), {"row": row}, {"m": vector})
deliver(points(), store)
"""


def ident(row):
    return str(UUID(int=row + 1))


def make_points(rows, seed=0, dims=DIMS):
    rng = np.random.default_rng(seed)
    return [
        Point(
            ident(row),
            {"row": row, "text": f"text {row}"},
            {name: rng.standard_normal(dim).astype(np.float32) for name, dim in dims.items()},
        )
        for row in range(rows)
    ]


def planned(points):
    """What a plan has of these points: the digest of each text."""
    return {point.id: hashlib.sha256(point.payload["text"].encode()).digest()[:16] for point in points}


def sample(points):
    return [Point(point.id, {}, point.vectors) for point in points]


def open_store(directory, manifest=MANIFEST, dims=DIMS):
    return Store.open_for_write(directory, "docs", dims, manifest)


def cosines(points, name, query):
    matrix = np.array([p.vectors[name] for p in points], dtype=np.float64)
    return matrix @ query / np.linalg.norm(matrix, axis=1) / np.linalg.norm(query)


def run_python(code, *args):
    return subprocess.run([sys.executable, "-c", code, *map(str, args)], capture_output=True, text=True, cwd=ROOT)


def test_vectors_and_payloads_come_back_after_reopening(tmp_path):
    points = make_points(300)
    with open_store(tmp_path) as store:
        deliver(iter(points), store)
    with Store.open_for_read(tmp_path, "docs") as store:
        assert (store.count(), store.dims, store.manifest) == (300, DIMS, MANIFEST)
        found = [*store.read([ident(7), ident(9999), ident(3)]).values()]
        assert [p.id for p in found] == [ident(7), ident(3)]
        assert found[0].payload == {"row": 7, "text": "text 7"}
        for name, vector in points[7].vectors.items():
            np.testing.assert_allclose(found[0].vectors[name], vector / np.linalg.norm(vector), atol=1e-6)


def test_delivering_the_same_points_again_doubles_nothing(tmp_path):
    points = make_points(50)
    for _ in range(2):
        with open_store(tmp_path) as store:
            deliver(points, store)
            assert (store.count(), store.stale) == (50, 0)


def test_points_lost_from_the_corpus_are_counted_and_kept(
    tmp_path,
):
    with open_store(tmp_path) as store:
        deliver(make_points(10), store)
    now = make_points(14)[4:]
    with open_store(tmp_path) as store:
        deliver(now, store)
        result = verify(store, [planned(now)], sample(now))
        assert (result.points, result.stale, result.ok) == (14, 4, True)


def test_nested_payloads_come_back_and_huge_integers_as_exact_text(tmp_path):
    payload = {
        "nested": {"list": [1, None, {"é😀\x00": [True, 1.5]}], "empty": {}},
        "": "no key",
        "a.b": 2,
        "edge": [2**64 - 1, -(2**63)],
        "beyond": [2**64, {"x": -(2**63) - 1}],
    }
    with open_store(tmp_path) as store:
        deliver([Point(ident(0), payload, {})], store)
        (found,) = [*store.read([ident(0)]).values()]
    assert found.payload == payload | {"beyond": [str(2**64), {"x": str(-(2**63) - 1)}]}
    assert found.vectors == {}


def test_batches_of_points_exceed_neither_count_nor_bytes():
    sizes = [10] * 600 + [MOST_BYTES // 2] * 3 + [MOST_BYTES * 2, 10]
    points = ((Point(ident(i), {}, {}), size) for i, size in enumerate(sizes))
    made = list(batches(points, MOST_POINTS, lambda: MOST_BYTES))
    assert [point.id for batch, _ in made for point in batch] == [ident(i) for i in range(len(sizes))]
    for batch, size in made:
        assert len(batch) <= MOST_POINTS
        assert size <= MOST_BYTES or len(batch) == 1


def test_every_point_is_there_once_after_a_writer_killed_in_an_upsert(tmp_path):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    acknowledged = 0
    while acknowledged < 1024:
        acknowledged = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    points = make_points(3000, dims={"m": 64})
    with open_store(tmp_path, {"v": 1}, {"m": 64}) as store:
        survived = store.count()
        assert acknowledged - 256 <= survived < 20_000  # a batch goes in when the row after it is asked for
        deliver(points, store)
        kept = max(survived, 3000)
        assert store.count() == kept
        result = verify(store, [planned(points[:2000]), planned(points[2000:])], sample(points[::100]))
        assert (result.ok, result.stale) == (True, kept - 3000)


def test_scores_are_the_cosines_best_first(tmp_path):
    points = make_points(200)
    query = np.random.default_rng(9).standard_normal(8).astype(np.float32)
    with open_store(tmp_path) as store:
        deliver(points, store)
        nearest = store.query("small", query, 5)
        everything = store.query("small", query, 10**6)
    expected = cosines(points, "small", query)
    order = np.argsort(-expected)
    assert [*nearest] == [points[row].id for row in order[:5]]
    np.testing.assert_allclose([*everything.values()], expected[order], atol=1e-6)


def test_questions_that_are_asked_together_have_the_scores_of_each_alone(tmp_path):
    points, among = make_points(300), [str(point.id) for point in make_points(300)[::3]]
    queries = np.random.default_rng(9).standard_normal((70, 8)).astype(np.float32)
    with open_store(tmp_path) as store:
        deliver(points, store)
        together = store.queries("small", [*queries], 20)
        assert together == [store.query("small", query, 20) for query in queries]
        some = store.queries("small", [*queries[:3]], 300, among=among)
        assert store.queries("small", [], 20) == []
    for query, found in zip(queries, together, strict=True):
        expected = cosines(points, "small", query)
        assert [*found] == [points[row].id for row in np.argsort(-expected)[:20]]
        np.testing.assert_allclose([*found.values()], np.sort(expected)[::-1][:20], atol=1e-6)
    assert [sorted(found) for found in some] == [sorted(among)] * 3


@pytest.mark.parametrize("limit", [1, 10])
def test_a_search_by_all_models_equals_brute_force(tmp_path, limit):
    points = make_points(1500)
    rng = np.random.default_rng(8)
    queries = {name: rng.standard_normal(dim).astype(np.float32) for name, dim in DIMS.items()}
    weights = {"small": 3.0, "large": 1.0}
    with open_store(tmp_path) as store:
        deliver(points, store)
        found = nearest_to_all(store, queries, weights, limit, None)
    means = sum(weights[name] / 4 * cosines(points, name, query) for name, query in queries.items())
    best = np.argsort(-means)[:limit]
    assert [*found] == [points[row].id for row in best]
    np.testing.assert_allclose([*found.values()], means[best], atol=1e-6)


def test_a_parked_row_scores_zero_for_its_model(tmp_path):
    whole, parked = make_points(2)
    parked = Point(parked.id, parked.payload, {"small": parked.vectors["small"]})
    with open_store(tmp_path) as store:
        deliver([whole, parked], store)
        queries = {"small": parked.vectors["small"], "large": whole.vectors["large"]}
        scores = nearest_to_all(store, queries, {"small": 1, "large": 1}, 5, None)
        assert [*store.query("large", queries["large"], 5)] == [whole.id]
    assert scores[parked.id] == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize(("name", "vector"), [("nope", np.ones(8)), ("small", np.ones(9)), ("small", np.zeros(8))])
def test_an_impossible_query_is_a_usage_error(tmp_path, name, vector):
    with open_store(tmp_path) as store, pytest.raises(UsageError):
        store.query(name, vector.astype(np.float32), 1)


def test_an_empty_store_has_no_hits(tmp_path):
    with open_store(tmp_path) as store:
        assert store.query("small", np.ones(8, np.float32), 3) == {}
        assert nearest_to_all(store, {"small": np.ones(8, np.float32)}, {"small": 1}, 3, None) == {}


def test_verification_sees_a_wrong_a_missing_and_an_undelivered_vector(tmp_path):
    points = make_points(20)
    with open_store(tmp_path) as store:
        deliver(points, store)

        def verified(vectors):
            return verify(store, [planned(points)], [Point(of, {}, each) for of, each in vectors.items()])

        good = verified({point.id: point.vectors for point in points})
        assert good.ok
        assert good.worst_cosine > 1 - 1e-6
        assert not verified({ident(3): points[4].vectors}).ok
        not_finite = {"small": points[3].vectors["small"], "large": np.full(12, np.nan, np.float32)}
        assert not verified({ident(3): not_finite}).ok
        lacking = verified({ident(3): {"small": points[3].vectors["small"]}})
        assert not lacking.ok
        assert ident(3) in lacking.detail
        assert not verified({ident(777): points[3].vectors}).ok


def test_a_missing_point_another_text_and_one_too_many_are_noticed_without_a_sample(tmp_path):
    points = make_points(20)
    with open_store(tmp_path) as store:
        deliver(points, store)
        more = planned(make_points(21))
        other = planned(points) | {ident(4): hashlib.sha256(b"text 5").digest()[:16]}
        fewer = planned(points[:-1])
        told = [verify(store, [plan], []) for plan in (planned(points), more, other, fewer)]
    assert [(each.ok, each.expected) for each in told] == [(True, 20), (False, 21), (False, 20), (False, 19)]
    assert f"1 missing: {ident(20)}" in told[1].detail
    assert f"1 with a different text: {ident(4)}" in told[2].detail


def test_verification_without_samples_claims_no_cosine(tmp_path):
    points = make_points(3)
    with open_store(tmp_path) as store:
        deliver(points, store)
        seen = verify(store, [planned(points)], [])
    assert (seen.ok, seen.worst_cosine) == (True, None)
    assert "no vector sampled" in seen.detail


def test_a_closed_store_says_so_and_closes_twice(tmp_path):
    store = open_store(tmp_path)
    store.close()
    store.close()
    with pytest.raises(InterlockError, match="failed while counting"):
        store.count()


def test_importing_the_module_does_not_load_the_engine():
    code = "import sys, interlock.engine.targets.embedded; assert 'qdrant_edge' not in sys.modules"
    assert run_python(code).returncode == 0
