"""Both ways of encoding give what sentence-transformers gives, and a model's own code is never run."""

import json
import re
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.normalizers import BertNormalizer
from tokenizers.processors import TemplateProcessing

from interlock.engine.compute.controls import Controls
from interlock.engine.compute.encoder import PaddedRows, encoder_for
from interlock.engine.compute.texts import encode_texts
from interlock.engine.errors import ExitCode, UnavailableError, UsageError
from interlock.engine.flows.run import Run
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy, cached, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.networks.pooling import POOLINGS
from interlock.engine.models.registry import extended, find
from interlock.engine.models.roster import token_key
from interlock.engine.models.weights import load as load_network
from interlock.engine.settings import load
from tests.builders import SPECIALS, corpus, interlock, sentence_transformer, sentences, tiny_model

TEXTS = [*sentences(30), "a", "unbelievable " * 60, "日本語 and [SEP]", "two\nlines"]
SEP = SPECIALS.index("[SEP]")


def card_of(directory, **row):
    (spec,) = find(extended({"m": {"source": str(directory)} | row}), ["m"]) if row else find({}, [str(directory)])
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")


def ours(directory, texts, prompt=""):
    return encode_texts(card_of(directory), texts, prompt, Lessor([CpuDevice()], 1 << 30)).dense


def theirs(directory, texts, prompt=None):
    model = sentence_transformer(directory)
    return model.encode(texts, prompt=prompt, normalize_embeddings=True, batch_size=7)


def worst_cosine(one, other):
    return float((one.astype(np.float64) * other).sum(axis=1).min())


def add_normalize(directory):
    modules = json.loads((directory / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})
    (directory / "2_Normalize").mkdir()
    (directory / "modules.json").write_text(json.dumps(modules))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A random Qwen3 embedder as its makers lay it out: no special token before, one after, the last one pooled."""
    directory = tiny_model(
        tmp_path_factory.mktemp("models") / "tiny-qwen",
        seed=5,
        kind="qwen3",
        pooling="lasttoken",
        prompts={"query": "Instruct: find it\nQuery:", "document": ""},
        num_key_value_heads=2,
        head_dim=8,
        eos_token_id=SEP,
        use_cache=False,
    )
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="$A [SEP]", special_tokens=[("[SEP]", SEP)])
    tokenizer.save(str(directory / "tokenizer.json"))
    add_normalize(directory)
    return directory


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("kind", ["bert", "distilbert", "roberta", "mpnet"])
def test_bert_like_models_run_packed_and_equal_sentence_transformers(tmp_path, kind, pooling):
    model = tiny_model(tmp_path / "m", seed=4, kind=kind, pooling=pooling)
    assert card_of(model).packed
    assert worst_cosine(ours(model, TEXTS), theirs(model, TEXTS)) > 0.99999


def test_a_model_that_normalises_its_vectors_still_runs_packed(tmp_path):
    model = tiny_model(tmp_path / "m")
    add_normalize(model)
    assert card_of(model).packed
    assert worst_cosine(ours(model, TEXTS), theirs(model, TEXTS)) > 0.99999


def test_qwen3_runs_packed_and_equals_sentence_transformers(qwen):
    assert card_of(qwen).packed
    assert worst_cosine(ours(qwen, TEXTS), theirs(qwen, TEXTS)) > 0.99999


def test_other_poolings_run_padded_and_equal_sentence_transformers(tmp_path):
    model = tiny_model(tmp_path / "m", pooling="max")
    assert not card_of(model).packed
    assert worst_cosine(ours(model, TEXTS), theirs(model, TEXTS)) > 0.99999


def test_a_prompt_stands_before_the_text(qwen, tiny_a):
    prompt = "Instruct: find it\nQuery:"
    assert card_of(qwen).query_prompt == prompt
    for model in (qwen, tiny_a):
        assert worst_cosine(ours(model, TEXTS, prompt), theirs(model, TEXTS, prompt)) > 0.99999


@pytest.mark.parametrize("model", ["tiny_a", "qwen"])
def test_a_text_has_the_same_unit_vector_alone_or_in_a_batch(model, request):
    directory = request.getfixturevalue(model)
    together = ours(directory, TEXTS)
    alone = np.concatenate([ours(directory, [text]) for text in TEXTS[-2:]])
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert worst_cosine(together[-2:], alone) > 0.99999


def test_a_qwen3_run_of_mixed_lengths_equals_sentence_transformers(tmp_path, qwen):
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": TEXTS}})
    run = Run(root, load({"roster": str(qwen), "out": str(tmp_path / "out")}, {}), Controls())
    assert run.go() == ExitCode.COMPLETED
    vectors = np.load(run.directory.exports("Docs") / "fused.npy")
    assert worst_cosine(vectors, theirs(qwen, TEXTS)) > 0.99999


def test_pooling_by_other_names_is_understood(tmp_path):
    model = tiny_model(tmp_path / "m", pooling="cls")
    (model / "1_Pooling" / "config.json").write_text('{"word_embedding_dimension": 32, "pooling_mode": "cls"}')
    assert card_of(model).pooling == "cls"


CODE = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"


def with_code(directory, module):
    """Code beside the model that leaves a mark when it is imported."""
    (directory / f"{module}.py").write_text(CODE)
    return directory


def auto_map(directory, **config):
    config |= {"auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Model"}}
    before = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(before | config))
    return with_code(directory, "own")


def unknown_kind(directory):
    return auto_map(directory, model_type="kind-of-its-own")


def foreign_module(directory):
    modules = json.loads((directory / "modules.json").read_text())
    modules[1]["type"] = "own.Pooling"
    (directory / "modules.json").write_text(json.dumps(modules))
    return with_code(directory, "own")


QWEN = {"kind": "qwen3", "num_key_value_heads": 2, "head_dim": 8}


@pytest.mark.parametrize("kind", [QWEN, {"kind": "bert"}], ids=["qwen3", "bert"])
@pytest.mark.parametrize(("spoil", "named"), [(unknown_kind, "auto_map"), (foreign_module, "own.Pooling")])
def test_a_model_that_needs_its_own_code_is_refused_and_nothing_runs(tmp_path, kind, spoil, named):
    model = spoil(tiny_model(tmp_path / "m", **kind))
    with pytest.raises(UnavailableError, match=f"{named}.*never run"):
        card_of(model)
    assert not (model / "ran").exists()


@pytest.mark.parametrize("kind", [QWEN, {"kind": "bert"}], ids=["qwen3", "bert"])
def test_code_that_a_model_brings_but_does_not_need_is_not_run(tmp_path, kind):
    plain = tiny_model(tmp_path / "plain", **kind)
    model = auto_map(tiny_model(tmp_path / "m", **kind))
    np.testing.assert_array_equal(ours(model, TEXTS[:3]), ours(plain, TEXTS[:3]))
    assert not (model / "ran").exists()


def test_the_command_exits_5_on_a_model_with_foreign_code_and_nothing_runs(tmp_path):
    model = foreign_module(tiny_model(tmp_path / "m"))
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": ["a"]}})
    done = interlock("run", root, "--roster", model, cwd=tmp_path, check=5)
    assert "own.Pooling" in done.stderr
    assert not (model / "ran").exists()
    assert not list(tmp_path.glob("runs/*"))


def test_pickled_weights_alone_are_refused_unopened(tmp_path):
    model = tiny_model(tmp_path / "m")
    (model / "model.safetensors").unlink()
    torch.save({"weight": torch.ones(2)}, model / "pytorch_model.bin")
    with pytest.raises(UnavailableError, match=r"pickle only.*safetensors"):
        card_of(model)


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"])
def test_a_missing_model_file_is_named(tmp_path, missing):
    model = tiny_model(tmp_path / "m")
    (model / missing).unlink()
    with pytest.raises(UnavailableError, match=missing.split("/")[-1].replace(".", r"\.")):
        card_of(model)


@pytest.mark.parametrize("kind", ["albert", "qwen3"])
def test_weights_that_the_files_lack_are_not_drawn_at_random(tmp_path, kind):
    model = tiny_model(tmp_path / "m", kind=kind)
    tensors = load_file(model / "model.safetensors")
    name = min(name for name in tensors if "layer" in name and name.endswith("weight"))
    save_file(
        {each: tensor for each, tensor in tensors.items() if each != name},
        model / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(UnavailableError, match=rf"lacks 1 tensor .*first .*{name.split('.')[-2]}\.weight"):
        ours(model, ["a text"])


def test_a_model_without_the_pooler_that_nobody_asks_for_is_read(tmp_path):
    model = tiny_model(tmp_path / "m", kind="albert")
    tensors = load_file(model / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if "pooler" not in name}
    assert len(kept) < len(tensors)
    before = ours(model, ["a text"])
    save_file(kept, model / "model.safetensors", {"format": "pt"})
    np.testing.assert_array_equal(ours(model, ["a text"]), before)


def with_dense(directory):
    """The model with a layer of its own behind the pooling, 16 numbers wide."""
    from sentence_transformers.models import Dense

    torch.manual_seed(3)
    dense = Dense(32, 16)
    (directory / "2_Dense").mkdir()
    dense.save(str(directory / "2_Dense"))
    modules = json.loads((directory / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (directory / "modules.json").write_text(json.dumps(modules))
    return directory


def test_a_dense_module_counts_in_the_fingerprint_and_gives_the_width(tmp_path):
    model = with_dense(tiny_model(tmp_path / "m"))
    before = card_of(model)
    weights = load_file(model / "2_Dense" / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, model / "2_Dense" / "model.safetensors")
    assert before.dim == 16
    assert card_of(model).snapshot.fingerprint != before.snapshot.fingerprint
    assert worst_cosine(ours(model, TEXTS), theirs(model, TEXTS)) > 0.99999


def test_a_dense_module_without_safetensors_is_refused_unopened(tmp_path):
    model = with_dense(tiny_model(tmp_path / "m"))
    (model / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(UnavailableError, match=r"2_Dense lacks model\.safetensors"):
        card_of(model)
    (model / "2_Dense" / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(UnavailableError, match=r"has its weights as pickle only \(.*/2_Dense\): add --allow-pickle"):
        card_of(model)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", "{"),
        ("config.json", "[]"),
        ("config.json", '{"hidden_size": "wide"}'),
        ("config.json", "{}"),
        ("modules.json", "?"),
        ("modules.json", '{"a": 1}'),
        ("modules.json", '[{"type": "sentence_transformers.models.Dense", "path": 5}]'),
        ("modules.json", '[{"path": ""}]'),
        ("model.safetensors.index.json", "{}"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "../x"}}'),
        ("model.safetensors", "short"),
        ("2_Dense/config.json", "{}"),
        ("2_Dense/model.safetensors", ""),
        ("sentence_bert_config.json", "[1]"),
        ("tokenizer_config.json", '{"model_max_length": "long"}'),
        ("config_sentence_transformers.json", '{"prompts": {"query": 5}}'),
    ],
)
def test_a_damaged_model_file_is_named_and_listing_does_not_fail(tmp_path, file, content):
    model = with_dense(tiny_model(tmp_path / "m"))
    if "index" in file:
        (model / "model.safetensors").unlink()
    (model / file).write_text(content)
    with pytest.raises(UnavailableError, match=re.escape(str(model / file))):
        card_of(model)
    cached(*find({}, [str(model)]))


def test_truncated_weights_are_named_and_the_model_counts_as_missing(tmp_path):
    file = tiny_model(tmp_path / "m") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(UnavailableError, match=re.escape(f"{file} is damaged")):
        card_of(file.parent)
    assert cached(*find({}, [str(file.parent)])) is None


@pytest.mark.parametrize("kind", [{"kind": "bert"}, {"kind": "roberta"}], ids=["bert", "roberta"])
def test_a_limit_above_the_models_positions_tells_both_numbers(tmp_path, kind):
    model = tiny_model(tmp_path / "m", **kind)
    assert card_of(model, max_tokens=128).max_tokens == 128
    with pytest.raises(UsageError, match=r"max_tokens is 129.*128 tokens"):
        card_of(model, max_tokens=129)


def test_the_length_of_a_models_training_is_no_limit_where_its_network_has_none(tmp_path):
    assert card_of(tiny_model(tmp_path / "m", **QWEN), max_tokens=1024).max_tokens == 1024


def test_a_model_that_lowercases_equals_sentence_transformers(tmp_path):
    model, plain = (tiny_model(tmp_path / name) for name in ("m", "plain"))
    for directory in (model, plain):
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        tokenizer.normalizer = BertNormalizer(lowercase=False)
        tokenizer.save(str(directory / "tokenizer.json"))
    (model / "sentence_bert_config.json").write_text('{"max_seq_length": 128, "do_lower_case": true}')
    texts = ["The SIGNAL is Red", "PLAIN"]
    assert worst_cosine(ours(model, texts), theirs(model, texts)) > 0.99999
    assert worst_cosine(ours(model, texts), ours(plain, texts)) < 0.999
    assert token_key(card_of(model)) != token_key(card_of(plain))


def test_a_configuration_in_gpt_terms_is_understood(tmp_path):
    model = tiny_model(tmp_path / "m")
    (model / "config.json").write_text('{"model_type": "nomic_bert", "n_embd": 32, "n_inner": 48, "n_positions": 64}')
    card = card_of(model)
    assert (card.dim, card.max_tokens) == (32, 64)
    (model / "config.json").write_text('{"model_type": "nomic_bert"}')
    assert card_of(model, dim=24).dim == 24


def test_models_read_at_the_same_time_leave_the_default_precision_as_it_was(qwen):
    card = replace(card_of(qwen), dtype="bfloat16")
    threads = [threading.Thread(target=lambda: [load_network(card) for _ in range(4)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("model", ["qwen", "tiny_a"])
def test_vectors_do_not_depend_on_the_default_precision(model, request):
    """While it reads another model, transformers sets it for all threads."""
    card, rows = card_of(request.getfixturevalue(model)), [np.arange(5, 5 + length) for length in (9, 9, 4)]
    encoder = encoder_for(card, load_network(card), CpuDevice())
    expected = encoder.encode(rows).dense
    torch.set_default_dtype(torch.bfloat16)
    try:
        np.testing.assert_array_equal(encoder.encode(rows).dense, expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_network_that_takes_a_padding_token_in_a_text_for_the_end_of_a_row_is_told_where_it_ends(tmp_path):
    model = tiny_model(tmp_path / "xlm", kind="xlm", emb_dim=32, n_layers=1, n_heads=2, pad_index=1)
    card = card_of(model, dim=32)
    network = load_network(card)
    (found,) = encoder_for(card, network, CpuDevice()).encode([np.array([5, 1, 6])]).dense
    ids = torch.tensor([[5, 1, 6]])
    with torch.inference_mode():
        told = network({"input_ids": ids, "attention_mask": torch.ones_like(ids)})["sentence_embedding"]
    np.testing.assert_allclose(found, (told / told.norm()).numpy()[0], atol=1e-6)


@pytest.mark.parametrize(
    ("lengths", "limit", "width", "masked"),
    [([17, 17], 64, 17, False), ([17, 9], 64, 32, True), ([19, 9], 20, 20, True), ([32, 1], 64, 32, True)],
)
def test_rows_of_different_lengths_are_padded_to_a_multiple_of_sixteen_that_the_model_takes(
    lengths, limit, width, masked
):
    seen = []

    def network(features):
        seen.append(features)
        return {"sentence_embedding": torch.ones(len(lengths), 3)}

    rows = [np.arange(1, length + 1) for length in lengths]
    PaddedRows(network, 0, torch.device("cpu"), limit).encode(rows)
    (features,) = seen
    assert features["input_ids"].shape == (len(lengths), width)
    assert [[id for id in row if id] for row in features["input_ids"].tolist()] == [row.tolist() for row in rows]
    assert ("attention_mask" in features) is masked
    if masked:
        assert features["attention_mask"].sum(1).tolist() == lengths


def test_padding_may_go_beyond_the_longest_row_that_is_asked_for(tmp_path, monkeypatch):
    """A mask of any other width is copied in every layer of a GPU, which no law counts."""
    card, seen = card_of(tiny_model(tmp_path / "tiny", pooling="max"), max_tokens=50), []
    network = load_network(card)
    network.register_forward_pre_hook(lambda _, given: seen.append(given[0]["input_ids"].shape[1]))
    encoder_for(card, network, CpuDevice()).encode([np.arange(5, 5 + length) for length in (50, 9)])
    assert (card.max_tokens, seen) == (50, [64])
