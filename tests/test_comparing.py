"""Ranked lists in TREC's files: measured as trec_eval does, compared in pairs, written by an evaluation."""

import json
from collections import Counter
from dataclasses import replace

import msgspec
import numpy as np
import pytest

import interlock as product
from interlock.engine.errors import UsageError
from interlock.engine.evaluation.comparing import compare_files, compared, hardest, judged_apart
from interlock.engine.evaluation.judgements import Judged, read_run
from interlock.engine.evaluation.judging import Judge
from interlock.engine.evaluation.report import measured, measures_of
from interlock.engine.evaluation.ways import Reranking, Rescored, each_once
from interlock.engine.flows import Listener
from interlock.engine.flows.evaluate import EvaluationRequest, evaluate
from interlock.engine.search.hits import trec_lines
from interlock.engine.settings import load
from interlock.engine.vectors.fusion import Fusion
from tests.builders import interlock, sentences
from tests.test_eval import material as material
from tests.test_eval import place as place
from tests.test_eval import ranked, run

pytrec_eval = pytest.importorskip("pytrec_eval", reason="make install brings ir-measures")
THEIRS = {
    "nDCG@10": "ndcg_cut_10",
    "nDCG": "ndcg",
    "P@5": "P_5",
    "R@100": "recall_100",
    "AP": "map",
    "AP@10": "map_cut_10",
    "RR": "recip_rank",
}


def generated(seed):
    """Runs with equal scores, scores that differ beyond float32, negative ones and ids that are no ASCII, and one query
    without any; grades from -2 to 4."""
    generator = np.random.default_rng(seed)
    ids = [f"{'dDé'[at % 3]}{at}" for at in range(60)]
    scores = [*generator.normal(0, 2, 12), *(1 + generator.random(6) * 1e-9), 0.0, -0.0, 1e-40]
    runs, grades = {}, {}
    for query in (f"q{at}" for at in range(8)):
        some = generator.choice(ids, generator.integers(1, 50), replace=False).tolist()
        runs[query] = dict(zip(some, generator.choice(scores, len(some)).tolist(), strict=True))
        judged = generator.choice(ids, 20, replace=False).tolist()
        grades[query] = dict(zip(judged, generator.integers(-2, 5, 20).tolist(), strict=True))
    del runs["q7"]
    return runs, grades


@pytest.mark.parametrize("seed", range(60))
def test_every_measure_of_a_run_is_that_of_trec_eval_for_each_query(tmp_path, seed):
    runs, grades = generated(seed)
    lines = [
        f"{query} Q0 {id} {place} {score!r} x\n"
        for query, hits in runs.items()
        for place, (id, score) in enumerate(hits.items())
    ]
    (tmp_path / "a.run").write_text("".join(lines))
    theirs = pytrec_eval.RelevanceEvaluator(grades, {*THEIRS.values()})
    wanted, lists = theirs.evaluate(runs), read_run(tmp_path / "a.run")
    names = measures_of([*THEIRS, "Judged@10", "RR@10", "P(rel=2)@5"], None)
    found = measured([lists.get(query, {}) for query in grades], list(grades.values()), names, None)
    for at, query in enumerate(grades):
        for ours, their in THEIRS.items():
            assert found[ours][at] == pytest.approx(wanted.get(query, {}).get(their, 0.0), abs=1e-5), (query, ours)
        hits, own = list(lists.get(query, {})), grades[query]
        assert found["Judged@10"][at] == pytest.approx(np.mean([id in own for id in hits[:10]] or [0]))
        first = next((rank for rank, id in enumerate(hits[:10], 1) if own.get(id, 0) > 0), None)
        assert found["RR@10"][at] == pytest.approx(1 / first if first else 0)
        assert found["P(rel=2)@5"][at] == pytest.approx(sum(own.get(id, 0) >= 2 for id in hits[:5]) / 5)


@pytest.mark.parametrize("seed", range(20))
def test_a_run_is_written_so_that_trec_eval_takes_it_in_its_order(tmp_path, seed):
    runs, _ = generated(seed)
    hits = dict(sorted(runs["q0"].items(), key=lambda hit: -hit[1]))
    (tmp_path / "a.run").write_text("".join(trec_lines("q0", hits, "t")))
    assert list(read_run(tmp_path / "a.run")["q0"]) == list(hits)
    gains = {id: place % 5 for place, id in enumerate(hits)}
    given = pytrec_eval.parse_run((tmp_path / "a.run").open())
    theirs = pytrec_eval.RelevanceEvaluator({"q0": gains}, {"map", "ndcg"}).evaluate(given)["q0"]
    found = measured([hits], [gains], ("AP", "nDCG"), None)
    assert (found["AP"][0], found["nDCG"][0]) == pytest.approx((theirs["map"], theirs["ndcg"]), abs=1e-6)


@pytest.mark.parametrize(
    "name", ["P", "P@0", "ndcg@10", "nDCG@x", "nDCG(dcg='exp-log2')@10", "ERR@20", "", "R@5;1", "P@1.5", "R@101"]
)
def test_a_measure_that_is_unknown_or_of_longer_lists_is_refused(name):
    with pytest.raises(UsageError, match="--measures: "):
        measures_of(["nDCG@10", name], 100)


def test_measures_may_have_the_names_of_trec_eval():
    names = ["map", "ndcg_cut_10", "P_5", "recall.1000", "recip_rank", "ndcg", "P@5"]
    assert measures_of(names, None) == ("AP", "nDCG@10", "P@5", "R@1000", "RR", "nDCG")
    for name in ("recall_1000", "P_x", "map_", "recall", "recip_rank_10"):
        with pytest.raises(UsageError, match="--measures: "):
            measures_of([name], 100)


def test_measures_may_have_the_names_of_others_and_come_once():
    assert measures_of(["MAP", "AP", "MRR@10", "Recall@1000"], None) == ("AP", "RR@10", "R@1000")


# In pairs


def two(seed=1, queries=40):
    generator = np.random.default_rng(seed)
    grades = {f"q{at}": {f"d{at}": 1, "x": 0} for at in range(queries)}
    runs = {"a": {}, "b": {}}
    for at, query in enumerate(grades):
        for name, most in (("a", 9), ("b", 4)):
            others = [f"e{other}" for other in range(generator.integers(0, most))]
            runs[name][query] = ranked(*others, f"d{at}")
    return runs, grades


def test_runs_are_compared_by_the_t_test_of_their_queries_with_wins_ties_and_losses():
    from scipy import stats  # not for all who collect this

    runs, grades = two()
    found = compared(runs, grades, ("nDCG@10", "RR"), {"q0": "first"}, ["told"])
    assert [(each.measure, each.run, each.against) for each in found.differences] == [
        ("nDCG@10", "b", "a"),
        ("RR", "b", "a"),
    ]
    for each in found.differences:
        one, other = (np.array(own.values[each.measure]) for own in found.runs)
        bounds = stats.ttest_rel(other, one).confidence_interval(0.95)
        assert (each.difference.low, each.difference.high) == pytest.approx((bounds.low, bounds.high), abs=1e-5)
        assert each.difference.significant
        counts = [int((np.sign(other - one) == sign).sum()) for sign in (1, 0, -1)]
        assert [each.wins, each.ties, each.losses] == counts and min(counts) > 0
    apart = [abs(each.values["a"] - each.values["b"]) for each in found.apart]
    assert len(apart) == 10 and apart == sorted(apart, reverse=True)
    assert found.notes[-1] == "told" and "40 judged queries tell a difference" in found.notes[0]
    apart = np.subtract(*(own.values["nDCG@10"] for own in found.runs)).std(ddof=1)
    assert "from chance 8 times in 10 beside 1 other, where its" in found.notes[0]
    assert f"standard deviation over them is {apart:.3f}".replace("0.", ".") in found.notes[0]


def test_a_measure_that_looks_further_than_some_lists_go_is_told_of():
    grades = {f"q{at}": {"d3": 1} for at in range(20)}
    long = {query: ranked("d0", "d1", "d2", "d3") for query in grades}
    runs = {"long": long, "short": {query: dict([*hits.items()][:2]) for query, hits in long.items()}}

    def told(names, *measures):
        notes = compared({name: runs[name] for name in names}, grades, measures, {}, []).notes
        return [note for note in notes if "end after" in note]

    (note,) = told(runs, "AP", "R@3", "P@2", "RR@1")
    assert note == "the lists of short end after 2 hits, those of long after 4: AP, R@3 find nothing beyond"
    assert told(runs, "P@2", "RR@1") == told(["long"], "AP", "R@4") == []
    assert told(["short"], "AP", "R@100") == ["the lists of short end after 2 hits: R@100 find nothing beyond"]


def test_a_score_is_a_number_as_c_reads_it(tmp_path):
    (tmp_path / "a.run").write_text("q1 Q0 d1 1 1_0 x\n")
    with pytest.raises(UsageError, match="expected a number for a score, got '1_0': fix it"):
        read_run(tmp_path / "a.run")


def test_of_lists_of_ten_hits_no_measure_looks_deeper_unless_it_is_asked_for(tmp_path):
    for name in ("other", "default"):
        (tmp_path / f"{name}.run").write_text("q1 Q0 d1 1 0.5 x\n")
    (qrels := tmp_path / "qrels.txt").write_text("q1 0 d1 2\n")
    runs = [tmp_path / "other.run", tmp_path / "default.run"]
    found = compare_files(runs, qrels, None, (), baseline="default")
    assert [run.name for run in found.runs] == ["default", "other"]
    assert [*found.runs[0].measures] == ["nDCG@10", "RR@10"]
    assert [*compare_files(runs, qrels, None, ["R@100"]).runs[0].measures] == ["R@100"]


def test_few_queries_have_no_star_and_a_query_that_is_not_answered_counts_nothing():
    runs, grades = two(queries=19)
    del runs["b"]["q3"]
    runs["a"]["q99"] = ranked("d0")
    found = compared(runs, grades, ("RR",), {}, [])
    assert not found.differences[0].difference.significant
    a, b = found.runs
    assert (a.unanswered, a.unjudged, b.unanswered, b.unjudged, b.values["RR"][3]) == (0, 1, 1, 0, 0.0)
    with pytest.raises(UsageError, match="c answers no judged query"):
        compared({**runs, "c": {"other": ranked("d0")}}, grades, ("RR",), {}, [])


def test_a_way_whose_hits_nobody_judged_is_told_of_where_wrong_hits_were_judged_too():
    grades = [{"a": 1, "b": 0, "c": 0}] * 3
    found = {"one": [ranked("a", "b", "c")] * 3, "other": [ranked("a", "x", "y")] * 3}
    (note,) = judged_apart(found, [("one", "other")], grades)
    assert note.startswith("of the first 10 hits 33% are judged of other, 100% of one")
    assert judged_apart(found, [("one", "other")], [{"a": 1, "b": 1, "c": 1}] * 3) == []
    assert judged_apart({**found, "other": found["one"]}, [("one", "other")], grades) == []
    assert judged_apart(found, [], grades) == []


def test_the_worst_queries_come_with_their_first_wrong_hits():
    lists = [ranked("a"), ranked("w", "x", "y", "z", "a"), ranked("x", "a")]
    grades = [{"a": 1}, {"a": 1, "x": 0}, {"a": 1}]
    texts = dict.fromkeys("awxyz", "word " * 100)
    worst, second, best = hardest(lists, ["q0", "q1", "q2"], grades, dict.fromkeys(("q0", "q1", "q2"), "why"), texts)
    assert (worst.query, second.query, best.query, best.wrong) == ("q1", "q2", "q0", [])
    assert [(hit.id, hit.rank, hit.grade) for hit in worst.wrong] == [("w", 1, None), ("x", 2, 0), ("y", 3, None)]


# The texts that are queries themselves


def test_a_query_that_is_a_text_is_known_by_id_and_words_and_by_no_judgement_that_it_answers_itself():
    texts = {"1": "Tea is good.  It wakes you", "2": "quite another text", "3": "the same", "4": "the same text"}
    queries = {"1": "tea is good. it wakes", "2": "which tea", "3": "the same", "4": "text"}
    grades = {"1": {"2": 1}, "2": {"1": 1}, "3": {"3": 1}}
    assert Judged(texts, queries, {"test": grades}).themselves == ["1"]
    assert Judged(texts, queries, {"test": {"1": {"2": 1}}, "train": {"4": {"1": 1}}}).themselves == ["1", "4"]


def test_a_text_that_is_the_query_itself_is_no_hit_of_it_in_any_way(material):
    own = {at: f"d{at}" for at in range(0, 40, 2)}
    grades = [{f"d{(at + 1) % 60}": 1} if at in own else each for at, each in enumerate(material.grades)]
    changed = replace(material, themselves=own, grades=grades, queries=[f"q{at}" for at in range(40)])
    before, judge = Judge(material, Fusion.CONCAT, 0), Judge(changed, Fusion.CONCAT, 0)
    knower = Reranking("r", lambda first: Rescored([dict.fromkeys(hits, 0.0) for hits in first], 0.0), 0.5, 10)
    for way, plain in zip(
        [*judge.ways(), *judge.reranked(knower)], [*before.ways(), *before.reranked(knower)], strict=True
    ):
        for at, (hits, whole) in enumerate(zip(way.found, plain.found, strict=True)):
            assert own.get(at) not in hits
            if way.group == "models":
                assert list(hits) == [id for id in whole if id != own.get(at)]


def test_a_list_without_the_query_itself_is_as_long_as_any(material, monkeypatch):
    monkeypatch.setattr("interlock.engine.evaluation.weighing.DEEPEST", 10)
    judge = Judge(replace(material, themselves={at: f"d{at}" for at in range(0, 40, 2)}), Fusion.CONCAT, 0)
    assert {len(hits) for way in judge.models() for hits in way.found} == {10}


# Reranking


def test_a_pair_is_scored_once_whatever_ways_found_it():
    asked = []

    def rescore(first):
        asked.append(first)
        return Rescored([{id: float(len(id)) for id in hits} for hits in first], 6.0, 10.0)

    score = each_once(rescore)
    one, other = [ranked("a", "bb"), ranked("c")], [ranked("bb", "ddd"), ranked("c")]
    assert score(one).scores == [{"a": 1.0, "bb": 2.0}, {"c": 1.0}]
    again = score(other)
    assert again.scores == [{"bb": 2.0, "ddd": 3.0}, {"c": 1.0}] and again.bytes == 10
    assert [[list(hits) for hits in each] for each in asked] == [[["a", "bb"], ["c"]], [["ddd"], []]]
    assert score(one).ms == pytest.approx(score(other).ms) and len(asked) == 2
    assert score(one).ms == pytest.approx(24 / 4 * 3 / 2)


# The commands


@pytest.fixture(scope="module")
def written(place):
    """What an evaluation printed, of which `m.json` and the runs in `lists` are left."""
    flags = ("--measures", "nDCG@10 P@5 AP Judged@10", "--worst", "--run-out", "lists", "--json", "m.json")
    return run(place, *flags, "--rerank", "b").stdout


def test_a_plan_writes_nothing(place):
    assert "40 " in run(place, "--plan", "--run-out", "planned").stdout
    assert not (place / "planned").exists()


def test_trec_eval_measures_the_runs_that_are_written_as_the_evaluation_does(place, written):
    found = json.loads((place / "m.json").read_text())
    grades = pytrec_eval.parse_qrel([f"q{at} 0 d{at} 1" for at in range(40)])
    names = dict(zip(found["ways"][0]["measures"], ("ndcg_cut_10", "P_5", "map"), strict=False))
    files = {file.stem: file for file in (place / "lists").iterdir()}
    assert len(files) == len(found["ways"]) and set(found["query_ids"]) == set(grades)
    for way in found["ways"]:
        tag = next(name for name in files if name.replace("-", "") == f"{way['group']}{way['name']}".translate(DROPPED))
        theirs = pytrec_eval.RelevanceEvaluator(grades, {*names.values()}).evaluate(
            pytrec_eval.parse_run(files[tag].open())
        )
        for ours, their in names.items():
            wanted = [theirs[query][their] if query in theirs else 0.0 for query in found["query_ids"]]
            assert way["values"][ours] == pytest.approx(wanted, abs=1e-5), (way["name"], ours)
            assert way["measures"][ours] == pytest.approx(np.mean(wanted), abs=1e-5)


DROPPED = str.maketrans("", "", " ,+-")


def test_the_worst_queries_are_printed_and_kept_with_their_texts(place, written):
    found = json.loads((place / "m.json").read_text())
    usual = next(way for way in found["ways"] if way["name"] == found["worst_of"] == "bm25 + words, 0.25")
    values = dict(zip(found["query_ids"], usual["values"]["nDCG@10"], strict=True))
    assert [each["query"] for each in found["worst"]] == sorted(values, key=values.get)[:10]
    queries = {one["_id"]: one["text"] for one in map(json.loads, (place / "set/queries.jsonl").open())}
    assert "Answered worst by bm25 + words, 0.25 (nDCG@10)" in written and "P@5" in written
    for each in found["worst"]:
        assert each["text"] == queries[each["query"]] and f"  {each['query']}  {each['text'][:40]}" in written
        assert all(hit["id"] != each["query"].replace("q", "d") for hit in each["wrong"])


@pytest.mark.usefixtures("written")
def test_written_runs_are_compared_as_the_evaluation_compares_ways(place):
    found = json.loads((place / "m.json").read_text())
    way = next(each for each in found["ways"] if each["name"] == "bm25 + words, 0.2")
    runs = ("lists/fusions-concat.run", f"lists/{'hybrid-bm25-words-0.2'}.run")
    files = ("--qrels", "set/qrels/test.tsv", "--queries", "set/queries.jsonl", "--json", "c.json", "--tsv", "c.tsv")
    said = interlock("compare", *runs, *files, cwd=place).stdout
    told = json.loads((place / "c.json").read_text())
    (first, *_) = told["differences"]
    beside = {name: first["difference"][name] for name in ("significant", "adjusted_p")}  # other comparisons than there
    assert first["difference"] == pytest.approx({**way["difference"], **beside})
    heads, *rows = (place / "c.tsv").read_text().splitlines()
    values = {(run["name"], measure): each for run in told["runs"] for measure, each in run["values"].items()}
    of = {key: dict(zip(told["query_ids"], each, strict=True)) for key, each in values.items()}
    assert heads.split("\t") == ["run", "measure", "query", "value"] and len(rows) == 2 * 3 * 40
    assert all(float(value) == of[name, measure][query] for name, measure, query, value in map(str.split, rows))
    mean, (low, high) = (told["runs"][0][what]["nDCG@10"] for what in ("measures", "intervals"))
    assert f" {mean:.3f} ±{max(mean - low, high - mean):.3f}".replace("0.", ".") in said
    assert "hybrid-bm25-words-0.2" in said and "wins" in said and told["query_ids"] == found["query_ids"]
    if told["apart"]:
        assert told["apart"][0]["text"][:40] in said
    paths, more = [place / each for each in runs], {"queries": place / "set/queries.jsonl"}
    in_python = product.compare(paths, place / "set/qrels/test.tsv", **more)
    assert json.loads(msgspec.json.encode(in_python)) == told
    says = interlock("compare", *runs, *files[:2], "--baseline", "hybrid-bm25-words-0.2", cwd=place).stdout
    assert "differences from hybrid-bm25-words-0.2 query by query" in " ".join(says.split())
    named = product.compare(dict(zip("ab", paths, strict=True)), place / "set/qrels/test.tsv", measures="P@5 AP")
    assert [run.name for run in named.runs] == ["a", "b"] and [*named.runs[0].measures] == ["P@5", "AP"]
    for wrong, why in {paths[0]: "give a list", (): "no run is named"}.items():
        with pytest.raises(UsageError, match=why):
            product.compare(wrong, place / "set/qrels/test.tsv")


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("compare", "nowhere.run", "--qrels", "set/qrels/test.tsv"), "cannot read nowhere.run"),
        (("compare", "set/corpus.jsonl", "--qrels", "set/qrels/test.tsv"), "corpus.jsonl:1: expected query, Q0, text"),
        (("compare", "m.run", "m.run", "--qrels", "set/qrels/test.tsv"), "m.run is named twice"),
        (("compare", "m.run", "--qrels", "m.run"), "m.run:1: expected query-id, corpus-id"),
        (("compare", "m.run", "--qrels", "set/qrels/test.tsv", "--measures", "nDCG"), "m answers no judged query"),
        (("compare", "m.run", "--qrels", "set/qrels/test.tsv", "--measures", "F@5"), "--measures: 'F@5'"),
        (
            ("compare", "m.run", "--qrels", "set/qrels/test.tsv", "--baseline", "n"),
            "--baseline: no run is named n: name",
        ),
        (("eval", "set", "set", "--plan", "--run-out", "lists"), "--run-out is of one collection"),
        (("eval", "set", "--run-out", "set"), "beside .run files: name another"),
        (("eval", "set", "--run-out", "no/lists"), "--run-out: no does not exist"),
        (("eval", "set", "--measures", "R@1000"), "--measures: 'R@1000' is of longer lists"),
        (("eval", "set", "--plan", "--rerank", "maxsim,b"), "--rerank: maxsim compares token vectors"),
        (("eval", "set", "--rerank", "b,scorer"), "--rerank: b compares token vectors"),
        (("eval", "set", "--rerank", "words"), "words"),
    ],
)
def test_what_cannot_be_compared_or_judged_ends_with_2_before_anything_is_encoded(place, words, said):
    (place / "m.run").write_text("other Q0 d1 1 0.5 x\n")
    more = ("--config", "interlock.toml", "--roster", "a,b") if words[0] == "eval" else ()
    ended = interlock(*words, *more, cwd=place, check=2, env={"INTERLOCK_CACHE": str(place / "fresh")})
    assert said in ended.stderr and "Traceback" not in ended.stderr
    assert "to encode" not in ended.stderr and not (place / "fresh" / "judged").exists()


def test_runs_of_which_no_text_is_judged_are_refused(place):
    query = (place / "set/qrels/test.tsv").read_text().splitlines()[1].split()[0]
    (place / "n.run").write_text(f"{query} Q0 of-another-set 1 0.5 x\n")
    with pytest.raises(UsageError, match="no run has a text that"):
        product.compare([place / "n.run"], place / "set/qrels/test.tsv")


def test_what_reranks_and_cannot_be_had_ends_with_5_before_anything_is_encoded(place):
    (place / "gone.toml").write_text(
        (place / "interlock.toml").read_text() + '\n[models.gone]\nsource = "no/such"\nkind = "scores"\n'
    )
    base = ("eval", place / "set", "--config", "gone.toml", "--roster", "a,b", "--offline", "--rerank", "gone")
    ended = interlock(*base, cwd=place, check=5, env={"INTERLOCK_CACHE": str(place / "fresh")})
    assert "gone" in ended.stderr and "to encode" not in ended.stderr and not (place / "fresh" / "judged").exists()


def many(place, count=120):
    """A judged collection of more texts than the candidates of one query."""
    files = {
        "corpus.jsonl": [
            json.dumps({"_id": f"d{at}", "text": text}) for at, text in enumerate(sentences(count, words=8))
        ],
        "queries.jsonl": [json.dumps({"_id": f"q{at}", "text": text}) for at, text in enumerate(sentences(3, words=8))],
        "qrels/test.tsv": [f"q{at}\td{at}\t1" for at in range(3)],
    }
    (place / "qrels").mkdir(parents=True)
    for name, lines in files.items():
        (place / name).write_text("\n".join(lines) + "\n")
    return place


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("reranker", ["b", "scorer"])
def test_texts_are_encoded_and_pairs_scored_once_for_all_that_reranks(place, tmp_path, monkeypatch, reranker, queries):
    monkeypatch.setenv("INTERLOCK_CACHE", str(tmp_path / "cache"))
    settings = load({"roster": "a,b", "devices": "cpu"}, {}, place / "interlock.toml")
    done = Counter()

    def told(model, count, total):
        done[model] = done[model] + (count - (last.get(model, 0) if count > last.get(model, 0) else 0))
        last[model] = 0 if count == total else count

    last = {}
    data, out = many(tmp_path / "many"), tmp_path / "lists"
    evaluate(settings, EvaluationRequest(data, [reranker], queries, run_out=out), Listener(progress=told))
    firsts = [read_run(out / name) for name in ("fusions-concat.run", "hybrid-bm25-0.2.run")]
    assert {len(hits) for run in firsts for hits in run.values()} == {100}  # what is measured, and no more
    pairs = {(query, id) for run in firsts for query, hits in run.items() for id in list(hits)[:50]}
    assert done["a"] == 120 + queries  # texts and queries
    if reranker == "scorer":
        assert (done["b"], done["scorer"]) == (120 + queries, len(pairs))
    elif queries == 3:  # three times fifty candidates are more than there are texts: all have their tokens at once
        assert done["b"] == 120 + queries
    else:
        assert done["b"] == 120 + queries + len(pairs)
