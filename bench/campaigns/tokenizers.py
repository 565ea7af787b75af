"""Tokenizers of every family with one or two settings of their files changed: ids and vectors are those of
sentence-transformers, one text at a time, or the model is refused in one line; twice the same bytes."""

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from bench.campaigns.tally import Campaign, Report, Room
from interlock.engine.compute.texts import TextsInMemory, encode_texts
from interlock.engine.corpus.tokens import load_tokenizer, specials_of
from interlock.engine.errors import InterlockError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import ModelCard, read_card
from interlock.engine.models.registry import find
from tests import builders

NEAR = 0.9999
WORDS, CONFIG, OF_SENTENCES = "tokenizer.json", "tokenizer_config.json", "sentence_bert_config.json"
TEXTS = [
    "The signal of Rome is RED", "café Ångström naïve", "日本語 of the 中文", "a" * 130 + " of",
    "a [MASK] b <mask> c </s>",
    "it<new>is<new> the new1 one", "  two  blanks\tand\nlines ", "don't 1,234.56 x@y.z", "of " * 90,
    "👍🏽 the\u200bof", "the",
]  # fmt: skip
OF_BERT, OF_ROBERTA = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]"], ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def _template(tokenizer: Tokenizer, single: str, pair: str, names: Sequence[str]) -> None:
    ids = [(name, tokenizer.token_to_id(name)) for name in names]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def _trained(model: Any, trainer: Any, before: Any, normal: Any, decoder: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer, tokenizer.normalizer = before, normal
    if decoder:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator([*builders.sentences(200), *TEXTS], trainer)
    return tokenizer


def _wordpiece() -> Tokenizer:
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=OF_BERT)
    model, normal = models.WordPiece(unk_token="[UNK]"), normalizers.BertNormalizer()
    tokenizer = _trained(model, trainer, pre_tokenizers.BertPreTokenizer(), normal, decoders.WordPiece())
    _template(tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ("[CLS]", "[SEP]"))
    return tokenizer


def _bytes() -> Tokenizer:
    alphabet, level = pre_tokenizers.ByteLevel.alphabet(), pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=OF_ROBERTA, initial_alphabet=alphabet)
    tokenizer = _trained(models.BPE(), trainer, level, None, decoders.ByteLevel())
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return tokenizer


def _pieces() -> Tokenizer:
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=OF_ROBERTA)
    model = models.BPE(unk_token="<unk>", fuse_unk=True)
    tokenizer = _trained(model, trainer, pre_tokenizers.Metaspace(), normalizers.NFKC(), decoders.Metaspace())
    _template(tokenizer, "<s> $A", "<s> $A <s>:1 $B:1", ("<s>",))
    return tokenizer


def _unigram() -> Tokenizer:
    trainer = trainers.UnigramTrainer(vocab_size=250, special_tokens=OF_ROBERTA, unk_token="<unk>")
    tokenizer = _trained(models.Unigram(), trainer, pre_tokenizers.Metaspace(), normalizers.NFKC())
    _template(tokenizer, "<s> $A </s>", "<s> $A </s> </s> $B </s>", ("<s>", "</s>"))
    return tokenizer


def _last() -> Tokenizer:
    tokenizer = _unigram()
    _template(tokenizer, "$A:0 </s>:0 <s>:2", "$A:0 </s>:0 $B:1 </s>:1 <s>:2", ("<s>", "</s>"))
    return tokenizer


PLAIN = "PreTrainedTokenizerFast"
FAMILIES: dict[str, tuple[Callable[[], Tokenizer], str, tuple[str, ...]]] = {
    "WordPiece": (_wordpiece, "bert", ("BertTokenizer", "BertTokenizerFast", PLAIN, "")),
    "WordPiece, padded": (_wordpiece, "electra", ("ElectraTokenizer", PLAIN, "")),
    "byte-level BPE": (_bytes, "roberta", ("RobertaTokenizer", PLAIN, "")),
    "byte-level BPE of a decoder": (_bytes, "qwen2", ("Qwen2Tokenizer", "GPT2Tokenizer", PLAIN, "")),
    "BPE": (_pieces, "llama", ("LlamaTokenizer", PLAIN, "")),
    "Unigram": (_unigram, "xlm-roberta", ("XLMRobertaTokenizer", "T5TokenizerFast", PLAIN, "")),
    "Unigram, special tokens last": (_last, "xlnet", ("XLNetTokenizer", PLAIN)),
}
"""How each is made, the network it is tried with, and the classes that its settings may name."""
Change = Callable[[Path, random.Random], object]


def _edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    said = json.loads(file.read_text()) if file.exists() else {}
    change(said)
    file.write_text(json.dumps(said))


def _said(name: str, key: str, *values: Any) -> Change:
    """Set a key of a file, dots leading into it, to one of some values."""

    def change(model: Path, rng: random.Random) -> None:
        def put(said: dict[str, Any]) -> None:
            *outer, last = key.split(".")
            for each in outer:
                said = said[each] if isinstance(said.get(each), dict) else said.setdefault(f"{each} ", {})
            said[last] = rng.choice(values)

        _edit(model / name, put)

    return change


def _of_first(key: str) -> Change:
    """Turn a flag of the first added tokens round."""
    return lambda model, _: _edit(
        model / WORDS, lambda said: [each.update({key: not each[key]}) for each in said["added_tokens"]]
    )


def _typed(model: Path, rng: random.Random) -> None:
    def change(said: dict[str, Any]) -> None:
        template = (said.get("post_processor") or {}).get("single") or []
        for each in template:
            next(iter(each.values()))["type_id"] = rng.choice((0, 1))

    _edit(model / WORDS, change)
    _edit(model / CONFIG, lambda said: said.update(model_input_names=["input_ids", "token_type_ids", "attention_mask"]))


def _without(name: str) -> Change:
    return lambda model, _: (model / name).unlink(missing_ok=True)


NEW = {"content": "<new>", "lstrip": False, "rstrip": False, "normalized": True, "single_word": False, "special": False}
CHANGES: dict[str, Change] = {
    **{key: _said(CONFIG, key, True, False) for key in (
        "do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_bos_token", "add_eos_token",
        "add_prefix_space",
        "split_special_tokens", "clean_up_tokenization_spaces", "legacy", "use_fast", "do_basic_tokenize", "from_slow",
        "trim_offsets", "keep_accents", "remove_space", "use_default_system_prompt", "spaces_between_special_tokens",
    )},
    **{key: _said(CONFIG, key, "the", "<new>", "[MASK]", "<mask>", {"__type": "AddedToken", **NEW}) for key in (
        "cls_token", "sep_token", "unk_token", "pad_token", "mask_token", "bos_token", "eos_token", "image_token",
    )},
    **{f"map: {key}": _said("special_tokens_map.json", key, "of", "<new>", {**NEW, "lstrip": True}) for key in (
        "cls_token", "sep_token", "unk_token", "mask_token", "additional_special_tokens",
    )},
    "added_tokens_decoder": _said(CONFIG, "added_tokens_decoder", {"9": NEW}, {"500": NEW},
                                  {"500": {**NEW, "special": True}}),
    "additional_special_tokens": _said(CONFIG, "additional_special_tokens", ["<new>"], ["the", "is"], []),
    "extra_special_tokens": _said(CONFIG, "extra_special_tokens", ["<new>"], {"new_token": "<new>"}),
    "padding_side": _said(CONFIG, "padding_side", "left", "right"),
    "truncation_side": _said(CONFIG, "truncation_side", "left", "right"),
    "model_max_length": _said(CONFIG, "model_max_length", 8, 20, 10**30, None),
    "max_len": _said(CONFIG, "max_len", 8, 20),
    "model_input_names": _said(CONFIG, "model_input_names", ["input_ids"],
                               ["input_ids", "token_type_ids", "attention_mask"]),
    "tokenizer_class": _said(CONFIG, "tokenizer_class", "GPT2Tokenizer", "T5Tokenizer", "PhobertTokenizer",
                             "Unheard", None),
    "chat_template": _said(CONFIG, "chat_template", "{{ messages }}"),
    "auto_map": _said(CONFIG, "auto_map", {"AutoTokenizer": ["a.A", None]}),
    "never_split": _said(CONFIG, "never_split", ["the"], None),
    "name_or_path": _said(CONFIG, "name_or_path", "mistralai/x", "/nowhere"),
    "sp_model_kwargs": _said(CONFIG, "sp_model_kwargs", {"enable_sampling": True}),
    "added_tokens.json": lambda model, rng: (model / "added_tokens.json").write_text(
        json.dumps({"<new>": rng.choice((9, 500)), "new1": 501})
    ),
    "no tokenizer_config.json": _without(CONFIG),
    "vocab.txt": lambda model, _: (model / "vocab.txt").write_text("the\nof\n[UNK]\n"),
    "config: tokenizer_class": _said("config.json", "tokenizer_class", "BertTokenizer", "GPT2Tokenizer",
                                     "XLNetTokenizer"),
    "dropout": _said(WORDS, "model.dropout", 0.3, 0.9),
    "max_input_chars_per_word": _said(WORDS, "model.max_input_chars_per_word", 3, 100, 10_000),
    "continuing_subword_prefix": _said(WORDS, "model.continuing_subword_prefix", "##", "@@"),
    "fuse_unk": _said(WORDS, "model.fuse_unk", True, False),
    "byte_fallback": _said(WORDS, "model.byte_fallback", True, False),
    "ignore_merges": _said(WORDS, "model.ignore_merges", True),
    "truncation": _said(WORDS, "truncation", *({"direction": side, "max_length": 12,
                                                "strategy": "LongestFirst", "stride": 0}
                                               for side in ("Right", "Left"))),
    "padding": _said(WORDS, "padding", {"strategy": {"Fixed": 40}, "direction": "Left", "pad_to_multiple_of": None,
                                        "pad_id": 1, "pad_type_id": 0, "pad_token": "[PAD]"}),
    "normalizer": _said(WORDS, "normalizer", None, {"type": "Lowercase"}, {"type": "NFD"}, {"type": "StripAccents"}),
    "pre_tokenizer": _said(WORDS, "pre_tokenizer", {"type": "Whitespace"},
                           {"type": "Punctuation", "behavior": "Isolated"}),
    "post_processor": _said(WORDS, "post_processor", None),
    "types of the template": _typed,
    **{f"added tokens: {key}": _of_first(key) for key in ("lstrip", "rstrip", "single_word", "normalized", "special")},
    "do_lower_case of sentences": _said(OF_SENTENCES, "do_lower_case", True),
    "max_seq_length": _said(OF_SENTENCES, "max_seq_length", 4, 40, 10_000, None),
}  # fmt: skip


def _made(room: Room, family: str) -> Path:
    """A model of a family; each is made once and copied."""
    import torch
    from transformers import XLNetConfig, XLNetModel

    make, kind, _ = FAMILIES[family]
    model = room.field.place / "tokenizers" / f"{kind} {make.__name__}"
    if not model.exists():
        more = {"num_key_value_heads": 4} if kind in ("qwen2", "llama") else {}
        builders.tiny_model(model, kind="bert" if kind == "xlnet" else kind, vocab_size=600, max_tokens=64, **more)
        if kind == "xlnet":
            torch.manual_seed(1)
            config = XLNetConfig(vocab_size=600, d_model=32, n_layer=2, n_head=4, d_inner=64)
            XLNetModel(config).eval().save_pretrained(model)
        make().save(str(model / WORDS))
    return Path(shutil.copytree(model, room.place / "model"))


def trial(room: Room) -> Report:
    """One family with one or two settings changed."""
    family = list(FAMILIES)[room.number % len(FAMILIES)]
    names = [list(CHANGES)[room.number // len(FAMILIES) % len(CHANGES)], *room.rng.sample(list(CHANGES), 1)]
    model, report = _made(room, family), Report()
    named = room.rng.choice(FAMILIES[family][2])
    specials = OF_BERT if family.startswith("WordPiece") else OF_ROBERTA
    keys = ("unk", "pad", "cls", "sep", "mask") if specials is OF_BERT else ("bos", "pad", "eos", "unk", "mask")
    said = {f"{key}_token": name for key, name in zip(keys, specials, strict=True)} | {"model_max_length": 64}
    (model / CONFIG).write_text(json.dumps(said | ({"tokenizer_class": named} if named else {})))
    told = f"{family}, {named or 'no class'}, {', '.join(chosen := names[: room.rng.choice((1, 1, 2))])}"
    for name in chosen:
        CHANGES[name](model, room.rng)
    report.tried.update(["tokenizers", family, *chosen])
    report.wrong = [f"{told}: {each}" for each in _compared(model, report, random_ids="dropout" in chosen)]
    return report


def _compared(model: Path, report: Report, *, random_ids: bool) -> list[str]:
    from sentence_transformers import SentenceTransformer

    (spec,) = find({}, [str(model)])
    try:
        card = read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")
        ids, ours = _of_ours(card)
        again = _of_ours(card)[1]
    except InterlockError as error:
        report.tried["refused"] += 1
        return [] if "\n" not in str(error) else [f"refused in several lines: {error}"]
    if ours.tobytes() != again.tobytes():
        return ["two runs differ"]
    if random_ids:
        _edit(model / WORDS, lambda said: said["model"].pop("dropout", None))
    try:
        there = SentenceTransformer(str(model), device="cpu", local_files_only=True)
        if there.tokenizer.pad_token is None:  # it pads a single text too, and fails
            there.tokenizer.pad_token = there.tokenizer.convert_ids_to_tokens(1)
        there.max_seq_length = min(there.max_seq_length, card.positions)  # beyond its table of places it fails
        theirs = [there.encode_document([text], normalize_embeddings=True)[0] for text in TEXTS]
        wanted = [there.preprocess([text])["input_ids"][0].tolist() for text in TEXTS]
    except Exception as error:
        report.tried["refused by sentence-transformers alone"] += 1
        return [f"embedded, but sentence-transformers says {error!r:.120}"]
    report.tried["equal"] += 1
    wrong = [f"ids of {text[:20]!r}" for text, a, b in zip(TEXTS, ids, wanted, strict=True) if a != b]
    cosines = (ours.astype(np.float64) * np.stack(theirs)).sum(axis=1)
    return wrong + [f"cosine {value:.4f} of {text[:20]!r}" for text, value in zip(TEXTS, cosines, strict=True)
                    if not value > NEAR]  # fmt: skip


def _of_ours(card: ModelCard) -> tuple[list[list[int]], np.ndarray[Any, Any]]:
    tokenizer = load_tokenizer(card.tokenizer_file)
    tokens = TextsInMemory(tokenizer, specials_of(tokenizer), card.document_prompt, TEXTS)
    dense = encode_texts(card, TEXTS, card.document_prompt, Lessor([CpuDevice()], 1 << 30)).dense
    assert dense is not None
    return [tokens.row(place, card.max_tokens).tolist() for place in range(len(TEXTS))], dense


CAMPAIGN = Campaign("tokenizers", trial, 7 * len(CHANGES), "settings of tokenizers of each family, changed")
