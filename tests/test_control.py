"""A run is steered from other processes over the socket in its directory, and nobody else is heard there."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree

import pytest

from interlock.console.apps.run import Console
from interlock.console.control import client
from interlock.console.control import protocol as said
from interlock.console.control.client import Link, Remote, UnreachableError
from interlock.console.control.protocol import short
from interlock.console.control.server import CLIENTS, Server, steerable
from interlock.console.ctl import status, steer
from interlock.console.main import main
from interlock.console.sources.journal import Watched
from interlock.console.sources.session import Session
from interlock.engine.compute.controls import STOP, Controls
from interlock.engine.compute.schedule import Schedule
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.record import rundir
from interlock.engine.record.atomic import occupant
from interlock.engine.record.events import ControlApplied
from interlock.engine.record.journal import Journal
from interlock.engine.record.rundir import SOCKET
from tests.builders import ROOT, interlock, start, summary_of
from tests.processes import until
from tests.pty_harness import on_terminal
from tests.summaries import PATIENCE, lines_of, shows
from tools.recorded import Recorded

WRITER = """
import interlock.engine.flows.weightless  # takes seconds, which no reply should
import sys
from pathlib import Path
from interlock.console.sources.session import Session
from interlock.engine.record.rundir import RunDirectory
from tools.recorded import Recorded
session = Session(lambda controls: Recorded(RunDirectory(Path(sys.argv[1])), controls, speed=float(sys.argv[2])))
session.start()
sys.exit(session.result())
"""
FOREIGN = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
try:
    connection.sendall(b'{"do":"halt"}' + bytes([10]))
except BrokenPipeError:
    pass
print(connection.recv(1000).decode())
"""


class Served:
    """A directory with a socket and the controls behind it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.directory, self.controls = directory, Controls()
        self.server = Server(directory, self.controls, list)

    def connected(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(PATIENCE)
        with short(self.directory) as name:
            connection.connect(name)
        return connection

    def answers(self) -> bool:
        with Link(self.directory) as link:
            return link.ask(said.Inquiry(), said.Standing).stopping == self.controls.stop_requested


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / ("run" * 60))  # a path that no socket could have
    yield made
    made.server.close()


@contextmanager
def goes_on(directory: Path, speed: float) -> Iterator[Path]:
    """The directory of a run of another process."""
    process = start(directory, speed, cwd=ROOT, first=WRITER)
    try:
        until(lambda: (directory / SOCKET).exists() and (directory / "journal.jsonl").stat().st_size)
        yield directory
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """One that takes half a minute."""
    with goes_on(tmp_path / "r", 1.5) as directory:
        yield directory


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One that nobody steers, and that outlasts these tests."""
    with goes_on(tmp_path_factory.mktemp("runs") / "r", 0.1) as directory:
        yield directory


def test_the_socket_is_its_users_alone_and_goes_with_the_run(served):
    assert (served.directory / SOCKET).stat().st_mode & 0o777 == 0o600
    assert served.answers()
    served.server.close()
    assert list(served.directory.iterdir()) == []
    with pytest.raises(UnreachableError, match="no control socket"):
        Link(served.directory)


def test_what_is_asked_waits_for_the_engine_with_the_name_of_who_asked(served):
    with Link(served.directory) as link:
        asked = link.ask(said.Change("pause", "yes"), said.Answered)
        assert not asked.refused
        wanted = [ControlApplied(control="pause", value="yes", who=asked.who)]
        assert link.ask(said.Inquiry(), said.Standing).pending == wanted
    assert served.controls.pending() == wanted


def test_what_can_never_be_changed_is_refused_with_the_reason(served):
    served.controls.end(lambda event: None)
    with Link(served.directory) as link:
        assert link.ask(said.Change("pause", "yes"), said.Answered).refused == "nothing is left to compute"
        assert "pause" in link.ask(said.Inquiry(), said.Standing).refusals
        assert "cannot be 'perhaps'" in link.ask(said.Change("pause", "perhaps"), said.Answered).refused


def test_ten_thousand_random_bytes_only_cut_off_who_sent_them(served):
    with served.connected() as connection:
        with suppress(OSError):
            connection.sendall(os.urandom(10_000))
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert served.answers() and served.controls.pending() == [] and not served.controls.stop_requested


@pytest.mark.parametrize(
    "line",
    [
        b"{}", b"[]", b"null", b'{"do":"halt","more":1}', b'{"do":"change","control":1,"value":"yes"}', b"[" * 900,
        b'{"do":"foresee","schedule":"other"}', b"x" * (said.LONGEST + 1), b"\xff\xfe",
    ],
)  # fmt: skip
def test_what_is_no_request_cuts_off_who_said_it_and_changes_nothing(served, line):
    with served.connected() as connection:
        with suppress(OSError):
            connection.sendall(line + b"\n")
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    assert served.answers() and not served.controls.stop_requested


def test_a_request_that_comes_in_pieces_is_answered_once_it_is_whole(served):
    with served.connected() as connection:
        for piece in (b'{"do":', b'"halt"', b"}\n"):
            connection.sendall(piece)
        assert b'"refused":""' in connection.recv(1000)
    assert served.controls.code == ExitCode.STOPPED


def test_who_does_not_listen_is_cut_off_and_keeps_nobody_waiting(served):
    with served.connected() as connection:
        connection.settimeout(0.5)
        many = said.line_of(said.Inquiry()) * 1000
        sent = 0
        with suppress(OSError):  # the pipe is full, or closed
            while sent < 100 << 20:
                sent += connection.send(many)
        assert served.answers()


def test_one_more_than_may_be_connected_is_told_so_and_one_who_leaves_makes_room(served):
    connections = [served.connected() for _ in range(CLIENTS)]
    for each in connections:
        each.sendall(said.line_of(said.Inquiry()))
        assert each.recv(1000)
    with pytest.raises(UnreachableError, match=f"{CLIENTS} processes are connected already"):
        served.answers()
    for each in connections:
        each.close()

    def room() -> bool:
        with suppress(UnreachableError):
            return served.answers()
        return False

    until(room)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_is_refused_even_where_the_files_let_him_in(served):
    served.directory.chmod(0o755)
    (served.directory / SOCKET).chmod(0o666)
    program = [sys.executable, "-c", FOREIGN, SOCKET]
    done = subprocess.run(program, cwd=served.directory, capture_output=True, text=True)
    assert "the run belongs to" in done.stdout, done.stderr
    assert not served.controls.stop_requested


def test_a_socket_that_a_killed_session_left_is_no_obstacle(tmp_path):
    left = socket.socket(socket.AF_UNIX)
    with short(tmp_path) as name:
        left.bind(name)
    left.close()
    with pytest.raises(UnreachableError, match="gone"):
        Link(tmp_path)
    with steerable(tmp_path, Controls(), list) as note, Link(tmp_path) as link:
        assert note == "" and not link.ask(said.Inquiry(), said.Standing).stopping
    assert not (tmp_path / SOCKET).exists()


def test_a_place_without_sockets_leaves_a_run_that_says_so_once(tmp_path, monkeypatch, capsys):
    def refused(directory: Path) -> socket.socket:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("interlock.console.control.server._bound", refused)
    from interlock.console.front_ends.headless import Headless

    session = Session(lambda controls: Recorded(rundir.choose(tmp_path, "r", tmp_path, resume=False), controls))
    session.start()
    assert Headless(session, events=False, quiet=False).watch() in (ExitCode.COMPLETED, ExitCode.FAILED)
    assert capsys.readouterr().err.count("no control socket") == 1


def test_a_run_that_is_refused_leaves_no_directory_and_no_socket(tmp_path):
    def refused(controls: Controls) -> Recorded:
        run = Recorded(rundir.choose(tmp_path / "runs", "", tmp_path, resume=False), controls)

        def go() -> ExitCode:
            run.close()
            for file in ("journal.jsonl", ".session.json"):
                (run.directory.path / file).unlink(missing_ok=True)
            run.directory.unmake()
            raise UsageError("no such model")

        run.go = go
        return run

    session = Session(refused)
    session.start()
    with pytest.raises(UsageError):
        session.result()
    assert not (tmp_path / "runs").exists()


def test_a_stop_is_acknowledged_to_all_who_asked_for_it_once_the_run_has_stopped(tmp_path):
    run, asked = Recorded(rundir.RunDirectory(tmp_path / "r")), []
    run.play_to(0.3)
    real = run.controls.stop
    run.controls.stop = lambda *about: asked.append(real(*about))
    with ThreadPoolExecutor() as others:
        with steerable(tmp_path / "r", run.controls, list):
            first = steer(tmp_path / "r", "stop", None, 0.2)
            assert (first.state, first.code) == ("pending", 1) and "not over within 0.2 s" in first.reason
            both = [others.submit(steer, tmp_path / "r", "stop", None, PATIENCE) for _ in range(2)]
            until(lambda: len(asked) == 3)
            run.go()
        assert [each.result().state for each in both] == ["acknowledged"] * 2


def test_a_stop_that_comes_too_late_is_not_acknowledged(tmp_path):
    run, controls = Recorded(rundir.RunDirectory(tmp_path / "r")), Controls()
    with ThreadPoolExecutor() as others:
        with steerable(tmp_path / "r", controls, list):
            late = others.submit(steer, tmp_path / "r", "stop", None, PATIENCE)
            until(lambda: controls.stop_requested)
            run.go()
            controls.refuse(STOP, "it ends by itself")
            refused = steer(tmp_path / "r", "stop", None, PATIENCE)
        assert (refused.state, refused.reason) == ("refused", "it ends by itself")
        assert (late.result().state, late.result().reason) == (
            "refused", "the run ended before it could stop (incomplete)",
        )  # fmt: skip


def test_who_asks_a_run_that_is_refused_meanwhile_is_told_that_it_is_gone(served):
    (served.directory / "journal.jsonl").touch()
    with ThreadPoolExecutor() as others:
        asking = others.submit(steer, served.directory, "pause", None, PATIENCE)
        until(served.controls.pending)
        rmtree(served.directory)
        served.server.close()
        with pytest.raises(UnreachableError, match="the run was refused before any work"):
            asking.result()


def test_ctl_pauses_resumes_and_stops_a_run_of_another_process(running):
    told = json.loads(interlock("ctl", running, "pause", "--json").stdout)
    assert (told["state"], told["action"]) == ("acknowledged", "pause") and told["at"] and told["who"]
    status = json.loads(interlock("ctl", running, "status", "--json").stdout)
    assert status["state"] == "PAUSED" and f"pid {occupant(running).pid}" in status["in_use_by"]
    assert "resume acknowledged" in interlock("ctl", running, "resume").stdout
    assert "stop acknowledged" in interlock("ctl", running, "stop").stdout
    until(lambda: summary_of(running)["status"] == "stopped" if (running / "summary.json").exists() else False)
    controls = [(each["control"], each["value"]) for each in summary_of(running)["controls"]]
    assert controls == [("pause", "yes"), ("pause", "no"), ("stop", "yes")]
    *_, stopped = summary_of(running)["controls"]
    asker = rf"{re.escape(said.name_of(os.getuid()))}@\S+ \(pid \d+\)"
    assert re.fullmatch(asker, stopped["who"]) and f"stopped by {stopped['who']} " in summary_of(running)["reason"]
    until(lambda: occupant(running) is None)
    over = interlock("ctl", running, "pause", check=1)
    assert "the run is over (STOPPED)" in over.stderr and "--resume" in over.stderr
    assert "STOPPED" in interlock("ctl", running, "status").stdout


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("pause", "on"), "pause takes no value"),
        (("exclusive",), "exclusive"),
        (("fallback", "perhaps"), "'perhaps'"),
        (("sing",), "'sing'"),
        (("pause", "--timeout", "nan"), "expected a number of seconds, 0 or more, got 'nan'"),
        (("pause", "--timeout", "-3"), "expected a number of seconds, 0 or more, got '-3'"),
    ],
)
def test_ctl_refuses_what_it_cannot_ask_for_and_says_what_it_was(lasting, capsys, args, told):
    with suppress(SystemExit):
        assert main(["ctl", str(lasting), *args]) == ExitCode.USAGE
    assert told in capsys.readouterr().err.splitlines()[-1]


def test_the_status_of_what_is_no_journal_is_one_line_with_the_reason(tmp_path):
    (tmp_path / "r" / "journal.jsonl").mkdir(parents=True)
    told = interlock("ctl", tmp_path / "r", "status", check=1).stderr
    assert told.count("\n") == 1 and "journal.jsonl" in told


def test_a_killed_run_says_how_it_is_resumed_and_its_socket_goes_with_the_next_session(running):
    os.kill(occupant(running).pid, signal.SIGKILL)
    until(lambda: "process died" in interlock("ctl", running, "pause", check=1).stderr)
    assert (running / SOCKET).exists()
    session = Session(lambda controls: Recorded(rundir.RunDirectory(running), controls))
    session.start()
    session.result()
    assert not (running / SOCKET).exists()


def test_a_directory_in_use_is_refused_with_who_has_it_and_how_to_follow_it(lasting):
    with pytest.raises(UsageError) as refused:
        Journal(lasting / "journal.jsonl")
    assert f"pid {occupant(lasting).pid}" in str(refused.value)
    assert f"interlock watch {lasting}" in str(refused.value) and f"interlock ctl {lasting}" in str(refused.value)
    said = interlock("ctl", lasting.with_name("s"), "pause", check=2).stderr  # which there is not
    assert "runs in" in said and ": r" in said


def test_who_leaves_a_run_that_does_not_answer_need_not_wait_for_it(served, monkeypatch):
    monkeypatch.setattr(client, "PATIENCE", PATIENCE)
    asked, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(served.server, "_answer", lambda *_: asked.set() or go_on.wait())
    remote = Remote(served.directory)
    assert asked.wait(PATIENCE)
    began = time.monotonic()
    remote.close()
    go_on.set()
    assert time.monotonic() - began < PATIENCE / 2


def test_two_watchers_see_what_the_other_asked_until_the_journal_has_the_answer(running):
    watchers = [Watched(running, steered=True) for _ in range(2)]
    try:
        until(lambda: all(each.controls for each in watchers))
        first, second = watchers
        assert first.controls.ask("pause", "yes", "me") == ""
        assert [each.value for each in first.controls.pending()] == ["yes"]
        until(lambda: first.snapshot().paused and second.snapshot().paused)
        until(lambda: not first.controls.pending() and not second.controls.pending())
        assert interlock("ctl", running, "resume").returncode == 0
        until(lambda: not second.snapshot().paused)
        second.controls.stop(ExitCode.STOPPED, "me")
        until(lambda: first.snapshot().over)
        assert first.snapshot().phase == "stopped"
        until(lambda: first.controls is None and "no control socket" in first.unsteered)
    finally:
        for each in watchers:
            each.close()


def test_a_watcher_is_shown_what_a_schedule_would_do_as_the_run_itself_foresees_it(running):
    watcher = Watched(running, steered=True)
    try:
        until(lambda: watcher.controls and watcher.snapshot().passes)
        found = []
        until(lambda: found.append(watcher.foresee(Schedule.SHARED)) or found[-1])
        assert found[0] is None and not found[-1].unknown
        assert all(lease.batches and lease.devices for lease in found[-1].leases)
    finally:
        watcher.close()


def test_the_status_of_a_run_that_was_asked_to_stop_says_so(tmp_path):
    run, asked = Recorded(rundir.RunDirectory(tmp_path / "r")), Controls()
    run.play_to(0.3)
    with steerable(tmp_path / "r", asked, list):
        assert json.loads(status(tmp_path / "r", as_json=True))["state"] == "STALLED"  # it was recorded long ago
        asked.stop(ExitCode.STOPPED, "me")
        assert json.loads(status(tmp_path / "r", as_json=True))["state"] == "STOPPING"
        assert status(tmp_path / "r", as_json=False).startswith(f"{tmp_path / 'r'}: STOPPING")
    run.close()


def test_asking_a_run_that_cannot_be_reached_never_waits_and_says_so(tmp_path):
    remote = Remote(tmp_path)
    try:
        until(lambda: "no control socket" in remote.unreached)
        began = time.monotonic()
        remote.ask("pause", "yes", "me")
        assert remote.foresee(Schedule.SHARED) is None
        assert time.monotonic() - began < 0.1
        until(lambda: remote.told().startswith("no answer"))
        assert remote.pending() == [] and remote.foresee(Schedule.SHARED).unknown
    finally:
        remote.close()


def test_what_was_asked_when_the_connection_was_lost_is_told_as_unanswered(served, monkeypatch):
    real = Link.ask

    def lost(link: Link, request: said.Request, kind: type) -> object:
        if isinstance(request, said.Halt):
            raise UnreachableError("the run's process closed the connection")
        return real(link, request, kind)

    remote = Remote(served.directory)
    try:
        until(lambda: not remote.unreached)
        assert remote.told() == ""
        monkeypatch.setattr(Link, "ask", lost)
        remote.stop(ExitCode.STOPPED, "me")
        found: list[str] = []
        until(lambda: found.append(remote.told()) or found[-1])
        assert found[-1] == "no answer: the run's process closed the connection"
    finally:
        remote.close()


async def test_a_watched_run_is_steered_from_the_screen(running):
    watcher = Watched(running, steered=True)
    app = Console(watcher, driver=None)
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            await shows(pilot, lambda: bool(watcher.controls and app.main.snapshot.passes))
            await pilot.press("x")
            await shows(pilot, lambda: len(app.screen_stack) > 2)
            await pilot.press("escape", "P")
            await shows(pilot, lambda: app.main.pending == {"pause": "yes"} or app.main.snapshot.paused)
            await shows(pilot, lambda: app.main.snapshot.paused and not app.main.pending)
            await pilot.press("S", "y")
            await shows(pilot, lambda: app.main.snapshot.over)
            assert app.main.snapshot.phase == "stopped" and app.is_running
    finally:
        watcher.close()


async def test_a_stop_that_could_not_be_sent_is_not_shown_and_hides_no_dead_process(tmp_path):
    run = Recorded(rundir.RunDirectory(tmp_path / "r"))
    run.play_to(0.3)
    asked = Controls()
    server = Server(tmp_path / "r", asked, list)
    watcher = Watched(tmp_path / "r", steered=True)
    app = Console(watcher, driver=None)
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            await shows(pilot, lambda: watcher.controls is not None)
            await pilot.press("S")
            server.close()
            await shows(pilot, lambda: watcher.controls is None)
            await pilot.press("y")
            assert not app.main.stopping and "cannot steer" in lines_of(app)[-1]
            server = Server(tmp_path / "r", asked, list)
            await shows(pilot, lambda: watcher.controls is not None)
            await pilot.press("S", "y")
            assert "after the current batch" in lines_of(app)[-1] and "q asks" not in lines_of(app)[-1]
            await shows(pilot, lambda: "STOPPING" in lines_of(app)[0] and asked.stop_requested)
            server.close()
            await shows(pilot, lambda: "STOPPING" not in lines_of(app)[0])
            run.close()
            await shows(pilot, lambda: "RUN PROCESS DIED" in lines_of(app)[0])
    finally:
        watcher.close()
        server.close()


def test_watch_steers_a_headless_run_on_a_terminal_and_only_looks_with_readonly(tmp_path):
    run = start("demo", "--scripted", "--no-ui", "--run-id", "r", cwd=tmp_path)
    directory = tmp_path / "runs" / "r"
    try:
        until(lambda: directory.exists() and (directory / SOCKET).exists())
        with (
            on_terminal("watch", "runs/r", "--readonly", cwd=tmp_path, columns=100, rows=30) as looking,
            on_terminal("watch", "runs/r", cwd=tmp_path, columns=100, rows=30) as steering,
        ):
            for terminal in (looking, steering):
                terminal.wait_for("HELD", PATIENCE)
            looking.press("P")
            looking.wait_for("--readonly", PATIENCE)
            steering.press("P")
            for terminal in (looking, steering):
                terminal.wait_for(lambda screen: "PAUSED" in screen.lines[0], PATIENCE)
            assert "resume acknowledged" in interlock("ctl", "runs/r", "resume", cwd=tmp_path).stdout
            steering.wait_for(lambda screen: "PAUSED" not in screen.lines[0], PATIENCE)
            steering.press("S")
            steering.wait_for("Stop the run?", PATIENCE)
            steering.press("y")
            for terminal in (looking, steering):
                terminal.wait_for(lambda screen: "STOPPED" in screen.lines[0], PATIENCE)
        assert run.wait(PATIENCE) == ExitCode.STOPPED
    finally:
        run.kill()
