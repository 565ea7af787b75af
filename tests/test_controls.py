"""What an operator asks of a run is pending, then counts or is refused, and an event says which, with who asked."""

import threading

import pytest

from interlock.console.sources.session import Session
from interlock.engine.compute.controls import VALUES, Controls
from interlock.engine.compute.schedule import Schedule
from interlock.engine.errors import ExitCode
from interlock.engine.flows.run import Run
from interlock.engine.record import events as ev
from interlock.engine.settings import load
from tests.builders import corpus, entries, events_of, sentences, summary_of, toml


class Told(list):
    """The events that were told."""

    def __call__(self, event: ev.AnyEvent) -> None:
        self.append(event)


class Nothing:
    """What is steered, where nothing is left."""

    def preview(self, schedule):
        return None

    def unaffected_by(self, schedule):
        return False


def test_a_control_is_pending_until_obeyed_and_then_told_with_who_asked():
    controls, told = Controls(), Told()
    assert controls.ask("schedule", "shared", "ada") == ""
    assert controls.schedule is Schedule.EXCLUSIVE
    assert [(each.control, each.value) for each in controls.pending()] == [("schedule", "shared")]
    controls.apply_pending(told)
    assert (controls.schedule, controls.pending()) == (Schedule.SHARED, [])
    assert told == [ev.ControlApplied(control="schedule", value="shared", who="ada")]


def test_an_impossible_control_is_refused_with_the_reason_and_changes_nothing():
    controls, told = Controls(), Told()
    controls.refuse("cpu_fallback", "there is no GPU")
    controls.ask("cpu_fallback", "no", "ada")
    controls.apply_pending(told)
    assert controls.cpu_fallback
    assert told == [ev.ControlRefused(control="cpu_fallback", value="no", who="ada", reason="there is no GPU")]


@pytest.mark.parametrize("control", VALUES)
def test_pending_controls_are_refused_when_no_cells_are_left(control):
    controls, told = Controls(), Told()
    controls.ask(control, VALUES[control][0], "ada")
    controls.end(told)
    assert [event.reason for event in told] == ["nothing is left to compute"]
    assert controls.pending() == []
    assert controls.preview(Schedule.SHARED) is None


@pytest.mark.parametrize("control", VALUES)
def test_what_is_asked_after_the_last_cell_is_refused_at_once_and_never_pending(control):
    controls, told = Controls(), Told()
    controls.end(told)
    assert controls.ask(control, VALUES[control][0], "ada") == "nothing is left to compute"
    assert controls.pending() == []


@pytest.fixture(scope="module")
def run_of(tmp_path_factory, tiny_a, tiny_b):
    """Runs of two models, or of one, whose controls the caller has."""
    place = tmp_path_factory.mktemp("controls")
    root = corpus(place / "in", {"Docs": {"a_chunks.json": sentences(60)}})
    tables = {"one": {"source": str(tiny_a), "batch_tokens": 60}, "two": {"source": str(tiny_b), "batch_tokens": 60}}
    file = toml(place / "models.toml", tables)

    def make(controls: Controls, **flags: str) -> Run:
        return Run(root, load({"out": str(place / "runs"), "roster": "one,two", **flags}, {}, file), controls)

    return make


def test_switching_the_cpu_fallback_off_without_a_gpu_is_refused_and_summarised(run_of):
    controls = Controls()
    controls.ask("cpu_fallback", "no", "ada")
    run = run_of(controls, devices="cpu")
    assert run.go() == ExitCode.COMPLETED
    (control,) = summary_of(run.directory.path)["controls"]
    assert (control["who"], control["value"]) == ("ada", "no")
    assert "no GPU" in control["refused"]
    assert control["at"].endswith("Z") or "+" in control["at"]


def test_another_schedule_is_refused_for_a_single_model(run_of):
    controls = Controls()
    controls.ask("schedule", "shared", "ada")
    run = run_of(controls, devices="cpu", roster="one")
    run.go()
    (refused,) = events_of(run.directory.path, ev.ControlRefused)
    assert "one model" in refused.reason


def test_switching_exclusive_off_on_the_cpu_makes_both_models_resident(
    run_of,
):
    controls, foreseen = Controls(), []
    run = run_of(controls, devices="cpu")
    emit = run.recorder.emit

    def watched(event: ev.AnyEvent):
        if isinstance(event, ev.BatchCommitted) and not foreseen:
            foreseen.append(controls.preview(Schedule.SHARED))
            controls.ask("schedule", "shared", "ada")
        return emit(event)

    run._emit = watched
    assert run.go() == ExitCode.COMPLETED
    (then,) = foreseen
    assert [(assignment.model_pass, assignment.devices) for assignment in then.assignments] == [
        (0, ("cpu",)),
        (1, ("cpu",)),
    ]
    alone, *together = events_of(run.directory.path, ev.LeaseGranted)
    assert (alone.schedule, {lease.schedule for lease in together}) == ("exclusive", {"shared"})
    granted = [type(event.body).__name__ for event in entries(run.directory.path)]
    assert [name for name in granted if "Lease" in name][2:4] == ["LeaseGranted", "LeaseGranted"]
    rows = {share["model"]: share["rows"] for share in summary_of(run.directory.path)["collections"][0]["passes"]}
    assert set(rows.values()) == {60}


def test_a_switch_that_leaves_the_last_model_where_it_is_ends_no_lease(run_of):
    controls, asked = Controls(), []
    run = run_of(controls, devices="cpu")
    emit = run.recorder.emit

    def watched(event: ev.AnyEvent):
        if isinstance(event, ev.BatchCommitted) and event.model_pass == 1 and not asked:
            asked.append(controls.ask("schedule", "shared", "ada"))
        return emit(event)

    run._emit = watched
    assert run.go() == ExitCode.COMPLETED
    assert [(control.value, control.refused) for control in run.recorder.look(lambda state: state.controls)] == [
        ("shared", "")
    ]
    assert [lease.model_pass for lease in events_of(run.directory.path, ev.LeaseGranted)] == [0, 1]


def test_what_is_refused_while_a_run_works_is_answered_when_it_is_asked(run_of):
    controls, answers = Controls(), []
    run = run_of(controls, devices="cpu")
    emit = run.recorder.emit

    def watched(event: ev.AnyEvent):
        if isinstance(event, ev.ModelAttached) and not answers:
            answers.append(controls.ask("cpu_fallback", "no", "ada"))
            answers.append(run.recorder.look(lambda state: [control.refused for control in state.controls]))
        return emit(event)

    run._emit = watched
    assert run.go() == ExitCode.COMPLETED
    assert "no GPU" in answers[0]
    assert answers[1] == [answers[0]]


def test_a_refusal_is_journalled_while_nobody_else_waits_for_the_controls():
    controls, waited = Controls(), []
    controls.refuse("cpu_fallback", "there is no GPU")

    def slow_journal(event: ev.AnyEvent) -> None:
        (worker := threading.Thread(target=controls.settle, args=(Told(),), daemon=True)).start()
        worker.join(5)
        waited.append(worker.is_alive())

    controls.attend(Nothing(), slow_journal)
    assert controls.ask("cpu_fallback", "no", "ada") == "there is no GPU"
    assert waited == [False]


def test_what_a_run_can_never_change_is_known_before_anything_is_read(run_of):
    controls = Controls()
    run_of(controls, devices="cpu", roster="one")
    assert "no GPU" in controls.refusal("cpu_fallback")
    assert "one model" in controls.refusal("schedule")
    assert controls.refusal("pause") == ""


@pytest.mark.parametrize(("elsewhere", "left"), [(False, ["pause no"]), (True, [])])
def test_a_console_that_goes_lifts_its_own_pause_and_none_that_was_asked_for_from_elsewhere(elsewhere, left):
    session = Session(lambda _: pytest.fail("never started"))
    session.controls.ask("pause", "yes", "root", elsewhere=elsewhere)
    session.controls.settle(lambda _: None)
    session.detach()
    assert [f"{each.control} {each.value}" for each in session.controls.pending()] == left


def test_a_signal_stops_the_run_though_its_thread_holds_the_controls():
    controls = Controls()

    def asked() -> None:
        with controls._lock:  # as a screen that looks what is pending when the handler is called
            controls.stop(ExitCode.TERMINATED)

    (thread := threading.Thread(target=asked, daemon=True)).start()
    thread.join(5)
    assert not thread.is_alive() and controls.code == ExitCode.TERMINATED
