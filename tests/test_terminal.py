"""Whether a console can be shown, what is printed while one is, what reaches a terminal that is slow, and the bell."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from interlock.console.apps import run as notify
from interlock.console.streams import draws_only_ascii
from interlock.console.terminal.driver import MOST_BYTES, OutputThread
from interlock.console.terminal.tty import Surroundings, quiet_descriptors, why_headless
from interlock.engine.record.snapshot import Snapshot
from interlock.widgets.formats import render
from tests.builders import JOINERS, ROOT, corpus, environment, tiny_model
from tests.pty_harness import OnTerminal

PATIENCE = 20.0
"""Seconds after which what has not come does not come: a machine with much to do is no failure."""
SOON = 5.0
"""Seconds. Who waits for a stalled terminal waits for ever."""
GOOD = Surroundings({"TERM": "xterm-256color"}, stdin=True, stderr=True)
FLAGS = [({"no_ui": True}, "--no-ui"), ({"events": True}, "events"), ({"summary": "-"}, "summary")]
REFUSED = [
    (replace(GOOD, stdin=False), "stdin"),
    (replace(GOOD, stderr=False), "stderr"),
    (replace(GOOD, foreground=False), "background"),
    (replace(GOOD, environment={}), "TERM is not set"),
    (replace(GOOD, environment={"TERM": "dumb"}), "TERM is dumb"),
    (replace(GOOD, environment={"TERM": "xterm", "CI": "true"}), "CI"),
    (replace(GOOD, environment={"TERM": "xterm-color", "JPY_PARENT_PID": "7"}), "notebook"),
]
ALLOWED = [
    {"TERM": "xterm", "CI": "false"},
    {"TERM": "xterm", "CI": ""},
    {"TERM": "xterm-color"},
    {"TERM": "xterm-256color", "JPY_PARENT_PID": "7"},
    {"TERM": "linux", "KAGGLE_KERNEL_RUN_TYPE": "Interactive"},
    {"TERM": "screen", "NO_COLOR": "1"},
]
WHY = "from interlock.console.terminal.tty import why_headless; print(why_headless() or 'a console')"


def test_a_terminal_can_have_a_console_when_nothing_speaks_against_it_and_else_the_reason_is_told() -> None:
    for allowed in ALLOWED:
        around = replace(GOOD, environment=allowed)
        assert why_headless(around=around) == why_headless(around=around, summary="there.json") == ""
    for refused, words in REFUSED:
        assert words in why_headless(around=refused)
    for flags, words in FLAGS:  # the first reason, whatever else there is
        for around in (GOOD, Surroundings({}, stdin=False, stderr=False)):
            assert words in why_headless(around=around, **flags)


@given(st.text())
def test_a_named_term_cannot_steer_the_terminal(term: str) -> None:
    assert not _steers(why_headless(around=replace(GOOD, environment={"TERM": term})))


def test_a_process_notices_redirected_streams_and_the_background() -> None:
    python = [sys.executable, "-c", WHY]
    with OnTerminal(python, cwd=ROOT) as terminal:
        terminal.wait_for("a console")
    with OnTerminal(["sh", "-mc", f'{sys.executable} -c "{WHY}" & wait'], cwd=ROOT) as terminal:
        terminal.wait_for("started in the background")
    piped = subprocess.run(python, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert piped.stdout == "stdin is not a terminal\n"


@pytest.mark.parametrize("seen", ["redirected", "terminal"])
def test_what_prints_while_a_terminal_is_held_goes_to_the_log(tmp_path: Path, seen: str) -> None:
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from interlock.console.terminal.tty import quiet_descriptors\n"
        "print('before')\n"
        f"with quiet_descriptors(Path({str(tmp_path / 'deep/log')!r})) as held:\n"
        "    print('printed'); os.system('echo a child; cat'); os.write(2, b'native\\n')\n"
        "    os.write(held.writes, b'the screen')\n"
        "print('after ' + sys.stdin.readline())\n"
    )
    out = tmp_path / "out"
    command = [sys.executable, "-c", script]
    if seen == "redirected":
        command = ["sh", "-c", 'exec "$0" "$@" >' + str(out), *command]
    with OnTerminal(command, cwd=ROOT) as terminal:
        terminal.wait_for("the screen")
        terminal.press("typed\r")
        assert terminal.wait() == 0
        time.sleep(0.1)
        painted = terminal.screen().text
    told = out.read_text() if seen == "redirected" else painted
    assert "before" in told
    assert "after typed" in told
    assert sorted((tmp_path / "deep/log").read_text().split()) == ["a", "child", "native", "printed"]
    assert "native" not in painted
    assert f"while the console was open: {tmp_path / 'deep/log'}"[:48] in painted


def test_a_held_terminal_without_prints_leaves_no_file_and_restores_signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGHUP)
    with quiet_descriptors():
        assert list(tmp_path.iterdir())
        assert signal.getsignal(signal.SIGHUP) is not before
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGHUP) is before
    assert capfd.readouterr() == ("", "")


def test_a_held_terminal_is_given_back_when_its_holder_fails(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with suppress(ZeroDivisionError), quiet_descriptors(tmp_path / "log"):
        os.write(2, b"unseen")
        raise ZeroDivisionError
    os.write(2, b"seen")
    assert capfd.readouterr().err == f"output captured while the console was open: {tmp_path / 'log'}\nseen"


def _steers(text: str) -> bool:
    return any(unicodedata.category(sign) in ("Cc", "Cf", "Zl", "Zp") for sign in text if sign not in JOINERS)


class _Line:
    """A wire on a terminal, and the side where it arrives."""

    def __init__(self, *, blocking: bool = False) -> None:
        self.far, near = pty.openpty()
        os.set_blocking(near, blocking)
        self.caught_up = self.lost = 0
        self.wire = OutputThread(near, near, self._up, self._gone)
        os.close(near)

    def read(self, whole: Callable[[str], bool]) -> str:
        """What comes until it is whole, and right after that; or until nothing has come for long."""
        found = b""
        with suppress(OSError):
            while select.select([self.far], [], [], 0.1 if whole(found.decode(errors="replace")) else PATIENCE)[0]:
                found += os.read(self.far, 1 << 16)
        return found.decode()

    def _up(self) -> None:
        self.caught_up += 1

    def _gone(self) -> None:
        self.lost += 1


@pytest.fixture(params=[False, True], ids=["nonblocking", "blocking"])
def line(request: pytest.FixtureRequest) -> Iterator[_Line]:
    made = _Line(blocking=request.param)
    yield made
    with suppress(OSError):
        os.close(made.far)
    made.wire.close(1.0)


def test_everything_arrives_in_order_on_a_terminal_that_keeps_up(line: _Line) -> None:
    frames = [f"{number} é\x1b[1m;" for number in range(100)]
    for frame in frames:
        line.wire.write(frame)
    assert line.read(lambda text: text.endswith(frames[-1])) == "".join(frames)
    assert (line.wire.skipped, line.caught_up, line.lost) == (0, 0, 0)


def test_nobody_waits_for_a_stalled_terminal_and_what_follows_is_left_out(line: _Line) -> None:
    began = time.monotonic()
    for number in range(1000):
        line.wire.write(f"<{number:04}{'x' * 994}>")
    assert time.monotonic() - began < SOON
    skipped = line.wire.skipped
    arrived = line.read(lambda text: text.count(">") == 1000 - skipped)
    assert 0 < 1000 - skipped <= (MOST_BYTES + 40_000) / 1000
    assert arrived.count("<") == arrived.count(">") == 1000 - skipped
    assert line.caught_up == 1
    line.wire.write("afterwards")
    assert line.read(lambda text: text == "afterwards") == "afterwards"


def test_a_frame_over_the_limit_goes_whole_when_nothing_is_on_its_way(line: _Line) -> None:
    frame = "y" * (3 * MOST_BYTES)
    line.wire.write(frame)
    assert line.read(lambda text: len(text) == len(frame)) == frame
    assert line.wire.skipped == 0


def test_giving_back_a_stalled_terminal_loses_nothing_and_does_not_wait(line: _Line) -> None:
    for _ in range(200):
        line.wire.write("z" * 1000)
    line.wire.leave()
    line.wire.write("given back")
    began = time.monotonic()
    line.wire.close(0.2)
    assert time.monotonic() - began < SOON
    line.wire.write("too late")
    assert line.read(lambda text: "given back" in text).endswith("given back")


def test_a_hang_up_is_noticed_at_once_and_writing_goes_on_in_vain(line: _Line) -> None:
    line.wire.write("before" * 20_000)
    os.close(line.far)
    until = time.monotonic() + PATIENCE
    while not line.lost and time.monotonic() < until:
        time.sleep(0.01)
    line.wire.write("after")
    line.wire.close(1.0)
    assert line.lost == 1


@given(st.text(), st.text())
def test_the_call_to_an_operator_is_one_sequence_and_steers_nothing(name: str, reason: str) -> None:
    sequence = notify.call(notify.words(Snapshot(run_id=name, reason=reason, phase="failed")))
    assert sequence.startswith("\a\x1b]9;interlock ")
    assert sequence.endswith("\x1b\\")
    assert not _steers(sequence[5:-2])
    assert len(sequence) <= notify.CALL + 7


def test_the_call_to_an_operator_says_when_a_run_is_not_real() -> None:
    assert notify.words(Snapshot(device_kind="sim", phase="completed")) == "interlock SIMULATED run DONE"
    assert notify.words(Snapshot(device_kind="scripted", run_id="a", phase="failed", reason="no")) == (
        "interlock SCRIPTED a FAILED: no"
    )


@pytest.mark.parametrize(
    ("environment", "ascii"),
    [
        ({"TERM": "xterm-256color", "LANG": "en_US.UTF-8"}, False),
        ({"TERM": "xterm-256color"}, False),
        ({"TERM": "xterm-256color", "LANG": "C.utf8"}, False),
        ({"TERM": "xterm", "LANG": "C"}, True),
        ({"TERM": "xterm", "LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),
        ({"TERM": "xterm", "LC_CTYPE": "C.UTF-8"}, False),
        ({"TERM": "xterm", "LANG": "en_US.UTF-8", "LC_ALL": "de_DE.ISO-8859-1"}, True),
        ({"TERM": "linux", "LANG": "en_US.UTF-8"}, True),
        ({"TERM": "vt100", "LANG": "en_US.UTF-8"}, True),
        ({"TERM": "linux-16color"}, True),
    ],
)
def test_a_terminal_that_shows_only_ascii_is_known_by_its_name_or_its_locale(environment, ascii):
    assert draws_only_ascii(environment) is ascii


def on_a_terminal(home, *args, **env):
    """What a command writes on a terminal of these variables."""
    ours, theirs = os.openpty()
    surroundings = {k: v for k, v in environment().items() if not k.startswith(("LC_", "LANG"))} | env
    with subprocess.Popen(
        [sys.executable, "-m", "interlock", *map(str, args)],
        cwd=home, env=surroundings, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
    ) as process:  # fmt: skip
        os.close(theirs)
        said = b""
        with suppress(OSError):  # how the other side's end is told
            while piece := os.read(ours, 65536):
                said += piece
    os.close(ours)
    assert process.returncode in (0, 1, 2), said
    return said


NAMED = ("模型名前", "Документы", "مستندات", "🚀")


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_what_a_terminal_cannot_show_is_not_sent_to_it_nor_anything_that_steers_it(tmp_path, half):
    for name in NAMED:
        tiny_model(tmp_path / name, seed=1)
    texts = [{"text": "\x1b[31mтекст 日本語", "metadata": {"source_path": "日\x1b]0;x\x07\u009b本.pdf"}}, {"text": ""}]
    corpus(tmp_path / "in", {name: {f"{name}_chunks.json": texts} for name in NAMED})
    roster = ",".join(f"./{name}" for name in NAMED)
    run = ("run", "in", "--roster", roster, "--run-id", "r", "--qdrant", "store", "--max-refused", "1", "--no-ui")
    commands = [
        run, ("run", "in", "--roster", roster, "--quiet", "--no-ui"), ("plan", "in", "--roster", roster),
        ("run", "нет", "--no-ui"),
        ("runs", "--plain"), ("view", "runs/r", "--plain"), ("ctl", "runs/r", "status"), ("models", NAMED[0]),
        ("search", "store", "привет", "--collection", NAMED[0]), ("plan", "in", "--日本"),
        ("upload", "runs/r", "--qdrant", "http://127.0.0.1:9", "--dry-run", "--json"),
    ]  # fmt: skip
    for words in commands[:1] + commands[1 + half :: 2]:  # what the first writes others read
        said = on_a_terminal(tmp_path, *words, LC_ALL="C", TERM="xterm")
        assert max(said) < 0x7F and not {*said} & {0x1B, 0x07}, (words, said)
        assert b"UnicodeEncodeError" not in said
    said = on_a_terminal(tmp_path, *commands[2], LC_ALL="C.UTF-8", TERM="xterm").decode()
    assert "模型名前" in said and "\x1b" not in said
    pipe = subprocess.run(
        [sys.executable, "-m", "interlock", "plan", "in", "--roster", roster],
        cwd=tmp_path, env=environment({"PYTHONIOENCODING": "iso-8859-1"}), capture_output=True, check=True,
    )  # fmt: skip
    assert b"????????" in pipe.stdout and pipe.stderr.isascii()


def test_columns_stand_under_one_another_beside_names_that_are_twice_as_wide():
    lines = render(["model", "rows"], [["模型名前", "1"], ["plain", "12"], ["🚀 x", "3"]]).splitlines()
    assert {cell_len(line) for line in lines} == {8 + 2 + 4}
    table = [list(map(cell_len, line.split("  "))) for line in lines[:2]]
    assert table[1] == [8, 4]


@pytest.mark.parametrize("env", [{"TERM": "linux", "LANG": "C.UTF-8"}, {"TERM": "xterm-256color", "LC_ALL": "POSIX"}])
def test_a_console_on_an_old_terminal_draws_ascii_by_itself(tmp_path, env):
    with OnTerminal([sys.executable, "-m", "interlock", "demo", "--scripted"], cwd=tmp_path, env=env) as terminal:
        screen = terminal.wait_for("Passes", 60)
        assert screen.text.isascii()
        terminal.press("q")


def test_nothing_of_the_picture_is_left_where_a_terminal_has_no_other_screen(tmp_path):
    """The screen of these tests knows no alternate one."""
    words = [sys.executable, "-m", "interlock", "demo", "--scripted"]
    with OnTerminal(words, cwd=tmp_path) as terminal:
        terminal.wait_for("Passes", 60)
        terminal.press("qA")
        assert terminal.wait() == 130
        left = terminal.wait_for("aborted", 20)
    assert left.lines[0].startswith("aborted")
    assert "Passes" not in left.text
