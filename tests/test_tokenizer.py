"""Every file of a tokenizer counts as it does for sentence-transformers; what cannot be done so is refused by name."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from interlock.engine.compute.texts import TextsInMemory, encode_texts
from interlock.engine.corpus.tokenizer import Types
from interlock.engine.corpus.tokens import load_tokenizer, specials_of
from interlock.engine.errors import UnavailableError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.registry import extended, find
from interlock.engine.models.roster import card_for, cards_of, entry_of
from interlock.engine.record.events import Warned
from tests.builders import SPECIALS, corpus, interlock, sentences, since, tiny_model

TEXTS = ["The SIGNAL of it", "Äußerst naïve", "字符 of the", "a" * 130, "a[MASK]b [SEP] c", "is<new>is the"]
NEW = {"content": "<new>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
CONFIG = "tokenizer_config.json"


def edit(file, **changes):
    said = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(said | changes))


@pytest.fixture
def model(tmp_path):
    return tiny_model(tmp_path / "model", vocab_size=300)


def card_of(directory, **row):
    (spec,) = find(extended({"m": {"source": str(directory)} | row}), ["m"])
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")


def vectors(card, texts=TEXTS):
    return encode_texts(card, texts, card.document_prompt, Lessor([CpuDevice()], 1 << 30)).dense


def check(directory, texts=TEXTS):
    """Ids and vectors of each text are those of sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    card, there = card_of(directory), SentenceTransformer(str(directory), device="cpu")
    tokenizer = load_tokenizer(card.tokenizer_file)
    ours = TextsInMemory(tokenizer, specials_of(tokenizer), "", texts)
    for place, text in enumerate(texts):
        assert ours.row(place, card.max_tokens).tolist() == there.preprocess([text])["input_ids"][0].tolist(), text
    theirs = np.stack([there.encode_document([text], normalize_embeddings=True)[0] for text in texts])
    assert (vectors(card, texts) * theirs).sum(axis=1).min() > 0.9999
    return card


CHANGED = {
    "lowering off": {"do_lower_case": False},
    "accents kept": {"strip_accents": False},
    "Chinese signs together": {"tokenize_chinese_chars": False},
    "another first token": {"cls_token": "[MASK]"},
    "special tokens split": {"split_special_tokens": True},
    "a token more": {"added_tokens_decoder": {"250": NEW}},
    "special tokens more": {"additional_special_tokens": ["is", "the"]},
}


@pytest.mark.parametrize("said", CHANGED.values(), ids=CHANGED)
def test_settings_of_a_tokenizer_class_count(model, said):
    edit(model / CONFIG, tokenizer_class="BertTokenizer", **said)
    assert check(model).tokenizer.file != model / "tokenizer.json"


@pytest.mark.parametrize("name", ["added_tokens.json", "special_tokens_map.json"])
def test_files_of_former_versions_count(model, name):
    (model / name).write_text(json.dumps({"<new>": 250} if name.startswith("added") else {"mask_token": "the"}))
    check(model)


def test_a_tokenizer_whose_file_says_it_all_is_used_as_it_is(tiny_a):
    card = check(tiny_a)
    assert (card.tokenizer.file, card.tokens_digest, card.types) == (tiny_a / "tokenizer.json", "", None)


def test_types_around_a_text_reach_a_network_whatever_its_length(model):
    said = json.loads((model / "tokenizer.json").read_text())
    for part, kind in zip(said["post_processor"]["single"], (0, 0, 1), strict=True):
        next(iter(part.values()))["type_id"] = kind
    edit(model / "tokenizer.json", **said)
    edit(model / CONFIG, model_input_names=["input_ids", "token_type_ids", "attention_mask"])
    card = check(model, [*TEXTS, "the " * 300])
    assert card.types == Types((0,), 0, (1,))
    assert card.tokens_digest
    assert Types((2, 3), 1, (4,)).of([4, 1, 5]).tolist() == [2, 3, 1, 4, 4, 2, 3, 1, 1, 4]


def test_a_type_that_a_network_does_not_know_is_refused(tmp_path):
    model = tiny_model(tmp_path / "m", kind="roberta", type_vocab_size=1)
    said = json.loads((model / "tokenizer.json").read_text())
    said["post_processor"]["single"][1]["Sequence"]["type_id"] = 1
    edit(model / "tokenizer.json", **said)
    edit(model / CONFIG, model_input_names=["input_ids", "token_type_ids"])
    with pytest.raises(UnavailableError, match="gives token type 1, but the model has only 1"):
        card_of(model)


def test_a_tokenizer_that_is_random_for_training_is_not_here(model):
    words = {word: number for number, word in enumerate([*SPECIALS, *"abcdefghijklmnopqrstuvwxyz", "th", "the", "of"])}
    tokenizer = Tokenizer(models.BPE(words, [("t", "h"), ("th", "e"), ("o", "f")], dropout=0.5, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 2)])
    tokenizer.save(str(model / "tokenizer.json"))
    card, texts = card_of(model), ["the of the of " * 8] * 4
    assert vectors(card, texts).tobytes() == vectors(card, texts).tobytes()
    assert load_tokenizer(card.tokenizer_file).encode("the", add_special_tokens=False).tokens == ["the"]
    assert card.tokens_digest


@pytest.mark.parametrize(
    ("said", "why"),
    [
        pytest.param({"tokenizer_class": "PhobertTokenizer"}, "PhobertTokenizer", marks=since("transformers", "5.6")),
        ({"cls_token": 5}, "cls_token"),
    ],
)
def test_what_cannot_be_built_is_refused_by_model_file_and_reason(model, said, why):
    edit(model / CONFIG, **said)
    with pytest.raises(UnavailableError, match=rf"model m: cannot build its tokenizer by .*{CONFIG} \(.*{why}"):
        card_of(model)


def test_texts_that_would_become_messages_are_refused(model):
    edit(model / CONFIG, chat_template="{{ messages }}")
    check(model)
    (model / "modules.json").unlink()
    with pytest.raises(UnavailableError, match="has a chat template and no modules"):
        card_of(model)


@pytest.mark.parametrize(
    ("prompts", "expected", "unused"),
    [
        ({"document": "", "passage": "the "}, ("", ""), ("passage",)),
        ({"document": "of ", "query": "is ", "classification": "x "}, ("of ", "is "), ()),
        ({"query": "is ", "passage": "the "}, ("", "is "), ("passage",)),
        ({"search_query": "q ", "search_document": "d "}, ("", ""), ("search_query", "search_document")),
    ],
)
def test_prompts_have_the_names_that_sentence_transformers_knows(model, prompts, expected, unused):
    edit(model / "config_sentence_transformers.json", prompts=prompts)
    card = check(model)
    assert ((card.document_prompt, card.query_prompt), card.unused_prompts) == (expected, unused)
    heard = []
    cards_of(find({}, [str(model)]), Policy(offline=True), [CpuDevice()], heard.append)
    told = [each.message for each in heard if isinstance(each, Warned)]
    assert [name for name in unused if name not in "".join(told)] == []
    assert bool(told) == bool(unused)
    assert card_of(model, document_prompt="", query_prompt="").unused_prompts == ()


def test_a_network_without_places_is_cut_where_sentence_transformers_cuts_it(tmp_path):
    model = tiny_model(tmp_path / "m", kind="qwen2", max_tokens=64, num_key_value_heads=4, pooling="lasttoken")
    edit(model / "sentence_bert_config.json", max_seq_length=300)
    texts = ["the of and to in is " * 80, "the"]
    assert check(model, texts).max_tokens == 300
    assert card_of(model, max_tokens=1024).max_tokens == 1024
    edit(model / "sentence_bert_config.json", max_seq_length=None)
    edit(model / CONFIG, model_max_length=10**30)
    assert check(model, texts).max_tokens == 64


def test_a_run_whose_texts_would_be_tokenised_otherwise_is_not_continued(tmp_path, model):
    chunks = corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": sentences(6)}})
    words = ("--roster", model, "--devices", "cpu", "--out", tmp_path / "runs", "--run-id", "one", "--quiet")
    interlock("run", chunks, *words)
    file = tmp_path / "runs" / "one" / "run.json"
    inputs = json.loads(file.read_text())
    assert "tokenizer" not in inputs["roster"][0]
    inputs["roster"][0]["tokenizer"] = "a" * 64
    file.write_text(json.dumps(inputs))
    assert "tokenizer of model was aaaaaaaaaaaa" in interlock("run", chunks, *words, "--resume", check=2).stderr


def test_the_roster_says_what_tokenizer_it_was_where_its_file_does_not(model):
    edit(model / CONFIG, tokenizer_class="BertTokenizer", do_lower_case=False)
    (spec,) = find({}, [str(model)])
    card = card_for(spec, resolve(spec, Policy(offline=True), lambda _: None), [CpuDevice()])
    assert entry_of(card, 1.0, card.dim).tokenizer == card.tokens_digest != ""


@pytest.mark.parametrize("said", [{}, {"do_lower_case": False}])
def test_a_bit_that_fell_in_what_a_trial_found_is_found_by_a_trial(model, monkeypatch, said, tmp_path):
    """A cache flipped by a disk would cut, or split, texts elsewhere under the same fingerprint."""
    monkeypatch.setenv("INTERLOCK_CACHE", str(tmp_path / "cache"))
    edit(model / CONFIG, **said)
    right = vectors(card_of(model))
    for file in (
        each for each in (tmp_path / "cache").rglob("*.json") if each.name in ("found.json", "tokenizer.json")
    ):
        whole = file.read_bytes()
        for sign in b"0123456789":
            file.write_bytes(whole.replace(bytes([sign]), bytes([sign ^ 1])))
            np.testing.assert_array_equal(vectors(card_of(model)), right)
        assert file.read_bytes() == whole
