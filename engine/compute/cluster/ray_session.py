"""How the driver comes to a Ray: a cluster that it joins, or nodes that are started here."""

import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import IO, Any

import psutil

from interlock.engine.errors import UnavailableError, reason

STARTING = 120.0
"""Seconds for the nodes of `local:N` to be there: one takes two on two cores."""
ANSWERING = 5.0
"""Seconds for a cluster to answer at its address."""
STORE = 192 << 20
"""Bytes of each node's object store: what is on its way to or from one node, 64 MiB at most, and the next beside it.
More is spilled to the disk. Memory is taken as it is used."""
MOST = 16
PR_SET_CHILD_SUBREAPER = 36
HEARTBEATS = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5, "health_check_timeout_ms": 2000}


def open_ray(address: str) -> tuple[Any, Callable[[bool], None]]:
    """Connect to the cluster that this machine is in (`auto`), to the one at `HOST:PORT`, or to one of N nodes that is
    started here (`local:N`); returns Ray's module, and what lets go of it, told whether what nodes wrote is to be kept.

    Raises UnavailableError where there is no Ray.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # what is asked of a Ray that has ended begins another, of its own
    sys.argv[0] = sys.executable  # Ray has its processes import from beside the script of who connects
    try:
        import ray
    except ImportError as error:
        raise UnavailableError(f"--cluster needs Ray: pip install 'interlock[cluster]' ({error})") from error
    if not address.startswith("local:"):
        _join(ray, address)
        return ray, lambda _: ray.shutdown()
    local = LocalRay(int(address.removeprefix("local:")))
    try:
        local.connect(ray)
    except BaseException:
        local.close(keep=False)
        raise
    return ray, lambda keep: local.close(keep=keep)


class LocalRay:
    """A Ray of N nodes on this machine's loopback, kept by a process of its own."""

    def __init__(self, nodes: int) -> None:
        self._said = TemporaryFile()  # noqa: SIM115  # as long as the process
        self._keeper = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", __file__, str(nodes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,
        )
        self._ray: Any = None

    def connect(self, ray: Any) -> None:
        """Connect once every node is there. Raises UnavailableError where they do not start, with what they said."""
        address, self._ray = self._answer(), ray
        _join(ray, address)
        self._answer()

    def close(self, *, keep: bool) -> None:
        """Disconnect, and have the nodes ended; `keep` leaves their logs, which would go with them."""
        if self._ray:
            self._ray.shutdown()
        with suppress(BrokenPipeError):  # it has ended by itself
            _pipe(self._keeper.stdin).write(b"keep" if keep else b"")
            _pipe(self._keeper.stdin).close()
        with suppress(subprocess.TimeoutExpired):
            self._keeper.wait(STARTING)
        self._keeper.kill()
        self._keeper.wait()
        _pipe(self._keeper.stdout).close()
        self._said.close()

    def _answer(self) -> str:
        late = threading.Timer(STARTING, self._keeper.kill)
        late.start()
        try:
            line = _pipe(self._keeper.stdout).readline().decode().strip()
        finally:
            late.cancel()
        if not line:
            self._said.seek(0)
            raise UnavailableError(f"Ray's nodes do not start on this machine: {self._said.read()[-400:].decode()}")
        return line


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe
    return pipe


def _join(ray: Any, address: str) -> None:
    """Connect to a cluster that answers: Ray itself would ask one that does not for a quarter of an hour."""
    from ray._private import ray_constants, services

    own: dict[str, str] = {}
    try:
        found = services.canonicalize_bootstrap_address(address) or ":0"
        if address.startswith("127.") and not _answers(found):  # Ray takes it for this machine's on its network
            ray_constants.ENABLE_RAY_CLUSTER, found, own = False, address, {"_node_ip_address": "127.0.0.1"}
        _reach(found)
        _give_token(ray, found)
        ray.init(found, log_to_driver=False, **own)
    except Exception as error:  # Ray raises its own, and Python's
        if "AuthToken" in str(error):
            raise UnavailableError(
                f"Ray at {address} asks for another token: copy ~/.ray/auth_token of its first machine to this one and "
                "export RAY_AUTH_MODE=token, or start that Ray again with RAY_AUTH_MODE=disabled"
            ) from error
        where = "on this machine" if address == "auto" else f"at {address}, with this machine in it"
        raise UnavailableError(
            f"no Ray cluster {where}: start one (ray start --head), join one (ray start --address HOST:PORT), or try "
            f"--cluster local:2 ({reason(error):.300})"
        ) from error


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), ANSWERING).close()


def _answers(address: str) -> bool:
    with suppress(OSError):
        _reach(address)
        return True
    return False


def _give_token(ray: Any, address: str) -> None:
    """Have the token of this machine given where Ray asks for one, as `ray start` does; where it asks for none, a node
    could not answer. Asked with another one, Ray itself would try for 20 s, and not say why it failed."""
    try:
        ray._raylet.GcsClient(address=address)
    except Exception as error:  # of another kind: Ray tries longer
        if "AuthToken" in str(error):
            from ray._private.authentication import authentication_token_setup as tokens

            if "RAY_AUTH_MODE" in os.environ or not tokens.maybe_enable_token_auth_if_token_available():
                raise
            _give_token(ray, address)


# The process that keeps a Ray of its own on this machine: this file run as a script, the number of nodes its argument.
# It says its address on stdout once the first node is there, and `ready` once all are. It ends them when stdin ends, as
# it does however the process that started this one ends; what they wrote is removed then, all but logs if `keep` was
# said. Were it killed itself, the kernel ends what it started (Ray sets PR_SET_PDEATHSIG). It has a session of its own:
# Ctrl-C and a hangup of the terminal are for the run, which ends its nodes in order. Its files lie in a directory of
# its own: Ray's would tell every `auto` on this machine of these nodes.


def adopt_orphans() -> None:
    """Have what this process started, and what that started, be its own once nobody else has it; Linux can."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans() -> None:
    """End what is this process's own, until nothing is: agents of a Ray whose GCS has died go on for a minute."""
    while children := psutil.Process().children():
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(children)


def _keep(nodes: int) -> bool:
    """Run so many nodes until stdin ends; returns whether what they wrote is to be kept."""
    from ray.cluster_utils import Cluster

    common = {"num_cpus": 0, "num_gpus": 0, "object_store_memory": STORE}  # without CPUs no worker is started ahead
    first = {**common, "include_dashboard": False, "include_log_monitor": False, "_system_config": HEARTBEATS}
    cluster = Cluster(initialize_head=True, head_node_args=first)
    try:
        os.write(ANSWERS, f"{cluster.address}\n".encode())
        for _ in range(nodes - 1):
            cluster.add_node(wait=False, **common)
        cluster.wait_for_nodes()
        os.write(ANSWERS, b"ready\n")
        return "keep" in sys.stdin.read()
    finally:
        cluster.shutdown()
        end_orphans()


if __name__ == "__main__":
    ANSWERS = os.dup(1)
    os.dup2(2, 1)  # what Ray prints is no answer
    home = Path(mkdtemp(prefix="il-", dir="/tmp"))  # the names of sockets must be short
    os.environ.update(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_USAGE_STATS_ENABLED="0", RAY_TMPDIR=str(home))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # nodes of one machine do not share its GPUs
    os.environ.pop("RAY_ADDRESS", None)
    adopt_orphans()
    wanted = False
    try:
        wanted = _keep(int(sys.argv[1]))
    finally:
        for left in home.glob("ray/session_*/*") if wanted else [home]:
            if left.is_dir() and left.name != "logs":
                shutil.rmtree(left, ignore_errors=True)
