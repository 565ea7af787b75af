"""A reranker's scores and the first stage's are blended on one scale, query by query."""

import numpy as np
import pytest

from interlock.engine.search.combine import SHARE, reranked, standardised


def order(*scores, share):
    return [each.before for each in reranked(*scores, share)]


def test_a_share_of_zero_keeps_the_order_and_a_share_of_one_replaces_it():
    first, second = [0.9, 0.8, 0.7], [-3.0, 5.0, 1.0]
    assert order(first, second, share=0) == [0, 1, 2]
    assert order(first, second, share=1) == [1, 2, 0]


def test_the_first_stage_keeps_most_of_its_say_by_default():
    first, second = [0.9, 0.5, 0.4], [0.1, 0.2, 0.3]
    assert order(first, second, share=SHARE) == [0, 1, 2]


def test_scores_are_blended_by_their_distance_from_the_mean_of_the_query_in_deviations():
    first, second = [3.0, 1.0, 2.0], [10.0, 30.0, 50.0]
    deviation = np.sqrt(2 / 3)
    found = {each.before: each.blended for each in reranked(first, second, 0.25)}
    assert found == pytest.approx({0: (0.75 * 1 - 0.25) / deviation, 1: (-0.75) / deviation, 2: 0.25 / deviation})


@pytest.mark.parametrize("alike", [[0.1, 0.1, 0.1], [0.1, 0.1 + 1e-9, 0.1], [0.0, 0.0, 0.0]])
def test_scores_that_are_all_alike_leave_the_order_to_the_other_stage(alike):
    assert order(alike, [1.0, 3.0, 2.0], share=0.2) == [1, 2, 0]
    assert order([0.9, 0.8, 0.7], alike, share=1.0) == [0, 1, 2]
    assert not standardised(np.array(alike)).any()


def test_one_candidate_and_none_need_no_scale():
    assert order([0.5], [0.7], share=0.2) == [0]
    assert reranked([], [], 0.2) == []


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        reranked([0.5, 0.4], [0.1, float("nan")], 0.2)
