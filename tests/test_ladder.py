"""The ladder: which rung comes next for a piece that failed, and that every climb ends."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.engine.compute.ladder import MOVES, Cause, Effort, Evidence, Means, Rung, halves, next_step, slices

ALL = Means(streams=True, others=True, float32=True, cpu=True)
NONE = Means(streams=False, others=False, float32=False, cpu=False)

any_means = st.one_of(st.just(ALL), st.builds(Means, *[st.booleans()] * 4))
any_cause = st.sampled_from([Cause.MEMORY, Cause.MEMORY, Cause.MEMORY, Cause.NOT_FINITE, Cause.LOST])
lengths_of_rows = st.lists(st.integers(1, 600), min_size=1, max_size=60).map(lambda rows: sorted(rows, reverse=True))


def short(rows=8, longest=100, tokens=800, allowed=0):
    return Evidence(Cause.MEMORY, rows, longest, tokens, predicted=3 << 29, room=1 << 30, allowed_tokens=allowed)


def seen(cause, lengths, padded, allowed=0):
    """Evidence of a failed forward of these rows."""
    tokens = lengths[0] * len(lengths) if padded else sum(lengths)
    return Evidence(cause, len(lengths), lengths[0], tokens, predicted=0, room=0, allowed_tokens=allowed)


def climb(evidence, means, effort=None):
    """The rungs of a piece that keeps failing in the same way, to the end."""
    effort, rungs = effort or Effort(), []
    while Rung.PARK not in rungs:
        step = next_step(effort, evidence, means)
        rungs.append(step.rung)
        effort = step.effort
    return rungs


@st.composite
def lineages(draw):
    """A piece that fails again and again, each time for any cause and with any means: (means, evidence, step) each.

    Of the pieces that a step makes, any one is followed.
    """
    lengths, padded, effort = draw(lengths_of_rows), draw(st.booleans()), Effort()
    steps = []
    while not steps or steps[-1][2].rung is not Rung.PARK:
        assert len(steps) < 100, "the climb has no end"
        allowed = draw(st.one_of(st.just(0), st.integers(0, 1200), st.just(1 << 40)))
        evidence = seen(draw(any_cause), lengths, padded, allowed)
        possible = draw(any_means)
        step = next_step(effort, evidence, possible)
        steps.append((possible, evidence, step))
        lengths = lengths[draw(st.sampled_from(step.pieces(lengths, padded=padded)))]
        effort = step.effort
    return steps


@given(lineages())
@settings(deadline=None)
def test_climbing_ends_within_the_promised_steps(steps):
    rows = steps[0][1].rows
    assert len(steps) <= 12 + math.ceil(math.log2(rows))


@given(lineages())
@settings(deadline=None)
def test_seven_steps_and_the_splits_are_enough_while_no_device_is_lost(steps):
    kept = [step for _, evidence, step in steps if evidence.cause is not Cause.LOST]
    if len(kept) == len(steps):
        assert len(steps) <= 7 + math.ceil(math.log2(steps[0][1].rows))


@given(lineages())
@settings(deadline=None)
def test_rungs_never_go_back_until_a_device_is_lost(steps):
    height = 0
    for _, evidence, step in steps:
        assert step.rung.height >= height or evidence.cause is Cause.LOST
        height = 0 if evidence.cause is Cause.LOST else step.rung.height


@given(lineages())
@settings(deadline=None)
def test_only_replans_and_splits_are_repeated(steps):
    rungs = [step.rung for _, _, step in steps]
    assert rungs.count(Rung.REPLAN) <= 2
    assert all(rungs.count(rung) <= 1 for rung in (*MOVES, Rung.PARK))
    losses = sum(evidence.cause is Cause.LOST for _, evidence, _ in steps)
    assert all(rungs.count(rung) <= 1 + losses for rung in (Rung.STREAM, Rung.FLOAT32))


@given(lineages())
@settings(deadline=None)
def test_no_rung_is_chosen_that_the_means_forbid(steps):
    for possible, _, step in steps:
        allowed = {Rung.STREAM: possible.streams, Rung.RELOCATE: possible.others}
        allowed |= {Rung.FLOAT32: possible.float32, Rung.CPU: possible.cpu}
        assert allowed.get(step.rung, True)


@given(lineages())
@settings(deadline=None)
def test_a_piece_leaves_a_lost_device_at_once(steps):
    for _, evidence, step in steps:
        assert evidence.cause is not Cause.LOST or step.rung in {*MOVES, Rung.PARK}


@given(lineages())
@settings(deadline=None)
def test_no_row_is_parked_or_moved_for_the_failure_of_others(steps):
    for _, evidence, step in steps:
        if evidence.rows > 1 and evidence.cause is not Cause.LOST:
            assert step.rung in (Rung.REPLAN, Rung.SPLIT)


@given(lineages())
@settings(deadline=None)
def test_a_rung_that_cannot_help_is_skipped(steps):
    for _, evidence, step in steps:
        if step.rung is Rung.SPLIT:
            assert evidence.rows > 1
        if step.rung is Rung.REPLAN and step.tokens != evidence.tokens:
            assert evidence.rows > 1
            assert evidence.longest <= step.tokens < evidence.tokens


@given(lineages())
@settings(deadline=None)
def test_the_same_forward_is_repeated_once_for_each_cause(steps):
    same = [
        evidence.cause for _, evidence, step in steps if step.rung is Rung.REPLAN and step.tokens == evidence.tokens
    ]
    assert len(same) == len(set(same))


@given(lengths_of_rows, st.booleans(), st.sampled_from([Cause.MEMORY, Cause.NOT_FINITE]), st.integers(0, 40_000))
def test_cutting_a_piece_keeps_every_row_in_order(lengths, padded, cause, allowed):
    step = next_step(Effort(), seen(cause, lengths, padded, allowed), ALL)
    pieces = step.pieces(lengths, padded=padded)
    assert [row for piece in pieces for row in range(len(lengths))[piece]] == list(range(len(lengths)))
    assert all(lengths[piece] for piece in pieces)


@given(lengths_of_rows, st.booleans(), st.data())
def test_a_replanned_piece_keeps_to_the_tokens_that_the_law_allows(lengths, padded, data):
    whole = seen(Cause.MEMORY, lengths, padded)
    allowed = data.draw(st.integers(whole.longest, whole.tokens))
    step = next_step(Effort(), replace(whole, allowed_tokens=allowed), ALL)
    assert step.rung is Rung.REPLAN
    for piece in step.pieces(lengths, padded=padded):
        assert seen(Cause.MEMORY, lengths[piece], padded).tokens <= allowed


@given(lengths_of_rows, st.integers(0, 3000), st.booleans())
def test_a_slice_is_over_the_limit_only_as_one_row_and_takes_what_fits(lengths, most, padded):
    def tokens(rows):
        width = rows[0] if rows[0] == rows[-1] else math.ceil(rows[0] / 16) * 16
        return width * len(rows) if padded else sum(rows)

    cut = slices(lengths, most, padded=padded)
    assert [row for piece in cut for row in range(len(lengths))[piece]] == list(range(len(lengths)))
    for piece in cut:
        assert tokens(lengths[piece]) <= most or piece.stop - piece.start == 1
        if piece.stop < len(lengths):
            assert tokens(lengths[piece.start : piece.stop + 1]) > most


def test_no_rows_make_no_slice():
    assert slices([], 100, padded=True) == []


@given(st.integers(2, 10_000))
def test_halving_loses_no_row_and_the_longer_half_is_not_larger(rows):
    first, second = halves(rows)
    assert (first.start, first.stop, second.stop) == (0, second.start, rows)
    assert 0 <= (second.stop - second.start) - (first.stop - first.start) <= 1


@pytest.mark.parametrize(
    ("padded", "cut"),
    [(True, [slice(0, 1), slice(1, 3), slice(3, 5)]), (False, [slice(0, 2), slice(2, 5)])],
)
def test_padding_counts_when_rows_are_sliced_by_length(padded, cut):
    assert slices([50, 40, 40, 30, 10], 100, padded=padded) == cut


def test_a_row_that_never_fits_climbs_all_rungs_in_order():
    assert climb(short(rows=1, tokens=100), ALL) == [Rung.STREAM, Rung.RELOCATE, Rung.CPU, Rung.PARK]


def test_a_row_that_never_fits_is_parked_when_there_are_no_means():
    assert climb(short(rows=1, tokens=100), NONE) == [Rung.PARK]


def test_the_law_says_how_many_tokens_fit_after_running_out_of_memory():
    step = next_step(Effort(), short(rows=8, longest=100, tokens=800, allowed=350), ALL)
    assert (step.rung, step.tokens) == (Rung.REPLAN, 350)
    assert step.pieces([100] * 8, padded=True) == [slice(0, 3), slice(3, 6), slice(6, 8)]


def test_a_piece_is_halved_when_its_longest_row_has_no_room():
    step = next_step(Effort(), short(rows=7, longest=100, tokens=700, allowed=99), ALL)
    assert (step.rung, step.tokens) == (Rung.SPLIT, None)
    assert step.pieces([100] * 7, padded=True) == [slice(0, 3), slice(3, 7)]


def test_halves_are_not_replanned_after_two_replans():
    effort, rungs = Effort(), []
    for allowed in (700, 600, 500, 1 << 20):
        step = next_step(effort, short(allowed=allowed), ALL)
        rungs.append(step.rung)
        effort = step.effort
    assert rungs == [Rung.REPLAN, Rung.REPLAN, Rung.SPLIT, Rung.SPLIT]


@pytest.mark.parametrize("spare", [0, 1 << 20])
@pytest.mark.parametrize("rows", [1, 8])
def test_a_piece_that_should_have_fitted_is_tried_once_more(rows, spare):
    evidence = short(rows=rows, tokens=100 * rows, allowed=100 * rows + spare)
    step = next_step(Effort(), evidence, ALL)
    assert (step.rung, step.tokens) == (Rung.REPLAN, evidence.tokens)
    assert step.pieces([100] * rows, padded=True) == [slice(0, rows)]
    assert next_step(step.effort, evidence, ALL).rung is (Rung.SPLIT if rows > 1 else Rung.STREAM)


def test_a_padded_row_whose_own_tokens_fit_is_not_replanned():
    assert next_step(Effort(), short(rows=1, longest=100, tokens=128, allowed=110), ALL).rung is Rung.STREAM


def test_a_relocated_row_keeps_its_streaming():
    effort = Effort()
    for _ in range(2):
        effort = next_step(effort, short(rows=1, tokens=100), ALL).effort
    assert effort.tried == {Rung.STREAM, Rung.RELOCATE}


@pytest.mark.parametrize(
    ("possible", "rungs"),
    [
        (ALL, [Rung.RELOCATE, Rung.CPU, Rung.PARK]),
        (replace(ALL, others=False), [Rung.CPU, Rung.PARK]),
        (replace(ALL, cpu=False), [Rung.RELOCATE, Rung.PARK]),
        (NONE, [Rung.PARK]),
    ],
)
def test_a_piece_of_a_gone_device_goes_to_another_and_then_the_cpu(possible, rungs):
    assert climb(seen(Cause.LOST, [100] * 8, padded=True), possible) == rungs


def test_a_piece_from_a_lost_device_begins_its_climb_again():
    moved = next_step(Effort(), seen(Cause.LOST, [100] * 8, padded=True), ALL).effort
    assert next_step(moved, short(allowed=400), ALL).rung is Rung.REPLAN
    rungs = climb(short(rows=1, tokens=100), ALL, moved)
    assert rungs == [Rung.STREAM, Rung.CPU, Rung.PARK]


def test_a_piece_on_the_cpu_after_a_loss_does_not_return_to_a_device():
    moved = next_step(Effort(), seen(Cause.LOST, [100], padded=True), replace(ALL, others=False)).effort
    assert climb(short(rows=1, tokens=100), replace(NONE, others=True), moved) == [Rung.PARK]


def test_rows_not_finite_are_tried_alone_then_in_float32_then_on_the_cpu_then_parked():
    first = next_step(Effort(), seen(Cause.NOT_FINITE, [9, 5, 1, 1], padded=False), ALL)
    assert first.rung is Rung.SPLIT
    assert first.pieces([9, 5, 1, 1], padded=False) == [slice(0, 1), slice(1, 2), slice(2, 3), slice(3, 4)]
    assert climb(seen(Cause.NOT_FINITE, [9], padded=False), ALL, first.effort) == [Rung.FLOAT32, Rung.CPU, Rung.PARK]


@pytest.mark.parametrize(
    ("possible", "rungs"),
    [
        (ALL, [Rung.REPLAN, Rung.FLOAT32, Rung.CPU, Rung.PARK]),
        (replace(ALL, float32=False), [Rung.REPLAN, Rung.CPU, Rung.PARK]),
        (NONE, [Rung.REPLAN, Rung.PARK]),
    ],
)
def test_one_row_not_finite_is_tried_once_more_alone_and_then_in_float32(possible, rungs):
    assert climb(seen(Cause.NOT_FINITE, [9], padded=False), possible) == rungs


def test_a_row_out_of_memory_in_float32_goes_to_the_cpu():
    widened = Effort(tried=frozenset({Rung.SPLIT, Rung.REPLAN, Rung.FLOAT32}))
    assert climb(short(rows=1, tokens=9), ALL, widened) == [Rung.CPU, Rung.PARK]


def test_a_row_not_finite_on_the_cpu_is_parked():
    on_cpu = Effort(tried=frozenset({Rung.CPU}), moves=frozenset({Rung.CPU}))
    assert next_step(on_cpu, seen(Cause.NOT_FINITE, [9], padded=False), ALL).rung is Rung.PARK


@pytest.mark.parametrize(
    ("evidence", "sentence"),
    [
        (
            short(rows=64, longest=512, tokens=32_768, allowed=9000),
            "out of memory (64 texts, at most 512 tokens each: needs 1.5 GiB, 1.0 GiB free); "
            "retrying with at most 9,000 of its 32,768 tokens at a time",
        ),
        (
            short(rows=1, longest=8192, tokens=8192),
            "out of memory (1 text, 8,192 tokens: needs 1.5 GiB, 1.0 GiB free); nothing left to try",
        ),
        (
            replace(short(rows=1, longest=8192, tokens=8192), foreseen=True),
            "too large for the free memory (1 text, 8,192 tokens: needs 1.5 GiB, 1.0 GiB free); nothing left to try",
        ),
        (
            seen(Cause.LOST, [10] * 3, padded=True),
            "device lost (3 texts, at most 10 tokens each); nothing left to try",
        ),
        (
            seen(Cause.NOT_FINITE, [10], padded=True),
            "vectors zero or not finite (1 text, 10 tokens); retrying alone",
        ),
    ],
)
def test_the_reason_of_a_step_is_a_sentence_for_an_operator(evidence, sentence):
    assert next_step(Effort(), evidence, NONE).reason == sentence
