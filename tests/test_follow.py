"""A journal is followed while another process writes it, and replayed at any speed; neither ever stands in the way."""

import fcntl
import math
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from interlock.console.sources import journal as follow
from interlock.console.sources import past
from interlock.console.sources.journal import GONE, Replayed, Watched
from interlock.console.sources.session import Source
from interlock.console.text.event_lists import Feed
from interlock.console.text.event_text import line_of
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.record import atomic, journal, summary
from interlock.engine.record import events as ev
from interlock.engine.record.atomic import held
from interlock.engine.record.events import Entry
from interlock.engine.record.fold import fold
from interlock.engine.record.inputs import onward
from interlock.engine.record.journal import Journal, encode
from interlock.engine.record.recorder import LATEST, journal_at
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.record.snapshot import snapshot
from interlock.engine.record.state import RunState
from interlock.engine.standing import runs
from tests.builders import ROOT, interlock
from tests.processes import until
from tools.recorded import Recorded

WRITER = """
import sys
from pathlib import Path
from tools.recorded import Recorded
from interlock.engine.record.rundir import RunDirectory
Recorded(RunDirectory(Path(sys.argv[1])), speed=float(sys.argv[2])).go()
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(follow, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(follow, "QUIET_SECONDS", 0.5)


@pytest.fixture
def closing():
    """Sources that are closed at the end."""
    sources = []

    def keep(source):
        sources.append(source)
        return source

    yield keep
    for source in sources:
        source.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directory of a run that was written to its end."""
    run = Recorded(RunDirectory(tmp_path_factory.mktemp("runs") / "whole"))
    run.go()
    return run.directory.path


def recorded(path):
    return Recorded(RunDirectory(path))


def test_a_run_is_watched_in_lines_where_there_is_no_terminal(whole, tmp_path):
    lines = interlock("watch", whole).stdout.splitlines()
    told = [line_of(entry.body, entry.device_kind) for entry in journal.read(whole / "journal.jsonl")]
    assert lines[0].endswith(next(filter(None, told))) and any("passed" in line or "pass 1" in line for line in lines)
    assert lines[-1].startswith("the run has ended: interlock view ")
    assert "--speed" in interlock("watch", whole, "--speed", "9", check=2).stderr
    process = writer(tmp_path / "whole", 200.0)
    until(lambda: (tmp_path / "whole" / "journal.jsonl").exists())
    live = interlock("watch", tmp_path / "whole").stdout.splitlines()
    assert process.wait() == 0
    assert [line[9:] for line in live if "interlock " not in line] == [line[9:] for line in lines[:-1]]


def test_a_run_that_is_at_work_is_viewed_as_running_and_one_whose_process_died_as_that(tmp_path):
    process = writer(tmp_path / "r", 1.0)
    try:
        until(lambda: (tmp_path / "r" / "journal.jsonl").exists() and runs.state_of(tmp_path / "r").collections)
        summary.write(summary.summarise(runs.state_of(tmp_path / "r")), tmp_path / "r" / "summary.json")
        said = interlock("view", tmp_path / "r").stdout
        assert "  running  exit -  " in said and f"interlock watch {tmp_path / 'r'}" in said
    finally:
        process.kill()
        process.wait()
    said = interlock("view", tmp_path / "r").stdout
    assert "  died  exit -  " in said and "finish it with interlock demo --scripted" in said


def writer(path, speed=40.0):
    return subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(speed)], cwd=ROOT)


def folded(path):
    state, seq = RunState(), -1
    for entry in journal.read(path / "journal.jsonl"):
        fold(state, entry)
        seq = entry.seq
    return snapshot(state, seq)


def entry(seq, message="something happened", session=0):
    return Entry(seq=seq, at=1.5, session=session, elapsed=0.25, device_kind="cpu", body=ev.Warned(message=message))


def lines(count, first=0):
    return b"".join(encode(entry(seq)) for seq in range(first, first + count))


def seqs(source, after=-1):
    return [each.seq for each in source.entries(after)[0]]


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_writer_killed_midway_is_shown_as_gone_with_what_it_wrote(tmp_path, closing):
    process = writer(tmp_path / "run")
    until((tmp_path / "run" / "journal.jsonl").exists)
    source: Source = closing(Watched(tmp_path / "run"))
    until(lambda: source.snapshot().share_done > 0.2)
    assert not source.gone and source.note == "" and not source.over
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: source.gone)
    seen = source.snapshot()
    assert (seen.phase, source.over, seen.over) == (GONE, False, False)
    assert source.note == seen.reason == "no word of why: killed, or the machine went down"
    again = onward(seen, tmp_path / "run")
    assert again.endswith(f"--out {tmp_path} --run-id run --resume")
    assert source.parting == f"the run's process died: {seen.reason}; continue it with {again}"
    assert (source.kind, source.controls) == ("watch", None)
    until(lambda: source.snapshot().seq == folded(tmp_path / "run").seq)
    recorded(tmp_path / "run").go()
    until(lambda: source.over)
    assert source.snapshot() == folded(tmp_path / "run")
    assert onward(source.snapshot(), tmp_path / "run") == f"{again} --retry-parked"


def test_a_run_of_another_process_is_seen_whole_when_watched_from_before(tmp_path, closing):
    (tmp_path / "later" / "run").mkdir(parents=True)
    (tmp_path / "later" / "run" / "journal.jsonl").touch()
    source = closing(Watched(tmp_path / "later" / "run"))
    assert source.snapshot().seq == -1 and "waiting for" in source.note
    process = writer(tmp_path / "later" / "run", speed=100.0)
    until(lambda: source.over)
    assert process.wait() == 0
    assert source.snapshot() == folded(tmp_path / "later" / "run")
    assert seqs(source) == list(range(source.snapshot().seq + 1))


def test_a_silent_live_writer_is_not_taken_for_gone(tmp_path, closing):
    run = recorded(tmp_path / "run")
    run.play_to(0.3)
    source = closing(Watched(tmp_path / "run"))
    time.sleep(1.2)
    assert held(run.directory.journal) and not source.gone
    assert source.parting == f"the run goes on: interlock watch {tmp_path / 'run'} shows it again"
    run.close()
    assert not held(run.directory.journal)
    until(lambda: source.gone)


def test_a_run_that_died_long_ago_is_not_waited_for(tmp_path, closing, monkeypatch):
    run = recorded(tmp_path / "run")
    run.play_to(0.3)
    run.close()
    monkeypatch.setattr(follow, "QUIET_SECONDS", 1000.0)  # the recording is older
    source = closing(Watched(tmp_path / "run"))
    until(lambda: source.gone)
    assert source.snapshot().phase == GONE


def test_what_is_no_journal_is_in_nobodys_use_and_keeps_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    assert not held(tmp_path / "pipe") and not held(tmp_path / "directory")


def test_the_lock_itself_tells_of_a_writer_where_there_is_no_list_of_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "LOCKS", tmp_path / "nowhere")
    kept = Journal(tmp_path / "journal.jsonl")
    assert held(kept.path)
    kept.close()
    assert not held(kept.path) and not held(tmp_path / "missing")
    Journal(kept.path).close()


def test_a_lock_on_another_file_system_is_not_taken_for_that_of_the_journal(tmp_path, monkeypatch):
    path = tmp_path / "journal.jsonl"
    path.touch()
    file = path.stat()
    monkeypatch.setattr(atomic, "LOCKS", tmp_path / "locks")
    for device, locked in ((file.st_dev, True), (file.st_dev ^ 1, False)):
        place = f"{os.major(device):02x}:{os.minor(device):02x}:{file.st_ino}"
        atomic.LOCKS.write_text(f"1: FLOCK  ADVISORY  WRITE 708 {place} 0 EOF\n")
        assert held(path) is locked


def test_who_only_looks_at_a_journal_keeps_no_writer_out(tmp_path, monkeypatch):
    path = tmp_path / "journal.jsonl"
    path.touch()
    with path.open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr(atomic.time, "sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN))
        Journal(path).close()


@pytest.mark.parametrize("torn", [b"{", encode(entry(5))[:-1], encode(entry(5)).replace(b"some", b"none")])
def test_a_torn_tail_shows_what_is_before_it_and_what_replaces_it(tmp_path, closing, torn):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(lines(5) + torn)
    source = closing(Watched(path))
    time.sleep(0.2)
    assert seqs(source) == [0, 1, 2, 3, 4] and not source.failure
    resumed = Journal(path)
    assert len(list(resumed.replay())) == 5
    resumed.append(entry(5, "resumed", session=1))
    until(lambda: source.snapshot().seq == 5)
    assert source.entries(4)[0][0].body.message == "resumed" and not source.failure
    resumed.close()


def test_a_session_that_is_taken_back_is_forgotten(tmp_path, closing):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(lines(5))
    source = closing(Watched(path))
    refused = Journal(path)
    list(refused.replay())
    refused.append(entry(5, "refused", session=1))
    refused.append(entry(6, "refused too", session=1))
    until(lambda: source.snapshot().seq == 6)
    refused.rewind()
    refused.append(entry(5, "a rather longer message", session=1))
    until(lambda: source.snapshot().seq == 5)
    assert [each.body.message for each in source.entries(4)[0]] == ["a rather longer message"]
    refused.close()


def test_a_damaged_line_is_named_and_what_stood_before_is_shown(tmp_path, closing):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(lines(3) + b"garbage\n" + lines(2, first=4))
    source = closing(Watched(path))
    until(lambda: source.failure)
    assert "line 4 is damaged" in source.note and seqs(source) == [0, 1, 2]


LOST = Entry(seq=3, at=1.5, session=0, elapsed=0.5, device_kind="cpu", body=ev.BatchesLost(model_pass=7, batches=[1]))


@pytest.mark.parametrize("kind", [Watched, Replayed])
def test_an_entry_that_does_not_fit_is_said_and_what_stood_before_is_shown(tmp_path, closing, kind):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(lines(3))
    source = closing(kind(path))
    with path.open("ab") as file:
        file.write(encode(LOST))
    until(lambda: source.failure and source.snapshot().seq == 2)
    assert "entry 3 of the journal (BatchesLost) does not fit" in source.note and seqs(source) == [0, 1, 2]


def test_a_journal_that_does_not_fit_at_first_is_refused_at_once(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(lines(3) + encode(LOST))
    with pytest.raises(InterlockError, match="does not fit"):
        Watched(path)


def test_missing_lines_are_reported(tmp_path, closing):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(lines(3) + lines(3, first=4))
    source = closing(Watched(path))
    until(lambda: source.failure)
    assert "line 4 is out of order" in str(source.failure)


@pytest.mark.parametrize("kind", [Watched, Replayed])
def test_a_journal_of_another_version_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "journal.jsonl"
    body = lines(1)[: lines(1).rindex(b',"crc"')].replace(b'"warned"', b'"sung"')
    path.write_bytes(body + journal._CRC % __import__("zlib").crc32(body))
    with pytest.raises(InterlockError, match="another version"):
        kind(path)


@pytest.mark.parametrize("kind", [Watched, Replayed])
def test_a_file_that_is_no_journal_is_refused_at_once(tmp_path, kind):
    path = tmp_path / "summary.json"
    path.write_text("{\n}\n")
    with pytest.raises(InterlockError, match="line 1"):
        source = kind(path)
        until(lambda: source.failure)
        raise source.failure


def test_a_run_is_found_by_its_path_and_a_directory_of_runs_is_refused(whole):
    assert journal_at(whole) == journal_at(whole / "journal.jsonl") == whole / "journal.jsonl"
    with pytest.raises(UsageError, match=f"new does not exist: .*runs in {whole.parent}: {whole.name}"):
        journal_at(whole.parent / "new")
    with pytest.raises(UsageError, match=f"has 1 run: .*{whole.name}"):
        journal_at(whole.parent)


def test_the_runs_below_the_directory_of_a_project_are_named_the_latest_first(tmp_path):
    for age, name in enumerate(["new", "old"]):
        (run := tmp_path / "runs" / name).mkdir(parents=True)
        (run / "journal.jsonl").touch()
        os.utime(run / "journal.jsonl", (1000 - age, 1000 - age))
    runs = tmp_path / "runs"
    with pytest.raises(UsageError, match=f"has 2 runs: name one .latest first.: {runs}/new; {runs}/old"):
        journal_at(tmp_path)


def test_replaying_a_missing_or_empty_journal_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        Replayed(tmp_path / "nowhere")
    (tmp_path / "journal.jsonl").touch()
    with pytest.raises(UsageError, match="no entry to replay"):
        Replayed(tmp_path)
    for speed in (0.0, -1.0, math.nan):
        with pytest.raises(UsageError, match="--speed"):
            Replayed(tmp_path, speed)


def test_a_finished_run_is_over_and_nobody_is_missed(whole, closing):
    source = closing(Watched(whole))
    until(lambda: source.over)
    assert source.snapshot() == folded(whole) and not source.gone
    assert f"interlock view {whole} " in source.parting and f"interlock watch {whole} " in source.parting


def test_a_long_journal_is_read_in_short_looks_and_what_is_dropped_is_counted(tmp_path, closing):
    count = 60_000
    path = tmp_path / "journal.jsonl"
    path.write_bytes(lines(count))
    began = time.monotonic()
    source = closing(Watched(path))
    longest, opened = 0.0, time.monotonic() - began
    while source._seq < count - 1:
        looked = time.perf_counter()
        source.entries(source.snapshot().seq)
        longest = max(longest, time.perf_counter() - looked)
        assert time.monotonic() - began < 60
        time.sleep(0.02)
    fresh, dropped = source.entries(-1)
    assert (len(fresh), dropped) == (LATEST, count - LATEST)
    assert max(longest, opened) < 0.5


def test_a_replay_keeps_its_speed_and_ends_at_the_final_fold(whole, closing):
    clock = Clock()
    source = closing(Replayed(whole, speed=4.0, clock=clock))
    times = [each.elapsed for each in journal.read(whole / "journal.jsonl")]
    for seconds in (5.0, 20.0, 33.0):
        clock.now = 100.0 + seconds
        due = sum(at <= seconds * 4 for at in times)
        until(lambda due=due: source.snapshot().seq == due - 1)
        assert source.snapshot().elapsed <= seconds * 4
        assert not source.over
    clock.now = 100.0 + times[-1] / 4 + 0.01
    until(lambda: source.over)
    assert source.snapshot() == folded(whole)
    assert source.position == source.length == times[-1]
    assert (source.kind, source.controls, source.note) == ("replay", None, "")


def test_a_replay_stands_where_pause_and_speed_put_it(whole, closing):
    clock = Clock()
    source = closing(Replayed(whole, clock=clock))
    until(lambda: source.length > 100)
    clock.now += 60
    until(lambda: 50 < source.snapshot().elapsed <= 60)
    source.toggle_pause()
    clock.now += 1000
    assert (
        source.position == 60.0
        and source.paused
        and source.pace.startswith("1:00 of ")
        and source.pace.endswith(", paused")
    )
    source.go_at(10.0)
    source.toggle_pause()
    clock.now += 1
    assert (
        source.position == pytest.approx(70.0) and source.pace.startswith("1:10 of ") and source.pace.endswith(", x10")
    )
    source.go_at(math.inf)
    until(lambda: source.over)
    assert source.snapshot() == folded(whole)


def test_a_replay_leaves_out_the_time_between_two_sessions(tmp_path, closing):
    first = recorded(tmp_path / "run")
    first.play_to(0.5)
    first.close()
    recorded(tmp_path / "run").go()
    source = closing(Replayed(tmp_path / "run", speed=math.inf))
    until(lambda: source.over)
    assert source.length == pytest.approx(source.snapshot().elapsed)
    assert source.snapshot() == folded(tmp_path / "run")


def test_a_replay_ends_where_the_run_was_torn(whole, tmp_path, closing):
    path = tmp_path / "journal.jsonl"
    path.write_bytes((whole / "journal.jsonl").read_bytes()[:60_000])
    source = closing(Replayed(path, speed=math.inf))
    until(lambda: source.over)
    time.sleep(0.3)  # when a run that is followed would be asked whether its process is there
    assert source.snapshot() == folded(tmp_path) and not source.failure


def test_a_replay_of_a_damaged_run_tells_what_is_before_it_and_why(tmp_path, closing):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(lines(30) + b"garbage\n" + lines(2, first=31))
    source = closing(Replayed(path, speed=math.inf))
    until(lambda: source.over)
    assert "line 31 is damaged" in source.note and source.snapshot().seq == 29


@pytest.fixture
def frequent(monkeypatch):
    """Few entries between the states that are kept, of which there are few."""
    monkeypatch.setattr(past, "EVERY", 8)
    monkeypatch.setattr(past, "MOST", 6)


def test_every_moment_is_what_folding_up_to_it_gives_wherever_one_comes_from(whole, closing, frequent):
    source, state, moments = closing(Watched(whole)), RunState(), []
    until(lambda: source.over)
    for each in journal.read(whole / "journal.jsonl"):
        fold(state, each)
        moments.append((each.elapsed, snapshot(state, each.seq)))
    last = dict(moments)  # of several entries of one moment
    walk = [*range(0, len(moments), 23), *range(len(moments) - 2, 0, -31), 0, len(moments) // 2]
    for at, _ in (moments[place] for place in walk):
        source.go_to(at)
        assert (source.past, source.position, source.snapshot()) == (True, at, last[at])
        assert source.entries(-1)[0][-1].seq == last[at].seq
        assert len(source.mitigations()) == sum(each.mitigations for each in last[at].passes)
    source.go_to(math.inf)
    assert (source.past, source.snapshot()) == (False, moments[-1][1])


def test_what_happened_up_to_a_moment_is_told_without_a_gap_and_goes_on_from_there(whole, closing, frequent):
    every = [*journal.read(whole / "journal.jsonl")]
    source, clock = None, Clock()
    source = closing(Watched(whole, clock=clock))
    until(lambda: source.over)
    source.go_to(100.0)
    source.snapshot()
    feed = Feed()
    shown = feed.take(source.entries(-1)[0])
    assert shown == Feed().take(each for each in every if each.elapsed <= 100.0)
    source.toggle_pause()
    clock.now += 20.0
    seen = source.snapshot()
    fresh, dropped = source.entries(feed._latest)
    assert (dropped, fresh[-1].seq) == (0, seen.seq)
    assert feed.take(fresh) == Feed().take(each for each in every if each.elapsed <= 120.0)


def test_a_watch_reads_on_while_the_past_is_looked_at_and_steps_come_back_to_it(tmp_path, closing):
    run = recorded(tmp_path / "run")
    run.play_to(0.5)
    source = closing(Watched(tmp_path / "run"))
    until(lambda: source.snapshot().share_done > 0.4)
    source.go_to(source.position - source.step)
    then, begun = source.snapshot(), source.begun
    run.go()
    until(lambda: source.over)
    assert (source.snapshot(), source.begun, source.past, source.paused) == (then, begun, True, True)
    source.go_at(1e6)
    source.toggle_pause()
    until(lambda: source.snapshot() and not source.past)  # played to its end it is the run as it is now
    assert source.snapshot() == folded(tmp_path / "run") and source.begun > begun


def test_the_next_trouble_and_the_one_before_are_what_went_wrong_in_this_run(whole, closing):
    source = closing(Watched(whole))
    until(lambda: source.over)
    wrong = [
        each.elapsed
        for each in journal.read(whole / "journal.jsonl")
        if isinstance(each.body, ev.Mitigated) or line_of(each.body).startswith(("warn", "err"))
    ]
    found = []
    while source.go_to_trouble(-1):
        found.append(source.position)
        assert source.snapshot().seq >= 0 and source.paused
    times = sorted(set(wrong))
    assert found == [at for at in reversed(times) if at < source.length] and len(found) > 10
    again = [source.position]
    while source.go_to_trouble(1):
        again.append(source.position)
    assert again == times and not source.past  # the last of them is how it ended


def test_a_journal_that_is_taken_away_is_said_where_one_goes_back_and_the_present_stays(whole, tmp_path, closing):
    path = tmp_path / "journal.jsonl"
    path.write_bytes((whole / "journal.jsonl").read_bytes())
    source = closing(Watched(path))
    until(lambda: source.over)
    path.unlink()
    source.go_to(10.0)
    assert source.snapshot() == folded(whole) and "cannot go back" in source.note


def test_closing_a_source_ends_its_threads_and_changes_nothing(whole):
    before = (whole / "journal.jsonl").stat()
    sources = [Watched(whole), Replayed(whole)]
    for source in sources:
        source.close()
    names = [thread.name for thread in threading.enumerate()]
    assert "watch" not in names and "replay" not in names
    after = (whole / "journal.jsonl").stat()
    assert (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_journal_without_permission_tells_the_reason(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(lines(1))
    path.chmod(0)
    for kind in (Watched, Replayed):
        with pytest.raises(InterlockError, match="Permission denied"):
            kind(path)
