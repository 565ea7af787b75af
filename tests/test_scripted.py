"""The scripted engine tells a whole run that never was: the same bytes for a seed, and heeding an operator."""

import json
import math
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import pairwise

import pytest
from jsonschema import Draft202012Validator

from interlock.console.scripted import Scripted
from interlock.console.sources.session import Session
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.passes.controls import Controls
from interlock.engine.passes.ladder import Rung
from interlock.engine.record import events as ev
from interlock.engine.record import journal, summary
from interlock.engine.record.fold import fold
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.record.snapshot import snapshot
from interlock.engine.record.state import RunState
from tests.builders import ROOT


def scripted(tmp_path, name="run", controls=None, **options):
    return Scripted(RunDirectory(tmp_path / name), controls or Controls(), **{"speed": math.inf, **options})


def told(run):
    return list(journal.read(run.directory.journal))


def of(kind, run):
    return [entry.body for entry in told(run) if isinstance(entry.body, kind)]


def cells(run):
    return Counter((batch.model_pass, batch.batch_index) for batch in of(ev.BatchCommitted, run))


def planned(run):
    return {
        (share.model_pass, share.first_batch + place)
        for share in of(ev.PassPlanned, run)
        for place in range(share.batches)
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run as it is when nobody interferes."""
    run = scripted(tmp_path_factory.mktemp("scripted"))
    assert run.go() == ExitCode.FAILED
    return run


def test_GIVEN_one_seed_WHEN_told_twice_THEN_journal_and_summary_are_the_same_bytes(whole, tmp_path):
    again = scripted(tmp_path)
    again.play_to(0.4)
    again.go()
    assert again.directory.journal.read_bytes() == whole.directory.journal.read_bytes()
    assert again.directory.summary.read_bytes() == whole.directory.summary.read_bytes()


def test_GIVEN_another_seed_WHEN_told_THEN_it_is_another_run_of_the_same_cells(whole, tmp_path):
    other = scripted(tmp_path, seed=8)
    other.go()
    assert other.directory.journal.read_bytes() != whole.directory.journal.read_bytes()
    assert planned(other) == planned(whole)


def test_GIVEN_a_whole_run_WHEN_told_THEN_every_cell_is_committed_once_and_every_entry_says_scripted(whole):
    assert cells(whole) == Counter(planned(whole))
    assert {entry.device_kind for entry in told(whole)} == {"scripted"}
    assert {facts.kind for found in of(ev.DevicesFound, whole) for facts in found.devices} == {"scripted"}


def test_GIVEN_a_whole_run_WHEN_told_THEN_every_rung_and_every_kind_of_event_of_one_session_is_seen(whole):
    assert {step.rung for step in of(ev.Mitigated, whole)} == set(Rung) - {Rung.PARK}
    assert [parked.collection for parked in of(ev.RowParked, whole)] == ["Source-Code"]
    other_stories = {ev.RunResumed, ev.RowsReused, ev.BatchesLost, ev.DeviceLost, ev.PassFailed, ev.Warned}
    asked_for = {ev.ControlApplied, ev.ControlRefused}
    assert set(ev.AnyEvent.__args__) - {type(entry.body) for entry in told(whole)} == other_stories | asked_for


def test_GIVEN_a_whole_run_WHEN_closed_THEN_two_collections_are_whole_one_lacks_a_row_and_one_failed(whole):
    seen = whole.recorder.snapshot()
    assert [each.word for each in seen.collections] == ["completed", "completed", "incomplete", "failed"]
    assert seen.scripted and (seen.phase, seen.exit_code) == ("failed", ExitCode.FAILED)
    assert seen.share_done == 1.0


def test_GIVEN_its_samples_WHEN_looked_at_THEN_they_come_once_a_second_and_stay_below_the_ceiling(whole):
    samples = [entry for entry in told(whole) if isinstance(entry.body, ev.DeviceSampled)]
    ceilings = {facts.name: facts.ceiling_bytes for facts in of(ev.DevicesFound, whole)[0].devices}
    assert all(each.body.memory.occupied <= ceilings[each.body.device] for each in samples)
    assert all(each.body.readings.used <= each.body.readings.total for each in samples)
    assert all(each.body.memory.allocated <= each.body.memory.reserved for each in samples)
    times = [each.elapsed for each in samples if each.body.device == "cuda:0"]
    assert {round(later - earlier, 3) for earlier, later in pairwise(times)} == {1.0}
    assert len({each.body.memory.allocated for each in samples}) > 20


def test_GIVEN_its_receipts_WHEN_looked_at_THEN_each_lease_has_one_a_device_and_one_left_something(whole):
    granted = {lease.lease: lease.devices for lease in of(ev.LeaseGranted, whole)}
    released = {lease.lease: [receipt.device for receipt in lease.receipts] for lease in of(ev.LeaseReleased, whole)}
    assert granted == released
    assert [residue.lease for residue in of(ev.ResidueFound, whole)] == ["L002"]
    receipts = [receipt for lease in of(ev.LeaseReleased, whole) for receipt in lease.receipts]
    assert sum(receipt.residue_bytes > 0 for receipt in receipts) == 1
    assert any(receipt.retries for receipt in receipts)


def test_GIVEN_its_summary_WHEN_validated_THEN_it_is_within_the_schema_and_claims_no_speed(whole):
    said = json.loads(whole.directory.summary.read_bytes())
    Draft202012Validator(json.loads(summary.committed_schema())).validate(said)
    assert (said["device_kind"], said["seconds"], said["status"]) == ("scripted", None, "failed")
    for collection in said["collections"]:
        assert {share["seconds"] for share in collection["passes"]} == {None}
        assert {share["rows_per_second"] for share in collection["passes"]} == {None}
        assert {lease["held_seconds"] for lease in collection["leases"]} == {None}
        assert {lease["attach_seconds"] for lease in collection["leases"]} == {None}
        assert {step["cost_seconds"] for step in collection["mitigations"]} <= {None}


def test_GIVEN_its_journal_WHEN_folded_THEN_it_is_what_was_watched_and_what_the_summary_says(whole):
    state = RunState()
    for entry in told(whole):
        fold(state, entry)
    assert snapshot(state, len(told(whole)) - 1) == whole.recorder.snapshot()
    assert summary.dumps(summary.summarise(state)) == whole.directory.summary.read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.77])
def test_GIVEN_a_share_WHEN_skipped_to_THEN_the_run_stands_there_at_once(tmp_path, share):
    run = scripted(tmp_path)
    began = time.monotonic()
    seen = run.play_to(share)
    assert share <= seen.share_done < share + 0.02 and not seen.over
    assert time.monotonic() - began < 5
    run.close()


@pytest.mark.parametrize(("devices", "models"), [(1, 1), (1, 6), (4, 2), (8, 6)])
def test_GIVEN_any_number_of_devices_and_models_WHEN_told_THEN_every_cell_is_committed_once(tmp_path, devices, models):
    run = scripted(tmp_path, devices=devices, models=models)
    run.go()
    assert cells(run) == Counter(planned(run))
    seen = run.recorder.snapshot()
    assert (len(seen.devices), len(seen.passes)) == (devices, models)
    assert [bool(device.lost) for device in seen.devices] == [False] * (devices - 1) + [devices > 2]
    assert {each.word for each in seen.passes} == {"done"}


def test_GIVEN_exclusive_WHEN_shared_is_asked_for_THEN_what_is_left_is_walked_side_by_side(tmp_path):
    controls = Controls()
    run = scripted(tmp_path, controls=controls)
    before = run.play_to(0.2)
    controls.ask("schedule", "shared", "ada")
    run.play_until(lambda seen: seen.share_done > before.share_done + 0.1)
    seen = run.recorder.snapshot()
    open_leases = {lease.model_pass: lease.devices for lease in seen.leases if lease.held_seconds is None}
    assert seen.schedule == "shared" and controls.pending() == []
    assert open_leases == {0: ["cuda:0"], 1: ["cuda:1"], 2: ["cuda:1"]}
    run.go()
    assert cells(run) == Counter(planned(run))
    assert of(ev.ControlApplied, run) == [ev.ControlApplied(control="schedule", value="shared", who="ada")]


def test_GIVEN_shared_WHEN_exclusive_is_asked_for_THEN_one_model_holds_both_devices_again(tmp_path):
    controls = Controls()
    run = scripted(tmp_path, controls=controls)
    controls.ask("schedule", "shared", "ada")
    run.play_to(0.3)
    controls.ask("schedule", "exclusive", "ada")
    seen = run.play_until(
        lambda seen: seen.schedule == "exclusive" and any(lease.held_seconds is None for lease in seen.leases)
    )
    run.play_to(0.5)
    seen = run.recorder.snapshot()
    assert [lease.devices for lease in seen.leases if lease.held_seconds is None] == [["cuda:0", "cuda:1"]]
    run.close()


def test_GIVEN_no_cpu_fallback_WHEN_nothing_on_the_card_helps_THEN_the_row_is_parked_and_the_cpu_never_leased(tmp_path):
    controls = Controls()
    run = scripted(tmp_path, controls=controls)
    controls.ask("cpu_fallback", "no", "ada")
    run.go()
    assert all(lease.devices != ["cpu"] for lease in of(ev.LeaseGranted, run))
    assert {parked.model_pass for parked in of(ev.RowParked, run)} == {1, 2}


def test_GIVEN_a_control_WHEN_nothing_is_left_to_compute_THEN_it_is_refused_with_the_reason(tmp_path):
    controls = Controls()
    run = scripted(tmp_path, controls=controls)
    run.play_until(lambda seen: seen.batches_done == seen.batches > 0)
    controls.ask("schedule", "shared", "ada")
    run.go()
    assert [refused.control for refused in of(ev.ControlRefused, run)] == ["schedule"]


def test_GIVEN_a_live_run_WHEN_paused_THEN_no_batch_is_begun_until_it_goes_on(tmp_path):
    controls = Controls()
    run = scripted(tmp_path, controls=controls)
    run.play_to(0.3)
    controls.ask("pause", "yes", "ada")
    run.play_until(lambda seen: seen.paused)
    settled = time.monotonic() + 2
    engine = threading.Thread(target=run.go)
    engine.start()
    done = -1
    while time.monotonic() < settled and done != run.recorder.snapshot().batches_done:
        done = run.recorder.snapshot().batches_done
        time.sleep(0.5)
    assert run.recorder.snapshot().batches_done == done
    controls.ask("pause", "no", "ada")
    engine.join(20)
    assert run.recorder.snapshot().over


@pytest.mark.parametrize("moment", [0.0, 0.45])
def test_GIVEN_a_stop_WHEN_asked_for_THEN_leases_are_released_and_the_run_is_closed_as_stopped(tmp_path, moment):
    controls = Controls()
    run = scripted(tmp_path, controls=controls)
    run.play_to(moment)
    controls.code = ExitCode.STOPPED
    assert run.go() == ExitCode.STOPPED
    seen = run.recorder.snapshot()
    assert (seen.phase, seen.exit_code) == ("stopped", ExitCode.STOPPED)
    assert all(lease.held_seconds is not None for lease in seen.leases)
    assert json.loads(run.directory.summary.read_bytes())["status"] == "stopped"


def test_GIVEN_a_stopped_run_WHEN_told_again_THEN_it_resumes_with_what_was_committed(tmp_path):
    controls = Controls()
    first = scripted(tmp_path, controls=controls)
    first.play_to(0.6)
    controls.code = ExitCode.TERMINATED
    assert first.go() == ExitCode.TERMINATED
    kept = sum(cells(first).values())
    second = scripted(tmp_path)
    second.go()
    assert len(of(ev.RunResumed, second)) == 1 and len(of(ev.BatchesLost, second)) == 1
    assert sum(cells(second).values()) == len(planned(second)) + 1
    assert kept > 100
    assert second.recorder.snapshot().share_done == 1.0
    leases = [lease.lease for lease in of(ev.LeaseGranted, second)]
    assert len(leases) == len(set(leases))
    times = [entry.at for entry in told(second)]
    assert times == sorted(times)


def test_GIVEN_a_speed_WHEN_let_go_THEN_it_sleeps_its_own_time_divided_by_it(tmp_path):
    slept = []
    run = scripted(tmp_path, speed=8.0, sleep=slept.append)
    run.go()
    assert sum(slept) == pytest.approx(run.seconds / 8)
    assert max(slept) <= 2.0


@pytest.mark.parametrize("speed", [0.0, -1.0, math.nan])
def test_GIVEN_a_speed_that_is_none_WHEN_scripted_THEN_it_is_refused_and_nothing_is_made(tmp_path, speed):
    with pytest.raises(UsageError, match="--speed"):
        scripted(tmp_path, speed=speed)
    assert not list(tmp_path.iterdir())


def test_GIVEN_a_session_WHEN_it_does_a_scripted_run_THEN_it_ends_with_its_exit_code(tmp_path):
    session = Session(lambda controls: scripted(tmp_path, controls=controls))
    session.start()
    assert session.result() == ExitCode.FAILED
    assert session.summary and session.summary.exists()


def test_GIVEN_a_directory_that_is_in_use_WHEN_scripted_THEN_it_is_refused(tmp_path):
    first = scripted(tmp_path)
    with pytest.raises(UsageError, match="in use"):
        scripted(tmp_path)
    first.close()


def test_GIVEN_the_scripted_engine_WHEN_imported_THEN_neither_torch_nor_a_terminal_library_is():
    heavy = {"torch", "numpy", "textual", "rich"}
    modules = "interlock.console.scripted, interlock.console.sources.journal"
    code = f"import sys, {modules}; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
