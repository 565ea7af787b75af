"""One summary as an outline: its places, what is opened, found and said of them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.console.summary.document import meaning
from interlock.widgets.nodes import Node, human, sought, walk
from interlock.widgets.tree import DocumentTree
from tests.summaries import GIB, objects, values


@given(values)
def test_every_value_of_any_json_has_one_place_with_its_own_path(value):
    nodes = list(walk(Node((), value)))
    paths = [node.path for node in nodes]
    assert len(set(paths)) == len(paths)
    assert all(node.mark == "" for node in nodes)
    for node in nodes:
        found = value
        for step in node.steps:
            found = found[step]
        assert found is node.value


@pytest.mark.parametrize(
    ("steps", "path"),
    [
        ((), "$"),
        (("passes", 1, "peak"), "$.passes[1].peak"),
        (("versions", "sentence-transformers"), '$.versions["sentence-transformers"]'),
        (("a b", 'x"y', "\x1b", "é"), '$["a b"]["x\\"y"]["\\u001b"]["\\u00e9"]'),
        (("passes", ~2), "$.passes[2]"),
    ],
)
def test_a_place_is_written_as_a_json_path_in_ascii(steps, path):
    assert Node(steps, None).path == path


@given(values)
def test_a_revealed_place_is_chosen_and_nothing_else_is_opened(value):
    *_, last = walk(Node((), value))
    tree = DocumentTree(Node((), value), "$")
    assert tree.unfolded(last.steps).data.steps == last.steps
    opened = {each.data.steps for each in tree._tree_nodes.values() if each.is_expanded}
    assert opened <= {last.steps[:depth] for depth in range(len(last.steps))} | {()}
    assert tree.unfolded((*last.steps, "no such place")) is None


@given(objects, st.text(min_size=1, max_size=3))
def test_a_search_finds_exactly_the_keys_and_values_that_hold_the_text(value, text):
    wanted = text.casefold()

    def holds(node):
        key = node.steps[-1] if node.steps and isinstance(node.steps[-1], str) else ""
        value = node.value
        shown = value if isinstance(value, str) else "" if isinstance(value, dict | list) else json.dumps(value)
        return wanted in key.casefold() or wanted in shown.casefold()

    found = [steps for steps in sought(Node((), value), text) if steps is not None]
    assert found == [node.steps for node in walk(Node((), value)) if holds(node)]


@pytest.mark.parametrize(
    ("steps", "value", "said"),
    [
        (("budget_bytes",), 12 * GIB, "12.0 GiB"),
        (("peak", "occupied"), 3 * GIB, "3.0 GiB"),
        (("budgets", "cuda:0"), GIB, "1.0 GiB"),
        (("bytes",), 12, ""),
        (("seconds",), 702.1, "11:42"),
        (("held_seconds",), 59, ""),
        (("seconds",), None, ""),
        (("rows",), 10**9, ""),
        (("bytes",), True, ""),
    ],
)
def test_bytes_and_seconds_are_shown_by_the_name_of_their_field(steps, value, said):
    assert human(steps, value) == said


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (("seconds",), "sum over all sessions; null if the device is simulated"),
        (("collections", 0, "passes", 2, "rows"), "distinct texts encoded in this run"),
        (("collections", 0, "leases", 1, "receipts", 0, "lost"), "the device was lost"),
        (("configuration", "roster", "origin"), "default, file, environment, flag, Python"),
        (("run_id",), ""),
        (("no", "such", 3, "field"), ""),
        ((), ""),
    ],
)
def test_the_schema_says_what_a_place_means(steps, said):
    assert meaning(steps).startswith(said) and bool(meaning(steps)) == bool(said)
