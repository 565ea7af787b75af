"""A file of pairs to be scored is read line by line, and a bad line is refused with its number."""

import pytest

from interlock.engine.errors import UsageError
from interlock.engine.search.questions import PairLine, read_pairs


def read(tmp_path, *lines):
    file = tmp_path / "pairs.jsonl"
    file.write_bytes(b"\n".join(lines) + b"\n")
    return list(read_pairs(file))


def test_a_line_has_one_text_or_several_or_none(tmp_path):
    lines = [
        b'{"query": "a", "text": "b", "id": 7}',
        b'{"query": "a", "texts": ["b", ""]}',
        b'{"query": "a", "texts": []}',
    ]
    assert read(tmp_path, *lines) == [
        PairLine("a", ("b",), True),
        PairLine("a", ("b", ""), False),
        PairLine("a", (), False),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "the line is empty: remove it"),
        (b'{"query": "a", "text": "b"', "truncated"),
        (b'{"query": 1, "text": "b"}', "Expected `str`, got `int`"),
        (b'{"text": "b"}', "missing required field `query`"),
        (b'{"query": "a"}', 'expected one of "text" and "texts"'),
        (b'{"query": "a", "text": "b", "texts": ["c"]}', 'expected one of "text" and "texts"'),
        (b'{"query": " ", "text": "b"}', "the query is empty"),
        (b'{"query": "\xff", "text": "b"}', "pairs.jsonl:2"),
        (b'{"query": "\\ud800", "text": "b"}', "pairs.jsonl:2"),
    ],
)
def test_a_bad_line_is_refused_with_its_number(tmp_path, line, why):
    with pytest.raises(UsageError, match=r"pairs\.jsonl:2: ") as refused:
        read(tmp_path, b'{"query": "a", "text": "b"}', line)
    assert why in str(refused.value)


def test_a_file_without_a_pair_is_refused(tmp_path):
    (tmp_path / "pairs.jsonl").touch()
    with pytest.raises(UsageError, match=r"pairs\.jsonl is empty: put a pair on each line"):
        list(read_pairs(tmp_path / "pairs.jsonl"))


def test_a_file_that_is_not_there_or_is_none_is_refused(tmp_path):
    for place in (tmp_path / "absent", tmp_path):
        with pytest.raises(UsageError, match=f"cannot read {place}"):
            list(read_pairs(place))
