"""The nodes of a run: found, started, given the plan, and started again where one was lost.

A node is known by its machine: `node-1`, `node-2` in the order in which they were found. A thread for each brings its
process up and then serves it, which is the head's to say; where that ends, the next process is begun on the machine.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from dataclasses import replace
from typing import Any, cast

from interlock.engine.compute.cluster.member import ClusterMember, ClusterTimeouts, NodeGone
from interlock.engine.compute.cluster.messages import (
    Cluster,
    GridPlan,
    Hello,
    ModelFiles,
    NodeLink,
    Ready,
    RemoteFacts,
    Welcome,
)
from interlock.engine.errors import InterlockError, Stopped, UnavailableError, reason
from interlock.engine.record.events import Emit, NodeRefused, Warned
from interlock.engine.record.words import duration, several

KINDS = {"cuda": "GPUs", "sim": "simulated GPUs", "cpu": "no GPU"}  # the first that any node has is computed on
GLANCE = 0.02  # seconds between two looks while nodes are waited for
SAYING = 5.0  # seconds between two lines that say what is waited for


class _Refused(Exception):
    """A machine cannot take part, whatever is tried."""


class _Over(Exception):
    """The run has let go of its nodes."""


class ClusterMembers:
    """All members. What is public is for the thread of the run, but for `answer`."""

    def __init__(
        self,
        cluster: Cluster,
        hello: Hello,
        versions: Mapping[str, str],
        timeouts: ClusterTimeouts = ClusterTimeouts(),  # noqa: B008  # frozen
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.members: dict[str, ClusterMember] = {}
        self.timeouts = timeouts
        self._cluster = cluster
        self._hello = hello
        self._versions = versions
        self._clock = clock
        self._lock, self._packing = threading.Lock(), threading.Lock()
        self._there: set[str] = set()
        self._looked, self._least = -1e9, 0
        self._kind = ""
        self._lowest: tuple[int, int] | None = None
        """What every GPU can do that the run is planned for."""
        self._pack: Callable[[str], ModelFiles] | None = None
        self._packed: dict[str, tuple[Any, int]] = {}
        self._gathered: Future[None] = Future()
        self._planned: Future[Any] = Future()
        self._serve: Future[Callable[[ClusterMember], None]] = Future()
        self._over: Future[None] = Future()

    def gather(
        self,
        stops: Callable[[], bool] = lambda: False,
        least: int = 0,
        wait: float = 0.0,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Start a node on every machine that is there, and wait until each has looked at its devices, and until there
        are `least`, asking for those that lack, later too; what is waited for is said. Nodes keep their devices
        meanwhile: given back, they would be another's before the last has come.

        Raises UnavailableError where none can compute, Stopped where an operator `stops` the run meanwhile, or `least`
        have not come in `wait` seconds.
        """
        self._least, began, said = least, self._clock(), self._clock()
        late = began + self.timeouts.held

        def gathered() -> bool:  # where none can compute yet, one may soon
            nonlocal said
            if self._clock() - said > SAYING:
                said = self._clock()
                if self._joined < least:
                    say(f"{self._standing(least)}; waiting for {duration(began + wait - said)} more")
                elif any(each.waits for each in self.members.values()):
                    say(self._troubles())
            if self._joined < least:
                return self._clock() - began > wait
            each_said = not any(each.starting for each in self.members.values())
            return each_said and bool(self.welcomed or self._clock() > late or not self.hopes())

        if not self._wait(gathered, stops):
            raise Stopped("stopped by the operator while nodes started: nothing was computed, repeat the command")
        if self._joined < least:
            raise Stopped(f"{self._standing(least)}: repeat the command once there are more, or with fewer --min-nodes")
        self._gathered.set_result(None)
        self._check(self.welcomed)
        self._kind = min((each.devices[0].facts.kind for each in self.welcomed), key=list(KINDS).index)

    def begin(
        self, plan: GridPlan, pack: Callable[[str], ModelFiles], stops: Callable[[], bool] = lambda: False
    ) -> None:
        """Give every node the plan, and wait until each is ready; `pack` makes the files of a model that one lacks.

        Raises UnavailableError where none is ready, Stopped where an operator `stops` the run meanwhile.
        """
        self._lowest = min((each.capability for each in self.devices if each.capability), default=None)
        self._pack = pack
        self._planned.set_result(self._cluster.shared(plan))

        def got_ready() -> bool:  # what one gave back while texts were read, another may have for a moment
            return all(each.ready for each in self.welcomed) and bool(self.ready or not self.hopes())

        if not self._wait(got_ready, stops):
            raise Stopped("stopped by the operator while nodes got ready: --resume continues")
        self._check(self.ready)

    def serve(self, serve: Callable[[ClusterMember], None]) -> None:
        """Have each member that is ready, now or later, served in a thread of its own; again where that raises."""
        self._serve.set_result(serve)

    @property
    def devices(self) -> list[RemoteFacts]:
        """The devices of all nodes that are there."""
        return [device for member in self.welcomed for device in member.devices]

    @property
    def environment(self) -> dict[str, str]:
        """What the nodes say of their GPUs, for the summary."""
        told = ((each.name, key, value) for each in self.welcomed for key, value in each.environment.items())
        return {f"gpu {name}/{key.removeprefix('gpu ')}": value for name, key, value in told if key.startswith("gpu ")}

    @property
    def welcomed(self) -> list[ClusterMember]:
        """The members that have looked at their devices, and have what the run computes on."""
        there = (each for each in self.members.values() if each.welcomed)
        return [each for each in there if self._kind in ("", each.devices[0].facts.kind)]

    @property
    def ready(self) -> list[ClusterMember]:
        """The members that can be handed work."""
        return [each for each in self.members.values() if each.ready]

    def hopes(self, at_work: Collection[str] = ()) -> bool:
        """Whether a node may still come of the machines that are known, beside those `at_work`."""
        return any(not each.out and each.name not in at_work for each in self.members.values())

    def look(self, emit: Emit | None = None) -> None:
        """Begin with machines that are new, from time to time; tell once of each member that is out."""
        if time.monotonic() - self._looked >= self.timeouts.look:
            began, machines = time.monotonic(), self._cluster.machines()
            self._there, self._looked = {machine.id for machine in machines}, began
            if self._least and (self._planned.done() or not self._gathered.done()):  # not while texts are read
                self._cluster.want(max(0, self._least - len(machines)))
            known = {each.machine.id for each in self.members.values()}
            for machine in (each for each in machines if each.id not in known):
                member = ClusterMember(f"node-{len(self.members) + 1}", machine)
                self.members[member.name] = member
                threading.Thread(target=self._keep, args=(member,), name=member.name, daemon=True).start()
        for member in self.members.values():
            if emit and member.out and not member.told:
                member.told = True
                emit(NodeRefused(node=member.name, reason=member.out))
            if emit and member.waits and not member.warned:
                member.warned = True
                emit(Warned(message=f"{member.name} waits: {member.waits}"))

    def answer(self, asked: "Future[Any]", seconds: float = 0.0) -> Any:
        """Wait so long for what a node answers, or as long as one that computes may be silent. Raises NodeGone where it
        does not."""
        seconds = seconds or self.timeouts.silent
        wait_for([asked, self._over], seconds, FIRST_COMPLETED)
        if self._over.done():
            raise _Over
        if not asked.done():
            raise NodeGone(f"did not answer for {seconds:.0f} s")
        try:
            return asked.result()
        except Exception as error:
            raise NodeGone(reason(error)) from None

    def close(self) -> None:
        """End every node, and the cluster; once it is closed, nothing is left to end."""
        with self._lock:
            if self._over.done():
                return
            self._over.set_result(None)
        for member in self.members.values():
            self._end(member)
        self._cluster.close()

    def _wait(self, until: Callable[[], bool], stops: Callable[[], bool]) -> bool:
        """Whether it came to that before the operator stopped the run."""
        self.look()
        while not (there := until()) and not stops():
            time.sleep(GLANCE)
            self.look()
        return there

    def _check(self, those: Sequence[ClusterMember]) -> None:
        """Raise UnavailableError where there are none, with what each says; ClusterEnded where that is why."""
        if not those:
            self._cluster.machines()
            troubles = self._troubles() or f"it has {self._cluster.about()}"
            raise UnavailableError(f"no node of the cluster can compute: {troubles}")

    @property
    def _joined(self) -> int:
        return sum(each.machine.id in self._there for each in self.welcomed)

    def _standing(self, least: int) -> str:
        """How many of how many nodes are there, of which machines, and what keeps the others away."""
        away = f"; {troubles}" if (troubles := self._troubles()) else ""
        return f"{self._joined} of {several(least, 'node')} have joined, of {self._cluster.about()}{away}"

    def _troubles(self) -> str:
        """What keeps machines from being nodes, each by its name."""
        whys = ((each.name, each.waits or each.out or each.trouble) for each in self.members.values())
        return "; ".join(f"{name}: {why}" for name, why in whys if why)

    # In the thread of a member.

    def _keep(self, member: ClusterMember) -> None:
        """Bring a node up and have it served, again and again, until it is out or the run is over."""
        while not member.out:
            try:
                if member.failures:
                    self._pause(member)
                self._bring_up(member)
                self._result(self._serve)(member)
                return  # it has ended, and stays until the run lets go of it
            except _Over:
                return
            except _Refused as refused:
                member.out = str(refused)
            except Exception as error:  # NodeGone; or what carries messages could not start it
                member.trouble = str(error) if isinstance(error, NodeGone) else reason(error)
                member.failures += 1
                if member.failures > self.timeouts.tries:
                    member.out = f"lost or refused {member.failures} times, at last: {member.trouble}"
            member.starting, member.welcomed, member.ready = False, False, False
            self._end(member)

    def _pause(self, member: ClusterMember) -> None:
        """Wait before a machine is tried again, and until it is seen there."""
        lost = time.monotonic()
        wait_for([self._over], min(60.0, self.timeouts.again * 2.0 ** (member.failures - 1)))
        while not self._over.done() and not (self._looked > lost and member.machine.id in self._there):
            wait_for([self._over], self.timeouts.look / 4)

    def _bring_up(self, member: ClusterMember) -> None:
        link = self._welcome(member)
        self._result(self._gathered)
        if not wait_for([self._planned, self._over], self.timeouts.idle, FIRST_COMPLETED).done:
            self._end(member)
            self._result(self._planned)
            link = self._welcome(member)
        plan, began = self._result(self._planned), time.monotonic()
        self._compare_devices(member)
        ready: Ready = self.answer(link.begin(plan), self.timeouts.prepare)
        while ready.lacking and not ready.trouble:
            sent, size = self._packed_model(ready.lacking[0])
            member.sent_bytes += size
            ready = self.answer(link.take(sent), self.timeouts.prepare)
        if ready.trouble:
            raise _Refused(ready.trouble)
        member.seconds += time.monotonic() - began
        member.refused, member.ready = dict(ready.refused), True

    def _welcome(self, member: ClusterMember) -> NodeLink:
        """Start a member's process, and hear of its devices."""
        began, hello = time.monotonic(), replace(self._hello, node=member.name, granted=member.granted)
        with self._lock:
            if self._over.done():
                raise _Over
            link = member.link = self._cluster.start(member.machine, hello)
        member.starting, member.sent_bytes, member.refused = True, 0, {}
        welcome = self._heard(member, link.welcome())
        if different := welcome.unlike(self._versions):
            raise _Refused(f"has {different}: install the same versions on every node, of the same commit")
        if welcome.trouble:
            raise NodeGone(welcome.trouble)
        member.devices, member.environment = welcome.devices, welcome.environment
        member.welcomed, member.starting, member.seconds = True, False, time.monotonic() - began
        return link

    def _heard(self, member: ClusterMember, asked: "Future[Welcome]") -> Welcome:
        """What a process says first; as long as it does not, who has what it waits for is looked for."""
        late = time.monotonic() + self.timeouts.start
        either: list[Future[Any]] = [asked, self._over]
        while not wait_for(either, min(SAYING, self.timeouts.start), FIRST_COMPLETED).done:
            if time.monotonic() > late:
                why = f": {member.waits}" if member.waits else ""
                raise NodeGone(f"did not answer for {self.timeouts.start:.0f} s{why}")
            member.waits = self._cluster.held(member.machine)
        member.waits = ""
        return cast(Welcome, self.answer(asked))

    def _end(self, member: ClusterMember) -> None:
        with self._lock:
            if member.link:
                member.link.close()
            member.link = None

    def _result(self, of: "Future[Any]") -> Any:
        """What another thread has yet to say."""
        wait_for([of, self._over], return_when=FIRST_COMPLETED)
        if self._over.done():
            raise _Over
        return of.result()

    def _compare_devices(self, member: ClusterMember) -> None:
        """Refuse a node of another kind than the run computes on, or with less than it is planned for."""
        if (kind := member.devices[0].facts.kind) != self._kind:
            raise _Refused(
                f"has {KINDS[kind]}, others have {KINDS[self._kind]}: vectors would be computed in another "
                "precision; name the same --devices for all"
            )
        if weak := [each for each in member.devices if self._lowest and (each.capability or ()) < self._lowest]:
            has, planned = (".".join(map(str, each or ())) for each in (weak[0].capability, self._lowest))
            raise _Refused(
                f"has a {weak[0].facts.label} (compute capability {has}), and the run is planned for {planned} and up: "
                "--resume with it from the start"
            )

    def _packed_model(self, key: str) -> tuple[Any, int]:
        """A model ready to be sent, made once for all that lack it, and its bytes."""
        with self._packing:
            try:
                if key not in self._packed and self._pack:
                    files = self._pack(key)
                    size = sum(part.nbytes for parts in files.files.values() for part in parts)
                    self._packed[key] = self._cluster.shared(files), size
            except InterlockError as error:
                raise _Refused(f"lacks model {key}, which cannot be sent: {error}") from None
            return self._packed[key]
