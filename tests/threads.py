"""A cluster of threads: nodes of this process, which can be killed, silenced, slowed down and joined at any time."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from interlock.engine.compute.cluster.messages import (
    GridPlan,
    Hello,
    ModelFiles,
    NodeMachine,
    Orders,
    Ready,
    Report,
    Welcome,
)
from interlock.engine.compute.cluster.node import ClusterNode


class ThreadLink:
    """A node in this process, and the way to it."""

    def __init__(self, node: ClusterNode, hello: Hello) -> None:
        self.node, self.hello = node, hello
        self.dead = False
        self.silent = False
        """Whether what is asked is never answered."""
        self.delay = 0.0
        """Seconds that an answer takes to arrive."""
        self.exchanges = 0
        self._threads = ThreadPoolExecutor(4, "link")

    def welcome(self) -> "Future[Welcome]":
        return self._call(self.node.welcome, self.hello)

    def begin(self, plan: GridPlan) -> "Future[Ready]":
        return self._call(self.node.begin, plan)

    def take(self, files: ModelFiles) -> "Future[Ready]":
        return self._call(self.node.take, files)

    def exchange(self, orders: Orders) -> "Future[Report]":
        self.exchanges += 1
        return self._call(self.node.exchange, orders)

    def nudge(self) -> None:
        if not self.dead:
            self.node.nudge()

    def close(self) -> None:
        """What the process of a node that is killed was doing goes on for a while, as that of an orphan does."""
        if not self.dead:
            self.dead = True
            self._threads.submit(self.node.close)
            self._threads.shutdown(wait=False)

    def join(self) -> None:
        """Wait until nothing of the node is left."""
        self._threads.shutdown()

    def _call(self, method: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        if self.dead:
            failed: Future[Any] = Future()
            failed.set_exception(ConnectionError("the node is gone"))
            return failed

        def call() -> Any:
            answer = method(*arguments)
            time.sleep(self.delay)
            while self.silent and not self.dead:
                time.sleep(0.005)
            if self.dead:
                raise ConnectionError("the node is gone")
            return answer

        return self._threads.submit(call)


@dataclass
class Threads:
    """Machines that are threads; `make` makes the node of a machine."""

    make: Callable[[str], ClusterNode]
    there: list[str] = field(default_factory=list)
    links: list[tuple[str, ThreadLink]] = field(default_factory=list)
    closed: bool = False
    others: dict[str, str] = field(default_factory=dict)
    """What others have of a machine."""
    wanted: list[int] = field(default_factory=list)
    """How many machines more were asked for, each time."""

    def machines(self) -> Sequence[NodeMachine]:
        return [NodeMachine(name, f"thread {name}") for name in self.there]

    def start(self, machine: NodeMachine, hello: Hello) -> ThreadLink:
        link = ThreadLink(self.make(machine.id), hello)
        self.links.append((machine.id, link))
        return link

    def about(self) -> str:
        return f"{len(self.there)} machines"

    def held(self, machine: NodeMachine) -> str:
        return self.others.get(machine.id, "")

    def want(self, more: int) -> None:
        self.wanted.append(more)

    def shared(self, value: GridPlan | ModelFiles) -> Any:
        return value

    def close(self) -> None:
        self.closed = True

    def latest(self, machine: str) -> ThreadLink:
        """The process of a machine that was started last."""
        return [link for name, link in self.links if name == machine][-1]

    def kill(self, machine: str, *, gone: bool = False) -> None:
        """End the process of a machine, and the machine too where it is to be `gone`."""
        if gone:
            self.there.remove(machine)
        self.latest(machine).close()

    def join(self) -> None:
        """Wait until no node is left."""
        for _, link in self.links:
            link.close()
            link.join()
