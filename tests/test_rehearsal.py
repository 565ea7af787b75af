"""A rehearsal is a real run over models without weights: every trouble is in it, and nothing of it looks real."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from interlock.console.sources.session import Session
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.ladder import Rung
from interlock.engine.errors import ExitCode, UsageError
from interlock.engine.flows import rehearsal
from interlock.engine.models.registry import extended, find
from interlock.engine.record import events as ev
from interlock.engine.record import journal, summary
from interlock.engine.record.facts import node_of
from interlock.engine.record.fold import fold
from interlock.engine.record.rundir import RunDirectory
from interlock.engine.record.snapshot import snapshot
from interlock.engine.record.state import RunState
from interlock.engine.settings import load
from tests.builders import ROOT, committed_schema
from tests.processes import until
from tools.record import Take, taken
from tools.recorded import RECORDED, Recorded

TWO = "sim-minilm-l6,sim-mpnet-base"
SMALL = {"roster": "sim-minilm-l6", "collections": "Sim-Runbooks,Sim-Source-Code"}
PATIENCE = 120


def rehearsed(place, controls=None, speed=np.inf, **flags):
    flags = {**SMALL, "out": str(place), "run_id": "r", **flags}
    return rehearsal.run(load(flags, {}), controls or Controls(), speed)


def entries_of(path):
    return list(journal.read(path))


def of(kind, entries):
    return [entry.body for entry in entries if isinstance(entry.body, kind)]


def committed(entries):
    return Counter((batch.model_pass, batch.batch_index) for batch in of(ev.BatchCommitted, entries))


def planned(entries):
    shares = of(ev.PassPlanned, entries)
    return {(share.model_pass, share.first_batch + number) for share in shares for number in range(share.batches)}


@pytest.fixture(scope="module", params=["two-devices", "eight-devices"])
def recorded(request):
    return entries_of(RECORDED / f"{request.param}.jsonl")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The recording of two devices, told again to its end."""
    run = Recorded(RunDirectory(tmp_path_factory.mktemp("told") / "r"))
    assert run.go() == ExitCode.FAILED
    return run


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small rehearsal as it is when nobody interferes, and where it was written."""
    place = tmp_path_factory.mktemp("rehearsed")
    run = rehearsed(place)
    assert run.go() == ExitCode.FAILED
    return place, entries_of(run.directory.journal)


def test_every_batch_of_a_recording_is_committed_once_and_every_entry_says_simulated(recorded):
    assert committed(recorded) == Counter(planned(recorded))
    assert {entry.device_kind for entry in recorded} == {"sim"}
    assert {facts.kind for found in of(ev.DevicesFound, recorded) for facts in found.devices} == {"sim"}


def test_a_recording_shows_every_rung_and_every_trouble_of_one_session(recorded):
    climbed = {step.rung for step in of(ev.Mitigated, recorded)} - {"slice_mlp"}  # which old journals have
    assert climbed == set(Rung) - {Rung.PARK}
    assert {parked.collection for parked in of(ev.RowParked, recorded)} == {"Sim-Source-Code"}
    other_stories = {ev.RunResumed, ev.RowsReused, ev.BatchesLost, ev.PassFailed}
    other_stories |= {ev.DeliveredWithout, ev.DeadlineSet, ev.ParkedRetried, ev.BlockRead}
    other_stories |= {ev.NodeJoined, ev.NodeLost, ev.NodeRefused, ev.BatchesDoubled, ev.ControlReached}
    other_stories |= {
        ev.VectorsKept,
        ev.Warned,
        ev.MemoryTaken,
        ev.DiskLow,
        ev.MemoryLow,
        ev.ModelMoved,
        ev.ModelUnloaded,
        ev.PairsPlanned,
        ev.PairsScored,
        ev.RerankerPassedOver,
    }
    other_stories |= {each for each in ev.AnyEvent.__args__ if issubclass(each, ev.Heartbeat)}
    steering = {ev.ControlApplied, ev.ControlRefused}
    assert set(ev.AnyEvent.__args__) - {type(entry.body) for entry in recorded} <= other_stories | steering
    assert [lost.device for lost in of(ev.DeviceLost, recorded)] != []


def test_a_recording_tells_nothing_of_the_machine_it_was_made_on(recorded):
    text = b"".join(journal.encode(entry) for entry in recorded).decode()
    assert "/tmp" not in text and "/work" not in text and "/root" not in text
    assert of(ev.RunStarted, recorded)[0].environment == {"processor": "recorded", "cores": "2"}


def test_a_recording_of_nodes_tells_of_one_that_is_lost_and_commits_every_batch_once():
    entries = entries_of(RECORDED / "nodes.jsonl")
    assert committed(entries) == Counter(planned(entries))
    assert [lost.node for lost in of(ev.NodeLost, entries)] == ["node-3"]
    assert {node_of(batch.device) for batch in of(ev.BatchCommitted, entries)} == {f"node-{n}" for n in range(1, 7)}
    text = b"".join(journal.encode(entry) for entry in entries).decode()
    assert "/tmp" not in text and "/work" not in text and "/root" not in text


def test_three_collections_of_a_recording_are_whole_and_one_lacks_a_row(told):
    seen = told.snapshot()
    assert [each.word for each in seen.collections] == ["completed", "completed", "incomplete", "completed"]
    assert seen.simulated and (seen.phase, seen.exit_code) == ("incomplete", ExitCode.FAILED)
    assert seen.share_done == 1.0


def test_samples_of_a_recording_come_in_order_and_stay_below_the_ceiling(recorded):
    samples = [entry for entry in recorded if isinstance(entry.body, ev.DeviceSampled)]
    ceilings = {facts.name: facts.ceiling_bytes for facts in of(ev.DevicesFound, recorded)[0].devices}
    assert all(each.body.memory.occupied <= ceilings[each.body.device] for each in samples)
    assert all(each.body.readings.used <= each.body.readings.total for each in samples if each.body.readings)
    assert all(each.body.memory.allocated <= each.body.memory.reserved for each in samples)
    times = [each.elapsed for each in samples if each.body.device == "cuda:0"]
    assert all(earlier < later for earlier, later in pairwise(times)) and len(times) > 5


def test_each_lease_of_a_recording_has_one_receipt_a_device_and_one_left_something(recorded):
    granted = {lease.lease: lease.devices for lease in of(ev.LeaseGranted, recorded)}
    released = {lease.lease: [receipt.device for receipt in lease.receipts] for lease in of(ev.LeaseReleased, recorded)}
    assert granted == released
    assert [residue.lease for residue in of(ev.ResidueFound, recorded)] == ["L001"]
    receipts = [receipt for lease in of(ev.LeaseReleased, recorded) for receipt in lease.receipts]
    assert sum(receipt.residue_bytes > 0 for receipt in receipts) == 1


def test_the_summary_of_a_rehearsal_is_within_the_schema_and_claims_no_speed(told):
    said = json.loads(told.directory.summary.read_bytes())
    Draft202012Validator(json.loads(committed_schema())).validate(said)
    assert (said["device_kind"], said["seconds"], said["status"]) == ("sim", None, "incomplete")
    for collection in said["collections"]:
        assert {share["seconds"] for share in collection["passes"]} == {None}
        assert {share["rows_per_second"] for share in collection["passes"]} == {None}
        assert {lease["held_seconds"] for lease in collection["leases"]} == {None}
        assert {lease["attach_seconds"] for lease in collection["leases"]} == {None}
        assert {step["cost_seconds"] for step in collection["mitigations"]} <= {None}


def test_a_folded_journal_is_what_was_watched_and_what_the_summary_says(told):
    state = RunState()
    entries = entries_of(told.directory.journal)
    for entry in entries:
        fold(state, entry)
    assert snapshot(state, len(entries) - 1) == told.snapshot()
    assert summary.dumps(summary.summarise(state)) == told.directory.summary.read_bytes()


def test_a_recording_told_twice_gives_the_same_bytes(told, tmp_path):
    again = Recorded(RunDirectory(tmp_path / "r"))
    again.play_to(0.4)
    again.go()
    assert again.directory.journal.read_bytes() == told.directory.journal.read_bytes()
    assert again.directory.summary.read_bytes() == told.directory.summary.read_bytes()


def test_a_small_rehearsal_commits_every_batch_once_and_parks_the_row_that_no_device_can_compute(small):
    _, entries = small
    assert committed(entries) == Counter(planned(entries))
    assert {entry.device_kind for entry in entries} == {"sim"}
    assert {(parked.model_pass, parked.collection) for parked in of(ev.RowParked, entries)} == {(0, "Sim-Source-Code")}
    assert {step.rung for step in of(ev.Mitigated, entries)} >= {Rung.REPLAN, Rung.CPU}


def test_whatever_a_rehearsal_writes_says_by_its_name_that_it_is_simulated(small):
    place, entries = small
    assert all(entry.model.startswith("sim-") for entry in of(ev.RosterResolved, entries)[0].roster)
    written = [path.relative_to(place / "r" / "exports").parts[0] for path in place.glob("r/exports/*/*")]
    assert written and all(name.startswith("Sim-") for name in written)
    stored = [path.name for path in (place / "rehearsal-store").iterdir() if path.is_dir()]
    assert stored and all(name.startswith("sim-") for name in stored)


def test_another_rehearsal_gives_the_same_vectors(small, tmp_path):
    place, _ = small
    again = rehearsed(tmp_path, collections="Sim-Runbooks", faults="", devices="sim:1x4GiB")
    assert again.go() == ExitCode.COMPLETED
    names = [path.name for path in (place / "r" / "exports" / "Sim-Runbooks").glob("*.npy")]
    assert names
    for name in names:
        first, second = (np.load(each / "r" / "exports" / "Sim-Runbooks" / name) for each in (place, tmp_path))
        np.testing.assert_array_equal(first, second)
        assert np.isfinite(first).all() and len(np.unique(first[:, 0])) > 100


def test_shared_that_is_asked_for_while_models_take_turns_puts_them_side_by_side(tmp_path):
    controls = Controls()
    run = rehearsed(tmp_path, controls, faults="", devices="sim:2x4GiB", collections="Sim-Runbooks", roster=TWO)
    controls.ask("schedule", "shared", "ada")
    run.go()
    entries = entries_of(run.directory.journal)
    assert [(lease.model_pass, lease.devices) for lease in of(ev.LeaseGranted, entries)] == [
        (0, ["cuda:0"]),
        (1, ["cuda:1"]),
    ]
    assert of(ev.ControlApplied, entries) == [ev.ControlApplied(control="schedule", value="shared", who="ada")]


def test_a_rehearsal_that_is_paused_and_stopped_goes_on_with_resume_where_it_was(tmp_path):
    controls = Controls()
    run = rehearsed(tmp_path, controls, speed=20.0)
    engine = threading.Thread(target=run.go)
    engine.start()
    until(lambda: run.recorder.snapshot().batches_done > 3)
    controls.ask("pause", "yes", "ada")
    until(lambda: run.recorder.snapshot().paused)
    time.sleep(0.2)
    done = run.recorder.snapshot().batches_done
    time.sleep(0.2)
    assert run.recorder.snapshot().batches_done == done
    controls.code = ExitCode.STOPPED
    engine.join(PATIENCE)
    seen = run.recorder.snapshot()
    assert (seen.phase, seen.exit_code) == ("stopped", ExitCode.STOPPED)
    assert all(lease.held_seconds is not None for lease in seen.leases)
    kept = committed(entries_of(run.directory.journal))
    again = rehearsed(tmp_path, resume="yes")
    again.go()
    entries = entries_of(again.directory.journal)
    assert len(of(ev.RunResumed, entries)) == 1
    assert set(kept) < set(committed(entries)) == planned(entries)
    assert set(committed(entries).values()) == {1}


def test_time_passes_by_what_batches_cost_and_by_the_speed_or_not_at_all(tmp_path):
    slow, fast, at_once = [], [], []
    for speed, slept in ((1.0, slow), (8.0, fast), (np.inf, at_once)):
        backend = rehearsal.backend(tmp_path, speed, slept.append)
        rehearsal.write(tmp_path)
        specs = find(extended(rehearsal.configured(load({}, {})).models), ["sim-minilm-l6"])
        (card,) = backend.cards(specs, None, (), lambda _: None)
        (device,) = backend.devices("sim:1x4GiB", [])
        slept.clear()
        with device.computing():
            backend.encoders(card, backend.load(card), device).encode([np.arange(2, 130)] * 4)
    assert slow[0] == pytest.approx(8 * fast[0]) and slow[0] > 0
    assert at_once == [0.0]


@pytest.mark.parametrize("speed", [0.0, -1.0, np.nan])
def test_a_speed_that_is_none_is_refused_and_nothing_is_made(tmp_path, speed):
    with pytest.raises(UsageError, match="--speed"):
        rehearsed(tmp_path, speed=speed)
    assert not list(tmp_path.iterdir())


def test_a_rehearsal_on_machines_is_refused_at_once_and_says_what_to_do(tmp_path):
    with pytest.raises(UsageError, match=r"drop --cluster .*interlock demo --cluster local:2 --devices cpu"):
        rehearsed(tmp_path, cluster="local:2")
    assert not list(tmp_path.iterdir())


def test_a_model_that_no_rehearsal_has_is_refused_by_name(tmp_path):
    with pytest.raises(UsageError, match="bge-m3"):
        rehearsed(tmp_path, roster="bge-m3").go()


def test_a_session_ends_with_the_exit_code_of_its_rehearsal(tmp_path):
    session = Session(lambda controls: Recorded(RunDirectory(tmp_path / "r"), controls))
    session.start()
    assert session.result() == ExitCode.FAILED
    assert session.summary and session.summary.exists()


def test_a_directory_that_is_in_use_is_refused(tmp_path):
    first = Recorded(RunDirectory(tmp_path / "r"))
    with pytest.raises(UsageError, match="in use"):
        Recorded(RunDirectory(tmp_path / "r"))
    first.close()


def test_neither_torch_nor_a_terminal_library_is_imported_with_the_rehearsal():
    heavy = {"torch", "numpy", "textual", "rich"}
    modules = "interlock.engine.flows.rehearsal, interlock.console.sources.journal"
    code = f"import sys, {modules}; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_recording_of_a_run_that_cannot_begin_raises_what_the_run_raised(tmp_path):
    with pytest.raises(UsageError, match="all-minilm-l6"):
        taken(Take(0.0, {"roster": "all-minilm-l6"}), tmp_path)
