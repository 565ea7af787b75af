"""When a run ends: at a model's own pace, at that of its earlier runs, or at that of the other models; by what computes
beside what."""

from collections import deque
from math import hypot
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from interlock.engine.record import events as ev
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.record.snapshot import PassView, Snapshot, snapshot
from interlock.engine.record.state import Lately
from interlock.engine.standing.outlook import (
    FEW,
    KNOWN,
    LEAST,
    UNKNOWN,
    Outlook,
    Remaining,
    ends,
    time_left,
    time_left_of,
)
from tests.snapshots import did, one_pass, sample
from tools.recorded import Recorded


def a_pass(
    number: int, *, done: int, cost: float, seconds: float = 0.0, known: float = 0.0, word: str = ""
) -> PassView:
    """Ten batches of a hundred tokens each, all of one pace, of which so many are done."""
    view = one_pass(number, done=done, batches=10, word=word or ("running" if done else "queued"))
    lately = Lately()
    for _ in range(done):
        lately.add(cost / 10, seconds / done)
    return replace(
        did(view, seconds=seconds), tokens=1000, cost=cost, cost_done=cost * done / 10, known_pace=known,
        lately=lately, lately_on_host=lately, devices=("cpu",) if done else (), failure="",
    )  # fmt: skip


def run_of(*passes: PassView) -> Snapshot:
    return replace(sample(1, kind="cpu"), passes=passes)


def test_a_model_that_has_begun_goes_on_at_its_own_pace() -> None:
    left = time_left(run_of(a_pass(0, done=5, cost=100.0, seconds=30.0, known=1.0)))
    assert left == pytest.approx((30.0, 30.0 * hypot(LEAST, FEW / 5**0.5) + 3.0))


def test_a_model_that_has_not_begun_is_as_fast_as_in_its_earlier_runs() -> None:
    begun, known = a_pass(0, done=5, cost=100.0, seconds=30.0), a_pass(1, done=0, cost=900.0, known=20.0)
    left = time_left(run_of(begun, known))
    assert left == pytest.approx((30.0 + 50.0, 30.0 * hypot(LEAST, FEW / 5**0.5) + 50.0 * KNOWN + 3.0))


def test_a_model_that_nobody_knows_costs_what_its_operations_cost_the_others() -> None:
    left = time_left(run_of(a_pass(0, done=10, cost=100.0, seconds=60.0, word="done"), a_pass(1, done=0, cost=300.0)))
    assert left == pytest.approx((180.0, 180.0 * UNKNOWN))


def test_nothing_is_foretold_before_anything_is_known() -> None:
    assert time_left(run_of(a_pass(0, done=0, cost=100.0), a_pass(1, done=0, cost=100.0, known=9.0))) is None
    assert time_left_of(a_pass(0, done=0, cost=100.0), ()) is None


def test_a_run_whose_models_ran_before_is_foretold_before_its_first_batch() -> None:
    left = time_left(run_of(a_pass(0, done=0, cost=100.0, known=50.0), a_pass(1, done=0, cost=100.0, known=100.0)))
    assert left and left.seconds == pytest.approx(30.0)


def test_the_first_batches_of_a_model_that_ran_before_say_less_than_that_run() -> None:
    slow_start = a_pass(0, done=1, cost=100.0, seconds=60.0, known=50.0)
    left = time_left(run_of(slow_start))
    assert left and left.seconds == pytest.approx(18.0)


@pytest.mark.parametrize(
    ("at_work", "seconds"),
    [(("cuda:0",), 30.0), (("cuda:0", "cuda:1"), 15.0), (("cuda:0", "cuda:1", "cpu"), 15.0), (("cpu",), 30.0)],
)
def test_work_is_shared_by_the_devices_that_are_held_now_whatever_computed_before(at_work, seconds) -> None:
    before = replace(a_pass(0, done=5, cost=100.0, seconds=30.0), devices=("cpu", "cuda:0", "cuda:1"))
    now = replace(before, at_work=at_work)
    left = time_left(run_of(now))
    assert left and left.seconds == pytest.approx(seconds)
    left = time_left_of(now, [now])
    assert left and left.seconds == pytest.approx(seconds)


def test_between_two_leases_the_gpus_that_are_left_count() -> None:
    done = a_pass(0, done=10, cost=100.0, seconds=60.0, word="done")
    run = replace(sample(3, kind="cuda"), passes=(done, a_pass(1, done=0, cost=100.0)))
    first, *others = run.devices
    run = replace(run, devices=(replace(first, lost="fell off the bus"), *(replace(each, lost="") for each in others)))
    left = time_left(run)
    assert left and left.seconds == pytest.approx(30.0)


def test_a_lost_gpu_is_not_at_work_though_its_lease_is_held(tmp_path) -> None:
    run = Recorded(RunDirectory(tmp_path / "run"))
    assert {name for each in run.play_to(0.2).passes for name in each.at_work} == {"cuda:0", "cuda:1"}
    run.recorder.emit(ev.DeviceLost(device="cuda:0", reason="fell off the bus"))
    now = run.recorder.look(lambda state: snapshot(state, 0))
    assert {name for each in now.passes for name in each.at_work} == {"cuda:1"}
    run.close()


def test_a_failed_pass_has_nothing_left() -> None:
    failed = replace(a_pass(0, done=5, cost=100.0, seconds=30.0), failure="no weights")
    assert time_left(run_of(failed)) is None


def test_the_latest_batches_say_more_of_a_pace_than_the_first() -> None:
    lately = Lately()
    for seconds in [9.0] * 20 + [1.0] * 20:
        lately.add(50.0, seconds)
    assert 1.0 < 50 * lately.pace < 2.5


def test_the_more_the_latest_batches_differ_the_less_sure_the_end_is() -> None:
    even, uneven = Lately(), Lately()
    for place in range(20):
        even.add(10.0, 2.0)
        uneven.add(10.0, 1.0 + 2.0 * (place % 2))
    assert even.varies == pytest.approx(0.0, abs=1e-6)
    assert uneven.varies == pytest.approx(0.5, abs=0.02)
    begun = a_pass(0, done=5, cost=100.0, seconds=10.0)
    sure, unsure = (time_left_of(replace(begun, devices=("cuda:0",), lately=lately), ()) for lately in (even, uneven))
    assert sure and unsure and unsure.spread > 1.2 * sure.spread


def test_a_host_that_helped_out_once_makes_a_gpu_no_faster() -> None:
    each = replace(a_pass(0, done=10, cost=100.0, seconds=100.0), devices=("cpu", "cuda:0"))
    assert each.wall_seconds == pytest.approx(100.0)
    assert replace(each, devices=("cuda:0", "cuda:1")).wall_seconds == pytest.approx(50.0)


PASSES = st.lists(
    st.tuples(
        st.integers(20, 60), st.floats(0.5, 2.0), st.floats(2.0, 20.0), st.sampled_from(["cuda:0", "cuda:1", "cpu"])
    ),
    min_size=1,
    max_size=4,
)
"""Of each pass its batches, what one takes on a GPU, how much longer on the host, and where it is."""


def computed(passes: list[tuple[int, float, float, str]]) -> float:
    """When the last batch is done of passes that stand side by side and take turns, and go from the host to a GPU as
    soon as one has nothing left: batch by batch, as the workers do it."""
    there = {name: deque([n, g, g * h] for n, g, h, at in passes if at == name) for name in ("cuda:0", "cuda:1", "cpu")}
    free = {name: 0.0 for name, mine in there.items() if mine}
    ends, had_gpus = [0.0], any(name != "cpu" for name in free)
    while free:
        name = min(free, key=lambda each: (free[each], each))
        at = free.pop(name)
        if not there[name]:
            if name != "cpu" and had_gpus and there["cpu"]:
                there[name], there["cpu"] = there["cpu"], deque()
                free[name] = max(at, free.pop("cpu", at))  # its batch is finished first
            continue
        task = there[name].popleft()
        task[0] -= 1
        there[name].extend([task] * (task[0] > 0))
        free[name] = at + task[2 if name == "cpu" else 1]
        ends.append(free[name])
    return max(ends)


@given(PASSES)
def test_passes_of_constant_pace_end_when_they_are_foretold_to_whatever_is_beside_what(passes) -> None:
    works = [Remaining(Outlook(n * g, 0.0), Outlook(n * g * h, 0.0), (at,)) for n, g, h, at in passes]
    foretold = ends(works, 2, shared=True)
    longest = max(g * h if at == "cpu" else g for _, g, h, at in passes)
    assert foretold and abs(foretold.seconds - computed(passes)) <= 2 * longest + 1e-6


@given(st.lists(st.tuples(st.integers(1, 50), st.floats(0.1, 9.0)), min_size=1, max_size=5), st.integers(1, 4))
def test_one_pass_after_the_other_takes_the_sum_on_all_gpus(passes, gpus) -> None:
    names = tuple(f"cuda:{number}" for number in range(gpus))
    alone = [Outlook(n * g, 1.0) for n, g in passes]
    works = [Remaining(left, None, names if not place else ()) for place, left in enumerate(alone)]
    foretold = ends(works, gpus, shared=False)
    assert foretold and foretold.seconds == pytest.approx(sum(left.seconds for left in alone) / gpus)


def test_a_pass_that_takes_turns_with_another_ends_later_than_it_would_alone() -> None:
    alone = replace(a_pass(0, done=5, cost=100.0, seconds=30.0), at_work=("cuda:0",))
    other = replace(a_pass(1, done=2, cost=100.0, seconds=12.0), at_work=("cuda:0",))
    left, beside = time_left_of(alone, [alone]), time_left_of(alone, [alone, other])
    assert left and beside and beside.seconds == pytest.approx(2 * left.seconds)
    elsewhere = replace(other, at_work=("cuda:1",))
    assert time_left_of(alone, [alone, elsewhere]) == left


def guest(**of: Any) -> Snapshot:
    """100 s of one on the GPU, beside another that took 4 s for each unit on the host, and takes .1 s on a GPU."""
    gpu = replace(a_pass(0, done=5, cost=100.0, seconds=100.0), at_work=("cuda:0",))
    host = a_pass(1, done=5, cost=100.0, seconds=5.0)
    slow = Lately()
    slow.add(10.0, 40.0)
    host = replace(host, at_work=("cpu",), lately_on_host=slow)
    return replace(sample(1, kind="cuda", schedule="shared"), passes=(gpu, host), **of)


def test_a_companion_on_the_host_is_foretold_by_its_pace_there_and_goes_back_to_the_gpu() -> None:
    """Half of a batch of 40 s on the host is finished first, and a lease opened."""
    rest = 5.0 * (1 - 100.0 / 200.0)
    for opening in (0.0, 3.0):
        left = time_left(guest(opening=opening))
        assert left and left.seconds == pytest.approx(100.0 + 20.0 + opening + rest)


def test_a_companion_that_no_gpu_has_room_for_stays_on_the_host_to_its_end() -> None:
    told = ev.Mitigated(
        model_pass=1, batch_index=None, rung="cpu", device="cuda:0", cause="fits on no GPU", action="CPU", rows=1,
        stays=True,
    )  # fmt: skip
    left = time_left(guest(hosted={1: told}))
    assert left and left.seconds == pytest.approx(200.0)
    once = time_left(guest(hosted={1: replace(told, stays=False)}))
    assert once and once.seconds < 200.0


def test_one_that_stays_takes_turns_with_one_that_goes_back() -> None:
    gpu, back = (
        Remaining(Outlook(10.0, 0.0), None, ("cuda:0",)),
        Remaining(Outlook(6.0, 0.0), Outlook(40.0, 0.0), ("cpu",)),
    )
    works = [gpu, back, back._replace(stays=True)]
    left = ends(works, 1, shared=True)
    assert left and left.seconds == pytest.approx(40.0)  # that of the one that stays
    left = ends([gpu, back, back], 1, shared=True)
    assert left and left.seconds == pytest.approx(10.0 + 12.0 * (1 - 10.0 / 80.0))


def test_each_lease_to_come_takes_what_the_latest_took_and_stretches_no_batch() -> None:
    """Of a run that has 30 s left in the pass that is held, and 60 s in each of two to come."""
    held = replace(a_pass(0, done=5, cost=100.0, seconds=30.0), at_work=("cpu",))
    run = run_of(held, *(a_pass(number, done=0, cost=100.0) for number in (1, 2)))
    run = replace(run, opened=1, opening=4.0, busy=30.0, covered=run.elapsed)
    left, later = time_left(run), time_left(replace(run, elapsed=run.covered + 2.0))
    assert left and left.seconds == pytest.approx(30.0 + 2 * 60.0 + 2 * 4.0)
    assert later and later.seconds == pytest.approx(left.seconds - 2.0)
    hung = time_left(replace(run, elapsed=run.covered + 500.0))
    assert hung and hung.seconds == pytest.approx(left.seconds - 6.0)  # a batch may be near its end, and no more
    done = a_pass(0, done=10, cost=100.0, seconds=60.0, word="done")
    between = time_left(replace(run, passes=(done, *run.passes[1:]), elapsed=run.covered + 3.0))
    assert between and between.seconds == pytest.approx(left.seconds - 30.0 - 3.0)


def test_what_lies_between_the_batches_of_a_model_is_foretold_of_it_and_of_no_other() -> None:
    held = replace(a_pass(0, done=5, cost=100.0, seconds=30.0), at_work=("cpu",))
    run = run_of(held, a_pass(1, done=0, cost=100.0))
    before, gaps = time_left(run), replace(held.lately, idle=held.lately.seconds / 3)
    after = time_left(replace(run, passes=(replace(held, lately=gaps, lately_on_host=gaps), run.passes[1])))
    assert before and after and after.seconds == pytest.approx(before.seconds + 10.0)


def test_models_that_take_turns_are_leased_as_often_as_so_far() -> None:
    held = replace(a_pass(0, done=5, cost=100.0, seconds=30.0), at_work=("cpu",))
    run = run_of(held, a_pass(1, done=0, cost=100.0))
    run = replace(run, opened=3, opening=4.0, busy=25.0, covered=run.elapsed)
    turns, once = time_left(replace(run, schedule="rotating")), time_left(run)
    assert turns and turns.seconds == pytest.approx(90.0 + 4.0 * 2.5 * 90.0 / 25.0)
    assert once and once.seconds == pytest.approx(90.0 + 4.0)
