"""One word for how a run stands: what ended it, what keeps it from going on, what it goes on without."""

import pytest
from msgspec.structs import replace

from interlock.engine.record import events as ev
from interlock.engine.record.facts import Memory
from interlock.engine.record.fold import fold
from interlock.engine.record.health import Attention, Health, attention, health
from interlock.engine.record.snapshot import GONE, Snapshot, snapshot
from interlock.engine.record.state import RunState
from tests.snapshots import one_lease, sample


def now(run: Snapshot, later: float = 0.0) -> Health:
    return health(run, run.latest_at + later)


@pytest.mark.parametrize(
    ("phase", "word", "level"),
    [("running", "RUN", "ok"), ("reading", "READING", "idle"), ("completed", "DONE", "ok"),
     ("incomplete", "INCOMPLETE", "warn"), ("stopped", "STOPPED", "warn"), ("failed", "FAILED", "error"),
     (GONE, "PROCESS DIED", "error")],
)  # fmt: skip
def test_every_phase_has_its_word_and_how_bad_it_is(phase: str, word: str, level: str) -> None:
    found = now(sample(phase=phase))
    assert (found.word, found.level) == (word, level)


def test_a_run_that_goes_on_without_a_gpu_or_a_model_is_degraded_and_says_why() -> None:
    assert now(sample(lost=(1,))) == Health("DEGRADED", "warn", "1 GPU lost")
    run = sample(lost=(0, 1))
    failed = replace(run, passes=(replace(run.passes[0], failure="no weights"), *run.passes[1:]))
    assert now(failed).detail == "2 GPUs lost, 1 model failed"


def test_a_run_on_gpus_that_computes_on_the_cpu_is_degraded_and_one_that_has_none_is_not() -> None:
    on_host = one_lease(3, held=None, devices=["cpu"])
    assert now(replace(sample(), leases=(on_host,))).detail == "computing on the CPU"
    assert now(replace(sample(1, kind="cpu"), leases=(on_host,))).word == "RUN"


def test_what_keeps_a_run_from_going_on_is_said_before_what_it_goes_on_without() -> None:
    assert now(sample(lost=(1,), paused=True)).word == "PAUSED"
    assert now(sample(phase="failed", paused=True, reason="disk full")) == Health("FAILED", "error", "disk full")


@pytest.mark.parametrize(("slowest", "quiet", "word"), [
    (2.0, 59.0, "RUN"), (2.0, 61.0, "STALLED"), (30.0, 239.0, "RUN"), (30.0, 241.0, "STALLED"),
    (0.0, 299.0, "RUN"), (0.0, 301.0, "STALLED"),
])  # fmt: skip
def test_a_run_has_stalled_when_nothing_comes_for_many_times_its_longest_batch(
    slowest: float, quiet: float, word: str
) -> None:
    run = sample()
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
