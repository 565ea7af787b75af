"""What others take of a card is told once when the next batch lacks it, and once when they gave it back."""

import pytest
from msgspec.structs import replace

from interlock.engine.gpu.faults import parse
from interlock.engine.gpu.sampler import Sampler
from interlock.engine.gpu.sim import CARDS, SimDevice
from interlock.engine.record.events import BatchCommitted, Entry, MemoryTaken, Mitigated
from interlock.engine.record.fold import fold
from interlock.engine.record.snapshot import PassCells, snapshot
from interlock.engine.record.state import Gauge, RunState
from interlock.engine.standing.health import health
from interlock.widgets import gauges
from interlock.widgets.pane import View
from interlock.widgets.panes.mitigations import ended, ladders
from tests.snapshots import sample

GIB = 2**30


def test_one_event_when_others_take_what_the_next_batch_needs_and_one_when_they_give_it_back():
    device = SimDevice("cuda:0", CARDS["T4"], parse("other:14GiB:1:5:4711:kim"))
    told: list[object] = []
    sampler = Sampler([device], told.append)
    device.next_need = (GIB, 0)
    for others, allocations in ((0, 0), (14 * GIB, 1), (14 * GIB, 3), (0, 6), (0, 7)):
        device.others, device.allocations = others, allocations
        sampler._look_at(device)
    begun, over = [each for each in told if isinstance(each, MemoryTaken)]
    assert str(begun) == "cuda:0: others hold 14.0 GiB (pid 4711 kim), 459.0 MiB free: next batch needs 1.1 GiB"
    assert [str(holder) for holder in begun.holders] == ["14.0 GiB held by pid 4711 (kim)"]
    assert (begun.over, over.over) == (False, True)


def test_others_that_leave_enough_for_the_next_batch_are_no_event():
    device = SimDevice("cuda:0", CARDS["T4"], parse("other:4GiB:1"))
    told: list[object] = []
    device.next_need, device.others = (GIB, 0), 4 * GIB
    Sampler([device], told.append)._look_at(device)
    assert not [each for each in told if isinstance(each, MemoryTaken)]


def test_a_card_lacks_what_the_next_batch_needs_when_the_margin_is_gone_too():
    device, told = SimDevice("cuda:0", CARDS["T4"], parse("other:4GiB:1")), list[object]()
    device.next_need, device.others = (GIB, 0), 12 * GIB
    Sampler([device], told.append, margin=2 * GIB)._look_at(device)
    (found,) = [each for each in told if isinstance(each, MemoryTaken)]
    assert (found.needed_bytes, found.over) == (3 * GIB, False)


TAKEN = MemoryTaken(device="cuda:0", others_bytes=14 * GIB, free_bytes=GIB // 4, needed_bytes=GIB)


def test_nothing_is_crowded_in_a_run_that_is_over():
    state, facts = RunState(), sample().devices[0].facts
    state.devices["cuda:0"] = Gauge(facts=facts)
    entry = Entry(seq=1, at=1.0, session=0, elapsed=1.0, device_kind="cuda", body=TAKEN)
    fold(state, entry)
    assert snapshot(state, 1).devices[0].taken == TAKEN
    state.status = "completed"
    assert snapshot(state, 1).devices[0].taken is None


@pytest.mark.parametrize(("leased", "level"), [(True, "warn"), (False, "error")])
def test_a_card_that_lacks_what_the_next_batch_needs_is_crowded_and_red_where_nothing_is_computed(leased, level):
    run = sample(parked=0)
    first, *rest = run.devices
    crowded = replace(run, devices=(replace(first, taken=TAKEN, leased=leased), *rest))
    found = health(crowded, run.latest_at)
    assert (found.word, found.level) == ("CROWDED", level)
    assert found.detail.startswith("cuda:0: others hold 14.0 GiB, 256.0 MiB free: next batch needs 1.0 GiB")
    assert gauges.level(crowded.devices[0]) == level


def test_a_ceiling_that_was_passed_is_more_than_all_of_it():
    device = sample().devices[0]
    over = replace(device, facts=replace(device.facts, ceiling_bytes=device.occupied // 2))
    assert (gauges.percent(over), over.free, gauges.level(over)) == ("200%", 0, "error")


def test_a_ladder_of_a_whole_lease_is_solved_once_its_own_device_computes():
    step = Mitigated(model_pass=0, device="cuda:1", rung="replan", cause="attaching failed", action="again", rows=9)
    entry = Entry(seq=1, at=1.0, session=0, elapsed=1.0, device_kind="cuda", body=step)
    [ladder] = ladders(lambda: [entry])
    word = {}
    for device in ("cuda:0", "cuda:1", "cuda:0,cuda:1", "cuda:10"):
        batch = BatchCommitted(
            model_pass=0, batch_index=0, rows=4, tokens=9, padding=0, seconds=1.0, device=device, crc=0
        )
        word[device] = ended(ladder, View(sample(at=0.4), cells=lambda _, batch=batch: PassCells(committed={0: batch})))
    assert word == {
        "cuda:0": "still trying", "cuda:1": "solved", "cuda:0,cuda:1": "solved", "cuda:10": "still trying",
    }  # fmt: skip
