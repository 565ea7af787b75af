"""Sparse vectors as they are delivered: read with the libraries whose formats they are in, never only with our own."""

import errno
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse

from interlock.engine.errors import InterlockError
from interlock.engine.intake.collections import discover
from interlock.engine.intake.corpus import read_corpus
from interlock.engine.outlet import csr, files, windows
from interlock.engine.outlet.fusion import Fusion
from interlock.engine.outlet.windows import Delivery, ModelVectors, SparseSource
from interlock.engine.passes.sparse import SparseFile, SparseRows
from tests.builders import corpus

WIDTH = 40
TEXTS = [*(f"text {number}" for number in range(9)), "text 3", "text 0"]
PARKED, EMPTY = 2, 5


def weights(texts):
    """Term weights of so many texts, one of them parked and one without terms."""
    rng = np.random.default_rng(0)
    matrix = (rng.random((texts, WIDTH)) * (rng.random((texts, WIDTH)) < 0.2)).astype(np.float32)
    matrix[PARKED], matrix[EMPTY] = np.nan, 0
    return matrix


@pytest.fixture
def made(tmp_path):
    """A collection of texts, some of them twice, with dense and sparse vectors: its delivery, and each row's text."""

    def make(texts=TEXTS):
        read = read_corpus(discover(corpus(tmp_path / "in", {"Docs": {"a.jsonl": texts}})), lambda _: None)
        distinct = len(read.digests)
        dense = np.eye(distinct, 4, dtype=np.float32) + np.float32(1e-3)
        dense /= np.linalg.norm(dense, axis=1, keepdims=True)
        matrix = weights(distinct)
        file = SparseFile(tmp_path / "passes" / "1_splade" / "rows.npy", distinct, WIDTH)
        for rows in np.array_split(np.arange(distinct)[::-1], 3):
            file.put(rows, matrix[rows])
        (rows,) = read.rows
        delivery = Delivery(
            rows,
            read.digests,
            [ModelVectors("dense", 1.0, dense, 4)],
            Fusion.CONCAT,
            [SparseSource("splade", file)],
        )
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
    for module in (windows, files):
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
        this.file.put(np.arange(len(this.delivery.digests)), np.full((9, WIDTH), value, np.float32))
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
    this, read = made(), csr.Npz.read

    def damaged(*_):
        (partial,) = this.out.glob(".splade.npz.*")
        partial.write_bytes(harm(partial.read_bytes()))
        return read(*_)

    monkeypatch.setattr(csr.Npz, "read", damaged)
    with pytest.raises(InterlockError, match=r"splade\.npz differs from what was written"):
        written(this, ["npy"])
    assert not list(this.out.iterdir())


def test_a_disk_that_is_full_while_terms_are_gathered_is_told_and_nothing_is_left(made, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    this = made()
    monkeypatch.setattr(csr.np, "ascontiguousarray", refuse)
    with pytest.raises(InterlockError, match=r"cannot write .*splade\.npz: No space left.*free space"):
        written(this, ["npy"])
    assert not list(this.out.iterdir())
