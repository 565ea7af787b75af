"""The head's way to a Ray cluster: a process of its own, the driver (`ray_cluster`), speaks with Ray for it.

Ray ends the process that has connected to it, without a word, when its own on that machine (its raylet, or an agent of
that) has ended. So a run is never that process: it finds the driver gone, and says what happened. Nothing of Ray is
loaded here.
"""

import importlib.util
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from interlock.engine.compute.cluster.messages import (
    ClusterEnded,
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
from interlock.engine.compute.cluster.wire import Wire, packed, unpacked
from interlock.engine.errors import UnavailableError, UsageError
from interlock.engine.record.words import human_bytes, several

PART = 64 << 20
"""Bytes of a model's file that are one object."""
AWAY = 40.0
"""Seconds after which Ray's own server (GCS) is given up; a call to it would wait for ever."""
LOOK = 5.0
"""Seconds for it to say who holds what."""
CLOSING = 60.0
"""Seconds for the driver to end nodes, and the Ray of `local:N`, in order."""
NODE = "interlock.engine.compute.cluster.node:ClusterNode"
DRIVER = "interlock.engine.compute.cluster.ray_cluster"
_NO_RAY = "--cluster needs Ray: pip install 'interlock[cluster]'"


def connect(
    address: str, devices: str = "auto", takes: Mapping[str, float] | None = None, node: str = NODE
) -> "RayCluster":
    """Connect to the Ray cluster at an address as `--cluster` takes it; `devices` is what nodes are to compute on,
    `takes` what of a machine is theirs, by Ray's names (all GPUs), `node` the class that their processes run. Of
    `auto`, it is the one that this process uses, where it does.

    Raises UsageError for an address that cannot be used, UnavailableError where there is no Ray.
    """
    if address.startswith("local:") and devices.startswith("cuda"):
        raise UsageError(
            "--cluster local:N is for trials, without GPUs: use --devices cpu or sim:2xT4 (to compute on this "
            "machine's GPUs, drop --cluster)"
        )
    if address.startswith("ray://") or (address == "auto" and os.environ.get("RAY_ADDRESS", "").startswith("ray://")):
        raise UsageError(
            "--cluster takes no ray:// address, where every vector would go through a proxy: run interlock on a "
            "machine of the cluster, with --cluster auto"
        )
    if importlib.util.find_spec("ray") is None:
        raise UnavailableError(_NO_RAY)
    used: Any = sys.modules.get("ray")
    if address == "auto" and used and used.is_initialized():
        address = used.get_runtime_context().gcs_address
    return RayCluster(address, devices, takes or {}, node)


class RayCluster:
    """The machines of a Ray cluster, as the driver sees them."""

    def __init__(self, address: str, devices: str, takes: Mapping[str, float], node: str) -> None:
        self.node, self._takes = node, takes
        self._plain = devices == "cpu" or devices.startswith("sim:")
        self._strict = devices.startswith("cuda")
        self._local = address.startswith("local:")
        self._has: dict[str, Mapping[str, float]] = {}
        self._links: list[RayLink] = []
        self._lock, self._numbers = threading.Lock(), itertools.count()
        self._asked: dict[int, tuple[Future[Any], Callable[[Any], Any]]] = {}
        self._ended = False
        ours, theirs = socket.socketpair()
        with theirs, TemporaryFile() as said:
            self._driver = subprocess.Popen(  # noqa: S603  # a session of its own: Ctrl-C is for the run
                [sys.executable, "-P", "-m", DRIVER, str(theirs.fileno()), address],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip
            theirs.close()
            self._wire = Wire(ours)
            try:
                trouble, self.address, self._here, table = self._wire.receive()
            except (EOFError, OSError):
                said.seek(0)
                told = said.read()[-400:].decode(errors="replace").strip()
                trouble = f"Ray's driver does not start ({told}): install interlock[cluster] anew"
            if trouble:
                self._end()
                raise UnavailableError(trouble)
        self._seen = time.monotonic(), table
        threading.Thread(target=self._listen, name="driver", daemon=True).start()

    def machines(self) -> Sequence[NodeMachine]:
        """List the machines that are there; the head's own comes first. Raises ClusterEnded where Ray is no more, or
        does not answer."""
        when, table = self._seen
        then = "--resume continues (repeat the command where nothing was computed yet)"
        if self._ended:
            again = "" if self._local else "start it again there (ray start), then "
            raise ClusterEnded(f"Ray has ended on this machine (its raylet, or an agent of that): {again}{then}")
        if time.monotonic() - when > AWAY:
            again = "" if self._local else "start it again on its first machine (ray start --head), then "
            raise ClusterEnded(f"Ray has not answered for {AWAY:.0f} s: {again}{then}")
        there = usable(table, self._here, self._takes, plain=self._plain, strict=self._strict)
        self._has = {each["NodeID"]: each["Resources"] for each in there}
        return [NodeMachine(each["NodeID"], _label(each)) for each in there]

    def start(self, machine: NodeMachine, hello: Hello) -> NodeLink:
        """Start a node's process on a machine, with all GPUs that Ray knows there, or what it is to take."""
        link = RayLink(self, machine, hello, self._taken(machine))
        self._links.append(link)
        return link

    def _taken(self, machine: NodeMachine) -> Mapping[str, float]:
        """What a node takes of a machine, by Ray's names."""
        return {**({} if self._plain else {"GPU": self._has.get(machine.id, {}).get("GPU", 0.0)}), **self._takes}

    def about(self) -> str:
        """Say how many machines are there, how many of them have GPUs, and how many what a node is to take."""
        there = [each["Resources"].get("GPU", 0.0) for each in self._seen[1] if each["Alive"]]
        having = f", {len(self._has)} with {_amounts(self._takes)}" if self._takes else ""
        return f"{several(len(there), 'machine')}, {sum(map(bool, there))} with GPUs ({sum(there):g}){having}"

    def held(self, machine: NodeMachine) -> str:
        """Say who has what of a machine that its node waits for, as far as Ray knows."""
        taken, has = self._taken(machine), self._has.get(machine.id, {})
        with suppress(UnavailableError, TimeoutError):
            free, whose = self.ask("held", machine.id, taken).result(LOOK)
            if free and has:  # the machine may have gone
                others = {each: _amount(each, has[each] - free[each]).removesuffix(f" {each}") for each in free}
                held = ", ".join(f"{of} of {_amount(each, has[each])}" for each, of in others.items())
                waits = _amounts({each: taken[each] for each in free})
                return f"others hold {held} of {machine.label}{whose}; a node waits for {waits}"
        return ""

    def want(self, more: int) -> None:
        """Have Ray's autoscaler, where there is one, start so many machines with GPUs."""
        bundle = {**({} if self._plain else {"GPU": 1.0}), **self._takes}
        if bundle and not self._local:
            self.ask("want", more, bundle)

    def shared(self, value: GridPlan | ModelFiles) -> Any:
        """Put a value into the object store; nodes on one machine read one copy. A model is put in parts, so that no
        node needs room for the whole of it there.

        Raises UnavailableError where neither memory nor disk has room, ClusterEnded where Ray is no more.
        """
        if isinstance(value, GridPlan):
            return self._put(packed(value))
        parts = (
            (name, [data[start : start + PART] for data in files for start in range(0, len(data), PART)])
            for name, files in value.files.items()
        )
        return SentFiles(value.key, [(name, [self._put(np.asarray(part)) for part in of]) for name, of in parts])

    def close(self) -> None:
        """End all nodes, and Ray itself where it was started for this run."""
        with suppress(UnavailableError, TimeoutError):
            self.ask("close", any(link.lost for link in self._links)).result(CLOSING)
        self._links.clear()
        self._end()

    def ask(self, what: str, *given: Any, read: Callable[[Any], Any] = lambda answer: answer) -> "Future[Any]":
        """Ask the driver; the answer is what `read` makes of its. It fails with UnavailableError where Ray's did."""
        answer: Future[Any] = Future()
        with self._lock:
            if not self._ended:
                number = next(self._numbers)
                self._asked[number] = answer, read
        if self._ended:
            answer.set_exception(UnavailableError("Ray has ended on this machine: --resume continues"))
            return answer
        with suppress(OSError):  # who listens finds out too
            self._wire.send((number, what, given))
        return answer

    def _put(self, value: Any) -> int:
        try:
            return int(self.ask("put", value).result())
        except UnavailableError:
            self.machines()
            raise

    def _listen(self) -> None:
        """Take what the driver says until it has ended."""
        with suppress(EOFError, OSError):
            while True:
                number, failed, value = self._wire.receive()
                if number is None:
                    self._seen = time.monotonic(), value
                    continue
                answer, read = self._asked.pop(number)
                try:
                    answer.set_exception(UnavailableError(value)) if failed else answer.set_result(read(value))
                except Exception as error:  # what came cannot be read: whoever asked has to know
                    answer.set_exception(error)
        with self._lock:
            self._ended = True
        for answer, _ in self._asked.values():
            answer.set_exception(UnavailableError("Ray has ended on this machine: --resume continues"))
        self._asked.clear()

    def _end(self) -> None:
        self._wire.close()
        with suppress(subprocess.TimeoutExpired):
            self._driver.wait(CLOSING)
        self._driver.kill()
        self._driver.wait()


@dataclass(frozen=True)
class SentFiles:
    """The files of a model in the object store, by their path in its snapshot: the number of each part, which a node
    fetches when it writes it."""

    key: str
    parts: Sequence[tuple[str, Sequence[int]]]


class RayLink:
    """A node's process that Ray started; what fails says where its last words are."""

    def __init__(self, cluster: RayCluster, machine: NodeMachine, hello: Hello, taken: Mapping[str, float]) -> None:
        self.lost = False
        """Whether a call failed that was to be answered."""
        self._cluster, self._machine, self._hello, self._taken = cluster, machine, hello, taken
        self._log = ""
        self._closed = False
        self._actor = f"{hello.node} {id(self)}"

    def welcome(self) -> "Future[Welcome]":
        """Have the process look at its devices and hold them. One with other versions says only these: it could not
        read more."""

        def read(answer: tuple[str, Any]) -> Welcome:
            self._log, found = answer
            return Welcome(**found) if isinstance(found, dict) else unpacked(found)

        packages = {name: version for name, version in versions().items() if name in PACKAGES}
        about = self._machine.id, self._taken, self._cluster.node, packages, packed(self._hello)[0]
        return self._called("welcome", *about, read=read)

    def begin(self, plan: Any) -> "Future[Ready]":
        return self._called("begin", plan)

    def take(self, files: Any) -> "Future[Ready]":
        return self._called("take", files.key, files.parts)

    def exchange(self, orders: Orders) -> "Future[Report]":
        return self._called("exchange", packed(orders))

    def nudge(self) -> None:
        self._called("nudge", read=lambda answer: answer)

    def close(self) -> None:
        """Let the process end, and do not wait for it; one that does not in time is killed."""
        if not self._closed:
            self._closed = True
            self._called("end", read=lambda answer: answer)

    def _called(self, method: str, *given: Any, read: Callable[[Any], Any] = unpacked) -> "Future[Any]":
        """What a call will answer; where it fails, with where what the process wrote is."""
        asked, answer = self._cluster.ask(method, self._actor, *given, read=read), Future[Any]()

        def done(found: "Future[Any]") -> None:
            if error := found.exception():
                self.lost = self.lost or not self._closed
                log = f"; what it wrote last is in {self._log} on {self._machine.label}" if self._log else ""
                answer.set_exception(UnavailableError(f"{error}{log}"))
            else:
                answer.set_result(found.result())

        asked.add_done_callback(done)
        return answer


def usable(
    table: Sequence[Mapping[str, Any]],
    here: str,
    takes: Mapping[str, float],
    *,
    plain: bool,
    strict: bool = False,
) -> list[Mapping[str, Any]]:
    """List the machines of Ray's table that are there and have what a node takes: of those with GPUs where there are
    any or nodes are `strict`, and not `plain`, else of those that Ray gives CPUs. The usual head on Kubernetes, with
    neither, is none where others have some. The one that is `here` comes first."""
    there = [each for each in table if each["Alive"] and (not strict or each["Resources"].get("GPU"))]
    there = [each for each in there if all(each["Resources"].get(name, 0) >= takes[name] for name in takes)]
    for resource in ([] if plain else ["GPU"]) + ["CPU"]:
        if having := [each for each in there if each["Resources"].get(resource)]:
            there = having
            break
    return sorted(there, key=lambda each: (each["NodeID"] != here, each["NodeManagerAddress"], each["NodeID"]))


def _amounts(of: Mapping[str, float]) -> str:
    return ", ".join(_amount(name, each) for name, each in of.items())


def _amount(name: str, each: float) -> str:
    """Write an amount of a resource by Ray's name: 2 GPU, 32 GiB memory."""
    return f"{human_bytes(each) if name == 'memory' else f'{each:g}'} {name}"


def _label(node: Mapping[str, Any]) -> str:
    address = str(node["NodeManagerAddress"])
    return "this machine" if address.startswith("127.") else f"{node['NodeManagerHostname']} ({address})"
