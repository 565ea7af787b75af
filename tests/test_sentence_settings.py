"""What a model tells sentence-transformers of itself is done as there, or refused by model, file and key."""

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch

from interlock.engine.compute.controls import Controls
from interlock.engine.compute.texts import encode_texts
from interlock.engine.corpus.tokens import SENTENCE_CONFIGS
from interlock.engine.errors import ExitCode, UnavailableError
from interlock.engine.flows.run import Run
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models import weights
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.registry import extended, find
from interlock.engine.settings import load
from tests.builders import corpus, interlock, sentence_transformer, sentences, since, tiny_model

TEXTS = [*sentences(6), "the of and to in is for " * 20 + "final word differs", "a"]
BERT = "sentence_bert_config.json"


def looked_at(directory, **row):
    (spec,) = find(extended({"m": {"source": str(directory)} | row}), ["m"])
    return spec, resolve(spec, Policy(offline=True), lambda _: None)


def card_of(directory, **row):
    return read_card(*looked_at(directory, **row), "cpu")


def worst_cosine(directory, **row):
    """How far our vectors of `TEXTS` are from those of sentence-transformers at worst."""
    ours = encode_texts(card_of(directory, **row), TEXTS, "", Lessor([CpuDevice()], 1 << 30)).dense
    there = sentence_transformer(directory)
    theirs = there.encode(TEXTS, normalize_embeddings=True, batch_size=1)  # padding on the left would move positions
    return float((ours.astype(np.float64) * theirs).sum(axis=1).min())


def edit(file, **changes):
    said = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(said | changes))


@pytest.fixture
def model(tmp_path, tiny_a):
    return shutil.copytree(tiny_a, tmp_path / "model")


@pytest.mark.parametrize("name", SENTENCE_CONFIGS[1:])
def test_the_limit_in_a_settings_file_of_another_name_counts(model, name):
    (model / BERT).unlink()
    edit(model / name, max_seq_length=16)
    assert card_of(model).max_tokens == sentence_transformer(model).max_seq_length == 16
    assert worst_cosine(model) > 0.9999


def test_the_first_settings_file_that_says_anything_counts(model):
    (model / BERT).write_text("{}")
    edit(model / "sentence_albert_config.json", max_seq_length=16)
    edit(model / "sentence_xlnet_config.json", max_seq_length=24)
    assert card_of(model).max_tokens == 16
    assert worst_cosine(model) > 0.9999


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_a_decoder_keeps_no_keys_and_values(tmp_path, kind):
    network = weights.load(card_of(tiny_model(tmp_path / "m", kind=kind, pooling="lasttoken")))
    assert {part.config.use_cache for part in network.modules() if hasattr(part, "config")} == {False}


def test_lowering_in_a_settings_file_of_another_name_counts(model):
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    (model / BERT).unlink()
    edit(model / "sentence_roberta_config.json", max_seq_length=64, do_lower_case=True)
    texts = ["The SIGNAL is Red", "PLAIN"]
    ours = encode_texts(card_of(model), texts, "", Lessor([CpuDevice()], 1 << 30)).dense
    theirs = sentence_transformer(model).encode(texts, normalize_embeddings=True)
    assert (ours * theirs).sum(axis=1).min() > 0.9999


@pytest.mark.parametrize(
    ("said", "tokenizer", "limit"),
    [
        ({"max_seq_length": None, "tokenizer_args": {"model_max_length": 16}}, {}, 16),
        ({"max_seq_length": 64, "processor_kwargs": {"model_max_length": 16}}, {}, 16),
        ({"max_seq_length": 32}, {"model_max_length": 16}, 32),
        ({"max_seq_length": None}, {"model_max_length": None, "max_len": 16}, 16),
    ],
    ids=["of-the-tokenizer-args", "of-the-processor-args", "above-the-tokenizers", "as-max-len"],
)
def test_the_limit_that_sentence_transformers_takes_is_the_one_that_counts(model, said, tokenizer, limit):
    edit(model / BERT, **said)
    edit(model / "tokenizer_config.json", **tokenizer)
    if "max_len" in tokenizer:
        kept = json.loads((model / "tokenizer_config.json").read_text())
        del kept["model_max_length"]
        (model / "tokenizer_config.json").write_text(json.dumps(kept))
    assert card_of(model).max_tokens == limit
    assert worst_cosine(model) > 0.9999


def test_without_modules_nothing_beside_the_configuration_counts_and_the_mean_is_taken(model):
    (model / "modules.json").unlink()
    edit(model / BERT, max_seq_length=16)
    edit(model / "1_Pooling" / "config.json", pooling_mode_mean_tokens=False, pooling_mode_cls_token=True)
    assert worst_cosine(model) > 0.9999


@pytest.mark.parametrize(
    ("pooling", "width"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, 64),
        ({"pooling_mode": ["mean", "max", "lasttoken"]}, 96),
        ({"pooling_mode": ["cls"]}, 32),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_weightedmean_tokens": True}, 32),
        ({"pooling_mode_mean_tokens": False}, 32),
    ],
    ids=["flags", "list", "list-of-one", "one-other", "none"],
)
def test_the_vectors_of_several_poolings_stand_side_by_side(model, pooling, width):
    edit(model / "1_Pooling" / "config.json", **pooling)
    assert card_of(model).dim == width
    assert worst_cosine(model) > 0.9999


def test_a_mixture_of_poolings_goes_through_a_run(tmp_path, model):
    edit(model / "1_Pooling" / "config.json", pooling_mode=["mean", "max"])
    root = corpus(tmp_path / "in", {"Docs": {"a.jsonl": TEXTS}})
    run = Run(root, load({"roster": str(model), "out": str(tmp_path / "out")}, {}), Controls())
    assert run.go() == ExitCode.COMPLETED
    assert np.load(run.directory.exports("Docs") / "fused.npy").shape == (len(TEXTS), 64)


def test_a_pooling_without_a_width_is_no_whole_one(model):
    (model / "1_Pooling" / "config.json").write_text("{}")
    with pytest.raises(
        UnavailableError, match=r"1_Pooling/config\.json has no embedding_dimension, so it is not whole"
    ):
        card_of(model)


def test_a_pooling_that_is_none_is_refused(model):
    edit(model / "1_Pooling" / "config.json", pooling_mode=["mean", "median"])
    with pytest.raises(
        UnavailableError, match=r"model m: .*1_Pooling/config\.json: pooling_mode: expected any of .*median"
    ):
        card_of(model)


@pytest.mark.parametrize(("kind", "row"), [("distilbert", {}), ("deberta-v2", {"attention": "eager"})])
def test_an_architecture_with_words_of_its_own_equals_sentence_transformers(tmp_path, kind, row):
    model = tiny_model(tmp_path / "other", kind=kind, max_tokens=64)
    assert card_of(model, **row).dim == 32
    assert worst_cosine(model, **row) > 0.9999


def test_an_architecture_that_has_only_eager_attention_is_computed_with_it(tmp_path):
    model = tiny_model(tmp_path / "deberta", kind="deberta-v2")
    card = card_of(model)
    assert (card.attention, card.padded_because) == ("eager", "its attention is eager")
    assert worst_cosine(model) > 0.9999


def test_a_padded_model_with_fewer_heads_of_keys_gives_each_query_its_own(tmp_path, monkeypatch):
    model = tiny_model(tmp_path / "grouped", kind="qwen2", pooling="max", num_key_value_heads=2)
    calls, attention = [], torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional,
        "scaled_dot_product_attention",
        lambda query, key, value, **how: (
            calls.append((key.shape[1], how.get("enable_gqa"))) or attention(query, key, value, **how)
        ),
    )
    card = card_of(model)
    assert card.padded_because == "its pooling is max"
    encode_texts(card, ["one text"], "", Lessor([CpuDevice()], 1 << 30))
    assert set(calls) == {(4, None)}


REFUSED = {
    "config_args.hidden_act": {"config_args": {"hidden_act": "relu"}},
    "config_kwargs.hidden_act": {"config_kwargs": {"hidden_act": "relu"}},
    "model_args.variant": {"model_args": {"variant": "fp16"}},
    "model_kwargs.num_hidden_layers": {"model_kwargs": {"num_hidden_layers": 1}},
    "tokenizer_args.do_lower_case": {"tokenizer_args": {"do_lower_case": False}},
    "processor_kwargs.add_special_tokens": {"processor_kwargs": {"add_special_tokens": False}},
    "processing_kwargs.text.max_length": {"processing_kwargs": {"text": {"max_length": 16, "truncation": True}}},
    "processing_kwargs.common.truncation": {"processing_kwargs": {"common": {"truncation": False}}},
    "transformer_task": {"transformer_task": "fill-mask"},
    "module_output_name": {"module_output_name": "sentence_embedding"},
    "modality_config.text.method": {"modality_config": {"text": {"method": "get_text_features"}}},
    "tokenizer_name_or_path": {"tokenizer_name_or_path": "another/tokenizer"},
    "document_length": {"document_length": 16},
    "query_expansion": {"query_expansion": {"length": 32}},
    "config_args": {"config_args": ["hidden_act"]},
    "unheard_of": {"unheard_of": 1},
}


@pytest.mark.parametrize(("key", "said"), REFUSED.items(), ids=REFUSED)
def test_a_setting_that_would_change_vectors_is_refused_by_model_file_and_key(model, key, said):
    edit(model / BERT, **said)
    with pytest.raises(
        UnavailableError,
        match=rf"model m: .*sentence_bert_config\.json: {key} is .*, which changes vectors",
    ):
        card_of(model)


def test_attention_that_draws_at_random_is_refused(model):
    edit(model / "config.json", model_type="big_bird")
    with pytest.raises(UnavailableError, match=r'draws at random.*"original_full"'):
        card_of(model)


def test_a_setting_that_is_refused_ends_the_command_with_5_before_any_work(tmp_path, model):
    edit(model / BERT, config_args={"hidden_act": "relu"})
    root = corpus(tmp_path / "in", {"Docs": {"a.jsonl": ["a"]}})
    said = interlock("run", root, "--roster", model, "--out", tmp_path / "out", "--no-ui", cwd=tmp_path, check=5).stderr
    assert "model model: " in said
    assert "config_args.hidden_act" in said


@pytest.mark.parametrize(
    ("file", "change", "key"),
    [
        ("tokenizer_config.json", {"truncation_side": "left"}, "truncation_side"),
        (BERT, {"tokenizer_args": {"truncation_side": "left"}}, r"tokenizer_args\.truncation_side"),
        (
            "tokenizer.json",
            {"truncation": {"direction": "Left", "max_length": 20, "strategy": "LongestFirst", "stride": 0}},
            r"truncation\.direction",
        ),
    ],
)
def test_a_cut_at_the_start_of_texts_is_refused_by_model_file_and_key(model, file, change, key):
    edit(model / file, **change)
    with pytest.raises(UnavailableError, match=rf"model m: .*{file}: {key}: expected 'right', got 'left'"):
        card_of(model)


def test_a_cut_that_another_file_puts_right_is_no_reason_to_refuse(model):
    edit(
        model / "tokenizer.json",
        truncation={"direction": "Left", "max_length": 20, "strategy": "LongestFirst", "stride": 0},
    )
    edit(model / "tokenizer_config.json", truncation_side="right")
    assert worst_cosine(model) > 0.9999


@since("sentence-transformers", "6")
def test_settings_that_change_no_vector_are_no_reason_to_refuse(model):
    edit(
        model / BERT,
        max_seq_length=16,
        model_args={"trust_remote_code": True, "torch_dtype": "float32", "attn_implementation": "eager"},
        config_args={"trust_remote_code": True, "use_cache": False, "hidden_act": "gelu"},
        tokenizer_args={"use_fast": True, "padding_side": "left", "truncation_side": "right"},
        processing_kwargs={"text": {"padding": True, "truncation": "longest_first"}, "chat_template": {"a": 1}},
        transformer_task="feature-extraction",
        module_output_name="token_embeddings",
        modality_config={"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        unpad_inputs=False,
        query_length=None,
    )
    assert worst_cosine(model) > 0.9999


@pytest.mark.parametrize("kind", ["bert", "modernbert", "distilbert"])
def test_a_model_that_sentence_transformers_has_saved_is_taken(tmp_path, kind):
    made = tiny_model(tmp_path / "made", kind=kind, max_tokens=64)
    saved = sentence_transformer(made)
    saved.encode(TEXTS)
    saved.save(str(tmp_path / "saved"))
    assert worst_cosine(tmp_path / "saved") > 0.9999


def test_the_fingerprint_follows_the_settings_file_whatever_its_name(model):
    def fingerprint():
        return looked_at(model)[1].fingerprint

    found = [fingerprint()]
    (model / "sentence_notes.json").write_text("{}")
    assert fingerprint() == found[0]
    for limit in (16, 24):
        edit(model / "sentence_roberta_config.json", max_seq_length=limit)
        found.append(fingerprint())
    (model / "sentence_roberta_config.json").unlink()
    assert len(set(found)) == 3
    assert fingerprint() == found[0]


def test_the_second_half_of_a_fingerprint_is_what_earlier_versions_wrote(model):
    names = ("config.json", "modules.json", "tokenizer.json", BERT, "1_Pooling/config.json", "model.safetensors")
    hashes = {name: hashlib.sha256((model / name).read_bytes()).hexdigest() for name in names}
    expected = hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()
    assert looked_at(model)[1].fingerprint[64:] == expected


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_a_precision_in_the_settings_file_is_not_that_of_the_row(tmp_path, key):
    model = tiny_model(tmp_path / "model", kind="electra")
    edit(model / BERT, model_args={key: "float16"})
    network = weights.load(card_of(model))
    assert {tensor.dtype for tensor in network.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    "file, key, value",
    [
        (BERT, "max_seq_length", -1),
        (BERT, "max_seq_length", 0),
        ("1_Pooling/config.json", "word_embedding_dimension", None),
    ],
)
def test_a_number_that_sentence_transformers_cannot_count_with_is_refused(model, file, key, value):
    edit(model / file, **{key: value})
    with pytest.raises(UnavailableError, match=f"{file}: {key} is {value}"):
        card_of(model)


@pytest.mark.parametrize(("limit", "said"), [(1, "1 token"), (2, "2 tokens")])
def test_a_limit_that_leaves_nothing_of_a_text_is_refused(model, limit, said):
    edit(model / BERT, max_seq_length=limit)
    with pytest.raises(UnavailableError, match=f"takes at most {said} .*, and its special ones are 2, which leaves"):
        card_of(model)
    edit(model / BERT, max_seq_length=3)
    own = sentence_transformer(model)
    assert card_of(model).max_tokens == own.max_seq_length == 3
    assert len(own.tokenize(["a text of words"])["input_ids"][0]) == 3
