"""What nothing below knew how to tell is one line, an exit code and a file for whoever mends it; limits are no bugs."""

import errno
import json
import os
import shutil
import stat
import subprocess
import threading
import zlib
from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from interlock.console.front_ends.dispatch import Audience, run_with_front_end
from interlock.console.main import main, signals_put_back
from interlock.console.sources.session import Session
from interlock.engine import crash
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import DiskError, ExitCode, InterlockError, Stopped, UsageError, limit
from interlock.engine.flows.run import Run
from interlock.engine.flows.sessions import Continuation, SessionEnd
from interlock.engine.record import atomic, journal, rundir, summary, words
from interlock.engine.record import events as ev
from interlock.engine.record.events import Entry
from interlock.engine.record.facts import DeviceFacts
from interlock.engine.record.journal import Journal
from interlock.engine.settings import continued, load, recorded
from tests.builders import command, corpus, environment, events_of, interlock, sentences, summary_of

STEERING = "a\x7fb\x80c\x9bd\u202ee\u2066f\u2028g\u2029h\u200fi\u061cj ü 漢 🙂"


class PanicException(BaseException):
    pass


@pytest.fixture
def chunks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": sentences(12)}})


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Where temporary files go."""
    (place := tmp_path / "tmp").mkdir()
    monkeypatch.setattr(crash.tempfile, "tempdir", str(place))
    return place


def raising(error):
    def call(*_, **__):
        raise error

    return call


BUGS = [
    KeyError("x"),
    RecursionError("deep"),
    PanicException("range end\nsecond line"),
    ZeroDivisionError(),
    GeneratorExit(),
]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: type(bug).__name__)
def test_an_error_that_nobody_knew_is_one_line_and_a_crash_file(bug, capfd, monkeypatch, temporary):
    monkeypatch.setattr("interlock.console.answers.doctor", raising(bug))
    monkeypatch.setattr(crash.sys, "argv", ["interlock", "--qdrant", "https://me:geheim@host", "--api-key=geheim"])
    assert main(["doctor"]) == ExitCode.FAILED
    out, err = capfd.readouterr()
    (kept,) = temporary.iterdir()
    assert (out, len(err.splitlines())) == ("", 1)
    assert type(bug).__name__ in err and "a bug in interlock or a faulty machine" in err and str(kept) in err
    told = kept.read_text()
    assert "Traceback" in told and "test_top.py" in told and "Python 3" in told
    assert "geheim" not in told + err
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


LIMITS = {
    "full": (OSError(errno.ENOSPC, "No space left on device", "/x"), "/x: No space left on device; free space there"),
    "descriptors": (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
    "closed": (PermissionError(errno.EACCES, "Permission denied", "/x"), "/x: Permission denied; fix the cause"),
    "memory": (MemoryError(), "out of memory; free memory"),
    "threads": (RuntimeError("can't start new thread"), "ulimit -u"),
    "threads of a library": (Exception("Unknown error: Failed to launch worker thread: try again"), "ulimit -u"),
    "memory, to the loader": (ImportError("x.so: failed to map segment from shared object"), "free memory"),
    "memory, to oneDNN": (RuntimeError("could not create a primitive"), "free memory"),
    "logs of torch": (ValueError("Invalid log settings: x, must be a comma"), "TORCH_LOGS is not as torch reads it"),
}


@pytest.mark.parametrize(("error", "said"), LIMITS.values(), ids=LIMITS)
def test_a_limit_of_the_machine_is_told_as_what_it_is_and_leaves_no_file(error, said, capfd, monkeypatch, temporary):
    monkeypatch.setattr("interlock.console.answers.doctor", raising(error))
    assert main(["doctor"]) == ExitCode.FAILED
    err = capfd.readouterr().err
    assert len(err.splitlines()) == 1 and said in err
    assert list(temporary.iterdir()) == []


def test_another_error_is_not_taken_for_a_limit_of_the_machine():
    assert limit(OSError(errno.EIO, "Input/output error")) == limit(RuntimeError("no")) == limit(KeyError("x")) == ""


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_refuses_locks_or_fsync_is_told_with_where_to_go(code, tmp_path):
    error = OSError(code, os.strerror(code))
    said = r"cannot write .*its file system .*: choose a path on a local disk"
    with pytest.raises(DiskError, match=said), atomic.explaining(tmp_path):
        raise error
    assert limit(error) == ""  # beside a file it may well be a bug


FULL = OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize("error", [KeyError("x"), PanicException("y"), FULL], ids=lambda error: type(error).__name__)
def test_what_ends_a_run_at_work_is_the_reason_in_its_summary_and_a_bug_leaves_its_file_beside_the_run(
    error, chunks, tiny_a, capfd, monkeypatch
):
    monkeypatch.setattr("interlock.engine.flows.sessions.deliver", raising(error))
    flags = ["--roster", str(tiny_a), "--run-id", "r", "--no-ui", "--quiet", "--summary", "s.json"]
    code = main(["run", str(chunks), *flags])
    err, run = capfd.readouterr().err, chunks.parent / "runs" / "r"
    assert (code, len(err.splitlines())) == (ExitCode.FAILED, 1)
    found, kept = summary.load((chunks.parent / "s.json").read_bytes()), list(run.glob("crash-*"))
    assert (found.status, found.exit_code, found.reason) == ("failed", 1, summary_of(run)["reason"])
    if error is FULL:
        assert found.reason.startswith("Too many open files; raise the open file limit")
        assert "ulimit -n" in err and not kept
    else:
        assert type(error).__name__ in found.reason and kept[0].name in err


REFUSED = {
    "no-model": ["--roster", "no-such-model"],
    "no-device": ["--devices", "cuda:7"],
    "no-fusion": ["--fusion", "sum"],
    "ceiling": ["--ceiling", "1KiB"],
    "server": ["--qdrant", "http://localhost:6333"],
}


@pytest.mark.parametrize("args", REFUSED.values(), ids=REFUSED)
def test_a_run_that_is_refused_writes_the_summary_that_was_asked_for_and_nothing_else(chunks, tiny_a, capfd, args):
    roster = [] if "--roster" in args else ["--roster", tiny_a]
    words = ["run", chunks, *roster, *args, "--out", "deep/runs", "--no-ui", "--quiet", "--summary", "s.json"]
    code = main([str(each) for each in words])
    said = capfd.readouterr().err.splitlines()
    assert code in (ExitCode.USAGE, ExitCode.UNAVAILABLE) and len(said) == 1
    found = summary.load((chunks.parent / "s.json").read_bytes())
    assert (found.status, found.exit_code) == ("failed", code)
    assert said[0] == f"interlock: {found.reason}"
    assert sorted(path.name for path in chunks.parent.iterdir()) == ["chunks", "s.json"]


def test_a_run_stopped_before_it_came_to_work_says_stopped_in_the_summary_that_was_asked_for(chunks, tiny_a):
    settings = load({"roster": str(tiny_a), "out": "runs"}, {})

    def make(controls):
        controls.code = ExitCode.INTERRUPTED
        return Run(chunks, settings, controls)

    with pytest.raises(Stopped), signals_put_back():
        run_with_front_end(make, chunks, settings, Audience(no_ui=True, summary="s.json", quiet=True))
    found = summary.load((chunks.parent / "s.json").read_bytes())
    assert (found.status, found.exit_code) == ("stopped", 130)
    assert "stopped" in found.reason


@pytest.mark.parametrize(
    "place", ["http://localhost:6333", "https://a.b/c", "localhost:6333", "[::1]:6333", "10.0.0.1:1/x"]
)
def test_a_server_where_a_store_should_be_is_refused_in_one_line(place):
    with pytest.raises(UsageError, match="expected a directory for an embedded store"):
        load({"qdrant": place}, {})


@pytest.mark.parametrize("place", ["store", "./localhost:6333", "/a/b:80", "c:/store", "a:b"])
def test_a_path_with_a_colon_that_names_no_server_is_a_directory(place):
    assert load({"qdrant": place}, {}).settings.qdrant == Path(place)


def entry(message):
    return Entry(seq=0, at=1.5, session=0, elapsed=0.25, device_kind="cpu", body=ev.Warned(message=message))


def steers(text):
    return set(text) & set(STEERING) - set("abcdefghij ü漢🙂")


def test_a_journal_line_holds_nothing_that_steers_a_terminal_and_says_the_same(tmp_path):
    line = journal.encode(entry(STEERING))
    assert not steers(line.decode())
    assert journal.decode(line) == entry(STEERING)
    assert json.loads(line)["body"]["message"] == STEERING
    assert "ü 漢 🙂" in line.decode()


def test_a_journal_line_as_it_was_written_before_is_still_read():
    body = msgspec.json.encode(entry(STEERING))[:-1]
    assert journal.decode(body + b',"crc":"%08x"}\n' % zlib.crc32(body)) == entry(STEERING)


def test_json_is_unarmed_wherever_a_sign_stands():
    found = {STEERING: [STEERING], "x": STEERING}
    raw = words.unarmed(json.dumps(found, ensure_ascii=False).encode())
    assert json.loads(raw) == found and not steers(raw.decode())


def test_streams_for_programs_hold_nothing_that_steers_a_terminal(tmp_path, tiny_a):
    root = corpus(
        tmp_path / "in\x9b31m\u202e", {"Docs": {"a_chunks.json": ["a", {"text": 1}], "b\x7f\u2028.jsonl": [3]}}
    )
    words = ["run", root, "--roster", tiny_a, "--export", "npy", "--quiet", "--max-refused", "100%,files"]
    events = interlock(*words, "--run-id", "r", "--events", "-", cwd=tmp_path).stdout
    told = interlock(*words, "--run-id", "s", "--summary", "-", cwd=tmp_path).stdout
    assert not steers(events + told)
    assert json.loads(told)["chunks"].endswith("in\x9b31m\u202e")
    assert summary.dumps(summary.load(told.encode())).decode() == told


def gone(place):
    shutil.rmtree(place)


def replaced(place):
    place.rename(place.with_name("moved"))
    place.mkdir()
    (place / "journal.jsonl").touch()


def cut(place):
    os.truncate(place / "journal.jsonl", 5)


@pytest.mark.parametrize("happens", [gone, replaced, cut])
def test_a_journal_that_nobody_can_find_any_more_cannot_be_synced(tmp_path, happens):
    kept = Journal(tmp_path / "run" / "journal.jsonl")
    kept.append(entry("a"))
    kept.sync()
    happens(tmp_path / "run")
    with pytest.raises(InterlockError, match="removed, replaced or cut during the run"):
        kept.sync()
    kept.close()


@pytest.mark.parametrize("happens", [gone, replaced, cut])
def test_a_run_whose_directory_went_away_fails_and_writes_nothing_into_another(chunks, tiny_a, monkeypatch, happens):
    run = Run(chunks, load({"roster": str(tiny_a), "out": "runs", "run_id": "r", "export": "npy"}, {}), Controls())
    monkeypatch.setattr(SessionEnd, "close", lambda *_: happens(run.directory.path))
    assert run.go() == ExitCode.FAILED
    status, reason = run.recorder.look(lambda state: (state.status, state.reason))
    assert status == "failed" and "removed, replaced or cut" in reason
    if happens is not cut:
        assert [path.name for path in run.directory.path.glob("*")] == ([] if happens is gone else ["journal.jsonl"])


@pytest.mark.parametrize("when", ["bind", "reused"])
def test_a_run_whose_directory_went_away_before_its_work_began_is_no_bug(chunks, tiny_a, monkeypatch, call, when):
    does = getattr(Continuation, when)
    monkeypatch.setattr(Continuation, when, lambda *more: (gone(Path("runs/r")), does(*more))[1])
    code, _, told = call("run", chunks, "--roster", tiny_a, "--run-id", "r", "--devices", "cpu", "--no-ui")
    assert code == ExitCode.FAILED and "removed, replaced or cut during the run" in told and "a bug" not in told


def test_a_run_whose_directory_went_away_names_no_command_that_needs_it(chunks, tiny_a, monkeypatch, call):
    close = SessionEnd.close
    monkeypatch.setattr(SessionEnd, "close", lambda *more: (gone(Path("runs/r")), close(*more))[1])
    code, _, told = call("run", chunks, "--roster", tiny_a, "--run-id", "r", "--devices", "cpu", "--no-ui")
    assert code == ExitCode.FAILED and "start a new run" in told
    assert not [line for line in told.splitlines() if line.startswith(("next:", "summary:"))]


def test_a_link_in_place_of_a_journal_is_not_followed(tmp_path):
    (tmp_path / "other").write_text("mine")
    (tmp_path / "journal.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(InterlockError):
        Journal(tmp_path / "journal.jsonl")
    assert (tmp_path / "other").read_text() == "mine"


def test_runs_that_begin_in_one_second_have_directories_of_their_own(tmp_path, monkeypatch):
    class Now(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5)

    monkeypatch.setattr(rundir, "datetime", Now)
    found = []
    begin = threading.Barrier(8)

    def choose():
        begin.wait()
        found.append(rundir.choose(tmp_path / "runs", "", tmp_path, resume=False).id)

    threads = [threading.Thread(target=choose) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(set(found)) == sorted(found) and len(found) == 8


def test_what_a_session_raised_is_told_with_the_run_that_it_was_of(tmp_path):
    session = Session(raising(PanicException("here")))
    session.start()
    with pytest.raises(PanicException):
        session.result()
    told = crash.reportable(PanicException("here"), tmp_path)
    (kept,) = tmp_path.glob("crash-*.txt")
    assert str(kept) in str(told) and told.exit_code == ExitCode.FAILED


def test_a_run_that_is_not_there_is_told_with_those_that_are(tmp_path):
    for number in range(12):
        place = tmp_path / f"r{number:02}"
        place.mkdir()
        (place / "journal.jsonl").touch()
        os.utime(place / "journal.jsonl", (1000 + number, 1000 + number))
    said = interlock("view", tmp_path / "typo", check=2).stderr
    assert len(said.splitlines()) == 1
    assert f"runs in {tmp_path}: r11; r10; r09; r08; r07; r06; r05; r04; r03; r02 and 2 more" in said


def mixed(chunks, begun, now, file):
    """Refuse to go on with a run on another kind of device, simulated or real, and change nothing."""
    before = file.read_bytes()
    with pytest.raises(UsageError, match=f"the run uses {begun}, but flag --devices is {now}") as refused:
        Run(chunks, load({"out": "runs", "resume": "yes", "devices": now}, {}), Controls())
    assert len(str(refused.value).splitlines()) == 1
    assert file.read_bytes() == before


def test_a_resumed_run_keeps_what_it_was_begun_with_and_says_so(chunks, tiny_a):
    first = {
        "roster": f"{tiny_a}=2",
        "run_id": "r",
        "devices": "sim:1xT4",
        "ceiling": "2GiB",
        "fusion": "named",
        "export": "npy",
        "window": "2",
        "cpu_fallback": "no",
        "qdrant": "store",
        "faults": "oom:9999",
        "out": "runs",
    }
    assert Run(chunks, load(first, {}), Controls()).go() == ExitCode.COMPLETED
    run = Run(chunks, load({"out": "runs", "resume": "yes"}, {}), Controls())
    assert run.go() == ExitCode.COMPLETED
    one, two = (event.config for event in events_of(run.directory.path, ev.RunStarted, ev.RunResumed))
    for name in set(first) - {"run_id", "out"}:
        assert (two[name].value, two[name].origin) == (one[name].value, "from the run")
    found = summary_of(run.directory.path)
    assert (found["device_kind"], found["sessions"], found["seconds"]) == ("sim", 2, None)
    mixed(chunks, "sim:1xT4", "cpu", run.directory.journal)


def test_a_run_resumed_in_another_directory_goes_on_with_its_own_store_and_model(tmp_path, tiny_a, monkeypatch):
    chunks = corpus(tmp_path / "chunks", {"Docs": {"a_chunks.json": sentences(12)}})
    places = [tmp_path / "first", tmp_path / "second"]
    shutil.copytree(tiny_a, places[0] / "model")
    places[1].mkdir()
    first = {"roster": "./model=2", "run_id": "r", "qdrant": "store", "export": "npy", "out": "../runs"}
    for place, given in zip(places, [first, {"out": "../runs", "resume": "yes"}], strict=True):
        monkeypatch.chdir(place)
        run = Run(chunks, load(given, {}), Controls())
        assert run.go() == ExitCode.COMPLETED
    assert run.settings.roster == ((str(places[0] / "model"), 2),)
    assert run.settings.qdrant == places[0] / "store"
    assert [sorted(path.name for path in place.iterdir()) for place in places] == [["model", "store"], []]


def test_a_model_in_a_directory_with_a_comma_is_still_found_where_it_was_named(tmp_path, monkeypatch):
    (place := tmp_path / "a,b").mkdir()
    monkeypatch.chdir(place)
    begun = recorded(load({"roster": "./model,hf:org/name,all-minilm-l6"}, {}))
    assert begun["roster"].value == [["./model", 1], ["hf:org/name", 1], ["all-minilm-l6", 1]]
    assert continued(begun, load({}, {})).settings.roster[0] == ("./model", 1)


def test_another_device_is_refused_and_another_ceiling_taken_on_purpose_and_the_summary_says_so(
    chunks, tiny_a, monkeypatch
):
    first = {"roster": str(tiny_a), "run_id": "r", "ceiling": "4GiB", "export": "npy", "out": "runs"}
    assert Run(chunks, load(first, {}), Controls()).go() == ExitCode.COMPLETED
    file = chunks.parent / "runs" / "r" / "journal.jsonl"
    mixed(chunks, "cpu", "sim:1xT4", file)
    card = DeviceFacts(name="cuda:0", kind="cuda", label="T4", total_bytes=1, ceiling_bytes=1)
    cards = ev.DevicesFound(devices=[card])  # that are here no more
    told = [
        msgspec.structs.replace(each, body=cards) if isinstance(each.body, ev.DevicesFound) else each
        for each in journal.read(file)
    ]
    whole = file.read_bytes()
    file.write_bytes(b"".join(map(journal.encode, told)))
    with (
        monkeypatch.context() as here,
        pytest.raises(
            InterlockError, match=r"run r was started on cuda:0: .*; pass --devices to continue it on this machine"
        ),
    ):
        here.setattr("torch.cuda.is_available", lambda: False)
        Run(chunks, load({"out": "runs", "resume": "yes"}, {}), Controls())
    file.write_bytes(whole)
    run = Run(chunks, load({"out": "runs", "resume": "yes", "ceiling": "3GiB"}, {}), Controls())
    assert run.go() == ExitCode.COMPLETED
    found = summary_of(run.directory.path)
    assert found["warnings"] == [f"ceiling was {4 << 30}, is now {3 << 30} (flag --ceiling)"]
    assert found["configuration"]["devices"] == {"value": "cpu", "origin": "from the run"}


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can give up reading everything")
@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["run", "chunks", "--out", "closed", "--no-ui", "--quiet"], ExitCode.FAILED),
        (["search", "closed", "x"], ExitCode.USAGE),
    ],
)
def test_a_directory_that_is_closed_is_told_in_one_line(chunks, args, code):
    (chunks.parent / "closed" / "docs").mkdir(parents=True)
    (chunks.parent / "closed").chmod(0)
    bound = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", *command(*args)]
    done = subprocess.run(bound, env=environment(), cwd=chunks.parent, capture_output=True, text=True, timeout=120)
    (chunks.parent / "closed").chmod(0o700)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
    assert "closed" in done.stderr and "Permission denied; fix the cause" in done.stderr


def test_what_a_refused_session_could_not_remove_hinders_no_later_one(tmp_path):
    (tmp_path / "runs" / "r" / ".tokens-abc").mkdir(parents=True)
    assert rundir.choose(tmp_path / "runs", "r", tmp_path, resume=False).id == "r"
    (tmp_path / "runs" / "r" / "thesis.txt").touch()
    with pytest.raises(UsageError, match="is not empty and not a run"):
        rundir.choose(tmp_path / "runs", "r", tmp_path, resume=False)
