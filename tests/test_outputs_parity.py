"""All outputs of one forward against a reference that is written here, and other models' token vectors."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

import interlock
from interlock.engine.compute.encoder import LateVectors, encoder_for
from interlock.engine.compute.parts.outputs import Outputs, PassFiles
from interlock.engine.compute.parts.tokens import pool
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.members import members
from interlock.engine.models.memory import law_for
from interlock.engine.models.registry import REGISTRY, ModelSpec
from interlock.engine.models.weights import attach_to_host
from tests.builders import pins_of, sentences, tiny_m3, tiny_model

ALL = ("dense", "sparse", "tokens")
TEXTS = [*sentences(30, words=30), "the the of the", "a", "the " * 120]


@pytest.fixture(scope="module")
def m3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_m3(tmp_path_factory.mktemp("models") / "m3", seed=6)


def card_of(model: Path, **row) -> ModelCard:
    row = {"head_sha256": pins_of(model), "token_precision": "float16", **row}
    spec = ModelSpec("m", (str(model),), **row)
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")


def ids_of(model: Path) -> list[np.ndarray]:
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    return [np.array(ids) for ids in tokenizer(TEXTS, truncation=True, max_length=128)["input_ids"]]


def computed(card: ModelCard, rows: list[np.ndarray]) -> Outputs:
    host = CpuDevice()
    attached = attach_to_host(card, host)
    return encoder_for(card, attached.network, host).encode(rows)


@pytest.fixture
def in_float32(monkeypatch) -> list[np.ndarray]:
    """The token vectors of each forward as they are before they are stored, which rounds them."""
    seen: list[np.ndarray] = []
    monkeypatch.setattr(
        "interlock.engine.compute.encoder.pool_tokens",
        lambda vectors, starts, factor: (seen.append(vectors.copy()), (vectors, starts))[1],
    )
    return seen


@torch.inference_mode()
def reference(model: Path, row: np.ndarray) -> tuple[np.ndarray, dict[int, float], np.ndarray]:
    """Vector, lexical weights and token vectors of one row, as the paper has them (arxiv.org/abs/2402.03216, 3.2)."""
    network = AutoModel.from_pretrained(str(model)).eval()
    sparse, colbert = (torch.load(model / f"{name}_linear.pt", weights_only=True) for name in ("sparse", "colbert"))
    states = network(input_ids=torch.from_numpy(row)[None]).last_hidden_state[0]
    dense = states[0] / states[0].norm()
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    special = {tokenizer.cls_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    special |= {int(row[0]), int(row[-1])}
    weights: dict[int, float] = {}
    for word, state in zip(row.tolist(), states, strict=True):
        weight = max(0.0, float(sparse["weight"][0] @ state + sparse["bias"][0]))
        if word not in special and weight > weights.get(word, 0.0):
            weights[word] = weight
    tokens = states[1:] @ colbert["weight"].T + colbert["bias"]
    return dense.numpy(), weights, (tokens / tokens.norm(dim=1, keepdim=True)).numpy()


def test_the_three_outputs_of_bge_m3_are_those_of_the_reference_packed_or_alone(m3, in_float32):
    card, rows = card_of(m3, outputs=ALL), ids_of(m3)
    wanted = [reference(m3, row) for row in rows]
    together = computed(card, rows)
    alone = [computed(card, [row]) for row in rows]
    vectors = [in_float32[0], np.concatenate(in_float32[1:])]
    for outputs in (together, alone[0].joined(len(rows), [(np.array([at]), each) for at, each in enumerate(alone)])):
        np.testing.assert_allclose(outputs.dense, np.stack([dense for dense, _, _ in wanted]), rtol=0, atol=1e-5)
        np.testing.assert_allclose(vectors.pop(0), np.concatenate([each for *_, each in wanted]), rtol=0, atol=1e-5)
        assert outputs.tokens.counts.tolist() == [len(row) - 1 for row in rows]
        for at, (_, weights, _) in enumerate(wanted):
            span = slice(*outputs.terms.starts[at : at + 2])
            assert outputs.terms.indices[span].tolist() == sorted(weights)
            found = outputs.terms.values[span]
            np.testing.assert_allclose(found, [weights[word] for word in sorted(weights)], rtol=0, atol=1e-5)
    words = [len(set(row.tolist())) for row in rows]
    assert 10 * len(rows) < together.terms.counts.sum() < sum(words) - 2 * len(rows)  # some weigh nothing


def test_lexical_weights_are_a_pass_of_their_own_where_the_model_is_in_no_roster(m3):
    rows = ids_of(m3)
    (spec,) = members({"m": ModelSpec("m", (str(m3),), head_sha256=pins_of(m3), dim=32)}, [], ["m"])
    alone = read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")
    assert (alone.kind, alone.outputs, alone.dim) == ("sparse", ("sparse",), alone.words)
    outputs = computed(alone, rows)
    assert outputs.dense is None
    assert not computed(card_of(m3, outputs=("dense", "sparse")), rows).terms.unlike(outputs.terms).any()


@pytest.mark.parametrize("kind", ["bert", "modernbert"], ids=["packed here", "packed in transformers' network"])
def test_other_models_give_their_last_hidden_states_without_special_tokens(tmp_path, in_float32, kind):
    model = tiny_model(tmp_path / kind, kind=kind, pooling="cls")
    rows, network = ids_of(model), AutoModel.from_pretrained(str(model)).eval()
    outputs = computed(card_of(model, outputs=("dense", "tokens")), rows)
    with torch.inference_mode():
        states = [network(input_ids=torch.from_numpy(row)[None]).last_hidden_state[0, 1:-1] for row in rows]
    wanted = torch.nn.functional.normalize(torch.cat(states), dim=1).numpy()
    np.testing.assert_allclose(in_float32[0], wanted, rtol=0, atol=1e-5)
    assert outputs.tokens.counts.tolist() == [len(row) - 2 for row in rows]


def test_a_row_that_is_not_finite_is_parked_in_every_output(m3):
    card, rows = card_of(m3, outputs=ALL), ids_of(m3)[:4]
    host = CpuDevice()
    attached = attach_to_host(card, host)
    encoder = encoder_for(card, attached.network, host)
    whole = encoder.network
    encoder.network = lambda batch: whole(batch).index_fill(0, batch.starts[1:2] + 2, float("nan"))
    assert set(encoder.encode(rows).refused(card.dim)) == {1}


def test_what_a_model_cannot_give_is_refused_by_name(tmp_path, m3):
    plain = tiny_model(tmp_path / "plain")
    with pytest.raises(UsageError, match=r"--sparse: m is a dense model without lexical weights .*lacks sparse_linear"):
        card_of(plain, outputs=("dense", "sparse"))
    padded = tiny_model(tmp_path / "padded", pooling="max")
    with pytest.raises(
        UnavailableError, match=r"gives no token vectors here, since its rows are padded .*--token-vectors"
    ):
        card_of(padded, outputs=("dense", "tokens"))
    other = tiny_m3(tmp_path / "other")
    torch.save({"weight": torch.ones(1, 31), "bias": torch.ones(1)}, other / "sparse_linear.pt")
    with pytest.raises(UnavailableError, match=r"sparse_linear\.safetensors has the tensors .*expected a map from 32"):
        card_of(other, outputs=("dense", "sparse"))


def test_a_model_in_both_lists_weighs_terms_in_its_one_pass():
    (spec,) = members(REGISTRY, ["bge-m3"], ["bge-m3"], ["bge-m3"])
    assert spec.outputs == ALL
    first, alone = members(REGISTRY, ["all-minilm-l6"], ["bge-m3"], ["all-minilm-l6"])
    assert (first.outputs, alone.kind, alone.gives) == (("dense", "tokens"), "sparse", ("sparse",))
    with pytest.raises(UsageError, match="--token-vectors: bge-m3 is not in --roster"):
        members(REGISTRY, ["all-minilm-l6"], [], ["bge-m3"])


def test_rows_shorter_than_what_surrounds_a_text_have_no_token_vectors():
    late = LateVectors(lambda hidden, keep: keep(0, hidden), card_form(2), (1, 1))
    outputs = late(torch.ones(6, 2), [np.array([1]), np.array([1, 2]), np.array([1, 5, 2])])
    assert outputs.counts.tolist() == [0, 0, 1]


def card_form(dim: int):
    from interlock.engine.record.facts import TokenForm

    return TokenForm(dim=dim, precision="float16", pooling=1)


def test_the_law_of_the_host_has_room_for_the_distances_that_pooling_takes(m3):
    tokens = 1500
    vectors = np.random.default_rng(0).standard_normal((tokens, 24)).astype(np.float32)
    pool(vectors[:9], 4)  # imports what it needs
    tracemalloc.start()
    pool(vectors, tokens // 2)
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    laws = [law_for(card_of(m3, outputs=("dense", "tokens"), token_pooling=each), "cpu") for each in (1, 2)]
    without, pooling = (law.activations(tokens, tokens) for law in laws)
    assert 0.8 * taken <= pooling - without <= 1.6 * taken


def test_rows_without_an_output_of_their_pass_are_not_written(tmp_path, m3):
    card = card_of(m3, outputs=("dense", "sparse"))
    files = PassFiles.open(tmp_path, card, 2)
    before = files.crc(np.arange(2))
    with pytest.raises(ValueError, match="without an output"):
        files.put(np.arange(2), Outputs(np.ones((2, card.dim), np.float32)))
    assert files.crc(np.arange(2)) == before


def test_queries_of_a_model_with_lexical_weights_are_weighed_as_its_documents_are(m3, monkeypatch, tmp_path):
    monkeypatch.setenv("INTERLOCK_CACHE", str(tmp_path))
    found = interlock.term_weights(m3, TEXTS[:3], settings=interlock.Settings(allow_pickle=[str(m3)], offline=True))
    wanted = computed(card_of(m3, outputs=("dense", "sparse")), ids_of(m3)[:3]).terms
    np.testing.assert_allclose(found.to_dense(200), wanted.to_dense(200), rtol=0, atol=1e-5)
