"""What a command writes while it works: a file whole or not at all, and words on progress that leave no rest."""

import io
import sys

import pytest

from interlock.console import writing as room
from interlock.console.writing import progress, writing


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, unit: str) -> str:
    """What is told of two models, the second of which is cut short."""
    monkeypatch.setattr(sys, "stderr", stream)
    with progress(unit) as tell:
        for model, done in (("one", 1), ("one", 2_000), ("two", 1_999)):
            tell(model, done, 2_000)
    return stream.getvalue()


def test_progress_on_a_terminal_is_a_line_for_each_model_and_the_last_one_is_ended(monkeypatch):
    monkeypatch.setattr(room, "BLINK", -1.0)  # every word is told
    lines = ["one: 1 of 2,000 pairs\r", "one: 2,000 of 2,000 pairs\n", "two: 1,999 of 2,000 pairs\r"]
    assert told(Terminal(), monkeypatch, "pair") == "".join(f"interlock: {line}" for line in lines) + "\n"


def test_a_model_that_has_done_nothing_is_being_loaded_and_leaves_no_rest_on_the_line(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(room, "BLINK", -1.0)
    monkeypatch.setattr(sys, "stderr", stream)
    with progress() as tell:
        tell("one", 0, 9)
        tell("one", 9, 9)
    assert stream.getvalue() == "interlock: one: loading\rinterlock: one: 9 of 9 \n"


def test_progress_elsewhere_is_lines_and_nothing_of_what_is_done_soon(monkeypatch):
    monkeypatch.setattr(room, "PAUSE", float("inf"))
    assert told(io.StringIO(), monkeypatch, "pair") == ""
    monkeypatch.setattr(room, "PAUSE", -1.0)
    lines = ["one: 1 of 2,000", "one: 2,000 of 2,000", "two: 1,999 of 2,000"]
    assert told(io.StringIO(), monkeypatch, "") == "".join(f"interlock: {line}\n" for line in lines)


def test_a_file_is_whole_or_as_it_was(tmp_path, capsys):
    file = tmp_path / "answers.jsonl"
    file.write_text("before")
    with pytest.raises(KeyboardInterrupt), writing(file) as write:
        write("half")
        raise KeyboardInterrupt
    assert file.read_text() == "before"
    with writing(file) as write:
        write("whole")
    assert file.read_text() == "whole"
    assert [*tmp_path.iterdir()] == [file]
    with writing(None) as write:
        write("seen")
    assert capsys.readouterr().out == "seen"


def test_what_a_killed_process_left_of_a_file_goes_as_it_is_written_again_and_nothing_else(tmp_path):
    mine, others = tmp_path / ".answers.jsonl.0123456789ab.partial", tmp_path / ".other.jsonl.0123456789ab.partial"
    mine.touch()
    others.touch()
    with writing(tmp_path / "answers.jsonl") as write:
        write("an answer")
    assert sorted(each.name for each in tmp_path.iterdir()) == [others.name, "answers.jsonl"]
