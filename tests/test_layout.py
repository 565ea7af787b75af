"""Every pane of the main screen has a place at every size, and none stands in another's."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.console.screens.layout import Box, Wants, layout, too_small
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


def test_a_zoomed_pane_is_alone():
    assert layout(80, 24, Wants(2, 3), "leases", zoomed=True) == {"leases": Box(0, 1, 80, 22)}


@given(st.integers(120, 240), st.integers(24, 80), WANTS, st.sampled_from(PANES))
def test_from_120_columns_the_gauges_have_the_whole_width_and_from_160_graphs_a_column(width, height, wants, chosen):
    boxes = layout(width, height, wants, chosen, zoomed=False)
    assert boxes["vram"].width == width
    assert boxes["passes"].y == min(box.y for name, box in boxes.items() if name != "vram")
    assert boxes["events"].x == 0
    if width >= 160:
        assert set(boxes) >= {"vram", "passes", "events", "cache", chosen}
        graphs = boxes["cache"]
        assert (graphs.x + graphs.width, graphs.y + graphs.height) == (width, height - 1)
        assert graphs.height > boxes["events"].height
    else:
        assert boxes["events"].width == width


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_at_120_columns_every_device_has_a_gauge_and_two_lines_of_history(devices):
    lines = layout(120, 40, Wants(devices, 3), "events", zoomed=False)["vram"].height - 2
    assert lines >= 1 + 3 * (devices if devices <= 4 else (devices + 1) // 2)
