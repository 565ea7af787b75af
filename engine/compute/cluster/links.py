"""What carries messages between the head of a run and its nodes: Ray in production, threads in tests."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from interlock.engine.compute.cluster.messages import GridPlan, Hello, ModelFiles, Orders, Ready, Report, Welcome


@dataclass(frozen=True)
class NodeMachine:
    """A machine that could be a node; `id` stays its own for as long as it is there."""

    id: str
    label: str


class NodeLink(Protocol):
    """One node's process. A future fails, with whatever the carrier raises, where it cannot be reached any more."""

    def welcome(self) -> "Future[Welcome]":
        """Have the process look at its devices and hold them."""

    def begin(self, plan: Any) -> "Future[Ready]":
        """Give it the plan, as `Cluster.shared` made it of a `GridPlan`."""

    def take(self, files: Any) -> "Future[Ready]":
        """Give it a model that it lacks, as `Cluster.shared` made it of `ModelFiles`."""

    def exchange(self, orders: Orders) -> "Future[Report]":
        """Tell it what is new; it answers when it has news or has waited. One at a time."""

    def nudge(self) -> None:
        """Have an exchange that waits answer now."""

    def close(self) -> None:
        """End the process, and do not wait for it."""


class Cluster(Protocol):
    """The machines that a run may use, while it lasts."""

    def machines(self) -> Sequence[NodeMachine]:
        """List those that are there now."""

    def start(self, machine: NodeMachine, hello: Hello) -> NodeLink:
        """Start a node's process on a machine; its `welcome` says when it is there."""

    def shared(self, value: GridPlan | ModelFiles) -> Any:
        """Make a value ready to be given to any node, sent to each machine once."""

    def close(self) -> None:
        """Let go of everything, and end what was started for this run."""
