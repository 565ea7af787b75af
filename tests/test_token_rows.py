"""Token vectors: stored in fewer bytes, pooled, compared with a query, and on disk: torn, appended to, full."""

import os
import resource
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from interlock.engine.compute.parts.outputs import PassFiles
from interlock.engine.compute.parts.tokens import NO_TOKENS, TokenFile, TokenRows, pool, pool_tokens, record_of
from interlock.engine.errors import DiskError, InterlockError
from interlock.engine.evaluation.nearest import maxsim

DIM = 16
PRECISIONS = ("int8", "float16", "bit")
COUNTS = [3, 0, 5, 1]
ROWS = np.array([4, 0, 5, 2])


def starts_of(counts):
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def units(tokens, seed=0, dim=DIM):
    vectors = np.random.default_rng(seed).standard_normal((tokens, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def some(counts=COUNTS, precision="int8", seed=0):
    return TokenRows.from_vectors(units(sum(counts), seed), starts_of(counts), precision)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "0_m" / "token_rows.npy"


def file_at(path, precision="int8"):
    return TokenFile.open(path, 6, DIM, precision)


def tokens_of(path):
    return path.with_name("tokens.bin")


@contextmanager
def full_disk(size):
    """No file grows beyond `size` bytes; for no longer than the block, because it binds whoever writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# How a token is stored


@pytest.mark.parametrize(("precision", "bytes_each"), [("int8", DIM + 4), ("float16", 2 * DIM), ("bit", DIM // 8)])
def test_a_token_takes_as_many_bytes_as_its_precision_says(precision, bytes_each):
    assert some(precision=precision).records.nbytes == sum(COUNTS) * bytes_each


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-45, 1e-30, 1e-3, 1, 100]))
def test_a_number_of_an_int8_token_is_off_by_at_most_half_its_scale(seed, size):
    vectors = (units(7, seed) * np.float32(size)).astype(np.float32)
    rows = TokenRows.from_vectors(vectors, np.array([0, 7]), "int8")
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    # The last number of a scale this small is itself no longer exact.
    assert (np.abs(rows.to_float32() - vectors) <= largest / 254 * 1.0001 + 128 * np.float32(1e-45)).all()


def test_a_float16_token_is_the_nearest_of_its_numbers_and_a_bit_tells_the_side_of_zero():
    vectors = units(9)
    half, bits = (some(precision=each).to_float32() for each in ("float16", "bit"))
    np.testing.assert_array_equal(half, vectors.astype(np.float16))
    np.testing.assert_allclose(bits, np.where(vectors > 0, 1, -1) / np.sqrt(DIM), rtol=1e-6)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_token_of_zeros_is_no_error(precision):
    with np.errstate(all="raise"):
        zeros = TokenRows.from_vectors(np.zeros((2, DIM), np.float32), np.array([0, 2]), precision)
    assert np.isfinite(zeros.to_float32()).all()
    assert not zeros.parked.any()


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_row_with_a_token_that_is_not_finite_is_parked_and_its_neighbours_stay(wrong):
    vectors = units(9)
    vectors[4, 3] = wrong  # the second token of the third row
    rows = TokenRows.from_vectors(vectors, starts_of(COUNTS), "float16")
    assert rows.parked.tolist() == [False, False, True, False]
    assert rows.counts.tolist() == [3, 0, 0, 1]
    np.testing.assert_array_equal(rows.to_float32(), vectors[[0, 1, 2, 8]].astype(np.float16))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.randoms(), st.sampled_from(PRECISIONS))
def test_rows_taken_apart_in_any_order_and_joined_are_the_same_rows(counts, random, precision):
    rows = some(counts, precision)
    order = np.array(random.sample(range(len(counts)), len(counts)))
    pieces = [(places, rows.taken(places)) for places in np.array_split(order, 3)]
    again = NO_TOKENS.join(len(counts), pieces)
    assert not again.unlike(rows).any()
    assert again.crc() == rows.crc()


def test_a_row_of_no_piece_is_parked():
    rows = NO_TOKENS.join(4, [(np.array([2]), some([3]))])
    assert rows.parked.tolist() == [True, True, False, True]
    assert rows.counts.tolist() == [0, 0, 3, 0]
    assert NO_TOKENS.join(2, []).parked.all()


def test_rows_that_differ_in_one_bit_in_length_or_in_precision_are_unlike():
    rows, other = some(), some()
    assert not rows.unlike(other).any()
    other.records["values"][8, 0] ^= 1
    assert rows.unlike(other).tolist() == [False, False, False, True]
    assert rows.crc() != other.crc()
    assert rows.unlike(some([3, 1, 4, 1])).tolist() == [False, True, True, False]
    assert rows.unlike(some(precision="float16")).tolist() == [True, False, True, True]


# On disk


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_batch_that_was_put_is_read_again(path, precision):
    batches, rows = [ROWS, np.array([3, 1])], [some(precision=precision), some([2, 6], precision, 1)]
    file = file_at(path, precision)
    crcs = dict(enumerate(map(file.put, batches, rows)))
    file.sync()
    again = file_at(path, precision)
    assert PassFiles({"tokens": again}).damaged(batches, crcs) == []
    for places, expected in zip(batches, rows, strict=True):
        assert not again.take(places).unlike(expected).any()


def test_a_new_file_has_parked_rows_only_and_a_row_without_tokens_is_not_parked(path):
    file = file_at(path)
    assert file.take(np.arange(6)).parked.all()
    file.put(ROWS, some())
    assert file.take(np.arange(6)).parked.tolist() == [False, True, False, True, False, False]


@pytest.mark.parametrize("cut", [1, DIM, DIM + 4, 3 * (DIM + 4), 4 * (DIM + 4)])
def test_tokens_cut_off_cost_their_batch_only_and_what_follows_is_appended_after(path, cut):
    first, second, later = ROWS, np.array([1, 3]), some([1, 3], seed=1)
    file = file_at(path)
    crcs = {0: file.put(first, some()), 1: file.put(second, later)}
    os.truncate(tokens_of(path), tokens_of(path).stat().st_size - cut)
    again = file_at(path)
    assert PassFiles({"tokens": again}).damaged([first, second], crcs) == [1]
    with pytest.raises(InterlockError, match=r"tokens\.bin is damaged"):
        again.take(second)
    assert again.put(second, later) == crcs[1]
    assert PassFiles({"tokens": file_at(path)}).damaged([first, second], crcs) == []
    assert not again.take(first).unlike(some()).any()


def test_what_a_killed_process_wrote_behind_the_last_row_is_never_pointed_at(path):
    crc = file_at(path).put(ROWS, some())
    with tokens_of(path).open("ab") as handle:
        handle.write(b"half a tok")
    file = file_at(path)
    file.put(np.array([1]), some([2], seed=1))
    assert file.crc(ROWS) == crc
    assert not file.take(np.array([1])).unlike(some([2], seed=1)).any()


def test_tokens_that_are_gone_or_of_another_file_have_another_checksum(path):
    crc = file_at(path).put(ROWS, some())
    file = file_at(path)
    tokens_of(path).unlink()
    assert file.crc(ROWS) != crc
    assert file_at(path).crc(ROWS) != crc
    tokens_of(path).write_bytes(os.urandom(9 * (DIM + 4)))
    assert file_at(path).crc(ROWS) != crc


def test_a_row_table_that_points_anywhere_is_no_error_but_another_checksum(path):
    file = file_at(path)
    crc = file.put(ROWS, some())
    for first, count in ((2**62, 2**62), (-2, 3), (-9, 0), (0, -1), (1, 9), (2**63 - 1, 1)):
        file.table[4] = first, count
        assert file.crc(ROWS) != crc


def test_a_scale_that_is_no_number_is_told_when_it_is_read(path):
    file = file_at(path)
    file.put(ROWS, some())
    np.memmap(tokens_of(path), record_of("int8", DIM), "r+")["scale"][5] = np.nan
    with pytest.raises(InterlockError, match=r"tokens\.bin is damaged"):
        file.take(ROWS)


def test_a_full_disk_names_the_file_and_what_was_there_stays(path):
    file = file_at(path)
    crc = file.put(ROWS, some())
    with full_disk(200), pytest.raises(DiskError, match=r"cannot write .*tokens\.bin: .*"):
        file.put(np.array([1]), some([5], seed=1))
    assert file.crc(ROWS) == crc
    assert file.take(np.array([1])).parked.all()
    file.put(np.array([1]), some([5], seed=1))
    assert file.take(np.array([1])).counts.tolist() == [5]


# Pooled


@pytest.mark.parametrize(("tokens", "factor", "left"), [(9, 2, 5), (9, 3, 3), (8, 4, 2), (1, 5, 1), (0, 2, 0)])
def test_pooling_leaves_one_vector_of_unit_length_for_so_many_tokens_rounded_up(tokens, factor, left):
    vectors, starts = pool_tokens(units(tokens), np.array([0, tokens]), factor)
    assert starts.tolist() == [0, left]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(3, 30), st.integers(2, 4))
def test_a_pooled_vector_is_the_mean_of_a_cluster_by_ward_on_cosine_distances(seed, tokens, factor):
    vectors, clusters = units(tokens, seed), -(-tokens // factor)
    of = fcluster(linkage(pdist(vectors.astype(np.float64), "cosine"), "ward"), clusters, "maxclust")
    means = np.array([vectors[of == each].mean(axis=0) for each in dict.fromkeys(of)])
    expected = means / np.linalg.norm(means, axis=1, keepdims=True)
    np.testing.assert_allclose(pool(vectors, clusters), expected, atol=1e-5)


def test_tokens_that_are_alike_are_pooled_and_the_others_stay_in_their_order():
    one, two, three = units(3)
    np.testing.assert_allclose(pool(np.array([one, two, one, three, one]), 3), [one, two, three], atol=1e-6)


def test_each_text_is_pooled_by_itself_whatever_stands_beside_it():
    vectors = units(12)
    together, starts = pool_tokens(vectors, np.array([0, 7, 7, 12]), 2)
    alone = [
        pool_tokens(vectors[cut], np.array([0, cut.stop - cut.start]), 2)[0] for cut in (slice(0, 7), slice(7, 12))
    ]
    assert starts.tolist() == [0, 4, 4, 7]
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_a_text_with_a_token_that_is_not_finite_is_left_to_be_parked():
    vectors = units(6)
    vectors[2, 0] = np.nan
    assert TokenRows.from_vectors(*pool_tokens(vectors, np.array([0, 6]), 2), "int8").parked.all()


# Compared with a query


def by_formula(query, rows):
    cuts = [rows.to_float32()[begin:end] for begin, end in zip(rows.starts, rows.starts[1:], strict=False)]
    return [sum(max(float(q @ d) for d in each) for q in query) if len(each) else np.nan for each in cuts]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_score_is_the_sum_of_the_largest_products_and_there_is_none_without_tokens(precision, monkeypatch):
    query, rows = units(5, seed=7), some([3, 0, 5, 1, 12, 0, 2], precision)
    expected = by_formula(query, rows)
    np.testing.assert_allclose(maxsim(query, rows), expected, atol=1e-5)
    monkeypatch.setattr("interlock.engine.evaluation.nearest.TOKENS", 4)  # texts in several slices, one larger than all
    np.testing.assert_allclose(maxsim(query, rows), expected, atol=1e-5)


def test_a_parked_text_has_no_score_and_costs_the_others_nothing():
    vectors = units(9)
    vectors[0] = np.nan
    scores = maxsim(units(4, seed=3), TokenRows.from_vectors(vectors, starts_of(COUNTS), "int8"))
    assert np.isnan(scores).tolist() == [True, True, False, False]


def test_a_query_without_tokens_scores_nothing_and_no_texts_have_no_scores():
    assert maxsim(units(0), some([2, 1])).tolist() == [0, 0]
    assert maxsim(units(2), some([])).tolist() == []
    assert np.isnan(maxsim(units(2), NO_TOKENS.join(2, []))).all()
