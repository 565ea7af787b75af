"""The main screen on a recorded run: what it shows at every size, and what an operator's keys do to it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from msgspec.structs import replace
from textual.command import CommandList
from textual.pilot import Pilot

from interlock.console.actions import MAIN
from interlock.console.apps.run import Console
from interlock.console.look import Leave, Look
from interlock.console.screens import main
from interlock.console.screens.ask import Dialog, DialogAnswer, Find, Recap
from interlock.console.screens.event import EventScreen
from interlock.console.screens.help import Help, entries
from interlock.console.screens.main import Main
from interlock.console.screens.summary import SummaryScreen
from interlock.console.sources.journal import Watched
from interlock.console.sources.session import Session
from interlock.console.text.event_lists import grouped
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.record import events as ev
from interlock.engine.record import rundir
from interlock.engine.record.journal import Journal
from interlock.engine.record.recorder import LATEST
from interlock.engine.record.words import several
from tests.test_follow import lines as journal_lines
from tools.recorded import Recorded

SIZES = [(80, 24), (120, 40), (200, 60), (60, 15)]
FAR = 0.65
"""Of the cost: one pass is done, the next has climbed the ladder."""


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    run = script(tmp_path)
    yield run
    run.close()


def script(place: Path, name: str = "two-devices") -> Recorded:
    return Recorded(rundir.choose(place, "r", place, resume=False), name=name)


@asynccontextmanager
async def shown(
    run: Recorded, size: tuple[int, int] = (80, 24), *, readonly: bool = False, **look: object
) -> AsyncIterator[tuple[Console, Pilot]]:
    """The console on a moment of a run, and at that moment; it looks at it when it is told to, and not by the clock."""
    session = Session(lambda _: run)
    session.work = run
    source = copy(run)
    if readonly:
        source.controls = None
    app = Console(source if readonly else run, Look(refresh=0.5, **look), session=session, driver=None)
    now = SimpleNamespace(time=lambda: run.snapshot().latest_at)
    with patch.object(main, "time", now):
        async with app.run_test(size=size) as pilot:
            await seen(app, pilot)
            yield app, pilot


async def seen(app: Console, pilot: Pilot) -> list[str]:
    """Look once, and what the screen says then."""
    app.poll()
    await pilot.pause()
    app.poll()
    await pilot.pause()
    return text_of(app)


def text_of(app: Console) -> list[str]:
    return ["".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips(app.size)]


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_state_progress_devices_and_keys_show_at_any_size(tmp_path, size, devices):
    run = script(tmp_path, "eight-devices")
    far = run.play_to(FAR)
    run.snapshot = lambda: replace(far, devices=far.devices[:devices])
    async with shown(run, size) as (app, pilot):
        lines = await seen(app, pilot)
        assert [len(line) for line in lines] == [size[0]] * size[1]
        header, *panes, footer = lines
        for word in ("DEGRADED" if devices == 8 else "RUN", "SIMULATED", "%", "EXCL on", "CPU-FB on"):
            assert word in header
        text = "\n".join(panes)
        named = sum(f"cuda:{number}" in text for number in range(devices))
        assert named == devices or "more" in text
        assert "q Quit" in footer
        if size[0] >= 80:
            for word in ("1 VRAM", "2 Passes", "3 Leases", "4 Events", "done", "running", "HELD", "RELEASED"):
                assert word in text
    run.close()


async def test_a_terminal_that_is_too_small_shows_progress_in_one_line(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (39, 9)) as (app, pilot):
        first, *rest = await seen(app, pilot)
        assert "RUN" in first
        assert "%" in first
        assert "".join(rest).strip() == ""


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_ascii_mode_shows_no_other_character(recorded, size):
    recorded.play_to(FAR)
    async with shown(recorded, size, ascii=True) as (app, pilot):
        text = "".join(await seen(app, pilot))
        assert {sign for sign in text if ord(sign) > 0x7F} == set()
        assert all(word in text for word in ("RUN", "HELD", "RELEASED", "running", "done"))


async def test_a_slow_link_is_redrawn_once_a_second_without_curves(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40), slow_link=True) as (app, pilot):
        text = "".join(await seen(app, pilot))
        assert app.look.rate <= 1
        assert not set("▂▄▆█") & set(text)  # the signs that gauges and passes have not


async def test_switching_exclusive_off_shows_what_follows_and_waits_for_an_answer(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        await pilot.press("x")
        assert isinstance(app.screen, Dialog)
        assert "batches on cuda:" in "\n".join(text_of(app))
        await pilot.press("y")
        assert "EXCL off*" in text_of(app)[0]
        assert [each.who for each in recorded.controls.pending()] == [app.who]
        done = recorded.snapshot().batches_done
        recorded.play_until(lambda now: now.batches_done > done + 4)
        header = (await seen(app, pilot))[0]
        assert "EXCL off" in header
        assert "off*" not in header


async def test_a_question_left_with_escape_asks_nothing(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        await pilot.press("x", "escape")
        assert isinstance(app.screen, Main)
        assert recorded.controls.pending() == []


async def test_a_paused_run_says_so_in_the_header_until_it_goes_on(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        await pilot.press("P")
        assert "PAUSING" in text_of(app)[0]
        recorded.play_until(lambda now: now.paused)
        assert "PAUSED" in (await seen(app, pilot))[0]
        assert "P Resume" in text_of(app)[-1]


async def test_a_control_is_refused_with_the_reason_when_readonly(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, readonly=True) as (app, pilot):
        for key in "xcPS":
            await pilot.press(key)
            assert isinstance(app.screen, Main)
            assert "--readonly" in text_of(app)[-1]
        assert recorded.controls.pending() == []


async def test_a_frozen_screen_draws_nothing_until_released(recorded):
    recorded.play_to(0.1)
    async with shown(recorded) as (app, pilot):
        await pilot.press("space")
        before = text_of(app)
        recorded.play_to(FAR)
        assert await seen(app, pilot) == before
        assert "FROZEN" in before[0]
        await pilot.press("space")
        after = await seen(app, pilot)
        assert "FROZEN" not in after[0]
        assert after[1:] != before[1:]


async def test_a_frozen_screen_shows_the_same_moment_at_another_size_and_zoomed(recorded):
    recorded.play_to(0.1)
    async with shown(recorded) as (app, pilot):
        await pilot.press("2", "z")
        zoomed = await seen(app, pilot)
        await pilot.press("z")
        await seen(app, pilot)
        await pilot.press("space")
        before = text_of(app)
        recorded.play_to(FAR)
        await seen(app, pilot)
        await pilot.press("z")
        await pilot.pause()
        assert text_of(app)[1:-1] == zoomed[1:-1]
        await pilot.press("z")
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert text_of(app) == before


async def test_a_run_that_ends_under_a_frozen_screen_is_told_in_the_footer(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        await pilot.press("space")
        recorded.play_to(1)
        await seen(app, pilot)
        await pilot.press("escape")
        assert "the run has ended: space shows it" in text_of(app)[-1]


async def test_quitting_a_live_run_asks_first_and_stopping_is_obeyed(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        app._session._thread = type("Thread", (), {"ident": 1})()
        app._session.controls = recorded.controls
        await pilot.press("q")
        assert "detach" in "\n".join(text_of(app))
        await pilot.press("S")
        assert recorded.controls.code == ExitCode.STOPPED
        assert "STOPPING" in text_of(app)[0]
        recorded.play_to(1)
        await seen(app, pilot)
    assert app.return_value is Leave.STOP


async def test_detaching_ends_the_console_and_asks_nothing_of_the_run(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        await pilot.press("q", "d")
    assert app.return_value is Leave.DETACH
    assert recorded.controls.code is None


async def test_the_end_of_a_run_is_summed_up_opens_its_summary_and_quitting_asks_nothing(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40)) as (app, pilot):
        recorded.play_to(1)
        await seen(app, pilot)
        assert isinstance(app.screen, Recap)
        said = "\n".join(text_of(app))
        assert "The run has ended" in said and "memory: cuda:0 peak" in said and "next: interlock" in said
        await pilot.press("s")
        await pilot.pause()
        assert isinstance(app.screen, SummaryScreen)
        await pilot.press("escape")
        assert "FAILED" in text_of(app)[0] or "INCOMPLETE" in text_of(app)[0]
        await pilot.press("q")
    assert app.return_value is Leave.OVER


async def test_what_lies_over_the_screen_when_the_run_ends_is_answered_before_it_is_summed_up(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40)) as (app, pilot):
        await pilot.press("slash", "l")
        recorded.play_to(1)
        await seen(app, pilot)
        assert isinstance(app.screen, Find)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, Recap)


async def test_abort_chosen_after_the_run_ended_only_leaves(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        await pilot.press("q")
        recorded.play_to(1)
        await seen(app, pilot)
        await pilot.press("A")
    assert app.return_value is Leave.OVER


async def test_events_can_be_found_opened_filtered_and_exported(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40)) as (app, pilot):
        await pilot.press("slash", *"replan")
        assert "matches  enter keeps  esc clears" in text_of(app)[-2]
        assert "q Quit" in text_of(app)[-1]
        await pilot.press("enter", "enter")
        assert isinstance(app.screen, EventScreen)
        assert "rung" in "\n".join(text_of(app))
        await pilot.press("escape", "f", "f")
        assert "warnings" in text_of(app)[-1]
        await pilot.press("e")
        (file,) = recorded.directory.path.glob("events-*.txt")
        assert file.read_text().count("\n") == len(app.main._events.listed()) > 3


async def test_a_search_narrows_the_events_while_it_is_typed_and_gives_the_focus_back(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40)) as (app, pilot):
        all_of_them = len(app.main._events.listed())
        await pilot.press("3", "slash", *"lease")
        some = len(app.main._events.listed())
        assert 0 < some < all_of_them
        await pilot.press("space", *"L001")
        assert 0 < len(app.main._events.listed()) < some
        await pilot.press("enter")
        assert app.focused.id == "leases"
        assert "/lease L001" in "\n".join(text_of(app))
        await pilot.press("escape")
        assert len(app.main._events.listed()) == all_of_them
        await pilot.press("slash", "x", "escape")
        assert (app.focused.id, len(app.main._events.listed())) == ("leases", all_of_them)


async def test_kinds_of_events_are_toggled_in_a_list_with_their_counts(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40)) as (app, pilot):
        await pilot.press("F")
        await pilot.pause()
        kinds = app.main._events.kinds()
        text = "\n".join(text_of(app))
        assert all(f"[x] {each.word}" in text and f"{each.count:,}" in text for each in kinds)
        await pilot.press("space", "down", "space", "escape")
        hidden = {each.word for each in kinds[:2]}
        assert not hidden & {line.word for line in app.main._events.listed()}
        assert f"without {', '.join(sorted(hidden))}" in "\n".join(text_of(app))
        await pilot.press("F", "a", "escape")
        assert len(app.main._events.listed()) == sum(each.count for each in kinds)


async def test_mitigations_are_listed_by_cause_and_enter_shows_their_events(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40)) as (app, pilot):
        groups = grouped(recorded.mitigations())
        assert sum(each.times for each in groups) == recorded.snapshot().mitigations
        await pilot.press("M")
        await pilot.pause()
        text = "\n".join(text_of(app))
        assert all(word in text for word in ("split", "replan", "cuda:1", "needs", "free", "out of memory"))
        await pilot.press("down", "enter")
        await pilot.pause()
        assert {line.seq for line in app.main._events.listed()} <= groups[1].seqs
        assert app.main._events.listed()
        assert groups[1].name in "\n".join(text_of(app))
        await pilot.press("escape")
        assert len(app.main._events.listed()) > groups[1].times


async def test_a_run_that_was_resumed_lists_the_mitigations_of_its_earlier_sessions_too(tmp_path):
    first = script(tmp_path)
    first.play_to(FAR)
    first.close()
    again = Recorded(first.directory)
    async with shown(again, (120, 40)) as (app, pilot):
        await pilot.press("M")
        await pilot.pause()
        count = again.snapshot().mitigations
        assert count and f"{several(count, 'mitigation')} of " in "\n".join(text_of(app))
    again.close()


async def test_what_a_journal_has_taken_back_is_forgotten_on_the_screen(tmp_path, monkeypatch):
    monkeypatch.setattr("interlock.console.sources.journal.POLL_SECONDS", 0.02)
    first = script(tmp_path)
    first.play_to(FAR)
    first.close()
    refused = Journal(first.directory.journal)
    latest = list(refused.replay())[-1]

    def write(session: int, *messages: str) -> None:
        for seq, message in enumerate(messages, latest.seq + 1):
            refused.append(replace(latest, seq=seq, session=session, body=ev.Warned(message=message)))

    async def told(message: str) -> None:
        while not any(line.text == message for line in app.main._events.listed()):
            await asyncio.sleep(0.02)
            app.poll()

    watcher = Watched(first.directory.path)
    app = Console(watcher, Look(), driver=None)
    try:
        async with app.run_test(size=(120, 40)):
            write(1, "one", "two", "three")
            await asyncio.wait_for(told("three"), 60)
            refused.rewind()
            write(2, "another", "and another")
            await asyncio.wait_for(told("and another"), 60)
            messages = [line.text for line in app.main._events.listed() if line.seq > latest.seq]
            assert messages == ["another", "and another"]
    finally:
        watcher.close()
        refused.close()


async def test_without_mitigations_the_list_says_so(recorded):
    recorded.play_to(0.0)
    async with shown(recorded) as (app, pilot):
        await pilot.press("M")
        await pilot.pause()
        assert "no mitigations" in "\n".join(text_of(app))
        await pilot.press("enter")
        assert isinstance(app.screen, Main)


async def test_panes_come_and_go_with_help_zoom_and_tab(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40)) as (app, pilot):
        await pilot.press("question_mark")
        assert isinstance(app.screen, Help)
        assert "one model at a time" in "\n".join(text_of(app))
        await pilot.press("escape", "3", "z")
        text = "\n".join(await seen(app, pilot))
        assert "3 Leases" in text
        assert "2 Passes" not in text
        await pilot.press("z", "t")
        assert app.theme == "daltonic"
        assert "2 Passes" in "\n".join(await seen(app, pilot))


async def test_a_zoomed_pane_tells_of_the_pass_or_lease_that_is_chosen_with_up_and_down(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40)) as (app, pilot):
        await pilot.press("2", "z")
        assert "pass 2 sim-bge-large-en: 13 of 47 batches" in "\n".join(await seen(app, pilot))
        await pilot.press("up")
        assert "pass 1 sim-bge-m3: 60 of 60 batches" in "\n".join(text_of(app))
        await pilot.press("3")
        assert "no receipt before it is released" in "\n".join(await seen(app, pilot))
        await pilot.press("j")
        assert "allocated" in "\n".join(text_of(app))
        await pilot.press("1")
        text = await seen(app, pilot)
        assert sum("\u2588" in line for line in text) > 12 and "now" in "\n".join(text)


async def test_the_pane_with_the_focus_says_which_keys_do_more(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40)) as (app, pilot):
        lines = await seen(app, pilot)
        assert [line for line in lines if "z zoom" in line] == [next(line for line in lines if "4 Events" in line)]
        await pilot.press("3", "z")
        assert "3 Leases  up/down choose  esc all panes" in (await seen(app, pilot))[1]


async def test_escape_shows_all_panes_again_and_zooms_none(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        await pilot.press("z", "escape")
        assert "2 Passes" in "\n".join(await seen(app, pilot))
        await pilot.press("escape")
        assert "2 Passes" in "\n".join(await seen(app, pilot))


async def test_sentences_of_a_question_break_only_where_the_box_ends(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        await pilot.press("c")
        assert any(" is parked, so the run may end incomplete" in line for line in text_of(app))


async def test_names_cannot_steer_the_terminal(recorded):
    recorded.play_to(FAR)
    hostile = "[/b]\x1b[31m\u202e\u200d中文😀" + "x" * 10_000
    held = copy(recorded)
    snapshot = recorded.snapshot()
    passes = tuple(replace(each, model=hostile, failure=hostile) for each in snapshot.passes)
    spoilt = replace(snapshot, passes=passes, leases=tuple(replace(each, model=hostile) for each in snapshot.leases))
    held.snapshot = lambda: spoilt
    app = Console(held, Look(refresh=0.5), driver=None)
    async with app.run_test(size=(120, 40)) as pilot:
        text = "".join(await seen(app, pilot))
        assert not {"\x1b", "\u202e", "\u200d"} & set(text)
        assert "[/b]" in text


async def test_the_console_ends_by_itself_when_the_run_could_not_begin(tmp_path):
    def make(controls: Controls) -> Recorded:
        raise RuntimeError("no such thing")

    session = Session(make)
    from interlock.console.sources.live import Live

    app = Console(Live(session), Look(refresh=10), session=session, driver=None)
    session.start()
    async with app.run_test():
        for _ in range(40):
            await asyncio.sleep(0.05)
            if app.return_value:
                break
    assert app.return_value is Leave.OVER
    with pytest.raises(RuntimeError, match="no such thing"):
        session.result()


async def test_a_look_that_comes_while_the_console_is_being_left_finds_no_screen_and_does_no_harm(recorded):
    async with shown(recorded) as (app, _):
        pass
    assert not app.screen_stack
    app.poll()  # as its timer may, which ends after its screens


async def test_switching_the_cpu_fallback_off_says_what_will_happen_and_asks_as_switching_it_on_does(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        now = recorded.snapshot()
        await pilot.press("c")
        assert isinstance(app.screen, Dialog)
        told = "\n".join(text_of(app))
        for word in ("parked", "incomplete", f"{now.batches - now.batches_done} of {now.batches} batches"):
            assert word in told
        await pilot.press("escape")
        assert recorded.controls.pending() == []
        await pilot.press("c", "y")
        assert [(each.control, each.value) for each in recorded.controls.pending()] == [("cpu_fallback", "no")]


async def test_the_palette_and_enter_change_nothing_whatever_was_not_looked_for(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        for typed in ((), ("p",), ("e",), ("s",)):
            await pilot.press("colon")
            await pilot.pause(0.3)
            await pilot.press(*typed)
            await pilot.pause(0.6)
            await pilot.press("enter")
            await pilot.pause(0.3)
            assert recorded.controls.pending() == []
            assert recorded.controls.code is None
            assert not isinstance(app.screen, Dialog)
            while not isinstance(app.screen, Main):
                await pilot.press("escape")


async def test_what_steers_is_offered_last_in_the_palette_and_found_by_its_name(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        await pilot.press("colon")
        await pilot.pause(0.6)
        labels = [option.hit.text for option in app.screen.query_one(CommandList).options]
        assert {"Excl", "CPU-FB", "Pause", "Stop"} == set(labels[-4:])
        await pilot.press(*"pause")
        await pilot.pause(0.6)
        await pilot.press("enter")
        await pilot.pause(0.3)
        assert [(each.control, each.value) for each in recorded.controls.pending()] == [("pause", "yes")]


async def test_a_control_that_would_be_refused_is_refused_at_once_and_nothing_is_pending(recorded):
    recorded.play_to(FAR)
    recorded.controls.refuse("cpu_fallback", "this run has no GPU")
    recorded.controls.refuse("schedule", "there is one model only")
    async with shown(recorded, (120, 40)) as (app, pilot):
        for key, reason in (("c", "this run has no GPU"), ("x", "there is one model only")):
            await pilot.press(key)
            assert isinstance(app.screen, Main)
            assert reason in text_of(app)[-1]
            assert recorded.controls.pending() == []
            assert "*" not in text_of(app)[0]


async def test_a_switch_that_would_change_nothing_says_so_and_cannot_be_confirmed(recorded):
    recorded.play_until(lambda now: sum(each.batches_done < each.batches for each in now.passes) == 1)
    async with shown(recorded) as (app, pilot):
        await pilot.press("x")
        assert "Nothing to change" in "\n".join(text_of(app))
        await pilot.press("y")
        assert recorded.controls.pending() == []


async def test_what_went_wrong_is_counted_until_a_key_shows_it(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40)) as (app, pilot):
        assert "mitigations" in (await seen(app, pilot))[0]
        await pilot.press("a")
        lines = await seen(app, pilot)
        assert "mitigations" not in lines[0]
        assert "mitigations" in lines[-1]
        assert any("4 Events  warnings" in line for line in lines)
        assert "esc shows all events again" in lines[-1]
        await pilot.press("escape")
        assert any("4 Events  all" in line for line in text_of(app))


@pytest.mark.parametrize(("key", "question"), [("x", "side by side?"), ("c", "Forbid CPU"), ("S", "Stop the run?")])
async def test_the_key_that_opens_a_question_does_not_answer_it(recorded, key, question):
    recorded.play_to(0.35)
    async with shown(recorded) as (app, pilot):
        await pilot.press(key)
        assert question in "\n".join(text_of(app))
        await pilot.press(key, key)
        assert isinstance(app.screen, Dialog)
        assert recorded.controls.pending() == [] and recorded.controls.code is None
        await pilot.press("y")
        assert not isinstance(app.screen, Dialog)


async def test_control_c_asks_and_pressed_again_chooses_nothing(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        await pilot.press("ctrl+c", "ctrl+c", "ctrl+c")
        assert len(app.screen_stack) == 3 and isinstance(app.screen, Dialog)
        assert app.return_value is None and recorded.controls.code is None


async def test_a_run_that_stops_is_aborted_only_when_that_is_chosen(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        app.main.stopping = True
        await pilot.press("q", "q")
        assert "The run stops after its batch" in "\n".join(text_of(app))
        assert app.return_value is None
        await pilot.press("A")
    assert app.return_value is Leave.ABORT


async def test_keys_of_the_footer_and_answers_can_be_clicked(recorded):
    recorded.play_to(0.35)
    async with shown(recorded, (120, 40)) as (app, pilot):
        footer = text_of(app)[-1]
        await pilot.click("#footer", offset=(footer.index("x Excl") + 2, 0))
        assert isinstance(app.screen, Dialog)
        await pilot.click(list(app.screen.query(DialogAnswer))[-1])
        assert isinstance(app.screen, Main) and recorded.controls.pending() == []
        await pilot.click("#footer", offset=(footer.index("x Excl"), 0))
        await pilot.click(app.screen.query(DialogAnswer).first())
        assert [(each.control, each.value) for each in recorded.controls.pending()] == [("schedule", "shared")]
        await pilot.click("#footer", offset=(footer.index("  S Stop"), 0))
        assert isinstance(app.screen, Main)


async def test_the_wider_the_footer_the_more_keys_stand_in_it(recorded):
    recorded.play_to(FAR)
    shown_keys = []
    for size in ((60, 15), (80, 24), (120, 40), (200, 60)):
        async with shown(recorded, size) as (app, _):
            shown_keys.append(text_of(app)[-1].rstrip())
    assert all(keys.endswith("q Quit") for keys in shown_keys)
    assert "S Stop" in shown_keys[2] and "z Zoom" in shown_keys[2] and "S Stop" not in shown_keys[1]
    assert [len(keys) for keys in shown_keys] == sorted({len(keys) for keys in shown_keys})
    assert len(shown_keys[3]) > 160


async def test_help_begins_with_the_pane_and_is_searched_while_one_types(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 60)) as (app, pilot):
        await pilot.press("3", "question_mark")
        text = "\n".join(text_of(app))
        assert text.index("│ Leases ") < text.index("│ Run ") < text.index("│ Events ")
        await pilot.press(*"resumable")
        text = "\n".join(text_of(app))
        assert "stop the run after the current batch" in text and "CPU fallback" not in text
        await pilot.press("x")
        assert "nothing like that" in "\n".join(text_of(app)) and recorded.controls.pending() == []
        await pilot.press("escape")
        assert isinstance(app.screen, Main)


async def test_the_palette_names_keys_and_offers_no_movements(recorded):
    recorded.play_to(1)
    async with shown(recorded, (120, 40)) as (app, pilot):
        await pilot.press("s", "colon")
        await pilot.pause(0.6)
        options = list(app.screen.query_one(CommandList).options)
        labels = {option.hit.text for option in options}
        assert "Find" in labels and not labels & {"Down", "Up", "In", "Out", "Page_down"}
        assert all(option.hit.display.plain.startswith(f"{option.hit.text}  ") for option in options)


async def test_a_console_beside_a_run_of_its_process_is_not_suspended_and_says_how_to_leave(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        await pilot.press("ctrl+z")
        assert "^z would suspend the run as well and keep its GPUs; q then d detaches" in text_of(app)[-1]


@pytest.mark.parametrize("keys", ["question_mark", "x", "c", "S", "q", "M", "F", "4 up enter"])
async def test_what_is_laid_over_the_screen_is_ascii_too_where_that_is_wanted(recorded, keys):
    recorded.play_to(FAR)
    async with shown(recorded, ascii=True) as (app, pilot):
        await pilot.press(*keys.split())
        await seen(app, pilot)
        assert len(app.screen_stack) > 2
        assert "\n".join(text_of(app)).isascii()


async def test_the_summary_of_a_run_that_goes_on_is_that_of_now(recorded):
    recorded.play_to(0.2)
    async with shown(recorded, (120, 40)) as (app, pilot):
        recorded.play_to(FAR)
        await pilot.press("s")
        await pilot.pause()
        assert isinstance(app.screen, SummaryScreen)
        assert "0 mitigations" not in text_of(app)[0] and "mitigations" in text_of(app)[0]


async def test_a_last_look_while_the_screen_is_taken_down_raises_nothing(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, _):
        main_screen = app.main
        await main_screen.remove_children()
        recorded.play_to(0.7)
        app.poll()
        assert main_screen.snapshot.batches_done


async def test_a_question_that_is_ready_late_is_not_laid_over_what_was_opened_meanwhile(recorded):
    recorded.play_to(FAR)
    ready, foresee = [], recorded.foresee
    recorded.foresee = lambda schedule: foresee(schedule) if ready else None
    async with shown(recorded) as (app, pilot):
        await pilot.press("x", "slash")
        ready.append(True)
        await seen(app, pilot)
        assert isinstance(app.screen, Find)
        await pilot.press("enter")
        await seen(app, pilot)
        assert isinstance(app.screen, Main) and recorded.controls.pending() == []


async def test_what_cannot_be_asked_any_more_once_a_question_is_answered_is_said_to_be_so(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        for keys, title in (("c", "Forbid CPU"), ("S", "Stop the run?")):
            await pilot.press(keys)
            assert title in "\n".join(text_of(app))
            box, recorded.controls = recorded.controls, None
            await pilot.press("y")
            assert recorded.unsteered in text_of(app)[-1]
            assert "STOPPING" not in text_of(app)[0]
            recorded.controls = box
        assert box.pending() == [] and box.code is None


async def test_the_console_ends_by_itself_when_the_run_was_refused_before_it_began_work(recorded):
    recorded.play_to(0.0)
    async with shown(recorded) as (app, pilot):
        app._session.failure = UsageError("no such model")
        app._session._done.set()
        recorded.code = ExitCode.USAGE
        app.poll()
        await pilot.pause()
    assert app.return_value is Leave.OVER


async def test_the_cursor_of_a_list_stays_on_what_was_chosen_when_other_lines_come(recorded):
    recorded.play_to(0.1)
    async with shown(recorded, (120, 40)) as (app, pilot):
        few = [each.word for each in app.main._events.kinds()]
        await pilot.press("F")
        await pilot.pause()
        await pilot.press(*["down"] * (len(few) - 1))
        recorded.play_to(FAR)
        await seen(app, pilot)
        assert [each.word for each in app.main._events.kinds()].index(few[-1]) > len(few) - 1
        await pilot.press("space")
        assert [each.word for each in app.main._events.kinds() if not each.shown] == few[-1:]


async def test_the_mitigations_that_are_shown_are_those_that_were_under_the_cursor(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40)) as (app, pilot):
        real = recorded.mitigations
        first, *_, last = grouped(real())
        again = [each for each in real() if each.seq in last.seqs] * (first.times + 1)
        await pilot.press("M")
        await pilot.pause()
        recorded.mitigations = lambda: real() + again
        await pilot.press("enter")
        await pilot.pause()
        assert {line.seq for line in app.main._events.listed()} <= first.seqs


async def test_events_from_before_the_screen_was_there_are_not_counted_as_dropped(tmp_path):
    count = 3 * LATEST
    (tmp_path / "journal.jsonl").write_bytes(journal_lines(count))
    source = Watched(tmp_path)
    app = Console(source, Look(refresh=10), driver=None)
    try:
        async with app.run_test(size=(200, 40)) as pilot:
            for _ in range(600):
                if app.main.seen == count - 1:
                    break
                await pilot.pause(0.05)
            await seen(app, pilot)
            assert app.main.seen == count - 1 and "dropped" not in text_of(app)[0]
    finally:
        source.close()


async def test_events_that_came_faster_than_the_screen_looked_are_counted_as_dropped(recorded):
    recorded.play_to(0.1)
    async with shown(recorded, (200, 40)) as (app, pilot):
        recorded.play_to(0.2)
        real = recorded.entries
        recorded.entries = lambda after: (real(after)[0][5:], 5)
        assert "dropped 5" in (await seen(app, pilot))[0]


def test_help_names_the_keys_that_the_settings_give_its_actions():
    told = [f"{each.keys} {each.text}" for each in entries(MAIN, Look(keys={"attend": "f9", "zoom": "f4"}))]
    assert any("not looked at: f9 shows them" in text for text in told)
    assert any(text == "f4 the whole receipt of a lease" for text in told)
