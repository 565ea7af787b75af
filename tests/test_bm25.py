"""BM25 vectors: the numbers of a BM25 written here, with stems as Snowball publishes them, by the store's engine."""

import json
import math
import re
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import qdrant_edge as edge

from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.flows.run import Run
from interlock.engine.models.registry import check_key
from interlock.engine.record.events import Event, RunResumed, StoreVerified, Warned
from interlock.engine.settings import load, recorded
from interlock.engine.targets.embedded import Store
from interlock.engine.vectors import LANGUAGES, NO_LANGUAGE
from interlock.engine.vectors.bm25 import BM25, WordCounts, Words, WordWeights
from interlock.engine.vectors.manifest import read_manifest
from interlock.engine.vectors.points import Terms
from tests.builders import corpus, events_of

STEMS = {
    stem: words.split()
    for stem, words in {
        "consign": "consign consigned consigning consignment",
        "consist": "consist consisted consistency consistent consistently consisting consists",
        "consol": "consolation consolations console consoled consoles consoling consolingly consols",
        "consolatori": "consolatory",
        "consolid": "consolidate consolidated consolidating",
        "conspicu": "conspicuous conspicuously",
        "conspiraci": "conspiracy",
        "conspir": "conspirator conspirators conspire conspired conspiring",
        "constabl": "constable constables",
        "constanc": "constance constancy",
        "knack": "knack knacks",
        "knackeri": "knackeries",
        "knavish": "knavish",
        "kneel": "kneel kneeled kneeling kneels",
        "knight": "knight knightly knights",
        "knit": "knit knits knitted knitting",
        "knive": "knives",
        "knife": "knife",
        "knocker": "knocker knockers",
    }.items()
}
"""From the sample vocabulary of snowballstem.org/algorithms/english/stemmer.html."""
STEM_OF = {word: stem for stem, words in STEMS.items() for word in words}
STOP = {"the", "a", "of", "and", "is", "to", "in", "s"}
AWKWARD = {
    "nothing": "",
    "punctuation": "...!? -- () \n\t",
    "stop words alone": "the and of THE",
    "stems": " ".join(STEM_OF),
    "capitals": "KNIGHTLY Knights' consolation; THE Constables!",
    "Chinese and Japanese": "日本語のテキスト 中文，知识",
    "emoji": "🎉 knitting 🎉🧶 knit",
    "digits and signs": "x2 3.14 1,000 foo_bar C++ Zürich Ångström",
    "very long": "consisted knife the " * 20_000,
    "one long word": "x" * 100_000,
    "null": "knot\0knot",
    "two words of one hash": "fdgp ggex knight",
}


def murmur3(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0, as Austin Appleby published it."""
    mask, value = 0xFFFFFFFF, 0
    for place in range(0, len(data), 4):
        block = data[place : place + 4]
        part = int.from_bytes(block, "little") * 0xCC9E2D51 & mask
        part = (part << 15 | part >> 17) & mask
        value ^= part * 0x1B873593 & mask
        if len(block) == 4:
            value = ((value << 13 | value >> 19) * 5 + 0xE6546B64) & mask
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & mask
    value = (value ^ value >> 13) * 0xC2B2AE35 & mask
    return value ^ value >> 16


def index_of(word: str) -> int:
    number = murmur3(word.encode())
    return 2**32 - number if number >= 2**31 else number


def words_of(text: str, language: str = "english") -> list[str]:
    found = re.findall(r"[^\W_]+", text.lower())
    return found if language == NO_LANGUAGE else [STEM_OF.get(word, word) for word in found if word not in STOP]


def bm25(text: str, average: float, language: str = "english") -> dict[int, float]:
    """A document's weights by index, with k 1.2 and b 0.75."""
    words = words_of(text, language)
    norm = 1.2 * (0.25 + 0.75 * len(words) / average)
    return {index_of(word): count * 2.2 / (count + norm) for word, count in Counter(words).items()}


def check_terms(found: Terms | None, wanted: dict[int, float]) -> None:
    assert (found is None) == (not wanted)
    if found is not None:
        assert found.fault() == ""
        assert found.indices.tolist() == sorted(wanted)
        np.testing.assert_allclose(found.values, [wanted[each] for each in sorted(wanted)], rtol=2e-6)


@pytest.mark.parametrize("language", ["english", NO_LANGUAGE])
@pytest.mark.parametrize("text", AWKWARD.values(), ids=AWKWARD)
def test_a_text_has_the_weights_of_an_independent_bm25(text, language):
    made = WordWeights(words=Words(language=language), average_length=7.5).of(text)
    wanted = bm25(text, 7.5, language)
    if "fdgp" in text:  # of which the engine keeps one
        assert index_of("fdgp") == index_of("ggex")
    check_terms(made.get(BM25), wanted)


@pytest.mark.parametrize("language", ["english", NO_LANGUAGE])
def test_the_average_length_is_counted_over_all_texts_and_repeated_words(language):
    texts = [text for text in AWKWARD.values() if "fdgp" not in text]
    lengths = [len(words_of(text, language)) for text in texts]
    counts = WordCounts(Words(language=language))
    counts.add(texts[:4])
    counts.add(texts[4:])
    twice = np.array([0, *range(len(texts)), 3], np.int32)
    assert counts.bm25(twice).average_length == sum(lengths[each] for each in twice) / len(twice)
    assert counts.bm25(np.array([0, 1], np.int32)).average_length == 1.0  # of texts without words
    assert counts.bm25(np.empty(0, np.int32)).average_length == 1.0


def test_every_language_is_one_that_the_engine_can_stem_and_no_other_is_left_out():
    text = {"english": "knights"}
    stemmed = []
    for name in (each for each in dir(edge.Language) if each[0].isupper()):
        if hasattr(edge.SnowballLanguage, name):
            edge.Bm25(edge.Bm25Config(language=name.lower())).embed_query(text.get(name, "x"))
            stemmed.append(name.lower())
    assert sorted(LANGUAGES) == sorted(stemmed)
    german = WordWeights(words=Words(language="german"), average_length=1.0).of("häuser")
    assert german[BM25].indices.tolist() == [index_of("haus")]


TEXTS = [*AWKWARD.values(), "knights knitting", "the constable's knife", "knights knitting"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    from tests.builders import tiny_model

    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def run(tmp_path, tiny):
    """A run of the awkward texts into a store: what it ended with, its messages, and the store's points."""

    def go(run_id="r", texts=TEXTS, **more):
        chunks = corpus(tmp_path / "in", {"Docs": {"a.jsonl": texts}})
        flags = {"roster": str(tiny), "out": str(tmp_path / "runs"), "qdrant": str(tmp_path / "store")}
        code = Run(chunks, load({"max_refused": "100%", **flags, "run_id": run_id, **more}, {}, None), Controls()).go()
        events = events_of(tmp_path / "runs" / run_id, Event)
        return SimpleNamespace(code=code, events=events, store=tmp_path / "store", points=stored(tmp_path / "store"))

    return go


def opened(store):
    return edge.EdgeShard.load(str(store / "docs"), None)


def stored(store):
    """What the engine itself has: each text and its vectors."""
    engine = opened(store)
    records, _ = engine.scroll(edge.ScrollRequest(limit=1000, with_payload=True, with_vector=True))
    engine.close()
    return [(record.payload["text"], record.vector) for record in records]


def terms_of(vectors):
    found = vectors.get(BM25)
    return found and Terms(np.array(found.indices, np.int64), np.array(found.values, np.float32))


def warnings_of(events):
    return [event.message for event in events if isinstance(event, Warned) and "BM25" in event.message]


def test_a_store_has_the_bm25_vector_of_every_text_with_words(run, tmp_path):
    texts = [text for text in TEXTS if text.strip() and "fdgp" not in text]
    done = run(texts=texts)
    assert done.code == ExitCode.COMPLETED
    assert len(done.points) == len(texts)
    average = sum(len(words_of(text)) for text in texts) / len(texts)
    for text, vectors in done.points:
        check_terms(terms_of(vectors), bm25(text, average))
    manifest = json.loads((done.store / "docs" / "manifest.json").read_text())
    assert manifest["bm25"] == {
        "model": "Qdrant/bm25",
        "language": "english",
        "tokenizer": "word",
        "lowercase": True,
        "k": 1.2,
        "b": 0.75,
    }
    assert manifest["run"]["bm25_average_length"] == average
    (seen,) = (event for event in done.events if isinstance(event, StoreVerified))
    assert seen.ok


def test_a_query_of_qdrants_own_finds_by_bm25_with_idf(run):
    texts = ["knights knitting", "a knife", "knight knight", "konst konst konst", "!"]
    done = run(texts=texts)
    average, counted = 8 / 5, 4  # of the points that have such a vector
    query = edge.Bm25(edge.Bm25Config()).embed_query("Of the knights")
    assert query.indices == [index_of("knight")]
    engine = opened(done.store)
    request = edge.QueryRequest(limit=9, query=edge.Query.Nearest(query, using=BM25), with_payload=True)
    hits = {point.payload["text"]: point.score for point in engine.query(request)}
    engine.close()
    rarity = math.log((counted - 2 + 0.5) / (2 + 0.5) + 1)
    wanted = {text: rarity * bm25(text, average)[index_of("knight")] for text in (texts[0], texts[2])}
    assert hits == pytest.approx(wanted, rel=1e-5)


def test_no_bm25_leaves_it_out_and_another_language_stems_otherwise(run, tmp_path):
    assert all(BM25 not in vectors for _, vectors in run(bm25="no").points)
    assert "bm25" not in json.loads((tmp_path / "store" / "docs" / "manifest.json").read_text())
    texts = ["knights", "the knife"]
    plain = run("other", texts, qdrant=str(tmp_path / "plain"), bm25=NO_LANGUAGE)
    assert plain.code == ExitCode.COMPLETED
    found = {text: terms_of(vectors) for text, vectors in stored(tmp_path / "plain")}
    for text in texts:
        check_terms(found[text], bm25(text, 1.5, NO_LANGUAGE))


def test_a_store_made_without_bm25_goes_on_without_and_says_so(run):
    run(bm25="no")
    done = run("second", [*TEXTS, "one more knight"])
    assert done.code == ExitCode.COMPLETED
    assert len(done.points) == len([text for text in TEXTS if text.strip()]) + 1
    assert all(BM25 not in vectors for _, vectors in done.points)
    (told,) = warnings_of(done.events)
    assert "docs was made without BM25 vectors and gets none now: --bm25 off" in told
    assert warnings_of(run("third", bm25="no").events) == []


@pytest.mark.parametrize("more", [{"bm25": "no"}, {"bm25": "german"}])
def test_a_store_with_bm25_takes_no_run_without_it_or_of_another_language(run, more):
    run()
    with pytest.raises(UsageError, match=r"docs was written with other settings \(.*bm25.*choose another store dir"):
        run("second", **more)


def test_a_corpus_that_has_grown_is_delivered_to_the_same_store_with_its_new_average(run):
    run(texts=["knight", "knife"])
    done = run("second", ["knight", "knife", "knitting knitting knitting knitting"])
    assert done.code == ExitCode.COMPLETED
    for text, vectors in done.points:
        check_terms(terms_of(vectors), bm25(text, 2.0))


@pytest.mark.parametrize(
    "change",
    [
        lambda terms: {},
        lambda terms: {BM25: Terms(terms.indices, np.nextafter(terms.values, np.float32(9)))},
        lambda terms: {BM25: Terms(terms.indices + 1, terms.values)},
    ],
    ids=["lost", "other weights", "other words"],
)
def test_a_store_with_other_bm25_vectors_than_its_texts_give_is_not_called_verified(run, monkeypatch, change):
    upsert = Store.upsert

    def altered(self, points, size):
        held = list(points)
        at = next(place for place, point in enumerate(held) if point.payload["text"] == "the constable's knife")
        held[at] = type(held[at])(held[at].id, held[at].payload, held[at].vectors, change(held[at].sparse[BM25]))
        return upsert(self, held, size)

    monkeypatch.setattr(Store, "upsert", altered)
    done = run()
    assert done.code == ExitCode.FAILED
    (seen,) = (event for event in done.events if isinstance(event, StoreVerified))
    assert not seen.ok
    assert "1 with other vectors than delivered" in seen.detail


def test_a_continued_run_keeps_its_bm25_settings_unless_one_is_given(run, tmp_path):
    run(bm25="german")
    done = run(resume="yes")
    assert done.code == ExitCode.COMPLETED
    begun = next(event for event in done.events if isinstance(event, RunResumed)).config
    assert begun["bm25"].value == "german"
    assert json.loads((tmp_path / "store" / "docs" / "manifest.json").read_text())["bm25"]["language"] == "german"


def test_a_manifest_with_bm25_is_read_with_the_stores_vectors_and_not_without(run):
    plain = json.loads((run().store / "docs" / "manifest.json").read_text())
    dims = {"fused": plain["models"][0]["dim"]}
    assert read_manifest(plain, dims, [BM25]).bm25 == Words(language="english")
    with pytest.raises(UsageError, match="sparse vectors do not match the store: bm25"):
        read_manifest(plain, dims)
    old = {name: value for name, value in plain.items() if name != "bm25"}
    assert read_manifest(old, dims).bm25 is None
    with pytest.raises(UsageError, match="sparse vectors do not match the store: bm25"):
        read_manifest(old, dims, [BM25])


def test_no_model_may_be_called_as_the_bm25_vectors_are():
    with pytest.raises(UsageError, match="'bm25' cannot name a model"):
        check_key(BM25)


def test_a_language_that_cannot_be_stemmed_is_refused_with_those_that_can():
    with pytest.raises(UsageError, match=r"bm25: expected one of arabic, .*turkish, none, off, got 'klingon'"):
        load({"bm25": "klingon"}, {}, None)
    assert recorded(load({}, {}, None))["bm25"].value == "english"
