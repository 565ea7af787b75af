"""The terms of queries: by the table of an inference-free model or by a network, and what they find in a store."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import qdrant_edge as edge
from safetensors.numpy import load_file, save_file

import interlock
from interlock.engine.compute.parts.term_table import table_of
from interlock.engine.compute.texts import weigh_queries
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from tests.builders import corpus, routed_sparse, sentences, since, tiny_sparse
from tests.test_sparse import card_of
from tests.test_sparse_layouts import edit, reference

QUERIES = [*sentences(12, words=4), "the the the", "", "[SEP] a", "a b c d e f g h i j " * 40]
TABLE = "query_0_SparseStaticEmbedding"


@pytest.fixture
def routed(tmp_path: Path) -> Path:
    return routed_sparse(tmp_path / "routed", prompts={"query": "to find: "})


class NoLease(Lessor):
    """Grants nothing."""

    def __init__(self) -> None:
        super().__init__([CpuDevice()], 1 << 30)

    def lease(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a lease was asked for")


def wanted(model: Path, texts: list[str] = QUERIES) -> np.ndarray:
    """What sentence-transformers gives queries."""
    weights: np.ndarray = reference(model).encode_query(texts, convert_to_sparse_tensor=False).numpy()
    return weights


def by_table(model: Path) -> np.ndarray:
    card = card_of(model)
    rows = weigh_queries(card, QUERIES, NoLease())
    assert (rows.values > 0).all()  # no term of a query is one for nothing
    return rows.to_dense(card.dim)


def test_queries_of_an_inference_free_model_are_weighed_by_its_table_without_a_lease(routed: Path) -> None:
    found = by_table(routed)
    assert (found > 0).sum() > 50
    np.testing.assert_array_equal(found, wanted(routed))


@since("sentence-transformers", "6")
def test_no_more_tokens_and_terms_of_a_query_count_than_the_model_says(routed: Path) -> None:
    edit(routed / TABLE / "tokenizer_config.json", model_max_length=7)
    np.testing.assert_array_equal(by_table(routed), wanted(routed))
    edit(routed / "config_sentence_transformers.json", max_active_dims=3)
    found = by_table(routed)
    assert (found > 0).sum(axis=1).max() == 3
    np.testing.assert_array_equal(found, wanted(routed))


@since("sentence-transformers", "6")
def test_of_tokens_that_weigh_the_same_those_of_sentence_transformers_are_kept(routed: Path) -> None:
    save_file({"weight": np.ones(181, np.float32)}, routed / TABLE / "model.safetensors")
    edit(routed / "config_sentence_transformers.json", max_active_dims=3)
    np.testing.assert_array_equal(by_table(routed), wanted(routed))


def test_a_table_may_be_a_json_file_of_the_model(routed: Path) -> None:
    before = by_table(routed)
    vocabulary = json.loads((routed / TABLE / "tokenizer.json").read_text())["model"]["vocab"]
    weights = load_file(routed / TABLE / "model.safetensors")["weight"]
    by_token = {token: float(weights[number]) for token, number in vocabulary.items()}
    (routed / "idf.json").write_text(json.dumps(by_token))
    (routed / TABLE / "model.safetensors").unlink()
    edit(routed / TABLE / "config.json", path="idf.json")
    np.testing.assert_array_equal(by_table(routed), before)
    (routed / "idf.json").write_text(json.dumps({"no such token": 1.0}))
    with pytest.raises(
        UnavailableError, match=r"idf.json: expected a number for a token of .*, got 1.0 for 'no such token'"
    ):
        by_table(routed)
    edit(routed / TABLE / "config.json", path="../idf.json")
    with pytest.raises(UnavailableError, match="is not a file of the model's directory"):
        by_table(routed)


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        (np.ones(5, np.float32), "expected a weight of at least 0 for each of"),
        (np.full(181, -1, np.float32), "expected a weight of at least 0 for each of"),
        (np.full(181, np.nan, np.float32), "expected a weight of at least 0 for each of"),
        (None, "cannot read the weight of terms in"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(routed: Path, weight: np.ndarray | None, said: str) -> None:
    save_file({"weight": weight} if weight is not None else {}, routed / TABLE / "model.safetensors")
    with pytest.raises(UnavailableError, match=said):
        by_table(routed)


def test_a_setting_of_a_table_that_is_not_known_is_refused_by_name(routed: Path) -> None:
    edit(routed / TABLE / "config.json", power=2)
    with pytest.raises(UnavailableError, match=r"config.json: power is not known"):
        by_table(routed)


def test_queries_with_a_network_of_their_own_are_refused_with_what_works(routed: Path) -> None:
    router = json.loads((routed / "router_config.json").read_text())
    route = router["structure"]["document"]
    edit(routed / "router_config.json", structure={"query": route, "document": route})
    assert table_of(card_of(routed)) is None
    edit(routed / "router_config.json", structure={"query": route[:1], "document": route})
    with pytest.raises(UnavailableError, match=r"its queries go through Transformer of their own.*such as splade-v3"):
        table_of(card_of(routed))


def test_queries_and_documents_of_other_models_go_through_the_network_with_their_prompts(tmp_path: Path) -> None:
    model = tiny_sparse(tmp_path / "m", seed=5)
    reference(model).save_pretrained(str(tmp_path / "s"))
    edit(tmp_path / "s" / "config_sentence_transformers.json", prompts={"query": "to find: ", "document": "text: "})
    texts = QUERIES[:12]
    documents = reference(tmp_path / "s").encode_document(texts, convert_to_sparse_tensor=False).numpy()
    row = {"source": str(tmp_path / "s"), "kind": "sparse", "batch_tokens": 32}  # several batches
    settings = interlock.Settings(models={"s": row})
    for side, expected in (("query", wanted(tmp_path / "s", texts)), ("document", documents)):
        found = interlock.term_weights("s", texts, side=side, settings=settings)  # type: ignore[arg-type]
        np.testing.assert_allclose(found.to_dense(expected.shape[1]), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("all-minilm-l6", ["a"]), "all-minilm-l6 is a dense model"),
        (("splade-v3", "a"), r"texts: expected a list of texts, got 'a': pass \[text\]"),
        (("splade-v3", ["a", 5]), "text 1 is none: expected UTF-8, got 5"),
        (("splade-v3", ["\ud800"]), "text 0 is none: expected UTF-8"),
        (("splade-v3", ["a"], "both"), "side: expected 'query' or 'document', got 'both'"),
        (("splade-v4", ["a"]), "unknown model 'splade-v4'"),
    ],
)
def test_what_cannot_be_weighed_is_refused_by_name(arguments: tuple[Any, ...], said: str) -> None:
    model, texts, *side = arguments
    with pytest.raises(UsageError, match=said):
        interlock.term_weights(model, texts, **({"side": side[0]} if side else {}))


def test_no_texts_have_no_rows(routed: Path) -> None:
    for side in ("query", "document"):
        assert interlock.term_weights(routed, [], side=side).to_dense(181).shape == (0, 181)  # type: ignore[arg-type]


def test_a_query_finds_the_chunks_of_a_store_in_the_order_of_the_dot_product(
    tmp_path: Path, routed: Path, tiny_a: Path
) -> None:
    texts = sentences(40, words=12)
    corpus(tmp_path / "in", {"Docs": {"a_chunks.json": texts}})
    settings = interlock.Settings(
        roster=[str(tiny_a)], sparse=[str(routed)], qdrant=tmp_path / "store", out=tmp_path / "runs", export=["npy"]
    )
    interlock.embed(tmp_path / "in", settings, progress="none")
    query = interlock.term_weights(routed, [texts[7]])
    documents = interlock.term_weights(routed, texts, side="document").to_dense(181)
    scores = documents @ query.to_dense(181)[0]
    engine = edge.EdgeShard.load(str(tmp_path / "store" / "docs"), None)
    vector = edge.SparseVector(query.indices.tolist(), query.values.tolist())
    request = edge.QueryRequest(limit=10, query=edge.Query.Nearest(vector, using="routed"), with_payload=True)
    hits = engine.query(request)
    engine.close()
    assert [hit.payload["text"] for hit in hits] == [texts[place] for place in np.argsort(-scores)[:10]]
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(scores)[::-1][:10], rtol=1e-5)
