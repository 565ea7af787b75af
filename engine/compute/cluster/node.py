"""A node: the devices of one machine, leased and computed on as in a run of its own, for batches that it is handed.

It reads no chunks, writes no journal and delivers nothing. What happens is told to the head, which alone decides what
counts.
"""

import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import torch

from interlock.engine.compute.cluster.feed import NodeFeed, RemoteSource, RemoteTokens
from interlock.engine.compute.cluster.messages import (
    GridPlan,
    Hello,
    ModelFiles,
    Orders,
    PassPlan,
    Ready,
    RemoteFacts,
    Report,
    Welcome,
)
from interlock.engine.compute.cluster.models import room, unpack
from interlock.engine.compute.context import REAL, Backend, RunContext
from interlock.engine.compute.controls import Controls
from interlock.engine.compute.executor import PassExecutor
from interlock.engine.compute.grid import Cells
from interlock.engine.compute.parts.outputs import PassFiles
from interlock.engine.errors import ExitCode, InterlockError, Stopped, UnavailableError
from interlock.engine.gpu.device import Device
from interlock.engine.gpu.devices import describe_host
from interlock.engine.gpu.lease import Lessor, imports_left_alone
from interlock.engine.gpu.locks import holding
from interlock.engine.gpu.sampler import Sampler
from interlock.engine.models.assets import Policy
from interlock.engine.models.card import ModelCard
from interlock.engine.models.masters import Masters
from interlock.engine.record.events import DeviceSampled
from interlock.engine.record.facts import DeviceFacts, Memory, Readings

COMPARED = ("interlock", "torch")
"""Packages that every node has in the head's version."""


def versions() -> dict[str, str]:
    """Say which versions of what makes vectors are installed here."""
    return {name: metadata.version(name) for name in COMPARED}


class ClusterNode:
    """One process on one machine; every method but `exchange` is called once at a time, and `exchange` beside them."""

    def __init__(self, backend: Backend = REAL) -> None:
        self._backend = backend
        self._controls = Controls()
        self._feed = NodeFeed(self._controls)
        self._stack = ExitStack()
        self._sent: dict[str, Path] = {}
        self._plan: GridPlan | None = None
        self._thread: threading.Thread | None = None

    def welcome(self, hello: Hello) -> Welcome:
        """Look at the devices and hold them, so that no other run has them meanwhile."""
        try:
            self._devices = self._backend.devices(hello.devices, hello.faults)
            self._hello, self._host = hello, self._host_beside(self._devices)
            about = describe_host(self._devices)
            self._stack.enter_context(holding(self._devices, hello.run))
        except InterlockError as error:
            return Welcome(versions=versions(), trouble=str(error))
        for device in {id(each): each for each in (*self._devices, self._host)}.values():
            device.name = f"{hello.node}/{device.name}"
        if hello.threads:
            torch.set_num_threads(hello.threads)
        return Welcome([_facts(device, hello) for device in self._devices], versions(), about)

    def begin(self, plan: GridPlan) -> Ready:
        """Resolve the models of the plan, and be ready for its first phase."""
        self._plan = plan
        return self._ready(plan)

    def take(self, files: ModelFiles) -> Ready:
        """Keep a model that was lacking here, for as long as this process lives."""
        assert self._plan, "only then is it known what is lacking"
        place = room()
        self._stack.callback(shutil.rmtree, place, ignore_errors=True)
        try:
            self._sent[files.key] = unpack(files, place)
        except InterlockError as error:
            return Ready(trouble=str(error))
        return self._ready(self._plan)

    def exchange(self, orders: Orders) -> Report:
        """Follow the orders, and report once there is news or `orders.wait` seconds are over."""
        self._feed.follow(orders)
        return self._feed.report(orders.wait)

    def nudge(self) -> None:
        """Have an exchange that waits answer now."""
        self._feed.nudge()

    def close(self) -> None:
        """Stop after the batches that are being computed, and let go of everything."""
        self._controls.stop(ExitCode.STOPPED)
        self._feed.end()
        if self._thread:
            self._thread.join()
        self._stack.close()

    def _host_beside(self, devices: Sequence[Device]) -> Device:
        return devices[0] if devices[0].kind == "cpu" else self._backend.host()

    def _lends(self, devices: Sequence[Device], granted: int) -> Lessor:
        hello = self._hello
        return Lessor(devices, hello.ceiling, hello.host_ceiling, granted=granted, whose=f"{hello.node}/")

    def _ready(self, plan: GridPlan) -> Ready:
        lacking, cards = list[str](), dict[int, ModelCard]()
        for each in plan.passes:
            key, mine = each.layout.card.key, self._sent.get(each.layout.card.key)
            spec = replace(each.spec, sources=(str(mine),)) if mine else each.spec
            try:
                policy = Policy(offline=True, pickles=plan.pickles)
                card = self._backend.cards([spec], policy, self._devices, lambda _: None)[0]
            except UnavailableError as error:
                if mine:
                    return Ready(trouble=f"model {key} was sent, and cannot be used: {error}")
                lacking.append(key)
                continue
            if card.snapshot.fingerprint != each.fingerprint:
                return Ready(
                    trouble=f"its copy of model {key} in {card.snapshot.path} is another one (fingerprint "
                    f"{card.snapshot.fingerprint[:12]}, the head's {each.fingerprint[:12]}): delete it there, or "
                    "bring it to the same revision"
                )
            cards[each.model_pass] = replace(each.layout.card, snapshot=card.snapshot)
        return Ready(lacking=lacking) if lacking else self._start(plan, cards)

    def _start(self, plan: GridPlan, cards: Mapping[int, ModelCard]) -> Ready:
        grid = [self._cells(plan, each, cards[each.model_pass]) for each in plan.passes]
        gpus = [device for device in self._devices if device is not self._host]
        context = RunContext(
            devices=self._devices,
            host=self._host,
            lessor=self._lends([*gpus, self._host], plan.granted + self._hello.granted),
            masters=Masters(self._hello.warm, self._backend.hydrate(self._devices[0])),
            controls=self._controls,
            emit=self._feed.emit,
            sync=lambda: None,
            backend=self._backend,
        )
        source = RemoteSource(grid, plan.roster, self._feed, self._controls)
        executor = PassExecutor(source, context)
        refused = executor.unplaceable()
        self._thread = threading.Thread(target=self._work, args=(executor,), name="node", daemon=True)
        self._thread.start()
        return Ready(refused=refused)

    def _cells(self, plan: GridPlan, each: PassPlan, card: ModelCard) -> Cells:
        tokens = RemoteTokens(plan.tokens[each.tokens], each.model_pass, self._feed)
        return Cells(each.model_pass, replace(each.layout, card=card), tokens, PassFiles())

    def _work(self, executor: PassExecutor) -> None:
        def sampled(device: str, memory: Memory, readings: Readings | None) -> None:
            self._feed.emit(DeviceSampled(device=device, memory=memory, readings=readings))

        try:
            with Sampler(self._devices, sampled), imports_left_alone():
                executor.run()
        except Stopped as stopped:
            self._feed.end(str(stopped))
        except Exception as error:  # whatever it is, the head has to know
            known = isinstance(error, InterlockError)
            self._feed.end(str(error) if known else f"{type(error).__name__}: {error}")


def _facts(device: Device, hello: Hello) -> RemoteFacts:
    ceiling = hello.host_ceiling if device.kind == "cpu" and hello.host_ceiling else hello.ceiling
    facts = DeviceFacts(
        name=device.name,
        kind=device.kind,
        label=device.label,
        total_bytes=device.total,
        ceiling_bytes=min(device.total, ceiling),
    )
    return RemoteFacts(facts, device.capability, device.processors)
