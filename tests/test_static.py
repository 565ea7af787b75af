"""Static models, a table of vectors for tokens: as sentence-transformers' StaticEmbedding does it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tokenizers import Tokenizer

import interlock
from interlock.engine.compute.encoder import encoder_for
from interlock.engine.compute.texts import encode_texts
from interlock.engine.errors import UnavailableError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.memory import law_for
from interlock.engine.models.registry import ModelSpec
from interlock.engine.models.weights import load
from tests.builders import corpus, sentences, since, summary_of, tiny_model

WIDTH = 24
TEXTS = [*sentences(9), "the of and to in is for " * 20 + "final word differs", "a"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("words") / "m") / "tokenizer.json"


def table(tokenizer: Path, seed: int = 0) -> torch.Tensor:
    words = Tokenizer.from_file(str(tokenizer)).get_vocab_size()
    return torch.randn(words, WIDTH, generator=torch.Generator().manual_seed(seed))


def saved(directory: Path, tokenizer: Path, *, normalised: bool = False) -> Path:
    """A model as sentence-transformers saves it."""
    bag = StaticEmbedding(Tokenizer.from_file(str(tokenizer)), embedding_weights=table(tokenizer))
    SentenceTransformer(modules=[bag, *[Normalize()] * normalised], device="cpu").save_pretrained(str(directory))
    return directory


def model2vec(directory: Path, tokenizer: Path, how: str) -> Path:
    """A model as model2vec writes it, by its documented files; with `modules.json` as on the hub, or `alone`."""
    directory.mkdir()
    rows = table(tokenizer)
    tensors = {"embeddings": rows}
    if how == "quantised":
        mapping = torch.randint(0, 7, (len(rows),), generator=torch.Generator().manual_seed(1))
        weights = torch.rand(len(rows), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        tensors = {"embeddings": rows[:7].half(), "mapping": mapping.to(torch.int32), "weights": weights.float()}
    save_file(tensors, directory / "model.safetensors")
    (directory / "tokenizer.json").write_text(tokenizer.read_text())
    (directory / "config.json").write_text(
        json.dumps(
            {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": True, "hidden_dim": WIDTH}
        )
    )
    if how != "alone":
        kind = "sentence_transformers.models.{}".format
        rows_of = [{"idx": 0, "name": "0", "path": ".", "type": kind("StaticEmbedding")}]
        rows_of.append({"idx": 1, "name": "1", "path": "1_Normalize", "type": kind("Normalize")})
        (directory / "modules.json").write_text(json.dumps(rows_of))
    return directory


def older(directory: Path, tokenizer: Path) -> Path:
    """As sentence-transformers before 5 saves it: in a folder of its own, without a `config.json`."""
    whole = saved(directory, tokenizer)
    (whole / "0_StaticEmbedding").mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (whole / name).rename(whole / "0_StaticEmbedding" / name)
    rows = [
        {"idx": 0, "name": "0", "path": "0_StaticEmbedding", "type": "sentence_transformers.models.StaticEmbedding"}
    ]
    (whole / "modules.json").write_text(json.dumps(rows))
    return whole


MADE = {
    "saved": saved,
    "normalised": lambda *at: saved(*at, normalised=True),
    "older": older,
    "model2vec": lambda *at: model2vec(*at, "plain"),
    "quantised": lambda *at: model2vec(*at, "quantised"),
}


def card_of(directory: Path) -> ModelCard:
    spec = ModelSpec("m", (str(directory),))
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")


def ours(card: ModelCard, texts: list[str] = TEXTS) -> np.ndarray:
    dense = encode_texts(card, texts, "", Lessor([CpuDevice()], 1 << 30)).dense
    assert dense is not None
    return dense


@pytest.mark.parametrize("kind", [pytest.param("quantised", marks=since("sentence-transformers", "6")), *[*MADE][:-1]])
def test_a_text_is_the_mean_of_its_tokens_as_in_sentence_transformers(tmp_path, tokenizer, kind):
    model = MADE[kind](tmp_path / "m", tokenizer)
    there = SentenceTransformer(str(model), device="cpu", local_files_only=True)
    theirs = np.stack([there.encode(text, normalize_embeddings=True) for text in TEXTS])
    vectors = ours(card_of(model))
    assert vectors.shape == theirs.shape == (len(TEXTS), WIDTH)
    assert (vectors.astype(np.float64) * theirs).sum(axis=1).min() > 0.999999
    assert np.abs(vectors - theirs).max() < 1e-3 if kind == "quantised" else np.abs(vectors - theirs).max() < 1e-6


def test_a_model_of_model2vec_alone_is_read_as_its_table(tmp_path, tokenizer):
    alone, whole = (model2vec(tmp_path / how, tokenizer, how) for how in ("alone", "plain"))
    assert np.array_equal(ours(card_of(alone)), ours(card_of(whole)))


@pytest.mark.parametrize("kind", ["saved", "quantised"])
def test_a_row_has_the_same_bytes_whatever_lies_beside_it(tmp_path, tokenizer, kind):
    card = card_of(MADE[kind](tmp_path / "m", tokenizer))
    encoder = encoder_for(card, load(card), CpuDevice())
    rows = [np.random.default_rng(n).integers(0, card.words, n % 40 + 1) for n in range(60)]
    alone = np.concatenate([encoder.encode([row]).dense for row in rows])
    for order in (np.arange(60), np.arange(60)[::-1], np.random.default_rng(0).permutation(60)):
        assert np.array_equal(encoder.encode([rows[at] for at in order]).dense, alone[order])


def test_no_special_token_counts_and_a_text_is_cut_where_its_tokenizer_says(tmp_path, tokenizer):
    model = saved(tmp_path / "m", tokenizer)
    assert card_of(model).max_tokens == 1 << 20
    told = json.loads((model / "tokenizer.json").read_text())
    told["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    (model / "tokenizer.json").write_text(json.dumps(told))
    card = card_of(model)
    there = SentenceTransformer(str(model), device="cpu", local_files_only=True)
    theirs = np.stack([there.encode(text, normalize_embeddings=True) for text in TEXTS])
    assert card.max_tokens == 8
    assert (ours(card).astype(np.float64) * theirs).sum(axis=1).min() > 0.999999
    told["truncation"]["direction"] = "Left"
    (model / "tokenizer.json").write_text(json.dumps(told))
    with pytest.raises(UnavailableError, match=r"model m: .*tokenizer\.json: truncation\.direction: expected 'right'"):
        card_of(model)


def test_the_law_counts_a_row_for_each_token_also_where_the_file_has_fewer(tmp_path, tokenizer):
    card = card_of(MADE["quantised"](tmp_path / "m", tokenizer))
    assert law_for(card, "cpu").weights == 4 * card.words * WIDTH == sum(p.nbytes for p in load(card).parameters())


def test_a_run_and_a_search_go_through_a_static_model(tmp_path, tokenizer):
    model = MADE["older"](tmp_path / "m", tokenizer)
    texts = sentences(12)
    root = corpus(tmp_path / "in", {"Docs": {"a.jsonl": texts}})
    settings = interlock.Settings(roster=str(model), out=tmp_path / "out", qdrant=tmp_path / "store", bm25="off")
    run = interlock.embed(root, settings, progress="none")
    there = SentenceTransformer(str(model), device="cpu", local_files_only=True)
    delivered = np.load(next((tmp_path / "out").rglob("fused.npy")))
    assert (delivered[:12] * there.encode(texts, normalize_embeddings=True)).sum(axis=1).min() > 0.999999
    assert interlock.search(run, texts[3])[0].payload["text"] == texts[3]
    assert summary_of(run.path)["collections"][0]["passes"][0]["pooling"] == "mean"


def test_what_stands_behind_a_table_and_a_directory_without_one_are_refused_by_name(tmp_path, tokenizer):
    model = saved(tmp_path / "m", tokenizer)
    (row,) = rows = json.loads((model / "modules.json").read_text())
    dense = row | {"path": "1_Dense", "type": "sentence_transformers.models.Dense"}
    network = row | {"type": "sentence_transformers.models.Transformer"}
    for others in ([row, dense], [network, row], [row, row]):
        (model / "modules.json").write_text(json.dumps(others))
        with pytest.raises(
            UnavailableError, match=r"model m: .*modules\.json: expected a StaticEmbedding with nothing"
        ):
            card_of(model)
    (model / "modules.json").write_text(json.dumps(rows))
    tensors = {f"other.{name}": tensor for name, tensor in load_file(model / "model.safetensors").items()}
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(UnavailableError, match="lacks a table of vectors"):
        card_of(model)
