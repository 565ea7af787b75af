"""Sparse vectors as they are delivered: read with the libraries whose formats they are in, never only with our own."""

import errno
import json
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import qdrant_edge as edge
import scipy.sparse
from msgspec.structs import replace as changed

from interlock.engine.compute.controls import Controls
from interlock.engine.compute.parts.terms import SparseFile, SparseRows
from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.corpus import read_corpus
from interlock.engine.errors import ExitCode, InterlockError, UsageError
from interlock.engine.flows import run as running
from interlock.engine.flows import sessions
from interlock.engine.gpu.devices import choose
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy
from interlock.engine.record.events import ArtefactWritten, StoreVerified
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.search.ask import Ask
from interlock.engine.search.combine import Hybrid
from interlock.engine.search.searcher import StoreSearcher
from interlock.engine.settings import load
from interlock.engine.targets import shard, stores, windows
from interlock.engine.targets.delivery import Destination, deliver
from interlock.engine.targets.embedded import Store
from interlock.engine.targets.files import arrays, formats, tables
from interlock.engine.targets.files import write as files
from interlock.engine.targets.mirror import verified
from interlock.engine.targets.stores import check_store
from interlock.engine.targets.target import deliver as put
from interlock.engine.targets.windows import Delivery, points_of
from interlock.engine.vectors.bm25 import WordCounts, Words
from interlock.engine.vectors.fusion import Fusion
from interlock.engine.vectors.manifest import CollectionSpec, read_manifest
from interlock.engine.vectors.points import Point, Terms
from tests.builders import corpus, roster_entry, start, tiny_sparse

WIDTH = 40
TEXTS = [*(f"text {number}" for number in range(9)), "text 3", "text 0"]
PARKED, EMPTY = 2, 5
ENTRY = roster_entry()
SPLADE = changed(ENTRY, model="splade", weight=0.0, dim=WIDTH, kind="sparse")
ROSTER = [ENTRY, SPLADE]
ONE = "00000000-0000-0000-0000-000000000001"


def weights(texts):
    """Term weights of so many texts, one of them parked and one without terms."""
    rng = np.random.default_rng(0)
    matrix = (rng.random((texts, WIDTH)) * (rng.random((texts, WIDTH)) < 0.2)).astype(np.float32)
    matrix[PARKED], matrix[EMPTY] = np.nan, 0
    return matrix


def spec_of(roster=ROSTER, run_id="one"):
    return CollectionSpec("docs", Fusion.CONCAT, roster, run_id)


@pytest.fixture
def made(tmp_path):
    """A collection of texts, some of them twice, with dense and sparse vectors: its delivery, and each row's text."""

    def make(texts=TEXTS):
        read = read_corpus(discover(corpus(tmp_path / "in", {"Docs": {"a.jsonl": texts}})), lambda _: None)
        distinct = len(read.digests)
        dense = np.eye(distinct, 4, dtype=np.float32) + np.float32(1e-3)
        dense /= np.linalg.norm(dense, axis=1, keepdims=True)
        matrix = weights(distinct)
        file = SparseFile.open(tmp_path / "passes" / "1_splade" / "rows.npy", distinct, WIDTH)
        for rows in np.array_split(np.arange(distinct)[::-1], 3):
            file.put(rows, SparseRows.from_dense(matrix[rows]))
        (rows,) = read.rows
        delivery = Delivery(rows, read.digests, spec_of(), {"dense": dense}, {"splade": file})
        return SimpleNamespace(delivery=delivery, matrix=matrix[rows.texts], file=file, out=tmp_path / "out")

    return make


def written(made, formats=("npy", "parquet")):
    return {path.name: path for path in files.write(made.delivery, formats, made.out, {})}


def test_sparse_vectors_are_exported_as_the_matrix_that_scipy_reads(made):
    this = made()
    path = written(this)["splade.npz"]
    matrix = scipy.sparse.load_npz(path)
    assert (matrix.format, matrix.shape, matrix.dtype, matrix.has_canonical_format) == (
        "csr",
        (len(TEXTS), WIDTH),
        np.float32,
        True,
    )
    np.testing.assert_array_equal(matrix.toarray(), np.nan_to_num(this.matrix))
    with np.load(path) as arrays:
        assert arrays["parked"].tolist() == [PARKED]
        assert arrays["indices"].dtype == np.int32


def test_a_line_of_json_has_the_terms_of_its_row_and_lacks_what_is_parked(made):
    this = made()
    this.delivery.dense["dense"][2] = np.nan
    lines = [json.loads(line) for line in written(this, ["jsonl"])["points.jsonl"].open()]
    assert len(lines) == len(TEXTS)
    for row, (line, weighed) in enumerate(zip(lines, this.matrix, strict=True)):
        assert ("dense" in line["vectors"]) == ("fused" in line["vectors"]) == (this.delivery.rows.texts[row] != 2)
        if np.isnan(weighed).any():
            assert line["sparse"] == {}
            continue
        terms = line["sparse"]["splade"]
        assert terms["indices"] == np.flatnonzero(weighed).tolist()
        np.testing.assert_array_equal(terms["values"], weighed[weighed > 0].astype(np.float64))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"text":"', b'"text":"!'),
        (b'"indices":[', b'"indices":[0,'),
        (b'"dense":[', b'"dense":[1e-9,'),
        (b"}\n", b"}\n{}\n"),
    ],
)
def test_lines_that_differ_from_what_was_planned_are_seen(made, tmp_path, old, new):
    delivery, path = made().delivery, tmp_path / "lines"
    (kind,) = formats.files_of(delivery, ["jsonl"]).values()
    with kind.written(path) as take:
        for window in delivery.windows():
            take(window)
    whole = path.read_bytes()
    place = whole.rfind(old)
    path.write_bytes(whole[:place] + new + whole[place + len(old) :])
    with kind.read(path) as check:
        assert [bool(check(window)) for window in delivery.without_chunks()] == [True]


def test_a_column_of_the_table_has_the_terms_of_each_row_and_null_where_it_is_parked(made):
    this = made()
    table = pq.read_table(written(this)["points.parquet"])
    assert table.column_names[-3:] == ["dense", "fused", "splade"]
    assert table.schema.field("splade").type == pa.struct(
        [("indices", pa.list_(pa.int32())), ("values", pa.list_(pa.float32()))]
    )
    for row, found in enumerate(table["splade"].to_pylist()):
        if row == PARKED:
            assert found is None
            continue
        terms = np.flatnonzero(this.matrix[row])
        assert found == {"indices": terms.tolist(), "values": this.matrix[row][terms].tolist()}
    assert table["splade"][EMPTY].as_py() == {"indices": [], "values": []}
    assert table["splade"][9] == table["splade"][3]  # a text that occurs twice


def test_more_rows_than_a_window_come_in_order_and_the_same_bytes_each_time(made, monkeypatch):
    for module in (windows, arrays, tables):
        monkeypatch.setattr(module, "WINDOW", 4)
    this = made()
    first = {name: path.read_bytes() for name, path in written(this).items()}
    np.testing.assert_array_equal(scipy.sparse.load_npz(this.out / "splade.npz").toarray(), np.nan_to_num(this.matrix))
    column = pq.read_table(this.out / "points.parquet")["splade"].to_pylist()
    assert [len(each["indices"]) for each in column if each] == [
        int((row > 0).sum()) for row in this.matrix if np.isfinite(row).all()
    ]
    assert {name: path.read_bytes() for name, path in written(this).items()} == first
    assert sorted(path.name for path in this.out.iterdir()) == sorted(first)


@pytest.mark.parametrize("formats", [["npy"], ["parquet"], []])
def test_only_the_chosen_formats_have_sparse_vectors(made, formats):
    names = {"npy": {"dense.npy", "fused.npy", "splade.npz"}, "parquet": {"points.parquet"}}
    assert set(written(made(), formats)) == {name for each in formats for name in names[each]}


def test_a_model_of_which_every_row_is_parked_or_empty_is_exported(made):
    this = made()
    for value in (np.nan, 0):
        this.file.put(
            np.arange(len(this.delivery.digests)), SparseRows.from_dense(np.full((9, WIDTH), value, np.float32))
        )
        paths = written(this)
        assert scipy.sparse.load_npz(paths["splade.npz"]).nnz == 0
        column = pq.read_table(paths["points.parquet"])["splade"]
        assert column.null_count == (len(TEXTS) if np.isnan(value) else 0)


def test_vectors_whose_terms_are_torn_are_not_delivered(made):
    this = made()
    terms = this.file.path.with_name("terms.bin")
    terms.write_bytes(terms.read_bytes()[:-8])
    with pytest.raises(InterlockError, match=r"terms\.bin is damaged: --resume"):
        written(this)
    assert not list(this.out.iterdir())


CHANGES = {
    "value": lambda rows: SparseRows(rows.starts, rows.indices, np.nextafter(rows.values, np.float32(9)), rows.parked),
    "index": lambda rows: SparseRows(rows.starts, rows.indices[::-1].copy(), rows.values, rows.parked),
    "parked": lambda rows: SparseRows(rows.starts, rows.indices, rows.values, ~rows.parked & (rows.counts == 0)),
    "boundary": lambda rows: SparseRows(
        np.minimum(rows.starts, rows.starts[1]), rows.indices, rows.values, rows.parked
    ),
}


@pytest.mark.parametrize("name", ["splade.npz", "points.parquet"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_with_other_terms_than_the_plan_says_is_not_delivered(made, monkeypatch, name, change):
    this, terms, walks = made(), Delivery.terms, []

    def otherwise(self, rows):
        walks.append(rows)
        found = terms(self, rows)
        return {each: CHANGES[change](sparse) for each, sparse in found.items()} if len(walks) == 1 else found

    monkeypatch.setattr(Delivery, "terms", otherwise)
    with pytest.raises(InterlockError, match=rf"{name} differs from what was written"):
        written(this, ["npy" if name.endswith("npz") else "parquet"])
    assert not list(this.out.iterdir())


@pytest.mark.parametrize("harm", [lambda data: data[: len(data) // 2], lambda data: data.replace(b"csr", b"csc", 1)])
def test_an_archive_that_is_no_such_matrix_when_it_is_read_back_is_not_delivered(made, monkeypatch, harm):
    this, read = made(), arrays.Npz.read

    def damaged(*_):
        (partial,) = this.out.glob(".splade.npz.*")
        partial.write_bytes(harm(partial.read_bytes()))
        return read(*_)

    monkeypatch.setattr(arrays.Npz, "read", damaged)
    with pytest.raises(InterlockError, match=r"splade\.npz differs from what was written"):
        written(this, ["npy"])
    assert not list(this.out.iterdir())


def test_a_disk_that_is_full_while_terms_are_gathered_is_told_and_nothing_is_left(made, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    this = made()
    monkeypatch.setattr(arrays.np, "ascontiguousarray", refuse)
    with pytest.raises(InterlockError, match=r"cannot write .*splade\.npz: No space left.*free space"):
        written(this, ["npy"])
    assert not list(this.out.iterdir())


def manifest(roster=ROSTER):
    return spec_of(roster).manifest


def open_store(directory, sparse=("splade",), **more):
    return Store.open_for_write(directory, "docs", {"dense": 4, "fused": 4}, manifest(**more), sparse)


def stored(directory, delivery):
    """What the engine itself has of each row."""
    engine = edge.EdgeShard.load(str(directory / "docs"), None)
    ids = [windows.uuid_of(point) for point in delivery.rows.points.tolist()]
    records = {str(each.id): each.vector for each in engine.retrieve(ids, with_payload=True, with_vector=True)}
    engine.close()
    return [records[each] for each in ids]


def fill(store, delivery):
    for window in delivery.windows():
        put(points_of(window, store.dims), store)


def test_a_store_has_the_very_terms_of_each_row_beside_its_dense_vectors(made, tmp_path):
    this = made()
    with open_store(tmp_path / "store") as store:
        fill(store, this.delivery)
        seen = verified(this.delivery, store)
    assert (seen.ok, seen.points, seen.sampled) == (True, len(TEXTS), len(TEXTS))
    for row, vectors in enumerate(stored(tmp_path / "store", this.delivery)):
        if row in (PARKED, EMPTY):
            assert vectors.keys() == {"dense", "fused"}
            continue
        terms = np.flatnonzero(this.matrix[row])
        assert vectors["splade"].indices == terms.tolist()
        assert np.array(vectors["splade"].values, np.float32).tolist() == this.matrix[row][terms].tolist()
        np.testing.assert_allclose(vectors["dense"], this.delivery.vectors(np.array([row]))["dense"][0], atol=1e-6)


def test_the_engine_finds_by_terms_as_their_dot_product_says(made, tmp_path):
    this = made()
    with open_store(tmp_path) as store:
        fill(store, this.delivery)
    engine = edge.EdgeShard.load(str(tmp_path / "docs"), None)
    query = np.flatnonzero(this.matrix[0])[:3]
    request = edge.QueryRequest(
        limit=3,
        query=edge.Query.Nearest(edge.SparseVector(query.tolist(), [1.0, 2.0, 3.0]), using="splade"),
    )
    scores = [point.score for point in engine.query(request)]
    engine.close()
    expected = np.sort(np.nan_to_num(this.matrix)[:, query] @ [1.0, 2.0, 3.0])[::-1]
    np.testing.assert_allclose(scores, expected[:3], rtol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        lambda terms: {},
        lambda terms: {"splade": Terms(terms.indices, np.nextafter(terms.values, np.float32(9)))},
        lambda terms: {"splade": Terms(terms.indices + 1, terms.values)},
        lambda terms: {"splade": Terms(terms.indices[1:], terms.values[1:])},
    ],
    ids=["lost", "other weights", "other terms", "one fewer"],
)
def test_a_store_with_other_terms_than_were_delivered_is_not_called_verified(made, tmp_path, change):
    this = made()
    with open_store(tmp_path) as store:
        fill(store, this.delivery)
        (point,) = [*store.read([windows.uuid_of(this.delivery.rows.points.tolist()[3])]).values()]
        put([replace(point, sparse=change(point.sparse["splade"]))], store)
        seen = verified(this.delivery, store)
    assert not seen.ok
    assert "1 with other vectors than delivered" in seen.detail


def test_a_row_without_terms_that_has_some_in_the_store_is_not_called_verified(made, tmp_path):
    this = made()
    with open_store(tmp_path) as store:
        fill(store, this.delivery)
        (point,) = [*store.read([windows.uuid_of(this.delivery.rows.points.tolist()[EMPTY])]).values()]
        put([replace(point, sparse={"splade": terms([1], [1])})], store)
        assert not verified(this.delivery, store).ok


def terms(indices, values):
    return Terms(np.array(indices, np.int32), np.array(values, np.float32))


def test_terms_count_among_the_bytes_that_a_disk_must_have_room_for(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(shard, "require_room", lambda _, size: asked.append(size))
    with open_store(tmp_path) as store:
        put([Point(ONE, {}, {}, {"splade": terms(range(1000), np.ones(1000))})], store)
    assert asked[-1] >= 8000


@pytest.mark.parametrize(("before", "now"), [(["splade"], []), ([], ["splade"]), (["splade"], ["other"])])
def test_a_store_of_other_sparse_vectors_is_refused_by_its_manifest_and_by_its_engine(tmp_path, before, now):
    roster = [ENTRY, *(changed(SPLADE, model=name) for name in before)]
    open_store(tmp_path, before, roster=roster).close()
    other = [ENTRY, *(changed(SPLADE, model=name) for name in now)]
    with pytest.raises(UsageError, match=r"was written with other settings .*sparse"):
        open_store(tmp_path, now, roster=other)
    with pytest.raises(UsageError, match=r"was written with other settings .*sparse"):
        check_store(spec_of(other, "two"), tmp_path)
    told = manifest(roster)
    for asked in (stores.check, lambda *given: Store.open_for_write(*given).close()):
        with pytest.raises(UsageError, match="other sparse vectors"):
            asked(tmp_path, "docs", {"dense": 4, "fused": 4}, told, now)
    check_store(spec_of(roster, "two"), tmp_path)


def test_a_manifest_says_what_its_sparse_vectors_are_and_one_without_any_reads_as_before():
    plain = json.loads(json.dumps(manifest()))
    assert plain["sparse"] == [
        {
            "model": "splade",
            "fingerprint": "f",
            "dim": WIDTH,
            "dtype": "float32",
            "max_tokens": 128,
            "query_prompt": "",
            "document_prompt": "",
        }
    ]
    dims = {"dense": 4, "fused": 4}
    assert [each.model for each in read_manifest(plain, dims, ["splade"]).sparse] == ["splade"]
    with pytest.raises(UsageError, match="sparse vectors do not match the store: splade"):
        read_manifest(plain, dims)
    with pytest.raises(UsageError, match="lists a model twice"):
        read_manifest({**plain, "sparse": plain["sparse"] * 2}, dims, ["splade"])
    old = manifest([ENTRY])
    assert "sparse" not in old
    assert read_manifest(old, dims).sparse == []


@pytest.mark.parametrize("times", [1, 2])
def test_a_collection_is_delivered_with_its_sparse_vectors_as_often_as_asked(made, tmp_path, times):
    this, told = made(), []
    run = RunDirectory(tmp_path / "run")
    for _ in range(times):
        deliver(this.delivery, Destination(run, ["npy", "parquet"], tmp_path / "store"), told.append)
    written = {each.path.rsplit("/")[-1] for each in told if isinstance(each, ArtefactWritten)}
    assert written == {"dense.npy", "fused.npy", "splade.npz", "points.parquet"}
    (*_, seen) = (each for each in told if isinstance(each, StoreVerified))
    assert (seen.ok, seen.points, seen.stale) == (True, len(TEXTS), 0)


WRITER = """
import sys
from pathlib import Path
from uuid import UUID
import numpy as np
from interlock.engine.vectors.points import Point, Terms
from interlock.engine.targets.embedded import Store
from interlock.engine.targets.target import deliver as put
store = Store.open_for_write(Path(sys.argv[1]), "docs", {"m": 4}, {"v": 1}, ["splade"])
def points():
    for row in range(20_000):
        if row % 256 == 0:
            print(row, flush=True)
        terms = Terms(np.arange(row % 7 + 1, dtype=np.int32), np.full(row % 7 + 1, row + 1, np.float32))
        yield Point(str(UUID(int=row + 1)), {}, {"m": np.ones(4, np.float32)}, {"splade": terms})
put(points(), store)
"""


@pytest.mark.parametrize("batches", [2, 9])
def test_terms_of_every_whole_batch_survive_a_kill(tmp_path, batches):
    with subprocess.Popen([sys.executable, "-c", WRITER, tmp_path], stdout=subprocess.PIPE, text=True) as child:
        for _ in range(batches + 1):
            child.stdout.readline()
        child.kill()
    with Store.open_for_write(tmp_path, "docs", {"m": 4}, {"v": 1}, ["splade"]) as store:
        whole = (batches - 1) * 256  # the one after was asked for, and maybe is not there yet
        found = [*store.read([str(UUID(int=row + 1)) for row in range(whole)]).values()]
    assert [len(point.sparse["splade"].indices) for point in found] == [row % 7 + 1 for row in range(whole)]
    assert all((point.sparse["splade"].values == row + 1).all() for row, point in enumerate(found))


@pytest.mark.parametrize("fusion", ["concat", "named"])
def test_a_store_with_sparse_vectors_is_searched_by_its_dense_ones(tmp_path, tiny_a, monkeypatch, fusion):
    def with_terms(delivery, to, emit):
        texts = len(delivery.digests)
        file = SparseFile.open(tmp_path / "rows.npy", texts, WIDTH)
        file.put(np.arange(texts), SparseRows.from_dense(weights(texts)))
        both = replace(delivery, sparse={"splade": file}).specified(roster=[*delivery.spec.roster, SPLADE])
        deliver(both, to, emit)

    def hits(store):
        chunks = corpus(tmp_path / "in", {"Docs": {"a.jsonl": TEXTS}})
        flags = {"roster": str(tiny_a), "out": str(tmp_path / "runs"), "qdrant": str(store), "fusion": fusion}
        assert running.Run(chunks, load(flags, {}, None), Controls()).go() == ExitCode.COMPLETED
        lessor = Lessor(choose("cpu"), 4 << 30)
        with StoreSearcher(store, None, {}, Policy(offline=True), lessor) as searcher:
            return [(hit.id, hit.score) for hit in searcher.search([TEXTS[5]], Ask(4, hybrid=Hybrid.OFF))[0].hits]

    dense = hits(tmp_path / "dense")
    monkeypatch.setattr(sessions, "deliver", with_terms)
    assert hits(tmp_path / "both") == dense
    with Store.open_for_read(tmp_path / "both", "docs") as store:
        assert store.sparse == {"splade", "bm25"}


KILLED = """
import os, signal
from interlock.engine.targets.embedded import Store
upsert, sent = Store.upsert, []
def killed(self, points, size):
    sent.append(1)
    if len(sent) == {window}:  # some windows are in the store and in the files
        os.kill(os.getpid(), signal.SIGKILL)
    return upsert(self, points, size)
Store.upsert = killed
"""


@pytest.fixture(scope="module")
def splade(tmp_path_factory):
    return tiny_sparse(tmp_path_factory.mktemp("models") / "tiny-splade")


@pytest.mark.parametrize("window", [1, 2])
def test_a_delivery_that_is_killed_midway_is_whole_after_resume(tmp_path, tiny_a, splade, window):
    chunks = corpus(
        tmp_path / "in", {"Docs": {"a.jsonl": [f"{number % 97} the {number % 3}" for number in range(2500)]}}
    )
    flags = {"roster": str(tiny_a), "sparse": str(splade), "out": str(tmp_path / "runs"), "run_id": "r"}
    flags["qdrant"] = str(tmp_path / "store")
    words = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", value)]
    child = start("run", chunks, *words, "--no-ui", first=KILLED.format(window=window))
    _, said = child.communicate(120)
    assert child.returncode == -signal.SIGKILL, said
    exports = tmp_path / "runs" / "r" / "exports" / "Docs"
    assert not list(exports.glob("[!.]*"))
    assert running.Run(chunks, load({**flags, "resume": True}, {}, None), Controls()).go() == ExitCode.COMPLETED

    matrix = scipy.sparse.load_npz(exports / "tiny-splade.npz")
    table = pq.read_table(exports / "points.parquet").to_pydict()
    assert matrix.nnz > 0
    for row, found in enumerate(table["tiny-splade"]):
        cut = slice(*matrix.indptr[row : row + 2])
        assert found == {"indices": matrix.indices[cut].tolist(), "values": matrix.data[cut].tolist()}
    engine = edge.EdgeShard.load(str(tmp_path / "store" / "docs"), None)
    records = engine.retrieve(table["id"], with_payload=True, with_vector=True)
    engine.close()
    held = {str(each.id): each.vector.get("tiny-splade") for each in records}
    for point, terms in zip(table["id"], table["tiny-splade"], strict=True):
        assert held[point].indices == terms["indices"]
        assert held[point].values == terms["values"]
    counts = WordCounts(Words(language="english"))
    counts.add(table["text"])
    bm25 = counts.bm25(np.arange(len(table["text"]), dtype=np.int32))
    for record in records:
        found = record.vector["bm25"]
        wanted = bm25.of(record.payload["text"])["bm25"]
        assert (found.indices, found.values) == (wanted.indices.tolist(), wanted.values.tolist())
    assert sorted(path.name for path in exports.iterdir()) == [
        "fused.npy",
        "points.parquet",
        "tiny-splade.npz",
    ]


def test_a_run_with_the_store_of_another_sparse_model_is_refused_before_any_work(tmp_path, tiny_a, splade):
    chunks = corpus(tmp_path / "in", {"Docs": {"a.jsonl": TEXTS}})
    flags = {"roster": str(tiny_a), "out": str(tmp_path / "runs"), "qdrant": str(tmp_path / "store"), "run_id": "r"}
    assert running.Run(chunks, load({**flags, "sparse": str(splade)}, {}, None), Controls()).go() == ExitCode.COMPLETED
    with pytest.raises(UsageError, match=r"was written with other settings .*sparse is missing"):
        running.Run(chunks, load({**flags, "run_id": "other"}, {}, None), Controls()).go()
    assert [path.name for path in (tmp_path / "runs").iterdir() if not path.name.startswith(".")] == ["r"]


def test_the_manifest_of_a_store_with_terms_of_a_dense_model_reads_by_their_name():
    both = msgspec.structs.replace(ENTRY, outputs=("dense", "sparse"), words=WIDTH)
    found = read_manifest(manifest([both]), {"dense": 4, "fused": 4}, ["dense-sparse"])
    assert [(each.model, each.dim) for each in found.sparse] == [("dense-sparse", WIDTH)]
