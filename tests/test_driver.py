"""A small app on real terminals that hang up, stall and come back, beside a thread that must not notice.

The app is at the end of this file and runs as a process of its own; all of them run side by side, once.
"""

import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from textual.app import App, ComposeResult
from textual.widgets import Static

from interlock.console.look import Leave
from interlock.console.terminal.driver import HangupSafeDriver
from interlock.console.terminal.tty import quiet_descriptors
from interlock.engine.errors import ExitCode
from tests.builders import ROOT
from tests.pty_harness import OnTerminal, on_terminal

pytestmark = pytest.mark.alone

ROWS = 20
TICK = 0.005
GIVEN_BACK = b"\x1b[?1049l"
BUSY = 0.25
"""Of a core. An app that spins on a dead terminal takes all of one."""


@dataclass(frozen=True)
class Way:
    """How a terminal is left: after a stall or not, by hanging up or by the signal alone; the `deaf` ignore it."""

    paints: bool = True
    stalls: float = 0.0
    signal_only: bool = False
    deaf: bool = False
    early: bool = False
    seconds: float = 9.0


WAYS = {
    "idle": Way(paints=False),
    "mid-paint": Way(),
    "stalled": Way(stalls=2.0),
    "idle, no signal": Way(paints=False, deaf=True),
    "mid-paint, no signal": Way(deaf=True),
    "stalled, no signal": Way(stalls=2.0, deaf=True),
    "signal alone": Way(signal_only=True),
    "signal alone, stalled": Way(stalls=2.0, signal_only=True),
    "before the first paint": Way(early=True),
}
STALL = Way(stalls=5.0)


@dataclass(frozen=True)
class Ended:
    """What became of a process: what it says, and what was seen from outside."""

    code: int
    said: dict[str, Any]
    busy: float
    output: bytes
    screen: str = ""
    resized: str = ""
    stalled: tuple[float, float] = (0.0, 0.0)


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ended]]:
    directory = tmp_path_factory.mktemp("driver")
    with ExitStack() as stack, ThreadPoolExecutor(len(WAYS) + 1) as pool:
        started = {
            name: (stack.enter_context(_start(way, directory / f"{number}.json")), directory / f"{number}.json", way)
            for number, (name, way) in enumerate([*WAYS.items(), ("stall", STALL)])
        }
        futures = {
            name: pool.submit(_stall if name == "stall" else _leave, *details) for name, details in started.items()
        }
        yield {name: future.result() for name, future in futures.items()}


def _start(way: Way, report: Path) -> OnTerminal:
    flags = [name for name in ("paints", "deaf", "early") if getattr(way, name)]
    return OnTerminal([sys.executable, "-m", "tests.test_driver", report, way.seconds, *flags], cwd=ROOT)


def _busy(terminal: OnTerminal) -> float:
    """The share of a core that it takes in its first quiet second of five: leaving ends, spinning does not."""
    shares: list[float] = []
    while len(shares) < 5 and (not shares or shares[-1] >= BUSY):
        before, began = terminal.cpu_seconds(), time.monotonic()
        time.sleep(1.0)
        shares.append((terminal.cpu_seconds() - before) / (time.monotonic() - began))
    return shares[-1]


def _leave(terminal: OnTerminal, report: Path, way: Way) -> Ended:
    if way.early:
        _wait_until(report.with_suffix(".log").exists)
    else:
        terminal.wait_for(f"row {ROWS - 1}")
    if way.stalls:
        terminal.stall()
        time.sleep(way.stalls)
    if way.signal_only:
        terminal.signal(signal.SIGHUP)
    elif not way.early:
        terminal.hang_up()
    time.sleep(0.5)
    busy = _busy(terminal)
    terminal.signal(signal.SIGHUP)  # as shells do, once more
    if way.signal_only:
        terminal.go_on()
    return Ended(terminal.wait(), json.loads(report.read_text()), busy, terminal.output)


def _stall(terminal: OnTerminal, report: Path, way: Way) -> Ended:
    terminal.wait_for(f"row {ROWS - 1}")
    terminal.stall()
    began = time.monotonic()
    time.sleep(way.stalls)
    ended = time.monotonic()
    terminal.go_on()
    terminal.wait_for(lambda screen: len(set(_numbers(screen.lines))) == 1 and _numbers(screen.lines)[0] > 250)
    time.sleep(0.5)
    shown = terminal.screen().text
    terminal.resize(100, 30)
    time.sleep(0.5)
    resized = terminal.screen().text
    terminal.press("\x11")  # Textual's own way out
    return Ended(
        terminal.wait(), json.loads(report.read_text()), 0.0, terminal.output, screen=shown, resized=resized,
        stalled=(began, ended),
    )  # fmt: skip


def _wait_until(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not happened() and time.monotonic() < until:
        time.sleep(0.02)


def _numbers(lines: list[str]) -> list[int]:
    """How often each row was painted, as the screen says."""
    return [int(words[2]) for line in lines if (words := line.split())[:1] == ["row"]] or [0]


@pytest.mark.parametrize("way", WAYS)
def test_a_console_that_loses_its_terminal_says_so_and_finishes_its_work(ends: dict[str, Ended], way: str) -> None:
    said = ends[way].said
    assert ends[way].code == ExitCode.HANGUP
    assert said["left"] == Leave.HANGUP
    assert said["worked"] > WAYS[way].seconds
    assert said["ticks_after"] > 100


@pytest.mark.parametrize("way", WAYS)
def test_nothing_spins_and_no_screen_thread_is_left_without_a_terminal(ends: dict[str, Ended], way: str) -> None:
    assert ends[way].busy < BUSY
    # A terminal that is there and takes nothing may yet take what gives it back.
    assert set(ends[way].said["threads"]) <= {"MainThread", "terminal-output"}
    assert "terminal-output" not in ends[way].said["threads"] or way == "signal alone, stalled"


@pytest.mark.parametrize("way", WAYS)
def test_printing_without_a_terminal_goes_to_the_log_and_input_is_empty(ends: dict[str, Ended], way: str) -> None:
    said = ends[way].said
    assert said["descriptors"] == [os.devnull, said["log"], said["log"]]
    assert Path(said["log"]).read_text().splitlines()[-2:] == ["python, afterwards", "descriptor 2, afterwards"]


@pytest.mark.parametrize("way", ["signal alone", "signal alone, stalled"])
def test_a_hang_up_signal_gives_back_a_terminal_that_is_still_there(ends: dict[str, Ended], way: str) -> None:
    assert ends[way].output.count(GIVEN_BACK) == 1
    assert ends[way].output.rindex(b"\x1b[?1003l") > ends[way].output.index(b"\x1b[?1003h")


def test_the_work_keeps_its_pace_while_the_terminal_stalls_five_seconds(ends: dict[str, Ended]) -> None:
    began, ended = ends["stall"].stalled
    at = ends["stall"].said["at"]
    gaps = [later - earlier for earlier, later in itertools.pairwise(at) if began < earlier < ended]
    assert sum(began < each < ended for each in at) > 0.5 * (ended - began) / TICK  # sleeps oversleep on a busy machine
    assert max(gaps) < 0.5


def test_the_screen_is_whole_after_a_stall_and_counts_what_was_left_out(ends: dict[str, Ended]) -> None:
    painted = _numbers(ends["stall"].screen.splitlines())
    assert len(painted) == ROWS
    assert len(set(painted)) == 1
    assert ends["stall"].said["skipped"] > 50
    assert ends["stall"].code == ExitCode.COMPLETED


def test_the_first_paint_and_each_resize_take_the_size_of_the_terminal(ends: dict[str, Ended]) -> None:
    assert b"\x1b[25;" not in ends["mid-paint"].output
    assert b"\x1b[30;" in ends["stall"].output
    rows = ends["stall"].resized.splitlines()
    assert [row.split()[:2] for row in rows[:ROWS]] == [["row", str(number)] for number in range(ROWS)]
    assert not "".join(rows[ROWS:]).strip()


def test_printing_libraries_do_not_tear_the_screen_and_the_log_is_named(ends: dict[str, Ended]) -> None:
    said, output = ends["stall"].said, ends["stall"].output
    assert b"from a descriptor" not in output[: output.index(GIVEN_BACK)]
    text = Path(said["log"]).read_text()
    assert "from a descriptor\n" in text
    assert "from python\n" in text
    assert said["log"].encode() in output[output.index(GIVEN_BACK) :]


class _Rows(App[Leave]):
    """Paints all of its rows again and again, or once."""

    CSS = f"Static {{ height: {ROWS}; }}"

    def __init__(self, flags: set[str]) -> None:
        super().__init__(driver_class=HangupSafeDriver)
        self._flags, self._painted = flags, 0

    def compose(self) -> ComposeResult:
        yield Static(markup=False)

    def on_mount(self) -> None:
        self._paint()
        if "paints" in self._flags:
            self.set_interval(1 / 50, self._paint)
        if "deaf" in self._flags:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def _paint(self) -> None:
        self._painted += 1
        filler = chr(ord("a") + self._painted % 26) * 60  # so that every cell changes
        rows = "\n".join(f"row {row} {self._painted} {filler}" for row in range(ROWS))
        self.query_one(Static).update(rows, layout=False)
        if self._painted % 50 == 1:
            print("from python")
            os.write(1, b"from a descriptor\n")


class _Work(threading.Thread):
    """Notes when it was on, for so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(name="work")
        self.at: list[float] = []
        self._seconds = seconds

    def run(self) -> None:
        began = time.monotonic()
        while time.monotonic() - began < self._seconds:
            self.at.append(time.monotonic())
            time.sleep(TICK)


def _main(report: Path, seconds: float, flags: set[str]) -> int:
    began, log = time.monotonic(), report.with_suffix(".log")
    with quiet_descriptors(log) as terminal:
        work = _Work(seconds)
        work.start()
        if "early" in flags:
            os.kill(os.getpid(), signal.SIGHUP)
        app = _Rows(flags)
        left = app.run()
        driver = app._driver
    gone = time.monotonic()
    work.join()
    print("python, afterwards", file=sys.stderr, flush=True)
    os.write(2, b"descriptor 2, afterwards\n")
    said = {
        "left": left, "lost": terminal.lost, "log": str(log), "at": work.at, "worked": time.monotonic() - began,
        "ticks_after": sum(each > gone for each in work.at), "threads": [each.name for each in threading.enumerate()],
        "descriptors": [str(Path(f"/proc/self/fd/{number}").readlink()) for number in range(3)],
        "skipped": driver.skipped if isinstance(driver, HangupSafeDriver) else 0,
    }  # fmt: skip
    report.write_text(json.dumps(said))
    return ExitCode.HANGUP if left is Leave.HANGUP else ExitCode.COMPLETED


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), float(sys.argv[2]), set(sys.argv[3:])))


def test_a_console_that_is_stopped_and_continued_has_one_reader_and_one_writer_as_before(tmp_path):
    with on_terminal(cwd=tmp_path) as console:  # the form: no run beside it has threads that come and go
        console.wait_for("A NEW RUN", 60)
        counts = [_threads_after_a_stop(console) for _ in range(4)]
        assert counts[-1] == counts[0]


def _threads_after_a_stop(console: OnTerminal) -> int:
    """How many threads a console has that was stopped, continued, and painted anew."""
    console.signal(signal.SIGSTOP)
    painted = len(console.output)
    console.signal(signal.SIGCONT)
    console.wait_for(lambda _: b"\x1b[?1049h" in console.output[painted:], 60)
    time.sleep(0.5)
    return psutil.Process(console.process.pid).num_threads()
