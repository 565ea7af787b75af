"""The state is a fold of events, and nothing else: what each fact does to it, a loss and a resumption included."""

import msgspec
import pytest

from interlock.engine.record import events as ev
from interlock.engine.record.events import Entry
from interlock.engine.record.facts import DeviceFacts, Memory, RosterEntry
from interlock.engine.record.fold import fold
from interlock.engine.record.snapshot import snapshot
from interlock.engine.record.state import RunState
from interlock.engine.standing import outcome


def folded(*bodies, state=None, session=0):
    state = state or RunState()
    for number, body in enumerate(bodies):
        entry = Entry(
            seq=number, at=100.0 + number, session=session, elapsed=float(number), device_kind="cpu", body=body
        )
        fold(state, entry)
    return state


def read(name="Docs", chunks=4, refused=0, files=1):
    return ev.CollectionRead(
        collection=name,
        qdrant_collection=name.lower(),
        files=files,
        chunks=chunks,
        duplicates=0,
        refused=refused,
        borrows=[],
        seconds=1,
    )


def planned(model_pass=0, name="Docs", first=0, batches=2, rows=4, plan="p"):
    return ev.PassPlanned(
        model_pass=model_pass,
        model=f"m{model_pass}",
        collection=name,
        first_batch=first,
        batches=batches,
        rows=rows,
        reused=0,
        tokens=40,
        padding=0,
        truncated=1,
        truncated_tokens=9,
        plan=plan,
    )


def committed(batch, model_pass=0, rows=2):
    return ev.BatchCommitted(
        model_pass=model_pass,
        batch_index=batch,
        rows=rows,
        tokens=20,
        padding=0,
        seconds=0.5,
        device="cpu",
        crc=batch,
    )


def parked(row=1, name="Docs", model_pass=0):
    return ev.RowParked(
        model_pass=model_pass, model=f"m{model_pass}", collection=name, row=row, reason="it is not finite"
    )


def failed(model_pass=0):
    return ev.PassFailed(model_pass=model_pass, model=f"m{model_pass}", reason="out of luck")


RESUMED = ev.RunResumed(versions={"torch": "2"}, chunks="in", config={}, environment={})


def test_each_commit_counts_for_the_collection_of_its_batch():
    state = folded(
        read("A"), read("B"), planned(name="A"), planned(name="B", first=2, batches=1), committed(0), committed(2)
    )
    done = {name: each.shares[0].batches_done for name, each in state.collections.items()}
    assert done == {"A": 1, "B": 1}
    assert sorted(state.committed[0]) == [0, 2]


def test_a_batch_outside_every_plan_belongs_to_nobody():
    state = folded(read(), planned())
    assert state.share_of(0, 2) is None
    assert state.share_of(1, 0) is None


def test_a_batch_is_found_beside_collections_that_have_none_and_in_any_order_of_their_plans():
    empty = planned(name="B", first=2, batches=0)
    state = folded(read("A"), read("B"), read("C"), planned(name="C", first=2, batches=3), empty, planned(name="A"))
    assert [state.share_of(0, batch)[0].name for batch in range(5)] == ["A", "A", "C", "C", "C"]
    assert state.share_of(0, 5) is None


def test_folding_the_same_plan_again_keeps_what_was_done_under_it():
    state = folded(read(), planned(), committed(0), RESUMED, read(), planned())
    assert (state.collections["Docs"].shares[0].batches_done, state.collections["Docs"].shares[0].done.rows) == (1, 2)


def test_a_redone_batch_is_counted_once():
    lost = ev.BatchesLost(model_pass=0, batches=[1])
    state = folded(read(), planned(), committed(0), committed(1), lost)
    share = state.collections["Docs"].shares[0]
    assert (share.batches_done, share.done.rows, state.batches_lost) == (1, 2, 1)
    folded(committed(1), state=state, session=1)
    assert (share.batches_done, share.done.rows) == (2, 4)


STARTED = ev.RunStarted(
    run_id="r", chunks="in", fusion="concat", schedule="exclusive", config={}, versions={}, environment={}
)
ENTRY = RosterEntry(
    model="m0", weight=1, source="m0", commit=None, fingerprint="f", dim=8, dtype="float32", max_tokens=9,
    document_prompt="", query_prompt="", batch_tokens=9,
)  # fmt: skip
ROSTER = ev.RosterResolved(roster=[ENTRY])
LEASED = ev.LeaseGranted(
    lease="L001", model_pass=0, model="m0", devices=["cpu"], device_kind="cpu", budget_bytes=2, predicted_bytes=1
)
COMPLETE = ev.EnsemblePassCompleted(
    model_pass=0, model="m0", device="cpu", dtype="float32", weight=1, rows=4, seconds=1
)


def test_time_is_the_leases_until_the_first_batch_and_then_the_batches_and_what_lies_between_them():
    """One thing happens in each second, and a batch takes half of one."""
    two = ev.RosterResolved(roster=[ENTRY, msgspec.structs.replace(ENTRY, model="m1")])
    beside, other = (msgspec.structs.replace(LEASED, lease=f"L00{at + 2}", model_pass=at) for at in (0, 1))
    ended = [
        ev.LeaseReleased(lease=each.lease, model_pass=0, model="m0", held_seconds=1.0, receipts=[])
        for each in (beside, LEASED)
    ]
    first = [STARTED, two, read(), planned(), planned(model_pass=1), LEASED]
    second = [committed(0), beside, committed(1), *ended, other]
    last = [committed(0, model_pass=1)]

    def times(*bodies):
        state = folded(*bodies)
        return state.opens, state.opened, state.opening, state.busy

    assert times(*first) == (True, 0, 0.0, 0.0)  # the seconds before it are nobody's
    assert times(*first, *second[:1]) == (False, 1, 0.5, 0.5)
    assert times(*first, *second[:3]) == (False, 1, 0.5, 2.5)  # beside another a lease takes none
    assert times(*first, *second) == (True, 1, 0.5, 2.5)
    assert times(*first, *second, *last) == (False, 2, 3.5, 3.0)
    lately = folded(*first, *second).collections["Docs"].shares[0].by_tokens[True]
    assert (lately.seconds, lately.idle) == pytest.approx((0.9 * 0.5 + 0.5, 1.5))
    state = folded(RESUMED, read(), LEASED, state=folded(*first, *second, *last), session=1)
    assert (state.opens, state.opened, state.opening, state.busy) == (True, 0, 0.0, 0.0)
    assert state.covered == state.elapsed


def test_a_session_that_goes_on_says_what_it_is_at_and_keeps_what_was_done():
    def phases(state, *bodies):
        return [snapshot(folded(body, state=state), 0).phase for body in bodies]

    state = folded(STARTED)
    assert phases(state, ROSTER, read(), planned(), LEASED, committed(0)) == [
        "reading", "reading", "planning", "running", "running",
    ]  # fmt: skip
    done = snapshot(state, 0).share_done
    assert done > 0
    assert phases(state, RESUMED, ROSTER, read(), planned()) == ["resolving", "reading", "reading", "planning"]
    assert snapshot(state, 0).share_done == done
    assert phases(state, LEASED, committed(1), COMPLETE) == ["running", "running", "delivering"]
    assert phases(state, RESUMED, ROSTER, read(), planned()) == ["resolving", "reading", "reading", "delivering"]


def test_a_lost_batch_makes_its_pass_incomplete():
    state = folded(read(), planned(), committed(0), committed(1), COMPLETE)
    assert state.passes_completed == {0}
    folded(ev.BatchesLost(model_pass=0, batches=[0]), state=state)
    assert state.passes_completed == set()
    assert outcome.unfinished(state, "Docs") == ["m0"]


def test_a_resumption_forgets_what_the_new_session_tells_afresh():
    state = folded(
        read(refused=1),
        ev.RecordRefused(collection="Docs", file="a", record=1, reason="r"),
        ev.Warned(message="w"),
        ev.Warned(message="v", collection="Docs"),
        failed(),
        ev.Mitigated(model_pass=0, rung="cpu", cause="too large", action="on the CPU", rows=1, stays=True),
        ev.ArtefactWritten(collection="Docs", path="p", rows=1, bytes=1, sha256="s"),
        ev.CollectionClosed(collection="Docs", status="failed", reason="r"),
        ev.RunClosed(status="failed", reason="r", exit_code=1),
        RESUMED,
    )
    docs = state.collections["Docs"]
    assert (state.status, state.reason, state.exit_code) == (None, "", None)
    assert (state.failures, docs.refusals, docs.artefacts) == ({}, [], {})
    assert (list(state.warnings), list(docs.warnings)) == (["w"], ["v"])
    assert (docs.status, state.hosted) == (None, {})
    assert state.versions == {"torch": "2"}


def test_the_seconds_of_two_sessions_are_added():
    state = folded(read(), read(), read())
    folded(RESUMED, read(), state=state, session=1)
    assert state.elapsed == 2 + 1


def test_folding_on_from_a_prefix_equals_folding_all_at_once():
    bodies = [read(), planned(), committed(0), parked(), RESUMED, read(), planned(), committed(1)]
    entries = [
        Entry(seq=n, at=n, session=int(n > 3), elapsed=n, device_kind="cpu", body=body) for n, body in enumerate(bodies)
    ]
    whole, parts = RunState(), RunState()
    for entry in entries:
        fold(whole, entry)
    for entry in msgspec.json.decode(msgspec.json.encode(entries), type=list[Entry]):
        fold(parts, entry)
    assert parts == whole


@pytest.mark.parametrize(
    ("bodies", "status", "reason"),
    [
        ([read(), planned(), committed(0), committed(1)], "completed", ""),
        ([read(), planned(), committed(0)], "incomplete", "not finished by m0"),
        ([read(), planned(), committed(0), failed()], "failed", "m0: out of luck"),
        ([read(), planned(), committed(0), committed(1), failed()], "completed", ""),
        (
            [read(), planned(), parked(), committed(0), committed(1)],
            "incomplete",
            "1 text has no m0 vector: it is not finite",
        ),
        ([read(chunks=0, refused=2)], "skipped", "no usable record: 2 of 2 records refused"),
        ([read(chunks=0)], "skipped", "no record in 1 file"),
        ([read(chunks=0, files=0)], "skipped", "no chunk files"),
    ],
)
def test_a_collection_is_complete_only_if_every_model_saw_every_row(bodies, status, reason):
    assert outcome.collection_status(folded(*bodies), "Docs") == (status, reason)


def test_a_store_that_lacks_what_was_written_fails_its_collection():
    wrong = ev.StoreVerified(
        collection="Docs",
        qdrant_collection="docs",
        store="s",
        points=3,
        expected=4,
        stale=0,
        sampled=3,
        worst_cosine=1.0,
        ok=False,
        detail="one is missing",
    )
    state = folded(read(), planned(), committed(0), committed(1), wrong)
    assert outcome.collection_status(state, "Docs") == (
        "failed",
        "the store differs from what was written: one is missing",
    )


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        (["completed", "skipped"], "completed"),
        (["completed", "incomplete"], "incomplete"),
        (["failed", "incomplete"], "failed"),
    ],
)
def test_the_worst_collection_decides_how_the_run_ended(statuses, status):
    bodies = [
        body
        for name, each in zip("AB", statuses, strict=True)
        for body in (read(name), ev.CollectionClosed(collection=name, status=each, reason=each))
    ]
    assert outcome.run_status(folded(*bodies))[0] == status


def test_a_row_parked_in_a_batch_that_was_never_committed_is_forgotten_when_the_run_goes_on():
    state = folded(read(), planned(), committed(0), parked_in(1, 3))
    folded(RESUMED, committed(1), state=state, session=1)
    assert outcome.collection_status(state, "Docs") == ("completed", "")


def test_a_row_parked_in_a_committed_batch_stays_so():
    state = folded(read(), planned(), committed(0), parked_in(1, 3), committed(1))
    folded(RESUMED, state=state, session=1)
    assert outcome.collection_status(state, "Docs")[0] == "incomplete"


def test_rows_parked_by_two_models_are_told_with_the_reason_of_each():
    state = folded(
        read(),
        planned(),
        committed(0),
        committed(1),
        parked_in(1, 3),
        parked_in(1, 2),
        parked_in(1, 3, model_pass=1, why="cold"),
    )
    assert outcome.collection_status(state, "Docs")[1] == (
        "2 texts have no m0 vector: hot; 1 text has no m1 vector: cold"
    )


def test_a_lost_batch_takes_its_seconds_and_its_rows_with_it():
    state = folded(read(), planned(), committed(0), committed(1))
    folded(ev.BatchesLost(model_pass=0, batches=[0]), committed(0), state=state)
    (share,) = state.shares()
    assert (share.done.seconds, share.computed) == (1.0, {("cpu", ""): 4})


def test_the_schedule_of_a_resumed_run_is_what_its_last_session_was_called_with():
    state = folded(read(), ev.ControlApplied(control="schedule", value="shared", who="ada"))
    folded(msgspec.structs.replace(RESUMED, schedule="exclusive"), state=state, session=1)
    assert state.schedule == "exclusive"


def test_a_run_that_was_simulated_in_any_session_has_no_figure_of_time():
    state = RunState()
    for session, kind in enumerate(["sim", "cpu"]):
        fold(state, Entry(seq=session, at=1, session=session, elapsed=1, device_kind=kind, body=read()))
    assert not state.timed


def parked_in(batch, row, model_pass=0, why="hot"):
    return ev.RowParked(
        model_pass=model_pass, model=f"m{model_pass}", collection="Docs", row=row, reason=why, batch_index=batch
    )


def test_the_peak_of_a_device_is_that_of_all_sessions_unless_it_is_another_device():
    state = RunState()

    def told(seq, body):
        fold(state, Entry(seq=seq, at=seq, session=seq // 2, elapsed=0.0, device_kind="cuda", body=body))

    def found(label):
        return ev.DevicesFound(
            devices=[DeviceFacts(name="cuda:0", kind="cuda", label=label, total_bytes=9, ceiling_bytes=8)]
        )

    told(0, found("Tesla T4"))
    told(1, ev.DeviceSampled(device="cuda:0", memory=Memory(allocated=1, occupied=7)))
    told(2, found("Tesla T4"))
    assert state.devices["cuda:0"].peak == 7
    told(4, found("NVIDIA L4"))
    assert state.devices["cuda:0"].peak == 0
