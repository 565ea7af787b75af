"""The nodes of a run: found, started, given the plan, and started again where one was lost.

A node is known by its machine: `node-1`, `node-2` in the order in which they were found. Each process of it has a link
of its own, and what comes over an older link is not listened to.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field, replace
from typing import Any

from interlock.engine.compute.cluster.links import Cluster, NodeLink, NodeMachine
from interlock.engine.compute.cluster.messages import GridPlan, Hello, ModelFiles, Ready, RemoteFacts, Welcome
from interlock.engine.errors import InterlockError, Stopped, UnavailableError, reason

KINDS = {"cuda": "GPUs", "sim": "simulated GPUs", "cpu": "no GPU"}
"""Of devices, in words; the first that any node has is what the run computes on."""


@dataclass(frozen=True)
class ClusterTimeouts:
    """How long the head waits for what, in seconds."""

    look: float = 2.0
    """Between two looks at which machines there are."""
    start: float = 180.0
    """For a node's process to start and to look at its devices: torch is imported meanwhile."""
    prepare: float = 1800.0
    """For it to be ready: weights are hashed where they never were, and sent where they are lacking."""
    again: float = 2.0
    """Before a machine whose node was lost or busy is tried again: twice as long each time."""
    tries: int = 5
    """Times that a machine is tried again in a row."""
    poll: float = 1.0
    """That a node without news waits before it answers."""
    silent: float = 60.0
    """For an answer of a node that computes."""
    held: float = 30.0
    """For devices that are still held, perhaps by a process whose run was killed."""
    empty: float = 60.0
    """For a node to come, where none is left."""
    lead: float = 1.0
    """What has to be gained for a batch to be given to another node too."""


@dataclass(eq=False)
class ClusterMember:
    """A machine as a node of the run: its process, and how far that has come."""

    name: str
    machine: NodeMachine
    link: NodeLink | None = None
    asked: "Future[Any] | None" = None
    since: float = 0.0
    """When it was asked, or lost."""
    devices: Sequence[RemoteFacts] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    welcomed: bool = False
    ready: bool = False
    out: str = ""
    """Why it cannot take part, whatever is tried."""
    failures: int = 0
    trouble: str = ""
    refused: dict[int, str] = field(default_factory=dict)
    granted: int = 0
    sent_bytes: int = 0
    seconds: float = 0.0
    told: bool = False
    """Whether `look` has told of it as it stands."""
    _began: float = 0.0

    @property
    def kind(self) -> str:
        """Of its devices."""
        return self.devices[0].facts.kind

    @property
    def gone(self) -> bool:
        return self.link is None


@dataclass(frozen=True)
class Changes:
    """What a look at the members has found: members that are ready now, and those that are out for good."""

    joined: Sequence[ClusterMember] = ()
    refused: Sequence[ClusterMember] = ()


class ClusterMembers:
    """All members; used from one thread."""

    def __init__(
        self,
        cluster: Cluster,
        hello: Hello,
        versions: Mapping[str, str],
        timeouts: ClusterTimeouts = ClusterTimeouts(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.members: dict[str, ClusterMember] = {}
        self._cluster = cluster
        self._hello = hello
        self._versions = versions
        self.timeouts = timeouts
        self._clock = clock
        self._plan: Any = None
        self._pack: Callable[[str], ModelFiles] | None = None
        self._packed: dict[str, tuple[Any, int]] = {}
        self._kind = ""
        self._lowest: tuple[int, int] | None = None
        """What every GPU can do that the run is planned for."""
        self._looked = -1e9
        self._closed = False

    def gather(self, stops: Callable[[], bool] = lambda: False) -> None:
        """Start a node on every machine that is there, and wait until each has looked at its devices.

        Raises UnavailableError where none can compute, Stopped where an operator `stops` the run meanwhile.
        """
        began = self._clock()
        self._look()
        while not self._gathered(began):
            self._wait()
            if stops():
                raise Stopped("stopped by the operator while nodes started: nothing was computed, repeat the command")
        if not self.welcomed:
            raise UnavailableError(
                "no node of the cluster can compute: " + ("; ".join(self._troubles()) or "it has no machine")
            )

        self._kind = min((each.kind for each in self.welcomed), key=list(KINDS).index)
        for member in self.welcomed:
            self._compare(member)

    def begin(
        self, plan: GridPlan, pack: Callable[[str], ModelFiles], stops: Callable[[], bool] = lambda: False
    ) -> None:
        """Give every node the plan, and wait until each is ready; `pack` makes the files of a model that one lacks.

        Raises UnavailableError where none is ready, Stopped where an operator `stops` the run meanwhile.
        """
        self._lowest = min((each.capability for each in self.devices if each.capability), default=None)
        self._plan, self._pack = self._cluster.shared(plan), pack
        while any(not each.ready for each in self.welcomed):
            self._wait()
            if stops():
                raise Stopped("stopped by the operator while nodes got ready: --resume continues")
        if not self.ready:
            raise UnavailableError(f"no node of the cluster can compute: {'; '.join(self._troubles())}")

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
        """The members that are there and have looked at their devices."""
        return [each for each in self.members.values() if each.welcomed and each.link]

    @property
    def ready(self) -> list[ClusterMember]:
        """The members that can be handed work."""
        return [each for each in self.members.values() if each.ready and each.link]

    def look(self) -> Changes:
        """Go on with what is under way, and say what has changed since the last look."""
        self._advance()
        joined = [each for each in self.ready if not each.told]
        refused = [each for each in self.members.values() if each.out and not each.told]
        for member in (*joined, *refused):
            member.told = True
        return Changes(joined, refused)

    def lose(self, member: ClusterMember, why: str) -> None:
        """Listen to this process of a member no more; its machine is tried again later."""
        if member.link:
            member.link.close()
        member.link, member.asked, member.since, member.trouble = None, None, self._clock(), why
        member.welcomed = member.ready = member.told = False
        member.failures += 1
        if member.failures > self.timeouts.tries:
            member.out = f"lost or refused {member.failures} times, at last: {why}"

    def close(self) -> None:
        """End every node, and the cluster; once it is closed, nothing is left to end."""
        if self._closed:
            return
        self._closed = True
        for member in self.members.values():
            if member.link:
                member.link.close()
                member.link = None
        self._cluster.close()

    @property
    def hopes(self) -> bool:
        """Whether a node may still come of the machines that are known."""
        return any(not each.out and not each.ready for each in self.members.values())

    def _gathered(self, began: float) -> bool:
        """Whether every machine has said what it has; where none can compute yet, one may soon."""
        if any(each.link and not each.welcomed for each in self.members.values()):
            return False
        late = self._clock() - began > self.timeouts.held
        return bool(self.welcomed) or late or not self.hopes

    def _advance(self) -> None:
        """Go on with what is under way; look for machines from time to time."""
        if self._clock() - self._looked >= self.timeouts.look:
            self._look()
        for member in self.members.values():
            self._step(member)

    def _wait(self) -> None:
        """Wait a moment for an answer, and go on."""
        asked = [each.asked for each in self.members.values() if each.asked]
        if asked:
            wait_for(asked, timeout=0.1, return_when="FIRST_COMPLETED")
        else:
            time.sleep(0.1)
        self._advance()

    def _troubles(self) -> list[str]:
        troubles = {each.name: each.out or each.trouble for each in self.members.values()}
        return [f"{name}: {why}" for name, why in troubles.items() if why]

    def _look(self) -> None:
        self._looked, there = self._clock(), {machine.id: machine for machine in self._cluster.machines()}
        known = {each.machine.id: each for each in self.members.values()}
        for machine in there.values():
            if machine.id not in known:
                name = f"node-{len(self.members) + 1}"
                self.members[name] = ClusterMember(name, machine)
                self._start(self.members[name])
                continue
            member, paused = known[machine.id], min(60.0, self.timeouts.again * 2.0 ** (known[machine.id].failures - 1))
            if member.gone and not member.out and self._clock() - member.since >= paused:
                self._start(member)

    def _start(self, member: ClusterMember) -> None:
        hello = replace(self._hello, node=member.name, granted=member.granted)
        member.link, member._began = self._cluster.start(member.machine, hello), self._clock()
        member.sent_bytes, member.refused = 0, {}
        self._ask(member, member.link.welcome())

    def _ask(self, member: ClusterMember, answer: "Future[Any]") -> None:
        member.asked, member.since = answer, self._clock()

    def _step(self, member: ClusterMember) -> None:
        """Go on with a member that is not ready yet."""
        if member.link is None or member.ready:
            return
        if member.asked is None:  # welcomed, and there was no plan yet
            if self._plan is not None:
                self._ask(member, member.link.begin(self._plan))
            return
        if not member.asked.done():
            most = self.timeouts.prepare if member.welcomed else self.timeouts.start
            if self._clock() - member.since > most:
                self.lose(member, f"did not answer for {most:.0f} s")
            return
        try:
            answer, member.asked = member.asked.result(), None
        except Exception as error:
            self.lose(member, reason(error))
            return
        if isinstance(answer, Welcome):
            self._welcome(member, answer)
        else:
            self._prepare(member, answer)

    def _welcome(self, member: ClusterMember, welcome: Welcome) -> None:
        different = [
            f"{name} {welcome.versions.get(name, 'missing')}, the head has {version}"
            for name, version in self._versions.items()
            if welcome.versions.get(name) != version
        ]
        if different:
            self._refuse(member, f"has {', '.join(different)}: install the same versions on every node")
        elif welcome.trouble:
            self.lose(member, welcome.trouble)
        elif weak := [each for each in welcome.devices if self._lowest and (each.capability or ()) < self._lowest]:
            self._refuse(
                member,
                f"has a {weak[0].facts.label} (compute capability {_dotted(weak[0].capability)}), and the run is "
                f"planned for {_dotted(self._lowest)} and up: --resume with it from the start",
            )
        else:
            member.devices, member.environment, member.welcomed = welcome.devices, welcome.environment, True
            if self._kind:
                self._compare(member)
            self._step(member)

    def _compare(self, member: ClusterMember) -> None:
        """Refuse a node of another kind than the run computes on."""
        if member.kind != self._kind:
            self._refuse(
                member,
                f"has {KINDS[member.kind]}, others have {KINDS[self._kind]}: vectors would be computed in another "
                "precision; name the same --devices for all",
            )

    def _prepare(self, member: ClusterMember, ready: Ready) -> None:
        assert member.link
        if ready.trouble:
            self._refuse(member, ready.trouble)
        elif ready.lacking:
            try:
                files, size = self._packed_model(ready.lacking[0])
            except InterlockError as error:
                self._refuse(member, f"lacks model {ready.lacking[0]}, which cannot be sent: {error}")
                return
            member.sent_bytes += size
            self._ask(member, member.link.take(files))
        else:
            member.ready, member.refused = True, dict(ready.refused)
            member.seconds = self._clock() - member._began

    def _packed_model(self, key: str) -> tuple[Any, int]:
        """A model ready to be sent, made once for all that lack it."""
        if key not in self._packed:
            assert self._pack
            files = self._pack(key)
            self._packed[key] = self._cluster.shared(files), sum(each.nbytes for each in files.files.values())
        return self._packed[key]

    def _refuse(self, member: ClusterMember, why: str) -> None:
        if member.link:
            member.link.close()
        member.link, member.asked, member.out = None, None, why
        member.welcomed = member.ready = member.told = False


def _dotted(capability: tuple[int, int] | None) -> str:
    return ".".join(map(str, capability or ()))
