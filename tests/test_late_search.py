"""Search results reranked by late interaction: the query's tokens compared with the token vectors of a store."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import interlock as product
from interlock.engine.compute.parts.tokens import TokenRows
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.evaluation.nearest import maxsim
from interlock.engine.search.combine import reranked
from interlock.engine.search.hits import LateHit
from interlock.engine.search.rerank import late_reordered
from tests.builders import corpus, interlock, sentences, toml

TEXTS = sentences(30, words=12)
QUERY = TEXTS[7]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_a: Path) -> Path:
    """A run with a store `with` token vectors of `a`, one `without`, and a configuration file."""
    place = tmp_path_factory.mktemp("run")
    chunks = corpus(place / "chunks", {"Docs": {"a_chunks.json": TEXTS}})
    toml(place / "interlock.toml", {"a": {"source": str(tiny_a)}})
    flags = ("run", chunks, "--config", place / "interlock.toml", "--roster", "a", "--out", place / "runs", "--no-ui")
    interlock(*flags, "--qdrant", place / "with", "--token-vectors", "a", "--run-id", "late")
    interlock(*flags, "--qdrant", place / "without", "--run-id", "plain")
    return place


def found(place: Path, store: str, *flags: object) -> list[dict]:
    said = interlock("search", place / store, QUERY, "--config", place / "interlock.toml", "--json", *flags).stdout
    return [json.loads(line) for line in said.splitlines()]


def by_formula(place: Path, model: Path) -> dict[str, float]:
    """The score of each text by what sentence-transformers has of the query's tokens, and the run's exports."""
    (states,) = SentenceTransformer(str(model), device="cpu").encode([QUERY], output_value="token_embeddings")
    query = torch.nn.functional.normalize(states.float(), dim=1).numpy()[1:-1]
    exports = place / "runs" / "late" / "exports" / "Docs"
    tokens, starts = (np.load(exports / f"a-tokens{end}.npy") for end in ("", "-starts"))
    rows = TokenRows(starts, tokens, np.zeros(len(starts) - 1, np.bool_))
    return dict(zip(TEXTS, maxsim(query, rows).tolist(), strict=True))


@pytest.mark.parametrize("name", ["maxsim", "a"])
def test_the_best_chunks_are_blended_with_scores_of_late_interaction(place: Path, tiny_a: Path, name: str) -> None:
    best = found(place, "with", "--limit", 30)[:20]
    late = by_formula(place, tiny_a)
    expected = reranked([hit["score"] for hit in best], [late[hit["payload"]["text"]] for hit in best], 0.6)
    assert [each.before for each in expected] != list(range(20))
    hits = found(place, "with", "--rerank", name, "--rerank-share", 0.6, "--rerank-depth", 20, "--limit", 20)
    np.testing.assert_allclose([hit["rerank_score"] for hit in hits], [each.rerank for each in expected], atol=5e-3)
    np.testing.assert_allclose([hit["score"] for hit in hits], [each.blended for each in expected], atol=5e-2)
    assert [hit["before"] for hit in hits][:5] == [each.before + 1 for each in expected][:5]


def test_late_interaction_counts_three_tenths_where_nobody_says_it(place: Path) -> None:
    said = found(place, "with", "--rerank", "maxsim", "--rerank-share", 0.3)
    assert found(place, "with", "--rerank", "maxsim") == said
    assert found(place, "with", "--rerank", "maxsim", "--rerank-share", 0.9) != said


def test_python_gives_the_same_hits(place: Path) -> None:
    settings = product.Settings(config=place / "interlock.toml")
    hits = product.search(place / "with", QUERY, rerank="maxsim", settings=settings)
    assert [hit.id for hit in hits] == [hit["id"] for hit in found(place, "with", "--rerank", "maxsim")]


@pytest.mark.parametrize(
    ("store", "name", "told"),
    [
        ("without", "maxsim", "has token vectors of no model"),
        ("with", "all-minilm-l6", "has token vectors of a: name one that it has"),
        (
            "with",
            "maxsim,bge-reranker-v2-m3",
            "maxsim compares token vectors, which needs no other model",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(place: Path, store: str, name: str, told: str) -> None:
    flags = ("search", place / store, QUERY, "--config", place / "interlock.toml", "--rerank", name)
    assert told in interlock(*flags, check=ExitCode.USAGE).stderr
    with pytest.raises(UsageError, match=told):
        product.search(
            place / store, QUERY, rerank=name.split(","), settings=product.Settings(config=place / "interlock.toml")
        )


def test_a_chunk_without_token_vectors_counts_as_the_last_of_those_that_have_some() -> None:
    lates = (None, 2.0, 5.0)
    hits = [LateHit(str(place), 1.0 - place / 10, {}, late, cosine=place) for place, late in enumerate(lates)]
    placed = late_reordered(hits, 1)
    assert [hit.cosine for hit in placed] == [2, 0, 1]
    assert [(hit.id, hit.rerank_score) for hit in placed] == [("2", 5.0), ("0", 2.0), ("1", 2.0)]
    nothing = [LateHit(hit.id, hit.score, {}, None) for hit in hits]
    assert [hit.id for hit in late_reordered(nothing, 0.5)] == ["0", "1", "2"]
