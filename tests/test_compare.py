"""Differences in words: each place once, by its path, and nothing where nothing differs."""

import pytest

from interlock.engine.record.words import differences, few


@pytest.mark.parametrize(
    ("stored", "wanted", "told"),
    [
        ({"a": 1, "b": [1, {"c": None}]}, {"b": [1, {"c": None}], "a": 1}, []),
        (
            {"dim": 8, "name": "é"},
            {"dim": 9, "name": "e"},
            ["dim was 8, is now 9", 'name was "é", is now "e"'],
        ),
        ({"models": [{"f": 1}, {"f": 2}]}, {"models": [{"f": 1}, {"f": 3}]}, ["models[1].f was 2, is now 3"]),
        ({"old": 1}, {"new": None}, ["new is new", "old is missing"]),
        ({"in": {"old": 1}}, {"in": {}}, ["in.old is missing"]),
        ({"files": ["a"]}, {"files": ["a", "b"]}, ['files was ["a"], is now ["a", "b"]']),
        ({"a": {"b": 1}}, {"a": None}, ['a was {"b": 1}, is now null']),
        ([1, 2], [1, 3], ["[1] was 2, is now 3"]),
        ({"sha": "ab" * 32}, {"sha": "cd" * 32}, ["sha was abababababab…, is now cdcdcdcdcdcd…"]),
        (1, 2, ["the value was 1, is now 2"]),
    ],
)
def test_every_difference_is_told_with_its_path(stored, wanted, told):
    assert list(differences(stored, wanted)) == told


def test_every_path_begins_with_the_given_place():
    assert list(differences({"a": 1}, {"a": 2}, "inputs")) == ["inputs.a was 1, is now 2"]


@pytest.mark.parametrize(("count", "told"), [(0, ""), (2, "0; 1"), (3, "0; 1; 2"), (5, "0; 1; 2 and 2 more")])
def test_differences_beyond_the_first_few_are_counted(count, told):
    assert few([str(item) for item in range(count)], most=3) == told
