"""Judgements and ranked lists in the files of the field: each form read alike, and a line for each that cannot be."""

import gzip
import json

import pytest

import interlock as product
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.evaluation.judgements import read_grades, read_judged, read_named, read_run
from interlock.engine.evaluation.report import measured
from tests.builders import interlock

GRADES = {"q0": {"d0": 2, "d1": 0, "d2": -1}, "q1": {"d1": 1}}
ROWS = [(query, text, grade) for query, own in GRADES.items() for text, grade in own.items()]
TREC = "".join(f"{query} 0\t{text}   {grade}\n" for query, text, grade in ROWS)
BEIR = "query-id\tcorpus-id\tscore\n" + "".join(f"{query}\t{text}\t{grade}\n" for query, text, grade in ROWS)


def collection(place, **qrels):
    (place / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": f"d{at}", "text": f"text of number {at}"}) for at in range(4)]
    (place / "corpus.jsonl").write_text("\n".join(lines))
    (place / "queries.jsonl").write_text("\n".join(json.dumps({"_id": f"q{at}", "text": "text"}) for at in range(2)))
    for name, text in qrels.items():
        (place / "qrels" / name.replace("_", ".")).write_text(text)
    return place


@pytest.mark.parametrize("name", ["test.tsv", "test.txt", "test.qrels", "robust.txt.gz"])
@pytest.mark.parametrize("text", [TREC, BEIR, BEIR.partition("\n")[2]], ids=["trec", "beir", "beir without heads"])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\n\n"])
def test_judgements_are_read_alike_in_every_form(tmp_path, name, text, ends):
    content = b"\xef\xbb\xbf" + text.replace("\n", ends).encode()
    file = tmp_path / name
    file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    found = read_grades(file, None, None)
    assert found.grades == GRADES and not found.notes


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty: put a judgement on each line"),
        ("q0 0 d0 1\nq0 0 d1\n", ":2: expected query, iteration, text and a whole grade with blanks between, got 3 "),
        (
            "q0\td0\t1\nq0 d1\t1\n",
            ":2: expected query-id, corpus-id and a whole score with tabs between, got 2 columns",
        ),
        ("q0 Q0 d0 1 0.5 tag\n", ":1: expected query-id, corpus-id * or query, iteration, text *"),
        ("q0 0 d0 1\nq0 0 d0 1\n", ":2: text 'd0' is judged twice for query 'q0'"),
        ("q0 0 d0 1\nq0 0 d1 yes\n", ":2: expected a whole number for a grade, got 'yes'"),
        ("q0 0 d0 0.5\n", ":1: expected a whole number for a grade, got '0.5'"),
        ("q0 0 d0 1\nq9 0 d0 1\n", ":2: query 'q9' is not among the queries: add it, drop the line, or pass --missing"),
        ("q0 0 d0 1\nq0 0 d9 1\n", ":2: text 'd9' is not in the corpus: add it, drop the line, or pass --missing drop"),
        ("q0 0 d0 0\n", ": no query has a text with a score above 0"),
        ("q0 0 d0 1\nq0 0 d\udcff 1\n", ":2: the line is not UTF-8"),
    ],
)
def test_judgements_that_cannot_be_used_are_told_in_a_line_with_its_number(tmp_path, content, said):
    from fnmatch import fnmatchcase

    file = tmp_path / "judged.txt"
    file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UsageError) as raised:
        read_grades(file, {"q0": "text", "q1": "text"}, {"d0", "d1"})
    assert fnmatchcase(str(raised.value), f"{file}*{said}*") and "\n" not in str(raised.value)


def test_a_packed_file_that_was_cut_is_told_with_the_line_that_it_reaches(tmp_path):
    packed = gzip.compress("".join(f"q{at} 0 d{at * 7919 % 9973} 1\n" for at in range(5000)).encode())
    (tmp_path / "cut.txt.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UsageError, match=r"cut\.txt\.gz:\d{3,4}: the gzip file is cut or damaged here: copy it again"):
        read_grades(tmp_path / "cut.txt.gz", None, None)
    (tmp_path / "not.txt.gz").write_text(TREC)
    with pytest.raises(UsageError, match=r"cannot read .*not\.txt\.gz: Not a gzipped file"):
        read_grades(tmp_path / "not.txt.gz", None, None)


def test_judgements_of_what_is_not_there_are_dropped_with_their_count_where_that_is_asked(tmp_path):
    file = tmp_path / "judged.txt"
    file.write_text(TREC + "q0 0 d8 1\nq0 0 d9 1\nq7 0 d0 1\nq1 0 d2 0\n")
    found = read_grades(file, {"q0": "a", "q1": "a"}, {"d0", "d1", "d2"}, missing="drop")
    assert found.grades == {**GRADES, "q1": {"d1": 1, "d2": 0}}
    assert [note.partition(" (")[0] for note in found.notes] == [
        "2 judgements dropped of texts that are not in the corpus",
        "1 judgement dropped of unknown queries",
    ]


def test_it_is_told_where_texts_are_known_by_other_ids_than_their_own(tmp_path):
    (tmp_path / "judged.txt").write_text("q0 0 d0 1\nq0 0 1 1\n")
    said, asked = " (known by the ids of its points)", {"q0": "a"}
    with pytest.raises(UsageError, match=r"text '1' is not in the corpus \(known by the ids of its points\): add it"):
        read_grades(tmp_path / "judged.txt", asked, {"d0"}, known_by=said)
    for how in ("drop", "count"):
        found = read_grades(tmp_path / "judged.txt", asked, {"d0"}, missing=how, known_by=said)
        assert f"texts that are not in the corpus{said}" in found.notes[0]


def test_texts_that_are_not_there_count_as_not_found_where_that_is_asked_as_trec_eval_has_it(tmp_path):
    file = tmp_path / "judged.txt"
    file.write_text("q0 0 d0 1\nq0 0 d9 1\nq7 0 d0 1\n")
    found = read_grades(file, {"q0": "a"}, {"d0"}, missing="count")
    assert found.grades == {"q0": {"d0": 1, "d9": 1}}
    assert measured([{"d0": 1.0}], [*found.grades.values()])["R@100"][0] == 0.5
    assert [note.partition(" (")[0] for note in found.notes] == [
        "1 judgement dropped of unknown queries",
        "1 judgement of texts that are not in the corpus: these are not found",
    ]


def test_a_query_that_lost_its_answers_is_no_longer_measured_and_told(tmp_path):
    (tmp_path / "judged.txt").write_text("q0 0 d0 1\nq1 0 d0 0\nq1 0 d9 1\n")
    found = read_grades(tmp_path / "judged.txt", {"q0": "a", "q1": "a"}, {"d0"}, missing="drop")
    assert set(found.grades) == {"q0"} and "1 judged query without an answer skipped" in found.notes


@pytest.mark.parametrize(
    ("qrels", "split", "measured", "notes"),
    [
        ({"test_tsv": BEIR, "dev_tsv": "q1\td0\t1"}, None, GRADES, []),
        ({"dev_tsv": BEIR}, None, GRADES, ["judged by the split dev"]),
        ({"robust04_txt": TREC}, None, GRADES, ["judged by the split robust04"]),
        ({"train_tsv": BEIR}, None, GRADES, ["judged by the split train"]),
        ({"test_tsv": "q1\td0\t1", "dev_qrels": TREC}, "dev", GRADES, ["judged by the split dev"]),
    ],
)
def test_the_split_that_is_measured_is_test_or_the_only_one_or_the_one_that_is_named(
    tmp_path, qrels, split, measured, notes
):
    found = read_judged(collection(tmp_path / "set", **qrels), split)
    assert (found.splits, found.notes) == ({"test": measured}, notes)


def test_another_split_than_test_leaves_weights_to_train(tmp_path):
    place = collection(tmp_path / "set", dev_tsv="q0\td0\t1", train_tsv="q1\td1\t1", test_tsv=BEIR)
    assert read_judged(place, "dev").splits == {"test": {"q0": {"d0": 1}}, "train": {"q1": {"d1": 1}}}
    assert read_judged(place, "train").splits == {"test": {"q1": {"d1": 1}}}


@pytest.mark.parametrize(
    ("qrels", "split", "said"),
    [
        ({}, None, "qrels has no judgements: put a test.tsv there, or name their file with --qrels"),
        ({"dev_tsv": BEIR, "train_tsv": BEIR}, None, r"several splits and none is test: .* --split \(dev, train\)"),
        ({"dev_tsv": BEIR}, "dve", r"no split 'dve' \(did you mean dev\?\): choose one with --split \(dev\)"),
        ({"test_tsv": BEIR, "test_txt": TREC}, None, r"test\.txt and test\.tsv are both of the split test"),
    ],
)
def test_splits_that_leave_it_open_which_is_measured_are_asked_about(tmp_path, qrels, split, said):
    with pytest.raises(UsageError, match=said):
        read_judged(collection(tmp_path / "set", **qrels), split)


def test_files_that_are_named_stand_in_for_those_of_the_collection(tmp_path):
    place = collection(tmp_path / "set", test_tsv="q1\td0\t1")
    (tmp_path / "topics.tsv").write_text("q0\tfirst\nq1\tsecond\n")
    (tmp_path / "judged.txt").write_text(TREC)
    found = read_judged(place, None, tmp_path / "topics.tsv", tmp_path / "judged.txt")
    assert (found.queries, found.splits) == ({"q0": "first", "q1": "second"}, {"test": GRADES})


def test_the_command_ends_with_2_for_judgements_that_cannot_be_used_and_for_flags_that_say_nothing(tmp_path):
    place = collection(tmp_path / "set", test_txt="q0 0 d0 1\nq0 0 d1\n")
    said = interlock("eval", place, "--plan", check=2, cwd=tmp_path).stderr
    assert "test.txt:2: expected query, iteration" in said and "Traceback" not in said
    said = interlock("eval", place, "--qrels", place / "qrels/test.txt", "--split", "dev", check=2, cwd=tmp_path).stderr
    assert "--split says nothing about" in said
    said = interlock("eval", "irds:beir/fiqa", "--qrels", "x", check=2, cwd=tmp_path).stderr
    assert "--qrels says nothing about irds:beir/fiqa" in said
    with pytest.raises(UsageError, match="missing: got 'keep': use error or drop"):
        product.evaluate(place, missing="keep")


# Collections of ir_datasets


@pytest.fixture
def named(tmp_path):
    """A collection that ir_datasets knows by name, of files that are here."""
    ir_datasets = pytest.importorskip("ir_datasets", reason="make install brings it")
    place = collection(tmp_path / "set", test_txt=TREC)
    (tmp_path / "docs.tsv").write_text("".join(f"d{at}\ttext of number {at}\n" for at in range(4)))
    (tmp_path / "queries.tsv").write_text("q0\ttext\nq1\ttext\n")
    files = {name: str(tmp_path / f"{name}.tsv") for name in ("docs", "queries")}
    data = ir_datasets.create_dataset(files["docs"], files["queries"], str(place / "qrels" / "test.txt"))
    ir_datasets.registry.register("interlock-tests", data)
    ir_datasets.registry.register("interlock-tests/docs", ir_datasets.create_dataset(files["docs"]))
    yield place
    ir_datasets.registry._registered.pop("interlock-tests")
    ir_datasets.registry._registered.pop("interlock-tests/docs")


def test_a_collection_of_ir_datasets_is_read_as_its_files_are(named):
    wanted, found = read_judged(named), read_named("interlock-tests")
    assert (found.texts, found.queries, found.splits) == (wanted.texts, wanted.queries, wanted.splits)


def test_a_name_that_ir_datasets_lacks_or_has_without_judgements_is_refused(named):
    with pytest.raises(UsageError, match="ir_datasets has no 'nothing': choose a name of its catalogue"):
        read_named("nothing")
    with pytest.raises(UsageError, match="interlock-tests/docs of ir_datasets has no queries"):
        read_named("interlock-tests/docs")


def test_without_ir_datasets_its_names_are_told_how_to_install_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ir_datasets", None)
    with pytest.raises(UnavailableError, match="ir_datasets is not installed: install it with pip install"):
        read_named("beir/fiqa/test")


# Ranked lists


def test_a_run_is_read_in_the_order_that_trec_eval_takes_whatever_its_ranks_say(tmp_path):
    lines = ["q Q0 a 1 0.5 t", "q Q0 c 2 0.5 t", "q Q0 b 3 0.50000000001 t", "q Q0 d 4 2 t", "p\tQ0\ta\t1\t-1e3\tt"]
    (tmp_path / "a.run.gz").write_bytes(gzip.compress("\r\n".join([*lines, "", ""]).encode()))
    found = read_run(tmp_path / "a.run.gz")
    assert {query: list(hits) for query, hits in found.items()} == {"q": ["d", "c", "b", "a"], "p": ["a"]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty: put a hit on each line"),
        ("q Q0 a 1 0.5\n", ":1: expected query, Q0, text, rank, score and tag with blanks between, got 5 columns"),
        ("q Q0 a 1 0.5 t\nq Q0 b 2 high t\n", ":2: expected a number for a score, got 'high'"),
        ("q Q0 a 1 nan t\n", ":1: expected a number for a score, got 'nan'"),
        ("q Q0 a 1 0.5 t\nq Q0 a 2 0.4 t\n", ":2: text 'a' is found twice for query 'q'"),
    ],
)
def test_a_run_that_cannot_be_used_is_told_in_a_line_with_its_number(tmp_path, content, said):
    (tmp_path / "a.run").write_text(content)
    with pytest.raises(UsageError) as raised:
        read_run(tmp_path / "a.run")
    assert said in str(raised.value)
