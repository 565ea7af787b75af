"""The memory law, estimated from configurations, against full-depth traces of published architectures."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch

from bench.law_plans import TRACED, Traced, estimated
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.layout import values_in
from interlock.engine.models.memory import Calibration, Law, law_for, law_of
from interlock.engine.models.networks.kernels import Kernel, filling, padded_tokens
from interlock.engine.models.networks.network import PackedEncoder
from interlock.engine.models.networks.streaming import slot_bytes
from interlock.engine.models.registry import ModelSpec
from tests.architectures import ARCHITECTURES, LIMITS, MINILM, QWEN3_06B
from tests.builders import tiny_model
from tests.oracle import Oracle, blank, is_causal, lengths_of, measured

PACKED = [  # every pair of an architecture and a kernel is in bench/law.py
    *((name, Kernel.FLASH) for name in ("MiniLM-L6", "Qwen3-0.6B", "ModernBERT-base", "EmbeddingGemma-300M")),
    *((name, Kernel.FLASH_TRITON) for name in ("Qwen3-0.6B", "EmbeddingGemma-300M")),
    *((name, Kernel.EFFICIENT) for name in ("XLM-R-large", "Qwen3-0.6B", "ModernBERT-base")),
    *((name, Kernel.EFFICIENT_TRITON) for name in ("XLM-R-large", "Qwen3-0.6B", "ModernBERT-base")),
    ("MPNet-base", Kernel.RUNS),
]
TINY = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 300, "pad_token_id": 0}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
HOST: dict[str, dict[str, object]] = {
    "bert": {**MINILM, **TINY, "intermediate_size": 512},
    "mpnet": {**ARCHITECTURES["MPNet-base"], **TINY, "intermediate_size": 512, "pad_token_id": 1},
    "modernbert": {**ARCHITECTURES["ModernBERT-base"], **TINY, **SPECIAL, "intermediate_size": 192},
    "qwen3": {**QWEN3_06B, **TINY, **SPECIAL, "intermediate_size": 384, "num_key_value_heads": 2, "head_dim": 32},
}
BATCHES = ([250] * 2, [50] * 16, [250], [60, 50, 40, 60], [200, 120, 199])
PADDED = [
    ("XLM-R-large", "sdpa"),
    ("Qwen3-0.6B", "sdpa"),
    ("MPNet-base", "eager"),
    ("Qwen2-1.5B", "eager"),
]


SMALL = 2 << 20
"""Bytes of tables that are made once for each batch: as many as the allocator cuts into at a time."""


def errors(name: str, *, packed: bool, attends: str, kernel: Kernel) -> list[float]:
    """How far the law is above what random batches take, as shares of that."""
    config, generator, found = ARCHITECTURES[name], np.random.default_rng(11), []
    law = law_of(config, 2, packed=packed, attends=attends, kernel=kernel)
    oracle = Oracle(config, packed=packed, attention=attends, kernel=kernel)
    for even in (True, False, True):
        lengths = lengths_of(generator, min(LIMITS[name], 2048), 1 << 15, packed=packed, even=even)
        peak, tokens = oracle.peak(lengths), sum(lengths) + filling(sum(lengths))
        tokens = tokens if packed else len(lengths) * -(-max(lengths) // 16) * 16
        found.append((law.activations(tokens, max(lengths)) - peak) / peak)
    return found


@pytest.mark.parametrize(("name", "kernel"), PACKED)
def test_the_estimate_for_rows_end_to_end_is_within_two_percent_of_a_published_architecture(name, kernel):
    found = errors(name, packed=True, attends="sdpa", kernel=kernel)
    assert median(map(abs, found)) <= 0.02
    assert min(found) >= -0.01 and max(found) <= 0.03


@pytest.mark.parametrize(("name", "attends"), PADDED)
def test_the_estimate_for_padded_rows_is_within_a_quarter_of_a_published_architecture(name, attends):
    found = errors(name, packed=False, attends=attends, kernel=Kernel.HOST)
    assert min(found) >= -0.02 and max(found) <= 0.25  # rows of one length have no mask


@pytest.mark.parametrize("name", ["BERT-base", "XLM-R-large", "Qwen3-0.6B"])
def test_halves_that_torch_computes_in_float32_where_no_kernel_takes_them_are_estimated_so(name):
    found = errors(name, packed=False, attends="sdpa", kernel=Kernel.MATH)
    assert min(found) >= -0.02 and max(found) <= 0.25  # rows of one length have no mask


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("kind", HOST)
def test_a_network_on_the_host_allocates_no_more_than_its_law_says(kind, packed):
    """Real tensors in float32: the estimate is no lower than what a forward takes, nor far above it."""
    attends = "eager" if kind == "mpnet" and not packed else "sdpa"
    torch.manual_seed(0)
    network = blank(HOST[kind], attends, torch.float32, packed=packed)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    law = law_of(HOST[kind], 4, packed=packed, attends=attends, kernel=Kernel.HOST, host=True)
    for lengths in BATCHES:
        peak = measured(network, lengths, packed=packed, causal=is_causal(HOST[kind], attends))
        tokens = sum(lengths) + filling(sum(lengths))
        if not packed:
            tokens = padded_tokens(len(lengths), max(lengths), min(lengths))
        share = law.activations(tokens, max(lengths)) / peak
        assert 0.99 <= share <= (1.05 if packed else 1.4), lengths


@pytest.mark.parametrize(
    ("name", "packed"), [("MiniLM-L6", True), ("XLM-R-large", True), ("Qwen3-0.6B", True), ("XLM-R-large", False)]
)
def test_a_network_of_full_depth_weighs_and_streams_as_its_configuration_says(name, packed):
    law = law_of(ARCHITECTURES[name], 2, packed=packed)
    with Oracle(ARCHITECTURES[name], packed=packed) as network:
        weights = sum(each.numel() * each.element_size() for each in network.parameters())
        assert law.weights == pytest.approx(weights, rel=0.02)
        assert law.slots == pytest.approx(slot_bytes(network), rel=0.01)


def card_of(directory: Path, device_kind: str = "cuda", **model) -> ModelCard:
    spec = ModelSpec(directory.name, (str(tiny_model(directory, **model)),))
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), device_kind)


def test_the_law_of_a_packed_card_weighs_what_would_be_attached(tmp_path):
    card = card_of(tmp_path / "tiny", layers=3)
    values = sum(each.numel() for each in PackedEncoder.blank(card.config).parameters())
    assert card.dtype == "float16"
    for kind in ("cuda", "sim"):
        assert law_for(card, kind).weights == pytest.approx(2 * values, rel=0.02)
    assert law_for(replace(card, dtype="float32"), "cpu").weights == pytest.approx(4 * values, rel=0.02)


def test_the_law_of_a_padded_card_takes_its_weight_from_its_files(tmp_path):
    card = card_of(tmp_path / "tiny", pooling="max")
    assert not card.packed
    values = values_in(tmp_path / "tiny" / "model.safetensors")
    assert law_for(card, "cuda").weights == law_for(card, "sim").weights == 2 * values
    assert law_for(replace(card, dtype="float32"), "cpu").weights == 4 * values


@pytest.mark.parametrize("config", [{}, {"model_type": "unheard-of"}, {**QWEN3_06B, "model_type": "unheard-of"}])
def test_a_configuration_that_says_little_has_a_law_all_the_same(config):
    law = law_of(config, 2, packed=False, attends="eager")
    assert law.weights > 1 << 29 and law.slots > 0
    assert law.activations(1, 1) > 0


def test_the_masked_head_of_a_sparse_model_can_be_the_peak_and_is_in_the_weights():
    dense, sparse = (law_of(MINILM, 2, packed=True, kind=kind) for kind in ("dense", "sparse"))
    assert sparse.head is not None and sparse.weights > dense.weights + 2 * 30522 * 384
    assert sparse.activations(512, 512) > dense.activations(512, 512)


def test_what_a_token_takes_is_what_a_layer_holds_and_longer_rows_take_more_where_scores_are_kept():
    flat, steep = Law(0, 100.0), Law(0, 100.0, attention=60.0, pair=1.0)
    assert flat.activations(1000, 16) == flat.activations(1000, 900) == 100_000
    assert steep.activations(1000, 16) == 100_000
    assert steep.activations(1000, 96) == 156_000
    assert Law(0, 100.0, mask=0.5).activations(1000, 96) == 148_000
    assert Law(7, 1.0, square=2.0).peak(10, 5) == 7 + 10 + 2 * 16**2
    assert Law(7, 1.0, square=2.0, before=4.0).peak(10, 16) == 7 + 4 * 16**2


def test_the_estimate_with_its_first_margin_is_no_less_than_any_law_that_was_traced():
    """Where memory binds: of one row that is as long as may be, and of as many as a card of 80 GB could hold."""
    for about in json.loads(TRACED.read_text())["laws"]:
        traced, law = Traced(about["law"]), estimated(about)
        assert law.weights >= 0.999 * traced.weights and law.slots >= 0.995 * traced.slots
        for longest in {512, 2048, 8192, 32768} & set(range(about["limit"] + 1)):
            most = Calibration(margin=0.0).most_tokens(traced, longest, 76 << 30)
            for rows in {1, max(1, most // longest)}:
                needs = traced.activations(rows * longest, longest) - SMALL
                assert Calibration().activations(law, rows * longest, longest) >= needs, (about["model"], about["way"])
