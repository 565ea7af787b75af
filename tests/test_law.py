"""The memory law against full-depth traces of published architectures, and against what real networks allocate."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from interlock.engine.gpu.memory import GRAIN, Law, Sample, fit, worst_error
from interlock.engine.models import subjects, trace
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.layout import values_in
from interlock.engine.models.network import PackedEncoder
from interlock.engine.models.packing import filling
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.sdpa import Kernel
from interlock.engine.models.stages import slot_bytes
from interlock.engine.models.trace import law_for, law_of, law_of_config_only, shapes
from tests.architectures import (
    ARCHITECTURES,
    LIMITS,
    MINILM,
    MODERNBERT_BASE,
    MPNET_BASE,
    QWEN3_06B,
)
from tests.builders import tiny_model
from tests.oracle import Oracle, blank, blank_padded, lengths_of, measured

SDPA = ("XLM-R-large", "ModernBERT-base", "Qwen3-0.6B")
CASES = [  # every pair of an architecture and a kernel is in bench/law.py
    *((name, Kernel.FLASH) for name in ("MiniLM-L6", "Qwen3-0.6B", "ModernBERT-base")),
    *((name, Kernel.EFFICIENT) for name in ("XLM-R-large", "Qwen3-0.6B")),
    ("MPNet-base", Kernel.RUNS),
    *((name, "sdpa") for name in SDPA),
    *((name, "eager") for name in ("MPNet-base", "Qwen2-1.5B")),
]
SMALL = {"num_hidden_layers": 3, "vocab_size": 300, "hidden_size": 128, "num_attention_heads": 4, "pad_token_id": 0}
SPECIALS = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
REAL = {
    "bert": {**MINILM, **SMALL, "intermediate_size": 512},
    "mpnet": {**MPNET_BASE, **SMALL, "intermediate_size": 512, "pad_token_id": 1},
    "modernbert": {**MODERNBERT_BASE, **SMALL, **SPECIALS, "intermediate_size": 192, "max_position_embeddings": 256},
    "qwen3": {**QWEN3_06B, **SMALL, **SPECIALS, "intermediate_size": 384, "num_key_value_heads": 2, "head_dim": 32}
    | {"max_position_embeddings": 256},
}
BATCHES = ([250] * 2, [50] * 16, [250], [60, 50, 40, 60], [200, 120, 199])


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of laws."""
    monkeypatch.setenv("INTERLOCK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "laws"


@pytest.fixture
def coarse(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Laws of few forwards: for what two of them have in common, or for weights."""
    monkeypatch.setattr(trace, "shapes", lambda *span: shapes(*span)[::3])


@pytest.fixture
def untraceable(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on a trace would be a mistake."""
    monkeypatch.setattr(trace, "_traced", lambda *_, **__: pytest.fail("traced"))


def law_named(name: str, packed: bool, attention: str = "sdpa", kernel: Kernel = Kernel.HOST) -> Law:
    return law_of(ARCHITECTURES[name], packed=packed, dtype=torch.float16, attention=attention, kernel=kernel)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Law]:
    """Every law that is traced from here on: that of MiniLM, as it was traced before."""
    law, found = law_named("MiniLM-L6", True), list[Law]()
    monkeypatch.setattr(trace, "_traced", lambda *_, **__: found.append(law) or law)
    return found


def tokens_of(lengths, packed):
    if packed:
        return sum(lengths) + filling(sum(lengths))
    return len(lengths) * (max(lengths) if len(set(lengths)) == 1 else -(-max(lengths) // 16) * 16)


def predicted(law: Law, lengths, packed):
    return law.for_rows(lengths).activations(tokens_of(lengths, packed), max(lengths))


def card_of(directory: Path, device_kind: str = "cuda", **model) -> ModelCard:
    spec = ModelSpec(directory.name, (str(tiny_model(directory, **model)),))
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), device_kind)


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_the_law_is_within_one_percent_of_a_published_architecture(name, attention):
    packed = isinstance(attention, Kernel)
    how = ("sdpa", attention) if packed else (attention, Kernel.HOST)
    law = law_named(name, packed, *how)
    oracle = Oracle(ARCHITECTURES[name], packed=packed, attention=how[0], kernel=how[1])
    generator = np.random.default_rng(11)
    activations, totals = [], []
    for even in (True, False, True):
        lengths = lengths_of(generator, LIMITS[name], 1 << 16, packed=packed, even=even)
        peak = oracle.peak(lengths)
        error = abs(predicted(law, lengths, packed) - peak)
        activations.append(error / peak)
        totals.append(
            abs(law.weights - oracle.weights + predicted(law, lengths, packed) - peak) / (oracle.weights + peak)
        )
    assert max(totals) <= 0.002
    assert median(activations) <= 0.01


@pytest.mark.parametrize(
    ("name", "attention"), [("Qwen3-0.6B", "sdpa"), ("ModernBERT-base", "sdpa"), ("Qwen2-1.5B", "eager")]
)
def test_the_law_knows_the_masks_of_the_longest_row(name, attention):
    law = law_named(name, False, attention)
    oracle = Oracle(ARCHITECTURES[name], packed=False, attention=attention)
    for lengths in ([8192], [8192, 5000]):
        assert predicted(law, lengths, False) == pytest.approx(oracle.peak(lengths), rel=0.002)


def test_the_law_knows_when_the_mask_of_a_window_is_copied():
    """Rows of one length have no mask of padding; that of their window is copied where it is not aligned."""
    law = law_named("ModernBERT-base", False, kernel=Kernel.EFFICIENT)
    oracle = Oracle(ARCHITECTURES["ModernBERT-base"], packed=False, kernel=Kernel.EFFICIENT)
    for length in (8192, 8191):
        assert predicted(law, [length] * 4, False) == pytest.approx(oracle.peak([length] * 4), rel=0.002)


@pytest.mark.parametrize(("kind", "narrow"), [("bert", True), ("mpnet", False), ("modernbert", True), ("qwen3", False)])
def test_a_padded_network_allocates_what_the_law_says(kind, narrow):
    attention = "eager" if kind == "mpnet" else "sdpa"
    network = _filled(blank_padded(REAL[kind], attention, torch.float32))
    law = law_of(REAL[kind], packed=False, dtype=torch.float32, attention=attention, narrow=narrow)
    for lengths in BATCHES:
        peak = measured(network, lengths, packed=False, narrow=narrow)
        assert predicted(law, lengths, False) == pytest.approx(peak, rel=0.01)


@pytest.mark.parametrize(
    ("kind", "narrow"), [("bert", False), ("bert", True), ("mpnet", False), ("modernbert", True), ("qwen3", False)]
)
def test_a_packed_network_allocates_no_more_than_the_law_says(kind, narrow):
    """Where rows of several lengths take their turns, the law is that of the turn which takes the most."""
    network = _filled(blank(REAL[kind], "sdpa", torch.float32, packed=True))
    law = law_of(REAL[kind], packed=True, dtype=torch.float32, narrow=narrow)
    for lengths in BATCHES:
        peak = measured(network, lengths, packed=True, narrow=narrow)
        assert predicted(law, lengths, True) >= 0.998 * peak
        if len(set(lengths)) == 1 and kind != "mpnet":
            assert predicted(law, lengths, True) == pytest.approx(peak, rel=0.005)


def _filled(network: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return network


@pytest.mark.parametrize("name", SDPA)
def test_rows_of_one_length_need_less_because_no_mask_is_made(name):
    law = law_named(name, False)
    even, mixed = [LIMITS[name]] * 4, [LIMITS[name]] * 3 + [LIMITS[name] - 1]
    assert law.for_rows(mixed) == law
    assert law.for_rows(even).peak(4 * LIMITS[name], LIMITS[name]) < law.peak(4 * LIMITS[name], LIMITS[name])


def test_layers_of_two_kinds_far_apart_both_count():
    kinds = ["full_attention"] * 5 + ["sliding_attention"]
    config = {**MODERNBERT_BASE, "num_hidden_layers": 6, "layer_types": kinds}
    law = law_of(config, packed=False, dtype=torch.float16)
    oracle = Oracle(config, packed=False)
    for lengths in ([2048] * 8, [2048] * 7 + [1]):
        assert predicted(law, lengths, False) == pytest.approx(oracle.peak(lengths), rel=0.002)


@pytest.mark.parametrize("name", ["MiniLM-L6", "XLM-R-large"])
def test_a_packed_network_of_full_depth_weighs_what_the_law_says(name):
    law = law_named(name, True)
    with Oracle(ARCHITECTURES[name], packed=True) as network:
        assert law.weights == sum(each.numel() * each.element_size() for each in network.parameters())
        assert law.slots == slot_bytes(network)


@pytest.mark.parametrize("name", SDPA)
def test_a_padded_network_of_full_depth_weighs_and_streams_as_the_law_says(name):
    law = law_named(name, False)
    with Oracle(ARCHITECTURES[name], packed=False) as network:
        weights = sum(each.numel() * each.element_size() for each in network.parameters())
        assert law.weights == pytest.approx(weights, rel=0.0005)
        assert law.slots == slot_bytes(network)


@pytest.mark.usefixtures("coarse")
def test_the_law_of_a_packed_card_weighs_what_would_be_attached(tmp_path):
    card = card_of(tmp_path / "tiny", layers=3)
    values = sum(each.numel() for each in PackedEncoder.blank(card.config).parameters())
    assert card.dtype == "float16"
    assert law_for(card, "cuda").weights == 2 * values
    assert law_for(card, "sim").weights == 2 * values


@pytest.mark.usefixtures("coarse")
def test_the_law_of_a_padded_card_takes_its_weight_from_its_files(tmp_path):
    card = card_of(tmp_path / "tiny", pooling="max")
    assert not card.packed
    values = values_in(tmp_path / "tiny" / "model.safetensors")
    assert law_for(card, "cuda").weights == law_for(card, "sim").weights == 2 * values
    assert law_for(replace(card, dtype="float32"), "cpu").weights == 4 * values


@pytest.mark.usefixtures("coarse")
def test_a_simulated_card_has_the_law_of_float32_charged_at_half(tmp_path):
    card = card_of(tmp_path / "tiny", width=256, pooling="max", intermediate_size=1024)
    narrow, whole = law_for(card, "sim"), law_of(card.config, packed=False, dtype=torch.float32)
    assert narrow == replace(
        law_of(card.config, packed=False, dtype=torch.float32, narrow=True),
        weights=narrow.weights,
        bare=narrow.bare,
    )
    assert narrow.activations(8192, 64) == pytest.approx(whole.activations(8192, 64) / 2, rel=0.02)


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_the_closed_form_for_a_packed_model_on_the_host_agrees_with_the_trace(tmp_path, kind):
    card = card_of(tmp_path / "tiny", "cpu", kind=kind, width=256, intermediate_size=1024, max_tokens=512)
    traced = law_of(card.config, packed=True, dtype=torch.float32)
    for tokens, longest in ((32768, 64), (8192, 512), (512, 512)):
        assert law_for(card, "cpu").activations(tokens, longest) == pytest.approx(
            traced.activations(tokens, longest), rel=0.07
        )


@pytest.mark.usefixtures("untraceable")
def test_nothing_is_traced_or_kept_for_a_packed_model_on_the_host(tmp_path, kept):
    card = card_of(tmp_path / "tiny", "cpu")
    assert law_for(card, "cpu").weights == 4 * values_in(tmp_path / "tiny" / "model.safetensors")
    assert not kept.exists()


@pytest.mark.usefixtures("coarse")
def test_a_configuration_alone_has_the_law_of_the_model_as_it_would_run():
    assert law_of_config_only(MINILM, "cuda") == law_of(MINILM, packed=True, dtype=torch.float16)
    assert law_of_config_only(MINILM, "sim") == law_of(MINILM, packed=True, dtype=torch.float32, narrow=True)
    on_host = law_of_config_only(MINILM, "cpu", torch.float32)
    assert on_host.weights == law_of(MINILM, packed=True, dtype=torch.float32).weights
    assert on_host.phases == ((4.0 * 6 * 384, 0.0),)


def test_a_law_traced_before_is_read(monkeypatch):
    first = law_of(MPNET_BASE, packed=True, dtype=torch.float16)
    monkeypatch.setattr(trace, "_traced", lambda *_, **__: pytest.fail("traced"))
    assert law_of(MPNET_BASE, packed=True, dtype=torch.float16) == first
    assert law_of({**MPNET_BASE, "_name_or_path": "elsewhere"}, packed=True, dtype=torch.float16) == first


def test_each_circumstance_has_a_law_of_its_own(monkeypatch, kept):
    calls = []
    monkeypatch.setattr(trace, "_traced", lambda *_, **__: calls.append(1) or Law(len(calls), 0, ((1.0, 0.0),)))
    usual = {"packed": False, "dtype": torch.float16, "attention": "sdpa", "narrow": False}
    others = [{"packed": True}, {"dtype": torch.float32}, {"attention": "eager"}, {"narrow": True}]
    laws = {law_of(MINILM, **usual).weights} | {law_of(MINILM, **{**usual, **other}).weights for other in others}
    laws.add(law_of({**MINILM, "hidden_size": 768}, **usual).weights)
    monkeypatch.setattr(trace.metadata, "version", lambda name: f"another {name}")
    laws.add(law_of(MINILM, **usual).weights)
    monkeypatch.setattr(trace, "LAW_VERSION", trace.LAW_VERSION + 1)
    laws.add(law_of(MINILM, **usual).weights)
    assert len(laws) == len(list(kept.iterdir())) == 8


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"weights": "heavy"}', b"\xff\xfe"])
def test_an_unreadable_kept_law_is_traced_and_kept_again(traced, kept, content):
    law = law_named("MiniLM-L6", True)
    (file,) = kept.iterdir()
    file.write_bytes(content)
    assert law_named("MiniLM-L6", True) == law
    assert len(traced) == 2
    assert json.loads(file.read_bytes())["weights"] == law.weights


def test_a_law_that_cannot_be_kept_is_traced_each_time(traced, kept):
    kept.parent.mkdir()
    kept.write_text("a file where the directory should be")
    assert law_named("MiniLM-L6", True) == law_named("MiniLM-L6", True)
    assert len(traced) == 2


def test_an_untraceable_architecture_gets_a_generous_law_that_is_not_kept(monkeypatch, request):
    traced = law_named("Qwen3-0.6B", False)
    kept = request.getfixturevalue("kept")
    monkeypatch.setattr(subjects, "_blank", lambda _: (_ for _ in ()).throw(RuntimeError("no such operator")))
    guessed = law_named("Qwen3-0.6B", False)
    assert not kept.exists()
    for tokens, longest in ((16384, 64), (16384, 512), (8192, 8192)):
        assert traced.peak(tokens, longest) < guessed.peak(tokens, longest) < 3 * traced.peak(tokens, longest)


@pytest.mark.parametrize("lengths", [[64], [65], [65, 1], [66], [66, 60, 3], [64] * 9])
def test_rows_that_a_window_begins_to_cut_have_a_law_of_their_own(lengths):
    """ModernBERT's local layers see 64 tokens to either side: the 66th is not seen by the first."""
    config = {**MODERNBERT_BASE, "num_hidden_layers": 4, "vocab_size": 300, **SPECIALS, "pad_token_id": 0}
    law = law_of(config, packed=True, dtype=torch.float16, kernel=Kernel.EFFICIENT)
    peak = Oracle(config, packed=True, kernel=Kernel.EFFICIENT).peak(lengths)
    assert law.reach == 65
    assert abs(predicted(law, lengths, True) - peak) <= max(0.005 * peak, GRAIN)


def test_traced_shapes_stay_within_what_the_model_takes():
    for longest in (1, 2, 15, 40, 126, 510, 8192, 32766):
        chosen = shapes(longest)
        assert all(rows >= 1 and 1 <= length <= longest for rows, length in chosen)
        assert max(length for _, length in chosen) > 0.8 * longest


TERM = st.floats(0, 60)


@settings(max_examples=40, deadline=None)
@given(
    st.floats(1e3, 1e5), TERM, st.floats(0.1, 0.9), st.floats(1, 100), TERM, st.floats(0, 1000), st.integers(0, 50_000)
)
@example(24154.0, 0.0, 0.25, 6.0, 0.0, 21.0, 0)
def test_a_law_fitted_to_two_phases_predicts_every_other_forward(fixed, slope, share, steeper, square, line, constant):
    truth = Law(0, constant, ((fixed, slope), (fixed * share, slope + steeper)), square=square, line=line)
    samples = [Sample(rows * length, length, truth.activations(rows * length, length)) for rows, length in shapes(8192)]
    law = fit(samples)
    others = [
        Sample(rows * length, length, truth.activations(rows * length, length))
        for rows, length in ((700, 40), (30, 700), (9, 8192), (3, 2500), (1, 5000))
    ]
    assert worst_error(law, others) <= 0.005
    assert worst_error(law, samples) <= 0.001
