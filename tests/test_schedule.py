"""Schedules: three orders of one grid; every cell is walked once, whatever is switched on the way."""

from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.engine.compute.schedule import (
    Assignment,
    DeviceRoom,
    MemoryNeed,
    Placement,
    Schedule,
    budgets,
    next_placement,
)

EXCLUSIVE, ROTATING, SHARED = Schedule
MIB = 1 << 20


def gpu(number, room=100):
    return DeviceRoom(f"cuda:{number}", "cuda", room)


def host(room=100):
    return DeviceRoom("cpu", "cpu", room)


def need(whole=10, streamed=0, host=10):
    return MemoryNeed("model", whole, streamed, host)


def round_of(schedule, left, needs=None, places=None, window=2, last=None, cpu_fallback=False):
    needs = needs or [need()] * len(left)
    places = [gpu(0), gpu(1)] if places is None else places
    return next_placement(schedule, left, needs, places, window, last, cpu_fallback=cpu_fallback)


def placed(found):
    """Which pass is where: {0: "cuda:0"}, with a star where it is streamed."""
    return {
        assignment.model_pass: ",".join(assignment.devices) + "*" * assignment.streamed
        for assignment in found.assignments
    }


def visits(schedule, left, window):
    """The turns of one model after the other, all of each done: ("A", batches)."""
    left, last, seen = [list(batches) for batches in left], None, []
    while found := round_of(schedule, left, window=window, last=last):
        (assignment,) = found.assignments
        seen.append(("ABCDEFGH"[assignment.model_pass], list(assignment.batches)))
        left[assignment.model_pass] = [
            batch for batch in left[assignment.model_pass] if batch not in assignment.batches
        ]
        last = assignment.model_pass
    return seen


def spelled(seen):
    return " ".join(name * len(batches) for name, batches in seen)


needs_of_models = st.builds(MemoryNeed, st.just("m"), st.integers(1, 60), st.integers(0, 20), st.integers(1, 60))
counts = st.lists(st.integers(0, 12), min_size=1, max_size=5)
grids = st.lists(st.lists(st.integers(0, 30), unique=True, max_size=12).map(sorted), min_size=1, max_size=5)
rooms = st.integers(0, 100)


@st.composite
def machines(draw):
    gpus = [gpu(number, draw(rooms)) for number in range(draw(st.integers(0, 3)))]
    return [*gpus, host(draw(rooms))]


@st.composite
def walks(draw):
    """A grid walked to its end while schedule, window and devices change and turns are done in part.

    Gives what each pass had left at first, the needs, and for each round (places, cpu_fallback, round, cells done).
    """
    left = draw(grids)
    first = [list(batches) for batches in left]
    needs = [draw(needs_of_models) for _ in left]
    rounds, last = [], None
    while True:
        schedule, window = draw(st.sampled_from(Schedule)), draw(st.integers(0, 8))
        places, fallback = draw(machines()), draw(st.booleans())
        found = next_placement(schedule, left, needs, places, window, last, cpu_fallback=fallback)
        if found is None:
            return first, needs, rounds
        assert len(rounds) < 500, "the walk has no end"
        for model_pass in found.refused:
            left[model_pass] = []
        done = set()
        for assignment in found.assignments:
            some = draw(st.sets(st.sampled_from(assignment.batches), min_size=1))
            done |= {(assignment.model_pass, batch) for batch in some}
            left[assignment.model_pass] = [batch for batch in left[assignment.model_pass] if batch not in some]
            last = assignment.model_pass
        rounds.append((places, fallback, found, done))


@given(walks())
@settings(deadline=None)
def test_every_cell_is_walked_once_unless_its_pass_was_refused(walk):
    first, _, rounds = walk
    walked = [cell for _, _, _, done in rounds for cell in done]
    refused = {model_pass for _, _, found, _ in rounds for model_pass in found.refused}
    all_cells = {(model_pass, batch) for model_pass, batches in enumerate(first) for batch in batches}
    assert len(walked) == len(set(walked))
    assert set(walked) <= all_cells
    assert {cell[0] for cell in all_cells - set(walked)} <= refused


@given(walks())
@settings(deadline=None)
def test_no_turn_is_empty_and_no_pass_is_twice_in_a_round(walk):
    _, _, rounds = walk
    for _, _, found, _ in rounds:
        assert found.assignments or found.refused
        assert all(assignment.batches and assignment.devices for assignment in found.assignments)
        passes = [assignment.model_pass for assignment in found.assignments] + list(found.refused)
        assert len(passes) == len(set(passes))


@given(walks())
@settings(deadline=None)
def test_no_device_of_a_round_gets_more_than_it_has_room_for(walk):
    _, needs, rounds = walk
    for places, _, found, _ in rounds:
        room = {place.name: place.room for place in places}
        for assignment in found.assignments:
            size = needs[assignment.model_pass].streamed if assignment.streamed else needs[assignment.model_pass].whole
            for name in assignment.devices:
                room[name] -= needs[assignment.model_pass].host if name == "cpu" else size
        assert min(room.values()) >= 0


@given(walks())
@settings(deadline=None)
def test_nothing_goes_to_the_cpu_with_gpus_and_no_fallback(walk):
    _, _, rounds = walk
    for places, fallback, found, _ in rounds:
        if len(places) > 1 and not fallback:
            assert all(assignment.devices != ("cpu",) for assignment in found.assignments)


@given(walks())
@settings(deadline=None)
def test_a_refused_pass_would_have_fitted_on_no_allowed_device(walk):
    _, needs, rounds = walk
    for places, fallback, found, _ in rounds:
        *gpus, cpu = places
        for model_pass in found.refused:
            least = min(needs[model_pass].whole, needs[model_pass].streamed or 1 << 40)
            assert all(least > place.room for place in gpus)
            assert needs[model_pass].host > cpu.room or (gpus and not fallback)


@given(counts, st.data())
@settings(deadline=None)
def test_an_exclusive_walk_attaches_each_model_once_in_roster_order(counts, data):
    left, attached, last = [list(range(count)) for count in counts], [], None
    while found := round_of(EXCLUSIVE, left, last=last):
        (assignment,) = found.assignments
        attached.append(assignment.model_pass)
        some = data.draw(st.sets(st.sampled_from(assignment.batches), min_size=1))
        left[assignment.model_pass] = [batch for batch in left[assignment.model_pass] if batch not in some]
        last = assignment.model_pass
    assert [model_pass for model_pass, _ in groupby(attached)] == [k for k, count in enumerate(counts) if count]


@given(grids, st.integers(1, 8), st.data())
@settings(deadline=None)
def test_a_rotation_attaches_models_no_more_than_to_and_fro_needs(left, window, data):
    cycles = 1 + max((batches[-1] // window for batches in left if batches), default=0)
    models = sum(bool(batches) for batches in left)
    left, attached, last = list(left), [], None
    while found := round_of(ROTATING, left, window=window, last=last):
        (assignment,) = found.assignments
        attached.append(assignment.model_pass)
        some = data.draw(st.sets(st.sampled_from(assignment.batches), min_size=1))
        left[assignment.model_pass] = [batch for batch in left[assignment.model_pass] if batch not in some]
        last = assignment.model_pass
    assert len(list(groupby(attached))) <= cycles * (models - 1) + 1


@given(counts, st.integers(1, 8))
def test_no_model_rotates_more_than_two_windows_ahead_of_unfinished_ones(counts, window):
    done = [0] * len(counts)
    for name, batches in visits(ROTATING, [range(count) for count in counts], window):
        done["ABCDEFGH".index(name)] += len(batches)
        behind = [have // window for have, count in zip(done, counts, strict=True) if have < count]
        assert not behind or max(-(-have // window) for have in done) <= min(behind) + 2


@pytest.mark.parametrize(
    ("counts", "window", "order"),
    [
        ([6, 4, 6], 2, "AA BB CCCC BB AAAA CC"),
        ([4, 4, 4], 2, "AA BB CCCC BB AA"),
        ([3, 3], 1, "A BB AA B"),
        ([1, 5, 1], 2, "A BB C BBB"),
        ([5], 2, "AAAAA"),
        ([3, 3, 3], 0, "AAA BBB CCC"),
        ([3, 3, 3], 3, "AAA BBB CCC"),
    ],
)
def test_a_rotation_walks_the_roster_to_and_fro(counts, window, order):
    assert spelled(visits(ROTATING, [range(count) for count in counts], window)) == order


def test_batches_done_before_change_no_window():
    seen = visits(ROTATING, [[1, 2, 3, 5], [0, 1, 2, 3]], 2)
    assert seen == [("A", [1]), ("B", [0, 1, 2, 3]), ("A", [2, 3, 5])]


def test_the_others_catch_up_first_when_a_schedule_becomes_rotating():
    found = round_of(ROTATING, [[8, 9], range(10), range(10)], window=2, last=0)
    assert found.assignments == (Assignment(1, (0, 1), ("cuda:0", "cuda:1")),)


def test_the_last_model_goes_on_among_those_that_stand_level():
    found = round_of(ROTATING, [range(4)] * 3, window=2, last=1)
    assert placed(found) == {1: "cuda:0,cuda:1"}


@pytest.mark.parametrize("schedule", [EXCLUSIVE, SHARED])
def test_without_rotation_the_first_model_with_work_left_is_next(schedule):
    first = round_of(schedule, [[], [3], [1, 2]], last=2).assignments[0]
    assert (first.model_pass, first.batches) == (1, (3,))


@pytest.mark.parametrize("schedule", Schedule)
def test_there_is_no_round_when_nothing_is_left(schedule):
    assert round_of(schedule, [[], []]) is None


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize(
    ("wants", "places", "fallback", "where"),
    [
        (need(10), [gpu(0), gpu(1), host()], True, "cuda:0,cuda:1"),
        (need(50), [gpu(0, 40), gpu(1, 60), host()], True, "cuda:1"),
        (need(50, streamed=20), [gpu(0, 40), gpu(1, 60), host()], True, "cuda:1"),
        (need(50, streamed=20), [gpu(0, 40), gpu(1, 10), host()], True, "cuda:0*"),
        (need(50, streamed=20), [gpu(0, 20), gpu(1, 30), host()], True, "cuda:0,cuda:1*"),
        (need(50, streamed=0), [gpu(0, 40), host()], True, "cpu"),
        (need(50, streamed=45), [gpu(0, 40), host()], True, "cpu"),
        (need(50), [host()], False, "cpu"),
        (need(10), [DeviceRoom("sim:0", "sim", 10), host()], False, "sim:0"),
    ],
)
def test_whole_goes_before_streamed_and_gpus_before_the_cpu(schedule, wants, places, fallback, where):
    assert placed(round_of(schedule, [[0]], [wants], places, cpu_fallback=fallback)) == {0: where}


@pytest.mark.parametrize("schedule", Schedule)
def test_a_model_that_fits_nowhere_is_refused_on_its_turn(schedule):
    found = round_of(schedule, [[0], [0]], [need(200), need(10)], [gpu(0)])
    assert list(found.refused) == [0]
    assert placed(found) == {1: "cuda:0"}


@pytest.mark.parametrize("schedule", Schedule)
def test_a_model_that_fits_nowhere_is_not_refused_before_its_turn(schedule):
    found = round_of(schedule, [[0], [0]], [need(10), need(200)], [gpu(0)])
    assert (placed(found), found.refused) == ({0: "cuda:0"}, {})


def test_a_round_of_models_that_all_fit_nowhere_refuses_them_without_turns():
    found = round_of(EXCLUSIVE, [[0], [], [0]], [need(200)] * 3, [gpu(0)])
    assert found == Placement((), found.refused)
    assert list(found.refused) == [0, 2]


@pytest.mark.parametrize(
    ("places", "fallback", "reason"),
    [
        (
            [gpu(0, 4 * MIB), gpu(1, -MIB), host(6 * MIB)],
            True,
            "model needs 8.0 MiB (5.0 MiB streamed), 4.0 MiB available on cuda:0, 0 B available on cuda:1, "
            "and needs 7.0 MiB, 6.0 MiB available on cpu",
        ),
        (
            [gpu(0, 4 * MIB), host(9 * MIB)],
            False,
            "model needs 8.0 MiB (5.0 MiB streamed), 4.0 MiB available on cuda:0, and CPU fallback is off",
        ),
        ([host(6 * MIB)], True, "model needs 7.0 MiB, 6.0 MiB available on cpu"),
    ],
)
def test_a_refusal_names_what_the_model_needs_and_what_there_is(places, fallback, reason):
    found = round_of(EXCLUSIVE, [[0]], [need(8 * MIB, 5 * MIB, 7 * MIB)], places, cpu_fallback=fallback)
    assert found.refused[0] == f"{reason}: free memory, raise --ceiling, or drop it from --roster"


@pytest.mark.parametrize(
    ("flag", "advice"), [("", "raise --ceiling"), ("--host-ceiling", "raise --ceiling and --host-ceiling")]
)
def test_a_refusal_advises_the_settings_that_limit_the_places_there_are(flag, advice):
    places = [gpu(0, MIB), DeviceRoom("cpu", "cpu", MIB, flag)]
    found = round_of(EXCLUSIVE, [[0]], [need(8 * MIB, 0, 8 * MIB)], places, cpu_fallback=True)
    assert found.refused[0].endswith(f"available on cpu: free memory, {advice}, or drop it from --roster")


def test_a_refusal_where_there_is_no_device_advises_no_setting():
    found = round_of(EXCLUSIVE, [[0]], [need(8 * MIB)], [])
    assert found.refused[0] == "model has no GPU, and CPU fallback is off: free memory, or drop it from --roster"


@pytest.mark.parametrize(
    ("sizes", "places", "fallback", "where"),
    [
        # the primary on the first GPU, its companions on the other one while it holds them
        ([10, 10, 10], [gpu(0), gpu(1), host()], True, ["cuda:0", "cuda:1", "cuda:1"]),
        ([10, 10], [gpu(0, 50), gpu(1)], False, ["cuda:0", "cuda:1"]),
        # then beside the primary, then on the CPU, or waiting
        ([40, 70, 50], [gpu(0), gpu(1), host()], True, ["cuda:0", "cuda:1", "cuda:0"]),
        ([60, 70, 50], [gpu(0), gpu(1), host()], True, ["cuda:0", "cuda:1", "cpu"]),
        ([60, 70, 50], [gpu(0), gpu(1), host()], False, ["cuda:0", "cuda:1", None]),
        ([60, 70, 50], [gpu(0), gpu(1), host(40)], True, ["cuda:0", "cuda:1", None]),
        # who waits does not keep the next from a place
        ([60, 70, 50, 20], [gpu(0), gpu(1)], False, ["cuda:0", "cuda:1", None, "cuda:1"]),
        # the GPU with the most room left
        ([10, 30, 10, 10], [gpu(0, 99), gpu(1, 50), gpu(2, 40)], False, ["cuda:0", "cuda:1", "cuda:2", "cuda:2"]),
        # a primary that the first GPU does not hold
        ([60, 30], [gpu(0, 50), gpu(1)], False, ["cuda:1", "cuda:0"]),
        # one device for all
        ([40, 40, 40], [gpu(0)], False, ["cuda:0", "cuda:0", None]),
        # no GPU: as many as the host holds
        ([40, 40, 40, 20], [host()], False, ["cpu", "cpu", None, "cpu"]),
    ],
)
def test_shared_models_are_side_by_side_where_they_fit(sizes, places, fallback, where):
    needs = [need(size, host=size) for size in sizes]
    found = round_of(SHARED, [[0, 1]] * len(sizes), needs, places, cpu_fallback=fallback)
    assert [placed(found).get(model_pass) for model_pass in range(len(sizes))] == where


def test_a_companion_waits_for_a_gpu_that_would_hold_it_whole():
    found = round_of(SHARED, [[0]] * 3, [need(60), need(60, streamed=5), need(10)], [gpu(0)])
    assert placed(found) == {0: "cuda:0", 2: "cuda:0"}


def test_a_companion_that_no_gpu_holds_whole_is_streamed_beside_the_primary():
    found = round_of(SHARED, [[0]] * 2, [need(60), need(200, streamed=5)], [gpu(0)])
    assert placed(found) == {0: "cuda:0", 1: "cuda:0*"}


def test_a_single_model_of_a_shared_schedule_has_every_gpu():
    assert placed(round_of(SHARED, [[], [0], []])) == {1: "cuda:0,cuda:1"}


def test_a_shared_round_gives_each_model_all_that_is_left_of_its_pass():
    found = round_of(SHARED, [[0, 2], [], [5]], window=1)
    assert found.assignments == (Assignment(0, (0, 2), ("cuda:0",)), Assignment(2, (5,), ("cuda:1",)))


def test_models_side_by_side_have_what_they_need_and_equal_parts_of_the_rest():
    places = [DeviceRoom("cuda:0", "cuda", 100), DeviceRoom("cuda:1", "cuda", 50)]
    assert budgets([{"cuda:0": 30, "cuda:1": 20}, {"cuda:0": 40}], places) == [
        {"cuda:0": 45, "cuda:1": 50},
        {"cuda:0": 55},
    ]


def test_a_device_that_has_less_than_models_need_takes_nothing_from_them():
    assert budgets([{"cuda:0": 30}, {"cuda:0": 40}], [DeviceRoom("cuda:0", "cuda", 10)]) == [
        {"cuda:0": 30},
        {"cuda:0": 40},
    ]
