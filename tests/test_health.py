"""One word for how a run stands: what ended it, what keeps it from going on, what it goes on without."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from interlock.console.text.event_text import line_of
from interlock.engine.record import events as ev
from interlock.engine.record.facts import Memory, Readings, Setting, Tenant
from interlock.engine.record.fold import fold
from interlock.engine.record.snapshot import GONE, Snapshot, snapshot
from interlock.engine.record.state import Control, RunState
from interlock.engine.standing.health import Health, ended, health
from interlock.engine.standing.judgement import Attention, attention
from interlock.engine.standing.outlook import time_left
from interlock.widgets import gauges
from tests.snapshots import one_lease, sample

HOLDERS = (Tenant(7, "java", 3 << 30, "kim"), Tenant(8, "this run", 1 << 30))
GOES_ON = ", no work lost: the batches go to cuda:0, only the end comes later"


def now(run: Snapshot, later: float = 0.0) -> Health:
    return health(run, run.latest_at + later)


@pytest.mark.parametrize(
    ("phase", "word", "level"),
    [("running", "RUN", "ok"), ("reading", "READING", "idle"), ("completed", "DONE", "ok"),
     ("incomplete", "INCOMPLETE", "error"), ("stopped", "STOPPED", "warn"), ("failed", "FAILED", "error"),
     (GONE, "RUN PROCESS DIED", "error")],
)  # fmt: skip
def test_every_phase_has_its_word_and_how_bad_it_is(phase: str, word: str, level: str) -> None:
    found = now(sample(phase=phase, parked=0))
    assert (found.word, found.level) == (word, level)
    assert all("process is gone" not in each.why for each in found.concerns) or phase == GONE


def test_a_run_that_goes_on_without_a_gpu_or_a_model_is_degraded_and_says_why() -> None:
    assert now(sample(lost=(1,), parked=0)) == Health("DEGRADED", "warn", f"1 GPU lost (cuda:1){GOES_ON}")
    run = sample(lost=(0, 1), parked=0)
    failed = now(replace(run, passes=(replace(run.passes[0], failure="no weights"), *run.passes[1:])))
    assert (failed.word, failed.level) == ("MODEL FAILED", "error")
    assert failed.detail == (
        f"1 model failed ({run.passes[0].model}: no weights); 2 GPUs lost (cuda:0, cuda:1), the rest goes on"
    )


def refusing(run: Snapshot, most: str) -> Snapshot:
    """The run, of whose first collection a record and a file were refused, with `--max-refused` of so many."""
    first = run.collections[0]
    read = replace(first.read, refused=2, refused_files=1)
    refusal = ev.RecordRefused(collection=first.name, file="a.json", reason="the text is empty", record=3)
    left = replace(first, read=read, refused=2, refusals=(refusal,))
    return replace(run, collections=(left, *run.collections[1:]), config={"max_refused": Setting(most, "flag")})


def test_what_the_run_may_do_without_is_no_alarm_and_the_end_agrees() -> None:
    going, done = (now(refusing(sample(phase=phase, parked=0), "1%,files")) for phase in ("running", "completed"))
    assert (going.word, going.level) == ("RUN", "ok")
    assert going.detail == "2 inputs left out, as allowed (--max-refused 1%,files)"
    assert (done.word, done.level) == ("DONE", "ok")
    assert "(first Python-Stdlib/a.json record 3: the text is empty)" in done.concerns[0].why
    counted = attention(refusing(sample(parked=0), "1%,files"))
    assert (counted.refused, counted.allowed, counted.rest.refused) == (0, 2, 0)


def test_what_it_may_not_do_without_is_amber_from_the_first_look_and_red_in_the_end_with_what_allows_it() -> None:
    for phase, word, level, told in (
        ("running", "INPUT REFUSED", "warn", "allows: the run ends INCOMPLETE, all else is computed"),
        (
            "incomplete",
            "INCOMPLETE",
            "error",
            "2 inputs refused (first Python-Stdlib/a.json record 3: the text is empty",
        ),
    ):
        run = refusing(sample(phase=phase, parked=0), "0")
        found = health(run, run.latest_at, Path("runs/r"))
        assert (found.word, found.level) == (word, level)
        assert told in found.concerns[0].why
        assert found.remedy is not None
        assert found.remedy.command.endswith(" --resume --max-refused 1,files")
    # A number is of each collection: what a share allows elsewhere counts too.
    other = replace(run.collections[1], read=replace(run.collections[1].read, chunks=5000, refused=7), refused=7)
    both = replace(run, collections=(run.collections[0], other), config={"max_refused": Setting("1%", "flag")})
    remedy = health(both, run.latest_at, Path("runs/r")).remedy
    assert remedy and remedy.command.endswith(" --max-refused 7,files")
    assert "2 inputs refused" in attention(refusing(sample(parked=0), "0")).rest.words


@pytest.mark.parametrize(("changes", "told"), [
    ({"parked": 1}, "1 text parked, no vector; 1 GPU lost (cuda:1), the rest goes on"),
    ({"lost": (0, 1)}, ", cuda:1), no work lost: the batches go to the CPU, only the end comes later"),
    ({"phase": "delivering"}, "(cuda:1), the rest goes on, delivering"),
])  # fmt: skip
def test_who_computes_what_a_lost_gpu_had_is_said_and_that_no_work_is_lost_only_where_that_is_true(changes, told):
    assert told in now(sample(**{"lost": (1,), "parked": 0, **changes})).detail


def test_where_nothing_is_left_that_may_compute_no_work_is_promised_and_the_check_has_its_command() -> None:
    run = replace(sample(lost=(0, 1), parked=0), cpu_fallback=False)
    assert now(run).detail == "2 GPUs lost (cuda:0, cuda:1), the rest goes on"
    assert now(run).remedy == ("before the next run check it with", "interlock doctor --gpu")


def test_a_run_on_gpus_that_computes_on_the_cpu_is_degraded_and_one_that_has_none_is_not() -> None:
    on_host = one_lease(3, held=None, devices=["cpu"])
    slower = Health("DEGRADED", "warn", f"{on_host.model} on the CPU, only slower")  # nothing of it is lost
    assert now(replace(sample(parked=0), leases=(on_host,))) == slower
    assert now(replace(sample(1, kind="cpu", parked=0), leases=(on_host,))).word == "RUN"


@pytest.mark.parametrize(("phase", "lost", "level"), [
    ("running", {"parked": 1}, "warn"), ("incomplete", {"parked": 1}, "error"), ("stopped", {"parked": 1}, "warn"),
    ("running", {"lost": (1,)}, "warn"), ("completed", {"lost": (1,)}, "ok"), ("incomplete", {}, "error"),
    ("stopped", {"lost": (1,)}, "warn"),
])  # fmt: skip
def test_what_results_lack_is_red_and_what_is_only_computed_elsewhere_is_not(phase, lost, level) -> None:
    run = sample(phase=phase, **{"parked": 0, **lost})
    assert now(run).level == level


def test_a_run_that_has_ended_says_by_whom_and_has_its_lost_gpus_checked_but_not_those_that_went_with_a_node() -> None:
    reason = "stopped by kim at the console between batches: --resume continues"
    run = sample(phase="stopped", reason=reason, lost=(1,), parked=0)
    by = "by kim at the console between batches"
    assert now(run).detail == f"{by}; cuda:1 was lost: check it with interlock doctor --gpu"
    assert now(sample(phase="stopped", reason=reason, parked=0)).detail == by
    there = ended("stopped", reason, lost=["node-2/cuda:0"])
    assert there.detail == by


def test_why_a_pass_is_on_the_cpu_and_what_would_change_that_is_said_while_it_is() -> None:
    state = RunState()
    for seq, batch in enumerate((None, 3)):  # that of a single batch is a text that is tried once more
        body = ev.Mitigated(
            model_pass=0, batch_index=batch, rung="cpu", device="cuda:0", cause=f"cause {batch}",
            action="raise --ceiling", rows=1,
        )  # fmt: skip
        fold(state, ev.Entry(seq=seq, at=1.0, session=0, elapsed=1.0, device_kind="cuda", body=body))
    hosted = snapshot(state, 1).hosted
    on_host = one_lease(3, held=None, devices=["cpu"])
    run = replace(sample(parked=0), leases=(on_host,), hosted={int(on_host.model_pass): hosted[0]})
    assert now(run).detail == f"{on_host.model} on the CPU, only slower: cause None; raise --ceiling"


@pytest.mark.parametrize(("changes", "remedy"), [
    ({"hosted": ("--ceiling", "3.5GiB")}, ("if you want it faster, stop it and continue it with", "--ceiling 3.5GiB")),
    ({"deadline": 1.0}, ("no finished batch is lost: continue it after that with", "")),
    ({"memory_free": 1}, ("or stop the run and, to keep no weights in memory, continue it with", "--warm 0")),
    ({"disk_free": 1}, ("if it stops for that, continue it with", "")),
    ({"parked": 1}, ("after the run retry with", "--retry-parked")),
    ({"phase": "stopped"}, ("no finished batch is lost: when wanted, continue it with", "")),
    ({"phase": GONE}, ("no finished batch is lost: continue it with", "")),
    ({}, None),
])  # fmt: skip
def test_a_state_that_a_command_mends_has_it_whole_where_the_run_lies_and_when_to_run_it(changes, remedy) -> None:
    place, on_host = Path("runs/r"), one_lease(0, held=None, devices=["cpu"])
    run = replace(
        sample(parked=0),
        chunks="Docs",
        **{name: changes[name] for name in changes if name in ("deadline", "parked", "phase")},
    )
    run = replace(run, exit_code=4) if run.phase == "stopped" else run
    if flags := changes.get("hosted"):
        move = ev.Mitigated(
            model_pass=0, rung="cpu", device="cuda:0", cause="fits on no GPU", action="raise it", rows=1, flags=flags
        )
        run = replace(run, leases=(on_host,), hosted={0: move})
    if readings := {name: changes[name] for name in changes if name.endswith("_free")}:
        first = replace(run.devices[0], readings=Readings(used=1, total=2, **readings))
        run = replace(run, devices=(first, *run.devices[1:]))
    made = health(run, run.latest_at, place).remedy
    whole = "interlock run Docs --out runs --run-id r --resume"
    assert made == (remedy and (remedy[0], f"{whole} {remedy[1]}".rstrip()))
    assert now(run).remedy is None


def test_what_keeps_a_run_from_going_on_is_said_before_what_it_goes_on_without() -> None:
    found = now(sample(lost=(1,), paused=True, parked=0))
    assert (found.word, found.level, found.detail) == ("PAUSED", "warn", f"1 GPU lost (cuda:1){GOES_ON}")
    assert now(sample(phase="failed", paused=True, reason="disk full")) == Health("FAILED", "error", "disk full")


@pytest.mark.parametrize(("slowest", "quiet", "word"), [
    (2.0, 59.0, "RUN"), (2.0, 61.0, "STALLED"), (30.0, 239.0, "RUN"), (30.0, 241.0, "STALLED"),
    (0.0, 299.0, "RUN"), (0.0, 301.0, "STALLED"),
])  # fmt: skip
def test_a_run_has_stalled_when_nothing_comes_for_many_times_its_longest_batch(
    slowest: float, quiet: float, word: str
) -> None:
    run = sample(parked=0)
    assert now(replace(run, slowest=slowest, progressed_at=run.latest_at), quiet).word == word


def test_a_paused_run_and_one_that_is_delivering_never_stall() -> None:
    for run in (sample(paused=True), sample(phase="delivering")):
        assert now(replace(run, slowest=1.0, progressed_at=run.latest_at), 9e9).word != "STALLED"


class DiskSampled(ev.Event, frozen=True):
    """A sample that somebody adds, and names nowhere as a sign of work."""

    free: int


@pytest.mark.parametrize(
    ("body", "word"),
    [(ev.DeviceSampled(device="cpu", memory=Memory(allocated=1, occupied=1)), "STALLED"),
     (DiskSampled(free=1), "STALLED"),
     (ev.BatchesDoubled(model_pass=0, node="a", other="b", batches=[1], rows=1), "RUN"),
     (ev.ControlRefused(control="pause", value="yes", who="ann", reason="no"), "STALLED"),
     (ev.ControlApplied(control="stop", value="yes", who="ann"), "STALLED"),
     (ev.ControlApplied(control="pause", value="no", who="ann"), "RUN")],
)  # fmt: skip
def test_no_sample_and_no_answer_to_an_operator_hides_a_stall_but_a_pause_that_is_lifted_is_no_delay(
    body: ev.AnyEvent, word: str
) -> None:
    batch = ev.BatchCommitted(
        model_pass=0, batch_index=0, rows=1, tokens=5, padding=0, device="cpu", seconds=1.0, crc=0
    )
    state = RunState(stage="running")
    for at, told in ((10.0, batch), (400.0, body)):
        fold(state, ev.Entry(seq=0, at=at, session=0, elapsed=at, device_kind="cpu", body=told))
    found = health(snapshot(state, 1), 410.0)
    assert found.word == word
    assert found.detail == ("no progress for 6:40" if word == "STALLED" else "")


def test_what_went_wrong_is_counted_until_it_is_looked_at() -> None:
    run = sample(mitigations=3, parked=1, warnings=2)
    seen = attention(run)
    assert (seen.parked, seen.warnings, seen.mitigations) == (1, 2, run.mitigations)
    later = replace(run, warnings=4)
    assert (attention(later) - seen).words == ["2 warnings"]
    assert Attention() - seen == Attention()


@pytest.mark.parametrize(("free", "word"), [((1 << 30) - 1, "LOW DISK"), (1 << 30, "RUN"), (None, "RUN")])
def test_a_disk_that_is_nearly_full_is_told_before_it_is(free: int | None, word: str) -> None:
    run = sample(parked=0)
    first, *rest = run.devices
    told = replace(first, readings=Readings(used=1, total=2, disk_free=free))
    assert now(replace(run, devices=(told, *rest))).word == word


@pytest.mark.parametrize(("free", "word"), [((512 << 20) - 1, "LOW MEMORY"), (512 << 20, "RUN"), (None, "RUN")])
def test_a_host_whose_memory_is_nearly_gone_is_amber_with_the_figure_and_what_to_do(free, word) -> None:
    run = sample(1, kind="cpu", parked=0)
    device = replace(run.devices[0], readings=Readings(used=1, total=2 << 30, memory_free=free, memory_holders=HOLDERS))
    found = now(replace(run, devices=(device,)))
    assert (found.word, found.level) == (word, "warn" if word == "LOW MEMORY" else "ok")
    assert (
        "512.0 MiB of the host's memory free, 512.0 MiB needed: end other programs (most: java, pid 7, 3.0 GiB)"
        in found.detail
    ) is (word == "LOW MEMORY")
    assert (gauges.level(device) == "warn") is (word == "LOW MEMORY")
    assert device.free == (free if free is not None else device.free)


def test_a_run_that_will_not_be_done_by_its_deadline_is_late_and_one_that_may_not_says_so() -> None:
    run = sample(parked=0)
    left = time_left(run)
    assert left and left.spread
    told = {}
    for still in (left.seconds - left.spread - 1, left.seconds, left.seconds + left.spread + 1):
        found = now(replace(run, deadline=run.latest_at + still))
        told[found.word, "may stop" in found.detail] = found.level
    assert told == {("LATE", False): "warn", ("LATE", True): "warn", ("RUN", False): "ok"}


def test_a_run_with_a_text_that_has_no_vector_names_its_place_while_it_runs() -> None:
    parked = ev.RowParked(
        model_pass=0,
        model="a",
        row=7,
        reason="not finite",
        file="a_chunks.json",
        record=8,
        chunk_id="c8",
        collection="d",
    )
    found = now(replace(sample(), parked=2, first_parked=parked))
    assert (found.word, found.level) == ("TEXT PARKED", "warn")
    assert found.detail == "2 texts parked, no vector (first a_chunks.json record 8, chunk c8: not finite)"


def test_a_text_whose_file_nobody_wrote_down_counts_from_1_like_its_event() -> None:
    parked = ev.RowParked(model_pass=0, model="a", row=1395, reason="not finite", collection="d")
    found = now(replace(sample(), parked=1, first_parked=parked))
    assert "(text 1,396: not finite)" in found.detail
    assert "text 1,396 of the run" in line_of(parked)


def test_a_state_says_whether_anybody_is_needed() -> None:
    calm = sample(parked=0)
    for run, asks in (
        (replace(calm, paused=True), "no hurry"), (sample(phase="stopped", parked=0), "no hurry"),
        (refusing(calm, "1%,files"), "all is well"), (sample(phase="completed", parked=0), "all is well"),
        (sample(phase="completed", parked=0, lost=(1,)), ""), (sample(parked=1), "nothing to do now"),
        (sample(phase="failed", parked=0), "needs you"),
    ):  # fmt: skip
        assert now(run).asks == asks, run.phase
    for level, asks in (("warn", "act now"), ("idle", "nothing to do now")):  # which only takes its time
        assert Health("UPLOAD WAITING", level).asks == asks


def test_a_paused_run_is_resumed_and_one_that_ended_continued_with_a_command_that_says_if_an_upload_follows() -> None:
    here, calm = Path("runs/one"), sample(parked=0)
    asked = Control(control="pause", value="yes", who="kim", at=calm.latest_at - 5)
    held = health(replace(calm, paused=True, controls=(asked,)), calm.latest_at, here)
    assert held.told == "by kim 0:05 ago, devices stay held; resume it with interlock ctl runs/one resume"
    over = sample(phase="stopped", reason="stopped by kim", parked=0)
    server = replace(over, config={"server": Setting("http://gpu-9:6333", "flag")})
    for run, when in (
        (over, "when wanted, continue it with"),
        (server, "when wanted, continue it (the upload follows by itself) with"),
    ):
        told = health(run, run.latest_at, here).remedy
        assert told and told.when.endswith(when) and ("--qdrant http://gpu-9:6333" in told.command) is (run is server)


def test_of_several_things_that_are_wrong_none_hides_another() -> None:
    run = sample(lost=(1,))
    left = time_left(run)
    assert left
    first, *rest = run.devices
    full = replace(first, readings=Readings(used=1, total=2, disk_free=5 << 20))
    found = now(replace(run, devices=(full, *rest), deadline=run.latest_at + left.seconds / 2))
    assert (found.word, found.level, found.asks) == ("LOW DISK", "warn", "act now")  # what may end the run first
    assert "5.0 MiB free" in found.detail and "1 GPU lost (cuda:1)" in found.detail and "unfinished" in found.detail
    assert "; 1 text parked, no vector; " in found.detail
