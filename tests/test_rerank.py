"""Reranking as it is asked for: in a search, for a file of pairs, and from Python; and what is left where it fails."""

import json
import os
import signal
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import interlock as product
from interlock.engine.errors import ExitCode, UnavailableError, UsageError
from interlock.engine.record import events as ev
from interlock.engine.search.combine import reranked
from tests.builders import corpus, interlock, logged, sentences, start, tiny_scorer
from tests.processes import until

TEXTS = sentences(30, words=12)
QUERY = TEXTS[7]
LINES = [
    {"query": TEXTS[0], "text": TEXTS[1]},
    {"query": TEXTS[2], "texts": [TEXTS[3], "", "the " * 300]},
    {"query": TEXTS[4], "texts": []},
    {"query": TEXTS[0], "text": TEXTS[5], "id": "kept out"},
]
PAIRS = [[line["query"], text] for line in LINES for text in line.get("texts", [line.get("text")])]


@pytest.fixture(scope="module")
def store(tmp_path_factory, tiny_a) -> Path:
    place = tmp_path_factory.mktemp("run")
    chunks = corpus(place / "chunks", {"Docs": {"a_chunks.json": TEXTS}})
    interlock("run", chunks, "--roster", tiny_a, "--qdrant", place / "store", "--out", place / "runs", "--no-ui")
    return place / "store"


@pytest.fixture(scope="module")
def scorer(tmp_path_factory) -> Path:
    return tiny_scorer(tmp_path_factory.mktemp("models") / "scorer", seed=3)


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory) -> Path:
    """A cross-encoder that gives no number."""
    model = tiny_scorer(tmp_path_factory.mktemp("models") / "spoilt", seed=3)
    tensors = load_file(model / "model.safetensors")
    save_file(tensors | {"classifier.bias": torch.full((1,), torch.nan)}, model / "model.safetensors", {"format": "pt"})
    return model


@pytest.fixture
def pairs(tmp_path) -> Path:
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return file


def predicted(model, pairs):
    from sentence_transformers import CrossEncoder

    return CrossEncoder(str(model), device="cpu").predict(pairs)


def found(out):
    return [json.loads(line) for line in out.splitlines()]


def ids(hits):
    return [hit["id"] for hit in hits]


def test_a_search_blends_what_a_cross_encoder_says_of_the_best_chunks(store, scorer):
    whole = found(interlock("search", store, QUERY, "--limit", 30, "--json").stdout)
    best = whole[:20]
    scores = predicted(scorer, [[QUERY, hit["payload"]["text"]] for hit in best])
    expected = reranked([hit["score"] for hit in best], list(map(float, scores)), 0.6)
    assert [each.before for each in expected] != list(range(20))
    flags = "--rerank", scorer, "--rerank-share", 0.6, "--rerank-depth", 20
    hits = found(interlock("search", store, QUERY, "--limit", 5, "--json", *flags).stdout)
    assert [hit["before"] for hit in hits] == [each.before + 1 for each in expected[:5]]
    assert ids(hits) == [best[each.before]["id"] for each in expected[:5]]
    np.testing.assert_allclose([hit["rerank_score"] for hit in hits], [each.rerank for each in expected[:5]], atol=1e-5)
    all_of_them = found(interlock("search", store, QUERY, "--limit", 30, "--json", *flags).stdout)
    assert ids(all_of_them) == [best[each.before]["id"] for each in expected] + ids(whole[20:])
    assert ["rerank_score" in hit for hit in all_of_them] == [True] * 20 + [False] * 10
    assert [hit["score"] for hit in all_of_them] == sorted((hit["score"] for hit in all_of_them), reverse=True)
    printed = interlock("search", store, QUERY, "--limit", 1, *flags).stdout
    assert f"(was {expected[0].before + 1}.)" in printed


def test_a_model_that_cannot_be_had_is_passed_over_for_the_next_one(store, scorer):
    ended = interlock("search", store, QUERY, "--json", "--offline", "--rerank", f"ms-marco-minilm-l6-v2,{scorer}")
    assert "warning: reranker ms-marco-minilm-l6-v2: model ms-marco-minilm-l6-v2 is not on this" in ended.stderr
    assert "trying scorer" in ended.stderr
    assert all("rerank_score" in hit for hit in found(ended.stdout))


@pytest.mark.parametrize(
    ("broken", "code", "why"),
    [("absent", ExitCode.UNAVAILABLE, "not on this machine"), ("spoilt", ExitCode.FAILED, "scores not finite")],
)
def test_without_scores_a_search_gives_its_own_order_and_says_so(store, spoilt, broken, code, why):
    name = spoilt if broken == "spoilt" else "bge-reranker-v2-m3"
    plain = interlock("search", store, QUERY, "--json").stdout
    ended = interlock("search", store, QUERY, "--json", "--offline", "--rerank", name, check=code)
    assert ended.stdout == plain
    assert why in ended.stderr
    assert "keeping the order of the first stage" in ended.stderr


def test_an_interrupt_leaves_the_order_of_the_search(store, scorer):
    first = (
        "from interlock.engine.compute.pairs import scorer\n"
        "def interrupted(*_): raise KeyboardInterrupt\n"
        "scorer.Scorer.score = interrupted\n"
    )
    plain = interlock("search", store, QUERY, "--json").stdout
    process = start("search", store, QUERY, "--json", "--rerank", scorer, first=first)
    out, err = process.communicate(60)
    assert (process.returncode, out) == (ExitCode.INTERRUPTED, plain)
    assert "interrupted; keeping the order of the first stage" in err


def test_a_log_tells_every_move_with_bytes_and_cause(store, scorer):
    flags = "--devices", "sim:2xT4", "--faults", "oom-over:1KiB"
    plain = interlock("search", store, QUERY, "--json", "--rerank", scorer)
    moved = interlock("search", store, QUERY, "--json", "--rerank", scorer, "--log-json", *flags)
    assert ids(found(moved.stdout)) == ids(found(plain.stdout))
    told = logged(moved.stderr)
    moves, left = ([each for each in told if isinstance(each, kind)] for kind in (ev.ModelMoved, ev.ModelUnloaded))
    assert [each.device for each in moves][-1] == "cpu"
    assert "out of memory" in moves[-1].cause
    assert left[-1].device == "cpu"
    assert all(each.bytes > 0 for each in (*moves, *left))
    assert '"level":"warning"' in moved.stderr
    assert "model scorer: found" in plain.stderr


def test_the_pairs_of_a_file_are_scored_in_their_order(scorer, pairs, tmp_path):
    out = tmp_path / "scores.jsonl"
    interlock("rerank", pairs, "--model", scorer, "--out", out)
    lines = found(out.read_text())
    assert [list(line) for line in lines] == [["score"], ["scores"], ["scores"], ["score"]]
    assert lines[2] == {"scores": []}
    flat = [score for line in lines for score in line.get("scores", [line.get("score")])]
    np.testing.assert_allclose(flat, predicted(scorer, PAIRS), rtol=0, atol=1e-5)
    assert interlock("rerank", pairs, "--model", scorer).stdout == out.read_text()


def test_a_bad_line_is_refused_before_anything_is_scored_or_written(scorer, pairs, tmp_path):
    out = tmp_path / "scores.jsonl"
    out.write_text("as it was")
    pairs.write_text(pairs.read_text() + "{}\n")
    ended = interlock("rerank", pairs, "--model", scorer, "--out", out, check=ExitCode.USAGE)
    assert f"{pairs}:5: " in ended.stderr
    assert "found on this machine" not in ended.stderr
    assert out.read_text() == "as it was"


def test_a_file_is_not_written_by_a_model_that_gives_no_numbers(spoilt, pairs, tmp_path):
    ended = interlock("rerank", pairs, "--model", spoilt, "--out", tmp_path / "o.jsonl", check=ExitCode.FAILED)
    assert "not finite" in ended.stderr
    assert not (tmp_path / "o.jsonl").exists()


def test_weights_that_are_not_in_the_files_are_not_drawn_at_random(pairs, tmp_path):
    model = tiny_scorer(tmp_path / "deberta", kind="deberta-v2")
    whole = interlock("rerank", pairs, "--model", model)
    np.testing.assert_allclose(found(whole.stdout)[0]["score"], predicted(model, PAIRS)[0], rtol=0, atol=1e-5)
    tensors = load_file(model / "model.safetensors")
    del tensors["pooler.dense.weight"]
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    ended = interlock("rerank", pairs, "--model", model, check=None)
    assert "lacks 1 tensor that its config.json asks for, first " in ended.stderr
    assert "pooler.dense.weight: fetch the model again" in ended.stderr
    assert (ended.returncode, ended.stdout) == (ExitCode.UNAVAILABLE, "")


def test_the_scores_of_a_file_are_of_one_model(scorer, pairs, tmp_path):
    late = tiny_scorer(tmp_path / "late", seed=3)
    tensors = load_file(late / "model.safetensors")
    tensors["bert.embeddings.position_embeddings.weight"][100:] = torch.nan  # of long pairs only
    save_file(tensors, late / "model.safetensors", {"format": "pt"})
    window, out = "import interlock.engine.flows.rerank as r; r.WINDOW = 1", tmp_path / "scores.jsonl"
    asked = ("rerank", pairs, "--model", f"{late},{scorer}", "--out", out)
    ended = interlock(*asked, first=window, check=ExitCode.FAILED)
    assert f"late scored the first 1 pair of {pairs} and not the others" in ended.stderr
    assert "name --model scorer alone" in ended.stderr
    assert not out.exists()
    interlock(*asked)  # all at once, by the other one
    np.testing.assert_allclose(found(out.read_text())[0]["score"], predicted(scorer, PAIRS)[0], rtol=0, atol=1e-5)


def test_a_killed_command_leaves_the_file_that_was_there(scorer, tmp_path):
    many, out = (tmp_path / name for name in ("many.jsonl", "scores.jsonl"))
    many.write_text(json.dumps({"query": TEXTS[0], "texts": TEXTS[:10]}) + "\n")
    many.write_text(many.read_text() * 3000)
    out.write_text("as it was")
    process = start("rerank", many, "--model", scorer, "--out", out, "--log-json")
    try:
        until(lambda: b"pairs_scored" in process.heard())  # of the first window
    finally:
        os.kill(process.pid, signal.SIGKILL)
    process.communicate(60)
    assert out.read_text() == "as it was"


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--rerank-share", "0.5"), "--rerank-share needs a model: name it in --rerank"),
        (("--rerank", "x,y", "--rerank-share", "1.5"), "--rerank-share: expected a number from 0 to 1, got 1.5"),
        (("--rerank", "x,y", "--rerank-share", "nan"), "--rerank-share: expected a number from 0 to 1, got nan"),
        (("--rerank", "x,y", "--rerank-depth", "0"), "--rerank-depth: expected a whole number of at least 1, got 0"),
        (("--rerank", "unheard"), "unknown model 'unheard': available ms-marco-minilm-l6-v2, "),
        (("--rerank", "maxsimm"), "unknown model 'maxsimm' (did you mean maxsim?)"),
        (("--rerank", "all-minilm-l6"), "has token vectors of no model"),
    ],
)
def test_what_cannot_be_asked_is_refused(store, tmp_path, flags, why):
    query = [] if "--queries" in flags else [QUERY]
    told = interlock("search", store, *query, *(flag.format(tmp_path) for flag in flags), check=ExitCode.USAGE).stderr
    assert why in told


def test_a_reranker_in_python_stays_loaded_and_scores_as_sentence_transformers(scorer):
    with product.Reranker(str(scorer)) as reranker:
        first, second = (reranker.score(query, TEXTS[:5]) for query in TEXTS[:2])
    wanted = predicted(scorer, [[query, text] for query in TEXTS[:2] for text in TEXTS[:5]])
    np.testing.assert_allclose([*first, *second], wanted, rtol=0, atol=1e-5)
    with pytest.raises(UsageError, match="the reranker was closed: use another Reranker"):
        reranker.score(TEXTS[0], TEXTS[:5])
    places = product.rerank(TEXTS[0], TEXTS[:5], model=str(scorer))
    assert [place for place, _ in places] == np.argsort(-wanted[:5]).tolist()
    assert [score for _, score in places] == sorted(first, reverse=True)


def test_in_python_a_search_is_reranked_or_warns_that_it_is_not(store, scorer, spoilt):
    plain = product.search(store, QUERY)
    hits = product.search(store, QUERY, rerank=[str(scorer)], rerank_share=0.6)
    assert all(isinstance(hit, product.RankedHit) for hit in hits)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    with pytest.warns(RuntimeWarning, match="not finite.*keeping the order of the first stage"):
        assert product.search(store, QUERY, rerank=str(spoilt)) == plain
    with pytest.raises(UsageError, match="rerank_share: expected a number from 0 to 1"):
        product.search(store, QUERY, rerank=str(scorer), rerank_share=2.0)


def test_in_python_what_cannot_be_scored_is_refused(scorer):
    with warnings.catch_warnings(action="error"):
        with pytest.raises(UsageError, match="expected a list of texts, got 'b'"):
            product.rerank("a", "b", model=str(scorer))
        with pytest.raises(UsageError, match="text 1 is none: expected UTF-8, got 5"):
            product.rerank("a", ["b", 5], model=str(scorer))
        with pytest.raises(UsageError, match="the query is not text"):
            product.rerank(5, ["b"], model=str(scorer))
        with pytest.raises(UnavailableError, match="not on this machine"):
            product.rerank("a", ["b"], model="bge-reranker-v2-m3", settings=product.Settings(offline=True))


def test_a_gpu_that_a_run_holds_is_left_to_it(scorer, monkeypatch):
    from interlock.engine.flows import rerank
    from interlock.engine.gpu import locks

    held = {"cuda:0": locks.Holder(1, "r1", "cuda:0", time.time())}
    monkeypatch.setattr(rerank, "holder", lambda device: held.get(device.name))
    with pytest.warns(RuntimeWarning, match="cuda:0 is left to run r1"):
        reranker = product.Reranker(str(scorer), settings=product.Settings(devices="sim:2xT4"))
    with reranker:
        reranker.score("a", ["b"])
        assert reranker._models._scorer.instance.device.name == "cuda:1"


def test_scores_never_replace_the_file_of_pairs(scorer, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(json.dumps({"query": TEXTS[0], "text": TEXTS[1]}) + "\n")
    before = pairs.read_bytes()
    refused = interlock("rerank", pairs, "--model", scorer, "--out", tmp_path / "." / "pairs.jsonl", check=2)
    assert "name another file" in refused.stderr
    assert pairs.read_bytes() == before


def test_an_interrupt_ends_the_scoring_of_a_file_without_one(scorer, tmp_path):
    many, out = (tmp_path / name for name in ("many.jsonl", "scores.jsonl"))
    many.write_text((json.dumps({"query": TEXTS[0], "texts": TEXTS[:10]}) + "\n") * 3000)
    process = start("rerank", many, "--model", scorer, "--out", out, "--log-json")
    try:
        until(lambda: b"pairs_scored" in process.heard())
        os.kill(process.pid, signal.SIGINT)
        _, told = process.communicate(60)
    finally:
        process.kill()
    assert process.returncode == ExitCode.INTERRUPTED
    assert [file.name for file in tmp_path.iterdir() if "scores" in file.name] == []
    assert isinstance(logged(told)[-1], ev.ModelUnloaded)
