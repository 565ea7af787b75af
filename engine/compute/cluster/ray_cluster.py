"""The driver: the process that has connected to Ray, and asks of it what the head says by a socket (`ray_head`).

An actor on each machine is its node, and the object store holds what is large; of Ray only these and futures are used.
Nothing is run again by it: an actor that died stays dead, and each call that was under way fails. What the head and its
nodes tell each other passes through as bytes, so that nothing heavy is loaded here.
"""

import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from interlock.engine.compute.cluster.ray_session import open_ray
from interlock.engine.compute.cluster.wire import Packed, Wire
from interlock.engine.errors import UnavailableError, reason

ENDING = 5.0
"""Seconds for a node to let go of its devices before its process is killed."""
LOOKING = 0.5
"""Seconds between two looks at the machines."""


class RayDriver:
    """What the head may ask; each answer carries the number of its question. `node` says which actor."""

    def __init__(self, ray: Any, end: Callable[[bool], None], wire: Wire) -> None:
        self._ray, self._end, self._wire = ray, end, wire
        self._here = ray.get_runtime_context().get_node_id()
        self._kind = ray.remote(_actor())
        self._actors: dict[str, Any] = {}
        self._kept: list[Any] = []
        self._wanted: Any = None
        self._over = threading.Event()

    def serve(self) -> None:
        """Do what the head says until it has closed, or is no more."""
        self._wire.send(("", self._ray.get_runtime_context().gcs_address, self._here, self._ray.nodes()))
        threading.Thread(target=self._look, name="machines", daemon=True).start()
        with suppress(EOFError, OSError):
            while not self._over.is_set():
                number, what, given = self._wire.receive()
                try:
                    getattr(self, what)(number, *given)
                except Exception as error:  # Ray raises its own, and Python's
                    self._wire.send((number, True, _what_of(error)))
        if not self._over.is_set():
            self._close(keep=False)

    def welcome(
        self,
        number: int,
        node: str,
        machine: str,
        taken: Mapping[str, float],
        made_of: str,
        packages: Mapping[str, str],
        hello: bytes,
    ) -> None:
        """Start a node's process on a machine, of which it takes so much, and have it look at its devices."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = self._kind.options(
            num_cpus=taken.get("CPU", 0),
            num_gpus=taken.get("GPU", 0),
            memory=taken.get("memory"),
            resources={name: each for name, each in taken.items() if name not in ("CPU", "GPU", "memory")},
            max_concurrency=4,  # an exchange that waits, a nudge beside it, the end of both
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(machine, soft=False),
        )
        self._actors[node] = options.remote(made_of)
        self._ask(number, node, "welcome", packages, hello)

    def begin(self, number: int, node: str, plan: int) -> None:
        """Give it the plan that was put before."""
        self._ask(number, node, "begin", self._kept[plan])

    def take(self, number: int, node: str, key: str, parts: Sequence[tuple[str, Sequence[int]]]) -> None:
        """Give it a model whose parts were put before."""
        self._ask(number, node, "take", key, {name: [self._kept[each] for each in of] for name, of in parts})

    def exchange(self, number: int, node: str, orders: Packed) -> None:
        """Tell it what is new."""
        self._ask(number, node, "exchange", orders)

    def nudge(self, number: int, node: str) -> None:
        """Have an exchange that waits answer now."""
        self._ask(number, node, "nudge")

    def put(self, number: int, value: Any) -> None:
        """Put a value into the object store; its number is the answer."""
        from ray.exceptions import ObjectStoreFullError, OutOfDiskError

        try:
            self._kept.append(self._ray.put(value))
        except (ObjectStoreFullError, OutOfDiskError) as error:
            full = f"Ray's object store is full ({reason(error):.200}): give `ray start` more (--object-store-memory), "
            self._wire.send((number, True, f"{full}or a disk with room (--object-spilling-directory)"))
            return
        self._wire.send((number, False, len(self._kept) - 1))

    def held(self, number: int, machine: str, taken: Mapping[str, float]) -> None:
        """Say how much is free on a machine of what a node is to take there and cannot, and who of others is there, as
        far as actors do."""
        from ray._private.state import actors, available_resources_per_node, jobs

        own, ours, whose = self._ray.get_runtime_context().get_job_id(), False, dict[str, None]()
        entry = {job["JobID"]: job.get("Entrypoint") or "a driver" for job in jobs()}
        for actor in actors(actor_state_name="ALIVE").values():
            if actor["Address"]["NodeID"] != machine:
                continue
            if actor["JobID"] == own:
                ours = True  # it has all that it is to take
            else:
                name, job = actor["ActorClassName"].rpartition(".")[2], actor["JobID"]
                whose[f"{name} of job {job}, {entry.get(job, ''):.80}"] = None
        there = available_resources_per_node().get(machine, {})
        free = {name: round(there.get(name, 0.0), 4) for name, each in taken.items() if there.get(name, 0.0) < each}
        names = f" (there is {'; '.join([*whose][:3])})" if whose else ""
        self._wire.send((number, False, ({} if ours else free, names)))

    def want(self, number: int, more: int, bundle: Mapping[str, float]) -> None:
        """Ask for so many machines with what a node takes by a placement group, which autoscalers count while it waits.
        It goes with this process, however that ends, and once it was placed: it is to hold nothing."""
        from ray.util import placement_group, placement_group_table, remove_placement_group

        if (now := self._wanted) and (now.bundle_count != more or placement_group_table(now)["state"] == "CREATED"):
            remove_placement_group(now)
            self._wanted = None
        elif more and not now:  # no sooner: a node that waits for what was let go of comes first
            self._wanted = placement_group([dict(bundle)] * more, strategy="STRICT_SPREAD")
        self._wire.send((number, False, None))

    def end(self, number: int, node: str) -> None:
        """Let a node's process end, and do not wait for it."""
        if (actor := self._actors.pop(node, None)) is not None:
            actor.end.remote()
            late = threading.Timer(ENDING, self._kill, [actor])
            late.daemon = True
            late.start()
        self._wire.send((number, False, None))

    def close(self, number: int, keep: bool) -> None:
        """End all nodes, and Ray where it was started for this run; its logs are kept where that is to be."""
        self._over.set()
        self._close(keep=keep)
        self._wire.send((number, False, None))

    def _close(self, *, keep: bool) -> None:
        self._over.set()
        actors = [*self._actors.values()]
        with suppress(Exception):  # there may be no Ray left
            if ended := [actor.end.remote() for actor in actors]:
                self._ray.wait(ended, num_returns=len(ended), timeout=ENDING)
        for actor in actors:
            self._kill(actor)
        self._end(keep)

    def _kill(self, actor: Any) -> None:
        with suppress(Exception):  # it has ended
            self._ray.kill(actor)

    def _ask(self, number: int, node: str, method: str, *given: Any) -> None:
        """Have an actor called; what it answers is sent by Ray's own thread, which must not call Ray."""

        def done(found: "Future[Any]") -> None:
            error = found.exception()
            with suppress(OSError):  # the head is no more
                self._wire.send((number, True, _what_of(error)) if error else (number, False, found.result()))

        getattr(self._actors[node], method).remote(*given).future().add_done_callback(done)

    def _look(self) -> None:
        """Tell which machines there are: Ray's answer takes a millisecond, or for ever. Where this one is not among
        them any more, its raylet has died: nothing can be put or fetched, and Ray may never say so."""
        while not self._over.wait(LOOKING):
            with suppress(Exception):
                table = self._ray.nodes()
                if not any(each["Alive"] for each in table if each["NodeID"] == self._here):
                    os._exit(1)
                self._wire.send((None, False, table))


def _what_of(error: BaseException) -> str:
    """What became of a call, in one line."""
    error = getattr(error, "cause", None) or error  # what the node itself raised
    said = reason(error).partition("The actor is dead because ")[2] or reason(error).partition(" class_name: ")[0]
    return f"{type(error).__name__}: {said[:200].rstrip(' .')}"


def _actor() -> type:
    """The class that Ray runs. It is sent as it stands here, and nothing of Interlock is imported by it or sent to it
    before versions were compared: a machine without Interlock, or with another, says so."""

    class InterlockNode:
        def __init__(self, node: str) -> None:
            import threading

            self.made_of = node
            self.node: Any = None
            self.wire: Any = None
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
            import contextlib
            import importlib.metadata
            import os
            import pickle

            log, found = os.readlink("/proc/self/fd/2"), dict[str, str]()  # noqa: PTH115
            for name in versions:
                with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                    found[name] = importlib.metadata.version(name)
            if found != versions:
                return log, {"versions": found}
            try:
                module, _, name = self.made_of.partition(":")
                self.node = getattr(importlib.import_module(module), name)()
                self.wire = importlib.import_module("interlock.engine.compute.cluster.wire")
                return log, self.wire.packed(self.node.welcome(pickle.loads(hello)))  # noqa: S301  # from the head
            except Exception as error:  # whatever it is, the head has to know
                return log, {"versions": found, "trouble": f"{type(error).__name__}: {error}"}

        def begin(self, plan: Any) -> Any:
            return self.wire.packed(self.node.begin(self.wire.unpacked(plan)))

        def take(self, key: str, parts: Any) -> Any:
            import ray

            from interlock.engine.compute.cluster.messages import ModelFiles

            files = ModelFiles(key, {name: map(ray.get, of) for name, of in parts.items()})
            return self.wire.packed(self.node.take(files))

        def exchange(self, orders: Any) -> Any:
            return self.wire.packed(self.node.exchange(self.wire.unpacked(orders)))

        def nudge(self) -> None:
            if self.node:
                self.node.nudge()

        def end(self) -> None:
            import os

            if self.node:
                self.node.close()
            os._exit(0)

    return InterlockNode


def main() -> None:
    """Serve the head at the other end of a socket; given are the number of its file, and the cluster's address."""
    wire = Wire(socket.socket(fileno=int(sys.argv[1])))
    try:
        ray, end = open_ray(sys.argv[2])
    except UnavailableError as error:
        wire.send((str(error), "", "", []))
        return
    RayDriver(ray, end, wire).serve()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
