"""Networks of Alibaba's type `new`: computed as their published code says, which is read here and never run.

The reference is written anew of `modeling.py` of Alibaba-NLP/new-impl: each row alone, in float64, with numbers turned
in the complex plane.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from interlock.engine.compute.context import Granted
from interlock.engine.compute.encoder import encoder_for
from interlock.engine.compute.pairs.scorer import Scorer
from interlock.engine.errors import UnavailableError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.memory import law_of
from interlock.engine.models.networks.checkpoint import usual
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.roster import cards_of
from interlock.engine.models.scoring import read_scorer
from interlock.engine.models.weights import attach_to_host
from interlock.engine.record.events import AnyEvent, Warned
from tests.builders import sentences, tiny_model

WIDTH, INNER, HEADS, DEPTH = 32, 48, 2, 2
PUBLISHED = {
    "gte-base-en-v1.5": {"rope_theta": 500000, "rope_scaling": {"factor": 2.0, "type": "ntk"}, "type_vocab_size": 0},
    "gte-large-en-v1.5": {"rope_theta": 160000, "rope_scaling": {"factor": 2.0, "type": "ntk"}, "type_vocab_size": 2},
    "gte-multilingual": {"rope_theta": 20000, "rope_scaling": {"factor": 8.0, "type": "ntk"}, "type_vocab_size": 1},
    "without a scaling": {"rope_scaling": None},
}
"""What tells the published models apart."""
MIXES = ([70, 70, 33, 9, 9, 1], [64], [5] * 8, [1, 2, 3, 40], [120, 3, 120, 7])
State = dict[str, Tensor]


@pytest.fixture(autouse=True)
def known():
    transformers = pytest.importorskip("transformers")
    if "gte" not in transformers.CONFIG_MAPPING:
        pytest.skip("the oldest transformers that is allowed has no gte")


def tiny_new(directory: Path, *, before: str = "", scores: bool = False, **said: object) -> tuple[Path, State]:
    """A model of type `new` as it is published; `before` stands before the names of its tensors."""
    tiny_model(directory, pooling="cls")
    words = json.loads((directory / "config.json").read_text())["vocab_size"]
    settings = {
        "model_type": "new", "architectures": ["NewForSequenceClassification" if scores else "NewModel"],
        "auto_map": {"AutoConfig": "configuration.NewConfig", "AutoModel": "modeling.NewModel"},
        "vocab_size": words, "hidden_size": WIDTH, "intermediate_size": INNER, "num_attention_heads": HEADS,
        "num_hidden_layers": DEPTH, "max_position_embeddings": 128, "type_vocab_size": 1, "layer_norm_eps": 1e-12,
        "layer_norm_type": "layer_norm", "position_embedding_type": "rope", "pack_qkv": True, "pad_token_id": 0,
        "hidden_act": "gelu", "unpad_inputs": False, "use_memory_efficient_attention": False, **said,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(settings | ({"num_labels": 1} if scores else {})))
    shapes = {"embeddings.word_embeddings.weight": (words, WIDTH), **norm("embeddings.LayerNorm")}
    if types := int(str(settings["type_vocab_size"])):
        shapes["embeddings.token_type_embeddings.weight"] = (types, WIDTH)
    for at in (f"encoder.layer.{number}." for number in range(DEPTH)):
        shapes |= linear(f"{at}attention.qkv_proj", 3 * WIDTH, WIDTH) | linear(f"{at}attention.o_proj", WIDTH, WIDTH)
        shapes |= linear(f"{at}mlp.down_proj", WIDTH, INNER) | norm(f"{at}attn_ln") | norm(f"{at}mlp_ln")
        shapes[f"{at}mlp.up_gate_proj.weight"] = (2 * INNER, WIDTH)
    if scores:
        shapes |= linear("pooler.dense", WIDTH, WIDTH)
        (directory / "modules.json").unlink()
    numbers = torch.Generator().manual_seed(5)
    state = {name: torch.randn(shape, generator=numbers) * 0.3 for name, shape in shapes.items()}
    head = {name: torch.randn(shape, generator=numbers) for name, shape in linear("classifier", 1, WIDTH).items()}
    kept = {before + name: tensor for name, tensor in state.items()} | (head if scores else {})
    save_file(kept, directory / "model.safetensors", {"format": "pt"})
    return directory, state | head


def norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}


def linear(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def states_of(state: State, config: dict[str, Any], row: np.ndarray) -> Tensor:
    """The last hidden states [T, width] of one row of ids."""
    wide = {name: tensor.double() for name, tensor in state.items()}

    def normed(name: str, rows: Tensor) -> Tensor:
        return F.layer_norm(rows, (WIDTH,), wide[f"{name}.weight"], wide[f"{name}.bias"], 1e-12)

    size = WIDTH // HEADS
    stretch = (config["rope_scaling"] or {"factor": 1.0})["factor"]
    places = torch.arange(size // 2, dtype=torch.float64)
    speeds = (config.get("rope_theta", 10000) * stretch) ** (-2 * places / size) / stretch ** (2 / size)
    turn = torch.polar(torch.ones(1).double(), torch.arange(len(row)).double()[:, None] * speeds)[:, None]

    def turned(rows: Tensor) -> Tensor:
        first, second = torch.view_as_real(torch.complex(*rows.chunk(2, -1)) * turn).unbind(-1)
        return torch.cat([first, second], -1)

    rows = wide["embeddings.word_embeddings.weight"][torch.from_numpy(row)]
    if config["type_vocab_size"]:
        rows = rows + wide["embeddings.token_type_embeddings.weight"][0]
    rows = normed("embeddings.LayerNorm", rows)
    for at in (f"encoder.layer.{number}." for number in range(DEPTH)):
        apart = rows @ wide[f"{at}attention.qkv_proj.weight"].T + wide[f"{at}attention.qkv_proj.bias"]
        query, key, value = apart.view(len(row), 3, HEADS, size).unbind(1)
        seen = (torch.einsum("qhd,khd->hqk", turned(query), turned(key)) / size**0.5).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", seen, value).flatten(1)
        rows = rows + mixed @ wide[f"{at}attention.o_proj.weight"].T + wide[f"{at}attention.o_proj.bias"]
        rows = normed(f"{at}attn_ln", rows)
        up, gate = (rows @ wide[f"{at}mlp.up_gate_proj.weight"].T).chunk(2, -1)
        more = (F.gelu(gate) * up) @ wide[f"{at}mlp.down_proj.weight"].T + wide[f"{at}mlp.down_proj.bias"]
        rows = normed(f"{at}mlp_ln", rows + more)
    return rows


def card_of(directory: Path) -> ModelCard:
    spec = ModelSpec("m", (str(directory),))
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_network_of_type_new_computes_what_its_code_says(tmp_path, name):
    model, state = tiny_new(tmp_path, before="new." * (name == "gte-multilingual"), **PUBLISHED[name])
    card = card_of(model)
    assert card.packed and not card.padded_because
    config = {"type_vocab_size": 1} | PUBLISHED[name]
    encoder = encoder_for(card, attach_to_host(card, CpuDevice()).network, CpuDevice())
    for lengths in MIXES:
        rows = [np.random.default_rng(number).integers(5, 99, length) for number, length in enumerate(lengths)]
        got = torch.from_numpy(encoder.encode(rows).dense).double()
        expected = torch.stack([states_of(state, config, row)[0] for row in rows])
        assert torch.cosine_similarity(got, expected).min() > 0.999999


def test_a_reranker_of_type_new_scores_as_its_code_says(tmp_path):
    model, state = tiny_new(tmp_path, before="new.", scores=True, **PUBLISHED["gte-multilingual"])
    spec, host = ModelSpec("m", (str(model),), kind="scores"), CpuDevice()
    card = read_scorer(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")
    texts = sentences(6, words=20)
    with Scorer(card, "identity", Granted([], host, Lessor([host], 8 << 30), lambda _: None)) as scorer:
        got = scorer.score([(texts[0], text) for text in texts])
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    for text, score in zip(texts, got, strict=True):
        ids = np.array(tokenizer.encode(texts[0], text).ids)
        first = states_of(state, PUBLISHED["gte-multilingual"], ids)[0]
        pooled = (state["pooler.dense.weight"].double() @ first + state["pooler.dense.bias"].double()).tanh()
        logit = state["classifier.weight"].double() @ pooled + state["classifier.bias"].double()
        assert score == pytest.approx(logit.item(), abs=1e-5)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"layer_norm_type": "rms_norm"}, "layer_norm_type is 'rms_norm'"),
        ({"position_embedding_type": "absolute"}, "position_embedding_type is 'absolute'"),
        ({"pack_qkv": False}, "pack_qkv is False"),
        ({"logn_attention_scale": True}, "logn_attention_scale is True"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling is {'type': 'dynamic'"),
        ({"rope_scaling": {"type": "ntk", "factor": 2.0, "mixed_b": 0.6}}, "rope_scaling is .*mixed_b"),
        ({"rope_scaling": {"type": "ntk", "factor": 0.5}}, "rope_scaling is"),
    ],
)
def test_a_setting_that_is_not_computed_is_refused_by_file_and_key(tmp_path, said, why):
    model, _ = tiny_new(tmp_path, **said)
    with pytest.raises(UnavailableError, match=rf"config.json: {why}.*not supported in a network of type new: use"):
        card_of(model)


@pytest.mark.parametrize(("code", "told"), [("Alibaba-NLP/new-impl--modeling.NewModel", 0), ("own.Other", 1)])
def test_code_is_told_where_it_is_not_the_published_one(tmp_path, code, told):
    model, _ = tiny_new(tmp_path, auto_map={"AutoModel": code})
    events = list[AnyEvent]()
    cards_of([ModelSpec("m", (str(model),))], Policy(offline=True), [CpuDevice()], events.append)
    assert sum("auto_map" in event.message for event in events if isinstance(event, Warned)) == told


def test_a_plan_without_weights_knows_what_a_network_of_type_new_needs():
    sizes = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
    said = {"vocab_size": 250048, "max_position_embeddings": 8192, **sizes}
    law = law_of(usual({"model_type": "new", **said, **PUBLISHED["gte-multilingual"]}), 2, packed=True)
    # the published file of gte-multilingual-base has 305 million parameters
    assert law.weights == pytest.approx(2 * 305e6, rel=0.01)
    assert law.slots and not law.pair
