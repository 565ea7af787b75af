"""Fusion: what the fused vectors promise, against a reference written out row by row."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.engine.errors import UsageError
from interlock.engine.vectors.fusion import Fusion, fuse, fused_width, shares, truncate


def unit(rng, rows, dim):
    matrix = rng.standard_normal((rows, dim))
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


@st.composite
def ensembles(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = draw(st.integers(1, 7))
    dims = draw(st.lists(st.integers(2, 24), min_size=1, max_size=4))
    weights = draw(st.lists(st.floats(0.01, 100), min_size=len(dims), max_size=len(dims)))
    return [unit(rng, rows, dim) for dim in dims], weights


def reference(method, vectors, weights):
    """The definition, in plain Python floats, one row at a time."""
    total = math.fsum(weights)
    rows = []
    for row in range(len(vectors[0])):
        parts = [[float(x) for x in matrix[row]] for matrix in vectors]
        if method is Fusion.CONCAT:
            pairs = zip(parts, weights, strict=True)
            rows.append([math.sqrt(weight / total) * x for part, weight in pairs for x in part])
            continue
        width = min(len(part) for part in parts)
        mean = [
            sum(weight / total * part[i] for part, weight in zip(parts, weights, strict=True)) for i in range(width)
        ]
        length = math.sqrt(sum(x * x for x in mean))
        rows.append([x / length for x in mean])
    return np.array(rows)


@given(ensembles(), st.sampled_from([Fusion.CONCAT, Fusion.MEAN]))
@settings(deadline=None)
def test_a_fused_vector_equals_the_reference_and_has_unit_length(ensemble, method):
    vectors, weights = ensemble
    fused = fuse(method, vectors, weights)
    assert fused.dtype == np.float32
    assert fused.shape[1] == fused_width(method, [m.shape[1] for m in vectors], ["m"] * len(vectors))
    np.testing.assert_allclose(fused, reference(method, vectors, weights), atol=3e-5)
    np.testing.assert_allclose(np.linalg.norm(fused, axis=1), 1, atol=1e-5)


@given(ensembles())
@settings(deadline=None)
def test_the_product_of_concat_rows_is_the_weighted_mean_of_the_cosines(ensemble):
    vectors, weights = ensemble
    fused = fuse(Fusion.CONCAT, vectors, weights)
    cosines = [matrix @ matrix.T for matrix in vectors]
    expected = np.average(cosines, axis=0, weights=weights)
    np.testing.assert_allclose(fused @ fused.T, expected, atol=1e-5)


@given(ensembles(), st.sampled_from([Fusion.CONCAT, Fusion.MEAN]), st.data())
@settings(deadline=None)
def test_a_window_fused_alone_is_bit_for_bit_part_of_the_whole(ensemble, method, data):
    vectors, weights = ensemble
    cut = data.draw(st.integers(0, len(vectors[0])))
    whole = fuse(method, vectors, weights)
    windows = [fuse(method, [m[part] for m in vectors], weights) for part in (slice(cut), slice(cut, None))]
    np.testing.assert_array_equal(np.concatenate(windows), whole)


@given(ensembles(), st.floats(0.1, 1e6))
@settings(deadline=None)
def test_scaling_all_weights_changes_nothing(ensemble, factor):
    vectors, weights = ensemble
    scaled = fuse(Fusion.CONCAT, vectors, [weight * factor for weight in weights])
    np.testing.assert_allclose(scaled, fuse(Fusion.CONCAT, vectors, weights), atol=1e-6)


@pytest.mark.parametrize("method", [Fusion.CONCAT, Fusion.MEAN])
def test_a_parked_row_is_nan_when_fused_and_no_other_row(method):
    rng = np.random.default_rng(1)
    first, second = unit(rng, 4, 6), unit(rng, 4, 3)
    second[2, 1] = np.nan
    fused = fuse(method, [first, second], [1, 1])
    assert np.isnan(fused[2]).all()
    assert np.isfinite(np.delete(fused, 2, axis=0)).all()


def test_the_mean_with_the_smallest_primary_is_the_predecessors_vector():
    rng = np.random.default_rng(2)
    primary, companion = unit(rng, 5, 4), unit(rng, 5, 9)
    weights = np.array([1.0, 0.5]) / 1.5
    theirs = np.tensordot(weights, np.stack([primary, companion[:, :4]]), axes=1)
    theirs /= np.linalg.norm(theirs, axis=1, keepdims=True)
    np.testing.assert_allclose(fuse(Fusion.MEAN, [primary, companion], [1.0, 0.5]), theirs, atol=1e-6)


def test_named_fusion_makes_no_fused_vector():
    assert fuse(Fusion.NAMED, [unit(np.random.default_rng(3), 2, 4)], [1]) is None
    assert fused_width(Fusion.NAMED, [4], ["m"]) is None


def test_a_row_whose_vectors_cancel_in_the_mean_is_named():
    vectors = unit(np.random.default_rng(4), 3, 5)
    opposite = vectors.copy()
    opposite[1] *= -1
    with pytest.raises(ValueError, match=r"row 101: zero vector"):
        fuse(Fusion.MEAN, [vectors, opposite], [1, 1], first_row=100)


@pytest.mark.parametrize("weights", [[1, 0], [1, -1], [0, 0], [1, math.nan], [1, math.inf], []])
def test_a_weight_that_is_not_positive_is_refused(weights):
    with pytest.raises(UsageError, match="positive"):
        shares(weights)


def test_huge_weights_do_not_overflow():
    np.testing.assert_allclose(shares([1e308, 1e308]), [0.5, 0.5])


@pytest.mark.parametrize("value", [0.0, 3.0, math.inf])
def test_a_row_that_is_not_unit_length_is_named_with_its_model(value):
    vectors = unit(np.random.default_rng(5), 3, 4)
    vectors[2] = value
    with pytest.raises(ValueError, match="row 2: model 1"):
        fuse(Fusion.CONCAT, [unit(np.random.default_rng(6), 3, 4), vectors], [1, 1])


def test_shapes_that_differ_are_refused():
    rng = np.random.default_rng(7)
    with pytest.raises(ValueError, match="same rows"):
        fuse(Fusion.CONCAT, [unit(rng, 2, 4), unit(rng, 3, 4)], [1, 1])
    with pytest.raises(ValueError, match="one weight each"):
        fuse(Fusion.CONCAT, [unit(rng, 2, 4)], [1, 1])


def test_an_empty_window_stays_empty():
    empty = np.empty((0, 4), dtype=np.float32)
    assert fuse(Fusion.MEAN, [empty, empty], [1, 1]).shape == (0, 4)


def test_an_impossible_width_names_the_models():
    with pytest.raises(UsageError, match=r"a, b gives 80,000 .*65,536"):
        fused_width(Fusion.CONCAT, [40000, 40000], ["a", "b"])
    with pytest.raises(UsageError, match="model b has 0"):
        fused_width(Fusion.MEAN, [4, 0], ["a", "b"])
    with pytest.raises(UsageError, match="at least one model"):
        fused_width(Fusion.MEAN, [], [])


@given(ensembles(), st.data())
@settings(deadline=None)
def test_truncated_vectors_are_the_leading_dimensions_at_unit_length(ensemble, data):
    matrix = ensemble[0][0]
    dim = data.draw(st.integers(1, matrix.shape[1]))
    cut = truncate(matrix, dim)
    leading = matrix[:, :dim].astype(np.float64)
    np.testing.assert_allclose(cut, leading / np.linalg.norm(leading, axis=1, keepdims=True), atol=1e-6)


def test_truncating_keeps_nan_and_refuses_zero():
    matrix = np.array([[np.nan, 1], [0.6, 0.8]], dtype=np.float32)
    assert np.isnan(truncate(matrix, 1)[0]).all()
    with pytest.raises(ValueError, match="row 0"):
        truncate(np.array([[0, 1]], dtype=np.float32), 1)
    with pytest.raises(UsageError, match="choose 1 to 2"):
        truncate(matrix, 3)
