"""A node without devices, for what carries messages: it answers what it was told."""

import os
import threading
from pathlib import Path

import numpy as np

from interlock.engine.compute.cluster.messages import (
    GridPlan,
    Handed,
    Hello,
    ModelFiles,
    Orders,
    Ready,
    Report,
    Welcome,
)
from interlock.engine.compute.cluster.node import unpack


class EchoNode:
    """`asks` of a report is how many ids came by pass, and whether they came without a copy."""

    def __init__(self) -> None:
        self.nudged = threading.Event()

    def welcome(self, hello: Hello) -> Welcome:
        self.hello = hello
        return Welcome(versions={"node": hello.node}, environment={"pid": str(os.getpid())})

    def begin(self, plan: GridPlan) -> Ready:
        return Ready(lacking=[each.fingerprint for each in plan.passes])

    def take(self, files: ModelFiles) -> Ready:
        place = unpack(files, Path(self.hello.run) / self.hello.node)
        return Ready(lacking=sorted(str(file.relative_to(place)) for file in place.rglob("*") if file.is_file()))

    def exchange(self, orders: Orders) -> Report:
        def told(texts: Handed) -> list[int]:
            return [len(texts.ids), int(texts.ids.sum()), int(texts.ids.flags.writeable)]

        if not orders.handed:
            self.nudged.wait(orders.wait)
        return Report(asks={each.model_pass: told(each) for each in orders.handed}, trouble=str(os.getpid()))

    def nudge(self) -> None:
        self.nudged.set()

    def close(self) -> None:
        pass


class BrokenNode:
    def __init__(self) -> None:
        raise RuntimeError("its driver is too old")


def texts(count: int) -> Handed:
    return Handed(0, (), np.arange(1), np.array([count]), np.arange(count, dtype=np.int32))
