"""What a finished collection delivers: rows in corpus order, every duplicate served, the same bytes each time."""

import errno
import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from interlock.engine.compute.controls import Controls
from interlock.engine.corpus.chunks import ChunkReader
from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.corpus import read_corpus
from interlock.engine.errors import ExitCode, InterlockError, UsageError
from interlock.engine.flows.run import Run
from interlock.engine.settings import load
from interlock.engine.targets.embedded import Store
from interlock.engine.targets.files import arrays
from interlock.engine.targets.files import write as files
from interlock.engine.targets.windows import Delivery
from interlock.engine.vectors.fusion import Fusion
from interlock.engine.vectors.manifest import CollectionSpec
from tests.builders import corpus, roster_entry, sentences, summary_of, toml

METADATA = {"chunk_id": "the-first", "source_path": "guide.md", "page": 3, "tags": ["a", None], "naïve": 1.5}
RECORDS = {
    "B": {
        "b_chunks.json": [{"text": "with metadata", "metadata": METADATA}, "said twice", *sentences(20), "said twice"],
        "a.jsonl": ["from the file that comes first", {"text": ""}],
    },
    "A": {"a_chunks.json": ["said twice", "only here"]},
}


def embed(chunks, out, file=None, **flags):
    run = Run(chunks, load({"out": str(out), "max_refused": "100%,files", **flags}, {}, file), Controls())
    assert run.go() == ExitCode.COMPLETED
    return run.directory.path


def npy(run, name, collection="B"):
    return np.load(run / "exports" / collection / f"{name}.npy")


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return corpus(tmp_path_factory.mktemp("in"), RECORDS)


@pytest.fixture(scope="module")
def run(tmp_path_factory, root, tiny_a, tiny_b):
    return embed(root, tmp_path_factory.mktemp("out"), roster=f"{tiny_a},{tiny_b}")


@pytest.fixture(scope="module")
def table(run):
    return pq.read_table(run / "exports" / "B" / "points.parquet")


@pytest.fixture(scope="module")
def chunks(root):
    return [found for found in ChunkReader(discover(root, ["B"])[0]) if hasattr(found, "text")]


def test_an_exported_table_has_these_columns_and_a_row_per_good_chunk(table, chunks):
    assert table.column_names == ["id", "chunk_id", "source", "text", "payload", "fused"]
    assert table.num_rows == len(chunks) == 24


def test_exported_rows_stand_in_reading_order(table, chunks):
    assert table["text"].to_pylist() == [chunk.text for chunk in chunks]
    assert table["text"][0].as_py() == "from the file that comes first"
    assert table["id"].to_pylist() == [chunk.point_id for chunk in chunks]
    assert table["chunk_id"].to_pylist() == [chunk.chunk_id for chunk in chunks]
    assert table["source"].to_pylist()[:2] == ["a.jsonl", "guide.md"]


def test_other_fields_of_a_record_are_delivered_under_record_in_the_table_and_in_the_store(tmp_path, tiny_a):
    records = [
        {"text": "with", "metadata": {"page": 3}, "id": 7, "tags": ["a", None]},
        {"text": "without", "metadata": {}},
    ]
    root = corpus(tmp_path / "in", {"Docs": {"a.jsonl": records}})
    run = embed(root, tmp_path / "out", roster=str(tiny_a), qdrant=str(tmp_path / "store"))
    table = pq.read_table(run / "exports" / "Docs" / "points.parquet").to_pydict()
    others = {"id": 7, "tags": ["a", None]}
    assert [json.loads(each) for each in table["payload"]] == [{"page": 3, "record": others}, {}]
    with Store.open_for_read(tmp_path / "store", "docs") as store:
        first, second = sorted([*store.read(table["id"]).values()], key=lambda point: point.payload["text"])
    assert (first.payload["metadata"], first.payload["record"]) == ({"page": 3}, others)
    assert set(second.payload) == {"text", "chunk_id", "source", "metadata"}


def test_the_exported_payload_is_the_metadata_as_json(table):
    assert json.loads(table["payload"][1].as_py()) == METADATA
    assert table["payload"][2].as_py() == "{}"


@pytest.mark.parametrize("name", ["tiny-a", "tiny-b", "fused"])
def test_both_formats_hold_the_same_unit_vectors(run, table, name):
    array = npy(run, name)
    assert (array.dtype, array.flags["C_CONTIGUOUS"]) == (np.float32, True)
    if name == "fused":
        np.testing.assert_array_equal(np.asarray(table[name].to_pylist(), np.float32), array)
    np.testing.assert_allclose(np.linalg.norm(array, axis=1), 1, atol=1e-5)


def test_every_chunk_of_a_repeated_text_gets_its_vector(run, table):
    first, second = (place for place, text in enumerate(table["text"].to_pylist()) if text == "said twice")
    for name in ("tiny-a", "tiny-b", "fused"):
        np.testing.assert_array_equal(npy(run, name)[first], npy(run, name)[second])
        np.testing.assert_array_equal(npy(run, name, "A")[0], npy(run, name)[first])
    assert table["id"][first] != table["id"][second]


def test_the_same_corpus_gives_the_same_bytes_in_every_file(tmp_path, root, run, tiny_a, tiny_b):
    again = embed(root, tmp_path, roster=f"{tiny_a},{tiny_b}")
    hashes = [
        {
            each["path"]: each["sha256"]
            for collection in summary_of(one)["collections"]
            for each in collection["exports"]
        }
        for one in (run, again)
    ]
    assert len(hashes[0]) == 8
    assert hashes[0] == hashes[1]


def test_an_export_leaves_nothing_half_written(run):
    assert sorted(path.name for path in (run / "exports" / "B").iterdir()) == [
        "fused.npy",
        "points.parquet",
        "tiny-a.npy",
        "tiny-b.npy",
    ]


@pytest.mark.parametrize(("export", "written"), [("npy", ["fused.npy"]), ("parquet", ["points.parquet"]), ("", [])])
def test_only_the_chosen_formats_are_written(tmp_path, root, tiny_a, export, written):
    run = embed(root, tmp_path, roster=str(tiny_a), export=export, collections="A")
    assert sorted(path.name for path in run.glob("exports/*/*")) == written


def test_the_dot_product_of_concat_is_the_weighted_mean_of_the_cosines(tmp_path, root, tiny_a, tiny_b):
    run = embed(root, tmp_path, roster=f"{tiny_a}=3,{tiny_b}=1", export="npy")
    one, other, fused = (npy(run, name).astype(np.float64) for name in ("tiny-a", "tiny-b", "fused"))
    assert fused.shape[1] == 32 + 48
    np.testing.assert_allclose(fused @ fused.T, 0.75 * one @ one.T + 0.25 * other @ other.T, atol=1e-5)


def test_named_vectors_come_without_a_fused_one(tmp_path, root, tiny_a, tiny_b):
    run = embed(root, tmp_path / "out", roster=f"{tiny_a},{tiny_b}", fusion="named", qdrant=str(tmp_path / "store"))
    assert sorted(path.name for path in (run / "exports" / "A").iterdir()) == [
        "points.parquet",
        "tiny-a.npy",
        "tiny-b.npy",
    ]
    assert summary_of(run)["collections"][0]["verification"]["ok"]


def test_the_mean_covers_shared_dimensions_renormalised_and_warns(tmp_path, root, tiny_a, tiny_b):
    run = embed(root, tmp_path, roster=f"{tiny_a}=3,{tiny_b}=1", fusion="mean", export="npy")
    expected = unit(0.75 * npy(run, "tiny-a").astype(np.float64) + 0.25 * npy(run, "tiny-b")[:, :32])
    np.testing.assert_allclose(npy(run, "fused"), expected, atol=1e-6)
    assert "mean" in summary_of(run)["warnings"][0]


def test_a_matryoshka_cut_keeps_leading_dimensions_and_other_models_whole(tmp_path, root, run, tiny_a, tiny_b):
    file = toml(tmp_path / "m.toml", {"cut": {"source": str(tiny_a), "matryoshka": [8, 16, 32]}})
    cut = embed(root, tmp_path / "out", file, roster=f"cut,{tiny_b}", dim="8", qdrant=str(tmp_path / "store"))
    np.testing.assert_allclose(npy(cut, "cut"), unit(npy(run, "tiny-a")[:, :8]), atol=1e-6)
    np.testing.assert_array_equal(npy(cut, "tiny-b"), npy(run, "tiny-b"))
    assert npy(cut, "fused").shape[1] == 8 + 48
    assert summary_of(cut)["collections"][0]["verification"]["ok"]


def test_a_dimension_the_model_was_not_trained_for_is_refused_before_any_work(tmp_path, root, tiny_a):
    file = toml(tmp_path / "m.toml", {"cut": {"source": str(tiny_a), "matryoshka": [8, 16]}})
    with pytest.raises(UsageError, match="--dim 12: cut supports only 8, 16"):
        embed(root, tmp_path / "out", file, roster="cut", dim="12")
    assert not list(tmp_path.glob("out/*"))


def test_more_rows_than_a_window_are_exported_in_order(tmp_path, tiny_a):
    texts = [f"{number % 97} {number % 3}" for number in range(2500)]
    root = corpus(tmp_path / "in", {"Many": {"m.jsonl": texts}})
    run = embed(root, tmp_path / "out", roster=str(tiny_a))
    table = pq.read_table(run / "exports" / "Many" / "points.parquet")
    assert table["text"].to_pylist() == texts
    vectors = npy(run, "fused", "Many")
    np.testing.assert_array_equal(np.asarray(table["fused"].to_pylist(), np.float32), vectors)
    np.testing.assert_array_equal(vectors[291:], vectors[:-291])  # 97 * 3 texts, over and over


def test_a_file_the_disk_refuses_is_named_and_nothing_is_left(tmp_path, root, tiny_a, monkeypatch):
    def refuse(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(arrays, "release", refuse)
    vectors = np.ones((24, 1), np.float32)
    spec = CollectionSpec("b", Fusion.CONCAT, [roster_entry(model="one", dim=1)], "r")
    read = read_corpus(discover(root, ["B"]), lambda _: None)
    monkeypatch.setattr(Delivery, "vectors", lambda *_: {"one": vectors, "fused": vectors})
    with pytest.raises(InterlockError, match=r"cannot write .*one\.npy: Input/output error"):
        delivery = Delivery(read.rows[0], read.digests, spec, {"one": vectors})
        files.write(delivery, ["npy", "parquet"], tmp_path / "out", {})
    assert not list((tmp_path / "out").iterdir())


def test_two_models_of_one_directory_name_are_refused_before_any_work(tmp_path, root, tiny_a):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tiny-a").symlink_to(tiny_a)
    with pytest.raises(UsageError, match="tiny-a"):
        embed(root, tmp_path / "out", roster=f"{tiny_a},{tmp_path / 'other' / 'tiny-a'}")
    assert not list(tmp_path.glob("out/*"))
