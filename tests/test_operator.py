"""As an operator would: a run on a real terminal is steered, left by a dead link, followed again and looked at."""

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from interlock.engine.record import events as ev
from tests.builders import corpus, entries, environment, events_of, interlock, sentences, summary_of, toml
from tests.pty_harness import OnTerminal, on_terminal

PATIENCE = 90


@pytest.fixture
def place(tmp_path: Path, tiny_a: Path, tiny_b: Path) -> Path:
    """A directory with chunks and two models, of which one batch takes a moment."""
    corpus(tmp_path / "in", {"Docs": {"a_chunks.json": sentences(300, 30)}})
    tables = {"one": {"source": str(tiny_a), "batch_tokens": 40}, "two": {"source": str(tiny_b), "batch_tokens": 40}}
    toml(tmp_path / "models.toml", tables)
    return tmp_path


def console(place: Path, *args: object) -> OnTerminal:
    return on_terminal(*args, columns=100, rows=30, cwd=place)


def run(place: Path, *flags: object) -> OnTerminal:
    usual = ("--config", "models.toml", "--roster", "one,two", "--run-id", "r", "--devices", "sim:2xT4")
    return console(place, "run", "in", *usual, *flags)


def settled(place: Path, status: str) -> dict:
    """The summary, once the process has written that the run has this status."""
    for _ in range(PATIENCE * 5):
        file = place / "runs" / "r" / "summary.json"
        if file.exists() and (said := summary_of(file.parent))["status"] == status:
            return said
        time.sleep(0.2)
    raise AssertionError(f"the run is not {status}")


def test_a_run_whose_link_dies_completes_and_can_be_watched_and_viewed(
    place,
):
    with run(place) as terminal:
        terminal.wait_for("HELD", PATIENCE)
        terminal.wait_for(lambda screen: "SIMULATED" in screen.lines[0], PATIENCE)
        terminal.press("P")
        terminal.wait_for("PAUSED", PATIENCE)
        terminal.press("x")
        terminal.wait_for("Keep models resident side by side?", PATIENCE)
        terminal.press("y")
        terminal.wait_for("side by side", PATIENCE)  # with a * where a batch is under way
        terminal.press("P")
        terminal.wait_for(lambda screen: "side by side " in screen.lines[0] + " ", PATIENCE)
        terminal.hang_up()
        said = settled(place, "completed")
        terminal.wait(PATIENCE)
    asked = [(each["control"], each["value"], each["refused"]) for each in said["controls"]]
    assert asked == [("pause", "yes", ""), ("pause", "no", ""), ("schedule", "shared", "")] or asked == [
        ("pause", "yes", ""),
        ("schedule", "shared", ""),
        ("pause", "no", ""),
    ]
    cells = [(each.model_pass, each.batch_index) for each in events_of(place / "runs" / "r", ev.BatchCommitted)]
    assert len(cells) == len(set(cells)) == sum(each["batches"] for each in said["collections"][0]["passes"])
    assert {"exclusive", "shared"} == {each.schedule for each in events_of(place / "runs" / "r", ev.LeaseGranted)}
    with console(place, "watch", "runs/r") as terminal:
        screen = terminal.wait_for(" DONE ", PATIENCE)
        assert "◇ DONE" in screen.lines[0]
        terminal.press("q")
        assert terminal.wait(PATIENCE) == 0
    with console(place, "view", "runs/r") as terminal:
        terminal.wait_for("run_id", PATIENCE)
        terminal.press("q")
        assert terminal.wait(PATIENCE) == 0


def test_a_run_stopped_on_a_terminal_exits_4_and_resumes_headless_to_the_same(place):
    with run(place) as terminal:
        terminal.wait_for("running", PATIENCE)
        terminal.press("q")
        terminal.wait_for("stop after the current batch", PATIENCE)
        terminal.press("S")
        assert terminal.wait(PATIENCE) == 4
        assert b"\x1b[?1049l" in terminal.output  # the screen is given back
    ended = entries(place / "runs" / "r")[-1].body
    assert ended.status == "stopped" and " at the console between batches" in ended.reason
    with run(place, "--resume", "--no-ui") as terminal:
        assert terminal.wait(PATIENCE) == 0
    assert summary_of(place / "runs" / "r")["status"] == "completed"


def test_control_z_beside_a_run_stops_nothing_and_says_how_to_leave(place):
    with run(place) as terminal:
        terminal.wait_for("running", PATIENCE)
        terminal.press("\x1a")
        terminal.wait_for("q then d detaches", PATIENCE)
        assert psutil.Process(terminal.process.pid).status() != psutil.STATUS_STOPPED
        assert settled(place, "completed")


def test_control_z_gives_the_shell_its_terminal_and_the_console_comes_back(place):
    with run(place, "--no-ui") as terminal:
        assert terminal.wait(PATIENCE) == 0
    with console(place, "watch", "runs/r") as terminal:
        terminal.wait_for("DONE", PATIENCE)
        began = len(terminal.output)
        terminal.press("\x1a")
        process = psutil.Process(terminal.process.pid)
        terminal.wait_for(lambda _: process.status() == psutil.STATUS_STOPPED, PATIENCE)
        terminal.wait_for(lambda _: b"\x1b[?1049l" in terminal.output[began:], PATIENCE)  # what it said is read later
        assert terminal.canonical
        began = len(terminal.output)
        terminal.signal(signal.SIGCONT)
        terminal.wait_for(lambda _: b"\x1b[?1049h" in terminal.output[began:], PATIENCE)
        assert not terminal.canonical
        terminal.press("q")
        assert terminal.wait(PATIENCE) == 0


def test_hangup_stop_ends_the_run_resumably_with_129_when_the_link_dies(place):
    with run(place, "--on-hangup", "stop") as terminal:
        terminal.wait_for("running", PATIENCE)
        terminal.hang_up()
        assert terminal.wait(PATIENCE) == 129
    ended = entries(place / "runs" / "r")[-1].body
    assert ended.exit_code == 129 and ended.reason.startswith("stopped by a hang-up ")


def test_a_terminated_run_stops_after_the_batch_and_gives_the_screen_back(place):
    with run(place) as terminal:
        terminal.wait_for("running", PATIENCE)
        terminal.signal(signal.SIGTERM)
        assert terminal.wait(PATIENCE) == 143
        assert b"\x1b[?1049l" in terminal.output
    assert entries(place / "runs" / "r")[-1].body.reason.startswith("stopped by SIGTERM ")
    assert entries(place / "runs" / "r")[-1].body.exit_code == 143


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, 0)])
def test_a_screen_that_only_looks_gives_the_terminal_back_when_it_is_to_end(tmp_path, number, code):
    with console(tmp_path) as terminal:
        terminal.wait_for("A NEW RUN", PATIENCE)
        terminal.signal(number)
        assert terminal.wait(PATIENCE) == code
        assert terminal.canonical


def test_a_run_without_a_terminal_writes_lines_and_no_escape(place):
    done = subprocess.run(
        [sys.executable, "-m", "interlock", "run", "in", "--config", "models.toml", "--roster", "one"],
        stdin=subprocess.DEVNULL, capture_output=True, env=environment(), cwd=place, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0
    assert b"stdin is not a terminal: plain log output" in done.stderr
    assert b"\x1b" not in done.stdout + done.stderr


def test_a_mistake_on_a_terminal_is_told_in_plain_lines_with_its_exit_code(place):
    with run(place, "--roster", "nobody") as terminal:
        assert terminal.wait(PATIENCE) == 2
        assert "nobody" in terminal.screen().text
        assert b"\x1b" not in terminal.output.rpartition(b"\x1b[?1049l")[2].partition(b"interlock: ")[2]


def press_until(terminal: OnTerminal, *steps: tuple[str, str]) -> None:
    """Press keys, and after each wait for what the screen then says."""
    for keys, seen in steps:
        terminal.press(keys)
        terminal.wait_for(seen, PATIENCE)


CLEAR, DOWN, BACK = "\x15", "\x1b[B", "\x1b[Z"
TO_DEVICES = (("\t", "space ticks"), ("\t", "here: "))
"""From the models through their list, each of which says what it is while the cursor is in it."""


def test_the_form_takes_its_mistakes_back_shows_the_plan_and_runs_what_its_command_says(place, tiny_a):
    shutil.copytree(tiny_a, place / "one")
    with console(place) as terminal:
        terminal.wait_for("A NEW RUN", PATIENCE)
        terminal.press("i")
        terminal.wait_for("in/", PATIENCE)  # what tab completes
        terminal.press("\t")
        terminal.wait_for("1 collection", PATIENCE)
        press_until(terminal, ("\t", "ticked below"), (CLEAR, "X models"), ("nobody", "unknown model 'nobody'"))
        press_until(terminal, *TO_DEVICES, ("\r", "sim:2xT4"), (DOWN * 2 + "\r", "devices   sim:2xT4"))
        press_until(terminal, ("\t", "memory limit"), (CLEAR, "X ceiling"), ("twelve", "X fix: models, ceiling"))
        assert "interlock run" not in "\n".join(terminal.screen().lines[-4:])
        press_until(terminal, (BACK, "here: "), (BACK, "space ticks"), (BACK, "nobody"))
        terminal.wait_for(lambda screen: "space ticks" not in screen.text, PATIENCE)
        press_until(terminal, (CLEAR, "at least one"), ("./one", "X fix: ceiling"))
        press_until(terminal, *TO_DEVICES, ("\t", "X ceiling"))
        terminal.wait_for(lambda screen: "here: " not in screen.text, PATIENCE)
        press_until(terminal, (CLEAR, "expected a size"), ("2GiB", "--ceiling 2GiB"))
        terminal.wait_for("1 pass, ", PATIENCE)
        terminal.wait_for("--devices sim:2xT4 --ceiling 2GiB", PATIENCE)
        terminal.press("\x12")
        terminal.wait_for("SIMULATED", PATIENCE)
        terminal.wait_for("The run has ended", PATIENCE)
        terminal.press("q")
        assert terminal.wait(PATIENCE) == 0
    (run,) = (place / "runs").iterdir()
    said = summary_of(run)
    assert (said["status"], said["configuration"]["ceiling"]["value"]) == ("completed", 2 << 30)


def test_an_error_at_the_start_of_a_run_comes_back_into_the_form_with_what_was_typed(place, tiny_a):
    shutil.copytree(tiny_a, place / "one")
    (place / "one" / "tokenizer.json").write_text("{}")
    with console(place) as terminal:
        terminal.wait_for("A NEW RUN", PATIENCE)
        terminal.press("in/")
        terminal.wait_for("1 collection", PATIENCE)
        press_until(terminal, ("\t", "ticked below"), (CLEAR, "X models"), ("./one", "--roster ./one"))
        terminal.press("\x12")
        terminal.wait_for("the run did not begin", PATIENCE)
        terminal.wait_for(lambda screen: "tokenizer" in screen.text and "in/" in screen.lines[1], PATIENCE)
        terminal.press("\x11")
        assert terminal.wait(PATIENCE) == 0


def test_from_an_empty_terminal_to_a_search_result_without_a_manual(place):
    """Form, plan, run, fault, hang-up, list of runs, watch, steer, recap, summary, search."""
    corpus(place / "many", {"Docs": {"a_chunks.json": sentences(1200, 30)}})
    settings = {"DEVICES": "sim:2xT4", "QDRANT": "store", "RUN_ID": "r", "FAULTS": "oom:60", "ROSTER": "one,two"}
    settings |= {"CONFIG": "models.toml"}
    env = environment({f"INTERLOCK_{name}": value for name, value in settings.items()})
    with OnTerminal([sys.executable, "-m", "interlock"], columns=120, rows=40, cwd=place, env=env) as terminal:
        terminal.wait_for("A NEW RUN", PATIENCE)
        terminal.press("many/")
        terminal.wait_for("1 collection", PATIENCE)
        terminal.wait_for("2 passes, ", PATIENCE)  # the plan
        terminal.press("\x12")
        terminal.wait_for("HELD", PATIENCE)
        terminal.hang_up()
        assert "pause acknowledged" in interlock("ctl", "runs/r", "pause", cwd=place).stdout
        listed = interlock("runs", "--plain", cwd=place).stdout
        assert "PAUSED" in listed and " r " in listed
        with console(place, "watch", "runs/r") as watcher:
            watcher.wait_for("■ PAUSED", PATIENCE)
            watcher.press("P")
            watcher.wait_for("◇ RUN  watch", PATIENCE)
            watcher.wait_for("◇ DONE", PATIENCE)
            watcher.press("s")
            watcher.wait_for("SUMMARY", PATIENCE)
            watcher.press("q")
            assert watcher.wait(PATIENCE) == 0
        assert terminal.wait(PATIENCE) == 0
    said = settled(place, "completed")
    assert [(each["control"], each["value"]) for each in said["controls"]] == [("pause", "yes"), ("pause", "no")]
    assert any("out of memory" in step["cause"] for step in said["collections"][0]["mitigations"])
    found = interlock("search", "store", "a sentence", cwd=place).stdout
    assert found.splitlines()[1].strip().startswith("1. ")
