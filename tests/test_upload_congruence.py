"""One export in two implementations of Qdrant, its engine and qdrant-client's local mode: the same points and hits.

Both are fed by an upload, request by request, and are asked through the same paths. What agrees was said clearly; what
only one of them understood would show here.
"""

import json

import numpy as np
import pytest

from interlock.engine.search.searcher import words_of
from interlock.engine.vectors.bm25 import BM25, Words
from tests.edge_bridge import EdgeBridge
from tests.local_bridge import LocalBridge
from tests.uploads import ROWS, Uploads

NEAR = 1e-5
"""Between two scores of the same: each implementation adds float32 in another order."""
KINDS = {"m", "a", "fused", "m-sparse", "keywords", "m-tokens", BM25}
FILTERS = [
    {"must": [{"key": "metadata.lang", "match": {"value": "de"}}, {"key": "metadata.share", "range": {"lt": 8.5}}]},
    {
        "must_not": [{"key": "metadata.page", "match": {"value": 7}}],
        "must": [{"key": "metadata.page", "range": {"gte": 5}}],
    },
]


@pytest.fixture(scope="module")
def bridges(tmp_path_factory, exported):
    """The engine and local mode, each with the points of one run."""
    place = tmp_path_factory.mktemp("congruence")
    found = [EdgeBridge(place / "edge"), LocalBridge(place / "local")]
    for number, bridge in enumerate(found):
        report = Uploads(bridge, exported / "runs" / "one", place / f"uploads-{number}")(
            indexes={"metadata.lang": "keyword"}
        )
        assert (report.rows, report.points, report.compared) == (ROWS, ROWS, ROWS)
    yield found
    for bridge in found:
        bridge.close()


def asked(bridge, path, **body):
    status, _, content = bridge.answer("POST", f"/collections/docs/points{path}", json.dumps(body).encode(), {})
    assert status == 200, content
    return json.loads(content)["result"]


def held(bridge):
    found = asked(bridge, "", ids=sorted(bridge.collections["docs"].sent), with_payload=True, with_vector=True)
    return {each["id"]: (each["payload"], each["vector"]) for each in found}


def hits(bridge, **body):
    return [(each["id"], each["score"]) for each in asked(bridge, "/query", **body)["points"]]


def weights(terms):
    return dict(zip(terms["indices"], np.array(terms["values"], np.float32).tolist(), strict=True))


def assert_same_hits(one, other):
    """The same scores in the same order, and the same points at each of them but where several have the last one."""
    np.testing.assert_allclose([score for _, score in one], [score for _, score in other], rtol=NEAR, atol=NEAR)
    scores = dict(other)
    last = min(scores.values(), default=0.0)
    for point, score in one:
        if point in scores:
            assert scores[point] == pytest.approx(score, rel=NEAR, abs=NEAR)
        else:
            assert score == pytest.approx(last, rel=NEAR, abs=NEAR), f"{point} is a hit of one alone"


@pytest.mark.parametrize("name", sorted(KINDS))
@pytest.mark.parametrize("where", [None, *FILTERS], ids=["all", "must", "must_not"])
def test_both_find_the_same_by_every_kind_of_vector(bridges, name, where):
    queries = [vectors[name] for _, vectors in held(bridges[0]).values() if name in vectors][::7]
    assert len(queries) > 3
    lists = 0
    for query in queries:
        body = {"query": query, "using": name, "limit": 10, **({"filter": where} if where else {})}
        one, other = (hits(bridge, **body) for bridge in bridges)
        assert_same_hits(one, other)
        lists += len(one) > 1
    assert lists, "nothing was found by any of them"


def test_both_weigh_the_words_of_a_question_by_how_rare_they_are(bridges):
    """A dot product alone gives other scores: IDF is of the server, and of these points."""
    (text,) = (payload["text"] for payload, _ in held(bridges[0]).values() if payload["chunk_id"] == "c7")
    terms = words_of(Words(language="english"), text)
    assert len(terms.indices) > 1
    query = {"indices": terms.indices.tolist(), "values": terms.values.tolist()}
    one, other = (hits(bridge, query=query, using=BM25, limit=20) for bridge in bridges)
    assert_same_hits(one, other)
    assert len(one) > 3
    best = weights(held(bridges[0])[one[0][0]][1][BM25])
    assert one[0][1] != pytest.approx(sum(best.get(index, 0.0) for index in query["indices"]), rel=0.01)


def test_both_fuse_lists_of_every_kind_to_the_same_scores(bridges):
    """Neighbours with all but the same score have either order, which moves RRF by less than 1/61 - 1/62 each."""
    points = held(bridges[0])
    point = next(point for point, (_, vectors) in sorted(points.items()) if vectors.keys() == KINDS)
    vectors = points[point][1]
    stages = [{"query": vectors[name], "using": name, "limit": ROWS} for name in ("m", "a", "fused", "m-tokens")]
    one, other = (hits(bridge, prefetch=stages, query={"rrf": {"k": 60}}, limit=ROWS) for bridge in bridges)
    assert {point for point, _ in one} == {point for point, _ in other} and len(one) >= ROWS - 1
    swap = 1 / 61 - 1 / 62
    np.testing.assert_allclose([score for _, score in one], [score for _, score in other], rtol=0, atol=swap)
    scores = dict(other)
    np.testing.assert_allclose([scores[point] for point, _ in one], [score for _, score in one], rtol=0, atol=3 * swap)
    assert one[0][0] == other[0][0] == point
