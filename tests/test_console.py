"""The main screen on a recorded run: what it shows at every size, and what an operator's keys do to it."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from copy import copy
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from msgspec.structs import replace
from textual.command import CommandList
from textual.containers import Vertical
from textual.pilot import Pilot

from interlock.console.actions import MAIN, actions_of
from interlock.console.apps.base import offered
from interlock.console.apps.run import Console
from interlock.console.look import Leave, Look
from interlock.console.screens import main
from interlock.console.screens.ask import Dialog, DialogAnswer, Find, Help, Recap, entries
from interlock.console.screens.event import EventScreen
from interlock.console.screens.main import Main
from interlock.console.screens.summary import SummaryScreen
from interlock.console.sources.journal import Watched
from interlock.console.sources.session import Session
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.record import events as ev
from interlock.engine.record import rundir
from interlock.engine.record.inputs import onward
from interlock.engine.record.journal import Journal
from interlock.engine.record.recorder import LATEST
from interlock.engine.record.words import duration
from interlock.engine.standing.health import health
from interlock.widgets.panes.mitigations import ladders
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


def backgrounds(app: Console) -> set[str]:
    strips = app.screen._compositor.render_strips(app.size)
    return {
        segment.style.bgcolor.name for strip in strips for segment in strip if segment.style and segment.style.bgcolor
    }


async def back(pilot: Pilot) -> None:
    """Close whatever lies over the main screen."""
    while not isinstance(pilot.app.screen, Main):
        await pilot.press("escape")


def asked(run: Recorded) -> list[tuple[str, str]]:
    """What waits for the engine's answer."""
    return [(each.control, each.value) for each in run.controls.pending()]


def whole(app: Console) -> str:
    return "\n".join(text_of(app))


async def test_state_progress_devices_and_keys_show_at_any_size_down_to_one_line(tmp_path):
    run = script(tmp_path, "eight-devices")
    far, footers = run.play_to(FAR), []
    async with shown(run) as (app, pilot):
        for devices in (1, 2, 4, 8):
            run.snapshot = lambda count=devices: replace(far, devices=far.devices[:count])
            for size in SIZES:
                await pilot.resize_terminal(*size)
                lines = await seen(app, pilot)
                assert [len(line) for line in lines] == [size[0]] * size[1]
                header, *panes, footer = lines
                for word in ("TEXT PARKED", "SIMULATED", "%"):
                    assert word in header
                text = "\n".join(panes)
                named = sum(f"cuda:{number}" in text for number in range(devices))
                assert named == devices or "more" in text
                if size[0] >= 80:
                    for word in ("1 Memory", "2 Passes", "3 Leases", "done", "running", "HELD", "RELEASED"):
                        assert word in text
                    assert "6 Events" in text or size == (80, 24)  # two events, and no border
                footers.append(footer.rstrip())
        await pilot.resize_terminal(39, 9)
        first, *rest = await seen(app, pilot)
        assert "TEXT PARKED" in first and "%" in first and "".join(rest).strip() == ""
    assert all(keys.endswith("q Quit") for keys in footers)
    by_width = sorted(footers[:4], key=len)  # the wider, the more keys
    assert [by_width[place] for place in (1, 2, 3, 0)] == footers[:4] and len(by_width[3]) > 140
    assert all("P Pause  S Stop" in keys for keys in footers) and "z Zoom" in footers[1]
    run.close()


async def test_ascii_mode_shows_no_other_character_whatever_is_laid_over_the_screen(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40), ascii=True) as (app, pilot):
        assert whole(app).isascii()
        await pilot.resize_terminal(80, 24)
        lines = "".join(await seen(app, pilot))
        assert all(word in lines for word in ("TEXT PARKED", "HELD", "LOST", "running", "done"))
        for keys in ("question_mark", "x", "c", "S", "q", "slash", "6 up enter"):
            await pilot.press(*keys.split())
            await seen(app, pilot)
            assert len(app.screen_stack) > 2
            assert whole(app).isascii()
            await back(pilot)


async def test_a_slow_link_is_redrawn_once_a_second_without_curves(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40), slow_link=True) as (app, pilot):
        assert app.look.rate <= 1
        assert not set("▂▄▆█") & set("".join(await seen(app, pilot)))  # the signs that gauges and passes have not


async def test_what_costs_something_is_shown_first_and_pending_until_the_engine_answers(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40)) as (app, pilot):
        for key, question in (("x", "side by side?"), ("c", "Forbid CPU"), ("S", "Stop the run?")):
            await pilot.press(key)
            assert question in whole(app)
            await pilot.press(key, key)  # the key that opens a question does not answer it
            assert isinstance(app.screen, Dialog)
            assert asked(recorded) == [] and recorded.controls.code is None
            await pilot.press("escape")
            assert isinstance(app.screen, Main) and asked(recorded) == []
        for keys, title in (("c", "Forbid CPU"), ("S", "Stop the run?")):  # and cannot be asked once it is answered
            await pilot.press(keys)
            assert title in whole(app)
            box, recorded.controls = recorded.controls, None
            await pilot.press("y")
            assert recorded.unsteered in text_of(app)[-1] and "STOPPING" not in text_of(app)[0]
            recorded.controls = box
        assert box.pending() == [] and box.code is None
        now = recorded.snapshot()
        await pilot.press("c")
        for word in ("incomplete", f"{now.batches - now.batches_done} of {now.batches} batches"):
            assert word in whole(app)
        # Its sentences break only where the box ends.
        assert any(" is parked, so the run may end incomplete" in line for line in text_of(app))
        await pilot.press("y")
        assert asked(recorded) == [("cpu_fallback", "no")]
        await pilot.press("x")
        assert "batches on cuda:" in whole(app)
        await pilot.press("y", "P")
        assert "side by side*" in text_of(app)[0] and "PAUSING" in text_of(app)[0]
        assert {each.who for each in recorded.controls.pending()} == {app.who}
        recorded.play_until(lambda now: now.paused)
        header = (await seen(app, pilot))[0]
        assert "side by side" in header and "side*" not in header and "PAUSED" in header
        assert "P Resume" in text_of(app)[-1]


async def test_keys_of_the_footer_and_answers_can_be_clicked(recorded):
    recorded.play_to(0.35)
    async with shown(recorded, (120, 40)) as (app, pilot):
        footer = text_of(app)[-1]
        await pilot.click("#footer", offset=(footer.index("x Exclusive") + 2, 0))
        assert isinstance(app.screen, Dialog)
        await pilot.click(list(app.screen.query(DialogAnswer))[-1])
        assert isinstance(app.screen, Main) and asked(recorded) == []
        await pilot.click("#footer", offset=(footer.index("x Exclusive"), 0))
        await pilot.click(app.screen.query(DialogAnswer).first())
        assert asked(recorded) == [("schedule", "shared")]
        await pilot.click("#footer", offset=(footer.index("  S Stop"), 0))
        assert isinstance(app.screen, Main)


async def test_what_steers_is_offered_only_where_a_run_can_be_steered_and_else_says_why_not(recorded):
    recorded.play_to(0.35)
    steers = {action.name for action in actions_of(MAIN) if action.changes}
    async with shown(recorded, (120, 40)) as (app, pilot):
        assert steers <= {action.name for action in offered(app.screen)} and "x Exclusive" in text_of(app)[-1]
        recorded.play_to(1.0)
        await seen(app, pilot)
        await pilot.press("escape")
        assert steers.isdisjoint(action.name for action in offered(app.screen))
        assert not any(key in text_of(app)[-1] for key in ("Exclusive", "CPU", "Pause", "Stop"))
        await pilot.press("P")
        assert "the run is over" in text_of(app)[-1]


async def test_a_control_that_would_be_refused_is_refused_at_once_and_nothing_is_pending(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, readonly=True) as (app, pilot):
        for key in "xcPS":
            await pilot.press(key)
            assert isinstance(app.screen, Main) and "--readonly" in text_of(app)[-1]
    recorded.controls.refuse("cpu_fallback", "this run has no GPU")
    recorded.controls.refuse("schedule", "there is one model only")
    async with shown(recorded, (120, 40)) as (app, pilot):
        for key, reason in (("c", "this run has no GPU"), ("x", "there is one model only")):
            await pilot.press(key)
            assert isinstance(app.screen, Main) and reason in text_of(app)[-1]
            assert asked(recorded) == [] and "*" not in text_of(app)[0]


async def test_a_switch_that_would_change_nothing_cannot_be_confirmed_and_one_that_is_ready_late_disturbs_nobody(
    recorded,
):
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
        assert isinstance(app.screen, Main) and asked(recorded) == []
        recorded.play_until(lambda now: sum(each.batches_done < each.batches for each in now.passes) == 1)
        await seen(app, pilot)
        await pilot.press("x")
        assert "Nothing to change" in whole(app)
        await pilot.press("y")
        assert asked(recorded) == []


async def test_a_frozen_screen_shows_one_moment_at_any_size_and_zoomed_until_it_is_released(recorded):
    recorded.play_to(0.1)
    async with shown(recorded) as (app, pilot):
        await pilot.press("2", "z")
        zoomed = await seen(app, pilot)
        await pilot.press("z")
        await seen(app, pilot)
        await pilot.press("space")
        before = text_of(app)
        recorded.play_to(FAR)
        assert await seen(app, pilot) == before and "FROZEN" in before[0]
        await pilot.press("z")
        await pilot.pause()
        assert text_of(app)[1:-1] == zoomed[1:-1]
        await pilot.press("z")
        for size in ((120, 40), (80, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        assert text_of(app) == before
        await pilot.press("space")
        after = await seen(app, pilot)
        assert "FROZEN" not in after[0] and after[1:] != before[1:]
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
        await pilot.press("ctrl+z")
        assert "^z would suspend the run as well and keep its GPUs; q then d detaches" in text_of(app)[-1]
        await pilot.press("ctrl+c")
        assert len(app.screen_stack) == 3 and isinstance(app.screen, Dialog)
        assert app.return_value is None and recorded.controls.code is None
        await pilot.press("escape", "q")
        assert "detach" in whole(app) and "; ^C too" in whole(app)
        await pilot.press("ctrl+c")  # as a first one does where there is no screen
        assert recorded.controls.code == ExitCode.STOPPED
        assert "STOPPING" in text_of(app)[0]
        await pilot.press("q")
        assert "The run stops after its batch" in whole(app) and app.return_value is None
        await pilot.press("escape")
        recorded.play_to(1)
        await seen(app, pilot)
    assert app.return_value is Leave.STOP


@pytest.mark.parametrize(
    ("stopping", "key", "left"),
    [
        (False, "d", Leave.DETACH),
        (False, "q", Leave.DETACH),
        (True, "A", Leave.ABORT),
        (True, "ctrl+c", Leave.ABORT),
    ],
)
async def test_a_live_run_is_detached_from_or_aborted_only_when_that_is_chosen(recorded, stopping, key, left):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        app._session.controls = recorded.controls
        app.main.stopping = stopping
        recorded.controls.code = ExitCode.STOPPED if stopping else None
        await pilot.press("q")
        await pilot.press(key)
    assert app.return_value is left
    assert recorded.controls.code is (ExitCode.STOPPED if stopping else None)


@pytest.mark.parametrize("key", ["ctrl+c", "S"])
async def test_the_question_how_to_leave_follows_the_run_and_ends_with_it(recorded, key):
    recorded.play_to(0.2)
    async with shown(recorded, (120, 40)) as (app, pilot):
        await pilot.press(key)
        before = re.search(r"(\d+) of \d+ batches committed", whole(app))
        recorded.play_to(FAR)
        after = re.search(r"(\d+) of \d+ batches committed", "\n".join(await seen(app, pilot)))
        assert int(before[1]) < int(after[1])
        recorded.play_to(1)
        await seen(app, pilot)
        assert isinstance(app.screen, Recap) and "The run has ended" in whole(app)
        await pilot.press("ctrl+c")
    assert app.return_value is Leave.OVER


async def test_the_end_of_a_run_is_summed_up_once_what_lies_over_it_is_answered(recorded):
    recorded.play_to(0.2)
    async with shown(recorded, (120, 40)) as (app, pilot):
        recorded.play_to(FAR)
        await pilot.press("s")  # the summary of a run that goes on is that of now
        await pilot.pause()
        assert isinstance(app.screen, SummaryScreen)
        assert "0 mitigations" not in text_of(app)[0] and "mitigations" in text_of(app)[0]
        await pilot.press("escape", "slash", "l")
        recorded.play_to(1)
        await seen(app, pilot)
        assert isinstance(app.screen, Find)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, Recap)
        said = whole(app)
        assert "The run has ended" in said and "memory: cuda:0 peak" in said and "next: interlock" in said
        await pilot.press("s")
        await pilot.pause()
        assert isinstance(app.screen, SummaryScreen)
        await pilot.press("colon")
        await pilot.pause(0.6)
        options = list(app.screen.query_one(CommandList).options)
        labels = {option.hit.text for option in options}
        assert "Find" in labels and not labels & {"Down", "Up", "In", "Out", "Page_down"}
        assert all(option.hit.display.plain.startswith(f"{option.hit.text}  ") for option in options)
        await pilot.press("escape", "escape")
        assert "FAILED" in text_of(app)[0] or "INCOMPLETE" in text_of(app)[0]
        await pilot.press("q")  # asks nothing
    assert app.return_value is Leave.OVER


async def test_events_are_narrowed_while_one_types_opened_filtered_and_exported(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40)) as (app, pilot):
        listed = app.main._events.listed
        every = len(listed())
        await pilot.press("3", "slash", *"lease")
        some = len(listed())
        assert 0 < some < every
        await pilot.press("space", *"L001")
        assert 0 < len(listed()) < some
        await pilot.press("enter")
        assert app.focused.id == "leases" and "/lease L001" in whole(app)
        await pilot.press("escape")
        assert len(listed()) == every
        await pilot.press("slash", "x", "escape")
        assert (app.focused.id, len(listed())) == ("leases", every)
        await pilot.press("6", "slash", *"smaller")
        assert "matches  enter keeps  esc clears" in text_of(app)[-2]
        assert "q Quit" in text_of(app)[-1]
        await pilot.press("enter", "enter")
        assert isinstance(app.screen, EventScreen) and "rung" in whole(app)
        await pilot.press("escape", "slash", "end", "space", *"mitigation:", "enter", "e")
        assert "/smaller mitigation:" in whole(app)
        (file,) = recorded.directory.path.glob("events-*.txt")
        assert file.read_text().count("\n") == len(listed()) > 3


async def test_what_went_wrong_is_counted_until_a_key_shows_it(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40)) as (app, pilot):
        first = (await seen(app, pilot))[0]
        assert "1 warning" in first and "1 text parked" not in first  # which the reason tells
        await pilot.press("slash", "!", "enter")
        lines = await seen(app, pilot)
        assert "1 warning" not in lines[0]
        assert any("6 Events  follow  /!" in line for line in lines)
        assert {line.severity for line in app.main._events.listed()} == {"warning", "error"}
        await pilot.press("slash", "escape")
        assert any("6 Events  follow" in line and "/!" not in line for line in text_of(app))


async def test_a_ladder_is_a_row_with_its_end_and_zoomed_all_its_steps(recorded):
    recorded.play_to(0.0)
    async with shown(recorded, (120, 40)) as (app, pilot):
        await pilot.press("4")
        assert "none so far" in whole(app)
        recorded.play_to(FAR)
        text = "\n".join(await seen(app, pilot))
        count, steps = recorded.snapshot().mitigations, recorded.mitigations()
        assert f"4 Mitigations {count}" in text and all(word in text for word in ("parked", "solved", "on the CPU"))
        batches = {(step.body.model_pass, step.body.batch_index) for step in steps}
        climbed = ladders(lambda: steps)
        assert len(climbed) == len(batches) and sum(len(each.steps) for each in climbed) == count
        await pilot.press("z")  # the one that did not help stands first
        text = "\n".join(await seen(app, pilot))
        assert all(word in text for word in ("float32", "needs", "free", "invalid vector", "retrying alone"))
        await pilot.press("down", "down")
        assert "too large for the free memory" in whole(app) and "float32" not in whole(app)


async def test_a_run_that_was_resumed_counts_the_mitigations_of_its_earlier_sessions_too(tmp_path):
    first = script(tmp_path)
    first.play_to(FAR)
    first.close()
    again = Recorded(first.directory)
    async with shown(again, (120, 40)) as (app, _):
        count = again.snapshot().mitigations
        assert count and f"4 Mitigations {count}" in whole(app) and "1/47" in whole(app)
    again.close()


async def test_five_panes_stand_together_from_100x30_on_and_each_is_one_key_away_below(recorded):
    recorded.play_to(FAR)
    count = recorded.snapshot().mitigations
    titles = ("1 Memory", "2 Passes", "3 Leases", f"4 Mitigations {count}", "5 Cache 2 of 3")
    async with shown(recorded, (100, 30)) as (app, pilot):
        assert all(title in whole(app) for title in titles) and "6 Events" in whole(app)
        assert "on the CPU" in whole(app) and "HELD" in whole(app) and "of 2928 new" in whole(app)
        await pilot.resize_terminal(80, 24)
        text = "\n".join(await seen(app, pilot))
        assert all(title in text for title in titles)
        for key, word in (("4", "│1/47"), ("5", "of 2928 new"), ("3", "HELD")):
            await pilot.press(key)
            text = "\n".join(await seen(app, pilot))
            assert word in text and all(title in text for title in titles)
        await pilot.press("4", "6")
        assert "│1/47" in "\n".join(await seen(app, pilot))


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


async def test_panes_are_zoomed_chosen_in_and_told_apart_by_the_keys_that_they_take(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 40)) as (app, pilot):
        lines = await seen(app, pilot)
        assert [line for line in lines if "z zoom" in line] == [next(line for line in lines if "6 Events" in line)]
        await pilot.press("2", "z")
        text = "\n".join(await seen(app, pilot))
        assert "pass 2 sim-bge-large-en: 13 of 47 batches" in text and "3 Leases" not in text
        await pilot.press("up")
        assert "pass 1 sim-bge-m3: 60 of 60 batches" in whole(app)
        await pilot.press("3")
        lines = await seen(app, pilot)
        held = sum(each.held for each in recorded.snapshot().leases)
        assert any(f"3 Leases {held} held  up/down choose  esc all panes" in line for line in lines)
        assert "no receipt before it is released" in "\n".join(lines)
        await pilot.press("j")
        assert "allocated" in whole(app)
        await pilot.press("1")
        lines = await seen(app, pilot)
        assert sum("\u2588" in line for line in lines) > 12 and "now" in "\n".join(lines)
        for _ in range(2):  # escape shows all panes again, and zooms none
            await pilot.press("escape")
            assert "2 Passes" in "\n".join(await seen(app, pilot))
        of_old = backgrounds(app)
        await pilot.press("t")
        await seen(app, pilot)
        assert app.theme == "daltonic" and not of_old & backgrounds(app)


async def test_help_begins_with_the_pane_and_is_searched_while_one_types(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 60)) as (app, pilot):
        await pilot.press("3", "question_mark")
        assert isinstance(app.screen, Help)
        text = whole(app)
        assert text.index("│ Leases ") < text.index("│ Run ") < text.index("│ Events ")
        await pilot.press(*"resumable")
        assert "stop the run after the current batch" in whole(app) and "CPU fallback" not in whole(app)
        await pilot.press("x")
        assert "nothing like that" in whole(app) and asked(recorded) == []
        await pilot.press("escape")
        assert isinstance(app.screen, Main)


async def test_the_palette_changes_nothing_that_was_not_looked_for_by_its_name(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, pilot):
        for typed in ((), ("p",), ("e",), ("s",)):
            await pilot.press("colon")
            await pilot.pause(0.3)
            await pilot.press(*typed)
            await pilot.pause(0.6)
            await pilot.press("enter")
            await pilot.pause(0.3)
            assert asked(recorded) == [] and recorded.controls.code is None
            assert not isinstance(app.screen, Dialog)
            await back(pilot)
        await pilot.press("colon")
        await pilot.pause(0.6)
        labels = [option.hit.text for option in app.screen.query_one(CommandList).options]
        assert {"Exclusive", "CPU", "Pause", "Stop"} == set(labels[-4:])  # what steers comes last
        await pilot.press(*"pause")
        await pilot.pause(0.6)
        await pilot.press("enter")
        await pilot.pause(0.3)
        assert asked(recorded) == [("pause", "yes")]


async def test_names_cannot_steer_the_terminal(recorded):
    recorded.play_to(FAR)
    hostile = "[/b]\x1b[31m\u202e\u200d中文😀" + "x" * 10_000
    held = copy(recorded)
    snapshot = recorded.snapshot()
    passes = tuple(replace(each, model=hostile, failure=hostile) for each in snapshot.passes)
    spoilt = replace(snapshot, passes=passes, leases=tuple(replace(each, model=hostile) for each in snapshot.leases))
    held.snapshot = lambda: spoilt
    async with Console(held, Look(refresh=0.5), driver=None).run_test(size=(120, 40)) as pilot:
        text = "".join(await seen(pilot.app, pilot))
        assert not {"\x1b", "\u202e", "\u200d"} & set(text)
        assert "[/b]" in text


async def test_the_console_ends_by_itself_when_the_run_could_not_begin(tmp_path):
    def make(controls: Controls) -> Recorded:
        raise RuntimeError("no such thing")

    session = Session(make)
    from interlock.console.sources.session import Live

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


async def test_the_console_ends_by_itself_when_the_run_was_refused_before_it_began_work(recorded):
    recorded.play_to(0.0)
    async with shown(recorded) as (app, pilot):
        app._session.failure = UsageError("no such model")
        app._session._done.set()
        recorded.code = ExitCode.USAGE
        app.poll()
        await pilot.pause()
    assert app.return_value is Leave.OVER


async def test_the_console_ends_by_itself_when_the_run_has_ended_that_is_to_be_uploaded(recorded):
    recorded.play_to(0.9)
    async with shown(recorded) as (app, pilot):
        app._uploaded = True
        recorded.play_to(1.0)
        await seen(app, pilot)
    assert app.return_value is Leave.OVER


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (60, 15), (40, 10)])
async def test_no_reason_time_failing_text_or_command_that_goes_on_is_cut_at_any_size(recorded, size):
    recorded.play_to(0.1)
    recorded.recorder.emit(PARKED)
    recorded.play_to(0.3)
    async with shown(recorded, size) as (app, pilot):
        lines = await seen(app, pilot)
        whys = [each.why for each in health(recorded.snapshot(), recorded.snapshot().latest_at).concerns]
        assert PARKED.place in whys[0] and " eta " in lines[0]
        assert all(together(why) in together("".join(lines)) for why in whys)
        assert any("cuda:" in line and "%" in line for line in lines)
        if size < (80, 24):
            await pilot.press("z")
            assert PARKED.chunk_id not in together("".join(await seen(app, pilot)))  # the pane has its lines
            await pilot.press("z")
        recorded.play_to(1.0)
        text = "\n".join(await seen(app, pilot))
        assert isinstance(app.screen, Recap)
        assert "show the summary" in text and "quit" in text and "back to the run" in text
        box = app.screen.query_one(Vertical).region  # beside it stand the panes
        said = [line[box.x : box.right] for line in text.splitlines()]
        for _ in range(9 * (size == (40, 10))):  # behind a long path it is read on
            await pilot.press("down")
            said += [line[box.x : box.right] for line in await seen(app, pilot)]
        assert "--retry-parked" in together("".join(said))
        await pilot.press("escape")
        again = onward(recorded.snapshot(), recorded.directory.path)
        assert together(f"retry it with {again}") in together("".join(await seen(app, pilot)))


PARKED = ev.RowParked(
    model_pass=0, model="sim-bge-m3", row=77, reason="not finite", collection="Sim-Source-Code",
    file="Engineering-Handbook/part-0007_chunks.json", record=1284, chunk_id="f3b1c2d4-5e6f-4a7b-8c9d-0e1f2a3b4c5d",
)  # fmt: skip


def together(text: str) -> str:
    """A text without the places where it was broken into lines."""
    return re.sub(r"[\s│]+", "", text)


async def test_a_look_that_comes_while_the_console_is_being_left_does_no_harm(recorded):
    recorded.play_to(FAR)
    async with shown(recorded) as (app, _):
        main_screen = app.main
        await main_screen.remove_children()
        recorded.play_to(0.7)
        app.poll()
        assert main_screen.snapshot.batches_done
    assert not app.screen_stack
    app.poll()  # as its timer may, which ends after its screens


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


async def test_the_past_of_a_watched_run_is_gone_through_by_keys_that_a_run_of_its_own_has_not(recorded):
    recorded.play_to(FAR)
    async with shown(recorded, (120, 24)) as (app, pilot):
        await pilot.press("left", "home", "n", "m")
        assert " past " not in text_of(app)[0] and "Past" not in text_of(app)[-1]
    source = Watched(recorded.directory.path)
    app = Console(source, Look(refresh=0.5), driver=None)
    async with app.run_test(size=(120, 24)) as pilot:
        await seen(app, pilot)
        now = source.position
        assert "left Past" in text_of(app)[-1] and "Faster" not in text_of(app)[-1]
        await pilot.press("left")
        header, *_, footer = text_of(app)
        assert " past " in header and "Excl" not in footer and "+ Faster" in footer
        assert source.position == now - source.step
        await pilot.press("x", "S")
        assert "this is the past" in text_of(app)[-1] and isinstance(app.screen, Main)
        await pilot.press("m", "N", "N")
        wrong = app.main._events.chosen
        assert wrong.severity in ("warning", "error") or wrong.word == "mitigation"
        assert f"at {duration(source.position)} " in text_of(app)[0]
        await pilot.press("n", "left_square_bracket")
        assert source.position < source._past.times[wrong.seq]
        await pilot.press("M")
        assert source.position == now - source.step
        await pilot.press("home", "space")
        assert not source.paused and source.position < now / 2
        await pilot.press("end")
        assert " past " not in text_of(app)[0] and not source.past
    source.close()


async def test_only_the_capital_stops_a_run_that_one_leaves(recorded):
    recorded.play_to(0.3)
    async with shown(recorded) as (app, pilot):
        await pilot.press("q", "s")
        assert isinstance(app.screen, Dialog) and not recorded.controls.stop_requested
        await pilot.press("S")
        assert recorded.controls.stop_requested


async def test_events_that_came_faster_than_the_screen_looked_are_counted_as_dropped(recorded):
    recorded.play_to(0.1)
    async with shown(recorded, (200, 40)) as (app, pilot):
        recorded.play_to(0.2)
        real = recorded.entries
        recorded.entries = lambda after: (real(after)[0][5:], 5)
        assert "dropped 5" in (await seen(app, pilot))[0]


def test_help_names_the_keys_that_the_settings_give_its_actions():
    told = [f"{each.keys} {each.text}" for each in entries(MAIN, Look(keys={"find": "f9", "zoom": "f4"}))]
    assert any("not looked at: f9 ! shows them" in text for text in told)
    assert any(text == "f4 the whole receipt of a lease" for text in told)


async def test_the_command_that_goes_on_is_copied_by_a_key_that_the_footer_has_while_there_is_one(recorded):
    recorded.play_to(0.3)
    recorded.kind, copied = "watch", []
    async with shown(recorded, (80, 24)) as (app, pilot):
        app.copy_to_clipboard = copied.append
        assert "y Copy" not in text_of(app)[-1] and text_of(app)[-1].rstrip().endswith("q Leave")
        recorded.recorder.emit(PARKED)
        await seen(app, pilot)
        await pilot.press("y")
        assert "y Copy" in (await seen(app, pilot))[-1] or "copied" in text_of(app)[-1]
        await pilot.press("up", "y")  # an event that was gone to is copied instead
        assert copied == [onward(recorded.snapshot(), recorded.directory.path), app.main._events.chosen.text]
        assert copied[0].endswith("--resume --retry-parked")
