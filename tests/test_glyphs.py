"""Pictures and words of panes: their width, their signs, and that they show what there is."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interlock.engine.record.words import drawn as drawn_on_screens
from interlock.engine.record.words import duration
from interlock.widgets import formats as words
from interlock.widgets import glyphs
from interlock.widgets.text import Span, ascii_only, kept, width_of


@given(
    total=st.integers(0, 10**12),
    sizes=st.tuples(*[st.integers(0, 2 * 10**12)] * 6),
    width=st.integers(0, 120),
)
def test_a_gauge_has_its_width_for_any_sizes(total: int, sizes: tuple[int, ...], width: int) -> None:
    *parts, ceiling, peak = sizes
    spans = glyphs.gauge(width, total, glyphs.Parts(*parts), ceiling=ceiling, peak=peak)
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
        assert sign == glyphs.SHADES[0 if not done else 3 if done == 1 else 2 if done >= 0.5 else 1]


@given(values=st.lists(st.integers(0, 10**9), max_size=50), width=st.integers(0, 60))
def test_the_newest_value_is_at_the_right_and_only_zero_has_the_lowest_sign(values: list[int], width: int) -> None:
    line = glyphs.sparkline(values, width)
    assert len(line) == width
    levels = glyphs.LEVELS
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


def test_a_gauge_is_drawn_against_the_ceiling_with_the_rest_of_the_card_as_a_tail() -> None:
    spans = glyphs.gauge(50, 100, glyphs.Parts(20, 10, 10, 0), ceiling=40, peak=40)
    line = "".join(span.text for span in spans)
    assert line == "▇" * 22 + "▅" * 11 + "▃" * 11 + "│" + "╌" * 5
    half = "".join(s.text for s in glyphs.gauge(50, 100, glyphs.Parts(20, 0, 0, 70), ceiling=40, peak=20))
    assert half == "▇" * 22 + "▁" * 11 + "▒" * 11 + "│" + "▒" * 5


def test_cells_of_a_gauge_near_the_ceiling_have_the_colour_of_that() -> None:
    full = glyphs.gauge(111, 200, glyphs.Parts(99, 0, 0, 0), ceiling=100, peak=0)
    assert [span.style for span in full] == ["fill", "warn", "error", "rest", "limit", "rest"]
    calm = glyphs.gauge(111, 200, glyphs.Parts(60, 20, 0, 0), ceiling=100, peak=0)
    assert [span.style for span in calm] == ["fill", "work", "rest", "limit", "rest"]


@given(
    values=st.lists(st.integers(0, 10**9), max_size=200), width=st.integers(0, 60), height=st.integers(1, 9),
    top=st.integers(0, 10**9),
)  # fmt: skip
def test_a_graph_has_its_size_and_a_higher_value_is_never_lower(
    values: list[int], width: int, height: int, top: int
) -> None:
    lines = ["".join(span.text for span in row) for row in glyphs.graph(values, width, height, top=top)]
    assert [len(line) for line in lines] == [width] * height
    shown = values[-width:] if width else []
    signs = " " + glyphs.LEVELS
    heights = [sum(signs.index(line[width - len(shown) + place]) for line in lines) for place in range(len(shown))]
    assert all(high >= 1 for high in heights)
    ranked = sorted(zip(shown, heights, strict=True))
    assert [high for _, high in ranked] == sorted(heights)


@given(count=st.integers(1, 700), step=st.integers(1, 20), width=st.integers(1, 100))
def test_columns_of_a_graph_stay_as_they_are_and_only_move_on(count: int, step: int, width: int) -> None:
    def columns(told: int) -> list[float]:
        return glyphs.gathered(list(range(max(0, told - 600), told)), told, step, width)

    before, after = columns(count), columns(count + 1)
    assert len(after) <= width and after[-1] == count
    moved = count % step == 0
    full = before[1 : None if moved else -1]  # the first may have lost a value that is kept no longer
    assert full == [value for value in after if value in full]


@given(st.integers(0, 10**6), st.integers(1, 300))
def test_all_values_fit_on_a_graph_in_steps(count: int, width: int) -> None:
    step = glyphs.step_for(count, width)
    assert step * width >= count


@given(st.floats(1e-6, 1e12))
def test_a_scale_is_round_and_little_above_its_values(value: float) -> None:
    top = glyphs.rounded_up(value)
    assert value * (1 - 1e-6) <= top <= value * 2.6
    assert f"{top:e}"[0] in "125"


@given(st.integers(1, 200), st.integers(2, 40))
def test_a_pace_told_over_more_than_a_batch_is_never_nothing_while_batches_end(seconds: int, batch: int) -> None:
    """One batch every so many seconds, as a device commits them."""
    rows = [0] * (batch - 1) + ([64] + [0] * (batch - 1)) * (1 + seconds // batch)
    assert all(words.smoothed(rows, batch + 1)[batch:])
    assert words.recent(rows, batch + 1) > 0


def test_sizes_under_a_ceiling_below_one_gibibyte_are_told_in_mebibytes() -> None:
    assert (words.amount(500 << 20, 600 << 20), words.unit(600 << 20)) == ("500", "MiB")
    assert (words.amount(500 << 20, 2 << 30), words.unit(2 << 30)) == ("0.5", "GiB")


def test_sizes_of_many_devices_together_are_told_in_tebibytes() -> None:
    all_of_it = int(17229.8 * 2**30)
    assert (words.amount(900 << 30, all_of_it), words.amount(all_of_it, all_of_it)) == ("0.9", "16.8")
    assert (words.unit(all_of_it), words.unit((1 << 40) - 1), words.gib(1 << 40)) == ("TiB", "GiB", "1024.0")


@given(st.text())
def test_what_is_drawn_in_ascii_takes_as_many_cells(text: str) -> None:
    shown = drawn_on_screens(text)
    drawn = ascii_only(shown)
    assert drawn.isascii() and len(drawn) == width_of(shown)


def test_signs_that_stand_beside_one_another_differ_in_ascii_too() -> None:
    gauge = glyphs.WEIGHTS, glyphs.WORK, glyphs.CONTEXT, glyphs.OTHERS, glyphs.FREE, glyphs.CEILING, glyphs.PEAK
    for signs in (gauge, glyphs.LEVELS[:-1], glyphs.SHADES, "▁▇▲✖", "●○■▲✖◇▷"):
        drawn = ascii_only("".join(signs))
        assert "?" not in drawn and len(set(drawn)) == len(signs)


def chart(**more: object) -> list[list[Span]]:
    return glyphs.chart([1, 2, 3, 4], 4, 1, 10, 1, axis=4, ceiling=8, label=str, **more)  # type: ignore[arg-type]


def test_a_graph_ends_where_nothing_was_heard_any_more() -> None:
    whole, ended = ("".join(span.text for span in chart(silent=silent)[0]) for silent in (0, 3))
    assert whole[-4:].strip() and len(whole) == len(ended) == 14
    assert ended.endswith("   ") and ended[-7:-3] == whole[-4:]


def test_a_value_has_the_colour_of_its_share_of_what_there_was_to_have() -> None:
    def styles(**more: object) -> list[str]:
        return [span.style for span in chart(**more)[0][1:] if span.text.strip() for _ in span.text.strip()]

    assert styles() == ["fill"] * 4
    assert styles(shares=[0.1, 0.1, 0.92, 0.99]) == ["fill", "fill", "warn", "error"]


@given(st.integers(3, 120), st.integers(1, 120), st.sampled_from([1, 5, 60]))
def test_below_a_graph_its_first_column_is_dated(width: int, columns: int, seconds: int) -> None:
    text = glyphs.ages(width, min(columns, width), seconds)
    assert len(text) == width and text.endswith("now")
    if min(columns, width) > 9 and "-" in text:
        assert text.index("-") == width - min(columns, width)
        assert text.split()[0] == f"-{duration(min(columns, width) * seconds)}"
