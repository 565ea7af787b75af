"""Batches: every row once, the budget kept, the longest first, and the same however the rows came."""

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.engine.compute.job import plan
from interlock.engine.corpus import places

lengths_and_budget = st.tuples(st.lists(st.integers(1, 600), max_size=80), st.integers(1, 2000))


def planned(lengths, budget, rows=None):
    rows = np.arange(len(lengths), dtype=np.int64) if rows is None else np.asarray(rows, np.int64)
    return plan(rows, np.asarray(lengths, np.int64), budget)


@given(lengths_and_budget)
def test_every_row_is_in_exactly_one_batch(case):
    lengths, budget = case
    rows = [row for batch in planned(lengths, budget).batches for row in batch.rows.tolist()]
    assert sorted(rows) == list(range(len(lengths)))


@given(lengths_and_budget)
def test_a_batch_keeps_the_token_budget_with_padding_unless_it_is_one_row(case):
    lengths, budget = case
    for batch in planned(lengths, budget).batches:
        assert len(batch.rows) >= 1
        assert batch.longest * len(batch.rows) <= budget or len(batch.rows) == 1


@given(lengths_and_budget)
def test_batches_go_from_the_longest_row_to_the_shortest(case):
    lengths, budget = case
    order = [lengths[row] for batch in planned(lengths, budget).batches for row in batch.rows.tolist()]
    assert order == sorted(lengths, reverse=True)


@given(lengths_and_budget)
def test_tokens_and_padding_are_counted_exactly(case):
    lengths, budget = case
    made = planned(lengths, budget)
    for batch in made.batches:
        own = [lengths[row] for row in batch.rows.tolist()]
        assert (batch.longest, batch.tokens, batch.padding) == (max(own), sum(own), max(own) * len(own) - sum(own))
    assert made.tokens == sum(lengths)
    assert made.padding == sum(batch.padding for batch in made.batches)


@given(lengths_and_budget, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_change_the_batches(case, random):
    lengths, budget = case
    order = list(range(len(lengths)))
    random.shuffle(order)
    mixed = planned([lengths[row] for row in order], budget, order)
    assert mixed.digest() == planned(lengths, budget).digest()


@given(lengths_and_budget)
def test_a_batch_takes_the_next_row_whenever_it_fits(case):
    lengths, budget = case
    for batch in planned(lengths, budget).batches[:-1]:
        assert batch.longest * (len(batch.rows) + 1) > budget


def test_the_same_rows_in_other_batches_have_another_digest():
    whole, split = planned([5, 5, 5, 5], 20), planned([5, 5, 5, 5], 10)
    assert whole.digest() != split.digest()
    assert planned([5, 5, 5, 5], 20).digest() == whole.digest()


def test_a_digest_is_the_hash_of_every_batch_with_its_rows():
    spelled_out = struct.pack("<QqQqq", 1, 1, 2, 2, 0)  # one row: 1; two rows: 2 and 0
    assert planned([3, 9, 4], 9).digest() == hashlib.sha256(spelled_out).hexdigest()


def test_no_rows_make_no_batch():
    made = planned([], 100)
    assert (list(made.batches), made.tokens, made.padding) == ([], 0, 0)


def test_more_rows_than_are_looked_at_together_make_the_same_batches(monkeypatch):
    lengths = np.random.default_rng(1).integers(0, 12, 5000)
    whole = planned(lengths, 40)
    monkeypatch.setattr(places, "STEP", 7)
    monkeypatch.setattr(places, "HELD", 1)  # in a file too
    parted = planned(lengths, 40)
    assert parted.digest() == whole.digest()
    assert [(each.longest, each.tokens) for each in parted.batches] == [
        (each.longest, each.tokens) for each in whole.batches
    ]


def test_what_is_spooled_is_read_back_in_order(monkeypatch):
    parts = [np.arange(start, start + 5, dtype=np.int32) for start in range(0, 50, 5)]
    monkeypatch.setattr(places, "HELD", 64)
    found = places.spooled(np.int32, parts)
    assert found.tolist() == list(range(50))
    places.release(found[3:])  # of a view too, and what is given back is read again
    assert found.tolist() == list(range(50))


@pytest.mark.parametrize("view", [lambda one: one, lambda one: one[3:][:9], lambda one: one["b"][5:]])
def test_a_view_of_a_view_of_a_mapped_array_gives_its_pages_back(view):
    def resident() -> int:
        told = Path("/proc/self/status").read_text()
        return int(told.split("RssFile:")[1].split()[0]) >> 10

    record = np.dtype([("a", "V8"), ("b", "V8")])
    found = places.spooled(record, [np.zeros(1 << 21, record)])
    found.tobytes()
    before = resident()
    places.release(view(found))
    assert before - resident() >= 30  # MiB of its 32
