"""How far a run is, in one line: as often as a long run asks for, as wide as there is room, in place on a terminal."""

import re
from dataclasses import replace
from itertools import accumulate, takewhile

import pytest

from interlock.console.text.progress_text import bar, interval
from tests.builders import corpus, sentences, toml
from tests.pty_harness import on_terminal
from tests.snapshots import sample


def test_a_run_of_nine_hours_has_some_two_hundred_lines():
    due = list(takewhile(lambda at: at < 9 * 3600, accumulate(range(10_000), lambda at, _: at + interval(at))))
    assert 150 < len(due) < 250
    assert due[1] == 10.0


@pytest.mark.parametrize("width", [20, 40, 79, 120])
def test_a_bar_is_ascii_and_never_wider_than_its_line(width):
    for phase in ("starting", "reading", "running", "delivering"):
        line = bar(sample(phase=phase), width)
        assert line.isascii() and len(line) <= width


def test_a_bar_says_how_far_how_long_and_where():
    assert bar(sample(), 120).startswith("[#########...........]  46%  eta ")
    assert "pass 2/3 all-mpnet-base-v2 batch 209/512" in bar(sample(), 120)
    assert bar(sample(), 30) == "[#########...........]  46%"


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
