"""One query vector for any weights: its cosine with a fused vector, scaled, is the weighted mean of cosines."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.engine.errors import UsageError
from interlock.engine.vectors.fusion import Fusion, fuse
from interlock.engine.vectors.manifest import Manifest, query_vectors

DIMS = {"small": 3, "middle": 5, "large": 8}
OWN = {"small": 0.2, "middle": 0.3, "large": 0.5}


def unit(rows, seed):
    random = np.random.default_rng(seed)
    drawn = {name: random.standard_normal((rows, dim)) for name, dim in DIMS.items()}
    return {
        name: (each / np.linalg.norm(each, axis=1, keepdims=True)).astype(np.float32) for name, each in drawn.items()
    }


def manifest_of(fusion, **more):
    known = {"fingerprint": "f", "dtype": "float32", "max_tokens": 9, "query_prompt": "", "document_prompt": ""}
    models = [{"model": name, "dim": dim, "weight": OWN[name], **known} for name, dim in DIMS.items()]
    run = {"run_id": "r", "sources": {}, "commits": {}}
    plain = {"schema_version": "1", "collection": "docs", "fusion": fusion, "models": models, "run": run} | more
    return msgspec.convert(plain, Manifest)


def cosines(fusion, documents, queries, weights):
    """What the store would say, scaled: [queries, documents]."""
    stored = fuse(fusion, list(documents.values()), list(OWN.values()))
    vectors, scale = query_vectors(manifest_of(fusion), queries, weights)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert vectors.dtype == np.float32
    return (vectors.astype(np.float64) @ stored.T) * scale[:, None]


weight = st.one_of(st.just(0.0), st.floats(1e-3, 1e3))


@given(st.tuples(weight, weight, weight).filter(any))
def test_a_store_of_concat_answers_with_the_weighted_mean_of_cosines_at_any_weights(given):
    documents, queries, weights = unit(20, 1), unit(4, 2), dict(zip(DIMS, given, strict=True))
    wanted = sum(weights[name] * queries[name] @ documents[name].T.astype(np.float64) for name in DIMS) / sum(given)
    np.testing.assert_allclose(cosines(Fusion.CONCAT, documents, queries, weights), wanted, atol=1e-6)


def test_a_model_that_has_no_say_needs_no_vectors_of_the_query():
    documents, queries = unit(20, 1), unit(4, 2)
    wanted = queries["middle"] @ documents["middle"].T
    for weights in ({"middle": 3.0}, {"middle": 1, "small": 0, "large": 0}):
        found = cosines(Fusion.CONCAT, documents, {"middle": queries["middle"]}, weights)
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_at_its_own_weights_a_query_is_fused_as_its_documents_were():
    queries = unit(4, 2)
    for fusion in (Fusion.CONCAT, Fusion.MEAN):
        vectors, scale = query_vectors(manifest_of(fusion), queries, OWN)
        np.testing.assert_allclose(vectors, fuse(fusion, list(queries.values()), list(OWN.values())), atol=1e-6)
        np.testing.assert_allclose(scale, 1, atol=1e-6)


def test_a_store_of_mean_takes_its_own_weights_alone_in_any_scale():
    queries = unit(4, 2)
    query_vectors(manifest_of(Fusion.MEAN), queries, {name: 10 * share for name, share in OWN.items()})
    with pytest.raises(UsageError, match=r"its models for good.*small=0\.2, middle=0\.3, large=0\.5.*or deliver again"):
        query_vectors(manifest_of(Fusion.MEAN), queries, {"small": 1.0})


@pytest.mark.parametrize("weights", [{}, {"small": 0.0}, {"small": -1.0, "large": 2.0}, {"small": float("nan")}])
def test_weights_that_mean_nothing_are_refused(weights):
    with pytest.raises(UsageError, match="0 or more"):
        query_vectors(manifest_of(Fusion.CONCAT), unit(1, 2), weights)


def test_a_model_that_the_store_lacks_is_refused_with_those_it_has():
    with pytest.raises(UsageError, match="no vectors of other: name any of small, middle, large"):
        query_vectors(manifest_of(Fusion.CONCAT), unit(1, 2), {"other": 1.0})


def test_through_a_projection_a_query_keeps_what_lies_within_it():
    documents, queries = unit(20, 1), unit(4, 2)
    stored = fuse(Fusion.CONCAT, list(documents.values()), list(OWN.values())).astype(np.float64)
    turned = np.linalg.qr(np.random.default_rng(3).standard_normal((16, 16)))[0].astype(np.float32)
    weights = {"small": 1.0, "large": 3.0}
    whole, scale = query_vectors(manifest_of(Fusion.CONCAT), queries, weights)
    reduced = manifest_of(Fusion.CONCAT, projection={"dim": 16, "sha256": "s"})
    vectors, turned_scale = query_vectors(reduced, queries, weights, turned)
    found = (vectors @ (stored @ turned).T) * turned_scale[:, None]  # nothing is lost by a rotation
    np.testing.assert_allclose(found, (whole @ stored.T) * scale[:, None], atol=1e-6)
    with pytest.raises(ValueError, match="the projection to pass is that of the store"):
        query_vectors(reduced, queries, weights)
