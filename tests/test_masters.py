"""What host memory keeps of weights between leases."""

import threading

import pytest
import torch

from interlock.engine.compute.schedule import Schedule
from interlock.engine.gpu.device import Pinning
from interlock.engine.models.masters import Masters
from interlock.engine.models.weights import Master
from interlock.engine.record import events as ev
from tests import weightless
from tests.weightless import T4, Desk, card_of, hydrate

SIZE = 4096
ONE, OTHER = card_of("Qwen3-0.6B"), card_of("XLM-R-large", packed=True)


def master(card) -> Master:
    return Master(torch.nn.Linear(32, 32, bias=False))


@pytest.mark.parametrize(("budget", "kept"), [(SIZE, False), (2 * SIZE, True)])
def test_what_is_read_ahead_takes_its_part_of_the_budget(budget, kept):
    masters = Masters(budget, master)
    held, _ = masters.take(ONE)
    masters.prefetch(OTHER, SIZE)
    masters.give_back(ONE, held)
    assert masters.bytes <= budget
    assert masters.take(ONE)[1] is kept
    assert masters.take(OTHER)[1]


def test_a_second_model_is_not_read_ahead_beyond_the_budget():
    go_on, reading = threading.Event(), []

    def slow(card):
        reading.append(card.key)
        go_on.wait(20)
        return master(card)

    masters = Masters(SIZE + SIZE // 2, slow)
    masters.prefetch(ONE, SIZE)
    masters.prefetch(OTHER, SIZE)
    go_on.set()
    assert masters.take(ONE)[1]
    assert reading == [ONE.key]


def test_closing_waits_for_what_is_read_ahead():
    go_on = threading.Event()
    masters = Masters(SIZE, lambda card: go_on.wait(20) and master(card))
    masters.prefetch(ONE, SIZE)
    threading.Timer(0.2, go_on.set).start()
    masters.close()
    assert go_on.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]


class Unpinnable(T4):
    """A GPU whose driver page-locks nothing."""

    def pin(self, tensor):
        return Pinning(refused="out of memory")


@pytest.mark.parametrize(("gpu", "said"), [(T4(0), 0), (Unpinnable(0), 1)], ids=["pinned", "refused"])
def test_weights_that_cannot_be_page_locked_are_told_once_a_run(monkeypatch, gpu, said):
    def pinned(card):
        master = hydrate(card)
        master.pin(gpu)
        return master

    monkeypatch.setattr(weightless, "hydrate", pinned)
    desk = Desk([ONE, OTHER], [64] * 8, [gpu], 12 << 30)
    desk.compute(Schedule.EXCLUSIVE)
    warned = [event.message for event in desk.of(ev.Warned)]
    assert len(warned) == said
    assert all("cannot be page-locked (out of memory)" in message for message in warned)
