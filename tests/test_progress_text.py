"""How far a run is, in one line: as often as a long run asks for, as wide as there is room, in place on a terminal."""

import re
import time
from itertools import accumulate, takewhile

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from interlock.console.control.protocol import Foreseen
from interlock.console.front_ends.headless import Headless
from interlock.console.sources.session import Session
from interlock.console.text import dialog_text
from interlock.console.text.progress_text import bar, interval, progress
from interlock.engine.compute.schedule import Schedule
from interlock.engine.record.rundir import RunDirectory
from tests.builders import corpus, sentences, toml
from tests.pty_harness import on_terminal
from tests.snapshots import sample
from tools.recorded import Recorded


def test_a_run_of_nine_hours_has_some_two_hundred_lines():
    due = list(takewhile(lambda at: at < 9 * 3600, accumulate(range(10_000), lambda at, _: at + interval(at))))
    assert 150 < len(due) < 250
    assert due[1] == 10.0


@pytest.mark.parametrize("width", [20, 40, 79, 120])
def test_a_bar_is_ascii_and_never_wider_than_its_line(width):
    for phase in ("starting", "reading", "running", "delivering"):
        line = bar(sample(phase=phase), width)
        assert line.isascii() and len(line) <= width


@pytest.mark.parametrize("width", [20, 55, 62, 79])
def test_a_bar_keeps_to_its_width_with_names_that_are_twice_as_wide(width):
    now = sample()
    wide = replace(now, passes=tuple(replace(each, model="模型名前の🇩🇪" * 3) for each in now.passes))
    assert cell_len(bar(wide, width)) <= width


def test_a_bar_says_how_far_how_long_and_where():
    assert bar(sample(), 120).startswith("[#########...........]  46%  eta ")
    assert "pass 2/3 all-mpnet-base-v2 batch 209/512" in bar(sample(), 120)
    assert bar(sample(), 30) == "[#########...........]  46%"


def test_a_line_of_a_paused_run_says_so_before_it_says_how_far():
    paused = sample(paused=True)
    assert progress(paused).startswith("paused, ") and "  paused  " in bar(paused, 120)
    assert "left" in progress(sample()) and "left" not in progress(paused) and "eta" not in bar(paused, 120)
    assert "paused" not in progress(sample()) + bar(sample(), 120)


def test_the_last_pass_of_a_run_has_as_long_as_the_run():
    now = sample()
    last = replace(now, passes=now.passes[:2])
    assert "left in this pass" in progress(now) and "left in this pass" not in progress(last)
    assert "left in all" in progress(last)


def test_a_run_is_copied_for_a_line_that_is_due_and_not_for_each_look(tmp_path, monkeypatch):
    monkeypatch.setattr("interlock.console.front_ends.headless.interval", lambda elapsed: 0.5)
    monkeypatch.setattr("interlock.console.front_ends.headless.POLL_SECONDS", 0.02)
    work = Recorded(RunDirectory(tmp_path / "r"), speed=100.0)
    copies, looks = [], []
    real_copy, real_look = work.recorder.snapshot, work.recorder.drain
    monkeypatch.setattr(work.recorder, "snapshot", lambda: copies.append(1) or real_copy())
    monkeypatch.setattr(work.recorder, "drain", lambda seen: looks.append(1) or real_look(seen))
    session = Session(lambda controls: work)
    session.start()
    began = time.monotonic()
    Headless(session, events=False, quiet=True).watch()
    assert len(looks) > 10 and len(copies) <= (time.monotonic() - began) / 0.5


def test_a_bar_of_a_simulated_run_has_no_time():
    line = bar(replace(sample(kind="sim"), current_pass=1), 200)
    assert "SIMULATED" in line and "eta" not in line and "texts/s" not in line


def test_no_ui_on_a_terminal_writes_its_last_line_in_place(tmp_path, tiny_a):
    """Of a run of a thousand batches, so that it is looked at while it goes on."""
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": sentences(1200, 30)}})
    file = toml(tmp_path / "models.toml", {"one": {"source": str(tiny_a), "batch_tokens": 40}})
    words = ["run", chunks, "--out", tmp_path / "runs", "--config", file, "--roster", "one", "--no-ui"]
    with on_terminal(*words, cwd=tmp_path, columns=70, rows=30) as terminal:
        screen = terminal.wait_for("next: interlock view", 120)
        assert terminal.wait() == 0
    drawn = re.findall(rb"\r([\[a-z][^\r]*)\r", terminal.output)  # whatever was under way when it looked
    assert drawn
    assert not any(line.startswith(piece.decode().strip()) for piece in drawn for line in screen.lines)


def test_a_notebooks_cell_gets_lines_since_it_keeps_what_would_be_written_over(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("interlock.console.front_ends.headless.interval", lambda elapsed: 0.1)
    for name in ("cell", "shell"):
        monkeypatch.setenv("JPY_PARENT_PID", "7")
        monkeypatch.setenv("TERM", "xterm-color" if name == "cell" else "xterm-256color")
        work = Recorded(RunDirectory(tmp_path / name), speed=100.0)
        session = Session(lambda controls, work=work: work)
        session.start()
        Headless(session, events=False, quiet=False).watch()
        said = capsys.readouterr().err
        assert ("\r" in said) == (name == "shell")
        assert "left" in said or name == "shell"


def test_what_would_move_is_nothing_where_all_is_done_and_not_known_where_nothing_is_leased_yet():
    planned, done = (dialog_text.foreseen(Schedule.SHARED, Foreseen(), sample(at=at)) for at in (0.0, 3.0))
    assert planned != done
