"""Every run of a directory is listed as it stands; one is watched, viewed, resumed and deleted from the list."""

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace as replaced
from pathlib import Path
from zlib import crc32

import pytest
from msgspec.structs import replace
from textual import events
from textual.pilot import Pilot
from textual.widgets import Input

from interlock.console.apps.base import Runs
from interlock.console.apps.run import Console
from interlock.console.look import Look
from interlock.console.notifying import filled
from interlock.console.screens.ask import Find
from interlock.console.screens.runs import RunsScreen
from interlock.console.screens.summary import SummaryScreen
from interlock.console.sources.journal import Watched
from interlock.console.sources.runs import RunList, neediest, walled
from interlock.console.sources.session import Live, Session
from interlock.console.text import runs_text
from interlock.engine.errors import InterlockError, UsageError
from interlock.engine.record import events as ev
from interlock.engine.record import journal
from interlock.engine.record.atomic import LARGEST, content, occupant
from interlock.engine.record.facts import Setting
from interlock.engine.record.inputs import resume_words
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.record.snapshot import snapshot
from interlock.engine.standing import runs
from interlock.engine.standing.closed import closed_run, read_of
from interlock.engine.standing.health import Health, health
from interlock.engine.standing.judgement import CALM, Attention, DeviceUse, attention, judge, left_behind
from interlock.engine.standing.runs import delete, overview, overviews, state_of
from interlock.widgets import header
from interlock.widgets.choices import Choices
from interlock.widgets.text import plain
from tests import summaries
from tests.builders import ROOT, interlock, start
from tests.processes import until
from tests.pty_harness import on_terminal
from tests.summaries import PATIENCE, shows
from tests.test_control import WRITER
from tools.recorded import BEGAN, Recorded

LATER = BEGAN + 3 * 3600


def recorded(out: Path, name: str, share: float, recording: str = "two-devices") -> Recorded:
    run = Recorded(RunDirectory(out / name), name=recording)
    run.play_to(share)
    return run


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A directory with a run that is over, one whose process died, and one that was stopped."""
    directory = tmp_path / "runs"
    recorded(directory, "over", 1.0)
    recorded(directory, "died", 0.4).close()
    stopped = recorded(directory, "stopped", 0.3)
    stopped.controls.stop(4)
    stopped.go()
    return directory


@pytest.fixture
def running(out: Path) -> Iterator[Path]:
    """Beside them, a run of another process."""
    process = start(out / "running", 1.5, cwd=ROOT, first=WRITER)
    until(lambda: occupant(out / "running") and (out / "running" / "control.sock").exists())
    yield out
    process.kill()
    process.wait()


def test_each_run_says_in_a_word_how_it_stands(running):
    seen = {each.id: each for each in overviews([running], time.time())}
    words = {name: each.health.word for name, each in seen.items()}
    assert words == {"over": "INCOMPLETE", "died": "RUN PROCESS DIED", "stopped": "STOPPED"} | {
        "running": seen["running"].health.word
    }
    assert seen["running"].held and seen["running"].occupant.pid
    assert [name for name, each in seen.items() if each.resumable] and not seen["running"].resumable


@pytest.mark.parametrize("name", ["over", "stopped"])
def test_a_closed_run_is_read_from_its_summary_and_says_what_its_journal_would(out, name, monkeypatch):
    state = state_of(out / name)
    whole = snapshot(state, 0)
    monkeypatch.setattr(runs, "state_of", None)  # folding it would fail
    seen = overview(out / name, LATER)
    assert (seen.health, seen.attention) == (health(whole, LATER), attention(whole))
    assert seen.share_done == pytest.approx(whole.share_done, abs=1e-4)
    assert seen.models == tuple(each.model for each in whole.passes)
    assert (seen.began_at, seen.exit_code) == (pytest.approx(whole.began_at, abs=0.001), whole.exit_code)
    assert seen.chunks_read == sum(each.read.chunks for each in whole.collections) > 0


def test_files_that_were_refused_are_counted_though_not_all_of_them_are_told(out):
    summary = out / "over" / "summary.json"
    said = json.loads(summary.read_text())
    refused = [each["refused_files"] for each in said["collections"]]
    assert refused == [each.read.refused_files for each in snapshot(state_of(out / "over"), 0).collections]
    told = [{"file": "a.json", "record": None, "reason": "no JSON"}] * 100
    for files, counted in ((150, 150), (None, 100)):  # an older one does not say
        said["collections"][0] |= {"refused": 150, "refusals": told, "refused_files": files}
        summary.write_text(json.dumps(said))
        closed = closed_run(out / "over")
        assert closed and read_of(closed.collections[0]).refused_files == counted


def test_a_run_that_was_resumed_and_killed_is_not_taken_for_closed_by_its_old_summary(out):
    again = Recorded(RunDirectory(out / "stopped"))
    again.play_to(0.6)
    assert overview(out / "stopped", LATER).held
    again.close()
    assert overview(out / "stopped", LATER).health.word == "RUN PROCESS DIED"


def test_why_a_process_died_is_told_by_the_crash_file_of_its_session_and_else_that_nobody_knows(out):
    died = out / "died"
    (died / "crash-old.txt").touch()
    os.utime(died / "crash-old.txt", (1, 1))
    (died / ".session.json").touch()
    assert overview(died, LATER).health.detail == "no word of why: killed, or the machine went down"
    (died / "crash-new.txt").touch()
    assert overview(died, LATER).health.detail == f"{died / 'crash-new.txt'} tells why"


def test_a_watch_of_what_holds_no_run_says_what_it_takes_and_what_lies_there(out, tmp_path):
    empty, other = tmp_path / "empty", tmp_path / "texts"
    empty.mkdir()
    other.mkdir()
    for name in "dabc":
        (other / name).touch()
    for place, lies in ((empty, "it is empty"), (other, "in it: a; b; c and 1 more")):
        with pytest.raises(UsageError) as refused:
            walled([out, place])
        told = f"{place} is neither a run nor a directory of runs ({lies}): name one, or none for the runs under --out"
        assert str(refused.value) == f"{told} (no run in {tmp_path})"
    assert walled([out / "over"]) == [] and walled([out]) == [out] == walled([out.parent])


def test_a_damaged_run_is_listed_with_what_is_wrong_and_keeps_no_other_from_the_list(out):
    path = out / "died" / "journal.jsonl"
    data = path.read_bytes()
    path.write_bytes(data[:2000] + b"?" + data[2001:])
    seen = {each.id: each.health for each in overviews([out], LATER)}
    assert seen["died"].word == "UNREADABLE" and "damaged" in seen["died"].detail
    assert len(seen) == 3


def test_a_summary_that_cannot_be_read_is_made_up_for_by_the_journal(out):
    (out / "stopped" / "summary.json").write_text("{")
    assert overview(out / "stopped", LATER).health.word == "STOPPED"


@pytest.mark.parametrize(
    ("field", "value"),
    [("started_at", "0001-01-01T00:00:00"), ("share_done", -1e308), ("share_done", "much"), ("status", "completed")],
)
def test_a_summary_that_says_what_cannot_be_costs_no_other_run_its_line(out, field, value):
    file = out / "stopped" / "summary.json"
    file.write_text(json.dumps(json.loads(file.read_bytes()) | {field: value}))
    assert {each.id: each.health.word for each in overviews([out], LATER)} == {
        "over": "INCOMPLETE", "died": "RUN PROCESS DIED", "stopped": "STOPPED",
    }  # fmt: skip
    assert interlock("runs", "--plain", "--out", out).stdout.count("\n") >= 5


@pytest.fixture
def unlike(out: Path) -> Path:
    """A run whose journal is whole and says what this version would not: a batch lost that nobody committed."""
    path = out / "died" / "journal.jsonl"
    latest = list(journal.read(path))[-1]
    lost = ev.BatchesLost(model_pass=7, batches=[1])
    with path.open("ab") as file:
        file.write(journal.encode(replace(latest, seq=latest.seq + 1, body=lost)))
    return path.parent


def test_a_journal_that_makes_no_sense_costs_no_other_run_its_line(out, unlike):
    seen = {each.id: each.health for each in overviews([out], LATER)}
    assert len(seen) == 3 and seen["died"].word == "UNREADABLE" and "(BatchesLost) does not fit" in seen["died"].detail
    kept = RunList(out)
    try:
        until(lambda: kept.complete)
        assert {each.id: each.health for each in kept.seen} == seen and not kept.failure
    finally:
        kept.close()


def test_a_summary_too_large_to_be_read_is_made_up_for_by_the_journal(out):
    with (out / "stopped" / "summary.json").open("r+b") as file:
        file.truncate(LARGEST + 1)
    assert overview(out / "stopped", LATER).health.word == "STOPPED"
    with pytest.raises(OSError, match="too large"):
        content(out / "stopped" / "summary.json")


def test_a_journal_nested_beyond_reading_costs_no_other_run_its_line(out):
    body = b'{"a":' + b"[" * 30_000 + b"]" * 30_000
    (out / "died" / "journal.jsonl").write_bytes(body + b',"crc":"%08x"}\n' % crc32(body))
    assert len(overviews([out], LATER)) == 3


def test_only_the_whole_of_a_run_is_deleted_and_nothing_that_is_none(out):
    (diary := out / "diary").mkdir()
    (diary / "journal.jsonl").write_text("dear diary\n")
    (linked := out / "linked").mkdir()
    (linked / "journal.jsonl").symlink_to(out / "over" / "journal.jsonl")
    recorded(out / "died", "inner", 0.1).close()
    for name, why in (("diary", "is not a run"), ("linked", "is not a run"), ("died", "has another run in it")):
        with pytest.raises(UsageError, match=why):
            delete(out / name)
    assert (diary / "journal.jsonl").exists() and (out / "died" / "inner").exists()


def test_an_empty_journal_is_that_of_a_run_only_where_nothing_else_lies_beside_it(tmp_path):
    for name in ("begun", "thesis"):
        (tmp_path / name / ".tokens-1").mkdir(parents=True)
        for file in ("journal.jsonl", ".session.json", ".summary.json.12.partial"):
            (tmp_path / name / file).touch()
    (work := tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="is not a run"):
        delete(tmp_path / "thesis")
    delete(tmp_path / "begun")
    assert work.exists() and not (tmp_path / "begun").exists()


def test_who_only_looks_at_a_dead_run_does_not_make_it_look_alive(out):
    with (out / "died" / "journal.jsonl").open("rb") as handle:
        fcntl.flock(handle, fcntl.LOCK_SH)
        assert not overview(out / "died", LATER).held


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7])
def test_header_and_list_judge_a_run_that_goes_on_alike(tmp_path, share):
    run = recorded(tmp_path, "r", share)
    seen = run.snapshot()
    judged, listed = judge(seen, seen.latest_at), overview(tmp_path / "r", seen.latest_at)
    assert {name: getattr(listed, name) for name in vars(judged)} == vars(judged)
    head = "\n".join(plain(header.rows(seen, 240, judged, fresh=judged.attention)))
    _, (line,) = runs_text.rows([listed], [], seen.latest_at, 400)
    state, _, done, eta, _, _, cards, reason, *_ = [span.text for span in runs_text.cells(listed, seen.latest_at)]
    whys = [each.why for each in judged.health.concerns]  # each begins a line there
    assert "; ".join(whys) == reason
    assert all(text in head for text in (state, done, eta and f"eta {eta}", *whys))
    assert all(text in plain([line])[0] for text in (state, done, eta, cards, reason))
    run.close()
    died = overview(tmp_path / "r", seen.latest_at)
    assert (died.health.word, died.left) == ("RUN PROCESS DIED", None)
    assert filled(["{state}"], "r", judge(left_behind(seen, ""), seen.latest_at)) == [died.health.word]


def test_a_run_that_ends_is_told_with_the_words_of_the_list(out):
    for name in ("over", "stopped"):
        seen = overview(out / name, LATER)
        told, listed = judge(left_behind(snapshot(state_of(out / name), 0), ""), LATER), seen.health
        assert filled(["mail", "{run}: {state} {done}", "{reason}{}", '{"a": 1}', "{next}"], name, told, "view it") == [
            "mail", f"{name}: {listed.word} {seen.share_done:.0%}", f"{listed.detail}{{}}", '{"a": 1}', "view it",
        ]  # fmt: skip


def test_those_that_need_somebody_stand_first_and_history_last(out):
    over = overview(out / "over", LATER)
    ways = {
        "stalled": (Health("STALLED", "error", stuck=True), CALM, 0.0, True),
        "failed": (Health("FAILED", "error", stuck=True), CALM, 60.0, False),
        "parked": (Health("RUN", "error"), Attention(parked=1), 0.0, True),
        "lacking": (Health("INCOMPLETE", "error"), CALM, 60.0, False),
        "crowded": (Health("CROWDED", "warn"), CALM, 0.0, True),
        "stopped": (Health("STOPPED", "warn"), CALM, 60.0, False),
        "truncated": (Health("RUN", "ok"), Attention(warnings=27), 0.0, True),
        "done": (Health("DONE", "ok"), CALM, 60.0, False),
        "failed last week": (Health("FAILED", "error", stuck=True), CALM, 7 * 86_400.0, False),
    }
    made = [
        replaced(over, path=out / name, health=state, attention=wrong, latest_at=time.time() - age, held=held)
        for name, (state, wrong, age, held) in ways.items()
    ]
    mixed = [*made[1::2], *made[::2]]
    degraded = replaced(made[2], health=Health("MODEL FAILED", "error"), attention=CALM)  # a model of it failed
    assert degraded.need(time.time()) == made[2].need(time.time()) == made[0].need(time.time()) + 1
    assert [each.id for each in sorted(mixed, key=neediest)] == list(ways)
    styles = {each.id: {span.text: span.style for span in runs_text.cells(each, LATER)} for each in made}
    assert styles["parked"]["1 text parked"] == "error" and styles["truncated"]["!27"] == "warn"


@pytest.mark.parametrize(
    ("devices", "told"),
    [
        ([], ""),
        ([DeviceUse("cuda:0", 0.414)], "41% cuda:0"),
        ([DeviceUse("cuda:0", 0.9), DeviceUse("cuda:1", None, "error", lost=True)], "90% cuda:0, lost cuda:1"),
        ([DeviceUse("cuda:0"), DeviceUse("cuda:1", lost=True)], "cuda:0, lost cuda:1"),
        (
            [DeviceUse(f"cuda:{place}", place / 10, lost=place == 7) for place in range(8)],
            "0% to 70% cuda:0-6, lost cuda:7",
        ),
        (
            [DeviceUse(f"node-{node}/cuda:{card}", 0.5) for node in range(9) for card in (0, 1)],
            "50% 18 GPUs on 9 nodes",
        ),
    ],
)
def test_devices_are_told_in_a_few_cells(devices, told):
    assert runs_text.in_use(devices) == told


def test_a_deleted_run_is_gone_and_one_in_use_or_no_run_stays(running):
    delete(running / "died")
    assert not (running / "died").exists()
    with pytest.raises(UsageError, match=f"in use by .*pid {occupant(running / 'running').pid}"):
        delete(running / "running")
    (running / "else").mkdir()
    (running / "link").symlink_to(running / "over")
    for name in ("else", "link"):
        with pytest.raises(InterlockError, match="is not a run"):
            delete(running / name)
    assert (running / "over" / "journal.jsonl").exists() and (running / "running").exists()


@pytest.mark.parametrize(("seconds", "said"), [(-1, "0 s"), (60, "1 min"), (7300, "2 h"), (90_000, "1 d")])
def test_an_age_has_one_unit(seconds, said):
    assert runs_text.age(seconds) == said


def test_a_rehearsal_is_known_by_its_settings_and_resumed_as_one_and_any_other_run_by_its_chunks(out, tmp_path):
    assert {each.rehearsed for each in overviews([out], LATER)} == {True}
    assert snapshot(state_of(out / "died"), 0).rehearsed
    begun = next(iter(journal.read(out / "died" / "journal.jsonl")))
    own = {name: Setting(each.value, "default") for name, each in begun.body.config.items()}
    (tmp_path / "own").mkdir()
    mine = replace(begun, body=replace(begun.body, config=own, chunks="/a/rehearsal-chunks"))
    (tmp_path / "own" / "journal.jsonl").write_bytes(journal.encode(mine))
    assert not overview(tmp_path / "own", LATER).rehearsed
    assert resume_words("/a/rehearsal-chunks", tmp_path / "r", own)[:2] == ["run", "/a/rehearsal-chunks"]
    assert resume_words("/a/b", tmp_path / "r", begun.body.config)[:2] == ["demo", "--scripted"]


def test_the_command_lists_runs_for_people_and_for_programs(out):
    lines = interlock("runs", "--out", out).stdout.splitlines()
    assert lines[0].split()[:5] == ["state", "run", "done", "eta", "issues"]
    assert len(lines) == 2 + 3 and any("RUN PROCESS DIED" in line for line in lines)
    assert sorted(interlock("watch", out / "over", out / "died", out / "stopped").stdout.splitlines()) == sorted(lines)
    assert "a single run" in interlock("watch", out, "--speed", "2", check=2).stderr
    found = json.loads(interlock("runs", "--out", out, "--json").stdout)
    assert {each["state"] for each in found} == {"INCOMPLETE", "RUN PROCESS DIED", "STOPPED"}
    assert all(each["bytes"] > 0 and each["models"] for each in found)


def test_a_name_that_is_no_text_is_listed_and_costs_no_other_run_its_line(out):
    (out / "over").rename(out / os.fsdecode(b"caf\xe9"))
    found = json.loads(interlock("runs", "--out", out, "--json").stdout)
    assert {each["run"] for each in found} == {str(out / name) for name in ("caf\ufffd", "died", "stopped")}
    assert len(interlock("runs", "--out", out).stdout.splitlines()) == 2 + 3


def test_where_there_is_no_run_the_command_says_what_to_do(tmp_path):
    assert "interlock run CHUNKS" in interlock("runs", "--out", tmp_path).stdout
    assert json.loads(interlock("runs", "--out", tmp_path, "--json").stdout) == []


def test_a_damaged_first_line_is_unreadable_in_a_list_that_is_kept_too_and_no_dead_run_is_held_in_memory(out):
    path = out / "died" / "journal.jsonl"
    path.write_bytes(b"?" + path.read_bytes()[1:])
    kept = RunList(out)
    try:
        until(lambda: kept.complete)
        words = {each.id: each.health.word for each in kept.seen}
        assert words["died"] == overview(out / "died", LATER).health.word == "UNREADABLE"
        assert not any(each.state.started for each in kept._known.values())
    finally:
        kept.close()


def test_a_list_that_is_kept_reads_again_only_what_was_written_to(running, monkeypatch):
    looked: list[str] = []
    real = runs.overview

    def counted(path, now, folded=None):
        looked.append(path.name)
        return real(path, now, folded)

    monkeypatch.setattr("interlock.console.sources.runs.overview", counted)
    monkeypatch.setattr("interlock.console.sources.runs.BEAT", 0.2)
    kept = RunList(running)
    try:
        until(lambda: kept.complete)
        assert {each.id for each in kept.seen} == {"over", "died", "stopped", "running"}
        done = next(each.share_done for each in kept.seen if each.id == "running")
        until(lambda: next(each.share_done for each in kept.seen if each.id == "running") > done)
        assert sorted(set(looked)) == sorted({"over", "died", "stopped", "running"})
        assert [looked.count(name) for name in ("over", "died", "stopped")] == [1, 1, 1]
        os.kill(occupant(running / "running").pid, signal.SIGKILL)
        until(lambda: next(each for each in kept.seen if each.id == "running").health.word == "RUN PROCESS DIED")
        kept.close()
        assert len(kept.seen) == 4  # what is known outlasts a list that is closed
        before, looks = len(looked), kept.looks
        kept.open()
        until(lambda: kept.looks > looks + 1)
        assert len(looked) == before
        running.rename(running.with_name("away"))
        until(lambda: not kept.seen)
        assert "runs" in kept.failure
    finally:
        kept.close()


def test_what_does_not_fit_stays_said_of_a_run_in_use(out, monkeypatch):
    monkeypatch.setattr("interlock.console.sources.runs.BEAT", 0.05)
    run = recorded(out, "odd", 0.4)  # its journal is still held
    lost = ev.BatchesLost(model_pass=9, batches=[1])
    latest = list(journal.read(run.directory.journal))[-1]
    run.recorder.journal.append(replace(latest, seq=latest.seq + 1, body=lost))
    kept, words = RunList(out), set()
    try:
        until(lambda: any(each.id == "odd" for each in kept.seen))
        for _ in range(10):
            time.sleep(0.05)
            words |= {each.health.word for each in kept.seen if each.id == "odd"}
        assert words == {"UNREADABLE"}
    finally:
        kept.close()
        run.close()


def lines_of(app) -> list[str]:
    screen = next(each for each in app.screen_stack if isinstance(each, RunsScreen))
    return [option.prompt.plain for option in screen.query_one(Choices).options]


def listing(out: Path, **look: object) -> Runs:
    app = Runs(Look(**look, out=out), driver=None)
    app.now = lambda: LATER
    return app


async def chosen(pilot: Pilot, name: str) -> None:
    """Move the cursor to a run."""
    await shows(pilot, lambda: any(f" {name} " in line for line in lines_of(pilot.app)))
    for key in ["g", *["j"] * 9] * 4:  # runs change their places while the first look at them goes on
        await pilot.press(key)
        await pilot.pause()  # on a busy machine the screen is drawn later than the key is taken
        if any(line.startswith(("▸", ">")) and f" {name} " in line for line in lines_of(pilot.app)):
            return
    raise AssertionError(lines_of(pilot.app))


@pytest.mark.parametrize("size", [(40, 10), (60, 15), (80, 24), (120, 40), (200, 60)])
async def test_the_screen_says_of_every_run_how_it_stands_at_any_size(out, size):
    app = listing(out, ascii=True)
    async with app.run_test(size=size) as pilot:
        states = ("INCOMPLETE", "RUN PROCESS DIED", "STOPPED")  # the first look may come before the screen has its size
        await shows(pilot, lambda: all(any(word in line for line in lines_of(app)) for word in states))
        assert all(line.isascii() for line in summaries.lines_of(app))
        assert all(len(line) <= size[0] for line in lines_of(app))


async def test_two_marked_runs_are_compared_and_one_is_viewed(out):
    app = listing(out)
    async with app.run_test(size=(120, 40)) as pilot:
        await chosen(pilot, "over")
        await pilot.press("o")
        assert not isinstance(app.screen, SummaryScreen)
        await pilot.press("space")
        await chosen(pilot, "stopped")
        await pilot.press("space", "o")
        await shows(pilot, lambda: isinstance(app.screen, SummaryScreen))
        assert app.screen._other is not None
        await pilot.press("escape")
        await chosen(pilot, "over")
        await pilot.press("enter")
        await shows(pilot, lambda: isinstance(app.screen, SummaryScreen))
        assert app.screen._other is None
        await pilot.press("escape", "escape")
    assert app.next == ()


async def test_the_screen_is_left_to_watch_what_is_not_over_and_to_resume_once_confirmed(out):
    app = listing(out)
    async with app.run_test(size=(120, 40)) as pilot:
        await chosen(pilot, "died")
        await pilot.press("enter")
    assert app.next == ["watch", str(out / "died")]
    app = listing(out)
    async with app.run_test(size=(120, 40)) as pilot:
        await chosen(pilot, "stopped")
        await pilot.press("r")
        await pilot.press("escape")
        assert app.next == ()
        await pilot.press("r", "y")
    assert app.next[-3:] == ["--run-id", "stopped", "--resume"]


async def test_a_run_is_deleted_once_that_is_confirmed_and_never_one_in_use(running):
    app = listing(running)
    async with app.run_test(size=(120, 40)) as pilot:
        await chosen(pilot, "running")
        await pilot.press("D", "D", "y")
        assert (running / "running").exists()
        await chosen(pilot, "died")
        await pilot.press("D", "D", "enter")  # neither the key that asks nor Enter confirms it
        assert (running / "died").exists()
        await pilot.press("y")
        await shows(pilot, lambda: not (running / "died").exists())
        await shows(pilot, lambda: not any(" died " in line for line in lines_of(app)))


async def test_an_empty_list_says_what_to_do(tmp_path):
    app = listing(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await shows(pilot, lambda: any("interlock run CHUNKS" in line for line in lines_of(app)))
        await pilot.press("enter", "r", "D", "o", "space")
        assert app.is_running


async def test_a_live_run_is_not_left_for_another_and_the_command_is_told(out):
    session = Session(lambda controls: Recorded(RunDirectory(out / "mine"), controls, speed=1.5))
    app = Console(Live(session), Look(out=out), session=session, painted=session.start, driver=None)
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            await shows(pilot, lambda: session.work)
            await pilot.press("R")
            for name, there in (("over", True), ("died", False)):
                await chosen(pilot, name)
                await shows(pilot, lambda there=there: ("Open" in summaries.lines_of(app)[-1]) is there)
            await pilot.press("enter")
            assert app.is_running and app.next == ()
            assert "interlock watch" in app.screen._notice
            await pilot.press("escape")
            assert app.screen is app.main
    finally:
        session.controls.stop(4)


async def test_who_watches_a_run_goes_from_the_list_to_another(out):
    watcher = Watched(out / "over")
    app = Console(watcher, Look(), summary=watcher.path.with_name("summary.json"), driver=None)
    try:
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press("R")
            await chosen(pilot, "died")
            await pilot.press("enter")
        assert app.next == ["watch", str(out / "died")]
    finally:
        watcher.close()


def test_an_operator_goes_from_the_list_to_a_run_and_back_on_a_terminal(running):
    with on_terminal("watch", running, cwd=running.parent, columns=100, rows=30) as terminal:
        terminal.wait_for("RUN PROCESS DIED", PATIENCE)
        terminal.wait_for(lambda screen: any("▸" in line and " running " in line for line in screen.lines), PATIENCE)
        terminal.press("\r")
        terminal.wait_for(lambda screen: " watching " in screen.lines[0], PATIENCE)
        terminal.press("\x1b")
        terminal.wait_for("in use", PATIENCE)
        terminal.press("q")
        assert terminal.wait(PATIENCE) == 0


def test_a_watch_that_is_terminated_leaves_no_mouse_that_types_into_the_shell(out):
    with on_terminal("watch", out / "over", cwd=out.parent) as terminal:
        terminal.wait_for("6 Events", PATIENCE)
        terminal.signal(signal.SIGTERM)
        assert terminal.wait(PATIENCE) == -signal.SIGTERM
        until(lambda: b"\x1b[?1049l" in terminal.output)
        for mode in (b"1000", b"1003", b"1006", b"2004"):
            assert terminal.output.rindex(b"\x1b[?%sl" % mode) > terminal.output.rindex(b"\x1b[?%sh" % mode)


async def test_runs_are_found_while_one_types_and_marks_outlast_it(out):
    app = listing(out)
    async with app.run_test(size=(120, 40)) as pilot:
        await chosen(pilot, "over")
        await pilot.press("space", "slash", *"DIED")
        await shows(pilot, lambda: len(lines_of(app)) == 2 and " died " in lines_of(app)[1])
        await pilot.press(*"xyz")
        await shows(pilot, lambda: any("esc shows all" in line for line in lines_of(app)))
        await pilot.press("enter", "escape")
        await chosen(pilot, "stopped")
        await pilot.press("space", "o")
        await shows(pilot, lambda: isinstance(app.screen, SummaryScreen) and app.screen._other)


async def test_what_is_typed_in_one_burst_with_the_key_that_opens_the_line_is_not_lost(out):
    app = listing(out)
    async with app.run_test(size=(120, 40)) as pilot:
        await chosen(pilot, "over")
        for key in ("slash", "d", "i", "e", "d"):
            app.post_message(events.Key(key, "/" if key == "slash" else key))
        await shows(pilot, lambda: isinstance(app.screen, Find) and app.screen.query_one(Input).value == "died")


async def test_a_run_that_cannot_be_read_is_not_watched_and_says_what_is_wrong(out):
    journal = out / "died" / "journal.jsonl"
    data = journal.read_bytes()
    journal.write_bytes(data[:2000] + b"?" + data[2001:])
    app = listing(out, readonly=True)
    async with app.run_test(size=(120, 40)) as pilot:
        await chosen(pilot, "died")
        await pilot.press("enter")
        assert app.is_running and app.next == () and "damaged" in app.screen._notice
        for key in "rD":
            await pilot.press(key)
            assert isinstance(app.screen, RunsScreen) and "--readonly" in app.screen._notice


@pytest.mark.parametrize(
    ("event", "value"),
    [
        ("pass_planned", {"batches": 10**12}),
        ("pass_planned", {"first_batch": -1}),
        ("pass_planned", {"model_pass": 10**9}),
        ("lease_granted", {"model_pass": -5}),
        ("run_closed", {"at": 1e18}),
    ],
)
def test_a_planted_journal_hangs_nobody_and_is_told_as_damaged(out, tmp_path, event, value):
    run, lines = tmp_path / "planted", []
    run.mkdir()
    for line in (out / "died" / "journal.jsonl").read_bytes().splitlines(keepends=True):
        told = json.loads(journal.opened_seal(line))
        if told["body"]["event"] == event or (event == "run_closed" and told["seq"] == 3):
            told |= value if "at" in value else {"body": told["body"] | value}
            line = journal.sealed(json.dumps(told, separators=(",", ":")).encode()[:-1])
        lines.append(line)
    (run / "journal.jsonl").write_bytes(b"".join(lines))
    began = time.monotonic()
    (seen,) = overviews([tmp_path], LATER)
    assert time.monotonic() - began < 2
    assert seen.health.word == "UNREADABLE" and "does not fit" in seen.health.detail
