"""What measured batches teach about a memory law, and how many tokens fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.engine.models.memory import FIRST_MARGIN, LEAST_MARGIN, MOST_MARGIN, WINDOW, Calibration, Law

LAW = Law(1 << 30, 20_000.0, 8_000.0, 40.0, 24.0)
SIZES = st.integers(1 << 10, 1 << 34)
RATIOS = st.floats(0.5, 2.0)
LENGTHS = st.integers(1, 1 << 15)


TERMS = st.floats(0, 200)
LAWS = st.builds(Law, SIZES, st.floats(1, 1e5), st.floats(0, 1e5), TERMS, TERMS)
CALIBRATIONS = st.builds(Calibration, scale=RATIOS, margin=st.floats(LEAST_MARGIN, MOST_MARGIN))


def after(calibration, ratios, predicted=1 << 30):
    """The calibration when batches have taken these ratios of what the law says."""
    for ratio in ratios:
        calibration = calibration.observed(predicted, round(predicted * ratio))
    return calibration


@given(LAWS, CALIBRATIONS, st.integers(1, 1 << 22), LENGTHS, st.integers(0, 1 << 20), st.integers(0, 1 << 12))
def test_more_tokens_or_rows_never_lower_the_prediction(law, calibration, tokens, longest, more, longer):
    least = calibration.activations(law, tokens, longest)
    assert calibration.activations(law, tokens + more, longest) >= least
    assert calibration.activations(law, tokens, longest + longer) >= least
    assert law.peak(tokens + more, longest + longer) >= law.peak(tokens, longest)


@given(LAWS, CALIBRATIONS, LENGTHS, st.integers(0, 1 << 38))
def test_the_most_tokens_for_a_room_fit_and_one_more_does_not(law, calibration, longest, room):
    tokens = calibration.most_tokens(law, longest, room)
    assert tokens == 0 or calibration.activations(law, tokens, longest) <= room
    assert calibration.activations(law, tokens + 1, longest) > room


@given(LAWS, CALIBRATIONS, LENGTHS, st.integers(1, 1 << 22))
def test_a_batch_fits_into_exactly_the_room_predicted_for_it(law, calibration, longest, tokens):
    assert calibration.most_tokens(law, longest, calibration.activations(law, tokens, longest)) >= tokens


def test_the_margin_falls_to_the_least_after_a_window_of_clean_batches():
    assert after(Calibration(), [1.0]).margin < FIRST_MARGIN
    assert after(Calibration(), [1.0] * (WINDOW // 2)).margin > LEAST_MARGIN
    assert after(Calibration(), [1.0] * WINDOW).margin == pytest.approx(LEAST_MARGIN)


def test_the_least_margin_stays_while_batches_are_clean():
    assert after(Calibration(), [1.0] * 3 * WINDOW).margin == pytest.approx(LEAST_MARGIN)


@given(CALIBRATIONS)
def test_pressure_doubles_the_margin_up_to_the_most(calibration):
    assert calibration.strained().margin == pytest.approx(min(MOST_MARGIN, 2 * calibration.margin))


@given(st.integers(1, 8), st.integers(1 << 24, 1 << 34))
def test_the_token_room_grows_back_when_batches_are_clean_again(strains, room):
    calm = after(Calibration(), [1.0] * WINDOW)
    pressed = calm
    for _ in range(strains):
        pressed = pressed.strained()
    assert pressed.most_tokens(LAW, 512, room) < calm.most_tokens(LAW, 512, room)
    eased = after(pressed, [1.0] * 4 * WINDOW)
    assert eased.most_tokens(LAW, 512, room) == calm.most_tokens(LAW, 512, room)


@given(RATIOS, st.integers(1, 3 * WINDOW))
def test_the_scale_becomes_k_on_a_device_that_takes_k_times_the_law(k, batches):
    assert after(Calibration(), [k] * batches).scale == pytest.approx(k, rel=1e-6)


@given(RATIOS)
def test_the_margin_becomes_the_least_on_a_device_that_takes_k_times_the_law(k):
    assert after(Calibration(), [k] * (WINDOW + 1)).margin == pytest.approx(LEAST_MARGIN)


@given(st.lists(RATIOS, max_size=12), st.floats(0.5, 4.0), st.lists(st.floats(0.1, 4.0), max_size=2 * WINDOW))
def test_the_prediction_covers_every_batch_measured_before(earlier, ratio, later):
    tokens, longest = 4096, 512
    predicted = LAW.activations(tokens, longest)
    measured = round(predicted * ratio)
    calibration = after(Calibration(), earlier).observed(predicted, measured)
    for number in range(len(later) + 1):
        assert after(calibration, later[:number]).activations(LAW, tokens, longest) >= measured


def test_one_larger_batch_is_covered_by_a_margin_for_a_window():
    settled = after(Calibration(), [1.0] * 2 * WINDOW)
    surprised = after(settled, [1.2])
    assert surprised.margin == pytest.approx(0.2, rel=0.01)
    assert after(surprised, [1.2] * (WINDOW - 1)).margin == pytest.approx(0.2, rel=0.01)
    assert after(surprised, [1.2] * 4 * WINDOW).margin == pytest.approx(LEAST_MARGIN)


def test_a_smaller_batch_lowers_no_settled_prediction():
    settled = after(Calibration(), [1.0] * 2 * WINDOW)
    assert after(settled, [0.5]).activations(LAW, 4096, 512) == settled.activations(LAW, 4096, 512)


@given(st.integers(0, 100), st.integers(0, 100))
def test_calibration_stays_usable_after_batches_of_almost_nothing(predicted, measured):
    calibration = after(Calibration().observed(predicted, measured), [1.0])
    assert calibration.most_tokens(LAW, 512, 1 << 32) > 0
