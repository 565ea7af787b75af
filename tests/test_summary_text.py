"""What is drawn of a summary: rows of a width, tables, a heading, and all of it as plain text."""

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from interlock.console.summary import detail, tables
from interlock.console.summary.document import Document, header, plain, top
from interlock.widgets import tree
from interlock.widgets.nodes import No, Node, children, differences, inside, walk
from interlock.widgets.text import plain as texts
from interlock.widgets.text import table_rows
from tests.summaries import HOSTILE, a_summary, documents, harmless


@given(documents, st.one_of(st.none(), documents), st.integers(0, 130))
@settings(max_examples=40)
def test_drawn_rows_are_exact_and_hold_no_control_character(one, other, width):
    node = Node((), one, No.OTHER if other is None else other)
    found = [] if other is None else differences(node)
    counts = None if other is None else inside(found)
    nodes = list(islice(walk(node), 30))
    drawn = [tree.line(each, width, differing=counts, chosen=each is node) for each in nodes]
    for each in nodes[:8]:
        siblings = list(children(node))[:2]
        drawn += detail.rows(Document(one), each, siblings, found, width)
    for line in texts(drawn):
        assert cell_len(line) == width
        assert harmless(line)


@given(
    st.lists(st.tuples(st.sampled_from(HOSTILE), st.sampled_from(["1", "2,048", "-", "3.0 GiB"]), st.text())),
    st.integers(0, 90),
)
def test_a_table_of_any_cells_fits(cells, width):
    drawn = table_rows(["texts", "numbers", "anything"], cells, width, of=len(cells) + 5)
    assert all(cell_len(line) == width for line in texts(drawn))


def test_texts_give_way_before_numbers_at_80_columns_and_gaps_are_named():
    found = tables.table_of(("collections", 0, "passes"), a_summary()["collections"][0]["passes"])
    assert texts(table_rows(found.heads, found.rows, 78)) == [
        f"{line:<78}"
        for line in [
            "pass  model       status     batches   rows  reused  tokens  seconds  rows/s",
            "   1  bge-small   completed      512  4,096       0  90,000     2:11    31.1",
            "   2  minilm-l6   completed      512  4,096       0  90,000     2:11    31.1",
            "   3  mpnet-base  completed      512  4,096       0  90,000     2:11    31.1",
            "no room for: truncated, device",
        ]
    ]


def test_an_empty_list_says_that_it_holds_nothing():
    data = a_summary() | {"controls": []}
    node = next(each for each in walk(top(Document(data))) if each.steps == ("controls",))
    drawn = texts(detail.rows(Document(data), node, [], [], 60))
    assert any("list of 0" in line for line in drawn)


def test_the_same_field_of_each_item_is_shown_beside_the_chosen_one():
    node = top(Document(a_summary()))
    steps = ("collections", 0, "leases", 1, "budget_bytes")
    siblings = [each for each in walk(node) if len(each.steps) == 4 and each.steps[:3] == steps[:3]]
    chosen = next(each for each in walk(node) if each.steps == steps)
    drawn = [line.rstrip() for line in texts(detail.rows(Document(a_summary()), chosen, siblings, [], 60))]
    assert drawn[0] == "12884901888  (12.0 GiB)"
    assert drawn[-2] == "1 minilm-l6               12884901888  (12.0 GiB)"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("exports/a.npy", "exports/a.npy"),
        ("two words", "two words"),
        ("rm -rf /\n", '"rm -rf /\\n"'),
        ("\x1b[2J", '"\\u001b[2J"'),
        (None, "null"),
        ({"a": [1]}, '{\n  "a": [\n    1\n  ]\n}'),
    ],
)
def test_a_copied_value_cannot_act_in_a_terminal(value, text):
    assert detail.copied(value) == text


def test_the_heading_says_how_the_run_ended_and_what_was_done():
    said = [fact.text for fact in header(Document(a_summary()))]
    assert said == [
        "SUMMARY", "20261121-120431", "completed", "exit 0", "11:42", "3 passes", "1,536 batches", "1 mitigation",
        "2026-11-21 12:04:31",
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "word"), [("sim", "SIMULATED"), ("scripted", "SCRIPTED")])
def test_the_heading_says_when_devices_are_simulated(kind, word):
    data = a_summary(device_kind=kind, seconds=None)
    assert word in [fact.text for fact in header(Document(data))]
    assert word in plain(Document(data)).splitlines()[0]


@given(documents, st.one_of(st.none(), documents))
@settings(max_examples=50)
def test_a_summary_as_text_holds_no_control_character(one, other):
    said = plain(Document(one, "a"), None if other is None else Document(other, "b"))
    assert all(harmless(line) for line in said.split("\n"))


def test_the_lists_of_a_summary_are_tables_as_text():
    said = plain(Document(a_summary()))
    assert [line for line in said.splitlines() if line in tables.OVERVIEW] == [
        "collections", "passes", "leases", "mitigations", "devices", "exports",
    ]  # fmt: skip
    assert "   2    119  split  cuda:0  out of memory  halved    32     1.5" in said
    assert "L001   " in said and "13.0 GiB" in said


def test_rows_of_two_collections_say_whose_and_a_shared_lease_stands_once():
    data = a_summary()
    data["collections"].append(data["collections"][0] | {"name": "More"})
    found = {each.title: each for each in tables.overview(data)}
    assert [row[0] for row in found["passes"].rows] == ["Docs"] * 3 + ["More"] * 3
    assert found["leases"].count == 3


@pytest.mark.parametrize("split", [0, 9])
def test_what_earlier_versions_did_alone_has_columns_in_their_runs_alone(split):
    passes = [each | {"split_rows": split, "spans": 3 * split} for each in a_summary()["collections"][0]["passes"]]
    found = tables.table_of(("collections", 0, "passes"), passes)
    assert ({"split", "spans"} <= {*found.heads}) == bool(split)
