"""The console starts, and its run starts once, however slow the terminal or the machine is and however it is left."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from interlock.console.apps.run import Console
from interlock.console.front_ends import dispatch as front_end
from interlock.console.look import Leave, Look
from interlock.console.main import signals_put_back
from interlock.console.screens.main import Main
from interlock.console.sources.session import Live, Session
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode
from interlock.engine.record import rundir
from interlock.engine.settings import load
from tests.builders import ROOT, environment
from tests.pty_harness import OnTerminal, on_terminal
from tools.recorded import Recorded

SLOW = 1.5
"""Seconds until the first frame, in which a console of ten looks a second looks fifteen times."""
PATIENCE = 60.0
LATE = """
import asyncio
from interlock.console.screens.main import Main
mounted = Main.on_mount
async def late(self):
    await asyncio.sleep({seconds})
    mounted(self)
Main.on_mount = late
"""


class Once:
    """Makes a recorded run that waits for `let_go`, and counts how often it was asked to."""

    def __init__(self, place: Path) -> None:
        self.place, self.asked, self.let_go = place, 0, threading.Event()

    def __call__(self, controls: Controls) -> Recorded:
        self.asked += 1
        assert self.let_go.wait(PATIENCE)
        directory = rundir.choose(self.place, f"r{self.asked}", self.place, resume=False)
        return Recorded(directory, controls)


@pytest.fixture
def once(tmp_path: Path) -> Iterator[Once]:
    made = Once(tmp_path)
    yield made
    made.let_go.set()


def late(seconds: float):
    """Main screens that take so long until they are mounted."""
    mounted = Main.on_mount

    async def on_mount(self: Main) -> None:
        await asyncio.sleep(seconds)
        mounted(self)

    return patch.object(Main, "on_mount", on_mount)


async def test_a_console_whose_first_frame_is_late_stays_and_starts_its_run_once(once):
    session = Session(once)
    app = Console(Live(session), Look(refresh=10), session=session, painted=session.start, driver=None)
    with late(SLOW):
        async with app.run_test() as pilot:
            await pilot.pause(SLOW + 0.5)
            assert app.return_value is None
            assert session.alive
            assert once.asked == 1
            once.let_go.set()
            await pilot.pause(0.1)
    session.wait(PATIENCE)
    assert once.asked == 1


async def test_who_leaves_before_the_run_has_begun_is_asked_how_as_of_a_live_run(once):
    session = Session(once)
    app = Console(Live(session), Look(refresh=0.5), session=session, driver=None)
    async with app.run_test():
        assert not app.source.over
        app.main.action_quit()
        assert app.return_value is None
    once.let_go.set()
    session.start()
    session.wait(PATIENCE)
    assert once.asked == 1


@pytest.mark.parametrize(
    "leaves",
    [
        pytest.param(lambda app: None, id="fails"),
        pytest.param(lambda app: Leave.HANGUP, id="hangs up"),
        pytest.param(lambda app: app.on_ready() or Leave.DETACH, id="is left at once"),
    ],
)
def test_a_console_that_is_gone_before_its_first_frame_leaves_a_run_that_starts_once(once, monkeypatch, leaves):
    once.let_go.set()
    monkeypatch.setattr(front_end, "why_headless", lambda **_: "")
    monkeypatch.setattr(Console, "on_ready", lambda self: self._painted())
    monkeypatch.setattr(Console, "run", leaves)
    with signals_put_back():
        code = front_end.run_with_front_end(once, once.place, load({}, {}), front_end.Audience(quiet=True))
    assert once.asked == 1
    assert code == ExitCode.FAILED  # as it ends


@pytest.fixture
def busy() -> Iterator[None]:
    """Two processes that take what they can of both cores."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


def rehearsed(place: Path, seconds: float, *flags: str) -> OnTerminal:
    place.mkdir(exist_ok=True)
    words = ["demo", "--scripted", *flags, "--out", place, "--run-id", "r"]
    return on_terminal(*words, cwd=place, first=LATE.format(seconds=seconds))


def test_a_console_beside_busy_loops_shows_its_run_and_never_detaches_by_itself(tmp_path, busy):
    """At once, and where its first frame is late."""
    with rehearsed(tmp_path / "soon", 0.0) as soon, rehearsed(tmp_path / "late", SLOW) as late:
        for terminal in (soon, late):
            screen = terminal.wait_for("cuda:0", PATIENCE)
            assert "SIMULATED" in screen.lines[0]
            assert "detached" not in terminal.output.decode(errors="replace")
            assert b"\x1b[?1049l" not in terminal.output  # the screen was not given back
            terminal.press("q")
            terminal.wait_for("The run is still running", PATIENCE)
            terminal.press("A")
        for terminal in (soon, late):
            assert terminal.wait(PATIENCE) == ExitCode.INTERRUPTED


def test_a_terminal_that_hangs_up_before_the_first_frame_leaves_a_run_that_goes_to_its_end(tmp_path):
    with rehearsed(tmp_path, 3, "--speed", "1000", "--roster", "sim-minilm-l6") as terminal:
        terminal.wait_for(lambda _: b"\x1b[?1049h" in terminal.output, PATIENCE)
        terminal.hang_up()
        assert terminal.wait(PATIENCE) == ExitCode.FAILED  # as it ends
    told = (tmp_path / "r" / "journal.jsonl").read_bytes()
    assert told.count(b'"run_started"') == 1
    assert b'"run_closed"' in told


def test_a_paused_run_whose_console_is_left_goes_on(once):
    session = Session(once)
    session.controls.paused = True
    session.detach()
    session.controls.apply_pending(lambda _: None)
    assert not session.controls.paused


def test_a_torch_that_a_thread_still_imports_is_asked_for_its_precision_when_it_is_whole(tmp_path):
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(0.3)\nget_default_dtype = lambda: 'torch.float32'\n")
    code = (
        "import sys, threading; from tests.conftest import precision; assert 'torch' not in sys.modules\n"
        f"sys.path.insert(0, {str(tmp_path)!r}); thread = threading.Thread(target=lambda: __import__('torch'))\n"
        "thread.start()\nwhile 'torch' not in sys.modules: pass\nprint(precision())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.stdout == "torch.float32\n", done.stderr


INTERRUPTED = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
import interlock.__main__
"""


@pytest.mark.parametrize("module", ["interlock.engine.errors", "interlock.console.flags"])
def test_a_command_that_is_interrupted_while_it_is_loaded_ends_as_later_and_says_nothing(tmp_path, module):
    command = [sys.executable, "-c", INTERRUPTED, module]
    done = subprocess.run(command, env=environment(), cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", "")
