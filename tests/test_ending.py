"""How the process ends: outputs that cannot be written, signals that come late, and what libraries leave running."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from interlock.console.cli import parse
from interlock.console.front_ends.headless import stopped_by_signals
from interlock.console.main import signals_put_back
from interlock.console.sources import session as sources
from interlock.console.sources.session import Session
from interlock.engine.errors import ExitCode, Stopped
from interlock.engine.flows.run import Run
from interlock.engine.record import atomic
from interlock.engine.record.events import RunStarted
from interlock.engine.record.journal import Journal
from interlock.engine.record.recorder import Recorder
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.settings import load
from interlock.engine.standing import judgement
from interlock.engine.standing.closed import close_of
from tests import snapshots
from tests.builders import corpus, interlock, sentences, summary_of, toml
from tests.processes import until
from tools.samples import sample

UNWRITABLE = "import os; os.dup2(os.open(os.devnull, os.O_RDONLY), 1)"
"""What gives a command a stdout that takes nothing, as a full disk does."""
LATE = """
import os
from interlock.console.front_ends import dispatch
def say(line, told=dispatch.say):
    told(line)
    if line.startswith("summary: "):
        os.kill(os.getpid(), {number})
dispatch.say = say
"""
"""What sends a command a signal as soon as it has said where its summary is."""


@pytest.fixture
def words(tmp_path, tiny_a):
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": sentences(12)}})
    return ["run", chunks, "--out", tmp_path / "runs", "--run-id", "r", "--roster", tiny_a]


@pytest.mark.parametrize("output", ["--events", "--summary"])
def test_a_stdout_that_cannot_be_written_is_one_line_and_exit_1_and_the_run_is_kept(tmp_path, words, output):
    said = interlock(*words, "--quiet", output, "-", first=UNWRITABLE, check=1).stderr.splitlines()
    assert len(said) == 1
    assert said[0].startswith("interlock: cannot write stdout: ")
    assert summary_of(tmp_path / "runs" / "r")["status"] == "completed"


def test_what_a_command_prints_at_its_end_and_cannot_be_written_is_one_line_and_exit_1():
    (line,) = interlock("config", "show", first=UNWRITABLE, check=1).stderr.splitlines()
    assert line.startswith("interlock: ")


LEFT = """
import errno, os
rmdir = os.rmdir
def left(path, **more):
    if ".tokens-" in str(path):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
    rmdir(path, **more)
os.rmdir = left
"""
"""What keeps the scratch of a session in its place, as NFS does while a file in it is open."""


def test_a_run_is_completed_though_its_scratch_stays_until_the_next_session(tmp_path, words):
    interlock(*words, first=LEFT)
    assert summary_of(tmp_path / "runs" / "r")["status"] == "completed"
    assert len(scratch := list((tmp_path / "runs" / "r").glob(".tokens-*"))) == 1
    interlock(*words, "--resume")
    assert not scratch[0].exists()


def test_a_summary_goes_into_the_pipe_of_its_name_which_stays_a_pipe(tmp_path, words):
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        interlock(*words, "--summary", pipe)
        assert pipe.is_fifo()
        assert os.read(reader, 1 << 20) == (tmp_path / "runs" / "r" / "summary.json").read_bytes()
    finally:
        os.close(reader)


def test_a_summary_for_a_pipe_without_a_reader_is_one_line_and_exit_1(tmp_path, words):
    os.mkfifo(pipe := tmp_path / "pipe")
    (line,) = interlock(*words, "--quiet", "--summary", pipe, check=1).stderr.splitlines()
    assert line.startswith(f"interlock: cannot write {pipe}: ")


@pytest.mark.parametrize(
    ("target", "said"),
    [("nowhere/s.json", "nowhere is not a directory: create it"), ("in", "expected a file, found a directory")],
)
def test_a_place_that_takes_no_summary_is_refused_before_any_work_and_not_made(tmp_path, words, target, said):
    assert said in interlock(*words, "--summary", target, cwd=tmp_path, check=2).stderr
    assert not (tmp_path / "nowhere").exists() and not (tmp_path / "runs").exists()


def test_a_summary_may_lie_where_the_run_makes_the_directory_of_runs(tmp_path, words):
    interlock(*words, "--summary", tmp_path / "runs" / "s.json")
    assert (tmp_path / "runs" / "s.json").read_bytes() == (tmp_path / "runs" / "r" / "summary.json").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_after_the_end_of_a_run_changes_nothing(words, number):
    said = interlock(*words, first=LATE.format(number=int(number)), check=0).stderr.splitlines()
    assert said[-1].startswith("next: interlock view ")


def test_what_libraries_left_for_the_end_of_the_process_is_not_waited_for(words):
    """torch under a thread that still reads would abort there, and change the exit code."""
    interlock(*words, first="import atexit, os; atexit.register(os.abort)", check=0)


def test_a_second_signal_after_the_end_of_a_run_leaves_with_the_exit_code_of_the_run(monkeypatch):
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)

    def refused(controls):
        raise LookupError("no run")

    session = Session(refused)
    with signals_put_back():
        stopped_by_signals(session)
        session.start()
        session.wait(60)
        for sent in ([], [1]):
            signal.raise_signal(signal.SIGTERM)
            assert left == sent
    assert session.controls.code is None


def test_a_second_signal_in_a_run_closes_its_journal_and_says_how_to_go_on(tmp_path, monkeypatch, capfd):
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    directory, ended = RunDirectory(tmp_path / "runs" / "r"), threading.Event()
    recorder = Recorder(Journal(directory.journal), "cpu")
    recorder.emit(sample(RunStarted, 1))
    session = Session(lambda _: SimpleNamespace(recorder=recorder, directory=directory, go=ended.wait))
    with signals_put_back():
        stopped_by_signals(session)
        session.start()
        while not (session.work and (directory.path / "control.sock").exists()):
            time.sleep(0.001)
        atomic.enter(directory.path)
        scratch = directory.scratch()
        signal.raise_signal(signal.SIGINT)
        assert close_of(directory.journal) is None
        signal.raise_signal(signal.SIGINT)
    assert {each.name for each in directory.path.iterdir()} == {"journal.jsonl"}
    ended.set()
    scratch.cleanup()
    assert left == [130] and close_of(directory.journal).exit_code == 130
    (again,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("next: ")]
    assert parse(shlex.split(again)[2:]).resume


def test_a_second_signal_while_a_session_is_taken_back_writes_nothing_behind_it(tmp_path, tiny_a, monkeypatch):
    chunks, said, late = corpus(tmp_path / "in", {"Docs": {"a.jsonl": ["a"]}}), [], []
    rewind = Journal.rewind
    settings = load({"out": str(tmp_path / "runs"), "roster": str(tiny_a), "devices": "cpu"}, {})

    def rewound(journal):
        rewind(journal)
        late.append(threading.Thread(target=lambda: said.append(session.close("", ExitCode.INTERRUPTED))))
        late[0].start()
        late[0].join(1)

    monkeypatch.setattr(Journal, "rewind", rewound)
    session = Session(lambda controls: Run(chunks, settings, controls))
    session.controls.stop(ExitCode.INTERRUPTED)
    session.start()
    with pytest.raises(Stopped, match="this session did nothing"):
        session.result()
    late[0].join()
    assert said == [None] and not (tmp_path / "runs").exists()


HANGS = """
import threading
from interlock.console.sources import session
from interlock.engine.compute.instance import ModelInstance
from interlock.engine.standing import judgement
session.LOOK, judgement.HUNG, attempt, tried = 0.2, 1.0, ModelInstance.attempt, []
def hangs(self, rows, *more):
    tried.append(len(rows))
    return threading.Event().wait() if len(tried) == 4 else attempt(self, rows, *more)
ModelInstance.attempt = hangs
"""


def test_a_gpu_that_hangs_ends_the_run_which_goes_on_from_there(tmp_path, tiny_a):
    chunks, out = corpus(tmp_path / "in", {"Docs": {"a.jsonl": sentences(60)}}), tmp_path / "runs"
    limits = toml(tmp_path / "small.toml", {"tiny": {"source": str(tiny_a), "batch_tokens": 64}})
    words = ("run", chunks, "--config", limits, "--roster", "tiny", "--devices", "sim:T4", "--run-id", "r")
    told = interlock(*words, "--out", out, "--no-ui", first=HANGS, check=4).stderr
    summary = summary_of(out / "r")
    assert (summary["status"], summary["exit_code"]) == ("stopped", 4) and "cuda:0" in summary["reason"]
    (again,) = [line for line in told.splitlines() if "--resume" in line and line.startswith("next: ")]
    interlock(*shlex.split(again)[2:], "--no-ui", check=0)
    assert summary_of(out / "r")["status"] == "completed"


@pytest.mark.parametrize("what", ["hung", "paused", "unleased"])
def test_only_a_gpu_that_is_to_answer_ends_a_run_and_not_one_that_waited_long(monkeypatch, tmp_path, what):
    """A pause of half an hour ends; then the GPUs have all their time again."""
    monkeypatch.setattr(sources, "LOOK", 0.01)
    monkeypatch.setattr(judgement, "HUNG", 0.2)
    idle = snapshots.sample(slowest=0.0)
    runs = replace(idle, devices=tuple(replace(each, leased=True) for each in idle.devices))
    waits = {"hung": runs, "paused": replace(runs, paused=True), "unleased": idle}[what]
    looks, ended = [], threading.Event()

    def look():
        looks.append(1)
        return waits if len(looks) < 60 else runs

    recorder = SimpleNamespace(snapshot=look, device_kind="sim", look=lambda _: None)
    session = Session(lambda _: SimpleNamespace(recorder=recorder, directory=RunDirectory(tmp_path), go=ended.wait))
    closed = []
    monkeypatch.setattr(session, "close", lambda *_: closed.append(len(looks)))
    session.start()
    until(lambda: closed)
    ended.set()
    assert closed[0] < 60 if what == "hung" else closed[0] > 70


def shell(line, *words, cwd):
    """Run a command as a shell begins it, with redirections in `line` behind its words."""
    command = shlex.join(map(str, (sys.executable, "-m", "interlock", *words)))
    return subprocess.run(["bash", "-c", f"{command} {line}"], cwd=cwd, capture_output=True, text=True)


def test_a_run_without_any_standard_stream_is_delivered(tmp_path, tiny_a):
    chunks = corpus(tmp_path / "in", {"Docs": {"a.jsonl": sentences(5)}})
    words = ("run", chunks, "--roster", tiny_a, "--devices", "cpu", "--run-id", "r", "--out", tmp_path / "runs")
    assert shell("<&- >&- 2>&-", *words, cwd=tmp_path).returncode == 0
    assert summary_of(tmp_path / "runs" / "r")["status"] == "completed"


@pytest.mark.parametrize("line", [">&-", "> /dev/full"])
def test_output_that_is_lost_is_told_with_its_exit_code(tmp_path, line):
    for words in (("schema",), ("config", "show"), ("run", "--help")):
        done = shell(line, *words, cwd=tmp_path)
        assert done.returncode == 1 and done.stderr.startswith("interlock: cannot write stdout: ")


def test_a_working_directory_that_is_gone_is_told(tmp_path):
    gone = f"mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir ../gone && {sys.executable} -m interlock plan x"
    done = subprocess.run(["bash", "-c", gone], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        2, "interlock: the working directory does not exist any more: choose another with `cd`\n",
    )  # fmt: skip
