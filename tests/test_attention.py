"""Rows laid end to end attend to themselves alone: each gets what it gets padded, whatever lies beside it."""

import itertools
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from interlock.engine.models.networks import attention, fused
from interlock.engine.models.networks.attention import (
    NAME,
    ROTARY,
    attend,
    attending,
    older_transformers,
    register,
    why_padded,
)
from interlock.engine.models.networks.fused import fuse, pack_for_cpu
from interlock.engine.models.networks.kernels import FEW, TILE, Kernel, kernel_for, pack, precision_for

HOST = torch.device("cpu")
MIXES = ([70, 70, 33, 9, 9, 1], [64], [5] * 8, [1, 2, 3, 40])
SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 99,
    "max_position_embeddings": 256, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2,
    "sep_token_id": 3, "mask_token_id": 4,
}  # fmt: skip
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
CASES = {
    "eurobert": GROUPED, "gte": {}, "llama": GROUPED, "nomic_bert": {}, "qwen3": GROUPED,
    "qwen2": {"num_key_value_heads": 2}, "qwen2-both-ways": {"num_key_value_heads": 2, "is_causal": False},
    "qwen3-windows": GROUPED | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "mistral": GROUPED, "mistral-windows": GROUPED | {"sliding_window": 8},
    "mistral-windows-both-ways": GROUPED | {"sliding_window": 7, "is_causal": False},
    "qwen3-windows-both-ways":
        GROUPED | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "is_causal": False},
    "modernbert": {"local_attention": 16, "global_attn_every_n_layers": 2},
    "gemma3_text": GROUPED | {"sliding_window": 8},
    "gemma3_text-both-ways": GROUPED | {"sliding_window": 8, "use_bidirectional_attention": True},
}  # fmt: skip


BOTH_WAYS = ("qwen2-both-ways", "mistral-windows-both-ways", "qwen3-windows-both-ways")
"""Those whose direction is `is_causal` of their configuration."""


def network(name: str, attention: str) -> nn.Module:
    from transformers import CONFIG_MAPPING, AutoConfig, AutoModel

    if name.partition("-")[0] not in CONFIG_MAPPING:
        pytest.skip(f"the oldest transformers that is allowed has no {name}")
    settings = AutoConfig.for_model(name.partition("-")[0], **SMALL, **CASES[name])
    settings.use_cache = False
    torch.manual_seed(3)
    network = AutoModel.from_config(settings, attn_implementation=attention).eval()
    with torch.no_grad():
        for parameter in network.parameters():  # norms and biases are made as ones and zeros, which hide mistakes
            parameter.add_(torch.randn_like(parameter) * (0.2 if parameter.dim() == 1 else 0.0))
    return network


def padded(model: nn.Module, rows: list[np.ndarray]) -> torch.Tensor:
    longest = max(map(len, rows))
    ids, mask = torch.ones(len(rows), longest, dtype=torch.int64), torch.zeros(len(rows), longest, dtype=torch.int64)
    for number, row in enumerate(rows):
        ids[number, : len(row)], mask[number, : len(row)] = torch.from_numpy(row), 1
    with torch.inference_mode():
        hidden = model(input_ids=ids, attention_mask=mask)[0]
    return torch.cat([hidden[number, : len(row)] for number, row in enumerate(rows)])


def packed(model: nn.Module, rows: list[np.ndarray]) -> torch.Tensor:
    batch = pack(rows, HOST)
    with torch.inference_mode(), attending(batch):
        return model(input_ids=batch.ids[None], position_ids=batch.positions[None])[0][0, : batch.tokens]


def test_every_architecture_that_is_packed_is_compared():
    assert {name.partition("-")[0] for name in CASES} == ROTARY


@pytest.mark.parametrize("way", ["as transformers has it", "fused", "fused for the host"])
@pytest.mark.parametrize("name", CASES)
def test_a_row_laid_end_to_end_gets_what_it_gets_padded(name, way):
    if (older := older_transformers()) and name in ("modernbert", *BOTH_WAYS):
        pytest.skip(f"{older} has no such attention")
    plain, ours = network(name, "sdpa"), network(name, register())
    if way.startswith("fused"):
        fuse(ours)
    if way.endswith("host"):
        pack_for_cpu(ours)
    for lengths in MIXES:
        rows = [np.random.default_rng(number).integers(5, 99, length) for number, length in enumerate(lengths)]
        expected, got = padded(plain, rows), packed(ours, rows)
        assert torch.cosine_similarity(got, expected).min() > 0.99999
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)


def test_weights_of_a_norm_that_say_how_far_they_are_from_one_keep_their_bits_in_bfloat16():
    plain, ours = (network("gemma3_text", "sdpa").bfloat16() for _ in range(2))
    fuse(ours)
    rows = torch.randn(4096, plain.norm.weight.shape[0], generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.inference_mode():
        channels = (ours.norm(rows).float() / plain.norm(rows).float()).nanmean(0)
    assert (channels - 1).abs().max() < 5e-4  # 1 + w in bfloat16 is off by up to 39e-4


def test_modernbert_is_padded_by_a_transformers_that_does_not_let_it_attend_otherwise(monkeypatch):
    monkeypatch.setattr(attention, "version", lambda _: "5.5.4")
    assert why_padded({"model_type": "modernbert"}, "sdpa") == (
        "transformers 5.5.4 (before 5.6) computes its attention itself"
    )
    monkeypatch.setattr(attention, "version", lambda _: "5.6.0")
    assert not why_padded({"model_type": "modernbert"}, "sdpa")


def test_a_batch_says_where_each_token_stands():
    batch = pack([np.array([7, 8, 9]), np.array([5])], HOST)
    assert len(batch.ids) == TILE // 4
    assert batch.ids[:4].tolist() == [7, 8, 9, 5]
    assert batch.positions[:4].tolist() == [0, 1, 2, 0]
    assert batch.rows[:5].tolist() == [0, 0, 0, 1, 2]
    assert batch.starts.tolist() == [0, 3, 4]
    assert list(batch.runs()) == [(slice(0, 3), 3), (slice(3, 4), 1)]


def test_a_question_is_filled_up_by_less_than_a_batch():
    filled = {tokens: len(pack([np.zeros(tokens, np.int64)], HOST).ids) for tokens in (1, 8, 9, 121, FEW, FEW + 1, 300)}
    assert filled == {1: 8, 8: 8, 9: 16, 121: FEW, FEW: FEW, FEW + 1: FEW + TILE, 300: 320}


def test_fewer_heads_of_keys_serve_several_of_the_queries():
    rows = [np.zeros(length, np.int64) for length in (9, 4)]
    batch, dice = pack(rows, HOST), torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(len(batch.ids), heads, 8, generator=dice) for heads in (6, 2, 2))
    spread = [each.repeat_interleave(3, 1) for each in (key, value)]
    torch.testing.assert_close(attend(query, key, value, batch), attend(query, *spread, batch))


def test_a_window_of_one_token_less_than_the_row_keeps_its_ends_apart():
    dice, batch = torch.Generator().manual_seed(1), pack([np.zeros(9, np.int64)], HOST)
    parts = [torch.randn((len(batch.ids), 2, 8), generator=dice) for _ in range(3)]
    near = (torch.arange(9)[:, None] - torch.arange(9)).abs() < 8
    expected = torch.nn.functional.scaled_dot_product_attention(*(part[:9].transpose(0, 1) for part in parts), near)
    torch.testing.assert_close(attend(*parts, batch, window=8)[:9], expected.transpose(0, 1))


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(("width", "dtype"), [(20, torch.float32), (16, torch.bfloat16), (8, torch.float32)])
def test_a_gpu_is_given_runs_that_its_fused_kernels_take(monkeypatch, width, dtype, window):
    rows = [np.zeros(length, np.int64) for length in (9, 9, 4)]
    there, host = pack(rows, HOST, Kernel.RUNS), pack(rows, HOST)
    dice, given = torch.Generator().manual_seed(1), []
    shapes = [(len(host.ids), heads, width) for heads in (6, 2, 2)]
    parts = [torch.randn(shape, generator=dice).to(dtype) for shape in shapes]
    expected = attend(*parts, host, window=window)
    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda *parts, **more: (
            given.append((parts[1].shape[1], parts[0].shape[3] % 8, parts[0].dtype)) or fused(*parts, **more)
        ),
    )
    got = attend(*parts, there, window=window)
    assert given == [(6, 0, torch.float32)] * 2
    assert (got.shape, got.dtype) == (expected.shape, dtype)
    close = {"atol": 2e-2, "rtol": 2e-2} if dtype is torch.bfloat16 else {"atol": 1e-6, "rtol": 1e-5}
    torch.testing.assert_close(got, expected, **close)


@pytest.mark.parametrize(
    ("config", "dtype", "capability", "kernel"),
    [
        ({"model_type": "electra", "head_dim": 64}, "float16", (7, 5), Kernel.EFFICIENT),
        ({"model_type": "electra", "head_dim": 64}, "float16", (8, 0), Kernel.FLASH),
        ({"model_type": "electra", "head_dim": 26}, "float16", (7, 5), Kernel.MATH),
        ({"model_type": "electra", "head_dim": 26}, "float16", (8, 0), Kernel.RUNS),
        ({"model_type": "electra", "head_dim": 64}, "bfloat16", (7, 5), Kernel.MATH),
        ({"model_type": "electra", "head_dim": 26}, "float32", (8, 0), Kernel.MATH),
    ],
)
def test_scores_are_written_out_of_padded_rows_alone(config, dtype, capability, kernel):
    assert kernel_for(config, dtype, capability, packed=False) is kernel
    assert kernel_for(config, dtype, capability) in (Kernel.FLASH, Kernel.EFFICIENT)


@pytest.mark.parametrize(
    ("config", "dtype", "capability", "kernel"),
    [
        ({"model_type": "bert", "hidden_size": 384, "num_attention_heads": 12}, "float16", (7, 5), Kernel.EFFICIENT),
        ({"model_type": "bert", "hidden_size": 384, "num_attention_heads": 12}, "float16", (8, 0), Kernel.FLASH),
        ({"model_type": "bert", "hidden_size": 384, "num_attention_heads": 12}, "float32", (9, 0), Kernel.EFFICIENT),
        ({"model_type": "qwen3", "head_dim": 128}, "bfloat16", (9, 0), Kernel.FLASH),
        ({"model_type": "qwen3", "head_dim": 128}, "bfloat16", (7, 5), Kernel.EFFICIENT),
        ({"model_type": "qwen3", "head_dim": 128}, "float32", (7, 5), Kernel.EFFICIENT),
        ({"model_type": "llama", "head_dim": 512}, "float16", (8, 0), Kernel.EFFICIENT),
        ({"model_type": "llama", "head_dim": 20}, "float16", (8, 0), Kernel.FLASH),
        ({"model_type": "bert", "head_dim": 26}, "float16", (7, 5), Kernel.EFFICIENT),
        ({"model_type": "mpnet", "hidden_size": 768, "num_attention_heads": 12}, "float16", (8, 0), Kernel.RUNS),
    ],
)
def test_a_gpu_takes_the_kernel_that_is_built_for_it(config, dtype, capability, kernel):
    assert kernel_for(config, dtype, capability) is kernel


@pytest.mark.parametrize(
    ("architecture", "on_a_t4", "on_an_a100"),
    [
        ("xlm-roberta", "float16", "float16"),
        ("qwen3", "float16", "bfloat16"),
        ("gemma3_text", "float32", "bfloat16"),
        ("qwen2", "float32", "bfloat16"),
    ],
)
def test_the_precision_of_a_gpu_is_that_in_which_the_architecture_does_not_overflow(architecture, on_a_t4, on_an_a100):
    config = {"model_type": architecture}
    assert (precision_for(config, (7, 5)), precision_for(config, (8, 0))) == (on_a_t4, on_an_a100)


def test_scores_that_are_capped_or_computed_eagerly_are_padded():
    assert not why_padded({"model_type": "gemma3_text"}, "sdpa")
    assert "capped" in why_padded({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "sdpa")
    assert "eager" in why_padded({"model_type": "qwen3"}, "eager")
    assert "electra" in why_padded({"model_type": "electra"}, "sdpa")
    assert register() == NAME


def scores_by_hand(query, key, value, offsets, sees, scale):
    """Attention of each row written out; `sees(i, j)` says for places [L, 1] and [1, L] whether i sees j."""
    spread = [each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value)]
    out = torch.full_like(query, torch.nan)
    for start, stop in itertools.pairwise(offsets.tolist()):
        q, k, v = (each[start:stop].transpose(0, 1) for each in (query, *spread))
        place = torch.arange(stop - start)
        unseen = sees(place[:, None], place[None]).logical_not()
        scores = (q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)).masked_fill(unseen, -torch.inf)
        out[start:stop] = (scores.softmax(-1) @ v).transpose(0, 1)
    return out


def flash(query, key, value, begins, ends, most, longest, dropout, causal, debug, *, scale, window_size_left,
          window_size_right):  # fmt: skip
    """What pytorch's flash_api.cpp says: j is seen from i - left to i + right, where they are not negative."""
    assert (begins is ends, most == longest, dropout, debug) == (True, True, 0.0, False)
    assert begins.dtype is torch.int32
    right = 0 if causal and longest > 1 else window_size_right
    if longest == 1 and query.shape[1] > key.shape[1] and window_size_left < 0 and right < 0:
        query.reshape(len(begins) - 1, *query.shape[1:])  # `seqlenq_ngroups_swapped`: raises where tokens are filled up

    def sees(i, j):
        return ((j >= i - window_size_left) | (window_size_left < 0)) & ((j <= i + right) | (right < 0))

    return (scores_by_hand(query, key, value, begins, sees, scale),)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention_takes_rows_of_one_token_with_fewer_heads_of_keys(monkeypatch, causal):
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash)
    batch, dice = pack([np.zeros(1, np.int64)] * 3, HOST, Kernel.FLASH), torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(len(batch.ids), heads, 8, generator=dice) for heads in (6, 2, 2))
    got = attend(query, key, value, batch, causal=causal)
    torch.testing.assert_close(got[:3], value[:3].repeat_interleave(3, 1))  # of itself alone


def efficient(query, key, value, bias, begins, ends, most, longest, dropout, mask, *, scale, window_size):
    """What kernel_forward.h says: causal where the mask is 1, and keys that are `window_size` away or more unseen."""
    assert (bias, begins is ends, most == longest, dropout) == (None, True, True, 0.0)
    assert query.shape[2] == key.shape[2] == value.shape[2]
    assert window_size is None or mask

    def sees(i, j):
        return ((j <= i) | (mask == 0)) & (i - j < (window_size or 1 << 20))

    return (scores_by_hand(*(each[0] for each in (query, key, value)), begins, sees, scale)[None],)


@pytest.mark.parametrize("scale", [None, 0.1])
@pytest.mark.parametrize("window", [None, 1, 5, 9, 12, 13])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", [Kernel.FLASH, Kernel.EFFICIENT])
def test_a_fused_kernel_is_asked_for_what_is_computed_in_runs(monkeypatch, kernel, causal, window, scale):
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", flash)
    monkeypatch.setattr(torch.ops.aten, "_efficient_attention_forward", efficient)
    rows, dice = [np.zeros(length, np.int64) for length in (12, 12, 7, 1)], torch.Generator().manual_seed(1)
    batches = [pack(rows, HOST, each) for each in (kernel, Kernel.RUNS)]
    query, key, value = (torch.randn(len(batches[0].ids), heads, 8, generator=dice) for heads in (6, 2, 2))
    got, expected = (
        attend(query, key, value, batch, causal=causal, window=window, scale=scale)[: batch.tokens] for batch in batches
    )
    torch.testing.assert_close(got, expected)


def test_each_map_gives_its_memory_back_once_it_is_packed(monkeypatch):
    """Of one that was held until all are packed a model would be in memory twice."""
    network = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8)) for _ in range(4)))
    maps, held = [weakref.ref(part) for part in network.modules() if type(part) is nn.Linear], []

    def packed(part):
        held.append(sum(each() is not None for each in maps))
        return nn.Identity()

    monkeypatch.setattr(fused, "_HostLinear", packed)
    pack_for_cpu(network)
    assert held == [4, 3, 2, 1]
