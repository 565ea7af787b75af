"""Leases, schedules and the ladder on GPUs that are not there: the same vectors whatever happens, and all is told."""

import errno
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from interlock.engine.compute.controls import Controls
from interlock.engine.errors import ExitCode, UnavailableError
from interlock.engine.flows.run import Run
from interlock.engine.record import events as ev
from interlock.engine.record import summary
from interlock.engine.settings import load
from tests.builders import corpus, events_of, interlock, sentences, summary_of, tiny_model, toml

TEXTS = [*sentences(90, 30), "a long one " + "and on it goes " * 25]
CONTEXT = 300 << 20


@dataclass
class Desk:
    """A corpus, two models and a place for runs; `reference` are the vectors of an undisturbed run on the CPU."""

    root: Path
    file: Path
    out: Path
    reference: list[np.ndarray]

    def run(self, controls: Controls | None = None, **flags: str) -> tuple[ExitCode, Path]:
        settings = load({"out": str(self.out), "roster": "one,two", **flags}, {}, self.file)
        run = Run(self.root, settings, controls or Controls())
        return run.go(), run.directory.path

    def check(self, run: Path) -> dict[str, Any]:
        """Every row has the reference's vector, and every lease left nothing; the summary."""
        for wanted, found in zip(self.reference, vectors_of(run), strict=True):
            np.testing.assert_allclose(found, wanted, atol=2e-6)
        said = summary_of(run)
        leases = [lease for each in said["collections"] for lease in each["leases"]]
        assert leases
        assert all(receipt["residue_bytes"] == 0 for lease in leases for receipt in lease["receipts"])
        assert said["status"] == "completed"
        return said


def vectors_of(run: Path) -> list[np.ndarray]:
    return [np.load(file) for file in sorted(run.glob("passes/*/vectors.npy"))]


def mitigations(said: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for each in said["collections"] for step in each["mitigations"]]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    place = tmp_path_factory.mktemp("rounds")
    models = {
        "one": tiny_model(place / "one", seed=1, width=64, layers=3),
        "two": tiny_model(place / "two", seed=2, kind="qwen3", pooling="lasttoken", head_dim=8, num_key_value_heads=2),
    }
    tables = {key: {"source": str(path), "batch_tokens": 300, "gpu_batch_tokens": 300} for key, path in models.items()}
    root = corpus(place / "in", {"Docs": {"a_chunks.json": TEXTS[:50]}, "More": {"b_chunks.json": TEXTS[50:]}})
    desk = Desk(root, toml(place / "models.toml", tables), place / "runs", [])
    code, run = desk.run(devices="cpu", run_id="reference")
    assert code == ExitCode.COMPLETED
    desk.reference = vectors_of(run)
    return desk


SCHEDULES = [{}, {"window": "2"}, {"window": "shared"}]


@pytest.mark.parametrize("devices", ["cpu", "sim:T4", "sim:2xT4"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=["exclusive", "rotating", "shared"])
def test_the_vectors_are_the_same_under_any_schedule_on_any_devices(desk, devices, schedule):
    code, run = desk.run(devices=devices, **schedule)
    assert code == ExitCode.COMPLETED
    said = desk.check(run)
    assert mitigations(said) == []
    ends = events_of(run, ev.EnsemblePassCompleted)
    assert [(end.model, end.rows) for end in sorted(ends, key=lambda end: end.model_pass)] == [("one", 91), ("two", 91)]


def test_an_exclusive_lease_holds_both_gpus_and_both_compute(desk):
    _, run = desk.run(devices="sim:2xT4")
    assert [lease.devices for lease in events_of(run, ev.LeaseGranted)] == [["cuda:0", "cuda:1"]] * 2
    assert {batch.device for batch in events_of(run, ev.BatchCommitted)} == {"cuda:0", "cuda:1"}


def test_a_lost_device_is_told_before_the_others_have_ended_its_pass(desk):
    code, run = desk.run(devices="sim:2xT4", faults="lose@cuda:1:200")
    assert code == ExitCode.COMPLETED
    told = events_of(run, ev.DeviceLost, ev.BatchCommitted)
    lost = next(number for number, event in enumerate(told) if isinstance(event, ev.DeviceLost))
    same_pass = [event for event in told[lost:] if getattr(event, "model_pass", None) == told[lost - 1].model_pass]
    assert len(same_pass) > 2


def test_primary_and_companion_of_a_shared_schedule_have_a_gpu_each(desk):
    _, run = desk.run(devices="sim:2xT4", window="shared")
    held = {lease.model: lease.devices for lease in events_of(run, ev.LeaseGranted)}
    assert held == {"one": ["cuda:0"], "two": ["cuda:1"]}


def test_the_summary_of_a_simulated_run_says_so_and_has_no_times(desk):
    _, run = desk.run(devices="sim:2xT4", faults="oom:200")
    said = desk.check(run)
    assert said["device_kind"] == "sim"
    assert [device["kind"] for device in said["devices"]] == ["sim", "sim"]
    passes = [each for collection in said["collections"] for each in collection["passes"]]
    assert {each["seconds"] for each in passes} | {each["rows_per_second"] for each in passes} == {None}
    assert {step["cost_seconds"] for step in mitigations(said)} == {None}
    assert said["seconds"] is None


def test_the_other_gpu_finishes_the_pass_of_a_lost_one(desk):
    code, run = desk.run(devices="sim:2xT4", faults="lose@cuda:1:260")
    assert code == ExitCode.COMPLETED
    said = desk.check(run)
    assert [device["lost"] != "" for device in said["devices"]] == [False, True]
    assert mitigations(said)[0]["rung"] == "relocate"
    assert {batch.device for batch in events_of(run, ev.BatchCommitted)} == {"cuda:0", "cuda:1"}


@pytest.mark.parametrize("how", [{}, {"cpu_fallback": "no"}, {"window": "2"}, {"window": "shared"}])
def test_a_run_that_loses_its_last_gpu_stops_and_goes_on_in_a_new_process(desk, how):
    code, run = desk.run(devices="sim:2xT4", faults="lose:260", **how)
    assert code == ExitCode.STOPPED
    done = len(events_of(run, ev.BatchCommitted))
    assert done
    assert summary_of(run)["status"] == "stopped"
    assert "no GPU is left: cuda:0, cuda:1 lost to this process; --resume continues" in summary_of(run)["reason"]
    code, run = desk.run(devices="sim:2xT4", faults="", run_id=run.name, resume="yes", **how)
    assert code == ExitCode.COMPLETED
    desk.check(run)
    cells = [(batch.model_pass, batch.batch_index) for batch in events_of(run, ev.BatchCommitted)]
    assert done < len(cells) == len(set(cells))
    assert "cpu" not in {batch.device for batch in events_of(run, ev.BatchCommitted)}


def test_a_gpu_that_is_lost_while_a_model_is_attached_stops_the_run_too(desk):
    code, run = desk.run(devices="sim:T4", faults="lose:1")
    assert code == ExitCode.STOPPED
    assert events_of(run, ev.BatchCommitted) == []
    assert [event.device for event in events_of(run, ev.DeviceLost)] == ["cuda:0"]


def test_a_companion_whose_gpu_is_lost_while_it_is_attached_goes_to_the_other(desk):
    code, run = desk.run(devices="sim:2xT4", faults="lose@cuda:1:1", window="shared")
    assert code == ExitCode.COMPLETED
    desk.check(run)
    assert {batch.device for batch in events_of(run, ev.BatchCommitted)} == {"cuda:0"}


@pytest.mark.parametrize(
    "faults",
    ["oom:150,oom:151,oom:300", "nan:196,nan:214,nan:222", "attach:1", "fragment:64MiB", "other:14750MiB:150:400"],
)
def test_a_fault_loses_no_row_and_what_was_done_is_told(desk, faults):
    code, run = desk.run(devices="sim:2xT4", faults=faults)
    assert code == ExitCode.COMPLETED
    said = desk.check(run)
    if not faults.startswith("fragment"):
        assert mitigations(said)


@pytest.mark.parametrize(("begun", "asked"), [("exclusive", "shared"), ("shared", "exclusive")])
def test_a_schedule_switched_by_hand_during_a_run_does_every_cell_once(desk, begun, asked):
    controls = Controls()
    alone = {"window": "shared"} if begun == "shared" else {}
    settings = load({"out": str(desk.out), "roster": "one,two", "devices": "sim:2xT4", **alone}, {}, desk.file)
    run = Run(desk.root, settings, controls)
    emit = run.recorder.emit

    def watching(event):
        entry = emit(event)
        if isinstance(event, ev.BatchCommitted) and event.batch_index == 3 and controls.schedule == begun:
            assert controls.ask("schedule", asked, "a test") == ""
        return entry

    run._emit = watching
    assert run.go() == ExitCode.COMPLETED
    path = run.directory.path
    said = desk.check(path)
    told = said["controls"][0]
    assert (told["control"], told["value"], told["who"], told["refused"]) == ("schedule", asked, "a test", "")
    assert said["schedule"] == asked
    leases = [(lease.schedule, lease.devices) for lease in events_of(path, ev.LeaseGranted)]
    assert leases[0] == (begun, ["cuda:0", "cuda:1"] if begun == "exclusive" else ["cuda:0"])
    assert leases[-1] == (asked, ["cuda:0", "cuda:1"] if asked == "exclusive" else ["cuda:1"])
    cells = [(batch.model_pass, batch.batch_index) for batch in events_of(path, ev.BatchCommitted)]
    assert len(cells) == len(set(cells))


@pytest.mark.parametrize("fallback", ["yes", "no"])
def test_a_row_that_no_gpu_can_hold_is_computed_on_the_cpu_or_parked_where_it_may_not(desk, fallback):
    code, run = desk.run(devices="sim:2xT4", roster="one", faults="oom-over:40KiB", cpu_fallback=fallback)
    (vectors,), longest = vectors_of(run), len(TEXTS) - 1
    np.testing.assert_allclose(vectors[:longest], desk.reference[0][:longest], atol=2e-6)
    parked = [each["row"] for collection in summary_of(run)["collections"] for each in collection["parked"]]
    if fallback == "yes":
        assert (code, parked) == (ExitCode.COMPLETED, [])
        np.testing.assert_allclose(vectors[longest], desk.reference[0][longest], atol=2e-6)
        assert "cpu" in {step["rung"] for step in mitigations(summary_of(run))}
    else:
        assert (code, parked) == (ExitCode.FAILED, [longest])
        assert np.isnan(vectors[longest]).all()
        assert "cpu" not in {step["rung"] for step in mitigations(summary_of(run))}


def test_a_disk_that_fills_up_under_a_mitigation_ends_the_run_and_costs_no_model_its_pass(desk):
    settings = load(
        {"out": str(desk.out), "roster": "one,two", "devices": "sim:T4", "faults": "oom:150"}, {}, desk.file
    )
    run = Run(desk.root, settings, Controls())

    class Full:
        """The journal's file on a disk that has no room for the first mitigation."""

        def __init__(self, handle):
            self._handle, self.refused = handle, False

        def write(self, line):
            if b'"mitigated"' in line and not self.refused:
                self.refused = True
                raise OSError(errno.ENOSPC, "No space left on device")
            return self._handle.write(line)

        def __getattr__(self, name):
            return getattr(self._handle, name)

    run._journal._handle = full = Full(run._journal._handle)
    assert (run.go(), full.refused) == (ExitCode.FAILED, True)
    assert "No space left on device; free space and --resume" in summary_of(run.directory.path)["reason"]
    assert events_of(run.directory.path, ev.PassFailed) == []
    code, again = desk.run(devices="sim:T4", resume="yes", run_id=run.directory.id)
    assert code == ExitCode.COMPLETED
    desk.check(again)


def test_a_control_that_does_not_exist_names_those_that_do():
    assert "exclusive, rotating, shared" in Controls().ask("schedule", "backwards", "a test")
    assert Controls().pending() == []


def test_a_ceiling_just_above_the_weights_cuts_batches_and_holds(desk):
    ceiling = CONTEXT + (64 << 20) + (1 << 20)
    code, run = desk.run(devices="sim:2xT4", ceiling=f"{ceiling >> 10}KiB")
    assert code == ExitCode.COMPLETED
    said = desk.check(run)
    peaks = [receipt["peak"]["occupied"] for each in said["collections"] for lease in each["leases"]
             for receipt in lease["receipts"] if receipt["device"] != "cpu"]  # fmt: skip
    assert max(peaks) <= ceiling


def test_a_model_that_the_ceiling_keeps_off_every_gpu_takes_what_the_host_has(desk):
    code, run = desk.run(devices="sim:T4", ceiling="1KiB", roster="one")
    assert code == ExitCode.COMPLETED
    assert {lease.devices[0] for lease in events_of(run, ev.LeaseGranted)} == {"cpu"}
    (started,) = events_of(run, ev.RunStarted)
    assert (started.config["ceiling"].value, started.config["host_ceiling"].value) == (1024, 0)


def test_a_host_with_a_ceiling_of_its_own_takes_no_more_and_a_resumed_run_keeps_it(desk):
    with pytest.raises(UnavailableError, match="available on cpu: free memory, raise --ceiling and --host-ceiling, or"):
        desk.run(devices="sim:T4", ceiling="1KiB", host_ceiling="2KiB", roster="one")
    code, run = desk.run(devices="cpu", ceiling="1KiB", host_ceiling="2GiB", roster="one", run_id="kept")
    assert code == ExitCode.COMPLETED
    (found,) = events_of(run, ev.DevicesFound)
    assert found.devices[0].ceiling_bytes == 2 << 30
    assert desk.run(devices="cpu", roster="one", run_id="kept", resume="yes")[0] == ExitCode.COMPLETED


def test_a_resumed_run_keeps_its_margin_and_every_lease_leaves_it(desk):
    code, run = desk.run(devices="sim:T4", ceiling="2GiB", margin="1GiB", roster="one", run_id="margin")
    assert code == ExitCode.COMPLETED
    assert desk.run(devices="sim:T4", roster="one", run_id="margin", resume="yes")[0] == code
    budgets = {lease.budgets["cuda:0"] for lease in events_of(run, ev.LeaseGranted)}
    assert budgets == {(1 << 30) - CONTEXT}
    started, resumed = events_of(run, ev.RunStarted)[0], events_of(run, ev.RunResumed)[0]
    assert started.config["margin"].value == resumed.config["margin"].value == 1 << 30


def test_random_faults_leave_the_vectors_of_an_undisturbed_run(desk):
    dice = random.Random(7)
    for _ in range(4):
        first, later = dice.randrange(50, 300), dice.randrange(301, 900)
        kinds = [f"oom:{first}", f"nan:{later}", f"lose@cuda:1:{later}", f"other:14750MiB:{first}:{later}"]
        faults = ",".join(dice.sample(kinds, dice.randrange(1, 4)))
        schedule = dice.choice(SCHEDULES)
        code, run = desk.run(devices="sim:2xT4", faults=faults, **schedule)
        assert code == ExitCode.COMPLETED, (faults, schedule)
        desk.check(run)


def test_a_run_stopped_on_two_gpus_resumes_on_one_without_repeating(desk):
    controls = Controls()
    settings = load({"out": str(desk.out), "roster": "one,two", "devices": "sim:2xT4"}, {}, desk.file)
    run = Run(desk.root, settings, controls)
    emit = run.recorder.emit

    def watching(event):
        if isinstance(event, ev.BatchCommitted) and event.batch_index == 4:
            controls.code = ExitCode.INTERRUPTED
        return emit(event)

    run._emit = watching
    assert run.go() == ExitCode.INTERRUPTED
    done = len(events_of(run.directory.path, ev.BatchCommitted))
    code, again = desk.run(devices="sim:T4", resume="yes", run_id=run.directory.id)
    assert code == ExitCode.COMPLETED
    cells = [(batch.model_pass, batch.batch_index) for batch in events_of(again, ev.BatchCommitted)]
    assert 0 < done < len(cells) == len(set(cells))
    desk.check(again)


def test_the_command_on_simulated_gpus_says_so_and_exits_0(tmp_path, desk):
    said = interlock("run", desk.root, "--out", tmp_path, "--roster", "one,two", "--config", desk.file,
                     "--devices", "sim:2xT4", "--faults", "lose@cuda:1:300")  # fmt: skip
    assert "SIMULATED devices: cuda:0 Tesla T4 (simulated)" in said.stderr
    assert "error: cuda:1 lost: " in said.stderr


def test_faults_on_a_real_device_are_refused(tmp_path, desk):
    said = interlock("run", desk.root, "--out", tmp_path, "--roster", "one", "--config", desk.file,
                     "--devices", "cpu", "--faults", "oom:3", check=2)  # fmt: skip
    assert "simulated" in said.stderr


def test_folding_a_simulated_journal_again_gives_the_same_summary(desk):
    from interlock.engine.record.journal import Journal
    from interlock.engine.record.recorder import Recorder

    _, run = desk.run(devices="sim:2xT4", faults="oom:200", window="2")
    again = Recorder(Journal(run / "journal.jsonl"), "sim")
    assert summary.dumps(again.look(summary.summarise)) == (run / "summary.json").read_bytes()
