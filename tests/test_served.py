"""A collection that was uploaded is searched as the store of the same run is: ids and scores are the same."""

import json

import numpy as np
import pytest

import interlock
from interlock.engine.errors import ExitCode, InterlockError, UnavailableError, UsageError
from interlock.engine.search.conditions import conditions_in, filter_of
from interlock.engine.search.served import _filter
from tests.builders import ROOT, tiny_scorer, toml
from tests.edge_bridge import refusal, serving
from tests.local_bridge import LocalBridge
from tests.openapi import OpenApi
from tests.uploads import Uploads, bridged, embedded, records

QUESTIONS = [records()[7]["text"], "which of the able words for a mention"]
OPENAPI = ROOT.parent / "shared" / "data" / "qdrant-openapi-1.19.json"


@pytest.fixture(scope="module")
def bridge(exported, tmp_path_factory):
    """A server with the first run, uploaded."""
    place = tmp_path_factory.mktemp("served")
    with bridged(place / "bridge") as bridge:
        Uploads(bridge, exported / "runs" / "one", place / "uploads")()
        yield bridge


@pytest.fixture(scope="module")
def url(bridge):
    with serving(bridge) as url:
        yield url


@pytest.fixture
def settings(exported):
    return interlock.Settings(config=exported / "interlock.toml", offline=True)


@pytest.fixture
def store(exported):
    return exported / "stores" / "one"


def found(place, settings, **asked):
    limit = asked.pop("limit", 10)
    with interlock.Searcher(place, settings=settings, **asked) as searcher:
        return [[(hit.id, hit.score, hit.payload) for hit in each.hits] for each in searcher.answers(QUESTIONS, limit)]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"limit": 1000},
        {"hybrid": "off"},
        {"hybrid": "rrf", "exact": True},
        {"hybrid": "dbsf", "sparse_share": 0.5},
        {"only": "bm25", "limit": 1000},  # all of them, since of equals a cut keeps any
        {"only": "m-sparse"},
        {"only": "a"},
        {"weights": {"m": 1.0, "a": 4.0}},
        {"rerank": "maxsim"},
        {"where": "metadata.lang=de"},
        {"where": ["metadata.page>=20", "metadata.page<70", "metadata.lang!=en"]},
        {"where": {"metadata.page": [3, 4, 5], "metadata.lang": "en"}},
    ],
    ids=str,
)
def test_ids_scores_and_payloads_are_those_of_the_store(store, url, settings, asked):
    served, own = found(url, settings, **asked), found(store, settings, **{**asked, "exact": False})
    assert len(served) == len(own) == len(QUESTIONS) and served[0]
    for here, there in zip(served, own, strict=True):
        assert [(each[0], each[2]) for each in here] == [(each[0], each[2]) for each in there]
        np.testing.assert_allclose([each[1] for each in here], [each[1] for each in there], rtol=1e-6, atol=1e-6)


def test_the_command_answers_and_explains_and_reranks_as_it_does_of_a_store(store, url, exported, call, tmp_path):
    scorer = tiny_scorer(tmp_path / "scorer")
    file = toml(tmp_path / "c.toml", {"scorer": {"source": str(scorer), "kind": "scores"}})
    file.write_text((exported / "interlock.toml").read_text() + file.read_text())
    more = (
        QUESTIONS[0],
        "--rerank",
        "scorer",
        "--config",
        file,
        "--offline",
        "--json",
        "--explain",
        "--devices",
        "cpu",
    )
    code, here, said = call("search", url, *more, "--collection", "Docs")
    assert code == ExitCode.COMPLETED, said
    _, there, _ = call("search", store, *more)
    for mine, other in zip(here.splitlines(), there.splitlines(), strict=True):
        mine, other = json.loads(mine), json.loads(other)
        assert (mine["id"], mine["payload"]) == (other["id"], other["payload"])
        assert mine["score"] == pytest.approx(other["score"], abs=1e-5)


def test_local_mode_which_shares_no_code_with_the_engine_finds_the_same(store, exported, settings, tmp_path):
    bridge = LocalBridge(tmp_path / "local")
    Uploads(bridge, exported / "runs" / "one", tmp_path / "uploads")()
    with serving(bridge) as url:
        for asked in ({}, {"rerank": "maxsim"}, {"where": ["metadata.lang=de", "metadata.page<30"]}):
            for here, there in zip(found(url, settings, **asked), found(store, settings, **asked), strict=True):
                assert [each[0] for each in here] == [each[0] for each in there]
                np.testing.assert_allclose([each[1] for each in here], [each[1] for each in there], atol=1e-5)
    bridge.close()


def test_questions_are_encoded_for_a_server_as_for_its_store(store, url, settings):
    served, own = (interlock.encode(place, QUESTIONS, settings=settings) for place in (url, store))
    assert served.dense.keys() == own.dense.keys() == {"fused", "m", "a"}
    for name, vectors in own.dense.items():
        np.testing.assert_array_equal(served.dense[name], vectors)
    for name, rows in own.sparse.items():
        assert not served.sparse[name].unlike(rows).any()
    with pytest.warns(RuntimeWarning, match="the points have bm25, which nothing here makes of chunks"):
        told = interlock.encode(url, QUESTIONS, "document", settings=settings)
    assert "bm25" not in told.sparse and "m-sparse" in told.sparse


def test_a_projected_collection_needs_the_projection_of_its_run(exported, tiny_a, settings, tmp_path):
    run = embedded(exported, tiny_a, "narrow", project="20", keep="fused")
    with bridged(tmp_path / "bridge") as bridge, serving(bridge) as url:
        Uploads(bridge, run, tmp_path / "uploads")()
        with pytest.raises(UsageError, match=r"were projected: name the projection.npy of the run's exports"):
            interlock.search(url, "a", settings=settings)
        matrix = run / "exports" / "Docs" / "projection.npy"
        served = found(url, settings, projection=matrix)
        own = found(exported / "stores" / "narrow", settings)
        assert [[each[0] for each in hits] for hits in served] == [[each[0] for each in hits] for hits in own]
        with pytest.raises(UsageError, match="is not that of docs"):
            interlock.search(url, "a", settings=settings, projection=run / "exports" / "Docs" / "fused.npy")


@pytest.mark.skipif(not OPENAPI.exists(), reason="the description of the API is not here")
def test_every_request_is_one_that_the_api_describes(bridge, url, settings, monkeypatch):
    api, seen = OpenApi(json.loads(OPENAPI.read_text())), set()

    def note(method, path, body, _):
        if path != "/":
            api.check(method, path, {}, body)
        seen.add((method, path.rpartition("/")[2]))

    monkeypatch.setattr(bridge, "before", note)
    found(url, settings, rerank="maxsim", exact=True, where=["metadata.lang=de", "metadata.page>3"])
    assert seen >= {("POST", "query"), ("POST", "scroll"), ("POST", "points"), ("GET", "docs")}


@pytest.mark.parametrize(
    ("asked", "error", "told"),
    [
        ({"collection": "other"}, UsageError, "has no collection 'other': choose one of docs"),
        ({"where": "metadata.lagn=de"}, UsageError, r"no chunk has 'metadata.lagn' \(did you mean metadata.lang"),
        ({"only": "c"}, UsageError, "name one of m, a, m-sparse, bm25"),
    ],
)
def test_what_a_server_has_not_is_refused_with_what_it_has(url, settings, asked, error, told):
    with pytest.raises(error, match=told):
        interlock.search(url, "a", settings=settings, **asked)


def test_a_value_that_no_point_has_is_told_with_some_that_there_are(url, settings, exported, call):
    code, out, said = call("search", url, "a", "--filter", "metadata.lang=fr", "--config", exported / "interlock.toml")
    assert (code, out) == (ExitCode.COMPLETED, "")
    assert 'no chunk found: no chunk has metadata.lang=fr: values there are "de"; "en"' in said


def answering(status, why):
    return lambda method, path, *_: None if path == "/" else refusal(status, why)


@pytest.mark.parametrize(
    ("before", "error", "told"),
    [
        (answering(401, "Invalid API key"), UsageError, "refuses this key .401: Invalid API key.*set QDRANT_API_KEY"),
        (answering(503, "overloaded"), UnavailableError, "did not do its work within 1 s"),
        (answering(400, "Exact search disabled"), InterlockError, "refuses .*Exact search disabled"),
        (lambda *_: (200, {}, b'{"title": "other", "version": "1.0"}'), UsageError, "is not a Qdrant server"),
    ],
)
def test_a_server_that_does_not_answer_as_it_should_is_told(bridge, url, settings, monkeypatch, before, error, told):
    monkeypatch.setattr(bridge, "before", before)
    with pytest.raises(error, match=told):
        interlock.search(url, "a", settings=settings, patience=1.0)


def test_a_server_that_is_down_is_unavailable(call):
    code, _, said = call("search", "http://127.0.0.1:9", "a", "--patience", "1")
    assert code == ExitCode.UNAVAILABLE and "did not do its work within 1 s of asking" in said


def test_a_key_goes_with_every_request_and_to_https_alone(bridge, url, settings, monkeypatch, tmp_path):
    keys = []
    monkeypatch.setattr(bridge, "before", lambda _, __, ___, headers: keys.append(headers.get("api-key")))
    (tmp_path / "key").write_text("secret\n")
    interlock.search(url, "a", settings=settings, only="bm25", api_key_file=tmp_path / "key")
    assert {*keys} == {"secret"}
    with pytest.raises(UsageError, match="the key would be readable on the way"):
        interlock.search("http://example.org", "a", settings=settings, api_key_file=tmp_path / "key")


def test_a_collection_that_others_made_or_that_is_one_of_several_is_not_guessed_at(bridge, url, settings):
    made = {"vectors": {"v": {"size": 4, "distance": "Cosine"}}}
    bridge.collections["foreign"] = bridge.kind(bridge._directory / "foreign", made)
    try:
        with pytest.raises(UsageError, match=r"has 2 collections: choose one with collection \(docs; foreign\)"):
            interlock.search(url, "a", settings=settings)
        with pytest.raises(UsageError, match=r"foreign on http.* was not made by interlock"):
            interlock.encode(url, ["a"], collection="foreign", settings=settings)
        assert interlock.search(url, "a", settings=settings, collection="Docs")
    finally:
        bridge.collections.pop("foreign").close()


@pytest.mark.parametrize(
    ("condition", "matches"),
    [
        ("metadata.seen=true", [{"value": "true"}, {"value": True}]),
        ("metadata.seen=false", [{"value": "false"}, {"value": False}]),
        ('metadata.seen="true"', [{"value": "true"}]),
    ],
)
def test_a_truth_is_asked_for_as_one_and_no_point_is_looked_up(condition, matches):
    class Knows:
        tells_truths = True

    asked = _filter(filter_of(conditions_in(condition), Knows())).model_dump(exclude_none=True)
    (alike,) = asked["must"]
    assert [each["match"] for each in alike["should"]] == matches
    assert [type(each["match"]["value"]) for each in alike["should"]] == [type(each["value"]) for each in matches]
