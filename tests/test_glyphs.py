"""Pictures and words of panes: their width, their signs, and that they show what there is."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interlock.widgets import formats as words
from interlock.widgets import glyphs
from interlock.widgets.text import kept, width_of


@given(
    total=st.integers(0, 10**12),
    sizes=st.tuples(*[st.integers(0, 2 * 10**12)] * 5),
    width=st.integers(0, 120),
    ascii=st.booleans(),
)
def test_a_gauge_has_its_width_for_any_sizes(total: int, sizes: tuple[int, ...], width: int, ascii: bool) -> None:
    weights, used, ceiling, peak, others = sizes
    spans = glyphs.gauge(
        width, total, weights=weights, used=used, ceiling=ceiling, peak=peak, others=others, ascii=ascii
    )
    assert sum(width_of(span.text) for span in spans) == width


@given(batches=st.integers(1, 400), width=st.integers(1, 120), data=st.data())
def test_a_cell_is_full_only_when_all_of_its_batches_are_committed(
    batches: int, width: int, data: st.DataObject
) -> None:
    cells = data.draw(st.lists(st.integers(0, batches - 1), unique=True))
    picture = glyphs.grid(cells, batches, width)
    assert len(picture) == width
    for place, sign in enumerate(picture):
        mine = {batch for batch in range(batches) if batch * width // batches == place} or {place * batches // width}
        if batches <= width:
            mine = {place * batches // width}
        done = len(mine & set(cells)) / len(mine)
        assert sign == glyphs.SHADES[0][0 if not done else 3 if done == 1 else 2 if done >= 0.5 else 1]


@given(values=st.lists(st.integers(0, 10**9), max_size=50), width=st.integers(0, 60), ascii=st.booleans())
def test_the_newest_value_is_at_the_right_and_only_zero_has_the_lowest_sign(
    values: list[int], width: int, ascii: bool
) -> None:
    line = glyphs.sparkline(values, width, ascii=ascii)
    assert len(line) == width
    levels = glyphs.LEVELS[ascii]
    for value, sign in zip(reversed(values), reversed(line), strict=False):
        assert (levels.index(sign) > 0) == (value > 0)


@pytest.mark.parametrize(
    ("names", "told"),
    [(["cuda:0"], "cuda:0"), (["cuda:1", "cuda:0"], "cuda:0,1"), (["cuda:0", "cuda:1", "cuda:2"], "cuda:0-2"),
     (["cuda:0", "cuda:2", "cuda:3"], "cuda:0,2,3"), (["cpu"], "cpu"), (["cuda:0", "cpu"], "cuda:0,cpu"), ([], "")],
)  # fmt: skip
def test_cards_named_together_share_their_prefix(names: list[str], told: str) -> None:
    assert words.devices_of(names) == told


@pytest.mark.parametrize(
    ("number", "told"), [(0, "0"), (3.25, "3.2"), (42.4, "42"), (9999, "9999"), (12_345, "12.3k"), (4_560_000, "4.6M")]
)
def test_a_count_is_told_in_thousands_and_millions(number: float, told: str) -> None:
    assert words.count(number) == told


@given(st.floats(0, 9e11))
@example(999_960)
@example(999_999_999)
def test_a_count_takes_six_cells_at_most(number: float) -> None:
    assert len(words.count(number)) <= 6


@given(
    fields=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=12),
    width=st.integers(0, 200),
    gap=st.integers(0, 3),
)
def test_kept_fields_fit_and_none_is_left_out_that_would(fields: list[tuple[int, int]], width: int, gap: int) -> None:
    sizes, ranks = [size for size, _ in fields], [rank for _, rank in fields]
    shown = kept(sizes, ranks, width, gap)
    taken = sum(sizes[place] + gap for place in shown)
    assert shown == sorted(shown) and taken <= width + gap
    assert all(taken + sizes[place] + gap > width + gap for place in range(len(fields)) if place not in shown)
