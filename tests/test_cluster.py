"""The head and its nodes, carried by threads of this process: who computes what, what is lost, and what counts."""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import interlock
from bench.scenarios.crews import IMPATIENT, MENU, CrewOutcome, carry_out_on, crew_wrongs, draw_crew
from bench.scenarios.plan import ids_of
from bench.scenarios.workshop import Workshop, workshop
from interlock.engine.compute.cluster import remote
from interlock.engine.compute.cluster.counting import Peer
from interlock.engine.compute.cluster.head import ClusterExecutor
from interlock.engine.compute.cluster.member import ClusterMember, ClusterTimeouts
from interlock.engine.compute.cluster.members import ClusterMembers
from interlock.engine.compute.cluster.messages import (
    GridPlan,
    Handed,
    Hello,
    ModelFiles,
    NodeMachine,
    Orders,
    Report,
    Welcome,
)
from interlock.engine.compute.cluster.node import ClusterNode, versions
from interlock.engine.compute.cluster.pool import BatchPool
from interlock.engine.compute.cluster.remote import RemoteSource
from interlock.engine.compute.context import CLOSING_SECONDS, Backend, Deadline
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.parts.outputs import Outputs
from interlock.engine.compute.schedule import Assignment, Schedule
from interlock.engine.compute.source import BatchSource
from interlock.engine.errors import ExitCode, Stopped, UnavailableError, UsageError
from interlock.engine.gpu.cpu import CpuDevice
from interlock.engine.gpu.sim import Card, SimDevice
from interlock.engine.models.assets import Policy
from interlock.engine.models.registry import ModelSpec
from interlock.engine.record import events as ev
from interlock.engine.record.facts import node_of
from interlock.engine.record.fold import fold
from interlock.engine.record.state import RunState
from interlock.engine.record.summary import summarise
from tests.harness import Told, grid_of
from tests.threads import Threads

SEEDS = (7, 9, 11, 15, 16, 19, 20, 22)
"""Quick ones in which all that can befall a node does."""
CEILING = 12 << 30


@pytest.fixture(scope="module")
def shop() -> Iterator[Workshop]:
    with workshop() as shop:
        yield shop


@pytest.fixture(scope="module")
def outcomes(shop: Workshop) -> list[CrewOutcome]:
    return [carry_out_on(draw_crew(seed, shop), shop) for seed in SEEDS]


def test_nothing_is_lost_or_doubled_with_any_random_crew(outcomes):
    assert [(outcome.crew.plan.seed, wrong) for outcome in outcomes for wrong in crew_wrongs(outcome)] == []


def test_everything_that_can_befall_a_node_befalls_one(outcomes):
    befell = {what for outcome in outcomes for what in outcome.heard.befell}
    assert befell == set(MENU)
    assert any(event.batches for outcome in outcomes for event in outcome.of(ev.NodeLost))


def test_the_record_of_any_random_crew_agrees_with_what_was_told(outcomes):
    for outcome in outcomes:
        state, lost = outcome.heard.state, outcome.of(ev.NodeLost)
        assert all(state.nodes[node_of(lease)].here for lease in state.held)
        again = {event.node for event in lost} | {
            name for name, times in Counter(event.node for event in outcome.of(ev.NodeJoined)).items() if times > 1
        }
        assert {node_of(lease.lease) for lease in state.leases.values() if lease.left} <= again
        nodes = summarise(state).nodes or []
        assert sum(node.rows_again for node in nodes) == sum(event.rows for event in lost)
        assert sum(len(node.lost) for node in nodes) == len(lost)
        assert sum(node.batches for node in nodes) == len(outcome.of(ev.BatchCommitted))
        assert {node_of(name) for name in state.devices} <= {node.name for node in nodes}


class Slow:
    """An encoder that takes its time, and computes what the other would."""

    def __init__(self, inner: Any, seconds: Callable[[], float]) -> None:
        self._inner, self._seconds = inner, seconds
        self.padded = inner.padded

    def encode(self, rows: Any) -> Any:
        if len(rows) == 4:  # a batch, and no canary
            time.sleep(self._seconds())
        return self._inner.encode(rows)


class Stand:
    """A head with nodes of two simulated GPUs, one model each pass, and 40 texts of it in ten batches."""

    def __init__(self, shop: Workshop, machines: int, *models: str, patience: ClusterTimeouts = IMPATIENT) -> None:
        from interlock.engine.compute.encoder import encoder_for

        self.cards = {key: replace(shop.cards[key], batch_tokens=32) for key in models or ("flat",)}
        self.grid = grid_of([*self.cards.values()], [8] * 40, ids_of)
        self.seconds: dict[str, float] = {}
        """What a batch takes on a machine."""
        self.on_first: dict[str, Callable[[], object]] = {}
        """What is done once a machine computes a batch."""
        self.awaited: dict[str, threading.Event] = {}
        """Machines that others wait for: no batch ends before each of them has begun one."""
        self.heard, self.controls = Told(), Controls()
        self.spoils: Callable[[str, ClusterNode], object] = lambda machine, node: None

        def made(machine: str) -> ClusterNode:
            backend = Backend(
                devices=lambda *_: [SimDevice(f"cuda:{number}", Card("T4", 15 << 30)) for number in range(2)],
                host=CpuDevice,
                cards=lambda specs, *_: [self.cards[spec.key] for spec in specs],
                laws=shop.law,
                load=shop.network,
                hydrate=lambda _: shop.master,
                encoders=lambda *it: Slow(encoder_for(*it), lambda: self.begun(machine)),
            )
            node = ClusterNode(backend)
            self.spoils(machine, node)
            return node

        self.twice = False
        self.context: Any = None
        """What the head computes with, where it proves what nodes give."""
        self.shop = shop
        self.threads = Threads(made, [f"m{number}" for number in range(machines)])
        hello = Hello("run", "", "sim", (), CEILING, 0, 1 << 30, 0)
        self.crew = ClusterMembers(self.threads, hello, versions(), patience)
        self.specs = [ModelSpec(key, ("none",)) for key in self.cards]

    def run(self, schedule: Schedule = Schedule.EXCLUSIVE, deadline: Deadline | None = None) -> None:
        self.controls.begin(schedule, 0, cpu_fallback=True)
        self.heard.begin(self.grid, [], CEILING, schedule, "run")
        try:
            self.crew.gather()
            self.crew.begin(
                GridPlan.of(self.grid, self.specs, Policy(offline=True), self.controls), lambda key: ModelFiles(key, {})
            )
            source = BatchSource(self.grid, [[] for _ in self.grid], [1.0] * len(self.grid), self.heard)
            told = self.controls, self.heard, lambda: None, deadline or Deadline(), self.context
            self.head = ClusterExecutor(source, self.crew, *told, twice=self.twice)
            self.head.run()
        finally:
            self.crew.close()
            self.threads.join()

    def begun(self, machine: str) -> float:
        self.on_first.pop(machine, lambda: None)()
        if machine in self.awaited:
            self.awaited[machine].set()
        for other in self.awaited.values():
            other.wait(30)
        return self.seconds.get(machine, 0.0)

    def of(self, kind: type[Any]) -> list[Any]:
        return self.heard.of(kind)

    def whole(self) -> bool:
        """Whether every row was computed once and told once."""
        batches = [(event.model_pass, event.batch_index) for event in self.of(ev.BatchCommitted)]
        puts = [cells.files.puts[row] for cells in self.grid for row in range(40)]
        return len(batches) == len({*batches}) and puts == [1] * len(puts)


def on_batch(stand: Stand, number: int, act: Callable[[], object]) -> None:
    """Do something once so many batches are committed."""
    seen = 0

    def told(event: ev.AnyEvent) -> None:
        nonlocal seen
        seen += isinstance(event, ev.BatchCommitted)
        if isinstance(event, ev.BatchCommitted) and seen == number:
            act()

    stand.heard.told = told  # type: ignore[method-assign]


def test_devices_leases_and_samples_are_told_by_the_names_of_their_nodes(shop):
    stand = Stand(shop, 2)
    stand.seconds = {"m0": 0.05, "m1": 0.05}
    stand.run()
    assert stand.whole()
    devices = {event.device for event in stand.of(ev.BatchCommitted)}
    assert devices <= {f"node-{node}/cuda:{number}" for node in (1, 2) for number in (0, 1)}
    assert {name.partition("/")[0] for name in devices} == {"node-1", "node-2"}
    granted = {event.lease for event in stand.of(ev.LeaseGranted)}
    assert {"node-1/L001", "node-2/L001"} <= granted  # a node that had nothing for a while asks again
    assert {lease.partition("/L")[0] for lease in granted} == {"node-1", "node-2"}
    assert {event.device for event in stand.of(ev.DeviceSampled)} >= devices
    assert {event.lease for event in stand.of(ev.LeaseReleased)} == granted


def test_a_sample_of_a_node_is_no_sign_of_work(shop):
    stand = Stand(shop, 1)
    stand.seconds = {"m0": 0.3}
    stand.run()
    state, progress = RunState(), dict[type, bool]()
    for at, event in enumerate(stand.heard.events):
        before = state.progressed_at
        fold(state, ev.Entry(seq=at, at=float(at), session=0, elapsed=0.0, device_kind="sim", body=event))
        progress[type(event)] = state.progressed_at > before
    assert progress[ev.BatchCommitted] and not progress[ev.DeviceSampled]


def test_a_node_begins_a_pass_when_nothing_of_the_one_before_waits(shop):
    stand = Stand(shop, 2, "flat", "deep")
    waiting = list[int]()

    def told(event: ev.AnyEvent) -> None:
        if isinstance(event, ev.LeaseGranted) and event.model_pass:
            waiting.append(stand.head._pools[0].unheld)

    stand.heard.told = told  # type: ignore[method-assign]
    stand.run()
    for node in ("node-1", "node-2"):
        order = [event.model_pass for event in stand.of(ev.BatchCommitted) if node_of(event.device) == node]
        assert order == sorted(order)
    assert waiting and not any(waiting), "batches of the pass before that no node held"
    assert {event.model_pass for event in stand.of(ev.EnsemblePassCompleted)} == {0, 1}


def test_vectors_are_those_of_one_node(shop):
    one, three = Stand(shop, 1, "flat", "deep"), Stand(shop, 3, "flat", "deep")
    one.run()
    three.run()
    for mine, theirs in zip(one.grid, three.grid, strict=True):
        np.testing.assert_array_equal(mine.files.array, theirs.files.array)


def test_what_a_killed_node_held_is_computed_once_more_and_told(shop):
    stand = Stand(shop, 2)
    stand.seconds = {"m0": 0.05, "m1": 0.5}
    stand.awaited["m1"] = threading.Event()
    stand.on_first["m1"] = lambda: stand.threads.kill("m1", gone=True)
    stand.run()
    (lost,) = stand.of(ev.NodeLost)
    assert (lost.node, lost.rows) == ("node-2", 4 * lost.batches)
    assert 1 <= lost.batches <= 6
    assert stand.whole()


def test_a_node_whose_process_died_is_there_again_and_its_leases_go_on_counting(shop):
    stand = Stand(shop, 1)
    stand.seconds = {"m0": 0.03}
    on_batch(stand, 2, lambda: stand.threads.kill("m0"))
    stand.run()
    assert [event.node for event in stand.of(ev.NodeJoined)] == ["node-1", "node-1"]
    assert [event.lease for event in stand.of(ev.LeaseGranted)] == ["node-1/L001", "node-1/L002"]
    assert stand.whole()


def test_what_a_node_that_was_given_up_sends_later_counts_no_more(shop):
    stand = Stand(shop, 2, patience=replace(IMPATIENT, silent=0.3))
    stand.seconds = {"m0": 0.05, "m1": 0.05}
    stalled = []

    def stall() -> None:
        stalled.append(stand.threads.latest("m1"))
        stalled[0].silent = True

    on_batch(stand, 2, stall)
    stand.run()
    assert any(event.reason == "did not answer for 0 s" for event in stand.of(ev.NodeLost))
    assert stand.whole()


def test_a_node_that_joins_in_mid_pass_gets_work(shop):
    stand = Stand(shop, 1)
    stand.seconds = {"m0": 0.3, "m1": 0.3}
    on_batch(stand, 1, lambda: stand.threads.there.append("m1"))
    stand.run()
    assert any(event.device.startswith("node-2/") for event in stand.of(ev.BatchCommitted))
    assert stand.whole()


def test_the_last_batches_of_a_slow_node_are_given_to_another_too(shop):
    stand = Stand(shop, 2)
    stand.seconds = {"m0": 0.5, "m1": 2.0}
    stand.awaited["m1"] = threading.Event()
    stand.on_first["m1"] = lambda: stand.seconds.update(m0=0.01)
    began = time.monotonic()
    stand.run()
    doubled = stand.of(ev.BatchesDoubled)
    assert {(event.node, event.other) for event in doubled} == {("node-2", "node-1")}
    assert stand.whole()
    assert all(event.device.startswith("node-1/") for event in stand.of(ev.BatchCommitted))
    assert time.monotonic() - began < 10


def test_a_slow_node_does_not_hold_the_next_pass(shop):
    stand = Stand(shop, 2, "flat", "deep")
    stand.seconds = {"m0": 0.01, "m1": 1.5}
    stand.awaited["m1"] = threading.Event()
    stand.run()
    granted = [event.lease for event in stand.of(ev.LeaseGranted)]
    assert stand.whole()
    first = next(k for k, each in enumerate(stand.heard.events) if getattr(each, "lease", "") == granted[2])
    ends = [k for k, each in enumerate(stand.heard.events) if isinstance(each, ev.LeaseReleased)]
    assert first < max(ends)


def test_a_late_node_with_an_older_gpu_than_the_run_is_planned_for_is_refused(shop):
    stand = Stand(shop, 1)
    stand.seconds = {"m0": 0.1}

    def spoil(machine: str, node: ClusterNode) -> None:
        welcome, capability = node.welcome, (8, 0) if machine == "m0" else (7, 5)

        def welcomed(hello: Hello) -> Welcome:
            answer = welcome(hello)
            return replace(answer, devices=[replace(each, capability=capability) for each in answer.devices])

        node.welcome = welcomed  # type: ignore[method-assign]

    stand.spoils = spoil
    on_batch(stand, 1, lambda: stand.threads.there.append("m1"))
    stand.run()
    (refused,) = stand.of(ev.NodeRefused)
    assert "compute capability 7.5), and the run is planned for 8.0 and up" in refused.reason
    assert stand.whole()


def test_a_run_hopes_for_every_machine_that_is_not_out_and_not_at_work(shop):
    crew = Stand(shop, 0).crew
    assert not crew.hopes()
    crew.members["node-1"] = member = ClusterMember("node-1", NodeMachine("m0", ""), ready=True)
    assert crew.hopes(), "it is ready, and is about to be served, or no more"
    assert not crew.hopes({"node-1"})
    member.out = "its disk is full"
    assert not crew.hopes()


def test_a_pass_whose_only_able_node_is_lost_fails_and_does_not_wait_for_ever(shop):
    stand = Stand(shop, 2, patience=replace(IMPATIENT, empty=0.3))
    stand.seconds = {"m0": 0.05}

    def unreadable(card: Any) -> Any:
        raise UnavailableError(f"{card.key} cannot be read")

    def spoil(machine: str, node: ClusterNode) -> None:
        if machine == "m1":
            node._backend = replace(node._backend, hydrate=lambda _: unreadable)

    stand.spoils = spoil
    on_batch(stand, 2, lambda: stand.threads.kill("m0", gone=True))
    stand.run()
    assert [event.reason for event in stand.of(ev.PassFailed)] == ["cannot be read"]


@pytest.mark.parametrize("what", ["torch", "numpy", "Python", "interlock's sources", "kind", "fingerprint", "trouble"])
def test_a_node_that_does_not_fit_the_others_is_refused_and_the_others_compute(shop, what):
    stand = Stand(shop, 2)

    def spoil(machine: str, node: ClusterNode) -> None:
        if machine != "m1":
            return
        welcome, begin = node.welcome, node.begin

        def welcomed(hello: Hello) -> Welcome:
            answer = welcome(hello)
            if what in answer.versions:
                return replace(answer, versions={**answer.versions, what: "1.0"})
            if what == "kind":
                (device, *_) = answer.devices
                from msgspec.structs import replace as other

                return replace(answer, devices=[replace(device, facts=other(device.facts, kind="cpu"))])
            return answer

        def begun(plan: Any) -> Any:
            if what == "fingerprint":
                plan = replace(plan, passes=[replace(each, fingerprint="0" * 64) for each in plan.passes])
            answer = begin(plan)
            return replace(answer, trouble="its disk is full") if what == "trouble" else answer

        node.welcome, node.begin = welcomed, begun  # type: ignore[method-assign]

    stand.spoils = spoil
    stand.run()
    (refused,) = stand.of(ev.NodeRefused)
    words = {"kind": "has no GPU, others have simulated GPUs"}
    words |= {"fingerprint": "its copy of model flat", "trouble": "its disk is full"}
    assert refused.node == "node-2"
    expected = words.get(what, f"has {what} 1.0, the head has {versions().get(what)}: install the same versions")
    assert expected in refused.reason
    assert stand.whole()


def test_one_changed_line_makes_other_sources_whatever_the_version_says(tmp_path):
    shutil.copytree(Path(remote.__file__).parents[3], tmp_path / "interlock")
    changed = tmp_path / "interlock" / "engine" / "compute" / "encoder.py"
    code = "from interlock.engine.compute.cluster.node import versions, Path; print(versions())"

    def said() -> str:
        env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": ""}
        done = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, check=True)
        return done.stdout.decode().strip()

    assert said() == str(versions())
    changed.write_text(changed.read_text().replace("return", "return  #", 1))
    assert said() != str(versions())


def test_pause_reaches_every_node_and_each_acknowledges_it(shop):
    stand = Stand(shop, 2, patience=replace(IMPATIENT, lead=0.5))
    stand.seconds = {"m0": 0.3, "m1": 0.3}
    committed: list[int] = []

    def later() -> None:
        limit = time.monotonic() + 20
        while len(stand.of(ev.ControlReached)) < 2 and time.monotonic() < limit:
            time.sleep(0.01)
        for seconds in (1.0, 0.5):
            time.sleep(seconds)
            committed.append(len(stand.of(ev.BatchCommitted)))
        stand.controls.ask("pause", "no", "tester")

    def pause() -> None:
        stand.controls.ask("pause", "yes", "tester")
        threading.Thread(target=later).start()

    on_batch(stand, 1, pause)
    stand.run()
    reached = [(event.node, event.control, event.value) for event in stand.of(ev.ControlReached)]
    assert {*reached} == {(f"node-{node}", "pause", value) for node in (1, 2) for value in ("yes", "no")}
    assert len(reached) == 4
    assert committed[0] == committed[1] < 10
    paused, resumed = [k for k, event in enumerate(stand.heard.events) if isinstance(event, ev.ControlApplied)]
    assert not [event for event in stand.heard.events[paused:resumed] if isinstance(event, ev.BatchesDoubled)]
    assert stand.whole()


def test_the_receipts_of_a_slow_node_are_waited_for_where_no_pass_follows(shop):
    stand = Stand(shop, 2)
    stand.seconds = {"m0": 0.01, "m1": 1.0}
    stand.awaited["m1"] = threading.Event()
    stand.run()
    assert stand.of(ev.BatchesDoubled)
    assert len(stand.of(ev.LeaseReleased)) == len(stand.of(ev.LeaseGranted)) >= 2
    assert [machine for machine, _ in stand.threads.links] == ["m0", "m1"], "who has ended is not started again"


def test_a_stop_ends_between_batches_and_the_rest_is_left(shop):
    stand = Stand(shop, 2)
    stand.seconds = {"m0": 0.3, "m1": 0.3}
    on_batch(stand, 2, lambda: stand.controls.stop(ExitCode.STOPPED))
    with pytest.raises(Stopped, match="stopped by the operator between batches"):
        stand.run()
    assert 2 <= len(stand.of(ev.BatchCommitted)) < 10
    assert len(stand.of(ev.LeaseReleased)) == 2


def test_without_any_node_left_the_run_stops_resumably(shop):
    stand = Stand(shop, 2, patience=replace(IMPATIENT, empty=0.3))
    stand.seconds = {"m0": 0.05, "m1": 0.05}
    on_batch(stand, 1, lambda: [stand.threads.kill(name, gone=True) for name in ("m0", "m1")])
    with pytest.raises(Stopped, match="no node is left: --resume continues"):
        stand.run()


def test_a_cluster_without_a_node_that_can_compute_says_why(shop):
    stand = Stand(shop, 1)

    def spoil(machine: str, node: ClusterNode) -> None:
        node.welcome = lambda hello: Welcome(versions=versions(), trouble="no usable GPU")  # type: ignore[method-assign]

    stand.spoils = spoil
    with pytest.raises(UnavailableError, match="no node of the cluster can compute: node-1: no usable GPU"):
        stand.run()


def test_a_pass_that_one_node_cannot_compute_is_computed_by_the_others(shop):
    stand = Stand(shop, 2)

    def spoil(machine: str, node: ClusterNode) -> None:
        if machine == "m1":
            node._backend = replace(node._backend, hydrate=lambda _: _unreadable)

    def _unreadable(card: Any) -> Any:
        raise UnavailableError(f"model {card.key}: its weights cannot be read")

    stand.spoils = spoil
    stand.seconds = {"m0": 0.15}
    stand.run()
    assert [event.message for event in stand.of(ev.Warned)] == [
        "node-2 does not compute flat, which is left to other nodes: model flat: its weights cannot be read"
    ]
    assert stand.whole()


def test_a_pass_that_no_node_can_compute_has_failed(shop):
    stand = Stand(shop, 2)

    def unreadable(card: Any) -> Any:
        raise UnavailableError(f"{card.key} cannot be read")

    def spoil(machine: str, node: ClusterNode) -> None:
        node._backend = replace(node._backend, hydrate=lambda _: unreadable)

    stand.spoils = spoil
    stand.run()
    assert [event.reason for event in stand.of(ev.PassFailed)] == ["cannot be read"]


def test_a_head_that_was_held_up_itself_loses_no_node(shop):
    stand = Stand(shop, 3, patience=replace(IMPATIENT, silent=0.4))
    stand.seconds = {"m0": 0.02, "m1": 0.02, "m2": 0.02}
    on_batch(stand, 2, lambda: time.sleep(0.8))
    stand.run()
    assert [event.reason for event in stand.of(ev.NodeLost)] == []
    assert stand.whole()


def test_what_was_asked_for_before_the_nodes_were_ready_is_acknowledged_too(shop):
    stand = Stand(shop, 2)
    stand.seconds = {"m0": 0.05, "m1": 0.05}
    stand.controls.ask("cpu_fallback", "no", "tester")
    stand.run()
    assert {event.node for event in stand.of(ev.ControlReached)} == {"node-1", "node-2"}


def test_the_head_keeps_no_vectors_that_it_has_written(shop):
    stand = Stand(shop, 1)
    sent: list[weakref.ref[Any]] = []
    kept: list[Any] = []

    def spoil(machine: str, node: ClusterNode) -> None:
        exchange = node.exchange

        def watched(orders: Orders) -> Report:
            began = time.monotonic()
            while not kept and any(each() is not None for each in sent):
                time.sleep(0.01)  # the thread that sent them may not be through yet
                kept.extend(each for each in sent if time.monotonic() - began > 3 and each() is not None)
            report = exchange(orders)
            sent.clear()
            for news in report.news:
                if news.outputs is not None:
                    object.__setattr__(news, "outputs", Outputs(news.outputs.dense))  # which the node does not hold
                    sent.append(weakref.ref(news.outputs))
            return report

        node.exchange = watched  # type: ignore[method-assign]

    stand.spoils = spoil
    stand.run()
    assert stand.whole()
    assert kept == []


def test_a_batch_that_is_begun_while_it_is_dropped_costs_no_node(shop):
    source, queue = fed(shop, 1)

    class Hurried(deque[int]):
        def __contains__(self, batch: object) -> bool:
            there = super().__contains__(batch)
            self.popleft()  # as a worker does between two looks
            return there

    queue._left = Hurried([0])
    source.follow(Orders(dropped={0: [0]}))
    queue._left = deque()
    source.follow(Orders(dropped={0: [0]}))
    assert queue.left() == []
    assert not source.commit(committed(0), OUTPUTS)


def lying(stand: Stand, machine: str, lie: Callable[[Any], object]) -> None:
    """Have a machine change what it gives before it sends it, and the head prove what nodes give."""
    from types import SimpleNamespace

    from interlock.engine.compute.encoder import encoder_for

    shop = stand.shop
    backend = Backend(laws=shop.law, load=shop.network, encoders=encoder_for)
    stand.context = SimpleNamespace(backend=backend, host=CpuDevice(), lessor=SimpleNamespace(budget=lambda _: 1 << 40))

    def spoil(name: str, node: ClusterNode) -> None:
        exchange = node.exchange

        def told(orders: Orders) -> Report:
            report = exchange(orders)
            for news in report.news:
                if name == machine and news.outputs is not None:
                    dense = news.outputs.dense.copy()
                    lie(dense)
                    dense /= np.linalg.norm(dense, axis=1, keepdims=True)
                    object.__setattr__(news, "outputs", Outputs(dense))
                    from msgspec.structs import replace as other

                    object.__setattr__(news, "event", other(news.event, crc=news.outputs.crc()))
            return report

        node.exchange = told  # type: ignore[method-assign]

    stand.spoils = spoil


def right(stand: Stand) -> bool:
    """Whether every row is what the model gives of it alone, by the encoder itself."""
    from interlock.engine.compute.encoder import encoder_for, one_by_one

    for job in stand.grid:
        card = replace(job.card, dtype="float32")
        alone = one_by_one(encoder_for(card, stand.shop.network(card), CpuDevice()), job.ids(np.arange(40))).dense
        if not (np.sum(alone * job.files.array, axis=1) > 0.9999).all():
            return False
    return True


def test_a_node_that_computes_wrongly_is_stopped_and_what_it_gave_is_computed_again(shop):
    stand = Stand(shop, 3, "flat", "deep")
    stand.seconds = {"m0": 0.02, "m1": 0.02, "m2": 0.02}
    lying(stand, "m1", lambda dense: np.roll(dense, 1, axis=1).copy().__setitem__(0, 0) or dense.__iadd__(0.3))
    stand.run()
    (refused,) = stand.of(ev.NodeRefused)
    # A slow one may have had nothing of the first model.
    assert refused.node == "node-2" and re.match(r"computes (flat|deep) wrongly \(cosine", refused.reason)
    assert {event.node for event in stand.of(ev.BatchesLost)} <= {"node-2"}
    assert right(stand)


def test_honest_nodes_pass_and_nothing_is_told(shop):
    stand = Stand(shop, 3, "flat", "deep")
    lying(stand, "nobody", lambda dense: None)
    stand.run()
    assert not [*stand.of(ev.NodeRefused), *stand.of(ev.BatchesLost), *stand.of(ev.Warned)]
    assert stand.whole() and right(stand)


@pytest.mark.parametrize("which", [0, 3, 9])
def test_with_every_batch_computed_twice_one_wrong_row_finds_out_who_gave_it(shop, monkeypatch, which):
    monkeypatch.setattr("interlock.engine.compute.cluster.proofs.ROWS", 1)
    stand = Stand(shop, 3)
    stand.twice = True
    stand.seconds = {"m0": 0.01, "m1": 0.02, "m2": 0.02}
    given = iter(range(1000))

    def noise(dense: Any) -> None:
        if next(given) == which % 5:
            dense[which % len(dense)] += 0.5

    lying(stand, "m1", noise)
    stand.run()
    lied = next(given) > which % 5
    assert [event.node for event in stand.of(ev.NodeRefused)] == ["node-2"] * lied
    assert right(stand)


def test_with_one_node_nothing_is_computed_twice_and_that_is_told(shop):
    stand = Stand(shop, 1)
    stand.twice = True
    lying(stand, "nobody", lambda dense: None)
    stand.run()
    assert "only one node computes it" in stand.of(ev.Warned)[0].message and len(stand.of(ev.Warned)) == 1
    assert stand.whole() and right(stand)


def test_a_head_without_the_memory_to_prove_says_so_once_a_model(shop):
    stand = Stand(shop, 2, "flat", "deep")
    lying(stand, "nobody", lambda dense: None)
    stand.context.lessor.budget = lambda _: 0
    stand.run()
    said = [event.message for event in stand.of(ev.Warned)]
    assert len(said) >= 1 and all(
        "is not compared with the head's: float32 on the head's host needs" in each for each in said
    )
    assert stand.whole()


def test_bytes_that_changed_on_the_way_are_not_kept(shop):
    stand = Stand(shop, 1)
    damaged = []

    def spoil(machine: str, node: ClusterNode) -> None:
        exchange = node.exchange

        def damaging(orders: Orders) -> Report:
            report = exchange(orders)
            for news in report.news:
                if news.outputs is not None and not damaged:
                    damaged.append(news.event)
                    dense = news.outputs.dense.copy()
                    dense.view(np.uint32)[0, 0] ^= 1
                    object.__setattr__(news, "outputs", Outputs(dense))
            return report

        node.exchange = damaging  # type: ignore[method-assign]

    stand.spoils = spoil
    stand.run()
    (lost,) = stand.of(ev.NodeLost)
    assert "arrived with other bytes than it sent" in lost.reason
    batches = [event.batch_index for event in stand.of(ev.BatchCommitted)]
    assert sorted(batches) == list(range(10))


def read_slowly(stand: Stand) -> list[int]:
    """Have texts read until every node that was there has given its devices back; how many that were."""
    begin, let_go = stand.crew.begin, list[int]()

    def late(*plan: Any) -> None:
        links = [link for _, link in stand.threads.links]
        assert until(lambda: all(link.dead for link in links))
        assert len(stand.crew.welcomed) == len(links)  # what is planned for stays known
        let_go.append(len(links))
        begin(*plan)

    stand.crew.begin = late  # type: ignore[method-assign]
    return let_go


def until(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it is so within some seconds."""
    ends = time.monotonic() + seconds
    while not true() and time.monotonic() < ends:
        time.sleep(0.01)
    return true()


def test_nodes_give_their_devices_back_while_texts_are_read_and_come_again_with_the_plan(shop):
    stand = Stand(shop, 2, patience=replace(IMPATIENT, idle=0.05))
    let_go = read_slowly(stand)
    stand.run()
    assert (let_go, len(stand.threads.links)) == ([2], 4)
    assert stand.whole() and not stand.of(ev.NodeLost)
    assert {event.node for event in stand.of(ev.NodeJoined)} == {"node-1", "node-2"}


def test_a_node_whose_devices_another_has_when_the_plan_is_there_is_waited_for(shop):
    stand = Stand(shop, 1, patience=replace(IMPATIENT, idle=0.05))
    let_go = read_slowly(stand)

    def busy(machine: str, node: ClusterNode) -> None:
        if let_go and len(stand.threads.links) < 4:
            node.welcome = lambda hello: Welcome(versions=versions(), trouble="busy")  # type: ignore[method-assign]

    stand.spoils = busy
    stand.run()
    assert len(stand.threads.links) == 5
    assert stand.whole()


def test_a_run_that_ends_while_its_nodes_are_away_waits_for_none(shop):
    stand = Stand(shop, 2, patience=replace(IMPATIENT, idle=0.05))
    stand.crew.gather()
    assert until(lambda: all(link.dead for _, link in stand.threads.links))
    began = time.monotonic()
    stand.crew.close()
    assert until(lambda: not any(each.name in ("node-1", "node-2") for each in threading.enumerate()))
    assert time.monotonic() - began < 5
    assert len(stand.threads.links) == 2


def test_a_machine_that_is_busy_again_and_again_is_out_for_good(shop):
    stand = Stand(shop, 2, patience=replace(IMPATIENT, tries=2))
    stand.seconds = {"m0": 0.15}

    def spoil(machine: str, node: ClusterNode) -> None:
        if machine == "m1":
            node.welcome = lambda hello: Welcome(versions=versions(), trouble="busy")  # type: ignore[method-assign]

    stand.spoils = spoil
    stand.run()
    assert [event.reason for event in stand.of(ev.NodeRefused)] == ["lost or refused 3 times, at last: busy"]
    assert sum(machine == "m1" for machine, _ in stand.threads.links) == 3
    assert stand.whole()


def fed(shop: Workshop, batches: int) -> tuple[RemoteSource, Any]:
    """A node's source that was handed so many batches of a pass, and the queue that they are in."""
    card = replace(shop.cards["flat"], batch_tokens=32)
    grid = grid_of([card], [8] * 40, ids_of)
    source = RemoteSource(
        GridPlan.of(grid, [ModelSpec("flat", ("none",))], Policy(offline=True), Controls()), {0: card}
    )
    queue = source.queue(source.grid[0], Assignment(0, range(10), ("cuda:0",)))
    queue.begin()
    source.follow(Orders(handed=[Handed(0, range(batches), np.array([0]), np.array([1]), np.array([7], np.uint32))]))
    source.report(0)
    return source, queue


def committed(batch: int) -> ev.BatchCommitted:
    return ev.BatchCommitted(
        model_pass=0, batch_index=batch, rows=4, tokens=32, padding=0, seconds=0.1, device="cuda:0", crc=0
    )


OUTPUTS = Outputs(np.ones((4, 16), np.float32))


def test_a_parked_row_is_told_with_its_batch_and_not_before(shop):
    feed, _ = fed(shop, 1)
    parked = ev.RowParked(model_pass=0, model="flat", batch_index=0, row=2, reason="not finite", collection="texts")
    feed.emit(parked)
    assert feed.report(0).news == []
    assert feed.commit(committed(0), OUTPUTS)
    (news,) = feed.report(0).news
    assert news.before == [parked]


def test_what_waits_for_the_head_is_bounded(shop, monkeypatch):
    monkeypatch.setattr(remote, "MOST_BYTES", OUTPUTS.bytes)
    feed, _ = fed(shop, 2)
    feed.commit(committed(0), OUTPUTS)
    second = threading.Thread(target=feed.commit, args=(committed(1), OUTPUTS))
    second.start()
    second.join(0.1)
    assert second.is_alive()
    assert [news.event.batch_index for news in feed.report(0).news] == [0]
    second.join(5)
    assert [news.event.batch_index for news in feed.report(0).news] == [1]


def taken(pool: BatchPool, node: str, last: float = np.inf) -> int:
    batch = pool.next(node, last)
    assert batch is not None
    pool.take(batch, node)
    return batch


def all_doubled(pool: BatchPool, node: str) -> bool:
    return pool.double(node, dict.fromkeys(pool.held(node), 1.0), 1, silent=60.0, lead=1.0)


def test_only_what_would_be_long_on_a_node_waits_for_others_too():
    pool = BatchPool(range(5))
    for _ in range(5):
        taken(pool, "a")
    seconds = dict.fromkeys(range(5), 1.0)
    assert not pool.double("a", seconds, 2, silent=0.0, lead=1.0)
    assert pool.double("a", seconds, 1, silent=0.0, lead=1.0)
    assert pool.waiting("b") == [3, 4]


def test_what_a_node_gives_back_waits_in_its_order_before_the_rest():
    pool = BatchPool([0, 1, 2])
    assert [taken(pool, "a"), taken(pool, "a")] == [0, 1]
    assert pool.give_back("a") == [0, 1]
    assert [taken(pool, "b") for _ in range(3)] == [0, 1, 2]


def test_a_pool_hands_out_no_more_than_a_window():
    pool = BatchPool(range(4))
    assert [taken(pool, "a", last=1), taken(pool, "b", last=1)] == [0, 1]
    assert pool.next("a", last=1) is None
    assert pool.waiting("a") == [2, 3]


def test_a_doubled_batch_is_handed_out_within_its_window_though_later_ones_wait():
    pool = BatchPool(range(6))
    assert [taken(pool, "a"), taken(pool, "a")] == [0, 1]
    all_doubled(pool, "a")
    assert pool.waiting("b") == [0, 1, 2, 3, 4, 5]
    assert {taken(pool, "b", last=1), taken(pool, "b", last=1)} == {0, 1}


def test_a_batch_that_waits_again_while_it_is_held_counts_once_whoever_is_first():
    for first, second in (("a", "b"), ("b", "a")):
        pool = BatchPool([0, 1])
        assert [taken(pool, "a"), taken(pool, "a")] == [0, 1]
        assert all_doubled(pool, "a") and not all_doubled(pool, "a")
        assert pool.next("a") is None
        assert pool.take(0, "b") == ["a"]
        assert pool.commit(0, first) == [second]
        assert 0 not in pool.held(second)
        assert len(pool) == 1
        assert pool.commit(1, "a") == []
        assert (len(pool), pool.waiting("b")) == (0, [])


def test_a_doubled_batch_outlives_each_of_those_who_hold_it():
    pool = BatchPool([0, 1])
    assert [taken(pool, "a"), taken(pool, "a")] == [0, 1]
    all_doubled(pool, "a")
    assert pool.take(0, "b") == ["a"]
    assert pool.give_back("a") == [1]
    assert pool.waiting("c") == [1]
    assert pool.give_back("b") == [0]
    assert pool.waiting("c") == [0, 1]


def test_a_stop_while_nodes_start_does_not_wait_for_them(shop):
    stand, began = Stand(shop, 2), time.monotonic()

    def spoil(machine: str, node: ClusterNode) -> None:
        welcome = node.welcome
        node.welcome = lambda hello: (time.sleep(1), welcome(hello))[1]  # type: ignore[method-assign]

    stand.spoils = spoil
    with pytest.raises(Stopped, match="while nodes started"):
        stand.crew.gather(lambda: time.monotonic() - began > 0.2)
    assert time.monotonic() - began < 0.9
    stand.crew.close()
    stand.threads.join()


def test_an_idle_node_is_told_what_waits_and_handed_nothing_before_it_asks(shop):
    stand = Stand(shop, 1)
    source = BatchSource(stand.grid, [[]], [1.0], stand.heard)
    head = ClusterExecutor(source, stand.crew, stand.controls, stand.heard, lambda: None, Deadline())
    peer = Peer(ClusterMember("node-1", NodeMachine("m0", ""), devices=[None, None]), 0.0)  # type: ignore[list-item]
    head._join = lambda _: None  # type: ignore[method-assign]
    head._devices = 2
    peer.report = Report(idle=True)
    orders = head._orders(peer)
    assert (list(orders.left[0]), orders.handed) == ([*range(10)], [])
    peer.report = Report(wants={0: (4, 2)})
    orders = head._orders(peer)
    assert [list(each.batches) for each in orders.handed] == [[0, 1, 2]]
    assert orders.dry == {0}


@pytest.mark.parametrize(("held", "doubled"), [(4, False), (10, True)])
def test_nothing_is_doubled_while_something_waits_for_the_idle_node(shop, held, doubled):
    stand = Stand(shop, 2)
    source = BatchSource(stand.grid, [[]], [1.0], stand.heard)
    head = ClusterExecutor(source, stand.crew, stand.controls, stand.heard, lambda: None, Deadline())
    for name in ("node-1", "node-2"):
        peer = Peer(ClusterMember(name, NodeMachine(name, ""), devices=[None]), 0.0)  # type: ignore[list-item]
        head._peers[name], peer.report = peer, Report(idle=name == "node-2")
    head._usual, pool = 1.0, head._pools[0]
    for _ in range(held):
        taken(pool, "node-1")
    with head._changed:
        head._double(1e9)
    assert (len(pool.waiting("node-2")) > 10 - held) == doubled


def test_no_batch_is_handed_out_that_would_not_be_done_before_the_deadline(shop):
    stand = Stand(shop, 1)
    stand.seconds = {"m0": 0.5}
    deadline = Deadline(CLOSING_SECONDS + 1.8, stand.controls)
    with pytest.raises(Stopped, match="stopped by the deadline between batches"):
        stand.run(deadline=deadline)
    assert deadline.near
    assert deadline.left > CLOSING_SECONDS - 0.5
    assert 2 <= len(stand.of(ev.BatchCommitted)) < 10
    assert len(stand.of(ev.LeaseReleased)) == 1


def test_a_run_that_waits_for_nodes_says_what_is_there_asks_for_the_rest_and_begins_with_all(shop, monkeypatch):
    monkeypatch.setattr("interlock.engine.compute.cluster.members.SAYING", 0.05)
    stand, said = Stand(shop, 1, patience=replace(IMPATIENT, idle=0.01)), list[str]()

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            stand.threads.there.append("m1")

    gather = stand.crew.gather
    stand.crew.gather = lambda: gather(lambda: False, 2, 30.0, say)  # type: ignore[method-assign, assignment]
    stand.run()
    assert said[0].startswith("1 of 2 nodes have joined, of 1 machines; waiting for 0:29 more")
    assert (stand.threads.wanted[0], stand.threads.wanted[-1]) == (1, 0)
    assert {event.node for event in stand.of(ev.NodeJoined)} == {"node-1", "node-2"}
    assert stand.whole()


def test_a_machine_that_goes_in_the_middle_is_asked_for_again_and_not_while_texts_are_read(shop):
    stand = Stand(shop, 2, patience=replace(IMPATIENT, look=0.01))
    stand.seconds, gather, begin = {"m0": 0.1, "m1": 0.1}, stand.crew.gather, stand.crew.begin

    def read(*given: Any) -> None:
        stand.threads.there.remove("m1")
        stand.threads.wanted.clear()
        stand.crew.look()  # as the head does while it reads
        time.sleep(0.02)
        stand.crew.look()
        assert stand.threads.wanted == []
        stand.threads.there.append("m1")
        begin(*given)

    stand.crew.gather = lambda: gather(least=2, wait=30.0)  # type: ignore[method-assign, assignment]
    stand.crew.begin = read  # type: ignore[method-assign, assignment]
    on_batch(stand, 3, lambda: stand.threads.there.remove("m1"))
    stand.run()
    assert {*stand.threads.wanted} == {0, 1} and stand.threads.wanted[-1] == 1
    assert stand.whole()


def test_too_few_nodes_at_the_end_of_the_wait_end_the_run_resumably(shop):
    stand = Stand(shop, 1)
    with pytest.raises(Stopped, match=r"^1 of 2 nodes have joined, of 1 machines: repeat the command .*--min-nodes"):
        stand.crew.gather(least=2, wait=0.3)
    assert {*stand.threads.wanted} == {1}  # it is asked for no more once the driver has ended
    stand.crew.close()
    stand.threads.join()


def test_who_has_what_a_node_waits_for_is_said_while_it_waits_and_where_it_is_given_up(shop, monkeypatch):
    monkeypatch.setattr("interlock.engine.compute.cluster.members.SAYING", 0.05)
    stand, said = Stand(shop, 2, patience=replace(IMPATIENT, start=0.4, tries=0)), list[str]()
    stand.threads.others["m1"] = "others hold 0.5 of 2 GPUs"

    def spoil(machine: str, node: ClusterNode) -> None:
        if machine == "m1":
            node.welcome = lambda hello: (time.sleep(1), Welcome(versions=versions()))[1]  # type: ignore[method-assign]

    stand.spoils, gather = spoil, stand.crew.gather
    stand.crew.gather = lambda: gather(say=said.append)  # type: ignore[method-assign, assignment]
    stand.run()
    assert said and {*said} == {"node-2: others hold 0.5 of 2 GPUs"}
    (out,) = stand.of(ev.NodeRefused)
    assert out.reason.endswith("did not answer for 0 s: others hold 0.5 of 2 GPUs")
    assert stand.whole()


def test_nodes_are_waited_for_on_a_cluster_alone(tmp_path):
    with pytest.raises(UsageError, match="min_nodes is of a run on a cluster: add cluster, or drop it"):
        interlock.embed(tmp_path, interlock.Settings(min_nodes=2, out=tmp_path), progress="none")
    with pytest.raises(UsageError, match="node_resources is of a run on a cluster: add cluster, or drop it"):
        interlock.embed(tmp_path, interlock.Settings(node_resources="GPU=1", out=tmp_path), progress="none")
    with pytest.raises(UsageError, match="node_resources is of machines that Ray knows: drop it with local:N"):
        local = interlock.Settings(node_resources="GPU=1", cluster="local:2", out=tmp_path)
        interlock.embed(tmp_path, local, progress="none")
    for wrong in ("GPU", "GPU=0", "GPU=1.5", "=2", "memory=lots", "CPU=nan"):
        with pytest.raises(UsageError, match="expected NAME=AMOUNT by Ray's names"):
            interlock.embed(tmp_path, interlock.Settings(node_resources=wrong, cluster="auto"), progress="none")
    with pytest.raises(UsageError, match="min_nodes is more than local:2 has: choose at most 2"):
        interlock.embed(tmp_path, interlock.Settings(min_nodes=3, cluster="local:2", out=tmp_path), progress="none")
