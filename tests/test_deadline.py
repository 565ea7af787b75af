"""A session with a deadline ends before it, by a clock that only batches move, and the next one ends the run with the
same bytes."""

import json
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from interlock.engine.compute import context as deadline
from interlock.engine.compute.context import Deadline, seconds_until
from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode, InterlockError, Stopped, UsageError
from interlock.engine.flows import sessions
from interlock.engine.flows.run import Run
from interlock.engine.flows.sessions import Continuation
from interlock.engine.record import events as ev
from interlock.engine.record.events import Entry
from interlock.engine.record.fold import fold_all
from interlock.engine.record.state import RunState
from interlock.engine.settings import load
from tests.builders import corpus, entries, events_of, sentences, summary_of, toml
from tests.clocks import Clock

ASKED_NEXT = {"resume": "yes"}


Go = Callable[..., tuple[Path, ExitCode]]


@pytest.fixture(scope="module")
def go(tmp_path_factory, tiny_a, tiny_b) -> Go:
    """Do a run of two collections and two models with these settings, each session by a clock of its own."""
    place = tmp_path_factory.mktemp("deadline")
    texts = {"Early": {"a_chunks.json": sentences(30)}, "Late": {"b_chunks.json": sentences(50, 12, start=100)}}
    chunks = corpus(place / "in", texts)
    tables = {"one": {"source": str(tiny_a), "batch_tokens": 60}, "two": {"source": str(tiny_b), "batch_tokens": 60}}
    file = toml(place / "models.toml", tables)
    common = {"out": str(place / "runs"), "roster": "one,two", "devices": "cpu"}

    def session(run_id: str, controls: Controls | None = None, **flags: str) -> tuple[Path, ExitCode]:
        given = load({**common, "run_id": run_id, **flags}, {}, file)
        run = Run(chunks, given, controls or Controls(), Clock().backend)
        return run.directory.path, run.go()

    return session


@pytest.fixture(scope="module")
def whole(go: Go) -> Path:
    run, code = go("whole")
    assert code == ExitCode.COMPLETED
    return run


def exports(run: Path) -> dict[str, str]:
    return {each.path: each.sha256 for each in events_of(run, ev.ArtefactWritten)}


def batches(run: Path, session: int = 0) -> list[Entry]:
    return [each for each in entries(run) if isinstance(each.body, ev.BatchCommitted) and each.session == session]


def in_the_midst(whole: Path) -> float:
    """When the second model has seen all of Early, and some of Late."""
    (plan,) = [each for each in events_of(whole, ev.PassPlanned) if (each.model_pass, each.collection) == (1, "Early")]
    seen = [each for each in batches(whole) if each.body.model_pass == 1 and each.body.batch_index >= plan.batches]
    assert len(seen) > 6
    return seen[4].elapsed


SCHEDULES = [{}, {"window": "2"}, {"window": "shared"}]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["exclusive", "window", "shared"])
def test_a_session_ends_before_its_deadline_and_the_next_one_ends_the_run_with_the_same_bytes(go, whole, schedule):
    seconds = in_the_midst(whole) + deadline.CLOSING_SECONDS
    name = "-".join(["r", *schedule.values()])
    run, code = go(name, deadline=f"{seconds:.0f}s", **schedule)
    assert code == ExitCode.STOPPED == 4
    done = batches(run)
    assert done[-1].elapsed <= seconds - deadline.CLOSING_SECONDS
    # Had there been time for the slowest batch, it would have gone on.
    assert 0 < seconds - deadline.CLOSING_SECONDS - done[-1].elapsed < 2 * max(each.body.seconds for each in done)
    told = summary_of(run)
    assert told["status"] == "stopped" and told["exit_code"] == 4 and not exports(run)
    assert f"deadline {seconds:.0f}s with " in told["reason"] and "of the work left, about " in told["reason"]
    run, code = go(name, **ASKED_NEXT)
    assert code == ExitCode.COMPLETED
    assert exports(run) == exports(whole)
    assert len(batches(run)) + len(batches(run, 1)) == len(batches(whole))


def test_two_workers_stop_for_one_deadline(go, whole):
    run, code = go("two-gpus", devices="sim:2xT4", deadline=f"{in_the_midst(whole):.0f}s")
    assert code == ExitCode.STOPPED
    assert {each.body.device for each in batches(run)} == {"cuda:0", "cuda:1"}
    assert "at the pace so far" not in summary_of(run)["reason"]  # the seconds of a simulated GPU say nothing
    run, code = go("two-gpus", devices="sim:2xT4", **ASKED_NEXT)
    assert code == ExitCode.COMPLETED
    assert len(exports(run)) == len(exports(whole))


def test_what_every_model_has_seen_is_exported_before_the_session_ends(go, whole, monkeypatch):
    monkeypatch.setattr(sessions, "delivery_seconds", lambda *_: 2000.0)
    reserve = deadline.CLOSING_SECONDS + 2000
    run, code = go("partial", deadline=f"{in_the_midst(whole) + reserve:.0f}s,export")
    assert code == ExitCode.STOPPED
    early = {path: digest for path, digest in exports(whole).items() if path.startswith("exports/Early/")}
    assert exports(run) == early
    told = summary_of(run)
    assert "exported Early; not exported Late (not finished by two)" in told["reason"]
    assert [(each["name"], each["status"]) for each in told["collections"]] == [
        ("Early", "completed"),
        ("Late", "stopped"),
    ]
    last, ends = batches(run)[-1].elapsed, in_the_midst(whole)
    assert 0 <= ends - last < 2 * max(each.body.seconds for each in batches(run))  # the reserve was kept, and no more
    run, code = go("partial", **ASKED_NEXT)
    assert code == ExitCode.COMPLETED
    assert exports(run) == exports(whole)


def test_without_partial_nothing_is_exported_before_its_time(go, whole):
    run, _ = go("impartial", deadline=f"{in_the_midst(whole) + 200:.0f}s")
    assert not exports(run)


def test_a_deadline_before_the_first_batch_leaves_all_to_the_next_session(go):
    with pytest.raises(Stopped, match="the last 30 s, which close a run") as stopped:
        go("at-once", deadline="5s")
    assert stopped.value.exit_code == ExitCode.STOPPED


def test_a_run_that_is_complete_stays_so_where_no_time_is_left_to_check_it_again(go, tmp_path):
    run, code = go("complete")
    files = {each: each.read_bytes() for each in (run / "journal.jsonl", run / "summary.json")}
    assert (code, go("complete", **ASKED_NEXT, deadline="1s")) == (ExitCode.COMPLETED, (run, ExitCode.COMPLETED))
    assert {each: each.read_bytes() for each in files} == files
    with pytest.raises(Stopped, match="later --deadline"):  # of what it lacks nothing is done either
        go("complete", **ASKED_NEXT, deadline="1s", qdrant=str(tmp_path / "store"))


def test_a_complete_run_is_told_as_one_where_no_time_is_left(tmp_path, tiny_a, call):
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": sentences(5)}})
    asked = ("run", chunks, "--roster", tiny_a, "--out", "runs", "--run-id", "it", "--no-ui")
    assert call(*asked)[0] == 0
    code, _, err = call(*asked, "--resume", "--deadline", "1s", "--summary", "told.json")
    assert code == 0 and "run it is completed: nothing to do (--deadline 1s leaves no time to check it again)" in err
    assert "DONE: 1 model, 5 texts" in err
    told = json.loads((tmp_path / "told.json").read_bytes())
    assert (told["status"], told["exit_code"]) == ("completed", 0)


def test_a_delivery_that_would_not_be_done_in_time_is_left_to_the_next_session(go, whole, monkeypatch):
    monkeypatch.setattr(sessions, "delivery_seconds", lambda rows, *_: 1e6 * (rows.collection.name == "Late"))
    run, code = go("delivering", deadline="500000s")
    assert code == ExitCode.STOPPED
    assert {path.split("/")[1] for path in exports(run)} == {"Early"}
    assert len(batches(run)) == len(batches(whole))
    monkeypatch.undo()
    assert go("delivering", **ASKED_NEXT)[1] == ExitCode.COMPLETED
    assert exports(run) == exports(whole)


def test_a_paused_run_does_not_sleep_through_its_deadline(go):
    controls, clock = Controls(), Clock()
    end = Deadline(100.0, controls, clock)
    controls.due = lambda: end.allows(0.0)
    controls.ask("pause", "yes", "ada")
    controls.settle(list[object]().append)
    clock.now += 80.0
    controls.apply_pending(list[object]().append)  # which returns
    assert controls.code == ExitCode.STOPPED


def test_a_model_is_not_leased_where_that_would_not_be_done_in_time(go, monkeypatch):
    allows = Deadline.allows
    lease = lambda self, weights, cells, index: allows(self, 1e9 * (weights > 0 and cells.model_pass))  # noqa: E731
    monkeypatch.setattr(Deadline, "allows_lease", lease)
    run, code = go("unleased", deadline="500000s")
    assert code == ExitCode.STOPPED
    assert {each.model for each in events_of(run, ev.LeaseGranted)} == {"one"}


def test_what_earlier_sessions_took_says_what_the_first_batch_of_the_next_one_takes(go, whole, monkeypatch):
    monkeypatch.setattr("interlock.engine.flows.opening.paces", lambda *_: {})
    run, _ = go("learnt", deadline=f"{in_the_midst(whole) + deadline.CLOSING_SECONDS:.0f}s")
    _, code = go("learnt", deadline=f"{deadline.CLOSING_SECONDS + 1:.0f}s", **ASKED_NEXT)
    assert (code, len(batches(run, 1))) == (ExitCode.STOPPED, 0)


def test_a_collection_that_cannot_be_exported_in_time_is_told_of(go, monkeypatch):
    monkeypatch.setattr(sessions, "delivery_seconds", lambda rows, *_: 1e6 * (rows.collection.name == "Late"))
    monkeypatch.setattr(sessions.SessionEnd, "reserve", lambda *_: 0.0)
    run, code = go("late", deadline="500000s,export")
    assert code == ExitCode.STOPPED
    assert "exported Early; not exported Late (too little time)" in summary_of(run)["reason"]
    assert {path.split("/")[1] for path in exports(run)} == {"Early"}


def test_vectors_that_changed_are_not_exported_before_a_session_ends_either(go, whole, monkeypatch):
    def damaged(*_):
        raise InterlockError("the vectors changed")

    monkeypatch.setattr(Continuation, "check", damaged)
    run, code = go("damaged", deadline=f"{in_the_midst(whole) + 200:.0f}s,export")
    assert (code, summary_of(run)["reason"], exports(run)) == (ExitCode.FAILED, "the vectors changed", {})


def test_a_collection_is_ready_with_its_last_batch_and_foreseen_before_it(whole):
    (plan,) = [each for each in events_of(whole, ev.PassPlanned) if (each.model_pass, each.collection) == (1, "Early")]
    second = [each.seq for each in batches(whole) if each.body.model_pass == 1]
    seen = [fold_all(RunState(), entries(whole)[: second[plan.batches - 1] + last]) for last in (0, 1)]
    assert [sessions.ready(state) for state in seen] == [[], ["Early"]]
    assert [sessions.ready(state, 1) for state in seen] == [["Early"], ["Early"]]


def cells_of(number: int, *costs: float) -> SimpleNamespace:
    """What a deadline asks of a pass: the cost of each batch, and that it computes 100 tokens."""
    layout = SimpleNamespace(cost=costs.__getitem__, computed=lambda _: 100)
    return SimpleNamespace(
        model_pass=number, card=SimpleNamespace(key=f"m{number}"), batches=range(len(costs)), layout=layout
    )


def test_a_batch_is_taken_to_last_as_the_slowest_and_longer_in_proportion_to_what_it_costs():
    end, cells = Deadline(), cells_of(0, 1.0, 1.0, 3.0, 0.5)
    end.learn(cells, 0, 10.0)
    end.learn(cells, 1, 4.0)
    assert [end.seconds_of(cells, index) for index in range(4)] == [10.0, 10.0, 30.0, 10.0]


def test_the_first_batch_is_taken_to_last_twice_what_earlier_runs_or_other_passes_make_of_it():
    end, first, second = Deadline(), cells_of(0, 2.0), cells_of(1, 3.0)
    assert end.seconds_of(second, 0) == 0.0
    end.learn(first, 0, 10.0)
    assert end.seconds_of(second, 0) == deadline.UNSURE * 3.0 * 10.0 / 2.0
    end.paces = {"m1": 50.0}
    assert end.seconds_of(second, 0) == deadline.UNSURE * 100 / 50.0


@pytest.mark.parametrize(("seconds", "allowed"), [(81, True), (79, False)])
def test_a_lease_is_taken_to_last_in_proportion_to_its_weights_and_with_a_batch(seconds, allowed):
    end, cells = Deadline(seconds, clock=lambda: 0.0), cells_of(0, 1.0)
    end.learn_lease(100, 20.0)
    end.learn(cells, 0, 10.0)
    assert end.allows_lease(200, cells, 0) is allowed  # 40 s, 10 s, and 30 s for the end


def test_an_operator_who_stopped_the_run_first_keeps_his_exit_code():
    controls = Controls()
    controls.stop(ExitCode.INTERRUPTED)
    clock = Clock()
    end = Deadline(10.0, controls, clock)
    assert not end.allows(0.0)
    assert controls.code == ExitCode.INTERRUPTED and not end.near


NOON = datetime(2026, 3, 4, 12, 0, 0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("8h30m", 30600),
        ("45m", 2700),
        ("90s", 90),
        ("1.5h", 5400),
        ("1H2m3s", 3723),
        ("17:45", 20700),
        ("12:00:01", 1),
        ("12:00", 86400),
        ("9:30", 77400),
    ],
)
def test_a_deadline_is_a_duration_or_the_next_such_time_of_day(text, seconds):
    assert seconds_until(text, NOON) == seconds
    assert load({"deadline": text}, {}).settings.deadline == text.lower()


@pytest.mark.parametrize(
    ("now", "second", "text", "minutes"),
    [
        ("2026-10-25T02:30", 1, "02:45", 15),  # which has been once already that night
        ("2026-10-25T02:30", 0, "02:15", 45),
        ("2026-10-25T01:30", 0, "03:10", 160),
        ("2026-03-29T01:30", 0, "03:10", 40),
        ("2026-03-29T01:30", 0, "02:30", 60),  # which is not on the clocks that night
    ],
)
def test_a_time_of_day_is_the_next_also_in_a_night_in_which_clocks_are_put(monkeypatch, now, second, text, minutes):
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Europe/Berlin")
        time.tzset()
        assert seconds_until(text, datetime.fromisoformat(now).replace(fold=second)) == minutes * 60
    time.tzset()


@pytest.mark.parametrize("text", ["soon", "0s", "0h0m", "25:00", "12:60", "8", "-1h", "h", "1h 5x", "17:45pm"])
def test_what_is_no_deadline_is_refused(text):
    with pytest.raises(UsageError, match=r"--deadline: expected a duration such as 8h30m, or a time of day such as"):
        load({"deadline": text}, {})


def test_the_command_that_goes_on_is_told_with_the_reason(tmp_path, tiny_a, call, monkeypatch):
    chunks = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": sentences(8)}})
    monkeypatch.setattr(Run, "_stops_reading", lambda self: False)
    short = f"{deadline.CLOSING_SECONDS - 1:.0f}s"
    words = ["run", chunks, "--out", tmp_path / "runs", "--run-id", "r", "--roster", tiny_a, "--no-ui"]
    code, _, said = call(*words, "--deadline", short)
    assert code == 4
    assert f"deadline {short}, in 0:" in said
    assert "STOPPED at 0% of the work" in said
    assert f"stopped for the deadline {short} with 100.0% of the work left" in said
    onward = f"--deadline {short} --out {tmp_path / 'runs'} --run-id r --resume"
    assert f"next: interlock run {chunks.resolve()} {onward}" in said
