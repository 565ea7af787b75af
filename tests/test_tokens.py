"""Token ids are what the model's own tokenizer gives, special tokens and truncation included."""

import json
import threading
from contextlib import contextmanager
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from interlock.engine.corpus.collections import discover
from interlock.engine.corpus.corpus import WINDOW, Onlooker, Tokenising, read_and_tokenise
from interlock.engine.corpus.tokens import Specials, TokenStore, load_tokenizer, specials_of
from interlock.engine.errors import DiskError, UnavailableError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.models.assets import Policy
from interlock.engine.models.registry import find
from interlock.engine.models.roster import cards_of, illegible, token_key, tokenisings
from tests.builders import SPECIALS, corpus, sentences, tiny_model

TEXTS = [*sentences(40), "a", "unbelievable " * 80, "  spaces  and\nlines  ", "[SEP] inside [PAD] [CLS]", "日本語 ✓"]


@contextmanager
def filled(directory, tokenizer, texts, prompt="", cap=128):
    with TokenStore(directory / "tokens.u32", tokenizer, prompt, cap) as store:
        store.add(texts)
    yield store


def own_ids(tokenizer_file, text, limit):
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.enable_truncation(limit)
    return tokenizer.encode(text).ids


@pytest.mark.parametrize("limit", [3, 16, 128])
@pytest.mark.parametrize("prompt", ["", "passage: "])
def test_every_stored_row_is_the_tokenizers_own_encoding(tmp_path, tiny_a, limit, prompt):
    file = tiny_a / "tokenizer.json"
    with filled(tmp_path, load_tokenizer(file), TEXTS, prompt) as store:
        for place, text in enumerate(TEXTS):
            assert store.row(place, limit).tolist() == own_ids(file, prompt + text, limit)
            assert store.lengths(limit)[place] == len(store.row(place, limit))


@given(st.lists(st.text(max_size=40), min_size=1, max_size=4), st.integers(3, 20))
@settings(deadline=None, max_examples=40)
def test_every_stored_row_of_any_text_is_the_tokenizers_own_encoding(tmp_path_factory, tiny_a, texts, limit):
    file = tiny_a / "tokenizer.json"
    with filled(tmp_path_factory.mktemp("tokens"), load_tokenizer(file), texts) as store:
        assert [store.row(place, limit).tolist() for place in range(len(texts))] == [
            own_ids(file, text, limit) for text in texts
        ]


def test_rows_added_in_parts_beyond_a_window_keep_their_places(tmp_path, tiny_a):
    texts, tokenizer = sentences(700), load_tokenizer(tiny_a / "tokenizer.json")
    with TokenStore(tmp_path / "t.u32", tokenizer, "", 128) as store:
        store.add(texts[:5])
        store.add([])
        store.add(texts[5:])
    assert len(store) == 700
    for place in (0, 4, 5, 260, 261, 699):
        assert store.row(place, 128).tolist() == tokenizer.encode(texts[place]).ids


def test_a_store_whose_directory_is_moved_away_meanwhile_says_where_it_was(tmp_path, tiny_a):
    place, tokenizer = tmp_path / "run", load_tokenizer(tiny_a / "tokenizer.json")
    place.mkdir()
    store = TokenStore(place / "t.u32", tokenizer, "", 128)
    with pytest.raises(DiskError, match=r"cannot write .*t\.u32: No such file"), store:
        store.add(TEXTS)
        place.rename(tmp_path / "elsewhere")


def test_tokens_beyond_the_limit_are_counted(tmp_path, tiny_a):
    tokenizer = load_tokenizer(tiny_a / "tokenizer.json")
    with filled(tmp_path, tokenizer, ["the", "the " * 10, "the " * 500], cap=20) as store:
        assert store.full_lengths.tolist() == [1, 10, 500]
        assert store.truncated(12).tolist() == [0, 0, 490]
        assert store.truncated(11).tolist() == [0, 1, 491]
        assert store.lengths(11).tolist() == [3, 11, 11]


def test_no_more_than_the_cap_is_kept_of_a_text(tmp_path, tiny_a):
    with filled(tmp_path, load_tokenizer(tiny_a / "tokenizer.json"), ["the " * 500, "of"], cap=20) as store:
        assert store.path.stat().st_size == 4 * (20 + 1)
        assert len(store.row(0, 22)) == 22
        assert len(store.row(1, 22)) == 3


def test_texts_without_a_token_become_the_special_tokens(tmp_path, tiny_a):
    with filled(tmp_path, load_tokenizer(tiny_a / "tokenizer.json"), ["\u200b", "\0"]) as store:
        assert [store.row(place, 128).tolist() for place in (0, 1)] == [[2, 3], [2, 3]]


def test_a_loaded_tokenizer_neither_pads_nor_truncates(tmp_path, tiny_a):
    tokenizer = Tokenizer.from_file(str(tiny_a / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert len(load_tokenizer(tmp_path / "tokenizer.json").encode("the of and to in").ids) == 7


@pytest.mark.parametrize("content", ["", "{}", "not json", json.dumps({"model": {"type": "BPE"}})])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UnavailableError, match=r"cannot read .*tokenizer\.json as a tokenizer"):
        load_tokenizer(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    ("template", "specials"),
    [
        ("[CLS] $A [SEP]", Specials((2,), (3,))),
        ("$A [SEP]", Specials((), (3,))),
        ("[CLS] [CLS] $A", Specials((2, 2), ())),
        ("$A", Specials((), ())),
    ],
)
def test_the_special_tokens_of_a_template_are_known(tiny_a, template, specials):
    tokenizer = load_tokenizer(tiny_a / "tokenizer.json")
    tokenizer.post_processor = TemplateProcessing(
        single=template, special_tokens=[(name, SPECIALS.index(name)) for name in ("[CLS]", "[SEP]")]
    )
    assert specials_of(tokenizer) == specials
    assert specials.count == len(specials.before) + len(specials.after)


def test_models_of_one_tokenizer_tokenise_once_for_each_prompt(tmp_path, tiny_a):
    short = tiny_model(tmp_path / "short", max_tokens=16)
    prompted = tiny_model(tmp_path / "prompted", prompts={"document": "doc: ", "query": "q: "})
    specs = find({}, [str(tiny_a), str(short), str(prompted)])
    cards = cards_of(specs, Policy(offline=True), [CpuDevice()], lambda _: None)
    jobs = tokenisings(cards)
    assert [(job.prompt, job.cap, job.models) for job in jobs.values()] == [
        ("", 128, ["tiny-a", "short"]),
        ("doc: ", 128, ["prompted"]),
    ]
    plain, with_prompt = jobs
    assert [token_key(card) for card in cards] == [plain, plain, with_prompt]


def test_read_rows_are_what_the_encoder_takes(tmp_path, tiny_a):
    with filled(tmp_path, load_tokenizer(tiny_a / "tokenizer.json"), ["the"]) as store:
        assert store.row(0, 128).dtype == np.int64


def test_texts_are_tokenised_in_their_order_while_those_behind_them_are_read(tmp_path, tiny_a, monkeypatch):
    texts, read, every, add = sentences(2 * WINDOW + 1), count(1), threading.Event(), TokenStore.add
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": texts}})

    def patient(store, window):
        if window[0] == texts[WINDOW]:
            assert every.wait(60), "nothing is read before these are tokenised"
        add(store, window)

    def look(_):
        if next(read) == len(texts):
            every.set()

    monkeypatch.setattr(TokenStore, "add", patient)
    wanted = {
        key: Tokenising(tiny_a / "tokenizer.json", prompt, 64, ["m"]) for key, prompt in (("a", ""), ("b", "is "))
    }
    _, stores = read_and_tokenise(discover(root), wanted, tmp_path, lambda _: None, lambda: False, Onlooker(each=look))
    for key, job in wanted.items():
        with filled(tmp_path / "alone", load_tokenizer(job.tokenizer), texts, job.prompt, job.cap) as alone:
            for text in range(len(texts)):
                np.testing.assert_array_equal(stores[key].stored(text), alone.stored(text))


WRITTEN = {
    "Cyrillic": "Ключи меняют раз в месяц, и старые сразу удаляют. Сигнальщик пропускает только один поезд.",
    "Cjk": "密钥每月更换一次，旧的立即删除。信号员一次只让一列火车通过车站。",
    "Hiragana": "かぎはまいつき取りかえて、古いものはすぐに消してください。駅を通れるのは一本の列車だけです。",
    "Arabic": "تُستبدل المفاتيح مرة كل شهر وتُحذف القديمة فورا. لا يسمح عامل الإشارة إلا بمرور قطار واحد.",
    "Hangul": "열쇠는 매달 바꾸고 오래된 것은 즉시 지웁니다. 신호원은 한 번에 한 열차만 통과시킵니다.",
    "Greek": "Τα κλειδιά αλλάζουν κάθε μήνα και τα παλιά διαγράφονται αμέσως. Περνά μόνο ένα τρένο.",
    "Devanagari": "चाबियाँ हर महीने बदली जाती हैं और पुरानी तुरंत हटा दी जाती हैं। केवल एक ट्रेन गुजरती है।",
    "Thai": "กุญแจจะเปลี่ยนทุกเดือนและลบกุญแจเก่าทันที ครั้งละหนึ่งขบวนเท่านั้นที่ผ่านสถานีได้",
    "Hebrew": "המפתחות מוחלפים פעם בחודש והישנים נמחקים מיד. רק רכבת אחת עוברת בכל פעם.",
}
LEGIBLE = {
    "English": "The keys are changed once a month, and the old ones are deleted at once.",
    "German": "Die Schlüssel werden monatlich gewechselt und die alten sofort gelöscht: größte Übersicht.",
    "Vietnamese": "Chìa khóa được thay mỗi tháng một lần và chìa khóa cũ bị xóa ngay lập tức.",
    "code": "def rotate(keys: list[str]) -> None:\n    for each in keys:\n        keys[each] ^= 0x7f  # ключ",
    "numbers": "3.14159, 2.71828; 1,000,000 -> 6.02e23 (\u2211 \u03b1\u00b7\u03b2)",
    "digests": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" * 3,
    "formulas": "\u0394G = \u0394H - T\u0394S, where T is the temperature of the bath",
}


def unread(directory, model, texts):
    """What is said of a corpus of these texts to a run of the model."""
    collections = discover(corpus(directory / "c", {"Notes": {"a_chunks.json": texts}}))
    cards = dict(enumerate(cards_of(find({}, [str(model)]), Policy(), [CpuDevice()], lambda _: None)))
    told = tokenisings(list(cards.values())), directory / "tokens", lambda _: None, lambda: False
    return list(illegible(read_and_tokenise(collections, *told)[0].rows, cards))


@pytest.mark.parametrize("script", WRITTEN)
def test_texts_in_a_script_that_an_english_model_never_learnt_are_told(tmp_path, minilm, script):
    texts = [*(f"{WRITTEN[script]} {number}" for number in range(600)), *LEGIBLE.values()]
    said = f"Notes: most texts are in a script ({script}) that {minilm.name} cannot read: use a model of many languages"
    assert unread(tmp_path, minilm, texts) == [f"{said}, such as bge-m3"]


@pytest.mark.parametrize("kind", LEGIBLE)
def test_nothing_is_told_of_texts_in_latin_letters(tmp_path, minilm, kind):
    assert unread(tmp_path, minilm, [f"{LEGIBLE[kind]} {number}" for number in range(3)] + [WRITTEN["Arabic"]]) == []
