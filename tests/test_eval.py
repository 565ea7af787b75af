"""`interlock eval`: measures against arithmetic by hand, intervals on known data, words that claim no more."""

import csv
import itertools
import json
import math
import re
import shlex
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
import numpy as np
import pytest

import interlock as product
from interlock.console.text.evaluation_text import evaluation_text
from interlock.engine.compute.parts.terms import SparseRows
from interlock.engine.errors import UsageError
from interlock.engine.evaluation.delivered import read_delivered
from interlock.engine.evaluation.encoding import bm25_side
from interlock.engine.evaluation.judgements import read_judged
from interlock.engine.evaluation.judging import Judge
from interlock.engine.evaluation.nearest import CHUNK, Postings, in_bytes, nearest, projected, whole
from interlock.engine.evaluation.report import (
    Evaluation,
    Interval,
    MeasuredModel,
    bill,
    bounds,
    differences,
    dumps,
    few_queries,
    measured,
    queries_to_tell,
    reach,
    signed,
    smallest_told,
    verdict,
)
from interlock.engine.evaluation.ways import Reranking, Rescored
from interlock.engine.evaluation.weighing import (
    DenseSide,
    Material,
    SideCost,
    SparseSide,
    chosen,
    grid,
    parted,
    propose,
)
from interlock.engine.search.questions import read_questions
from interlock.engine.settings import load
from interlock.engine.vectors.fusion import Fusion, fuse
from tests.builders import (
    cache_of_all,
    corpus,
    interlock,
    nearest_others,
    sentence_transformer,
    sentences,
    tiny_scorer,
    tiny_sparse,
    toml,
)

TEXTS = sentences(40, words=10)


def ranked(*ids):
    return {id: float(-place) for place, id in enumerate(ids)}


def random_units(rows, width, seed):
    vectors = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# Measures


def test_the_measures_are_those_of_arithmetic_by_hand():
    found = measured([ranked("x", "a", "b")], [{"a": 2, "b": 1, "c": 1, "x": 0}])
    gained, best = 2 / math.log2(3) + 1 / math.log2(4), 2 + 1 / math.log2(3) + 1 / math.log2(4)
    assert found["nDCG@10"][0] == pytest.approx(gained / best)
    assert found["R@100"][0] == pytest.approx(2 / 3)
    assert found["RR@10"][0] == pytest.approx(1 / 2)


def test_the_measures_are_those_of_an_independent_formula():
    generator = np.random.default_rng(3)
    ids = [f"d{at:03}" for at in range(200)]
    lists = [ranked(*generator.permutation(ids)[:100]) for _ in range(25)]
    grades = [{id: int(generator.integers(0, 4)) for id in generator.choice(ids, 12, replace=False)} for _ in lists]
    found = measured(lists, grades)
    for at, (hits, own) in enumerate(zip(lists, grades, strict=True)):
        gains = [own.get(id, 0) for id in list(hits)[:10]]
        ideal = sorted(own.values(), reverse=True)[:10]
        dcg, best = (sum(gain / math.log2(place + 2) for place, gain in enumerate(each)) for each in (gains, ideal))
        answers = {id for id, grade in own.items() if grade > 0}
        assert found["nDCG@10"][at] == pytest.approx(dcg / best)
        assert found["R@100"][at] == pytest.approx(len(answers & set(hits)) / len(answers))
        assert found["RR@10"][at] == pytest.approx(next((1 / at for at, gain in enumerate(gains, 1) if gain), 0))


def test_equal_scores_keep_their_order_and_a_query_without_hits_counts_as_nothing_found():
    found = measured([{"b": 1.0, "a": 1.0}, {}], [{"b": 1}, {"b": 1}])
    assert found["RR@10"].tolist() == [1.0, 0.0]  # trec_eval itself would put a before b


def test_an_interval_is_that_of_the_normal_distribution_where_queries_are_many():
    values = np.random.default_rng(1).normal(0.05, 0.4, 600)
    (found,) = differences([values])
    error = 1.96 * values.std() / math.sqrt(len(values))
    assert found.mean == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - error, abs=error / 15)
    assert found.high == pytest.approx(values.mean() + error, abs=error / 15)


def test_an_interval_of_the_same_difference_everywhere_has_no_width():
    same, none = differences([np.full(20, 0.25), np.zeros(20)])
    assert (same.low, same.mean, same.high, same.significant) == (0.25, 0.25, 0.25, True)
    assert (none.low, none.high, none.significant) == (0.0, 0.0, False)
    (one,) = differences([np.full(1, 0.25)])
    assert (one.low, one.mean, one.high, one.significant, one.adjusted_p) == (-1.0, 0.25, 1.0, False, None)


def test_intervals_are_those_of_the_t_test_and_stars_those_of_holm():
    from scipy import stats  # not for all who collect this

    generator = np.random.default_rng(4)
    pairs = [generator.normal(mean, 0.1, 25) for mean in (0.2, 0.06, 0.055, 0.05, 0.03, 0.0, 0.0)]
    found, tests = differences(pairs), [stats.ttest_1samp(each, 0.0) for each in pairs]
    for each, test in zip(found, tests, strict=True):
        bounds = test.confidence_interval(0.95)
        assert (each.low, each.high) == pytest.approx((bounds.low, bounds.high))
    by_chance = sorted((test.pvalue, at) for at, test in enumerate(tests))
    held = itertools.takewhile(lambda one: one[1][0] * (len(pairs) - one[0]) <= 0.05, enumerate(by_chance))
    starred = {at for _, (_, at) in held}
    assert {at for at, each in enumerate(found) if each.significant} == starred
    alone = {at for at, test in enumerate(tests) if test.pvalue <= 0.05}
    assert starred and starred < alone
    for at, each in enumerate(found):  # by the definition: the largest of what the smaller ones are multiplied to
        smaller = [(chance, len(pairs) - rank) for rank, (chance, _) in enumerate(by_chance)]
        wanted = max(min(1.0, chance * times) for chance, times in smaller if chance <= tests[at].pvalue)
        assert each.adjusted_p == pytest.approx(wanted) and each.significant == (each.adjusted_p <= 0.05)


def test_a_mean_has_the_interval_of_students_t_which_ends_at_nothing_found():
    from scipy import stats  # not for all who collect this

    generator = np.random.default_rng(5)
    values = {"nDCG@10": generator.beta(2, 3, 40), "RR@10": np.array([0.0] * 39 + [1.0])}
    found = bounds(values)
    wanted = stats.ttest_1samp(values["nDCG@10"], 0.0).confidence_interval(0.95)
    assert found["nDCG@10"] == pytest.approx((wanted.low, wanted.high))
    assert found["RR@10"][0] == 0.0 < found["RR@10"][1]
    assert bounds({"AP": np.array([0.5])}) == {"AP": (0.0, 1.0)}


def test_intervals_hold_what_they_say_and_stars_are_chance_in_one_table_of_twenty(skewed):
    """Draws from differences of which the mean is known: 600 tables of nine ways that are all alike."""
    generator = np.random.default_rng(0)
    for queries in (10, 20, 30, 60, 100, 300):
        held, starred = [], 0
        for _ in range(600):
            found = differences([generator.choice(each, queries) for each in skewed])
            held += [each.low <= 0 <= each.high for each in found]
            starred += any(each.significant for each in found)
        assert 0.93 <= np.mean(held) <= 0.97, queries
        assert starred / 600 <= 0.07, queries  # 5 % and what 600 tables may differ from it


@pytest.fixture(scope="module")
def skewed():
    """Populations of paired differences with a mean of 0: from even to skewed, most of some of them 0."""
    generator = np.random.default_rng(9)
    found = []
    for share, skew in itertools.product((0.0, 0.3, 0.5), (1.0, 2.0, 4.0)):
        values = np.where(generator.random(4000) < share, 0.0, generator.beta(2.0, 2.0 * skew, 4000))
        values[values > 0] -= values[values > 0].mean()
        found.append(values - values.mean())
    return found


# Words


@pytest.mark.parametrize(
    ("bounds", "queries", "said"),
    [
        (
            (0.01, 0.03),
            200,
            "concat finds more than each of its members alone: * lies between +.010 and +.030 *",
        ),
        ((-0.03, -0.01), 200, "concat finds less than *"),
        ((-0.004, 0.006), 200, "concat and its member a alone find the same: *"),
        ((-0.03, 0.05), 20, "cannot tell with 20 judged queries * lies between -.030 and +.050"),
    ],
)
def test_the_verdict_says_more_less_or_the_same_only_where_the_interval_carries_it(bounds, queries, said):
    low, high = bounds
    found = Interval(mean=(low + high) / 2, low=low, high=high, significant=low > 0 or high < 0)
    assert fnmatchcase(verdict("concat", "a", {"a": found}, queries), said)


def test_more_is_claimed_only_where_it_is_more_than_every_member():
    def apart(low, high):
        return Interval(mean=(low + high) / 2, low=low, high=high, significant=low > 0 or high < 0)

    more, less, open_ = apart(0.01, 0.05), apart(-0.05, -0.01), apart(-0.01, 0.02)
    assert verdict("concat", "a", {"a": more, "b": apart(0.02, 0.06)}, 50).startswith("concat finds more than each")
    told = verdict("concat", "a", {"a": more, "b": open_}, 50)  # however much more than the one that was chosen
    assert told.startswith("cannot tell") and "from b lies between -.010 and +.020" in told
    assert "less than its member b alone, which will do" in verdict("concat", "a", {"a": more, "b": less}, 50)


def test_an_ensemble_that_only_equals_one_member_is_said_to_be_better_in_one_of_forty():
    generator, claimed = np.random.default_rng(6), 0
    for _ in range(1000):
        from_worse, from_equal = generator.normal(0.08, 0.15, 40), generator.normal(0.0, 0.15, 40)
        found = dict(zip("ab", differences([from_worse, from_equal]), strict=True))
        claimed += verdict("concat", "a", found, 40).startswith("concat finds more")
    assert claimed / 1000 <= 0.035  # 2.5 %, and what 1,000 may differ from it


def test_the_difference_that_so_many_queries_tell_is_found_eight_times_in_ten():
    generator, least = np.random.default_rng(2), smallest_told(60)
    draws = [differences([generator.normal(least, 0.15, 60)])[0] for _ in range(1500)]
    assert np.mean([each.significant for each in draws]) == pytest.approx(0.8, abs=0.03)
    assert "tell no difference" in reach(19) and f"{least:.3f}"[1:] in reach(60)
    assert "is .150 (ways that are alike have about half" in reach(60) and reach(60, 0.3).endswith("over them is .300")
    assert f" {smallest_told(60, 0.3):.3f} in AP".replace("0.", ".") in reach(60, 0.3, "AP")


def test_so_many_questions_more_tell_a_way_beside_others_eight_times_in_ten():
    generator, told = np.random.default_rng(5), list[bool]()
    while len(told) < 400:
        first = generator.normal([[0.05], *[[0.0]] * 5], 0.15, (6, 30))
        whole = queries_to_tell(mean := first[0].mean(), first[0].std(ddof=1), 6)
        if whole and whole > 30 and not differences([*first])[0].significant:
            more = generator.normal([[mean], *[[0.0]] * 5], 0.15, (6, whole - 30))
            told.append(differences([*np.hstack([first, more])])[0].significant)
    assert np.mean(told) >= 0.76  # 60 % before the others counted


def test_a_handful_of_queries_that_agree_is_no_significant_difference():
    few, enough = differences([np.full(19, 0.1)])[0], differences([np.full(20, 0.1)])[0]
    assert (few.significant, enough.significant) == (False, True)
    assert verdict("concat", "a", {"a": few}, 19).startswith("cannot tell with 19 judged queries")
    assert verdict("concat", "a", {"a": differences([np.zeros(29)])[0]}, 29).startswith("cannot tell")
    assert "find the same" in verdict("concat", "a", {"a": differences([np.zeros(30)])[0]}, 30)


def test_few_queries_are_told_and_enough_are_not():
    assert "only 29 judged queries" in few_queries(29)[0]
    assert few_queries(30) == []


def test_the_bill_is_that_of_all_models_and_of_the_best_alone():
    def model(seconds, query_ms=None):
        return MeasuredModel(weight=1, dim=8, seconds=seconds, device="CPU", query_ms=query_ms)

    said = bill("a", {"a": model(60, 4.0), "b": model(3540, 90.0)})
    assert "1:00:00 of CPU time, a alone 1:00" in said and "94 ms" in said and "alone 4" in said
    assert bill("a", {"a": model(60), "b": model(None)}) == ""


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "+.012"), (-0.0004, "-.000"), (1e-17, "0"), (-1.0, "-1.000"), (0.1, "+.100")]
)
def test_a_difference_is_written_with_its_sign(value, text):
    assert signed(value) == text


# Search


def test_the_nearest_are_those_of_the_whole_matrix_also_across_chunks(monkeypatch):
    monkeypatch.setattr("interlock.engine.evaluation.nearest.CHUNK", 7)
    documents, queries = random_units(50, 8, 0), random_units(5, 8, 1)
    rows, scores = nearest(documents, queries, 10)
    whole_matrix = queries @ documents.T
    expected = np.argsort(-whole_matrix, axis=1, kind="stable")[:, :10]
    assert rows.tolist() == expected.tolist()
    np.testing.assert_allclose(scores, np.take_along_axis(whole_matrix, expected, 1), rtol=1e-6)
    assert CHUNK > 7


def test_a_sparse_search_finds_what_shares_a_term_and_nothing_else():
    documents = np.array([[1, 0, 2], [0, 3, 0], [0, 0, 0], [2, 1, 0]], np.float32)
    queries = np.array([[1, 0, 2], [0, 0, 0]], np.float32)
    (first, none) = Postings(SparseRows.from_dense(documents)).nearest(SparseRows.from_dense(queries), 3)
    assert (first[0].tolist(), first[1].tolist()) == ([0, 3], [5.0, 2.0])
    assert none[0].tolist() == []


def test_bm25_has_the_idf_of_the_store():
    side = bm25_side(["red apple", "red pear", "green pear pie"], ["red red pie zebra"], "none")
    own = side.queries
    counts = {int(index): int((side.documents.indices == index).sum()) for index in own.indices}
    assert sorted(counts.values()) == [1, 2]
    for index, weight in zip(own.indices, own.values, strict=True):
        many = counts[int(index)]
        assert weight == pytest.approx(math.log(1 + (3 - many + 0.5) / (many + 0.5)))


def test_a_projection_to_the_whole_width_changes_no_score_and_a_smaller_one_little_where_vectors_are_alike():
    documents, queries = random_units(200, 16, 0), random_units(5, 16, 1)
    (form,) = projected(documents, queries, [16])
    np.testing.assert_allclose(form.queries @ form.documents.T, queries @ documents.T, atol=1e-5)
    flat = np.concatenate([documents[:, :4], 0.01 * documents[:, 4:]], axis=1)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    _, small = projected(flat, queries, [8, 4])
    (alone,) = projected(flat, queries, [4])
    assert np.array_equal(small.documents, alone.documents)
    assert (small.documents.shape, small.bytes) == ((200, 4), 16)
    np.testing.assert_allclose(small.documents @ small.documents.T, flat @ flat.T, atol=0.01)


def test_bytes_cover_the_whole_range():
    documents, queries = random_units(50, 8, 0), random_units(3, 8, 1)
    form = in_bytes(whole(documents, queries))
    assert (np.abs(form.documents.astype(int)).max(), form.bytes) == (127, 8)
    step = np.abs(documents).max() / 127
    np.testing.assert_allclose(form.documents * step, documents, atol=step / 2 + 1e-6)


# Weights


def test_the_grid_has_every_share_in_tenths():
    assert len(grid(2)) == 11 and len(grid(3)) == 66
    assert all(sum(share) == pytest.approx(1) for share in grid(3))


def test_weights_follow_what_is_best_on_every_fold():
    queries = np.arange(30)
    weights, expected = propose(2, lambda share: 1 - np.abs(share[0] - 0.3) + 0 * queries, seed=0)
    assert weights == (0.3, 0.7)
    assert expected == pytest.approx(1.0)


def test_weights_that_make_no_difference_stay_equal():
    assert propose(2, lambda share: np.zeros(30), seed=0)[0] == (0.5, 0.5)


# Judging


@pytest.fixture
def material():
    """A first model that finds every answer, a second that finds none, and sparse lists that find half of them."""
    documents, second = random_units(60, 16, 0), random_units(60, 24, 1)
    queries = np.arange(40)
    terms = np.eye(60, dtype=np.float32)
    asked = np.where(queries[:, None] % 2 == 0, terms[queries], 0).astype(np.float32)
    return Material(
        ids=[f"d{at}" for at in range(60)],
        grades=[{f"d{at}": 1} for at in queries],
        tested=queries,
        trained=queries[::2],
        dense=[
            DenseSide("good", 1.0, documents, documents[queries], SideCost(10, 1.0), (8,)),
            DenseSide("bad", 1.0, second, random_units(40, 24, 2), SideCost(20, 2.0)),
        ],
        sparse=[SparseSide("words", SparseRows.from_dense(terms), SparseRows.from_dense(asked), SideCost(0, 0.0))],
        halved=True,
    )


def test_the_best_member_is_the_one_that_finds_and_the_proposed_weights_are_its_own(material):
    judge = Judge(material, Fusion.CONCAT, 0)
    assert judge.best == "good"
    lines = {line.name: line for line in judge.lines([*judge.models(), *judge.fusions()])}
    assert lines["good"].measures["nDCG@10"] == 1 and lines["good"].difference is None
    assert lines["concat"].against == "good" and lines["concat"].difference.high <= 0
    assert lines["good, 8"].against == "good" and lines["good, 8"].bytes == 32
    assert lines["concat"].bytes == 4 * 40 and lines["concat"].ms >= 3
    found = chosen(material, judge.best, 0)
    assert found.weights["good"] > 0.5 and found.held_out == 20 and found.value == 1


@pytest.mark.parametrize("name", ["RRF", "concat", "mean", "int8"])
def test_a_model_with_the_name_of_a_way_is_refused(material, name):
    sides = [replace(side, name=name) if place == 0 else side for place, side in enumerate(material.dense)]
    with pytest.raises(UsageError, match=f"'{name}' has the name of a way to search"):
        Judge(replace(material, dense=sides), Fusion.CONCAT, 0)


def test_fused_lists_are_those_of_the_delivered_fusion(material):
    judge = Judge(material, Fusion.NAMED, 0)
    documents = fuse(Fusion.CONCAT, [side.documents for side in material.dense], [1, 1])
    queries = fuse(Fusion.CONCAT, [side.queries for side in material.dense], [1, 1])
    for found, scores in zip(judge.base.found, queries @ documents.T, strict=True):
        assert list(found) == [f"d{at}" for at in np.argsort(-scores, kind="stable")]


def test_hybrid_lists_are_compared_with_the_dense_search_and_one_is_that_of_a_search_by_itself(material):
    judge = Judge(material, Fusion.CONCAT, 0)
    ways = judge.hybrids
    assert [way.name for way in ways] == [f"words, {rule}" for rule in ("0.1", "0.2", "0.25", "0.3", "RRF", "DBSF")]
    assert judge.hybrid.name == "words, 0.25"
    lines = {line.name: line for line in judge.lines(ways)}
    assert all(line.against == "concat" for line in lines.values())
    assert lines["words, 0.3"].difference.mean >= lines["words, 0.1"].difference.mean >= 0


def test_storage_is_compared_with_the_whole_vectors(material):
    judge = Judge(material, Fusion.CONCAT, 0)
    lines = {line.name: line for line in judge.lines([*judge.storage()])}
    assert lines["int8"].bytes == 40
    assert abs(lines["int8"].difference.mean) < 0.05


def test_a_reranker_that_knows_the_answers_puts_them_first_within_its_depth(material):
    judge = Judge(material, Fusion.CONCAT, 0)

    def rescore(first):
        assert max(map(len, first)) == 30
        return Rescored([{id: float(id == f"d{at}") for id in hits} for at, hits in enumerate(first)], 7.0, 100.0)

    dense, hybrid = judge.lines(judge.reranked(Reranking("knower", rescore, 1.0, 30)))
    reached = np.mean([f"d{at}" in list(hits)[:30] for at, hits in enumerate(judge.base.found)])
    assert dense.measures["RR@10"] == pytest.approx(reached) and dense.against == "concat"
    assert hybrid.against == "words, 0.25" and hybrid.bytes > 100 and hybrid.ms > 7


# Files


def judged(place, **other):
    """A judged collection in which each text is its own question."""
    files = {
        "corpus.jsonl": [json.dumps({"_id": f"d{at}", "title": "", "text": text}) for at, text in enumerate(TEXTS)],
        "queries.jsonl": [json.dumps({"_id": f"q{at}", "text": text}) for at, text in enumerate(TEXTS)],
        "qrels/test.tsv": ["query-id\tcorpus-id\tscore", *(f"q{at}\td{at}\t1" for at in range(40))],
        **{name.replace("__", "/"): lines for name, lines in other.items()},
    }
    (place / "qrels").mkdir(parents=True, exist_ok=True)
    for name, lines in files.items():
        (place / name).write_text("\n".join(lines) + "\n")
    return place


def test_texts_without_a_word_are_left_out_and_told(tmp_path):
    lines = ['{"_id": "d0", "title": "A", "text": "b"}', '{"_id": "d1", "text": " "}']
    found = read_judged(
        judged(tmp_path, **{"corpus.jsonl": lines, "qrels/test.tsv": ["q0\td0\t1", "q0\td1\t1", "q1\td0\t0"]})
    )
    assert found.texts == {"d0": "A b"}
    assert found.left_out == [f"{tmp_path / 'corpus.jsonl'}:2"]
    assert set(found.splits["test"]) == {"q0"}


def test_queries_without_a_word_are_asked_of_nobody_and_told(tmp_path, tiny_a):
    queries = [json.dumps({"_id": f"q{at}", "text": text if at != 3 else " "}) for at, text in enumerate(TEXTS)]
    place = judged(tmp_path, **{"queries.jsonl": queries})
    assert {*read_judged(place).splits["test"]} == {f"q{at}" for at in range(40) if at != 3}
    found = product.evaluate(place, product.Settings(roster=[tiny_a], bm25="off"))
    assert found.queries == 39
    assert "1 empty query skipped: q3" in found.notes


def test_a_byte_order_mark_and_ends_of_lines_of_another_system_are_no_part_of_a_judged_collection(tmp_path):
    wanted = read_judged(judged(tmp_path / "plain"))
    place = judged(tmp_path / "marked")
    for file in [*place.glob("*.jsonl"), *place.glob("qrels/*.tsv")]:
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert read_judged(place) == wanted


def test_a_run_is_judged_by_a_list_with_an_empty_question_too(tmp_path):
    (tmp_path / "asked.tsv").write_text("q0\tkeys\nq1\t \n")
    with pytest.raises(UsageError, match=r"asked\.tsv:2: the question is empty"):
        list(read_questions(tmp_path / "asked.tsv"))
    assert [each.text.strip() for each in read_questions(tmp_path / "asked.tsv", empty=True)] == ["keys", ""]


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("corpus.jsonl", '{"_id": "d1", "te', "corpus.jsonl:2: Input data was truncated"),
        ("corpus.jsonl", '{"_id": "d0", "text": "twice"}', "corpus.jsonl:2: _id 'd0' was there before"),
        ("qrels/test.tsv", "q0\td99\t1", "test.tsv:2: text 'd99' is not in the corpus"),
        ("qrels/test.tsv", "q99\td1\t1", "test.tsv:2: query 'q99' is not among the queries"),
        ("qrels/test.tsv", "q0 d1 1", "test.tsv:2: expected query-id"),
        ("qrels/test.tsv", "q0\td0\t1", "test.tsv:2: text 'd0' is judged twice"),
    ],
)
def test_a_bad_line_is_refused_with_its_file_and_number(tmp_path, file, line, said):
    first = {"corpus.jsonl": '{"_id": "d0", "text": "a"}', "queries.jsonl": '{"_id": "q0", "text": "a"}'}
    with pytest.raises(UsageError) as raised:
        read_judged(judged(tmp_path, **{file: [first.get(file, "q0\td0\t1"), line]}))
    assert said in str(raised.value)


@pytest.mark.parametrize("score", ["01", "0000000002", "-00000000001", "0" * 5000 + "3"])
def test_a_score_with_zeros_before_it_is_the_number_that_trec_eval_takes_it_for(tmp_path, score):
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="make install brings ir-measures")
    theirs = pytrec_eval.parse_qrel([f"q0 0 d0 {score[-20:]}"])["q0"]["d0"]
    found = read_judged(judged(tmp_path, **{"qrels/test.tsv": [f"q0\td0\t{score}", "q0\td1\t1"]}))
    assert found.splits["test"]["q0"] == {"d0": theirs, "d1": 1}


def test_topics_in_trecs_tags_are_no_questions_of_a_line_each(tmp_path):
    (file := tmp_path / "topics.txt").write_text("\n<top>\n<num> Number: 301\n<title> tea\n</top>\n")
    with pytest.raises(UsageError, match=r"topics\.txt:2: a topic in TREC's tags: put number, tab and title"):
        [*read_questions(file, empty=True)]


@pytest.mark.parametrize("score", ["1001", "0000000009999999999", "0" * 5000 + "99999", "9" * 5000])
def test_a_score_beyond_the_highest_grade_is_refused_whatever_stands_before_it(tmp_path, score):
    with pytest.raises(UsageError, match=r"test.tsv:1: a score of .* is above 1000"):
        read_judged(judged(tmp_path, **{"qrels/test.tsv": [f"q0\td0\t{score}"]}))


def test_judgements_that_answer_nothing_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no query has a text with a score above 0"):
        read_judged(judged(tmp_path, **{"qrels/test.tsv": ["q0\td0\t0"]}))


def test_a_split_to_train_by_is_used_and_else_a_half(tmp_path):
    halves = parted(read_judged(judged(tmp_path / "a")), None, 0)
    assert (len(halves.tested), len(halves.trained), halves.halved) == (40, 20, True)
    train = [f"q{at}\td{at}\t1" for at in range(30)]
    test = [f"q{at}\td{at}\t1" for at in range(30, 40)]
    found = parted(read_judged(judged(tmp_path / "b", **{"qrels/test.tsv": test, "qrels/train.tsv": train})), 6, 0)
    assert (len(found.tested), len(found.trained), found.halved) == (6, 6, False)
    assert not set(found.tested) & set(found.trained)


# The command


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_a, tiny_b):
    place = tmp_path_factory.mktemp("eval")
    judged(place / "set")
    laws = cache_of_all() / "laws"  # which take seconds to trace, in a cache that has nothing else yet
    laws.mkdir(parents=True, exist_ok=True)
    (place / "cache").mkdir()
    (place / "cache" / "laws").symlink_to(laws)
    words = tiny_sparse(place / "words", seed=4)
    scorer = tiny_scorer(place / "scorer", seed=4)
    toml(place / "interlock.toml", {
        "a": {"source": str(tiny_a)},
        "b": {"source": str(tiny_b)},
        "words": {"source": str(words), "kind": "sparse"},
        "scorer": {"source": str(scorer), "kind": "scores"},
    })  # fmt: skip
    return place


def run(place, *flags, check=0):
    base = ("eval", place / "set", "--config", place / "interlock.toml", "--roster", "a,b", "--sparse", "words")
    return interlock(*base, *flags, env={"INTERLOCK_CACHE": str(place / "cache")}, cwd=place, check=check)


@pytest.fixture(scope="module")
def evaluated(place):
    """What planning and evaluating said, of which `eval.json` is left."""
    return run(place, "--plan"), run(place, "--json", "eval.json")


@pytest.mark.parametrize("flag", ["--json", "--tsv", "--calibrate"])
def test_an_evaluation_is_written_over_nothing_else(place, evaluated, flag):
    corpus = next((place / "set").glob("corpus.jsonl*"))
    before = corpus.read_bytes()
    said = run(place, flag, corpus, check=2).stderr
    assert f"{flag}: {corpus} holds something else, which stays: name another file" in said
    assert corpus.read_bytes() == before


def test_two_results_of_an_evaluation_are_not_written_to_one_file(place, evaluated):
    said = run(place, "--json", "one.toml", "--calibrate", "./one.toml", check=2).stderr
    assert "--json and --calibrate both write one.toml: name another file for one" in said


def test_the_command_judges_plans_and_takes_vectors_that_were_computed_before(place, evaluated):
    plan, first = evaluated
    lines = [line.split()[:3] for line in plan.stdout.splitlines()[2:]]
    assert lines == [[name, "40", "40"] for name in ("a", "b", "words")]
    assert "a: 40 texts to encode" in first.stderr
    assert max(map(len, first.stdout.splitlines())) <= 80
    assert re.search(r"int8 .* \d+$", first.stdout, re.MULTILINE)
    found = json.loads((place / "eval.json").read_text())
    assert (found["schema_version"], found["texts"], found["queries"], found["training"]) == ("1", 40, 40, 20)
    groups = [way["group"] for way in found["ways"]]
    assert list(dict.fromkeys(groups)) == ["models", "fusions", "storage", "sparse", "hybrid"]
    assert found["verdict"] and found["verdict"][1:] in " ".join(first.stdout.split())
    assert max(way["measures"]["nDCG@10"] for way in found["ways"] if way["group"] == "models") > 0.9
    kept = {file: file.stat().st_mtime_ns for file in (place / "cache" / "judged").rglob("*.npz")}
    again = run(place, "--json", "again.json")
    assert "to encode" not in again.stderr
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    once, twice = (json.loads((place / name).read_text())["ways"] for name in ("eval.json", "again.json"))
    assert [way["measures"] for way in once] == [way["measures"] for way in twice]


@pytest.mark.usefixtures("evaluated")
def test_texts_are_computed_on_gpus_and_found_again_and_judged_as_those_of_the_cpu(place):
    on_gpus = ("--devices", "sim:2xT4", "--json", "gpus.json")
    assert "40 " in run(place, "--plan", *on_gpus[:2]).stdout
    said = run(place, *on_gpus, "--faults", "oom:2,lose@cuda:1:4").stderr
    assert "SIMULATED" in said or "simulated" in said
    assert "pass 1 a completed: 40 texts" in said
    ours, plain = (json.loads((place / name).read_text()) for name in ("gpus.json", "eval.json"))
    assert [way["measures"] for way in ours["ways"]] == [way["measures"] for way in plain["ways"]]
    assert {each["device"] for each in ours["models"].values()} == {"simulated GPU"}
    assert {each["device"] for each in plain["models"].values()} == {"CPU"}
    assert "completed" not in run(place, *on_gpus).stderr


@pytest.mark.usefixtures("evaluated")
def test_several_sets_are_judged_one_by_one_and_together_as_comparing_their_files_does(place, monkeypatch):
    judged(place / "second", **{"qrels/test.tsv": [f"q{at}\td{at // 2}\t1" for at in range(12)]})
    flags = ("--config", "interlock.toml", "--roster", "a,b", "--sparse", "words")
    how = {"env": {"INTERLOCK_CACHE": str(place / "cache")}, "cwd": place}
    said = interlock("eval", "set", "second", *flags, "--json", "both.json", "--tsv", "both.tsv", **how).stdout
    both, alone = (json.loads((place / name).read_text()) for name in ("both.json", "eval.json"))
    assert [each["data"] for each in both["evaluations"]] == ["set", "second"]
    assert both["sets"] == {"set": 40, "second": 12}
    monkeypatch.chdir(place)
    monkeypatch.setenv("INTERLOCK_CACHE", str(place / "cache"))
    settings = product.Settings(config="interlock.toml", roster=["a", "b"], sparse=["words"])
    in_python = product.evaluate(["set", Path("second")], settings)
    assert json.loads(dumps(in_python))["differences"] == both["differences"]
    rows = [*csv.DictReader((place / "both.tsv").open(), delimiter="\t")]
    wanted = [
        {"run": way["name"], "measure": measure, "query": query, "value": str(value), "set": each["data"]}
        for each in both["evaluations"]
        for way in each["ways"]
        for measure, values in way["values"].items()
        for query, value in zip(each["query_ids"], values, strict=True)
    ]
    assert rows == wanted
    assert [way["values"] for way in both["evaluations"][0]["ways"]] == [way["values"] for way in alone["ways"]]
    for each in both["evaluations"]:
        (place / f"one {each['data']}.json").write_text(json.dumps(each))
    interlock("compare", "one set.json", "one second.json", "--json", "pooled.json", cwd=place)
    assert json.loads((place / "pooled.json").read_text())["differences"] == both["differences"]
    heads = [
        next(line for line in said.splitlines() if line.startswith(name)) for name in ("set:", "second:", "The mean")
    ]
    assert [said.index(each) for each in heads] == sorted(said.index(each) for each in heads)
    assert "of 2 sets over 52 judged queries" in said
    planned = interlock("eval", "set", "second", *flags, "--plan", **how).stdout
    assert [line for line in planned.splitlines() if line.endswith(":")] == ["set:", "second:"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set",), "set is named twice: name each collection once"),
        (("lone",), "lone has one judged query, which tells nothing: drop it, or judge more"),
        (("nowhere",), "nowhere does not exist"),
        (("lone", "--qrels", "set/qrels/test.tsv"), "--qrels is of one collection: drop it, or judge each alone"),
        (("lone", "--run-out", "lists"), "--run-out is of one collection: drop it, or judge each alone"),
        (("lone", "--calibrate", "w.toml"), "--calibrate writes the weights of one collection: name one"),
    ],
)
def test_sets_that_cannot_be_judged_together_are_refused_before_anything_is_computed(place, words, said):
    if not (place / "lone").exists():
        judged(place / "lone", **{"qrels/test.tsv": ["q0\td0\t1"]})
    ended = interlock("eval", "set", *words, "--config", "interlock.toml", "--roster", "a", cwd=place, check=2)
    assert said in ended.stderr and "judging" not in ended.stderr


def test_weights_are_written_as_a_file_that_a_run_takes(place, tiny_a, tiny_b):
    nearest = nearest_others(sentence_transformer(tiny_a).encode(TEXTS, normalize_embeddings=True))
    grades = ["query-id\tcorpus-id\tscore", *(f"q{at}\td{text}\t1" for at, text in enumerate(nearest))]
    by_one = judged(place / "by one", **{"qrels/test.tsv": grades})
    flags = ("--roster", f"{tiny_a}=1,{tiny_b}=9", "--calibrate", "own.toml", "--json", "own.json")
    said = interlock("eval", by_one, *flags, cwd=place).stdout
    assert said.splitlines()[-1].startswith("take them with --config own.toml")
    chosen = json.loads((place / "own.json").read_text())["weights"]["weights"]
    places = {"tiny-a": str(tiny_a), "tiny-b": str(tiny_b)}
    roster = load({}, {}, place / "own.toml").settings.roster
    assert dict(roster) == {places[name]: part for name, part in chosen.items() if part}
    assert "set roster in" in run(place, "--calibrate", "own.toml", check=2).stderr


def test_python_gives_the_same_figures(place, tiny_a, tiny_b):
    with pytest.raises(UsageError, match=r"^data: expected a collection, or several: name one"):
        product.evaluate([])
    with pytest.raises(UsageError, match=r"^queries is of one collection: drop it"):
        product.evaluate([place / "set", place], queries="q.jsonl")
    with pytest.raises(TypeError, match="unexpected keyword argument 'rerankers'"):
        product.evaluate(place / "set", rerankers="b")
    found = product.evaluate(place / "set", product.Settings(roster=[tiny_a, tiny_b]), limit=7, seed=1)
    assert (found.queries, found.seed, list(found.models)) == (7, 1, ["tiny-a", "tiny-b"])
    with pytest.raises(UsageError, match=r"corpus\.jsonl"):
        product.evaluate(place / "nothing")


@pytest.mark.usefixtures("evaluated")
def test_means_have_their_intervals_that_of_the_first_measure_in_eighty_columns_and_more_with_room(place):
    found = msgspec.json.decode((place / "eval.json").read_bytes(), type=Evaluation)
    bare = evaluation_text(found, width=0).split("\n\n")[-4]
    least = max(map(len, bare.splitlines()))
    for width, shown in {least: 0, least + 6: 1, least + 12: 2, 120: 3}.items():
        rows = [row for row in evaluation_text(found, width=width).split("\n\n")[-4].splitlines() if row[:2] == "  "]
        assert {row.count("±") for row in rows[1:]} <= {shown, shown + 1} and max(map(len, rows)) <= width
    way = min(found.ways, key=lambda each: each.measures["nDCG@10"])
    mean, (low, high) = way.measures["nDCG@10"], way.intervals["nDCG@10"]
    assert low < mean < high < 2 * mean  # no end is cut off
    assert f" {mean:.3f} ±{high - mean:.3f} ".replace("0.", ".") in evaluation_text(found)
    one = msgspec.structs.replace(way, measures={"AP": 0.3}, intervals={"AP": (0.0, 1.0)}, difference=Interval(
        mean=0.3, low=-1.0, high=1.0, significant=False,
    ))  # fmt: skip
    assert re.search(r" \.300 ±\.700 +\+\.300 ±1\.000 ", evaluation_text(msgspec.structs.replace(found, ways=[one])))


@pytest.mark.usefixtures("evaluated")
def test_an_evaluation_is_told_in_a_line_and_its_ways_are_told_apart_in_eighty_columns(place):
    found = msgspec.json.decode((place / "eval.json").read_bytes(), type=Evaluation)
    assert repr(found) == f"<evaluation of set: 40 texts, 40 judged queries; {found.verdict}>"
    assert repr(msgspec.structs.replace(found, verdict="")).endswith(f"; {found.best_member} alone>")
    names = ["a-sparse-model-of-a-long-name, 0.1", "a-sparse-model-of-a-long-name, DBSF", "short, RRF"]
    ways = [msgspec.structs.replace(found.ways[-1], group="hybrid", name=name) for name in names]
    long = msgspec.structs.replace(found, ways=ways)
    for name, cut in zip(
        names, ["  a-sparse-model-of…, 0.1", "  a-sparse-model-o…, DBSF", "  short, RRF"], strict=True
    ):
        assert f"\n  {name} " in evaluation_text(long, whole=True) and f"\n{cut} " in evaluation_text(long)


@pytest.mark.parametrize("reranker", ["b", "scorer"])
def test_rerankers_are_judged_behind_the_search(place, reranker):
    run(place, "--rerank", reranker, "--limit", "5", "--json", "reranked.json")
    found = json.loads((place / "reranked.json").read_text())
    named = {"b": "b maxsim", "scorer": "scorer"}[reranker]
    assert [(way["name"], way["against"]) for way in found["ways"] if way["group"] == "rerank"] == [
        (f"{named} after concat", "concat"),
        (f"{named} after bm25 + words, 0.25", "bm25 + words, 0.25"),
    ]
    assert found["queries"] == 5 and "only 5 judged queries" in found["notes"][0]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--limit", "0"), "--limit: expected"),
        (("--seed", "-1"), "--seed: expected"),
        (("--json", "no/such/file.json"), "does not exist"),
        (("--rerank", "tiny-c"), "tiny-c"),
        (("--rerank", "all-minilm-l6"), "not a model of the roster"),
    ],
)
def test_what_cannot_be_used_ends_with_2(place, flags, said):
    ended = run(place, *flags, check=2)
    assert said in ended.stderr and "Traceback" not in ended.stderr
    assert "judging" not in ended.stderr  # refused before anything is computed


def test_a_roster_of_one_has_storage_and_hybrids_and_no_verdict(place):
    run(place, "--roster", "a", "--sparse", "", "--bm25", "off", "--json", "one.json")
    found = json.loads((place / "one.json").read_text())
    assert {way["group"] for way in found["ways"]} == {"models", "storage"}
    assert (found["verdict"], found["weights"], found["best_member"]) == ("", None, "a")


# A run


@pytest.fixture(scope="module")
def delivered(place):
    """A run over the judged texts, each chunk with the id of its text, and one that repeats another's text."""
    records = [{"text": text, "metadata": {"chunk_id": f"d{at}"}} for at, text in enumerate([*TEXTS, TEXTS[0]])]
    corpus(place / "chunks", {"Docs": {"a_chunks.json": records}})
    flags = ("--config", place / "interlock.toml", "--roster", "a=1,b=3", "--sparse", "words", "--run-id", "done")
    interlock("run", place / "chunks", *flags, "--out", place / "runs", "--no-ui")
    return place / "runs" / "done"


def judge_run(place, run, *flags, check=0):
    base = ("eval", run, "--config", place / "interlock.toml", "--json", "run.json")
    return interlock(*base, *flags, env={"INTERLOCK_CACHE": str(place / "cache")}, cwd=place, check=check)


@pytest.mark.usefixtures("evaluated")
def test_a_run_is_judged_by_its_own_vectors_and_says_what_encoding_says(place, delivered):
    files = ("--queries", place / "set" / "queries.jsonl", "--qrels", place / "set" / "qrels" / "test.tsv")
    ended = judge_run(place, delivered, *files)
    assert "to encode" not in ended.stderr
    found = json.loads((place / "run.json").read_text())
    assert (found["data"], found["texts"], found["models"]["b"]["weight"]) == ("done, Docs", 41, 0.75)
    assert found["models"]["a"]["seconds"] > 0 and found["models"]["a"]["device"] == "CPU"
    ours, theirs = (
        {way["name"]: way["measures"]["RR@10"] for way in json.loads((place / name).read_text())["ways"]}
        for name in ("run.json", "eval.json")
    )
    assert ours["words"] == pytest.approx(theirs["words"], abs=0.02)
    assert ours["b"] == pytest.approx(theirs["b"], abs=0.02)


def delivered_again(place, run, *flags):
    """The vectors of the run `done`, delivered by another one."""
    given = (
        "--config",
        place / "interlock.toml",
        "--reuse",
        place / "runs" / "done",
        "--run-id",
        run,
        "--no-ui",
        *flags,
    )
    interlock("run", place / "chunks", "--out", place / "runs", *given)
    return place / "runs" / run


def test_where_two_chunks_share_an_id_the_judgements_are_said_to_be_of_points(place, delivered, tmp_path):
    for part in "ab":
        records = [{"text": TEXTS[0], "metadata": {"chunk_id": "1"}}]
        corpus(tmp_path / "in", {f"Docs/{part}": {f"{part}_chunks.json": records}})
    given = ("--config", place / "interlock.toml", "--roster", "a", "--reuse", delivered, "--run-id", "r", "--no-ui")
    interlock("run", tmp_path / "in", "--out", tmp_path, *given)
    said = " (known by the ids of its points, as 2 chunks have the chunk_id '1')"
    assert read_delivered(tmp_path / "r", None).known_by == said
    assert read_delivered(delivered, None).known_by == ""


JUDGED = ("--queries", "set/queries.jsonl", "--qrels", "set/qrels/test.tsv")
BOTH = ("--roster", "a=1,b=3", "--sparse", "words")


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("fused", (*BOTH, "--export", "parquet")),
        ("members", (*BOTH, "--export", "parquet", "--keep", "members")),
        ("alone", ("--roster", "b", "--export", "parquet", "--quantise", "int8")),
    ],
)
def test_a_run_without_arrays_is_judged_by_its_table(place, delivered, name, flags):
    found, arrays = read_delivered(delivered_again(place, name, *flags), None), delivered / "exports" / "Docs"
    assert found.texts == read_delivered(delivered, None).texts
    assert list(found.dense) == (["b"] if name == "alone" else ["a", "b"])
    for model, vectors in found.dense.items():
        np.testing.assert_allclose(vectors, np.load(arrays / f"{model}.npy"), atol=1e-6)
    for model, terms in found.sparse.items():
        with np.load(arrays / f"{model}.npz") as npz:
            assert np.array_equal(terms.indices, npz["indices"]) and np.array_equal(terms.values, npz["data"])


@pytest.mark.parametrize(
    ("name", "flags", "lacks"),
    [
        ("mean", ("--export", "parquet", "--fusion", "mean"), "vectors of a by themselves"),
        ("textless", ("--export", "npy"), "texts"),
    ],
)
def test_files_that_cannot_be_judged_are_refused_with_the_command_that_writes_them(
    place, delivered, name, flags, lacks
):
    run = delivered_again(place, name, *BOTH, *flags)
    with pytest.raises(UsageError, match=f"Docs has no {lacks}: use `interlock run .*`") as raised:
        read_delivered(run, None)
    words = shlex.split(str(raised.value).split("`")[1])
    interlock(*words[1:], "--no-ui")
    found = read_delivered(run, None)
    for model, vectors in found.dense.items():
        assert np.array_equal(vectors, np.load(delivered / "exports" / "Docs" / f"{model}.npy"))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "pass both"),
        (("--queries", "set/queries.jsonl"), "pass both"),
        ((*JUDGED, "--collection", "Other"), "has no collection 'Other': choose one of Docs"),
        ((*JUDGED, "--collection", "Dosc"), "has no collection 'Dosc' (did you mean Docs?): choose one of Docs"),
        (("--queries", "twice.tsv", "--qrels", "set/qrels/test.tsv"), "twice.tsv:2: id 'x' is that of line 1 too"),
    ],
)
def test_a_run_that_cannot_be_judged_so_ends_with_2(place, delivered, flags, said):
    (place / "twice.tsv").write_text("x\ta\nx\tb\n")
    assert said in judge_run(place, delivered, *flags, check=2).stderr


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("nowhere", "nowhere does not exist: name a directory with corpus.jsonl, queries.jsonl and qrels/test.tsv, or"),
        ("interlock.toml", "interlock.toml is not a directory: name a directory with corpus.jsonl"),
        ("chunks", "chunks has no corpus.jsonl: name a directory with corpus.jsonl"),
        ("runs", "runs is a directory of runs: name one of them"),
        ("store", "store is a store: name the run that wrote it"),
    ],
)
def test_what_is_no_judged_collection_is_told_as_what_it_is(place, delivered, data, said):
    (place / "store" / "docs").mkdir(parents=True, exist_ok=True)
    (place / "store" / "docs" / "manifest.json").touch()
    for more in ((), ("--plan",)):
        ended = interlock("eval", data, *more, cwd=place, check=2)
        assert ended.stderr.startswith(f"interlock: {said}"), ended.stderr


def test_a_run_is_judged_by_the_questions_that_a_search_takes_and_by_either_name_of_its_collection(place, delivered):
    listed = [json.loads(line) for line in (place / "set" / "queries.jsonl").read_text().splitlines()]
    (place / "q.tsv").write_text("".join(f"{each['_id']}\t{each['text']}\n" for each in listed))
    figures = []
    for queries, name in (("set/queries.jsonl", "Docs"), ("q.tsv", "docs")):
        judge_run(place, delivered, "--queries", queries, "--qrels", "set/qrels/test.tsv", "--collection", name)
        figures.append([way["measures"] for way in json.loads((place / "run.json").read_text())["ways"]])
    assert figures[0] == figures[1]
