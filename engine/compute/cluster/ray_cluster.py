"""Ray carries the messages of a run: an actor on each machine is its node, and the object store holds what is large.

Of Ray only actors, futures and the object store are used. Nothing is run again by it: an actor that died stays dead,
and each call that was under way fails. Nothing of it is loaded without `--cluster`.
"""

import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from interlock.engine.compute.cluster.messages import (
    GridPlan,
    Hello,
    ModelFiles,
    NodeLink,
    NodeMachine,
    Orders,
    Ready,
    Report,
    Welcome,
)
from interlock.engine.compute.cluster.node import PACKAGES, versions
from interlock.engine.compute.cluster.ray_session import open_ray
from interlock.engine.errors import UnavailableError, UsageError, reason

PART = 64 << 20
"""Bytes of a model's file that are one object."""
ENDING = 5.0
"""Seconds for a node to let go of its devices before its process is killed."""
LOOKING = 0.5
"""Seconds between two looks at the machines."""
AWAY = 40.0
"""Seconds after which Ray's own server (GCS) is given up; a call to it would wait for ever."""
NODE = "interlock.engine.compute.cluster.node:ClusterNode"


def connect(address: str, devices: str = "auto", node: str = NODE) -> "RayCluster":
    """Connect to the Ray cluster at an address as `--cluster` takes it; `devices` is what nodes are to compute on,
    `node` the class that their processes run.

    Raises UsageError for an address that cannot be used, UnavailableError where there is no Ray.
    """
    if address.startswith("local:") and devices.startswith("cuda"):
        raise UsageError(
            "--cluster local:N is for trials, without GPUs: use --devices cpu or sim:2xT4 (to compute on this "
            "machine's GPUs, drop --cluster)"
        )
    return RayCluster(*open_ray(address), devices, node)


class RayCluster:
    """The machines of a Ray cluster, as the process that has connected to it sees them."""

    def __init__(self, ray: Any, end: Callable[[bool], None], devices: str, node: str) -> None:
        self._ray = ray
        self._actor = ray.remote(_actor())
        self._node = node
        self._plain = devices == "cpu" or devices.startswith("sim:")
        self._end = end
        self._gpus: dict[str, float] = {}
        self._links: list[RayLink] = []
        self._seen = time.monotonic(), ray.nodes()
        self._closed = threading.Event()
        threading.Thread(target=self._look, name="machines", daemon=True).start()

    def machines(self) -> Sequence[NodeMachine]:
        """List the machines that are there, by Ray's id of each; of those with GPUs where there are any, else of those
        that Ray gives CPUs. The usual head on Kubernetes, with neither, is none where others have some. The head's own
        comes first.

        Raises UnavailableError where Ray does not answer any more.
        """
        when, table = self._seen
        if time.monotonic() - when > AWAY:
            raise UnavailableError(
                f"Ray has not answered for {AWAY:.0f} s: start it again on its first machine (ray start --head), "
                "then --resume"
            )
        there = [node for node in table if node["Alive"]]
        for resource in ([] if self._plain else ["GPU"]) + ["CPU"]:
            if having := [node for node in there if node["Resources"].get(resource)]:
                there = having
                break
        self._gpus = {node["NodeID"]: node["Resources"].get("GPU", 0.0) for node in there}
        here = self._ray.get_runtime_context().get_node_id()
        there.sort(key=lambda node: (node["NodeID"] != here, node["NodeManagerAddress"], node["NodeID"]))
        return [NodeMachine(node["NodeID"], _label(node)) for node in there]

    def start(self, machine: NodeMachine, hello: Hello) -> NodeLink:
        """Start a node's process on a machine, with all GPUs that Ray knows there."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        gpus = 0.0 if self._plain else self._gpus.get(machine.id, 0.0)
        actor = self._actor.options(
            num_cpus=0,
            num_gpus=gpus,
            max_concurrency=4,  # an exchange that waits, a nudge beside it, the end of both
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine.id, soft=False),
        )
        link = RayLink(self._ray, actor.remote(self._node), machine, hello)
        self._links.append(link)
        return link

    def shared(self, value: GridPlan | ModelFiles) -> Any:
        """Put a value into the object store; nodes on one machine read one copy. A model is put in parts, so that no
        node needs room for the whole of it there.

        Raises UnavailableError where neither memory nor disk has room.
        """
        from ray.exceptions import ObjectStoreFullError, OutOfDiskError

        try:
            if isinstance(value, GridPlan):
                return self._ray.put(value)
            parts = (
                (name, [data[start : start + PART] for data in files for start in range(0, len(data), PART)])
                for name, files in value.files.items()
            )
            return SentFiles(
                value.key, [(name, [self._ray.put(np.asarray(part)) for part in of]) for name, of in parts]
            )
        except (ObjectStoreFullError, OutOfDiskError) as error:
            raise UnavailableError(
                f"Ray's object store is full ({reason(error):.200}): give `ray start` more (--object-store-memory), or "
                "a disk with room (--object-spilling-directory)"
            ) from error

    def close(self) -> None:
        """End all nodes, and Ray itself where it was started or connected to for this run."""
        self._closed.set()
        ended = [link.end() for link in self._links]
        if ended:
            self._ray.wait(ended, num_returns=len(ended), timeout=ENDING)
        for link in self._links:
            link.kill()
        self._end(any(link.lost for link in self._links))
        self._links.clear()

    def _look(self) -> None:
        """Keep the table of machines: Ray's answer takes a millisecond, or for ever."""
        while not self._closed.wait(LOOKING) and self._ray.is_initialized():  # else Ray would start one of its own
            with suppress(Exception):
                self._seen = time.monotonic(), self._ray.nodes()


@dataclass(frozen=True)
class SentFiles:
    """The files of a model in the object store, by their path in its snapshot: a reference of each part, which a node
    fetches when it writes it."""

    key: str
    parts: Sequence[tuple[str, Sequence[Any]]]


class RayLink:
    """A node's process that Ray started; what fails says where its last words are."""

    def __init__(self, ray: Any, actor: Any, machine: NodeMachine, hello: Hello) -> None:
        self._ray = ray
        self._actor = actor
        self._machine = machine
        self._hello = hello
        self.lost = False
        """Whether a call failed that was to be answered."""
        self._ended: Any = None
        self._late = threading.Timer(ENDING, self.kill)
        self._late.daemon = True
        self._log = ""

    def welcome(self) -> "Future[Welcome]":
        """Have the process look at its devices and hold them. One with other versions says only these: it could not
        read more."""

        def read(answer: tuple[str, Any]) -> Welcome:
            self._log, found = answer
            return Welcome(**found) if isinstance(found, dict) else found

        packages = {name: version for name, version in versions().items() if name in PACKAGES}
        return self._called("welcome", packages, pickle.dumps(self._hello), read=read)

    def begin(self, plan: Any) -> "Future[Ready]":
        return self._called("begin", plan)

    def take(self, files: Any) -> "Future[Ready]":
        return self._called("take", files)

    def exchange(self, orders: Orders) -> "Future[Report]":
        return self._called("exchange", orders)

    def nudge(self) -> None:
        self._called("nudge")

    def close(self) -> None:
        """Let the process end, and do not wait for it; one that does not in `ENDING` seconds is killed."""
        if self._ended is None:
            self.end()
            self._late.start()

    def end(self) -> Any:
        """Ask the process to end; returns the reference of the answer that never comes."""
        self._ended = self._ended or self._actor.end.remote()
        return self._ended

    def kill(self) -> None:
        """End the process now."""
        self._late.cancel()
        if self._ray.is_initialized():  # as above
            with suppress(Exception):  # there is none any more
                self._ray.kill(self._actor)

    def _called(self, method: str, *given: Any, read: Callable[[Any], Any] = lambda answer: answer) -> "Future[Any]":
        """What a call will answer. Who is told of it is told by Ray's own thread, and must not call Ray there."""
        answer: Future[Any] = Future()

        def done(found: "Future[Any]") -> None:
            if error := found.exception():
                answer.set_exception(UnavailableError(self._what_of(error)))
            else:
                answer.set_result(read(found.result()))

        try:
            getattr(self._actor, method).remote(*given).future().add_done_callback(done)
        except Exception as error:  # Ray raises its own, and Python's
            answer.set_exception(UnavailableError(self._what_of(error)))
        return answer

    def _what_of(self, error: BaseException) -> str:
        """Note that the process is lost; what became of it, in one line, and where what it wrote is."""
        self.lost = self.lost or self._ended is None
        error = getattr(error, "cause", None) or error  # what the node itself raised
        said = reason(error).partition("The actor is dead because ")[2] or reason(error).partition(" class_name: ")[0]
        log = f"; what it wrote last is in {self._log} on {self._machine.label}" if self._log else ""
        return f"{type(error).__name__}: {said[:200].rstrip(' .')}{log}"


def _actor() -> type:
    """The class that Ray runs. It is sent as it stands here, and nothing of Interlock is imported by it or sent to it
    before versions were compared: a machine without Interlock, or with another, says so."""

    class InterlockNode:
        def __init__(self, node: str) -> None:
            import threading

            self.made_of = node
            self.node: Any = None
            threading.Thread(target=self._end_with_raylet, daemon=True).start()

        def _end_with_raylet(self) -> None:
            """End when Ray's own process on this machine has: it would otherwise go on for minutes and hold GPUs."""
            import os
            import time

            parent = os.getppid()
            while os.getppid() == parent:
                time.sleep(0.5)
            os._exit(1)

        def welcome(self, versions: dict[str, str], hello: bytes) -> tuple[str, Any]:
            import importlib
            import os
            import pickle
            from importlib import metadata

            log, found = os.readlink("/proc/self/fd/2"), dict[str, str]()  # noqa: PTH115
            for name in versions:
                try:
                    found[name] = metadata.version(name)
                except metadata.PackageNotFoundError:
                    pass
            if found != versions:
                return log, {"versions": found}
            try:
                module, _, name = self.made_of.partition(":")
                self.node = getattr(importlib.import_module(module), name)()
                return log, self.node.welcome(pickle.loads(hello))  # noqa: S301  # from the head
            except Exception as error:  # whatever it is, the head has to know
                return log, {"versions": found, "trouble": f"{type(error).__name__}: {error}"}

        def begin(self, plan: Any) -> Any:
            return self.node.begin(plan)

        def take(self, files: Any) -> Any:
            import ray

            from interlock.engine.compute.cluster.messages import ModelFiles

            return self.node.take(ModelFiles(files.key, {name: map(ray.get, parts) for name, parts in files.parts}))

        def exchange(self, orders: Any) -> Any:
            return self.node.exchange(orders)

        def nudge(self) -> None:
            if self.node:
                self.node.nudge()

        def end(self) -> None:
            import os

            try:
                if self.node:
                    self.node.close()
            finally:
                os._exit(0)

    return InterlockNode


def _label(node: Mapping[str, Any]) -> str:
    address = str(node["NodeManagerAddress"])
    return "this machine" if address.startswith("127.") else f"{node['NodeManagerHostname']} ({address})"
