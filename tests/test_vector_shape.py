"""Prompts that pooling leaves out, and vectors that a model's own settings cut: as sentence-transformers, one text at a
time."""

import json
from pathlib import Path

import numpy as np
import pytest

import interlock
from interlock.engine.compute.texts import HeldJobs
from interlock.engine.errors import UnavailableError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.registry import extended, find
from tests.builders import corpus, sentence_transformer, sentences, summary_of, tiny_model

PROMPTS = {"document": "it is this of ", "query": "find: to and the of is for "}
TEXTS = [*sentences(6), "", "the of and to in is for " * 20 + "final word differs", "a"]
POOLING, MODEL = "1_Pooling/config.json", "config_sentence_transformers.json"
KINDS = [("bert", "mean"), ("bert", "cls"), ("modernbert", "mean"), ("electra", "mean")]
OTHERS = [("bert", "lasttoken"), ("bert", "max"), ("bert", "weightedmean"), ("qwen3", "lasttoken"), ("t5", "mean")]
"""Packed by our network and by that of transformers, and padded."""


def edited(file: Path, **said: object) -> None:
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | said))


def card_of(directory: Path, **row: object) -> ModelCard:
    (spec,) = find(extended({"m": {"source": str(directory)} | row}), ["m"])
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")


def worst(directory: Path, prompts: dict[str, str], include_prompt: bool | None = None) -> float:
    """The least cosine of documents and of queries, all in one job each, to sentence-transformers one at a time."""
    card, there = card_of(directory), sentence_transformer(directory)
    if include_prompt is not None:
        there.set_pooling_include_prompt(include_prompt)
    with HeldJobs(Lessor([CpuDevice()], 1 << 30), kept=True) as on:
        least = 1.0
        for prompt in [*prompts.values(), ""]:
            ours = on.compute([on.job(card, prompt, TEXTS)])[0].rows.dense
            theirs = there.encode(TEXTS, prompt=prompt, normalize_embeddings=True, batch_size=1)
            assert ours.shape == theirs.shape
            least = min(least, float((ours.astype(np.float64) * theirs).sum(axis=1).min()))
    return least


@pytest.mark.parametrize(
    ("kind", "pooling"), [*KINDS, *(pytest.param(*each, marks=pytest.mark.nightly) for each in OTHERS)]
)
def test_a_prompt_that_pooling_leaves_out_changes_vectors_as_in_sentence_transformers(tmp_path, kind, pooling):
    more = {"num_key_value_heads": 2} if kind == "qwen3" else {}
    model = tiny_model(tmp_path / "m", kind=kind, prompts=PROMPTS, **more)
    whole = card_of(model)
    edited(model / POOLING, pooling_mode=pooling, include_prompt=False)
    card = card_of(model)
    assert worst(model, PROMPTS) > 0.9999
    assert card.snapshot.fingerprint != whole.snapshot.fingerprint
    assert (card.how_pooled, whole.prompt_tokens) == (f"{pooling} without the prompt", {})
    assert pooling == "lasttoken" or worst(model, PROMPTS, include_prompt=True) < 0.999  # so it shows something


def test_a_run_and_its_queries_each_leave_out_their_own_prompt(tmp_path):
    model = tiny_model(tmp_path / "m", prompts=PROMPTS)
    edited(model / POOLING, include_prompt=False)
    edited(model / MODEL, truncate_dim=16)
    texts = sentences(12)
    root = corpus(tmp_path / "in", {"Docs": {"a.jsonl": texts}})
    settings = interlock.Settings(roster=str(model), out=tmp_path / "out", qdrant=tmp_path / "store", bm25="off")
    run = interlock.embed(root, settings, progress="none")
    there, how = sentence_transformer(model), {"normalize_embeddings": True, "batch_size": 1}
    theirs = there.encode(texts, prompt=PROMPTS["document"], **how)
    ours = np.load(next((tmp_path / "out").rglob("fused.npy")))
    assert ours.shape == theirs.shape == (12, 16)
    assert (ours * theirs).sum(axis=1).min() > 0.9999
    asked = theirs @ there.encode(texts[3:4], prompt=PROMPTS["query"], **how)[0]
    assert [hit.payload["text"] for hit in interlock.search(run, texts[3], limit=12)] == [
        texts[at] for at in np.argsort(-asked)
    ]
    assert summary_of(run.path)["collections"][0]["passes"][0]["pooling"] == "mean without the prompt"


@pytest.mark.parametrize("kind", ["bert", "electra"])
@pytest.mark.parametrize("normalised", [True, False])
def test_vectors_are_cut_where_the_model_says_so_and_then_of_length_one(tmp_path, kind, normalised):
    model = tiny_model(tmp_path / "m", kind=kind)
    if normalised:
        rows = json.loads((model / "modules.json").read_text())
        rows.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})
        (model / "modules.json").write_text(json.dumps(rows))
    prints = set()
    for cut, dim in ((8, 8), (None, 32), (64, 32)):
        edited(model / MODEL, truncate_dim=cut)
        card = card_of(model, dim=32)
        prints.add(card.snapshot.fingerprint)
        assert card.dim == dim
        assert worst(model, {}) > 0.9999
    assert len(prints) == 3


@pytest.mark.parametrize("cut", [0, -1, 8.0, "8", True])
def test_a_width_that_is_none_is_refused(tmp_path, cut):
    model = tiny_model(tmp_path / "m")
    edited(model / MODEL, truncate_dim=cut)
    with pytest.raises(UnavailableError, match=r"model m: .*transformers\.json: truncate_dim is .*: set it to"):
        card_of(model)
