"""Numbers of any size in payloads: files and store have the same, and a filter finds what the store shows."""

import json
import operator

import numpy as np
import pyarrow.parquet as pq
import pytest

from interlock.engine.errors import UsageError
from interlock.engine.search.conditions import conditions_in, filter_of, read_condition, why_none
from interlock.engine.targets.embedded import Store
from tests.builders import corpus, interlock

SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
NUMBERS = [
    *(0, 1, -1, 2**53 - 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1, -(2**63), -(2**63) + 1),
    *(0.1, -0.0, 5e-324, 1.7976931348623157e308, 1e5, 1.5, 9007199254740993.0, 1e19),
]
LARGE = [2**64, 10**24 + 1, -(2**63) - 1]
"""The store keeps these as their decimals."""


@pytest.fixture(scope="module")
def store(tmp_path_factory, tiny_a):
    place = tmp_path_factory.mktemp("numbers")
    values = [*NUMBERS, *LARGE]
    records = [{"text": f"text {n}", "metadata": {"v": v, "w": [n, None][n % 2]}} for n, v in enumerate(values)]
    inner = {"t": True, "n": 2**60, "s": "x"}
    for record, within in zip(records, (inner, [inner], [{}, inner]), strict=False):
        record["metadata"]["in"] = within
    records[0]["metadata"] |= {"source": "own.md", "long": 94.95886283158103}
    leaves = ["x", True, 2**60]
    for record, deep in zip(records, ([leaves], [[leaves]]), strict=False):
        record["metadata"]["deep"] = deep
    corpus(place / "in", {"Docs": {"a.jsonl": records}})
    words = ("--roster", tiny_a, "--devices", "cpu", "--qdrant", place / "store", "--export", "parquet", "--quiet")
    interlock("run", place / "in", *words, "--out", place / "runs", "--run-id", "r", cwd=place)
    return place / "store"


def asked(store, *conditions):
    """The numbers of the points for which the conditions hold, as the store shows them, by text."""
    with Store.open_for_read(store, None) as opened:
        read = [read_condition(each) for each in conditions]
        where = filter_of(read, opened)
        (name,) = opened.dims
        found = opened.query(name, np.ones(opened.dims[name], np.float32), 99, where)
        assert bool(found) != bool(why_none(opened, read)) or not conditions
        return {each["text"]: each["metadata"]["v"] for each in opened.payloads([*found]).values()}


def test_the_store_and_the_files_have_the_same_numbers(store):
    shown = asked(store)
    assert [shown[f"text {n}"] for n in range(len(NUMBERS))] == NUMBERS
    assert [shown[f"text {n + len(NUMBERS)}"] for n in range(len(LARGE))] == [str(each) for each in LARGE]
    table = pq.read_table(store.parent / "runs" / "r" / "exports" / "Docs" / "points.parquet").to_pydict()
    payloads = dict(zip(table["text"], table["payload"], strict=True))
    for n, value in enumerate([*NUMBERS, *LARGE]):
        kept = json.loads(payloads[f"text {n}"])["v"]
        assert (kept, str(kept)) == (value, str(value))


def test_a_number_that_the_engine_reads_a_last_place_off_is_found_by_what_the_record_has(store):
    assert asked(store, "metadata.long=94.95886283158103") == {"text 0": 0}
    assert asked(store, "metadata.long=94.958862831") == {}


@pytest.mark.parametrize("bound", [*NUMBERS, *LARGE])
def test_what_the_store_shows_is_found_by_it(store, bound):
    shown = asked(store)
    for written in {json.dumps(bound), f"{bound}"}:
        numbers = {each for each, value in shown.items() if value == bound}
        same = numbers | {each for each, value in shown.items() if value == written}
        assert set(asked(store, f"metadata.v={written}")) == same
        for sign, compare in SIGNS.items():
            wanted = {each for each, value in shown.items() if not isinstance(value, str) and compare(value, bound)}
            assert set(asked(store, f"metadata.v{sign}{written}")) == wanted


@pytest.mark.parametrize("bound", ["1e320", "-1e320", "9" * 5000, f"{10**320}", "-" + "9" * 400])
def test_a_number_beyond_every_float_lies_beyond_every_number(store, bound):
    numbers = {f"text {n}" for n in range(len(NUMBERS))}
    above, below = (set(asked(store, f"metadata.v{sign}{bound}")) for sign in "><")
    assert (above, below) == ((numbers, set()) if bound[0] == "-" else (set(), numbers))
    assert not asked(store, f"metadata.v={bound}") and numbers < set(asked(store, f"metadata.v!={bound}"))


def test_a_number_that_python_cannot_write_is_refused_in_one_line():
    with pytest.raises(UsageError, match="no payload has a number of thousands of digits: give a shorter one"):
        conditions_in({"metadata.v": 10**5000})


@pytest.mark.parametrize("value", ["s=x", "t=true", f"n={2**60}", f"n>={2**60}"])
def test_a_list_is_entered_by_its_brackets_alone_whatever_is_asked(store, value):
    found = {path: [*asked(store, f"metadata.{path}.{value}")] for path in ("in", "in[]", "in[0]", "in[1]")}
    assert {path: sorted(each) for path, each in found.items()} == {
        "in": ["text 0"], "in[]": ["text 1", "text 2"], "in[0]": ["text 1"], "in[1]": ["text 2"],
    }  # fmt: skip


@pytest.mark.parametrize("value", ["=x", "=true", f"={2**60}", f">={2**60}"])
def test_a_list_within_a_list_is_looked_into_no_deeper_whatever_is_asked(store, value):
    found = {path: [*asked(store, f"metadata.deep{path}{value}")] for path in ("", "[]", "[][]", "[0]", "[0][]")}
    assert {path: sorted(each) for path, each in found.items()} == {
        "": [], "[]": ["text 0"], "[0]": ["text 0"], "[][]": ["text 0", "text 1"], "[0][]": ["text 0", "text 1"],
    }  # fmt: skip


def test_chunks_without_a_value_are_found_by_null_and_by_none(store):
    odd = {f"text {n}" for n in range(1, len(NUMBERS) + len(LARGE), 2)}
    with Store.open_for_read(store, None) as opened:
        for given, wanted in (("metadata.w=null", True), ({"metadata.w": None}, True), ("metadata.w!=null", False)):
            where = filter_of(conditions_in(given), opened)
            found = opened.query("fused", np.ones(opened.dims["fused"], np.float32), 99, where)
            texts = {each["text"] for each in opened.payloads([*found]).values()}
            assert texts and (texts == odd) is wanted and bool(texts & odd) is wanted


def test_the_text_null_is_a_value_and_is_asked_for_in_quotes(tmp_path, tiny_a):
    values = ["null", None, "other"]
    corpus(tmp_path / "in", {"Docs": {"a.jsonl": [{"text": f"{v}", "metadata": {"v": v}} for v in values]}})
    words = ("--roster", tiny_a, "--devices", "cpu", "--qdrant", tmp_path / "store", "--export", "parquet", "--quiet")
    interlock("run", tmp_path / "in", *words, "--out", tmp_path / "runs", cwd=tmp_path)
    assert asked(tmp_path / "store", "metadata.v=null") == {"None": None}
    assert asked(tmp_path / "store", 'metadata.v="null"') == {"null": "null"}
    assert set(asked(tmp_path / "store", "metadata.v!=null")) == {"null", "other"}


def test_a_value_that_is_not_there_is_never_listed_as_there(store):
    with Store.open_for_read(store, None) as opened:
        for value in (2**64 - 3, 2**63 + 2, 7, 1e18, 2.5, 2**70):
            said = why_none(opened, [read_condition(f"metadata.v={value}")])
            assert said.startswith(f"no chunk has metadata.v={value}: values there are ")
            assert f" {value}," not in said.partition("values there are")[2]


def test_a_value_that_is_in_the_metadata_alone_is_told_to_be_there(store):
    with Store.open_for_read(store, None) as opened:
        said = why_none(opened, [read_condition("source=own.md")])
        assert said == "no chunk has source=own.md: use metadata.source=own.md, which some have"
        assert why_none(opened, [read_condition("source=no.md")]).endswith('values there are "a.jsonl"')
