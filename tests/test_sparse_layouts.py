"""Sparse models as they are published: pooled in each known way, with a route for queries and one for documents."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.gpu.meter import Meter
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.memory import law_for
from interlock.engine.models.networks.kernels import Kernel, filling, pack
from interlock.engine.models.networks.network import PackedTermEncoder
from interlock.engine.models.networks.pooling import Activation, Strategy, TermPooling
from interlock.engine.models.registry import ModelSpec
from tests.architectures import SPARSE
from tests.builders import routed_sparse, sentences, tiny_sparse
from tests.ledgers import Counter
from tests.oracle import as_on_a_gpu
from tests.test_sparse import card_of, ids_of, weights_of

WAYS = [(strategy, activation) for strategy in ("max", "sum") for activation in ("relu", "log1p_relu")]
MLM = "sentence_transformers.sparse_encoder.models.MLMTransformer"
TEXTS = [*sentences(20, words=30), "the " * 120, "a"]


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def reference(model: Path) -> Any:
    from sentence_transformers import SparseEncoder

    return SparseEncoder(str(model), device="cpu")


def documents(model: Path, texts: list[str] = TEXTS) -> np.ndarray:
    """What sentence-transformers gives documents."""
    weights: np.ndarray = reference(model).encode_document(texts, convert_to_sparse_tensor=False).numpy()
    return weights


@pytest.fixture
def pooled(tmp_path: Path) -> Path:
    """A model as sentence-transformers saves it, with its pooling in a folder."""
    reference(tiny_sparse(tmp_path / "plain", seed=5, kind="distilbert")).save_pretrained(str(tmp_path / "saved"))
    return tmp_path / "saved"


@pytest.fixture
def routed(tmp_path: Path) -> Path:
    """A model with a table for queries and a network for documents, as sentence-transformers saves it."""
    return routed_sparse(tmp_path / "routed")


@pytest.fixture
def published(routed: Path) -> Path:
    """The same in the layout of opensearch-neural-sparse-encoding-doc-v3-distill: the network is in the model's own
    directory, under its former name."""
    home = routed / "document_0_Transformer"
    settings = {"max_seq_length": 128, "do_lower_case": False}
    for file in home.iterdir():
        shutil.move(file, routed / file.name)
    home.rmdir()
    (routed / "sentence_bert_config.json").write_text(json.dumps(settings))
    router = json.loads((routed / "router_config.json").read_text())
    del router["types"]["document_0_Transformer"]
    router["types"][""] = MLM
    router["structure"]["document"][0] = ""
    (routed / "router_config.json").write_text(json.dumps(router))
    return routed


@pytest.mark.parametrize(("strategy", "activation"), WAYS)
def test_terms_are_pooled_in_the_way_that_the_model_says(pooled: Path, strategy: str, activation: str) -> None:
    edit(pooled / "1_SpladePooling" / "config.json", pooling_strategy=strategy, activation_function=activation)
    card, rows = card_of(pooled), ids_of(pooled, TEXTS)
    wanted = documents(pooled)
    alone = np.concatenate([weights_of(card, [row]) for row in rows])
    assert (wanted > 0).any(axis=1).all()
    for found in (weights_of(card, rows), alone):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_text_of_several_parts_is_summed_over_all_of_them(pooled: Path) -> None:
    edit(pooled / "1_SpladePooling" / "config.json", pooling_strategy="sum")
    card, rows = card_of(pooled), [np.full(length, 40) for length in (90, *[7] * 40, 120, 100)]
    alone = np.concatenate([weights_of(card, [row]) for row in rows])
    np.testing.assert_allclose(weights_of(card, rows), alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_sums_of_weights_are_those_of_float32_also_where_logits_are_halves(
    dtype: torch.dtype, activation: Activation
) -> None:
    torch.manual_seed(0)
    decoder = PackedTermEncoder.blank({**SPARSE["BERT-base"], "vocab_size": 50}, dtype).head.decoder
    lengths, width = (300, 7, 3), decoder.weight.shape[1]
    for weight in decoder.parameters():
        weight.data.normal_()
    rows = torch.randn(sum(lengths) + filling(sum(lengths)), width).to(dtype)
    found = torch.zeros(len(lengths), 50)
    batch = pack([np.zeros(each, np.int64) for each in lengths], torch.device("cpu"))
    pooling = TermPooling("sum", activation)

    def keep(first: int, values: torch.Tensor) -> None:
        for row, each in enumerate(values, first):
            pooling.join(found[row], each.float())

    with torch.inference_mode():
        decoder(rows, batch, pooling, keep)
        logits = torch.nn.functional.linear(rows, decoder.weight, decoder.bias).double().relu()
    weights = logits.log1p() if activation == "relu" else logits.log1p().log1p()
    wanted = torch.stack([each.sum(0) for each in weights[: sum(lengths)].split(lengths)])
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("strategy", ["sum", "max"])
def test_the_law_counts_what_sums_take_beside_logits_that_are_halves(
    pooled: Path, strategy: Strategy, dtype: str
) -> None:
    edit(pooled / "1_SpladePooling" / "config.json", pooling_strategy=strategy)
    card = replace(card_of(pooled), config=SPARSE["BERT-base"], dtype=dtype, kernel=Kernel.EFFICIENT)
    law, mode, errors = law_for(card, "cuda"), FakeTensorMode(), []
    with mode:
        network = PackedTermEncoder.blank(card.config, getattr(torch, dtype))
    for lengths in ([510], [120] * 4, [40] * 3, [300, 200, 128, 60, 4]):
        counter = Counter()
        with mode, as_on_a_gpu(card.kernel), torch.inference_mode(), Meter(counter):
            rows = [np.ones(each, np.int64) for each in lengths]
            network.terms(pack(rows, torch.device("cpu"), card.kernel), card.terms, lambda *_: None)
        tokens = sum(lengths) + filling(sum(lengths))
        errors.append(abs(law.activations(tokens, max(lengths)) - counter.peak) / counter.peak)
    assert median(errors) <= 0.01
    assert max(errors) <= 0.02


def test_no_more_terms_are_kept_than_the_model_says(pooled: Path) -> None:
    edit(pooled / "config_sentence_transformers.json", max_active_dims=9)
    wanted = documents(pooled)
    found = weights_of(card_of(pooled), ids_of(pooled, TEXTS))
    assert ((found > 0).sum(axis=1) == 9).all()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("1_SpladePooling/config.json", {"pooling_strategy": "mean"}, "Invalid enum value 'mean'"),
        ("1_SpladePooling/config.json", {"activation_function": "softplus"}, "Invalid enum value 'softplus'"),
        ("1_SpladePooling/config.json", {"temperature": 2}, "temperature is not known"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "cosine"}, "similarity_fn_name is 'cosine'"),
        ("config_sentence_transformers.json", {"max_active_dims": 0}, "max_active_dims is 0"),
    ],
)
def test_a_way_of_pooling_that_is_not_known_is_refused_by_name(
    pooled: Path, file: str, change: dict[str, object], said: str
) -> None:
    edit(pooled / file, **change)
    with pytest.raises(UnavailableError, match=rf"{file}: .*{said}|{file}: {said}"):
        card_of(pooled)


@pytest.mark.parametrize("layout", ["routed", "published"])
def test_documents_go_through_their_route(layout: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(layout)
    card = card_of(model)
    found = weights_of(card, ids_of(card.tokenizer_file.parent, TEXTS))
    assert card.max_tokens == 128
    np.testing.assert_allclose(found, documents(model), rtol=0, atol=1e-5)


def test_settings_beside_the_network_of_a_route_count(routed: Path) -> None:
    settings = routed / "document_0_Transformer" / "sentence_bert_config.json"
    edit(settings, max_seq_length=20)
    assert card_of(routed).max_tokens == 20
    edit(settings, transformer_task="feature-extraction")
    with pytest.raises(UnavailableError, match="transformer_task is 'feature-extraction'"):
        card_of(routed)


def test_every_file_of_the_routes_counts_for_what_the_model_is(routed: Path) -> None:
    def fingerprint() -> str:
        return resolve(ModelSpec("r", (str(routed),), kind="sparse"), Policy(offline=True), lambda _: None).fingerprint

    before = fingerprint()
    table = routed / "query_0_SparseStaticEmbedding" / "model.safetensors"
    table.write_bytes(table.read_bytes()[:-4] + b"\0\0\0\0")
    assert fingerprint() != before


def test_routes_that_are_not_known_are_refused_by_name(published: Path) -> None:
    router = published / "router_config.json"
    whole = json.loads(router.read_text())
    edit(router, parameters=whole["parameters"] | {"route_mappings": {"('document', None)": "query"}})
    with pytest.raises(UnavailableError, match=r"router_config.json: route_mappings is"):
        card_of(published)
    edit(router, parameters={}, structure={**whole["structure"], "document": whole["structure"]["query"]})
    with pytest.raises(UnavailableError, match="documents go through SparseStaticEmbedding"):
        card_of(published)
    edit(router, structure={"document": ["../elsewhere"]}, types={"../elsewhere": MLM})
    with pytest.raises(UnavailableError, match="outside the model's directory"):
        card_of(published)


def test_a_model_with_routes_is_told_where_it_belongs_when_it_is_named_in_the_roster(published: Path) -> None:
    spec = ModelSpec("r", (str(published),))
    with pytest.raises(UsageError, match=r"is a sparse model by its .*name it in --sparse"):
        read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")
