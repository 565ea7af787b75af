"""Two summaries side by side: where they differ is told, and nowhere else."""

import json
from copy import deepcopy

import pytest
from hypothesis import given, settings

from interlock.console.summary.document import Document, in_a_line, plain, top
from interlock.widgets.nodes import Node, differences, inside, sought
from interlock.widgets.tree import DocumentTree
from tests.summaries import a_summary, changed, documents, values


@given(values)
def test_a_document_equals_itself(value):
    assert differences(Node((), value, deepcopy(value))) == []


@given(documents, documents)
@settings(max_examples=100)
def test_two_documents_differ_exactly_where_it_is_told(one, other):
    node = Node((), one, other)
    found = differences(node)
    assert bool(found) == (json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True)) or _only_moved(
        one, other
    )
    assert len({each.steps for each in found}) == len(found)
    assert all(each.mark in "+-~" and each.mark for each in found)
    back = differences(Node((), other, one))
    assert len(back) == len(found)
    assert inside(found).get((), len(found)) == len(found) or node.mark


def _only_moved(one, other):
    """Equal as numbers (1 and 1.0, 0.0 and -0.0), or lists whose named items only stand in another order."""
    return not differences(Node((), one, other))


@given(documents, documents)
@settings(max_examples=50)
def test_the_tree_reveals_every_difference(one, other):
    node = Node((), one, other)
    tree = DocumentTree(node, "$")
    for each in differences(node):
        assert tree.unfolded(each.steps).data.mark == each.mark


def test_true_differs_from_one_and_one_equals_one_point_zero():
    assert [
        each.mark for each in differences(Node((), {"a": True, "b": 1, "c": 0}, {"a": 1, "b": 1.0, "c": False}))
    ] == [
        "~",
        "~",
    ]


def test_named_things_in_lists_are_compared_by_name():
    found = differences(Node((), a_summary(), changed()))
    assert [f"{each.mark} {each.path}" for each in found] == [
        "~ $.run_id",
        "~ $.collections[0].passes[1].batches",
        "+ $.collections[0].passes[0]",
        "- $.collections[0].mitigations[0]",
    ]
    assert in_a_line(found[1]) == "~ $.collections[0].passes[1].batches: 512 -> 511 (-0.2%)"
    assert in_a_line(found[2]).startswith("+ $.collections[0].passes[0]: {12} bge-m3")
    assert inside(found)[("collections", 0)] == 3


@pytest.mark.parametrize(
    ("one", "other", "marks"),
    [
        ([1, 2, 3], [1, 2], "-"),
        ([1], [2, 3], "~+"),
        ([{"name": "a"}, {"name": "a"}], [{"name": "a"}], "-"),
        ([{"name": "a"}, {"name": "b"}], [{"name": "b"}, {"name": "a"}], ""),
        ({"a": {"b": 1}}, {"a": [1]}, "~"),
        ({"a": {}}, {"a": None}, "~"),
        ({"a": None}, {}, "-"),
    ],
)
def test_each_item_added_removed_or_changed_has_one_sign(one, other, marks):
    assert "".join(each.mark for each in differences(Node((), one, other))) == marks


def test_five_thousand_levels_are_walked_found_and_compared():
    def deep(bottom):
        for _ in range(5000):
            bottom = [bottom]
        return bottom

    assert sum(steps is not None for steps in sought(Node((), deep("x")), "x")) == 1
    assert len(differences(Node((), deep(1), deep(2)))) == 1


def found(first: dict[str, object], second: dict[str, object]) -> list[str]:
    return [in_a_line(node) for node in differences(top(Document(first), Document(second)))]


def test_a_difference_is_told_in_units_of_people_with_its_share() -> None:
    first = {"seconds": 444.2, "devices": [{"name": "cpu", "peak_occupied_bytes": 1 << 30}]}
    second = {"seconds": 222.1, "devices": [{"name": "cpu", "peak_occupied_bytes": 3 << 29}]}
    assert found(first, second) == [
        "~ $.seconds: 7:24 -> 3:42 (-50.0%)",
        "~ $.devices[0].peak_occupied_bytes: 1.0 GiB -> 1.5 GiB (+50.0%)",
    ]


def test_what_people_read_as_the_same_is_told_exactly() -> None:
    assert found({"seconds": 65.1}, {"seconds": 65.2}) == ["~ $.seconds: 65.1 -> 65.2 (+0.2%)"]


def test_places_in_a_list_are_no_amounts() -> None:
    assert found({"model_pass": 2}, {"model_pass": 1}) == ["~ $.model_pass: 2 -> 1"]


def test_what_differs_in_any_two_runs_is_named_once_and_not_listed() -> None:
    first, second = ({"run_id": name, "started_at": name, "exit_code": name} for name in "ab")
    text = plain(Document(first), Document(second))
    assert "1 difference:" in text and '~ $.exit_code: "a" -> "b"\n' in text
    assert text.rstrip().splitlines()[-1] == "not listed, always different: run_id; started_at"
