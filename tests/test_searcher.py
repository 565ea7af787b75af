"""Search by stages finds what brute force over a run's exports and the texts themselves finds."""

import copy
import fcntl
import json
import math
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

import interlock as product
from interlock.console.text.answer_text import answer_lines
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.texts import encode_texts
from interlock.engine.errors import ExitCode, InterlockError, UsageError
from interlock.engine.flows.run import Run
from interlock.engine.flows.search import MANY
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.lease import Lessor
from interlock.engine.models.assets import Policy, resolve
from interlock.engine.models.card import read_card
from interlock.engine.models.registry import ModelSpec, extended
from interlock.engine.record import events as ev
from interlock.engine.search.ask import Ask, comparison_of
from interlock.engine.search.combine import Hybrid
from interlock.engine.search.conditions import read_condition
from interlock.engine.search.hits import Answer, Hit
from interlock.engine.search.searcher import StoreSearcher, vectors_of
from interlock.engine.settings import load
from interlock.engine.targets import shard
from interlock.engine.targets.embedded import Store
from interlock.engine.vectors.bm25 import Words
from tests.builders import ROOT, WORDS, corpus, environment, interlock, logged, toml

TEXTS = 240
OWN = {"a": 0.7, "b": 0.3}


def chunk(row: int) -> dict:
    words = random.Random(row)
    text = " ".join(words.choice(WORDS) for _ in range(words.randint(2, 24))) + f" number{row}"
    metadata = {
        "chunk_id": f"c{row}",
        "lang": ("en", "de", "fr")[row % 3],
        "year": 2000 + row % 20,
        "seen": row % 4 == 0,
        "nested": [{"own=key": row % 5 == 0}],
        "rate": float(row % 6),
        "snow": 1234567890123456789 + row % 2,
        "code": str(row % 9),
        "said": ('a = "b"', '"torn', "", "", "", "", "")[row % 7],
    }
    return {"text": text, "metadata": metadata}


CHUNKS = [chunk(row) for row in range(TEXTS)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_a: Path, tiny_b: Path) -> Path:
    """Runs of two models with the stores `concat` and `named`, and a configuration file."""
    place = tmp_path_factory.mktemp("runs")
    chunks = corpus(place / "chunks", {"Docs": {"a_chunks.json": CHUNKS}})
    file = toml(place / "interlock.toml", {"a": {"source": str(tiny_a)}, "b": {"source": str(tiny_b)}})
    for fusion in ("concat", "named"):
        flags = {"roster": "a=0.7,b=0.3", "out": str(place / "runs"), "qdrant": str(place / fusion), "run_id": fusion}
        given = load({**flags, "fusion": fusion, "export": "npy"}, {}, file)
        assert Run(chunks, given, Controls()).go() == ExitCode.COMPLETED
    return place


class ByForce:
    """What a question should find: cosines of what the run exported, and BM25 by its formula."""

    def __init__(self, place: Path, questions: list[str]) -> None:
        exports = place / "runs" / "concat" / "exports" / "Docs"
        registry, lessor = extended(load({}, {}, place / "interlock.toml").models), Lessor([CpuDevice()], 4 << 30)
        cards = {name: _card(registry[name]) for name in OWN}
        self.cosines = {
            name: encode_texts(card, questions, card.query_prompt, lessor).dense @ np.load(exports / f"{name}.npy").T
            for name, card in cards.items()
        }
        # Words are the engine's own (tests/test_bm25.py compares them); weights and sums are written out.
        counted = Words(language="english").engine(1e6, 0.0, 1.0)
        asked = Words(language="english").engine(1.2, 0.75, 1.0)
        documents = [dict(zip(e.indices, e.values, strict=True)) for e in map(counted.embed_document, _texts())]
        counts = [{word: round(w * 1e6 / (1e6 + 1 - w)) for word, w in each.items()} for each in documents]
        lengths = [sum(each.values()) for each in counts]
        mean, rows = sum(lengths) / len(lengths), len(counts)
        common = Counter(word for each in counts for word in each)
        rare = {word: math.log(1 + (rows - n + 0.5) / (n + 0.5)) for word, n in common.items()}
        self.bm25 = np.zeros((len(questions), rows))
        for place_, question in enumerate(questions):
            for word in asked.embed_query(question).indices:
                for row in range(rows):
                    if n := counts[row].get(word):
                        self.bm25[place_, row] += rare[word] * n * 2.2 / (n + 1.2 * (0.25 + 0.75 * lengths[row] / mean))

    def dense(self, question: int, weights: dict[str, float]) -> np.ndarray:
        return sum(w * self.cosines[name][question] for name, w in weights.items()) / sum(weights.values())

    def hybrid(self, question: int, weights: dict[str, float], share: float, allowed: np.ndarray, limit: int):
        """The first hundred of each list decide; what deeper ones add follows, in their order."""
        first, total = self._blended(question, weights, share, allowed, 100)
        if limit > 100:
            there, deep = self._blended(question, weights, share, allowed, limit)
            rest, total = there & ~first, np.where(first, total, -np.inf)
            total[rest] = deep[rest] + total[first].min(initial=0.0) - deep[rest].max(initial=0.0)
        return total

    def _blended(self, question: int, weights: dict[str, float], share: float, allowed: np.ndarray, depth: int):
        total, listed = np.zeros(TEXTS), np.zeros(TEXTS, np.bool_)
        first = self.dense(question, weights)
        for part, scores, sparse in ((1 - share, first, False), (share, self.bm25[question], True)):
            there = allowed & (scores > 0) if sparse else allowed
            ranked = sorted(np.flatnonzero(there), key=lambda row: -scores[row])[:depth]
            if ranked:
                low = 0.0 if sparse and len(ranked) < depth else scores[ranked[-1]]
                high = scores[ranked[0]]
                for row in ranked:
                    total[row] += part * ((scores[row] - low) / (high - low) if high > low else 1.0)
                    listed[row] = True
        return listed, total


def _texts() -> list[str]:
    return [each["text"] for each in CHUNKS]


def _card(spec: ModelSpec):
    return read_card(spec, resolve(spec, Policy(offline=True), lambda _: None), "cpu")


def open_store(place: Path, store: str, **more) -> StoreSearcher:
    registry = extended(load({}, {}, place / "interlock.toml").models)
    return StoreSearcher(place / store, None, registry, Policy(offline=True), Lessor([CpuDevice()], 4 << 30), **more)


def same(hits, scores: np.ndarray, allowed: np.ndarray, limit: int) -> None:
    """Hits are the best of the allowed by these scores: each with its score, and none left out that is better."""
    rows = [int(hit.payload["chunk_id"][1:]) for hit in hits]
    np.testing.assert_allclose([hit.score for hit in hits], scores[rows], atol=2e-4)
    assert len(set(rows)) == len(rows) == min(limit, int(allowed.sum()))
    assert allowed[rows].all()
    left = allowed.copy()
    left[rows] = False
    if rows and left.any():
        assert scores[left].max() <= scores[rows].min() + 2e-4


def near(hits, cosines: np.ndarray) -> None:
    """Each hit says its cosine by brute force."""
    rows = [int(hit.payload["chunk_id"][1:]) for hit in hits]
    np.testing.assert_allclose([hit.cosine for hit in hits], cosines[rows], atol=2e-4)


FILTERS = {
    (): lambda lang, year: True,
    ("metadata.lang=en",): lambda lang, year: lang == "en",
    ("metadata.lang=en", "metadata.lang=de"): lambda lang, year: lang in ("en", "de"),
    ("metadata.lang!=fr", "metadata.year>=2010"): lambda lang, year: lang != "fr" and year >= 2010,
    ("metadata.year<2003",): lambda lang, year: year < 2003,
    ("metadata.year=2007",): lambda lang, year: year == 2007,
    ("metadata.year=2007", "metadata.lang=xx"): lambda lang, year: False,
}


def compare(place: Path, count: int, seed: int) -> None:
    """Ask random questions with random filters, limits and weights in either store, and compare with brute force."""
    chance = random.Random(seed)
    questions = [" ".join(chance.choice(WORDS) for _ in range(chance.randint(1, 9))) for _ in range(count)]
    force = ByForce(place, questions)
    metadata = [(each["metadata"]["lang"], each["metadata"]["year"]) for each in CHUNKS]
    stores = [chance.choice(("concat", "named")) for _ in questions]
    for store in ("concat", "named"):
        with open_store(place, store, kept=True) as searcher:
            for number, question in [(n, each) for n, each in enumerate(questions) if stores[n] == store]:
                where, holds = chance.choice(list(FILTERS.items()))
                allowed = np.array([holds(*each) for each in metadata])
                limit, weights = (
                    chance.choice([1, 3, 10, 150, 10**30]),
                    chance.choice([None, {"a": 1, "b": 2}, {"b": 1}]),
                )
                asked, own = {"limit": limit, "where": tuple(map(read_condition, where))}, weights or OWN
                off = Ask(**asked, weights=weights, hybrid=Hybrid.OFF)
                ((dense,), (both,)) = (
                    searcher.search([question], each) for each in (off, Ask(**asked, weights=weights))
                )
                same(dense.hits, force.dense(number, own), allowed, limit)
                scores = force.hybrid(number, own, 0.25, allowed, min(limit, TEXTS))
                wanted = allowed & (scores > 0) if limit < 100 else allowed
                same(both.hits, scores, wanted if wanted.sum() >= min(limit, allowed.sum()) else allowed, limit)
                (only,) = searcher.search([question], Ask(**asked, only="bm25"))
                same(only.hits, force.bm25[number], allowed & (force.bm25[number] > 0), limit)
                near(dense.hits, force.dense(number, own))
                near(both.hits, force.dense(number, own))
                assert {hit.cosine for hit in only.hits} <= {None}


def test_every_stage_equals_brute_force_with_random_questions_filters_and_limits(place: Path) -> None:
    compare(place, 80, seed=3)


@pytest.mark.parametrize("store", ["concat", "named"])
@pytest.mark.parametrize("weights", [None, {"a": 1, "b": 2}, {"b": 1}])
def test_a_chunk_that_only_its_words_found_says_its_cosine_too(place: Path, store: str, weights) -> None:
    question = " ".join(f"number{row}" for row in range(0, TEXTS, 12))
    with open_store(place, store) as searcher:
        (answer,) = searcher.search([question], Ask(100, weights=weights, sparse_share=0.9))
    assert any("dense" not in hit.stages for hit in answer.hits)
    near(answer.hits, ByForce(place, [question]).dense(0, weights or OWN))


def test_a_hit_says_what_each_stage_made_of_it(place: Path) -> None:
    question = CHUNKS[17]["text"]
    with open_store(place, "concat") as searcher:
        (answer,) = searcher.search([question], Ask(limit=5))
        dense, words = (
            searcher.search([question], each)[0] for each in (Ask(100, hybrid=Hybrid.OFF), Ask(100, only="bm25"))
        )
    assert answer.hits[0].payload["chunk_id"] == "c17" and answer.hits[0].score == pytest.approx(1)
    assert answer.shares == pytest.approx({"dense": 0.75, "bm25": 0.25})
    for name, alone in (("dense", dense), ("bm25", words)):
        order = {hit.id: (rank, hit.score) for rank, hit in enumerate(alone.hits, 1)}
        for hit in answer.hits:
            told = hit.stages.get(name)
            assert (told is None) == (hit.id not in order)
            if told:
                assert (told.rank, told.score) == pytest.approx(order[hit.id])
    assert {"encoding", "dense", "bm25", "payloads"} <= answer.seconds.keys()


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("metadata.seen=true", lambda row: row % 4 == 0),
        ("metadata.seen=false", lambda row: row % 4),
        ("metadata.seen!=true", lambda row: row % 4),
        ("metadata.seen=1", lambda row: False),
        ('metadata.nested[]."own=key"=true', lambda row: row % 5 == 0),
        ("metadata.rate=3", lambda row: row % 6 == 3),
        ("metadata.rate!=3", lambda row: row % 6 != 3),
        ("metadata.rate=-0", lambda row: row % 6 == 0),
        ("metadata.snow=1234567890123456789", lambda row: row % 2 == 0),
        ("metadata.lang=true", lambda row: False),
        ('metadata.lang="en"', lambda row: row % 3 == 0),
        ('metadata.lang!="en"', lambda row: row % 3),
        ('metadata.code="7"', lambda row: row % 9 == 7),
        ("metadata.code=7", lambda row: row % 9 == 7),
        ('metadata.year="2003"', lambda row: False),
        ('metadata.seen="true"', lambda row: False),
        ('metadata.said="a = \\"b\\""', lambda row: row % 7 == 0),
        ('metadata.said=a = "b"', lambda row: row % 7 == 0),
        ('metadata.said="torn', lambda row: row % 7 == 1),
        ('metadata.said=""', lambda row: row % 7 > 1),
    ],
)
def test_a_condition_holds_for_what_it_says_and_for_nothing_else(place: Path, condition: str, holds) -> None:
    with open_store(place, "concat") as searcher:
        (answer,) = searcher.search(["text"], Ask(500, only="a", where=(read_condition(condition),)))
    assert {hit.payload["chunk_id"] for hit in answer.hits} == {f"c{row}" for row in range(TEXTS) if holds(row)}


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("metadata.lang=en", 80),
        (["metadata.lang=en", "metadata.lang=de"], 160),
        ({"metadata.lang": "en", "metadata.seen": True}, 20),
        ({"metadata.lang": ["en", "de"], "metadata.year": 2007}, 8),
        ({"metadata.code": "7"}, 26),
        ({"metadata.code": 7}, 26),
        ({"metadata.year": "2007"}, 0),
        (None, 240),
    ],
)
def test_in_python_conditions_are_one_text_several_or_values_by_key(place: Path, where, found: int) -> None:
    settings = product.Settings(config=place / "interlock.toml")
    assert len(product.search(place / "concat", "text", limit=500, where=where, only="a", settings=settings)) == found


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"where": [3]}, "^where: expected texts, got \\[3\\]: give KEY=VALUE"),
        ({"where": {"lang": None}}, "^where: no chunk has 'lang' .did you mean metadata.lang"),
        ({"where": {"metadata.lang": []}}, "^where: expected a text, a number, a truth or None for each key"),
        ({"where": {"metadata.year>": 2000}}, "^where: 'metadata.year>' is not the path of a key"),
        ({"where": "lang"}, "^where 'lang': give KEY=VALUE, .* as in metadata.lang=en"),
        ({"weights": "a"}, "^weights: expected numbers by model, got 'a'"),
        ({"only": "c"}, "^only c: the store has no such vectors"),
        ({"hybrid": "sum"}, "^hybrid 'sum': choose one of weighted"),
        ({"sparse_share": 2}, "^sparse_share: expected a number from 0 to 1"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_pythons_words(place: Path, asked, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        product.search(place / "concat", "text", settings=product.Settings(config=place / "interlock.toml"), **asked)


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (["metadata.lang=EN"], 'no chunk has metadata.lang=EN: values there are "de"; "en"; "fr"'),
        (["metadata.lang=EN", "metadata.lang=DE"], "no chunk has metadata.lang=EN or metadata.lang=DE: values there"),
        (["metadata.seen=yes"], "no chunk has metadata.seen=yes: values there are false; true"),
        (["metadata.year>3000", "metadata.lang=en"], "no chunk has metadata.year>3000: values there are 2000; 2001;"),
        (["metadata.code=7", "metadata.code!=7"], "no chunk has all of metadata.code=7, metadata.code!=7"),
        (
            ["metadata.lang>1"],
            "no chunk has metadata.lang>1: > compares numbers, and there are texts, as cells of a CSV file are",
        ),
        (["metadata=en"], "no chunk has metadata=en"),
    ],
)
def test_where_no_chunk_fulfils_the_conditions_it_is_said_why(place: Path, where, why: str) -> None:
    conditions = tuple(map(read_condition, where))
    with open_store(place, "concat") as searcher:
        answers = searcher.search(["text", "other"], Ask(only="a", where=conditions))
        (found,) = searcher.search(["text"], Ask(only="a", where=(read_condition("metadata.lang=en"),)))
    assert all(answer.why_none.startswith(why) and not answer.hits for answer in answers), answers[0].why_none
    assert found.hits and not found.why_none


def test_the_command_says_why_no_chunk_is_found(place: Path, tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("a\nb\n")
    why = 'no chunk has metadata.lang=EN: values there are "de"; "en"; "fr"\n'
    assert command(place, "a", "--filter", "metadata.lang=EN").stderr == f"interlock: no chunk found: {why}"
    many = command(place, "--queries", tmp_path / "q.txt", "--filter", "metadata.lang=EN").stderr
    assert many.endswith(f"interlock: no chunk found for any: {why}") and many.count("no chunk has") == 1


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"weights": {"a": -1}}, "expected numbers of 0 or more"),
        ({"weights": {"a": float("nan")}}, "expected numbers of 0 or more"),
        ({"weights": {"a": "1"}}, "expected numbers of 0 or more"),
        ({"weights": {"a": 1e308, "b": 1e308}}, "expected numbers of 0 or more"),
        ({"weights": {}}, "no model has a weight above 0"),
        ({"weights": {"a": 0, "b": 0}}, "no model has a weight above 0"),
    ],
)
@pytest.mark.parametrize("store", ["concat", "named"])
def test_weights_of_no_use_are_refused_in_python_too(place: Path, store: str, asked, why: str) -> None:
    settings = product.Settings(config=place / "interlock.toml")
    with pytest.raises(UsageError, match=why):
        product.search(place / store, "text", settings=settings, **asked)


def test_a_question_of_which_a_model_makes_no_vector_is_named(place: Path) -> None:
    with open_store(place, "concat") as searcher:
        member = searcher.manifest.models[0]
    vectors = np.eye(member.dim, dtype=np.float32)[:2]
    assert vectors_of(member, Outputs(vectors), ["one", "other"]).shape == (2, member.dim)
    vectors[1, 3] = np.nan
    with pytest.raises(UsageError, match="a makes no vector of 'other': use --only with another"):
        vectors_of(member, Outputs(vectors), ["one", "other"])


def _noted(heard: list[tuple[str, int]], model: str, rows: int) -> None:
    heard.append((model, rows))


def test_loading_is_told_apart_from_encoding_and_comes_once_where_models_are_kept(place: Path) -> None:
    for kept, later in ((True, False), (False, True)):
        heard: list[tuple[str, int]] = []
        told = partial(_noted, heard)
        with open_store(place, "concat", kept=kept) as searcher:
            (first,) = searcher.answers(["text"], Ask(), told)
            (second,) = searcher.answers(["other"], Ask(), told)
        assert first.seconds["loading"] > 0 and first.seconds["encoding"] > 0
        assert ("loading" in second.seconds) is later
        loaded = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
        assert heard == [*loaded, *(loaded if later else loaded[1::2])]


def test_a_question_beyond_a_models_limit_says_how_many_tokens_are_left_out(place: Path, tmp_path: Path) -> None:
    long = " ".join(["a"] * 900)
    with open_store(place, "concat") as searcher:
        short, cut = searcher.search(["a", long], Ask())
        cards = [model.card for model in searcher._serving(comparison_of(searcher.manifest, Ask()))]
    assert not short.cut
    assert cut.cut == {card.key: 900 + 2 - card.max_tokens for card in cards}
    (tmp_path / "q.txt").write_text(f"a\n{long}\n")
    left = ", ".join(f"{key} leaves out {tokens:,} tokens" for key, tokens in cut.cut.items())
    said = command(place, long).stderr
    assert said == f"interlock: warning: the question is longer than its models read: {left}; shorten it\n"
    many = f"interlock: warning: 1 question of 2 is longer than the models read: {left}; shorten them\n"
    assert command(place, "--queries", tmp_path / "q.txt").stderr.endswith(many)
    with pytest.warns(RuntimeWarning, match="longer than its models read: a leaves out"):
        product.search(place / "concat", long, only="a", settings=product.Settings(config=place / "interlock.toml"))


@pytest.mark.parametrize("asked", [{"hybrid": "rrf"}, {"hybrid": "dbsf"}, {"sparse_share": 0.4}])
def test_lists_that_a_store_does_not_have_are_not_combined_in_silence(place: Path, asked) -> None:
    with open_store(place, "concat") as searcher:
        bare = replace(searcher.manifest, bm25=None)
    for harmless in ({}, {"hybrid": "off"}, {"hybrid": "weighted"}, {"sparse_share": 0}):
        assert comparison_of(bare, Ask(**harmless)).sparse == []
    with pytest.raises(UsageError, match="the store has no sparse vectors to combine with the dense ones: drop it"):
        comparison_of(bare, Ask(**{**asked, "hybrid": Hybrid(asked.get("hybrid", "weighted"))}))


def test_a_searcher_says_what_it_searches_and_what_is_in_memory(place: Path) -> None:
    with product.Searcher(place / "concat", settings=product.Settings(config=place / "interlock.toml")) as searcher:
        of = f"<searcher of {place}/concat/docs: "
        assert repr(searcher) == f"{of}240 chunks, a 0.7, b 0.3; no model in memory>"
        searcher.search("text")
        assert repr(searcher) == f"{of}240 chunks, a 0.7, b 0.3; a, b in memory>"
    assert repr(searcher) == f"{of}closed>"


def test_a_question_no_longer_than_one_before_looks_at_the_memory_of_the_host_no_more(place: Path, monkeypatch) -> None:
    looks, room = [], CpuDevice.room
    monkeypatch.setattr(CpuDevice, "room", lambda device, ceiling: looks.append(1) or room(device, ceiling))
    with product.Searcher(place / "concat", settings=product.Settings(config=place / "interlock.toml")) as searcher:
        searcher.search("one two three")
        known = len(looks)
        searcher.search("two three four")
        assert len(looks) == known > 0
        searcher.search("word " * 60)
        assert len(looks) > known


def test_a_closed_searcher_says_so(place: Path) -> None:
    with open_store(place, "concat") as searcher:
        pass
    with pytest.raises(UsageError, match="the store was closed: use another Searcher"):
        searcher.search(["text"], Ask())


@pytest.fixture
def shared(place: Path):
    """A searcher of this process, and what it finds for some questions when they are asked one by one."""
    with product.Searcher(place / "concat", settings=product.Settings(config=place / "interlock.toml")) as searcher:
        questions = [each["text"] for each in CHUNKS[:8]]
        yield searcher, {question: searcher.search(question) for question in questions}


def test_threads_that_share_a_searcher_each_find_what_one_alone_finds(shared) -> None:
    searcher, wanted = shared
    vectors = {question: searcher.encode([question]).dense["fused"] for question in wanted}

    def found(number: int) -> None:
        question = list(wanted)[number % len(wanted)]
        assert searcher.search(question) == wanted[question]
        np.testing.assert_array_equal(searcher.encode([question]).dense["fused"], vectors[question])

    with ThreadPoolExecutor(8) as threads:
        assert len([*threads.map(found, range(96))]) == 96


def test_a_searcher_that_is_closed_while_threads_ask_says_so_to_each(shared) -> None:
    searcher, _ = shared
    begun = threading.Barrier(5)

    def ask() -> None:
        searcher.search("text")
        begun.wait(60)
        while True:
            searcher.search("text")

    with ThreadPoolExecutor(4) as threads:
        asking = [threads.submit(ask) for _ in range(4)]
        begun.wait(60)
        searcher.close()
        for each in asking:
            with pytest.raises(UsageError, match="the store was closed: use another Searcher"):
                each.result(60)


def test_a_fork_does_not_ask_the_searcher_of_the_process_that_it_came_from(shared) -> None:
    searcher, wanted = shared
    reader, writer = os.pipe()
    if not (child := os.fork()):  # a network or an engine whose threads are in another process waits for ever
        signal.alarm(30)
        with suppress(BaseException):
            searcher.search("text")
        try:
            searcher.search("text")
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        searcher.close()  # which is not its own either
        os._exit(0)
    os.close(writer)
    said, code = os.read(reader, 1000).decode(), os.waitpid(child, 0)[1]
    os.close(reader)
    assert (code, said) == (
        0,
        "UsageError: the store is open in the process that this one was forked from: use a Searcher of its own",
    )
    assert {question: searcher.search(question) for question in wanted} == wanted


FORKED = """
import os, signal, sys
import interlock
store, settings = sys.argv[1], interlock.Settings(config=sys.argv[2])
def asked():
    with interlock.Searcher(store, collection="docs", settings=settings, copy=True) as searcher:
        return searcher.search("text")[0].id
here = asked()
if not (child := os.fork()):
    signal.alarm(30)
    os._exit(int(asked() != here))
sys.exit(os.waitpid(child, 0)[1])
"""


def test_a_fork_of_a_process_that_has_computed_in_several_threads_asks_a_searcher_of_its_own(place: Path) -> None:
    words = [sys.executable, "-c", FORKED, place / "concat", place / "interlock.toml"]
    done = subprocess.run(
        words, env=environment({"OMP_NUM_THREADS": "2"}), cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


def test_a_searcher_is_neither_copied_nor_sent_elsewhere(shared) -> None:
    searcher, wanted = shared
    for send in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="a Searcher is open in one process: make another where it is needed"):
            send(searcher)
    (hits, *_) = wanted.values()
    assert pickle.loads(pickle.dumps(hits)) == hits


@pytest.mark.parametrize("hybrid", [Hybrid.RRF, Hybrid.DBSF])
def test_qdrants_own_rules_are_there_as_choices(place: Path, hybrid: Hybrid, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against Qdrant's own fusion of the same two lists."""
    import qdrant_edge as edge

    asked: dict[str, object] = {}
    with open_store(place, "concat") as searcher:
        queries = searcher.store.queries

        def heard(name: str, questions: list[object], *more: object) -> list[dict[str, float]]:
            (asked[name],) = questions
            return queries(name, questions, *more)

        monkeypatch.setattr(searcher.store, "queries", heard)
        monkeypatch.setattr("interlock.engine.search.searcher.DEPTH", 200)  # of fewer the first is cut to 1
        wanted = Ask(limit=200, hybrid=hybrid, sparse_share=0.5)
        hits = searcher.search(["text of the number7 words"], wanted)[0].hits
        terms = edge.SparseVector(asked["bm25"].indices.tolist(), asked["bm25"].values.tolist())
        lists = [(asked["fused"].tolist(), "fused"), (terms, "bm25")]
        prefetches = [edge.Prefetch(limit=200, query=edge.Query.Nearest(each, using=name)) for each, name in lists]
        rule = edge.Fusion.Rrf(k=61) if hybrid is Hybrid.RRF else edge.Fusion.Dbsf()
        request = edge.QueryRequest(limit=200, prefetches=prefetches, query=rule)
        theirs = {str(point.id): point.score for point in searcher.store._shard.query(request)}
    assert {hit.id for hit in hits} == theirs.keys()
    # Qdrant counts places from 0.
    factor = 1.0 if hybrid is Hybrid.RRF else 2.0  # its lists count 1 each, ours a half
    np.testing.assert_allclose([hit.score * factor for hit in hits], [theirs[hit.id] for hit in hits], atol=2e-3)


@pytest.mark.parametrize("hybrid", [*Hybrid])
@pytest.mark.parametrize("store", ["concat", "named"])
def test_the_first_hits_do_not_depend_on_how_many_are_asked_for(place: Path, store: str, hybrid: Hybrid) -> None:
    question = "text of the number7 words"
    with open_store(place, store, kept=True) as searcher:
        few, some, most = (
            searcher.search([question], Ask(limit=many, hybrid=hybrid))[0].hits for many in (10, 100, TEXTS)
        )
    assert [(hit.id, hit.score) for hit in few] == [(hit.id, hit.score) for hit in some[:10]]
    assert [(hit.id, hit.score) for hit in some] == [(hit.id, hit.score) for hit in most[:100]]
    assert len({hit.id for hit in most}) == TEXTS
    assert [hit.score for hit in most] == sorted((hit.score for hit in most), reverse=True)


def test_models_stay_under_their_leases_and_all_is_let_go_at_the_end(place: Path) -> None:
    lessor, registry = Lessor([CpuDevice()], 4 << 30), extended(load({}, {}, place / "interlock.toml").models)
    with StoreSearcher(place / "concat", None, registry, Policy(offline=True), lessor, kept=True) as searcher:
        assert searcher.resident == []
        first = searcher.search(["the first"], Ask())[0]
        words = searcher.search(["the first"], Ask(only="bm25"))[0]  # asks no model: nothing is loaded for it
        assert first.seconds["loading"] > 0
        assert "loading" not in words.seconds and min(words.seconds.values()) >= 0
        instances = [model.instance for model in searcher._on._models.values()]
        assert searcher.resident == [lease.holder for lease in lessor._open] == ["a", "b"]
        again = searcher.search(["the first"], Ask())[0]
        assert [model.instance for model in searcher._on._models.values()] == instances
        assert [(hit.id, hit.score) for hit in again.hits] == [(hit.id, hit.score) for hit in first.hits]
        searcher.search(["word " * 3000], Ask())  # cut to what the models take, and no more than the lease has room for
        assert len(lessor._open) == 2
    assert lessor._open == [] and searcher.resident == []
    with open_store(place, "concat") as another:  # nobody holds the store
        assert another.search(["the first"], Ask())[0].hits == first.hits


def test_all_that_weights_in_memory_can_give_comes_without_loading_them_again(place: Path) -> None:
    settings = product.Settings(config=place / "interlock.toml", offline=True)

    def given(searcher: product.Searcher) -> list:
        document = searcher.encode(["the first"], "document", only="fused").dense["fused"]
        return [document.tolist(), [(hit.id, hit.score) for hit in searcher.search("the first")]]

    with product.Searcher(place / "concat", settings=settings) as searcher:
        searcher.encode(["the first"], only="fused")
        held = searcher._answering.searcher._on._models
        instances = {key: model.instance for key, model in held.items()}
        first = given(searcher)
        assert {key: model.instance for key, model in held.items()} == instances and len(instances) == 2
        assert given(searcher) == first
    with product.Searcher(place / "concat", settings=settings, keep=False) as afresh:
        assert given(afresh) == first


def test_searchers_of_one_process_read_a_store_together_until_the_last_is_closed(place: Path) -> None:
    settings, question = product.Settings(config=place / "interlock.toml", offline=True), CHUNKS[3]["text"]
    with product.Searcher(place / "concat", settings=settings) as one:
        wanted = one.search(question)
        with product.Searcher(place / "concat", settings=settings) as other:
            assert other.search(question) == wanted
            with ThreadPoolExecutor(2) as threads:
                assert [*threads.map(lambda each: each.search(question), [one, other] * 4)] == [wanted] * 8
        assert one.search(question) == wanted
        with pytest.raises(UsageError, match="in use by a search of this process: close its Searcher"):
            Store.open_for_removal(place / "concat", "docs")
    Store.open_for_removal(place / "concat", "docs").close()


def test_a_searcher_that_is_left_open_ends_with_its_process_without_a_word(place: Path) -> None:
    script = f"""
import threading
import interlock

settings = interlock.Settings(config={str(place / "interlock.toml")!r}, offline=True)
threading.left = interlock.Searcher({str(place / "concat")!r}, settings=settings)
print(len(threading.left.search("the first")))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment())
    assert (done.stdout, done.stderr, done.returncode) == ("5\n", "", 0)


@pytest.mark.parametrize("payload", [{"metadata": {"page": 3}}, {"page": 3}])
def test_a_hit_of_a_document_is_shown_with_its_page(payload: dict) -> None:
    hit = Hit("1", 0.5, {"text": "words", "chunk_id": "c1", "source": "a.pdf", **payload})
    assert [*answer_lines(Answer("q", [hit], {}, {}), explained=False)][1] == "  1. 0.500  c1  (a.pdf, page 3)"
    cut = Hit("p", 0.5, {"chunk_id": "1", "source": "a.md", "headings": ["One", "Two"], "start": 1200, "text": "t"})
    told = [*answer_lines(Answer("q", [cut], {}, {}), explained=False)]
    assert told[1] == "  1. 0.500  1  (a.md, One > Two, from character 1,200)"


def test_a_store_in_use_names_no_other_place_where_nothing_is_delivered(place: Path, tmp_path: Path) -> None:
    with open_store(place, "concat") as searcher:
        used = "is in use by another run or search: wait for its end"
        assert interlock("prune", place / "concat", check=2).stderr.endswith(f"{used}\n")
        said = interlock("search", place / "concat", "a", check=2).stderr
        assert said.endswith(f"{used}, or ask a copy of it with --copy\n")
        with pytest.raises(UsageError, match="wait for its end, or choose another store directory"):
            Store.open_for_write(place / "concat", "docs", searcher.store.dims, searcher.store.manifest)


def test_a_copy_is_searched_while_others_read_the_store_and_a_run_writes_to_it(place: Path, tmp_path: Path) -> None:
    settings, question = product.Settings(config=place / "interlock.toml", offline=True), CHUNKS[3]["text"]
    store, temporary = shutil.copytree(place / "concat", tmp_path / "store"), {"TMPDIR": str(tmp_path / "t")}
    left = tmp_path / "t" / "interlock-store-killed"
    (left / "docs").mkdir(parents=True)
    os.utime(left, (1, 1))
    words = ("search", store, question, "--copy", "--json", "--config", place / "interlock.toml")
    with product.Searcher(store, settings=settings) as one:
        wanted = [each.id for each in one.search(question)]
        told = interlock(*words, env=temporary).stdout.splitlines()
        assert [json.loads(line)["id"] for line in told] == wanted and not [*(tmp_path / "t").iterdir()]
    with product.Searcher(store, settings=settings, copy=True) as copy:
        assert "store/docs" in repr(copy)
        with Store.open_for_removal(store, "docs") as written:
            written.remove(wanted[:1])
        assert [each.id for each in copy.search(question)] == wanted
    with product.Searcher(store, settings=settings, copy=True) as later:
        assert wanted[0] not in [each.id for each in later.search(question)]
    with shard.holding(store / "docs", fcntl.LOCK_EX), pytest.raises(UsageError, match=r"wait for its end$"):
        product.Searcher(store, settings=settings, copy=True)
    with pytest.raises(UsageError, match="copy: a server has many readers"):
        product.Searcher("http://127.0.0.1:9", settings=settings, copy=True)


def test_a_copy_leaves_holes_out_and_is_refused_where_there_is_no_room(
    place: Path, tmp_path: Path, monkeypatch
) -> None:
    shard.copied(place / "concat" / "docs", tmp_path / "docs")
    for file in (place / "concat" / "docs").rglob("*"):
        if file.is_file():
            copy = tmp_path / "docs" / file.relative_to(place / "concat" / "docs")
            assert copy.read_bytes() == file.read_bytes() and copy.stat().st_blocks <= file.stat().st_blocks + 8
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    with pytest.raises(InterlockError, match="free space, or set TMPDIR"):
        shard.copied(place / "concat" / "docs", tmp_path / "more")


def test_in_python_a_searcher_answers_as_a_search_does(place: Path) -> None:
    settings = product.Settings(config=place / "interlock.toml")
    questions = [CHUNKS[row]["text"] for row in (3, 50, 99)]
    asked = {"where": ["metadata.year>=2000"], "weights": {"a": 1.0}, "settings": settings}
    with product.Searcher(place / "concat", **asked) as searcher:
        many = [answer.hits for answer in searcher.answers(questions, limit=4)]
        assert [searcher.search(each, 4) for each in questions] == many
        german = {"metadata.lang": "de"}
        found = searcher.search(questions[0], 500, where=german)
        assert found == product.search(place / "concat", questions[0], limit=500, **asked | {"where": german})
        assert {hit.payload["metadata"]["lang"] for hit in found} == {"de"}
        assert [answer.hits for answer in searcher.answers(questions, 4, where=asked["where"])] == many
        assert len(searcher.search(questions[0], 500, where=())) == TEXTS
        for wrong, why in {"lang": "^where 'lang': give KEY=VALUE", "lang=de": "^where: no chunk has 'lang'"}.items():
            with pytest.raises(UsageError, match=why):
                searcher.search(questions[0], where=wrong)
        assert searcher.resident == ["a"]
    assert product.search(place / "concat", questions[0], limit=4, **asked) == many[0]
    with (
        pytest.raises(UsageError, match="the query is empty"),
        product.Searcher(place / "concat", settings=settings) as s,
    ):
        s.search("  ")


def command(place: Path, *flags: object, store: str = "concat", check: int = 0):
    return interlock("search", place / store, *flags, "--config", place / "interlock.toml", check=check)


def test_a_file_of_questions_is_answered_line_by_line(place: Path, tmp_path: Path) -> None:
    rows = {"q1": 5, "q2": 77}
    tsv, lines = tmp_path / "q.tsv", tmp_path / "q.jsonl"
    tsv.write_text("".join(f"{name}\t{CHUNKS[row]['text']}\n" for name, row in rows.items()))
    lines.write_text("".join(json.dumps({"_id": n, "query": CHUNKS[row]["text"]}) + "\n" for n, row in rows.items()))
    done = command(place, "--queries", tsv, "--limit", 3, "--out", tmp_path / "a.trec")
    assert "2 questions answered in" in done.stderr
    found = [line.split() for line in (tmp_path / "a.trec").read_text().splitlines()]
    assert [(line[0], line[1], line[3], line[5]) for line in found] == [
        (name, "Q0", str(rank), "interlock") for name in rows for rank in (1, 2, 3)
    ]
    assert [line[2] for line in found if line[3] == "1"] == ["c5", "c77"]
    answers = [json.loads(line) for line in command(place, "--queries", lines, "--limit", 3).stdout.splitlines()]
    assert [each["query_id"] for each in answers] == [*rows]
    assert [hit["payload"]["chunk_id"] for each in answers for hit in each["hits"]] == [line[2] for line in found]
    alone = command(place, CHUNKS[5]["text"], "--limit", 3, "--json").stdout.splitlines()
    assert [json.loads(line) for line in alone] == answers[0]["hits"]


def test_many_questions_are_computed_on_gpus_as_a_run_is(place: Path, tmp_path: Path) -> None:
    """Each model leases every GPU for its pass, climbs the ladder, leaves nothing, and finds what the CPU finds."""
    questions = tmp_path / "many.txt"
    questions.write_text("".join(f"{each['text']}\n" for each in CHUNKS[:MANY]))
    asked = "--queries", questions, "--limit", 5
    on_gpus = command(place, *asked, "--devices", "sim:2xT4", "--faults", "oom:1,lose@cuda:1:2", "--log-json")
    assert "Traceback" not in on_gpus.stderr
    on_cpu = command(place, *asked, "--devices", "cpu", "--log-json")
    of_cpu = logged(on_cpu.stderr)
    assert [each.devices for each in of_cpu if isinstance(each, ev.LeaseGranted)] == [["cpu"], ["cpu"]]
    assert not any(isinstance(each, ev.EnsemblePassCompleted) for each in of_cpu)
    for ours, plain in zip(on_gpus.stdout.splitlines(), on_cpu.stdout.splitlines(), strict=True):
        found, wanted = (
            [(hit["id"], round(hit["score"], 5)) for hit in json.loads(each)["hits"]] for each in (ours, plain)
        )
        assert dict(found) == pytest.approx(dict(wanted), abs=2e-5)
    events = logged(on_gpus.stderr)
    granted = [each for each in events if isinstance(each, ev.LeaseGranted)]
    assert [each.model for each in granted] == ["a", "b"]
    assert {name for each in granted for name in each.budgets} == {"cuda:0", "cuda:1"}
    receipts = [each for event in events if isinstance(event, ev.LeaseReleased) for each in event.receipts]
    assert {each.residue_bytes for each in receipts} == {0}
    assert any(isinstance(each, ev.Mitigated) for each in events)
    assert sum(each.rows for each in events if isinstance(each, ev.EnsemblePassCompleted)) == 2 * MANY


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ((), "pass a query, or a file of them with --queries"),
        (("a", "--queries", "{}/q.txt"), "pass a query, or a file of them"),
        (("a", "--out", "{}/a.trec"), "--out is for the answers of --queries"),
        (("",), "the query is empty"),
        (("a", "--limit", "0"), "--limit: expected a whole number of at least 1, got 0"),
        (("a", "--sparse-share", "nan"), "--sparse-share: expected a number from 0 to 1"),
        (("a", "--only", "c"), "--only c: the store has no such vectors: name one of a, b, bm25"),
        (("a", "--only", "a", "--weights", "a=1"), "one model has all the weight"),
        (("a", "--weights", "c=1"), "the store has no vectors of c: name any of a, b"),
        (("a", "--weights", "a=0,b=0.00"), "--weights: no model has a weight above 0: give one to a model"),
        (("a", "--weights", "a=1,b=0,a=2"), "--weights: expected not a twice but each model once, got 'a=1,b=0,a=2'"),
        (("a", "--weights", "a=-1"), "--weights: expected numbers of 0 or more, got {'a': -1.0}: give each model one"),
        (("a", "--weights", "a=nan"), "--weights: expected numbers of 0 or more"),
        (("a", "--weights", "a=much"), "--weights: expected a number as the weight of a, got 'a=much'"),
        (("a", "--weights", "a=1_0"), "--weights: expected a number as the weight of a, got 'a=1_0'"),
        (("a", "--weights", "a=\uff11"), "--weights: expected a number as the weight of a"),
        (("a", "--limit", "1_0"), "--limit: expected a whole number, got '1_0'"),
        (("a", "--limit", "\u0663"), "--limit: expected a whole number"),
        (("a", "--sparse-share", "0_0.1"), "--sparse-share: expected a number, got '0_0.1'"),
        (("a", "--weights", ""), "--weights: no model has a weight above 0"),
        (("a", "--filter", "nothing"), "give KEY=VALUE"),
        (("a", "--filter", "metadata.year>=old"), ">= compares numbers"),
        (("a", "--filter", "metadata.year==2003"), "give KEY=VALUE"),
        (("a", "--filter", "metadata.year=>2003"), "give KEY=VALUE"),
        (("a", "--filter", "meta[=x"), "'meta[' is not the path of a key"),
        (("a", "--filter", r'metadata."a\b"=x'), "rename one with a backslash or a quotation mark in it"),
        (
            ("a", "--filter", "lang=en"),
            "no chunk has 'lang' (did you mean metadata.lang?): use a key that there is (chunk_id; metadata.chunk_id",
        ),
        (("a", "--filter", "metadata.yaer=1"), "no chunk has 'metadata.yaer' (did you mean metadata.year?)"),
        (("--queries", "{}/q.csv"), "name it .jsonl, .tsv, .txt"),
        (("--queries", "{}/none.txt"), "cannot read"),
        (("--queries", "{}/empty.txt"), "empty.txt is empty: put a question on each line"),
        (("--queries", "{}/q.txt"), "q.txt:2: the question is empty: remove the line"),
        (("--queries", "{}/blank.tsv"), "blank.tsv:2: the question is empty: remove the line"),
        (("--queries", "{}/twice.tsv"), "twice.tsv:2: id 'x' is that of line 1 too"),
        (("--queries", "{}/torn.jsonl"), "torn.jsonl:1: Input data was truncated"),
        (("--queries", "{}/good.txt", "--out", "{}/a.csv"), "name it .jsonl, or .trec or .run for trec_eval"),
        (("--queries", "{}/good.txt", "--out", "{}/no/a.trec"), "no does not exist: create it, or name another file"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(place: Path, tmp_path: Path, flags, why: str) -> None:
    files = {
        "q.txt": "a\n \n",
        "empty.txt": "",
        "twice.tsv": "x\ta\nx\tb\n",
        "blank.tsv": "x\ta\n\n",
        "torn.jsonl": '{"text": "a',
        "good.txt": "a\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    done = command(place, *(str(flag).format(tmp_path) for flag in flags), check=ExitCode.USAGE)
    assert why in done.stderr, done.stderr
    assert done.stdout == ""
