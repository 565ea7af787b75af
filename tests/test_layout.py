"""Every pane of the main screen has a place at every size, and none stands in another's."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.console.screens.layout import SHARED, Box, Wants, layout, reason_lines, tabs, too_small
from interlock.widgets.panes import PANES as KINDS

SIZES = [(80, 24), (120, 40), (200, 60), (60, 15)]
WANTS = st.builds(Wants, st.integers(1, 16), st.integers(1, 6))

PANES = tuple(kind.name for kind in KINDS)


def cells(box: Box) -> set[tuple[int, int]]:
    return set(itertools.product(range(box.x, box.x + box.width), range(box.y, box.y + box.height)))


@given(st.integers(40, 240), st.integers(10, 80), WANTS, st.sampled_from(PANES), st.booleans())
def test_panes_fill_the_space_between_header_and_footer_without_overlap(width, height, wants, chosen, zoomed):
    boxes = layout(width, height, wants, chosen, zoomed=zoomed)
    taken = [cells(box) for box in boxes.values()]
    assert sum(map(len, taken)) == len(set().union(*taken)) == width * (height - 2)
    assert all(0 < y < height - 1 for _, y in set().union(*taken))
    assert all(box.height >= 3 for box in boxes.values())
    assert chosen in boxes


@pytest.mark.parametrize("size", [(80, 24), (140, 45)])
def test_many_nodes_leave_room_for_the_other_panes(size):
    boxes = layout(*size, Wants(64, 3), "events", zoomed=False)
    assert boxes["vram"].height - 2 >= 5 and boxes["events"].height - 2 >= 2


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_every_pass_and_device_has_a_line_at_the_sizes_of_the_design(size, devices):
    boxes = layout(*size, Wants(devices, 3), "passes", zoomed=False)
    shown = {name: box.height - 2 for name, box in boxes.items()}
    lines = devices if devices <= 4 else (devices + 1) // 2
    assert shown["vram"] >= lines
    assert shown["passes"] >= 3
    if size[0] >= 80:
        assert shown["events"] >= 3
        assert shown["leases"] >= 3


def test_a_terminal_that_is_too_small_has_no_pane():
    assert layout(39, 9, Wants(1, 1), "events", zoomed=False) == {}
    assert too_small(39, 24)
    assert too_small(80, 9)
    assert not too_small(40, 10)


@given(st.integers(40, 240), st.integers(10, 80), WANTS, st.sampled_from(PANES), st.booleans())
def test_below_the_longest_reason_every_pane_that_stands_has_a_line(width, height, wants, chosen, zoomed):
    header = 1 + reason_lines(width, height, zoomed=zoomed)
    boxes = layout(width, height, wants, chosen, zoomed=zoomed, header=header)
    assert sum(len(cells(box)) for box in boxes.values()) == width * (height - header - 1)
    assert chosen in boxes and all(box.height > 0 for box in boxes.values())


def test_a_zoomed_pane_is_alone():
    assert layout(80, 24, Wants(2, 3), "leases", zoomed=True) == {"leases": Box(0, 1, 80, 22)}


@given(st.integers(100, 240), st.integers(30, 80), WANTS, st.sampled_from(PANES))
def test_from_100x30_all_panes_stand_together_and_from_160_columns_graphs_have_a_column(width, height, wants, chosen):
    boxes = layout(width, height, wants, chosen, zoomed=False)
    assert boxes.keys() == set(PANES) and not tabs(width, height)
    assert boxes["vram"].width == width and boxes["events"].x == 0 and boxes["events"].height >= 5
    assert boxes["leases"].y == boxes["mitigations"].y and boxes["passes"].y == boxes["cache"].y
    if width >= 160:
        graphs = boxes["cache"]
        assert (graphs.x + graphs.width, graphs.y + graphs.height) == (width, height - 1)
    else:
        assert boxes["events"].width == width


@given(st.integers(40, 99), st.integers(10, 29), WANTS, st.sampled_from(PANES), st.sampled_from(SHARED))
def test_of_panes_that_share_a_place_the_chosen_one_is_shown_or_whose_turn_it_is(width, height, wants, chosen, turn):
    boxes = layout(width, height, wants, chosen, zoomed=False, turn=turn)
    shared = [name for name in boxes if name in tabs(width, height)]
    assert len(shared) == 1
    if set(boxes) >= {"passes", "events"}:
        assert shared == [chosen if chosen in SHARED else turn]


@pytest.mark.parametrize("height", range(30, 81))
def test_whatever_the_other_panes_could_fill_events_keep_three_lines_and_devices_one_each_or_five(height):
    for devices, passes, leases, ladders in itertools.product(range(1, 17), (1, 3, 9), (1, 4, 12), (0, 3, 12)):
        boxes = layout(100, height, Wants(devices, passes, leases, ladders), "events", zoomed=False)
        assert boxes["events"].height >= 5
        assert boxes["vram"].height - 2 >= min(5, devices if devices <= 4 else (devices + 1) // 2)
        assert all(box.height >= 3 for box in boxes.values())
        lower = layout(100, height, Wants(devices, passes, leases, ladders), "events", zoomed=False, header=3)
        assert min(box.y for box in lower.values()) == 3 and all(box.height >= 3 for box in lower.values())
        assert sum(len(cells(box)) for box in lower.values()) == 100 * (height - 4)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_at_120_columns_every_device_has_a_gauge_and_two_lines_of_history(devices):
    lines = layout(120, 40, Wants(devices, 3), "events", zoomed=False)["vram"].height - 2
    assert lines >= 1 + 3 * (devices if devices <= 4 else (devices + 1) // 2)
