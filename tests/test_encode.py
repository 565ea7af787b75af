"""Texts are encoded as the points of a collection are: questions as a search has them, documents as the run did."""

import io
import json
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import qdrant_edge as edge
from sentence_transformers import SentenceTransformer

import interlock
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.texts import GpuJobs
from interlock.engine.errors import ExitCode, UnavailableError, UsageError
from interlock.engine.flows.run import Run
from interlock.engine.record import atomic
from interlock.engine.settings import load
from interlock.engine.targets import shard
from interlock.engine.targets.files.exported import ExportedRun
from tests.builders import command as processes
from tests.builders import corpus, environment, sentences, tiny_model, toml

TEXTS = sentences(40)
QUESTIONS = ["which of the able words", "a mention of ing and ness", TEXTS[7]]
FORMS = {
    "concat": {"keep": "both"},
    "lean": {},
    "named": {"fusion": "named"},
    "mean": {"fusion": "mean"},
    "projected": {"project": "12", "keep": "fused"},
    "rounded": {"quantise": "int8"},
    "files": {"quantise": "int8", "project": "16"},
    "computed-in-int8": {"precision": "int8", "keep": "both"},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_b) -> Path:
    """A run of two models in each form, with a store but for one, and a file of settings; `a` has prompts."""
    place = tmp_path_factory.mktemp("encode")
    asks = tiny_model(place / "a", seed=3, prompts={"query": "ask: ", "document": "tell: "})
    corpus(place / "chunks", {"Docs": {"a.jsonl": TEXTS}})
    file = toml(place / "interlock.toml", {"a": {"source": str(asks)}, "b": {"source": str(tiny_b)}})
    for name, form in FORMS.items():
        given = {"roster": "a=0.7,b=0.3", "out": str(place / "runs"), "run_id": name, "export": "npy,parquet", **form}
        given |= {} if name == "files" else {"qdrant": str(place / name)}
        assert Run(place / "chunks", load(given, {}, file), Controls()).go() == ExitCode.COMPLETED
    return place


@pytest.fixture
def settings(place):
    return interlock.Settings(config=place / "interlock.toml", offline=True)


def points_in(path: Path) -> dict[str, dict]:
    """All vectors of a store by the text of their points, as the engine itself gives them."""
    engine = edge.EdgeShard.load(str(path), None)
    try:
        records, _ = engine.scroll(edge.ScrollRequest(limit=1000, with_payload=True, with_vector=True))
        return {each.payload["text"]: each.vector for each in records}
    finally:
        engine.close()


def row_of(rows, at):
    return dict(
        zip(*(each[slice(*rows.starts[at : at + 2])].tolist() for each in (rows.indices, rows.values)), strict=True)
    )


@pytest.mark.parametrize("form", ["concat", "named", "mean", "projected", "rounded"])
def test_a_document_has_the_vectors_of_its_point(place, settings, form):
    texts = TEXTS[3:30:4]
    found = interlock.encode(place / form, texts, "document", settings=settings)
    points = points_in(place / form / "docs")
    assert {*found.dense, *found.sparse} == points[texts[0]].keys()
    for row, text in enumerate(texts):
        for name, vectors in found.dense.items():
            assert vectors.dtype == np.float32
            least = 0.999 if form == "rounded" else 1 - 1e-6
            assert np.dot(vectors[row], points[text][name]) > least
        words = points[text]["bm25"]
        assert row_of(found.sparse["bm25"], row) == pytest.approx(dict(zip(words.indices, words.values, strict=True)))


@pytest.mark.parametrize("form", FORMS)
def test_a_documents_vectors_are_those_that_the_run_exported(place, settings, form):
    run = interlock.open_run(place / "runs" / form)
    found = interlock.encode(run, TEXTS, "document", settings=settings)
    for name, vectors in found.dense.items():
        if name == "fused" and form in ("files", "rounded"):
            exported = run.vectors("Docs", name).array
            assert ((vectors * exported).sum(axis=1) / np.linalg.norm(exported, axis=1)).min() > 0.999
        else:
            np.testing.assert_allclose(vectors, run.vectors("Docs", name).array, atol=2e-6)


def test_terms_tokens_and_words_of_a_document_are_those_of_its_point(exported, tmp_path):
    run = exported / "runs" / "one"
    table = pq.read_table(run / "exports" / "Docs" / "points.parquet").slice(0, 12).to_pydict()
    there = points_in(run.parents[1] / "stores" / run.name / "docs")
    settings = interlock.Settings(config=run.parents[1] / "interlock.toml", offline=True)
    found = interlock.encode(run, table["text"], "document", settings=settings)
    assert {*found.dense, *found.sparse, *found.tokens} == {"fused", "m", "a", "m-sparse", "bm25", "m-tokens"}
    for row, text in enumerate(table["text"]):
        for name in found.dense:
            np.testing.assert_allclose(found.dense[name][row], table[name][row], atol=2e-6)
        terms = table["m-sparse"][row]
        assert row_of(found.sparse["m-sparse"], row) == pytest.approx(dict(zip(*terms.values(), strict=True)), rel=1e-5)
        words = there[text]["bm25"]
        assert row_of(found.sparse["bm25"], row) == pytest.approx(dict(zip(words.indices, words.values, strict=True)))
        np.testing.assert_allclose(found.tokens["m-tokens"][row], there[text]["m-tokens"], atol=2e-2)


def test_a_question_is_what_sentence_transformers_makes_of_it_with_the_models_prompt(place, settings):
    oracle = SentenceTransformer(str(place / "a"), device="cpu")
    found = interlock.encode(place / "concat", QUESTIONS, settings=settings)
    np.testing.assert_allclose(
        found.dense["a"], oracle.encode(QUESTIONS, prompt_name="query", normalize_embeddings=True), atol=2e-6
    )
    told = interlock.encode(place / "concat", QUESTIONS, "document", only="a", settings=settings)
    np.testing.assert_allclose(
        told.dense["a"], oracle.encode(QUESTIONS, prompt_name="document", normalize_embeddings=True), atol=2e-6
    )
    assert {*told.dense} == {"a"} and not told.sparse


@pytest.mark.parametrize("form", ["concat", "mean", "projected"])
def test_a_questions_dot_products_with_the_exported_vectors_are_what_a_search_finds(place, settings, form):
    asked = interlock.encode(place / form, QUESTIONS, settings=settings)
    scores = (
        asked.dense["fused"].astype(np.float64) @ np.load(place / "runs" / form / "exports" / "Docs" / "fused.npy").T
    )
    with interlock.Searcher(place / form, hybrid="off", settings=settings) as searcher:
        answers = list(searcher.answers(QUESTIONS, limit=10))
        again = searcher.encode(QUESTIONS)
    np.testing.assert_array_equal(again.dense["fused"], asked.dense["fused"])
    for row, answer in enumerate(answers):
        best = np.argsort(-scores[row])[:10]
        assert [hit.payload["text"] for hit in answer.hits] == [TEXTS[at] for at in best]
        scale = answer.hits[0].score / scores[row, best[0]]  # of what a projection left of the question
        np.testing.assert_allclose([hit.score for hit in answer.hits], scale * scores[row, best], atol=2e-5)
        assert form == "projected" or scale == pytest.approx(1, abs=1e-5)


def test_a_models_own_vectors_are_there_for_who_asks_though_the_points_have_the_fused_ones_alone(place, settings):
    assert {*interlock.encode(place / "lean", ["a"], settings=settings).dense} == {"fused"}
    own = interlock.encode(place / "lean", QUESTIONS, only="b", settings=settings).dense["b"]
    np.testing.assert_array_equal(own, interlock.encode(place / "concat", QUESTIONS, settings=settings).dense["b"])


def test_a_run_without_a_store_has_words_too(place, settings):
    words = interlock.encode(place / "runs" / "files", TEXTS[:3], "document", only="bm25", settings=settings)
    stored = interlock.encode(place / "concat", TEXTS[:3], "document", only="bm25", settings=settings)
    np.testing.assert_array_equal(words.sparse["bm25"].indices, stored.sparse["bm25"].indices)
    np.testing.assert_allclose(words.sparse["bm25"].values, stored.sparse["bm25"].values)


def test_a_store_that_is_being_searched_or_written_is_read_all_the_same(place, settings):
    with shard.holding(place / "concat" / "docs", 2):  # as a delivery holds it
        found = interlock.encode(place / "concat", ["a"], settings=settings)
    assert repr(found) == "<1 encoded as query of docs: a [1, 32], b [1, 48], fused [1, 80], bm25 terms>"


class Column:
    """Texts as a column of a table has them: no sequence, as its numbers may be any."""

    def __iter__(self):
        return iter(QUESTIONS)


GIVEN = {
    "tuple": lambda: tuple(QUESTIONS),
    "array": lambda: np.array(QUESTIONS),
    "array of objects": lambda: np.array(QUESTIONS, object),
    "generator": lambda: (each for each in QUESTIONS),
    "column": Column,
    "column of Arrow": lambda: pa.array(QUESTIONS),
    "values": dict(enumerate(QUESTIONS)).values,
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_texts_come_in_whatever_has_an_order(place, settings, given):
    wanted = interlock.encode(place / "concat", QUESTIONS, settings=settings)
    found = interlock.encode(place / "concat", given(), settings=settings)
    np.testing.assert_array_equal(found.dense["fused"], wanted.dense["fused"])
    assert found.texts == QUESTIONS and {type(each) for each in found.texts} == {str}
    with interlock.Searcher(place / "concat", settings=settings) as searcher:
        answers = searcher.answers(given())
        assert [each.text for each in answers] == QUESTIONS
        np.testing.assert_array_equal(searcher.encode(given()).dense["fused"], wanted.dense["fused"])


@pytest.mark.parametrize(
    ("texts", "more", "told"),
    [
        ([], {}, "texts: got none: pass one or more"),
        ("a", {}, r"expected a list of texts, got 'a': pass \[text\]"),
        ({"a"}, {}, "expected a list of texts"),
        (["a", 3], {}, "text 1 is none: expected UTF-8, got 3"),
        (["\ud800"], {}, "text 0 is none"),
        (["a", " \n"], {}, "text 1 is empty"),
        (b"a", {}, "expected a list of texts, got b'a': pass a list"),
        (None, {}, "expected a list of texts, got None"),
        (np.array("a"), {}, r"expected a list of texts, got array\('a'"),
        (np.array([["a", "b"]]), {}, "text 0 is none: expected UTF-8, got array"),
        (pa.table({"text": ["a"]}), {}, "expected a list of texts, got pyarrow.Table"),
        (pa.array(["a", None]), {}, "text 1 is none: expected UTF-8, got None"),
        (["a"], {"side": "both"}, "side: expected 'query' or 'document', got 'both'"),
        (["a"], {"only": "c"}, "only c: no such vectors: name one of a, b, fused, bm25"),
        (["a"], {"collection": "other"}, "no collection 'other'"),
    ],
)
def test_what_cannot_be_encoded_is_refused(place, settings, texts, more, told):
    with pytest.raises(UsageError, match=told):
        interlock.encode(place / "concat", texts, settings=settings, **more)


def test_a_text_beyond_the_limit_is_cut_as_the_runs_are_and_told(place, settings):
    long = " ".join(["able"] * 300)
    with pytest.warns(RuntimeWarning, match="the text is longer than its models read: a leaves out .* tokens"):
        found = interlock.encode(place / "concat", [long], "document", only="a", settings=settings)
    oracle = SentenceTransformer(str(place / "a"), device="cpu").encode(
        [long], prompt_name="document", normalize_embeddings=True
    )
    np.testing.assert_allclose(found.dense["a"], oracle, atol=2e-6)
    assert found.cut[0].keys() == {"a"}


def test_many_texts_are_computed_on_gpus_as_a_run_computes_them(place, settings, monkeypatch):
    seen, compute = [], GpuJobs.compute
    monkeypatch.setattr(
        GpuJobs, "compute", lambda self, jobs, *more: seen.append(len(jobs)) or compute(self, jobs, *more)
    )
    on_cpu = interlock.encode(place / "concat", TEXTS * 2, "document", settings=settings)
    gpus = interlock.Settings(config=place / "interlock.toml", offline=True, devices="sim:2xT4")
    on_gpus = interlock.encode(place / "concat", TEXTS * 2, "document", settings=gpus)
    assert seen == [2]
    for name, vectors in on_cpu.dense.items():
        np.testing.assert_allclose(on_gpus.dense[name], vectors, atol=2e-6)


def test_a_text_with_nul_is_one_like_any_other(place, settings):
    found = interlock.encode(place / "concat", ["able\0word"], settings=settings)
    assert np.isfinite(found.dense["fused"]).all()


@pytest.mark.parametrize(
    ("spoil", "error", "told"),
    [
        ("nothing", UsageError, "no store at"),
        ("empty", UsageError, "has no collection"),
        ("undelivered", UsageError, r"has delivered nothing of Docs .* finish it with resume"),
        ("unprojected", UsageError, "has lost its projection.npy"),
        ("journal", UsageError, "is not a run"),
        ("other", UsageError, "was written with another a .*install that one, or deliver again"),
        ("gone", UnavailableError, "model a"),
    ],
)
def test_a_place_or_a_model_that_is_not_as_it_was_is_told(place, settings, tmp_path, tiny_a, spoil, error, told):
    run = tmp_path / "runs" / "projected"
    if spoil in ("undelivered", "unprojected", "journal"):
        shutil.copytree(place / "runs" / "files", run)
    if spoil == "undelivered":
        lines = (run / "journal.jsonl").read_text().partition('"event":"artefact_written"')[0].splitlines(keepends=True)
        (run / "journal.jsonl").write_text("".join(lines[:-1]))
    if spoil == "unprojected":
        (run / "exports" / "Docs" / "projection.npy").unlink()
    if spoil == "journal":
        (run / "journal.jsonl").unlink()
    if spoil == "empty":
        run.mkdir(parents=True)
    rows = {"other": {"a": {"source": str(tiny_a)}}, "gone": {"a": {"source": str(tmp_path / "gone")}}}.get(spoil, {})
    at = place / "concat" if rows else run
    with pytest.raises(error, match=told):
        interlock.encode(
            at, ["a"], settings=interlock.Settings(config=place / "interlock.toml", offline=True, models=rows)
        )


def test_of_a_run_at_work_every_door_says_who_has_it_and_how_to_wait(place, settings, tmp_path):
    run = tmp_path / "files"
    shutil.copytree(place / "runs" / "files", run)
    lines = (run / "journal.jsonl").read_text().partition('"event":"artefact_written"')[0].splitlines(keepends=True)
    (run / "journal.jsonl").write_text("".join(lines[:-1]))
    doors = (
        lambda: interlock.encode(run, ["a"], settings=settings),
        lambda: interlock.search(run, "a", settings=settings),
        ExportedRun.open(run).collections,
    )
    with (run / "journal.jsonl").open("rb") as journal:
        assert atomic.lock(journal)
        atomic.enter(run)
        for door in doors:
            with pytest.raises(
                UsageError, match=r"yet: .*files is in use by .*pid \d+.*: wait for its end, or follow it "
            ):
                door()


def test_a_run_that_has_a_store_is_searched_as_its_store_is(place, settings):
    wanted = interlock.search(place / "concat", QUESTIONS[0], settings=settings)
    assert interlock.search(place / "runs" / "concat", QUESTIONS[0], settings=settings) == wanted


def command(call, place, *words, monkeypatch=None, stdin=None):
    if stdin is not None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    return call("encode", *words, "--config", place / "interlock.toml", "--offline")


@pytest.mark.parametrize("way", ["arguments", "stdin", "-", "file", "behind options"])
def test_texts_come_as_arguments_by_a_pipe_or_of_a_file_and_leave_as_lines(
    place, settings, call, monkeypatch, tmp_path, way
):
    stdin = "".join(f"{each}\n" for each in QUESTIONS).encode() if way in ("stdin", "-") else None
    (tmp_path / "q.jsonl").write_text(
        "".join(json.dumps({"id": at, "text": each}) + "\n" for at, each in enumerate(QUESTIONS, 1))
    )
    words = {
        "stdin": [],
        "-": ["-"],
        "file": ["--file", tmp_path / "q.jsonl"],
        "behind options": ["--side", "query", *QUESTIONS],
    }
    code, out, said = command(
        call, place, place / "concat", *words.get(way, QUESTIONS), monkeypatch=monkeypatch, stdin=stdin
    )
    assert (code, said) == (ExitCode.COMPLETED, "")
    wanted = interlock.encode(place / "concat", QUESTIONS, settings=settings)
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["id"], line["text"]) for line in lines] == [(str(at), each) for at, each in enumerate(QUESTIONS, 1)]
    for row, line in enumerate(lines):
        assert line["vectors"] == {name: vectors[row].tolist() for name, vectors in wanted.dense.items()}
        assert dict(zip(*line["sparse"]["bm25"].values(), strict=True)) == row_of(wanted.sparse["bm25"], row)


def test_files_of_vectors_are_what_numpy_and_arrow_read(place, settings, call, tmp_path):
    wanted = interlock.encode(place / "concat", QUESTIONS, settings=settings)
    for name in ("v.npy", "v.parquet", "v.jsonl"):
        assert command(call, place, place / "concat", *QUESTIONS, "--out", tmp_path / name)[:2] == (0, "")
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), wanted.dense["fused"])
    table = pq.read_table(tmp_path / "v.parquet").to_pydict()
    assert table["text"] == QUESTIONS and [*table] == ["id", "text", "a", "b", "fused", "bm25"]
    np.testing.assert_array_equal(np.array(table["b"], np.float32), wanted.dense["b"])
    assert dict(zip(*table["bm25"][2].values(), strict=True)) == row_of(wanted.sparse["bm25"], 2)
    assert len((tmp_path / "v.jsonl").read_text().splitlines()) == 3


@pytest.mark.nightly
def test_a_reader_that_leaves_is_no_failure(place):
    words = ["encode", place / "concat", *TEXTS, "--config", place / "interlock.toml"]
    line = " ".join(map(shlex.quote, processes(*words)))
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{line} | head -c 9"], capture_output=True, env=environment(), cwd=place
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b'{"id":"1"', b"")


@pytest.mark.parametrize(
    ("words", "stdin", "told"),
    [
        (["concat"], b"", "stdin is empty: put a question on each line"),
        (["concat"], b"a\n\nb\n", "stdin:2: the question is empty: remove the line"),
        (["concat", "-"], b"\xff\n", "stdin:1: the line is not UTF-8"),
        (["concat", "a", "--file", "q.txt"], None, "pass texts, or a file of them with --file"),
        (["concat", "a", "--out", "v.csv"], None, "v.csv: name it .jsonl, .npy, .parquet, which says what it is to be"),
        (["named", "a", "--out", "v.npy"], None, "v.npy holds one a text: use .jsonl, or --only (a, b)"),
        (["concat", "a", "--only", "bm25", "--out", "v.npy"], None, "a text: use .jsonl, or --only (a model)"),
        (["concat", "a", "--out", "no/v.npy"], None, "no does not exist: create it"),
        (["concat", " "], None, "text 0 is empty"),
        (["concat", "a", "--sid", "x"], None, "--sid"),
    ],
)
def test_what_a_command_cannot_encode_is_refused_and_nothing_is_written(
    place, call, monkeypatch, tmp_path, words, stdin, told
):
    code, out, said = command(call, place, place / words[0], *words[1:], monkeypatch=monkeypatch, stdin=stdin)
    assert (code, out) == (ExitCode.USAGE, "") and told in said
    assert not list(tmp_path.glob("v.*"))


def test_lines_for_programs_are_utf8_in_any_locale(place, tmp_path):
    (tmp_path / "texts.tsv").write_text("日\tcat\né\t中\n", encoding="utf-8")
    words = ("encode", place / "lean", "--config", place / "interlock.toml", "--file", tmp_path / "texts.tsv")
    env = environment({"PYTHONIOENCODING": "latin-1"})
    out = subprocess.run(processes(*words), env=env, check=True, capture_output=True).stdout
    found = [json.loads(line) for line in out.decode().splitlines()]
    assert [(each["id"], each["text"]) for each in found] == [("日", "cat"), ("é", "中")]
