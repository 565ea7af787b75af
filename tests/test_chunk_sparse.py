"""Terms that chunks bring along as `sparse_features`: delivered as they are under a name of their own, or refused."""

import hashlib
import json
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import qdrant_edge as edge
import scipy.sparse

from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.flows.forecast import forecast
from interlock.engine.flows.run import Run
from interlock.engine.record.events import RecordRefused, StoreVerified, Warned
from interlock.engine.settings import load
from interlock.engine.targets import windows
from interlock.engine.targets.embedded import Store
from interlock.engine.targets.files import arrays, tables
from interlock.engine.vectors.manifest import read_manifest
from tests.builders import events_of, tiny_model, tiny_sparse

NAME = "keywords"


def index_of(term: str) -> int:
    return int(hashlib.sha1(term.encode()).hexdigest()[:8], 16)


def listed(**weights):
    """As the chunker of the reference data writes them."""
    return {
        "version": "1.0",
        "weighting": "tf-normalized",
        "top_terms": list(weights),
        "term_weights": [{"term": term, "tf": 2, "weight": weight} for term, weight in weights.items()],
        "unique_terms": len(weights),
    }


RECORDS = [
    {"text": "none at all"},
    {"text": "a mapping", "sparse_features": {"key": 0.5, "rotate": 2, "日本": 1e-3}},
    {"text": "listed", "metadata": {"source_path": "a", "sparse_features": listed(key=0.06, pdf=0.03)}},
    {"text": "indices", "metadata": {"sparse_features": {"indices": [2**32 - 1, 0, 7], "values": [1, 2.5, 3]}}},
    {"text": "null", "sparse_features": None},
    {"text": "both", "sparse_features": {"own": 1.0}, "metadata": {"sparse_features": {"other": 1.0}}},
    {"text": "no terms", "sparse_features": {}},
    {"text": "listed", "metadata": {"source_path": "b", "sparse_features": listed(other=1.0)}},  # the same text
    {"text": "no terms listed", "metadata": {"sparse_features": listed()}},
]
WANTED = [
    {},
    {index_of("key"): 0.5, index_of("rotate"): 2.0, index_of("日本"): 1e-3},
    {index_of("key"): 0.06, index_of("pdf"): 0.03},
    {0: 2.5, 7: 3.0, 2**32 - 1: 1.0},
    {},
    {index_of("own"): 1.0},
    {},
    {index_of("other"): 1.0},
    {},
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def place(tmp_path, tiny):
    """Where a run of some records is made; `run` makes it."""

    def put(collection, records):
        (directory := tmp_path / "in" / collection).mkdir(parents=True, exist_ok=True)
        (directory / "a.jsonl").write_text("\n".join(map(json.dumps, records)))

    def run(records=RECORDS, **more):
        put("Docs", records)
        flags = {"roster": str(tiny), "out": str(tmp_path / "runs"), "run_id": "r", "chunk_sparse": NAME, **more}
        code = Run(tmp_path / "in", load(flags, {}, None), Controls()).go()
        return SimpleNamespace(code=code, directory=tmp_path / "runs" / flags["run_id"])

    return SimpleNamespace(run=run, put=put, root=tmp_path, store=tmp_path / "store")


def matrix_of(run, collection="Docs"):
    return scipy.sparse.load_npz(run.directory / "exports" / collection / f"{NAME}.npz")


def rows_of(matrix):
    cuts = zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)
    return [dict(zip(matrix.indices[a:b].tolist(), matrix.data[a:b].tolist(), strict=True)) for a, b in cuts]


def as_float32(terms):
    return {index: float(np.float32(weight)) for index, weight in terms.items()}


def points_of(store, collection="docs"):
    engine = edge.EdgeShard.load(str(store / collection), None)
    records, _ = engine.scroll(edge.ScrollRequest(limit=1000, with_payload=True, with_vector=True))
    engine.close()
    return records


def test_terms_are_exported_in_the_rows_of_their_chunks(place, monkeypatch):
    for module in (windows, arrays, tables):
        monkeypatch.setattr(module, "WINDOW", 4)
    done = place.run(export="npy")
    assert done.code == ExitCode.COMPLETED
    matrix = matrix_of(done)
    assert (matrix.shape, matrix.dtype, matrix.has_sorted_indices) == ((len(RECORDS), 2**32), np.float32, 1)
    assert rows_of(matrix) == list(map(as_float32, WANTED))


def test_a_column_of_the_table_has_them_too(place):
    done = place.run(export="parquet")
    column = pq.read_table(done.directory / "exports" / "Docs" / "points.parquet")[NAME].to_pylist()
    found = [dict(zip(each["indices"], each["values"], strict=True)) for each in column]
    assert found == list(map(as_float32, WANTED))


def test_a_store_has_them_under_a_name_of_their_own_as_they_came(place):
    done = place.run(qdrant=str(place.store))
    assert done.code == ExitCode.COMPLETED
    held = {}
    for record in points_of(place.store):
        vector = record.vector.get(NAME)
        source = record.payload["metadata"].get("source_path", "")
        held[record.payload["text"], source] = dict(zip(vector.indices, vector.values, strict=True)) if vector else {}
    sources = [record.get("metadata", {}).get("source_path", "") for record in RECORDS]
    for record, source, wanted in zip(RECORDS, sources, WANTED, strict=True):
        assert held[record["text"], source] == as_float32(wanted), record["text"]
    config = json.loads((place.store / "docs" / "edge_config.json").read_text())["sparse_vectors"]
    assert "modifier" not in config[NAME]  # weights are weights: nothing is weighed in
    manifest = json.loads((place.store / "docs" / "manifest.json").read_text())
    assert manifest["chunk_sparse"] == NAME
    assert read_manifest(manifest, {"fused": 32}, ["bm25", NAME]).chunk_sparse == NAME
    with pytest.raises(UsageError, match="sparse vectors do not match the store: keywords"):
        read_manifest(manifest, {"fused": 32}, ["bm25"])
    (seen,) = events_of(done.directory, StoreVerified)
    assert seen.ok


def test_nothing_of_them_is_delivered_unless_they_are_asked_for(place):
    done = place.run(chunk_sparse="", qdrant=str(place.store))
    assert done.code == ExitCode.COMPLETED
    names = {path.name for path in (done.directory / "exports" / "Docs").iterdir()}
    assert names == {"fused.npy", "points.parquet"}
    assert {name for each in points_of(place.store) for name in each.vector} == {"fused", "bm25"}


def test_a_sparse_models_terms_and_those_of_chunks_are_never_mixed(place, tmp_path):
    splade = tiny_sparse(tmp_path / "models" / "splade")
    done = place.run(sparse=str(splade), qdrant=str(place.store))
    assert done.code == ExitCode.COMPLETED
    assert rows_of(matrix_of(done)) == list(map(as_float32, WANTED))
    alone = place.run(sparse=str(splade), chunk_sparse="", run_id="alone")
    ours, theirs = (run.directory / "exports" / "Docs" / "splade.npz" for run in (done, alone))
    assert ours.read_bytes() == theirs.read_bytes()


def test_each_collection_has_the_terms_of_its_own_chunks(place):
    place.put("Early", [{"text": "first", "sparse_features": {"one": 1}}, {"text": "listed"}])
    place.put("Late", [{"text": "last"}, {"text": "a mapping", "sparse_features": {"late": 4}}])
    done = place.run()
    assert rows_of(matrix_of(done, "Early")) == [{index_of("one"): 1.0}, {}]
    assert rows_of(matrix_of(done)) == list(map(as_float32, WANTED))
    assert rows_of(matrix_of(done, "Late")) == [{}, {index_of("late"): 4.0}]


BAD = {
    "a text": ("terms", "Expected `object`, got `str`"),
    "a list": (["key"], "Expected `object`, got `array`"),
    "a text as weight": ({"key": "0.5"}, "Expected `float`, got `str`"),
    "a truth as weight": ({"key": True}, "Expected `float`, got `bool`"),
    "zero": ({"key": 0}, "the weight of 'key' is 0, expected a finite number above 0"),
    "below zero": ({"indices": [3], "values": [-1.5]}, "the weight of 3 is -1.5"),
    "too small for a float32": ({"key": 1e-60}, "the weight of 'key' is 1e-60"),
    "too large for a float32": (listed(key=1e60), "the weight of 'key' is 1e+60"),
    "an index below 0": ({"indices": [-1], "values": [1]}, "Expected `int` >= 0"),
    "an index beyond 32 bits": ({"indices": [2**32], "values": [1]}, "Expected `int` <"),
    "an index with a point": ({"indices": [1.5], "values": [1]}, "Expected `int`, got `float`"),
    "an index twice": ({"indices": [4, 4], "values": [1, 1]}, "4 is there twice"),
    "a term twice": ({"term_weights": [{"term": "key", "weight": 1}] * 2}, "'key' is there twice"),
    "more indices than values": ({"indices": [4, 5], "values": [1]}, "2 indices, but 1 values"),
    "a term without a weight": ({"term_weights": [{"term": "key"}]}, "missing required field `weight`"),
}


@pytest.mark.parametrize(("given", "why"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("beside", [True, False], ids=["beside the metadata", "in the metadata"])
def test_a_chunk_with_bad_terms_is_refused_with_its_place_and_costs_no_other(place, given, why, beside):
    features = {"sparse_features": given}
    bad = {"text": "bad", **features} if beside else {"text": "bad", "metadata": features}
    good = [{"text": "before"}, {"text": "after", "sparse_features": {"key": 1}}]
    done = place.run([good[0], bad, good[1]], qdrant=str(place.store), max_refused="1")
    assert done.code == ExitCode.COMPLETED
    (refused,) = events_of(done.directory, RecordRefused)
    assert (refused.file, refused.record) == ("a.jsonl", 2)
    assert why in refused.reason and "sparse_features" in refused.reason
    assert ("metadata" in refused.reason) is not beside
    assert rows_of(matrix_of(done)) == [{}, {index_of("key"): 1.0}]


def test_what_is_not_asked_for_is_not_judged(place):
    records = [{"text": f"chunk {number}", "sparse_features": given} for number, (given, _) in enumerate(BAD.values())]
    done = place.run(records, chunk_sparse="")
    assert events_of(done.directory, RecordRefused) == []


def test_a_number_beyond_all_numbers_is_refused(place):
    place.put("More", [])
    (place.root / "in" / "More" / "a.jsonl").write_text('{"text": "x", "sparse_features": {"key": 1e999}}')
    (refused,) = events_of(place.run().directory, RecordRefused)
    assert (refused.collection, refused.record) == ("More", 1)


def test_two_terms_of_one_index_are_added_up(place, monkeypatch):
    monkeypatch.setattr("interlock.engine.corpus.features.index_of", lambda term: 5 if term < "x" else 6)
    done = place.run([{"text": "one", "sparse_features": {"a": 1, "z": 8, "b": 2}}])
    assert rows_of(matrix_of(done)) == [{5: 3.0, 6: 8.0}]


def test_a_plan_refuses_what_a_run_would(place, tiny):
    place.put("Docs", [{"text": "good"}, {"text": "bad", "sparse_features": {"key": -1}}])
    planned = [
        forecast(place.root / "in", load({"roster": str(tiny), "chunk_sparse": name}, {}, None)) for name in ("", NAME)
    ]
    assert [[len(rows.refusals) for rows in each.collections] for each in planned] == [[0], [1]]


def test_a_run_whose_chunks_bring_no_terms_says_so(place):
    done = place.run([{"text": "none"}])
    assert done.code == ExitCode.COMPLETED
    assert any("no chunk brings sparse_features" in each.message for each in events_of(done.directory, Warned))
    assert not any("sparse_features" in each.message for each in events_of(place.run(run_id="with").directory, Warned))


def test_a_continued_run_keeps_the_name_and_delivers_the_same_bytes(place):
    first = place.run(qdrant=str(place.store))
    file = first.directory / "exports" / "Docs" / f"{NAME}.npz"
    kept = file.read_bytes()
    file.unlink()
    flags = {"out": str(place.root / "runs"), "run_id": "r", "resume": "yes"}
    assert Run(place.root / "in", load(flags, {}, None), Controls()).go() == ExitCode.COMPLETED
    assert file.read_bytes() == kept
    with pytest.raises(UsageError, match=r"was written with other settings .*chunk_sparse"):
        place.run(chunk_sparse="other", run_id="other", qdrant=str(place.store))


def test_a_store_with_other_terms_than_chunks_brought_is_not_called_verified(place, monkeypatch):
    upsert = Store.upsert

    def altered(self, points, *size):
        held = list(points)
        for point in held:
            if terms := point.sparse.get(NAME):
                terms.values[0] *= 2
                break
        return upsert(self, held, *size)

    monkeypatch.setattr(Store, "upsert", altered)
    done = place.run(qdrant=str(place.store))
    assert done.code == ExitCode.FAILED
    (seen,) = events_of(done.directory, StoreVerified)
    assert "1 with other vectors than delivered" in seen.detail


@pytest.mark.parametrize("name", ["fused", "bm25", "tiny", "tiny-sparse", "tiny-tokens", "a/b", ".hidden", "text"])
def test_a_name_that_something_else_has_is_refused(place, name):
    with pytest.raises(UsageError, match=f"--chunk-sparse '{name}' does not work"):
        place.run(chunk_sparse=name)
    assert not (place.root / "runs" / "r").exists()
