"""Architectures of transformers, tiny and random: each text as sentence-transformers gives it alone, or a refusal.

Each is run over five mixes of lengths, with what a canary kept of another mix, and once more for the same bytes; as
questions its texts have the same vectors. Every setting that decides which rows a forward has is drawn anew.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.campaigns.process import aside
from bench.campaigns.tally import Campaign, Report, Room
from tests import builders

LEAST = 0.9999
LONGEST = 96
"""Tokens that a model takes."""
BORDER = 24
"""Tokens from which on positions of some models stretch."""
_HALVES = {"num_key_value_heads": 2, "head_dim": 8}
_ROPE = {"rope_theta": 10_000.0, "original_max_position_embeddings": BORDER}
_LONG = {**_ROPE, "rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 4.0}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1}
_T5 = {"d_kv": 8, "d_ff": 48, "num_decoder_layers": 1}
_BART = {
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
}  # fmt: skip
ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "bert": {}, "roberta": {"max_position_embeddings": 100}, "xlm-roberta": {"max_position_embeddings": 100},
    "mpnet": {"max_position_embeddings": 100}, "distilbert": {}, "electra": {"embedding_size": 16},
    "albert": {"embedding_size": 16}, "camembert": {"max_position_embeddings": 100},
    "data2vec-text": {"max_position_embeddings": 100},
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "conv_kernel_size": 3}, "ernie": {},
    "megatron-bert": {}, "rembert": {"input_embedding_size": 16, "output_embedding_size": 32},
    "roformer": {"embedding_size": 32}, "squeezebert": {"embedding_size": 32},
    "xlm-roberta-xl": {"max_position_embeddings": 100},
    "xmod": {"max_position_embeddings": 100, "default_language": "en_XX"},
    "nystromformer": {"segment_means_seq_len": 8, "num_landmarks": 8}, "fnet": {"tpu_short_seq_length": LONGEST},
    "convbert": {"embedding_size": 32}, "mobilebert": {"embedding_size": 16, "intra_bottleneck_size": 32},
    "canine": {"num_hash_buckets": 64}, "longformer": {"attention_window": 16, "max_position_embeddings": 130},
    "big_bird": {"block_size": 8}, "layoutlm": {}, "splinter": {}, "ibert": {"max_position_embeddings": 100},
    "esm": {"mask_token_id": 4, "max_position_embeddings": 100}, "yoso": {}, "t5": _T5, "mt5": _T5, "umt5": _T5,
    "switch_transformers": {**_T5, "num_experts": 4, "expert_capacity": 4}, "xlm": {"emb_dim": 32, "n_heads": 4},
    "gpt2": {"n_inner": 48}, "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "gpt_neox": {}, "gptj": {"rotary_dim": 4}, "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32}, "bloom": {},
    "bart": _BART, "llama": _HALVES,
    "llama yarn": {**_HALVES, "rope_scaling": {**_ROPE, "rope_type": "yarn", "factor": 4.0}},
    "llama dynamic": {**_HALVES, "rope_scaling": {**_ROPE, "rope_type": "dynamic", "factor": 4.0}},
    "mistral": {**_HALVES, "sliding_window": 16}, "qwen2": _HALVES, "qwen3": _HALVES,
    "qwen3_moe": {**_HALVES, **_EXPERTS}, "gemma": _HALVES, "gemma2": {**_HALVES, "sliding_window": 16},
    "gemma3_text": {**_HALVES, "sliding_window": 16}, "phi": {}, "phi3": {"num_key_value_heads": 2},
    "phi3 longrope": {"num_key_value_heads": 2, "rope_scaling": _LONG, "original_max_position_embeddings": BORDER},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 16}, "eurobert": _HALVES, "nomic_bert": {},
    "bert-generation": {}, "biogpt": {}, "blenderbot": _BART, "cohere": _HALVES, "glm": _HALVES, "granite": _HALVES,
    "gte": {}, "jina_embeddings_v3": {}, "m2m_100": _BART, "mbart": _BART, "modernbert-decoder": {}, "olmo": {},
    "olmo2": {}, "pegasus": _BART, "roberta-prelayernorm": {"max_position_embeddings": 100}, "smollm3": _HALVES,
    "stablelm": {}, "starcoder2": {"num_key_value_heads": 2}, "xglm": {"ffn_dim": 48, "attention_heads": 4},
    "mamba": {"state_size": 8}, "rwkv": {"attention_hidden_size": 32}, "reformer": {"axial_pos_embds": False},
}  # fmt: skip
MIXES: Mapping[str, Sequence[int]] = {
    "short": (1, 2, 3, 3, 5, 8, 13),
    "long": (62, 70, 70, 81, 90, 94),
    "mixed": (1, 4, 9, 16, 22, 30, 30, 47, 66, 94),
    "one long": (3, 3, 4, 6, 7, 94),
    "beyond": (10, 21, 22, 23, 60, 120, 150),
}
"""Words of the texts, each of one token; some are cut at what the model takes."""


def trial(room: Room) -> Report:
    """One architecture over one mix, after another mix."""
    name = list(ARCHITECTURES)[room.number % len(ARCHITECTURES)]
    mix = list(MIXES)[room.number // len(ARCHITECTURES) % len(MIXES)]
    before = room.rng.choice([each for each in MIXES if each != mix])
    drawn = {
        "batch_tokens": room.rng.choice((1, 40, 200, 4096)),
        "attention": room.rng.choice(("sdpa", "sdpa", "eager")),
        "devices": room.rng.choice(("cpu", "cpu", "sim:1xT4")),
        "pooling": room.rng.choice(("mean", "cls", "max", "lasttoken")),
    }
    kinds, wrong = aside(lambda: _tried(room.place, name, (before, mix), drawn))
    told = f"{name}, {mix} after {before}, {', '.join(f'{key} {value}' for key, value in drawn.items())}"
    report = Report(wrong=[f"{told}: {each}" for each in wrong])
    report.tried.update(["architectures", *kinds])
    return report


def _tried(place: Path, name: str, mixes: Sequence[str], drawn: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What became of it, and what was wrong; in a process of its own."""
    from interlock.engine.errors import InterlockError

    os.environ["INTERLOCK_CACHE"] = str(place / "cache")
    model, texts = place / "model", [_texts(mix) for mix in mixes]
    settings = ARCHITECTURES[name]
    kind = name.partition(" ")[0]
    builders.tiny_model(
        model, seed=3, kind=kind, max_tokens=LONGEST, pooling=drawn["pooling"],
        **{"initializer_range": 0.2, **settings},
    )  # fmt: skip
    ours, whys = [], []
    for number, mix in enumerate((*texts, texts[-1])):
        try:
            vectors = _run(place, model, mix, drawn, f"r{number}")
        except InterlockError as error:
            whys.append(str(error))
        else:
            ours.append(vectors)
    if whys:
        odd = [why for why in whys if "\n" in why or "computes wrongly" in why]
        return [f"refused {name}"], [*odd, *(["refused once and computed once"] if ours else [])]
    wrong = [] if ours[1].tobytes() == ours[2].tobytes() else ["other bytes when it is run once more"]
    fresh = "dynamic" in name
    for mix, vectors in zip(texts, ours, strict=False):
        wanted = _alone(model, mix, fresh=fresh)
        if (low := float((wanted * vectors).sum(1).min())) < LEAST:
            wrong.append(f"cosine {low:.5f} to sentence-transformers")
    asked = _asked(model, texts[-1], drawn)
    if asked is None or (low := float((asked * ours[1]).sum(1).min())) < LEAST:
        wrong.append(f"cosine {low:.5f} of the same text as a question")
    return ["equal"], wrong


def _texts(mix: str) -> list[str]:
    """Texts of so many words, none like another."""
    words = builders.WORDS
    return [
        " ".join(
            [words[number], *(words[(place + count + place // 7 * number) % len(words)] for place in range(count - 1))]
        )
        for number, count in enumerate(MIXES[mix])
    ]


def _run(place: Path, model: Path, texts: Sequence[str], drawn: Mapping[str, Any], name: str) -> Any:
    """The vectors that a run gives of the texts."""
    from interlock.engine.compute.controls import Controls
    from interlock.engine.errors import InterlockError
    from interlock.engine.flows.run import Run
    from interlock.engine.record import events as ev
    from interlock.engine.settings import load

    chunks = builders.corpus(place / f"{name}-in", {"Docs": {"a_chunks.json": list(texts)}})
    tokens = drawn["batch_tokens"]
    row = {"source": str(model), "batch_tokens": tokens, "gpu_batch_tokens": tokens, "attention": drawn["attention"]}
    file = builders.toml(place / f"{name}.toml", {"one": row})
    flags = {"out": str(place / "runs"), "roster": "one", "run_id": name, "devices": drawn["devices"]}
    run = Run(chunks, load(flags, {}, file), Controls())
    code = run.go()
    if code:
        failed = builders.events_of(run.directory.path, ev.PassFailed)
        raise InterlockError(failed[0].reason if failed else f"ended with {code}")
    (vectors,) = run.directory.path.glob("passes/*/vectors.npy")
    return np.load(vectors)


def _asked(model: Path, texts: Sequence[str], drawn: Mapping[str, Any]) -> Any:
    """What the texts have as questions."""
    from interlock.engine.compute.texts import encode_texts
    from interlock.engine.gpu.cpu import CpuDevice
    from interlock.engine.gpu.lease import Lessor
    from interlock.engine.models.assets import Policy, resolve
    from interlock.engine.models.card import read_card
    from interlock.engine.models.registry import ModelSpec

    spec, host = ModelSpec("one", (str(model),), attention=drawn["attention"]), CpuDevice()
    card = read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")
    return encode_texts(card, texts, "", Lessor([host], host.total)).dense


def _alone(model: Path, texts: Sequence[str], *, fresh: bool) -> Any:
    """What sentence-transformers gives of each text alone; a `fresh` model for each, where it remembers texts."""
    from sentence_transformers import SentenceTransformer

    kept = SentenceTransformer(str(model), device="cpu")
    each = [((SentenceTransformer(str(model), device="cpu") if fresh else kept), text) for text in texts]
    return np.concatenate([one.encode([text], normalize_embeddings=True) for one, text in each])


CAMPAIGN = Campaign(
    "architectures",
    trial,
    5 * len(ARCHITECTURES),
    "networks of any architecture, short and long texts together, as computed one by one",
)
