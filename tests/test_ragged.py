"""Rows of any length in one array, against what lists say of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from interlock.engine.corpus.places import owners_of, places_of, starts_of


@given(st.lists(st.integers(0, 5), max_size=8))
def test_where_rows_begin_and_which_row_a_place_belongs_to(counts):
    for given_as in (counts, np.array(counts, np.int64)):
        assert starts_of(given_as).tolist() == [sum(counts[:row]) for row in range(len(counts) + 1)]
        assert owners_of(given_as).tolist() == [row for row, count in enumerate(counts) for _ in range(count)]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=8))
def test_the_places_of_some_rows_one_after_the_other(rows):
    firsts, lengths = (np.array([each[part] for each in rows], np.int64) for part in (0, 1))
    assert places_of(firsts, lengths).tolist() == [first + step for first, length in rows for step in range(length)]
