"""The sparse vectors of a pass on disk: written, read again, torn, appended to, and refused by a full disk."""

import os
import resource
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from interlock.engine.compute.parts.outputs import PassFiles
from interlock.engine.compute.parts.terms import SparseFile, SparseRows
from interlock.engine.errors import DiskError, InterlockError

WIDTH = 5
NAN = np.full(WIDTH, np.nan, np.float32)
DENSE = np.array([[0, 0.5, 0, 0, 2], [0] * WIDTH, NAN, [1, 0, 0, 0.25, 0]], np.float32)
ROWS = np.array([4, 0, 5, 2])
SOME = arrays.arrays(
    np.float32,
    st.tuples(st.integers(0, 6), st.just(WIDTH)),
    elements=st.sampled_from([0, -0.0, 1e-45, 0.5, 3.25, -1, np.nan]),
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "0_m" / "rows.npy"


sparse = SparseRows.from_dense


def file_at(path):
    return SparseFile.open(path, 6, WIDTH)


def terms_of(path):
    return path.with_name("terms.bin")


@contextmanager
def full_disk(size):
    """No file grows beyond `size` bytes; for no longer than the block, because it binds whoever writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_rows_are_kept_as_their_terms():
    rows = sparse(DENSE)
    assert (rows.starts.tolist(), rows.indices.tolist()) == ([0, 2, 2, 2, 4], [1, 4, 0, 3])
    assert (rows.values.tolist(), rows.parked.tolist()) == ([0.5, 2, 1, 0.25], [False, False, True, False])
    assert [array.dtype for array in (rows.starts, rows.indices, rows.values)] == [np.int64, np.int32, np.float32]


def test_rows_differ_by_what_they_hold_and_not_by_the_width_of_their_indices():
    one = SparseRows.from_dense(DENSE)
    wide = SparseRows(one.starts, one.indices.astype(np.int64), one.values, one.parked)
    assert not one.unlike(wide).any()
    assert not wide.unlike(one).any()
    other = SparseRows(one.starts, one.indices, one.values + np.float32(1e-7), one.parked)
    assert one.unlike(other).tolist() == [True, False, False, True]


@given(SOME)
def test_what_is_above_zero_comes_back_and_rows_that_are_not_finite_are_parked(matrix):
    expected = np.where(matrix > 0, matrix, 0)
    expected[np.isnan(matrix).any(axis=1)] = np.nan
    np.testing.assert_array_equal(sparse(matrix).to_dense(WIDTH), expected)


@given(st.lists(SOME, max_size=4), st.randoms())
def test_every_batch_that_was_put_is_read_again_in_any_order(tmp_path_factory, batches, random):
    path = tmp_path_factory.mktemp("sparse") / "rows.npy"
    texts = sum(map(len, batches))
    file = SparseFile.open(path, texts, WIDTH)
    order = list(range(texts))
    random.shuffle(order)
    places = np.split(np.array(order, np.int64), np.cumsum([len(each) for each in batches])[:-1]) if batches else []
    crcs = dict(enumerate(map(file.put, places, map(sparse, batches))))
    again = SparseFile.open(path, texts, WIDTH)
    assert PassFiles({"sparse": again}).damaged(places, crcs) == []
    for rows, matrix in zip(places, batches, strict=True):
        wanted = sparse(matrix)
        np.testing.assert_array_equal(again.take(rows).to_dense(WIDTH), wanted.to_dense(WIDTH))
        assert again.crc(rows) == wanted.crc()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.sampled_from([0.5, 1, 2])), max_size=40))
def test_a_row_has_each_index_once_with_its_largest_weight_and_none_where_it_is_parked(terms):
    wanted = np.zeros((4, 6), np.float32)
    for row, index, value in terms:
        wanted[row, index] = max(wanted[row, index], value)
    wanted[2] = np.nan
    rows, indices, values = np.array(terms, np.float32).reshape(-1, 3).T
    found = SparseRows.largest(rows.astype(np.int64), indices.astype(np.int64), values, np.arange(4) == 2)
    np.testing.assert_array_equal(found.to_dense(6), wanted)
    assert found.indices.dtype == np.int32
    assert (found.counts == (wanted > 0).sum(axis=1)).all()


@pytest.mark.parametrize(("width", "most"), [(30, 5), (1000, 5), (1000, 64), (30_522, 1000)])
def test_of_terms_that_weigh_the_same_those_are_kept_that_sentence_transformers_keeps(width, most):
    from sentence_transformers.util import select_max_active_dims

    random = np.random.default_rng(width + most)
    matrix = np.zeros((8, width), np.float32)
    for row, count in zip(matrix, [0, 1, most - 1, most, most + 1, 2 * most, 4 * most, width], strict=True):
        row[random.permutation(width)[:count]] = random.integers(1, 4, min(count, width))
    found = sparse(matrix).heaviest(most, width)
    np.testing.assert_array_equal(found.to_dense(width), select_max_active_dims(matrix, most).numpy())


def test_a_new_file_has_parked_rows_only_and_an_empty_row_is_not_parked(path):
    file = file_at(path)
    assert file.take(np.arange(6)).parked.all()
    file.put(ROWS, sparse(DENSE))
    file.sync()
    found = file_at(path).take(np.arange(6))
    assert found.parked.tolist() == [False, True, False, True, False, True]
    assert found.counts.tolist() == [0, 0, 2, 0, 2, 0]


def test_rows_that_are_empty_parked_or_were_never_written_have_different_checksums(path):
    file = file_at(path)
    never = file.crc(ROWS[:1])
    assert (
        len(
            {
                never,
                file.put(ROWS[:1], sparse(DENSE[1:2])),
                file.put(ROWS[:1], sparse(DENSE[2:3])),
            }
        )
        == 3
    )


def test_a_batch_that_is_computed_again_is_read_as_it_was_written_last(path):
    file = file_at(path)
    file.put(ROWS, sparse(DENSE))
    file.put(ROWS, sparse(DENSE[::-1]))
    np.testing.assert_array_equal(file.take(ROWS).to_dense(WIDTH), DENSE[::-1])


@pytest.mark.parametrize("cut", range(1, 33))
def test_terms_cut_off_anywhere_cost_their_batch_only_and_what_follows_is_appended_after(path, cut):
    first, second = ROWS, np.array([1, 3])
    file = file_at(path)
    crcs = {0: file.put(first, sparse(DENSE)), 1: file.put(second, sparse(DENSE[[3, 0]]))}
    os.truncate(terms_of(path), terms_of(path).stat().st_size - cut)
    again = file_at(path)
    assert PassFiles({"sparse": again}).damaged([first, second], crcs) == [1]
    with pytest.raises(InterlockError, match=r"terms\.bin is damaged"):
        again.take(second)
    assert again.put(second, sparse(DENSE[[3, 0]])) == crcs[1]
    assert PassFiles({"sparse": file_at(path)}).damaged([first, second], crcs) == []
    np.testing.assert_array_equal(again.take(first).to_dense(WIDTH), DENSE)


def test_what_a_killed_process_wrote_behind_the_last_row_is_never_pointed_at(path):
    crc = file_at(path).put(ROWS, sparse(DENSE))
    with terms_of(path).open("ab") as handle:
        handle.write(b"half a reco")
    file = file_at(path)
    file.put(np.array([1]), sparse(DENSE[:1]))
    assert file.crc(ROWS) == crc
    np.testing.assert_array_equal(file.take(np.array([1])).to_dense(WIDTH), DENSE[:1])


def test_terms_that_are_gone_or_of_another_file_have_another_checksum(path):
    crc = file_at(path).put(ROWS, sparse(DENSE))
    file = file_at(path)
    terms_of(path).unlink()
    assert file.crc(ROWS) != crc
    assert file_at(path).crc(ROWS) != crc
    terms_of(path).write_bytes(os.urandom(32))
    assert file_at(path).crc(ROWS) != crc


def test_a_row_table_cut_short_is_made_whole_and_just_its_last_rows_are_lost(path):
    file = file_at(path)
    batches = [np.array([0, 1, 2]), np.array([3, 4, 5])]
    crcs = {index: file.put(rows, sparse(DENSE[[0, 3, 0]])) for index, rows in enumerate(batches)}
    os.truncate(path, path.stat().st_size - 20)
    assert PassFiles({"sparse": file_at(path)}).damaged(batches, crcs) == [1]


def test_a_row_table_that_points_anywhere_is_no_error_but_another_checksum(path):
    file = file_at(path)
    crc = file.put(ROWS, sparse(DENSE))
    for first, count in ((2**62, 2**62), (-2, 3), (-9, 0), (0, -1), (1, 4), (2**63 - 1, 1)):
        file.table[4] = first, count
        assert file.crc(ROWS) != crc


def test_a_row_table_of_another_shape_or_that_is_none_is_refused(path):
    file_at(path)
    with pytest.raises(InterlockError, match=r"rows\.npy has \(6, 2\) rows of int64, expected \(7, 2\)"):
        SparseFile.open(path, 7, WIDTH)
    path.write_bytes(b"garbage" * 100)
    with pytest.raises(InterlockError, match=r"rows\.npy is damaged .*delete it and --resume"):
        file_at(path)
    path.unlink()
    assert file_at(path).take(np.arange(6)).parked.all()


@pytest.mark.parametrize(("change", "at"), [(99, 0), (-1, 4), (1, 4)])
def test_terms_that_are_no_row_are_told_when_they_are_read(path, change, at):
    file = file_at(path)
    file.put(ROWS, sparse(DENSE))
    terms = np.memmap(terms_of(path), [("index", "<i4"), ("value", "<f4")], "r+")
    terms["index"][at // 4] = change
    with pytest.raises(InterlockError, match=r"terms\.bin is damaged"):
        file.take(ROWS)


def test_a_full_disk_names_the_file_and_what_was_there_stays(path):
    file = file_at(path)
    crc = file.put(ROWS, sparse(DENSE))
    with full_disk(40), pytest.raises(DiskError, match=r"cannot write .*terms\.bin: .*"):
        file.put(np.array([1]), sparse(np.ones((1, WIDTH), np.float32)))
    assert file.crc(ROWS) == crc
    assert file.take(np.array([1])).parked.all()
    file.put(np.array([1]), sparse(np.ones((1, WIDTH), np.float32)))
    assert file.take(np.array([1])).counts.tolist() == [WIDTH]


def test_a_disk_without_room_for_the_row_table_is_told_before_anything_is_written(path):
    path.parent.mkdir()
    with full_disk(64), pytest.raises(InterlockError, match=r"rows\.npy"):
        file_at(path)
    assert not path.exists()


def test_devices_put_side_by_side(path):
    file = SparseFile.open(path, 400, WIDTH)
    batches = np.arange(400).reshape(40, 10)
    matrices = np.random.default_rng(0).random((40, 10, WIDTH)).astype(np.float32)
    crcs = {}

    def work(start):
        for index in range(start, 40, 4):
            crcs[index] = file.put(batches[index], sparse(matrices[index]))

    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert PassFiles({"sparse": file}).damaged(list(batches), crcs) == []
