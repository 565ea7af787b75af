"""What host memory keeps of weights between leases."""

import threading

import pytest
import torch

from interlock.engine.compute.context import Backend
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.schedule import Schedule
from interlock.engine.errors import ExitCode
from interlock.engine.flows import run as flow
from interlock.engine.gpu.device import Pinning
from interlock.engine.models.masters import Masters, hydrated_for
from interlock.engine.models.weights import Master
from interlock.engine.record import events as ev
from interlock.engine.settings import load
from tests import weightless
from tests.builders import corpus, sentences
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


def test_a_run_on_gpus_reads_the_weights_of_its_first_pass_while_it_reads_texts(tmp_path, tiny_a, tiny_b, monkeypatch):
    read, begun, reading = flow.planning.read, [threading.Event()], []

    def hydrating(device):
        def hydrate(card):
            reading.append(card.key)
            begun[-1].set()
            return hydrated_for(device)(card)

        return hydrate

    def after_weights(*told):
        assert begun[-1].wait(20)
        if len(begun) == 2:
            controls.stop(ExitCode.STOPPED)
        return read(*told)

    monkeypatch.setattr(flow.planning, "read", after_weights)
    root = corpus(tmp_path / "in", {"Docs": {"a_chunks.json": sentences(8)}})
    flags = {"out": str(tmp_path / "runs"), "roster": f"{tiny_a},{tiny_b}", "devices": "sim:1xT4", "run_id": "one"}

    def went(asked: Controls, **more: object) -> ExitCode:
        return flow.Run(root, load(flags | more, {}), asked, Backend(hydrate=hydrating)).go()

    assert went(Controls()) == ExitCode.COMPLETED
    assert reading == [tiny_a.name, tiny_b.name]
    begun.append(threading.Event())
    controls = Controls()
    with pytest.raises(flow.Stopped):
        went(controls, run_id="two")
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]
