"""Panes: what they say of a run, and that no size of the terminal and no name of a model breaks them."""

import dataclasses
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from textual.app import App, ComposeResult

from interlock.engine.record import events as ev
from interlock.engine.record.facts import Memory, Readings
from interlock.engine.record.fold import fold
from interlock.engine.record.snapshot import GONE, PassCells, Snapshot, cells_of
from interlock.engine.record.snapshot import snapshot as snapshot_of
from interlock.engine.record.state import Course, Pace, RunState
from interlock.engine.record.words import duration
from interlock.engine.standing.health import Concern, Health, Remedy
from interlock.engine.standing.judgement import Attention, Judgement, judge
from interlock.engine.standing.outlook import time_left
from interlock.widgets import cluster, gauges, glyphs, header
from interlock.widgets import formats as words
from interlock.widgets.pane import Pane, PaneKind, RunPane, View
from interlock.widgets.panes import PANES as REGISTERED
from interlock.widgets.panes import cache, leases, passes, vram
from interlock.widgets.text import Row, plain, width_of
from tests.snapshots import GIB, MIB, did, drawn, on_nodes, one_device, one_lease, one_pass, sample

Draw = Callable[..., list[Row]]


def _of_kind(kind: PaneKind, snapshot: Snapshot, width: int, height: int, **view: Any) -> list[Row]:
    assert kind.rows
    return kind.rows(View(snapshot, width, height, shown=("cache",), **view))


def _now(snapshot: Snapshot) -> Judgement:
    return judge(snapshot, snapshot.latest_at)


def _head(snapshot: Snapshot, width: int, **more: Any) -> list[Row]:
    return header.rows(snapshot, width, _now(snapshot), **more)


def some_cells() -> PassCells:
    """Five batches that are committed, the second after a mitigation, the third with a parked row."""
    batches = {
        index: ev.BatchCommitted(
            model_pass=1, batch_index=index, device=f"cuda:{index % 2}", rows=24, tokens=2000, padding=0,
            seconds=0.25 * index, crc=0,
        )
        for index in range(1, 6)
    }  # fmt: skip
    return PassCells(batches, {2: 3}, {3: 1})


def every_cell(_: int) -> PassCells:
    return some_cells()


PANES: dict[str, Draw] = {
    "header": lambda snapshot, width, _: _head(snapshot, width),
    "one line": lambda snapshot, width, _: _head(snapshot, width, lines=0),
    "passes and cache": partial(drawn, passes, shown=()),
    "cache line": lambda snapshot, width, _: [cache.line(snapshot, width)],
    **{
        kind.name + " in detail" * zoomed: partial(_of_kind, kind, zoomed=zoomed, cells=every_cell)
        for kind in REGISTERED if kind.rows for zoomed in (False, True)
    },
}  # fmt: skip
SCROLLS = ("header", "leases", "passes in detail", "leases in detail")
PHASES = ("starting", "resolving", "reading", "planning", "running", "delivering", "completed", "incomplete", "failed")
HOSTILE = (
    "[/]",
    "[bold red]x[/bold red]",
    "\x1b[2J\x1b]0;gone\x07",
    "\u202egnp.exe",
    "漢字かな交じり文" * 5,
    "👩‍👩‍👧 🇩🇪 ❤️",
    "x" * 10_000,
    "e\u0301\u0301\u0301",
    "tab\tnew\nline\r",
    "",
)
names = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=60))
widths = st.integers(1, 220)
heights = st.integers(1, 40)


@st.composite
def snapshots(draw: Any) -> Snapshot:
    """Any number of devices and passes, in any state, with any names."""
    name, reason = draw(names), draw(names)
    kind = draw(st.sampled_from(("cuda", "cpu", "sim", "scripted")))
    found = sample(
        draw(st.sampled_from((1, 2, 4, 8, 16))),
        draw(st.integers(1, 14)),
        at=draw(st.floats(0, 14)),
        kind=kind,
        phase=draw(st.sampled_from(PHASES)),
        batches=draw(st.sampled_from((1, 7, 512))),
        names=(name, "all-mpnet-base-v2"),
        lost=draw(st.sampled_from(((), (0,), (0, 1)))),
        mitigations=draw(st.sampled_from((0, 3, 123_456))),
        parked=draw(st.sampled_from((0, 98_765))),
        seconds=draw(st.sampled_from((0.0, 252.0, 1e6))),
        reason=reason,
        collection=draw(names),
        schedule=draw(st.sampled_from(("exclusive", "rotating", "shared"))),
    )
    first = (
        tuple(replace(each, failure=reason, word="failed") for each in found.passes[:1]) if draw(st.booleans()) else ()
    )
    devices = tuple(
        replace(each, lost=each.lost and reason, facts=replace(each.facts, label=name, name=draw(names)))
        if draw(st.integers(0, 3)) == 0
        else each
        for each in found.devices
    )
    return replace(
        found,
        passes=first + found.passes[len(first) :],
        devices=devices,
        collections=tuple(replace(each, name=name, reason=reason) for each in found.collections),
    )


@settings(max_examples=150, deadline=None)
@given(snapshot=snapshots(), width=widths, height=heights)
def test_every_row_fills_its_pane_and_steers_nothing_whatever_the_names(
    snapshot: Snapshot, width: int, height: int
) -> None:
    for name, draw in PANES.items():
        made = plain(draw(snapshot, width, height))
        assert made, name
        assert name in SCROLLS or len(made) <= height, name
        for line in made:
            assert width_of(line) == width, (name, line)
            assert not any(ord(sign) < 32 or sign in "\x7f\x1b\u202e\u200d" for sign in line), (name, line)


@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("kind", ["sim", "scripted"])
def test_a_narrow_header_still_says_that_a_run_is_not_real(width: int, kind: str) -> None:
    snapshot = sample(kind=kind, phase="incomplete", reason="two rows have no vector")
    asked = {"schedule": "shared", "cpu_fallback": "no"}
    line = _text(_head(snapshot, width, pending=asked, frozen=True, dropped=99_999))
    state = "INCOMPLETE  two rows have no vector", {"sim": "SIMULATED", "scripted": "SCRIPTED"}[kind], "46%", "FROZEN"
    for word in (*state, "side by side*", *["no CPU fallback*"] * (width > 80)):
        assert word in line, line


@pytest.mark.parametrize(
    ("phase", "word"),
    [("starting", "STARTING"), ("reading", "READING"), ("running", "RUN"), ("delivering", "DELIVERING"),
     ("completed", "DONE"), ("failed", "FAILED"), ("stopped", "STOPPED"), ("incomplete", "INCOMPLETE")],
)  # fmt: skip
def test_the_word_of_a_phase_comes_first_without_colour(phase: str, word: str) -> None:
    run = sample(phase=phase, parked=0)
    for line in (_head(run, 80), _head(run, 20, lines=0)):
        assert _text(line).split()[1] == word
    parked = _text(_head(sample(phase=phase, parked=1), 80))
    assert parked.startswith(" ▲ TEXT PARKED") is (phase in ("running", "delivering"))


def test_a_requested_control_has_a_star_and_a_word() -> None:
    snapshot = sample()
    assert (
        _text(_head(snapshot, 80, pending={"schedule": "exclusive"})).splitlines()[0].split("  ")[-1].strip()
        == "one at a time*"
    )
    assert "one at a time" not in _text(_head(snapshot, 200)) and "CPU" not in _text(_head(snapshot, 200))
    assert _text(_head(snapshot, 80, pending={"pause": "yes"})).startswith(" ■ PAUSING")
    paused = replace(snapshot, paused=True)
    assert _text(_head(paused, 80)).startswith(" ■ PAUSED")
    assert "eta" not in _text(_head(paused, 120))
    assert _text(_head(paused, 80, pending={"pause": "no"})).startswith(" ▲ RESUMING")
    assert _text(_head(snapshot, 80, pending={"stop": "yes"})).startswith(" ▲ STOPPING")
    gone = replace(snapshot, phase=GONE)
    assert "RUN PROCESS DIED" in _text(_head(gone, 80, pending={"stop": "yes", "pause": "yes"}, source_kind="watch"))


def test_a_wide_header_says_everything_it_knows() -> None:
    line = _text(_head(sample(collection="RFCs"), 210, source_kind="watch", stale=65.0, dropped=12))
    for word in ("▲ TEXT PARKED", "watching", "46%", "pass 2/3", "all-mpnet-base-v2", "batch 209/512", "RFCs",
                 "elapsed 4:12", "eta 3:23", "texts/s", "STALE 1:05", "dropped 12"):  # fmt: skip
        assert word in line, word


def test_what_went_wrong_is_named_in_a_wide_header_and_counted_in_a_narrow_one_unless_the_reason_tells_it() -> None:
    fresh = Attention(parked=1, warnings=2, mitigations=9)
    for width, phase, told in (
        (120, "stopped", [("1 text parked", "warn"), ("2 warnings", "warn")]),
        (40, "stopped", [("1 text parked", "warn"), ("!2", "warn")]),
        (80, "incomplete", [("2 warnings", "warn")]),
        (120, "running", [("2 warnings", "warn")]),
    ):
        spans = _head(sample(phase=phase), width, fresh=fresh)[0]
        assert [tuple(span) for span in spans if span in told] == told
        assert "mitigation" not in _text([spans])  # which were answered
        assert (("1 text parked", "warn") in spans) == (phase == "stopped")
    assert "!" not in _text(_head(sample(), 80))


def test_a_warning_is_named_where_there_is_room_and_else_the_keys_that_show_it_are() -> None:
    one = Attention(warnings=1)
    for width, told in ((200, "1 warning (type /!)  latest: the index is old"), (80, "1 warning (/!)"), (40, "!1")):
        line = _text(_head(sample(), width, fresh=one, find="/!", warned="the index is old")).splitlines()[0]
        assert line.rstrip().endswith(told)
    calm = dataclasses.replace(_now(sample(parked=0)), health=Health("RUN", "ok", "2 inputs left out"))
    for fresh in (one, Attention()):
        said = _text(header.rows(sample(parked=0), 120, calm, fresh=fresh))
        assert ("all is well" in said) is (fresh is not one)


@pytest.mark.parametrize(("word", "level"), [("LOW DISK", "warn"), ("INCOMPLETE", "error"), ("STOPPED", "warn")])
def test_what_a_state_asks_has_the_colour_of_the_state(word: str, level: str) -> None:
    health = Health(word, level, "why")
    row = header.rows(sample(), 120, dataclasses.replace(_now(sample()), health=health), stale=65.0)[0]
    loud = {"hit"} if health.asks == "act now" else {level}
    assert {level} == {style for text, style in row if text.endswith(word)}
    assert loud == {style for text, style in row if text == health.asks}
    assert ("STALE 1:05", "warn") in row


def test_what_a_state_asks_stands_before_its_reason_where_the_first_line_is_full() -> None:
    more = {"fresh": Attention(warnings=1), "find": "/!", "pending": {"schedule": "shared"}}
    first, below = plain(_head(sample(kind="sim"), 80, **more))
    assert "side by side*" in first and below.strip() == "nothing to do now: 1 text parked, no vector"
    (whole,) = plain(_head(sample(kind="sim"), 160, **more))
    assert "  1 text parked, no vector  nothing to do now  " in whole


def test_vectors_that_are_new_are_those_that_there_are() -> None:
    for lacking, before, told in ((0, 0, "240 of 240 new"), (3, 0, "237 of 240 new"), (3, 240, "237 kept, 0 of 3 new")):
        each = one_pass(0, done=10, batches=10, parked=lacking, reused=0)
        run = replace(sample(), passes=(each,), rows_before=before)
        assert told in _text(drawn(cache, run, 80, 9))


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_the_past_says_so_and_when_at_every_width_and_that_it_is_simulated(width: int) -> None:
    for snapshot in (sample(kind="sim"), sample(kind="sim", phase="incomplete", reason="why " * 30)):
        line = _text(_head(snapshot, width, source_kind="watch", where="1:02:11 of 9:00:00, paused"))
        assert line.startswith((" ▲ TEXT PARKED  ", " ✖ INCOMPLETE  past")) and "  past  " in line
        assert "at 1:02:11" in line and "elapsed" not in line
        assert "SIMULATED" in line or width < 60
    assert width < 120 or "of 9:00:00, paused" in _text(
        _head(sample(), width, source_kind="watch", where="0:01 of 9:00:00, paused")
    )


REASON = "cuda:1: others hold 13.3 GiB (pid 4711 maria), 96.2 MiB free: next batch needs 130.6 MiB; --resume goes on"


@pytest.mark.parametrize(("width", "lines"), [(60, 3), (80, 3), (100, 3), (120, 5), (200, 7)])
def test_the_reason_of_a_state_is_never_cut_and_what_else_there_is_to_know_stays(width: int, lines: int) -> None:
    judged = dataclasses.replace(_now(sample()), health=Health("CROWDED", "warn", REASON))
    made = plain(header.rows(sample(), width, judged, lines=lines))
    assert REASON in " ".join(" ".join(made).split()) and "eta" in made[0]
    assert len(made) <= lines + 1
    short = plain(header.rows(sample(), width, judged, lines=1))
    assert len(short) == 2 and ("…" in short[1]) is (len(REASON) > width - 4)
    assert short[1].strip().startswith("cuda:1: others") and short[1].strip().endswith("; --resume goes on")


def test_a_command_that_goes_on_stands_on_a_line_of_its_own_where_it_fits() -> None:
    onward = "interlock run Docs --out runs --run-id 20260901-080000 --resume"
    state = Health("STOPPED", "warn", "by kim", concerns=(Concern("by kim", Remedy("continue it with", onward)),))
    run = sample(phase="stopped")
    judged = dataclasses.replace(_now(run), health=state)
    assert plain(header.rows(run, 80, judged, lines=3))[1:] == [
        f"   {text}".ljust(80) for text in ("by kim; continue it with", onward)
    ]
    told = " ".join(" ".join(plain(header.rows(run, 50, judged, lines=4))).split())
    assert told.endswith(f"continue it with {onward}")
    (_, alone) = plain(header.rows(sample(), 50, judged, lines=4))  # while it goes on, a small screen has its panes
    assert alone.strip() == "by kim"


def test_bars_under_one_another_have_one_scale_whatever_is_known_of_one_device() -> None:
    run = sample(2)
    first, second = run.devices
    used = Readings(used=first.memory.occupied + 2 * GIB, total=first.facts.total_bytes, others=2 * GIB)
    crowded = replace(run, devices=(replace(first, readings=used), second))
    told = [plain(drawn(vram, crowded, width, 2)) for width in (78, 90, 100, 130, 198)]
    assert any("others" in above and "others" not in below for above, below in told)
    assert all(above.index(" GiB") == below.index(" GiB") for above, below in told)


def test_a_run_that_is_watched_or_replayed_never_looks_live() -> None:
    for kind, sign in (("watch", "◇"), ("replay", "▷")):
        for width in (40, 80, 200):
            word = kind if kind == "replay" or width == 40 else "watching"
            row = _head(sample(parked=0), width, source_kind=kind)[0]
            assert row[1] == (f"{sign} RUN", "accent") and (word, "dim") in row
            lossy = _head(sample(lost=(1,), parked=0), width, source_kind=kind)[0]
            assert lossy[1] == ("▲ DEGRADED", "warn") and (word, "dim") in lossy
            over = _head(sample(phase="completed"), width, source_kind=kind)[0]
            assert ((word, "dim") in over) is (kind == "replay")  # one that is over goes on nowhere
        assert kind in _text(_head(sample(), 39, lines=0, source_kind=kind))
    stopping = _head(sample(), 39, lines=0, source_kind="watch", pending={"stop": "yes"})
    assert _text(stopping).startswith(" ▲ STOPPING  watch")
    paused = _head(replace(sample(parked=0), paused=True), 80, source_kind="replay")
    assert _text(paused).startswith(" ■ PAUSED  replay")


def test_the_header_counts_down_to_a_deadline_and_warns_where_the_run_will_not_be_done_by_then():
    snapshot = sample(kind="cuda")
    left = time_left(snapshot)
    assert left
    for seconds, style in ((left.seconds + 100, ""), (left.seconds - 1, "warn")):
        row, *_ = header.rows(replace(snapshot, deadline=snapshot.latest_at + seconds), 240, _now(snapshot))
        (told,) = [span for span in row if "deadline" in span.text]
        assert told.text.strip() == f"deadline in {duration(seconds)}"
        assert told.style == style
    over = replace(snapshot, deadline=snapshot.latest_at + 5, phase="stopped", exit_code=4)
    assert not any("deadline" in _text(_head(each, 240)) for each in (snapshot, over))


def test_nothing_is_called_stale_while_events_keep_coming() -> None:
    assert "STALE" not in _text(_head(sample(), 200, stale=5.0))
    assert "STALE" not in _text(_head(sample(phase="completed"), 200, stale=500.0))


def test_nothing_says_100_percent_before_the_last_batch() -> None:
    snapshot = sample(1, 1, at=0.9999, batches=20_000)
    assert "100%" not in _text(_head(snapshot, 200)) + _text(drawn(passes, snapshot, 200, 5))


@pytest.mark.parametrize(
    ("devices", "height", "lines"), [(1, 2, 2), (2, 2, 2), (2, 4, 4), (4, 4, 4), (8, 4, 4), (12, 5, 5)]
)
def test_many_devices_are_paired_and_then_only_the_worst_are_shown(devices: int, height: int, lines: int) -> None:
    made = plain(drawn(vram, sample(devices), 78, height))
    assert len(made) == lines
    shown = [number for number in range(devices) if f"cuda:{number} " in "\n".join(made)]
    assert shown == (list(range(devices)) if devices <= 8 else [8, 9, 10, 11])
    assert devices <= 8 or made[-1].startswith("and 8 more, none above")


def test_a_lost_device_is_always_shown_with_its_reason() -> None:
    made = plain(drawn(vram, sample(16, lost=(2,)), 78, 4))
    assert "LOST" in made[0] and "illegal memory access" in made[0]
    assert "1 LOST" in plain(drawn(vram, sample(16, lost=(2, 3)), 78, 2))[-1]


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.integers(1, 70), gpus=st.integers(1, 8), lost=st.sets(st.integers(1, 70)), width=widths, height=heights,
    opened=st.frozensets(st.sampled_from(("node-1", "node-2"))), detail=st.booleans(),
)  # fmt: skip
def test_any_number_of_nodes_fills_the_pane_the_lost_first(nodes, gpus, lost, width, height, opened, detail):
    run = on_nodes(nodes, gpus, lost=sorted(lost))
    made = plain(drawn(vram, run, width, height, zoomed=detail, opened=opened, chosen="node-2/cuda:0"))
    assert 1 <= len(made) <= height and all(width_of(line) == width for line in made)
    worst = [line.lost for line in cluster.lines(run.devices, opened) if not line.device]
    assert worst == sorted(worst, reverse=True) and len(worst) == nodes
    seen = [line.lost for line in cluster.lines(run.devices, height=height)][:height]
    assert seen[0] is worst[0] and (height < 2 or all(worst) or not all(seen))


def test_nodes_whose_devices_fit_are_not_folded_and_those_of_one_machine_never_are() -> None:
    assert [line.split()[0] for line in plain(drawn(vram, on_nodes(2), 78, 4))] == [
        "node-1/cuda:0", "node-1/cuda:1", "node-2/cuda:0", "node-2/cuda:1",
    ]  # fmt: skip
    assert not vram.folds(sample(16).devices, 78, 4) and not vram.folds(on_nodes(1, 16).devices, 78, 4)
    assert vram.folds(on_nodes(8).devices, 78, 4)


def test_a_folded_node_tells_of_its_fullest_device_and_an_unfolded_one_of_all() -> None:
    run = on_nodes(8, lost=(3,))
    folded = plain(drawn(vram, run, 78, 4))
    assert folded[0].startswith(" ▶ node-3  2 GPUs LOST no answer for 30 s")
    assert folded[1].startswith(" ▶ node-8  2 GPUs cuda:1 ") and " 9.6 of 12.0 GiB  79%" in folded[1]
    assert folded[3].startswith("and 5 more nodes, none above 67%")
    opened = plain(drawn(vram, run, 78, 5, opened=frozenset({"node-8"}), chosen="node-8/cuda:0", focused=True))
    assert [line[:24].split() for line in opened[1:4]] == [
        ["▼", "node-8", "2", "GPUs", "cuda:1"], ["▸", "cuda:0"], ["cuda:1"],
    ]  # fmt: skip
    assert "1 LOST" in plain(drawn(vram, run, 78, 3, chosen="node-1"))[-1]


def test_a_node_that_lacks_a_device_stands_before_the_whole_ones_and_says_so() -> None:
    run = on_nodes(8)
    devices = [replace(each, lost="gone" * (each.facts.name == "node-2/cuda:1")) for each in run.devices]
    line = plain(drawn(vram, replace(run, devices=tuple(devices)), 78, 4))[0]
    assert line.startswith(" ▶ node-2  1 of 2 GPUs cuda:0 ")


@pytest.mark.parametrize(
    ("names", "told"),
    [(["cuda:0", "cuda:1"], "cuda:0,1"), (["cpu"], "cpu"), (["node-1/cuda:0", "node-1/cuda:1"], "node-1/cuda:0,1"),
     ([f"node-12/cuda:{card}" for card in range(8)], "node-12/cuda:0-7"),
     (["node-1/cuda:0", "node-2/cuda:0"], "node-1/cuda:0 node-2/cuda:0"), (["node-1/cpu"], "node-1/cpu"),
     ([f"node-{node}/cuda:{card}" for node in (1, 2) for card in (0, 1)], "4 GPUs on 2 nodes"),
     ([f"node-{node}/{name}" for node in range(1, 4) for name in ("cuda:0", "cpu")], "3 GPUs, 3 CPUs on 3 nodes")],
)  # fmt: skip
def test_devices_are_named_where_that_is_short_and_counted_on_many_nodes(names, told) -> None:
    assert words.devices_of(names) == told


@pytest.mark.parametrize("kind", ["watch", "replay", "live"])
def test_a_header_never_says_how_far_the_end_may_be_off_without_the_end(kind) -> None:
    for width in range(60, 160):
        line = _text(_head(sample(kind="sim"), width, source_kind=kind, fresh=Attention(parked=1, mitigations=26)))
        assert "±" not in line or "eta" in line


def test_the_header_counts_nodes_and_a_toggle_waits_for_all_of_them() -> None:
    run = on_nodes(3, lost=(2,))
    assert "2 of 3 nodes" in _text(_head(run, 160)) and "1 node lost" in _text(_head(run, 80))
    assert "3 nodes" in _text(_head(on_nodes(3), 120)) and "node" not in _text(_head(sample(), 200))
    waits = replace(run, schedule="shared")
    assert "side by side*" in _text(_head(waits, 140))
    heard = tuple(replace(node, reached={"schedule": "shared"}) for node in run.nodes)
    assert "side by side " in _text(_head(replace(waits, nodes=heard), 140))


def test_a_pass_in_detail_tells_how_fast_its_nodes_are_the_slowest_first() -> None:
    cells = some_cells()
    moved = {
        index: replace(batch, device=f"node-{index}/cuda:0,node-{index}/cuda:1")
        for index, batch in cells.committed.items()
    }
    made = plain(
        drawn(passes, on_nodes(5), 160, 20, zoomed=True, chosen="1", cells=lambda _: replace(cells, committed=moved))
    )
    assert made[3].rstrip().endswith("5 of 512 batches, median 0.75 s, longest 1.25 s")
    assert made[4].startswith("5 nodes: node-5 1 at 1600 tokens/s, node-4 1 at 2000 tokens/s, node-3 1 at 2667")
    assert made[4].rstrip().endswith("and 1 faster")


async def test_enter_unfolds_a_node_arrows_move_and_leaving_goes_back_to_the_worst() -> None:
    app = _Screen(RunPane(vram.PANE))
    async with app.run_test(size=(80, 8)) as pilot:
        pane: Any = app.pane
        pane.draw(View(on_nodes(8, lost=(3,))))
        pane.focus()
        await pilot.pause()

        def lines() -> list[str]:
            return ["".join(segment.text for segment in pane.render_line(y)).rstrip() for y in range(6)]

        assert lines()[0].startswith("▸▶ node-3")
        await pilot.press("down", "enter")
        assert [line[:11] for line in lines()[1:4]] == ["▸▼ node-8  ", " " * 11, " " * 11]
        await pilot.press("down", "down")
        assert any(line.startswith("▸  ") and "cuda:1" in line for line in lines())
        await pilot.press("left")
        assert "▸▶ node-8" in "\n".join(lines())
        await pilot.press(*["down"] * 9, "right")
        assert any(line.startswith("▸▼ node-1") for line in lines())
        await pilot.click(pane, offset=(5, 2))
        assert any(line.startswith("▸") for line in lines())
        pane.blur()
        await pilot.pause()
        assert lines()[0].startswith(" ▶ node-3")


def test_weights_work_ceiling_and_peak_have_their_own_signs() -> None:
    device = one_device(0, weights=3 * GIB, work=3 * GIB, peak=10 * GIB)
    line = _text(drawn(vram, replace(sample(1), devices=(device,)), 78, 1))
    for signs in (glyphs.WEIGHTS, glyphs.WORK, glyphs.FREE, glyphs.CEILING, glyphs.PEAK):
        assert signs in line
    assert "6.3 of 12.0 GiB" in line and "52%" in line and "^10.0" in line


def test_the_second_line_of_a_device_breaks_its_memory_down() -> None:
    made = plain(drawn(vram, sample(2), 78, 4))
    assert "weights  3.1  ▅ act  6.2  free  2.4  ^11.5  62C" in made[3] and "12.0 GiB┤" in made[3]
    assert made[3].rstrip()[-1] in glyphs.LEVELS


def test_a_strip_has_a_graph_below_each_gauge_with_labels_of_bytes_and_time() -> None:
    made = plain(drawn(vram, sample(2), 118, 7))
    assert [line.split()[0] for line in (made[0], made[3])] == ["cuda:0", "cuda:1"]
    assert "12.0 GiB┤" in made[1] and " 0┤" in made[2]
    assert "▇ weights  3.1" in made[1] and "▅ act  0.8" in made[1]
    assert made[6].split()[0].startswith("-") and made[6].endswith("now")
    assert all(line.rstrip()[-1] in glyphs.LEVELS for line in (made[2], made[5]))


@pytest.mark.parametrize(("columns", "lines"), [(198, 1), (118, 4)])
def test_what_slows_a_clock_down_is_amber_and_stays_longer_than_what_is_well(columns: int, lines: int) -> None:
    device = one_device(0, weights=GIB, work=GIB)
    device = replace(device, readings=replace(device.readings, throttled="heat"))
    found = drawn(vram, replace(sample(1), devices=(device,)), columns, lines)
    assert "warn" in [span.style for row in found for span in row if span.text.strip() == "▲ slowed: heat"]


@pytest.mark.parametrize(("share", "style"), [(0.505, ""), (0.915, "warn"), (0.985, "error")])
def test_a_device_near_its_ceiling_says_so_by_colour_and_sign(share: float, style: str) -> None:
    used = int(12 * GIB * share)
    device = one_device(0, weights=used - 300 * MIB, work=0, peak=used)
    (row,) = drawn(vram, replace(sample(1), devices=(device,)), 78, 1)
    percent = next(span for span in row if "%" in span.text)
    assert percent == (f"{int(share * 100):>3}%{gauges.SIGNS[style]}", style)
    assert (style in {span.style for span in row if span.text[0] in "▇#▃+"}) == bool(style)


def test_a_small_ceiling_is_told_in_mebibytes_and_has_a_bar_of_full_length() -> None:
    device = one_device(0, weights=200 * MIB, work=40 * MIB, ceiling=600 * MIB, peak=560 * MIB)
    line = _text(drawn(vram, replace(sample(1), devices=(device,)), 118, 1))
    assert " 540 of 600 MiB  90%▲" in line
    before, _, _ = line.partition(glyphs.CEILING)
    assert before.count("▇") + before.count("▅") + before.count("▃") > 0.85 * (len(before) - len("cuda:0 Tesla T4 "))


def test_figures_of_a_device_stay_in_their_columns_whatever_they_are() -> None:
    ends = set()
    for used in (5 * MIB, GIB, 9 * GIB, int(11.9 * GIB)):
        device = one_device(0, weights=used, work=0, peak=12 * GIB)
        lines = plain(drawn(vram, replace(sample(1), devices=(device,)), 118, 4))
        ends.add((lines[0].index(" of "), lines[0].index("%"), lines[1].index("act")))
    assert len(ends) == 1


@pytest.mark.parametrize("width", [98, 58, 74])
def test_a_name_of_twenty_letters_is_whole_from_100_columns_on(width: int) -> None:
    name = "jina-code-embeddings"
    snapshot = sample(names=(name, name, name))
    assert all(name in line for line in plain(drawn(passes, snapshot, width, 3)))
    assert all(name in line for line in plain(drawn(leases, snapshot, width, 5))[1:3])


def test_a_high_pane_of_the_cache_draws_graphs_with_scales_and_times() -> None:
    made = plain(drawn(cache, sample(), 48, 40))
    text = "\n".join(made)
    for words_of in ("texts/s", "tokens/s", "occupied", "warmest", "busy", "of 24.0 GiB", "now", "models", "chunks"):
        assert words_of in text


def test_the_memory_of_the_host_is_this_process_of_what_others_leave_it() -> None:
    device = one_device(0, name="cpu", kind="cpu", weights=GIB, work=GIB, total=32 * GIB, ceiling=32 * GIB)
    line = _text(drawn(vram, replace(sample(1, kind="cpu"), devices=(device,)), 78, 1))
    assert line.startswith("cpu host") and "2.3 of 31.8 GiB" in line
    assert glyphs.CEILING not in line


def test_a_device_before_its_first_reading_says_what_may_be_used() -> None:
    silent = replace(sample(1), devices=(one_device(0, memory=None),))
    assert "12.0/14.7 GiB, no reading yet" in _text(drawn(vram, silent, 78, 1))


def test_drawing_ten_thousand_batches_again_takes_no_time() -> None:
    view = one_pass(1, done=9_999, batches=10_000)
    snapshot = sample(passes=1, batches=10_000, at=0.9999)
    drawn(passes, snapshot, 198, 10)
    began = time.process_time()
    for _ in range(20):
        drawn(passes, replace(snapshot, passes=(replace(view, cells=(*view.cells,)),)), 198, 10)
    assert (time.process_time() - began) / 20 < 0.02


def test_every_state_of_a_pass_has_its_word_without_colour() -> None:
    snapshot = sample(passes=2)
    words_of = ("queued", "running", "waiting", "done", "reused")
    made = tuple(one_pass(number, done=3, batches=9, word=word) for number, word in enumerate(words_of))
    failed = one_pass(5, done=3, batches=9, word="failed", failure="out of memory at one row")
    for width in (58, 78, 118):
        lines = plain(drawn(passes, replace(snapshot, passes=(*made, failed), collections=()), width, 9))
        assert [word for word, line in zip(words_of, lines, strict=False) if word in line] == list(words_of)
        assert "failed at 33% 3/9: out of memory" in " ".join(lines[5].split())


def test_the_bar_of_a_pass_keeps_its_length_while_its_batches_are_done() -> None:
    ends = set()
    for done in (1, 9, 10, 99, 100, 511):
        view = did(one_pass(0, done=done, batches=512), seconds=0.0)
        ends.add(plain(drawn(passes, replace(sample(passes=1), passes=(view,)), 78, 1))[0].index("%"))
    assert len(ends) == 1


def test_parked_rows_fit_80_columns_and_mitigations_that_were_taken_are_no_alarm() -> None:
    rows = drawn(passes, sample(), 78, 4, shown=())
    made = plain(rows)
    assert "1 text parked" in made[1] and "left" in made[1] and "209/512" in made[1]
    assert "texts/s" in made[3] and "3072 vectors reused" in made[3] and "1 text parked" in made[3]
    alarms = {
        (span.text, span.style)
        for row in rows
        for span in row
        if "!" in span.text or (span.style == "warn" and span.text.strip())
    }
    assert sample().mitigations and alarms == {("1 text parked", "warn")}  # which may yet get its vector
    over = drawn(passes, sample(phase="incomplete"), 78, 4, shown=())
    assert ("1 text parked", "error") in [tuple(span) for row in over for span in row]


def test_a_pass_that_the_host_computes_beside_gpus_says_so() -> None:
    now = sample(2, schedule="shared")
    pairs = zip(now.passes, ("cpu", "cuda:0"), strict=False)
    held = [replace(each, word="running", at_work=(at,)) for each, at in pairs]
    host, gpu = plain(drawn(passes, replace(now, passes=tuple(held)), 100, 10))[:2]
    assert "on CPU" in host and "running" not in host and "running" in gpu


def test_the_pass_at_work_is_shown_and_the_others_are_counted() -> None:
    made = plain(drawn(passes, sample(2, 12, at=5.3), 78, 4))
    assert any("running" in line for line in made)
    assert made[-1].startswith("and 9 more: 4 done, 5 queued")
    assert "running" in plain(drawn(passes, sample(2, 12, at=5.3), 78, 1))[0]


def test_collections_without_a_line_are_counted_by_state() -> None:
    made = plain(drawn(passes, sample(collections=6), 78, 5))
    assert made[3].startswith("Python-Stdlib") and made[4].startswith("and 5 more collections: 5 planned")


def test_a_chosen_pass_tells_what_it_keeps_beside_vectors() -> None:
    snapshot = sample()
    first, *others = (replace(did(each, terms=0, token_vectors=0), truncated=0) for each in snapshot.passes)
    dense = replace(snapshot, passes=(first, *others))
    assert "so far" not in _text(drawn(passes, dense, 78, 20, zoomed=True, chosen="0", cells=every_cell))
    rich = did(first, terms=40 * first.done.rows, termless=3, token_vectors=9000)
    rich = replace(rich, word="running", kept_bytes=2**21)
    rows = plain(
        drawn(
            passes,
            replace(dense, passes=(rich, *others)),
            110,
            20,
            zoomed=True,
            chosen="0",
            cells=every_cell,
        )
    )
    wanted = "so far: 40 terms a text, 3 without terms, 9,000 token vectors (2.0 MiB)"
    assert [row.rstrip() for row in rows if row.startswith("so far")] == [wanted]


def test_a_pass_in_detail_tells_state_and_seconds_of_each_batch() -> None:
    snapshot = sample(passes=3, batches=7, names=("one", "two", "three"))
    made = plain(drawn(passes, snapshot, 90, 20, zoomed=True, chosen="1", cells=every_cell))
    assert [line[0] for line in made[:3]] == [" ", "▸", " "]
    assert made[3].startswith("pass 2 two: 5 of 7 batches, median 0.75 s, longest 1.25 s; cuda:0 2, cuda:1 3")
    grid = " ".join(made[5:]).split()
    assert grid == ["1", "▁", "2", "▇", "0.25", "3", "▲", "0.50", "4", "✖", "0.75", "5", "▇", "1.00", "6", "▇", "1.25",
                    "7", "▁"]  # fmt: skip


def test_the_cells_of_a_pass_are_its_batches_with_what_befell_them() -> None:
    state = RunState()
    found = cells_of(state, 0)
    assert (found.committed, found.mitigated, found.parked) == ({}, {}, {})
    batch = some_cells().committed[1]
    state.committed[1] = {1: batch}
    state.parked[1] = {"Docs": {7: ev.RowParked(
        model_pass=1, batch_index=1, collection="Docs", row=7, model="two", reason="not finite"
    )}}  # fmt: skip
    found = cells_of(state, 1)
    assert found.committed == {1: batch} and found.parked == {1: 1}
    state.committed[1].clear()
    assert found.committed == {1: batch}


def test_a_lease_in_detail_tells_its_receipt_in_full() -> None:
    found = (one_lease(1, held=65, residue=34 * MIB), one_lease(2, held=5, lost=["cuda:1"]))
    snapshot = replace(sample(), leases=found)
    text = _text(drawn(leases, snapshot, 78, 20, zoomed=True, chosen="L001"))
    (chosen,) = [line for line in text.splitlines() if line.startswith("▸")]
    assert "cuda:0,1 " in chosen and "RELEASED" in chosen
    for words_of in ("L001 ", "RELEASED, pass 1", "cuda:0 11.7 GiB, cuda:1 11.7 GiB", "attached in 1.2 s"):
        assert words_of in text
    rows = [line.split() for line in text.splitlines() if line.startswith("cuda:")]
    assert [row[1] for row in rows] == ["before", "peak", "after"] * 2
    assert rows[2][2:] == ["334.0", "MiB", "34.0", "MiB", "34.0", "MiB", "34.0", "MiB", "0"]
    assert "cuda:1  lost" in _text(drawn(leases, snapshot, 78, 20, zoomed=True, chosen="L002"))


def test_the_course_of_a_device_is_kept_whole_and_its_highest_moment_never_lost() -> None:
    course = Course()
    for second in range(5000):
        course.add(9 if second == 1234 else second % 3)
    assert len(course.values) < 600 and course.count == 5000
    assert course.step * len(course.values) >= 5000 > course.step * (len(course.values) - 1)
    assert course.values.index(9) == 1234 // course.step


class Looked(ev.Heartbeat, frozen=True, tag="looked"):
    free: int


def test_the_latest_heartbeat_of_any_kind_is_found_on_a_snapshot_and_is_no_progress():
    state = RunState()
    for seq in range(3):
        body: Any = Looked(free=seq)
        fold(state, ev.Entry(seq=seq, at=9.0, session=0, elapsed=1.0, device_kind="cpu", body=body))
    seen = snapshot_of(state, 2)
    assert (seen.latest(Looked), seen.latest(ev.DeviceSampled), seen.progressed_at) == (Looked(free=2), None, 0.0)


def test_a_sample_that_was_late_leaves_no_gap_in_time() -> None:
    state, device = RunState(), one_device(0)
    moments = {0.2: 1, 1.3: 2, 4.9: 3, 4.95: 4}
    bodies = [(0.1, ev.DevicesFound(devices=[device.facts])), *(
        (at, ev.DeviceSampled(device="cuda:0", memory=Memory(allocated=0, occupied=size), readings=None))
        for at, size in moments.items()
    )]  # fmt: skip
    for seq, (at, body) in enumerate(bodies):
        fold(state, ev.Entry(seq=seq, at=at, session=0, elapsed=at, device_kind="cuda", body=body))
    gauge = state.devices["cuda:0"]
    assert [each.memory.occupied for each in gauge.latest] == gauge.course.values == [1, 2, 3, 3, 3]
    assert gauge.memory and gauge.memory.occupied == 4


def test_a_held_lease_is_first_with_its_time_and_memory_now() -> None:
    snapshot = sample()
    older = one_lease(9, model="later", held=1.0)
    held = replace(snapshot.leases[1], granted_at=snapshot.latest_at - 132)
    made = plain(drawn(leases, replace(snapshot, leases=(held, older)), 78, 3))
    assert made[0].split()[:2] == ["lease", "model"]
    assert made[1].startswith("L002") and "HELD" in made[1] and "2:12" in made[1] and "9.6 now" in made[1]
    assert made[2].startswith("L009") and "RELEASED" in made[2]


def test_receipts_tell_before_peak_after_and_residue_of_all_devices() -> None:
    found = (one_lease(1, held=65, residue=34 * MIB), one_lease(2, held=5, weights=3.1))
    made = plain(drawn(leases, replace(sample(), leases=found), 78, 3))
    assert "0.3 > 9.6 > 0.3" in made[1] and made[1].split("0.3")[-1].split()[:2] == ["0", "B"]
    assert made[2].startswith("and 1 earlier")
    assert "!68.0 MiB" in plain(drawn(leases, replace(sample(), leases=found[:1]), 78, 3))[1]


def test_a_lease_of_a_lost_device_or_dead_session_is_lost() -> None:
    found = (
        one_lease(1, held=5, lost=["cuda:1"]),
        one_lease(2, left=True),
        one_lease(3, held=1, lost=["cuda:0", "cuda:1"]),
    )
    made = [plain(drawn(leases, replace(sample(), leases=(each,)), 118, 4))[1] for each in found]
    assert all(word in line.split() for word, line in zip(("LOST", "ENDED", "LOST"), made, strict=True))
    assert " lost cuda:0,1 " in made[2] and "with its process" in made[1]
    assert "session ended" in made[1]
    assert "cuda:0, lost cuda:1 " in made[0] and "0.3 > 0.6 > 0.3" in made[0]


def test_what_a_run_takes_of_a_host_of_tebibytes_is_told_in_gibibytes_and_its_disk_as_it_is() -> None:
    host = sample(1, kind="cpu").devices[0]
    large = replace(
        host, facts=replace(host.facts, ceiling_bytes=3 << 39, total_bytes=2 << 40),
        readings=Readings(used=1, total=2 << 40, disk_free=20 << 40),
    )  # fmt: skip
    text = plain([gauges.gauge(large, (large,), 200)])[0]
    assert f"{host.memory and host.memory.occupied / 2**30:.1f} of 1536.0 GiB" in text and "disk 20.0 TiB" in text


def test_a_pass_and_a_lease_that_go_on_say_which_of_their_devices_is_lost() -> None:
    run = sample(lost=(1,))
    held, released = one_lease(1, held=None), one_lease(2, held=5)
    first, second = plain(drawn(leases, replace(run, leases=(held, released)), 118, 4))[1:3]
    assert "cuda:0, lost cuda:1 " in first and "cuda:0,1 " in second
    assert ["cuda:0, lost cuda:1 " in f"{line} " for line in plain(drawn(passes, run, 118, 3))] == [
        each.batches_done < each.batches and len(each.devices) > 1 for each in run.passes
    ]


def test_leases_beyond_those_kept_are_counted() -> None:
    assert plain(drawn(leases, sample(leases_in_all=80), 78, 9))[-1].startswith("and 78 earlier")


@pytest.mark.parametrize("kind", ["sim", "scripted"])
def test_the_rates_of_a_run_that_is_not_real_say_so(kind: str) -> None:
    word = {"sim": "(simulated)", "scripted": "(scripted)"}[kind]
    snapshot = sample(kind=kind)
    assert all(word in line for line in plain(drawn(cache, snapshot, 58, 2)) if "/s" in line)
    assert word in _text([cache.line(snapshot, 58)])


def test_a_healthy_run_of_slow_batches_is_never_told_as_nothing() -> None:
    seconds = ([0] * 19 + [64]) * 5
    for ended in range(60, 100):
        told = Pace(ended, deque(seconds[:ended]), deque(seconds[:ended]))
        snapshot = replace(sample(), pace=told, slowest=20.0)
        assert all(words.rates(snapshot)), ended


def test_everything_that_a_run_saved_is_told() -> None:
    text = "\n".join(plain(drawn(cache, sample(), 78, 7)))
    for words_of in ("2 on disk, 1 new (3.1 GiB), 2 retries", "3072 reused, 17.3k of 36.9k new",
                     "12.3k read, 120 duplicates, 2 refused"):  # fmt: skip
        assert words_of in text
    few = plain(drawn(cache, sample(), 78, 2))
    assert few[0].startswith("texts/s") and few[1].startswith("vectors")


def test_the_rates_of_a_finished_run_are_its_mean() -> None:
    rows, tokens = words.rates(sample(phase="completed", seconds=100.0))
    assert (round(rows), round(tokens)) == (96, 8000)  # on two devices
    assert "mean" in _text(drawn(cache, sample(phase="completed"), 78, 1))


RESTS: list[dict[str, Any]] = [{"phase": "stopped"}, {"phase": GONE}, {"paused": True}]


@pytest.mark.parametrize("rests", RESTS)
def test_a_run_that_computes_nothing_tells_its_mean_and_no_pace_of_now(rests: dict[str, Any]) -> None:
    at_rest = replace(sample(**rests), pace=Pace(9, deque([9000] * 9), deque([9000] * 9)))
    rows = words.rates(at_rest)[0]
    assert 0 < rows < 9000 and "mean" not in _text([cache.line(sample(), 78)])
    for text in (_text([cache.line(at_rest, 58)]), _text(drawn(cache, at_rest, 78, 1))):
        assert f"{words.count(rows)} mean" in text or f"{words.count(rows)} texts/s mean" in text


@pytest.mark.parametrize("rests", RESTS)
@pytest.mark.parametrize(("width", "height"), [(78, 2), (118, 9), (58, 1)])
def test_memory_that_nobody_reads_any_more_is_dim_and_says_when_it_was_the_last(rests, width, height) -> None:
    lost = sample(2, lost=(1,))
    at_rest = replace(lost, **rests, exit_code=4 if rests.get("phase") == "stopped" else None)
    styles = {span.style for line in drawn(vram, at_rest, width, height) for span in line if span.text != "LOST"}
    told = vram.PANE.counter(at_rest), cache.PANE.counter(at_rest)
    if at_rest.paused:  # its process is there, and measures
        assert "fill" in styles and told[0] == "" and "last" not in told[1]
    else:
        last = words.clock(at_rest.latest_at)
        assert styles == {"dim"} and told[0] == f"last {last}" and told[1].endswith(told[0])
        ended = "ended" if at_rest.over else "last heard"
        assert f"{ended} {words.clock(at_rest.latest_at, '%m-%d')} {last}" in _text(_head(at_rest, 200))
        assert "now" not in _text(drawn(vram, at_rest, 118, 9)) + _text(drawn(cache, at_rest, 118, 30))


def test_a_pass_of_a_run_that_ended_or_died_waits_for_nothing() -> None:
    halted = replace(sample(at=1.4), phase=GONE)
    for rests in (halted, replace(halted, passes=tuple(replace(each, word="waiting") for each in halted.passes))):
        text = _text(drawn(passes, rests, 118, 5))
        assert "waiting" not in text and "queued" not in text and ("died" in text or "stopped" in text)


def test_a_resumed_run_holds_no_lease_of_the_dead_session() -> None:
    state = RunState()
    granted = ev.LeaseGranted(
        lease="L001", model_pass=0, model="a", devices=["cpu"], device_kind="cpu", budget_bytes=1, predicted_bytes=1
    )
    resumed = ev.RunResumed(versions={}, chunks="", config={}, environment={})
    for seq, body in enumerate((granted, resumed)):
        fold(state, ev.Entry(seq=seq, at=100.0 + seq, session=seq, elapsed=1.0, device_kind="cpu", body=body))
    lease = state.leases["L001"]
    assert (lease.granted_at, lease.left, lease.held) == (100.0, True, False)


def test_a_released_lease_leaves_its_device_what_the_receipt_measured() -> None:
    state = RunState()
    device = one_device(0)
    lease = one_lease(1, held=5.0, devices=["cuda:0"])
    released = ev.LeaseReleased(lease="L001", model_pass=0, model="a", held_seconds=5.0, receipts=lease.receipts)
    granted = ev.LeaseGranted(
        lease="L001", model_pass=0, model="a", devices=["cuda:0"], device_kind="cuda", budget_bytes=1, predicted_bytes=1
    )
    for seq, body in enumerate((ev.DevicesFound(devices=[device.facts]), granted, released)):
        fold(state, ev.Entry(seq=seq, at=1.0, session=0, elapsed=1.0, device_kind="cuda", body=body))
    assert state.devices["cuda:0"].memory == lease.receipts[0].after


class _Screen(App[None]):
    """One pane, as large as the terminal."""

    def __init__(self, pane: Pane) -> None:
        super().__init__()
        self.pane = pane

    def compose(self) -> ComposeResult:
        yield self.pane


def test_each_pane_has_a_name_and_a_digit_of_its_own():
    assert [kind.key for kind in REGISTERED] == [*range(1, len(REGISTERED) + 1)]
    assert len({kind.name for kind in REGISTERED}) == len(REGISTERED) <= 9


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (60, 15)])
@pytest.mark.parametrize("kind", [kind for kind in REGISTERED if kind.rows])
async def test_a_pane_redraws_only_what_changed(kind: PaneKind, size: tuple[int, int]) -> None:
    app = _Screen(RunPane(kind))
    async with app.run_test(size=size) as pilot:
        pane: Any = app.pane
        pane.draw(View(sample()))
        await pilot.pause()
        first = "".join(segment.text for segment in pane.render_line(0))
        assert first.strip() and width_of(first) == pane.inner_width
        drawn: list[Any] = []
        pane.refresh = lambda *regions, **options: drawn.extend(regions)
        pane.draw(View(sample()))
        assert not drawn
        pane.draw(View(sample(at=1.9, seconds=300.0)))
        assert all(region.height == 1 for region in drawn)


def _text(rows: list[Row]) -> str:
    return "\n".join(plain(rows))


@pytest.mark.parametrize(("changed", "word"), [({"paused": True}, "paused"), ({"phase": GONE}, "died")])
def test_a_pass_that_does_not_go_on_promises_no_end_and_a_dead_run_holds_nothing(changed, word) -> None:
    now = replace(sample(), **changed)
    shown = "\n".join(plain(drawn(passes, now, 80, 12)))
    assert word in shown and "running" not in shown and " left" not in shown
    held = "\n".join(plain(drawn(leases, now, 80, 6)))
    assert ("HELD" in held) is (word == "paused")


@pytest.mark.parametrize("width", range(40, 120, 4))
def test_a_reason_that_would_push_out_when_it_ends_stands_below_the_header(width) -> None:
    first, *below = plain(_head(sample(kind="sim", lost=(1,)), width))
    why = "1 GPU lost (cuda:1)"
    assert " eta " in first and (why in first) != (why in " ".join("".join(below).split()))


@pytest.mark.parametrize("width", range(110, 170, 5))
def test_the_header_gives_up_the_names_of_what_went_wrong_before_it_gives_up_when_it_ends(width) -> None:
    many = Attention(lost=2, parked=3, warnings=1_000, mitigations=2_200, refused=2)
    line = _text(_head(sample(kind="sim", lost=(1,), parked=0), width, fresh=many))
    assert "eta 6:47" in line and ("2 GPUs lost  3 texts parked  1,002 warnings" in line) != (
        "2 GPUs lost  3 texts parked  1,000 warnings" in line
    )
    assert "±" not in line or line.index("eta") < line.index("±")
